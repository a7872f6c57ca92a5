//! The Frontier protocol over a SQLite file, as the reference has seen it on the wire.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use flate2::{Compression, write::ZlibEncoder};
use headwater_access::{Access, Settings as AccessSettings};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Pool, QueryPool};
use http_body_util::BodyExt as _;
use std::io::{Read as _, Write as _};
use tower::ServiceExt as _;

use super::{FrontierSettings, is_allowed};
use crate::frontier::{Field, Fields};
use crate::query::QueryLimits;
use crate::{Gateway, Settings};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Stand {
    gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Stand {
    fn new() -> Stand {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("central.db");
        let schema = "CREATE TABLE t (id INTEGER, name TEXT); INSERT INTO t VALUES (1, 'alpha'), (2, NULL), (3, '')";
        rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(schema)).expect("a file");
        std::fs::create_dir(folder.path().join("files")).expect("a folder");
        std::fs::write(folder.path().join("files/a b"), b"\x00file").expect("a file");
        std::os::unix::fs::symlink(&path, folder.path().join("files/out")).expect("a link");
        let backend = Arc::new(Sqlite::new(&path).durable(false));
        let access = Access::new(Pool::new(Arc::clone(&backend) as _, 1), AccessSettings::default());
        let pool = QueryPool::for_queries(backend, 2);
        let settings = FrontierSettings {
            name: "X".to_owned(),
            allowed: vec![(HERE, 32)],
            files: Some(folder.path().join("files")),
            limits: QueryLimits { time_out: Duration::from_secs(20), rows_max: 1_000, ..QueryLimits::default() },
            kept_s: 0,
        };
        let gateway = Gateway::new(Vec::new(), pool, access, Settings::default()).with_frontier(settings);
        Stand { gateway, folder }
    }

    async fn ask(&self, method: &str, target: &str, peer: IpAddr, headers: &[(&str, &str)]) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).expect("a request");
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer, 1)));
        self.gateway.router().oneshot(request).await.expect("an answer")
    }

    async fn get(&self, target: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let headers = [&[("x-frontier-id", "client 2.10.2 1 root(0) root")], headers].concat();
        self.ask("GET", target, HERE, &headers).await
    }

    /// `Last-Modified`, which is there once the content is a second old.
    async fn modified(&self, target: &str) -> String {
        loop {
            let answer = self.get(target, &[]).await;
            let modified = header_of(&answer, "last-modified");
            if !modified.is_empty() {
                return modified.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn text(&self, target: &str) -> String {
        text(self.get(target, &[]).await).await
    }
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(body.to_vec()).expect("ASCII")
}

fn header_of<'r>(response: &'r Response<Body>, name: &str) -> &'r str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn query(sql: &str, encoding: &str) -> String {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(sql.as_bytes()).expect("a vector");
    let base64 = STANDARD.encode(encoder.finish().expect("a vector"));
    let p1 = base64.replace('+', ".").replace('/', "-").replace('=', "_");
    format!("/X/Frontier/type=frontier_request:1:DEFAULT&encoding={encoding}&p1={p1}")
}

/// The data of each payload of an answer.
fn data(answer: &str) -> Vec<Vec<u8>> {
    let parts = answer.split("<data>").skip(1).filter_map(|rest| rest.split("</data>").next());
    parts
        .map(|part| {
            STANDARD.decode(part.replace("<keepalive />", "").split_whitespace().collect::<String>()).expect("base64")
        })
        .collect()
}

const ALL: &str = "select id, name from t";

