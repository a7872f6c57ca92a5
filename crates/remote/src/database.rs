//! The connection to a remote's file: its settings, its transactions, and patience with the application's own writers.
//!
//! The connection is ours alone. Foreign keys are not enforced on it (a download checks the keys that it touched before it commits),
//! and every commit is synced: an upload must not leave before it is sure to be found again after a power failure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _};

use crate::error::{Error, While};

/// How long we wait for other writers unless told otherwise.
pub(crate) const BUSY_WAIT: Duration = Duration::from_secs(10);
/// How many statements are kept prepared.
const STATEMENTS_MAX: usize = 256;
/// A write-ahead log that grew beyond this is cut back: SQLite itself begins it again at about 4 MB.
const WAL_BYTES_MAX: u64 = 8 << 20;
/// How long that waits for readers; those that stay longer keep it as it is until the next sync.
const CHECKPOINT_WAIT: Duration = Duration::from_secs(1);

/// A remote's file, open.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) connection: Connection,
    busy_wait: Duration,
    /// While the work of a transaction is being done nothing commits: a trigger of the application's can roll the transaction back, and each
    /// statement after that would be a transaction of its own.
    is_at_work: Arc<AtomicBool>,
    /// Whether nothing of it is worth anything after a crash.
    is_scratch: bool,
}

/// Why a file can't be opened, where that is plain to see.
fn not_opened(path: &Path, error: rusqlite::Error) -> Error {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
    let what = match (error.sqlite_error_code(), folder) {
        (Some(ErrorCode::CannotOpen), Some(folder)) => {
            format!("there is no folder {}: make it first", folder.display())
        }
        (Some(ErrorCode::CannotOpen), None) if path.is_dir() => format!("{shown} is a folder: name a file in it"),
        _ => return Error::of_sqlite("opening the file", error),
    };
    Error::Configuration { what }
}

impl Database {
    /// Opens a file that is to be a remote; makes it if there is none.
    pub(crate) fn create(path: &Path, busy_wait: Duration) -> Result<Database, Error> {
        let database = Database::connect(path, OpenFlags::SQLITE_OPEN_CREATE, busy_wait)?;
        database.configure().map_err(|error| not_opened(path, error))?;
        Ok(database)
    }

    /// Opens a remote. A file that is none is left as it is, an empty one too: the settings of a connection are written into it.
    pub(crate) fn open(path: &Path, busy_wait: Duration) -> Result<Database, Error> {
        let database = Database::connect(path, OpenFlags::empty(), busy_wait)?;
        database.is_remote(path)?;
        database.configure().map_err(|error| not_opened(path, error))?;
        Ok(database)
    }

    /// An error where the file is no remote. That is said only where its schema was read and has none of Headwater's tables.
    pub(crate) fn is_remote(&self, path: &Path) -> Result<(), Error> {
        let own = "SELECT name = 'hw_state' FROM sqlite_schema WHERE type = 'table' AND name LIKE 'hw\\_%' ESCAPE '\\' ORDER BY 1 DESC";
        let first = self.connection.prepare(own).and_then(|mut own| own.query_row([], |row| row.get(0)).optional());
        match first.map_err(|error| not_opened(path, error))? {
            Some(true) => Ok(()),
            Some(false) => Err(Error::damaged("its table hw_state is gone, and others of Headwater's are there")),
            None => Err(Error::NotARemote { path: path.to_owned() }),
        }
    }

