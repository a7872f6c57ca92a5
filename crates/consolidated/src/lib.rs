//! The consolidated database: change tracking, uploads, downloads, and what Headwater keeps there.
//!
//! Two engines hold the rules and know no database: [`upload`] applies an upload exactly once and judges its conflicts, [`download`]
//! finds what a remote has not seen. Below them is one small trait, [`Connection`], that each database implements with set-based
//! statements: [`sqlite`] and [`postgres`]. Everything here blocks: a worker is a thread for as long as it holds a connection, and it
//! never waits for a client (an upload comes from a spool, a download goes to one).
//!
//! ```text
//! server  ->  upload / download  ->  dyn Connection  ->  sqlite | postgres
//!                 |                        |
//!            judge (pure)             system (remotes, receipts, accounts, conflicts), track, check
//! ```

pub mod backend;
pub mod catalogue;
pub mod error;
pub mod plan;
pub mod rows;

pub use backend::{Backend, Connection, Dialect, Mode};
pub use error::Error;
pub use plan::{Plan, TablePlan};
pub use rows::RowsWriter;
