//! The chain: all blocks that may go, in the order of a policy.
//!
//! Nodes lie in one vector and are linked by their places in it. A [`Queue`] is in the order in which blocks came to it, each class
//! in a list of its own with times to compare, so that the oldest of those classes that are above their floors is found at once.

use std::sync::Arc;

use crate::block::{Block, UNLINKED};
use crate::config::{Class, Config, Policy};
use crate::policy::Order;
use crate::sync::Ordering;

const CLASSES: usize = Class::ALL.len();
/// References to a block that nobody has pinned: the hash table's, and the chain's or that of whoever took it from there.
pub(crate) const REFERENCES: usize = 2;

/// Which classes may lose a block.
pub(crate) type Eligible = [bool; CLASSES];

/// Blocks in memory, in the order in which they go.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) budget: u64,
    pub(crate) floors: [u64; CLASSES],
    nodes: Nodes,
    order: Order,
}

/// A block's links.
#[derive(Debug)]
pub(crate) struct Node {
    block: Option<Arc<Block>>,
    newer: u32,
    older: u32,
    /// When it came to its queue.
    time: u64,
    /// Which of a policy's queues has it.
    pub(crate) queue: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Nodes {
    all: Vec<Node>,
    free: Vec<u32>,
    clock: u64,
}

/// Blocks in the order in which they came.
#[derive(Debug)]
pub(crate) struct Queue {
    lists: [List; CLASSES],
    blocks: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
}

impl Chain {
    pub(crate) fn new(config: &Config) -> Chain {
        let (budget, floors) = (config.budget_bytes, config.floors.all());
        Chain { budget, floors, nodes: Nodes::default(), order: Order::of(config.policy) }
    }

    /// From now on blocks go by another policy; those that are here come to it in the order in which they came or were used last.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.order = Order::of(policy);
        for at in self.nodes.by_time() {
            self.order.insert(&mut self.nodes, at);
        }
    }

    /// Adds a block that is in the hash table; its shard must be locked.
    pub(crate) fn link(&mut self, block: Arc<Block>) {
        let at = self.nodes.add(block);
        self.order.insert(&mut self.nodes, at);
    }

    /// Takes a block out, if it is in.
    pub(crate) fn unlink(&mut self, block: &Block) -> Option<Arc<Block>> {
        let at = place(block)?;
        self.order.remove(&mut self.nodes, at);
        self.nodes.remove(at)
    }

    /// Moves a block that was accessed to the recent end, if it is in.
    pub(crate) fn relink(&mut self, block: &Block) {
        if let Some(at) = place(block) {
            self.order.relink(&mut self.nodes, at);
        }
    }

    /// Takes out the block that goes, of those that nobody has pinned.
    pub(crate) fn victim(&mut self, eligible: Eligible) -> Option<Arc<Block>> {
        let at = self.order.victim(&mut self.nodes, eligible)?;
        self.nodes.remove(at)
    }
}

/// Where a block is in the chain, if it is in.
fn place(block: &Block) -> Option<u32> {
    let at = block.node.load(Ordering::Relaxed);
    (at != UNLINKED).then_some(at)
}

impl Nodes {
    fn add(&mut self, block: Arc<Block>) -> u32 {
        let at = self.free.pop().unwrap_or(self.all.len() as u32);
        block.node.store(at, Ordering::Relaxed);
        let node = Node { block: Some(block), newer: UNLINKED, older: UNLINKED, time: 0, queue: 0 };
        match self.all.get_mut(at as usize) {
            Some(free) => *free = node,
            None => self.all.push(node),
        }
        at
    }

    fn remove(&mut self, at: u32) -> Option<Arc<Block>> {
        let block = self.all[at as usize].block.take();
        if let Some(block) = &block {
            block.node.store(UNLINKED, Ordering::Relaxed);
            self.free.push(at);
        }
        block
    }

    /// Those that are in use, the oldest first.
    fn by_time(&self) -> Vec<u32> {
        let used = self.all.iter().enumerate().filter(|(_, node)| node.block.is_some());
        let mut used: Vec<(u64, u32)> = used.map(|(at, node)| (node.time, at as u32)).collect();
        used.sort_unstable();
        used.into_iter().map(|(_, at)| at).collect()
    }

    pub(crate) fn get(&mut self, at: u32) -> &mut Node {
        &mut self.all[at as usize]
    }

    pub(crate) fn block(&self, at: u32) -> &Arc<Block> {
        self.all[at as usize].block.as_ref().expect("a linked node has its block")
    }

    pub(crate) fn is_pinned(&self, at: u32) -> bool {
        Arc::strong_count(self.block(at)) > REFERENCES
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { lists: [List { newest: UNLINKED, oldest: UNLINKED }; CLASSES], blocks: 0 }
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    /// Adds a block at the recent end.
    pub(crate) fn push(&mut self, nodes: &mut Nodes, at: u32) {
        nodes.clock += 1;
        let time = nodes.clock;
        let list = &mut self.lists[nodes.block(at).class as usize];
        let before = std::mem::replace(&mut list.newest, at);
        if before == UNLINKED {
            list.oldest = at;
        } else {
            nodes.get(before).newer = at;
        }
        let node = nodes.get(at);
        (node.newer, node.older, node.time) = (UNLINKED, before, time);
        self.blocks += 1;
    }

    /// Takes a block out, wherever it is.
    pub(crate) fn take(&mut self, nodes: &mut Nodes, at: u32) {
        let list = &mut self.lists[nodes.block(at).class as usize];
        let (newer, older) = (nodes.get(at).newer, nodes.get(at).older);
        match newer {
            UNLINKED => list.newest = older,
            newer => nodes.get(newer).older = older,
        }
        match older {
            UNLINKED => list.oldest = newer,
            older => nodes.get(older).newer = newer,
        }
        self.blocks -= 1;
    }

    /// The block that came first, of those of these classes.
    pub(crate) fn oldest(&self, nodes: &Nodes, eligible: Eligible) -> Option<u32> {
        let ends = self.lists.iter().zip(eligible).filter(|(list, eligible)| *eligible && list.oldest != UNLINKED);
        ends.map(|(list, _)| list.oldest).min_by_key(|at| nodes.all[*at as usize].time)
    }
}
