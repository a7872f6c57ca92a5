//! A cell's runs put together: rates with the interval of their mean, times from all runs' histograms added up.

use std::time::Duration;

use super::read::{Campaign, RunRow};
use super::student;
use crate::error::Error;
use crate::harness::{Histogram, Traffic};

/// A mean over runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of its 95 % interval, by Student's t; none of fewer than two runs.
    pub half: Option<f64>,
}

impl Estimate {
    /// Of these.
    pub fn of(values: &[f64]) -> Estimate {
        Estimate::with_chance(values, 0.05)
    }

    /// Of these, with the interval that the true mean is outside of with this chance.
    pub(super) fn with_chance(values: &[f64], chance: f64) -> Estimate {
        let count = values.len() as f64;
        if values.is_empty() {
            return Estimate::default();
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let half = (values.len() > 1)
            .then(|| student::two_sided(chance, values.len() - 1) * (squares / (count - 1.0) / count).sqrt());
        Estimate { mean, half }
    }
}

/// A cell's runs put together.
#[derive(Clone, Debug)]
pub struct CellSummary {
    /// From 1.
    pub cell: u64,
    /// What clients did.
    pub scenario: String,
    /// All values: key, value, whether it varies.
    pub values: Vec<(String, String, bool)>,
    /// Runs that are done; the others are in no number below.
    pub runs_done: u64,
    /// Why others are not.
    pub failures: Vec<String>,
    /// Operations a second.
    pub rate: Estimate,
    /// From the actual start.
    pub service: Histogram,
    /// From the intended start.
    pub response: Histogram,
    /// The medians of the runs' responses, in nanoseconds.
    pub response_p50_ns: Estimate,
    /// Their 99th percentiles.
    pub response_p99_ns: Estimate,
    /// That succeeded.
    pub operations: u64,
    /// That failed.
    pub errors: u64,
    /// For which no client was free.
    pub late: u64,
    /// That never began.
    pub dropped: u64,
    /// The longest of all runs.
    pub longest_queue: u64,
    /// How often operations that succeeded were told to come back before.
    pub refusals: u64,
    /// How often they were tried again.
    pub retries: u64,
    /// What went over the network, of requests that succeeded.
    pub traffic: Traffic,
    /// Bytes that clients received in a second.
    pub received_per_s: Estimate,
    /// Processors of the machine that were busy, whoever had them.
    pub busy_processors: Estimate,
    /// The machine's load: tasks that ran, or wanted to.
    pub load: Estimate,
    /// Operations for each second of processor time that the lab and the database took, where both are known (SQLite is in the lab).
    pub operations_per_cpu_second: Option<f64>,
    /// What limited most of the runs, and how that is known of the first of them.
    pub bottleneck: Option<(String, String)>,
    /// How long a set took on average, from the first operation's start to the last one's end; zero: there were none.
    pub set_mean: Duration,
    /// Of all processors' time in sets, the server's, in per cent.
    pub server_percent: Estimate,
    /// The database's.
    pub database_percent: Estimate,
    /// How far the replica was behind, heartbeat by heartbeat; empty: there is none.
    pub lag: Histogram,
    /// The 99th percentiles of the runs' lags, in nanoseconds.
    pub lag_p99_ns: Estimate,
    /// From the end of the clients until all that they had done showed at the replica, in nanoseconds.
    pub drained_ns: Estimate,
    /// Runs that were not steady when measuring began, of those in which that was looked for.
    pub unsteady: u64,
}

impl CellSummary {
    /// That runs were not steady when measuring began, if that is so.
    pub fn unsteadiness(&self) -> Option<String> {
        (self.unsteady > 0).then(|| {
            format!(
                "{} of {} runs not steady within {}: their rate or response times still changed when measuring began",
                self.unsteady,
                self.runs_done,
                self.value("stop.steady_within")
            )
        })
    }

    /// Of all operations, how many in a hundred failed.
    pub fn failed_percent(&self) -> f64 {
        percent(self.errors, self.operations + self.errors).unwrap_or(0.0)
    }

    /// Of all answers of which a cache tells, how many in a hundred came from it; none: no cache tells.
    pub fn hit_percent(&self) -> Option<f64> {
        percent(self.traffic.hits, self.traffic.hits + self.traffic.misses)
    }

    /// The bodies as they are sent, in per cent of what they are once decoded; none: nothing came.
    pub fn payload_percent(&self) -> Option<f64> {
        percent(self.traffic.body_bytes, self.traffic.content_bytes)
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> &str {
        self.values.iter().find(|(known, ..)| known == key).map_or("", |(_, value, _)| value)
    }
}

impl Campaign {
    /// Each cell's runs put together.
    pub fn summary(&self) -> Result<Vec<CellSummary>, Error> {
        let runs = self.runs()?;
        let summarize = |(cell, scenario): (i64, String)| self.cell_summary(cell, scenario, &runs);
        self.cells()?.into_iter().map(summarize).collect()
    }

