//! A watermark of a table that a new version of the model has given columns.

use super::COLUMNS_MAX;
use crate::wire::{DecodeError, Reader, Write};

/// Seals begin with smaller numbers, so that one is not taken for the other; a server that does not know this one opens no seal in it.
const FORMAT: u8 = 0x45;

/// A watermark, in HELLO, of a remote that has all that a table had up to it, but none of these columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendedMark {
    /// Places of the columns that are new, ascending.
    pub columns: Vec<u32>,
    /// The watermark as it was handed out.
    pub sealed: Vec<u8>,
}

impl ExtendedMark {
    /// As it stands among HELLO's watermarks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.put_varint(self.columns.len() as u64);
        for place in &self.columns {
            out.put_varint(u64::from(*place));
        }
        out.extend_from_slice(&self.sealed);
        out
    }

    /// Reads a watermark of HELLO; `None`: it is one as it was handed out.
    pub fn from_bytes(mark: &[u8]) -> Result<Option<ExtendedMark>, DecodeError> {
        if mark.first() != Some(&FORMAT) {
            return Ok(None);
        }
        let mut reader = Reader::new(&mark[1..]);
        let mut columns: Vec<u32> = Vec::new();
        for _ in 0..reader.count(COLUMNS_MAX, "new columns")? {
            let place = reader.count(COLUMNS_MAX, "new column")? as u32;
            if columns.last().is_some_and(|before| *before >= place) {
                return Err(DecodeError::Undefined { field: "new column", actual: u64::from(place) });
            }
            columns.push(place);
        }
        if columns.is_empty() {
            return Err(DecodeError::Undefined { field: "new columns", actual: 0 });
        }
        Ok(Some(ExtendedMark { columns, sealed: reader.rest().to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_watermark_come_back() {
        let mark = ExtendedMark { columns: vec![2, 3, 300], sealed: b"sealed".to_vec() };
        assert_eq!(ExtendedMark::from_bytes(&mark.to_bytes()), Ok(Some(mark)));
        assert_eq!(ExtendedMark::from_bytes(b"\x03sealed"), Ok(None), "as it was handed out");
        assert_eq!(ExtendedMark::from_bytes(b""), Ok(None));
    }

    #[test]
    fn what_is_no_list_of_columns_is_refused() {
        for (bytes, why) in [
            (&[FORMAT][..], "cut"),
            (&[FORMAT, 0, 1], "no column"),
            (&[FORMAT, 2, 3, 3], "a column twice"),
            (&[FORMAT, 2, 4, 3], "in another order"),
            (&[FORMAT, 0xff, 0xff, 0x7f], "more columns than a table may have"),
            (&[FORMAT, 3, 1, 2], "fewer than announced"),
        ] {
            assert!(ExtendedMark::from_bytes(bytes).is_err(), "{why}");
        }
    }
}
