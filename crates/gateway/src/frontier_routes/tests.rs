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
use headwater_access::{Access, Secret, Settings as AccessSettings, hash_password};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend as _, Plan, Pool, QueryPool, system, track};
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use std::io::{Read as _, Write as _};
use tower::ServiceExt as _;

use super::{FrontierSettings, is_allowed};
use crate::frontier::{Field, Fields, signer};
use crate::held;
use crate::packing::Compression as Level;
use crate::query::QueryLimits;
use crate::{ClientSql, Gateway, Settings};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Stand {
    gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Stand {
    fn new() -> Stand {
        Stand::with(Settings::default())
    }

    fn with(holding: Settings) -> Stand {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("central.db");
        let schema = "CREATE TABLE t (id INTEGER, name TEXT); INSERT INTO t VALUES (1, 'alpha'), (2, NULL), (3, '')";
        rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(schema)).expect("a file");
        std::fs::create_dir(folder.path().join("files")).expect("a folder");
        std::fs::write(folder.path().join("files/a b"), b"\x00file").expect("a file");
        std::os::unix::fs::symlink(&path, folder.path().join("files/out")).expect("a link");
        let backend = Arc::new(Sqlite::new(&path).durable(false));
        let mut connection = backend.connect().expect("a connection");
        system::install(&mut *connection).expect("installed");
        let hash = hash_password(&Secret::new("secret")).expect("a hash");
        for user in ["ann", "bob"] {
            system::add_account(&mut *connection, user, &hash).expect("an account");
        }
        let access = Access::new(Pool::new(Arc::clone(&backend) as _, 1), AccessSettings::default());
        let pool = QueryPool::for_queries(Arc::clone(&backend) as _, 2);
        let settings = FrontierSettings {
            name: "X".to_owned(),
            allowed: vec![(HERE, 32)],
            users: vec!["ann".to_owned()],
            signer: Some(Arc::new(signer())),
            files: Some(folder.path().join("files")),
            limits: QueryLimits {
                time_out: Duration::from_secs(20),
                rows_max: 1_000,
                row_bytes_max: 1_000_000,
                ..QueryLimits::default()
            },
            kept_s: 0,
        };
        let sql = ClientSql::new(QueryPool::for_client_sql(backend, 2, settings.limits.row_bytes_max), false);
        let pools = held::pools(64 << 20);
        let gateway = Gateway::new(Vec::new(), pool, access, holding, pools).with_frontier(settings, sql);
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
async fn sql_of_clients_reads_the_applications_tables_and_nothing_else() {
    let stand = Stand::new();
    let path = stand.folder.path().join("central.db");
    let views = "CREATE VIEW plain AS SELECT name FROM t; CREATE VIEW shown AS SELECT user_name FROM headwater_account; ANALYZE;
        CREATE TABLE note (id INTEGER PRIMARY KEY, body TEXT); INSERT INTO note VALUES (1, 'a red fox'), (2, 'a grey wolf');
        CREATE VIRTUAL TABLE whole USING fts5(body); INSERT INTO whole SELECT body FROM note;
        CREATE VIRTUAL TABLE beside USING fts5(body, content='note', content_rowid='id');
        INSERT INTO beside(beside) VALUES ('rebuild');
        CREATE VIRTUAL TABLE leak USING fts5(user_name, content='headwater_account')";
    rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(views)).expect("made");
    for sql in [
        "select user_name, password_hash from headwater_account",
        "select count(*) from HEADWATER_ACCOUNT",
        "select token_key from main.headwater_identity",
        "with a as (select * from (select password_hash from headwater_account)) select * from a",
        "select name from t where name in (select user_name from headwater_account)",
        "select user_name from shown",
        "select * from temp.headwater_actor",
        "select user_name from leak",
        "select tbl from sqlite_stat1",
        "pragma journal_mode = delete",
        "pragma database_list",
        "select * from pragma_database_list",
        "pragma table_info(t) ; select 1",
        "select load_extension('x')",
        "attach ':memory:' as other",
        "vacuum",
        "create temp table x as select 1 as a",
        "delete from t returning id",
    ] {
        // Asked a second time, it is looked at whether it can be watched.
        for _ in 0..2 {
            let answer = stand.text(&query(sql, "BLOB")).await;
            assert!(answer.contains("<quality error=\"1\"") && !answer.contains("records="), "{sql}: {answer}");
        }
    }
    for (sql, records) in [
        ("select name from plain", 3),
        ("select name from sqlite_schema where name in ('t', 'plain')", 2),
        ("select name from pragma_table_info('t')", 2),
        ("select body from whole where whole match 'fox OR wolf' order by bm25(whole)", 2),
        ("select body, snippet(beside, 0, '[', ']', '...', 3) from beside('wol*')", 1),
        ("select value from json_each('[1, 2, 3, 4]')", 4),
        (&numbers(5), 5),
    ] {
        let answer = stand.text(&query(sql, "BLOB")).await;
        assert!(answer.contains(&format!("records=\"{records}\"")), "{sql}: {answer}");
    }
}

/// What a client asks for is in memory whole, a row of it at least.
#[tokio::test]
async fn a_value_that_is_too_large_is_neither_read_nor_made() {
    let stand = Stand::new();
    let stored = "CREATE TABLE large (id INTEGER, data BLOB); INSERT INTO large VALUES (1, zeroblob(2000000))";
    let path = stand.folder.path().join("central.db");
    rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(stored)).expect("made");
    for (sql, words) in [
        ("select data from large", "a value has more than 1000000 bytes"),
        ("select length(hex(zeroblob(900000))) from t", "a value has more than 1000000 bytes"),
        ("select hex(zeroblob(300000)) as a, hex(zeroblob(300000)) as b", "row 1 has 1200000 bytes, more than 1000000"),
    ] {
        let answer = stand.text(&query(sql, "BLOB")).await;
        assert!(answer.contains("<quality error=\"1\"") && answer.contains(words), "{sql}: {answer}");
    }
    assert!(stand.text(&query("select hex(zeroblob(400000)) as a", "BLOB")).await.contains("records=\"1\""));
}

