//! One connection of a SQLite file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use headwater_diskfaults::FileFault;
use headwater_model::tracking::sqlite::NEXT_VERSION;
use headwater_protocol::message::{ChangeOp, RefusalCode};
use headwater_protocol::stored::Scratch;
use headwater_protocol::{Row, Value};
use rusqlite::{CachedStatement, OpenFlags};

use super::equality::PartitionEquality;
use super::error::{refusal, sort, sort_of_rows};
use super::plain::Keeps;
use super::statements::TableSql;
use super::values::{bind_all, plain, typed_row};
use super::writes::Writes;
use super::{catalogue, identity, key_forms, reads};
use crate::backend::{Changes, EncodedChanges, Gaps, Inserted, Reading};
use crate::catalogue::Catalogue;
use crate::{Connection, Dialect, Error, Mode, Plan, RowsWriter, TablePlan};

/// Prepared statements that a connection keeps: eight a table, so enough for a hundred tables.
const STATEMENTS_MAX: usize = 800;
/// Tables whose SQL is kept; more, and all are made anew.
const TABLES_MAX: usize = 2_000;
/// Steps of SQLite's machine between two looks at the clock, where a statement may take so long and no longer.
pub(super) const PROGRESS_STEPS: i32 = 10_000;
const SAVEPOINT: &str = "headwater";
/// A write-ahead log that grew beyond this is cut back: SQLite itself begins it again at about 4 MB.
const WAL_BYTES_MAX: u64 = 8 << 20;
/// When a file's journal is asked to be a write-ahead log again.
const WRITE_AHEAD_AGAIN: Duration = Duration::from_millis(2);
/// Who syncs, for SQL of the user's that this connection runs: a download must not take the writer's lock for it. It goes before the
/// table of the same name in the file, which the application's triggers see.
const OWN_ACTOR: &str =
    "CREATE TEMP TABLE headwater_actor (single INTEGER PRIMARY KEY CHECK (single = 1), user_name TEXT, remote_id BLOB);
    INSERT INTO temp.headwater_actor (single) VALUES (1)";
/// First byte of watermarks and own marks.
const MARK_FORMAT: u8 = 1;

/// One connection of a SQLite file.
#[derive(Debug)]
pub struct SqliteConnection {
    pub(super) inner: rusqlite::Connection,
    path: PathBuf,
    busy_timeout: Duration,
    /// Device and number of the file that was opened; `None` where the system has no such thing.
    file: Option<(u64, u64)>,
    tables: HashMap<(u64, u32), Arc<TableSql>>,
    keeps: HashMap<(u64, u32), Arc<Keeps>>,
    writes: HashMap<(u64, u32), Arc<Writes>>,
    whole_tracking: HashMap<u64, String>,
    has_savepoint: bool,
    /// [`Connection::hurry`] limits this transaction's statements.
    is_hurried: bool,
    /// [`Connection::set_actor`] has written to the file.
    has_actor: bool,
    mode: Option<Mode>,
    /// The version before this transaction's first change; known in an upload.
    version_before: Option<i64>,
}

/// Has the file's journal be a write-ahead log. Of two connections that change it at once SQLite refuses one without a wait, whatever its
/// time-out: it is tried again for as long.
fn write_ahead(connection: &rusqlite::Connection, busy_timeout: Duration) -> rusqlite::Result<()> {
    let began = Instant::now();
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())) {
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && began.elapsed() < busy_timeout =>
            {
                std::thread::sleep(WRITE_AHEAD_AGAIN);
            }
            done => return done,
        }
    }
}

