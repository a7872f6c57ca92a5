//! Shared partitions: read once, served to many, topped up for each.
//!
//! ```text
//! the first sync      reads partition P in its own snapshot S, into chunks ──> SNAPSHOT; then a note is taken, and it is handed to others
//! every other sync    its own snapshot D, which has that note: SNAPSHOT, then what has changed in P from S to D
//! ```
//!
//! What a remote holds afterwards is P at D, whatever happened in between:
//!
//! - **The note** was committed after S was taken. Whoever sees it sees all that S saw, so D is no earlier than S; and a database that was
//!   put back to before it does not have it, however far it has advanced since. Where it is missing, or changes since S can't be told any more (the
//!   horizon, a gap), what was kept is given up.
//! - **A row that changed in P since S** comes as it is at D, one that is in no partition of the remote's any more as its deletion. One that has moved to
//!   another that the remote holds comes as it is at D, too: it may have got there before what the remote has seen of that one.
//! - **Chunks come first** of all that is said of a table, so that nothing older overwrites what is newer.
//! - Who is a member is asked in D, as ever; rows that the database picks by user (row-level security) are never shared.
//!
//! A sync that needs what another is building ends its transaction and waits: its snapshot would be too early.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use headwater_model::script::Step;
use headwater_model::tracking::postgres::base_table;
use headwater_model::{Direction, Table};
use headwater_protocol::message::Snapshot;
use headwater_protocol::row::read_row;
use headwater_protocol::wire::Reader;
use headwater_protocol::{Frame, Row, Value};

use super::{CONFLICTED_AT_ONCE, Download, Stored, changes_told, partition_key, partitions_of};
use crate::backend::{Changes, Gaps};
use crate::rows::Echo;
use crate::standing;
use crate::system::sql::dialect_sql;
use crate::track::tracked_name;
use crate::{Connection, Dialect, Error, RowsWriter, TablePlan};

/// Where one sync finds what others have built, and puts what it builds: the server's store, for one model and incarnation.
pub trait Snapshots: Debug + Sync {
    /// What there is of a partition.
    fn find(&self, table: u32, partition: &[u8]) -> Found;

    /// Waits until a partition is not being built any more; `false`: that takes too long, and it is read for this sync alone.
    fn wait(&self, table: u32, partition: &[u8]) -> bool;

    /// Gives up what was kept of a partition: changes since then can't be told any more.
    fn give_up(&self, table: u32, partition: &[u8], kept: &Kept);
}

/// What there is of a partition.
#[derive(Debug)]
pub enum Found {
    /// It was built.
    Kept(Arc<Kept>),
    /// It is for this sync to build.
    Build(Box<dyn Build>),
    /// Another sync builds it.
    Busy,
    /// It is not built; its rows come as ever.
    Nothing,
}

/// A snapshot of a partition that was built.
#[derive(Debug)]
pub struct Kept {
    /// What the remote gets.
    pub snapshot: Snapshot,
    /// The watermark that it was read at.
    pub watermark: Vec<u8>,
    /// A note that was taken after that.
    pub note: [u8; 16],
}

/// A snapshot being built. Dropped before it is published, it is another sync's to build.
pub trait Build: Debug {
    /// Adds a frame, TABLE or ROWS. What can't be kept is told at the end.
    fn push(&mut self, frame: Frame);

    /// All rows have come, so many.
    fn finish(&mut self, rows: u64) -> Built;

    /// Has it handed to others from now on.
    fn publish(self: Box<Self>, watermark: Vec<u8>, note: [u8; 16]);
}

/// What came of building a snapshot.
#[derive(Debug)]
pub enum Built {
    /// It is kept.
    Chunks(Snapshot),
    /// It is not worth while: these are its frames.
    Small(Vec<Frame>),
    /// There is no room for it, and its frames are gone.
    Nothing,
}

/// How often a download looks for what others build before it goes on without.
const LOOKS_MAX: usize = 8;

/// What a download found of the shared partitions that it needs, by table and partition.
#[derive(Debug, Default)]
pub(super) struct Shared {
    found: HashMap<(u32, Vec<u8>), Source>,
    /// What it has built itself, and is still to publish.
    built: Vec<Box<dyn Build>>,
}

#[derive(Debug)]
enum Source {
    Kept(Arc<Kept>),
    Build(Box<dyn Build>),
}

/// What a download has looked for so far, over several snapshots of the database.
#[derive(Debug, Default)]
pub(super) struct Looks {
    count: usize,
    /// Another sync's build took too long.
    is_impatient: bool,
    /// Notes that a snapshot did not have which was taken before them, perhaps.
    missed: Vec<[u8; 16]>,
}

