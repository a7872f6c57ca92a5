//! The gateway over a SQLite file, without a socket: what is asked, answered, kept and refused.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use arrow_ipc::reader::StreamReader;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use headwater_access::{Access, Secret, Settings as AccessSettings, hash_password};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend as _, Pool, QueryPool, system};
use headwater_protocol::packer::Packing;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::Gateway;
use crate::held;
use crate::query::Query;
use crate::service::Settings;

mod knobs;
mod revalidation;

const SCHEMA: &str = "CREATE TABLE flight (id INTEGER PRIMARY KEY, origin TEXT, delay INTEGER, owner TEXT);
    INSERT INTO flight VALUES (1, 'JFK', 5, 'ann'), (2, 'JFK', NULL, 'bob'), (3, 'EWR', 7, 'ann');";

/// As long as it is let: all pairs of many.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000)
    SELECT count(*) AS n FROM n AS a, n AS b WHERE a.i + b.i = -1";

/// Takes its time, over what was there when it began.
macro_rules! counted {
    () => {
        "SELECT (SELECT count(*) FROM flight) AS n, (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) \
         SELECT count(*) FROM n) AS of"
    };
}

const QUERIES: [(&str, &str); 16] = [
    (
        "flights",
        "-- public = true\n-- stale_if_error_s = 60\n-- [parameters]\n-- origin = { type = \"text\", length_max = 3 }\n\
         -- least = { type = \"int\", default = 0 }\n\
         SELECT id, delay FROM flight WHERE origin = :origin AND coalesce(delay, 99) >= :least ORDER BY id",
    ),
    ("kept", "-- public = true\n-- max_age_s = 1000\nSELECT count(*) AS n FROM flight"),
    ("soon", "-- public = true\n-- stale_while_revalidate_s = 1000\nSELECT count(*) AS n FROM flight"),
    (
        "cheap",
        "-- public = true\n-- freshness = \"SELECT max(id) FROM flight WHERE origin = :origin\"\n-- [parameters]\n\
         -- origin = { type = \"text\" }\nSELECT count(*) AS n, sum(delay) AS d FROM flight WHERE origin = :origin",
    ),
    (
        "paged",
        "-- public = true\n-- page_by = { origin = \"text\", id = \"int\" }\n-- page_rows = 2\n-- [parameters]\n\
         -- least = { type = \"int\", default = 0 }\nSELECT origin, id FROM flight WHERE id > :least -- in any order",
    ),
    (
        "fares",
        "-- public = true\n-- page_by = { fare = \"decimal\", id = \"int\" }\n-- page_rows = 2\nSELECT fare, id FROM ticket",
    ),
    ("own", "-- max_age_s = 1000\nSELECT id FROM flight WHERE owner = :s.user ORDER BY id"),
    ("anns", "-- users = [\"ann\"]\nSELECT count(*) AS n FROM flight"),
    (
        "many",
        "-- public = true\nWITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT i FROM n",
    ),
    (
        "stalled",
        "-- public = true\n-- time_out_s = 0.3\nWITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) SELECT i FROM n",
    ),
    ("counted", concat!("-- public = true\n", counted!())),
    ("counted_kept", concat!("-- public = true\n-- max_age_s = 1000\n", counted!())),
    ("few", "-- public = true\n-- rows_max = 2\nSELECT id FROM flight"),
    ("mixed", "-- public = true\nSELECT 1 AS a UNION ALL SELECT 'x'"),
    ("slow", "-- public = true\n-- time_out_s = 0.05\n"),
    ("endless", "-- public = true\n-- time_out_s = 60\n"),
];

/// Of `secret`: made once, as that takes its time.
static HASH: OnceLock<String> = OnceLock::new();

struct Stand {
    gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Stand {
    fn new(settings: Settings) -> Stand {
        Stand::with_memory(settings, 64 << 20)
    }

    /// With so many bytes for what is kept.
    fn with_memory(settings: Settings, budget_bytes: u64) -> Stand {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("central.db");
        rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(SCHEMA)).expect("a file");
        let backend = Sqlite::new(&path).durable(false);
        let mut connection = backend.connect().expect("a connection");
        system::install(&mut *connection).expect("installed");
        for user in ["ann", "bob"] {
            let hash = HASH.get_or_init(|| hash_password(&Secret::new("secret")).expect("a hash"));
            system::add_account(&mut *connection, user, hash).expect("an account");
        }
        Stand { gateway: Stand::gateway_with(&path, settings, str::to_owned, budget_bytes), folder }
    }