impl SqliteConnection {
    pub(super) fn open(path: &Path, busy_timeout: Duration, durable: bool) -> Result<SqliteConnection, Error> {
        SqliteConnection::open_with(path, busy_timeout, |inner| {
            write_ahead(inner, busy_timeout)?;
            inner.pragma_update(None, "synchronous", if durable { "FULL" } else { "OFF" })?;
            inner.pragma_update(None, "foreign_keys", true)?;
            inner.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES_MAX as i64, |_| Ok(()))?;
            inner.execute_batch(OWN_ACTOR)?;
            inner.execute_batch(key_forms::FORMS)
        })
    }

    /// A connection that `set_up` has made ready.
    pub(super) fn open_with(
        path: &Path,
        busy_timeout: Duration,
        set_up: impl FnOnce(&mut rusqlite::Connection) -> rusqlite::Result<()>,
    ) -> Result<SqliteConnection, Error> {
        // Not created here: a mistyped path must not become an empty database.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // Before it is opened: a file that takes its place meanwhile is one too many rather than one too few.
        let file = file_at(path);
        let no_database = |why: String| Error::Setup {
            what: format!("the database {} {why}", path.display()),
            mend: "give the path of an existing SQLite file".into(),
        };
        // A fault of the disk passes, whatever SQLite calls it.
        let passes = |error: &rusqlite::Error| {
            let fault = FileFault::of(path, error).filter(|fault| !fault.is_of_the_file())?;
            Some(Error::Retry { detail: fault.to_string(), broken: true })
        };
        let mut inner = rusqlite::Connection::open_with_flags(path, flags)
            .map_err(|error| passes(&error).unwrap_or_else(|| no_database(format!("can't be opened ({error})"))))?;
        let begin = || {
            inner.busy_timeout(busy_timeout)?;
            inner.pragma_update(None, "cache_size", -16_384)?;
            set_up(&mut inner)
        };
        begin().map_err(|error| match (passes(&error), error.sqlite_error_code()) {
            (Some(passes), _) => passes,
            (None, Some(rusqlite::ErrorCode::NotADatabase)) => no_database("is no SQLite file".to_owned()),
            (None, _) => sort(error, "setting up a connection"),
        })?;
        inner.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok(SqliteConnection {
            inner,
            path: path.to_owned(),
            busy_timeout,
            file,
            tables: HashMap::new(),
            keeps: HashMap::new(),
            writes: HashMap::new(),
            whole_tracking: HashMap::new(),
            has_savepoint: false,
            is_hurried: false,
            has_actor: false,
            mode: None,
            version_before: None,
        })
    }

    /// The SQL of a table.
    pub(super) fn table_sql(&mut self, table: &TablePlan) -> Arc<TableSql> {
        if self.tables.len() >= TABLES_MAX {
            self.tables.clear();
        }
        let sql =
            self.tables.entry((table.fingerprint, table.number)).or_insert_with(|| Arc::new(TableSql::new(table)));
        Arc::clone(sql)
    }

    /// What is known of whether a table keeps rows as they are.
    pub(super) fn known_keeps(&self, table: &TablePlan) -> Option<Arc<Keeps>> {
        self.keeps.get(&(table.fingerprint, table.number)).cloned()
    }

    pub(super) fn note_keeps(&mut self, table: &TablePlan, keeps: Arc<Keeps>) {
        if self.keeps.len() >= TABLES_MAX {
            self.keeps.clear();
        }
        self.keeps.insert((table.fingerprint, table.number), keeps);
    }

    /// The statements that write rows of a table, as they were made last.
    pub(super) fn known_writes(&self, table: &TablePlan) -> Option<Arc<Writes>> {
        self.writes.get(&(table.fingerprint, table.number)).cloned()
    }

    pub(super) fn note_writes(&mut self, table: &TablePlan, writes: Arc<Writes>) {
        if self.writes.len() >= TABLES_MAX {
            self.writes.clear();
        }
        self.writes.insert((table.fingerprint, table.number), writes);
    }

    pub(super) fn prepare(&self, sql: &str) -> Result<CachedStatement<'_>, Error> {
        self.inner.prepare_cached(sql).map_err(|error| sort(error, &format!("preparing {sql}")))
    }

    /// A statement that writes rows of a table; `fetch` reads them. Where the table can be read and not be written, a trigger of the
    /// application's does not fit any more, which is the rows' as it would be in other databases.
    pub(super) fn prepare_for_rows(&self, sql: &str, fetch: &str) -> Result<CachedStatement<'_>, Error> {
        self.inner.prepare_cached(sql).map_err(|error| {
            let is_sqls = matches!(&error, rusqlite::Error::SqlInputError { .. } | rusqlite::Error::SqliteFailure(..));
            let detail = error.to_string();
            match sort(error, &format!("preparing {sql}")) {
                Error::Database { .. } if is_sqls && !detail.contains("headwater_") && self.prepare(fetch).is_ok() => {
                    refusal(RefusalCode::Trigger, "a trigger of the database can't be run", detail)
                }
                other => other,
            }
        })
    }

    /// A file that was put in the place of the one that is open (a backup, say) is the database from then on.
    pub(super) fn check_file(&self) -> Result<(), Error> {
        if self.file == file_at(&self.path) {
            return Ok(());
        }
        let detail = format!("the file {} has been replaced; it is opened anew", self.path.display());
        tracing::warn!("{detail}");
        Err(Error::Retry { detail, broken: true })
    }

    /// Device and number of the file, where the system has such things.
    pub(super) fn file_number(&self) -> Option<String> {
        self.file.map(|(device, number)| format!("{device}/{number}"))
    }

    pub(super) fn run(&self, sql: &str) -> Result<(), Error> {
        let mut statement = self.prepare(sql)?;
        statement.raw_execute().map(|_| ()).map_err(|error| sort(error, sql))
    }

    /// The version of the last change; `None` where nothing is tracked.
    fn version(&self) -> Option<i64> {
        let mut statement = self.inner.prepare_cached("SELECT version FROM headwater_version").ok()?;
        statement.query_row([], |row| row.get(0)).ok()
    }

    /// The first row of a query; `None` where there is none, or no such table.
    pub(super) fn known_row(&mut self, sql: &str) -> Option<Row> {
        self.inner.prepare_cached(sql).ok()?;
        self.query(sql, &[]).ok()?.into_iter().next()
    }

    /// Whether a foreign key is violated that is to be checked at the transaction's end.
    #[expect(unsafe_code, reason = "rusqlite has no safe form of sqlite3_db_status, and SQL can't ask")]
    fn has_deferred_violations(&self) -> bool {
        let (mut current, mut highest) = (0, 0);
        // SAFETY: the handle is that of an open connection which this thread alone uses, and both pointers are to locals that
        // outlive the call.
        let code = unsafe {
            rusqlite::ffi::sqlite3_db_status(
                self.inner.handle(),
                rusqlite::ffi::SQLITE_DBSTATUS_DEFERRED_FKS,
                &raw mut current,
                &raw mut highest,
                0,
            )
        };
        assert_eq!(code, rusqlite::ffi::SQLITE_OK, "the status exists since SQLite 3.8");
        current != 0
    }

    /// Cuts a large write-ahead log back to nothing, its pages moved to the file. Nobody is waited for: where a reader keeps it, a
    /// later commit does it, or SQLite when it begins the log again.
    fn cut_wal(&self) {
        let mut wal = self.path.as_os_str().to_owned();
        wal.push("-wal");
        let bytes = std::fs::metadata(wal).map_or(0, |file| file.len());
        if bytes <= WAL_BYTES_MAX {
            return;
        }
        let cut = || {
            self.inner.busy_timeout(Duration::ZERO)?;
            let checkpoint = self.inner.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            self.inner.busy_timeout(self.busy_timeout)?;
            checkpoint
        };
        if let Err(error) = cut() {
            tracing::debug!(%error, bytes, "the write-ahead log was not cut back");
        }
    }

    pub(super) fn ended(&mut self) {
        if std::mem::take(&mut self.is_hurried) {
            // It fails on a closed connection alone.
            let _ = self.inner.progress_handler(0, None::<fn() -> bool>);
        }
        self.has_savepoint = false;
        self.has_actor = false;
        self.mode = None;
        self.version_before = None;
    }
}

