//! The throw-away PostgreSQL does what tests rely on: real databases, restarts on the same port, and nothing left behind.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use headwater_testkit::{Postgres, sql, wait_until};

fn cell(url: &str, query: &str) -> Result<String> {
    let rows = sql(url, query)?;
    Ok(rows.into_iter().flatten().flatten().next().unwrap_or_default())
}

#[test]
fn databases_of_the_shared_cluster_are_apart() -> Result<()> {
    let cluster = Postgres::shared()?;
    let (one, other) = (cluster.create_database()?, cluster.create_database()?);
    assert_ne!(one, other);
    sql(&one, "CREATE TABLE t (id bigint PRIMARY KEY, note text); INSERT INTO t VALUES (1, NULL), (2, 'two')")?;
    let rows = sql(&one, "SELECT 'an earlier result'; SELECT id, note FROM t ORDER BY id")?;
    assert_eq!(rows, [[Some("1".to_owned()), None], [Some("2".to_owned()), Some("two".to_owned())]]);
    let error = format!("{:#}", sql(&other, "SELECT * FROM t").expect_err("the other database has no such table"));
    assert!(error.contains("SELECT * FROM t"), "{error}");
    Ok(())
}

#[tokio::test]
async fn it_can_be_used_from_async_tests() -> Result<()> {
    let url = Postgres::shared()?.create_database()?;
    assert_eq!(cell(&url, "SELECT 1 + 1")?, "2");
    Ok(())
}

#[test]
fn settings_are_taken() -> Result<()> {
    let defaults = Postgres::shared()?.url("postgres");
    for (name, value) in
        [("fsync", "off"), ("max_connections", "200"), ("max_prepared_transactions", "10"), ("autovacuum", "on")]
    {
        assert_eq!(cell(&defaults, &format!("SHOW {name}"))?, value, "{name}");
    }
    let cluster = Postgres::builder()
        .fsync(true)
        .max_prepared_transactions(3)
        .wal_level("logical")
        .set("work_mem", "7MB")
        .start()?;
    let url = cluster.url("postgres");
    for (name, value) in
        [("fsync", "on"), ("max_prepared_transactions", "3"), ("wal_level", "logical"), ("work_mem", "7MB")]
    {
        assert_eq!(cell(&url, &format!("SHOW {name}"))?, value, "{name}");
    }
    Ok(())
}

#[test]
fn a_wrong_setting_is_reported_with_the_servers_own_words() {
    let error = Postgres::builder().set("no_such_setting", "1").start().expect_err("the server refuses to start");
    assert!(format!("{error:#}").contains("no_such_setting"), "{error:#}");
}

#[test]
fn what_was_committed_survives_kill_and_stop() -> Result<()> {
    let cluster = Postgres::start()?;
    let url = cluster.create_database()?;
    sql(&url, "CREATE TABLE t (id bigint); INSERT INTO t VALUES (1)")?;
    let server = cell(&url, "SELECT pg_postmaster_start_time()")?;

    cluster.kill()?;
    assert!(sql(&url, "SELECT 1").is_err(), "a killed server answers nothing");
    cluster.kill()?; // once more is no fault
    cluster.restart()?;
    sql(&url, "INSERT INTO t VALUES (2)")?;

    cluster.stop()?;
    assert!(sql(&url, "SELECT 1").is_err(), "a stopped server answers nothing");
    cluster.restart()?;
    cluster.restart()?; // and as it runs
    assert_eq!(cell(&url, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t")?, "1,2");
    assert_ne!(cell(&url, "SELECT pg_postmaster_start_time()")?, server);
    Ok(())
}

#[test]
fn kill_ends_a_backend_in_the_middle_of_a_query() -> Result<()> {
    let cluster = Postgres::start()?;
    let url = cluster.url("postgres");
    let busy = {
        let url = url.clone();
        std::thread::spawn(move || sql(&url, "SELECT count(*) FROM generate_series(1, 1e12)"))
    };
    let running =
        || cell(&url, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%1e12%' AND pid <> pg_backend_pid()");
    assert!(wait_until(Duration::from_secs(30), || running().is_ok_and(|count| count == "1")));
    cluster.kill()?;
    assert!(busy.join().expect("no panic").is_err());
    cluster.restart()?; // refused while a process of the old server lives
    assert_eq!(running()?, "0");
    Ok(())
}

/// Its processes come and go all the while: none of them is missed, and none that has just gone is in the way.
#[test]
fn it_stands_still_and_goes_on() -> Result<()> {
    let cluster = Postgres::start()?;
    let url = cluster.url("postgres");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = sql(&url, "SELECT 1");
                }
            });
        }
        let stops = (0..50).try_for_each(|_| cluster.stand_still().and_then(|()| cluster.go_on()));
        over.store(true, Ordering::Relaxed);
        stops
    })?;
    assert_eq!(cell(&url, "SELECT 1 + 1")?, "2");
    Ok(())
}

#[test]
fn a_dropped_cluster_is_gone() -> Result<()> {
    let cluster = Postgres::start()?;
    let (folder, url) = (cluster.folder().to_path_buf(), cluster.url("postgres"));
    assert!(folder.join("data/postmaster.pid").exists());
    drop(cluster);
    assert!(!folder.exists());
    assert!(sql(&url, "SELECT 1").is_err());
    Ok(())
}

/// Runs this binary again for one test, which ends without dropping its cluster; the name of the variable that asks for it.
const ABANDON: &str = "HEADWATER_TESTKIT_ABANDON";

#[test]
fn an_abandoned_cluster_is_gone_too() -> Result<()> {
    if std::env::var_os(ABANDON).is_some() {
        let cluster = Postgres::start()?;
        std::fs::write(std::env::var(ABANDON)?, format!("{}\n{}", cluster.folder().display(), cluster.port()))?;
        std::process::abort();
    }
    let note = tempfile::NamedTempFile::new()?;
    let again = ["--exact", "an_abandoned_cluster_is_gone_too"];
    let status = Command::new(std::env::current_exe()?).args(again).env(ABANDON, note.path()).output()?.status;
    assert!(!status.success(), "the second run aborts");
    let note = std::fs::read_to_string(note.path())?;
    let (folder, port) = note.split_once('\n').expect("folder and port");
    assert!(wait_until(Duration::from_secs(30), || !PathBuf::from(folder).exists()), "{folder} is still there");
    assert!(sql(&format!("postgres://postgres@127.0.0.1:{port}/postgres"), "SELECT 1").is_err());
    Ok(())
}
