//! How a request to the pool fails.

use std::fmt;
use std::io;

use thiserror::Error;

/// How a request to the pool fails. Whatever it is, other sessions and what they hold are as they were.
#[derive(Debug, Error)]
pub enum Error {
    /// The pool can't be made, or changed, like this.
    #[error("buffer pool: {0}")]
    Config(String),
    /// What others have claimed, or the floors of other classes, leave no room. Nothing was claimed.
    #[error(
        "no room in the buffer pool for {bytes} bytes of {name}: its budget is {budget_bytes} bytes, held by {holders}; \
         raise budget_bytes"
    )]
    NoRoom {
        /// Who wanted it.
        name: String,
        /// How much.
        bytes: u64,
        /// The whole pool.
        budget_bytes: u64,
        /// Who has it.
        holders: Holders,
    },
    /// The budget can't be so small: more of it is claimed. It is as it was.
    #[error("the buffer pool's budget can't be {bytes} bytes now: {claimed_bytes} are claimed, held by {holders}")]
    BudgetHeld {
        /// What it was to be.
        bytes: u64,
        /// What is claimed, the floors among it.
        claimed_bytes: u64,
        /// Who has it.
        holders: Holders,
    },
    /// The floors can't be so high: with what is claimed beside them they come to more than the budget. They are as they were.
    #[error(
        "the floors can't be so high now: with what others have claimed they come to {wanted_bytes} bytes, and the budget is {budget_bytes} \
         bytes, held by {holders}"
    )]
    FloorsHeld {
        /// What all classes would have, or have claimed.
        wanted_bytes: u64,
        /// The whole pool.
        budget_bytes: u64,
        /// Who has it.
        holders: Holders,
    },
    /// Private buffers of all scans take a quarter of the budget at most. Nothing was claimed.
    #[error(
        "no room in the buffer pool for {bytes} bytes of private buffers of {name}: all scans together may have {bytes_max} bytes, a \
         quarter of the budget; raise budget_bytes"
    )]
    ScansFull {
        /// Who wanted them.
        name: String,
        /// How much.
        bytes: u64,
        /// What all may have.
        bytes_max: u64,
    },
    /// A session pins as many blocks as it has claimed. Those stay pinned.
    #[error("{name} pins {pins} blocks of the buffer pool already, as many as it has claimed")]
    PinsTaken {
        /// Whose session.
        name: String,
        /// What it has claimed.
        pins: u32,
    },
    /// What was to be kept has more bytes than a block.
    #[error("block {number} of object {object} has {bytes} bytes, expected at most {bytes_max}")]
    TooLong {
        /// The block's object.
        object: u64,
        /// Its number.
        number: u64,
        /// How many it has.
        bytes: usize,
        /// A block's size.
        bytes_max: usize,
    },
    /// The overflow file had no room for a block of this spool: the disk is full, or the file as large as it may be. The spool is lost,
    /// and nothing else.
    #[error(
        "{name} has failed: the buffer pool's overflow file has no room for a block of it; make room in overflow_folder, or raise \
         overflow_bytes_max, whichever it is"
    )]
    DiskFull {
        /// Whose block it was.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A block of this spool could not be written to the overflow file, or read from it. The spool is lost, and nothing else.
    #[error("{name} is lost: a block of it can't be written to the buffer pool's overflow file, or read from it")]
    Overflow {
        /// Whose block it was.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// What came back from the overflow file is not what was written. The spool is lost, and nothing else.
    #[error(
        "{name} is lost: its block {number} came back from the overflow file with checksum {found:08x}, expected {expected:08x}"
    )]
    Damaged {
        /// Whose block it was.
        name: String,
        /// Its number.
        number: u64,
        /// Of what was read.
        found: u32,
        /// Of what was written.
        expected: u32,
    },
    /// What was asked for is not there: it lies before what was forgotten, or behind the end.
    #[error("{name}: there are bytes {start} to {end}, not byte {position}")]
    OutOfRange {
        /// Whose spool it was.
        name: String,
        /// What was asked for.
        position: u64,
        /// The first byte that is there.
        start: u64,
        /// Where the next goes.
        end: u64,
    },
}

/// Who holds a pool, those with the most bytes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Their names and bytes; of many, the first few.
    pub first: Vec<(String, u64)>,
    /// How many there are beside.
    pub others: usize,
    /// Bytes of floors that nobody has claimed, kept for their classes.
    pub floors_bytes: u64,
}

impl Error {
    /// The overflow file failed a spool like this.
    pub(crate) fn overflow(name: &str, source: io::Error) -> Error {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let name = name.to_owned();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Error::DiskFull { name, source },
            _ => Error::Overflow { name, source },
        }
    }

    /// Whether the same may go through later.
    pub fn retry_helps(&self) -> bool {
        match self {
            Error::NoRoom { .. }
            | Error::BudgetHeld { .. }
            | Error::FloorsHeld { .. }
            | Error::ScansFull { .. }
            | Error::PinsTaken { .. }
            | Error::DiskFull { .. } => true,
            Error::Overflow { .. }
            | Error::Damaged { .. }
            | Error::Config(_)
            | Error::TooLong { .. }
            | Error::OutOfRange { .. } => false,
        }
    }

    /// A short name that stays.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Config(_) => "config",
            Error::NoRoom { .. } => "no_room",
            Error::BudgetHeld { .. } => "budget_held",
            Error::FloorsHeld { .. } => "floors_held",
            Error::ScansFull { .. } => "scans_full",
            Error::PinsTaken { .. } => "pins_taken",
            Error::TooLong { .. } => "too_long",
            Error::DiskFull { .. } => "disk_full",
            Error::Overflow { .. } => "overflow",
            Error::Damaged { .. } => "damaged",
            Error::OutOfRange { .. } => "out_of_range",
        }
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, bytes) in &self.first {
            write!(to, "{separator}{name} ({bytes} bytes)")?;
            separator = ", ";
        }
        if self.others > 0 {
            write!(to, "{separator}{} others", self.others)?;
            separator = ", ";
        }
        if self.floors_bytes > 0 {
            write!(to, "{separator}the floors of classes ({} bytes)", self.floors_bytes)?;
            separator = ", ";
        }
        if separator.is_empty() { write!(to, "nobody") } else { Ok(()) }
    }
}
