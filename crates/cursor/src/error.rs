//! What goes wrong, and whose fault it is.

use std::io;
use std::sync::Arc;

use headwater_protocol::DecodeError;
use headwater_protocol::cursor::{Failed, Misled};
use thiserror::Error;

/// Why there are no rows, or no more.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// An address or a file that can't be used: the caller's own fault.
    #[error("{0}")]
    Configuration(String),
    /// The server could not be reached, or the connection broke.
    #[error("the connection to {server} failed")]
    Network {
        /// Its address.
        server: String,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
    /// Whoever answered has refused the connection, or is no server of cursors.
    #[error("{url} answered {status}: {message}")]
    Refused {
        /// What was asked.
        url: String,
        /// The status of its answer.
        status: u16,
        /// A stable name of the reason; `http` where none was told.
        code: String,
        /// In its own words.
        message: String,
    },
    /// The server has ended the cursor, or the connection, before all rows had come.
    #[error("{message} ({code})")]
    Failed {
        /// A stable name of the reason.
        code: String,
        /// In the server's words.
        message: String,
        /// When to come again, where that would help.
        retry_after_ms: Option<u64>,
    },
    /// The server has sent what it must not: a defect, of one side or the other.
    #[error(transparent)]
    Misled(#[from] Misled),
    /// A question that no server takes.
    #[error("the question can't be sent: {0}")]
    Question(DecodeError),
    /// A row that is not kept any more, or has not been fetched yet.
    #[error("row {row} is not kept: rows {first} to {last} are, counted from 0; keep more by Options::kept_bytes")]
    NotKept {
        /// The row.
        row: u64,
        /// The first that is kept.
        first: u64,
        /// The row that would be fetched next.
        last: u64,
    },
}

impl Error {
    /// A stable name.
    pub fn code(&self) -> &str {
        match self {
            Error::Configuration(_) => "configuration",
            Error::Network { .. } => "network",
            Error::Refused { code, .. } | Error::Failed { code, .. } => code,
            Error::Misled(_) => "misled",
            Error::Question(_) => "question",
            Error::NotKept { .. } => "not_kept",
        }
    }

    /// Whether the same may go well later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Network { .. } => true,
            Error::Refused { status, .. } => *status >= 500,
            Error::Failed { retry_after_ms, .. } => retry_after_ms.is_some(),
            Error::Configuration(_) | Error::Misled(_) | Error::Question(_) | Error::NotKept { .. } => false,
        }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        let Failed { code, message, retry_after_ms, .. } = failed;
        Error::Failed { code, message, retry_after_ms: (retry_after_ms > 0).then_some(retry_after_ms) }
    }
}
