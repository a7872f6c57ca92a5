//! PostgreSQL with a synchronous standby that is away: commits do not end. Nobody waits with them for long, and nothing is lost.

use std::sync::Arc;

use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_protocol::Kind;
use headwater_protocol::message::{ErrorCode, Hello, Receipt, ServerError, Watermarks, Welcome};
use headwater_server::{Config, Stopped};
use headwater_testkit::{Postgres as Cluster, sql};

use crate::support::{Answer, Stand, bytes, config, end, prepare};

const WORKERS: usize = 2;
const UPLOADS: u8 = 6;

struct Stage {
    cluster: Cluster,
    url: String,
}

impl Stage {
    fn new() -> Stage {
        let cluster = Cluster::start().expect("a cluster");
        let url = cluster.create_database().expect("a database");
        sql(&url, "CREATE TABLE item (id bigint PRIMARY KEY, name text)").expect("a table");
        prepare(&Stage::backend(&url));
        Stage { cluster, url }
    }

    fn backend(url: &str) -> Postgres {
        Postgres::new(url, Settings::default()).expect("an address")
    }

    fn serve(&self) -> Stand {
        let config = Config { workers: WORKERS, commit_wait_ms: 300, heartbeat_ms: 100, ..config() };
        Stand::start_on(config, Arc::new(Stage::backend(&self.url)))
    }

    fn count(&self, sql_text: &str) -> usize {
        let rows = sql(&self.url, sql_text).expect(sql_text);
        rows[0][0].as_deref().and_then(|count| count.parse().ok()).expect("a number")
    }

