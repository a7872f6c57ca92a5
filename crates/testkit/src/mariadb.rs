//! A throw-away MariaDB: a real server with files of its own, on a loopback port, gone with the test.
//!
//! A small shell process (`mariadb.sh`) makes the files, starts the server, and stops it and removes them when the test
//! process ends, however it ends.
//!
//! # Caveats
//! - What is committed is not forced to the disk.
//! - [`USER`] has all rights; `root` has them without a password. From this machine only.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tempfile::TempDir;

use crate::free_port;
use crate::process::{is_alive, signal, wait_until};

/// How long the server may take until it accepts connections, or to end.
const START: Duration = Duration::from_mins(1);
/// The user of [`MariaDb::url`], and its password.
pub const USER: (&str, &str) = ("tester", "secret");

/// A running MariaDB server. Dropped, it is stopped and its files are removed.
#[derive(Debug)]
pub struct MariaDb {
    keeper: Child,
    /// Closed, it tells the keeper to end.
    input: Option<ChildStdin>,
    server: u32,
    folder: TempDir,
    port: u16,
    databases: AtomicU32,
}

impl MariaDb {
    /// Starts a server of its own.
    pub fn start() -> Result<Self> {
        let (folder, port) = (tempfile::Builder::new().prefix("headwater-mariadb-").tempdir()?, free_port()?);
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("mariadb.sh")).arg("sh").arg(folder.path()).arg(port.to_string());
        command.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.spawn().context("starting the shell that keeps MariaDB")?;
        let (input, output) = (keeper.stdin.take(), keeper.stdout.take());
        let mut mariadb = Self { keeper, input, server: 0, folder, port, databases: AtomicU32::new(0) };
        let mut answer = String::new();
        BufReader::new(output.context("the shell has no output")?).read_line(&mut answer)?;
        let log = || std::fs::read_to_string(mariadb.folder.path().join("log")).unwrap_or_default();
        let server = answer.trim().parse();
        mariadb.server = server.with_context(|| format!("no MariaDB (`make setup` installs it):\n{}", log()))?;
        let (user, password) = USER;
        let grant = format!("CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO '{user}'@'%'");
        let is_over = || !is_alive(mariadb.server) || mariadb.sql("", "SELECT 1").is_ok();
        wait_until(START, is_over);
        let log = || std::fs::read_to_string(mariadb.folder.path().join("log")).unwrap_or_default();
        mariadb.sql("", &grant).with_context(|| format!("MariaDB did not start; its log:\n{}", log()))?;
        Ok(mariadb)
    }

    /// The server that all tests of this binary share; started by the first. Not for tests that kill it.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Result<MariaDb, String>> = OnceLock::new();
        let started = SHARED.get_or_init(|| Self::start().map_err(|error| format!("{error:#}")));
        started.as_ref().map_err(|error| anyhow!("{error}"))
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of a database, as [`USER`]. The database need not exist.
    pub fn url(&self, database: &str) -> String {
        let (user, password) = USER;
        format!("mariadb://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes a fresh, empty database under a name of its own; gives the name.
    pub fn create_database(&self) -> Result<String> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("", &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Runs statements as `root` in a database (none where the name is empty); their rows, columns apart by tabs.
    pub fn sql(&self, database: &str, statements: &str) -> Result<Vec<String>> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--execute", statements]);
        client.arg(format!("--socket={}", self.folder.path().join("socket").display()));
        if !database.is_empty() {
            client.arg(database);
        }
        let output = client.output().context("starting mariadb")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "running {statements:?}: {}", errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Kills the server (SIGKILL): it gets to tell no client and to write nothing. Back when it is gone.
    pub fn kill(&self) -> Result<()> {
        signal("KILL", &[self.server])?;
        ensure!(wait_until(START, || !is_alive(self.server)), "MariaDB survived SIGKILL");
        Ok(())
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.keeper.wait();
    }
}
