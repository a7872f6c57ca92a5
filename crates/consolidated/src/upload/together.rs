//! Changes that stand in one another's way, made together.
//!
//! ```text
//! 1. deletions in two steps     their unique values and references are given up     tables backwards
//! 2. rows                       those in two steps with made-up unique values       tables forwards
//! 3. rows in two steps          as they are to be                                   tables forwards
//! 4. deletions                                                                      tables backwards
//! ```
//!
//! Deletions come last, so that no cascade takes a row that leaves its parent. All of it is made by statements on sets of rows.

use std::collections::BTreeMap;

use headwater_protocol::Row;

use super::batch::{Batch, Doomed, Effects, runs};
use super::park::{Steps, Style, park};
use super::source::Item;
use crate::{Error, TablePlan};

impl Batch<'_> {
    /// Makes changes that stand in the order of what they need, each in so many steps. [`Error::Refused`]: one of them was, and the
    /// caller goes back to the savepoint.
    pub(super) fn run_together(mut self, changes: &[(&Item, Steps)], style: Style) -> Result<Effects, Error> {
        let chosen = |table: usize, is_delete: bool, is_parked: bool| -> Vec<&Item> {
            let is_chosen = |(item, steps): &&(&Item, Steps)| {
                item.table == table && item.is_delete() == is_delete && (*steps != Steps::One) == is_parked
            };
            changes.iter().filter(is_chosen).map(|(item, _)| *item).collect()
        };
        self.steps = changes.iter().map(|(item, steps)| (item.ordinal, *steps)).collect();
        let mut tables: Vec<usize> = changes.iter().map(|(item, _)| item.table).collect();
        tables.sort_unstable();
        tables.dedup();
        let plan = self.plan;
        let mut doomed: BTreeMap<usize, Vec<Doomed<'_>>> = BTreeMap::new();
        for table in tables.iter().rev() {
            for run in runs(&chosen(*table, true, true)) {
                doomed.entry(*table).or_default().extend(self.give_up(&plan.tables[*table], run, style)?);
            }
        }
        let mut second: Vec<(usize, Vec<Row>)> = Vec::new();
        for table in &tables {
            for (parked, is_parked) in [(Some(style), true), (None, false)] {
                self.parked = parked;
                for run in runs(&chosen(*table, false, is_parked)) {
                    self.upserts(&plan.tables[*table], run)?;
                    second.push((*table, std::mem::take(&mut self.second_step)));
                }
            }
        }
        for (table, rows) in &second {
            self.update(&plan.tables[*table], &rows.iter().collect::<Vec<_>>())?;
        }
        for table in tables.iter().rev() {
            let mut of_table = Vec::new();
            for run in runs(&chosen(*table, true, false)) {
                of_table.extend(self.doom(&plan.tables[*table], run)?);
            }
            // Rows that refer to one another go by one statement.
            of_table.extend(doomed.remove(table).unwrap_or_default());
            self.delete_doomed(&plan.tables[*table], of_table)?;
        }
        Ok(self.effects)
    }

    /// The first step of deletions: the rows without their unique values and references.
    fn give_up<'i>(&mut self, table: &TablePlan, items: &[&'i Item], style: Style) -> Result<Vec<Doomed<'i>>, Error> {
        let doomed = self.doom(table, items)?;
        if table.table.is_uploaded_by_scripts() {
            return Ok(doomed); // a script sees a row once, as it is
        }
        let mut rows: Vec<Row> = Vec::new();
        for doomed in &doomed {
            let steps = self.steps_of(doomed.item);
            let parked =
                doomed.stored.as_ref().map(|stored| (park(table, stored, Some(stored), (steps, style)), stored));
            rows.extend(parked.filter(|(row, stored)| row != *stored).map(|(row, _)| row));
        }
        self.update(table, &rows.iter().collect::<Vec<_>>())?;
        Ok(doomed)
    }
}
