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
use crate::judge::{Action, Judgement, judge, same};
use crate::keys::key_bytes_of;
use crate::scripts::{Given, Prepared};
use crate::{Error, TablePlan};

impl Batch<'_> {
    /// Runs a script for each row.
    pub(super) fn run_script<'g>(
        &mut self,
        table: &TablePlan,
        script: &Script,
        rows: impl Iterator<Item = Given<'g>>,
    ) -> Result<(), Error> {
        let prepared = Prepared::new(self.connection.dialect(), table, script, false)?;
        for given in rows {
            prepared.run(self.connection, &self.policy.actor, &given)?;
        }
        Ok(())
    }

    /// The stored rows of these changes' keys as a script finds them, by the bytes of their keys.
    pub(super) fn fetch_by_script(
        &mut self,
        table: &TablePlan,
        script: &Script,
        items: &[&Item],
    ) -> Result<HashMap<Vec<u8>, Row>, Error> {
        let prepared = Prepared::new(self.connection.dialect(), table, script, true)?;
        let mut found = HashMap::with_capacity(items.len());
        for item in items {
            let given = Given { new: Some(item.change.image()), ..Given::default() };
            if let Some(row) = prepared.row(self.connection, &self.policy.actor, &given)? {
                check_key(table, Step::UploadFetch, item, &row)?;
                found.insert(item.key.clone(), row);
            }
        }
        Ok(found)
    }

    /// Judges a change; where both sides have changed the row, the table's script says what becomes of it, if there is one.
    pub(super) fn judged(&mut self, table: &TablePlan, item: &Item, stored: Option<&Row>) -> Result<Judgement, Error> {
        let Some(script) = table.table.script(Step::ResolveConflict) else {
            return Ok(judge(table.table.conflict, &table.types, &item.change, stored));
        };
        let judgement = judge(ConflictRule::Merge(Side::Consolidated), &table.types, &item.change, stored);
        let (Some(_), Some(new), Some(stored)) = (judgement.conflict, &item.change.new, stored) else {
            return Ok(judgement);
        };
        let prepared = Prepared::new(self.connection.dialect(), table, script, false)?;
        let given = Given { new: Some(new), old: item.change.old.as_deref(), stored: Some(stored), ..Given::default() };
        let kept = Judgement { action: Action::Keep, conflict: Some(ConflictEnd::Consolidated) };
        let Some(row) = prepared.row(self.connection, &self.policy.actor, &given)? else { return Ok(kept) };
        check_key(table, Step::ResolveConflict, item, &row)?;
        let action = if same(&row, stored) { Action::Keep } else { Action::Update(row) };
        Ok(Judgement { action, conflict: Some(ConflictEnd::Merged) })
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
