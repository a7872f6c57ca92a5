//! A whole sync of a remote as a state machine: it says what is to be done next, and is told what came of it.
//!
//! ```text
//!    +--> [ApplyStaged | Resume | DropStaged] --> [Cut] --> [Ticket, Piece*] --> Request --> Read --> WELCOME: [Restart | Rewind], Stage
//!    |                                                                                        |       RECEIPT: ApplyReceipt
//!    |                                                                                        |       download frames: Stage
//!    |                                                                                        |       END: StageComplete, [Chunk*], ApplyStaged --> Done
//!    |                                                                                        |       ERROR copy: Thaw, NewRemoteId ----------------+
//!    |                                                                                        |       ERROR upload_refused: Thaw, the download alone|
//!    |                                                                                        |       ERROR too_large: a greeting that gives up,    |
//!    |                                                                                        |         then CutSmaller, or Thaw and the download   |
//!    |                                                                                        |       ERROR internal in each attempt: the same,     |
//!    |                                                                                        |         then Thaw and the download alone            |
//!    +---- WaitUntil <-- anything that may pass <---------------------------------------------+                                                     |
//!    +----------------------------------------------------------------------------------------------------------------------------------------------+
//! ```
//!
//! Every instruction is carried out durably and then acknowledged ([`Session::done`]); a crash between any two leaves a file from which
//! [`Start`] begins again: before the sync, after its upload (the receipt is applied in a step of its own, whatever becomes of the
//! download), or after both. The rules that make it so:
//!
//! - A frozen upload is offered again, the same frames under the same number, until its receipt is applied.
//! - A staged download is applied before the next upload is cut, or dropped; one that is staged beside a frozen upload is dropped.
//!   Of one that broke, the rest is asked for first, where its server keeps it; where nobody has it any more, or it is refused again and
//!   again, it is dropped.
//! - Chunks that a staged download names are got before it is applied, wherever it was interrupted; where one is not to be had, or is not the
//!   one that was named, the download is dropped and asked for again, without chunks for the rest of the sync.
//! - What brings a download or an upload further is no failed attempt: the attempts are counted from there.
//! - An upload that was sent more than once, or by an earlier sync, is thawed only after a greeting that gives it up. If the database has not
//!   applied it, the database uses the number up and refuses a request that comes late. No other upload gets the number.
//! - WELCOME may show that this file is a copy, and that its upload was applied before the other file's. The remote then does without the receipt
//!   (`TakeForApplied`) and does not send the changes again; after that it takes a new remote ID.
//! - Where ERROR `copy` follows a WELCOME that lacks uploads, what is lost of them is dealt with (`Rewind`) before the new remote ID.
//! - A new remote ID comes after the thaw: the other way round, a crash between them would offer number n under an ID that has none.
//! - A large upload is sent in pieces before the request ([`super::pieces`]), and so is one that somebody on the way finds too large.
//! - An upload that nobody takes, being too large for a server or a proxy or not to be read there, is cut smaller, until what is at
//!   fault is alone and is set aside; but only once the server has said that no earlier attempt of it was applied.
//! - One that was applied before, and that somebody does not take any more, is offered once more. Then its receipt is done without, so that
//!   nothing blocks the remote for good: the next download shows what became of the changes.
//! - An upload at which the server or its database fails in every attempt is thawed, once the server has said that none of them was applied.
//!   Then the download goes on, and what is pending can be changed or given up.
//! - Where the server says that the model takes all or nothing, nothing is cut smaller or sent in parts: what is pending stays so, with
//!   the reason, and the download goes on. A part is not sent before that is known.
//! - A sync that began with an upload of before cuts and sends another afterwards, so that everything pending at its start goes up.
//!
//! The shell's loop (`crates/remote`) has no decisions in it:
//!
//! ```
//! # use std::time::Duration;
//! # use headwater_protocol::client::*;
//! # let start = Start { upload_sequence: 0, frozen: None, is_large: false, is_part: false, staged: Staged::Nothing };
//! let mut session = Session::new(start, Config { attempts_max: 1, ..Config::default() }, 42);
//! let mut now = Duration::ZERO;
//! loop {
//!     match session.poll(now) {
//!         Instruction::Cut => session.done(now, Reply::Cut(Some(1))), // froze upload number 1
//!         Instruction::Request { has_upload, .. } => {
//!             assert!(has_upload);
//!             session.io_error(now, "no route to host");
//!         }
//!         Instruction::WaitUntil(until) => now = until,
//!         Instruction::Failed(failure) => break assert!(failure.is_retryable()),
//!         other => unreachable!("{other:?}"),
//!     }
//! }
//! ```

