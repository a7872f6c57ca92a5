//! A whole sync of a remote as a state machine: it says what is to be done next, and is told what came of it.
//!
//! ```text
//!    +--> [ApplyStaged | Resume | DropStaged] --> [Cut] --> [Ticket, Piece*] --> Request --> Read --> WELCOME: [Restart | Rewind], Stage
//!    |                                                                                        |       RECEIPT: ApplyReceipt
//!    |                                                                                        |       download frames: Stage
//!    |                                                                                        |       END: StageComplete, ApplyStaged --> Done
//!    |                                                                                        |       ERROR copy: Thaw, NewRemoteId ----------------+
//!    |                                                                                        |       ERROR upload_refused: Thaw, the download alone|
//!    |                                                                                        |       ERROR too_large: a greeting, then CutSmaller  |
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
//!   Of one that broke, the rest is asked for first, where its server keeps it; where nobody has it any more it is dropped.
//! - What brings a download or an upload further is no failed attempt: the attempts are counted from there.
//! - A new remote ID comes after the thaw: the other way round, a crash between them would offer number n under an ID that has none.
//! - A large upload is sent in pieces before the request ([`super::pieces`]), and so is one that somebody on the way finds too large.
//! - An upload that nobody takes, being too large for a server or a proxy or not to be read there, is cut smaller, until what is at
//!   fault is alone and is set aside; but only once the server has said that no earlier attempt of it was applied.
//! - A sync that began with an upload of before cuts and sends another afterwards, so that everything pending at its start goes up.
//!
//! The shell's loop (`crates/remote`) has no decisions in it:
//!
//! ```
//! # use std::time::Duration;
//! # use headwater_protocol::client::*;
//! # let start = Start { upload_sequence: 0, frozen: None, is_large: false, staged: Staged::Nothing };
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

use std::collections::VecDeque;
use std::time::Duration;

use super::answer::{AnswerError, AnswerEvent, AnswerReader, Expected};
use super::failure::{Cause, Failure, Summary};
use super::instruction::{Config, Instruction, Reply, Staged, Start};
use super::pieces::Way;
use crate::frame::{Frame, Kind};
use crate::message::{Download, ErrorCode, ServerError, Welcome};

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
    /// Changes set aside by themselves because no server takes them.
    alone: u32,
    /// Whether what is staged came in this session: the round ends with it.
    is_own: bool,
    /// Bytes staged of the present download in this session, and the most of any until an attempt failed.
    staged_bytes: u64,
    staged_bytes_best: u64,
    /// How the frozen upload travels.
    way: Way,
    /// Bytes of it that the server has, and the most of any until an attempt failed.
    sent_bytes: u64,
    sent_bytes_best: u64,
    /// Attempts that failed since the last that brought something further.
    futile: u32,
    summary: Summary,
}

/// What the next request is for.
#[derive(Debug)]
enum Next {
    /// The sync itself.
    Sync,
    /// The server says that it lacks uploads: which?
    WhatIsLost,
    /// Somebody on the way does not take the upload: has an earlier attempt been applied? If not, it is cut smaller.
    WhetherApplied(ServerError),
    /// The upload was refused whole; the download goes on.
    Download,
    /// A download, before the sync itself.
    DownloadFirst,
}

impl Next {
    fn is_download_alone(&self) -> bool {
        matches!(self, Next::Download | Next::DownloadFirst)
    }
}

/// How many changes a sync sets aside one by one because no server takes them; then something else is wrong.
const ALONE_MAX: u32 = 100;

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

