//! Rows as bytes.
//!
//! A row begins with two bits for each column, four columns a byte from the low bits up (unused bits are 0):
//!
//! | state | meaning | bytes that follow, in column order |
//! |---|---|---|
//! | 0 | NULL | none |
//! | 1 | a value of the column's type | the value |
//! | 2 | a value of another type | the type's number (1 byte), the value |
//! | 3 | the same as in the image before it (only in an update's new image) | none |
//!
//! and values are
//!
//! | type | bytes |
//! |---|---|
//! | bool | 1 byte, 0 or 1 |
//! | int, date, timestamp, timestamptz | zigzag varint |
//! | time | zigzag varint, microseconds |
//! | real | 8 bytes, IEEE 754, little-endian |
//! | decimal | see [`crate::decimal`] |
//! | text, bytes, json | varint length, bytes |
//! | uuid | 16 bytes |
//!
//! `(7, NULL, 'hi')` of types int, real, text is `11 0e 02 68 69`: states 1, 0, 1 in the byte `01 00 01` binary (0x11); 7 as zigzag
//! 14; length 2 and the text.

use crate::decimal::DecimalRef;
use crate::value::{Row, Type, Value, ValueRef};
use crate::wire::{DecodeError, Reader, Write};

const NULL: u8 = 0;
const TYPED: u8 = 1;
const TAGGED: u8 = 2;
const SAME: u8 = 3;

/// Appends one row, value by value, straight to a buffer.
///
/// Every column must be pushed before [`RowWriter::finish`]; pushing too many or too few is our own fault and panics.
#[derive(Debug)]
pub struct RowWriter<'a> {
    out: &'a mut Vec<u8>,
    types: &'a [Type],
    states: usize,
    column: usize,
}

impl<'a> RowWriter<'a> {
    /// Begins a row of columns of these types at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, types: &'a [Type]) -> Self {
        let states = out.len();
        out.resize(states + types.len().div_ceil(4), 0);
        RowWriter { out, types, states, column: 0 }
    }

    /// Appends the next column's value.
    pub fn push(&mut self, value: ValueRef<'_>) {
        let Some(kind) = value.kind() else {
            return self.state(NULL);
        };
        if kind == self.types[self.column] {
            self.state(TYPED);
        } else {
            self.state(TAGGED);
            self.out.push(kind as u8);
        }
        put_value(self.out, value);
    }

    /// Says that the next column is as in the image before.
    pub fn push_same(&mut self) {
        self.state(SAME);
    }

    /// Ends the row.
    pub fn finish(self) {
        assert_eq!(self.column, self.types.len(), "a row has a value for each column");
    }

    fn state(&mut self, state: u8) {
        assert!(self.column < self.types.len(), "a row has no more values than columns");
        self.out[self.states + self.column / 4] |= state << (self.column % 4 * 2);
        self.column += 1;
    }
}

/// Appends a whole row.
pub fn put_row(out: &mut Vec<u8>, types: &[Type], row: &[Value]) {
    let mut writer = RowWriter::new(out, types);
    for value in row {
        writer.push(value.as_ref());
    }
    writer.finish();
}

/// Appends an update's new image: columns that equal `old` to the byte are left out.
pub fn put_new_image(out: &mut Vec<u8>, types: &[Type], old: &[Value], new: &[Value]) {
    let mut writer = RowWriter::new(out, types);
    for (old, new) in old.iter().zip(new) {
        match (old, new) {
            (Value::Real(a), Value::Real(b)) if a.to_bits() == b.to_bits() => writer.push_same(),
            (Value::Real(_), Value::Real(_)) => writer.push(new.as_ref()),
            _ if old == new => writer.push_same(),
            _ => writer.push(new.as_ref()),
        }
    }
    writer.finish();
}

/// Reads the rows of one table header, reusing nothing and allocating nothing: values borrow from the frame.
///
/// What it is made of is inlined down to the varint: a value that is handed up through memory call by call waits at each for its own
/// stores, and rows are read a third slower (`lab.generator_rows_per_s`).
#[derive(Debug)]
pub struct RowReader<'a, 'r> {
    reader: &'r mut Reader<'a>,
    types: &'r [Type],
    states: &'a [u8],
    column: usize,
    /// The most bytes in one value.
    value_bytes_max: usize,
}

/// What a row says of one column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Its value.
    Value(ValueRef<'a>),
    /// The same as in the image before.
    Same,
}

impl<'a, 'r> RowReader<'a, 'r> {
    /// Begins to read a row of columns of these types; no value may be longer than `value_bytes_max`.
    pub fn new(reader: &'r mut Reader<'a>, types: &'r [Type], value_bytes_max: usize) -> Result<Self, DecodeError> {
        let states = reader.take(types.len().div_ceil(4), "row states")?;
        let used = types.len() % 4;
        if let (1..=3, Some(last)) = (used, states.last())
            && last >> (used * 2) != 0
        {
            return Err(DecodeError::Undefined { field: "row states", actual: u64::from(*last) });
        }
        Ok(RowReader { reader, types, states, column: 0, value_bytes_max })
    }

