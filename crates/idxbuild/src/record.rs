//! Records: what a row or a key of an index is stored as (<https://sqlite.org/fileformat2.html#record_format>).

use crate::varint;

/// A value as SQLite stores it. Texts are bytes in the database's encoding, and no double is none.
pub(crate) use rusqlite::types::ValueRef as Value;

/// Where the values of a record are.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    /// The serial type of each value, and where its bytes begin.
    places: Vec<(u64, usize)>,
    end: usize,
}

impl Fields {
    /// Reads the head of a record, for its first `columns` values at most; `None` where it is no record. `head` is its beginning, with
    /// the whole of the head ([`head_length`]).
    #[inline]
    pub(crate) fn read(&mut self, head: &[u8], columns: usize) -> Option<()> {
        self.places.clear();
        let (length, mut at) = varint::read(head)?;
        let length = usize::try_from(length).ok()?;
        let head = head.get(..length)?;
        if at > length {
            return None;
        }
        let mut body = length;
        while at < length && self.places.len() < columns {
            let (serial, bytes) = varint::read(&head[at..])?;
            at += bytes;
            self.places.push((serial, body));
            body = body.checked_add(size(serial)?)?;
        }
        self.end = body;
        Some(())
    }

    /// How many values were read.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Where the last of the values read ends.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// A value of the record that the head was read of; `None` where the record lacks it or its bytes.
    #[inline]
    pub(crate) fn value<'a>(&self, index: usize, record: &'a [u8]) -> Option<Value<'a>> {
        let &(serial, at) = self.places.get(index)?;
        let bytes = record.get(at..at + size(serial)?)?;
        Some(match serial {
            0 => Value::Null,
            1..=6 => Value::Integer(integer(bytes)),
            7 => {
                let real = f64::from_bits(integer(bytes) as u64);
                if real.is_nan() { Value::Null } else { Value::Real(real) }
            }
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            serial if serial % 2 == 0 => Value::Blob(bytes),
            _ => Value::Text(bytes),
        })
    }
}

/// How long a record's head is; `None` where its first bytes say nothing of use.
#[inline]
pub(crate) fn head_length(record: &[u8]) -> Option<usize> {
    let (length, _) = varint::read(record)?;
    usize::try_from(length).ok()
}

/// The bytes of a value of this type; `None` of the two types that aren't used in files.
#[inline]
fn size(serial: u64) -> Option<usize> {
    match serial {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(serial as usize),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        _ => usize::try_from((serial - 12) / 2).ok(),
    }
}

#[inline]
fn integer(bytes: &[u8]) -> i64 {
    let mut number = if bytes.first().is_some_and(|first| first & 0x80 != 0) { -1_i64 } else { 0 };
    for &byte in bytes {
        number = number << 8 | i64::from(byte);
    }
    number
}

/// A record that is being made.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Writer {
    /// Begins a new one.
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.body.clear();
    }

    /// Appends a NULL.
    pub(crate) fn null(&mut self) {
        self.head.push(0);
    }

    /// Appends an integer, in as few bytes as it takes.
    #[inline]
    pub(crate) fn integer(&mut self, number: i64) {
        let (serial, bytes) = match number {
            0 => (8, 0),
            1 => (9, 0),
            _ => {
                let bits = 65 - (if number < 0 { !number } else { number }).leading_zeros();
                match bits {
                    0..=8 => (1, 1),
                    9..=16 => (2, 2),
                    17..=24 => (3, 3),
                    25..=32 => (4, 4),
                    33..=48 => (5, 6),
                    _ => (6, 8),
                }
            }
        };
        self.head.push(serial);
        self.body.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
    }

    /// Appends a double.
    pub(crate) fn real(&mut self, number: f64) {
        self.head.push(7);
        self.body.extend_from_slice(&number.to_bits().to_be_bytes());
    }

    /// Begins a text or bytes: they go into the body that this gives, and [`end_bytes`](Writer::end_bytes) ends them.
    pub(crate) fn begin_bytes(&mut self) -> (usize, &mut Vec<u8>) {
        (self.body.len(), &mut self.body)
    }

    /// Ends a text or bytes that began at this place.
    pub(crate) fn end_bytes(&mut self, began: usize, is_text: bool) {
        let length = (self.body.len() - began) as u64;
        varint::write(&mut self.head, 12 + 2 * length + u64::from(is_text));
    }

    /// Appends a value.
    pub(crate) fn value(&mut self, value: Value<'_>) {
        match value {
            Value::Null => self.null(),
            Value::Integer(number) => self.integer(number),
            Value::Real(number) => self.real(number),
            Value::Text(bytes) | Value::Blob(bytes) => {
                let (began, body) = self.begin_bytes();
                body.extend_from_slice(bytes);
                self.end_bytes(began, matches!(value, Value::Text(_)));
            }
        }
    }

    /// Appends the record to `out`.
    #[inline]
    pub(crate) fn finish(&self, out: &mut Vec<u8>) {
        let mut length = self.head.len() + 1;
        while self.head.len() + varint::length(length as u64) != length {
            length = self.head.len() + varint::length(length as u64);
        }
        varint::write(out, length as u64);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(&self.body);
    }
}

#[cfg(test)]
mod tests {
    use super::{Fields, Value, Writer};

    #[test]
    fn a_record_comes_back_value_by_value() {
        let long = vec![7; 3000];
        let mut values =
            vec![Value::Null, Value::Real(-1.5), Value::Text(b"abc"), Value::Blob(&long), Value::Text(b"")];
        for bits in 0..63 {
            values.extend([1_i64 << bits, -(1_i64 << bits), (1 << bits) - 1].map(Value::Integer));
        }
        let mut writer = Writer::default();
        for &value in &values {
            writer.value(value);
        }
        let mut record = Vec::new();
        writer.finish(&mut record);
        let mut fields = Fields::default();
        fields.read(&record, usize::MAX).expect("a record");
        assert_eq!((fields.count(), fields.end()), (values.len(), record.len()));
        for (index, &value) in values.iter().enumerate() {
            assert_eq!(fields.value(index, &record), Some(value));
        }
        assert_eq!(fields.value(values.len() - 1, &record[..record.len() - 1]), None, "cut off");
    }
}
