//! What the database or the policy refuses is set aside, and only that.

use headwater_consolidated::{Dialect, Plan};
use headwater_protocol::Value;
use headwater_protocol::message::{Outcome, Refusal};

use super::database::Database;
use super::replica::{Replica, Synced};
use super::values::{NULL, customer, int, line, order, text};

fn refusal(synced: &Synced, ordinal: u64) -> &Refusal {
    match synced.outcomes().iter().find(|(found, _)| *found == ordinal) {
        Some((_, Outcome::Refused(refusal))) => refusal,
        other => panic!("change {ordinal}: {other:?}"),
    }
}

pub(crate) fn one_refused_row_does_not_hold_up_the_rest(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1000, 'taken', 'x', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..300 {
        let code = if id == 17 || id == 211 { "taken".to_owned() } else { format!("c{id}") };
        remote.insert(&plan, "customer", customer(id, &code, "x", 1));
    }
    remote.batch_rows = 100;
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(17, "unique"), (211, "unique")]);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 299);
    let counts = synced.uploaded.expect("uploaded").counts;
    assert_eq!((counts.inserted, counts.refused, counts.conflicts), (298, 2, 0));
    assert_eq!(synced.upserts.len(), 0, "none of it is sent back");
}

pub(crate) fn each_kind_of_refusal_has_its_code(database: &Database) {
    let plan = database.standard();
    database.application(match database.dialect() {
        Dialect::Sqlite => {
            "CREATE TRIGGER guard BEFORE INSERT ON customer WHEN NEW.name = 'secret 4711' \
             BEGIN SELECT RAISE(ABORT, 'no customer secret 4711 please'); END"
        }
        Dialect::Postgres => {
            "CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN IF NEW.name = 'secret 4711' THEN RAISE EXCEPTION 'no customer % please', NEW.name; END IF; RETURN NEW; END$$; \
             CREATE TRIGGER guard BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION guard()"
        }
    });
    database.application(
        "INSERT INTO customer VALUES (1, 'taken', 'x', 1); INSERT INTO orders VALUES (1, 'north', 'x'); \
         INSERT INTO price VALUES (1, '9.99')",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    let changes = [
        ("customer", customer(2, "taken", "x", 1), "unique"),
        ("customer", vec![int(3), NULL, text("x"), NULL], "not_null"),
        ("customer", customer(4, "guarded", "secret 4711", 1), "trigger"),
        ("customer", vec![NULL, text("k"), NULL, NULL], "not_null"),
        ("orders", order(2, "west", "x"), "partition"),
        ("orders", vec![int(3), NULL, NULL], "partition"),
        ("line", line(99, 1, "north", "1"), "foreign_key"),
        ("line", line(1, 2, "north", "-1"), "check"),
        ("price", vec![int(2), NULL], "direction"),
    ];
    for (table, row, _) in &changes {
        remote.insert(&plan, table, row.clone());
    }
    remote.insert(&plan, "measure", vec![int(1), Value::Real(0.5)]);
    let synced = remote.sync(database, &plan);
    let expected: Vec<(u64, &str)> = (0..).zip(changes.iter().map(|(_, _, code)| *code)).collect();
    assert_eq!(synced.refusals(), expected);
    for (ordinal, _) in expected {
        let message = &refusal(&synced, ordinal).message;
        assert!(!message.is_empty() && !message.contains("4711") && !message.contains("taken"), "{message}");
    }
    assert_eq!(database.number("SELECT count(*) FROM measure"), 1, "upload-only tables are uploaded");
    assert_eq!(database.number("SELECT count(*) FROM customer"), 1);
    assert_eq!(database.number("SELECT count(*) FROM price"), 1);
}

pub(crate) fn rows_outside_the_partitions_are_refused_and_nothing_is_told(database: &Database) {
    let plan = database.standard();
    database
        .application("INSERT INTO orders VALUES (1, 'north', 'mine'), (2, 'south', 'hidden'), (3, 'north', 'moves')");
    let mut ben = Replica::synced(database, &plan, "ben");
    // Moves a row out, claims one of another partition, and follows one that was moved away.
    ben.update(&plan, "orders", order(1, "south", "mine"));
    ben.insert(&plan, "orders", order(2, "north", "guess"));
    ben.update(&plan, "orders", order(3, "north", "changed"));
    database.application("UPDATE orders SET region = 'south' WHERE id = 3");
    let synced = ben.sync(database, &plan);
    assert_eq!(synced.refusals(), [(0, "partition"), (1, "partition"), (2, "partition")]);
    let messages: Vec<&str> = (0..3).map(|ordinal| refusal(&synced, ordinal).message.as_str()).collect();
    assert!(messages.iter().all(|message| *message == messages[0]), "stored or not, the same words: {messages:?}");
    assert!(!synced.upserts.iter().any(|(_, row)| row.contains(&text("hidden"))));
    assert_eq!(database.number("SELECT count(*) FROM orders WHERE note IN ('mine', 'hidden', 'moves')"), 3);
    // Deletions too, of a row whose old image claims another partition.
    let mut ben = Replica::synced(database, &plan, "ben");
    ben.rows.insert((super::replica::find(&plan, "orders").number, vec![9]), order(2, "north", "x"));
    let stolen = order(2, "north", "hidden");
    ben.pending.push((
        super::replica::find(&plan, "orders").number,
        headwater_protocol::message::Change { old: Some(stolen), new: None },
    ));
    let synced = ben.sync(database, &plan);
    assert_eq!(synced.refusals(), [(0, "partition")]);
    assert_eq!(database.number("SELECT count(*) FROM orders"), 3);
    let recorded = if database.dialect() == Dialect::Sqlite { "headwater_conflict" } else { "headwater.conflict" };
    assert_eq!(database.number(&format!("SELECT count(*) FROM {recorded}")), 0, "no conflict was judged");
}

pub(crate) fn rows_swallowed_by_a_trigger_are_refused(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'fixed', 1), (2, 'b', 'free', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application(match database.dialect() {
        Dialect::Sqlite => {
            "CREATE TRIGGER a BEFORE INSERT ON customer WHEN NEW.name = 'fixed' BEGIN SELECT RAISE(IGNORE); END; \
             CREATE TRIGGER b BEFORE UPDATE ON customer WHEN OLD.name = 'fixed' BEGIN SELECT RAISE(IGNORE); END; \
             CREATE TRIGGER c BEFORE DELETE ON customer WHEN OLD.name = 'fixed' BEGIN SELECT RAISE(IGNORE); END;"
        }
        Dialect::Postgres => {
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN IF TG_OP = 'INSERT' THEN IF NEW.name = 'fixed' THEN RETURN NULL; END IF; RETURN NEW; END IF; \
               IF OLD.name = 'fixed' THEN RETURN NULL; END IF; IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END$$; \
             CREATE TRIGGER s BEFORE INSERT OR UPDATE OR DELETE ON customer FOR EACH ROW EXECUTE FUNCTION swallow()"
        }
    });
    let mut other = remote.clone();
    (other.id, other.secret) = (Replica::new("anna").id, [1; 32]);
    remote.insert(&plan, "customer", customer(3, "c", "fixed", 1));
    remote.update(&plan, "customer", customer(1, "a", "changed", 1));
    remote.update(&plan, "customer", customer(2, "b", "changed", 1));
    assert_eq!(remote.sync(database, &plan).refusals(), [(0, "trigger"), (1, "trigger")]);
    other.delete(&plan, "customer", &customer(1, "a", "fixed", 1));
    assert_eq!(other.sync(database, &plan).refusals(), [(0, "trigger")]);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name IN ('fixed', 'changed')"), 2);
}

/// An application that numbers its rows itself: before the row is stored the change is refused, since it would be another row;
/// afterwards it is tracked like any other.
pub(crate) fn rows_given_another_key_by_a_trigger_are_not_two_rows(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application(match database.dialect() {
        Dialect::Sqlite => {
            "CREATE TRIGGER n AFTER INSERT ON customer WHEN NEW.name = 'numbered' \
             BEGIN UPDATE customer SET id = NEW.id + 1000 WHERE id = NEW.id; END"
        }
        Dialect::Postgres => {
            "CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN IF NEW.name = 'numbered' THEN NEW.id := NEW.id + 1000; END IF; RETURN NEW; END$$; \
             CREATE TRIGGER n BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION number()"
        }
    });
    for (id, code, name) in [(1, "a", "plain"), (2, "b", "numbered"), (3, "c", "plain")] {
        remote.insert(&plan, "customer", customer(id, code, name, 1));
    }
    let synced = remote.sync(database, &plan);
    let stored = database.number("SELECT count(*) FROM customer");
    match database.dialect() {
        Dialect::Sqlite => {
            assert_eq!((synced.refusals(), stored), (vec![], 3));
            remote.assert_equals_fresh(database, &plan);
        }
        Dialect::Postgres => assert_eq!((synced.refusals(), stored), (vec![(1, "trigger")], 2)),
    }
}

fn customers(database: &Database, plan: &Plan) -> Replica {
    database.application(
        "INSERT INTO customer VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1), (3, 'c', 'x', 1), (4, 'd', 'x', 1)",
    );
    Replica::synced(database, plan, "anna")
}

pub(crate) fn unique_values_can_change_places(database: &Database) {
    let plan = database.standard();
    let mut remote = customers(database, &plan);
    // A swap, a chain, and a value that is freed by a deletion.
    remote.update(&plan, "customer", customer(1, "b", "swapped", 1));
    remote.update(&plan, "customer", customer(2, "a", "swapped", 1));
    remote.delete(&plan, "customer", &customer(3, "c", "x", 1));
    remote.update(&plan, "customer", customer(4, "c", "moved", 1));
    remote.insert(&plan, "customer", customer(5, "d", "inserted", 1));
    let synced = remote.sync(database, &plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    remote.assert_equals_fresh(database, &plan);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE code IN ('a', 'b', 'c', 'd')"), 4);
    // One that is no way possible keeps nobody else from it.
    remote.update(&plan, "customer", customer(1, "a", "back", 1));
    remote.update(&plan, "customer", customer(2, "b", "back", 1));
    remote.insert(&plan, "customer", customer(6, "c", "twice", 1));
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(2, "unique")]);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'back'"), 2);
}

