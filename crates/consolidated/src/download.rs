//! Finding what a remote has not seen.

mod cursor;
mod estimate;
mod naming;
pub mod ready;
mod shared;

use std::collections::{HashMap, HashSet};

use headwater_model::Direction;
use headwater_model::script::{Script, Step};
use headwater_protocol::message::{PartitionAction, PartitionMark, WatermarkEntry, Watermarks};
use headwater_protocol::packer::Knobs;
use headwater_protocol::{Frame, Row};

use self::naming::{Naming, Spellings};
use self::shared::{Looks, Need, Shared, top_up};
use crate::backend::{Changes, Gaps, Query};
use crate::check::{Finding, Severity, check_tracking};
use crate::keys::{key_bytes, key_bytes_of};
use crate::memberships::Members;
use crate::rows::{Echo, FrameSink};
use crate::scripts::{Actor, LONG_AGO};
use crate::standing;
use crate::system::{Life, life_asked};
use crate::track::tracked_name;
use crate::{Connection, Error, Mode, Plan, RowsWriter, TablePlan, memberships};

pub use estimate::{Estimate, estimate};
pub use shared::{Build, Built, Found, Kept, Snapshots};

/// A download to be written.
#[derive(Clone, Copy, Debug)]
pub struct DownloadRequest<'a> {
    /// The model.
    pub plan: &'a Plan,
    /// Who syncs.
    pub user: &'a str,
    /// Whose download it is.
    pub remote_id: [u8; 16],
    /// What the remote has seen, out of its seals ([`crate::system::Greeted::watermarks`]).
    pub watermarks: &'a Watermarks,
    /// Whether its watermarks say nothing to this incarnation: everything comes whole.
    pub restart: bool,
    /// In which life of the database it was greeted ([`crate::system::Greeted::life`]); `None`: it is not compared, and the watermarks are not for
    /// a remote.
    pub life: Option<&'a Life>,
    /// [`crate::upload::Uploaded::own`] of the upload before; empty if there was none.
    pub own: &'a [u8],
    /// [`crate::upload::Uploaded::echo`].
    pub echo: &'a Echo,
    /// [`crate::upload::Uploaded::conflicted`]: keys whose rows are sent as they are now, changed or not.
    pub conflicted: &'a [(u32, Row)],
    /// Numbers of tables that come whole whatever has been seen of them (a remote whose schema of them is new, say).
    pub refresh: &'a [u32],
    /// By watermark ([`crate::system::Greeted::extended`]): columns of which the remote has nothing, whose values come besides the changes.
    pub extended: &'a [Vec<u32>],
    /// How full its frames get; `None`: as they have always been.
    pub packing: Option<&'a Knobs>,
    /// Where shared partitions are built and kept; `None`: the remote takes no chunks.
    pub snapshots: Option<&'a dyn Snapshots>,
    /// Whether the watermarks that the remote came with are handed out again where the download [`brings_nothing`].
    pub keeps_marks: bool,
    /// Whether rows that live on where the remote does not hold them are told from deleted ones.
    pub tells_leaving: bool,
}

/// What a download came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DownloadSummary {
    /// Rows, deletions among them.
    pub rows: u64,
    /// Partitions that come whole.
    pub partitions_whole: u64,
    /// Partitions left.
    pub partitions_left: u64,
    /// Frames.
    pub frames: u64,
    /// Bytes of all frames on the wire.
    pub wire_bytes: u64,
}

/// Writes the frames of a download, from the first PARTITION or TABLE on, all out of one snapshot; gives what the remote will have seen
/// of it, which [`crate::system::seal_watermarks`] makes ready for WATERMARKS.
///
/// For each table: partitions that the remote holds and its user is no longer a member of are left; those that it doesn't hold (or
/// of which it has seen nothing that this incarnation knows) come whole; of the others come the changes since their watermark.
/// After an error the frames written so far are of no use; nothing in the database has changed. [`Error::OtherLife`]: the database is not the one
/// any more that greeted the remote. [`Error::Retry`] where a table that it read was altered meanwhile.
pub fn write(
    connection: &mut dyn Connection,
    request: &DownloadRequest<'_>,
    sink: &mut FrameSink<'_>,
) -> Result<(DownloadSummary, Watermarks), Error> {
    let mut looks = Looks::default();
    loop {
        let time = cursor::read_time(connection, request.plan)?;
        begin(connection, request.plan, (request.user, &request.remote_id), request.life)?;
        let written = Download::new(connection, request, sink, time).and_then(|download| download.run(&looks));
        match (ended(connection, written, |written| is_guarded(request, written))?, request.snapshots) {
            (Written::All(summary, seen, shared), _) => {
                shared.publish(connection, seen.marks.first());
                return Ok((summary, seen));
            }
            (Written::Nothing(need), Some(snapshots)) => looks.meet(&need, snapshots),
            (Written::Nothing(_), None) => {}
        }
    }
}

