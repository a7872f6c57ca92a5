//! Whether a run has become steady: over its last seconds neither the rate of operations nor their mean response time has a trend.
//!
//! The measure of a trend is that of Mann and Kendall: how many pairs of values rise, less how many fall. It asks nothing of how the
//! values scatter. (Mann, "Nonparametric tests against trend", Econometrica 13, 1945; Kendall, "Rank Correlation Methods", 1948.)
//!
//! *Caveats.* Ten seconds don't show what changes over minutes, nor a target that does something each half minute. A target that does
//! fewer than one operation in some second is not found steady.

use std::collections::VecDeque;
use std::time::Duration;

/// How many looks, a second each, are held against one another.
const LOOKS: usize = 10;
/// How many standard deviations a trend may be away from none. Less than a test takes by custom: here it is the steadiness that is to be
/// shown, and one look too many costs a second. Without a trend, two of three looks are within.
const DEVIATIONS_MAX: f64 = 1.0;

/// What was seen of a warm-up.
#[derive(Debug, Default)]
pub(super) struct Warming {
    /// The last looks: operations a second, and their mean response time in seconds.
    looks: VecDeque<[f64; 2]>,
}

/// What was done since the last look, on one thread or on all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) operations: u64,
    /// Of all of them.
    pub(super) responses: Duration,
}

impl Warming {
    /// What was done in the `time` since the last look.
    pub(super) fn look(&mut self, done: Done, time: Duration) {
        if done.operations == 0 || time.is_zero() {
            return self.looks.clear();
        }
        let count = done.operations as f64;
        self.looks.push_back([count / time.as_secs_f64(), done.responses.as_secs_f64() / count]);
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
    }

    /// Whether neither has a trend.
    pub(super) fn is_steady(&self) -> bool {
        let is_level = |which: usize| deviations(self.looks.iter().map(|look| look[which])) <= DEVIATIONS_MAX;
        self.looks.len() == LOOKS && is_level(0) && is_level(1)
    }
}

/// By how many standard deviations the values rise or fall more than by chance.
fn deviations(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let pairs =
        values.iter().enumerate().flat_map(|(place, one)| values[place + 1..].iter().map(move |later| (one, later)));
    let sum: i64 = pairs.map(|(one, later)| i64::from(later > one) - i64::from(later < one)).sum();
    let count = values.len() as f64;
    let variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
    (sum.unsigned_abs() as f64 - 1.0).max(0.0) / variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The look, from the tenth, at which a series is found steady.
    fn found(value: impl Fn(usize) -> f64) -> Option<usize> {
        let mut warming = Warming::default();
        (0..200).find(|second| {
            let response = Duration::from_secs_f64(value(*second) / 1e3);
            warming.look(Done { operations: 100, responses: 100 * response }, Duration::from_secs(1));
            warming.is_steady()
        })
    }

    #[test]
    fn what_rises_or_falls_is_not_steady_and_what_stays_is() {
        assert_eq!(found(|_| 5.0), Some(LOOKS - 1), "ten looks are needed");
        assert_eq!(found(|second| 5.0 + second as f64), None);
        assert_eq!(found(|second| 500.0 - second as f64), None);
        assert!(found(|second| 5.0 + 50.0 / (1.0 + second as f64)).is_none(), "it still falls");
        let settles = found(|second| if second < 60 { 70.0 - second as f64 } else { 10.0 });
        assert!(settles.is_some_and(|second| (65..70).contains(&second)), "{settles:?}");
    }

    #[test]
    fn noise_hides_no_trend_for_long_and_is_none() {
        let (mut looks, mut early) = (0, 0);
        for seed in 0..200 {
            let noise: Vec<f64> = {
                let mut random = Random::derived(seed, &[1]);
                (0..200).map(|_| 1.0 + 0.1 * (random.fraction() - 0.5)).collect()
            };
            looks += found(|second| noise[second]).expect("it is steady") - (LOOKS - 1);
            // Halves each 7 seconds, towards 10.
            let settling = |second: usize| noise[second] * (10.0 + 90.0 * 0.5_f64.powf(second as f64 / 7.0));
            let at = found(settling).expect("it becomes steady");
            early += usize::from(settling(at) / noise[at] > 10.0 * 1.1);
        }
        assert!(looks <= 2 * 200, "{looks} looks too many, in 200 runs that were steady");
        assert!(early <= 10, "{early} of 200 runs were found steady with a tenth still to go");
    }

    #[test]
    fn a_second_without_an_operation_begins_again() {
        let mut warming = Warming::default();
        for second in 0..LOOKS + 5 {
            let operations = u64::from(second != 4);
            warming.look(Done { operations, responses: Duration::from_millis(operations) }, Duration::from_secs(1));
            assert_eq!(warming.is_steady(), second == LOOKS + 4, "{second}");
        }
    }
}
