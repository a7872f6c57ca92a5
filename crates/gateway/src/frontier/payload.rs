//! Rows in fields, big-endian: a type byte, and a value.
//!
//! | byte | value | |
//! |---|---|---|
//! | 0 | 1 byte | a byte |
//! | 1 | 4 bytes | int4 |
//! | 2 | 8 bytes | int8 |
//! | 3 | 4 bytes | float |
//! | 4 | 8 bytes | double |
//! | 5 | 8 bytes | a time: milliseconds since 1970, UTC |
//! | 6 | 4 bytes of length, so many bytes | text or bytes |
//! | 7 | none | end of record |
//! | 0x80 + one of 0 to 6 | none | NULL |
//!
//! The first record is the header: name and type of each column. What servers send is all of type 6, as text; clients written in Python take
//! nothing else.

use thiserror::Error;

const TEXT: u8 = 6;
const END: u8 = 7;
const NULL: u8 = 0x80;

/// Writes a payload.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    bytes: Vec<u8>,
    /// Bytes that were taken, and rows that were ended.
    taken: u64,
    ended: u64,
}

impl Rows {
    /// Begins with the header: name and type of each column, a type by Oracle's name (`NUMBER(10)`).
    pub fn begin<'c>(columns: impl IntoIterator<Item = (&'c str, &'c str)>) -> Rows {
        let mut rows = Rows::default();
        for (name, kind) in columns {
            rows.value(Some(name.as_bytes()));
            rows.value(Some(kind.as_bytes()));
        }
        rows.bytes.push(END);
        rows
    }

    /// A file's content: bytes, and one end of record.
    pub fn of_bytes(bytes: &[u8]) -> Rows {
        let mut rows = Rows::default();
        rows.value(Some(bytes));
        rows.end_row();
        rows
    }

    /// Adds the next value of a row, as text or as raw bytes; `None`: NULL. Longer ones than 2 GiB are none.
    pub fn value(&mut self, value: Option<&[u8]>) {
        match value.and_then(|bytes| Some((bytes, i32::try_from(bytes.len()).ok()?))) {
            Some((bytes, length)) => {
                self.bytes.push(TEXT);
                self.bytes.extend(length.to_be_bytes());
                self.bytes.extend(bytes);
            }
            None => self.bytes.push(NULL | TEXT),
        }
    }

    /// Ends a row.
    pub fn end_row(&mut self) {
        self.bytes.push(END);
        self.ended += 1;
    }

    /// What has been written since it was taken last.
    pub fn take(&mut self) -> Vec<u8> {
        self.taken += self.bytes.len() as u64;
        std::mem::take(&mut self.bytes)
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.bytes.len()
    }

    /// Rows, the header aside, and bytes, the header included.
    pub fn size(&self) -> (u64, u64) {
        (self.ended, self.taken + self.bytes.len() as u64)
    }
}

/// A field of a payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// Type 0.
    Byte(u8),
    /// Type 1.
    Int4(i32),
    /// Type 2.
    Int8(i64),
    /// Type 3.
    Float(f32),
    /// Type 4.
    Double(f64),
    /// Type 5: milliseconds since 1970, UTC.
    Time(i64),
    /// Type 6.
    Bytes(&'a [u8]),
    /// NULL, of any type.
    Null,
    /// Type 7.
    EndOfRecord,
}

/// What is wrong with a payload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FieldError {
    /// It ends within a field.
    #[error("the payload ends within a field")]
    Truncated,
    /// A type byte that there is not, or a negative length.
    #[error("a field begins with {0:#04x}, or has a length below zero")]
    Unknown(u8),
}

