//! A partition that comes whole, or is left.

use headwater_model::Direction;
use headwater_model::sql::quote;
use headwater_protocol::message::{PartitionAction, PartitionMark, Refusal, RefusalCode};
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Value};
use rusqlite::params_from_iter;

use super::Apply;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{TablePlan, decoded};
use crate::rows::Pending;

impl Apply<'_> {
    /// Takes out what the remote holds of a partition. Pending changes stay where the partition comes whole, and are set aside where
    /// it is left.
    pub(super) fn partition(&mut self, table: &TablePlan, mark: &PartitionMark) -> Result<(), Error> {
        let values = decoded(&table.partition_types, &mark.partition)?;
        if mark.action == PartitionAction::Whole {
            self.compare_if_held(table, &mark.partition)?;
        }
        self.touched.all_of(table);
        if self.is_restart && mark.action == PartitionAction::Whole {
            self.came_whole.insert((table.number, mark.partition.clone()));
        }
        if self.is_plain && !self.rows.any(&format!("SELECT 1 FROM {} LIMIT 1", table.name()))? {
            return Ok(());
        }
        let local = from_wire(&values);
        if table.is_tracked() {
            match mark.action {
                PartitionAction::Whole => self.hold_deletions(table, &local)?,
                PartitionAction::Left => self.set_aside_left(table, &values, &local)?,
            }
        }
        self.release_unneeded(table, &values, mark.action)?;
        self.delete_rows(table, &local)
    }

    /// The rows of the partition that have no pending change.
    fn delete_rows(&mut self, table: &TablePlan, values: &[Local]) -> Result<(), Error> {
        let own = table.name();
        let mut condition = rows_in(table, &own);
        if table.is_tracked() {
            let keys: Vec<String> = table
                .keys("")
                .iter()
                .zip(table.keys("k_"))
                .map(|(own_key, key)| format!("l.{key} = +{own}.{own_key}"))
                .collect();
            let (log, keys) = (table.log(), keys.join(" AND "));
            condition.extend([
                " AND NOT EXISTS (SELECT 1 FROM ",
                &log,
                " AS l WHERE l.\"upload\" = 0 AND ",
                &keys,
                ")",
            ]);
        }
        let sql = format!("DELETE FROM {own} WHERE {condition}");
        let mut delete = self.rows.prepare(&sql)?;
        delete.execute(params_from_iter(values)).while_doing("emptying a partition").map(drop)
    }

    /// Pending changes of rows that the consolidated database had in this partition: unless their row comes again, it is deleted there.
    fn hold_deletions(&mut self, table: &TablePlan, values: &[Local]) -> Result<(), Error> {
        let sql = table.sql.changes_where(&format!("l.\"existed\" = 1 AND {}", logged_in(table)));
        let mut select = self.rows.prepare(&sql)?;
        let mut found = select.query(params_from_iter(values)).while_doing("reading the log")?;
        while let Some(row) = found.next().while_doing("reading the log")? {
            let pending = Pending::read(table, row).while_doing("reading the log")?;
            let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
            self.rows.hold(table, &key, None)?;
        }
        Ok(())
    }

    fn set_aside_left(&mut self, table: &TablePlan, values: &[Value], local: &[Local]) -> Result<(), Error> {
        let condition = format!("((l.\"existed\" = 1 AND {}) OR ({}))", logged_in(table), rows_in(table, "r"));
        let message = "the remote left the partition of this row".to_owned();
        let refusal = Refusal { code: RefusalCode::Partition, message };
        loop {
            let batch = self.pending_where(table, &condition, local)?;
            if batch.is_empty() {
                return Ok(());
            }
            for pending in batch {
                self.set_aside(table, &pending, &refusal, Some(values))?;
            }
        }
    }

    /// Held rows that lie in the partition: without a pending change they are of no use any more, beside one they are gone too, unless
    /// they come again.
    fn release_unneeded(&mut self, table: &TablePlan, values: &[Value], action: PartitionAction) -> Result<(), Error> {
        let mut after = Vec::new();
        loop {
            let keys = self.rows.held_keys(table, &after, 100)?;
            let Some(last) = keys.last() else {
                return Ok(());
            };
            after.clone_from(last);
            for key in keys {
                let held: Option<Row> = self.rows.held(table, &key)?.flatten();
                if !held.is_some_and(|row| table.lies_in(&row, values)) {
                    continue;
                }
                let key_row = from_wire(&self.rows.key_of_bytes(table, &key)?);
                let old = self.rows.pending(table, &key_row)?.and_then(|pending| pending.old);
                match (action, old) {
                    (PartitionAction::Whole, Some(_)) => self.rows.hold(table, &key, None)?,
                    _ => self.rows.release(table, &key)?,
                }
            }
        }
    }

    /// After a restart: partitions that the remote holds and that did not come again are none of its own any more. Nobody told it so,
    /// because it had forgotten them itself; pending changes in them are judged when they go up.
    pub(super) fn sweep(&mut self) -> Result<(), Error> {
        for table in &self.plan.tables {
            let number = table.number as usize;
            if !self.sweeps[number] || table.partition.is_empty() || table.table.direction == Direction::Upload {
                continue;
            }
            let names: Vec<String> = table.table.partition_columns().map(|column| quote(&column.name)).collect();
            let sql = format!("SELECT DISTINCT {} FROM {}", names.join(", "), table.name());
            let partitions: Vec<Vec<Local>> = {
                let mut select = self.rows.prepare(&sql)?;
                let read = |row: &rusqlite::Row<'_>| (0..names.len()).map(|index| Local::read(row, index)).collect();
                let found = select.query_map([], read);
                found.and_then(Iterator::collect).while_doing("looking for partitions that are left")?
            };
            self.rows.set_applying(Some(table.number))?;
            for values in partitions {
                let mut key = Vec::new();
                put_row(&mut key, &table.partition_types, &to_wire(&values, &table.partition_types));
                if !self.came_whole.contains(&(table.number, key)) {
                    self.touched.all_of(table);
                    self.delete_rows(table, &values)?;
                }
            }
        }
        Ok(())
    }
}

/// A condition on rows of a partition, whose values are the parameters.
fn rows_in(table: &TablePlan, row: &str) -> String {
    let columns = table.table.partition_columns().zip(1..);
    all(columns.map(|(column, number)| format!("{row}.{} IS ?{number}", quote(&column.name))))
}

/// The same for the old images in the log.
fn logged_in(table: &TablePlan) -> String {
    all(table.partition.iter().zip(1..).map(|(place, number)| {
        let prefix = if table.table.key.contains(place) { "k_" } else { "o_" };
        let name = &table.table.columns[*place].name;
        format!("l.{} IS ?{number}", quote(&format!("{prefix}{name}")))
    }))
}

fn all(conditions: impl Iterator<Item = String>) -> String {
    let conditions: Vec<String> = conditions.collect();
    if conditions.is_empty() { "1 = 1".to_owned() } else { conditions.join(" AND ") }
}
