//! Whatever an application does to a tracked table reaches the remotes.

use headwater_consolidated::catalogue::Tracking;
use headwater_consolidated::{Dialect, Error, track};
use headwater_model::tracking::Kin;
use headwater_protocol::Row;

use super::database::{Database, MODEL, TABLES, plan};
use super::replica::Replica;
use super::values::{customer, int, order, text};

pub(crate) fn what_an_application_writes_reaches_a_remote(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', 'Bob', 1), (3, 'c', NULL, NULL)");
    let mut remote = Replica::synced(database, &plan, "anna");
    assert_eq!(remote.table(&plan, "customer").len(), 3, "rows from before the first sync come whole");
    database.application(
        "INSERT INTO customer VALUES (4, 'd', 'Dan', 2); UPDATE customer SET name = 'Eve' WHERE id = 1; \
         DELETE FROM customer WHERE id = 2;",
    );
    let synced = remote.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (2, 1));
    assert_eq!(remote.table(&plan, "customer")[0], customer(1, "a", "Eve", 1));
    remote.assert_equals_fresh(database, &plan);
    assert_eq!(remote.sync(database, &plan).count(), 0, "nothing is sent twice");
}

/// A remote that does not know the difference gets both as deletions.
pub(crate) fn a_row_that_lives_on_elsewhere_is_told_from_a_deleted_one(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'north', 'y'), (3, 'north', 'z'), (4, 'north', 'w'), (5, 'north', 'v'); \
         INSERT INTO line VALUES (1, 1, 'north', '1'), (2, 1, 'north', '1')",
    );
    let mut remote = Replica::synced(database, &plan, "ben");
    let mut older = Replica::synced(database, &plan, "ben");
    older.knows_leaving = false;
    // One goes and comes again, another is deleted where it went.
    database.application(
        "UPDATE orders SET region = 'south' WHERE id IN (1, 3, 4); DELETE FROM orders WHERE id = 2; \
         UPDATE orders SET region = NULL WHERE id = 5; UPDATE line SET region = 'south' WHERE order_id = 1; \
         UPDATE orders SET region = 'north' WHERE id = 3; DELETE FROM orders WHERE id = 4",
    );
    let keys = |rows: &[(u32, Row)], table: u32| {
        let mut keys: Vec<Row> =
            rows.iter().filter(|(number, _)| *number == table).map(|(_, key)| key.clone()).collect();
        keys.sort_unstable_by_key(|key| format!("{key:?}"));
        keys
    };
    let number = |name: &str| plan.tables.iter().position(|table| table.table.name == name).expect("a table") as u32;
    let (orders, line) = (number("orders"), number("line"));
    let synced = remote.sync(database, &plan);
    let ids = |ids: &[i64]| ids.iter().map(|id| vec![int(*id)]).collect::<Vec<_>>();
    assert_eq!(keys(&synced.deletes, orders), ids(&[1, 2, 4, 5]));
    assert_eq!(keys(&synced.left, orders), ids(&[1, 5]));
    assert_eq!(keys(&synced.left, line), [vec![int(1), int(1)]]);
    remote.assert_equals_fresh(database, &plan);
    let synced = older.sync(database, &plan);
    assert_eq!((keys(&synced.deletes, orders), synced.left), (ids(&[1, 2, 4, 5]), Vec::new()));
}

pub(crate) fn upserts_cascades_and_key_changes_are_tracked(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'north', 'y'); \
         INSERT INTO line VALUES (1, 1, 'north', '5.00'), (1, 2, 'north', '6.00'), (2, 1, 'north', '7.00'); \
         INSERT INTO customer VALUES (1, 'a', 'Ada', 1)",
    );
    let mut remote = Replica::synced(database, &plan, "ben");
    database.application("DELETE FROM orders WHERE id = 1");
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.deletes.len(), 3, "the order and, by cascade, its lines");
    remote.assert_equals_fresh(database, &plan);

    database.application(
        "INSERT INTO customer VALUES (1, 'z', 'Zoe', 2) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
    );
    remote.sync(database, &plan);
    assert_eq!(remote.table(&plan, "customer"), [customer(1, "a", "Zoe", 1)]);
    database.application("UPDATE customer SET id = 9 WHERE id = 1");
    let synced = remote.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (1, 1), "a new key, and the old one gone");
    remote.assert_equals_fresh(database, &plan);
}

