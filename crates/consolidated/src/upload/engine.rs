//! An upload's changes, pass by pass, inside one transaction.
//!
//! - Forwards: inserts and updates, batch by batch in table order (the remote sends parents before children).
//! - What broke a unique constraint or a foreign key is untangled together with the deletions it has to do with (`untangle`): net
//!   changes have no order, and another change may be what it waits for.
//! - Backwards: the other deletions, from the last frame to the first.
//! - What still waits is untangled again, for as long as that helps.
//!
//! Inserts are taken for new until the database finds a key that exists; then the batch is applied once more, looking first.
//!
//! **Finding what is refused.** A batch that the database refuses goes back to the savepoint, and half of it is tried; what goes well
//! doubles the next try, what fails halves it. So k changes at fault among n cost about 2 k log n attempts, and never more than 3 n, if
//! all are. In the forward pass no more than [`SINGLY_MAX`] changes that may only have come too early are looked for one by one: after
//! that, whole batches wait to be untangled.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use headwater_model::{OnDelete, Reference};
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};
use headwater_protocol::{Row, text};

use super::batch::{Batch, Conflict, Effects};
use super::conflicts;
use super::plain::Tries;
use super::policy::{Policy, refusal};
use super::source::{Item, SourceReader, undefined};
use super::{Checking, Counts, Isolation, UploadRequest};
use crate::keys::key_bytes;
use crate::rows::Echo;
use crate::{Connection, Error, Plan};

/// A batch is closed when the frames that it comes from hold this many bytes, whatever the number of its changes.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How often what was refused is untangled again while each time some of it goes through.
const PASSES_MAX: usize = 2;
/// How many changes that may have come too early are found one by one, before whole batches wait.
const SINGLY_MAX: usize = 32;
/// The most changes that are untangled at once, and that wait in batches; more are taken in parts, each by itself.
pub(super) const TANGLED_MAX: usize = 100_000;
/// An upload being applied.
pub(super) struct Engine<'a> {
    pub(super) connection: &'a mut dyn Connection,
    pub(super) request: &'a UploadRequest<'a>,
    pub(super) policy: Policy,
    pub(super) checking: Checking,
    pub(super) isolation: Isolation,
    pub(super) results: Results,
    /// Inserts have been new so far.
    pub(super) expects_new: bool,
    /// What may go straight from its frames.
    pub(super) tries: Tries,
    /// Deletions that the backward pass has not to look at any more.
    pub(super) settled: BTreeSet<u64>,
    /// Tables whose deletions wait, because they may set a column of a row to NULL that is to be deleted itself.
    pub(super) nulling: BTreeSet<usize>,
    /// Refused for a reason that may pass, by ordinal.
    pub(super) deferred: BTreeMap<u64, (usize, Refusal)>,
    /// Those of the last attempt that wait for the row that they refer to.
    pub(super) waiting: BTreeSet<u64>,
    /// Tables and keys of new rows that are refused because the database spells their keys otherwise: the rows of these keys stay.
    misspelled: HashSet<(usize, Vec<u8>)>,
    /// How many of them were found one by one.
    deferred_singly: usize,
    /// Something has happened since they were tried last.
    pub(super) may_help: bool,
}

/// What the changes came to.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) outcomes: BTreeMap<u64, Outcome>,
    pub(super) echo: Echo,
    pub(super) conflicted: Vec<(u32, Row)>,
    pub(super) counts: Counts,
}

/// Why an attempt was refused.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    detail: String,
    /// By a constraint that was looked at after the batch.
    is_late: bool,
}

