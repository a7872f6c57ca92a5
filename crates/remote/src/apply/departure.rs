//! What triggers of the application's write while rows leave the remote: a membership has ended, and nobody has deleted anything.
//!
//! ```text
//! AFTER DELETE ON item BEGIN DELETE FROM note WHERE item = OLD.id; END
//!
//! the partition of item 1 is left    the rows of all logs, with theirs -> temp.hw_departed_N
//! item 1 is deleted here             the trigger deletes note 7, and the log of "note" has that
//! the next frame                     the log of "note" has what temp.hw_departed_N lacks: note 7 is set aside where it stands
//! ```
//!
//! A trigger tells the two apart by the view `hw_leaving`, which has a row while rows leave.
//!
//! A single row that leaves (it was moved to a partition of another user's) comes as [`RowOp::Leave`], and is told apart likewise. So is a row
//! that is taken out of the file because it has no place in it: another has its unique value, or what it refers to is not here.
//!
//! *Caveat.* A row that a table lacks when it comes whole may have left or may be deleted: for triggers it is deleted.
//!
//! [`RowOp::Leave`]: headwater_protocol::message::RowOp::Leave

use std::collections::HashSet;

use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{OptionalExtension, params_from_iter};

use super::Apply;
use crate::cut::set_aside_mark;
use crate::error::{Error, While};
use crate::local::{Local, to_wire};
use crate::plan::TablePlan;
use crate::rows::{Pending, Placed};

/// Rows that leave while triggers of the application's see them go.
#[derive(Debug, Default)]
pub(super) struct Departure {
    /// Whether any leave now, and what triggers write is remembered.
    is_on: bool,
    /// Whether that is for rows that are taken out, and ends when anything else is done.
    is_for_taking_out: bool,
    /// What was set aside for it in this download: tables and keys.
    written: HashSet<(u32, Vec<u8>)>,
}

impl Apply<'_> {
    /// Rows of a table are about to leave: if triggers of the application's see them go, what is open in the logs is remembered.
    pub(super) fn begin_departure(&mut self, table: &TablePlan) -> Result<(), Error> {
        self.end_taking_out()?;
        self.rows.leaving.set(true);
        self.remember_open(table)
    }

    fn remember_open(&mut self, table: &TablePlan) -> Result<(), Error> {
        if self.departure.is_on || !self.rows.fires_own_triggers(table)? {
            return Ok(());
        }
        for table in self.plan.tracked() {
            let columns = 3 + 2 * table.types.len();
            self.rows.keep(&departed(table), columns, &table.sql.changes_where("1 = 1"))?;
            let keys = places(table).map(|place| format!("c{place}")).collect::<Vec<_>>().join(", ");
            let sql = format!("CREATE INDEX temp.{} ON {} ({keys})", by_key(table), departed(table));
            self.rows.connection.execute_batch(&sql).while_doing("remembering what is open")?;
        }
        self.departure.is_on = true;
        self.rows.set_leaving(true)
    }

    /// Takes a row out that nobody has deleted; whether it is gone.
    pub(super) fn take_row_out(&mut self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        let was_on = self.departure.is_on;
        self.remember_open(table)?;
        self.departure.is_for_taking_out |= self.departure.is_on && !was_on;
        self.removed(table, key).map(|placed| placed == Placed::Done)
    }

    /// Before a row is stored or deleted: what triggers write then is an edit.
    pub(super) fn end_taking_out(&mut self) -> Result<(), Error> {
        if !self.departure.is_for_taking_out {
            return Ok(());
        }
        let leaving = self.rows.leaving.get();
        self.end_departure()?;
        self.rows.leaving.set(leaving);
        Ok(())
    }

    /// Rows have left: what triggers wrote meanwhile is set aside where it stands.
    pub(super) fn end_departure(&mut self) -> Result<(), Error> {
        self.rows.leaving.set(false);
        self.departure.is_for_taking_out = false;
        if !std::mem::take(&mut self.departure.is_on) {
            return Ok(());
        }
        self.rows.set_leaving(false)?;
        for table in self.plan.tracked() {
            for pending in self.written(table)? {
                self.set_written_aside(table, &pending)?;
            }
            let sql = format!("DROP TABLE temp.{}", departed(table));
            self.rows.connection.execute_batch(&sql).while_doing("forgetting what was open")?;
        }
        Ok(())
    }

    /// A row leaves that has a pending change: if a trigger alone made that while rows left, it is nobody's, and goes. Whether it is so.
    pub(super) fn take_back_written(&mut self, table: &TablePlan, pending: &Pending) -> Result<bool, Error> {
        if pending.old.is_none() {
            return Ok(false);
        }
        let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
        if self.departure.written.remove(&(table.number, key.clone())) {
            self.rows.drop_note(table, &key)?;
            self.applied.set_aside -= 1;
        } else if !self.departure.is_on || self.departed(table, &pending.key)?.is_some() {
            return Ok(false);
        }
        self.take_back(table, pending).map(|()| true)
    }

    /// The open changes that were not there before, or whose row was another one.
    fn written(&self, table: &TablePlan) -> Result<Vec<Pending>, Error> {
        let sql = format!("{} EXCEPT SELECT * FROM temp.{}", table.sql.changes_where("1 = 1"), departed(table));
        let mut select = self.rows.prepare(&sql)?;
        let found = select.query_map([], |row| Pending::read(table, row));
        found.and_then(Iterator::collect).while_doing("looking for what triggers wrote")
    }

    /// What was open of a key before.
    fn departed(&self, table: &TablePlan, key: &[Local]) -> Result<Option<Pending>, Error> {
        let same: Vec<String> = places(table).map(|place| format!("c{place} = ?")).collect();
        let sql = format!("SELECT * FROM temp.{} WHERE {}", departed(table), same.join(" AND "));
        let read = |row: &rusqlite::Row<'_>| Pending::read(table, row);
        let found = self.rows.prepare(&sql)?.query_row(params_from_iter(key), read).optional();
        found.while_doing("looking for what was open")
    }

    fn set_written_aside(&mut self, table: &TablePlan, pending: &Pending) -> Result<(), Error> {
        let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
        let before = self.departed(table, &pending.key)?.filter(|before| !before.is_nothing());
        if let Some(before) = &before {
            // Made by the application, and not in the row any more.
            if before.aside == 0 || !self.rows.list_only(table, &key, before.new.as_deref())? {
                self.applied.set_aside += 1;
                self.rows.note_beside(table, before, &refusal("a trigger wrote over this"), self.now)?;
            }
        }
        if pending.is_nothing() {
            return Ok(());
        }
        self.applied.set_aside += 1;
        if before.is_none() {
            self.departure.written.insert((table.number, key));
        }
        let refusal = refusal("a trigger wrote this");
        set_aside_mark(self.rows.connection, table, &pending.key, refusal.code as u16)?;
        self.rows.note_aside(table, pending, &refusal, true, self.now)
    }
}

fn refusal(what: &str) -> Refusal {
    let message = format!("{what} while rows left the remote: `drop` brings the row back, `retry` sends the change");
    Refusal { code: RefusalCode::Partition, message }
}

fn departed(table: &TablePlan) -> String {
    format!("\"hw_departed_{}\"", table.number)
}

fn by_key(table: &TablePlan) -> String {
    format!("\"hw_departed_key_{}\"", table.number)
}

/// Where the columns of the key are in what is remembered.
fn places(table: &TablePlan) -> impl Iterator<Item = usize> {
    table.table.key.iter().map(|place| 3 + place)
}
