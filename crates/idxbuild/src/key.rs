//! Keys of an index as bytes whose order is the index's order, from which the index's record comes back.
//!
//! | value | bytes |
//! |---|---|
//! | NULL | `05` |
//! | number | `15`, then as in [`number`](crate::number) |
//! | text | `25`, its folded bytes with `00 FF` for each `00`, then `00` |
//! | bytes | `35`, then in the same way |
//! | rowid, the last | `80` and its length, its bytes without leading ones; `7F` less its length and its bytes where it is negative |
//!
//! All bytes of a descending column are inverted. Where values don't come back from that (a text that was folded, a double that is an
//! integer), the whole record follows after the rowid; rowids differ, so it never takes part in the order.
//!
//! For example `('ab', -1)` in row 5, the second column descending: `25 61 62 00 | EA C0 0F FF FF FF FF FF FF | 81 05`.
//!
//! # Caveats
//! SQLite would apply a column's affinity to what is stored; where that would change anything ([`KeyColumn::value`] says when), the index is
//! left to SQLite.

use crate::collation::Collation;
use crate::header::Encoding;
use crate::number::{self, Number};
use crate::record::{Fields, Value, Writer};

const NULL: u8 = 0x05;
const NUMBER: u8 = 0x15;
const TEXT: u8 = 0x25;
const BLOB: u8 = 0x35;

/// What a column's declared type makes of values (<https://sqlite.org/datatype3.html#type_affinity>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// Nothing.
    Blob,
    /// Texts of numbers.
    Text,
    /// Numbers of texts that are numbers, and integers of doubles that are integers.
    Numeric,
}

impl Affinity {
    /// That of a declared type.
    pub(crate) fn of(declared: &str, is_strict: bool) -> Affinity {
        let declared = declared.to_ascii_uppercase();
        let has = |part: &str| declared.contains(part);
        if has("INT") {
            Affinity::Numeric
        } else if has("CHAR") || has("CLOB") || has("TEXT") {
            Affinity::Text
        } else if has("BLOB") || declared.is_empty() || (is_strict && declared == "ANY") {
            Affinity::Blob
        } else {
            Affinity::Numeric
        }
    }
}

/// A value with bytes of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OwnValue {
    /// NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// A double.
    Real(f64),
    /// A text.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

impl OwnValue {
    /// The same without them.
    pub(crate) fn lend(&self) -> Value<'_> {
        match self {
            OwnValue::Null => Value::Null,
            OwnValue::Integer(number) => Value::Integer(*number),
            OwnValue::Real(number) => Value::Real(*number),
            OwnValue::Text(bytes) => Value::Text(bytes),
            OwnValue::Blob(bytes) => Value::Blob(bytes),
        }
    }
}

/// Where a column's value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// It is the rowid.
    Rowid,
    /// At this place of the row.
    Stored {
        /// The place.
        place: usize,
        /// What rows have that were written before the column was added; `None` where no row may lack it.
        missing: Option<OwnValue>,
    },
}

/// A column of an index.
#[derive(Clone, Debug)]
pub(crate) struct KeyColumn {
    /// What the table calls it.
    pub(crate) name: String,
    /// Where its value is.
    pub(crate) source: Source,
    /// What it makes of values.
    pub(crate) affinity: Affinity,
    /// How its texts compare.
    pub(crate) collation: Collation,
    /// Whether the greatest is first.
    pub(crate) descending: bool,
}

impl KeyColumn {
    /// The value of a row, as the index has it; an error says what only SQLite can judge.
    #[inline]
    pub(crate) fn value<'a>(
        &'a self,
        fields: &Fields,
        record: &'a [u8],
        rowid: i64,
        encoding: Encoding,
    ) -> Result<Value<'a>, &'static str> {
        let value = match &self.source {
            Source::Rowid => return Ok(Value::Integer(rowid)),
            Source::Stored { place, missing } => match fields.value(*place, record) {
                Some(value) => value,
                None => missing.as_ref().ok_or("a row without a column that has no constant default")?.lend(),
            },
        };
        self.settled(value, encoding)
    }

    /// What an index has of a value of its table; an error says what only SQLite can judge.
    #[inline]
    pub(crate) fn settled<'a>(&self, value: Value<'a>, encoding: Encoding) -> Result<Value<'a>, &'static str> {
        match (self.affinity, value) {
            (Affinity::Numeric, Value::Real(real)) => Ok(as_integer(real).map_or(value, Value::Integer)),
            (Affinity::Numeric, Value::Text(text)) if is_number(text, encoding) => {
                Err("a text that is a number in a column of numbers")
            }
            (Affinity::Text, Value::Integer(_) | Value::Real(_)) => Err("a number in a column of texts"),
            _ => Ok(value),
        }
    }
}

/// The integer that a column of numbers stores for a double, if any.
fn as_integer(real: f64) -> Option<i64> {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    (real.fract() == 0.0 && real.abs() < BEYOND).then_some(real as i64)
}

/// Whether a text reads as a number, so that SQLite would make one of it.
fn is_number(text: &[u8], encoding: Encoding) -> bool {
    let ascii: Vec<u8> = match encoding {
        Encoding::Utf8 => return reads_as_number(text),
        Encoding::Utf16Le => text.chunks(2).map(|unit| if unit.get(1) == Some(&0) { unit[0] } else { b'?' }).collect(),
        Encoding::Utf16Be => {
            text.chunks(2).map(|unit| if unit[0] == 0 { unit.get(1).copied().unwrap_or(b'?') } else { b'?' }).collect()
        }
    };
    reads_as_number(&ascii)
}

