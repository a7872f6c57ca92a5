//! Reading an upload's frames: once forwards, then any change again by its ordinal.

use headwater_protocol::message::{Change, ChangeOp, TableHeader};
use headwater_protocol::wire::Reader;
use headwater_protocol::{DecodeError, Frame, Kind, Row, text};

use super::plain::PlainChanges;
use super::policy::Policy;
use super::{UploadRequest, UploadSource};
use crate::keys::key_bytes_of;
use crate::{Dialect, Error, Plan, TablePlan};

/// One change of an upload.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its place in the upload.
    pub(super) ordinal: u64,
    /// Its table's place in the plan.
    pub(super) table: usize,
    /// The change.
    pub(super) change: Change,
    /// The bytes of its key.
    pub(super) key: Vec<u8>,
    /// Values that the application spelled in its own way were made the column's: the remote has the row otherwise than it is stored.
    pub(super) is_respelled: bool,
    /// A value of the key among them: the remote would take the stored row for another.
    pub(super) is_key_respelled: bool,
}

impl Item {
    pub(super) fn is_delete(&self) -> bool {
        self.change.new.is_none()
    }
}

/// A CHANGES frame that has been read once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    frame: usize,
    /// Its table's place in the plan.
    pub(super) table: usize,
    /// Ordinal of its first change.
    pub(super) first: u64,
    /// How many changes it has.
    pub(super) changes: u64,
    /// How many bytes they take.
    pub(super) bytes: usize,
    /// Whether one of them is a deletion.
    pub(super) has_deletes: bool,
    /// Nothing but deletions that may be made as they came.
    pub(super) is_deletions: bool,
    /// They were made as they came.
    pub(super) is_plain: bool,
}

/// A CHANGES frame that has not been read yet.
pub(super) struct Payload {
    frame: usize,
    /// Its table's place in the plan.
    pub(super) table: usize,
    pub(super) bytes: Vec<u8>,
}

/// Reads changes out of frames.
pub(super) struct SourceReader<'a> {
    plan: &'a Plan,
    source: &'a mut dyn UploadSource,
    frame_bytes_max: usize,
    batch_rows: usize,
    /// Whether the database has real types, so that values that an application spelled in its own way are made the column's.
    coerces: bool,
    /// The table of the last TABLE frame.
    table: Option<usize>,
    next_frame: usize,
    next_ordinal: u64,
    /// Bytes of the payload read last.
    pub(super) payload_bytes: usize,
    /// What has been read.
    pub(super) sections: Vec<Section>,
}

impl<'a> SourceReader<'a> {
    pub(super) fn new(request: &UploadRequest<'a>, source: &'a mut dyn UploadSource, dialect: Dialect) -> Self {
        SourceReader {
            plan: request.plan,
            source,
            frame_bytes_max: request.limits.frame_bytes_max,
            batch_rows: request.limits.batch_rows,
            coerces: dialect != Dialect::Sqlite,
            table: None,
            next_frame: 0,
            next_ordinal: 0,
            payload_bytes: 0,
            sections: Vec::new(),
        }
    }

