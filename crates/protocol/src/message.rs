//! What each frame holds, field by field. Every message has `to_frame` and `from_payload`; docs/protocol.md has the byte tables.

mod answer;
mod download;
mod extended;
mod outcome;
mod request;
mod snapshot;
mod table;

pub use answer::{
    ErrorCode, Fault, FrozenFate, PartitionAction, PartitionMark, ServerError, WatermarkEntry, Watermarks, Welcome,
};
pub use download::{Download, KeyRange, KeyRanges, ReadyFile, Ticket};
pub use extended::ExtendedMark;
pub use outcome::{ConflictEnd, Outcome, Receipt, Refusal, RefusalCode};
pub use request::{AppliedUpload, FrozenUpload, Hello, UploadEnd};
pub use snapshot::{CHUNK_URL_BYTES_MAX, CHUNKS_MAX, ChunkRef, Snapshot};
pub use table::{Change, ChangeOp, RowOp, RowsReader, TableHeader};

use crate::wire::whole;

/// The protocol's version, in HELLO's first byte.
pub const VERSION: u8 = 1;
/// The most partitions and tables that one remote's watermarks may name.
pub const WATERMARK_ENTRIES_MAX: usize = 1_000_000;
/// The most bytes in one watermark.
pub const WATERMARK_BYTES_MAX: usize = 64 * 1024;
/// The most bytes in a partition's key.
pub const PARTITION_KEY_BYTES_MAX: usize = 4 * 1024;
/// The most bytes in a name.
pub const NAME_BYTES_MAX: usize = 256;
/// The most columns of a table.
pub const COLUMNS_MAX: usize = 1_000;
/// Bytes of a ready file that a zstd frame has where it comes compressed: from a multiple of them on.
pub const READY_BLOCK_BYTES: u64 = 256 * 1024;
/// The most key ranges in one frame.
pub const KEY_RANGES_MAX: usize = 10_000;
/// The most uploads that a HELLO names.
pub const UPLOADS_NAMED_MAX: usize = 8;
/// The most bytes of a text for people.
pub const TEXT_BYTES_MAX: usize = 4 * 1024;
