//! The buffer pool: blocks of one size in memory, within one budget, for all that passes through a process.
//!
//! ```text
//!  uploads, downloads               gateway's answers, chunks of snapshots
//!     Spool                            Session            Scan
//!       │ append, read                   │ load, find       │ load
//!       │                                v                  ├──> its private buffers
//!       │           ┌────────────────────────────────────┐  │
//!       └─────────> │ hash table: key -> block, in shards│ <┘
//!                   │ chain: which block goes, by policy │      one budget, a floor for each class
//!                   └────────────────────────────────────┘
//!       must not be lost │                        │ can be had again
//!                        v                        v
//!               overflow file, checked          gone
//! ```
//!
//! - **Handles pin.** A [`Handle`] reads its block without a lock, and the block stays as long as the handle does. Room to pin is claimed when a
//!   session begins ([`Pool::session`]), so pins never exceed the budget and nobody who has begun waits for another's; who finds no room
//!   is told who holds it ([`Error::NoRoom`]).
//! - **Classes share.** Each [`Class`] has a floor that the others' blocks and pins leave to it; beyond the floors the policy alone decides.
//! - **Policies are values.** [`Policy::Lru`] with `skips`, or [`Policy::S3Fifo`], which scans don't wash out. [`Pool::set_policy`],
//!   [`Pool::set_skips`], [`Pool::set_budget`] and [`Pool::set_floors`] change them while all goes on.
//! - **Spools overflow.** Blocks of uploads and downloads go to a temporary file without a name when memory is short. A disk that is full fails
//!   the one spool whose block finds no room, by an error that says so, and nothing else.
//! - **Scans read aside.** [`Pool::scan`] has private buffers, a quarter of the budget at most for all scans together.
//! - **An alternate pool** ([`Pools`]) with a budget of its own takes what is assigned to it by name.
//! - **Everything is counted** ([`Counters`]): hits, misses, evictions, overflow, bytes read, and waits for each kind of lock.
//!
//! # How the server and the gateway use it
//!
//! | who | how |
//! |---|---|
//! | the server's upload | a [`Spool`] of class [`Class::Upload`]: `append` as frames arrive, `read` by place when it is applied, `truncate` to what is sound of an upload in pieces; a tail of a few hundred bytes is all that a small one takes |
//! | the server's download | a [`Spool`] of class [`Class::Download`]: the worker appends, the client's side reads and calls [`Spool::forget`] with what it has taken, unless the download is kept to be resumed; what says that all was sent stays beside it and needs no room |
//! | the server's chunks | blocks of class [`Class::Chunk`], loaded from the file of the snapshot |
//! | the gateway's answers | an object for each content, its blocks loaded once from the bytes of the execution and found by a [`Session`] later; tag, mark and times, and who waits for whom, stay in the gateway's own map; an answer of which a block is gone is made again. Whoever sends one pins its blocks, all who send the same one together |
//!
//! # Caveats
//!
//! - The budget counts blocks' bytes, and no links or keys: about 300 bytes a block. One with less than 256 bytes counts for as many.
//! - Two sessions that pin the same block have claimed room for two.
//! - A floor may be missed by less than a block, where it is no multiple of one.
//! - Reading and writing block the thread: in an asynchronous program they belong where blocking is allowed.
//! - A key's hash can be foreseen: keys are numbers that the pool's users give out, never a client's.

mod block;
mod chain;
mod config;
mod counters;
mod error;
mod inner;
mod kept;
mod lru;
#[cfg(test)]
mod model;
mod overflow;
mod policy;
mod pool;
mod pools;
mod room;
mod s3fifo;
mod scan;
mod spool;
mod sync;
mod table;

pub use block::{Handle, Key, Object};
pub use config::{Class, Config, Floors, Policy, SKIPS_MAX};
pub use counters::{ClassCounters, Counters, OverflowCounters, Waits};
pub use error::{Error, Holders};
pub use pool::{Pool, Session};
pub use pools::{Named, Pools};
pub use scan::Scan;
pub use spool::Spool;
