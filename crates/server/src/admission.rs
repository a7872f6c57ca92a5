//! Who may come in, and who waits: receiving, backlog, workers, uploaders.
//!
//! ```text
//! head ──admit──> receiving (≤ receiving_max) ──whole──> waiting (backlog) ──worker──> working ──> sending
//! ```
//!
//! Admission is judged once, from the request's head: is there a place to receive in, and does the backlog leave room (or is a worker
//! free)? Whoever is let in keeps the place; an upload that was received is not thrown away for what came between. The backlog counts
//! complete requests only, so slow clients fill the places to receive in, never the backlog.
//!
//! Uploads with large frames take turns before they wait for a worker: each takes several times its frame's bytes of memory, and however
//! many come at once, those that are read, applied and answered have no more bytes in such frames than one frame may have.
//!
//! Who is not let in is told when to come back: when the queue, at the pace measured, is worked off, spread by half of that either
//! way, so that those turned away together don't come back together.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headwater_protocol::message::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Config;
use crate::failure::Failure;

/// The part of a new measurement in the average of how long a worker takes for a sync.
const PACE_WEIGHT: f64 = 0.1;
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_mins(1);

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

/// The server's places.
#[derive(Debug)]
pub(crate) struct Admission {
    workers: Arc<Semaphore>,
    workers_max: usize,
    uploaders: Arc<Semaphore>,
    uploaders_max: usize,
    turns: Arc<Semaphore>,
    turns_max: u32,
    receiving: Gauge,
    receiving_max: usize,
    waiting: Gauge,
    backlog: usize,
    pub(crate) sending: Gauge,
    /// Seconds that a worker takes for a sync, on average.
    pace: Mutex<f64>,
}

/// What a sync holds while it uses the database.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Given back when the upload has been applied.
    pub(crate) uploader: Option<OwnedSemaphorePermit>,
    _worker: OwnedSemaphorePermit,
}

/// What a sync holds while it works with large frames.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "it counts by being there")] OwnedSemaphorePermit);

/// How full the server is.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Load {
    workers_busy: usize,
    workers: usize,
    uploaders_busy: usize,
    uploaders: usize,
    waiting: usize,
    backlog: usize,
    receiving: usize,
    receiving_max: usize,
    sending: usize,
}

impl Admission {
    pub(crate) fn new(config: &Config) -> Admission {
        let turns_max = (config.frame_bytes_max as u64).max(LARGE_BYTES).div_ceil(TURN_BYTES) as u32;
        Admission {
            workers: Arc::new(Semaphore::new(config.workers)),
            workers_max: config.workers,
            uploaders: Arc::new(Semaphore::new(config.uploaders.min(config.workers))),
            uploaders_max: config.uploaders.min(config.workers),
            turns: Arc::new(Semaphore::new(turns_max as usize)),
            turns_max,
            receiving: Gauge::default(),
            receiving_max: config.receiving_max,
            waiting: Gauge::default(),
            backlog: config.backlog,
            sending: Gauge::default(),
            pace: Mutex::new(0.1),
        }
    }

    /// A place to receive in, if there is one and the backlog leaves room.
    pub(crate) fn admit(&self) -> Result<Counted, Failure> {
        let waiting = self.waiting.count();
        if waiting >= self.backlog && self.workers.available_permits() == 0 {
            return Err(self.overloaded(format!("{waiting} syncs wait for a worker already")));
        }
        self.receive()
    }

    /// A place to receive in, for what needs no worker.
    pub(crate) fn receive(&self) -> Result<Counted, Failure> {
        self.receiving
            .try_enter(self.receiving_max)
            .ok_or_else(|| self.overloaded(format!("{} syncs are being received already", self.receiving_max)))
    }

    /// A place among those that wait.
    pub(crate) fn wait(&self) -> Counted {
        self.waiting.enter()
    }

