//! Applying a download: every row, deletion and watermark of it in one transaction, frame by frame.
//!
//! Nothing local blocks a download, and nothing that came down is dropped:
//!
//! | in the way | what becomes of it |
//! |---|---|
//! | a pending change of the same key | it stays; the downloaded row is merged into it or held beside it ([`store`]) |
//! | a unique value, in a row with a pending change | that change is set aside, its row is as it came down last |
//! | a unique value, in another row | that row changes later in the same download: it steps aside until then |
//! | a foreign key, at the end | the pending change that breaks it is set aside ([`foreign`]) |
//! | a constraint that the consolidated database does not have | the downloaded row is held and tried again at each sync |
//!
//! The application's own triggers fire; what they write is a local change like any other ([`crate::own_triggers`]). Where there are none,
//! all triggers are switched off on our connection.

mod as_it_came;
mod departure;
mod doubt;
mod foreign;
mod fresh;
mod going;
mod indexes;
mod involved;
mod outcome;
mod own_children;
mod own_columns;
mod partition;
mod prepared;
mod store;
mod whereabouts;

use std::collections::HashSet;

use headwater_protocol::message::{
    Download, KeyRanges, PartitionMark, RowOp, RowsReader, TableHeader, Watermarks, Welcome,
};
use headwater_protocol::row::{Cell, RowReader, read_row};
use headwater_protocol::stored::{Scratch, encode};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Frame, Kind, Limits, Value, ValueRef};
use rusqlite::config::DbConfig;
use rusqlite::{CachedStatement, Connection};

use crate::cut::forget_nothing;
use crate::database::Database;
use crate::error::{Error, While};
use crate::key_ranges;
use crate::local::{Bound, from_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::{Placed, Rows};
use crate::schema;
use crate::state::{State, write_watermarks};
use crate::strays;
use crate::untracked::{self, Doubt};
use crate::upgrade::{self, Change, Fresh};
use crate::wake::wake_nothing;
use as_it_came::Kept;
use departure::Departure;
use foreign::Touched;
pub(crate) use going::without_change;
use indexes::Later;
use involved::{Involved, KeySum};
pub(crate) use own_children::{OwnChildren, orphans};
pub(crate) use prepared::{Prepared, prepare};

/// What a download did, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Rows that came down.
    pub(crate) rows: u64,
    /// Deletions that came down.
    pub(crate) deletions: u64,
    /// Rows and deletions kept beside pending changes.
    pub(crate) held: u64,
    /// Pending changes set aside because they were in the way.
    pub(crate) set_aside: u64,
    /// Pending changes of columns that went with the model's version; what they made of those is on the list.
    pub(crate) left_out: u64,
    /// Rows that the file does not take; they are held and tried again.
    pub(crate) not_stored: u64,
    /// Rows that were changed here while change tracking was off, or perhaps were.
    pub(crate) untracked: u64,
    /// Tables that came whole though it was known what had been seen of them.
    pub(crate) afresh: u64,
}

/// The frames of a download, one after the other; `None` at the end.
pub(crate) type Frames<'f> = dyn FnMut(&Connection) -> Result<Option<Frame>, Error> + 'f;

/// Told the number of rows so far, frame by frame; an error ends the applying, and nothing of it takes place.
pub(crate) type Watch<'w> = dyn FnMut(u64) -> Result<(), Error> + 'w;

/// Applies a download.
pub(crate) fn apply(
    database: &Database,
    plan: &Plan,
    now: &str,
    frames: &mut Frames<'_>,
    watch: &mut Watch<'_>,
) -> Result<Applied, Error> {
    apply_prepared(database, plan, None, now, frames, watch)
}

/// Applies a download of which this is prepared.
pub(crate) fn apply_prepared(
    database: &Database,
    plan: &Plan,
    prepared: Option<Prepared>,
    now: &str,
    frames: &mut Frames<'_>,
    watch: &mut Watch<'_>,
) -> Result<Applied, Error> {
    let connection = &database.connection;
    let temporary = prepared.as_ref().map(Prepared::numbers).unwrap_or_default();
    let applied = database.write_lazily("applying a download", |connection| {
        set_triggers(connection, schema::has_own_triggers(connection, plan)?)?;
        // What came down was asked for before: what was written without a trace since must not be overwritten without one.
        schema::refresh_meanwhile(connection, plan)?;
        frame_by_frame(connection, plan, (&[], prepared), now, frames, watch)
    });
    set_triggers(connection, true)?;
    prepared::forget(connection, plan, &temporary);
    applied
}

