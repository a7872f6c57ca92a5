//! What clients send, as it was seen, and what nobody sends.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write as _;

use super::*;

/// A statement as clients encode it.
fn p1(sql: &[u8]) -> String {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(sql).expect("a vector");
    let base64 = STANDARD.encode(encoder.finish().expect("a vector"));
    base64.replace('+', ".").replace('/', "-").replace('=', "_")
}

fn query(rest: &str) -> String {
    format!("/X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1={rest}")
}

fn statement(sql: &str) -> Result<Statement, P1Error> {
    Request::parse(&query(&p1(sql.as_bytes()))).expect("a request").payloads[0].statement()
}

const SEEN: &str = "eNorTs1JTS5RyEzRUchLzE1VSCvKz1UoAQBa6wfD";

#[test]
fn the_forms_of_the_url() {
    let seen = query(SEEN);
    let parsed = Request::parse(&seen).expect("as seen");
    assert_eq!((parsed.servlet.as_str(), parsed.payloads.len(), parsed.ttl), ("/X/Frontier", 1, Ttl::Long));
    assert_eq!(parsed.payloads[0].encoding, Encoding::Zip { level: 5, is_named: true });
    assert_eq!(parsed.payloads[0].statement().expect("SQL").sql, "select id, name from t");
    let others = [
        seen.replace("/type=", "?type="),
        format!("http://127.0.0.1:8000{seen}"),
        seen.replace('=', "%3D").replace("type%3D", "type="),
    ];
    for other in others {
        let other = Request::parse(&other).expect("the same");
        assert_eq!(Request { signed_part: parsed.signed_part.clone(), ..other }, parsed);
    }
    assert_eq!(parsed.signed_part, seen.strip_prefix("/X/Frontier").expect("from the last slash on"));
    let absolute = format!("http://127.0.0.1:8000{}", seen.replace("/type=", "?type=") + "&freshkey=a%20b%2520c");
    let signed_part = Request::parse(&absolute).expect("an older client").signed_part;
    assert!(signed_part.starts_with("/Frontier?type=") && signed_part.ends_with("&freshkey=a b%20c"), "{signed_part}");
    let short = Request::parse(&seen.replace("/X/Frontier", "/Y")).expect("another servlet");
    assert_eq!(short.servlet, "/Y");
    let suffixed = Request::parse(&format!("{seen}&sec=sig&ttl=forever&freshkey=17")).expect("suffixes");
    assert_eq!((suffixed.is_signed, suffixed.ttl.max_age_s()), (true, 31_536_000));
    assert_eq!(Request::parse(&format!("{seen}&ttl=short")).expect("short").ttl.max_age_s(), 0);
}

#[test]
fn several_payloads_of_several_kinds() {
    let target = format!(
        "/X/Frontier/type=frontier_request:1&encoding=BLOBzip&p1={SEEN}&type=frontier_file:1:DEFAULT&encoding=BLOB&p1=a/b%2520c\
         &type=cert_request:1&encoding=pem&meta=x:1"
    );
    let request = Request::parse(&target).expect("a request");
    let kinds: Vec<Kind> = request.payloads.iter().map(|asked| asked.kind).collect();
    assert_eq!(kinds, [Kind::Query, Kind::File, Kind::Certificate, Kind::Meta]);
    assert_eq!(request.payloads[0].encoding.name(), "BLOBzip", "as it was asked for");
    assert_eq!(request.payloads[1].path().expect("a path"), "a/b c");
    let too_many = format!("/X/{}", vec!["type=frontier_request:1"; PAYLOADS_MAX + 1].join("&"));
    assert_eq!(Request::parse(&too_many), Err(RequestError::TooMany));
}

