//! The tables, and their installation.

use headwater_protocol::Value;

use super::identity::{Identity, first_identity, note_writer};
use super::sql::{dialect_sql, integer};
use crate::{Connection, Dialect, Error, Mode, sqlite};

/// The version of these tables; a newer one migrates older ones.
pub(super) const FORMAT_VERSION: i64 = 1;

/// In the order in which they are made. Columns that nothing uses yet are marked `reserved`.
const TABLES: &[&str] = &[
    // One row. `incarnation` begins anew when the database is not the one that handed out a watermark.
    "CREATE TABLE IF NOT EXISTS {hw}identity (
        single {int} PRIMARY KEY CHECK (single = 1),
        incarnation {bytes} NOT NULL,
        created_note {bytes} NOT NULL,
        database_id text NOT NULL,
        token_key {bytes} NOT NULL,
        format_version {int} NOT NULL,
        written_by {int}
    )",
    // (time, snapshot, random ID): purge turns age into a version by them, and a watermark names the newest it knew.
    "CREATE TABLE IF NOT EXISTS {hw}note (
        number {serial},
        note {bytes} NOT NULL UNIQUE,
        taken_at {time} NOT NULL DEFAULT {now},
        snapshot {bytes} NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS {hw}remote (
        remote_id {bytes} PRIMARY KEY,
        secret_hash {bytes} NOT NULL,
        user_name text NOT NULL,
        model text NOT NULL,
        model_version {int} NOT NULL,
        upload_sequence {int} NOT NULL DEFAULT 0,
        upload_digest {bytes},
        receipt {bytes},
        own_mark {bytes},
        created_at {time} NOT NULL DEFAULT {now},
        last_sync_at {time} NOT NULL DEFAULT {now},
        download_applied {bytes},
        syncs {int} NOT NULL DEFAULT 0,
        recent_counts {bytes},
        upload_cuts {bytes}
    )",
    "CREATE TABLE IF NOT EXISTS {hw}conflict (
        id {serial},
        at {time} NOT NULL DEFAULT {now},
        remote_id {bytes} NOT NULL,
        user_name text NOT NULL,
        table_name text NOT NULL,
        row_key text NOT NULL,
        old_image text,
        uploaded_image text,
        stored_image text,
        outcome text NOT NULL,
        result_image text
    )",
    "CREATE TABLE IF NOT EXISTS {hw}account (
        user_name text PRIMARY KEY,
        password_hash text NOT NULL,
        disabled {bool} NOT NULL,
        created_at {time} NOT NULL DEFAULT {now}
    )",
    // What this watermark has seen is purged from the side tables; a remote that is older starts afresh. Good for its incarnation.
    "CREATE TABLE IF NOT EXISTS {hw}horizon (
        single {int} PRIMARY KEY CHECK (single = 1),
        version {bytes} NOT NULL,
        note {bytes} NOT NULL,
        incarnation {bytes} NOT NULL
    )",
    // Ranges of integer keys handed to remotes.
    "CREATE TABLE IF NOT EXISTS {hw}key_range (
        table_name text NOT NULL,
        first_key {int} NOT NULL,
        last_key {int} NOT NULL,
        remote_id {bytes},
        PRIMARY KEY (table_name, first_key)
    )",
    // What change tracking was installed for: the hash of the statements that installed it, and of what they made.
    "CREATE TABLE IF NOT EXISTS {hw}tracked (
        table_name text PRIMARY KEY,
        side_table text NOT NULL,
        definition_hash {bytes} NOT NULL,
        installed_hash {bytes}
    )",
];

/// Columns that tables made by an earlier version lack: table, column, type.
const LATER_COLUMNS: &[(&str, &str, &str)] = &[
    ("remote", "recent_counts", "{bytes}"),
    ("identity", "written_by", "{int}"),
    ("remote", "upload_cuts", "{bytes}"),
];

/// By dialect: what the triggers write beside the side tables.
const SQLITE_TABLES: &[&str] = &[
    // One row: the version of the last change.
    "CREATE TABLE IF NOT EXISTS headwater_version (single INTEGER PRIMARY KEY CHECK (single = 1), version INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO headwater_version (single, version) VALUES (1, 0)",
    // One row: who the upload in progress belongs to, for the application's own triggers; NULL outside of uploads.
    "CREATE TABLE IF NOT EXISTS headwater_actor (single INTEGER PRIMARY KEY CHECK (single = 1), user_name TEXT, remote_id BLOB)",
    "INSERT OR IGNORE INTO main.headwater_actor (single) VALUES (1)",
    // A row for each table: the version of its last change (SQLite has one writer, so the last is the greatest).
    "CREATE TABLE IF NOT EXISTS headwater_table_change (table_name TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID",
];

