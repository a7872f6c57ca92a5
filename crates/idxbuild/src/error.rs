//! What can go wrong, and what holds then: whatever the error, the file is as it was.

use std::path::{Path, PathBuf};

use headwater_diskfaults::FileFault;

/// Why a rebuild did not take place. The file is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file, or it can't be opened.
    #[error("{} can't be opened: name a SQLite database that exists and may be written", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// SQLite's own reason.
        source: rusqlite::Error,
    },
    /// The file has no page: there is nothing in it.
    #[error("{} is empty: it has no tables, and so no indexes", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Other programs, or other connections of this one, have the database open or locked.
    #[error("{} is in use: close the programs that have it open and try again", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// SQLite's own reason.
        source: rusqlite::Error,
    },
    /// Indexes were to be built within a transaction, and none was open.
    #[error("no transaction is open: begin one, and build its indexes within it")]
    NoTransaction,
    /// SQLite refused.
    #[error("SQLite refused while {doing}")]
    Sqlite {
        /// What was being done.
        doing: &'static str,
        /// SQLite's own reason.
        source: rusqlite::Error,
    },
    /// The file has no room, or its disk has none.
    #[error(
        "the database's disk is full (while {doing}): make room for the indexes and the rollback journal and try again"
    )]
    DiskFull {
        /// What was being done.
        doing: &'static str,
    },
    /// The system does not let the file, its journal or SQLite's temporary files be written.
    #[error(
        "the system refused a write of SQLite's (while {doing}): see whether a limit on the size of files (`ulimit -f`), a quota or a \
         failing disk is in the way, and try again"
    )]
    Unwritable {
        /// What was being done.
        doing: &'static str,
        /// SQLite's own words.
        source: rusqlite::Error,
    },
    /// The disk failed, or the file can't be written; nothing shows that the database is damaged.
    #[error(transparent)]
    File(FileFault),
    /// The database is damaged.
    #[error("the database is damaged: page {page}: {what}; recover it first (`.recover` of the sqlite3 program)")]
    Corrupt {
        /// The page where it was seen.
        page: u32,
        /// What is wrong with it.
        what: String,
    },
    /// SQLite finds the database damaged.
    #[error(
        "the database is damaged, SQLite says (while {doing}); recover it first (`.recover` of the sqlite3 program)"
    )]
    Malformed {
        /// What was being done.
        doing: &'static str,
        /// SQLite's own words.
        source: rusqlite::Error,
    },
    /// A UNIQUE index can't be: rows have the same key.
    #[error("index {index:?} is UNIQUE, but {}: {}", several(*count, keys.len()), keys.join("; "))]
    NotUnique {
        /// The index.
        index: String,
        /// How many keys stand in several rows.
        count: u64,
        /// The first of them in the index's order, as SQL, each with its number of rows and the first and the last of their rowids.
        keys: Vec<String>,
    },
    /// An index was named that the database does not have.
    #[error("there is no index {name:?}; there are: {}", there.join(", "))]
    NoSuchIndex {
        /// The name.
        name: String,
        /// The indexes of the database.
        there: Vec<String>,
    },
    /// The SQL given is not one CREATE INDEX.
    #[error("{sql:?} creates no index: give one CREATE INDEX statement on a table of the main database")]
    NotAnIndex {
        /// What was given.
        sql: String,
        /// SQLite's own reason, where it has one.
        source: Option<rusqlite::Error>,
    },
    /// An index needs what only the application's own SQLite has.
    #[error("{sql:?} can only be done by the application: SQLite here says {what:?}")]
    OfApplication {
        /// What was given.
        sql: String,
        /// Which collation or function is missing, as SQLite says it.
        what: String,
    },
    /// The places for temporary files are full.
    #[error(
        "no room for {bytes} bytes more in the temporary directories ({places}): name further ones (--temp-dir) or allow more --memory"
    )]
    NoTemporarySpace {
        /// How much was to be written.
        bytes: u64,
        /// The directories, with what each of them holds and may hold.
        places: String,
    },
    /// A temporary file can't be made, written or read.
    #[error("a temporary file in {} failed{}", path.display(), mend(source))]
    Temporary {
        /// The directory.
        path: PathBuf,
        /// The system's own reason.
        source: std::io::Error,
    },
    /// An option's value is of no use.
    #[error("{option} is {actual}: {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        actual: String,
        /// What it may be.
        expected: &'static str,
    },
    /// What was built is not what the table holds. Nothing of it is kept; please report it.
    #[error("index {index:?} as built does not agree with its table ({what}); nothing was changed: please report this")]
    Unverified {
        /// The index.
        index: String,
        /// What differs.
        what: String,
    },
    /// SQLite's own integrity check finds fault.
    #[error("integrity_check after the rebuild says: {}; nothing was changed", lines.join("; "))]
    Integrity {
        /// What it says.
        lines: Vec<String>,
    },
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What was asked for, or the database's contents: trying again does not help.
    Request,
    /// Others have the file, or a disk is full: trying again helps when that has been mended.
    Environment,
    /// The file is damaged, or there is a defect here.
    Internal,
}

