//! One batch: its changes judged against the stored rows, and written by set-based statements.
//!
//! ```text
//! inserts   -> insert at once; those whose key exists go on below
//! the rest  -> fetch and lock the stored rows -> partition? -> judge -> update | insert | delete
//!                 ^                                                              |
//!                 `-------- keys that another transaction inserted meanwhile <---'
//! ```
//!
//! Nothing here is remembered until the whole batch has gone well: a batch that fails is rolled back and halved.

use std::collections::{HashMap, HashSet};

use headwater_model::ConflictRule;
use headwater_model::script::Step;
use headwater_protocol::message::{ChangeOp, ConflictEnd, Refusal, RefusalCode};
use headwater_protocol::{Row, Type, Value};

use super::park::{Steps, Style, park};
use super::plain::PlainChanges;
use super::policy::{Policy, outside, outside_parent, refusal};
use super::scripted::Found;
use super::source::Item;
use crate::backend::Inserted;
use crate::judge::Action;
use crate::keys::{has_one_spelling, key_bytes, key_bytes_of, other_form};
use crate::rows::{EchoMark, EchoMarker};
use crate::scripts::Given;
use crate::standing::{self, Standing};
use crate::{Connection, Error, Plan, TablePlan};

/// How often keys found absent that lose the race of being inserted are fetched and judged again.
const ROUNDS_MAX: usize = 5;

/// What a batch came to.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Ordinals and refusals of changes that need not be halved for: policy, and rows that nothing took.
    pub(super) refused: Vec<(u64, usize, Refusal)>,
    /// The same of changes whose rows refer to a row that is not there, but may come yet.
    pub(super) waiting: Vec<(u64, usize, Refusal)>,
    /// Tables and keys of rows that were refused because the database spells their keys otherwise.
    pub(super) misspelled: Vec<(usize, Vec<u8>)>,
    pub(super) conflicts: Vec<Conflict>,
    /// Rows stored and keys deleted just as uploaded.
    pub(super) echo: Vec<EchoMark>,
    /// Rows as the remote has them, with their tables, that are to go back as they are now: those that scripts changed, or left as they
    /// were, those that are spelled otherwise, and those that were stored elsewhere than they were sent.
    pub(super) sent_back: Vec<(usize, Row)>,
    pub(super) inserts: u64,
    pub(super) updates: u64,
    pub(super) deletes: u64,
}

/// A conflict to be recorded.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) ordinal: u64,
    pub(super) table: usize,
    pub(super) key: Row,
    pub(super) old: Option<Row>,
    pub(super) uploaded: Option<Row>,
    pub(super) stored: Option<Row>,
    pub(super) end: ConflictEnd,
    pub(super) result: Option<Row>,
}

/// Applies batches.
pub(super) struct Batch<'a> {
    pub(super) connection: &'a mut dyn Connection,
    pub(super) plan: &'a Plan,
    pub(super) policy: &'a Policy,
    pub(super) marker: &'a EchoMarker,
    pub(super) effects: Effects,
    /// Inserts are taken for new, until one was not: [`Error::Refused`] may mean no more than that.
    pub(super) expects_new: bool,
    /// Rows are written in two steps, so that unique values can change places and rows refer to one another.
    pub(super) parked: Option<Style>,
    /// In how many, by ordinal.
    pub(super) steps: HashMap<u64, Steps>,
    /// Rows of the table at hand that have been written in their first step only.
    pub(super) second_step: Vec<Row>,
}

/// Which rows of a set an insert took.
enum Taken {
    All,
    /// Those of these keys.
    Keys(HashSet<Vec<u8>>),
}

impl Taken {
    fn has_key(&self, key: &[u8]) -> bool {
        match self {
            Taken::All => true,
            Taken::Keys(keys) => keys.contains(key),
        }
    }
}

/// A judged change on its way to being written.
struct Judged<'i> {
    item: &'i Item,
    stored: Option<Row>,
    end: Option<ConflictEnd>,
    row: Row,
}

impl Judged<'_> {
    /// What a script is given: the row as it is to be, and as the remote had it.
    fn given(&self) -> Given<'_> {
        Given { new: Some(&self.row), old: self.item.change.old.as_deref(), ..Given::default() }
    }
}

