//! Records of a payload: each field is a type byte and a value, big-endian; the first record has names and types of the columns. A file's
//! payload has no such header.

use thiserror::Error;

/// The end of a record.
const END: u8 = 7;
/// Added to the type of a field that is NULL.
const NULL: u8 = 0x80;

/// A field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'p> {
    /// NULL, of this type.
    Null(u8),
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
    /// Type 6: text or bytes.
    Bytes(&'p [u8]),
}

/// Why bytes are no payload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PayloadError {
    /// It ends within a record.
    #[error("the payload ends within a record")]
    Ends,
    /// A field has a type that there is none of.
    #[error("a field has the type {0}, expected 0 to 6")]
    Type(u8),
    /// The first record does not name columns.
    #[error("the first record is no header: {0}")]
    Header(&'static str),
    /// A record has more fields, or fewer, than there are columns.
    #[error("a record has {found} fields, expected {expected}, one a column")]
    Fields {
        /// As many as it has.
        found: usize,
        /// As many as the header has columns.
        expected: usize,
    },
    /// It is no file's content.
    #[error("a file's payload is byte arrays and one end of record, and this has more, or others")]
    File,
}

/// The records of a payload, behind its header.
#[derive(Debug)]
pub struct Records<'p> {
    columns: Vec<(String, String)>,
    rest: &'p [u8],
}

impl<'p> Records<'p> {
    /// Reads the header.
    pub fn of(payload: &'p [u8]) -> Result<Records<'p>, PayloadError> {
        let (mut rest, mut words) = (payload, Vec::new());
        while let Some(field) = field(&mut rest)? {
            let Field::Bytes(word) = field else { return Err(PayloadError::Header("a field is no text")) };
            let word = std::str::from_utf8(word).map_err(|_| PayloadError::Header("a name is not UTF-8"))?;
            words.push(word.to_owned());
        }
        if words.len() % 2 != 0 {
            return Err(PayloadError::Header("a column has no type"));
        }
        let columns = words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Ok(Records { columns, rest })
    }

    /// Names and types of the columns.
    pub fn columns(&self) -> &[(String, String)] {
        &self.columns
    }

    /// The next record's fields; none: that was all.
    pub fn next_record(&mut self) -> Result<Option<Vec<Field<'p>>>, PayloadError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut fields = Vec::with_capacity(self.columns.len());
        while let Some(field) = field(&mut self.rest)? {
            fields.push(field);
        }
        let (found, expected) = (fields.len(), self.columns.len());
        if found == expected { Ok(Some(fields)) } else { Err(PayloadError::Fields { found, expected }) }
    }
}

/// A file's content: byte arrays, one behind the other, and one end of record.
pub(super) fn file(payload: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let (mut rest, mut content) = (payload, Vec::new());
    while let Some(part) = field(&mut rest)? {
        let Field::Bytes(part) = part else { return Err(PayloadError::File) };
        content.extend_from_slice(part);
    }
    if rest.is_empty() { Ok(content) } else { Err(PayloadError::File) }
}

/// The next field; none: the record has ended.
fn field<'p>(rest: &mut &'p [u8]) -> Result<Option<Field<'p>>, PayloadError> {
    let kind = take::<1>(rest)?[0];
    Ok(Some(match kind {
        END => return Ok(None),
        NULL..=0x86 => Field::Null(kind - NULL),
        0 => Field::Byte(take::<1>(rest)?[0]),
        1 => Field::Int4(i32::from_be_bytes(take(rest)?)),
        2 => Field::Int8(i64::from_be_bytes(take(rest)?)),
        3 => Field::Float(f32::from_be_bytes(take(rest)?)),
        4 => Field::Double(f64::from_be_bytes(take(rest)?)),
        5 => Field::Time(i64::from_be_bytes(take(rest)?)),
        6 => {
            let length = u32::from_be_bytes(take(rest)?) as usize;
            let (bytes, after) = rest.split_at_checked(length).ok_or(PayloadError::Ends)?;
            *rest = after;
            Field::Bytes(bytes)
        }
        other => return Err(PayloadError::Type(other)),
    }))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], PayloadError> {
    let (bytes, after) = rest.split_first_chunk::<N>().ok_or(PayloadError::Ends)?;
    *rest = after;
    Ok(*bytes)
}
