//! One batch of changes of one table: judged in memory, made by a few set-based statements.
//!
//! Everything that a batch comes to is collected in [`Done`] and counts only if the whole batch went well: a batch that is refused is
//! undone to its savepoint and comes again in halves.

use std::collections::HashMap;

use headwater_model::Direction;
use headwater_protocol::message::{Change, ConflictEnd, Outcome, Refusal, RefusalCode};
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Value};

use super::engine::{Members, Numbered};
use super::{Counts, UploadRequest};
use crate::judge::{Action, Judgement, judge};
use crate::rows::Echo;
use crate::system::dialect_sql;
use crate::{Connection, Error, TablePlan, images};

/// How often a batch is judged again because rows appeared or vanished meanwhile.
const ROUNDS_MAX: usize = 8;
/// How many conflicts are recorded by one statement.
const CONFLICTS_AT_ONCE: usize = 50;

/// What changes came to.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) outcomes: Vec<(u64, Outcome)>,
    pub(super) echo: Echo,
    pub(super) conflicted: Vec<(u32, Row)>,
    pub(super) counts: Counts,
}

/// A conflict to be put on record.
struct Conflict<'c> {
    change: &'c Change,
    stored: Option<Row>,
    end: ConflictEnd,
    result: Option<Row>,
}

/// Judges and makes the changes of one batch; no two of them have the same key.
pub(super) fn apply(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    table: &TablePlan,
    members: &Members,
    changes: &[Numbered],
    echo: Echo,
) -> Result<Done, Error> {
    let done = Done { echo, ..Done::default() };
    let mut batch = Applying { connection, table, members, done, conflicts: Vec::new() };
    let mut waiting: Vec<&Numbered> = changes.iter().filter(|numbered| batch.is_allowed(numbered)).collect();
    let mut fresh = true;
    for _ in 0..ROUNDS_MAX {
        if waiting.is_empty() {
            batch.record(request)?;
            return Ok(batch.done);
        }
        waiting = batch.round(&waiting, fresh)?;
        fresh = false;
    }
    Err(Error::Retry { detail: format!("rows of {} kept appearing and vanishing", table.table.name), broken: false })
}

struct Applying<'a, 'c> {
    connection: &'a mut dyn Connection,
    table: &'a TablePlan,
    members: &'a Members,
    done: Done,
    conflicts: Vec<Conflict<'c>>,
}

