//! A throw-away PostgreSQL: a real server with a cluster of its own, on a loopback port, gone with the test.
//!
//! A cluster is a copy of one that `initdb` made once (see `installation.rs`) and is kept by a small shell process (see
//! `supervisor.sh`) that stops it and removes its files when the test process ends, however it ends.
//!
//! # Caveats
//! - `fsync` is off unless asked for: right for everything but tests of a machine that loses power.
//! - Every user may connect as `postgres` without a password, from this machine only.

mod copies;
mod installation;
mod kept;
mod slow_disk;
mod standby;
mod supervisor;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::free_port;
pub use copies::DataCopy;
use installation::Installation;
pub use kept::keep_connections;
use supervisor::Supervisor;

/// How long the server may take until it accepts connections.
const START: Duration = Duration::from_mins(1);

/// How many ports are tried: another program may take one between its choice and the start.
const PORTS_TRIED_MAX: u32 = 5;

/// A running PostgreSQL server. Dropped, it is stopped and its files are removed.
#[derive(Debug)]
pub struct Postgres {
    // Declared before the folder: the server is stopped before its files go.
    supervisor: Mutex<Supervisor>,
    folder: TempDir,
    port: u16,
    databases: AtomicU32,
}

impl Postgres {
    /// Starts a cluster of its own with the usual settings; for others see [`Postgres::builder`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// Chooses settings first.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The cluster that all tests of this binary share; started by the first. Not for tests that stop or kill it.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Result<Postgres, String>> = OnceLock::new();
        let started = SHARED.get_or_init(|| Self::start().map_err(|error| format!("{error:#}")));
        started.as_ref().map_err(|error| anyhow!("{error}"))
    }

    /// The port on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The cluster's folder: `data`, `log` and the Unix socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address of a database, as the superuser `postgres`. The database need not exist.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes a fresh, empty database under a name of its own; its address.
    pub fn create_database(&self) -> Result<String> {
        self.create_database_with("")
    }

    /// The same with options of CREATE DATABASE.
    pub fn create_database_with(&self, options: &str) -> Result<String> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        sql(&self.url("postgres"), &format!("CREATE DATABASE {name} {options}"))?;
        Ok(self.url(&name))
    }

    /// Stops the server as an operator would: open transactions are rolled back, connections are closed.
    pub fn stop(&self) -> Result<()> {
        self.supervisor().stop_server()
    }

    /// Kills all processes of the server at once (SIGKILL): none gets to tell a client or write anything.
    pub fn kill(&self) -> Result<()> {
        self.supervisor().kill_server()
    }

    /// Has all processes of the server stand still (SIGSTOP): connections are taken, and nothing comes of them.
    pub fn stand_still(&self) -> Result<()> {
        self.supervisor().stand_still()
    }

    /// Has them go on (SIGCONT).
    pub fn go_on(&self) -> Result<()> {
        self.supervisor().go_on()
    }

    /// Starts the server again on its port, after a stop, a kill or as it runs. Back when it accepts connections.
    pub fn restart(&self) -> Result<()> {
        let mut supervisor = self.supervisor();
        supervisor.stop_server()?;
        supervisor.start_server()?;
        wait_for_start(&supervisor, self.folder.path(), self.port)
    }

    fn supervisor(&self) -> MutexGuard<'_, Supervisor> {
        self.supervisor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settings of a cluster about to be started.
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Vec<(String, String)>,
    place: Option<PathBuf>,
    sync_delay: Option<Duration>,
}

