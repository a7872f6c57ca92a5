//! The way through an upload: batch by batch, and by halves where a batch is refused.
//!
//! 1. Inserts and updates, in the upload's order (the remote sends parents before children).
//! 2. Deletions, frame by frame from the last to the first.
//! 3. What was refused for a unique value or a foreign key is tried again, as long as that helps: the order of statements is the
//!    remote's history no more, so a row may have come before the one that makes room for it.
//!
//! Halving a batch of n changes takes fewer than 2n statements' groups, whatever is wrong with it.

use std::collections::{BTreeMap, HashSet};

use headwater_protocol::message::{Change, Outcome, Receipt, RefusalCode, TableHeader};
use headwater_protocol::wire::Reader;
use headwater_protocol::{DecodeError, Kind, Row, text};

use super::batch::{self, Done};
use super::{Checking, Counts, Failure, UploadRequest, UploadSource, Uploaded, Verdict};
use crate::{Connection, Error, TablePlan, memberships};

/// A batch is closed when it holds this many bytes of changes, whatever their number.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How often refused changes are tried again while that still mends some.
const PASSES_MAX: usize = 5;

/// A change and its place in the upload.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) ordinal: u64,
    pub(super) change: Change,
}

/// The partitions that a user is a member of, by place in the model's partitions, as their keys.
pub(super) type Members = Vec<HashSet<Vec<u8>>>;

/// Applies every change. The transaction is open, the remote's row locked.
pub(super) fn run(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
    checking: Checking,
) -> Result<Uploaded, Failure> {
    connection.set_actor(request.user, &request.remote_id)?;
    let members = members(connection, request)?;
    let mut engine = Engine {
        connection,
        request,
        members,
        checking,
        done: Done::default(),
        outcomes: BTreeMap::new(),
        again: Vec::new(),
    };
    let deletions = engine.forwards(source)?;
    engine.backwards(source, &deletions)?;
    engine.again()?;
    if checking == Checking::AtTheEnd {
        engine.check_deferred()?;
    }
    let own = engine.connection.own_mark()?;
    let Engine { done, outcomes, .. } = engine;
    let Done { echo, conflicted, counts, .. } = done;
    let receipt = Receipt {
        sequence: request.end.sequence,
        changes: request.end.changes,
        outcomes: outcomes.into_iter().collect(),
    };
    Ok(Uploaded { verdict: Verdict::Applied, receipt, echo, own, conflicted, counts })
}

fn members(connection: &mut dyn Connection, request: &UploadRequest<'_>) -> Result<Members, Error> {
    let mut members = Members::new();
    for (place, partition) in request.plan.model.partitions.iter().enumerate() {
        let rows = memberships::query(connection, partition, request.user, &request.remote_id)?;
        let of_it = |table: &&TablePlan| table.table.partition.as_ref().is_some_and(|mine| mine.partition == place);
        let table = request.plan.tables.iter().find(of_it);
        members.push(
            table.map_or_else(HashSet::new, |table| rows.iter().filter_map(|row| table.partition_key(row)).collect()),
        );
    }
    Ok(members)
}

struct Engine<'a> {
    connection: &'a mut dyn Connection,
    request: &'a UploadRequest<'a>,
    members: Members,
    checking: Checking,
    done: Done,
    outcomes: BTreeMap<u64, Outcome>,
    /// Changes refused in a way that other changes may mend, with the refusal.
    again: Vec<(&'a TablePlan, Numbered, Outcome)>,
}

/// Where a frame with deletions stands, so that it can be read again.
struct DeletionFrame {
    frame: usize,
    table: usize,
    first_ordinal: u64,
}

