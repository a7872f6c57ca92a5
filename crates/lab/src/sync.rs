//! Syncs as a load: remotes in memory, and the table that they sync.
//!
//! ```text
//! memory    a remote without a file: the protocol's own session, carried out in memory
//!   |
//! http      one request and its answer, on a connection of its own
//! purchase  the rows of MLBench's table: made, encoded, and checked one by one
//! ```

mod http;
pub mod memory;
pub mod purchase;
