//! SNAPSHOT: rows of a partition that many remotes download whole, in chunks that any cache may keep.

use super::{PARTITION_KEY_BYTES_MAX, whole};
use crate::chunk::{CHUNK_BYTES_MAX, Key};
use crate::frame::{Frame, Kind};
use crate::wire::{DecodeError, Write};

/// The most chunks of a snapshot.
pub const CHUNKS_MAX: usize = 65_536;
/// The most bytes in the address of chunks.
pub const CHUNK_URL_BYTES_MAX: usize = 1_024;

/// The rows of a partition as they were in one snapshot of the consolidated database, to be got in [`chunk`](crate::chunk)s. They
/// stand where this frame stands; what has changed in them since comes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The table's number.
    pub table: u32,
    /// The partition's key, as in [`PartitionMark`](super::PartitionMark).
    pub partition: Vec<u8>,
    /// Where chunks are to be got, before `/v1/chunk/ID`; empty: where the remote syncs.
    pub url: String,
    /// What opens the chunks.
    pub key: Key,
    /// How many rows they have. For people, never for correctness.
    pub rows: u64,
    /// The chunks, in the order of their rows.
    pub chunks: Vec<ChunkRef>,
}

/// Where a chunk is, and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// Its ID, unguessable.
    pub id: [u8; 16],
    /// How many bytes it has as it travels.
    pub bytes: u32,
    /// SHA-256 of these.
    pub digest: [u8; 32],
}

impl Snapshot {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::with_capacity(64 + self.chunks.len() * 52);
        out.put_varint(u64::from(self.table));
        out.put_bytes(&self.partition);
        out.put_bytes(self.url.as_bytes());
        out.extend_from_slice(self.key.expose());
        out.put_varint(self.rows);
        out.put_varint(self.chunks.len() as u64);
        for chunk in &self.chunks {
            out.extend_from_slice(&chunk.id);
            out.put_varint(u64::from(chunk.bytes));
            out.extend_from_slice(&chunk.digest);
        }
        Frame::new(Kind::Snapshot, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Snapshot, DecodeError> {
        whole(payload, "snapshot", |reader| {
            let table = reader.count(u32::MAX as usize, "table")? as u32;
            let partition = reader.bytes(PARTITION_KEY_BYTES_MAX, "partition")?.to_vec();
            let url = reader.text(CHUNK_URL_BYTES_MAX, "address of chunks")?.to_owned();
            let key = Key::new(reader.array("key of chunks")?);
            let rows = reader.varint("rows")?;
            let mut chunks = Vec::new();
            for _ in 0..reader.count(CHUNKS_MAX, "chunks")? {
                let id = reader.array("chunk id")?;
                let bytes = reader.count(CHUNK_BYTES_MAX, "bytes of a chunk")? as u32;
                chunks.push(ChunkRef { id, bytes, digest: reader.array("digest")? });
            }
            Ok(Snapshot { table, partition, url, key, rows, chunks })
        })
    }
}
