//! A remote in memory: rows, watermarks and numbers as a remote keeps them, without a file and without conflicts of its own.

use std::collections::BTreeMap;

use headwater_consolidated::download::{self, DownloadRequest, DownloadSummary};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::system::{Greeting, greet, greet_before_upload};
use headwater_consolidated::upload::{self, UploadLimits, UploadRequest, Uploaded, Verdict};
use headwater_consolidated::{Connection, Error, Plan, TablePlan};
use headwater_protocol::message::{
    Change, Hello, Outcome, PartitionAction, PartitionMark, RowOp, RowsReader, Snapshot, TableHeader, UploadEnd,
    Watermarks, Welcome,
};
use headwater_protocol::row::{put_row, read_row};
use headwater_protocol::upload::Digest;
use headwater_protocol::{Frame, Kind, Row};

use super::database::Database;
use super::shared::Memory;

const LIMIT: usize = 64 << 20;

/// A remote in memory. Its watermarks are out of their seals.
#[derive(Clone)]
pub(crate) struct Replica {
    pub(crate) id: [u8; 16],
    pub(crate) secret: [u8; 32],
    pub(crate) user: String,
    pub(crate) incarnation: [u8; 16],
    pub(crate) note: [u8; 16],
    pub(crate) acknowledged: u64,
    /// The name of the next upload's cut.
    pub(crate) cut: Option<[u8; 8]>,
    pub(crate) watermarks: Watermarks,
    /// By watermark, columns of which it has nothing; until the next download.
    pub(crate) extended: Vec<Vec<u32>>,
    /// By table number and the bytes of the key.
    pub(crate) rows: BTreeMap<(u32, Vec<u8>), Row>,
    pub(crate) pending: Vec<(u32, Change)>,
    pub(crate) batch_rows: usize,
    /// Whether it tells a row that leaves from a deleted one.
    pub(crate) knows_leaving: bool,
    /// Where shared partitions are kept, if it takes chunks.
    pub(crate) memory: Option<Memory>,
}

