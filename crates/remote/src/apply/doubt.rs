//! Rows of tables in doubt ([`crate::untracked`]): what was changed while nobody logged it.

use headwater_model::sql::quote;
use headwater_protocol::Row;
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{params, params_from_iter};

use super::partition::rows_in;
use super::whereabouts::partition_of;
use super::{Apply, as_it_came};
use crate::cut::log_change;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{TablePlan, same_values};
use crate::rows::{IS_IN_GONE_COLUMN, Pending, Placed, Rows};
use crate::untracked::{self, Doubt};

/// Keeps the rows of a table that is going to come whole, to compare them with what comes. Not those with pending changes: whoever
/// changed them since, it is part of that change. Of them the keys are kept: what comes may be the same change, and end it.
pub(super) fn keep_before(rows: &Rows<'_>, table: &TablePlan) -> Result<(), Error> {
    let (before, had) = (before(table), had_changes(table));
    let names: Vec<String> = table.names().map(quote).collect();
    let is_pending = if table.is_tracked() {
        let same: Vec<String> =
            table.keys("").iter().zip(table.keys("k_")).map(|(own, key)| format!("r.{own} = l.{key}")).collect();
        format!("EXISTS (SELECT 1 FROM {} AS l WHERE l.\"upload\" = 0 AND {})", table.log(), same.join(" AND "))
    } else {
        "0".to_owned()
    };
    let keys = table.keys("").join(", ");
    let sql = format!(
        "DROP TABLE IF EXISTS temp.{before}; CREATE TEMP TABLE {before} AS SELECT {} FROM {} AS r WHERE NOT {is_pending}; \
         CREATE INDEX temp.{} ON {before} ({keys}); \
         CREATE TEMP TABLE IF NOT EXISTS {had} ({keys}, PRIMARY KEY ({keys})) WITHOUT ROWID; DELETE FROM temp.{had}",
        names.join(", "),
        table.name(),
        quote(&format!("hw_before_key_{}", table.number)),
    );
    rows.connection.execute_batch(&sql).while_doing("keeping a table to compare it")?;
    if table.is_tracked() {
        let logged = table.keys("k_").join(", ");
        rows.execute(
            &format!("INSERT INTO temp.{had} SELECT {logged} FROM {} WHERE \"upload\" = 0", table.log()),
            &[],
        )?;
    }
    Ok(())
}

/// The keys that had a pending change.
fn had_changes(table: &TablePlan) -> String {
    quote(&format!("hw_had_{}", table.number))
}

fn before(table: &TablePlan) -> String {
    quote(&format!("hw_before_{}", table.number))
}

