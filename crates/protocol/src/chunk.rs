//! Chunks: frames that travel beside the answer, sealed, so that caches may keep what they can't read.
//!
//! ```text
//! chunk   AES-256-GCM of whole frames (TABLE, then ROWS), its tag of 16 bytes last
//!         key: SNAPSHOT's; nonce: the chunk's place among SNAPSHOT's (u64, little-endian), then four zero bytes; nothing else is authenticated
//! ```
//!
//! A key seals one snapshot, so no nonce comes twice under it. The tag keeps out who does not have the key; the digest in SNAPSHOT, who
//! has it: any member could make another chunk that opens, and put it into a cache.
//!
//! ```
//! # use headwater_protocol::{chunk, Frame, Kind};
//! let (key, frame) = (chunk::Key::new([7; 32]), Frame::new(Kind::Rows, vec![1, 2, 3]));
//! let sealed = chunk::seal(&key, 0, frame.to_bytes());
//! assert_eq!(chunk::open(&key, 0, sealed.clone()), Some(frame.to_bytes()));
//! assert_eq!(chunk::open(&key, 1, sealed), None);
//! ```

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest as _, Sha256};

use crate::frame::{Decoder, Frame, Kind, ROWS_BYTES_TARGET};
use crate::limits::{Limits, ROW_BYTES_MAX};
use crate::message::ChunkRef;
use crate::wire::DecodeError;

/// How full a chunk gets before it is sealed: what caches keep in memory with their defaults.
pub const CHUNK_BYTES_TARGET: usize = 480 * 1024;
/// The most bytes of a chunk: the target, and then a frame of one row, whatever it takes.
pub const CHUNK_BYTES_MAX: usize = ROW_BYTES_MAX + 4 * ROWS_BYTES_TARGET + CHUNK_BYTES_TARGET;

/// What opens the chunks of a snapshot.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// From 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Its bytes, for SNAPSHOT alone.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    fn cipher(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.0).expect("a key of 32 bytes"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Seals whole frames as the chunk at this place. Each place once under a key.
pub fn seal(key: &Key, place: u64, mut frames: Vec<u8>) -> Vec<u8> {
    let sealed = key.cipher().seal_in_place_append_tag(nonce(place), Aad::empty(), &mut frames);
    sealed.expect("a chunk is far below what the cipher takes");
    frames
}

/// The frames in a chunk; `None`: it was not sealed by this key at this place.
pub fn open(key: &Key, place: u64, mut chunk: Vec<u8>) -> Option<Vec<u8>> {
    let length = key.cipher().open_in_place(nonce(place), Aad::empty(), &mut chunk).ok()?.len();
    chunk.truncate(length);
    Some(chunk)
}

/// SHA-256 of a chunk as it travels.
pub fn digest(chunk: &[u8]) -> [u8; 32] {
    Sha256::digest(chunk).into()
}

/// The frames in a chunk that came; `None`: it is not the one that SNAPSHOT names.
pub fn open_named(key: &Key, place: u64, named: &ChunkRef, chunk: Vec<u8>) -> Option<Vec<u8>> {
    let is_named = chunk.len() == named.bytes as usize && digest(&chunk) == named.digest;
    if is_named { open(key, place, chunk) } else { None }
}

/// Takes the frames out of an opened chunk: TABLE and ROWS, whole.
pub fn frames(opened: &[u8]) -> Result<Vec<Frame>, DecodeError> {
    let mut decoder = Decoder::new(Limits::ANSWER.frame_bytes_max);
    decoder.push(opened);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        if !matches!(frame.kind, Kind::Table | Kind::Rows) {
            return Err(DecodeError::Undefined { field: "frame in a chunk", actual: frame.kind as u64 });
        }
        frames.push(frame);
    }
    let is_whole = decoder.is_at_boundary();
    if is_whole { Ok(frames) } else { Err(DecodeError::Truncated { field: "frame in a chunk", needed: 1 }) }
}

fn nonce(place: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&place.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(chunk: &[u8]) -> ChunkRef {
        ChunkRef { id: [1; 16], bytes: chunk.len() as u32, digest: digest(chunk) }
    }

    #[test]
    fn a_chunk_opens_under_its_key_at_its_place_alone() {
        let (key, frame) = (Key::new([7; 32]), Frame::new(Kind::Rows, vec![1, 2, 3]));
        let sealed = seal(&key, 5, frame.to_bytes());
        assert_eq!(sealed.len(), frame.wire_bytes() + 16);
        assert_eq!(open_named(&key, 5, &named(&sealed), sealed.clone()), Some(frame.to_bytes()));
        assert_eq!(open(&key, 6, sealed.clone()), None, "at another place");
        assert_eq!(open(&Key::new([8; 32]), 5, sealed.clone()), None, "by another key");
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open_named(&key, 5, &named(&sealed), flipped.clone()), None, "bit {bit}");
            assert_eq!(open(&key, 5, flipped), None, "bit {bit}");
        }
    }

    /// Who is a member has the key, and could put a chunk of his own into a cache.
    #[test]
    fn another_chunk_that_opens_is_not_the_one_that_was_named() {
        let key = Key::new([7; 32]);
        let frame = |id| Frame::new(Kind::Rows, vec![1, 1, id]).to_bytes();
        let (sealed, forged) = (seal(&key, 0, frame(2)), seal(&key, 0, frame(4)));
        assert_eq!(open(&key, 0, forged.clone()), Some(frame(4)), "it opens");
        assert_eq!(open_named(&key, 0, &named(&sealed), forged), None);
    }

    #[test]
    fn a_chunk_has_whole_frames_of_rows_and_nothing_else() {
        let rows = Frame::new(Kind::Rows, vec![1]);
        let two = [rows.to_bytes(), rows.to_bytes()].concat();
        assert_eq!(frames(&two), Ok(vec![rows.clone(), rows]));
        assert!(frames(&two[..two.len() - 1]).is_err(), "cut");
        assert!(frames(&Frame::new(Kind::Watermarks, vec![0, 0]).to_bytes()).is_err(), "what only the answer may say");
    }
}
