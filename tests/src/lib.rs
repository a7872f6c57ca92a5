//! What the end-to-end tests share: a consolidated database of either kind, a server on it, remotes that sync with it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use headwater_tests::{Kind, World};
//! let world = World::new(Kind::Sqlite, "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, text TEXT)", "...the model...", &["ann"])?;
//! let mut remote = world.remote("one", "ann")?;
//! world.sync(&mut remote)?;
//! # Ok(())
//! # }
//! ```

pub mod backup;
pub mod ledger;
pub mod session;
pub mod stage;
pub mod tally;
pub mod wire;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use headwater::diff::{Options, Postgres as PostgresSource, RemoteFile, Report, Source, SqliteDatabase, compare};
use headwater_access::Tokens;
use headwater_bufferpool::{Config as PoolConfig, Floors, Pools};
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Connection, Plan, check, system, track};
use headwater_model::{Model, parse};
use headwater_remote::{CreateOptions, Remote, SyncOptions, SyncReport, http::Credentials};
use headwater_server::{Config, Handle, Joined, Server, StartError};
pub use headwater_testkit::{apart, disk};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Which consolidated database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    Sqlite,
    /// A database of its own in the test binary's cluster.
    Postgres,
}

/// Both kinds, for tests that run on each.
pub const KINDS: [Kind; 2] = [Kind::Sqlite, Kind::Postgres];

/// A consolidated database.
#[derive(Clone, Debug)]
pub enum Central {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A PostgreSQL database, by URL.
    Postgres(String),
}

impl Central {
    /// The backend for it.
    pub fn backend(&self) -> Result<Arc<dyn Backend>> {
        Ok(match self {
            Central::Sqlite(path) => Arc::new(Sqlite::new(path)),
            Central::Postgres(url) => Arc::new(Postgres::new(url, Settings::default())?),
        })
    }

    /// Its address, as headwater.toml has it.
    pub fn url(&self) -> String {
        match self {
            Central::Sqlite(path) => format!("sqlite:{}", path.display()),
            Central::Postgres(url) => url.clone(),
        }
    }

    /// Runs statements as the application would, through the database's own driver.
    pub fn execute(&self, sql: &str) -> Result<()> {
        match self {
            Central::Sqlite(path) => {
                let connection = opened(path)?;
                connection.execute_batch(&format!("PRAGMA foreign_keys = ON; {sql}")).with_context(|| beginning(sql))
            }
            Central::Postgres(url) => headwater_testkit::sql(url, sql).map(|_| ()).with_context(|| beginning(sql)),
        }
    }

    /// The rows of one query, each value as the database's own text.
    pub fn rows(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        match self {
            Central::Sqlite(path) => sqlite_rows(path, sql),
            Central::Postgres(url) => headwater_testkit::sql(url, sql),
        }
    }

    /// The rows of each of these queries, by one connection.
    pub fn rows_of_each(&self, queries: &[String]) -> Result<Vec<Vec<Vec<Option<String>>>>> {
        match self {
            Central::Sqlite(path) => sqlite_rows_of_each(path, queries),
            Central::Postgres(url) => headwater_testkit::results(url, &queries.join("; ")),
        }
    }
}

/// The rows of one query over a SQLite file, as text.
pub fn sqlite_rows(path: &Path, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    rows_by(&opened(path)?, sql)
}

/// The rows of each of these queries, by one connection: to open a file is to read its schema.
pub fn sqlite_rows_of_each(path: &Path, queries: &[String]) -> Result<Vec<Vec<Vec<Option<String>>>>> {
    let connection = opened(path)?;
    queries.iter().map(|sql| rows_by(&connection, sql)).collect()
}

fn opened(path: &Path) -> Result<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(30))?;
    Ok(connection)
}

fn rows_by(connection: &rusqlite::Connection, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let mut statement = connection.prepare(sql).with_context(|| beginning(sql))?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..columns)
            .map(|place| {
                Ok(match row.get_ref(place)? {
                    rusqlite::types::ValueRef::Null => None,
                    rusqlite::types::ValueRef::Integer(number) => Some(number.to_string()),
                    rusqlite::types::ValueRef::Real(real) => Some(real.to_string()),
                    rusqlite::types::ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
                    rusqlite::types::ValueRef::Blob(bytes) => Some(format!("{bytes:02x?}")),
                })
            })
            .collect()
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// A consolidated database with tracked tables, a server, and a folder for remotes.
pub struct World {
    /// The database.
    pub central: Central,
    /// The model, ready.
    pub plan: Plan,
    /// What is served beside it: other versions.
    pub beside: Vec<Plan>,
    /// Where files go.
    pub folder: TempDir,
    /// The server's options, for [`World::start_server`]. It listens on any free port; one that comes back needs a reserved one.
    pub config: Config,
    /// Bytes of memory for what is on its way, where it is to be little: what finds no room goes to a file in the spool folder.
    pub memory_bytes: Option<u64>,
    runtime: Runtime,
    server: Option<Handle>,
    others: Vec<Handle>,
    tokens: Tokens,
}

