//! Remote cursors, by the built program and its client, over real sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use headwater_cursor::{Connection, Credentials, Error, Options, Row, Server, Value};
use headwater_protocol::cursor::{Client, Event, Open, Question};
use headwater_protocol::{Frame, Kind};
use headwater_testkit::{FaultProxy, MariaDb, wait_until};

use super::client_sql::role;
use super::{FRONTIER, Stage, get, postgres};

const PATIENCE: Duration = Duration::from_mins(1);
const MANY: &str = "-- public = true\n-- [parameters]\n-- count = { type = \"int\" }\n\
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)\n\
    SELECT i, 'a text of some forty bytes, and no more' AS t FROM n";

/// A server of cursors, with these options of them.
fn stage(url: &str, options: &str) -> Stage {
    let stage = Stage::alone(url);
    stage.query("flights.sql", "SELECT 1 AS id");
    stage.query("many.sql", MANY);
    stage.configure(&format!("[gateway.cursor]\n{options}\n"));
    stage
}

pub(super) fn sqlite(options: &str) -> Stage {
    let stage = stage("sqlite:HERE/central.db", options);
    std::fs::write(stage.path("central.db"), "").expect("an empty database");
    stage
}

fn server(address: &str, credentials: Credentials) -> Server {
    Server { url: format!("http://{address}"), credentials, ca_file: None }
}

pub(super) fn connect(address: &str) -> Connection {
    Connection::open(&server(address, Credentials::Nothing)).expect("a connection")
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("an error").code().to_owned()
}

/// All rows that are left of a cursor.
pub(super) fn all(cursor: &mut headwater_cursor::Cursor) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    while let Some(row) = cursor.next_row()? {
        rows.push(row);
    }
    Ok(rows)
}

/// Counts the rows that are left, each of which has the next number.
pub(super) fn count(cursor: &mut headwater_cursor::Cursor, mut last: i64) -> Result<i64, Error> {
    while let Some(row) = cursor.next_row()? {
        assert_eq!(row[0], Value::Int(last + 1));
        last += 1;
    }
    Ok(last)
}

#[test]
fn values_keep_their_types_from_each_database() {
    let decimal = Value::Decimal(headwater_protocol::Decimal::parse("12345678901234567890.50").expect("a decimal"));
    let of_postgres = "SELECT 9007199254740993::bigint AS i, 12345678901234567890.50::numeric AS d, NULL::text AS n, \
        'x'::bytea AS b, true AS t, date '2026-02-28' AS day, 'NaN'::float8 AS r, '{\"a\":1}'::jsonb AS j";
    let of_mariadb = "SELECT 9007199254740993 AS i, CAST(12345678901234567890.50 AS DECIMAL(30,2)) AS d, NULL AS n";
    let of_sqlite = "SELECT 9007199254740993 AS i, 'x' AS d, NULL AS n, x'78' AS b";
    let cluster = MariaDb::shared().expect("MariaDB");
    let mariadb = cluster.url(&cluster.create_database().expect("a database"));
    for (url, sql, expected) in [
        (
            postgres(),
            of_postgres,
            vec![
                Value::Int(9_007_199_254_740_993),
                decimal.clone(),
                Value::Null,
                Value::Bytes(b"x".to_vec()),
                Value::Bool(true),
                Value::Date(20_512),
            ],
        ),
        (mariadb, of_mariadb, vec![Value::Int(9_007_199_254_740_993), decimal, Value::Null]),
        (
            "sqlite:HERE/central.db".to_owned(),
            of_sqlite,
            vec![Value::Int(9_007_199_254_740_993), Value::text("x"), Value::Null, Value::Bytes(b"x".to_vec())],
        ),
    ] {
        let mut stage = stage(&url, "");
        if url.starts_with("sqlite") {
            std::fs::write(stage.path("central.db"), "").expect("an empty database");
        }
        stage.query("flights.sql", &format!("-- public = true\n{sql}"));
        let address = stage.serve();
        let connection = connect(&address);
        let mut cursor = connection.query("flights", &[]).expect("open");
        assert_eq!(cursor.columns().expect("columns")[0].name, "i");
        let rows = all(&mut cursor).expect("rows");
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0][..expected.len()], expected, "{url}");
        let mut many = connection.query("many", &[("count", "20000")]).expect("open");
        assert_eq!(count(&mut many, 0).expect("rows"), 20_000);
    }
}

