//! Rows of a partition that comes whole: each of them goes unless it comes again.
//!
//! ```text
//! the partition's mark    the keys of its rows -> temp.hw_going_N
//! a row that comes        its key is taken out of it; the row is stored where it differs from the one that stands there
//! the table's end         the rows whose keys are left in it are deleted
//! ```
//!
//! So the application's triggers see what differs, and nothing else, and its own columns keep what they hold.
//!
//! Of a table that is compared ([`super::doubt`]), rows that did not come stay until then: most of them were made here.

use headwater_protocol::{Row, Value};
use rusqlite::params_from_iter;

use super::Apply;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::TablePlan;
use crate::rows::Placed;
use crate::untracked::Doubt;

impl Apply<'_> {
    /// Rows that meet a condition on the table, and have no pending change, go unless they come again.
    pub(super) fn go_unless_they_come(
        &mut self,
        table: &TablePlan,
        condition: &str,
        values: &[Local],
    ) -> Result<(), Error> {
        let condition = without_change(table, condition);
        self.remember_rows(table, &condition, values)?;
        let (name, keys) = (going(table), columns(table, "").join(", "));
        if self.going.insert(table.number) {
            let sql = format!(
                "CREATE TEMP TABLE IF NOT EXISTS {name} ({keys}, PRIMARY KEY ({keys})) WITHOUT ROWID; DELETE FROM temp.{name}"
            );
            self.rows.connection.execute_batch(&sql).while_doing("replacing a partition")?;
        }
        let own = table.keys("").join(", ");
        let sql = format!("INSERT OR IGNORE INTO temp.{name} SELECT {own} FROM {} WHERE {condition}", table.name());
        self.rows.execute(&sql, values).map(drop)
    }

    /// A row has come: it stays.
    pub(super) fn stays(&self, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        match self.stays_sql(table) {
            Some(sql) => self.rows.execute(&sql, key).map(drop),
            None => Ok(()),
        }
    }

    /// What does that, by key; `None`: no row of the table is to go.
    pub(super) fn stays_sql(&self, table: &TablePlan) -> Option<String> {
        let sql = || format!("DELETE FROM temp.{} WHERE {}", going(table), by_key(table));
        self.going.contains(&table.number).then(sql)
    }

    /// Whether a row is to go, as far as is known.
    pub(super) fn is_going(&self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        if !self.going.contains(&table.number) {
            return Ok(false);
        }
        let sql = format!("SELECT 1 FROM temp.{} WHERE {}", going(table), by_key(table));
        self.rows.prepare(&sql)?.exists(params_from_iter(key)).while_doing("replacing a partition")
    }

    /// The same as a condition on rows of the table that are called so.
    pub(super) fn goes(&self, table: &TablePlan, row: &str) -> String {
        if !self.going.contains(&table.number) {
            return "0".to_owned();
        }
        let own = table.keys("").into_iter().map(|key| format!("+{row}.{key}"));
        let same: Vec<String> =
            columns(table, "x.").iter().zip(own).map(|(column, own)| format!("{column} = {own}")).collect();
        format!("EXISTS (SELECT 1 FROM temp.{} AS x WHERE {})", going(table), same.join(" AND "))
    }

    /// Everything of a table has come: what did not is deleted. (Of one that is compared, comparing does that.)
    pub(super) fn delete_what_did_not_come(&mut self, table: &TablePlan) -> Result<(), Error> {
        if self.is_to_be_compared(table) || !self.going.contains(&table.number) {
            return Ok(());
        }
        self.end_taking_out()?;
        self.rows.set_applying(Some(table))?;
        self.hold_changed(table)?;
        self.delete_going(table)?;
        self.forget_going(table)
    }

    /// Nothing of a table is to go any more.
    pub(super) fn forget_going(&mut self, table: &TablePlan) -> Result<(), Error> {
        if self.going.remove(&table.number) {
            self.rows.execute(&format!("DELETE FROM temp.{}", going(table)), &[])?;
        }
        Ok(())
    }

    /// Triggers of the application's on other tables may have written to rows that did not come since: their deletion is held beside that change.
    fn hold_changed(&mut self, table: &TablePlan) -> Result<(), Error> {
        if !table.is_tracked() {
            return Ok(());
        }
        let logged: Vec<String> = table
            .keys("k_")
            .into_iter()
            .zip(columns(table, "v."))
            .map(|(key, column)| format!("l.{key} = +{column}"))
            .collect();
        let is_logged =
            format!("EXISTS (SELECT 1 FROM {} AS l WHERE l.\"upload\" = 0 AND {})", table.log(), logged.join(" AND "));
        self.each_going(table, &is_logged, |apply, key| {
            apply.forget_nothing(table, &key)?;
            let Some(pending) = apply.rows.pending(table, &key)? else { return Ok(()) };
            apply.stays(table, &key)?;
            let key = table.key_bytes(&to_wire(&key, &table.key_types));
            let is_to_go = pending.old.is_some() && apply.rows.held(table, &key)?.is_none();
            if is_to_go { apply.rows.hold(table, &key, None) } else { Ok(()) }
        })
    }

    fn delete_going(&mut self, table: &TablePlan) -> Result<(), Error> {
        let (keys, own) = (columns(table, "").join(", "), table.keys("").join(", "));
        let sql = format!("DELETE FROM {} WHERE ({own}) IN (SELECT {keys} FROM temp.{})", table.name(), going(table));
        let is_one_by_one = self.rows.has_own_triggers(table)? || self.own_children.restrict(table);
        if !is_one_by_one && self.rows.run(table, &sql, &[])?.0 == Placed::Done {
            return Ok(());
        }
        self.each_going(table, "1 = 1", |apply, key| {
            let key_bytes = table.key_bytes(&to_wire(&key, &table.key_types));
            apply.delete_or_hold(table, &key, &key_bytes)
        })
    }

    /// Goes through the keys of rows that are to go and meet a condition on their keys `v`.
    fn each_going(
        &mut self,
        table: &TablePlan,
        condition: &str,
        each: impl FnMut(&mut Self, Vec<Local>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let keys = columns(table, "v.").join(", ");
        self.each_key(table, &keys, &format!("temp.{} AS v WHERE {condition}", going(table)), &[], each)
    }

    /// A row that came is not stored. Unless its table is compared, the one that stands there stays, as where only changes come.
    pub(super) fn stays_unstored(&self, table: &TablePlan, row: &Row) -> Result<(), Error> {
        if self.is_to_be_compared(table) {
            return Ok(());
        }
        let key: Vec<Value> = table.key_of(row);
        self.stays(table, &from_wire(&key))
    }

    fn is_to_be_compared(&self, table: &TablePlan) -> bool {
        matches!(self.doubts[table.number as usize], Doubt::Compare | Doubt::AtOnce)
    }
}

/// A condition on rows of a table, and that they have no pending change.
pub(crate) fn without_change(table: &TablePlan, condition: &str) -> String {
    if !table.is_tracked() {
        return condition.to_owned();
    }
    let own = table.name();
    let keys: Vec<String> =
        table.keys("").iter().zip(table.keys("k_")).map(|(key, logged)| format!("l.{logged} = +{own}.{key}")).collect();
    format!(
        "{condition} AND NOT EXISTS (SELECT 1 FROM {} AS l WHERE l.\"upload\" = 0 AND {})",
        table.log(),
        keys.join(" AND ")
    )
}

/// The temporary table of the keys of rows that are to go.
fn going(table: &TablePlan) -> String {
    format!("\"hw_going_{}\"", table.number)
}

/// A condition on that table: a key, whose values are the parameters.
fn by_key(table: &TablePlan) -> String {
    columns(table, "").iter().map(|column| format!("{column} = ?")).collect::<Vec<_>>().join(" AND ")
}

fn columns(table: &TablePlan, prefix: &str) -> Vec<String> {
    (0..table.key_types.len()).map(|place| format!("{prefix}k{place}")).collect()
}
