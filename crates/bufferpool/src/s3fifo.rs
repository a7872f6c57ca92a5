//! S3-FIFO: three queues, all first in, first out (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
//! SOSP 2023).
//!
//! ```text
//!            accessed since it came                        accessed since it was last here
//!         ┌──────────────────────────┐                        ┌───────┐
//! new ──> small (a tenth) ──> gone   └────────────> main ─────┴───────┴──> gone
//!                              └─ remembered by its key: when it comes again, it goes to main
//! ```
//!
//! A hit counts in the block, up to [`USES_MAX`], and touches no queue. What a scan reads once leaves by the small queue.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use crate::block::Key;
use crate::chain::{Eligible, Nodes, Queue};
use crate::sync::Ordering;
use crate::table::KeyHasher;

/// As far as accesses are counted: so many times a block goes round in the main queue without another.
pub(crate) const USES_MAX: u32 = 3;
/// Accesses in the small queue that bring a block to the main one.
const USES_MAIN: u32 = 1;
/// The small queue's part of all blocks.
const SMALL_PART: usize = 10;

const SMALL: u8 = 0;
const MAIN: u8 = 1;

/// The order.
#[derive(Debug, Default)]
pub(crate) struct S3Fifo {
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
}

/// Keys of blocks that left by the small queue, the last ones.
#[derive(Debug, Default)]
struct Ghosts {
    queue: VecDeque<(Key, u64)>,
    /// When each was remembered last: older entries of the queue don't count.
    times: HashMap<Key, u64, BuildHasherDefault<KeyHasher>>,
    clock: u64,
}

impl S3Fifo {
    pub(crate) fn insert(&mut self, nodes: &mut Nodes, at: u32) {
        let is_known = self.ghosts.forget(nodes.block(at).key);
        self.push(nodes, at, if is_known { MAIN } else { SMALL });
    }

    pub(crate) fn remove(&mut self, nodes: &mut Nodes, at: u32) {
        match nodes.get(at).queue {
            SMALL => self.small.take(nodes, at),
            _ => self.main.take(nodes, at),
        }
    }

    fn push(&mut self, nodes: &mut Nodes, at: u32, queue: u8) {
        nodes.get(at).queue = queue;
        match queue {
            SMALL => self.small.push(nodes, at),
            _ => self.main.push(nodes, at),
        }
    }

    /// Each step moves a block of the small queue on, or takes one use from one of the main queue: there are not more than so many.
    pub(crate) fn victim(&mut self, nodes: &mut Nodes, eligible: Eligible) -> Option<u32> {
        let steps = (self.small.len() + self.main.len()) * (USES_MAX as usize + 2);
        for _ in 0..steps {
            let (small, main) = (self.small.oldest(nodes, eligible), self.main.oldest(nodes, eligible));
            let is_small_full = self.small.len() * SMALL_PART >= self.small.len() + self.main.len();
            let at = if is_small_full { small.or(main) } else { main.or(small) }?;
            self.remove(nodes, at);
            if self.goes(nodes, at) {
                return Some(at);
            }
            self.push(nodes, at, MAIN);
        }
        None
    }

    /// Whether a block that is at the end of its queue goes; if not, it has a use less.
    fn goes(&mut self, nodes: &mut Nodes, at: u32) -> bool {
        let is_small = nodes.get(at).queue == SMALL;
        let block = nodes.block(at);
        let uses = block.uses.load(Ordering::Relaxed);
        if nodes.is_pinned(at) {
            return false;
        }
        if is_small {
            if uses < USES_MAIN {
                self.ghosts.remember(block.key, self.small.len() + self.main.len());
                return true;
            }
            block.uses.store(0, Ordering::Relaxed);
            return false;
        }
        // Under a policy before this one more may have been counted.
        block.uses.store(uses.min(USES_MAX).saturating_sub(1), Ordering::Relaxed);
        uses == 0
    }
}

impl Ghosts {
    fn remember(&mut self, key: Key, at_most: usize) {
        self.clock += 1;
        self.queue.push_back((key, self.clock));
        self.times.insert(key, self.clock);
        while self.queue.len() > at_most.max(1) {
            let Some((old, time)) = self.queue.pop_front() else { break };
            if self.times.get(&old) == Some(&time) {
                self.times.remove(&old);
            }
        }
    }

    /// Whether it was remembered.
    fn forget(&mut self, key: Key) -> bool {
        self.times.remove(&key).is_some()
    }
}
