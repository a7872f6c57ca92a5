//! What MariaDB alone has: its types, its errors by kind, connections that are lost.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_consolidated::mysql::MariaDb as Backend;
use headwater_consolidated::results::{QueryBackend as _, ReadOptions};
use headwater_consolidated::{Error, QueryConnection};
use headwater_protocol::{Decimal, Type, Value, text};
use headwater_testkit::{MariaDb, wait_until};

use super::results::{ENDLESS, read, read_with};

/// The shared server, and a fresh database in it.
fn fresh() -> (&'static MariaDb, String) {
    let server = MariaDb::shared().expect("a server");
    (server, server.create_database().expect("a database"))
}

fn connect(url: &str) -> Result<Box<dyn QueryConnection>, Error> {
    Backend::new(url).expect("an address").connect_for_queries()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Decimal(decimal) => format!("decimal {decimal}"),
        Value::Text(bytes) => format!("text {}", String::from_utf8_lossy(bytes)),
        Value::Date(days) => written(|out| text::write_date(out, *days)),
        Value::Time(micros) => written(|out| text::write_time(out, *micros)),
        Value::Timestamp(micros) => written(|out| text::write_timestamp(out, *micros)),
        Value::Timestamptz(micros) => written(|out| text::write_timestamptz(out, *micros)),
        other => format!("{other:?}"),
    }
}

fn written(write: impl FnOnce(&mut String)) -> String {
    let mut text = String::new();
    write(&mut text);
    text
}

/// Type, what is put into a column of it, the type of its column, what comes.
const VALUES: &[(&str, &str, Type, &str)] = &[
    ("BOOLEAN", "TRUE", Type::Bool, "Bool(true)"),
    ("BOOLEAN", "7", Type::Bool, "Int(7)"),
    ("TINYINT UNSIGNED", "255", Type::Int, "Int(255)"),
    ("SMALLINT", "-32768", Type::Int, "Int(-32768)"),
    ("MEDIUMINT", "-8388608", Type::Int, "Int(-8388608)"),
    ("INT UNSIGNED", "4294967295", Type::Int, "Int(4294967295)"),
    ("INT(8) ZEROFILL", "42", Type::Int, "Int(42)"),
    ("BIGINT", "-9223372036854775808", Type::Int, "Int(-9223372036854775808)"),
    ("BIGINT UNSIGNED", "9223372036854775807", Type::Int, "Int(9223372036854775807)"),
    ("BIGINT UNSIGNED", "18446744073709551615", Type::Int, "decimal 18446744073709551615"),
    ("YEAR", "2013", Type::Int, "Int(2013)"),
    ("BIT(1)", "b'1'", Type::Int, "Int(1)"),
    ("BIT(12)", "b'100000000001'", Type::Int, "Int(2049)"),
    ("BIT(64)", "~0", Type::Int, "decimal 18446744073709551615"),
    ("FLOAT", "0.1", Type::Real, "Real(0.1)"),
    ("FLOAT", "16777217", Type::Real, "Real(16777216.0)"),
    ("DOUBLE", "0.1", Type::Real, "Real(0.1)"),
    ("DOUBLE", "-1.7976931348623157e308", Type::Real, "Real(-1.7976931348623157e308)"),
    ("DECIMAL(10,2)", "-0.50", Type::Decimal, "decimal -0.50"),
    ("DECIMAL(10,0)", "0", Type::Decimal, "decimal 0"),
    ("DECIMAL(8,2) ZEROFILL", "12.5", Type::Decimal, "decimal 12.50"),
    (
        "DECIMAL(65,30)",
        "12345678901234567890123456789012345.123456789012345678901234567890",
        Type::Decimal,
        "decimal 12345678901234567890123456789012345.123456789012345678901234567890",
    ),
    ("CHAR(4)", "'ä '", Type::Text, "text ä"),
    ("VARCHAR(9) CHARACTER SET latin1", "'ä'", Type::Text, "text ä"),
    ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "'😀'", Type::Text, "text 😀"),
    ("LONGTEXT", "'long'", Type::Text, "text long"),
    ("ENUM('a', 'ä')", "'ä'", Type::Text, "text ä"),
    ("SET('a', 'b', 'c')", "'c,a'", Type::Text, "text a,c"),
    ("JSON", "'{\"a\": [1, 2.50]}'", Type::Text, "text {\"a\": [1, 2.50]}"),
    ("UUID", "'01234567-89AB-4def-8123-456789abcdef'", Type::Text, "text 01234567-89ab-4def-8123-456789abcdef"),
    ("INET6", "'2001:db8::7'", Type::Text, "text 2001:db8::7"),
    ("BINARY(3)", "x'00ff'", Type::Bytes, "Bytes([0, 255, 0])"),
    ("VARBINARY(9)", "x'00ff'", Type::Bytes, "Bytes([0, 255])"),
    ("BLOB", "x'00ff'", Type::Bytes, "Bytes([0, 255])"),
    ("LONGBLOB", "''", Type::Bytes, "Bytes([])"),
    ("DATE", "'2013-01-31'", Type::Date, "2013-01-31"),
    ("DATE", "'9999-12-31'", Type::Date, "9999-12-31"),
    ("DATE", "'0000-00-00'", Type::Date, "text 0000-00-00"),
    ("DATE", "'2013-01-00'", Type::Date, "text 2013-01-00"),
    ("TIME", "'23:59:59'", Type::Time, "23:59:59"),
    ("TIME(6)", "'00:00:00.000001'", Type::Time, "00:00:00.000001"),
    ("TIME", "'24:00:00'", Type::Time, "text 24:00:00"),
    ("TIME", "'838:59:59'", Type::Time, "text 838:59:59"),
    ("TIME(2)", "'-01:02:03.5'", Type::Time, "text -01:02:03.500000"),
    ("DATETIME", "'2013-01-31 05:00:00'", Type::Timestamp, "2013-01-31 05:00:00"),
    ("DATETIME(6)", "'1000-01-01 00:00:00.000001'", Type::Timestamp, "1000-01-01 00:00:00.000001"),
    ("DATETIME", "'0000-00-00 00:00:00'", Type::Timestamp, "text 0000-00-00 00:00:00"),
    ("TIMESTAMP NULL", "'2013-01-31 05:00:00'", Type::Timestamptz, "2013-01-31 03:00:00Z"),
    ("TIMESTAMP(3) NULL", "'2013-01-31 05:00:00.125'", Type::Timestamptz, "2013-01-31 03:00:00.125000Z"),
    ("TIMESTAMP NULL", "0", Type::Timestamptz, "text 0000-00-00 00:00:00"),
    ("INT", "NULL", Type::Int, "Null"),
];

