//! Changes set aside that go up after all: their row is not as it was refused any more, or what they refer to is no longer set aside.

use std::collections::HashSet;

use headwater_protocol::message::RefusalCode;
use rusqlite::params;

use crate::cut::{is_nothing_condition, set_aside_mark};
use crate::dependents;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, readable, to_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::{Pending, Rows, noted_image};
use crate::untracked;

/// A change that is noted as set aside where it stands, though its row has been changed again since. It counts as pending.
#[derive(Debug)]
pub(crate) struct Changed<'p> {
    pub(crate) number: i64,
    pub(crate) table: &'p TablePlan,
    pub(crate) key: Vec<Local>,
    key_bytes: Vec<u8>,
    /// Whether it is to be sent, though the log still has it marked as set aside.
    pub(crate) is_pending: bool,
}

/// Takes all off the list that go up.
pub(crate) fn wake(rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
    wake_unlisted(rows, plan)?;
    wake_changed(rows, plan)?;
    // Others may refer to those that woke.
    while wake_free(rows, plan)? > 0 {}
    Ok(())
}

/// A change that is marked though the list does not have it would wait for ever, with all later changes of its row.
fn wake_unlisted(rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
    let sql = "SELECT 1 FROM \"hw_set_aside\" WHERE \"table\" = ? AND \"key\" = ? AND \"in_place\" = 1";
    for table in plan.tracked() {
        let marked = format!(
            "SELECT {} FROM {} WHERE \"upload\" = 0 AND \"aside\" <> 0",
            table.keys("k_").join(", "),
            table.log()
        );
        for key in keys_of(rows, &marked, table)? {
            let key_bytes = table.key_bytes(&to_wire(&key, &table.key_types));
            let is_listed = rows.prepare(sql)?.exists(params![table.number, key_bytes]);
            if !is_listed.while_doing("reading what is set aside")? {
                tracing::warn!(
                    table = table.table.name,
                    key = readable(table.key_names(), &key),
                    "a change was marked as set aside, but is not on the list: it is sent"
                );
                set_aside_mark(rows.connection, table, &key, 0)?;
            }
        }
    }
    Ok(())
}

fn keys_of(rows: &Rows<'_>, sql: &str, table: &TablePlan) -> Result<Vec<Vec<Local>>, Error> {
    let mut select = rows.prepare(sql)?;
    let read = |row: &rusqlite::Row<'_>| (0..table.key_types.len()).map(|place| Local::read(row, place)).collect();
    let found = select.query_map([], read);
    found.and_then(Iterator::collect).while_doing("reading what is set aside")
}

/// Takes those off the list whose row has been changed again.
pub(crate) fn wake_changed<'p>(rows: &Rows<'_>, plan: &'p Plan) -> Result<Vec<Changed<'p>>, Error> {
    let changed = changed(rows, plan)?;
    changed.iter().try_for_each(|one| wake_one(rows, one.table, &one.key, &one.key_bytes))?;
    Ok(changed)
}

/// Finds them: what is refused is compared with what stands there. Writes nothing.
pub(crate) fn changed<'p>(rows: &Rows<'_>, plan: &'p Plan) -> Result<Vec<Changed<'p>>, Error> {
    let (mut after, mut changed) = (0, Vec::new());
    while let Some(note) = next_note(rows, after)? {
        after = note.number;
        let Some(table) = plan.table(note.table) else { continue };
        if is_in_doubt(rows, &note, table)? {
            continue;
        }
        let key = from_wire(&rows.key_of_bytes(table, &note.key)?);
        let pending = rows.pending(table, &key)?;
        if !is_as_refused(table, &note, pending.as_ref()) {
            let is_pending = pending.is_some_and(|pending| pending.aside != 0 && !pending.is_nothing());
            changed.push(Changed { number: note.number, table, key, key_bytes: note.key, is_pending });
        }
    }
    Ok(changed)
}

