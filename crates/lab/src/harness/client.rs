//! One client, from its connection to the end of the run.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::clock::Alarm;
use super::failure::Failure;
use super::record::{Recorder, Times};
use super::schedule::{Schedule, Ticket};
use super::sets::{Part, Sets};
use super::{Settings, Workload};
use crate::random::{Random, stream};

/// How long a client waits before it tries again to connect.
const RECONNECT_AFTER: Duration = Duration::from_millis(100);

/// Where a run is.
#[derive(Clone)]
pub(super) enum Phase {
    /// Clients connect.
    Connecting,
    /// The gate is open.
    Running(Arc<Schedule>),
    /// No operation begins any more; those that run may end.
    Finishing,
    /// Everything ends now.
    Aborting,
}

/// What a client tells before the gate opens.
pub(super) enum Event {
    Connected,
    Failed(Failure),
}

/// What clients share.
pub(super) struct Shared<W> {
    pub(super) workload: Arc<W>,
    pub(super) settings: Settings,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// Where operations are done in sets.
    pub(super) sets: Arc<Sets>,
}

impl<W> Clone for Shared<W> {
    fn clone(&self) -> Self {
        let Shared { workload, settings, phase, events, sets } = self;
        Shared {
            workload: workload.clone(),
            settings: settings.clone(),
            phase: phase.clone(),
            events: events.clone(),
            sets: sets.clone(),
        }
    }
}

/// How an operation came out.
enum Done<T> {
    Ended(Result<T, Failure>),
    GivenUp,
}

/// Connects, waits for the gate, and does operations until the run ends.
pub(super) async fn client<W: Workload>(shared: Shared<W>, number: usize, recorder: Arc<Mutex<Recorder>>) {
    let Shared { workload, settings, mut phase, events, sets } = shared;
    let mut state = workload.client(number);
    let connected = connect(&*workload, &mut state, settings.load.timeout, &mut phase).await;
    let told = match connected {
        Done::Ended(Ok(())) => events.send(Event::Connected),
        Done::Ended(Err(failure)) => events.send(Event::Failed(failure)),
        Done::GivenUp => return,
    };
    drop(events);
    if told.is_err() {
        return;
    }
    let opened = phase.wait_for(|phase| !matches!(phase, Phase::Connecting)).await.map(|phase| phase.clone());
    let Ok(Phase::Running(schedule)) = opened else { return };
    if workload.is_in_sets() {
        let part =
            Part { workload: &*workload, settings: &settings, sets: &sets, schedule: &schedule, recorder: &recorder };
        return part.take(&mut state, &mut phase).await;
    }
    let mut alarm = Alarm::new(settings.time);
    let mut random = Random::derived(settings.seed, &[stream::THINK, number as u64]);
    let record = || recorder.lock().unwrap_or_else(PoisonError::into_inner);
    let part = number as f64 / settings.load.clients as f64;
    let own_begin = schedule.begin() + settings.load.ramp.mul_f64(part);
    if own_begin > Instant::now() && unless_over(&mut phase, alarm.wait_until(own_begin)).await.is_none() {
        return;
    }
    let mut is_broken = false;
    while matches!(*phase.borrow(), Phase::Running(_)) {
        if is_broken {
            match connect(&*workload, &mut state, settings.load.timeout, &mut phase).await {
                Done::GivenUp => return,
                Done::Ended(Ok(())) => {}
                Done::Ended(Err(failure)) => {
                    let now = Instant::now();
                    record().record_unreachable(now, schedule.measure_from(), &failure);
                    if schedule.end().is_some_and(|end| now >= end) {
                        return;
                    }
                    unless_over(&mut phase, tokio::time::sleep(RECONNECT_AFTER)).await;
                    continue;
                }
            }
        }
        workload.generate(&mut state);
        let Some(ticket) = schedule.take(Instant::now(), &mut random) else { return };
        if !wait_for(&schedule, ticket, &mut alarm, &mut phase).await {
            return;
        }
        let started = Instant::now();
        let done = within(settings.load.timeout, workload.execute(&mut state), &mut phase).await;
        let times = Times { intended: ticket.intended, started, ended: Instant::now() };
        match done {
            Done::GivenUp => {
                record().record_given_up();
                return;
            }
            Done::Ended(result) => {
                is_broken = result.as_ref().is_err_and(|failure| failure.is_broken);
                let from = schedule.measure_from().filter(|_| ticket.is_measured);
                record().record(&times, from, &result);
            }
        }
    }
}

/// Waits until the ticket's start; false: the run ended first.
async fn wait_for(schedule: &Schedule, ticket: Ticket, alarm: &mut Alarm, phase: &mut watch::Receiver<Phase>) -> bool {
    if ticket.intended <= Instant::now() {
        return true;
    }
    let is_over = unless_over(phase, alarm.wait_until(ticket.intended)).await.is_none();
    if is_over {
        schedule.give_back(ticket, Instant::now());
    }
    !is_over
}

/// What the future gives, unless the run ends first.
pub(super) async fn unless_over<T>(phase: &mut watch::Receiver<Phase>, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        _ = phase.wait_for(|phase| matches!(phase, Phase::Finishing | Phase::Aborting)) => None,
    }
}

async fn connect<W: Workload>(
    workload: &W,
    state: &mut W::Client,
    timeout: Duration,
    phase: &mut watch::Receiver<Phase>,
) -> Done<()> {
    within(timeout, workload.connect(state), phase).await
}

/// The result, or that it took too long, unless everything ends.
async fn within<T>(
    timeout: Duration,
    future: impl Future<Output = Result<T, Failure>>,
    phase: &mut watch::Receiver<Phase>,
) -> Done<T> {
    tokio::select! {
        biased;
        done = tokio::time::timeout(timeout, future) => {
            Done::Ended(done.unwrap_or_else(|_| Err(Failure::time_out(timeout))))
        }
        _ = phase.wait_for(|phase| matches!(phase, Phase::Aborting)) => Done::GivenUp,
    }
}