pub(crate) fn rows_may_refer_to_one_another_in_any_order(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    let node = |id: i64, parent: Option<i64>| vec![int(id), parent.map_or(NULL, int)];
    // A child before its parent, a row that refers to itself, a circle, and one whose parent is not there.
    for (id, parent) in [(1, Some(2)), (2, None), (3, Some(3)), (4, Some(5)), (5, Some(4)), (6, Some(99))] {
        remote.insert(&plan, "node", node(id, parent));
    }
    remote.batch_rows = 1;
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(5, "foreign_key")]);
    assert_eq!(database.number("SELECT count(*) FROM node"), 5);
    assert_eq!(database.number("SELECT count(*) FROM node WHERE parent IS NOT NULL"), 4);
    for rows in [1, 2_000] {
        let mut circle = Replica::synced(database, &plan, "anna");
        let first = if rows == 1 { 10 } else { 20 };
        circle.insert(&plan, "node", node(first, Some(first + 1)));
        circle.insert(&plan, "node", node(first + 1, Some(first)));
        circle.batch_rows = rows;
        let synced = circle.sync(database, &plan);
        assert!(synced.outcomes().is_empty(), "batches of {rows}: {:?}", synced.outcomes());
        circle.assert_equals_fresh(database, &plan);
    }
}

