//! What the application's code leaves in a session of ours (PostgreSQL): nobody else meets it.

use headwater_consolidated::{Connection, Plan};
use headwater_protocol::Value;

use super::database::Database;
use super::replica::Replica;
use super::results::read;
use super::values::{customer, order, text};

/// What a session is like: its roles, all of its settings, and what it holds.
const SESSION_SQL: &str = "SELECT concat_ws('/', current_user, session_user, current_setting('role'), coalesce(nullif(current_setting('app.tenant', true), ''), '-'), \
    (SELECT string_agg(name || '=' || setting, ';' ORDER BY name) FROM pg_settings \
        WHERE setting <> reset_val AND name NOT LIKE 'transaction%'), \
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
    (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_cursors), \
    (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()))";

/// What a trigger may do to its session.
const DEEDS: [&str; 24] = [
    "SET ROLE hw_other",
    "SET search_path = elsewhere, public",
    "SET client_encoding = 'LATIN1'",
    "SET TimeZone = 'Asia/Tokyo'",
    "SET DateStyle = 'German'",
    "SET IntervalStyle = 'iso_8601'",
    "SET extra_float_digits = -10",
    "SET bytea_output = 'escape'",
    "SET lc_monetary = 'C.UTF-8'",
    "SET standard_conforming_strings = off",
    "SET array_nulls = off",
    "SET row_security = off",
    "SET session_replication_role = replica",
    "SET default_transaction_read_only = on",
    "SET default_transaction_isolation = 'serializable'",
    "SET statement_timeout = 1",
    "SET lock_timeout = 1",
    "SET enable_seqscan = off",
    "SET app.tenant = 'anna'",
    "PERFORM pg_advisory_lock(4711)",
    "PERFORM set_config('role', 'hw_other', false)",
    "CREATE TEMP TABLE IF NOT EXISTS member (user_name text, region text); INSERT INTO pg_temp.member VALUES ('ben', 'south')",
    "EXECUTE 'LISTEN news'",
    "IF NOT EXISTS (SELECT FROM pg_cursors WHERE name = 'kept') THEN EXECUTE 'DECLARE kept CURSOR WITH HOLD FOR SELECT 1'; END IF",
];

fn standard(database: &Database) -> Plan {
    let plan = database.standard();
    database.application(
        "CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.member (LIKE member); \
         INSERT INTO elsewhere.member VALUES ('ben', 'south'); \
         DO $$BEGIN CREATE ROLE hw_other; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END$$; \
         GRANT USAGE ON SCHEMA elsewhere TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA public, elsewhere TO PUBLIC; \
         INSERT INTO orders VALUES (1, 'north', 'bens'), (2, 'south', 'not bens')",
    );
    plan
}

fn on_insert(database: &Database, deed: &str) {
    database.application(&format!(
        "CREATE OR REPLACE FUNCTION deed() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {deed}; RETURN NULL; END$$; \
         CREATE OR REPLACE TRIGGER deed AFTER INSERT ON customer FOR EACH ROW EXECUTE FUNCTION deed()"
    ));
}

