//! One sync: carries out what the protocol's [`Session`] asks for, on the file and on the socket. The decisions are the session's.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headwater_protocol::Kind;
use headwater_protocol::client::{Config, Failure, Instruction, Reply, Session, Staged, Start, Summary, status_error};
use headwater_protocol::message::{Download, ErrorCode, Ticket};

use crate::apply::{self, Applied};
use crate::cut;
use crate::error::Error;
use crate::http::{Answer, Client, Credentials, Refused, Server, Who};
use crate::key_ranges;
use crate::pieces::{LARGE_BYTES, Pieces, announced_bytes, frozen_bytes};
use crate::receipt;
use crate::remote::{Remote, now, random};
use crate::request::{Counting, RequestBody};
use crate::schema;
use crate::sent;
use crate::stage::Stage;
use crate::state::State;
use crate::too_large;
use crate::untracked;
use crate::upgrade::Change;

/// How much is read from the socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// How often a waiting sync looks whether it is cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);
/// Uploads of more changes or bytes than this ask first whether they are wanted, which costs a round trip: fewer are some tens of kilobytes.
const ASKED_CHANGES_MIN: u64 = 2_000;
const ASKED_BYTES_MIN: u64 = 256 * 1024;
/// Downloads of this many rows are moved out of the write-ahead log at once.
const CHECKPOINT_ROWS: u64 = 10_000;

/// How to sync.
pub struct SyncOptions<'a> {
    /// What to show to the server.
    pub credentials: Credentials,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// How patient to be, and whether a download is wanted.
    pub config: Config,
    /// Told how far the sync is; not called more often than once a frame.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
    /// Set to end the sync at the next safe point, with [`Error::Cancelled`].
    pub cancel: Option<&'a AtomicBool>,
}

impl SyncOptions<'_> {
    /// A sync with these credentials and everything else as usual.
    pub fn new(credentials: Credentials) -> Self {
        SyncOptions { credentials, ca_file: None, config: Config::default(), progress: None, cancel: None }
    }
}

impl std::fmt::Debug for SyncOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncOptions")
            .field("credentials", &self.credentials)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What a sync is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Finding the local changes.
    Cut,
    /// Sending them; counted in frames.
    Send,
    /// Waiting for the answer, and receiving it; counted in bytes.
    Receive,
    /// Applying the download; counted in rows.
    Apply,
    /// Waiting before the next attempt.
    Wait,
}

/// How far a sync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// How much of that is done.
    pub done: u64,
    /// How much there is to do, if that is known.
    pub total: Option<u64>,
}

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Changes uploaded, whatever became of them.
    pub changes_up: u64,
    /// Changes of those that met a conflict.
    pub conflicts: u64,
    /// Changes of those that were refused and are set aside.
    pub refused: u64,
    /// Rows that came down.
    pub rows_down: u64,
    /// Deletions that came down.
    pub deletions_down: u64,
    /// Rows and deletions that came down and are held beside pending changes.
    pub held: u64,
    /// Pending changes set aside because a row that came down needs their place.
    pub set_aside: u64,
    /// Rows that came down and that the file does not take; they are held and tried again.
    pub not_stored: u64,
    /// Rows that were changed here while change tracking was off, or perhaps were; they are among the changes set aside.
    pub untracked: u64,
    /// Bytes sent, without HTTP's own.
    pub bytes_up: u64,
    /// Bytes received, without HTTP's own.
    pub bytes_down: u64,
    /// Requests sent.
    pub requests: u32,
    /// Attempts that failed and were repeated.
    pub failures: u32,
    /// Whether the file got a new remote ID, being a copy or an old backup.
    pub new_remote_id: bool,
    /// Whether the consolidated database began a new incarnation, and everything came down afresh.
    pub restarted: bool,
    /// Numbers of uploads that the consolidated database had acknowledged and has no more: first and last.
    pub lost: Option<(u64, u64)>,
    /// Changes of those that the file still had, and that are set aside.
    pub lost_changes: u64,
    /// Why the consolidated database refused an upload whole, its changes pending again; the download went on.
    pub upload_refused: Option<String>,
    /// How long each phase took.
    pub times: Times,
}

/// How long each phase of a sync took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Finding and freezing the local changes.
    pub cut: Duration,
    /// Sending them, until the answer began.
    pub send: Duration,
    /// Waiting for and receiving the answer.
    pub receive: Duration,
    /// Applying the receipt.
    pub receipt: Duration,
    /// Staging the download.
    pub stage: Duration,
    /// Applying the download.
    pub apply: Duration,
    /// Waiting between attempts.
    pub wait: Duration,
    /// All of it.
    pub total: Duration,
}

