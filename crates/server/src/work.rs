//! What a worker does for a sync: greet, upload, download. It blocks, never waits for the client, and ends early when nobody waits
//! for the answer any more (except that an upload that has begun is finished: its receipt is kept).
//!
//! A part that the database could not do now is tried again, by itself: WELCOME and RECEIPT may be on their way to the client already
//! and must stay true. A repeated upload finds out whether the first attempt was committed. A download is only repeated while nothing
//! of it has gone to the spool ([`Beginning`]); after that the client comes again, and its watermark is where it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_consolidated::download::{self, DownloadRequest, Snapshots};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::system::{self, Greeted, Greeting, Tally};
use headwater_consolidated::upload::{self, Counts, UploadLimits, UploadRequest, Uploaded, Verdict};
use headwater_consolidated::{Connection, Error, Plan, Pooled};
use headwater_protocol::message::{ErrorCode, Hello, KeyRanges, Ticket, UploadEnd, Watermarks};
use headwater_protocol::{Frame, Row};

use crate::admission::{Permits, Turn, Worked};
use crate::beginning::Beginning;
use crate::chunks::View;
use crate::failure::Failure;
use crate::spool::UploadSpool;
use crate::spool::download::{PushError, Writer};
use crate::state::{Claim, Shared};
use crate::tickets;

/// How often an upload is tried again that fails perhaps at a row, before the row is looked for.
const DOUBTS_MAX: u32 = 3;

/// A sync that has its worker.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) shared: Arc<Shared>,
    pub(crate) user: String,
    pub(crate) hello: Hello,
    pub(crate) plan: Arc<Plan>,
    pub(crate) upload: Option<(UploadEnd, Source)>,
    pub(crate) key_ranges: Option<KeyRanges>,
    pub(crate) writer: Writer,
    pub(crate) permits: Permits,
    /// Held to the end: the download reads again what a large upload has changed.
    pub(crate) turn: Option<Turn>,
    pub(crate) claim: Claim,
}

/// An upload's frames.
#[derive(Debug)]
pub(crate) enum Source {
    /// They came with the request, and go with it.
    Here(UploadSpool),
    /// They came in pieces, and stay under their ticket.
    Pieces(Ticket, tickets::Spool),
}

impl Source {
    pub(crate) fn spool(&mut self) -> &mut UploadSpool {
        match self {
            Source::Here(spool) => spool,
            Source::Pieces(_, spool) => spool,
        }
    }
}

/// What the worker did, for the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) changes: u64,
    pub(crate) counts: Counts,
    pub(crate) replayed: bool,
    pub(crate) rows_down: u64,
    pub(crate) greet: Duration,
    pub(crate) upload: Duration,
    pub(crate) download: Duration,
    /// Of the download, while others built what it needed.
    pub(crate) waited: Duration,
    pub(crate) retries: u32,
}

impl Done {
    /// The same, to find out how many may work at once. The time that it waited for others says nothing about that.
    pub(crate) fn worked(&self, took: Duration) -> Worked {
        let changes = (!self.upload.is_zero()).then_some(self.changes);
        Worked { changes, rows: self.rows_down, took: took.saturating_sub(self.waited), upload: self.upload }
    }
}

/// Why the worker stopped before the end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The client is told.
    Failed(Failure),
    /// There is nobody to tell.
    Left,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

impl From<PushError> for Stop {
    fn from(error: PushError) -> Self {
        match error {
            PushError::Left => Stop::Left,
            PushError::Io(error) => Stop::Failed(Failure::spool(&error)),
        }
    }
}

/// What the download needs to know of the upload.
#[derive(Default)]
struct Before {
    own: Vec<u8>,
    echo: Echo,
    conflicted: Vec<(u32, Row)>,
}

impl Work {
    /// Does it all. Whatever happens, permits, connection and claim are free afterwards.
    pub(crate) fn run(mut self) -> (Done, Result<(), Stop>) {
        let mut done = Done::default();
        let mut connection = None;
        let result = self.parts(&mut connection, &mut done);
        if let Some(connection) = connection.as_mut().filter(|_| self.turn.is_some()) {
            // Its buffers have grown to the size of the large frames, and would stay so.
            connection.mark_broken();
        }
        drop(connection);
        drop((self.permits, self.turn, self.claim));
        (done, result)
    }

