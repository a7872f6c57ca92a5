//! What a peer may send. Each limit is held before anything is reserved for what it bounds.

use std::borrow::Cow;

use crate::frame::{Frame, ROWS_BYTES_TARGET};
use crate::wire::DecodeError;

/// The most bytes in a row, as it is encoded: larger ones don't travel, in either direction. A frame of changes has room for two (what
/// the row was, what it is), so that whatever came down can go up again changed.
pub const ROW_BYTES_MAX: usize = 64 << 20;

/// The limits on one stream of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes in a frame's payload, as it travels and uncompressed alike.
    pub frame_bytes_max: usize,
    /// The most bytes in all frames, each counted as it travels or uncompressed, whichever is more: a stream that compresses
    /// well doesn't get round it.
    pub total_bytes_max: u64,
    /// The most frames.
    pub frames_max: u64,
}

impl Limits {
    /// What a server takes in one request: frames of 16 MiB, 1 GiB in all. Larger frames come in pieces.
    pub const REQUEST: Limits = Limits { frame_bytes_max: 16 << 20, total_bytes_max: 1 << 30, frames_max: 1 << 20 };

    /// What a server takes in pieces unless it is configured otherwise: frames of two rows, 1 GiB in all.
    pub const PIECES: Limits = Limits { frame_bytes_max: 2 * ROW_BYTES_MAX + ROWS_BYTES_TARGET, ..Limits::REQUEST };

    /// What a remote takes unless it is configured otherwise: frames of one row and the small ones before it, 1 TiB in all.
    pub const ANSWER: Limits = Limits {
        frame_bytes_max: ROW_BYTES_MAX + 2 * ROWS_BYTES_TARGET,
        total_bytes_max: 1 << 40,
        frames_max: 1 << 40,
    };
}

/// Counts what has come against the limits, and decompresses within them.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    bytes: u64,
    frames: u64,
}

impl Meter {
    pub(crate) fn new(limits: Limits) -> Meter {
        Meter { limits, bytes: 0, frames: 0 }
    }

    /// The payload of the next frame, uncompressed.
    pub(crate) fn payload<'f>(&mut self, frame: &'f Frame) -> Result<Cow<'f, [u8]>, DecodeError> {
        let payload = frame.payload(self.limits.frame_bytes_max)?;
        self.count(frame, payload.len())?;
        Ok(payload)
    }

    /// The same without decompressing it: by what it says of itself, which whoever reads it holds it to.
    pub(crate) fn note(&mut self, frame: &Frame) -> Result<(), DecodeError> {
        let (plain, limit) = (frame.plain_bytes(), self.limits.frame_bytes_max);
        if plain > limit {
            let (actual, limit) = (plain as u64, limit as u64);
            return Err(DecodeError::TooLarge { field: "uncompressed length", actual, limit });
        }
        self.count(frame, plain)
    }

    fn count(&mut self, frame: &Frame, plain_bytes: usize) -> Result<(), DecodeError> {
        let Limits { total_bytes_max, frames_max, .. } = self.limits;
        self.frames += 1;
        if self.frames > frames_max {
            return Err(DecodeError::TooLarge { field: "number of frames", actual: self.frames, limit: frames_max });
        }
        self.bytes += frame.wire_bytes().max(plain_bytes) as u64;
        if self.bytes > total_bytes_max {
            return Err(DecodeError::TooLarge { field: "total size", actual: self.bytes, limit: total_bytes_max });
        }
        Ok(())
    }
}
