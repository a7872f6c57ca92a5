//! What has happened in a pool.

use crate::config::Class;
use crate::inner::Inner;
use crate::sync::Ordering;

/// Counts since a pool was made. They are taken one after the other, so while others work their sums are off by what happens meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    classes: [ClassCounters; Class::ALL.len()],
    /// Bytes that scans have loaded into their private buffers.
    pub scanned_bytes: u64,
    /// Waits for locks.
    pub waits: Waits,
    /// The overflow file's.
    pub overflow: OverflowCounters,
}

/// What has happened to blocks of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounters {
    /// Blocks that were asked for and were in memory, or on their way there.
    pub hits: u64,
    /// Blocks that were asked for and were not.
    pub misses: u64,
    /// Blocks that have left memory for others, or for a smaller budget.
    pub evictions: u64,
    /// Bytes that were loaded into blocks, from disk or wherever those who load them have them from.
    pub loaded_bytes: u64,
}

/// How often somebody found a lock taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The one of the chain.
    pub chain: u64,
    /// Those of the hash table's shards.
    pub table: u64,
    /// Blocks that another was filling.
    pub block: u64,
}

/// What went to the overflow file and came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowCounters {
    /// Blocks written.
    pub written_blocks: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Bytes read back.
    pub read_bytes: u64,
}

impl Counters {
    pub(crate) fn of_pool(inner: &Inner) -> Counters {
        let classes = inner.table.counts().map(|counts| ClassCounters {
            hits: counts.hits,
            misses: counts.misses,
            evictions: counts.evictions,
            loaded_bytes: counts.loaded_bytes,
        });
        let waits = Waits {
            chain: inner.chain.waits(),
            table: inner.table.waits(),
            block: inner.block_waits.load(Ordering::Relaxed),
        };
        let overflow = OverflowCounters {
            written_blocks: inner.overflow.written_blocks.load(Ordering::Relaxed),
            written_bytes: inner.overflow.written_bytes.load(Ordering::Relaxed),
            read_bytes: inner.overflow.read_bytes.load(Ordering::Relaxed),
        };
        Counters { classes, scanned_bytes: inner.scanned_bytes.load(Ordering::Relaxed), waits, overflow }
    }

    /// Those of a class.
    pub fn of(&self, class: Class) -> ClassCounters {
        self.classes[class as usize]
    }

    /// Bytes read from disk: what was loaded, into private buffers too, and what came back from the overflow file.
    pub fn read_bytes(&self) -> u64 {
        let loaded: u64 = self.classes.iter().map(|class| class.loaded_bytes).sum();
        loaded + self.scanned_bytes + self.overflow.read_bytes
    }
}
