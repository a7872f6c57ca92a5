//! A remote in memory: the protocol's own session ([`headwater_protocol::client`]), without a file. It reads and checks every row that
//! comes, and keeps what the next sync needs: who it is, what it has seen, and how far its uploads are.
//!
//! *Caveats.* A download that broke comes whole again. An upload goes within its request, whatever its size. Where the consolidated
//! database is not the one that it was, the sync fails: in a measurement that is a fault, and nothing to go on from.

use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::client::{Cause, Config, Failure, Instruction, Reply, Session, Staged, Start, Summary};
use headwater_protocol::message::{
    AppliedUpload, Change, Download, ErrorCode, Hello, Receipt, RowOp, RowsReader, ServerError, TableHeader, UploadEnd,
    Watermarks, Welcome,
};
use headwater_protocol::row::{Cell, RowReader};
use headwater_protocol::upload::Digest;
use headwater_protocol::{DecodeError, Frame, Kind, Limits, ROW_BYTES_MAX, ValueRef};
use tokio::time::Instant;

use super::http::{self, Answer, Refused};
use crate::harness::{self, Attempts, Class, Traffic};
use crate::link::Link;
use crate::peer::Peer;

/// How full a frame of changes gets before it is closed.
const FRAME_BYTES_TARGET: usize = 64 * 1024;

/// Where a remote syncs, as whom, and what.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The server.
    pub server: Peer,
    /// The user.
    pub user: String,
    /// The user's token.
    pub token: String,
    /// The model's name, version and fingerprint.
    pub model: (String, u32, u64),
    /// The remote ID.
    pub remote_id: [u8; 16],
    /// What binds the remote ID to this remote.
    pub secret: [u8; 32],
}

/// How fast a client is, and how patient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// What is between it and the server.
    pub link: Link,
    /// What it takes for each row: before the first request for those that go up, as they come for those that come down.
    pub row: Duration,
    /// When it comes back after a refusal, whenever the server would like it; none: when the server says.
    pub retry_delay: Option<Duration>,
    /// For how long it is tried; none: for as long as remotes do.
    pub patience: Option<Duration>,
}

impl Pace {
    /// How patient a sync is.
    pub(crate) fn config(&self) -> Config {
        // Who syncs decides how long it is tried.
        let usual = Config { attempts_max: u32::MAX, ..Config::default() };
        Config { elapsed_max: self.patience.unwrap_or(usual.elapsed_max), ..usual }
    }
}

/// A remote.
#[derive(Debug)]
pub struct MemoryRemote {
    identity: Identity,
    incarnation: [u8; 16],
    note: [u8; 16],
    download_applied: [u8; 16],
    watermarks: Watermarks,
    /// Number of the last upload that was applied.
    upload_sequence: u64,
    last_upload: Option<AppliedUpload>,
    /// What is to go up next; stays where a sync fails.
    pending: Option<Upload>,
    limits: Limits,
    /// How the next sync is called, so that the server's stamps are known for its own.
    sync_id: String,
}

/// An upload, encoded.
#[derive(Clone, Debug)]
pub struct Upload {
    frames: Vec<u8>,
    changes: u64,
    digest: [u8; 32],
}

impl Upload {
    /// Encodes changes of one table; none of no changes.
    pub fn of(header: &TableHeader, changes: impl Iterator<Item = Change>) -> Option<Upload> {
        let types = header.types();
        let mut upload = Upload { frames: Vec::new(), changes: 0, digest: [0; 32] };
        let mut digest = Digest::new();
        let mut add = |frames: &mut Vec<u8>, kind, payload: Vec<u8>| {
            digest.add(kind, &payload);
            Frame::packed(kind, payload).write(frames);
        };
        let table = header.to_frame();
        let payload = table.payload(Limits::REQUEST.frame_bytes_max).ok()?.into_owned();
        add(&mut upload.frames, Kind::Table, payload);
        let mut payload = Vec::new();
        for change in changes {
            change.write(&mut payload, &types);
            upload.changes += 1;
            if payload.len() >= FRAME_BYTES_TARGET {
                add(&mut upload.frames, Kind::Changes, std::mem::take(&mut payload));
            }
        }
        if !payload.is_empty() {
            add(&mut upload.frames, Kind::Changes, payload);
        }
        upload.digest = digest.finish();
        (upload.changes > 0).then_some(upload)
    }
}

