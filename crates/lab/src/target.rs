//! Databases that are measured: an address, and sessions on it.

pub(crate) mod mariadb;
pub(crate) mod postgres;
mod sqlite;

use std::path::{Path, PathBuf};
use std::time::Duration;

use headwater_consolidated::QueryBackend as _;
use headwater_consolidated::postgres::{Postgres, Settings};
use tokio::sync::watch;

use crate::error::Error;
use crate::harness::Failure;
use crate::sampling::Whose;
use crate::scenario::{Database, Statement};
use crate::value::Value;

pub use mariadb::MariaDb;

/// A database.
#[derive(Clone, Debug)]
pub enum Target {
    /// A PostgreSQL server's.
    Postgres(Box<Postgres>),
    /// A MariaDB server's.
    MariaDb(MariaDb),
    /// A file.
    Sqlite {
        /// Where it is.
        path: PathBuf,
        /// Whether it was there before the lab.
        is_old: bool,
    },
}

impl Target {
    /// Reads an address; a file is looked for in `folder`. Does not connect.
    pub fn parse(address: &str, folder: &Path) -> Result<Target, Error> {
        if let Some(file) = address.strip_prefix("sqlite:") {
            let file = file.strip_prefix("//").unwrap_or(file);
            if file.is_empty() {
                return Err(Error::Usage("the target's address names no file, expected sqlite:FILE".to_owned()));
            }
            let path = folder.join(file);
            let is_old = path.exists();
            return Ok(Target::Sqlite { path, is_old });
        }
        if ["mysql://", "mariadb://"].iter().any(|scheme| address.starts_with(scheme)) {
            return MariaDb::parse(address).map(Target::MariaDb);
        }
        let is_postgres = ["postgres://", "postgresql://"].iter().any(|scheme| address.starts_with(scheme));
        if !is_postgres && !address.contains("host=") {
            // Perhaps it has a password in it: only the scheme is shown.
            let scheme = address.split_once(':').map_or("no scheme", |(scheme, _)| scheme);
            let expected =
                "expected sqlite:FILE, postgres://user@host/database or mariadb://... in target.url or --target";
            return Err(Error::Usage(format!("the target's address has {scheme:?}, {expected}")));
        }
        let postgres = Postgres::new(address, Settings::default());
        let postgres = postgres.map_err(|error| Error::Usage(format!("the target's address: {error}")))?;
        Ok(Target::Postgres(Box::new(postgres)))
    }

    /// The address as people may see it.
    pub fn address(&self) -> String {
        match self {
            Target::Postgres(postgres) => postgres.address(),
            Target::MariaDb(server) => server.address().to_owned(),
            Target::Sqlite { path, .. } => format!("sqlite:{}", path.display()),
        }
    }

    /// Whether a session keeps its thread while it works, so that each client wants a thread of its own.
    pub fn is_blocking(&self) -> bool {
        matches!(self, Target::Sqlite { .. })
    }

    /// Whose SQL it speaks.
    pub fn database(&self) -> Database {
        match self {
            Target::Postgres(_) => Database::Postgresql,
            Target::MariaDb(_) => Database::Mariadb,
            Target::Sqlite { .. } => Database::Sqlite,
        }
    }

    /// The port of TCP that it listens on, where that is known.
    pub(crate) fn port(&self) -> Option<u16> {
        if let Target::MariaDb(server) = self { Some(server.port()) } else { None }
    }

