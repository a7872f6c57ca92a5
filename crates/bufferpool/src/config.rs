//! What a pool is given: its blocks' size, its budget with a floor for each class, its policy, its overflow.

use std::path::PathBuf;

use crate::Error;

/// The most that `skips` may be.
pub const SKIPS_MAX: u32 = i32::MAX as u32;
/// Sizes that a block may have.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 512..=1 << 20;

/// What a block is for. It decides what becomes of one for which there is no room in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Uploads on their way: must not be lost, so they overflow.
    Upload,
    /// Downloads on their way: must not be lost, so they overflow.
    Download,
    /// The gateway's answers: can be made again, so they are evicted.
    Answer,
    /// Chunks of snapshots: can be read again, so they are evicted.
    Chunk,
}

/// How the block that has to go is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The least recently used goes. A block is moved to the recent end on every `skips`-th access to it alone (0 and 1: on each), so
    /// that the one chain of all blocks need not be locked for every hit; too many skips raise the misses.
    Lru {
        /// Up to [`SKIPS_MAX`]; adjustable while the pool runs.
        skips: u32,
    },
    /// S3-FIFO (Yang et al., SOSP 2023): new blocks queue in a small part, and only what is asked for again gets into the main one. What
    /// is read once, as by a scan, goes without washing anything out; a hit never locks the chain.
    S3Fifo,
}

/// Bytes that each class has whatever the others want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floors {
    /// Of [`Class::Upload`].
    pub upload: u64,
    /// Of [`Class::Download`].
    pub download: u64,
    /// Of [`Class::Answer`].
    pub answer: u64,
    /// Of [`Class::Chunk`].
    pub chunk: u64,
}

/// A pool's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of all blocks in memory, those of private buffers among them; adjustable while the pool runs.
    pub budget_bytes: u64,
    /// Of them, what each class has for sure; adjustable while the pool runs.
    pub floors: Floors,
    /// Which block goes; adjustable while the pool runs.
    pub policy: Policy,
    /// Bytes of the overflow file; adjustable while the pool runs.
    pub overflow_bytes_max: u64,
    /// Where the overflow file goes; unset: the system's own place (`TMPDIR`).
    pub overflow_folder: Option<PathBuf>,
}

impl Class {
    /// Every one.
    pub const ALL: [Class; 4] = [Class::Upload, Class::Download, Class::Answer, Class::Chunk];

    /// Its name in counters and errors.
    pub fn name(self) -> &'static str {
        match self {
            Class::Upload => "upload",
            Class::Download => "download",
            Class::Answer => "answer",
            Class::Chunk => "chunk",
        }
    }

    /// Whether its blocks must not be lost.
    pub fn is_kept(self) -> bool {
        matches!(self, Class::Upload | Class::Download)
    }
}

impl Floors {
    /// That of a class.
    pub fn of(&self, class: Class) -> u64 {
        self.all()[class as usize]
    }

    /// The same with another floor for a class.
    #[must_use]
    pub fn with(mut self, class: Class, bytes: u64) -> Floors {
        match class {
            Class::Upload => self.upload = bytes,
            Class::Download => self.download = bytes,
            Class::Answer => self.answer = bytes,
            Class::Chunk => self.chunk = bytes,
        }
        self
    }

    pub(crate) fn all(&self) -> [u64; Class::ALL.len()] {
        [self.upload, self.download, self.answer, self.chunk]
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            block_bytes: 16 << 10,
            budget_bytes: 64 << 20,
            floors: Floors { upload: 8 << 20, download: 8 << 20, answer: 8 << 20, chunk: 8 << 20 },
            policy: Policy::S3Fifo,
            overflow_bytes_max: 64 << 30,
            overflow_folder: None,
        }
    }
}

impl Config {
    /// Whether a pool can be made of it.
    pub fn validate(&self) -> Result<(), Error> {
        if !BLOCK_BYTES.contains(&self.block_bytes) {
            let (low, high) = BLOCK_BYTES.into_inner();
            return Err(Error::Config(format!("block_bytes is {}, expected {low} to {high}", self.block_bytes)));
        }
        if let Policy::Lru { skips } = self.policy {
            check_skips(skips)?;
        }
        check_floors(self.budget_bytes, self.floors)
    }
}

pub(crate) fn check_skips(skips: u32) -> Result<(), Error> {
    if skips > SKIPS_MAX {
        return Err(Error::Config(format!("skips is {skips}, expected at most {SKIPS_MAX}")));
    }
    Ok(())
}

pub(crate) fn check_floors(budget: u64, floors: Floors) -> Result<(), Error> {
    let sum = floors.all().iter().fold(0_u64, |sum, floor| sum.saturating_add(*floor));
    if sum > budget {
        return Err(Error::Config(format!(
            "the floors come to {sum} bytes, more than budget_bytes, which is {budget}"
        )));
    }
    Ok(())
}
