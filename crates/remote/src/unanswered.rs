//! An upload that was applied, and whose receipt can't be had: it would have to be sent again, under a version of the model that no server
//! has any more, or past a limit that has been lowered since. What became of its changes the next download shows:
//!
//! | what comes down | the change |
//! |---|---|
//! | the row as the change made it | was applied, and is done |
//! | anything else, or nothing | stays in its place, set aside under the code `unanswered`: it may be sent again or given up, but not by itself |
//! | the same, of an update in a table with counters | another row that comes takes its place, and the list has it: what it added is not added again |

use headwater_protocol::message::{Refusal, RefusalCode, UploadEnd};
use rusqlite::Connection;

use crate::counters;
use crate::cut::{forget_frames, reopen, set_aside_mark};
use crate::error::{Error, While};
use crate::local::Local;
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;
use crate::state::State;

/// Counts the frozen upload as applied, with outcomes that nobody knows.
pub(crate) fn take_for_applied(connection: &Connection, plan: &Plan, now: &str) -> Result<(), Error> {
    let Some(UploadEnd { sequence, .. }) = State::read(connection)?.frozen else {
        return Err(Error::damaged("an upload is taken for applied, but none is on its way"));
    };
    tracing::warn!(upload = sequence, "an upload was applied, but its receipt can't be had any more");
    let rows = Rows::new(connection);
    for table in plan.tracked() {
        for key in frozen_keys(&rows, table, sequence)? {
            let condition: Vec<String> =
                table.keys("k_").iter().zip(1..).map(|(name, place)| format!("f.{name} = ?{place}")).collect();
            let condition = condition.join(" AND ");
            if rows.pending(table, &key)?.is_some() {
                // Changed again since, from what was sent: that is what it goes up with.
                let gone = format!("DELETE FROM {} AS f WHERE f.\"upload\" = {sequence} AND {condition}", table.log());
                rows.execute(&gone, &key)?;
                continue;
            }
            reopen(connection, table, sequence, &condition, &key)?;
            set_aside_mark(connection, table, &key, RefusalCode::Unanswered as u16)?;
            let pending = rows.pending(table, &key)?;
            let pending = pending.ok_or_else(|| Error::damaged("a reopened change is not in the log"))?;
            let message = format!("upload {sequence} was applied, but what became of this change was not told");
            rows.note_aside(table, &pending, &Refusal { code: RefusalCode::Unanswered, message }, true, now)?;
            if let (Some(old), Some(new), false) = (&pending.old, &pending.new, table.table.sum.is_empty()) {
                // It has been added: a later change of the row adds no more than its own.
                rows.execute(&table.sql.set_old, &counters::without_difference(table, old, new))?;
            }
        }
    }
    forget_frames(connection, sequence)?;
    State::set_frozen(connection, None)?;
    State::set_upload_sequence(connection, sequence)
}

fn frozen_keys(rows: &Rows<'_>, table: &TablePlan, sequence: u64) -> Result<Vec<Vec<Local>>, Error> {
    let sql = format!("SELECT {} FROM {} WHERE \"upload\" = ?", table.keys("k_").join(", "), table.log());
    let mut select = rows.prepare(&sql)?;
    let count = table.key_types.len();
    let read = |row: &rusqlite::Row<'_>| (0..count).map(|index| Local::read(row, index)).collect();
    let found = select.query_map([sequence as i64], read);
    found.and_then(Iterator::collect).while_doing("reading the log")
}
