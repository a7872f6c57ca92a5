use std::time::Duration;

use headwater_bufferpool::Pools;
use headwater_consolidated::sqlite::Sqlite;
use headwater_knobs::{Knobs, contract};

use super::*;
use crate::places::Size;
use crate::server::{own_pools, share};

/// A server's state, without its listener, and its knobs.
fn stand(config: &Config, open_files: Option<usize>) -> (tempfile::TempDir, Arc<Shared>, Knobs) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("central.db");
    std::fs::write(&path, "").expect("a file");
    let pools: Arc<Pools> = Arc::new(own_pools(config).expect("pools"));
    let descriptors = Descriptors::within(open_files, config, 4);
    let backend = Arc::new(Sqlite::new(path).durable(false));
    let shared = share(config, &descriptors, backend, Vec::new(), None, (None, pools));
    let knobs = Knobs::new(of_syncs(&shared, Dialect::Sqlite, 0, open_files));
    (folder, shared, knobs)
}

fn set(knobs: &Knobs, name: &str, value: &str) -> Result<(), String> {
    knobs.change(&[(name.to_owned(), value.to_owned())]).map(drop).map_err(|fault| fault.to_string())
}

#[test]
fn every_knob_does_what_it_says() {
    for config in [Config::default(), Config { workers: 3, uploaders: 2, backlog: 0, ..Config::default() }] {
        let (_folder, shared, knobs) = stand(&config, None);
        contract::check(&knobs, |_| Vec::new()).expect("sound");
        assert_eq!(*shared.config.now(), config, "all is as before");
    }
    let front = Arc::new(Front::new(Config::default().into(), 100));
    let knobs = Knobs::new(of_front(&front, 4, None));
    contract::check(&knobs, |_| Vec::new()).expect("sound");
    set(&knobs, "server.connections_max", "7").expect("sound");
    assert_eq!(front.connections_max(), 7);
}

#[tokio::test]
async fn workers_follow_and_those_at_work_end_what_they_do() {
    let (_folder, shared, knobs) = stand(&Config { workers: 3, uploaders: 1, ..Config::default() }, None);
    let crews = || shared.admission.load().crews();
    let waits =
        async || tokio::time::timeout(Duration::ZERO, shared.admission.permits(false, Size::Small)).await.is_err();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(shared.admission.permits(false, Size::Small).await);
    }
    assert!(waits().await);
    set(&knobs, "server.workers", "5").expect("sound");
    assert_eq!(crews(), (5, 1));
    assert!(!waits().await, "there is one more at once");
    set(&knobs, "server.workers", "1").expect("sound");
    assert_eq!((crews(), held.len()), ((1, 1), 3), "those at work stay");
    held.truncate(1);
    assert!(waits().await, "one is all there are");
    held.clear();
    assert!(!waits().await);
    set(&knobs, "server.workers", "8").expect("sound");
    set(&knobs, "server.uploaders", "4").expect("sound");
    assert_eq!(crews(), (8, 4));
    set(&knobs, "server.workers", "0").expect("sound");
    assert_eq!(crews().0, 8, "found from here on");
    set(&knobs, "server.workers_max", "6").expect("sound");
    assert_eq!(crews().0, 6);
    shared.admission.set_share(2);
    assert_eq!(crews().0, 2);
    set(&knobs, "server.workers_max", "20").expect("sound");
    assert_eq!(crews(), (2, 2), "the database's connections are shared with other servers");
}

#[tokio::test]
async fn what_bounds_who_comes_in_is_heeded_at_once() {
    let (_folder, shared, knobs) = stand(&Config { workers: 1, backlog: 0, ..Config::default() }, None);
    let working = shared.admission.permits(false, Size::Small).await;
    assert!(shared.admission.admit(None).is_err());
    set(&knobs, "server.backlog", "1").expect("sound");
    let first = shared.admission.admit(None).expect("one may wait");
    set(&knobs, "server.receiving_max", "1").expect("sound");
    assert!(shared.admission.admit(None).is_err(), "one is being received");
    drop((working, first));
    let upload = |user: &str| crate::tickets::Upload { user: user.to_owned(), remote_id: [1; 16], digest: [2; 32] };
    set(&knobs, "server.tickets_max", "1").expect("sound");
    shared.tickets.ask(&upload("anna"), 10).expect("the first");
    assert!(shared.tickets.ask(&upload("bo"), 10).is_err());
    set(&knobs, "server.tickets_max", "2").expect("sound");
    shared.tickets.ask(&upload("bo"), 10).expect("two may be");
}

#[test]
fn connections_of_the_database_follow_the_workers() {
    let (_folder, shared, knobs) = stand(&Config { workers: 1, ..Config::default() }, None);
    let checkout = || shared.pool.checkout(Duration::ZERO);
    let held = [checkout().expect("one"), checkout().expect("two")];
    assert!(checkout().is_err(), "one for the worker, one for accounts");
    set(&knobs, "server.workers", "2").expect("sound");
    drop((checkout().expect("a third"), held));
    let (_folder, _, knobs) = stand(&Config { workers: 1, database_connections: 4, ..Config::default() }, None);
    let said = set(&knobs, "server.workers", "4").expect_err("too many for four connections");
    assert!(
        said.contains("server.workers can't be 4 now") && said.contains("database_connections is 4, expected 5 to"),
        "{said}"
    );
}

#[test]
fn what_wants_more_files_than_may_be_open_is_refused() {
    let (_folder, shared, knobs) = stand(&Config { workers: 2, ..Config::default() }, Some(500));
    let before = shared.front.connections_max();
    let said = set(&knobs, "server.workers", "200").expect_err("four files each");
    assert!(said.contains("the limit of open files is 500"), "{said}");
    assert_eq!((shared.config.now().workers, shared.front.connections_max()), (2, before));
    set(&knobs, "server.workers", "50").expect("sound");
    assert!(shared.front.connections_max() < before, "fewer are left to clients");
}
