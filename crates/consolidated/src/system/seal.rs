//! Sealed watermarks: what a remote has seen, with the proof that this database handed it out.
//!
//! A database that was restored from a backup, or promoted without its last second, knows no more than it did then; it may since have
//! advanced past the watermarks that remotes hold, and nothing in a watermark alone would tell. So the database counts the downloads
//! of each remote ([`super::count`]), durably and *after* the download's snapshot was taken, and the watermarks that are handed out name that count. A
//! remote that presents a greater count than the database has is proof that it lost something, and perhaps of what the remote has
//! seen: all transactions of a snapshot were committed before the count was, so a database that has the count has them too.
//!
//! | field | bytes |
//! |---|---|
//! | format | 1 byte, 3 |
//! | issued to | 16 bytes, the remote ID that the download was for |
//! | count | varint, the downloads of that remote so far |
//! | name | 8 random bytes of that count; a mark of format 2 has none |
//! | watermark | as the backend gives it |
//! | seal | 16 bytes of HMAC-SHA-256 over the incarnation and all of the above |
//!
//! The key lies in the database, so nobody can make up a count that ends an incarnation, nor move a watermark to another one. The
//! remote ID stands in it because a copy of a file takes a new one and keeps its watermarks, which belong to its rows. The name tells the count of
//! one database from the same number that a copy of it has counted ([`super::recent`]).
//!
//! *Caveats.* A count says nothing of which file of two copies a sync was for.

use std::collections::BTreeSet;

use headwater_protocol::message::{ExtendedMark, Watermarks};
use headwater_protocol::wire::{Reader, Write};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::identity::Identity;
use super::recent::{NAME_BYTES, Presented};

const FORMAT: u8 = 3;
/// Of marks whose counts have no names.
const FORMAT_WITHOUT_NAME: u8 = 2;
const SEAL_BYTES: usize = 16;
/// The key signs tokens too; what is signed there begins otherwise.
const PURPOSE: &[u8] = b"headwater watermark\0";

pub(super) fn seal(
    key: &[u8],
    incarnation: &[u8; 16],
    issued_to: &[u8; 16],
    (count, name): (u64, &[u8; NAME_BYTES]),
    mark: &[u8],
) -> Vec<u8> {
    let mut out = vec![FORMAT];
    out.extend_from_slice(issued_to);
    out.put_varint(count);
    out.extend_from_slice(name);
    out.extend_from_slice(mark);
    let seal = mac(key, incarnation, &out).finalize().into_bytes();
    out.extend_from_slice(&seal[..SEAL_BYTES]);
    out
}

fn mac(key: &[u8], incarnation: &[u8; 16], sealed: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(PURPOSE);
    mac.update(incarnation);
    mac.update(sealed);
    mac
}

/// A remote's watermarks with their seals opened.
pub(super) struct Opened {
    /// As the backend gave them; what this incarnation has not sealed is empty, which no backend accepts.
    pub(super) watermarks: Watermarks,
    /// By watermark: the columns that the remote has nothing of ([`ExtendedMark`]), usually none.
    pub(super) extended: Vec<Vec<u32>>,
    /// The counts in them, with the remote IDs that they were issued to.
    pub(super) counts: BTreeSet<([u8; 16], Presented)>,
}

/// Opens the seals of watermarks that a remote presents.
pub(super) fn open(identity: &Identity, presented: &Watermarks) -> Opened {
    let mut counts = BTreeSet::new();
    let mut marks = Vec::with_capacity(presented.marks.len());
    let mut extended = vec![Vec::new(); presented.marks.len()];
    for (place, sealed) in presented.marks.iter().enumerate() {
        // What is neither opens no seal.
        let of_columns = ExtendedMark::from_bytes(sealed).ok().flatten();
        if let Some(mark) = &of_columns {
            extended[place].clone_from(&mark.columns);
        }
        let sealed = of_columns.as_ref().map_or(sealed, |mark| &mark.sealed);
        let Some((issued_to, presented, mark)) = open_one(identity, sealed) else {
            marks.push(Vec::new());
            continue;
        };
        counts.insert((issued_to, presented));
        marks.push(mark);
    }
    Opened { watermarks: Watermarks { marks, entries: presented.entries.clone() }, extended, counts }
}

