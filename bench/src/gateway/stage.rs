//! The database and the gateway's process, and whose processor time is whose.
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use headwater_testkit::{Child, Postgres};
use procfs::process::Process;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::load::Load;
use crate::tpcb::{headwater, run};

const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// A PostgreSQL.
pub(crate) struct Central {
    _postgres: Postgres,
    pub(crate) url: String,
    pub(super) runtime: Runtime,
    pub(super) client: Client,
}

impl Central {
    pub(crate) fn start() -> Result<Central> {
        let postgres = Postgres::builder().set("shared_buffers", "1GB").set("max_wal_size", "8GB").start()?;
        let url = postgres.create_database()?;
        let runtime = Runtime::new()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        Ok(Central { _postgres: postgres, url, runtime, client })
    }

    pub(crate) fn sql(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    /// A number that a query gives.
    pub(super) fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.runtime.block_on(self.client.query_one(sql, &[]))?.try_get(0)?)
    }
}

/// A running `headwater serve`; it ends with its value.
pub(crate) struct Served {
    pub(crate) place: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Served {
    /// Starts it over a database with these queries (name, text), and what else is to stand in `[gateway]` and behind.
    pub(crate) fn start(url: &str, queries: &[(&str, &str)], gateway: &str) -> Result<Served> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("headwater.toml");
        std::fs::create_dir(folder.path().join("queries"))?;
        for (name, text) in queries {
            std::fs::write(folder.path().join("queries").join(format!("{name}.sql")), text)?;
        }
        std::fs::write(&config, format!("[database]\nurl = \"{url}\"\n\n[gateway]\nqueries = \"queries\"\n{gateway}"))?;
        let mut command = Command::new(headwater()?);
        command.arg("--config").arg(&config).args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"]);
        let mut child = Child::spawn("headwater", command.args(["--set", "connections_max=3000"]))?;
        let line = child.wait_for_line("listening on http://", STARTS_WITHIN)?;
        let place = line.trim().trim_start_matches("listening on http://").parse().with_context(|| line.clone())?;
        Ok(Served { place, child, folder })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sets knobs (`NAME=VALUE`) while it runs; its options have `[admin]`.
    pub(crate) fn tune(&self, knobs: &[String]) -> Result<()> {
        let config = self.folder.path().join("headwater.toml");
        run(Command::new(headwater()?).arg("--config").arg(&config).arg("tune").args(knobs))?;
        Ok(())
    }
}

/// Processor seconds of a process so far.
fn cpu(id: u32) -> Result<f64> {
    let stat = Process::new(id.cast_signed())?.stat()?;
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

/// A turn, whose processor time is told on stderr beside what it came to: the server's and the generator's.
pub(super) fn metered(name: &str, server: u32, turn: impl FnOnce() -> Result<Load>) -> Result<Load> {
    let (own, before) = (std::process::id(), (cpu(server)?, cpu(std::process::id())?));
    let load = turn()?;
    let (server, own) = (cpu(server)? - before.0, cpu(own)? - before.1);
    let Load { requests, failed, bytes, seconds } = load;
    eprintln!(
        "{name}: {requests} requests in {seconds:.2} s ({failed} failed), {:.1} MB; processor time: server {server:.2} s, generator {own:.2} s",
        bytes as f64 / 1e6
    );
    Ok(load)
}
