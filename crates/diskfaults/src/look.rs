//! The second look at a file: on a connection of its own, which changes nothing but what every opening does (a journal that a crash left is
//! rolled back).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Error, ErrorCode, OpenFlags, ffi};

use crate::cause;

/// How long others may take to end their transactions.
const PATIENCE: Duration = Duration::from_secs(2);
/// Rows that are read of each of Headwater's own tables.
const ROWS_MAX: u32 = 100;
/// Faults that `integrity_check` is asked for.
const FAULTS_MAX: u32 = 10;
/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 16;

/// What was seen.
pub(crate) enum Look {
    Sound,
    /// It can't be read now, for this reason.
    Unreadable(String),
    /// All of it can be read, and this is wrong.
    Damaged(String),
    /// All of it can be read, and it is not SQLite's.
    NotADatabase,
}

/// Looks at a file: at its header, its schema and Headwater's own tables, or at the whole.
pub(crate) fn look(path: &Path, as_a_whole: bool) -> Look {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match Connection::open_with_flags(path, flags) {
        Ok(connection) => connection,
        Err(error) => return Look::Unreadable(error.to_string()),
    };
    let beginning = read_beginning(&connection);
    let looked = beginning.and_then(|()| if as_a_whole { faults(&connection) } else { Ok(Vec::new()) });
    match looked {
        Ok(faults) if faults.is_empty() => Look::Sound,
        Ok(faults) => wrong(&connection, Look::Damaged(faults.join("; "))),
        Err(error) => match cause(&error).map(|cause| cause.code) {
            Some(ErrorCode::NotADatabase) => wrong(&connection, Look::NotADatabase),
            Some(ErrorCode::DatabaseCorrupt) => wrong(&connection, Look::Damaged(error.to_string())),
            _ => Look::Unreadable(error.to_string()),
        },
    }
}

/// A file is wrong only where each byte of it can be read.
fn wrong(connection: &Connection, look: Look) -> Look {
    if is_readable(connection) { look } else { Look::Unreadable("reads of it fail".to_owned()) }
}

fn read_beginning(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "query_only", true)?;
    let own = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'hw\\_%' ESCAPE '\\'";
    let own: Vec<String> =
        connection.prepare(own)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for table in own {
        let table = table.replace('"', "\"\"");
        let mut select = connection.prepare(&format!("SELECT * FROM \"{table}\" LIMIT {ROWS_MAX}"))?;
        let mut rows = select.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// What `integrity_check` finds. Rows that break a constraint are the application's, and an index by a collation that only the application
/// has can't be judged here.
fn faults(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let check = || -> rusqlite::Result<Vec<String>> {
        let mut check = connection.prepare(&format!("PRAGMA integrity_check({FAULTS_MAX})"))?;
        check.query_map([], |row| row.get(0))?.collect()
    };
    match check() {
        Ok(lines) => Ok(lines.into_iter().filter(|line| is_fault(line)).collect()),
        Err(Error::SqliteFailure(cause, _)) if cause.code == ErrorCode::Unknown => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn is_fault(line: &str) -> bool {
    const OF_ROWS: [&str; 4] = ["NULL value in ", "CHECK constraint failed in ", "NUMERIC value in ", "TEXT value in "];
    line != "ok" && !OF_ROWS.iter().any(|of_rows| line.starts_with(of_rows))
}

/// Whether each byte of the file and of its journal or log can be read. SQL can't tell: SQLite has one code for damage and for a read that
/// failed.
#[allow(unsafe_code)]
fn is_readable(connection: &Connection) -> bool {
    [ffi::SQLITE_FCNTL_FILE_POINTER, ffi::SQLITE_FCNTL_JOURNAL_POINTER].into_iter().all(|which| {
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        // SAFETY: the connection is open, and used by this thread alone; SQLite writes one pointer to `file`. The file stays open as long as
        // the connection, which outlives this call.
        unsafe {
            let asked = ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), which, (&raw mut file).cast());
            asked != ffi::SQLITE_OK || file.is_null() || (*file).pMethods.is_null() || reads_to_its_end(file)
        }
    })
}

/// Reads a file of SQLite's by SQLite's own methods.
///
/// # Safety
/// The file must be open.
#[allow(unsafe_code)]
unsafe fn reads_to_its_end(file: *mut ffi::sqlite3_file) -> bool {
    // SAFETY: an open file has methods, and `xRead` writes at most as many bytes as it is asked for.
    unsafe {
        let (Some(size_of), Some(read)) = ((*(*file).pMethods).xFileSize, (*(*file).pMethods).xRead) else {
            return true;
        };
        let mut bytes = 0;
        if size_of(file, &raw mut bytes) != ffi::SQLITE_OK {
            return false;
        }
        let mut buffer = vec![0_u8; READ_BYTES];
        (0..bytes).step_by(READ_BYTES).all(|offset| {
            let count = (bytes - offset).min(READ_BYTES as i64);
            let done = read(file, buffer.as_mut_ptr().cast(), count as i32, offset);
            // The file may have become shorter meanwhile.
            done == ffi::SQLITE_OK || done == ffi::SQLITE_IOERR_SHORT_READ
        })
    }
}