    fn parts(&mut self, connection: &mut Option<Pooled>, done: &mut Done) -> Result<(), Stop> {
        let greeted = timed(&mut done.greet, || self.greet(connection, &mut done.retries))?;
        self.shared.downloads.forget(&self.hello.remote_id);
        self.shared.tickets.keep_only(&self.hello.remote_id, self.upload.as_ref().map(|(end, _)| end.digest));
        if greeted.is_copy {
            let message = "the database has other uploads under this remote ID than the file: the file or the database is a copy, was \
                           restored from a backup, or was exchanged for another. The file needs a new remote ID, and uploads of it may \
                           be lost";
            return Err(Failure::new(ErrorCode::Copy, message).into());
        }
        let before = match self.upload.take() {
            None => Before::default(),
            Some(_) if greeted.welcome.restart => {
                // It was counted for a database that had what this one has not: the remote offers it again when it has started afresh.
                let message =
                    "the database is not the one that the remote knew: it starts afresh, then its upload is taken";
                return Err(Failure::new(ErrorCode::Behind, message).into());
            }
            Some(upload) => {
                self.expected()?;
                let started = Instant::now();
                let uploaded = self.apply(connection, &greeted, upload, &mut done.retries);
                done.upload = started.elapsed();
                self.permits.uploader = None;
                self.uploaded(uploaded?, done)?
            }
        };
        if self.hello.wants_download {
            self.expected()?;
            let started = Instant::now();
            let written = self.download(connection, &greeted, &before, done);
            done.download = started.elapsed();
            written?;
        }
        Ok(())
    }

    fn greet(&self, connection: &mut Option<Pooled>, retries: &mut u32) -> Result<Greeted, Stop> {
        let greet = match (&self.upload, &self.key_ranges) {
            (Some(_), _) => system::greet_before_upload,
            (None, None) if self.hello.wants_download => system::greet_before_count,
            (None, _) => system::greet,
        };
        let greeting = self.retrying_while(
            connection,
            retries,
            |connection| greet(connection, &self.plan, &self.user, &self.hello),
            |_| true,
        )?;
        match greeting {
            Greeting::Welcome(greeted) => {
                // It goes with what comes next, or with a heartbeat.
                self.writer.push_quietly(&greeted.welcome.to_frame())?;
                Ok(greeted)
            }
            Greeting::WrongSecret => {
                let message = "the remote ID belongs to another remote: its secret is not this one";
                Err(Failure::new(ErrorCode::WrongSecret, message).into())
            }
        }
    }

    fn apply(
        &self,
        connection: &mut Option<Pooled>,
        greeted: &Greeted,
        (end, mut source): (UploadEnd, Source),
        retries: &mut u32,
    ) -> Result<Uploaded, Failure> {
        let config = self.shared.config.now();
        let request = UploadRequest {
            plan: &self.plan,
            remote_id: self.hello.remote_id,
            user: &self.user,
            life: Some(&greeted.life),
            download_applied: self.hello.download_applied,
            acknowledged: self.hello.upload_sequence,
            cut: self.hello.frozen.filter(|frozen| frozen.sequence == end.sequence).map(|frozen| frozen.cut),
            end,
            limits: UploadLimits { batch_rows: config.batch_rows, frame_bytes_max: config.frame_bytes_max },
        };
        let mut doubts = 0;
        let uploaded = self.retrying(connection, retries, |connection| {
            let is_patient = doubts < config.retries.min(DOUBTS_MAX);
            let apply = if is_patient { upload::apply } else { upload::apply_isolating };
            let applied = apply(connection, &request, source.spool());
            doubts += u32::from(matches!(applied, Err(Error::InDoubt { .. })));
            applied
        })?;
        let Source::Pieces(ticket, spool) = source else { return Ok(uploaded) };
        drop(spool);
        self.shared.tickets.applied(&ticket.ticket);
        Ok(uploaded)
    }

