//! The demo as a user sees it: it ends well, what it shows is so, and what it says can be done by hand can be.
//!
//! It runs the program `headwater` that was built beside it; where there is none, it is built first.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

const FLIGHTS: &str = env!("CARGO_BIN_EXE_flights");

/// `make test` builds all programs first; a test of this package alone builds what is missing.
fn build_headwater() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let program = Path::new(FLIGHTS).with_file_name("headwater");
        if program.exists() {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
            cargo.env_remove(name); // what cargo tells this test would make it build other things anew
        }
        if let Some(folder) = program.parent().and_then(Path::parent) {
            cargo.arg("build").args(["--locked", "-p", "headwater"]).env("CARGO_TARGET_DIR", folder);
        }
        assert!(cargo.status().expect("cargo runs").success() && program.exists(), "headwater was not built");
    });
}

fn demo(folder: &Path) -> Command {
    build_headwater();
    let mut command = Command::new(FLIGHTS);
    command.args(["demo", "--port", "0", "--folder"]).arg(folder);
    command
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).join("\n")
}

/// Where the server of this demo listened.
fn address(said: &str) -> Result<String> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("headwater serve"));
    Ok(line.context("no line about the server")?.trim().trim_start_matches("http://").to_owned())
}

fn count(file: PathBuf, sql: &str) -> Result<i64> {
    Ok(Connection::open(file)?.query_row(sql, [], |row| row.get(0))?)
}

#[test]
fn it_tells_the_whole_story_and_can_be_gone_on_with_by_hand() -> Result<()> {
    let outer = tempfile::tempdir()?;
    let folder = outer.path().join("it's a demo");
    // The second run finds the folder of the first, and makes it anew.
    demo(&folder).output()?;
    let output = demo(&folder).output()?;
    let said = text(&output);
    ensure!(output.status.success(), "{said}");
    assert!(!said.contains('\x1b'), "colours, and no terminal: {said}");
    for line in ["flights 27,004", "equal but for the row set aside", "merged", "consolidated", "partition"] {
        assert!(said.contains(line), "{line:?} is missing: {said}");
    }
    assert!(!said.contains("DIFFERENT") && said.contains("Every remote equals its part"), "{said}");
    assert!(TcpStream::connect(address(&said)?).is_err(), "the server still listens");
    what_it_says_is_so(&folder)?;
    by_hand(&said)
}

fn what_it_says_is_so(folder: &Path) -> Result<()> {
    let flights = |name: &str| count(folder.join(format!("{name}.db")), "SELECT count(*) FROM flights");
    assert!(flights("central")? >= 20_000);
    assert_eq!(flights("central")?, flights("ann")? + flights("ben")? + flights("cal")?);
    let moved =
        "SELECT count(*) FROM flights WHERE carrier = 'B6' AND flight = 79 AND time_hour = '2013-01-01 11:00:00Z'";
    assert_eq!(count(folder.join("ben.db"), moved)?, 0);
    assert_eq!(count(folder.join("cal.db"), moved)?, 1);
    let mended = "SELECT count(*) FROM flights WHERE flight = 9003 AND origin = 'LGA'";
    assert_eq!(count(folder.join("central.db"), mended)?, 1);
    let merged = "SELECT count(*) FROM flights WHERE flight = 1124 AND time_hour = '2013-01-01 11:00:00Z'
                  AND tailnum = 'N24212' AND dep_delay = 12";
    assert_eq!((count(folder.join("central.db"), merged)?, count(folder.join("ann.db"), merged)?), (1, 1));
    Ok(())
}

/// The commands at the end are pasted into a shell.
fn by_hand(said: &str) -> Result<()> {
    let lines = said.lines().skip_while(|line| !line.contains("Go on by hand")).skip(1);
    let script: Vec<_> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    assert!(script.len() > 5, "{script:?}");
    let mut shell = Command::new("sh");
    let output = shell.arg("-e").arg("-c").arg(script.join("\n")).stdin(Stdio::null()).output()?;
    let answer = text(&output);
    ensure!(output.status.success(), "{answer}");
    for line in ["rows changed: 1", "dep_delay: null -> 99", "the remote equals its part", "consolidated wins"] {
        assert!(answer.contains(line), "{line:?} is missing: {answer}");
    }
    Ok(())
}

#[test]
fn a_folder_of_somebody_elses_is_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("letter"), "dear")?;
    let output = demo(folder.path()).output()?;
    assert!(!output.status.success() && text(&output).contains("--folder"), "{}", text(&output));
    assert_eq!(std::fs::read_to_string(folder.path().join("letter"))?, "dear");
    Ok(())
}

#[test]
fn interrupted_it_stops_its_server_and_fails() -> Result<()> {
    let outer = tempfile::tempdir()?;
    let folder = outer.path().join("demo");
    let mut child = demo(&folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("piped")?).lines();
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("http://"))).context("no server")??;
    let central = Connection::open(folder.join("central.db"))?;
    central.execute_batch("BEGIN EXCLUSIVE")?; // no sync gets further while the signal is on its way
    ensure!(Command::new("kill").arg(child.id().to_string()).status()?.success());
    drop(central);
    let rest: Vec<_> = lines.collect::<Result<_, _>>()?;
    let output = child.wait_with_output()?;
    assert!(!output.status.success() && text(&output).contains("interrupted"), "{}\n{rest:?}", text(&output));
    assert!(TcpStream::connect(address(&line)?).is_err(), "the server still listens");
    Ok(())
}

#[test]
fn without_the_program_beside_it_says_what_builds_it() -> Result<()> {
    let outer = tempfile::tempdir()?;
    let alone = outer.path().join("flights");
    std::fs::copy(FLIGHTS, &alone)?;
    let output = Command::new(alone).args(["demo", "--folder"]).arg(outer.path().join("demo")).output()?;
    assert!(!output.status.success() && text(&output).contains("make demo"), "{}", text(&output));
    Ok(())
}
