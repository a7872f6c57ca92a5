//! One row, and what belongs to it: its pending change in the log, its held row, its note in the list of changes set aside.
//!
//! All of it runs inside a writing transaction of the caller.

use std::cell::Cell;

use headwater_model::sql::quote;
use headwater_model::{Direction, remote_sql};
use headwater_protocol::message::{Refusal, RefusalCode};
use headwater_protocol::{ROW_BYTES_MAX, Row, Value};
use rusqlite::{CachedStatement, Connection, OptionalExtension, ffi, params, params_from_iter};

use crate::error::{Error, While};
use crate::local::{Local, readable, to_wire};
use crate::own_triggers::OwnTriggers;
use crate::plan::{TablePlan, decoded};
use crate::unfit::Unfit;
use crate::upgrade::Gone;
use crate::writing::{Unprepared, fault, named};

/// What of the list of changes set aside is in columns that went with a version of the model.
pub(crate) const IS_IN_GONE_COLUMN: &str =
    "\"in_place\" = 0 AND \"old\" IS NULL AND \"new\" IS NULL AND \"new_text\" IS NOT NULL";

/// A pending change: the log's entry beside the row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pending {
    /// The code with which it was refused; 0: it is to be sent.
    pub(crate) aside: i64,
    /// The row as it was before; `None`: there was none.
    pub(crate) old: Option<Vec<Local>>,
    /// The row as it is; `None`: there is none.
    pub(crate) new: Option<Vec<Local>>,
    /// The key.
    pub(crate) key: Vec<Local>,
}

impl Pending {
    /// Reads a row of one of [`crate::plan::Statements`]' change queries.
    pub(crate) fn read(table: &TablePlan, row: &rusqlite::Row<'_>) -> rusqlite::Result<Pending> {
        Pending::read_from(table, row, 0)
    }

    /// The same where its columns are not the first.
    pub(crate) fn read_from(table: &TablePlan, row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Pending> {
        let count = table.types.len();
        let image =
            |start: usize| (start..start + count).map(|index| Local::read(row, index)).collect::<Result<Vec<_>, _>>();
        let logged = image(first + 2)?;
        let key = table.key_of(&logged);
        let old = if row.get::<_, i64>(first)? == 1 { Some(logged) } else { None };
        let new = if row.get(first + 2 + count)? { Some(image(first + 3 + count)?) } else { None };
        Ok(Pending { aside: row.get(first + 1)?, old, new, key })
    }

    /// Reads the key alone.
    pub(crate) fn read_key(table: &TablePlan, row: &rusqlite::Row<'_>) -> rusqlite::Result<Vec<Local>> {
        table.table.key.iter().map(|place| Local::read(row, 2 + place)).collect()
    }

    /// Whether nothing has changed after all.
    pub(crate) fn is_nothing(&self) -> bool {
        self.old == self.new
    }
}

/// What became of an attempt to store a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is stored.
    Done,
    /// Another row has a value that must be unique.
    InTheWay,
    /// The table does not take it, for this reason.
    Refused(String),
}

/// Rows of a file inside a transaction.
#[derive(Debug)]
pub(crate) struct Rows<'c> {
    pub(crate) connection: &'c Connection,
    own_triggers: OwnTriggers,
    pub(crate) unprepared: Unprepared,
    pub(crate) unfit: Unfit,
    /// Whether rows that go now leave the remote, and are not deleted.
    pub(crate) leaving: Cell<bool>,
}