#[test]
fn several_cursors_come_over_one_connection_and_from_several_threads() {
    let mut stage = stage(&postgres(), "");
    let connection = connect(&stage.serve());
    assert_eq!(connection.cursors_max().expect("told"), 8);
    let mut cursors: Vec<_> = (0..4).map(|_| connection.query("many", &[("count", "30000")]).expect("open")).collect();
    for number in 1..=1_000 {
        for cursor in &mut cursors {
            assert_eq!(cursor.next_row().expect("a row").expect("one more")[0], Value::Int(number));
        }
    }
    let counting: Vec<_> =
        cursors.into_iter().map(|mut cursor| std::thread::spawn(move || count(&mut cursor, 1_000))).collect();
    for counted in counting {
        assert_eq!(counted.join().expect("no panic").expect("rows"), 30_000);
    }
}

#[test]
fn rows_that_are_kept_can_be_gone_back_over() {
    let mut stage = sqlite("");
    let connection = connect(&stage.serve());
    let question = || Question::Named("many".to_owned(), vec![("count".to_owned(), "50000".to_owned())]);
    let options = Options { kept_bytes: 100_000, window_bytes: 50_000 };
    let mut cursor = connection.open_cursor(question(), options).expect("open");
    for _ in 0..20_000 {
        cursor.next_row().expect("a row");
    }
    cursor.seek(19_000).expect("it is kept");
    assert_eq!(cursor.row(), 19_000);
    assert_eq!(cursor.next_row().expect("a row").expect("one")[0], Value::Int(19_001));
    for _ in 0..5 {
        cursor.seek(19_500).expect("it is kept");
        for number in 19_501..=20_000 {
            assert_eq!(cursor.next_row().expect("a row").expect("one")[0], Value::Int(number));
        }
    }
    let Err(Error::NotKept { first, last, .. }) = cursor.seek(10) else { panic!("it is not kept any more") };
    assert!(first > 10 && last >= 20_000);
    assert_eq!(code(cursor.seek(49_999)), "not_kept");
    assert_eq!(count(&mut cursor, 20_000).expect("rows"), 50_000, "and it goes on where it was");
    let mut none = connection.open_cursor(question(), Options::default()).expect("open");
    for _ in 0..20_000 {
        none.next_row().expect("a row");
    }
    assert_eq!(code(none.seek(0)), "not_kept");
}

pub(super) fn memory_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("a number")
}

#[test]
fn a_slow_reader_holds_little_of_the_servers_memory_and_none_of_its_neighbours_up() {
    let mut stage = stage(&postgres(), "");
    let address = stage.serve();
    let pid = stage.server.as_ref().expect("it runs").id();
    let connection = connect(&address);
    let open = || connection.query("many", &[("count", "1000000")]).expect("open");
    let mut slow: Vec<_> = (0..3).map(|_| open()).collect();
    for cursor in &mut slow {
        cursor.next_row().expect("a row");
    }
    let mut quick = connection.query("many", &[("count", "200000")]).expect("open");
    assert_eq!(count(&mut quick, 0).expect("rows"), 200_000);
    // Three results of 50 MB wait.
    let before = memory_kb(pid);
    std::thread::sleep(Duration::from_secs(2));
    let after = memory_kb(pid);
    assert!(after < before + 4_000 && after < 150_000, "{before} kB, then {after} kB");
    let mut first = slow.swap_remove(0);
    assert_eq!(count(&mut first, 1).expect("rows"), 1_000_000, "and whoever goes on gets all");
}

/// Queries that the database runs now for a server.
fn running(url: &str) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
               AND state = 'active' AND query LIKE '%some forty bytes%'";
    headwater_testkit::sql(url, sql).expect("told")[0][0]
        .as_deref()
        .and_then(|text| text.parse().ok())
        .expect("a number")
}

#[test]
fn who_goes_away_ends_the_query_in_the_database() {
    let url = postgres();
    let mut stage = stage(&url, "");
    let address = stage.serve();
    let connection = connect(&address);
    let endless = || connection.query("many", &[("count", "1000000000")]).expect("open");
    let (mut one, mut other) = (endless(), endless());
    one.next_row().expect("a row");
    other.next_row().expect("a row");
    assert!(wait_until(PATIENCE, || running(&url) == 2));
    drop(one);
    assert!(wait_until(PATIENCE, || running(&url) == 1), "a cursor that is dropped");
    drop(other);
    assert!(wait_until(PATIENCE, || running(&url) == 0), "and the last");
    let mut left = endless();
    left.next_row().expect("a row");
    assert_eq!(running(&url), 1);
    // As it is where the client is killed: the socket is closed, and nothing said.
    let raw = raw(&address, &[open(1, "many", "1000000000")]);
    assert!(wait_until(PATIENCE, || running(&url) == 2));
    drop(raw);
    assert!(wait_until(PATIENCE, || running(&url) == 1), "a connection that is closed");
}

