//! Passing faults of a disk are not damage: single reads, writes and syncs of a file fail with EIO under the program itself, disks are full
//! or read-only. Each run ends with exit code 0 or 3, never as usage, damage or "no remote", and a healthy run after it finds everything.
//!
//! strace makes the n-th call of a kind on the files of one database fail; there are no hooks in the program. CI takes some of the
//! points; `HEADWATER_DISK_FAULTS=all` takes each of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use headwater_testkit::headwater_binary;
use headwater_tests::apart::is_apart;
use headwater_tests::disk::SmallDisk;
use headwater_tests::ledger::converged;
use headwater_tests::stage::{NAME, Stage};
use headwater_tests::{Central, Kind};
use tempfile::TempDir;

/// The calls of SQLite by which a disk shows that it fails.
const CALLS: [&str; 5] = ["pread64", "pwrite64", "fdatasync", "ftruncate", "openat"];
/// The points that CI takes.
const POINTS: [usize; 9] = [1, 2, 3, 5, 8, 13, 21, 34, 55];
const POINTS_MAX: usize = 10_000;
/// Words of errors that would have people drop a sound file.
const WRONG: [&str; 5] = ["is no remote", "makes a remote", "makes one", "damaged", "not a SQLite file"];

/// How often a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Once,
    /// From there on.
    Ever,
}

/// A run of the program.
struct Run {
    code: Option<i32>,
    said: String,
    /// Whether a call failed.
    is_faulty: bool,
}

impl Run {
    fn of(output: &Output, is_faulty: bool) -> Run {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        Run { code: output.status.code(), said, is_faulty }
    }

    /// It did what it should, or said that it can't be done now.
    fn is_done_or_not_now(&self) -> Result<()> {
        let is_right = match self.code {
            Some(0) => true,
            Some(3) => ["nothing is lost", "keep the file", "try again", "could not do it now"]
                .iter()
                .any(|words| self.said.contains(words)),
            _ => false,
        };
        ensure!(is_right, "{:?}: {}", self.code, self.said);
        let wrong = WRONG.iter().find(|words| self.code != Some(0) && self.said.contains(**words));
        ensure!(wrong.is_none(), "{wrong:?} in {}", self.said);
        Ok(())
    }
}

/// The program, with these arguments, in a world's folder.
fn program(stage: &Stage, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(headwater_binary()?);
    command.args(arguments).current_dir(stage.world.folder.path());
    command.env("HEADWATER_TOKEN", stage.world.token(NAME)?);
    Ok(command)
}

fn run(stage: &Stage, arguments: &[&str]) -> Result<Run> {
    Ok(Run::of(&program(stage, arguments)?.output()?, false))
}