impl<'a> Engine<'a> {
    fn forwards(&mut self, source: &mut dyn UploadSource) -> Result<Vec<DeletionFrame>, Failure> {
        let mut deletions = Vec::new();
        let mut collected: Option<(&'a TablePlan, Batch)> = None;
        let mut changes = Changes::new(self.request, source);
        while let Some((table, frame)) = changes.next_frame()? {
            if collected.as_ref().is_some_and(|(before, _)| before.number != table.number) {
                self.take(&mut collected)?;
            }
            if frame.iter().any(|numbered| numbered.change.new.is_none()) {
                deletions.push(changes.place());
            }
            let bytes = changes.payload_bytes;
            for numbered in frame.into_iter().filter(|numbered| numbered.change.new.is_some()) {
                let is_full = collected.as_ref().is_some_and(|(_, batch)| {
                    batch.changes.len() >= self.request.limits.batch_rows || batch.has_key_of(table, &numbered)
                });
                if is_full {
                    self.take(&mut collected)?;
                }
                collected.get_or_insert_with(|| (table, Batch::default())).1.add(table, numbered);
            }
            if let Some((_, batch)) = &mut collected {
                batch.bytes += bytes;
                if batch.bytes >= BATCH_BYTES_MAX {
                    self.take(&mut collected)?;
                }
            }
        }
        let counted = changes.next_ordinal;
        self.take(&mut collected)?;
        if counted != self.request.end.changes {
            return Err(
                Error::Decode(DecodeError::Undefined { field: "changes", actual: self.request.end.changes }).into()
            );
        }
        Ok(deletions)
    }

    fn take(&mut self, collected: &mut Option<(&'a TablePlan, Batch)>) -> Result<(), Failure> {
        match collected.take() {
            Some((table, batch)) => self.apply(table, batch.changes),
            None => Ok(()),
        }
    }

    fn backwards(&mut self, source: &mut dyn UploadSource, deletions: &[DeletionFrame]) -> Result<(), Failure> {
        for place in deletions.iter().rev() {
            let table = &self.request.plan.tables[place.table];
            let (changes, _) = read_changes(self.request, source, place.frame, table, place.first_ordinal)?;
            let deletions = changes.into_iter().filter(|numbered| numbered.change.new.is_none()).collect();
            self.apply(table, deletions)?;
        }
        Ok(())
    }

    /// Tries what was refused again, table by table, while that mends something; what is left is refused for good.
    fn again(&mut self) -> Result<(), Failure> {
        for _ in 0..PASSES_MAX {
            let before = self.again.len();
            if before == 0 {
                return Ok(());
            }
            let mut by_table: BTreeMap<u32, (&'a TablePlan, Vec<Numbered>)> = BTreeMap::new();
            for (table, numbered, _) in std::mem::take(&mut self.again) {
                by_table.entry(table.number).or_insert_with(|| (table, Vec::new())).1.push(numbered);
            }
            for (table, changes) in by_table.into_values() {
                self.apply(table, changes)?;
            }
            if self.again.len() == before {
                break;
            }
        }
        for (_, numbered, outcome) in std::mem::take(&mut self.again) {
            self.done.counts.refused += 1;
            self.outcomes.insert(numbered.ordinal, outcome);
        }
        Ok(())
    }

    /// Applies a batch; where it is refused, its halves, down to the change at fault.
    fn apply(&mut self, table: &'a TablePlan, changes: Vec<Numbered>) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        self.connection.savepoint()?;
        let mut tried =
            batch::apply(self.connection, self.request, table, &self.members, &changes, self.done.echo.like());
        if tried.is_ok() && self.checking == Checking::EachBatch {
            tried = self.connection.check_deferred().and(tried);
        }
        match tried {
            Ok(done) => {
                self.connection.release_savepoint()?;
                self.outcomes.extend(done.outcomes.iter().cloned());
                self.done.add(done);
                Ok(())
            }
            Err(Error::Refused { refusal, detail }) => {
                self.connection.rollback_to_savepoint()?;
                self.connection.release_savepoint()?;
                if changes.len() > 1 {
                    let mut first = changes;
                    let second = first.split_off(first.len() / 2);
                    self.apply(table, first)?;
                    return self.apply(table, second);
                }
                tracing::debug!(table = table.table.name, code = refusal.code.name(), detail, "a change is refused");
                let others_may_mend =
                    matches!(refusal.code, RefusalCode::Unique | RefusalCode::ForeignKey | RefusalCode::Constraint);
                for numbered in changes {
                    let outcome = Outcome::Refused(refusal.clone());
                    if others_may_mend {
                        self.again.push((table, numbered, outcome));
                    } else {
                        self.done.counts.refused += 1;
                        self.outcomes.insert(numbered.ordinal, outcome);
                    }
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn check_deferred(&mut self) -> Result<(), Failure> {
        match self.connection.check_deferred() {
            Err(Error::Refused { detail, .. }) => {
                tracing::debug!(
                    detail,
                    "a deferred constraint is broken; the upload is applied again to find the change at fault"
                );
                Err(Failure::Deferred)
            }
            other => Ok(other?),
        }
    }
}

/// Inserts and updates of one table, at most one a key.
#[derive(Default)]
struct Batch {
    changes: Vec<Numbered>,
    keys: HashSet<Vec<u8>>,
    bytes: usize,
}

impl Batch {
    fn has_key_of(&self, table: &TablePlan, numbered: &Numbered) -> bool {
        self.keys.contains(&batch::encoded_key(table, numbered.change.image()))
    }

    fn add(&mut self, table: &TablePlan, numbered: Numbered) {
        self.keys.insert(batch::encoded_key(table, numbered.change.image()));
        self.changes.push(numbered);
    }
}

/// Reads an upload's changes frame by frame.
pub(super) struct Changes<'a, 's> {
    request: &'a UploadRequest<'a>,
    source: &'s mut dyn UploadSource,
    next: usize,
    table: Option<usize>,
    first_ordinal: u64,
    pub(super) next_ordinal: u64,
    /// Bytes of the last frame's payload.
    pub(super) payload_bytes: usize,
}

impl<'a, 's> Changes<'a, 's> {
    pub(super) fn new(request: &'a UploadRequest<'a>, source: &'s mut dyn UploadSource) -> Self {
        Changes { request, source, next: 0, table: None, first_ordinal: 0, next_ordinal: 0, payload_bytes: 0 }
    }

    /// The next frame of changes and its table; `None` at the end.
    pub(super) fn next_frame(&mut self) -> Result<Option<(&'a TablePlan, Vec<Numbered>)>, Error> {
        while self.next < self.source.frames() {
            let frame = self.source.frame(self.next)?;
            self.next += 1;
            match frame.kind {
                Kind::Table => {
                    let header = TableHeader::from_payload(&frame.payload(self.request.limits.frame_bytes_max)?)?;
                    let known =
                        self.request.plan.tables.get(header.table as usize).filter(|table| table.header == header);
                    let unknown = DecodeError::Undefined { field: "table", actual: u64::from(header.table) };
                    self.table = Some(known.ok_or(unknown)?.number as usize);
                }
                _ => {
                    let place =
                        self.table.ok_or(DecodeError::Undefined { field: "changes before a table", actual: 0 })?;
                    let table = &self.request.plan.tables[place];
                    self.first_ordinal = self.next_ordinal;
                    let (changes, bytes) =
                        read_changes(self.request, self.source, self.next - 1, table, self.next_ordinal)?;
                    self.next_ordinal += changes.len() as u64;
                    self.payload_bytes = bytes;
                    return Ok(Some((table, changes)));
                }
            }
        }
        Ok(None)
    }

    /// Where the last frame stands.
    fn place(&self) -> DeletionFrame {
        DeletionFrame { frame: self.next - 1, table: self.table.unwrap_or_default(), first_ordinal: self.first_ordinal }
    }
}

/// The changes of one frame, and the bytes of its payload.
fn read_changes(
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
    frame: usize,
    table: &TablePlan,
    first_ordinal: u64,
) -> Result<(Vec<Numbered>, usize), Error> {
    let frame = source.frame(frame)?;
    let limit = request.limits.frame_bytes_max;
    let payload = frame.payload(limit)?;
    let mut reader = Reader::new(&payload);
    let mut changes = Vec::new();
    while !reader.is_empty() {
        let mut change = Change::read(&mut reader, &table.types, limit)?;
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && table.key_of(old) != table.key_of(new)
        {
            return Err(DecodeError::Undefined { field: "key of an update's new image", actual: first_ordinal }.into());
        }
        for image in [&mut change.old, &mut change.new].into_iter().flatten() {
            coerce(image, table);
        }
        changes.push(Numbered { ordinal: first_ordinal + changes.len() as u64, change });
    }
    Ok((changes, payload.len()))
}

/// Values that an application spelled in its own way are made the column's type where that is exact; others stay, and the database
/// will refuse them or, being SQLite, store them as they are.
fn coerce(row: &mut Row, table: &TablePlan) {
    for (value, kind) in row.iter_mut().zip(&table.types) {
        if value.as_ref().kind().is_some_and(|own| own != *kind)
            && let Some(typed) = text::coerce(value, *kind)
        {
            *value = typed;
        }
    }
}

impl Done {
    fn add(&mut self, other: Done) {
        self.echo.extend(other.echo);
        self.conflicted.extend(other.conflicted);
        self.counts = sum(self.counts, other.counts);
    }
}

fn sum(one: Counts, other: Counts) -> Counts {
    Counts {
        inserted: one.inserted + other.inserted,
        updated: one.updated + other.updated,
        deleted: one.deleted + other.deleted,
        conflicts: one.conflicts + other.conflicts,
        refused: one.refused + other.refused,
    }
}
