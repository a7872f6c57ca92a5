//! Results of queries of the application's own.

use std::borrow::Cow;
use std::time::Instant;

use headwater_protocol::stored::{Scratch, decode};
use headwater_protocol::{Type, Value, ValueRef};
use rusqlite::Statement;
use rusqlite::limits::Limit;

use super::catalogue::column_type;
use super::connection::{PROGRESS_STEPS, SqliteConnection};
use super::error::sort;
use super::values::{bind_all, stored};
use crate::Error;
use crate::results::{Canceller, QueryConnection, ReadOptions, ResultColumn, ResultSink};
use crate::watch::{Marked, Outlook, Watched};

/// A parameter by its number: SQLite's values have types, its parameters have not.
pub fn placeholder(number: usize, _kind: Type) -> String {
    format!("?{number}")
}

impl QueryConnection for SqliteConnection {
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        let statement = self.inner.prepare_cached(sql).map_err(|error| place(error, sql))?;
        read_only(&statement)?;
        Ok(columns(&statement, options))
    }

    /// One statement sees one snapshot.
    fn read(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        self.check_file()?;
        if !options.time_out.is_zero() {
            let deadline = Instant::now() + options.time_out;
            let limited = self.inner.progress_handler(PROGRESS_STEPS, Some(move || Instant::now() > deadline));
            limited.map_err(|error| sort(error, "limiting how long a query takes"))?;
        }
        let read = self.run_query(sql, parameters, options, sink);
        // It fails on a closed connection alone.
        let _ = self.inner.progress_handler(0, None::<fn() -> bool>);
        read
    }

    fn rollback(&mut self) -> Result<(), Error> {
        self.ended();
        if self.inner.is_autocommit() { Ok(()) } else { self.run("ROLLBACK") }
    }

    fn watch(&mut self, sql: &str) -> Result<Option<Watched>, Error> {
        self.watch_query(sql)
    }

    fn marked(&mut self, watched: &Watched, since: Option<&str>) -> Result<Marked, Error> {
        self.mark_of(watched, since)
    }

    fn outlook(&mut self, _watched: &Watched) -> Result<Option<Outlook>, Error> {
        self.check_file()?;
        Ok(self.file_number().map(|names| Outlook { names, rights: String::new() }))
    }

    fn canceller(&self) -> Option<Canceller> {
        let handle = self.inner.get_interrupt_handle();
        Some(Box::new(move || handle.interrupt()))
    }
}

impl SqliteConnection {
    fn run_query(
        &self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        let mut statement = self.inner.prepare_cached(sql).map_err(|error| place(error, sql))?;
        read_only(&statement)?;
        let parameters = parameters.iter().map(|value| self.as_parameter(value)).collect::<Result<Vec<_>, _>>()?;
        bind_all(&mut statement, parameters.iter().map(AsRef::as_ref), &mut Scratch::default())?;
        let bytes_max = self.inner.limit(Limit::SQLITE_LIMIT_LENGTH).map_err(|error| sort(error, sql))?;
        give(&mut statement, (sql, bytes_max.unsigned_abs().into()), options, sink)
    }

    /// A parameter as it is bound. A decimal is stored as a text, and any number is less than any text; so it is a number here where SQLite
    /// makes the same text of that, as it does beside a column of texts.
    fn as_parameter<'v>(&self, value: &'v Value) -> Result<Cow<'v, Value>, Error> {
        const TEXT_SQL: &str = "SELECT CAST(?1 AS TEXT)";
        let Value::Decimal(decimal) = value else { return Ok(Cow::Borrowed(value)) };
        let mut text = String::new();
        decimal.as_ref().write_text(&mut text);
        if let Ok(whole) = text.parse::<i64>() {
            return Ok(if whole.to_string() == text { Cow::Owned(Value::Int(whole)) } else { Cow::Borrowed(value) });
        }
        let Some(real) = text.parse::<f64>().ok().filter(|real| real.is_finite()) else {
            return Ok(Cow::Borrowed(value));
        };
        let made = self.inner.prepare_cached(TEXT_SQL).and_then(|mut made| made.query_row([real], |row| row.get(0)));
        let made: String = made.map_err(|error| sort(error, "binding a decimal"))?;
        Ok(if made == text { Cow::Owned(Value::Real(real)) } else { Cow::Borrowed(value) })
    }
}