/// Reads the fields of a payload, one after the other.
///
/// ```
/// use headwater_gateway::frontier::{Field, Fields, Rows};
///
/// let mut rows = Rows::begin([("ID", "NUMBER(10)")]);
/// rows.value(None);
/// rows.end_row();
/// let bytes = rows.take();
/// let fields: Vec<Field<'_>> = Fields::new(&bytes).collect::<Result<_, _>>()?;
/// assert_eq!(fields[0], Field::Bytes(b"ID"));
/// assert_eq!(fields[3..], [Field::Null, Field::EndOfRecord]);
/// # Ok::<(), headwater_gateway::frontier::FieldError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of these bytes.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(FieldError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn field(&mut self) -> Result<Field<'a>, FieldError> {
        let [kind] = self.array()?;
        Ok(match kind {
            0 => Field::Byte(self.array::<1>()?[0]),
            1 => Field::Int4(i32::from_be_bytes(self.array()?)),
            2 => Field::Int8(i64::from_be_bytes(self.array()?)),
            3 => Field::Float(f32::from_be_bytes(self.array()?)),
            4 => Field::Double(f64::from_be_bytes(self.array()?)),
            5 => Field::Time(i64::from_be_bytes(self.array()?)),
            TEXT => {
                let length = i32::from_be_bytes(self.array()?);
                let length = usize::try_from(length).map_err(|_| FieldError::Unknown(kind))?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(FieldError::Truncated)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            END => Field::EndOfRecord,
            0x80..=0x86 => Field::Null,
            other => return Err(FieldError::Unknown(other)),
        })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, FieldError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[]; // what is behind it has no beginning
        }
        Some(field)
    }
}

/// The example of the reference, seen on the wire: (1,alpha), (2,NULL), (3,'').
#[cfg(test)]
pub(super) fn example() -> Rows {
    let mut rows = Rows::begin([("ID", "NUMBER(10)"), ("NAME", "VARCHAR2")]);
    for (id, name) in [("1", Some("alpha")), ("2", None), ("3", Some(""))] {
        rows.value(Some(id.as_bytes()));
        rows.value(name.map(str::as_bytes));
        rows.end_row();
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verified_example_byte_for_byte() {
        let mut rows = example();
        let expected = "0600000002 4944 060000000a 4e554d42455228313029 0600000004 4e414d45 0600000008 5641524348415232 07 \
                        0600000001 31 0600000005 616c706861 07 0600000001 32 86 07 0600000001 33 0600000000 07";
        assert_eq!(hex::encode(rows.take()), expected.replace(' ', ""));
        assert_eq!(rows.size(), (3, 82));
    }

    #[test]
    fn every_type_is_read_and_what_is_none_is_told() {
        let mut bytes = vec![0, 7, 1, 0, 0, 0, 5, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        bytes.extend([3]);
        bytes.extend(1.5_f32.to_be_bytes());
        bytes.extend([4]);
        bytes.extend((-2.25_f64).to_be_bytes());
        bytes.extend([5, 0, 0, 0, 0, 0, 0, 3, 0xe8, 6, 0, 0, 0, 2, b'h', b'i', 0x80, 0x85, 0x86, 7]);
        let fields: Result<Vec<_>, _> = Fields::new(&bytes).collect();
        let expected = [
            Field::Byte(7),
            Field::Int4(5),
            Field::Int8(-1),
            Field::Float(1.5),
            Field::Double(-2.25),
            Field::Time(1_000),
            Field::Bytes(b"hi"),
            Field::Null,
            Field::Null,
            Field::Null,
            Field::EndOfRecord,
        ];
        assert_eq!(fields.expect("all of them"), expected);
        for end in 1..bytes.len() {
            let _ = Fields::new(&bytes[..end]).count();
        }
        let error = |bytes: &[u8]| Fields::new(bytes).find_map(Result::err);
        assert_eq!(error(&[6, 0, 0, 0, 9, 1]), Some(FieldError::Truncated));
        assert_eq!(error(&[6, 0xff, 0xff, 0xff, 0xff]), Some(FieldError::Unknown(6)));
        assert_eq!(error(&[0x87]), Some(FieldError::Unknown(0x87)));
        assert_eq!(error(&[8]), Some(FieldError::Unknown(8)));
    }
}
