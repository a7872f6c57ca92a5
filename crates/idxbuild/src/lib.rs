//! Rebuilds the indexes of a SQLite database in parallel, or creates some: as OpenEdge's `idxbuild` does for its tables.
//!
//! ```text
//!   old index ──> its pages ─────────────────────────────────────────┐ used again
//!                                                                    v
//!   table ──> leaves, read once ──> keys of all indexes ──> sort block, per thread and group
//!             by several threads                                 │ full: sorted
//!                                                                v
//!                       group 1: runs in memory, then in temporary files ──> merged ──> index pages ─┐
//!                       group 2: ...                                     ──> merged ──> index pages ─┤
//!                                                                                                    v
//!                               verified, COMMIT <── SQLite's pager (sqlite_dbpage), under an exclusive lock
//! ```
//!
//! - **One transaction.** Pages are written through SQLite's pager, so its journal or log protects them like any others: after a crash at any
//!   point the indexes are the old ones or the new ones. The root of an index stays where it is.
//! - **Nothing is believed.** What pages say is held against their ends; no page may have two owners; rows must be in order. What was built is
//!   read again before the transaction ends, by a comparison of its own, and its sum held against the table's.
//! - **Doubt goes to SQLite.** What is not certain to come out as SQLite would have it, SQLite builds: see [`Builder::Sqlite`].
//!
//! # Caveats
//! - No connection of this process may have the database open, and no other process either: the lock is exclusive.
//! - An application that gives SQLite collations of its own under the names BINARY, NOCASE or RTRIM must not use it.

// `pager` and `pages`, `index` and `indexes` are the field's words.
#![allow(clippy::similar_names)]

mod block;
mod build;
mod by_sqlite;
mod catalog;
mod collation;
mod doubles;
mod draw;
mod error;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod header;
mod job;
mod key;
mod merge;
mod number;
mod old;
mod open;
mod options;
mod page;
mod pager;
mod plan;
mod record;
mod report;
mod scan;
mod space;
mod store;
mod sum;
mod temporary;
mod text;
mod threads;
mod tree;
mod usage;
mod varint;
mod verify;
mod walk;
mod witness;

pub use build::{build, build_within};
pub use draw::PhaseUsage;
pub use error::{Error, Fault};
pub use options::{Knobs, Options, Progress, Step, TempDir};
pub use report::{Builder, Built, Report};
pub use usage::{Phase, Span};