/// A constraint that the application declared to be checked at the end of the transaction.
pub(crate) fn a_constraint_checked_at_the_end_finds_its_culprit(database: &Database) {
    let plan = database.standard();
    database.application(
        "CREATE TABLE category (id {int} NOT NULL PRIMARY KEY); \
         CREATE TABLE late (id {int} NOT NULL PRIMARY KEY, \
             category {int} REFERENCES category (id) DEFERRABLE INITIALLY DEFERRED); \
         INSERT INTO category VALUES (1)",
    );
    drop(plan);
    let model = "
        name = \"late\"
        version = 1
        [tables.late]
        key = [\"id\"]
        columns = { id = \"int not null\", category = \"int\" }
    ";
    let plan = super::database::plan(model);
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..50 {
        remote.insert(&plan, "late", vec![int(id), int(if id == 23 || id == 31 { 2 } else { 1 })]);
    }
    remote.batch_rows = 20;
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(23, "foreign_key"), (31, "foreign_key")]);
    assert_eq!(database.number("SELECT count(*) FROM late"), 48);
}

/// A deletion of a row that others refer to: alone, with the rest of the upload, and where the database looks only at the end.
pub(crate) fn a_deletion_of_a_row_that_is_referred_to_is_refused_alone(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO node VALUES (1, NULL), (3, NULL), (4, NULL)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("INSERT INTO node VALUES (2, 1)");
    for batch_rows in [2_000, 1] {
        let held = remote.rows.clone();
        remote.batch_rows = batch_rows;
        remote.delete(&plan, "node", &vec![int(1), NULL]);
        remote.insert(&plan, "node", vec![int(10 + batch_rows as i64), NULL]);
        remote.insert(&plan, "node", vec![int(5_000 + batch_rows as i64), int(99)]);
        let synced = remote.sync(database, &plan);
        assert_eq!(synced.refusals(), [(0, "foreign_key"), (2, "foreign_key")], "batches of {batch_rows}");
        assert_eq!(database.number(&format!("SELECT count(*) FROM node WHERE id = {}", 10 + batch_rows)), 1);
        // What was refused is as it was.
        remote.rows.extend(held);
    }
    assert_eq!(database.number("SELECT count(*) FROM node WHERE id = 1"), 1);
}

