//! Generated columns in the model: the database computes them, whatever a remote writes.

use headwater_consolidated::Plan;
use headwater_consolidated::check::{Severity, check};
use headwater_protocol::Row;

use super::database::{Database, plan};
use super::replica::Replica;
use super::values::{int, text};

/// A table with a generated column, tracked.
fn tables(database: &Database, conflict: &str) -> Plan {
    database.application(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, double INTEGER GENERATED ALWAYS AS (a * 2) STORED, note TEXT)",
    );
    let plan = plan(&format!(
        "name = \"generated\"\nversion = 1\n[tables.t]\nkey = [\"id\"]\nconflict = \"{conflict}\"\n\
         columns = {{ id = \"int not null\", a = \"int\", double = \"int\", note = \"text\" }}"
    ));
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application("INSERT INTO t (id, a, note) VALUES (1, 10, 'one'), (2, 20, 'two')");
    plan
}

fn row(id: i64, a: i64, double: i64, note: &str) -> Row {
    vec![int(id), int(a), int(double), text(note)]
}

pub(crate) fn a_generated_column_is_computed_at_the_database(create: &dyn Fn() -> Database) {
    for rule in ["off", "consolidated_wins", "remote_wins", "merge(remote)"] {
        let database = &create();
        let plan = tables(database, rule);
        let findings = check(&mut *database.connect(), &plan).expect("checked");
        assert!(findings.iter().all(|found| found.severity != Severity::Error), "{findings:?}");
        let mut remote = Replica::synced(database, &plan, "anna");
        remote.update(&plan, "t", row(1, 11, 20, "changed"));
        remote.update(&plan, "t", row(2, 20, 99, "changed"));
        remote.insert(&plan, "t", row(3, 30, 60, "as computed"));
        remote.insert(&plan, "t", row(4, 40, 0, "otherwise"));
        let synced = remote.sync(database, &plan);
        assert!(synced.outcomes().is_empty(), "{rule}: {:?}", synced.outcomes());
        let stored = [
            row(1, 11, 22, "changed"),
            row(2, 20, 40, "changed"),
            row(3, 30, 60, "as computed"),
            row(4, 40, 80, "otherwise"),
        ];
        assert_eq!(remote.table(&plan, "t"), stored, "{rule}");
        remote.assert_equals_fresh(database, &plan);
        for id in 100..200 {
            remote.insert(&plan, "t", row(id, id, 0, "one of many"));
        }
        assert!(remote.sync(database, &plan).outcomes().is_empty(), "{rule}");
        remote.assert_equals_fresh(database, &plan);
        assert_eq!(database.number("SELECT count(*) FROM t WHERE id >= 100 AND double = 2 * id"), 100, "{rule}");
        for id in 100..200 {
            let old = row(id, id, id * 2, "one of many");
            if id % 2 == 0 {
                remote.delete(&plan, "t", &old);
            } else {
                remote.update(&plan, "t", row(id, 1, id * 2, "new"));
            }
        }
        assert!(remote.sync(database, &plan).outcomes().is_empty(), "{rule}");
        remote.assert_equals_fresh(database, &plan);
        assert_eq!(database.number("SELECT count(*) FROM t WHERE id >= 100 AND double = 2"), 50, "{rule}");
    }
}

/// A connection that has written to the table before looks at it again.
pub(crate) fn a_column_that_is_generated_no_more_is_written(database: &Database) {
    let plan = tables(database, "consolidated_wins");
    let mut remote = Replica::synced(database, &plan, "anna");
    let mut connection = database.connect();
    remote.update(&plan, "t", row(1, 11, 20, "changed"));
    remote.try_sync(&mut *connection, &plan).expect("synced");
    database.application(
        "CREATE TABLE new (id INTEGER PRIMARY KEY, a INTEGER, double INTEGER, note TEXT); \
         INSERT INTO new SELECT * FROM t; DROP TABLE t; ALTER TABLE new RENAME TO t",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    remote.try_sync(&mut *connection, &plan).expect("synced");
    remote.update(&plan, "t", row(1, 11, 7, "again"));
    remote.insert(&plan, "t", row(5, 1, 7, "new"));
    let synced = remote.try_sync(&mut *connection, &plan).expect("synced");
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    assert_eq!(database.number("SELECT count(*) FROM t WHERE double = 7"), 2);
}
