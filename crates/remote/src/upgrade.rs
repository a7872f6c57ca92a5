//! A remote that goes on under another version of its model.
//!
//! | step | |
//! |---|---|
//! | sync under the old version | what is pending goes up as it was made, a frozen upload gets its receipt. Where no server has the old version any more, one that has the new one says whether the frozen upload was applied ([`unanswered`]) |
//! | download under the new version | tables that differ come whole, others from their watermarks; it is staged, and the file is as it was |
//! | one transaction | [`change`] makes the tables anew and rewrites what is kept of them, then the download is applied |
//! | sync under the new version | what has become pending since |
//!
//! So a crash leaves a remote of the old version or one of the new, never one between, and the application never sees a column whose
//! values have not come yet.

pub(crate) mod change;
mod convert;
pub(crate) mod own;
mod unanswered;

use std::collections::HashMap;

pub(crate) use convert::{Converter, Fresh, Gone};
use headwater_model::tracking::layout;
use headwater_model::{Direction, Model, remote_sql};
use headwater_protocol::message::{ErrorCode, ExtendedMark, KeyRanges, WATERMARK_BYTES_MAX, Watermarks};

use crate::error::Error;
use crate::plan::{Plan, TablePlan};
use crate::remote::Remote;
use crate::sync::{SyncOptions, SyncReport};

/// What a change of version did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// The version before.
    pub from: u32,
    /// The version now.
    pub to: u32,
    /// Tables that were made anew and came whole, by name. [`SyncReport::afresh`] counts the others that a server sent whole.
    pub whole: Vec<String>,
    /// Tables that the new version does not have, and that are gone.
    pub gone: Vec<String>,
    /// The sync under the old version; `None`: no server has it any more.
    pub before: Option<SyncReport>,
    /// The sync that brought the new version.
    pub sync: SyncReport,
}

/// What becomes of a table of the old version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays as it is, under this number.
    Same(u32),
    /// It gets nullable columns from this place on, and keeps its rows under this number: those with a value there come.
    Extended {
        /// In the new version.
        number: u32,
        /// How many columns it has had.
        before: u32,
    },
    /// It is made anew under this number, and comes whole.
    Remade(u32),
    /// The new version does not have it.
    Gone,
}

/// A change from one version to another.
#[derive(Debug)]
pub(crate) struct Change {
    /// The new version.
    pub(crate) plan: Plan,
    /// By the old version's table number.
    pub(crate) fates: Vec<Fate>,
}

impl Remote {
    /// Goes on under a newer version of the remote's model, with what is pending kept: syncs under the old version, has what differs
    /// come down under the new one, and changes the file's tables and applies the download in one transaction.
    ///
    /// After an error the file is of the old version, in full. [`Error::Configuration`] names what keeps it from the new one.
    pub fn upgrade(&mut self, model: &Model, options: &mut SyncOptions<'_>) -> Result<Upgraded, Error> {
        let done = self.upgrade_to(model, options);
        self.judged(done)
    }

    fn upgrade_to(&mut self, model: &Model, options: &mut SyncOptions<'_>) -> Result<Upgraded, Error> {
        self.reread()?;
        let change = Change::new(&self.plan, model)?;
        let before = match self.sync(options) {
            Ok(report) => Some(report),
            Err(Error::Failed(failure)) if failure.code() == Some(ErrorCode::ModelUnknown) => {
                self.settle(&change, options)?;
                None
            }
            Err(error) => return Err(error),
        };
        change::check(&self.database.connection, &self.plan, &change)?;
        let names = |fate: fn(&Fate) -> bool| {
            let tables = self.plan.tables.iter().zip(&change.fates).filter(|(_, is)| fate(is));
            tables.map(|(table, _)| table.table.name.clone()).collect::<Vec<_>>()
        };
        let (from, to) = (self.plan.model.version, model.version);
        let (whole, gone) = (names(|fate| matches!(fate, Fate::Remade(_))), names(|fate| *fate == Fate::Gone));
        let sync = self.sync_with(options, Some(change))?;
        Ok(Upgraded { from, to, whole, gone, before, sync })
    }
}

impl Change {
    pub(crate) fn new(old: &Plan, model: &Model) -> Result<Change, Error> {
        let plan = Plan::served(model)?;
        let new = &plan.model;
        let now = &old.model;
        if new.name != now.name {
            return Err(refused(format!(
                "the remote is one of model {:?}, expected a version of that, not of {:?}",
                now.name, new.name
            )));
        }
        if new.version <= now.version {
            return Err(refused(format!(
                "the remote is at version {} of {:?}, expected a newer one than that, not {}",
                now.version, now.name, new.version
            )));
        }
        let fates = old.tables.iter().map(|table| fate(old, table, &plan)).collect::<Result<Vec<_>, _>>()?;
        let fates = fates.iter().map(|fate| with_those_above(*fate, &fates, &plan)).collect();
        Ok(Change { plan, fates })
    }

