//! What limits a run is planted, on a real PostgreSQL, and must be named.

use std::time::Duration;

use headwater_lab::campaign::{Campaign, Event};
use headwater_lab::experiment::Experiment;
use headwater_lab::plan::Plan;
use headwater_lab::results::Writer;
use headwater_testkit::Postgres;
use headwater_testkit::proxy::{Direction, FaultProxy, Plan as Faults};
use tokio::sync::watch;

/// One row that all clients change, and a table that each adds to.
const TABLES: &str = "name = \"planted\"
tables = [\"planted\"]
[prepare]
sql = \"CREATE TABLE planted (id integer, value bigint); INSERT INTO planted VALUES (1, 0)\"
";

/// What limits a scenario's run, and the evidence.
fn limit(target: &str, transaction: &str, load: &str) -> (String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = format!("{TABLES}[[transaction]]\nname = \"only\"\n{transaction}\n");
    let files = |_: &str| Ok(scenario.clone());
    let text = format!(
        "name = \"limits\"\nseed = 1\nscenario.file = \"s.toml\"\nload = {{ {load} }}\nstop = {{ warmup = \"300ms\", duration = \"2s\" }}\n"
    );
    let experiment = Experiment::parse("limits.toml", &text, &files).unwrap_or_else(|errors| panic!("{errors:?}"));
    let plan = Plan::new(&experiment, 1);
    let results = Writer::create(&folder.path().join("x.lab"), &experiment, &plan).expect("results");
    let campaign = Campaign::new(&experiment, &plan, Some(target), folder.path()).expect("a campaign");
    let (_keep, interrupt) = watch::channel(false);
    let mut limit = None;
    let mut watch = |event: Event<'_>| {
        if let Event::Ended(_, outcome, verdict) = event {
            assert_eq!(outcome.failure, None);
            limit = verdict.map(|verdict| (verdict.bottleneck.to_string(), verdict.evidence.clone()));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(campaign.run(&results, &interrupt, &mut watch)).expect("it runs");
    limit.expect("a verdict")
}

/// A database of its own, on a cluster that writes its log through to the disk in small pieces.
fn database() -> (Postgres, String) {
    let cluster = Postgres::builder().fsync(true).set("wal_sync_method", "open_sync").set("wal_buffers", "64kB");
    let cluster = cluster.start().expect("a cluster");
    let url = cluster.create_database().expect("a database");
    (cluster, url)
}

#[test]
fn what_is_planted_is_named() {
    let (_cluster, url) = database();
    let told = |transaction: &str, load: &str| limit(&url, transaction, load);
    let (named, evidence) = told("sql = \"SELECT 1\"", "clients = 2, think = \"50ms\"");
    assert_eq!(named, "client", "{evidence}");
    let (named, evidence) = told("sql = \"SELECT 1\"", "clients = 2, arrival = \"constant\", rate = 100");
    assert_eq!(named, "client", "{evidence}");
    let long = "sql = \"SELECT length(CAST(:long AS text))\"\nvalues.long = { text = 100000 }";
    let (named, evidence) = told(long, "clients = 4, threads = 1");
    assert_eq!(named, "client", "{evidence}");
    assert!(evidence.contains("the lab's"), "its own processor time is the evidence: {evidence}");
    let hold = "sql = \"UPDATE planted SET value = value + 1 WHERE id = 1; SELECT pg_sleep(0.005)\"";
    let (named, evidence) = told(hold, "clients = 8");
    assert_eq!(named, "locks", "{evidence}");
    assert!(evidence.contains("in: UPDATE planted") && evidence.contains(", behind: "), "{evidence}");
    let (named, evidence) = told("sql = \"SELECT count(*) FROM generate_series(1, 100000)\"", "clients = 4");
    assert_eq!(named, "database CPU", "{evidence}");
    let (named, evidence) =
        told("sql = \"INSERT INTO planted SELECT 2, n FROM generate_series(1, 2000) n\"", "clients = 2");
    assert_eq!(named, "disk", "{evidence}");
}

#[test]
fn a_slow_link_is_named() {
    let (cluster, url) = database();
    let proxy = FaultProxy::start(("127.0.0.1", cluster.port())).expect("a proxy");
    proxy.script(|_| Faults::clean().delay(Direction::Down, Duration::from_millis(20)));
    let url = url.replace(&cluster.port().to_string(), &proxy.address().port().to_string());
    let (named, evidence) = limit(&url, "sql = \"SELECT 1\"", "clients = 4");
    assert_eq!(named, "link", "{evidence}");
}
