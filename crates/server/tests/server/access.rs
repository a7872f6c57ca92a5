//! Who is not let in, judged before a byte of the body is asked for.

use std::time::Duration;

use headwater_access::{Credentials, Secret, Tokens};
use headwater_consolidated::{Backend as _, sqlite::Sqlite, system};
use headwater_protocol::message::ErrorCode;
use headwater_server::Config;

use crate::support::{Client, Stand, anna, config, head, request};

fn password(user: &str, password: &str) -> Credentials {
    Credentials::Password { user: user.into(), password: Secret::new(password) }
}

#[test]
fn wrong_credentials_are_refused_from_the_head_alone() {
    let stand = Stand::start(config());
    let forged =
        Tokens::new(&[0; 32]).expect("a key").issue("anna", Duration::from_hours(1), std::time::SystemTime::now());
    let wrong = [
        None,
        Some(password("anna", "Secret")),
        Some(password("anna", "")),
        Some(password("nobody", "secret")),
        Some(password("anna\0", "secret")),
        Some(password("' OR 1=1 --", "secret")),
        Some(Credentials::Token(Secret::new("x.y.z"))),
        Some(Credentials::Token(forged.expect("a token"))),
    ];
    for credentials in wrong {
        // A body is announced and never sent: the answer must not wait for it.
        let mut client = Client::connect(stand.address);
        client.send(&head("POST", "/v1/sync", credentials.as_ref(), Some(1000)));
        let answer = client.answer();
        answer.expect_error(401, ErrorCode::Unauthenticated);
        assert!(answer.header("www-authenticate").is_some());
        assert_eq!(stand.get("/v1/model", credentials.as_ref()).status, 401);
    }
    stand.wait_until_idle();
}

#[test]
fn whose_remote_it_is_must_be_who_asks() {
    let stand = Stand::start(config());
    let ask = |route: &str, user: &str| {
        let mut client = Client::connect(stand.address);
        let authorization = anna().to_header();
        let head = format!(
            "{route} HTTP/1.1\r\nHost: headwater\r\nAuthorization: {}\r\nHeadwater-User: {user}\r\nContent-Length: 0\r\n\r\n",
            authorization.expose()
        );
        client.send(head.as_bytes());
        client.answer()
    };
    let download = format!("GET /v1/download/{}", "0".repeat(32));
    let piece = format!("PUT /v1/upload/{}?offset=0", "0".repeat(32));
    for route in ["POST /v1/sync", "POST /v1/upload", &piece, &download, "GET /v1/model"] {
        for (user, status) in [("626f", 403), ("", 403), ("zz", 400), ("anna", 400), ("ff", 400), ("616e6e6", 400)] {
            let answer = ask(route, user);
            assert_eq!(answer.status, status, "{route} for {user:?}");
        }
    }
    assert_eq!(ask("GET /v1/model", "616e6e61").status, 200, "anna's");
    let refused = ask("GET /v1/model", "626f").json()["message"].to_string();
    assert!(refused.contains("this remote to user \\\"bo\\\"") && refused.contains("use a token of"), "{refused}");
    let malformed = ask("GET /v1/model", "zz").json()["message"].to_string();
    assert!(malformed.contains("Headwater-User") && malformed.contains("expected"), "{malformed}");
}

#[test]
fn a_disabled_user_is_refused_with_password_and_token() {
    let stand = Stand::start(Config { account_cache_ms: 0, ..config() });
    let json = request(stand.address, "POST", "/v1/token", Some(&anna())).json();
    let token = Credentials::Token(Secret::new(json["token"].as_str().expect("a token")));
    assert_eq!(stand.get("/v1/model", Some(&token)).status, 200);
    let disable = |disabled| {
        let mut connection = Sqlite::new(stand.file()).connect().expect("a connection");
        assert!(system::set_account_disabled(&mut *connection, "anna", disabled).expect("set"));
    };
    disable(true);
    for credentials in [&token, &anna()] {
        let mut client = Client::connect(stand.address);
        client.send(&head("POST", "/v1/sync", Some(credentials), Some(1000)));
        client.answer().expect_error(403, ErrorCode::Forbidden);
    }
    assert_eq!(stand.get("/v1/model", Some(&password("anna", "wrong"))).status, 401, "only who proves it is told");
    disable(false);
    assert_eq!(stand.get("/v1/model", Some(&token)).status, 200);
}

