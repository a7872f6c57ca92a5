//! Named queries from MariaDB, which can't be synced.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use headwater_cursor::{Connection, Credentials, Server, Value};
use headwater_lab::frontier::Request;
use headwater_testkit::{MariaDb, wait_until};

use super::alone::syncs_nothing;
use super::{FRONTIER, Stage, TABLES, get, pages};

const PATIENCE: Duration = Duration::from_mins(1);
/// Goes through more pairs than anybody waits for.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) \
                       SELECT count(*) AS endless FROM n AS a, n AS b WHERE a.i + b.i = -1";

pub(crate) fn fresh(server: &MariaDb) -> (String, String) {
    let name = server.create_database().expect("a database");
    server.sql(&name, &TABLES.replace("DECIMAL_TEXT", "DECIMAL(10,2)")).expect("tables");
    (server.url(&name), name)
}

/// The address of a database by a user who may read its tables and nothing else.
pub(crate) fn client(server: &MariaDb, name: &str) -> String {
    let user = format!("client_{name}");
    let made = format!("CREATE USER {user} IDENTIFIED BY 'secret'; GRANT SELECT ON {name}.* TO {user}");
    server.sql("", &made).expect("made");
    format!("mariadb://{user}:secret@127.0.0.1:{}/{name}", server.port())
}

pub(crate) fn shared() -> (&'static MariaDb, String, String) {
    let server = MariaDb::shared().expect("a server");
    let (url, name) = fresh(server);
    (server, url, name)
}

#[test]
fn from_file_to_answer() {
    let (server, url, name) = shared();
    let mut stage = Stage::alone(&url);
    let pages = "-- public = true\n-- page_by = { id = \"int\" }\n-- page_rows = 1\nSELECT id, origin FROM flight";
    stage.query("pages.sql", pages);
    stage.query("own.sql", "SELECT 1 AS a");
    let checked = stage.ok(&["query", "check"]);
    assert!(checked.contains("3 queries, as the database takes them"), "{checked}");
    let csv = stage.ok(&["query", "run", "flights", "origin=JFK", "--format", "csv"]);
    assert_eq!(csv, "id,delay,fare\r\n1,5,10.50\r\n2,,\r\n");
    for (arguments, words) in [(&["track"][..], "names no model"), (&["user", "add", "anna"], "can't be synced yet")] {
        let said = stage.run(arguments);
        assert!(said.0 == Some(2) && said.2.contains(words), "{said:?}");
    }

    let address = stage.serve();
    syncs_nothing(&address);
    for (form, expected) in [
        ("csv", "id,delay,fare\r\n1,5,10.50\r\n2,,\r\n"),
        ("ndjson", "{\"id\":1,\"delay\":5,\"fare\":\"10.50\"}\n{\"id\":2,\"delay\":null,\"fare\":null}\n"),
        ("json", "\"rows\":[\n{\"id\":1,\"delay\":5,\"fare\":\"10.50\"}"),
        ("arrays.json", "[1,5,\"10.50\"]"),
    ] {
        let (head, body) = get(&address, &format!("/q/flights.{form}?origin=JFK"), "");
        assert!(head.starts_with("http/1.1 200") && body.contains(expected), "{head}\n{body}");
    }
    let (head, body) = get(&address, "/q/flights.csv?origin=LONG", "");
    assert!(head.starts_with("http/1.1 400") && body.contains("expected at most 3"), "{head}\n{body}");
    // Nobody is known there.
    let (head, _) = get(&address, "/q/own.csv", "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n");
    assert!(head.starts_with("http/1.1 401"), "{head}");
    assert_eq!(pages::followed(&address, "pages").as_deref(), Ok("1,JFK 2,JFK 3,EWR "));
    server.sql(&name, "DELETE FROM flight WHERE id = 1").expect("deleted");
    let (_, body) = get(&address, "/q/flights.csv?origin=JFK", "");
    assert_eq!(body, "id,delay,fare\r\n2,,\r\n");
}

/// The usual collation takes both for one, and a page behind the one has not the other.
#[test]
fn texts_that_differ_by_case_alone_are_one_key() {
    let (server, url, name) = shared();
    server
        .sql(&name, "CREATE TABLE people (name TEXT); INSERT INTO people VALUES ('anna'), ('Anna'), ('bob')")
        .expect("made");
    let mut stage = Stage::alone(&url);
    stage.query(
        "people.sql",
        "-- public = true\n-- page_by = { name = \"text\" }\n-- page_rows = 1\nSELECT name FROM people",
    );
    let address = stage.serve();
    let (head, body) = get(&address, "/q/people.csv", "");
    assert!(head.starts_with("http/1.1 500") && body.contains("two rows have the key name = "), "{head}\n{body}");
}

