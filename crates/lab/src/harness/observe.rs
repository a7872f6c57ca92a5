//! Watches a run: opens the gate, adds up what the threads record, and ends it by its rule.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, MissedTickBehavior};

use super::client::{Event, Phase, Shared, client};
use super::clock::Time;
use super::conduct::Crew;
use super::failure::{Class, Failure};
use super::record::{Counted, Histogram, Interval, Recorder};
use super::schedule::{Schedule, Waits};
use super::sets::{SetTimes, Sets};
use super::steady::{Done, Warming};
use super::{Attempts, RunFailure, Settings, Tally, Work, Workload, interrupted};
use crate::experiment::StopRule;

/// How often a run is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A target that no client can connect to, and that has done nothing for so long, is lost; or for twice the time-out, if that is less.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// How many steps of clients a thread takes before it looks for what has come meanwhile, otherwise: tokio's own number.
const EVENT_INTERVAL: u32 = 61;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What ended it.
    pub ended: Ended,
    /// The end of the warm-up.
    pub from: Instant,
    /// From the beginning to there.
    pub warmup: Duration,
    /// Whether it was found steady by then; none: nobody asked ([`Stop::steady_within`](crate::experiment::Stop::steady_within)).
    pub is_steady: Option<bool>,
    /// From the end of the warm-up to the end, or to the last operation's end, if that is later.
    pub elapsed: Duration,
    /// The sets in which operations were done, if they were; then rates are of their time.
    pub sets: Option<SetTimes>,
    /// Operations that succeeded.
    pub operations: u64,
    /// From the actual start.
    pub service: Histogram,
    /// From the intended start.
    pub response: Histogram,
    /// Failures by class.
    pub errors: BTreeMap<Class, Counted>,
    /// What operations that succeeded met before.
    pub attempts: Attempts,
    /// Arrivals for which no client was free.
    pub late: u64,
    /// Arrivals that never began: the queue was full, or the run ended.
    pub dropped: u64,
    /// The most arrivals that waited for a client at once.
    pub longest_queue: u64,
    /// By the second in which operations ended.
    pub series: Vec<Second>,
    /// With the warm-up.
    pub tally: Tally,
    /// What agents took for their clients; none: there were none, or it is not known.
    pub agents: Option<AgentsUse>,
}

/// What agents took for their clients, warm-up and all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentsUse {
    /// Processor time of all of them.
    pub cpu: Duration,
    /// From the first connection to the end, of the one that took longest.
    pub span: Duration,
    /// Threads that the clients shared, at all of them.
    pub threads: usize,
}

impl std::ops::Add for AgentsUse {
    type Output = AgentsUse;

    fn add(self, other: AgentsUse) -> AgentsUse {
        let span = self.span.max(other.span);
        AgentsUse { cpu: self.cpu + other.cpu, span, threads: self.threads + other.threads }
    }
}

impl Measured {
    /// Operations a second that succeeded.
    pub fn throughput(&self) -> f64 {
        let time = self.sets.as_ref().map_or(self.elapsed, SetTimes::time);
        if time.is_zero() { 0.0 } else { self.operations as f64 / time.as_secs_f64() }
    }

    /// The example of the class with the most failures.
    pub(super) fn most_said(&self) -> Option<String> {
        let most = self.errors.iter().max_by_key(|(_, counted)| counted.count);
        most.map(|(class, counted)| format!("{class}: {}", counted.example))
    }
}

/// What ended a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It had its operations.
    Iterations,
    /// Its time was over.
    Duration,
    /// Its interval was narrow enough.
    Interval,
    /// Somebody stopped it.
    Interrupted,
    /// The target was lost; what clients were told.
    Lost(String),
}

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// From the beginning of measuring.
    pub second: u64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Failures.
    pub errors: u64,
    /// Half of the responses were faster.
    pub response_p50: Duration,
    /// All but a hundredth were faster.
    pub response_p99: Duration,
    /// The slowest.
    pub response_max: Duration,
    /// The arithmetic mean.
    pub response_mean: Duration,
    /// What the statements of those that succeeded did.
    pub work: Work,
}

