//! What a peer may send. Each limit is held before anything is reserved for what it bounds.

use std::borrow::Cow;

use crate::frame::Frame;
use crate::wire::DecodeError;

/// The limits on one stream of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes in a frame's payload, as it travels and uncompressed alike. A row that doesn't fit can't travel.
    pub frame_bytes_max: usize,
    /// The most bytes in all frames, each counted as it travels or uncompressed, whichever is more: a stream that compresses
    /// well doesn't get round it.
    pub total_bytes_max: u64,
    /// The most frames.
    pub frames_max: u64,
}

impl Limits {
    /// What a server takes unless it is configured otherwise: frames of 16 MiB, 1 GiB in all.
    pub const REQUEST: Limits = Limits { frame_bytes_max: 16 << 20, total_bytes_max: 1 << 30, frames_max: 1 << 20 };

    /// What a remote takes unless it is configured otherwise: frames of 64 MiB, 1 TiB in all.
    pub const ANSWER: Limits = Limits { frame_bytes_max: 64 << 20, total_bytes_max: 1 << 40, frames_max: 1 << 40 };
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
        let Limits { frame_bytes_max, total_bytes_max, frames_max } = self.limits;
        self.frames += 1;
        if self.frames > frames_max {
            return Err(DecodeError::TooLarge { field: "number of frames", actual: self.frames, limit: frames_max });
        }
        let payload = frame.payload(frame_bytes_max)?;
        self.bytes += frame.wire_bytes().max(payload.len()) as u64;
        if self.bytes > total_bytes_max {
            return Err(DecodeError::TooLarge { field: "total size", actual: self.bytes, limit: total_bytes_max });
        }
        Ok(payload)
    }
}
