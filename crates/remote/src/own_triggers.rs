//! Tables on which the application has triggers of its own: what those write while a download is applied is a local change like any
//! other, in the very table whose rows come down too.
//!
//! For other tables change tracking is switched off while their rows are stored. Here it stays on, and right after each row the log is put
//! right:
//!
//! | the row of the key is | its entry in the log |
//! |---|---|
//! | as it came, or gone as it was to | goes |
//! | otherwise: a trigger wrote to it | has what came as its old image |
//! | as it was: a trigger left the statement out, or refused it | is as before; what came is held, and tried again |
//!
//! Entries of other rows are the work of the triggers, and stay. So nothing differs from the consolidated database without being pending.
//!
//! Change tracking is off in a table that is compared ([`crate::untracked`]). Its rows are kept as they came, and comparing finds what
//! triggers did to them.
//!
//! *Caveats.* A table that only comes down has no log: what a trigger writes there stays until the row comes again.

use std::cell::RefCell;

use rusqlite::Connection;

use crate::cut::log_change;
use crate::error::{Error, While};
use crate::local::{Local, to_wire};
use crate::plan::TablePlan;
use crate::rows::{Placed, Rows};

/// Why a row is not stored that a trigger passes over in silence.
pub(crate) const LEFT_OUT: &str = "a trigger of the application's leaves it out";

/// Names of the tables with triggers of the application's, once they are looked up; and whether what those do to the table is found otherwise.
#[derive(Debug, Default)]
pub(crate) struct OwnTriggers(RefCell<Option<Vec<(String, bool)>>>);

impl OwnTriggers {
    /// Whether a table has any.
    pub(crate) fn fire_on(&self, connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
        self.look(connection, table, |_| true)
    }

    /// Whether a table has any, and the log tells what they do to it.
    pub(crate) fn any_on(&self, connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
        self.look(connection, table, |is_left_out| !*is_left_out)
    }

    /// From now on what triggers do to a table is found otherwise, or by the log again.
    pub(crate) fn leave_out(&self, connection: &Connection, table: &TablePlan, on: bool) -> Result<(), Error> {
        self.look(connection, table, |is_left_out| std::mem::replace(is_left_out, on)).map(drop)
    }

    fn look(
        &self,
        connection: &Connection,
        table: &TablePlan,
        look: impl FnOnce(&mut bool) -> bool,
    ) -> Result<bool, Error> {
        let mut names = self.0.borrow_mut();
        let names = match &mut *names {
            Some(names) => names,
            none => none.insert(read(connection).while_doing("reading the catalogue")?),
        };
        let found = names.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case(&table.table.name));
        Ok(found.is_some_and(|(_, is_left_out)| look(is_left_out)))
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Vec<(String, bool)>> {
    let sql =
        "SELECT DISTINCT tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name NOT LIKE 'hw\\_%' ESCAPE '\\'";
    connection.prepare_cached(sql)?.query_map([], |row| Ok((row.get(0)?, false)))?.collect()
}

impl Rows<'_> {
    /// Puts the log right after a statement that was to store a row, or to delete it where `came` is none. `has_run`: it did not leave
    /// the row alone.
    pub(crate) fn put_log_right(
        &self,
        table: &TablePlan,
        key: &[Local],
        came: Option<&[Local]>,
        has_run: bool,
    ) -> Result<Placed, Error> {
        let there = self.select(table, key)?;
        let bytes = |row: &[Local]| table.row_bytes(&to_wire(row, &table.types));
        let is_as_it_came = there.as_deref().map(bytes) == came.map(bytes);
        if is_as_it_came || !has_run {
            if table.is_tracked() && self.pending(table, key)?.is_some_and(|p| is_as_it_came || p.is_nothing()) {
                self.forget(table, key)?;
            }
            let left_out = || Placed::Refused(LEFT_OUT.to_owned());
            return Ok(if is_as_it_came { Placed::Done } else { left_out() });
        }
        if table.is_tracked() {
            log_change(self, table, key, came, 0)?;
        }
        Ok(Placed::Done)
    }
}