/// Where a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Since the gate opened, warm-up included.
    pub elapsed: Duration,
    /// Whether the warm-up is still on.
    pub is_warmup: bool,
    /// How long it takes in all, where that is known.
    pub total: Option<Duration>,
    /// Operations measured so far.
    pub operations: u64,
    /// The seconds that were over since the last look, those in which nothing ended too.
    pub seconds: Vec<Second>,
    /// All responses but a hundredth were faster, so far.
    pub response_p99: Duration,
    /// Failures so far.
    pub errors: u64,
}

/// Drives the workload that has been prepared. An error: it did not come to measuring.
pub(super) async fn measure<W: Workload>(
    workload: Arc<W>,
    settings: &Settings,
    interrupt: &watch::Receiver<bool>,
    progress: &mut dyn FnMut(&Progress),
    crew: Option<Crew<'_>>,
) -> Result<Measured, RunFailure> {
    let (phase, receiver) = watch::channel(Phase::Connecting);
    let (events, mut told) = mpsc::unbounded_channel();
    // Held by all that belong to a client: closed once all clients have ended.
    let (alive, mut ended) = mpsc::channel::<()>(1);
    let parties = crew.map_or(settings.load.clients, |crew| crew.agents.all.len());
    let lead = match crew {
        Some(crew) => crew.agents.lead().await,
        None => Duration::ZERO,
    };
    let sets = Arc::new(Sets::new(parties));
    let sets_of = workload.is_in_sets().then(|| sets.clone());
    let driven = workload.clone();
    let gone = move || driven.gone();
    let shared = Shared { workload, settings: settings.clone(), phase: receiver, events, sets };
    let local = LocalSet::new();
    let recorders = match crew {
        Some(crew) => crew.start(&shared, &local, &alive),
        None => start(&shared, &local, &alive, 0..settings.load.clients)?,
    };
    drop((shared, alive));
    local
        .run_until(async {
            let clients = settings.load.clients;
            let connected = tokio::select! {
                connected = all_connected(&mut told, clients) => connected.map_err(RunFailure::Target),
                () = interrupted(interrupt) => Err(RunFailure::Interrupted),
                what = until_gone(&gone) => Err(RunFailure::Lost(what)),
            };
            if let Err(failure) = connected {
                phase.send_replace(Phase::Aborting);
                while ended.recv().await.is_some() {}
                return Err(failure);
            }
            let begin = Instant::now() + lead;
            let schedule = Arc::new(Schedule::new(settings.load.arrival, &settings.stop, begin, settings.seed));
            phase.send_replace(Phase::Running(schedule.clone()));
            let totals = Totals::default();
            let mut watcher = Watcher {
                settings,
                begin,
                schedule,
                recorders,
                totals,
                sets: sets_of,
                is_conducted: crew.is_some(),
                warming: Warming::default(),
                looked: begin,
                is_steady: None,
                untold: 0,
                gone: &gone,
            };
            let how = watcher.watch(&mut ended, interrupt, progress).await;
            let is_abort = matches!(how, Ended::Interrupted | Ended::Lost(_));
            let finished = Instant::now();
            phase.send_replace(if is_abort { Phase::Aborting } else { Phase::Finishing });
            // Operations that still run end by their own time-out; an interrupt ends them at once.
            tokio::select! {
                _ = ended.recv() => {}
                () = interrupted(interrupt) => {
                    phase.send_replace(Phase::Aborting);
                    ended.recv().await;
                }
            }
            Ok(watcher.finish(how, finished))
        })
        .await
}

/// Returns once so many clients are connected.
pub(super) async fn all_connected(told: &mut mpsc::UnboundedReceiver<Event>, clients: usize) -> Result<(), Failure> {
    for _ in 0..clients {
        match told.recv().await {
            Some(Event::Connected) => {}
            Some(Event::Failed(failure)) => return Err(failure),
            None => return Err(Failure::new(Class::Other, "a thread of clients ended before it began")),
        }
    }
    Ok(())
}

