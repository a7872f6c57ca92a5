//! The real gateway as a client of the Frontier protocol sees it. The client is the lab's, which has nothing in common with the gateway's
//! writer: what it takes, the deployed ones take.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use headwater_lab::frontier::{Answer, AnswerError, Field, ID, ID_HEADER, Records, Request, Ttl};
use headwater_testkit::Postgres;

use super::Stage;

/// ID NUMBER(10), NAME VARCHAR2; rows (1, alpha), (2, NULL), (3, ''): 82 bytes.
const EXAMPLE: &str = "0600000002494406 0000000a4e554d4245522831302906000000044e414d45 0600000008564152434841523207 \
                       060000000131060000000561 6c70686107 0600000001328607 060000000133060000000007";
const ROWS: &str = "INSERT INTO t VALUES (1, 'alpha'), (2, NULL), (3, '')";
const SQL: &str = "select id, name from t order by id";

/// A gateway that runs.
struct Gateway {
    _stage: Stage,
    address: String,
}

impl Gateway {
    fn new(url: &str) -> Gateway {
        let mut stage = Stage::new(url);
        let file = stage.path("headwater.toml");
        let text = std::fs::read_to_string(&file).expect("written");
        let frontier = "\n[gateway.frontier]\nname = \"X\"\nallowed = [\"127.0.0.1\"]\n";
        std::fs::write(&file, text + frontier).expect("written");
        if url.starts_with("sqlite:") {
            stage.sql(&format!("CREATE TABLE t (id INTEGER, name TEXT); {ROWS}"));
        } else {
            headwater_testkit::sql(url, &format!("CREATE TABLE t (id int4, name text); {ROWS}")).expect("made");
        }
        let address = stage.serve();
        Gateway { _stage: stage, address }
    }

    fn postgres() -> Gateway {
        Gateway::new(&Postgres::shared().and_then(Postgres::create_database).expect("a database"))
    }

    fn both() -> [Gateway; 2] {
        [Gateway::new("sqlite:HERE/central.db"), Gateway::postgres()]
    }

    /// Head and body of the answer to a request of HTTP/1.0, which the C client speaks.
    fn send(&self, line: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        write!(stream, "{line} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_ascii_lowercase(), body.to_owned())
    }

    fn raw(&self, path: &str, headers: &str) -> (String, String) {
        self.send(&format!("GET {path}"), &format!("{ID_HEADER}: {ID}\r\n{headers}"))
    }

    fn ask(&self, request: &Request) -> Result<Answer, AnswerError> {
        let (head, body) = self.raw(&format!("/X/Frontier/{}", request.target()), "");
        assert!(head.split(' ').nth(1) == Some("200") && !head.contains("chunked"), "{head}");
        Answer::parse(body.as_bytes(), &request.encoding())
    }
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
    let (_, body) = gateway.raw(&format!("/X/Frontier/{}", Request::new(SQL).target()), "");
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
    }
}

#[test]
fn values_are_bound_as_texts() {
    for gateway in Gateway::both() {
        let request = Request::new("select id from t where name = ? and ? = 'x'").bind(&["alpha", "x"]);
        assert_eq!(rows(&gateway.ask(&request).expect("an answer")), [[Some("1".to_owned())]]);
        let other = Request::new("select id from t where name = ? and ? = 'x'").bind(&["alpha' or 'a' = 'a", "x"]);
        assert_eq!(gateway.ask(&other).expect("an answer").records, 0);
    }
}

#[test]
fn how_long_caches_keep_an_answer_is_what_the_request_says() {
    let gateway = Gateway::postgres();
    for (ttl, age) in [(Ttl::Long, 604_800), (Ttl::Short, 0), (Ttl::Forever, 31_536_000)] {
        let request = Request::new(SQL).ttl(ttl).fresh("k1");
        let (head, body) = gateway.raw(&format!("/X/Frontier/{}", request.target()), "Cache-Control: max-stale=60\r\n");
        assert!(head.contains(&format!("max-age={age}")) && head.contains("stale-if-error=60"), "{ttl:?}: {head}");
        assert_eq!(Answer::parse(body.as_bytes(), "BLOB").map(|answer| answer.records), Ok(3));
    }
    // An error is kept for five minutes at most.
    let wrong = Request::new("select absent from t").ttl(Ttl::Forever);
    let (head, _) = gateway.raw(&format!("/X/Frontier/{}", wrong.target()), "");
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
            assert_eq!(answer.0.split(' ').nth(1), Some("200"), "{answer:?}");
            let error = Answer::parse(answer.1.as_bytes(), "BLOB").expect_err("an error");
            assert!(matches!(error, AnswerError::Global(_)), "{error}");
        };
        let target = format!("/X/Frontier/{}", Request::new(SQL).target());
        global(gateway.send(&format!("GET {target}"), ""));
        global(gateway.send(&format!("POST {target}"), &format!("{ID_HEADER}: {ID}\r\nContent-Length: 0\r\n")));
        global(gateway.raw(&target.replace("frontier_request:1", "frontier_request:2"), ""));
        global(gateway.raw(&target.replace("frontier_request:1", "something:1"), ""));
    }
}

/// The query takes longer than the gateway waits before it says that it is at work.
#[test]
fn a_slow_query_is_kept_alive_and_read() {
    let gateway = Gateway::postgres();
    let slow = Request::new("select id, name from t, (select pg_sleep(5.5)) as s order by id").level(Some(5));
    let (head, body) = gateway.raw(&format!("/X/Frontier/{}", slow.target()), "");
    let answer = Answer::parse(body.as_bytes(), "BLOBzip5").expect("an answer");
    assert!(answer.records == 3 && answer.keepalives >= 1, "{answer:?}");
    assert!(!head.contains("chunked") && !head.contains("content-length") && !head.contains("last-modified"), "{head}");
}
