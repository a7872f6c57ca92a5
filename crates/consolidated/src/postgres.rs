//! PostgreSQL 15 or newer as the consolidated database.
//!
//! ```text
//! connection   transactions                        link      the driver, blocking
//!   statements kept prepared                       target    connection strings, tls
//!   sets       rows by key, a set a statement      codec     values in binary, numeric, literal
//!   snapshot   what a download begins with         error     what SQLSTATEs mean
//!   results    queries of the application's own
//!   read       downloads, streamed                 watermark which transactions a snapshot saw
//!   catalogue  what the database has               shape     a table and the SQL on it
//!   parts      partitions that come and go         plain     changes made just as they came
//!   refresh    tables that must come whole         sides     side tables whose columns have other types than they should
//!   pipeline   a statement row by row, without waiting in between
//!   session    as it was opened, whatever the application's code does to it
//!   ddl_guard  tables altered beside a download    table_identity  tables altered since the last one
//!   exposure   rows that change without being written
//!   trigger_states  triggers that are off, or enabled in another way than they were made
//!   pooler     a session of one's own, or one that is shared
//!   grants     a table that the server's role may not use        own_grants  what Headwater's own tables need
//!   standby    commits that wait for a synchronous standby
//! ```
//!
//! Change tracking is in `headwater_model::tracking::postgres`. Sessions run in UTC, with the type settings that make every text form
//! exact; `search_path` stays as the user's role has it, and everything of Headwater's is named with its schema.
//!
//! *Caveats.* A pooler that hands one session to several clients (PgBouncer's transaction mode) is found out and refused (`pooler`).

mod ahead;
mod bound;
mod catalogue;
mod codec;
mod connection;
mod ddl_guard;
mod error;
pub(crate) mod exposure;
pub(crate) mod grants;
mod late;
mod link;
mod literal;
mod numeric;
pub(crate) mod own_grants;
pub(crate) mod parts;
mod pipeline;
mod plain;
mod pooler;
mod raw;
mod read;
pub(crate) mod refresh;
mod results;
mod session;
mod sets;
mod shape;
pub(crate) mod sides;
mod snapshot;
mod standby;
mod statements;
pub(crate) mod table_identity;
mod target;
mod tls;
pub(crate) mod trigger_states;
mod watch;
mod watermark;

pub(crate) use catalogue::{functions_into, installed_hash, tracking};
pub use results::placeholder;
pub(crate) use watermark::seen_below;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headwater_model::sql::Syntax;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::results::{Placeholder, QueryBackend, QueryConnection};
use crate::system::SERVER_NAME;
use crate::{Backend, CommitWaits, Connection, Dialect, Error};
use connection::PostgresConnection;
use link::Link;
use standby::Patience;
use target::Target;

/// How long the database may take for things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// From the look-up of its name to the end of authentication.
    pub connect_time_out: Duration,
    /// Until a lock is had; zero: for ever.
    pub lock_time_out: Duration,
    /// For one statement; zero: for ever.
    pub statement_time_out: Duration,
    /// Between two statements of a transaction, before the server ends the session and frees its locks; zero: for ever.
    pub idle_in_transaction_time_out: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connect_time_out: Duration::from_secs(10),
            lock_time_out: Duration::from_secs(10),
            statement_time_out: Duration::from_mins(10),
            idle_in_transaction_time_out: Duration::from_mins(5),
        }
    }
}

/// A PostgreSQL database.
///
/// ```no_run
/// # fn main() -> Result<(), headwater_consolidated::Error> {
/// use headwater_consolidated::Backend;
/// use headwater_consolidated::postgres::{Postgres, Settings};
///
/// let database = Postgres::new("postgres://headwater@localhost/shop?sslmode=verify-full", Settings::default())?;
/// let mut connection = database.connect()?;
/// let rows = connection.query("SELECT version()", &[])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Postgres {
    target: Target,
    tls: MakeRustlsConnect,
    settings: Settings,
    /// A second connection was looked at, and had a session of its own.
    is_apart: Arc<OnceLock<()>>,
    /// A table could not be read.
    lacks_tables: Arc<AtomicBool>,
    commit_waits: CommitWaits,
}