impl<'c> Rows<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Rows<'c> {
        let (unprepared, unfit) = (Unprepared::default(), Unfit::default());
        Rows { connection, own_triggers: OwnTriggers::default(), unprepared, unfit, leaving: Cell::new(false) }
    }

    /// A statement, kept prepared.
    pub(crate) fn prepare(&self, sql: &str) -> Result<CachedStatement<'c>, Error> {
        self.connection.prepare_cached(sql).while_doing("preparing a statement")
    }

    /// Runs a statement; gives the number of rows that it changed.
    pub(crate) fn execute(&self, sql: &str, row: &[Local]) -> Result<usize, Error> {
        self.prepare(sql)?.execute(params_from_iter(row)).while_doing("writing a row")
    }

    /// Keeps what a query gives, as it is, in a temporary table: its row numbers are the order. The columns have names of their own, for
    /// one of the model's may be called `rowid`.
    pub(crate) fn keep(&self, name: &str, columns: usize, query: &str) -> Result<(), Error> {
        let columns: Vec<String> = (1..=columns).map(|number| format!("c{number}")).collect();
        let sql = format!(
            "DROP TABLE IF EXISTS temp.{name}; CREATE TEMP TABLE {name} ({}); INSERT INTO temp.{name} {query}",
            columns.join(", ")
        );
        self.connection.execute_batch(&sql).while_doing("keeping rows")
    }

    /// Whether a query gives any row.
    pub(crate) fn any(&self, sql: &str) -> Result<bool, Error> {
        self.prepare(sql)?.exists([]).while_doing("reading a row")
    }

    /// Whether a table has any row, or any change of one.
    pub(crate) fn has_any(&self, table: &TablePlan) -> Result<bool, Error> {
        Ok(self.any(&table.any_row())?
            || table.is_tracked() && self.any(&format!("SELECT 1 FROM {} LIMIT 1", table.log()))?)
    }

    /// The row of a key.
    pub(crate) fn select(&self, table: &TablePlan, key: &[Local]) -> Result<Option<Vec<Local>>, Error> {
        let read = |row: &rusqlite::Row<'_>| (0..table.types.len()).map(|index| Local::read(row, index)).collect();
        self.prepare(&table.sql.select)?.query_row(params_from_iter(key), read).optional().while_doing("reading a row")
    }

    /// Stores a row without a pending change, whether its key exists or not. What stands there just so is not written, and triggers of the
    /// application's see a new row as an insert, another one as an update.
    pub(crate) fn upsert(&self, table: &TablePlan, row: &[Local]) -> Result<Placed, Error> {
        let key = table.key_of(row);
        if !self.fires_own_triggers(table)? {
            return self.write(table, &table.sql.upsert, row, &key, Some(row));
        }
        match self.select(table, &key)? {
            // An upsert would fire the triggers of an insert, whatever it comes to.
            None => self.write(table, &table.sql.insert, row, &key, Some(row)),
            Some(there) if there == row => self.put_log_right(table, &key, Some(row), true),
            Some(there) => {
                let (sql, values) = update_of(table, &there, row);
                self.write(table, &sql, &values, &key, Some(row))
            }
        }
    }

    /// Makes the stored row of this row's key like it.
    pub(crate) fn update(&self, table: &TablePlan, row: &[Local]) -> Result<Placed, Error> {
        let there = if self.fires_own_triggers(table)? { self.select(table, &table.key_of(row))? } else { None };
        let ran = match there.filter(|there| there != row) {
            Some(there) => {
                let (sql, values) = update_of(table, &there, row);
                self.run(table, &sql, &values)
            }
            None => self.run(table, &table.sql.update, row),
        };
        ran.map(|(placed, _)| placed)
    }

    /// Deletes the row of a key, which has no pending change.
    pub(crate) fn delete(&self, table: &TablePlan, key: &[Local]) -> Result<Placed, Error> {
        self.write(table, &table.sql.delete, key, key, None)
    }

    /// Makes the row of a key what is wanted, past triggers of the application's.
    fn write(
        &self,
        table: &TablePlan,
        sql: &str,
        values: &[Local],
        key: &[Local],
        wanted: Option<&[Local]>,
    ) -> Result<Placed, Error> {
        match self.run(table, sql, values)? {
            (Placed::Done, count) if self.has_own_triggers(table)? || count == 0 => {
                self.put_log_right(table, key, wanted, count > 0)
            }
            (placed, _) => Ok(placed),
        }
    }

    /// What a statement that stores rows of a table says of it. One that ended the transaction ends the work too: what came after it would
    /// be stored on its own, or not at all.
    pub(crate) fn placed(&self, table: &TablePlan, result: rusqlite::Result<usize>) -> Result<Placed, Error> {
        let placed = match (self.found_unfit(table, &result)?, result.as_ref().err().and_then(fault)) {
            (Some(why), _) => Placed::Refused(why),
            (None, Some(why)) => Placed::Refused(named(self.connection, table, &why)?),
            (None, None) => placed(result)?,
        };
        match placed {
            Placed::InTheWay | Placed::Refused(_) if self.connection.is_autocommit() => {
                Err(Error::RolledBack { table: table.table.name.clone() })
            }
            placed => Ok(placed),
        }
    }

    /// Whether the application has triggers of its own on a table, whatever is known of what they do.
    pub(crate) fn fires_own_triggers(&self, table: &TablePlan) -> Result<bool, Error> {
        self.own_triggers.fire_on(self.connection, table)
    }

    /// Whether the application has triggers of its own on a table, and the log tells what they do to it.
    pub(crate) fn has_own_triggers(&self, table: &TablePlan) -> Result<bool, Error> {
        self.own_triggers.any_on(self.connection, table)
    }

    /// A table is compared when it has come: that finds what triggers of the application's did to it.
    pub(crate) fn ignore_own_triggers(&self, table: &TablePlan) -> Result<(), Error> {
        self.own_triggers.leave_out(self.connection, table, true)
    }

    /// The log tells what triggers of the application's do to a table from now on.
    pub(crate) fn heed_own_triggers(&self, table: &TablePlan) -> Result<(), Error> {
        self.own_triggers.leave_out(self.connection, table, false)
    }

    /// The pending change of a key.
    pub(crate) fn pending(&self, table: &TablePlan, key: &[Local]) -> Result<Option<Pending>, Error> {
        if !table.is_tracked() {
            return Ok(None);
        }
        self.prepare(&table.sql.pending)?
            .query_row(params_from_iter(key), |row| Pending::read(table, row))
            .optional()
            .while_doing("reading the log")
    }

    /// Forgets the pending change of a key.
    pub(crate) fn forget(&self, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        self.execute(&table.sql.forget, key).map(drop)
    }

    /// Keeps a downloaded row (`None`: its deletion) beside the pending change of its key.
    pub(crate) fn hold(&self, table: &TablePlan, key: &[u8], image: Option<&Row>) -> Result<(), Error> {
        self.hold_because(table, key, image, None)
    }

    /// The same where there is no pending change: why the table does not take it.
    pub(crate) fn hold_because(
        &self,
        table: &TablePlan,
        key: &[u8],
        image: Option<&Row>,
        why: Option<&str>,
    ) -> Result<(), Error> {
        let sql = "INSERT INTO \"hw_held\" (\"table\", \"key\", \"image\", \"why\", \"leaves\") VALUES (?, ?, ?, ?, ?) \
                   ON CONFLICT DO UPDATE SET \"image\" = excluded.\"image\", \"why\" = excluded.\"why\", \"leaves\" = excluded.\"leaves\"";
        let leaves = image.is_none() && self.leaving.get();
        let row = params![table.number, key, image.map(|row| table.row_bytes(row)), why, leaves];
        self.prepare(sql)?.execute(row).while_doing("keeping a held row").map(drop)
    }

    /// The held row of a key: `Some(None)` is a held deletion.
    #[expect(clippy::option_option, reason = "no held row, a held deletion, a held row")]
    pub(crate) fn held(&self, table: &TablePlan, key: &[u8]) -> Result<Option<Option<Row>>, Error> {
        let sql = "SELECT \"image\" FROM \"hw_held\" WHERE \"table\" = ? AND \"key\" = ?";
        let image: Option<Option<Vec<u8>>> = self
            .prepare(sql)?
            .query_row(params![table.number, key], |row| row.get(0))
            .optional()
            .while_doing("reading a held row")?;
        let decode = |bytes: Vec<u8>| decoded(&table.types, &bytes).map_err(|error| held_damage(table, &error));
        image.map(|image| image.map(decode).transpose()).transpose()
    }

    /// Whether a held deletion is of a row that only leaves the remote.
    pub(crate) fn held_leaves(&self, table: &TablePlan, key: &[u8]) -> Result<bool, Error> {
        let sql = "SELECT 1 FROM \"hw_held\" WHERE \"table\" = ? AND \"key\" = ? AND \"leaves\"";
        self.prepare(sql)?.exists(params![table.number, key]).while_doing("reading a held row")
    }

    /// Forgets the held row of a key.
    pub(crate) fn release(&self, table: &TablePlan, key: &[u8]) -> Result<(), Error> {
        let sql = "DELETE FROM \"hw_held\" WHERE \"table\" = ? AND \"key\" = ?";
        self.prepare(sql)?.execute(params![table.number, key]).while_doing("forgetting a held row").map(drop)
    }

    /// The keys that have a held row, at most `limit` after `after`.
    pub(crate) fn held_keys(&self, table: &TablePlan, after: &[u8], limit: u32) -> Result<Vec<Vec<u8>>, Error> {
        let sql = "SELECT \"key\" FROM \"hw_held\" WHERE \"table\" = ? AND \"key\" > ? ORDER BY \"key\" LIMIT ?";
        let mut select = self.prepare(sql)?;
        let keys = select.query_map(params![table.number, after, limit], |row| row.get(0));
        keys.and_then(Iterator::collect).while_doing("reading held rows")
    }

    /// A key from the bytes under which it is kept.
    #[expect(clippy::unused_self, reason = "what a key is, is asked where its rows are")]
    pub(crate) fn key_of_bytes(&self, table: &TablePlan, key: &[u8]) -> Result<Vec<Value>, Error> {
        decoded(&table.key_types, key).map_err(|error| held_damage(table, &error))
    }

    /// Puts a change on the list of those set aside. `in_place`: the row and the log keep it too, and it takes the place of the one that they
    /// had. One that only the list has stays there beside others of its row, until it is retried or given up.
    pub(crate) fn note_aside(
        &self,
        table: &TablePlan,
        pending: &Pending,
        refusal: &Refusal,
        in_place: bool,
        now: &str,
    ) -> Result<(), Error> {
        self.drop_note(table, &table.key_bytes(&to_wire(&pending.key, &table.key_types)))?;
        self.list(table, pending, refusal, in_place, now)
    }

    /// Puts a change on the list that only the list has, beside one of its row that is set aside where it stands.
    pub(crate) fn note_beside(
        &self,
        table: &TablePlan,
        pending: &Pending,
        refusal: &Refusal,
        now: &str,
    ) -> Result<(), Error> {
        self.list(table, pending, refusal, false, now)
    }

    /// Puts on the list what a change has made of columns that the table does not have any more, as it was made. The change itself may be
    /// pending, or set aside, or both; of the table's columns this has no images ([`IS_IN_GONE_COLUMN`]).
    pub(crate) fn note_gone(
        &self,
        table: &TablePlan,
        key: &[Local],
        code: RefusalCode,
        gone: &Gone,
        now: &str,
    ) -> Result<(), Error> {
        let nothing = Pending { aside: 0, old: None, new: None, key: key.to_vec() };
        self.insert_note(table, &nothing, &Refusal { code, message: gone.message() }, false, now)?;
        self.show_as_made(&gone.made)
    }

    /// The change that was put on the list just now is shown with the columns that it was made with.
    pub(crate) fn show_as_made(&self, [old, new]: &[Option<String>; 2]) -> Result<(), Error> {
        let sql = "UPDATE \"hw_set_aside\" SET \"old_text\" = ?, \"new_text\" = ? WHERE \"id\" = last_insert_rowid()";
        self.prepare(sql)?.execute([old, new]).while_doing("setting a change aside").map(drop)
    }

    fn list(
        &self,
        table: &TablePlan,
        pending: &Pending,
        refusal: &Refusal,
        in_place: bool,
        now: &str,
    ) -> Result<(), Error> {
        if !in_place {
            let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
            let new = pending.new.as_ref().map(|row| noted_image(table, row, in_place));
            // Two changes of a counter that lead to the same number are two.
            let same_old = if table.table.sum.is_empty() { "" } else { "AND \"old\" IS ?6 " };
            let old = pending.old.as_ref().map(|row| noted_image(table, row, in_place));
            // What is only known to have been is not what deleted the row.
            let sql = format!(
                "DELETE FROM \"hw_set_aside\" WHERE \"table\" = ?1 AND \"key\" = ?2 AND \"new\" IS ?3 \
                 AND (\"code\" = ?5) = (?4 = ?5) AND (?6 IS ?6) {same_old}AND NOT ({IS_IN_GONE_COLUMN})"
            );
            let same = params![table.number, key, new, refusal.code as u16, RefusalCode::Gone as u16, old];
            self.prepare(&sql)?.execute(same).while_doing("setting a change aside")?;
        }
        self.insert_note(table, pending, refusal, in_place, now)
    }

    fn insert_note(
        &self,
        table: &TablePlan,
        pending: &Pending,
        refusal: &Refusal,
        in_place: bool,
        now: &str,
    ) -> Result<(), Error> {
        let text = |row: &Option<Vec<Local>>| row.as_ref().map(|row| readable(table.names(), row));
        let sql = "INSERT INTO \"hw_set_aside\" (\"time\", \"table\", \"name\", \"key\", \"key_text\", \"code\", \"reason\", \
                   \"message\", \"in_place\", \"old\", \"old_text\", \"new\", \"new_text\") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let is_untracked = refusal.code == RefusalCode::Untracked || pending.aside == RefusalCode::Untracked as i64;
        let old = if is_untracked && !in_place { unsure_old(table, pending) } else { pending.old.clone() };
        let row = params![
            now,
            table.number,
            table.table.name,
            table.key_bytes(&to_wire(&pending.key, &table.key_types)),
            readable(table.key_names(), &pending.key),
            refusal.code as u16,
            refusal.code.name(),
            refusal.message,
            in_place,
            old.as_ref().map(|row| noted_image(table, row, in_place)),
            text(&pending.old),
            pending.new.as_ref().map(|row| noted_image(table, row, in_place)),
            text(&pending.new),
        ];
        self.prepare(sql)?.execute(row).while_doing("setting a change aside").map(drop)
    }

    /// A change that is set aside where it stands has been merged with what came, in its row and in the log: on the list too, unless the
    /// application has changed the row since.
    pub(crate) fn note_merged(
        &self,
        table: &TablePlan,
        key: &[u8],
        before: &[Local],
        (old, new): (&[Local], &[Local]),
    ) -> Result<(), Error> {
        let sql = "UPDATE \"hw_set_aside\" SET \"old\" = ?, \"old_text\" = ?, \"new\" = ?, \"new_text\" = ? \
                   WHERE \"table\" = ? AND \"key\" = ? AND \"in_place\" = 1 AND \"new\" IS ?";
        let image = |row: &[Local]| noted_image(table, row, true);
        let text = |row: &[Local]| readable(table.names(), row);
        let values = params![image(old), text(old), image(new), text(new), table.number, key, image(before)];
        self.prepare(sql)?.execute(values).while_doing("merging a change that is set aside").map(drop)
    }

    /// A change that is set aside where it stands has been joined with the one before it: `old` is the first old image.
    pub(crate) fn note_joined(&self, table: &TablePlan, key: &[Local], old: Option<&[Local]>) -> Result<(), Error> {
        let key = table.key_bytes(&to_wire(key, &table.key_types));
        let sql = "UPDATE \"hw_set_aside\" SET \"old\" = ?, \"old_text\" = ? \
                   WHERE \"table\" = ? AND \"key\" = ? AND \"in_place\" = 1";
        let (image, text) = (old.map(|row| noted_image(table, row, true)), old.map(|row| readable(table.names(), row)));
        let joined = self.prepare(sql)?.execute(params![image, text, table.number, key]);
        joined.while_doing("joining a change that is set aside").map(drop)
    }

    /// Takes the change of a key that is set aside where it stands off the list.
    pub(crate) fn drop_note(&self, table: &TablePlan, key: &[u8]) -> Result<(), Error> {
        let sql = "DELETE FROM \"hw_set_aside\" WHERE \"table\" = ? AND \"key\" = ? AND \"in_place\" = 1";
        self.prepare(sql)?.execute(params![table.number, key]).while_doing("forgetting a change set aside").map(drop)
    }

    /// Leaves a change that is set aside where it stands on the list alone, unless the row has been changed since it was refused. Whether
    /// the list has it.
    pub(crate) fn list_only(&self, table: &TablePlan, key: &[u8], new: Option<&[Local]>) -> Result<bool, Error> {
        let sql = "UPDATE \"hw_set_aside\" SET \"in_place\" = 0 \
                   WHERE \"table\" = ? AND \"key\" = ? AND \"in_place\" = 1 AND \"new\" IS ?";
        let image = new.map(|row| noted_image(table, row, true));
        let listed = self.prepare(sql)?.execute(params![table.number, key, image]);
        Ok(listed.while_doing("setting a change aside")? > 0)
    }

    /// Takes a change off the list, by its number.
    pub(crate) fn drop_numbered(&self, number: i64) -> Result<(), Error> {
        let delete = self.prepare("DELETE FROM \"hw_set_aside\" WHERE \"id\" = ?")?.execute([number]);
        delete.while_doing("forgetting a change set aside").map(drop)
    }

    /// Switches change tracking off for one table (`None`: on for all), for this transaction: a transaction ends with it on. Where the
    /// application has triggers it stays on, and only keys of others are let in ([`crate::own_triggers`]).
    pub(crate) fn set_applying(&self, table: Option<&TablePlan>) -> Result<(), Error> {
        let sql = format!("DELETE FROM \"hw_applying\" WHERE \"table\" < {}", remote_sql::LEAVING);
        self.prepare(&sql)?.execute([]).while_doing("switching change tracking")?;
        if let Some(table) = table {
            let number = i64::from(table.number);
            let mark = if table.is_tracked() && self.has_own_triggers(table)? { -1 - number } else { number };
            let sql = "INSERT INTO \"hw_applying\" (\"table\") VALUES (?)";
            self.prepare(sql)?.execute([mark]).while_doing("switching change tracking")?;
        }
        Ok(())
    }
}

