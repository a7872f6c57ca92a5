//! A server and its consolidated database in memory: the rules of docs/protocol.md with one table, and a ledger of what was applied.

use std::collections::{BTreeMap, BTreeSet};

use headwater_protocol::message::{
    AppliedUpload, Change, ConflictEnd, Download, ErrorCode, FrozenFate, Hello, Outcome, PartitionAction,
    PartitionMark, Receipt, Refusal, RefusalCode, RowOp, ServerError, UploadEnd, WatermarkEntry, Watermarks, Welcome,
};
use headwater_protocol::row::put_row;
use headwater_protocol::upload::{Stored, Verdict, judge, last_in_common};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Frame, Kind, Type, Value};

use super::row::{Image, TYPES, from_row, header, to_row};
use super::world::Bug;

/// Identifies an upload: remote ID, number and digest.
pub(crate) type UploadId = ([u8; 16], u64, [u8; 32]);

/// How many uploads of a remote are remembered: few, so that some are forgotten.
const UPLOADS_REMEMBERED: usize = 3;

/// A request as the server received it whole.
pub(crate) struct Request {
    pub(crate) hello: Hello,
    pub(crate) frames: Vec<Frame>,
    pub(crate) end: Option<UploadEnd>,
}

/// Everything durable. A clone of it is a backup.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) incarnation: u8,
    version: u64,
    /// Image and version of each key ever stored: images that are `None` are tombstones.
    rows: BTreeMap<i64, (Image, u64)>,
    remotes: BTreeMap<[u8; 16], Known>,
    /// Every upload committed, with its outcomes; more than one entry: applied more than once.
    pub(crate) ledger: BTreeMap<UploadId, Vec<Vec<(u64, Outcome)>>>,
}

#[derive(Clone, Default)]
struct Known {
    sequence: u64,
    digest: [u8; 32],
    receipt: Vec<u8>,
    /// That and those before it, newest first.
    uploads: Vec<AppliedUpload>,
    /// The cuts of those, newest first.
    cuts: Vec<(u64, [u8; 8])>,
}

impl Known {
    fn remember(&mut self, upload: AppliedUpload) {
        if self.uploads.is_empty() {
            self.uploads.push(AppliedUpload::new(0, &[0; 32]));
        }
        self.uploads.insert(0, upload);
        self.uploads.truncate(UPLOADS_REMEMBERED);
    }
}

/// What one upload did, as far as the download after it needs to know.
#[derive(Default)]
struct Applied {
    stored_as_uploaded: BTreeSet<i64>,
    conflicted: BTreeSet<i64>,
}

impl Database {
    pub(crate) fn new() -> Database {
        Database {
            incarnation: 1,
            version: 0,
            rows: BTreeMap::new(),
            remotes: BTreeMap::new(),
            ledger: BTreeMap::new(),
        }
    }

    pub(crate) fn live_rows(&self) -> BTreeMap<i64, i64> {
        self.rows.iter().filter_map(|(key, (image, _))| Some((*key, (*image)?))).collect()
    }

    /// The application at the consolidated database writes a row.
    pub(crate) fn write(&mut self, key: i64, image: Image) {
        self.version += 1;
        self.rows.insert(key, (image, self.version));
    }