/// What is told of each row that comes: its table's number, what it does, and its values, or those of its key. An error says what is wrong
/// with it.
pub type Check<'c> = &'c mut dyn FnMut(u32, RowOp, &[ValueRef<'_>]) -> Result<u64, String>;

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Rows that came.
    pub upserts: u64,
    /// Deletions that came.
    pub deletes: u64,
    /// The sum of what the check gave for each of them.
    pub sum: u64,
    /// Changes that went up.
    pub changes: u64,
    /// Of them, those that met a conflict or were refused.
    pub contested: u64,
    /// Bytes of the requests' bodies; 0 of a remote with a file, which does not tell.
    pub bytes_out: u64,
    /// Bytes of the answers' bodies.
    pub bytes_in: u64,
    /// Requests that were made.
    pub requests: u32,
    /// How often the server was overloaded, and told when to come back.
    pub refusals: u64,
    /// Attempts that failed, those among them.
    pub retries: u64,
}

impl Synced {
    /// What it met, and what went over the network for it.
    pub(crate) fn attempts(&self) -> Attempts {
        let &Synced { refusals, retries, bytes_out, bytes_in, .. } = self;
        let traffic =
            Traffic { sent_bytes: bytes_out, received_bytes: bytes_in, body_bytes: bytes_in, ..Traffic::default() };
        Attempts { refusals, retries, traffic, ..Attempts::default() }
    }
}

/// What has come of a download that is not whole yet.
#[derive(Default)]
struct Stage {
    welcome: Option<Welcome>,
    download: Option<Download>,
    watermarks: Option<Watermarks>,
    header: Option<TableHeader>,
    upserts: u64,
    deletes: u64,
    sum: u64,
}

/// A sync on its way.
struct Exchange<'r, 'c> {
    remote: &'r mut MemoryRemote,
    session: Session,
    pace: Pace,
    /// Rows for which the client has not taken its time yet.
    rows_due: u64,
    begin: Instant,
    answer: Option<Answer>,
    stage: Stage,
    check: Check<'c>,
    synced: Synced,
}

impl MemoryRemote {
    /// A remote that has seen nothing.
    pub fn new(identity: Identity) -> MemoryRemote {
        MemoryRemote {
            identity,
            incarnation: [0; 16],
            note: [0; 16],
            download_applied: [0; 16],
            watermarks: Watermarks::default(),
            upload_sequence: 0,
            last_upload: None,
            pending: None,
            limits: Limits { frame_bytes_max: Limits::REQUEST.frame_bytes_max, ..Limits::ANSWER },
            sync_id: String::new(),
        }
    }

    /// Calls the next sync so; empty: it has no name.
    pub fn call(&mut self, sync_id: String) {
        self.sync_id = sync_id;
    }

    /// Has an upload go with the next sync, in the place of one that waits.
    pub fn put(&mut self, upload: Option<Upload>) {
        self.pending = upload;
    }

    /// Syncs: what is to go up, then what is new. After a failure the upload still waits, whether it was applied or not: the next sync
    /// finds out.
    pub async fn sync(&mut self, pace: Pace, check: Check<'_>) -> Result<Synced, harness::Failure> {
        self.exchange(pace, check).run().await
    }

    fn exchange<'r, 'c>(&'r mut self, pace: Pace, check: Check<'c>) -> Exchange<'r, 'c> {
        let start = Start {
            upload_sequence: self.upload_sequence,
            frozen: None,
            is_large: false,
            is_part: false,
            staged: Staged::Nothing,
        };
        let seed = u64::from_le_bytes(std::array::from_fn(|place| self.identity.remote_id[place]));
        let config = Config { limits: self.limits, takes_chunks: false, ..pace.config() };
        let session = Session::new(start, config, seed);
        let begin = Instant::now();
        let (stage, synced) = (Stage::default(), Synced::default());
        Exchange { remote: self, session, pace, rows_due: 0, begin, answer: None, stage, check, synced }
    }

    fn end(&self) -> Option<UploadEnd> {
        let sequence = self.upload_sequence + 1;
        self.pending.as_ref().map(|upload| UploadEnd { sequence, changes: upload.changes, digest: upload.digest })
    }

    /// A request's body.
    fn request(&self, has_upload: bool, wants_download: bool) -> Bytes {
        let (model, model_version, fingerprint) = self.identity.model.clone();
        let upload = self.pending.as_ref().filter(|_| has_upload);
        let hello = Hello {
            remote_id: self.identity.remote_id,
            secret: self.identity.secret,
            model,
            model_version,
            fingerprint,
            incarnation: self.incarnation,
            note: self.note,
            upload_sequence: self.upload_sequence,
            download_applied: self.download_applied,
            has_upload: upload.is_some(),
            wants_download,
            takes_chunks: false,
            knows_leaving: false,
            uploads: self.last_upload.into_iter().collect(),
            frozen: None,
            watermarks: self.watermarks.clone(),
        };
        let mut body = hello.to_frame().to_bytes();
        if let (Some(upload), Some(end)) = (upload, self.end()) {
            body.extend_from_slice(&upload.frames);
            end.to_frame().write(&mut body);
        }
        Frame::new(Kind::End, Vec::new()).write(&mut body);
        body.into()
    }

    fn apply_receipt(&mut self, receipt: &Receipt) {
        self.last_upload = self.end().map(|end| AppliedUpload::new(end.sequence, &end.digest));
        self.upload_sequence = receipt.sequence;
        self.pending = None;
    }
}

impl Exchange<'_, '_> {
    async fn run(mut self) -> Result<Synced, harness::Failure> {
        loop {
            match self.session.poll(self.begin.elapsed()) {
                Instruction::Request { has_upload, ticket: None, wants_download, .. } => {
                    self.request(has_upload, wants_download).await;
                }
                Instruction::Resume => {
                    // Whatever it has, it is asked for anew.
                    let message = "a remote in memory keeps no part of a download".to_owned();
                    let gone = ServerError { code: ErrorCode::Gone, retry_after_ms: 0, message };
                    self.session.refused(self.begin.elapsed(), gone);
                }
                Instruction::Read { until } => self.read(until).await,
                Instruction::WaitUntil(until) => {
                    self.answer = None;
                    tokio::time::sleep_until(self.begin + until).await;
                }
                Instruction::Done(summary) => return Ok(self.done(&summary)),
                Instruction::Failed(failure) => return Err(failed(&failure)),
                other => {
                    let reply = self.carry_out(other)?;
                    self.take_time().await;
                    self.session.done(self.begin.elapsed(), reply);
                }
            }
        }
    }

    async fn request(&mut self, has_upload: bool, wants_download: bool) {
        self.answer = None;
        let body = self.remote.request(has_upload, wants_download);
        self.synced.bytes_out += body.len() as u64;
        let Identity { server, token, user, remote_id, .. } = &self.remote.identity;
        let body = (body, self.remote.sync_id.as_str());
        let answer = http::sync((server, self.pace.link), token, user, *remote_id, body).await;
        let now = self.begin.elapsed();
        match answer {
            Ok(answer) => {
                self.answer = Some(answer);
                self.session.done(now, Reply::Done);
            }
            Err(Refused::Network(text)) => self.session.io_error(now, text),
            Err(Refused::Status(error)) => {
                let error = self.come_back(error);
                self.session.refused(now, error);
            }
        }
    }

    /// The refusal, with the time at which this client comes back.
    fn come_back(&mut self, error: ServerError) -> ServerError {
        if error.code != ErrorCode::Overloaded {
            return error;
        }
        self.synced.refusals += 1;
        let own = self.pace.retry_delay.map(|delay| u32::try_from(delay.as_millis()).unwrap_or(u32::MAX));
        ServerError { retry_after_ms: own.unwrap_or(error.retry_after_ms), ..error }
    }

    async fn read(&mut self, until: Duration) {
        let Some(answer) = &mut self.answer else {
            return self.session.io_error(self.begin.elapsed(), "there is no connection");
        };
        // Silence until then: the session is asked what that means.
        let Ok(read) = tokio::time::timeout_at(self.begin + until, answer.next()).await else { return };
        let now = self.begin.elapsed();
        match read {
            Ok(Some(bytes)) => self.session.bytes(now, &bytes),
            Ok(None) => self.session.closed(now),
            Err(text) => self.session.io_error(now, text),
        }
    }

    /// The client's time for the rows that it has had in hand.
    async fn take_time(&mut self) {
        let rows = std::mem::take(&mut self.rows_due);
        let time = self.pace.row.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX));
        if !time.is_zero() {
            tokio::time::sleep(time).await;
            // Who did not listen can't call it silence.
            self.session.bytes(self.begin.elapsed(), &[]);
        }
    }

    /// What a remote does to its file, done in memory.
    fn carry_out(&mut self, instruction: Instruction) -> Result<Reply, harness::Failure> {
        match instruction {
            Instruction::Cut => {
                self.rows_due += self.remote.pending.as_ref().map_or(0, |upload| upload.changes);
                return Ok(Reply::Cut(self.remote.end().map(|end| end.sequence)));
            }
            Instruction::ApplyReceipt(receipt) => {
                self.remote.apply_receipt(&receipt);
            }
            Instruction::Stage(frame) => {
                self.stage(&frame)?;
            }
            Instruction::DropStaged => self.stage = Stage::default(),
            Instruction::StageComplete => {}
            Instruction::ApplyStaged => return Ok(self.apply()),
            other => {
                let what = format!("the sync went another way than a measurement can go on from: {}", named(&other));
                return Err(harness::Failure::new(Class::Other, what));
            }
        }
        Ok(Reply::Done)
    }

    fn stage(&mut self, frame: &Frame) -> Result<(), harness::Failure> {
        let broken =
            |error: DecodeError| harness::Failure::new(Class::Other, format!("a download can't be read: {error}"));
        let payload = frame.payload(self.remote.limits.frame_bytes_max).map_err(broken)?;
        match frame.kind {
            // What is staged begins with it.
            Kind::Welcome => {
                let welcome = Some(Welcome::from_payload(&payload).map_err(broken)?);
                self.stage = Stage { welcome, ..Stage::default() };
            }
            Kind::Download => self.stage.download = Some(Download::from_payload(&payload).map_err(broken)?),
            Kind::Table => self.stage.header = Some(TableHeader::from_payload(&payload).map_err(broken)?),
            Kind::Watermarks => self.stage.watermarks = Some(Watermarks::from_payload(&payload).map_err(broken)?),
            Kind::Rows => self.rows_due += self.stage.rows(&payload, self.check)?,
            _ => {}
        }
        Ok(())
    }

    /// The staged download is whole: what it says is so from now on.
    fn apply(&mut self) -> Reply {
        let stage = std::mem::take(&mut self.stage);
        let (Some(welcome), Some(download), Some(watermarks)) = (stage.welcome, stage.download, stage.watermarks)
        else {
            return Reply::Unreadable;
        };
        self.remote.incarnation = welcome.incarnation;
        self.remote.note = welcome.note;
        self.remote.download_applied = download.id;
        self.remote.watermarks = watermarks;
        self.synced.upserts += stage.upserts;
        self.synced.deletes += stage.deletes;
        self.synced.sum = self.synced.sum.wrapping_add(stage.sum);
        Reply::Done
    }

    fn done(self, summary: &Summary) -> Synced {
        let Summary { changes, conflicts, refused, bytes_in, requests, failures, .. } = *summary;
        let (contested, retries) = (conflicts + refused, failures.into());
        Synced { changes, contested, bytes_in, requests, retries, ..self.synced }
    }
}

