//! When the next operation begins: one schedule for all clients of a run.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::experiment::{Arrival, Stop, StopRule};
use crate::random::{Random, stream};

/// The right to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) intended: Instant,
    /// Whether it counts: the warm-up is over.
    pub(super) is_measured: bool,
    /// Whether no client was free when it should have begun.
    is_late: bool,
}

/// What an open loop could not begin in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Began late: no client was free.
    pub(super) late: u64,
    /// Never began: the queue was full, or the run ended.
    pub(super) dropped: u64,
    pub(super) longest_queue: u64,
}

impl std::ops::AddAssign for Waits {
    fn add_assign(&mut self, other: Waits) {
        self.late += other.late;
        self.dropped += other.dropped;
        // At different moments, perhaps; it is no less than the longest.
        self.longest_queue += other.longest_queue;
    }
}

pub(super) struct Schedule {
    arrival: Arrival,
    begin: Instant,
    /// Not known as long as a steady state is looked for.
    measure_from: OnceLock<Instant>,
    /// How long it is measured; none: until its iterations are done.
    time: Option<Duration>,
    /// How many may count.
    iterations: u64,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// When the next arrival of an open loop comes, in seconds from the beginning.
    next_seconds: f64,
    /// Arrivals that no client was free for. At most `queue_max`; further ones are dropped, and counted.
    waiting: VecDeque<Instant>,
    /// How many that count have begun in a closed loop, or have arrived in an open one.
    counted: u64,
    waits: Waits,
}

impl Schedule {
    pub(super) fn new(arrival: Arrival, stop: &Stop, begin: Instant, seed: u64) -> Schedule {
        let known = stop.steady_within.is_none().then_some(begin + stop.warmup);
        let measure_from = known.map_or_else(OnceLock::new, OnceLock::from);
        let (time, iterations) = match stop.rule {
            StopRule::Iterations(count) => (None, count),
            StopRule::Duration(time) | StopRule::Interval { at_most: time, .. } => (Some(time), u64::MAX),
        };
        let mut random = Random::derived(seed, &[stream::ARRIVALS]);
        let next_seconds = gap(arrival, &mut random);
        let state = State { random, next_seconds, waiting: VecDeque::new(), counted: 0, waits: Waits::default() };
        Schedule { arrival, begin, measure_from, time, iterations, state: Mutex::new(state) }
    }

    /// When the gate was opened.
    pub(super) fn begin(&self) -> Instant {
        self.begin
    }

    /// When measuring begins; not known as long as a steady state is looked for.
    pub(super) fn measure_from(&self) -> Option<Instant> {
        self.measure_from.get().copied()
    }

    /// What is intended for this moment or later counts, if nothing was said of that before.
    pub(super) fn measure_now(&self, now: Instant) {
        let _ = self.measure_from.set(now);
    }

    /// From when on nothing begins, if that is known beforehand.
    pub(super) fn end(&self) -> Option<Instant> {
        Some(self.measure_from()? + self.time?)
    }

    fn is_measured(&self, intended: Instant) -> bool {
        self.measure_from().is_some_and(|from| intended >= from)
    }

    /// The next operation for a client that is free now; none: the run is over for it.
    pub(super) fn take(&self, now: Instant, random: &mut Random) -> Option<Ticket> {
        if self.end().is_some_and(|end| now >= end) {
            return None;
        }
        let mut state = self.lock();
        match self.arrival {
            Arrival::Closed { think } => {
                // Uniform over 0 to twice the think time, so that clients don't march in step.
                let intended = if think.is_zero() { now } else { now + think.mul_f64(2.0 * random.fraction()) };
                self.begin_one(&mut state, intended)
            }
            Arrival::Open { queue_max, .. } => {
                self.let_arrive(&mut state, now, queue_max);
                match state.waiting.pop_front() {
                    Some(intended) => {
                        let is_measured = self.is_measured(intended);
                        state.waits.late += u64::from(is_measured);
                        Some(Ticket { intended, is_measured, is_late: true })
                    }
                    None => self.arrive(&mut state),
                }
            }
        }
    }

    /// Whether the set of so many operations that is to begin now counts; none: the run is over.
    pub(super) fn begin_set(&self, now: Instant, operations: usize) -> Option<bool> {
        let mut state = self.lock();
        if self.end().is_some_and(|end| now >= end) || state.counted >= self.iterations {
            return None;
        }
        let is_measured = self.is_measured(now);
        state.counted += if is_measured { operations as u64 } else { 0 };
        Some(is_measured)
    }

    /// A ticket that is not used, because the run ended first.
    pub(super) fn give_back(&self, ticket: Ticket, now: Instant) {
        if !ticket.is_measured {
            return;
        }
        let mut state = self.lock();
        if matches!(self.arrival, Arrival::Open { .. }) && ticket.intended <= now {
            state.waits.dropped += 1;
            state.waits.late -= u64::from(ticket.is_late);
        } else {
            state.counted -= 1;
        }
    }

    /// What could not begin in time, when nothing begins any more.
    pub(super) fn waits(&self, now: Instant) -> Waits {
        let mut state = self.lock();
        if let Arrival::Open { queue_max, .. } = self.arrival {
            self.let_arrive(&mut state, now, queue_max);
            let left = state.waiting.iter().filter(|intended| self.is_measured(**intended)).count();
            state.waits.dropped += left as u64;
            state.waiting.clear();
        }
        state.waits
    }

    /// Queues what has arrived by now.
    fn let_arrive(&self, state: &mut State, now: Instant, queue_max: usize) {
        while self.next(state) <= now
            && let Some(ticket) = self.arrive(state)
        {
            if state.waiting.len() >= queue_max {
                state.waits.dropped += u64::from(ticket.is_measured);
                continue;
            }
            state.waiting.push_back(ticket.intended);
            if ticket.is_measured {
                state.waits.longest_queue = state.waits.longest_queue.max(state.waiting.len() as u64);
            }
        }
    }

    fn next(&self, state: &State) -> Instant {
        self.begin + Duration::from_secs_f64(state.next_seconds)
    }

    /// The next arrival of an open loop, if it comes before the end.
    fn arrive(&self, state: &mut State) -> Option<Ticket> {
        let ticket = self.begin_one(state, self.next(state))?;
        state.next_seconds += gap(self.arrival, &mut state.random);
        Some(ticket)
    }

    fn begin_one(&self, state: &mut State, intended: Instant) -> Option<Ticket> {
        if self.end().is_some_and(|end| intended >= end) || state.counted >= self.iterations {
            return None;
        }
        let is_measured = self.is_measured(intended);
        state.counted += u64::from(is_measured);
        Some(Ticket { intended, is_measured, is_late: false })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds to the next arrival of an open loop.
fn gap(arrival: Arrival, random: &mut Random) -> f64 {
    match arrival {
        Arrival::Open { rate, is_poisson: true, .. } => random.exponential(rate),
        Arrival::Open { rate, .. } => 1.0 / rate,
        Arrival::Closed { .. } => 0.0,
    }
}
