//! Values as they are in the SQLite file, owned, and their way to and from the wire's.

use headwater_protocol::stored::{Scratch, Stored, decode, encode};
use headwater_protocol::{Row, Type, Value, ValueRef};
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef as SqliteRef};

/// A value as SQLite has it. Text is bytes: a file may hold text that is not UTF-8.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Local {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl Local {
    /// Reads column `index` of a result row.
    pub(crate) fn read(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<Local> {
        Ok(match row.get_ref(index)? {
            SqliteRef::Null => Local::Null,
            SqliteRef::Integer(number) => Local::Integer(number),
            SqliteRef::Real(real) => Local::Real(real),
            SqliteRef::Text(text) => Local::Text(text.to_vec()),
            SqliteRef::Blob(bytes) => Local::Blob(bytes.to_vec()),
        })
    }

    pub(crate) fn stored(&self) -> Stored<'_> {
        match self {
            Local::Null => Stored::Null,
            Local::Integer(number) => Stored::Integer(*number),
            Local::Real(real) => Stored::Real(*real),
            Local::Text(text) => Stored::Text(text),
            Local::Blob(bytes) => Stored::Blob(bytes),
        }
    }
}

impl ToSql for Local {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(sqlite(self.stored())))
    }
}

/// A value of a result row, as the protocol knows it.
pub(crate) fn stored(value: SqliteRef<'_>) -> Stored<'_> {
    match value {
        SqliteRef::Null => Stored::Null,
        SqliteRef::Integer(number) => Stored::Integer(number),
        SqliteRef::Real(real) => Stored::Real(real),
        SqliteRef::Text(text) => Stored::Text(text),
        SqliteRef::Blob(bytes) => Stored::Blob(bytes),
    }
}

/// A stored value as rusqlite binds it.
pub(crate) fn sqlite(stored: Stored<'_>) -> SqliteRef<'_> {
    match stored {
        Stored::Null => SqliteRef::Null,
        Stored::Integer(number) => SqliteRef::Integer(number),
        Stored::Real(real) => SqliteRef::Real(real),
        Stored::Text(text) => SqliteRef::Text(text),
        Stored::Blob(bytes) => SqliteRef::Blob(bytes),
    }
}

/// A value of the wire, bound without a copy of ours.
pub(crate) struct Bound<'a>(pub(crate) Stored<'a>);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(sqlite(self.0)))
    }
}

/// A row as it travels.
pub(crate) fn to_wire(row: &[Local], types: &[Type]) -> Row {
    let mut scratch = Scratch::default();
    row.iter().zip(types).map(|(value, kind)| decode(value.stored(), *kind, &mut scratch).to_value()).collect()
}

/// A row as it is stored.
pub(crate) fn from_wire(row: &[Value]) -> Vec<Local> {
    row.iter().map(|value| one_from_wire(value.as_ref())).collect()
}

fn one_from_wire(value: ValueRef<'_>) -> Local {
    match encode(value, &mut Scratch::default()) {
        Stored::Null => Local::Null,
        Stored::Integer(number) => Local::Integer(number),
        Stored::Real(real) => Local::Real(real),
        Stored::Text(text) => Local::Text(text.to_vec()),
        Stored::Blob(bytes) => Local::Blob(bytes.to_vec()),
    }
}

/// How much of a long value people are shown.
const SHOWN_BYTES: usize = 1_000;
/// From where on a value is long.
const LONG_BYTES: usize = 1 << 20;

/// A row for people: JSON with one member a column; of a value longer than a mebibyte its beginning and its length.
pub(crate) fn readable<'n>(names: impl Iterator<Item = &'n str>, row: &[Local]) -> String {
    let members: Vec<String> = names
        .zip(row)
        .map(|(name, value)| {
            let value: serde_json::Value = match value {
                Local::Null => serde_json::Value::Null,
                Local::Integer(number) => (*number).into(),
                Local::Real(real) => {
                    serde_json::Number::from_f64(*real).map_or_else(|| real.to_string().into(), Into::into)
                }
                Local::Text(text) => shown(text, |text| String::from_utf8_lossy(text).into_owned()).into(),
                Local::Blob(bytes) => shown(bytes, |bytes| format!("x'{}'", hex::encode(bytes))).into(),
            };
            format!("{}:{value}", serde_json::Value::from(name))
        })
        .collect();
    format!("{{{}}}", members.join(","))
}

fn shown(bytes: &[u8], show: impl Fn(&[u8]) -> String) -> String {
    match bytes.get(..SHOWN_BYTES) {
        Some(beginning) if bytes.len() > LONG_BYTES => format!("{}… ({} bytes)", show(beginning), bytes.len()),
        _ => show(bytes),
    }
}