/// The body of an answer, from the one URL that it has.
fn followed(address: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    match head.lines().find_map(|line| line.strip_prefix("location: ")) {
        Some(there) => followed(address, there),
        None => body.to_owned(),
    }
}

/// Comments of all kinds have no parameters, and what only looks like one has.
#[test]
fn parameters_are_looked_for_where_mariadb_has_sql() {
    let (_, url, _) = shared();
    let stage = Stage::alone(&url);
    let head = "-- [parameters]\n-- x = { type = \"int\" }\n";
    let sql = "SELECT 5--:x AS a, /*! :x */ AS b, '#' AS `:c` # not :this\n/* nor :that */ -- nor :these";
    stage.query("odd.sql", &format!("{head}{sql}"));
    assert!(stage.ok(&["query", "check"]).contains("2 queries, as"));
    let csv = stage.ok(&["query", "run", "odd", "x=3", "--format", "csv"]);
    assert_eq!(csv, "a,b,:c\r\n8,3,#\r\n");
}

#[test]
fn what_is_sent_is_a_value_and_no_sql() {
    let (server, url, name) = shared();
    let mut stage = Stage::alone(&url);
    let head = "-- public = true\n-- [parameters]\n-- origin = { type = \"text\" }\n";
    stage.query("echo.sql", &format!("{head}SELECT :origin AS said, count(*) AS n FROM flight WHERE origin = :origin"));
    let address = stage.serve();
    for (sent, said) in [
        ("'%20OR%20'1'='1", "' OR '1'='1"),
        ("%5C'%20OR%201=1%20--%20", "\\' OR 1=1 -- "),
        ("x';%20DROP%20TABLE%20flight;%20--", "x'; DROP TABLE flight; --"),
        ("?1%20:origin%20/*", "?1 :origin /*"),
    ] {
        let body = followed(&address, &format!("/q/echo.ndjson?origin={sent}"));
        let row: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        assert_eq!(row, serde_json::json!({ "said": said, "n": 0 }));
    }
    assert_eq!(server.sql(&name, "SELECT count(*) FROM flight").expect("it is there"), ["3"]);
}

/// The cast would make NULL of it.
#[test]
fn a_date_that_mariadb_does_not_have_is_an_argument_that_is_none() {
    let (_, url, _) = shared();
    let mut stage = Stage::alone(&url);
    for kind in ["date", "timestamp", "timestamptz"] {
        let text = format!("-- public = true\n-- [parameters]\n-- d = {{ type = \"{kind}\" }}\nSELECT :d AS d");
        stage.query(&format!("{kind}.sql"), &text);
    }
    let address = stage.serve();
    for kind in ["date", "timestamp", "timestamptz"] {
        let (head, body) = get(&address, &format!("/q/{kind}.json?d=infinity"), "");
        assert!(head.starts_with("http/1.1 400"), "{kind}: {head}\n{body}");
        assert!(body.contains("infinity is no date of MariaDB's, whose years are 0 to 9999"), "{kind}: {body}");
    }
    let (head, body) = get(&address, "/q/date.csv?d=2013-01-31", "");
    assert!(head.starts_with("http/1.1 200") && body == "d\r\n2013-01-31\r\n", "{head}\n{body}");
}

#[test]
fn faults_are_told_by_file_and_line() {
    let (_, url, _) = shared();
    let stage = Stage::alone(&url);
    stage.query("typo.sql", "-- public = true\n\nSELECT id,\n  absent\nFROM flight");
    stage.query("syntax.sql", "-- public = true\nSELECT id\nFROM flight\nWHEN id = 1");
    stage.query("twice.sql", "SELECT id, id FROM flight");
    stage.query("writes.sql", "DELETE FROM flight");
    stage.query("table.sql", "SELECT a\nFROM there_is_none");
    let (code, said, _) = stage.run(&["query", "check"]);
    assert_eq!(code, Some(1), "{said}");
    for words in [
        "typo.sql:4: Unknown column 'absent'",
        "syntax.sql:4: You have an error in your SQL syntax",
        "twice.sql:1: two columns are called \"id\"",
        "writes.sql:1: it gives no rows: expected a SELECT",
        "table.sql:2: Table ",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let (code, _, said) = stage.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("typo.sql:4: "), "it does not start: {said}");
}

