//! What was uploaded lately, in case the consolidated database loses it.
//!
//! The frames of the last uploads stay in `hw_upload` after their receipts, which `hw_sent` has, until newer ones need the room. When the database turns out to have this remote's uploads only up to some number (it was put back from a
//! backup, say), the changes of the later ones are taken from there, so that none is dropped in silence:
//!
//! | the row by now | what becomes of the change |
//! |---|---|
//! | was changed again, and that is pending | the pending change goes up as one with the lost one: its old image is the lost one's |
//! | is as the upload made it | it is set aside with its old image, as if it had been refused with the code `lost` |
//! | was changed by a download since | only the list of changes set aside has it |
//!
//! Not sent again by itself: whoever put the backup back may have meant it, and others may have gone on from there. Their numbers are left
//! out from then on: if the database that has them comes back, it is seen to lack those that came after.
//!
//! *Caveats.* An upload that is larger than [`KEPT_BYTES_MAX`] is not kept, and the oldest make way for newer ones: of those that are
//! lost and not kept, the numbers are named and no more.

use std::collections::BTreeMap;

use headwater_protocol::message::{Change, ConflictEnd, Outcome, Receipt, Refusal, RefusalCode, TableHeader};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Kind, Row, Type};
use rusqlite::{Connection, params, params_from_iter};

use crate::cut::{forget_frames, set_aside_mark, thaw};
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::pieces::frozen_bytes;
use crate::plan::{Plan, TablePlan};
use crate::rows::{Pending, Rows};
use crate::state::State;

/// How many bytes of frames are kept.
const KEPT_BYTES_MAX: i64 = 1 << 20;
/// How many uploads are kept, however small.
const KEPT_UPLOADS_MAX: i64 = 200;
/// How many losses are remembered; older ones are forgotten.
const LOSSES_MAX: i64 = 1_000;

/// Keeps the upload whose receipt is being applied, inside that transaction: its frames stay where they were frozen.
pub(crate) fn keep(connection: &Connection, sequence: u64, receipt: &Receipt) -> Result<(), Error> {
    let receipt = receipt.to_payload();
    let bytes = frozen_bytes(connection)? as i64 + receipt.len() as i64;
    if bytes > KEPT_BYTES_MAX {
        return forget_frames(connection, sequence);
    }
    let keep = || -> rusqlite::Result<()> {
        let sql = "INSERT INTO \"hw_sent\" (\"upload\", \"bytes\", \"receipt\") VALUES (?, ?, ?)";
        connection.prepare_cached(sql)?.execute(params![sequence as i64, bytes, receipt])?;
        make_room(connection, sequence)
    };
    keep().while_doing("keeping what was sent")
}

/// Forgets the oldest uploads beyond what is kept.
fn make_room(connection: &Connection, newest: u64) -> rusqlite::Result<()> {
    let sql = "SELECT \"upload\", \"bytes\" FROM \"hw_sent\" ORDER BY \"upload\" DESC";
    let mut uploads = connection.prepare_cached(sql)?;
    let (mut rows, mut bytes) = (uploads.query([])?, 0);
    while let Some(row) = rows.next()? {
        let upload: i64 = row.get(0)?;
        bytes += row.get::<_, i64>(1)?;
        if bytes > KEPT_BYTES_MAX || upload <= newest as i64 - KEPT_UPLOADS_MAX {
            connection.prepare_cached("DELETE FROM \"hw_sent\" WHERE \"upload\" <= ?")?.execute([upload])?;
            connection.prepare_cached("DELETE FROM \"hw_upload\" WHERE \"upload\" <= ?")?.execute([upload])?;
            break;
        }
    }
    Ok(())
}

/// A change that the consolidated database has no more: first old image and last new image of its key over all lost uploads.
struct Lost {
    upload: u64,
    old: Option<Row>,
    new: Option<Row>,
}