/// What is to be done before the download's snapshot is of use.
pub(super) enum Need {
    Nothing,
    /// A later one: what was found, with this note, may be later than this.
    Later([u8; 16]),
    /// A later one, when this has been built.
    Build(u32, Vec<u8>),
}

impl Looks {
    /// Does what is needed; to be called outside of a transaction.
    pub(super) fn meet(&mut self, need: &Need, snapshots: &dyn Snapshots) {
        self.count += 1;
        match need {
            Need::Nothing => {}
            Need::Later(note) => self.missed.push(*note),
            Need::Build(table, partition) => self.is_impatient |= !snapshots.wait(*table, partition),
        }
    }

    fn are_over(&self) -> bool {
        self.is_impatient || self.count >= LOOKS_MAX
    }
}

impl Shared {
    /// Hands what was built to others; after the download's transaction.
    pub(super) fn publish(self, connection: &mut dyn Connection, watermark: Option<&Vec<u8>>) {
        let Some(watermark) = watermark.filter(|_| !self.built.is_empty()) else { return };
        match crate::system::take_note(connection) {
            Ok(note) => self.built.into_iter().for_each(|build| build.publish(watermark.clone(), note)),
            // The download itself is none the worse.
            Err(error) => tracing::warn!(%error, "shared partitions can't be handed to others: no note was taken"),
        }
    }
}

/// A partition whose rows come in chunks, and since when it is to be topped up.
pub(super) struct TopUp {
    since: Vec<u8>,
    partition: Row,
}

impl Download<'_, '_> {
    /// Finds the shared partitions that this download needs whole.
    pub(super) fn look(&mut self, accepted: &[Option<Gaps>], looks: &Looks) -> Result<Need, Error> {
        let Some(snapshots) = self.request.snapshots else { return Ok(Need::Nothing) };
        let plan = self.request.plan;
        for table in plan.tables.iter().filter(|table| is_shared(table)) {
            let wanted = self.wanted(table);
            let whole = self.sort(table, &wanted, &changes_told(table, accepted)).whole;
            if whole.is_empty() || self.is_picked_by_user(table)? {
                continue;
            }
            for row in &whole {
                let need = self.look_for(snapshots, table, partition_key(table, row)?, looks)?;
                if !matches!(need, Need::Nothing) {
                    return Ok(need);
                }
            }
        }
        Ok(Need::Nothing)
    }

    fn look_for(
        &mut self,
        snapshots: &dyn Snapshots,
        table: &TablePlan,
        partition: Vec<u8>,
        looks: &Looks,
    ) -> Result<Need, Error> {
        let mut found = snapshots.find(table.number, &partition);
        if let Found::Kept(kept) = &found {
            match self.stands(table, kept)? {
                Stands::Yes => {}
                Stands::Later if !looks.missed.contains(&kept.note) => {
                    return Ok(if looks.are_over() { Need::Nothing } else { Need::Later(kept.note) });
                }
                Stands::Later | Stands::No => {
                    snapshots.give_up(table.number, &partition, kept);
                    found = snapshots.find(table.number, &partition);
                    if let Found::Kept(kept) = &found {
                        // Another has built it just now.
                        return Ok(if looks.are_over() { Need::Nothing } else { Need::Later(kept.note) });
                    }
                }
            }
        }
        let source = match found {
            Found::Kept(kept) => Source::Kept(kept),
            Found::Build(build) => Source::Build(build),
            Found::Busy if !looks.are_over() => return Ok(Need::Build(table.number, partition)),
            Found::Busy | Found::Nothing => return Ok(Need::Nothing),
        };
        self.shared.found.insert((table.number, partition), source);
        Ok(Need::Nothing)
    }

    /// Whether what was kept can be topped up to this download's snapshot.
    fn stands(&mut self, table: &TablePlan, kept: &Kept) -> Result<Stands, Error> {
        let sql = dialect_sql(self.connection.dialect(), "SELECT 1 FROM {hw}note WHERE note = ?1");
        if self.connection.query(&sql, &[Value::Bytes(kept.note.to_vec())])?.is_empty() {
            return Ok(Stands::Later);
        }
        if !self.connection.accepts_watermark(&kept.watermark)? {
            return Ok(Stands::No);
        }
        let gaps = self.connection.gaps(&kept.watermark)?;
        let is_told = !gaps.everything && !gaps.tables.contains(&tracked_name(&table.lineage()));
        Ok(if is_told { Stands::Yes } else { Stands::No })
    }

