//! Two campaigns, cell by cell: what is better, what is worse, and where the runs do not tell.
//!
//! Of each run there is its rate and the median and 99th percentile of its responses. Two cells are compared by the ratio of their runs'
//! geometric means, with Welch's interval (the arms need not scatter alike): better or worse is what the interval of the ratio leaves no
//! doubt about. As many comparisons are made as there are cells and measures, and some of many differ by chance: each has its share of the
//! 5 % that all of them together may be wrong (Bonferroni). One run an arm says nothing about its scatter, and so nothing at all.
//!
//! Two arms of one campaign (a database direct, and through a pooler) are compared round by round: what both have in common in a round (a
//! busy neighbour, a cold cache) is in neither's way, so the interval is that of the paired differences.

use std::collections::{BTreeMap, BTreeSet};

use super::read::Campaign;
use super::student;
use super::summary::Estimate;
use crate::error::Error;
use crate::harness::Histogram;

/// How often any of all comparisons may call equal arms different.
const CHANCE: f64 = 0.05;
/// Keys of the environment that differ from day to day.
const PASSING: [&str; 2] = ["host load average before", "lab commit"];

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Operations a second.
    Rate,
    /// The median of the response times.
    ResponseP50,
    /// Their 99th percentile.
    ResponseP99,
}

impl Measure {
    /// All.
    pub const ALL: [Measure; 3] = [Measure::Rate, Measure::ResponseP50, Measure::ResponseP99];

    /// As tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Rate => "ops/s",
            Measure::ResponseP50 => "p50 ms",
            Measure::ResponseP99 => "p99 ms",
        }
    }
}

/// What the runs say of the second campaign against the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Faster: more operations, or shorter times.
    Better,
    /// Slower.
    Worse,
    /// What difference there is may be chance, or is less than is asked about.
    NoDifference,
    /// Fewer than two runs are done in one of the campaigns, or nothing was done in one of them.
    Unknown,
}

impl Verdict {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifference => "no difference",
            Verdict::Unknown => "unknown",
        }
    }
}

/// How much the second is of the first, and the interval in which that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Of the geometric means.
    pub mean: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// One measure of one cell.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// Which.
    pub measure: Measure,
    /// Over the runs of the first campaign: operations a second, or milliseconds.
    pub first: Estimate,
    /// Over those of the second.
    pub second: Estimate,
    /// None where it is unknown.
    pub ratio: Option<Ratio>,
    /// By how much the second is more, with its interval, in the units of the two; of arms of one campaign alone.
    pub difference: Option<Estimate>,
    /// What follows.
    pub verdict: Verdict,
}

/// One cell that both campaigns have.
#[derive(Clone, Debug)]
pub struct ComparedCell {
    /// What clients did.
    pub scenario: String,
    /// What the cell has where cells differ: key, value.
    pub values: Vec<(String, String)>,
    /// What the first has there: the same, but for arms of one campaign.
    pub first: Vec<(String, String)>,
    /// Every measure.
    pub measures: Vec<Compared>,
}

/// Two campaigns beside each other.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Where their specifications are unlike: cells that one of them lacks, in words.
    pub specification: Vec<String>,
    /// Where their environments are, in words. What differs from day to day (the load before, the commit) does not count.
    pub environment: Vec<String>,
    /// The cells of both, in the order of the second.
    pub cells: Vec<ComparedCell>,
}

impl Comparison {
    /// Compares arms of one campaign, which differ in these keys alone: each with the first in the experiment's order. `specification`
    /// names the cells that have no partner.
    pub fn between(campaign: &Campaign, keys: &[String], tolerance_percent: f64) -> Result<Comparison, Error> {
        let arms = Arms::of(campaign)?;
        let pairs = arms.pairs(keys);
        let chance = share(pairs.iter().filter(|(first, _)| first.is_some()).count() * Measure::ALL.len());
        let varied = campaign.varied()?;
        let mut comparison = Comparison { specification: Vec::new(), environment: Vec::new(), cells: Vec::new() };
        for (first, second) in pairs {
            let of = |arm: &Arm| arm.shown.iter().filter(|(key, _)| varied.contains(key)).cloned().collect();
            let Some(first) = first else {
                let values: Vec<(String, String)> = of(second);
                let values: Vec<String> = values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                comparison.specification.push(format!("a cell without a partner: {}", values.join(", ")));
                continue;
            };
            let measures = Measure::ALL
                .map(|measure| paired(measure, &first.with(second, measure), chance, tolerance_percent / 100.0));
            let cell = ComparedCell {
                scenario: second.scenario.clone(),
                values: of(second),
                first: of(first),
                measures: measures.to_vec(),
            };
            comparison.cells.push(cell);
        }
        Ok(comparison)
    }