/// Changes the model's version and applies its first download, in one transaction. The change's plan is that of the file afterwards.
pub(crate) fn apply_change(
    database: &Database,
    old: &Plan,
    change: &mut Change,
    now: &str,
    frames: &mut Frames<'_>,
    watch: &mut Watch<'_>,
) -> Result<Applied, Error> {
    let connection = &database.connection;
    let applied = database.write("changing the model's version", |connection| {
        let triggers_fire = schema::has_own_triggers(connection, old)?;
        // Whether they are what is missing is judged with the first frame, by what had been seen under the old version.
        let mut first = frames(connection)?;
        // Triggers are compiled, to see whether they still fit.
        let fresh = upgrade::change::run(connection, old, change, now)?;
        set_triggers(connection, triggers_fire)?;
        let mut frames =
            |connection: &Connection| first.take().map_or_else(|| frames(connection), |first| Ok(Some(first)));
        frame_by_frame(connection, &change.plan, (&fresh, None), now, &mut frames, watch)
    });
    set_triggers(connection, true)?;
    applied
}

fn frame_by_frame(
    connection: &Connection,
    plan: &Plan,
    (fresh, prepared): (&[Option<Fresh>], Option<Prepared>),
    now: &str,
    frames: &mut Frames<'_>,
    watch: &mut Watch<'_>,
) -> Result<Applied, Error> {
    let state = State::read(connection)?;
    if state.frozen.is_some() {
        return Err(Error::Unexpected { what: "a download came before the receipt of the upload".to_owned() });
    }
    let is_good = prepared.as_ref().map_or(Ok(false), |prepared| prepared.is_good(connection))?;
    let prepared = prepared.filter(|_| is_good);
    let mut apply = Apply::begin(connection, plan, (fresh, prepared), state.incarnation == [0; 16], now)?;
    while let Some(frame) = frames(connection)? {
        apply.frame(&frame)?;
        watch(apply.applied.rows + apply.applied.deletions)?;
    }
    apply.finish()
}

fn set_triggers(connection: &Connection, on: bool) -> Result<(), Error> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, on).while_doing("switching triggers").map(drop)
}

struct Apply<'a> {
    rows: Rows<'a>,
    plan: &'a Plan,
    now: &'a str,
    /// The table whose rows come now.
    table: Option<&'a TablePlan>,
    /// Whether rows of that table can simply be stored, but for those that are involved.
    is_plain: bool,
    /// The keys of those with a pending change, a held row or an open conflict; `None`: there are some, and they were not read yet.
    involved: Option<Involved>,
    /// Whether rows have stepped aside.
    has_displaced: bool,
    welcome: Option<Welcome>,
    download: [u8; 16],
    watermarks: Option<Watermarks>,
    /// Whether the remote knows nothing of what it holds: the first download of an incarnation.
    is_restart: bool,
    /// Tables that had rows, or changes of rows, before this restart.
    sweeps: Vec<bool>,
    /// Tables of which rows have come, or a partition comes whole.
    begun: HashSet<u32>,
    /// Partitions that came whole.
    came_whole: HashSet<(u32, Vec<u8>)>,
    /// Tables of which a partition came whole though it was known what had been seen of it.
    afresh: HashSet<u32>,
    departure: Departure,
    /// Tables with rows that go unless they come again.
    going: HashSet<u32>,
    /// What was done before the lock.
    prepared: Option<Prepared>,
    /// How many frames of rows have come.
    rows_frames: usize,
    /// By table, where it has just been made anew: what pending changes know nothing of.
    fresh: &'a [Option<Fresh>],
    /// Partitions that are left.
    left: HashSet<(u32, Vec<u8>)>,
    /// By table.
    doubts: Vec<Doubt>,
    /// Partitions of tables that were asked for whole, to be compared, which were not held before.
    joined: HashSet<(u32, Vec<u8>)>,
    kept: Kept,
    /// Tables that were asked for whole, and have been compared.
    compared: Vec<u32>,
    touched: Touched,
    /// Indexes that are built when the rows have come.
    indexes: Later,
    /// The application's own columns, by table.
    own_columns: Vec<Vec<String>>,
    /// The application's own foreign keys to tables of the model.
    own_children: OwnChildren,
    applied: Applied,
}