    /// The next column; `None` after the last.
    #[inline]
    pub fn next_cell(&mut self) -> Result<Option<Cell<'a>>, DecodeError> {
        let Some(&kind) = self.types.get(self.column) else {
            return Ok(None);
        };
        let state = self.states[self.column / 4] >> (self.column % 4 * 2) & 3;
        self.column += 1;
        Ok(Some(match state {
            NULL => Cell::Value(ValueRef::Null),
            TYPED => Cell::Value(self.value(kind)?),
            TAGGED => {
                let number = self.reader.u8("value type")?;
                let tagged = Type::from_wire(number)
                    .filter(|tagged| *tagged != kind)
                    .ok_or(DecodeError::Undefined { field: "value type", actual: u64::from(number) })?;
                Cell::Value(self.value(tagged)?)
            }
            _ => Cell::Same,
        }))
    }

    #[expect(clippy::inline_always, reason = "handed up through memory, each value waits for its own stores")]
    #[inline(always)]
    fn value(&mut self, kind: Type) -> Result<ValueRef<'a>, DecodeError> {
        let reader = &mut *self.reader;
        Ok(match kind {
            Type::Bool => match reader.u8("bool")? {
                0 => ValueRef::Bool(false),
                1 => ValueRef::Bool(true),
                other => return Err(DecodeError::Undefined { field: "bool", actual: u64::from(other) }),
            },
            Type::Int => ValueRef::Int(reader.signed("int")?),
            Type::Real => ValueRef::Real(f64::from_le_bytes(reader.array("real")?)),
            Type::Decimal => ValueRef::Decimal(DecimalRef::read(reader)?),
            Type::Text => ValueRef::Text(reader.bytes(self.value_bytes_max, "text")?),
            Type::Bytes => ValueRef::Bytes(reader.bytes(self.value_bytes_max, "bytes")?),
            Type::Date => ValueRef::Date(reader.signed("date")?),
            Type::Time => ValueRef::Time(reader.signed("time")?),
            Type::Timestamp => ValueRef::Timestamp(reader.signed("timestamp")?),
            Type::Timestamptz => ValueRef::Timestamptz(reader.signed("timestamptz")?),
            Type::Uuid => ValueRef::Uuid(reader.array("uuid")?),
            Type::Json => ValueRef::Json(reader.bytes(self.value_bytes_max, "json")?),
        })
    }
}

/// Reads a whole row that owns its values; a "same" column is taken from `before`, and is an error where there is none.
pub fn read_row(
    reader: &mut Reader<'_>,
    types: &[Type],
    value_bytes_max: usize,
    before: Option<&[Value]>,
) -> Result<Row, DecodeError> {
    let mut cells = RowReader::new(reader, types, value_bytes_max)?;
    let mut row = Row::with_capacity(types.len());
    while let Some(cell) = cells.next_cell()? {
        row.push(match cell {
            Cell::Value(value) => value.to_value(),
            Cell::Same => before
                .and_then(|before| before.get(row.len()).cloned())
                .ok_or(DecodeError::Undefined { field: "row state", actual: u64::from(SAME) })?,
        });
    }
    Ok(row)
}

/// Appends one value of its own type, without a tag.
fn put_value(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => {}
        ValueRef::Bool(v) => out.push(u8::from(v)),
        ValueRef::Real(v) => out.extend_from_slice(&v.to_le_bytes()),
        ValueRef::Decimal(v) => out.extend_from_slice(v.packed()),
        ValueRef::Text(v) | ValueRef::Bytes(v) | ValueRef::Json(v) => out.put_bytes(v),
        ValueRef::Int(v)
        | ValueRef::Date(v)
        | ValueRef::Time(v)
        | ValueRef::Timestamp(v)
        | ValueRef::Timestamptz(v) => out.put_signed(v),
        ValueRef::Uuid(v) => out.extend_from_slice(&v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_module() {
        let types = [Type::Int, Type::Real, Type::Text];
        let row = vec![Value::Int(7), Value::Null, Value::text("hi")];
        let mut out = Vec::new();
        put_row(&mut out, &types, &row);
        assert_eq!(out, [0x11, 0x0e, 0x02, b'h', b'i']);
        assert_eq!(read_row(&mut Reader::new(&out), &types, 100, None), Ok(row));
    }

    #[test]
    fn an_update_sends_only_what_changed() {
        let types = [Type::Int, Type::Text];
        let old = vec![Value::Int(1), Value::text("a long text that stays")];
        let new = vec![Value::Int(2), Value::text("a long text that stays")];
        let mut out = Vec::new();
        put_new_image(&mut out, &types, &old, &new);
        assert_eq!(out, [0x0d, 0x04]);
        assert_eq!(read_row(&mut Reader::new(&out), &types, 100, Some(&old)), Ok(new));
        assert!(read_row(&mut Reader::new(&out), &types, 100, None).is_err());
    }

    #[test]
    fn a_value_of_another_type_is_tagged() {
        let types = [Type::Int];
        let row = vec![Value::text("x")];
        let mut out = Vec::new();
        put_row(&mut out, &types, &row);
        assert_eq!(out, [0x02, Type::Text as u8, 1, b'x']);
        assert_eq!(read_row(&mut Reader::new(&out), &types, 100, None), Ok(row));
        assert!(
            read_row(&mut Reader::new(&[0x02, Type::Int as u8, 2]), &types, 100, None).is_err(),
            "tagged as its own type"
        );
        assert!(read_row(&mut Reader::new(&[0x04]), &types, 100, None).is_err(), "a state beyond the columns");
    }
}
