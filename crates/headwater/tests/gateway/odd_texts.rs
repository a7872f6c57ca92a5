//! A text that is not UTF-8, which SQLite takes: in no form of rows is it another.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use headwater_lab::frontier::{Answer, Field, ID, ID_HEADER, Records, Request};

use super::{FRONTIER, Stage, get};

const WORDS: &str = "column \"name\" has in row 2 the text ";
const ODD: &[u8] = b"gr\xf6\xdfe";

fn stage() -> Stage {
    let stage = Stage::alone("sqlite:HERE/central.db");
    stage.sql(
        "CREATE TABLE odd (id INTEGER, name TEXT); INSERT INTO odd VALUES (1, 'a'), (2, CAST(X'6772f6df65' AS TEXT))",
    );
    stage.query("odd.sql", "-- public = true\nSELECT id, name FROM odd ORDER BY id");
    stage.query("flights.sql", "-- public = true\nSELECT id, CAST(name AS BLOB) AS name FROM odd ORDER BY id");
    stage.configure(&format!("[gateway.cursor]\n{FRONTIER}"));
    stage
}

#[test]
fn a_text_that_is_none_is_told_and_not_changed() {
    let mut stage = stage();
    for format in ["table", "json", "ndjson", "csv", "arrow"] {
        let done = stage.command(&["query", "run", "odd", "--format", format]).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(WORDS), "{format}: {said}");
    }
    let table = stage.ok(&["query", "run", "flights"]);
    assert!(table.contains("Z3L232U="), "bytes are base64: {table}");
    let address = stage.serve();
    for form in ["json", "arrays.json", "ndjson", "csv", "arrow"] {
        let (head, body) = get(&address, &format!("/q/odd.{form}"), "");
        let said: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{head}\n{body}"));
        assert!(head.starts_with("http/1.1 422") && said["error"] == "unfit", "{form}: {head}\n{body}");
        assert!(said["message"].as_str().is_some_and(|said| said.starts_with(WORDS)), "{form}: {body}");
    }
    // A cursor has the bytes; it is the printing of them that fails.
    let server = format!("http://{address}");
    for format in ["table", "csv"] {
        let (code, _, said) = stage.run(&["query", "run", "odd", "--cursor", "--server", &server, "--format", format]);
        assert!(code == Some(2) && said.contains(WORDS), "{format}: {said}");
    }
    // As the message has it.
    let (_, body) = get(&address, "/q/flights.csv", "");
    assert_eq!(body, "id,name\r\n1,YQ==\r\n2,Z3L232U=\r\n");
    // The Frontier protocol has bytes.
    let request = Request::new("select id, name from odd order by id");
    let mut stream = TcpStream::connect(&address).expect("a connection");
    write!(stream, "GET /X/Frontier/{} HTTP/1.0\r\nHost: test\r\n{ID_HEADER}: {ID}\r\n\r\n", request.target())
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let answer = Answer::to(&request, body.as_bytes()).expect("an answer");
    let mut records = Records::of(&answer.payload).expect("a header");
    records.next_record().expect("a record").expect("one");
    let second = records.next_record().expect("a record").expect("one");
    assert_eq!(second, [Field::Bytes(b"2"), Field::Bytes(ODD)]);
}
