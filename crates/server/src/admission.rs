//! Who may come in, and who waits: receiving, backlog, workers, uploaders.
//!
//! ```text
//! head ──admit──> receiving (≤ receiving_max) ──whole──> waiting (backlog) ──worker──> working ──> sending
//! ```
//!
//! Admission is judged once, from the request's head: is there a place to receive in, and does the backlog leave room (or is a worker
//! free)? Whoever is let in keeps the place; an upload that was received is not thrown away for what came between. The backlog counts
//! complete requests only, so slow clients fill the places to receive in, never the backlog; and of these there are as many as connections.
//!
//! Workers and uploaders are places ([`crate::places`]); where nobody has fixed their number it is found ([`crate::limit`]), each by what it
//! does: workers by whole syncs, uploaders by uploads.
//!
//! Uploads with large frames take turns before they wait for a worker: each takes several times its frame's bytes of memory, and however
//! many come at once, those that are read, applied and answered have no more bytes in such frames than one frame may have.
//!
//! Who is not let in is told when to come back ([`crate::comeback`]).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headwater_knobs::Live;
use headwater_protocol::message::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Config;
use crate::comeback::{self, Comebacks, Standing};
use crate::failure::Failure;
use crate::limit::{Class, Done, Kind, Limit};
use crate::places::{Place, Places, Size};

/// Frames up to this size need no turn: a usual batch of changes is as large.
const LARGE_BYTES: u64 = 4 << 20;
/// Turns are counted in so many bytes.
const TURN_BYTES: u64 = 1024;

/// A number of things that are there now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge(Arc<AtomicUsize>);

/// One of the things; dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Gauge {
    pub(crate) fn enter(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.0))
    }

    /// One more, if there are fewer than `max`.
    pub(crate) fn try_enter(&self, max: usize) -> Option<Counted> {
        let add = |count: usize| (count < max).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Counted(Arc::clone(&self.0)))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Places for one kind of work, and how many there are.
#[derive(Debug)]
struct Crew {
    places: Places,
    limit: Mutex<Limit>,
}

impl Crew {
    /// `fixed`: so many, 0: as many as are found, up to `most`.
    fn new(fixed: usize, most: usize) -> Crew {
        let limit = if fixed == 0 { Limit::new(most) } else { Limit::fixed(fixed) };
        Crew { places: Places::new(limit.current(), fixed == 0), limit: Mutex::new(limit) }
    }

    /// So many from now on, or as many as are found.
    fn set(&self, fixed: usize, most: usize) {
        let after = {
            let mut limit = self.limit();
            limit.follow(fixed, most);
            limit.current()
        };
        self.places.set(after, fixed == 0);
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Limit)) {
        let (before, after) = {
            let mut limit = self.limit();
            let before = limit.current();
            change(&mut limit);
            (before, limit.current())
        };
        if before != after {
            self.places.set_limit(after);
        }
    }

    fn done(&self, class: Class, took: Duration) {
        let busy = self.places.busy();
        self.change(|limit| limit.done(Instant::now(), Done { class, took, busy }));
    }
}

/// The server's places.
#[derive(Debug)]
pub(crate) struct Admission {
    workers: Crew,
    uploaders: Crew,
    turns: Arc<Semaphore>,
    turns_max: u32,
    receiving: Gauge,
    waiting: Gauge,
    config: Live<Config>,
    /// Workers that this server's share of the database's connections allows.
    share: AtomicUsize,
    pub(crate) sending: Gauge,
    comebacks: Mutex<Comebacks>,
}

/// What a sync holds while it uses the database.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Given back when the upload has been applied.
    pub(crate) uploader: Option<Place>,
    _worker: Place,
}

/// What a sync holds while it works with large frames.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "it counts by being there")] OwnedSemaphorePermit);

/// How long a worker was busy with a sync, and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worked {
    /// Changes that went up; none: there was no upload.
    pub(crate) changes: Option<u64>,
    /// Rows that came down.
    pub(crate) rows: u64,
    /// All of it.
    pub(crate) took: Duration,
    /// The upload.
    pub(crate) upload: Duration,
}

/// How full the server is.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Load {
    workers_busy: usize,
    workers: usize,
    workers_max: usize,
    uploaders_busy: usize,
    uploaders: usize,
    waiting: usize,
    backlog: usize,
    receiving: usize,
    receiving_max: usize,
    sending: usize,
}

impl Load {
    /// How many workers and uploaders there are.
    pub(crate) fn crews(&self) -> (usize, usize) {
        (self.workers, self.uploaders)
    }
}

