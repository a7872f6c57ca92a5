//! A database in virtual time: what a sync takes depends on how many are at work.

use super::*;

/// What a sync of so many rows takes, in seconds, with so many at work.
type Database = fn(rows: u64, busy: usize) -> f64;

/// Two processors: whoever is beyond two waits for one.
fn processors(rows: u64, busy: usize) -> f64 {
    rows as f64 * 1e-5 * (busy as f64 / 2.0).max(1.0)
}

/// A disk that writes for all who wait, four milliseconds each time, and processors.
fn disk(rows: u64, busy: usize) -> f64 {
    0.004 + processors(rows, busy)
}

/// A lock that all want: one after the other.
fn lock(rows: u64, busy: usize) -> f64 {
    rows as f64 * 1e-5 * busy as f64
}

/// A limit at work for some time, with as many clients as there are places.
struct Run {
    limit: Limit,
    now: Instant,
    /// Numbers in the last minute, and syncs that were done.
    seen: Vec<usize>,
    seed: u64,
}

impl Run {
    fn new(most: usize) -> Run {
        Run { limit: Limit::new(most), now: Instant::now(), seen: Vec::new(), seed: 1 }
    }

    /// A number between 0 and 1.
    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Works; gives rows a second.
    fn work(&mut self, time: Duration, database: Database, sizes: &[u64]) -> f64 {
        let (begun, mut rows_done) = (self.now, 0.0);
        self.seen.clear();
        while self.now - begun < time {
            let busy = self.limit.current();
            let rows = sizes[(self.random() * sizes.len() as f64) as usize];
            let took = database(rows, busy) * (0.7 + 0.6 * self.random());
            // As many as are at work end within that time.
            self.now += Duration::from_secs_f64(took / busy as f64);
            let done = Done { class: Class::of(Kind::Download, rows), took: Duration::from_secs_f64(took), busy };
            self.limit.done(self.now, done);
            rows_done += rows as f64;
            self.seen.push(self.limit.current());
        }
        rows_done / (self.now - begun).as_secs_f64()
    }

    fn median(&self) -> usize {
        let mut seen = self.seen.clone();
        seen.sort_unstable();
        seen[seen.len() / 2]
    }
}

/// The best rate of all fixed numbers.
fn best(database: Database, sizes: &[u64], most: usize) -> f64 {
    let mean = |busy: usize| sizes.iter().map(|rows| database(*rows, busy)).sum::<f64>() / sizes.len() as f64;
    let rows = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
    (1..=most).map(|busy| rows * busy as f64 / mean(busy)).fold(0.0, f64::max)
}

#[test]
fn the_rate_is_that_of_the_best_number_and_the_queue_short() {
    for (database, numbers) in [(processors as Database, 2..=8), (lock, 1..=8), (disk, 2..=32)] {
        for sizes in [&[1_000][..], &[10], &[1, 1_000, 100_000]] {
            let mut run = Run::new(32);
            run.work(Duration::from_secs(20), database, sizes);
            let rate = run.work(Duration::from_secs(100), database, sizes);
            let best = best(database, sizes, 32);
            let least = if *sizes == [10] && numbers.end() == &32 { 0.3 } else { 0.9 };
            assert!(rate > least * best, "{sizes:?}: {rate:.0} rows a second of {best:.0} with {}", run.median());
            assert!(numbers.contains(&run.median()), "{sizes:?}: {} at once, expected {numbers:?}", run.median());
        }
    }
}

#[test]
fn a_disk_that_writes_for_all_is_given_many() {
    let mut run = Run::new(32);
    run.work(Duration::from_mins(1), disk, &[10]);
    assert!(run.median() > 10, "{}", run.median());
    run.limit.set_most(5);
    run.work(Duration::from_mins(1), disk, &[10]);
    assert!(run.seen.iter().all(|number| *number <= 5) && run.median() == 5, "{}", run.median());
}

