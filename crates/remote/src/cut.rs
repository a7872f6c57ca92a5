//! Cutting an upload: the net changes since the last one, encoded and frozen in one transaction, and the way back.
//!
//! A frozen upload is bytes: whatever happens to the tables afterwards, a retry sends the same frames under the same number. Its
//! entries stay in the log, marked with that number, until a receipt says what became of them. The cut has a random name, by which the
//! consolidated database knows it from another file's of the same changes.
//!
//! *Caveats.* An upload is cut at [`UPLOAD_BYTES_MAX`], or at less where somebody on the way has not taken a larger one; what is left
//! goes under the next number.

use std::ops::ControlFlow;

use headwater_model::sql::quote;
use headwater_protocol::message::{Change, ChangeOp, Refusal, RefusalCode, TableHeader, UploadEnd};
use headwater_protocol::row::RowWriter;
use headwater_protocol::stored::{Scratch, decode};
use headwater_protocol::upload::Digest;
use headwater_protocol::wire::Reader;
use headwater_protocol::{Kind, Limits, ROW_BYTES_MAX};
use rusqlite::{Connection, params, params_from_iter};

use crate::database::Database;
use crate::dependents;
use crate::error::{Error, While};
use crate::local::{Local, readable, stored, to_wire};
use crate::plan::{Plan, TablePlan, same_values};
use crate::remote::random;
use crate::rows::{Pending, Rows};
use crate::schema;
use crate::state::State;
use crate::strays::{self, Lookout};
use crate::unsent;
use crate::wake::wake;

/// How full a frame of changes gets before it is closed.
const FRAME_BYTES_TARGET: usize = 64 * 1024;
/// How many entries whose row is as it was are taken out one by one; with more, the log is read once more for all of them.
const NOTHING_MAX: usize = 1_000;
/// How large an upload gets before it is closed: half of what a server takes.
pub(crate) const UPLOAD_BYTES_MAX: u64 = Limits::REQUEST.total_bytes_max / 2;

/// What was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The upload; `None`: nothing has changed that can be sent.
    pub(crate) end: Option<UploadEnd>,
    /// Whether it was closed because it is large, and more is to follow.
    pub(crate) is_partial: bool,
    /// Changes set aside here because their rows are too large.
    pub(crate) set_aside: u64,
}

/// Cuts an upload, unless one is cut already.
pub(crate) fn cut(database: &Database, plan: &Plan, now: &str) -> Result<Cut, Error> {
    database.write("cutting an upload", |connection| {
        let state = State::read(connection)?;
        if state.frozen.is_some() {
            return Ok(Cut { end: state.frozen, is_partial: false, set_aside: 0 });
        }
        schema::refresh_meanwhile(connection, plan)?;
        let rows = Rows::new(connection);
        wake(&rows, plan)?;
        unsent::forget_changed(&rows, plan)?;
        dependents::mark(&rows, plan, now)?;
        let sequence = state.upload_sequence.max(state.upload_used) + 1;
        let mut writer = UploadWriter {
            connection,
            sequence,
            digest: Digest::new(),
            frames: 0,
            changes: 0,
            bytes: 0,
            bytes_max: state.cut_bytes_max.max(1),
            set_aside: 0,
            has_strays: false,
        };
        for table in plan.tracked() {
            writer.table(&rows, table, now)?;
        }
        let UploadWriter { changes, set_aside, has_strays, .. } = writer;
        if changes == 0 {
            State::set_upload_refused(connection, None)?;
            return Ok(Cut { end: None, is_partial: false, set_aside });
        }
        let end = Some(UploadEnd { sequence, changes, digest: writer.digest.finish() });
        State::set_frozen(connection, end.as_ref())?;
        name_cut(connection, sequence)?;
        if has_strays {
            strays::mark(&rows, sequence)?;
        }
        Ok(Cut { end, is_partial: writer.bytes >= writer.bytes_max, set_aside })
    })
}

/// Where the name of an upload's cut lies among its frames.
const NAME_FRAME: i64 = -1;

fn name_cut(connection: &Connection, sequence: u64) -> Result<(), Error> {
    let name: [u8; 8] = random()?;
    let sql = "INSERT INTO \"hw_upload\" (\"upload\", \"frame\", \"kind\", \"payload\") VALUES (?, ?, 0, ?)";
    connection.execute(sql, params![sequence as i64, NAME_FRAME, name]).while_doing("staging an upload").map(drop)
}

