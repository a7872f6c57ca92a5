//! What the pilot's runs say of as many clients as are asked for.
//!
//! Each run is a prediction of its own; together they have an interval: that of one set to come, by Student's t. How far runs scatter, in per
//! cent, is taken from all cells together, because a cell by itself has only a few.

use super::Pilot;
use super::drain::Drain;
use super::scalability::Scalability;
use crate::error::Error;
use crate::harness::Histogram;
use crate::results::student::two_sided;
use crate::results::{Campaign, RunRow};

/// A value with the interval in which that of one set to come is, in 95 % of cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    /// From here,
    pub low: f64,
    /// the middle,
    pub middle: f64,
    /// to here.
    pub high: f64,
}

/// What really was, where it was tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Actual {
    /// From a set's first start to its last end, the mean over all sets, in seconds.
    pub all_ended_s: f64,
    /// Of a client, on average.
    pub average_s: f64,
}

/// What would be, of one kind with so many workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The kind of syncs.
    pub kind: String,
    /// The server's workers.
    pub workers: u64,
    /// Syncs a second while all workers are busy.
    pub rate: f64,
    /// What a sync takes of a worker, in milliseconds: a single time.
    pub single_ms: f64,
    /// When the last client is done, in seconds after all came at once; it waits longest.
    pub all_ended_s: Between,
    /// A client's time on average.
    pub average_s: f64,
    /// When the last is done by the curve over the workers; none: only one number of workers was tried.
    pub by_curve_s: Option<f64>,
    /// What was, with as many clients; none: that was not tried.
    pub actual: Option<Actual>,
}

impl Prediction {
    /// Syncs in an hour in which clients come evenly, and no more than the server can take.
    pub fn an_hour(&self) -> f64 {
        self.rate * 3_600.0
    }

    /// How far the prediction is off, in per cent of what was; none: that is not known.
    pub fn error_percent(&self) -> Option<f64> {
        self.actual.map(|actual| (self.all_ended_s.middle / actual.all_ended_s - 1.0) * 100.0)
    }
}

/// Throughput over workers, of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The kind of syncs.
    pub kind: String,
    /// Through all its runs.
    pub law: Scalability,
}

/// Processor time and memory of one of the processes, over all the pilot's runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Taken {
    pub(super) process: String,
    /// Of the time of all named processes.
    pub(super) share: f64,
    pub(super) memory_bytes: f64,
}

/// All that the pilot says.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// How many synced.
    pub clients: usize,
    /// For how many it is.
    pub expected: usize,
    /// Kind by kind, and by workers.
    pub all: Vec<Prediction>,
    /// Kind by kind, where several numbers of workers were tried.
    pub curves: Vec<Curve>,
    pub(super) taken: Vec<Taken>,
    pub(super) limits: Vec<(String, u64)>,
}

/// A cell of the campaign: a kind, with so many workers.
struct Tried {
    kind: String,
    workers: u64,
    drains: Vec<Drain>,
    actual: Option<Actual>,
}

impl Predictions {
    /// From the campaign of a pilot.
    ///
    /// # Errors
    /// A kind of which no run is done, or whose clients all ended at once; results that can't be read.
    pub fn of(pilot: &Pilot, campaign: &Campaign) -> Result<Predictions, Error> {
        let tried = tried(pilot, campaign)?;
        let scatter = Scatter::of(&tried, pilot.expected as f64);
        let mut curves: Vec<Curve> = Vec::new();
        for kind in &pilot.kinds {
            let of_kind = tried.iter().filter(|tried| tried.kind == *kind);
            let points: Vec<_> =
                of_kind.flat_map(|tried| tried.drains.iter().map(|drain| (tried.workers as f64, drain.rate))).collect();
            curves.extend(Scalability::fit(&points).map(|law| Curve { kind: kind.clone(), law }));
        }
        let predict = |tried: &Tried| {
            let law = curves.iter().find(|curve| curve.kind == tried.kind).map(|curve| curve.law);
            prediction(tried, pilot.expected as f64, scatter, law)
        };
        Ok(Predictions {
            clients: pilot.clients,
            expected: pilot.expected,
            all: tried.iter().map(predict).collect(),
            curves,
            taken: taken(pilot, campaign)?,
            limits: limits(pilot, campaign)?,
        })
    }