    /// Compares. A difference is told if the whole interval of the ratio is further from 1 than so many per cent.
    pub fn of(first: &Campaign, second: &Campaign, tolerance_percent: f64) -> Result<Comparison, Error> {
        let (before, now) = (Arms::of(first)?, Arms::of(second)?);
        let specification = unlike(&before, &now);
        let both: Vec<_> = now.cells.iter().filter(|arm| before.find(&arm.values).is_some()).collect();
        let chance = share(both.len() * Measure::ALL.len());
        let varied: BTreeSet<String> = first.varied()?.into_iter().chain(second.varied()?).collect();
        let compare = |arm: &&Arm| {
            let earlier = before.find(&arm.values)?;
            let measures = Measure::ALL.map(|measure| {
                compared(measure, &earlier.of(measure), &arm.of(measure), chance, tolerance_percent / 100.0)
            });
            let values: Vec<_> = arm.shown.iter().filter(|(key, _)| varied.contains(key)).cloned().collect();
            let (scenario, first) = (arm.scenario.clone(), values.clone());
            Some(ComparedCell { scenario, values, first, measures: measures.to_vec() })
        };
        Ok(Comparison {
            specification,
            environment: environment(first, second)?,
            cells: both.iter().filter_map(compare).collect(),
        })
    }

    /// Whether anything is worse.
    pub fn has_regressed(&self) -> bool {
        self.cells.iter().flat_map(|cell| &cell.measures).any(|compared| compared.verdict == Verdict::Worse)
    }
}

/// The share of one of so many comparisons in the chance.
fn share(comparisons: usize) -> f64 {
    CHANCE / comparisons.max(1) as f64
}

/// The runs of a cell that are done.
struct Arm {
    scenario: String,
    /// The scenario and all values: what makes two cells the same.
    values: BTreeMap<String, String>,
    /// The values in the experiment's order.
    shown: Vec<(String, String)>,
    /// By repetition.
    runs: BTreeMap<i64, [f64; 3]>,
}

impl Arm {
    fn of(&self, measure: Measure) -> Vec<f64> {
        self.runs.values().map(|run| run[measure as usize]).collect()
    }

    /// Both arms' values of each round in which both were done.
    fn with(&self, other: &Arm, measure: Measure) -> Vec<(f64, f64)> {
        let both = self.runs.iter().filter_map(|(repetition, run)| Some((run, other.runs.get(repetition)?)));
        both.map(|(one, other)| (one[measure as usize], other[measure as usize])).collect()
    }
}

struct Arms {
    cells: Vec<Arm>,
}

impl Arms {
    fn of(campaign: &Campaign) -> Result<Arms, Error> {
        let runs = campaign.runs()?;
        let arm = |(cell, scenario): (i64, String)| {
            let shown: Vec<(String, String)> =
                campaign.values(cell)?.into_iter().map(|(key, value, _)| (key, value)).collect();
            let mut values: BTreeMap<String, String> = shown.iter().cloned().collect();
            values.insert("scenario".to_owned(), scenario.clone());
            let done = runs.iter().filter(|run| run.cell == cell && run.state == "done");
            let measure = |run: &super::read::RunRow| -> Result<(i64, [f64; 3]), Error> {
                let mut response = Histogram::default();
                campaign.add_buckets(run.id, "response", &mut response)?;
                let millis = |part| super::summary::millis(response.quantile(part));
                Ok((run.repetition, [run.rate(), millis(0.5), millis(0.99)]))
            };
            let runs = done.map(measure).collect::<Result<_, _>>()?;
            Ok(Arm { scenario, values, shown, runs })
        };
        let cells = campaign.cells()?.into_iter().map(arm).collect::<Result<_, Error>>()?;
        Ok(Arms { cells })
    }

