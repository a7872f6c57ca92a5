//! Spools: uploads and downloads on their way, which must not be lost.
//!
//! ```text
//! append ──> tail, which grows up to a block ──> sealed: a block of the pool ──> overflow file
//!              │        └ no room to grow: in the overflow file from here on         │
//! read   <─────┴──────────────────────────────────────────┴──────────────────────────┘
//! ```
//!
//! A small spool has nothing but its tail, of a few hundred bytes, which is all that a spool claims. What lies in the file is read from there
//! into the reader's own memory, so reading a large spool washes nothing out. One thread appends while others read.

use std::sync::Arc;

use crate::block::{Block, Key, Object};
use crate::error::Error;
use crate::inner::Inner;
use crate::kept::Kept;
use crate::overflow::Slot;
use crate::room::{Owner, Place};
use crate::sync::{Lock, Ordering};

/// What a tail has at first.
const TAIL_BYTES: usize = 256;

/// Bytes that are appended, read by position, and forgotten from the front. Dropped, it takes no room any more, in memory or on disk.
///
/// ```
/// use headwater_bufferpool::{Class, Config, Error, Pool};
///
/// # fn main() -> Result<(), Error> {
/// let pool = Pool::new(&Config::default())?;
/// let spool = pool.spool("upload 7 of remote 3f", Class::Upload, 1 << 20)?;
/// spool.append(b"frames and ")?;
/// spool.append(b"frames")?;
/// let mut bytes = [0; 6];
/// assert_eq!((spool.read(11, &mut bytes)?, &bytes), (6, b"frames"));
/// assert_eq!((spool.read(17, &mut bytes)?, spool.end()), (0, 17));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Spool {
    inner: Arc<Inner>,
    object: Object,
    kept: Arc<Kept>,
    blocks_max: u64,
    writer: Lock<Writer>,
    tail: Lock<Tail>,
    owner: Arc<Owner>,
}

#[derive(Debug, Default)]
struct Writer {
    /// Claimed for the tail.
    claimed: u64,
}

/// The bytes behind the last whole block, and how many blocks there are.
#[derive(Debug, Default)]
struct Tail {
    last: Last,
    sealed: u64,
    /// The first byte that is not forgotten, and the first block that is not dropped.
    start: u64,
    dropped: u64,
}

/// The bytes behind the last whole block.
#[derive(Debug, Default)]
enum Last {
    #[default]
    Nothing,
    Memory(Vec<u8>, Place),
    File(Arc<Slot>),
}

/// Whether the tail has grown.
enum Grown {
    Yes,
    /// All room is claimed.
    NoRoom,
    /// Others' blocks have to be written for it.
    NotAtOnce,
}

/// Where bytes are found that are to be read.
enum Found {
    Copied(usize),
    /// In the file.
    Slot(Arc<Slot>),
}

impl Spool {
    pub(crate) fn new(inner: Arc<Inner>, owner: Arc<Owner>, object: Object, blocks_max: u64) -> Spool {
        let kept = Kept::new(Arc::clone(&owner.name));
        Spool { inner, object, kept, blocks_max, writer: Lock::default(), tail: Lock::default(), owner }
    }

