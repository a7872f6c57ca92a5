//! What a remote can tell of itself: for people, and for programs that show it to them.

use std::collections::HashSet;
use std::ops::ControlFlow;

use headwater_model::Direction;
use headwater_protocol::Row;
use headwater_protocol::message::{ChangeOp, RefusalCode};
use rusqlite::params_from_iter;

use crate::apply::orphans;
use crate::cut::{frozen_changes, is_nothing_condition};
use crate::error::{Error, While};
use crate::local::{from_wire, readable, to_wire};
use crate::plan::{TablePlan, decoded};
use crate::remote::Remote;
use crate::rows::{Pending, Rows};
use crate::schema;
use crate::unsent::IS_UNSENT;
use crate::wake::{self, Changed};

/// The state of a remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The remote ID.
    pub remote_id: [u8; 16],
    /// The server's address.
    pub server: String,
    /// The user who syncs it.
    pub user: String,
    /// The model's name and version.
    pub model: (String, u32),
    /// When a download was last applied (UTC); `None`: never.
    pub last_sync: Option<String>,
    /// Number of the last upload that the consolidated database has acknowledged.
    pub upload_sequence: u64,
    /// Whether an upload is on its way without a receipt yet.
    pub is_frozen: bool,
    /// Why the last upload was refused whole (a line for each change at fault, below the first); `None`: it was not, or that is settled.
    pub upload_refused: Option<String>,
    /// Changes that wait to be sent, those on their way among them.
    pub pending: u64,
    /// Changes set aside.
    pub set_aside: u64,
    /// Downloaded rows that are held.
    pub held: u64,
    /// The same by table.
    pub tables: Vec<TableStatus>,
    /// Foreign keys of the application's own tables with rows that refer to nothing.
    pub orphans: Vec<Orphans>,
}

/// Rows of a table of the application's that refer to rows which are not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphans {
    /// The table.
    pub table: String,
    /// The table that they refer to.
    pub parent: String,
    /// How many they are.
    pub rows: u64,
}

/// The state of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStatus {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Changes that wait to be sent.
    pub pending: u64,
}

/// A change that waits to be sent, or whose upload is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingChange {
    /// The table.
    pub table: String,
    /// What it does.
    pub op: ChangeOp,
    /// The key, as JSON.
    pub key: String,
    /// The row as it was at the last sync, as JSON; `None`: there was none.
    pub old: Option<String>,
    /// The row as it is, as JSON; `None`: it is deleted.
    pub new: Option<String>,
    /// Whether it is set aside, and so not sent by itself.
    pub is_set_aside: bool,
    /// Whether it is part of an upload on its way: whether that has arrived is not known yet. Its row may have been changed since.
    pub is_on_its_way: bool,
}

/// A change set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Its number, for [`crate::Choice::Numbers`]. One that is set aside again gets another.
    pub number: i64,
    /// When it was (UTC).
    pub time: String,
    /// The table.
    pub table: String,
    /// The key, as JSON.
    pub key: String,
    /// Why; `None` for a code that this version does not know.
    pub code: Option<RefusalCode>,
    /// The code's stable name.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Whether the row still is as the change made it. If not, only this list has the change.
    pub is_in_place: bool,
    /// Whether it is a row of a table that only goes up, listed because nobody knows whether it has gone up. It stays as it is: retried it goes
    /// up as an insert, dropped it counts as gone up.
    pub is_perhaps_unsent: bool,
    /// The row before the change, as JSON; `None`: there was none.
    pub old: Option<String>,
    /// The row as the change made it, as JSON; `None`: it deleted the row, or, under the code `gone` and not in place, nobody knows.
    pub new: Option<String>,
}

/// Uploads that the consolidated database had acknowledged and then lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostUploads {
    /// When it was noticed (UTC).
    pub time: String,
    /// The first one's number.
    pub first: u64,
    /// The last one's.
    pub last: u64,
    /// Changes of theirs that the file still had: those that were not changed again since are set aside under the code `lost`.
    pub changes: u64,
}

