//! How far a sync is, and what it did.

use std::time::Duration;

use headwater_protocol::client::{Cause, Summary};
use headwater_protocol::message::ErrorCode;

use super::LargeDownload;
use crate::apply::Applied;

/// What a sync is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Finding the local changes.
    Cut,
    /// Sending them; counted in frames.
    Send,
    /// Waiting for the answer, and receiving it; counted in bytes.
    Receive,
    /// Applying the download; counted in rows.
    Apply,
    /// Waiting before the next attempt.
    Wait,
}

/// How far a sync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// How much of that is done.
    pub done: u64,
    /// How much there is to do, if that is known: never less than is done. The server may only have estimated it, so what is done may end
    /// before it, and it grows where more comes.
    pub total: Option<u64>,
}

impl Progress {
    pub(crate) fn new(phase: Phase, done: u64, total: Option<u64>) -> Progress {
        Progress { phase, done, total: total.map(|total| total.max(done)) }
    }
}

/// An attempt that failed, and is going to be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setback {
    /// How many attempts have failed in a row, as [`Config::attempts_max`](headwater_protocol::client::Config::attempts_max) counts them.
    pub failures: u32,
    /// Why the last one did, for people.
    pub reason: String,
    /// How long it waits before the next.
    pub wait: Duration,
}

impl Setback {
    pub(crate) fn new(failures: u32, cause: &Cause, wait: Duration) -> Setback {
        Setback { failures, reason: cause.to_string(), wait }
    }
}

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Changes uploaded, whatever became of them.
    pub changes_up: u64,
    /// Changes of those that met a conflict.
    pub conflicts: u64,
    /// Changes of those that were refused and are set aside.
    pub refused: u64,
    /// Rows that came down.
    pub rows_down: u64,
    /// Deletions that came down.
    pub deletions_down: u64,
    /// Rows and deletions that came down and are held beside pending changes.
    pub held: u64,
    /// Pending changes set aside because a row that came down needs their place.
    pub displaced: u64,
    /// Pending changes of columns that the model's new version does not have ([`crate::Remote::upgrade`]): what they made of those is among the
    /// changes set aside, the rest of them stays pending.
    pub left_out: u64,
    /// Rows that came down and that the file does not take; they are held and tried again.
    pub not_stored: u64,
    /// Rows that were changed here while change tracking was off, or perhaps were; they are among the changes set aside.
    pub untracked: u64,
    /// Rows of tables that only go up, in which change tracking was off: perhaps they have not gone up. They are among the changes set aside,
    /// and stay as they are.
    pub perhaps_unsent: u64,
    /// Tables that came down afresh, because the consolidated database can't tell any more what has changed in them since the last sync.
    pub afresh: u64,
    /// Bytes sent, without HTTP's own.
    pub bytes_up: u64,
    /// Bytes received, without HTTP's own.
    pub bytes_down: u64,
    /// Requests sent.
    pub requests: u32,
    /// Attempts that failed and were repeated.
    pub failures: u32,
    /// Whether the file got a new remote ID: the consolidated database has other uploads under the old one. Either is a copy, was restored
    /// from a backup, or was exchanged for another.
    pub new_remote_id: bool,
    /// Whether the consolidated database began a new incarnation, and everything came down afresh.
    pub restarted: bool,
    /// Numbers of uploads that the consolidated database had acknowledged and has no more: first and last.
    pub lost: Option<(u64, u64)>,
    /// Changes of those that the file still had, and that are set aside.
    pub lost_changes: u64,
    /// The last download that did not stay in memory.
    pub large: Option<LargeDownload>,
    /// Why an upload was refused whole, or is too large to be taken whole where the model wants that: its changes are pending again; the
    /// download went on.
    pub upload_refused: Option<String>,
    /// Whether the server failed at that upload rather than refused it: the rows may be in order.
    pub upload_failed: bool,
    /// How long each phase took.
    pub times: Times,
}

/// How long each phase of a sync took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Finding and freezing the local changes.
    pub cut: Duration,
    /// Sending them, until the answer began.
    pub send: Duration,
    /// Waiting for and receiving the answer.
    pub receive: Duration,
    /// Applying the receipt.
    pub receipt: Duration,
    /// Staging the download.
    pub stage: Duration,
    /// Applying the download.
    pub apply: Duration,
    /// Waiting between attempts.
    pub wait: Duration,
    /// All of it.
    pub total: Duration,
}

impl SyncReport {
    /// Changes that this sync set aside, for whatever reason.
    #[must_use]
    pub fn set_aside(&self) -> u64 {
        self.refused + self.displaced + self.left_out + self.untracked + self.perhaps_unsent + self.lost_changes
    }

    pub(super) fn add(&mut self, applied: &Applied) {
        self.rows_down += applied.rows;
        self.deletions_down += applied.deletions;
        self.held += applied.held;
        self.displaced += applied.set_aside;
        self.left_out += applied.left_out;
        self.not_stored += applied.not_stored;
        self.untracked += applied.untracked;
        self.afresh += applied.afresh;
    }

    pub(super) fn count(&mut self, summary: &Summary) {
        self.changes_up += summary.changes;
        self.conflicts += summary.conflicts;
        self.refused += summary.refused;
        self.requests += summary.requests;
        self.failures += summary.failures;
        self.new_remote_id |= summary.new_remote_id;
        self.restarted |= summary.restarted;
        self.upload_failed = summary.upload_refused.as_ref().is_some_and(|error| error.code == ErrorCode::Internal);
        self.upload_refused = summary.upload_refused.as_ref().map(|error| error.message.clone());
        self.lost = summary.lost.as_ref().map(|lost| (*lost.start(), *lost.end())).or(self.lost);
    }
}
