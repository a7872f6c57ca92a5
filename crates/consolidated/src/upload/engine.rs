//! An upload's changes, pass by pass, inside one transaction.
//!
//! - Forwards: inserts and updates, batch by batch in table order (the remote sends parents before children).
//! - Backwards: deletions, from the last frame to the first.
//! - What broke a unique constraint or a foreign key is tried again, to and fro, for as long as that helps: net changes have no
//!   order, and what stood in a row's way may be gone now.
//! - What still fails is tried together in two steps (`park`); a change that fails even so is taken out, and the others once more.
//!
//! Inserts are taken for new until the database finds a key that exists; then the batch is applied once more, looking first.
//!
//! A batch that the database refuses goes back to the savepoint and is halved, until one change is left: fewer than 2n attempts for
//! n changes, whatever is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use headwater_protocol::Row;
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};

use super::batch::{Batch, Conflict, Effects};
use super::conflicts;
use super::policy::Policy;
use super::source::{Item, SourceReader, undefined};
use super::{Checking, Counts, UploadRequest};
use crate::rows::Echo;
use crate::{Connection, Error};

/// A batch is closed when the frames that it comes from hold this many bytes, whatever the number of its changes.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How often what was refused is tried again while each time some of it goes through.
const PASSES_MAX: usize = 4;
/// The most changes that are tried in two steps.
const PARKED_MAX: usize = 4_000;
/// The most that are written in two steps, taken over all attempts.
const PARKED_STEPS_MAX: usize = 40_000;

/// An upload being applied.
pub(super) struct Engine<'a> {
    connection: &'a mut dyn Connection,
    request: &'a UploadRequest<'a>,
    policy: Policy,
    checking: Checking,
    results: Results,
    /// Inserts have been new so far.
    expects_new: bool,
    /// Deletions that were made together with rows that stood in the way.
    deleted_together: BTreeSet<u64>,
    /// Refused for a reason that may pass, by ordinal.
    deferred: BTreeMap<u64, (usize, Refusal)>,
}