/// What only one dialect has.
pub(crate) fn statements_of_the_dialect_are_tracked(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', 'Bob', 1), (3, 'c', 'Cid', 1), (4, 'd', 'Dan', 1); \
         INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'south', 'y'), (3, 'west', 'z');",
    );
    let mut remotes = [Replica::synced(database, &plan, "anna"), Replica::synced(database, &plan, "ben")];
    let mut check = |statement: &str| {
        database.application(statement);
        for remote in &mut remotes {
            remote.sync(database, &plan);
            remote.assert_equals_fresh(database, &plan);
        }
    };
    match database.dialect() {
        Dialect::Sqlite => {
            for recursive in ["ON", "OFF"] {
                let mut run = |statement: &str| check(&format!("PRAGMA recursive_triggers = {recursive}; {statement}"));
                run("INSERT OR REPLACE INTO customer VALUES (1, 'aa', 'Amy', 2)");
                // Deletes row 2 through the unique index.
                run("INSERT OR REPLACE INTO customer VALUES (7, 'b', 'Bea', 2)");
                run("UPDATE OR REPLACE customer SET code = 'c' WHERE id = 7");
                run("UPDATE OR REPLACE customer SET id = 4, code = 'e' WHERE id = 7");
                run("REPLACE INTO orders VALUES (1, 'south', 'moved')");
                run("REPLACE INTO orders VALUES (1, 'north', 'and back')");
                run("UPDATE OR REPLACE orders SET id = 2 WHERE id = 1");
                run("INSERT OR IGNORE INTO customer VALUES (1, 'q', 'no', 1), (50, 'q', 'yes', 1)");
                run("INSERT OR FAIL INTO customer VALUES (51, 'r', 'yes', 1)");
                run("UPDATE OR ROLLBACK customer SET name = 'all'");
                run("DELETE FROM customer");
                run("INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', 'Bob', 1), (3, 'c', 'Cid', 1), (4, 'd', 'Dan', 1);
                     REPLACE INTO orders VALUES (1, 'north', 'x'), (2, 'south', 'y')");
            }
        }
        Dialect::Postgres => {
            check("COPY orders FROM PROGRAM 'printf ''10\\tnorth\\tcopied\\n11\\tsouth\\tcopied\\n'''");
            check(
                "MERGE INTO customer c USING (VALUES (1, 'Mia'), (9, 'Max')) AS s (id, name) ON c.id = s.id \
                 WHEN MATCHED THEN UPDATE SET name = s.name \
                 WHEN NOT MATCHED THEN INSERT (id, code, name) VALUES (s.id, 'm', s.name)",
            );
            check("UPDATE orders SET region = CASE region WHEN 'north' THEN 'south' ELSE 'north' END");
            check(
                "WITH gone AS (DELETE FROM orders WHERE id = 10 RETURNING *) INSERT INTO orders SELECT 20, region, note FROM gone",
            );
            check("SET session_replication_role = replica; UPDATE customer SET name = 'replicated'");
            check("TRUNCATE customer");
            check("TRUNCATE orders CASCADE");
        }
    }
}

/// A BEFORE trigger can't know that nothing will happen.
pub(crate) fn an_upsert_that_does_nothing_deletes_nothing(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x')");
    let mut remote = Replica::synced(database, &plan, "ben");
    database.application("INSERT INTO orders VALUES (1, 'south', 'never') ON CONFLICT (id) DO NOTHING");
    let synced = remote.sync(database, &plan);
    assert!(synced.deletes.is_empty());
    assert_eq!(remote.table(&plan, "orders"), [order(1, "north", "x")]);
    remote.assert_equals_fresh(database, &plan);
}

