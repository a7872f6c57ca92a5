//! A connection of an administrator's to PostgreSQL that lasts: for transactions that stay open, and locks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// How long a window is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A function for a membership query, which holds the steps of a sync open while a [`Session`] has the advisory lock [`UPLOADS`] or
/// [`DOWNLOADS`]: an upload before its first change, a download after its snapshot.
pub const GATE: &str = "CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    DECLARE lock bigint := CASE current_setting('transaction_read_only') WHEN 'on' THEN 4711 ELSE 4712 END;
    BEGIN PERFORM pg_advisory_lock_shared(lock); PERFORM pg_advisory_unlock_shared(lock); RETURN true; END $$;";
/// The lock that holds downloads, and whatever else only reads the memberships.
pub const DOWNLOADS: u32 = 4711;
/// The lock that holds uploads.
pub const UPLOADS: u32 = 4712;

/// One connection.
pub struct Session {
    runtime: Runtime,
    client: Client,
}

impl Session {
    /// Connects.
    pub fn open(url: &str) -> Result<Session> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        runtime.spawn(connection);
        Ok(Session { runtime, client })
    }

    /// Runs statements; an error says in which function it was, too.
    pub fn run(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let messages =
            self.runtime.block_on(self.client.simple_query(sql)).map_err(|error| match error.as_db_error() {
                Some(db) => anyhow!(
                    "{} {} {} in {}",
                    db.code().code(),
                    db.message(),
                    db.detail().unwrap_or(""),
                    db.where_().unwrap_or("no function")
                ),
                None => anyhow!("{error}"),
            })?;
        let mut rows = Vec::new();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => rows.clear(),
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|place| row.get(place).map(str::to_owned)).collect());
                }
                _ => {}
            }
        }
        Ok(rows)
    }

    /// Holds the [`GATE`] of these steps shut, until [`Session::let_pass`] or the end of the session.
    pub fn hold(&self, steps: u32) -> Result<()> {
        self.run(&format!("SELECT pg_advisory_lock({steps})")).map(drop)
    }

    /// Opens the gate.
    pub fn let_pass(&self, steps: u32) -> Result<()> {
        self.run(&format!("SELECT pg_advisory_unlock({steps})")).map(drop)
    }

    /// Waits until somebody else in this database waits for a lock, or until it is over.
    pub fn wait_for_a_waiter(&self, is_over: impl Fn() -> bool) -> Result<bool> {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()";
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if is_over() {
                return Ok(false);
            }
            if self.run(sql)?.first().and_then(|row| row[0].as_deref()) != Some("0") {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None.context("nobody waits, and the sync does not end")
    }
}