/// A row or deletion that came down and is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// The table.
    pub table: String,
    /// The key, as JSON.
    pub key: String,
    /// The row as it came down, as JSON; `None`: it is deleted.
    pub row: Option<String>,
    /// Why the table does not take it; `None`: a change of the same row is pending, and its upload will tell.
    pub why: Option<String>,
}

/// A conflict that an upload met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// When its receipt came (UTC).
    pub time: String,
    /// The upload's number.
    pub upload: u64,
    /// The table.
    pub table: String,
    /// The key, as JSON.
    pub key: String,
    /// The row on which our change was made, as JSON; `None`: there was none.
    pub old: Option<String>,
    /// What we made of it, as JSON; `None`: we deleted it.
    pub ours: Option<String>,
    /// How it ended: `consolidated` (its row stayed), `remote` (our change was made) or `merged`.
    pub end: String,
    /// The row as it came down after it, as JSON; `None`: it is deleted. Of a table that only goes up: ours, if that was made.
    pub result: Option<String>,
    /// Whether the result has not come down yet.
    pub is_open: bool,
    /// Whether the result never comes down, and is not known here: another row than ours has won in a table that only goes up.
    pub is_untold: bool,
}

impl Remote {
    /// How the remote stands. Counts the rows of every table.
    pub fn status(&self) -> Result<Status, Error> {
        self.judged(self.look())
    }

    fn look(&self) -> Result<Status, Error> {
        let state = self.state()?;
        let changed = wake::changed(&Rows::new(&self.database.connection), &self.plan)?;
        let each = self.plan.tables.iter().map(|table| self.table_status(table, &changed));
        let tables = each.collect::<Result<Vec<_>, _>>()?;
        Ok(Status {
            remote_id: state.remote_id,
            server: state.server,
            user: state.user,
            model: (self.plan.model.name.clone(), self.plan.model.version),
            last_sync: state.last_sync,
            upload_sequence: state.upload_sequence,
            is_frozen: state.frozen.is_some(),
            upload_refused: state.upload_refused,
            pending: tables.iter().map(|table| table.pending).sum(),
            set_aside: self.count("SELECT count(*) FROM \"hw_set_aside\"")?.saturating_sub(changed.len() as u64),
            held: self.count("SELECT count(*) FROM \"hw_held\"")?,
            tables,
            orphans: orphans(&self.database.connection, &self.plan)?
                .into_iter()
                .map(|(table, parent, rows)| Orphans { table, parent, rows })
                .collect(),
        })
    }

