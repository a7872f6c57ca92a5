//! Foreign keys after a download: what it touched is checked before it commits.
//!
//! Rows that came down are looked up by their keys as long as they are few, else their tables are read whole. Rows that refer to a row
//! that went are found through a temporary table of the keys that went.

use std::collections::HashSet;

use headwater_model::sql::quote;
use headwater_model::{Direction, Reference};
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{Connection, params_from_iter};

use super::Apply;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::{Pending, Rows};
use crate::untracked::Doubt;

/// How many keys of rows are remembered; with more, their tables are read whole.
const KEYS_MAX: usize = 10_000;
/// How many rows are dealt with at a time.
const BATCH: u32 = 500;

/// What a download has touched, as far as foreign keys are concerned.
#[derive(Debug)]
pub(super) struct Touched {
    /// Rows that refer to others.
    rows: HashSet<(u32, Vec<u8>)>,
    /// Tables whose rows are all to be looked at.
    whole: Vec<bool>,
    /// Tables whose rows others refer to, and of which some went.
    gone: Vec<bool>,
    refers: Vec<bool>,
    /// Tables to which others refer by columns that are not the key: a row that is stored may have lost its old values.
    by_value: Vec<bool>,
}

impl Touched {
    pub(super) fn new(connection: &Connection, plan: &Plan) -> Result<Touched, Error> {
        let count = plan.tables.len();
        let refers: Vec<bool> = plan.tables.iter().map(|table| !table.references.is_empty()).collect();
        let mut by_value = vec![false; count];
        for reference in plan.tables.iter().flat_map(|table| &table.references) {
            by_value[reference.table] |= reference.target != plan.tables[reference.table].table.key;
        }
        for table in plan.tables.iter().filter(|table| table.is_parent) {
            let (name, keys) = (gone_name(table), table.keys("").join(", "));
            let sql = format!(
                "CREATE TEMP TABLE IF NOT EXISTS {name} ({keys}, PRIMARY KEY ({keys})) WITHOUT ROWID; DELETE FROM temp.{name}"
            );
            connection.execute_batch(&sql).while_doing("beginning to apply a download")?;
        }
        Ok(Touched { rows: HashSet::new(), whole: vec![false; count], gone: vec![false; count], refers, by_value })
    }

    /// Whether single rows of a table need not be reported any more.
    pub(super) fn is_whole(&self, table: &TablePlan) -> bool {
        let number = table.number as usize;
        (self.whole[number] || !self.refers[number]) && (self.gone[number] || !self.by_value[number])
    }

    /// Every row of a table may have come or gone.
    pub(super) fn all_of(&mut self, table: &TablePlan) {
        self.whole[table.number as usize] = true;
        if table.is_parent {
            self.gone[table.number as usize] = true;
        }
    }

    /// A row was stored.
    pub(super) fn row(&mut self, table: &TablePlan, key: &[u8]) {
        if self.is_whole(table) {
            return;
        }
        self.gone[table.number as usize] |= self.by_value[table.number as usize];
        if self.rows.len() >= KEYS_MAX {
            self.whole[table.number as usize] = true;
            self.rows.retain(|(number, _)| *number != table.number);
        } else {
            self.rows.insert((table.number, key.to_vec()));
        }
    }

    /// A row went.
    pub(super) fn gone(&mut self, rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        if !table.is_parent {
            return Ok(());
        }
        self.gone[table.number as usize] = true;
        let places: Vec<&str> = key.iter().map(|_| "?").collect();
        let sql = format!("INSERT OR IGNORE INTO temp.{} VALUES ({})", gone_name(table), places.join(", "));
        rows.execute(&sql, key).map(drop)
    }
}

fn gone_name(table: &TablePlan) -> String {
    format!("\"hw_gone_{}\"", table.number)
}