/// Spaces, a sign, digits with or without a point, an exponent, spaces.
fn reads_as_number(text: &[u8]) -> bool {
    let is_space = |byte: &u8| b" \t\n\x0b\x0c\r".contains(byte);
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let unsigned = |text: &[u8]| usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let start = text.iter().take_while(|byte| is_space(byte)).count();
    let mut rest = &text[start..];
    rest = &rest[unsigned(rest)..];
    let whole = digits(rest);
    rest = &rest[whole..];
    let mut fraction = 0;
    if rest.first() == Some(&b'.') {
        fraction = digits(&rest[1..]);
        rest = &rest[1 + fraction..];
    }
    if whole + fraction == 0 {
        return false;
    }
    if matches!(rest.first(), Some(b'e' | b'E')) {
        let exponent = &rest[1..];
        let exponent = &exponent[unsigned(exponent)..];
        let length = digits(exponent);
        if length == 0 {
            return false;
        }
        rest = &exponent[length..];
    }
    rest.iter().all(is_space)
}

/// Appends the bytes of one value. False where the value does not come back from them.
#[inline]
pub(crate) fn write_value(
    out: &mut Vec<u8>,
    value: Value<'_>,
    column: &KeyColumn,
    encoding: Encoding,
) -> Result<bool, &'static str> {
    let began = out.len();
    let mut comes_back = true;
    match value {
        Value::Null => out.push(NULL),
        Value::Integer(integer) => {
            out.push(NUMBER);
            number::write_integer(out, integer);
        }
        Value::Real(real) => {
            out.push(NUMBER);
            number::write_real(out, real);
            comes_back = number::comes_back(real);
        }
        Value::Text(text) => {
            out.push(TEXT);
            if column.collation == Collation::Binary {
                write_bytes(out, text);
            } else {
                let folded = column.collation.fold(text, encoding)?;
                write_bytes(out, &folded);
                comes_back = *folded == *text;
            }
        }
        Value::Blob(bytes) => {
            out.push(BLOB);
            write_bytes(out, bytes);
        }
    }
    if column.descending {
        out[began..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    Ok(comes_back)
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.contains(&0) {
        for piece in bytes.split_inclusive(|&byte| byte == 0) {
            out.extend_from_slice(piece);
            if piece.ends_with(&[0]) {
                out.push(0xFF);
            }
        }
    } else {
        out.extend_from_slice(bytes);
    }
    out.push(0);
}

/// Appends the rowid, which ends every key.
#[inline]
pub(crate) fn write_rowid(out: &mut Vec<u8>, rowid: i64) {
    let magnitude = if rowid < 0 { !rowid } else { rowid };
    let length = (64 - magnitude.leading_zeros() as usize).div_ceil(8);
    out.push(if rowid < 0 { 0x7F - length as u8 } else { 0x80 + length as u8 });
    out.extend_from_slice(&rowid.to_be_bytes()[8 - length..]);
}

/// Takes a key apart into the record that the index stores (appended to `record`). Gives where its columns end and the rowid begins,
/// and whether one of the columns is NULL. The key is one of ours: it was written by this module.
#[inline]
pub(crate) fn read(key: &[u8], descending: &[bool], writer: &mut Writer, record: &mut Vec<u8>) -> (usize, bool) {
    writer.clear();
    let mut at = 0;
    let mut has_null = false;
    for &descending in descending {
        let flip = if descending { 0xFF } else { 0 };
        let tag = key[at] ^ flip;
        at += 1;
        match tag {
            NULL => {
                writer.null();
                has_null = true;
            }
            NUMBER => {
                let (number, length) = number::read(&key[at..], flip);
                at += length;
                match number {
                    Number::Integer(integer) => writer.integer(integer),
                    Number::Real(real) => writer.real(real),
                }
            }
            _ => {
                let (began, body) = writer.begin_bytes();
                at += read_bytes(&key[at..], flip, body);
                writer.end_bytes(began, tag == TEXT);
            }
        }
    }
    let columns = at;
    let (rowid, length) = read_rowid(&key[at..]);
    writer.integer(rowid);
    at += length;
    if at < key.len() {
        record.extend_from_slice(&key[at..]);
    } else {
        writer.finish(record);
    }
    (columns, has_null)
}

#[inline]
fn read_bytes(key: &[u8], flip: u8, out: &mut Vec<u8>) -> usize {
    let began = out.len();
    let mut at = 0;
    loop {
        let length = key[at..].iter().position(|&byte| byte == flip).unwrap_or(key.len() - at - 1);
        out.extend_from_slice(&key[at..at + length]);
        at += length + 1;
        if key.get(at) != Some(&!flip) {
            break;
        }
        out.push(flip);
        at += 1;
    }
    if flip != 0 {
        out[began..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    at
}

#[inline]
fn read_rowid(key: &[u8]) -> (i64, usize) {
    let (length, fill) = if key[0] < 0x80 { (0x7F - key[0], -1_i64) } else { (key[0] - 0x80, 0) };
    let length = usize::from(length);
    let rowid = key[1..=length].iter().fold(fill, |rowid, &byte| rowid << 8 | i64::from(byte));
    (rowid, length + 1)
}
