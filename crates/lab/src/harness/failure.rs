//! Why an operation failed, in classes that can be counted.

use std::fmt;
use std::time::Duration;

/// The class of a failure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// It was refused, or the answer is wrong, by this code: a SQLSTATE, SQLite's name of the error, `HTTP 404`, `checksum`.
    Code(String),
    /// No connection could be made.
    Refused,
    /// It took longer than it may.
    TimeOut,
    /// The connection broke.
    Lost,
    /// Anything else.
    Other,
}

impl Class {
    /// The class of this name.
    pub(crate) fn of(name: &str) -> Class {
        let all = [Class::Refused, Class::TimeOut, Class::Lost, Class::Other];
        all.into_iter().find(|class| class.to_string() == name).unwrap_or_else(|| Class::Code(name.to_owned()))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Code(code) => code,
            Class::Refused => "refused",
            Class::TimeOut => "time-out",
            Class::Lost => "lost",
            Class::Other => "other",
        })
    }
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Failure {
    /// In which class it is counted.
    pub class: Class,
    /// What was said.
    pub detail: String,
    /// Whether the connection is of no more use.
    pub is_broken: bool,
    /// Whether what was asked for is at fault, rather than the target.
    pub is_usage: bool,
}

impl Failure {
    /// A failure that leaves the connection as it was.
    pub fn new(class: Class, detail: impl Into<String>) -> Failure {
        let is_broken = matches!(class, Class::Refused | Class::Lost | Class::TimeOut);
        Failure { class, detail: detail.into(), is_broken, is_usage: false }
    }

    /// A matter of what was asked for.
    pub fn usage(detail: impl Into<String>) -> Failure {
        Failure { is_usage: true, ..Failure::new(Class::Other, detail) }
    }

    /// It took longer than this.
    pub fn time_out(limit: Duration) -> Failure {
        Failure::new(Class::TimeOut, format!("no answer within {limit:?} (load.timeout)"))
    }
}