#[tokio::test]
async fn values_are_bound_as_texts() {
    let stand = Stand::new();
    let answer = stand.text(&query("select name from t where name = ?:alpha", "BLOB")).await;
    assert!(answer.contains("records=\"1\""), "{answer}");
    let answer = stand.text(&query("select name from t where name = ?:x' or '1'='1", "BLOB")).await;
    assert!(answer.contains("records=\"0\""), "{answer}");
}

/// The change is taken out of the record of changes, so nobody can know of it who has not run the query.
#[tokio::test]
async fn a_payload_of_tracked_tables_is_not_made_again_until_they_change() {
    const MODEL: &str =
        "name = \"m\"\nversion = 1\n[tables.k]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", name = \"text\" }";
    let stand = Stand::new();
    let path = stand.folder.path().join("central.db");
    let sql = |sql: &str| rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(sql)).expect(sql);
    sql("CREATE TABLE k (id INTEGER PRIMARY KEY NOT NULL, name TEXT)");
    let plan = Plan::new(headwater_model::parse::parse("m.toml", MODEL).expect("a model"));
    let backend = Sqlite::new(&path).durable(false);
    track::track(&mut *backend.connect().expect("a connection"), &plan).expect("tracked");
    sql("INSERT INTO k VALUES (1, 'one')");
    let target = query("select id, name from k", "BLOB");
    let has = async |name: &str| String::from_utf8_lossy(&data(&stand.text(&target).await)[0]).contains(name);
    // It is looked into once it is asked again, and known of what is made from then on.
    assert!(has("one").await && has("one").await);
    let modified = stand.modified(&target).await;
    sql("UPDATE k SET name = 'two'; UPDATE headwater_table_change SET version = version - 1 WHERE table_name = 'k'");
    assert!(has("one").await, "the statement is not run");
    let same = stand.get(&target, &[("if-modified-since", &modified)]).await;
    assert_eq!(same.status().as_u16(), 304);
    sql("INSERT INTO k VALUES (2, 'more')");
    assert!(has("two").await && has("more").await);
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
        ("select nothing_there from t", "statement as it was sent: no such column: nothing_there"),
        ("delete from t", "&quot;delete&quot; with a blank behind it is taken nowhere"),
        ("update t set id = 9", "error=\"1\" message=\"the database can't run"),
        ("select 1; select 2", "error=\"1\" message=\"the database can't run"),
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
    let stand = Stand::with(Settings { patience: Duration::from_mins(1), ..Settings::default() });
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

    // The second of two, and it fails: the first is there all the same.
    let held = stand.gateway.service.hold_slots().await;
    let first = format!("{}&", query(ALL, "BLOB").replace("frontier_request:1:DEFAULT", "frontier_file:1"));
    let first = first.split("&p1").next().expect("a file").to_owned() + "&p1=a%2520b";
    let wrong = query("select nothing_there from t", "BLOB");
    let two = format!("{first}&{}", wrong.trim_start_matches("/X/Frontier/"));
    let response = stand.get(&two, &[]).await;
    let broken = stand.get(&two, &[("x-frontier-opts", "DontCacheErrors")]).await;
    drop(held);
    let answer = text(response).await;
    assert!(answer.contains("records=\"1\" full_size=\"11\"") && answer.matches("<keepalive />").count() >= 1);
    let end = answer.split("<keepalive />").last().expect("the end");
    assert!(
        end.starts_with("</data>\n   <quality error=\"1\"") && end.contains("</transaction>\n <global_error msg="),
        "{end}"
    );
    assert!(broken.into_body().collect().await.is_err(), "no cache is to keep it");
}

