//! Experiments: one TOML file, of which any scalar may be a list. The cross product of all lists is run, cell by cell.
//!
//! ```text
//! text --parse--> axes (a key with its values) --cells--> cells (one value a key) --Plan--> runs, in order
//! ```
//!
//! ```
//! use headwater_lab::experiment::Experiment;
//!
//! let text = r#"
//!     name = "clients"
//!     repetitions = 3
//!     scenario.name = "tpcb"
//!     load.clients = [1, 2, 4, 8]
//!     stop.duration = "10s"
//! "#;
//! let no_files = |_: &str| Err("there are no files".to_owned());
//! let experiment = Experiment::parse("clients.toml", text, &no_files).expect("a valid experiment");
//! assert_eq!(experiment.cells.len(), 4);
//! assert_eq!(experiment.cells[3].varied, [("load.clients".to_owned(), "8".to_owned())]);
//!
//! let wrong = text.replace("load.clients", "load.client");
//! let errors = Experiment::parse("clients.toml", &wrong, &no_files).unwrap_err();
//! assert_eq!(
//!     errors[0].to_string(),
//!     "clients.toml:5:10: unknown key \"client\" in [load], expected clients, arrival, think, ramp, rate, queue_max, timeout or \
//!      threads; did you mean \"clients\"?"
//! );
//! ```

mod axes;
mod cells;
mod keys;
mod sample;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::bristlecone;
use crate::error::Error;
use crate::reading::{self, SpecError};
use crate::sampling::Sample;
use crate::scenario::{ByDatabase, Drives, Scenario};
use crate::value::Value;

/// More cells than anybody waits for.
pub const CELLS_MAX: usize = 100_000;
/// How often each cell may be repeated.
pub const REPETITIONS_MAX: i64 = 1_000;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The file's name, as it was given.
    pub file: String,
    /// The file's text, with addresses as people may see them.
    pub text: String,
    /// Its name; results are named by it.
    pub name: String,
    /// What it is to show.
    pub about: String,
    /// Where all that is random comes from; chosen anew for each campaign where the file has none.
    pub seed: Option<u64>,
    /// How often each cell is run.
    pub repetitions: usize,
    /// In which order.
    pub order: Order,
    /// The scenarios that cells choose from.
    pub scenarios: Vec<Scenario>,
    /// The cells, in the order of the file.
    pub cells: Vec<Cell>,
    /// What is sampled beside the runs.
    pub sample: Sample,
    /// The files that it names, as they were read.
    pub files: BTreeMap<String, String>,
}

/// The order of the cells in each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By chance, in each round another.
    #[default]
    Shuffled,
    /// That of the file, every second round backwards.
    Abba,
}

/// One choice of a value for each key.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The keys that have more than one value in the experiment, with this cell's.
    pub varied: Vec<(String, String)>,
    /// Which of the scenarios.
    pub scenario: usize,
    /// All parameters of the scenario.
    pub parameters: Vec<(String, Value)>,
    /// What it runs against.
    pub target: TargetSettings,
    /// Who comes, and when.
    pub load: Load,
    /// When it ends.
    pub stop: Stop,
}

/// The keys of `setup_of`, in its order.
const SETUPS: [&str; 3] = ["target.setup_postgresql", "target.setup_mariadb", "target.setup_sqlite"];

/// What a cell runs against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSettings {
    /// The address: `postgres://...`, `sqlite:FILE`, `http://...`, `origin:`; may have a password in it.
    pub url: Option<String>,
    /// SQL that each connection begins with.
    pub setup: Option<String>,
    /// And after it where the target is such a database.
    pub setup_of: ByDatabase<Option<String>>,
    /// The proxy that requests of HTTP go by; `none`: by none.
    pub proxy: Option<String>,
    /// Where what is written at the target comes to be read; may have a password in it; `none`: nowhere.
    pub replica_url: Option<String>,
}

/// Who comes, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// How many at once, each with a connection.
    pub clients: usize,
    /// When an operation begins.
    pub arrival: Arrival,
    /// Closed loop: the time over which clients begin, one after the other; within the warm-up.
    pub ramp: Duration,
    /// How long an operation may take.
    pub timeout: Duration,
    /// Threads that the clients share; none: as many as there are processors, or clients if those are fewer.
    pub threads: Option<usize>,
}

/// When operations begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// A client begins the next when it has done one, and has thought.
    Closed {
        /// From the end of one to the start of the next.
        think: Duration,
    },
    /// Operations come whether the target keeps up or not.
    Open {
        /// How many a second, over all clients.
        rate: f64,
        /// Whether by chance (a Poisson process), or at equal distances.
        is_poisson: bool,
        /// How many may wait for a client; one more is dropped, and counted.
        queue_max: usize,
    },
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// Before anything is measured.
    pub warmup: Duration,
    /// From then on until the rate and the response times have no trend any more, but no longer than until this time after the beginning;
    /// none: nobody looks, and the warm-up's time is all.
    pub steady_within: Option<Duration>,
    /// When it has been measured enough.
    pub rule: StopRule,
}

