//! What goes wrong, and how the sync goes on: in another way, after a while, or not at all.

use std::time::Duration;

use super::{Next, Phase, Session, Why};
use crate::client::failure::{Cause, Failure};
use crate::client::instruction::{Config, Instruction, Staged};
use crate::client::pieces::Way;
use crate::message::{ErrorCode, ServerError};

/// How often in turn a chunk may fail to come before it is done without.
const CHUNK_FAILURES_MAX: u32 = 3;

impl Session {
    /// Connecting, sending or reading failed.
    pub fn io_error(&mut self, now: Duration, text: impl Into<String>) {
        let cause = Cause::Connection(text.into());
        match self.out.take() {
            Some(Instruction::Chunk) => self.on_chunk_failed(now, cause),
            _ => self.retry(now, cause),
        }
    }

    /// The server answered the request's head: see [`crate::client::status_error`].
    pub fn refused(&mut self, now: Duration, error: ServerError) {
        if self.remote.frozen.is_some() && is_perhaps_of_upload(error.code) {
            // A status may be that of a proxy, behind which the server applies the upload: its own error comes in frames.
            self.unsure_ends += 1;
        }
        match self.out.take() {
            // The page of somebody who lets no such request pass, perhaps: whether the user may sync, the sync finds out.
            Some(Instruction::Resume) if error.code == ErrorCode::Forbidden => self.give_rest_up(),
            Some(Instruction::Resume) => self.on_no_rest(now, error),
            Some(Instruction::Chunk) => self.on_no_chunk(now, error),
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
    pub(super) fn on_no_rest(&mut self, now: Duration, error: ServerError) {
        match error.code {
            ErrorCode::Unauthenticated | ErrorCode::Forbidden => self.on_server_error(now, error),
            code if code.is_retryable() && code != ErrorCode::Gone => {
                self.rest_refused += 1;
                // The last attempt is for the sync itself: perhaps that is let through.
                if self.rest_refused + 1 < self.config.attempts_max {
                    self.retry(now, Cause::Server(error));
                } else {
                    self.give_rest_up();
                }
            }
            _ => self.give_rest_up(),
        }
    }

    /// A chunk is not to be had, or not now. It needs no credentials, so whatever a status says is said of the chunk alone.
    pub(super) fn on_no_chunk(&mut self, now: Duration, error: ServerError) {
        if error.code.is_retryable() && error.code != ErrorCode::Gone {
            self.on_chunk_failed(now, Cause::Server(error));
        } else {
            self.give_chunks_up();
        }
    }

    /// It is tried again, but not for long: the server has the rows too.
    fn on_chunk_failed(&mut self, now: Duration, cause: Cause) {
        self.chunk_failures = self.chunk_failures.map(|failures| failures + 1);
        let most = CHUNK_FAILURES_MAX.min(self.config.attempts_max);
        match self.chunk_failures {
            Some(failures) if failures < most => self.retry(now, cause),
            _ => self.give_chunks_up(),
        }
    }

    /// The download is asked for as it is without.
    fn give_chunks_up(&mut self) {
        self.chunk_failures = None;
        self.give_rest_up();
    }

    /// What is staged is dropped, and everything since the watermarks asked for.
    fn give_rest_up(&mut self) {
        self.rest_refused = 0;
        self.remote.staged = Staged::Part;
        self.phase = Phase::Prepare { cut: false };
    }

    pub(super) fn on_server_error(&mut self, now: Duration, error: ServerError) {
        match error.code {
            ErrorCode::Copy => self.on_copy(error, false),
            ErrorCode::UploadRefused if self.remote.frozen.is_some() && self.is_perhaps_elsewhere() => {
                self.next = Next::GiveUp(Why::Refused(error));
                self.phase = Phase::Prepare { cut: false };
            }
            ErrorCode::UploadRefused if self.remote.frozen.is_some() => self.refuse_whole(error),
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
                    self.next = Next::GiveUp(Why::TooLarge(error));
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

    /// Whether an attempt at the frozen upload may still be on its way.
    pub(super) fn is_perhaps_elsewhere(&self) -> bool {
        self.resent || self.unsure_ends > 0
    }

    /// The frozen upload is not applied: its changes are pending again, and the download goes on.
    pub(super) fn refuse_whole(&mut self, error: ServerError) {
        let is_given_up = self.is_given_up();
        self.due.push_back(Instruction::Thaw { refused: Some(error.message.clone()), is_given_up });
        self.summary.upload_refused = Some(error);
        self.next = Next::Download;
        self.phase = if self.config.wants_download { Phase::Prepare { cut: false } } else { Phase::Over(Ok(())) };
    }

    /// This file or the database is a copy or an old backup: the file goes on under a new remote ID. Once; a new ID can't be taken. `is_applied`: its upload was,
    /// before it was copied or by the other file.
    pub(super) fn on_copy(&mut self, error: ServerError, is_applied: bool) {
        if self.summary.new_remote_id {
            self.phase = Phase::Over(Err(Failure::Refused(error)));
            return;
        }
        self.summary.new_remote_id = true;
        if self.remote.frozen.is_some() && is_applied {
            self.due.push_back(Instruction::TakeForApplied);
        } else if self.remote.frozen.is_some() {
            self.due.push_back(Instruction::Thaw { refused: None, is_given_up: false });
        }
        self.due.push_back(Instruction::NewRemoteId);
        self.phase = Phase::Prepare { cut: false };
    }

    pub(super) fn retry(&mut self, now: Duration, cause: Cause) {
        self.summary.failures += 1;
        if matches!(self.remote.staged, Staged::Resumable | Staged::Chunks)
            && self.staged_bytes > self.staged_bytes_best
        {
            self.staged_bytes_best = self.staged_bytes;
            self.futile = 0;
        }
        if self.sent_bytes > self.sent_bytes_best {
            self.sent_bytes_best = self.sent_bytes;
            self.futile = 0;
        }
        self.way.ask();
        self.futile += 1;
        if self.remote.frozen.is_some() && !matches!(&cause, Cause::Server(error) if is_perhaps_of_upload(error.code)) {
            self.unsure_ends += 1;
        }
        let asked = match &cause {
            Cause::Server(error) => Duration::from_millis(u64::from(error.retry_after_ms)),
            _ => Duration::ZERO,
        };
        let until = now + self.jitter.wait(&self.config, self.futile, asked);
        self.phase = if self.futile >= self.config.attempts_max || until > self.config.elapsed_max {
            self.give_up(cause)
        } else {
            self.setback = Some(cause);
            Phase::Wait(until)
        };
    }
}

impl Session {
    /// What follows the last attempt. Where the server fails at an upload each time, it may be the upload's fault, and nothing else would come
    /// through for good: one request without it tells. Not where an attempt ended in another way: its COMMIT may hang, and end well later.
    fn give_up(&mut self, cause: Cause) -> Phase {
        let failures = self.futile;
        match (cause, &self.next) {
            (Cause::Server(error), Next::Sync) if self.remote.frozen.is_some() && self.unsure_ends == 0 => {
                self.next = Next::GiveUp(Why::Failed { failures, error });
                Phase::Prepare { cut: false }
            }
            (_, Next::GiveUp(Why::Failed { failures, error })) => {
                let (failures, cause) = (*failures, Cause::Server(error.clone()));
                Phase::Over(Err(Failure::GaveUp { failures, cause }))
            }
            (cause, _) => Phase::Over(Err(Failure::GaveUp { failures, cause })),
        }
    }

    /// The server has answered a request without the upload at which it fails.
    pub(super) fn on_failed_upload(&mut self, is_applied: bool) {
        let Next::GiveUp(Why::Failed { failures, error }) = &self.next else { return };
        let (failures, error) = (*failures, error.clone());
        if is_applied {
            // The next sync offers it again for its receipt.
            self.phase = Phase::Over(Err(Failure::GaveUp { failures, cause: Cause::Server(error) }));
            return;
        }
        self.futile = 0;
        let ServerError { code, message, .. } = error;
        let message = format!("{failures} attempts failed, and none of them was applied: {message}");
        self.refuse_whole(ServerError { code, retry_after_ms: 0, message });
    }
}

/// Whether the upload itself may be why a server fails, and the attempt is over for good.
fn is_perhaps_of_upload(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Internal)
}

/// The server tells each a time of its own: a long one needs no wider spread.
const ASKED_MORE_MAX: Duration = Duration::from_secs(1);

/// Random waits from a seed (splitmix64).
#[derive(Debug)]
pub(super) struct Jitter(pub(super) u64);

impl Jitter {
    /// How long to wait after this many failures: as long as the server asked and up to an eighth more, a second at most, so that those
    /// that it sent away together don't come back together; else between half of the doubled backoff and all of it.
    fn wait(&mut self, config: &Config, failures: u32, asked: Duration) -> Duration {
        if !asked.is_zero() {
            return asked + (asked / 8).min(ASKED_MORE_MAX).mul_f64(self.fraction());
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
