//! The hash table of all blocks in memory, in shards, each with a lock of its own and counters below it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::block::{Block, Key};
use crate::config::Class;
use crate::sync::{Held, Lock};

/// Bits of a shard's place: there are 64. Threads meet in one as rarely as this is large.
const SHARD_BITS: u32 = 6;
/// Odd, with bits all over, those of the golden ratio: products with it are spread.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

type Build = BuildHasherDefault<KeyHasher>;

#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Apart]>,
}

/// On cache lines of its own: neighbours are not slowed by each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(Lock<Shard>);

#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) blocks: HashMap<Key, Arc<Block>, Build>,
    pub(crate) counts: [Counts; Class::ALL.len()],
}

/// What has happened to blocks of a class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
    pub(crate) loaded_bytes: u64,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { shards: (0..1 << SHARD_BITS).map(|_| Apart::default()).collect() }
    }

    /// The shard of a key, locked.
    #[inline]
    pub(crate) fn shard(&self, key: &Key) -> Held<'_, Shard> {
        // Other bits than the shard's own table looks at, and quicker than its hash.
        let spread = key.spread().wrapping_mul(SPREAD);
        self.shards[(spread >> (u64::BITS - SHARD_BITS)) as usize].0.lock()
    }

    /// All counters of a class.
    pub(crate) fn counts(&self) -> [Counts; Class::ALL.len()] {
        let mut sums = [Counts::default(); Class::ALL.len()];
        for shard in &self.shards {
            for (sum, counts) in sums.iter_mut().zip(shard.0.lock().counts) {
                sum.hits += counts.hits;
                sum.misses += counts.misses;
                sum.evictions += counts.evictions;
                sum.loaded_bytes += counts.loaded_bytes;
            }
        }
        sums
    }

    /// How often somebody waited for a shard.
    pub(crate) fn waits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.waits()).sum()
    }

    /// Blocks that are in it.
    pub(crate) fn blocks(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().blocks.len()).sum()
    }
}

impl Shard {
    pub(crate) fn counts(&mut self, class: Class) -> &mut Counts {
        &mut self.counts[class as usize]
    }

    /// Whether this very block is in the table still.
    pub(crate) fn has(&self, block: &Arc<Block>) -> bool {
        self.blocks.get(&block.key).is_some_and(|there| Arc::ptr_eq(there, block))
    }
}

/// Multiplies, and folds the product's halves: good for what a key has, in a few cycles.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(SPREAD);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
