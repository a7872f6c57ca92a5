//! Rows that SQLite is given just as they came: where that is trusted, and which values. (PostgreSQL's are in `tests/postgres`.)

use headwater_consolidated::backend::EncodedRows;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend as _, Connection, Error, Mode, Plan, track};
use headwater_protocol::message::{RefusalCode, RowOp};
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

fn insert(connection: &mut dyn Connection, plan: &Plan, rows: &[Row]) -> Result<bool, Error> {
    let mut bytes = Vec::new();
    for row in rows {
        bytes.push(RowOp::Upsert as u8);
        put_row(&mut bytes, &plan.tables[0].types, row);
    }
    connection.insert_plain(&plan.tables[0], EncodedRows::new(&bytes, rows.len()))
}

#[test]
fn values_are_stored_as_they_came() {
    let database = Database::sqlite();
    let (plan, mut connection) = begun(&database, TABLE);
    assert!(connection.takes_plain(&plan.tables[0]).expect("asked"));
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
        assert!(connection.takes_plain(&plan.tables[0]).expect("asked"), "{declared}");
        assert_eq!(insert(&mut *connection, &plan, &[row(1, "12")]).expect("asked"), kept, "{declared}");
        let count = connection.query("SELECT count(*) FROM t", &[]).expect("counted");
        assert_eq!(count, [[Value::Int(i64::from(kept))]], "{declared}");
    }
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
        assert!(connection.takes_plain(table).expect("asked"));
        connection.commit().expect("committed");
        database.application(change);
        connection.begin(Mode::Upload).expect("begun");
        assert!(!connection.takes_plain(table).expect("asked"), "{change}");
        assert!(!connection.stayed_plain(&[table]).expect("asked"), "{change}");
        connection.rollback().expect("rolled back");
        database.application("DROP TRIGGER x");
        connection.begin(Mode::Upload).expect("begun");
        assert!(connection.takes_plain(table).expect("asked"), "without {change}");
    }
    for table in [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT UNIQUE ON CONFLICT REPLACE, price TEXT, day DATE, part REAL)",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT, price TEXT, day DATE, part REAL GENERATED ALWAYS AS (1.0) STORED)",
    ] {
        let database = Database::sqlite();
        let (plan, mut connection) = begun(&database, table);
        assert!(!connection.takes_plain(&plan.tables[0]).expect("asked"), "{table}");
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
    assert!(!connection.takes_plain(&plan.tables[0]).expect("asked"));
}