    fn uploaded(&self, uploaded: Uploaded, done: &mut Done) -> Result<Before, Stop> {
        let sequence = uploaded.receipt.sequence;
        match uploaded.verdict {
            Verdict::Applied => {}
            Verdict::Replayed => done.replayed = true,
            Verdict::Copy => {
                let message = "another upload has this number: the file or the database is a copy, was restored from a backup, or was \
                               exchanged for another. The file needs a new remote ID";
                return Err(Failure::new(ErrorCode::Copy, message).into());
            }
            Verdict::Behind => {
                let message = "the database lacks uploads of this remote that it had acknowledged";
                return Err(Failure::new(ErrorCode::Behind, message).into());
            }
        }
        (done.changes, done.counts) = (uploaded.receipt.changes, uploaded.counts);
        tracing::debug!(sequence, counts = ?uploaded.counts, "upload applied");
        self.push(&uploaded.receipt.to_frame())?;
        Ok(Before { own: uploaded.own, echo: uploaded.echo, conflicted: uploaded.conflicted })
    }

    /// The remote's next ranges of keys, where it says what it has left.
    fn hand_out_keys(&self, connection: &mut Option<Pooled>, done: &mut Done) -> Result<Vec<Frame>, Stop> {
        // While commits do not end there are none.
        let Some(left) = self.key_ranges.as_ref().filter(|_| self.shared.commit_waits.now().is_none()) else {
            return Ok(Vec::new());
        };
        let ranges = self.retrying(connection, &mut done.retries, |connection| {
            system::key_ranges(connection, &self.plan, &self.hello.remote_id, &left.ranges)
        })?;
        Ok(if ranges.is_empty() { Vec::new() } else { vec![KeyRanges { ranges }.to_frame()] })
    }

