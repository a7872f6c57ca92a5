//! Tables whose change tracking was gone for a while: what was written to them meanwhile is in no log.
//!
//! The triggers of a table are kept on record as they were made. Where others, or none, are found when the file is opened or synced,
//! they are made again and the table is in doubt, until two downloads have shown what became of it:
//!
//! | | the table comes down | a row that differs and has no pending change |
//! |---|---|---|
//! | 1 | as ever, what changed there | gives way, and is on the list of changes set aside: perhaps it was changed here too |
//! | 2 | whole, in the same sync | was changed here, made here or deleted here: it is set aside where it stands, with the consolidated row as its old image |
//!
//! Both under the code `untracked`. So nothing is dropped in silence, and nothing is sent that nobody asked for.
//!
//! *Caveats.* Triggers that somebody drops and makes again exactly as they were leave no trace. Of a table that only goes up nothing
//! comes down to compare with: that its tracking was gone is only logged.

use headwater_model::Direction;
use rusqlite::{Connection, OptionalExtension, params};

use crate::database::Database;
use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};

/// How much is known of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// All changes are in the log.
    None,
    /// Tracking was gone since the last download.
    Since,
    /// What had changed at the consolidated database has come; whatever differs from it was changed here.
    Compare,
}

/// The triggers that stand on a table under Headwater's names.
fn found(connection: &Connection, table: &TablePlan) -> rusqlite::Result<String> {
    let sql = "SELECT coalesce(group_concat(sql, char(10)), '') FROM (SELECT sql FROM sqlite_schema WHERE type = 'trigger' \
               AND tbl_name = ? COLLATE NOCASE AND name LIKE 'hw\\_%' ESCAPE '\\' ORDER BY name)";
    connection.prepare_cached(sql)?.query_row([&table.table.name], |row| row.get(0))
}

/// Puts the triggers of a table on record, as they have just been made.
pub(crate) fn record(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let record = || {
        let sql = "INSERT INTO \"hw_tracking\" (\"table\", \"triggers\") VALUES (?1, ?2) \
                   ON CONFLICT DO UPDATE SET \"triggers\" = excluded.\"triggers\"";
        connection.execute(sql, params![table.number, found(connection, table)?])
    };
    record().while_doing("recording the triggers").map(drop)
}

/// Puts a table in doubt whose triggers are not the ones on record; whether they are not. (They may be out of date and on record: the
/// application has a unique index since.)
pub(crate) fn doubt(connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
    let doubt = || {
        let sql = "SELECT \"triggers\" FROM \"hw_tracking\" WHERE \"table\" = ?";
        let recorded: Option<String> = connection.query_row(sql, [table.number], |row| row.get(0)).optional()?;
        let found = found(connection, table)?;
        if recorded.is_none_or(|recorded| recorded == found) {
            return Ok(false);
        }
        let sql = "UPDATE \"hw_tracking\" SET \"doubt\" = 1 WHERE \"table\" = ?";
        connection.execute(sql, [table.number])?;
        Ok(true)
    };
    doubt().while_doing("looking at the triggers")
}

/// The doubts, by table.
pub(crate) fn doubts(connection: &Connection, plan: &Plan) -> Result<Vec<Doubt>, Error> {
    let mut doubts = vec![Doubt::None; plan.tables.len()];
    let read = || -> rusqlite::Result<Vec<(usize, i64)>> {
        let sql = "SELECT \"table\", \"doubt\" FROM \"hw_tracking\" WHERE \"doubt\" > 0";
        let mut select = connection.prepare_cached(sql)?;
        select.query_map([], |row| Ok((row.get::<_, u32>(0)? as usize, row.get(1)?)))?.collect()
    };
    for (number, doubt) in read().while_doing("reading hw_tracking")? {
        if let Some(place) = doubts.get_mut(number) {
            *place = if doubt == 1 { Doubt::Since } else { Doubt::Compare };
        }
    }
    Ok(doubts)
}

/// After a download: tables in doubt are to come whole next, to be compared. Whether there are any.
pub(crate) fn ask(database: &Database, plan: &Plan) -> Result<bool, Error> {
    if doubts(&database.connection, plan)?.iter().all(|doubt| *doubt != Doubt::Since) {
        return Ok(false);
    }
    database.write("asking for tables in doubt", |connection| {
        let mut any = false;
        for (table, doubt) in plan.tables.iter().zip(doubts(connection, plan)?) {
            if doubt != Doubt::Since {
                continue;
            }
            let comes_down = table.table.direction != Direction::Upload;
            any |= comes_down;
            set(connection, table, if comes_down { 2 } else { 0 })?;
            let sql = "DELETE FROM \"hw_watermark\" WHERE \"table\" = ?";
            connection.execute(sql, [table.number]).while_doing("forgetting what has been seen")?;
        }
        Ok(any)
    })
}

/// Ends the doubt about a table.
pub(crate) fn end(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    set(connection, table, 0)
}

fn set(connection: &Connection, table: &TablePlan, doubt: i64) -> Result<(), Error> {
    let sql = "UPDATE \"hw_tracking\" SET \"doubt\" = ? WHERE \"table\" = ?";
    connection.execute(sql, params![doubt, table.number]).while_doing("writing hw_tracking").map(drop)
}
