//! Results of queries of the application's own, row by row: what the gateway serves.
//!
//! [`Connection::read`](crate::Connection::read) runs one statement in a read-only transaction of its own and hands on what comes of it.
//! Values are borrowed from the driver's buffers, and no more rows are in memory than it has read.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_protocol::{Type, ValueRef};

use crate::Error;

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultColumn {
    /// Its name.
    pub name: String,
    /// The type of its values; `None`: the database can't tell (an expression in SQLite). In SQLite a value may be of another all the same.
    pub kind: Option<Type>,
    /// The database's name for its type, `numeric(10,2)` where a decimal has a bound of its digits; empty where it has none (an expression in
    /// SQLite).
    pub declared: String,
}

/// Takes a result.
pub trait ResultSink {
    /// The columns, before any row.
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error>;

    /// A row: a value for each column. An error ends the reading, which gives it.
    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error>;
}

/// How to read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// How long the statement may take, the sink's time included; zero: for ever.
    pub time_out: Duration,
    /// Columns whose type is known better than the database says.
    pub types: BTreeMap<String, Type>,
}

/// Ends what a connection is running now, from another thread; harmless where it runs nothing.
pub type Canceller = Box<dyn Fn() + Send + Sync>;
