//! Disks that are full: the remote's, the server's, the database's, each a small file system of its own, filled to the last page before a
//! sync and cleared after it. Each time there is a little more room, until syncs go through. Whatever a full disk stopped, one sync after
//! it puts everything right, and every operation is applied exactly once.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_server::Config;
use headwater_testkit::{Postgres, wait_until};
use headwater_tests::apart::is_apart;
use headwater_tests::disk::SmallDisk;
use headwater_tests::ledger::converged;
use headwater_tests::stage::{NAME, Stage};
use headwater_tests::tally::tally;
use headwater_tests::{Central, KINDS, Kind};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Syncs with ever more room.
struct Sweep<'s> {
    disk: &'s SmallDisk,
    /// How many bytes more each time.
    step: u64,
    /// How a sync is to fail, if it does.
    code: &'s str,
    /// Before the disk is filled.
    before: &'s dyn Fn(&Central) -> Result<()>,
    /// Once there is room again.
    after: &'s dyn Fn() -> Result<()>,
}

impl Sweep<'_> {
    fn new<'s>(disk: &'s SmallDisk, step: u64, code: &'s str) -> Sweep<'s> {
        Sweep { disk, step, code, before: &|_| Ok(()), after: &|| Ok(()) }
    }

    /// Until two syncs in a row go through; at least three must have failed.
    fn run(&self, stage: &mut Stage) -> Result<()> {
        let (mut failures, mut clean) = (0, 0);
        for number in 0.. {
            let room = number * self.step;
            let left = || format!("{failures} failed before, and {room} bytes of room");
            ensure!(number < 1_000, "no end of it");
            stage.edit()?;
            (self.before)(&stage.world.central)?;
            self.disk.leave(room)?;
            let done = stage.sync(1);
            self.disk.clear()?;
            (self.after)().with_context(left)?;
            if let Err(error) = &done {
                ensure!(error.code() == self.code, "{}: {error:?}", left());
            } else {
                stage.ours.acknowledge();
            }
            stage.heal().with_context(left)?;
            failures += u64::from(done.is_err());
            clean = if done.is_ok() { clean + 1 } else { 0 };
            if clean == 2 {
                break;
            }
        }
        stage.tally("full_disks", failures);
        ensure!(failures >= 3, "only {failures} with steps of {} bytes", self.step);
        converged(&stage.world, NAME)
    }
}

/// Has the server start anew, otherwise configured.
fn serve(stage: &mut Stage, change: impl FnOnce(&mut Config)) -> Result<()> {
    change(&mut stage.world.config);
    stage.world.start_server()?;
    stage.point_at(&stage.world.server_url()?)
}

#[test]
fn the_remotes_disk_is_full() -> Result<()> {
    if !is_apart("the_remotes_disk_is_full", "--mount")? {
        return Ok(());
    }
    // Little, and so much that a download is staged in the file.
    for (padding, step) in [(16_000, 12 * KIB), (1_000_000, MIB)] {
        let disk = SmallDisk::new(96)?;
        let place = tempfile::tempdir()?;
        let central = Central::Sqlite(place.path().join("central.db"));
        let mut stage = Stage::over(Kind::Sqlite, central, TempDir::new_in(disk.path())?)?;
        stage.padding = padding;
        Sweep::new(&disk, step, "disk_full").run(&mut stage)?;
    }
    Ok(())
}

#[test]
fn the_servers_disk_is_full() -> Result<()> {
    if !is_apart("the_servers_disk_is_full", "--mount")? {
        return Ok(());
    }
    for kind in KINDS {
        let disk = SmallDisk::new(32)?;
        let mut stage = Stage::new(kind)?;
        stage.padding = 300_000;
        stage.world.memory_bytes = Some(8 * 4_096);
        serve(&mut stage, |config| config.spool_folder = Some(disk.path().to_owned()))?;
        Sweep::new(&disk, 56 * KIB, "overloaded").run(&mut stage)?;
    }
    Ok(())
}

#[test]
fn a_sqlite_databases_disk_is_full() -> Result<()> {
    if !is_apart("a_sqlite_databases_disk_is_full", "--mount")? {
        return Ok(());
    }
    let disk = SmallDisk::new(96)?;
    let central = Central::Sqlite(disk.path().join("central.db"));
    let mut stage = Stage::over(Kind::Sqlite, central, tempfile::tempdir()?)?;
    stage.padding = 300_000;
    serve(&mut stage, |config| config.retries = 1)?;
    // What its log has of the disk already would be room.
    let before = |central: &Central| central.rows("PRAGMA wal_checkpoint(TRUNCATE)").map(drop);
    Sweep { before: &before, ..Sweep::new(&disk, 256 * KIB, "database_unavailable") }.run(&mut stage)
}

