//! Operations in sets: each client does one, all begin together, and none goes on before all have done theirs.
//!
//! ```text
//! gate | one: begin_set | gate | generate | gate | execute, measured | gate | one: end_set | gate | restore | gate ...
//! ```
//!
//! A set's time is from its first operation's start to its last one's end; only these are counted, not what lies between sets. A set is
//! never cut: the run ends after the one in which its rule is met.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Barrier, watch};
use tokio::time::Instant;

use super::client::{Phase, unless_over};
use super::failure::Failure;
use super::record::{Recorder, Times};
use super::schedule::Schedule;
use super::{Settings, Workload};

/// The sets of a run that were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetTimes {
    /// How many.
    pub count: u64,
    /// Of all of them.
    pub time: Duration,
}

/// What the clients of a run share.
pub(super) struct Sets {
    gate: Barrier,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the next set is measured; none: there is none.
    next: Option<bool>,
    /// The first start and the last end of the present one.
    span: Option<(Instant, Instant)>,
    measured: SetTimes,
}

impl Sets {
    pub(super) fn new(clients: usize) -> Sets {
        Sets { gate: Barrier::new(clients), state: Mutex::default() }
    }

    /// The sets that were measured.
    pub(super) fn measured(&self) -> SetTimes {
        self.lock().measured
    }

    /// Waits for all clients; true for one of them.
    async fn gate(&self) -> bool {
        self.gate.wait().await.is_leader()
    }

    fn note(&self, started: Instant, ended: Instant) {
        let mut state = self.lock();
        let (first, last) = state.span.unwrap_or((started, ended));
        state.span = Some((first.min(started), last.max(ended)));
    }

    /// All have done theirs.
    fn count(&self) {
        let mut state = self.lock();
        if let (Some((first, last)), Some(true)) = (state.span.take(), state.next) {
            state.measured.count += 1;
            state.measured.time += last.saturating_duration_since(first);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one client takes part with.
pub(super) struct Part<'p, W> {
    pub(super) workload: &'p W,
    pub(super) settings: &'p Settings,
    pub(super) sets: &'p Sets,
    pub(super) schedule: &'p Schedule,
    pub(super) recorder: &'p Mutex<Recorder>,
}

impl<W: Workload> Part<'_, W> {
    /// Does operations in sets until the run ends.
    pub(super) async fn take(&self, client: &mut W::Client, phase: &mut watch::Receiver<Phase>) {
        while unless_over(phase, self.set(client)).await == Some(true) {}
    }

    /// One set; false: there is none any more.
    async fn set(&self, client: &mut W::Client) -> bool {
        let Part { workload, settings, sets, schedule, .. } = self;
        if sets.gate().await {
            let next = schedule.begin_set(Instant::now(), settings.load.clients);
            if next.is_some() {
                self.unless_failed(workload.begin_set().await).await;
            }
            sets.lock().next = next;
        }
        sets.gate().await;
        let Some(is_measured) = sets.lock().next else { return false };
        workload.generate(client);
        sets.gate().await;
        let started = Instant::now();
        let limit = settings.load.timeout;
        let done = tokio::time::timeout(limit, workload.execute(client)).await;
        let ended = Instant::now();
        let result = done.unwrap_or_else(|_| Err(Failure::time_out(limit)));
        let from = schedule.measure_from().filter(|_| is_measured);
        self.record().record(&Times { intended: started, started, ended }, from, &result);
        sets.note(started, ended);
        if sets.gate().await {
            sets.count();
            self.unless_failed(workload.end_set().await).await;
        }
        sets.gate().await;
        self.unless_failed(workload.restore(client).await).await;
        true
    }

    /// Between sets there is nothing to go on from: the run is ended from outside, with the reason.
    async fn unless_failed(&self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.record().defect = Some(failure.detail);
            std::future::pending::<()>().await;
        }
    }

    fn record(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
