//! Results: one SQLite file a campaign (`schema.sql`), written run by run, so that what has been measured is kept whatever comes.
//!
//! ```text
//! write: Writer (a campaign as it runs)     read: Campaign -> summary (cells, their runs put together) -> export (CSV, JSON; evaluator: XML)
//!                                                            -> table (for people)
//!                                                            -> compare (two campaigns)
//!                                                            -> fit (what a sync takes by its rows)
//! ```

mod compare;
mod evaluator;
mod export;
mod fit;
mod read;
pub(crate) mod student;
mod summary;
mod table;
mod write;

use std::path::{Path, PathBuf};

use headwater_diskfaults::FileFault;

pub use compare::{Compared, ComparedCell, Comparison, Measure, Ratio, Verdict};
pub use export::{Format, Rows};
pub use fit::Fit;
pub use read::Campaign;
pub(crate) use read::{RunRow, SyncRow};
pub use summary::{CellSummary, Estimate};
pub use table::CellTable;
pub(crate) use table::thousands;
pub use write::{RunRecord, Writer, usual_name};

/// "HWlb", in the file's head: nothing else is taken for results.
const APPLICATION_ID: i64 = 0x4857_6c62;
/// Of the schema.
const VERSION: i64 = 8;

/// A results file could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the results {}: {what}", .path.display())]
pub struct ResultsError {
    path: PathBuf,
    what: String,
    source: Option<rusqlite::Error>,
    /// Whether another file should have been named.
    pub(crate) is_usage: bool,
    /// Whether the disk is at fault, and the file is not.
    pub(crate) is_of_a_disk: bool,
}

impl ResultsError {
    fn new(path: &Path, what: impl Into<String>, source: Option<rusqlite::Error>) -> ResultsError {
        // Opened once more, where that has to be known.
        let fault =
            source.as_ref().and_then(|source| FileFault::of(path, source)).filter(|fault| !fault.is_of_the_file());
        let what = fault.as_ref().map_or_else(|| what.into(), ToString::to_string);
        ResultsError { path: path.to_owned(), what, source, is_usage: false, is_of_a_disk: fault.is_some() }
    }

    fn usage(path: &Path, what: impl Into<String>, source: Option<rusqlite::Error>) -> ResultsError {
        let error = ResultsError::new(path, what, source);
        ResultsError { is_usage: !error.is_of_a_disk, ..error }
    }
}