    fn download(
        &self,
        connection: &mut Option<Pooled>,
        greeted: &Greeted,
        before: &Before,
        done: &mut Done,
    ) -> Result<(), Stop> {
        let key_ranges = self.hand_out_keys(connection, done)?;
        let incarnation = greeted.welcome.incarnation;
        let view = View::new(Arc::clone(&self.shared.chunks), self.plan.fingerprint, incarnation);
        let request = DownloadRequest {
            plan: &self.plan,
            user: &self.user,
            remote_id: self.hello.remote_id,
            watermarks: &greeted.watermarks,
            restart: greeted.welcome.restart,
            life: Some(&greeted.life),
            own: &before.own,
            echo: &before.echo,
            conflicted: &before.conflicted,
            refresh: &[],
            extended: &greeted.extended,
            packing: Some(&self.shared.packing),
            snapshots: self.hello.takes_chunks.then_some(&view as &dyn Snapshots),
            keeps_marks: greeted.counted_lately,
            tells_leaving: self.hello.knows_leaving,
        };
        let mut beginning = Beginning::new(self, &request, key_ranges);
        let result = self.retrying(connection, &mut done.retries, |connection| {
            beginning.restart();
            let written = download::write(connection, &request, &mut |frame| beginning.push(frame));
            match written {
                Err(Error::Retry { detail, broken }) if beginning.has_gone() => Ok(Err((detail, broken))),
                other => other.map(Ok),
            }
        });
        done.waited = view.waited();
        match result {
            _ if self.writer.is_abandoned() => Err(Stop::Left),
            Ok(Ok((summary, seen))) => {
                done.rows_down = summary.rows;
                // Nothing is new to it, so what it came with says as much as it did, and nothing has to be counted. After a while it is
                // all the same: a watermark that grows old is purged under the remote.
                let is_news = !download::brings_nothing(&request, &summary, &seen);
                let last = if greeted.counted_lately && !is_news {
                    self.hello.watermarks.to_frame()
                } else {
                    match self.seal(connection, greeted, seen, &mut done.retries)? {
                        Some(sealed) => sealed,
                        // It can wait for as long as commits do.
                        None if !is_news => self.hello.watermarks.to_frame(),
                        None => return Err(self.shared.commits_wait().into()),
                    }
                };
                beginning.end(summary.rows, &last)
            }
            Ok(Err((detail, broken))) => {
                if let Some(connection) = connection.as_mut().filter(|_| broken) {
                    connection.mark_broken();
                }
                Err(Failure::from(Error::Retry { detail, broken }).into())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// The end of a download: what the remote will have seen, counted and sealed. `None`: commits do not end, so it can't be counted.
    fn seal(
        &self,
        connection: &mut Option<Pooled>,
        greeted: &Greeted,
        seen: Watermarks,
        retries: &mut u32,
    ) -> Result<Option<Frame>, Failure> {
        let tally = Tally::of(&self.plan, &self.user, &self.hello, greeted, &seen);
        let count = |tallies: &[Tally]| {
            self.shared.commits_end()?;
            self.retrying(connection, retries, |connection| system::count_downloads(connection, tallies))
        };
        let counted = match self.shared.counts.count(tally, count) {
            Err(_) if self.shared.commit_waits.now().is_some() => return Ok(None),
            counted => counted?.counted()?,
        };
        Ok(Some(counted.seal(&greeted.welcome.incarnation, &self.hello.remote_id, seen).to_frame()))
    }

    /// Goes on only if somebody waits for the answer.
    fn expected(&self) -> Result<(), Stop> {
        if self.writer.is_abandoned() { Err(Stop::Left) } else { Ok(()) }
    }

    pub(crate) fn push(&self, frame: &Frame) -> Result<(), Stop> {
        self.writer.push(frame).map_err(Stop::from)
    }

    /// Runs one part after the greeting, again with a growing pause where the database could not do it now. A lost connection ends the sync: at
    /// the other end of the next one need not be the database that greeted the remote.
    fn retrying<T>(
        &self,
        connection: &mut Option<Pooled>,
        retries: &mut u32,
        part: impl FnMut(&mut dyn Connection) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        self.retrying_while(connection, retries, part, |broken| !broken)
    }

    /// Runs one part, again with a growing pause where the database could not do it now and `may_retry` says so of a connection that is broken
    /// or is not; on another connection where the last one broke.
    fn retrying_while<T>(
        &self,
        connection: &mut Option<Pooled>,
        retries: &mut u32,
        mut part: impl FnMut(&mut dyn Connection) -> Result<T, Error>,
        may_retry: impl Fn(bool) -> bool,
    ) -> Result<T, Failure> {
        let config = self.shared.config.now();
        let mut pause = Duration::from_millis(config.retry_ms);
        let mut attempts = 0;
        let began = Instant::now();
        // Where the database has kept the part waiting for so long (another writer's lock, say), others are to have the worker.
        let is_late = |error: &Error| matches!(error, Error::Retry { .. }) && began.elapsed() >= config.commit_wait();
        loop {
            let result = self.attempt(connection, &mut part);
            if result.as_ref().is_err_and(Error::is_broken) {
                *connection = None;
                // What broke this one has most likely broken those that nobody uses.
                self.shared.pool.close_idle();
            }
            match result {
                Err(error @ (Error::Retry { .. } | Error::InDoubt { .. }))
                    if attempts < config.retries && may_retry(error.is_broken()) && !is_late(&error) =>
                {
                    let (broken, detail) = (error.is_broken(), error.to_string());
                    tracing::debug!(detail, broken, attempts, "the database could not do it now; trying again");
                    attempts += 1;
                    *retries += 1;
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                other => return other.map_err(Failure::from),
            }
        }
    }

    fn attempt<T>(
        &self,
        connection: &mut Option<Pooled>,
        part: &mut impl FnMut(&mut dyn Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let patience = Duration::from_millis(self.shared.config.now().connect_ms_max);
                connection.insert(self.shared.pool.checkout(patience)?)
            }
        };
        let result = part(&mut **connection);
        if matches!(result, Err(Error::RemoteBusy | Error::Retry { broken: false, .. })) {
            // A commit of another server's that does not end has the locks, perhaps.
            let looked = connection.look_at_commits();
            let _ = connection.note(looked);
        }
        connection.note(result)
    }
}

fn timed<T>(time: &mut Duration, part: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = part();
    *time += started.elapsed();
    result
}
