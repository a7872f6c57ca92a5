//! One sync: carries out what the protocol's [`Session`] asks for, on the file and on the socket. The decisions are the session's.

mod exchange;
mod large;
mod report;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headwater_protocol::client::{Config, Failure, Instruction, Reply, Session, Staged, Start};
use headwater_protocol::message::ErrorCode;

pub use self::large::LargeDownload;
pub use self::report::{Phase, Progress, Setback, SyncReport, Times};
use crate::apply;
use crate::cut;
use crate::database::Database;
use crate::error::Error;
use crate::http::{Answer, Client, Credentials, Server};
use crate::key_ranges;
use crate::lost;
use crate::pieces::{LARGE_BYTES, Pieces, frozen_bytes};
use crate::plan::Plan;
use crate::receipt;
use crate::remote::{Remote, now, random};
use crate::request::{Asked, Offer};
use crate::rows::Rows;
use crate::stage::Stage;
use crate::state::State;
use crate::too_large;
use crate::unanswered;
use crate::unsent;
use crate::untracked;
use crate::upgrade::Change;

/// How often a waiting sync looks whether it is cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// Of a download with fewer bytes of frames, what the write-ahead log costs is not worth to be saved.
const FILLING_BYTES: u64 = 256 << 10;

/// A download with fewer bytes of frames holds the write lock for a moment, and is not prepared.
const PREPARED_BYTES: u64 = 32 << 10;

/// How to sync.
pub struct SyncOptions<'a> {
    /// What to show to the server.
    pub credentials: Credentials,
    /// The server's address instead of the file's. It is the file's from when a server there has taken the remote as its own.
    pub server: Option<String>,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// How patient to be, and whether a download is wanted.
    pub config: Config,
    /// Told how far the sync is; not called more often than once a frame.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
    /// Told of a download that does not stay in memory, once, before any of it goes to the file.
    pub large: Option<&'a mut dyn FnMut(&LargeDownload)>,
    /// Told of an attempt that failed and is going to be repeated, before the wait.
    pub setback: Option<&'a mut dyn FnMut(&Setback)>,
    /// Set to end the sync at the next safe point, with [`Error::Cancelled`].
    pub cancel: Option<&'a AtomicBool>,
}

impl SyncOptions<'_> {
    /// A sync with these credentials and everything else as usual.
    pub fn new(credentials: Credentials) -> Self {
        let config = Config::default();
        SyncOptions {
            credentials,
            server: None,
            ca_file: None,
            config,
            progress: None,
            large: None,
            setback: None,
            cancel: None,
        }
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
        change: Option<Change>,
    ) -> Result<SyncReport, Error> {
        let _alone = self.lock()?;
        self.database.log_ahead();
        let done = self.sync_alone(options, change);
        self.database.cut_wal();
        self.judged(done)
    }

    fn sync_alone(&mut self, options: &mut SyncOptions<'_>, mut change: Option<Change>) -> Result<SyncReport, Error> {
        let start = Instant::now();
        self.reread()?;
        self.refresh()?;
        let mut report =
            SyncReport { perhaps_unsent: unsent::list(&self.database, &self.plan, &now())?, ..SyncReport::default() };
        let state = self.state()?;
        let url = options.server.clone().unwrap_or(state.server);
        let server = Server { url, credentials: options.credentials.clone(), ca_file: options.ca_file.clone() };
        let client = Client::new(&server, options.config.idle_max)?;
        let mut may_renew = true;
        let mut takes_parts = false;
        loop {
            let fingerprint = change.as_ref().map_or(self.plan.fingerprint, Change::staged_under);
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
                is_partial: false,
                takes_parts,
                is_server_kept: false,
                token: Token::New,
                report: &mut report,
            };
            let outcome = sync.run();
            if outcome.is_err() {
                sync.keep_staged();
            }
            let token = sync.token;
            match outcome {
                // The token that was kept from before has ended while the machine slept, was revoked, or the server's key is another.
                Err(Error::Failed(failure)) if may_renew && token == Token::Kept && is_unauthenticated(&failure) => {
                    may_renew = false;
                    self.token = None;
                }
                Err(error) => return Err(error),
                Ok(true) => takes_parts = true,
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
        // By its own name, as SQLite finds the log: of a link there would be another lock.
        let path = std::fs::canonicalize(self.path()).unwrap_or_else(|_| self.path().to_owned());
        let mut path = path.into_os_string();
        path.push("-sync");
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|error| Error::of_io("keeping syncs of one file apart", Path::new(&path), error))?;
        take_owner_and_mode(&file, self.path());
        match file.try_lock() {
            // A file system without locks is no reason not to sync.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Alone(file)),
            Err(TryLockError::WouldBlock) => Err(Error::Running { path: self.path().to_owned() }),
        }
    }
}

/// Gives a file beside the database its owner and mode, as SQLite does with the log: the first who syncs may be another user (root, say), and
/// the application is to sync too. What can't be changed stays as it is.
#[cfg(unix)]
fn take_owner_and_mode(file: &File, database: &Path) {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    let (Ok(own), Ok(theirs)) = (file.metadata(), std::fs::metadata(database)) else { return };
    if own.permissions() != theirs.permissions() {
        let _ = file.set_permissions(theirs.permissions());
    }
    if (own.uid(), own.gid()) != (theirs.uid(), theirs.gid()) {
        let _ = fchown(file, Some(theirs.uid()), Some(theirs.gid()));
    }
}