    /// Whether the database itself decides which of the rows this user sees.
    fn is_picked_by_user(&mut self, table: &TablePlan) -> Result<bool, Error> {
        if self.connection.dialect() != Dialect::Postgres {
            return Ok(false);
        }
        for table in std::iter::once(&table.table).chain(&table.parents) {
            let name = base_table(table);
            let active =
                self.connection.query("SELECT row_security_active(?1::text)", &[Value::text(name.as_str())])?;
            if active.first().and_then(|row| row.first()) != Some(&Value::Bool(false)) {
                tracing::warn!(
                    table = name,
                    "row-level security is active: what is shared in the model is read for each remote"
                );
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends those of the partitions that come whole whose rows are in chunks; gives them, and those that are left.
    pub(super) fn send_shared(&mut self, table: &TablePlan, whole: Vec<Row>) -> Result<(Vec<TopUp>, Vec<Row>), Error> {
        let (mut top_ups, mut rest) = (Vec::new(), Vec::new());
        for partition in whole {
            match self.shared.found.remove(&(table.number, partition_key(table, &partition)?)) {
                None => rest.push(partition),
                Some(Source::Kept(kept)) => {
                    self.summary.rows += kept.snapshot.rows;
                    self.send(kept.snapshot.to_frame())?;
                    top_ups.push(TopUp { since: kept.watermark.clone(), partition });
                }
                Some(Source::Build(build)) => {
                    if !self.build(table, &partition, build)? {
                        rest.push(partition);
                    }
                }
            }
        }
        Ok((top_ups, rest))
    }

    /// Reads a partition into chunks and sends them; whether there was room. There is nothing to top up: it is read in this snapshot.
    fn build(&mut self, table: &TablePlan, partition: &Row, mut build: Box<dyn Build>) -> Result<bool, Error> {
        let echo = Echo::default();
        let mut sink = |frame: Frame| {
            build.push(frame);
            Ok(())
        };
        let checks = self.connection.has_texts_of_any_bytes();
        let is_spelled = self.is_spelled(table);
        let mut rows = RowsWriter::new(table, &echo, &mut sink).checking_texts(checks).checking_partitions(is_spelled);
        self.connection.read_whole(table, partitions_of(table, std::slice::from_ref(partition)), &mut rows)?;
        let rows = rows.finish()?;
        match build.finish(rows) {
            Built::Chunks(snapshot) => self.send(snapshot.to_frame())?,
            Built::Small(frames) => frames.into_iter().try_for_each(|frame| self.send(frame))?,
            Built::Nothing => return Ok(false),
        }
        self.summary.rows += rows;
        self.shared.built.push(build);
        Ok(true)
    }
}

/// Whether what was kept can be used.
enum Stands {
    Yes,
    /// Not by this snapshot, which may be too early.
    Later,
    No,
}

fn is_shared(table: &TablePlan) -> bool {
    let Table { shared, direction, .. } = &table.table;
    *shared && *direction != Direction::Upload && table.table.script(Step::DownloadCursor).is_none()
}

/// Writes what has changed in partitions since their chunks were built. `wanted`: all that the remote holds of the table afterwards.
pub(super) fn top_up(
    connection: &mut dyn Connection,
    table: &TablePlan,
    top_ups: Vec<TopUp>,
    wanted: &[Row],
    rows: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let mut by_since: HashMap<Vec<u8>, Vec<Row>> = HashMap::new();
    for TopUp { since, partition } in top_ups {
        by_since.entry(since).or_default().push(partition);
    }
    for (since, partitions) in by_since {
        let among = partitions_of(table, &partitions);
        let changes = Changes { table, partitions: among, wanted: among, since: &since, own: None };
        if partitions.len() == wanted.len() {
            connection.read_changes(&changes, rows)?;
            continue;
        }
        rows.set_deletions_aside();
        connection.read_changes(&changes, rows)?;
        let aside = rows.take_aside();
        write_moved(connection, table, &aside, wanted, rows)?;
    }
    Ok(())
}

/// Rows that have left the partitions of some chunks, by encoded keys: as they are where they live on in another that the remote holds.
fn write_moved(
    connection: &mut dyn Connection,
    table: &TablePlan,
    aside: &[u8],
    wanted: &[Row],
    rows: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let mut reader = Reader::new(aside);
    while !reader.is_empty() {
        let mut keys = Vec::new();
        while !reader.is_empty() && keys.len() < CONFLICTED_AT_ONCE {
            keys.push(read_row(&mut reader, &table.key_types, usize::MAX, None)?);
        }
        let stored = connection.fetch(table, &keys, false)?;
        let standings = standing::of_rows(connection, table, &stored.iter().collect::<Vec<_>>(), false)?;
        let is_here = standing::are_in(connection, table, &standings, wanted)?;
        let stored = Stored::new(table, &stored, &is_here);
        for key in &keys {
            stored.write(key, rows);
            rows.end_row(false)?;
        }
    }
    Ok(())
}
