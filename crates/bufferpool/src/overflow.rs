//! The overflow file: blocks that must not be lost and find no room in memory.
//!
//! One temporary file without a name for a whole pool, made when it is needed and gone with the process, however that ends; closed and gone
//! too as soon as nothing lies in it. It is cut into slots of a block each, which fill up as a spool's last block does. A block's checksum
//! (CRC-32C) stays in memory, so another's block in its place is noticed too.
//!
//! *Caveats.* A slot that is given back makes the file shorter where it is at the end; the lowest free one is taken first.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::Config;
use crate::sync::{AtomicU64, Lock, Ordering};

/// The file of a pool.
#[derive(Debug)]
pub(crate) struct Overflow {
    folder: Option<PathBuf>,
    block_bytes: u64,
    bytes_max: AtomicU64,
    state: Lock<State>,
    pub(crate) written_blocks: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    file: Option<Arc<File>>,
    /// Slots that there are; those of them that are free.
    slots: u64,
    free: BTreeSet<u64>,
}

/// A block in the file; dropped, its room is free.
#[derive(Debug)]
pub(crate) struct Slot {
    overflow: Arc<Overflow>,
    file: Arc<File>,
    number: u64,
    filled: Lock<Filled>,
}

/// What a slot has: so many bytes, with this checksum.
#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    bytes: usize,
    checksum: u32,
}

/// How a block does not come back.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    Damaged { found: u32, expected: u32 },
}

impl Overflow {
    pub(crate) fn new(config: &Config) -> Arc<Overflow> {
        let block_bytes = config.block_bytes as u64;
        Arc::new(Overflow {
            folder: config.overflow_folder.clone(),
            block_bytes,
            bytes_max: AtomicU64::new(config.overflow_bytes_max),
            state: Lock::default(),
            written_blocks: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        })
    }

    /// Writes a block. Blocks the thread. After an error nothing of it takes any room.
    pub(crate) fn write(self: &Arc<Overflow>, bytes: &[u8]) -> io::Result<Slot> {
        let (file, number) = self.take_slot()?;
        let slot = Slot { overflow: Arc::clone(self), file, number, filled: Lock::default() };
        slot.append(bytes)?;
        self.written_blocks.fetch_add(1, Ordering::Relaxed);
        Ok(slot)
    }

    /// It may have so many bytes from now on; what it has stays.
    pub(crate) fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Bytes of the slots that are taken.
    pub(crate) fn held_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.slots - state.free.len() as u64) * self.block_bytes
    }

    fn take_slot(&self) -> io::Result<(Arc<File>, u64)> {
        let bytes_max = self.bytes_max();
        let state = &mut *self.state.lock();
        let taken = state.slots - state.free.len() as u64;
        if taken >= bytes_max / self.block_bytes {
            let text = format!("no room for a block more, the limit is {bytes_max} bytes (overflow_bytes_max)");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let file = match &state.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(state.file.insert(Arc::new(self.create()?))),
        };
        let number = state.free.pop_first().unwrap_or_else(|| {
            state.slots += 1;
            state.slots - 1
        });
        Ok((file, number))
    }

    fn create(&self) -> io::Result<File> {
        match &self.folder {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        }
    }

    fn give_back(&self, number: u64) {
        let state = &mut *self.state.lock();
        state.free.insert(number);
        let before = state.slots;
        while state.slots > 0 && state.free.remove(&(state.slots - 1)) {
            state.slots -= 1;
        }
        if state.slots == 0 {
            state.file = None;
        } else if state.slots < before
            && let Some(file) = &state.file
        {
            // Where it can't be made shorter it stays as long as it is, and what it has is written over.
            let _ = file.set_len(state.slots * self.block_bytes);
        }
    }
}

impl Slot {
    /// Adds bytes, which must find room in a block; one at a time does. Blocks the thread. After an error it has what it had.
    pub(crate) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let Filled { bytes: before, checksum } = *self.filled.lock();
        self.file.write_all_at(bytes, self.start() + before as u64)?;
        self.overflow.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let checksum = crc32c::crc32c_append(checksum, bytes);
        *self.filled.lock() = Filled { bytes: before + bytes.len(), checksum };
        Ok(())
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.filled.lock().bytes
    }

    /// Reads what it has from this place on, as much as finds room. Blocks the thread. All of it is read, whose checksum is known.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<usize, ReadError> {
        let Filled { bytes, checksum } = *self.filled.lock();
        if let (0, Some(whole)) = (offset, into.get_mut(..bytes)) {
            return self.read_whole(checksum, whole).map(|()| bytes);
        }
        let mut whole = vec![0; bytes];
        self.read_whole(checksum, &mut whole)?;
        let part = whole.get(offset..).unwrap_or_default();
        let length = part.len().min(into.len());
        into[..length].copy_from_slice(&part[..length]);
        Ok(length)
    }

    fn read_whole(&self, expected: u32, into: &mut [u8]) -> Result<(), ReadError> {
        self.file.read_exact_at(into, self.start()).map_err(ReadError::Io)?;
        let found = crc32c::crc32c(into);
        if found != expected {
            return Err(ReadError::Damaged { found, expected });
        }
        self.overflow.read_bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn start(&self) -> u64 {
        self.number * self.overflow.block_bytes
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.overflow.give_back(self.number);
    }
}
