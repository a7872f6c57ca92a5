//! Results of queries of the application's own.

use headwater_protocol::text::coerce;
use headwater_protocol::{Value, ValueRef};
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
        let statement = self.prepare(&numbered(sql))?;
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
    Error::Database { context: "preparing a query".to_owned(), detail }
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
