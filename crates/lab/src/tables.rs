//! Two tables, row by row: what one has and the other has not, in whichever databases they are.
//!
//! ```text
//! first  --its driver--> text of each column --column--> one spelling --merge--> a temporary     --ordered--> only one has it,
//! second --its driver--> text of each column --column--> one spelling --merge--> database's rows --by key-->  or both, unlike
//! ```
//!
//! Each side is read by one statement, so as it was at one moment; the two moments differ. Memory is bounded: the temporary database spills into a
//! file that has no name any more. Rows are known by the primary key; where neither table has one, by all their columns, and counted.

mod column;
mod merge;

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::Error;
use crate::harness::Failure;
use crate::target::{Session, Target};

use column::{Layout, Pair};
use merge::Merge;

/// How long a file of SQLite that somebody writes to is waited for.
const BUSY: Duration = Duration::from_secs(30);

/// After so many rows progress is told.
const STEP: u64 = 10_000;

/// A table somewhere.
#[derive(Clone, Debug)]
pub struct Side {
    target: Target,
    table: String,
}

impl Side {
    /// The table of this name at this address. Does not connect.
    pub fn new(address: &str, table: &str) -> Result<Side, Error> {
        let target = Target::parse(address, Path::new(""))?;
        if let Target::Sqlite { path, is_old: false } = &target {
            return Err(Error::Usage(format!("there is no file {}", path.display())));
        }
        Ok(Side { target, table: table.to_owned() })
    }

    /// Both as people may see them.
    pub fn name(&self) -> String {
        format!("{} at {}", self.table, self.target.address())
    }
}

/// How two tables differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The columns by which rows are known; none: by all of them.
    pub key: Vec<String>,
    /// The columns that were compared.
    pub columns: Vec<String>,
    /// Columns that only the first table has.
    pub columns_of_first: Vec<String>,
    /// Columns that only the second has.
    pub columns_of_second: Vec<String>,
    /// Columns whose types have so little in common that their texts were compared.
    pub columns_as_text: Vec<String>,
    /// Rows of the first table.
    pub first_rows: u64,
    /// Rows of the second.
    pub second_rows: u64,
    /// Rows that only the first table has.
    pub only_first: u64,
    /// Rows that only the second has.
    pub only_second: u64,
    /// Rows that both have, with other values.
    pub different: u64,
    /// The first differences, at most so many as asked for.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Whether both have the same columns, and the same rows.
    pub fn is_equal(&self) -> bool {
        self.only_first + self.only_second + self.different == 0
            && self.columns_of_first.is_empty()
            && self.columns_of_second.is_empty()
    }
}

/// A row that is not the same in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Who has it.
    pub kind: Kind,
    /// What it is known by: names and values; `None` is NULL.
    pub key: Vec<(String, Option<String>)>,
    /// Of a row that both have: the columns that differ, with the first's value and the second's.
    pub columns: Vec<(String, Option<String>, Option<String>)>,
}

/// Who has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first table alone.
    OnlyFirst,
    /// The second alone.
    OnlySecond,
    /// Both, with other values.
    Different,
}

/// Compares two tables, and keeps the first `shown` differences. `progress` is told how many rows of both have been read.
pub async fn compare(
    first: &Side,
    second: &Side,
    shown: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Comparison, Error> {
    let (mut one, mut other) = (open(first).await?, open(second).await?);
    let layouts = (layout(&mut one, first).await?, layout(&mut other, second).await?);
    let pair = Pair::of(layouts.0, &layouts.1)
        .map_err(|what| Error::Usage(format!("{} and {} can't be compared: {what}", first.name(), second.name())))?;
    let merge = Merge::new(&pair)?;
    let mut read = 0;
    for (side, session, is_first) in [(first, &mut one, true), (second, &mut other, false)] {
        let mut failed = None;
        let mut each = |row: Vec<Option<Vec<u8>>>| {
            read += 1;
            if read % STEP == 0 {
                progress(read);
            }
            let added = merge.add(is_first, &pair.spelt(row, is_first));
            failed = added.err();
            failed.is_none()
        };
        session.each(&pair.query(&side.table, is_first), &mut each).await.map_err(|failure| of(side, failure))?;
        failed.map_or(Ok(()), Err)?;
    }
    merge.finish(&pair, shown)
}

async fn open(side: &Side) -> Result<Session, Error> {
    let (_, never) = watch::channel(false);
    let mut session = side.target.connect(BUSY, &never).await.map_err(Error::Target)?;
    if let Some(setup) = column::setup(side.target.database()) {
        session.script(setup).await.map_err(Error::Target)?;
    }
    Ok(session)
}

async fn layout(session: &mut Session, side: &Side) -> Result<Layout, Error> {
    let layout =
        Layout::read(session, side.target.database(), &side.table).await.map_err(|failure| of(side, failure))?;
    if layout.columns.is_empty() {
        return Err(Error::Usage(format!(
            "there is no table {}; name it by --table, or --with for SECOND's",
            side.name()
        )));
    }
    Ok(layout)
}

/// A failure with the table that it is about.
fn of(side: &Side, failure: Failure) -> Error {
    let detail = format!("{} could not be read: {}", side.name(), failure.detail);
    Error::Target(Failure { detail, ..failure })
}
