//! Frames: what a stream is cut into.
//!
//! ```text
//! 0   u32  length of the payload as it travels
//! 4   u8   kind
//! 5   u8   flags: bit 0 = the payload is compressed; others 0
//! 6   u16  0
//! 8   u32  CRC-32C of bytes 0..8 and the payload
//! 12  ...  payload; compressed: u32 length uncompressed, then one zstd frame
//! ```
//!
//! Little-endian. A length above the limit is refused when the header is read, before anything is reserved for it.

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

use crate::wire::DecodeError;

/// Bytes of a frame before its payload.
pub const HEADER_BYTES: usize = 12;
/// How full a frame of rows gets before it is closed.
pub const ROWS_BYTES_TARGET: usize = 64 * 1024;
/// Payloads below this are not compressed.
const COMPRESS_BYTES_MIN: usize = 256;
const COMPRESSION_LEVEL: i32 = 1;
const COMPRESSED: u8 = 1;

/// What a frame is. The numbers are the wire's and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Remote to server, first: who syncs, and what it has seen.
    Hello = 0x01,
    /// Both ways: the table that the rows after it belong to.
    Table = 0x02,
    /// Remote to server: changed rows.
    Changes = 0x03,
    /// Remote to server: the upload is whole.
    UploadEnd = 0x04,
    /// Remote to server: an upload that came before, in pieces, by ticket.
    Ticket = 0x05,
    /// Both ways, last: nothing is missing.
    End = 0x0f,
    /// Server to remote, first after heartbeats: the incarnation, and what the server knows of the remote.
    Welcome = 0x10,
    /// Server to remote: the outcome of each change uploaded.
    Receipt = 0x11,
    /// Server to remote: the download's ID and what it needs.
    Download = 0x12,
    /// Server to remote: a partition comes whole, or is left.
    Partition = 0x13,
    /// Server to remote: rows to store or to delete.
    Rows = 0x14,
    /// Server to remote: what has been seen when this download is applied.
    Watermarks = 0x15,
    /// Server to remote: ranges of integer keys (reserved).
    KeyRanges = 0x16,
    /// Server to remote: still working.
    Heartbeat = 0x17,
    /// Server to remote: why there is no more.
    Error = 0x18,
    /// Server to remote: rows of a partition that are to be got in chunks.
    Snapshot = 0x19,
    /// Server to remote: a ready file that a new remote may begin with.
    ReadyFile = 0x1a,
    /// Server to client of cursors, first: what it takes.
    CursorWelcome = 0x30,
    /// Client to server: opens a cursor.
    CursorOpen = 0x31,
    /// Client to server: more rows of a cursor may come.
    CursorCredit = 0x32,
    /// Client to server: no more rows of a cursor are wanted.
    CursorCancel = 0x33,
    /// Server to client: the columns of a cursor.
    CursorColumns = 0x34,
    /// Server to client: rows of a cursor.
    CursorRows = 0x35,
    /// Server to client: all rows of a cursor have come.
    CursorEnd = 0x36,
    /// Server to client: a cursor has ended without all of its rows.
    CursorFailed = 0x37,
}

impl Kind {
    const ALL: [Kind; 25] = [
        Kind::Hello,
        Kind::Table,
        Kind::Changes,
        Kind::UploadEnd,
        Kind::Ticket,
        Kind::End,
        Kind::Welcome,
        Kind::Receipt,
        Kind::Download,
        Kind::Partition,
        Kind::Rows,
        Kind::Watermarks,
        Kind::KeyRanges,
        Kind::Heartbeat,
        Kind::Error,
        Kind::Snapshot,
        Kind::ReadyFile,
        Kind::CursorWelcome,
        Kind::CursorOpen,
        Kind::CursorCredit,
        Kind::CursorCancel,
        Kind::CursorColumns,
        Kind::CursorRows,
        Kind::CursorEnd,
        Kind::CursorFailed,
    ];

