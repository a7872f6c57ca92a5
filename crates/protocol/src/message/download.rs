//! DOWNLOAD, READY_FILE, KEY_RANGES, TICKET.

use super::{KEY_RANGES_MAX, whole};
use crate::frame::{Frame, Kind};
use crate::wire::{DecodeError, Write};

/// The download that begins with this frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// Its ID, unguessable. The remote's next HELLO names it when it has been applied.
    pub id: [u8; 16],
    /// For how many seconds it can be resumed by its ID; 0: not at all.
    pub resumable_s: u32,
    /// How many rows and deletions follow, exactly or about; 0 if that isn't known yet. For people, never for correctness.
    pub rows: u64,
    /// How many bytes of frames follow this one, END included; the same holds.
    pub bytes: u64,
}

impl Download {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::with_capacity(36);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.resumable_s.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        Frame::new(Kind::Download, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Download, DecodeError> {
        whole(payload, "download", |reader| {
            Ok(Download {
                id: reader.array("download id")?,
                resumable_s: reader.u32("resumable")?,
                rows: reader.u64("rows")?,
                bytes: reader.u64("bytes")?,
            })
        })
    }
}

/// A ready file, with which a new remote may begin in the place of its first download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyFile {
    /// Its ID, unguessable, good for the user and the remote that asked.
    pub id: [u8; 16],
    /// SHA-256 of its bytes.
    pub digest: [u8; 32],
    /// How many bytes it has.
    pub bytes: u64,
    /// How many rows. For people.
    pub rows: u64,
    /// For how many seconds after the last request for it the ID is good.
    pub kept_s: u32,
}

impl ReadyFile {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::with_capacity(68);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.digest);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.kept_s.to_le_bytes());
        Frame::new(Kind::ReadyFile, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<ReadyFile, DecodeError> {
        whole(payload, "ready file", |reader| {
            Ok(ReadyFile {
                id: reader.array("file id")?,
                digest: reader.array("file digest")?,
                bytes: reader.u64("file bytes")?,
                rows: reader.u64("rows")?,
                kept_s: reader.u32("kept")?,
            })
        })
    }
}

/// An upload that came before, in pieces. Stands in a request in the place of TABLE and CHANGES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The ticket.
    pub ticket: [u8; 16],
    /// How many bytes of frames came under it.
    pub bytes: u64,
}

impl Ticket {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = self.ticket.to_vec();
        out.extend_from_slice(&self.bytes.to_le_bytes());
        Frame::new(Kind::Ticket, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Ticket, DecodeError> {
        whole(payload, "ticket", |reader| Ok(Ticket { ticket: reader.array("ticket")?, bytes: reader.u64("bytes")? }))
    }
}

/// Ranges of integer keys. In an answer: those that are now this remote's. In a request: what it has left of its own, a range that is
/// used up told as its last key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges {
    /// The ranges; a table may have several.
    pub ranges: Vec<KeyRange>,
}

/// A range of integer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The table's number.
    pub table: u32,
    /// The first key.
    pub first: i64,
    /// The last key, at least the first.
    pub last: i64,
}

impl KeyRanges {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.ranges.len() as u64);
        for range in &self.ranges {
            out.put_varint(u64::from(range.table));
            out.put_signed(range.first);
            out.put_signed(range.last);
        }
        Frame::new(Kind::KeyRanges, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<KeyRanges, DecodeError> {
        whole(payload, "key ranges", |reader| {
            let mut ranges = Vec::new();
            for _ in 0..reader.count(KEY_RANGES_MAX, "key ranges")? {
                let table = reader.count(u32::MAX as usize, "table")? as u32;
                let (first, last) = (reader.signed("first key")?, reader.signed("last key")?);
                if first > last {
                    return Err(DecodeError::Undefined { field: "last key", actual: last as u64 });
                }
                ranges.push(KeyRange { table, first, last });
            }
            Ok(KeyRanges { ranges })
        })
    }
}
