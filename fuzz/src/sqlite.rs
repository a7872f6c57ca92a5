//! The index rebuild's readers of SQLite's files.

use headwater_idxbuild::fuzzing;

/// Pages of a database: any bytes are an error, or are read.
pub fn pages(data: &[u8]) {
    let _ = fuzzing::pages(data);
}

/// A record, as a key of an index and back. Before it: which columns are descending, and the rowid.
pub fn key(data: &[u8]) {
    let Some((head, record)) = data.split_first_chunk::<12>() else { return };
    let descending = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let rowid = i64::from_le_bytes([head[4], head[5], head[6], head[7], head[8], head[9], head[10], head[11]]);
    fuzzing::key(record, descending, rowid);
}
