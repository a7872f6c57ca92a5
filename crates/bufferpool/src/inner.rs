//! What all sessions of a pool share, and how a block gets in and out.
//!
//! Locks, in the order in which they are taken (none that comes later is held while one before it is taken):
//!
//! | lock | guards |
//! |---|---|
//! | a spool's writer, its tail | what one spool is doing |
//! | a shard of the hash table | which blocks are there; references to blocks are taken below it alone |
//! | the chain | the order in which blocks go, and how full the memory is |
//! | a spool's places, a slot, then the overflow file's slots | where blocks lie |
//! | the ledger; a block's state | alone, or the chain below the ledger |
//!
//! Nothing is read or written and nobody is waited for below the shards' locks or the chain's. A block that is being written is out
//! of the chain but in the table, so that it can be hit meanwhile; then it stays.

use std::io;
use std::sync::Arc;

use crate::block::{Block, Key};
use crate::chain::{Chain, Eligible, REFERENCES};
use crate::config::{Class, Config, Policy};
use crate::overflow::Overflow;
use crate::room::{Place, Room, Used};
use crate::s3fifo::USES_MAX;
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering, yield_now};
use crate::table::Table;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) block_bytes: usize,
    pub(crate) room: Arc<Room>,
    used: Arc<Used>,
    pub(crate) table: Table,
    pub(crate) chain: Lock<Chain>,
    pub(crate) overflow: Arc<Overflow>,
    /// [`NO_SKIPS`]: the policy has none.
    pub(crate) skips: AtomicU32,
    /// How often somebody waited for a block that another was filling.
    pub(crate) block_waits: AtomicU64,
    /// Bytes loaded into private buffers.
    pub(crate) scanned_bytes: AtomicU64,
    pub(crate) objects: AtomicU64,
}

/// Of a policy without skips: more than [`SKIPS_MAX`](crate::SKIPS_MAX).
pub(crate) const NO_SKIPS: u32 = u32::MAX;

pub(crate) fn skips_of(policy: Policy) -> u32 {
    match policy {
        Policy::Lru { skips } => skips,
        Policy::S3Fifo => NO_SKIPS,
    }
}

/// What the table has of a key.
pub(crate) enum Look {
    /// The block, which another may still be filling.
    There(Arc<Block>),
    /// Nothing: this one is to be filled.
    New(Filling),
}

/// A block that its maker is filling. Dropped before, whoever waits for it begins anew.
pub(crate) struct Filling {
    inner: Arc<Inner>,
    block: Arc<Block>,
    is_filled: bool,
}

impl Inner {
    pub(crate) fn new(config: &Config) -> Inner {
        Inner {
            block_bytes: config.block_bytes,
            room: Room::new(config),
            used: Arc::default(),
            table: Table::new(),
            chain: Lock::new(Chain::new(config)),
            overflow: Overflow::new(config),
            skips: AtomicU32::new(skips_of(config.policy)),
            block_waits: AtomicU64::new(0),
            scanned_bytes: AtomicU64::new(0),
            objects: AtomicU64::new(0),
        }
    }

    /// A block that is in memory, counted as a hit; `None`, counted as a miss.
    #[inline]
    pub(crate) fn find(&self, key: Key, class: Class) -> Option<Arc<Block>> {
        let mut shard = self.table.shard(&key);
        let found = shard.blocks.get(&key).cloned();
        let counts = shard.counts(class);
        if found.is_some() {
            counts.hits += 1;
        } else {
            counts.misses += 1;
        }
        found
    }

    /// A block that is in memory, or one to be filled.
    pub(crate) fn find_or_new(self: &Arc<Inner>, key: Key, class: Class) -> Look {
        let mut shard = self.table.shard(&key);
        if let Some(block) = shard.blocks.get(&key).cloned() {
            shard.counts(class).hits += 1;
            return Look::There(block);
        }
        shard.counts(class).misses += 1;
        let block = Arc::new(Block::filling(key, class));
        shard.blocks.insert(key, Arc::clone(&block));
        Look::New(Filling { inner: Arc::clone(self), block, is_filled: false })
    }

    /// Waits where another is filling the block; whether it was filled.
    #[inline]
    pub(crate) fn is_filled(&self, block: &Block) -> bool {
        if block.bytes().is_some() {
            return true;
        }
        self.block_waits.fetch_add(1, Ordering::Relaxed);
        block.wait()
    }

    /// Counts an access, and moves the block in the chain where the policy wants it.
    #[inline]
    pub(crate) fn touch(&self, block: &Block) {
        let uses = block.uses.load(Ordering::Relaxed);
        let skips = self.skips.load(Ordering::Relaxed);
        if skips == NO_SKIPS {
            if uses < USES_MAX {
                block.uses.store(uses + 1, Ordering::Relaxed);
            }
            return;
        }
        // An access that gets lost here because two came at once does not matter.
        if uses + 1 < skips {
            block.uses.store(uses + 1, Ordering::Relaxed);
            return;
        }
        block.uses.store(0, Ordering::Relaxed);
        self.chain.lock().relink(block);
    }

    /// Takes room in memory that was claimed before, for a block that was loaded. Others' blocks may have to be written for it; where that
    /// fails, and nothing else can go, the spool whose block it is has failed.
    pub(crate) fn place(&self, class: Class, bytes: u64) -> Place {
        loop {
            match self.place_unless_full(class, bytes) {
                Ok(place) => return place,
                Err((block, error)) => {
                    if let Some(kept) = &block.kept {
                        kept.fail(&error);
                    }
                    self.take_out(block, true);
                }
            }
        }
    }