    /// The kind with this number.
    pub fn from_wire(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

thread_local! {
    // What zstd needs room for is made once a thread: to make it anew for each frame takes longer than to compress a small one. It stays below
    // two megabytes at this level, whatever a frame's size.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compressed, if that goes well.
fn squeezed(payload: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => kept.insert(Compressor::new(COMPRESSION_LEVEL).ok()?),
        };
        compressor.compress(payload).ok()
    })
}

/// What was compressed, if it is that and comes to no more than these bytes.
fn restored(body: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new().ok()?),
        };
        decompressor.decompress(body, bytes_max).ok()
    })
}

/// A frame whose payload is as it travels: checked, perhaps still compressed. What is spooled and staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    compressed: bool,
    payload: Vec<u8>,
}

impl Frame {
    /// A frame with this payload, uncompressed.
    pub fn new(kind: Kind, payload: Vec<u8>) -> Frame {
        Frame { kind, compressed: false, payload }
    }

    /// A frame with this payload, compressed where that makes it smaller by a tenth.
    pub fn packed(kind: Kind, payload: Vec<u8>) -> Frame {
        if payload.len() >= COMPRESS_BYTES_MIN
            && let Some(body) = squeezed(&payload)
            && body.len() + 4 < payload.len() / 10 * 9
        {
            let mut compressed = (payload.len() as u32).to_le_bytes().to_vec();
            compressed.extend_from_slice(&body);
            return Frame { kind, compressed: true, payload: compressed };
        }
        Frame::new(kind, payload)
    }

    /// The frame that these bytes are, and nothing else; they are taken over rather than copied.
    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<Frame, DecodeError> {
        let needed = |bytes: usize| DecodeError::Truncated { field: "frame", needed: bytes };
        let (head, payload) = bytes.split_first_chunk().ok_or(needed(HEADER_BYTES.saturating_sub(bytes.len())))?;
        let header = Header::read(head, payload.len())?;
        if header.length > payload.len() {
            return Err(needed(header.length - payload.len()));
        }
        header.check(head, payload)?;
        bytes.drain(..HEADER_BYTES);
        Ok(Frame { kind: header.kind, compressed: header.compressed, payload: bytes })
    }

    /// Bytes that the frame takes on the wire.
    pub fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// Bytes that the payload takes uncompressed. That is what it says of itself, which [`Frame::payload`] checks.
    pub fn plain_bytes(&self) -> usize {
        match self.payload.first_chunk() {
            Some(length) if self.compressed => u32::from_le_bytes(*length) as usize,
            _ => self.payload.len(),
        }
    }

    /// Appends the frame as it travels.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[4] = self.kind as u8;
        head[5] = if self.compressed { COMPRESSED } else { 0 };
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&head), &self.payload);
        out.extend_from_slice(&head);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&self.payload);
    }

    /// The frame as it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.wire_bytes());
        self.write(&mut out);
        out
    }

    /// The same payload as [`Frame::payload`], taken over rather than copied where it is not compressed.
    pub fn into_payload(self, limit: usize) -> Result<Vec<u8>, DecodeError> {
        if self.compressed { self.payload(limit).map(std::borrow::Cow::into_owned) } else { Ok(self.payload) }
    }

    /// The payload, decompressed if need be, at most `limit` bytes.
    pub fn payload(&self, limit: usize) -> Result<std::borrow::Cow<'_, [u8]>, DecodeError> {
        if !self.compressed {
            return Ok(self.payload.as_slice().into());
        }
        let (length, body) = self.payload.split_first_chunk::<4>().ok_or(DecodeError::Truncated {
            field: "uncompressed length",
            needed: 4usize.saturating_sub(self.payload.len()),
        })?;
        let expected = u32::from_le_bytes(*length) as usize;
        if expected > limit {
            return Err(DecodeError::TooLarge {
                field: "uncompressed length",
                actual: expected as u64,
                limit: limit as u64,
            });
        }
        // The buffer is reserved by an announced length, but one that has just been held against the limit.
        let plain = restored(body, expected).ok_or(DecodeError::Compression { expected })?;
        if plain.len() != expected {
            return Err(DecodeError::Compression { expected });
        }
        Ok(plain.into())
    }
}