/// A deletion on its way to being made.
pub(super) struct Doomed<'i> {
    pub(super) item: &'i Item,
    pub(super) stored: Option<Row>,
    end: Option<ConflictEnd>,
    key: Row,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        connection: &'a mut dyn Connection,
        plan: &'a Plan,
        policy: &'a Policy,
        marker: &'a EchoMarker,
    ) -> Batch<'a> {
        Batch {
            connection,
            plan,
            policy,
            marker,
            effects: Effects::default(),
            expects_new: false,
            parked: None,
            steps: HashMap::new(),
            second_step: Vec::new(),
        }
    }

    /// Applies changes in their order. [`Error::Refused`]: one of them was; the caller goes back to the savepoint.
    pub(super) fn run(mut self, items: &[Item]) -> Result<Effects, Error> {
        let items: Vec<&Item> = items.iter().collect();
        for run in runs(&items) {
            let table = &self.plan.tables[run[0].table];
            if run[0].is_delete() { self.deletes(table, run)? } else { self.upserts(table, run)? }
        }
        Ok(self.effects)
    }

    /// Makes the changes of a frame as they came. [`Error::Refused`], whatever it says: they have to go the way of all others.
    pub(super) fn change_plain(
        mut self,
        table: usize,
        changes: &PlainChanges,
        compares: bool,
    ) -> Result<Effects, Error> {
        let table = &self.plan.tables[table];
        let Effects { inserts, updates, deletes, .. } = &mut self.effects;
        let (made, what) = match changes.op {
            ChangeOp::Insert => (inserts, "insert"),
            ChangeOp::Update => (updates, "update"),
            ChangeOp::Delete => (deletes, "delete"),
        };
        for some in changes.batches() {
            if !self.connection.change_plain(table, some, compares)? {
                return Err(swallowed(table, what));
            }
            *made += some.count() as u64;
        }
        Ok(self.effects)
    }

    pub(super) fn upserts(&mut self, table: &TablePlan, items: &[&Item]) -> Result<(), Error> {
        let items = self.with_parents(table, items)?;
        let mut open: Vec<&Item> = Vec::new();
        let inserts: Vec<&Item> = items.iter().copied().filter(|item| item.change.old.is_none()).collect();
        if !table.table.is_uploaded_by_scripts() {
            self.connection.check_new_keys(table, &images(&inserts))?;
        }
        let taken = match (self.parked, self.expects_new) {
            // Scripts look first: what they do with a row whose key exists is theirs alone.
            _ if table.table.is_uploaded_by_scripts() => Taken::Keys(HashSet::new()),
            (Some(_), _) => Taken::Keys(HashSet::new()),
            (None, true) => self.insert_new(table, &images(&inserts))?,
            (None, false) => self.insert(table, &images(&inserts))?,
        };
        for item in inserts {
            if taken.has_key(&item.key) {
                self.effects.inserts += 1;
                self.stored_as_uploaded(table, item, item.change.image());
            } else {
                open.push(item);
            }
        }
        open.extend(items.iter().filter(|item| item.change.old.is_some()));
        if self.updated_blindly(table, &open)? {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            if open.is_empty() {
                return Ok(());
            }
            open = self.round(table, &open)?;
        }
        self.never_taken(table, &open)
    }

    /// Of rows that take their partition from others: those whose parent, as the upload has left it so far, is the user's.
    fn with_parents<'i>(&mut self, table: &TablePlan, items: &[&'i Item]) -> Result<Vec<&'i Item>, Error> {
        if table.parents.is_empty() {
            return Ok(items.to_vec());
        }
        let standings = self.standings(table, &images(items))?;
        let held = self.policy.hold(self.connection, table, &standings)?;
        let mut admitted = Vec::with_capacity(items.len());
        for (item, (standing, is_held)) in items.iter().zip(standings.iter().zip(held)) {
            let refused = (item.ordinal, item.table, outside_parent(table));
            match standing {
                Standing::Orphan => self.effects.waiting.push(refused),
                _ if !is_held => self.effects.refused.push(refused),
                _ => admitted.push(*item),
            }
        }
        Ok(admitted)
    }

    /// Where rows stand, and will until this transaction ends.
    fn standings(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Vec<Standing>, Error> {
        standing::of_rows(self.connection, table, rows, true)
    }

    /// Takes out, and refuses, those whose row is in none of the user's partitions.
    fn keep_inside<T>(
        &mut self,
        table: &TablePlan,
        of: Vec<T>,
        row: impl Fn(&T) -> (&Item, Option<&Row>),
    ) -> Result<Vec<T>, Error> {
        if table.table.partition.is_none() {
            return Ok(of);
        }
        let rows: Vec<&Row> = of.iter().filter_map(|one| row(one).1).collect();
        let standings = self.standings(table, &rows)?;
        let mut held = self.policy.hold(self.connection, table, &standings)?.into_iter();
        let mut inside = Vec::with_capacity(of.len());
        for one in of {
            let (item, row) = row(&one);
            if row.is_some() && !held.next().unwrap_or(false) {
                self.effects.refused.push((item.ordinal, item.table, outside(table)));
            } else {
                inside.push(one);
            }
        }
        Ok(inside)
    }

    /// Under the rule `off`, a table without partitions needs no look at what is stored.
    fn updated_blindly(&mut self, table: &TablePlan, open: &[&Item]) -> Result<bool, Error> {
        let is_blind = !table.table.is_uploaded_by_scripts()
            && table.table.conflict == ConflictRule::Off
            && table.table.partition.is_none()
            && self.parked.is_none();
        let rows = images(open);
        if !is_blind || open.is_empty() || !rows.iter().all(|row| has_one_spelling(table, &table.key_of(row))) {
            return Ok(false);
        }
        if self.connection.update(table, &rows)? != rows.len() as u64 {
            return Ok(false);
        }
        self.effects.updates += rows.len() as u64;
        for item in open {
            self.stored_as_uploaded(table, item, item.change.image());
        }
        Ok(true)
    }

    /// Fetches, judges and writes; gives those whose key was absent and then was not.
    fn round<'i>(&mut self, table: &TablePlan, open: &[&'i Item]) -> Result<Vec<&'i Item>, Error> {
        let (mut inserts, mut updates) = (Vec::new(), Vec::new());
        let found = self.fetch_inside(table, open)?;
        for Found { item, stored, judgement } in self.judged(table, found)? {
            let end = judgement.conflict;
            match judgement.action {
                Action::Update(row) => updates.push(Judged { item, stored, end, row }),
                Action::Insert(row) => inserts.push(Judged { item, stored, end, row }),
                Action::Keep => self.kept(table, item, stored, end),
                Action::Refuse(place) => {
                    let refusal = total_too_large(table, place);
                    self.effects.refused.push((item.ordinal, item.table, refusal));
                }
                Action::Delete => {}
            }
        }
        // What is made of both images may lie where neither does.
        let updates = self.keep_inside(table, updates, |judged: &Judged<'_>| (judged.item, Some(&judged.row)))?;
        self.update_judged(table, &updates)?;
        for judged in updates {
            self.effects.updates += 1;
            self.written(table, judged);
        }
        let taken = self.insert_judged(table, &inserts)?;
        let mut again = Vec::new();
        for judged in inserts {
            if taken.has_key(&judged.item.key) {
                self.effects.inserts += 1;
                self.written(table, judged);
            } else {
                again.push(judged.item);
            }
        }
        Ok(again)
    }

    /// Changes that were absent at each look and yet could not be inserted: a rule of the database swallows them, or another writer
    /// makes and deletes the same keys all the while.
    fn never_taken(&mut self, table: &TablePlan, open: &[&Item]) -> Result<(), Error> {
        let stored = self.fetch(table, open)?;
        if !stored.is_empty() {
            return Err(Error::Retry {
                detail: format!("rows of {} come and go faster than they can be judged", table.table.name),
                broken: false,
            });
        }
        let text = || format!("a rule of the database kept the row out of table {}", table.table.name);
        let refused = open.iter().map(|item| (item.ordinal, item.table, refusal(RefusalCode::Trigger, text())));
        self.effects.refused.extend(refused);
        Ok(())
    }

    fn deletes(&mut self, table: &TablePlan, items: &[&Item]) -> Result<(), Error> {
        let doomed = self.doom(table, items)?;
        self.delete_doomed(table, doomed)
    }

    /// Judges deletions; gives those to be made.
    pub(super) fn doom<'i>(&mut self, table: &TablePlan, items: &[&'i Item]) -> Result<Vec<Doomed<'i>>, Error> {
        let mut doomed = Vec::new();
        let found = self.fetch_inside(table, items)?;
        for Found { item, stored, judgement } in self.judged(table, found)? {
            let key = table.key_of(item.change.image());
            match judgement.action {
                Action::Delete => doomed.push(Doomed { item, stored, end: judgement.conflict, key }),
                _ => self.kept(table, item, stored, judgement.conflict),
            }
        }
        Ok(doomed)
    }

    pub(super) fn delete_doomed(&mut self, table: &TablePlan, doomed: Vec<Doomed<'_>>) -> Result<(), Error> {
        match table.table.script(Step::UploadDelete) {
            Some(script) => {
                let items = doomed.iter().map(|doomed| doomed.item);
                let given = items.map(|item| Given { old: Some(item.change.image()), ..Given::default() });
                self.run_script(table, script, given)?;
                self.effects.sent_back.extend(doomed.iter().map(|doomed| sent(doomed.item)));
            }
            None => self.delete(table, &doomed.iter().map(|doomed| &doomed.key).collect::<Vec<_>>())?,
        }
        for Doomed { item, stored, end, key } in doomed {
            self.effects.deletes += 1;
            match end {
                Some(end) => self.conflict(table, item, stored, end, None),
                None => self.effects.echo.push(self.marker.deleted(table, &key)),
            }
        }
        Ok(())
    }

    fn kept(&mut self, table: &TablePlan, item: &Item, stored: Option<Row>, end: Option<ConflictEnd>) {
        match end {
            Some(end) => {
                let result = stored.clone();
                self.conflict(table, item, stored, end, result);
            }
            // Equal to what is stored, and spelled otherwise: 7.5 for 7.50, -0.0 for 0.0, a time as JavaScript writes it.
            None if item.is_respelled || !is_stored_so(item.change.new.as_ref(), stored.as_ref()) => {
                self.effects.sent_back.push(sent(item));
            }
            None => {}
        }
    }

    fn written(&mut self, table: &TablePlan, judged: Judged<'_>) {
        let Judged { item, stored, end, row } = judged;
        match end {
            Some(end) => self.conflict(table, item, stored, end, Some(row)),
            // A total is another row than the remote's. Where no version tells that it has changed, it is sent all the same.
            None if !table.table.sum.is_empty() && !is_stored_so(item.change.new.as_ref(), Some(&row)) => {
                if !table.table.is_tracked() {
                    self.effects.sent_back.push((item.table, row));
                }
            }
            None => self.stored_as_uploaded(table, item, &row),
        }
    }

    /// The remote has the row already, unless it spells it otherwise: then the stored one goes down.
    fn stored_as_uploaded(&mut self, table: &TablePlan, item: &Item, row: &[Value]) {
        if !item.is_respelled {
            self.effects.echo.push(self.marker.stored(table, row));
        }
    }

    fn conflict(&mut self, table: &TablePlan, item: &Item, stored: Option<Row>, end: ConflictEnd, result: Option<Row>) {
        self.effects.conflicts.push(Conflict {
            ordinal: item.ordinal,
            table: item.table,
            key: table.key_of(item.change.image()),
            old: item.change.old.clone(),
            uploaded: item.change.new.clone(),
            stored,
            end,
            result,
        });
    }

    /// These changes with the stored rows of their keys, locked; without those whose stored row is not the user's, which are refused.
    fn fetch_inside<'i>(
        &mut self,
        table: &TablePlan,
        items: &[&'i Item],
    ) -> Result<Vec<(&'i Item, Option<Row>)>, Error> {
        let mut stored = self.fetch(table, items)?;
        let found = items.iter().map(|item| (*item, stored.remove(&item.key))).collect();
        let inside =
            self.keep_inside(table, found, |(item, stored): &(&Item, Option<Row>)| (*item, stored.as_ref()))?;
        Ok(self.keep_spelled(table, inside))
    }

    /// Takes out, and refuses, those whose key is spelled otherwise than that of the stored row.
    fn keep_spelled<'i>(
        &mut self,
        table: &TablePlan,
        found: Vec<(&'i Item, Option<Row>)>,
    ) -> Vec<(&'i Item, Option<Row>)> {
        if table.table.is_uploaded_by_scripts() {
            return found;
        }
        let mut spelled = Vec::with_capacity(found.len());
        for (item, stored) in found {
            let form = |row: &Row| other_form(table, &table.key_of(item.change.image()), &table.key_of(row));
            match stored.as_ref().and_then(form) {
                Some(refusal) => {
                    if !item.is_delete() {
                        self.effects.misspelled.push((item.table, item.key.clone()));
                    }
                    self.effects.refused.push((item.ordinal, item.table, refusal));
                }
                None => spelled.push((item, stored)),
            }
        }
        spelled
    }

    /// The stored rows of these changes' keys, locked, by the bytes of their keys.
    fn fetch(&mut self, table: &TablePlan, items: &[&Item]) -> Result<HashMap<Vec<u8>, Row>, Error> {
        if let Some(script) = table.table.script(Step::UploadFetch) {
            return self.fetch_by_script(table, script, items);
        }
        let keys: Vec<Row> = items.iter().map(|item| table.key_of(item.change.image())).collect();
        let rows = self.connection.fetch(table, &keys, true)?;
        Ok(rows.into_iter().map(|row| (key_bytes_of(table, &row), row)).collect())
    }

    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Taken, Error> {
        if rows.is_empty() {
            return Ok(Taken::All);
        }
        let inserted = self.connection.insert(table, rows)?;
        self.send_moved_back(table, rows);
        taken(table, rows, inserted)
    }

    fn insert_new(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Taken, Error> {
        if rows.is_empty() {
            return Ok(Taken::All);
        }
        let inserted = self.connection.insert_new(table, rows)?;
        self.send_moved_back(table, rows);
        taken(table, rows, inserted)
    }

    pub(super) fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        // The rows are locked and there, so only a trigger or policy of the database's own can have kept one as it was.
        let updated = self.connection.update(table, rows)?;
        self.send_moved_back(table, rows);
        if updated == rows.len() as u64 { Ok(()) } else { Err(swallowed(table, "update")) }
    }

    /// A remote holds a row where it sent it; where a trigger has put it elsewhere, no side table says that it left.
    fn send_moved_back(&mut self, table: &TablePlan, rows: &[&Row]) {
        let moved: HashSet<Vec<u8>> = self.connection.take_moved().iter().map(|key| key_bytes(table, key)).collect();
        let Some(place) = self.plan.tables.iter().position(|known| known.number == table.number) else { return };
        let back = rows.iter().filter(|row| !moved.is_empty() && moved.contains(&key_bytes_of(table, row)));
        self.effects.sent_back.extend(back.map(|row| (place, (*row).clone())));
    }

    /// What [`Batch::send_moved_back`] does, of rows that a script has inserted: it may have stored them anywhere, or not at all.
    fn send_inserted_back(&mut self, table: &TablePlan, judged: &[Judged<'_>]) {
        if table.table.partition.is_some() || table.table.is_tracked() {
            self.effects.sent_back.extend(judged.iter().map(|judged| (judged.item.table, judged.row.clone())));
        }
    }

    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<(), Error> {
        if keys.is_empty() || self.connection.delete(table, keys)? == keys.len() as u64 {
            return Ok(());
        }
        // Some may have gone with others by a cascade; what is still there was kept by a rule of the database's own.
        let keys: Vec<Row> = keys.iter().map(|key| (*key).clone()).collect();
        if self.connection.fetch(table, &keys, true)?.is_empty() { Ok(()) } else { Err(swallowed(table, "delete")) }
    }

    fn update_judged(&mut self, table: &TablePlan, judged: &[Judged<'_>]) -> Result<(), Error> {
        if let Some(script) = table.table.script(Step::UploadUpdate) {
            self.effects.sent_back.extend(judged.iter().map(|judged| (judged.item.table, judged.row.clone())));
            return self.run_script(table, script, judged.iter().map(Judged::given));
        }
        let rows: Vec<&Row> = judged.iter().map(|judged| &judged.row).collect();
        let Some(style) = self.parked_of(table) else { return self.update(table, &rows) };
        let first: Vec<Row> = judged.iter().map(|judged| self.first_step(table, judged, style)).collect();
        self.update(table, &first.iter().collect::<Vec<_>>())?;
        self.second_step.extend(rows.into_iter().cloned());
        Ok(())
    }

    fn insert_judged(&mut self, table: &TablePlan, judged: &[Judged<'_>]) -> Result<Taken, Error> {
        if let Some(script) = table.table.script(Step::UploadInsert) {
            self.run_script(table, script, judged.iter().map(Judged::given))?;
            self.send_inserted_back(table, judged);
            return Ok(Taken::All);
        }
        let rows: Vec<&Row> = judged.iter().map(|judged| &judged.row).collect();
        // An update of a row that is gone inserts it.
        self.connection.check_new_keys(table, &rows)?;
        let Some(style) = self.parked_of(table) else { return self.insert(table, &rows) };
        let first: Vec<Row> = judged.iter().map(|judged| self.first_step(table, judged, style)).collect();
        let taken = self.insert(table, &first.iter().collect::<Vec<_>>())?;
        let made = rows.into_iter().filter(|row| taken.has_key(&key_bytes_of(table, row)));
        self.second_step.extend(made.cloned());
        Ok(taken)
    }

    fn first_step(&self, table: &TablePlan, judged: &Judged<'_>, style: Style) -> Row {
        park(table, &judged.row, judged.stored.as_ref(), (self.steps_of(judged.item), style))
    }

    pub(super) fn steps_of(&self, item: &Item) -> Steps {
        self.steps.get(&item.ordinal).copied().unwrap_or(Steps::One)
    }
}

fn taken(table: &TablePlan, rows: &[&Row], inserted: Inserted) -> Result<Taken, Error> {
    let stored = match inserted {
        Inserted::All => return Ok(Taken::All),
        Inserted::Keys(keys) => keys,
    };
    let asked: HashMap<Vec<u8>, Row> = rows.iter().map(|row| (key_bytes_of(table, row), table.key_of(row))).collect();
    let mut keys = HashSet::with_capacity(stored.len());
    for key in stored {
        let bytes = key_bytes(table, &key);
        let Some(given) = asked.get(&bytes) else { return Err(given_another_key(table, rows, &key)) };
        if let Some(refusal) = other_form(table, given, &key) {
            return Err(Error::Refused { detail: refusal.message.clone(), refusal });
        }
        keys.insert(bytes);
    }
    Ok(Taken::Keys(keys))
}

/// The row of a change as the remote has it, or had it before it deleted it.
fn sent(item: &Item) -> (usize, Row) {
    (item.table, item.change.image().to_vec())
}

fn images<'i>(items: &[&'i Item]) -> Vec<&'i Row> {
    items.iter().filter_map(|item| item.change.new.as_ref()).collect()
}

