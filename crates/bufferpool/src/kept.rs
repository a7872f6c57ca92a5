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

    /// A block more, which lies in the file.
    pub(crate) fn push_written(&self, slot: Arc<Slot>) {
        self.blocks.lock().all.push(Where::File(slot));
    }

    /// Whether every block is there still.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.failed.get().map_or(Ok(()), |(kind, text)| Err(self.error(io::Error::new(*kind, text.clone()))))
    }

    /// Where a block lies in the file; `None`: it is not there.
    pub(crate) fn slot(&self, number: u64) -> Option<Arc<Slot>> {
        match self.blocks.lock().all.get(number as usize) {
            Some(Where::File(slot)) => Some(Arc::clone(slot)),
            _ => None,
        }
    }

    /// Reads a part of a block from the file. Blocks the thread.
    pub(crate) fn read(&self, slot: &Slot, number: u64, offset: usize, into: &mut [u8]) -> Result<usize, Error> {
        slot.read(offset, into).map_err(|error| match error {
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

    /// The overflow file failed it like this.
    pub(crate) fn error(&self, source: io::Error) -> Error {
        Error::overflow(&self.name, source)
    }
}

impl Keeping {
    /// Sees to it that the block can leave memory. Blocks the thread. After an error it is in memory alone, as it was.
    pub(crate) fn write_out(&self, block: &Block, overflow: &Arc<Overflow>) -> io::Result<()> {
        let kept = &self.kept;
        let number = block.key.number as usize;
        let is_to_be_written = kept.blocks.lock().all.get(number).is_some_and(|place| self.is_at(place));
        if !is_to_be_written || kept.failed.get().is_some() {
            return Ok(());
        }
        let slot = Arc::new(overflow.write(block.bytes().unwrap_or_default())?);
        let mut places = kept.blocks.lock();
        if let Some(place) = places.all.get_mut(number).filter(|place| self.is_at(place)) {
            *place = Where::File(slot);
        }
        Ok(())
    }

    /// The block leaves memory and could not be written: the whole spool has failed from here on.
    pub(crate) fn fail(&self, error: &io::Error) {
        let _ = self.kept.failed.set((error.kind(), error.to_string()));
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
