//! What is wrong with a model file, and where.

use thiserror::Error;

/// One thing that is wrong with a model file.
///
/// Its text is one line: `flights.toml:12:7: unknown key "conflic" in table "flights", expected ...; did you mean "conflict"?`
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: {found}, expected {expected}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct ModelError {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// What was found.
    pub found: String,
    /// What is expected there.
    pub expected: String,
    /// What probably mends it.
    pub hint: Option<String>,
}
