//! A table of the model that the application has dropped: it is made again, and comes down whole.
//!
//! | what there was of it | what becomes of it |
//! |---|---|
//! | its rows | come with the next sync. Nothing is deleted at the consolidated database |
//! | changes of them that had not gone up | went with the table. The list of changes set aside has the row before each, under the code `gone` |
//! | changes of an upload that is on its way | are made again from what was frozen, so that the upload goes on |
//! | changes set aside | only the list has them; they can be sent still |
//!
//! One that is dropped and made anew by the application is compared ([`crate::untracked`]), and the list has what it lacks of rows with a
//! change that had not gone up. Nobody can tell whether that change deleted the row, or the row went with the table: it is not deleted at the
//! consolidated database for that, unless somebody says so (`retry`).
//!
//! What SQLite did to rows of other tables while the application dropped one, also one of its own ([`own_parents`]), is set aside too
//! ([`cascade`]).
//!
//! One in whose place there is a view now is refused by name, whatever became of the table.
//!
//! One that was renamed has its rows and its pending changes under the other name: nobody but the application can say what it meant.

pub(crate) mod cascade;
pub(crate) mod own_parents;

use std::ops::ControlFlow;

use headwater_model::remote_sql;
use headwater_model::sql::quote;
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{Connection, OptionalExtension};

use crate::cut::{frozen_changes, set_aside_mark};
use crate::error::{Error, While};
use crate::local::from_wire;
use crate::plan::{Plan, TablePlan};
use crate::remote::now;
use crate::rows::{Pending, Rows};
use crate::schema;
use crate::state::State;
use crate::untracked;

/// Makes a table again that is not there, without its triggers.
pub(crate) fn make_again(connection: &Connection, plan: &Plan, table: &TablePlan) -> Result<(), Error> {
    const DOING: &str = "making a table again";
    let (name, number) = (&table.table.name, table.number);
    if let Some(other) = renamed(connection, table)? {
        return Err(Error::Configuration {
            what: format!(
                "table {name:?} of the model has been renamed to {other:?}; nothing is lost: rename it back (ALTER TABLE {} RENAME TO {})",
                quote(&other),
                quote(name)
            ),
        });
    }
    connection.execute_batch(&remote_sql::create_table(&plan.model, &table.table)).while_doing(DOING)?;
    let mut lost = 0;
    if table.is_tracked() {
        let rows = Rows::new(connection);
        if !schema::exists(connection, &remote_sql::log_name(&table.table))? {
            connection.execute_batch(&remote_sql::create_log(&table.table)).while_doing(DOING)?;
        }
        lost = without_row(&rows, table)?
            .iter()
            .try_fold(0, |count, pending| list(&rows, table, pending).map(|()| count + 1))?;
        let sql = format!("DELETE FROM {} WHERE \"upload\" = 0", table.log());
        connection.execute(&sql, []).while_doing(DOING)?;
        put_frozen_back(&rows, plan, table)?;
    }
    cascade::set_aside(connection, plan, name)?;
    for sql in
        ["UPDATE \"hw_set_aside\" SET \"in_place\" = 0", "DELETE FROM \"hw_held\"", "DELETE FROM \"hw_watermark\""]
    {
        connection.execute(&format!("{sql} WHERE \"table\" = ?"), [number]).while_doing(DOING)?;
    }
    if !table.below.is_empty() {
        // Nobody can tell any more where the rows lay that took their partition from it.
        State::forget_seen(connection)?;
    }
    connection.execute("DELETE FROM \"hw_staged\"", []).while_doing(DOING)?;
    State::set_staged(connection, false)?;
    tracing::warn!(
        table = name,
        changes_lost = lost,
        "the table was gone: it is made again, and the next sync brings its rows; changes that had not gone up are lost, and on the list"
    );
    untracked::end(connection, table)
}

/// Sees to the pending changes of a table that the application has made anew: what is not in it was perhaps deleted by one of them, and
/// perhaps not taken along.
pub(crate) fn take_over(connection: &Connection, plan: &Plan, table: &TablePlan) -> Result<(), Error> {
    if !table.is_tracked() {
        return Ok(());
    }
    let rows = Rows::new(connection);
    for pending in without_row(&rows, table)? {
        if pending.old.is_none() {
            list(&rows, table, &pending)?;
            continue;
        }
        let message = "its table was made anew without this row: `retry` deletes it at the consolidated database, `drop` brings it back";
        set_aside_mark(connection, table, &pending.key, RefusalCode::Gone as u16)?;
        rows.note_aside(table, &pending, &refusal(message), true, &now())?;
    }
    put_frozen_back(&rows, plan, table)
}

/// The open changes that are not set aside, and whose row is not there.
fn without_row(rows: &Rows<'_>, table: &TablePlan) -> Result<Vec<Pending>, Error> {
    let mut select = rows.prepare(&table.sql.changes_where("l.\"aside\" = 0"))?;
    let found = select.query_map([], |row| Pending::read(table, row)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut found = found.while_doing("reading the log")?;
    found.retain(|pending| pending.new.is_none());
    Ok(found)
}

/// Puts a change on the list of which only the row before it is known.
fn list(rows: &Rows<'_>, table: &TablePlan, pending: &Pending) -> Result<(), Error> {
    let message =
        "its table was dropped before it had gone up: what it made of the row is not known, make it once more";
    rows.note_beside(table, pending, &refusal(message), &now())
}

fn refusal(message: &str) -> Refusal {
    Refusal { code: RefusalCode::Gone, message: message.to_owned() }
}

/// The name that a table has now: its triggers went along.
fn renamed(connection: &Connection, table: &TablePlan) -> Result<Option<String>, Error> {
    let sql = "SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name = ? AND tbl_name <> ? COLLATE NOCASE";
    let name = &table.table.name;
    let found = connection.query_row(sql, [&format!("hw_insert_{name}"), name], |row| row.get(0)).optional();
    found.while_doing("reading the catalogue")
}

/// A view has neither the rows nor the triggers of the table whose name it has: both are where the table is now.
pub(crate) fn refuse_view(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let name = &table.table.name;
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'view' AND name = ? COLLATE NOCASE";
    let is_view = connection.prepare_cached(sql).and_then(|mut select| select.exists([name]));
    if !is_view.while_doing("reading the catalogue")? {
        return Ok(());
    }
    let drop = format!("drop the view (DROP VIEW {})", quote(name));
    let mend = match renamed(connection, table)? {
        Some(other) => format!(
            "the table's rows and changes are in {other:?} and nothing is lost: {drop} and rename the table back (ALTER TABLE {} RENAME TO {})",
            quote(&other),
            quote(name)
        ),
        None => format!("{drop}; if the table was dropped, the next sync brings its rows"),
    };
    Err(Error::Configuration {
        what: format!("table {name:?} of the model is a view now, and a view can't be synchronized; {mend}"),
    })
}

/// Makes the rows again as the upload on its way has them, but for those that are there, and those that have been changed since.
fn put_frozen_back(rows: &Rows<'_>, plan: &Plan, table: &TablePlan) -> Result<(), Error> {
    frozen_changes(rows.connection, plan, &mut |of, change| {
        if let Some(row) = change.new.filter(|_| of.number == table.number) {
            let row = from_wire(&row);
            let key = table.key_of(&row);
            if rows.select(table, &key)?.is_none() && rows.pending(table, &key)?.is_none() {
                rows.upsert(table, &row)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}
