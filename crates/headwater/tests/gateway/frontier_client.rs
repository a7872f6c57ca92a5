//! The real gateway as a client of the Frontier protocol sees it. The client is the lab's, which has nothing in common with the gateway's
//! writer: what it takes, the deployed ones take.
//!
//! What was seen of the deployed clients and of the old servlet, and what holds it here (*lab*: in that client's own tests, *squid*: in
//! `squid.rs`):
//!
//! | seen | held by |
//! |---|---|
//! | `?` for the last `/` of the URL | `all_forms_of_the_url_are_served` |
//! | suffixes in their order, and `freshkey` without a meaning | `signed_answers_are_taken_by_the_key_of_the_certificate` |
//! | SQL by zlib, base64 with `.`, `-` and `_` | *lab* `requests_are_what_the_deployed_client_sends` |
//! | a file is byte arrays and one end of record | `a_file_comes_whole_and_nothing_outside_of_its_folder_does` |
//! | `?` and values behind the text, both or neither, as text | `values_are_bound_as_texts` |
//! | `BLOB`, `BLOBzip`, `BLOBzip1` to `9` | `every_encoding_has_the_same_rows` |
//! | `meta=`: an error of the payload | `meta_is_answered_by_an_error_of_its_payload` |
//! | POST, no `X-Frontier-Id`: 200, a global error | `errors_come_as_the_client_knows_them` |
//! | HEAD: the same | `head_is_answered_by_the_head_of_a_global_error` |
//! | `delete ` is refused, in a literal too | `errors_come_as_the_client_knows_them`, `a_text_with_a_word_that_is_refused_is_sent_in_two_parts` |
//! | no chunks: a length, or the end of the connection | each answer here, by HTTP/1.0 |
//! | ASCII alone, and references | each answer here; `a_file_comes_whole_and_nothing_outside_of_its_folder_does` |
//! | `full_size` wrong or missing: an error | *lab* `what_differs_from_what_is_said_is_refused` |
//! | `<keepalive />` within the data, before the base64 | `a_slow_query_is_kept_alive_and_read` |
//! | a failure behind one: partial data, both errors | `a_slow_query_that_fails_says_so_behind_its_rows` |
//! | `DontCacheErrors`: broken off | `an_error_that_no_cache_is_to_keep_is_broken_off` |
//! | fields by their type bytes, NULL | *lab* `fields_of_every_type_are_read` |
//! | type 6 alone, bytes as they are, UTF-8 by its bytes, no `NUMERIC` | `values_of_all_types_come_as_texts` |
//! | the example, plain | `the_example_is_byte_for_byte_that_of_the_reference` |
//! | the example by zlib, as the servlet packs it | *lab* `the_compressed_example_is_read` |
//! | `ttl`, the age of errors, `stale-if-error` | `how_long_caches_keep_an_answer_is_what_the_request_says` |
//! | 304 by the very time alone | `only_the_very_time_is_answered_not_modified` |
//! | a 304 without the database | `what_is_kept_is_not_modified_without_a_look_at_the_database` |
//! | nothing at all with `ttl=forever`: an error | `errors_come_as_the_client_knows_them` |
//! | Squid makes many of the same one | *squid* `all_who_ask_at_once_are_one_execution` |
//! | what a signature is of | *lab* `a_signature_is_of_the_request_and_of_what_came`, `what_was_not_signed_so_is_refused` |
//!
//! One thing differs: the gateway packs by another compressor than the servlet, so the same rows have other bytes at a level, and another MD5.

mod caches;
mod files;
mod program;
mod signed;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::client_sql::role;
use super::{FRONTIER, Stage, change, postgres};
use headwater_lab::frontier::{Answer, AnswerError, Field, ID, ID_HEADER, Records, Request, Ttl};

/// ID NUMBER(10), NAME VARCHAR2; rows (1, alpha), (2, NULL), (3, ''): 82 bytes.
const EXAMPLE: &str = "0600000002494406 0000000a4e554d4245522831302906000000044e414d45 0600000008564152434841523207 \
                       060000000131060000000561 6c70686107 0600000001328607 060000000133060000000007";
const ROWS: &str = "INSERT INTO t VALUES (1, 'alpha'), (2, NULL), (3, '')";
const SQL: &str = "select id, name from t order by id";
const OPTIONS: &str = "
files = \"files\"
certificate = \"frontier.pem\"
key = \"key.pem\"
";
/// Of a key that is no secret: those of the gateway's own tests.
const CERTIFICATE: &str = include_str!("../../../gateway/src/frontier/signature/cert.pem");
const KEY: &str = include_str!("../../../gateway/src/frontier/signature/key.pem");

/// A gateway that runs.
struct Gateway {
    stage: Stage,
    url: String,
    address: String,
}

