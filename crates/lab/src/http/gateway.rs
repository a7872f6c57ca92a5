//! A gateway that the lab starts: `headwater serve` by a configuration of the user's, or in front of a database, with the Frontier protocol
//! and a table of the lab's to ask for.
//!
//! *Caveats.* By a configuration, its Frontier protocol must be called `Frontier`, and let this machine in. A lab that is killed
//! leaves its table.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::watch;

use super::payload::Payload;
use crate::address::is_configuration;
use crate::error::Error;
use crate::harness::{Class, Failure};
use crate::serve;
use crate::target::{Session, Target};

/// The table that has the answer's values.
const TABLE: &str = "lab_answer";
/// Rows of one statement.
const ROWS: usize = 1_000;
/// How the Frontier protocol is found.
pub(super) const SERVLET: &str = "/Frontier";
/// The gateway's limits are not what is measured; and who measures a database is its owner, or may as well be.
const LIMITS: &str = "rows_max = 100000000\nbytes_max = 1073741824\ntime_out_s = 600\nreads_accounts = true\n";
/// How long a session of SQLite waits for another.
const BUSY: Duration = Duration::from_secs(30);

/// What a gateway is in front of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// What this configuration says.
    Config(PathBuf),
    /// The database of this address.
    Database(String),
}

impl Behind {
    /// Reads what stands behind `gateway:`. Connects to nothing.
    pub(super) fn parse(rest: &str) -> Result<Behind, Error> {
        if rest.is_empty() {
            let expected = "expected gateway:sqlite:FILE, gateway:postgres://..., or gateway:FILE.toml";
            return Err(Error::Usage(format!("the gateway's database is missing, {expected}")));
        }
        if is_configuration(rest) {
            return Ok(Behind::Config(PathBuf::from(rest)));
        }
        Target::parse(rest, Path::new("")).map(|_| Behind::Database(rest.to_owned()))
    }

    /// The database that the lab makes a table in.
    pub(super) fn database(&self) -> Result<Option<Target>, Failure> {
        let Behind::Database(address) = self else { return Ok(None) };
        let folder = std::env::current_dir().unwrap_or_default();
        Target::parse(address, &folder).map(Some).map_err(|error| Failure::usage(error.to_string()))
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Behind::Config(path) => write!(f, "{}", path.display()),
            Behind::Database(address) => f.write_str(&crate::address::shown(address)),
        }
    }
}

/// A gateway that runs; dropped, it is ended.
pub(super) struct Gateway {
    process: Child,
    /// Host and port.
    pub(super) place: String,
    _folder: TempDir,
}

impl Gateway {
    /// Starts one, and returns when it listens. Blocks for that long.
    pub(super) fn start(program: &Path, behind: &Behind) -> Result<Gateway, Failure> {
        let failed = |what: String| Failure::new(Class::Other, format!("the gateway could not be started: {what}"));
        let io = |error: std::io::Error| failed(error.to_string());
        let folder = tempfile::tempdir().map_err(io)?;
        let (own, said) = (folder.path().join("headwater.toml"), folder.path().join("said"));
        let name = SERVLET.trim_start_matches('/');
        let text = format!("[gateway]\n[gateway.frontier]\nname = \"{name}\"\nallowed = [\"127.0.0.1\"]\n{LIMITS}");
        std::fs::write(&own, text).and_then(|()| std::fs::create_dir(folder.path().join("queries"))).map_err(io)?;
        let (config, database) = match behind {
            Behind::Config(path) => (path, None),
            Behind::Database(_) => (&own, behind.database()?),
        };
        let mut command = serve::command(program, config, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        command.args(["--log", "warn"]).stderr(std::fs::File::create(&said).map_err(io)?);
        match (&database, behind) {
            (Some(Target::Sqlite { path, .. }), _) => drop(command.env("HEADWATER_DATABASE", sqlite(path))),
            (Some(_), Behind::Database(address)) => drop(command.env("HEADWATER_DATABASE", address)),
            _ => {}
        }
        let mut gateway = Gateway { process: command.spawn().map_err(io)?, place: String::new(), _folder: folder };
        let line = serve::first_line(&mut gateway.process).map_err(io)?;
        let Some(place) = serve::place(&line) else {
            let said = std::fs::read_to_string(&said).unwrap_or_default();
            return Err(failed(format!("{}{}", line.trim(), said.trim())));
        };
        place.clone_into(&mut gateway.place);
        Ok(gateway)
    }
}

/// The configuration lies elsewhere: a path of its folder would be another.
fn sqlite(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // One that has ended by itself is no longer there to be ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What is asked for to get all values.
pub(super) fn sql() -> String {
    format!("select place, value from {TABLE} order by place")
}

/// An error: there is such a table already, which is somebody's.
pub(super) async fn refuse_existing(database: &Target) -> Result<(), Failure> {
    let existing = session(database).await?.existing(&[TABLE.to_owned()]).await?;
    let what = || Failure::usage(format!("{} has a table {TABLE} already: drop it", database.address()));
    if existing.is_empty() { Ok(()) } else { Err(what()) }
}

/// Makes the table. After an error some of it may be there.
pub(super) async fn make(database: &Target, payload: Payload) -> Result<(), Failure> {
    let (mut session, column, of) = (session(database).await?, payload.column, database.database());
    let value = column.sql_type(of);
    session.script(&format!("CREATE TABLE {TABLE} (place integer PRIMARY KEY, value {value} NOT NULL)")).await?;
    session.script("BEGIN").await?;
    for rows in payload.tuples(of, ROWS) {
        session.script(&format!("INSERT INTO {TABLE} VALUES {rows}")).await?;
    }
    session.script("COMMIT").await?;
    session.analyze(TABLE).await
}

/// Drops the table, and a file of SQLite that was not there before.
pub(super) async fn unmake(database: &Target) -> Result<(), Failure> {
    let dropped = session(database).await?.script(&format!("DROP TABLE IF EXISTS {TABLE}")).await;
    database.remove_if_new().map_err(|error| Failure::new(Class::Other, error.to_string()))?;
    dropped
}

async fn session(database: &Target) -> Result<Session, Failure> {
    let (_never, interrupt) = watch::channel(false);
    database.connect(BUSY, &interrupt).await
}