    fn table_status(&self, table: &TablePlan, changed: &[Changed<'_>]) -> Result<TableStatus, Error> {
        if !schema::exists(&self.database.connection, &table.table.name)? {
            return Ok(TableStatus { name: table.table.name.clone(), rows: 0, pending: 0 });
        }
        let count = format!("SELECT count(*) FROM {}", table.name());
        // The smallest index is counted, which may have a collation that only the application has.
        let rows = self.count(&count).or_else(|_| self.count(&format!("{count} NOT INDEXED")))?;
        let changed = changed.iter().filter(|one| one.table.number == table.number && one.is_pending).count();
        let pending = if table.is_tracked() {
            let nothing = is_nothing_condition(table);
            self.count(&format!(
                "SELECT count(*) FROM {} AS l WHERE l.\"upload\" > 0 OR (l.\"aside\" = 0 AND NOT {nothing})",
                table.log()
            ))? + changed as u64
        } else {
            0
        };
        Ok(TableStatus { name: table.table.name.clone(), rows, pending })
    }

    fn count(&self, sql: &str) -> Result<u64, Error> {
        let count = self.database.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        count.map(|count| count as u64).while_doing("counting rows")
    }

    /// Changes that wait to be sent, by table and key, at most `limit`: those of an upload on its way, and then those for the next.
    pub fn pending(&self, limit: usize) -> Result<Vec<PendingChange>, Error> {
        self.judged(self.list_pending(limit))
    }

    fn list_pending(&self, limit: usize) -> Result<Vec<PendingChange>, Error> {
        let rows = Rows::new(&self.database.connection);
        let mut changes = self.on_its_way(limit)?;
        let unmarked = wake::keys(&wake::changed(&rows, &self.plan)?);
        for table in self.plan.tracked() {
            let mut select = rows.prepare(&table.sql.changes_where("1 = 1"))?;
            let found = select.query_map([], |row| Pending::read(table, row)).while_doing("reading the log")?;
            for pending in found {
                let mut pending = pending.while_doing("reading the log")?;
                if changes.len() == limit {
                    return Ok(changes);
                }
                let key = table.key_bytes(&to_wire(&pending.key, &table.key_types));
                if unmarked.contains(&(table.number, key)) {
                    pending.aside = 0;
                }
                if !pending.is_nothing() {
                    changes.push(listed(table, &pending));
                }
            }
        }
        Ok(changes)
    }

    fn on_its_way(&self, limit: usize) -> Result<Vec<PendingChange>, Error> {
        let mut changes = Vec::new();
        frozen_changes(&self.database.connection, &self.plan, &mut |table, change| {
            if changes.len() == limit {
                return Ok(ControlFlow::Break(()));
            }
            let (key, image) = (from_wire(&table.key_of(change.image())), |row: Row| from_wire(&row));
            let pending = Pending { aside: 0, old: change.old.map(image), new: change.new.map(image), key };
            changes.push(PendingChange { is_on_its_way: true, ..listed(table, &pending) });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(changes)
    }

    /// Why the last upload was refused whole: how much of it, and then the changes at fault, a line for each. Empty: it was not, or that
    /// is settled.
    pub fn upload_refused(&self) -> Result<Vec<String>, Error> {
        Ok(self.judged(self.state())?.upload_refused.iter().flat_map(|why| why.lines()).map(str::to_owned).collect())
    }

    /// Changes set aside, the newest first, at most `limit`. One whose row has been changed since is pending, and not among them.
    pub fn set_aside(&self, limit: usize) -> Result<Vec<SetAside>, Error> {
        let list = self.judged(self.list_set_aside(limit))?;
        self.newest_shown.set(None);
        Ok(list)
    }

    fn list_set_aside(&self, limit: usize) -> Result<Vec<SetAside>, Error> {
        let changed = wake::changed(&Rows::new(&self.database.connection), &self.plan)?;
        let changed: HashSet<i64> = changed.iter().map(|one| one.number).collect();
        let sql = format!(
            "SELECT \"id\", \"time\", \"name\", \"key_text\", \"code\", \"reason\", \"message\", \"in_place\", \"old_text\", \"new_text\", \
             \"table\", {IS_UNSENT} FROM \"hw_set_aside\" ORDER BY \"id\" DESC LIMIT ?"
        );
        let mut list = self.list(&sql, limit.saturating_add(changed.len()), |row| {
            let code = RefusalCode::from_wire(row.get(4)?);
            let only_goes_up = self.plan.table(row.get(10)?).is_some_and(only_goes_up);
            Ok(SetAside {
                number: row.get(0)?,
                time: row.get(1)?,
                table: row.get(2)?,
                key: row.get(3)?,
                code,
                reason: row.get(5)?,
                message: row.get(6)?,
                is_in_place: row.get(7)?,
                is_perhaps_unsent: only_goes_up && code == Some(RefusalCode::Untracked) && row.get(11)?,
                old: row.get(8)?,
                new: row.get(9)?,
            })
        })?;
        list.retain(|note| !changed.contains(&note.number));
        list.truncate(limit);
        Ok(list)
    }

    /// Uploads that the consolidated database has lost, the newest loss first, at most `limit`.
    pub fn lost(&self, limit: usize) -> Result<Vec<LostUploads>, Error> {
        let sql = "SELECT \"time\", \"first\", \"last\", \"changes\" FROM \"hw_lost\" ORDER BY \"id\" DESC LIMIT ?";
        self.list(sql, limit, |row| {
            let number = |place| row.get::<_, i64>(place).map(|number| number as u64);
            Ok(LostUploads { time: row.get(0)?, first: number(1)?, last: number(2)?, changes: number(3)? })
        })
    }

    /// Rows that came down and are held, by table and key, at most `limit`.
    pub fn held(&self, limit: usize) -> Result<Vec<HeldRow>, Error> {
        let sql = "SELECT \"table\", \"key\", \"image\", \"why\" FROM \"hw_held\" ORDER BY 1, 2 LIMIT ?";
        let found = self.list(sql, limit, |row| {
            Ok((row.get::<_, u32>(0)?, row.get::<_, Vec<u8>>(1)?, row.get::<_, Option<Vec<u8>>>(2)?, row.get(3)?))
        })?;
        let held = found.into_iter().filter_map(|(number, key, image, why)| {
            let table = self.plan.table(number)?;
            Some((table, key, image, why))
        });
        let held = held.map(|(table, key, image, why)| {
            let key = from_wire(&decoded(&table.key_types, &key)?);
            let row = image.map(|image| decoded(&table.types, &image)).transpose()?;
            let row = row.map(|row| readable(table.names(), &from_wire(&row)));
            Ok(HeldRow { table: table.table.name.clone(), key: readable(table.key_names(), &key), row, why })
        });
        held.collect()
    }

    /// Conflicts that uploads met, the newest first, at most `limit`.
    pub fn conflicts(&self, limit: usize) -> Result<Vec<Conflict>, Error> {
        let sql = "SELECT \"time\", \"upload\", \"name\", \"key_text\", \"old_text\", \"ours_text\", \"end\", \"result_text\", \
                   \"is_open\", \"table\" FROM \"hw_conflict\" ORDER BY \"id\" DESC LIMIT ?";
        self.list(sql, limit, |row| {
            let conflict = Conflict {
                time: row.get(0)?,
                upload: row.get::<_, i64>(1)? as u64,
                table: row.get(2)?,
                key: row.get(3)?,
                old: row.get(4)?,
                ours: row.get(5)?,
                end: row.get(6)?,
                result: row.get(7)?,
                is_open: row.get(8)?,
                is_untold: false,
            };
            // A table that is gone has a number below 0.
            let table = u32::try_from(row.get::<_, i64>(9)?).ok().and_then(|number| self.plan.table(number));
            Ok(if table.is_some_and(only_goes_up) { untold(conflict) } else { conflict })
        })
    }

    fn list<T>(
        &self,
        sql: &str,
        limit: usize,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let list = || -> rusqlite::Result<Vec<T>> {
            let mut select = self.database.connection.prepare_cached(sql)?;
            select.query_map(params_from_iter([limit]), read)?.collect()
        };
        self.judged(list().while_doing("reading a list"))
    }
}

fn only_goes_up(table: &TablePlan) -> bool {
    table.table.direction == Direction::Upload
}

/// A conflict of a table that only goes up stays open in the file: another version of the model may have the row come down. Until then what
/// is known is what the receipt said.
fn untold(conflict: Conflict) -> Conflict {
    match conflict.is_open {
        false => conflict,
        true if conflict.end == "remote" => Conflict { result: conflict.ours.clone(), is_open: false, ..conflict },
        true => Conflict { is_open: false, is_untold: true, ..conflict },
    }
}

fn listed(table: &TablePlan, pending: &Pending) -> PendingChange {
    PendingChange {
        table: table.table.name.clone(),
        op: match (&pending.old, &pending.new) {
            (None, _) => ChangeOp::Insert,
            (_, None) => ChangeOp::Delete,
            _ => ChangeOp::Update,
        },
        key: readable(table.key_names(), &pending.key),
        old: pending.old.as_ref().map(|row| readable(table.names(), row)),
        new: pending.new.as_ref().map(|row| readable(table.names(), row)),
        is_set_aside: pending.aside != 0,
        is_on_its_way: false,
    }
}
