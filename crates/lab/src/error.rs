//! What keeps an experiment from being run.

use std::path::PathBuf;

use crate::reading::SpecError;

/// What keeps an experiment from being run.
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
}

impl Error {
    /// Whether what was asked for is at fault, rather than a database or the lab itself.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::File { .. } | Error::Spec(_) => true,
        }
    }
}

fn lines(errors: &[SpecError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
