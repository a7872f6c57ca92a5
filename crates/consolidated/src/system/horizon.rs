//! Purging what the side tables know of old changes, and the horizon that says so.
//!
//! A side table has a row for each row of its table that was changed or deleted since tracking began. Those that every remote has
//! seen are of no use; a remote that has been away for longer than an agreed time starts afresh instead. Age is turned into a version
//! by the notes (time, snapshot) that servers take: the horizon is the snapshot of the newest note that is old enough.
//!
//! The horizon moves in a transaction of its own, before anything is deleted: a download whose snapshot has the deletions has the
//! horizon too, and holds each watermark against it ([`crate::Connection::gaps`]). So no remote is given a hole, wherever a purge
//! stops, and the next one goes on from there. A horizon belongs to the incarnation in which it was made.
//!
//! Deletions go in short transactions that hold up nobody: in PostgreSQL they wait for no lock, in SQLite each holds the writer's for a
//! few thousand rows. Several servers may purge at once; whoever comes second finds the horizon moved.

use std::time::Duration;

use headwater_protocol::{Row, Value};

use super::sql::{array, bytes, dialect_sql, integer, text};
use crate::{Connection, Dialect, Error, Mode, postgres, sqlite};

/// Pages of a side table in PostgreSQL that one statement looks through: 8 MiB.
const PAGES: u64 = 1_024;
/// Rows of a side table in SQLite that one statement looks through.
const ROWS: u64 = 5_000;
/// Notes are kept for as long before the horizon: a remote that synced just after it may know one of those.
const NOTES_KEPT_S: u64 = 3_600;

/// What is to be purged.
#[derive(Clone, Copy, Debug)]
pub struct PurgeRequest {
    /// What is older.
    pub older_than: Duration,
    /// Nothing is done where the horizon would move by less.
    pub step: Duration,
}

/// What was purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Whether the horizon was moved.
    pub has_moved: bool,
    /// Rows of side tables that were deleted.
    pub rows: u64,
}

