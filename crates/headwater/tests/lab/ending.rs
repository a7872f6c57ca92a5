//! Runs that end otherwise than by their rule.

use std::process::Command;
use std::time::Duration;

use headwater_testkit::wait_until;

use super::{BUILT_IN, Place, syncs};

/// The servers that this process has started; others of its children are gone in a moment.
fn servers_of(id: u32) -> Vec<String> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let arguments = |child: &&str| std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
    let servers = children.split_whitespace().filter(|child| arguments(child).contains("\0serve\0"));
    servers.map(str::to_owned).collect()
}

#[test]
fn a_server_of_syncs_that_dies_is_named_at_once() {
    let place = Place::new(
        &syncs("kind = \"upload-updates\"", "load.clients = 5").replace("iterations = 6", "duration = \"1h\""),
    );
    let mut command = place.command(&["run", "x.toml", "--target", "sqlite:x.db", "--results", "x.lab"]);
    let mut child = headwater_testkit::Child::spawn("headwater lab", &mut command).expect("started");
    let id = child.id();
    assert!(wait_until(Duration::from_mins(1), || !servers_of(id).is_empty()), "no server: {}", child.stderr());
    let server = servers_of(id);
    assert!(Command::new("kill").arg("-KILL").args(&server).status().expect("kill runs").success());
    let status = child.wait(Duration::from_secs(45)).expect("it ends");
    let said = child.stderr();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("has ended (signal: 9 (SIGKILL))") || said.contains("could not be started"), "{said}");
    assert!(!place.path("x.db").exists());
}

#[test]
fn an_interrupt_of_a_preparation_is_no_failure() {
    for text in [
        "name = \"long\"\nscenario = { name = \"tpcb\", accounts = 30_000_000 }\nstop.duration = \"1h\"\n".to_owned(),
        syncs("others = 1_000_000", "load.clients = 2"),
    ] {
        let place = Place::new(&text);
        let mut command = place.command(&["run", "x.toml", "--target", "sqlite:x.db", "--results", "x.lab"]);
        let mut child = headwater_testkit::Child::spawn("headwater lab", &mut command).expect("started");
        let is_at_it = || place.path("x.db-journal").exists() || place.path("x.db-wal").exists();
        assert!(wait_until(Duration::from_mins(1), is_at_it), "{}", child.stderr());
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs").success());
        let status = child.wait(Duration::from_mins(1)).expect("it ends");
        assert_eq!(status.code(), Some(1), "{}", child.stderr());
        assert!(child.stderr().contains("interrupted"), "{}", child.stderr());
        assert!(!place.path("x.db").exists());
    }
}

#[test]
fn results_are_not_kept_in_what_is_measured() {
    let place = Place::new(BUILT_IN);
    let said = place.run(&["run", "x.toml", "--target", "sqlite:same.lab", "--results", "./same.lab"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("sqlite:same.lab is measured, and can't have the results"), "{said:?}");
    assert!(!place.path("same.lab").exists());
}
