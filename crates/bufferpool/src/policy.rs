//! What a policy does with the chain.

use crate::chain::{Eligible, Nodes};
use crate::config::Policy;
use crate::lru::Lru;
use crate::s3fifo::S3Fifo;

/// The order of a chain, by its policy.
#[derive(Debug)]
pub(crate) enum Order {
    Lru(Lru),
    S3Fifo(S3Fifo),
}

impl Order {
    pub(crate) fn of(policy: Policy) -> Order {
        match policy {
            Policy::Lru { .. } => Order::Lru(Lru::default()),
            Policy::S3Fifo => Order::S3Fifo(S3Fifo::default()),
        }
    }

    /// A block has come, or has come back from somebody who could not evict it.
    pub(crate) fn insert(&mut self, nodes: &mut Nodes, at: u32) {
        match self {
            Order::Lru(lru) => lru.insert(nodes, at),
            Order::S3Fifo(fifo) => fifo.insert(nodes, at),
        }
    }

    /// A block goes for another reason than room.
    pub(crate) fn remove(&mut self, nodes: &mut Nodes, at: u32) {
        match self {
            Order::Lru(lru) => lru.remove(nodes, at),
            Order::S3Fifo(fifo) => fifo.remove(nodes, at),
        }
    }

    /// A block was accessed, and is one to be moved.
    pub(crate) fn relink(&mut self, nodes: &mut Nodes, at: u32) {
        match self {
            Order::Lru(lru) => lru.relink(nodes, at),
            // It counts accesses in the block alone.
            Order::S3Fifo(_) => {}
        }
    }

    /// Takes out the block that goes first, of these classes and of those that nobody has pinned.
    pub(crate) fn victim(&mut self, nodes: &mut Nodes, eligible: Eligible) -> Option<u32> {
        match self {
            Order::Lru(lru) => lru.victim(nodes, eligible),
            Order::S3Fifo(fifo) => fifo.victim(nodes, eligible),
        }
    }
}
