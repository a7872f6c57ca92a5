//! Applying a receipt: what became of each change of the frozen upload, in one transaction.
//!
//! | outcome | the log | else |
//! |---|---|---|
//! | applied | entry leaves | a held row of the key is out of date and goes |
//! | conflict | entry leaves | a record for people; its result is filled in when the row comes down |
//! | refused | entry is open again, marked | a note among the changes set aside |
//!
//! A key that was changed again since the cut keeps its newer open entry. Its old image is the uploaded row, which is what the
//! consolidated database has; unless the upload's change was refused: then the old image of that stays the first.

use std::ops::ControlFlow;

use headwater_model::Direction;
use headwater_protocol::Value;
use headwater_protocol::message::{Change, ConflictEnd, Outcome, Receipt, Refusal, UploadEnd};
use rusqlite::{Connection, params, params_from_iter};

use crate::cut::{UPLOAD_BYTES_MAX, forget_frames, frozen_changes, reopen, set_aside_mark};
use crate::database::Database;
use crate::dependents;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, readable};
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;
use crate::sent;
use crate::state::State;
use crate::strays;
use crate::unsent;

/// How many conflicts are kept; older ones are forgotten.
const CONFLICTS_MAX: i64 = 10_000;

/// What a receipt said, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) applied: u64,
    pub(crate) conflicts: u64,
    pub(crate) refused: u64,
}

/// Applies the receipt of the frozen upload.
pub(crate) fn apply(database: &Database, plan: &Plan, receipt: &Receipt, now: &str) -> Result<Outcomes, Error> {
    database.write_lazily("applying a receipt", |connection| {
        let Some(end) = State::read(connection)?.frozen else {
            return Err(Error::Unexpected { what: "a receipt came, but no upload is on its way".to_owned() });
        };
        if (receipt.sequence, receipt.changes) != (end.sequence, end.changes) {
            let what = format!(
                "the receipt is of upload {} with {} changes, expected {} with {}",
                receipt.sequence, receipt.changes, end.sequence, end.changes
            );
            return Err(Error::Unexpected { what });
        }
        let is_known = State::read(connection)?.incarnation != [0; 16];
        let (rows, counts) = (Rows::new(connection), Outcomes::default());
        let mut applying = Applying { rows, plan, sequence: end.sequence, is_known, now, counts };
        applying.outcomes(&receipt.outcomes)?;
        dependents::name(&applying.rows, plan)?;
        applying.counts.applied = end.changes - applying.counts.conflicts - applying.counts.refused;
        let has_strays = is_known && strays::is_marked(&applying.rows, end.sequence)?;
        for table in plan.tracked() {
            if has_strays {
                strays::note(&applying.rows, plan, table, end.sequence)?;
            }
            applying.release_held(table)?;
            let sql = format!("DELETE FROM {} WHERE \"upload\" = ?", table.log());
            connection.execute(&sql, [end.sequence as i64]).while_doing("cutting the log")?;
        }
        sent::keep(connection, &end, receipt)?;
        finish(connection, end.sequence)?;
        Ok(applying.counts)
    })
}

/// Sets aside the only change of the frozen upload, which no server takes. No number is used.
pub(crate) fn refuse_alone(
    connection: &Connection,
    plan: &Plan,
    end: &UploadEnd,
    refusal: Refusal,
    now: &str,
) -> Result<(), Error> {
    let rows = Rows::new(connection);
    let counts = Outcomes::default();
    let mut applying = Applying { rows, plan, sequence: end.sequence, is_known: false, now, counts };
    applying.outcomes(&[(0, Outcome::Refused(refusal))])?;
    forget_frames(connection, end.sequence)?;
    State::set_frozen(connection, None)
}

fn finish(connection: &Connection, sequence: u64) -> Result<(), Error> {
    let sql = "DELETE FROM \"hw_conflict\" WHERE \"id\" <= (SELECT max(\"id\") FROM \"hw_conflict\") - ?";
    connection.execute(sql, [CONFLICTS_MAX]).while_doing("forgetting old conflicts")?;
    State::set_frozen(connection, None)?;
    State::set_upload_refused(connection, None)?;
    // What was cut smaller than usual has passed: the next may be larger again.
    let cut_bytes_max = State::read(connection)?.cut_bytes_max;
    if cut_bytes_max < UPLOAD_BYTES_MAX {
        State::set_cut_bytes_max(connection, (2 * cut_bytes_max).clamp(2, UPLOAD_BYTES_MAX))?;
    }
    State::set_upload_sequence(connection, sequence)
}

struct Applying<'a> {
    rows: Rows<'a>,
    plan: &'a Plan,
    sequence: u64,
    /// Whether anything is known of what the remote holds: it does not start afresh.
    is_known: bool,
    now: &'a str,
    counts: Outcomes,
}

