//! What was done.

use std::time::Duration;

use crate::options::Knobs;
use crate::usage::{Recorder, Span};

/// What a rebuild did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The indexes, in the order in which they were done.
    pub indexes: Vec<Built>,
    /// The knobs for each table whose indexes were built here.
    pub tables: Vec<(String, Knobs)>,
    /// What each thread did when.
    pub spans: Vec<Span>,
    /// How long all of it took.
    pub elapsed: Duration,
    /// Whether SQLite's own integrity check was run; it found no fault.
    pub integrity_checked: bool,
}

impl Report {
    /// With what it took.
    pub(crate) fn with(mut self, usage: Recorder) -> Report {
        self.elapsed = usage.elapsed();
        self.spans = usage.into_spans();
        self
    }
}

/// An index that was rebuilt or created.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Built {
    /// Its name.
    pub index: String,
    /// Its table.
    pub table: String,
    /// Who built it.
    pub by: Builder,
}

/// Who built an index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Builder {
    /// Headwater, in parallel.
    Headwater {
        /// How many keys it has.
        keys: u64,
    },
    /// SQLite itself.
    Sqlite {
        /// Why.
        why: String,
    },
    /// Nobody: it is as it was.
    Nobody {
        /// Why SQLite could not build it either.
        why: String,
    },
}
