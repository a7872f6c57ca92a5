//! Least recently used: one queue; what was accessed goes to its recent end.

use crate::chain::{Eligible, Nodes, Queue};

/// The order.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    queue: Queue,
}

impl Lru {
    pub(crate) fn insert(&mut self, nodes: &mut Nodes, at: u32) {
        self.queue.push(nodes, at);
    }

    pub(crate) fn remove(&mut self, nodes: &mut Nodes, at: u32) {
        self.queue.take(nodes, at);
    }

    pub(crate) fn relink(&mut self, nodes: &mut Nodes, at: u32) {
        self.queue.take(nodes, at);
        self.queue.push(nodes, at);
    }

    /// What is pinned is being used now, so it goes to the recent end.
    pub(crate) fn victim(&mut self, nodes: &mut Nodes, eligible: Eligible) -> Option<u32> {
        for _ in 0..self.queue.len() {
            let at = self.queue.oldest(nodes, eligible)?;
            if !nodes.is_pinned(at) {
                self.queue.take(nodes, at);
                return Some(at);
            }
            self.relink(nodes, at);
        }
        None
    }
}
