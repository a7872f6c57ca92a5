//! What each phase took: elapsed time, processor time, bytes; by thread, so that it can be drawn.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A phase of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Indexes that SQLite builds itself.
    Sqlite,
    /// The old index's pages are found, to be used again.
    IndexScan,
    /// The table's pages are read, keys made and sorted by the block.
    DataScan,
    /// Runs that leave memory are written.
    Spill,
    /// Runs are merged.
    Merge,
    /// The last merge of a group, and its index pages filled.
    Insert,
    /// Finished pages go through SQLite's pager.
    Write,
    /// The finished indexes are read again.
    Verify,
    /// SQLite's own integrity check.
    IntegrityCheck,
    /// The transaction ends.
    Commit,
}

/// A stretch of time in which a thread was in one phase.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Span {
    /// The thread; 0 has the connection.
    pub thread: usize,
    /// The sort group that it worked for, if for one alone.
    pub group: Option<usize>,
    /// The phase.
    pub phase: Phase,
    /// When it began, from the beginning of the rebuild.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Processor time of the thread.
    pub cpu: Duration,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// Collects spans.
pub(crate) struct Recorder {
    began: Instant,
    spans: Mutex<Vec<Span>>,
}

impl Recorder {
    /// From now on.
    pub(crate) fn new() -> Recorder {
        Recorder { began: Instant::now(), spans: Mutex::new(Vec::new()) }
    }

    /// Begins a span of the calling thread; it ends when it is dropped.
    pub(crate) fn span(&self, thread: usize, group: Option<usize>, phase: Phase) -> OpenSpan<'_> {
        let span = Span {
            thread,
            group,
            phase,
            start: self.began.elapsed(),
            end: Duration::ZERO,
            cpu: thread_time(),
            read: 0,
            written: 0,
        };
        OpenSpan { recorder: self, span }
    }

    /// How long ago it began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// All spans that have ended.
    pub(crate) fn into_spans(self) -> Vec<Span> {
        self.spans.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A span that has not ended.
pub(crate) struct OpenSpan<'r> {
    recorder: &'r Recorder,
    span: Span,
}

impl OpenSpan<'_> {
    /// Counts bytes read.
    pub(crate) fn read(&mut self, bytes: u64) {
        self.span.read += bytes;
    }

    /// Counts bytes written.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.span.written += bytes;
    }
}

impl Drop for OpenSpan<'_> {
    fn drop(&mut self) {
        self.span.end = self.recorder.began.elapsed();
        self.span.cpu = thread_time().saturating_sub(self.span.cpu);
        self.recorder.spans.lock().unwrap_or_else(PoisonError::into_inner).push(self.span.clone());
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
