//! Applying an upload exactly once.
//!
//! [`apply`] is the transaction; `engine` goes through the changes (inserts and updates forwards, deletions backwards) in batches, and
//! takes a batch that the database refuses apart until it has the rows at fault; `tangle` finds out what waits for what, `untangle`
//! applies that, `together` and `park` make what goes in no order in two steps; `policy` says what the user may change at all; `batch`
//! judges one batch and makes its changes by a few set-based statements; `plain` has frames of one kind of change made just as they came;
//! `record` is what the database keeps of a remote's uploads.

mod batch;
mod conflicts;
mod engine;
mod park;
mod plain;
mod policy;
mod record;
mod scripted;
mod source;
mod tangle;
mod together;
mod untangle;

use std::fmt::Write as _;

use headwater_model::OnError;
use headwater_protocol::message::{Outcome, Receipt, Refusal, TEXT_BYTES_MAX, UploadEnd};
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::{Frame, Row, Value, upload as protocol};

use self::engine::{Engine, Results};
use self::policy::Policy;
use self::source::{Item, SourceReader};
use crate::download::{self, LOOKS_MAX};
use crate::rows::Echo;
use crate::system::{Life, life_asked};
use crate::{Connection, Error, Mode, Plan, TablePlan, memberships};

/// Where an upload lies: its TABLE and CHANGES frames, in order, in a spool. Inserts and updates are read forwards, deletions
/// backwards, and some frames again.
pub trait UploadSource: Send {
    /// How many frames there are.
    fn frames(&self) -> usize;

    /// The frame at a place.
    fn frame(&mut self, index: usize) -> Result<Frame, Error>;
}

/// Frames in memory are a source, for tests and small uploads.
impl UploadSource for Vec<Frame> {
    fn frames(&self) -> usize {
        self.len()
    }

    fn frame(&mut self, index: usize) -> Result<Frame, Error> {
        let missing = || Error::Database { context: "reading an upload".into(), detail: format!("no frame {index}") };
        self.get(index).cloned().ok_or_else(missing)
    }
}

/// What one upload may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadLimits {
    /// The most changes in one batch: what is judged and written by one statement.
    pub batch_rows: usize,
    /// The most bytes in a frame's payload, uncompressed; no value in it is longer.
    pub frame_bytes_max: usize,
}

impl Default for UploadLimits {
    fn default() -> Self {
        UploadLimits { batch_rows: 2_000, frame_bytes_max: headwater_protocol::Limits::PIECES.frame_bytes_max }
    }
}

/// An upload to be applied.
#[derive(Clone, Copy, Debug)]
pub struct UploadRequest<'a> {
    /// The model.
    pub plan: &'a Plan,
    /// Whose upload it is; [`crate::system::greet`] has registered it.
    pub remote_id: [u8; 16],
    /// Who syncs.
    pub user: &'a str,
    /// In which life of the database it was greeted ([`crate::system::Greeted::life`]); `None`: it is not compared.
    pub life: Option<&'a Life>,
    /// The last download that the remote has applied.
    pub download_applied: [u8; 16],
    /// Number of the last upload whose receipt the remote has applied.
    pub acknowledged: u64,
    /// The name of the upload's cut, where HELLO has it.
    pub cut: Option<[u8; 8]>,
    /// The upload's number and digest. The digest must have been held against the frames.
    pub end: UploadEnd,
    /// What it may take.
    pub limits: UploadLimits,
}

/// What became of the upload as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was applied now.
    Applied,
    /// It had been applied before; the receipt is the same again.
    Replayed,
    /// Another upload has this number: the remote is a copy. Nothing was changed, and the receipt is empty.
    Copy,
    /// The database lacks uploads that the remote had acknowledged. Nothing was changed, and the receipt is empty.
    Behind,
}

/// How many changes did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Conflicts, however they ended.
    pub conflicts: u64,
    /// Changes refused.
    pub refused: u64,
}

/// What an upload came to.
#[derive(Debug)]
pub struct Uploaded {
    /// As a whole.
    pub verdict: Verdict,
    /// Change by change.
    pub receipt: Receipt,
    /// What need not be sent back.
    pub echo: Echo,
    /// What the upload's changes are known by in the side tables; empty unless applied or replayed.
    pub own: Vec<u8>,
    /// Tables and keys of conflicts, of rows that scripts were to change, and of rows that a trigger has moved: their rows go back as they
    /// are now.
    pub conflicted: Vec<(u32, Row)>,
    /// Sums; zero for a replay.
    pub counts: Counts,
}

