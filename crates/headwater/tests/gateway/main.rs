//! Named queries by the built program: `query check`, `query run`, and `serve`, on both databases.

mod alone;
mod client_sql;
mod compression;
mod credentials;
mod cursor_bounds;
mod cursors;
mod dates;
mod failing;
mod frontier_client;
mod init;
mod large_rows;
mod mariadb;
mod odd_texts;
mod page;
mod pages;
mod query_run;
mod restart;
mod slow;
mod squid;
mod tracked;
mod waiting;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Decimal128Type;
use arrow_ipc::reader::StreamReader;
use headwater_testkit::Postgres;

const TABLES: &str =
    "CREATE TABLE flight (id INTEGER PRIMARY KEY NOT NULL, origin TEXT, delay INTEGER, fare DECIMAL_TEXT);
INSERT INTO flight VALUES (1, 'JFK', 5, '10.50'), (2, 'JFK', NULL, NULL), (3, 'EWR', 7, '9.99');";

const FLIGHTS: &str = "-- title = \"Flights from an airport\"
-- public = true
-- [parameters]
-- origin = { type = \"text\", length_max = 3 }
SELECT id, delay, fare FROM flight
WHERE origin = :origin
ORDER BY id;
";

/// The Frontier protocol, for this machine.
const FRONTIER: &str = "[gateway.frontier]\nname = \"X\"\nallowed = [\"127.0.0.1\"]\n";

/// A database of PostgreSQL's.
fn postgres() -> String {
    Postgres::shared().and_then(Postgres::create_database).expect("a database")
}

/// Runs SQL at the database of a stage, as its owner would.
fn change(stage: &Stage, url: &str, sql: &str) {
    if url.starts_with("sqlite:") {
        stage.sql(sql);
    } else {
        headwater_testkit::sql(url, sql).expect(sql);
    }
}

struct Stage {
    folder: tempfile::TempDir,
    server: Option<Child>,
}

impl Stage {
    fn new(url: &str) -> Stage {
        let stage = Stage { folder: tempfile::tempdir().expect("a folder"), server: None };
        let url = url.replace("HERE", &stage.folder.path().display().to_string());
        match url.strip_prefix("sqlite:") {
            Some(path) => rusqlite::Connection::open(path).and_then(|file| file.execute_batch(TABLES)).expect("tables"),
            None => drop(headwater_testkit::sql(&url, &TABLES.replace("DECIMAL_TEXT", "numeric")).expect("tables")),
        }
        stage.ok(&["init", "--database", &url, "--name", "shop"]);
        stage.ok(&["track"]);
        let file = stage.path("headwater.toml");
        let text = std::fs::read_to_string(&file).expect("written");
        std::fs::write(&file, format!("{text}\n[gateway]\nqueries = \"queries\"\n")).expect("written");
        std::fs::create_dir(stage.path("queries")).expect("a folder");
        stage.query("flights.sql", FLIGHTS);
        stage
    }

    /// Named queries without a model, in a database that is there as it is.
    fn alone(url: &str) -> Stage {
        let stage = Stage { folder: tempfile::tempdir().expect("a folder"), server: None };
        let url = url.replace("HERE", &stage.folder.path().display().to_string());
        let text = format!("[database]\nurl = \"{url}\"\n\n[gateway]\nqueries = \"queries\"\n");
        std::fs::write(stage.path("headwater.toml"), text).expect("written");
        std::fs::create_dir(stage.path("queries")).expect("a folder");
        stage.query("flights.sql", FLIGHTS);
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn query(&self, name: &str, text: &str) {
        std::fs::write(self.path("queries").join(name), text).expect("written");
    }

    /// Adds to the configuration: options of its last section, and sections.
    fn configure(&self, more: &str) {
        let mut file = File::options().append(true).open(self.path("headwater.toml")).expect("a file");
        write!(file, "{more}").expect("written");
    }

    /// Runs SQL at a SQLite database, as an application would.
    fn sql(&self, sql: &str) {
        let path = self.path("central.db");
        rusqlite::Connection::open(path).and_then(|file| file.execute_batch(sql)).expect(sql);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command
            .env("HEADWATER_PASSWORD", "secret")
            .current_dir(self.folder.path())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Exit code, stdout, stderr.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let done = self.command(arguments).output().expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (done.status.code(), text(done.stdout), text(done.stderr))
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.0, Some(0), "{arguments:?}: {said:?}");
        said.1
    }

    /// Starts the server; its address.
    fn serve(&mut self) -> String {
        self.serve_with(&[], &[])
    }

    /// The same with more arguments, and these variables.
    fn serve_with(&mut self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0", "--set", "password_checks=1"]);
        command.args(arguments).envs(variables.iter().copied());
        let log = File::options().create(true).append(true).open(self.path("log")).expect("a file");
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it speaks");
        self.server = Some(child);
        line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}")).to_owned()
    }
}