    /// Each cell with the first that differs from it in these keys alone; the first ones themselves are left out.
    fn pairs(&self, keys: &[String]) -> Vec<(Option<&Arm>, &Arm)> {
        let rest = |arm: &Arm| -> BTreeMap<String, String> {
            let is_kept = |key: &String| {
                !keys.iter().any(|given| given == key || (given == "scenario.name" && key == "scenario"))
            };
            arm.values.iter().filter(|(key, _)| is_kept(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let rests: Vec<_> = self.cells.iter().map(rest).collect();
        let first_like = |place: usize| rests.iter().position(|rest| *rest == rests[place]);
        let is_alone = |place: usize| rests.iter().filter(|rest| **rest == rests[place]).count() == 1;
        let pair = |(place, arm)| {
            let first = first_like(place).filter(|first| *first != place).map(|first| &self.cells[first]);
            (first.is_some() || is_alone(place)).then_some((first, arm))
        };
        self.cells.iter().enumerate().filter_map(pair).collect()
    }

    fn find(&self, values: &BTreeMap<String, String>) -> Option<&Arm> {
        self.cells.iter().find(|arm| arm.values == *values)
    }
}

fn unlike(first: &Arms, second: &Arms) -> Vec<String> {
    let mut said = only(first, second, "first");
    said.extend(only(second, first, "second"));
    said
}

/// The cells that only one has, each with how it differs from the nearest that only the other has.
fn only(one: &Arms, other: &Arms, which: &str) -> Vec<String> {
    let alone = |arms: &'_ Arms, others: &Arms| -> Vec<usize> {
        (0..arms.cells.len()).filter(|place| others.find(&arms.cells[*place].values).is_none()).collect()
    };
    let candidates = alone(other, one);
    let say = |place: usize| {
        let arm = &one.cells[place];
        let nearest = candidates.iter().map(|place| differences(arm, &other.cells[*place])).min_by_key(Vec::len);
        let values = || arm.shown.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let why: Vec<String> = nearest.unwrap_or_else(values);
        format!("a cell of {} that only the {which} has: {}", arm.scenario, why.join(", "))
    };
    alone(one, other).into_iter().map(say).collect()
}

fn differences(one: &Arm, other: &Arm) -> Vec<String> {
    let value = |arm: &Arm, key: &str| arm.values.get(key).map_or("nothing", String::as_str).to_owned();
    let keys: BTreeSet<&String> = one.values.keys().chain(other.values.keys()).collect();
    keys.into_iter()
        .filter(|key| one.values.get(*key) != other.values.get(*key))
        .map(|key| format!("{key} is {}, there {}", value(one, key), value(other, key)))
        .collect()
}

fn environment(first: &Campaign, second: &Campaign) -> Result<Vec<String>, Error> {
    let facts = |campaign: &Campaign| -> Result<BTreeMap<String, String>, Error> {
        Ok(campaign.environment()?.into_iter().filter(|(key, _)| !PASSING.contains(&key.as_str())).collect())
    };
    let (before, now) = (facts(first)?, facts(second)?);
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let value = |facts: &BTreeMap<String, String>, key: &str| facts.get(key).cloned().unwrap_or("nothing".to_owned());
    Ok(keys
        .into_iter()
        .filter(|key| before.get(*key) != now.get(*key))
        .map(|key| format!("{key} was {}, now {}", value(&before, key), value(&now, key)))
        .collect())
}

fn compared(measure: Measure, first: &[f64], second: &[f64], chance: f64, tolerance: f64) -> Compared {
    let ratio = ratio(first, second, chance);
    let verdict = verdict(measure, ratio, tolerance);
    Compared { measure, first: Estimate::of(first), second: Estimate::of(second), ratio, difference: None, verdict }
}

/// Round by round.
fn paired(measure: Measure, rounds: &[(f64, f64)], chance: f64, tolerance: f64) -> Compared {
    let (first, second): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
    let is_known = rounds.len() > 1 && first.iter().chain(&second).all(|value| *value > 0.0);
    let differences: Vec<f64> = rounds.iter().map(|(first, second)| second - first).collect();
    let logarithms: Vec<f64> = rounds.iter().map(|(first, second)| (second / first).ln()).collect();
    let difference = is_known.then(|| Estimate::with_chance(&differences, chance));
    let ratio = is_known.then(|| {
        let Estimate { mean, half } = Estimate::with_chance(&logarithms, chance);
        let half = half.unwrap_or(f64::INFINITY);
        Ratio { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() }
    });
    let verdict = verdict(measure, ratio, tolerance);
    Compared { measure, first: Estimate::of(&first), second: Estimate::of(&second), ratio, difference, verdict }
}

fn verdict(measure: Measure, ratio: Option<Ratio>, tolerance: f64) -> Verdict {
    match ratio {
        None => Verdict::Unknown,
        Some(ratio) if ratio.low > 1.0 + tolerance => more(measure),
        Some(ratio) if ratio.high < 1.0 / (1.0 + tolerance) => match more(measure) {
            Verdict::Better => Verdict::Worse,
            _ => Verdict::Better,
        },
        Some(_) => Verdict::NoDifference,
    }
}

/// What more of it is.
fn more(measure: Measure) -> Verdict {
    if measure == Measure::Rate { Verdict::Better } else { Verdict::Worse }
}

/// How much the second is of the first, by Welch's interval of the difference of logarithms.
fn ratio(first: &[f64], second: &[f64], chance: f64) -> Option<Ratio> {
    if first.iter().chain(second).any(|value| *value <= 0.0) {
        return None;
    }
    let ((mean_a, error_a), (mean_b, error_b)) = (of_logarithms(first)?, of_logarithms(second)?);
    let (freedom_a, freedom_b) = (first.len() as f64 - 1.0, second.len() as f64 - 1.0);
    let error = error_a + error_b;
    let freedom = error.powi(2) / (error_a.powi(2) / freedom_a + error_b.powi(2) / freedom_b);
    // Runs that are all alike have no scatter: any difference is one.
    let freedom = if freedom.is_finite() { freedom.max(1.0) as usize } else { 1 };
    let half = student::two_sided(chance, freedom) * error.sqrt();
    let difference = mean_b - mean_a;
    Some(Ratio { mean: difference.exp(), low: (difference - half).exp(), high: (difference + half).exp() })
}

/// Their mean, and the square of its standard error; none of fewer than two.
fn of_logarithms(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value.ln() - mean).powi(2)).sum();
    Some((mean, squares / (count - 1.0) / count))
}

