//! The first download of another version of the model ([`crate::upgrade`]): pending changes learn what they could not know.
//!
//! A pending change that was made under the old version says nothing of columns that are new. It takes them from the row that comes
//! down, in both of its images, so that it neither conflicts by them nor overwrites them; and of columns whose type has changed those
//! that it left alone.

use headwater_model::Direction;
use headwater_protocol::Row;
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{OptionalExtension, params};

use super::Apply;
use crate::cut::set_aside_mark;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{TablePlan, decoded};
use crate::rows::{Pending, Placed};
use crate::upgrade::Fresh;

impl Apply<'_> {
    /// A row has come down: gives its key's pending change as it is with that row's values.
    pub(super) fn learn(
        &mut self,
        table: &TablePlan,
        key: &[u8],
        pending: Option<Pending>,
        came: &[Local],
    ) -> Result<Option<Pending>, Error> {
        let Some(Some(fresh)) = self.fresh.get(table.number as usize) else {
            return Ok(pending);
        };
        let sql = "DELETE FROM temp.\"hw_absent\" WHERE \"table\" = ? AND \"key\" = ?";
        self.rows.prepare(sql)?.execute(params![table.number, key]).while_doing("applying a download")?;
        self.learn_aside(table, key, fresh, came)?;
        let Some(mut pending) = pending else { return Ok(None) };
        if !take(fresh, &mut pending.old, &mut pending.new, came) {
            return Ok(Some(pending));
        }
        if let Some(new) = &pending.new
            && self.rows.update(table, new)? != Placed::Done
        {
            // A value of these stands in another row: what was changed here is kept, beside the row that came.
            let message = "with the columns of the new version its row does not fit beside another".to_owned();
            self.set_aside(table, &pending, &Refusal { code: RefusalCode::Unique, message })?;
            return Ok(None);
        }
        if let Some(old) = &pending.old {
            self.rows.execute(&table.sql.set_old, old)?;
        }
        self.touched.row(table, key);
        Ok(Some(pending))
    }

    /// The same for the images of changes set aside.
    fn learn_aside(&self, table: &TablePlan, key: &[u8], fresh: &Fresh, came: &[Local]) -> Result<(), Error> {
        let sql = "SELECT \"id\", \"old\", \"new\" FROM \"hw_set_aside\" WHERE \"table\" = ? AND \"key\" = ?";
        let mut select = self.rows.prepare(sql)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, [row.get(1)?, row.get(2)?]));
        let found = select.query_map(params![table.number, key], read).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        for (number, images) in found.while_doing("reading what is set aside")? {
            self.learn_one_aside(table, number, images, fresh, came)?;
        }
        Ok(())
    }

    fn learn_one_aside(
        &self,
        table: &TablePlan,
        number: i64,
        images: [Option<Vec<u8>>; 2],
        fresh: &Fresh,
        came: &[Local],
    ) -> Result<(), Error> {
        let read = |bytes: Vec<u8>| decoded(&table.types, &bytes).map(|row: Row| from_wire(&row));
        let [old, new] = images.map(|bytes| bytes.map(read).transpose());
        let (mut old, mut new) = (old?, new?);
        if !take(fresh, &mut old, &mut new, came) {
            return Ok(());
        }
        let bytes = |row: Option<Vec<Local>>| row.map(|row| table.row_bytes(&to_wire(&row, &table.types)));
        let sql = "UPDATE \"hw_set_aside\" SET \"old\" = ?, \"new\" = ? WHERE \"id\" = ?";
        let values = params![bytes(old), bytes(new), number];
        self.rows.prepare(sql)?.execute(values).while_doing("rewriting what is set aside").map(drop)
    }

    /// Pending changes whose rows did not come: for this remote they are deleted.
    pub(super) fn settle_absent(&mut self) -> Result<(), Error> {
        for table in &self.plan.tables {
            let Some(Some(fresh)) = self.fresh.get(table.number as usize) else { continue };
            let missing = fresh.added.iter().filter_map(|place| table.table.columns.get(*place));
            let missing: Vec<&str> =
                missing.filter(|column| !column.nullable).map(|column| column.name.as_str()).collect();
            while let Some(key) = self.next_absent(table)? {
                let key_row = from_wire(&self.rows.key_of_bytes(table, &key)?);
                if let Some(pending) = self.rows.pending(table, &key_row)? {
                    self.settle_one_absent(table, &key, &pending, &missing)?;
                }
            }
        }
        Ok(())
    }

    /// A deletion that may have been applied was; a row with a column that may not be NULL (`missing`), and that nobody has given a value,
    /// waits for one.
    fn settle_one_absent(
        &mut self,
        table: &TablePlan,
        key: &[u8],
        pending: &Pending,
        missing: &[&str],
    ) -> Result<(), Error> {
        let comes_down = table.table.direction != Direction::Upload;
        if pending.new.is_none() && pending.aside == RefusalCode::Unanswered as i64 && comes_down {
            self.rows.forget(table, &pending.key)?;
            return self.rows.drop_note(table, key);
        }
        if comes_down && pending.old.is_some() {
            self.rows.hold(table, key, None)?;
        }
        if pending.new.is_none() {
            return Ok(());
        }
        if missing.is_empty() || pending.aside != 0 {
            return Ok(());
        }
        let message = format!(
            "the new version of the model wants a value of {}: give one, or send it as it stands by `headwater remote retry`",
            missing.join(", ")
        );
        set_aside_mark(self.rows.connection, table, &pending.key, RefusalCode::NotNull as u16)?;
        self.applied.set_aside += 1;
        self.rows.note_aside(table, pending, &Refusal { code: RefusalCode::NotNull, message }, true, self.now)
    }

    fn next_absent(&self, table: &TablePlan) -> Result<Option<Vec<u8>>, Error> {
        let sql = "DELETE FROM temp.\"hw_absent\" WHERE \"table\" = ?1 AND \"key\" = \
                   (SELECT min(\"key\") FROM temp.\"hw_absent\" WHERE \"table\" = ?1) RETURNING \"key\"";
        let found = self.rows.prepare(sql)?.query_row([table.number], |row| row.get(0)).optional();
        found.while_doing("applying a download")
    }
}

/// Takes what a change knows nothing of from the row that came; whether that was anything.
fn take(fresh: &Fresh, old: &mut Option<Vec<Local>>, new: &mut Option<Vec<Local>>, came: &[Local]) -> bool {
    let mut places: Vec<usize> = fresh.added.clone();
    if let (Some(old), Some(new)) = (&*old, &*new) {
        places.extend(fresh.retyped.iter().filter(|place| old.get(**place) == new.get(**place)));
    }
    for image in [old, new].into_iter().flatten() {
        for &place in &places {
            if let (Some(here), Some(value)) = (image.get_mut(place), came.get(place)) {
                here.clone_from(value);
            }
        }
    }
    !places.is_empty()
}