/// Applies an upload, or finds that it need not or must not be. One transaction: the remote's row is locked without waiting, the
/// changes are made, and number, digest and receipt are written with them. A change that the database or the policy refuses is in the
/// receipt, and the rest is applied; unless the model says `on_error = "reject"`: then nothing is ([`Error::UploadRefused`]).
///
/// After [`Error::Retry`] nothing has happened, or (where the commit's answer was lost) everything: the same call again finds out.
/// [`Error::RemoteBusy`]: another sync of this remote is at it. [`Error::OtherLife`]: the database is not the one any more that greeted the
/// remote; nothing has happened.
pub fn apply(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
) -> Result<Uploaded, Error> {
    apply_with(connection, request, source, Isolation::ForSure)
}

/// The same after [`Error::InDoubt`] has come again and again: what fails so by itself is refused too, while other statements work.
pub fn apply_isolating(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
) -> Result<Uploaded, Error> {
    apply_with(connection, request, source, Isolation::InDoubt)
}

/// For which errors a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isolation {
    /// Those that are a row's for sure.
    ForSure,
    /// Those that are in doubt as well.
    InDoubt,
}

impl Isolation {
    /// The refusal that an error of a change is; otherwise the error.
    fn refusal(self, error: Error) -> Result<(Refusal, String), Error> {
        match error {
            Error::Refused { refusal, detail } => Ok((refusal, detail)),
            Error::InDoubt { refusal, detail } if self == Isolation::InDoubt => Ok((refusal, detail)),
            other => Err(other),
        }
    }
}

fn apply_with(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
    isolation: Isolation,
) -> Result<Uploaded, Error> {
    let error = match attempt(connection, request, source, (Checking::AtTheEnd, isolation)) {
        Err(error) => error,
        applied => return applied,
    };
    let (_, detail) = isolation.refusal(error)?;
    tracing::debug!(detail, "a deferred constraint is broken; the upload is applied again to find the change at fault");
    let error = match attempt(connection, request, source, (Checking::EachBatch, isolation)) {
        Err(error) => error,
        applied => return applied,
    };
    let (refusal, detail) = isolation.refusal(error)?;
    tracing::warn!(detail, "a deferred constraint is broken whatever is applied; all changes are set aside");
    attempt(connection, request, source, (Checking::Hopeless(refusal), isolation))
}

/// When constraints that the database defers to the end of the transaction are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Checking {
    /// Once, after the last change: an upload that is valid as a whole needs no more.
    AtTheEnd,
    /// After each batch, so that the changes that break one can be found.
    EachBatch,
    /// Never: one is broken at the end though none is after any batch. No change is applied, so that the uploads after this one are not
    /// held up for good.
    Hopeless(Refusal),
}

/// [`Error::Refused`]: a deferred constraint is broken, by some change or other.
fn attempt(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
    how: (Checking, Isolation),
) -> Result<Uploaded, Error> {
    let UploadRequest { plan, user, remote_id, .. } = *request;
    let mut first = vec![record::asked(connection.dialect(), &remote_id)];
    first.extend(memberships::all_asked(&plan.model, user, &remote_id));
    first.extend(request.life.map(|_| life_asked(connection.dialect())));
    first.extend(connection.tracking_query(plan));
    for _ in 0..LOOKS_MAX {
        let opened = connection
            .open(Mode::Upload, (user, &remote_id), &first)
            .and_then(|()| request.life.map_or(Ok(()), |life| life.compare(connection)))
            // It also drops statements that were prepared before a table was altered: they would fail, and rows would be refused for it.
            .and_then(|()| connection.tracking_mark(plan));
        match opened {
            Ok(mark) if connection.whole_tracking().get(&plan.fingerprint) == mark.as_ref() => {
                let applied = inside(connection, request, source, how);
                return crate::finish(connection, applied);
            }
            Ok(_) => connection.rollback()?,
            Err(error) => return crate::finish(connection, Err(error)),
        }
        // A table may stand in the tracked one's place: what is written to it would be lost with it.
        download::look_at_tracking(connection, plan, (user, &remote_id))?;
    }
    Err(Error::Retry { detail: "the model's tables are altered again and again".to_owned(), broken: false })
}

