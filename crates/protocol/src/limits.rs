//! What a peer may send. Each limit is held before anything is reserved for what it bounds.

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
