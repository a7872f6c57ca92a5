//! What is no row's fault: a deadlock, a lock that is not had in time, a connection that is ended, a disk that is full. The upload is
//! rolled back whole, nothing is set aside, and the same upload is applied once when the reason has passed.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use headwater_consolidated::{Connection, Dialect, Error, Plan};
use headwater_protocol::Value;

use super::counting::Counting;
use super::database::Database;
use super::replica::Replica;
use super::values::customer;

/// Four customers, and a remote that changes all of them in batches of one.
fn changed(database: &Database, plan: &Plan) -> Replica {
    database.application(
        "INSERT INTO customer VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1), (3, 'c', 'x', 1), (4, 'd', 'x', 1)",
    );
    let mut remote = Replica::synced(database, plan, "anna");
    for (id, code) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        remote.update(plan, "customer", customer(id, code, "changed", 1));
    }
    remote.insert(plan, "customer", customer(5, "e", "changed", 1));
    remote.batch_rows = 1;
    remote
}

/// Has to be retried; then the same upload is applied, once.
#[track_caller]
fn assert_passes(database: &Database, plan: &Plan, remote: &mut Replica, failed: &Result<usize, Error>, broken: bool) {
    let is_retry = matches!(failed, Err(Error::Retry { broken: found, .. }) if *found == broken);
    assert!(is_retry, "{failed:?}");
    let changed = "SELECT count(*) FROM customer WHERE name = 'changed'";
    assert_eq!(database.number(changed), 0, "rolled back whole");
    let recorded = if database.dialect() == Dialect::Sqlite { "headwater_remote" } else { "headwater.remote" };
    let applied = format!("SELECT count(*) FROM {recorded} WHERE upload_sequence > 0");
    assert_eq!(database.number(&applied), 0, "its number is still free");
    let pending = remote.pending.clone();
    let synced = remote.sync(database, plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    assert_eq!(synced.uploaded.map(|uploaded| uploaded.counts.updated), Some(4));
    assert_eq!(database.number(changed), 5);
    // Once more, as after a receipt that got lost: nothing is done again.
    (remote.pending, remote.acknowledged) = (pending, 0);
    let again = remote.upload_only(&mut *database.connect(), plan).expect("replayed");
    assert_eq!(again.verdict, headwater_consolidated::upload::Verdict::Replayed);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 5);
}

fn upload(remote: &Replica, connection: &mut dyn Connection, plan: &Plan) -> Result<usize, Error> {
    remote.greet(connection, plan)?;
    Ok(remote.upload_only(connection, plan)?.receipt.outcomes.len())
}

fn number(connection: &mut dyn Connection, sql: &str) -> i64 {
    match connection.query(sql, &[]).expect(sql).first().and_then(|row| row.first()) {
        Some(Value::Int(number)) => *number,
        other => panic!("{sql}: {other:?}"),
    }
}

/// Waits until a query gives a number other than 0.
fn wait_until(database: &Database, sql: &str) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while database.number(sql) == 0 {
        assert!(Instant::now() < deadline, "{sql} stays 0");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn a_full_disk_passes(database: &Database) {
    let plan = database.standard();
    let mut remote = changed(database, &plan);
    for id in 10..400 {
        remote.insert(&plan, "customer", customer(id, &format!("c{id}"), &"long ".repeat(100), 1));
    }
    let mut connection = database.connect();
    let pages = number(&mut *connection, "PRAGMA page_count");
    connection.query(&format!("PRAGMA max_page_count = {}", pages + 20), &[]).expect("a smaller disk");
    let failed = upload(&remote, &mut *connection, &plan);
    let most = "SELECT count(*) FROM customer WHERE id >= 10";
    assert_eq!(database.number(most), 0);
    remote.pending.truncate(5);
    assert_passes(database, &plan, &mut remote, &failed, false);
}

/// The application holds one row and waits for another, which the upload holds when it comes to the first.
pub(crate) fn a_deadlock_passes(database: &Database) {
    let plan = database.standard();
    let mut remote = changed(database, &plan);
    let mut counting = Counting::new(database.connect());
    let (go, gone) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (held, is_held) = mpsc::channel::<()>();
        let application = scope.spawn(move || {
            let mut application = database.connect();
            application.batch("SET deadlock_timeout = '1h'; SET lock_timeout = 0").expect("set");
            application.batch("BEGIN; UPDATE customer SET changed = 1 WHERE id = 4").expect("held");
            held.send(()).expect("somebody waits");
            gone.recv().expect("it goes on");
            application.batch("UPDATE customer SET changed = 1 WHERE id = 1").expect("had, when the upload is gone");
            application.batch("ROLLBACK").expect("rolled back");
        });
        is_held.recv().expect("the application holds a row");
        let mut go = Some(go);
        counting.before_update = Some(Box::new(move |count| {
            if count == 2
                && let Some(go) = go.take()
            {
                go.send(()).expect("the application waits");
                let waits = "SELECT count(*) FROM pg_stat_activity \
                             WHERE datname = current_database() AND wait_event_type = 'Lock'";
                wait_until(database, waits);
            }
        }));
        let failed = upload(&remote, &mut counting, &plan);
        application.join().expect("the application goes on");
        let detail = failed.as_ref().expect_err("a deadlock").to_string();
        assert!(detail.contains("40P01"), "{detail}");
        assert_passes(database, &plan, &mut remote, &failed, false);
    });
}

pub(crate) fn a_lock_that_is_not_had_in_time_passes(database: &Database) {
    let plan = database.standard();
    let mut remote = changed(database, &plan);
    let mut application = database.connect();
    application.batch("BEGIN; UPDATE customer SET changed = 1 WHERE id = 3").expect("held");
    let mut connection = database.connect();
    connection.batch("SET lock_timeout = '50ms'").expect("set");
    let failed = upload(&remote, &mut *connection, &plan);
    let detail = failed.as_ref().expect_err("no lock").to_string();
    assert!(detail.contains("55P03"), "{detail}");
    application.batch("ROLLBACK").expect("rolled back");
    assert_passes(database, &plan, &mut remote, &failed, false);
}

pub(crate) fn a_connection_that_is_ended_passes(database: &Database) {
    let plan = database.standard();
    for count in [1, 3] {
        let mut remote = changed(database, &plan);
        let mut counting = Counting::new(database.connect());
        let process = number(&mut counting, "SELECT pg_backend_pid()");
        counting.before_update = Some(Box::new(move |now| {
            if now == count {
                database.application(&format!("SELECT pg_terminate_backend({process})"));
                wait_until(
                    database,
                    &format!("SELECT (count(*) = 0)::int::bigint FROM pg_stat_activity WHERE pid = {process}"),
                );
            }
        }));
        let failed = upload(&remote, &mut counting, &plan);
        assert_passes(database, &plan, &mut remote, &failed, true);
        database.application("DELETE FROM customer; DELETE FROM headwater.remote");
    }
}