/// What came of one snapshot of the database.
enum Written {
    /// All of the download, and what it has built.
    All(DownloadSummary, Watermarks, Shared),
    /// Nothing yet: this is needed first.
    Nothing(Need),
}

/// Ends the transaction in which something was read. What was read of a relation that was altered meanwhile is of no use; `is_guarded`:
/// whether anything depends on it.
fn ended<T>(
    connection: &mut dyn Connection,
    read: Result<T, Error>,
    is_guarded: impl FnOnce(&T) -> bool,
) -> Result<T, Error> {
    let altered = match &read {
        Ok(read) if is_guarded(read) => connection.end_download(),
        _ => connection.rollback().map(|()| None),
    };
    let read = read?;
    match altered? {
        None => Ok(read),
        Some(name) => Err(Error::Retry {
            detail: format!("{name} was altered, replaced, attached or detached while a download read it"),
            broken: false,
        }),
    }
}

/// Whether anything is made of what was read: a mark that the remote has already proves nothing more.
fn is_guarded(request: &DownloadRequest<'_>, written: &Written) -> bool {
    match written {
        Written::All(summary, seen, _) => !(request.keeps_marks && brings_nothing(request, summary, seen)),
        Written::Nothing(_) => false,
    }
}

/// Whether a download has left all as the remote had it, so that the sealed watermarks that it came with may be handed out again: they
/// prove what they proved, and name no download that nobody has counted. Not where a script finds what is new by a time, and not after an
/// upload, whose rows would come back.
pub fn brings_nothing(request: &DownloadRequest<'_>, summary: &DownloadSummary, seen: &Watermarks) -> bool {
    let places = |watermarks: &Watermarks| -> HashSet<(u32, Vec<u8>)> {
        watermarks.entries.iter().map(|entry| (entry.table, entry.partition.clone())).collect()
    };
    let has_cursor = |table: &TablePlan| table.table.script(Step::DownloadCursor).is_some();
    summary.frames == 0
        && !request.restart
        && request.own.is_empty()
        && request.extended.iter().all(Vec::is_empty)
        && !request.plan.tables.iter().any(has_cursor)
        && places(seen) == places(request.watermarks)
}

/// How often tables may come or go while a transaction begins.
pub(crate) const LOOKS_MAX: usize = 5;

/// Adopts parts of tables that came or went, and makes sure that the model's tables are tracked, as each download does. No transaction is
/// open.
pub(crate) fn look_at_tracking(
    connection: &mut dyn Connection,
    plan: &Plan,
    actor: (&str, &[u8; 16]),
) -> Result<(), Error> {
    begin_with(connection, plan, actor, None, Vec::new())?;
    connection.rollback()
}

/// Takes a snapshot in which all parts of tracked tables are tracked. What comes later is found by the next download.
fn begin(
    connection: &mut dyn Connection,
    plan: &Plan,
    actor: (&str, &[u8; 16]),
    life: Option<&Life>,
) -> Result<(), Error> {
    let memberships = memberships::all_asked(&plan.model, actor.0, actor.1);
    begin_with(connection, plan, actor, life, memberships)
}

/// The same, with what is asked first.
fn begin_with(
    connection: &mut dyn Connection,
    plan: &Plan,
    actor: (&str, &[u8; 16]),
    life: Option<&Life>,
    mut first: Vec<Query>,
) -> Result<(), Error> {
    first.extend(life.map(|_| life_asked(connection.dialect())));
    first.extend(connection.tracking_query(plan));
    for _ in 0..LOOKS_MAX {
        let opened = connection.open(Mode::Download, actor, &first);
        if let Err(error) = opened.and_then(|()| life.map_or(Ok(()), |life| life.compare(connection))) {
            connection.rollback()?;
            return Err(error);
        }
        let looked = connection.parts_have_changed(plan).and_then(|parts| Ok((parts, connection.tracking_mark(plan)?)));
        if let Ok((false, mark)) = &looked
            && connection.whole_tracking().get(&plan.fingerprint) == mark.as_ref()
        {
            return Ok(());
        }
        connection.rollback()?;
        match looked? {
            (true, _) => connection.adopt_parts(plan)?,
            (false, mark) => {
                whole(connection, plan)?;
                connection.settle_tables(plan)?;
                connection.whole_tracking().extend(mark.map(|mark| (plan.fingerprint, mark)));
            }
        }
    }
    Err(Error::Retry { detail: "tracked tables, or partitions of them, come and go".to_owned(), broken: false })
}