    /// Works on a request; everything durable happens here, in one step. Gives the answer's frames.
    pub(crate) fn work(&mut self, request: &Request, bug: Bug) -> Vec<Frame> {
        let mut answer = Vec::new();
        let hello = &request.hello;
        let mut known = self.remotes.entry(hello.remote_id).or_default().clone();
        let foreign = hello.incarnation != [0; 16] && hello.incarnation != [self.incarnation; 16];
        let common = last_in_common(&hello.uploads, &known.uploads);
        let restart =
            (foreign && bug != Bug::IgnoredIncarnation) || hello.upload_sequence > known.sequence || common.is_some();
        let frozen = if common.is_some() { FrozenFate::Unknown } else { self.fate(hello, bug) };
        known = self.remotes[&hello.remote_id].clone();
        let welcome = Welcome {
            incarnation: [self.incarnation; 16],
            note: [0; 16],
            restart,
            whole: false,
            upload_sequence: common.unwrap_or(known.sequence),
            frozen,
        };
        answer.push(welcome.to_frame());
        if common.is_some() {
            answer.push(ServerError { code: ErrorCode::Copy, retry_after_ms: 0, message: String::new() }.to_frame());
            return answer;
        }
        let mut applied = Applied::default();
        if let Some(end) = &request.end {
            match if restart { Err(ErrorCode::Behind) } else { self.upload(request, end, &known, bug) } {
                Ok((receipt, done)) => {
                    answer.push(receipt.to_frame());
                    applied = done;
                }
                Err(code) => {
                    let error = ServerError { code, retry_after_ms: 0, message: String::new() };
                    answer.push(error.to_frame());
                    return answer;
                }
            }
        }
        if hello.wants_download {
            self.download(hello, restart, &applied, &mut answer);
        }
        answer.push(Frame::new(Kind::End, Vec::new()));
        answer
    }

    /// What there is to say of the upload that is frozen at a remote; where it gives that up, its number is used up.
    fn fate(&mut self, hello: &Hello, bug: Bug) -> FrozenFate {
        let known = self.remotes.entry(hello.remote_id).or_default();
        let Some(frozen) = hello.frozen else { return FrozenFate::Unknown };
        match known.cuts.iter().find(|(sequence, _)| *sequence == frozen.sequence) {
            Some((_, cut)) if *cut == frozen.cut => return FrozenFate::Applied,
            Some(_) if bug == Bug::NumberAlone => return FrozenFate::Unknown,
            Some(_) => return FrozenFate::Another,
            None => {}
        }
        let given_up = AppliedUpload::new(frozen.sequence, &[0; 32]);
        if known.uploads.contains(&given_up) {
            return FrozenFate::GivenUp;
        }
        let is_next = known.sequence == hello.upload_sequence && frozen.sequence > known.sequence;
        if !(frozen.is_given_up && is_next) || bug == Bug::KeptNumber {
            return FrozenFate::Unknown;
        }
        (known.sequence, known.digest) = (frozen.sequence, [0; 32]);
        known.remember(given_up);
        FrozenFate::GivenUp
    }

    fn upload(
        &mut self,
        request: &Request,
        end: &UploadEnd,
        known: &Known,
        bug: Bug,
    ) -> Result<(Receipt, Applied), ErrorCode> {
        let cut = known.cuts.iter().find(|(sequence, _)| *sequence == known.sequence).map(|(_, cut)| *cut);
        let stored = Some(Stored { sequence: known.sequence, digest: known.digest, cut });
        let verdict = judge(stored, request.hello.upload_sequence, end, request.hello.frozen.map(|frozen| frozen.cut));
        match verdict {
            Verdict::Replay if bug == Bug::ForgottenReceipt => {
                let receipt = Receipt { sequence: end.sequence, changes: end.changes, outcomes: Vec::new() };
                Ok((receipt, Applied::default()))
            }
            Verdict::Replay if bug != Bug::AlwaysApply => {
                Ok((Receipt::from_payload(&known.receipt).expect("a stored receipt"), Applied::default()))
            }
            Verdict::Apply | Verdict::Replay => Ok(self.apply(request, end)),
            Verdict::Copy => Err(ErrorCode::Copy),
            Verdict::Behind => Err(ErrorCode::Behind),
        }
    }