impl<'a> Apply<'a> {
    fn begin(
        connection: &'a Connection,
        plan: &'a Plan,
        (fresh, prepared): (&'a [Option<Fresh>], Option<Prepared>),
        is_restart: bool,
        now: &'a str,
    ) -> Result<Apply<'a>, Error> {
        let sql = "CREATE TEMP TABLE IF NOT EXISTS \"hw_displaced\" (\"table\" INTEGER, \"key\" BLOB, \"image\" BLOB, \"is_here\" INTEGER, \
                   PRIMARY KEY (\"table\", \"key\")) WITHOUT ROWID; DELETE FROM temp.\"hw_displaced\"";
        connection.execute_batch(sql).while_doing("beginning to apply a download")?;
        let rows = Rows::new(connection);
        whereabouts::remember_pending(&rows, plan)?;
        let sweeps =
            plan.tables.iter().map(|table| Ok(is_restart && rows.has_any(table)?)).collect::<Result<_, Error>>()?;
        let mut doubts = untracked::doubts_by_download(connection, plan)?;
        let mut kept = Kept::default();
        for (table, doubt) in plan.tables.iter().zip(&mut doubts) {
            if matches!(doubt, Doubt::Since | Doubt::Compare) && is_restart {
                *doubt = Doubt::AtOnce;
            }
            if matches!(doubt, Doubt::Since | Doubt::Compare | Doubt::AtOnce) && table.is_tracked() {
                // What was written as it stood without a trace is not accounted for by its entry in the log, refused or not.
                wake_nothing(&rows, table)?;
                forget_nothing(&rows, table)?;
            }
            if matches!(doubt, Doubt::Compare | Doubt::AtOnce) {
                doubt::keep_before(&rows, table)?;
            }
            if *doubt == Doubt::Compare {
                kept.begin(&rows, table)?;
                rows.ignore_own_triggers(table)?;
            }
        }
        let indexes = if is_restart { Later::of_empty_tables(&rows, plan)? } else { Later::default() };
        let own_children = OwnChildren::find(&rows, plan)?;
        let mut touched = Touched::new(connection, plan)?;
        for (table, _) in plan.tables.iter().zip(fresh).filter(|(_, fresh)| fresh.is_some()) {
            touched.all_of(table);
        }
        let mut apply = Apply {
            rows,
            plan,
            now,
            table: None,
            is_plain: false,
            involved: None,
            has_displaced: false,
            welcome: None,
            download: [0; 16],
            watermarks: None,
            is_restart,
            sweeps,
            begun: HashSet::new(),
            came_whole: HashSet::new(),
            afresh: HashSet::new(),
            departure: Departure::default(),
            going: HashSet::new(),
            prepared,
            rows_frames: 0,
            fresh,
            left: HashSet::new(),
            doubts,
            joined: HashSet::new(),
            kept,
            compared: Vec::new(),
            touched,
            indexes,
            own_columns: own_columns::find(connection, plan)?,
            own_children,
            applied: Applied {
                set_aside: fresh.iter().flatten().map(|fresh| fresh.listed).sum(),
                left_out: fresh.iter().flatten().map(|fresh| fresh.left_out).sum(),
                ..Applied::default()
            },
        };
        apply.clear()?;
        Ok(apply)
    }

