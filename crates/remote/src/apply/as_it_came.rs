//! Rows of tables that are compared, as they came: triggers of the application's write to what is stored, and no log tells what.

use std::collections::HashSet;

use headwater_model::sql::quote;
use rusqlite::{OptionalExtension, params_from_iter};

use super::Apply;
use crate::error::{Error, While};
use crate::local::Local;
use crate::plan::TablePlan;
use crate::rows::Rows;

/// Numbers of the tables whose rows are kept as they came.
#[derive(Debug, Default)]
pub(super) struct Kept(HashSet<u32>);

impl Kept {
    /// Keeps the rows of a table from now on, if the application has triggers on it.
    pub(super) fn begin(&mut self, rows: &Rows<'_>, table: &TablePlan) -> Result<(), Error> {
        if !rows.fires_own_triggers(table)? {
            return Ok(());
        }
        self.0.insert(table.number);
        let (name, columns) = (kept(table), table.names().map(quote).collect::<Vec<_>>().join(", "));
        let sql = format!(
            "DROP TABLE IF EXISTS temp.{name}; CREATE TEMP TABLE {name} AS SELECT {columns} FROM {} WHERE 0; \
             CREATE UNIQUE INDEX temp.{} ON {name} ({})",
            table.name(),
            quote(&format!("hw_came_key_{}", table.number)),
            table.keys("").join(", "),
        );
        rows.connection.execute_batch(&sql).while_doing("keeping rows as they come")
    }

    pub(super) fn has(&self, table: &TablePlan) -> bool {
        self.0.contains(&table.number)
    }
}

/// The temporary table of a table's rows as they came.
pub(super) fn kept(table: &TablePlan) -> String {
    quote(&format!("hw_came_{}", table.number))
}

impl Apply<'_> {
    /// A row has come (`None`: its deletion).
    pub(super) fn keep_as_it_came(&self, table: &TablePlan, key: &[Local], row: Option<&[Local]>) -> Result<(), Error> {
        if !self.kept.has(table) {
            return Ok(());
        }
        let name = kept(table);
        let places = vec!["?"; table.types.len()].join(", ");
        match row {
            Some(row) => self.rows.execute(&format!("INSERT OR REPLACE INTO temp.{name} VALUES ({places})"), row),
            None => self.rows.execute(&format!("DELETE FROM temp.{name} WHERE {}", table.by_key()), key),
        }
        .map(drop)
    }

    /// The row of a key as it came; `None`: it did not, or is not kept.
    pub(super) fn as_it_came(&self, table: &TablePlan, key: &[Local]) -> Result<Option<Vec<Local>>, Error> {
        if !self.kept.has(table) {
            return Ok(None);
        }
        let names: Vec<String> = table.names().map(quote).collect();
        let sql = format!("SELECT {} FROM temp.{} WHERE {}", names.join(", "), kept(table), table.by_key());
        let read = |row: &rusqlite::Row<'_>| (0..names.len()).map(|place| Local::read(row, place)).collect();
        self.rows.prepare(&sql)?.query_row(params_from_iter(key), read).optional().while_doing("reading a row")
    }

    /// No row of a table is kept any more.
    pub(super) fn forget_as_it_came(&mut self, table: &TablePlan) -> Result<(), Error> {
        if self.kept.0.remove(&table.number) {
            self.rows.execute(&format!("DROP TABLE temp.{}", kept(table)), &[])?;
        }
        Ok(())
    }
}
