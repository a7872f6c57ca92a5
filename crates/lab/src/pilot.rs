//! The pilot: what a few clients say of many.
//!
//! ```text
//! Pilot (what is to be tried, for how many) -> an experiment -> campaign -> results
//!                                                                              |
//!                                  drain: each run's rate, and its single times
//!                                                                              |
//!                  predict: those of many, with intervals   <-- scalability: a curve over the workers
//!                                                                              |
//!                                                                    advice: in sentences
//! ```
//!
//! The rows of all the clients that are asked for are in the tables; only a few clients sync. With a check the pilot's runs and those of all
//! clients are cells of one campaign, so that both meet the same machine.

mod advice;
mod drain;
mod predict;
mod scalability;

use std::fmt::Write as _;
use std::time::Duration;

pub use advice::advice;
pub use predict::{Actual, Between, Curve, Prediction, Predictions};
pub use scalability::Scalability;

use crate::error::Error;

/// What is to be tried, and for how many.
#[derive(Clone, Debug, PartialEq)]
pub struct Pilot {
    /// How many sync.
    pub clients: usize,
    /// For how many it is asked what would be.
    pub expected: usize,
    /// The server's workers, one number after the other.
    pub workers: Vec<usize>,
    /// The kinds of syncs, by the names that experiments have for them.
    pub kinds: Vec<String>,
    /// Changes of each sync; of one's own system, of uploads.
    pub rows: usize,
    /// How long each run is measured.
    pub time: Duration,
    /// How often each is run, at least twice.
    pub repetitions: usize,
    /// Whether as many as are asked for sync as well.
    pub is_checked: bool,
    /// Whether they sync with a system of one's own, not on the table Purchase.
    pub is_own: bool,
    /// Whether its server runs already, with as many workers as are said, and a queue of its own.
    pub is_served: bool,
}

impl Pilot {
    /// The experiment, as a file would have it.
    ///
    /// # Errors
    /// What can't be predicted from this, and the option that mends it.
    pub fn specification(&self) -> Result<String, Error> {
        self.refuse()?;
        let Pilot { clients, expected, workers, kinds, rows, time, repetitions, is_checked, is_own, is_served } = self;
        let kinds: Vec<String> = kinds.iter().map(|kind| toml_string(kind)).collect();
        let (sync, others) = match is_checked {
            false => (clients.to_string(), (expected - clients).to_string()),
            true => (format!("[{clients}, {expected}]"), format!("[{}, 0]", expected - clients)),
        };
        let mut text = format!(
            "name = \"pilot\"\nabout = \"{clients} clients, to predict {expected}\"\nrepetitions = {repetitions}\n"
        );
        if *is_checked && !is_own {
            text.push_str("zip = [[\"load.clients\", \"scenario.others\"]]\n");
        }
        let (name, others) = if *is_own { ("own", String::new()) } else { ("sync", format!("others = {others}\n")) };
        // None is refused: whoever is told to come back would have to be predicted as well.
        let places = match is_served {
            true => String::new(),
            false => {
                let connections = (2 * expected).max(2_000);
                format!("backlog = {expected}\nreceiving_max = {expected}\nconnections_max = {connections}\n")
            }
        };
        let _ = write!(
            text,
            "\n[scenario]\nname = \"{name}\"\nkind = [{}]\nworkers = {workers:?}\nrows = {rows}\n{others}{places}\n\
             [load]\nclients = {sync}\ntimeout = \"10m\"\n\n[stop]\nduration = \"{}ms\"\n",
            kinds.join(", "),
            time.as_millis(),
        );
        Ok(text)
    }

    fn refuse(&self) -> Result<(), Error> {
        let Pilot { clients, expected, workers, repetitions, .. } = self;
        let needed = drain::CLIENTS_PER_WORKER as usize * workers.iter().max().copied().unwrap_or(0);
        let why = if clients >= expected {
            format!("a pilot of {clients} clients has nothing to predict for {expected}: give --for a larger number")
        } else if *clients < needed {
            format!(
                "{} workers take a pilot of {needed} clients at least (--clients): the first and the last of a set tell nothing",
                needed / 3
            )
        } else if self.is_served && workers.len() != 1 {
            "a server that runs has one number of workers: give --workers with that alone".to_owned()
        } else if *repetitions < 2 {
            "one run has no interval: give --repetitions 2 or more".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Usage(why))
    }
}

fn toml_string(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    fn pilot() -> Pilot {
        Pilot {
            clients: 20,
            expected: 1_000,
            workers: vec![2, 6],
            kinds: vec!["download-updates".to_owned(), "upload-inserts".to_owned()],
            rows: 10,
            time: Duration::from_millis(1_500),
            repetitions: 3,
            is_checked: false,
            is_own: false,
            is_served: false,
        }
    }

    fn cells(pilot: &Pilot) -> Vec<String> {
        let text = pilot.specification().expect("a pilot");
        let experiment = Experiment::parse("pilot.toml", &text, &|name| Err(name.to_owned())).expect(&text);
        let others = |parameters: &[(String, crate::value::Value)]| {
            parameters.iter().find(|(name, _)| name == "others").map(|(_, value)| value.to_string())
        };
        let cell = |cell: &crate::experiment::Cell| format!("{} and {:?}", cell.load.clients, others(&cell.parameters));
        experiment.cells.iter().map(cell).collect()
    }

    #[test]
    fn it_is_an_experiment() {
        assert_eq!(cells(&pilot()), vec!["20 and Some(\"980\")"; 4]);
        let checked = cells(&Pilot { is_checked: true, ..pilot() });
        let many = checked.iter().filter(|cell| *cell == "1000 and Some(\"0\")").count();
        assert_eq!((checked.len(), many), (8, 4), "{checked:?}");
        let kinds = vec!["first-download".to_owned(), "upload".to_owned()];
        let own = cells(&Pilot { is_own: true, is_checked: true, kinds, ..pilot() });
        assert_eq!(own.iter().filter(|cell| *cell == "1000 and None").count(), 4, "{own:?}");
        let served = Pilot { is_own: true, is_served: true, workers: vec![3], ..pilot() };
        let text = served.specification().expect("a pilot");
        assert!(text.contains("workers = [3]") && !text.contains("backlog"), "{text}");
    }

    #[test]
    fn what_can_not_be_predicted_is_refused() {
        let refused = |pilot: Pilot, option: &str| {
            let error = pilot.specification().expect_err("refused").to_string();
            assert!(error.contains(option), "{error}");
        };
        refused(Pilot { expected: 20, ..pilot() }, "--for");
        refused(Pilot { workers: vec![2, 7], ..pilot() }, "--clients");
        refused(Pilot { repetitions: 1, ..pilot() }, "--repetitions");
        refused(Pilot { is_own: true, is_served: true, ..pilot() }, "--workers with that alone");
    }
}
