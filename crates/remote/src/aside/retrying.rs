//! Sending changes set aside again, as they are.

use std::collections::BTreeMap;

use headwater_protocol::message::RefusalCode;
use rusqlite::params_from_iter;

use super::{Note, references, refused};
use crate::cut::{log_columns, set_aside_mark};
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::Plan;
use crate::rows::{Pending, Placed, Rows};
use crate::untracked;

/// All that can be; says of those that can't be retried why not, by their numbers. Whether what a row refers to is there shows when all are
/// made again: then it is done once more without those that lack it, until none does.
pub(super) fn what_can_be(rows: &Rows<'_>, plan: &Plan, notes: &[Note<'_>]) -> Result<BTreeMap<i64, String>, Error> {
    let batch = |sql: &str| rows.connection.execute_batch(sql).while_doing("retrying changes set aside");
    let mut lacking = BTreeMap::new();
    batch("SAVEPOINT hw_retry_all")?;
    loop {
        let mut left = lacking.clone();
        for note in notes.iter().filter(|note| !lacking.contains_key(&note.number)) {
            batch("SAVEPOINT hw_retry")?;
            match retry(rows, note) {
                Ok(()) => {}
                Err(Error::Configuration { what }) => {
                    batch("ROLLBACK TO hw_retry")?;
                    left.insert(note.number, what);
                }
                Err(error) => return Err(error),
            }
            batch("RELEASE hw_retry")?;
        }
        let more = references::lacking(rows, plan, notes.iter().filter(|note| !left.contains_key(&note.number)))?;
        if more.is_empty() {
            batch("RELEASE hw_retry_all")?;
            return Ok(left);
        }
        lacking.extend(more);
        batch("ROLLBACK TO hw_retry_all")?;
    }
}

pub(super) fn retry(rows: &Rows<'_>, note: &Note<'_>) -> Result<(), Error> {
    let table = note.table;
    if !table.is_tracked() {
        return Err(refused(format!(
            "change {} can't be sent: table {:?} only comes down; drop it",
            note.number, table.table.name
        )));
    }
    if note.is_gone {
        return Err(refused(format!(
            "change {} went with table {:?}, and what it made of the row is not known: make it once more, and drop it from the list",
            note.number, table.table.name
        )));
    }
    if note.is_in_gone_column() {
        return Err(refused(format!(
            "change {} can't be sent: table {:?} does not have the column any more that it is of; drop it",
            note.number, table.table.name
        )));
    }
    // A row that only the list has would take the place of whatever was written without a trace.
    if (note.is_untracked || !note.in_place) && untracked::is_in_doubt(rows.connection, table)? {
        let (name, number) = (&table.table.name, note.number);
        return Err(refused(if note.in_place {
            format!("what others changed in table {name:?} while change {number} was made is not known yet: sync first")
        } else {
            format!("change tracking of table {name:?} has been off since change {number} was listed: sync first")
        }));
    }
    let key = from_wire(&rows.key_of_bytes(table, &note.key)?);
    let pending = rows.pending(table, &key)?;
    match (note.in_place, pending) {
        (true, pending) => {
            add_again(rows, note, pending.as_ref())?;
            set_aside_mark(rows.connection, table, &key, 0)?;
        }
        (false, Some(pending)) if !pending.is_nothing() => {
            return Err(refused(format!(
                "change {} can't be made again: its row of table {:?} has been changed since; drop it, or sync first",
                note.number, table.table.name
            )));
        }
        // What stands there is no consolidated row, or not yet.
        (false, _) if references::is_on_its_way(rows, table, &key)? => {
            return Err(refused(format!(
                "change {} can't be made again yet: whether a later change of its row of table {:?} has arrived is not known: sync first",
                note.number, table.table.name
            )));
        }
        (false, _) => make_again(rows, note, &key)?,
    }
    rows.drop_numbered(note.number)
}

/// What a change added to counters, and what counts as added since its answer could not be had, is to be added once more.
fn add_again(rows: &Rows<'_>, note: &Note<'_>, pending: Option<&Pending>) -> Result<(), Error> {
    let (Some(pending), Some(old), false) = (pending, &note.old, note.table.table.sum.is_empty()) else {
        return Ok(());
    };
    if pending.aside == RefusalCode::Unanswered as i64 && pending.old.is_some() {
        rows.execute(&note.table.sql.set_old, &from_wire(old))?;
    }
    Ok(())
}

/// Makes the row as the change made it, and logs the change with its first old image.
fn make_again(rows: &Rows<'_>, note: &Note<'_>, key: &[Local]) -> Result<(), Error> {
    let table = note.table;
    let again = note.on_top_of(rows.select(table, key)?.as_deref());
    let note = again.as_ref().unwrap_or(note);
    // The row that stands here is the consolidated one: it comes back if the change is refused, or given up. So does a newer one, which the
    // table has not taken yet.
    let there = rows.select(table, key)?.map(|row| to_wire(&row, &table.types));
    if there != note.old && rows.held(table, &note.key)?.is_none() {
        rows.hold(table, &note.key, there.as_ref())?;
    }
    if there == note.new {
        return log(rows, note, key);
    }
    rows.set_applying(Some(table))?;
    let placed = match &note.new {
        Some(row) => rows.upsert(table, &from_wire(row))?,
        None => rows.delete(table, key)?,
    };
    rows.set_applying(None)?;
    let why = match placed {
        Placed::Done => return log(rows, note, key),
        Placed::InTheWay => "another row has a value of it that must be unique".to_owned(),
        Placed::Refused(why) => why,
    };
    Err(refused(format!("change {} of table {:?} can't be made again: {why}", note.number, table.table.name)))
}

fn log(rows: &Rows<'_>, note: &Note<'_>, key: &[Local]) -> Result<(), Error> {
    let table = note.table;
    let columns = log_columns(table);
    let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
    let sql = format!(
        "INSERT OR REPLACE INTO {} (\"upload\", {}, \"aside\") VALUES (0, {}, 0)",
        table.log(),
        columns.join(", "),
        places.join(", ")
    );
    let mut values = key.to_vec();
    values.push(Local::Integer(i64::from(note.old.is_some())));
    let old = note.old.as_ref().map(|row| from_wire(row));
    for place in (0..table.types.len()).filter(|place| !table.table.key.contains(place)) {
        values.push(old.as_ref().map_or(Local::Null, |row| row[place].clone()));
    }
    rows.prepare(&sql)?.execute(params_from_iter(&values)).while_doing("logging a change again").map(drop)
}
