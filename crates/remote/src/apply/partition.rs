//! A partition that comes whole, or is left.

use headwater_model::Direction;
use headwater_model::sql::quote;
use headwater_protocol::message::{PartitionAction, PartitionMark, Refusal, RefusalCode};
use headwater_protocol::{Row, Value};
use rusqlite::{params, params_from_iter};

use super::involved::Involved;
use super::{Apply, whereabouts, without_change};
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{Plan, TablePlan, decoded};
use crate::rows::{Pending, Placed};
use crate::untracked::{self, Doubt};

/// How many rows are looked at at a time where each is dealt with on its own.
const BATCH: u32 = 500;

impl Apply<'_> {
    /// Takes out what the remote holds of a partition. Pending changes stay where the partition comes whole, and are set aside where
    /// it is left.
    pub(super) fn partition(&mut self, table: &TablePlan, mark: &PartitionMark) -> Result<(), Error> {
        let values = decoded(&table.partition_types, &mark.partition)?;
        let is_whole = mark.action == PartitionAction::Whole;
        let stays = is_whole && self.compare_whole(table, &mark.partition)?;
        if is_whole {
            self.end_departure()?;
        } else {
            self.begin_departure(table)?;
        }
        if !is_whole {
            self.note_left(table, &from_wire(&values))?;
        } else if !stays {
            self.note_afresh(table, &mark.partition)?;
            self.forget_displaced(table, &values)?;
        }
        self.touched.all_of(table);
        let is_first_left = !is_whole && !self.left.iter().any(|(number, _)| *number == table.number);
        if is_first_left && table.parent.is_some() && table.is_tracked() {
            // What has lost its parent here lay in no partition, and nothing tells what became of it: it comes now, or is not the remote's.
            self.hold_deletions(table, &logged_in(self.plan, table), &vec![Local::Null; values.len()])?;
        }
        let place = (table.number, mark.partition.clone());
        if is_whole {
            self.came_whole.insert(place)
        } else {
            self.left.insert(place)
        };
        if stays {
            return Ok(());
        }
        let is_first = is_whole && self.begun.insert(table.number);
        let is_involved = !self.involved.as_ref().is_some_and(Involved::is_empty);
        if self.is_plain && !is_involved && !self.rows.any(&table.any_row())? {
            return Ok(());
        }
        if is_first && table.parent.is_some() {
            // What lost its parent here (foreign keys may be off) lies nowhere any more, and what the database has of it comes.
            self.take_out(table, &vec![Value::Null; values.len()], None)?;
        }
        self.take_out(table, &values, (!is_whole).then_some(&mark.partition))
    }

    /// The same of its rows, its pending changes, and what is held.
    fn take_out(&mut self, table: &TablePlan, values: &[Value], left: Option<&Vec<u8>>) -> Result<(), Error> {
        let local = from_wire(values);
        if table.is_tracked() {
            match left {
                Some(partition) => self.set_aside_left(table, partition.clone(), &local)?,
                None => self.hold_deletions(table, &logged_in(self.plan, table), &local)?,
            }
        }
        self.release_unneeded(table, Some(values))?;
        let condition = rows_in(self.plan, table, &table.name());
        if left.is_some() {
            self.keep_children_of(table, &condition, &local)?;
        }
        let not_coming = self.prepared.as_ref().and_then(|prepared| prepared.not_coming(table));
        match (left, not_coming) {
            (Some(_), _) => self.delete_where(table, &condition, &local),
            (None, Some(not_coming)) if self.own_children.restrict(table) => {
                self.go_unless_they_come(table, &(condition + &not_coming), &local)
            }
            // It is known what comes, and the rest makes way for it.
            (None, Some(not_coming)) => self.delete_where(table, &(condition + &not_coming), &local),
            (None, None) => self.go_unless_they_come(table, &condition, &local),
        }
    }

    /// A condition on changes: their keys are not those of rows that came just as they are stored.
    fn not_equal(&self, table: &TablePlan) -> Option<String> {
        let keys: Vec<String> = table.keys("k_").iter().map(|key| format!("l.{key}")).collect();
        self.prepared.as_ref().and_then(|prepared| prepared.not_equal(table, &keys))
    }

    /// Rows of a partition that comes whole, which have stepped aside: they come again, or are gone, or they came as they are stored, and
    /// nothing brings them but what stepped aside.
    fn forget_displaced(&mut self, table: &TablePlan, values: &[Value]) -> Result<(), Error> {
        for (key, row) in self.all_displaced(table)? {
            if self.lay_in(table, &row, values)? && !self.came_equal(table, &key)? {
                self.note_gone(table, &from_wire(&row), "it stepped aside for another that came")?;
                self.undisplace(table, &key)?;
            }
        }
        Ok(())
    }

    fn came_equal(&self, table: &TablePlan, key: &[u8]) -> Result<bool, Error> {
        let Some(prepared) = &self.prepared else { return Ok(false) };
        prepared.came_equal(&self.rows, table, &from_wire(&self.rows.key_of_bytes(table, key)?))
    }

    /// A partition comes whole. If nobody here asked for that, the consolidated database can't tell its changes any more.
    fn note_afresh(&mut self, table: &TablePlan, partition: &[u8]) -> Result<(), Error> {
        let is_asked_for = self.doubts[table.number as usize] == Doubt::Compare || self.comes_along(table);
        if !self.fresh.is_empty() || is_asked_for {
            return Ok(());
        }
        let sql = "SELECT 1 FROM \"hw_watermark\" AS w JOIN \"hw_mark\" AS m ON m.\"id\" = w.\"mark\" \
                   WHERE w.\"table\" = ? AND w.\"partition\" = ? AND m.\"bytes\" <> x''";
        let mut seen = self.rows.prepare(sql)?;
        if seen.exists(params![table.number, partition]).while_doing("reading the watermarks")? {
            self.afresh.insert(table.number);
        }
        Ok(())
    }

    /// Whether nothing of a table can lie in a partition: neither its rows, nor those from which they take their partition, nor what changes
    /// have changed, nor what is held.
    pub(super) fn has_nothing_in(&self, number: u32, partition: &[u8]) -> Result<bool, Error> {
        let Some(mut table) = self.plan.table(number) else { return Ok(false) };
        while let Some((above, _)) = &table.parent
            && let Some(above) = self.plan.table(*above)
        {
            table = above;
        }
        if table.parent.is_some() || !table.is_tracked() || !self.all_displaced(table)?.is_empty() {
            return Ok(false);
        }
        let values = from_wire(&decoded(&table.partition_types, partition)?);
        let has_held = self.rows.prepare("SELECT 1 FROM \"hw_held\" WHERE \"table\" = ?")?.exists([table.number]);
        if has_held.while_doing("looking into a partition")? {
            return Ok(false);
        }
        let rows = format!("SELECT 1 FROM {} WHERE {}", table.name(), rows_in(self.plan, table, &table.name()));
        let changes =
            format!("SELECT 1 FROM {} AS l WHERE l.\"existed\" = 1 AND {}", table.log(), logged_in(self.plan, table));
        for sql in [rows, changes] {
            let found = self.rows.prepare(&sql)?.exists(params_from_iter(&values));
            if found.while_doing("looking into a partition")? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rows of the partition that have no pending change.
    fn delete_rows(&mut self, table: &TablePlan, values: &[Local]) -> Result<(), Error> {
        let condition = rows_in(self.plan, table, &table.name());
        self.keep_children_of(table, &condition, values)?;
        self.delete_where(table, &condition, values)
    }

    fn delete_where(&mut self, table: &TablePlan, condition: &str, values: &[Local]) -> Result<(), Error> {
        let (own, condition) = (table.name(), without_change(table, condition));
        self.remember_rows(table, &condition, values)?;
        self.keep_own(table, &condition, values)?;
        if self.rows.has_own_triggers(table)? {
            return self.delete_one_by_one(table, &condition, values);
        }
        let sql = format!("DELETE FROM {own} WHERE {condition}");
        let (emptied, _) = self.rows.run(table, &sql, values)?;
        if self.doubts[table.number as usize] != Doubt::Compare {
            return if emptied == Placed::Done { Ok(()) } else { self.delete_one_by_one(table, &condition, values) };
        }
        // Triggers of a table that is compared are left out; where one of them keeps a row, no trigger sees it go.
        let mut kept = self.rows.prepare(&format!("SELECT 1 FROM {own} WHERE {condition}"))?;
        if emptied == Placed::Done && !kept.exists(params_from_iter(values)).while_doing("emptying a partition")? {
            return Ok(());
        }
        super::set_triggers(self.rows.connection, false)?;
        self.rows.run(table, &sql, values)?;
        super::set_triggers(self.rows.connection, true)
    }

    /// The same where triggers of the application's see each row go, and may write to others; or where a row does not go.
    fn delete_one_by_one(&mut self, table: &TablePlan, condition: &str, values: &[Local]) -> Result<(), Error> {
        let keys = table.keys("").join(", ");
        self.each_key(table, &keys, &format!("{} WHERE {condition}", table.name()), values, |apply, key| {
            if apply.rows.pending(table, &key)?.is_some() {
                return Ok(());
            }
            let key_bytes = table.key_bytes(&to_wire(&key, &table.key_types));
            apply.remove_or_hold(table, &key, &key_bytes)
        })
    }

    /// Goes through keys, some at a time: `keys` are their columns, `from` is what stands behind FROM, with a condition at its end.
    pub(super) fn each_key(
        &mut self,
        table: &TablePlan,
        keys: &str,
        from: &str,
        values: &[Local],
        mut each: impl FnMut(&mut Self, Vec<Local>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let select = format!("SELECT {keys} FROM {from}");
        let places = (values.len() + 1..).take(table.key_types.len()).map(|place| format!("?{place}"));
        let places = places.collect::<Vec<_>>().join(", ");
        let first = format!("{select} ORDER BY {keys} LIMIT {BATCH}");
        let next = format!("{select} AND ({keys}) > ({places}) ORDER BY {keys} LIMIT {BATCH}");
        let mut batch = self.keys(&first, table, values)?;
        while let Some(last) = batch.last().cloned() {
            batch.into_iter().try_for_each(|key| each(self, key))?;
            batch = self.keys(&next, table, &[values, &last].concat())?;
        }
        Ok(())
    }

    /// Pending changes of rows that the consolidated database had where this condition on the log says, and of which it has not said anything
    /// since: unless their row comes again, it is deleted there, or lies in none of the remote's partitions any more.
    fn hold_deletions(&self, table: &TablePlan, condition: &str, values: &[Local]) -> Result<(), Error> {
        // What came as it was stored did not come again in a frame.
        let not_equal = self.not_equal(table).unwrap_or_default();
        let sql = table.sql.changes_where(&format!("l.\"existed\" = 1 AND {condition}{not_equal}"));
        let mut select = self.rows.prepare(&sql)?;
        let mut found = select.query(params_from_iter(values)).while_doing("reading the log")?;
        while let Some(row) = found.next().while_doing("reading the log")? {
            let pending = Pending::read(table, row).while_doing("reading the log")?;
            let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
            if self.rows.held(table, &key)?.is_none() {
                self.rows.hold(table, &key, None)?;
            }
        }
        Ok(())
    }

    fn set_aside_left(&mut self, table: &TablePlan, partition: Vec<u8>, local: &[Local]) -> Result<(), Error> {
        self.left.insert((table.number, partition));
        let condition = changes_in(self.plan, table);
        let is_known = matches!(self.doubts[table.number as usize], Doubt::None | Doubt::Between);
        loop {
            let batch = self.pending_where(table, &condition, local)?;
            if batch.is_empty() {
                return Ok(());
            }
            for pending in batch {
                // A row that was written as it was is none of anybody's changes, where all are known.
                if is_known && pending.aside == 0 && pending.is_nothing() {
                    self.take_back(table, &pending)?;
                } else if !self.take_back_written(table, &pending)? {
                    self.set_aside(table, &pending, &left_refusal())?;
                }
            }
        }
    }

    /// Held rows that lie in the partition (`None`: anywhere): without a pending change they are of no use any more, beside one they are gone
    /// too, unless they come again.
    fn release_unneeded(&mut self, table: &TablePlan, values: Option<&[Value]>) -> Result<(), Error> {
        let mut after = Vec::new();
        loop {
            let keys = self.rows.held_keys(table, &after, 100)?;
            let Some(last) = keys.last() else {
                return Ok(());
            };
            after.clone_from(last);
            for key in keys {
                let held: Option<Row> = self.rows.held(table, &key)?.flatten();
                let is_unneeded = match (&held, values) {
                    (_, None) => true,
                    (Some(row), Some(values)) => self.lay_in(table, row, values)?,
                    (None, Some(_)) => false,
                };
                if !is_unneeded {
                    continue;
                }
                let key_row = from_wire(&self.rows.key_of_bytes(table, &key)?);
                match self.rows.pending(table, &key_row)?.and_then(|pending| pending.old) {
                    Some(_) => self.rows.hold(table, &key, None)?,
                    None => self.rows.release(table, &key)?,
                }
            }
        }
    }

    /// Before tables come whole. What is held, or has a pending change, comes again, or lies in none of the remote's partitions any more.
    /// Rows go, unless they come, that would stay otherwise: of a table that is compared, those in none of the remote's partitions, which were made
    /// here; of one that is made anew, those that were in others under the old version; of tables that take their partition from it, and in a restart from any, all: nobody can tell which of them lay where.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        for table in self.plan.tables.iter().filter(|table| table.table.direction != Direction::Upload) {
            let is_compared = self.doubts[table.number as usize] == Doubt::Compare;
            let comes_along = self.comes_along(table);
            if is_compared || comes_along || self.is_restart {
                self.rows.set_applying(Some(table))?;
                self.release_unneeded(table, None)?;
                if table.is_tracked() {
                    self.hold_deletions(table, "1 = 1", &[])?;
                }
            }
            let fresh = self.fresh.get(table.number as usize).and_then(Option::as_ref);
            let is_made_anew = fresh.is_some_and(|fresh| fresh.is_made_anew);
            if is_compared || comes_along || is_made_anew || (self.is_restart && table.parent.is_some()) {
                self.touched.all_of(table);
                self.go_unless_they_come(table, "1 = 1", &[])?;
            }
        }
        Ok(())
    }

    fn comes_along(&self, table: &TablePlan) -> bool {
        untracked::comes_along(self.plan, &self.doubts, table)
    }

    /// After a restart: partitions that the remote holds and that did not come again are none of its own any more. Nobody told it so,
    /// because it had forgotten them itself. Pending changes in them are judged when they go up; those of rows that have no parent here
    /// any more are set aside.
    pub(super) fn sweep(&mut self) -> Result<(), Error> {
        for table in &self.plan.tables {
            let number = table.number as usize;
            if !self.sweeps[number] || table.partition_types.is_empty() || table.table.direction == Direction::Upload {
                continue;
            }
            self.rows.set_applying(Some(table))?;
            self.sweep_displaced(table)?;
            let (columns, from, condition) = match (&table.parent, table.is_tracked()) {
                (None, _) => (columns_in(self.plan, table, &table.name()), table.name(), "1 = 1"),
                (Some(_), true) => {
                    (logged_columns(self.plan, table), format!("{} AS l", table.log()), "l.\"existed\" = 1")
                }
                (Some(_), false) => continue,
            };
            for local in self.partitions_by(&columns, &from, condition)? {
                let values = to_wire(&local, &table.partition_types);
                let key = table.partition_bytes(&values);
                if self.came_whole.contains(&(table.number, key.clone())) {
                    continue;
                }
                self.touched.all_of(table);
                if table.parent.is_none() && self.doubts[table.number as usize] == Doubt::AtOnce {
                    // Comparing tells what was made here.
                    self.go_unless_they_come(table, &rows_in(self.plan, table, &table.name()), &local)?;
                } else if table.parent.is_none() {
                    self.begin_departure(table)?;
                    self.delete_rows(table, &local)?;
                } else if !local.contains(&Local::Null) {
                    self.begin_departure(table)?;
                    self.set_aside_missing(table, key, &local)?;
                }
            }
        }
        Ok(())
    }

    /// Rows of such partitions that have stepped aside for others.
    fn sweep_displaced(&mut self, table: &TablePlan) -> Result<(), Error> {
        for (key, row) in self.all_displaced(table)? {
            let local = whereabouts::partition_of(&self.rows, self.plan, table, &from_wire(&row))?;
            let partition = table.partition_bytes(&to_wire(&local, &table.partition_types));
            if !local.contains(&Local::Null) && !self.came_whole.contains(&(table.number, partition)) {
                self.undisplace(table, &key)?;
            }
        }
        Ok(())
    }

    /// Sets aside the pending changes of rows in such a partition, but for those whose rows have come with another: their parent has moved.
    fn set_aside_missing(&mut self, table: &TablePlan, partition: Vec<u8>, local: &[Local]) -> Result<(), Error> {
        let condition = changes_in(self.plan, table);
        let keys = table.keys("k_").iter().map(|key| format!("l.{key}")).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT {keys} FROM {} AS l LEFT JOIN {} AS r ON {} WHERE l.\"upload\" = 0 AND {condition}",
            table.log(),
            table.name(),
            all(table.keys("").iter().zip(table.keys("k_")).map(|(own, key)| format!("r.{own} = l.{key}"))),
        );
        let mut missing = Vec::new();
        for key in self.keys(&sql, table, local)? {
            if let Some(pending) = self.rows.pending(table, &key)?
                && !self.has_come(table, &pending)?
            {
                missing.push(pending);
            }
        }
        self.left.insert((table.number, partition));
        missing.iter().try_for_each(|pending| self.set_aside(table, pending, &left_refusal()))
    }

    /// Whether the row of a pending change has come with this restart's download; of one that was made here, its parent.
    fn has_come(&self, table: &TablePlan, pending: &Pending) -> Result<bool, Error> {
        let key = to_wire(&pending.key, &table.key_types);
        if pending.old.is_some() {
            return self.is_at_the_head(table, &key);
        }
        let (Some((parent, through)), Some(new)) = (&table.parent, &pending.new) else { return Ok(false) };
        let Some(parent) = self.plan.table(*parent) else { return Ok(false) };
        let new = to_wire(new, &table.types);
        let key: Vec<Value> = through.iter().filter_map(|place| new.get(*place).cloned()).collect();
        self.is_at_the_head(parent, &key)
    }

    /// The partitions that these columns of a table name.
    fn partitions_by(&self, columns: &[String], from: &str, condition: &str) -> Result<Vec<Vec<Local>>, Error> {
        let sql = format!("SELECT DISTINCT {} FROM {from} WHERE {condition}", columns.join(", "));
        let mut select = self.rows.prepare(&sql)?;
        let read = |row: &rusqlite::Row<'_>| (0..columns.len()).map(|index| Local::read(row, index)).collect();
        let found = select.query_map([], read);
        found.and_then(Iterator::collect).while_doing("looking for partitions that are left")
    }
}

