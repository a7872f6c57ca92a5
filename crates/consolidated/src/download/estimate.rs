//! About how large a download is, told while it is read: for whoever takes it to see beforehand what is coming.
//!
//! Rows are counted where the database does that quickly, else guessed by what it knows of the table; some rows of each table are written
//! to see how many bytes a row takes. The same memberships, watermarks and row security as the download's own, in a snapshot of its own.
//!
//! *Caveats.* Shared partitions are left out where they come in chunks. Tables with a `download_cursor` are left out: only the user's script knows what it gives. Of changes, those that left a
//! partition are counted like rows.

use std::time::{Duration, Instant};

use headwater_model::Direction;
use headwater_model::script::Step;
use headwater_protocol::{Frame, Row};

use super::{Download, DownloadRequest, changes_told, partitions_of};
use crate::backend::{Changes, Reading};
use crate::rows::Echo;
use crate::{Connection, Error, Mode, RowsWriter, TablePlan};

/// The first look at a table's rows: how large are they?
const FIRST_ROWS: u32 = 5;
/// The second look takes about so many bytes of them, and no more rows than that: frames of this size compress as all others.
const SAMPLE_BYTES: u64 = 64 * 1024;
const SAMPLE_ROWS_MAX: u64 = 1_000;

/// About how much comes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Rows, deletions among them.
    pub rows: u64,
    /// Bytes of their frames on the wire.
    pub bytes: u64,
}

/// Estimates the download of this request, on a connection that is not the one that reads it. Nothing in the database changes.
/// [`Error::Retry`] where it takes longer than `limit`.
pub fn estimate(
    connection: &mut dyn Connection,
    request: &DownloadRequest<'_>,
    limit: Duration,
) -> Result<Estimate, Error> {
    let deadline = Instant::now() + limit;
    connection.begin(Mode::Download)?;
    let estimated = connection
        .hurry(limit)
        .and_then(|()| connection.set_actor(request.user, &request.remote_id))
        .and_then(|()| Download::new(connection, request, &mut |_| Ok(()), None)?.estimate(deadline));
    connection.rollback()?;
    estimated
}

impl Download<'_, '_> {
    fn estimate(mut self, deadline: Instant) -> Result<Estimate, Error> {
        self.name_partitions()?;
        let accepted = self.accepted_marks()?;
        let mut all = Estimate::default();
        for table in &self.request.plan.tables {
            if table.table.direction == Direction::Upload || table.table.script(Step::DownloadCursor).is_some() {
                continue;
            }
            if Instant::now() > deadline {
                return Err(Error::Retry { detail: "an estimate takes too long".to_owned(), broken: false });
            }
            let wanted = self.wanted(table);
            let rows = self.count(table, &wanted, &changes_told(table, &accepted))?;
            if rows > 0 {
                let some = self.sample(table, partitions_of(table, &wanted))?;
                let bytes = u128::from(rows) * u128::from(some.bytes) / u128::from(some.rows.max(1));
                all.rows = all.rows.saturating_add(rows);
                all.bytes = all.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
            }
        }
        Ok(all)
    }

    /// About how many rows of a table come.
    fn count(&mut self, table: &TablePlan, wanted: &[Row], tells: &[bool]) -> Result<u64, Error> {
        let request = self.request;
        let sorted = self.sort(table, wanted, tells);
        let mut rows = 0;
        let is_elsewhere = table.table.shared && request.snapshots.is_some();
        if !sorted.whole.is_empty() && !is_elsewhere {
            rows += self.connection.count(&Reading::Whole(table, partitions_of(table, &sorted.whole)))?;
        }
        for (mark, partitions) in &sorted.since {
            let since = request.watermarks.marks.get(*mark as usize).map(Vec::as_slice).unwrap_or_default();
            let own = Some(request.own).filter(|own| !own.is_empty());
            let (partitions, wanted) = (partitions_of(table, partitions), partitions_of(table, wanted));
            rows += self.connection.count(&Reading::Changes(&Changes { table, partitions, wanted, since, own }))?;
        }
        Ok(rows)
    }

    /// Some rows as they travel.
    fn sample(&mut self, table: &TablePlan, partitions: &[Row]) -> Result<Estimate, Error> {
        let first = self.write_some(table, partitions, FIRST_ROWS)?;
        let rows = SAMPLE_BYTES * first.rows / first.bytes.max(1);
        if first.rows < u64::from(FIRST_ROWS) || rows <= first.rows {
            return Ok(first);
        }
        self.write_some(table, partitions, rows.min(SAMPLE_ROWS_MAX) as u32)
    }

    fn write_some(&mut self, table: &TablePlan, partitions: &[Row], rows_max: u32) -> Result<Estimate, Error> {
        let (echo, mut bytes) = (Echo::default(), 0);
        let mut measure = |frame: Frame| {
            bytes += frame.wire_bytes() as u64;
            Ok(())
        };
        let mut rows = RowsWriter::new(table, &echo, &mut measure);
        self.connection.read_some(table, partitions, rows_max, &mut rows)?;
        let rows = rows.finish()?;
        Ok(Estimate { rows, bytes })
    }
}