fn first_error(connection: &mut dyn Connection, plan: &Plan) -> Result<Option<Finding>, Error> {
    Ok(check_tracking(connection, plan)?.into_iter().find(|finding| finding.severity == Severity::Error))
}

/// Changes that were not noted would never be sent: where tracking is not whole, nothing is.
fn whole(connection: &mut dyn Connection, plan: &Plan) -> Result<(), Error> {
    let found = match first_error(connection, plan)? {
        Some(_) if connection.enable_triggers(plan)? => first_error(connection, plan)?,
        found => found,
    };
    match found {
        None => Ok(()),
        Some(Finding { table, message, mend, .. }) => Err(Error::Untracked {
            table: table.unwrap_or_default(),
            what: message,
            mend: format!("{mend}; remotes then get what they missed, and keep their pending changes"),
        }),
    }
}

/// A download being written.
struct Download<'a, 's> {
    connection: &'a mut dyn Connection,
    request: &'a DownloadRequest<'a>,
    sink: &'a mut FrameSink<'s>,
    /// The user's memberships, by place in the model's partitions.
    members: Vec<Members>,
    summary: DownloadSummary,
    /// What has been seen when this download is applied.
    seen: Watermarks,
    /// [`cursor::read_time`].
    time: Option<i64>,
    /// What it has found of shared partitions.
    shared: Shared,
    /// By table, the partitions that the remote is to hold.
    namings: HashMap<u32, Naming>,
    spellings: Spellings,
}

/// What is to come of one table.
struct Coming<'a> {
    table: &'a TablePlan,
    /// [`Download::wanted`].
    wanted: Vec<Row>,
    /// The script that finds it.
    cursor: Option<&'a Script>,
    sorted: Sorted,
    /// Columns of which the remote has nothing, and the partitions that it has otherwise.
    extended: Vec<(&'a [u32], Vec<Row>)>,
}

impl Coming<'_> {
    /// What is asked for of the partitions that are there, by watermark.
    fn changes<'c>(&'c self, request: &'c DownloadRequest<'_>) -> impl Iterator<Item = Changes<'c>> {
        let (table, wanted) = (self.table, partitions_of(self.table, &self.wanted));
        let own = Some(request.own).filter(|own| !own.is_empty());
        self.sorted.since.iter().map(move |(mark, partitions)| {
            let since = request.watermarks.marks.get(*mark as usize).map(Vec::as_slice).unwrap_or_default();
            Changes { table, partitions: partitions_of(table, partitions), wanted, since, own }
        })
    }
}

/// One table's partitions, sorted by what is to come of each.
#[derive(Default)]
struct Sorted {
    whole: Vec<Row>,
    /// By watermark.
    since: Vec<(u32, Vec<Row>)>,
    left: Vec<Vec<u8>>,
    /// Further spellings of those that come whole, and of the others, that the remote holds.
    whole_spellings: Vec<Vec<u8>>,
    kept_spellings: Vec<Vec<u8>>,
    /// Whether a partition comes whole because the remote has seen one of its spellings up to another watermark than the others.
    is_respelled: bool,
}

impl<'a, 's> Download<'a, 's> {
    fn new(
        connection: &'a mut dyn Connection,
        request: &'a DownloadRequest<'a>,
        sink: &'a mut FrameSink<'s>,
        time: Option<i64>,
    ) -> Result<Self, Error> {
        // The first statement after the begin: from here on there is one snapshot.
        let mark = connection.watermark()?;
        let mut members = Vec::new();
        for partition in &request.plan.model.partitions {
            members.push(memberships::query(connection, partition, request.user, &request.remote_id)?);
        }
        let seen = Watermarks { marks: vec![mark], entries: Vec::new() };
        let (summary, shared) = (DownloadSummary::default(), Shared::default());
        let (namings, spellings) = (HashMap::new(), Spellings::new());
        Ok(Download { connection, request, sink, members, summary, seen, time, shared, namings, spellings })
    }