impl Connection for SqliteConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn file_id(&self) -> String {
        self.file_number().map(|number| number + "/").unwrap_or_default()
    }

    fn begin(&mut self, mode: Mode) -> Result<(), Error> {
        self.ended();
        self.check_file()?;
        self.mode = Some(mode);
        match mode {
            Mode::Upload => {
                self.run("BEGIN IMMEDIATE")?;
                // While it waited for the lock another file may have taken its place.
                if let Err(error) = self.check_file() {
                    self.run("ROLLBACK")?;
                    return Err(error);
                }
                self.version_before = self.version();
                // Rows of one upload may refer to later ones; what is violated at the end is found by `check_deferred`.
                self.run("PRAGMA defer_foreign_keys = ON")
            }
            Mode::Download => {
                self.run("BEGIN DEFERRED")?;
                // The first read takes the snapshot.
                self.query("SELECT count(*) FROM sqlite_schema WHERE rowid = 1", &[]).map(|_| ())
            }
        }
    }

    fn commit(&mut self) -> Result<(), Error> {
        if self.mode == Some(Mode::Upload) {
            self.check_file()?;
        }
        if self.has_actor {
            for actor in ["main", "temp"] {
                self.run(&format!("UPDATE {actor}.headwater_actor SET user_name = NULL, remote_id = NULL"))?;
            }
            self.has_actor = false;
        }
        self.run("COMMIT")?;
        self.ended();
        self.cut_wal();
        Ok(())
    }

    fn savepoint(&mut self) -> Result<(), Error> {
        self.release_savepoint()?;
        self.run(&format!("SAVEPOINT {SAVEPOINT}"))?;
        self.has_savepoint = true;
        Ok(())
    }

    fn rollback_to_savepoint(&mut self) -> Result<(), Error> {
        if self.inner.is_autocommit() {
            // RAISE(ROLLBACK), or a constraint with ON CONFLICT ROLLBACK: what is made is gone, and with it what had gone well.
            let text = "a rule of the database ended the transaction; let it RAISE(ABORT)";
            return Err(refusal(RefusalCode::Trigger, text, "the transaction was rolled back by a trigger".to_owned()));
        }
        self.run(&format!("ROLLBACK TO {SAVEPOINT}"))
    }

    fn release_savepoint(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.has_savepoint) { self.run(&format!("RELEASE {SAVEPOINT}")) } else { Ok(()) }
    }

    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error> {
        let mut statement = self.prepare(sql)?;
        bind_all(&mut statement, parameters, &mut Scratch::default())?;
        let columns = statement.column_count();
        let mut found = Vec::new();
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, sql))? {
            found.push((0..columns).map(|place| plain(row, place)).collect::<Result<Row, Error>>()?);
        }
        Ok(found)
    }

    fn each_row(
        &mut self,
        sql: &str,
        parameters: &[Value],
        each: &mut dyn FnMut(Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut statement = self.prepare(sql)?;
        bind_all(&mut statement, parameters, &mut Scratch::default())?;
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, sql))? {
            each((0..columns).map(|place| plain(row, place)).collect::<Result<Row, Error>>()?)?;
        }
        Ok(())
    }

    fn describe(&mut self, sql: &str) -> Result<Vec<String>, Error> {
        Ok(self.prepare(sql)?.column_names().map(str::to_owned).collect())
    }

    /// While the writer's lock is held, nobody has written what is not committed; so whoever writes later begins later.
    fn earliest_start(&mut self) -> Result<Option<i64>, Error> {
        self.run("BEGIN IMMEDIATE")?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.run("ROLLBACK")?;
        Ok(now.ok().and_then(|now| i64::try_from(now.as_micros()).ok()))
    }

    fn execute(&mut self, sql: &str, parameters: &[Value]) -> Result<u64, Error> {
        let mut statement = self.prepare(sql)?;
        bind_all(&mut statement, parameters, &mut Scratch::default())?;
        statement.raw_execute().map(|count| count as u64).map_err(|error| sort(error, sql))
    }

    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        self.inner.execute_batch(sql).map_err(|error| sort(error, sql))
    }

    fn fetch(&mut self, table: &TablePlan, keys: &[Row], _lock: bool) -> Result<Vec<Row>, Error> {
        // One writer at a time: whoever writes holds every row.
        let sql = self.table_sql(table);
        let mut statement = self.prepare(&sql.fetch)?;
        let mut scratch = Scratch::default();
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            bind_all(&mut statement, key, &mut scratch)?;
            let mut rows = statement.raw_query();
            while let Some(row) = rows.next().map_err(|error| sort_of_rows(error, &sql.fetch))? {
                found.push(typed_row(row, 0, &table.types, &mut scratch)?);
            }
        }
        Ok(found)
    }

    fn check_new_keys(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        key_forms::check(self, table, rows)
    }

    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.insert_rows(table, rows)
    }

    fn takes_plain(&mut self, table: &TablePlan, op: ChangeOp) -> Result<bool, Error> {
        self.keeps_plain(table, op)
    }

    fn change_plain(&mut self, table: &TablePlan, changes: EncodedChanges<'_>, compares: bool) -> Result<bool, Error> {
        self.change_encoded(table, changes, compares)
    }

    /// Nobody else has written since this transaction looked.
    fn stayed_plain(&mut self, tables: &[&TablePlan]) -> Result<bool, Error> {
        tables.iter().try_fold(true, |all, table| Ok(all && self.keeps_plain(table, ChangeOp::Insert)?))
    }

    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        self.update_rows(table, rows)
    }

    fn note_again(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        let sql = self.table_sql(table);
        let noted = table.noted();
        self.execute(NEXT_VERSION, &[])?;
        for row in rows {
            let values: Vec<Value> = noted.iter().map(|place| row[*place].clone()).collect();
            self.execute(&sql.note_again, &values)?;
        }
        Ok(())
    }

    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        let sql = self.table_sql(table);
        let mut statement = self.prepare_for_rows(&sql.delete, &sql.fetch)?;
        let mut scratch = Scratch::default();
        let mut deleted = 0;
        for key in keys {
            bind_all(&mut statement, *key, &mut scratch)?;
            deleted += statement.raw_execute().map_err(|error| sort_of_rows(error, &sql.delete))? as u64;
        }
        Ok(deleted)
    }

    fn check_deferred(&mut self) -> Result<(), Error> {
        if self.has_deferred_violations() {
            let detail = "foreign keys are violated at the end of the upload".to_owned();
            return Err(refusal(RefusalCode::ForeignKey, "a foreign key", detail));
        }
        Ok(())
    }

    fn set_actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<(), Error> {
        let writes = self.mode == Some(Mode::Upload);
        for actor in if writes { &["main", "temp"][..] } else { &["temp"] } {
            let sql = format!("UPDATE {actor}.headwater_actor SET user_name = ?1, remote_id = ?2");
            self.execute(&sql, &[Value::text(user), Value::Bytes(remote_id.to_vec())])?;
        }
        self.has_actor = writes;
        Ok(())
    }

    fn own_mark(&mut self) -> Result<Vec<u8>, Error> {
        let after = self.version().ok_or_else(untracked)?;
        let before = self.version_before.ok_or_else(untracked)?;
        Ok([&[MARK_FORMAT][..], &before.to_le_bytes(), &after.to_le_bytes()].concat())
    }

    fn watermark(&mut self) -> Result<Vec<u8>, Error> {
        let version = self.version().ok_or_else(untracked)?;
        Ok([&[MARK_FORMAT][..], &version.to_le_bytes()].concat())
    }

    fn accepts_watermark(&mut self, watermark: &[u8]) -> Result<bool, Error> {
        let current = self.version().ok_or_else(untracked)?;
        Ok(read_watermark(watermark).is_some_and(|version| (0..=current).contains(&version)))
    }

    fn gaps(&mut self, watermark: &[u8]) -> Result<Gaps, Error> {
        let sql =
            "SELECT h.version FROM headwater_horizon h JOIN headwater_identity i ON i.incarnation = h.incarnation";
        let rows = self.query(sql, &[])?;
        let horizon = match rows.first().and_then(|row| row.first()) {
            Some(Value::Bytes(version)) => read_watermark(version),
            _ => None,
        };
        let version = read_watermark(watermark);
        Ok(Gaps {
            everything: horizon.is_some_and(|horizon| version < Some(horizon)),
            tables: identity::refreshed_since(self, version.unwrap_or_default())?,
        })
    }

    fn parts_have_changed(&mut self, _plan: &Plan) -> Result<bool, Error> {
        identity::has_changed(self)
    }

    fn tracking_mark(&mut self, _plan: &Plan) -> Result<Option<String>, Error> {
        let rows = self.query("PRAGMA schema_version", &[])?;
        match rows.first().and_then(|row| row.first()) {
            Some(Value::Int(version)) => Ok(Some(version.to_string())),
            _ => Ok(None),
        }
    }

    fn whole_tracking(&mut self) -> &mut HashMap<u64, String> {
        &mut self.whole_tracking
    }

    fn adopt_parts(&mut self, _plan: &Plan) -> Result<(), Error> {
        self.begin(Mode::Upload)?;
        let looked = identity::look(self);
        crate::finish(self, looked)
    }

    fn read_whole(&mut self, table: &TablePlan, partitions: &[Row], out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        reads::whole(self, table, partitions, out)
    }

    fn read_changes(&mut self, changes: &Changes<'_>, out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        reads::changes(self, changes, out)
    }

    fn hurry(&mut self, limit: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        let is_late = move || Instant::now() > deadline;
        self.is_hurried = true;
        let hurried = self.inner.progress_handler(PROGRESS_STEPS, Some(is_late));
        hurried.map_err(|error| sort(error, "limiting how long statements take"))
    }

    fn count(&mut self, reading: &Reading<'_>) -> Result<u64, Error> {
        reads::count(self, reading)
    }

    fn read_some(
        &mut self,
        table: &TablePlan,
        partitions: &[Row],
        rows_max: u32,
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        reads::some(self, table, partitions, rows_max, out)
    }

    fn read_valued(
        &mut self,
        table: &TablePlan,
        partitions: &[Row],
        columns: &[u32],
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        reads::valued(self, table, partitions, columns, out)
    }

    fn partitions_below(&mut self, table: &TablePlan, parents: &[Row], _lock: bool) -> Result<Vec<(Row, Row)>, Error> {
        reads::partitions_below(self, table, parents)
    }

    fn has_spelled_partitions(&mut self, table: &TablePlan) -> Result<bool, Error> {
        Ok(PartitionEquality::read(self, table)?.has_spellings())
    }

    fn partition_classes(&mut self, table: &TablePlan, partitions: &[Row]) -> Result<Vec<usize>, Error> {
        let equality = PartitionEquality::read(self, table)?;
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        let keys = partitions.iter().map(|row| equality.canonical(row)).enumerate();
        Ok(keys.map(|(place, key)| *known.entry(key).or_insert(place)).collect())
    }

    fn spellings(&mut self, reading: &Reading<'_>) -> Result<Vec<Row>, Error> {
        reads::spellings(self, reading)
    }

    fn catalogue(&mut self) -> Result<Catalogue, Error> {
        catalogue::read(self)
    }
}