#[test]
fn a_query_ends_with_its_time_and_with_who_waits_for_it() {
    let (server, url, name) = shared();
    let mut stage = Stage::alone(&url);
    stage.query("slow.sql", &format!("-- public = true\n-- time_out_s = 1\n{ENDLESS}"));
    stage.query("endless.sql", &format!("-- public = true\n-- time_out_s = 600\n{ENDLESS}"));
    let address = stage.serve();
    let (head, body) = get(&address, "/q/slow.json", "");
    assert!(head.starts_with("http/1.1 504") && body.contains("longer than 1s"), "{head}\n{body}");
    let runs = || {
        let sql = format!("SELECT 1 FROM information_schema.processlist WHERE db = '{name}' AND info LIKE '%endless%'");
        !server.sql("", &sql).expect("asked").is_empty()
    };
    assert!(wait_until(PATIENCE, || !runs()), "the time of the slow one is over in the database too");
    let mut stream = TcpStream::connect(&address).expect("a connection");
    write!(stream, "GET /q/endless.json HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
    assert!(wait_until(PATIENCE, runs), "it runs");
    drop(stream);
    assert!(wait_until(PATIENCE, || !runs()), "nobody waits for it any more");
    let (head, _) = get(&address, "/q/flights.csv?origin=JFK", "");
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

#[test]
fn frontier_clients_are_served() {
    let (server, url, name) = shared();
    server
        .sql(&name, "CREATE TABLE t (id INT, name TEXT); INSERT INTO t VALUES (1, 'alpha'), (2, NULL)")
        .expect("made");
    let mut stage = Stage::alone(&url);
    stage.configure(&format!("[gateway.cursor]\nsql = true\n{FRONTIER}"));
    let own = client(server, &name);
    let address = stage.serve_with(&[], &[("HEADWATER_GATEWAY_FRONTIER_URL", &own)]);
    // `select id, name from t`, as the C client encodes it.
    let target =
        "/X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=eNorTs1JTS5RyEzRUchLzE1VSCvKz1UoAQBa6wfD";
    let (head, body) = get(&address, target, "X-Frontier-Id: client 2.10.2 10288 root(0) root\r\n");
    assert!(head.starts_with("http/1.1 200") && body.contains("records=\"2\""), "{head}\n{body}");
    // A `?` in a comment is none, and asks for no value.
    for request in [
        Request::new("select id from t # is it there?\n where id > 0"),
        Request::new("select id from t # is it there?\n where id <> ?").bind(&["7"]),
    ] {
        let target = format!("/X/Frontier/{}", request.target());
        let (head, body) = get(&address, &target, "X-Frontier-Id: client 2.10.2 10288 root(0) root\r\n");
        assert!(body.contains("records=\"2\""), "{head}\n{body}");
    }
    // Nor does a cursor see one there.
    let url = format!("http://{address}");
    let connection =
        Connection::open(&Server { url, credentials: Credentials::Nothing, ca_file: None }).expect("a connection");
    let mut cursor = connection.sql("select id from t # is it there?\n where id <> ?", &["2"]).expect("open");
    assert_eq!(cursor.next_row().expect("a row").expect("one")[0], Value::Int(1));
    assert_eq!(cursor.next_row().expect("no error"), None);
}

#[test]
fn a_database_that_dies_is_found_again() {
    let mut server = MariaDb::start().expect("a server");
    server.sql("", "SET GLOBAL innodb_flush_log_at_trx_commit = 1").expect("set");
    let (url, _) = fresh(&server);
    server.sql("", "FLUSH TABLES").expect("flushed");
    let mut stage = Stage::alone(&url);
    stage.query("kept.sql", "-- public = true\n-- stale_if_error_s = 600\nSELECT count(*) AS n FROM flight");
    let address = stage.serve();
    for target in ["/q/kept.csv", "/q/flights.csv?origin=JFK"] {
        let (head, body) = get(&address, target, "");
        assert!(head.starts_with("http/1.1 200"), "{head}\n{body}");
    }
    server.kill().expect("killed");
    let (head, body) = get(&address, "/q/kept.csv", "");
    assert!(head.starts_with("http/1.1 200") && body == "n\r\n3\r\n", "what is too old is given: {head}\n{body}");
    let (head, body) = get(&address, "/q/flights.csv?origin=JFK", "");
    assert!(head.starts_with("http/1.1 503") && head.contains("retry-after"), "{head}\n{body}");
    let (head, body) = get(&address, "/ready", "");
    assert!(head.starts_with("http/1.1 503") && body.contains("\"database\":false"), "{head}\n{body}");
    server.restart().expect("it starts anew");
    let is_back = || get(&address, "/q/flights.csv?origin=JFK", "").0.starts_with("http/1.1 200");
    assert!(wait_until(PATIENCE, is_back), "by itself");
    assert!(wait_until(PATIENCE, || get(&address, "/ready", "").0.starts_with("http/1.1 200")));
}

#[test]
fn models_are_refused_before_anything_is_served() {
    let (_, url, _) = shared();
    let stage = Stage::alone(&url);
    let file = stage.path("headwater.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::write(&file, format!("models = [\"shop.toml\"]\n{text}")).expect("written");
    let model = "name = \"shop\"\nversion = 1\n[tables.flight]\nkey = [\"id\"]\ncolumns = { id = \"int not null\" }\n";
    std::fs::write(stage.path("shop.toml"), model).expect("written");
    let (code, _, said) = stage.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("MariaDB can't be synced yet"), "{said}");
}
