//! What makes an upload apply exactly once: its digest, and the decision whether to apply it.
//!
//! A remote numbers its uploads 1, 2, 3, ... and sends the next only when it has applied the receipt of the one before. The transaction
//! that applies an upload also stores its number, digest and receipt, so the database always knows the last number that it has, and a
//! remote is at most one behind it. Where the database has lost uploads, the remote leaves their numbers out: none is ever used for two
//! uploads, so that a database which has them after all (the backup was the wrong one) is not taken for one that has the later ones. So it
//! does with the number of an upload that it has given up. The database uses that number up too, so that a request which comes late is
//! refused.
//!
//! ```text
//! remote has the receipt of   4         4         4          4          4          5
//! remote offers               5         9         5          5          5          6
//! database has              4, d4     4, d4     5, d5      5, d5      7, d7      3, d3
//! digest offered              d5        d9        d5         e5         d5         d6
//! verdict                   Apply     Apply     Replay     Copy       Copy      Behind
//! ```
//!
//! Caveats: the digest tells uploads of one remote apart; it proves nothing about who sent them, that is the remote's secret.

use sha2::{Digest as _, Sha256};

use crate::frame::Kind;
use crate::message::{AppliedUpload, UploadEnd};

/// SHA-256 over an upload's TABLE and CHANGES frames, in order: kind (u8), length of the uncompressed payload (u32, little-endian), that
/// payload. Compression is left out, so that frames may be packed anew without becoming another upload.
///
/// ```
/// use headwater_protocol::{Kind, upload::Digest};
/// let mut digest = Digest::new();
/// digest.add(Kind::Changes, b"abc");
/// assert_eq!(digest.finish()[..4], [0x33, 0xdc, 0x9a, 0xf7]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Digest(Sha256);

impl Digest {
    /// The digest of no frames.
    pub fn new() -> Digest {
        Digest::default()
    }

    /// Adds a frame's kind and its uncompressed payload.
    pub fn add(&mut self, kind: Kind, payload: &[u8]) {
        self.0.update([kind as u8]);
        self.0.update((payload.len() as u32).to_le_bytes());
        self.0.update(payload);
    }

    /// The digest of all frames added.
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// What the consolidated database keeps of a remote's last upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its number; 0 if none was applied yet.
    pub sequence: u64,
    /// Its digest; of no meaning at number 0; zeros where the number was given up.
    pub digest: [u8; 32],
    /// The name of its cut, where that is known: two files may each have cut the same changes under the same number.
    pub cut: Option<[u8; 8]>,
}

/// What is to be done with an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one: apply it.
    Apply,
    /// It was applied already and the receipt got lost on its way: give the stored receipt again.
    Replay,
    /// Another file has used this number: the one that offers it, or the database, is a copy or an old backup. It needs a new remote ID, under which
    /// it goes on with its pending changes.
    Copy,
    /// The database lacks uploads whose receipts the remote has: it was restored, or lost what it had acknowledged. A new
    /// incarnation begins.
    Behind,
}

/// Says what is to be done with the upload `offered` by a remote that has applied the receipts up to `acknowledged_by_remote`
/// ([`crate::message::Hello::upload_sequence`]), where the database has `stored` of it (`None`: it doesn't know the remote).
///
/// - A remote that acknowledges more than is stored holds receipts that this database never gave: [`Verdict::Behind`]. This is judged
///   first, since after a restored backup the stored number says nothing about files.
/// - The stored number again: the digest and the cut's name, where both sides know one, tell a repetition ([`Verdict::Replay`]) from another
///   file's upload ([`Verdict::Copy`]).
/// - A smaller number: the file has gone back in time, [`Verdict::Copy`]. The same for one that would skip the receipt of the stored
///   upload: that upload was not its own.
/// - A greater number: [`Verdict::Apply`]. (Unless WELCOME said `restart`: then the upload comes from another incarnation's
///   counting, and the server answers `behind` without asking here. A request that was on its way while the database was restored
///   would otherwise be taken for one counted from there.)
pub fn judge(
    stored: Option<Stored>,
    acknowledged_by_remote: u64,
    offered: &UploadEnd,
    cut: Option<[u8; 8]>,
) -> Verdict {
    let stored = stored.unwrap_or(Stored { sequence: 0, digest: [0; 32], cut: None });
    if acknowledged_by_remote > stored.sequence {
        return Verdict::Behind;
    }
    if offered.sequence > stored.sequence {
        return if acknowledged_by_remote == stored.sequence { Verdict::Apply } else { Verdict::Copy };
    }
    let is_its_cut = stored.cut.is_none_or(|stored| cut.is_none_or(|cut| cut == stored));
    let is_its_number = offered.sequence == stored.sequence && stored.sequence > 0;
    let is_stored = is_its_number && offered.digest == stored.digest && is_its_cut;
    if is_stored { Verdict::Replay } else { Verdict::Copy }
}

