//! What limits a run is planted, on a real PostgreSQL and a real MariaDB, and must be named.

use std::time::Duration;

use headwater_lab::campaign::{Campaign, Event};
use headwater_lab::experiment::Experiment;
use headwater_lab::plan::Plan;
use headwater_lab::results::Writer;
use headwater_testkit::proxy::{Direction, FaultProxy, Plan as Faults};
use headwater_testkit::{MariaDb, Postgres};
use tokio::sync::watch;

/// One row that all clients change, and a table that each adds to.
const TABLES: &str = "name = \"planted\"
tables = [\"planted\"]
[prepare]
sql = \"CREATE TABLE planted (id integer, value bigint); INSERT INTO planted VALUES (1, 0)\"
";

/// How often what is planted must show: other work on the machine may limit a run just as well.
const TRIES: u32 = 3;

/// The evidence for `expected` as what limits a scenario's run.
fn evidence(expected: &str, target: &str, transaction: &str, load: &str) -> String {
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let (named, evidence) = limit(target, transaction, load);
        if named == expected {
            return evidence;
        }
        seen.push(format!("{named}: {evidence}"));
    }
    panic!("{expected} was planted, and named was:\n{}", seen.join("\n"));
}

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

/// A database of its own, on a disk that takes 10 ms for each commit.
fn database() -> (Postgres, String) {
    let cluster = Postgres::builder().slow_disk(Duration::from_millis(10)).start().expect("a cluster");
    let url = cluster.create_database().expect("a database");
    (cluster, url)
}

#[test]
fn what_is_planted_is_named() {
    let (_cluster, url) = database();
    let planted = |expected, transaction, load| evidence(expected, &url, transaction, load);
    planted("client", "sql = \"SELECT 1\"", "clients = 2, think = \"50ms\"");
    planted("client", "sql = \"SELECT 1\"", "clients = 2, arrival = \"constant\", rate = 100");
    let long = "sql = \"SELECT length(CAST(:long AS text))\"\nvalues.long = { text = 100000 }";
    let evidence = planted("client", long, "clients = 4, threads = 1");
    assert!(evidence.contains("the lab's"), "its own processor time is the evidence: {evidence}");
    let hold = "sql = \"UPDATE planted SET value = value + 1 WHERE id = 1; SELECT pg_sleep(0.005)\"";
    let evidence = planted("locks", hold, "clients = 8");
    assert!(evidence.contains("in: UPDATE planted") && evidence.contains(", behind: "), "{evidence}");
    planted("database CPU", "sql = \"SELECT count(*) FROM generate_series(1, 100000)\"", "clients = 4");
    planted("disk", "sql = \"INSERT INTO planted VALUES (2, 1)\"", "clients = 4");
}

#[test]
fn what_is_planted_on_mariadb_is_named() {
    let server = MariaDb::shared().expect("a server");
    let url = server.url(&server.create_database().expect("a database"));
    let planted = |expected, transaction, load| evidence(expected, &url, transaction, load);
    planted("client", "sql = \"SELECT 1\"", "clients = 2, think = \"50ms\"");
    let hold = "sql = \"UPDATE planted SET value = value + 1 WHERE id = 1; SELECT sleep(0.005)\"";
    let evidence = planted("locks", hold, "clients = 8");
    assert!(evidence.contains("most at Lock row in: UPDATE planted") && evidence.contains(", behind: "), "{evidence}");
    planted("database CPU", "sql = \"SELECT benchmark(200000, md5('x'))\"", "clients = 4");
}

#[test]
fn a_slow_link_is_named() {
    let (cluster, url) = database();
    let proxy = FaultProxy::start(("127.0.0.1", cluster.port())).expect("a proxy");
    proxy.script(|_| Faults::clean().delay(Direction::Down, Duration::from_millis(20)));
    let url = url.replace(&cluster.port().to_string(), &proxy.address().port().to_string());
    evidence("link", &url, "sql = \"SELECT 1\"", "clients = 4");
}
