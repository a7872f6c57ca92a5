//! How far a replica is behind: real streaming replication, slowed down and held up.

use std::time::Duration;

use headwater_testkit::{Postgres, free_port, sql};
use serde_json::Value;

use super::{Place, Said};

const EXPERIMENT: &str =
    "name = \"behind\"\nscenario = { name = \"write_simple\" }\nload = { clients = 2, think = \"20ms\" }\n";

/// A primary with a database, and its standby.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    target: String,
    replica: String,
}

impl Pair {
    fn new() -> Pair {
        let primary = Postgres::start().expect("a primary");
        let target = primary.create_database().expect("a database");
        let standby = primary.standby().expect("a standby");
        standby.catch_up(&primary).expect("the same");
        let name = target.rsplit('/').next().expect("a name");
        let replica = standby.url(name);
        Pair { primary, standby, target, replica }
    }

    fn delay(&self, by: &str) {
        for statement in [&format!("ALTER SYSTEM SET recovery_min_apply_delay = '{by}'"), "SELECT pg_reload_conf()"] {
            sql(&self.standby.url("postgres"), statement).expect("set");
        }
    }

    fn run(&self, place: &Place, more: &[&str]) -> Said {
        place.run(&[&["run", "x.toml", "--target", &self.target, "--replica", &self.replica], more].concat())
    }

