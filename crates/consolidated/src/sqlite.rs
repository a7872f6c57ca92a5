//! SQLite as the consolidated database: the embedded default.
//!
//! One file in WAL mode: downloads read a snapshot while one writer writes. Tracking takes its versions from a one-row counter,
//! which is exact because there is one writer; the watermark is that counter in the download's snapshot.
//!
//! SQL of clients has connections of its own, on which the authorizer denies what is Headwater's (`guard`).
//!
//! *Caveats.* Foreign keys are enforced in our own transactions, and deferred to their end, whatever the application does in its
//! connections. A statement has no time-out: only waiting for the writer's lock has. A file that is replaced while it is open (moved
//! into place, its `-wal` and `-shm` removed) is noticed before the next transaction; one that is written over is not.

mod catalogue;
mod connection;
mod equality;
mod error;
mod guard;
pub(crate) mod identity;
mod key_forms;
mod plain;
mod reads;
mod results;
mod statements;
mod values;
mod watch;
mod writes;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use catalogue::{installed_hash, tracking, triggers_into, unique_indexes, unnoted_indexes};
pub use connection::SqliteConnection;
pub(crate) use connection::read_watermark;
pub use results::placeholder;

use headwater_model::sql::Syntax;

use crate::results::{Placeholder, QueryBackend, QueryConnection};
use crate::{Backend, Connection, Dialect, Error};

/// Whether a column that is declared so makes numbers of texts that look like numbers.
pub(crate) fn makes_numbers(declared: &str) -> bool {
    plain::Affinity::of(declared).is_numeric()
}

/// A consolidated database in a SQLite file.
///
/// ```no_run
/// # fn main() -> Result<(), headwater_consolidated::Error> {
/// use headwater_consolidated::{Backend, sqlite::Sqlite, system};
///
/// let mut connection = Sqlite::new("central.db").connect()?;
/// system::install(&mut *connection)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sqlite {
    path: PathBuf,
    busy_timeout: Duration,
    durable: bool,
}

impl Sqlite {
    /// The database in this file, which must exist when a connection is made.
    pub fn new(path: impl AsRef<Path>) -> Sqlite {
        Sqlite { path: path.as_ref().to_owned(), busy_timeout: Duration::from_secs(10), durable: true }
    }

    /// How long to wait for another writer (10 seconds); then [`Error::Retry`].
    #[must_use]
    pub fn busy_timeout(self, busy_timeout: Duration) -> Sqlite {
        Sqlite { busy_timeout, ..self }
    }

    /// Whether a commit waits for the disk (it does). Without, a loss of power may take back receipts that remotes have: for tests.
    #[must_use]
    pub fn durable(self, durable: bool) -> Sqlite {
        Sqlite { durable, ..self }
    }
}

impl QueryBackend for Sqlite {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error> {
        Ok(self.connect()?)
    }

    fn connect_for_client_sql(&self, value_bytes_max: u64) -> Result<Box<dyn QueryConnection>, Error> {
        Ok(Box::new(SqliteConnection::open_for_client_sql(&self.path, self.busy_timeout, value_bytes_max)?))
    }

    fn address(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn placeholder(&self) -> Placeholder {
        placeholder
    }

    fn syntax(&self) -> Syntax {
        Syntax::Sqlite
    }
}

impl Backend for Sqlite {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        Ok(Box::new(SqliteConnection::open(&self.path, self.busy_timeout, self.durable)?))
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }
}
