//! What people do about changes set aside: send them again as they are, or give them up. And starting afresh.
//!
//! | | the row still is as the change made it | only the list has the change |
//! |---|---|---|
//! | retry | the mark goes, the next sync sends it | the row is made so again, with its first old image |
//! | drop | the row becomes the consolidated one: what came down since, or the old image | the list forgets it |

mod references;

use std::collections::BTreeMap;

use headwater_model::Direction;
use headwater_model::remote_sql::Term;
use headwater_model::sql::quote;
use headwater_protocol::Row;
use headwater_protocol::message::RefusalCode;
use rusqlite::{Connection, params_from_iter};

use crate::cut::{log_columns, set_aside_mark};
use crate::error::{Error, While};
use crate::local::{Local, from_wire, readable, to_wire};
use crate::plan::{Plan, TablePlan, decoded};
use crate::remote::Remote;
use crate::rows::{Pending, Placed, Rows};
use crate::stage::Stage;
use crate::state::State;
use crate::untracked;

/// Which of the changes set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All of them.
    All,
    /// Those of one table.
    Table(String),
    /// Those with these numbers ([`crate::SetAside::number`]).
    Numbers(Vec<i64>),
}

/// Which of the changes that wait to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingChoice {
    /// All of them.
    All,
    /// Those of one table.
    Table(String),
    /// One row's, by its key as [`crate::PendingChange::key`] has it.
    Key {
        /// The table.
        table: String,
        /// The key.
        key: String,
    },
}

/// What [`Remote::retry`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retried {
    /// How many changes the next sync sends.
    pub changes: u64,
    /// Why others stay set aside, one line for each.
    pub left: Vec<String>,
}

/// A change set aside, as it is kept.
struct Note<'p> {
    number: i64,
    table: &'p TablePlan,
    key: Vec<u8>,
    in_place: bool,
    is_untracked: bool,
    old: Option<Row>,
    new: Option<Row>,
}

impl Remote {
    /// Marks changes set aside to be sent by the next sync, with their first old images. One of which only the list is left is made
    /// again in its table, unless its key has been changed since, the table does not take the row, or what it refers to is not there: then it
    /// stays set aside.
    ///
    /// Of [`Choice::Numbers`] all or nothing: [`Error::Configuration`] names a change that can't be made again.
    pub fn retry(&mut self, choice: &Choice) -> Result<Retried, Error> {
        let mut left = Vec::new();
        let count = self.each(choice, "retrying changes set aside", |rows, plan, notes| {
            if matches!(choice, Choice::Numbers(_)) {
                notes.iter().try_for_each(|note| retry(rows, note))?;
                let lacking = references::lacking(rows, plan, notes.iter())?;
                return lacking.into_values().next().map_or(Ok(()), |why| Err(refused(why)));
            }
            left = retry_what_can_be(rows, plan, notes)?.into_values().collect();
            Ok(())
        })?;
        Ok(Retried { changes: count - left.len() as u64, left })
    }

    /// Gives changes set aside up; gives their number. Where a row still is as its change made it, it becomes the consolidated one.
    ///
    /// All or nothing: [`Error::Configuration`] where another row would be left referring to one that goes.
    pub fn drop_set_aside(&mut self, choice: &Choice) -> Result<u64, Error> {
        self.each(choice, "dropping changes set aside", |rows, _, notes| {
            let mut dropped = Vec::new();
            for note in notes {
                let key = from_wire(&rows.key_of_bytes(note.table, &note.key)?);
                rows.drop_note(note.table, &note.key)?;
                if let Some(pending) = rows.pending(note.table, &key)?.filter(|it| note.in_place && it.aside != 0) {
                    dropped.push((note.table, pending));
                }
            }
            give_up(rows, dropped)
        })
    }

    /// Gives changes up that wait to be sent; gives their number. Their rows become the consolidated ones, as they came down last.
    ///
    /// All or nothing: [`Error::Configuration`] where there is no such change, where another row would be left referring to one that
    /// goes, and as long as an upload is on its way: nobody knows yet whether it has arrived.
    pub fn drop_pending(&mut self, choice: &PendingChoice) -> Result<u64, Error> {
        let _alone = self.lock()?;
        self.reread()?;
        self.database.write("dropping pending changes", |connection| {
            if State::read(connection)?.frozen.is_some() {
                return Err(refused(format!(
                    "an upload is on its way, and whether it has arrived is not known yet: sync first; where no server has version {} of \
                     model {:?} any more, `headwater remote upgrade FILE` finds out",
                    self.plan.model.version, self.plan.model.name
                )));
            }
            connection.execute_batch("PRAGMA defer_foreign_keys = ON").while_doing("dropping pending changes")?;
            let rows = Rows::new(connection);
            let before = references::broken(&rows, &self.plan)?;
            let dropped = waiting(&rows, &self.plan, choice)?;
            let count = dropped.len() as u64;
            give_up(&rows, dropped)?;
            references::check(&rows, &self.plan, &before)?;
            State::set_upload_refused(connection, None)?;
            Ok(count)
        })
    }

