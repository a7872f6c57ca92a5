//! Operations in sets: each client does one, all begin together, and none goes on before all have done theirs.
//!
//! ```text
//! gate | one: begin_set | gate | generate | gate | execute, measured | gate | one: end_set | gate | restore | gate ...
//! ```
//!
//! All should begin when the first of a set does: from there *response time* counts, *service time* from where each really began.
//! A set's time is from its first operation's start to its last one's end; only these are counted, not what lies between sets. A set is
//! never cut: the run ends after the one in which its rule is met.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Barrier, watch};
use tokio::time::Instant;

use super::client::{Phase, unless_over};
use super::failure::Failure;
use super::record::{Histogram, Recorder, Times};
use super::schedule::Schedule;
use super::{Settings, Workload};

/// The sets of a run that were measured.
#[derive(Clone, Debug, Default)]
pub struct SetTimes {
    /// Each, from its first operation's start to its last one's end.
    pub spans: Vec<(Instant, Instant)>,
    /// How long after its set's first one each operation began: how well the gate holds clients together.
    pub starts: Histogram,
}

impl SetTimes {
    /// How many.
    pub fn count(&self) -> u64 {
        self.spans.len() as u64
    }

    /// Of all of them.
    pub fn time(&self) -> Duration {
        self.spans.iter().map(|(first, last)| last.saturating_duration_since(*first)).sum()
    }
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
    /// The starts of the present one's operations.
    starts: Vec<Instant>,
    /// The first of them, and the last end.
    span: Option<(Instant, Instant)>,
    measured: SetTimes,
}

impl Sets {
    pub(super) fn new(clients: usize) -> Sets {
        Sets { gate: Barrier::new(clients), state: Mutex::default() }
    }

    /// The sets that were measured.
    pub(super) fn measured(&self) -> SetTimes {
        self.lock().measured.clone()
    }

    /// Waits for all clients; true for one of them.
    async fn gate(&self) -> bool {
        self.gate.wait().await.is_leader()
    }

    /// An operation begins now; gives when.
    fn begin(&self) -> Instant {
        let now = Instant::now();
        let mut state = self.lock();
        state.starts.push(now);
        state.extend(now);
        now
    }

    /// An operation has ended; gives when the first of its set began, which is when it should have begun itself.
    fn end(&self, ended: Instant) -> Instant {
        self.lock().extend(ended).0
    }

    /// All have done theirs.
    fn count(&self) {
        let mut state = self.lock();
        let (starts, span) = (std::mem::take(&mut state.starts), state.span.take());
        let (Some(span), Some(true)) = (span, state.next) else { return };
        state.measured.spans.push(span);
        for start in &starts {
            state.measured.starts.record(start.saturating_duration_since(span.0));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The present set's span, with this moment in it.
    fn extend(&mut self, moment: Instant) -> (Instant, Instant) {
        let (first, last) = self.span.unwrap_or((moment, moment));
        *self.span.insert((first.min(moment), last.max(moment)))
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
        let started = sets.begin();
        let limit = settings.load.timeout;
        let done = tokio::time::timeout(limit, workload.execute(client)).await;
        let ended = Instant::now();
        let result = done.unwrap_or_else(|_| Err(Failure::time_out(limit)));
        let from = schedule.measure_from().filter(|_| is_measured);
        let intended = sets.end(ended);
        self.record().record(&Times { intended, started, ended }, from, &result);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn starts_count_from_the_sets_first() {
        let (sets, ms) = (Sets::new(3), Duration::from_millis(1));
        for is_measured in [false, true, true] {
            sets.lock().next = Some(is_measured);
            let first = sets.begin();
            for later in [3, 25] {
                tokio::time::advance(later * ms).await;
                sets.begin();
            }
            for _ in 0..3 {
                tokio::time::advance(5 * ms).await;
                assert_eq!(sets.end(Instant::now()), first, "all should have begun then");
            }
            sets.count();
        }
        let measured = sets.measured();
        assert_eq!((measured.count(), measured.time()), (2, 2 * 43 * ms));
        let near = |time: Duration, ms: f64| (time.as_secs_f64() * 1e3 / ms - 1.0).abs() < 1e-3;
        assert_eq!(measured.starts.len(), 6);
        assert!(near(measured.starts.max(), 28.0) && near(measured.starts.quantile(0.5), 3.0), "{:?}", measured.starts);
    }
}