fn little_memory(budget_bytes: u64, config: &Config) -> Pools {
    let overflow_folder = config.spool_folder.clone();
    let little = PoolConfig { block_bytes: 4_096, budget_bytes, floors: Floors::default(), ..PoolConfig::default() };
    Pools::new(&PoolConfig { overflow_folder, ..little }, None).expect("a pool")
}

/// What `headwater track` and `headwater serve` make of a model.
fn tracked(connection: &mut dyn Connection, model: Model) -> Result<Plan> {
    let mut plan = Plan::new(model);
    track::track(connection, &plan)?;
    plan.model.unenforced = check::unenforced(&plan.model, &connection.catalogue()?);
    Ok(plan)
}

impl World {
    /// Makes the tables with `schema`, tracks those of the model, adds the users, starts a server.
    pub fn new(kind: Kind, schema: &str, model: &str, users: &[&str]) -> Result<World> {
        let mut world = World::unserved(kind, schema, model, users)?;
        world.start_server()?;
        Ok(world)
    }

    /// The same without a server.
    pub fn unserved(kind: Kind, schema: &str, model: &str, users: &[&str]) -> Result<World> {
        let folder = tempfile::tempdir()?;
        let central = match kind {
            Kind::Sqlite => Central::Sqlite(folder.path().join("central.db")),
            Kind::Postgres => Central::Postgres(headwater_testkit::Postgres::shared()?.create_database()?),
        };
        central.execute(schema)?;
        World::over(central, folder, read_model(model)?, users)
    }

    /// A world over a database that is there already.
    pub fn over(central: Central, folder: TempDir, model: Model, users: &[&str]) -> Result<World> {
        let backend = central.backend()?;
        let mut connection = backend.connect()?;
        let plan = tracked(&mut *connection, model)?;
        for user in users {
            system::add_account(&mut *connection, user, "no password fits this")?;
        }
        let tokens = Tokens::new(&system::identity(&mut *connection)?.token_key)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
        Ok(World {
            central,
            plan,
            beside: Vec::new(),
            folder,
            config,
            memory_bytes: None,
            runtime,
            server: None,
            others: Vec::new(),
            tokens,
        })
    }

    /// Starts a server with the options in `config`; one that runs is stopped first.
    pub fn start_server(&mut self) -> Result<()> {
        self.start_server_over(&self.central.backend()?)
    }

    /// Starts a server over a backend of the test's own.
    pub fn start_server_over(&mut self, backend: &Arc<dyn Backend>) -> Result<()> {
        self.stop_server();
        self.server = Some(self.serve(&self.config, backend)?);
        Ok(())
    }

