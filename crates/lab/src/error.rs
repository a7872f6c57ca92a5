//! What keeps an experiment from being run, or ends a campaign.

use std::path::PathBuf;

use crate::harness::Failure;
use crate::reading::SpecError;
use crate::results::ResultsError;

/// What keeps an experiment from being run, or ends a campaign. Runs that were over by then are in the results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{} could not be read", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The experiment is not as it should be; all that is wrong, in the file's order.
    #[error("the experiment can't be used:\n  {}", lines(.0))]
    Spec(Vec<SpecError>),
    /// What was asked for is not possible.
    #[error("{0}")]
    Usage(String),
    /// Somebody has stopped it before anything was run.
    #[error("interrupted before {0}")]
    Interrupted(&'static str),
    /// A target could not be used.
    #[error("{0}")]
    Target(Failure),
    /// A target was there, and is not any more.
    #[error("{0}")]
    Lost(String),
    /// Something of ours is still at a target.
    #[error("{0}")]
    LeftBehind(String),
    /// Results could not be written or read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// What is put in order on the way could not be kept.
    #[error("the temporary database failed; is there room in the folder for temporary files (SQLITE_TMPDIR)?")]
    Temporary(#[source] rusqlite::Error),
    /// An export could not be written.
    #[error("the export could not be written")]
    Write(#[source] std::io::Error),
}

/// Whose matter an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Of what was asked for.
    Usage,
    /// Nobody's: it was stopped.
    Interrupt,
    /// Of a target that is not there, or does not do what it should; or of the disk of the results.
    Target,
    /// Of the lab or its machine.
    Lab,
}

impl Error {
    /// Whose matter it is.
    pub fn fault(&self) -> Fault {
        match self {
            Error::File { .. } | Error::Spec(_) | Error::Usage(_) => Fault::Usage,
            Error::Interrupted(_) => Fault::Interrupt,
            Error::Target(failure) if failure.is_usage => Fault::Usage,
            Error::Target(_) | Error::Lost(_) | Error::LeftBehind(_) => Fault::Target,
            Error::Results(error) if error.is_usage => Fault::Usage,
            Error::Results(error) if error.is_of_a_disk => Fault::Target,
            Error::Results(_) | Error::Write(_) | Error::Temporary(_) => Fault::Lab,
        }
    }
}

fn lines(errors: &[SpecError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
