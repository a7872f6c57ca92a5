//! The order in which an experiment's cells are run, and how long that takes.
//!
//! All cells are run once, in an order by chance, before any is run again, in another order: what drifts with time (caches, the
//! machine's temperature, neighbours) is spread over all of them and shows as the width of their intervals, not as a difference. Or, to
//! compare arms round by round, in the order of the file and back again: A B, B A, A B; what drifts evenly then cancels out.

use std::time::Duration;

use crate::experiment::{Arrival, Cell, Experiment, Order, StopRule};
use crate::random::{Random, stream};

/// One execution of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The cell's place in the experiment.
    pub cell: usize,
    /// Which time this is, from 0.
    pub repetition: usize,
}

/// What will be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where all that is random comes from.
    pub seed: u64,
    /// In order.
    pub runs: Vec<Run>,
}

impl Plan {
    /// The runs of an experiment in the order of this seed.
    pub fn new(experiment: &Experiment, seed: u64) -> Plan {
        let mut runs = Vec::new();
        for repetition in 0..experiment.repetitions {
            let mut round: Vec<Run> = (0..experiment.cells.len()).map(|cell| Run { cell, repetition }).collect();
            match experiment.order {
                Order::Shuffled => Random::derived(seed, &[stream::ORDER, repetition as u64]).shuffle(&mut round),
                Order::Abba if repetition % 2 == 1 => round.reverse(),
                Order::Abba => {}
            }
            runs.extend(round);
        }
        Plan { seed, runs }
    }
}

/// How long something takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The time of what has one, preparation aside.
    pub time: Duration,
    /// Whether there is more whose time is not known: it ends after a number of operations.
    pub is_open_ended: bool,
    /// Whether it may be less: it begins when it is steady, or ends when its interval is narrow.
    pub may_be_less: bool,
}

impl Expected {
    /// Of one run of a cell.
    pub fn of_cell(cell: &Cell) -> Expected {
        let warmup = cell.stop.steady_within.unwrap_or(cell.stop.warmup);
        let may_be_less = cell.stop.steady_within.is_some();
        let timed = |time: Duration| Expected { time: warmup + time, may_be_less, ..Expected::default() };
        match (cell.stop.rule, cell.load.arrival) {
            (StopRule::Duration(duration), _) => timed(duration),
            (StopRule::Interval { at_most, .. }, _) => Expected { may_be_less: true, ..timed(at_most) },
            (StopRule::Iterations(count), Arrival::Open { rate, .. }) => {
                timed(Duration::try_from_secs_f64(count as f64 / rate).unwrap_or(Duration::MAX / 2))
            }
            (StopRule::Iterations(_), Arrival::Closed { .. }) => {
                Expected { is_open_ended: true, ..timed(Duration::ZERO) }
            }
        }
    }

    /// Of all runs of an experiment.
    pub fn of(experiment: &Experiment) -> Expected {
        let mut all = Expected::default();
        for expected in experiment.cells.iter().map(Expected::of_cell) {
            all.time = all.time.saturating_add(expected.time.saturating_mul(experiment.repetitions as u32));
            all.is_open_ended |= expected.is_open_ended;
            all.may_be_less |= expected.may_be_less;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(text: &str) -> Experiment {
        Experiment::parse("x.toml", text, &|_| Err("none".to_owned())).expect("valid")
    }

    const TEXT: &str =
        "name = \"x\"\nrepetitions = 3\nscenario.name = \"tpcb\"\nload.clients = [1, 2, 3, 4, 5, 6, 7, 8]\n";

    #[test]
    fn each_round_has_every_cell_once_in_an_order_of_its_own_that_the_seed_fixes() {
        let experiment = experiment(&format!("{TEXT}stop = {{ duration = \"10s\", warmup = \"2s\" }}"));
        let plan = Plan::new(&experiment, 7);
        let rounds: Vec<Vec<usize>> =
            plan.runs.chunks(8).map(|round| round.iter().map(|run| run.cell).collect()).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..8).collect::<Vec<_>>());
        }
        assert_ne!(rounds[0], rounds[1]);
        assert_eq!(plan.runs, Plan::new(&experiment, 7).runs);
        assert_ne!(plan.runs, Plan::new(&experiment, 8).runs);
        let expected = Expected { time: Duration::from_secs(12 * 8 * 3), ..Expected::default() };
        assert_eq!(Expected::of(&experiment), expected);
    }

    #[test]
    fn abba_goes_through_the_file_and_back() {
        let experiment =
            experiment(&TEXT.replace("[1, 2, 3, 4, 5, 6, 7, 8]", "[1, 2]\norder = \"abba\"\nstop.duration = \"1s\""));
        let order: Vec<usize> = Plan::new(&experiment, 7).runs.iter().map(|run| run.cell).collect();
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn the_time_of_iterations_is_known_in_an_open_loop_alone() {
        let closed = experiment(&format!("{TEXT}stop.iterations = 1000"));
        assert!(Expected::of(&closed).is_open_ended);
        let open = experiment(&format!("{TEXT}load.arrival = \"poisson\"\nload.rate = 100\nstop.iterations = 1000"));
        assert_eq!(Expected::of(&open), Expected { time: Duration::from_mins(4), ..Expected::default() });
        let narrow = experiment(&format!("{TEXT}stop = {{ interval = 2, at_most = \"1m\" }}"));
        assert!(Expected::of(&narrow).may_be_less);
        let steady =
            experiment(&format!("{TEXT}stop = {{ duration = \"10s\", warmup = \"5s\", steady_within = \"1m\" }}"));
        let expected = Expected { time: Duration::from_mins(28), may_be_less: true, is_open_ended: false };
        assert_eq!(Expected::of(&steady), expected);
    }
}