/// Runs the program; the n-th call of this kind on the files of a database fails.
fn run_with(
    stage: &Stage,
    arguments: &[&str],
    file: &Path,
    (call, number, fault): (&str, usize, Fault),
) -> Result<Run> {
    let program = program(stage, arguments)?;
    let trace = stage.world.folder.path().join("trace");
    let _ = std::fs::remove_file(&trace);
    let ever = if fault == Fault::Ever { "+" } else { "" };
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qqq", "-e", &format!("trace={call}"), "-e"]);
    strace.arg(format!("inject={call}:error=EIO:when={number}{ever}")).arg("-o").arg(&trace);
    for suffix in ["", "-wal", "-journal", "-shm"] {
        strace.arg("-P").arg(beside(file, suffix));
    }
    strace.arg(program.get_program()).args(program.get_args()).current_dir(stage.world.folder.path());
    strace.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = strace.output().context("strace: `make setup` installs it")?;
    Ok(Run::of(&output, std::fs::read_to_string(&trace)?.contains("(INJECTED)")))
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn takes_all() -> bool {
    std::env::var("HEADWATER_DISK_FAULTS").is_ok_and(|which| which == "all")
}

/// Calls `attempt` with each point of each call until it says that no call failed; gives the number of faults.
fn sweep(mut attempt: impl FnMut((&str, usize, Fault)) -> Result<Run>) -> Result<u64> {
    let mut faults = 0;
    for fault in [Fault::Once, Fault::Ever] {
        for call in CALLS {
            let points = (1..POINTS_MAX).filter(|point| takes_all() || POINTS.contains(point));
            // One that goes on is met early.
            let most = if fault == Fault::Ever && !takes_all() { 2 } else { POINTS_MAX };
            for number in points.take(most) {
                let point = (call, number, fault);
                let run = attempt(point).with_context(|| format!("{point:?}"))?;
                run.is_done_or_not_now().with_context(|| format!("{point:?}"))?;
                if !run.is_faulty {
                    break;
                }
                faults += 1;
            }
        }
    }
    Ok(faults)
}

#[test]
fn a_sync_whose_disk_fails_once_loses_nothing() -> Result<()> {
    let mut stage = Stage::new(Kind::Sqlite)?;
    let path = stage.world.path(NAME);
    let faults = sweep(|point| {
        stage.edit()?;
        let run = run_with(&stage, &["remote", "sync", "one.db"], &path, point)?;
        if run.code == Some(0) {
            stage.ours.acknowledge();
        }
        stage.heal().with_context(|| run.said.clone())?;
        Ok(run)
    })?;
    stage.tally("disk_faults", faults);
    ensure!(faults >= 15, "only {faults} faults");
    converged(&stage.world, NAME)
}

/// What only looks at a file does not name a sound one damaged, or no remote.
#[test]
fn a_look_at_a_file_whose_disk_fails_names_the_disk() -> Result<()> {
    let mut stage = Stage::new(Kind::Sqlite)?;
    let path = stage.world.path(NAME);
    stage.edit()?;
    for arguments in [
        &["remote", "status", "one.db"][..],
        &["remote", "log", "one.db"],
        &["remote", "retry", "one.db", "--all"],
        &["diff", "one.db", "--ignore-pending"],
        &["idxbuild", "one.db"],
    ] {
        let faults = sweep(|point| {
            let mut run = run_with(&stage, arguments, &path, point)?;
            if arguments[0] == "diff" && run.code == Some(1) {
                // There are differences: the head has rows that have not come yet.
                run.code = Some(0);
            }
            Ok(run)
        });
        let faults = faults.with_context(|| format!("{arguments:?}"))?;
        ensure!(faults >= 4, "{arguments:?}: only {faults} faults");
    }
    // Two sides of a SQLite head.
    let Central::Sqlite(head) = stage.world.central.clone() else { unreachable!("a SQLite world") };
    let faults = sweep(|point| run_with(&stage, &["check"], &head, point)).context("check")?;
    ensure!(faults >= 4, "check: only {faults} faults");
    stage.heal()?;
    converged(&stage.world, NAME)
}

#[test]
fn a_remote_is_created_after_a_disk_failed() -> Result<()> {
    let stage = Stage::new(Kind::Sqlite)?;
    let (url, mut made) = (stage.world.server_url()?, 0);
    let faults = sweep(|point| {
        made += 1;
        let name = format!("new-{made}.db");
        let path = stage.world.folder.path().join(&name);
        let create = ["remote", "create", &name, "--server", &url, "--user", NAME];
        let broken = run_with(&stage, &create, &path, point)?;
        let again = run(&stage, &create)?;
        // What was made before the disk failed is whole.
        let is_there = again.said.contains("is a remote already");
        ensure!(again.code == Some(0) || is_there, "{}\nand then {}", broken.said, again.said);
        let synced = run(&stage, &["remote", "sync", &name])?;
        ensure!(synced.code == Some(0), "{}", synced.said);
        Ok(broken)
    })?;
    ensure!(faults >= 10, "only {faults} faults");
    Ok(())
}

/// A stage whose remotes lie on a disk of their own.
fn stage_on(disk: &SmallDisk, place: &TempDir) -> Result<Stage> {
    let central = Central::Sqlite(place.path().join("central.db"));
    Stage::over(Kind::Sqlite, central, TempDir::new_in(disk.path())?)
}

#[test]
fn a_full_disk_is_not_now_for_the_program_too() -> Result<()> {
    if !is_apart("a_full_disk_is_not_now_for_the_program_too", "--mount")? {
        return Ok(());
    }
    let (disk, place) = (SmallDisk::new(64)?, tempfile::tempdir()?);
    let mut stage = stage_on(&disk, &place)?;
    let (url, mut refused) = (stage.world.server_url()?, 0);
    let create = ["remote", "create", "new.db", "--server", &url, "--user", NAME];
    for room in [0, 4, 16, 36, 40, 64, 200] {
        stage.edit()?;
        for arguments in [&["remote", "sync", "one.db"][..], &["remote", "status", "one.db"], &create] {
            disk.leave(room << 10)?;
            let run = run(&stage, arguments)?;
            disk.clear()?;
            run.is_done_or_not_now().with_context(|| format!("{arguments:?} with {room} KiB"))?;
            refused += u64::from(run.code == Some(3));
        }
        for suffix in ["", "-wal", "-shm", "-sync"] {
            let _ = std::fs::remove_file(beside(&stage.world.folder.path().join("new.db"), suffix));
        }
        stage.heal()?;
    }
    ensure!(refused >= 6, "only {refused} were refused");
    // What an attempt has left is named.
    std::fs::write(stage.world.folder.path().join("new.db-ready-00ff"), vec![1; 70_000])?;
    disk.leave(0)?;
    let run = run(&stage, &create)?;
    disk.clear()?;
    ensure!(run.code == Some(3) && run.said.contains("new.db-ready-00ff (70 kB)"), "{:?} {}", run.code, run.said);
    converged(&stage.world, NAME)
}

#[test]
fn a_read_only_mount_is_not_now() -> Result<()> {
    if !is_apart("a_read_only_mount_is_not_now", "--mount")? {
        return Ok(());
    }
    let (disk, place) = (SmallDisk::new(64)?, tempfile::tempdir()?);
    let mut stage = stage_on(&disk, &place)?;
    stage.edit()?;
    let url = stage.world.server_url()?;
    let mount = |how: &str| -> Result<()> {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(disk.path()).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    };
    mount("ro")?;
    for arguments in [
        &["remote", "sync", "one.db"][..],
        &["remote", "status", "one.db"],
        &["remote", "log", "one.db"],
        &["remote", "reset", "one.db"],
        &["idxbuild", "one.db"],
        &["remote", "create", "new.db", "--server", &url, "--user", NAME],
    ] {
        let run = run(&stage, arguments)?;
        ensure!(run.code == Some(3), "{arguments:?}: {:?} {}", run.code, run.said);
        run.is_done_or_not_now().with_context(|| format!("{arguments:?}"))?;
    }
    let doctor = run(&stage, &["doctor", "--remote", "one.db", "--json"])?;
    ensure!(doctor.code == Some(1) && doctor.said.contains("\"read_only\""), "{:?} {}", doctor.code, doctor.said);
    mount("rw")?;
    stage.heal()?;
    converged(&stage.world, NAME)
}

/// A file that is damaged is named so, and one that is no remote too.
#[test]
fn damage_is_still_damage() -> Result<()> {
    let stage = Stage::new(Kind::Sqlite)?;
    let folder = stage.world.folder.path();
    let whole = std::fs::read(stage.world.path(NAME))?;
    let copy = folder.join("copy.db");
    // The header stays, and all that follows is lost.
    let mut lost = whole.clone();
    lost[4096..].fill(0xA5);
    let mut no_header = whole;
    no_header[..16].fill(0x20);
    for (bytes, code, words) in
        [(lost, 4, "damaged"), (no_header, 2, "is not a SQLite file"), (Vec::new(), 2, "is no remote")]
    {
        std::fs::write(&copy, bytes)?;
        let run = run(&stage, &["remote", "status", "copy.db"])?;
        ensure!(run.code == Some(code) && run.said.contains(words), "{words}: {:?} {}", run.code, run.said);
    }
    Ok(())
}

#[test]
fn leftovers_are_named() -> Result<()> {
    let stage = Stage::new(Kind::Sqlite)?;
    let folder = stage.world.folder.path();
    std::fs::write(folder.join("one.db-ready-00ff"), "x")?;
    std::fs::write(folder.join("gone.db-wal"), "x")?;
    let status = run(&stage, &["remote", "status", "one.db"])?;
    ensure!(status.code == Some(0) && status.said.contains("one.db-ready-00ff (1 bytes)"), "{}", status.said);
    let status = run(&stage, &["remote", "status", "one.db", "--json"])?;
    let answer: serde_json::Value = serde_json::from_str(&status.said)?;
    ensure!(answer["leftovers"][0]["bytes"] == 1, "{answer}");
    let doctor = run(&stage, &["doctor", "--remote", "one.db"])?;
    ensure!(doctor.said.contains("one.db-ready-00ff") && doctor.said.contains("delete it"), "{}", doctor.said);
    let gone = run(&stage, &["remote", "status", "gone.db"])?;
    ensure!(gone.code == Some(2) && gone.said.contains("gone.db-wal"), "{:?} {}", gone.code, gone.said);
    Ok(())
}
