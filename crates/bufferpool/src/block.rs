//! A block in memory, and the handle that pins it.
//!
//! A block's content is set once and never changes, so whoever holds a [`Handle`] reads it without a lock. It is pinned as long as
//! anybody but the hash table and the chain has a reference to it; references are taken from the table alone, below its lock.
//!
//! ```text
//! filling ──> filled: read by all who have come meanwhile, linked into the chain
//!         └─> failed: out of the table again; who has waited begins anew
//! ```

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::config::Class;
use crate::kept::Keeping;
use crate::room::{Owner, Place};
use crate::sync::{AtomicU32, Changed, Lock};

/// Where a block is that is in no chain.
pub(crate) const UNLINKED: u32 = u32::MAX;

/// A file, an answer, a spool: what blocks are of. [`Pool::object`](crate::Pool::object) gives each out once, so no two who fill a pool get
/// the same, and none comes from a client: the hash of a key is fast and can be foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object(pub(crate) u64);

/// What identifies a block: whose it is, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// What it is of; of this pool.
    pub object: Object,
    /// The block's number in it, from 0.
    pub number: u64,
}

impl Key {
    /// Both numbers in one, spread: few keys have the same.
    #[inline]
    pub(crate) fn spread(&self) -> u64 {
        self.object.0.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(self.number)
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.spread());
    }
}

/// In this order what a hit looks at lies in one cache line with the references, and the bytes go before their room.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Block {
    /// Accesses, as the policy counts them.
    pub(crate) uses: AtomicU32,
    /// Its place in the chain, below the chain's lock.
    pub(crate) node: AtomicU32,
    content: OnceLock<Vec<u8>>,
    pub(crate) key: Key,
    pub(crate) class: Class,
    /// Whose it is, if it must not be lost.
    pub(crate) kept: Option<Keeping>,
    state: Lock<State>,
    changed: Changed,
}

#[derive(Debug)]
enum State {
    Filling,
    /// With the room that the content takes.
    Filled(#[expect(dead_code, reason = "it is held until the block goes")] Place),
    Failed,
}

impl Block {
    /// One that somebody is going to fill.
    pub(crate) fn filling(key: Key, class: Class) -> Block {
        Block::empty(key, class, None)
    }

    /// One that is there.
    pub(crate) fn filled(key: Key, class: Class, bytes: Vec<u8>, place: Place, kept: Option<Keeping>) -> Block {
        let block = Block::empty(key, class, kept);
        block.fill(bytes, place);
        block
    }

    fn empty(key: Key, class: Class, kept: Option<Keeping>) -> Block {
        Block {
            uses: AtomicU32::new(0),
            node: AtomicU32::new(UNLINKED),
            content: OnceLock::new(),
            key,
            class,
            kept,
            state: Lock::new(State::Filling),
            changed: Changed::default(),
        }
    }

    /// Sets the content, and tells who waits for it. Done once.
    pub(crate) fn fill(&self, bytes: Vec<u8>, place: Place) {
        let set = self.content.set(bytes);
        debug_assert!(set.is_ok(), "{:?} is filled twice", self.key);
        self.end(State::Filled(place));
    }

    /// There will be no content.
    pub(crate) fn fail(&self) {
        self.end(State::Failed);
    }

    fn end(&self, state: State) {
        *self.state.lock() = state;
        self.changed.tell_all();
    }

    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.content.get().map(Vec::as_slice)
    }

    /// Waits while it is being filled; whether it was.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while matches!(*state, State::Filling) {
            state = self.changed.wait(state);
        }
        matches!(*state, State::Filled(_))
    }
}

/// A pinned block: its bytes, which stay as long as this does.
///
/// It can outlive its session, and be sent elsewhere; `Bytes::from_owner` takes it without a copy.
#[derive(Debug)]
pub struct Handle {
    // In this order they go: the room is given back when the pin is gone.
    block: Arc<Block>,
    _owner: Arc<Owner>,
}

impl Handle {
    pub(crate) fn new(block: Arc<Block>, owner: Arc<Owner>) -> Handle {
        Handle { block, _owner: owner }
    }

    /// Which block it is.
    pub fn key(&self) -> Key {
        self.block.key
    }
}

impl Deref for Handle {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // There is one for filled blocks alone.
        self.block.bytes().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Handle {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
