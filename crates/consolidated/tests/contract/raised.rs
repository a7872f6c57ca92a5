//! What the application's code fails at is the row's fault, whatever the failure looks like: the row is set aside, and the rest goes on.

use headwater_consolidated::{Dialect, Error, Plan, upload};
use headwater_protocol::message::Outcome;

use super::database::Database;
use super::replica::Replica;
use super::values::customer;

/// Codes that mean something else where the server itself has them.
const CODES: [&str; 16] = [
    "55006", "53400", "40001", "40P01", "57014", "55P03", "08000", "08006", "25006", "58000", "58030", "53100",
    "57P01", "XX000", "XX001", "42501",
];

/// A customer whose name makes the database's own code do something.
fn triggered(database: &Database, statements: &str) -> (Plan, Replica) {
    let plan = database.standard();
    database.application(&format!(
        "CREATE FUNCTION deed() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {statements} RETURN NEW; END$$; \
         CREATE TRIGGER deed BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION deed()"
    ));
    let remote = Replica::synced(database, &plan, "anna");
    (plan, remote)
}

fn insert(remote: &mut Replica, plan: &Plan, names: &[&str]) {
    for (id, name) in (100..).zip(names) {
        remote.insert(plan, "customer", customer(id, &format!("c{id}"), name, 1));
    }
}

pub(crate) fn an_error_of_any_code_is_the_rows(database: &Database) {
    let (plan, mut remote) =
        triggered(database, "IF NEW.name <> 'good' THEN RAISE EXCEPTION 'no' USING ERRCODE = NEW.name; END IF;");
    insert(&mut remote, &plan, &["good"].repeat(60));
    for (id, code) in (0..).zip(CODES) {
        remote.insert(&plan, "customer", customer(id, &format!("b{id}"), code, 1));
    }
    let synced = remote.sync(database, &plan);
    let expected: Vec<(u64, &str)> =
        (60..).zip(CODES).map(|(place, code)| (place, if code == "42501" { "policy" } else { "trigger" })).collect();
    assert_eq!(synced.refusals(), expected);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 60);
}

/// Nothing was refused then, unlike where the trigger returns no row.
pub(crate) fn a_row_that_a_trigger_gives_another_key_says_so(database: &Database) {
    let (plan, mut remote) = triggered(
        database,
        "IF NEW.name = 'moved' THEN NEW.id := NEW.id + 1000; ELSIF NEW.name = 'none' THEN RETURN NULL; END IF;",
    );
    insert(&mut remote, &plan, &["good", "moved", "none", "good", "moved"]);
    let another = "a trigger of the database gave the row of table customer another key";
    let none = "a rule of the database kept the row out of table customer";
    let synced = remote.sync(database, &plan);
    let told: Vec<(u64, &str)> = synced
        .outcomes()
        .iter()
        .map(|(ordinal, outcome)| match outcome {
            Outcome::Refused(refusal) => (*ordinal, refusal.message.as_str()),
            Outcome::Conflict(_) => (*ordinal, "a conflict"),
        })
        .collect();
    assert_eq!(told, [(1, another), (2, none), (4, another)]);
    assert_eq!(synced.refusals(), [(1, "trigger"), (2, "trigger"), (4, "trigger")]);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 2);
}

