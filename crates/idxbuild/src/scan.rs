//! The data scan: a table's leaves are read once, by several threads, and the keys of all its indexes made.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::block::SortBlock;
use crate::error::{Error, Halt, corrupt};
use crate::file::ReadPages;
use crate::job::{IndexJob, TableJob, ordinal};
use crate::key::{Source, write_rowid, write_value};
use crate::options::{Progress, Step};
use crate::page::{Kind, Page, Record};
use crate::record::{Fields, Value, Writer, head_length};
use crate::store::Store;
use crate::sum::{KeyHash, Sum};
use crate::threads::on_each;
use crate::usage::{OpenSpan, Phase, Recorder};
use crate::witness::Witnesses;

/// Leaves that a thread takes at a time.
const LEAVES: usize = 64;

/// One scan: what all its threads share.
pub(crate) struct Scan<'s> {
    /// The table.
    pub(crate) table: &'s TableJob,
    /// Its file.
    pub(crate) pages: &'s dyn ReadPages,
    /// Its leaves, in order.
    pub(crate) leaves: &'s [u32],
    /// The indexes of each sort group.
    pub(crate) groups: &'s [Vec<usize>],
    /// Where sorted keys go.
    pub(crate) store: &'s Store<'s>,
    /// Bytes of a sort block.
    pub(crate) sort_block: usize,
    /// What is counted.
    pub(crate) usage: &'s Recorder,
    /// Who is told how far it has come.
    pub(crate) progress: Option<&'s (dyn Fn(Progress) + Send + Sync)>,
}

/// The sum of each index's keys.
pub(crate) type Sums = Vec<Sum>;

/// First and last rowid of a piece of the table.
type Rowids = Option<(i64, i64)>;

/// What one thread has seen, with the rowids of its pieces.
type Part = (Sums, Witnesses, Vec<(usize, Rowids)>);

impl Scan<'_> {
    /// Reads the whole table with so many threads: gives what the indexes must hold, and what SQLite is to be asked.
    pub(crate) fn run(&self, threads: usize) -> Result<(Sums, Witnesses), Halt> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let parts = on_each(threads, |thread| {
            let done = Worker::new(self).run(thread, &next, &stop);
            stop.fetch_or(done.is_err(), Ordering::Relaxed);
            done
        });
        let mut sums = vec![Sum::default(); self.table.indexes.len()];
        let mut witnesses = Witnesses::default();
        let mut pieces: Vec<(usize, Rowids)> = Vec::new();
        for part in parts {
            let (part, seen, rowids) = part?;
            witnesses.join(seen);
            sums.iter_mut().zip(part).for_each(|(sum, part)| sum.join(part));
            pieces.extend(rowids);
        }
        pieces.sort_unstable_by_key(|(piece, _)| *piece);
        let mut last = None;
        for (piece, (first, end)) in pieces.iter().filter_map(|(piece, rowids)| Some((piece, (*rowids)?))) {
            if last.is_some_and(|last| first <= last) {
                return Err(corrupt(self.leaves[piece * LEAVES], "its rows are out of order").into());
            }
            last = Some(end);
        }
        Ok((sums, witnesses))
    }
}

/// What a thread has of its own.
struct Worker<'s> {
    scan: &'s Scan<'s>,
    blocks: Vec<SortBlock>,
    sums: Sums,
    witnesses: Witnesses,
    fields: Fields,
    /// How many columns of a row are of use.
    columns: usize,
    spare: Vec<u8>,
    writer: Writer,
}