    fn connect(path: &Path, create: OpenFlags, busy_wait: Duration) -> Result<Database, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
        let mut connection = Connection::open_with_flags(path, flags).map_err(|error| not_opened(path, error))?;
        connection.busy_timeout(busy_wait).while_doing("opening the file")?;
        let is_at_work = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&is_at_work);
        connection.commit_hook(Some(move || refuses.load(Relaxed))).while_doing("opening the file")?;
        Ok(Database { connection, busy_wait, is_at_work, is_scratch: false })
    }

    /// Makes a file that nobody else knows of, and that is of no use after a crash: nothing of it waits for the disk, and it has no log beside
    /// it when it is closed.
    pub(crate) fn create_scratch(path: &Path) -> Result<Database, Error> {
        Database::scratch(path, OpenFlags::SQLITE_OPEN_CREATE)
    }

    /// Opens such a file, to write to it.
    pub(crate) fn open_scratch(path: &Path) -> Result<Database, Error> {
        Database::scratch(path, OpenFlags::empty())
    }

    fn scratch(path: &Path, create: OpenFlags) -> Result<Database, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| not_opened(path, error))?;
        let configure = || -> rusqlite::Result<()> {
            connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
            connection.pragma_update_and_check(None, "journal_mode", "memory", |_| Ok(()))?;
            connection.pragma_update(None, "synchronous", "off")?;
            connection.pragma_update(None, "trusted_schema", false)?;
            connection.pragma_update(None, "cell_size_check", true)?;
            connection.pragma_update(None, "foreign_keys", false)?;
            connection.pragma_update(None, "cache_size", -16_384)
        };
        configure().map_err(|error| not_opened(path, error))?;
        Ok(Database { connection, busy_wait: BUSY_WAIT, is_at_work: Arc::default(), is_scratch: true })
    }

    /// Opens a file to look at it alone: nothing of it can change.
    pub(crate) fn open_to_read(path: &Path, busy_wait: Duration) -> Result<Database, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).while_doing("opening the file")?;
        connection.busy_timeout(busy_wait).while_doing("opening the file")?;
        Ok(Database { connection, busy_wait, is_at_work: Arc::default(), is_scratch: false })
    }

    fn configure(&self) -> rusqlite::Result<()> {
        let connection = &self.connection;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "foreign_keys", false)?;
        connection.pragma_update(None, "recursive_triggers", false)?;
        connection.pragma_update(None, "cache_size", -16_384)?;
        connection.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES_MAX as i64, |_| Ok(()))
    }

    /// Runs `work` in one writing transaction: all of it takes place, or after an error nothing of it.
    pub(crate) fn write<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.patiently(doing, "BEGIN IMMEDIATE")?;
        let open = Open(self);
        self.is_at_work.store(true, Relaxed);
        crash::step(doing)?;
        let result = work(&self.connection)?;
        crash::step(doing)?;
        self.is_at_work.store(false, Relaxed);
        self.patiently(doing, "COMMIT")?;
        drop(open);
        crash::step(doing)?;
        Ok(result)
    }

    /// The same for what a sync can do again: a power failure may undo it (all of it, with whatever was written after it), and does
    /// not wait for the disk. An upload that is cut later makes it durable, because the write-ahead log has one order.
    pub(crate) fn write_lazily<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.is_scratch {
            return self.write(doing, work);
        }
        let set = |level: &str| self.connection.pragma_update(None, "synchronous", level).while_doing(doing);
        set("normal")?;
        let written = self.write(doing, work);
        set("full")?;
        written
    }

    /// Runs `work`, which fills the file in one transaction, without the write-ahead log where nobody else has the file open: new pages are
    /// written once, to their place, instead of twice, and rolled back after a crash by SQLite's journal. Whoever opens the file meanwhile
    /// waits until it is done.
    pub(crate) fn filling<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let is_alone = self.set_journal("delete", Duration::ZERO);
        crash::step("filling the file")?;
        let done = work();
        if is_alone && !self.log_ahead() {
            tracing::debug!("the write-ahead log is switched on again when nobody else uses the file");
        }
        done
    }

    /// Whether nobody else has the file open now.
    pub(crate) fn is_alone(&self) -> bool {
        self.set_journal("delete", Duration::ZERO) && self.log_ahead()
    }

    /// Has the file written by a write-ahead log; whether it is. (A process that was killed while it filled the file has left it without.)
    pub(crate) fn log_ahead(&self) -> bool {
        self.set_journal("wal", CHECKPOINT_WAIT)
    }

    /// Whether this is how the file is written now.
    fn set_journal(&self, mode: &str, patience: Duration) -> bool {
        let set = || {
            self.connection.busy_timeout(patience)?;
            let set =
                self.connection.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |row| row.get::<_, String>(0));
            self.connection.busy_timeout(self.busy_wait)?;
            set
        };
        set().is_ok_and(|set| set == mode)
    }

    /// SQLite's own busy handler waits where it can; where it can't (a lock that would deadlock, a snapshot that is too old), we do.
    fn patiently(&self, doing: &'static str, sql: &str) -> Result<(), Error> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match self.connection.execute_batch(sql) {
                Err(error) if is_busy(&error) => {
                    let waited = start.elapsed();
                    if waited >= self.busy_wait {
                        return Err(Error::Busy { doing });
                    }
                    std::thread::sleep(pause.min(self.busy_wait.saturating_sub(waited)));
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
                result => return result.while_doing(doing),
            }
        }
    }

    /// Bytes of the file's pages: those that are in use, and those that nothing uses; 0 where it can't be told.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let sql = "SELECT page_count * page_size, freelist_count * page_size
            FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
        let bytes = self.connection.query_row(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
        bytes.map_or((0, 0), |(all, unused)| ((all - unused).unsigned_abs(), unused.unsigned_abs()))
    }

    /// Cuts a large write-ahead log back to nothing, its pages moved to the file, unless a reader keeps it. Never fails: it is tidying up.
    pub(crate) fn cut_wal(&self) {
        let wal = self.connection.path().map(|path| format!("{path}-wal"));
        let bytes = wal.and_then(|wal| std::fs::metadata(wal).ok()).map_or(0, |file| file.len());
        // SQLite truncates a larger log to exactly this size (journal_size_limit) when it restarts the log.
        if bytes < WAL_BYTES_MAX {
            return;
        }
        let cut = || {
            self.connection.busy_timeout(CHECKPOINT_WAIT)?;
            let checkpoint = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            self.connection.busy_timeout(self.busy_wait)?;
            checkpoint
        };
        if let Err(error) = cut() {
            tracing::debug!(%error, bytes, "the write-ahead log was not cut back");
        }
    }
}

/// An open transaction, rolled back when it is dropped before its commit.
struct Open<'a>(&'a Database);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Database { connection, is_at_work, .. } = self.0;
        is_at_work.store(false, Relaxed);
        if !connection.is_autocommit()
            && let Err(error) = connection.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "a transaction could not be rolled back; SQLite does so when the file is opened again");
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Crashes on demand, for the tests that stop at each durable step.
pub(crate) mod crash {
    use crate::Error;

    #[cfg(test)]
    thread_local! {
        static STEPS_LEFT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
    }

    /// After so many more steps, each step fails; `None`: never.
    #[cfg(test)]
    pub(crate) fn after(steps: Option<u32>) {
        STEPS_LEFT.set(steps);
    }

    /// A step at which a crash would make a difference.
    #[cfg(test)]
    pub(crate) fn step(name: &'static str) -> Result<(), Error> {
        match STEPS_LEFT.get() {
            Some(0) => Err(Error::Crash(name)),
            left => {
                STEPS_LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, reason = "in tests it fails")]
    #[inline]
    pub(crate) fn step(_: &'static str) -> Result<(), Error> {
        Ok(())
    }
}