/// A token names the account, not a name that others may get. One from before tokens named the account is judged by when it was issued.
#[test]
fn the_token_of_a_removed_user_is_none_of_a_new_one_of_the_same_name() {
    let stand = Stand::start(Config { account_cache_ms: 0, ..config() });
    let json = request(stand.address, "POST", "/v1/token", Some(&anna())).json();
    let token = Credentials::Token(Secret::new(json["token"].as_str().expect("a token")));
    let mut connection = Sqlite::new(stand.file()).connect().expect("a connection");
    let tokens = Tokens::new(&system::identity(&mut *connection).expect("an identity").token_key).expect("a key");
    let now = std::time::SystemTime::now();
    let nameless = |before: Duration| {
        let token = tokens.issue("anna", Duration::from_hours(24), now - before).expect("a token");
        Credentials::Token(token)
    };
    let statuses = || {
        let all = [&token, &nameless(Duration::ZERO), &nameless(Duration::from_mins(10))];
        all.map(|token| stand.get("/v1/model", Some(token)).status)
    };
    assert_eq!(statuses(), [200, 200, 401], "the last was issued before there was such a user");
    assert!(system::remove_account(&mut *connection, "anna").expect("removed"));
    assert_eq!(statuses(), [401; 3]);
    assert!(system::add_account(&mut *connection, "anna", "no password fits this").expect("added"));
    assert_eq!(statuses(), [401, 200, 401]);
}

/// The key of tokens belongs to the database: a server does not keep it longer than it keeps accounts.
#[test]
fn a_token_of_a_database_that_was_made_anew_is_refused() {
    let stand = Stand::start(Config { account_cache_ms: 0, ..config() });
    let token = || {
        let json = request(stand.address, "POST", "/v1/token", Some(&anna())).json();
        Credentials::Token(Secret::new(json["token"].as_str().expect("a token")))
    };
    let old = token();
    assert_eq!(stand.get("/v1/model", Some(&old)).status, 200);
    stand.database().execute("UPDATE headwater_identity SET token_key = randomblob(32)", []).expect("another key");
    assert_eq!(stand.get("/v1/model", Some(&old)).status, 401);
    assert_eq!(stand.get("/v1/model", Some(&token())).status, 200);
}

#[test]
fn a_token_that_has_expired_is_refused_and_says_so() {
    let stand = Stand::start(config());
    let mut connection = Sqlite::new(stand.file()).connect().expect("a connection");
    let key = system::identity(&mut *connection).expect("an identity").token_key;
    let hour = Duration::from_hours(1);
    let made = |before: Duration| {
        let token = Tokens::new(&key).expect("a key").issue("anna", hour, std::time::SystemTime::now() - before);
        Credentials::Token(token.expect("a token"))
    };
    assert_eq!(stand.get("/v1/model", Some(&made(Duration::ZERO))).status, 200);
    let mut client = Client::connect(stand.address);
    client.send(&head("POST", "/v1/sync", Some(&made(hour * 2)), Some(1000)));
    let error = client.answer().expect_error(401, ErrorCode::Unauthenticated);
    assert_eq!(error.message, "the token has expired; ask for a new one");
}

#[test]
fn logins_beyond_the_queue_are_told_to_come_back() {
    let stand = Stand::start(Config { password_checks: 1, password_checks_waiting: 0, ..config() });
    let ask = || {
        std::thread::spawn({
            let address = stand.address;
            move || request(address, "POST", "/v1/token", Some(&anna()))
        })
    };
    let asked: Vec<_> = (0..8).map(|_| ask()).collect();
    let statuses: Vec<u16> = asked.into_iter().map(|asked| asked.join().expect("an answer").status).collect();
    assert!(statuses.iter().all(|status| [200, 503].contains(status)) && statuses.contains(&200), "{statuses:?}");
    assert_eq!(request(stand.address, "POST", "/v1/token", Some(&anna())).status, 200, "places are given back");
}