    fn apply(&mut self, request: &Request, end: &UploadEnd) -> (Receipt, Applied) {
        self.version += 1;
        let mut applied = Applied::default();
        let mut outcomes = Vec::new();
        let mut ordinal = 0;
        for frame in request.frames.iter().filter(|frame| frame.kind == Kind::Changes) {
            let payload = frame.payload(1 << 20).expect("a checked frame");
            let mut reader = Reader::new(&payload);
            while !reader.is_empty() {
                let change = Change::read(&mut reader, &TYPES, 1 << 20).expect("a change");
                if let Some(outcome) = self.apply_change(&change, &mut applied) {
                    outcomes.push((ordinal, outcome));
                }
                ordinal += 1;
            }
        }
        assert_eq!(ordinal, end.changes);
        let receipt = Receipt { sequence: end.sequence, changes: end.changes, outcomes };
        let known = self.remotes.entry(request.hello.remote_id).or_default();
        (known.sequence, known.digest, known.receipt) = (end.sequence, end.digest, receipt.to_payload());
        known.remember(AppliedUpload::new(end.sequence, &end.digest));
        known.cuts.extend(request.hello.frozen.map(|frozen| (frozen.sequence, frozen.cut)));
        let upload = (request.hello.remote_id, end.sequence, end.digest);
        self.ledger.entry(upload).or_default().push(receipt.outcomes.clone());
        (receipt, applied)
    }

    fn apply_change(&mut self, change: &Change, applied: &mut Applied) -> Option<Outcome> {
        let (key, op) = from_row(change.image());
        let old = change.old.as_deref().map(|row| from_row(row).1);
        let new = change.new.as_deref().map(|row| from_row(row).1);
        if new.is_some() && op % 11 == 0 {
            let refusal = Refusal { code: RefusalCode::Check, message: "op".to_owned() };
            return Some(Outcome::Refused(refusal));
        }
        let stored = self.rows.get(&key).and_then(|(image, _)| *image);
        let conflict = stored != old && stored != new;
        if conflict && op % 2 == 0 {
            applied.conflicted.insert(key);
            return Some(Outcome::Conflict(ConflictEnd::Consolidated));
        }
        self.rows.insert(key, (new, self.version));
        applied.stored_as_uploaded.insert(key);
        conflict.then_some(Outcome::Conflict(ConflictEnd::Remote))
    }

    fn download(&self, hello: &Hello, restart: bool, applied: &Applied, answer: &mut Vec<Frame>) {
        let mark = hello.watermarks.marks.first().filter(|_| !restart);
        let since = mark.map(|mark| u64::from_le_bytes(mark.as_slice().try_into().expect("our own mark")));
        let changed: Vec<(i64, Image)> = self
            .rows
            .iter()
            .filter(|(key, (image, version))| match since {
                None => image.is_some(),
                Some(since) if *version > since => !applied.stored_as_uploaded.contains(key),
                Some(_) => applied.conflicted.contains(key),
            })
            .map(|(key, (image, _))| (*key, *image))
            .collect();
        let rows = changed.len() as u64;
        answer.push(Download { id: [9; 16], resumable_s: 0, rows, bytes: 0 }.to_frame());
        if since.is_none() {
            let mark = PartitionMark { table: 0, action: PartitionAction::Whole, partition: Vec::new() };
            answer.push(mark.to_frame());
        }
        answer.push(header().to_frame());
        for some in changed.chunks(3) {
            let mut payload = Vec::new();
            for (key, image) in some {
                match image {
                    Some(op) => {
                        payload.push(RowOp::Upsert as u8);
                        put_row(&mut payload, &TYPES, &to_row(*key, *op));
                    }
                    None => {
                        payload.push(RowOp::Delete as u8);
                        put_row(&mut payload, &[Type::Int], &[Value::Int(*key)]);
                    }
                }
            }
            answer.push(Frame::packed(Kind::Rows, payload));
        }
        let entries = vec![WatermarkEntry { table: 0, partition: Vec::new(), mark: 0 }];
        answer.push(Watermarks { marks: vec![self.version.to_le_bytes().to_vec()], entries }.to_frame());
    }
}
