//! What the rules make of the judged table, change by change, against what is stored.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use headwater_remote::PendingChange;
use headwater_tests::Central;

use crate::history::History;
use crate::rules::{Cell, Image, judge};
use crate::shape::quote;

/// A change of the judged table: key, old image, new image.
pub(crate) type Judged = (Vec<Cell>, Image, Image);

/// What was there before a sync.
pub(crate) struct Before {
    stored: BTreeMap<Vec<Cell>, Vec<Cell>>,
    pending: Vec<Judged>,
    uploads: u64,
}

impl History {
    /// What a prediction needs, before the sync.
    pub(crate) fn before(&self, place: usize) -> Result<Before> {
        Ok(Before { stored: self.stored()?, pending: self.pending(place)?, uploads: self.uploads(place)? })
    }

    /// Holds what is stored in the judged table against what the rules make of the changes that were applied.
    pub(crate) fn predict(&mut self, place: usize, before: Before) -> Result<()> {
        let uploads = self.uploads(place)?;
        let status = self.sites[place].remote.status()?;
        let mut waiting: Vec<Vec<Judged>> = self.sites[place].frozen.take().into_iter().collect();
        waiting.push(before.pending);
        let mut applied = uploads.checked_sub(before.uploads).context("the database lost uploads")? as usize;
        if self.has_given_up(place)? && applied > 0 {
            // What it was has become pending again, under the next number.
            self.sites[place].is_unsure = true;
            return Ok(());
        }
        if applied > 0 && std::mem::take(&mut self.sites[place].skips) {
            // Which of two it was, the number does not tell.
            if waiting.len() > 1 {
                self.sites[place].is_unsure = true;
                return Ok(());
            }
            applied = 1;
        }
        ensure!(applied <= waiting.len(), "{applied} uploads were applied, {} were waiting", waiting.len());
        let mut expected = before.stored;
        for (key, old, new) in waiting.drain(..applied).flatten() {
            let integers: Vec<bool> = self.schema.judged_columns.iter().map(|(_, is)| *is).collect();
            let stored = expected.get(&key).cloned();
            self.count("predicted", 1);
            let old = if self.forgets_conflicts { stored.clone() } else { old };
            match judge(self.schema.rule, &stored, &old, &new, &integers) {
                Some(row) => expected.insert(key, row),
                None => expected.remove(&key),
            };
        }
        // What is frozen is known by its number: acknowledged, it would be none.
        if status.is_frozen && uploads == status.upload_sequence {
            self.sites[place].frozen = Some(waiting.into_iter().next().context("an upload is frozen, of nothing")?);
        }
        let stored = self.stored()?;
        if stored != expected {
            let all: BTreeSet<_> = stored.keys().chain(expected.keys()).collect();
            let differing = all.into_iter().filter(|key| stored.get(*key) != expected.get(*key));
            let lines: Vec<String> = differing
                .map(|key| format!("{key:?}: stored {:?}, expected {:?}", stored.get(key), expected.get(key)))
                .collect();
            bail!("{:?}, after a sync of {}:\n{}", self.schema.rule, self.sites[place].name, lines.join("\n"));
        }
        Ok(())
    }

    /// The judged table, by key.
    fn stored(&self) -> Result<BTreeMap<Vec<Cell>, Vec<Cell>>> {
        let columns: Vec<String> = self.schema.judged_columns.iter().map(|(name, _)| quote(name)).collect();
        let rows =
            self.world.central.rows(&format!("SELECT {} FROM {}", columns.join(", "), quote(&self.schema.judged)))?;
        Ok(rows.into_iter().map(|row| (row[..self.schema.judged_key].to_vec(), row)).collect())
    }

    /// The number of the last upload of a remote that the database has.
    pub(crate) fn uploads(&self, place: usize) -> Result<u64> {
        Ok(self.known(place, "upload_sequence")?.as_deref().map_or(Ok(0), str::parse)?)
    }

    /// Whether that number is of an upload that was given up.
    fn has_given_up(&self, place: usize) -> Result<bool> {
        let digest = match &self.world.central {
            Central::Sqlite(_) => "hex(substr(upload_digest, 1, 32))",
            Central::Postgres(_) => "encode(substr(upload_digest, 1, 32), 'hex')",
        };
        Ok(self.known(place, digest)?.is_some_and(|digest| digest == "0".repeat(64)))
    }

    /// What the database knows of a remote.
    fn known(&self, place: usize, what: &str) -> Result<Option<String>> {
        let id = self.sites[place].remote.status()?.remote_id.map(|byte| format!("{byte:02x}")).concat();
        let sql = match &self.world.central {
            Central::Sqlite(_) => format!("SELECT {what} FROM headwater_remote WHERE hex(remote_id) = upper('{id}')"),
            Central::Postgres(_) => {
                format!("SELECT {what} FROM headwater.remote WHERE encode(remote_id, 'hex') = '{id}'")
            }
        };
        Ok(self.world.central.rows(&sql)?.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
    }

    /// The judged changes that the next upload will have.
    fn pending(&self, place: usize) -> Result<Vec<Judged>> {
        let changes = self.sites[place].remote.pending(10_000)?;
        let goes = |change: &PendingChange| !change.is_on_its_way && !change.is_set_aside;
        let judged = changes.into_iter().filter(|change| change.table == self.schema.judged && goes(change));
        judged
            .map(|change| {
                let image = |json: &Option<String>| json.as_deref().map(|json| self.cells(json)).transpose();
                let (old, new) = (image(&change.old)?, image(&change.new)?);
                let row = old.as_ref().or(new.as_ref()).context("a change of nothing")?;
                Ok((row[..self.schema.judged_key].to_vec(), old, new))
            })
            .collect()
    }

    fn cells(&self, json: &str) -> Result<Vec<Cell>> {
        let row: serde_json::Value = serde_json::from_str(json)?;
        let cell = |(name, _): &(String, bool)| match &row[name.as_str()] {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        Ok(self.schema.judged_columns.iter().map(cell).collect())
    }
}
