//! Every value comes back as it went: uploaded by one remote, downloaded by another, by both reads.

use headwater_consolidated::{Dialect, Plan, track};
use headwater_protocol::message::Change;
use headwater_protocol::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY};
use headwater_protocol::{Decimal, Row, Type, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::database::Database;
use super::replica::Replica;
use super::values::{decimal, int};

const MODEL: &str = r#"
    name = "types"
    version = 1
    [tables.every]
    key = ["id"]
    conflict = "remote_wins"
    [tables.every.columns]
    id = "int not null"
    bool = "bool"
    int = "int"
    real = "real"
    decimal = "decimal"
    text = "text"
    bytes = "bytes"
    date = "date"
    time = "time"
    timestamp = "timestamp"
    timestamptz = "timestamptz"
    uuid = "uuid"
    json = "json"
"#;

fn every(database: &Database) -> Plan {
    database.application(match database.dialect() {
        Dialect::Sqlite => {
            "CREATE TABLE every (id INTEGER NOT NULL PRIMARY KEY, bool BOOLEAN, int BIGINT, real REAL, decimal DECIMAL_TEXT, \
             text TEXT, bytes BLOB, date DATE_TEXT, time TIME_TEXT, timestamp TIMESTAMP_TEXT, timestamptz TIMESTAMPTZ_TEXT, \
             uuid UUID_TEXT, json JSON_TEXT)"
        }
        Dialect::Postgres => {
            "CREATE TABLE every (id bigint NOT NULL PRIMARY KEY, bool bool, int bigint, real float8, decimal numeric, \
             text text, bytes bytea, date date, time time, timestamp timestamp, timestamptz timestamptz, uuid uuid, json json)"
        }
    });
    let plan = super::database::plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

/// The same to the bit.
fn assert_same(sent: &Row, came: &Row) {
    assert_eq!(sent.len(), came.len());
    for (sent, came) in sent.iter().zip(came) {
        match (sent, came) {
            (Value::Real(a), Value::Real(b)) => {
                assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{a} {b}");
            }
            _ => assert_eq!(sent, came),
        }
    }
}

/// Sends rows up from one remote and down to two others: one that has synced before, and one that has not.
fn round_trip(database: &Database, plan: &Plan, rows: &[Row]) {
    let mut before = Replica::synced(database, plan, "anna");
    let mut sender = Replica::synced(database, plan, "anna");
    for row in rows {
        sender.insert(plan, "every", row.clone());
    }
    let synced = sender.sync(database, plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    assert_eq!(synced.count(), 0, "what came back was not as it was sent: {:?}", synced.upserts);
    before.sync(database, plan);
    let fresh = Replica::synced(database, plan, "anna");
    for remote in [&before, &fresh] {
        let came = remote.table(plan, "every");
        let mut sent = rows.to_vec();
        sent.sort_by_key(|row| match row[0] {
            Value::Int(id) => id,
            _ => 0,
        });
        assert_eq!(came.len(), sent.len());
        sent.iter().zip(&came).for_each(|(sent, came)| assert_same(sent, came));
    }
    // And as old images: an update of each is no conflict.
    for row in rows {
        let mut changed = row.clone();
        changed[1] = Value::Bool(row[1] != Value::Bool(true));
        sender.update(plan, "every", changed);
    }
    let synced = sender.sync(database, plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    assert_eq!(synced.uploaded.map(|uploaded| uploaded.counts.updated), Some(rows.len() as u64));
}

pub(crate) fn values_come_back_exactly(database: &Database) {
    let plan = every(database);
    let row = |id: i64, values: [Value; 12]| -> Row { std::iter::once(int(id)).chain(values).collect() };
    let sixty = "-123456789012345678901234567890.123456789012345678901234567890";
    let rows = [
        row(1, std::array::from_fn(|_| Value::Null)),
        row(
            2,
            [
                Value::Bool(true),
                int(i64::MIN),
                Value::Real(0.1),
                decimal(sixty),
                Value::text("grüße, 世界 🦀"),
                Value::Bytes((0..=255).collect()),
                Value::Date(15_706),
                Value::Time(86_399_999_999),
                Value::Timestamp(1_357_034_400_123_456),
                Value::Timestamptz(-1),
                Value::Uuid(*b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"),
                Value::Json(br#"{"b": 1, "a":  [1e400, "\u0041"]}"#.to_vec()),
            ],
        ),
        row(
            3,
            [
                Value::Bool(false),
                int(i64::MAX),
                Value::Real(f64::NAN),
                decimal("NaN"),
                Value::text(""),
                Value::Bytes(Vec::new()),
                Value::Date(POSITIVE_INFINITY),
                Value::Time(0),
                Value::Timestamp(NEGATIVE_INFINITY),
                Value::Timestamptz(POSITIVE_INFINITY),
                Value::Uuid([0; 16]),
                Value::Json(b"5".to_vec()),
            ],
        ),
        row(
            4,
            [
                Value::Null,
                int(0),
                Value::Real(f64::NEG_INFINITY),
                decimal("1.50"),
                Value::text("12"),
                Value::Bytes(vec![0]),
                Value::Date(-719_528),
                Value::Time(1),
                Value::Timestamp(253_402_300_800_000_000),
                Value::Timestamptz(0),
                Value::Uuid([255; 16]),
                Value::Json(b"null".to_vec()),
            ],
        ),
    ];
    round_trip(database, &plan, &rows);
}

/// The first and the last that PostgreSQL has, and on both sides of the last timestamp that is a number on the wire.
pub(crate) fn the_ends_of_time_come_back_exactly(database: &Database) {
    let plan = every(database);
    let row = |id: i64, date: i64, timestamp: Value, instant: Value| -> Row {
        let mut row = vec![Value::Null; 13];
        row[0] = int(id);
        (row[7], row[9], row[10]) = (Value::Date(date), timestamp, instant);
        row
    };
    let number = |id, date, micros| row(id, date, Value::Timestamp(micros), Value::Timestamptz(micros));
    let late = |id, text: &str| row(id, 2_145_031_948, Value::text(text), Value::text(format!("{text}Z")));
    let rows = [
        number(1, -2_440_588, -210_866_803_200_000_000),
        number(2, NEGATIVE_INFINITY, NEGATIVE_INFINITY),
        number(3, POSITIVE_INFINITY, i64::MAX - 1),
        late(4, "+294247-01-10 04:00:54.775807"),
        late(5, "+294276-12-31 23:59:59.999999"),
        late(6, "+294250-02-28 00:00:00"),
    ];
    round_trip(database, &plan, &rows);
}

fn value(kind: Type) -> BoxedStrategy<Value> {
    match kind {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int => any::<i64>().prop_map(Value::Int).boxed(),
        Type::Real => any::<f64>().prop_map(Value::Real).boxed(),
        Type::Decimal => "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,30})?"
            // PostgreSQL's numeric has no negative zero.
            .prop_filter("-0", |text| !text.starts_with('-') || text.bytes().any(|b| (b'1'..=b'9').contains(&b)))
            .prop_filter_map("a decimal", |text| Decimal::parse(&text))
            .prop_map(Value::Decimal)
            .boxed(),
        Type::Text => "\\PC{0,40}".prop_map(Value::text).boxed(),
        Type::Bytes => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes).boxed(),
        // From 4713 BC to the year 5874897, PostgreSQL's range.
        Type::Date => (-2_440_588..=2_145_031_948i64).prop_map(Value::Date).boxed(),
        Type::Time => (0..=86_400_000_000i64).prop_map(Value::Time).boxed(),
        Type::Timestamp => (-210_866_803_200_000_000..9_223_371_331_200_000_000i64).prop_map(Value::Timestamp).boxed(),
        Type::Timestamptz => {
            (-210_866_803_200_000_000..9_223_371_331_200_000_000i64).prop_map(Value::Timestamptz).boxed()
        }
        Type::Uuid => any::<[u8; 16]>().prop_map(Value::Uuid).boxed(),
        Type::Json => "[1-9][0-9]{0,4}|\"[a-z ]{0,9}\"|\\[\\]|\\{ \"a\" : true \\}"
            .prop_map(|t| Value::Json(t.into_bytes()))
            .boxed(),
    }
}

pub(crate) fn random_rows_come_back_exactly(database: &Database) {
    let plan = every(database);
    let columns: Vec<BoxedStrategy<Value>> =
        Type::ALL.iter().map(|kind| prop_oneof![1 => Just(Value::Null), 9 => value(*kind)].boxed()).collect();
    let rows = proptest::collection::vec(columns, 1..30);
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases: 20, ..Config::default() });
    let checked = runner.run(&rows, |rows| {
        database.application("DELETE FROM every");
        let rows: Vec<Row> = (1..).zip(rows).map(|(id, row)| std::iter::once(int(id)).chain(row).collect()).collect();
        round_trip(database, &plan, &rows);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}

/// What an application spelled in its own way: SQLite keeps it; PostgreSQL has types, and what it makes of the value comes back. In a
/// key, where the remote would then have two rows, it is refused.
pub(crate) fn own_spellings_end_the_same_on_both_sides(database: &Database) {
    database.application(match database.dialect() {
        Dialect::Sqlite => "CREATE TABLE spelled (id UUID_TEXT NOT NULL PRIMARY KEY, at TIMESTAMPTZ_TEXT)",
        Dialect::Postgres => "CREATE TABLE spelled (id uuid NOT NULL PRIMARY KEY, at timestamptz)",
    });
    let model = "name = \"spelled\"\nversion = 1\n[tables.spelled]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
                 [tables.spelled.columns]\nid = \"uuid not null\"\nat = \"timestamptz\"";
    let plan = super::database::plan(model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    let key = Value::Uuid([0xab; 16]);
    remote.insert(&plan, "spelled", vec![key.clone(), Value::text("2013-01-01 05:00:00.5Z")]);
    remote.insert(&plan, "spelled", vec![Value::text("CDCDCDCD-CDCD-CDCD-CDCD-CDCDCDCDCDCD"), Value::Null]);
    let synced = remote.sync(database, &plan);
    let has_types = database.dialect() == Dialect::Postgres;
    assert_eq!(synced.refusals(), if has_types { vec![(1, "data")] } else { vec![] });
    if has_types {
        remote.rows.retain(|_, row| row[0] == key); // the one that is set aside
    }
    remote.assert_equals_fresh(database, &plan);
    let mut changed = remote.table(&plan, "spelled").into_iter().find(|row| row[0] == key).expect("the row");
    // What SQLite's CURRENT_TIMESTAMP gives is in UTC.
    for spelled in ["2014-01-01 05:00:00.25Z", "2014-01-01 05:00:00", "2014-01-01T05:00Z", "2014-01-01"] {
        changed[1] = Value::text(spelled);
        remote.update(&plan, "spelled", changed.clone());
        assert!(remote.sync(database, &plan).outcomes().is_empty(), "{spelled}");
        changed = remote.table(&plan, "spelled").into_iter().find(|row| row[0] == key).expect("the row");
    }
    remote.assert_equals_fresh(database, &plan);
}

/// Applications keep seconds since 1970 or Julian days in a DATETIME column of a SQLite head. Remotes that older versions made have
/// texts of the same digits there.
pub(crate) fn numbers_in_columns_of_dates_meet_no_conflict(database: &Database) {
    database.application(
        "CREATE TABLE visit (id INTEGER PRIMARY KEY, at DATETIME, day DATE, clock TIME, tag UUID, doc JSON, note TEXT); \
         INSERT INTO visit VALUES (1, 1704067200, 2460310.5, 43200, 7, 5, 'a'), (2, '2024-01-01 00:00:00', '2024-01-01', NULL, NULL, '{}', 'b'), \
         (3, 1704067200, 2460310.123456789, 43200, 7, 5, 'c')",
    );
    let model = "name = \"visits\"\nversion = 1\n[tables.visit]\nkey = [\"id\"]\nconflict = \"consolidated_wins\"\n\
                 [tables.visit.columns]\nid = \"int not null\"\nat = \"timestamp\"\nday = \"date\"\nclock = \"time\"\n\
                 tag = \"uuid\"\ndoc = \"json\"\nnote = \"text\"";
    let plan = super::database::plan(model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    let rows = remote.table(&plan, "visit");
    assert_eq!(rows[0][1..5], [int(1_704_067_200), Value::Real(2_460_310.5), int(43_200), int(7)]);
    for mut row in rows.clone() {
        row[6] = Value::text("edited");
        remote.update(&plan, "visit", row);
    }
    assert_eq!(remote.sync(database, &plan).outcomes(), []);
    remote.assert_equals_fresh(database, &plan);

    // As an older file has them, by SQLite's own conversion.
    let as_text = |value: &Value| match value {
        Value::Int(number) => Value::text(number.to_string()),
        Value::Real(real) if real.to_string().ends_with(".5") => Value::text("2460310.5"),
        Value::Real(_) => Value::text("2460310.12345679"),
        other => other.clone(),
    };
    for row in remote.table(&plan, "visit") {
        let old: Row = row[..1].iter().cloned().chain(row[1..].iter().map(as_text)).collect();
        let mut new = old.clone();
        new[6] = Value::text("edited again");
        remote.send(super::replica::find(&plan, "visit"), Change { old: Some(old), new: Some(new) });
    }
    assert_eq!(remote.sync(database, &plan).outcomes(), []);
    assert_eq!(
        database
            .number("SELECT count(*) FROM visit WHERE note = 'edited again' AND (typeof(at) = 'integer' OR id = 2)"),
        3
    );
    // A text of other digits is another value.
    let mut row = remote.table(&plan, "visit").remove(0);
    row[1] = Value::text("1704067201");
    let mut new = row.clone();
    new[6] = Value::text("late");
    remote.send(super::replica::find(&plan, "visit"), Change { old: Some(row), new: Some(new) });
    assert_eq!(remote.sync(database, &plan).outcomes().len(), 1);
}

/// Such a number names a partition too.
pub(crate) fn numbers_in_columns_of_dates_are_partitions(database: &Database) {
    database.application(
        "CREATE TABLE holder (name TEXT, at DATETIME); INSERT INTO holder VALUES ('anna', 1704067200), ('anna', '2024-01-01 00:00:00'), ('ben', 2460310.5); \
         CREATE TABLE visit (id INTEGER PRIMARY KEY, at DATETIME NOT NULL, note TEXT); \
         INSERT INTO visit VALUES (1, 1704067200, 'a'), (2, '2024-01-01 00:00:00', 'b'), (3, 2460310.5, 'c'), (4, 1704067201, 'd')",
    );
    let model = "name = \"visits\"\nversion = 1\n[partitions.day]\ncolumns = { at = \"timestamp\" }\n\
                 members = \"SELECT at FROM holder WHERE name = :s.user\"\n\
                 [tables.visit]\nkey = [\"id\"]\npartition = \"day\"\n\
                 columns = { id = \"int not null\", at = \"timestamp not null\", note = \"text\" }";
    let plan = super::database::plan(model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let ids = |remote: &Replica| remote.table(&plan, "visit").iter().map(|row| row[0].clone()).collect::<Vec<_>>();
    let (mut anna, ben) = (Replica::synced(database, &plan, "anna"), Replica::synced(database, &plan, "ben"));
    assert_eq!((ids(&anna), ids(&ben)), (vec![int(1), int(2)], vec![int(3)]));
    let mut row = anna.table(&plan, "visit").remove(0);
    row[2] = Value::text("edited");
    anna.update(&plan, "visit", row);
    assert_eq!(anna.sync(database, &plan).outcomes(), []);
    database.application("UPDATE visit SET note = 'late' WHERE id = 3; DELETE FROM holder WHERE at = 1704067200");
    anna.sync(database, &plan);
    assert_eq!(ids(&anna), [int(2)]);
    anna.assert_equals_fresh(database, &plan);
}