#[cfg(test)]
mod tests {
    use headwater_testkit::Random;

    use super::*;

    /// Runs of an arm: each scatters by some per cent around the same.
    fn runs(random: &mut Random, around: f64, count: usize) -> Vec<f64> {
        // The sum of twelve uniform numbers is nearly normal.
        let mut normal = || (0..12).map(|_| random.below(1_000_001) as f64 / 1e6).sum::<f64>() - 6.0;
        (0..count).map(|_| around * (0.02 * normal()).exp()).collect()
    }

    /// Four cells with three measures each, as a campaign has.
    fn verdicts(seed: u64, slowdown: f64) -> Vec<Verdict> {
        let mut random = Random::seeded(seed);
        let chance = share(12);
        let mut verdicts = Vec::new();
        for cell in 0..4 {
            for measure in Measure::ALL {
                let around = 100.0 * f64::from(cell + 1);
                let there = if measure == Measure::Rate { around / slowdown } else { around * slowdown };
                let (first, second) = (runs(&mut random, around, 7), runs(&mut random, there, 7));
                verdicts.push(compared(measure, &first, &second, chance, 0.0).verdict);
            }
        }
        verdicts
    }

    #[test]
    fn equal_arms_show_no_difference() {
        let alike = (0..20).filter(|seed| verdicts(*seed, 1.0).iter().all(|it| *it == Verdict::NoDifference)).count();
        assert!(alike >= 19, "{alike} of 20");
        let alike = (0..1000).filter(|seed| verdicts(*seed, 1.0).iter().all(|it| *it == Verdict::NoDifference)).count();
        assert!((935..=985).contains(&alike), "{alike} of 1,000: 5 % may be wrong, and about as many are");
    }