#[test]
fn a_database_that_dies_is_told_and_one_that_is_back_is_used() {
    let url = postgres();
    let (address_of_database, name) = url.rsplit_once('@').expect("an address").1.split_once('/').expect("a name");
    let proxy = FaultProxy::start(address_of_database).expect("a proxy");
    let mut stage = stage(&format!("postgres://postgres@{}/{name}", proxy.address()), "");
    let connection = connect(&stage.serve());
    let mut cursor = connection.query("many", &[("count", "1000000000")]).expect("open");
    cursor.next_row().expect("a row");
    proxy.set_target("127.0.0.1:1").expect("set");
    proxy.cut_all();
    assert_eq!(code(all(&mut cursor).map(|rows| rows.len())), "database_unavailable");
    let mut next = connection.query("many", &[("count", "10")]).expect("open");
    let error = all(&mut next).expect_err("there is no database");
    assert!(error.code() == "database_unavailable" && error.is_retryable(), "{error}");
    proxy.set_target(address_of_database).expect("set");
    let mut back = connection.query("many", &[("count", "10")]).expect("open");
    assert_eq!(count(&mut back, 0).expect("rows"), 10, "over the same connection");
}

fn open(cursor: u64, name: &str, count: &str) -> Frame {
    let question = Question::Named(name.to_owned(), vec![("count".to_owned(), count.to_owned())]);
    Open { cursor, question, credit: 1 << 20 }.to_frame()
}

/// An upgraded connection on which these were sent.
fn raw(address: &str, frames: &[Frame]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let head = "GET /cursor HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: headwater-cursor/1\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut came = Vec::new();
    while !came.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).expect("an answer"), 1);
        came.push(byte[0]);
    }
    assert!(came.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&came));
    for frame in frames {
        stream.write_all(&frame.to_bytes()).expect("sent");
    }
    stream
}