impl Rows<'_> {
    /// Lets triggers of the application's know, by the view `hw_leaving`, whether rows leave the remote, for this transaction.
    pub(crate) fn set_leaving(&self, on: bool) -> Result<(), Error> {
        let sql = if on {
            format!("INSERT OR IGNORE INTO \"hw_applying\" (\"table\") VALUES ({})", remote_sql::LEAVING)
        } else {
            format!("DELETE FROM \"hw_applying\" WHERE \"table\" = {}", remote_sql::LEAVING)
        };
        self.prepare(&sql)?.execute([]).while_doing("telling triggers that rows leave").map(drop)
    }
}

/// A statement that makes the row that is there like another one, with its values. It names only the columns that differ: a trigger on
/// `UPDATE OF` fires for those that a statement names.
fn update_of(table: &TablePlan, there: &[Local], row: &[Local]) -> (String, Vec<Local>) {
    let differs = |place: &usize| there[*place] != row[*place] && !table.table.key.contains(place);
    let places: Vec<usize> = (0..row.len()).filter(differs).collect();
    let names: Vec<String> = table.names().map(quote).collect();
    let set = places.iter().zip(1..).map(|(place, number)| format!("{} = ?{number}", names[*place]));
    let by_key = table.keys("").into_iter().zip(places.len() + 1..).map(|(key, number)| format!("{key} = ?{number}"));
    let sql = format!(
        "UPDATE {} SET {} WHERE {}",
        table.name(),
        set.collect::<Vec<_>>().join(", "),
        by_key.collect::<Vec<_>>().join(" AND ")
    );
    let values = places.iter().map(|place| row[*place].clone());
    (sql, values.chain(table.key_of(row)).collect())
}