#[test]
fn each_type_comes_as_it_is() {
    let (server, name) = fresh();
    let places = || VALUES.iter().enumerate();
    let columns: Vec<_> = places().map(|(place, (kind, ..))| format!("c{place} {kind}")).collect();
    let values: Vec<_> = VALUES.iter().map(|(_, value, ..)| *value).collect();
    // Two hours ahead, and with dates that are none.
    let sql = format!(
        "SET NAMES utf8mb4; SET time_zone = '+02:00', sql_mode = ''; CREATE TABLE v ({}); INSERT INTO v VALUES ({})",
        columns.join(", "),
        values.join(", ")
    );
    server.sql(&name, &sql).expect("a table");
    // The server is elsewhere, and it is the session that counts.
    server.sql("", "SET GLOBAL time_zone = '+05:00'").expect("set");
    let mut connection = connect(&server.url(&name)).expect("a connection");
    let found = read(&mut *connection, "SELECT * FROM v", &[]).expect("a row");
    for (place, (kind, value, expected, comes)) in places() {
        assert_eq!(found.columns[place].kind, Some(*expected), "{kind}");
        assert_eq!(shown(&found.rows[0][place]), *comes, "{value} in a {kind}");
    }
    assert_eq!(connection.columns("SELECT * FROM v", &ReadOptions::default()).expect("columns"), found.columns);
}

#[test]
fn the_files_types_go_before_the_databases() {
    let (server, name) = fresh();
    server.sql(&name, "CREATE TABLE t (id UUID, doc JSON, is_so BIT(1))").expect("a table");
    let id = "01234567-89ab-4def-8123-456789abcdef";
    server.sql(&name, &format!("INSERT INTO t VALUES ('{id}', '[1]', b'1')")).expect("a row");
    let mut connection = connect(&server.url(&name)).expect("a connection");
    let types = [("id", Type::Uuid), ("doc", Type::Json), ("is_so", Type::Bool)];
    let types = BTreeMap::from(types.map(|(name, kind)| (name.to_owned(), kind)));
    let options = ReadOptions { types, ..ReadOptions::default() };
    let found = read_with(&mut *connection, "SELECT * FROM t", &[], &options, usize::MAX).expect("a row");
    let uuid = Value::Uuid(text::parse_uuid(id).expect("a UUID"));
    assert_eq!(found.rows, [[uuid, Value::Json(b"[1]".to_vec()), Value::Bool(true)]]);
}

