//! An agent's part of a run: its clients are driven as all others are, but who conducts says when.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::client::{Phase, Shared};
use super::observe::{all_connected, start};
use super::record::Recorder;
use super::schedule::Schedule;
use super::sets::{Ask, Sets};
use super::{Failure, RunFailure, Settings, Workload, interrupted};
use crate::agents::Seat;
use crate::agents::wire::{FromAgent, Recorded, ToAgent, Told, Used};
use crate::experiment::{Arrival, Stop, StopRule};
use crate::random::{Random, stream};

/// How often what was recorded is told.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Drives these clients of the workload as they are told at the seat, to the end of the run; false: nobody conducts any more, or somebody
/// interrupts.
pub(crate) async fn take_part<W: Workload>(
    workload: Arc<W>,
    settings: &Settings,
    numbers: Range<usize>,
    seat: &mut Seat,
    interrupt: &watch::Receiver<bool>,
) -> bool {
    let (began, clients) = (seat.own(Instant::now()), numbers.len());
    let (phase, receiver) = watch::channel(Phase::Connecting);
    let (events, mut told) = mpsc::unbounded_channel();
    let (alive, mut ended) = mpsc::channel::<()>(1);
    let (asks, mut asked) = mpsc::unbounded_channel();
    let sets = Arc::new(Sets::conducted(numbers.len(), asks));
    let shared = Shared { workload: workload.clone(), settings: settings.clone(), phase: receiver, events, sets };
    let local = LocalSet::new();
    let recorders = match start(&shared, &local, &alive, numbers.clone()) {
        Ok(recorders) => recorders,
        Err(failure) => {
            seat.say(FromAgent::Failed(told_of(&failure)));
            Vec::new()
        }
    };
    drop((shared, alive));
    let mut part = Part { settings, numbers, phase, schedule: None, answers: Answers::default(), is_there: true };
    local
        .run_until(async {
            let mut connected = std::pin::pin!(all_connected(&mut told, part.numbers.len()));
            let mut is_told = recorders.is_empty();
            let mut ticks = tokio::time::interval(TELL_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    biased;
                    message = seat.hear(), if part.is_there => part.hear(message.as_ref(), seat),
                    () = interrupted(interrupt), if part.is_there => part.leave(),
                    result = &mut connected, if !is_told => {
                        is_told = true;
                        seat.say(match result {
                            Ok(()) => FromAgent::Connected,
                            Err(failure) => FromAgent::Failed(told_of(&RunFailure::Target(failure))),
                        });
                    }
                    Some(ask) = asked.recv() => part.pass_on(ask, seat),
                    _ = ticks.tick() => seat.say(FromAgent::Recorded(collect(&recorders, seat))),
                    _ = ended.recv() => break,
                }
            }
        })
        .await;
    seat.say(FromAgent::Recorded(collect(&recorders, seat)));
    let waits = part.schedule.map(|schedule| schedule.waits(Instant::now())).unwrap_or_default();
    let waits = [waits.late, waits.dropped, waits.longest_queue];
    let span_ns = seat.own(Instant::now()) - began;
    let used = seat.cpu().map(|cpu_ns| Used { cpu_ns, span_ns, threads: settings.time.threads().min(clients) });
    seat.say(FromAgent::Over { waits, report: workload.report(&|moment| seat.own(moment)), used });
    part.is_there
}

/// Where the part is.
struct Part<'p> {
    settings: &'p Settings,
    numbers: Range<usize>,
    phase: watch::Sender<Phase>,
    schedule: Option<Arc<Schedule>>,
    answers: Answers,
    /// Whether somebody conducts.
    is_there: bool,
}

/// Who waits for what.
#[derive(Default)]
struct Answers {
    next: Option<oneshot::Sender<Option<bool>>>,
    go: Option<oneshot::Sender<Instant>>,
    go_on: Option<oneshot::Sender<()>>,
}