impl Refused {
    /// Another change may take the reason away.
    pub(super) fn may_pass(&self) -> bool {
        self.is_late || matches!(self.refusal.code, RefusalCode::Unique | RefusalCode::ForeignKey)
    }
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        connection: &'a mut dyn Connection,
        request: &'a UploadRequest<'a>,
        policy: Policy,
        (checking, isolation): (Checking, Isolation),
    ) -> Engine<'a> {
        Engine {
            connection,
            request,
            policy,
            checking,
            isolation,
            results: Results::default(),
            expects_new: true,
            tries: Tries::default(),
            settled: BTreeSet::new(),
            nulling: BTreeSet::new(),
            deferred: BTreeMap::new(),
            waiting: BTreeSet::new(),
            misspelled: HashSet::new(),
            deferred_singly: 0,
            may_help: false,
        }
    }

    /// Applies everything. [`Error::Refused`]: a deferred constraint is broken at the end.
    pub(super) fn run(mut self, source: &mut SourceReader<'_>) -> Result<Results, Error> {
        if let Checking::Hopeless(refusal) = self.checking.clone() {
            return self.refuse_all(source, &refusal);
        }
        self.forwards(source)?;
        if !self.deferred.is_empty() {
            self.untangle_with_deletions(source)?;
        }
        self.backwards(source)?;
        for _ in 0..PASSES_MAX {
            if self.deferred.is_empty() || !self.may_help {
                break;
            }
            self.untangle(source)?;
        }
        for (ordinal, (table, refusal)) in std::mem::take(&mut self.deferred) {
            self.refuse(ordinal, table, refusal);
        }
        self.connection.check_deferred_last()?;
        self.settle_plain(source)?;
        Ok(self.results)
    }

    fn forwards(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let mut batch: Vec<Item> = Vec::new();
        let mut bytes = 0;
        while let Some(payload) = source.next_payload()? {
            if bytes + source.payload_bytes > BATCH_BYTES_MAX {
                self.apply(&std::mem::take(&mut batch))?;
                bytes = 0;
            }
            let before = |engine: &mut Self| {
                bytes = 0;
                engine.apply(&std::mem::take(&mut batch))
            };
            let Some(payload) = self.apply_plain(source, payload, before)? else { continue };
            bytes += source.payload_bytes;
            let items = source.items(payload)?;
            self.policy.learn_of_items(self.connection, self.request.plan, &items)?;
            for item in items.into_iter().filter(|item| !item.is_delete()) {
                if self.is_full(&batch, &item) {
                    self.apply(&std::mem::take(&mut batch))?;
                }
                if self.admit(&item) {
                    batch.push(item);
                }
            }
            if bytes > BATCH_BYTES_MAX {
                // A single large frame: it is not held while the next is read.
                self.apply(&std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        self.apply(&batch)?;
        match source.changes_read() {
            actual if actual == self.request.end.changes => Ok(()),
            actual => Err(undefined("number of changes", actual)),
        }
    }

    fn backwards(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        self.nulling = nulling(self.request.plan);
        let mut batch: Vec<Item> = Vec::new();
        let mut bytes = 0;
        let sections = source.sections.clone().into_iter().enumerate().rev();
        for (index, section) in sections.filter(|(_, section)| section.has_deletes) {
            let before = |engine: &mut Self| {
                bytes = 0;
                engine.apply(&std::mem::take(&mut batch))
            };
            if self.delete_plain(source, (index, section), before)? {
                continue;
            }
            if bytes + section.bytes > BATCH_BYTES_MAX {
                self.apply(&std::mem::take(&mut batch))?;
                bytes = 0;
            }
            bytes += section.bytes;
            for item in source.section(section)?.into_iter().rev().filter(Item::is_delete) {
                if self.settled.contains(&item.ordinal) {
                    continue;
                }
                if self.is_full(&batch, &item) {
                    self.apply(&std::mem::take(&mut batch))?;
                }
                if !self.admit(&item) {
                    continue;
                }
                if self.nulling.contains(&item.table) && self.deferred.len() < TANGLED_MAX {
                    let waits = refusal(RefusalCode::ForeignKey, "a deletion that was not tried".to_owned());
                    self.deferred.insert(item.ordinal, (item.table, waits));
                    self.may_help = true;
                } else {
                    batch.push(item);
                }
            }
        }
        self.apply(&batch)
    }

    fn refuse_all(mut self, source: &mut SourceReader<'_>, refusal: &Refusal) -> Result<Results, Error> {
        while let Some(items) = source.next()? {
            for item in items {
                self.refuse(item.ordinal, item.table, refusal.clone());
            }
        }
        Ok(self.results)
    }

    fn is_full(&self, batch: &[Item], next: &Item) -> bool {
        batch.len() >= self.request.limits.batch_rows || batch.last().is_some_and(|last| last.table != next.table)
    }

    /// Whether a change may be made at all; one that may not is refused.
    fn admit(&mut self, item: &Item) -> bool {
        let refusal = self.refusal(item);
        let admitted = refusal.is_none();
        if let Some(refusal) = refusal {
            self.note_misspelled(item, &refusal);
            self.refuse(item.ordinal, item.table, refusal);
        }
        admitted
    }

    /// Why a change may not be made; `None` if it may.
    pub(super) fn refusal(&self, item: &Item) -> Option<Refusal> {
        let table = &self.request.plan.tables[item.table];
        let is_respelled = item.is_delete() && self.misspelled.contains(&(item.table, item.key.clone()));
        let stays = || {
            let message = "the row stays: its key is spelled otherwise in an insert that is set aside";
            refusal(RefusalCode::Data, message.to_owned())
        };
        self.policy.refusal(table, item).or_else(|| is_respelled.then(stays))
    }

    /// A remote deletes a row and inserts one where it spells the key of the row otherwise: neither is made.
    fn note_misspelled(&mut self, item: &Item, refusal: &Refusal) {
        if item.is_delete() || refusal.code != RefusalCode::Data {
            return;
        }
        let table = &self.request.plan.tables[item.table];
        let mut key = table.key_of(item.change.image());
        for (value, kind) in key.iter_mut().zip(&table.key_types) {
            if let Some(typed) = text::coerce(value, *kind) {
                *value = typed;
            }
        }
        self.misspelled.insert((item.table, key_bytes(table, &key)));
    }

    /// Whether the deletions of a table have to be looked at one by one.
    pub(super) fn has_misspelled(&self, table: usize) -> bool {
        self.misspelled.iter().any(|(of, _)| *of == table)
    }

    /// Applies changes of one table and kind, and finds those that are refused.
    pub(super) fn apply(&mut self, items: &[Item]) -> Result<(), Error> {
        let mut rest = items;
        let mut size = items.len();
        while !rest.is_empty() {
            size = size.clamp(1, rest.len());
            let (some, later) = rest.split_at(size);
            let Some(refused) = self.attempt_in_order(some)? else {
                (rest, size) = (later, size * 2);
                continue;
            };
            if self.expects_new && refused.refusal.code == RefusalCode::Unique {
                self.expects_new = false;
            } else if refused.may_pass() && self.is_time_to_wait(rest) {
                self.may_help = true;
                // Alone, it is one of many; with others, it may be the only one.
                let waiting = if size == 1 { rest } else { some };
                self.deletion_waits(&some[0]);
                for item in waiting {
                    self.deferred.insert(item.ordinal, (item.table, refused.refusal.clone()));
                }
                rest = &rest[waiting.len()..];
            } else if size == 1 {
                self.deferred_singly += usize::from(refused.may_pass());
                self.may_help |= refused.may_pass();
                self.deletion_waits(&some[0]);
                self.refused(&some[0], refused);
                rest = later;
            } else {
                size /= 2;
            }
        }
        Ok(())
    }

    /// Where the change is a deletion: it is not made yet, so those wait too that would set a column of its row to NULL.
    fn deletion_waits(&mut self, item: &Item) {
        if item.is_delete() && !self.nulling.contains(&item.table) {
            let parents = reached(self.request.plan, item.table, has_action);
            self.nulling.extend(parents.into_iter().filter(|parent| *parent != item.table));
        }
    }

    /// Whether these are not to be taken apart now: they may only have come too early, as many others have.
    fn is_time_to_wait(&self, items: &[Item]) -> bool {
        self.deferred_singly >= SINGLY_MAX && self.deferred.len() + items.len() <= TANGLED_MAX
    }

    fn attempt_in_order(&mut self, items: &[Item]) -> Result<Option<Refused>, Error> {
        let expects_new = self.expects_new;
        self.attempt(|mut batch| {
            batch.expects_new = expects_new;
            batch.run(items)
        })
    }

    /// Makes changes, or takes back what was made of them and says why. Whatever waited for one of them waits no more.
    pub(super) fn attempt(
        &mut self,
        apply: impl FnOnce(Batch<'_>) -> Result<Effects, Error>,
    ) -> Result<Option<Refused>, Error> {
        self.connection.savepoint()?;
        let batch = Batch::new(self.connection, self.request.plan, &self.policy, self.results.echo.marker());
        let made = apply(batch);
        let is_late = made.is_ok();
        let result = made.and_then(|effects| match self.checking {
            Checking::EachBatch => self.connection.check_deferred().map(|()| effects),
            _ => Ok(effects),
        });
        match result {
            Ok(effects) => {
                self.connection.release_savepoint()?;
                self.keep(effects)?;
                Ok(None)
            }
            Err(error) => {
                let (refusal, detail) = self.isolation.refusal(error)?;
                self.connection.rollback_to_savepoint()?;
                Ok(Some(Refused { refusal, detail, is_late }))
            }
        }
    }

    /// A change is refused by itself: for good, or until others have been made.
    pub(super) fn refused(&mut self, item: &Item, why: Refused) {
        if why.may_pass() {
            self.deferred.insert(item.ordinal, (item.table, why.refusal));
            return;
        }
        tracing::info!(
            ordinal = item.ordinal,
            code = why.refusal.code.name(),
            detail = why.detail,
            "a change was refused"
        );
        self.deferred.remove(&item.ordinal);
        self.note_misspelled(item, &why.refusal);
        self.refuse(item.ordinal, item.table, why.refusal);
    }

    fn refuse(&mut self, ordinal: u64, table: usize, refusal: Refusal) {
        let table = &self.request.plan.tables[table].table.name;
        tracing::debug!(ordinal, table, code = refusal.code.name(), rule = refusal.message, "a change is set aside");
        self.results.counts.refused += 1;
        self.results.outcomes.insert(ordinal, Outcome::Refused(refusal));
    }

    /// Rows that the remote has and the database has not, or not so. A version tells of them, whenever the next download comes; where there
    /// are none, this upload's own download.
    fn send_back(&mut self, rows: Vec<(usize, Row)>) -> Result<(), Error> {
        let plan = self.request.plan;
        let (noted, told): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|(table, _)| plan.tables[*table].table.is_tracked());
        for of_table in noted.chunk_by(|one, other| one.0 == other.0) {
            let rows: Vec<&Row> = of_table.iter().map(|(_, row)| row).collect();
            self.connection.note_again(&plan.tables[of_table[0].0], &rows)?;
        }
        let told = told.iter().map(|(table, row)| (plan.tables[*table].number, plan.tables[*table].key_of(row)));
        self.results.conflicted.extend(told);
        Ok(())
    }

    fn keep(&mut self, effects: Effects) -> Result<(), Error> {
        let plan = self.request.plan;
        self.may_help |= effects.inserts + effects.updates + effects.deletes > 0;
        self.misspelled.extend(effects.misspelled);
        conflicts::write(self.connection, self.request, &effects.conflicts)?;
        for (ordinal, table, refusal) in effects.refused {
            self.deferred.remove(&ordinal);
            self.refuse(ordinal, table, refusal);
        }
        self.waiting = effects.waiting.iter().map(|(ordinal, _, _)| *ordinal).collect();
        self.deferred.extend(effects.waiting.into_iter().map(|(ordinal, table, refusal)| (ordinal, (table, refusal))));
        self.results.echo.extend(effects.echo);
        self.send_back(effects.sent_back)?;
        for Conflict { ordinal, table, key, end, .. } in effects.conflicts {
            self.results.outcomes.insert(ordinal, Outcome::Conflict(end));
            self.results.conflicted.push((plan.tables[table].number, key));
            self.results.counts.conflicts += 1;
        }
        self.results.counts.inserted += effects.inserts;
        self.results.counts.updated += effects.updates;
        self.results.counts.deleted += effects.deletes;
        Ok(())
    }
}

/// Tables in which a deletion may set a column of a row to NULL before that is deleted itself: the row would look changed. It may where
/// tables refer to one another in a circle; elsewhere children go first. So these deletions are put in order first, and with them those
/// that take their rows or change them by a cascade.
fn nulling(plan: &Plan) -> BTreeSet<usize> {
    let sets_null = |reference: &&Reference| reference.on_delete == OnDelete::SetNull;
    let in_circles = (0..plan.tables.len()).filter(|child| {
        let mut parents = plan.tables[*child].table.references.iter().filter(sets_null);
        parents.any(|parent| reached(plan, parent.table, |_| true).contains(child))
    });
    in_circles.flat_map(|table| reached(plan, table, has_action)).collect()
}

fn has_action(reference: &Reference) -> bool {
    reference.on_delete != OnDelete::NoAction
}

/// A table, those that it refers to by such references, those that they refer to, and so on.
fn reached(plan: &Plan, table: usize, is_followed: impl Fn(&Reference) -> bool) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next = vec![table];
    while let Some(table) = next.pop() {
        if found.insert(table) {
            let references = plan.tables[table].table.references.iter();
            next.extend(references.filter(|reference| is_followed(reference)).map(|reference| reference.table));
        }
    }
    found
}