/// The numbers of those that have been changed again and don't count as pending yet: what others have changed in their table is not known.
pub(crate) fn mended_in_doubt(rows: &Rows<'_>, plan: &Plan) -> Result<HashSet<i64>, Error> {
    let (mut after, mut mended) = (0, HashSet::new());
    while let Some(note) = next_note(rows, after)? {
        after = note.number;
        let Some(table) = plan.table(note.table) else { continue };
        let key = from_wire(&rows.key_of_bytes(table, &note.key)?);
        if is_in_doubt(rows, &note, table)? && !is_as_refused(table, &note, rows.pending(table, &key)?.as_ref()) {
            mended.insert(note.number);
        }
    }
    Ok(mended)
}

/// Whether a change was made without change tracking, and its table is compared still.
fn is_in_doubt(rows: &Rows<'_>, note: &Note, table: &TablePlan) -> Result<bool, Error> {
    Ok(note.code == RefusalCode::Untracked as u16 && untracked::is_in_doubt(rows.connection, table)?)
}

fn is_as_refused(table: &TablePlan, note: &Note, pending: Option<&Pending>) -> bool {
    pending.is_some_and(|pending| {
        let image = pending.new.as_ref().map(|row| noted_image(table, row, true));
        pending.aside != 0 && image == note.refused
    })
}

/// The keys of changes that count as pending, by table.
pub(crate) fn keys(changed: &[Changed<'_>]) -> HashSet<(u32, Vec<u8>)> {
    changed.iter().map(|one| (one.table.number, one.key_bytes.clone())).collect()
}

/// Takes those off the list that only waited for what they refer to. Gives how many they are.
fn wake_free(rows: &Rows<'_>, plan: &Plan) -> Result<u64, Error> {
    let (mut after, mut woken) = (0, 0);
    while let Some(note) = next_note(rows, after)? {
        after = note.number;
        let Some(table) = plan.table(note.table).filter(|_| note.code == RefusalCode::Dependent as u16) else {
            continue;
        };
        let key = from_wire(&rows.key_of_bytes(table, &note.key)?);
        if dependents::parent(rows, plan, table, &key)?.is_none() {
            wake_one(rows, table, &key, &note.key)?;
            woken += 1;
        }
    }
    Ok(woken)
}

/// Takes those of a table off the list whose row is as it was before them.
pub(crate) fn wake_nothing(rows: &Rows<'_>, table: &TablePlan) -> Result<(), Error> {
    let as_they_were = format!(
        "SELECT {} FROM {} AS l WHERE \"upload\" = 0 AND \"aside\" <> 0 AND {}",
        table.keys("k_").join(", "),
        table.log(),
        is_nothing_condition(table)
    );
    let keys = keys_of(rows, &as_they_were, table)?;
    keys.iter().try_for_each(|key| wake_one(rows, table, key, &table.key_bytes(&to_wire(key, &table.key_types))))
}

fn wake_one(rows: &Rows<'_>, table: &TablePlan, key: &[Local], key_bytes: &[u8]) -> Result<(), Error> {
    set_aside_mark(rows.connection, table, key, 0)?;
    rows.drop_note(table, key_bytes)
}

/// A change that is noted as set aside where it stands.
struct Note {
    number: i64,
    table: u32,
    key: Vec<u8>,
    code: u16,
    /// The image that was refused.
    refused: Option<Vec<u8>>,
}

/// One at a time: those that are gone through may leave the list.
fn next_note(rows: &Rows<'_>, after: i64) -> Result<Option<Note>, Error> {
    let sql = "SELECT \"id\", \"table\", \"key\", \"code\", \"new\" FROM \"hw_set_aside\" WHERE \"id\" > ? AND \"in_place\" = 1 \
               ORDER BY \"id\" LIMIT 1";
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Note> {
        Ok(Note { number: row.get(0)?, table: row.get(1)?, key: row.get(2)?, code: row.get(3)?, refused: row.get(4)? })
    };
    let found = rusqlite::OptionalExtension::optional(rows.prepare(sql)?.query_row([after], read));
    found.while_doing("reading what is set aside")
}