/// The name of an upload's cut; `None`: an earlier version cut it.
pub(crate) fn cut_name(connection: &Connection, sequence: u64) -> Result<Option<[u8; 8]>, Error> {
    let sql = "SELECT \"payload\" FROM \"hw_upload\" WHERE \"upload\" = ? AND \"frame\" = ?";
    let found = connection.query_row(sql, params![sequence as i64, NAME_FRAME], |row| row.get(0));
    rusqlite::OptionalExtension::optional(found).while_doing("reading the upload")
}

/// Undoes the cutting: the changes are open again with their first old images. The number is used for no other upload, as a request with it may
/// be on its way still. `is_given_up`: the database has used it up, and it is acknowledged.
pub(crate) fn thaw(connection: &Connection, plan: &Plan, is_given_up: bool) -> Result<(), Error> {
    let Some(end) = State::read(connection)?.frozen else {
        return Ok(());
    };
    use_number_up(connection, end.sequence, is_given_up)?;
    for table in plan.tracked() {
        reopen(connection, table, end.sequence, "1 = 1", &[])?;
    }
    forget_frames(connection, end.sequence)?;
    State::set_frozen(connection, None)
}

/// The frozen upload's number is used for no other; where the database knows that, it is acknowledged.
pub(crate) fn use_number_up(connection: &Connection, sequence: u64, is_given_up: bool) -> Result<(), Error> {
    State::note_used(connection)?;
    if is_given_up { State::set_upload_sequence(connection, sequence) } else { Ok(()) }
}

/// Of an upload that never was applied, or that is not to be kept.
pub(crate) fn forget_frames(connection: &Connection, sequence: u64) -> Result<(), Error> {
    let sql = "DELETE FROM \"hw_upload\" WHERE \"upload\" = ?";
    connection.execute(sql, [sequence as i64]).while_doing("forgetting an upload's frames").map(drop)
}

/// Moves frozen entries that meet a condition (on the log `f`, with parameters from ?1) back among the open ones. Where the key was
/// changed again since, the frozen entry's old image is the first and stays; and so does the mark where the row went with its table.
pub(crate) fn reopen(
    connection: &Connection,
    table: &TablePlan,
    sequence: u64,
    condition: &str,
    key: &[Local],
) -> Result<(), Error> {
    let log = table.log();
    let columns: Vec<String> = log_columns(table);
    let (names, values) =
        (columns.join(", "), columns.iter().map(|name| format!("f.{name}")).collect::<Vec<_>>().join(", "));
    let frozen = format!("FROM {log} AS f WHERE f.\"upload\" = {sequence} AND {condition}");
    let same: Vec<String> = table.keys("k_").iter().map(|name| format!("g.{name} = f.{name}")).collect();
    let is_gone = format!("g.\"upload\" = 0 AND g.\"aside\" = {} AND {}", RefusalCode::Gone as u16, same.join(" AND "));
    let back = format!(
        "INSERT OR REPLACE INTO {log} (\"upload\", {names}, \"aside\") \
         SELECT 0, {values}, coalesce((SELECT g.\"aside\" FROM {log} AS g WHERE {is_gone}), 0) {frozen}"
    );
    connection.execute(&back, params_from_iter(key)).while_doing("reopening a change")?;
    let gone = format!("DELETE FROM {log} AS f WHERE f.\"upload\" = {sequence} AND {condition}");
    connection.execute(&gone, params_from_iter(key)).while_doing("reopening a change").map(drop)
}

/// The columns of the log, its number and mark aside.
pub(crate) fn log_columns(table: &TablePlan) -> Vec<String> {
    let mut columns = table.keys("k_");
    columns.push("\"existed\"".to_owned());
    columns.extend(table.others().map(|name| quote(&format!("o_{name}"))));
    columns
}