impl Gateway {
    /// With more lines of `[gateway.frontier]`, and more arguments.
    fn new(url: &str, more: &str, arguments: &[&str]) -> Gateway {
        let mut stage = Stage::new(url);
        let write = |name: &str, text: &str| std::fs::write(stage.path(name), text).expect("written");
        stage.configure(&format!("{FRONTIER}{OPTIONS}{more}"));
        write("frontier.pem", CERTIFICATE);
        write("key.pem", KEY);
        std::fs::create_dir(stage.path("files")).expect("a folder");
        let table = if url.starts_with("sqlite:") {
            "CREATE TABLE t (id INTEGER, name TEXT);"
        } else {
            "CREATE TABLE t (id int4, name text);"
        };
        let own = (!url.starts_with("sqlite:")).then(|| role(url));
        let variables: Vec<(&str, &str)> =
            own.iter().map(|url| ("HEADWATER_GATEWAY_FRONTIER_URL", url.as_str())).collect();
        let address = stage.serve_with(arguments, &variables);
        let gateway = Gateway { stage, url: url.to_owned(), address };
        gateway.sql(&format!("{table} {ROWS}"));
        gateway
    }

    fn postgres_with(more: &str, arguments: &[&str]) -> Gateway {
        Gateway::new(&postgres(), more, arguments)
    }

    fn postgres() -> Gateway {
        Gateway::postgres_with("", &[])
    }

    fn both_with(more: &str) -> [Gateway; 2] {
        [Gateway::new("sqlite:HERE/central.db", more, &[]), Gateway::postgres_with(more, &[])]
    }

    fn both() -> [Gateway; 2] {
        Gateway::both_with("")
    }

    /// As an application would.
    fn sql(&self, sql: &str) {
        change(&self.stage, &self.url, sql);
    }

    /// Head and body of the answer to a request of HTTP/1.0, which the C client speaks.
    fn exchange(&self, line: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        write!(stream, "{line} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n").expect("sent");
        let mut answer = String::new();
        // One that is broken off may end by a reset.
        let _ = stream.read_to_string(&mut answer);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    /// The same, with the head in lower case.
    fn send(&self, line: &str, headers: &str) -> (String, String) {
        let (head, body) = self.exchange(line, headers);
        (head.to_ascii_lowercase(), body)
    }

    fn raw(&self, path: &str, headers: &str) -> (String, String) {
        self.send(&format!("GET {path}"), &format!("{ID_HEADER}: {ID}\r\n{headers}"))
    }

    fn ask(&self, request: &Request) -> Result<Answer, AnswerError> {
        let (head, body) = self.raw(&path(request), "");
        assert!(status(&head) == "200" && !head.contains("chunked"), "{head}");
        Answer::to(request, body.as_bytes())
    }
}

fn path(request: &Request) -> String {
    format!("/X/Frontier/{}", request.target())
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).expect("a status")
}

/// What a head says of the body's length.
fn length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
}

/// Rows as texts; no text is NULL.
fn rows(answer: &Answer) -> Vec<Vec<Option<String>>> {
    let text = |field: Field<'_>| match field {
        Field::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Field::Null(6) => None,
        other => panic!("{other:?}: the Python module takes texts alone"),
    };
    let (mut records, mut all) = (Records::of(&answer.payload).expect("a header"), Vec::new());
    while let Some(record) = records.next_record().expect("a record") {
        all.push(record.into_iter().map(text).collect());
    }
    all
}

#[test]
fn the_example_is_byte_for_byte_that_of_the_reference() {
    let gateway = Gateway::postgres();
    let expected = hex::decode(EXAMPLE.split_whitespace().collect::<String>()).expect("hex");
    assert_eq!(expected.len(), 82);
    let answer = gateway.ask(&Request::new(SQL)).expect("an answer");
    assert_eq!((answer.payload, answer.records, answer.keepalives), (expected, 3, 0));
    let (_, body) = gateway.raw(&path(&Request::new(SQL)), "");
    assert!(body.contains("md5=\"dd25677dcd5b4435553a4ba0234f55b6\""), "{body}");
}

#[test]
fn every_encoding_has_the_same_rows() {
    for gateway in Gateway::both() {
        for level in [None].into_iter().chain((1..=9).map(Some)) {
            let answer = gateway.ask(&Request::new(SQL).level(level)).expect("an answer");
            let of = |id: &str, name: Option<&str>| vec![Some(id.to_owned()), name.map(str::to_owned)];
            assert_eq!(rows(&answer), [of("1", Some("alpha")), of("2", None), of("3", Some(""))], "{level:?}");
        }
        // Without a digit it is the server's to choose.
        let (_, body) = gateway.raw(&path(&Request::new(SQL)).replace("=BLOB&", "=BLOBzip&"), "");
        assert_eq!(Answer::parse(body.as_bytes(), "BLOBzip").map(|answer| answer.records), Ok(3));
    }
}

