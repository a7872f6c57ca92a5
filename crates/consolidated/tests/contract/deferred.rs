//! Constraints that are looked at when the transaction ends are looked at before: what breaks them is refused, never the upload.

use headwater_consolidated::check::{Severity, check};
use headwater_consolidated::{Plan, track};
use headwater_protocol::Value;
use headwater_protocol::message::{Outcome, RefusalCode};

use super::counting::Counting;
use super::database::{Database, plan};
use super::replica::Replica;
use super::values::{NULL, customer, int, line, order, text};

/// A unique constraint and a trigger of the application's, both looked at when it commits.
pub(crate) fn what_breaks_a_deferred_constraint_is_refused_alone(database: &Database) {
    let plan = database.standard();
    database.application(
        "ALTER TABLE customer DROP CONSTRAINT customer_code_key; \
         ALTER TABLE customer ADD CONSTRAINT late_code UNIQUE (code) DEFERRABLE INITIALLY DEFERRED; \
         CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN IF NEW.name = 'late' THEN RAISE EXCEPTION 'no % at all', NEW.name; END IF; RETURN NULL; END$$; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON customer DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION late(); \
         INSERT INTO customer VALUES (1000, 'taken', 'x', 1), (1001, 'one', 'x', 1), (1002, 'two', 'x', 1)",
    );
    for batch_rows in [2_000, 7] {
        let mut remote = Replica::synced(database, &plan, "anna");
        remote.batch_rows = batch_rows;
        let first = batch_rows as i64 * 10;
        for id in 0..60 {
            let code = if id == 17 { "taken".to_owned() } else { format!("c{}", first + id) };
            let name = if id == 41 || id == 42 { "late" } else { "x" };
            remote.insert(&plan, "customer", customer(first + id, &code, name, 1));
        }
        // Beside them, two that change places.
        let held = remote.table(&plan, "customer");
        let code = |id: i64| held.iter().find(|row| row[0] == int(id)).expect("held")[1].clone();
        remote.update(&plan, "customer", vec![int(1001), code(1002), text("x"), int(1)]);
        remote.update(&plan, "customer", vec![int(1002), code(1001), text("x"), int(1)]);
        let synced = remote.sync(database, &plan);
        assert_eq!(synced.refusals(), [(17, "unique"), (41, "trigger"), (42, "trigger")], "batches of {batch_rows}");
        assert_eq!(
            database.number(&format!("SELECT count(*) FROM customer WHERE id BETWEEN {first} AND {first} + 59")),
            57
        );
    }
}

/// A rule over several rows, which holds for them together: what is at fault elsewhere does not tear them apart.
pub(crate) fn rows_that_a_rule_holds_together_stay_together(database: &Database) {
    let plan = database.standard();
    database.application(
        "CREATE FUNCTION has_lines() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
             IF NOT EXISTS (SELECT 1 FROM line WHERE order_id = NEW.id) THEN RAISE EXCEPTION 'order % has no lines', NEW.id; END IF; \
             RETURN NULL; END$$; \
         CREATE CONSTRAINT TRIGGER has_lines AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION has_lines()",
    );
    for batch_rows in [2_000, 1] {
        let first = batch_rows as i64 * 10;
        let mut remote = Replica::synced(database, &plan, "anna");
        remote.batch_rows = batch_rows;
        for id in first..first + 5 {
            remote.insert(&plan, "orders", order(id, "north", "x"));
        }
        // The third order has no line, the fourth one at fault.
        for id in [first, first + 1, first + 3, first + 4] {
            remote.insert(&plan, "line", line(id, 1, "north", if id == first + 3 { "-1" } else { "1" }));
        }
        let synced = remote.sync(database, &plan);
        assert_eq!(synced.refusals(), [(2, "trigger"), (3, "trigger"), (7, "check")], "batches of {batch_rows}");
        assert_eq!(
            database.number(&format!("SELECT count(*) FROM orders WHERE id >= {first} AND id < {first} + 5")),
            3
        );
    }
}

