//! One downloaded row or deletion, and whatever stands in its way.

use headwater_model::ConflictRule;
use headwater_protocol::message::{Refusal, RefusalCode};
use headwater_protocol::{Row, Value};
use rusqlite::{OptionalExtension, params, params_from_iter};

use super::Apply;
use super::doubt::is_same;
use crate::counters::{self, Total};
use crate::cut::log_change;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, readable, to_wire};
use crate::own_triggers::LEFT_OUT;
use crate::plan::{TablePlan, decoded};
use crate::rows::{Pending, Placed};
use crate::unique_values;
use crate::writing;

/// How many rows are asked for at a time where each is dealt with on its own.
const BATCH: u32 = 100;
/// Why a row is held that no pending change of its key keeps out.
const IN_THE_WAY: &str = "another row has a value of it that must be unique";

impl Apply<'_> {
    /// Stores a downloaded row.
    pub(super) fn store(&mut self, table: &TablePlan, row: &Row) -> Result<(), Error> {
        let key = table.key_of(row);
        let (key_row, key_bytes, local) = (from_wire(&key), table.key_bytes(&key), from_wire(row));
        self.close_conflict(table, &key_bytes, Some(&local))?;
        self.keep_as_it_came(table, &key_row, Some(&local))?;
        self.remember_row(table, &key_row)?;
        let pending = self.rows.pending(table, &key_row)?;
        let pending = match self.learn(table, &key_bytes, pending, &local)? {
            Some(unanswered) if is_unanswered_count(table, &unanswered, Some(row)) => {
                self.list_unanswered(table, &key_bytes, unanswered)?
            }
            pending => pending,
        };
        match pending {
            None => {
                self.note_replaced(table, &key_row, Some(row))?;
                self.place(table, &key_bytes, row, &local)
            }
            Some(pending) if is_done(table, &pending, row) => {
                self.forget(table, &key_row, &key_bytes)?;
                self.place(table, &key_bytes, row, &local)
            }
            Some(pending) if self.is_unsure(table, &pending) => {
                self.give_way(table, pending, Some(&local))?;
                self.place(table, &key_bytes, row, &local)
            }
            Some(pending) => self.store_beside(table, &pending, &key_bytes, row, &local),
        }
    }

    /// Makes a downloaded deletion.
    pub(super) fn delete(&mut self, table: &TablePlan, key: &[Value]) -> Result<(), Error> {
        let (key_row, key_bytes) = (from_wire(key), table.key_bytes(key));
        self.close_conflict(table, &key_bytes, None)?;
        self.keep_as_it_came(table, &key_row, None)?;
        self.remember_row(table, &key_row)?;
        if self.rows.leaving.get()
            && let Some(pending) = self.rows.pending(table, &key_row)?.filter(|pending| !pending.is_nothing())
            && self.take_back_written(table, &pending)?
        {
            self.undisplace(table, &key_bytes)?;
        }
        let pending = match self.rows.pending(table, &key_row)? {
            Some(unanswered) if is_unanswered_count(table, &unanswered, None) => {
                self.list_unanswered(table, &key_bytes, unanswered)?
            }
            pending => pending,
        };
        match pending {
            Some(pending) if !pending.is_nothing() && !self.is_unsure(table, &pending) && !is_answered(&pending) => {
                if pending.old.is_none() {
                    // The change is an insert: that the consolidated database has no such row is what it expects.
                    return self.rows.release(table, &key_bytes);
                }
                self.applied.held += 1;
                self.rows.hold(table, &key_bytes, None)
            }
            pending => {
                match pending {
                    Some(pending) if self.is_unsure(table, &pending) => self.give_way(table, pending, None)?,
                    Some(_) => self.forget(table, &key_row, &key_bytes)?,
                    None => self.note_replaced(table, &key_row, None)?,
                }
                self.rows.release(table, &key_bytes)?;
                self.undisplace(table, &key_bytes)?;
                self.delete_or_hold(table, &key_row, &key_bytes)
            }
        }
    }

    /// Keeps a downloaded row beside a pending change, merged into it as far as the rule allows.
    fn store_beside(
        &mut self,
        table: &TablePlan,
        pending: &Pending,
        key: &[u8],
        row: &Row,
        local: &[Local],
    ) -> Result<(), Error> {
        self.stays(table, &pending.key)?;
        if Self::is_row(table, pending.old.as_ref(), row) {
            return self.rows.release(table, key);
        }
        if let (ConflictRule::Merge(_), Some(old), Some(new)) = (table.table.conflict, &pending.old, &pending.new)
            && self.merge(table, pending, key, (old, new), (row, local))?
        {
            return self.rows.release(table, key);
        }
        self.applied.held += 1;
        self.rows.hold(table, key, Some(row))
    }

    /// An update of counters was uploaded, and nothing was told of it: what comes has what it added, or the list alone. Gives the change
    /// where the application has changed the row since: then it adds what it added since.
    fn list_unanswered(&self, table: &TablePlan, key: &[u8], pending: Pending) -> Result<Option<Pending>, Error> {
        if !self.rows.list_only(table, key, pending.new.as_deref())? {
            return Ok(Some(pending));
        }
        self.rows.forget(table, &pending.key)?;
        Ok(None)
    }

    /// Columns that the pending change left alone take the downloaded value, in the row and in the old image. Whether that was all
    /// there was to take. A change that makes nothing else of the row than what came is none any more.
    fn merge(
        &mut self,
        table: &TablePlan,
        pending: &Pending,
        key: &[u8],
        (old, new): (&[Local], &[Local]),
        (row, came): (&Row, &[Local]),
    ) -> Result<bool, Error> {
        let (mut merged_old, mut merged_new, mut is_all) = (old.to_vec(), new.to_vec(), true);
        for (place, value) in came.iter().enumerate() {
            let total = counters::total(table, place, value, (&old[place], &new[place]));
            if let Total::Is(total) = total {
                merged_old[place] = value.clone();
                merged_new[place] = total;
            } else if total == Total::TooLarge {
                return Ok(false);
            } else if old[place] == new[place] {
                merged_old[place] = value.clone();
                merged_new[place] = value.clone();
            } else if old[place] != *value {
                is_all = false;
            }
        }
        let is_done = is_same(table, &merged_new, row);
        if is_done {
            // As it is spelled there.
            merged_new = came.to_vec();
        }
        if merged_new == new {
            return Ok(is_all);
        }
        if self.rows.update(table, &merged_new)? != Placed::Done {
            return Ok(false);
        }
        let there = self.rows.select(table, &pending.key)?;
        if there.as_deref() == Some(new) {
            // A trigger of the application's has left it out.
            return Ok(false);
        }
        self.touched.row(table, key);
        if is_done {
            self.forget(table, &pending.key, key)?;
            if !there.is_some_and(|there| is_same(table, &there, row)) {
                // A trigger has written to the row since.
                log_change(&self.rows, table, &pending.key, Some(came), 0)?;
            }
            return Ok(true);
        }
        self.rows.execute(&table.sql.set_old, &merged_old)?;
        if pending.aside != 0 {
            // What came is no change of the application's: the change is still the one that is on the list.
            self.rows.note_merged(table, key, new, (&merged_old, &merged_new))?;
        }
        Ok(is_all)
    }

    /// Whether an image is this downloaded row, as it would travel.
    fn is_row(table: &TablePlan, image: Option<&Vec<Local>>, row: &Row) -> bool {
        image.is_some_and(|image| table.row_bytes(&to_wire(image, &table.types)) == table.row_bytes(row))
    }

    fn forget(&self, table: &TablePlan, key_row: &[Local], key: &[u8]) -> Result<(), Error> {
        self.rows.forget(table, key_row)?;
        self.rows.drop_note(table, key)
    }

    /// Before a row goes that has no pending change: an entry in the log by which nothing has changed would say that it was deleted here.
    pub(super) fn forget_nothing(&self, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        if self.rows.pending(table, key)?.is_none_or(|pending| !pending.is_nothing()) {
            return Ok(());
        }
        self.forget(table, key, &table.key_bytes(&to_wire(key, &table.key_types)))
    }

    /// Stores a row that no pending change of its own key forbids.
    fn place(&mut self, table: &TablePlan, key: &[u8], row: &Row, local: &[Local]) -> Result<(), Error> {
        let mut why = IN_THE_WAY.to_owned();
        self.end_taking_out()?;
        // Each unique index can have one row in the way at most, or else it would not be unique.
        for _ in 0..=table.uniques.len() {
            match self.rows.upsert(table, local)? {
                Placed::Done => {
                    self.stays(table, &table.key_of(local))?;
                    self.rows.release(table, key)?;
                    self.undisplace(table, key)?;
                    self.touched.row(table, key);
                    return Ok(());
                }
                Placed::InTheWay if self.clear_way(table, local)? => self.end_taking_out()?,
                Placed::InTheWay => break,
                Placed::Refused(reason) => {
                    tracing::warn!(
                        table = table.table.name,
                        reason,
                        "a downloaded row is not taken; it is held and tried again"
                    );
                    why = reason;
                    break;
                }
            }
        }
        self.applied.not_stored += 1;
        self.stays_unstored(table, row)?;
        self.rows.hold_because(table, key, Some(row), Some(&why))
    }

    /// Makes way for a row by its unique values; whether there was anything in the way.
    fn clear_way(&mut self, table: &TablePlan, local: &[Local]) -> Result<bool, Error> {
        let mut any = false;
        for sql in &table.sql.in_the_way {
            for key in self.keys_by(sql, table, local)? {
                any = true;
                if self.set_aside_in_way(table, &key)? {
                    continue;
                }
                if self.is_going(table, &key)? {
                    // It comes again, or not at all.
                    self.forget_nothing(table, &key)?;
                    self.make_way(table, &key)?;
                } else {
                    self.displace(table, &key)?;
                }
            }
        }
        Ok(any)
    }

    /// Sets the pending change of a key aside whose row is in the way of a downloaded one; whether there is one.
    fn set_aside_in_way(&mut self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        let Some(pending) = self.rows.pending(table, key)?.filter(|pending| !pending.is_nothing()) else {
            return Ok(false);
        };
        let message = "a downloaded row has one of its unique values".to_owned();
        self.set_aside(table, &pending, &Refusal { code: RefusalCode::Unique, message })?;
        Ok(true)
    }

    fn keys_by(&self, sql: &str, table: &TablePlan, row: &[Local]) -> Result<Vec<Vec<Local>>, Error> {
        let mut select = match self.rows.connection.prepare_cached(sql) {
            Ok(select) => select,
            // An index by what only the application has: nothing is stored in its table here, so nothing is in the way.
            Err(error) if writing::fault(&error).is_some() => return Ok(Vec::new()),
            Err(error) => return Err(error).while_doing("looking for rows in the way"),
        };
        for place in 1..=select.parameter_count() {
            if let Some(value) = row.get(place - 1) {
                select.raw_bind_parameter(place, value).while_doing("looking for rows in the way")?;
            }
        }
        let mut found = select.raw_query();
        let mut keys = Vec::new();
        while let Some(row) = found.next().while_doing("looking for rows in the way")? {
            let key = (0..table.key_types.len()).map(|index| Local::read(row, index)).collect::<Result<_, _>>();
            keys.push(key.while_doing("looking for rows in the way")?);
        }
        Ok(keys)
    }

    /// Takes a pending change out of the tables and the log and puts it on the list of those set aside, with both images. Its row is
    /// then as it came down last, unless that has no place here any more: it is put back with those that stepped aside.
    pub(super) fn set_aside(&mut self, table: &TablePlan, pending: &Pending, refusal: &Refusal) -> Result<(), Error> {
        self.applied.set_aside += 1;
        self.rows.note_aside(table, pending, refusal, false, self.now)?;
        self.take_back(table, pending)
    }

    /// The same without the list.
    pub(super) fn take_back(&mut self, table: &TablePlan, pending: &Pending) -> Result<(), Error> {
        let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
        self.rows.forget(table, &pending.key)?;
        let held = self.rows.held(table, &key)?;
        self.rows.release(table, &key)?;
        let last = match held {
            Some(image) => image,
            None => pending.old.as_ref().map(|old| to_wire(old, &table.types)),
        };
        let last = match last {
            Some(row) if !self.has_no_place(table, &row)? => row,
            _ => return self.take_row_out(table, &pending.key).map(drop),
        };
        // A row that was moved would not be found again with its partition.
        let old = from_wire(&last);
        let places = table.partition.iter().chain(table.parent.iter().flat_map(|(_, columns)| columns));
        let is_moved = |new: &Vec<Local>| places.clone().any(|place| new[*place] != old[*place]);
        let is_here = match &pending.new {
            Some(new) if !is_moved(new) => self.make_way(table, &pending.key)?,
            _ => self.take_row_out(table, &pending.key).map(|_| false)?,
        };
        self.keep_displaced(table, &key, &table.row_bytes(&last), is_here)
    }

    /// Takes a row out of the way of others by its unique values, and says whether it is still in its table. It stays there if the application
    /// has triggers, which would take it for deleted.
    fn make_way(&mut self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        if self.rows.fires_own_triggers(table)? && unique_values::free(&self.rows, table, key)? == Some(Placed::Done) {
            if table.is_tracked() {
                self.rows.forget(table, key)?;
            }
            return Ok(true);
        }
        self.take_row_out(table, key).map(|_| false)
    }

    /// Deletes a row, and notes that what refers to it must be looked at. Whether it is gone: a trigger may keep it.
    pub(super) fn remove(&mut self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        self.end_taking_out()?;
        Ok(self.removed(table, key)? == Placed::Done)
    }

    pub(super) fn removed(&mut self, table: &TablePlan, key: &[Local]) -> Result<Placed, Error> {
        self.keep_own(table, &table.by_key(), key)?;
        let placed = self.rows.delete(table, key)?;
        if placed == Placed::Done {
            self.touched.gone(&self.rows, table, key)?;
        }
        Ok(placed)
    }

    /// Deletes a row; one that a trigger keeps is to be deleted still.
    pub(super) fn remove_or_hold(&mut self, table: &TablePlan, key_row: &[Local], key: &[u8]) -> Result<(), Error> {
        self.end_taking_out()?;
        let why = match self.removed(table, key_row)? {
            Placed::Done => return Ok(()),
            Placed::Refused(why) if why != LEFT_OUT => format!("the row can't be deleted here: {why}"),
            Placed::Refused(_) | Placed::InTheWay => "a trigger keeps the row".to_owned(),
        };
        self.hold_deletion(table, key, &why)
    }

    fn hold_deletion(&mut self, table: &TablePlan, key: &[u8], why: &str) -> Result<(), Error> {
        tracing::warn!(
            table = table.table.name,
            why,
            "a row that is deleted at the consolidated database stays; its deletion is held and tried again"
        );
        self.applied.not_stored += 1;
        self.rows.hold_because(table, key, None, Some(why))
    }

    /// Deletes a row that is deleted at the consolidated database, unless own rows of the application's keep it; or one that leaves.
    pub(super) fn delete_or_hold(&mut self, table: &TablePlan, key_row: &[Local], key: &[u8]) -> Result<(), Error> {
        if self.rows.leaving.get() {
            self.keep_children_of(table, &table.by_key(), key_row)?;
            return self.remove_or_hold(table, key_row, key);
        }
        let Some(child) = self.kept_by(table, key_row)? else {
            return self.remove_or_hold(table, key_row, key);
        };
        self.hold_deletion(
            table,
            key,
            &format!("a row of table {child:?} refers to it, and its foreign key restricts the deletion"),
        )
    }

    /// Lets a row step aside: its own new version, or its deletion, comes later in this download.
    fn displace(&mut self, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        let Some(row) = self.rows.select(table, key)? else {
            return Ok(());
        };
        let key_bytes = table.key_bytes(&to_wire(key, &table.key_types));
        let row = self.as_it_came(table, key)?.unwrap_or(row);
        let image = table.row_bytes(&to_wire(&row, &table.types));
        self.forget_nothing(table, key)?;
        let is_here = self.make_way(table, key)?;
        self.keep_displaced(table, &key_bytes, &image, is_here)
    }

    /// `is_here`: the row is in its table, with other unique values.
    fn keep_displaced(&mut self, table: &TablePlan, key: &[u8], image: &[u8], is_here: bool) -> Result<(), Error> {
        self.has_displaced = true;
        self.is_plain = false;
        let sql = "INSERT OR REPLACE INTO temp.\"hw_displaced\" (\"table\", \"key\", \"image\", \"is_here\") VALUES (?, ?, ?, ?)";
        self.rows
            .prepare(sql)?
            .execute(params![table.number, key, image, is_here])
            .while_doing("moving a row out of the way")
            .map(drop)
    }

    /// The rows of a table that have stepped aside, by their keys.
    pub(super) fn all_displaced(&self, table: &TablePlan) -> Result<Vec<(Vec<u8>, Row)>, Error> {
        if !self.has_displaced {
            return Ok(Vec::new());
        }
        let mut select =
            self.rows.prepare("SELECT \"key\", \"image\" FROM temp.\"hw_displaced\" WHERE \"table\" = ?")?;
        let found = select.query_map([table.number], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)));
        let found: Vec<_> = found.and_then(Iterator::collect).while_doing("looking for rows that stepped aside")?;
        found.into_iter().map(|(key, image)| Ok((key, decoded(&table.types, &image)?))).collect()
    }

    pub(super) fn undisplace(&self, table: &TablePlan, key: &[u8]) -> Result<(), Error> {
        if !self.has_displaced {
            return Ok(());
        }
        let sql = "DELETE FROM temp.\"hw_displaced\" WHERE \"table\" = ? AND \"key\" = ?";
        self.rows.prepare(sql)?.execute(params![table.number, key]).while_doing("moving a row back").map(drop)
    }

    /// The row of a key, if it has stepped aside.
    pub(super) fn displaced(&self, table: &TablePlan, key: &[Local]) -> Result<Option<Vec<Local>>, Error> {
        if !self.has_displaced {
            return Ok(None);
        }
        let sql = "SELECT \"image\" FROM temp.\"hw_displaced\" WHERE \"table\" = ? AND \"key\" = ?";
        let key = table.key_bytes(&to_wire(key, &table.key_types));
        let image = self.rows.prepare(sql)?.query_row(params![table.number, key], |row| row.get::<_, Vec<u8>>(0));
        let image = image.optional().while_doing("looking for a row that stepped aside")?;
        Ok(image.map(|image| decoded(&table.types, &image)).transpose()?.map(|row| from_wire(&row)))
    }

    /// Puts the rows back that stepped aside and did not come down anew. What still finds no place is held.
    pub(super) fn return_displaced(&mut self) -> Result<(), Error> {
        while self.has_displaced {
            let sql = "SELECT \"table\", \"key\", \"image\", \"is_here\" FROM temp.\"hw_displaced\" LIMIT 1";
            let next: Option<(u32, Vec<u8>, Vec<u8>, bool)> = self
                .rows
                .prepare(sql)?
                .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
                .optional()
                .while_doing("moving rows back")?;
            let Some((number, key, image, is_here)) = next else {
                self.has_displaced = false;
                break;
            };
            let table = self.plan.table(number).ok_or_else(|| Error::damaged("a row of no table stepped aside"))?;
            self.undisplace(table, &key)?;
            self.rows.set_applying(Some(table))?;
            let row = decoded(&table.types, &image)?;
            // Its partition may have been left after it stepped aside.
            if self.has_no_place(table, &row)? {
                if is_here {
                    self.take_row_out(table, &table.key_of(&from_wire(&row)))?;
                }
                self.note_gone(table, &from_wire(&row), "the remote left the partition of this row")?;
                continue;
            }
            let is_back = self.put_back(table, &key, &row)?;
            if is_here && !is_back {
                self.take_row_out(table, &table.key_of(&from_wire(&row)))?;
            }
            if !is_back && self.rows.held(table, &key)?.is_none() {
                let is_noted =
                    self.note_gone(table, &from_wire(&row), "another row that came has a unique value of it")?;
                self.applied.not_stored += u64::from(!is_noted);
                self.rows.hold_because(table, &key, Some(&row), Some(IN_THE_WAY))?;
            }
        }
        Ok(())
    }

    /// Stores a row that came down before; whether it found a place. Pending changes make way for it, other rows don't.
    fn put_back(&mut self, table: &TablePlan, key: &[u8], row: &Row) -> Result<bool, Error> {
        let local = from_wire(row);
        self.end_taking_out()?;
        while self.rows.upsert(table, &local)? != Placed::Done {
            if !self.clear_pending(table, &local)? {
                return Ok(false);
            }
            self.end_taking_out()?;
        }
        self.touched.row(table, key);
        Ok(true)
    }

    /// Sets aside the pending changes whose rows have a unique value of this row; whether there were any.
    fn clear_pending(&mut self, table: &TablePlan, local: &[Local]) -> Result<bool, Error> {
        let mut any = false;
        for sql in &table.sql.in_the_way {
            for key in self.keys_by(sql, table, local)? {
                any |= self.set_aside_in_way(table, &key)?;
            }
        }
        Ok(any)
    }

    /// Stores held rows and makes held deletions whose keys have no pending change any more. What the table does not take stays held.
    pub(super) fn settle_held(&mut self, table: &TablePlan) -> Result<(), Error> {
        self.rows.set_applying(Some(table))?;
        let mut after = Vec::new();
        loop {
            let keys = self.rows.held_keys(table, &after, BATCH)?;
            let Some(last) = keys.last() else {
                return self.end_departure();
            };
            after.clone_from(last);
            for key in keys {
                let key_row = from_wire(&self.rows.key_of_bytes(table, &key)?);
                if self.rows.pending(table, &key_row)?.is_none() {
                    self.settle(table, &key, &key_row)?;
                }
            }
        }
    }

    fn settle(&mut self, table: &TablePlan, key: &[u8], key_row: &[Local]) -> Result<(), Error> {
        let held = self.rows.held(table, key)?.flatten();
        let leaves = held.is_none() && self.rows.held_leaves(table, key)?;
        if leaves {
            self.begin_departure(table)?;
            self.keep_children_of(table, &table.by_key(), key_row)?;
        } else {
            self.end_departure()?;
        }
        let is_settled = match held {
            // It would be taken out again, and triggers would see it come and go at each sync.
            Some(row) if self.rows.fires_own_triggers(table)? && !self.may_come_back(table, &from_wire(&row))? => false,
            None if !leaves && self.kept_by(table, key_row)?.is_some() => false,
            None => self.remove(table, key_row)?,
            Some(row) => self.put_back(table, key, &row)?,
        };
        if is_settled { self.rows.release(table, key) } else { Ok(()) }
    }

    /// Open changes that meet a condition, a batch at a time. Each must be dealt with so that it does not meet it any more.
    pub(super) fn pending_where(
        &self,
        table: &TablePlan,
        condition: &str,
        values: &[Local],
    ) -> Result<Vec<Pending>, Error> {
        let sql = format!("{} LIMIT {BATCH}", table.sql.changes_where(condition));
        let mut select = self.rows.prepare(&sql)?;
        let found = select.query_map(params_from_iter(values), |row| Pending::read(table, row));
        found.and_then(Iterator::collect).while_doing("reading the log")
    }

    /// Fills the downloaded row into the record of its conflict.
    fn close_conflict(&self, table: &TablePlan, key: &[u8], row: Option<&[Local]>) -> Result<(), Error> {
        let text = row.map(|row| readable(table.names(), row));
        let sql = "UPDATE \"hw_conflict\" SET \"result_text\" = ?, \"is_open\" = 0 \
                   WHERE \"table\" = ? AND \"key\" = ? AND \"is_open\" = 1";
        self.rows.prepare(sql)?.execute(params![text, table.number, key]).while_doing("recording a conflict").map(drop)
    }
}

/// Whether nothing is left of a change beside the row that came. (Two changes of a counter that lead to the same are two.)
fn is_done(table: &TablePlan, pending: &Pending, row: &Row) -> bool {
    let is_as_it_came = |new: &Vec<Local>| is_same(table, new, row) && !counters::has_added(table, pending);
    pending.is_nothing() || pending.new.as_ref().is_some_and(is_as_it_came)
}

/// Whether an update in a table with counters was uploaded, nothing was told of it, and another row comes than it made.
fn is_unanswered_count(table: &TablePlan, pending: &Pending, row: Option<&Row>) -> bool {
    let is_other = |new: &Vec<Local>| row.is_none_or(|row| !is_same(table, new, row));
    pending.aside == RefusalCode::Unanswered as i64
        && !table.table.sum.is_empty()
        && pending.old.is_some()
        && pending.new.as_ref().is_some_and(is_other)
}

/// Whether a deletion that comes is what became of a change that was uploaded, and of which nothing else was told.
fn is_answered(pending: &Pending) -> bool {
    pending.new.is_none() && pending.aside == RefusalCode::Unanswered as i64
}
