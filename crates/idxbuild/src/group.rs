//! One sort group's end: its runs merged, the index pages filled and handed over to be written, while other groups still merge.

use std::convert::Infallible;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use crate::doubles::Doubles;
use crate::error::{Error, Halt};
use crate::header::Layout;
use crate::job::IndexJob;
use crate::key;
use crate::merge::{Cursor, Merge, Run};
use crate::options::Knobs;
use crate::record::{Fields, Writer};
use crate::space::Space;
use crate::tree::{Sink, TreeWriter};
use crate::usage::{Phase, Recorder};

/// Bytes of pages that are handed over at a time.
const BATCH: usize = 256 << 10;
/// Bytes of keys that a merging thread hands over at a time.
const PIECE: usize = 128 << 10;
/// Pieces that may wait to be taken.
const PIECES: usize = 4;

/// Finished pages.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Their numbers.
    pub(crate) pages: Vec<u32>,
    /// Their bytes, one page after another.
    pub(crate) bytes: Vec<u8>,
}

/// An index of a group, and the pages that its old tree had.
pub(crate) struct Part<'j> {
    /// The index.
    pub(crate) job: &'j IndexJob,
    /// Pages of its own; what is left of them goes to the space for all.
    pub(crate) pages: Vec<u32>,
}

/// What a group needs of the others.
pub(crate) struct Group<'g> {
    /// Its number.
    pub(crate) number: usize,
    /// The thread that builds it; those that merge for it come after.
    pub(crate) thread: usize,
    /// Its indexes.
    pub(crate) parts: Vec<Part<'g>>,
    /// The sizes.
    pub(crate) layout: &'g Layout,
    /// The pages for all.
    pub(crate) space: &'g Mutex<Space>,
    /// Where finished pages go.
    pub(crate) finished: SyncSender<Batch>,
    /// The knobs.
    pub(crate) knobs: &'g Knobs,
    /// What is counted.
    pub(crate) usage: &'g Recorder,
}

impl Group<'_> {
    /// Builds all indexes of the group from its runs.
    pub(crate) fn build(self, runs: Vec<Run>) -> Result<(), Halt> {
        let buffer = self.knobs.buffer(runs.len());
        let threads = self.knobs.merge_threads.min(runs.len() + 1);
        if threads < 2 {
            let mut span = self.usage.span(self.thread, Some(self.number), Phase::Insert);
            span.read(on_disk(&runs));
            let cursors = runs.into_iter().map(|run| Cursor::new(run, buffer)).collect();
            return self.trees(&mut Merge::new(cursors));
        }
        let mut shares: Vec<Vec<Run>> = (1..threads).map(|_| Vec::new()).collect();
        for (place, run) in runs.into_iter().enumerate() {
            shares[place % (threads - 1)].push(run);
        }
        let (number, first, usage) = (self.number, self.thread + 1, self.usage);
        std::thread::scope(|scope| {
            let mut cursors = Vec::new();
            let mut others = Vec::new();
            for (thread, share) in (first..).zip(shares) {
                let (sender, receiver) = sync_channel(PIECES);
                cursors.push(Cursor::of_thread(receiver));
                others.push(scope.spawn(move || {
                    let mut span = usage.span(thread, Some(number), Phase::Merge);
                    span.read(on_disk(&share));
                    let mut merge = Merge::new(share.into_iter().map(|run| Cursor::new(run, buffer)).collect());
                    // Nobody takes them any more where the build has failed: its error is the one to tell.
                    let mut is_wanted = true;
                    merge.pieces(PIECE, |piece| {
                        is_wanted = is_wanted && sender.send(piece).is_ok();
                        if is_wanted { Ok(()) } else { Err(gone()) }
                    })
                }));
            }
            let span = self.usage.span(self.thread, Some(self.number), Phase::Insert);
            let built = self.trees(&mut Merge::new(cursors));
            drop(span);
            let merged =
                others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            let merged: Result<Vec<()>, Error> = merged.collect();
            built?;
            Ok(merged.map(|_| ())?)
        })
    }

    fn trees(self, merge: &mut Merge) -> Result<(), Halt> {
        let several = self.parts.len() > 1;
        let head = if several { 2 } else { 0 };
        let mut pages = Pages { own: Vec::new(), space: self.space, finished: &self.finished, batch: Batch::default() };
        let mut key = merge.next()?;
        for (place, part) in self.parts.into_iter().enumerate() {
            pages.own = part.pages;
            pages.own.sort_unstable_by(|a, b| b.cmp(a));
            let mut maker = Maker::new(part.job);
            let mut tree = TreeWriter::new(self.layout, &mut pages);
            let ordinal = (place as u16).to_be_bytes();
            while let Some(bytes) = key {
                if several && bytes[..2] != ordinal {
                    break;
                }
                tree.push(maker.record(&bytes[head..]))?;
                key = merge.next()?;
            }
            tree.finish(part.job.root)?;
            maker.finish()?;
            let left = std::mem::take(&mut pages.own);
            self.space.lock().unwrap_or_else(PoisonError::into_inner).give(&left);
        }
        pages.flush()
    }
}