/// The same, where the rows have no order among them: one gives what the other takes, below a row that stays as it is.
pub(crate) fn rows_that_share_a_parent_stay_together(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'north', 'x'), (3, 'north', 'x'); \
         INSERT INTO line VALUES (1, 1, 'north', 5), (1, 2, 'north', 5), (2, 1, 'north', 5), (2, 2, 'north', 5), \
             (3, 1, 'north', 5), (3, 2, 'north', 5); \
         CREATE FUNCTION ten() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
             IF (SELECT sum(amount) FROM line WHERE order_id IN (NEW.order_id, OLD.order_id)) <> 10 THEN \
                 RAISE EXCEPTION 'not ten'; END IF; RETURN NULL; END$$; \
         CREATE CONSTRAINT TRIGGER ten AFTER INSERT OR UPDATE OR DELETE ON line DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION ten()",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.batch_rows = 1;
    // From line to line, from a line to a new one, and one that is not ten.
    remote.update(&plan, "line", line(1, 1, "north", "2"));
    remote.update(&plan, "line", line(1, 2, "north", "8"));
    remote.delete(&plan, "line", &line(2, 1, "north", "5"));
    remote.insert(&plan, "line", line(2, 3, "north", "5"));
    remote.update(&plan, "line", line(3, 1, "north", "6"));
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(4, "trigger")]);
    assert_eq!(database.number("SELECT count(*) FROM line WHERE no = 3 OR amount IN (2, 8)"), 3);
}

/// References that can't be NULL, in a circle, and one at fault.
pub(crate) fn a_circle_that_only_a_deferred_constraint_allows(database: &Database) {
    database.application(
        "CREATE TABLE a (id {int} NOT NULL PRIMARY KEY, b {int} NOT NULL); \
         CREATE TABLE b (id {int} NOT NULL PRIMARY KEY, a {int} NOT NULL REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED); \
         ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b (id) DEFERRABLE INITIALLY DEFERRED",
    );
    let plan = plan(
        "name = \"circle\"\nversion = 1\n[tables.a]\nkey = [\"id\"]\nreferences = [{ columns = [\"b\"], table = \"b\" }]\n\
         columns = { id = \"int not null\", b = \"int not null\" }\n[tables.b]\nkey = [\"id\"]\n\
         references = [{ columns = [\"a\"], table = \"a\" }]\ncolumns = { id = \"int not null\", a = \"int not null\" }",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..10 {
        remote.insert(&plan, "a", vec![int(id), int((id + 1) % 10)]);
        remote.insert(&plan, "b", vec![int(id), int(id)]);
    }
    remote.insert(&plan, "a", vec![int(50), int(99)]);
    remote.insert(&plan, "b", vec![int(50), int(50)]);
    remote.batch_rows = 3;
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(10, "foreign_key"), (21, "foreign_key")]);
    assert_eq!(database.number("SELECT count(*) FROM a JOIN b ON b.a = a.id"), 10);
}

/// A constraint that nothing but the commit finds broken: all is set aside, and the next upload is not held up.
pub(crate) fn a_commit_that_is_refused_whatever_is_applied_blocks_nothing(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.insert(&plan, "customer", customer(1, "a", "x", 1));
    remote.insert(&plan, "node", vec![int(1), NULL]);
    let mut counting = Counting::new(database.connect());
    counting.commits_refused = 2;
    let uploaded = remote.upload(&mut counting, &plan).expect("it goes through");
    let codes: Vec<RefusalCode> = uploaded
        .receipt
        .outcomes
        .iter()
        .map(|(_, outcome)| match outcome {
            Outcome::Refused(refusal) => refusal.code,
            Outcome::Conflict(_) => panic!("no conflict"),
        })
        .collect();
    assert_eq!(codes, [RefusalCode::Trigger, RefusalCode::Trigger]);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 0);
    remote.rows.clear();
    remote.insert(&plan, "customer", customer(2, "b", "x", 1));
    assert!(remote.sync(database, &plan).outcomes().is_empty());
}

