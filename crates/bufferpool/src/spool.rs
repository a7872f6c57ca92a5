//! Spools: uploads and downloads on their way, which must not be lost.
//!
//! ```text
//! append ──> tail, which grows up to a block ──> sealed: a block of the pool ──> overflow file
//!              │                                       │                              │
//! read   <─────┴───────────────────────────────────────┴───────── private buffer <────┘
//! ```
//!
//! A small spool has nothing but its tail, of a few hundred bytes. What is read back from the file goes through one private buffer, so
//! reading a large spool washes nothing out. One thread appends while another reads; several of a kind take turns.

use std::sync::Arc;

use crate::block::{Block, Key, Object};
use crate::error::Error;
use crate::inner::Inner;
use crate::kept::Kept;
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
    reader: Lock<Option<Read>>,
    tail: Lock<Tail>,
    owner: Arc<Owner>,
}

#[derive(Debug, Default)]
struct Writer {
    /// Claimed for the tail.
    tail_bytes: u64,
    /// Claimed for the reader.
    has_reader: bool,
}

/// The bytes behind the last whole block, and how many blocks there are.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    place: Option<Place>,
    sealed: u64,
    /// The first byte that is not forgotten, and the first block that is not dropped.
    start: u64,
    dropped: u64,
}

/// The block that was read back from the file last.
#[derive(Debug)]
struct Read {
    number: u64,
    bytes: Vec<u8>,
    _place: Place,
}

impl Spool {
    pub(crate) fn new(inner: Arc<Inner>, owner: Arc<Owner>, object: Object, blocks_max: u64) -> Spool {
        Spool {
            inner,
            object,
            kept: Kept::new(Arc::clone(&owner.name)),
            blocks_max,
            writer: Lock::default(),
            reader: Lock::default(),
            tail: Lock::default(),
            owner,
        }
    }

    /// Adds bytes at the end. It blocks where blocks have to be written to the overflow file, this spool's or another's.
    ///
    /// After an error, what was appended before is there, unless the error says that the spool is lost; of these bytes there may be a part.
    pub fn append(&self, mut bytes: &[u8]) -> Result<(), Error> {
        let mut writer = self.writer.lock();
        self.kept.check()?;
        while !bytes.is_empty() {
            let room = self.tail_room(&mut writer, bytes.len())?;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.tail.lock().bytes.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
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
            std::mem::replace(&mut tail.dropped, end)..end
        };
        self.drop_blocks(numbers);
    }

