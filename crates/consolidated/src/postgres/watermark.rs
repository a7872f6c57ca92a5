//! A watermark: which transactions a snapshot saw.
//!
//! | field | bytes |
//! |---|---|
//! | format | 1 byte, 1 |
//! | end | varint: no transaction from this number on was seen |
//! | count | varint |
//! | open | for each transaction below the end that was not seen: varint, its distance to the one before (to the end, for the first) |
//!
//! Transactions below `end` are seen unless they are listed, so the snapshot's lower bound need not travel. What has not been seen is
//! found by two looks into the side table's index, at the versions from `end` on and at those listed; a transaction that stays open
//! for days costs one number here, and nothing of what was sent meanwhile is looked at again.
//!
//! On a standby, snapshots don't list what is running at the primary: there everything from the lower bound on counts as not seen.

use headwater_protocol::wire::{DecodeError, Reader, Write};

const FORMAT: u8 = 1;
/// More transactions than a server can have open (connections and prepared transactions).
const OPEN_MAX: usize = 1_000_000;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watermark {
    /// No transaction from this number on was seen.
    pub(super) end: u64,
    /// Transactions below it that were not seen, ascending.
    pub(super) open: Vec<u64>,
}

impl Watermark {
    /// From the text of a `pg_snapshot`, `xmin:xmax:xip,xip,...`; `None` if it is none.
    pub(super) fn from_snapshot(text: &str, in_recovery: bool) -> Option<Watermark> {
        let mut fields = text.split(':');
        let lowest: u64 = fields.next()?.parse().ok()?;
        let end: u64 = fields.next()?.parse().ok()?;
        let open = fields.next()?;
        if in_recovery {
            return Some(Watermark { end: lowest, open: Vec::new() });
        }
        let open: Result<Vec<u64>, _> = open.split(',').filter(|xid| !xid.is_empty()).map(str::parse).collect();
        let mut open = open.ok()?;
        open.sort_unstable();
        Some(Watermark { end, open })
    }

    /// Whether it saw a transaction.
    pub(super) fn has_seen(&self, transaction: u64) -> bool {
        transaction < self.end && self.open.binary_search(&transaction).is_err()
    }

    /// The first transaction that it has not seen: all below it it has.
    pub(super) fn seen_below(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.end)
    }

    /// The bytes that a remote keeps.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.put_varint(self.end);
        out.put_varint(self.open.len() as u64);
        let mut last = self.end;
        for transaction in self.open.iter().rev() {
            out.put_varint(last - transaction);
            last = *transaction;
        }
        out
    }

    /// Reads what a remote kept; every watermark has one form only.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Watermark, DecodeError> {
        let mut reader = Reader::new(bytes);
        let format = reader.u8("watermark format")?;
        if format != FORMAT {
            return Err(DecodeError::Undefined { field: "watermark format", actual: u64::from(format) });
        }
        let end = reader.varint("watermark end")?;
        let count = reader.count(OPEN_MAX.min(bytes.len()), "open transactions")?;
        let mut open = Vec::with_capacity(count);
        let mut last = end;
        for _ in 0..count {
            let distance = reader.varint("open transaction")?;
            let transaction = last.checked_sub(distance).filter(|_| distance > 0);
            last = transaction.ok_or(DecodeError::Undefined { field: "open transaction", actual: distance })?;
            open.push(last);
        }
        open.reverse();
        reader.finish("watermark")?;
        Ok(Watermark { end, open })
    }
}

/// Of a watermark, the first transaction that it has not seen.
pub(crate) fn seen_below(watermark: &[u8]) -> Result<u64, DecodeError> {
    Watermark::from_bytes(watermark).map(|watermark| watermark.seen_below())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read(snapshot: &str) -> Watermark {
        Watermark::from_snapshot(snapshot, false).expect(snapshot)
    }

    #[test]
    fn a_snapshot_is_small_and_comes_back() {
        for (snapshot, length) in [("731:731:", 4), ("700:731:700,730", 6), ("700:1000000:700,702,999999", 10)] {
            let bytes = read(snapshot).to_bytes();
            assert_eq!(Watermark::from_bytes(&bytes), Ok(read(snapshot)));
            assert_eq!(bytes.len(), length, "{snapshot}");
        }
        assert_eq!(Watermark::from_snapshot("700:731:", true), Some(Watermark { end: 700, open: Vec::new() }));
        assert_eq!(Watermark::from_snapshot("700", false), None);
    }

    #[test]
    fn what_is_no_watermark_is_refused() {
        let mut bytes = read("700:731:700,730").to_bytes();
        for cut in 0..bytes.len() {
            assert!(Watermark::from_bytes(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes.push(0);
        assert!(Watermark::from_bytes(&bytes).is_err(), "left over");
        assert!(Watermark::from_bytes(&[2, 5, 0]).is_err(), "another format");
        assert!(Watermark::from_bytes(&[1, 5, 1, 6]).is_err(), "an open transaction below 0");
        assert!(Watermark::from_bytes(&[1, 5, 1, 0]).is_err(), "an open transaction at the end");
        assert!(Watermark::from_bytes(&[1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err(), "more than there are bytes");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn any_bytes_are_read_or_refused(rest in vec(prop_oneof![0..9_u8, any::<u8>()], 0..12)) {
            let bytes = [&[FORMAT], &rest[..]].concat();
            if let Ok(watermark) = Watermark::from_bytes(&bytes) {
                prop_assert_eq!(watermark.to_bytes(), bytes, "every watermark has one form");
                prop_assert!(watermark.open.is_sorted_by(|a, b| a < b) && watermark.open.last() < Some(&watermark.end));
            }
        }
    }
}