    /// Over this file, with these queries as `edit` leaves their texts.
    fn gateway(path: &Path, settings: Settings, edit: impl Fn(&str) -> String) -> Gateway {
        Stand::gateway_with(path, settings, edit, 64 << 20)
    }

    fn gateway_with(path: &Path, settings: Settings, edit: impl Fn(&str) -> String, budget_bytes: u64) -> Gateway {
        let backend = Arc::new(Sqlite::new(path).durable(false));
        let queries = QUERIES.iter().map(|(name, text)| {
            let text =
                if matches!(*name, "slow" | "endless") { format!("{text}{ENDLESS}") } else { (*text).to_owned() };
            Query::parse(&format!("{name}.sql"), &edit(&text)).expect(name)
        });
        let access = Access::new(Pool::new(Arc::clone(&backend) as _, 1), AccessSettings::default());
        let pool = QueryPool::for_queries(backend, settings.connections());
        Gateway::new(queries.collect(), pool, access, settings, held::pools(budget_bytes))
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("central.db")
    }

    fn sql(&self, sql: &str) {
        let file = rusqlite::Connection::open(self.path()).expect("the file");
        file.execute_batch(sql).expect(sql);
    }

    async fn get(&self, url: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut request = Request::get(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        self.gateway.router().oneshot(request).await.expect("an answer")
    }

    /// Status and body.
    async fn text(&self, url: &str, headers: &[(&str, &str)]) -> (StatusCode, String) {
        let response = self.get(url, headers).await;
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    fn executions(&self) -> usize {
        self.gateway.counts().0
    }
}

fn header_of<'r>(response: &'r Response<Body>, name: &str) -> &'r str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// `user:secret` in base64.
const ANN: (&str, &str) = ("authorization", "Basic YW5uOnNlY3JldA==");
const BOB: (&str, &str) = ("authorization", "Basic Ym9iOnNlY3JldA==");

#[tokio::test]
async fn rows_in_each_form() {
    let stand = Stand::new(Settings::default());
    let (status, csv) = stand.text("/q/flights.csv?origin=JFK", &[]).await;
    assert_eq!((status, csv.as_str()), (StatusCode::OK, "id,delay\r\n1,5\r\n2,\r\n"));
    let (_, lines) = stand.text("/q/flights.ndjson?origin=JFK", &[]).await;
    assert_eq!(lines, "{\"id\":1,\"delay\":5}\n{\"id\":2,\"delay\":null}\n");
    let (_, json) = stand.text("/q/flights?origin=JFK&least=6", &[]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["rows"], &json["count"]), (&serde_json::json!([{ "id": 2, "delay": null }]), &1.into()));
    let response = stand.get("/q/flights?origin=JFK", &[("accept", "text/csv")]).await;
    assert!(
        header_of(&response, "content-type").starts_with("text/csv")
            && header_of(&response, "vary") == "Accept, Accept-Encoding"
    );
    let kind = "application/vnd.apache.arrow.stream";
    for (url, accept) in [("/q/flights.arrow?origin=JFK", "*/*"), ("/q/flights?origin=JFK", kind)] {
        let response = stand.get(url, &[("accept", accept)]).await;
        assert!(header_of(&response, "content-type") == kind && !header_of(&response, "etag").is_empty());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let batches: Vec<_> =
            StreamReader::try_new(&*body, None).expect("a schema").map(|batch| batch.expect("a batch")).collect();
        let delays = batches[0].column(1).as_primitive::<Int64Type>();
        assert_eq!((batches.len(), delays.iter().collect::<Vec<_>>()), (1, vec![Some(5), None]), "{url}");
    }
    let response = stand.get("/q/flights.csv?origin=JFK", &[]).await;
    assert_eq!(header_of(&response, "cache-control"), "public, max-age=0, stale-if-error=60");
    let names = (header_of(&response, "vary"), header_of(&response, "x-content-type-options"));
    assert_eq!(names, ("Accept-Encoding", "nosniff"));
}

#[tokio::test]
async fn one_url_for_each_answer() {
    let stand = Stand::new(Settings::default());
    for url in [
        "/q/flights.csv?least=06&origin=JFK",
        "/q/flights.csv?origin=%4AFK&least=6",
        "/q/flights.csv?origin=JFK&least=6&",
    ] {
        let response = stand.get(url, &[]).await;
        assert_eq!(response.status(), StatusCode::PERMANENT_REDIRECT, "{url}");
        assert_eq!(header_of(&response, "location"), "/q/flights.csv?origin=JFK&least=6", "{url}");
    }
    let response = stand.get("/q/flights.csv?least=0&origin=JFK", &[]).await;
    assert_eq!(header_of(&response, "location"), "/q/flights.csv?origin=JFK", "the default is left out");
    assert_eq!(stand.executions(), 0);
    let injected = stand.text("/q/flights.csv?origin=%27--", &[]).await;
    assert_eq!(injected, (StatusCode::OK, "id,delay\r\n".to_owned()), "a value, and nothing else");
}

