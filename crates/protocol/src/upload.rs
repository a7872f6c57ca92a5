//! What makes an upload apply exactly once: its digest, and the decision whether to apply it.
//!
//! A remote numbers its uploads 1, 2, 3, ... and sends the next only when it has applied the receipt of the one before. The transaction
//! that applies an upload also stores its number, digest and receipt, so the database always knows the last number that it has, and a
//! remote is at most one behind it. Where the database has lost uploads, the remote leaves their numbers out: none is ever used for two
//! uploads, so that a database which has them after all (the backup was the wrong one) is not taken for one that has the later ones.
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
use crate::message::UploadEnd;

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
    /// Its digest; of no meaning at number 0.
    pub digest: [u8; 32],
}

/// What is to be done with an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one: apply it.
    Apply,
    /// It was applied already and the receipt got lost on its way: give the stored receipt again.
    Replay,
    /// Another file has used this number: the one that offers it is a copy or an old backup. It needs a new remote ID, under which
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
/// - The stored number again: the digest tells a repetition ([`Verdict::Replay`]) from another file's upload ([`Verdict::Copy`]).
/// - A smaller number: the file has gone back in time, [`Verdict::Copy`]. The same for one that would skip the receipt of the stored
///   upload: that upload was not its own.
/// - A greater number: [`Verdict::Apply`]. (Unless WELCOME said `restart`: then the upload comes from another incarnation's
///   counting, and the server answers `behind` without asking here. A request that was on its way while the database was restored
///   would otherwise be taken for one counted from there.)
pub fn judge(stored: Option<Stored>, acknowledged_by_remote: u64, offered: &UploadEnd) -> Verdict {
    let stored = stored.unwrap_or(Stored { sequence: 0, digest: [0; 32] });
    if acknowledged_by_remote > stored.sequence {
        return Verdict::Behind;
    }
    if offered.sequence > stored.sequence {
        return if acknowledged_by_remote == stored.sequence { Verdict::Apply } else { Verdict::Copy };
    }
    let is_stored = offered.sequence == stored.sequence && stored.sequence > 0 && offered.digest == stored.digest;
    if is_stored { Verdict::Replay } else { Verdict::Copy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(stored: Option<(u64, u8)>, acknowledged: u64, offered: (u64, u8)) -> Verdict {
        let stored = stored.map(|(sequence, digest)| Stored { sequence, digest: [digest; 32] });
        judge(stored, acknowledged, &UploadEnd { sequence: offered.0, changes: 1, digest: [offered.1; 32] })
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
