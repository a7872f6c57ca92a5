//! Payloads of one kind of change, made as they came.

use std::collections::{BTreeMap, BTreeSet};

use headwater_protocol::message::{ChangeOp, RefusalCode};

use super::{CHANGES_MIN, PlainChanges, compares, is_plain, op_of};
use crate::Error;
use crate::backend::EncodedChanges;
use crate::upload::Checking;
use crate::upload::engine::Engine;
use crate::upload::source::{Payload, Section, SourceReader};

/// So many payloads of updates, and of deletions, of a table may have to be taken back before the others are not tried. Inserts are given
/// up at once: where one is not new, others are not.
const MISSES_MAX: usize = 3;

/// How many payloads of a table (its place in the plan) and of a kind may still have to be taken back; none where the database has a say
/// in what is stored.
#[derive(Debug, Default)]
pub(in crate::upload) struct Tries(BTreeMap<(usize, u8), usize>);

impl Engine<'_> {
    /// Makes the changes of a payload as it came, if that can be done; gives it back, with nothing done, if not. Deletions are left to the
    /// backward pass. `before` is what has to be made before them.
    pub(in crate::upload) fn apply_plain(
        &mut self,
        source: &mut SourceReader<'_>,
        payload: Payload,
        before: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<Option<Payload>, Error> {
        let place = payload.table;
        let Some(op) = op_of(&payload.bytes) else { return Ok(Some(payload)) };
        if !self.takes_plain(place, op)? {
            return Ok(Some(payload));
        }
        let changes = match source.plain(payload, &self.policy) {
            Ok(changes) => changes,
            Err(payload) => return Ok(Some(payload)),
        };
        if op == ChangeOp::Delete {
            return Ok(None);
        }
        before(self)?;
        if !self.change_plain(place, &changes)? {
            return source.take_back().map(Some);
        }
        source.keep_plain(source.sections.len() - 1);
        Ok(None)
    }

    /// Makes the deletions of a section, the `index`th, as they came; `false`: nothing was done.
    pub(in crate::upload) fn delete_plain(
        &mut self,
        source: &mut SourceReader<'_>,
        (index, section): (usize, Section),
        before: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let ordinals = section.first..section.first + section.changes;
        let waits = self.nulling.contains(&section.table)
            || self.has_misspelled(section.table)
            || self.settled.range(ordinals).next().is_some();
        if !section.is_deletions || waits || !self.takes_plain(section.table, ChangeOp::Delete)? {
            return Ok(false);
        }
        let Some(changes) = source.plain_again(section, &self.policy)? else { return Ok(false) };
        before(self)?;
        // What was made before may have found deletions that have to wait.
        if self.nulling.contains(&section.table) || !self.change_plain(section.table, &changes)? {
            return Ok(false);
        }
        source.keep_plain(index);
        Ok(true)
    }

    /// `false`: nothing was done.
    fn change_plain(&mut self, place: usize, changes: &PlainChanges) -> Result<bool, Error> {
        let compares = compares(&self.request.plan.tables[place]);
        let Some(refused) = self.attempt(|batch| batch.change_plain(place, changes, compares))? else {
            return Ok(true);
        };
        if changes.op == ChangeOp::Insert {
            self.expects_new &= refused.refusal.code != RefusalCode::Unique;
        }
        self.tries.0.entry((place, changes.op as u8)).and_modify(|left| *left = left.saturating_sub(1));
        Ok(false)
    }

    /// Whether changes of a kind to a table may go straight from their frames: inserts where they are likely to be new, and all where nobody
    /// else has a say.
    fn takes_plain(&mut self, place: usize, op: ChangeOp) -> Result<bool, Error> {
        if self.checking != Checking::AtTheEnd || self.request.end.changes < CHANGES_MIN {
            return Ok(false);
        }
        if op == ChangeOp::Insert && !self.expects_new {
            return Ok(false);
        }
        if let Some(left) = self.tries.0.get(&(place, op as u8)) {
            return Ok(*left > 0);
        }
        let table = &self.request.plan.tables[place];
        let left = match is_plain(table) && self.connection.takes_plain(table, op)? {
            false => 0,
            true if op == ChangeOp::Insert => 1,
            true => MISSES_MAX,
        };
        self.tries.0.insert((place, op as u8), left);
        Ok(left > 0)
    }

    /// Makes sure of what was changed straight from its frames, and remembers what need not be sent back.
    pub(in crate::upload) fn settle_plain(&mut self, source: &mut SourceReader<'_>) -> Result<(), Error> {
        let plain: Vec<_> = source.sections.iter().copied().filter(|section| section.is_plain).collect();
        if plain.is_empty() {
            return Ok(());
        }
        let tables: BTreeSet<usize> = plain.iter().map(|section| section.table).collect();
        let tables: Vec<_> = tables.into_iter().map(|place| &self.request.plan.tables[place]).collect();
        if !self.connection.stayed_plain(&tables)? {
            let names = tables.iter().map(|table| table.table.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::Retry { detail: format!("one of {names} was altered just before"), broken: false });
        }
        let echo = &mut self.results.echo;
        if plain.len() == source.sections.len() {
            for table in tables {
                echo.add_whole(table);
            }
            return Ok(());
        }
        let mut scratch = Vec::new();
        for section in plain {
            let (table, payload) = (&self.request.plan.tables[section.table], source.payload(section)?);
            let Some(op) = op_of(&payload) else { continue };
            let (marker, mut marks) = (echo.marker(), Vec::new());
            EncodedChanges::new(op, &payload, section.changes as usize).read(&table.types, |change| {
                marks.push(marker.changed(table, &change, &mut scratch));
                Ok::<_, Error>(())
            })?;
            echo.extend(marks);
        }
        Ok(())
    }
}