/// Nothing of a frame has gone: no cache keeps that, and the client goes to its next server.
#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_is_told_to_come_again() {
    let stand = Stand::with(Settings { executions_max: 1, waiting_max: 0, ..Settings::default() });
    let sql = query(ALL, "BLOB");
    let file = "/X/Frontier/type=frontier_file:1:DEFAULT&encoding=BLOB&p1=a%2520b";
    let both = format!("{file}&{}", sql.trim_start_matches("/X/Frontier/"));
    let held = stand.gateway.service.hold_slots().await;
    for target in [&sql, &both] {
        for options in [&[][..], &[("x-frontier-opts", "DontCacheErrors")], &[("cache-control", "max-stale=30")]] {
            let response = stand.get(target, options).await;
            assert_eq!((response.status().as_u16(), header_of(&response, "retry-after")), (503, "1"), "{target}");
            let said = (header_of(&response, "cache-control"), header_of(&response, "content-type"));
            assert_eq!(said, ("no-store", "text/xml;charset=US-ASCII"));
            let answer = text(response).await;
            assert!(answer.contains("<global_error msg=\"0 queries wait already\""), "{answer}");
        }
    }
    assert!(stand.text(file).await.contains("records=\"1\""), "what needs no place is there");
    drop(held);
    assert!(stand.text(&both).await.contains("records=\"3\""));
}

/// Its head is gone, so the error is in the frame.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_for_a_place_until_the_head_was_gone_is_told_in_the_frame() {
    let patience = Duration::from_millis(5_500);
    let stand = Stand::with(Settings { executions_max: 1, patience, ..Settings::default() });
    let _held = stand.gateway.service.hold_slots().await;
    let response = stand.get(&query(ALL, "BLOB"), &[]).await;
    assert_eq!(response.status(), 200);
    let answer = text(response).await;
    let (_, end) = answer.split_once("<keepalive />").expect("it was let wait");
    assert!(end.contains("<quality error=\"1\" message=\"no query ended for 5.5s\""), "{end}");
    assert!(end.contains("</transaction>\n <global_error msg="), "{end}");
}

/// So many rows, one a number.
fn numbers(count: u32) -> String {
    format!("with recursive n(i) as (select 1 union all select i + 1 from n where i < {count}) select i from n")
}

fn inflated(answer: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(&*data(answer)[0]).read_to_end(&mut bytes).expect("zlib");
    bytes
}

/// More than is held: it comes as it is read, and is the same as what is held elsewhere.
#[tokio::test]
async fn a_large_answer_comes_as_it_is_read() {
    let held = Stand::new();
    let stand = Stand::with(Settings { held_bytes_max: 1_000, ..Settings::default() });
    for encoding in ["BLOB", "BLOBzip5"] {
        let large = query(&numbers(1_000), encoding);
        let response = stand.get(&format!("{large}&ttl=short"), &[("cache-control", "max-stale=9")]).await;
        assert_eq!((header_of(&response, "content-length"), header_of(&response, "last-modified")), ("", ""));
        assert_eq!(header_of(&response, "cache-control"), "max-age=0, stale-if-error=9");
        let (answer, whole) = (text(response).await, held.text(&large).await);
        assert_eq!(answer.matches("<keepalive").count(), 0);
        match encoding {
            "BLOB" => assert!(answer == whole, "the same bytes"),
            _ => assert!(inflated(&answer) == inflated(&whole), "the same rows"),
        }
        assert!(whole.contains("records=\"1000\""), "all of them");
    }
    let (small, large) = (query(ALL, "BLOB"), query(&numbers(500), "BLOB"));
    let three = [&small, &large, &small].map(|one| one.trim_start_matches("/X/Frontier/").to_owned()).join("&");
    let three = format!("/X/Frontier/{three}");
    assert!(stand.text(&three).await == held.text(&three).await, "the same bytes");
}

