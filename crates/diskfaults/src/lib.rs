//! What a failed operation on a SQLite file says of the disk and of the file: one classifier for every program that opens one.
//!
//! SQLite's code alone does not say whether a file is damaged. A read that fails with EIO is `SQLITE_CORRUPT` ("malformed"), and one of the
//! first page may be `SQLITE_NOTADB`. So after `CORRUPT`, `NOTADB` and `IOERR` the file is opened once more:
//!
//! ```text
//! CORRUPT, NOTADB, IOERR, CANTOPEN ──> open again: header, schema, beginning of each hw_ table
//!                                        │ CORRUPT or NOTADB: integrity_check too
//!                                        ├─ sound ─────────────────────────────> Passing
//!                                        ├─ a byte of it can't be read now ────> Unchecked
//!                                        └─ all can be read, and it is wrong ──> Damaged, NotADatabase
//! FULL ──> Full     READONLY, CANTOPEN without the right to write ──> ReadOnly     any other code ──> no fault of the disk
//! ```
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use headwater_diskfaults::FileFault;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("notes.db");
//! std::fs::write(&path, "a text that is no database, and longer than the header of one: a hundred bytes are read of it ............")?;
//! let error = rusqlite::Connection::open(&path)?.execute_batch("SELECT 1 FROM sqlite_schema").expect_err("no database");
//! assert!(matches!(FileFault::of(&path, &error), Some(FileFault::NotADatabase { .. })));
//! # Ok(()) }
//! ```
//!
//! *Caveats.* The second look is SQLite's own, on a connection of its own: closing any other handle of the file would drop the locks that
//! this process has on it. After `CORRUPT` and `NOTADB` it reads the whole file.

mod leftovers;
mod look;

use std::path::{Path, PathBuf};

use rusqlite::{Error, ErrorCode, ffi};

pub use leftovers::{Leftover, leftovers};
use look::{Look, look};

/// What is wrong with a file or its disk.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// The disk has no room, or takes no more files.
    #[error("the disk of {} is full, or takes no more files; nothing is lost: make room and try again", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The file, its folder or the mount can't be written.
    #[error(
        "{} can't be written: the file, its folder or the mount is read-only for this user; nothing is lost: make it writable and try again",
        path.display()
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The disk failed, and the file is sound.
    #[error(
        "the disk failed for a moment ({said}); {} was opened once more and is sound, and nothing is lost: try again. If it fails again, \
         check for a quota, a limit on the size of files (`ulimit -f`) or a failing disk",
        path.display()
    )]
    Passing {
        /// The file.
        path: PathBuf,
        /// SQLite's words.
        said: String,
    },
    /// The disk failed, and the file could not be read as a whole afterwards: nobody knows whether it is sound.
    #[error(
        "the disk failed ({said}), and {} could not be checked afterwards ({why}); keep the file, with those beside it, and try again \
         when the disk works",
        path.display()
    )]
    Unchecked {
        /// The file.
        path: PathBuf,
        /// SQLite's words.
        said: String,
        /// Why it could not be checked.
        why: String,
    },
    /// The whole file can be read, and it is damaged.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite finds wrong.
        what: String,
    },
    /// The whole file can be read, and it is not SQLite's.
    #[error("{} is not a SQLite file", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
}

impl FileFault {
    /// What an error says of this file, which is opened once more where that has to be known; `None`: the error is not the disk's.
    pub fn of(path: &Path, error: &Error) -> Option<FileFault> {
        let cause = cause(error)?;
        let owned = path.to_owned();
        let says_damage = match cause.code {
            _ if is_full(error) => return Some(FileFault::Full { path: owned }),
            ErrorCode::ReadOnly if cause.extended_code != ffi::SQLITE_READONLY_DBMOVED => {
                return Some(FileFault::ReadOnly { path: owned });
            }
            ErrorCode::CannotOpen | ErrorCode::SystemIoFailure if takes_no_more_files(folder_of(path)) => {
                return Some(FileFault::Full { path: owned });
            }
            ErrorCode::CannotOpen if !path.is_file() => return None,
            ErrorCode::CannotOpen if !is_writable(path) => return Some(FileFault::ReadOnly { path: owned }),
            ErrorCode::CannotOpen | ErrorCode::SystemIoFailure => false,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => true,
            _ => return None,
        };
        let said = error.to_string();
        Some(match look(path, says_damage) {
            Look::Sound => FileFault::Passing { path: owned, said },
            Look::Unreadable(why) => FileFault::Unchecked { path: owned, said, why },
            Look::Damaged(what) => FileFault::Damaged { path: owned, what },
            Look::NotADatabase => FileFault::NotADatabase { path: owned },
        })
    }

    /// The same of a file that is made where there is none.
    pub fn of_new(path: &Path, error: &Error) -> Option<FileFault> {
        let is_not_made = cause(error).is_some_and(|cause| cause.code == ErrorCode::CannotOpen)
            && path.symlink_metadata().is_err()
            && folder_of(path).is_dir();
        if !is_not_made {
            return FileFault::of(path, error);
        }
        let (path, said) = (path.to_owned(), error.to_string());
        Some(if takes_no_more_files(folder_of(&path)) {
            FileFault::Full { path }
        } else if may_write(folder_of(&path)) {
            FileFault::Unchecked { path, said, why: "it could not be made".to_owned() }
        } else {
            FileFault::ReadOnly { path }
        })
    }

    /// The stable name, for logs and `--json`.
    pub fn code(&self) -> &'static str {
        match self {
            FileFault::Full { .. } => "disk_full",
            FileFault::ReadOnly { .. } => "read_only",
            FileFault::Passing { .. } => "disk_failed",
            FileFault::Unchecked { .. } => "disk_unreadable",
            FileFault::Damaged { .. } => "damaged",
            FileFault::NotADatabase { .. } => "not_a_database",
        }
    }

    /// Whether the file itself is not what it should be. Otherwise the disk is, and the same may succeed later.
    pub fn is_of_the_file(&self) -> bool {
        matches!(self, FileFault::Damaged { .. } | FileFault::NotADatabase { .. })
    }
}

/// Whether SQLite found no room. (For the index of its write-ahead log that is an input/output error in its words.)
pub fn is_full(error: &Error) -> bool {
    cause(error)
        .is_some_and(|cause| cause.code == ErrorCode::DiskFull || cause.extended_code == ffi::SQLITE_IOERR_SHMSIZE)
}

fn cause(error: &Error) -> Option<&ffi::Error> {
    match error {
        Error::SqliteFailure(cause, _) | Error::SqlInputError { error: cause, .. } => Some(cause),
        _ => None,
    }
}

/// Whether this user may write the file and make files beside it.
fn is_writable(path: &Path) -> bool {
    may_write(path) && may_write(folder_of(path))
}

/// Asks for the right alone: a handle that is closed drops locks.
#[cfg(unix)]
fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(not(unix))]
fn may_write(path: &Path) -> bool {
    path.metadata().is_ok_and(|there| !there.permissions().readonly())
}

/// Whether the inodes of a folder's disk are used up: SQLite says then that it can't open a file, or that a write failed.
#[cfg(unix)]
fn takes_no_more_files(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_files > 0 && disk.f_favail == 0)
}

#[cfg(not(unix))]
fn takes_no_more_files(_folder: &Path) -> bool {
    false
}

/// The folder that a file lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
