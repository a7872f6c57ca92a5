//! Columns that the application has added to a table keep their values while the model's come down.
//!
//! A row that is deleted while a download is applied may come back in it: its partition comes whole, or it steps aside for another row.
//! What its own columns held waits in a temporary table meanwhile, and is written back in the end.
//!
//! *Caveats.* What no longer fits beside other rows (the application has a unique index on such a column, say) stays as the row came.

use headwater_model::sql::quote;
use rusqlite::Connection;

use super::Apply;
use crate::cut::forget_nothing;
use crate::error::{Error, While};
use crate::local::Local;
use crate::plan::{Plan, TablePlan};
use crate::rows::Placed;

/// The application's own columns, by table, each with a temporary table to keep them in.
pub(super) fn find(connection: &Connection, plan: &Plan) -> Result<Vec<Vec<String>>, Error> {
    let find = |table: &TablePlan| -> rusqlite::Result<Vec<String>> {
        let mut select = connection.prepare_cached("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0")?;
        let names: Vec<String> =
            select.query_map([&table.table.name], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let is_own = |name: &String| !table.names().any(|of_model| of_model.eq_ignore_ascii_case(name));
        let own: Vec<String> = names.into_iter().filter(is_own).collect();
        if !own.is_empty() {
            let (name, keys) = (kept(table), columns("k", table.key_types.len()));
            connection.execute_batch(&format!(
                "DROP TABLE IF EXISTS temp.{name}; \
                 CREATE TEMP TABLE {name} ({keys}, {}, PRIMARY KEY ({keys})) WITHOUT ROWID",
                columns("c", own.len())
            ))?;
        }
        Ok(own)
    };
    plan.tables.iter().map(find).collect::<Result<_, _>>().while_doing("looking for the application's own columns")
}

impl Apply<'_> {
    /// Keeps what the application's own columns hold in rows that are about to go: those that meet a condition on the table, with these
    /// parameters.
    pub(super) fn keep_own(&self, table: &TablePlan, condition: &str, parameters: &[Local]) -> Result<(), Error> {
        let own = &self.own_columns[table.number as usize];
        if own.is_empty() {
            return Ok(());
        }
        let columns: Vec<String> = table.keys("").into_iter().chain(own.iter().map(|name| quote(name))).collect();
        let sql = format!(
            "INSERT OR IGNORE INTO temp.{} SELECT {} FROM {} WHERE {condition}",
            kept(table),
            columns.join(", "),
            table.name()
        );
        self.rows.execute(&sql, parameters).map(drop)
    }

    /// Everything has come: gives rows that are here again what their own columns held.
    pub(super) fn give_own_back(&self) -> Result<(), Error> {
        for (table, own) in self.plan.tables.iter().zip(&self.own_columns).filter(|(_, own)| !own.is_empty()) {
            self.rows.set_applying(Some(table))?;
            let (name, own): (_, Vec<String>) = (table.name(), own.iter().map(|name| quote(name)).collect());
            let set = own.iter().enumerate().map(|(place, own)| format!("{own} = o.c{place}"));
            let stored: Vec<String> = own.iter().map(|own| format!("{name}.{own}")).collect();
            let kept_ones: Vec<String> = (0..own.len()).map(|place| format!("o.c{place}")).collect();
            let same_key =
                table.keys("").into_iter().enumerate().map(|(place, key)| format!("{name}.{key} = o.k{place}"));
            let sql = format!(
                "UPDATE OR IGNORE {name} SET {} FROM temp.{} AS o WHERE {} AND ({}) IS NOT ({})",
                set.collect::<Vec<_>>().join(", "),
                kept(table),
                same_key.collect::<Vec<_>>().join(" AND "),
                stored.join(", "),
                kept_ones.join(", ")
            );
            if let (Placed::Refused(why), _) = self.rows.run(table, &sql, &[])? {
                tracing::warn!(
                    table = table.table.name,
                    why,
                    "columns of the application's own could not be written back"
                );
            }
            if table.is_tracked() && self.rows.has_own_triggers(table)? {
                forget_nothing(&self.rows, table)?;
            }
        }
        Ok(())
    }
}

/// The temporary table of a table.
fn kept(table: &TablePlan) -> String {
    format!("\"hw_own_{}\"", table.number)
}

fn columns(prefix: &str, count: usize) -> String {
    (0..count).map(|index| format!("{prefix}{index}")).collect::<Vec<_>>().join(", ")
}