/// Why the server ends the connection, after which nothing comes.
fn over(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let mut client = Client::new(1 << 22);
    client.push(&all);
    let mut last = None;
    while let Ok(Some(event)) = client.poll() {
        last = Some(event);
    }
    match last {
        Some(Event::Over(failed)) => failed.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_message_ends_the_connection_and_nothing_else() {
    let mut stage = sqlite("");
    let address = stage.serve();
    let good = connect(&address);
    for (what, bytes) in [
        ("no frame", b"GET / HTTP/1.1\r\n\r\n".repeat(10)),
        ("a frame of a sync", Frame::new(Kind::End, vec![]).to_bytes()),
        ("a server's", Frame::new(Kind::CursorEnd, vec![1, 1]).to_bytes()),
        ("a payload that is none", Frame::new(Kind::CursorOpen, vec![1, 1, 9]).to_bytes()),
        ("the number of one before", [open(1, "many", "3").to_bytes(), open(1, "many", "3").to_bytes()].concat()),
        ("2 GiB", [&[0xff, 0xff, 0xff, 0x7f, 0x31, 0, 0, 0][..], &[0; 100]].concat()),
    ] {
        let mut stream = raw(&address, &[]);
        stream.write_all(&bytes).expect("sent");
        assert_eq!(over(&mut stream), "malformed", "{what}");
    }
    let mut damaged = open(1, "many", "3").to_bytes();
    damaged[14] ^= 1;
    let mut stream = raw(&address, &[]);
    stream.write_all(&damaged).expect("sent");
    assert_eq!(over(&mut stream), "malformed");
    let mut cursor = good.query("many", &[("count", "3")]).expect("open");
    assert_eq!(count(&mut cursor, 0).expect("rows"), 3);
    let long = Question::Sql("x".repeat(2 << 20), Vec::new());
    assert_eq!(code(good.open_cursor(long, Options::default())), "question", "it is not even sent");
}

#[test]
fn what_is_no_upgrade_is_told_so() {
    let mut stage = sqlite("");
    let address = stage.serve();
    let (head, body) = get(&address, "/cursor", "");
    assert!(head.starts_with("http/1.1 426") && head.contains("upgrade: headwater-cursor/1"), "{head}");
    assert!(body.contains("upgrade_required"), "{body}");
    let mut without = Stage::alone("sqlite:HERE/central.db");
    std::fs::write(without.path("central.db"), "").expect("an empty database");
    without.query("flights.sql", "SELECT 1 AS id");
    let error = Connection::open(&server(&without.serve(), Credentials::Nothing)).expect_err("there are none");
    assert!(error.to_string().contains("[gateway.cursor]"), "{error}");
    assert!(!error.is_retryable());
    let nobody = Connection::open(&server("127.0.0.1:1", Credentials::Nothing));
    assert_eq!(code(nobody), "network");
}

/// By the certificate that is named, and by no other.
#[test]
fn rows_come_by_tls_too() {
    let mut stage = sqlite("");
    for name in ["localhost", "elsewhere"] {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        std::fs::write(stage.path(&format!("{name}.pem")), made.cert.pem()).expect("written");
        std::fs::write(stage.path(&format!("{name}.key")), made.signing_key.serialize_pem()).expect("written");
    }
    let tls = ["--set", "tls_certificate=localhost.pem", "--set", "tls_key=localhost.key"];
    let mut command = stage.command(&[&["serve", "--listen", "127.0.0.1:0"], &tls[..]].concat());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().expect("piped")), &mut line)
        .expect("it speaks");
    stage.server = Some(child);
    let port = line.trim().rsplit(':').next().expect("a port").to_owned();
    let server = |ca: &str| Server {
        url: format!("https://localhost:{port}"),
        credentials: Credentials::Nothing,
        ca_file: Some(stage.path(ca)),
    };
    let connection = Connection::open(&server("localhost.pem")).expect("a connection");
    let mut cursors: Vec<_> = (0..2).map(|_| connection.query("many", &[("count", "100000")]).expect("open")).collect();
    for cursor in &mut cursors {
        assert_eq!(count(cursor, 0).expect("rows"), 100_000);
    }
    assert_eq!(code(Connection::open(&server("elsewhere.pem"))), "network");
    assert_eq!(code(Connection::open(&server("none.pem"))), "configuration");
    let url = format!("https://localhost:{port}");
    let run = ["query", "run", "many", "count=3", "--cursor", "--server", &url, "--ca", "localhost.pem"];
    assert!(stage.ok(&run).starts_with("i\tt\n1\t"));
}

#[test]
fn users_get_what_they_may_ask_and_nobody_else_does() {
    let url = postgres();
    let mut stage = Stage::new(&url);
    stage.configure("[gateway.cursor]\n");
    stage.query("own.sql", "SELECT :s.user AS who");
    stage.query("anns.sql", "-- users = [\"ann\"]\nSELECT 1 AS a");
    for user in ["ann", "ben"] {
        stage.ok(&["user", "add", user]);
    }
    let address = stage.serve();
    let with = |credentials| Connection::open(&server(&address, credentials));
    let password = |user: &str, password: &str| Credentials::Password { user: user.into(), password: password.into() };
    assert_eq!(code(with(password("ann", "wrong"))), "unauthenticated");
    assert_eq!(code(with(Credentials::Token("none".to_owned()))), "unauthenticated");
    let ask = |connection: &Connection, name: &str| all(&mut connection.query(name, &[]).expect("open"));
    let nobody = with(Credentials::Nothing).expect("public queries may be asked");
    assert_eq!(code(ask(&nobody, "own")), "unauthenticated");
    let token = stage.ok(&["token", "ann"]).trim().to_owned();
    let ann = with(Credentials::Token(token)).expect("let in");
    assert_eq!(ask(&ann, "own").expect("rows"), [[Value::text("ann")]]);
    assert_eq!(ask(&ann, "anns").expect("rows"), [[Value::Int(1)]]);
    let ben = with(password("ben", "secret")).expect("let in");
    assert_eq!(ask(&ben, "own").expect("rows"), [[Value::text("ben")]]);
    assert_eq!(code(ask(&ben, "anns")), "forbidden");
    // Who is disabled gets no more, though the connection stands.
    stage.ok(&["user", "disable", "ann"]);
    assert!(wait_until(PATIENCE, || ask(&ann, "own").is_err()));
    assert_eq!(code(ask(&ann, "own")), "forbidden");
}