    /// A session. What it is asked fails after `timeout`, as far as that is for the session to see to, and on an interrupt.
    pub(crate) async fn connect(
        &self,
        timeout: Duration,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Session, Failure> {
        match self {
            Target::Postgres(postgres) => postgres::Session::connect(postgres).await.map(Session::Postgres),
            Target::MariaDb(server) => mariadb::Session::connect(server).await.map(Session::MariaDb),
            Target::Sqlite { path, .. } => sqlite::Session::open(path, timeout, interrupt.clone()).map(Session::Sqlite),
        }
    }

    /// What the database is and how it is set.
    pub(crate) async fn describe(&self, session: &mut Session) -> Result<Vec<(String, String)>, Failure> {
        let queries = match self {
            Target::Postgres(_) => postgres::DESCRIPTION,
            Target::MariaDb(_) => mariadb::DESCRIPTION,
            Target::Sqlite { .. } => sqlite::DESCRIPTION,
        };
        let mut description = vec![("address".to_owned(), self.address())];
        for query in queries {
            description.extend(session.rows(query, 100).await?.into_iter().filter_map(|row| {
                let mut values = row.into_iter().map(|(_, value)| value);
                Some((values.next()?, values.next()?))
            }));
        }
        Ok(description)
    }

    /// Removes the file that the lab has made; nothing of what was there before.
    pub(crate) fn remove_if_new(&self) -> std::io::Result<()> {
        let Target::Sqlite { path, is_old: false } = self else { return Ok(()) };
        for ending in ["", "-wal", "-shm", "-journal"] {
            let mut name = path.clone().into_os_string();
            name.push(ending);
            match std::fs::remove_file(&name) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A row as text: each column's name and value.
pub(crate) type Row = Vec<(String, String)>;

/// A row's values; `None` is NULL.
pub(crate) type RawRow = Vec<Option<Vec<u8>>>;

/// A connection.
pub(crate) enum Session {
    Postgres(postgres::Session),
    MariaDb(mariadb::Session),
    Sqlite(sqlite::Session),
}

impl Session {
    /// Whether it is known to be of no use any more; false: nobody knows.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Session::Postgres(session) if session.is_closed())
    }

    /// Has statements ready, so that they can be executed by their place.
    pub(crate) async fn prepare(&mut self, statements: &[Statement]) -> Result<(), Failure> {
        match self {
            Session::Postgres(session) => session.prepare(statements).await,
            Session::MariaDb(session) => session.prepare(statements).await,
            Session::Sqlite(session) => session.prepare(statements),
        }
    }

    /// Executes a prepared statement, and reads its rows to the last; gives how many they were.
    pub(crate) async fn execute(&mut self, statement: usize, values: &[&Value]) -> Result<u64, Failure> {
        match self {
            Session::Postgres(session) => session.execute(statement, values).await,
            Session::MariaDb(session) => session.execute(statement, values).await,
            Session::Sqlite(session) => session.execute(statement, values),
        }
    }

    /// Executes a prepared statement, which gives no rows, with each of these values: in one message, as far as the database has such.
    pub(crate) async fn execute_all(&mut self, statement: usize, all: &[Vec<&Value>]) -> Result<(), Failure> {
        match self {
            Session::Postgres(session) => session.execute_all(statement, all).await,
            Session::MariaDb(session) => session.execute_all(statement, all).await,
            Session::Sqlite(session) => {
                all.iter().try_for_each(|values| session.execute(statement, values).map(|_| ()))
            }
        }
    }

    /// Executes a script, without parameters.
    pub(crate) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            Session::Postgres(session) => session.script(sql).await,
            Session::MariaDb(session) => session.script(sql).await,
            Session::Sqlite(session) => session.script(sql),
        }
    }

    /// The rows of a query, at most so many.
    pub(crate) async fn rows(&mut self, sql: &str, most: usize) -> Result<Vec<Row>, Failure> {
        match self {
            Session::Postgres(session) => session.rows(sql, most).await,
            Session::MariaDb(session) => session.rows(sql, most).await,
            Session::Sqlite(session) => session.rows(sql, most),
        }
    }

    /// Reads a query's rows to the last, a few at a time, as the driver's text; bytes are themselves, but for PostgreSQL's (`\\x00`). `each` gives
    /// whether more are wanted.
    pub(crate) async fn each(&mut self, sql: &str, each: &mut dyn FnMut(RawRow) -> bool) -> Result<(), Failure> {
        match self {
            Session::Postgres(session) => session.each(sql, each).await,
            Session::MariaDb(session) => session.each(sql, each).await,
            Session::Sqlite(session) => session.each(sql, each),
        }
    }

    /// Which of these tables there are, where tables would be created or are found without a schema's name.
    pub(crate) async fn existing(&mut self, tables: &[String]) -> Result<Vec<String>, Failure> {
        let mut existing = Vec::new();
        for table in tables {
            let name = headwater_model::sql::literal(table);
            let query = match self {
                Session::Postgres(_) => format!("SELECT 1 WHERE to_regclass({name}) IS NOT NULL"),
                Session::MariaDb(_) => format!(
                    "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = {name}"
                ),
                Session::Sqlite(_) => format!("SELECT 1 FROM sqlite_master WHERE lower(name) = {name}"),
            };
            if !self.rows(&query, 1).await?.is_empty() {
                existing.push(table.clone());
            }
        }
        Ok(existing)
    }

    /// Of runs that were killed: what each has left, as names after one another. Only where nothing but a mark tells whose tables are.
    pub(crate) async fn left_by_runs(&mut self) -> Result<Vec<String>, Failure> {
        let Session::MariaDb(session) = self else { return Ok(Vec::new()) };
        let rows = session.rows(mariadb::LEFT, usize::MAX).await?;
        let names = |row: Row| row.into_iter().rev().map(|(_, value)| value).collect::<Vec<_>>().join(", ");
        Ok(rows.into_iter().map(names).collect())
    }

    /// Runs the script that makes these tables: all of it, or nothing. `note` is told an ID by which [`Session::was_made`] knows later what
    /// became of it, and none once nothing of it is left for certain.
    pub(crate) async fn make(
        &mut self,
        tables: &[String],
        script: &str,
        note: &mut dyn FnMut(Option<String>),
    ) -> Result<(), Failure> {
        if let Session::MariaDb(session) = self {
            return session.make(tables, script, note).await;
        }
        self.script("BEGIN").await?;
        let before = self.transaction_id().await?;
        note(Some(before.clone()));
        let done = match self.script(script).await {
            Ok(()) if self.transaction_id().await? == before => self.script("COMMIT").await,
            Ok(()) => {
                Err(Failure::usage("the script ends the transaction that it is run in; leave COMMIT and ROLLBACK out"))
            }
            Err(failure) => Err(failure),
        };
        if done.is_err() {
            let is_open = matches!(self, Session::Sqlite(session) if session.is_in_transaction());
            // Gone with the connection, if that is what failed.
            if self.script("ROLLBACK").await.is_ok() && is_open {
                note(None);
            }
        }
        done
    }

    async fn transaction_id(&mut self) -> Result<String, Failure> {
        match self {
            Session::Postgres(session) => {
                let rows = session.rows("SELECT pg_current_xact_id()", 1).await?;
                Ok(rows.into_iter().flatten().map(|(_, value)| value).collect())
            }
            Session::MariaDb(_) => Ok(String::new()),
            Session::Sqlite(session) => Ok(session.is_in_transaction().to_string()),
        }
    }

    /// Whether a script whose end nobody saw has made its tables. SQLite does not know: what is there now, and was not before, was.
    pub(crate) async fn was_made(&mut self, id: &str) -> Result<bool, Failure> {
        let session = match self {
            Session::Postgres(session) => session,
            Session::MariaDb(session) => return session.has_made(id).await,
            Session::Sqlite(_) => return Ok(true),
        };
        let query = format!("SELECT pg_xact_status({}::xid8)", headwater_model::sql::literal(id));
        loop {
            match session.rows(&query, 1).await?.first().and_then(|row| row.first()) {
                Some((_, status)) if status == "in progress" => tokio::time::sleep(Duration::from_millis(50)).await,
                status => return Ok(status.is_some_and(|(_, status)| status == "committed")),
            }
        }
    }

    /// Drops tables, and what tells that the run of this ID has made them.
    pub(crate) async fn unmake(&mut self, tables: &[String], id: &str) -> Result<(), Failure> {
        if let Session::MariaDb(session) = self {
            return session.unmake(tables, id).await;
        }
        for table in tables.iter().rev() {
            self.script(&format!("DROP TABLE IF EXISTS {}", headwater_model::sql::quote(table))).await?;
        }
        Ok(())
    }

    /// Has statistics made of a table, and what a first reader would tidy up.
    pub(crate) async fn analyze(&mut self, table: &str) -> Result<(), Failure> {
        let statement = match self {
            Session::Postgres(_) => "VACUUM (ANALYZE)",
            Session::MariaDb(_) => "ANALYZE TABLE",
            Session::Sqlite(_) => "ANALYZE",
        };
        self.script(&format!("{statement} {}", headwater_model::sql::quote(table))).await
    }

    /// The queries for what sessions are at (state, kind of the wait, event, statement, how many), and for which statement waits for which
    /// (statement, the other's, how many). Whoever asks is left out.
    pub(crate) fn watching(&self, whose: Whose) -> Option<(String, String)> {
        match self {
            Session::Postgres(_) => Some((postgres::sessions(whose), postgres::blockers(whose))),
            Session::MariaDb(session) => Some((session.sessions(), session.blockers())),
            Session::Sqlite(_) => None,
        }
    }

    /// Ends what the session is asked and may still be at, then the session.
    pub(crate) async fn abandon(self) {
        match self {
            Session::Postgres(session) => session.cancel().await,
            Session::MariaDb(session) => session.cancel().await,
            Session::Sqlite(_) => {}
        }
    }
}