/// Marks the open change of a key as refused with this code; 0 takes the mark off.
pub(crate) fn set_aside_mark(
    connection: &Connection,
    table: &TablePlan,
    key: &[Local],
    code: u16,
) -> Result<(), Error> {
    let condition: Vec<String> =
        table.keys("k_").iter().zip(1..).map(|(name, place)| format!("{name} = ?{place}")).collect();
    let sql =
        format!("UPDATE {} SET \"aside\" = {code} WHERE \"upload\" = 0 AND {}", table.log(), condition.join(" AND "));
    connection.execute(&sql, params_from_iter(key)).while_doing("marking a change").map(drop)
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
    columns.extend(table.others().map(|name| quote(&format!("o_{name}"))));
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

/// Takes entries out of the log whose row is as it was.
pub(crate) fn forget_nothing(rows: &Rows<'_>, table: &TablePlan) -> Result<(), Error> {
    let condition = is_nothing_condition(table);
    let sql = format!("DELETE FROM {} AS l WHERE l.\"upload\" = 0 AND l.\"aside\" = 0 AND {condition}", table.log());
    rows.execute(&sql, &[]).map(drop)
}

/// A condition on entries of the log `l`: their row is as it was.
pub(crate) fn is_nothing_condition(table: &TablePlan) -> String {
    let same_key: Vec<String> =
        table.keys("").iter().zip(table.keys("k_")).map(|(own, logged)| format!("r.{own} = l.{logged}")).collect();
    let row = format!("EXISTS (SELECT 1 FROM {} AS r WHERE {}", table.name(), same_key.join(" AND "));
    let own: Vec<String> = table.others().map(|name| format!("r.{}", quote(name))).collect();
    let old: Vec<String> = table.others().map(|name| format!("l.{}", quote(&format!("o_{name}")))).collect();
    let same = same_values(&own, &old);
    format!("CASE l.\"existed\" WHEN 1 THEN {row} AND {same}) ELSE NOT {row}) END")
}

struct UploadWriter<'c> {
    connection: &'c Connection,
    sequence: u64,
    digest: Digest,
    frames: i64,
    changes: u64,
    bytes: u64,
    bytes_max: u64,
    set_aside: u64,
    /// Whether rows lie in partitions of which nothing is known.
    has_strays: bool,
}

impl UploadWriter<'_> {
    /// Writes the open changes of a table, in key order, and marks them as frozen.
    fn table(&mut self, rows: &Rows<'_>, table: &TablePlan, now: &str) -> Result<(), Error> {
        if self.bytes >= self.bytes_max {
            return Ok(());
        }
        let mut select = rows.prepare(&table.sql.open)?;
        let mut open = select.query([]).while_doing("reading the log")?;
        let (mut nothing, mut nothing_count, mut too_large) = (Vec::new(), 0, Vec::new());
        let (mut payload, mut change) = (Vec::new(), Vec::new());
        let (mut last, mut lookout) = (None, Lookout::new(table));
        while let Some(row) = open.next().while_doing("reading the log")? {
            change.clear();
            let key = if write_insert(table, row, &mut change).while_doing("reading the log")? {
                Pending::read_key(table, row).while_doing("reading the log")?
            } else {
                let pending = Pending::read(table, row).while_doing("reading the log")?;
                if pending.is_nothing() {
                    nothing_count += 1;
                    if nothing_count <= NOTHING_MAX {
                        nothing.push(pending.key);
                    }
                    continue;
                }
                write_change(table, &pending, &mut change);
                pending.key
            };
            if change.len() > ROW_BYTES_MAX
                && let Some(bytes) = oversize(table, row).while_doing("reading the log")?
            {
                too_large.push((key, bytes));
                continue;
            }
            if last.is_none() {
                let header = table.header.to_frame();
                self.frame(Kind::Table, &header.payload(usize::MAX)?)?;
            }
            if !payload.is_empty() && payload.len() + change.len() > FRAME_BYTES_TARGET {
                self.frame(Kind::Changes, &payload)?;
                payload.clear();
            }
            if change.len() > FRAME_BYTES_TARGET {
                self.frame(Kind::Changes, &std::mem::take(&mut change))?;
            } else {
                payload.extend_from_slice(&change);
            }
            lookout.row(rows, row)?;
            self.changes += 1;
            last = Some(key);
            if self.bytes + payload.len() as u64 >= self.bytes_max {
                break;
            }
        }
        if !payload.is_empty() {
            self.frame(Kind::Changes, &payload)?;
        }
        drop(open);
        self.has_strays |= lookout.found;
        if nothing_count > NOTHING_MAX {
            forget_nothing(rows, table)?;
        } else {
            nothing.iter().try_for_each(|key| rows.forget(table, key))?;
        }
        for (key, bytes) in too_large {
            self.too_large(rows, table, &key, bytes, now)?;
        }
        last.map_or(Ok(()), |last| self.freeze(table, &last))
    }

    fn too_large(
        &mut self,
        rows: &Rows<'_>,
        table: &TablePlan,
        key: &[Local],
        bytes: usize,
        now: &str,
    ) -> Result<(), Error> {
        let Some(pending) = rows.pending(table, key)? else { return Ok(()) };
        let message =
            format!("the row takes {bytes} bytes, expected at most {ROW_BYTES_MAX}: make it smaller, and sync again");
        let name = &table.table.name;
        tracing::warn!(
            table = name,
            key = readable(table.key_names(), key),
            bytes,
            limit = ROW_BYTES_MAX,
            "a row is too large to be sent"
        );
        let refusal = Refusal { code: RefusalCode::RowTooLarge, message };
        set_aside_mark(self.connection, table, key, refusal.code as u16)?;
        self.set_aside += 1;
        rows.note_aside(table, &pending, &refusal, true, now)
    }

    fn freeze(&self, table: &TablePlan, last: &[Local]) -> Result<(), Error> {
        let sequence = self.sequence;
        let places: Vec<String> = (1..=last.len()).map(|place| format!("?{place}")).collect();
        let sql = format!(
            "UPDATE {} SET \"upload\" = {sequence} WHERE \"upload\" = 0 AND \"aside\" = 0 AND ({}) <= ({})",
            table.log(),
            table.keys("k_").join(", "),
            places.join(", ")
        );
        self.connection.execute(&sql, params_from_iter(last)).while_doing("freezing the log").map(drop)
    }

    fn frame(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        self.digest.add(kind, payload);
        self.bytes += payload.len() as u64;
        self.frames += 1;
        let sql = "INSERT INTO \"hw_upload\" (\"upload\", \"frame\", \"kind\", \"payload\") VALUES (?, ?, ?, ?)";
        let mut insert = self.connection.prepare_cached(sql).while_doing("staging an upload")?;
        let row = params![self.sequence as i64, self.frames, kind as u8, payload];
        insert.execute(row).while_doing("staging an upload").map(drop)
    }
}