#[test]
fn sql_of_clients_is_run_where_that_is_allowed_and_by_its_own_role() {
    let url = postgres();
    let frontier = |allowed: &str| {
        format!("[gateway.frontier]\nname = \"X\"\nallowed = [{allowed}]\nusers = [\"ann\"]\nurl = {:?}\n", role(&url))
    };
    let sql = |stage: &mut Stage, sql: &str, values: &[&str]| {
        let connection = connect(&stage.serve());
        all(&mut connection.sql(sql, values).expect("open"))
    };
    let mut none = stage(&url, "");
    assert_eq!(code(sql(&mut none, "SELECT 1", &[])), "forbidden");
    headwater_testkit::sql(&url, "DROP ROLE IF EXISTS elsewhere").expect("dropped");
    let mut others = stage(&url, "sql = true");
    others.configure(&frontier("\"10.9.8.7\""));
    let refused = sql(&mut others, "SELECT 1", &[]).expect_err("not from here");
    assert!(refused.to_string().contains("not allowed here"), "{refused}");
}

#[test]
fn sql_of_clients_is_bound_limited_and_read_only() {
    let url = postgres();
    headwater_testkit::sql(&url, "CREATE TABLE own (a int); INSERT INTO own VALUES (1), (2)").expect("made");
    let mut stage = stage(&url, "sql = true");
    stage.configure(&format!("{FRONTIER}rows_max = 5\nurl = {:?}\n", role(&url)));
    let address = stage.serve();
    let (connection, server) = (connect(&address), format!("http://{address}"));
    let sql = |sql: &str, values: &[&str]| all(&mut connection.sql(sql, values).expect("open"));
    let name = url.rsplit('/').next().expect("a name");
    assert_eq!(sql("SELECT current_user::text AS u", &[]).expect("rows"), [[Value::text(format!("client_{name}"))]]);
    assert_eq!(sql("SELECT a FROM own WHERE a = ?::int", &["2"]).expect("rows"), [[Value::Int(2)]]);
    assert_eq!(code(sql("SELECT a FROM own WHERE a = ?::int", &[])), "arguments");
    for (text, values, what) in
        [("SELECT 1\0 AS a", &[][..], "the SQL"), ("SELECT ? AS a, ? AS b", &["a", "b\0"], "value 2")]
    {
        let refused = sql(text, values).expect_err("no database takes it");
        let expected = format!("{what} has a character that no database takes (NUL) (arguments)");
        assert_eq!(refused.to_string(), expected);
    }
    let run = |arguments: &[&str]| {
        stage.run(&[&["query", "run", "--cursor", "--sql", "--format", "csv", "--server", &server], arguments].concat())
    };
    let (code_of, out, said) =
        run(&["SELECT a, ?::text AS b FROM own WHERE a = ?::int", "--value", "-x y", "--value", "2"]);
    assert_eq!((code_of, out.as_str()), (Some(0), "a,b\r\n2,-x y\r\n"), "{said}");
    let (code_of, _, said) = run(&["SELECT ?::int AS a"]);
    assert!(code_of == Some(2) && said.contains("the SQL has 1 ?, and 0 values were given"), "{said}");
    let (code_of, _, said) = run(&["SELECT ?::int AS a", "a=1"]);
    assert!(code_of == Some(2) && said.contains("give them by --value"), "{said}");
    let unused = ["query", "run", "many", "count=1", "--cursor", "--server", &server, "--value", "1"];
    assert_eq!(stage.run(&unused).0, Some(2), "a named query has names for its values");
    assert_eq!(code(sql("DELETE FROM own RETURNING a", &[])), "failed");
    assert_eq!(code(sql("SELECT 1; DELETE FROM own", &[])), "failed");
    assert_eq!(code(sql("SELECT no", &[])), "failed");
    let said = sql("SELECT 1 / (a - 1) AS x FROM own", &[]).expect_err("by zero").to_string();
    assert!(said.contains("can't run the statement as it was sent; the server's log says why"), "{said}");
    let said = sql("SELECT a FORM own", &[]).expect_err("a typo").to_string();
    assert!(said.contains("can't run the statement as it was sent: syntax error at or near"), "{said}");
    assert_eq!(code(sql("SELECT FROM generate_series(1, 3)", &[])), "failed", "rows without columns");
    assert_eq!(code(sql("SELECT * FROM generate_series(1, 6)", &[])), "too_large");
    assert_eq!(sql("SELECT count(*) AS n FROM own", &[]).expect("rows"), [[Value::Int(2)]]);
}