    fn run(mut self, looks: &Looks) -> Result<Written, Error> {
        self.name_partitions()?;
        let accepted = self.accepted_marks()?;
        let need = self.look(&accepted, looks)?;
        if !matches!(need, Need::Nothing) {
            return Ok(Written::Nothing(need));
        }
        let tables = self.request.plan.tables.iter().filter(|table| table.table.direction != Direction::Upload);
        let tables: Vec<&TablePlan> = tables.collect();
        let withheld = self.connection.withheld(&tables)?;
        let (withheld, tables): (Vec<_>, Vec<_>) =
            tables.into_iter().zip(withheld).partition(|(_, withheld)| *withheld);
        for (table, _) in &withheld {
            self.stays(table, &accepted);
        }
        let mut all: Vec<Coming<'_>> = tables.iter().map(|(table, _)| self.coming(table, &accepted)).collect();
        self.leave_out_what_stayed(&mut all)?;
        for coming in &all {
            self.table(coming)?;
        }
        self.remember_spellings();
        for (members, partition) in self.members.iter().zip(&self.request.plan.model.partitions) {
            members.log_left_out(partition, self.request.user);
        }
        Ok(Written::All(self.summary, self.seen, self.shared))
    }

    fn coming(&self, table: &'a TablePlan, accepted: &[Option<Gaps>]) -> Coming<'a> {
        let wanted = self.wanted(table);
        let cursor = table.table.script(Step::DownloadCursor);
        let tells = if cursor.is_some() { self.times_told() } else { changes_told(table, accepted) };
        let sorted = self.sort(table, &wanted, &tells);
        self.log_why_whole(table, &sorted);
        let extended = sorted.since.iter().map(|(mark, rows)| (new_columns(self.request, *mark), rows.clone()));
        let extended = extended.filter(|(columns, _)| !columns.is_empty()).collect();
        Coming { table, wanted, cursor, sorted, extended }
    }

    /// Of several tables the database says at once which have changed at all: most have not.
    fn leave_out_what_stayed(&mut self, all: &mut [Coming<'_>]) -> Result<(), Error> {
        let request = self.request;
        let by_mark = |coming: &Coming<'_>| if coming.cursor.is_none() { coming.sorted.since.len() } else { 0 };
        if all.iter().map(by_mark).sum::<usize>() < LOOKED_AT_MIN {
            return Ok(());
        }
        let some = || all.iter().filter(|coming| coming.cursor.is_none());
        let changes = some().flat_map(|coming| coming.changes(request)).collect::<Vec<_>>();
        let mut may_have = self.connection.may_have_changed(&changes)?.into_iter();
        for coming in all.iter_mut().filter(|coming| coming.cursor.is_none()) {
            coming.sorted.since.retain(|_| may_have.next().unwrap_or(true));
        }
        Ok(())
    }

    /// Of each of the remote's watermarks, what changes since can't be told; `None`: this database can't have handed it out.
    fn accepted_marks(&mut self) -> Result<Vec<Option<Gaps>>, Error> {
        let always = self.connection.always_whole(self.request.plan);
        let mut accepted = Vec::new();
        for mark in &self.request.watermarks.marks {
            let is_ours =
                !self.request.restart && cursor::time_of(mark).is_none() && self.connection.accepts_watermark(mark)?;
            let mut gaps = if is_ours { Some(self.connection.gaps(mark)?) } else { None };
            self.log_why_afresh(mark, gaps.as_ref());
            if let Some(gaps) = &mut gaps {
                gaps.tables.extend_from_slice(&always);
            }
            accepted.push(gaps);
        }
        Ok(accepted)
    }

    /// The remote's report says that tables came down afresh, and refers to this.
    fn log_why_afresh(&self, mark: &[u8], gaps: Option<&Gaps>) {
        let remote = hex::encode(self.request.remote_id);
        match gaps {
            None if self.request.restart || mark.is_empty() || cursor::time_of(mark).is_some() => {}
            None => {
                tracing::info!(remote, "this database did not issue the remote's watermark: its tables come afresh");
            }
            Some(gaps) if gaps.everything => {
                tracing::info!(remote, "the remote has not synced for longer than purge_days: its tables come afresh");
            }
            Some(gaps) if !gaps.tables.is_empty() => {
                let tables = gaps.tables.join(", ");
                tracing::info!(
                    remote,
                    tables,
                    "change tracking missed changes of these tables since the remote's last sync: they come afresh"
                );
            }
            Some(_) => {}
        }
    }

    /// Says in the log why one table comes whole: a policy, or a partition that the remote spelled otherwise.
    fn log_why_whole(&self, table: &TablePlan, sorted: &Sorted) {
        let (remote, name) = (hex::encode(self.request.remote_id), table.table.name.as_str());
        let has_seen = |entry: &WatermarkEntry| {
            let marks = &self.request.watermarks.marks;
            entry.table == table.number && marks.get(entry.mark as usize).is_some_and(|mark| !mark.is_empty())
        };
        if self.request.restart || sorted.whole.is_empty() || !self.request.watermarks.entries.iter().any(has_seen) {
            return;
        }
        if self.connection.always_whole(self.request.plan).contains(&tracked_name(&table.lineage())) {
            tracing::info!(
                remote,
                table = name,
                "a policy on this table reads more than the row and the user: the table comes whole at each sync"
            );
        } else if sorted.is_respelled {
            tracing::info!(
                remote,
                table = name,
                "the remote spelled the value of a partition otherwise than the database: the partition comes whole"
            );
        }
    }

    fn table(&mut self, coming: &Coming<'a>) -> Result<(), Error> {
        let Coming { table, wanted, cursor, sorted, extended } = coming;
        let (table, cursor) = (*table, *cursor);
        for partition in &sorted.left {
            self.mark(table, PartitionAction::Left, partition.clone())?;
            self.summary.partitions_left += 1;
        }
        for row in &sorted.whole {
            self.mark(table, PartitionAction::Whole, partition_key(table, row)?)?;
            self.summary.partitions_whole += 1;
        }
        self.mark_spellings(coming)?;
        let stays = sorted.left.is_empty() && sorted.whole.is_empty();
        // Before anything newer is said of any row.
        let (top_ups, whole) = self.send_shared(table, sorted.whole.clone())?;
        let is_spelled = self.is_spelled(table);
        let Download { connection, request, sink, summary, .. } = self;
        let mut counted = |frame: Frame| count(summary, &mut **sink, frame);
        // With a partition go the rows that lay in it, also those that have moved since, and with them what was uploaded below them just now.
        let nothing = Echo::default();
        let echo = if stays { request.echo } else { &nothing };
        let checks = connection.has_texts_of_any_bytes();
        let mut rows =
            RowsWriter::new(table, echo, &mut counted).checking_texts(checks).checking_partitions(is_spelled);
        rows = rows.telling_leaving(request.tells_leaving);
        if let Some(packing) = request.packing {
            rows = rows.packed_by(packing);
        }
        let keys: Vec<Row> = request
            .conflicted
            .iter()
            .filter(|(number, _)| *number == table.number)
            .map(|(_, key)| key.clone())
            .collect();
        if !keys.is_empty() {
            let actor = actor_of(request);
            for some in keys.chunks(CONFLICTED_AT_ONCE) {
                let stored = cursor::fetch(&mut **connection, &actor, table, some)?;
                let standings = standing::of_rows(&mut **connection, table, &stored.iter().collect::<Vec<_>>(), false)?;
                let is_here = standing::are_in(&mut **connection, table, &standings, wanted)?;
                write_conflicted(table, some, &stored, &is_here, &mut rows)?;
            }
        }
        if let Some(cursor) = cursor {
            let marks = &request.watermarks.marks;
            let time = |mark: u32| marks.get(mark as usize).and_then(|mark| cursor::time_of(mark)).unwrap_or(LONG_AGO);
            let since = |(mark, partitions): &'_ (u32, Vec<Row>)| (time(*mark), partitions.clone());
            let by_time: Vec<(i64, Vec<Row>)> =
                std::iter::once((LONG_AGO, whole)).chain(sorted.since.iter().map(since)).collect();
            let some = by_time.iter().filter(|(_, partitions)| !partitions.is_empty());
            let wanted: Vec<_> = some.map(|(since, partitions)| cursor::Wanted { since: *since, partitions }).collect();
            Download::read_by_cursor(&mut **connection, &actor_of(request), table, cursor, &wanted, &mut rows)?;
            self.summary.rows += rows.finish()?;
            return self.remember_time(table, &wanted);
        }
        if !whole.is_empty() {
            connection.read_whole(table, partitions_of(table, &whole), &mut rows)?;
        }
        for (columns, partitions) in extended {
            connection.read_valued(table, partitions_of(table, partitions), columns, &mut rows)?;
        }
        for changes in coming.changes(request) {
            connection.read_changes(&changes, &mut rows)?;
        }
        top_up(&mut **connection, table, top_ups, wanted, &mut rows)?;
        let rows = rows.finish()?;
        self.summary.rows += rows;
        self.remember(table, wanted)
    }

    /// `tells`: by watermark, whether the changes since then can be told.
    fn sort(&self, table: &TablePlan, wanted: &[Row], tells: &[bool]) -> Sorted {
        let refresh = self.request.refresh.contains(&table.number);
        let entries = self.request.watermarks.entries.iter().filter(|entry| entry.table == table.number);
        let mut held: HashMap<&[u8], u32> = entries.map(|entry| (entry.partition.as_slice(), entry.mark)).collect();
        let mut sorted = Sorted::default();
        let naming = self.namings.get(&table.number).filter(|naming| naming.has_spellings);
        for (place, row) in wanted.iter().enumerate() {
            let key = table.partition_key(row).unwrap_or_default();
            let mut marks: Vec<u32> = held.remove(key.as_slice()).into_iter().collect();
            let mut spellings = Vec::new();
            for other in naming.map(|naming| naming.spellings(place)).unwrap_or_default() {
                if let Some(mark) = held.remove(other.as_slice()) {
                    marks.push(mark);
                    spellings.push(other.clone());
                }
            }
            marks.dedup();
            // Spellings that were partitions of their own, with marks of their own: there is no older one of two.
            sorted.is_respelled |= marks.len() > 1;
            let mark = if let [mark] = marks.as_slice() { Some(*mark) } else { None };
            let mark = mark.filter(|mark| tells.get(*mark as usize) == Some(&true) && !refresh);
            let mark = mark.filter(|mark| may_be_new(table, new_columns(self.request, *mark)));
            match mark {
                None => {
                    sorted.whole_spellings.extend(spellings);
                    sorted.whole.push(row.clone());
                }
                Some(mark) => {
                    sorted.kept_spellings.extend(spellings);
                    match sorted.since.iter_mut().find(|(known, _)| *known == mark) {
                        Some((_, rows)) => rows.push(row.clone()),
                        None => sorted.since.push((mark, vec![row.clone()])),
                    }
                }
            }
        }
        sorted.left = held.into_keys().map(<[u8]>::to_vec).collect();
        sorted.left.sort_unstable();
        sorted
    }

    /// By watermark, whether it is a time of this incarnation's since which deletions can be asked for: at the beginning of all times a
    /// table comes whole, or what was deleted after it came first would stay.
    fn times_told(&self) -> Vec<bool> {
        let is_time =
            |mark: &Vec<u8>| !self.request.restart && cursor::time_of(mark).is_some_and(|time| time > LONG_AGO);
        self.request.watermarks.marks.iter().map(is_time).collect()
    }

    fn remember(&mut self, table: &TablePlan, wanted: &[Row]) -> Result<(), Error> {
        for row in wanted {
            let partition = partition_key(table, row)?;
            self.seen.entries.push(WatermarkEntry { table: table.number, partition, mark: 0 });
        }
        Ok(())
    }

    /// Of a table that is left out, what the remote has seen stays as it was. A watermark that says nothing to this database becomes an empty
    /// one: sealed again as it is, it would be taken for this incarnation's.
    fn stays(&mut self, table: &TablePlan, accepted: &[Option<Gaps>]) {
        let Watermarks { marks, entries } = self.request.watermarks;
        let nothing = Vec::new();
        for entry in entries.iter().filter(|entry| entry.table == table.number) {
            let Some(mark) = marks.get(entry.mark as usize) else { continue };
            let is_extended = !new_columns(self.request, entry.mark).is_empty();
            let is_accepted = accepted.get(entry.mark as usize).is_some_and(Option::is_some);
            let is_time = !self.request.restart && cursor::time_of(mark).is_some();
            let mark = if (is_accepted || is_time) && !is_extended { mark } else { &nothing };
            let place = self.seen.marks.iter().position(|known| known == mark).unwrap_or_else(|| {
                self.seen.marks.push(mark.clone());
                self.seen.marks.len() - 1
            });
            self.seen.entries.push(WatermarkEntry { mark: place as u32, ..entry.clone() });
        }
    }

    fn mark(&mut self, table: &TablePlan, action: PartitionAction, partition: Vec<u8>) -> Result<(), Error> {
        self.send(PartitionMark { table: table.number, action, partition }.to_frame())
    }

    fn send(&mut self, frame: Frame) -> Result<(), Error> {
        count(&mut self.summary, &mut *self.sink, frame)
    }
}

/// The columns of which a remote with this watermark has nothing.
fn new_columns<'a>(request: &DownloadRequest<'a>, mark: u32) -> &'a [u32] {
    request.extended.get(mark as usize).map(Vec::as_slice).unwrap_or_default()
}