impl Admission {
    pub(crate) fn new(live: Live<Config>) -> Admission {
        let config = live.now();
        let turns_max = (config.frame_bytes_max as u64).max(LARGE_BYTES).div_ceil(TURN_BYTES) as u32;
        let most = config.workers_most();
        Admission {
            workers: Crew::new(config.workers, most),
            uploaders: Crew::new(config.uploaders.min(most), most),
            turns: Arc::new(Semaphore::new(turns_max as usize)),
            turns_max,
            receiving: Gauge::default(),
            waiting: Gauge::default(),
            config: live,
            share: AtomicUsize::new(usize::MAX),
            sending: Gauge::default(),
            comebacks: Mutex::default(),
        }
    }

    /// A place to receive in, if there is one and the backlog leaves room. `remote_id`: whose request it is, where its head says so.
    pub(crate) fn admit(&self, remote_id: Option<[u8; 16]>) -> Result<Counted, Failure> {
        let waiting = self.waiting.count();
        let backlog = self.comebacks().backlog_for(remote_id, self.config.now().backlog);
        if waiting >= backlog && !self.workers.places.is_free() {
            return Err(self.overloaded(remote_id, format!("{waiting} syncs wait for a worker already")));
        }
        let place = self.receiving_place(remote_id)?;
        self.comebacks().let_in(remote_id);
        Ok(place)
    }

    /// A place to receive in, for what needs no worker.
    pub(crate) fn receive(&self) -> Result<Counted, Failure> {
        self.receiving_place(None)
    }

    fn receiving_place(&self, remote_id: Option<[u8; 16]>) -> Result<Counted, Failure> {
        let receiving_max = self.config.now().receiving_most();
        self.receiving
            .try_enter(receiving_max)
            .ok_or_else(|| self.overloaded(remote_id, format!("{receiving_max} syncs are being received already")))
    }

    /// A place among those that wait.
    pub(crate) fn wait(&self) -> Counted {
        self.waiting.enter()
    }

    /// A worker, and an uploader before it where one is needed: who waits for an uploader keeps no worker from others.
    pub(crate) async fn permits(&self, uploads: bool, size: Size) -> Permits {
        let uploader = if uploads { Some(self.uploaders.places.take(size).await) } else { None };
        Permits { uploader, _worker: self.workers.places.take(size).await }
    }

    /// The turn of an upload whose largest frame has so many bytes; `None`: it needs none. To be had before a worker: who waits for a
    /// turn keeps no worker from others.
    pub(crate) async fn turn(&self, frame_bytes: u64) -> Option<Turn> {
        if frame_bytes <= LARGE_BYTES {
            return None;
        }
        // A frame that announces more than is taken will be refused when it is read.
        let turns = frame_bytes.div_ceil(TURN_BYTES).min(u64::from(self.turns_max)) as u32;
        let turn = Arc::clone(&self.turns).acquire_many_owned(turns).await;
        Some(Turn(turn.expect("the semaphores are never closed")))
    }

    /// Notes how long a worker was busy with one sync.
    pub(crate) fn note(&self, worked: &Worked) {
        let Worked { changes, rows, took, upload } = *worked;
        let kind = match changes {
            Some(_) if rows > 0 => Kind::Both,
            Some(_) => Kind::Upload,
            None => Kind::Download,
        };
        self.workers.done(Class::of(kind, rows + changes.unwrap_or(0)), took);
        if let Some(changes) = changes {
            self.uploaders.done(Class::of(Kind::Upload, changes), upload);
        }
    }

    /// From now on there are so many workers at most, where their number is found; with as many uploaders. `workers_max` may be less.
    pub(crate) fn set_share(&self, workers: usize) {
        self.share.store(workers, Ordering::Relaxed);
        let most = self.config.now().workers_most().min(workers);
        for crew in [&self.workers, &self.uploaders] {
            crew.change(|limit| limit.set_most(most));
        }
    }

    /// The options have changed: as many workers and uploaders as they say. Those at work beyond that end what they do.
    pub(crate) fn follow(&self) {
        let config = self.config.now();
        let most = if config.workers == 0 {
            config.workers_most().min(self.share.load(Ordering::Relaxed))
        } else {
            config.workers
        };
        self.workers.set(config.workers, most);
        self.uploaders.set(config.uploaders.min(most), most);
    }

    pub(crate) fn load(&self) -> Load {
        let (workers, workers_max) = {
            let limit = self.workers.limit();
            (limit.current(), limit.most())
        };
        let config = self.config.now();
        Load {
            workers_busy: self.workers.places.busy(),
            workers,
            workers_max,
            uploaders_busy: self.uploaders.places.busy(),
            uploaders: self.uploaders.limit().current(),
            waiting: self.waiting.count(),
            backlog: config.backlog,
            receiving: self.receiving.count(),
            receiving_max: config.receiving_most(),
            sending: self.sending.count(),
        }
    }

    /// There is no room for a sync.
    pub(crate) fn overloaded(&self, remote_id: Option<[u8; 16]>, why: String) -> Failure {
        self.send_away(remote_id, comeback::LEAST, why)
    }

