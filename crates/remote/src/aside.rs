//! What people do about changes set aside: send them again as they are, or give them up. And starting afresh.
//!
//! | | the row still is as the change made it | only the list has the change |
//! |---|---|---|
//! | retry | the mark goes, the next sync sends it | the row is made so again, with its first old image |
//! | drop | the row becomes the consolidated one: what came down since, or the old image | the list forgets it |

mod giving_up;
mod references;
mod retrying;

use headwater_protocol::Row;
use headwater_protocol::message::RefusalCode;
use rusqlite::Connection;

use crate::apply::OwnChildren;
use crate::counters;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, readable, to_wire};
use crate::plan::{Plan, TablePlan, decoded};
use crate::remote::{Remote, now};
use crate::rows::{Pending, Rows};
use crate::stage::Stage;
use crate::state::State;
use crate::unsent;
use crate::untracked;
use crate::wake::{self, Changed, wake_changed};

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

impl Choice {
    fn is_of(&self, number: i64, table: &TablePlan) -> bool {
        match self {
            Choice::All => true,
            Choice::Table(name) => table.table.name == *name,
            Choice::Numbers(numbers) => numbers.contains(&number),
        }
    }
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
    /// Whether nobody knows what it made of the row.
    is_gone: bool,
    old: Option<Row>,
    new: Option<Row>,
}

impl Note<'_> {
    /// Whether it is of columns that went with a version of the model.
    fn is_in_gone_column(&self) -> bool {
        !self.in_place && self.old.is_none() && self.new.is_none()
    }

    /// The same change of a row that stands otherwise by now, where it adds something to counters.
    fn on_top_of(&self, there: Option<&[Local]>) -> Option<Note<'_>> {
        let (Some(old), Some(new), Some(there)) = (&self.old, &self.new, there) else { return None };
        if self.table.table.sum.is_empty() {
            return None;
        }
        let (old, new) = counters::made_again(self.table, &from_wire(old), &from_wire(new), there);
        let row = |row: Vec<Local>| Some(to_wire(&row, &self.table.types));
        Some(Note { key: self.key.clone(), old: row(old), new: row(new), ..*self })
    }
}

impl Remote {
    /// Marks changes set aside to be sent by the next sync, with their first old images. One of which only the list is left is made
    /// again in its table, unless its key has been changed since, or a change of it is on its way, the table does not take the row, or what it
    /// refers to is not there: then it stays set aside. One whose row has been changed since it was refused is pending already.
    ///
    /// Changes that were set aside just now, since the application has dropped a table, stay too: nobody has been shown them yet.
    ///
    /// Of [`Choice::Numbers`] all or nothing: [`Error::Configuration`] names a change that can't be made again.
    pub fn retry(&mut self, choice: &Choice) -> Result<Retried, Error> {
        let mut left = Vec::new();
        let count = self.each(choice, false, "retrying changes set aside", |rows, plan, notes, changed| {
            if matches!(choice, Choice::Numbers(_)) {
                notes.iter().try_for_each(|note| retrying::retry(rows, note))?;
                let lacking = references::lacking(rows, plan, notes.iter())?;
                lacking.into_values().next().map_or(Ok(()), |why| Err(refused(why)))?;
            } else {
                left = retrying::what_can_be(rows, plan, notes)?.into_values().collect();
            }
            Ok((notes.len() + changed.len()) as u64)
        })?;
        let changes = count - left.len() as u64;
        if let Some(newest) = self.newest_shown.take().filter(|_| !matches!(choice, Choice::Numbers(_))) {
            left.extend(self.judged(set_aside_since(&self.database.connection, newest))?);
        }
        Ok(Retried { changes, left })
    }