    /// The changes of the next CHANGES frame; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Item>>, Error> {
        self.next_payload()?.map(|payload| self.items(payload)).transpose()
    }

    /// The next CHANGES frame; `None` after the last.
    pub(super) fn next_payload(&mut self) -> Result<Option<Payload>, Error> {
        while self.next_frame < self.source.frames() {
            let place = self.next_frame;
            let frame = self.source.frame(place)?;
            self.next_frame += 1;
            match (frame.kind, self.table) {
                (Kind::Table, _) => self.table = Some(self.header(&frame)?),
                (Kind::Changes, Some(table)) => {
                    let bytes = frame.payload(self.frame_bytes_max)?.into_owned();
                    self.payload_bytes = bytes.len();
                    return Ok(Some(Payload { frame: place, table, bytes }));
                }
                (kind, _) => return Err(undefined("frame kind", kind as u64)),
            }
        }
        Ok(None)
    }

    /// Its changes. It is taken: a large one is not held beside them while they are applied.
    pub(super) fn items(&mut self, payload: Payload) -> Result<Vec<Item>, Error> {
        let Payload { frame, table, bytes } = payload;
        let items = self.changes(&bytes, table, self.next_ordinal)?;
        let has_deletes = items.iter().any(Item::is_delete);
        self.add_section((frame, table), items.len(), has_deletes);
        Ok(items)
    }

    /// Its changes as they are, if they are of one kind and the policy admits them; gives it back otherwise.
    pub(super) fn plain(&mut self, mut payload: Payload, policy: &Policy) -> Result<PlainChanges, Payload> {
        let table = &self.plan.tables[payload.table];
        let bytes = std::mem::take(&mut payload.bytes);
        match PlainChanges::of_payload(bytes, table, policy, (self.batch_rows, self.frame_bytes_max)) {
            Ok(changes) => {
                let is_deletions = changes.op == ChangeOp::Delete;
                self.add_section((payload.frame, payload.table), changes.count(), is_deletions);
                self.sections.last_mut().into_iter().for_each(|section| section.is_deletions = is_deletions);
                Ok(changes)
            }
            Err(bytes) => Err(Payload { bytes, ..payload }),
        }
    }

    /// The same of a section that has been read so before.
    pub(super) fn plain_again(&mut self, section: Section, policy: &Policy) -> Result<Option<PlainChanges>, Error> {
        let (table, limits) = (&self.plan.tables[section.table], (self.batch_rows, self.frame_bytes_max));
        Ok(PlainChanges::of_payload(self.payload(section)?, table, policy, limits).ok())
    }

    /// Notes that the changes of the `index`th section were made as they came.
    pub(super) fn keep_plain(&mut self, index: usize) {
        self.sections[index].is_plain = true;
    }

    /// Gives the last frame once more, as if it had not been read.
    pub(super) fn take_back(&mut self) -> Result<Payload, Error> {
        let Some(section) = self.sections.pop() else { return Err(undefined("ordinal", self.next_ordinal)) };
        self.next_ordinal = section.first;
        Ok(Payload { frame: section.frame, table: section.table, bytes: self.payload(section)? })
    }

    fn add_section(&mut self, (frame, table): (usize, usize), changes: usize, has_deletes: bool) {
        self.sections.push(Section {
            frame,
            table,
            first: self.next_ordinal,
            changes: changes as u64,
            bytes: self.payload_bytes,
            has_deletes,
            is_deletions: false,
            is_plain: false,
        });
        self.next_ordinal += changes as u64;
    }

    /// How many changes have been read so far.
    pub(super) fn changes_read(&self) -> u64 {
        self.next_ordinal
    }

    /// The changes of a section again.
    pub(super) fn section(&mut self, section: Section) -> Result<Vec<Item>, Error> {
        let payload = self.payload(section)?;
        self.changes(&payload, section.table, section.first)
    }

    /// The payload of a section again.
    pub(super) fn payload(&mut self, section: Section) -> Result<Vec<u8>, Error> {
        let payload = self.source.frame(section.frame)?.payload(self.frame_bytes_max)?.into_owned();
        self.payload_bytes = payload.len();
        Ok(payload)
    }

    /// The changes with these ordinals, which ascend.
    pub(super) fn pick(&mut self, ordinals: &[u64]) -> Result<Vec<Item>, Error> {
        let mut picked = Vec::with_capacity(ordinals.len());
        let mut rest = ordinals;
        while let Some(first) = rest.first() {
            let place = self.sections.partition_point(|section| section.first + section.changes <= *first);
            let Some(section) = self.sections.get(place).copied() else {
                return Err(undefined("ordinal", *first));
            };
            let end = rest.partition_point(|ordinal| *ordinal < section.first + section.changes);
            let (here, later) = rest.split_at(end);
            let items = self.section(section)?;
            picked.extend(items.into_iter().filter(|item| here.binary_search(&item.ordinal).is_ok()));
            rest = later;
        }
        Ok(picked)
    }

    /// About how many bytes a change takes.
    pub(super) fn bytes_of(&self, ordinal: u64) -> usize {
        let place = self.sections.partition_point(|section| section.first + section.changes <= ordinal);
        self.sections.get(place).map_or(0, |section| section.bytes / section.changes.max(1) as usize)
    }

    fn header(&self, frame: &Frame) -> Result<usize, Error> {
        let header = TableHeader::from_payload(&frame.payload(self.frame_bytes_max)?)?;
        let place = self.plan.tables.iter().position(|table| table.header == header);
        place.ok_or_else(|| undefined("table", u64::from(header.table)))
    }

    fn changes(&self, payload: &[u8], table: usize, first: u64) -> Result<Vec<Item>, Error> {
        let table_plan = &self.plan.tables[table];
        let mut reader = Reader::new(payload);
        let mut items = Vec::new();
        while !reader.is_empty() {
            let mut change = Change::read(&mut reader, &table_plan.types, self.frame_bytes_max)?;
            let (mut is_respelled, mut is_key_respelled) = (false, false);
            for image in [&mut change.old, &mut change.new].into_iter().flatten().filter(|_| self.coerces) {
                for place in coerce(image, table_plan) {
                    is_respelled = true;
                    is_key_respelled |= table_plan.table.key.contains(&place);
                }
            }
            let key = key_bytes_of(table_plan, change.image());
            let ordinal = first + items.len() as u64;
            items.push(Item { ordinal, table, change, key, is_respelled, is_key_respelled });
        }
        Ok(items)
    }
}

/// Makes values the column's type where that is exact; others stay, and the database will refuse them. Gives the places of those made.
fn coerce(row: &mut Row, table: &TablePlan) -> Vec<usize> {
    let mut made = Vec::new();
    for (place, (value, kind)) in row.iter_mut().zip(&table.types).enumerate() {
        if value.as_ref().kind().is_some_and(|own| own != *kind)
            && let Some(typed) = text::coerce(value, *kind)
        {
            *value = typed;
            made.push(place);
        }
    }
    made
}

pub(super) fn undefined(field: &'static str, actual: u64) -> Error {
    Error::Decode(DecodeError::Undefined { field, actual })
}