/// First the tables find no room, then the log, which takes the whole cluster down.
#[test]
fn a_clusters_disk_is_full() -> Result<()> {
    if !is_apart("a_clusters_disk_is_full", "--mount")? {
        return Ok(());
    }
    let disk = SmallDisk::new(192)?;
    let log = [("min_wal_size", "32MB"), ("max_wal_size", "48MB"), ("wal_recycle", "off")];
    let cluster = log.into_iter().fold(Postgres::builder(), |cluster, (name, value)| cluster.set(name, value));
    let cluster = cluster.below(disk.path()).start()?;
    let url = cluster.create_database()?;
    let mut stage = Stage::on(Central::Postgres(url.clone()))?;
    stage.padding = 300_000;
    serve(&mut stage, |config| config.retries = 1)?;
    let (crashes, central) = (Cell::new(0), Central::Postgres(url.clone()));
    // PostgreSQL resets its statistics when it starts anew after a crash, which it may do by itself once there is room.
    let life = || central.rows("SELECT pg_stat_get_bgwriter_stat_reset_time()::text");
    let first = life()?;
    let last = Cell::new(first);
    let after = || {
        if !wait_until(Duration::from_secs(1), || headwater_testkit::sql(&url, "SELECT 1").is_ok()) {
            cluster.restart()?;
        }
        let now = life()?;
        crashes.set(crashes.get() + u64::from(last.replace(now.clone()) != now));
        Ok(())
    };
    Sweep { after: &after, ..Sweep::new(&disk, 256 * KIB, "database_unavailable") }.run(&mut stage)?;
    let before = |central: &Central| central.rows("SELECT pg_switch_wal()").map(drop);
    Sweep { before: &before, after: &after, ..Sweep::new(&disk, 3 * MIB, "database_unavailable") }.run(&mut stage)?;
    tally(&[("crashes", crashes.get())]);
    ensure!(crashes.get() > 0, "the log always found room");
    Ok(())
}

/// Room for bytes, and none for a file: at the remote, whose write-ahead log is a file beside it.
#[test]
fn the_remotes_disk_takes_no_more_files() -> Result<()> {
    if !is_apart("the_remotes_disk_takes_no_more_files", "--mount")? {
        return Ok(());
    }
    let disk = SmallDisk::with_inodes(96, 64)?;
    let place = tempfile::tempdir()?;
    let central = Central::Sqlite(place.path().join("central.db"));
    let mut stage = Stage::over(Kind::Sqlite, central, TempDir::new_in(disk.path())?)?;
    no_more_files(&mut stage, &disk, &["disk_full"])
}

#[test]
fn the_servers_disk_takes_no_more_files() -> Result<()> {
    if !is_apart("the_servers_disk_takes_no_more_files", "--mount")? {
        return Ok(());
    }
    for kind in KINDS {
        let disk = SmallDisk::with_inodes(96, 64)?;
        let mut stage = Stage::new(kind)?;
        stage.padding = 300_000;
        stage.world.memory_bytes = Some(8 * 4_096);
        serve(&mut stage, |config| config.spool_folder = Some(disk.path().to_owned()))?;
        no_more_files(&mut stage, &disk, &["overloaded"])?;
    }
    Ok(())
}

/// Syncs with room for ever more files, until two in a row go through.
fn no_more_files(stage: &mut Stage, disk: &SmallDisk, codes: &[&str]) -> Result<()> {
    let (mut failures, mut clean) = (0, 0);
    for room in 0..20 {
        stage.edit()?;
        disk.leave_inodes(room)?;
        let done = stage.sync(1);
        disk.clear_inodes()?;
        match &done {
            Ok(()) => stage.ours.acknowledge(),
            Err(error) => ensure!(codes.contains(&error.code()), "room for {room} files: {error:?}"),
        }
        stage.heal().with_context(|| format!("{failures} failed before, and room for {room} files"))?;
        failures += u64::from(done.is_err());
        clean = if done.is_ok() { clean + 1 } else { 0 };
        if clean == 2 {
            break;
        }
    }
    ensure!(failures >= 1 && clean == 2, "{failures} failed, {clean} went through");
    converged(&stage.world, NAME)
}
