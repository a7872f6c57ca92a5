//! The steps of a batch that the user's own scripts take the place of.

use std::collections::HashMap;

use headwater_model::script::{Script, Step};
use headwater_model::{ConflictRule, Side};
use headwater_protocol::Row;
use headwater_protocol::message::ConflictEnd;

use super::batch::Batch;
use super::park::Style;
use super::policy::refusal;
use super::source::Item;
use crate::judge::{Action, Judgement, judge_counting, same};
use crate::keys::key_bytes_of;
use crate::scripts::{Given, Prepared};
use crate::{Error, TablePlan};

/// A change, the stored row of its key, and what is to become of the two.
pub(super) struct Found<'i> {
    pub(super) item: &'i Item,
    pub(super) stored: Option<Row>,
    pub(super) judgement: Judgement,
}

impl Batch<'_> {
    /// Runs a script for each row.
    pub(super) fn run_script<'g>(
        &mut self,
        table: &TablePlan,
        script: &Script,
        rows: impl Iterator<Item = Given<'g>>,
    ) -> Result<(), Error> {
        let prepared = Prepared::new(self.connection.dialect(), table, script, false)?;
        prepared.run_each(self.connection, &self.policy.actor, rows)
    }

    /// The stored rows of these changes' keys as a script finds them, by the bytes of their keys.
    pub(super) fn fetch_by_script(
        &mut self,
        table: &TablePlan,
        script: &Script,
        items: &[&Item],
    ) -> Result<HashMap<Vec<u8>, Row>, Error> {
        let prepared = Prepared::new(self.connection.dialect(), table, script, true)?;
        let all = items.iter().map(|item| Given { new: Some(item.change.image()), ..Given::default() });
        let rows = prepared.row_of_each(self.connection, &self.policy.actor, all)?;
        let mut found = HashMap::with_capacity(items.len());
        for (item, row) in items.iter().zip(rows) {
            if let Some(row) = row {
                check_key(table, Step::UploadFetch, item, &row)?;
                found.insert(item.key.clone(), row);
            }
        }
        Ok(found)
    }

    /// Judges changes against the stored rows of their keys; where both sides have changed a row, the table's script says what becomes of
    /// it, if there is one.
    pub(super) fn judged<'i>(
        &mut self,
        table: &TablePlan,
        found: Vec<(&'i Item, Option<Row>)>,
    ) -> Result<Vec<Found<'i>>, Error> {
        let script = table.table.script(Step::ResolveConflict);
        let rule = script.map_or(table.table.conflict, |_| ConflictRule::Merge(Side::Consolidated));
        let judged = |(item, stored): (&'i Item, Option<Row>)| {
            let judgement = judge_counting(rule, &table.table, &table.types, &item.change, stored.as_ref());
            Found { item, stored, judgement }
        };
        let mut found: Vec<Found<'_>> = found.into_iter().map(judged).collect();
        if let Some(script) = script {
            self.resolve(table, script, &mut found)?;
        }
        Ok(found)
    }

    /// Has a script say what becomes of those that both sides have changed.
    fn resolve(&mut self, table: &TablePlan, script: &Script, found: &mut [Found<'_>]) -> Result<(), Error> {
        let prepared = Prepared::new(self.connection.dialect(), table, script, false)?;
        let both = |found: &&mut Found<'_>| {
            found.judgement.conflict.is_some() && found.item.change.new.is_some() && found.stored.is_some()
        };
        let contested: Vec<&mut Found<'_>> = found.iter_mut().filter(both).collect();
        let all = contested.iter().map(|found| Given {
            new: found.item.change.new.as_deref(),
            old: found.item.change.old.as_deref(),
            stored: found.stored.as_deref(),
            ..Given::default()
        });
        let rows = prepared.row_of_each(self.connection, &self.policy.actor, all)?;
        for (found, row) in contested.into_iter().zip(rows) {
            let Some(row) = row else {
                found.judgement = Judgement { action: Action::Keep, conflict: Some(ConflictEnd::Consolidated) };
                continue;
            };
            check_key(table, Step::ResolveConflict, found.item, &row)?;
            let is_stored = found.stored.as_ref().is_some_and(|stored| same(&row, stored));
            let action = if is_stored { Action::Keep } else { Action::Update(row) };
            found.judgement = Judgement { action, conflict: Some(ConflictEnd::Merged) };
        }
        Ok(())
    }

    /// In how many steps the rows of a table are written: where a script takes part, in one.
    pub(super) fn parked_of(&self, table: &TablePlan) -> Option<Style> {
        self.parked.filter(|_| !table.table.is_uploaded_by_scripts())
    }
}

fn check_key(table: &TablePlan, step: Step, item: &Item, row: &Row) -> Result<(), Error> {
    if key_bytes_of(table, row) == item.key {
        return Ok(());
    }
    let message = format!("script {} of table {} gives a row of another key", step.name(), table.table.name);
    let code = headwater_protocol::message::RefusalCode::Trigger;
    Err(Error::Refused { refusal: refusal(code, message.clone()), detail: message })
}