/// A cache that has seen the head would keep it for days.
#[tokio::test]
async fn a_large_answer_that_fails_is_broken_off() {
    let stand = Stand::with(Settings { held_bytes_max: 1_000, ..Settings::default() });
    let wide = numbers(100_000).replace("select i from", "select i, hex(zeroblob(100)) from");
    let response = stand.get(&query(&wide, "BLOB"), &[]).await;
    assert_eq!(header_of(&response, "cache-control"), "max-age=604800");
    let mut body = response.into_body();
    let mut bytes = 0;
    let broken = loop {
        match body.frame().await {
            Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, axum::body::Bytes::len),
            Some(Err(error)) => break error.to_string(),
            None => panic!("it came whole, {bytes} bytes"),
        }
    };
    assert!(bytes > 1_000 && broken.contains("broken off"), "{bytes} bytes, then {broken}");
    let wrong = query("select nothing_there from t", "BLOB");
    let two = format!("{}&{}", query(&numbers(500), "BLOB"), wrong.trim_start_matches("/X/Frontier/"));
    let response = stand.get(&two, &[]).await;
    assert_eq!(header_of(&response, "cache-control"), "max-age=604800");
    assert!(response.into_body().collect().await.is_err(), "the second payload has an error");
}

/// What the signature is of is what the client asked for, and what it got.
#[tokio::test]
async fn answers_are_signed_where_that_is_asked_for() {
    let stand = Stand::new();
    let certificate = stand.get("/X/Frontier/type=cert_request:1&encoding=pem", &[]).await;
    assert_eq!(header_of(&certificate, "content-type"), "text/plain; charset=utf-8");
    assert_eq!(text(certificate).await, signer().certificate());
    let expected = |part: &str, bytes: &[u8]| {
        let hash = Sha256::new_with_prefix(part).chain_update(bytes).finalize();
        format!("sig=\"{}\"", STANDARD.encode(signer().sign(&hash.into())))
    };
    for encoding in ["BLOB", "BLOBzip5"] {
        let target = format!("{}&sec=sig&freshkey=a%20b", query(ALL, encoding));
        let answer = stand.text(&target).await;
        let part = target.trim_start_matches("/X/Frontier").replace("%20", " ");
        assert!(answer.contains(&expected(&part, &data(&answer)[0])) && !answer.contains("md5="), "{answer}");
    }
    let wrong = format!("{}&sec=sig", query("select nothing_there from t", "BLOB"));
    let answer = stand.text(&wrong).await;
    assert!(answer.contains(&expected(wrong.trim_start_matches("/X/Frontier"), b"")), "{answer}");
    assert!(stand.text(&query(ALL, "BLOB")).await.contains("md5="), "nobody asked");
    let mixed = format!("{}&type=cert_request:1", query(ALL, "BLOB"));
    assert!(stand.text(&mixed).await.contains("a certificate is asked for alone"));
}

#[tokio::test]
async fn users_may_ask_from_elsewhere_and_no_cache_gives_it_to_others() {
    let stand = Stand::new();
    let elsewhere = IpAddr::from([10, 0, 0, 1]);
    let as_user = |user: &str| format!("Basic {}", STANDARD.encode(user));
    for (user, words, control) in [
        ("ann:secret", "records=\"3\"", "private, max-age=604800"),
        ("ann:wrong", "<global_error msg=\"", "private, max-age=0"),
        ("bob:secret", "user &quot;bob&quot; are not allowed", "private, max-age=0"),
    ] {
        let headers = [("x-frontier-id", "x"), ("authorization", &as_user(user))];
        let response = stand.ask("GET", &query(ALL, "BLOB"), elsewhere, &headers).await;
        assert_eq!(header_of(&response, "cache-control"), control, "{user}");
        let answer = text(response).await;
        assert!(answer.contains(words), "{user}: {answer}");
    }
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

/// Where the encoding names no level it is the gateway's to choose, down to none; a level that is named is kept.
#[tokio::test]
async fn an_encoding_without_a_level_has_the_gateways() {
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n";
    let mut sizes = Vec::new();
    for level in [0, 1, 9] {
        let stand = Stand::with(Settings { compression: Level::Fixed(level), ..Settings::default() });
        for (encoding, is_named) in [("BLOBzip", false), ("BLOBzip5", true)] {
            let answer = stand.text(&query(many, encoding)).await;
            assert!(answer.contains(&format!("encoding=\"{encoding}\"")) && answer.contains("records=\"900\""));
            let packed = data(&answer).remove(0);
            let mut inflated = Vec::new();
            ZlibDecoder::new(&*packed).read_to_end(&mut inflated).expect("zlib");
            assert_eq!(Fields::new(&inflated).count(), 2 + 1 + 2 * 900);
            sizes.push((is_named, packed.len()));
        }
    }
    let of = |named: bool| sizes.iter().filter(|(is, _)| *is == named).map(|(_, size)| *size).collect::<Vec<_>>();
    let (chosen, named) = (of(false), of(true));
    assert!(chosen[0] > 5_000 && chosen[1] < chosen[0] / 2 && chosen[2] < chosen[1], "{chosen:?}");
    assert!(named.iter().all(|size| *size == named[0]), "{named:?}");
}
