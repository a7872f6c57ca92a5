//! What was measured: a thread's own record, second by second, so that clients never wait for one another.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::failure::{Class, Failure};
use super::observe::AgentsUse;
use super::schedule::Waits;
use super::steady::Done;
use super::{Attempts, Tally, Traffic, Work};
use crate::agents::wire::{self, Recorded};

/// Times in nanoseconds, to three digits, of any length.
#[derive(Clone, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Default for Histogram {
    fn default() -> Self {
        // Three digits are within what the crate takes; it grows with the values.
        Histogram(hdrhistogram::Histogram::new(3).expect("three digits are possible"))
    }
}

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, time: Duration) {
        self.record_many(time.as_nanos().try_into().unwrap_or(u64::MAX), 1);
    }

    /// Counts a time in nanoseconds so often.
    pub fn record_many(&mut self, nanos: u64, count: u64) {
        // It grows to any value; the highest is 2^62 ns, above a hundred years.
        let counted = self.0.record_n(nanos.min(1 << 62), count);
        debug_assert!(counted.is_ok(), "{counted:?}");
    }

    /// Counts all that another has counted.
    pub fn add(&mut self, other: &Histogram) {
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok(), "{added:?}");
    }

    /// Of these times in nanoseconds, each with how often.
    pub(crate) fn of(buckets: &[(u64, u64)]) -> Histogram {
        let mut histogram = Histogram::default();
        for (nanos, count) in buckets {
            histogram.record_many(*nanos, *count);
        }
        histogram
    }

    /// How many times it has counted.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether it has counted nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The time within which this part of all were done, from 0 to 1.
    pub fn quantile(&self, part: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(part))
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// The arithmetic mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// Each time that occurred, to three digits, in nanoseconds, with how often.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }

    /// Between which the median of what was sampled lies, with 95 % of confidence, by order statistics; none of fewer than 100.
    ///
    /// *Caveats.* The formula takes the samples for independent. Neighbours in time are not quite, so the true interval is wider.
    pub fn median_interval(&self) -> Option<(Duration, Duration)> {
        let count = self.len() as f64;
        let away = 0.98 / count.sqrt();
        (count >= 100.0).then(|| (self.quantile(0.5 - away), self.quantile(0.5 + away + 1.0 / count)))
    }
}

/// Failures of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// How many.
    pub count: u64,
    /// What the first said.
    pub example: String,
}

/// One second's operations on one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    /// From the beginning of measuring, by the end of the operations.
    pub(super) second: u64,
    pub(super) service: Histogram,
    pub(super) response: Histogram,
    pub(super) errors: BTreeMap<Class, Counted>,
    pub(super) attempts: Attempts,
    /// The end of the last operation.
    pub(super) last: Option<Instant>,
}

/// What one thread's clients did.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    current: Interval,
    full: Vec<Interval>,
    pub(super) tally: Tally,
    /// In the warm-up, since it was looked at last.
    pub(super) warming: Done,
    /// When an operation succeeded the last time.
    pub(super) last_success: Option<Instant>,
    /// What a client that can't connect was told, until one succeeds.
    pub(super) unreachable: Option<String>,
    /// How a client panicked.
    pub(super) defect: Option<String>,
    /// What an agent's part of an open loop could not begin in time; of clients here the schedule knows.
    pub(super) waits: Waits,
    /// What an agent took.
    pub(super) used: Option<AgentsUse>,
}

/// An operation's times.
pub(super) struct Times {
    pub(super) intended: Instant,
    pub(super) started: Instant,
    pub(super) ended: Instant,
}

impl Recorder {
    /// `measured_from`: none in the warm-up.
    pub(super) fn record(&mut self, times: &Times, measured_from: Option<Instant>, result: &Result<Attempts, Failure>) {
        match result {
            Ok(_) => {
                self.tally.done += 1;
                self.last_success = Some(times.ended);
                self.unreachable = None;
            }
            Err(_) => self.tally.failed += 1,
        }
        let Some(from) = measured_from else {
            if result.is_ok() {
                self.warming.operations += 1;
                self.warming.responses += times.ended.saturating_duration_since(times.intended);
            }
            return;
        };
        self.turn(from, times.ended);
        self.current.last = Some(times.ended);
        match result {
            Ok(attempts) => {
                self.current.attempts += *attempts;
                self.current.service.record(times.ended.saturating_duration_since(times.started));
                self.current.response.record(times.ended.saturating_duration_since(times.intended));
            }
            Err(failure) => self.current.count(failure),
        }
    }