/// What nobody raised on purpose, and may pass: it is tried again first.
pub(crate) fn what_returns_is_found_and_set_aside(database: &Database) {
    let (plan, mut remote) =
        triggered(database, "IF NEW.name = 'bad' THEN EXECUTE 'ALTER TABLE customer ADD COLUMN more int'; END IF;");
    insert(&mut remote, &plan, &["good", "good", "bad", "good", "bad", "good"]);
    let mut connection = database.connect();
    remote.greet(&mut *connection, &plan).expect("greeted");
    let tried = remote.upload_only(&mut *connection, &plan);
    assert!(
        matches!(&tried, Err(error @ Error::InDoubt { detail, .. }) if error.is_retryable() && detail.contains("55006")),
        "{tried:?}"
    );
    assert_eq!(database.number("SELECT count(*) FROM customer"), 0, "rolled back whole");
    let applied = remote.upload_by(upload::apply_isolating, &mut *connection, &plan).expect("applied");
    assert_eq!(applied.receipt.outcomes.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'good'"), 4);
}

/// The same of a deferred trigger, which runs when the upload is whole.
pub(crate) fn what_returns_at_the_end_is_found_too(database: &Database) {
    let plan = database.standard();
    database.application(
        "CREATE TABLE busy (id int PRIMARY KEY); INSERT INTO busy VALUES (1); \
         CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.name = 'bad' THEN \
             PERFORM 1 FROM busy FOR UPDATE NOWAIT; ELSIF NEW.name = 'raised' THEN RAISE SQLSTATE '40001'; END IF; RETURN NULL; END$$; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON customer DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    insert(&mut remote, &plan, &["good", "bad", "good", "raised"]);
    let mut other = database.connect();
    other.batch("BEGIN; SELECT FROM busy FOR UPDATE").expect("held");
    let mut connection = database.connect();
    remote.greet(&mut *connection, &plan).expect("greeted");
    remote.batch_rows = 1;
    let tried = remote.upload_only(&mut *connection, &plan);
    assert!(matches!(&tried, Err(Error::InDoubt { .. } | Error::RemoteBusy)), "{tried:?}");
    let applied = remote.upload_by(upload::apply_isolating, &mut *connection, &plan).expect("applied");
    assert_eq!(applied.receipt.outcomes.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 2);
}

/// SQLite has one code for all that an expression fails at.
pub(crate) fn an_expression_that_fails_is_the_rows(database: &Database) {
    assert_eq!(database.dialect(), Dialect::Sqlite);
    for deed in [
        "CREATE INDEX by_json ON customer (json_extract(name, '$.a'))",
        "CREATE TRIGGER deed AFTER INSERT ON customer BEGIN SELECT json_extract(NEW.name, '$.a'); END",
        "CREATE TRIGGER deed BEFORE INSERT ON customer WHEN NEW.name = 'bad' BEGIN SELECT abs(-9223372036854775807 - 1); END",
        "ALTER TABLE customer ADD COLUMN made TEXT AS (json_extract(name, '$.a'))",
        "ALTER TABLE customer ADD COLUMN more TEXT CHECK (json_extract(name, '$.a') IS NULL)",
    ] {
        let database = Database::sqlite();
        let plan = database.standard();
        database.application(deed);
        headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
        let mut remote = Replica::synced(&database, &plan, "anna");
        insert(&mut remote, &plan, &["{}", "{}", "bad", "{}"]);
        let many = ["{}"; 60].map(|name| name);
        for (id, name) in (1000..).zip(many) {
            remote.insert(&plan, "customer", customer(id, &format!("m{id}"), name, 1));
        }
        let synced = remote.sync(&database, &plan);
        let refused: Vec<u64> = synced.refusals().iter().map(|(ordinal, _)| *ordinal).collect();
        assert_eq!(refused, [2], "{deed}");
        assert_eq!(database.number("SELECT count(id) FROM customer"), 63, "{deed}");
    }
}

/// A trigger that does not fit the schema any more refuses the rows of its table, and of no other.
pub(crate) fn a_trigger_that_does_not_fit_holds_up_its_table_alone(database: &Database) {
    let plan = database.standard();
    database.application(
        "CREATE TABLE audit (x); CREATE TRIGGER deed AFTER INSERT ON customer BEGIN INSERT INTO audit VALUES (NEW.id); END; \
         DROP TABLE audit",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    insert(&mut remote, &plan, &["a", "b"]);
    remote.insert(&plan, "orders", super::values::order(1, "north", "x"));
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.refusals(), [(0, "trigger"), (1, "trigger")]);
    assert_eq!(database.number("SELECT count(*) FROM orders"), 1);
}