impl Part<'_> {
    fn hear(&mut self, message: Option<&ToAgent>, seat: &Seat) {
        // Who waits for an answer may be gone with the run.
        match message {
            None => self.leave(),
            Some(ToAgent::Begin { at }) => self.begin(seat.moment(*at)),
            Some(ToAgent::Set { is_measured }) => {
                let _ = self.answers.next.take().map(|answer| answer.send(*is_measured));
            }
            Some(ToAgent::Go { at }) => {
                let _ = self.answers.go.take().map(|answer| answer.send(seat.moment(*at)));
            }
            Some(ToAgent::Restore) => {
                let _ = self.answers.go_on.take().map(|answer| answer.send(()));
            }
            Some(ToAgent::Finish) => drop(self.phase.send_replace(Phase::Finishing)),
            Some(ToAgent::Abort) => drop(self.phase.send_replace(Phase::Aborting)),
            Some(_) => {}
        }
    }

    fn begin(&mut self, at: Instant) {
        let (arrival, stop) = share(self.settings, &self.numbers);
        let seed = Random::derived(self.settings.seed, &[stream::ARRIVALS, self.numbers.start as u64]).bits();
        let schedule = Arc::new(Schedule::new(arrival, &stop, at, seed));
        self.schedule = Some(schedule.clone());
        self.phase.send_replace(Phase::Running(schedule));
    }

    fn leave(&mut self) {
        self.is_there = false;
        self.phase.send_replace(Phase::Aborting);
    }

    fn pass_on(&mut self, ask: Ask, seat: &Seat) {
        match ask {
            Ask::Next(answer) => {
                self.answers.next = Some(answer);
                seat.say(FromAgent::Arrived);
            }
            Ask::Go(answer) => {
                self.answers.go = Some(answer);
                seat.say(FromAgent::Arrived);
            }
            Ask::Done { starts, ended, go_on } => {
                self.answers.go_on = Some(go_on);
                let starts = starts.into_iter().map(|start| seat.own(start)).collect();
                seat.say(FromAgent::SetDone { starts, ended: seat.own(ended) });
            }
        }
    }
}

/// These clients' part of what comes in all, and of what ends the run.
fn share(settings: &Settings, numbers: &Range<usize>) -> (Arrival, Stop) {
    let clients = settings.load.clients.max(1);
    let of = |all: u64| {
        let up_to = |number: usize| u128::from(all) * number as u128 / clients as u128;
        (up_to(numbers.end) - up_to(numbers.start)) as u64
    };
    let arrival = match settings.load.arrival {
        Arrival::Open { rate, is_poisson, queue_max } => Arrival::Open {
            rate: rate * numbers.len() as f64 / clients as f64,
            is_poisson,
            queue_max: of(queue_max as u64) as usize,
        },
        closed @ Arrival::Closed { .. } => closed,
    };
    let rule = match settings.stop.rule {
        StopRule::Iterations(all) => StopRule::Iterations(of(all)),
        other => other,
    };
    (arrival, Stop { rule, ..settings.stop })
}

/// What all threads have recorded since the last time.
fn collect(recorders: &[Arc<Mutex<Recorder>>], seat: &Seat) -> Recorded {
    let mut all = Recorded::default();
    for recorder in recorders {
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        let Recorded { seconds, tally, last_success, unreachable, defect } =
            recorder.give_out(|moment| seat.own(moment));
        all.seconds.extend(seconds);
        all.tally = [all.tally[0] + tally[0], all.tally[1] + tally[1]];
        all.last_success = all.last_success.max(last_success);
        all.unreachable = all.unreachable.or(unreachable);
        all.defect = all.defect.or(defect);
    }
    all
}

fn told_of(failure: &RunFailure) -> Told {
    match failure {
        RunFailure::Target(Failure { class, detail, is_usage, .. }) => {
            Told { class: class.to_string(), detail: detail.clone(), is_usage: *is_usage }
        }
        other => Told { class: String::new(), detail: other.to_string(), is_usage: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Load;
    use crate::harness::Time;

    #[test]
    fn the_parts_of_all_agents_are_the_whole() {
        let arrival = Arrival::Open { rate: 70.0, is_poisson: true, queue_max: 10 };
        let second = Duration::from_secs(1);
        let settings = Settings {
            load: Load { clients: 7, arrival, ramp: Duration::ZERO, timeout: second, threads: None },
            stop: Stop { warmup: second, steady_within: None, rule: StopRule::Iterations(100) },
            seed: 1,
            time: Time::Runtime,
        };
        let (mut rates, mut queues, mut iterations) = (0.0, 0, 0);
        for numbers in [0..2, 2..4, 4..7] {
            let (Arrival::Open { rate, queue_max, .. }, Stop { rule: StopRule::Iterations(count), .. }) =
                share(&settings, &numbers)
            else {
                panic!("another kind");
            };
            rates += rate;
            queues += queue_max;
            iterations += count;
        }
        assert!((rates - 70.0_f64).abs() < 1e-9, "{rates}");
        assert_eq!((queues, iterations), (10, 100));
    }
}