    /// A client that could not connect again; its operations wait.
    pub(super) fn record_unreachable(&mut self, at: Instant, measured_from: Option<Instant>, failure: &Failure) {
        self.unreachable = Some(failure.detail.clone());
        if let Some(from) = measured_from.filter(|from| at >= *from) {
            self.turn(from, at);
            self.current.count(failure);
        }
    }

    /// An operation that was given up.
    pub(super) fn record_given_up(&mut self) {
        self.tally.failed += 1;
    }

    /// Takes in what an agent has recorded, whose clock `ours` converts.
    pub(super) fn take_in(&mut self, recorded: Recorded, ours: impl Fn(u64) -> Instant) {
        let Recorded { seconds, tally: [done, failed], last_success, unreachable, defect } = recorded;
        self.full.extend(seconds.into_iter().map(|second| Interval::from_wire(second, &ours)));
        self.tally = Tally { done, failed };
        self.last_success = last_success.map(ours).or(self.last_success);
        self.unreachable = unreachable;
        self.defect = defect.or_else(|| self.defect.take());
    }

    /// What an agent has recorded since the last time, by its own clock.
    pub(super) fn give_out(&mut self, own: impl Fn(Instant) -> u64) -> Recorded {
        Recorded {
            seconds: self.drain().into_iter().map(|interval| interval.to_wire(&own)).collect(),
            tally: [self.tally.done, self.tally.failed],
            last_success: self.last_success.map(own),
            unreachable: self.unreachable.clone(),
            defect: self.defect.clone(),
        }
    }

    /// Takes out what has been recorded since the last time.
    pub(super) fn drain(&mut self) -> Vec<Interval> {
        if !self.current.is_empty() {
            let next = Interval { second: self.current.second, ..Interval::default() };
            self.full.push(std::mem::replace(&mut self.current, next));
        }
        std::mem::take(&mut self.full)
    }

    fn turn(&mut self, from: Instant, now: Instant) {
        let second = now.saturating_duration_since(from).as_secs();
        if second != self.current.second {
            let next = Interval { second, ..Interval::default() };
            let over = std::mem::replace(&mut self.current, next);
            if !over.is_empty() {
                self.full.push(over);
            }
        }
    }
}

impl Interval {
    fn from_wire(second: wire::Second, ours: impl Fn(u64) -> Instant) -> Interval {
        let wire::Second { number, service, response, errors, attempts: [refusals, retries], traffic, work, last } =
            second;
        let [sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses] = traffic;
        let traffic = Traffic { sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses };
        let [queries, rows_read, updates, deletes, inserts] = work;
        let work = Work { queries, rows_read, updates, deletes, inserts };
        let counted = |(class, count, example): (String, u64, String)| (Class::of(&class), Counted { count, example });
        Interval {
            second: number,
            service: Histogram::of(&service),
            response: Histogram::of(&response),
            errors: errors.into_iter().map(counted).collect(),
            attempts: Attempts { refusals, retries, traffic, work },
            last: last.map(ours),
        }
    }

    fn to_wire(&self, own: impl Fn(Instant) -> u64) -> wire::Second {
        let Attempts { refusals, retries, traffic, work } = self.attempts;
        let Work { queries, rows_read, updates, deletes, inserts } = work;
        let Traffic { sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses } = traffic;
        let errors = self.errors.iter();
        wire::Second {
            number: self.second,
            service: self.service.buckets().collect(),
            response: self.response.buckets().collect(),
            errors: errors.map(|(class, of)| (class.to_string(), of.count, of.example.clone())).collect(),
            attempts: [refusals, retries],
            traffic: [sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses],
            work: [queries, rows_read, updates, deletes, inserts],
            last: self.last.map(own),
        }
    }

    fn is_empty(&self) -> bool {
        self.service.is_empty() && self.errors.is_empty()
    }

    fn count(&mut self, failure: &Failure) {
        let new = || Counted { count: 0, example: failure.detail.clone() };
        self.errors.entry(failure.class.clone()).or_insert_with(new).count += 1;
    }
}
