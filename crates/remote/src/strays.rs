//! Rows that went up into partitions which never came down.
//!
//! A row is made in a partition that the remote does not hold, and is taken because the user is a member when it goes up. As a rule the
//! download beside it brings that partition whole. But the download may not come, and the membership end: then the remote would keep the
//! row for good, for nobody tells it to leave what it never had. So with the receipt the remote is noted to hold that partition, by a mark
//! that is nobody's: the next download brings it whole, or has it left.
//!
//! Most uploads have no such row. One that has is marked when it is cut, so that the receipts of the others need not look at their rows.

use std::collections::HashSet;

use headwater_model::Direction;
use headwater_model::sql::quote;
use headwater_protocol::Value;
use headwater_protocol::message::{WatermarkEntry, Watermarks};
use rusqlite::{Connection, params};

use crate::error::{Error, While};
use crate::local::{Local, to_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;
use crate::state::read_watermarks;

/// Looks at the rows of a table as they are cut, for one in a partition of which nothing is known.
#[derive(Debug)]
pub(crate) struct Lookout<'p> {
    /// `None`: there is nothing to look for.
    table: Option<&'p TablePlan>,
    /// The partition of the row before.
    last: Vec<Local>,
    pub(crate) found: bool,
}

impl<'p> Lookout<'p> {
    pub(crate) fn new(table: &'p TablePlan) -> Lookout<'p> {
        Lookout { table: Some(table).filter(|table| has_own_partitions(table)), last: Vec::new(), found: false }
    }

    /// A row of one of [`crate::plan::Statements`]' change queries.
    pub(crate) fn row(&mut self, rows: &Rows<'_>, row: &rusqlite::Row<'_>) -> Result<(), Error> {
        let Some(table) = self.table.filter(|_| !self.found) else { return Ok(()) };
        let first = 3 + table.types.len();
        let read = || -> rusqlite::Result<Vec<Local>> {
            table.partition.iter().map(|place| Local::read(row, first + place)).collect()
        };
        let local = read().while_doing("reading the log")?;
        if local != self.last {
            self.found = !is_known(rows, table, &table.partition_bytes(&to_wire(&local, &table.partition_types)))?;
            self.last = local;
        }
        Ok(())
    }
}

/// Marks an upload that is cut: it has such a row. A frame that does not travel.
pub(crate) fn mark(rows: &Rows<'_>, upload: u64) -> Result<(), Error> {
    let sql = "INSERT INTO \"hw_upload\" (\"upload\", \"frame\", \"kind\", \"payload\") VALUES (?, 0, 0, x'')";
    rows.prepare(sql)?.execute([upload as i64]).while_doing("noting a partition").map(drop)
}

pub(crate) fn is_marked(rows: &Rows<'_>, upload: u64) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM \"hw_upload\" WHERE \"upload\" = ? AND \"frame\" = 0";
    rows.prepare(sql)?.exists([upload as i64]).while_doing("looking for partitions")
}

/// Notes the partitions of a table in which an upload's rows lie, where nothing is known of them; and those of the tables below, whose
/// rows lie where their parents do. Tables that only go up are never told to leave anything.
pub(crate) fn note(rows: &Rows<'_>, plan: &Plan, table: &TablePlan, upload: u64) -> Result<(), Error> {
    if !has_own_partitions(table) {
        return Ok(());
    }
    partitions(rows, table, upload)?.iter().try_for_each(|partition| note_partition(rows, plan, table, partition))
}

/// The same for one row that went up: one that met a conflict.
pub(crate) fn note_row(rows: &Rows<'_>, plan: &Plan, table: &TablePlan, row: &[Value]) -> Result<(), Error> {
    if !has_own_partitions(table) {
        return Ok(());
    }
    let values: Vec<Value> = table.partition.iter().filter_map(|place| row.get(*place).cloned()).collect();
    let partition = table.partition_bytes(&values);
    if is_known(rows, table, &partition)? { Ok(()) } else { note_partition(rows, plan, table, &partition) }
}

/// Whether rows of a table come down in partitions that their own columns tell.
fn has_own_partitions(table: &TablePlan) -> bool {
    !table.partition.is_empty() && table.parent.is_none() && table.table.direction != Direction::Upload
}

fn note_partition(rows: &Rows<'_>, plan: &Plan, table: &TablePlan, partition: &[u8]) -> Result<(), Error> {
    let below = table.below.iter().filter_map(|number| plan.table(*number));
    let comes_down = |table: &&TablePlan| table.table.direction != Direction::Upload;
    for table in std::iter::once(table).chain(below.filter(comes_down)) {
        let sql = "INSERT OR IGNORE INTO \"hw_watermark\" (\"table\", \"partition\", \"mark\") VALUES (?, ?, ?)";
        let row = params![table.number, partition, nobodys(rows.connection)?];
        rows.prepare(sql)?.execute(row).while_doing("noting a partition")?;
    }
    Ok(())
}

fn is_known(rows: &Rows<'_>, table: &TablePlan, partition: &[u8]) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM \"hw_watermark\" WHERE \"table\" = ? AND \"partition\" = ?";
    rows.prepare(sql)?.exists(params![table.number, partition]).while_doing("looking for partitions")
}

/// The partitions, as they are written, of an upload's rows that the file has no watermark of.
fn partitions(rows: &Rows<'_>, table: &TablePlan, upload: u64) -> Result<Vec<Vec<u8>>, Error> {
    let columns: Vec<String> =
        table.partition.iter().map(|place| format!("r.{}", quote(&table.table.columns[*place].name))).collect();
    let keys: Vec<String> =
        table.keys("").iter().zip(table.keys("k_")).map(|(own, key)| format!("r.{own} = l.{key}")).collect();
    let sql = format!(
        "SELECT DISTINCT {} FROM {} AS l JOIN {} AS r ON {} WHERE l.\"upload\" = ?",
        columns.join(", "),
        table.log(),
        table.name(),
        keys.join(" AND "),
    );
    let mut select = rows.prepare(&sql)?;
    let read = |row: &rusqlite::Row<'_>| (0..columns.len()).map(|place| Local::read(row, place)).collect();
    let found = select.query_map([upload as i64], read).and_then(Iterator::collect::<Result<Vec<Vec<Local>>, _>>);
    let mut partitions = Vec::new();
    for local in found.while_doing("looking for partitions")? {
        let partition = table.partition_bytes(&to_wire(&local, &table.partition_types));
        if !is_known(rows, table, &partition)? {
            partitions.push(partition);
        }
    }
    Ok(partitions)
}

/// The number of the mark that is nobody's.
fn nobodys(connection: &Connection) -> Result<i64, Error> {
    let make = "INSERT INTO \"hw_mark\" (\"bytes\") SELECT x'' WHERE NOT EXISTS (SELECT 1 FROM \"hw_mark\" WHERE \"bytes\" = x'')";
    let find = || -> rusqlite::Result<i64> {
        connection.execute(make, [])?;
        connection.query_row("SELECT min(\"id\") FROM \"hw_mark\" WHERE \"bytes\" = x''", [], |row| row.get(0))
    };
    find().while_doing("noting a partition")
}

/// A download has come that was asked for before they were noted: they are noted still, but for those in which nothing lies any more
/// (`is_empty`). The consolidated database spells such a partition otherwise, and has sent its rows back in that spelling.
pub(crate) fn keep(
    connection: &Connection,
    seen: &mut Watermarks,
    left: &HashSet<(u32, Vec<u8>)>,
    is_empty: impl Fn(u32, &[u8]) -> Result<bool, Error>,
) -> Result<(), Error> {
    let before = read_watermarks(connection)?;
    let known: HashSet<(u32, Vec<u8>)> =
        seen.entries.iter().map(|entry| (entry.table, entry.partition.clone())).collect();
    let is_nobodys = |entry: &WatermarkEntry| before.marks.get(entry.mark as usize).is_some_and(Vec::is_empty);
    let stray = before.entries.iter().filter(|entry| {
        let place = (entry.table, entry.partition.clone());
        is_nobodys(entry) && !known.contains(&place) && !left.contains(&place)
    });
    let mark = seen.marks.len() as u32;
    let mut kept = Vec::new();
    for entry in stray {
        if !is_empty(entry.table, &entry.partition)? {
            kept.push(WatermarkEntry { mark, ..entry.clone() });
        }
    }
    if !kept.is_empty() {
        seen.marks.push(Vec::new());
        seen.entries.extend(kept);
    }
    Ok(())
}
