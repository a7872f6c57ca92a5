//! Which uploads of a remote the database has: `upload_digest`, beside the number of the last.
//!
//! | bytes | |
//! |---|---|
//! | 32 | the digest of the last upload |
//! | 16 each | those before it, newest first, at most [`BEFORE_MAX`]: the number (u64), the first 8 bytes of the digest; all zeros where the list is whole |
//!
//! By them a file is known whose uploads a database put back from a backup has lost, where a copy of the file has uploaded since, under the
//! same numbers ([`last_in_common`]).
//!
//! The cuts of uploads have names (`upload_cuts`), as two files that go by one remote ID may each cut the same changes under the same number:
//!
//! | bytes | |
//! |---|---|
//! | 16 each | newest first, at most [`BEFORE_MAX`] + 1: the number (u64), the name of the cut that was applied |
//!
//! A number that was given up has a digest of zeros, and no cut.
//!
//! *Caveats.* A copy that has uploaded more often than that, before the other file comes, is not told from one of a database that lost
//! nothing.
//!
//! [`last_in_common`]: headwater_protocol::upload::last_in_common

use headwater_protocol::Value;
use headwater_protocol::message::{AppliedUpload, UploadEnd};
use headwater_protocol::wire::Reader;

use super::sql::bytes;
use crate::Error;

const DIGEST_BYTES: usize = 32;
const UPLOAD_BYTES: usize = 16;
/// How many uploads before the last are remembered.
const BEFORE_MAX: usize = 31;

/// What `upload_digest` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History(Vec<u8>);

impl History {
    /// From the column; NULL where there was no upload.
    pub(crate) fn read(value: Option<&Value>) -> Result<History, Error> {
        let history = History(bytes(value, "upload_digest")?);
        match history.0.len().checked_sub(DIGEST_BYTES) {
            None if history.0.is_empty() => Ok(history),
            Some(before) if before % UPLOAD_BYTES == 0 => Ok(history),
            _ => Err(Error::Database {
                context: "reading column upload_digest of a table of Headwater's".to_owned(),
                detail: format!("{} bytes, expected 32 and 16 for each upload before", history.0.len()),
            }),
        }
    }

    /// The digest of the last upload; zeros where there was none.
    pub(crate) fn digest(&self) -> [u8; DIGEST_BYTES] {
        self.0.first_chunk().copied().unwrap_or_default()
    }

    /// The last upload, which has this number, and those before it.
    pub(super) fn uploads(&self, sequence: u64) -> Result<Vec<AppliedUpload>, Error> {
        let Some((digest, before)) = self.0.split_first_chunk::<DIGEST_BYTES>() else { return Ok(Vec::new()) };
        let mut reader = Reader::new(before);
        let mut uploads = vec![AppliedUpload::new(sequence, digest)];
        while !reader.is_empty() {
            uploads.push(AppliedUpload::read(&mut reader)?);
        }
        Ok(uploads)
    }

    /// What it is with one more, after the last of this number.
    pub(crate) fn followed_by(&self, sequence: u64, end: &UploadEnd) -> Vec<u8> {
        let mut out = end.digest.to_vec();
        AppliedUpload::new(sequence, &self.digest()).write(&mut out);
        out.extend_from_slice(self.0.get(DIGEST_BYTES..).unwrap_or_default());
        out.truncate(DIGEST_BYTES + BEFORE_MAX * UPLOAD_BYTES);
        out
    }
}

/// What `upload_cuts` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cuts(Vec<u8>);

impl Cuts {
    /// From the column; NULL where no upload named its cut.
    pub(crate) fn read(value: Option<&Value>) -> Result<Cuts, Error> {
        let cuts = bytes(value, "upload_cuts")?;
        if cuts.len() % UPLOAD_BYTES == 0 {
            return Ok(Cuts(cuts));
        }
        Err(Error::Database {
            context: "reading column upload_cuts of a table of Headwater's".to_owned(),
            detail: format!("{} bytes, expected 16 for each upload", cuts.len()),
        })
    }

    /// The name of the cut that was applied under this number, if it is remembered.
    pub(crate) fn of(&self, sequence: u64) -> Option<[u8; 8]> {
        let named = self.0.chunks_exact(UPLOAD_BYTES).map(|entry| entry.split_at(8));
        let mut found = named.filter(|(number, _)| *number == sequence.to_le_bytes());
        found.next().and_then(|(_, cut)| cut.try_into().ok())
    }

    /// What it is with one more.
    pub(crate) fn followed_by(&self, sequence: u64, cut: Option<[u8; 8]>) -> Vec<u8> {
        let Some(cut) = cut else { return self.0.clone() };
        let mut out = [sequence.to_le_bytes(), cut].concat();
        out.extend_from_slice(&self.0);
        out.truncate((BEFORE_MAX + 1) * UPLOAD_BYTES);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered() {
        let mut history = History::default();
        assert_eq!((history.digest(), history.uploads(0).expect("none")), ([0; 32], Vec::new()));
        for number in 1..=50 {
            let end = UploadEnd { sequence: number, changes: 1, digest: [number as u8; 32] };
            history = History::read(Some(&Value::Bytes(history.followed_by(number - 1, &end)))).expect("our own bytes");
            assert_eq!(history.digest(), [number as u8; 32]);
            assert_eq!(history.uploads(number).expect("our own bytes").iter().any(|it| it.sequence == 0), number < 32);
        }
        let uploads = history.uploads(50).expect("our own bytes");
        let expected = (19..=50).rev().map(|number| AppliedUpload { sequence: number, digest: [number as u8; 8] });
        assert_eq!(uploads, expected.collect::<Vec<_>>());
    }

    #[test]
    fn what_was_stored_before_others_were_remembered_is_read() {
        let history = History::read(Some(&Value::Bytes(vec![7; 32]))).expect("a digest alone");
        assert_eq!(history.uploads(4).expect("one"), [AppliedUpload { sequence: 4, digest: [7; 8] }]);
        assert_eq!(History::read(Some(&Value::Null)).expect("none"), History::default());
    }

    #[test]
    fn cuts_are_known_by_their_numbers() {
        let mut cuts = Cuts::default();
        assert_eq!(cuts.of(0), None);
        for number in 1..=50u64 {
            let name = (number % 5 > 0).then_some([number as u8; 8]);
            cuts = Cuts::read(Some(&Value::Bytes(cuts.followed_by(number, name)))).expect("our own bytes");
            assert_eq!(cuts.of(number), name);
        }
        assert_eq!((cuts.of(12), cuts.of(9), cuts.of(49)), (Some([12; 8]), None, Some([49; 8])));
        assert!(Cuts::read(Some(&Value::Bytes(vec![0; 17]))).is_err());
    }

    #[test]
    fn another_length_is_named() {
        for length in [1, 31, 33, 47, 49] {
            let error = History::read(Some(&Value::Bytes(vec![7; length]))).expect_err("a wrong length");
            assert!(format!("{error:?}").contains(&length.to_string()), "{error:?}");
        }
    }
}
