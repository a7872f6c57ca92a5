//! What is to be built: tables, and the indexes of each.

use crate::header::Encoding;
use crate::key::KeyColumn;

/// A table whose indexes are built.
#[derive(Clone, Debug)]
pub(crate) struct TableJob {
    /// Its name.
    pub(crate) name: String,
    /// The root of its B-tree.
    pub(crate) root: u32,
    /// Its indexes that are built here.
    pub(crate) indexes: Vec<IndexJob>,
}

/// An index that is built here.
#[derive(Clone, Debug)]
pub(crate) struct IndexJob {
    /// Its name.
    pub(crate) name: String,
    /// The root of its B-tree; it stays where it is.
    pub(crate) root: u32,
    /// Whether keys without NULL may stand in one row only.
    pub(crate) is_unique: bool,
    /// Its columns, without the rowid at the end.
    pub(crate) columns: Vec<KeyColumn>,
    /// How texts are stored.
    pub(crate) encoding: Encoding,
}

impl IndexJob {
    /// Which columns are descending.
    pub(crate) fn descending(&self) -> Vec<bool> {
        self.columns.iter().map(|column| column.descending).collect()
    }
}

/// The indexes of each sort group: one after another, round and round.
pub(crate) fn spread(indexes: usize, groups: usize) -> Vec<Vec<usize>> {
    (0..groups).map(|group| (group..indexes).step_by(groups).collect()).collect()
}

/// Before each key of a group of several indexes: which of them it is of.
pub(crate) fn ordinal(group: &[usize], place: usize) -> Option<[u8; 2]> {
    (group.len() > 1).then(|| (place as u16).to_be_bytes())
}
