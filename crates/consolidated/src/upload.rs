//! Applying an upload exactly once.

use headwater_protocol::message::{Receipt, UploadEnd};
use headwater_protocol::{Frame, Row};

use crate::rows::Echo;
use crate::{Connection, Error, Plan};

/// Where an upload lies: its TABLE and CHANGES frames, in order, in a spool. Inserts and updates are read forwards, deletions
/// backwards, and some frames again.
pub trait UploadSource: Send {
    /// How many frames there are.
    fn frames(&self) -> usize;

    /// The frame at a place.
    fn frame(&mut self, index: usize) -> Result<Frame, Error>;
}

/// Frames in memory are a source, for tests and small uploads.
impl UploadSource for Vec<Frame> {
    fn frames(&self) -> usize {
        self.len()
    }

    fn frame(&mut self, index: usize) -> Result<Frame, Error> {
        let missing = || Error::Database { context: "reading an upload".into(), detail: format!("no frame {index}") };
        self.get(index).cloned().ok_or_else(missing)
    }
}

/// What one upload may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadLimits {
    /// The most changes in one batch: what is judged and written by one statement.
    pub batch_rows: usize,
    /// The most bytes in a frame's payload, uncompressed; no value in it is longer.
    pub frame_bytes_max: usize,
}

impl Default for UploadLimits {
    fn default() -> Self {
        UploadLimits { batch_rows: 2_000, frame_bytes_max: headwater_protocol::Limits::REQUEST.frame_bytes_max }
    }
}

/// An upload to be applied.
#[derive(Clone, Copy, Debug)]
pub struct UploadRequest<'a> {
    /// The model.
    pub plan: &'a Plan,
    /// Whose upload it is; [`crate::system::greet`] has registered it.
    pub remote_id: [u8; 16],
    /// Who syncs.
    pub user: &'a str,
    /// Number of the last upload whose receipt the remote has applied.
    pub acknowledged: u64,
    /// The upload's number and digest. The digest must have been held against the frames.
    pub end: UploadEnd,
    /// What it may take.
    pub limits: UploadLimits,
}

/// What became of the upload as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was applied now.
    Applied,
    /// It had been applied before; the receipt is the same again.
    Replayed,
    /// Another upload has this number: the remote is a copy. Nothing was changed, and the receipt is empty.
    Copy,
    /// The database lacks uploads that the remote had acknowledged. Nothing was changed, and the receipt is empty.
    Behind,
}

/// How many changes did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Conflicts, however they ended.
    pub conflicts: u64,
    /// Changes refused.
    pub refused: u64,
}

/// What an upload came to.
#[derive(Debug)]
pub struct Uploaded {
    /// As a whole.
    pub verdict: Verdict,
    /// Change by change.
    pub receipt: Receipt,
    /// What need not be sent back.
    pub echo: Echo,
    /// What the upload's changes are known by in the side tables; empty unless applied or replayed.
    pub own: Vec<u8>,
    /// Tables and keys of conflicts: their rows go back as they are now.
    pub conflicted: Vec<(u32, Row)>,
    /// Sums; zero for a replay.
    pub counts: Counts,
}

/// Applies an upload, or finds that it need not or must not be.
pub fn apply(
    _connection: &mut dyn Connection,
    _request: &UploadRequest<'_>,
    _source: &mut dyn UploadSource,
) -> Result<Uploaded, Error> {
    Err(Error::Setup { what: "uploads are not built yet".into(), mend: "wait".into() })
}
