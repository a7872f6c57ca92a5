//! Results of queries of the application's own.

use headwater_model::sql::moments;
use headwater_protocol::text::coerce;
use headwater_protocol::{Type, Value, ValueRef};
use tokio_postgres::Statement;
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::Type as ServerType;

use super::bound::Bound;
use super::codec::{Codec, Scratch};
use super::connection::{PostgresConnection, State};
use super::read::Stop;
use super::session::ROLLBACK_SQL;
use super::statements::{bound, numbered};
use super::{literal, raw};
use crate::catalogue::text;
use crate::results::{Canceller, QueryConnection, ReadOptions, ResultColumn, ResultSink};
use crate::watch::{Marked, Outlook, Watched};
use crate::{Connection as _, Error, Mode};

/// Tables with secrets that can be read by this role or one that it may become (`set_config('role', ...)` needs no more), or as files.
const READABLE_SQL: &str = "SELECT name FROM ( \
    SELECT n.nspname || '.' || c.relname AS name, 1 AS place FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'headwater' AND c.relname IN ('account', 'identity', 'remote') AND EXISTS ( \
        SELECT FROM pg_catalog.pg_roles r WHERE pg_has_role(session_user, r.oid, 'MEMBER') \
        AND (has_table_privilege(r.oid, c.oid, 'SELECT') OR has_any_column_privilege(r.oid, c.oid, 'SELECT'))) \
    UNION ALL SELECT 'the files of the server, those of other databases too', 2 WHERE EXISTS ( \
        SELECT FROM pg_catalog.pg_roles r WHERE pg_has_role(session_user, r.oid, 'MEMBER') \
        AND (r.rolsuper OR r.rolname IN ('pg_read_server_files', 'pg_execute_server_program'))) \
    ) AS s ORDER BY place, name";
/// A connection that has read a larger row is not kept.
const ROW_BYTES_KEPT: usize = 8 << 20;

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
pub(super) struct Reader {
    column: ResultColumn,
    codec: Codec,
    scratch: Scratch,
}

