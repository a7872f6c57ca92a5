//! Rows that SQLite is given just as they came: where that is trusted, and which values. (PostgreSQL's are in `tests/postgres`.)

use headwater_consolidated::backend::EncodedChanges;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend as _, Connection, Error, Mode, Plan, track};
use headwater_protocol::message::{Change, ChangeOp, RefusalCode};
use headwater_protocol::row::put_row;
use headwater_protocol::{Decimal, Row, Value};

use super::database::{Database, plan};

const MODEL: &str = "name = \"plain\"\nversion = 1\n[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\n\
    id = \"int not null\"\nnote = \"text\"\nprice = \"decimal\"\nday = \"date\"\npart = \"real\"";
const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT, price DECIMAL_TEXT, day DATE, part REAL)";

fn row(id: i64, note: &str) -> Row {
    let price = Decimal::parse("1.50").expect("a decimal");
    vec![Value::Int(id), Value::text(note), Value::Decimal(price), Value::Date(-3), Value::Real(2.0)]
}

/// An upload into a table that was made so.
fn begun(database: &Database, table: &str) -> (Plan, Box<dyn Connection>) {
    database.application(table);
    let plan = plan(MODEL);
    let mut connection = database.connect();
    track::track(&mut *connection, &plan).expect("tracked");
    connection.begin(Mode::Upload).expect("begun");
    (plan, connection)
}

/// Makes one change as it came.
fn change(connection: &mut dyn Connection, plan: &Plan, change: &Change, compares: bool) -> bool {
    let mut bytes = Vec::new();
    change.write(&mut bytes, &plan.tables[0].types);
    let changes = EncodedChanges::new(change.op(), &bytes, 1);
    connection.change_plain(&plan.tables[0], changes, compares).expect("made, or not")
}

fn insert(connection: &mut dyn Connection, plan: &Plan, rows: &[Row]) -> Result<bool, Error> {
    let mut bytes = Vec::new();
    for row in rows {
        bytes.push(ChangeOp::Insert as u8);
        put_row(&mut bytes, &plan.tables[0].types, row);
    }
    connection.change_plain(&plan.tables[0], EncodedChanges::new(ChangeOp::Insert, &bytes, rows.len()), true)
}

#[test]
fn values_are_stored_as_they_came() {
    let database = Database::sqlite();
    let (plan, mut connection) = begun(&database, TABLE);
    assert!(connection.takes_plain(&plan.tables[0], ChangeOp::Insert).expect("asked"));
    let mut odd = row(2, "");
    odd[1] = Value::Text(b"a\0\xff".to_vec());
    odd[4] = Value::Real(-0.0);
    let rows = [row(1, "12"), odd, vec![Value::Int(3), Value::Null, Value::Null, Value::Null, Value::Real(f64::NAN)]];
    assert!(insert(&mut *connection, &plan, &rows).expect("inserted"));
    assert!(connection.stayed_plain(&[&plan.tables[0]]).expect("asked"));
    let keys: Vec<Row> = (1..4).map(|id| vec![Value::Int(id)]).collect();
    let stored = connection.fetch(&plan.tables[0], &keys, false).expect("fetched");
    let bytes = |rows: &[Row]| {
        rows.iter().fold(Vec::new(), |mut bytes, row| {
            put_row(&mut bytes, &plan.tables[0].types, row);
            bytes
        })
    };
    assert_eq!(bytes(&stored), bytes(&rows));
    let exists = insert(&mut *connection, &plan, &[row(4, "new"), row(2, "there")]);
    assert!(matches!(exists, Err(Error::Refused { refusal, .. }) if refusal.code == RefusalCode::Unique));
}

#[test]
fn values_that_a_column_changes_are_not_taken() {
    for (declared, kept) in [
        ("INTEGER PRIMARY KEY, note INTEGER, price DECIMAL_TEXT, day DATE, part REAL", false),
        ("INTEGER PRIMARY KEY, note VARCHAR(9), price DECIMAL(9,2), day DATE, part REAL", false),
        ("INTEGER PRIMARY KEY, note TEXT, price DECIMAL_TEXT, day DATE, part NUMERIC", false),
        ("REAL PRIMARY KEY, note TEXT, price DECIMAL_TEXT, day DATE, part REAL", false),
        ("BIGINT PRIMARY KEY, note, price BLOB, day, part BLOB", true),
    ] {
        let database = Database::sqlite();
        let (plan, mut connection) = begun(&database, &format!("CREATE TABLE t (id {declared})"));
        assert!(connection.takes_plain(&plan.tables[0], ChangeOp::Insert).expect("asked"), "{declared}");
        assert_eq!(insert(&mut *connection, &plan, &[row(1, "12")]).expect("asked"), kept, "{declared}");
        let count = connection.query("SELECT count(*) FROM t", &[]).expect("counted");
        assert_eq!(count, [[Value::Int(i64::from(kept))]], "{declared}");
    }
}