#[test]
fn sql_is_that_of_the_other_databases() {
    let (server, name) = fresh();
    let mut connection = connect(&server.url(&name)).expect("a connection");
    // Where a backslash began an escape the second text would not end where it does, and its name be a parameter.
    let sql = "SELECT 'a' || 'b' AS \"joined\", '\\' AS one, ':x' AS two -- it's :no\n, ?1 AS three /* ?2 ' */";
    let found = read(&mut *connection, sql, &[Value::text("it's \\ \"?\" %")]).expect("a row");
    let texts = ["ab", "\\", ":x", "it's \\ \"?\" %"].map(Value::text);
    assert_eq!(found.rows, [texts.to_vec()]);
    let names: Vec<_> = found.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["joined", "one", "two", "three"]);
}

#[test]
fn a_decimal_is_compared_to_its_last_digit() {
    let (server, name) = fresh();
    server
        .sql(&name, "CREATE TABLE t (d DECIMAL(30,10)); INSERT INTO t VALUES (12345678901234567890.0000000001)")
        .expect("a row");
    let backend = Backend::new(&server.url(&name)).expect("an address");
    let mut connection = backend.connect_for_queries().expect("a connection");
    let sql = format!("SELECT count(*) FROM t WHERE d = {}", backend.placeholder()(1, Type::Decimal));
    for (digits, count) in [("12345678901234567890.0000000001", 1), ("12345678901234567890.0000000002", 0)] {
        let value = Value::Decimal(Decimal::parse(digits).expect("a decimal"));
        assert_eq!(read(&mut *connection, &sql, &[value]).expect("a number").rows, [[Value::Int(count)]], "{digits}");
    }
    let long = Value::Decimal(Decimal::parse(&"9".repeat(36)).expect("a decimal"));
    let error = read(&mut *connection, &sql, &[long]).expect_err("it would be rounded");
    assert!(matches!(&error, Error::Parameter { detail } if detail.contains("DECIMAL(65,30)")), "{error}");
}