impl Remote {
    /// Synchronizes with the server: what has changed here goes up, what changed there comes down.
    ///
    /// Blocks until it is done or has failed for good; attempts that may succeed later are repeated as [`SyncOptions::config`] says.
    /// After an error the file is as it was before the sync, after its upload, or after both; pending changes stay pending.
    pub fn sync(&mut self, options: &mut SyncOptions<'_>) -> Result<SyncReport, Error> {
        self.sync_with(options, None)
    }

    /// The same; with a `change` the first download is one under its version, which the file is changed to with it.
    pub(crate) fn sync_with(
        &mut self,
        options: &mut SyncOptions<'_>,
        mut change: Option<Change>,
    ) -> Result<SyncReport, Error> {
        let start = Instant::now();
        let _alone = self.lock()?;
        self.reread()?;
        schema::refresh(&self.database, &mut self.plan)?;
        let state = self.state()?;
        let server =
            Server { url: state.server, credentials: options.credentials.clone(), ca_file: options.ca_file.clone() };
        let client = Client::new(&server, options.config.idle_max)?;
        let mut report = SyncReport::default();
        let mut may_renew = true;
        loop {
            let was_cached = self.has_token(&server.credentials);
            let fingerprint = change.as_ref().map_or(self.plan.fingerprint, |change| change.plan.fingerprint);
            let left = Stage::left(&self.database.connection, fingerprint)?;
            let mut sync = Sync {
                remote: self,
                client: &client,
                options,
                change: &mut change,
                start: Instant::now(),
                stage: left,
                pieces: Pieces::default(),
                answer: None,
                expected_rows: None,
                is_partial: false,
                report: &mut report,
            };
            let outcome = sync.run();
            if outcome.is_err() {
                sync.keep_staged();
            }
            match outcome {
                // The token that was kept from a sync before has been revoked, or the server's key is another.
                Err(Error::Failed(failure)) if may_renew && was_cached && is_unauthenticated(&failure) => {
                    may_renew = false;
                    self.token = None;
                }
                Err(error) => return Err(error),
                Ok(true) => {}
                Ok(false) if options.config.wants_download && untracked::ask(&self.database, &self.plan)? => {}
                Ok(false) => break,
            }
        }
        report.times.total = start.elapsed();
        Ok(report)
    }

    /// Held for a whole sync: two of one file would answer each other's questions. The system gives it back when a process dies. A
    /// lock on the SQLite file itself would be lost with the first of its handles that is closed.
    pub(crate) fn lock(&self) -> Result<Alone, Error> {
        let mut path = self.path().as_os_str().to_owned();
        path.push("-sync");
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|error| Error::Configuration {
            what: format!("{} can't be opened ({error}), which keeps syncs of one file apart", path.display()),
        })?;
        match file.try_lock() {
            // A file system without locks is no reason not to sync.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Alone(file)),
            Err(TryLockError::WouldBlock) => Err(Error::Running { path: self.path().to_owned() }),
        }
    }

    fn has_token(&self, credentials: &Credentials) -> bool {
        matches!(credentials, Credentials::Password { .. }) && self.token.is_some()
    }
}

/// The lock of a sync. It is given back by name: a process that was forked meanwhile may still have a copy of the handle.
pub(crate) struct Alone(File);

impl Drop for Alone {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "the lock of a sync goes with its file");
        }
    }
}

fn is_unauthenticated(failure: &Failure) -> bool {
    failure.code() == Some(ErrorCode::Unauthenticated)
}

struct Sync<'s, 'o, 'p> {
    remote: &'s mut Remote,
    client: &'s Client<'s>,
    options: &'s mut SyncOptions<'o>,
    /// Of the model's version, as long as it has not taken place.
    change: &'s mut Option<Change>,
    start: Instant,
    stage: Stage,
    pieces: Pieces,
    answer: Option<Answer>,
    expected_rows: Option<u64>,
    /// Whether the upload was cut short, so that another must follow.
    is_partial: bool,
    report: &'p mut SyncReport,
}