fn open_one(identity: &Identity, sealed: &[u8]) -> Option<([u8; 16], Presented, Vec<u8>)> {
    let (content, seal) = sealed.split_at_checked(sealed.len().checked_sub(SEAL_BYTES)?)?;
    mac(&identity.token_key, &identity.incarnation, content).verify_truncated_left(seal).ok()?;
    let mut reader = Reader::new(content);
    let format = reader.u8("watermark format").ok()?;
    let issued_to = reader.array("remote id").ok()?;
    let count = reader.varint("count").ok()?;
    let name = match format {
        FORMAT => Some(reader.array("name").ok()?),
        FORMAT_WITHOUT_NAME => None,
        _ => return None,
    };
    Some((issued_to, Presented { count, name }, reader.rest().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(incarnation: u8) -> Identity {
        Identity {
            incarnation: [incarnation; 16],
            note: [0; 16],
            database_id: String::new(),
            token_key: [7; 32],
            format_version: 1,
        }
    }

    fn watermarks(marks: Vec<Vec<u8>>) -> Watermarks {
        Watermarks { marks, entries: Vec::new() }
    }

    #[test]
    fn what_was_sealed_comes_back() {
        let marks = [(1, 5, &b"one"[..]), (1, 9, b"two"), (2, 300, b"")];
        let sealed = marks.map(|(to, count, mark)| seal(&[7; 32], &[3; 16], &[to; 16], (count, &[to; 8]), mark));
        let opened = open(&identity(3), &watermarks(sealed.to_vec()));
        assert_eq!(opened.watermarks.marks, [b"one".to_vec(), b"two".to_vec(), Vec::new()]);
        let presented = |to: u8, count| ([to; 16], Presented { count, name: Some([to; 8]) });
        assert_eq!(opened.counts, BTreeSet::from([presented(1, 5), presented(1, 9), presented(2, 300)]));
    }

    #[test]
    fn a_mark_from_before_counts_had_names_opens() {
        let mut sealed = vec![2];
        sealed.extend_from_slice(&[1; 16]);
        sealed.put_varint(300);
        sealed.extend_from_slice(b"mark");
        let tag = mac(&[7; 32], &[3; 16], &sealed).finalize().into_bytes();
        sealed.extend_from_slice(&tag[..SEAL_BYTES]);
        let opened = open_one(&identity(3), &sealed);
        assert_eq!(opened, Some(([1; 16], Presented { count: 300, name: None }, b"mark".to_vec())));
    }

    #[test]
    fn a_mark_says_of_which_columns_it_has_seen_nothing() {
        let sealed = seal(&[7; 32], &[3; 16], &[1; 16], (5, &[9; 8]), b"mark");
        let extended = ExtendedMark { columns: vec![2, 3], sealed: sealed.clone() }.to_bytes();
        assert_eq!(
            open_one(&identity(3), &extended),
            None,
            "to a server that does not know of them: the table comes whole"
        );
        let twice = [&[0x45, 2, 3, 3][..], &sealed].concat();
        let opened = open(&identity(3), &watermarks(vec![sealed, extended, twice]));
        assert_eq!(opened.watermarks.marks, [b"mark".to_vec(), b"mark".to_vec(), Vec::new()]);
        assert_eq!(opened.extended, [vec![], vec![2, 3], vec![]]);
    }

    #[test]
    fn nothing_else_opens() {
        let sealed = seal(&[7; 32], &[3; 16], &[1; 16], (5, &[9; 8]), b"mark");
        let is_open = |identity: &Identity, sealed: &[u8]| open_one(identity, sealed).is_some();
        assert!(is_open(&identity(3), &sealed));
        assert!(!is_open(&identity(4), &sealed), "of another incarnation");
        assert!(!is_open(&Identity { token_key: [8; 32], ..identity(3) }, &sealed), "of another key");
        for place in 0..sealed.len() {
            assert!(!is_open(&identity(3), &sealed[..place]), "cut at {place}");
            let mut forged = sealed.clone();
            forged[place] ^= 1;
            assert!(!is_open(&identity(3), &forged), "a bit flipped at {place}");
        }
    }
}
