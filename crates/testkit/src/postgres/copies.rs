//! What happens to a cluster in its life: it is put back from a backup, recovered to a point in time, dumped and loaded, followed by a standby
//! that takes over, and rewound to follow that.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use headwater_testkit::Postgres;
//!
//! let cluster = Postgres::start()?;
//! let backup = cluster.copy_data()?;
//! // ... what is written here is lost:
//! cluster.put_back(&backup)?;
//! # Ok(())
//! # }
//! ```

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::installation::{Installation, run};
use super::{Builder, Postgres, sql, wait_for_start};
use crate::process::wait_until;

/// A copy of a cluster's files, made while its server was stopped.
#[derive(Debug)]
pub struct DataCopy(TempDir);

impl DataCopy {
    fn data(&self) -> std::path::PathBuf {
        self.0.path().join("data")
    }
}

impl Postgres {
    /// Stops the server, copies its files, and starts it again.
    pub fn copy_data(&self) -> Result<DataCopy> {
        let installation = Installation::find()?;
        let copy = DataCopy(installation.folder(None)?);
        self.stop()?;
        installation.copy_as_owner(&self.folder().join("data"), &copy.data())?;
        self.restart()?;
        Ok(copy)
    }

    /// Kills the server, puts a copy of its files in their place, and starts it again: whatever was written since the copy is lost.
    pub fn put_back(&self, copy: &DataCopy) -> Result<()> {
        let data = self.folder().join("data");
        let mut supervisor = self.supervisor();
        supervisor.kill_server()?;
        std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        Installation::find()?.copy_as_owner(&copy.data(), &data)?;
        supervisor.start_server()?;
        wait_for_start(&supervisor, self.folder(), self.port())
    }

    /// Copies the files of the running server, with `pg_basebackup`, for [`Postgres::recover`].
    pub fn base_backup(&self) -> Result<DataCopy> {
        let installation = Installation::find()?;
        let copy = DataCopy(installation.folder(None)?);
        run(&mut base_backup(&installation, self, &copy.data(), "none"))?;
        Ok(copy)
    }

    /// Point-in-time recovery: puts a base backup in the place of the files, and replays what the server has archived since, up to this restore
    /// point (`pg_create_restore_point`). The server accepts connections then, and stands still at that point: it is a standby that cannot be
    /// written to, until [`Postgres::end_recovery`]. Needs [`Builder::archive`].
    pub fn recover(&self, backup: &DataCopy, restore_point: &str) -> Result<()> {
        self.archive_all()?;
        let data = self.folder().join("data");
        let mut supervisor = self.supervisor();
        supervisor.kill_server()?;
        let configuration = data.join("postgresql.conf");
        let settings = std::fs::read_to_string(&configuration)?;
        std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        let installation = Installation::find()?;
        installation.copy_as_owner(&backup.data(), &data)?;
        let target = format!("recovery_target_name = '{restore_point}'\nrecovery_target_action = 'pause'\n");
        std::fs::write(&configuration, format!("{settings}\nrestore_command = 'cp ../archive/%f %p'\n{target}"))?;
        let signal = data.join("recovery.signal");
        std::fs::write(&signal, "")?;
        installation.give(&signal)?;
        supervisor.start_server()?;
        wait_for_start(&supervisor, self.folder(), self.port())?;
        drop(supervisor);
        let url = self.url("postgres");
        let is_there = || one(&url, "SELECT pg_get_wal_replay_pause_state()").is_ok_and(|state| state == "paused");
        ensure!(wait_until(LONG, is_there), "the recovery has not reached {restore_point:?} within {LONG:?}");
        Ok(())
    }

    /// Ends a recovery that stands still at its point: the server can be written to, on a timeline of its own.
    pub fn end_recovery(&self) -> Result<()> {
        self.promote()
    }

    /// Waits until all that the server has written is in its archive.
    fn archive_all(&self) -> Result<()> {
        let url = self.url("postgres");
        let last = one(&url, "SELECT pg_walfile_name(pg_switch_wal())")?;
        let archived = format!("SELECT last_archived_wal >= '{last}' FROM pg_stat_archiver");
        ensure!(
            wait_until(LONG, || one(&url, &archived).is_ok_and(|answer| answer == "t")),
            "{last} is not archived within {LONG:?}"
        );
        Ok(())
    }