#[test]
fn a_cursor_that_is_open_for_too_long_ends_and_so_do_too_many() {
    let mut stage = stage(&postgres(), "time_out_s = 1\ncursors_max = 1\nconnection_cursors_max = 2");
    let text = std::fs::read_to_string(stage.path("headwater.toml")).expect("written");
    std::fs::write(stage.path("headwater.toml"), text.replace("[gateway]\n", "[gateway]\nwaiting_s_max = 0.2\n"))
        .expect("written");
    let connection = connect(&stage.serve());
    let endless = || connection.query("many", &[("count", "1000000000")]).expect("open");
    let mut one = endless();
    one.next_row().expect("a row");
    let (mut two, mut three) = (endless(), endless());
    assert_eq!(code(three.next_row()), "too_many_cursors");
    assert_eq!(code(two.next_row()), "overloaded", "there is one place, and it is taken");
    let began = Instant::now();
    assert_eq!(code(all(&mut one).map(|rows| rows.len())), "timed_out");
    assert!(began.elapsed() < PATIENCE);
    let mut good = connection.query("many", &[("count", "5")]).expect("open");
    assert_eq!(count(&mut good, 0).expect("rows"), 5);
}

#[test]
fn a_server_that_ends_is_told_by_an_error_and_one_that_is_back_serves() {
    let mut stage = stage(&postgres(), "");
    let connection = connect(&stage.serve());
    let mut cursor = connection.query("many", &[("count", "1000000000")]).expect("open");
    cursor.next_row().expect("a row");
    stage.stop();
    let error = loop {
        match cursor.next_row() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("that was no end"),
            Err(error) => break error,
        }
    };
    assert!(error.code() == "network" && error.is_retryable(), "{error}");
    assert_eq!(code(connection.query("many", &[("count", "1")]).and_then(|mut it| it.next_row())), "network");
    let again = connect(&stage.serve());
    let mut cursor = again.query("many", &[("count", "5")]).expect("open");
    assert_eq!(count(&mut cursor, 0).expect("rows"), 5);
}

#[test]
fn the_command_prints_rows_as_they_come() {
    let mut stage = stage(&postgres(), "");
    // PostgreSQL itself keeps rows back until it has some kilobytes of them.
    let slow = "SELECT i, repeat('x', 20000) AS x, pg_sleep(CASE WHEN i > 3 THEN 60 ELSE 0 END)::text AS s FROM generate_series(1, 4) AS i";
    stage.query("slow.sql", &format!("-- public = true\n{slow}"));
    let address = stage.serve();
    let url = format!("http://{address}");
    let run = |arguments: &[&str]| stage.run(&[&["query", "run", "--cursor", "--server", &url], arguments].concat());
    let (code, out, said) = run(&["many", "count=3", "--format", "csv"]);
    assert_eq!((code, out.lines().count(), out.lines().next()), (Some(0), 4, Some("i,t")), "{said}");
    let (_, out, said) = run(&["many", "count=2"]);
    assert!(out.starts_with("i\tt\n1\ta text") && said.contains("2 rows"), "{out}{said}");
    let (_, out, _) = run(&["many", "count=2", "--json"]);
    assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok_and(|read| read["count"] == 2), "{out}");
    let (code, _, said) = run(&["many", "count=x"]);
    assert!(code == Some(2) && said.contains("expected a value of type int"), "{said}");
    let (code, _, said) = run(&["none"]);
    assert!(code == Some(2) && said.contains("there is no such query"), "{said}");
    assert_eq!(run(&["SELECT 1", "--sql"]).0, Some(2));
    let nobody = ["query", "run", "many", "--cursor", "--server", "http://127.0.0.1:1"];
    assert_eq!(stage.run(&nobody).0, Some(3));
    // The first row is there while the second is not.
    let mut child = stage.command(&["query", "run", "slow", "--cursor", "--server", &url, "--format", "ndjson"]);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().expect("piped")), &mut line)
        .expect("a line");
    assert!(line.starts_with("{\"i\":1,"), "{line}");
    child.kill().expect("killed");
    child.wait().expect("ended");
}
