//! Runs the user's own SQL in the place of generated steps: `docs/scripts.md` says what each is given and what it gives.
//!
//! An upload's scripts run row by row between the savepoints of its batches, so what one refuses is found as any other refusal is. The rows
//! of a run go out one behind the other, and no row waits for the answer of the one before it ([`Connection::execute_each`]). In PostgreSQL each parameter is cast to its column's type in the model (text and JSON aside, which take the type that is asked of them):
//! otherwise `greatest(:r.count, :c.count)` would compare text.

use headwater_model::Table;
use headwater_model::script::{Image, Parameter, Script, Step};
use headwater_model::sql::with_parameters;
use headwater_protocol::message::{Refusal, RefusalCode};
use headwater_protocol::stored::{Scratch, Stored, decode};
use headwater_protocol::{Row, Type, Value, text};

use crate::{Connection, Dialect, Error, TablePlan};

/// 1900-01-01, before anything: `:s.last_download` of a first download.
pub(crate) const LONG_AGO: i64 = -2_208_988_800_000_000;

/// Who syncs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Actor {
    pub(crate) user: String,
    pub(crate) remote_id: [u8; 16],
}

/// What a script's parameters are filled from; a row that is not there gives NULLs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given<'a> {
    pub(crate) new: Option<&'a [Value]>,
    pub(crate) old: Option<&'a [Value]>,
    pub(crate) stored: Option<&'a [Value]>,
    /// Microseconds since 1970.
    pub(crate) last_download: i64,
}

/// A script as a database takes it.
pub(crate) struct Prepared<'a> {
    table: &'a TablePlan,
    step: Step,
    sql: String,
    parameters: Vec<Parameter>,
}

impl<'a> Prepared<'a> {
    /// `lock`: the rows that it reads are held against other writers.
    pub(crate) fn new(
        dialect: Dialect,
        table: &'a TablePlan,
        script: &Script,
        lock: bool,
    ) -> Result<Prepared<'a>, Error> {
        let (sql, parameters) = positional(dialect, &table.table, script).map_err(|fault| Error::Setup {
            what: format!("{} of table {} {fault}", script.step.name(), table.table.name),
            mend: format!("mend {}; `headwater check` names all such faults", script.file),
        })?;
        let sql = match dialect {
            Dialect::Postgres if lock => format!("SELECT * FROM (\n{sql}\n) AS stored FOR UPDATE"),
            _ => sql,
        };
        Ok(Prepared { table, step: script.step, sql, parameters })
    }

    fn values(&self, dialect: Dialect, actor: &Actor, given: &Given<'_>) -> Vec<Value> {
        let column = |image: Image, place: usize| {
            let row = match image {
                Image::New => given.new,
                Image::Old => given.old,
                Image::Stored => given.stored,
            };
            row.and_then(|row| row.get(place)).cloned().unwrap_or(Value::Null)
        };
        let value = |parameter: &Parameter| match *parameter {
            Parameter::Column(image, place) => column(image, place),
            Parameter::User => Value::text(actor.user.as_str()),
            Parameter::RemoteId => Value::text(uuid::Uuid::from_bytes(actor.remote_id).to_string()),
            Parameter::LastDownload => moment(dialect, given.last_download),
        };
        self.parameters.iter().map(value).collect()
    }

    /// The names of the columns that it gives.
    pub(crate) fn describe(&self, connection: &mut dyn Connection) -> Result<Vec<String>, Error> {
        connection.describe(&self.sql)
    }

    /// Runs it with each of these, in their order, for what it does.
    pub(crate) fn run_each<'g>(
        &self,
        connection: &mut dyn Connection,
        actor: &Actor,
        all: impl Iterator<Item = Given<'g>>,
    ) -> Result<(), Error> {
        let dialect = connection.dialect();
        let mut values = all.map(|given| self.values(dialect, actor, &given));
        connection.execute_each(&self.sql, &mut values).map_err(|error| self.fault(error))
    }

    /// Of each of these, in their order: its one row of the table's columns, if it gives one.
    pub(crate) fn row_of_each<'g>(
        &self,
        connection: &mut dyn Connection,
        actor: &Actor,
        all: impl Iterator<Item = Given<'g>>,
    ) -> Result<Vec<Option<Row>>, Error> {
        let dialect = connection.dialect();
        let mut values = all.map(|given| self.values(dialect, actor, &given));
        let mut found = Vec::new();
        let queried = connection.query_each(&self.sql, &mut values, &mut |rows| {
            found.push(self.one(dialect, rows)?);
            Ok(())
        });
        queried.map_err(|error| self.fault(error))?;
        Ok(found)
    }

    fn one(&self, dialect: Dialect, mut rows: Vec<Row>) -> Result<Option<Row>, Error> {
        if rows.len() > 1 {
            return Err(self.refusal(&format!("gives {} rows, expected one or none", rows.len())));
        }
        let row = rows.pop().map(|row| typed(dialect, row, &self.table.types));
        row.transpose().map_err(|fault| self.refusal(&fault))
    }

    /// Hands on its rows, of columns of these types.
    pub(crate) fn each(
        &self,
        connection: &mut dyn Connection,
        actor: &Actor,
        given: &Given<'_>,
        types: &[Type],
        each: &mut dyn FnMut(Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let dialect = connection.dialect();
        let values = self.values(dialect, actor, given);
        connection.each_row(&self.sql, &values, &mut |row| {
            let row = typed(dialect, row, types).map_err(|fault| Error::Setup {
                what: format!("{} of table {} {fault}", self.step.name(), self.table.table.name),
                mend: "mend the script; `headwater check` says what it should give".to_owned(),
            })?;
            each(row)
        })
    }

    /// What fails in running a script fails for the row that it is run with; what fails before that is the setup.
    fn fault(&self, error: Error) -> Error {
        match error {
            Error::Database { context, detail } if !context.starts_with("preparing") => {
                self.refusal(&format!("fails: {context}: {detail}"))
            }
            other => other,
        }
    }

    fn refusal(&self, detail: &str) -> Error {
        let message = format!("script {} of table {}", self.step.name(), self.table.table.name);
        Error::Refused {
            refusal: Refusal { code: RefusalCode::Trigger, message: message.clone() },
            detail: format!("{message} {detail}"),
        }
    }
}