#[cfg(not(unix))]
fn take_owner_and_mode(_: &File, _: &Path) {}

/// The lock of a sync. It is given back by name: a process that was forked meanwhile may still have a copy of the handle.
pub(crate) struct Alone(File);

impl Drop for Alone {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "the lock of a sync goes with its file");
        }
    }
}

/// What of a download can be done before the write lock. What keeps it from being done comes up again with the lock, or holds that longer.
fn prepared(database: &Database, plan: &Plan, stage: &Stage) -> Option<apply::Prepared> {
    match apply::prepare(database, plan, &mut stage.look()) {
        Ok(prepared) => prepared,
        Err(error) => {
            tracing::debug!(%error, "the download is not prepared");
            None
        }
    }
}

/// Whether nothing is in the tables of the model, and nothing waits.
fn has_nothing(database: &Database, plan: &Plan) -> Result<bool, Error> {
    let rows = Rows::new(&database.connection);
    for table in &plan.tables {
        if rows.has_any(table)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_unauthenticated(failure: &Failure) -> bool {
    failure.code() == Some(ErrorCode::Unauthenticated)
}

/// When a token was got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    /// For this request, or it is the application's own.
    New,
    /// For one before.
    Kept,
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
    /// Whether the upload was cut short, so that another must follow.
    is_partial: bool,
    /// Whether one before it in this sync was, and has been taken.
    takes_parts: bool,
    /// Whether the file has the address of [`SyncOptions::server`].
    is_server_kept: bool,
    /// The token of the last request.
    token: Token,
    report: &'p mut SyncReport,
}

impl Sync<'_, '_, '_> {
    /// Runs one session; whether another is to follow.
    fn run(&mut self) -> Result<bool, Error> {
        let state = self.remote.state()?;
        let staged = match (state.is_staged && !self.stage.is_other(), self.stage.is_empty()) {
            (true, false) if self.stage.lacking().is_some() => Staged::Chunks,
            (true, false) => Staged::Whole,
            (false, false) if self.stage.rest().is_some() => Staged::Resumable,
            (false, false) => Staged::Part,
            (_, true) => Staged::Nothing,
        };
        let bytes = frozen_bytes(&self.remote.database.connection)?;
        let is_part = state.frozen.is_some() && bytes >= state.cut_bytes_max;
        let frozen = state.frozen.map(|end| end.sequence);
        let is_large = bytes > LARGE_BYTES;
        let start = Start { upload_sequence: state.upload_sequence, frozen, is_large, is_part, staged };
        let mut session = Session::new(start, self.options.config, u64::from_le_bytes(random()?));
        if self.change.is_some() || (state.is_adopted && state.incarnation == [0; 16] && state.frozen.is_none()) {
            session = session.downloading_first();
        }
        loop {
            self.check_cancelled()?;
            let instruction = session.poll(self.elapsed());
            if !is_within_answer(&instruction) {
                self.answer = None;
            }
            if is_welcomed(&instruction) {
                self.keep_server()?;
            }
            match instruction {
                Instruction::Ticket => self.ticket(&mut session)?,
                Instruction::Piece { ticket, offset, bytes_max } => {
                    self.piece(&mut session, ticket, offset, bytes_max)?;
                }
                Instruction::Request { has_upload, ticket, wants_download, takes_chunks, gives_up } => {
                    let upload = match (has_upload, gives_up) {
                        (true, _) => Offer::Goes,
                        (false, true) => Offer::GivenUp,
                        (false, false) => Offer::Stays,
                    };
                    self.request(&mut session, Asked { upload, ticket, wants_download, takes_chunks })?;
                }
                Instruction::Chunk => self.chunk(&mut session)?,
                Instruction::Resume => self.resume(&mut session)?,
                Instruction::Read { .. } => self.read(&mut session),
                Instruction::WaitUntil(until) => {
                    self.tell_setback(&session, until);
                    self.wait(until)?;
                }
                Instruction::Done(summary) => {
                    self.report.count(&summary);
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
                self.is_partial = cut.is_partial;
                self.report.refused += cut.set_aside;
                self.report.times.cut += began.elapsed();
                self.pieces = Pieces::default();
                let is_large = frozen_bytes(&remote.database.connection)? > LARGE_BYTES;
                return Ok(match cut.end.map(|end| end.sequence) {
                    Some(number) if cut.is_partial && !self.takes_parts => Reply::CutPart { number, is_large },
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
            Instruction::Restart => {
                database.write("starting afresh", State::forget_seen)?;
                self.stage.ask(&database.connection)?;
            }
            Instruction::Rewind { to } => {
                let plan = &self.remote.plan;
                let rewind = |connection: &_| lost::rewind(connection, plan, to, &now());
                self.report.lost_changes += database.write("going back to what the database has", rewind)?;
                self.stage.ask(&database.connection)?;
            }
            Instruction::Thaw { refused, is_given_up } => database.write("thawing an upload", |connection| {
                cut::thaw(connection, &self.remote.plan, is_given_up)?;
                State::set_cut_bytes_max(connection, cut::UPLOAD_BYTES_MAX)?;
                State::set_upload_refused(connection, refused.as_deref())
            })?,
            Instruction::CutSmaller { error, is_given_up } => {
                let is_alone = too_large::cut_smaller(database, &self.remote.plan, &error, is_given_up, &now())?;
                return Ok(if is_alone { Reply::SetAside } else { Reply::Done });
            }
            Instruction::TakeForApplied => database.write("doing without a receipt", |connection| {
                unanswered::take_for_applied(connection, &self.remote.plan, &now())
            })?,
            Instruction::NewRemoteId => {
                let (remote_id, secret) = (random()?, random()?);
                database.write("taking a new remote ID", |connection| {
                    key_ranges::forget(connection)?;
                    State::set_identity(connection, remote_id, secret)
                })?;
            }
            Instruction::Stage(frame) => {
                if self.stage.push(frame)? {
                    self.announce();
                    self.stage.spill(&self.remote.database)?;
                }
                self.report.times.stage += began.elapsed();
            }
            Instruction::StageComplete => {
                self.stage.complete(database)?;
                if self.stage.lacking().is_some() {
                    self.announce_chunks();
                    return Ok(Reply::Lacking);
                }
            }
            other => return Err(Error::damaged(format!("the session asks for {other:?} out of turn"))),
        }
        Ok(Reply::Done)
    }

    fn apply(&mut self) -> Result<Reply, Error> {
        let began = Instant::now();
        let total = self.stage.download().map(|(download, _)| download.rows).filter(|rows| *rows > 0);
        let came = self.stage.download().map_or(0, |(_, came)| came);
        self.announce_whole();
        let stage = self.stage.take();
        let result = {
            let mut frames = stage.frames();
            let SyncOptions { progress, cancel, .. } = &mut *self.options;
            let mut watch = |done: u64| {
                if let Some(progress) = progress {
                    progress(Progress::new(Phase::Apply, done, total));
                }
                if is_set(*cancel) { Err(Error::Cancelled) } else { Ok(()) }
            };
            let Remote { database, plan, .. } = &*self.remote;
            match self.change.as_mut() {
                Some(change) => apply::apply_change(database, plan, change, &now(), &mut frames, &mut watch),
                None if came >= FILLING_BYTES && has_nothing(database, plan)? => {
                    database.filling(|| apply::apply(database, plan, &now(), &mut frames, &mut watch))
                }
                None => {
                    let prepared = if came < PREPARED_BYTES { None } else { prepared(database, plan, &stage) };
                    apply::apply_prepared(database, plan, prepared, &now(), &mut frames, &mut watch)
                }
            }
        };
        self.report.times.apply += began.elapsed();
        match result {
            Ok(applied) => {
                if let Some(change) = self.change.take() {
                    self.remote.plan = change.plan;
                }
                self.report.add(&applied);
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

    /// Whether a large download fills the file, as things are now ([`Database::filling`]).
    fn fills(&self) -> bool {
        let Remote { database, plan, .. } = &*self.remote;
        self.change.is_none() && has_nothing(database, plan).unwrap_or(false) && database.is_alone()
    }

    /// Notes the address in the file, if it was another.
    fn keep_server(&mut self) -> Result<(), Error> {
        let Some(server) = self.options.server.as_ref().filter(|_| !self.is_server_kept) else {
            return Ok(());
        };
        self.is_server_kept = true;
        let state = self.remote.state()?;
        if *server == state.server { Ok(()) } else { self.remote.set_server(server, &state.user) }
    }

    /// The sync has failed: what is staged of a download that can be resumed goes to the file.
    fn keep_staged(&mut self) {
        if let Err(error) = self.stage.keep(&self.remote.database) {
            tracing::debug!(%error, "the staged download is not kept; it comes again");
        }
    }

    fn tell_setback(&mut self, session: &Session, until: Duration) {
        if let (Some(tell), Some((failures, cause))) = (&mut self.options.setback, session.setback()) {
            tell(&Setback::new(failures, cause, until.saturating_sub(self.start.elapsed())));
        }
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
            progress(Progress::new(phase, done, total));
        }
    }
}

/// Whether an answer that is being read is read on after this.
fn is_within_answer(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::Read { .. }
            | Instruction::ApplyReceipt(_)
            | Instruction::Restart
            | Instruction::Rewind { .. }
            | Instruction::CutSmaller { .. }
            | Instruction::TakeForApplied
            | Instruction::Stage(_)
            | Instruction::StageComplete
    )
}

/// Whether a server has greeted the remote before this.
fn is_welcomed(instruction: &Instruction) -> bool {
    match instruction {
        Instruction::Done(summary) => summary.requests > 0,
        Instruction::ApplyReceipt(_) | Instruction::Restart | Instruction::Rewind { .. } | Instruction::Stage(_) => {
            true
        }
        _ => false,
    }
}

fn is_set(cancel: Option<&AtomicBool>) -> bool {
    cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
}