impl Apply<'_> {
    /// A downloaded row (`None`: its deletion) is about to replace one without a pending change, of a table in doubt.
    pub(super) fn note_replaced(&mut self, table: &TablePlan, key: &[Local], row: Option<&Row>) -> Result<(), Error> {
        if self.doubts[table.number as usize] != Doubt::Since {
            return Ok(());
        }
        let there = match self.displaced(table, key)? {
            Some(there) => Some(there),
            None => self.rows.select(table, key)?,
        };
        let Some(there) = there else {
            return Ok(());
        };
        if row.is_some_and(|row| is_same(table, &there, row)) {
            return Ok(());
        }
        let pending = Pending { aside: 0, old: row.map(|row| from_wire(row)), new: Some(there), key: key.to_vec() };
        self.applied.untracked += 1;
        self.note_unsure(table, &pending)
    }

    /// Whether a row that comes down may be what a change set aside as untracked was taken for.
    pub(super) fn is_unsure(&self, table: &TablePlan, pending: &Pending) -> bool {
        pending.aside == RefusalCode::Untracked as i64 && self.doubts[table.number as usize].is_open()
    }

    /// Has such a change make way for the row that came (`None`: its deletion): only the list has it from now on.
    pub(super) fn give_way(
        &mut self,
        table: &TablePlan,
        pending: Pending,
        came: Option<&[Local]>,
    ) -> Result<(), Error> {
        self.rows.forget(table, &pending.key)?;
        // A deletion was none if its row is new there since; where everything comes afresh, that does not show.
        if pending.new.is_none() && (came.is_none() || !self.is_restart) {
            return self.rows.drop_note(table, &table.key_bytes(&to_wire(&pending.key, &table.key_types)));
        }
        self.note_unsure(table, &Pending { old: came.map(<[_]>::to_vec), ..pending })
    }

    fn note_unsure(&self, table: &TablePlan, pending: &Pending) -> Result<(), Error> {
        let message =
            "change tracking was off here: perhaps it was changed here, perhaps at the consolidated database alone";
        let refusal = Refusal { code: RefusalCode::Untracked, message: message.to_owned() };
        self.rows.note_aside(table, pending, &refusal, false, self.now)
    }

    /// A partition is left. Of its rows without a pending change nobody knows which were changed here: the list has all of them.
    pub(super) fn note_left(&mut self, table: &TablePlan, partition: &[Local]) -> Result<(), Error> {
        let source = match self.doubts[table.number as usize] {
            Doubt::Since => table.name(),
            Doubt::Compare | Doubt::AtOnce => format!("temp.{}", before(table)),
            // Those that differed when it was compared are pending.
            Doubt::None | Doubt::Between => return Ok(()),
        };
        let names: Vec<String> = table.names().map(quote).collect();
        let lies_there = rows_in(self.plan, table, "r");
        let sql = format!("SELECT {} FROM {source} AS r WHERE {lies_there}", names.join(", "));
        let mut select = self.rows.prepare(&sql)?;
        let mut found = select.query(params_from_iter(partition)).while_doing("listing a partition that is left")?;
        while let Some(row) = found.next().while_doing("listing a partition that is left")? {
            let read = (0..table.types.len()).map(|place| Local::read(row, place)).collect::<Result<Vec<_>, _>>();
            let row = read.while_doing("listing a partition that is left")?;
            if self.rows.pending(table, &table.key_of(&row))?.is_none() {
                self.list(table, row, "the remote left the partition of this row")?;
            }
        }
        if source != table.name() {
            self.rows.execute(&format!("DELETE FROM {source} AS r WHERE {lies_there}"), partition)?;
        }
        Ok(())
    }

    /// A row without a pending change goes, and does not come. Whether it may have been changed here, so that the list has it now.
    pub(super) fn note_gone(&mut self, table: &TablePlan, row: &[Local], why: &str) -> Result<bool, Error> {
        let is_unknown = matches!(self.doubts[table.number as usize], Doubt::Since | Doubt::AtOnce);
        if self.is_restart || !is_unknown {
            return Ok(false);
        }
        self.list(table, row.to_vec(), why)?;
        Ok(true)
    }

    /// Puts a row that goes, of which nobody knows whether it was changed here, on the list.
    fn list(&mut self, table: &TablePlan, row: Vec<Local>, why: &str) -> Result<(), Error> {
        let key = table.key_of(&row);
        self.applied.untracked += 1;
        let message = format!("change tracking was off here, and {why}: perhaps it was changed here");
        let refusal = Refusal { code: RefusalCode::Untracked, message };
        let pending = Pending { aside: 0, old: Some(row.clone()), new: Some(row), key };
        self.rows.note_aside(table, &pending, &refusal, false, self.now)
    }

    /// Whether the list has a change of a row: what stands there has taken its place.
    fn is_noted(&self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        let sql =
            format!("SELECT 1 FROM \"hw_set_aside\" WHERE \"table\" = ? AND \"key\" = ? AND NOT ({IS_IN_GONE_COLUMN})");
        let mut noted = self.rows.prepare(&sql)?;
        let key = table.key_bytes(&to_wire(key, &table.key_types));
        noted.exists(params![table.number, key]).while_doing("reading what is set aside")
    }

    /// A partition comes whole. If it was held before, and its table is in doubt, what stands there is held against what comes now: what
    /// it replaces is not there any more when the whole table is compared. If it was not, nothing of it had come down: what stands there
    /// was written here, or is below a row that was, and stays until the table is compared. Whether it does.
    pub(super) fn compare_whole(&mut self, table: &TablePlan, partition: &[u8]) -> Result<bool, Error> {
        if self.is_restart || !self.is_place_in_doubt(table) {
            return Ok(false);
        }
        let mut held = self.rows.prepare("SELECT 1 FROM \"hw_watermark\" WHERE \"table\" = ? AND \"partition\" = ?")?;
        let is_held = held.exists(params![table.number, partition]).while_doing("reading the watermarks")?;
        let doubt = &mut self.doubts[table.number as usize];
        match (*doubt, is_held) {
            (Doubt::Since, true) => {
                *doubt = Doubt::AtOnce;
                keep_before(&self.rows, table)?;
            }
            // Nothing stands there any more.
            (Doubt::Compare, false) => {
                self.joined.insert((table.number, partition.to_vec()));
            }
            (Doubt::Compare, true) => {}
            _ => return Ok(!is_held),
        }
        Ok(false)
    }

    /// Whether rows of a table may have been moved, or made, without a trace: they were themselves, or what they take their partition from.
    fn is_place_in_doubt(&self, table: &TablePlan) -> bool {
        std::iter::successors(Some(table), |table| self.plan.parent(table))
            .any(|table| matches!(self.doubts[table.number as usize], Doubt::Since | Doubt::Compare | Doubt::AtOnce))
    }

    /// Holds the tables that came whole against what was there before. Whether anything differed.
    pub(super) fn compare_doubtful(&mut self) -> Result<bool, Error> {
        let mut any = false;
        for table in &self.plan.tables {
            match self.doubts[table.number as usize] {
                Doubt::None | Doubt::Since => continue,
                Doubt::Between => {}
                Doubt::AtOnce => {
                    any |= self.compare(table)?;
                    if !self.is_restart {
                        // Perhaps not all of it came.
                        continue;
                    }
                }
                Doubt::Compare => {
                    any |= self.compare(table)?;
                    self.compared.push(table.number);
                    untracked::compared(self.rows.connection, table)?;
                    continue;
                }
            }
            untracked::end(self.rows.connection, table)?;
        }
        Ok(any)
    }

    fn compare(&mut self, table: &TablePlan) -> Result<bool, Error> {
        self.rows.set_applying(Some(table))?;
        let before = before(table);
        let (own, differs) = (table.name(), quote(&format!("hw_differs_{}", table.number)));
        let same_key: Vec<String> = table.keys("").iter().map(|key| format!("t.{key} = b.{key}")).collect();
        let same_key = same_key.join(" AND ");
        let values = |row: &str| table.names().map(|name| format!("{row}.{}", quote(name))).collect::<Vec<_>>();
        let columns = |row: &str| values(row).join(", ");
        let mut query = format!(
            "SELECT 1, {} FROM temp.{before} AS b WHERE NOT EXISTS (SELECT 1 FROM {own} AS t WHERE {same_key} AND {} AND NOT {}) \
             UNION ALL SELECT 0, {} FROM {own} AS t WHERE NOT EXISTS (SELECT 1 FROM temp.{before} AS b WHERE {same_key}) \
             AND NOT EXISTS (SELECT 1 FROM temp.{} AS b WHERE {same_key})",
            columns("b"),
            same_values(&values("t"), &values("b")),
            self.goes(table, "t"),
            columns("t"),
            had_changes(table),
        );
        if self.kept.has(table) {
            query += &written_over(table);
        }
        self.rows.keep(&differs, 1 + table.types.len(), &query)?;
        self.rows.execute(&format!("DROP TABLE temp.{before}"), &[])?;
        // What triggers write while rows are put back is a change like any other.
        self.rows.heed_own_triggers(table)?;
        self.rows.set_applying(Some(table))?;
        let next = format!("SELECT rowid, * FROM temp.{differs} WHERE rowid > ? ORDER BY rowid LIMIT 1");
        let (mut after, mut any) = (0i64, false);
        while let Some((number, was, row)) = self.next_difference(&next, table, after)? {
            after = number;
            any |= self.difference(table, was.then_some(row.clone()), &table.key_of(&row))?;
        }
        let sql = format!("DROP TABLE temp.{differs}");
        self.rows.connection.execute_batch(&sql).while_doing("comparing a table")?;
        self.forget_going(table)?;
        self.forget_as_it_came(table)?;
        Ok(any)
    }

    fn next_difference(
        &self,
        sql: &str,
        table: &TablePlan,
        after: i64,
    ) -> Result<Option<(i64, bool, Vec<Local>)>, Error> {
        let mut select = self.rows.prepare(sql)?;
        let mut found = select.query([after]).while_doing("comparing a table")?;
        let Some(row) = found.next().while_doing("comparing a table")? else {
            return Ok(None);
        };
        let read = || -> rusqlite::Result<_> {
            let image = (0..table.types.len()).map(|place| Local::read(row, 2 + place)).collect::<Result<_, _>>()?;
            Ok(Some((row.get(0)?, row.get(1)?, image)))
        };
        read().while_doing("comparing a table")
    }

    /// A row that was otherwise before (`None`: it was not there) than it came down, or that a trigger has written to; whether it really was.
    fn difference(&mut self, table: &TablePlan, was: Option<Vec<Local>>, key: &[Local]) -> Result<bool, Error> {
        let pending = self.rows.pending(table, key)?;
        // What the application's triggers made of the row is pending already.
        if pending.as_ref().is_some_and(|pending| pending.new == was || pending.old == was) {
            return Ok(false);
        }
        let (is_sure, is_going) = (self.doubts[table.number as usize] == Doubt::Compare, self.is_going(table, key)?);
        let came = self.came(table, key, pending.as_ref(), is_going)?;
        // Who has moved it there nobody knows.
        let has_joined = is_sure && came.as_ref().map_or(Ok(false), |came| self.has_joined(table, came))?;
        let is_same = match (&was, &came) {
            (Some(was), Some(came)) => is_same(table, was, &to_wire(came, &table.types)),
            // If the list has it, it was there, and had to go.
            (None, Some(_)) => !is_sure || has_joined || self.is_noted(table, key)?,
            (None, None) => true,
            (Some(_), None) => false,
        };
        if is_same || pending.is_some() {
            self.log_what_triggers_wrote(table, key, pending.as_ref(), came.as_deref())?;
        }
        if is_same || was.is_none() && self.is_out(table, key)? {
            return Ok(false);
        }
        self.applied.untracked += 1;
        let (is_sure, is_free) = (is_sure && !has_joined, pending.is_none());
        let is_to_stand = table.is_tracked() && is_free && (is_sure || came.is_none());
        let is_in_place = is_to_stand && self.put(table, was.as_deref(), key)?;
        if !is_in_place {
            let is_to_go = is_free && is_going && came.is_none();
            self.note_unsure(table, &Pending { aside: 0, old: came, new: was, key: key.to_vec() })?;
            return if is_to_go { self.remove(table, key).map(|_| true) } else { Ok(true) };
        }
        log_change(&self.rows, table, key, came.as_deref(), RefusalCode::Untracked as i64)?;
        // As it stands: a trigger may have written to it.
        let new = if self.kept.has(table) { self.rows.select(table, key)? } else { was };
        let or_deleted = if is_sure { "" } else { ", or perhaps deleted at the consolidated database meanwhile" };
        let message = format!("it was made while change tracking was off{or_deleted}");
        let refusal = Refusal { code: RefusalCode::Untracked, message };
        let pending = Pending { aside: 0, old: came, new, key: key.to_vec() };
        self.rows.note_aside(table, &pending, &refusal, true, self.now)?;
        Ok(true)
    }

    /// What the consolidated database has of a key, as it came.
    fn came(
        &self,
        table: &TablePlan,
        key: &[Local],
        pending: Option<&Pending>,
        is_going: bool,
    ) -> Result<Option<Vec<Local>>, Error> {
        if self.kept.has(table) {
            return self.as_it_came(table, key);
        }
        let held = self.rows.held(table, &table.key_bytes(&to_wire(key, &table.key_types)))?;
        let held = held.map(|held| held.map(|row| from_wire(&row)));
        if let Some(pending) = pending {
            return Ok(held.unwrap_or_else(|| pending.old.clone()));
        }
        let stands = self.rows.select(table, key)?.filter(|_| !is_going);
        // Or what the table does not take.
        Ok(stands.or(held.flatten()))
    }

    /// Where triggers of the application's made another row of the one that came, and no log tells: that is pending now.
    fn log_what_triggers_wrote(
        &self,
        table: &TablePlan,
        key: &[Local],
        pending: Option<&Pending>,
        came: Option<&[Local]>,
    ) -> Result<(), Error> {
        if !table.is_tracked() || !self.kept.has(table) || self.is_out(table, key)? {
            return Ok(());
        }
        let is_known = match pending {
            Some(pending) => pending.old.as_deref() == came,
            None => self.rows.select(table, key)?.as_deref() == came,
        };
        if is_known { Ok(()) } else { log_change(&self.rows, table, key, came, pending.map_or(0, |it| it.aside)) }
    }

    /// Whether what came of a key is held, so that it tells nothing what stands there.
    fn is_out(&self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        if !self.kept.has(table) {
            return Ok(false);
        }
        Ok(self.rows.held(table, &table.key_bytes(&to_wire(key, &table.key_types)))?.is_some())
    }

    /// Whether a row came with a partition that is new here.
    fn has_joined(&self, table: &TablePlan, row: &[Local]) -> Result<bool, Error> {
        let values = to_wire(&partition_of(&self.rows, self.plan, table, row)?, &table.partition_types);
        Ok(self.joined.contains(&(table.number, table.partition_bytes(&values))))
    }

    /// Makes a row as it was before the download; whether the table takes it.
    fn put(&mut self, table: &TablePlan, was: Option<&[Local]>, key: &[Local]) -> Result<bool, Error> {
        match was {
            None => self.remove(table, key).map(|_| true),
            Some(row) => {
                self.touched.row(table, &table.key_bytes(&to_wire(key, &table.key_types)));
                Ok(self.rows.upsert(table, row)? == Placed::Done)
            }
        }
    }
}

