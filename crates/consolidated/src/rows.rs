//! Downloaded rows on their way into frames: a backend encodes straight from its driver's buffers, the writer cuts frames.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use headwater_protocol::message::{ChangeOp, PARTITION_KEY_BYTES_MAX, RowOp};
use headwater_protocol::packer::{Knobs, Packer};
use headwater_protocol::row::{RowWriter, read_row};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Frame, Kind, ROW_BYTES_MAX, Type, Value, ValueRef};

use crate::backend::EncodedChange;
use crate::images::{has_broken_text, logged_key};
use crate::{Error, TablePlan};

/// Where finished frames go: a spool.
pub type FrameSink<'s> = dyn FnMut(Frame) -> Result<(), Error> + 's;

/// What an upload stored or deleted, so that the download after it need not send that back.
///
/// Rows are remembered by a 128-bit hash of their encoding under random keys, and no more than [`Echo::ROWS_MAX`] of them: beyond
/// that, rows come back needlessly, which is waste but no defect.
#[derive(Debug, Default)]
pub struct Echo {
    seen: HashSet<EchoMark>,
    /// Numbers of tables of which the upload's transaction has written nothing but rows stored just as uploaded.
    whole: HashSet<u32>,
    marker: EchoMarker,
}

/// One row stored, or one key deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EchoMark(u32, u128);

/// Makes the marks of one [`Echo`].
#[derive(Clone, Debug, Default)]
pub struct EchoMarker {
    hashers: (RandomState, RandomState),
}

impl EchoMarker {
    /// The mark of a row stored just so.
    pub fn stored(&self, table: &TablePlan, row: &[Value]) -> EchoMark {
        self.mark(table.number, RowOp::Upsert, &table.types, row)
    }

    /// The mark of the row of this key deleted.
    pub fn deleted(&self, table: &TablePlan, key: &[Value]) -> EchoMark {
        self.mark(table.number, RowOp::Delete, &table.key_types, key)
    }

    /// The mark of what a change leaves that is made just as it is encoded. `scratch`: room for what is put together.
    pub(crate) fn changed(&self, table: &TablePlan, change: &EncodedChange<'_, '_>, scratch: &mut Vec<u8>) -> EchoMark {
        scratch.clear();
        match (change.old, change.new) {
            // An insert is encoded as a ROWS frame has the row.
            ([], _) => return self.of(table.number, change.bytes),
            (old, []) => {
                scratch.push(RowOp::Delete as u8);
                put_values(scratch, &table.key_types, table.table.key.iter().map(|place| old[*place]));
            }
            (_, new) => {
                scratch.push(RowOp::Upsert as u8);
                put_values(scratch, &table.types, new.iter().copied());
            }
        }
        self.of(table.number, scratch)
    }

    fn mark(&self, table: u32, op: RowOp, types: &[Type], row: &[Value]) -> EchoMark {
        let mut bytes = vec![op as u8];
        headwater_protocol::row::put_row(&mut bytes, types, row);
        self.of(table, &bytes)
    }

    fn of(&self, table: u32, bytes: &[u8]) -> EchoMark {
        let hash = u128::from(self.hashers.0.hash_one(bytes)) << 64 | u128::from(self.hashers.1.hash_one(bytes));
        EchoMark(table, hash)
    }
}

const _: () = assert!(ChangeOp::Insert as u8 == RowOp::Upsert as u8, "an insert is encoded as a row that is stored");

fn put_values<'v>(out: &mut Vec<u8>, types: &[Type], values: impl Iterator<Item = ValueRef<'v>>) {
    let mut writer = RowWriter::new(out, types);
    values.for_each(|value| writer.push(value));
    writer.finish();
}

impl Echo {
    /// The most rows that are remembered.
    pub const ROWS_MAX: usize = 500_000;

    /// What makes marks for it.
    pub fn marker(&self) -> &EchoMarker {
        &self.marker
    }

    /// Remembers marks of its own marker.
    pub fn extend(&mut self, marks: impl IntoIterator<Item = EchoMark>) {
        let room = Echo::ROWS_MAX.saturating_sub(self.seen.len());
        self.seen.extend(marks.into_iter().take(room));
    }

    /// Remembers that whatever the upload's transaction has left in a table is just as uploaded.
    pub fn add_whole(&mut self, table: &TablePlan) {
        self.whole.insert(table.number);
    }

    fn insert(&mut self, table: u32, bytes: &[u8]) {
        let mark = self.marker.of(table, bytes);
        self.seen.insert(mark);
    }

