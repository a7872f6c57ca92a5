//! Rows of many megabytes: they come whole in every form, and few of them are in memory, whoever takes them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_ipc::reader::StreamReader;
use headwater_testkit::wait_until;

use super::slow::{ask, connections, memory};
use super::{Stage, TABLES, get, postgres};

/// Bytes of a row's one text: more than what is held of an answer, and than what waits to be taken.
const ROW_BYTES: usize = 16 << 20;

/// A server of so many rows with a text of that, which is made as it is read.
fn serve(url: &str, text: &str) -> (Stage, String) {
    let mut stage = Stage::alone(url);
    if url.starts_with("sqlite:") {
        stage.sql(TABLES);
    } else {
        headwater_testkit::sql(url, &TABLES.replace("DECIMAL_TEXT", "numeric")).expect("tables");
    }
    let head =
        "-- public = true\n-- time_out_s = 10\n-- bytes_max = 300000000\n-- [parameters]\n-- n = { type = \"int\" }\n";
    let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)";
    stage.query("wide.sql", &format!("{head}{numbers} SELECT i, {text} AS x FROM n"));
    let small = head.replace("bytes_max = 300000000", "bytes_max = 10000000");
    stage.query("small.sql", &format!("{small}{numbers} SELECT i, {text} AS x FROM n"));
    let address = stage.serve_with(&["--set", "idle_ms_max=2000"], &[]);
    (stage, address)
}

/// The body of an answer, by HTTP/1.0: without chunks.
fn body(address: &str, target: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {target} HTTP/1.0\r\nHost: test\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    assert!(answer.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&answer[..end]));
    answer.split_off(end + 4)
}

fn come_whole(url: &str, text: &str, letter: u8) {
    let (_stage, address) = serve(url, text);
    let text = vec![letter; ROW_BYTES];
    for (form, before, behind) in [
        ("csv", "i,x\r\n1,", "\r\n"),
        ("ndjson", "{\"i\":1,\"x\":\"", "\"}\n"),
        ("json", "{\"i\":1,\"x\":\"", "\"}\n],\"count\":1}\n"),
        ("arrays.json", "[1,\"", "\"]\n],\"count\":1}\n"),
    ] {
        let found = body(&address, &format!("/q/wide.{form}?n=1"));
        let expected = [before.as_bytes(), &text, behind.as_bytes()].concat();
        assert!(found.ends_with(&expected), "{form}: {} bytes", found.len());
    }
    let found = body(&address, "/q/wide.arrow?n=2");
    let batches: Vec<_> =
        StreamReader::try_new(&*found, None).expect("a schema").map(|batch| batch.expect("a batch")).collect();
    assert_eq!(batches.len(), 2, "each is a batch");
    for batch in &batches {
        let values = batch.column_by_name("x").expect("x").as_string::<i32>();
        assert!(batch.num_rows() == 1 && values.value(0).as_bytes() == text);
    }
    for form in ["csv", "arrow"] {
        let (head, said) = get(&address, &format!("/q/small.{form}?n=1"), "");
        assert!(
            head.starts_with("http/1.1 422") && said.contains("more than 10000000 bytes (bytes_max"),
            "{head}\n{said}"
        );
    }
}

#[test]
fn sqlite_rows_of_many_megabytes_come_whole() {
    come_whole("sqlite:HERE/central.db", &format!("hex(zeroblob({}))", ROW_BYTES / 2), b'0');
}

#[test]
fn postgres_rows_of_many_megabytes_come_whole() {
    let url = postgres();
    come_whole(&url, &format!("repeat('x', {ROW_BYTES})"), b'x');
}

/// One is sent, one waits, one is read: the others are not made yet.
fn few_are_in_memory(url: &str, text: &str, grown_max: usize) {
    const ROWS: usize = 16;
    let (stage, address) = serve(url, text);
    get(&address, "/q/flights.csv?origin=JFK", "");
    let before = memory(&stage);
    let mut stuck = ask(&address, &format!("/q/wide.csv?n={ROWS}"));
    stuck.read_exact(&mut [0; 1_024]).expect("it begins");
    let mut grown = 0;
    let ended = wait_until(Duration::from_mins(2), || {
        grown = grown.max(memory(&stage).saturating_sub(before));
        connections(&address) == 0
    });
    assert!(ended, "whoever takes nothing is cut off");
    assert!(grown > ROW_BYTES as u64 && grown < grown_max as u64, "{grown} bytes");
}

#[test]
fn sqlite_rows_that_nobody_takes_are_not_made() {
    few_are_in_memory("sqlite:HERE/central.db", &format!("hex(zeroblob({}))", ROW_BYTES / 2), 8 * ROW_BYTES);
}

#[test]
fn postgres_rows_that_nobody_takes_are_not_made() {
    let url = postgres();
    few_are_in_memory(&url, &format!("repeat('x', {ROW_BYTES})"), 7 * ROW_BYTES);
}
