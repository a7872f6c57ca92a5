//! Uploads that the consolidated database turns out not to have: it has this remote's only up to some number (it was put back from a
//! backup, say). The changes of the later ones are taken from what was kept of them ([`crate::sent`]), so that none is dropped in silence:
//!
//! | the row by now | what becomes of the change |
//! |---|---|
//! | was changed again, and that is pending | the pending change goes up as one with the lost one: its old image is the lost one's |
//! | the same, of counters | the pending change adds what it added, and the list has the lost one beside it |
//! | was changed again, and that is set aside | the same; and the list has the lost one beside it, for whoever drops the later |
//! | is as the upload made it | it is set aside with its old image, as if it had been refused with the code `lost` |
//! | was changed by a download since | only the list of changes set aside has it |
//!
//! Several lost changes of one row become one change. It has what this remote changed, and leaves out what others changed in between.
//!
//! Not sent again by itself: whoever put the backup back may have meant it, and others may have gone on from there. Their numbers are left
//! out from then on: if the database that has them comes back, it is seen to lack those that came after.
//!
//! So too where another file of this remote ID has used their numbers since: a copy that was there first. Then a new remote ID follows.
//!
//! An upload of an earlier version of the model has the columns of that. What it does not know is taken from the row as it stands here; what
//! the model does not have any more is on the list beside it.
//!
//! *Caveats.* Of lost uploads that were not kept any more, the numbers are named and nothing else; and so of changes in tables that the
//! model does not have any more.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use headwater_model::{ColumnType, ConflictRule};
use headwater_protocol::message::{Change, ConflictEnd, Outcome, Receipt, Refusal, RefusalCode, TableHeader};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Kind, Type};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::counters::{self, Total};
use crate::cut::{log_change, set_aside_mark, thaw};
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::{Pending, Rows};
use crate::state::State;
use crate::upgrade::{Converter, Gone};

/// How many losses are remembered; older ones are forgotten.
const LOSSES_MAX: i64 = 1_000;

/// A change that the consolidated database has no more: all that the lost uploads changed of a key, one on top of the other.
struct Lost {
    /// The first and the last of them.
    uploads: (u64, u64),
    old: Option<Image>,
    new: Option<Image>,
    /// What the last of them that did so has made of columns that are no more.
    gone: Option<Gone>,
}

/// A row as an upload had it, in the columns of today.
struct Image {
    row: Vec<Local>,
    /// Places of columns that the upload did not know.
    unknown: Vec<usize>,
}

impl Image {
    /// What the upload did not know is as in another row.
    fn completed(&self, from: Option<&Vec<Local>>) -> Vec<Local> {
        let mut row = self.row.clone();
        for place in self.unknown.iter().filter(|_| from.is_some()) {
            if let (Some(value), Some(known)) = (row.get_mut(*place), from.and_then(|from| from.get(*place))) {
                *value = known.clone();
            }
        }
        row
    }

    /// This row with what a later change made of another: counters are counted on, and columns that it left alone stay.
    fn changed_by(&self, table: &TablePlan, old: &Image, new: Image) -> Image {
        let mut row = new.row.clone();
        for (place, value) in row.iter_mut().enumerate() {
            let (Some(here), Some(before), Some(after)) = (self.row.get(place), old.row.get(place), new.row.get(place))
            else {
                continue;
            };
            if new.unknown.contains(&place) {
                value.clone_from(here);
            } else if !self.unknown.contains(&place) {
                match counters::total(table, place, here, (before, after)) {
                    Total::Is(total) => *value = total,
                    Total::Uncounted | Total::TooLarge if before == after => value.clone_from(here),
                    Total::Uncounted | Total::TooLarge => {}
                }
            }
        }
        let unknown = new.unknown.into_iter().filter(|place| self.unknown.contains(place)).collect();
        Image { row, unknown }
    }
}

/// Goes back to upload `to`, the last that the consolidated database has: thaws the upload on its way, deals with those that are lost,
/// forgets what has been seen. Gives how many changes of the lost ones were found.
pub(crate) fn rewind(connection: &Connection, plan: &Plan, to: u64, now: &str) -> Result<u64, Error> {
    State::note_used(connection)?;
    thaw(connection, plan, false)?;
    let lost = set_lost_aside(connection, plan, to, now)?;
    State::set_upload_sequence(connection, to)?;
    State::forget_seen(connection)?;
    Ok(lost)
}