/// What one round is to do.
#[derive(Default)]
struct Work<'c> {
    updates: Vec<(&'c Numbered, Judgement, Row)>,
    inserts: Vec<(&'c Numbered, Judgement)>,
    deletions: Vec<(&'c Numbered, Judgement, Row)>,
}

impl<'c> Applying<'_, 'c> {
    /// Direction and the new image's partition: what needs no look at the stored row.
    fn is_allowed(&mut self, numbered: &Numbered) -> bool {
        let refusal = if self.table.table.direction == Direction::Download {
            (RefusalCode::Direction, "the table is download-only")
        } else if numbered.change.new.as_ref().is_some_and(|new| !self.is_member(new)) {
            (RefusalCode::Partition, "the row would lie outside your partitions")
        } else {
            return true;
        };
        self.refuse(numbered.ordinal, refusal.0, refusal.1);
        false
    }

    fn is_member(&self, row: &Row) -> bool {
        let Some(partition) = &self.table.table.partition else { return true };
        let key = self.table.partition_of(row);
        key.is_some_and(|key| self.members.get(partition.partition).is_some_and(|members| members.contains(&key)))
    }

    fn refuse(&mut self, ordinal: u64, code: RefusalCode, message: &str) {
        self.done.counts.refused += 1;
        self.done.outcomes.push((ordinal, Outcome::Refused(Refusal { code, message: message.to_owned() })));
    }

    /// Judges changes and makes them. Gives those to be judged again: inserts whose key turned out to exist.
    fn round(&mut self, waiting: &[&'c Numbered], fresh: bool) -> Result<Vec<&'c Numbered>, Error> {
        let mut work = Work::default();
        // An insert's key is most likely absent: it is tried before its row is looked for.
        let (blind, looked_up): (Vec<&'c Numbered>, Vec<&'c Numbered>) =
            waiting.iter().partition(|numbered| fresh && numbered.change.old.is_none());
        let stored = self.stored(&looked_up)?;
        for numbered in looked_up {
            let key = encoded_key(self.table, numbered.change.image());
            self.judge(numbered, stored.get(&key).cloned(), &mut work);
        }
        for numbered in blind {
            self.judge(numbered, None, &mut work);
        }
        self.delete(work.deletions)?;
        self.update(work.updates)?;
        self.insert(work.inserts)
    }

    fn stored(&mut self, changes: &[&Numbered]) -> Result<HashMap<Vec<u8>, Row>, Error> {
        if changes.is_empty() {
            return Ok(HashMap::new());
        }
        let keys: Vec<Row> = changes.iter().map(|numbered| self.table.key_of(numbered.change.image())).collect();
        let rows = self.connection.fetch(self.table, &keys, true)?;
        Ok(rows.into_iter().map(|row| (encoded_key(self.table, &row), row)).collect())
    }

    fn judge(&mut self, numbered: &'c Numbered, stored: Option<Row>, work: &mut Work<'c>) {
        if stored.as_ref().is_some_and(|stored| !self.is_member(stored)) {
            return self.refuse(numbered.ordinal, RefusalCode::Partition, "the row lies outside your partitions");
        }
        let judgement = judge(self.table.table.conflict, &numbered.change, stored.as_ref());
        if let Action::Update(row) | Action::Insert(row) = &judgement.action
            && !self.is_member(row)
        {
            return self.refuse(
                numbered.ordinal,
                RefusalCode::Partition,
                "the merged row would lie outside your partitions",
            );
        }
        match (&judgement.action, stored) {
            (Action::Keep, stored) => self.settle(numbered, &judgement, stored),
            (Action::Insert(_), _) => work.inserts.push((numbered, judgement)),
            (Action::Update(_), Some(stored)) => work.updates.push((numbered, judgement, stored)),
            (Action::Delete, Some(stored)) => work.deletions.push((numbered, judgement, stored)),
            (Action::Update(_) | Action::Delete, None) => unreachable!("only a stored row is updated or deleted"),
        }
    }

    fn delete(&mut self, work: Vec<(&'c Numbered, Judgement, Row)>) -> Result<(), Error> {
        if work.is_empty() {
            return Ok(());
        }
        let keys: Vec<Row> = work.iter().map(|(numbered, _, _)| self.table.key_of(numbered.change.image())).collect();
        self.done.counts.deleted += self.connection.delete(self.table, &keys.iter().collect::<Vec<_>>())?;
        for (numbered, judgement, stored) in work {
            self.settle(numbered, &judgement, Some(stored));
        }
        Ok(())
    }

    fn update(&mut self, work: Vec<(&'c Numbered, Judgement, Row)>) -> Result<(), Error> {
        if work.is_empty() {
            return Ok(());
        }
        let rows: Vec<&Row> = work.iter().filter_map(|(_, judgement, _)| judgement.row()).collect();
        self.done.counts.updated += self.connection.update(self.table, &rows)?;
        for (numbered, judgement, stored) in work {
            self.settle(numbered, &judgement, Some(stored));
        }
        Ok(())
    }

    /// Inserts; gives the changes whose key exists after all.
    fn insert(&mut self, work: Vec<(&'c Numbered, Judgement)>) -> Result<Vec<&'c Numbered>, Error> {
        if work.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<&Row> = work.iter().filter_map(|(_, judgement)| judgement.row()).collect();
        let inserted = self.connection.insert(self.table, &rows)?;
        self.done.counts.inserted += inserted.len() as u64;
        if inserted.len() == work.len() {
            for (numbered, judgement) in work {
                self.settle(numbered, &judgement, None);
            }
            return Ok(Vec::new());
        }
        let inserted: std::collections::HashSet<Vec<u8>> =
            inserted.iter().map(|key| encoded(self.table, key)).collect();
        let mut again = Vec::new();
        for (numbered, judgement) in work {
            if inserted.contains(&encoded_key(self.table, numbered.change.image())) {
                self.settle(numbered, &judgement, None);
            } else {
                again.push(numbered);
            }
        }
        Ok(again)
    }

    /// Notes what became of a change that has been made, or needed no making.
    fn settle(&mut self, numbered: &'c Numbered, judgement: &Judgement, stored: Option<Row>) {
        let key = self.table.key_of(numbered.change.image());
        let Some(end) = judgement.conflict else {
            match &judgement.action {
                Action::Insert(row) | Action::Update(row) => self.done.echo.stored(self.table, row),
                Action::Delete => self.done.echo.deleted(self.table, &key),
                Action::Keep => {}
            }
            return;
        };
        self.done.counts.conflicts += 1;
        self.done.outcomes.push((numbered.ordinal, Outcome::Conflict(end)));
        self.done.conflicted.push((self.table.number, key));
        let result = match &judgement.action {
            Action::Keep => stored.clone(),
            Action::Insert(row) | Action::Update(row) => Some(row.clone()),
            Action::Delete => None,
        };
        self.conflicts.push(Conflict { change: &numbered.change, stored, end, result });
    }

    /// Puts the batch's conflicts on record.
    fn record(&mut self, request: &UploadRequest<'_>) -> Result<(), Error> {
        let dialect = self.connection.dialect();
        for conflicts in self.conflicts.chunks(CONFLICTS_AT_ONCE) {
            let mut values = vec![
                Value::Bytes(request.remote_id.to_vec()),
                Value::text(request.user),
                Value::text(&self.table.table.name),
            ];
            let mut tuples = Vec::new();
            for conflict in conflicts {
                let first = values.len() + 1;
                let places: Vec<String> = (first..first + 6).map(|place| format!("?{place}")).collect();
                tuples.push(format!("(?1, ?2, ?3, {})", places.join(", ")));
                values.extend(self.record_of(conflict));
            }
            let sql = format!(
                "INSERT INTO {{hw}}conflict (remote_id, user_name, table_name, row_key, old_image, uploaded_image, stored_image, \
                 outcome, result_image) VALUES {}",
                tuples.join(", ")
            );
            self.connection.execute(&dialect_sql(dialect, &sql), &values)?;
        }
        Ok(())
    }

    fn record_of(&self, conflict: &Conflict<'_>) -> [Value; 6] {
        let image = |row: Option<&Row>| row.map_or(Value::Null, |row| Value::text(images::image(self.table, row)));
        let outcome = match conflict.end {
            ConflictEnd::Consolidated => "consolidated",
            ConflictEnd::Remote => "remote",
            ConflictEnd::Merged => "merged",
        };
        [
            Value::text(images::key_image(self.table, &self.table.key_of(conflict.change.image()))),
            image(conflict.change.old.as_ref()),
            image(conflict.change.new.as_ref()),
            image(conflict.stored.as_ref()),
            Value::text(outcome),
            image(conflict.result.as_ref()),
        ]
    }
}

impl Judgement {
    fn row(&self) -> Option<&Row> {
        match &self.action {
            Action::Insert(row) | Action::Update(row) => Some(row),
            Action::Keep | Action::Delete => None,
        }
    }
}

/// The key of a row, as bytes to find it by.
pub(super) fn encoded_key(table: &TablePlan, row: &[Value]) -> Vec<u8> {
    encoded(table, &table.key_of(row))
}

fn encoded(table: &TablePlan, key: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_row(&mut bytes, &table.key_types, key);
    bytes
}