impl<'s> Worker<'s> {
    fn new(scan: &'s Scan<'s>) -> Worker<'s> {
        let places = scan.table.indexes.iter().flat_map(|index| &index.columns).map(|column| match column.source {
            Source::Rowid => 0,
            Source::Stored { place, .. } => place + 1,
        });
        Worker {
            scan,
            blocks: scan.groups.iter().map(|_| SortBlock::new(scan.sort_block)).collect(),
            sums: vec![Sum::default(); scan.table.indexes.len()],
            witnesses: Witnesses::default(),
            fields: Fields::default(),
            columns: places.max().unwrap_or(0),
            spare: Vec::new(),
            writer: Writer::default(),
        }
    }

    /// Takes pieces of the table until there are none.
    fn run(mut self, thread: usize, next: &AtomicUsize, stop: &AtomicBool) -> Result<Part, Halt> {
        let mut span = self.scan.usage.span(thread, None, Phase::DataScan);
        let leaves = self.scan.leaves;
        let mut rowids = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let Some(leaves) = leaves.chunks(LEAVES).nth(piece) else { break };
            rowids.push((piece, self.piece(leaves, thread, &mut span)?));
            if let Some(progress) = self.scan.progress {
                let done = (piece * LEAVES) as u64;
                progress(Progress { step: Step::Scan, done, of: self.scan.leaves.len() as u64 });
            }
        }
        for group in 0..self.blocks.len() {
            if !self.blocks[group].is_empty() {
                self.flush(group, thread)?;
            }
        }
        Ok((self.sums, self.witnesses, rowids))
    }

    fn flush(&mut self, group: usize, thread: usize) -> Result<(), Halt> {
        let run = self.blocks[group].take_sorted();
        Ok(self.scan.store.add(group, run, thread, self.scan.usage)?)
    }

    /// Reads leaves, those that lie next to one another at once.
    fn piece(&mut self, leaves: &[u32], thread: usize, span: &mut OpenSpan<'_>) -> Result<Rowids, Halt> {
        let page_size = self.scan.pages.layout().page_size;
        let mut rowids = None;
        let mut buffer = vec![0; page_size * leaves.len()];
        for neighbours in leaves.chunk_by(|a, b| a + 1 == *b) {
            let bytes = &mut buffer[..page_size * neighbours.len()];
            self.scan.pages.read(neighbours[0], bytes)?;
            span.read(bytes.len() as u64);
            for (&number, bytes) in neighbours.iter().zip(bytes.chunks(page_size)) {
                self.leaf(number, bytes, &mut rowids, thread)?;
            }
        }
        Ok(rowids)
    }

    fn leaf(&mut self, number: u32, bytes: &[u8], rowids: &mut Rowids, thread: usize) -> Result<(), Halt> {
        let layout = self.scan.pages.layout();
        let page = Page::new(number, bytes, layout)?;
        page.expect(Kind::TableLeaf)?;
        for cell in 0..page.cells() {
            let (rowid, record) = page.row(cell, layout)?;
            if rowids.is_some_and(|(_, last)| rowid <= last) {
                return Err(corrupt(number, "its rows are out of order").into());
            }
            *rowids = Some((rowids.map_or(rowid, |(first, _)| first), rowid));
            self.row(rowid, &record, thread)?;
        }
        Ok(())
    }

    fn row(&mut self, rowid: i64, record: &Record<'_>, thread: usize) -> Result<(), Halt> {
        let mut spare = std::mem::take(&mut self.spare);
        let bytes = self.head(record, &mut spare)?;
        for group in 0..self.scan.groups.len() {
            let indexes = &self.scan.groups[group];
            for (place, &index) in indexes.iter().enumerate() {
                let ordinal = ordinal(indexes, place);
                if self.key(group, index, ordinal, rowid, bytes)? {
                    self.flush(group, thread)?;
                }
            }
        }
        self.witnesses.see(&self.scan.table.indexes, &self.fields, bytes, rowid);
        self.spare = spare;
        Ok(())
    }

    /// The record, as far as it is of use; its head is in `fields` then.
    fn head<'b>(&mut self, record: &Record<'b>, spare: &'b mut Vec<u8>) -> Result<&'b [u8], Error> {
        let pages = self.scan.pages;
        let broken = || corrupt(record.page, "a row that is no record");
        if record.overflow == 0 {
            self.fields.read(record.local, self.columns).ok_or_else(broken)?;
            return if self.fields.end() <= record.length { Ok(record.local) } else { Err(broken()) };
        }
        let head = head_length(record.local).filter(|&length| length <= record.length).ok_or_else(broken)?;
        self.fields.read(record.beginning(head, pages, spare)?, self.columns).ok_or_else(broken)?;
        if self.fields.end() > record.length {
            return Err(broken());
        }
        record.beginning(self.fields.end(), pages, spare)
    }

    /// Makes the key of one index. True where its group's sort block is full then.
    fn key(
        &mut self,
        group: usize,
        index: usize,
        ordinal: Option<[u8; 2]>,
        rowid: i64,
        record: &[u8],
    ) -> Result<bool, Halt> {
        let job: &IndexJob = &self.scan.table.indexes[index];
        let (fields, writer) = (&self.fields, &mut self.writer);
        let mut hash = KeyHash::new();
        let doubt = |why: &str| Halt::Doubt { index: job.name.clone(), why: why.to_owned() };
        let full = self.blocks[group].push(|out| {
            out.extend(ordinal.into_iter().flatten());
            let mut comes_back = true;
            for column in &job.columns {
                let value = column.value(fields, record, rowid, job.encoding).map_err(doubt)?;
                hash.value(value);
                comes_back &= write_value(out, value, column, job.encoding).map_err(doubt)?;
            }
            write_rowid(out, rowid);
            if !comes_back {
                writer.clear();
                for column in &job.columns {
                    writer.value(column.value(fields, record, rowid, job.encoding).map_err(doubt)?);
                }
                writer.integer(rowid);
                writer.finish(out);
            }
            Ok(())
        })?;
        hash.value(Value::Integer(rowid));
        self.sums[index].add(hash);
        Ok(full)
    }
}
