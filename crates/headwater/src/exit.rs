//! How a command ends: its exit code, and errors as chains with what mends them.

use std::fmt;

use anyhow::Error;
use headwater_diskfaults::FileFault;
use headwater_protocol::message::Fault;

use crate::output::Output;

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Done = 0,
    /// What was looked for was found: differences, faults, conflicts.
    Found = 1,
    /// The arguments, the configuration or the model can't be used.
    Usage = 2,
    /// A database or server could not be reached, or could not do it now.
    Unreachable = 3,
    /// A damaged file, a defect, or a failure that has no better name.
    Internal = 4,
}

/// A message that says which exit code its error has.
#[derive(Debug)]
struct Marked {
    exit: Exit,
    message: String,
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Marked {}

/// An error in what was asked for or configured.
pub fn usage(message: impl Into<String>) -> Error {
    Error::new(Marked { exit: Exit::Usage, message: message.into() })
}

/// An error in reaching something, or in something that can't be done now.
pub fn unreachable(message: impl Into<String>) -> Error {
    Error::new(Marked { exit: Exit::Unreachable, message: message.into() })
}

/// Says, where something failed, that it is a matter of arguments or configuration. A fault of a disk is none.
pub trait OrUsage<T> {
    /// Adds the message.
    fn or_usage(self, message: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T, E: Into<Error>> OrUsage<T> for Result<T, E> {
    fn or_usage(self, message: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            let fault = error.chain().find_map(|cause| cause.downcast_ref::<FileFault>());
            let exit = fault.map_or(Exit::Usage, of_fault);
            error.context(Marked { exit, message: message() })
        })
    }
}

/// The exit code of an error: as it was marked, or by the kinds of errors in its chain.
pub fn code(error: &Error) -> Exit {
    if let Some(marked) = error.downcast_ref::<Marked>() {
        return marked.exit;
    }
    error.chain().find_map(kind).unwrap_or(Exit::Internal)
}

fn of_fault(fault: &FileFault) -> Exit {
    match fault {
        FileFault::Damaged { .. } => Exit::Internal,
        FileFault::NotADatabase { .. } => Exit::Usage,
        _ => Exit::Unreachable,
    }
}

fn kind(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(fault) = cause.downcast_ref::<FileFault>() {
        return Some(of_fault(fault));
    }
    if let Some(error) = cause.downcast_ref::<headwater_consolidated::Error>() {
        return match error {
            headwater_consolidated::Error::Setup { .. }
            | headwater_consolidated::Error::Misfit { .. }
            | headwater_consolidated::Error::Untracked { .. }
            | headwater_consolidated::Error::Sql { .. }
            | headwater_consolidated::Error::Column { .. }
            | headwater_consolidated::Error::ValueTooLarge { .. } => Some(Exit::Usage),
            error if error.is_retryable() => Some(Exit::Unreachable),
            _ => None,
        };
    }
    if let Some(error) = cause.downcast_ref::<headwater_remote::Error>() {
        return Some(match error {
            headwater_remote::Error::Sqlite { .. }
            | headwater_remote::Error::Damaged { .. }
            | headwater_remote::Error::Malformed(_)
            | headwater_remote::Error::Unexpected { .. } => Exit::Internal,
            error if error.is_retryable() || error.fault() != Fault::Remote => Exit::Unreachable,
            _ => Exit::Usage,
        });
    }
    if let Some(error) = cause.downcast_ref::<headwater_cursor::Error>() {
        return Some(match error {
            headwater_cursor::Error::Misled(_) => Exit::Internal,
            error if error.is_retryable() || error.code() == "idle" => Exit::Unreachable,
            _ => Exit::Usage,
        });
    }
    if let Some(error) = cause.downcast_ref::<headwater_idxbuild::Error>() {
        return match error.fault() {
            headwater_idxbuild::Fault::Request => Some(Exit::Usage),
            headwater_idxbuild::Fault::Environment => Some(Exit::Unreachable),
            headwater_idxbuild::Fault::Internal => None,
        };
    }
    if let Some(error) = cause.downcast_ref::<headwater_lab::Error>() {
        return match error.fault() {
            headwater_lab::Fault::Usage => Some(Exit::Usage),
            headwater_lab::Fault::Target => Some(Exit::Unreachable),
            headwater_lab::Fault::Interrupt => Some(Exit::Found),
            headwater_lab::Fault::Lab => None,
        };
    }
    if let Some(error) = cause.downcast_ref::<tokio_postgres::Error>() {
        return error.as_db_error().is_none().then_some(Exit::Unreachable);
    }
    None
}

/// Tells an error, and gives its exit code. A reader who closed the pipe has seen enough.
pub fn tell(error: &Error, output: &Output) -> Exit {
    let is_closed = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(is_closed) {
        return Exit::Done;
    }
    let exit = code(error);
    output.error(&chain(error), exit);
    exit
}

/// The texts of an error and its causes; a cause that says what stands before it already is left out.
fn chain(error: &Error) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut cause = Some(error.as_ref() as &dyn std::error::Error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !texts.iter().any(|before| before.contains(&text)) {
            texts.push(text);
        }
        cause = error.source();
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_chains() {
        let setup = headwater_consolidated::Error::Setup { what: "w".into(), mend: "m".into() };
        let retry = headwater_consolidated::Error::Retry { detail: "d".into(), broken: true };
        assert_eq!(code(&usage("x").context("y")), Exit::Usage);
        assert_eq!(code(&Error::new(setup).context("opening")), Exit::Usage);
        assert_eq!(code(&Error::new(retry).context("opening")), Exit::Unreachable);
        assert_eq!(code(&anyhow::anyhow!("a defect")), Exit::Internal);
        let marked: anyhow::Result<()> = Err(std::io::Error::other("no")).or_usage(|| "reading it".into());
        assert_eq!(code(&marked.expect_err("an error")), Exit::Usage);
    }

    #[test]
    fn a_fault_of_a_disk_is_no_usage() {
        let fault = || FileFault::Full { path: "x.db".into() };
        let marked: anyhow::Result<()> = Err(Error::new(fault())).or_usage(|| "opening it".into());
        assert_eq!(code(&marked.expect_err("an error")), Exit::Unreachable);
        assert_eq!(code(&Error::new(fault()).context("reading it")), Exit::Unreachable);
        let damaged = FileFault::Damaged { path: "x.db".into(), what: "page 2".into() };
        assert_eq!(code(&Error::new(damaged)), Exit::Internal);
    }

    #[test]
    fn a_chain_says_nothing_twice() {
        let error = anyhow::anyhow!("the disk is full").context("writing it: the disk is full").context("init");
        assert_eq!(chain(&error), ["init", "writing it: the disk is full"]);
    }
}