impl Apply<'_> {
    /// Makes every foreign key hold that this download may have broken. Each step sets a pending change aside or takes a row out, so
    /// there is an end.
    pub(super) fn check_foreign_keys(&mut self) -> Result<(), Error> {
        loop {
            let mut found = false;
            for table in &self.plan.tables {
                for reference in &table.references {
                    for key in self.orphans(table, reference)? {
                        found = true;
                        // What was done for one may have brought the parent of the next.
                        if !self.is_orphan(table, reference, &key)? {
                            continue;
                        }
                        self.rows.set_applying(Some(table))?;
                        self.adopt(table, reference, &key)?;
                    }
                }
            }
            if !found {
                return Ok(());
            }
        }
    }

    /// Keys of rows whose parent is missing, as far as this download may have caused it; a batch of them.
    fn orphans(&self, table: &TablePlan, reference: &Reference) -> Result<Vec<Vec<Local>>, Error> {
        let Some(parent) = self.plan.tables.get(reference.table) else {
            return Ok(Vec::new());
        };
        let orphan = orphan_condition(table, parent, reference);
        let select = format!("SELECT {} FROM {} AS c WHERE {orphan}", prefixed(&table.keys(""), "c"), table.name());
        let is_gone = self.touched.gone[reference.table];
        let by_key = reference.target == parent.table.key;
        let parent_whole = is_gone && (self.touched.whole[reference.table] || !by_key);
        if self.touched.whole[table.number as usize] || parent_whole {
            return self.keys(&format!("{select} LIMIT {BATCH}"), table, &[]);
        }
        let mut orphans = Vec::new();
        if is_gone {
            let columns = prefixed(&names(table, &reference.columns), "c");
            let sql = format!(
                "{select} AND ({columns}) IN (SELECT {} FROM temp.{}) LIMIT {BATCH}",
                parent.keys("").join(", "),
                gone_name(parent)
            );
            orphans = self.keys(&sql, table, &[])?;
        }
        let by_key: Vec<String> =
            table.keys("").iter().zip(1..).map(|(key, place)| format!("c.{key} = ?{place}")).collect();
        let sql = format!("{select} AND {}", by_key.join(" AND "));
        for (number, key) in &self.touched.rows {
            if *number == table.number && orphans.len() < BATCH as usize {
                orphans.extend(self.keys(&sql, table, &from_wire(&self.rows.key_of_bytes(table, key)?))?);
            }
        }
        orphans.dedup();
        Ok(orphans)
    }

    fn is_orphan(&self, table: &TablePlan, reference: &Reference, key: &[Local]) -> Result<bool, Error> {
        let Some(parent) = self.plan.tables.get(reference.table) else {
            return Ok(false);
        };
        let by_key: Vec<String> =
            table.keys("").iter().zip(1..).map(|(key, place)| format!("c.{key} = ?{place}")).collect();
        let orphan = orphan_condition(table, parent, reference);
        let sql = format!("SELECT 1 FROM {} AS c WHERE {orphan} AND {}", table.name(), by_key.join(" AND "));
        self.rows.prepare(&sql)?.exists(params_from_iter(key)).while_doing("checking foreign keys")
    }

    pub(super) fn keys(&self, sql: &str, table: &TablePlan, values: &[Local]) -> Result<Vec<Vec<Local>>, Error> {
        let mut select = self.rows.prepare(sql)?;
        let read = |row: &rusqlite::Row<'_>| (0..table.key_types.len()).map(|index| Local::read(row, index)).collect();
        let found = select.query_map(params_from_iter(values), read);
        found.and_then(Iterator::collect).while_doing("checking foreign keys")
    }

    /// Deals with a row whose parent is missing: sets its pending change aside, or the pending deletion of its parent. Where there is
    /// neither, the row is held until its parent comes.
    fn adopt(&mut self, table: &TablePlan, reference: &Reference, key: &[Local]) -> Result<(), Error> {
        let pending = self.rows.pending(table, key)?.filter(|pending| !pending.is_nothing());
        let message = format!("the row of {} that it refers to is gone", self.parent_name(reference));
        let refusal = Refusal { code: RefusalCode::ForeignKey, message };
        // Stored again, the row would be what a trigger makes of it again.
        let is_without_it = |pending: &Pending| refers_alike(reference, pending);
        let is_to_wait = self.rows.fires_own_triggers(table)? && pending.as_ref().is_some_and(is_without_it);
        if let Some(pending) = pending.as_ref().filter(|_| !is_to_wait) {
            self.set_aside(table, pending, &refusal)?;
            return self.return_displaced();
        }
        self.forget_nothing(table, key)?;
        let row = match pending.as_ref().and_then(|pending| pending.old.clone()) {
            Some(old) => old,
            None => match self.rows.select(table, key)? {
                Some(row) => row,
                None => return Ok(()),
            },
        };
        if self.restore_parent(table, reference, &row)? {
            return Ok(());
        }
        if let Some(pending) = &pending {
            self.applied.set_aside += 1;
            self.rows.note_aside(table, pending, &refusal, false, self.now)?;
            self.rows.forget(table, key)?;
        }
        let is_noted = self.note_gone(table, &row, "the row that it refers to is gone")?;
        let wire = to_wire(&self.as_it_came(table, key)?.unwrap_or(row), &table.types);
        self.rows.set_applying(Some(table))?;
        if !self.take_row_out(table, key)? {
            // A trigger keeps it: no trigger sees it go.
            super::set_triggers(self.rows.connection, false)?;
            self.remove(table, key)?;
            super::set_triggers(self.rows.connection, true)?;
        }
        if !is_noted && table.table.direction != Direction::Upload {
            tracing::warn!(
                table = table.table.name,
                "a downloaded row refers to a row that is not here; it is held and tried again"
            );
            self.applied.not_stored += 1;
        }
        let (why, key) = ("it refers to a row that is not here", table.key_bytes(&table.key_of(&wire)));
        match self.rows.held(table, &key)? {
            None => self.rows.hold_because(table, &key, Some(&wire), Some(why)),
            // What came after it stays held; what came was its deletion, and it is gone now.
            Some(Some(_)) => Ok(()),
            Some(None) => self.rows.release(table, &key),
        }
    }

    /// At the end: rows of tables that only go up have gone up, and what they refer to is not coming, unless a table is in doubt still. Whether
    /// a database that this remote starts afresh with has them nobody can tell: the list has them then.
    pub(super) fn let_go_what_went_up(&mut self) -> Result<(), Error> {
        let is_certain = |doubt: &Doubt| matches!(doubt, Doubt::None | Doubt::Between);
        if !self.is_restart && !self.doubts.iter().all(is_certain) {
            return Ok(());
        }
        for table in self.plan.tables.iter().filter(|table| table.table.direction == Direction::Upload) {
            // Others of the table may refer to those that go.
            while self.let_go_of(table)? {}
        }
        Ok(())
    }

    /// The same for one table, once. Whether any went.
    fn let_go_of(&mut self, table: &TablePlan) -> Result<bool, Error> {
        let (mut after, mut any) = (Vec::new(), false);
        loop {
            let keys = self.rows.held_keys(table, &after, BATCH)?;
            let Some(last) = keys.last() else { return Ok(any) };
            after.clone_from(last);
            for key in keys {
                any |= self.let_go(table, &key)?;
            }
        }
    }

    fn let_go(&mut self, table: &TablePlan, key: &[u8]) -> Result<bool, Error> {
        let key_row = from_wire(&self.rows.key_of_bytes(table, key)?);
        if self.rows.pending(table, &key_row)?.is_some() {
            return Ok(false);
        }
        let held = self.rows.held(table, key)?.flatten().map(|row| from_wire(&row));
        // When a remote starts afresh nobody can tell whether it has gone up there: the list has it, whatever comes later.
        if !self.is_restart && held.as_ref().map_or(Ok(false), |row| self.may_come_back(table, row))? {
            return Ok(false);
        }
        self.rows.release(table, key)?;
        let Some(row) = held.filter(|_| self.is_restart) else { return Ok(true) };
        let message =
            "the row that it refers to is gone, and nothing tells whether this one has gone up there".to_owned();
        let refusal = Refusal { code: RefusalCode::ForeignKey, message };
        let pending = Pending { aside: 0, old: None, key: key_row, new: Some(row) };
        self.applied.set_aside += 1;
        self.rows.note_aside(table, &pending, &refusal, false, self.now).map(|()| true)
    }

    /// Whether all that a row refers to is here, or has come and is only held.
    pub(super) fn may_come_back(&self, table: &TablePlan, row: &[Local]) -> Result<bool, Error> {
        for reference in &table.references {
            let Some(parent) = self.plan.tables.get(reference.table) else { continue };
            let values: Vec<Local> = reference.columns.iter().filter_map(|&place| row.get(place).cloned()).collect();
            let same = names(parent, &reference.target).into_iter().map(|name| format!("{name} = ?"));
            let sql = format!("SELECT 1 FROM {} WHERE {}", parent.name(), same.collect::<Vec<_>>().join(" AND "));
            let is_here = values.contains(&Local::Null)
                || self.rows.prepare(&sql)?.exists(params_from_iter(&values)).while_doing("checking foreign keys")?
                || self.held_with(parent, &reference.target, &values)?.is_some();
            if !is_here {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets aside the pending change that deleted the parent of a row, or keeps it from being stored; whether there is one.
    fn restore_parent(&mut self, table: &TablePlan, reference: &Reference, row: &[Local]) -> Result<bool, Error> {
        let plan = self.plan;
        let Some(parent) = plan.tables.get(reference.table).filter(|parent| parent.is_tracked()) else {
            return Ok(false);
        };
        let condition: Vec<String> = reference
            .target
            .iter()
            .zip(1..)
            .map(|(place, number)| {
                let prefix = if parent.table.key.contains(place) { "k_" } else { "o_" };
                format!("l.{} = ?{number}", quote(&format!("{prefix}{}", parent.table.columns[*place].name)))
            })
            .collect();
        let values: Vec<Local> = reference.columns.iter().filter_map(|&place| row.get(place).cloned()).collect();
        let found =
            self.pending_where(parent, &format!("l.\"existed\" = 1 AND {}", condition.join(" AND ")), &values)?;
        let pending = found.into_iter().find(|pending| !pending.is_nothing());
        let Some(pending) =
            pending.map_or_else(|| self.pending_over(parent, &reference.target, &values), |p| Ok(Some(p)))?
        else {
            return Ok(false);
        };
        let message = format!("a downloaded row of {} refers to it", table.name());
        self.rows.set_applying(Some(parent))?;
        self.set_aside(parent, &pending, &Refusal { code: RefusalCode::ForeignKey, message })?;
        self.return_displaced()?;
        Ok(true)
    }

    /// The pending change beside which a row with these values is held.
    fn pending_over(&self, table: &TablePlan, places: &[usize], values: &[Local]) -> Result<Option<Pending>, Error> {
        match self.held_with(table, places, values)? {
            Some(key) => self.rows.pending(table, &from_wire(&self.rows.key_of_bytes(table, &key)?)),
            None => Ok(None),
        }
    }

    /// The key of a held row with these values.
    fn held_with(&self, table: &TablePlan, places: &[usize], values: &[Local]) -> Result<Option<Vec<u8>>, Error> {
        if places == table.table.key {
            // All held rows of a table may be asked for one by one.
            let key = table.key_bytes(&to_wire(values, &table.key_types));
            let is_row = self.rows.held(table, &key)?.flatten().is_some();
            return Ok(is_row.then_some(key));
        }
        let mut after = Vec::new();
        loop {
            let keys = self.rows.held_keys(table, &after, BATCH)?;
            let Some(last) = keys.last() else {
                return Ok(None);
            };
            after.clone_from(last);
            for key in keys {
                let held = self.rows.held(table, &key)?.flatten().map(|row| from_wire(&row));
                if held
                    .is_some_and(|row| places.iter().zip(values).all(|(place, value)| row.get(*place) == Some(value)))
                {
                    return Ok(Some(key));
                }
            }
        }
    }

    fn parent_name(&self, reference: &Reference) -> String {
        self.plan.tables.get(reference.table).map(TablePlan::name).unwrap_or_default()
    }
}

/// Whether a row refers to the same with a pending change and without it.
fn refers_alike(reference: &Reference, pending: &Pending) -> bool {
    let (Some(old), Some(new)) = (&pending.old, &pending.new) else { return false };
    reference.columns.iter().all(|&place| old.get(place) == new.get(place))
}

fn orphan_condition(table: &TablePlan, parent: &TablePlan, reference: &Reference) -> String {
    let own = names(table, &reference.columns);
    let some: Vec<String> = own.iter().map(|name| format!("c.{name} IS NOT NULL")).collect();
    let equal: Vec<String> = names(parent, &reference.target)
        .iter()
        .zip(&own)
        .map(|(target, own)| format!("p.{target} = c.{own}"))
        .collect();
    format!(
        "{} AND NOT EXISTS (SELECT 1 FROM {} AS p WHERE {})",
        some.join(" AND "),
        parent.name(),
        equal.join(" AND ")
    )
}

fn names(table: &TablePlan, places: &[usize]) -> Vec<String> {
    places.iter().map(|&place| quote(&table.table.columns[place].name)).collect()
}

fn prefixed(names: &[String], prefix: &str) -> String {
    names.iter().map(|name| format!("{prefix}.{name}")).collect::<Vec<_>>().join(", ")
}