impl Postgres {
    /// The database at this URL, or described by these `key=value` pairs, as libpq takes them. Does not connect yet; says what is
    /// wrong with the string or its certificates.
    pub fn new(connection_string: &str, settings: Settings) -> Result<Postgres, Error> {
        let mut target = Target::parse(connection_string)?;
        let config = &mut target.config;
        if config.get_application_name().is_none() {
            let own = uuid::Uuid::new_v4().simple().to_string();
            config.application_name(format!("{SERVER_NAME}{}", &own[..8]));
        }
        // A peer that vanished is noticed within a minute, whether it is we or the server that waits.
        config.keepalives(true);
        config.keepalives_idle(Duration::from_secs(30));
        config.keepalives_interval(Duration::from_secs(10));
        config.keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_mins(1));
        let tls = tls::connector(&target)?;
        Ok(Postgres {
            target,
            tls,
            settings,
            is_apart: Arc::default(),
            lacks_tables: Arc::default(),
            commit_waits: CommitWaits::default(),
        })
    }

    fn open(&self) -> Result<PostgresConnection, Error> {
        let link = Link::connect(&self.target, self.tls.clone(), self.settings.connect_time_out)?;
        let mut connection = PostgresConnection::new(link);
        connection.lacks_tables = Arc::clone(&self.lacks_tables);
        connection.commit_waits = self.commit_waits.clone();
        let is_sql_ascii = connection.link.is_sql_ascii();
        let process = connection.begin_session(&session_sql(&self.settings, is_sql_ascii))?;
        let (target, tls, waits) = (self.target.clone(), self.tls.clone(), self.commit_waits.clone());
        connection.link.be_patient(Patience { target, tls, waits, process });
        check_version(&mut connection)?;
        if self.is_apart.get().is_none() {
            connection.prove_apart(self)?;
            // Once is enough: each transaction finds out by itself.
            let _ = self.is_apart.set(());
        }
        connection.remember_session()?;
        Ok(connection)
    }

    /// The driver's own configuration and what makes its TLS, as this address says: for programs that read the database by
    /// themselves.
    pub fn driver(&self) -> (tokio_postgres::Config, MakeRustlsConnect) {
        (self.target.config.clone(), self.tls.clone())
    }
}

impl QueryBackend for Postgres {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error> {
        Ok(self.connect()?)
    }

    fn connect_for_client_sql(&self, _value_bytes_max: u64) -> Result<Box<dyn QueryConnection>, Error> {
        Ok(Box::new(self.open()?))
    }

    fn address(&self) -> String {
        self.target.address()
    }

    fn placeholder(&self) -> Placeholder {
        placeholder
    }

    fn syntax(&self) -> Syntax {
        Syntax::Postgres
    }
}

impl Backend for Postgres {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        Ok(Box::new(self.open()?))
    }

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn commit_waits(&self) -> CommitWaits {
        self.commit_waits.clone()
    }
}

/// Never shows the password.
impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres")
            .field("address", &self.address())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Of a database without an encoding texts are taken as they are: to a client that asks for UTF-8 the server refuses the whole answer where
/// one text is not.
fn session_sql(settings: &Settings, is_sql_ascii: bool) -> String {
    format!(
        "SET client_encoding = '{}'; SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 1; \
         SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET standard_conforming_strings = on; SET jit = off; \
         SET default_transaction_read_only = off; SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_deferrable = off; SET quote_all_identifiers = off; \
         SET max_parallel_workers_per_gather = 0; \
         SET lock_timeout = {}; SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}",
        if is_sql_ascii { "SQL_ASCII" } else { "UTF8" },
        settings.lock_time_out.as_millis(),
        settings.statement_time_out.as_millis(),
        settings.idle_in_transaction_time_out.as_millis(),
    )
}

fn check_version(connection: &mut PostgresConnection) -> Result<(), Error> {
    let rows = connection.query("SELECT current_setting('server_version_num')::int >= 150000, version()", &[])?;
    match rows.first().map(Vec::as_slice) {
        Some([headwater_protocol::Value::Bool(true), _]) => Ok(()),
        _ => Err(Error::Setup {
            what: format!("the database is older than PostgreSQL 15: {rows:?}"),
            mend: "upgrade it to PostgreSQL 15 or newer".into(),
        }),
    }
}