    /// Adds bytes at the end. It blocks where blocks have to be written to the overflow file, this spool's or another's.
    ///
    /// After an error, what was appended before is there; of these bytes there may be a part.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        self.append_some(bytes, true).map(drop)
    }

    /// Adds as many of these bytes as it can without blocking; how many. The others are for [`Spool::append`].
    pub fn try_append(&self, bytes: &[u8]) -> Result<usize, Error> {
        self.append_some(bytes, false)
    }

    /// Copies what there is from this position on, as much as finds room; 0 at the end. It blocks where blocks have to be read from
    /// the overflow file.
    pub fn read(&self, position: u64, into: &mut [u8]) -> Result<usize, Error> {
        Ok(self.read_from(position, into, true)?.unwrap_or(0))
    }

    /// Copies what of it is in memory, and reads nothing from the file; `None`: there it lies.
    pub fn try_read(&self, position: u64, into: &mut [u8]) -> Result<Option<usize>, Error> {
        self.read_from(position, into, false)
    }

    /// What lies before this position is of no more use: its blocks are free.
    pub fn forget(&self, position: u64) {
        let numbers = {
            let mut tail = self.tail.lock();
            tail.start = tail.start.max(position.min(self.end_of(&tail)));
            // The tail is no block yet, though all of it may be forgotten.
            let end = self.split(tail.start).0.min(tail.sealed);
            let first = tail.dropped;
            tail.dropped = first.max(end);
            first..end
        };
        self.drop_blocks(numbers);
    }

    /// Takes off what lies from this position on, if it is not forgotten. Blocks. After an error everything is as it was.
    pub fn truncate(&self, end: u64) -> Result<(), Error> {
        let mut writer = self.writer.lock();
        let (sealed, start, now) = {
            let tail = self.tail.lock();
            (tail.sealed, tail.start, self.end_of(&tail))
        };
        let end = end.max(start);
        if end >= now {
            return Ok(());
        }
        let (number, length) = self.split(end);
        let mut bytes = vec![0; length];
        let forgotten = start.saturating_sub(end - length as u64) as usize;
        if forgotten < length {
            self.read(end - (length - forgotten) as u64, &mut bytes[forgotten..])?;
        }
        let slot = match self.grow(&mut writer, length, true)? {
            Grown::Yes => None,
            Grown::NoRoom | Grown::NotAtOnce => Some(Arc::new(self.write(&bytes)?)),
        };
        let old = {
            let mut tail = self.tail.lock();
            tail.sealed = number;
            // Another may have forgotten more meanwhile.
            (tail.start, tail.dropped) = (tail.start.min(end), tail.dropped.min(number));
            let old = std::mem::take(&mut tail.last);
            match (slot, old) {
                (Some(slot), old) => {
                    tail.last = Last::File(slot);
                    old
                }
                (None, Last::Memory(_, place)) => {
                    tail.last = Last::Memory(bytes, place);
                    Last::Nothing
                }
                (None, old) => old,
            }
        };
        drop(old);
        self.drop_blocks(number..sealed);
        self.kept.truncate(number);
        Ok(())
    }

    /// The position behind the last byte: how many were appended.
    pub fn end(&self) -> u64 {
        self.end_of(&self.tail.lock())
    }

    /// The position of the first byte that is not forgotten.
    pub fn start(&self) -> u64 {
        self.tail.lock().start
    }

    fn end_of(&self, tail: &Tail) -> u64 {
        self.first_byte(tail.sealed) + tail.last.bytes() as u64
    }

    fn first_byte(&self, number: u64) -> u64 {
        number * self.inner.block_bytes as u64
    }

    /// The block of a position, and the place in it.
    fn split(&self, position: u64) -> (u64, usize) {
        let block_bytes = self.inner.block_bytes as u64;
        (position / block_bytes, (position % block_bytes) as usize)
    }

    fn key(&self, number: u64) -> Key {
        Key { object: self.object, number }
    }

    fn append_some(&self, bytes: &[u8], may_block: bool) -> Result<usize, Error> {
        let mut writer = self.writer.lock();
        self.kept.check()?;
        let mut done = 0;
        while done < bytes.len() {
            let mut length = self.tail.lock().last.bytes();
            if length == self.inner.block_bytes {
                if !self.seal(may_block)? {
                    break;
                }
                length = 0;
            }
            let rest = &bytes[done..];
            let now = &rest[..rest.len().min(self.inner.block_bytes - length)];
            if !self.add(&mut writer, now, may_block)? {
                break;
            }
            done += now.len();
        }
        Ok(done)
    }

    /// Adds bytes to the tail, which finds them room in its block; whether it has: it does not block if it may not.
    fn add(&self, writer: &mut Writer, bytes: &[u8], may_block: bool) -> Result<bool, Error> {
        let length = match &self.tail.lock().last {
            Last::Nothing => Ok(0),
            Last::Memory(tail, _) => Ok(tail.len()),
            Last::File(slot) => Err(Arc::clone(slot)),
        };
        match length {
            Err(_) if !may_block => return Ok(false),
            Err(slot) => slot.append(bytes).map_err(|error| self.kept.error(error))?,
            Ok(length) => match self.grow(writer, length + bytes.len(), may_block)? {
                Grown::Yes => self.tail.lock().last.extend(bytes),
                Grown::NoRoom if may_block => self.add_in_file(writer, bytes)?,
                Grown::NoRoom | Grown::NotAtOnce => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Adds bytes to the tail, which goes to the file for it: others have claimed what it would need in memory.
    fn add_in_file(&self, writer: &mut Writer, bytes: &[u8]) -> Result<(), Error> {
        let mut all = match &self.tail.lock().last {
            Last::Memory(tail, _) => tail.clone(),
            Last::Nothing | Last::File(_) => Vec::new(),
        };
        all.extend_from_slice(bytes);
        let slot = Arc::new(self.write(&all)?);
        let old = std::mem::replace(&mut self.tail.lock().last, Last::File(slot));
        drop(old);
        self.owner.give_back(std::mem::take(&mut writer.claimed));
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> Result<Slot, Error> {
        self.inner.overflow.write(bytes).map_err(|error| self.kept.error(error))
    }

    /// Has the tail have room in memory for so many bytes.
    fn grow(&self, writer: &mut Writer, length: usize, may_block: bool) -> Result<Grown, Error> {
        let has = match &self.tail.lock().last {
            Last::Nothing => 0,
            Last::Memory(_, place) => place.bytes(),
            Last::File(_) => return Ok(Grown::NoRoom),
        };
        let target = length.next_power_of_two().max(TAIL_BYTES).min(self.inner.block_bytes) as u64;
        if target <= has {
            return Ok(Grown::Yes);
        }
        let more = target.saturating_sub(writer.claimed);
        if more > 0 && self.owner.claim(more).is_err() {
            return Ok(Grown::NoRoom);
        }
        writer.claimed += more;
        let (class, bytes) = (self.owner.class, target - has);
        let added = if may_block {
            self.inner.place_for_spool(class, bytes).map_err(|error| self.kept.error(error))?
        } else {
            let Some(added) = self.inner.place_at_once(class, bytes) else { return Ok(Grown::NotAtOnce) };
            added
        };
        self.tail.lock().last.grow(target as usize, added);
        Ok(Grown::Yes)
    }

    /// Makes a block of the tail, which is full; whether it has: it does not block if it may not.
    fn seal(&self, may_block: bool) -> Result<bool, Error> {
        self.kept.check()?;
        if !may_block && self.kept.in_memory.load(Ordering::Relaxed) >= self.blocks_max {
            return Ok(false);
        }
        let mut tail = self.tail.lock();
        let key = self.key(tail.sealed);
        match std::mem::take(&mut tail.last) {
            Last::Nothing => return Ok(true),
            Last::Memory(bytes, place) => {
                let kept = Some(self.kept.push());
                self.inner.insert(Arc::new(Block::filled(key, self.owner.class, bytes, place, kept)));
            }
            Last::File(slot) => self.kept.push_written(slot),
        }
        tail.sealed += 1;
        drop(tail);
        if self.kept.in_memory.load(Ordering::Relaxed) > self.blocks_max {
            self.inner.evict_early(key);
        }
        self.kept.check()?;
        Ok(true)
    }

    fn read_from(&self, position: u64, into: &mut [u8], may_block: bool) -> Result<Option<usize>, Error> {
        let mut done = 0;
        while done < into.len() {
            let (at, into) = (position + done as u64, &mut into[done..]);
            let bytes = match self.find(at, into)? {
                Found::Copied(bytes) => bytes,
                Found::Slot(slot) if may_block => {
                    let (number, offset) = self.split(at);
                    self.kept.read(&slot, number, offset, into)?
                }
                Found::Slot(_) if done == 0 => return Ok(None),
                Found::Slot(_) => break,
            };
            if bytes == 0 {
                break;
            }
            done += bytes;
        }
        Ok(Some(done))
    }

    /// Bytes of one block, or of the tail.
    fn find(&self, position: u64, into: &mut [u8]) -> Result<Found, Error> {
        self.kept.check()?;
        let (number, offset) = self.split(position);
        {
            let tail = self.tail.lock();
            if position < tail.start || position > self.end_of(&tail) {
                return Err(self.out_of_range(position, (tail.start, self.end_of(&tail))));
            }
            if number >= tail.sealed {
                let offset = (position - self.first_byte(tail.sealed)) as usize;
                return Ok(match &tail.last {
                    Last::Memory(bytes, _) => Found::Copied(copy(bytes, offset, into)),
                    Last::File(slot) if offset < slot.bytes() => Found::Slot(Arc::clone(slot)),
                    Last::Nothing | Last::File(_) => Found::Copied(0),
                });
            }
        }
        if let Some(block) = self.inner.find(self.key(number), self.owner.class) {
            self.inner.touch(&block);
            return Ok(Found::Copied(copy(block.bytes().unwrap_or_default(), offset, into)));
        }
        match self.kept.slot(number) {
            Some(slot) => Ok(Found::Slot(slot)),
            None => {
                // Lost with the whole spool, or forgotten just now.
                self.kept.check()?;
                Err(self.out_of_range(position, (self.start(), self.end())))
            }
        }
    }

    fn out_of_range(&self, position: u64, (start, end): (u64, u64)) -> Error {
        Error::OutOfRange { name: self.owner.name.to_string(), position, start, end }
    }

    fn drop_blocks(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.kept.forget(number);
            self.inner.remove(self.key(number));
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let numbers = {
            let tail = self.tail.lock();
            tail.dropped..tail.sealed
        };
        self.drop_blocks(numbers);
    }
}

impl Last {
    /// Adds bytes to what is in memory, and has room there.
    fn extend(&mut self, bytes: &[u8]) {
        if let Last::Memory(tail, _) = self {
            tail.extend_from_slice(bytes);
        }
    }

    /// Takes more room in memory, for so many bytes in all.
    fn grow(&mut self, bytes: usize, added: Place) {
        match self {
            Last::Memory(tail, place) => {
                tail.reserve_exact(bytes - tail.len());
                place.join(added);
            }
            Last::Nothing | Last::File(_) => *self = Last::Memory(Vec::with_capacity(bytes), added),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Last::Nothing => 0,
            Last::Memory(bytes, _) => bytes.len(),
            Last::File(slot) => slot.bytes(),
        }
    }
}

/// Copies from an offset on, as much as there is and finds room.
fn copy(from: &[u8], offset: usize, into: &mut [u8]) -> usize {
    let from = from.get(offset..).unwrap_or_default();
    let length = from.len().min(into.len());
    into[..length].copy_from_slice(&from[..length]);
    length
}
