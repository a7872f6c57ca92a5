//! The packer: decides how full a message gets before it is sent.
//!
//! Whoever makes messages of records asks it after each record, and sends what it has where the answer is yes. A message that is sent early
//! brings its records soon; a full one costs less for each of them. By default the packer finds the way between the two by itself: the first
//! record goes alone, each message after it has twice as many as the one before, and soon they are as full as they may be. Where the reader says how
//! many bytes it takes ahead, no message is larger than half of them: one comes while the other is read.
//!
//! | knob | meaning | range | default |
//! |---|---|---|---|
//! | `message_size` | bytes of a full message; the record that reaches it is not cut and still belongs to it | 350 to 1,048,576 | 65,536 |
//! | `records` | records after which a message goes; automatic: 1, 2, 4, ... until messages are full | 1 to 32,766 | automatic |
//! | `fill` | at how many percent of `message_size` a message goes, where `records` has not sent it before; 0: at `records` alone, or when it is full | 0 to 100 | 100 |
//! | `delay_first` | the first message is filled too; else the first record goes alone | | off |
//! | `priority` | records that are added before whoever adds them looks for other work: the end of its time, a reader who has gone | 0 to 32,766 | 64 |
//! | `idle_wait` | how long a message that has begun waits where no further record comes; then it goes as it is | 1 ms to 255 s | 10 ms |
//!
//! ```
//! use headwater_protocol::packer::{Knobs, Packer, Packing};
//!
//! let mut packer = Packer::new(&Knobs::new(Packing::default()));
//! // Records of 100 bytes: 1, then 2, then 4 of them in a message.
//! let mut messages = Vec::new();
//! let mut bytes = 0;
//! for _ in 0..7 {
//!     bytes += 100;
//!     if packer.add(bytes) {
//!         messages.push(bytes);
//!         bytes = 0;
//!     }
//! }
//! assert_eq!(messages, [100, 200, 400]);
//! ```
//!
//! # OpenEdge's knobs
//!
//! They are those of a server's prefetch queries: `-Mm`, `-prefetchNumRecs`, `-prefetchFactor`, `-prefetchDelay`, `-prefetchPriority` and
//! `-NmsgWait`, in this order, with their ranges where those don't come from the width of a field of theirs (`message_size` goes on to
//! 1 MiB). Two have changed their place, since there is no loop here that polls:
//!
//! - `priority`: OpenEdge polls its socket before each record, and by this knob after each so many only. Here a thread adds records and the
//!   runtime wakes whoever waits; what is left to look for in between is the clock and whether anybody reads still.
//! - `idle_wait`: OpenEdge blocks for so long in a poll when nothing is pending, to look after its server's own events then. An event loop is
//!   woken for those. What is left of it is the wait of a message that has begun for records that don't come: the database's, not a client's.
//!
//! Deliberately absent are `-Ma`, `-Mn`, `-Mi` and `-PendCondTime` (clients of a server process, server processes, those to be started, and
//! for how long a connection may pend): they place users on processes, and an event loop has none to be placed on.
//!
//! *Caveats.* It knows no clock and no socket: `idle_wait` is a number that whoever sends keeps to. Bytes are as they are handed in, before
//! any compression. A knob that is turned counts from the next message on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use thiserror::Error;

use crate::frame::ROWS_BYTES_TARGET;

/// The least and the most bytes of a full message.
pub const MESSAGE_SIZE: (usize, usize) = (350, 1 << 20);
/// The most records after which a message goes.
pub const RECORDS_MAX: u16 = 32_766;
/// The most records that are added before other work is looked for.
pub const PRIORITY_MAX: u16 = 32_766;
/// The shortest and the longest wait of a message that has begun.
pub const IDLE_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(255));

/// Room for the record that reaches a full message; a larger one makes its own.
const RECORD_BYTES: usize = 4_096;

