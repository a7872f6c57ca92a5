//! Values between rusqlite and the wire.

use headwater_protocol::message::RefusalCode;
use headwater_protocol::stored::{Scratch, Stored, decode, encode};
use headwater_protocol::{Row, Type, Value, ValueRef};
use rusqlite::Statement;
use rusqlite::types::{ToSqlOutput, ValueRef as SqlRef};

use super::error::{refusal, sort};
use crate::{Error, TablePlan};

/// A stored value as rusqlite binds it.
struct Bound<'a>(Stored<'a>);

impl rusqlite::ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Stored::Null => SqlRef::Null,
            Stored::Integer(number) => SqlRef::Integer(number),
            Stored::Real(real) => SqlRef::Real(real),
            Stored::Text(text) => SqlRef::Text(text),
            Stored::Blob(bytes) => SqlRef::Blob(bytes),
        }))
    }
}

/// Binds a value to a parameter, counted from 1.
pub(super) fn bind(
    statement: &mut Statement<'_>,
    place: usize,
    value: ValueRef<'_>,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let stored = encode(value, scratch);
    statement.raw_bind_parameter(place, Bound(stored)).map_err(|error| sort(error, "binding a value"))
}

/// Binds values to the parameters from 1 on.
pub(super) fn bind_all<'v>(
    statement: &mut Statement<'_>,
    values: impl IntoIterator<Item = &'v Value>,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    values.into_iter().enumerate().try_for_each(|(index, value)| bind(statement, index + 1, value.as_ref(), scratch))
}

/// Refuses a row with a value that its column can't give back: one of another type than the column's which SQLite has no storage
/// class for. No remote sends such a row.
pub(super) fn check_storable(table: &TablePlan, row: &[Value]) -> Result<(), Error> {
    for (column, value) in table.table.columns.iter().zip(row) {
        let kind = value.as_ref().kind();
        let fits = kind.is_none_or(|kind| {
            kind == column.kind.base || matches!(kind, Type::Int | Type::Real | Type::Text | Type::Bytes)
        });
        if !fits {
            let text = format!("column {} takes no value of another type than {}", column.name, column.kind);
            return Err(refusal(RefusalCode::Data, &text, format!("{kind:?} in {}", table.table.name)));
        }
    }
    Ok(())
}

/// A value of a result, as SQLite has it.
pub(super) fn stored<'r>(row: &'r rusqlite::Row<'_>, place: usize) -> Result<Stored<'r>, Error> {
    Ok(match row.get_ref(place).map_err(|error| sort(error, "reading a value"))? {
        SqlRef::Null => Stored::Null,
        SqlRef::Integer(number) => Stored::Integer(number),
        SqlRef::Real(real) => Stored::Real(real),
        SqlRef::Text(text) => Stored::Text(text),
        SqlRef::Blob(bytes) => Stored::Blob(bytes),
    })
}

/// A value of a result in a column of this type.
pub(super) fn typed<'r>(
    row: &'r rusqlite::Row<'_>,
    place: usize,
    kind: Type,
    scratch: &'r mut Scratch,
) -> Result<ValueRef<'r>, Error> {
    Ok(decode(stored(row, place)?, kind, scratch))
}

/// The columns from `first` on, of these types.
pub(super) fn typed_row(
    row: &rusqlite::Row<'_>,
    first: usize,
    types: &[Type],
    scratch: &mut Scratch,
) -> Result<Row, Error> {
    types.iter().enumerate().map(|(index, kind)| Ok(typed(row, first + index, *kind, scratch)?.to_value())).collect()
}

/// A value of a result without a model.
pub(super) fn plain(row: &rusqlite::Row<'_>, place: usize) -> Result<Value, Error> {
    Ok(match stored(row, place)? {
        Stored::Null => Value::Null,
        Stored::Integer(number) => Value::Int(number),
        Stored::Real(real) => Value::Real(real),
        Stored::Text(text) => Value::Text(text.to_vec()),
        Stored::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}