    /// Gives changes set aside up; gives their number. Where a row still is as its change made it, it becomes the consolidated one.
    ///
    /// All or nothing: [`Error::Configuration`] where another row would be left referring to one that goes. A change whose row has been
    /// changed since it was refused is pending, and not given up here: of [`Choice::Numbers`] that is an error too.
    pub fn drop_set_aside(&mut self, choice: &Choice) -> Result<u64, Error> {
        self.each(choice, true, "dropping changes set aside", |rows, plan, notes, changed| {
            unsent::list_all(rows, plan, &now())?;
            if let (Choice::Numbers(_), [first, ..]) = (choice, changed) {
                return Err(refused(format!(
                    "the row of change {} ({} of table {:?}) has been changed since it was set aside, and the next sync sends it; \
                     `headwater remote drop FILE --pending` gives it up",
                    first.number,
                    readable(first.table.key_names(), &first.key),
                    first.table.table.name
                )));
            }
            let (mut dropped, mut count) = (Vec::new(), 0);
            let mended = wake::mended_in_doubt(rows, plan)?;
            for note in notes {
                if mended.contains(&note.number) {
                    if matches!(choice, Choice::Numbers(_)) {
                        return Err(refused(format!(
                            "the row of change {} has been changed since it was set aside, and what others changed in table {:?} is not known \
                             yet: sync first",
                            note.number, note.table.table.name
                        )));
                    }
                    continue;
                }
                count += 1;
                let key = from_wire(&rows.key_of_bytes(note.table, &note.key)?);
                rows.drop_numbered(note.number)?;
                if let Some(pending) = rows.pending(note.table, &key)?.filter(|it| note.in_place && it.aside != 0) {
                    // Of counters whose change may have been added, the log has what was sent.
                    let is_added = note.old.is_some() && pending.aside == RefusalCode::Unanswered as i64;
                    let old = if is_added { note.old.as_ref().map(|row| from_wire(row)) } else { pending.old.clone() };
                    dropped.push((note.table, Pending { old, ..pending }));
                }
            }
            giving_up::give_up(rows, dropped)?;
            Ok(count)
        })
    }

    /// Gives changes up that wait to be sent; gives their number. Their rows become the consolidated ones, as they came down last.
    ///
    /// All or nothing: [`Error::Configuration`] where there is no such change, where another row would be left referring to one that
    /// goes, and as long as an upload is on its way: nobody knows yet whether it has arrived.
    pub fn drop_pending(&mut self, choice: &PendingChoice) -> Result<u64, Error> {
        let _alone = self.lock()?;
        let path = self.path.clone();
        self.drop_pending_alone(choice).map_err(|error| error.judged(&path))
    }

    fn drop_pending_alone(&mut self, choice: &PendingChoice) -> Result<u64, Error> {
        self.reread()?;
        // What was written without change tracking is nothing that has gone up.
        self.refresh()?;
        self.database.write("dropping pending changes", |connection| {
            if State::read(connection)?.frozen.is_some() {
                return Err(refused(format!(
                    "an upload is on its way, and whether it has arrived is not known yet: sync first; where no server has version {} of \
                     model {:?} any more, `headwater remote upgrade FILE` finds out",
                    self.plan.model.version, self.plan.model.name
                )));
            }
            let rows = Rows::new(connection);
            let before = references::broken(&rows, &self.plan)?;
            let own_children = OwnChildren::find(&rows, &self.plan)?;
            unsent::list_all(&rows, &self.plan, &now())?;
            wake_changed(&rows, &self.plan)?;
            let dropped = waiting(&rows, &self.plan, choice)?;
            let count = dropped.len() as u64;
            giving_up::give_up(&rows, dropped)?;
            references::check(&rows, &self.plan, &before, true)?;
            carry_out(&own_children, &rows, &self.plan)?;
            State::set_upload_refused(connection, None)?;
            Ok(count)
        })
    }

    /// Forgets what has been seen of the consolidated database, so that the next sync brings everything afresh. Pending changes and
    /// changes set aside stay as they are.
    pub fn reset(&mut self) -> Result<(), Error> {
        let _alone = self.lock()?;
        let reset = || {
            let mut stage = Stage::left(&self.database.connection, self.plan.fingerprint)?;
            stage.clear(&self.database)?;
            self.database.write("starting afresh", State::forget_seen)
        };
        self.judged(reset())
    }

    /// Has the next syncs compare the tables that go both ways with the consolidated database, as after writes that no trigger saw (a
    /// connection had triggers switched off, say). Rows that differ and have no pending change are set aside as `untracked`. Tables that only
    /// come down come whole, and are then as they are there. Tables that only go up have nothing to be compared with. Gives how many tables that are; after an error none is compared because of this.
    pub fn compare(&mut self) -> Result<u64, Error> {
        let _alone = self.lock()?;
        let compare = |remote: &mut Remote| {
            remote.reread()?;
            remote.refresh()?;
            let plan = &remote.plan;
            remote.database.write("asking for a comparison", |connection| untracked::begin_all(connection, plan))
        };
        let done = compare(self);
        self.judged(done)
    }

