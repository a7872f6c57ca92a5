//! Every value goes in and comes out exactly, and as the server itself understands it.

use std::fmt::Write as _;

use headwater_consolidated::{Connection, Mode, TablePlan};
use headwater_protocol::decimal::Decimal;
use headwater_protocol::message::RefusalCode;
use headwater_protocol::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY};
use headwater_protocol::{Row, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{Database, plan, whole};

const SIXTY_DIGITS: &str = "123456789012345678901234567890.123456789012345678901234567890";

/// One column: model type, database type, values and the server's text of each.
type Case = (&'static str, &'static str, Vec<(Value, &'static str)>);

fn cases() -> Vec<Case> {
    let decimal = |text| Value::Decimal(Decimal::parse(text).expect(text));
    let json = |text: &str| Value::Json(text.as_bytes().to_vec());
    vec![
        ("bool", "boolean", vec![(Value::Bool(true), "true"), (Value::Bool(false), "false")]),
        ("int", "smallint", vec![(Value::Int(-32_768), "-32768"), (Value::Int(32_767), "32767")]),
        ("int", "integer", vec![(Value::Int(-2_147_483_648), "-2147483648")]),
        (
            "int",
            "bigint",
            vec![(Value::Int(i64::MIN), "-9223372036854775808"), (Value::Int(i64::MAX), "9223372036854775807")],
        ),
        ("int", "oid", vec![(Value::Int(4_294_967_295), "4294967295")]),
        ("real", "real", vec![(Value::Real(1.5), "1.5"), (Value::Real(f64::INFINITY), "Infinity")]),
        (
            "real",
            "double precision",
            vec![
                (Value::Real(0.1), "0.1"),
                (Value::Real(-0.0), "-0"),
                (Value::Real(f64::NEG_INFINITY), "-Infinity"),
                (Value::Real(5e-324), "5e-324"),
            ],
        ),
        (
            "decimal",
            "numeric",
            vec![
                (decimal(SIXTY_DIGITS), SIXTY_DIGITS),
                (
                    decimal("-0.00000000000000000000000000000000000000000001"),
                    "-0.00000000000000000000000000000000000000000001",
                ),
                (decimal("1.50"), "1.50"),
                (decimal("10000"), "10000"),
                (decimal("NaN"), "NaN"),
                (decimal("Infinity"), "Infinity"),
                (decimal("-Infinity"), "-Infinity"),
                (decimal("0.000"), "0.000"),
            ],
        ),
        (
            "decimal(30,6)",
            "numeric(30,6)",
            vec![(decimal("123456789.120000"), "123456789.120000"), (decimal("-0.000001"), "-0.000001")],
        ),
        ("text", "text", vec![(Value::text(""), ""), (Value::text("a'\"\\\n\u{1F600}é"), "a'\"\\\n\u{1F600}é")]),
        ("text", "varchar(8)", vec![(Value::text("eight   "), "eight   ")]),
        ("text", "character(4)", vec![(Value::text("ab  "), "ab")]),
        ("text", "name", vec![(Value::text("n"), "n")]),
        ("bytes", "bytea", vec![(Value::Bytes(vec![]), "\\x"), (Value::Bytes(vec![0, 1, 255]), "\\x0001ff")]),
        (
            "date",
            "date",
            vec![
                (Value::Date(0), "1970-01-01"),
                (Value::Date(-719_529), "0002-12-31 BC"),
                (Value::Date(-2_440_588), "4714-11-24 BC"),
                (Value::Date(2_145_042_905), "5874897-12-31"),
                (Value::Date(POSITIVE_INFINITY), "infinity"),
                (Value::Date(NEGATIVE_INFINITY), "-infinity"),
            ],
        ),
        (
            "time",
            "time",
            vec![(Value::Time(86_399_999_999), "23:59:59.999999"), (Value::Time(86_400_000_000), "24:00:00")],
        ),
        (
            "timestamp",
            "timestamp",
            vec![
                (Value::Timestamp(1), "1970-01-01 00:00:00.000001"),
                (Value::Timestamp(-1), "1969-12-31 23:59:59.999999"),
                (Value::Timestamp(-210_866_803_200_000_000), "4714-11-24 00:00:00 BC"),
                (Value::Timestamp(POSITIVE_INFINITY), "infinity"),
                (Value::Timestamp(NEGATIVE_INFINITY), "-infinity"),
            ],
        ),
        (
            "timestamptz",
            "timestamptz",
            vec![(Value::Timestamptz(1_118_313_000_123_456), "2005-06-09 10:30:00.123456+00")],
        ),
        ("uuid", "uuid", vec![(Value::Uuid([0xab; 16]), "abababab-abab-abab-abab-abababababab")]),
        ("json", "json", vec![(json(" {\"b\": 1,  \"a\": 1.0}"), " {\"b\": 1,  \"a\": 1.0}")]),
        ("json", "jsonb", vec![(json("{\"a\": 1.0, \"b\": null}"), "{\"a\": 1.0, \"b\": null}")]),
        ("text", "mood", vec![(Value::text("calm"), "calm")]),
        ("int", "score", vec![(Value::Int(7), "7")]),
        ("text", "label", vec![(Value::text("x"), "x")]),
        ("text", "inet", vec![(Value::text("10.0.0.1/8"), "10.0.0.1/8")]),
        ("text", "interval", vec![(Value::text("-1 days +00:00:00.000001"), "-1 days +00:00:00.000001")]),
        ("text", "timetz", vec![(Value::text("10:30:00+02"), "10:30:00+02")]),
        ("text", "integer[]", vec![(Value::text("{1,NULL,3}"), "{1,NULL,3}")]),
        ("text", "int4range", vec![(Value::text("[1,5)"), "[1,5)")]),
        ("text", "point", vec![(Value::text("(0.1,2)"), "(0.1,2)")]),
        ("text", "tsvector", vec![(Value::text("'a':1 'b'"), "'a':1 'b'")]),
        ("text", "bit(3)", vec![(Value::text("101"), "101")]),
        ("text", "xml", vec![(Value::text("<a/>"), "<a/>")]),
        ("text", "money", vec![(Value::text("$1,234.56"), "$1,234.56")]),
    ]
}

/// A table with a column for each case (`c0`, `c1`, ...), and the model of it.
fn all_types() -> (Database, TablePlan) {
    let mut columns = String::new();
    let mut model = String::new();
    for (place, (kind, declared, _)) in cases().iter().enumerate() {
        let _ = write!(columns, ", c{place} {declared}");
        let _ = writeln!(model, "c{place} = \"{kind}\"");
    }
    let database = Database::with(&format!(
        "CREATE TYPE mood AS ENUM ('calm', 'wild'); CREATE DOMAIN points AS int; CREATE DOMAIN score AS points CHECK (VALUE < 100);
         CREATE DOMAIN label AS varchar(3); CREATE TABLE t (id int PRIMARY KEY{columns})"
    ));
    let model = format!("[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"int not null\"\n{model}");
    (database, plan(&model).tables.remove(0))
}

/// Row after row, each column's next value; NULL where it has no more.
fn rows() -> (Vec<Row>, Vec<Vec<&'static str>>) {
    let cases = cases();
    let longest = cases.iter().map(|(_, _, values)| values.len()).max().unwrap_or_default();
    let row = |number: usize| {
        let values = cases.iter().map(|(_, _, values)| values.get(number).map_or(Value::Null, |v| v.0.clone()));
        std::iter::once(Value::Int(number as i64)).chain(values).collect()
    };
    let text = |number: usize| cases.iter().map(|(_, _, values)| values.get(number).map_or("NULL", |v| v.1)).collect();
    ((0..=longest).map(row).collect(), (0..=longest).map(text).collect())
}

fn insert(connection: &mut dyn Connection, table: &TablePlan, rows: &[Row]) {
    connection.begin(Mode::Upload).expect("begin");
    let inserted = connection.insert(table, &rows.iter().collect::<Vec<_>>()).expect("inserted");
    assert_eq!(inserted, headwater_consolidated::backend::Inserted::All);
    connection.commit().expect("committed");
}

#[test]
fn every_type_round_trips_and_means_the_same_to_the_server() {
    let (database, table) = all_types();
    let mut connection = database.connect();
    let (rows, texts) = rows();
    insert(&mut *connection, &table, &rows);
    let shown: Vec<String> = (0..cases().len()).map(|place| format!("c{place}::text")).collect();
    let server = database.sql(&format!("SET TimeZone = 'UTC'; SELECT {} FROM t ORDER BY id", shown.join(", ")));
    assert_eq!(server, texts);
    assert_eq!(whole(&mut *connection, &table, &[]).upserts, rows);
    let keys: Vec<Row> = rows.iter().map(|row| vec![row[0].clone()]).collect();
    connection.begin(Mode::Upload).expect("begin");
    assert_eq!(connection.fetch(&table, &keys, true).expect("fetched"), rows);
    // As an update, over the row before it.
    let turned: Vec<Row> = rows
        .iter()
        .zip(rows.iter().cycle().skip(1))
        .map(|(row, next)| row[..1].iter().chain(&next[1..]).cloned().collect())
        .collect();
    let changed = connection.update(&table, &turned.iter().collect::<Vec<_>>()).expect("updated");
    assert_eq!(changed, rows.len() as u64);
    assert_eq!(connection.fetch(&table, &keys, true).expect("fetched"), turned);
    connection.commit().expect("committed");
}

#[test]
fn nan_is_kept_and_timestamps_at_the_end_of_time_travel_as_text() {
    let database = Database::with(
        "CREATE TABLE t (id int PRIMARY KEY, f float8, z timestamptz); INSERT INTO t VALUES (1, 'NaN', '294276-12-31 23:59:59.999999+00')",
    );
    let model =
        "[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"int not null\"\nf = \"real\"\nz = \"timestamptz\"";
    let table = plan(model).tables.remove(0);
    let rows = whole(&mut *database.connect(), &table, &[]).upserts;
    assert!(matches!(rows[0][1], Value::Real(number) if number.is_nan()));
    assert_eq!(rows[0][2], Value::text("+294276-12-31 23:59:59.999999Z"));
}

#[test]
fn what_a_column_can_not_hold_refuses_the_call_by_the_columns_name() {
    let (database, table) = all_types();
    let mut connection = database.connect();
    let place = |declared: &str| cases().iter().position(|case| case.1 == declared).expect(declared) + 1;
    let bad = [
        ("smallint", Value::Int(32_768)),
        ("integer", Value::text("1")),
        ("real", Value::Real(1e300)),
        ("text", Value::Text(b"a\0b".to_vec())),
        ("text", Value::Text(vec![0xff])),
        ("date", Value::Date(i64::MAX - 1)),
        ("timestamp", Value::Timestamp(i64::MIN + 1)),
        ("numeric", Value::Decimal(Decimal::parse(&"9".repeat(140_000)).expect("a decimal"))),
        ("numeric(30,6)", Value::Decimal(Decimal::parse(&"9".repeat(25)).expect("a decimal"))),
        ("varchar(8)", Value::text("nine chars")),
        ("json", Value::Json(b"{".to_vec())),
        ("jsonb", Value::Json(b"\"\\u0000\"".to_vec())),
        ("mood", Value::text("angry")),
        ("score", Value::Int(100)),
        ("inet", Value::text("nowhere")),
    ];
    for (declared, value) in bad {
        let place = place(declared);
        let mut row: Row = vec![Value::Null; table.types.len()];
        row[0] = Value::Int(1);
        let good = row.clone();
        row[0] = Value::Int(2);
        row[place] = value;
        connection.begin(Mode::Upload).expect("begin");
        let error = connection.insert(&table, &[&good, &row]).expect_err(declared);
        let refusal = error.refusal().unwrap_or_else(|| panic!("{declared}: {error}"));
        let expected = if declared == "score" { RefusalCode::Check } else { RefusalCode::Data };
        assert_eq!(refusal.code, expected, "{declared}: {error}");
        if matches!(declared, "smallint" | "integer" | "real" | "text" | "date" | "timestamp" | "numeric") {
            let column = format!("\"c{}\"", place - 1);
            assert!(refusal.message.contains(&column), "{declared}: {}", refusal.message);
        }
        // PostgreSQL names no column for these.
        let told = match declared {
            "varchar(8)" => "too long",
            "mood" | "json" => "does not read",
            "numeric(30,6)" => "a number beyond",
            _ => "",
        };
        assert!(refusal.message.contains(told), "{declared}: {}", refusal.message);
        connection.rollback().expect("rolled back");
    }
    assert_eq!(database.sql("SELECT count(*) FROM t"), [["0"]], "a row beside a refused one is not inserted");
}

#[test]
fn any_decimal_is_to_the_server_what_its_text_is() {
    let database = Database::with("CREATE TABLE t (id int PRIMARY KEY, n numeric)");
    let model = "[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"int not null\"\nn = \"decimal\"";
    let table = plan(model).tables.remove(0);
    let connection = std::cell::RefCell::new(database.connect());
    let text =
        "(0|-?[1-9][0-9]{0,70}|-?[1-9]0{0,20}|0\\.0{1,20}|-?0\\.[0-9]{0,30}[1-9]|-?[1-9][0-9]{0,40}\\.[0-9]{1,40})";
    let batches = proptest::collection::vec(text, 1..200);
    let mut runner = TestRunner::new(Config { cases: 16, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&batches, |texts| {
        let rows: Vec<Row> = (0i64..)
            .zip(&texts)
            .map(|(id, text)| vec![Value::Int(id), Value::Decimal(Decimal::parse(text).expect("a decimal"))])
            .collect();
        database.sql("TRUNCATE t");
        insert(&mut **connection.borrow_mut(), &table, &rows);
        let server: Vec<String> = database.sql("SELECT n::text FROM t ORDER BY id").into_iter().flatten().collect();
        prop_assert_eq!(&server, &texts);
        let written: Vec<String> = (0..).zip(&texts).map(|(id, text): (i32, _)| format!("({id}, '{text}')")).collect();
        database.sql(&format!("TRUNCATE t; INSERT INTO t VALUES {}", written.join(", ")));
        prop_assert_eq!(whole(&mut **connection.borrow_mut(), &table, &[]).upserts, rows);
        Ok(())
    });
    outcome.expect("the server and the codec agree");
}
