//! Downloads that break.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use headwater_remote::Remote;
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{Child, Plan, Random, headwater_binary, wait_until};
use headwater_tests::wire::frames;
use headwater_tests::{KINDS, Kind};

use crate::{LONG, Stage, rows};

impl Stage {
    /// What a sync of a new remote takes down the clean line.
    fn whole_download(&mut self) -> Result<u64> {
        let (name, mut remote) = self.remote()?;
        let (bytes, _) = self.carried(Direction::Down, || Ok(self.sync(&mut remote, 1)?))?;
        self.is_equal(&name)?;
        Ok(bytes)
    }

    /// A sync of a new remote whose download breaks after so many bytes.
    fn broken_download(&mut self, after: u64) -> Result<(String, Remote)> {
        let (name, mut remote) = self.remote()?;
        self.proxy.next([Plan::clean().cut(Direction::Down, after, Cut::Reset)]);
        let broken = self.sync(&mut remote, 1);
        ensure!(broken.is_err(), "the download came whole: {broken:?}");
        Ok((name, remote))
    }
}

/// Every connection is cut, after about two frames: each brings the download further, and one sync comes to its end.
#[test]
fn a_download_over_a_line_that_breaks_all_the_time() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::new(kind, 2_500)?;
        let whole = stage.whole_download()?;
        ensure!(whole > 2_000_000, "{whole} bytes are too few to be worth a test");
        let (name, mut remote) = stage.remote()?;
        stage.proxy.script(|number| {
            let cut = if number % 2 == 0 { Cut::Reset } else { Cut::Fin };
            Plan::clean().cut(Direction::Down, 170_000, cut)
        });
        let (down, report) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 4)?))?;
        assert_eq!(report.rows_down, 2_500, "{kind:?}");
        assert!(report.failures > 10, "{kind:?}: {} failures", report.failures);
        assert!(down < whole * 2, "{kind:?}: {down} bytes came, the download has {whole}");
        stage.is_equal(&name).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

#[test]
fn ten_cuts_cost_a_download_of_20_mb_less_than_a_fifth() -> Result<()> {
    let mut stage = Stage::new(Kind::Sqlite, 25_000)?;
    let whole = stage.whole_download()?;
    ensure!(whole > 20_000_000, "{whole} bytes");
    let mut random = Random::seeded(whole);
    let (name, mut remote) = stage.remote()?;
    let cuts: Vec<Plan> =
        (0..10).map(|_| Plan::clean().cut(Direction::Down, random.below(whole / 10), Cut::Reset)).collect();
    stage.proxy.next(cuts);
    let (down, report) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 20)?))?;
    assert_eq!((report.rows_down, report.failures), (25_000, 10));
    eprintln!("{down} bytes came of a download of {whole}, through 10 cuts");
    assert!(down < whole * 12 / 10, "{down} bytes came, the download has {whole}");
    stage.is_equal(&name)
}

/// Where its frames begin and end, and within them.
#[test]
fn a_download_cut_at_every_frame_boundary() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::new(kind, 500)?;
        stage.proxy.record(true);
        let whole = stage.whole_download()?;
        let recorded = stage.proxy.connections().pop().and_then(|traffic| traffic.recorded).context("recorded")?;
        stage.proxy.record(false);
        let ends: Vec<u64> = frames(&recorded.1).iter().map(|placed| placed.end).collect();
        ensure!(ends.len() > 8, "{} frames", ends.len());
        for (place, end) in ends.iter().enumerate() {
            for at in [end - 1, *end, end + 1] {
                if at >= whole {
                    continue;
                }
                let (name, mut remote) = stage.remote()?;
                let cut = if place % 2 == 0 { Cut::Reset } else { Cut::Fin };
                stage.proxy.next([Plan::clean().cut(Direction::Down, at, cut)]);
                let (down, _) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 3)?))?;
                assert!(down < whole + 80_000, "{kind:?} cut at {at}: {down} bytes came, the download has {whole}");
                stage.is_equal(&name).with_context(|| format!("{kind:?} cut at {at}"))?;
            }
        }
    }
    Ok(())
}