impl Stage {
    /// What its servers have logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Ends the server at once.
    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One request, by HTTP/1.0 where the headers say that; head and body of the answer.
fn get(address: &str, target: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let (version, headers) = if headers == "HTTP/1.0" { (headers, "") } else { ("HTTP/1.1", headers) };
    let request = format!("GET {target} {version}\r\nHost: test\r\nConnection: close\r\n{headers}\r\n");
    // One that is refused before its end is answered without being read.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    // One that is cut off may end by a reset.
    let _ = stream.read_to_string(&mut answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

/// Many times what is on its way at once, in each way that an answer goes: held, and as it comes.
fn large_answers(url: &str) {
    let mut stage = Stage::new(url);
    let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n) SELECT i, 'padding of a row' AS x FROM n";
    let head =
        "-- public = true\n-- max_age_s = 100\n-- rows_max = 300000\n-- [parameters]\n-- n = { type = \"int\" }\n";
    stage.query("many.sql", &format!("{head}{numbers}"));
    // It fails behind the first hundred thousand rows.
    stage.query(
        "broken.sql",
        &format!(
            "{head}{}",
            numbers.replace("SELECT i,", "SELECT CAST(CASE WHEN i < 100000 THEN '1' ELSE '{' END AS json) AS j,")
        ),
    );
    let address = stage.serve();
    for (rows, is_held) in [(20_000, true), (250_000, false)] {
        let (head, body) = get(&address, &format!("/q/many.ndjson?n={rows}"), "");
        assert_eq!(head.contains("etag: "), is_held, "{head}");
        let body = if is_held { body } else { unchunked(&body) };
        assert_eq!(
            (body.lines().count(), body.lines().last()),
            (rows, Some(&*format!("{{\"i\":{rows},\"x\":\"padding of a row\"}}")))
        );
    }
    // Cut off: no last chunk, and to those who know no chunks nothing that a cache may keep.
    let (head, body) = get(&address, "/q/many.ndjson?n=400000", "");
    assert!(head.contains("chunked") && !body.ends_with("0\r\n\r\n"), "{head}");
    let (head, _) = get(&address, "/q/many.ndjson?n=250000", "HTTP/1.0");
    assert!(head.contains("cache-control: no-store"), "{head}");
    let (head, _) = get(&address, "/q/many.ndjson?n=20000", "HTTP/1.0");
    assert!(head.contains("cache-control: public"), "{head}");
    if !url.starts_with("sqlite:") {
        let (head, body) = get(&address, "/q/broken.csv?n=50", "");
        assert!(head.starts_with("http/1.1 200") && body.lines().count() == 51, "{head}");
        let (_, body) = get(&address, "/q/broken.csv?n=250000", "");
        assert!(!body.ends_with("0\r\n\r\n"), "it is not taken for the whole");
    }
}

/// A body of chunks.
fn unchunked(body: &str) -> String {
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            return whole;
        }
        whole += &after[..size];
        rest = &after[size + 2..];
    }
    panic!("the last chunk is missing")
}

#[test]
fn sqlite_large_answers() {
    large_answers("sqlite:HERE/central.db");
}

#[test]
fn postgres_large_answers() {
    large_answers(&postgres());
}

