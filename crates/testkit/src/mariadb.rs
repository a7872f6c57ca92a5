//! A throw-away MariaDB: a real server with files of its own, on a loopback port, gone with the test.
//!
//! A small shell process (`mariadb.sh`) makes the files, starts the server, and stops it and removes them when the test
//! process ends, however it ends.
//!
//! # Caveats
//! - What is committed is not forced to the disk.
//! - [`USER`] has all rights; `root` has them without a password. From this machine only.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
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
    output: BufReader<ChildStdout>,
    server: u32,
    folder: TempDir,
    port: u16,
    databases: AtomicU32,
}

impl MariaDb {
    /// Starts a server of its own.
    pub fn start() -> Result<Self> {
        Self::start_in(folder()?)
    }

    /// The same that offers TLS too, by a certificate and its key, in PEM.
    pub fn start_with_tls(certificate: &str, key: &str) -> Result<Self> {
        let folder = folder()?;
        std::fs::write(folder.path().join("certificate.pem"), certificate)?;
        std::fs::write(folder.path().join("key.pem"), key)?;
        Self::start_in(folder)
    }

    fn start_in(folder: TempDir) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("mariadb.sh")).arg("sh").arg(folder.path()).arg(port.to_string());
        command.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.spawn().context("starting the shell that keeps MariaDB")?;
        let (input, output) = (keeper.stdin.take(), keeper.stdout.take().context("the shell has no output")?);
        let (output, databases) = (BufReader::new(output), AtomicU32::new(0));
        let mut mariadb = Self { keeper, input, output, server: 0, folder, port, databases };
        mariadb.await_server()?;
        let (user, password) = USER;
        let grant = format!("CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO '{user}'@'%'");
        mariadb.sql("", &grant)?;
        Ok(mariadb)
    }

    /// Hears from the keeper which process the server is, and waits until it answers.
    fn await_server(&mut self) -> Result<()> {
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        let log = |folder: &TempDir| std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let server = answer.trim().parse();
        self.server =
            server.with_context(|| format!("no MariaDB (`make setup` installs it):\n{}", log(&self.folder)))?;
        let is_over = || !is_alive(self.server) || self.sql("", "SELECT 1").is_ok();
        wait_until(START, is_over);
        self.sql("", "SELECT 1").with_context(|| format!("MariaDB did not start; its log:\n{}", log(&self.folder)))?;
        Ok(())
    }

    /// Starts the server anew, with its files and its port, after [`MariaDb::kill`]. Back when it answers. What was written in the last
    /// second before may be lost.
    pub fn restart(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("it has ended")?;
        writeln!(input)?;
        input.flush()?;
        self.await_server()
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

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("headwater-mariadb-").tempdir()?)
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.keeper.wait();
    }
}
