//! Giving changes up: their rows become the consolidated ones.

use super::refused;
use crate::error::Error;
use crate::local::{Local, from_wire, readable, to_wire};
use crate::plan::TablePlan;
use crate::rows::{Pending, Placed, Rows};
use crate::unique_values;

/// A consolidated row that is to come back.
struct Back<'p> {
    table: &'p TablePlan,
    key: Vec<Local>,
    row: Vec<Local>,
}

/// Takes changes out of the log, and makes their rows the consolidated ones.
pub(super) fn give_up(rows: &Rows<'_>, dropped: Vec<(&TablePlan, Pending)>) -> Result<(), Error> {
    let mut back = Vec::new();
    for (table, Pending { key, old, .. }) in dropped {
        let key_bytes = table.key_bytes(&to_wire(&key, &table.key_types));
        let consolidated = match rows.held(table, &key_bytes)? {
            Some(held) => held.map(|row| from_wire(&row)),
            None => old,
        };
        rows.forget(table, &key)?;
        rows.release(table, &key_bytes)?;
        match consolidated {
            Some(row) => back.push(Back { table, key, row }),
            None => delete(rows, table, &key)?,
        }
    }
    put_back(rows, back)
}

/// Rows may stand in one another's way (values that must be unique were passed on, or swapped): what does not fit yet is tried again,
/// and the rows of circles first give up their unique values. None of them goes, or what refers to it might go with it.
fn put_back(rows: &Rows<'_>, mut back: Vec<Back<'_>>) -> Result<(), Error> {
    let mut are_free = false;
    while !back.is_empty() {
        let mut stuck = Vec::new();
        let count = back.len();
        for one in back {
            rows.set_applying(Some(one.table))?;
            let placed = rows.upsert(one.table, &one.row)?;
            rows.set_applying(None)?;
            match placed {
                Placed::Done => {}
                Placed::InTheWay => stuck.push(one),
                Placed::Refused(why) => return Err(does_not_fit(one.table, &one.key, &why)),
            }
        }
        if stuck.len() == count {
            if std::mem::replace(&mut are_free, true) {
                return Err(does_not_fit(stuck[0].table, &stuck[0].key, "a value must be unique"));
            }
            stuck.iter().try_for_each(|one| free_uniques(rows, one.table, &one.key))?;
        }
        back = stuck;
    }
    Ok(())
}

fn free_uniques(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
    rows.set_applying(Some(table))?;
    let freed = unique_values::free(rows, table, key)?;
    rows.set_applying(None)?;
    fits(table, key, freed.unwrap_or(Placed::Done))
}

/// Deletes a row, and logs nothing.
pub(super) fn delete(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
    rows.set_applying(Some(table))?;
    let gone = rows.delete(table, key)?;
    rows.set_applying(None)?;
    fits(table, key, gone)
}

fn fits(table: &TablePlan, key: &[Local], placed: Placed) -> Result<(), Error> {
    match placed {
        Placed::Done => Ok(()),
        Placed::InTheWay => Err(does_not_fit(table, key, "a value must be unique")),
        Placed::Refused(why) => Err(does_not_fit(table, key, &why)),
    }
}

fn does_not_fit(table: &TablePlan, key: &[Local], why: &str) -> Error {
    refused(format!(
        "the change of {} in table {:?} can't be dropped: the consolidated row does not fit beside a local one ({why}); drop or sync \
         that first (where one is set aside and the other waits to be sent: `headwater remote retry FILE --all`, then drop both with \
         `--pending`)",
        readable(table.key_names(), key),
        table.table.name
    ))
}
