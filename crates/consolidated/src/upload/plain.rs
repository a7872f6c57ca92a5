//! Changes that go from their frame straight into the database's statement, without a value of their own.
//!
//! A CHANGES payload that is nothing but inserts, nothing but updates or nothing but deletions is taken as it is where there is nothing to
//! be judged but whether the stored rows are the old images, which the statement compares by itself:
//!
//! | the payload | the statement | as many rows as changes |
//! |---|---|---|
//! | inserts | inserts rows whose keys are absent | or the database refuses it |
//! | updates | updates rows that are the same as their old images | each is made without a conflict, under every rule |
//! | deletions | deletes rows that are the same as their old images | the same |
//!
//! Each value must be of its column's type and each row lie in a partition of the user's, before and after; and the database says that it
//! will store just what it is given ([`Connection::takes_plain`](crate::Connection::takes_plain)). Under the rule `off` a table without
//! partitions is not compared. Whatever else comes up (a key that exists, a row that another has changed, a value that does not fit) is taken
//! back, and the frame goes the way of all others. A table that had to be taken back so too often is not tried again in this upload.
//!
//! *Caveats.* Rows are locked in the order of the frame, or of the table, as the planner has it: two uploads that change the same rows may
//! deadlock, and one of them is tried again.

mod apply;

use std::ops::Range;

use headwater_model::{ConflictRule, Direction};
use headwater_protocol::message::ChangeOp;
use headwater_protocol::row::RowWriter;
use headwater_protocol::wire::Reader;
use headwater_protocol::{DecodeError, Type, ValueRef};

pub(super) use self::apply::Tries;
use super::policy::Policy;
use crate::TablePlan;
use crate::backend::{EncodedChange, EncodedChanges, Images};

/// Fewer changes than these are not worth asking the database what it does with them.
const CHANGES_MIN: u64 = 50;

/// Where each batch of a payload's changes lies, and how many it has.
type Batches = Vec<(Range<usize>, usize)>;

/// A payload of changes of one kind.
pub(super) struct PlainChanges {
    pub(super) op: ChangeOp,
    payload: Vec<u8>,
    batches: Batches,
}

impl PlainChanges {
    /// The changes, as many at a time as a batch may have: deletions from the last batch to the first, for what comes later in an upload
    /// may depend on what comes before.
    pub(super) fn batches(&self) -> impl Iterator<Item = EncodedChanges<'_>> {
        let count = self.batches.len();
        let is_backwards = self.op == ChangeOp::Delete;
        let place = move |number: usize| if is_backwards { count - 1 - number } else { number };
        (0..count).map(move |number| {
            let (range, count) = &self.batches[place(number)];
            EncodedChanges::new(self.op, &self.payload[range.clone()], *count)
        })
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
    ) -> Result<PlainChanges, Vec<u8>> {
        let Some(op) = op_of(&payload) else { return Err(payload) };
        let admission = Admission { table, policy, partition: Vec::new(), admitted: Vec::new() };
        match batches_of(&payload, op, admission, (batch_rows, value_bytes_max)) {
            Ok(Some(batches)) => Ok(PlainChanges { op, payload, batches }),
            _ => Err(payload),
        }
    }
}

/// What the first change of a payload does.
pub(super) fn op_of(payload: &[u8]) -> Option<ChangeOp> {
    let first = *payload.first()?;
    [ChangeOp::Insert, ChangeOp::Update, ChangeOp::Delete].into_iter().find(|op| *op as u8 == first)
}

/// Whether changes of a table may be taken so, as far as the model says.
fn is_plain(table: &TablePlan) -> bool {
    table.table.direction != Direction::Download && table.table.scripts.is_empty() && table.parents.is_empty()
}

/// Whether stored rows are compared with old images: otherwise whatever is stored makes way, and none lies outside a partition.
fn compares(table: &TablePlan) -> bool {
    table.table.conflict != ConflictRule::Off || table.table.partition.is_some()
}

fn batches_of(
    payload: &[u8],
    op: ChangeOp,
    mut admission: Admission<'_>,
    (batch_rows, value_bytes_max): (usize, usize),
) -> Result<Option<Batches>, DecodeError> {
    let (mut reader, mut images) = (Reader::new(payload), Images::default());
    let mut batches = Batches::new();
    while !reader.is_empty() {
        let start = payload.len() - reader.rest().len();
        let change = images.read(&mut reader, op, &admission.table.types, value_bytes_max)?;
        if !admission.admits(&change) {
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

/// Lets changes of one table in, like [`Policy::refusal`].
struct Admission<'a> {
    table: &'a TablePlan,
    policy: &'a Policy,
    /// The partition of the row at hand.
    partition: Vec<u8>,
    /// The last one that was found to be the user's.
    admitted: Vec<u8>,
}

impl Admission<'_> {
    fn admits(&mut self, change: &EncodedChange<'_, '_>) -> bool {
        let (types, key) = (&self.table.types, &self.table.table.key);
        let row = if change.new.is_empty() { change.old } else { change.new };
        are_of(types, change.old)
            && are_of(types, change.new)
            && key.iter().all(|place| row[*place].kind().is_some())
            && (change.old.is_empty() || change.new.is_empty() || self.stays(change))
            && self.is_inside(row)
    }

    /// Whether an update leaves the row where it is and what it is called, and makes another one of it.
    fn stays(&self, change: &EncodedChange<'_, '_>) -> bool {
        let table = &self.table.table;
        let partition = table.partition.iter().flat_map(|partition| &partition.columns);
        table.key.iter().chain(partition).all(|place| change.old[*place].is_identical(&change.new[*place]))
            && change.old.iter().zip(change.new).any(|(old, new)| !old.same(new))
    }

    fn is_inside(&mut self, row: &[ValueRef<'_>]) -> bool {
        let Some(partition) = &self.table.table.partition else { return true };
        if partition.columns.iter().any(|place| row[*place].kind().is_none()) {
            return false;
        }
        self.partition.clear();
        let mut writer = RowWriter::new(&mut self.partition, &self.table.partition_types);
        for place in &partition.columns {
            writer.push(row[*place]);
        }
        writer.finish();
        if self.partition != self.admitted {
            if !self.policy.is_member(self.table, &self.partition) {
                return false;
            }
            std::mem::swap(&mut self.partition, &mut self.admitted);
        }
        true
    }
}

/// Whether the values of an image are of their columns' types, or NULL.
fn are_of(types: &[Type], image: &[ValueRef<'_>]) -> bool {
    image.iter().zip(types).all(|(value, kind)| value.kind().is_none_or(|own| own == *kind))
}