/// How full messages get: the knobs of a [`Packer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bytes of a full message.
    pub message_size: usize,
    /// Records after which a message goes.
    pub records: Records,
    /// At how many percent of `message_size` a message goes; 0: at `records` alone, or when it is full.
    pub fill: u8,
    /// Whether the first message is filled too.
    pub delay_first: bool,
    /// Records that are added before other work is looked for; 0: before each.
    pub priority: u16,
    /// How long a message that has begun waits where no further record comes.
    pub idle_wait: Duration,
}

/// After how many records a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// Twice as many as in the message before.
    Automatic,
    /// So many.
    Exactly(u16),
}

/// A knob that has no such value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{knob} is {actual}, expected {expected}")]
pub struct OutOfRange {
    /// The knob.
    pub knob: &'static str,
    /// What it was to be.
    pub actual: String,
    /// What it may be.
    pub expected: String,
}

impl Default for Packing {
    fn default() -> Packing {
        Packing::AUTOMATIC
    }
}

impl Packing {
    /// First records soon, then full messages.
    pub const AUTOMATIC: Packing = Packing {
        message_size: ROWS_BYTES_TARGET,
        records: Records::Automatic,
        fill: 100,
        delay_first: false,
        priority: 64,
        idle_wait: Duration::from_millis(10),
    };

    /// Full messages from the first on: for those that nobody waits for, because they lie in a spool first or are held.
    pub const FULL: Packing = Packing { delay_first: true, ..Packing::AUTOMATIC };

    /// An error where a knob is outside of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.check_within(MESSAGE_SIZE.1)
    }

    /// The same where messages may not have more than so many bytes.
    pub fn check_within(&self, message_size_max: usize) -> Result<(), OutOfRange> {
        let out = |knob, actual: String, expected| Err(OutOfRange { knob, actual, expected });
        let Packing { message_size, records, fill, priority, idle_wait, .. } = *self;
        let (least, most) = (MESSAGE_SIZE.0, message_size_max);
        if !(least..=most).contains(&message_size) {
            return out("message_size", message_size.to_string(), format!("{least} to {most}"));
        }
        if let Records::Exactly(records) = records
            && !(1..=RECORDS_MAX).contains(&records)
        {
            return out("records", records.to_string(), format!("1 to {RECORDS_MAX}, or automatic"));
        }
        if fill > 100 {
            return out("fill", fill.to_string(), "0 to 100".to_owned());
        }
        if priority > PRIORITY_MAX {
            return out("priority", priority.to_string(), format!("0 to {PRIORITY_MAX}"));
        }
        let (shortest, longest) = IDLE_WAIT;
        if !(shortest..=longest).contains(&idle_wait) {
            return out("idle_wait", format!("{idle_wait:?}"), format!("{shortest:?} to {longest:?}"));
        }
        Ok(())
    }

    /// Bytes at which a message goes.
    fn threshold(&self) -> usize {
        match self.fill {
            0 => self.message_size,
            fill => (self.message_size * usize::from(fill)).div_ceil(100),
        }
    }
}

/// The knobs of packers that are at work. Clones are the same knobs: what is set counts for every packer from its next message on.
#[derive(Clone, Debug)]
pub struct Knobs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    packing: RwLock<Packing>,
    message_size_max: usize,
    /// How often they were set: packers look at no more than this where nothing has changed.
    turns: AtomicU64,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs::new(Packing::default())
    }
}

impl Knobs {
    /// Knobs that stand so. What is outside of its range is a fault of the caller's own, and panics.
    pub fn new(packing: Packing) -> Knobs {
        Knobs::within(packing, MESSAGE_SIZE.1)
    }

    /// The same for messages that may not have more than so many bytes.
    pub fn within(packing: Packing, message_size_max: usize) -> Knobs {
        let checked = packing.check_within(message_size_max);
        assert_eq!(checked, Ok(()), "knobs stand within their ranges");
        Knobs(Arc::new(Shared { packing: RwLock::new(packing), message_size_max, turns: AtomicU64::new(0) }))
    }

    /// Those of a download's frames: full ones, which no remote refuses for their size.
    pub fn frames() -> Knobs {
        Knobs::within(Packing::FULL, ROWS_BYTES_TARGET)
    }

