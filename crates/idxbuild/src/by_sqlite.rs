//! Indexes that SQLite builds itself, because only it can make their keys or move their pages.

use rusqlite::{Connection, ErrorCode};

use crate::catalog::quoted;
use crate::doubles;
use crate::error::{Error, code, of_application, sqlite, words};
use crate::options::Knobs;
use crate::report::Builder;

/// An index that is left to SQLite.
#[derive(Clone, Debug)]
pub(crate) struct BySqlite {
    /// Its name.
    pub(crate) name: String,
    /// Its table.
    pub(crate) table: String,
    /// Why.
    pub(crate) why: String,
    /// The statement that creates it, where it is new.
    pub(crate) create: Option<String>,
}

impl BySqlite {
    /// Builds it, with what makes SQLite fast: memory to sort in, and threads that help.
    pub(crate) fn build(&self, connection: &Connection, knobs: &Knobs) -> Result<Builder, Error> {
        let failed = sqlite("building an index");
        let kib = (knobs.memory >> 10).min(4 << 20);
        let threads = knobs.threads.min(8);
        let tune = format!("PRAGMA cache_size = -{kib}; PRAGMA threads = {threads}");
        connection.execute_batch(&tune).map_err(&failed)?;
        let statement = self.create.clone().unwrap_or_else(|| format!("REINDEX main.{}", quoted(&self.name)));
        let done = connection.execute_batch(&statement);
        connection.execute_batch("PRAGMA cache_size = -65536").map_err(&failed)?;
        match done {
            Ok(()) => Ok(Builder::Sqlite { why: self.why.clone() }),
            Err(error) => match code(&error) {
                Some(ErrorCode::ConstraintViolation) => {
                    let found = doubles::found(connection, &self.table, &self.name, self.create.as_deref())?;
                    Err(found.fault(&self.name).unwrap_or_else(|| failed(error)))
                }
                // It lacks a collation or a function that the application has: then the application must do it.
                Some(ErrorCode::Unknown) if self.create.is_none() => {
                    Ok(Builder::Nobody { why: format!("{}; SQLite here: {}", self.why, words(&error)) })
                }
                _ => Err(of_application(&statement, &error).unwrap_or_else(|| failed(error))),
            },
        }
    }
}

/// Runs SQLite's own check of the whole database.
pub(crate) fn integrity_check(connection: &Connection) -> Result<(), Error> {
    let failed = sqlite("checking the database");
    // New indexes are in the file's schema, not yet in the connection's.
    connection.execute_batch("PRAGMA writable_schema = RESET").map_err(&failed)?;
    let mut check = connection.prepare("PRAGMA integrity_check").map_err(&failed)?;
    let lines = check.query_map([], |row| row.get(0)).map_err(&failed)?;
    let lines: Vec<String> = lines.collect::<Result<_, _>>().map_err(&failed)?;
    if lines == ["ok"] { Ok(()) } else { Err(Error::Integrity { lines }) }
}