fn from_file_to_answer(url: &str) {
    let mut stage = Stage::new(url);
    let pages =
        "-- public = true\n-- page_by = { id = \"int\" }\n-- page_rows = 1\nSELECT id, origin FROM flight -- all";
    stage.query("pages.sql", pages);
    let checked = stage.ok(&["query", "check"]);
    assert!(
        checked.contains("flights") && checked.contains("origin text") && checked.contains("2 queries, as"),
        "{checked}"
    );
    let csv = stage.ok(&["query", "run", "flights", "origin=JFK", "--format", "csv"]);
    assert_eq!(csv, "id,delay,fare\r\n1,5,10.50\r\n2,,\r\n");
    let table = stage.ok(&["query", "run", "flights", "origin=EWR"]);
    assert!(table.contains("fare") && table.contains("9.99"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&stage.ok(&["query", "run", "flights", "origin=EWR", "--json"])).expect("JSON");
    assert_eq!(json["rows"], serde_json::json!([{ "id": 3, "delay": 7, "fare": "9.99" }]));
    for (arguments, words) in [
        (&["query", "run", "flights"][..], "parameter origin is missing"),
        (&["query", "run", "flights", "origin=LONG"], "expected at most 3"),
        (&["query", "run", "nothing"], "expected one of flights, pages"),
        (&["query", "run", "flights", "origin"], "expected NAME=VALUE"),
    ] {
        let said = stage.run(arguments);
        assert!(said.0 == Some(2) && said.2.contains(words), "{said:?}");
    }

    let address = stage.serve();
    let (head, body) = get(&address, "/q/flights.csv?origin=JFK", "");
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/csv"), "{head}");
    assert_eq!(body, "id,delay,fare\r\n1,5,10.50\r\n2,,\r\n");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    let (head, body) = get(&address, "/q/flights.csv?origin=JFK", &format!("If-None-Match: {tag}\r\n"));
    assert!(head.starts_with("http/1.1 304") && body.is_empty(), "{head}");
    lengths_of_heads(&address, tag);
    // From page to page, by the links.
    assert_eq!(pages::followed(&address, "pages").as_deref(), Ok("1,JFK 2,JFK 3,EWR "));
    assert_eq!(stage.ok(&["query", "run", "pages", "--format", "csv"]), "id,origin\r\n1,JFK\r\n2,JFK\r\n3,EWR\r\n");
    let (head, _) = get(&address, "/ready", "");
    assert!(head.starts_with("http/1.1 200"), "syncs are served beside: {head}");
}

/// HEAD says what GET does, and nothing else. A 304 may have the length of the answer itself, and no other.
fn lengths_of_heads(address: &str, tag: &str) {
    for (method, condition, status, length) in [
        ("GET", "", "200", Some("31")),
        ("HEAD", "", "200", Some("31")),
        ("GET", tag, "304", None),
        ("HEAD", tag, "304", None),
    ] {
        let mut stream = TcpStream::connect(address).expect("a connection");
        let condition = if condition.is_empty() { String::new() } else { format!("If-None-Match: {condition}\r\n") };
        write!(
            stream,
            "{method} /q/flights.csv?origin=JFK HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{condition}\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let head = head.to_ascii_lowercase();
        assert!(
            head.starts_with(&format!("http/1.1 {status}")) && !head.contains("transfer-encoding"),
            "{method} {head}"
        );
        assert_eq!(head.lines().find_map(|line| line.strip_prefix("content-length: ")), length, "{method} {head}");
        assert_eq!(body.is_empty(), (method, status) != ("GET", "200"), "{method} {body}");
    }
}

#[test]
fn sqlite_from_file_to_answer() {
    from_file_to_answer("sqlite:HERE/central.db");
}

#[test]
fn postgres_from_file_to_answer() {
    from_file_to_answer(&postgres());
}

/// Types are PostgreSQL's, batch by batch, and what Arrow has no room for is told.
#[test]
fn postgres_types_in_arrow() {
    let stage = Stage::new(&postgres());
    let rows = "SELECT i, (i * 1.5)::numeric(10,2) AS fare, i * 1.5 AS any, DATE '2013-01-31' + i AS day, 'infinity'::date AS never
        FROM generate_series(1, 30000) AS s(i)";
    stage.query("typed.sql", &rows.replace(", 'infinity'::date AS never", ""));
    stage.query("never.sql", rows);
    stage.query("mended.sql", &format!("-- [types]\n-- never = \"text\"\n{rows}"));
    let run = |name: &str| stage.command(&["query", "run", name, "--format", "arrow"]).output().expect("it runs");
    let done = run("typed");
    let batches: Vec<_> =
        StreamReader::try_new(&*done.stdout, None).expect("a schema").map(|batch| batch.expect("a batch")).collect();
    let types: Vec<String> =
        batches[0].schema().fields().iter().map(|field| field.data_type().to_string().replace(' ', "")).collect();
    assert_eq!(types, ["Int64", "Decimal128(10,2)", "Utf8", "Date32"]);
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 30_000);
    let last = batches.last().expect("a batch");
    let place = last.num_rows() - 1;
    let fare = last.column(1).as_primitive::<Decimal128Type>().value_as_string(place);
    assert_eq!((fare.as_str(), last.column(2).as_string::<i32>().value(place)), ("45000.00", "45000.0"));
    let failed = run("never");
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("column \"never\" has in row 1 the date \"infinity\""), "{said}");
    let mended =
        StreamReader::try_new(&*run("mended").stdout, None).expect("a schema").next().expect("one").expect("a batch");
    assert_eq!(mended.column(4).as_string::<i32>().value(0), "infinity");
}

