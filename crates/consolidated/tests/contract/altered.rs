//! Named queries while what they read is rewritten: no answer is of a state that never was.

use std::sync::mpsc;
use std::time::Duration;

use headwater_consolidated::Error;
use headwater_consolidated::results::ReadOptions;
use headwater_protocol::Value;

use super::database::Database;
use super::results::{read, read_with};

const TABLES: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE whole (id bigint, v text) PARTITION BY RANGE (id); \
    CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10); CREATE TABLE high PARTITION OF whole FOR VALUES FROM (10) TO (100); \
    CREATE FUNCTION counted() RETURNS bigint STABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM t); END'; \
    CREATE FUNCTION parts() RETURNS bigint STABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM whole); END'; \
    CREATE VIEW shown AS SELECT count(*) AS n FROM t; \
    CREATE VIEW inner_one AS SELECT counted() AS n; CREATE VIEW outer_one AS SELECT n FROM inner_one; \
    CREATE FUNCTION rest(bigint) RETURNS bigint STABLE LANGUAGE plpgsql AS \
    'BEGIN IF $1 % 1000 = 0 THEN PERFORM pg_advisory_xact_lock_shared(77); END IF; RETURN (SELECT count(*) FROM t); END'; \
    INSERT INTO t SELECT i, 'x' FROM generate_series(1, 20) i; INSERT INTO whole SELECT i, 'x' FROM generate_series(1, 20) i";

/// What each query says is 20, whatever it waits for.
pub(crate) fn a_query_reads_no_table_as_empty_that_is_rewritten(database: &Database) {
    database.application(TABLES);
    let rewritten = "ALTER TABLE t ADD COLUMN w float DEFAULT random(); ALTER TABLE t DROP COLUMN w";
    let reloaded = "TRUNCATE t; INSERT INTO t (id, v) SELECT i, 'y' FROM generate_series(1, 20) i";
    let replaced = "CREATE TABLE n (LIKE t INCLUDING ALL); INSERT INTO n SELECT * FROM t; DROP VIEW shown; DROP TABLE t; \
                    ALTER TABLE n RENAME TO t; CREATE VIEW shown AS SELECT count(*) AS n FROM t";
    let moved = "ALTER TABLE whole DETACH PARTITION high; ALTER TABLE whole ATTACH PARTITION high FOR VALUES FROM (10) TO (100)";
    for isolation in ["read committed", "repeatable read"] {
        for (query, changes) in [
            ("SELECT count(*) FROM t", [rewritten, reloaded, replaced]),
            ("SELECT n FROM shown", [rewritten, reloaded, rewritten]),
            ("SELECT counted()", [rewritten, reloaded, replaced]),
            ("SELECT n FROM outer_one", [rewritten, reloaded, replaced]),
            (
                "SELECT counted() FROM (SELECT 1) AS one WHERE EXISTS (SELECT FROM whole)",
                [rewritten, reloaded, replaced],
            ),
            ("SELECT count(*) FROM whole", [moved, moved, moved]),
            ("SELECT parts()", [moved, moved, moved]),
        ] {
            for change in changes {
                let mut connection = database.connect();
                connection.batch(&format!("SET default_transaction_isolation = '{isolation}'")).expect("set");
                // Prepared before and kept, the second time.
                for _ in 0..2 {
                    let mut other = database.connect();
                    other.batch(&format!("BEGIN; {change}")).expect(change);
                    let (begun, has_begun) = mpsc::channel();
                    let got = std::thread::scope(|scope| {
                        let reading = scope.spawn(|| {
                            begun.send(()).expect("somebody waits");
                            read(&mut *connection, query, &[])
                        });
                        has_begun.recv().expect("it has begun");
                        waits(database);
                        other.batch("COMMIT").expect("committed");
                        reading.join().expect("no panic")
                    });
                    let rows = got.unwrap_or_else(|error| panic!("{query} beside {change}: {error}")).rows;
                    assert_eq!(rows, [vec![Value::Int(20)]], "{isolation}: {query} beside {change}");
                }
            }
        }
    }
}

/// Until a statement waits for a lock.
fn waits(database: &Database) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while database.number(sql) == 0 {
        assert!(std::time::Instant::now() < deadline, "nothing waits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rows have been given, and then a table is reloaded that a function goes on reading.
pub(crate) fn an_answer_that_has_begun_ends_as_broken(database: &Database) {
    database.application(TABLES);
    // The lock keeps the function from its end until the table is reloaded; it reads the table for the first time after that.
    let mut keeper = database.connect();
    keeper.batch("SELECT pg_advisory_lock(77)").expect("a lock");
    let query = "SELECT repeat('x', 5000) AS filler, CASE WHEN i = 1000 THEN rest(i) END AS n FROM generate_series(1, 1000) AS g(i)";
    let mut connection = database.connect();
    let got = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_with(&mut *connection, query, &[], &ReadOptions::default(), usize::MAX));
        waits(database);
        database.application("TRUNCATE t; INSERT INTO t SELECT i, 'y' FROM generate_series(1, 20) i");
        keeper.batch("SELECT pg_advisory_unlock(77)").expect("unlocked");
        reading.join().expect("no panic")
    });
    assert!(matches!(got, Err(Error::Retry { broken: false, .. })), "{got:?}");
    assert_eq!(read(&mut *connection, "SELECT counted()", &[]).expect("it goes on").rows, [vec![Value::Int(20)]]);
}