mod reading;
mod setbacks;

use std::collections::VecDeque;
use std::time::Duration;

use self::reading::Answer;
use self::setbacks::Jitter;
use super::answer::{AnswerReader, Expected};
use super::failure::{Cause, Failure, Summary};
use super::instruction::{Config, Instruction, Reply, Staged, Start};
use super::pieces::Way;
use crate::message::{ErrorCode, FrozenFate, ServerError};

/// One sync.
#[derive(Debug)]
pub struct Session {
    config: Config,
    jitter: Jitter,
    remote: Start,
    phase: Phase,
    /// Instructions that are due, in order.
    due: VecDeque<Instruction>,
    /// The instruction that is being carried out.
    out: Option<Instruction>,
    /// The frozen upload was there when the sync began: another round follows.
    resent: bool,
    /// That round has begun; it needs no request if nothing is pending.
    extra: bool,
    next: Next,
    parts: Parts,
    /// How often the frozen upload was offered again for its receipt alone: the database has it.
    repeats: u32,
    /// Changes set aside by themselves because no server takes them.
    alone: u32,
    /// Whether what is staged came in this session: the round ends with it.
    is_own: bool,
    /// Bytes staged of the present download in this session, and the most of any until an attempt failed.
    staged_bytes: u64,
    staged_bytes_best: u64,
    /// How often the rest of it was refused since some of it came.
    rest_refused: u32,
    /// Where chunks are taken, how often one has failed to come since one came; `None`: they are not, or not any more.
    chunk_failures: Option<u32>,
    /// How the frozen upload travels.
    way: Way,
    /// Bytes of it that the server has, and the most of any until an attempt failed.
    sent_bytes: u64,
    sent_bytes_best: u64,
    /// Attempts that failed since the last that brought something further.
    futile: u32,
    /// Attempts at a frozen upload that ended so that it may be applied still.
    unsure_ends: u32,
    /// What WELCOME says of the frozen upload.
    fate: FrozenFate,
    /// Why the last attempt failed, if one did.
    setback: Option<Cause>,
    summary: Summary,
}

/// What the next request is for.
#[derive(Debug)]
enum Next {
    /// The sync itself.
    Sync,
    /// The server says that it lacks uploads: which?
    WhatIsLost,
    /// The upload is given up, unless an attempt of it has been applied.
    GiveUp(Why),
    /// The upload is a part of what is pending: does the model take parts?
    WhetherParts,
    /// The upload was refused whole; the download goes on.
    Download,
    /// A download, before the sync itself.
    DownloadFirst,
}

/// Why an upload is given up.
#[derive(Debug)]
enum Why {
    /// Somebody on the way does not take it: it is cut smaller.
    TooLarge(ServerError),
    /// The server refused it whole: the download goes on.
    Refused(ServerError),
    /// It has failed as often as attempts are made: the download goes on.
    Failed { failures: u32, error: ServerError },
    /// It is a part, and the model takes all or nothing.
    IsPart,
}

impl Next {
    fn is_download_alone(&self) -> bool {
        matches!(self, Next::Download | Next::DownloadFirst)
    }
}

/// Whether the server takes what is pending in parts.
#[derive(Debug, PartialEq, Eq)]
enum Parts {
    /// It has not said so yet.
    Unknown,
    /// It does.
    Taken,
    /// The model takes all or nothing.
    Unwanted {
        /// A part was cut once more.
        is_recut: bool,
    },
}

#[derive(Debug)]
enum Phase {
    /// Before a request.
    Prepare { cut: bool },
    /// Reading an answer.
    Answer(Box<Answer>),
    /// Between attempts.
    Wait(Duration),
    /// The answer was whole.
    Round,
    /// Nothing is left to do.
    Over(Result<(), Failure>),
}

impl Session {
    /// A sync that begins now, from what is durable. `seed` makes the waits of many remotes differ.
    pub fn new(start: Start, config: Config, seed: u64) -> Session {
        Session {
            config,
            jitter: Jitter(seed),
            remote: start,
            phase: Phase::Prepare { cut: false },
            due: VecDeque::new(),
            out: None,
            resent: start.frozen.is_some(),
            extra: false,
            next: if start.is_part { Next::WhetherParts } else { Next::Sync },
            parts: Parts::Unknown,
            repeats: 0,
            alone: 0,
            is_own: false,
            staged_bytes: 0,
            staged_bytes_best: 0,
            rest_refused: 0,
            chunk_failures: config.takes_chunks.then_some(0),
            way: Way::of(start.is_large),
            sent_bytes: 0,
            sent_bytes_best: 0,
            futile: 0,
            unsure_ends: 0,
            fate: FrozenFate::Unknown,
            setback: None,
            summary: Summary::default(),
        }
    }