impl QueryConnection for PostgresConnection {
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        let statement = self.prepare_query(sql)?;
        self.refuse_writes(sql, &statement)?;
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
        let known = self.known(sql);
        let read = match &known {
            Some(statement) => self.read_prepared(statement, (sql, parameters), options, sink),
            None => self.read_anew((sql, parameters), options, sink),
        };
        let read = match read {
            // A table was altered since; nothing has been given yet.
            Err(Stop::Server(failure)) if known.is_some() && is_outdated(&failure) => {
                self.state.failed = true;
                self.rollback()?;
                self.read_anew((sql, parameters), options, sink)
            }
            read => read,
        };
        let read = read.map_err(|stop| match stop {
            Stop::Own(error) => error,
            Stop::Server(failure) => {
                let error = self.failure("running a query", &failure);
                place(&failure, sql, false).unwrap_or(error)
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
        self.control(ROLLBACK_SQL)
    }

    fn watch(&mut self, sql: &str) -> Result<Option<Watched>, Error> {
        self.watch_query(sql)
    }

    fn marked(&mut self, watched: &Watched, since: Option<&str>) -> Result<Marked, Error> {
        self.mark_of(watched, since)
    }

    fn readable_secrets(&mut self) -> Result<Vec<String>, Error> {
        let rows = self.query(READABLE_SQL, &[])?;
        Ok(rows.iter().map(|row| text(row, 0)).collect())
    }

    fn outlook(&mut self, watched: &Watched) -> Result<Option<Outlook>, Error> {
        self.outlook_of(watched)
    }

    fn is_worn(&self) -> bool {
        self.row_bytes > ROW_BYTES_KEPT || self.is_unclean
    }

    fn lacks_for_watching(&mut self) -> Result<Vec<String>, Error> {
        self.missing_grants()
    }

    fn is_gone(&mut self) -> bool {
        self.link.is_gone()
    }

    fn canceller(&self) -> Option<Canceller> {
        Some(self.link.canceller())
    }
}

impl PostgresConnection {
    fn read_anew(
        &mut self,
        (sql, parameters): (&str, &[Value]),
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Stop> {
        let statement = self.prepare_query(sql).map_err(Stop::Own)?;
        // A statement has the moment at which it was prepared in the place of a `now`.
        if moments(sql).is_empty() {
            self.keep(sql, &statement);
        }
        self.read_prepared(&statement, (sql, parameters), options, sink)
    }

    /// The sink is told the columns once the database has taken the statement.
    fn read_prepared(
        &mut self,
        statement: &Statement,
        (sql, parameters): (&str, &[Value]),
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Stop> {
        dates_fit(statement, parameters).map_err(Stop::Own)?;
        let bound = bound(sql, statement, parameters).map_err(Stop::Own)?;
        let mut readers = readers(statement.columns(), options).map_err(Stop::Own)?;
        let columns: Vec<ResultColumn> = readers.iter().map(|reader| reader.column.clone()).collect();
        if self.reads_late(sql).map_err(Stop::Own)? {
            return self.read_late(statement, &bound, (&columns, &mut readers), options, sink);
        }
        let limit = options.time_out.as_millis().to_string();
        let begin = self.guarded("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY");
        self.queued.sql([&begin, "; SET LOCAL statement_timeout = ", &limit, ";"]);
        self.state = State { mode: Some(Mode::Download), ..State::default() };
        let (mut has_begun, mut largest) = (false, self.row_bytes);
        let read = self.stream_raw(statement, &bound, |row, _| {
            largest = largest.max(row.raw_size_bytes());
            if !std::mem::replace(&mut has_begun, true) {
                sink.begin(&columns)?;
            }
            give(row, &mut readers, sink)
        });
        self.row_bytes = largest;
        read?;
        if has_begun { Ok(()) } else { sink.begin(&columns).map_err(Stop::Own) }
    }

    /// An error where a statement writes or locks rows, in a part of it too, as its plan says. What has no plan (`SHOW`) does neither.
    fn refuse_writes(&mut self, sql: &str, statement: &Statement) -> Result<(), Error> {
        let nulls: Vec<Bound> = statement.params().iter().map(|kind| Bound::value(&Value::Null, kind)).collect();
        let explain = format!("EXPLAIN (FORMAT JSON, COSTS OFF) {}", numbered(sql));
        let Ok(plan) = self.told(&explain, &nulls) else { return Ok(()) };
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap_or_default();
        match writing(&plan[0]["Plan"]) {
            Some(what) => {
                let detail = format!("it has {what}: expected a SELECT");
                Err(Error::Sql { detail, line: None, is_statement: true })
            }
            None => Ok(()),
        }
    }

    fn prepare_query(&mut self, sql: &str) -> Result<Statement, Error> {
        let numbered = numbered(sql);
        let prepared = self.run_steps_alone(async |client| client.prepare(&numbered).await);
        let statement = prepared.map_err(|failure| match place(&failure, &numbered, true) {
            Some(error) => error,
            None => self.failure("preparing a query", &failure),
        })?;
        if statement.columns().is_empty() {
            // COPY, BEGIN and the like are among them.
            let detail = "it gives no rows: expected a SELECT".to_owned();
            return Err(Error::Sql { detail, line: None, is_statement: true });
        }
        Ok(statement)
    }
}

/// An error that names a date or time, if there is one, that PostgreSQL has none of.
fn dates_fit(statement: &Statement, parameters: &[Value]) -> Result<(), Error> {
    for (value, kind) in parameters.iter().zip(statement.params()) {
        let is_dated = matches!(value, Value::Date(_) | Value::Timestamp(_) | Value::Timestamptz(_));
        let Some(codec) = Codec::of(kind.oid()).filter(|codec| is_dated && Some(codec.kind()) == value.as_ref().kind())
        else {
            continue;
        };
        if let Err(why) = codec.encode(value.as_ref(), &mut Vec::new()) {
            let text = literal::text(value).unwrap_or_default();
            return Err(Error::Parameter { detail: format!("{} is {why}", String::from_utf8_lossy(&text)) });
        }
    }
    Ok(())
}

/// "cached plan must not change result type".
fn is_outdated(failure: &tokio_postgres::Error) -> bool {
    failure
        .as_db_error()
        .is_some_and(|error| error.code().code() == "0A000" && error.routine() == Some("RevalidateCachedQuery"))
}

/// What a plan writes, or that it locks rows.
fn writing(plan: &serde_json::Value) -> Option<String> {
    match plan["Node Type"].as_str() {
        Some("ModifyTable") => {
            let operation = plan["Operation"].as_str().unwrap_or("change").to_uppercase();
            Some(format!("{operation} of table {:?}", plan["Relation Name"].as_str().unwrap_or_default()))
        }
        Some("LockRows") => Some("FOR UPDATE or FOR SHARE".to_owned()),
        _ => plan["Plans"].as_array()?.iter().find_map(writing),
    }
}

/// What is wrong with the SQL itself, and where. `is_preparing`: no value has a part in it.
fn place(failure: &tokio_postgres::Error, sql: &str, is_preparing: bool) -> Option<Error> {
    let error = failure.as_db_error().filter(|error| is_own(error.code().code()))?;
    let characters = match error.position() {
        Some(ErrorPosition::Original(position)) => Some(*position as usize),
        _ => None,
    };
    let before =
        |characters: usize| sql.chars().take(characters.saturating_sub(1)).filter(|letter| *letter == '\n').count();
    let hint = error.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
    // What a function says of its arguments (`to_tsquery`) may have the same codes, and no place.
    let code = error.code().code();
    let is_placed = error.position().is_some() || matches!(code, "25006" | "42501");
    let is_statement = is_preparing || is_statement(code) && is_placed;
    Some(Error::Sql { detail: format!("{}{hint}", error.message()), line: characters.map(before), is_statement })
}

/// Whether it is the query's own fault: its data (class 22), limits of a statement (54), or the statement.
fn is_own(code: &str) -> bool {
    matches!(code.get(..2), Some("22" | "54")) || is_statement(code)
}

/// Whether it is the statement's fault, whatever its values are: names that there are not, a write, what PostgreSQL does not do.
fn is_statement(code: &str) -> bool {
    matches!(code.get(..2), Some("42" | "3F")) || code == "25006" || code == "0A000"
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
    Error::Column { detail }
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

pub(super) fn give(row: &tokio_postgres::Row, readers: &mut [Reader], sink: &mut dyn ResultSink) -> Result<(), Error> {
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
