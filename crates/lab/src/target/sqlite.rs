//! Sessions on a SQLite file: they work on the thread that asks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql};
use tokio::sync::watch;

use super::{RawRow, Row};
use crate::harness::{Class, Failure};
use crate::scenario::Statement;
use crate::value::Value;

/// Asked of each file once a campaign: name and value.
pub(super) const DESCRIPTION: &[&str] = &[
    "SELECT 'version', 'SQLite ' || sqlite_version()",
    "SELECT 'setting journal_mode', journal_mode FROM pragma_journal_mode",
    "SELECT 'setting synchronous', synchronous FROM pragma_synchronous",
    "SELECT 'setting page_size', page_size FROM pragma_page_size",
    "SELECT 'setting cache_size', cache_size FROM pragma_cache_size",
];

/// After so many steps of SQLite's machine a statement looks whether its time is over.
const STEPS: i32 = 10_000;

pub(crate) struct Session {
    connection: Connection,
    statements: Vec<String>,
    timeout: Duration,
    watchdog: Arc<Watchdog>,
}

/// Ends statements that take too long.
struct Watchdog {
    since: Instant,
    /// In microseconds since then; 0: none.
    deadline: AtomicU64,
    interrupt: watch::Receiver<bool>,
}

impl Watchdog {
    fn is_over(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        *self.interrupt.borrow() || (deadline > 0 && self.since.elapsed().as_micros() as u64 > deadline)
    }
}

impl Session {
    pub(super) fn open(path: &Path, timeout: Duration, interrupt: watch::Receiver<bool>) -> Result<Session, Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let mut connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(timeout)?;
            let watchdog = Watchdog { since: Instant::now(), deadline: AtomicU64::new(0), interrupt };
            let watchdog = Arc::new(watchdog);
            let watching = watchdog.clone();
            connection.progress_handler(STEPS, Some(move || watching.is_over()))?;
            Ok(Session { connection, statements: Vec::new(), timeout, watchdog })
        };
        open().map_err(|error: rusqlite::Error| {
            let failure = failure(&error);
            Failure { class: Class::Refused, detail: format!("{}: {}", path.display(), failure.detail), ..failure }
        })
    }

    pub(super) fn prepare(&mut self, statements: &[Statement]) -> Result<(), Failure> {
        self.statements = statements.iter().map(|statement| statement.sql.clone()).collect();
        self.connection.set_prepared_statement_cache_capacity(statements.len());
        for statement in statements {
            self.connection.prepare_cached(&statement.sql).map_err(|error| {
                let failure = failure(&error);
                Failure { detail: format!("{}: {}", statement.sql, failure.detail), is_usage: true, ..failure }
            })?;
        }
        Ok(())
    }

    pub(super) fn execute(&mut self, statement: usize, values: &[&Value]) -> Result<u64, Failure> {
        let sql = &self.statements[statement];
        self.timed(|connection| {
            let mut prepared = connection.prepare_cached(sql)?;
            let mut rows = prepared.query(rusqlite::params_from_iter(values))?;
            let mut count = 0;
            while rows.next()?.is_some() {
                count += 1;
            }
            Ok(count)
        })
    }

    pub(super) fn script(&mut self, sql: &str) -> Result<(), Failure> {
        self.timed(|connection| connection.execute_batch(sql))
    }

    pub(super) fn rows(&mut self, sql: &str, most: usize) -> Result<Vec<Row>, Failure> {
        self.timed(|connection| {
            let mut prepared = connection.prepare(sql)?;
            let names: Vec<String> = prepared.column_names().map(str::to_owned).collect();
            let read = |row: &rusqlite::Row<'_>| {
                let value = |(place, name): (usize, &String)| Ok((name.clone(), shown(row.get_ref(place)?)));
                names.iter().enumerate().map(value).collect()
            };
            prepared.query_map([], read)?.take(most).collect()
        })
    }

    pub(super) fn each(&mut self, sql: &str, each: &mut dyn FnMut(RawRow) -> bool) -> Result<(), Failure> {
        let mut read = |connection: &Connection| {
            let mut prepared = connection.prepare(sql)?;
            let columns = prepared.column_count();
            let mut rows = prepared.query([])?;
            while let Some(row) = rows.next()? {
                let values = (0..columns).map(|place| Ok(raw(row.get_ref(place)?))).collect::<rusqlite::Result<_>>()?;
                if !each(values) {
                    break;
                }
            }
            Ok(())
        };
        // However long it takes.
        self.watchdog.deadline.store(0, Ordering::Relaxed);
        read(&self.connection).map_err(|error| failure(&error))
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }

    fn timed<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Failure> {
        // A statement of few steps does not look itself.
        if *self.watchdog.interrupt.borrow() {
            return Err(interrupted());
        }
        let deadline = self.watchdog.since.elapsed() + self.timeout;
        self.watchdog.deadline.store(deadline.as_micros() as u64, Ordering::Relaxed);
        work(&self.connection).map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) if *self.watchdog.interrupt.borrow() => interrupted(),
            Some(ErrorCode::OperationInterrupted) => Failure { is_broken: false, ..Failure::time_out(self.timeout) },
            _ => failure(&error),
        })
    }
}

/// Somebody stopped what it is asked for.
fn interrupted() -> Failure {
    Failure::new(Class::Other, "interrupted")
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Value::Integer(number) => ToSqlOutput::from(*number),
            Value::Real(number) => ToSqlOutput::from(*number),
            Value::Text(text) => ToSqlOutput::from(text.as_str()),
            Value::Bytes(bytes) => ToSqlOutput::from(bytes.as_slice()),
            Value::Time(_) => ToSqlOutput::from(self.to_string()),
        })
    }
}

fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()),
    }
}

fn raw(value: ValueRef<'_>) -> Option<Vec<u8>> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string().into_bytes()),
        ValueRef::Real(number) => Some(number.to_string().into_bytes()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
    }
}

/// What an error of the library means.
fn failure(error: &rusqlite::Error) -> Failure {
    let code = error.sqlite_error_code();
    let name = match code {
        Some(ErrorCode::DatabaseBusy) => "SQLITE_BUSY",
        Some(ErrorCode::DatabaseLocked) => "SQLITE_LOCKED",
        Some(ErrorCode::ConstraintViolation) => "SQLITE_CONSTRAINT",
        Some(ErrorCode::DiskFull) => "SQLITE_FULL",
        Some(ErrorCode::SystemIoFailure) => "SQLITE_IOERR",
        Some(ErrorCode::ReadOnly) => "SQLITE_READONLY",
        Some(ErrorCode::DatabaseCorrupt) => "SQLITE_CORRUPT",
        Some(ErrorCode::NotADatabase) => "SQLITE_NOTADB",
        Some(ErrorCode::CannotOpen) => "SQLITE_CANTOPEN",
        Some(ErrorCode::SchemaChanged) => "SQLITE_SCHEMA",
        Some(ErrorCode::TooBig) => "SQLITE_TOOBIG",
        Some(ErrorCode::TypeMismatch) => "SQLITE_MISMATCH",
        Some(ErrorCode::OutOfMemory) => "SQLITE_NOMEM",
        _ => "SQLITE_ERROR",
    };
    let mut failure = Failure::new(Class::Code(name.to_owned()), error.to_string());
    failure.is_usage = matches!(code, Some(ErrorCode::NotADatabase | ErrorCode::CannotOpen | ErrorCode::ReadOnly));
    failure
}
