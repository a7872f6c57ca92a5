//! Files that were made before, put right when they are opened.

use headwater_model::remote_sql;
use rusqlite::Connection;

use crate::database::Database;
use crate::error::{Error, While};

pub(crate) fn put_right(database: &Database) -> Result<(), Error> {
    list_each_change(database)?;
    keep_frames_where_they_are(database)?;
    keep_digests(database)?;
    keep_key_ranges(database)?;
    tell_leaving(database)?;
    keep_what_is_checked(database)?;
    tell_held_rows_that_leave(database)
}

/// The list of changes set aside had room for one change of each row.
fn list_each_change(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 FROM sqlite_schema WHERE name = 'hw_set_aside' AND sql LIKE '%UNIQUE%'";
    make_anew(database, is_old, || {
        let make = made(&["\"hw_set_aside\""]);
        format!(
            "CREATE TEMP TABLE hw_kept AS SELECT * FROM \"hw_set_aside\"; \
             CREATE TEMP TABLE hw_kept_number AS SELECT seq FROM sqlite_sequence WHERE name = 'hw_set_aside'; \
             DROP TABLE \"hw_set_aside\"; {make} INSERT INTO \"hw_set_aside\" SELECT * FROM temp.hw_kept; \
             DELETE FROM sqlite_sequence WHERE name = 'hw_set_aside'; \
             INSERT INTO sqlite_sequence (name, seq) SELECT 'hw_set_aside', seq FROM temp.hw_kept_number; \
             DROP TABLE temp.hw_kept; DROP TABLE temp.hw_kept_number"
        )
    })
}

/// `hw_upload` had the frozen upload's frames alone, and `hw_sent` a copy of those that were sent, their receipts as frame 0.
fn keep_frames_where_they_are(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 FROM pragma_table_info('hw_sent') WHERE name = 'frame'";
    make_anew(database, is_old, || {
        let make = made(&["\"hw_upload\"", "\"hw_sent\""]);
        format!(
            "CREATE TEMP TABLE hw_frozen AS SELECT * FROM \"hw_upload\"; \
             CREATE TEMP TABLE hw_kept AS SELECT * FROM \"hw_sent\"; \
             DROP TABLE \"hw_upload\"; DROP TABLE \"hw_sent\"; {make} \
             INSERT INTO \"hw_upload\" SELECT s.frozen, f.frame, f.kind, f.payload FROM temp.hw_frozen f, hw_state s; \
             INSERT INTO \"hw_upload\" SELECT frozen, 0, 0, x'' FROM hw_state WHERE frozen > 0; \
             INSERT INTO \"hw_upload\" SELECT upload, frame, kind, payload FROM temp.hw_kept WHERE frame > 0; \
             INSERT INTO \"hw_sent\" SELECT upload, sum(length(payload)), max(iif(frame = 0, payload, NULL)), NULL \
             FROM temp.hw_kept GROUP BY upload; \
             DROP TABLE temp.hw_frozen; DROP TABLE temp.hw_kept"
        )
    })
}

/// Which uploads were sent was not known beside their frames.
fn keep_digests(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pragma_table_info('hw_sent') WHERE name = 'digest')";
    make_anew(database, is_old, || "ALTER TABLE \"hw_sent\" ADD COLUMN \"digest\" BLOB".to_owned())
}

/// The key ranges of a table went with it.
fn keep_key_ranges(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'hw_key_range_gone')";
    make_anew(database, is_old, || made(&["\"hw_key_range_gone\""]))
}

/// Triggers of the application's could not tell a row that leaves from one that is deleted.
fn tell_leaving(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'hw_leaving')";
    make_anew(database, is_old, || made(&["\"hw_leaving\""]))
}

/// Whether the indexes of a table fit it was not looked at.
fn keep_what_is_checked(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pragma_table_info('hw_tracking') WHERE name = 'checked')";
    make_anew(database, is_old, || "ALTER TABLE \"hw_tracking\" ADD COLUMN \"checked\" INTEGER".to_owned())
}

/// A held deletion did not say whether its row only leaves the remote.
fn tell_held_rows_that_leave(database: &Database) -> Result<(), Error> {
    let is_old = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pragma_table_info('hw_held') WHERE name = 'leaves')";
    make_anew(database, is_old, || {
        "ALTER TABLE \"hw_held\" ADD COLUMN \"leaves\" INTEGER NOT NULL DEFAULT 0".to_owned()
    })
}

/// Looked at again once nobody else writes.
fn make_anew(database: &Database, is_old: &str, sql: impl Fn() -> String) -> Result<(), Error> {
    let is_old = |connection: &Connection| -> Result<bool, Error> {
        connection.prepare_cached(is_old).and_then(|mut select| select.exists([])).while_doing("reading the catalogue")
    };
    if !is_old(&database.connection)? {
        return Ok(());
    }
    let what = "making Headwater's own tables anew";
    database.write(what, |connection| {
        if !is_old(connection)? {
            return Ok(());
        }
        connection.execute_batch(&sql()).while_doing(what)
    })
}

/// What makes these tables and their indexes.
fn made(names: &[&str]) -> String {
    let statements = remote_sql::system_tables().split_inclusive(";\n");
    statements.filter(|statement| names.iter().any(|name| statement.contains(name))).collect()
}