/// The old image of a change that has given way though nobody knows who changed the row: none, so that it is a conflict wherever a row is
/// there. Where none is, it is the update of a deleted row; unless nothing comes down that would tell ([`crate::unsent`]).
fn unsure_old(table: &TablePlan, pending: &Pending) -> Option<Vec<Local>> {
    let Some(new) = &pending.new else {
        // A deletion has not given way: it was made here for certain.
        return pending.old.clone();
    };
    if pending.old.is_some() || table.table.direction == Direction::Upload {
        return None;
    }
    let mut key_alone = new.clone();
    for place in (0..new.len()).filter(|place| !table.table.key.contains(place)) {
        key_alone[place] = Local::Null;
    }
    Some(key_alone).filter(|old| old != new)
}

/// An image as the list of changes set aside keeps it. One that is too large to be sent and stands in its table (`in_place`) too is
/// kept with the length of each long value in the place of the value: a record of several such images would be more than SQLite takes.
pub(crate) fn noted_image(table: &TablePlan, row: &[Local], in_place: bool) -> Vec<u8> {
    let mut values = to_wire(row, &table.types);
    let bytes = table.row_bytes(&values);
    if !in_place || bytes.len() <= ROW_BYTES_MAX {
        return bytes;
    }
    for (place, value) in values.iter_mut().enumerate() {
        if let Value::Text(long) | Value::Bytes(long) | Value::Json(long) = value
            && !table.table.key.contains(&place)
        {
            *value = Value::Int(long.len() as i64);
        }
    }
    table.row_bytes(&values)
}

fn placed(result: rusqlite::Result<usize>) -> Result<Placed, Error> {
    match result {
        Ok(_) => Ok(Placed::Done),
        Err(rusqlite::Error::SqliteFailure(error, text)) => {
            let refused = || Placed::Refused(text.clone().unwrap_or_else(|| error.to_string()));
            match (error.code, error.extended_code) {
                (
                    _,
                    ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_ROWID,
                ) => Ok(Placed::InTheWay),
                (
                    rusqlite::ErrorCode::ConstraintViolation
                    | rusqlite::ErrorCode::TypeMismatch
                    | rusqlite::ErrorCode::TooBig,
                    _,
                ) => Ok(refused()),
                _ => Err(rusqlite::Error::SqliteFailure(error, text)).while_doing("storing a row"),
            }
        }
        Err(error) => Err(error).while_doing("storing a row"),
    }
}

fn held_damage(table: &TablePlan, error: &headwater_protocol::DecodeError) -> Error {
    Error::damaged(format!("a held row of table {:?}: {error}", table.table.name))
}