const POSTGRES_TABLES: &[&str] = &[
    // A row for each (table, transaction) that changed it. Those of transactions before that of the table '' have been purged. It had another
    // form before anything was written to it.
    "DO $$ BEGIN
        IF EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass('headwater.table_change') AND attname = 'table_id') THEN
            DROP TABLE headwater.table_change;
        END IF;
    END $$",
    "CREATE TABLE IF NOT EXISTS headwater.table_change (
        table_name text NOT NULL,
        transaction xid8 NOT NULL,
        PRIMARY KEY (table_name, transaction)
    )",
    // The tables below tracked ones: partitions, and tables that inherit.
    "CREATE TABLE IF NOT EXISTS headwater.part (
        table_name text NOT NULL,
        part oid NOT NULL,
        state text NOT NULL CHECK (state IN ('armed', 'tracked', 'late', 'left')),
        tried_at timestamptz,
        PRIMARY KEY (table_name, part)
    )",
    // Transactions by which tracked tables changed without a note: such a table comes whole to every remote that has not seen them. This one
    // has one row a table, and triggers and servers of older builds write to it; new rows go to the one that inherits from it.
    "CREATE TABLE IF NOT EXISTS headwater.refresh (
        table_name text PRIMARY KEY,
        transaction xid8 NOT NULL,
        incarnation bytea NOT NULL
    )",
    // An ALTER TABLE that finds nothing to do waits for every reader all the same.
    "DO $$ BEGIN
        IF to_regclass('headwater.refresh_event') IS NULL THEN
            ALTER TABLE headwater.refresh ADD COLUMN at timestamptz, ADD COLUMN cause text, ADD COLUMN seen_below xid8;
            CREATE TABLE headwater.refresh_event () INHERITS (headwater.refresh);
            ALTER TABLE headwater.refresh_event ALTER COLUMN at SET DEFAULT clock_timestamp(),
                ALTER COLUMN seen_below SET DEFAULT pg_snapshot_xmin(pg_current_snapshot());
            CREATE INDEX refresh_event_transaction ON headwater.refresh_event (table_name, transaction);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                       WHERE attrelid = to_regclass('headwater.tracked') AND attname = 'installed_at') THEN
            ALTER TABLE headwater.tracked ADD COLUMN installed_at timestamptz;
        END IF;
    END $$",
    // What each tracked table was when it was looked at last.
    crate::postgres::table_identity::TABLE_SQL,
];

/// Makes Headwater's own tables where they are missing, and the database's identity. Changes nothing where all is there.
///
/// ```no_run
/// # fn main() -> Result<(), headwater_consolidated::Error> {
/// use headwater_consolidated::{Backend, sqlite::Sqlite, system};
///
/// let database = Sqlite::new("central.db");
/// let mut connection = database.connect()?;
/// let first = system::install(&mut *connection)?;
/// assert_eq!(system::install(&mut *connection)?.incarnation, first.incarnation);
/// # Ok(())
/// # }
/// ```
pub fn install(connection: &mut dyn Connection) -> Result<Identity, Error> {
    connection.begin(Mode::Upload)?;
    let installed = create(connection).and_then(|()| first_identity(connection)).and_then(|identity| {
        note_writer(connection)?;
        Ok(identity)
    });
    crate::finish(connection, installed)
}

fn create(connection: &mut dyn Connection) -> Result<(), Error> {
    let dialect = connection.dialect();
    if dialect == Dialect::Postgres {
        // Two servers that start at once would trip over each other's catalogue rows.
        connection.batch("SELECT pg_advisory_xact_lock(x'6865616477617465'::bigint)")?;
    }
    table_statements(dialect).iter().try_for_each(|statement| connection.batch(statement))?;
    missing_columns(connection)?.iter().try_for_each(|statement| connection.batch(statement))
}

/// The statements that give tables made by an earlier version the columns that they lack. One that lacks none is not locked.
pub(crate) fn missing_columns(connection: &mut dyn Connection) -> Result<Vec<String>, Error> {
    let dialect = connection.dialect();
    let sql = match dialect {
        Dialect::Sqlite => "SELECT count(*) FROM pragma_table_info('headwater_' || ?1) WHERE name = ?2",
        Dialect::Postgres => {
            "SELECT count(*) FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass('headwater.' || ?1::text) AND attname = ?2::text \
             AND NOT attisdropped"
        }
    };
    let mut statements = Vec::new();
    for (table, column, kind) in LATER_COLUMNS {
        let rows = connection.query(sql, &[Value::text(*table), Value::text(*column)])?;
        if integer(rows.first().and_then(|row| row.first()), "count")? == 0 {
            statements.push(dialect_sql(dialect, &format!("ALTER TABLE {{hw}}{table} ADD COLUMN {column} {kind}")));
        }
    }
    Ok(statements)
}

/// The statements that make the tables.
pub(crate) fn table_statements(dialect: Dialect) -> Vec<String> {
    let (before, own, more): (&[&str], _, &[&str]) = match dialect {
        Dialect::Sqlite => (&[], SQLITE_TABLES, &sqlite::identity::TABLES),
        Dialect::Postgres => (&["CREATE SCHEMA IF NOT EXISTS headwater"], POSTGRES_TABLES, &[]),
    };
    before.iter().chain(TABLES).chain(own).chain(more).map(|statement| dialect_sql(dialect, statement)).collect()
}

/// Whether the tables are there.
pub(crate) fn is_installed(connection: &mut dyn Connection) -> Result<bool, Error> {
    let sql = match connection.dialect() {
        Dialect::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE name = 'headwater_tracked'",
        Dialect::Postgres => "SELECT to_regclass('headwater.tracked') IS NOT NULL",
    };
    let rows = connection.query(sql, &[])?;
    Ok(integer(rows.first().and_then(|row| row.first()), "count")? != 0)
}