/// A condition on rows of a partition, whose values are the parameters.
pub(super) fn rows_in(plan: &Plan, table: &TablePlan, row: &str) -> String {
    is_all(&columns_in(plan, table, row))
}

/// The partition's values of a row, as SQL.
fn columns_in(plan: &Plan, table: &TablePlan, row: &str) -> Vec<String> {
    whereabouts::values(plan, table, &|place| format!("{row}.{}", quote(&table.table.columns[place].name)))
}

/// The same condition for changes: on their old image, or on their row `r`.
fn changes_in(plan: &Plan, table: &TablePlan) -> String {
    format!("((l.\"existed\" = 1 AND {}) OR ({}))", logged_in(plan, table), rows_in(plan, table, "r"))
}

fn left_refusal() -> Refusal {
    let message = "the remote left the partition of this row".to_owned();
    Refusal { code: RefusalCode::Partition, message }
}

/// The same condition for the old images in the log.
fn logged_in(plan: &Plan, table: &TablePlan) -> String {
    is_all(&logged_columns(plan, table))
}

fn logged_columns(plan: &Plan, table: &TablePlan) -> Vec<String> {
    let logged = |place: usize| {
        let prefix = if table.table.key.contains(&place) { "k_" } else { "o_" };
        format!("l.{}", quote(&format!("{prefix}{}", table.table.columns[place].name)))
    };
    whereabouts::values(plan, table, &logged)
}

fn is_all(values: &[String]) -> String {
    all(values.iter().zip(1..).map(|(value, number)| format!("{value} IS ?{number}")))
}

fn all(conditions: impl Iterator<Item = String>) -> String {
    let conditions: Vec<String> = conditions.collect();
    if conditions.is_empty() { "1 = 1".to_owned() } else { conditions.join(" AND ") }
}