/// The remote's process is killed in the midst of a download: the next one goes on from what lies in the file.
#[test]
fn a_killed_remote_goes_on_with_its_download() -> Result<()> {
    let mut stage = Stage::new(Kind::Sqlite, 8_000)?;
    let whole = stage.whole_download()?;
    let (name, remote) = stage.remote()?;
    drop(remote);
    stage.proxy.next([Plan::clean().black_hole(Direction::Down, whole * 3 / 4)]);
    let before = stage.proxy.counters().down;
    let mut command = Command::new(headwater_binary()?);
    command.args(["remote", "sync"]).arg(stage.world.path(&name)).env("HEADWATER_TOKEN", stage.world.token("ann")?);
    let mut child = Child::spawn("headwater remote sync", &mut command)?;
    let staged = "SELECT coalesce(sum(length(bytes)), 0) FROM hw_staged";
    let is_far = || {
        let bytes = stage.world.rows(&name, staged).ok().and_then(|mut rows| rows.pop()?.pop()??.parse::<u64>().ok());
        bytes > Some(whole / 2)
    };
    ensure!(wait_until(LONG, is_far), "the download did not come: {}", child.stderr());
    child.kill()?;
    stage.proxy.go_clean();
    let mut remote = Remote::open(stage.world.path(&name))?;
    assert_eq!(stage.sync(&mut remote, 3)?.failures, 0);
    let down = stage.proxy.counters().down - before;
    assert!(down < whole * 13 / 10, "{down} bytes came, the download has {whole}");
    stage.is_equal(&name)
}

/// Changes made between the break and the rest are pending: they are not overwritten, and go up in conflict as any.
#[test]
fn what_was_changed_meanwhile_is_not_overwritten() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::new(kind, 2_000)?;
        let (name, mut remote) = stage.remote()?;
        stage.sync(&mut remote, 1)?;
        stage.world.central.execute("UPDATE note SET body = 'new' || body")?;
        stage.proxy.next([Plan::clean().cut(Direction::Down, 1_500_000, Cut::Reset)]);
        let broken = stage.sync(&mut remote, 1);
        ensure!(broken.is_err(), "the download came whole: {broken:?}");
        // In what is staged already, and in what is to come; and a row that nobody else has.
        stage.world.edit(
            &name,
            "UPDATE note SET body = 'mine' WHERE id IN ('theirs000000', 'theirs001999'); \
             DELETE FROM note WHERE id = 'theirs000001'; INSERT INTO note VALUES ('mine', 'mine')",
        )?;
        let (down, report) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 1)?))?;
        assert!(down < 800_000, "{kind:?}: {down} bytes came again");
        assert_eq!((report.changes_up, report.conflicts, report.held), (4, 3, 3), "{kind:?}: {report:?}");
        stage.is_equal(&name)?;
        let mine = stage.world.central.rows("SELECT count(*) FROM note WHERE body = 'mine'")?;
        assert_eq!(mine, [[Some("1".to_owned())]], "{kind:?}: the consolidated rows win");
    }
    Ok(())
}

/// Nobody has the rest any more: it comes anew.
#[test]
fn a_server_that_does_not_know_the_download() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::new(kind, 2_000)?;
        let (name, mut remote) = stage.broken_download(1_000_000)?;
        let other = stage.world.start_another_server(None)?;
        stage.proxy.set_target(other)?;
        let report = stage.sync(&mut remote, 1)?;
        assert_eq!((report.rows_down, report.requests), (2_000, 2), "{kind:?}: one in vain, then the whole");
        stage.is_equal(&name)?;
        // The same for the one server where it was started anew.
        let (name, mut remote) = stage.broken_download(1_000_000)?;
        stage.world.stop_another_server(other);
        let again = stage.world.start_another_server(None)?;
        stage.proxy.set_target(again)?;
        assert_eq!(stage.sync(&mut remote, 1)?.rows_down, 2_000, "{kind:?}");
        stage.is_equal(&name)?;
    }
    Ok(())
}

/// The consolidated database is put back while a download waits for its rest: it names more syncs than the database has counted, so
/// all is as if the remote had taken it before.
#[test]
fn a_database_put_back_between_a_break_and_the_rest() -> Result<()> {
    let mut stage = Stage::new(Kind::Sqlite, 0)?;
    let (name, mut remote) = stage.remote()?;
    stage.sync(&mut remote, 1)?;
    let path = stage.world.path("central");
    let backup = stage.world.path("backup");
    rusqlite::Connection::open(&path)?.execute_batch(&format!("VACUUM INTO '{}'", backup.display()))?;
    stage.world.central.execute(&rows("lost", 2_000))?;
    stage.proxy.next([Plan::clean().cut(Direction::Down, 1_000_000, Cut::Reset)]);
    let broken = stage.sync(&mut remote, 1);
    ensure!(broken.is_err(), "the download came whole: {broken:?}");
    put_back(&path, &backup)?;
    stage.world.central.execute(&rows("later", 100))?;
    let (down, _) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 3)?))?;
    assert!(down < 2_000_000, "{down} bytes: the rest was taken");
    stage.sync(&mut remote, 3)?;
    stage.is_equal(&name)?;
    let lost = stage.world.rows(&name, "SELECT count(*) FROM note WHERE id LIKE 'lost%'")?;
    assert_eq!(lost, [[Some("0".to_owned())]], "what the database forgot is forgotten");
    Ok(())
}

fn put_back(path: &Path, with: &Path) -> Result<()> {
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(std::fs::rename(with, path)?)
}
