//! Applying changes that wait for one another, and finding those that nothing helps.
//!
//! Components of a [`Tangle`] are tried together, as many as fit into a batch; if that is refused, fewer, in the end one by one. A
//! component that is refused by itself is taken apart into its units, and they are tried in their order. So what depends on a change at
//! fault is refused with it, and all else is made. Where constraints are looked at after each batch, families are tried before their
//! components.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use headwater_protocol::Row;
use headwater_protocol::message::RefusalCode;

use super::Checking;
use super::batch::runs;
use super::engine::{Engine, Refused, TANGLED_MAX};
use super::park::{Steps, Style};
use super::source::{Item, SourceReader};
use super::tangle::{Images, Level, Tangle};
use crate::judge::{Action, judge_counting};
use crate::keys::key_bytes_of;
use crate::{Error, TablePlan};

/// The most bytes of changes that are untangled at once.
const BYTES_MAX: usize = 64 << 20;

impl Engine<'_> {
    /// Tries what is deferred. Too much of it is taken in parts, each by itself.
    pub(super) fn untangle(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        self.may_help = false;
        let ordinals: Vec<u64> = self.deferred.keys().copied().collect();
        let mut rest = ordinals.as_slice();
        while !rest.is_empty() {
            let (some, later) = rest.split_at(fitting(source, rest));
            rest = later;
            let items = source.pick(some)?;
            let tangle = Tangle::new(self.request.plan, &items, &self.images(&items)?);
            self.settle_all(&tangle, |_| true)?;
        }
        Ok(())
    }

    /// Tries what is deferred, and with it the deletions it has to do with: they may free a value, and a cascade must not take a row
    /// that leaves its parent.
    pub(super) fn untangle_with_deletions(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let ordinals: Vec<u64> = self.deferred.keys().copied().collect();
        if fitting(source, &ordinals) < ordinals.len() {
            return self.untangle(source);
        }
        let mut bytes: usize = ordinals.iter().map(|ordinal| source.bytes_of(*ordinal)).sum();
        let mut items = source.pick(&ordinals)?;
        let waiting: HashSet<u64> = ordinals.into_iter().collect();
        let plan = self.request.plan;
        for section in source.sections.clone().into_iter().filter(|section| section.has_deletes) {
            let deletions = source.section(section)?.into_iter().filter(Item::is_delete);
            items.extend(deletions.filter(|item| self.refusal(item).is_none()));
            bytes += source.payload_bytes;
            if items.len() > TANGLED_MAX || bytes > BYTES_MAX {
                return self.untangle(source);
            }
        }
        self.may_help = false;
        items.sort_unstable_by_key(|item| item.ordinal);
        let tangle = Tangle::new(plan, &items, &self.images(&items)?);
        self.settle_all(&tangle, |item| waiting.contains(&item.ordinal))
    }

    /// What each of these changes would make of the row that is stored now.
    fn images(&mut self, items: &[Item]) -> Result<Vec<Images>, Error> {
        let plan = self.request.plan;
        let all: Vec<&Item> = items.iter().collect();
        let mut images = Vec::with_capacity(items.len());
        for run in runs(&all).flat_map(|run| run.chunks(self.request.limits.batch_rows.max(1))) {
            let table = &plan.tables[run[0].table];
            let keys: Vec<Row> = run.iter().map(|item| table.key_of(item.change.image())).collect();
            let rows = self.stored(table, &keys)?;
            let mut stored: HashMap<Vec<u8>, Row> =
                rows.into_iter().map(|row| (key_bytes_of(table, &row), row)).collect();
            for item in run {
                let before = stored.remove(&item.key);
                let (rule, of) = (table.table.conflict, &table.table);
                let after = match judge_counting(rule, of, &table.types, &item.change, before.as_ref()).action {
                    Action::Keep | Action::Refuse(_) => before.clone(),
                    Action::Insert(row) | Action::Update(row) => Some(row),
                    Action::Delete => None,
                };
                images.push(Images { before, after });
            }
        }
        Ok(images)
    }

    /// The rows that are stored; none of a table that can't be read, whose changes are refused when they are tried.
    fn stored(&mut self, table: &TablePlan, keys: &[Row]) -> Result<Vec<Row>, Error> {
        self.connection.savepoint()?;
        match self.connection.fetch(table, keys, true) {
            Ok(rows) => {
                self.connection.release_savepoint()?;
                Ok(rows)
            }
            Err(error) => {
                let (_, detail) = self.isolation.refusal(error)?;
                tracing::debug!(table = table.table.name, detail, "a table can't be read");
                self.connection.rollback_to_savepoint()?;
                Ok(Vec::new())
            }
        }
    }

    /// Tries all that has to do with changes of which this is so.
    fn settle_all(&mut self, tangle: &Tangle<'_>, is_wanted: impl Fn(&Item) -> bool) -> Result<(), Error> {
        let level = if self.checking == Checking::EachBatch { Level::Family } else { Level::Component };
        self.settle(tangle, level, &tangle.stretches_with(level, is_wanted))
    }

    fn settle(&mut self, tangle: &Tangle<'_>, level: Level, stretches: &[Range<usize>]) -> Result<(), Error> {
        let mut rest = stretches;
        let mut size = stretches.len();
        while let Some(first) = rest.first() {
            size = self.batch(tangle, &rest[..size.clamp(1, rest.len())]);
            let (some, later) = rest.split_at(size);
            let changes = tangle.changes(some);
            let Some(refused) = self.make(&changes, Style::Free)? else {
                (rest, size) = (later, size * 2);
                continue;
            };
            if size > 1 {
                size /= 2;
                continue;
            }
            match tangle.parts(level, first) {
                Some((below, parts)) if first.len() > 1 => self.settle(tangle, below, &parts)?,
                _ => self.settle_unit(&changes, refused)?,
            }
            rest = later;
        }
        Ok(())
    }

    /// How many of the first stretches fit into a batch; at least one.
    fn batch(&self, tangle: &Tangle<'_>, stretches: &[Range<usize>]) -> usize {
        let mut changes = 0;
        let fits = |units: &&Range<usize>| {
            changes += tangle.len(units);
            changes <= self.request.limits.batch_rows
        };
        stretches.iter().take_while(fits).count().max(1)
    }

    /// A unit is refused. Of a circle, other made-up values may be taken; otherwise each of its changes is tried by itself, for the
    /// reason of its own.
    fn settle_unit(&mut self, changes: &[(&Item, Steps)], refused: Refused) -> Result<(), Error> {
        if let [(item, _)] = changes {
            self.settled.extend(item.is_delete().then_some(item.ordinal));
            self.refused(item, refused);
            return Ok(());
        }
        let mut reasons = vec![refused];
        for style in Style::AFTER_FREE {
            match self.make(changes, style)? {
                Some(refused) => reasons.push(refused),
                None => return Ok(()),
            }
        }
        // The value can't be given up for a moment: rows that the upload need not know refer to it.
        let held = reasons.into_iter().map(|refused| refused.refusal).find(|why| why.code == RefusalCode::ForeignKey);
        for change in changes {
            if let Some(mut refused) = self.make(&[(change.0, Steps::One)], Style::Free)? {
                if let (Some(held), RefusalCode::Unique) = (&held, refused.refusal.code) {
                    refused.refusal.code = held.code;
                    refused.refusal.message =
                        format!("{}: rows refer to a unique value that another row takes", held.message);
                }
                self.settled.extend(change.0.is_delete().then_some(change.0.ordinal));
                self.refused(change.0, refused);
            }
        }
        Ok(())
    }

    /// One attempt at all of these.
    fn make(&mut self, changes: &[(&Item, Steps)], style: Style) -> Result<Option<Refused>, Error> {
        let refused = self.attempt(|batch| batch.run_together(changes, style))?;
        if refused.is_none() {
            for (item, _) in changes.iter().filter(|(item, _)| !self.waiting.contains(&item.ordinal)) {
                self.deferred.remove(&item.ordinal);
                self.settled.extend(item.is_delete().then_some(item.ordinal));
            }
        }
        Ok(refused)
    }
}

/// How many of these changes are few enough to be held in memory; at least one.
fn fitting(source: &SourceReader<'_>, ordinals: &[u64]) -> usize {
    let mut bytes = 0;
    let fits = |ordinal: &&u64| {
        bytes += source.bytes_of(**ordinal);
        bytes <= BYTES_MAX
    };
    ordinals.iter().take(TANGLED_MAX).take_while(fits).count().max(1)
}
