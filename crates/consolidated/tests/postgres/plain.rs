//! Rows that are inserted just as they came: where that is trusted, and which values.

use headwater_consolidated::backend::EncodedChanges;
use headwater_consolidated::{Connection, Mode, Plan};
use headwater_protocol::message::{Change, ChangeOp};
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

/// In an upload.
fn begun(database: &Database, plan: &Plan) -> Box<dyn Connection> {
    database.track(plan);
    database.sql("CREATE TABLE headwater.remote (id int)");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection
}

fn insert(connection: &mut dyn Connection, plan: &Plan, rows: &[Row]) -> bool {
    let mut bytes = Vec::new();
    for row in rows {
        bytes.push(ChangeOp::Insert as u8);
        put_row(&mut bytes, &plan.tables[0].types, row);
    }
    connection
        .change_plain(&plan.tables[0], EncodedChanges::new(ChangeOp::Insert, &bytes, rows.len()), true)
        .expect("inserted, or not")
}

/// Makes one change as it came.
fn change(connection: &mut dyn Connection, plan: &Plan, change: &Change, compares: bool) -> bool {
    let mut bytes = Vec::new();
    change.write(&mut bytes, &plan.tables[0].types);
    let changes = EncodedChanges::new(change.op(), &bytes, 1);
    connection.change_plain(&plan.tables[0], changes, compares).expect("made, or not")
}

/// Which kinds of changes are taken.
fn taken(connection: &mut dyn Connection, plan: &Plan) -> [bool; 3] {
    [ChangeOp::Insert, ChangeOp::Update, ChangeOp::Delete]
        .map(|op| connection.takes_plain(&plan.tables[0], op).expect("asked"))
}

/// What is stored, and whether it is the same as the old image.
const STORED: [(&str, bool); 8] = [
    ("'ab', 1.50, 0.0, '{}'", true),
    ("'ab', 1.5000, '-0.0', '{}'", true),
    ("'AB', 1.50, 0.0, '{}'", false),
    ("'ab ', 1.50, 0.0, '{}'", false),
    ("NULL, 1.50, 0.0, '{}'", false),
    ("'ab', 1.501, 0.0, '{}'", false),
    ("'ab', 1.50, 'NaN', '{}'", false),
    ("'ab', 1.50, 0.0, '{ }'", false),
];

#[test]
fn a_row_is_changed_only_where_it_is_the_same() {
    let model = "[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"int not null\"\nnote = \"text\"\n\
        price = \"decimal\"\npart = \"real\"\ndoc = \"json\"";
    let tables = "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
        CREATE TABLE t (id int PRIMARY KEY, note text COLLATE blind, price numeric, part float8, doc json)";
    let (database, plan) = (Database::with(tables), plan(model));
    let mut connection = begun(&database, &plan);
    assert_eq!(taken(&mut *connection, &plan), [true; 3]);
    let image = |note: &str| {
        let price = Decimal::parse("1.50").expect("a decimal");
        vec![Value::Int(1), Value::text(note), Value::Decimal(price), Value::Real(0.0), Value::Json(b"{}".to_vec())]
    };
    let update = Change { old: Some(image("ab")), new: Some(image("new")) };
    let delete = Change { old: Some(image("ab")), new: None };
    for (stored, is_same) in STORED {
        for (what, left) in
            [(&update, "SELECT count(*) FROM t WHERE note = 'new'"), (&delete, "SELECT 1 - count(*) FROM t")]
        {
            for (compares, expected) in [(true, is_same), (false, true)] {
                connection.execute("DELETE FROM t", &[]).expect("emptied");
                connection.execute(&format!("INSERT INTO t VALUES (1, {stored})"), &[]).expect("put there");
                assert_eq!(change(&mut *connection, &plan, what, compares), expected, "{stored}, {compares}: {what:?}");
                let made = connection.query(left, &[]).expect("counted");
                assert_eq!(made, [[Value::Int(i64::from(expected))]], "{stored}, {compares}: {what:?}");
            }
        }
    }
    // Twice the same key: one of them finds another row than it knows.
    let mut bytes = Vec::new();
    connection.execute("INSERT INTO t VALUES (1, 'ab', 1.50, 0.0, '{}')", &[]).expect("put there");
    for _ in 0..2 {
        update.write(&mut bytes, &plan.tables[0].types);
    }
    let twice = EncodedChanges::new(ChangeOp::Update, &bytes, 2);
    assert!(!connection.change_plain(&plan.tables[0], twice, true).expect("made, or not"));
}