pub(crate) fn broken_tracking_is_noticed_and_mended(database: &Database) {
    let plan = database.standard();
    let customers = plan.model.table("customer").expect("customer");
    let kin = Kin::new(&plan.model, customers);
    let state = || track::state(&mut *database.connect(), &kin).expect("a state");
    assert_eq!(state(), Tracking::Complete);
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    let incarnation = remote.incarnation;
    // A connection of a server that runs on, and has seen that all is well.
    let mut running = database.connect();
    remote.try_sync(&mut *running, &plan).expect("nothing is wrong yet");
    database.application(match database.dialect() {
        Dialect::Sqlite => "DROP TRIGGER headwater_after_update_customer; UPDATE customer SET name = 'unseen'",
        Dialect::Postgres => {
            "DO $$ BEGIN EXECUTE (SELECT format('DROP TRIGGER %I ON customer', tgname) FROM pg_trigger \
             WHERE tgrelid = 'customer'::regclass AND tgname LIKE 'headwater!_update%' ESCAPE '!'); END $$; \
             UPDATE customer SET name = 'unseen'"
        }
    });
    assert!(matches!(state(), Tracking::Broken(_)), "{:?}", state());
    let refused = remote.try_sync(&mut *running, &plan).map(|_| ()).expect_err("a download with a hole");
    assert!(matches!(&refused, Error::Untracked { table, .. } if table == "customer"), "{refused:?}");
    assert!(!track::plan_tracking(&mut *database.connect(), &plan).expect("planned").is_empty());
    track::track(&mut *database.connect(), &plan).expect("mended");
    assert_eq!(state(), Tracking::Complete);
    remote.sync(database, &plan);
    let is_kept = remote.incarnation == incarnation;
    assert_eq!(
        is_kept,
        database.dialect() == Dialect::Postgres,
        "what was missed is unknown, so the table comes whole"
    );
    assert_eq!(remote.table(&plan, "customer"), [customer(1, "a", "unseen", 1)]);
}

pub(crate) fn tracking_again_changes_nothing(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    let incarnation = remote.incarnation;
    assert_eq!(track::plan_tracking(&mut *database.connect(), &plan).expect("planned"), Vec::<String>::new());
    assert_eq!(track::track(&mut *database.connect(), &plan).expect("tracked"), Vec::<String>::new());
    remote.sync(database, &plan);
    assert_eq!(remote.incarnation, incarnation);
}

pub(crate) fn untracked_tables_are_left_as_they_were(database: &Database) {
    database.application(TABLES);
    let plan = plan(MODEL);
    let shown = track::plan_tracking(&mut *database.connect(), &plan).expect("planned");
    assert!(shown.iter().any(|sql| sql.contains("customer")), "shown before anything is there: {shown:?}");
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut between = Replica::synced(database, &plan, "anna");
    let removed = track::untrack(&mut *database.connect(), &plan).expect("removed");
    assert!(!removed.is_empty());
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        let kin = Kin::new(&plan.model, table);
        assert_eq!(track::state(&mut *database.connect(), &kin).expect("a state"), Tracking::Absent);
    }
    database.application(
        "INSERT INTO customer VALUES (1, 'a', 'Ada', 1); UPDATE customer SET name = 'x'; DELETE FROM customer",
    );
    database.application("INSERT INTO customer VALUES (2, 'b', 'Ben', 1), (3, 'c', 'Cy', 1)");
    let meanwhile = between.try_sync(&mut *database.connect(), &plan).map(|_| ());
    assert!(
        matches!(meanwhile, Err(Error::Untracked { .. })),
        "a watermark would say nothing of what comes next: {meanwhile:?}"
    );
    database.application("UPDATE customer SET name = 'missed' WHERE id = 2; DELETE FROM customer WHERE id = 3");
    track::track(&mut *database.connect(), &plan).expect("tracked again");
    assert_ne!(between.greet(&mut *database.connect(), &plan).expect("greeted").incarnation, between.incarnation);
    between.sync(database, &plan);
    assert_eq!(between.table(&plan, "customer").iter().filter(|row| row[2] == text("missed")).count(), 1);
    Replica::synced(database, &plan, "anna").assert_equals_fresh(database, &plan);
}