/// What tells a file from another one at the same path.
#[cfg(unix)]
fn file_at(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn file_at(_path: &Path) -> Option<(u64, u64)> {
    None
}

/// The version in a watermark.
pub(crate) fn read_watermark(watermark: &[u8]) -> Option<i64> {
    let (&MARK_FORMAT, rest) = watermark.split_first()? else { return None };
    Some(i64::from_le_bytes(rest.try_into().ok()?))
}

/// The versions of an own mark: above the first, up to the second.
pub(super) fn read_own_mark(mark: &[u8]) -> Option<(i64, i64)> {
    let (&MARK_FORMAT, rest) = mark.split_first()? else { return None };
    let (before, after) = rest.split_at_checked(8)?;
    Some((i64::from_le_bytes(before.try_into().ok()?), i64::from_le_bytes(after.try_into().ok()?)))
}

fn untracked() -> Error {
    Error::Setup {
        what: "change tracking is not installed in this database".into(),
        mend: "run `headwater track`".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_file_is_opened_by_many_at_once() {
        const AT_ONCE: usize = 6;
        for _ in 0..100 {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("central.db");
            std::fs::write(&path, []).expect("a file");
            let barrier = std::sync::Barrier::new(AT_ONCE);
            let open = || {
                barrier.wait();
                SqliteConnection::open(&path, Duration::from_mins(1), true)
            };
            std::thread::scope(|scope| {
                let opening: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(open)).collect();
                for opening in opening {
                    opening.join().expect("no panic").expect("a connection");
                }
            });
        }
    }
}
