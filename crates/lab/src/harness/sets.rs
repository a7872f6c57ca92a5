//! Operations in sets: each client does one, all begin together, and none goes on before all have done theirs.
//!
//! ```text
//! gate | one: begin_set | gate | generate | gate | execute, measured | gate | one: end_set | gate | restore | gate ...
//! ```
//!
//! All should begin when the first of a set does: from there *response time* counts, *service time* from where each really began.
//! A set's time is from its first operation's start to its last one's end; only these are counted, not what lies between sets. A set is
//! never cut: the run ends after the one in which its rule is met.
//!
//! Where clients are at agents, what one of them does here is done by who conducts, and each gate is of all agents: an agent's own clients
//! wait at their gate while one of them asks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Barrier, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::client::{Phase, unless_over};
use super::clock::Alarm;
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
    /// How far the wall clocks of agents were off the one here, each before each set. Nothing depends on them.
    pub clocks: Histogram,
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

/// What the clients of a run share, or its agents.
pub(super) struct Sets {
    gate: Barrier,
    state: Mutex<State>,
    /// Who conducts, where that is not us.
    conductor: Option<mpsc::UnboundedSender<Ask>>,
}

/// What an agent's clients ask who conducts; each is answered when all agents have come so far.
pub(super) enum Ask {
    /// Is there a further set, and does it count?
    Next(oneshot::Sender<Option<bool>>),
    /// When does it begin?
    Go(oneshot::Sender<Instant>),
    /// All have done theirs: they began then, and the last one ended then.
    Done { starts: Vec<Instant>, ended: Instant, go_on: oneshot::Sender<()> },
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
    /// How long a question to an agent and its answer take: the longest before this set.
    round_trip: Duration,
    /// When all agents begin.
    go: Option<Instant>,
}

impl Sets {
    /// Of so many clients or agents.
    pub(super) fn new(parties: usize) -> Sets {
        Sets { gate: Barrier::new(parties), state: Mutex::default(), conductor: None }
    }

    /// Of the clients of an agent.
    pub(super) fn conducted(clients: usize, conductor: mpsc::UnboundedSender<Ask>) -> Sets {
        Sets { conductor: Some(conductor), ..Sets::new(clients) }
    }

    /// The sets that were measured.
    pub(super) fn measured(&self) -> SetTimes {
        self.lock().measured.clone()
    }

    /// Waits for all clients; true for one of them.
    pub(super) async fn gate(&self) -> bool {
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

    /// Whether the next set is measured; none: there is none.
    pub(super) fn next(&self) -> Option<bool> {
        self.lock().next
    }

    pub(super) fn set_next(&self, next: Option<bool>) {
        let mut state = self.lock();
        (state.next, state.go, state.round_trip) = (next, None, Duration::ZERO);
    }

    /// What was seen of an agent's clock before this set.
    pub(super) fn look(&self, round_trip: Duration, wall_off: Duration) {
        let mut state = self.lock();
        state.round_trip = state.round_trip.max(round_trip);
        if state.next == Some(true) {
            state.measured.clocks.record(wall_off);
        }
    }

    /// When all agents begin.
    pub(super) fn go(&self) -> Option<Instant> {
        self.lock().go
    }

    /// Says so, by the longest round trip.
    pub(super) fn set_go(&self, at: impl FnOnce(Duration) -> Instant) {
        let mut state = self.lock();
        state.go = Some(at(state.round_trip));
    }

    /// An agent's operations began at these moments; the last one ended then.
    pub(super) fn add(&self, starts: impl Iterator<Item = Instant>, ended: Instant) {
        let mut state = self.lock();
        for start in starts {
            state.starts.push(start);
            state.extend(start);
        }
        state.extend(ended);
    }

    /// All have done theirs.
    pub(super) fn count(&self) {
        let (starts, span) = self.take();
        let mut state = self.lock();
        let (Some(span), Some(true)) = (span, state.next) else { return };
        state.measured.spans.push(span);
        for start in &starts {
            state.measured.starts.record(start.saturating_duration_since(span.0));
        }
    }

    /// The present set's starts, and from the first to the last end.
    fn take(&self) -> (Vec<Instant>, Option<(Instant, Instant)>) {
        let mut state = self.lock();
        (std::mem::take(&mut state.starts), state.span.take())
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

/// Asks who conducts. Where nobody answers any more the run is over, and this is dropped.
async fn ask<T>(conductor: &mpsc::UnboundedSender<Ask>, question: impl FnOnce(oneshot::Sender<T>) -> Ask) -> T {
    let (sender, answer) = oneshot::channel();
    let _ = conductor.send(question(sender));
    match answer.await {
        Ok(answer) => answer,
        Err(_) => std::future::pending().await,
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
            self.begin_set().await;
        }
        sets.gate().await;
        let Some(is_measured) = sets.next() else { return false };
        workload.generate(client);
        self.wait_for_go().await;
        let started = sets.begin();
        let limit = settings.load.timeout;
        let done = tokio::time::timeout(limit, workload.execute(client)).await;
        let ended = Instant::now();
        let result = done.unwrap_or_else(|_| Err(Failure::time_out(limit)));
        let from = schedule.measure_from().filter(|_| is_measured);
        let intended = sets.end(ended);
        self.record().record(&Times { intended, started, ended }, from, &result);
        if sets.gate().await {
            self.end_set().await;
        }
        sets.gate().await;
        self.unless_failed(workload.restore(client).await).await;
        true
    }

    /// Done by one of the clients while all others wait.
    async fn begin_set(&self) {
        let Part { workload, settings, sets, schedule, .. } = self;
        let next = match &sets.conductor {
            Some(conductor) => ask(conductor, Ask::Next).await,
            None => {
                let next = schedule.begin_set(Instant::now(), settings.load.clients);
                if next.is_some() {
                    self.unless_failed(workload.begin_set().await).await;
                }
                next
            }
        };
        sets.set_next(next);
    }

    /// All begin together, at an agent at the moment that all agents were told.
    async fn wait_for_go(&self) {
        let is_one = self.sets.gate().await;
        let Some(conductor) = &self.sets.conductor else { return };
        if is_one {
            let go = ask(conductor, Ask::Go).await;
            Alarm::new(self.settings.time).wait_until(go).await;
        }
        self.sets.gate().await;
    }

    /// Done by one of the clients while all others wait.
    async fn end_set(&self) {
        let Part { workload, sets, .. } = self;
        let Some(conductor) = &sets.conductor else {
            sets.count();
            return self.unless_failed(workload.end_set().await).await;
        };
        let (starts, span) = sets.take();
        let ended = span.map_or_else(Instant::now, |(_, last)| last);
        ask(conductor, |go_on| Ask::Done { starts, ended, go_on }).await;
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
