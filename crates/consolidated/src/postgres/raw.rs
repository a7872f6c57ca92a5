//! Results in the server's binary form, borrowed from the driver's buffers.

use headwater_protocol::{Row, Value};
use tokio_postgres::Column;
use tokio_postgres::types::{FromSql, Kind, Type};

use super::codec::{Codec, Scratch};
use crate::Error;

/// The bytes of one value.
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Raw(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// The bytes of a column; `None` for NULL.
pub(super) fn bytes(row: &tokio_postgres::Row, column: usize) -> Result<Option<&[u8]>, Error> {
    match row.try_get::<_, Option<Raw<'_>>>(column) {
        Ok(raw) => Ok(raw.map(|raw| raw.0)),
        Err(error) => Err(unreadable(&format!("column {column}"), &error.to_string())),
    }
}

/// A row whose columns are of whatever types the database says.
pub(super) fn row(row: &tokio_postgres::Row) -> Result<Row, Error> {
    let mut scratch = Scratch::default();
    let columns = row.columns().iter().enumerate();
    columns.map(|(place, column)| value(column.type_(), column.name(), bytes(row, place)?, &mut scratch)).collect()
}

fn value(kind: &Type, name: &str, raw: Option<&[u8]>, scratch: &mut Scratch) -> Result<Value, Error> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    let codec = Codec::of(kind.oid()).or_else(|| text_like(kind));
    let decoded = match codec {
        Some(codec) => codec.decode(raw, scratch).map(|value| value.to_value()),
        None => number_like(kind, raw),
    };
    decoded.ok_or_else(|| of_type(name, kind))
}

/// Whether the values of these columns can be read: they are not looked at where there is no row.
pub(super) fn readable(columns: &[Column]) -> Result<(), Error> {
    let is_readable = |kind: &Type| {
        Codec::of(kind.oid()).or_else(|| text_like(kind)).is_some() || NUMBERS.contains(kind) || *kind == Type::VOID
    };
    match columns.iter().find(|column| !is_readable(column.type_())) {
        None => Ok(()),
        Some(column) => Err(of_type(column.name(), column.type_())),
    }
}

fn of_type(name: &str, kind: &Type) -> Error {
    unreadable(&format!("column {name:?}"), &format!("a value of type {kind} can't be read; cast it to text"))
}

/// Types whose binary form is their text.
pub(super) fn text_like(kind: &Type) -> Option<Codec> {
    let is_text =
        matches!(kind.kind(), Kind::Enum(_)) || matches!(*kind, Type::UNKNOWN | Type::CHAR) || kind.name() == "citext";
    is_text.then_some(Codec::Text)
}

/// Transaction numbers and OIDs of objects.
const NUMBERS: [Type; 4] = [Type::XID8, Type::XID, Type::REGCLASS, Type::REGTYPE];

/// Those, and `void`.
fn number_like(kind: &Type, raw: &[u8]) -> Option<Value> {
    match *kind {
        Type::VOID => Some(Value::Null),
        Type::XID8 => Some(Value::Int(i64::from_be_bytes(raw.try_into().ok()?))),
        Type::XID | Type::REGCLASS | Type::REGTYPE => {
            Some(Value::Int(i64::from(u32::from_be_bytes(raw.try_into().ok()?))))
        }
        _ => None,
    }
}

/// The server sent what its own catalogue does not say: a defect, of ours or of an extension's.
pub(super) fn unreadable(what: &str, why: &str) -> Error {
    Error::Database { context: format!("reading {what} of a result"), detail: why.to_owned() }
}
