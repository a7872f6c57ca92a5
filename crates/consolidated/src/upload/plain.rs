//! Inserts that go from their frame straight into the database's statement, without a value of their own.
//!
//! A CHANGES payload that is nothing but inserts is a ROWS payload too, byte by byte. It is taken as it is where nothing has to be judged:
//! each value is of its column's type, each row lies in a partition of the user's, and the database says that it will store just what it is
//! given ([`Connection::takes_plain`](crate::Connection::takes_plain)). Whatever else comes up (a key that exists, a value that does not fit)
//! is taken back, and the frame goes the way of all others.

use std::ops::Range;

use headwater_model::Direction;
use headwater_protocol::message::{ChangeOp, RowOp};
use headwater_protocol::row::{Cell, RowReader, RowWriter};
use headwater_protocol::wire::Reader;
use headwater_protocol::{DecodeError, ValueRef};

use super::policy::Policy;
use crate::TablePlan;
use crate::backend::EncodedRows;

const _: () = assert!(ChangeOp::Insert as u8 == RowOp::Upsert as u8, "an insert is encoded as a row that is stored");

/// Fewer changes than these are not worth asking the database what it does with them.
pub(super) const CHANGES_MIN: u64 = 50;

/// Where each batch of a payload's rows lies, and how many it has.
type Batches = Vec<(Range<usize>, usize)>;

/// A payload of nothing but inserts.
pub(super) struct Inserts {
    payload: Vec<u8>,
    batches: Batches,
}

impl Inserts {
    /// The rows, as many at a time as a batch may have.
    pub(super) fn batches(&self) -> impl Iterator<Item = EncodedRows<'_>> {
        self.batches.iter().map(|(range, count)| EncodedRows::new(&self.payload[range.clone()], *count))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.batches.iter().map(|(_, count)| count).sum()
    }

    /// Takes a payload for what it is; gives it back if it is anything else, or nothing that can be read.
    pub(super) fn of_payload(
        payload: Vec<u8>,
        table: &TablePlan,
        policy: &Policy,
        (batch_rows, value_bytes_max): (usize, usize),
    ) -> Result<Inserts, Vec<u8>> {
        match batches_of(&payload, table, policy, (batch_rows, value_bytes_max)) {
            Ok(Some(batches)) => Ok(Inserts { payload, batches }),
            _ => Err(payload),
        }
    }
}

/// Whether inserts into a table may be taken so, as far as the model says.
pub(super) fn is_plain(table: &TablePlan) -> bool {
    table.table.direction != Direction::Download && table.table.scripts.is_empty() && table.parents.is_empty()
}

fn batches_of(
    payload: &[u8],
    table: &TablePlan,
    policy: &Policy,
    (batch_rows, value_bytes_max): (usize, usize),
) -> Result<Option<Batches>, DecodeError> {
    let mut reader = Reader::new(payload);
    let mut admission = Admission { table, policy, partition: Vec::new(), admitted: Vec::new() };
    let mut row: Vec<ValueRef<'_>> = Vec::with_capacity(table.types.len());
    let mut batches = Batches::new();
    while !reader.is_empty() {
        let start = payload.len() - reader.rest().len();
        if reader.u8("change")? != ChangeOp::Insert as u8 {
            return Ok(None);
        }
        row.clear();
        let mut cells = RowReader::new(&mut reader, &table.types, value_bytes_max)?;
        while let Some(cell) = cells.next_cell()? {
            match cell {
                Cell::Value(value) if value.kind().is_none_or(|kind| kind == table.types[row.len()]) => row.push(value),
                _ => return Ok(None),
            }
        }
        if !admission.admits(&row) {
            return Ok(None);
        }
        let end = payload.len() - reader.rest().len();
        match batches.last_mut().filter(|(_, count)| *count < batch_rows) {
            Some((range, count)) => (range.end, *count) = (end, *count + 1),
            None => batches.push((start..end, 1)),
        }
    }
    Ok(Some(batches))
}

/// Lets rows of one table in, like [`Policy::refusal`].
struct Admission<'a> {
    table: &'a TablePlan,
    policy: &'a Policy,
    /// The partition of the row at hand.
    partition: Vec<u8>,
    /// The last one that was found to be the user's.
    admitted: Vec<u8>,
}

impl Admission<'_> {
    fn admits(&mut self, row: &[ValueRef<'_>]) -> bool {
        if self.table.table.key.iter().any(|place| row[*place].kind().is_none()) {
            return false;
        }
        let Some(partition) = &self.table.table.partition else { return true };
        self.partition.clear();
        let mut writer = RowWriter::new(&mut self.partition, &self.table.partition_types);
        for place in &partition.columns {
            writer.push(row[*place]);
        }
        writer.finish();
        if partition.columns.iter().any(|place| row[*place].kind().is_none()) {
            return false;
        }
        if self.partition != self.admitted {
            if !self.policy.is_member(self.table, &self.partition) {
                return false;
            }
            std::mem::swap(&mut self.partition, &mut self.admitted);
        }
        true
    }
}
