//! Results of queries of the application's own.

use headwater_protocol::text::coerce;
use headwater_protocol::{Type, Value, ValueRef};
use tokio_postgres::Statement;
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::Type as ServerType;

use super::codec::{Codec, Scratch};
use super::connection::{PostgresConnection, State};
use super::raw;
use super::read::Stop;
use super::statements::{bound, numbered};
use crate::results::{Canceller, QueryConnection, ReadOptions, ResultColumn, ResultSink};
use crate::watch::{Marked, Watched};
use crate::{Error, Mode};

/// A parameter by its number, cast: PostgreSQL would guess its type.
pub fn placeholder(number: usize, kind: Type) -> String {
    let name = match kind {
        Type::Bool => "boolean",
        Type::Int => "bigint",
        Type::Real => "double precision",
        Type::Decimal => "numeric",
        Type::Text => "text",
        Type::Bytes => "bytea",
        Type::Date => "date",
        Type::Time => "time",
        Type::Timestamp => "timestamp",
        Type::Timestamptz => "timestamptz",
        Type::Uuid => "uuid",
        Type::Json => "json",
    };
    format!("CAST(?{number} AS {name})")
}

/// A column, and how its values are read.
struct Reader {
    column: ResultColumn,
    codec: Codec,
    scratch: Scratch,
}

impl QueryConnection for PostgresConnection {
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        let statement = self.prepare_query(sql)?;
        let readers = readers(statement.columns(), options)?;
        Ok(readers.into_iter().map(|reader| reader.column).collect())
    }

    fn read(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        let statement = match self.known(sql) {
            Some(statement) => statement,
            None => self.prepare_query(sql)?,
        };
        self.keep(sql, &statement);
        let bound = bound(sql, &statement, parameters)?;
        let mut readers = readers(statement.columns(), options)?;
        let columns: Vec<ResultColumn> = readers.iter().map(|reader| reader.column.clone()).collect();
        let limit = options.time_out.as_millis().to_string();
        self.queued.sql(["BEGIN READ ONLY; SET LOCAL statement_timeout = ", &limit, ";"]);
        self.state = State { mode: Some(Mode::Download), ..State::default() };
        sink.begin(&columns)?;
        let read = self.stream_raw(&statement, &bound, |row, _| give(row, &mut readers, sink));
        let read = read.map_err(|stop| match stop {
            Stop::Own(error) => error,
            Stop::Server(failure) => {
                let error = self.failure("running a query", &failure);
                place(&failure, sql).unwrap_or(error)
            }
        });
        if read.is_err() {
            self.forget(sql, std::iter::empty());
        }
        read
    }

    fn rollback(&mut self) -> Result<(), Error> {
        if self.state.mode.is_none() {
            return Ok(());
        }
        let ended = std::mem::take(&mut self.state);
        self.queued.clear();
        if ended.mode == Some(Mode::Download) && !ended.failed {
            self.end_unseen();
            return Ok(());
        }
        self.control("ROLLBACK")
    }

    fn watch(&mut self, sql: &str) -> Result<Option<Watched>, Error> {
        self.watch_query(sql)
    }

    fn marked(&mut self, watched: &Watched, since: Option<&str>) -> Result<Marked, Error> {
        self.mark_of(watched, since)
    }

    fn lacks_for_watching(&mut self) -> Result<Vec<String>, Error> {
        self.missing_grants()
    }

    fn canceller(&self) -> Option<Canceller> {
        Some(self.link.canceller())
    }
}

impl PostgresConnection {
    fn prepare_query(&mut self, sql: &str) -> Result<Statement, Error> {
        let numbered = numbered(sql);
        let prepared = self.run(async |client| client.prepare(&numbered).await);
        let statement = prepared.map_err(|failure| match place(&failure, &numbered) {
            Some(error) => error,
            None => self.failure("preparing a query", &failure),
        })?;
        if statement.columns().is_empty() {
            // COPY, BEGIN and the like are among them.
            let detail = "it gives no rows: expected a SELECT".to_owned();
            return Err(Error::Sql { detail, line: None });
        }
        Ok(statement)
    }
}

/// What is wrong with the SQL itself, and where.
fn place(failure: &tokio_postgres::Error, sql: &str) -> Option<Error> {
    let error = failure.as_db_error().filter(|error| is_own(error.code().code()))?;
    let characters = match error.position() {
        Some(ErrorPosition::Original(position)) => Some(*position as usize),
        _ => None,
    };
    let before =
        |characters: usize| sql.chars().take(characters.saturating_sub(1)).filter(|letter| *letter == '\n').count();
    let hint = error.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
    Some(Error::Sql { detail: format!("{}{hint}", error.message()), line: characters.map(before) })
}

/// Whether it is the query's own fault: classes 22 and 42 are data and the statement, 25006 is a write, and the others are limits of a statement.
fn is_own(code: &str) -> bool {
    matches!(code.get(..2), Some("22" | "42" | "54")) || code == "25006" || code == "0A000"
}

fn readers(columns: &[tokio_postgres::Column], options: &ReadOptions) -> Result<Vec<Reader>, Error> {
    let reader = |column: &tokio_postgres::Column| {
        let (name, server) = (column.name().to_owned(), column.type_());
        let codec = Codec::of(server.oid()).or_else(|| raw::text_like(server)).ok_or_else(|| unknown(&name, server))?;
        let kind = options.types.get(&name).copied().unwrap_or(codec.kind());
        let column = ResultColumn { name, kind: Some(kind), declared: declared(column) };
        Ok(Reader { column, codec, scratch: Scratch::default() })
    };
    columns.iter().map(reader).collect()
}

/// The server's name for a column's type; of a `numeric` with its digits, where it has a bound of them.
fn declared(column: &tokio_postgres::Column) -> String {
    /// What stands before the bound in a type's modifier.
    const HEADER: i32 = 4;
    let (name, modifier) = (column.type_().name(), column.type_modifier());
    if *column.type_() != ServerType::NUMERIC || modifier < HEADER {
        return name.to_owned();
    }
    let bound = modifier - HEADER;
    // Eleven bits with a sign.
    let scale = ((bound & 0x7ff) ^ 0x400) - 0x400;
    format!("{name}({},{scale})", bound >> 16)
}

fn unknown(name: &str, server: &ServerType) -> Error {
    let detail = format!("column {name:?} has the type {server}, which has no form here: cast it, as {name}::text");
    Error::Sql { detail, line: None }
}

/// A float4 is the number that its shortest text means, and not the double beside it.
fn decoded<'a>(codec: Codec, raw: &'a [u8], scratch: &'a mut Scratch) -> Option<ValueRef<'a>> {
    match (codec, codec.decode(raw, scratch)?) {
        (Codec::Float4, ValueRef::Real(real)) if real.is_finite() => {
            (real as f32).to_string().parse().ok().map(ValueRef::Real)
        }
        (_, value) => Some(value),
    }
}

fn give(row: &tokio_postgres::Row, readers: &mut [Reader], sink: &mut dyn ResultSink) -> Result<(), Error> {
    let mut values = Vec::with_capacity(readers.len());
    let mut is_other = false;
    for (place, reader) in readers.iter_mut().enumerate() {
        let value = match raw::bytes(row, place)? {
            Some(raw) => decoded(reader.codec, raw, &mut reader.scratch).ok_or_else(|| {
                raw::unreadable(&format!("column {:?}", reader.column.name), "bytes that are none of its type")
            })?,
            None => ValueRef::Null,
        };
        let kind = reader.column.kind.unwrap_or(reader.codec.kind());
        is_other |= value.kind().is_some_and(|of| of != kind);
        values.push((value, kind));
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