/// Nothing is frozen, and the acknowledged number is still the old one.
fn set_lost_aside(connection: &Connection, plan: &Plan, to: u64, now: &str) -> Result<u64, Error> {
    let acknowledged = State::read(connection)?.upload_sequence;
    if to >= acknowledged {
        return Ok(0);
    }
    let rows = Rows::new(connection);
    let lost = read_lost(&rows, plan, to)?;
    for ((number, _), lost) in &lost {
        if let Some(table) = plan.table(*number) {
            set_one_aside(&rows, table, lost, now)?;
        }
    }
    let note = || -> rusqlite::Result<()> {
        let sql = "INSERT INTO \"hw_lost\" (\"time\", \"first\", \"last\", \"changes\") VALUES (?, ?, ?, ?)";
        connection.execute(sql, params![now, to as i64 + 1, acknowledged as i64, lost.len() as i64])?;
        let sql = "DELETE FROM \"hw_lost\" WHERE \"id\" <= (SELECT max(\"id\") FROM \"hw_lost\") - ?";
        connection.execute(sql, [LOSSES_MAX])?;
        connection.execute("DELETE FROM \"hw_sent\" WHERE \"upload\" > ?", [to as i64])?;
        connection.execute("DELETE FROM \"hw_upload\" WHERE \"upload\" > ?", [to as i64]).map(drop)
    };
    note().while_doing("noting lost uploads")?;
    Ok(lost.len() as u64)
}

type ByKey = BTreeMap<(u32, Vec<u8>), Lost>;

fn read_lost(rows: &Rows<'_>, plan: &Plan, to: u64) -> Result<ByKey, Error> {
    let sql = "SELECT \"upload\", \"receipt\", \"frame\", \"kind\", \"payload\" FROM \"hw_sent\" JOIN \"hw_upload\" USING (\"upload\") \
               WHERE (\"upload\", \"frame\") > (?, ?) AND \"frame\" > 0 ORDER BY \"upload\", \"frame\" LIMIT 1";
    let mut reading = Reading::new(rows, plan);
    // One query each: SQLite drops no table, a converter's among them, while a statement reads.
    let mut after = (to as i64, i64::MAX);
    while let Some((upload, receipt, frame, kind, payload)) = next_frame(rows, sql, after)? {
        after = (upload, frame);
        if upload as u64 != reading.upload {
            (reading.upload, reading.receipt) = (upload as u64, Receipt::from_payload(&receipt)?);
            reading.ordinal = 0;
        }
        match Kind::from_wire(kind) {
            Some(Kind::Table) => reading.table(&TableHeader::from_payload(&payload)?)?,
            _ => reading.changes(&payload)?,
        }
    }
    reading.finish()
}

/// Upload, receipt, number of the frame, kind, payload.
type Frame = (i64, Vec<u8>, i64, u8, Vec<u8>);

fn next_frame(rows: &Rows<'_>, sql: &str, after: (i64, i64)) -> Result<Option<Frame>, Error> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
    rows.prepare(sql)?.query_row([after.0, after.1], read).optional().while_doing("reading what was sent")
}

/// Goes through the frames that were kept.
struct Reading<'p> {
    rows: &'p Rows<'p>,
    plan: &'p Plan,
    lost: ByKey,
    /// Whose frames come now.
    upload: u64,
    receipt: Receipt,
    /// Of the changes that come now.
    types: Vec<Type>,
    /// `None`: the model does not have it any more.
    table: Option<(&'p TablePlan, Converter<'p>)>,
    ordinal: u64,
}

impl<'p> Reading<'p> {
    fn new(rows: &'p Rows<'p>, plan: &'p Plan) -> Self {
        let (lost, receipt) = (ByKey::new(), Receipt::default());
        Reading { rows, plan, lost, upload: 0, receipt, types: Vec::new(), table: None, ordinal: 0 }
    }

    fn table(&mut self, header: &TableHeader) -> Result<(), Error> {
        self.end_table()?;
        self.types = header.types();
        let is_it = |table: &&TablePlan| {
            let keys = header.key.iter().filter_map(|place| header.columns.get(*place));
            let keys = keys.map(|(name, kind)| (name.as_str(), *kind));
            table.is_tracked()
                && table.table.name.eq_ignore_ascii_case(&header.name)
                && table.key_names().zip(table.key_types.iter().copied()).eq(keys)
        };
        if let Some(table) = self.plan.tables.iter().find(is_it) {
            let before = header.columns.iter().map(|(name, kind)| (name.as_str(), ColumnType::plain(*kind)));
            self.table = Some((table, Converter::new(self.rows, before, table)?));
        }
        Ok(())
    }

    fn end_table(&mut self) -> Result<(), Error> {
        self.table.take().map_or(Ok(()), |(_, converter)| converter.finish().map(drop))
    }

    fn finish(mut self) -> Result<ByKey, Error> {
        self.end_table()?;
        Ok(self.lost)
    }

