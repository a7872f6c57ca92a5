//! The lab: experiments written down, run on a database, and kept with all that is needed to trust the numbers.
//!
//! Data travels one way:
//!
//! ```text
//! experiment (a file, axes, cells)     scenario (what clients do)
//!      |                                   |
//!    plan (the order of the runs)          |
//!      |                                   |
//!  campaign -- one run after the other --> workload (a scenario on a target)
//!      |                                   |
//!      |                               harness (schedule -> clients -> recorders -> observer)
//!      |                                   |
//!   results (one SQLite file) <--- outcome + <--- bottleneck <--- sampling (the machine, processes, the database's sessions)
//!      |
//!   summary, table, export, compare
//!      |
//!   report (one HTML file)
//! ```
//!
//! The experiment is pure: it reads text and connects to nothing. The harness knows no database, and runs on virtual time in its tests.
//! Only `target` knows one database from another. Clients may be driven at agents in other processes (`agents`), by the same harness. `tables` compares what two
//! targets hold, and measures nothing.

pub mod address;
pub mod agents;
pub mod bottleneck;
mod bristlecone;
pub mod campaign;
pub mod error;
pub mod experiment;
pub mod figures;
pub mod frontier;
pub mod harness;
mod host;
pub mod http;
pub mod link;
pub mod null;
pub mod peer;
pub mod pilot;
pub mod plan;
pub mod random;
pub mod reading;
pub mod replica;
pub mod report;
pub mod results;
pub mod sampling;
pub mod scenario;
mod serve;
pub mod sync;
pub mod tables;
pub mod target;
mod tls;
pub mod value;
pub mod workload;

pub use error::{Error, Fault};
