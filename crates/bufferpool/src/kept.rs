//! Where the blocks of a spool lie: what the pool and the spool know of them together.

use std::io;
use std::sync::{Arc, OnceLock};

use crate::block::Block;
use crate::error::Error;
use crate::overflow::{Overflow, ReadError, Slot};
use crate::sync::{AtomicU64, Lock, Ordering};

/// The blocks of one spool.
#[derive(Debug)]
pub(crate) struct Kept {
    name: Arc<str>,
    /// Blocks that are in memory, on their way out of it too.
    pub(crate) in_memory: AtomicU64,
    blocks: Lock<Places>,
    /// What the system said when a block of it could not be written.
    failed: OnceLock<(io::ErrorKind, String)>,
}

#[derive(Debug, Default)]
struct Places {
    all: Vec<Where>,
    /// Of the next block that is added.
    serial: u64,
}

/// What a block knows of its spool, as long as it is in memory. After a `truncate` another block may have its number, so it has a serial too.
#[derive(Debug)]
pub(crate) struct Keeping {
    kept: Arc<Kept>,
    serial: u64,
}

#[derive(Debug)]
enum Where {
    /// In memory alone: the block of this serial.
    Memory(u64),
    /// In the file, and perhaps in memory still.
    File(Arc<Slot>),
    /// Forgotten.
    Gone,
}

impl Kept {
    pub(crate) fn new(name: Arc<str>) -> Arc<Kept> {
        Arc::new(Kept { name, in_memory: AtomicU64::new(0), blocks: Lock::default(), failed: OnceLock::new() })
    }

    /// A block more, in memory.
    pub(crate) fn push(self: &Arc<Kept>) -> Keeping {
        self.in_memory.fetch_add(1, Ordering::Relaxed);
        let mut places = self.blocks.lock();
        let serial = places.serial;
        places.serial += 1;
        places.all.push(Where::Memory(serial));
        Keeping { kept: Arc::clone(self), serial }
    }

    /// Whether every block is there still.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.failed.get().map_or(Ok(()), |(kind, text)| Err(self.error(io::Error::new(*kind, text.clone()))))
    }

    /// Reads a block from the file; `None`: it is not there. Blocks the thread.
    pub(crate) fn read_back(&self, number: u64) -> Result<Option<Vec<u8>>, Error> {
        let slot = match self.blocks.lock().all.get(number as usize) {
            Some(Where::File(slot)) => Arc::clone(slot),
            _ => return Ok(None),
        };
        slot.read().map(Some).map_err(|error| match error {
            ReadError::Io(source) => self.error(source),
            ReadError::Damaged { found, expected } => {
                Error::Damaged { name: self.name.to_string(), number, found, expected }
            }
        })
    }

    /// A block is of no more use.
    pub(crate) fn forget(&self, number: u64) {
        let gone = self.blocks.lock().all.get_mut(number as usize).map(|place| std::mem::replace(place, Where::Gone));
        drop(gone);
    }

    /// None from this one on is of use, and others come in their place.
    pub(crate) fn truncate(&self, blocks: u64) {
        self.blocks.lock().all.truncate(blocks as usize);
    }

    fn error(&self, source: io::Error) -> Error {
        Error::overflow(&self.name, source)
    }
}

impl Keeping {
    /// Sees to it that the block can leave memory. Where it can't be written, the whole spool has failed from here on.
    pub(crate) fn write_out(&self, block: &Block, overflow: &Arc<Overflow>) {
        let kept = &self.kept;
        let number = block.key.number as usize;
        let is_to_be_written = kept.blocks.lock().all.get(number).is_some_and(|place| self.is_at(place));
        if !is_to_be_written || kept.failed.get().is_some() {
            return;
        }
        match overflow.write(block.bytes().unwrap_or_default()) {
            Ok(slot) => {
                let mut places = kept.blocks.lock();
                if let Some(place) = places.all.get_mut(number).filter(|place| self.is_at(place)) {
                    *place = Where::File(Arc::new(slot));
                }
            }
            Err(error) => {
                let _ = kept.failed.set((error.kind(), error.to_string()));
            }
        }
    }

    /// Whether a place is that of this block, which is in memory alone.
    fn is_at(&self, place: &Where) -> bool {
        matches!(place, Where::Memory(serial) if *serial == self.serial)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.kept.in_memory.fetch_sub(1, Ordering::Relaxed);
    }
}