    fn changes(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            let change = Change::read(&mut reader, &self.types, usize::MAX)?;
            self.change(&change)?;
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), Error> {
        let ordinal = self.ordinal;
        self.ordinal += 1;
        let outcomes = &self.receipt.outcomes;
        let outcome = outcomes.binary_search_by_key(&ordinal, |(place, _)| *place).map(|place| &outcomes[place].1);
        if matches!(outcome, Ok(Outcome::Refused(_) | Outcome::Conflict(ConflictEnd::Consolidated))) {
            return Ok(()); // the database never had it
        }
        let Some((table, converter)) = &self.table else { return Ok(()) };
        let [made_old, made_new] = [&change.old, &change.new].map(|row| row.as_ref().map(|row| from_wire(row)));
        let gone = converter.what_goes(made_old.as_deref(), made_new.as_deref());
        let image = |row: Option<Vec<Local>>| -> Result<Option<Image>, Error> {
            let unknown = converter.fresh.added.clone();
            row.map(|row| Ok(Image { row: converter.image(&row)?, unknown })).transpose()
        };
        let (old, new) = (image(made_old)?, image(made_new)?);
        let Some(either) = new.as_ref().or(old.as_ref()) else { return Ok(()) };
        let key = table.key_bytes(&to_wire(&table.key_of(&either.row), &table.key_types));
        let upload = self.upload;
        let lost = match self.lost.entry((table.number, key)) {
            Entry::Vacant(first) => {
                first.insert(Lost { uploads: (upload, upload), old, new, gone });
                return Ok(());
            }
            Entry::Occupied(before) => before.into_mut(),
        };
        lost.gone = gone.or(lost.gone.take()).filter(|_| new.is_some());
        lost.new = match (lost.new.take(), old, new) {
            (Some(before), Some(old), Some(new)) => Some(before.changed_by(table, &old, new)),
            (_, _, new) => new,
        };
        lost.uploads.1 = upload;
        Ok(())
    }
}

/// The old image of a pending change that goes up together with a lost one. `later` is the pending change's own. Counters, and columns that are
/// merged, leave out what others changed between the two. `is_counted`: the list has what the lost change added to counters.
fn joined_old(
    table: &TablePlan,
    (old, new): (&[Local], Option<&[Local]>),
    later: &[Local],
    is_counted: bool,
) -> Vec<Local> {
    let is_merged = matches!(table.table.conflict, ConflictRule::Merge(_));
    let of_column = |(place, value): (usize, &Local)| {
        let (Some(new), Some(later)) = (new.and_then(|new| new.get(place)), later.get(place)) else {
            return value.clone();
        };
        if is_counted && table.table.sum.contains(&place) {
            return later.clone();
        }
        match counters::total(table, place, later, (new, value)) {
            Total::Is(total) => total,
            Total::Uncounted | Total::TooLarge if is_merged && new == value => later.clone(),
            Total::Uncounted | Total::TooLarge => value.clone(),
        }
    };
    old.iter().enumerate().map(of_column).collect()
}

fn set_one_aside(rows: &Rows<'_>, table: &TablePlan, lost: &Lost, now: &str) -> Result<(), Error> {
    let Some(image) = lost.new.as_ref().or(lost.old.as_ref()) else {
        return Ok(()); // made and deleted again: nothing is missing
    };
    let key = table.key_of(&image.row);
    let stands = rows.select(table, &key)?;
    let uploads = match lost.uploads {
        (from, to) if from == to => format!("upload {from}"),
        (from, to) => format!("uploads {from} to {to}"),
    };
    let message = format!("the consolidated database has lost {uploads}, which carried this change");
    let refusal = Refusal { code: RefusalCode::Lost, message };
    let completed = |image: &Option<Image>, from| image.as_ref().map(|image| image.completed(from));
    if let Some(gone) = &lost.gone {
        rows.note_gone(table, &key, RefusalCode::Lost, gone, now)?;
    }
    if let Some(later) = rows.pending(table, &key)?.filter(|later| !later.is_nothing()) {
        let between = later.old.as_ref().or(stands.as_ref());
        let [old, new] = [&lost.old, &lost.new].map(|image| completed(image, between));
        let lost = Pending { aside: 0, old, new, key };
        // A later one that is lost too is one with it.
        let is_one = later.aside == RefusalCode::Lost as i64;
        let is_counted = !is_one && later.old.is_some() && counters::has_added(table, &lost);
        let old = match (&lost.old, &later.old) {
            (Some(old), Some(later)) => Some(joined_old(table, (old, lost.new.as_deref()), later, is_counted)),
            _ => lost.old.clone(),
        };
        let is_nothing = old == later.new;
        log_change(rows, table, &lost.key, old.as_deref(), if is_nothing { 0 } else { later.aside })?;
        if later.aside == 0 {
            return if is_counted { rows.note_beside(table, &lost, &refusal, now) } else { Ok(()) };
        }
        if is_nothing {
            rows.drop_note(table, &table.key_bytes(&to_wire(&lost.key, &table.key_types)))?;
        } else {
            rows.note_joined(table, &lost.key, old.as_deref())?;
        }
        return if is_one || lost.is_nothing() { Ok(()) } else { rows.note_beside(table, &lost, &refusal, now) };
    }
    let [old, new] = [&lost.old, &lost.new].map(|image| completed(image, stands.as_ref()));
    let pending = Pending { aside: 0, old, new, key };
    if pending.is_nothing() {
        return Ok(());
    }
    let bytes = |row: &Option<Vec<Local>>| row.as_ref().map(|row| table.row_bytes(&to_wire(row, &table.types)));
    let is_in_place = bytes(&stands) == bytes(&pending.new);
    if is_in_place {
        log_change(rows, table, &pending.key, pending.old.as_deref(), 0)?;
        set_aside_mark(rows.connection, table, &pending.key, RefusalCode::Lost as u16)?;
    }
    rows.note_aside(table, &pending, &refusal, is_in_place, now)
}