    fn serve(&self, config: &Config, backend: &Arc<dyn Backend>) -> Result<Handle> {
        let mut started = None;
        // One that comes back may find its port taken for a moment: a process that another test starts just then has a copy of every
        // handle, the closed listener's too.
        headwater_testkit::wait_until(Duration::from_secs(30), || {
            let pools = self.memory_bytes.map(|bytes| Arc::new(little_memory(bytes, config)));
            let joined = Joined { ready: Some(headwater::ready::builder()), pools, ..Joined::default() };
            let starting = Server::start_with(config.clone(), Arc::clone(backend), self.plans(), joined);
            let server = self.runtime.block_on(starting);
            let is_taken =
                matches!(&server, Err(StartError::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse);
            started = Some(server);
            !is_taken
        });
        Ok(started.context("a server was started")??)
    }

    /// The models that are served.
    fn plans(&self) -> Vec<Plan> {
        std::iter::once(&self.plan).chain(&self.beside).cloned().collect()
    }

    /// Tracks one more model, and serves it beside the others.
    pub fn serve_also(&mut self, model: &str) -> Result<()> {
        let plan = tracked(&mut *self.central.backend()?.connect()?, read_model(model)?)?;
        self.beside.push(plan);
        self.start_server()
    }

    /// Starts one more server on the database, at any free port or at this one (reserved, where it is to come back); gives its address.
    pub fn start_another_server(&mut self, port: Option<u16>) -> Result<std::net::SocketAddr> {
        let mut config = self.config.clone();
        config.listen.set_port(port.unwrap_or(0));
        let handle = self.serve(&config, &self.central.backend()?)?;
        let address = handle.local_addr();
        self.others.push(handle);
        Ok(address)
    }

    /// Stops one of the other servers, letting its syncs end.
    pub fn stop_another_server(&mut self, address: std::net::SocketAddr) {
        while let Some(place) = self.others.iter().position(|other| other.local_addr() == address) {
            let other = self.others.remove(place);
            self.runtime.block_on(other.shutdown());
        }
    }

    /// Stops the server, letting its syncs end.
    pub fn stop_server(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.shutdown());
        }
    }

    /// Where the server listens.
    pub fn address(&self) -> Result<std::net::SocketAddr> {
        Ok(self.server.as_ref().context("no server runs")?.local_addr())
    }

    /// Where remotes find the server.
    pub fn server_url(&self) -> Result<String> {
        Ok(format!("http://{}", self.address()?))
    }

    /// A token of this user.
    pub fn token(&self, user: &str) -> Result<String> {
        self.token_for(user, Duration::from_hours(1))
    }

    /// A token of this user that ends after so long.
    pub fn token_for(&self, user: &str, lifetime: Duration) -> Result<String> {
        Ok(self.tokens.issue(user, lifetime, SystemTime::now())?.expose().to_owned())
    }

    /// The file of the remote of this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.db"))
    }

    /// Creates a remote of this user.
    pub fn remote(&self, name: &str, user: &str) -> Result<Remote> {
        self.remote_at(name, user, &self.server_url()?)
    }

    /// Creates a remote of this user that finds the server under this address.
    pub fn remote_at(&self, name: &str, user: &str, url: &str) -> Result<Remote> {
        let options = CreateOptions::new(url.to_owned(), user);
        Ok(Remote::create(self.path(name), &self.plan.model.public(), &options)?)
    }

    /// Creates a remote of this user and this model.
    pub fn remote_of(&self, name: &str, user: &str, model: &Model) -> Result<Remote> {
        let options = CreateOptions::new(self.server_url()?, user);
        Ok(Remote::create(self.path(name), &model.public(), &options)?)
    }

    /// Syncs a remote as its user.
    pub fn sync(&self, remote: &mut Remote) -> Result<SyncReport> {
        let user = remote.status()?.user;
        self.sync_as(remote, &user)
    }

    /// Syncs a remote with a token of this user. Looks at nothing else, so that the time it takes is that of the sync.
    pub fn sync_as(&self, remote: &mut Remote, user: &str) -> Result<SyncReport> {
        let mut options = SyncOptions::new(Credentials::Token(self.token(user)?));
        Ok(remote.sync(&mut options)?)
    }

    /// Compares the remote of this name with its part of the consolidated database, through both databases' own drivers.
    pub fn diff(&self, name: &str) -> Result<Report> {
        let mut remote = RemoteFile::open(&self.path(name))?;
        let is_its = |plan: &&Plan| plan.fingerprint == remote.fingerprint;
        let plan = std::iter::once(&self.plan).chain(&self.beside).find(is_its);
        let model = &plan.context("the remote's model is not served here")?.model;
        let (user, id) = (remote.user.clone(), remote.remote_id.clone());
        let mut consolidated: Box<dyn Source> = match &self.central {
            Central::Sqlite(path) => Box::new(SqliteDatabase::open(path, model, &user, &id)?),
            Central::Postgres(url) => {
                Box::new(PostgresSource::connect(&url.parse()?, tokio_postgres::NoTls, model, &user, &id)?)
            }
        };
        let options = Options { details_max: 20, ..Options::default() };
        compare(model, &mut remote, &mut *consolidated, &options, &mut |_, _| {})
    }

    /// Runs statements on a remote's file as the application would, through a connection of its own.
    pub fn edit(&self, name: &str, sql: &str) -> Result<()> {
        let connection = opened(&self.path(name))?;
        connection.execute_batch(&format!("PRAGMA foreign_keys = ON; {sql}")).with_context(|| beginning(sql))
    }

    /// Drops the triggers that track a table at a remote, as an application may.
    pub fn untrack(&self, name: &str, table: &str) -> Result<()> {
        let sql = format!("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'");
        let names = self.rows(name, &sql)?.into_iter().flatten().flatten();
        let drops: Vec<String> = names.map(|name| format!("DROP TRIGGER \"{name}\";")).collect();
        ensure!(!drops.is_empty(), "table {table} was not tracked");
        self.edit(name, &drops.concat())
    }

    /// The rows of one query over a remote's file, as text.
    pub fn rows(&self, name: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        sqlite_rows(&self.path(name), sql)
    }
}

/// As much of a statement as an error's text can bear.
fn beginning(sql: &str) -> String {
    sql.chars().take(300).collect()
}

/// Reads a model, with all its errors in one.
pub fn read_model(text: &str) -> Result<Model> {
    parse::parse("model.toml", text)
        .map_err(|errors| anyhow!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
}