    fn contains(&self, table: u32, bytes: &[u8]) -> bool {
        !self.seen.is_empty() && self.seen.contains(&self.marker.of(table, bytes))
    }
}

/// Collects the rows of one table and hands them on frame by frame.
///
/// ```text
/// let mut row = writer.upsert();
/// row.push(value) for each column
/// row.finish();
/// writer.end_row(own)?;
/// ```
pub struct RowsWriter<'a, 's> {
    table: &'a TablePlan,
    echo: &'a Echo,
    sink: &'a mut FrameSink<'s>,
    payload: Vec<u8>,
    packer: Packer,
    row_start: usize,
    header_sent: bool,
    /// What [`RowsWriter::end_row_early`] handed on.
    early: Echo,
    /// Where deletions go instead, as encoded keys.
    aside: Option<Vec<u8>>,
    /// Rows with a text that is not UTF-8 are left out.
    checks_texts: bool,
    /// Rows whose partition is spelled so that it can't travel leave instead.
    checks_partitions: bool,
    /// How a row leaves that lives on elsewhere.
    leave: RowOp,
    /// Rows handed on, deletions among them.
    pub rows: u64,
}

impl<'a, 's> RowsWriter<'a, 's> {
    /// Begins the rows of a table. Its TABLE frame goes out before the first of them.
    pub fn new(table: &'a TablePlan, echo: &'a Echo, sink: &'a mut FrameSink<'s>) -> Self {
        RowsWriter {
            table,
            echo,
            sink,
            payload: Vec::new(),
            packer: Packer::new(&Knobs::frames()),
            row_start: 0,
            header_sent: false,
            early: Echo::default(),
            aside: None,
            checks_texts: false,
            checks_partitions: false,
            leave: RowOp::Delete,
            rows: 0,
        }
    }

    /// The same in frames as full as these say.
    #[must_use]
    pub fn packed_by(self, packing: &Knobs) -> Self {
        RowsWriter { packer: Packer::new(packing), ..self }
    }

    /// The same without rows that have a text which is not UTF-8, if `checks`: where the database itself does not keep them out.
    #[must_use]
    pub fn checking_texts(self, checks: bool) -> Self {
        RowsWriter { checks_texts: checks, ..self }
    }

    /// The same without rows whose own columns spell a partition so that it can't travel, if `checks`: they leave the remote.
    #[must_use]
    pub fn checking_partitions(self, checks: bool) -> Self {
        RowsWriter { checks_partitions: checks && self.table.parents.is_empty(), ..self }
    }

    /// The same with rows that live on elsewhere told from deleted ones, if `tells`: the remote knows the two apart.
    #[must_use]
    pub fn telling_leaving(self, tells: bool) -> Self {
        RowsWriter { leave: if tells { RowOp::Leave } else { RowOp::Delete }, ..self }
    }

