//! How a sync ended.

use std::ops::RangeInclusive;

use thiserror::Error;

use super::AnswerError;
use crate::message::{ErrorCode, Fault, Outcome, Receipt, ServerError};

/// What a sync did, as far as the session sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Requests sent.
    pub requests: u32,
    /// Attempts that failed and were repeated.
    pub failures: u32,
    /// Uploads whose receipts were applied.
    pub uploads: u64,
    /// Changes in them.
    pub changes: u64,
    /// Changes that met a conflict.
    pub conflicts: u64,
    /// Changes that were refused and are now set aside.
    pub refused: u64,
    /// Why an upload was refused whole, or is not to be had whole: its changes are pending again.
    pub upload_refused: Option<ServerError>,
    /// Downloads applied.
    pub downloads: u32,
    /// Bytes of answers received.
    pub bytes_in: u64,
    /// Whether the remote got a new remote ID, its file or the database being a copy or an old backup.
    pub new_remote_id: bool,
    /// Whether a new incarnation made the remote start afresh.
    pub restarted: bool,
    /// Numbers of uploads that the consolidated database no longer has.
    pub lost: Option<RangeInclusive<u64>>,
}

impl Summary {
    pub(super) fn count(&mut self, receipt: &Receipt) {
        self.uploads += 1;
        self.changes += receipt.changes;
        for (_, outcome) in &receipt.outcomes {
            match outcome {
                Outcome::Conflict(_) => self.conflicts += 1,
                Outcome::Refused(_) => self.refused += 1,
            }
        }
    }
}

/// Why a sync did not come to its end. Nothing is lost: the remote is as it was before the sync, or after its upload, and pending
/// changes stay pending.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The server refused for a reason that trying again won't mend.
    #[error("the server refused ({}): {}", .0.code.name(), .0.message)]
    Refused(ServerError),
    /// The attempts or the time that the configuration allows are spent.
    #[error("gave up after {failures} failed attempts")]
    GaveUp {
        /// How many attempts failed in a row.
        failures: u32,
        /// Why the last one did.
        #[source]
        cause: Cause,
    },
}

/// Why one attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// The server said so.
    #[error("the server answered {}: {}", .0.code.name(), .0.message)]
    Server(ServerError),
    /// The answer was cut or can't be read.
    #[error("the answer can't be used")]
    Answer(#[source] AnswerError),
    /// The connection failed, in the shell's words.
    #[error("connection: {0}")]
    Connection(String),
    /// Nothing came for longer than [`super::Config::idle_max`], or nothing but heartbeats for longer than
    /// [`super::Config::patience_max`].
    #[error("the server fell silent")]
    Silent,
    /// Nothing but heartbeats came until [`super::Config::answer_max`].
    #[error("the server had not answered when the time was up; the next sync finds out what became of this one")]
    Unanswered,
    /// The staged download came whole, but can't be read.
    #[error("the download can't be read")]
    Unreadable,
}

impl Failure {
    /// The code to report: the server's, if it gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Failure::Refused(error) | Failure::GaveUp { cause: Cause::Server(error), .. } => Some(error.code),
            Failure::GaveUp { .. } => None,
        }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Failure::GaveUp { cause: Cause::Unreadable, .. } => Fault::Server,
            _ => self.code().map_or(Fault::Circumstance, ErrorCode::fault),
        }
    }

    /// Whether the same sync may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Failure::GaveUp { .. })
    }
}

/// What an HTTP status says when the answer is not in this protocol: a proxy's, say, or that of a server that judged the request's
/// head. `retry_after_s` is the header of that name.
pub fn status_error(status: u16, retry_after_s: Option<u32>) -> ServerError {
    let code = match status {
        401 => ErrorCode::Unauthenticated,
        403 => ErrorCode::Forbidden,
        413 => ErrorCode::TooLarge,
        408 | 504 => ErrorCode::Timeout,
        410 => ErrorCode::Gone,
        425 | 429 | 502 | 503 => ErrorCode::Overloaded,
        500..=599 => ErrorCode::Internal,
        _ => ErrorCode::Malformed,
    };
    let message = match code {
        ErrorCode::TooLarge => format!(
            "HTTP status {status}: a proxy on the way takes no body of this size; raise its limit (nginx: client_max_body_size)"
        ),
        ErrorCode::Gone => format!("HTTP status {status}: the server has it no more"),
        _ => format!("HTTP status {status}, expected 200: is this the address of a Headwater server?"),
    };
    ServerError { code, retry_after_ms: retry_after_s.unwrap_or(0).saturating_mul(1000), message }
}
