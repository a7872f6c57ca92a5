//! The phase in which an answer is read: from its first byte to END, an ERROR or a break.

use std::time::Duration;

use super::{Next, Parts, Phase, Session, Why};
use crate::client::answer::{AnswerError, AnswerEvent, AnswerReader};
use crate::client::failure::Cause;
use crate::client::instruction::{Instruction, Reply, Staged, Start};
use crate::frame::{Frame, Kind};
use crate::message::{Download, ErrorCode, FrozenFate, ServerError, Welcome};

/// How many changes a sync sets aside one by one because no server takes them; then something else is wrong.
const ALONE_MAX: u32 = 100;

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct Answer {
    reader: AnswerReader,
    wants_download: bool,
    /// WELCOME said so.
    pub(super) restart: bool,
    /// When the last byte came.
    heard: Duration,
    /// When the last frame but heartbeats came.
    moved: Duration,
    /// When the last frame of a receipt or a download came.
    last_frame: Option<Duration>,
    /// It is the rest of a download.
    is_rest: bool,
    /// What was staged when it began.
    staged_before: u64,
}

impl Session {
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

    pub(super) fn open(&mut self, now: Duration, reader: AnswerReader, wants_download: bool, is_rest: bool) {
        let staged_before = self.staged_bytes;
        let answer = Answer {
            reader,
            wants_download,
            restart: false,
            heard: now,
            moved: now,
            last_frame: None,
            is_rest,
            staged_before,
        };
        self.phase = Phase::Answer(Box::new(answer));
    }

    pub(super) fn on_staged(&mut self, frame: &Frame) {
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
        self.rest_refused = 0;
        self.staged_bytes += frame.wire_bytes() as u64;
    }

    /// Takes one event from the answer; gives until when to read on if there is none.
    pub(super) fn read_answer(&mut self, now: Duration) -> Option<Duration> {
        let Phase::Answer(answer) = &mut self.phase else {
            return None;
        };
        match answer.reader.poll() {
            Ok(Some(event)) => {
                if event != AnswerEvent::Heartbeat {
                    answer.moved = now;
                }
                if !matches!(event, AnswerEvent::Heartbeat | AnswerEvent::Welcome(_)) {
                    answer.last_frame = Some(now);
                }
                answer.restart |= matches!(&event, AnswerEvent::Welcome(welcome) if welcome.restart);
                self.on_event(now, event);
            }
            Ok(None) => {
                // What comes little by little may go on for as long as something comes.
                let after_frames = answer.last_frame.map_or(Duration::ZERO, |last| last + self.config.idle_max);
                let answer_max = self.config.answer_max.max(after_frames);
                if now >= answer_max {
                    self.retry(now, Cause::Unanswered);
                    return None;
                }
                let until = (answer.heard + self.config.idle_max).min(answer.moved + self.config.patience_max);
                if now < until {
                    return Some(until.min(answer_max));
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

    /// The frames of a download are whole.
    pub(super) fn on_complete(&mut self, is_lacking: bool) {
        self.remote.staged = if is_lacking { Staged::Chunks } else { Staged::Whole };
        self.due.push_back(if is_lacking { Instruction::Chunk } else { Instruction::ApplyStaged });
    }

    /// A chunk has come.
    pub(super) fn on_chunk(&mut self, now: Duration, reply: Reply) {
        let Reply::Chunk { bytes, is_all } = reply else {
            let message = "a chunk of the download is not the one that the server named".to_owned();
            return self.on_no_chunk(now, ServerError { code: ErrorCode::Gone, retry_after_ms: 0, message });
        };
        self.staged_bytes += bytes;
        self.chunk_failures = self.chunk_failures.map(|_| 0);
        if is_all {
            self.remote.staged = Staged::Whole;
            self.due.push_back(Instruction::ApplyStaged);
            self.phase = self.after_rest();
        } else {
            self.due.push_back(Instruction::Chunk);
        }
    }

    /// What follows the last of a download that was perhaps begun by a sync before.
    fn after_rest(&self) -> Phase {
        if self.is_own { Phase::Round } else { Phase::Prepare { cut: false } }
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
                    self.due.push_back(Instruction::StageComplete);
                }
                self.phase = if is_rest { self.after_rest() } else { Phase::Round };
            }
        }
    }

    fn on_welcome(&mut self, now: Duration, welcome: &Welcome, wants_download: bool) {
        let Start { upload_sequence, frozen, .. } = self.remote;
        let has = welcome.upload_sequence;
        let is_own = frozen == Some(has) && welcome.frozen != FrozenFate::Another;
        if has > upload_sequence && !is_own {
            let message = format!("the database has an upload {has} of this remote, which this file never sent");
            let error = ServerError { code: ErrorCode::Copy, retry_after_ms: 0, message };
            return self.on_copy(error, welcome.frozen == FrozenFate::Applied);
        }
        self.fate = if frozen == Some(has) { welcome.frozen } else { FrozenFate::Unknown };
        if self.is_given_up() && !matches!(self.next, Next::GiveUp(_)) {
            // By an attempt whose answer was lost.
            self.due.push_back(Instruction::Thaw { refused: None, is_given_up: true });
            self.phase = Phase::Prepare { cut: false };
            return;
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
        match (welcome.whole, &self.parts) {
            (true, Parts::Unwanted { .. }) => {}
            (true, _) => self.parts = Parts::Unwanted { is_recut: false },
            (false, _) => self.parts = Parts::Taken,
        }
        if wants_download {
            self.due.push_back(Instruction::Stage(welcome.to_frame()));
        } else if has >= upload_sequence {
            self.on_greeting(welcome.whole, frozen == Some(has) && !self.is_given_up());
        }
    }

    /// What was asked by a request without upload is known.
    fn on_greeting(&mut self, is_whole: bool, is_applied: bool) {
        match &self.next {
            Next::GiveUp(Why::Failed { .. }) => self.on_failed_upload(is_applied),
            // With `Next::Sync`, which follows, it goes up again: its receipt is worth another attempt.
            Next::GiveUp(_) if is_applied && self.repeats == 0 => self.repeats = 1,
            Next::GiveUp(_) if is_applied => self.due.push_back(Instruction::TakeForApplied),
            Next::GiveUp(Why::Refused(error)) => self.refuse_whole(error.clone()),
            Next::GiveUp(Why::IsPart) => self.on_unwanted_part(),
            Next::GiveUp(Why::TooLarge(error)) if is_whole || self.alone == ALONE_MAX => {
                let ServerError { code, retry_after_ms, message } = error;
                let why =
                    if is_whole { "the model takes all or nothing" } else { "too many were set aside one by one" };
                let message = format!("{message}; it is not cut smaller: {why}");
                self.refuse_whole(ServerError { code: *code, retry_after_ms: *retry_after_ms, message });
            }
            Next::GiveUp(Why::TooLarge(error)) => {
                let (error, is_given_up) = (error.clone(), self.is_given_up());
                self.due.push_back(Instruction::CutSmaller { error, is_given_up });
            }
            Next::WhetherParts if is_whole && !is_applied && !self.is_perhaps_elsewhere() => self.on_unwanted_part(),
            Next::WhetherParts if is_whole && !is_applied => {
                self.next = Next::GiveUp(Why::IsPart);
                self.phase = Phase::Prepare { cut: false };
            }
            _ => {}
        }
    }
}
