//! Scans: who reads much, once, and must not wash out what others have in memory.
//!
//! A block that is in the pool is taken from there, and its place in the chain stays what it was. Any other is read into a private buffer,
//! which takes the place of the scan's oldest one that it has not pinned.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::block::{Block, Handle, Key};
use crate::error::Error;
use crate::inner::Inner;
use crate::pool::{check_length, pin};
use crate::room::Owner;
use crate::sync::Ordering;

/// Somebody who reads through private buffers. It may hold as many handles at a time as it has buffers.
#[derive(Debug)]
pub struct Scan {
    inner: Arc<Inner>,
    buffers: VecDeque<Arc<Block>>,
    owner: Arc<Owner>,
}

impl Scan {
    pub(crate) fn new(inner: Arc<Inner>, owner: Arc<Owner>) -> Scan {
        Scan { inner, buffers: VecDeque::new(), owner }
    }

    /// A block: as the pool has it, or a private buffer, or as `load` gives it (a block's bytes at most).
    pub fn load<E: From<Error>>(&mut self, key: Key, load: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Handle, E> {
        let owner = pin(&self.owner)?;
        if let Some(block) = self.buffers.iter().find(|block| block.key == key) {
            return Ok(Handle::new(Arc::clone(block), owner));
        }
        let found = self.inner.find(key, owner.class).filter(|block| self.inner.is_filled(block));
        if let Some(block) = found {
            return Ok(Handle::new(block, owner));
        }
        self.make_room();
        let place = self.inner.place(owner.class, self.inner.block_bytes as u64);
        let bytes = load()?;
        check_length(key, bytes.len(), self.inner.block_bytes)?;
        self.inner.scanned_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let block = Arc::new(Block::filled(key, owner.class, bytes, place, None));
        self.buffers.push_back(Arc::clone(&block));
        Ok(Handle::new(block, owner))
    }

    /// Gives up the oldest buffer that is not pinned, where all are in use. There is one: a pin more than the handles was just taken.
    fn make_room(&mut self) {
        if self.buffers.len() >= self.owner.pins as usize
            && let Some(oldest) = self.buffers.iter().position(|block| Arc::strong_count(block) == 1)
        {
            self.buffers.remove(oldest);
        }
    }
}