impl Error {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Error::Open { .. }
            | Error::Empty { .. }
            | Error::NotUnique { .. }
            | Error::NoSuchIndex { .. }
            | Error::NotAnIndex { .. }
            | Error::OfApplication { .. }
            | Error::NoTransaction
            | Error::Option { .. } => Fault::Request,
            Error::InUse { .. }
            | Error::DiskFull { .. }
            | Error::Unwritable { .. }
            | Error::File(_)
            | Error::NoTemporarySpace { .. }
            | Error::Temporary { .. } => Fault::Environment,
            Error::Sqlite { .. }
            | Error::Corrupt { .. }
            | Error::Malformed { .. }
            | Error::Unverified { .. }
            | Error::Integrity { .. } => Fault::Internal,
        }
    }
}

impl Error {
    /// The same error once it is known what it says of the file, which is opened once more where SQLite's code alone does not say whether it
    /// is damaged.
    pub(crate) fn judged(self, path: &Path) -> Error {
        let (Error::Open { source, .. } | Error::Sqlite { source, .. } | Error::Malformed { source, .. }) = &self
        else {
            return self;
        };
        match FileFault::of(path, source) {
            Some(fault) if !fault.is_of_the_file() => Error::File(fault),
            _ => self,
        }
    }
}

/// Stops a rebuild: for good, or until one index has been left to SQLite.
#[derive(Debug)]
pub(crate) enum Halt {
    /// For good.
    Error(Error),
    /// The index with this place among the jobs holds what only SQLite can judge.
    Doubt {
        /// The index's name.
        index: String,
        /// What it is.
        why: String,
    },
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Error(error)
    }
}

/// What mends a temporary file, where the system's own reason does not say.
fn mend(source: &std::io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(source) {
        Some(Errno::MFILE | Errno::NFILE) => {
            ": allow more open files (`ulimit -n`), or take more --memory or a larger --merge-block: fewer are needed then"
        }
        Some(Errno::FBIG) => ": allow larger files (`ulimit -f`), or more --memory",
        _ => "",
    }
}

fn several(count: u64, named: usize) -> String {
    match count {
        1 => "a key stands in several rows".to_owned(),
        count if count > named as u64 => format!("{count} keys stand in several rows, the first {named} of them"),
        count => format!("{count} keys stand in several rows"),
    }
}

/// A damaged page.
pub(crate) fn corrupt(page: u32, what: impl Into<String>) -> Error {
    Error::Corrupt { page, what: what.into() }
}

/// SQLite's code of an error, where it points to a place in SQL too.
pub(crate) fn code(error: &rusqlite::Error) -> Option<rusqlite::ErrorCode> {
    match error {
        rusqlite::Error::SqlInputError { error, .. } => Some(error.code),
        error => error.sqlite_error_code(),
    }
}

/// What SQLite says, without the SQL that it points to.
pub(crate) fn words(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        error => error.to_string(),
    }
}

/// What an index can't be created for here, if that is a collation or a function.
pub(crate) fn of_application(sql: &str, error: &rusqlite::Error) -> Option<Error> {
    let what = words(error);
    let lacks = ["no such collation sequence: ", "no such function: ", "unknown function: "];
    lacks.iter().any(|lacks| what.starts_with(lacks)).then(|| Error::OfApplication { sql: sql.to_owned(), what })
}

/// SQLite's error with what was being done.
pub(crate) fn sqlite(doing: &'static str) -> impl Fn(rusqlite::Error) -> Error {
    move |source| match code(&source) {
        Some(rusqlite::ErrorCode::DiskFull) => Error::DiskFull { doing },
        Some(rusqlite::ErrorCode::DatabaseCorrupt) => Error::Malformed { doing, source },
        _ if source.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_IOERR_WRITE) => {
            Error::Unwritable { doing, source }
        }
        _ => Error::Sqlite { doing, source },
    }
}