fn on_disk(runs: &[Run]) -> u64 {
    runs.iter().filter(|run| run.in_memory() == 0).map(Run::length).sum()
}

/// The other side has stopped, and has its own error.
pub(crate) fn gone() -> Error {
    Error::Temporary { path: std::path::PathBuf::new(), source: std::io::ErrorKind::BrokenPipe.into() }
}

/// Makes an index's records of its keys, and sees that they are unique where they must be.
struct Maker<'j> {
    job: &'j IndexJob,
    descending: Vec<bool>,
    writer: Writer,
    record: Vec<u8>,
    /// The key before, without its rowid, where there may be no other like it; and its record.
    before: Vec<u8>,
    record_before: Vec<u8>,
    /// How many rows in succession have that key, and the record of the first where there are several.
    rows: u64,
    first: Vec<u8>,
    doubles: Doubles,
}

impl<'j> Maker<'j> {
    fn new(job: &'j IndexJob) -> Maker<'j> {
        Maker {
            job,
            descending: job.descending(),
            writer: Writer::default(),
            record: Vec::new(),
            before: Vec::new(),
            record_before: Vec::new(),
            rows: 0,
            first: Vec::new(),
            doubles: Doubles::default(),
        }
    }

    #[inline]
    fn record(&mut self, bytes: &[u8]) -> &[u8] {
        if self.job.is_unique {
            std::mem::swap(&mut self.record, &mut self.record_before);
        }
        self.record.clear();
        let (columns, has_null) = key::read(bytes, &self.descending, &mut self.writer, &mut self.record);
        if self.job.is_unique {
            if !has_null && self.before == bytes[..columns] {
                if self.rows == 1 {
                    self.first.clone_from(&self.record_before);
                }
                self.rows += 1;
                return &self.record;
            }
            self.end_key();
            self.rows = 1;
            self.before.clear();
            if !has_null {
                self.before.extend_from_slice(&bytes[..columns]);
            }
        }
        &self.record
    }

    /// The record before is the last of its key.
    fn end_key(&mut self) {
        if self.rows > 1 {
            let (first, last, job) = (&self.first, &self.record_before, self.job);
            let Ok(()) = self.doubles.add(self.rows, || {
                let ((values, first), (_, last)) = (described(first, job), described(last, job));
                Ok::<_, Infallible>((values, first.zip(last)))
            });
        }
    }

    fn finish(mut self) -> Result<(), Halt> {
        std::mem::swap(&mut self.record, &mut self.record_before);
        self.end_key();
        self.doubles.fault(&self.job.name).map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// The values of an index's record as SQL, and the rowid behind them.
fn described(record: &[u8], job: &IndexJob) -> (Vec<String>, Option<i64>) {
    let mut fields = Fields::default();
    // It is our own.
    let _ = fields.read(record, usize::MAX);
    let value = |place| fields.value(place, record);
    let rowid = value(job.columns.len()).and_then(|rowid| rowid.as_i64().ok());
    let values = (0..job.columns.len()).filter_map(value).map(|value| crate::text::literal(value, job.encoding));
    (values.collect(), rowid)
}

/// Gives pages to the trees of one group, and hands them over finished.
struct Pages<'g> {
    own: Vec<u32>,
    space: &'g Mutex<Space>,
    finished: &'g SyncSender<Batch>,
    batch: Batch,
}

impl Pages<'_> {
    fn flush(&mut self) -> Result<(), Halt> {
        if self.batch.pages.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.finished.send(batch).map_err(|_| gone().into())
    }
}

impl Sink for Pages<'_> {
    fn allocate(&mut self) -> Result<u32, Halt> {
        match self.own.pop() {
            Some(page) => Ok(page),
            None => Ok(self.space.lock().unwrap_or_else(PoisonError::into_inner).take()?),
        }
    }

    fn write(&mut self, page: u32, bytes: &[u8]) -> Result<(), Halt> {
        self.batch.pages.push(page);
        self.batch.bytes.extend_from_slice(bytes);
        if self.batch.bytes.len() >= BATCH { self.flush() } else { Ok(()) }
    }
}