/// Stretches of changes of one table and kind that have keys of their own: what one statement may do.
pub(super) fn runs<'s, 'i>(items: &'s [&'i Item]) -> impl Iterator<Item = &'s [&'i Item]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let mut keys: HashSet<&[u8]> = HashSet::new();
        let belongs = |item: &&&Item| item.table == first.table && item.is_delete() == first.is_delete();
        let length = rest.iter().take_while(|item| belongs(item) && keys.insert(&item.key)).count();
        let (run, later) = rest.split_at(length);
        rest = later;
        Some(run)
    })
}

fn total_too_large(table: &TablePlan, place: usize) -> Refusal {
    let column = table.table.columns.get(place).map_or("", |column| column.name.as_str());
    refusal(
        RefusalCode::Data,
        format!("the total of counter {column} of table {} does not fit into it", table.table.name),
    )
}

fn swallowed(table: &TablePlan, what: &str) -> Error {
    let message = format!("a rule of the database refused the {what} of a row of table {}", table.table.name);
    Error::Refused {
        refusal: refusal(RefusalCode::Trigger, message),
        detail: format!("fewer rows changed by an {what}"),
    }
}

/// Whether two rows are spelled the same, or neither is there.
fn is_stored_so(one: Option<&Row>, other: Option<&Row>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_identical(other))
        }
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// A row of another key is another row: the remote would hold one that is stored nowhere.
fn given_another_key(table: &TablePlan, rows: &[&Row], stored: &[Value]) -> Error {
    let mut message = format!("a trigger of the database gave the row of table {} another key", table.table.name);
    if let [row] = rows
        && let Some(form) = form_of_the_type(table, &table.key_of(row), stored)
    {
        message = format!("{message}, or the type of the key: {form}");
    }
    Error::Refused {
        refusal: refusal(RefusalCode::Trigger, message),
        detail: "a row was stored under another key than it was sent".into(),
    }
}

/// What a key's type may have made of it without a trigger: it rounds, or cuts blanks.
fn form_of_the_type(table: &TablePlan, given: &[Value], stored: &[Value]) -> Option<String> {
    let mut values = table.key_types.iter().zip(given.iter().zip(stored));
    let (kind, _) = values.find(|(_, (given, stored))| !given.is_identical(stored))?;
    matches!(kind, Type::Decimal | Type::Text | Type::Time | Type::Timestamp | Type::Timestamptz)
        .then(|| other_form(table, given, stored).map(|refusal| refusal.message))?
}
