//! Tables whose change tracking was gone for a while: what was written to them meanwhile is in no log.
//!
//! The triggers of a table are kept on record as they were made. Where others, or none, are found when the file is opened or synced,
//! they are made again and the table is in doubt, until three downloads have shown what became of it:
//!
//! | | the table comes down | a row that differs and has no pending change |
//! |---|---|---|
//! | 1 | as ever, what changed there | gives way, and is on the list of changes set aside: perhaps it was changed here too |
//! | 2 | whole, in the same sync | was changed here, made here or deleted here: it is set aside where it stands, with the consolidated row as its old image |
//! | 3 | what changed there since the first | was not changed here alone, if it is one of the second's: it gives way as in the first |
//!
//! A unique index that the application made, and that the triggers on record don't know, is such a gap too: `REPLACE` may have deleted rows
//! through it.
//!
//! All under the code `untracked`. So nothing is dropped in silence, and nothing is sent that nobody asked for. What has given way has no
//! old image that anybody is sure of: sent again, it is an insert to the consolidated database, or an update of a row that is deleted
//! there, and so a conflict wherever the rows differ.
//!
//! A table that comes whole before its changes have come (a restored database, tracking that was gone there too) is compared at once: a
//! row that differs from the one that came gives way, one that did not come counts as made here, and one that is not here as new there.
//! Unless the remote starts afresh, so that everything came, the second and third download follow.
//!
//! Tables that take their partition from one in doubt come whole with the second download too, without being compared: the first took what
//! lay in a partition that is left by where its parents stood here. Of theirs, what has no pending change is as it comes.
//!
//! Rows in none of the remote's partitions never come: they go before the second download, and so count as made here. What stands in a
//! partition that becomes the remote's with the first was written here too, or is below what was moved here: it is not cleared away for
//! the rows that come, so that the second finds it. Of a row that comes in one that becomes the remote's with the second nobody knows who
//! moved it there: what stood here gives way as in the first. Of a partition that is left before the second has come nothing comes to
//! compare with: the list has all of its rows.
//!
//! Of a table that only goes up nothing comes down to compare with: its rows are listed instead ([`crate::unsent`]).
//!
//! Somebody may make a table anew and put the triggers back exactly as they were, as tools do that follow SQLite's steps for changes of a
//! table. The catalogue shows it: the table is newer than its log, and the triggers are newer than a view made after them.
//!
//! *Caveats.* A program that edits the catalogue itself (`writable_schema`) leaves no trace there. A deletion gives way without a trace, and
//! one in a table that only goes up is not noticed, nor is one in a partition that is left before the second download has come: nothing in
//! the file tells that the row was there, and when the partition is the remote's again it comes as a row that is new here. A list of all
//! keys, kept for that alone, would be as long as the table.

use std::collections::HashSet;

use headwater_model::Direction;
use headwater_model::remote_sql::{Unique, create_log, log_name, marker_name};
use headwater_model::sql::quote;
use headwater_protocol::message::{WatermarkEntry, Watermarks};
use rusqlite::{Connection, OptionalExtension, params};

use crate::database::Database;
use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};
use crate::state::read_watermarks;

/// How much is known of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// All changes are in the log.
    None,
    /// Tracking was gone since the last download.
    Since,
    /// What had changed at the consolidated database has come; the table is asked for whole, and whatever differs was changed here.
    Compare,
    /// It has come whole. What changed at the consolidated database in between is asked for.
    Between,
    /// It comes whole, or a partition of it, though what had changed at the consolidated database has not come: who changed a row is not
    /// known.
    AtOnce,
}

impl Doubt {
    /// Whether a row that comes down now was perhaps changed there alone, though it is set aside here as untracked.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Doubt::Since | Doubt::Between | Doubt::AtOnce)
    }
}