    /// Takes off what lies from this position on, if it is not forgotten. Blocks. After an error everything is as it was.
    pub fn truncate(&self, end: u64) -> Result<(), Error> {
        let mut writer = self.writer.lock();
        let mut reader = self.reader.lock();
        let (sealed, start, now) = {
            let tail = self.tail.lock();
            (tail.sealed, tail.start, self.end_of(&tail))
        };
        let end = end.max(start);
        if end >= now {
            return Ok(());
        }
        let (number, length) = self.split(end);
        if number == sealed {
            self.tail.lock().bytes.truncate(length);
            return Ok(());
        }
        let mut bytes = vec![0; length];
        let forgotten = start.saturating_sub(end - length as u64) as usize;
        if forgotten < length {
            self.read_some(&mut reader, end - (length - forgotten) as u64, &mut bytes[forgotten..], true)?;
        }
        // What was claimed for the reader is free for this.
        *reader = None;
        let place = self.grown(&mut writer, 0, length)?;
        let old = {
            let mut tail = self.tail.lock();
            (tail.sealed, tail.bytes) = (number, bytes);
            // Another may have forgotten more meanwhile.
            (tail.start, tail.dropped) = (tail.start.min(end), tail.dropped.min(number));
            std::mem::replace(&mut tail.place, place)
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
        self.first_byte(tail.sealed) + tail.bytes.len() as u64
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

    /// How many bytes the tail can take, of so many; a full one is sealed first.
    fn tail_room(&self, writer: &mut Writer, wanted: usize) -> Result<usize, Error> {
        let block_bytes = self.inner.block_bytes;
        let mut length = self.tail.lock().bytes.len();
        if length == block_bytes {
            self.seal(writer)?;
            length = 0;
        }
        let has = self.tail.lock().place.as_ref().map_or(0, |place| place.bytes() as usize);
        let needs = length.saturating_add(wanted).min(block_bytes);
        if needs > has {
            let place = self.grown(writer, has, needs)?;
            let tail = &mut *self.tail.lock();
            match (&mut tail.place, place) {
                (Some(before), Some(more)) => before.join(more),
                (before, more) => *before = more,
            }
            let size = tail.place.as_ref().map_or(0, |place| place.bytes() as usize);
            tail.bytes.reserve_exact(size.saturating_sub(length));
        }
        Ok(needs - length)
    }

    /// Room for a tail that has so many bytes and needs so many.
    fn grown(&self, writer: &mut Writer, has: usize, needs: usize) -> Result<Option<Place>, Error> {
        if needs == 0 {
            return Ok(None);
        }
        let target = needs.next_power_of_two().max(TAIL_BYTES).min(self.inner.block_bytes);
        if target as u64 > writer.tail_bytes {
            self.owner.claim(target as u64 - writer.tail_bytes)?;
            writer.tail_bytes = target as u64;
        }
        Ok(Some(self.inner.place(self.owner.class, (target - has) as u64)))
    }

    /// Makes a block of the tail, which is full.
    fn seal(&self, writer: &mut Writer) -> Result<(), Error> {
        self.kept.check()?;
        if !writer.has_reader {
            self.owner.claim(self.inner.block_bytes as u64)?;
            writer.has_reader = true;
        }
        let mut tail = self.tail.lock();
        let (key, bytes) = (self.key(tail.sealed), std::mem::take(&mut tail.bytes));
        // A tail that is full has its place.
        let Some(place) = tail.place.take() else { return Ok(()) };
        let kept = Some(self.kept.push());
        self.inner.insert(Arc::new(Block::filled(key, self.owner.class, bytes, place, kept)));
        tail.sealed += 1;
        drop(tail);
        if self.kept.in_memory.load(Ordering::Relaxed) > self.blocks_max {
            self.inner.evict_early(key);
        }
        self.kept.check()
    }

    fn read_from(&self, position: u64, into: &mut [u8], may_block: bool) -> Result<Option<usize>, Error> {
        let mut reader = self.reader.lock();
        let mut done = 0;
        while done < into.len() {
            match self.read_some(&mut reader, position + done as u64, &mut into[done..], may_block)? {
                None if done == 0 => return Ok(None),
                None | Some(0) => break,
                Some(bytes) => done += bytes,
            }
        }
        Ok(Some(done))
    }

    /// Bytes of one block, or of the tail.
    fn read_some(
        &self,
        reader: &mut Option<Read>,
        position: u64,
        into: &mut [u8],
        may_block: bool,
    ) -> Result<Option<usize>, Error> {
        self.kept.check()?;
        let (number, offset) = self.split(position);
        {
            let tail = self.tail.lock();
            if position < tail.start || position > self.end_of(&tail) {
                return Err(self.out_of_range(position, (tail.start, self.end_of(&tail))));
            }
            if number >= tail.sealed {
                let offset = position - self.first_byte(tail.sealed);
                return Ok(Some(copy(&tail.bytes, offset as usize, into)));
            }
        }
        if let Some(bytes) = self.with_memory(reader, number, |bytes| copy(bytes, offset, into)) {
            return Ok(Some(bytes));
        }
        if !may_block {
            return Ok(None);
        }
        self.read_back(reader, number)?;
        Ok(self.with_memory(reader, number, |bytes| copy(bytes, offset, into)))
    }

    /// Has a whole block, if it is in memory. One at a time, for which room is claimed.
    fn with_memory<T>(&self, reader: &mut Option<Read>, number: u64, then: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if let Some(read) = reader.as_ref().filter(|read| read.number == number) {
            return Some(then(&read.bytes));
        }
        *reader = None;
        let block = self.inner.find(self.key(number), self.owner.class)?;
        self.inner.touch(&block);
        Some(then(block.bytes().unwrap_or_default()))
    }

    /// Reads a block from the file into the private buffer.
    fn read_back(&self, reader: &mut Option<Read>, number: u64) -> Result<(), Error> {
        let place = self.inner.place(self.owner.class, self.inner.block_bytes as u64);
        let Some(bytes) = self.kept.read_back(number)? else {
            // Lost with the whole spool, or forgotten just now.
            self.kept.check()?;
            return Err(self.out_of_range(self.first_byte(number), (self.start(), self.end())));
        };
        *reader = Some(Read { number, bytes, _place: place });
        Ok(())
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

/// Copies from an offset on, as much as there is and finds room.
fn copy(from: &[u8], offset: usize, into: &mut [u8]) -> usize {
    let from = from.get(offset..).unwrap_or_default();
    let length = from.len().min(into.len());
    into[..length].copy_from_slice(&from[..length]);
    length
}
