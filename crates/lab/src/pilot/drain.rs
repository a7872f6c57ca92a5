//! How a server works off a set of syncs that come at once, read from when they ended.
//!
//! ```text
//! ended  n |                        ____
//!          |                   ____/        the last w: fewer and fewer workers have something to do
//!    n - w |              _../
//!          |          __./                  all workers are busy: the slope is what they do in a second,
//!          |      __./                      and w / slope is what a sync takes of a worker, a single time
//!        w |  __./
//!          | /                              the first w: all begin
//!          +---------------------------- time since the first began
//! ```

use crate::harness::Histogram;

/// How often there must be as many clients as workers: the first and the last are no part of the slope.
pub(super) const CLIENTS_PER_WORKER: u64 = 3;

/// What a run's sets tell of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drain {
    /// Syncs a second while all workers are busy.
    pub(super) rate: f64,
    /// When as many have ended as there are workers, in seconds.
    pub(super) first: f64,
    workers: f64,
}

impl Drain {
    /// From the times when the syncs of all sets ended, since their set's first start; none: too few clients, or they all ended at once.
    pub(super) fn of(ends: &Histogram, clients: u64, workers: u64) -> Option<Drain> {
        if ends.is_empty() || clients < CLIENTS_PER_WORKER * workers {
            return None;
        }
        let (all, workers) = (clients as f64, workers as f64);
        let at = |ended: f64| ends.quantile(ended / all).as_secs_f64();
        let (first, last) = (at(workers), at(all - workers));
        (last > first).then(|| Drain { rate: (all - 2.0 * workers) / (last - first), first, workers })
    }

    /// When the last of so many has ended that come at once, in seconds: sum of single times, by workers.
    pub(super) fn all_ended(&self, clients: f64) -> f64 {
        self.first + (clients - self.workers) / self.rate
    }

    /// When one of them has ended, on average.
    pub(super) fn average(&self, clients: f64) -> f64 {
        let (early, later) = (self.workers, clients - self.workers);
        (early * self.first + later * (self.first + later / self.rate / 2.0)) / clients
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// When clients have ended that are worked off at this rate.
    fn ends(clients: u64, workers: u64, single: Duration) -> Histogram {
        let mut histogram = Histogram::default();
        for client in 0..clients {
            histogram.record(single * (client / workers + 1) as u32);
        }
        histogram
    }

    const SINGLE: Duration = Duration::from_millis(20);

    fn near(found: f64, expected: f64, within: f64) -> bool {
        (found / expected - 1.0).abs() <= within
    }

    #[test]
    fn a_few_tell_of_many() {
        for workers in [1, 2, 5] {
            let few = Drain::of(&ends(60, workers, SINGLE), 60, workers).expect("enough clients");
            assert!(near(few.rate, workers as f64 / 0.02, 0.01), "{few:?}");
            let many = ends(5_000, workers, SINGLE);
            assert!(near(few.all_ended(5_000.0), many.max().as_secs_f64(), 0.01), "{few:?}");
            assert!(near(few.average(5_000.0), many.mean().as_secs_f64(), 0.01), "{few:?}");
        }
    }

    #[test]
    fn begin_and_end_of_a_set_are_no_part_of_the_slope() {
        // All take a second more until the first is done, and the last four crawl.
        let mut slow = Histogram::default();
        for client in 0..20u32 {
            let crawl = client.saturating_sub(15) * 200;
            slow.record(Duration::from_millis(u64::from(1_000 + 10 * client + crawl)));
        }
        let drain = Drain::of(&slow, 20, 4).expect("enough clients");
        assert!(near(drain.rate, 100.0, 0.02) && near(drain.first, 1.03, 0.01), "{drain:?}");
    }

    #[test]
    fn too_few_tell_nothing() {
        assert_eq!(Drain::of(&ends(20, 7, SINGLE), 20, 7), None, "not three for each worker");
        assert_eq!(Drain::of(&Histogram::default(), 20, 2), None);
    }
}