/// A parent with a unique value whose key changes, and its child that goes with it: no cascade may take the child in between.
pub(crate) fn a_child_that_leaves_a_deleted_parent_survives(database: &Database) {
    database.application(
        "CREATE TABLE p (id {int} NOT NULL PRIMARY KEY, name text UNIQUE); \
         CREATE TABLE c (id {int} NOT NULL PRIMARY KEY, p {int} REFERENCES p (id) ON DELETE CASCADE); \
         INSERT INTO p VALUES (1, 'A'), (2, 'B'), (3, 'C'); INSERT INTO c VALUES (5, 2), (6, 3)",
    );
    let plan = super::database::plan(
        "name = \"moved\"\nversion = 1\n[tables.p]\nkey = [\"id\"]\nunique = [[\"name\"]]\n\
         columns = { id = \"int not null\", name = \"text\" }\n[tables.c]\nkey = [\"id\"]\n\
         references = [{ columns = [\"p\"], table = \"p\", target = [\"id\"] }]\n\
         columns = { id = \"int not null\", p = \"int\" }",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    for (batch_rows, from, to, child) in [(2_000, 2, 20, 5), (1, 3, 30, 6)] {
        let mut remote = Replica::synced(database, &plan, "anna");
        remote.batch_rows = batch_rows;
        let parent = remote.table(&plan, "p").into_iter().find(|row| row[0] == int(from)).expect("the parent");
        remote.insert(&plan, "p", vec![int(to), parent[1].clone()]);
        remote.update(&plan, "c", vec![int(child), int(to)]);
        remote.delete(&plan, "p", &parent);
        // One that can't go keeps nobody else from it.
        remote.insert(&plan, "c", vec![int(70 + from), int(99)]);
        let synced = remote.sync(database, &plan);
        assert_eq!(synced.refusals(), [(3, "foreign_key")], "batches of {batch_rows}: {:?}", synced.outcomes());
        assert_eq!(synced.outcomes().len(), 1);
        assert_eq!(database.number(&format!("SELECT p FROM c WHERE id = {child}")), to);
        assert_eq!(database.number(&format!("SELECT count(*) FROM p WHERE id = {from}")), 0);
    }
}

pub(crate) fn deletions_go_from_children_to_parents(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO node VALUES (1, NULL), (2, 1), (3, 2); INSERT INTO orders VALUES (1, 'north', 'x'); \
         INSERT INTO line VALUES (1, 1, 'north', '1'), (1, 2, 'north', '2')",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    for row in remote.table(&plan, "node") {
        remote.delete(&plan, "node", &row);
    }
    for row in remote.table(&plan, "line") {
        remote.delete(&plan, "line", &row);
    }
    remote.delete(&plan, "orders", &order(1, "north", "x"));
    remote.batch_rows = 1;
    let synced = remote.sync(database, &plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    for table in ["node", "orders", "line"] {
        assert_eq!(database.number(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}
