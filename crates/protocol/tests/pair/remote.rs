//! A remote's file in memory: rows, a log of first old images, a frozen upload, held rows, a staged download.

use std::collections::{BTreeMap, BTreeSet};

use headwater_protocol::client::{Instruction, Reply, Staged, Start};
use headwater_protocol::message::{
    AppliedUpload, Change, ConflictEnd, Download, FrozenUpload, Hello, Outcome, Receipt, RowOp, RowsReader, Ticket,
    UPLOADS_NAMED_MAX, UploadEnd, WatermarkEntry, Watermarks, Welcome,
};
use headwater_protocol::row::read_row;
use headwater_protocol::upload::Digest;
use headwater_protocol::{Frame, Kind, Type};

use super::database::UploadId;
use super::random::Random;
use super::row::{Image, TYPES, from_row, header, to_row};
use super::world::Bug;

/// Everything durable. A clone of it is a copy of the file.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) remote_id: [u8; 16],
    acknowledged: u64,
    /// The last number that was used and is not acknowledged.
    used: u64,
    pub(crate) rows: BTreeMap<i64, i64>,
    /// Pending changes: the image of each key before the first.
    log: BTreeMap<i64, Image>,
    frozen: Option<Frozen>,
    /// Downloaded rows beside pending changes.
    held: BTreeMap<i64, Image>,
    staged: Vec<Frame>,
    staged_whole: bool,
    watermark: Option<Vec<u8>>,
    incarnation: [u8; 16],
    /// Uploads whose receipts were applied, newest first.
    applied: Vec<AppliedUpload>,
    /// Receipts applied.
    pub(crate) receipts: BTreeMap<UploadId, Vec<(u64, Outcome)>>,
    /// A download to be applied too late, where that is the bug.
    late: Vec<Frame>,
}

#[derive(Clone)]
struct Frozen {
    frames: Vec<Frame>,
    end: UploadEnd,
    cut: [u8; 8],
    changes: Vec<(i64, Image, Image)>,
}

impl File {
    pub(crate) fn new(remote_id: [u8; 16]) -> File {
        File {
            remote_id,
            acknowledged: 0,
            used: 0,
            rows: BTreeMap::new(),
            log: BTreeMap::new(),
            frozen: None,
            held: BTreeMap::new(),
            staged: Vec::new(),
            staged_whole: false,
            watermark: None,
            incarnation: [0; 16],
            applied: Vec::new(),
            receipts: BTreeMap::new(),
            late: Vec::new(),
        }
    }

    /// What a session begins with.
    pub(crate) fn start(&self) -> Start {
        let staged = match (self.staged.is_empty(), self.staged_whole) {
            (true, _) => Staged::Nothing,
            (_, false) if self.rest().is_some() => Staged::Resumable,
            (_, false) => Staged::Part,
            (_, true) => Staged::Whole,
        };
        let frozen = self.frozen.as_ref().map(|frozen| frozen.end.sequence);
        Start { upload_sequence: self.acknowledged, frozen, is_large: self.frozen_is_large(), is_part: false, staged }
    }

    /// Whether the frozen upload is to go in pieces: where its number is even.
    fn frozen_is_large(&self) -> bool {
        self.frozen.as_ref().is_some_and(|frozen| frozen.end.sequence % 2 == 0)
    }

    /// Digest and bytes of the frozen upload.
    pub(crate) fn pieces(&self) -> ([u8; 32], Vec<u8>) {
        let frozen = self.frozen.as_ref().expect("an upload is frozen");
        (frozen.end.digest, frozen.frames.iter().flat_map(Frame::to_bytes).collect())
    }

    /// ID of the staged download, if its server keeps it, and how many bytes of it are staged.
    pub(crate) fn rest(&self) -> Option<([u8; 16], usize)> {
        let payload = self.staged.get(1)?.payload(100).expect("a checked frame");
        let download = Download::from_payload(&payload).expect("DOWNLOAD comes after WELCOME");
        let bytes = self.staged[1..].iter().map(Frame::wire_bytes).sum();
        (download.resumable_s > 0).then_some((download.id, bytes))
    }