    fn sessions(&self) -> usize {
        self.count(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
    }
}

/// The request of a remote that has what this answer brought, and has nothing to send.
fn after(stand: &Stand, remote: u8, answer: &Answer) -> Vec<u8> {
    let Welcome { incarnation, note, .. } = Welcome::from_payload(&answer.payload(Kind::Welcome)).expect("a welcome");
    let watermarks = Watermarks::from_payload(&answer.payload(Kind::Watermarks)).expect("watermarks");
    bytes(&[Hello { incarnation, note, watermarks, ..stand.hello(remote) }.to_frame(), end()])
}

fn expect_unavailable(answer: &Answer) -> ServerError {
    let error = answer.error();
    assert_eq!(error.code, ErrorCode::DatabaseUnavailable, "{}", error.message);
    assert!(error.message.contains("commits"), "{}", error.message);
    error
}

/// Waits until the server knows that commits end again.
fn wait_until_they_end(stand: &Stand) {
    stand.wait_until("commits end", |ready| ready["commits_wait"].is_null());
}

#[test]
fn who_waits_for_a_commit_keeps_nobody_else_waiting() {
    let stage = Stage::new();
    let stand = stage.serve();
    sql(&stage.url, "INSERT INTO item VALUES (100, 'there before')").expect("a row");
    let first = stand.sync(&stand.download(9));
    assert!(first.is_complete());
    let nothing_new = after(&stand, 9, &first);
    // So long ago that it would be counted again.
    sql(&stage.url, "UPDATE headwater.remote SET last_sync_at = last_sync_at - interval '1 hour'").expect("aged");
    stage.cluster.lose_standby().expect("a standby that is away");

    // More uploads than workers: all of them are answered.
    let uploads: Vec<_> = (1..=UPLOADS).map(|remote| stand.upload(remote, &[(remote.into(), "mine")])).collect();
    let mut clients: Vec<_> = uploads.iter().map(|upload| stand.post(upload)).collect();
    for client in &mut clients {
        assert!(expect_unavailable(&client.answer()).retry_after_ms > 0);
    }
    let readiness = stand.get("/ready", None);
    assert_eq!(readiness.status, 200, "who has nothing to send is served");
    let waiting = &readiness.json()["commits_wait"];
    assert!(
        waiting["what"].as_str().is_some_and(|what| what.contains("SyncRep") && what.contains("'away'")),
        "{waiting}"
    );
    assert!(waiting["commits"].as_u64().is_some_and(|commits| commits >= 1), "{waiting}");

    // Who has nothing to send and nothing to get is served, however often; a new remote is told, and so are those that come again.
    let sessions = stage.sessions();
    for _ in 0..100 {
        expect_unavailable(&stand.sync(&uploads[0]));
    }
    for _ in 0..10 {
        assert!(stand.sync(&nothing_new).is_complete());
    }
    expect_unavailable(&stand.sync(&stand.download(10)));
    let waiting = stage.cluster.waiting_commits().expect("a count");
    assert!((1..=WORKERS).contains(&waiting), "{waiting} commits wait");
    assert!(stage.sessions() <= sessions + 1, "{sessions} sessions became {}", stage.sessions());

    // With the standby all of it takes place, once.
    stage.cluster.find_standby().expect("the standby");
    wait_until_they_end(&stand);
    for upload in &uploads {
        let answer = stand.sync(upload);
        assert!(answer.is_complete());
        let receipt = Receipt::from_payload(&answer.payload(Kind::Receipt)).expect("a receipt");
        assert_eq!(receipt, Receipt { sequence: 1, changes: 1, outcomes: Vec::new() });
    }
    assert_eq!(stage.count("SELECT count(*) FROM item"), usize::from(UPLOADS) + 1);
    assert_eq!(
        stage.count("SELECT count(*) FROM headwater.remote WHERE upload_sequence = 1"),
        usize::from(UPLOADS),
        "each upload once"
    );
    let caught_up = stand.sync(&nothing_new);
    assert_eq!((caught_up.is_complete(), caught_up.rows()), (true, u64::from(UPLOADS)));
    stand.wait_until_idle();
}

#[test]
fn a_download_that_brings_something_is_answered_too() {
    let stage = Stage::new();
    let stand = stage.serve();
    let first = stand.sync(&stand.download(9));
    let nothing_new = after(&stand, 9, &first);
    sql(&stage.url, "INSERT INTO item VALUES (100, 'new')").expect("a row");
    stage.cluster.lose_standby().expect("a standby that is away");
    // Its watermarks would prove a download that the standby has not counted.
    let answer = stand.sync(&nothing_new);
    expect_unavailable(&answer);
    assert!(!answer.kinds().contains(&Kind::Watermarks));
    stage.cluster.find_standby().expect("the standby");
    wait_until_they_end(&stand);
    let answer = stand.sync(&nothing_new);
    assert_eq!((answer.is_complete(), answer.rows()), (true, 1));
}

#[test]
fn another_server_of_the_database_finds_the_wait_by_the_locked_remote() {
    let stage = Stage::new();
    let (one, other) = (stage.serve(), stage.serve());
    stage.cluster.lose_standby().expect("a standby that is away");
    let upload = one.upload(1, &[(1, "mine")]);
    expect_unavailable(&one.sync(&upload));
    // The commit that was left holds the remote's row.
    expect_unavailable(&other.sync(&upload));
    assert_eq!(stage.cluster.waiting_commits().expect("a count"), 1);
    stage.cluster.find_standby().expect("the standby");
    wait_until_they_end(&other);
    let answer = other.sync(&upload);
    assert!(answer.is_complete());
    assert_eq!(stage.count("SELECT count(*) FROM item"), 1);
}

#[test]
fn a_server_stops_while_commits_wait() {
    let stage = Stage::new();
    let mut stand = stage.serve();
    stage.cluster.lose_standby().expect("a standby that is away");
    let mut client = stand.post(&stand.upload(1, &[(1, "mine")]));
    stand.wait_until("a worker", |ready| ready["load"]["workers_busy"] == 1);
    let handle = stand.handle.take().expect("a server");
    assert_eq!(stand.runtime.block_on(handle.shutdown()), Stopped { syncs_cut: 0 });
    expect_unavailable(&client.answer());
    stage.cluster.find_standby().expect("the standby");
    let stand = stage.serve();
    let answer = stand.sync(&stand.upload(1, &[(1, "mine")]));
    assert!(answer.is_complete());
    assert_eq!(stage.count("SELECT count(*) FROM item"), 1);
}