/// The script with `?1`, `?2`, ... for its named parameters, and what they stand for.
pub(crate) fn positional(dialect: Dialect, table: &Table, script: &Script) -> Result<(String, Vec<Parameter>), String> {
    let mut parameters: Vec<Parameter> = Vec::new();
    let mut fault = None;
    let sql = with_parameters(&script.sql, |name| {
        let parameter = match table.script_parameter(script.step, name) {
            Ok(parameter) => parameter,
            Err(why) => {
                fault.get_or_insert(why);
                return name.to_owned();
            }
        };
        let place = parameters.iter().position(|known| *known == parameter).unwrap_or_else(|| {
            parameters.push(parameter);
            parameters.len() - 1
        });
        match cast(table, parameter).filter(|_| dialect == Dialect::Postgres) {
            Some(kind) => format!("CAST(?{} AS {kind})", place + 1),
            None => format!("?{}", place + 1),
        }
    });
    fault.map_or(Ok((sql, parameters)), Err)
}

fn cast(table: &Table, parameter: Parameter) -> Option<&'static str> {
    match parameter {
        Parameter::Column(_, place) => match table.columns.get(place)?.kind.base {
            Type::Bool => Some("bool"),
            Type::Int => Some("int8"),
            Type::Real => Some("float8"),
            Type::Decimal => Some("numeric"),
            Type::Bytes => Some("bytea"),
            Type::Date => Some("date"),
            Type::Time => Some("time"),
            Type::Timestamp => Some("timestamp"),
            Type::Timestamptz => Some("timestamptz"),
            Type::Uuid => Some("uuid"),
            Type::Text | Type::Json => None,
        },
        Parameter::User | Parameter::RemoteId => Some("text"),
        Parameter::LastDownload => Some("timestamptz"),
    }
}

/// In SQLite as `CURRENT_TIMESTAMP` spells it.
fn moment(dialect: Dialect, micros: i64) -> Value {
    match dialect {
        Dialect::Postgres => Value::Timestamptz(micros),
        Dialect::Sqlite => {
            let mut out = String::new();
            text::write_timestamp(&mut out, micros);
            Value::text(out)
        }
    }
}

fn typed(dialect: Dialect, row: Row, types: &[Type]) -> Result<Row, String> {
    if row.len() != types.len() {
        return Err(format!("gives {} columns, expected {}", row.len(), types.len()));
    }
    let read = |(place, (value, kind)): (usize, (Value, &Type))| match dialect {
        Dialect::Sqlite => Ok(from_sqlite(&value, *kind)),
        Dialect::Postgres => text::coerce(&value, *kind)
            .ok_or_else(|| format!("gives a value in column {} that is no {kind:?}", place + 1)),
    };
    row.into_iter().zip(types).enumerate().map(read).collect()
}

/// A value without a model, as its column's type reads it.
fn from_sqlite(value: &Value, kind: Type) -> Value {
    let stored = match value {
        Value::Int(number) => Stored::Integer(*number),
        Value::Real(real) => Stored::Real(*real),
        Value::Text(bytes) => Stored::Text(bytes),
        Value::Bytes(bytes) => Stored::Blob(bytes),
        _ => Stored::Null,
    };
    decode(stored, kind, &mut Scratch::default()).to_value()
}