    fn frame(&mut self, frame: &Frame) -> Result<(), Error> {
        let taken = if frame.kind == Kind::Rows { self.next_taken() } else { None };
        if taken.is_some_and(|taken| !taken.has_deletions) {
            return Ok(());
        }
        let payload = frame.payload(Limits::ANSWER.frame_bytes_max)?;
        if frame.kind != Kind::Partition {
            self.end_departure()?;
        }
        match frame.kind {
            Kind::Welcome => {
                self.welcome = Some(Welcome::from_payload(&payload)?);
                Ok(())
            }
            Kind::Download => {
                self.download = Download::from_payload(&payload)?.id;
                Ok(())
            }
            Kind::Table => self.header(&TableHeader::from_payload(&payload)?),
            Kind::Partition => {
                let mark = PartitionMark::from_payload(&payload)?;
                let table = self.plan.table(mark.table).ok_or_else(|| unknown_table(mark.table))?;
                self.turn_to(table)?;
                self.partition(table, &mark)?;
                self.turn_to(table)
            }
            Kind::Rows => self.rows_frame(&payload, taken.is_some()),
            Kind::KeyRanges => key_ranges::take(self.rows.connection, &KeyRanges::from_payload(&payload)?),
            Kind::Watermarks => {
                self.watermarks = Some(Watermarks::from_payload(&payload)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What of the next frame of rows is prepared.
    fn next_taken(&mut self) -> Option<prepared::Taken> {
        let taken = self.prepared.as_ref().and_then(|prepared| prepared.taken(self.rows_frames));
        self.rows_frames += 1;
        if let (Some(taken), Some(table)) = (taken, self.table) {
            self.begun.insert(table.number);
            self.applied.rows += taken.rows;
        }
        taken
    }

    fn header(&mut self, header: &TableHeader) -> Result<(), Error> {
        let table = self.plan.table(header.table).ok_or_else(|| unknown_table(header.table))?;
        if *header != table.header {
            let what = format!("table {:?} comes with other columns than the model has", header.name);
            return Err(Error::Unexpected { what });
        }
        self.turn_to(table)
    }

    /// Makes this the table whose rows are stored, and finds out whether that can be done without looking left and right.
    fn turn_to(&mut self, table: &'a TablePlan) -> Result<(), Error> {
        if let Some(before) = self.table.filter(|before| before.number != table.number) {
            self.store_prepared()?;
            self.delete_what_did_not_come(before)?;
        }
        self.table = Some(table);
        self.rows.set_applying(Some(table))?;
        let number = table.number;
        let pending = table.is_tracked() && self.rows.any(&format!("SELECT 1 FROM {} LIMIT 1", table.log()))?;
        let held = self.rows.any(&format!("SELECT 1 FROM \"hw_held\" WHERE \"table\" = {number}"))?;
        let conflicts =
            self.rows.any(&format!("SELECT 1 FROM \"hw_conflict\" WHERE \"table\" = {number} AND \"is_open\" = 1"))?;
        let noted = matches!(self.fresh.get(number as usize), Some(Some(_)))
            && self.rows.any(&format!("SELECT 1 FROM \"hw_set_aside\" WHERE \"table\" = {number}"))?;
        let watched = !self.touched.is_whole(table) || self.doubts[number as usize].is_open() || noted;
        let is_looked_up = self.has_below(table)? || self.rows.fires_own_triggers(table)?;
        self.is_plain = !(watched || is_looked_up || self.has_displaced);
        self.involved = if pending || held || conflicts { None } else { Some(Involved::default()) };
        Ok(())
    }

    /// `is_taken`: the rows are prepared, and the deletions alone are made.
    fn rows_frame(&mut self, payload: &[u8], is_taken: bool) -> Result<(), Error> {
        let Some(table) = self.table else {
            return Err(Error::Unexpected { what: "rows come before their table".to_owned() });
        };
        self.begun.insert(table.number);
        let tells_leaving = self.rows.fires_own_triggers(table)? || self.has_own_children(table);
        if tells_leaving {
            self.let_rows_leave(table, payload)?;
        }
        if self.is_plain && self.involved.is_none() {
            self.involved = Involved::read(&self.rows, table)?;
            self.is_plain = self.involved.is_some();
        }
        let mut plain = match self.rows.prepare_writing(table, &table.sql.upsert)? {
            Ok(upsert) if self.is_plain => {
                let stays = self.stays_sql(table).map(|sql| self.rows.prepare(&sql)).transpose()?;
                Some(Plain { upsert, stays })
            }
            _ => None,
        };
        let mut scratch = Scratch::default();
        let mut reader = RowsReader::new(payload);
        while let Some(op) = reader.next_op()? {
            if op != RowOp::Upsert {
                let key = read_row(reader.row(), &table.key_types, usize::MAX, None)?;
                if op != RowOp::Leave || !tells_leaving {
                    self.applied.deletions += 1;
                    self.rows.leaving.set(op == RowOp::Leave);
                    self.delete(table, &key)?;
                    self.rows.leaving.set(false);
                }
                continue;
            }
            if is_taken {
                read_row(reader.row(), &table.types, usize::MAX, None)?;
                continue;
            }
            self.applied.rows += 1;
            let start = reader.row().clone();
            if let Some(plain) = plain.as_mut().filter(|_| self.is_plain)
                && self.store_plain(table, plain, reader.row(), &mut scratch)?
            {
                continue;
            }
            *reader.row() = start;
            let row = read_row(reader.row(), &table.types, usize::MAX, None)?;
            self.store(table, &row)?;
            self.involve(table, &row);
        }
        Ok(())
    }

    /// The rows of a frame that leave the remote go before the others come, so that what triggers write meanwhile is told apart, and what the
    /// application's foreign keys would do to own rows.
    fn let_rows_leave(&mut self, table: &TablePlan, payload: &[u8]) -> Result<(), Error> {
        let mut reader = RowsReader::new(payload);
        while let Some(op) = reader.next_op()? {
            let types = if op == RowOp::Upsert { &table.types } else { &table.key_types };
            let row = read_row(reader.row(), types, usize::MAX, None)?;
            if op == RowOp::Leave {
                self.begin_departure(table)?;
                self.applied.deletions += 1;
                self.delete(table, &row)?;
            }
        }
        self.end_departure()
    }

    /// A row was not simply stored: it may be held now.
    fn involve(&mut self, table: &TablePlan, row: &[Value]) {
        if !self.is_plain {
            return;
        }
        let involved = self.involved.get_or_insert_default();
        involved.insert(&from_wire(&table.key_of(row)));
        self.is_plain = !involved.is_full();
    }

    fn finish(mut self) -> Result<Applied, Error> {
        self.end_departure()?;
        self.store_prepared()?;
        let plan = self.plan;
        plan.tables.iter().try_for_each(|table| self.delete_what_did_not_come(table))?;
        std::mem::take(&mut self.indexes).build(self.rows.connection, self.applied.rows)?;
        if self.is_restart {
            self.sweep()?;
            self.end_departure()?;
        }
        self.settle_absent()?;
        self.settle_all()?;
        if self.compare_doubtful()? {
            self.settle_all()?;
        }
        self.let_go_what_went_up()?;
        self.end_departure()?;
        self.give_own_back()?;
        self.rows.set_applying(None)?;
        self.carry_out_own_keys()?;
        let mut seen = self.watermarks.take();
        seen.as_mut().map_or(Ok(()), |seen| self.ask_for_outcomes(seen))?;
        let connection = self.rows.connection;
        if let Some(seen) = seen.as_mut().filter(|_| !self.is_restart) {
            strays::keep(connection, seen, &self.left, |table, partition| self.has_nothing_in(table, partition))?;
            untracked::keep_seen(connection, &self.compared, seen)?;
        }
        let (Some(welcome), Some(watermarks)) = (&self.welcome, &seen) else {
            return Err(Error::Unexpected { what: "the download lacks its WELCOME or its WATERMARKS".to_owned() });
        };
        write_watermarks(connection, watermarks)?;
        key_ranges::pass_taken(connection, self.plan)?;
        connection.execute("DELETE FROM \"hw_staged\"", []).while_doing("emptying the staging table")?;
        State::set_applied(connection, welcome, self.download, self.now)?;
        self.applied.afresh = self.afresh.len() as u64;
        Ok(self.applied)
    }
}

impl Apply<'_> {
    fn settle_all(&mut self) -> Result<(), Error> {
        loop {
            self.return_displaced()?;
            for table in &self.plan.tables {
                self.settle_held(table)?;
            }
            self.check_foreign_keys()?;
            // Each further round has set a pending change aside.
            if !self.has_displaced {
                return Ok(());
            }
        }
    }

    /// Stores a row straight from the frame, unless it is involved, or something is in its way: whether it is stored.
    fn store_plain<'p>(
        &self,
        table: &TablePlan,
        Plain { upsert, stays }: &mut Plain<'_>,
        reader: &mut Reader<'p>,
        scratch: &mut Scratch,
    ) -> Result<bool, Error> {
        let mut cells = RowReader::new(reader, &table.types, usize::MAX)?;
        let involved = self.involved.as_ref().filter(|involved| !involved.is_empty());
        let mut key = KeySum::default();
        let mut place = 0;
        while let Some(cell) = cells.next_cell()? {
            let value: ValueRef<'p> = match cell {
                Cell::Value(value) => value,
                Cell::Same => {
                    return Err(Error::Unexpected { what: "a downloaded row refers to an image before it".to_owned() });
                }
            };
            let value = encode(value, scratch);
            if (involved.is_some() || stays.is_some())
                && let Some(place) = table.table.key.iter().position(|of_key| *of_key == place)
            {
                key.add(place, value);
                if let Some(stays) = stays {
                    stays.raw_bind_parameter(place + 1, Bound(value)).while_doing("storing a row")?;
                }
            }
            place += 1;
            upsert.raw_bind_parameter(place, Bound(value)).while_doing("storing a row")?;
        }
        if involved.is_some_and(|involved| involved.may_have(&key)) {
            return Ok(false);
        }
        if self.rows.placed(table, upsert.raw_execute())? != Placed::Done {
            return Ok(false);
        }
        if let Some(stays) = stays {
            stays.raw_execute().while_doing("storing a row")?;
        }
        Ok(true)
    }
}

/// What stores a row straight from the frame.
struct Plain<'c> {
    upsert: CachedStatement<'c>,
    /// By key: keeps the row from going.
    stays: Option<CachedStatement<'c>>,
}

fn unknown_table(number: u32) -> Error {
    Error::Unexpected { what: format!("table {number} comes down, which the model does not have") }
}