    /// Forgets what has been seen of the consolidated database, so that the next sync brings everything afresh. Pending changes and
    /// changes set aside stay as they are.
    pub fn reset(&mut self) -> Result<(), Error> {
        let _alone = self.lock()?;
        let mut stage = Stage::left(&self.database.connection, self.plan.fingerprint)?;
        stage.clear(&self.database)?;
        self.database.write("starting afresh", State::forget_seen)
    }

    fn each(
        &mut self,
        choice: &Choice,
        doing: &'static str,
        work: impl FnOnce(&Rows<'_>, &Plan, &[Note<'_>]) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let _alone = self.lock()?;
        self.reread()?;
        self.database.write(doing, |connection| {
            connection.execute_batch("PRAGMA defer_foreign_keys = ON").while_doing(doing)?;
            let rows = Rows::new(connection);
            let before = references::broken(&rows, &self.plan)?;
            let notes = chosen(connection, &self.plan, choice)?;
            work(&rows, &self.plan, &notes)?;
            references::check(&rows, &self.plan, &before)?;
            Ok(notes.len() as u64)
        })
    }
}

fn chosen<'p>(connection: &Connection, plan: &'p Plan, choice: &Choice) -> Result<Vec<Note<'p>>, Error> {
    if let Choice::Table(name) = choice {
        plan.table_named(name)?;
    }
    let mut notes = Vec::new();
    let sql = "SELECT \"id\", \"table\", \"key\", \"in_place\", \"old\", \"new\", \"code\" FROM \"hw_set_aside\" ORDER BY \"id\"";
    let mut select = connection.prepare(sql).while_doing("reading what is set aside")?;
    let mut rows = select.query([]).while_doing("reading what is set aside")?;
    while let Some(row) = rows.next().while_doing("reading what is set aside")? {
        let read = || -> rusqlite::Result<_> {
            let images: [Option<Vec<u8>>; 2] = [row.get(4)?, row.get(5)?];
            let is_untracked = row.get::<_, u16>(6)? == RefusalCode::Untracked as u16;
            let (number, key) = (row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(2)?);
            Ok((number, row.get::<_, u32>(1)?, key, (row.get(3)?, is_untracked), images))
        };
        let (number, table, key, (in_place, is_untracked), [old, new]) =
            read().while_doing("reading what is set aside")?;
        let Some(table) = plan.table(table) else {
            continue;
        };
        let is_chosen = match choice {
            Choice::All => true,
            Choice::Table(name) => table.table.name == *name,
            Choice::Numbers(numbers) => numbers.contains(&number),
        };
        if is_chosen {
            let image = |bytes: Option<Vec<u8>>| bytes.map(|bytes| decoded(&table.types, &bytes)).transpose();
            notes.push(Note { number, table, key, in_place, is_untracked, old: image(old)?, new: image(new)? });
        }
    }
    if let Choice::Numbers(numbers) = choice
        && let Some(missing) = numbers.iter().find(|number| notes.iter().all(|note| note.number != **number))
    {
        return Err(refused(format!(
            "no change set aside has the number {missing}; `headwater remote log FILE --set-aside` lists them"
        )));
    }
    Ok(notes)
}

/// The changes that wait to be sent and are chosen.
fn waiting<'p>(
    rows: &Rows<'_>,
    plan: &'p Plan,
    choice: &PendingChoice,
) -> Result<Vec<(&'p TablePlan, Pending)>, Error> {
    let (PendingChoice::Table(name) | PendingChoice::Key { table: name, .. }) = choice else {
        let each = plan.tracked().map(|table| waiting_in(rows, table, None));
        return Ok(each.collect::<Result<Vec<_>, _>>()?.concat());
    };
    let table = plan.table_named(name)?;
    if !table.is_tracked() {
        return Ok(Vec::new());
    }
    let PendingChoice::Key { key, .. } = choice else {
        return waiting_in(rows, table, None);
    };
    let found = waiting_in(rows, table, Some(key))?;
    if found.is_empty() {
        return Err(refused(format!(
            "no change of table {name:?} with the key {key} waits; `headwater remote log FILE --pending` lists them"
        )));
    }
    Ok(found)
}

