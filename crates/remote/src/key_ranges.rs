//! The ranges of integer keys that are this remote's: triggers hold inserts to them, `hw_next_key` has the next key of each table.

use headwater_model::remote_sql;
use headwater_protocol::message::{KeyRange, KeyRanges};
use rusqlite::{Connection, params};

use crate::database::Database;
use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};
use crate::state::State;

/// What is left of each range. The newest of a table is told even when it is used up (as its last key), so that the server knows that
/// it came.
pub(crate) fn left(connection: &Connection, plan: &Plan) -> Result<Option<KeyRanges>, Error> {
    if plan.model.tables.iter().all(|table| table.key_range.is_none()) {
        return Ok(None);
    }
    let sql = "SELECT \"table\", min(\"next\", \"last\"), \"last\" FROM \"hw_key_range\" AS r WHERE \"next\" <= \"last\" \
               OR \"first\" = (SELECT max(\"first\") FROM \"hw_key_range\" WHERE \"table\" = r.\"table\") ORDER BY 1, 3";
    let mut select = connection.prepare_cached(sql).while_doing("reading the key ranges")?;
    let found = select
        .query_map([], |row| Ok(KeyRange { table: row.get(0)?, first: row.get(1)?, last: row.get(2)? }))
        .and_then(Iterator::collect);
    Ok(Some(KeyRanges { ranges: found.while_doing("reading the key ranges")? }))
}

/// Keeps the ranges of a table that goes with a version of the model, by its name.
pub(crate) fn keep(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let sql = "INSERT OR REPLACE INTO \"hw_key_range_gone\" (\"name\", \"first\", \"last\", \"next\") \
               SELECT ?2, \"first\", \"last\", \"next\" FROM \"hw_key_range\" WHERE \"table\" = ?1";
    connection.execute(sql, params![table.number, table.table.name]).while_doing("keeping key ranges").map(drop)
}

/// Gives a table that comes back what is left of its ranges: none of their keys is used a second time.
pub(crate) fn give_back(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let (number, name) = (table.number, &table.table.name);
    let sql = "INSERT INTO \"hw_key_range\" (\"table\", \"first\", \"last\", \"next\") \
               SELECT ?1, \"first\", \"last\", \"next\" FROM \"hw_key_range_gone\" WHERE \"name\" = ?2";
    connection.execute(sql, params![number, name]).while_doing("giving key ranges back")?;
    let sql = "DELETE FROM \"hw_key_range_gone\" WHERE \"name\" = ?";
    connection.execute(sql, [name]).while_doing("giving key ranges back").map(drop)
}

/// Notes the ranges that came; those that are known stay as they are.
pub(crate) fn take(connection: &Connection, ranges: &KeyRanges) -> Result<(), Error> {
    let sql =
        "INSERT OR IGNORE INTO \"hw_key_range\" (\"table\", \"first\", \"last\", \"next\") VALUES (?1, ?2, ?3, ?2)";
    for KeyRange { table, first, last } in &ranges.ranges {
        connection.execute(sql, params![table, first, last]).while_doing("noting a key range")?;
    }
    Ok(())
}

/// Moves ranges on whose next key has a row: one that came down, or that was written while change tracking was off.
pub(crate) fn pass_taken(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    for table in &plan.tables {
        if let Some(sql) = remote_sql::pass_taken_keys(table.number as usize, &table.table) {
            connection.execute(&sql, []).while_doing("passing over keys that are taken")?;
        }
    }
    Ok(())
}

/// The same outside a transaction, which is only begun where there is such a range: a file that is opened is not always written to.
pub(crate) fn pass_taken_alone(database: &Database, plan: &Plan) -> Result<(), Error> {
    for table in &plan.tables {
        let Some(sql) = remote_sql::taken_keys(table.number as usize, &table.table) else { continue };
        let any = database.connection.prepare(&sql).and_then(|mut select| select.exists([]));
        if any.while_doing("reading the key ranges")? {
            return database.write("passing over keys that are taken", |connection| {
                // Another version of the model, since the file was opened, has other table numbers; whoever changed it has passed over them.
                let is_as_read = State::read(connection)?.fingerprint == plan.fingerprint;
                if is_as_read { pass_taken(connection, plan) } else { Ok(()) }
            });
        }
    }
    Ok(())
}

/// Forgets all ranges: they are those of the file that this one is a copy of.
pub(crate) fn forget(connection: &Connection) -> Result<(), Error> {
    let sql = "DELETE FROM \"hw_key_range\"; DELETE FROM \"hw_key_range_gone\"";
    connection.execute_batch(sql).while_doing("forgetting the key ranges")
}