    fn cell_summary(&self, cell: i64, scenario: String, runs: &[RunRow]) -> Result<CellSummary, Error> {
        let (done, others): (Vec<_>, Vec<_>) =
            runs.iter().filter(|run| run.cell == cell).partition(|run| run.state == "done");
        let (mut service, mut response) = (Histogram::default(), Histogram::default());
        let (mut medians, mut ninety_ninths) = (Vec::new(), Vec::new());
        let (mut lag, mut lags) = (Histogram::default(), Vec::new());
        for run in &done {
            self.add_buckets(run.id, "service", &mut service)?;
            let mut behind = Histogram::default();
            self.add_buckets(run.id, "replica", &mut behind)?;
            if !behind.is_empty() {
                lags.push(behind.quantile(0.99).as_nanos() as f64);
                lag.add(&behind);
            }
            let mut own = Histogram::default();
            self.add_buckets(run.id, "response", &mut own)?;
            medians.push(own.quantile(0.5).as_nanos() as f64);
            ninety_ninths.push(own.quantile(0.99).as_nanos() as f64);
            response.add(&own);
        }
        let sum = |of: fn(&RunRow) -> i64| done.iter().map(|run| of(run)).sum::<i64>() as u64;
        let why = |run: &&RunRow| format!("{}: {}", run.state, run.detail.as_deref().unwrap_or("no more is known"));
        Ok(CellSummary {
            cell: cell as u64,
            scenario,
            values: self.values(cell)?,
            runs_done: done.len() as u64,
            failures: others.iter().map(why).collect(),
            rate: Estimate::of(&done.iter().map(|run| run.rate()).collect::<Vec<_>>()),
            service,
            response,
            response_p50_ns: Estimate::of(&medians),
            response_p99_ns: Estimate::of(&ninety_ninths),
            operations: sum(|run| run.operations),
            errors: sum(|run| run.errors),
            late: sum(|run| run.late),
            dropped: sum(|run| run.dropped),
            refusals: sum(|run| run.refusals),
            retries: sum(|run| run.retries),
            traffic: done.iter().fold(Traffic::default(), |sum, run| sum + run.traffic),
            received_per_s: Estimate::of(&done.iter().map(|run| received_per_s(run)).collect::<Vec<_>>()),
            busy_processors: of(&done, |run| Some(run.machine?.0)),
            load: of(&done, |run| Some(run.machine?.1)),
            set_mean: set_mean(&done),
            server_percent: of(&done, |run| run.server_percent),
            database_percent: of(&done, |run| run.database_percent),
            lag,
            lag_p99_ns: Estimate::of(&lags),
            drained_ns: of(&done, |run| Some(run.drained_ns? as f64)),
            operations_per_cpu_second: per_cpu_second(&done),
            bottleneck: bottleneck(&done),
            unsteady: done.iter().filter(|run| run.is_steady == Some(false)).count() as u64,
            longest_queue: done.iter().map(|run| run.longest_queue).max().unwrap_or(0) as u64,
        })
    }
}

fn received_per_s(run: &RunRow) -> f64 {
    if run.elapsed_ns > 0 { run.traffic.received_bytes as f64 * 1e9 / run.elapsed_ns as f64 } else { 0.0 }
}

/// Of runs in which that is known.
fn of(runs: &[&RunRow], which: fn(&RunRow) -> Option<f64>) -> Estimate {
    Estimate::of(&runs.iter().filter_map(|run| which(run)).collect::<Vec<_>>())
}

/// Over all runs' sets.
fn set_mean(runs: &[&RunRow]) -> Duration {
    let sets = runs.iter().filter_map(|run| Some((run.sets_ns? as u64, run.sets? as u64)));
    let (time, count) = sets.fold((0, 0), |sum, (time, count)| (sum.0 + time, sum.1 + count));
    Duration::from_nanos(time.checked_div(count).unwrap_or(0))
}

/// Operations of runs whose processor time is known, for each second of it.
fn per_cpu_second(runs: &[&RunRow]) -> Option<f64> {
    let known =
        runs.iter().filter_map(|run| Some((run.operations as f64, run.processors? * run.elapsed_ns as f64 / 1e9)));
    let (operations, seconds) = known.fold((0.0, 0.0), |sum, (operations, cpu)| (sum.0 + operations, sum.1 + cpu));
    (seconds > 0.0).then(|| operations / seconds)
}

/// What most runs say; of as many, what the first of them says.
fn bottleneck(runs: &[&RunRow]) -> Option<(String, String)> {
    let named: Vec<(&String, &String)> =
        runs.iter().filter_map(|run| Some((run.bottleneck.as_ref()?, run.evidence.as_ref()?))).collect();
    let votes = |name: &String| named.iter().filter(|(other, _)| *other == name).count();
    let most = named.iter().rev().max_by_key(|(name, _)| votes(name))?;
    let (name, evidence) = named.iter().find(|(name, _)| name == &most.0)?;
    Some(((*name).clone(), (*evidence).clone()))
}

fn percent(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 * 100.0 / of as f64)
}

/// Milliseconds, as tables show times.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students() {
        let of = Estimate::of(&[10.0, 12.0, 14.0]);
        assert!((of.mean - 12.0).abs() < 1e-9, "{of:?}");
        let half = of.half.expect("three values");
        assert!((half - 4.303 * 2.0 / 3.0f64.sqrt()).abs() < 1e-3, "{half}");
        assert_eq!(Estimate::of(&[7.0]), Estimate { mean: 7.0, half: None });
        assert_eq!(Estimate::of(&[]), Estimate::default());
    }
}
