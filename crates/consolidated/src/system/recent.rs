//! Names of counts: which of the downloads that a remote presents this database has counted itself (`remote.recent_counts`).
//!
//! A remote's sync may end at one database, its answer lost, and the next at a copy of that: both have counted one more, and the number is the
//! same. Each count has a random name. It stands in the sealed mark and, for the last [`KEPT`] counts, in the remote's row:
//!
//! | bytes | |
//! |---|---|
//! | 16 each | newest first: the count (u64, big-endian), its name |
//!
//! | what a mark names | the row | |
//! |---|---|---|
//! | a count above `syncs` | | another database's |
//! | a count with a name | lists the count under another name, or does not list it though it has room for older ones | another database's |
//! | a count with a name | lists only later ones, and has no more room | taken for this one's |
//! | a count without a name (from before counts had names) | lists the count | another database's |
//! | a count without a name | does not list it | taken for this one's |
//!
//! *Caveats.* A server from before counts had names counts without listing.

use headwater_protocol::Value;

use super::sql::bytes;
use crate::Error;

/// Of a name.
pub(super) const NAME_BYTES: usize = 8;
/// How many counts a row lists: the answers that a remote may lose in turn.
pub(super) const KEPT: usize = 16;
/// Of a count with its name.
const ENTRY_BYTES: usize = 8 + NAME_BYTES;
/// Of a full list.
pub(super) const LIST_BYTES: usize = KEPT * ENTRY_BYTES;

/// A count that a mark names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Presented {
    pub(super) count: u64,
    /// `None`: it is from before counts had names.
    pub(super) name: Option<[u8; NAME_BYTES]>,
}

/// What a remote's row has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent {
    syncs: u64,
    /// Newest first.
    listed: Vec<(u64, [u8; NAME_BYTES])>,
}

impl Recent {
    /// From the columns.
    pub(super) fn read(syncs: i64, list: Option<&Value>) -> Result<Recent, Error> {
        let list = bytes(list, "recent_counts")?;
        let entry = |entry: &[u8]| {
            let (count, name) = entry.split_first_chunk()?;
            Some((u64::from_be_bytes(*count), *name.first_chunk()?))
        };
        let listed = list.chunks(ENTRY_BYTES).map(entry).collect::<Option<Vec<_>>>();
        let listed = listed.ok_or_else(|| Error::Database {
            context: "reading column recent_counts of a table of Headwater's".to_owned(),
            detail: format!("{} bytes, expected {ENTRY_BYTES} for each count", list.len()),
        })?;
        Ok(Recent { syncs: syncs as u64, listed })
    }

    /// Whether the database has counted this, as far as it can tell.
    pub(super) fn has(&self, presented: Presented) -> bool {
        if presented.count > self.syncs {
            return false;
        }
        let listed = self.listed.iter().find(|(count, _)| *count == presented.count).map(|(_, name)| *name);
        let is_beyond =
            self.listed.len() >= KEPT && self.listed.last().is_some_and(|(last, _)| presented.count < *last);
        match (presented.name, listed) {
            (name, Some(listed)) => name == Some(listed),
            (Some(_), None) => is_beyond,
            (None, None) => true,
        }
    }

    /// One more, of this name: its number, and the list with it.
    pub(super) fn followed_by(&self, name: [u8; NAME_BYTES]) -> (u64, Vec<u8>) {
        let count = self.syncs + 1;
        let all = std::iter::once((count, name)).chain(self.listed.iter().copied()).take(KEPT);
        (count, all.flat_map(|(count, name)| [count.to_be_bytes(), name].concat()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presented(count: u64, name: Option<u8>) -> Presented {
        Presented { count, name: name.map(|name| [name; NAME_BYTES]) }
    }

    #[test]
    fn the_table_of_the_module() {
        let mut recent = Recent { syncs: 10, listed: Vec::new() };
        assert!(recent.has(presented(10, None)) && !recent.has(presented(11, None)));
        assert!(!recent.has(presented(10, Some(1))), "no count has a name here yet");
        for name in 11..=30_u8 {
            let (count, list) = recent.followed_by([name; NAME_BYTES]);
            recent = Recent::read(count as i64, Some(&Value::Bytes(list))).expect("our own bytes");
            assert_eq!(count, u64::from(name));
            assert!(recent.has(presented(count, Some(name))), "{count}");
            assert!(!recent.has(presented(count, Some(99))), "another database's");
            assert!(!recent.has(presented(count, None)), "it was given out with a name");
            assert!(!recent.has(presented(count + 1, Some(name))));
        }
        assert_eq!(recent.listed.len(), KEPT);
        assert!(recent.has(presented(15, Some(15))) && !recent.has(presented(15, Some(99))));
        assert!(recent.has(presented(14, Some(99))), "too long ago to tell");
        assert!(recent.has(presented(3, None)));
    }

    #[test]
    fn what_an_older_server_has_counted_is_not_listed() {
        let (_, list) = Recent { syncs: 4, listed: Vec::new() }.followed_by([5; NAME_BYTES]);
        let recent = Recent::read(7, Some(&Value::Bytes(list))).expect("our own bytes");
        assert!(recent.has(presented(6, None)) && recent.has(presented(5, Some(5))));
        assert!(!recent.has(presented(6, Some(6))), "with a name it was another database's");
    }

    #[test]
    fn another_length_is_named() {
        assert_eq!(Recent::read(3, Some(&Value::Null)).expect("none"), Recent { syncs: 3, listed: Vec::new() });
        for length in [1, 15, 17] {
            assert!(Recent::read(3, Some(&Value::Bytes(vec![0; length]))).is_err(), "{length}");
        }
    }
}