#[tokio::test]
async fn the_example_over_http() {
    let stand = Stand::new();
    let response = stand.get(&query(ALL, "BLOB"), &[("cache-control", "max-stale=30")]).await;
    assert_eq!((response.status().as_u16(), header_of(&response, "content-type")), (200, "text/xml;charset=US-ASCII"));
    assert_eq!(header_of(&response, "cache-control"), "max-age=604800, stale-if-error=30");
    assert!(header_of(&response, "content-length").parse::<usize>().is_ok_and(|length| length > 300));
    let answer = text(response).await;
    assert!(answer.contains("records=\"3\" full_size=\"82\"/>"), "{answer}");
    let bytes = &data(&answer)[0];
    let fields: Vec<Field<'_>> = Fields::new(bytes).collect::<Result<_, _>>().expect("fields");
    let expected = [&b"ID"[..], b"NUMBER(10)", b"NAME", b"VARCHAR2"].map(Field::Bytes);
    assert_eq!(fields[..4], expected);
    let rows = [Field::Bytes(b"1"), Field::Bytes(b"alpha"), Field::EndOfRecord, Field::Bytes(b"2"), Field::Null];
    assert_eq!(fields[5..10], rows);
    let zipped = stand.text(&query(ALL, "BLOBzip5")).await;
    let mut inflated = Vec::new();
    ZlibDecoder::new(&*data(&zipped)[0]).read_to_end(&mut inflated).expect("zlib");
    assert_eq!(inflated, data(&answer)[0]);
    for target in [query(ALL, "BLOB").replace("/X/Frontier/", "/X/"), query(ALL, "BLOB").replace("/type=", "?type=")] {
        assert_eq!(stand.text(&target).await, answer, "{target}");
    }
}

#[tokio::test]
async fn values_are_bound_as_texts() {
    let stand = Stand::new();
    let answer = stand.text(&query("select name from t where name = ?:alpha", "BLOB")).await;
    assert!(answer.contains("records=\"1\""), "{answer}");
    let answer = stand.text(&query("select name from t where name = ?:x' or '1'='1", "BLOB")).await;
    assert!(answer.contains("records=\"0\""), "{answer}");
}

#[tokio::test]
async fn times_are_compared_exactly() {
    let stand = Stand::new();
    let modified = stand.modified(&query(ALL, "BLOB")).await;
    let same = stand.get(&query(ALL, "BLOB"), &[("if-modified-since", &modified)]).await;
    assert_eq!((same.status().as_u16(), header_of(&same, "cache-control")), (304, "max-age=604800"));
    let later = "Fri, 01 Jan 2100 00:00:00 GMT";
    assert_eq!(stand.get(&query(ALL, "BLOB"), &[("if-modified-since", later)]).await.status(), 200, "not equal");
    let short = stand.get(&format!("{}&ttl=short&freshkey=7", query(ALL, "BLOB")), &[]).await;
    assert_eq!(header_of(&short, "cache-control"), "max-age=0");
    let forever = stand.get(&format!("{}&ttl=forever", query(ALL, "BLOB")), &[]).await;
    assert_eq!(header_of(&forever, "cache-control"), "max-age=31536000");
    let empty = format!("{}&ttl=forever", query("select id from t where id = 9", "BLOB"));
    assert!(stand.text(&empty).await.contains("error=\"1\" message=\"an empty result"));
}

#[tokio::test]
async fn files_and_what_is_none() {
    let stand = Stand::new();
    let file = |path: &str| format!("/X/Frontier/type=frontier_file:1:DEFAULT&encoding=BLOB&p1={path}");
    let answer = stand.text(&file("a%2520b")).await;
    assert!(answer.contains("records=\"1\" full_size=\"11\""), "{answer}");
    assert_eq!(data(&answer)[0], b"\x06\x00\x00\x00\x05\x00file\x07");
    for path in ["..", "%252e%252e/central.db", "out", "nothing", "/etc/passwd"] {
        let answer = stand.text(&file(path)).await;
        assert!(answer.contains("error=\"1\" message=\""), "{path}: {answer}");
    }
    assert!(stand.folder.path().join("files/out").exists());
}

