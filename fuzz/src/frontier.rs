//! What Frontier clients send, and the payloads that they are sent.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use headwater_gateway::frontier::{Field, Fields, P1Error, Request, Rows, SQL_BYTES_MAX};

/// A request's target: what comes out of it is bounded, and no path leads out of its folder.
pub fn request(data: &[u8]) {
    let Ok(target) = std::str::from_utf8(data) else { return };
    let Ok(request) = Request::parse(target) else { return };
    assert!((1..=32).contains(&request.payloads.len()));
    for asked in &request.payloads {
        if let Ok(statement) = asked.statement() {
            assert!(statement.sql.len() <= SQL_BYTES_MAX);
        }
        if let Ok(path) = asked.path() {
            assert!(!path.starts_with('/') && path.split('/').all(|part| part != ".."), "{path:?} leads out");
        }
    }
}

/// A statement, encoded as clients do: it comes out as it went in, with its values taken off its end.
pub fn statement(data: &[u8]) {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).expect("a vector takes it");
    let base64 = STANDARD.encode(encoder.finish().expect("a vector takes it"));
    let p1 = base64.replace('+', ".").replace('/', "-").replace('=', "_");
    let target = format!("/X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOB&p1={p1}");
    let request = Request::parse(&target).expect("a client's request");
    match request.payloads[0].statement() {
        Ok(statement) => {
            let again = statement.values.iter().fold(statement.sql, |text, value| text + ":" + value);
            assert_eq!(again.as_bytes(), data);
        }
        Err(error) => assert!(matches!(error, P1Error::Text | P1Error::Word(_)), "{error:?}"),
    }
}

/// A payload: what has the types that servers send is written the same again.
pub fn fields(data: &[u8]) {
    let mut rows = Rows::default();
    let mut is_ours = true;
    for field in Fields::new(data) {
        match field {
            Ok(Field::Bytes(bytes)) => rows.value(Some(bytes)),
            Ok(Field::Null) => rows.value(None),
            Ok(Field::EndOfRecord) => rows.end_row(),
            Ok(_) | Err(_) => is_ours = false,
        }
    }
    let written = rows.take();
    if is_ours && !data.iter().any(|byte| (0x80..0x86).contains(byte)) {
        assert_eq!(written, data);
    }
}