#[test]
fn a_database_that_slows_down_is_given_less_and_recovers() {
    let slow: Database = |rows, busy| 10.0 * processors(rows, busy);
    let mut run = Run::new(32);
    let before = run.work(Duration::from_mins(1), processors, &[1_000]);
    run.work(Duration::from_secs(30), slow, &[1_000]);
    assert!(*run.seen.last().expect("some") <= 4, "{:?}", run.seen.last());
    run.work(Duration::from_secs(10), processors, &[1_000]);
    let after = run.work(Duration::from_mins(1), processors, &[1_000]);
    assert!(after > 0.95 * before, "{after:.0} rows a second, {before:.0} before");
    // One that stays slow is known as such in the end.
    run.work(Duration::from_mins(4), slow, &[1_000]);
    let rate = run.work(Duration::from_mins(2), slow, &[1_000]);
    assert!(rate > 0.9 * best(slow, &[1_000], 32), "{rate:.0}");
}

#[test]
fn a_first_measurement_under_load_does_not_mislead_for_ever() {
    let mut run = Run::new(32);
    run.limit.current = 32;
    run.work(Duration::from_mins(10), lock, &[1_000]);
    run.work(Duration::from_mins(1), lock, &[1_000]);
    assert!(run.median() <= 8, "{}", run.median());
}

#[test]
fn places_that_are_not_taken_do_not_become_more() {
    let mut limit = Limit::new(32);
    let now = Instant::now();
    for _ in 0..1_000 {
        let done = Done { class: Class::of(Kind::Upload, 1), took: Duration::from_millis(1), busy: 2 };
        limit.done(now, done);
    }
    assert_eq!(limit.current(), BEGIN);
}

#[test]
fn the_interval_is_that_of_the_best_times_of_such_syncs() {
    let mut run = Run::new(4);
    assert!(run.limit.pace().is_none());
    run.work(Duration::from_secs(20), processors, &[100]);
    let interval = |run: &Run| run.limit.pace().expect("known").interval.as_secs_f64();
    // A thousand rows take ten milliseconds, and there are two processors.
    assert!((0.3e-3..0.6e-3).contains(&interval(&run)), "{}", interval(&run));
    run.work(Duration::from_secs(5), |rows, busy| 5.0 * processors(rows, busy), &[100]);
    assert!((0.3e-3..0.6e-3).contains(&interval(&run)), "worse times are no better: {}", interval(&run));
    run.work(Duration::from_secs(20), processors, &[10_000]);
    assert!((30e-3..60e-3).contains(&interval(&run)), "other syncs: {}", interval(&run));
}

#[test]
fn the_pace_of_late_is_that_at_which_syncs_end() {
    let (mut lately, mut now) = (Lately::default(), Instant::now());
    let mut end = |every: Duration, count: u32| {
        for _ in 0..count {
            now += every;
            lately.add(now);
        }
        lately.interval()
    };
    let ms = Duration::from_millis;
    assert_eq!(end(ms(10), 200), None, "not for long enough");
    assert_eq!(end(ms(10), 200), Some(ms(10)));
    assert_eq!(end(ms(40), 200), Some(ms(40)), "what was before is forgotten");
    assert_eq!(end(ms(3_000), 1), None, "nothing ended for a while: that is no pace");
    assert_eq!(end(ms(5), 1_000), Some(ms(5)));
}

#[test]
fn a_pace_is_sure_when_such_syncs_were_seen_for_some_time() {
    let is_sure = |run: &Run| run.limit.pace().is_some_and(|pace| pace.is_sure);
    let mut run = Run::new(1);
    run.work(Duration::from_millis(4_900), processors, &[100]);
    assert!(run.limit.pace().is_some() && !is_sure(&run));
    run.work(Duration::from_millis(300), processors, &[100]);
    assert!(is_sure(&run));
    run.work(Duration::from_secs(4), processors, &[1_000]);
    assert!(!is_sure(&run), "other syncs");
    run.work(Duration::from_secs(2), processors, &[1_000]);
    assert!(is_sure(&run));
    run.work(Duration::from_mins(3), processors, &[100]);
    assert!(is_sure(&run));
    run.work(Duration::from_secs(1), processors, &[1_000]);
    assert!(!is_sure(&run), "what such syncs took was forgotten");
}