    /// The same with a download before anything is cut: what it brings may be what is pending.
    #[must_use]
    pub fn downloading_first(self) -> Session {
        Session { next: Next::DownloadFirst, ..self }
    }

    /// While it waits: how many attempts have failed in a row, as [`Config::attempts_max`] counts them, and why the last one did.
    pub fn setback(&self) -> Option<(u32, &Cause)> {
        self.setback.as_ref().map(|cause| (self.futile, cause))
    }

    /// What is to be done next; `now` is the time since the start, here as everywhere.
    pub fn poll(&mut self, now: Duration) -> Instruction {
        assert!(self.out.is_none(), "{:?} is acknowledged before the next instruction", self.out);
        loop {
            if let Some(instruction) = self.due.pop_front() {
                self.out = Some(instruction.clone());
                return instruction;
            }
            match &self.phase {
                Phase::Prepare { cut } => self.prepare(*cut),
                Phase::Wait(until) if now < *until => return Instruction::WaitUntil(*until),
                Phase::Wait(_) => self.phase = Phase::Prepare { cut: false },
                Phase::Answer(_) => {
                    if let Some(until) = self.read_answer(now) {
                        return Instruction::Read { until };
                    }
                }
                Phase::Round => self.end_round(),
                Phase::Over(Ok(())) => return Instruction::Done(self.summary.clone()),
                Phase::Over(Err(failure)) => return Instruction::Failed(failure.clone()),
            }
        }
    }

    /// The instruction has been carried out.
    pub fn done(&mut self, now: Duration, reply: Reply) {
        let instruction = self.out.take().expect("an instruction is acknowledged once");
        match (instruction, reply) {
            (Instruction::ApplyStaged, Reply::Unreadable) => {
                self.retry(now, Cause::Unreadable);
                self.due.push_back(Instruction::DropStaged);
            }
            (Instruction::ApplyStaged, _) => {
                self.remote.staged = Staged::Nothing;
                self.summary.downloads += 1;
            }
            (Instruction::DropStaged, _) => {
                self.remote.staged = Staged::Nothing;
                self.staged_bytes = 0;
            }
            (Instruction::Cut, Reply::Cut(frozen)) => self.on_cut(frozen, false, false),
            (Instruction::Cut, Reply::CutLarge(frozen)) => self.on_cut(Some(frozen), true, false),
            (Instruction::Cut, Reply::CutPart { number, is_large }) => self.on_cut(Some(number), is_large, true),
            (Instruction::Ticket, Reply::Ticket { ticket, offset, piece_bytes }) => {
                self.sent_bytes = offset;
                self.way.on_ticket(ticket, offset, piece_bytes);
            }
            (Instruction::Piece { ticket, offset: before, .. }, Reply::Piece { offset, is_all }) => {
                self.sent_bytes = offset;
                self.way.on_piece(ticket, offset, is_all);
                if offset <= before && !is_all {
                    let message = format!("the server has {offset} bytes of the upload, expected more than {before}");
                    self.retry(
                        now,
                        Cause::Server(ServerError { code: ErrorCode::TicketUnknown, retry_after_ms: 0, message }),
                    );
                }
            }
            (Instruction::Request { has_upload, wants_download, .. }, _) => {
                let expected =
                    Expected { receipt: has_upload, download: wants_download, chunks: self.chunk_failures.is_some() };
                self.open(now, AnswerReader::new(self.config.limits, expected), wants_download, false);
            }
            (Instruction::Resume, _) => {
                let reader = AnswerReader::of_rest(self.config.limits, self.chunk_failures.is_some());
                self.open(now, reader, true, true);
            }
            (Instruction::ApplyReceipt(receipt), _) => {
                self.remote.upload_sequence = receipt.sequence;
                self.remote.frozen = None;
                self.summary.count(&receipt);
            }
            (Instruction::Restart, _) => self.summary.restarted = true,
            (Instruction::Rewind { to }, _) => {
                self.summary.restarted = true;
                let last = self.summary.lost.as_ref().map_or(self.remote.upload_sequence, |lost| *lost.end());
                self.summary.lost = Some(to + 1..=last);
                self.remote.upload_sequence = to;
                self.thawed();
            }
            (Instruction::Thaw { is_given_up, .. }, _) => self.on_thawed(is_given_up),
            (Instruction::CutSmaller { is_given_up, .. }, reply) => {
                self.alone += u32::from(reply == Reply::SetAside);
                self.summary.refused += u64::from(reply == Reply::SetAside);
                self.on_thawed(is_given_up);
            }
            (Instruction::TakeForApplied, _) => {
                self.remote.upload_sequence = self.remote.frozen.unwrap_or(self.remote.upload_sequence);
                self.thawed();
            }
            (Instruction::NewRemoteId, _) => self.remote.upload_sequence = 0,
            (Instruction::Stage(frame), _) => self.on_staged(&frame),
            (Instruction::StageComplete, reply) => self.on_complete(reply == Reply::Lacking),
            (Instruction::Chunk, reply) => self.on_chunk(now, reply),
            (instruction, reply) => panic!("{reply:?} is no reply to {instruction:?}"),
        }
    }

