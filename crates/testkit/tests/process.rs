//! Processes under test are watched, and end with the test.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use headwater_testkit::{Child, headwater_binary, wait_until};

const LONG: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Result<Child> {
    Child::spawn("the shell", Command::new("sh").arg("-c").arg(script))
}

#[test]
fn a_line_is_waited_for_and_the_end_too() -> Result<()> {
    let mut child = shell("echo one; echo listening on 127.0.0.1:1 >&2; echo out; exit 3")?;
    assert_eq!(child.wait_for_line("listening", LONG)?, "listening on 127.0.0.1:1");
    assert_eq!(child.wait(LONG)?.code(), Some(3));
    assert_eq!(child.stdout(), "one\nout\n");
    assert!(!child.is_running()?);
    Ok(())
}

#[test]
fn a_line_that_never_comes_is_an_error_with_what_was_printed() -> Result<()> {
    let error = shell("echo wrong option >&2; exit 1")?.wait_for_line("listening", LONG).expect_err("it ended");
    assert!(error.to_string().contains("wrong option"), "{error}");
    let error = shell("sleep 1000")?.wait_for_line("listening", Duration::from_millis(20)).expect_err("time is over");
    assert!(error.to_string().contains("within"), "{error}");
    Ok(())
}

#[test]
fn a_child_ends_when_asked_killed_or_dropped() -> Result<()> {
    let mut child = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")?;
    child.wait_for_line("ready", LONG)?;
    assert!(child.wait(Duration::from_millis(20)).is_err(), "it runs on");
    child.terminate()?;
    assert_eq!(child.wait(LONG)?.code(), Some(7));

    let mut child = shell("exec sleep 1000")?;
    assert!(child.is_running()?);
    assert_eq!(child.kill()?.code(), None, "ended by a signal");

    let child = shell("exec sleep 1000")?;
    let folder = format!("/proc/{}", child.id());
    assert!(Path::new(&folder).exists());
    drop(child);
    assert!(!Path::new(&folder).exists());
    Ok(())
}

#[test]
fn a_missing_program_is_named() {
    let error = Child::spawn("nothing", &mut Command::new("no-such-program")).expect_err("there is none");
    assert!(format!("{error:#}").contains("no-such-program"), "{error:#}");
}

#[test]
fn the_binary_is_found_or_the_way_to_it_told() {
    match headwater_binary() {
        Ok(path) => assert!(path.is_file()),
        Err(error) => assert!(error.to_string().contains("make test"), "{error}"),
    }
}

#[test]
fn waiting_ends_with_the_condition_or_the_time() {
    let mut calls = 0;
    assert!(wait_until(LONG, || {
        calls += 1;
        calls == 3
    }));
    assert!(!wait_until(Duration::from_millis(5), || false));
}