#[test]
fn all_forms_of_the_url_are_served() {
    for gateway in Gateway::both() {
        let target = Request::new(SQL).target();
        for path in ["/X/Frontier/", "/X/", "/X/Frontier?", "/X?"] {
            let (head, body) = gateway.raw(&format!("{path}{target}"), "");
            let answer = Answer::parse(body.as_bytes(), "BLOB");
            assert_eq!(answer.map(|answer| answer.records), Ok(3), "{path}: {head}");
        }
        // As a proxy is asked.
        let (_, body) = gateway.raw(&format!("http://{}/X/Frontier/{target}", gateway.address), "");
        assert_eq!(Answer::parse(body.as_bytes(), "BLOB").map(|answer| answer.records), Ok(3));
    }
}

#[test]
fn values_are_bound_as_texts() {
    for gateway in Gateway::both() {
        let request = Request::new("select id from t where name = ? and ? = 'x'").bind(&["alpha", "x"]);
        assert_eq!(rows(&gateway.ask(&request).expect("an answer")), [[Some("1".to_owned())]]);
        let other = Request::new("select id from t where name = ? and ? = 'x'").bind(&["alpha' or 'a' = 'a", "x"]);
        assert_eq!(gateway.ask(&other).expect("an answer").records, 0);
        // One that has no value, or is in no place for one, is the caller's fault.
        for sql in ["select id from t where name = ?", "select id from t where name = ? and id < ?:5"] {
            let error = gateway.ask(&Request::new(sql)).expect_err(sql).to_string();
            assert!(error.contains("expected a value for each behind the statement"), "{error}");
        }
        // Nothing is bound where a text has only one of the two.
        for sql in ["select id from t where name <> '?'", "select id from t where name <> '12:30'"] {
            assert_eq!(gateway.ask(&Request::new(sql)).map(|answer| answer.records), Ok(2), "{sql}");
        }
    }
}

#[test]
fn how_long_caches_keep_an_answer_is_what_the_request_says() {
    let gateway = Gateway::postgres();
    for (ttl, age) in [(Ttl::Long, 604_800), (Ttl::Short, 0), (Ttl::Forever, 31_536_000)] {
        let request = Request::new(SQL).ttl(ttl).fresh("k1");
        let (head, body) = gateway.raw(&path(&request), "Cache-Control: max-stale=60\r\n");
        assert!(head.contains(&format!("max-age={age}")) && head.contains("stale-if-error=60"), "{ttl:?}: {head}");
        assert_eq!(Answer::parse(body.as_bytes(), "BLOB").map(|answer| answer.records), Ok(3));
    }
    // An error is kept for five minutes at most.
    let wrong = Request::new("select absent from t").ttl(Ttl::Forever);
    let (head, _) = gateway.raw(&path(&wrong), "");
    let age = head.split_once("max-age=").and_then(|(_, rest)| rest.split(['\r', ',']).next()?.parse::<u32>().ok());
    assert!(age.is_some_and(|age| age <= 300), "{head}");
}

#[test]
fn errors_come_as_the_client_knows_them() {
    for gateway in Gateway::both() {
        let of_payload = |sql: &str, ttl| {
            let error = gateway.ask(&Request::new(sql).ttl(ttl)).expect_err("an error");
            assert!(matches!(error, AnswerError::Payload(_)), "{sql}: {error}");
        };
        of_payload("select absent from t", Ttl::Long);
        of_payload("select id from t where name = 'delete ' or id = 1", Ttl::Long);
        of_payload("select id from t where id = 9", Ttl::Forever);
        let global = |answer: (String, String)| {
            assert!(status(&answer.0) == "200" && !answer.0.contains("vary"), "{answer:?}");
            let error = Answer::parse(answer.1.as_bytes(), "BLOB").expect_err("an error");
            assert!(matches!(error, AnswerError::Global(_)), "{error}");
        };
        let target = path(&Request::new(SQL));
        global(gateway.send(&format!("GET {target}"), ""));
        global(gateway.send(&format!("POST {target}"), &format!("{ID_HEADER}: {ID}\r\nContent-Length: 0\r\n")));
        global(gateway.raw(&target.replace("frontier_request:1", "frontier_request:2"), ""));
        global(gateway.raw(&target.replace("frontier_request:1", "something:1"), ""));
        let certificate = gateway.raw("/X/Frontier/type=cert_request:1&encoding=BLOB", "");
        assert!(certificate.1.contains("is none of cert_request, expected pem"), "{certificate:?}");
        global(certificate);
    }
}