/// Whether the database has another file's uploads where a file that goes by the same remote ID had its own, which it has no more: it was
/// put back from a backup, and a copy of the file was there first. Gives the last number that means the same upload to both; 0, if none
/// of those named does.
///
/// ```text
/// the file has had applied     4    4 5    4 5       4 5 6    4 5       9
/// the database has             4    4      4 e5 e6   4 e5     e4 e5     10 11
/// gives                        -    -      4         4        0         -       (e: the same number, another digest)
/// ```
///
/// `stored` has one of number 0 where it is all that the database ever had. Caveats: what either side does not name any more (the last
/// column) is not known, and counts as the file's own.
pub fn last_in_common(of_file: &[AppliedUpload], stored: &[AppliedUpload]) -> Option<u64> {
    let newest = stored.iter().map(|upload| upload.sequence).max()?;
    let comparable = of_file.iter().filter(|upload| upload.sequence <= newest).max_by_key(|upload| upload.sequence)?;
    let is_remembered = stored.iter().any(|upload| upload.sequence <= comparable.sequence);
    if stored.contains(comparable) || !is_remembered {
        return None;
    }
    let common = of_file.iter().filter(|upload| stored.contains(upload));
    Some(common.map(|upload| upload.sequence).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers; one that is negative means another upload.
    fn uploads(numbers: &[i64]) -> Vec<AppliedUpload> {
        let upload = |number: &i64| AppliedUpload { sequence: number.unsigned_abs(), digest: number.to_le_bytes() };
        numbers.iter().map(upload).collect()
    }

    #[test]
    fn the_table_of_the_last_in_common() {
        let case = |of_file: &[i64], stored: &[i64]| last_in_common(&uploads(of_file), &uploads(stored));
        assert_eq!(case(&[4], &[4]), None);
        assert_eq!(case(&[5, 4], &[4]), None, "it lacks what came last, and nobody else's is there");
        assert_eq!(case(&[5, 4], &[-6, -5, 4]), Some(4));
        assert_eq!(case(&[6, 5, 4], &[-5, 4]), Some(4));
        assert_eq!(case(&[5, 4], &[-5, -4]), Some(0));
        assert_eq!(case(&[9], &[11, 10]), None, "9 is forgotten");
        assert_eq!(case(&[4], &[6, 5, 4]), None, "a copy, no more");
        assert_eq!(case(&[6, 3], &[-5, 3]), None, "5 is nobody's here, and 3 is known");
        assert_eq!(case(&[5, 3], &[-6, 3]), Some(3), "5 was left out there");
        assert_eq!(case(&[2, 1], &[-3, 0]), Some(0), "3 is the first there");
        assert_eq!((case(&[], &[4]), case(&[4], &[])), (None, None));
    }

    fn verdict(stored: Option<(u64, u8)>, acknowledged: u64, offered: (u64, u8)) -> Verdict {
        let stored = stored.map(|(sequence, digest)| Stored { sequence, digest: [digest; 32], cut: None });
        judge(stored, acknowledged, &UploadEnd { sequence: offered.0, changes: 1, digest: [offered.1; 32] }, None)
    }

    #[test]
    fn another_cut_of_the_same_changes_is_another_upload() {
        let judged = |stored: Option<u8>, cut: Option<u8>| {
            let stored = Stored { sequence: 5, digest: [5; 32], cut: stored.map(|cut| [cut; 8]) };
            let offered = UploadEnd { sequence: 5, changes: 1, digest: [5; 32] };
            judge(Some(stored), 4, &offered, cut.map(|cut| [cut; 8]))
        };
        assert_eq!(judged(Some(1), Some(1)), Verdict::Replay);
        assert_eq!(judged(Some(1), Some(2)), Verdict::Copy);
        assert_eq!((judged(None, Some(2)), judged(Some(1), None)), (Verdict::Replay, Verdict::Replay));
    }

    #[test]
    fn the_table_of_the_module() {
        assert_eq!(verdict(Some((4, 4)), 4, (5, 5)), Verdict::Apply);
        assert_eq!(verdict(Some((4, 4)), 4, (9, 9)), Verdict::Apply);
        assert_eq!(verdict(Some((5, 5)), 4, (5, 5)), Verdict::Replay);
        assert_eq!(verdict(Some((5, 5)), 4, (5, 0xe5)), Verdict::Copy);
        assert_eq!(verdict(Some((7, 7)), 4, (5, 5)), Verdict::Copy);
        assert_eq!(verdict(Some((3, 3)), 5, (6, 6)), Verdict::Behind);
    }

    #[test]
    fn the_first_upload_of_a_remote() {
        assert_eq!(verdict(None, 0, (1, 1)), Verdict::Apply);
        assert_eq!(verdict(Some((0, 0)), 0, (1, 1)), Verdict::Apply);
        assert_eq!(verdict(None, 1, (2, 1)), Verdict::Behind);
        assert_eq!(verdict(None, 0, (2, 1)), Verdict::Apply, "those before are lost, and it knows");
    }

    #[test]
    fn number_zero_is_never_a_repetition() {
        assert_eq!(verdict(Some((0, 0)), 0, (0, 0)), Verdict::Copy);
        assert_eq!(verdict(None, 0, (0, 0)), Verdict::Copy);
    }

    #[test]
    fn an_upload_that_skips_a_receipt_is_another_files() {
        assert_eq!(verdict(Some((5, 5)), 4, (6, 6)), Verdict::Copy);
        assert_eq!(verdict(Some((5, 5)), 4, (9, 9)), Verdict::Copy);
        assert_eq!(verdict(Some((u64::MAX, 5)), 4, (5, 6)), Verdict::Copy);
    }

    #[test]
    fn a_digest_depends_on_kind_length_and_order() {
        let digest = |frames: &[(Kind, &[u8])]| {
            let mut digest = Digest::new();
            for (kind, payload) in frames {
                digest.add(*kind, payload);
            }
            digest.finish()
        };
        let whole = digest(&[(Kind::Table, b"ab"), (Kind::Changes, b"cd")]);
        assert_ne!(whole, digest(&[(Kind::Changes, b"ab"), (Kind::Table, b"cd")]));
        assert_ne!(whole, digest(&[(Kind::Table, b"abc"), (Kind::Changes, b"d")]));
        assert_ne!(whole, digest(&[(Kind::Table, b"ab")]));
    }
}