impl Sync<'_, '_, '_> {
    /// Runs one session; whether another is to follow.
    fn run(&mut self) -> Result<bool, Error> {
        let state = self.remote.state()?;
        let staged = match (state.is_staged && !self.stage.is_other(), self.stage.is_empty()) {
            (true, false) => Staged::Whole,
            (false, false) if self.stage.rest().is_some() => Staged::Resumable,
            (false, false) => Staged::Part,
            (_, true) => Staged::Nothing,
        };
        let is_large = frozen_bytes(&self.remote.database.connection)? > LARGE_BYTES;
        let frozen = state.frozen.map(|end| end.sequence);
        let start = Start { upload_sequence: state.upload_sequence, frozen, is_large, staged };
        let mut session = Session::new(start, self.options.config, u64::from_le_bytes(random()?));
        if self.change.is_some() || (state.is_adopted && state.incarnation == [0; 16] && state.frozen.is_none()) {
            session = session.downloading_first();
        }
        loop {
            self.check_cancelled()?;
            let instruction = session.poll(self.elapsed());
            if !matches!(
                instruction,
                Instruction::Read { .. }
                    | Instruction::ApplyReceipt(_)
                    | Instruction::Restart
                    | Instruction::Rewind { .. }
                    | Instruction::CutSmaller(_)
                    | Instruction::Stage(_)
                    | Instruction::StageComplete
            ) {
                self.answer = None;
            }
            match instruction {
                Instruction::Ticket => self.ticket(&mut session)?,
                Instruction::Piece { ticket, offset, bytes_max } => {
                    self.piece(&mut session, ticket, offset, bytes_max)?;
                }
                Instruction::Request { has_upload, ticket, wants_download } => {
                    self.request(&mut session, has_upload, ticket, wants_download)?;
                }
                Instruction::Resume => self.resume(&mut session)?,
                Instruction::Read { .. } => self.read(&mut session),
                Instruction::WaitUntil(until) => self.wait(until)?,
                Instruction::Done(summary) => {
                    self.count(&summary);
                    return Ok(self.is_partial && summary.upload_refused.is_none());
                }
                Instruction::Failed(failure) => return Err(Error::Failed(failure)),
                other => {
                    let reply = self.carry_out(other)?;
                    session.done(self.elapsed(), reply);
                }
            }
        }
    }

    /// The steps on the file, each durable when it returns.
    fn carry_out(&mut self, instruction: Instruction) -> Result<Reply, Error> {
        let began = Instant::now();
        let database = &self.remote.database;
        match instruction {
            Instruction::Cut => {
                self.tell(Phase::Cut, 0, None);
                let (remote, plan) = (&self.remote, &self.remote.plan);
                let cut = cut::cut(&remote.database, plan, &now())?;
                self.is_partial = cut.as_ref().is_some_and(|cut| cut.is_partial);
                self.report.times.cut += began.elapsed();
                self.pieces = Pieces::default();
                let is_large = frozen_bytes(&remote.database.connection)? > LARGE_BYTES;
                return Ok(match cut.map(|cut| cut.end.sequence) {
                    Some(number) if is_large => Reply::CutLarge(number),
                    number => Reply::Cut(number),
                });
            }
            Instruction::ApplyStaged => return self.apply(),
            Instruction::DropStaged => self.stage.clear(database)?,
            Instruction::ApplyReceipt(receipt) => {
                receipt::apply(database, &self.remote.plan, &receipt, &now())?;
                self.report.times.receipt += began.elapsed();
            }
            Instruction::Restart => database.write("starting afresh", State::forget_seen)?,
            Instruction::Rewind { to } => {
                let plan = &self.remote.plan;
                let rewind = |connection: &_| sent::rewind(connection, plan, to, &now());
                self.report.lost_changes += database.write("going back to what the database has", rewind)?;
            }
            Instruction::Thaw => {
                database.write("thawing an upload", |connection| cut::thaw(connection, &self.remote.plan))?;
            }
            Instruction::CutSmaller(error) => {
                let is_alone = too_large::cut_smaller(database, &self.remote.plan, &error, &now())?;
                return Ok(if is_alone { Reply::SetAside } else { Reply::Done });
            }
            Instruction::NewRemoteId => {
                let (remote_id, secret) = (random()?, random()?);
                database.write("taking a new remote ID", |connection| {
                    key_ranges::forget(connection)?;
                    State::set_identity(connection, remote_id, secret)
                })?;
            }
            Instruction::Stage(frame) => {
                if frame.kind == Kind::Download {
                    let rows = Download::from_payload(&frame.payload(READ_BYTES)?)?.rows;
                    self.expected_rows = Some(rows).filter(|rows| *rows > 0);
                }
                self.stage.push(database, frame)?;
                self.report.times.stage += began.elapsed();
            }
            Instruction::StageComplete => self.stage.complete(database)?,
            other => return Err(Error::damaged(format!("the session asks for {other:?} out of turn"))),
        }
        Ok(Reply::Done)
    }

    fn apply(&mut self) -> Result<Reply, Error> {
        let began = Instant::now();
        let total = self.expected_rows;
        let stage = self.stage.take();
        let result = {
            let mut frames = stage.frames();
            let SyncOptions { progress, cancel, .. } = &mut *self.options;
            let mut watch = |done: u64| {
                if let Some(progress) = progress {
                    progress(Progress { phase: Phase::Apply, done, total });
                }
                if is_set(*cancel) { Err(Error::Cancelled) } else { Ok(()) }
            };
            let Remote { database, plan, .. } = &*self.remote;
            match self.change.as_mut() {
                Some(change) => apply::apply_change(database, plan, change, &now(), &mut frames, &mut watch),
                None => apply::apply(database, plan, &now(), &mut frames, &mut watch),
            }
        };
        self.report.times.apply += began.elapsed();
        match result {
            Ok(applied) => {
                if let Some(change) = self.change.take() {
                    self.remote.plan = change.plan;
                }
                self.add(&applied);
                if applied.rows + applied.deletions >= CHECKPOINT_ROWS {
                    self.remote.database.checkpoint();
                }
                Ok(Reply::Done)
            }
            Err(error @ (Error::Malformed(_) | Error::Unexpected { .. })) => {
                tracing::warn!(%error, "the download can't be used");
                self.stage = stage;
                Ok(Reply::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    fn request(
        &mut self,
        session: &mut Session,
        has_upload: bool,
        ticket: Option<Ticket>,
        wants_download: bool,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let state = self.remote.state()?;
        let Remote { database, plan, .. } = &*self.remote;
        let (connection, change) = (&database.connection, self.change.as_ref());
        let mut body = RequestBody::new(connection, plan, change, &state, has_upload, ticket, wants_download)?;
        let sent = {
            let mut counting = Counting::new(&mut body, &mut self.options.progress);
            let is_long = has_upload
                && ticket.is_none()
                && (state.frozen.is_some_and(|end| end.changes > ASKED_CHANGES_MIN)
                    || frozen_bytes(&self.remote.database.connection)? > ASKED_BYTES_MIN);
            let sent = self.client.sync(&who, &mut counting, is_long);
            self.report.bytes_up += counting.bytes;
            sent
        };
        if let Some(error) = body.failure {
            return Err(error);
        }
        self.report.times.send += began.elapsed();
        self.answered(session, sent);
        Ok(())
    }

    /// Asks for a ticket for the frozen upload.
    fn ticket(&mut self, session: &mut Session) -> Result<(), Error> {
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let end = self
            .remote
            .state()?
            .frozen
            .ok_or_else(|| Error::damaged("a ticket is asked for, but nothing is frozen"))?;
        let bytes = announced_bytes(&self.remote.database.connection)?;
        let given = self.client.ticket(&who, bytes, &end.digest).and_then(|given| {
            let ticket =
                u128::from_str_radix(&given.ticket, 16).map_err(|_| Refused::Status(status_error(404, None)))?;
            let (offset, piece_bytes) = (given.offset, given.piece_bytes);
            Ok(Reply::Ticket { ticket: ticket.to_be_bytes(), offset, piece_bytes })
        });
        self.replied(session, given);
        Ok(())
    }

    /// Sends a piece of the frozen upload.
    fn piece(&mut self, session: &mut Session, ticket: [u8; 16], offset: u64, bytes_max: u64) -> Result<(), Error> {
        let began = Instant::now();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (piece, is_last) = self.pieces.piece(&self.remote.database.connection, offset, bytes_max)?;
        let end = offset + piece.len() as u64;
        if piece.is_empty() {
            session.done(self.elapsed(), Reply::Piece { offset, is_all: true });
            return Ok(());
        }
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let sent = self.client.piece(&who, &hex::encode(ticket), offset, &piece);
        self.report.bytes_up += piece.len() as u64;
        self.report.times.send += began.elapsed();
        self.tell(Phase::Send, end, None);
        self.replied(session, sent.map(|offset| Reply::Piece { offset, is_all: is_last && offset == end }));
        Ok(())
    }

    fn replied(&self, session: &mut Session, reply: Result<Reply, Refused>) {
        match reply {
            Ok(reply) => session.done(self.elapsed(), reply),
            Err(Refused::Network(text)) => session.io_error(self.elapsed(), text),
            Err(Refused::Status(error)) => session.refused(self.elapsed(), error),
        }
    }

    /// Asks for the rest of the staged download.
    fn resume(&mut self, session: &mut Session) -> Result<(), Error> {
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let rest =
            self.stage.rest().ok_or_else(|| Error::damaged("a download is to be resumed, but none is staged"))?;
        tracing::info!(offset = rest.offset, "a download that broke is resumed");
        let answer = self.client.rest(&who, &rest);
        self.answered(session, answer);
        Ok(())
    }

    fn answered(&mut self, session: &mut Session, answer: Result<Answer, Refused>) {
        let reply = answer.map(|answer| {
            self.answer = Some(answer);
            Reply::Done
        });
        self.replied(session, reply);
    }

    /// The sync has failed: what is staged of a download that can be resumed goes to the file.
    fn keep_staged(&mut self) {
        if let Err(error) = self.stage.keep(&self.remote.database) {
            tracing::debug!(%error, "the staged download is not kept; it comes again");
        }
    }

    /// Who asks; `None`: there was no token, and the session knows.
    fn who(&mut self, session: &mut Session) -> Result<Option<Who>, Error> {
        let remote_id = self.remote.state()?.remote_id;
        match self.token() {
            Ok(token) => Ok(Some(Who { token, remote_id })),
            Err(error) => self.token_failed(session, error).map(|()| None),
        }
    }

    fn token(&mut self) -> Result<String, Error> {
        if let Credentials::Token(token) = &self.options.credentials {
            return Ok(token.clone());
        }
        if let Some((token, until)) = &self.remote.token
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        let token = self.client.token()?;
        self.remote.token = Some((token.token.clone(), Instant::now() + token.lifetime()));
        Ok(token.token)
    }

    fn token_failed(&mut self, session: &mut Session, error: Error) -> Result<(), Error> {
        match error {
            Error::Network { source, .. } => session.io_error(self.start.elapsed(), source.to_string()),
            Error::Failed(Failure::Refused(error)) => session.refused(self.start.elapsed(), error),
            Error::Http { status, .. } if error.is_retryable() => {
                let error = headwater_protocol::client::status_error(status, None);
                session.refused(self.start.elapsed(), error);
            }
            error => return Err(error),
        }
        Ok(())
    }

    fn read(&mut self, session: &mut Session) {
        let began = Instant::now();
        let mut buffer = vec![0; READ_BYTES];
        let read = match &mut self.answer {
            Some(answer) => answer.read(&mut buffer),
            None => Err(io::Error::from(io::ErrorKind::NotConnected)),
        };
        let now = self.start.elapsed();
        match read {
            Ok(0) => session.closed(now),
            Ok(count) => {
                self.report.bytes_down += count as u64;
                session.bytes(now, &buffer[..count]);
            }
            Err(error) => session.io_error(now, error.to_string()),
        }
        self.report.times.receive += began.elapsed();
        self.tell(Phase::Receive, self.report.bytes_down, None);
    }

    fn wait(&mut self, until: Duration) -> Result<(), Error> {
        let began = Instant::now();
        self.tell(Phase::Wait, 0, None);
        while let Some(left) = until.checked_sub(self.elapsed()).filter(|left| !left.is_zero()) {
            self.check_cancelled()?;
            std::thread::sleep(left.min(CANCEL_INTERVAL));
        }
        self.report.times.wait += began.elapsed();
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn check_cancelled(&self) -> Result<(), Error> {
        if is_set(self.options.cancel) { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn tell(&mut self, phase: Phase, done: u64, total: Option<u64>) {
        if let Some(progress) = &mut self.options.progress {
            progress(Progress { phase, done, total });
        }
    }

    fn add(&mut self, applied: &Applied) {
        self.report.rows_down += applied.rows;
        self.report.deletions_down += applied.deletions;
        self.report.held += applied.held;
        self.report.set_aside += applied.set_aside;
        self.report.not_stored += applied.not_stored;
        self.report.untracked += applied.untracked;
    }

    fn count(&mut self, summary: &Summary) {
        let report = &mut *self.report;
        report.changes_up += summary.changes;
        report.conflicts += summary.conflicts;
        report.refused += summary.refused;
        report.requests += summary.requests;
        report.failures += summary.failures;
        report.new_remote_id |= summary.new_remote_id;
        report.restarted |= summary.restarted;
        report.upload_refused = summary.upload_refused.as_ref().map(|error| error.message.clone());
        report.lost = summary.lost.as_ref().map(|lost| (*lost.start(), *lost.end())).or(report.lost);
    }
}

fn is_set(cancel: Option<&AtomicBool>) -> bool {
    cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
}