    /// The prediction that is furthest from what was, in per cent; none: nothing was checked.
    pub fn worst_error_percent(&self) -> Option<f64> {
        self.all.iter().filter_map(|prediction| Some(prediction.error_percent()?.abs())).max_by(f64::total_cmp)
    }
}

/// The cells of the pilot, each with what belongs to it.
fn tried(pilot: &Pilot, campaign: &Campaign) -> Result<Vec<Tried>, Error> {
    let runs = campaign.runs()?;
    let (mut tried, mut actuals) = (Vec::new(), Vec::new());
    for (cell, _) in campaign.cells()? {
        let values = campaign.values(cell)?;
        let value = |key: &str| values.iter().find(|(known, ..)| known == key).map_or("", |(_, value, _)| value);
        let (kind, clients) = (value("scenario.kind").to_owned(), value("load.clients").parse().unwrap_or(0));
        let workers = value("scenario.workers").parse().unwrap_or(0);
        let done: Vec<&RunRow> = runs.iter().filter(|run| run.cell == cell && run.state == "done").collect();
        if clients == pilot.expected {
            actuals.extend(actual(campaign, &done, clients)?.map(|actual| ((kind, workers), actual)));
            continue;
        }
        let mut drains = Vec::new();
        for run in done {
            drains.extend(Drain::of(&ends(campaign, run)?, clients as u64, workers));
        }
        if drains.is_empty() {
            return Err(Error::Usage(format!(
                "no run of {kind} with {workers} workers tells anything: give --time more"
            )));
        }
        tried.push(Tried { kind, workers, drains, actual: None });
    }
    for cell in &mut tried {
        let found = actuals.iter().find(|((kind, workers), _)| *kind == cell.kind && *workers == cell.workers);
        cell.actual = found.map(|(_, actual)| *actual);
    }
    let place = |kind: &str| pilot.kinds.iter().position(|known| known == kind);
    tried.sort_by_key(|cell| (place(&cell.kind), cell.workers));
    Ok(tried)
}

fn ends(campaign: &Campaign, run: &RunRow) -> Result<Histogram, Error> {
    let mut ends = Histogram::default();
    campaign.add_buckets(run.id, "response", &mut ends)?;
    Ok(ends)
}

/// Of runs with all clients.
fn actual(campaign: &Campaign, runs: &[&RunRow], clients: usize) -> Result<Option<Actual>, Error> {
    let mut all = Histogram::default();
    for run in runs {
        all.add(&ends(campaign, run)?);
    }
    let sets: f64 = runs.iter().map(|run| run.operations as f64 / clients as f64).sum();
    let seconds: f64 = runs.iter().filter_map(|run| run.sets_ns).map(|time| time as f64 / 1e9).sum();
    let actual = Actual { all_ended_s: seconds / sets, average_s: all.mean().as_secs_f64() };
    Ok((sets > 0.0).then_some(actual))
}

/// How far runs of a cell are apart, as a part of themselves.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    deviation: f64,
    freedom: usize,
}

impl Scatter {
    fn of(tried: &[Tried], expected: f64) -> Scatter {
        let (mut squares, mut freedom) = (0.0, 0);
        for cell in tried {
            let times = logarithms(&cell.drains, expected);
            let middle = mean(&times);
            squares += times.iter().map(|time| (time - middle).powi(2)).sum::<f64>();
            freedom += times.len() - 1;
        }
        Scatter { deviation: if freedom > 0 { (squares / freedom as f64).sqrt() } else { f64::INFINITY }, freedom }
    }

    /// The interval of one more, after so many with this mean of their logarithms.
    fn one_more(self, middle: f64, runs: usize) -> Between {
        let t = if self.freedom > 0 { two_sided(0.05, self.freedom) } else { 1.0 };
        let half = t * self.deviation * (1.0 + 1.0 / runs as f64).sqrt();
        Between { low: (middle - half).exp(), middle: middle.exp(), high: (middle + half).exp() }
    }
}

