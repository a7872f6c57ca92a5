//! A synchronous standby that is away: commits are left after a while, and no more of them than waited when it was found out.

use std::time::Duration;

use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::{Backend as _, CommitWaits, Connection, Error, Mode};
use headwater_protocol::Value;
use headwater_testkit::{Postgres as Cluster, sql, wait_until};

/// A cluster whose standby is away, a database with table `t`, and a limit.
fn away() -> (Cluster, String, Postgres, CommitWaits) {
    let cluster = Cluster::start().expect("a cluster");
    let url = cluster.create_database().expect("a database");
    sql(&url, "CREATE TABLE t (id int PRIMARY KEY)").expect("a table");
    let backend = Postgres::new(&url, Settings::default()).expect("an address");
    let waits = backend.commit_waits();
    waits.set_limit(Duration::from_millis(200));
    cluster.lose_standby().expect("a standby that is away");
    (cluster, url, backend, waits)
}

fn insert(connection: &mut dyn Connection, id: i64) -> Result<(), Error> {
    connection.begin(Mode::Upload)?;
    connection.execute("INSERT INTO t VALUES (?1::bigint)", &[Value::Int(id)])?;
    connection.commit()
}

fn ids(url: &str) -> Vec<String> {
    let rows = sql(url, "SELECT id FROM t ORDER BY id").expect("rows");
    rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
}

#[test]
fn a_commit_is_left_and_no_further_one_waits() {
    let (cluster, url, backend, waits) = away();
    let mut left = backend.connect().expect("a connection");
    let error = insert(&mut *left, 1).expect_err("nobody knows what became of it");
    assert!(error.is_broken() && error.to_string().contains("'away'"), "{error}");
    // Whoever goes on with the connection is told at once.
    assert!(left.query("SELECT 1", &[]).is_err_and(|error| error.is_broken()));
    let waiting = waits.now().expect("it waits");
    assert_eq!(waiting.commits, 1);
    assert!(waiting.what.contains("SyncRep"), "{waiting:?}");

    let mut another = backend.connect().expect("a connection");
    let error = insert(&mut *another, 2).expect_err("it would wait too");
    assert!(matches!(error, Error::Retry { broken: false, .. }), "{error:?}");
    // What writes nothing has nothing to wait for.
    another.begin(Mode::Upload).expect("begun");
    another.query("SELECT count(*) FROM t", &[]).expect("read");
    another.commit().expect("ended");
    assert_eq!(cluster.waiting_commits().expect("a count"), 1);
    another.look_at_commits().expect("looked");
    assert!(waits.now().is_some(), "it waits still");

    cluster.find_standby().expect("the standby");
    let ends = || {
        another.look_at_commits().expect("looked");
        waits.now().is_none()
    };
    assert!(wait_until(Duration::from_mins(1), ends), "{:?}", waits.now());
    assert_eq!(ids(&url), ["1"], "the one that was left took place, the other did not");
    insert(&mut *another, 3).expect("committed");
    assert_eq!(ids(&url), ["1", "3"]);
}

#[test]
fn a_statement_outside_of_a_transaction_is_left_too() {
    let (cluster, url, backend, waits) = away();
    let mut connection = backend.connect().expect("a connection");
    let error = connection.execute("INSERT INTO t VALUES (?1::bigint)", &[Value::Int(1)]).expect_err("it waits");
    assert!(error.is_broken(), "{error:?}");
    assert!(waits.now().is_some());
    cluster.find_standby().expect("the standby");
    assert!(wait_until(Duration::from_mins(1), || ids(&url) == ["1"]));
}

#[test]
fn a_slow_statement_is_none_that_waits() {
    let (cluster, _url, backend, waits) = away();
    let mut connection = backend.connect().expect("a connection");
    connection.query("SELECT pg_sleep(1)", &[]).expect("it takes what it takes");
    assert_eq!(waits.now(), None);
    drop(cluster);
}
