use super::*;
use crate::{Mode, sqlite::Sqlite};

const NO_PATIENCE: Duration = Duration::ZERO;

fn pool(size: usize) -> (tempfile::TempDir, Pool) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("central.db");
    std::fs::write(&path, "").expect("a file");
    (folder, Pool::new(Arc::new(Sqlite::new(path).durable(false)), size))
}

#[test]
fn a_checkout_waits_no_longer_than_it_says() {
    let (_folder, pool) = pool(1);
    let held = pool.checkout(NO_PATIENCE).expect("the first");
    assert!(matches!(pool.checkout(NO_PATIENCE), Err(Error::Retry { broken: false, .. })));
    drop(held);
    drop(pool.checkout(NO_PATIENCE).expect("free again"));
    let stats = pool.stats();
    assert_eq!((stats.open, stats.idle, stats.waits, stats.timeouts, stats.reconnections), (1, 1, 1, 1, 0));
}

#[test]
fn what_is_free_is_had_at_once_or_not_at_all() {
    let (_folder, pool) = pool(2);
    let first = pool.checkout_free().expect("there is room").expect("connected");
    let second = pool.checkout_free().expect("there is room").expect("connected");
    assert!(pool.checkout_free().is_none(), "two are all there are");
    drop(first);
    drop(pool.checkout_free().expect("one is free").expect("an open one"));
    drop(second);
    let stats = pool.stats();
    assert_eq!((stats.open, stats.idle, stats.waits, stats.timeouts), (2, 2, 0, 0));
}

#[test]
fn the_size_changes_while_connections_are_in_use() {
    let (_folder, pool) = pool(1);
    let first = pool.checkout(NO_PATIENCE).expect("the first");
    pool.set_size(3);
    let others = [0, 1].map(|_| pool.checkout(NO_PATIENCE).expect("there is room"));
    assert!(pool.checkout_free().is_none(), "three are all there are");
    pool.set_size(1);
    let counts = || (pool.stats().open, pool.stats().idle);
    assert_eq!(counts(), (3, 0), "whoever has one keeps it");
    drop(others);
    assert_eq!(counts(), (1, 0), "they are closed as they come back");
    assert!(pool.checkout(NO_PATIENCE).is_err());
    drop(first);
    pool.set_size(2);
    drop([0, 1].map(|_| pool.checkout(NO_PATIENCE).expect("there is room")));
    assert_eq!(counts(), (2, 2));
    pool.set_size(1);
    assert_eq!((counts(), pool.stats().reconnections), ((1, 1), 0), "one that nobody uses is closed at once");
}

#[test]
fn whoever_waits_gets_the_next_one() {
    let (_folder, pool) = pool(1);
    let held = pool.checkout(NO_PATIENCE).expect("the first");
    let other = pool.clone();
    let waiter = std::thread::spawn(move || other.checkout(Duration::from_mins(1)).map(|_| ()));
    while pool.stats().waits == 0 {
        std::thread::yield_now();
    }
    drop(held);
    assert!(waiter.join().expect("no panic").is_ok());
}

#[test]
fn an_open_transaction_does_not_outlive_its_checkout() {
    let (_folder, pool) = pool(1);
    let mut held = pool.checkout(NO_PATIENCE).expect("one");
    held.begin(Mode::Upload).expect("begun");
    held.batch("CREATE TABLE t (a)").expect("made");
    drop(held);
    let mut again = pool.checkout(NO_PATIENCE).expect("the same");
    again.begin(Mode::Upload).expect("no transaction is open");
    let tables = again.query("SELECT count(*) FROM sqlite_schema", &[]).expect("counted");
    assert_eq!(tables, [[headwater_protocol::Value::Int(0)]]);
}

#[test]
fn a_broken_connection_is_replaced_and_counted() {
    let (_folder, pool) = pool(1);
    let mut held = pool.checkout(NO_PATIENCE).expect("one");
    let lost: Result<(), Error> = Err(Error::Retry { detail: "lost".into(), broken: true });
    assert!(held.note(lost).is_err());
    drop(held);
    assert_eq!(pool.stats().open, 0);
    drop(pool.checkout(NO_PATIENCE).expect("a new one"));
    assert_eq!((pool.stats().open, pool.stats().reconnections), (1, 1));
}

#[test]
fn a_place_is_given_back_when_connecting_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::new(Arc::new(Sqlite::new(folder.path().join("missing.db"))), 1);
    for _ in 0..3 {
        assert!(matches!(pool.checkout(NO_PATIENCE), Err(Error::Setup { .. })));
    }
    assert_eq!(pool.stats().open, 0);
}