fn inside(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    source: &mut dyn UploadSource,
    how: (Checking, Isolation),
) -> Result<Uploaded, Error> {
    let stored = record::lock(connection, &request.remote_id)?;
    let verdict = protocol::judge(
        stored.as_ref().map(record::Stored::of_protocol),
        request.acknowledged,
        &request.end,
        request.cut,
    );
    let mut reader = SourceReader::new(request, source, connection.dialect());
    match (verdict, stored) {
        (protocol::Verdict::Apply, stored) => {
            let uploaded = apply_changes(connection, request, &mut reader, how)?;
            if !connection.has_same_tables(request.plan)? {
                let detail = "a table was replaced, or its triggers were switched, just before it was written to";
                return Err(Error::Retry { detail: detail.to_owned(), broken: false });
            }
            if request.plan.model.on_error == OnError::Reject && uploaded.counts.refused > 0 {
                return Err(refused_whole(request, &mut reader, &uploaded)?);
            }
            record::keep(connection, request, &uploaded, stored.as_ref())?;
            Ok(uploaded)
        }
        (protocol::Verdict::Replay, Some(stored)) => record::replay(request, &mut reader, stored),
        (protocol::Verdict::Copy, _) => Ok(Uploaded::nothing(Verdict::Copy)),
        (protocol::Verdict::Behind | protocol::Verdict::Replay, _) => Ok(Uploaded::nothing(Verdict::Behind)),
    }
}

/// The error that takes the whole upload back: the model wants all of it or nothing. Names the changes at fault, a line for each, as
/// many as the message has room for.
fn refused_whole(
    request: &UploadRequest<'_>,
    reader: &mut SourceReader<'_>,
    uploaded: &Uploaded,
) -> Result<Error, Error> {
    let mut left = uploaded.counts.refused;
    let mut message = format!("{left} of {} changes are refused", request.end.changes);
    for (ordinal, outcome) in &uploaded.receipt.outcomes {
        let Outcome::Refused(refusal) = outcome else { continue };
        let Some(item) = reader.pick(&[*ordinal])?.pop() else { continue };
        let line = refused_line(&request.plan.tables[item.table], &item, refusal);
        if message.len() + line.len() > TEXT_BYTES_MAX - 40 {
            break;
        }
        message.push_str(&line);
        left -= 1;
    }
    if left > 0 {
        let _ = write!(message, "\nand {left} more");
    }
    Ok(Error::UploadRefused { message })
}

fn refused_line(table: &TablePlan, item: &Item, refusal: &Refusal) -> String {
    let (table, image) = (&table.table, item.change.image());
    let key = table.key.iter().map(|place| format!("{} = {}", table.columns[*place].name, readable(&image[*place])));
    let key = key.collect::<Vec<_>>().join(", ");
    let line = format!("table {:?}, {key}: {} ({})", table.name, refusal.message, refusal.code.name());
    format!("\n{}", line.replace(char::is_control, " "))
}

/// The beginning of a value, for people.
fn readable(value: &Value) -> String {
    let text = match encode(value.as_ref(), &mut Scratch::default()) {
        Stored::Null => "NULL".to_owned(),
        Stored::Integer(number) => number.to_string(),
        Stored::Real(real) => real.to_string(),
        Stored::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Stored::Blob(bytes) => format!("{} bytes", bytes.len()),
    };
    text.chars().take(100).collect()
}

fn apply_changes(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    reader: &mut SourceReader<'_>,
    how: (Checking, Isolation),
) -> Result<Uploaded, Error> {
    let policy = Policy::read(connection, request.plan, request.user, &request.remote_id)?;
    let Results { outcomes, echo, conflicted, counts } = Engine::new(connection, request, policy, how).run(reader)?;
    let UploadEnd { sequence, changes, .. } = request.end;
    let receipt = Receipt { sequence, changes, outcomes: outcomes.into_iter().collect() };
    let own = connection.own_mark()?;
    Ok(Uploaded { verdict: Verdict::Applied, receipt, echo, own, conflicted, counts })
}

impl Uploaded {
    fn nothing(verdict: Verdict) -> Uploaded {
        Uploaded {
            verdict,
            receipt: Receipt::default(),
            echo: Echo::default(),
            own: Vec::new(),
            conflicted: Vec::new(),
            counts: Counts::default(),
        }
    }
}