/// Returns once something is gone without which nothing can go on.
async fn until_gone(gone: &dyn Fn() -> Option<String>) -> String {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Some(what) = gone() {
            return what;
        }
    }
}

/// Starts these clients; one recorder for each thread.
pub(super) fn start<W: Workload>(
    shared: &Shared<W>,
    local: &LocalSet,
    alive: &mpsc::Sender<()>,
    all: Range<usize>,
) -> Result<Vec<Arc<Mutex<Recorder>>>, RunFailure> {
    let clients = all.len();
    let Time::Real { threads } = shared.settings.time else {
        let recorder = Arc::new(Mutex::new(Recorder::default()));
        local.spawn_local(group(shared.clone(), all, recorder.clone(), alive.clone()));
        return Ok(vec![recorder]);
    };
    let threads = threads.clamp(1, clients.max(1));
    let mut recorders = Vec::new();
    for thread in 0..threads {
        let numbers = all.start + clients * thread / threads..all.start + clients * (thread + 1) / threads;
        let recorder = Arc::new(Mutex::new(Recorder::default()));
        recorders.push(recorder.clone());
        let (shared, alive) = (shared.clone(), alive.clone());
        let started = std::thread::Builder::new().name(format!("lab-{thread}")).spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all();
            if shared.workload.is_in_sets() {
                // All of a set begin before the first answer is looked at: a gate holds them closer together.
                runtime.event_interval(EVENT_INTERVAL.max(2 * numbers.len() as u32));
            }
            match runtime.build_local(LocalOptions::default()) {
                Ok(runtime) => runtime.block_on(group(shared, numbers, recorder, alive)),
                Err(error) => {
                    let detail = format!("a thread of clients could not start: {error}");
                    let _ = shared.events.send(Event::Failed(Failure::new(Class::Other, detail)));
                }
            }
        });
        started.map_err(|error| {
            let detail = format!("thread {thread} of {threads} could not be started: {error}; lower load.threads");
            RunFailure::Target(Failure::usage(detail))
        })?;
    }
    Ok(recorders)
}

/// The clients of one thread.
async fn group<W: Workload>(
    shared: Shared<W>,
    numbers: Range<usize>,
    recorder: Arc<Mutex<Recorder>>,
    alive: mpsc::Sender<()>,
) {
    let mut clients = JoinSet::new();
    for number in numbers {
        clients.spawn_local(client(shared.clone(), number, recorder.clone()));
    }
    drop(shared);
    while let Some(ended) = clients.join_next().await {
        if let Err(defect) = ended {
            recorder.lock().unwrap_or_else(PoisonError::into_inner).defect = Some(defect.to_string());
        }
    }
    drop(alive);
}

struct Watcher<'w> {
    settings: &'w Settings,
    begin: Instant,
    schedule: Arc<Schedule>,
    recorders: Vec<Arc<Mutex<Recorder>>>,
    totals: Totals,
    sets: Option<Arc<Sets>>,
    /// Whether clients are at agents, which have the schedule's arrivals.
    is_conducted: bool,
    warming: Warming,
    /// When the warm-up was looked at last.
    looked: Instant,
    is_steady: Option<bool>,
    /// The first second that [`Progress`] has not told of.
    untold: u64,
    /// What is gone without which nothing can go on.
    gone: &'w dyn Fn() -> Option<String>,
}

/// What has been added up so far.
#[derive(Default)]
struct Totals {
    service: Histogram,
    response: Histogram,
    errors: BTreeMap<Class, Counted>,
    attempts: Attempts,
    last: Option<Instant>,
    /// Seconds to which something may be added still.
    open: BTreeMap<u64, OpenSecond>,
    /// The first of them.
    open_from: u64,
    series: Vec<Second>,
}

/// What has come of a second so far.
#[derive(Default)]
struct OpenSecond {
    response: Histogram,
    errors: u64,
    work: Work,
}

