//! What can go wrong at a remote, whose fault it is, and whether to try again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headwater_diskfaults::FileFault;
use headwater_protocol::DecodeError;
use headwater_protocol::client::{Cause, Failure};
use headwater_protocol::message::{ErrorCode, Fault};

/// Why an operation on a remote failed. Whatever the error, the file is as it was before the sync, after its upload, or after both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// SQLite refused.
    #[error("SQLite refused while {doing}")]
    Sqlite {
        /// What was being done.
        doing: &'static str,
        /// SQLite's own reason.
        source: rusqlite::Error,
    },
    /// Another program keeps the file locked, for longer than is waited.
    #[error(
        "the file stayed locked by another program while {doing}: end its transaction, or its exclusive locking mode, and try again"
    )]
    Busy {
        /// What was being done.
        doing: &'static str,
    },
    /// Another sync of the same file is running.
    #[error("another sync of {} is running: let it end first", path.display())]
    Running {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full.
    #[error("the disk is full (while {doing}); nothing is lost: make room and try again")]
    DiskFull {
        /// What was being done.
        doing: &'static str,
    },
    /// The disk failed, or does not let the file be written; nothing shows that the file is damaged.
    #[error("{fault} (while {doing})")]
    File {
        /// What was being done.
        doing: &'static str,
        /// What is known of the file.
        fault: FileFault,
    },
    /// A file beside the remote's could not be read or written.
    #[error("{} could not be used while {doing}; nothing is lost: try again", path.display())]
    Beside {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A trigger of the application's rolled our transaction back.
    #[error(
        "a trigger of the application's ended the whole transaction when a row of table {table:?} was written; nothing of it took place: \
         have it say RAISE(ABORT) instead of RAISE(ROLLBACK) (or of OR ROLLBACK), or drop it, and try again"
    )]
    RolledBack {
        /// The table that was written to.
        table: String,
    },
    /// There is no such file.
    #[error("there is no file {path}; `headwater remote create` makes a remote")]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// The file is no remote.
    #[error("{path} is no remote; make one with `headwater remote create`")]
    NotARemote {
        /// The file.
        path: PathBuf,
    },
    /// The file is a remote already.
    #[error("{path} is a remote already; choose another file, or go on with `headwater remote sync`")]
    AlreadyARemote {
        /// The file.
        path: PathBuf,
    },
    /// A table of the model exists already.
    #[error(
        "{path} already has a table {table:?}: begin with a file without it, or take the table with its rows (`--adopt`)"
    )]
    TableExists {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
    },
    /// The file was made by another version of Headwater.
    #[error(
        "the file has layout {actual}, this version of Headwater reads layout {expected}: sync it once more with the version that made it, \
         then make a new remote"
    )]
    Layout {
        /// The file's.
        actual: i64,
        /// Ours.
        expected: i64,
    },
    /// What Headwater keeps in the file is not as it left it.
    #[error("the file is damaged: {what}")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// The model can't be used.
    #[error("the model is not usable: {0}")]
    Model(String),
    /// The server sent what the format doesn't allow.
    #[error("the server's answer is malformed")]
    Malformed(#[from] DecodeError),
    /// The server's answer does not fit this remote.
    #[error("the server's answer does not fit this remote: {what}")]
    Unexpected {
        /// What does not fit.
        what: String,
    },
    /// The sync came to nothing, for a reason that lies at the server or on the way.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The server can't be reached, or the connection broke.
    #[error("no whole answer from {server}; nothing is lost: try again")]
    Network {
        /// The server.
        server: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server answered with an HTTP status that is none of ours.
    #[error("{url} answered with HTTP status {status}: {text}")]
    Http {
        /// What was asked.
        url: String,
        /// The status.
        status: u16,
        /// The beginning of what came with it.
        text: String,
    },
    /// The server's address or the certificates can't be used.
    #[error("{what}")]
    Configuration {
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The caller asked to stop.
    #[error("the sync was cancelled")]
    Cancelled,
    /// The test asked for a crash here.
    #[cfg(test)]
    #[error("crash at step {0}")]
    Crash(&'static str),
}

impl Error {
    /// The stable name, for logs and `--json`.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Sqlite { .. } => "sqlite",
            Error::Busy { .. } => "busy",
            Error::Running { .. } => "running",
            Error::DiskFull { .. } => "disk_full",
            Error::File { fault, .. } => fault.code(),
            Error::Beside { .. } => "disk_failed",
            Error::RolledBack { .. } => "rolled_back",
            Error::NoFile { .. } => "no_file",
            Error::NotARemote { .. } => "not_a_remote",
            Error::AlreadyARemote { .. } => "already_a_remote",
            Error::TableExists { .. } => "table_exists",
            Error::Layout { .. } => "layout",
            Error::Damaged { .. } => "damaged",
            Error::Model(_) => "model",
            Error::Malformed(_) => "malformed_answer",
            Error::Unexpected { .. } => "unexpected_answer",
            Error::Failed(failure) => failure_code(failure),
            Error::Network { .. } => "network",
            Error::Http { .. } => "http",
            Error::Configuration { .. } => "configuration",
            Error::Cancelled => "cancelled",
            #[cfg(test)]
            Error::Crash(_) => "crash",
        }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Error::Malformed(_) | Error::Unexpected { .. } => Fault::Server,
            Error::Http { status, .. } if *status >= 500 => Fault::Server,
            Error::Failed(failure) => failure.fault(),
            Error::Network { .. }
            | Error::Busy { .. }
            | Error::Running { .. }
            | Error::DiskFull { .. }
            | Error::File { .. }
            | Error::Beside { .. }
            | Error::Cancelled => Fault::Circumstance,
            _ => Fault::Remote,
        }
    }

    /// Whether the same sync may succeed later without anybody's doing.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Failed(failure) => failure.is_retryable(),
            Error::Http { status, .. } => matches!(status, 408 | 429 | 502..=504),
            Error::File { fault, .. } => matches!(fault, FileFault::Passing { .. }),
            Error::Network { .. }
            | Error::Busy { .. }
            | Error::Running { .. }
            | Error::Beside { .. }
            | Error::Malformed(_) => true,
            _ => false,
        }
    }

    /// When the server wants the remote back; `None`: the remote's own choice.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Failed(Failure::GaveUp { cause: Cause::Server(error), .. }) if error.retry_after_ms > 0 => {
                Some(Duration::from_millis(error.retry_after_ms.into()))
            }
            _ => None,
        }
    }

    pub(crate) fn of_sqlite(doing: &'static str, source: rusqlite::Error) -> Error {
        match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => Error::Busy { doing },
            _ if headwater_diskfaults::is_full(&source) => Error::DiskFull { doing },
            _ => Error::Sqlite { doing, source },
        }
    }

    /// An error of the system's at a file that is not read by SQLite: the remote's own, or one beside it.
    pub(crate) fn of_io(doing: &'static str, path: &Path, source: std::io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::DiskFull { doing },
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                Error::File { doing, fault: FileFault::ReadOnly { path } }
            }
            _ => Error::Beside { doing, path, source },
        }
    }

    /// The same error once it is known what it says of the remote's file, which is opened once more where SQLite's code alone does not say
    /// whether the file is damaged. To be asked where no transaction is open.
    pub(crate) fn judged(self, path: &Path) -> Error {
        let Error::Sqlite { doing, source } = self else { return self };
        match FileFault::of_new(path, &source) {
            None => Error::Sqlite { doing, source },
            Some(FileFault::Full { .. }) => Error::DiskFull { doing },
            Some(FileFault::Damaged { what, .. }) => Error::Damaged { what },
            Some(FileFault::NotADatabase { .. }) => {
                Error::Configuration { what: format!("{} is not a SQLite file: choose another", path.display()) }
            }
            Some(fault) => Error::File { doing, fault },
        }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Error {
        Error::Damaged { what: what.into() }
    }
}

fn failure_code(failure: &Failure) -> &'static str {
    match failure {
        Failure::Refused(error) | Failure::GaveUp { cause: Cause::Server(error), .. } => error.code.name(),
        Failure::GaveUp { cause: Cause::Answer(_) | Cause::Unreadable, .. } => "malformed_answer",
        Failure::GaveUp { cause: Cause::Connection(_) | Cause::Silent, .. } => "network",
        Failure::GaveUp { cause: Cause::Unanswered, .. } => ErrorCode::Timeout.name(),
    }
}

/// Says what was being done when SQLite refused.
pub(crate) trait While<T> {
    fn while_doing(self, doing: &'static str) -> Result<T, Error>;
}

impl<T> While<T> for rusqlite::Result<T> {
    fn while_doing(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::of_sqlite(doing, source))
    }
}
