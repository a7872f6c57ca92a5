//! What can go wrong at the consolidated database, sorted by what is to be done about it.

use headwater_protocol::DecodeError;
use headwater_protocol::message::Refusal;
use thiserror::Error;

/// A failure at the consolidated database.
#[derive(Debug, Error)]
pub enum Error {
    /// The row itself was refused: it is to be set aside. The transaction must go back to its savepoint. `detail` is the
    /// database's own text, for the server's log alone.
    #[error("row refused ({}): {detail}", refusal.code.name())]
    Refused {
        /// What the remote may know.
        refusal: Refusal,
        /// What only the log may.
        detail: String,
    },
    /// Nothing is wrong with the request: deadlock, serialization, lock or statement time-out, lost connection, full disk. The
    /// transaction is rolled back and may be tried again; with `broken` the connection is of no more use.
    #[error("the consolidated database could not do it now: {detail}")]
    Retry {
        /// What the database said.
        detail: String,
        /// Whether the connection is lost.
        broken: bool,
    },
    /// It may pass, or the row may be why: application code fails in ways that look like circumstances. It is to be tried again as
    /// [`Error::Retry`] is; where it returns, [`apply_isolating`](crate::upload::apply_isolating) finds the row and refuses it.
    #[error("the consolidated database failed, perhaps at a row: {detail}")]
    InDoubt {
        /// What the remote may know, if it is the row.
        refusal: Refusal,
        /// What only the log may.
        detail: String,
    },
    /// Another sync of this remote holds its row.
    #[error("a sync of this remote is running")]
    RemoteBusy,
    /// The database was restarted, restored or replaced since this sync was greeted. Nothing of what was read is of use; the sync begins again.
    #[error("the database was restarted, restored or replaced during the sync")]
    OtherLife,
    /// The database does not have what Headwater needs; `mend` says what to run.
    #[error("{what}: {mend}")]
    Setup {
        /// What is missing.
        what: String,
        /// The command that mends it.
        mend: String,
    },
    /// A table of the model is not in the database as the model has it: the database is to be fixed, not rows. `mend` says how.
    #[error("table {table:?}: {what}: {mend}")]
    Misfit {
        /// The table, as the model names it.
        table: String,
        /// What is wrong.
        what: String,
        /// What fixes it.
        mend: String,
    },
    /// Changes of a table are not tracked as the model needs it, so remotes would miss some; `mend` says what to run.
    #[error("table {table:?}: {what}: {mend}")]
    Untracked {
        /// The table, as the model names it.
        table: String,
        /// What is wrong.
        what: String,
        /// The command that mends it.
        mend: String,
    },
    /// Changes of the upload are refused, and the model wants all or nothing. Nothing of it was applied; its number is not used.
    #[error("the upload is refused whole: {message}")]
    UploadRefused {
        /// What the remote may know.
        message: String,
    },
    /// The upload's bytes are not what the protocol says.
    #[error("the upload can't be read")]
    Decode(#[from] DecodeError),
    /// Spooling failed (disk full, say).
    #[error("the spool failed")]
    Spool(#[from] std::io::Error),
    /// SQL of a query of the application's own, which the database does not take.
    #[error("{detail}")]
    Sql {
        /// What the database said.
        detail: String,
        /// In which line of it, from 0, where the database says that.
        line: Option<usize>,
        /// Whether the statement itself is wrong (a column that there is not, say), whatever values it is given and rows it meets.
        is_statement: bool,
    },
    /// A column of a query's result has a type without a form here; `detail` says which, with the cast that mends it, and nothing else.
    #[error("{detail}")]
    Column {
        /// The column and its type.
        detail: String,
    },
    /// A value that a query is given, of which the database has none.
    #[error("{detail}")]
    Parameter {
        /// Which, and what there is.
        detail: String,
    },
    /// A query reads or makes a value with more bytes than its connection allows.
    #[error("a value has more than {bytes_max} bytes")]
    ValueTooLarge {
        /// The most that it may have.
        bytes_max: u64,
    },
    /// Anything else: a defect of ours, or SQL of the user's (a membership query, say) that fails.
    #[error("{context}: {detail}")]
    Database {
        /// What was being done.
        context: String,
        /// What the database said.
        detail: String,
    },
}

impl Error {
    /// Why the row was refused, if that is what happened.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Whether the same may succeed if it is tried again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Retry { .. } | Error::InDoubt { .. } | Error::RemoteBusy | Error::OtherLife)
    }

    /// Whether the connection is of no more use.
    pub fn is_broken(&self) -> bool {
        matches!(self, Error::Retry { broken: true, .. })
    }
}
