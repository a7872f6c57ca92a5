//! Results of queries of the application's own.

use headwater_protocol::text::coerce;
use headwater_protocol::{Value, ValueRef};
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::Type as ServerType;

use super::codec::{Codec, Scratch};
use super::connection::{PostgresConnection, State};
use super::raw;
use super::statements::numbered;
use crate::results::{ReadOptions, ResultColumn, ResultSink};
use crate::{Error, Mode};

/// A column, and how its values are read.
struct Reader {
    column: ResultColumn,
    codec: Codec,
    scratch: Scratch,
}

impl PostgresConnection {
    /// What columns a query gives.
    pub(super) fn result_columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        let numbered = numbered(sql);
        let prepared = self.run(async |client| client.prepare(&numbered).await);
        let statement = prepared.map_err(|failure| match place(&failure, &numbered) {
            Some(error) => error,
            None => self.failure("preparing a query", &failure),
        })?;
        if statement.columns().is_empty() {
            let detail = "it gives no rows: expected a SELECT".to_owned();
            return Err(Error::Sql { detail, line: None });
        }
        let readers = readers(statement.columns(), options)?;
        Ok(readers.into_iter().map(|reader| reader.column).collect())
    }

    /// Runs a query in a read-only transaction of its own.
    pub(super) fn read_result(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        let (statement, bound) = self.bind(sql, parameters)?;
        let mut readers = readers(statement.columns(), options)?;
        let columns: Vec<ResultColumn> = readers.iter().map(|reader| reader.column.clone()).collect();
        let limit = options.time_out.as_millis().to_string();
        self.queued.sql(["BEGIN READ ONLY; SET LOCAL statement_timeout = ", &limit, ";"]);
        self.state = State { mode: Some(Mode::Download), ..State::default() };
        sink.begin(&columns)?;
        let read = self.stream("running a query", &statement, &bound, |row, _| give(row, &mut readers, sink));
        if read.is_err() {
            self.forget(sql, std::iter::empty());
        }
        read
    }
}

/// What is wrong with the SQL itself, and where.
fn place(failure: &tokio_postgres::Error, sql: &str) -> Option<Error> {
    // Classes 22 and 42: data, and the statement.
    let error = failure.as_db_error().filter(|error| matches!(error.code().code().get(..2), Some("22" | "42")))?;
    let characters = match error.position() {
        Some(ErrorPosition::Original(position)) => Some(*position as usize),
        _ => None,
    };
    let before =
        |characters: usize| sql.chars().take(characters.saturating_sub(1)).filter(|letter| *letter == '\n').count();
    let hint = error.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
    Some(Error::Sql { detail: format!("{}{hint}", error.message()), line: characters.map(before) })
}

fn readers(columns: &[tokio_postgres::Column], options: &ReadOptions) -> Result<Vec<Reader>, Error> {
    let reader = |column: &tokio_postgres::Column| {
        let (name, server) = (column.name().to_owned(), column.type_());
        let codec = Codec::of(server.oid()).or_else(|| raw::text_like(server)).ok_or_else(|| unknown(&name, server))?;
        let kind = options.types.get(&name).copied().unwrap_or(codec.kind());
        let column = ResultColumn { name, kind, declared: server.name().to_owned() };
        Ok(Reader { column, codec, scratch: Scratch::default() })
    };
    columns.iter().map(reader).collect()
}

fn unknown(name: &str, server: &ServerType) -> Error {
    let detail = format!("column {name:?} has the type {server}, which has no form here: cast it, as {name}::text");
    Error::Sql { detail, line: None }
}

fn give(row: &tokio_postgres::Row, readers: &mut [Reader], sink: &mut dyn ResultSink) -> Result<(), Error> {
    let mut values = Vec::with_capacity(readers.len());
    let mut is_other = false;
    for (place, reader) in readers.iter_mut().enumerate() {
        let value = match raw::bytes(row, place)? {
            Some(raw) => reader.codec.decode(raw, &mut reader.scratch).ok_or_else(|| {
                raw::unreadable(&format!("column {:?}", reader.column.name), "bytes that are none of its type")
            })?,
            None => ValueRef::Null,
        };
        is_other |= value.kind().is_some_and(|kind| kind != reader.column.kind);
        values.push((value, reader.column.kind));
    }
    if !is_other {
        return sink.row(&values.iter().map(|(value, _)| *value).collect::<Vec<_>>());
    }
    let coerced: Vec<Value> = values
        .iter()
        .map(|(value, kind)| coerce(&value.to_value(), *kind).unwrap_or_else(|| value.to_value()))
        .collect();
    sink.row(&coerced.iter().map(Value::as_ref).collect::<Vec<_>>())
}