/// What is wrong with the SQL itself, and where.
fn place(error: rusqlite::Error, sql: &str) -> Error {
    match error {
        rusqlite::Error::SqlInputError { msg, offset, .. } => {
            let before = usize::try_from(offset).ok().and_then(|offset| sql.get(..offset));
            let line = before.map(|before| before.matches('\n').count());
            Error::Sql { detail: msg, line, is_statement: true }
        }
        // A table that there is not, say.
        rusqlite::Error::SqliteFailure(cause, Some(detail)) if cause.extended_code == rusqlite::ffi::SQLITE_ERROR => {
            Error::Sql { detail, line: None, is_statement: true }
        }
        // What SQL of clients may not do.
        rusqlite::Error::SqliteFailure(cause, detail)
            if cause.code == rusqlite::ErrorCode::AuthorizationForStatementDenied =>
        {
            let detail = detail.unwrap_or_else(|| cause.to_string());
            Error::Sql { detail, line: None, is_statement: true }
        }
        error => sort(error, "preparing a query"),
    }
}

fn read_only(statement: &Statement<'_>) -> Result<(), Error> {
    let strange = (1..=statement.parameter_count())
        .filter_map(|place| statement.parameter_name(place))
        .find(|name| !name.starts_with('?'));
    let detail = match strange {
        Some(name) => format!("{name} is no parameter here, expected :name"),
        None if statement.readonly() && statement.column_count() > 0 => return Ok(()),
        None => "it writes, or gives no rows: expected a SELECT".to_owned(),
    };
    Err(Error::Sql { detail, line: None, is_statement: true })
}

fn columns(statement: &Statement<'_>, options: &ReadOptions) -> Vec<ResultColumn> {
    let column = |column: rusqlite::Column<'_>| {
        let name = column.name().to_owned();
        let declared = column.decl_type().unwrap_or_default().to_owned();
        let known = options.types.get(&name).copied();
        let kind = known.or_else(|| Some(column_type(&declared)?.base));
        ResultColumn { name, kind, declared }
    };
    statement.columns().map(column).collect()
}

/// What a step failed of: of a value that is too large, it may be.
fn stepping(error: rusqlite::Error, sql: &str, bytes_max: u64) -> Error {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::TooBig) => return Error::ValueTooLarge { bytes_max },
        Some(_) => {}
        None => return sort(error, sql),
    }
    match error {
        // A function's own words of its values (full-text search, JSON), or of a table that was altered since it was prepared.
        rusqlite::Error::SqliteFailure(cause, Some(detail)) if cause.extended_code == rusqlite::ffi::SQLITE_ERROR => {
            let is_statement = detail.starts_with("no such ");
            Error::Sql { detail, line: None, is_statement }
        }
        error => sort(error, sql),
    }
}

fn give(
    statement: &mut Statement<'_>,
    (sql, bytes_max): (&str, u64),
    options: &ReadOptions,
    sink: &mut dyn ResultSink,
) -> Result<(), Error> {
    let mut rows = statement.raw_query();
    let mut readers: Option<(Vec<ResultColumn>, Vec<Scratch>)> = None;
    while let Some(row) = rows.next().map_err(|error| stepping(error, sql, bytes_max))? {
        let (columns, scratches) = match &mut readers {
            Some(readers) => readers,
            // Not before: the first step prepares a statement anew whose tables were altered.
            None => {
                let columns = columns(row.as_ref(), options);
                sink.begin(&columns)?;
                let scratches = columns.iter().map(|_| Scratch::default()).collect();
                readers.insert((columns, scratches))
            }
        };
        let read = columns.iter().zip(scratches).enumerate();
        let values = read.map(|(place, (column, scratch))| {
            Ok(decode(stored(row, place)?, column.kind.unwrap_or(Type::Text), scratch))
        });
        sink.row(&values.collect::<Result<Vec<ValueRef<'_>>, Error>>()?)?;
    }
    drop(rows);
    if readers.is_some() { Ok(()) } else { sink.begin(&columns(statement, options)) }
}
