//! A database that nobody else has: opened, its journal rolled back or its log written out, locked.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{Error, sqlite};

/// How long others may take to end their transactions.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens a database with a transaction under an exclusive lock. Its main file is whole then: no log has newer pages.
pub(crate) fn open(path: &Path) -> Result<Connection, Error> {
    let failed = |source: rusqlite::Error| {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::InUse { path, source },
            Some(ErrorCode::DatabaseCorrupt) => Error::Malformed { doing: "opening it", source },
            _ => Error::Open { path, source },
        }
    };
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    // In exclusive mode the lock, once taken, is kept until the connection is closed.
    connection.execute_batch("PRAGMA mmap_size = 0; PRAGMA locking_mode = EXCLUSIVE;").map_err(failed)?;
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(failed)?;
    if mode == "wal" {
        let is_busy: bool =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).map_err(failed)?;
        if is_busy {
            let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(failed(rusqlite::Error::SqliteFailure(busy, None)));
        }
    }
    // A transaction would give it a first page, and end with one.
    if connection.pragma_query_value(None, "page_count", |row| row.get::<_, u32>(0)).map_err(failed)? == 0 {
        return Err(Error::Empty { path: path.to_owned() });
    }
    connection.execute_batch("BEGIN EXCLUSIVE").map_err(failed)?;
    connection
        .execute_batch("PRAGMA cache_size = -65536; PRAGMA writable_schema = ON")
        .map_err(sqlite("preparing the connection"))?;
    Ok(connection)
}

/// Has SQLite roll back what a transaction has left in its journal that ended in an error of the disk's: SQLite leaves that to the next one who opens the
/// file. Where it can't be done now either, it still is.
pub(crate) fn roll_back(path: &Path) {
    if let Ok(connection) = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE) {
        let _ = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    }
}
