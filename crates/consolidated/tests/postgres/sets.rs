//! Sets of rows by key, on tables of all shapes.

use headwater_consolidated::backend::Inserted;
use headwater_consolidated::{Error, Mode};
use headwater_protocol::message::RefusalCode;
use headwater_protocol::{Row, Value};

use crate::support::{Database, plan, show, whole};

fn row(values: &[i64]) -> Row {
    values.iter().map(|value| Value::Int(*value)).collect()
}

fn shown(rows: &[Row]) -> Vec<String> {
    let mut shown: Vec<String> = rows.iter().map(|row| show(row)).collect();
    shown.sort();
    shown
}

const TWO_KEYS: &str =
    "[tables.t]\nkey = [\"b\", \"a\"]\n[tables.t.columns]\nx = \"int\"\na = \"int not null\"\nb = \"int not null\"";

#[test]
fn keys_go_in_key_order_and_existing_ones_are_left_alone() {
    let database =
        Database::with("CREATE TABLE t (a int, b int, x int, PRIMARY KEY (b, a)); INSERT INTO t VALUES (1, 2, 0)");
    let table = plan(TWO_KEYS).tables.remove(0);
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    let (kept, new) = (row(&[9, 1, 2]), row(&[5, 3, 4]));
    assert_eq!(connection.insert(&table, &[&kept, &new]).expect("inserted"), Inserted::Keys(vec![row(&[4, 3])]));
    let fetched = connection.fetch(&table, &[row(&[4, 3]), row(&[2, 1]), row(&[7, 7])], true).expect("fetched");
    assert_eq!(shown(&fetched), ["0 1 2", "5 3 4"]);
    assert_eq!(connection.update(&table, &[&kept, &row(&[0, 8, 8])]).expect("updated"), 1);
    assert_eq!(connection.delete(&table, &[&row(&[4, 3]), &row(&[8, 8])]).expect("deleted"), 1);
    assert_eq!(connection.insert(&table, &[]).expect("nothing to do"), Inserted::All);
    assert_eq!(connection.delete(&table, &[]).expect("nothing to do"), 0);
    connection.commit().expect("committed");
    assert_eq!(database.sql("SELECT a, b, x FROM t"), [["1", "2", "9"]]);
}

#[test]
fn rows_taken_for_new_are_refused_where_one_is_not_and_only_where_the_key_is_unique() {
    let database = Database::with("CREATE TABLE t (a int, b int, x int, PRIMARY KEY (b, a))");
    let table = plan(TWO_KEYS).tables.remove(0);
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    for n in 1..=3 {
        assert_eq!(connection.insert_new(&table, &[&row(&[0, n, n])]).expect("new"), Inserted::All);
    }
    connection.savepoint().expect("a savepoint");
    let refused = connection.insert_new(&table, &[&row(&[1, 4, 4]), &row(&[1, 2, 2])]).expect_err("one exists");
    assert_eq!(refused.refusal().map(|r| r.code), Some(RefusalCode::Unique));
    connection.rollback_to_savepoint().expect("undone");
    let again = connection.insert(&table, &[&row(&[1, 4, 4]), &row(&[1, 2, 2])]).expect("looked first");
    assert_eq!(again, Inserted::Keys(vec![row(&[4, 4])]));
    connection.commit().expect("committed");

    let database = Database::with("CREATE TABLE t (a int, b int, x int)");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    let keyless = connection.insert_new(&table, &[&row(&[0, 1, 1])]).expect_err("no key");
    assert!(matches!(keyless, Error::Misfit { .. }), "{keyless}");
}

#[test]
fn columns_that_the_database_makes_are_left_to_it() {
    let database = Database::with(
        "CREATE TABLE t (a int PRIMARY KEY, s int GENERATED ALWAYS AS IDENTITY, x int, double int GENERATED ALWAYS AS (x * 2) STORED)",
    );
    let model = "[tables.t]\nkey = [\"a\"]\n[tables.t.columns]\na = \"int not null\"\ns = \"int\"\nx = \"int\"\ndouble = \"int\"";
    let table = plan(model).tables.remove(0);
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection.insert(&table, &[&row(&[1, 50, 7, 0])]).expect("inserted");
    connection.update(&table, &[&row(&[1, 60, 8, 0])]).expect("updated");
    connection.commit().expect("committed");
    assert_eq!(shown(&whole(&mut *connection, &table, &[]).upserts), ["1 50 8 16"]);
}