    /// A failure for want of room, with the time in which this server makes room as it has worked so far.
    pub(crate) fn paced(&self, remote_id: Option<[u8; 16]>, failure: Failure) -> Failure {
        if failure.code != ErrorCode::Overloaded || !failure.retry_after.is_zero() {
            return failure;
        }
        let wait = self.overloaded(remote_id, String::new()).retry_after;
        failure.after(wait)
    }

    /// There is no connection left for anybody.
    pub(crate) fn no_connection(&self, remote_id: Option<[u8; 16]>, why: String) -> Failure {
        self.send_away(remote_id, comeback::LEAST_OF_CONNECTIONS, why)
    }

    fn send_away(&self, remote_id: Option<[u8; 16]>, least: Duration, why: String) -> Failure {
        let random = RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64;
        let here = self.waiting.count() + self.receiving.count();
        let standing = Standing { here, backlog: self.config.now().backlog, pace: self.workers.limit().pace(), least };
        let wait = self.comebacks().send_away(Instant::now(), remote_id, standing, random);
        Failure::new(ErrorCode::Overloaded, why).after(wait)
    }

    fn comebacks(&self) -> MutexGuard<'_, Comebacks> {
        self.comebacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(workers: usize, backlog: usize) -> Admission {
        Admission::new(Config { workers, uploaders: 1, backlog, receiving_max: 2, ..Config::default() }.into())
    }

    #[tokio::test]
    async fn without_a_backlog_only_a_free_worker_lets_in() {
        let admission = admission(1, 0);
        drop(admission.admit(None).expect("a free worker"));
        let working = admission.permits(false, Size::Small).await;
        assert_eq!(admission.admit(None).expect_err("no worker").code, ErrorCode::Overloaded);
        drop(working);
        drop(admission.admit(None).expect("free again"));
    }

    #[tokio::test]
    async fn the_backlog_counts_those_that_wait_not_those_being_received() {
        let admission = admission(1, 1);
        let working = admission.permits(false, Size::Small).await;
        let receiving = admission.admit(None).expect("the backlog is empty");
        let second = admission.admit(None).expect("still empty");
        assert!(admission.admit(None).is_err(), "no place to receive in");
        drop(second);
        let waiting = admission.wait();
        drop(receiving);
        assert!(admission.admit(None).is_err(), "the backlog is full");
        drop(working);
        assert!(admission.admit(None).is_ok(), "a worker is free");
        drop(waiting);
        assert_eq!((admission.load().waiting, admission.load().receiving), (0, 0));
    }

    #[tokio::test]
    async fn who_waits_for_an_uploader_keeps_no_worker() {
        let admission = admission(2, 9);
        let uploading = admission.permits(true, Size::Small).await;
        assert!(tokio::time::timeout(Duration::ZERO, admission.permits(true, Size::Small)).await.is_err());
        let downloading = admission.permits(false, Size::Small).await;
        assert_eq!((admission.load().workers_busy, admission.load().uploaders_busy), (2, 1));
        drop((uploading, downloading));
        assert_eq!((admission.load().workers_busy, admission.load().uploaders_busy), (0, 0));
    }

    #[tokio::test]
    async fn large_frames_take_turns_and_others_do_not_wait() {
        let admission = Admission::new(Config { frame_bytes_max: 10 << 20, ..Config::default() }.into());
        let waits = async |bytes: u64| tokio::time::timeout(Duration::ZERO, admission.turn(bytes)).await.is_err();
        assert!(admission.turn(LARGE_BYTES).await.is_none());
        let five = admission.turn(5 << 20).await;
        let six = 6 << 20;
        assert!(waits(six).await && !waits(5 << 20).await && !waits(LARGE_BYTES).await);
        drop(five);
        let announced = admission.turn(u64::MAX).await;
        assert!(announced.is_some() && waits(six).await, "what announces more than is taken has it all for itself");
        drop(announced);
        assert!(!waits(six).await);
    }

    #[tokio::test]
    async fn a_number_that_is_found_follows_the_work_and_a_fixed_one_does_not() {
        let worked = |took| Worked { changes: Some(10), rows: 0, took, upload: took };
        for (workers, expected) in [(0, 9), (3, 3)] {
            let config = Config { workers, uploaders: 0, workers_max: 9, ..Config::default() };
            let admission = Admission::new(config.into());
            let mut held = Vec::new();
            for _ in 0..10_000 {
                while admission.workers.places.is_free() && admission.uploaders.places.is_free() {
                    held.push(admission.permits(true, Size::Small).await);
                }
                admission.note(&worked(Duration::from_millis(2)));
            }
            assert_eq!(admission.load().crews(), (expected, if workers == 0 { 9 } else { expected }));
            admission.set_share(2);
            assert_eq!(admission.load().crews().0, if workers == 0 { 2 } else { 3 });
        }
    }
}