/// When it has been measured enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StopRule {
    /// After so many operations.
    Iterations(u64),
    /// After this time.
    Duration(Duration),
    /// When the 95 % interval of the median response time is at most so wide, in per cent of the median to either side.
    Interval {
        /// Per cent.
        percent: f64,
        /// After this time all the same.
        at_most: Duration,
    },
}

impl Experiment {
    /// Reads an experiment's file, and those that it names beside it.
    pub fn open(path: &Path) -> Result<Experiment, Error> {
        let read = |path: &Path| std::fs::read_to_string(path);
        let text = read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let files = |name: &str| read(&folder.join(name)).map_err(|error| error.to_string());
        Experiment::parse(&path.display().to_string(), &text, &files).map_err(Error::Spec)
    }

    /// Reads an experiment, or one of Bristlecone's files (`.properties`, `.xml`); `file` is for the errors, `files` gives the files that it names, by their paths beside it.
    pub fn parse(
        file: &str,
        text: &str,
        files: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Experiment, Vec<SpecError>> {
        let Some(translation) = bristlecone::translation(file, text, files) else {
            return Experiment::parse_own(file, text, files);
        };
        let translation = translation?;
        Experiment::parse_own(file, &translation.text, files).map_err(|errors| translation.placed(errors))
    }

    fn parse_own(
        file: &str,
        text: &str,
        files: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Experiment, Vec<SpecError>> {
        let read = RefCell::new(BTreeMap::new());
        let keeping = |name: &str| {
            let text = files(name)?;
            read.borrow_mut().insert(name.to_owned(), text.clone());
            Ok(text)
        };
        let experiment = reading::read(file, text, |reader, tree| {
            let draft = axes::Draft::read(reader, tree, &keeping)?;
            let cells = if reader.is_clean() { cells::cells(reader, &draft) } else { Vec::new() };
            let text = draft.without_secrets(text);
            let axes::Draft { name, about, seed, repetitions, order, scenarios, sample, .. } = draft;
            Some(Experiment {
                file: file.to_owned(),
                text,
                name,
                about,
                seed,
                repetitions,
                order,
                scenarios,
                cells,
                sample,
                files: BTreeMap::new(),
            })
        })?;
        Ok(Experiment { files: read.into_inner(), ..experiment })
    }
}

impl Experiment {
    /// Whether it takes a system of one's own: the scenario `own`.
    pub fn is_of_own(&self) -> bool {
        self.scenarios.iter().any(|scenario| scenario.drives == Drives::Own)
    }
}

impl Cell {
    /// What the cell has, key by key, as results show it; without the scenario's parameters.
    pub fn settings(&self) -> Vec<(String, String)> {
        let Load { clients, arrival, ramp, timeout, threads } = &self.load;
        let mut all = vec![("load.clients", clients.to_string())];
        match arrival {
            Arrival::Closed { think } => {
                all.extend([("load.arrival", "closed".to_owned()), ("load.think", format!("{think:?}"))]);
            }
            Arrival::Open { rate, is_poisson, queue_max } => all.extend([
                ("load.arrival", if *is_poisson { "poisson" } else { "constant" }.to_owned()),
                ("load.rate", rate.to_string()),
                ("load.queue_max", queue_max.to_string()),
            ]),
        }
        if !ramp.is_zero() {
            all.push(("load.ramp", format!("{ramp:?}")));
        }
        all.push(("load.timeout", format!("{timeout:?}")));
        all.extend(threads.map(|threads| ("load.threads", threads.to_string())));
        all.push(("stop.warmup", format!("{:?}", self.stop.warmup)));
        all.extend(self.stop.steady_within.map(|time| ("stop.steady_within", format!("{time:?}"))));
        match self.stop.rule {
            StopRule::Iterations(count) => all.push(("stop.iterations", count.to_string())),
            StopRule::Duration(time) => all.push(("stop.duration", format!("{time:?}"))),
            StopRule::Interval { percent, at_most } => {
                all.extend([("stop.interval", percent.to_string()), ("stop.at_most", format!("{at_most:?}"))]);
            }
        }
        all.extend(self.target.url.iter().map(|url| ("target.url", crate::address::shown(url))));
        all.extend(self.target.proxy.iter().map(|url| ("target.proxy", crate::address::shown(url))));
        all.extend(self.target.replica_url.iter().map(|url| ("target.replica_url", crate::address::shown(url))));
        all.extend(self.target.setup.iter().map(|setup| ("target.setup", setup.clone())));
        let of = self.target.setup_of.all().into_iter().zip(SETUPS);
        all.extend(of.filter_map(|(setup, key)| Some((key, setup.clone()?))));
        all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}
