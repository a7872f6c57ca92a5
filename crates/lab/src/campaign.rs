//! A campaign: an experiment's runs, one after the other, each kept as soon as it is over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::Error;
use crate::experiment::{Cell, Experiment};
use crate::harness::{self, Failure, Outcome, Progress, RunFailure, Settings, Time};
use crate::host::{self, Usage};
use crate::plan::{Plan, Run};
use crate::random::{Random, stream};
use crate::results::{RunRecord, Writer};
use crate::target::Target;
use crate::workload::{SqlWorkload, refuse_existing};

/// How long a look at a target may take before anything is run.
const LOOK: Duration = Duration::from_secs(10);

/// What becomes of a campaign, as it becomes known.
#[derive(Debug)]
pub enum Event<'e> {
    /// A run begins: which of how many, and its cell.
    Begun {
        /// From 1.
        number: usize,
        /// All of them.
        of: usize,
        /// What it runs.
        run: Run,
    },
    /// Where it is.
    Progress(&'e Progress),
    /// It is over, and kept.
    Ended(Run, &'e Outcome),
}

/// How a campaign ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Runs that are valid.
    pub done: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Whether it was interrupted.
    pub is_interrupted: bool,
}

/// An experiment with the targets of its cells.
pub struct Campaign<'c> {
    experiment: &'c Experiment,
    plan: &'c Plan,
    /// By address as it was written.
    targets: BTreeMap<String, Target>,
    target: Option<&'c str>,
    /// For files of SQLite.
    folder: PathBuf,
}