    /// The fingerprint under which its download is staged. A table that keeps its rows gets only some rows by it, so a program that would make
    /// the table anew must not apply it.
    pub(crate) fn staged_under(&self) -> u64 {
        let is_extended = |fate: &Fate| matches!(fate, Fate::Extended { .. });
        if self.fates.iter().any(is_extended) { !self.plan.fingerprint } else { self.plan.fingerprint }
    }

    /// The number that a table of the old version has in the new one.
    pub(crate) fn number(&self, old: u32) -> Option<u32> {
        match self.fates.get(old as usize)? {
            Fate::Same(number) | Fate::Extended { number, .. } | Fate::Remade(number) => Some(*number),
            Fate::Gone => None,
        }
    }

    /// The tables that the old version does not have.
    pub(crate) fn added(&self) -> impl Iterator<Item = &TablePlan> {
        let is_of = |new: u32| (0..self.fates.len() as u32).any(|old| self.number(old) == Some(new));
        self.plan.tables.iter().filter(move |table| !is_of(table.number))
    }

    /// What has been seen of the tables that stay, but for columns that are new. Where a server does not know how to tell these, it takes the
    /// watermark for a stranger's, and the table comes whole.
    pub(crate) fn watermarks(&self, mut seen: Watermarks) -> Watermarks {
        let (marks, mut extended) = (seen.marks.clone(), HashMap::new());
        seen.entries.retain_mut(|entry| match self.fates.get(entry.table as usize) {
            Some(Fate::Same(number)) => {
                entry.table = *number;
                true
            }
            Some(Fate::Extended { number, before }) => {
                let Some(sealed) = marks.get(entry.mark as usize) else { return false };
                let columns = self.plan.table(*number).map_or(0, |table| table.types.len() as u32);
                let mark = ExtendedMark { columns: (*before..columns).collect(), sealed: sealed.clone() }.to_bytes();
                if mark.len() > WATERMARK_BYTES_MAX {
                    return false;
                }
                entry.mark = *extended.entry((entry.mark, *number)).or_insert_with(|| {
                    seen.marks.push(mark);
                    seen.marks.len() as u32 - 1
                });
                entry.table = *number;
                true
            }
            _ => false,
        });
        seen
    }

    /// What is left of the key ranges.
    pub(crate) fn key_ranges(&self, mut left: KeyRanges) -> KeyRanges {
        left.ranges.retain_mut(|range| self.number(range.table).map(|number| range.table = number).is_some());
        left
    }
}

fn fate(old: &Plan, table: &TablePlan, new: &Plan) -> Result<Fate, Error> {
    let named = |other: &&TablePlan| other.table.name.eq_ignore_ascii_case(&table.table.name);
    let Some(other) = new.tables.iter().find(named) else {
        return Ok(Fate::Gone);
    };
    let key = |table: &TablePlan| {
        let column = |column: &headwater_model::Column| format!("{} {}", column.name, column.kind);
        table.table.key_columns().map(column).collect::<Vec<_>>().join(", ")
    };
    if key(table) != key(other) {
        return Err(refused(format!(
            "the key of table {:?} is ({}), and in version {} ({}): a table keeps its key; give the other one another name",
            table.table.name,
            key(table),
            new.model.version,
            key(other)
        )));
    }
    let made = |plan: &Plan, table: &TablePlan| remote_sql::create_table_and_log(&plan.model, &table.table);
    // What has been seen of a table says nothing of what is noted of it in another way.
    let noted = |plan: &Plan, table: &TablePlan| layout(&plan.model, &table.table);
    let is_same = table.table.columns == other.table.columns
        && table.table.direction == other.table.direction
        && made(old, table) == made(new, other)
        && noted(old, table) == noted(new, other);
    if is_same {
        return Ok(Fate::Same(other.number));
    }
    let before = table.table.columns.len();
    let mut shorter = other.table.clone();
    let added = shorter.columns.split_off(before.min(shorter.columns.len()));
    // The same table otherwise, whose places say the same in both; and the same tables around it, as far as it names them.
    let is_extended = table.table.direction != Direction::Upload
        && !added.is_empty()
        && added.iter().all(|column| column.nullable)
        && shorter == table.table
        && made(old, table) == remote_sql::create_table_and_log(&new.model, &shorter)
        && noted(old, table) == noted(new, other);
    Ok(if is_extended {
        Fate::Extended { number: other.number, before: before as u32 }
    } else {
        Fate::Remade(other.number)
    })
}

/// A table whose rows lie where those of a table do that is made anew is made anew too: where they lay could not be told any more, and so
/// neither which of them go with a partition that is left.
fn with_those_above(fate: Fate, fates: &[Fate], plan: &Plan) -> Fate {
    let (Fate::Same(number) | Fate::Extended { number, .. }) = fate else { return fate };
    let mut above = std::iter::successors(plan.table(number), |table| plan.parent(table)).skip(1);
    let stays = |table: &TablePlan| {
        let is = |fate: &Fate| matches!(fate, Fate::Same(n) | Fate::Extended { number: n, .. } if *n == table.number);
        fates.iter().any(is)
    };
    if above.all(stays) { fate } else { Fate::Remade(number) }
}

pub(crate) fn refused(what: String) -> Error {
    Error::Configuration { what }
}
