//! Named queries without a model: nothing is synced.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{Stage, TABLES, change, get, postgres};

/// What a remote is told; head and body.
fn post(address: &str, target: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "POST {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
        .expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

/// The server is up, and says of itself and to remotes what it is.
pub(crate) fn syncs_nothing(address: &str) {
    let (head, body) = get(address, "/ready", "");
    assert!(head.starts_with("http/1.1 200") && body.contains("\"database\":true"), "{head}\n{body}");
    let (head, _) = get(address, "/health", "");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let (head, body) = post(address, "/v1/sync");
    assert!(head.starts_with("http/1.1 404") && head.contains("vnd.headwater.sync"), "{head}");
    assert!(body.contains("has no models and syncs nothing"), "{body}");
    let (head, body) = get(address, "/v1/model", "");
    assert!(head.starts_with("http/1.1 404") && body.contains("\"error\":\"model_unknown\""), "{head}\n{body}");
}

fn without_a_model(url: &str) {
    let mut stage = Stage::alone(url);
    change(
        &stage,
        url,
        &if url.starts_with("sqlite:") { TABLES.to_owned() } else { TABLES.replace("DECIMAL_TEXT", "numeric") },
    );
    stage.query("own.sql", "SELECT :s.user AS me");
    let checked = stage.ok(&["query", "check"]);
    assert!(checked.contains("2 queries, as the database takes them"), "{checked}");
    let address = stage.serve();
    let (head, body) = get(&address, "/q/flights.csv?origin=EWR", "");
    assert!(head.starts_with("http/1.1 200") && body == "id,delay,fare\r\n3,7,9.99\r\n", "{head}\n{body}");
    syncs_nothing(&address);
    let (head, _) = get(&address, "/q/own.csv", "");
    assert!(head.starts_with("http/1.1 401"), "{head}");
    // Accounts may come while it runs.
    stage.ok(&["user", "add", "anna"]);
    let (head, body) = get(&address, "/q/own.csv", "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n");
    assert!(head.starts_with("http/1.1 200") && body == "me\r\nanna\r\n", "{head}\n{body}");
    let token = stage.ok(&["token", "anna"]);
    let (_, body) = get(&address, "/q/own.csv", &format!("Authorization: Bearer {}\r\n", token.trim()));
    assert_eq!(body, "me\r\nanna\r\n");
    let (head, _) = get(&address, "/q/own.csv", "Authorization: Basic YW5uYTp3cm9uZw==\r\n");
    assert!(head.starts_with("http/1.1 401"), "{head}");
    let said = stage.run(&["check"]);
    assert!(said.0 == Some(2) && said.2.contains("names no model"), "{said:?}");
}

#[test]
fn sqlite_is_served_without_a_model() {
    without_a_model("sqlite:HERE/central.db");
}

#[test]
fn postgres_is_served_without_a_model() {
    without_a_model(&postgres());
}

/// A supervisor starts it again then; a configuration that can't be used is another code.
#[test]
fn a_server_whose_database_is_not_there_ends_by_a_code_of_its_own() {
    let port = headwater_testkit::free_port().expect("a port");
    for url in ["postgres://me@127.0.0.1:PORT/shop", "mariadb://me:secret@127.0.0.1:PORT/shop"] {
        let stage = Stage::alone(&url.replace("PORT", &port.to_string()));
        let (code, _, said) = stage.run(&["serve", "--listen", "127.0.0.1:0", "--until-input-ends"]);
        assert_eq!(code, Some(3), "{url}: {said}");
    }
}

/// By hyper, before anything of ours sees it.
#[test]
fn what_is_no_request_is_answered_without_a_body() {
    let mut stage = Stage::alone("sqlite:HERE/central.db");
    stage.sql(TABLES);
    let address = stage.serve();
    let large = format!("X-Large: {}\r\n", "x".repeat(200 << 10));
    for (headers, status) in [(large.as_str(), "431"), ("Content-Length: 1\r\nContent-Length: 2\r\n", "400")] {
        let (head, body) = get(&address, "/q/flights.csv?origin=EWR", headers);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert!(body.is_empty() && head.contains("connection: close"), "{head}\n{body}");
    }
}