/// The triggers that stand on a table under Headwater's names.
fn found(connection: &Connection, table: &TablePlan) -> rusqlite::Result<String> {
    let sql = "SELECT coalesce(group_concat(sql, char(10)), '') FROM (SELECT sql FROM sqlite_schema WHERE type = 'trigger' \
               AND tbl_name = ? COLLATE NOCASE AND name LIKE 'hw\\_%' ESCAPE '\\' ORDER BY name)";
    connection.prepare_cached(sql)?.query_row([&table.table.name], |row| row.get(0))
}

/// Whether a table has none of Headwater's triggers, as one that was made anew.
pub(crate) fn has_none(connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
    found(connection, table).while_doing("looking at the triggers").map(|found| found.is_empty())
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

/// What may have been written to a table without being logged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// Anything: its triggers are not the ones on record.
    Triggers,
    /// What `REPLACE` has deleted through a unique index that the triggers on record do not know.
    Index,
}

/// Puts a table in doubt whose triggers are not the ones on record, or don't know one of the application's own unique indexes (`uniques`;
/// `earlier`: as earlier builds wrote them).
pub(crate) fn doubt(
    connection: &Connection,
    table: &TablePlan,
    uniques: &[Unique],
    earlier: &[Unique],
) -> Result<Option<Gap>, Error> {
    let gap = gap(connection, table, uniques, earlier).while_doing("looking at the triggers")?;
    if gap.is_some() {
        begin(connection, table)?;
    }
    Ok(gap)
}

fn gap(
    connection: &Connection,
    table: &TablePlan,
    uniques: &[Unique],
    earlier: &[Unique],
) -> rusqlite::Result<Option<Gap>> {
    let sql = "SELECT \"triggers\" FROM \"hw_tracking\" WHERE \"table\" = ?";
    let recorded: Option<String> = connection.query_row(sql, [table.number], |row| row.get(0)).optional()?;
    let found = found(connection, table)?;
    let is_known = |unique: &Unique| unique.is_known(&table.table, &found);
    match recorded {
        None => Ok(None),
        Some(recorded) if recorded != found || order(connection, table)?.is_broken() => Ok(Some(Gap::Triggers)),
        Some(_)
            if !table.is_tracked()
                || uniques.iter().zip(earlier).all(|(now, earlier)| is_known(now) || is_known(earlier)) =>
        {
            Ok(None)
        }
        Some(_) => Ok(has_rows_or_changes(connection, table)?.then_some(Gap::Index)),
    }
}

/// What stands in front of what in the catalogue. New entries come last, `ALTER TABLE` leaves them where they are, and `VACUUM` keeps the order
/// of tables, and that of views and triggers.
#[derive(Clone, Copy, Debug)]
struct Order {
    /// The table is newer than its log.
    is_rebuilt: bool,
    /// A trigger is newer than the marker that was made after all of them.
    has_newer_trigger: bool,
    /// A file of an earlier build has none.
    has_marker: bool,
}

impl Order {
    /// The table, or a trigger of it, was made again by somebody else.
    fn is_broken(self) -> bool {
        self.has_marker && (self.is_rebuilt || self.has_newer_trigger)
    }
}