    #[test]
    fn a_tenth_slower_is_found_everywhere() {
        let found = (0..20).filter(|seed| verdicts(*seed, 1.1).iter().all(|it| *it == Verdict::Worse)).count();
        assert!(found >= 19, "{found} of 20");
        let found = (0..20).filter(|seed| verdicts(*seed, 1.0 / 1.1).iter().all(|it| *it == Verdict::Better)).count();
        assert!(found >= 19, "{found} of 20");
    }

    /// Rounds of two arms: what they have in common scatters ten times as much as what they have not.
    fn rounds(seed: u64, slowdown: f64) -> Vec<(f64, f64)> {
        let mut random = Random::seeded(seed);
        let common = runs(&mut random, 100.0, 12).into_iter().map(|value| (value / 100.0).powi(10));
        let (first, second) = (runs(&mut random, 100.0, 12), runs(&mut random, 100.0 * slowdown, 12));
        common.zip(first.into_iter().zip(second)).map(|(common, (one, other))| (common * one, common * other)).collect()
    }

    #[test]
    fn arms_are_compared_round_by_round() {
        let of = |seed, slowdown| paired(Measure::ResponseP99, &rounds(seed, slowdown), 0.05, 0.0);
        let found = (0..20).filter(|seed| of(*seed, 1.1).verdict == Verdict::Worse).count();
        assert!(found >= 19, "{found} of 20");
        let alike = (0..1000).filter(|seed| of(*seed, 1.0).verdict == Verdict::NoDifference).count();
        assert!((935..=965).contains(&alike), "{alike} of 1,000: 5 % may be wrong, and about as many are");
        let unpaired = |seed| {
            let (first, second): (Vec<f64>, Vec<f64>) = rounds(seed, 1.1).into_iter().unzip();
            compared(Measure::ResponseP99, &first, &second, 0.05, 0.0).verdict
        };
        let blind = (0..20).filter(|seed| unpaired(*seed) == Verdict::NoDifference).count();
        assert!(blind >= 15, "{blind} of 20: without the pairs the rounds' scatter hides it");
    }

    #[test]
    fn the_difference_of_pairs_is_in_their_units() {
        let compared = paired(Measure::ResponseP50, &[(10.0, 12.0), (20.0, 23.0), (30.0, 34.0)], 0.05, 0.0);
        let difference = compared.difference.expect("three rounds");
        assert!((difference.mean - 3.0).abs() < 1e-9, "{difference:?}");
        assert!(difference.half.is_some_and(|half| (half - 4.303 / 3.0f64.sqrt()).abs() < 1e-3), "{difference:?}");
        let one = paired(Measure::ResponseP50, &[(10.0, 12.0)], 0.05, 0.0);
        assert_eq!((one.verdict, one.difference), (Verdict::Unknown, None));
    }

    #[test]
    fn one_run_says_nothing_and_a_tolerance_hides_what_is_small() {
        let verdict =
            |first: &[f64], second: &[f64], tolerance| compared(Measure::Rate, first, second, 0.05, tolerance).verdict;
        assert_eq!(verdict(&[100.0], &[50.0], 0.0), Verdict::Unknown);
        assert_eq!(verdict(&[0.0, 0.0], &[50.0, 51.0], 0.0), Verdict::Unknown);
        let (first, second) = ([100.0, 101.0, 99.0, 100.0], [110.0, 111.0, 109.0, 110.0]);
        assert_eq!(verdict(&first, &second, 0.0), Verdict::Better);
        assert_eq!(verdict(&second, &first, 0.05), Verdict::Worse);
        assert_eq!(verdict(&first, &second, 0.2), Verdict::NoDifference);
        assert_eq!(verdict(&[100.0, 100.0], &[100.0, 100.0], 0.0), Verdict::NoDifference);
        assert_eq!(verdict(&[100.0, 100.0], &[90.0, 90.0], 0.0), Verdict::Worse, "no scatter at all");
    }
}