/// SQL of a Frontier client, by the protocol's first form.
fn frontier(url: &str) {
    let mut stage = Stage::new(url);
    stage.configure(FRONTIER);
    let variables =
        if url.starts_with("sqlite:") { None } else { Some(("HEADWATER_GATEWAY_FRONTIER_URL", client_sql::role(url))) };
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let address = stage.serve_with(&[], &variables);
    // `select id, name from t`, as the C client encodes it: there is no such table here.
    let seen =
        "/X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=eNorTs1JTS5RyEzRUchLzE1VSCvKz1UoAQBa6wfD";
    let id = "X-Frontier-Id: client 2.10.2 10288 root(0) root\r\n";
    let (head, body) = get(&address, seen, id);
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/xml;charset=us-ascii"), "{head}");
    let said = "<quality error=\"1\" message=\"the database can't run the statement as it was sent: ";
    assert!(body.contains(said), "{body}");
    let rows = "INSERT INTO t VALUES (1, 'alpha'), (2, NULL), (3, '')";
    let whole = if url.starts_with("sqlite:") { "INTEGER" } else { "int4" };
    change(&stage, url, &format!("CREATE TABLE t (id {whole}, name text); {rows}"));
    let (head, body) = get(&address, seen, id);
    assert!(head.contains("cache-control: max-age=604800"), "{head}");
    assert!(body.contains("records=\"3\"") && body.contains("encoding=\"BLOBzip5\""), "{body}");
    if !url.starts_with("sqlite") {
        assert!(body.contains("full_size=\"82\""), "the example of the reference: {body}");
    }
}

#[test]
fn frontier_clients_are_served() {
    frontier("sqlite:HERE/central.db");
    frontier(&postgres());
}

fn faults(url: &str, of_column: &str) {
    let stage = Stage::new(url);
    stage.query("typo.sql", "-- public = true\n\nSELECT id,\n  absent\nFROM flight");
    stage.query("twice.sql", "SELECT id, id FROM flight");
    stage.query("page.sql", "-- page_by = { day = \"date\" }\nSELECT id FROM flight");
    stage.query("head.sql", "-- public = maybe\nSELECT 1 AS a");
    stage.query("writes.sql", "DELETE FROM flight");
    stage.query("returns.sql", "-- public = true\n\nUPDATE flight SET delay = 1 RETURNING id");
    stage.query("part.sql", "WITH gone AS (DELETE FROM flight RETURNING id) SELECT id FROM gone");
    stage.query("table.sql", "SELECT a FROM there_is_none");
    std::fs::write(stage.path("queries/bytes.sql"), b"SELECT '\xff'").expect("written");
    std::fs::create_dir(stage.path("queries/folder.sql")).expect("a folder");
    let (code, said, _) = stage.run(&["query", "check"]);
    assert_eq!(code, Some(1), "{said}");
    for words in [
        "head.sql:1: ",
        of_column,
        "twice.sql:1: two columns are called \"id\"",
        "writes.sql:1: ",
        "returns.sql:3: ",
        "part.sql:1: ",
        "page.sql:1: page_by has the column \"day\"",
        "table.sql:1: ",
        "bytes.sql:1: it can't be read",
        "folder.sql:1: it can't be read",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let (code, _, said) = stage.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("head.sql:1: "), "it does not start: {said}");
}

#[test]
fn faults_are_told_by_file_and_line() {
    faults("sqlite:HERE/central.db", "typo.sql:4: no such column: absent");
    let url = postgres();
    faults(&url, "typo.sql:4: column \"absent\" does not exist");
}