fn order(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Order> {
    let sql = "WITH s AS (SELECT rowid AS place, type, name, tbl_name FROM sqlite_schema), \
               marker AS (SELECT place FROM s WHERE type = 'view' AND name = ?3) \
               SELECT EXISTS (SELECT 1 FROM s AS t, s AS l WHERE t.type = 'table' AND t.name = ?1 COLLATE NOCASE \
               AND l.type = 'table' AND l.name = ?2 AND t.place > l.place), \
               EXISTS (SELECT 1 FROM s, marker WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE \
               AND name LIKE 'hw\\_%' ESCAPE '\\' AND s.place > marker.place), EXISTS (SELECT 1 FROM marker)";
    let names = [table.table.name.clone(), log_name(&table.table), marker_name(&table.table)];
    connection.prepare_cached(sql)?.query_row(names, |row| {
        Ok(Order { is_rebuilt: row.get(0)?, has_newer_trigger: row.get(1)?, has_marker: row.get(2)? })
    })
}

/// Whether somebody else has made the table again since it was looked at last.
pub(crate) fn is_rebuilt(connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
    let order = order(connection, table).while_doing("reading the catalogue")?;
    Ok(order.has_marker && order.is_rebuilt)
}

/// Whether nothing shows that somebody else has made the table or its triggers again, and something would.
pub(crate) fn is_in_order(connection: &Connection, table: &TablePlan) -> rusqlite::Result<bool> {
    let order = order(connection, table)?;
    Ok(order.has_marker && !order.is_broken())
}

/// After the triggers of a table have been made: the log comes behind the table, and the marker behind the triggers.
pub(crate) fn put_in_order(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let order = order(connection, table).while_doing("reading the catalogue")?;
    if table.is_tracked() && order.is_rebuilt {
        let (log, make) = (table.log(), create_log(&table.table));
        let sql = format!(
            "CREATE TEMP TABLE hw_kept_log AS SELECT * FROM {log}; DROP TABLE {log}; {make} \
             INSERT INTO {log} SELECT * FROM temp.hw_kept_log; DROP TABLE temp.hw_kept_log"
        );
        connection.execute_batch(&sql).while_doing("making a log anew")?;
    }
    let marker = quote(&marker_name(&table.table));
    let sql = format!("DROP VIEW IF EXISTS {marker}; CREATE VIEW {marker} AS SELECT 1 AS made");
    connection.execute_batch(&sql).while_doing("marking the triggers")
}

fn has_rows_or_changes(connection: &Connection, table: &TablePlan) -> rusqlite::Result<bool> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {}) OR EXISTS (SELECT 1 FROM {})", table.name(), table.log());
    connection.query_row(&sql, [], |row| row.get(0))
}

/// Whether any table is in doubt.
pub(crate) fn any(connection: &Connection, plan: &Plan) -> Result<bool, Error> {
    Ok(doubts(connection, plan)?.iter().any(|doubt| *doubt != Doubt::None))
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
            *place = match doubt {
                1 => Doubt::Since,
                2 => Doubt::Compare,
                _ => Doubt::Between,
            };
        }
    }
    Ok(doubts)
}

/// The doubts that downloads end: those about tables that come down.
pub(crate) fn doubts_by_download(connection: &Connection, plan: &Plan) -> Result<Vec<Doubt>, Error> {
    let mut doubts = doubts(connection, plan)?;
    let upload_only =
        plan.tables.iter().zip(&mut doubts).filter(|(table, _)| table.table.direction == Direction::Upload);
    upload_only.for_each(|(_, doubt)| *doubt = Doubt::None);
    Ok(doubts)
}

/// Whether a table is in doubt: what is set aside in it as untracked is not to be sent yet.
pub(crate) fn is_in_doubt(connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM \"hw_tracking\" WHERE \"table\" = ? AND \"doubt\" > 0";
    let exists = connection.prepare_cached(sql).and_then(|mut select| select.exists([table.number]));
    exists.while_doing("reading hw_tracking")
}

/// After a download: tables in doubt are to come whole next, to be compared, and then what changed in between. Whether there are any.
pub(crate) fn ask(database: &Database, plan: &Plan) -> Result<bool, Error> {
    let doubts = doubts_by_download(&database.connection, plan)?;
    if !doubts.contains(&Doubt::Since) {
        return Ok(doubts.contains(&Doubt::Between));
    }
    database.write("asking for tables in doubt", |connection| {
        let doubts = doubts_by_download(connection, plan)?;
        let since = plan.tables.iter().zip(doubts).filter(|(_, doubt)| *doubt == Doubt::Since);
        since.map(|(table, _)| table).try_for_each(|table| set(connection, table, 2))?;
        Ok(true)
    })
}