/// What the documentation says to do where a text has one of the words that are refused.
#[test]
fn a_text_with_a_word_that_is_refused_is_sent_in_two_parts() {
    for gateway in Gateway::both() {
        gateway.sql("INSERT INTO t VALUES (4, 'please delete it')");
        let error =
            gateway.ask(&Request::new("select id from t where name like 'please delete %'")).expect_err("refused");
        assert!(error.to_string().contains("write a text in two parts"), "{error}");
        let two = Request::new("select id from t where name = ? || ?");
        for request in [
            Request::new("select id from t where name like 'please del' || 'ete %'"),
            two.bind(&["please del", "ete it"]),
        ] {
            assert_eq!(rows(&gateway.ask(&request).expect("an answer")), [[Some("4".to_owned())]]);
        }
    }
}

/// The query takes longer than the gateway waits before it says that it is at work.
#[test]
fn a_slow_query_is_kept_alive_and_read() {
    let gateway = Gateway::postgres();
    let slow = Request::new("select id, name from t, (select pg_sleep(5.5)) as s order by id").level(Some(5));
    let (head, body) = gateway.raw(&path(&slow), "");
    let answer = Answer::parse(body.as_bytes(), "BLOBzip5").expect("an answer");
    assert!(answer.records == 3 && answer.keepalives >= 1, "{answer:?}");
    assert!(!head.contains("chunked") && !head.contains("content-length") && !head.contains("last-modified"), "{head}");
}

/// It has sent rows by then: they come, and behind them what there is to know.
#[test]
fn a_slow_query_that_fails_says_so_behind_its_rows() {
    let gateway = Gateway::postgres_with("", &["--set", "gateway.held_bytes_max=65536"]);
    let slow = Request::new(
        "select repeat('x', 1000) as x from (select pg_sleep(5.5)) as s, generate_series(1, 2000) as i where 1 / (i - 1900) < 2",
    );
    let (head, body) = gateway.raw(&path(&slow), "");
    assert!(!["content-length", "last-modified", "chunked"].iter().any(|name| head.contains(name)), "{head}");
    assert!(matches!(Answer::to(&slow, body.as_bytes()), Err(AnswerError::Global(_))));
    let (transaction, behind) = body.split_once("</transaction>").expect("its end");
    let (data, quality) = transaction.split_once("</data>").expect("data");
    assert!(data.contains("<data>\n   <keepalive />") && data.len() > 100_000, "{} characters", data.len());
    assert!(quality.contains("<quality error=\"1\" message=\"") && behind.contains("<global_error msg=\""));
}

/// As text of type 6, by Oracle's names: the Python module refuses `NUMERIC`, and what has another type.
#[test]
fn values_of_all_types_come_as_texts() {
    let gateway = Gateway::postgres();
    gateway.sql(
        "CREATE TABLE kinds (i2 int2, i4 int4, i8 int8, d numeric(10, 2), f4 float4, f8 float8, b bool, x bytea, t text, j json,
                             day date, at timestamp, atz timestamptz);
         INSERT INTO kinds VALUES (-1, 2, 3, 4.50, 1.5, 2.25, true, '\\x00ff07', 'gr\u{f6}\u{df}e', '{}',
                                   '2013-01-31', '2013-01-31 12:30:00.25', '2013-01-31 12:30:00Z')",
    );
    let answer = gateway.ask(&Request::new("select * from kinds").level(Some(5))).expect("an answer");
    let mut records = Records::of(&answer.payload).expect("a header");
    let columns: Vec<_> = records.columns().iter().map(|(name, kind)| format!("{name} {kind}")).collect();
    let record = records.next_record().expect("a record").expect("one");
    let expected: [(&str, &[u8]); 13] = [
        ("I2 NUMBER(5)", b"-1"),
        ("I4 NUMBER(10)", b"2"),
        ("I8 NUMBER(19)", b"3"),
        ("D NUMBER", b"4.50"),
        ("F4 BINARY_FLOAT", b"1.5"),
        ("F8 BINARY_DOUBLE", b"2.25"),
        ("B NUMBER(1)", b"1"),
        ("X BLOB", b"\x00\xff\x07"),
        ("T VARCHAR2", "gr\u{f6}\u{df}e".as_bytes()),
        ("J CLOB", b"{}"),
        ("DAY DATE", b"2013-01-31"),
        ("AT TIMESTAMP", b"2013-01-31 12:30:00.250000"),
        ("ATZ TIMESTAMP", b"2013-01-31 12:30:00"),
    ];
    assert_eq!(columns, expected.map(|(column, _)| column));
    assert_eq!(record, expected.map(|(_, value)| Field::Bytes(value)));
}