fn logarithms(drains: &[Drain], expected: f64) -> Vec<f64> {
    drains.iter().map(|drain| drain.all_ended(expected).ln()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn prediction(tried: &Tried, expected: f64, scatter: Scatter, law: Option<Scalability>) -> Prediction {
    let Tried { kind, workers, drains, actual } = tried;
    let of = |of: &dyn Fn(&Drain) -> f64| mean(&drains.iter().map(of).collect::<Vec<_>>());
    let (rate, first) = (of(&|drain| drain.rate), of(&|drain| drain.first));
    let many = *workers as f64;
    Prediction {
        kind: kind.clone(),
        workers: *workers,
        rate,
        single_ms: many / rate * 1e3,
        all_ended_s: scatter.one_more(mean(&logarithms(drains, expected)), drains.len()),
        average_s: of(&|drain| drain.average(expected)),
        by_curve_s: law.map(|law| first + (expected - many) / law.rate(many)),
        actual: *actual,
    }
}

/// What the processes took in the pilot's runs.
fn taken(pilot: &Pilot, campaign: &Campaign) -> Result<Vec<Taken>, Error> {
    let sql = format!(
        "SELECT name, sum(cpu_ns) * 1.0 / sum(sum(cpu_ns)) OVER (), max(rss_bytes) * 1.0 FROM process \
               JOIN run ON run.id = process.run JOIN cell_value ON cell_value.cell = run.cell AND key = 'load.clients' \
               WHERE state = 'done' AND value = '{}' GROUP BY name ORDER BY name",
        pilot.clients
    );
    campaign.rows(&sql, |row| Ok(Taken { process: row.get(0)?, share: row.get(1)?, memory_bytes: row.get(2)? }))
}

/// What limited the pilot's runs, and how many of them.
fn limits(pilot: &Pilot, campaign: &Campaign) -> Result<Vec<(String, u64)>, Error> {
    let sql = format!(
        "SELECT bottleneck, count(*) FROM run JOIN cell_value ON cell_value.cell = run.cell AND key = 'load.clients' \
               WHERE state = 'done' AND value = '{}' AND bottleneck IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1",
        pilot.clients
    );
    campaign.rows(&sql, |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pilot::drain::CLIENTS_PER_WORKER;

    /// A run of so many clients that are worked off at this rate.
    fn drain(workers: u64, rate: f64) -> Drain {
        let clients = CLIENTS_PER_WORKER * workers * 4;
        let mut ends = Histogram::default();
        (1..=clients).for_each(|ended| ends.record(Duration::from_secs_f64(ended as f64 / rate)));
        Drain::of(&ends, clients, workers).expect("enough clients")
    }

    fn tried(workers: u64, rates: &[f64]) -> Tried {
        let drains = rates.iter().map(|&rate| drain(workers, rate)).collect();
        Tried { kind: "upload-updates".to_owned(), workers, drains, actual: None }
    }

    #[test]
    fn the_interval_is_that_of_one_set_to_come() {
        let cells = [tried(2, &[95.0, 100.0, 105.0]), tried(4, &[190.0, 200.0, 210.0])];
        let scatter = Scatter::of(&cells, 1_000.0);
        assert_eq!(scatter.freedom, 4, "of all cells together");
        assert!((scatter.deviation - 0.05).abs() < 0.002, "{scatter:?}");
        let found = prediction(&cells[0], 1_000.0, scatter, None);
        let Between { low, middle, high } = found.all_ended_s;
        // 2.776 is Student's t of four degrees.
        let half = 2.776 * scatter.deviation * (4.0f64 / 3.0).sqrt();
        assert!((middle - 10.0).abs() < 0.1 && (high / middle - half.exp()).abs() < 1e-3, "{found:?}");
        assert!((low * high - middle * middle).abs() < 1e-6, "{found:?}");
        assert!((found.single_ms - 20.0).abs() < 0.2 && (found.average_s - 5.0).abs() < 0.1, "{found:?}");
        assert!((found.an_hour() - 360_000.0).abs() < 3_600.0, "{found:?}");
    }

    #[test]
    fn an_error_is_told_in_per_cent_of_what_was() {
        let actual = Some(Actual { all_ended_s: 8.0, average_s: 4.0 });
        let cells = [Tried { actual, ..tried(2, &[100.0, 100.0]) }];
        let found = prediction(&cells[0], 1_000.0, Scatter::of(&cells, 1_000.0), None);
        assert!(found.error_percent().is_some_and(|error| (error - 25.0).abs() < 1.0), "{found:?}");
    }
}
