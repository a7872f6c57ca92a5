//! What retried and dropped changes leave behind: no row that refers to nothing, but for those that did so before (an application that
//! does not enforce foreign keys may have made them).

use std::collections::BTreeMap;

use headwater_model::Direction;
use headwater_model::sql::quote;
use headwater_protocol::{Row, Value};
use rusqlite::params_from_iter;

use super::{Note, giving_up, refused};
use crate::error::{Error, While};
use crate::local::{Local, from_wire, readable};
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;

/// Rows that refer to nothing: their table, the other one, their key as text; and their key.
pub(super) type Broken = BTreeMap<(String, String, String), Vec<Local>>;

/// Finds them.
pub(super) fn broken(rows: &Rows<'_>, plan: &Plan) -> Result<Broken, Error> {
    let mut broken = Broken::new();
    for table in &plan.tables {
        for reference in &table.references {
            let parent = &plan.tables[reference.table];
            let column = |table: &TablePlan, place: usize| quote(&table.table.columns[place].name);
            let keys: Vec<String> = table.keys("").iter().map(|key| format!("c.{key}")).collect();
            let own: Vec<String> = reference.columns.iter().map(|place| column(table, *place)).collect();
            let target = reference.target.iter().map(|place| column(parent, *place));
            let sql = format!(
                "SELECT {} FROM {} AS c WHERE {} AND NOT EXISTS (SELECT 1 FROM {} AS p WHERE {})",
                keys.join(", "),
                table.name(),
                own.iter().map(|own| format!("c.{own} IS NOT NULL")).collect::<Vec<_>>().join(" AND "),
                parent.name(),
                target.zip(&own).map(|(target, own)| format!("p.{target} = c.{own}")).collect::<Vec<_>>().join(" AND ")
            );
            let mut select = rows.prepare(&sql)?;
            let key =
                |row: &rusqlite::Row<'_>| (0..table.key_types.len()).map(|index| Local::read(row, index)).collect();
            for key in select.query_map([], key).while_doing("checking foreign keys")? {
                let key: Vec<Local> = key.while_doing("checking foreign keys")?;
                let text = readable(table.key_names(), &key);
                broken.insert((table.table.name.clone(), parent.table.name.clone(), text), key);
            }
        }
    }
    Ok(broken)
}

/// There must be none but those that there were before. Where a drop `takes_along` what it leaves, rows that only go up, and have, go with
/// what they refer to, as they do where a download takes that away.
pub(super) fn check(rows: &Rows<'_>, plan: &Plan, before: &Broken, takes_along: bool) -> Result<(), Error> {
    loop {
        let mut broken = broken(rows, plan)?;
        broken.retain(|place, _| !before.contains_key(place));
        let mut any_goes = false;
        for ((table, _, _), key) in &broken {
            let table = plan.table_named(table)?;
            let is_pending = mark_of(rows, table, key)?.is_some() || is_on_its_way(rows, table, key)?;
            if takes_along && table.table.direction == Direction::Upload && !is_pending {
                // An entry by which nothing has changed would say that it was deleted here.
                rows.forget(table, key)?;
                giving_up::delete(rows, table, key)?;
                any_goes = true;
            }
        }
        if any_goes {
            continue;
        }
        let Some(((table, parent, text), key)) = broken.first_key_value() else { return Ok(()) };
        let child = plan.table_named(table)?;
        let mend = match mark_of(rows, child, key)? {
            None if is_on_its_way(rows, child, key)? => {
                "whether its change has arrived is not known yet: sync first".to_owned()
            }
            Some(0) => format!(
                "its change waits to be sent; drop that first: `headwater remote drop FILE --pending --table {table}`"
            ),
            Some(_) => format!(
                "its change is set aside; drop that too, or first: `headwater remote drop FILE --table {table}`, or with its number"
            ),
            None => "choose what refers to it too, or all".to_owned(),
        };
        return Err(refused(format!(
            "the row {text} of table {table:?} would be left that refers to nothing in table {parent:?}: {mend}"
        )));
    }
}