    /// Stops this server, which was the primary, undoes with `pg_rewind` what the new primary never got, and starts it again as a standby of the
    /// new primary. Needs the setting `wal_log_hints`.
    pub fn rewind(&self, primary: &Postgres) -> Result<()> {
        sql(&primary.url("postgres"), "CHECKPOINT")?; // or it is not seen that it has a timeline of its own
        let installation = Installation::find()?;
        let data = self.folder().join("data");
        let configuration = data.join("postgresql.conf");
        let mut supervisor = self.supervisor();
        supervisor.stop_server()?;
        let settings = std::fs::read(&configuration)?;
        let mut rewind = Command::new(installation.programs().join("pg_rewind"));
        rewind.args(["--write-recovery-conf", "--no-sync"]).arg("--target-pgdata").arg(&data).current_dir("/");
        rewind.arg("--source-server").arg(format!("{} dbname=postgres", source_of(primary)));
        installation.as_owner(&mut rewind);
        run(&mut rewind)?;
        // The other's settings came along, with its port.
        std::fs::write(&configuration, settings)?;
        supervisor.start_server()?;
        wait_for_start(&supervisor, self.folder(), self.port())
    }

    /// Writes a database out as SQL, with `pg_dump`.
    pub fn dump(&self, database: &str, to: &Path) -> Result<()> {
        let mut dump = self.program("pg_dump")?;
        run(dump.arg("--dbname").arg(self.url(database)).arg("--file").arg(to))
    }

    /// Makes a database of what [`Postgres::dump`] wrote, here or elsewhere; its address.
    pub fn load(&self, dump: &Path) -> Result<String> {
        let url = self.create_database()?;
        self.load_into(&url, dump)?;
        Ok(url)
    }

    /// Runs what [`Postgres::dump`] wrote in a database that has nothing of it (any more).
    pub fn load_into(&self, url: &str, dump: &Path) -> Result<()> {
        let mut load = self.program("psql")?;
        load.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--output", "/dev/null"]);
        run(load.arg("--dbname").arg(url).arg("--file").arg(dump))
    }

    /// Starts a standby that follows this server.
    pub fn standby(&self) -> Result<Postgres> {
        Builder::default().start_with(|installation, data| {
            run(base_backup(installation, self, data, "stream").arg("--write-recovery-conf"))
        })
    }

    /// Waits until this standby has replayed what its primary has committed by now.
    pub fn catch_up(&self, primary: &Postgres) -> Result<()> {
        let position = one(&primary.url("postgres"), "SELECT pg_current_wal_flush_lsn()")?;
        let url = self.url("postgres");
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
        let has_replayed = wait_until(LONG, || one(&url, &replayed).is_ok_and(|answer| answer == "t"));
        ensure!(has_replayed, "the standby has not replayed {position} within {LONG:?}");
        Ok(())
    }

    /// Cuts this standby off from its primary: what is committed there from now on it never gets.
    pub fn cut_off(&self) -> Result<()> {
        let url = self.url("postgres");
        sql(&url, "ALTER SYSTEM SET primary_conninfo = ''")?;
        sql(&url, "SELECT pg_reload_conf()")?;
        let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
        let is_alone = wait_until(LONG, || one(&url, receivers).is_ok_and(|count| count == "0"));
        ensure!(is_alone, "the standby still receives from its primary after {LONG:?}");
        Ok(())
    }

    /// Makes this standby a primary.
    pub fn promote(&self) -> Result<()> {
        let promoted = one(&self.url("postgres"), "SELECT pg_promote(true, 60)")?;
        ensure!(promoted == "t", "the standby was not promoted within a minute");
        Ok(())
    }

    fn program(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(Installation::find()?.programs().join(name));
        command.current_dir(self.folder());
        Ok(command)
    }
}

/// Where a standby or a program finds this server.
fn source_of(server: &Postgres) -> String {
    format!("host=127.0.0.1 port={} user=postgres", server.port())
}

/// The command that copies a running server's files to a folder that does not exist yet.
fn base_backup(installation: &Installation, server: &Postgres, to: &Path, wal_method: &str) -> Command {
    let mut backup = Command::new(installation.programs().join("pg_basebackup"));
    backup.args(["--checkpoint=fast", "--no-sync", "--wal-method", wal_method]);
    backup.arg("--dbname").arg(source_of(server)).arg("--pgdata").arg(to).current_dir("/");
    installation.as_owner(&mut backup);
    backup
}

const LONG: std::time::Duration = std::time::Duration::from_mins(1);

fn one(url: &str, query: &str) -> Result<String> {
    let rows = sql(url, query)?;
    rows.into_iter().flatten().next().flatten().with_context(|| format!("{query} gave nothing"))
}
