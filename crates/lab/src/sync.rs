//! Syncs as a load: remotes in memory, and the table that they sync.
//!
//! ```text
//! memory    a remote without a file: the protocol's own session, carried out in memory
//!   |
//! file      a real remote, a file of SQLite
//! http      one request and its answer, on a connection of its own
//! purchase  the rows of MLBench's table: made, encoded, and checked one by one
//! kind      what a set of syncs does, with which numbers
//! affinity  on which processors server and database run
//! stamps    when each sync began and ended, at both ends
//! server    `headwater serve`, as a process of its own
//! workload  all of it, as the harness drives it
//! own       the same with a model, data and a server of one's own, which the lab starts or which runs already
//! ```

mod affinity;
mod file;
mod http;
pub mod kind;
pub mod memory;
mod own;
pub mod purchase;
mod server;
mod stamps;
mod workload;

pub use kind::{SyncSettings, Way};
pub use own::Own;
pub(crate) use own::OwnWorkload;
pub(crate) use stamps::{PHASES, Stamped};
pub(crate) use workload::{FILES_MAX, NO_MARIADB, Place, SyncWorkload};