    /// Whether nothing is pending or on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.log.is_empty() && self.frozen.is_none() && self.staged.is_empty() && self.held.is_empty()
    }

    /// The application writes a row.
    pub(crate) fn write(&mut self, key: i64, image: Image) {
        let old = self.rows.get(&key).copied();
        self.log.entry(key).or_insert(old);
        self.set(key, image);
    }

    /// The request's bytes.
    pub(crate) fn request(
        &mut self,
        has_upload: bool,
        ticket: Option<Ticket>,
        wants_download: bool,
        gives_up: bool,
        bug: Bug,
    ) -> Vec<u8> {
        if bug == Bug::Recut && has_upload {
            self.reopen();
            self.cut([0; 8]);
        }
        let named = self.frozen.as_ref().map(|Frozen { end, cut, .. }| FrozenUpload {
            sequence: end.sequence,
            cut: *cut,
            is_given_up: gives_up,
        });
        let marks: Vec<Vec<u8>> = self.watermark.iter().cloned().collect();
        let entries = marks.iter().map(|_| WatermarkEntry { table: 0, partition: Vec::new(), mark: 0 }).collect();
        let hello = Hello {
            remote_id: self.remote_id,
            secret: [7; 32],
            model: "t".to_owned(),
            model_version: 1,
            fingerprint: 0,
            incarnation: self.incarnation,
            note: [0; 16],
            upload_sequence: self.acknowledged,
            download_applied: [0; 16],
            has_upload,
            wants_download,
            takes_chunks: false,
            knows_leaving: false,
            uploads: self.applied.iter().copied().take(UPLOADS_NAMED_MAX).collect(),
            frozen: named,
            watermarks: Watermarks { marks, entries },
        };
        let mut out = hello.to_frame().to_bytes();
        if let (true, Some(frozen)) = (has_upload, &self.frozen) {
            match ticket {
                Some(ticket) => ticket.to_frame().write(&mut out),
                None => frozen.frames.iter().for_each(|frame| frame.write(&mut out)),
            }
            frozen.end.to_frame().write(&mut out);
        }
        Frame::new(Kind::End, Vec::new()).write(&mut out);
        out
    }

    /// Carries out an instruction, durably.
    pub(crate) fn carry_out(&mut self, instruction: &Instruction, random: &mut Random, bug: Bug) -> Reply {
        match instruction {
            Instruction::Cut => {
                let reply = match self.cut(random.next().to_le_bytes()) {
                    Some(number) if self.frozen_is_large() => Reply::CutLarge(number),
                    number => Reply::Cut(number),
                };
                for frame in std::mem::take(&mut self.late) {
                    self.staged.push(frame);
                }
                if !self.staged.is_empty() {
                    self.apply_staged();
                }
                return reply;
            }
            Instruction::ApplyStaged if bug == Bug::StagedAfterCut => {
                self.late = std::mem::take(&mut self.staged);
                self.staged_whole = false;
            }
            Instruction::ApplyStaged => {
                assert!(self.frozen.is_none(), "nothing is applied beside a frozen upload");
                self.apply_staged();
            }
            Instruction::DropStaged => self.drop_staged(),
            Instruction::ApplyReceipt(receipt) => self.apply_receipt(receipt),
            Instruction::Restart => self.forget_watermarks(),
            Instruction::Rewind { to } => {
                self.used = self.used.max(self.acknowledged);
                self.thaw(false);
                self.acknowledged = *to;
                self.applied.retain(|upload| upload.sequence <= *to);
                self.forget_watermarks();
            }
            Instruction::Thaw { is_given_up, .. } | Instruction::CutSmaller { is_given_up, .. } => {
                self.thaw(*is_given_up && bug != Bug::ReusedNumber);
                if bug == Bug::ReusedNumber {
                    self.used = 0;
                }
            }
            Instruction::TakeForApplied => self.take_for_applied(),
            Instruction::NewRemoteId => {
                assert!(self.frozen.is_none(), "a new remote ID has no upload that is frozen");
                self.remote_id =
                    [random.next().to_le_bytes(), random.next().to_le_bytes()].concat().try_into().expect("16");
                (self.acknowledged, self.used) = (0, 0);
                self.applied.clear();
            }
            Instruction::Stage(frame) => {
                if bug == Bug::EarlyWatermark && frame.kind == Kind::Watermarks {
                    self.take_watermark(frame);
                }
                self.staged.push(frame.clone());
            }
            Instruction::StageComplete => self.staged_whole = true,
            other => panic!("{other:?} is not the file's"),
        }
        Reply::Done
    }

    fn set(&mut self, key: i64, image: Image) {
        match image {
            Some(op) => self.rows.insert(key, op),
            None => self.rows.remove(&key),
        };
    }

    fn cut(&mut self, cut: [u8; 8]) -> Option<u64> {
        let mut changes = Vec::new();
        for (key, old) in std::mem::take(&mut self.log) {
            let new = self.rows.get(&key).copied();
            if new != old {
                changes.push((key, old, new));
            } else if let Some(held) = self.held.remove(&key) {
                self.set(key, held);
            }
        }
        if changes.is_empty() {
            return None;
        }
        let mut frames = vec![header().to_frame()];
        for some in changes.chunks(3) {
            let mut payload = Vec::new();
            for (key, old, new) in some {
                let row = |image: &Image| image.map(|op| to_row(*key, op));
                Change { old: row(old), new: row(new) }.write(&mut payload, &TYPES);
            }
            frames.push(Frame::packed(Kind::Changes, payload));
        }
        let mut digest = Digest::new();
        for frame in &frames {
            digest.add(frame.kind, &frame.payload(1 << 20).expect("our own frame"));
        }
        let sequence = self.acknowledged.max(self.used) + 1;
        let end = UploadEnd { sequence, changes: changes.len() as u64, digest: digest.finish() };
        self.frozen = Some(Frozen { frames, end, cut, changes });
        Some(sequence)
    }

    fn thaw(&mut self, is_given_up: bool) {
        let Some(sequence) = self.frozen.as_ref().map(|frozen| frozen.end.sequence) else { return };
        self.used = self.used.max(sequence);
        if is_given_up {
            self.acknowledged = sequence;
        }
        self.reopen();
    }

    fn reopen(&mut self) {
        for (key, old, _) in self.frozen.take().map(|frozen| frozen.changes).unwrap_or_default() {
            self.log.insert(key, old);
        }
    }

    fn apply_receipt(&mut self, receipt: &Receipt) {
        let frozen = self.frozen.take().expect("a receipt is for the frozen upload");
        assert_eq!((receipt.sequence, receipt.changes), (frozen.end.sequence, frozen.end.changes));
        self.acknowledged = receipt.sequence;
        self.applied.insert(0, AppliedUpload::new(receipt.sequence, &frozen.end.digest));
        self.receipts.insert((self.remote_id, receipt.sequence, frozen.end.digest), receipt.outcomes.clone());
        for (ordinal, (key, old, _)) in (0..).zip(frozen.changes) {
            let outcome = receipt.outcomes.iter().find(|(at, _)| *at == ordinal).map(|(_, outcome)| outcome);
            let made = matches!(outcome, None | Some(Outcome::Conflict(ConflictEnd::Remote | ConflictEnd::Merged)));
            if made {
                // What was held came before this upload.
                self.held.remove(&key);
            } else if let Some(first) = self.log.get_mut(&key) {
                // Changed again since: the change goes on from what the remote knew before.
                *first = old;
            } else {
                let held = self.held.remove(&key);
                self.set(key, held.unwrap_or(old));
            }
        }
    }

    /// What became of it is not known. Its changes are not sent again; where they were made, they come down.
    fn take_for_applied(&mut self) {
        let frozen = self.frozen.take().expect("an upload is frozen");
        self.acknowledged = frozen.end.sequence;
        for (key, old, _) in frozen.changes {
            if !self.log.contains_key(&key) {
                let held = self.held.remove(&key);
                self.set(key, held.unwrap_or(old));
            }
        }
    }

    fn forget_watermarks(&mut self) {
        self.watermark = None;
        self.incarnation = [0; 16];
    }

    fn drop_staged(&mut self) {
        self.staged.clear();
        self.staged_whole = false;
    }

    fn take_watermark(&mut self, frame: &Frame) {
        let payload = frame.payload(1 << 20).expect("a checked frame");
        self.watermark = Watermarks::from_payload(&payload).expect("watermarks").marks.pop();
    }

    fn apply_staged(&mut self) {
        let mut seen = BTreeSet::new();
        let mut whole = false;
        for frame in std::mem::take(&mut self.staged) {
            let payload = frame.payload(1 << 20).expect("a checked frame");
            match frame.kind {
                Kind::Welcome => self.incarnation = Welcome::from_payload(&payload).expect("welcome").incarnation,
                Kind::Partition => whole = true,
                Kind::Rows => self.apply_rows(&payload, &mut seen),
                Kind::Watermarks => self.take_watermark(&frame),
                _ => {}
            }
        }
        self.staged_whole = false;
        let gone: Vec<i64> =
            self.rows.keys().chain(self.log.keys()).copied().filter(|key| !seen.contains(key)).collect();
        if whole {
            for key in gone {
                self.apply_row(key, None);
            }
        }
    }

    fn apply_rows(&mut self, payload: &[u8], seen: &mut BTreeSet<i64>) {
        let mut rows = RowsReader::new(payload);
        while let Some(op) = rows.next_op().expect("a row") {
            let (key, image) = match op {
                RowOp::Upsert => {
                    let (key, op) = from_row(&read_row(rows.row(), &TYPES, 100, None).expect("a row"));
                    (key, Some(op))
                }
                RowOp::Delete | RowOp::Leave => match read_row(rows.row(), &[Type::Int], 100, None).expect("a key")[..]
                {
                    [headwater_protocol::Value::Int(key)] => (key, None),
                    ref other => panic!("not a key: {other:?}"),
                },
            };
            seen.insert(key);
            self.apply_row(key, image);
        }
    }

    /// A downloaded row never overwrites a pending change: it is kept beside it.
    fn apply_row(&mut self, key: i64, image: Image) {
        if self.log.contains_key(&key) {
            self.held.insert(key, image);
        } else {
            self.set(key, image);
        }
    }
}