/// With what the change of a row is marked in the log; `None`: there is none.
fn mark_of(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<Option<i64>, Error> {
    if !table.is_tracked() {
        return Ok(None);
    }
    Ok(rows.pending(table, key)?.filter(|pending| !pending.is_nothing()).map(|pending| pending.aside))
}

/// Whether an upload has a change of a row, and nobody knows yet whether it has arrived.
pub(super) fn is_on_its_way(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
    if !table.is_tracked() {
        return Ok(false);
    }
    let same = table.keys("k_").into_iter().map(|name| format!("{name} = ?")).collect::<Vec<_>>().join(" AND ");
    let sql = format!("SELECT 1 FROM {} WHERE \"upload\" <> 0 AND {same}", table.log());
    rows.prepare(&sql)?.exists(params_from_iter(key)).while_doing("reading the log")
}

/// Which of the changes that were made again lack what they refer to, or leave rows behind that refer to theirs: says it, by their numbers.
pub(super) fn lacking<'n>(
    rows: &Rows<'_>,
    plan: &Plan,
    notes: impl Iterator<Item = &'n Note<'n>>,
) -> Result<BTreeMap<i64, String>, Error> {
    let mut lacking = BTreeMap::new();
    // The rows of the others stand as they stood.
    for note in notes.filter(|note| !note.in_place) {
        let why = match (lacks(rows, plan, note)?, leaves_behind(rows, plan, note)?) {
            (Some(parent), _) => {
                format!(
                    "the row of table {parent:?} that it refers to is not here; sync first, then retry. If a sync does not bring it, it is \
                     deleted, or outside this remote's partitions: drop the change, or retry it when the row is back"
                )
            }
            (None, Some(child)) => format!("a row of table {child:?} refers to its row; sync first, then retry"),
            (None, None) => continue,
        };
        let (number, table) = (note.number, &note.table.table.name);
        lacking.insert(number, format!("change {number} of table {table:?} can't be made again: {why}"));
    }
    Ok(lacking)
}

/// The table in which there is no row that the new row refers to.
fn lacks<'p>(rows: &Rows<'_>, plan: &'p Plan, note: &Note<'_>) -> Result<Option<&'p str>, Error> {
    let Some(new) = &note.new else { return Ok(None) };
    for reference in &note.table.references {
        let parent = &plan.tables[reference.table];
        if let Some(values) = values_of(new, &reference.columns)
            && !has(rows, parent, &reference.target, &values)?
        {
            return Ok(Some(&parent.table.name));
        }
    }
    Ok(None)
}

/// The table with a row that refers to the old row, or to the one that stood there, which is there no more.
fn leaves_behind<'p>(rows: &Rows<'_>, plan: &'p Plan, note: &Note<'_>) -> Result<Option<&'p str>, Error> {
    let stood = rows.held(note.table, &note.key)?.flatten();
    for before in note.old.iter().chain(&stood) {
        for child in &plan.tables {
            for reference in child.references.iter().filter(|reference| reference.table == note.table.number as usize) {
                if let Some(values) = values_of(before, &reference.target)
                    && !has(rows, note.table, &reference.target, &values)?
                    && has(rows, child, &reference.columns, &values)?
                {
                    return Ok(Some(&child.table.name));
                }
            }
        }
    }
    Ok(None)
}

/// What a foreign key looks for; none where a value of it is NULL.
fn values_of(row: &Row, places: &[usize]) -> Option<Vec<Value>> {
    places.iter().map(|place| row.get(*place).filter(|value| !value.is_null()).cloned()).collect()
}

fn has(rows: &Rows<'_>, table: &TablePlan, places: &[usize], values: &[Value]) -> Result<bool, Error> {
    let same: Vec<String> =
        places.iter().map(|place| format!("{} = ?", quote(&table.table.columns[*place].name))).collect();
    let sql = format!("SELECT 1 FROM {} WHERE {}", table.name(), same.join(" AND "));
    rows.prepare(&sql)?.exists(params_from_iter(from_wire(values))).while_doing("looking for what a change refers to")
}
