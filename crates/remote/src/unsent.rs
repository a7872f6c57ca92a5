//! Rows of tables that only go up, whose change tracking was gone for a while ([`crate::untracked`]).
//!
//! Nothing of such a table comes down to compare it with, so nobody can tell which of its rows have gone up. Before the next upload is cut,
//! each that has no pending change is put on the list of changes set aside, and stays as it is:
//!
//! | | the row |
//! |---|---|
//! | retry | goes up as an insert: where the consolidated database has the same row, nothing happens, and another is a conflict |
//! | drop | stays, and is taken for one that has gone up: it goes where what it refers to goes |
//! | it is changed again | goes up as any other: an update of the row as it was, or a deletion |
//! | the table comes down too, under another version | stands set aside until it comes as it is, or is retried or dropped ([`crate::upgrade`]) |
//!
//! *Caveats.* Rows that were deleted meanwhile are not known. A row that had not gone up and is changed again rather than retried is an
//! update of a row that is not there, and so a conflict, on record.

use headwater_model::Direction;
use headwater_model::sql::quote;
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{Connection, params};

use crate::cut::is_nothing_condition;
use crate::database::Database;
use crate::error::{Error, While};
use crate::local::{Local, to_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::{Pending, Rows};
use crate::untracked;

/// What a note of such a row has beside its code: no old image, in either form. No other change under that code is like it.
pub(crate) const IS_UNSENT: &str = "\"in_place\" = 0 AND \"old\" IS NULL AND \"old_text\" IS NULL";

/// Lists the rows of the tables in doubt that only go up, and ends the doubt. Gives how many they are.
pub(crate) fn list(database: &Database, plan: &Plan, now: &str) -> Result<u64, Error> {
    if in_doubt(&database.connection, plan)?.is_empty() {
        return Ok(0);
    }
    database.write("listing rows that may not have gone up", |connection| list_all(&Rows::new(connection), plan, now))
}

/// The same within a transaction.
pub(crate) fn list_all(rows: &Rows<'_>, plan: &Plan, now: &str) -> Result<u64, Error> {
    let mut listed = 0;
    for table in in_doubt(rows.connection, plan)? {
        let count = list_table(rows, table, now)?;
        untracked::end(rows.connection, table)?;
        tracing::warn!(
            table = table.table.name,
            rows = count,
            "change tracking was off, and nothing comes down to tell which rows have gone up: they are set aside as untracked"
        );
        listed += count;
    }
    Ok(listed)
}

fn in_doubt<'p>(connection: &Connection, plan: &'p Plan) -> Result<Vec<&'p TablePlan>, Error> {
    let mut found = Vec::new();
    for table in plan.tables.iter().filter(|table| table.table.direction == Direction::Upload) {
        if untracked::is_in_doubt(connection, table)? {
            found.push(table);
        }
    }
    Ok(found)
}

fn list_table(rows: &Rows<'_>, table: &TablePlan, now: &str) -> Result<u64, Error> {
    const DOING: &str = "listing rows that may not have gone up";
    let names: Vec<String> = table.names().map(quote).collect();
    let same_key: Vec<String> =
        table.keys("k_").iter().zip(table.keys("")).map(|(logged, own)| format!("l.{logged} = +t.{own}")).collect();
    let sql = format!(
        "SELECT {} FROM {} AS t WHERE NOT EXISTS (SELECT 1 FROM {} AS l WHERE l.\"upload\" = 0 AND {} AND NOT {})",
        names.join(", "),
        table.name(),
        table.log(),
        same_key.join(" AND "),
        is_nothing_condition(table),
    );
    let message = "change tracking was off here: perhaps it was written then, perhaps it has gone up; nothing of this table comes down \
                   to tell";
    let refusal = Refusal { code: RefusalCode::Untracked, message: message.to_owned() };
    let (mut count, mut select) = (0, rows.prepare(&sql)?);
    let mut found = select.query([]).while_doing(DOING)?;
    while let Some(row) = found.next().while_doing(DOING)? {
        let row = (0..table.types.len()).map(|place| Local::read(row, place)).collect::<Result<Vec<_>, _>>();
        let row = row.while_doing(DOING)?;
        if is_to_be_listed(rows, table, &row)? {
            let pending = Pending { aside: 0, old: None, key: table.key_of(&row), new: Some(row) };
            rows.note_aside(table, &pending, &refusal, false, now)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Rows that are changed again go up as they are now: they leave the list.
pub(crate) fn forget_changed(rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
    const DOING: &str = "forgetting rows that may not have gone up";
    let are = format!("\"table\" = ?1 AND \"code\" = {} AND {IS_UNSENT}", RefusalCode::Untracked as u16);
    for table in plan.tracked() {
        let any = rows.prepare(&format!("SELECT 1 FROM \"hw_set_aside\" WHERE {are}"))?.exists([table.number]);
        if !any.while_doing(DOING)? {
            continue;
        }
        let mut forget = rows.prepare(&format!("DELETE FROM \"hw_set_aside\" WHERE {are} AND \"key\" = ?2"))?;
        let mut select = rows.prepare(&table.sql.changes_where("l.\"aside\" = 0"))?;
        for pending in select.query_map([], |row| Pending::read(table, row)).while_doing(DOING)? {
            let pending = pending.while_doing(DOING)?;
            if !pending.is_nothing() {
                let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
                forget.execute(params![table.number, key]).while_doing(DOING)?;
            }
        }
    }
    Ok(())
}

/// A row was refused, and so has not gone up: it leaves the list, which has it as refused.
pub(crate) fn forget_refused(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
    let sql = format!(
        "DELETE FROM \"hw_set_aside\" WHERE \"table\" = ? AND \"key\" = ? AND \"code\" = {} AND {IS_UNSENT}",
        RefusalCode::Untracked as u16
    );
    let key = table.key_bytes(&to_wire(key, &table.key_types));
    let forgotten = rows.prepare(&sql)?.execute(params![table.number, key]);
    forgotten.while_doing("forgetting rows that may not have gone up").map(drop)
}

/// Not where the list has the row as it is. As it was when it was listed before, it leaves the list: sent again, it would take the place of
/// this one.
fn is_to_be_listed(rows: &Rows<'_>, table: &TablePlan, row: &[Local]) -> Result<bool, Error> {
    let row = to_wire(row, &table.types);
    let values = params![table.number, table.key_bytes(&table.key_of(&row)), table.row_bytes(&row)];
    let mut same =
        rows.prepare("SELECT 1 FROM \"hw_set_aside\" WHERE \"table\" = ?1 AND \"key\" = ?2 AND \"new\" IS ?3")?;
    if same.exists(values).while_doing("reading what is set aside")? {
        return Ok(false);
    }
    let outdated = format!(
        "DELETE FROM \"hw_set_aside\" WHERE \"table\" = ?1 AND \"key\" = ?2 AND \"new\" IS NOT ?3 AND \"code\" = {} AND {IS_UNSENT}",
        RefusalCode::Untracked as u16
    );
    rows.prepare(&outdated)?.execute(values).while_doing("forgetting a change set aside")?;
    Ok(true)
}
