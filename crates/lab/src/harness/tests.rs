//! The harness checks itself, on virtual time: what it says of targets that are known.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::*;
use crate::experiment::{Arrival, StopRule};
use crate::random::Random;

const MS: Duration = Duration::from_millis(1);

/// A target that serves all at once, each in some milliseconds, and does nothing at all for a while.
struct Target {
    service: fn(&mut Random) -> Duration,
    /// How many times as long it takes, by the time since the beginning.
    slowness: fn(Duration) -> f64,
    /// From when to when, since the beginning.
    stall: Option<(Duration, Duration)>,
    begin: Instant,
    executed: AtomicU64,
    /// The n-th operation and those after it fail so.
    failure: Option<(u64, Failure)>,
    faults: Vec<String>,
    cleaned: AtomicU64,
    prepared: Result<(), Failure>,
    starts: Mutex<Vec<Duration>>,
    /// In sets: how many were begun and ended, and in which of them operations were done.
    sets: Option<Mutex<(u64, u64, Vec<u64>)>>,
    /// After so many operations its server is gone: nothing is answered any more.
    gone_after: Option<u64>,
}

impl Target {
    fn new(service: fn(&mut Random) -> Duration) -> Target {
        Target {
            service,
            slowness: |_| 1.0,
            stall: None,
            begin: Instant::now(),
            executed: AtomicU64::new(0),
            failure: None,
            faults: Vec::new(),
            cleaned: AtomicU64::new(0),
            prepared: Ok(()),
            starts: Mutex::new(Vec::new()),
            sets: None,
            gone_after: None,
        }
    }
}

impl Target {
    fn in_sets(&self, note: impl FnOnce(&mut (u64, u64, Vec<u64>))) {
        if let Some(sets) = &self.sets {
            note(&mut sets.lock().expect("not poisoned"));
        }
    }
}

impl Workload for Target {
    type Client = Cell<Random>;

    async fn prepare(&self) -> Result<(), Failure> {
        self.prepared.clone()
    }

    fn client(&self, number: usize) -> Cell<Random> {
        Cell::new(Random::derived(1, &[number as u64]))
    }

    async fn connect(&self, _: &mut Cell<Random>) -> Result<(), Failure> {
        let is_gone = self
            .failure
            .as_ref()
            .filter(|(nth, failure)| failure.is_broken && self.executed.load(Ordering::Relaxed) >= *nth);
        is_gone.map_or(Ok(()), |_| Err(Failure::new(Class::Refused, "nobody listens")))
    }

    fn generate(&self, _: &mut Cell<Random>) {}

    async fn execute(&self, client: &mut Cell<Random>) -> Result<Attempts, Failure> {
        let now = self.begin.elapsed();
        self.starts.lock().expect("not poisoned").push(now);
        if let Some((from, to)) = self.stall
            && now >= from
            && now < to
        {
            tokio::time::sleep_until(self.begin + to).await;
        }
        tokio::time::sleep((self.service)(client.get_mut()).mul_f64((self.slowness)(now))).await;
        let nth = self.executed.fetch_add(1, Ordering::Relaxed);
        self.in_sets(|(begun, ended, of)| {
            assert_eq!(*begun, *ended + 1, "within a set");
            of.push(*begun);
        });
        match &self.failure {
            Some((from, failure)) if nth >= *from => Err(failure.clone()),
            _ => Ok(Attempts { refusals: 1, retries: 2, ..Attempts::default() }),
        }
    }

    fn is_in_sets(&self) -> bool {
        self.sets.is_some()
    }

    async fn begin_set(&self) -> Result<(), Failure> {
        tokio::time::sleep(100 * MS).await;
        self.in_sets(|(begun, ended, _)| {
            assert_eq!(begun, ended);
            *begun += 1;
        });
        Ok(())
    }

    async fn end_set(&self) -> Result<(), Failure> {
        self.in_sets(|(begun, ended, _)| *ended = *begun);
        Ok(())
    }

    fn gone(&self) -> Option<String> {
        let is_gone = self.gone_after.is_some_and(|after| self.executed.load(Ordering::Relaxed) >= after);
        is_gone.then(|| "the server has ended".to_owned())
    }