impl Default for Builder {
    fn default() -> Self {
        let settings = [
            ("max_connections", "200"),
            ("shared_buffers", "128MB"),
            ("listen_addresses", "127.0.0.1"),
            // A hundred databases made one after the other would leave a gigabyte of log on the disk.
            ("max_wal_size", "128MB"),
            ("min_wal_size", "32MB"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Self { settings, place: None, sync_delay: None }.fsync(false).max_prepared_transactions(10)
    }
}

impl Builder {
    /// Whether what is committed is forced to the disk (off by default).
    #[must_use]
    pub fn fsync(self, on: bool) -> Self {
        self.set("fsync", if on { "on" } else { "off" })
    }

    /// How many prepared transactions there may be (10 by default).
    #[must_use]
    pub fn max_prepared_transactions(self, count: u32) -> Self {
        self.set("max_prepared_transactions", &count.to_string())
    }

    /// `minimal`, `replica` (default) or `logical`.
    #[must_use]
    pub fn wal_level(self, level: &str) -> Self {
        self.set("wal_level", level)
    }

    /// Keeps all log files in the folder `archive` beside the data, for [`Postgres::recover`].
    #[must_use]
    pub fn archive(self) -> Self {
        // The server runs in its data folder.
        self.set("archive_mode", "on").set("archive_command", "mkdir -p ../archive && cp %p ../archive/%f")
    }

    /// Any setting of `postgresql.conf`; the last of a name counts.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts the cluster into a folder below this one, which everybody may write to, in the place of the system's temporary folder.
    #[must_use]
    pub fn below(mut self, folder: &Path) -> Self {
        self.place = Some(folder.to_owned());
        self
    }

    /// Whether what is committed is forced to the disk, which then takes this long for it: a disk as slow anywhere.
    #[must_use]
    pub fn slow_disk(mut self, sync: Duration) -> Self {
        self.sync_delay = Some(sync);
        self.fsync(true).set("wal_sync_method", "fdatasync")
    }

    /// Copies a cluster, starts it and waits until it accepts connections.
    pub fn start(self) -> Result<Postgres> {
        self.start_with(Installation::copy_cluster)
    }

    /// Starts the cluster that `fill` puts into a folder that does not exist yet.
    fn start_with(self, fill: impl FnOnce(&Installation, &Path) -> Result<()>) -> Result<Postgres> {
        let installation = Installation::find()?;
        let folder = installation.folder(self.place.as_deref())?;
        let mut supervisor = Supervisor::start(&installation, folder.path())?; // first: it removes the folder whatever comes
        let data = folder.path().join("data");
        fill(&installation, &data)?;
        self.sync_delay.map_or(Ok(()), |delay| slow_disk::build(folder.path(), delay))?;
        let configuration = data.join("postgresql.conf");
        let defaults = std::fs::read_to_string(&configuration).context("reading the cluster's postgresql.conf")?;
        let mut failure = None;
        for _ in 0..PORTS_TRIED_MAX {
            let port = free_port()?;
            std::fs::write(&configuration, defaults.clone() + &self.lines(folder.path(), port)?)?;
            supervisor.start_server()?;
            match wait_for_start(&supervisor, folder.path(), port) {
                Ok(()) => {
                    return Ok(Postgres {
                        supervisor: Mutex::new(supervisor),
                        folder,
                        port,
                        databases: AtomicU32::new(0),
                    });
                }
                Err(error) if error.to_string().contains("could not bind") => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| anyhow!("no port was tried")))
    }

    fn lines(&self, folder: &Path, port: u16) -> Result<String> {
        let mut lines = format!("\nport = {port}\nunix_socket_directories = '{}'\n", folder.display());
        for (name, value) in &self.settings {
            writeln!(lines, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        Ok(lines)
    }
}

/// Runs SQL (several statements if you like) over a connection of its own; the last result's rows as text.
///
/// ```no_run
/// # fn main() -> anyhow::Result<()> {
/// # let url = String::new();
/// let rows = headwater_testkit::sql(&url, "SELECT count(*), NULL FROM pg_class")?;
/// assert_eq!(rows[0][1], None);
/// # Ok(())
/// # }
/// ```
pub fn sql(url: &str, statements: &str) -> Result<Vec<Vec<Option<String>>>> {
    Ok(results(url, statements)?.pop().unwrap_or_default())
}

/// The same, with the rows of each statement that gives rows.
pub fn results(url: &str, statements: &str) -> Result<Vec<Rows>> {
    if let Some(results) = kept::results(url, statements) {
        return results;
    }
    let (url, statements) = (url.to_owned(), statements.to_owned());
    blocking(async move {
        let (client, connection) =
            tokio_postgres::connect(&url, NoTls).await.with_context(|| format!("connecting to {url}"))?;
        let driver = tokio::spawn(connection);
        let messages = client.simple_query(&statements).await.with_context(|| format!("running {statements:?}"))?;
        drop(client);
        driver.await??;
        Ok(read(messages))
    })
}

/// The rows of one result, each value as text.
pub type Rows = Vec<Vec<Option<String>>>;

fn read(messages: Vec<SimpleQueryMessage>) -> Vec<Rows> {
    let mut results: Vec<Rows> = Vec::new();
    for message in messages {
        match (message, results.last_mut()) {
            (SimpleQueryMessage::RowDescription(_), _) => results.push(Vec::new()),
            (SimpleQueryMessage::Row(row), Some(rows)) => {
                rows.push((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect());
            }
            _ => {}
        }
    }
    results
}

/// Waits until the server of this folder answers on the port: another one that took the port first does not count.
fn wait_for_start(supervisor: &Supervisor, folder: &Path, port: u16) -> Result<()> {
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?connect_timeout=5");
    let data = folder.join("data").canonicalize().context("finding the cluster's folder")?;
    let deadline = Instant::now() + START;
    loop {
        let answer = sql(&url, "SHOW data_directory");
        let own = |rows: &Vec<Vec<Option<String>>>| {
            let shown = rows.first()?.first()?.as_ref()?;
            Path::new(shown).canonicalize().ok().filter(|shown| *shown == data)
        };
        if supervisor.is_server_alive() && answer.as_ref().ok().and_then(own).is_some() {
            return Ok(());
        }
        let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        ensure!(supervisor.is_server_alive(), "PostgreSQL ended while it started; its log ends:\n{}", tail(&log));
        if Instant::now() >= deadline {
            bail!("PostgreSQL accepted no connection within {START:?} ({answer:?}); its log ends:\n{}", tail(&log));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
}

/// Runs a future to its end on a thread of its own: callable from plain and from async tests.
fn blocking<T: Send + 'static>(future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(future)
    });
    thread.join().map_err(|_| anyhow!("the thread that talks to PostgreSQL panicked"))?
}