fn write_change(table: &TablePlan, pending: &Pending, out: &mut Vec<u8>) {
    let image = |row: &Option<Vec<Local>>| row.as_ref().map(|row| to_wire(row, &table.types));
    Change { old: image(&pending.old), new: image(&pending.new) }.write(out, &table.types);
}

/// How many bytes a row of a change takes, if they are too many: as it was, or as it is.
fn oversize(table: &TablePlan, row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<usize>> {
    let pending = Pending::read(table, row)?;
    let images = [&pending.old, &pending.new].into_iter().flatten();
    let bytes = images.map(|image| table.row_bytes(&to_wire(image, &table.types)).len()).max();
    Ok(bytes.filter(|bytes| *bytes > ROW_BYTES_MAX))
}

/// Writes a row of the log's query straight as it stands, if it is an insert: there is no old image to compare it with.
fn write_insert(table: &TablePlan, row: &rusqlite::Row<'_>, out: &mut Vec<u8>) -> rusqlite::Result<bool> {
    let count = table.types.len();
    if row.get::<_, i64>(0)? == 1 || !row.get::<_, bool>(2 + count)? {
        return Ok(false);
    }
    out.push(ChangeOp::Insert as u8);
    let mut scratch = Scratch::default();
    let mut writer = RowWriter::new(out, &table.types);
    for (place, kind) in table.types.iter().enumerate() {
        writer.push(decode(stored(row.get_ref(3 + count + place)?), *kind, &mut scratch));
    }
    writer.finish();
    Ok(true)
}

/// Reads the frozen upload's frames one after the other; `None` at the end.
pub(crate) fn frozen_frame(connection: &Connection, number: i64) -> Result<Option<(Kind, Vec<u8>)>, Error> {
    let sql = "SELECT \"kind\", \"payload\" FROM \"hw_upload\" \
               WHERE \"upload\" = (SELECT \"frozen\" FROM \"hw_state\") AND \"frame\" = ?";
    let mut select = connection.prepare_cached(sql).while_doing("reading the upload")?;
    let found = rusqlite::OptionalExtension::optional(
        select.query_row([number], |row| Ok((row.get::<_, u8>(0)?, row.get::<_, Vec<u8>>(1)?))),
    );
    let Some((kind, payload)) = found.while_doing("reading the upload")? else {
        return Ok(None);
    };
    let kind = Kind::from_wire(kind).ok_or_else(|| Error::damaged(format!("hw_upload has a frame of kind {kind}")))?;
    Ok(Some((kind, payload)))
}

/// Goes through the frozen upload's changes, in their order, until `see` breaks off.
pub(crate) fn frozen_changes<'p>(
    connection: &Connection,
    plan: &'p Plan,
    see: &mut dyn FnMut(&'p TablePlan, Change) -> Result<ControlFlow<()>, Error>,
) -> Result<(), Error> {
    let mut table = None;
    for number in 1.. {
        let Some((kind, payload)) = frozen_frame(connection, number)? else { break };
        if kind == Kind::Table {
            table = plan.table(TableHeader::from_payload(&payload)?.table);
            continue;
        }
        let table = table.ok_or_else(|| Error::damaged("hw_upload has changes of no table of the model"))?;
        let mut reader = Reader::new(&payload);
        while !reader.is_empty() {
            if see(table, Change::read(&mut reader, &table.types, usize::MAX)?)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