/// Goes back to upload `to`, the last that the consolidated database has: thaws the upload on its way, deals with those that are lost,
/// forgets what has been seen. Gives how many changes of the lost ones were found.
pub(crate) fn rewind(connection: &Connection, plan: &Plan, to: u64, now: &str) -> Result<u64, Error> {
    State::note_used(connection)?;
    thaw(connection, plan)?;
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
    let lost = read_lost(connection, plan, to)?;
    let rows = Rows::new(connection);
    for ((number, _), lost) in &lost {
        if let Some(table) = plan.table(*number).filter(|table| table.is_tracked()) {
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

fn read_lost(connection: &Connection, plan: &Plan, to: u64) -> Result<ByKey, Error> {
    let sql = "SELECT \"upload\", \"receipt\", \"kind\", \"payload\" FROM \"hw_sent\" JOIN \"hw_upload\" USING (\"upload\") \
               WHERE \"upload\" > ? ORDER BY \"upload\", \"frame\"";
    let mut select = connection.prepare_cached(sql).while_doing("reading what was sent")?;
    let mut frames = select.query([to as i64]).while_doing("reading what was sent")?;
    let mut reading = Reading::of(plan);
    while let Some(row) = frames.next().while_doing("reading what was sent")? {
        let read = || -> rusqlite::Result<(i64, Vec<u8>, u8, Vec<u8>)> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        };
        let (upload, receipt, kind, payload) = read().while_doing("reading what was sent")?;
        if upload as u64 != reading.upload {
            (reading.upload, reading.receipt) = (upload as u64, Receipt::from_payload(&receipt)?);
            (reading.ordinal, reading.table) = (0, None);
        }
        reading.frame(Kind::from_wire(kind), &payload)?;
    }
    Ok(reading.lost)
}

/// Goes through the frames that were kept.
struct Reading<'p> {
    plan: &'p Plan,
    lost: ByKey,
    /// Whose frames come now.
    upload: u64,
    receipt: Receipt,
    types: Vec<Type>,
    /// `None`: the model has changed since, and its rows have no place.
    table: Option<&'p TablePlan>,
    ordinal: u64,
}

impl<'p> Reading<'p> {
    fn of(plan: &'p Plan) -> Self {
        let (lost, receipt) = (ByKey::new(), Receipt::default());
        Reading { plan, lost, upload: 0, receipt, types: Vec::new(), table: None, ordinal: 0 }
    }

    fn frame(&mut self, kind: Option<Kind>, payload: &[u8]) -> Result<(), Error> {
        if kind == Some(Kind::Table) {
            let header = TableHeader::from_payload(payload)?;
            self.types = header.types();
            self.table = self.plan.table(header.table).filter(|table| table.header == header);
            return Ok(());
        }
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            let change = Change::read(&mut reader, &self.types, usize::MAX)?;
            self.change(change);
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        let ordinal = self.ordinal;
        self.ordinal += 1;
        let outcomes = &self.receipt.outcomes;
        let outcome = outcomes.binary_search_by_key(&ordinal, |(place, _)| *place).map(|place| &outcomes[place].1);
        if matches!(outcome, Ok(Outcome::Refused(_) | Outcome::Conflict(ConflictEnd::Consolidated))) {
            return; // the database never had it
        }
        let (upload, Some(table)) = (self.upload, self.table) else { return };
        let key = table.key_bytes(&table.key_of(change.image()));
        let lost = self.lost.entry((table.number, key)).or_insert_with(|| Lost { upload, old: change.old, new: None });
        (lost.upload, lost.new) = (upload, change.new);
    }
}

fn set_one_aside(rows: &Rows<'_>, table: &TablePlan, lost: &Lost, now: &str) -> Result<(), Error> {
    let Some(image) = lost.new.as_ref().or(lost.old.as_ref()) else {
        return Ok(()); // made and deleted again: nothing is missing
    };
    let key = from_wire(&table.key_of(image));
    let old = lost.old.as_deref().map(from_wire);
    if let Some(pending) = rows.pending(table, &key)?.filter(|pending| !pending.is_nothing()) {
        return log_change(rows, table, &key, old.as_deref(), pending.aside);
    }
    let pending = Pending { aside: 0, old, new: lost.new.as_deref().map(from_wire), key };
    if pending.is_nothing() {
        return Ok(());
    }
    let now_there = rows.select(table, &pending.key)?.map(|row| table.row_bytes(&to_wire(&row, &table.types)));
    let is_in_place = now_there == lost.new.as_ref().map(|row| table.row_bytes(row));
    if is_in_place {
        log_change(rows, table, &pending.key, pending.old.as_deref(), 0)?;
        set_aside_mark(rows.connection, table, &pending.key, RefusalCode::Lost as u16)?;
    }
    let message = format!("the consolidated database has lost upload {}, which carried this change", lost.upload);
    rows.note_aside(table, &pending, &Refusal { code: RefusalCode::Lost, message }, is_in_place, now)
}

/// Makes the open entry of a key in the log: the row that was there before (`None`: there was none), and the mark.
pub(crate) fn log_change(
    rows: &Rows<'_>,
    table: &TablePlan,
    key: &[Local],
    old: Option<&[Local]>,
    aside: i64,
) -> Result<(), Error> {
    let mut columns = vec!["\"upload\"".to_owned(), "\"aside\"".to_owned(), "\"existed\"".to_owned()];
    columns.extend(table.keys("k_"));
    columns.extend(table.others().map(|name| headwater_model::sql::quote(&format!("o_{name}"))));
    let others = table.names().enumerate().filter(|(place, _)| !table.table.key.contains(place));
    let null = Local::Null;
    let images = others.map(|(place, _)| old.map_or(&null, |row| &row[place]));
    let values: Vec<&Local> = key.iter().chain(images).collect();
    let places = vec!["?"; values.len()].join(", ");
    let sql = format!(
        "INSERT OR REPLACE INTO {} ({}) VALUES (0, {aside}, {}, {places})",
        table.log(),
        columns.join(", "),
        i64::from(old.is_some())
    );
    let mut insert = rows.prepare(&sql)?;
    insert.execute(params_from_iter(values)).while_doing("taking back a change").map(drop)
}
