//! The overflow file: blocks that must not be lost and find no room in memory.
//!
//! One temporary file without a name for a whole pool, made when it is needed and gone with the process, however that ends; closed and gone
//! too as soon as nothing lies in it. It is cut into slots of a block each. A block's checksum (CRC-32C) stays in memory, so another's block
//! in its place is noticed too.
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
    slots_max: u64,
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
            slots_max: config.overflow_bytes_max / block_bytes,
            state: Lock::default(),
            written_blocks: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        })
    }

    /// Writes a block. Blocks the thread. After an error nothing of it takes any room.
    pub(crate) fn write(self: &Arc<Overflow>, bytes: &[u8]) -> io::Result<Slot> {
        let (file, number) = self.take_slot()?;
        let slot =
            Slot { overflow: Arc::clone(self), file, number, bytes: bytes.len(), checksum: crc32c::crc32c(bytes) };
        slot.file.write_all_at(bytes, number * self.block_bytes)?;
        self.written_blocks.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(slot)
    }

    /// Bytes of the slots that are taken.
    pub(crate) fn held_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.slots - state.free.len() as u64) * self.block_bytes
    }

    fn take_slot(&self) -> io::Result<(Arc<File>, u64)> {
        let state = &mut *self.state.lock();
        if state.free.is_empty() && state.slots >= self.slots_max {
            let text = format!(
                "no room for a block more, the limit is {} bytes (overflow_bytes_max)",
                self.slots_max * self.block_bytes
            );
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
    /// Reads the block back. Blocks the thread.
    pub(crate) fn read(&self) -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; self.bytes];
        self.file.read_exact_at(&mut bytes, self.number * self.overflow.block_bytes).map_err(ReadError::Io)?;
        let found = crc32c::crc32c(&bytes);
        if found != self.checksum {
            return Err(ReadError::Damaged { found, expected: self.checksum });
        }
        self.overflow.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.overflow.give_back(self.number);
    }
}