#[test]
fn where_more_comes_of_a_change_than_it_says_it_is_not_taken() {
    for (change, expected) in [
        ("SELECT 1", [true; 3]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", [false; 3]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE UNIQUE INDEX ON t (id) WHERE id > 5", [false; 3]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE UNIQUE INDEX ON t (id, note)", [false; 3]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD UNIQUE (id) DEFERRABLE", [false; 3]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE UNIQUE INDEX ON t (id) INCLUDE (note)", [true; 3]),
        ("CREATE TABLE c (t int REFERENCES t (id))", [true; 3]),
        ("CREATE TABLE c (t int REFERENCES t (id) ON DELETE CASCADE)", [true, true, false]),
        ("CREATE TABLE c (t int REFERENCES t (id) ON DELETE SET NULL)", [true, true, false]),
        ("CREATE TABLE c (t int REFERENCES t (id) ON DELETE CASCADE) PARTITION BY LIST (t)", [true, true, false]),
        (
            "ALTER TABLE t ADD UNIQUE (note); CREATE TABLE c (t text REFERENCES t (note) ON UPDATE CASCADE)",
            [true, false, true],
        ),
        ("ALTER TABLE t ADD CHECK (price > 0)", [true; 3]),
        ("ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY", [true; 3]),
    ] {
        let (database, plan) = (Database::with(TABLE), plan(MODEL));
        let mut connection = begun(&database, &plan);
        assert_eq!(taken(&mut *connection, &plan), [true; 3]);
        connection.commit().expect("committed");
        database.sql(change);
        connection.begin(Mode::Upload).expect("begin");
        let stayed = connection.stayed_plain(&[&plan.tables[0]]).expect("asked");
        assert!(!stayed || expected == [true; 3], "{change}");
        assert_eq!(taken(&mut *connection, &plan), expected, "{change}");
    }
}

#[test]
fn a_key_that_is_spelled_in_several_ways_is_not_updated_blindly() {
    for (kind, declared, is_exact) in [
        ("decimal", "numeric", false),
        ("decimal", "numeric(9,3)", true),
        ("real", "float8", false),
        ("text", "text", true),
    ] {
        let model =
            format!("[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"{kind} not null\"\nnote = \"text\"");
        let tables = format!("CREATE TABLE t (id {declared} PRIMARY KEY, note text)");
        let (database, plan) = (Database::with(&tables), plan(&model));
        database.track(&plan);
        let mut connection = database.connect();
        connection.begin(Mode::Upload).expect("begin");
        assert_eq!(taken(&mut *connection, &plan), [true, is_exact, true], "{declared}");
    }
}

#[test]
fn only_values_that_are_stored_as_they_are_go_in() {
    let (database, plan) = (Database::with(TABLE), plan(MODEL));
    let mut connection = begun(&database, &plan);
    let table = &plan.tables[0];
    assert!(connection.takes_plain(table, ChangeOp::Insert).expect("asked"));
    assert!(insert(&mut *connection, &plan, &[row(1, "abcd", "1.50"), vec![Value::Int(2), Value::Null, Value::Null]]));
    for changed in
        [row(3, "abcd ", "1.50"), row(3, "a", "1.5"), row(3, "a", "1.500"), row(3, "a", "-0.00"), row(3, "a\0", "1.50")]
    {
        assert!(!insert(&mut *connection, &plan, &[row(4, "a", "1.00"), changed.clone()]), "{changed:?}");
        let mut new = changed.clone();
        new[0] = Value::Int(1);
        let update = Change { old: Some(row(1, "abcd", "1.50")), new: Some(new) };
        assert!(!change(&mut *connection, &plan, &update, true), "{changed:?}");
    }
    assert!(connection.stayed_plain(&[table]).expect("asked"));
    connection.commit().expect("committed");
    let all = [["1", "abcd", "1.50"], ["2", "NULL", "NULL"]];
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
        assert!(connection.takes_plain(table, ChangeOp::Insert).expect("asked"));
        connection.commit().expect("committed");
        database.sql(change);
        connection.begin(Mode::Upload).expect("begin");
        assert!(!connection.stayed_plain(&[table]).expect("asked"), "{change}");
        assert!(!connection.takes_plain(table, ChangeOp::Insert).expect("asked"), "{change}");
    }
}