/// A cast would make NULL of them without a word.
#[test]
fn a_date_that_mariadb_does_not_have_is_refused() {
    let (server, name) = fresh();
    let backend = Backend::new(&server.url(&name)).expect("an address");
    let mut connection = backend.connect_for_queries().expect("a connection");
    let placeholder = backend.placeholder();
    let date = |text| text::parse_date(text).map(Value::Date).expect("a date");
    let time = |text| text::parse_timestamp(text).map(Value::Timestamp).expect("a time");
    for (kind, given) in [
        (Type::Date, ["0001-01-01", "9999-12-31"].map(date)),
        (Type::Timestamp, ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"].map(time)),
    ] {
        for value in given {
            let found =
                read(&mut *connection, &format!("SELECT {} AS d", placeholder(1, kind)), std::slice::from_ref(&value));
            assert_eq!(found.expect("a row").rows, [[value]]);
        }
    }
    for (kind, value) in [
        (Type::Date, date("+12000-01-01")),
        (Type::Date, date("-0043-03-15")),
        (Type::Date, date("infinity")),
        (Type::Timestamp, time("+12000-01-01 12:30:00")),
        (Type::Timestamp, time("-infinity")),
    ] {
        let error =
            read(&mut *connection, &format!("SELECT {} AS d", placeholder(1, kind)), &[value]).expect_err("none");
        assert!(matches!(&error, Error::Parameter { detail } if detail.contains("no date of MariaDB's")), "{error}");
    }
}

#[test]
fn errors_are_told_by_kind_and_line() {
    let (server, name) = fresh();
    let function =
        "DELIMITER //\nCREATE FUNCTION added() RETURNS INT BEGIN INSERT INTO t VALUES (9, ''); RETURN 9; END //";
    for sql in [
        "CREATE TABLE t (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO t VALUES (1, '')",
        "CREATE SEQUENCE s",
        function,
    ] {
        server.sql(&name, sql).expect(sql);
    }
    let mut connection = connect(&server.url(&name)).expect("a connection");
    for (sql, words, at) in [
        ("SELECT id\nFROM t\nWHEN 1", "syntax", Some(2)),
        ("SELECT id,\n  absent\nFROM t", "absent", Some(1)),
        ("SELECT 1\nFROM there_is_none", "there_is_none", Some(1)),
        ("SELECT id FROM t; SELECT 2", "syntax", Some(0)),
        ("DELETE FROM t RETURNING id", "expected a SELECT", None),
        ("SELECT id FROM t WHERE id = added()", "READ ONLY", None),
        ("SELECT NEXT VALUE FOR s", "READ ONLY", None),
        ("SELECT id FROM t INTO OUTFILE '/tmp/x'", "expected a SELECT", None),
        ("OPTIMIZE TABLE t", "expected a SELECT", None),
        ("/*! CHECK */ TABLE t", "expected a SELECT", None),
        ("SET @x = 1", "expected a SELECT", None),
        ("SELECT (SELECT 1 UNION SELECT 2)", "more than 1 row", None),
    ] {
        let error = read(&mut *connection, sql, &[]).expect_err(sql);
        let Error::Sql { detail, line, .. } = &error else { panic!("{sql}: {error:?}") };
        assert!(detail.contains(words) && *line == at, "{sql}: {detail} in {line:?}");
    }
    let missing = read(&mut *connection, "SELECT ?1, ?2", &[Value::Int(1)]).expect_err("there is one value");
    assert!(matches!(missing, Error::Sql { .. }), "{missing:?}");
    assert_eq!(read(&mut *connection, "SELECT count(*) FROM t", &[]).expect("it goes on").rows, [[Value::Int(1)]]);
}

#[test]
fn who_is_not_let_in_is_told_why() {
    let server = MariaDb::start().expect("a server");
    let name = server.create_database().expect("a database");
    let url = server.url(&name);
    for (url, words) in [
        (url.replace("secret", "wrong"), "check user and password"),
        (server.url("there_is_none"), "create the database"),
        (format!("{url}?require_ssl=true"), "require_ssl"),
    ] {
        let error = connect(&url).err().expect("not let in");
        assert!(matches!(&error, Error::Setup { .. }) && error.to_string().contains(words), "{error:?}");
        assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
    }
    // One of eleven is the administrator's own.
    server.sql("", "SET GLOBAL max_connections = 10").expect("set");
    let taken: Vec<_> = (0..11).map_while(|_| connect(&url).ok()).collect();
    let error = connect(&url).err().expect("there is no place");
    assert!(matches!(&error, Error::Retry { .. }) && error.to_string().contains("1040"), "{error:?}");
    drop(taken);
    assert!(wait_until(Duration::from_mins(1), || connect(&url).is_ok()), "places are given back");
    server.kill().expect("killed");
    let error = connect(&url).err().expect("nobody listens");
    assert!(matches!(&error, Error::Retry { broken: true, .. }), "{error:?}");
}

#[test]
fn a_connection_that_is_lost_is_told_from_one_that_is_not() {
    let (server, name) = fresh();
    let mut connection = connect(&server.url(&name)).expect("a connection");
    let id = |connection: &mut dyn QueryConnection| match read(connection, "SELECT connection_id()", &[])
        .expect("a row")
        .rows[0][0]
    {
        Value::Int(id) => id,
        ref other => panic!("{other:?}"),
    };
    let its = id(&mut *connection);
    // Nothing runs: it is no reason to end what comes next.
    connection.canceller().expect("it can")();
    assert_eq!(id(&mut *connection), its);
    server.sql("", &format!("KILL {its}")).expect("killed");
    let lost = read_raw(&mut *connection).expect_err("it is gone");
    assert!(lost.is_broken(), "{lost:?}");

    let mut connection = connect(&server.url(&name)).expect("a connection");
    let its = id(&mut *connection);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let options = ReadOptions { time_out: Duration::from_mins(5), ..ReadOptions::default() };
            let mut nothing = Nothing;
            connection.read(ENDLESS, &[], &options, &mut nothing)
        });
        let is_at_it = || {
            let sql = format!("SELECT 1 FROM information_schema.processlist WHERE id = {its} AND command = 'Execute'");
            !server.sql("", &sql).expect("asked").is_empty()
        };
        assert!(wait_until(Duration::from_mins(1), is_at_it), "it runs");
        server.sql("", &format!("KILL {its}")).expect("killed");
        let lost = running.join().expect("no panic").expect_err("it is gone");
        assert!(lost.is_broken(), "{lost:?}");
    });
}

#[test]
fn what_a_query_leaves_in_its_session_is_gone_for_the_next() {
    let (server, name) = fresh();
    let mut connection = connect(&server.url(&name)).expect("a connection");
    read(&mut *connection, "SELECT @secret := 'mine', get_lock('held', 0), last_insert_id(7)", &[]).expect("a row");
    // As the pool does before the next user has it.
    connection.rollback().expect("ended");
    let sql = "SELECT @secret IS NULL, is_free_lock('held'), last_insert_id() = 0";
    let found = read(&mut *connection, sql, &[]).expect("a row");
    assert_eq!(found.rows[0], vec![Value::Int(1); 3]);
}

struct Nothing;

impl headwater_consolidated::results::ResultSink for Nothing {
    fn begin(&mut self, _: &[headwater_consolidated::results::ResultColumn]) -> Result<(), Error> {
        Ok(())
    }

    fn row(&mut self, _: &[headwater_protocol::ValueRef<'_>]) -> Result<(), Error> {
        Ok(())
    }
}

fn read_raw(connection: &mut dyn QueryConnection) -> Result<(), Error> {
    connection.read("SELECT 1", &[], &ReadOptions::default(), &mut Nothing)
}
