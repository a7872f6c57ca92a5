//! How fast an answer that is sent as it comes must be taken, while others wait for a place to execute.
//!
//! A query keeps its place until its client has taken all rows but the last few. Whoever takes them more slowly than the least pace is given up
//! once others wait. Only time in which rows wait for the client counts, so that a slow query is no slow client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Over how much time of waiting a client's pace is judged, at most and at least.
const WINDOW: Duration = Duration::from_secs(5);
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Over how much it is where whoever waits for a place waits so long: a slow client is told from others before they have waited in vain.
pub(crate) fn window(patience: Duration) -> Duration {
    (patience / 2).clamp(WINDOW_MIN, WINDOW)
}

/// The least pace, and who waits.
#[derive(Clone, Debug)]
pub(crate) struct Least {
    /// Bytes a second, before they are compressed; 0: whatever they take.
    pub(crate) bytes_per_s: u64,
    /// Executions that wait for a place.
    pub(crate) others: Arc<AtomicUsize>,
    /// Over how much time of waiting it is judged ([`window`]).
    pub(crate) window: Duration,
}

/// Bytes that a client has taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken(Arc<AtomicU64>);

impl Taken {
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The pace of one client.
#[derive(Debug)]
pub(crate) struct Pace {
    least: Least,
    taken: Taken,
    /// How long it was waited for in this window, and what it had taken before.
    waited: Duration,
    before: u64,
    /// By the last whole window.
    is_slow: bool,
}

impl Pace {
    pub(crate) fn new(least: Least, taken: Taken) -> Pace {
        Pace { least, taken, waited: Duration::ZERO, before: 0, is_slow: false }
    }

    pub(crate) fn least_bytes_per_s(&self) -> u64 {
        self.least.bytes_per_s
    }

    /// After it was waited for so much longer: whether it is to be waited for no more.
    pub(crate) fn is_hopeless(&mut self, waited: Duration) -> bool {
        self.waited += waited;
        if self.waited >= self.least.window {
            let taken = self.taken.0.load(Ordering::Relaxed);
            let least = self.least.bytes_per_s as f64 * self.waited.as_secs_f64();
            self.is_slow = ((taken - self.before) as f64) < least;
            (self.before, self.waited) = (taken, Duration::ZERO);
        }
        self.is_slow && self.least.others.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_too_little_is_given_up_once_others_wait() {
        let (others, taken) = (Arc::new(AtomicUsize::new(0)), Taken::default());
        let least = Least { bytes_per_s: 100, others: Arc::clone(&others), window: WINDOW };
        let mut pace = Pace::new(least, taken.clone());
        let mut wait = |bytes: usize, waited: Duration| {
            taken.add(bytes);
            pace.is_hopeless(waited)
        };
        assert!(!wait(499, WINDOW), "nobody else waits");
        others.store(1, Ordering::Relaxed);
        assert!(wait(0, WINDOW / 5), "it was too slow");
        assert!(!wait(500, WINDOW * 4 / 5), "it has mended its ways");
        assert!(!wait(0, WINDOW / 2) && wait(249, WINDOW / 2));
        let mut any = Pace::new(Least { bytes_per_s: 0, others, window: WINDOW }, Taken::default());
        assert!(!any.is_hopeless(WINDOW));
    }

    #[test]
    fn who_waits_less_has_slow_clients_found_out_sooner() {
        for (patience_ms, window_ms) in [(10, 1_000), (3_000, 1_500), (10_000, 5_000), (60_000, 5_000)] {
            assert_eq!(window(Duration::from_millis(patience_ms)), Duration::from_millis(window_ms));
        }
        let others = Arc::new(AtomicUsize::new(1));
        let window = window(Duration::from_secs(2));
        let mut pace = Pace::new(Least { bytes_per_s: 100, others, window }, Taken::default());
        assert!(!pace.is_hopeless(window / 2) && pace.is_hopeless(window / 2));
    }
}
