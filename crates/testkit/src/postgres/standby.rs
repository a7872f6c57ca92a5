//! A synchronous standby that is away: every commit of the cluster waits for it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Postgres, sql};

/// The name of the standby that never comes.
const AWAY: &str = "away";
/// How long a change of the setting may take until it holds.
const SETTLED: Duration = Duration::from_mins(1);

impl Postgres {
    /// From now on every commit waits for a standby that is away. Back when one has been seen to.
    pub fn lose_standby(&self) -> Result<()> {
        self.set_standbys(AWAY)?;
        let deadline = Instant::now() + SETTLED;
        let url = self.url("postgres");
        while self.waiting_commits()? == 0 {
            ensure!(Instant::now() < deadline, "no commit waits for the standby");
            // The setting holds once the checkpointer has read it.
            let to_try = url.clone();
            let trying = std::thread::spawn(move || sql(&to_try, "CREATE TABLE IF NOT EXISTS waits ()"));
            while self.waiting_commits()? == 0 && !trying.is_finished() {
                std::thread::sleep(Duration::from_millis(10));
            }
            if !trying.is_finished() {
                sql(&url, CANCEL_SQL)?;
                let _ = trying.join();
                return Ok(());
            }
            sql(&url, "SET synchronous_commit = local; DROP TABLE IF EXISTS waits")?;
        }
        Ok(())
    }

    /// The standby is there again, as far as commits go: those that wait end.
    pub fn find_standby(&self) -> Result<()> {
        self.set_standbys("")
    }

    /// How many sessions wait for the standby.
    pub fn waiting_commits(&self) -> Result<usize> {
        let rows = sql(&self.url("postgres"), "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")?;
        Ok(rows.len())
    }

    fn set_standbys(&self, names: &str) -> Result<()> {
        let url = self.url("postgres");
        sql(&url, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"))?;
        sql(&url, "SELECT pg_reload_conf()")?;
        let deadline = Instant::now() + SETTLED;
        while sql(&url, "SHOW synchronous_standby_names")?[0][0].as_deref() != Some(names) {
            ensure!(Instant::now() < deadline, "the names of the standbys stay as they were");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Ends the wait of the commit by which it was seen that commits wait.
const CANCEL_SQL: &str = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%IF NOT EXISTS waits%'";