#[tokio::test]
async fn errors_of_a_payload_and_of_the_whole() {
    let stand = Stand::new();
    for (sql, words) in [
        ("select nothing_there from t", "error=\"1\" message=\"the database can't run"),
        ("delete from t", "&quot;delete&quot; is not allowed"),
        ("update t set id = 9", "error=\"1\" message=\"the database can't run"),
        ("select 1; select 2", "error=\"1\" message=\"the query failed"),
        (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000) select i from n",
            "more than 1000 rows",
        ),
    ] {
        let response = stand.get(&query(sql, "BLOBzip"), &[]).await;
        assert_eq!((response.status().as_u16(), header_of(&response, "cache-control")), (200, "max-age=0"), "{sql}");
        let answer = text(response).await;
        assert!(answer.contains(words) && answer.contains("full_size=\"0\""), "{sql}: {answer}");
        assert!(answer.contains("<data></data>"), "{sql}: {answer}");
    }
    let one = query(ALL, "BLOB");
    let two = format!("{one}&{}", one.trim_start_matches("/X/Frontier/"));
    assert_eq!(data(&stand.text(&two).await).len(), 2);
    let mixed = format!("{one}&type=frontier_file:1&p1=nothing");
    let answer = stand.text(&mixed).await;
    assert!(answer.contains("payloads=\"2\"") && answer.contains("error=\"0\"") && answer.contains("error=\"1\""));

    for (target, words) in [
        ("/X/Frontier/", "there is no type="),
        ("/X/Frontier/type=other:1:DEFAULT", "is unknown"),
        ("/X/Other/type=frontier_request:1", "/X/Other is not served"),
        ("/X/Frontier/type=cert_request:1&encoding=pem", "no certificate"),
    ] {
        let answer = stand.text(target).await;
        assert!(answer.contains("<global_error msg=\"") && answer.contains(words), "{target}: {answer}");
    }
    let id = [("x-frontier-id", "x")];
    for (method, peer, headers, words) in [
        ("POST", HERE, &id[..], "POST is not served"),
        ("GET", HERE, &[], "X-Frontier-Id is missing"),
        ("GET", IpAddr::from([10, 0, 0, 1]), &id[..], "requests from 10.0.0.1 are not allowed"),
    ] {
        let response = stand.ask(method, &query(ALL, "BLOB"), peer, headers).await;
        assert_eq!(response.status(), 200);
        let answer = text(response).await;
        assert!(answer.contains("<global_error") && answer.contains(words), "{answer}");
    }
}

#[tokio::test]
async fn an_error_that_no_cache_is_to_keep_does_not_come_whole() {
    let stand = Stand::new();
    let options = [("x-frontier-opts", "DontCacheErrors")];
    let response = stand.get(&query("select nothing_there from t", "BLOB"), &options).await;
    assert!(response.into_body().collect().await.is_err(), "the connection breaks");
    let response = stand.get(&query(ALL, "BLOB"), &options).await;
    assert!(response.into_body().collect().await.is_ok(), "what is no error comes whole");
}

/// The query takes longer than a client waits in silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_query_is_kept_alive() {
    let stand = Stand::new();
    let held = stand.gateway.service.hold_slots().await;
    let fast = query(ALL, "BLOB");
    let asked = stand.get(&fast, &[]);
    let response = asked.await;
    assert_eq!(header_of(&response, "content-length"), "", "its head is gone before it is known");
    assert_eq!(header_of(&response, "last-modified"), "");
    drop(held);
    let answer = text(response).await;
    assert!(answer.contains("<data>\n   <keepalive />"), "{answer}");
    assert_eq!(data(&answer), data(&stand.text(&fast).await));
}

#[test]
fn addresses_by_their_leading_bits() {
    let of = |text: &str| text.parse::<IpAddr>().expect("an address");
    let allowed = [(of("10.1.0.0"), 16), (of("2001:db8::"), 32), (of("192.0.2.7"), 32)];
    for (address, expected) in [
        ("10.1.255.3", true),
        ("10.2.0.1", false),
        ("::ffff:10.1.2.3", true),
        ("192.0.2.7", true),
        ("192.0.2.8", false),
        ("2001:db8:1::1", true),
        ("2001:db9::1", false),
        ("::1", false),
    ] {
        assert_eq!(is_allowed(&allowed, of(address)), expected, "{address}");
    }
    assert!(is_allowed(&[(of("0.0.0.0"), 0)], of("1.2.3.4")) && !is_allowed(&[(of("0.0.0.0"), 0)], of("::1")));
    assert!(!is_allowed(&[], of("127.0.0.1")));
}