    fn each(
        &mut self,
        choice: &Choice,
        takes_along: bool,
        doing: &'static str,
        work: impl FnOnce(&Rows<'_>, &Plan, &[Note<'_>], &[Changed<'_>]) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let _alone = self.lock()?;
        let path = self.path.clone();
        self.each_alone(choice, takes_along, doing, work).map_err(|error| error.judged(&path))
    }

    fn each_alone(
        &mut self,
        choice: &Choice,
        takes_along: bool,
        doing: &'static str,
        work: impl FnOnce(&Rows<'_>, &Plan, &[Note<'_>], &[Changed<'_>]) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        self.reread()?;
        // Where change tracking is gone, it is better known before rows are written.
        self.refresh()?;
        self.database.write(doing, |connection| {
            let rows = Rows::new(connection);
            let before = references::broken(&rows, &self.plan)?;
            let own_children = OwnChildren::find(&rows, &self.plan)?;
            let mut changed = wake_changed(&rows, &self.plan)?;
            changed.retain(|one| choice.is_of(one.number, one.table));
            let mut notes = chosen(connection, &self.plan, choice, &changed)?;
            if let (false, Some(newest)) =
                (takes_along || matches!(choice, Choice::Numbers(_)), self.newest_shown.get())
            {
                notes.retain(|note| note.number <= newest);
            }
            let count = work(&rows, &self.plan, &notes, &changed)?;
            references::check(&rows, &self.plan, &before, takes_along)?;
            carry_out(&own_children, &rows, &self.plan)?;
            Ok(count)
        })
    }
}

/// The number of the newest change set aside; 0 where there is none.
pub(crate) fn newest(connection: &Connection) -> Result<i64, Error> {
    let sql = "SELECT coalesce(max(\"id\"), 0) FROM \"hw_set_aside\"";
    connection.query_row(sql, [], |row| row.get(0)).while_doing("reading what is set aside")
}

/// What a person is told of changes that a look at the file has set aside.
fn set_aside_since(connection: &Connection, newest: i64) -> Result<Vec<String>, Error> {
    let read = || {
        let sql = "SELECT \"id\", \"key_text\", \"name\" FROM \"hw_set_aside\" WHERE \"id\" > ? ORDER BY \"id\"";
        let mut select = connection.prepare(sql)?;
        let line = |row: &rusqlite::Row<'_>| {
            let (number, key, table): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!(
                "change {number} ({key} of table {table:?}): it was set aside just now, when the file was looked at; see it first \
                 (`headwater remote log FILE --set-aside`), and retry again"
            ))
        };
        select.query_map([newest], line)?.collect::<rusqlite::Result<_>>()
    };
    read().while_doing("reading what is set aside")
}

/// What the application's foreign keys say of rows that go: some of its own rows go along, others don't let them go.
fn carry_out(own_children: &OwnChildren, rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
    own_children.carry_out(rows, plan)?;
    match own_children.refusing(rows)? {
        None => Ok(()),
        Some(child) => Err(refused(format!(
            "a row of table {child:?}, which is the application's own, refers to a row that would go, and does not allow that: delete it first"
        ))),
    }
}

/// What of the list is chosen. Those that have been changed since have left it.
fn chosen<'p>(
    connection: &Connection,
    plan: &'p Plan,
    choice: &Choice,
    changed: &[Changed<'_>],
) -> Result<Vec<Note<'p>>, Error> {
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
            let (number, key) = (row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(2)?);
            Ok((number, row.get::<_, u32>(1)?, key, (row.get::<_, bool>(3)?, row.get::<_, u16>(6)?), images))
        };
        let (number, table, key, (in_place, code), [old, new]) = read().while_doing("reading what is set aside")?;
        let Some(table) = plan.table(table) else {
            continue;
        };
        if choice.is_of(number, table) {
            let image = |bytes: Option<Vec<u8>>| bytes.map(|bytes| decoded(&table.types, &bytes)).transpose();
            let is = |it: RefusalCode| code == it as u16;
            let (is_untracked, is_gone) = (is(RefusalCode::Untracked), is(RefusalCode::Gone) && !in_place);
            notes.push(Note {
                number,
                table,
                key,
                in_place,
                is_untracked,
                is_gone,
                old: image(old)?,
                new: image(new)?,
            });
        }
    }
    if let Choice::Numbers(numbers) = choice
        && let Some(missing) = numbers.iter().find(|number| {
            notes.iter().all(|note| note.number != **number) && changed.iter().all(|one| one.number != **number)
        })
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

fn refused(what: String) -> Error {
    Error::Configuration { what }
}