#[tokio::test]
async fn what_a_client_has_is_not_sent_again() {
    let stand = Stand::new(Settings::default());
    // A time is told once the content is a second old: another one of the same second would have the same.
    let (tag, modified) = loop {
        let answer = stand.get("/q/flights.csv?origin=JFK", &[]).await;
        if !header_of(&answer, "last-modified").is_empty() {
            break (header_of(&answer, "etag").to_owned(), header_of(&answer, "last-modified").to_owned());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for given in [
        ("if-none-match", tag.as_str()),
        ("if-none-match", &format!("\"x\", W/{tag}")),
        ("if-none-match", "*"),
        ("if-modified-since", modified.as_str()),
    ] {
        let response = stand.get("/q/flights.csv?origin=JFK", &[given]).await;
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{given:?}");
        assert_eq!((header_of(&response, "etag"), header_of(&response, "content-length")), (tag.as_str(), ""));
        assert!(header_of(&response, "cache-control").starts_with("public"), "a 304 renews what caches keep");
        assert!(response.into_body().collect().await.expect("a body").to_bytes().is_empty());
    }
    let both = [("if-none-match", "\"other\""), ("if-modified-since", modified.as_str())];
    assert_eq!(stand.get("/q/flights.csv?origin=JFK", &both).await.status(), StatusCode::OK, "tags go before times");
    stand.sql("UPDATE flight SET delay = 6 WHERE id = 1");
    let changed = stand.get("/q/flights.csv?origin=JFK", &[("if-none-match", &tag)]).await;
    assert_eq!(changed.status(), StatusCode::OK);
    assert_ne!(header_of(&changed, "etag"), tag);
    stand.sql("UPDATE flight SET delay = 5 WHERE id = 1");
    let back = stand.get("/q/flights.csv?origin=JFK", &[("if-none-match", &tag)]).await;
    assert_eq!(back.status(), StatusCode::NOT_MODIFIED, "the same content has the same tag");
}

#[tokio::test]
async fn what_is_fresh_costs_no_query() {
    let stand = Stand::new(Settings::default());
    let (_, first) = stand.text("/q/kept.csv", &[]).await;
    stand.sql("DELETE FROM flight");
    let (_, second) = stand.text("/q/kept.csv", &[]).await;
    assert_eq!((first.as_str(), second.as_str(), stand.executions()), ("n\r\n3\r\n", "n\r\n3\r\n", 1));
    let none = Stand::new(Settings { cache: false, ..Settings::default() });
    for _ in 0..2 {
        none.text("/q/kept.csv", &[]).await;
    }
    assert_eq!(none.executions(), 2, "there is no room to keep it");
}

/// For as long as the query says it costs one execution, for which nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_old_is_given_while_it_is_made_anew() {
    let stand = Stand::new(Settings { executions_max: 1, ..Settings::default() });
    let ask = async || stand.text("/q/soon.csv", &[]).await;
    let refreshed = async || {
        while stand.gateway.service.waiters() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!((ask().await.1.as_str(), stand.executions()), ("n\r\n3\r\n", 1), "the first waits for it");
    stand.sql("DELETE FROM flight WHERE id = 1");
    let held = stand.gateway.service.hold_slots().await;
    for _ in 0..10 {
        assert_eq!(ask().await, (StatusCode::OK, "n\r\n3\r\n".to_owned()), "nothing can be executed now");
    }
    assert_eq!((stand.executions(), stand.gateway.service.waiters()), (1, 1), "one is under way for all of them");
    drop(held);
    refreshed().await;
    assert_eq!(stand.executions(), 2);
    let response = stand.get("/q/soon.csv", &[]).await;
    assert_eq!(header_of(&response, "age"), "0");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(&*body, b"n\r\n2\r\n", "it was made anew");
    refreshed().await;
    assert_eq!(stand.executions(), 3);
    stand.sql("ALTER TABLE flight RENAME TO gone");
    for _ in 0..3 {
        assert_eq!(ask().await, (StatusCode::OK, "n\r\n2\r\n".to_owned()), "where it fails, what is kept stays");
        refreshed().await;
    }
    assert_eq!(stand.executions(), 6, "and each who asks has it tried");
}

#[tokio::test]
async fn each_user_has_his_own() {
    let stand = Stand::new(Settings::default());
    assert_eq!(stand.text("/q/own.csv", &[ANN]).await, (StatusCode::OK, "id\r\n1\r\n3\r\n".to_owned()));
    assert_eq!(stand.text("/q/own.csv", &[BOB]).await, (StatusCode::OK, "id\r\n2\r\n".to_owned()));
    let response = stand.get("/q/own.csv", &[ANN]).await;
    assert_eq!(header_of(&response, "cache-control"), "private, max-age=1000, must-revalidate");
    assert_eq!(header_of(&response, "vary"), "Accept-Encoding, Authorization");
    for (url, headers, status) in [
        ("/q/own.csv", &[][..], 401),
        ("/q/own.csv", &[("authorization", "Basic YW5uOndyb25n")], 401),
        ("/q/own.csv", &[("authorization", "Bearer x")], 401),
        ("/q/anns.csv", &[ANN], 200),
        ("/q/anns.csv", &[BOB], 403),
    ] {
        let response = stand.get(url, headers).await;
        assert_eq!(response.status(), status, "{url} {headers:?}");
        let is_kept = header_of(&response, "cache-control").starts_with("public");
        assert!(!is_kept, "no cache of many users keeps it: {headers:?}");
    }
}

#[tokio::test]
async fn what_is_the_callers_own_fault() {
    let stand = Stand::new(Settings::default());
    let long = format!("/q/flights.csv?origin={}", "x".repeat(9_000));
    for (url, status, words) in [
        ("/q/nothing.csv", 404, "no such query"),
        ("/q/flights.xml?origin=JFK", 404, "expected one of .json, .arrays.json, .ndjson, .csv"),
        ("/q/flights.csv", 400, "parameter origin is missing"),
        ("/q/flights.csv?origin=JFK&x=1", 400, "there is no parameter x"),
        ("/q/flights.csv?origin=JFK&least=many", 400, "expected a value of type int"),
        ("/q/flights.csv?origin=JFK&origin=EWR", 400, "more than once"),
        ("/q/flights.csv?origin=%ff", 400, "not UTF-8"),
        (&long, 400, "longer than"),
        ("/q/few.csv", 422, "more than 2 rows"),
        ("/q/mixed.arrow", 422, "column \"a\" has int and text, and Arrow one type for each column"),
    ] {
        let response = stand.get(url, &[]).await;
        assert_eq!(response.status(), status, "{url}");
        assert_eq!(header_of(&response, "cache-control"), "public, max-age=10", "{url}");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert!(said["message"].as_str().is_some_and(|said| said.contains(words)), "{url}: {said}");
    }
    let response = stand.get("/q/flights?origin=JFK", &[("accept", "image/png")]).await;
    assert_eq!(
        (response.status().as_u16(), header_of(&response, "cache-control")),
        (406, "no-store"),
        "others accept it"
    );
    // What is wrong in one form may be right in another, at the same URL: a cache has to tell them apart as it does answers.
    let arrow = "application/vnd.apache.arrow.stream";
    for (url, accept, status, by) in [
        ("/q/mixed", arrow, 422, "Accept, Accept-Encoding"),
        ("/q/mixed", "image/png", 406, "Accept, Accept-Encoding"),
        ("/q/mixed.arrow", arrow, 422, "Accept-Encoding"),
        ("/q/flights?origin=LONG", arrow, 400, "Accept, Accept-Encoding"),
        ("/q/own", arrow, 401, "Accept, Accept-Encoding, Authorization"),
        ("/q/own.csv", arrow, 401, "Accept-Encoding, Authorization"),
        ("/q/nothing", arrow, 404, "Accept, Accept-Encoding, Authorization"),
    ] {
        let response = stand.get(url, &[("accept", accept)]).await;
        assert_eq!((response.status().as_u16(), header_of(&response, "vary")), (status, by), "{url}");
    }
    assert_eq!(stand.get("/q/mixed", &[("accept", "text/csv")]).await.status(), StatusCode::OK);
    for url in ["/q/fl%69ghts.csv?origin=JFK", "/q/kept.csv?"] {
        assert_eq!(stand.get(url, &[]).await.status(), StatusCode::PERMANENT_REDIRECT, "{url}");
    }
}

#[tokio::test]
async fn what_is_asked_for_beside_answers_says_what_it_is() {
    let stand = Stand::new(Settings::default());
    for (method, url, status, code, allow) in [
        ("GET", "/q/", 404, "not_found", ""),
        ("GET", "/q/flights/more", 404, "not_found", ""),
        ("POST", "/q/flights/more", 404, "not_found", ""),
        ("POST", "/q/flights.csv?origin=JFK", 405, "method_not_allowed", "GET, HEAD"),
        ("DELETE", "/q", 405, "method_not_allowed", "GET, HEAD"),
        ("PUT", "/q.json", 405, "method_not_allowed", "GET, HEAD"),
    ] {
        let request = Request::builder().method(method).uri(url).body(Body::empty()).expect("a request");
        let response = stand.gateway.router().oneshot(request).await.expect("an answer");
        assert_eq!((response.status().as_u16(), header_of(&response, "allow")), (status, allow), "{method} {url}");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert!(
            said["error"] == code && said["message"].as_str().is_some_and(|said| said.contains("expected")),
            "{said}"
        );
    }
}

/// Each user has one of his own, which is known again.
#[tokio::test]
async fn the_document_is_not_sent_again_to_who_has_it() {
    let stand = Stand::new(Settings::default());
    let tag = async |headers: &[(&str, &str)]| {
        let response = stand.get("/q.json", headers).await;
        assert_eq!((response.status(), header_of(&response, "vary")), (StatusCode::OK, "Authorization"));
        header_of(&response, "etag").to_owned()
    };
    let (open, ann) = (tag(&[]).await, tag(&[ANN]).await);
    assert!(open.starts_with('"') && ann.starts_with('"') && open != ann, "{open} {ann}");
    for (headers, status) in [
        (&[("if-none-match", open.as_str())][..], 304),
        (&[("if-none-match", ann.as_str()), ANN], 304),
        (&[("if-none-match", open.as_str()), ANN], 200),
        (&[("authorization", "Bearer x"), ("if-none-match", open.as_str())], 401),
    ] {
        let response = stand.get("/q.json", headers).await;
        assert_eq!(response.status().as_u16(), status, "{headers:?}");
        assert_eq!(header_of(&response, "vary"), "Authorization");
        if status == 304 {
            assert!(!header_of(&response, "etag").is_empty() && !header_of(&response, "cache-control").is_empty());
            assert!(response.into_body().collect().await.expect("a body").to_bytes().is_empty());
        }
    }
}

/// A query that the database took at the start, and whose table was altered since, is no fault of who asks.
#[tokio::test]
async fn a_query_that_fits_the_database_no_more_is_the_servers_fault() {
    let stand = Stand::new(Settings::default());
    assert_eq!(stand.text("/q/few.csv", &[]).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    stand.sql("ALTER TABLE flight RENAME COLUMN delay TO late");
    for url in ["/q/flights.csv?origin=EWR", "/q/cheap.csv?origin=EWR"] {
        let response = stand.get(url, &[]).await;
        let said = (response.status().as_u16(), header_of(&response, "cache-control").to_owned());
        assert_eq!(said, (500, "no-store".to_owned()), "{url}");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let words = "does not fit the database as it is";
        assert!(
            said["error"] == "query" && said["message"].as_str().is_some_and(|said| said.contains(words)),
            "{said}"
        );
        assert!(!said.to_string().contains("delay"), "the database's words stay in the log: {said}");
    }
    stand.sql("ALTER TABLE flight RENAME COLUMN late TO delay");
    assert_eq!(stand.text("/q/flights.csv?origin=EWR", &[]).await.0, StatusCode::OK, "at once");
}

#[tokio::test]
async fn a_large_answer_comes_as_it_is_read() {
    let stand = Stand::new(Settings { held_bytes_max: 100_000, ..Settings::default() });
    let response = stand.get("/q/many.csv", &[]).await;
    assert_eq!((header_of(&response, header::ETAG.as_str()), response.status()), ("", StatusCode::OK));
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body.split(|byte| *byte == b'\n').count(), 200_002);
    assert!(body.starts_with(b"i\r\n1\r\n2\r\n"), "it begins where it begins");
    assert_eq!((stand.executions(), stand.gateway.counts().1), (1, 0), "it is run once, and not kept");
    let packed = stand.get("/q/many.csv", &[("accept-encoding", "zstd")]).await;
    assert_eq!((header_of(&packed, "content-encoding"), header_of(&packed, "vary")), ("zstd", "Accept-Encoding"));
    let packed = packed.into_body().collect().await.expect("a body").to_bytes();
    assert!(packed.len() < body.len() / 2 && zstd::decode_all(&*packed).expect("zstd") == body);
    let (_, short) = stand.text("/q/flights.csv?origin=JFK", &[]).await;
    assert!(short.starts_with("id"), "what was half read is in nobody's way");
}

#[tokio::test]
async fn pieces_are_as_full_as_the_knobs_say() {
    let stand = Stand::new(Settings { held_bytes_max: 0, ..Settings::default() });
    let pieces = async |message_size: usize| {
        stand.gateway.packing().set(Packing { message_size, ..Packing::FULL }).expect("within the ranges");
        let mut body = stand.get("/q/many.csv", &[]).await.into_body();
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.expect("a piece").into_data().expect("bytes"));
        }
        let full = message_size..message_size + 10;
        assert!(pieces[1..pieces.len() - 1].iter().all(|piece: &bytes::Bytes| full.contains(&piece.len())));
        pieces.concat()
    };
    assert!(pieces(50_000).await == pieces(1_000).await, "the answer is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_execution_for_all_who_ask_at_once() {
    let stand = Arc::new(Stand::new(Settings { executions_max: 1, ..Settings::default() }));
    // Nothing can be executed before all of them have asked.
    let held = stand.gateway.service.hold_slots().await;
    let asking: Vec<_> = (0..100)
        .map(|_| {
            let stand = Arc::clone(&stand);
            tokio::spawn(async move { stand.text("/q/flights.csv?origin=EWR", &[]).await })
        })
        .collect();
    while stand.gateway.service.waiters() < 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(held);
    for asked in asking {
        let answer = asked.await.expect("no panic");
        assert_eq!(answer, (StatusCode::OK, "id,delay\r\n3,7\r\n".to_owned()));
    }
    assert_eq!(stand.executions(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_after_a_change_is_given_no_answer_from_before_it() {
    let stand = Arc::new(Stand::new(Settings::default()));
    for (name, (expected, executions)) in
        [("counted", ("n,of\r\n4,3000000\r\n", 2)), ("counted_kept", ("n,of\r\n4,3000000\r\n", 1))]
    {
        let before = stand.executions();
        let ask = |stand: &Arc<Stand>| {
            let (stand, url) = (Arc::clone(stand), format!("/q/{name}.csv"));
            tokio::spawn(async move { stand.text(&url, &[]).await.1 })
        };
        let first = ask(&stand);
        while stand.executions() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        if name == "counted" {
            stand.sql("INSERT INTO flight VALUES (4, 'LGA', 1, 'bob')");
        }
        let others = [ask(&stand), ask(&stand), ask(&stand)];
        for other in others {
            assert_eq!(other.await.expect("no panic"), expected, "{name}");
        }
        first.await.expect("no panic");
        assert_eq!(stand.executions() - before, executions, "{name}: they share one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_is_told_and_hits_are_served_all_the_while() {
    let stand = Stand::new(Settings { executions_max: 1, waiting_max: 0, ..Settings::default() });
    stand.text("/q/kept.csv", &[]).await;
    let held = stand.gateway.service.hold_slots().await;
    let refused = stand.get("/q/flights.csv?origin=JFK", &[]).await;
    assert_eq!((refused.status(), header_of(&refused, "retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "1"));
    assert_eq!(header_of(&refused, "cache-control"), "no-store");
    assert_eq!(stand.text("/q/kept.csv", &[]).await.0, StatusCode::OK);
    drop(held);
    assert_eq!(stand.get("/q/flights.csv?origin=JFK", &[]).await.status(), StatusCode::OK);
    let held = stand.gateway.service.hold_slots().await;
    let stale = stand.get("/q/flights.csv?origin=JFK", &[]).await;
    assert_eq!(stale.status(), StatusCode::OK, "an answer that is too old is better than none, as its query says");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_ends_in_time_and_when_nobody_waits_for_it() {
    let stand = Stand::new(Settings { executions_max: 1, ..Settings::default() });
    let (status, said) = stand.text("/q/slow.csv", &[]).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{said}");
    let endless = stand.get("/q/endless.csv", &[]);
    assert!(tokio::time::timeout(Duration::from_millis(300), endless).await.is_err(), "it goes on");
    // The client is gone. There is one connection, and somebody else gets it.
    let other = stand.text("/q/flights.csv?origin=JFK", &[]);
    let (status, said) = tokio::time::timeout(Duration::from_mins(1), other).await.expect("there is a place");
    assert_eq!(status, StatusCode::OK, "{said}");
}

/// Who takes nothing keeps a place for as long as the query may take, and not longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_nothing_keeps_no_place_for_ever() {
    let settings =
        Settings { executions_max: 1, held_bytes_max: 10_000, patience: Duration::from_mins(1), ..Settings::default() };
    let stand = Stand::new(settings);
    let held = stand.get("/q/stalled.csv", &[]).await;
    assert_eq!(held.status(), StatusCode::OK);
    let (status, said) = stand.text("/q/flights.csv?origin=JFK", &[]).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    assert!(held.into_body().collect().await.is_err(), "it does not come whole");
}

/// Whoever takes nothing of an answer holds its bytes, whether the cache does or not.
#[tokio::test]
async fn answers_that_clients_do_not_take_are_bounded_by_their_bytes() {
    let settings = Settings { sending_bytes_max: 3_000_000, ..Settings::default() };
    let stand = Stand::with_memory(settings, 64 << 10);
    stand.text("/q/kept.csv", &[]).await;
    let zipped = [("accept-encoding", "gzip")];
    let mut waiting = Vec::new();
    // Each has more than a megabyte, and too much to be kept.
    while let response = stand.get("/q/many.csv", &[]).await
        && response.status() == StatusCode::OK
        && waiting.len() < 10
    {
        waiting.push(response);
    }
    assert_eq!(waiting.len(), 3);
    let refused = stand.get("/q/many.csv", &zipped).await;
    assert_eq!((refused.status(), header_of(&refused, "retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "1"));
    assert_eq!(stand.text("/q/kept.csv", &[]).await.0, StatusCode::OK, "what is kept is given all the while");
    waiting.pop();
    assert_eq!(stand.get("/q/many.csv", &zipped).await.status(), StatusCode::OK);
    // Compressed forms count as well: those of answers that nobody keeps.
    waiting.clear();
    let mut count = 0;
    while let response = stand.get("/q/many.csv", &zipped).await
        && response.status() == StatusCode::OK
        && count < 100
    {
        waiting.push(response);
        count += 1;
    }
    assert!((4..100).contains(&count), "{count}");
}

#[tokio::test]
async fn programs_see_what_they_may_ask() {
    let stand = Stand::new(Settings::default());
    let paths = async |headers: &[(&str, &str)]| {
        let (status, text) = stand.text("/q.json", headers).await;
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let has = |name: &str| document["paths"].get(format!("/q/{name}.csv")).is_some();
        (status.as_u16(), has("flights"), has("own"), has("anns"))
    };
    assert_eq!(paths(&[]).await, (200, true, false, false), "what anybody may");
    assert_eq!(paths(&[ANN]).await, (200, true, true, true));
    assert_eq!(paths(&[BOB]).await, (200, true, true, false));
    assert_eq!(paths(&[("authorization", "Basic YW5uOndyb25n")]).await.0, 401);
}

#[tokio::test]
async fn each_coding_has_a_tag_of_its_own() {
    let stand = Stand::new(Settings::default());
    let url = "/q/many.csv";
    let plain = stand.get(url, &[]).await;
    let zipped = stand.get(url, &[("accept-encoding", "gzip")]).await;
    assert_eq!((header_of(&plain, "content-encoding"), header_of(&zipped, "content-encoding")), ("", "gzip"));
    let tags = [header_of(&plain, "etag").to_owned(), header_of(&zipped, "etag").to_owned()];
    assert_eq!(tags[1], format!("{}-gzip1\"", tags[0].trim_end_matches('"')));
    let (plain, zipped) = (plain.into_body().collect().await, zipped.into_body().collect().await);
    let (plain, zipped) = (plain.expect("a body").to_bytes(), zipped.expect("a body").to_bytes());
    let mut inflated = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*zipped), &mut inflated).expect("gzip");
    assert!(inflated == plain && zipped.len() < plain.len() / 2);
    let small = stand.get(url, &[("accept-encoding", "gzip, deflate, br")]).await;
    assert_eq!(header_of(&small, "content-encoding"), "br");
    let packed = header_of(&small, "etag").to_owned();
    assert_eq!(packed, format!("{}-br1\"", tags[0].trim_end_matches('"')));
    let mut inflated = Vec::new();
    let small = small.into_body().collect().await.expect("a body").to_bytes();
    std::io::Read::read_to_end(&mut brotli::Decompressor::new(&*small, 4_096), &mut inflated).expect("brotli");
    assert!(inflated == plain);
    for (tag, coding, status) in [
        (&packed, "br", 304),
        (&packed, "gzip", 200),
        (&tags[1], "gzip", 304),
        (&tags[1].replace("gzip1", "gzip9"), "gzip", 304),
        (&tags[1].replace("gzip1", "gzip"), "gzip", 200),
        (&tags[1].replace("gzip1", "gzip91"), "gzip", 200),
        (&tags[0], "gzip", 304),
        (&tags[1], "", 200),
        (&tags[0], "", 304),
    ] {
        let given = [("if-none-match", tag.as_str()), ("accept-encoding", coding)];
        let answer = stand.get(url, &given).await;
        assert_eq!(
            (answer.status().as_u16(), header_of(&answer, "vary")),
            (status, "Accept-Encoding"),
            "{tag} {coding}"
        );
    }
}

/// What tells whether an answer may have changed is asked in the place of the query: what it does not see is not seen.
#[tokio::test]
async fn a_query_of_the_freshness_goes_before_the_query() {
    let stand = Stand::new(Settings::default());
    let url = "/q/cheap.csv?origin=JFK";
    let ask = async || stand.text(url, &[]).await.1;
    assert_eq!(ask().await, "n,d\r\n2,5\r\n");
    stand.sql("UPDATE flight SET delay = 6 WHERE id = 1");
    assert_eq!(ask().await, "n,d\r\n2,5\r\n", "its greatest ID is the same");
    stand.sql("INSERT INTO flight VALUES (9, 'EWR', 1, 'ann')");
    assert_eq!(ask().await, "n,d\r\n2,5\r\n", "nor is that of this airport");
    stand.sql("INSERT INTO flight VALUES (10, 'JFK', 1, 'ann')");
    assert_eq!(ask().await, "n,d\r\n3,7\r\n");
}

/// What is inserted and deleted meanwhile moves no page.
#[tokio::test]
async fn decimals_that_are_kept_as_texts_are_in_one_page_each() {
    for kind in ["DECIMAL_TEXT(9,2)", "NUMERIC"] {
        let stand = Stand::new(Settings::default());
        stand.sql(&format!("CREATE TABLE ticket (id INTEGER PRIMARY KEY, fare {kind})"));
        for (id, fare) in ["2.50", "2.5", "2.50", "3", "3.00", "100", "100.00", "0.1", "0.10"].iter().enumerate() {
            stand.sql(&format!("INSERT INTO ticket VALUES ({id}, '{fare}')"));
        }
        let (mut url, mut ids) = ("/q/fares.json".to_owned(), Vec::new());
        loop {
            let (status, page) = stand.text(&url, &[]).await;
            assert_eq!(status, StatusCode::OK, "{page}");
            let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
            ids.extend(page["rows"].as_array().expect("rows").iter().map(|row| row["id"].as_u64().expect("a number")));
            assert!(ids.len() < 20, "{kind}: no row is in two pages: {ids:?}");
            let Some(next) = page["next"].as_str() else { break };
            next.clone_into(&mut url);
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..9).collect::<Vec<_>>(), "{kind}");
    }
}

#[tokio::test]
async fn pages_by_key() {
    let stand = Stand::new(Settings::default());
    stand.sql("INSERT INTO flight VALUES (4, 'a b&c', 1, 'x'), (5, 'EWR', 1, 'x'), (6, 'ZRH', 1, 'x')");
    let (mut url, mut rows, mut pages) = ("/q/paged.json?least=1".to_owned(), Vec::new(), 0);
    loop {
        let response = stand.get(&url, &[]).await;
        let link = header_of(&response, "link").to_owned();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let page: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        for row in page["rows"].as_array().expect("rows") {
            rows.push(format!("{} {}", row["origin"].as_str().unwrap_or_default(), row["id"]));
        }
        pages += 1;
        let Some(next) = page["next"].as_str() else {
            assert_eq!(link, "");
            break;
        };
        assert_eq!(link, format!("<{next}>; rel=\"next\""));
        next.clone_into(&mut url);
        // Behind what was given, before it, and the last that was given.
        if pages == 1 {
            assert_eq!(url, "/q/paged.json?least=1&after.origin=EWR&after.id=5");
            stand.sql(
                "DELETE FROM flight WHERE id = 5; INSERT INTO flight VALUES (7, 'AAA', 1, 'x'), (8, 'ZZZ', 1, 'x')",
            );
        }
    }
    assert_eq!(
        (rows, pages),
        (["EWR 3", "EWR 5", "JFK 2", "ZRH 6", "ZZZ 8", "a b&c 4"].map(ToOwned::to_owned).to_vec(), 3)
    );
    let (_, csv) = stand.text("/q/paged.csv?after.origin=ZZZ&after.id=8", &[]).await;
    assert_eq!(csv, "origin,id\r\na b&c,4\r\n");
    for (arguments, words) in [
        ("after.id=1", "parameter after.origin is missing"),
        ("after.id=x&after.origin=a", "expected a value of type int"),
        ("after.day=1", "there is no parameter after.day"),
    ] {
        let (status, said) = stand.text(&format!("/q/paged.csv?{arguments}"), &[]).await;
        assert!(status == 400 && said.contains(words), "{said}");
    }
}
