//! A table of the model that the application has dropped: it is made again, and comes down whole.
//!
//! | what there was of it | what becomes of it |
//! |---|---|
//! | its rows | come with the next sync. Nothing is deleted at the consolidated database |
//! | changes of them that had not gone up | went with the table: how many, the log line says |
//! | changes of an upload that is on its way | are made again from what was frozen, so that the upload goes on |
//! | changes set aside | only the list has them; they can be sent still |
//!
//! One that was renamed has its rows and its pending changes under the other name: nobody but the application can say what it meant.

use std::ops::ControlFlow;

use headwater_model::remote_sql;
use headwater_model::sql::quote;
use rusqlite::{Connection, OptionalExtension};

use crate::cut::frozen_changes;
use crate::error::{Error, While};
use crate::local::from_wire;
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;
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
        if !schema::exists(connection, &remote_sql::log_name(&table.table))? {
            connection.execute_batch(&remote_sql::create_log(&table.table)).while_doing(DOING)?;
        }
        let sql = format!("DELETE FROM {} WHERE \"upload\" = 0", table.log());
        lost = connection.execute(&sql, []).while_doing(DOING)?;
        put_frozen_back(&Rows::new(connection), plan, table)?;
    }
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
        "the table was gone: it is made again, and the next sync brings its rows; what had not gone up of them is lost"
    );
    untracked::end(connection, table)
}

/// The name that a table has now: its triggers went along.
fn renamed(connection: &Connection, table: &TablePlan) -> Result<Option<String>, Error> {
    let sql = "SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name = ? AND tbl_name <> ? COLLATE NOCASE";
    let name = &table.table.name;
    let found = connection.query_row(sql, [&format!("hw_insert_{name}"), name], |row| row.get(0)).optional();
    found.while_doing("reading the catalogue")
}

/// Makes the rows again as the upload on its way has them.
fn put_frozen_back(rows: &Rows<'_>, plan: &Plan, table: &TablePlan) -> Result<(), Error> {
    frozen_changes(rows.connection, plan, &mut |of, change| {
        if let Some(row) = change.new.filter(|_| of.number == table.number) {
            rows.upsert(table, &from_wire(&row))?;
        }
        Ok(ControlFlow::Continue(()))
    })
}