    /// Nothing of ours is left at the primary.
    fn is_clean(&self) -> bool {
        let left = sql(&self.target, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").expect("an answer");
        left == [[Some("0".to_owned())]]
    }
}

fn of_replica(place: &Place, file: &str) -> Value {
    place.json(&["show", file])["cells"][0]["replica"].clone()
}

#[test]
fn lag_is_the_time_until_what_was_written_shows() {
    let place = Place::new(&format!("{EXPERIMENT}stop = {{ warmup = \"1s\", duration = \"3s\" }}\n"));
    let pair = Pair::new();
    let said = pair.run(&place, &["--results", "near.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("lag p99 ms") && said.out.contains("drained ms"), "{said:?}");
    let near = of_replica(&place, "near.lab");
    // Ten a second; on a machine with much else to do fewer.
    assert!(near["heartbeats"].as_u64().is_some_and(|beats| (10..=31).contains(&beats)), "{near}");
    pair.delay("700ms");
    let said = pair.run(&place, &["--results", "far.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    let far = of_replica(&place, "far.lab");
    // A standby that replays each commit 700 ms late shows nothing sooner.
    assert!(far["lag_p50_ms"].as_f64().is_some_and(|lag| lag >= 690.0), "{far}");
    assert!(far["drained_ms"].as_f64().is_some_and(|time| time >= 690.0), "{far}");
    assert!(near["lag_p50_ms"].as_f64() < far["lag_p50_ms"].as_f64(), "{near} {far}");
    let report = place.run(&["report", "far.lab", "--out", "-"]);
    assert!(report.out.contains("lag p99 ms"), "{report:?}");
    assert!(pair.is_clean());
}

#[test]
fn a_replica_that_stands_still_is_waited_for_and_seen_in_every_heartbeat() {
    let place = Place::new(&format!("{EXPERIMENT}stop = {{ duration = \"4s\" }}\n"));
    let pair = Pair::new();
    let standby = pair.standby.url("postgres");
    let said = std::thread::scope(|scope| {
        let running = scope.spawn(|| pair.run(&place, &["--results", "x.lab"]));
        let begun = || {
            sql(&pair.replica, "SELECT count(*) > 4 FROM lab_heartbeat")
                .is_ok_and(|row| row == [[Some("t".to_owned())]])
        };
        assert!(headwater_testkit::wait_until(Duration::from_mins(1), begun), "heartbeats come");
        sql(&standby, "SELECT pg_wal_replay_pause()").expect("paused");
        std::thread::sleep(Duration::from_secs(2));
        assert!(!running.is_finished());
        sql(&standby, "SELECT pg_wal_replay_resume()").expect("resumed");
        running.join().expect("a run")
    });
    assert_eq!(said.code, 0, "{said:?}");
    let slow = place.json(&["export", "x.lab", "--format", "json"]);
    assert!(slow["cells"][0]["replica_lag_max_ms"].as_f64().is_some_and(|lag| lag >= 1_900.0), "{slow}");
    // Ten heartbeats a second met the pause, not one: those of its first half waited for a second and more.
    let more_than_a_second = "SELECT sum(count) FROM bucket WHERE clock = 'replica' AND up_to_ns > 1000000000";
    let file = rusqlite::Connection::open(place.path("x.lab")).expect("results");
    let count: i64 = file.query_row(more_than_a_second, [], |row| row.get(0)).expect("a number");
    assert!(count >= 5, "{count}");
}

#[test]
fn a_run_goes_on_until_its_replica_has_drained() {
    let place = Place::new(&format!("{EXPERIMENT}stop = {{ iterations = 40 }}\n"));
    let pair = Pair::new();
    pair.delay("1500ms");
    let said = pair.run(&place, &["--results", "x.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    let behind = of_replica(&place, "x.lab");
    assert!(behind["drained_ms"].as_f64().is_some_and(|time| time >= 1_490.0), "{behind}");
    assert!(
        behind["lag_max_ms"].as_f64().is_some_and(|time| time >= 1_490.0),
        "those that had not shown when clients ended: {behind}"
    );
}

#[test]
fn what_is_no_replica_is_said() {
    let place = Place::new(&format!("{EXPERIMENT}stop = {{ iterations = 10 }}\n"));
    let pair = Pair::new();
    let nobody = format!("postgres://postgres@127.0.0.1:{}/x", free_port().expect("a port"));
    let said = place.run(&["run", "x.toml", "--target", &pair.target, "--replica", &nobody, "--results", "gone.lab"]);
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.err.contains("connecting to"), "{said:?}");
    let said =
        place.run(&["run", "x.toml", "--target", "sqlite:x.db", "--replica", &pair.replica, "--results", "x.lab"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(
        said.err.contains("a file of SQLite has no replica: leave target.replica_url and --replica out"),
        "{said:?}"
    );
    // It goes while the run is on.
    let said = std::thread::scope(|scope| {
        std::fs::write(place.path("x.toml"), format!("{EXPERIMENT}stop = {{ duration = \"4s\" }}\n")).expect("written");
        let running = scope.spawn(|| pair.run(&place, &["--results", "lost.lab"]));
        let begun = || {
            sql(&pair.replica, "SELECT count(*) > 4 FROM lab_heartbeat")
                .is_ok_and(|row| row == [[Some("t".to_owned())]])
        };
        assert!(headwater_testkit::wait_until(Duration::from_mins(1), begun), "heartbeats come");
        pair.standby.kill().expect("killed");
        running.join().expect("a run")
    });
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.err.contains("(target.replica_url)"), "{said:?}");
    assert!(pair.is_clean(), "{said:?}");
    let kept = place.json(&["export", "lost.lab", "--rows", "runs", "--format", "json"]);
    assert!(
        kept["runs"][0]["operations"].as_u64().is_some_and(|operations| operations > 0),
        "what was measured is kept: {kept}"
    );
    let _ = &pair.primary;
}

#[test]
fn mariadb_has_heartbeats_too() {
    let place = Place::new(&format!("{EXPERIMENT}stop = {{ duration = \"1s\" }}\n"));
    let server = headwater_testkit::MariaDb::shared().expect("a server");
    let name = server.create_database().expect("a database");
    let url = server.url(&name);
    // The target itself is a replica that is never behind.
    let said = place.run(&["run", "x.toml", "--target", &url, "--replica", &url, "--results", "x.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    let behind = of_replica(&place, "x.lab");
    assert!(behind["heartbeats"].as_u64().is_some_and(|beats| beats > 0), "{behind}");
    assert!(behind["drained_ms"].as_f64().is_some(), "{behind}");
    assert_eq!(server.sql(&name, "SHOW TABLES").expect("tables"), Vec::<String>::new(), "nothing is left");
}