fn session(connection: &mut dyn Connection) -> String {
    match &connection.query(SESSION_SQL, &[]).expect("a session")[0][0] {
        Value::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// One worker, two users: what the trigger of one's upload does to the session, the other's sync does not meet.
pub(crate) fn what_a_trigger_sets_does_not_outlive_its_upload(database: &Database) {
    let plan = standard(database);
    let mut connection = database.connect();
    let fresh = session(&mut *connection);
    let (mut anna, mut ben) = (Replica::synced(database, &plan, "anna"), Replica::synced(database, &plan, "ben"));
    for (id, deed) in (0..).zip(DEEDS) {
        on_insert(database, deed);
        anna.insert(&plan, "customer", customer(id, &format!("c{id}"), "näme", 1));
        let synced = anna.try_sync(&mut *connection, &plan).unwrap_or_else(|error| panic!("{deed}: {error}"));
        assert!(synced.outcomes().is_empty(), "{deed}: {:?}", synced.outcomes());
        assert_eq!(session(&mut *connection), fresh, "{deed}");
        let came = ben.try_sync(&mut *connection, &plan).unwrap_or_else(|error| panic!("{deed}: {error}"));
        assert_eq!(came.upserts.len(), 1, "{deed}: the new customer, and no other's row");
        assert_eq!(ben.table(&plan, "orders"), [order(1, "north", "bens")], "{deed}");
        assert_eq!(anna.table(&plan, "orders").len(), 2, "{deed}");
    }
    assert_eq!(ben.table(&plan, "customer").len(), DEEDS.len());
    assert!(ben.table(&plan, "customer").iter().all(|row| row[2] == text("näme")));
}

/// A deferred trigger runs when the upload is whole, before its receipt is written; a function of a membership query before all.
pub(crate) fn what_runs_late_or_early_does_not_outlive_its_upload_either(database: &Database) {
    let plan = standard(database);
    database.application(
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN SET ROLE hw_other; SET search_path = elsewhere; \
             PERFORM pg_advisory_lock(1); RETURN NULL; END$$; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON customer DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late(); \
         ALTER TABLE member RENAME TO members; \
         CREATE FUNCTION mine() RETURNS SETOF members LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('app.tenant', 'x', false); \
             PERFORM pg_advisory_lock(2); RETURN QUERY SELECT * FROM members; END$$; \
         CREATE VIEW member AS SELECT * FROM mine()",
    );
    let mut connection = database.connect();
    let fresh = session(&mut *connection);
    let mut anna = Replica::new("anna");
    anna.try_sync(&mut *connection, &plan).expect("synced");
    // The answer to a download's end is not waited for, and the locks are gone with the next request.
    assert_eq!(session(&mut *connection), fresh, "a download");
    anna.insert(&plan, "customer", customer(1, "a", "x", 1));
    anna.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!(session(&mut *connection), fresh, "an upload");
    // What is refused leaves nothing either.
    anna.insert(&plan, "customer", customer(2, "a", "x", 1));
    let synced = anna.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!(synced.refusals(), [(0, "unique")]);
    assert_eq!(session(&mut *connection), fresh, "a refused row");
}

/// What a trigger sets is not there for the next statement of the same upload.
pub(crate) fn what_a_trigger_sets_does_not_reach_the_next_statement(database: &Database) {
    let plan = standard(database);
    let mut connection = database.connect();
    let mut anna = Replica::synced(database, &plan, "anna");
    let (mut id, mut orders) = (0, 2);
    for deed in DEEDS {
        on_insert(database, deed);
        for _ in 0..3 {
            id += 1;
            anna.insert(&plan, "customer", customer(id, &format!("ç{id}"), "Ærø – 北", 1));
        }
        orders += 1;
        anna.insert(&plan, "orders", order(orders, "south", "näher"));
        anna.batch_rows = 1;
        let synced = anna.try_sync(&mut *connection, &plan).unwrap_or_else(|error| panic!("{deed}: {error}"));
        assert!(synced.outcomes().is_empty(), "{deed}: {:?}", synced.outcomes());
        assert_eq!(synced.count(), 0, "{deed}: all is stored as it was sent");
    }
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'Ærø – 北'"), id);
    // A trigger that was switched off would have noted nothing.
    let whole = Replica::synced(database, &plan, "anna");
    assert_eq!(whole.table(&plan, "customer"), anna.table(&plan, "customer"));
    assert_eq!(database.number("SELECT count(*) FROM headwater.side_customer"), id);
    assert_eq!(whole.table(&plan, "orders").len() as i64, orders);
}

/// A named query's session is the next one's too.
pub(crate) fn a_query_leaves_no_lock(database: &Database) {
    let mut connection = database.backend.connect_for_queries().expect("a connection");
    let read = read(&mut *connection, "SELECT pg_advisory_lock(7) IS NULL AS locked", &[]).expect("read");
    assert_eq!(read.rows.len(), 1);
    connection.rollback().expect("rolled back");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database \
        WHERE datname = current_database())";
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while database.number(held) != 0 {
        assert!(std::time::Instant::now() < deadline, "the lock stays");
    }
}
