//! Rows that are inserted just as they came: where that is trusted, and which values.

use headwater_consolidated::backend::EncodedRows;
use headwater_consolidated::{Connection, Mode, Plan};
use headwater_protocol::message::RowOp;
use headwater_protocol::row::put_row;
use headwater_protocol::{Decimal, Row, Value};

use crate::support::{Database, plan};

const MODEL: &str =
    "[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"int not null\"\nnote = \"text\"\nprice = \"decimal\"";
const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, note varchar(4), price numeric(6,2)); \
    CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
    CREATE FUNCTION one() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';";

fn row(id: i64, note: &str, price: &str) -> Row {
    vec![Value::Int(id), Value::text(note), Value::Decimal(Decimal::parse(price).expect(price))]
}

/// In an upload, on a connection that knows that the key is unique.
fn begun(database: &Database, plan: &Plan) -> Box<dyn Connection> {
    database.track(plan);
    database.sql("CREATE TABLE headwater.remote (id int)");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    let table = &plan.tables[0];
    assert!(!connection.takes_plain(table).expect("asked"), "the key may not be unique");
    connection.insert(table, &[&row(0, "a", "0.00")]).expect("inserted");
    connection
}

fn insert(connection: &mut dyn Connection, plan: &Plan, rows: &[Row]) -> bool {
    let mut bytes = Vec::new();
    for row in rows {
        bytes.push(RowOp::Upsert as u8);
        put_row(&mut bytes, &plan.tables[0].types, row);
    }
    connection.insert_plain(&plan.tables[0], EncodedRows::new(&bytes, rows.len())).expect("inserted, or not")
}

#[test]
fn only_values_that_are_stored_as_they_are_go_in() {
    let (database, plan) = (Database::with(TABLE), plan(MODEL));
    let mut connection = begun(&database, &plan);
    let table = &plan.tables[0];
    assert!(connection.takes_plain(table).expect("asked"));
    assert!(insert(&mut *connection, &plan, &[row(1, "abcd", "1.50"), vec![Value::Int(2), Value::Null, Value::Null]]));
    for changed in
        [row(3, "abcd ", "1.50"), row(3, "a", "1.5"), row(3, "a", "1.500"), row(3, "a", "-0.00"), row(3, "a\0", "1.50")]
    {
        assert!(!insert(&mut *connection, &plan, &[row(4, "a", "1.00"), changed.clone()]), "{changed:?}");
    }
    assert!(connection.stayed_plain(&[table]).expect("asked"));
    connection.commit().expect("committed");
    let all = [["0", "a", "0.00"], ["1", "abcd", "1.50"], ["2", "NULL", "NULL"]];
    assert_eq!(database.sql("SELECT * FROM t ORDER BY id"), all);
}

#[test]
fn tables_in_which_others_have_a_say_are_not_trusted() {
    for change in [
        "CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "CREATE RULE x AS ON INSERT TO t DO ALSO NOTIFY x",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE heir () INHERITS (t)",
        "CREATE TABLE above (id int); ALTER TABLE t INHERIT above",
        "ALTER TABLE t ADD more int; ALTER TABLE t ALTER more SET DEFAULT one()",
        "ALTER TABLE t ADD CHECK (one() = 1)",
        "CREATE INDEX ON t ((id + one()))",
        "CREATE DOMAIN d AS int; ALTER TABLE t ADD more d",
        "ALTER TABLE t ALTER note TYPE char(4)",
        "ALTER TABLE t ALTER price TYPE numeric(6,-2)",
        "CREATE TRIGGER x BEFORE UPDATE ON headwater.remote FOR EACH ROW EXECUTE FUNCTION f()",
    ] {
        let (database, plan) = (Database::with(TABLE), plan(MODEL));
        let mut connection = begun(&database, &plan);
        let table = &plan.tables[0];
        assert!(connection.takes_plain(table).expect("asked"));
        connection.commit().expect("committed");
        database.sql(change);
        connection.begin(Mode::Upload).expect("begin");
        assert!(!connection.stayed_plain(&[table]).expect("asked"), "{change}");
        assert!(!connection.takes_plain(table).expect("asked"), "{change}");
    }
}