    /// How they stand.
    pub fn packing(&self) -> Packing {
        *self.0.packing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most bytes of a full message.
    pub fn message_size_max(&self) -> usize {
        self.0.message_size_max
    }

    /// Sets them. After an error they stand as before.
    pub fn set(&self, packing: Packing) -> Result<(), OutOfRange> {
        packing.check_within(self.0.message_size_max)?;
        *self.0.packing.write().unwrap_or_else(PoisonError::into_inner) = packing;
        self.0.turns.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Acquire)
    }
}

/// Decides when the messages of one stream of records go.
#[derive(Debug)]
pub struct Packer {
    knobs: Knobs,
    /// The knobs as they stood when this message began, and how often they had been set.
    packing: Packing,
    turns: u64,
    /// Records of this message, and after how many it goes.
    records: u64,
    goes_after: u64,
    /// Bytes after which it goes, and after which it goes at the latest by itself ([`Packer::for_window`]).
    threshold: usize,
    by_itself: usize,
    /// Records since other work was looked for.
    unlooked: u16,
}

impl Packer {
    /// A packer of messages of which none has begun.
    pub fn new(knobs: &Knobs) -> Packer {
        let (turns, packing) = (knobs.turns(), knobs.packing());
        let (knobs, threshold) = (knobs.clone(), packing.threshold());
        let by_itself = usize::MAX;
        let goes_after = match packing {
            Packing { delay_first: false, .. } => 1,
            Packing { records: Records::Exactly(records), .. } => records.into(),
            Packing { records: Records::Automatic, .. } => u64::MAX,
        };
        Packer { knobs, packing, turns, records: 0, goes_after, threshold, by_itself, unlooked: 0 }
    }

    /// The same for a reader who takes so many bytes ahead: messages that are automatic are no larger than half of that, so that one
    /// comes while the other is read.
    #[must_use]
    pub fn for_window(self, bytes: u64) -> Packer {
        let by_itself = usize::try_from(bytes / 2).unwrap_or(usize::MAX).max(MESSAGE_SIZE.0);
        let mut packer = Packer { by_itself, ..self };
        packer.threshold = packer.full();
        packer
    }

    /// Bytes after which a message goes by the knobs as they stand.
    fn full(&self) -> usize {
        match self.packing.records {
            Records::Exactly(_) => self.packing.threshold(),
            Records::Automatic => self.packing.threshold().min(self.by_itself),
        }
    }

    /// A record was added, with which the message has so many bytes: whether it goes. If so, the next record is the first of another.
    #[inline]
    pub fn add(&mut self, bytes: usize) -> bool {
        self.records += 1;
        if self.records >= self.goes_after || bytes >= self.threshold {
            self.sent();
            return true;
        }
        false
    }

    /// The message has gone, though [`Packer::add`] has not said so: no further record came for as long as it waits, or none will.
    pub fn sent(&mut self) {
        let turns = self.knobs.turns();
        if turns != self.turns {
            (self.turns, self.packing) = (turns, self.knobs.packing());
            self.threshold = self.full();
        }
        self.goes_after = match self.packing.records {
            Records::Exactly(records) => records.into(),
            // From as many as went: one that had to go early tells that records come slowly, and the next may begin where it ended.
            Records::Automatic if self.packing.delay_first => u64::MAX,
            Records::Automatic => self.records.max(1).saturating_mul(2),
        };
        self.records = 0;
    }

    /// A record is to be added: whether other work is looked for first.
    #[inline]
    pub fn looks(&mut self) -> bool {
        self.unlooked += 1;
        if self.unlooked <= self.packing.priority {
            return false;
        }
        self.unlooked = 0;
        true
    }

    /// Bytes to be reserved for a message: those of a full one, and of the record that reaches it.
    pub fn room(&self) -> usize {
        self.threshold + RECORD_BYTES
    }

    /// How long this message waits where no further record comes, once it has begun.
    pub fn idle_wait(&self) -> Duration {
        self.packing.idle_wait
    }
}

#[cfg(test)]
mod tests;