/// Whether a table comes whole because one that it takes its partition from does, to be compared: where its rows lay until now was judged
/// by parents that may have been moved without a trace.
pub(crate) fn comes_along(plan: &Plan, doubts: &[Doubt], table: &TablePlan) -> bool {
    let doubt = |table: &TablePlan| doubts[table.number as usize];
    let mut above = std::iter::successors(plan.parent(table), |table| plan.parent(table));
    table.table.direction != Direction::Upload
        && matches!(doubt(table), Doubt::None | Doubt::Between)
        && above.any(|table| doubt(table) == Doubt::Compare)
}

/// For a request: tables that are to be compared, and what is below them, get a mark that is nobody's, and so come whole.
pub(crate) fn ask_whole(connection: &Connection, plan: &Plan, seen: &mut Watermarks) -> Result<(), Error> {
    let doubts = doubts(connection, plan)?;
    let nobodys = seen.marks.len() as u32;
    let is_asked =
        |table: &TablePlan| doubts[table.number as usize] == Doubt::Compare || comes_along(plan, &doubts, table);
    let asked = seen.entries.iter_mut().filter(|entry| plan.table(entry.table).is_some_and(is_asked));
    let count = asked.map(|entry| entry.mark = nobodys).count();
    if count > 0 {
        seen.marks.push(Vec::new());
    }
    Ok(())
}

/// After such a download: what had been seen of these tables before it is kept, so that what changed in between comes (again).
pub(crate) fn keep_seen(connection: &Connection, tables: &[u32], seen: &mut Watermarks) -> Result<(), Error> {
    if tables.is_empty() {
        return Ok(());
    }
    let before = read_watermarks(connection)?;
    let kept: Vec<_> = before.entries.iter().filter(|entry| tables.contains(&entry.table)).collect();
    let places: HashSet<_> = kept.iter().map(|entry| (entry.table, &entry.partition)).collect();
    seen.entries.retain(|entry| !places.contains(&(entry.table, &entry.partition)));
    let first = seen.marks.len() as u32;
    seen.entries.extend(kept.into_iter().map(|entry| WatermarkEntry { mark: first + entry.mark, ..entry.clone() }));
    seen.marks.extend(before.marks);
    Ok(())
}

/// A table has been compared with what was asked for: what changed in between is asked for next.
pub(crate) fn compared(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    set(connection, table, 3)
}

/// What a person is told of a table in doubt.
pub(crate) fn what_follows(table: &TablePlan) -> &'static str {
    match table.table.direction {
        Direction::Upload => "the next sync sets the rows of the table aside",
        _ => "the next sync compares the table",
    }
}

/// Puts a table in doubt.
pub(crate) fn begin(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    set(connection, table, 1)
}

/// Puts all tables in doubt that go both ways. Those that only come down come whole: what was written to them is nobody's. Gives how many
/// tables that are.
pub(crate) fn begin_all(connection: &Connection, plan: &Plan) -> Result<u64, Error> {
    let come_down = plan.tables.iter().filter(|table| table.table.direction != Direction::Upload);
    let begin = |table: &TablePlan| {
        if table.is_tracked() {
            return begin(connection, table);
        }
        let forget = "DELETE FROM \"hw_watermark\" WHERE \"table\" = ?";
        connection.execute(forget, [table.number]).while_doing("asking for a comparison").map(drop)
    };
    come_down.map(|table| begin(table).map(|()| 1)).sum()
}

/// Ends the doubt about a table.
pub(crate) fn end(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    set(connection, table, 0)
}

fn set(connection: &Connection, table: &TablePlan, doubt: i64) -> Result<(), Error> {
    let sql = "UPDATE \"hw_tracking\" SET \"doubt\" = ? WHERE \"table\" = ?";
    connection.execute(sql, params![doubt, table.number]).while_doing("writing hw_tracking").map(drop)
}