/// Whether these can have been added to a table whose other values a remote has. Where a script finds what has changed, it tells nothing of
/// what has not.
fn may_be_new(table: &TablePlan, columns: &[u32]) -> bool {
    let is_nullable = |place: &u32| {
        let column = table.table.columns.get(*place as usize);
        column.is_some_and(|column| column.nullable) && !table.table.key.contains(&(*place as usize))
    };
    columns.iter().all(is_nullable) && (columns.is_empty() || table.table.script(Step::DownloadCursor).is_none())
}

/// By watermark, whether the changes of a table since then can be told.
fn changes_told(table: &TablePlan, accepted: &[Option<Gaps>]) -> Vec<bool> {
    let name = tracked_name(&table.lineage());
    let tells = |gaps: &Gaps| !gaps.everything && !gaps.tables.contains(&name);
    accepted.iter().map(|gaps| gaps.as_ref().is_some_and(tells)).collect()
}

fn count(summary: &mut DownloadSummary, sink: &mut FrameSink<'_>, frame: Frame) -> Result<(), Error> {
    summary.frames += 1;
    summary.wire_bytes += frame.wire_bytes() as u64;
    sink(frame)
}

/// What a backend is told: nothing, for a table that is not partitioned.
fn partitions_of<'r>(table: &TablePlan, partitions: &'r [Row]) -> &'r [Row] {
    if table.partition_types.is_empty() { &[] } else { partitions }
}