    /// The same for a spool, which is refused where others' blocks can't be written: what is in memory stays.
    pub(crate) fn place_for_spool(&self, class: Class, bytes: u64) -> io::Result<Place> {
        self.place_unless_full(class, bytes).map_err(|(block, error)| {
            self.take_out(block, false);
            error
        })
    }

    /// Takes room in memory, or gives a block that is out of the chain, can't be written, and is the only one that could go.
    fn place_unless_full(&self, class: Class, bytes: u64) -> Result<Place, (Arc<Block>, io::Error)> {
        loop {
            match self.try_place(class, bytes, [true; Class::ALL.len()]) {
                Ok(place) => return Ok(place),
                Err(Some(block)) => match self.write_out(&block) {
                    Ok(()) => self.take_out(block, true),
                    Err(error) => match self.place_at_once(class, bytes) {
                        Some(place) => {
                            self.take_out(block, false);
                            return Ok(place);
                        }
                        None => return Err((block, error)),
                    },
                },
                // There is one, but its place in memory is not free yet: another thread is at it, or has just let it go.
                Err(None) => yield_now(),
            }
        }
    }

    /// The same as [`Inner::place`], where nothing has to be written or waited for.
    pub(crate) fn place_at_once(&self, class: Class, bytes: u64) -> Option<Place> {
        let evicted = Class::ALL.map(|class| !class.is_kept());
        loop {
            match self.try_place(class, bytes, evicted) {
                Ok(place) => return Some(place),
                Err(block) => self.take_out(block?, true),
            }
        }
    }

    /// Takes room in memory, or gives the block that goes for it, of one of these classes.
    fn try_place(&self, class: Class, bytes: u64, classes: Eligible) -> Result<Place, Option<Arc<Block>>> {
        let mut chain = self.chain.lock();
        let used = self.used.all();
        if used.iter().sum::<u64>() + bytes <= chain.budget {
            return Ok(self.used.take(class, bytes));
        }
        let mut wanted = used;
        wanted[class as usize] += bytes;
        let eligible: Eligible = std::array::from_fn(|class| classes[class] && wanted[class] > chain.floors[class]);
        Err(chain.victim(eligible))
    }

    /// Bytes in memory by class: below the chain's lock they can only get fewer, so the sum is not more than there was at a time.
    pub(crate) fn used(&self) -> [u64; Class::ALL.len()] {
        let _chain = self.chain.lock();
        self.used.all()
    }

    /// Puts a block that is filled into table and chain.
    pub(crate) fn insert(&self, block: Arc<Block>) {
        let mut shard = self.table.shard(&block.key);
        let before = shard.blocks.insert(block.key, Arc::clone(&block));
        debug_assert!(before.is_none(), "two blocks are {:?}", block.key);
        self.chain.lock().link(block);
    }

    /// Takes a block out of table and chain; what is pinned of it stays with who has it. Whether it was there.
    pub(crate) fn remove(&self, key: Key) -> bool {
        let mut shard = self.table.shard(&key);
        let Some(block) = shard.blocks.remove(&key) else { return false };
        let linked = self.chain.lock().unlink(&block);
        drop(shard);
        drop((block, linked));
        true
    }

    /// Has a block leave memory before its time, unless somebody has pinned it or it can't be written.
    pub(crate) fn evict_early(&self, key: Key) {
        let linked = {
            let shard = self.table.shard(&key);
            let Some(block) = shard.blocks.get(&key) else { return };
            self.chain.lock().unlink(block)
        };
        if let Some(block) = linked {
            let may_go = self.write_out(&block).is_ok();
            self.take_out(block, may_go);
        }
    }

    /// Sees to it that a block that is out of the chain can go.
    fn write_out(&self, block: &Block) -> io::Result<()> {
        block.kept.as_ref().map_or(Ok(()), |kept| kept.write_out(block, &self.overflow))
    }

    /// Takes a block that is out of the chain out of the table, if it may go and nobody has come for it; else it goes back.
    fn take_out(&self, block: Arc<Block>, may_go: bool) {
        let mut shard = self.table.shard(&block.key);
        if !shard.has(&block) {
            return;
        }
        if !may_go || Arc::strong_count(&block) > REFERENCES {
            self.chain.lock().link(block);
            return;
        }
        let removed = shard.blocks.remove(&block.key);
        shard.counts(block.class).evictions += 1;
        drop(shard);
        drop((removed, block));
    }
}

impl Filling {
    /// Sets the content; from here on others have it too.
    pub(crate) fn fill(mut self, bytes: Vec<u8>, place: Place) -> Arc<Block> {
        self.is_filled = true;
        let block = Arc::clone(&self.block);
        let loaded = bytes.len() as u64;
        block.fill(bytes, place);
        let mut shard = self.inner.table.shard(&block.key);
        shard.counts(block.class).loaded_bytes += loaded;
        if shard.has(&block) {
            self.inner.chain.lock().link(Arc::clone(&block));
        }
        drop(shard);
        block
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if self.is_filled {
            return;
        }
        let mut shard = self.inner.table.shard(&self.block.key);
        let removed = if shard.has(&self.block) { shard.blocks.remove(&self.block.key) } else { None };
        drop(shard);
        drop(removed);
        self.block.fail();
    }
}