/// Purges tombstones and other rows of side tables that are old, until `goes_on` says no. Does nothing where no note is old enough.
pub fn purge(
    connection: &mut dyn Connection,
    request: &PurgeRequest,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Purged, Error> {
    connection.begin(Mode::Upload)?;
    let moved = move_horizon(connection, request);
    let has_moved = crate::finish(connection, moved)?;
    let mut purged = Purged { has_moved, rows: 0 };
    if !has_moved && request.step > Duration::ZERO {
        return Ok(purged);
    }
    let Some(horizon) = horizon(connection)? else { return Ok(purged) };
    for side_table in side_tables(connection)? {
        purged.rows += match connection.dialect() {
            Dialect::Sqlite => purge_sqlite(connection, &side_table, &horizon, goes_on)?,
            Dialect::Postgres => purge_postgres(connection, &side_table, &horizon, goes_on)?,
        };
    }
    match connection.dialect() {
        Dialect::Postgres => {
            let below = seen_below(Dialect::Postgres, &horizon)?;
            purge_table_changes(connection, below)?;
            postgres::refresh::purge(connection, below)?;
        }
        Dialect::Sqlite => sqlite::identity::purge(connection, seen_below(Dialect::Sqlite, &horizon)?)?,
    }
    let conflicts = purge_conflicts(connection, request.older_than)?;
    tracing::info!(rows = purged.rows, conflicts, "old changes were purged from the side tables, and old conflicts");
    Ok(purged)
}

/// Notes that tables were changed. What was purged is on record in the same transaction: nothing can be told to whoever knows less.
fn purge_table_changes(connection: &mut dyn Connection, below: u64) -> Result<(), Error> {
    let sql = "WITH purged AS (DELETE FROM headwater.table_change WHERE transaction < ?1::text::xid8) \
               INSERT INTO headwater.table_change (table_name, transaction) VALUES ('', ?1::text::xid8) ON CONFLICT DO NOTHING";
    connection.execute(sql, &[Value::text(below.to_string())]).map(drop)
}

/// What people have had as long to look at.
fn purge_conflicts(connection: &mut dyn Connection, older_than: Duration) -> Result<u64, Error> {
    let sql = format!("DELETE FROM {{hw}}conflict WHERE at < {}", ago(connection.dialect(), "?1"));
    connection.execute(&dialect_sql(connection.dialect(), &sql), &[Value::Int(older_than.as_secs() as i64)])
}

/// Whether no server has taken a note for as long: several on one database need not take one each.
pub fn is_note_due(connection: &mut dyn Connection, after: Duration) -> Result<bool, Error> {
    let sql = format!("SELECT count(*) FROM {{hw}}note WHERE taken_at > {}", ago(connection.dialect(), "?1"));
    let seconds = Value::Int(after.as_secs() as i64);
    let rows = connection.query(&dialect_sql(connection.dialect(), &sql), &[seconds])?;
    Ok(integer(rows.first().and_then(|row| row.first()), "count")? == 0)
}

/// The time so many seconds ago, by the database's clock.
fn ago(dialect: Dialect, seconds: &str) -> String {
    match dialect {
        Dialect::Sqlite => format!("(strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || {seconds} || ' seconds') || 'Z')"),
        Dialect::Postgres => format!("clock_timestamp() - {seconds}::bigint * interval '1 second'"),
    }
}

/// A time as seconds.
pub(super) fn seconds(dialect: Dialect, column: &str) -> String {
    match dialect {
        Dialect::Sqlite => format!("CAST(strftime('%s', {column}) AS INTEGER)"),
        Dialect::Postgres => format!("extract(epoch FROM {column})::bigint"),
    }
}

/// A note from which a horizon can be made.
struct Noted {
    note: [u8; 16],
    snapshot: Vec<u8>,
    /// When it was taken, in seconds.
    time: i64,
}

impl Noted {
    fn read(row: &Row) -> Result<Noted, Error> {
        Ok(Noted {
            note: array(row.first(), "note")?,
            snapshot: bytes(row.get(1), "snapshot")?,
            time: integer(row.get(2), "taken_at")?,
        })
    }
}

/// Moves the horizon as far as it may; whether it has.
fn move_horizon(connection: &mut dyn Connection, request: &PurgeRequest) -> Result<bool, Error> {
    let dialect = connection.dialect();
    if dialect == Dialect::Postgres {
        connection.batch("SELECT pg_advisory_xact_lock(x'6865616470757267'::bigint)")?;
    }
    let Some(next) = old_note(connection, request.older_than)? else { return Ok(false) };
    let sql = format!(
        "SELECT h.note, h.version, coalesce({}, 0) FROM {{hw}}horizon h JOIN {{hw}}identity i ON i.incarnation = h.incarnation \
         LEFT JOIN {{hw}}note n ON n.note = h.note",
        seconds(dialect, "n.taken_at")
    );
    let now = connection.query(&dialect_sql(dialect, &sql), &[])?;
    if let Some(now) = now.first().map(Noted::read).transpose()? {
        let is_further = seen_below(dialect, &next.snapshot)? > seen_below(dialect, &now.snapshot)?;
        if !is_further || next.time.saturating_sub(now.time) < request.step.as_secs() as i64 {
            return Ok(false);
        }
    }
    let sql = "INSERT INTO {hw}horizon (single, version, note, incarnation) SELECT 1, ?1, ?2, incarnation FROM {hw}identity WHERE true \
               ON CONFLICT (single) DO UPDATE SET version = excluded.version, note = excluded.note, incarnation = excluded.incarnation";
    let values = [Value::Bytes(next.snapshot), Value::Bytes(next.note.to_vec())];
    connection.execute(&dialect_sql(dialect, sql), &values)?;
    let sql = format!("DELETE FROM {{hw}}note WHERE {} < ?1", seconds(dialect, "taken_at"));
    let kept = Value::Int(next.time.saturating_sub(NOTES_KEPT_S as i64));
    connection.execute(&dialect_sql(dialect, &sql), &[kept])?;
    Ok(true)
}

/// The newest note of this incarnation that is old enough. Where the incarnation's first note is gone, so are those before it.
fn old_note(connection: &mut dyn Connection, older_than: Duration) -> Result<Option<Noted>, Error> {
    let dialect = connection.dialect();
    let sql = format!(
        "SELECT n.note, n.snapshot, {} FROM {{hw}}note n, {{hw}}identity i \
         WHERE n.number > coalesce((SELECT c.number FROM {{hw}}note c WHERE c.note = i.created_note), 0) \
         AND length(n.snapshot) > 0 AND n.taken_at <= {} ORDER BY n.number DESC LIMIT 1",
        seconds(dialect, "n.taken_at"),
        ago(dialect, "?1")
    );
    let rows = connection.query(&dialect_sql(dialect, &sql), &[Value::Int(older_than.as_secs() as i64)])?;
    rows.first().map(Noted::read).transpose()
}

fn horizon(connection: &mut dyn Connection) -> Result<Option<Vec<u8>>, Error> {
    let sql = "SELECT h.version FROM {hw}horizon h JOIN {hw}identity i ON i.incarnation = h.incarnation";
    let rows = connection.query(&dialect_sql(connection.dialect(), sql), &[])?;
    rows.first().map(|row| bytes(row.first(), "version")).transpose()
}

/// The first version that a watermark has not seen.
fn seen_below(dialect: Dialect, watermark: &[u8]) -> Result<u64, Error> {
    match dialect {
        Dialect::Postgres => Ok(postgres::seen_below(watermark)?),
        Dialect::Sqlite => {
            let version = sqlite::read_watermark(watermark).ok_or_else(|| Error::Database {
                context: "reading the horizon".to_owned(),
                detail: "it is no watermark".to_owned(),
            })?;
            Ok(version.saturating_add(1) as u64)
        }
    }
}

/// The side tables that are there, in quotes.
fn side_tables(connection: &mut dyn Connection) -> Result<Vec<String>, Error> {
    let sql = "SELECT side_table FROM {hw}tracked WHERE installed_hash IS NOT NULL ORDER BY side_table";
    let rows = connection.query(&dialect_sql(connection.dialect(), sql), &[])?;
    rows.iter().map(|row| text(row.first(), "side_table")).collect()
}

/// Page by page, each once. A row that somebody holds is left for the next purge.
fn purge_postgres(
    connection: &mut dyn Connection,
    side_table: &str,
    horizon: &[u8],
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64, Error> {
    let below = seen_below(Dialect::Postgres, horizon)?;
    let size = "SELECT pg_relation_size(to_regclass(?1)) / current_setting('block_size')::bigint";
    let rows = connection.query(size, &[Value::text(side_table)])?;
    // A table that is gone has no size.
    let pages = rows.first().and_then(|row| integer(row.first(), "pages").ok()).unwrap_or_default() as u64;
    let sql = format!(
        "DELETE FROM {side_table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {side_table} \
         WHERE ctid >= format('(%s,0)', ?1::bigint)::tid AND ctid < format('(%s,0)', ?2::bigint)::tid \
         AND version < ?3::text::xid8 FOR UPDATE SKIP LOCKED))"
    );
    let mut deleted = 0;
    for first in (0..pages).step_by(PAGES as usize) {
        if !goes_on() {
            break;
        }
        let values = [Value::Int(first as i64), Value::Int((first + PAGES) as i64), Value::text(below.to_string())];
        deleted += connection.execute(&sql, &values)?;
    }
    Ok(deleted)
}

/// From one key to the next but some thousands.
fn purge_sqlite(
    connection: &mut dyn Connection,
    side_table: &str,
    horizon: &[u8],
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64, Error> {
    let below = seen_below(Dialect::Sqlite, horizon)?;
    let keys = key_of(connection, side_table)?;
    let key = keys.join(", ");
    let range = |from: usize| format!("({key}) >= ({})", parameters(from, keys.len()));
    let until = |from: usize| format!("({key}) < ({})", parameters(from, keys.len()));
    let mut deleted = 0;
    let mut from: Option<Row> = None;
    while goes_on() {
        let begin: Vec<Value> = from.clone().unwrap_or_default();
        let after = if begin.is_empty() { "true".to_owned() } else { range(1) };
        let sql = format!("SELECT {key} FROM {side_table} WHERE {after} ORDER BY {key} LIMIT 1 OFFSET {ROWS}");
        let end = connection.query(&sql, &begin)?.pop();
        let before = if end.is_some() { until(begin.len() + 1) } else { "true".to_owned() };
        let sql = format!("DELETE FROM {side_table} WHERE {after} AND {before} AND version < {below}");
        let values: Vec<Value> = begin.into_iter().chain(end.clone().unwrap_or_default()).collect();
        deleted += connection.execute(&sql, &values)?;
        if end.is_none() {
            break;
        }
        from = end;
    }
    Ok(deleted)
}

fn parameters(first: usize, count: usize) -> String {
    (first..first + count).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ")
}

/// The columns of a side table's key, in quotes.
fn key_of(connection: &mut dyn Connection, side_table: &str) -> Result<Vec<String>, Error> {
    let bare = side_table.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(side_table);
    let name = bare.replace("\"\"", "\"");
    let rows =
        connection.query("SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk", &[Value::text(name)])?;
    rows.iter().map(|row| text(row.first(), "name").map(|name| headwater_model::sql::quote(&name))).collect()
}
