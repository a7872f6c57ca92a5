//! Parameters, already in PostgreSQL's form: whole values, and columns of rows as arrays.
//!
//! An array is: dimensions (1), whether it has NULLs, the elements' type, count, lower bound (1); then each element behind its
//! length, -1 for NULL. All of it is encoded, and thereby checked, before anything is sent.

use bytes::BytesMut;
use headwater_protocol::message::{Refusal, RefusalCode};
use headwater_protocol::{Value, ValueRef};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

use super::codec::Codec;
use super::literal;
use crate::Error;

/// A parameter.
pub(super) struct Bound {
    /// `None`: NULL.
    bytes: Option<Vec<u8>>,
    is_text: bool,
}

impl Bound {
    /// A value for a parameter of this type: in binary where the type is the value's own, else as the text that the server reads.
    pub(super) fn value(value: &Value, kind: &Type) -> Bound {
        if let (Some(codec), false) = (Codec::of(kind.oid()), value.is_null()) {
            let mut bytes = Vec::new();
            if codec.encode(value.as_ref(), &mut bytes).is_ok() {
                return Bound::binary(bytes);
            }
        }
        Bound { bytes: literal::text(value), is_text: true }
    }

    /// A value in binary.
    pub(super) fn binary(bytes: Vec<u8>) -> Bound {
        Bound { bytes: Some(bytes), is_text: false }
    }

    /// NULL, or an `xid8`.
    pub(super) fn transaction(number: Option<u64>) -> Bound {
        Bound { bytes: number.map(|number| number.to_be_bytes().to_vec()), is_text: false }
    }

    /// An array of `xid8`.
    pub(super) fn transactions(numbers: &[u64]) -> Bound {
        const XID8: u32 = 5069;
        let mut array = Array::new(XID8, numbers.len());
        for number in numbers {
            array.bytes.extend_from_slice(&8i32.to_be_bytes());
            array.bytes.extend_from_slice(&number.to_be_bytes());
        }
        array.bound()
    }

    /// An array of one value of each row. A value that the type can't hold refuses all of them, by the column's name.
    pub(super) fn column<'r>(
        name: &str,
        codec: Codec,
        values: impl ExactSizeIterator<Item = Option<&'r Value>>,
    ) -> Result<Bound, Error> {
        let mut array = Array::of(codec, values.len());
        for value in values {
            array.push(codec, value.map_or(ValueRef::Null, Value::as_ref)).map_err(|why| unfit(name, why))?;
        }
        Ok(array.bound())
    }
}

/// Only what the value is like is told, never the value.
fn unfit(column: &str, why: &str) -> Error {
    let message = format!("column {column:?}: {why}");
    Error::Refused { refusal: Refusal { code: RefusalCode::Data, message: message.clone() }, detail: message }
}

/// A column of rows on its way into a parameter.
pub(super) struct Array {
    bytes: Vec<u8>,
}

impl Array {
    /// For so many values of a codec.
    pub(super) fn of(codec: Codec, count: usize) -> Array {
        Array::new(codec.parameter().1, count)
    }

    fn new(element: u32, count: usize) -> Array {
        let dimensions = i32::from(count > 0);
        let mut bytes = Vec::with_capacity(20 + count * 12);
        for field in [dimensions, 0] {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes.extend_from_slice(&element.to_be_bytes());
        if count > 0 {
            bytes.extend_from_slice(&(count as i32).to_be_bytes());
            bytes.extend_from_slice(&1i32.to_be_bytes());
        }
        Array { bytes }
    }

    /// Appends a value; says what is wrong if the type can't hold it.
    pub(super) fn push(&mut self, codec: Codec, value: ValueRef<'_>) -> Result<(), &'static str> {
        if value.kind().is_none() {
            self.bytes[7] = 1; // the low byte of "has NULLs"
            self.bytes.extend_from_slice(&(-1i32).to_be_bytes());
            return Ok(());
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        codec.encode(value, &mut self.bytes)?;
        let length = i32::try_from(self.bytes.len() - start - 4).map_err(|_| "a value of 2 GB or more")?;
        self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// The parameter.
    pub(super) fn bound(self) -> Bound {
        Bound::binary(self.bytes)
    }
}

/// Values stay out of the driver's logs.
impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.bytes {
            Some(bytes) => write!(f, "<{} bytes>", bytes.len()),
            None => f.write_str("NULL"),
        }
    }
}

impl ToSql for Bound {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match &self.bytes {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(kind, out)
    }

    fn encode_format(&self, _: &Type) -> Format {
        if self.is_text { Format::Text } else { Format::Binary }
    }
}