impl Stage {
    /// Reads rows, each to its last value; gives how many.
    fn rows(&mut self, payload: &[u8], check: Check<'_>) -> Result<u64, harness::Failure> {
        let before = self.upserts + self.deletes;
        let wrong = |what: String| harness::Failure::new(Class::Other, format!("a downloaded row is wrong: {what}"));
        let Some(header) = &self.header else { return Err(wrong("it comes before its table".to_owned())) };
        let (types, key_types) = (header.types(), header.key_types());
        let mut rows = RowsReader::new(payload);
        let mut row = Vec::with_capacity(types.len());
        let broken = |error: DecodeError| wrong(error.to_string());
        while let Some(op) = rows.next_op().map_err(broken)? {
            let types = if op == RowOp::Upsert { &types } else { &key_types };
            let mut cells = RowReader::new(rows.row(), types, ROW_BYTES_MAX).map_err(broken)?;
            row.clear();
            while let Some(cell) = cells.next_cell().map_err(broken)? {
                let Cell::Value(value) = cell else { return Err(wrong("it leaves a value out".to_owned())) };
                row.push(value);
            }
            self.sum = self.sum.wrapping_add(check(header.table, op, &row).map_err(wrong)?);
            match op {
                RowOp::Upsert => self.upserts += 1,
                RowOp::Delete | RowOp::Leave => self.deletes += 1,
            }
        }
        Ok(self.upserts + self.deletes - before)
    }
}