    /// A worker, and an uploader before it where one is needed: who waits for an uploader keeps no worker from others.
    pub(crate) async fn permits(&self, uploads: bool) -> Permits {
        let uploader = if uploads { Some(acquire(&self.uploaders).await) } else { None };
        Permits { uploader, _worker: acquire(&self.workers).await }
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
    pub(crate) fn note_pace(&self, busy: Duration) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        *pace += (busy.as_secs_f64() - *pace) * PACE_WEIGHT;
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            workers_busy: self.workers_max - self.workers.available_permits().min(self.workers_max),
            workers: self.workers_max,
            uploaders_busy: self.uploaders_max - self.uploaders.available_permits().min(self.uploaders_max),
            uploaders: self.uploaders_max,
            waiting: self.waiting.count(),
            backlog: self.backlog,
            receiving: self.receiving.count(),
            receiving_max: self.receiving_max,
            sending: self.sending.count(),
        }
    }

    pub(crate) fn overloaded(&self, why: String) -> Failure {
        let spread = RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64;
        Failure::new(ErrorCode::Overloaded, why).after(self.retry_after(spread))
    }

    /// When those before are worked off, times 0.5 to 1.5 by `spread` (0 to 1).
    fn retry_after(&self, spread: f64) -> Duration {
        let pace = *self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = (self.waiting.count() + self.receiving.count() + 1) as f64;
        let seconds = queue * pace / self.workers_max as f64 * (0.5 + spread);
        Duration::try_from_secs_f64(seconds).unwrap_or(RETRY_MAX).clamp(RETRY_MIN, RETRY_MAX)
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("the semaphores are never closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(workers: usize, backlog: usize) -> Admission {
        Admission::new(&Config { workers, uploaders: 1, backlog, receiving_max: 2, ..Config::default() })
    }

    #[tokio::test]
    async fn without_a_backlog_only_a_free_worker_lets_in() {
        let admission = admission(1, 0);
        drop(admission.admit().expect("a free worker"));
        let working = admission.permits(false).await;
        assert_eq!(admission.admit().expect_err("no worker").code, ErrorCode::Overloaded);
        drop(working);
        drop(admission.admit().expect("free again"));
    }

    #[tokio::test]
    async fn the_backlog_counts_those_that_wait_not_those_being_received() {
        let admission = admission(1, 1);
        let working = admission.permits(false).await;
        let receiving = admission.admit().expect("the backlog is empty");
        let second = admission.admit().expect("still empty");
        assert!(admission.admit().is_err(), "no place to receive in");
        drop(second);
        let waiting = admission.wait();
        drop(receiving);
        assert!(admission.admit().is_err(), "the backlog is full");
        drop(working);
        assert!(admission.admit().is_ok(), "a worker is free");
        drop(waiting);
        assert_eq!((admission.load().waiting, admission.load().receiving), (0, 0));
    }

    #[tokio::test]
    async fn who_waits_for_an_uploader_keeps_no_worker() {
        let admission = admission(2, 9);
        let uploading = admission.permits(true).await;
        assert!(tokio::time::timeout(Duration::ZERO, admission.permits(true)).await.is_err());
        let downloading = admission.permits(false).await;
        assert_eq!((admission.load().workers_busy, admission.load().uploaders_busy), (2, 1));
        drop((uploading, downloading));
        assert_eq!((admission.load().workers_busy, admission.load().uploaders_busy), (0, 0));
    }

    #[tokio::test]
    async fn large_frames_take_turns_and_others_do_not_wait() {
        let admission = Admission::new(&Config { frame_bytes_max: 10 << 20, ..Config::default() });
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

    #[test]
    fn who_is_turned_away_is_told_to_come_when_the_queue_is_worked_off() {
        let admission = admission(2, 9);
        (0..200).for_each(|_| admission.note_pace(Duration::from_secs(4)));
        let near = |actual: Duration, expected: f64| (actual.as_secs_f64() - expected).abs() < 0.01;
        assert!(near(admission.retry_after(0.5), 2.0));
        let _waiting: Vec<Counted> = (0..9).map(|_| admission.wait()).collect();
        assert!(near(admission.retry_after(0.0), 10.0) && near(admission.retry_after(1.0), 30.0));
        (0..200).for_each(|_| admission.note_pace(Duration::from_secs(400)));
        assert_eq!(admission.retry_after(0.5), RETRY_MAX);
        (0..200).for_each(|_| admission.note_pace(Duration::ZERO));
        assert_eq!(admission.retry_after(0.5), RETRY_MIN);
    }
}