#[derive(Debug)]
struct Answer {
    reader: AnswerReader,
    wants_download: bool,
    /// WELCOME said so.
    restart: bool,
    /// When the last byte came.
    heard: Duration,
    /// When the last frame but heartbeats came.
    moved: Duration,
    /// It is the rest of a download.
    is_rest: bool,
    /// What was staged when it began.
    staged_before: u64,
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
            next: Next::Sync,
            alone: 0,
            is_own: false,
            staged_bytes: 0,
            staged_bytes_best: 0,
            way: Way::of(start.is_large),
            sent_bytes: 0,
            sent_bytes_best: 0,
            futile: 0,
            summary: Summary::default(),
        }
    }

    /// The same with a download before anything is cut: what it brings may be what is pending.
    #[must_use]
    pub fn downloading_first(self) -> Session {
        Session { next: Next::DownloadFirst, ..self }
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
            (Instruction::Cut, Reply::Cut(frozen)) => self.on_cut(frozen, false),
            (Instruction::Cut, Reply::CutLarge(frozen)) => self.on_cut(Some(frozen), true),
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
                let expected = Expected { receipt: has_upload, download: wants_download };
                self.open(now, AnswerReader::new(self.config.limits, expected), wants_download, false);
            }
            (Instruction::Resume, _) => self.open(now, AnswerReader::of_rest(self.config.limits), true, true),
            (Instruction::ApplyReceipt(receipt), _) => {
                self.remote.upload_sequence = receipt.sequence;
                self.remote.frozen = None;
                self.summary.count(&receipt);
            }
            (Instruction::Restart, _) => self.summary.restarted = true,
            (Instruction::Rewind { to }, _) => {
                self.summary.restarted = true;
                self.summary.lost = Some(to + 1..=self.remote.upload_sequence);
                self.remote.upload_sequence = to;
                self.thawed();
            }
            (Instruction::Thaw, _) => self.thawed(),
            (Instruction::CutSmaller(_), reply) => {
                self.alone += u32::from(reply == Reply::SetAside);
                self.summary.refused += u64::from(reply == Reply::SetAside);
                self.thawed();
            }
            (Instruction::NewRemoteId, _) => self.remote.upload_sequence = 0,
            (Instruction::Stage(frame), _) => self.on_staged(&frame),
            (Instruction::StageComplete, _) => self.remote.staged = Staged::Whole,
            (instruction, reply) => panic!("{reply:?} is no reply to {instruction:?}"),
        }
    }

    fn on_cut(&mut self, frozen: Option<u64>, is_large: bool) {
        self.remote.frozen = frozen;
        self.way.begin(is_large);
        self.phase = Phase::Prepare { cut: true };
    }

    fn open(&mut self, now: Duration, reader: AnswerReader, wants_download: bool, is_rest: bool) {
        let staged_before = self.staged_bytes;
        let answer = Answer { reader, wants_download, restart: false, heard: now, moved: now, is_rest, staged_before };
        self.phase = Phase::Answer(Box::new(answer));
    }

    fn on_staged(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Welcome => {
                self.remote.staged = Staged::Part;
                self.is_own = true;
            }
            Kind::Download => {
                let download = frame.payload(self.config.limits.frame_bytes_max).map(|p| Download::from_payload(&p));
                if matches!(download, Ok(Ok(Download { resumable_s: 1.., .. }))) {
                    self.remote.staged = Staged::Resumable;
                }
            }
            _ => {}
        }
        self.staged_bytes += frame.wire_bytes() as u64;
    }

    /// Bytes of the answer came.
    pub fn bytes(&mut self, now: Duration, bytes: &[u8]) {
        self.summary.bytes_in += bytes.len() as u64;
        if let Phase::Answer(answer) = &mut self.phase {
            answer.heard = now;
            answer.reader.push(bytes);
        }
    }

    /// The answer has ended. If it had been whole, it would not be read any more.
    pub fn closed(&mut self, now: Duration) {
        self.retry(now, Cause::Answer(AnswerError::Truncated));
    }

    /// Connecting, sending or reading failed.
    pub fn io_error(&mut self, now: Duration, text: impl Into<String>) {
        self.out = None;
        self.retry(now, Cause::Connection(text.into()));
    }

    /// The server answered the request's head: see [`super::status_error`].
    pub fn refused(&mut self, now: Duration, error: ServerError) {
        match self.out.take() {
            Some(Instruction::Resume) => self.on_no_rest(now, error),
            Some(Instruction::Ticket | Instruction::Piece { .. }) => self.on_no_piece(now, error),
            _ => self.on_server_error(now, error),
        }
    }

    /// A ticket was not given, or a piece not taken.
    fn on_no_piece(&mut self, now: Duration, error: ServerError) {
        match error.code {
            ErrorCode::Unauthenticated | ErrorCode::Forbidden | ErrorCode::TicketUnknown => {
                self.on_server_error(now, error);
            }
            ErrorCode::TooLarge if self.way.on_too_large() => {}
            ErrorCode::TooLarge => self.on_server_error(now, error),
            code if code.is_retryable() => self.retry(now, Cause::Server(error)),
            // Nobody here knows what is asked.
            _ => self.way = Way::WithinOnly,
        }
    }

    /// The rest of a download is not to be had, or not now.
    fn on_no_rest(&mut self, now: Duration, error: ServerError) {
        match error.code {
            ErrorCode::Unauthenticated | ErrorCode::Forbidden => self.on_server_error(now, error),
            code if code.is_retryable() && code != ErrorCode::Gone => self.retry(now, Cause::Server(error)),
            _ => {
                self.remote.staged = Staged::Part;
                self.phase = Phase::Prepare { cut: false };
            }
        }
    }

    /// What is due before the next request, or the request.
    fn prepare(&mut self, cut: bool) {
        let Start { frozen, staged, .. } = self.remote;
        if frozen.is_none() && matches!(self.next, Next::WhetherApplied(_)) {
            self.next = Next::Sync; // it was cut smaller, or thawed, and then the answer broke: nothing is left to ask
        }
        let instruction = match staged {
            Staged::Whole if frozen.is_none() => Instruction::ApplyStaged,
            Staged::Resumable if frozen.is_none() && self.config.wants_download => {
                self.summary.requests += 1;
                Instruction::Resume
            }
            Staged::Whole | Staged::Resumable | Staged::Part => Instruction::DropStaged,
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
                    self.way.next(wants_download)
                } else {
                    Instruction::Request { has_upload: false, ticket: None, wants_download }
                }
            }
        };
        self.due.push_back(instruction);
    }

    /// Takes one event from the answer; gives until when to read on if there is none.
    fn read_answer(&mut self, now: Duration) -> Option<Duration> {
        let Phase::Answer(answer) = &mut self.phase else {
            return None;
        };
        match answer.reader.poll() {
            Ok(Some(event)) => {
                if event != AnswerEvent::Heartbeat {
                    answer.moved = now;
                }
                answer.restart |= matches!(&event, AnswerEvent::Welcome(welcome) if welcome.restart);
                self.on_event(now, event);
            }
            Ok(None) => {
                let until = (answer.heard + self.config.idle_max).min(answer.moved + self.config.patience_max);
                if now < until {
                    return Some(until);
                }
                self.retry(now, Cause::Silent);
            }
            Err(error) => {
                if answer.is_rest && answer.staged_before == self.staged_bytes {
                    // What comes there can't be read, and would not be the next time.
                    self.remote.staged = Staged::Part;
                }
                self.retry(now, Cause::Answer(error));
            }
        }
        None
    }

    fn on_event(&mut self, now: Duration, event: AnswerEvent) {
        let Phase::Answer(answer) = &self.phase else { return };
        let Answer { wants_download, is_rest, staged_before, .. } = **answer;
        let has_frames = self.staged_bytes > staged_before;
        match event {
            AnswerEvent::Heartbeat => {}
            AnswerEvent::Welcome(welcome) => self.on_welcome(now, &welcome, wants_download),
            AnswerEvent::Receipt(receipt) => {
                let expected = self.remote.frozen.unwrap_or(0);
                if receipt.sequence == expected {
                    self.due.push_back(Instruction::ApplyReceipt(receipt));
                } else {
                    let actual = receipt.sequence;
                    self.retry(now, Cause::Answer(AnswerError::Receipt { actual, expected }));
                }
            }
            AnswerEvent::Frame(frame) => self.due.push_back(Instruction::Stage(frame)),
            AnswerEvent::ServerError(error) if is_rest && !has_frames => self.on_no_rest(now, error),
            AnswerEvent::ServerError(error) => {
                if has_frames {
                    // That is where the download ends, whoever asks for it.
                    self.remote.staged = Staged::Part;
                }
                self.on_server_error(now, error);
            }
            AnswerEvent::End => {
                if wants_download {
                    self.due.extend([Instruction::StageComplete, Instruction::ApplyStaged]);
                }
                let is_round = !is_rest || self.is_own;
                self.phase = if is_round { Phase::Round } else { Phase::Prepare { cut: false } };
            }
        }
    }

    fn on_welcome(&mut self, now: Duration, welcome: &Welcome, wants_download: bool) {
        let Start { upload_sequence, frozen, .. } = self.remote;
        let has = welcome.upload_sequence;
        if has > frozen.unwrap_or(upload_sequence) {
            let message = format!("the database has upload {has} of this remote, which this file never sent");
            return self.on_copy(ServerError { code: ErrorCode::Copy, retry_after_ms: 0, message });
        }
        if has < upload_sequence {
            self.due.push_back(Instruction::Rewind { to: has });
            if !welcome.restart {
                // What follows continues from watermarks that this database can't have given out.
                let message = format!("the database has uploads up to {has}, expected {upload_sequence}");
                return self
                    .retry(now, Cause::Server(ServerError { code: ErrorCode::Behind, retry_after_ms: 0, message }));
            }
        } else if welcome.restart {
            self.due.push_back(Instruction::Restart);
        }
        if let Next::WhetherApplied(error) = &self.next
            && has >= upload_sequence
        {
            if frozen == Some(has) || self.alone == ALONE_MAX {
                self.phase = Phase::Over(Err(Failure::Refused(error.clone())));
                return;
            }
            self.due.push_back(Instruction::CutSmaller(error.clone()));
        }
        if wants_download {
            self.due.push_back(Instruction::Stage(welcome.to_frame()));
        }
    }

    fn on_server_error(&mut self, now: Duration, error: ServerError) {
        match error.code {
            ErrorCode::Copy => self.on_copy(error),
            ErrorCode::UploadRefused if self.remote.frozen.is_some() => {
                self.due.push_back(Instruction::Thaw);
                self.summary.upload_refused = Some(error);
                self.next = Next::Download;
                self.phase =
                    if self.config.wants_download { Phase::Prepare { cut: false } } else { Phase::Over(Ok(())) };
            }
            ErrorCode::TicketUnknown if matches!(self.way, Way::Pieces(_)) => {
                self.way.on_unknown();
                self.phase = Phase::Prepare { cut: false };
            }
            ErrorCode::TooLarge | ErrorCode::Malformed
                if self.remote.frozen.is_some() && matches!(self.next, Next::Sync) =>
            {
                if error.code == ErrorCode::TooLarge && matches!(self.way, Way::Within) {
                    self.way = Way::pieces();
                } else {
                    self.next = Next::WhetherApplied(error);
                }
                self.phase = Phase::Prepare { cut: false };
            }
            ErrorCode::Behind => {
                let told = matches!(&self.phase, Phase::Answer(answer) if answer.restart);
                if !told {
                    self.next = Next::WhatIsLost;
                }
                self.retry(now, Cause::Server(error));
            }
            code if code.is_retryable() => self.retry(now, Cause::Server(error)),
            _ => self.phase = Phase::Over(Err(Failure::Refused(error))),
        }
    }

    /// This file is a copy or an old backup: it goes on under a new remote ID. Once; a new ID can't be taken.
    fn on_copy(&mut self, error: ServerError) {
        if self.summary.new_remote_id {
            self.phase = Phase::Over(Err(Failure::Refused(error)));
            return;
        }
        self.summary.new_remote_id = true;
        if self.remote.frozen.is_some() {
            self.due.push_back(Instruction::Thaw);
        }
        self.due.push_back(Instruction::NewRemoteId);
        self.phase = Phase::Prepare { cut: false };
    }

    /// What was frozen is pending again and goes up with the rest: no second round is needed.
    fn thawed(&mut self) {
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

    fn retry(&mut self, now: Duration, cause: Cause) {
        self.summary.failures += 1;
        if self.remote.staged == Staged::Resumable && self.staged_bytes > self.staged_bytes_best {
            self.staged_bytes_best = self.staged_bytes;
            self.futile = 0;
        }
        if self.sent_bytes > self.sent_bytes_best {
            self.sent_bytes_best = self.sent_bytes;
            self.futile = 0;
        }
        self.way.ask();
        self.futile += 1;
        let asked = match &cause {
            Cause::Server(error) => Duration::from_millis(u64::from(error.retry_after_ms)),
            _ => Duration::ZERO,
        };
        let until = now + self.jitter.wait(&self.config, self.futile, asked);
        self.phase = if self.futile >= self.config.attempts_max || until > self.config.elapsed_max {
            Phase::Over(Err(Failure::GaveUp { failures: self.summary.failures, cause }))
        } else {
            Phase::Wait(until)
        };
    }
}

/// Random waits from a seed (splitmix64).
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    /// How long to wait after this many failures: as long as the server asked and up to an eighth more, so that those that it
    /// sent away together don't come back together; else between half of the doubled backoff and all of it.
    fn wait(&mut self, config: &Config, failures: u32, asked: Duration) -> Duration {
        if !asked.is_zero() {
            return asked + asked.mul_f64(self.fraction() / 8.0);
        }
        let doubled = config.backoff_min.saturating_mul(1 << (failures - 1).min(20)).min(config.backoff_max);
        doubled.mul_f64(0.5 + self.fraction() / 2.0)
    }

    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}
