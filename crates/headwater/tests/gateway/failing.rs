//! Large answers that fail before much of them has gone: their heads are there all the same, so that nobody takes the server for dead.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use headwater_lab::frontier::Request;

use super::{FRONTIER, Stage};

/// It fails behind some rows, which compress to little.
const SQL: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000) \
                   SELECT 'padding of a row' AS x, abs(CASE WHEN i < 4000 THEN 1 ELSE -9223372036854775808 END) AS y FROM n";
const ID: &str = "X-Frontier-Id: client 2.10.2 10288 root(0) root\r\n";

fn answer(address: &str, target: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = Vec::new();
    // It is cut off, by a reset perhaps.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_large_answer_that_fails_at_once_has_a_head_and_no_end() {
    let mut stage = Stage::new("sqlite:HERE/central.db");
    stage.query("fails.sql", &format!("-- public = true\n{SQL}"));
    stage.configure(&format!("held_bytes_max = 100\n{FRONTIER}"));
    let address = stage.serve();
    let request = Request::new(SQL);
    let (plain, packed) = (request.clone().level(None).target(), request.level(Some(9)).target());
    // Whether the head has gone by then is a matter of turns.
    for (target, headers, times) in [
        (format!("/X/Frontier/{plain}"), ID, 50),
        (format!("/X/Frontier/{packed}"), ID, 50),
        ("/q/fails.csv".to_owned(), "", 50),
        ("/q/fails.csv".to_owned(), "Accept-Encoding: gzip\r\n", 600),
    ] {
        for _ in 0..times {
            let answer = answer(&address, &target, headers);
            assert!(answer.starts_with("HTTP/1.1 200"), "{target} {headers}: {answer:?}");
            assert!(!answer.ends_with("0\r\n\r\n"), "it is not taken for the whole");
        }
    }
}