impl Watcher<'_> {
    /// Looks every second, until the run is to end.
    async fn watch(
        &mut self,
        ended: &mut mpsc::Receiver<()>,
        interrupt: &watch::Receiver<bool>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Ended {
        let mut looks = tokio::time::interval_at(self.begin + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let by_rule = match self.settings.stop.rule {
            StopRule::Iterations(_) => Ended::Iterations,
            StopRule::Duration(_) | StopRule::Interval { .. } => Ended::Duration,
        };
        loop {
            tokio::select! {
                biased;
                () = interrupted(interrupt) => return Ended::Interrupted,
                _ = ended.recv() => {
                    let now = Instant::now();
                    let last_part = LOOK_EVERY.max(now.saturating_duration_since(self.begin) / 10);
                    return self.defect().or_else(|| self.lost(now, last_part)).map_or(by_rule, Ended::Lost);
                }
                _ = looks.tick() => {}
            }
            self.begin_measuring(Instant::now());
            self.drain();
            let at = self.progress(Instant::now());
            progress(&at);
            if self.is_narrow() {
                return Ended::Interval;
            }
            if let Some(detail) =
                (self.gone)().or_else(|| self.defect()).or_else(|| self.lost(Instant::now(), LOST_AFTER))
            {
                return Ended::Lost(detail);
            }
        }
    }

    /// Where a steady state is looked for: if it is there, or not to be waited for any longer, what comes now counts.
    fn begin_measuring(&mut self, now: Instant) {
        let stop = &self.settings.stop;
        let Some(within) = stop.steady_within.filter(|_| self.schedule.measure_from().is_none()) else { return };
        let mut done = Done::default();
        for recorder in &self.recorders {
            let one = std::mem::take(&mut recorder.lock().unwrap_or_else(PoisonError::into_inner).warming);
            done = Done { operations: done.operations + one.operations, responses: done.responses + one.responses };
        }
        self.warming.look(done, now.saturating_duration_since(self.looked));
        self.looked = now;
        let elapsed = now.saturating_duration_since(self.begin);
        let is_steady = elapsed >= stop.warmup && self.warming.is_steady();
        if is_steady || elapsed >= within {
            self.is_steady = Some(is_steady);
            self.schedule.measure_now(now);
        }
    }

    /// All that was measured, once all clients have ended.
    fn finish(mut self, how: Ended, finished: Instant) -> Measured {
        self.drain();
        let from = self.schedule.measure_from().unwrap_or(finished);
        let mut waits = if self.is_conducted { Waits::default() } else { self.schedule.waits(finished) };
        let Totals { service, response, errors, attempts, last, open, mut series, .. } = self.totals;
        series.extend(open.into_iter().map(second));
        let end = match how {
            Ended::Iterations => last,
            Ended::Duration => self.schedule.end(),
            _ => Some(finished),
        };
        let elapsed = end.max(last).map_or(Duration::ZERO, |end| end.saturating_duration_since(from));
        let (mut tally, mut agents) = (Tally::default(), None);
        for recorder in &self.recorders {
            let recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            tally = Tally { done: tally.done + recorder.tally.done, failed: tally.failed + recorder.tally.failed };
            waits += recorder.waits;
            agents = recorder.used.map(|used| used + agents.unwrap_or_default()).or(agents);
        }
        Measured {
            ended: how,
            from,
            warmup: from.saturating_duration_since(self.begin),
            is_steady: self.is_steady,
            elapsed,
            sets: self.sets.map(|sets| sets.measured()),
            operations: service.len(),
            service,
            response,
            errors,
            attempts,
            late: waits.late,
            dropped: waits.dropped,
            longest_queue: waits.longest_queue,
            series,
            tally,
            agents,
        }
    }

    fn drain(&mut self) {
        let now = Instant::now();
        for recorder in &self.recorders {
            let intervals = recorder.lock().unwrap_or_else(PoisonError::into_inner).drain();
            for interval in intervals {
                self.totals.add(interval);
            }
        }
        // What ends in a second is recorded in it, or just after.
        let Some(from) = self.schedule.measure_from() else { return };
        self.totals.open_from = now.saturating_duration_since(from).as_secs().saturating_sub(1);
        let open = self.totals.open.split_off(&self.totals.open_from);
        let closed = std::mem::replace(&mut self.totals.open, open);
        self.totals.series.extend(closed.into_iter().map(second));
    }

    fn is_narrow(&self) -> bool {
        let StopRule::Interval { percent, .. } = self.settings.stop.rule else { return false };
        let median = self.totals.response.quantile(0.5).as_secs_f64();
        self.totals.response.median_interval().is_some_and(|(low, high)| {
            let away = (high.as_secs_f64() - median).max(median - low.as_secs_f64());
            away * 100.0 <= percent * median
        })
    }

    /// What clients that can't connect are told, when nothing has succeeded for a while.
    fn lost(&self, now: Instant, after: Duration) -> Option<String> {
        let recorders = self.recorders.iter().map(|recorder| recorder.lock().unwrap_or_else(PoisonError::into_inner));
        let mut last = self.begin;
        let mut told = None;
        for recorder in recorders {
            last = last.max(recorder.last_success.unwrap_or(last));
            told = told.or_else(|| recorder.unreachable.clone());
        }
        let patience = after.min(2 * self.settings.load.timeout);
        told.filter(|_| now.saturating_duration_since(last) >= patience)
    }

    fn defect(&self) -> Option<String> {
        let of =
            |recorder: &Arc<Mutex<Recorder>>| recorder.lock().unwrap_or_else(PoisonError::into_inner).defect.clone();
        self.recorders.iter().find_map(of)
    }

    /// Seconds that are over, and were not told of before.
    fn news(&mut self) -> Vec<Second> {
        let (from, end) = (self.untold, self.totals.open_from);
        self.untold = end.max(from);
        let mut seconds: Vec<_> = (from..end).map(|second| Second { second, ..Second::default() }).collect();
        for second in self.totals.series.iter().rev().take_while(|second| second.second >= from) {
            if let Some(told) = seconds.get_mut((second.second - from) as usize) {
                *told = *second;
            }
        }
        seconds
    }

    fn progress(&mut self, now: Instant) -> Progress {
        let seconds = self.news();
        let stop = &self.settings.stop;
        let total = match stop.rule {
            StopRule::Iterations(_) => None,
            StopRule::Duration(time) | StopRule::Interval { at_most: time, .. } => {
                let longest = stop.steady_within.unwrap_or(stop.warmup) + time;
                let end = self.schedule.end();
                Some(end.map_or(longest, |end| end.saturating_duration_since(self.begin)))
            }
        };
        Progress {
            elapsed: now.saturating_duration_since(self.begin),
            is_warmup: self.schedule.measure_from().is_none_or(|from| now < from),
            total,
            operations: self.totals.response.len(),
            seconds,
            response_p99: self.totals.response.quantile(0.99),
            errors: self.totals.errors.values().map(|counted| counted.count).sum(),
        }
    }
}

impl Totals {
    fn add(&mut self, interval: Interval) {
        self.service.add(&interval.service);
        self.response.add(&interval.response);
        // A thread that the machine has held up between an operation's end and its record is counted a little later.
        let open = self.open.entry(interval.second.max(self.open_from)).or_default();
        open.response.add(&interval.response);
        open.work += interval.attempts.work;
        self.last = self.last.max(interval.last);
        self.attempts += interval.attempts;
        for (class, counted) in interval.errors {
            open.errors += counted.count;
            let Counted { count, example } = counted;
            self.errors.entry(class).or_insert(Counted { count: 0, example }).count += count;
        }
    }
}

fn second((second, OpenSecond { response, errors, work }): (u64, OpenSecond)) -> Second {
    Second {
        second,
        operations: response.len(),
        errors,
        response_p50: response.quantile(0.5),
        response_p99: response.quantile(0.99),
        response_max: response.max(),
        response_mean: response.mean(),
        work,
    }
}