    fn on_cut(&mut self, frozen: Option<u64>, is_large: bool, is_part: bool) {
        self.remote.frozen = frozen;
        self.repeats = 0;
        self.way.begin(is_large);
        self.phase = Phase::Prepare { cut: true };
        match self.parts {
            Parts::Unknown if is_part => self.next = Next::WhetherParts,
            Parts::Unwanted { .. } if is_part => self.on_unwanted_part(),
            _ => {}
        }
    }

    /// The frozen upload is a part, and the model takes all or nothing: perhaps it was cut small by a limit of before, so it is cut once more.
    fn on_unwanted_part(&mut self) {
        let before = std::mem::replace(&mut self.parts, Parts::Unwanted { is_recut: true });
        if before == (Parts::Unwanted { is_recut: true }) {
            let message = "more is pending than goes in one upload, and the model takes all or nothing".to_owned();
            return self.refuse_whole(ServerError { code: ErrorCode::TooLarge, retry_after_ms: 0, message });
        }
        self.due.push_back(Instruction::Thaw { refused: None, is_given_up: self.is_given_up() });
        self.next = Next::Sync;
        self.phase = Phase::Prepare { cut: false };
    }

    /// What is due before the next request, or the request.
    fn prepare(&mut self, cut: bool) {
        let Start { frozen, staged, .. } = self.remote;
        if frozen.is_none() && matches!(self.next, Next::GiveUp(_) | Next::WhetherParts) {
            self.next = Next::Sync; // it was cut smaller, or thawed, and then the answer broke: nothing is left to ask
        }
        let instruction = match staged {
            Staged::Whole if frozen.is_none() => Instruction::ApplyStaged,
            Staged::Resumable if frozen.is_none() && self.config.wants_download => {
                self.summary.requests += 1;
                Instruction::Resume
            }
            Staged::Chunks if frozen.is_none() && self.config.wants_download => Instruction::Chunk,
            Staged::Whole | Staged::Chunks | Staged::Resumable | Staged::Part => Instruction::DropStaged,
            Staged::Nothing if frozen.is_none() && !cut && !self.next.is_download_alone() => Instruction::Cut,
            Staged::Nothing => {
                if self.extra && frozen.is_none() {
                    self.phase = Phase::Over(Ok(()));
                    return;
                }
                self.extra = false;
                self.summary.requests += 1;
                let is_sync = matches!(self.next, Next::Sync);
                let wants_download = self.next.is_download_alone() || (self.config.wants_download && is_sync);
                if frozen.is_some() && is_sync {
                    self.way.next(wants_download, self.chunk_failures.is_some())
                } else {
                    let takes_chunks = self.chunk_failures.is_some();
                    let gives_up = frozen.is_some() && matches!(self.next, Next::GiveUp(_));
                    Instruction::Request { has_upload: false, ticket: None, wants_download, takes_chunks, gives_up }
                }
            }
        };
        self.due.push_back(instruction);
    }

    /// Whether the database has used the number of the frozen upload up.
    fn is_given_up(&self) -> bool {
        self.fate == FrozenFate::GivenUp
    }

    fn on_thawed(&mut self, is_given_up: bool) {
        if is_given_up {
            self.remote.upload_sequence = self.remote.frozen.unwrap_or(self.remote.upload_sequence);
        }
        self.thawed();
    }

    /// What was frozen is pending again and goes up with the rest: no second round is needed.
    fn thawed(&mut self) {
        self.fate = FrozenFate::Unknown;
        self.remote.frozen = None;
        self.resent = false;
        self.sent_bytes = 0;
    }

    fn end_round(&mut self) {
        self.phase = Phase::Prepare { cut: false };
        if matches!(std::mem::replace(&mut self.next, Next::Sync), Next::Sync | Next::Download) {
            self.extra = std::mem::take(&mut self.resent);
            if !self.extra {
                self.phase = Phase::Over(Ok(()));
            }
        }
    }
}