/// The rest of the comparing query, where rows are kept as they came: what a trigger has made the same as it was before, and what one has deleted.
fn written_over(table: &TablePlan) -> String {
    let (before, came) = (before(table), as_it_came::kept(table));
    let names: Vec<String> = table.names().map(quote).collect();
    let of = |row: &str, names: &[String]| names.iter().map(|name| format!("{row}.{name}")).collect::<Vec<_>>();
    let same_key = |one: &str, other: &str| {
        let keys = table.keys("");
        keys.iter().map(|key| format!("{one}.{key} = {other}.{key}")).collect::<Vec<_>>().join(" AND ")
    };
    format!(
        " UNION ALL SELECT 1, {} FROM temp.{came} AS c JOIN temp.{before} AS b ON {} JOIN {own} AS t ON {} \
         WHERE {} AND NOT {} \
         UNION ALL SELECT 0, {} FROM temp.{came} AS c WHERE NOT EXISTS (SELECT 1 FROM {own} AS t WHERE {}) \
         AND NOT EXISTS (SELECT 1 FROM temp.{before} AS b WHERE {}) AND NOT EXISTS (SELECT 1 FROM temp.{} AS b WHERE {})",
        of("b", &names).join(", "),
        same_key("b", "c"),
        same_key("t", "c"),
        same_values(&of("t", &names), &of("b", &names)),
        same_values(&of("c", &names), &of("b", &names)),
        of("c", &names).join(", "),
        same_key("t", "c"),
        same_key("b", "c"),
        had_changes(table),
        same_key("b", "c"),
        own = table.name(),
    )
}

/// Whether a row would travel as this one, decimals being numbers.
pub(super) fn is_same(table: &TablePlan, there: &[Local], row: &Row) -> bool {
    to_wire(there, &table.types).iter().zip(row).all(|(there, value)| there.same(value))
}