/// An instruction's name, without what is in it.
fn named(instruction: &Instruction) -> String {
    let text = format!("{instruction:?}");
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

fn failed(failure: &Failure) -> harness::Failure {
    let class = match failure {
        Failure::Refused(error) | Failure::GaveUp { cause: Cause::Server(error), .. } => {
            Class::Code(error.code.name().to_owned())
        }
        Failure::GaveUp { cause: Cause::Connection(_), .. } => Class::Lost,
        Failure::GaveUp { cause: Cause::Silent | Cause::Unanswered, .. } => Class::TimeOut,
        Failure::GaveUp { .. } => Class::Other,
    };
    let cause = std::error::Error::source(failure).map(|cause| format!(": {cause}")).unwrap_or_default();
    // Each request has a connection of its own: none is left to be of no use.
    harness::Failure { is_broken: false, ..harness::Failure::new(class, format!("{failure}{cause}")) }
}

#[cfg(test)]
mod tests {
    use headwater_protocol::Value;
    use headwater_protocol::message::ChangeOp;
    use headwater_protocol::row::put_row;

    use super::super::purchase::{self, Purchases};
    use super::*;

    fn deletions(header: &TableHeader, count: i64) -> Frame {
        let (mut payload, types) = (Vec::new(), header.key_types());
        for number in 1..=count {
            payload.push(RowOp::Delete as u8);
            put_row(&mut payload, &types, &[Value::Int(1), Value::Int(number)]);
        }
        Frame::packed(Kind::Rows, payload)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_takes_its_time_for_each_row() {
        let purchases = Purchases::new(&purchase::plan(true), purchase::NOTES_BYTES);
        let header = &purchases.header;
        let mut remote = MemoryRemote::new(Identity {
            server: Peer::at(""),
            user: String::new(),
            token: String::new(),
            model: (String::new(), 1, 0),
            remote_id: [1; 16],
            secret: [1; 32],
        });
        let changes = (1..=30).map(|number| purchases.change(ChangeOp::Update, 1, number, true));
        remote.put(Upload::of(header, changes));
        let pace = Pace { row: Duration::from_millis(7), ..Pace::default() };
        let mut check = |_, _, _: &[ValueRef<'_>]| Ok(0);
        let mut exchange = remote.exchange(pace, &mut check);
        let begin = Instant::now();
        for (instruction, rows) in [
            (Instruction::Cut, 30),
            (Instruction::Stage(header.to_frame()), 30),
            (Instruction::Stage(deletions(header, 50)), 80),
            (Instruction::DropStaged, 80),
            (Instruction::Stage(header.to_frame()), 80),
            (Instruction::Stage(deletions(header, 5_000)), 5_080),
            (Instruction::StageComplete, 5_080),
        ] {
            exchange.carry_out(instruction).expect("done");
            exchange.take_time().await;
            assert_eq!(begin.elapsed(), rows * pace.row);
        }
        assert_eq!(exchange.stage.deletes, 5_000);
    }
}