    async fn restore(&self, client: &mut Cell<Random>) -> Result<(), Failure> {
        if self.gone().is_some() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep((self.service)(client.get_mut())).await;
        match &self.failure {
            Some((_, failure)) if self.gone_after.is_none() => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    async fn verify(&self, _: Tally) -> Result<Vec<String>, Failure> {
        Ok(self.faults.clone())
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        self.cleaned.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

const CLOSED: Arrival = Arrival::Closed { think: Duration::ZERO };

fn open(rate: f64, is_poisson: bool) -> Arrival {
    Arrival::Open { rate, is_poisson, queue_max: 100_000 }
}

fn settings(clients: usize, arrival: Arrival, rule: StopRule) -> Settings {
    Settings {
        load: Load { clients, arrival, ramp: Duration::ZERO, timeout: Duration::from_secs(30), threads: None },
        stop: Stop { warmup: Duration::ZERO, steady_within: None, rule },
        seed: 1,
        time: Time::Runtime,
    }
}

fn seconds(count: u64) -> StopRule {
    StopRule::Duration(Duration::from_secs(count))
}

async fn drive(target: Target, settings: &Settings) -> (Arc<Target>, Outcome) {
    let (_keep, interrupt) = watch::channel(false);
    let target = Arc::new(target);
    let outcome = run(target.clone(), settings, &interrupt, &mut |_| {}).await;
    assert_eq!(target.cleaned.load(Ordering::Relaxed), 1, "cleaned up once, whatever happened");
    (target, outcome)
}

async fn measured(target: Target, settings: &Settings) -> Measured {
    let outcome = drive(target, settings).await.1;
    assert_eq!(outcome.failure, None);
    outcome.measured.expect("measured")
}

fn ten(_: &mut Random) -> Duration {
    10 * MS
}

#[tokio::test(start_paused = true)]
async fn clients_begin_one_after_the_other_within_the_warm_up() {
    let mut settings = settings(4, CLOSED, seconds(2));
    settings.stop.warmup = Duration::from_secs(4);
    settings.load.ramp = Duration::from_secs(4);
    let measured = measured(Target::new(ten), &settings).await;
    // A hundred a second each, for 4, 3, 2 and 1 of the seconds before measuring begins.
    assert_eq!((measured.operations, measured.tally.done), (800, 800 + 1000));
}

/// Ten times as slow at first; the rest halves each five seconds.
fn warming(now: Duration) -> f64 {
    1.0 + 9.0 * 0.5_f64.powf(now.as_secs_f64() / 5.0)
}

#[tokio::test(start_paused = true)]
async fn measuring_begins_where_the_target_is_steady() {
    let varying: fn(&mut Random) -> Duration = |random| (10 * MS).mul_f64(0.5 + random.fraction());
    let warm = || Target { slowness: warming, ..Target::new(varying) };
    for arrival in [CLOSED, open(200.0, true)] {
        let mut settings = settings(4, arrival, seconds(10));
        let cold = measured(warm(), &settings).await;
        assert_eq!((cold.is_steady, cold.warmup), (None, Duration::ZERO), "nobody looked");
        settings.stop.steady_within = Some(Duration::from_mins(5));
        let steady = measured(warm(), &settings).await;
        let at = steady.warmup.as_secs();
        assert!(steady.is_steady == Some(true) && (20..120).contains(&at), "{arrival:?}: steady after {at} s");
        assert!(
            steady.response.mean() < 13 * MS && cold.response.mean() > 40 * MS,
            "{arrival:?}: {:?}",
            steady.response.mean()
        );
        // What was measured is what came from there on.
        assert_eq!(steady.elapsed.as_secs(), 10, "{arrival:?}");
        assert_eq!(steady.series.iter().map(|second| second.operations).sum::<u64>(), steady.operations, "{arrival:?}");
        assert!(steady.series.iter().all(|second| second.second <= 10), "{arrival:?}");
        assert!(
            steady.tally.done > steady.operations && steady.dropped <= 4,
            "{arrival:?}: {} dropped",
            steady.dropped
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_never_becomes_steady_is_measured_and_told() {
    let slowing = || Target { slowness: |now| 1.0 + now.as_secs_f64() / 5.0, ..Target::new(ten) };
    for rule in [seconds(5), StopRule::Iterations(101)] {
        let mut settings = settings(4, CLOSED, rule);
        (settings.stop.warmup, settings.stop.steady_within) = (Duration::from_secs(2), Some(Duration::from_secs(20)));
        let measured = measured(slowing(), &settings).await;
        assert_eq!((measured.is_steady, measured.warmup), (Some(false), Duration::from_secs(20)), "{rule:?}");
        let is_exact = rule != StopRule::Iterations(101) || measured.operations == 101;
        assert!(measured.operations > 50 && is_exact, "{rule:?}: {} operations", measured.operations);
    }
}

#[tokio::test(start_paused = true)]
async fn a_steady_target_is_measured_after_the_warm_up_and_ten_looks() {
    for (warmup, begins) in [(0, 10), (30, 30)] {
        let mut settings = settings(4, CLOSED, seconds(5));
        settings.stop.warmup = Duration::from_secs(warmup);
        settings.stop.steady_within = Some(Duration::from_mins(2));
        let measured = measured(Target::new(ten), &settings).await;
        assert_eq!((measured.is_steady, measured.warmup.as_secs()), (Some(true), begins));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_a_second_shows_in_an_open_loop_and_not_in_a_closed_one() {
    // Four clients do 400 a second, 390 come: who comes in the stall waits about a second, in it or in the queue behind it.
    let stalled = || Target { stall: Some((Duration::from_secs(10), Duration::from_secs(11))), ..Target::new(ten) };
    for is_poisson in [false, true] {
        let open = measured(stalled(), &settings(4, open(390.0, is_poisson), seconds(20))).await;
        assert!(open.response.quantile(0.99) >= Duration::from_secs(1), "{:?}", open.response.quantile(0.99));
        assert!(open.service.quantile(0.99) <= 11 * MS, "{:?}", open.service.quantile(0.99));
        assert!(open.late >= 380 && open.longest_queue >= 380, "{} late, {}", open.late, open.longest_queue);
    }
    let closed = measured(stalled(), &settings(4, CLOSED, seconds(20))).await;
    assert!(closed.response.quantile(0.99) <= 11 * MS, "the naive loop: {:?}", closed.response.quantile(0.99));
    assert_eq!((closed.late, closed.dropped), (0, 0));
}

#[test]
fn two_equal_arms_measure_the_same() {
    let varying: fn(&mut Random) -> Duration = |random| MS.mul_f64(1.0 + 20.0 * random.fraction());
    // Each on a runtime of its own, whose timers stand the same way to its milliseconds.
    let arm = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let settings = Settings { seed, ..settings(8, open(200.0, true), seconds(20)) };
        runtime.expect("a runtime").block_on(async { measured(Target::new(varying), &settings).await })
    };
    let intervals = |seed| arm(seed).response.median_interval().expect("enough");
    let overlap = |pair: &u64| {
        let ((a_low, a_high), (b_low, b_high)) = (intervals(2 * pair), intervals(2 * pair + 1));
        a_low <= b_high && b_low <= a_high
    };
    let same = (0..20).filter(overlap).count();
    assert!(same >= 19, "of 20 pairs of equal arms {same} have intervals that overlap");
}

#[tokio::test(start_paused = true)]
async fn iterations_are_exact() {
    for arrival in [CLOSED, Arrival::Closed { think: 5 * MS }, open(500.0, true), open(500.0, false)] {
        for clients in [1, 7, 200] {
            let mut settings = settings(clients, arrival, StopRule::Iterations(1001));
            let (target, outcome) = drive(Target::new(ten), &settings).await;
            let all = outcome.measured.expect("measured");
            assert_eq!(
                (all.operations, all.dropped, &all.ended),
                (1001, 0, &Ended::Iterations),
                "{arrival:?} {clients}"
            );
            assert_eq!(target.executed.load(Ordering::Relaxed), 1001);
            assert_eq!(all.series.iter().map(|second| second.operations).sum::<u64>(), 1001);
            settings.stop.warmup = Duration::from_secs(1);
            let (target, outcome) = drive(Target::new(ten), &settings).await;
            let all = outcome.measured.expect("measured");
            assert_eq!(all.operations, 1001);
            assert_eq!(all.tally.done, target.executed.load(Ordering::Relaxed));
            assert!(all.tally.done > 1001, "the warm-up is in the tally alone");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_interval_rule_ends_when_it_is_narrow_or_its_time_is_over() {
    let narrow = StopRule::Interval { percent: 2.0, at_most: Duration::from_mins(10) };
    let done = measured(Target::new(ten), &settings(2, CLOSED, narrow)).await;
    assert_eq!(done.ended, Ended::Interval);
    assert!(done.elapsed <= Duration::from_secs(2), "{:?}", done.elapsed);

    let wide: fn(&mut Random) -> Duration = |random| MS.mul_f64(1.0 + 2000.0 * random.fraction());
    let rule = StopRule::Interval { percent: 5.0, at_most: Duration::from_hours(1) };
    let done = measured(Target::new(wide), &settings(10, CLOSED, rule)).await;
    assert_eq!(done.ended, Ended::Interval);
    let (low, high) = done.response.median_interval().expect("enough");
    let median = done.response.quantile(0.5).as_secs_f64();
    assert!(high.as_secs_f64() <= median * 1.05 && low.as_secs_f64() >= median * 0.95, "{low:?}..{high:?}");
    assert!(done.elapsed > Duration::from_secs(10), "it takes about 1,500 operations: {:?}", done.elapsed);

    let never = StopRule::Interval { percent: 0.5, at_most: Duration::from_secs(20) };
    let done = measured(Target::new(wide), &settings(2, CLOSED, never)).await;
    assert_eq!(done.ended, Ended::Duration);
}

#[tokio::test(start_paused = true)]
async fn constant_arrivals_keep_their_distances_and_poisson_its_rate() {
    let (target, outcome) = drive(Target::new(ten), &settings(5, open(100.0, false), seconds(10))).await;
    let starts = target.starts.lock().expect("not poisoned").clone();
    assert_eq!(starts.len(), 999, "the first comes after one distance, none at the end itself");
    let gaps = starts.windows(2).map(|pair| pair[1].abs_diff(pair[0]));
    assert!(gaps.into_iter().all(|gap| (9 * MS..=11 * MS).contains(&gap)), "{starts:?}");
    assert_eq!(outcome.measured.expect("measured").elapsed, Duration::from_secs(10));
    let poisson = measured(Target::new(ten), &settings(50, open(100.0, true), seconds(100))).await;
    assert!((9_700..=10_300).contains(&poisson.operations), "three deviations of 100: {}", poisson.operations);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_begin_is_counted_not_forgotten() {
    // One client does 100 a second; 150 come.
    let all = measured(Target::new(ten), &settings(1, open(150.0, false), seconds(10))).await;
    let arrivals = 150 * 10 - 1;
    assert_eq!(all.operations + all.dropped, arrivals);
    assert!((990..=1000).contains(&all.operations), "{}", all.operations);
    assert!(all.longest_queue >= 490, "{}", all.longest_queue);
    let arrival = Arrival::Open { rate: 150.0, is_poisson: false, queue_max: 10 };
    let full = measured(Target::new(ten), &settings(1, arrival, seconds(10))).await;
    assert_eq!(full.operations + full.dropped, arrivals);
    assert_eq!(full.longest_queue, 10);
    let iterations = measured(Target::new(ten), &settings(1, arrival, StopRule::Iterations(1000))).await;
    assert_eq!(iterations.operations + iterations.dropped, 1000, "so many arrivals");
}

#[tokio::test(start_paused = true)]
async fn think_time_lowers_the_rate_and_is_no_part_of_the_response() {
    let all = measured(Target::new(ten), &settings(10, Arrival::Closed { think: 90 * MS }, seconds(60))).await;
    assert!((5_700..=6_300).contains(&all.operations), "10 clients, 100 ms each: {}", all.operations);
    assert!(all.response.max() <= 12 * MS, "{:?}", all.response.max());
}

#[tokio::test(start_paused = true)]
async fn errors_are_counted_by_class_and_not_as_operations() {
    let failure = Failure::new(Class::Code("40001".to_owned()), "serialize");
    let target = Target { failure: Some((600, failure)), ..Target::new(ten) };
    let all = measured(target, &settings(1, CLOSED, StopRule::Iterations(1000))).await;
    assert_eq!(all.operations, 600);
    let counted = all.errors.iter().map(|(class, counted)| (class.to_string(), counted.count, counted.example.clone()));
    assert_eq!(counted.collect::<Vec<_>>(), [("40001".to_owned(), 400, "serialize".to_owned())]);
    assert_eq!(all.tally, Tally { done: 600, failed: 400 });

    let failure = Failure::new(Class::Code("42P01".to_owned()), "no such table");
    let (_, outcome) =
        drive(Target { failure: Some((0, failure)), ..Target::new(ten) }, &settings(1, CLOSED, seconds(1))).await;
    assert_eq!(outcome.failure, Some(RunFailure::NothingDone("42P01: no such table".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_a_time_out_and_the_client_connects_again() {
    let mut settings = settings(1, CLOSED, seconds(10));
    settings.load.timeout = Duration::from_millis(500);
    let target = Target { stall: Some((Duration::from_secs(5), Duration::from_secs(6))), ..Target::new(ten) };
    let all = measured(target, &settings).await;
    assert_eq!(all.errors.get(&Class::TimeOut).map(|counted| counted.count), Some(2));
    assert!(all.operations > 890, "{}", all.operations);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_lost_ends_the_run_and_what_was_measured_is_kept() {
    let failure = Failure::new(Class::Lost, "the connection broke");
    let target = Target { failure: Some((500, failure)), ..Target::new(ten) };
    let (_, outcome) = drive(target, &settings(1, CLOSED, seconds(3600))).await;
    assert_eq!(outcome.failure, Some(RunFailure::Lost("nobody listens".to_owned())));
    let all = outcome.measured.expect("kept");
    assert_eq!(all.operations, 500);
    assert_eq!(all.errors[&Class::Lost].count, 1);
    assert!(all.errors[&Class::Refused].count >= 90, "tried again: {:?}", all.errors);
    assert!(all.elapsed < Duration::from_secs(20), "{:?}", all.elapsed);
}

#[tokio::test(start_paused = true)]
async fn a_verify_that_finds_something_fails_the_run() {
    let target = Target { faults: vec!["a row is missing".to_owned()], ..Target::new(ten) };
    let (_, outcome) = drive(target, &settings(1, CLOSED, seconds(1))).await;
    assert_eq!(outcome.failure, Some(RunFailure::Verify(vec!["a row is missing".to_owned()])));
    assert!(outcome.measured.is_some(), "what was measured is kept");
    let failure = Failure::usage("a table exists");
    let (target, outcome) =
        drive(Target { prepared: Err(failure.clone()), ..Target::new(ten) }, &settings(1, CLOSED, seconds(1))).await;
    assert_eq!(outcome.failure, Some(RunFailure::Target(failure)));
    assert_eq!(target.executed.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_the_run_at_once_and_keeps_what_was_measured() {
    let (interrupter, interrupt) = watch::channel(false);
    let slow: fn(&mut Random) -> Duration = |_| Duration::from_secs(3);
    let target = Arc::new(Target::new(slow));
    let settings = settings(2, CLOSED, seconds(3600));
    let stop = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        interrupter.send_replace(true);
    };
    let mut unwatched = |_: &Progress| {};
    let (outcome, ()) = tokio::join!(run(target.clone(), &settings, &interrupt, &mut unwatched), stop);
    assert_eq!(outcome.failure, Some(RunFailure::Interrupted));
    let all = outcome.measured.expect("kept");
    assert_eq!((all.operations, all.elapsed), (6, Duration::from_secs(10)));
    assert_eq!(all.tally, Tally { done: 6, failed: 2 }, "what was under way is of unknown outcome");
    assert_eq!(target.cleaned.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn the_series_has_each_second_once_and_the_stall_in_it() {
    let target = Target { stall: Some((Duration::from_secs(5), Duration::from_millis(6500))), ..Target::new(ten) };
    let all = measured(target, &settings(4, CLOSED, seconds(10))).await;
    assert!(all.series.windows(2).all(|pair| pair[0].second < pair[1].second), "{:?}", all.series);
    let of = |second: u64| all.series.iter().find(|s| s.second == second).map_or(0, |s| s.operations);
    assert!(of(4) >= 390 && of(5) <= 4 && of(6) <= 204 && of(7) >= 390, "{:?}", all.series);
    assert_eq!(all.series.iter().map(|second| second.operations).sum::<u64>(), all.operations);

    let sparse = measured(Target::new(ten), &settings(4, open(0.5, true), seconds(100))).await;
    assert!(sparse.series.windows(2).all(|pair| pair[0].second < pair[1].second), "{:?}", sparse.series);
    assert!(sparse.series.iter().all(|second| second.operations > 0), "seconds without operations are left out");
}

#[test]
fn threads_of_their_own_do_the_same_on_real_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let short: fn(&mut Random) -> Duration = |_| Duration::ZERO;
        for arrival in [CLOSED, open(20_000.0, true)] {
            let mut settings = settings(10, arrival, StopRule::Iterations(2000));
            settings.time = Time::Real { threads: 3 };
            let all = measured(Target::new(short), &settings).await;
            assert_eq!(all.operations + all.dropped, 2000);
        }
    });
}

fn in_sets(service: fn(&mut Random) -> Duration) -> Target {
    Target { sets: Some(Mutex::default()), ..Target::new(service) }
}

#[tokio::test(start_paused = true)]
async fn in_sets_each_client_does_one_operation_and_waits_for_all() {
    let by_chance = |random: &mut Random| MS * (1 + random.below(50) as u32);
    let (target, outcome) = drive(in_sets(by_chance), &settings(7, CLOSED, StopRule::Iterations(15))).await;
    assert_eq!(outcome.failure, None);
    let measured = outcome.measured.expect("measured");
    let sets = measured.sets.as_ref().expect("sets");
    assert_eq!((sets.count(), measured.operations), (3, 21), "a set is never cut");
    let (begun, ended, of) = target.sets.as_ref().expect("sets").lock().expect("not poisoned").clone();
    assert_eq!((begun, ended), (3, 3));
    assert_eq!(of, [[1; 7], [2; 7], [3; 7]].concat());
    // A set takes as long as its slowest operation; what lies between sets is in no time.
    assert!(sets.time() >= measured.service.max() && sets.time() <= 3 * 51 * MS, "{sets:?}");
    assert!(measured.service.mean() < sets.time() && measured.elapsed > 400 * MS, "{measured:?}");
    assert!((measured.throughput() * sets.time().as_secs_f64() - 21.0).abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn sets_of_the_warm_up_do_not_count() {
    let mut settings = settings(2, CLOSED, StopRule::Duration(500 * MS));
    settings.stop.warmup = 500 * MS;
    let (target, outcome) = drive(in_sets(|_| 50 * MS), &settings).await;
    let measured = outcome.measured.expect("measured");
    let sets = measured.sets.expect("sets");
    let (begun, ..) = target.sets.as_ref().expect("sets").lock().expect("not poisoned").clone();
    assert_eq!((begun, sets.count(), measured.operations), (5, 2, 4), "one begins each 200 ms: at 600 and at 800");
    assert_eq!(measured.attempts, Attempts { refusals: 4, retries: 8, ..Attempts::default() });
    assert_eq!((sets.time(), measured.ended), (100 * MS, Ended::Duration));
}

#[tokio::test(start_paused = true)]
async fn what_fails_between_sets_ends_the_run() {
    let failure = Failure::new(Class::Other, "no way back");
    let target = Target { failure: Some((100, failure)), ..in_sets(|_| MS) };
    let (_, outcome) = drive(target, &settings(3, CLOSED, seconds(100))).await;
    assert_eq!(outcome.failure, Some(RunFailure::Lost("no way back".to_owned())));
}

/// One that joins, says what time it is, and nothing else.
async fn silent_agent(place: std::net::SocketAddr, key: &str) {
    use crate::agents::wire::{self, FromAgent, PROTOCOL, ToAgent};
    let mut stream = tokio::net::TcpStream::connect(place).await.expect("somebody conducts");
    while let Ok(message) = wire::read(&mut stream, wire::FRIEND_BYTES_MAX).await {
        let answer = match message {
            ToAgent::Challenge { nonce, .. } => FromAgent::Hello {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                name: "anna\u{7}".to_owned(),
                proof: wire::proof(key, &nonce),
            },
            ToAgent::Ping => FromAgent::Pong { at: 1_000, wall: 0 },
            _ => continue,
        };
        wire::write(&mut stream, &answer).await.expect("it is listened to");
    }
}

#[tokio::test]
async fn an_agent_that_says_nothing_is_lost() {
    use crate::agents::Gathering;
    use crate::agents::wire::Task;
    let (_keep, interrupt) = watch::channel(false);
    let gathering = Gathering::listen("127.0.0.1:0".parse().expect("an address"), "a key").await.expect("a port");
    tokio::spawn(silent_agent(gathering.place(), "a key"));
    let agents = gathering.gather(1, &interrupt, &mut |joined| assert_eq!(joined.name, "anna")).await.expect("one");
    let task = Task {
        text: String::new(),
        files: std::collections::BTreeMap::new(),
        cell: 0,
        seed: 1,
        clients: 0..0,
        target: String::new(),
        handover: serde_json::Value::Null,
    };
    tokio::time::pause();
    let workload = Arc::new(Target::new(|_| MS));
    let crew = Some(Crew { agents: &agents, task: &task });
    let settings = settings(2, Arrival::Closed { think: MS }, StopRule::Iterations(5));
    let outcome = run_by(crew, workload.clone(), &settings, &interrupt, &mut |_| {}).await;
    let Some(RunFailure::Target(failure)) = outcome.failure else { panic!("{:?}", outcome.failure) };
    assert_eq!(failure, Failure::new(Class::Lost, "agent 1 (anna) has said nothing for 30s"));
    assert_eq!(workload.cleaned.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_ends_the_run_and_what_failed_first_is_told() {
    let refused = Failure { is_broken: false, ..Failure::new(Class::Refused, "nobody listens") };
    for (failure, told) in
        [(None, "the server has ended"), (Some((8, refused)), "refused: nobody listens; then the server has ended")]
    {
        let target = Target { gone_after: Some(10), failure, ..in_sets(ten) };
        let (target, outcome) = drive(target, &settings(5, CLOSED, StopRule::Iterations(100))).await;
        assert_eq!(outcome.failure, Some(RunFailure::Lost(told.to_owned())));
        let elapsed = target.begin.elapsed();
        assert!(elapsed < Duration::from_secs(5), "nobody waits for what can't come: {elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_a_set_comes_before_what_verify_finds() {
    let failure = Some((3, Failure { is_broken: false, ..Failure::new(Class::Refused, "nobody listens") }));
    let faults = vec!["a row is missing".to_owned()];
    let target = Target { failure, faults, gone_after: Some(u64::MAX), ..in_sets(ten) };
    let outcome = drive(target, &settings(5, CLOSED, StopRule::Iterations(5))).await.1;
    let told = vec!["refused: nobody listens; then a row is missing".to_owned()];
    assert_eq!(outcome.failure, Some(RunFailure::Verify(told)));
}

#[tokio::test(start_paused = true)]
async fn each_second_is_told_once_those_of_a_stall_too() {
    let mut settings = settings(2, CLOSED, seconds(10));
    settings.stop.warmup = Duration::from_secs(2);
    let target = Target { stall: Some((Duration::from_secs(5), Duration::from_secs(8))), ..Target::new(ten) };
    let (_keep, interrupt) = watch::channel(false);
    let mut told = Vec::new();
    let outcome = run(Arc::new(target), &settings, &interrupt, &mut |at| told.extend_from_slice(&at.seconds)).await;
    let series = outcome.measured.expect("measured").series;
    let numbers: Vec<u64> = told.iter().map(|second| second.second).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert!(numbers.len() >= 8, "{numbers:?}");
    for second in told {
        let kept = series.iter().find(|kept| kept.second == second.second).copied();
        assert_eq!(second, kept.unwrap_or(Second { second: second.second, ..Second::default() }));
        assert_eq!(second.operations == 0, matches!(second.second, 4 | 5), "{second:?}");
    }
}
