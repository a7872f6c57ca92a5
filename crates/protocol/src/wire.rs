//! Reading and writing the wire's primitive fields, with every length checked before anything is reserved.
//!
//! Integers are little-endian; `varint` is LEB128 of a `u64` (at most ten bytes, no longer than needed); a `bytes` field is a varint
//! length and that many bytes.

use thiserror::Error;

/// Why bytes are not what the format says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("truncated: {needed} more bytes expected for {field}")]
    Truncated {
        /// The field that is cut.
        field: &'static str,
        /// How many bytes are missing.
        needed: usize,
    },
    /// A length or count is above its limit.
    #[error("{field} is {actual}, above the limit of {limit}")]
    TooLarge {
        /// The field with the length.
        field: &'static str,
        /// What it says.
        actual: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A field has a value that the format doesn't define.
    #[error("{field} has the undefined value {actual}")]
    Undefined {
        /// The field.
        field: &'static str,
        /// Its value.
        actual: u64,
    },
    /// A text has bytes that are none of a text.
    #[error("{field} is no UTF-8 from its byte {at} on")]
    NotText {
        /// The field.
        field: &'static str,
        /// How many bytes before it are sound.
        at: usize,
    },
    /// The checksum is not that of the bytes.
    #[error("checksum is {actual:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum of the bytes that came.
        actual: u32,
        /// The checksum that came with them.
        expected: u32,
    },
    /// Bytes are left after the last field.
    #[error("{count} bytes left over after {field}")]
    LeftOver {
        /// What was read whole.
        field: &'static str,
        /// How many bytes follow it.
        count: usize,
    },
    /// Compressed bytes don't decompress to what they say.
    #[error("compressed payload does not decompress to the {expected} bytes that it announces")]
    Compression {
        /// The length announced.
        expected: usize,
    },
}

/// Reads fields from the front of a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes }
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => Err(DecodeError::Truncated { field, needed: count - self.bytes.len() }),
        }
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, field)?);
        Ok(array)
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// A little-endian `u16`.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// A little-endian `u32`.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// A little-endian `u64`.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A varint. Forms longer than needed are refused, so that equal values have equal bytes.
    #[inline]
    pub fn varint(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(DecodeError::Undefined { field, actual: u64::from(byte) });
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Undefined { field, actual: u64::MAX })
    }

    /// A varint that counts or measures something, at most `limit`.
    #[inline]
    pub fn count(&mut self, limit: usize, field: &'static str) -> Result<usize, DecodeError> {
        let actual = self.varint(field)?;
        if actual > limit as u64 {
            return Err(DecodeError::TooLarge { field, actual, limit: limit as u64 });
        }
        Ok(actual as usize)
    }

    /// A signed integer as a zigzag varint.
    #[inline]
    pub fn signed(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        let coded = self.varint(field)?;
        Ok((coded >> 1) as i64 ^ -((coded & 1) as i64))
    }

    /// A `bytes` field of at most `limit` bytes.
    #[inline]
    pub fn bytes(&mut self, limit: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = self.count(limit, field)?;
        self.take(length, field)
    }

    /// A `bytes` field that holds UTF-8.
    pub fn text(&mut self, limit: usize, field: &'static str) -> Result<&'a str, DecodeError> {
        let bytes = self.bytes(limit, field)?;
        std::str::from_utf8(bytes).map_err(|error| DecodeError::NotText { field, at: error.valid_up_to() })
    }

    /// Ends the reading; leftovers are an error.
    pub fn finish(self, field: &'static str) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            count => Err(DecodeError::LeftOver { field, count }),
        }
    }
}

/// Reads one whole payload with `read`; leftovers are an error.
pub(crate) fn whole<'a, T>(
    payload: &'a [u8],
    field: &'static str,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut reader = Reader::new(payload);
    let value = read(&mut reader)?;
    reader.finish(field)?;
    Ok(value)
}

/// Refuses a payload that should be empty.
pub(crate) fn nothing(payload: &[u8], field: &'static str) -> Result<(), DecodeError> {
    Reader::new(payload).finish(field)
}

/// Appends fields to a buffer; the counterpart of [`Reader`].
pub trait Write {
    /// A varint.
    fn put_varint(&mut self, value: u64);
    /// A signed integer as a zigzag varint.
    fn put_signed(&mut self, value: i64);
    /// A varint length and the bytes.
    fn put_bytes(&mut self, bytes: &[u8]);
}

impl Write for Vec<u8> {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_signed(&mut self, value: i64) {
        self.put_varint(((value << 1) ^ (value >> 63)) as u64);
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_trip() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            out.put_varint(value);
            out.put_signed(value as i64);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint("v"), Ok(value));
            assert_eq!(reader.signed("s"), Ok(value as i64));
            assert_eq!(reader.finish("all"), Ok(()));
        }
    }

    #[test]
    fn overlong_overflowing_and_cut_varints_are_refused() {
        assert!(Reader::new(&[0x80, 0x00]).varint("v").is_err());
        assert!(Reader::new(&[0xff; 10]).varint("v").is_err());
        assert!(Reader::new(&[0xff; 9]).varint("v").is_err());
    }

    #[test]
    fn a_length_is_checked_before_its_bytes_are_looked_for() {
        let mut out = Vec::new();
        out.put_varint(u64::from(u32::MAX));
        let error = Reader::new(&out).bytes(100, "name").expect_err("too large");
        assert_eq!(error, DecodeError::TooLarge { field: "name", actual: u64::from(u32::MAX), limit: 100 });
    }
}