/// [`upload::apply`], or [`upload::apply_isolating`].
pub(crate) type Apply =
    fn(&mut dyn Connection, &UploadRequest<'_>, &mut dyn upload::UploadSource) -> Result<Uploaded, Error>;

/// What one sync brought.
#[derive(Debug, Default)]
pub(crate) struct Synced {
    pub(crate) upserts: Vec<(u32, Row)>,
    pub(crate) deletes: Vec<(u32, Row)>,
    /// Those of them that live on elsewhere.
    pub(crate) left: Vec<(u32, Row)>,
    pub(crate) marks: Vec<PartitionMark>,
    pub(crate) summary: DownloadSummary,
    pub(crate) uploaded: Option<Uploaded>,
}

impl Synced {
    /// How many rows and deletions came.
    pub(crate) fn count(&self) -> usize {
        self.upserts.len() + self.deletes.len()
    }

    /// The outcomes of the upload.
    pub(crate) fn outcomes(&self) -> &[(u64, Outcome)] {
        self.uploaded.as_ref().map_or(&[], |uploaded| &uploaded.receipt.outcomes)
    }

    /// The names of the refusals, by ordinal.
    pub(crate) fn refusals(&self) -> Vec<(u64, &'static str)> {
        let name = |(ordinal, outcome): &(u64, Outcome)| match outcome {
            Outcome::Refused(refusal) => Some((*ordinal, refusal.code.name())),
            Outcome::Conflict(_) => None,
        };
        self.outcomes().iter().filter_map(name).collect()
    }
}

impl Replica {
    pub(crate) fn new(user: &str) -> Replica {
        let id = *uuid::Uuid::new_v4().as_bytes();
        let mut secret = [7; 32];
        secret[..16].copy_from_slice(&id);
        Replica {
            id,
            secret,
            user: user.to_owned(),
            incarnation: [0; 16],
            note: [0; 16],
            acknowledged: 0,
            cut: None,
            watermarks: Watermarks::default(),
            extended: Vec::new(),
            rows: BTreeMap::new(),
            pending: Vec::new(),
            batch_rows: UploadLimits::default().batch_rows,
            knows_leaving: true,
            memory: None,
        }
    }

    /// A replica that has synced once.
    pub(crate) fn synced(database: &Database, plan: &Plan, user: &str) -> Replica {
        let mut replica = Replica::new(user);
        replica.sync(database, plan);
        replica
    }

    pub(crate) fn insert(&mut self, plan: &Plan, table: &str, row: Row) {
        let table = find(plan, table);
        self.rows.insert((table.number, key(table, &row)), row.clone());
        self.pending.push((table.number, Change { old: None, new: Some(row) }));
    }

    /// Makes the row of this row's key like it; what was held is the old image.
    pub(crate) fn update(&mut self, plan: &Plan, table: &str, row: Row) {
        let table = find(plan, table);
        let old = self.rows.insert((table.number, key(table, &row)), row.clone()).expect("the row is held");
        self.pending.push((table.number, Change { old: Some(old), new: Some(row) }));
    }

    pub(crate) fn delete(&mut self, plan: &Plan, table: &str, row: &Row) {
        let table = find(plan, table);
        let old = self.rows.remove(&(table.number, key(table, row))).expect("the row is held");
        self.pending.push((table.number, Change { old: Some(old), new: None }));
    }

    /// Sends a change whatever is held, and holds what it leaves.
    pub(crate) fn send(&mut self, table: &TablePlan, change: Change) {
        let held = (table.number, key(table, &change.image().to_vec()));
        match &change.new {
            Some(row) => self.rows.insert(held, row.clone()),
            None => self.rows.remove(&held),
        };
        self.pending.push((table.number, change));
    }

    /// The rows held of a table, in key order.
    pub(crate) fn table(&self, plan: &Plan, table: &str) -> Vec<Row> {
        let number = find(plan, table).number;
        let mut rows: Vec<Row> =
            self.rows.iter().filter(|((n, _), _)| *n == number).map(|(_, row)| row.clone()).collect();
        rows.sort_by(|a, b| headwater_consolidated::order::compare_rows(a, b));
        rows
    }

    pub(crate) fn hello(&self, plan: &Plan) -> Hello {
        Hello {
            remote_id: self.id,
            secret: self.secret,
            model: plan.model.name.clone(),
            model_version: plan.model.version,
            fingerprint: plan.fingerprint,
            incarnation: self.incarnation,
            note: self.note,
            upload_sequence: self.acknowledged,
            download_applied: [0; 16],
            has_upload: !self.pending.is_empty(),
            wants_download: true,
            takes_chunks: false,
            knows_leaving: self.knows_leaving,
            uploads: Vec::new(),
            frozen: None,
            watermarks: self.watermarks.clone(),
        }
    }

    /// The upload's frames and end, of what is pending: tables in the model's order, as the remote cuts them.
    pub(crate) fn cut(&self, plan: &Plan) -> (Vec<Frame>, UploadEnd) {
        let mut frames = Vec::new();
        for table in &plan.tables {
            let changes: Vec<&Change> =
                self.pending.iter().filter(|(number, _)| *number == table.number).map(|(_, change)| change).collect();
            if changes.is_empty() {
                continue;
            }
            frames.push(table.header.to_frame());
            // Small frames, so that the engine has to gather them.
            for some in changes.chunks(7) {
                let mut payload = Vec::new();
                for change in some {
                    change.write(&mut payload, &table.types);
                }
                frames.push(Frame::packed(Kind::Changes, payload));
            }
        }
        let mut digest = Digest::new();
        for frame in &frames {
            digest.add(frame.kind, &frame.payload(LIMIT).expect("our own frame"));
        }
        let (sequence, changes) = (self.acknowledged + 1, self.pending.len() as u64);
        (frames, UploadEnd { sequence, changes, digest: digest.finish() })
    }

    /// One sync that goes well.
    pub(crate) fn sync(&mut self, database: &Database, plan: &Plan) -> Synced {
        self.try_sync(&mut *database.connect(), plan).expect("the sync goes well")
    }

    pub(crate) fn try_sync(&mut self, connection: &mut dyn Connection, plan: &Plan) -> Result<Synced, Error> {
        let welcome = self.greet(connection, plan)?;
        let uploaded = if self.pending.is_empty() { None } else { Some(self.upload(connection, plan)?) };
        let mut synced = self.download(connection, plan, &welcome, uploaded.as_ref())?;
        (self.incarnation, self.note) = (welcome.incarnation, welcome.note);
        synced.uploaded = uploaded;
        Ok(synced)
    }

    pub(crate) fn greet(&self, connection: &mut dyn Connection, plan: &Plan) -> Result<Welcome, Error> {
        let greet = if self.pending.is_empty() { greet } else { greet_before_upload };
        match greet(connection, plan, &self.user, &self.hello(plan))? {
            Greeting::Welcome(greeted) => Ok(greeted.welcome),
            Greeting::WrongSecret => panic!("the secret is right"),
        }
    }

    /// Uploads what is pending; it is pending no more if it was applied.
    pub(crate) fn upload(&mut self, connection: &mut dyn Connection, plan: &Plan) -> Result<Uploaded, Error> {
        let uploaded = self.upload_only(connection, plan)?;
        assert!(matches!(uploaded.verdict, Verdict::Applied | Verdict::Replayed), "{:?}", uploaded.verdict);
        self.acknowledged = uploaded.receipt.sequence;
        self.pending.clear();
        Ok(uploaded)
    }

    /// Uploads what is pending, and forgets that it did.
    pub(crate) fn upload_only(&self, connection: &mut dyn Connection, plan: &Plan) -> Result<Uploaded, Error> {
        self.upload_by(upload::apply, connection, plan)
    }

    /// The same by one of the ways to apply it.
    pub(crate) fn upload_by(
        &self,
        apply: Apply,
        connection: &mut dyn Connection,
        plan: &Plan,
    ) -> Result<Uploaded, Error> {
        let (mut frames, end) = self.cut(plan);
        let limits = UploadLimits { batch_rows: self.batch_rows, ..UploadLimits::default() };
        let (remote_id, user, acknowledged) = (self.id, self.user.as_str(), self.acknowledged);
        let (life, download_applied) = (None, [0; 16]);
        let cut = self.cut;
        let request = UploadRequest { plan, remote_id, user, life, download_applied, acknowledged, cut, end, limits };
        apply(connection, &request, &mut frames)
    }

    pub(crate) fn download(
        &mut self,
        connection: &mut dyn Connection,
        plan: &Plan,
        welcome: &Welcome,
        uploaded: Option<&Uploaded>,
    ) -> Result<Synced, Error> {
        let nothing = Echo::default();
        let request = DownloadRequest {
            plan,
            user: &self.user,
            remote_id: self.id,
            watermarks: &self.watermarks,
            restart: welcome.restart,
            life: None,
            own: uploaded.map_or(&[], |uploaded| &uploaded.own),
            echo: uploaded.map_or(&nothing, |uploaded| &uploaded.echo),
            conflicted: uploaded.map_or(&[], |uploaded| &uploaded.conflicted),
            refresh: &[],
            extended: &self.extended,
            packing: None,
            snapshots: self.memory.as_ref().map(|memory| memory as &dyn download::Snapshots),
            keeps_marks: false,
            tells_leaving: self.knows_leaving,
        };
        let mut frames = Vec::new();
        let (summary, seen) = download::write(connection, &request, &mut |frame| {
            frames.push(frame);
            Ok(())
        })?;
        let synced = self.apply(plan, &frames);
        self.watermarks = seen;
        self.extended.clear();
        assert_eq!(summary.rows as usize, synced.count());
        Ok(Synced { summary, ..synced })
    }

    /// In which partition the row of a table lies, by what is held.
    fn partition_of(&self, plan: &Plan, table: &TablePlan, row: &Row) -> Option<Vec<u8>> {
        let Some(parent) = table.parents.first().map(|parent| find(plan, &parent.name)) else {
            return table.partition_of(row);
        };
        let mut bytes = Vec::new();
        put_row(&mut bytes, &parent.key_types, &table.parent_key(row)?);
        self.partition_of(plan, parent, self.rows.get(&(parent.number, bytes))?)
    }

    pub(crate) fn apply(&mut self, plan: &Plan, frames: &[Frame]) -> Synced {
        let mut synced = Synced::default();
        let before: BTreeMap<(u32, Vec<u8>), Vec<u8>> = self
            .rows
            .iter()
            .filter_map(|(key, row)| Some((key.clone(), self.partition_of(plan, &plan.tables[key.0 as usize], row)?)))
            .collect();
        let mut table: Option<&TablePlan> = None;
        for frame in frames {
            let payload = frame.payload(LIMIT).expect("our own frame");
            match frame.kind {
                Kind::Table => {
                    let header = TableHeader::from_payload(&payload).expect("a header");
                    table = Some(&plan.tables[header.table as usize]);
                    assert_eq!(table.map(|table| &table.header), Some(&header));
                }
                Kind::Partition => {
                    self.mark(&before, PartitionMark::from_payload(&payload).expect("a mark"), &mut synced);
                }
                Kind::Rows => self.put_rows(table.expect("a table comes first"), &payload, &mut synced),
                Kind::Snapshot => {
                    table = None;
                    self.put_snapshot(plan, &Snapshot::from_payload(&payload).expect("a snapshot"), &mut synced);
                }
                other => panic!("{other:?} in a download"),
            }
        }
        synced
    }

    fn put_snapshot(&mut self, plan: &Plan, snapshot: &Snapshot, synced: &mut Synced) {
        let table = &plan.tables[snapshot.table as usize];
        let is_whole = |mark: &PartitionMark| mark.table == snapshot.table && mark.partition == snapshot.partition;
        assert!(synced.marks.iter().any(is_whole), "it comes after its partition");
        let frames = self.memory.as_ref().expect("it takes chunks").frames(snapshot);
        for frame in frames.iter().filter(|frame| frame.kind == Kind::Rows) {
            self.put_rows(table, &frame.payload(LIMIT).expect("our own frame"), synced);
        }
    }

    /// `before`: where rows lay before this download.
    fn mark(&mut self, before: &BTreeMap<(u32, Vec<u8>), Vec<u8>>, mark: PartitionMark, synced: &mut Synced) {
        self.rows.retain(|key, _| key.0 != mark.table || before.get(key) != Some(&mark.partition));
        if mark.action == PartitionAction::Left {
            assert!(self.watermarks.entries.iter().any(|e| e.table == mark.table), "nothing of the table is held");
        }
        synced.marks.push(mark);
    }

    fn put_rows(&mut self, table: &TablePlan, payload: &[u8], synced: &mut Synced) {
        let mut rows = RowsReader::new(payload);
        while let Some(op) = rows.next_op().expect("an op") {
            match op {
                RowOp::Upsert => {
                    let row = read_row(rows.row(), &table.types, LIMIT, None).expect("a row");
                    self.rows.insert((table.number, key(table, &row)), row.clone());
                    synced.upserts.push((table.number, row));
                }
                RowOp::Delete | RowOp::Leave => {
                    let gone = read_row(rows.row(), &table.key_types, LIMIT, None).expect("a key");
                    let mut bytes = Vec::new();
                    put_row(&mut bytes, &table.key_types, &gone);
                    self.rows.remove(&(table.number, bytes));
                    if op == RowOp::Leave {
                        synced.left.push((table.number, gone.clone()));
                    }
                    synced.deletes.push((table.number, gone));
                }
            }
        }
    }

    /// Compares with a replica of the same user that syncs for the first time: it reads tables, not side tables.
    #[track_caller]
    pub(crate) fn assert_equals_fresh(&self, database: &Database, plan: &Plan) {
        let fresh = Replica::synced(database, plan, &self.user);
        for table in plan.tables.iter().map(|table| table.table.name.as_str()).filter(|table| *table != "measure") {
            assert_eq!(self.table(plan, table), fresh.table(plan, table), "table {table} of {}", self.user);
        }
    }
}

pub(crate) fn find<'p>(plan: &'p Plan, table: &str) -> &'p TablePlan {
    plan.tables.iter().find(|found| found.table.name == table).unwrap_or_else(|| panic!("no table {table}"))
}

fn key(table: &TablePlan, row: &Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_row(&mut bytes, &table.key_types, &table.key_of(row));
    bytes
}