#[test]
fn a_table_of_keys_alone_and_a_table_of_another_schema_work() {
    let database =
        Database::with("CREATE SCHEMA \"my shop\"; CREATE TABLE \"my shop\".\"a \"\"b\" (\"k 1\" text PRIMARY KEY)");
    let model = "[tables.'a \"b']\nschema = \"my shop\"\nkey = [\"k 1\"]\n[tables.'a \"b'.columns]\n\"k 1\" = \"text not null\"";
    let plan = plan(model);
    let table = &plan.tables[0];
    database.track(&plan);
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    let key = vec![Value::text("o'k")];
    connection.insert(table, &[&key]).expect("inserted");
    assert_eq!(connection.update(table, &[&key, &vec![Value::text("absent")]]).expect("nothing to set"), 1);
    connection.commit().expect("committed");
    assert_eq!(whole(&mut *connection, table, &[]).upserts, [key]);
}

#[test]
fn blanks_at_the_end_of_a_char_key_do_not_count() {
    let database = Database::with("CREATE TABLE t (k char(4) PRIMARY KEY, x int); INSERT INTO t VALUES ('ab', 1)");
    let model = "[tables.t]\nkey = [\"k\"]\n[tables.t.columns]\nk = \"text not null\"\nx = \"int\"";
    let table = plan(model).tables.remove(0);
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    for key in ["ab", "ab  "] {
        assert_eq!(connection.fetch(&table, &[vec![Value::text(key)]], false).expect("fetched").len(), 1, "{key:?}");
    }
}

#[test]
fn a_refused_row_refuses_the_call_and_leaves_the_savepoint() {
    let database = Database::with("CREATE TABLE t (a int, b int, x int CHECK (x < 100), PRIMARY KEY (b, a))");
    let table = plan(TWO_KEYS).tables.remove(0);
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection.insert(&table, &[&row(&[1, 1, 1])]).expect("inserted");
    connection.savepoint().expect("a savepoint");
    let refused = connection.insert(&table, &[&row(&[2, 2, 2]), &row(&[100, 3, 3])]).expect_err("refused");
    assert_eq!(refused.refusal().map(|r| r.code), Some(RefusalCode::Check));
    connection.rollback_to_savepoint().expect("undone");
    connection.insert(&table, &[&row(&[2, 2, 2])]).expect("inserted");
    connection.commit().expect("committed");
    assert_eq!(database.sql("SELECT count(*) FROM t"), [["2"]]);
}

#[test]
fn locks_are_taken_in_key_order() {
    let database = Database::with(
        "CREATE TABLE t (a int, b int, x int, PRIMARY KEY (b, a)); INSERT INTO t SELECT n, n, 0 FROM generate_series(1, 200) n",
    );
    let table = plan(TWO_KEYS).tables.remove(0);
    let up: Vec<Row> = (1..=200).map(|n| row(&[n, n])).collect();
    let down: Vec<Row> = up.iter().rev().cloned().collect();
    let workers = [up, down].map(|keys| {
        let (mut connection, table) = (database.connect(), table.clone());
        std::thread::spawn(move || {
            for _ in 0..50 {
                connection.begin(Mode::Upload).expect("begin");
                connection.fetch(&table, &keys, true).expect("no deadlock");
                connection.commit().expect("committed");
            }
        })
    });
    for worker in workers {
        worker.join().expect("no deadlock");
    }
}

#[test]
fn a_model_that_does_not_fit_is_the_setups_fault_and_an_altered_table_only_costs_a_retry() {
    let database = Database::with("CREATE TABLE t (a int, b int, x text, PRIMARY KEY (b, a))");
    let table = plan(TWO_KEYS).tables.remove(0);
    let mut connection = database.connect();
    let misfit = connection.insert(&table, &[&row(&[1, 1, 1])]).expect_err("x is text");
    assert!(matches!(misfit, Error::Misfit { .. }), "{misfit}");
    database.sql("ALTER TABLE t DROP x");
    assert!(matches!(connection.insert(&table, &[&row(&[1, 1, 1])]), Err(Error::Misfit { .. })));
    database.sql("ALTER TABLE t ADD x int");
    connection.insert(&table, &[&row(&[1, 1, 1])]).expect("it fits now");
    connection.fetch(&table, &[row(&[1, 1])], false).expect("fetched");
    database.sql("ALTER TABLE t ALTER x TYPE bigint, ALTER a TYPE bigint");
    let stale = connection.fetch(&table, &[row(&[1, 1])], false).expect_err("the plan is stale");
    assert!(matches!(stale, Error::Retry { broken: false, .. }), "{stale}");
    assert_eq!(connection.fetch(&table, &[row(&[1, 1])], false).expect("fetched"), [row(&[1, 1, 1])]);
    database.sql("ALTER TABLE t DROP CONSTRAINT t_pkey");
    let keyless = connection.insert(&table, &[&row(&[1, 1, 1])]).expect_err("no key");
    assert!(matches!(keyless, Error::Misfit { .. }), "{keyless}");
    database.sql("DROP TABLE t");
    assert!(matches!(connection.fetch(&table, &[row(&[1, 1])], false), Err(Error::Misfit { .. })));
}