fn waiting_in<'p>(
    rows: &Rows<'_>,
    table: &'p TablePlan,
    key: Option<&str>,
) -> Result<Vec<(&'p TablePlan, Pending)>, Error> {
    let mut select = rows.prepare(&table.sql.changes_where("l.\"aside\" = 0"))?;
    let found = select.query_map([], |row| Pending::read(table, row)).while_doing("reading the log")?;
    let mut waiting = Vec::new();
    for pending in found {
        let pending = pending.while_doing("reading the log")?;
        if !pending.is_nothing() && key.is_none_or(|key| readable(table.key_names(), &pending.key) == key) {
            waiting.push((table, pending));
        }
    }
    Ok(waiting)
}

/// All that can be; says of those that can't be retried why not, by their numbers. Whether what a row refers to is there shows when all are
/// made again: then it is done once more without those that lack it, until none does.
fn retry_what_can_be(rows: &Rows<'_>, plan: &Plan, notes: &[Note<'_>]) -> Result<BTreeMap<i64, String>, Error> {
    let batch = |sql: &str| rows.connection.execute_batch(sql).while_doing("retrying changes set aside");
    let mut lacking = BTreeMap::new();
    batch("SAVEPOINT hw_retry_all")?;
    loop {
        let mut left = lacking.clone();
        for note in notes.iter().filter(|note| !lacking.contains_key(&note.number)) {
            batch("SAVEPOINT hw_retry")?;
            match retry(rows, note) {
                Ok(()) => {}
                Err(Error::Configuration { what }) => {
                    batch("ROLLBACK TO hw_retry")?;
                    left.insert(note.number, what);
                }
                Err(error) => return Err(error),
            }
            batch("RELEASE hw_retry")?;
        }
        let more = references::lacking(rows, plan, notes.iter().filter(|note| !left.contains_key(&note.number)))?;
        if more.is_empty() {
            batch("RELEASE hw_retry_all")?;
            return Ok(left);
        }
        lacking.extend(more);
        batch("ROLLBACK TO hw_retry_all")?;
    }
}

fn retry(rows: &Rows<'_>, note: &Note<'_>) -> Result<(), Error> {
    let table = note.table;
    if !table.is_tracked() {
        return Err(refused(format!(
            "change {} can't be sent: table {:?} only comes down; drop it",
            note.number, table.table.name
        )));
    }
    let only_goes_up = table.table.direction == Direction::Upload;
    if note.is_untracked && (note.in_place || only_goes_up) && untracked::is_in_doubt(rows.connection, table)? {
        let (name, number) = (&table.table.name, note.number);
        return Err(refused(if only_goes_up {
            format!("change tracking of table {name:?} has been off again since change {number} was listed: sync first")
        } else {
            format!("what others changed in table {name:?} while change {number} was made is not known yet: sync first")
        }));
    }
    let key = from_wire(&rows.key_of_bytes(table, &note.key)?);
    let pending = rows.pending(table, &key)?;
    match (note.in_place, pending) {
        (true, _) => set_aside_mark(rows.connection, table, &key, 0)?,
        (false, Some(pending)) if !pending.is_nothing() => {
            return Err(refused(format!(
                "change {} can't be made again: its row of table {:?} has been changed since; drop it, or sync first",
                note.number, table.table.name
            )));
        }
        (false, _) => make_again(rows, note, &key)?,
    }
    rows.drop_note(table, &note.key)
}

/// Makes the row as the change made it, and logs the change with its first old image.
fn make_again(rows: &Rows<'_>, note: &Note<'_>, key: &[Local]) -> Result<(), Error> {
    let table = note.table;
    // The row that stands here is the consolidated one: it comes back if the change is refused, or given up.
    let there = rows.select(table, key)?.map(|row| to_wire(&row, &table.types));
    if there != note.old {
        rows.hold(table, &note.key, there.as_ref())?;
    }
    if there == note.new {
        return log(rows, note, key);
    }
    rows.set_applying(Some(table))?;
    let placed = match &note.new {
        Some(row) => rows.upsert(table, &from_wire(row))?,
        None => rows.delete(table, key)?,
    };
    rows.set_applying(None)?;
    let why = match placed {
        Placed::Done => return log(rows, note, key),
        Placed::InTheWay => "another row has a value of it that must be unique".to_owned(),
        Placed::Refused(why) => why,
    };
    Err(refused(format!("change {} of table {:?} can't be made again: {why}", note.number, table.table.name)))
}