impl<'c> Campaign<'c> {
    /// Reads the addresses; connects to nothing. `target` takes the place of all addresses of the experiment; SQLite's files are looked
    /// for in `folder`.
    pub fn new(
        experiment: &'c Experiment,
        plan: &'c Plan,
        target: Option<&'c str>,
        folder: &Path,
    ) -> Result<Campaign<'c>, Error> {
        let folder = folder.to_owned();
        let mut campaign = Campaign { experiment, plan, targets: BTreeMap::new(), target, folder };
        for cell in &experiment.cells {
            let Some(address) = target.or(cell.target.url.as_deref()) else {
                let what = "the experiment has no target.url; write one, or give --target URL".to_owned();
                return Err(Error::Usage(what));
            };
            if !campaign.targets.contains_key(address) {
                let target = Target::parse(address, &campaign.folder)?;
                campaign.targets.insert(address.to_owned(), target);
            }
            campaign.time(cell)?;
        }
        Ok(campaign)
    }

    /// Runs all. Before anything is run every target is looked at: it must be there, and have none of the tables.
    pub async fn run(
        &self,
        results: &Writer,
        interrupt: &watch::Receiver<bool>,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Ended, Error> {
        let ended = self.run_all(results, interrupt, watch).await;
        let state = match &ended {
            Ok(Ended { is_interrupted: true, .. }) => "interrupted",
            Ok(_) => "done",
            Err(_) => "failed",
        };
        let kept = results.end(state);
        let mut removed = self.targets.values().map(|target| (target, target.remove_if_new()));
        let left = removed.find_map(|(target, removed)| Some((target, removed.err()?)));
        let ended = ended?;
        kept?;
        match left {
            Some((target, error)) => {
                Err(Error::LeftBehind(format!("{} could not be removed: {error}", target.address())))
            }
            None => Ok(ended),
        }
    }

    async fn run_all(
        &self,
        results: &Writer,
        interrupt: &watch::Receiver<bool>,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Ended, Error> {
        self.look(results, interrupt).await?;
        let mut ended = Ended { done: 0, failed: 0, is_interrupted: false };
        for (place, run) in self.plan.runs.iter().enumerate() {
            if *interrupt.borrow() {
                ended.is_interrupted = true;
                break;
            }
            watch(Event::Begun { number: place + 1, of: self.plan.runs.len(), run: *run });
            let started = results.now()?;
            let usage = Usage::now();
            let outcome = self.one(*run, interrupt, &mut |progress| watch(Event::Progress(progress))).await?;
            results.run(&RunRecord {
                run: *run,
                started,
                outcome: &outcome,
                client_cpu_ns: usage.client_cpu_ns(),
                steal_percent: usage.steal_percent(),
            })?;
            watch(Event::Ended(*run, &outcome));
            if let Some(what) = outcome.left_behind {
                let why = outcome.failure.map(|failure| format!("{failure}; ")).unwrap_or_default();
                return Err(Error::LeftBehind(format!("{why}not all is cleaned up: {what}")));
            }
            match outcome.failure {
                None => ended.done += 1,
                Some(RunFailure::Interrupted) => ended.is_interrupted = true,
                // What comes next would meet the same.
                Some(RunFailure::Target(failure)) => return Err(Error::Target(failure)),
                Some(failure @ RunFailure::Lost(_)) => return Err(Error::Lost(failure.to_string())),
                Some(RunFailure::Verify(_) | RunFailure::NothingDone(_)) => ended.failed += 1,
            }
        }
        Ok(ended)
    }

    async fn one(
        &self,
        run: Run,
        interrupt: &watch::Receiver<bool>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Outcome, Error> {
        let cell = &self.experiment.cells[run.cell];
        let scenario = &self.experiment.scenarios[cell.scenario];
        // The same in each cell of a round: cells are compared by the same draws.
        let seed = Random::derived(self.plan.seed, &[stream::RUN, run.repetition as u64]).bits();
        let workload = SqlWorkload::new(self.target_of(cell).clone(), scenario, cell, seed, interrupt.clone());
        let workload = Arc::new(workload.map_err(Error::Target)?);
        let settings = Settings { load: cell.load.clone(), stop: cell.stop, seed, time: self.time(cell)? };
        Ok(harness::run(workload, &settings, interrupt, progress).await)
    }

    /// Looks at each target, and keeps what it and the machine are.
    async fn look(&self, results: &Writer, interrupt: &watch::Receiver<bool>) -> Result<(), Error> {
        let mut facts = host::describe(Path::new(&self.experiment.file).parent().unwrap_or(Path::new("")));
        for (place, (address, target)) in self.targets.iter().enumerate() {
            let looked = tokio::time::timeout(LOOK, async {
                let mut session = target.connect(LOOK, interrupt).await?;
                for cell in &self.experiment.cells {
                    if self.target.or(cell.target.url.as_deref()) == Some(address) {
                        let scenario = &self.experiment.scenarios[cell.scenario];
                        refuse_existing(target, &mut session, scenario).await?;
                    }
                }
                target.describe(&mut session).await
            });
            let looked = looked.await.unwrap_or_else(|_| {
                Err(Failure::new(
                    harness::Class::TimeOut,
                    format!("{} does not answer within {LOOK:?}", target.address()),
                ))
            });
            let described = looked.map_err(Error::Target)?;
            facts.extend(described.into_iter().map(|(key, value)| (format!("target {} {key}", place + 1), value)));
        }
        results.environment(&facts)?;
        Ok(())
    }

    fn target_of(&self, cell: &Cell) -> &Target {
        let address = self.target.or(cell.target.url.as_deref()).unwrap_or_default();
        &self.targets[address]
    }

    fn time(&self, cell: &Cell) -> Result<Time, Error> {
        let clients = cell.load.clients;
        if self.target_of(cell).is_blocking() {
            if let Some(threads) = cell.load.threads.filter(|threads| *threads != clients) {
                let what = format!(
                    "load.threads is {threads} with {clients} clients of SQLite; leave it out: each has a thread"
                );
                return Err(Error::Usage(what));
            }
            return Ok(Time::Real { threads: clients });
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Time::Real { threads: cell.load.threads.unwrap_or(processors.min(clients)) })
    }
}