/// What a frame's first bytes say.
#[derive(Debug)]
struct Header {
    length: usize,
    kind: Kind,
    compressed: bool,
    checksum: u32,
}

impl Header {
    fn read(head: &[u8; HEADER_BYTES], payload_bytes_max: usize) -> Result<Header, DecodeError> {
        let number =
            |place: usize| u32::from_le_bytes([head[place], head[place + 1], head[place + 2], head[place + 3]]);
        let length = number(0) as usize;
        if length > payload_bytes_max {
            let (actual, limit) = (length as u64, payload_bytes_max as u64);
            return Err(DecodeError::TooLarge { field: "frame length", actual, limit });
        }
        let undefined = |field, actual: u8| DecodeError::Undefined { field, actual: u64::from(actual) };
        let kind = Kind::from_wire(head[4]).ok_or(undefined("frame kind", head[4]))?;
        if head[5] & !COMPRESSED != 0 {
            return Err(undefined("frame flags", head[5]));
        }
        if head[6] != 0 || head[7] != 0 {
            return Err(undefined("frame reserved", head[6] | head[7]));
        }
        Ok(Header { length, kind, compressed: head[5] == COMPRESSED, checksum: number(8) })
    }

    fn check(&self, head: &[u8; HEADER_BYTES], payload: &[u8]) -> Result<(), DecodeError> {
        let actual = crc32c::crc32c_append(crc32c::crc32c(&head[..8]), payload);
        let expected = self.checksum;
        if actual == expected { Ok(()) } else { Err(DecodeError::Checksum { actual, expected }) }
    }
}

/// How many bytes the frame that begins so takes as it travels, and how many its payload takes uncompressed. That is what it says of
/// itself: nothing is checked, but nobody who reads it takes more. `None`: these are too few bytes to tell.
pub fn announced_bytes(beginning: &[u8]) -> Option<(u64, u64)> {
    let (head, body) = beginning.split_first_chunk::<HEADER_BYTES>()?;
    let (length, _) = head.split_first_chunk::<4>()?;
    let length = u64::from(u32::from_le_bytes(*length));
    let plain = match (head[5] & COMPRESSED, body.first_chunk::<4>()) {
        (COMPRESSED, Some(plain)) if length >= 4 => u64::from(u32::from_le_bytes(*plain)),
        _ => length,
    };
    Some((HEADER_BYTES as u64 + length, plain))
}

/// Takes frames out of a stream that comes in arbitrary pieces.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    read: usize,
    payload_bytes_max: usize,
}

impl Decoder {
    /// A decoder that refuses payloads (as they travel) above `payload_bytes_max`.
    pub fn new(payload_bytes_max: usize) -> Decoder {
        Decoder { buffer: Vec::new(), read: 0, payload_bytes_max }
    }

    /// Adds bytes that came. The caller takes out the frames before it adds more, so the buffer holds at most one frame and one
    /// piece.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 && self.read * 2 >= self.buffer.len() {
            self.buffer.drain(..self.read);
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; `None`: more bytes are needed. After an error the stream can't be read on.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        let rest = &self.buffer[self.read..];
        let Some((head, body)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let header = Header::read(head, self.payload_bytes_max)?;
        let Some(payload) = body.get(..header.length) else {
            return Ok(None);
        };
        header.check(head, payload)?;
        let frame = Frame { kind: header.kind, compressed: header.compressed, payload: payload.to_vec() };
        self.read += HEADER_BYTES + header.length;
        if self.read == self.buffer.len() {
            self.buffer.clear();
            self.read = 0;
        }
        Ok(Some(frame))
    }

    /// Whether the stream stands between two frames.
    pub fn is_at_boundary(&self) -> bool {
        self.read == self.buffer.len()
    }
}