/// What the changes came to.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) outcomes: BTreeMap<u64, Outcome>,
    pub(super) echo: Echo,
    pub(super) conflicted: Vec<(u32, Row)>,
    pub(super) counts: Counts,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        connection: &'a mut dyn Connection,
        request: &'a UploadRequest<'a>,
        policy: Policy,
        checking: Checking,
    ) -> Engine<'a> {
        let results = Results::default();
        Engine {
            connection,
            request,
            policy,
            checking,
            results,
            expects_new: true,
            deleted_together: BTreeSet::new(),
            deferred: BTreeMap::new(),
        }
    }

    /// Applies everything. [`Error::Refused`]: a deferred constraint is broken at the end.
    pub(super) fn run(mut self, source: &mut SourceReader<'_>) -> Result<Results, Error> {
        self.forwards(source)?;
        self.before_deletions(source)?;
        self.backwards(source)?;
        self.again(source)?;
        self.connection.savepoint()?;
        self.connection.check_deferred()?;
        self.connection.release_savepoint()?;
        Ok(self.results)
    }

    fn forwards(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let mut batch: Vec<Item> = Vec::new();
        let mut bytes = 0;
        while let Some(items) = source.next()? {
            if bytes + source.payload_bytes > BATCH_BYTES_MAX {
                self.apply(&std::mem::take(&mut batch))?;
                bytes = 0;
            }
            bytes += source.payload_bytes;
            for item in items.into_iter().filter(|item| !item.is_delete()) {
                if batch.len() >= self.request.limits.batch_rows
                    || batch.last().is_some_and(|last| last.table != item.table)
                {
                    self.apply(&std::mem::take(&mut batch))?;
                }
                if self.admit(&item) {
                    batch.push(item);
                }
            }
        }
        self.apply(&batch)?;
        match source.changes_read() {
            actual if actual == self.request.end.changes => Ok(()),
            actual => Err(undefined("number of changes", actual)),
        }
    }

    /// What was put off may be rows that leave a parent which is deleted next: with the deletion done first, a cascade would take them.
    /// So all of it is tried together with the deletions; what can't go so is left to the passes that follow.
    fn before_deletions(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let ordinals: Vec<u64> = self.deferred.keys().copied().collect();
        let mut items = if ordinals.len() <= PARKED_MAX { source.pick(&ordinals)? } else { Vec::new() };
        if items.is_empty() {
            return Ok(());
        }
        for section in source.sections.clone().into_iter().filter(|section| section.has_deletes) {
            let deletions = source.section(section)?.into_iter().filter(Item::is_delete);
            let plan = self.request.plan;
            items.extend(deletions.filter(|item| self.policy.refusal(&plan.tables[item.table], item).is_none()));
            if items.len() > PARKED_MAX {
                return Ok(());
            }
        }
        items.sort_unstable_by_key(|item| item.ordinal);
        let mut steps = 0;
        while items.iter().any(Item::is_delete)
            && items.iter().any(|item| !item.is_delete())
            && steps < PARKED_STEPS_MAX
        {
            steps += items.len();
            let Some((culprit, _)) = self.try_together(&items, false)? else {
                self.deleted_together.extend(items.iter().filter(|item| item.is_delete()).map(|item| item.ordinal));
                return Ok(());
            };
            items.retain(|item| item.ordinal != culprit);
        }
        Ok(())
    }

    fn backwards(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let mut batch: Vec<Item> = Vec::new();
        for section in source.sections.clone().into_iter().rev().filter(|section| section.has_deletes) {
            let deletions = source.section(section)?.into_iter().rev().filter(Item::is_delete);
            for item in deletions.filter(|item| !self.deleted_together.contains(&item.ordinal)).collect::<Vec<_>>() {
                if batch.len() >= self.request.limits.batch_rows
                    || batch.last().is_some_and(|last| last.table != item.table)
                {
                    self.apply(&std::mem::take(&mut batch))?;
                }
                if self.admit(&item) {
                    batch.push(item);
                }
            }
        }
        self.apply(&batch)
    }

    fn again(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        for pass in 0..PASSES_MAX {
            let before = self.deferred.len();
            self.retry(source, pass % 2 == 1)?;
            if self.deferred.len() == before {
                break;
            }
        }
        if (1..=PARKED_MAX).contains(&self.deferred.len()) {
            self.together(source)?;
        }
        for (ordinal, (table, refusal)) in std::mem::take(&mut self.deferred) {
            self.refuse(ordinal, table, refusal);
        }
        Ok(())
    }

    /// Tries what is deferred once more.
    fn retry(&mut self, source: &mut SourceReader<'_>, backwards: bool) -> Result<(), Error> {
        let ordinals: Vec<u64> = std::mem::take(&mut self.deferred).into_keys().collect();
        let mut chunks: Vec<&[u64]> = ordinals.chunks(self.request.limits.batch_rows.max(1)).collect();
        if backwards {
            chunks.reverse();
        }
        for chunk in chunks {
            let mut items = source.pick(chunk)?;
            if backwards {
                items.reverse();
            }
            self.apply(&items)?;
        }
        Ok(())
    }

    /// Tries what is deferred in two steps, all of it at once. What remains deferred is refused for good.
    fn together(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let ordinals: Vec<u64> = self.deferred.keys().copied().collect();
        let mut items = source.pick(&ordinals)?;
        let mut steps = 0;
        while !items.is_empty() && steps < PARKED_STEPS_MAX {
            steps += items.len();
            let Some((culprit, refusal)) = self.try_together(&items, false)? else { return Ok(()) };
            items.retain(|item| item.ordinal != culprit);
            if let Some(deferred) = self.deferred.get_mut(&culprit) {
                deferred.1 = refusal;
            }
        }
        Ok(())
    }

    /// One attempt: the change at fault and why, or none, and then all of them are applied. Constraints that the database defers are
    /// checked at the end, and only where one is broken once more after `each` step, to find the change at fault.
    fn try_together(&mut self, items: &[Item], each: bool) -> Result<Option<(u64, Refusal)>, Error> {
        self.connection.savepoint()?;
        let mut batch = Batch::new(self.connection, self.request.plan, &self.policy, self.results.echo.marker());
        if let Err(error) = batch.run_in_two_steps(items, each) {
            let Error::Refused { refusal, .. } = error else { return Err(error) };
            let culprit = batch.at;
            self.connection.rollback_to_savepoint()?;
            return Ok(Some((culprit, refusal)));
        }
        let effects = std::mem::take(&mut batch.effects);
        if self.checking == Checking::EachBatch && !each {
            match self.connection.check_deferred() {
                Err(Error::Refused { .. }) => {
                    self.connection.rollback_to_savepoint()?;
                    return self.try_together(items, true);
                }
                checked => checked?,
            }
        }
        self.connection.release_savepoint()?;
        self.deferred.retain(|ordinal, _| items.binary_search_by_key(ordinal, |item| item.ordinal).is_err());
        self.keep(effects).map(|()| None)
    }

    /// Whether a change may be made at all; one that may not is refused.
    fn admit(&mut self, item: &Item) -> bool {
        let table = &self.request.plan.tables[item.table];
        let refusal = self.policy.refusal(table, item);
        let admitted = refusal.is_none();
        if let Some(refusal) = refusal {
            self.refuse(item.ordinal, item.table, refusal);
        }
        admitted
    }

    fn apply(&mut self, items: &[Item]) -> Result<(), Error> {
        let Some(first) = items.first() else { return Ok(()) };
        self.connection.savepoint()?;
        match self.attempt(items) {
            Ok(effects) => {
                self.connection.release_savepoint()?;
                self.keep(effects)
            }
            Err(Error::Refused { refusal, detail }) => {
                self.connection.rollback_to_savepoint()?;
                if self.expects_new && refusal.code == RefusalCode::Unique {
                    self.expects_new = false;
                    return self.apply(items);
                }
                if items.len() == 1 {
                    self.refused(first, refusal, &detail);
                    return Ok(());
                }
                let (one, other) = items.split_at(items.len() / 2);
                self.apply(one)?;
                self.apply(other)
            }
            Err(error) => Err(error),
        }
    }

    fn attempt(&mut self, items: &[Item]) -> Result<Effects, Error> {
        let mut batch = Batch::new(self.connection, self.request.plan, &self.policy, self.results.echo.marker());
        batch.expects_new = self.expects_new;
        let effects = batch.run(items)?;
        if self.checking == Checking::EachBatch {
            self.connection.check_deferred()?;
        }
        Ok(effects)
    }

    fn refused(&mut self, item: &Item, refusal: Refusal, detail: &str) {
        if matches!(refusal.code, RefusalCode::Unique | RefusalCode::ForeignKey) {
            self.deferred.insert(item.ordinal, (item.table, refusal));
        } else {
            tracing::info!(ordinal = item.ordinal, code = refusal.code.name(), detail, "a change was refused");
            self.refuse(item.ordinal, item.table, refusal);
        }
    }

    fn refuse(&mut self, ordinal: u64, table: usize, refusal: Refusal) {
        let table = &self.request.plan.tables[table].table.name;
        tracing::debug!(ordinal, table, code = refusal.code.name(), rule = refusal.message, "a change is set aside");
        self.results.counts.refused += 1;
        self.results.outcomes.insert(ordinal, Outcome::Refused(refusal));
    }

    fn keep(&mut self, effects: Effects) -> Result<(), Error> {
        let plan = self.request.plan;
        conflicts::write(self.connection, self.request, &effects.conflicts)?;
        for (ordinal, table, refusal) in effects.refused {
            self.refuse(ordinal, table, refusal);
        }
        self.results.echo.extend(effects.echo);
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