/// What is stored, whether it is the same as the old image, and whether only its key is.
const STORED: [(&str, bool, bool); 8] = [
    ("1, 'ab', '1.50', '1969-12-29', 2.0", true, true),
    ("1, 'AB', '1.50', '1969-12-29', 2.0", false, true),
    ("1, X'6162', '1.50', '1969-12-29', 2.0", false, true),
    ("1, NULL, '1.50', '1969-12-29', 2.0", false, true),
    ("1, 'ab', '1.51', '1969-12-29', 2.0", false, true),
    ("1, 'ab', '1.50', NULL, 2.0", false, true),
    ("1, 'ab', '1.50', '1969-12-29', 2.5", false, true),
    ("1.0, 'ab', '1.50', '1969-12-29', 2.0", false, false),
];

#[test]
fn a_row_is_changed_only_where_it_is_the_same_to_the_byte() {
    let database = Database::sqlite();
    let table = "CREATE TABLE t (id PRIMARY KEY, note TEXT COLLATE NOCASE, price DECIMAL_TEXT, day DATE, part REAL)";
    let (plan, mut connection) = begun(&database, table);
    assert!(connection.takes_plain(&plan.tables[0], ChangeOp::Update).expect("asked"));
    assert!(connection.takes_plain(&plan.tables[0], ChangeOp::Delete).expect("asked"));
    let old = Some(row(1, "ab"));
    let update = Change { old: old.clone(), new: Some(row(1, "new")) };
    let delete = Change { old, new: None };
    for (stored, is_same, is_key) in STORED {
        for (what, left) in
            [(&update, "SELECT count(*) FROM t WHERE note = 'new'"), (&delete, "SELECT 1 - count(*) FROM t")]
        {
            for (compares, expected) in [(true, is_same), (false, is_key)] {
                connection.batch(&format!("DELETE FROM t; INSERT INTO t VALUES ({stored})")).expect("put there");
                assert_eq!(change(&mut *connection, &plan, what, compares), expected, "{stored}, {compares}: {what:?}");
                let made = connection.query(left, &[]).expect("counted");
                assert_eq!(made, [[Value::Int(i64::from(expected))]], "{stored}, {compares}: {what:?}");
            }
        }
    }
    let affinity = Change { old: Some(row(1, "ab")), new: Some(row(1, "12")) };
    connection.batch("DELETE FROM t; INSERT INTO t VALUES (1, 'ab', '1.50', '1969-12-29', 2.0)").expect("put there");
    assert!(change(&mut *connection, &plan, &affinity, true), "a text column keeps digits as they are");
}

#[test]
fn an_update_whose_value_a_column_changes_is_not_made() {
    let database = Database::sqlite();
    let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, note NUMERIC, price DECIMAL_TEXT, day DATE, part REAL)";
    let (plan, mut connection) = begun(&database, table);
    assert!(connection.takes_plain(&plan.tables[0], ChangeOp::Update).expect("asked"));
    connection.batch("INSERT INTO t VALUES (1, NULL, '1.50', '1969-12-29', 2.0)").expect("put there");
    let mut old = row(1, "");
    old[1] = Value::Null;
    let mut kept = old.clone();
    kept[4] = Value::Real(2.5);
    assert!(!change(&mut *connection, &plan, &Change { old: Some(old.clone()), new: Some(row(1, "12")) }, true));
    assert!(change(&mut *connection, &plan, &Change { old: Some(old), new: Some(kept) }, true));
}

#[test]
fn tables_in_which_others_have_a_say_are_not_trusted() {
    for change in [
        "CREATE TRIGGER x BEFORE INSERT ON T BEGIN SELECT 1; END",
        "CREATE TRIGGER x AFTER INSERT ON headwater_side_t BEGIN SELECT 1; END",
        "CREATE TRIGGER x AFTER UPDATE ON headwater_remote BEGIN SELECT 1; END",
    ] {
        let database = Database::sqlite();
        let (plan, mut connection) = begun(&database, TABLE);
        let table = &plan.tables[0];
        assert!(connection.takes_plain(table, ChangeOp::Insert).expect("asked"));
        connection.commit().expect("committed");
        database.application(change);
        connection.begin(Mode::Upload).expect("begun");
        assert!(!connection.takes_plain(table, ChangeOp::Insert).expect("asked"), "{change}");
        assert!(!connection.stayed_plain(&[table]).expect("asked"), "{change}");
        connection.rollback().expect("rolled back");
        database.application("DROP TRIGGER x");
        connection.begin(Mode::Upload).expect("begun");
        assert!(connection.takes_plain(table, ChangeOp::Insert).expect("asked"), "without {change}");
    }
    for table in [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT UNIQUE ON CONFLICT REPLACE, price TEXT, day DATE, part REAL)",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT, price TEXT, day DATE, part REAL GENERATED ALWAYS AS (1.0) STORED)",
    ] {
        let database = Database::sqlite();
        let (plan, mut connection) = begun(&database, table);
        assert!(!connection.takes_plain(&plan.tables[0], ChangeOp::Insert).expect("asked"), "{table}");
    }
}

#[test]
fn texts_in_utf_16_are_not_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("central.db");
    let file = rusqlite::Connection::open(&path).expect("opened");
    file.execute_batch(&format!("PRAGMA encoding = 'UTF-16'; {TABLE}")).expect("made");
    let plan = plan(MODEL);
    let mut connection = Sqlite::new(&path).connect().expect("connected");
    track::track(&mut *connection, &plan).expect("tracked");
    connection.begin(Mode::Upload).expect("begun");
    assert!(!connection.takes_plain(&plan.tables[0], ChangeOp::Insert).expect("asked"));
}
