//! Credentials, where no account has been made yet: nobody is known, whatever is shown. Where accounts can't be read, that is not said of anybody.

use headwater_testkit::{MariaDb, Postgres};

use super::{Stage, change, get, mariadb, postgres};

const ANNA: &str = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";
const BOB: &str = "Authorization: Basic Ym9iOnNlY3JldA==\r\n";
const DORA: &str = "Authorization: Basic ZG9yYTpzZWNyZXQ=\r\n";
const TOKEN: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.AAAA\r\n";
/// An identity provider's, of its user carol and until 2100, by [`KEY`].
const CAROL: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
                     eyJzdWIiOiJjYXJvbCIsImV4cCI6NDEwMjQ0NDgwMH0.CJUMGuUC2x3xIbQMU5DO82oNJ0CzQvmurXDfmsEVCxM\r\n";
const KEY: &str = "0123456789abcdef0123456789abcdef";

fn stage(url: &str) -> Stage {
    let stage = Stage::alone(url);
    std::fs::remove_file(stage.path("queries/flights.sql")).expect("removed");
    stage.query("own.sql", "SELECT :s.user AS me");
    if url.starts_with("sqlite:") {
        stage.sql("CREATE TABLE t (a)"); // a database that is there
    }
    std::fs::write(stage.path("key"), KEY).expect("written");
    stage
}

/// The status of an answer to who shows this.
fn status(address: &str, shown: &str) -> String {
    let (head, _) = get(address, "/q/own.csv", shown);
    let status = head["http/1.1 ".len()..][..3].to_owned();
    assert_eq!(status == "401", head.contains("www-authenticate: "), "{head}");
    assert_eq!(status == "503", head.contains("retry-after: "), "{head}");
    status
}

fn nobody_is_known_where_there_is_no_account(stage: &mut Stage) {
    let address = stage.serve_with(&["--set", "jwt_key_file=key"], &[]);
    for shown in ["", BOB, TOKEN] {
        assert_eq!(status(&address, shown), "401", "{shown}");
    }
    assert!(get(&address, "/q.json", BOB).0.starts_with("http/1.1 401"));
    let (head, body) = get(&address, "/q/own.csv", CAROL);
    assert!(head.starts_with("http/1.1 200") && body == "me\r\ncarol\r\n", "the provider knows her: {head}");
    assert!(!stage.log().contains("who asks could not be found out"), "{}", stage.log());
}

#[test]
fn nobody_is_known_before_the_first_account_is_made() {
    for url in ["sqlite:HERE/central.db", &postgres()] {
        let mut stage = stage(url);
        nobody_is_known_where_there_is_no_account(&mut stage);
        stage.stop();
        let address = stage.serve();
        assert_eq!(status(&address, TOKEN), "401");
        stage.ok(&["user", "add", "anna"]);
        let token = format!("Authorization: Bearer {}\r\n", stage.ok(&["token", "anna"]).trim());
        assert_eq!((&*status(&address, &token), &*status(&address, ANNA)), ("200", "200"), "{url}");
        // Whoever stands before may have looked at the other.
        for two in [format!("{ANNA}{BOB}"), format!("{BOB}{ANNA}"), format!("{ANNA}{token}")] {
            assert_eq!(status(&address, &two), "400", "{two}");
        }
    }
    let (_, url, _) = mariadb::shared();
    nobody_is_known_where_there_is_no_account(&mut stage(&url));
}

/// It may be there again in a moment: a backup is put back, say.
#[test]
fn a_table_of_accounts_that_is_gone_or_is_another_is_no_sign_of_who_asks() {
    for (url, table) in [("sqlite:HERE/central.db", "headwater_account"), (&*postgres(), "headwater.account")] {
        let mut stage = stage(url);
        stage.ok(&["user", "add", "anna"]);
        let address = stage.serve();
        assert_eq!((&*status(&address, ANNA), &*status(&address, BOB)), ("200", "401"), "{url}");
        change(&stage, url, &format!("DROP TABLE {table}"));
        assert_eq!(status(&address, DORA), "503", "{url}");
        stage.stop();
        change(&stage, url, &format!("CREATE TABLE {table} (name text)"));
        let address = stage.serve();
        assert_eq!(status(&address, ANNA), "503", "{url}");
        assert!(stage.log().contains("who asks could not be found out") && stage.log().contains("user_name"));
    }
}

#[test]
fn a_role_that_may_not_read_accounts_is_no_sign_of_who_asks() {
    let url = postgres();
    let name = format!("accounts_{}", url.rsplit('/').next().expect("a database"));
    headwater_testkit::sql(&url, &format!("CREATE ROLE {name} LOGIN")).expect("a role");
    let reader = url.replace("postgres@", &format!("{name}@"));
    let mut stage = stage(&reader);
    let address = stage.serve();
    assert_eq!(status(&address, BOB), "401", "there are none");
    stage.ok(&["--database", &url, "user", "add", "anna"]);
    let denied = ["permission denied for schema headwater", "permission denied for table account"];
    let grants = [format!("GRANT USAGE ON SCHEMA headwater TO {name}"), documented_grant(&name)];
    for (denied, grant) in denied.iter().zip(grants) {
        for shown in [ANNA, TOKEN] {
            assert_eq!(status(&address, shown), "503", "{denied}");
        }
        assert!(stage.log().contains(denied), "no {denied:?} in {}", stage.log());
        headwater_testkit::sql(&url, &grant).expect("granted");
    }
    assert_eq!((&*status(&address, ANNA), &*status(&address, DORA)), ("200", "401"));
}

/// What the documentation says that such a role is to be granted.
fn documented_grant(name: &str) -> String {
    let text = include_str!("../../../../docs/gateway.md");
    let grant = text.split('`').find(|part| part.starts_with("GRANT SELECT ON headwater.account")).expect("a grant");
    grant.replace("TO reader", &format!("TO {name}"))
}

#[test]
fn a_database_that_is_dead_is_no_sign_of_who_asks() {
    let cluster = Postgres::start().expect("PostgreSQL");
    let mut stage = stage(&cluster.create_database().expect("a database"));
    let address = stage.serve();
    assert_eq!(status(&address, BOB), "401");
    cluster.kill().expect("killed");
    for shown in [ANNA, TOKEN] {
        assert_eq!(status(&address, shown), "503");
    }
    assert!(stage.log().contains("who asks could not be found out"));
    // It has no accounts: nobody is looked for.
    let server = MariaDb::start().expect("a server");
    let (url, _) = mariadb::fresh(&server);
    let mut stage = self::stage(&url);
    let address = stage.serve();
    server.kill().expect("killed");
    assert_eq!(status(&address, BOB), "401");
}