#[test]
fn what_nobody_knows_is_an_error_of_the_whole() {
    let wrong = |target: &str| Request::parse(target).expect_err(target).to_string();
    for (target, words) in [
        ("/X/Frontier/", "no type="),
        ("/X/Frontier/encoding=BLOB&type=frontier_request:1", "no type="),
        ("/X/Frontier/type=frontier_request:2", "frontier_request:1, frontier_file:1"),
        ("/X/Frontier/type=frontier_request", "is unknown"),
        ("/X/Frontier/type=frontier_request:1:OTHER", "is unknown"),
        ("/X/Frontier/type=other:1:DEFAULT", "is unknown"),
        ("/X/Frontier/type=frontier_request:1&encoding=BLOBzip0", "encoding \"BLOBzip0\" is none of frontier_request"),
        ("/X/Frontier/type=frontier_file:1&encoding=BLOBzip10", "encoding \"BLOBzip10\" is none of frontier_file"),
        ("/X/Frontier/type=frontier_request:1&encoding=pem", "none of frontier_request, expected BLOB, BLOBzip, or"),
        ("/X/Frontier/type=cert_request:1&encoding=BLOB", "encoding \"BLOB\" is none of cert_request, expected pem"),
        ("/X/Frontier/type=cert_request:1&encoding=BLOBzip5", "is none of cert_request, expected pem"),
        ("/X/Frontier/type=cert_request:1&encoding=x", "is none of cert_request, expected pem"),
        ("/X/Frontier/type=frontier_request:1&ttl=long", "short or forever"),
        ("/X/Frontier/type=frontier_request:1&sec=none", "sec= is not expected"),
        ("/X/Frontier/type=frontier_request:1&p2=x", "p2= is not expected"),
        ("/X/Frontier/type=frontier_request:1&p1", "\"p1\" is no NAME=VALUE"),
        ("/X/Frontier/type=frontier_request:1&p1=%25ff", "p1= is not UTF-8"),
    ] {
        let said = wrong(target);
        assert!(said.contains(words), "{target}: {said}");
    }
}

#[test]
fn statements_and_what_is_none() {
    for word in ["DROP TABLE t", "select 'please delete this'", "Insert into t", "alter table t", "create view v"] {
        assert!(matches!(statement(word), Err(P1Error::Word(_))), "{word}");
    }
    let said = statement("select 1 as a -- DELETE it").expect_err("a comment counts").to_string();
    assert!(said.starts_with("\"delete\" with a blank behind it is taken nowhere in a statement"), "{said}");
    assert!(
        matches!(statement("select a from t where b = ?:delete it"), Err(P1Error::Word("delete"))),
        "so does a value"
    );
    for sql in ["select deleted from t", "select \"delete\" from t", "select 'dele' || 'te it'", "select 'delete\tit'"]
    {
        assert_eq!(statement(sql).expect("no such word").sql, sql);
    }
    let of = |p1: &str| Request::parse(&query(p1)).expect("a request").payloads[0].statement();
    assert_eq!(of("eNor+s1J"), Err(P1Error::Base64), "another alphabet");
    assert_eq!(of("eNorT"), Err(P1Error::Base64));
    assert_eq!(of("AAAA"), Err(P1Error::Zlib));
    assert_eq!(of(&p1(&[0xff, 0xfe])), Err(P1Error::Text));
    let none = Request::parse("/X/Frontier/type=frontier_request:1").expect("a request");
    assert_eq!(none.payloads[0].statement(), Err(P1Error::Missing));
    assert!(statement(&"x".repeat(SQL_BYTES_MAX)).is_ok());
    assert_eq!(statement(&"x".repeat(SQL_BYTES_MAX + 1)), Err(P1Error::TooLong), "not inflated beyond the limit");
}

#[test]
fn values_at_the_end_of_a_statement() {
    let of = |text: &str| {
        let statement = statement(text).expect("a statement");
        (statement.sql, statement.values)
    };
    let same = |text: &str| (text.to_owned(), Vec::<String>::new());
    assert_eq!(
        of("select a from t where b = ? and c = ?:5:alpha"),
        ("select a from t where b = ? and c = ?".to_owned(), vec!["5".to_owned(), "alpha".to_owned()])
    );
    assert_eq!(of("select a from t where b = ?:"), ("select a from t where b = ?".to_owned(), vec![String::new()]));
    assert_eq!(of("select a from t where b = ?"), same("select a from t where b = ?"));
    assert_eq!(of("select '12:30' from t"), same("select '12:30' from t"), "nothing is to be bound");
    assert_eq!(of("select '?' from t where a = '1:2'"), same("select '?' from t where a = '1:2'"));
}

#[test]
fn paths_that_lead_out_are_none() {
    let of = |p1: &str| {
        let target = format!("/X/Frontier/type=frontier_file:1:DEFAULT&encoding=BLOB&p1={p1}");
        Request::parse(&target).expect("a request").payloads[0].path()
    };
    assert_eq!(of("a/b-c_d.txt").expect("a path"), "a/b-c_d.txt");
    for path in
        ["..", "a/../b", "/etc/passwd", "a//b", "", "%252e%252e/x", "a/%252e%252e/b", "b%252f..", "a%255cb", "a%2500"]
    {
        let path = of(path);
        assert!(path.is_err(), "{path:?}");
    }
}