fn log(rows: &Rows<'_>, note: &Note<'_>, key: &[Local]) -> Result<(), Error> {
    let table = note.table;
    let columns = log_columns(table);
    let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
    let sql = format!(
        "INSERT OR REPLACE INTO {} (\"upload\", {}, \"aside\") VALUES (0, {}, 0)",
        table.log(),
        columns.join(", "),
        places.join(", ")
    );
    let mut values = key.to_vec();
    values.push(Local::Integer(i64::from(note.old.is_some())));
    let old = note.old.as_ref().map(|row| from_wire(row));
    for place in (0..table.types.len()).filter(|place| !table.table.key.contains(place)) {
        values.push(old.as_ref().map_or(Local::Null, |row| row[place].clone()));
    }
    rows.prepare(&sql)?.execute(params_from_iter(&values)).while_doing("logging a change again").map(drop)
}

/// A consolidated row that is to come back.
struct Back<'p> {
    table: &'p TablePlan,
    key: Vec<Local>,
    row: Vec<Local>,
}

/// Takes changes out of the log, and makes their rows the consolidated ones.
fn give_up(rows: &Rows<'_>, dropped: Vec<(&TablePlan, Pending)>) -> Result<(), Error> {
    let mut back = Vec::new();
    for (table, Pending { key, old, .. }) in dropped {
        let key_bytes = table.key_bytes(&to_wire(&key, &table.key_types));
        let consolidated = match rows.held(table, &key_bytes)? {
            Some(held) => held.map(|row| from_wire(&row)),
            None => old,
        };
        rows.forget(table, &key)?;
        rows.release(table, &key_bytes)?;
        match consolidated {
            Some(row) => back.push(Back { table, key, row }),
            None => delete(rows, table, &key)?,
        }
    }
    put_back(rows, back)
}

/// Rows may stand in one another's way (values that must be unique were passed on, or swapped): what does not fit yet is tried again,
/// and the rows of circles first give up their unique values. None of them goes, or what refers to it might go with it.
fn put_back(rows: &Rows<'_>, mut back: Vec<Back<'_>>) -> Result<(), Error> {
    let mut are_free = false;
    while !back.is_empty() {
        let mut stuck = Vec::new();
        let count = back.len();
        for one in back {
            rows.set_applying(Some(one.table))?;
            let placed = rows.upsert(one.table, &one.row)?;
            rows.set_applying(None)?;
            match placed {
                Placed::Done => {}
                Placed::InTheWay => stuck.push(one),
                Placed::Refused(why) => return Err(does_not_fit(one.table, &one.key, &why)),
            }
        }
        if stuck.len() == count {
            if std::mem::replace(&mut are_free, true) {
                return Err(does_not_fit(stuck[0].table, &stuck[0].key, "a value must be unique"));
            }
            stuck.iter().try_for_each(|one| free_uniques(rows, one.table, &one.key))?;
        }
        back = stuck;
    }
    Ok(())
}

/// Gives a row values that no other has, until it is put back: NULL in its unique columns, or random bytes, which fit into a column of any
/// type.
fn free_uniques(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
    let columns_of = |term| match term {
        Term::Column(name, _) => vec![name],
        Term::Expression(_, names) => names,
    };
    let names: Vec<String> =
        table.uniques.iter().flat_map(|unique| unique.terms.clone()).flat_map(columns_of).collect();
    let is_unique = |place: usize| names.iter().any(|name| name.eq_ignore_ascii_case(&table.table.columns[place].name));
    let set: Vec<String> = (0..table.types.len())
        .filter(|place| is_unique(*place) && !table.table.key.contains(place))
        .map(|place| {
            let column = &table.table.columns[place];
            format!("{} = {}", quote(&column.name), if column.nullable { "NULL" } else { "randomblob(16)" })
        })
        .collect();
    if set.is_empty() {
        return Ok(());
    }
    rows.set_applying(Some(table))?;
    let sql = format!("UPDATE {} SET {} WHERE {}", table.name(), set.join(", "), table.by_key());
    let freed = rows.placed(table, rows.prepare(&sql)?.execute(params_from_iter(key)))?;
    rows.set_applying(None)?;
    fits(table, key, freed)
}

fn delete(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
    rows.set_applying(Some(table))?;
    let gone = rows.delete(table, key)?;
    rows.set_applying(None)?;
    fits(table, key, gone)
}

fn fits(table: &TablePlan, key: &[Local], placed: Placed) -> Result<(), Error> {
    match placed {
        Placed::Done => Ok(()),
        Placed::InTheWay => Err(does_not_fit(table, key, "a value must be unique")),
        Placed::Refused(why) => Err(does_not_fit(table, key, &why)),
    }
}

fn does_not_fit(table: &TablePlan, key: &[Local], why: &str) -> Error {
    refused(format!(
        "the change of {} in table {:?} can't be dropped: the consolidated row does not fit beside a local one ({why}); drop or sync \
         that first",
        readable(table.key_names(), key),
        table.table.name
    ))
}

fn refused(what: String) -> Error {
    Error::Configuration { what }
}
