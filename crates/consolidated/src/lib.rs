//! The consolidated database: change tracking, uploads, downloads, and what Headwater keeps there.
//!
//! Two engines hold the rules and know no database: [`upload`] applies an upload exactly once and judges its conflicts, [`download`]
//! finds what a remote has not seen. Below them is one small trait, [`Connection`], that each database implements with set-based
//! statements: [`sqlite`] and [`postgres`]. What only runs queries is a trait below it, which [`mysql`] has too. Everything here blocks: a worker is a thread for as long as it holds a connection, and it
//! never waits for a client (an upload comes from a spool, a download goes to one).
//!
//! ```text
//! server  ->  upload / download  ->  dyn Connection  ->  sqlite | postgres
//!                 |                        |
//!            judge (pure)             system (remotes, receipts, accounts, conflicts), track, check
//! ```

mod address;
pub mod backend;
pub mod catalogue;
pub mod check;
mod commit_waits;
pub mod download;
pub mod error;
pub mod images;
pub mod init;
pub mod judge;
pub mod keys;
pub mod memberships;
pub mod mysql;
pub mod order;
pub mod plan;
pub mod pool;
pub mod postgres;
pub mod results;
pub mod rows;
mod scripts;
pub mod sqlite;
pub mod standing;
pub mod system;
pub mod track;
pub mod upload;
pub mod watch;

pub use backend::{Backend, Connection, Dialect, Mode};
pub use commit_waits::{CommitWaits, Waiting};
pub use error::Error;
pub use plan::{Plan, TablePlan};
pub use pool::{Pool, Pooled, QueryPool};
pub use results::{QueryBackend, QueryConnection};
pub use rows::RowsWriter;

/// Ends a transaction: commits what went well, rolls back what did not.
pub(crate) fn finish<T>(connection: &mut dyn Connection, result: Result<T, Error>) -> Result<T, Error> {
    match result {
        Ok(value) => match connection.commit() {
            Ok(()) => Ok(value),
            Err(error) => {
                // A commit that failed may have left the transaction open; if it is beyond that, the pool finds out.
                let _ = connection.rollback();
                Err(error)
            }
        },
        Err(error) => {
            if let Err(second) = connection.rollback() {
                tracing::warn!(error = %second, "rolling back failed; the connection is given up");
                return Err(Error::Retry { detail: format!("{error}; and rolling back: {second}"), broken: true });
            }
            Err(error)
        }
    }
}
