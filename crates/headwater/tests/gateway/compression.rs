//! How hard answers are compressed, by file, environment and flag.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{Stage, TABLES};

/// The head of an answer of many rows, to a client that takes gzip.
fn head(address: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAccept-Encoding: gzip\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase()
}

#[test]
fn the_level_is_the_flags_then_the_environments_then_the_files() {
    let mut stage = Stage::alone("sqlite:HERE/central.db");
    stage.sql(TABLES);
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT i FROM n";
    stage.query("many.sql", &format!("-- public = true\n{many}"));
    stage.configure("compression = 1\n");
    let (flag, variable) = (["--set", "gateway.compression=9"], [("HEADWATER_GATEWAY_COMPRESSION", "5")]);
    for (arguments, variables, level) in [(&[][..], &[][..], 1), (&[], &variable, 5), (&flag, &variable, 9)] {
        let address = stage.serve_with(arguments, variables);
        let head = head(&address, "/q/many.csv");
        assert!(head.contains("content-encoding: gzip") && head.contains(&format!("-gzip{level}\"")), "{head}");
        stage.stop();
    }
    let address = stage.serve_with(&["--set", "gateway.compression=0"], &[]);
    assert!(!head(&address, "/q/many.csv").contains("content-encoding"));
    stage.stop();
    let (code, _, said) = stage.run(&["serve", "--listen", "127.0.0.1:0", "--set", "gateway.compression=best"]);
    assert!(code == Some(2) && said.contains("expected \"auto\" or 0 to 9"), "{said}");
}