    /// Begins a row to store: push every column, finish it, then call [`RowsWriter::end_row`].
    pub fn upsert(&mut self) -> RowWriter<'_> {
        self.begin(RowOp::Upsert);
        RowWriter::new(&mut self.payload, &self.table.types)
    }

    /// Begins a deletion: push every column of the key, finish it, then call [`RowsWriter::end_row`].
    pub fn delete(&mut self) -> RowWriter<'_> {
        self.begin(RowOp::Delete);
        RowWriter::new(&mut self.payload, &self.table.key_types)
    }

    /// The same of a row that lives on where the remote does not hold it.
    pub fn leave(&mut self) -> RowWriter<'_> {
        self.begin(self.leave);
        RowWriter::new(&mut self.payload, &self.table.key_types)
    }

    /// Ends the row. `own`: the remote's own upload was the last to change it, so it is left out if it is just as uploaded.
    pub fn end_row(&mut self, own: bool) -> Result<(), Error> {
        if self.put_aside() {
            return Ok(());
        }
        let bytes = &self.payload[self.row_start..];
        let table = self.table.number;
        if own && (self.leaves_own_out() || self.echo.contains(table, bytes)) || self.early.contains(table, bytes) {
            self.payload.truncate(self.row_start);
            return Ok(());
        }
        self.end()
    }

    /// Whether every row that the remote's own upload was the last to change is left out: they need not be read.
    pub fn leaves_own_out(&self) -> bool {
        self.echo.whole.contains(&self.table.number)
    }

    /// Ends a row that may come up once more later on: then it will be left out. One that is just as uploaded is left out at once.
    pub fn end_row_early(&mut self) -> Result<(), Error> {
        let (table, bytes) = (self.table.number, &self.payload[self.row_start..]);
        if self.echo.contains(table, bytes) || self.early.contains(table, bytes) {
            self.payload.truncate(self.row_start);
            return Ok(());
        }
        self.early.insert(table, bytes);
        self.end()
    }

    /// From here on the keys of deletions are not handed on, but kept for [`RowsWriter::take_aside`].
    pub fn set_deletions_aside(&mut self) {
        self.aside = Some(Vec::new());
    }

    /// The keys of deletions since [`RowsWriter::set_deletions_aside`], encoded one after the other; more are handed on again.
    pub fn take_aside(&mut self) -> Vec<u8> {
        self.aside.take().unwrap_or_default()
    }

    /// Takes the row that ends out, if it is a deletion to be kept.
    fn put_aside(&mut self) -> bool {
        match (&mut self.aside, self.payload[self.row_start..].split_first()) {
            (Some(aside), Some((op, key))) if *op != RowOp::Upsert as u8 => aside.extend_from_slice(key),
            _ => return false,
        }
        self.payload.truncate(self.row_start);
        true
    }

    fn end(&mut self) -> Result<(), Error> {
        // Its op aside.
        let bytes = self.payload.len() - self.row_start - 1;
        if bytes > ROW_BYTES_MAX {
            // In a frame that every remote refuses it would keep all other rows from them too.
            tracing::error!(
                table = self.table.table.name,
                bytes,
                limit = ROW_BYTES_MAX,
                "a row is larger than a remote takes: it is left out of downloads until it is smaller"
            );
            self.payload.truncate(self.row_start);
            return Ok(());
        }
        if self.checks_texts && !self.has_clean_texts()? {
            self.payload.truncate(self.row_start);
            return Ok(());
        }
        if self.checks_partitions {
            self.let_go_unless_its_partition_travels()?;
        }
        self.rows += 1;
        if self.packer.add(self.payload.len()) { self.flush() } else { Ok(()) }
    }

    /// Whether each text of the row that ends is UTF-8; a row that is left out is named in the log.
    fn has_clean_texts(&self) -> Result<bool, Error> {
        let Some((op, bytes)) = self.payload[self.row_start..].split_first() else { return Ok(true) };
        let is_upsert = *op == RowOp::Upsert as u8;
        let types = if is_upsert { &self.table.types } else { &self.table.key_types };
        let row = read_row(&mut Reader::new(bytes), types, usize::MAX, None)?;
        if !row.iter().any(has_broken_text) {
            return Ok(true);
        }
        let key = if is_upsert { self.table.key_of(&row) } else { row };
        tracing::error!(
            table = self.table.table.name,
            key = logged_key(self.table, &key),
            "a row has a text that is not UTF-8: it is left out of downloads until the text is corrected"
        );
        Ok(false)
    }

    fn let_go_unless_its_partition_travels(&mut self) -> Result<(), Error> {
        let Some((_, bytes)) = self.payload[self.row_start..].split_first() else { return Ok(()) };
        let is_upsert = self.payload[self.row_start] == RowOp::Upsert as u8;
        if !is_upsert || bytes.len() <= PARTITION_KEY_BYTES_MAX {
            return Ok(());
        }
        let row = read_row(&mut Reader::new(bytes), &self.table.types, usize::MAX, None)?;
        let bytes = self.table.partition_of(&row).map_or(0, |partition| partition.len());
        if bytes <= PARTITION_KEY_BYTES_MAX {
            return Ok(());
        }
        let key = self.table.key_of(&row);
        tracing::error!(
            table = self.table.table.name,
            key = logged_key(self.table, &key),
            bytes,
            limit = PARTITION_KEY_BYTES_MAX,
            "a row spells its partition larger than can travel: it is left out of downloads until it is smaller"
        );
        self.payload.truncate(self.row_start);
        let mut writer = self.leave();
        for value in &key {
            writer.push(value.as_ref());
        }
        writer.finish();
        Ok(())
    }

    /// Hands on what is left. Must be called at the end.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.flush()?;
        Ok(self.rows)
    }

    fn begin(&mut self, op: RowOp) {
        self.row_start = self.payload.len();
        self.payload.push(op as u8);
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.payload.is_empty() {
            return Ok(());
        }
        if !self.header_sent {
            (self.sink)(self.table.header.to_frame())?;
            self.header_sent = true;
        }
        let room = Vec::with_capacity(self.packer.room());
        let payload = std::mem::replace(&mut self.payload, room);
        (self.sink)(Frame::packed(Kind::Rows, payload))
    }
}