impl Applying<'_> {
    /// Walks through the frozen changes to find those that the outcomes name.
    fn outcomes(&mut self, outcomes: &[(u64, Outcome)]) -> Result<(), Error> {
        if outcomes.is_empty() {
            return Ok(());
        }
        let (connection, plan) = (self.rows.connection, self.plan);
        let mut outcomes = outcomes.iter().peekable();
        let mut ordinals = 0..;
        frozen_changes(connection, plan, &mut |table, change| {
            let ordinal = ordinals.next();
            if let Some((_, outcome)) = outcomes.next_if(|(place, _)| Some(*place) == ordinal) {
                self.outcome(table, &change, outcome)?;
            }
            Ok(if outcomes.peek().is_none() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        match outcomes.peek() {
            None => Ok(()),
            Some(_) => Err(Error::damaged("the receipt names changes that the upload does not have")),
        }
    }

    fn outcome(&mut self, table: &TablePlan, change: &Change, outcome: &Outcome) -> Result<(), Error> {
        let key = table.key_of(change.image());
        match outcome {
            Outcome::Conflict(end) => {
                self.counts.conflicts += 1;
                self.conflict(table, &key, change, *end)
            }
            Outcome::Refused(refusal) => {
                self.counts.refused += 1;
                self.refused(table, &key, refusal)
            }
        }
    }

    fn conflict(&self, table: &TablePlan, key: &[Value], change: &Change, end: ConflictEnd) -> Result<(), Error> {
        let (key_row, key_bytes) = (from_wire(key), table.key_bytes(key));
        let text = |row: &Option<Vec<Value>>| row.as_ref().map(|row| readable(table.names(), &from_wire(row)));
        let sql = "INSERT INTO \"hw_conflict\" (\"time\", \"upload\", \"table\", \"name\", \"key\", \"key_text\", \"old_text\", \
                   \"ours_text\", \"end\", \"is_open\") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1)";
        let row = params![
            self.now,
            self.sequence as i64,
            table.number,
            table.table.name,
            key_bytes,
            readable(table.key_names(), &key_row),
            text(&change.old),
            text(&change.new),
            end_name(end),
        ];
        self.rows.prepare(sql)?.execute(row).while_doing("recording a conflict")?;
        if let Some(row) = change.new.as_ref().filter(|_| self.is_known) {
            strays::note_row(&self.rows, self.plan, table, row)?;
        }
        self.forget_frozen(table, &key_row)?;
        if table.table.direction == Direction::Upload {
            // No download brings the row that won: ours stays as it is, and what stood here before it was retried is of no use any more.
            return self.rows.release(table, &key_bytes);
        }
        if self.rows.pending(table, &key_row)?.is_some() {
            return Ok(());
        }
        if !table.below.is_empty() {
            // It tells the download, which brings the row, where rows lay that take their partition from it.
            return match self.rows.held(table, &key_bytes)? {
                Some(_) => Ok(()),
                None => self.rows.hold(table, &key_bytes, change.old.as_ref()),
            };
        }
        // Where the consolidated row stayed, the held row is stored by the download, if that does not bring a newer one.
        if end == ConflictEnd::Consolidated { Ok(()) } else { self.rows.release(table, &key_bytes) }
    }

    fn refused(&self, table: &TablePlan, key: &[Value], refusal: &Refusal) -> Result<(), Error> {
        let key = from_wire(key);
        let newer = self.rows.pending(table, &key)?;
        let by_key: Vec<String> =
            table.keys("k_").iter().zip(1..).map(|(name, place)| format!("f.{name} = ?{place}")).collect();
        reopen(self.rows.connection, table, self.sequence, &by_key.join(" AND "), &key)?;
        if newer.is_some() {
            return Ok(());
        }
        set_aside_mark(self.rows.connection, table, &key, refusal.code as u16)?;
        unsent::forget_refused(&self.rows, table, &key)?;
        let pending = self.rows.pending(table, &key)?;
        let pending = pending.ok_or_else(|| Error::damaged("a refused change is not in the log"))?;
        self.rows.note_aside(table, &pending, refusal, true, self.now)
    }

    /// Held rows of keys whose change was applied are out of date.
    fn release_held(&self, table: &TablePlan) -> Result<(), Error> {
        let mut after = Vec::new();
        loop {
            let keys = self.rows.held_keys(table, &after, 100)?;
            let Some(last) = keys.last() else {
                return Ok(());
            };
            after.clone_from(last);
            for key in keys {
                let key_row = from_wire(&self.rows.key_of_bytes(table, &key)?);
                if self.is_frozen(table, &key_row)? {
                    self.rows.release(table, &key)?;
                }
            }
        }
    }

    fn is_frozen(&self, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        let sql = format!("SELECT 1 FROM {} WHERE {}", table.log(), self.frozen_key(table));
        self.rows.prepare(&sql)?.exists(params_from_iter(key)).while_doing("reading the log")
    }

    fn forget_frozen(&self, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        let sql = format!("DELETE FROM {} WHERE {}", table.log(), self.frozen_key(table));
        self.rows.execute(&sql, key).map(drop)
    }

    fn frozen_key(&self, table: &TablePlan) -> String {
        let by_key: Vec<String> =
            table.keys("k_").iter().zip(1..).map(|(name, place)| format!("{name} = ?{place}")).collect();
        format!("\"upload\" = {} AND {}", self.sequence, by_key.join(" AND "))
    }
}

fn end_name(end: ConflictEnd) -> &'static str {
    match end {
        ConflictEnd::Consolidated => "consolidated",
        ConflictEnd::Remote => "remote",
        ConflictEnd::Merged => "merged",
    }
}