/// A trigger of SQLite's that ends the transaction, instead of refusing the row.
pub(crate) fn a_trigger_that_rolls_back_blocks_nothing(database: &Database) {
    let plan = database.standard();
    database.application(
        "CREATE TRIGGER ends BEFORE INSERT ON customer WHEN NEW.name = 'end' BEGIN SELECT RAISE(ROLLBACK, 'ended'); END",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.insert(&plan, "customer", customer(1, "a", "x", 1));
    remote.insert(&plan, "customer", customer(2, "b", "end", 1));
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(0, "trigger"), (1, "trigger")]);
    remote.rows.clear();
    remote.insert(&plan, "customer", customer(3, "c", "x", 1));
    assert!(remote.sync(database, &plan).outcomes().is_empty());
    assert_eq!(database.rows("SELECT id FROM customer"), [vec![Value::Int(3)]]);
}

fn deferrable_keys(database: &Database, plan: &Plan) -> Vec<String> {
    let findings = check(&mut *database.connect(), plan).expect("checked");
    let of_key = findings.into_iter().filter(|finding| finding.code == "key_deferrable");
    of_key.inspect(|finding| assert_eq!(finding.severity, Severity::Error)).map(|finding| finding.mend).collect()
}

/// PostgreSQL finds no conflict of an insert by it. `check` says so beforehand, with the statement that mends it.
pub(crate) fn a_deferrable_key_is_named_by_check_and_by_the_refusal(create: &dyn Fn() -> Database) {
    for (constraints, added) in [
        ("PRIMARY KEY (\"No\", item) DEFERRABLE", "PRIMARY KEY (\"No\", \"item\")"),
        (
            "CONSTRAINT \"A key\" PRIMARY KEY (item, \"No\") DEFERRABLE INITIALLY DEFERRED",
            "PRIMARY KEY (\"item\", \"No\")",
        ),
        ("UNIQUE (\"No\", item) DEFERRABLE", "UNIQUE (\"No\", \"item\")"),
        // An index that would do does not help.
        ("UNIQUE (item, \"No\"), UNIQUE (\"No\", item) DEFERRABLE", "UNIQUE (\"No\", \"item\")"),
    ] {
        let database = &create();
        database.application(&format!(
            "CREATE SCHEMA shop; CREATE TABLE shop.\"Line\" (\"No\" int NOT NULL, item int NOT NULL, v text, {constraints})"
        ));
        let of = |direction: &str| {
            plan(&format!(
                "name = \"deferrable\"\nversion = 1\n[tables.Line]\nschema = \"shop\"\nkey = [\"No\", \"item\"]\n{direction}\
                 columns = {{ No = \"int not null\", item = \"int not null\", v = \"text\" }}"
            ))
        };
        assert_eq!(deferrable_keys(database, &of("direction = \"download\"\n")), [""; 0], "{constraints}");
        let plan = of("");
        track::track(&mut *database.connect(), &plan).expect("tracked");
        let mends = deferrable_keys(database, &plan);
        let [mend] = mends.as_slice() else { panic!("{constraints}: {mends:?}") };
        assert!(mend.contains(&format!(", ADD {added}`")), "{mend}");
        let mut remote = Replica::synced(database, &plan, "anna");
        remote.insert(&plan, "Line", vec![int(1), int(2), text("x")]);
        match remote.sync(database, &plan).outcomes() {
            [(0, Outcome::Refused(refused))] => {
                assert_eq!(refused.code, RefusalCode::Policy);
                assert!(
                    refused.message.starts_with("setup: table Line of the consolidated database has a deferrable key")
                );
            }
            other => panic!("{constraints}: {other:?}"),
        }
        database.application(mend.split('`').nth(1).expect("a statement"));
        assert_eq!(deferrable_keys(database, &plan), [""; 0], "{constraints}");
        let mut remote = Replica::synced(database, &plan, "ben");
        remote.insert(&plan, "Line", vec![int(1), int(2), text("x")]);
        assert!(remote.sync(database, &plan).outcomes().is_empty(), "{constraints}");
    }
}