fn partition_key(table: &TablePlan, row: &[headwater_protocol::Value]) -> Result<Vec<u8>, Error> {
    table.partition_key(row).ok_or_else(|| Error::Database {
        context: "naming a partition".to_owned(),
        detail: "a membership has a NULL".to_owned(),
    })
}

/// The rows of conflicts as they are now: where one lives in a partition that the remote holds it is sent, otherwise it goes.
fn write_conflicted(
    table: &TablePlan,
    keys: &[Row],
    stored: &[Row],
    is_here: &[bool],
    rows: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let stored = Stored::new(table, stored, is_here);
    keys.iter().try_for_each(|key| {
        stored.write(key, rows);
        rows.end_row_early()
    })
}

/// Rows as they are now, by the bytes of their keys, and whether each lies in a partition that the remote holds.
struct Stored<'r> {
    table: &'r TablePlan,
    by_key: HashMap<Vec<u8>, (&'r Row, bool)>,
}

impl<'r> Stored<'r> {
    fn new(table: &'r TablePlan, rows: &'r [Row], is_here: &[bool]) -> Self {
        let found = rows.iter().zip(is_here);
        Stored { table, by_key: found.map(|(row, is_here)| (key_bytes_of(table, row), (row, *is_here))).collect() }
    }

    fn write(&self, key: &Row, rows: &mut RowsWriter<'_, '_>) {
        match self.by_key.get(&key_bytes(self.table, key)) {
            Some((row, true)) => write_row(rows.upsert(), row),
            Some((_, false)) => write_row(rows.leave(), key),
            None => write_row(rows.delete(), key),
        }
    }
}

fn actor_of(request: &DownloadRequest<'_>) -> Actor {
    Actor { user: request.user.to_owned(), remote_id: request.remote_id }
}

/// So many looks into side tables are worth one before them.
const LOOKED_AT_MIN: usize = 2;

const CONFLICTED_AT_ONCE: usize = 1_000;

fn write_row(mut writer: headwater_protocol::row::RowWriter<'_>, row: &Row) {
    for value in row {
        writer.push(value.as_ref());
    }
    writer.finish();
}
