//! A campaign: an experiment's runs, one after the other, each kept as soon as it is over.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::address;
use crate::agents::Agents;
use crate::agents::wire::Task;
use crate::bottleneck::{self, Known, KnownSyncs, Verdict};
use crate::error::Error;
use crate::experiment::{Cell, Experiment};
use crate::harness::{self, Crew, Failure, Outcome, Progress, RunFailure, Settings, Time};
use crate::host::{self, Usage};
use crate::http::{HttpSettings, HttpTarget, HttpWorkload};
use crate::plan::{Plan, Run};
use crate::random::{Random, stream};
use crate::replica::Behind;
use crate::results::{RunRecord, Writer};
use crate::sampling::{self, DATABASE, Find, Sampled, Sampler, Serving, Watched, Whose};
use crate::scenario::Drives;
use crate::sync::kind::{refuse_processors, workers_given};
use crate::sync::{NO_MARIADB, Own, OwnWorkload, Place, Stamped, SyncSettings, SyncWorkload};
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
    /// It is over, and kept next; and what limited it, if it was measured.
    Ended(Run, &'e Outcome, Option<&'e Verdict>),
}

/// What was seen beside a run.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What limited it.
    pub verdict: Verdict,
    /// Processors that the lab and the database had in use, on average; none: not all of it is known.
    pub processors: Option<f64>,
    /// The samples.
    pub sampled: Sampled,
    /// When each sync that was measured began and ended.
    pub(crate) syncs: Vec<Stamped>,
    /// Of all processors' time in sets of syncs, what the server and the database had, in per cent; none: nothing was sampled, or there are no such.
    pub(crate) shares: [Option<f64>; 2],
    /// How far the target's replica was behind, where there is one.
    pub behind: Option<Behind>,
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
    /// Where requests go, by address and proxy.
    servers: BTreeMap<(String, Option<String>), HttpTarget>,
    target: Option<&'c str>,
    /// In the place of all replicas of the experiment.
    replica: Option<&'c str>,
    /// For files of SQLite.
    folder: PathBuf,
    /// What serves syncs.
    program: Option<PathBuf>,
    /// A system of one's own.
    own: Option<Own>,
    /// Who has the clients; none: this process.
    agents: Option<Agents>,
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
        let mut campaign = Campaign {
            experiment,
            plan,
            targets: BTreeMap::new(),
            servers: BTreeMap::new(),
            target,
            replica: None,
            folder,
            program: None,
            own: None,
            agents: None,
        };
        for cell in &experiment.cells {
            let Some(address) = target.or(cell.target.url.as_deref()) else {
                let what = "the experiment has no target.url; write one, or give --target URL".to_owned();
                return Err(Error::Usage(what));
            };
            if campaign.drives(cell) == Drives::Requests {
                let server = HttpTarget::parse(address, cell.target.proxy.as_deref())?;
                campaign.servers.insert((address.to_owned(), cell.target.proxy.clone()), server);
            } else if !campaign.targets.contains_key(address) {
                let target = Target::parse(address, &campaign.folder)?;
                if campaign.drives(cell) == Drives::Syncs && matches!(target, Target::MariaDb(_)) {
                    return Err(Error::Usage(NO_MARIADB.to_owned()));
                }
                campaign.targets.insert(address.to_owned(), target);
            }
            if campaign.drives(cell) == Drives::Syncs {
                let settings = SyncSettings::of(&cell.parameters).map_err(|(_, why)| Error::Usage(why))?;
                refuse_processors(&settings).map_err(Error::Usage)?;
            }
            campaign.time(cell)?;
            campaign.add_replica(cell)?;
        }
        Ok(campaign)
    }

    /// Refuses results in a file that is measured, which would be removed with what the lab has made there.
    pub fn refuse_results(&self, results: &Path) -> Result<(), Error> {
        let place = |path: &Path| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            folder.canonicalize().ok().zip(path.file_name().map(ToOwned::to_owned))
        };
        let is_it = |target: &&Target| matches!(target, Target::Sqlite { path, .. } if place(path).is_some_and(|one| place(results) == Some(one)));
        let Some(target) = self.targets.values().find(is_it) else { return Ok(()) };
        let what =
            format!("{} is measured, and can't have the results; name another file by --results", target.address());
        Err(Error::Usage(what))
    }

    /// With this replica in the place of all of the experiment. Connects to nothing.
    pub fn with_replica(self, replica: Option<&'c str>) -> Result<Campaign<'c>, Error> {
        let mut campaign = Campaign { replica, ..self };
        campaign.experiment.cells.iter().try_for_each(|cell| campaign.add_replica(cell))?;
        Ok(campaign)
    }

    fn add_replica(&mut self, cell: &Cell) -> Result<(), Error> {
        let Some(address) = self.replica_address(cell).map(str::to_owned) else { return Ok(()) };
        let refuse = |what: &str| {
            Err(Error::Usage(format!("{what} has no replica: leave target.replica_url and --replica out")))
        };
        if self.drives(cell) != Drives::Transactions {
            return refuse(&format!("scenario {:?}", self.experiment.scenarios[cell.scenario].name));
        }
        if self.target_of(cell).is_blocking() {
            return refuse("a file of SQLite");
        }
        let replica = Target::parse(&address, &self.folder)?;
        self.targets.entry(address).or_insert(replica);
        Ok(())
    }

    fn replica_address<'a>(&'a self, cell: &'a Cell) -> Option<&'a str> {
        self.replica.or(cell.target.replica_url.as_deref()).filter(|address| *address != address::NONE)
    }

    fn replica_of(&self, cell: &Cell) -> Option<&Target> {
        self.replica_address(cell).and_then(|address| self.targets.get(address))
    }

    /// With the program `headwater`, which serves where the scenario is one of syncs, and as a gateway.
    #[must_use]
    pub fn served_by(self, program: PathBuf) -> Campaign<'c> {
        Campaign { program: Some(program), ..self }
    }

    /// With a system of one's own, for the scenario `own`.
    #[must_use]
    pub fn with_own(self, own: Option<Own>) -> Campaign<'c> {
        Campaign { own, ..self }
    }

    /// With the clients at these agents. An error: a cell is not for agents.
    pub fn driven_by(self, agents: Option<Agents>) -> Result<Campaign<'c>, Error> {
        if let Some(agents) = &agents {
            self.look_over(agents.count())?;
        }
        Ok(Campaign { agents, ..self })
    }

    /// Whether so many agents can do all cells; an error says why not. Looks at nothing but the experiment.
    pub fn look_over(&self, agents: usize) -> Result<(), Error> {
        for cell in &self.experiment.cells {
            let clients = cell.load.clients;
            let why = if clients < agents {
                format!("load.clients = {clients} is less than one for each of {agents} agents")
            } else if cell.stop.steady_within.is_some() {
                "stop.steady is looked for by one process alone; write stop.warmup".to_owned()
            } else if self.drives(cell) == Drives::Transactions && self.target_of(cell).is_blocking() {
                "agents can't reach a file of SQLite; name a database that has an address".to_owned()
            } else if self.drives(cell) == Drives::Own {
                "a system of one's own is tried by one process alone".to_owned()
            } else {
                continue;
            };
            return Err(Error::Usage(why));
        }
        Ok(())
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
        if let Some(agents) = &self.agents {
            agents.dismiss().await;
        }
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
        host::raise_open_files();
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
            let (outcome, seen) = self.one(*run, interrupt, &mut |progress| watch(Event::Progress(progress))).await?;
            // First it is told, then kept: perhaps there is no room.
            watch(Event::Ended(*run, &outcome, seen.as_ref().map(|seen| &seen.verdict)));
            results.run(&RunRecord {
                run: *run,
                started,
                outcome: &outcome,
                seen: seen.as_ref(),
                client_cpu_ns: outcome.agents_cpu_ns().or_else(|| usage.client_cpu_ns()),
                steal_percent: usage.steal_percent(),
            })?;
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
    ) -> Result<(Outcome, Option<Seen>), Error> {
        let cell = &self.experiment.cells[run.cell];
        let scenario = &self.experiment.scenarios[cell.scenario];
        let settings = self.settings(run)?;
        match scenario.drives {
            Drives::Syncs | Drives::Own => return self.syncs(run, &settings, interrupt, progress).await,
            Drives::Requests => return self.requests(run, &settings, interrupt, progress).await,
            Drives::Transactions => {}
        }
        let target = self.target_of(cell);
        let workload = SqlWorkload::new(target.clone(), scenario, cell, settings.seed, interrupt.clone());
        let workload = Arc::new(workload.map_err(Error::Target)?.with_replica(self.replica_of(cell).cloned()));
        let sampling = self.sampler(Some(target), None, interrupt).await?;
        let task = self.task(run, &settings);
        let outcome = harness::run_by(self.crew(&task), workload.clone(), &settings, interrupt, progress).await;
        let all = sampling.stop();
        let seen = outcome.measured.as_ref().map(|measured| {
            let sampled = all.during(measured.from, measured.elapsed, None);
            let (threads, is_embedded) = (settings.time.threads(), target.is_blocking());
            let known = Known { load: &cell.load, threads, is_embedded, measured, sampled: &sampled };
            let processors = bottleneck::processors_in_use(&sampled, is_embedded, false);
            let behind = workload.behind(measured.from, measured.elapsed);
            Seen {
                verdict: bottleneck::verdict(&known),
                processors,
                sampled,
                syncs: Vec::new(),
                shares: [None; 2],
                behind,
            }
        });
        Ok((outcome, seen))
    }

    /// A run of syncs.
    async fn syncs(
        &self,
        run: Run,
        settings: &Settings,
        interrupt: &watch::Receiver<bool>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(Outcome, Option<Seen>), Error> {
        let cell = &self.experiment.cells[run.cell];
        let Some(program) = self.program.clone() else {
            return Err(Error::Usage("syncs take the program that serves them".to_owned()));
        };
        let is_own = self.drives(cell) == Drives::Own;
        let of_cell = if is_own { SyncSettings::of_own(&cell.parameters) } else { SyncSettings::of(&cell.parameters) };
        let mut of_cell = of_cell.map_err(|(_, why)| Error::Usage(why))?;
        let (target, server) = (self.target_of(cell).clone(), Arc::new(Serving::default()));
        let address = match &target {
            Target::Sqlite { .. } => target.address(),
            Target::Postgres(_) | Target::MariaDb(_) => {
                self.target.or(cell.target.url.as_deref()).unwrap_or_default().to_owned()
            }
        };
        let of_run = (cell.load.clients, settings.seed);
        let sampling = self.sampler(Some(&target), Some(server.clone()), interrupt).await?;
        let mut syncs = Vec::new();
        let outcome = if is_own {
            let Some(own) = self.own.clone() else {
                return Err(Error::Usage(
                    "scenario \"own\" takes a system of one's own: headwater --config FILE lab run".to_owned(),
                ));
            };
            if own.server.is_some()
                && let Some((name, why)) = of_cell.only_of_a_start()
            {
                return Err(Error::Usage(format!("scenario.{name} with --server: {why}")));
            }
            let expected = workers_given(&cell.parameters);
            let workload = OwnWorkload::new(own, program, (of_cell, expected), settings.seed, server);
            let workload = Arc::new(workload);
            let outcome = harness::run(workload.clone(), settings, interrupt, progress).await;
            of_cell = workload.settings();
            outcome
        } else {
            let host = self.agents.as_ref().map_or(Ipv4Addr::LOCALHOST.into(), |agents| agents.host);
            let place = Place { target: target.clone(), address, program, server, host };
            let scenario = &self.experiment.scenarios[cell.scenario];
            let workload = Arc::new(SyncWorkload::new(place, scenario, of_cell, of_run, interrupt.clone()));
            let task = self.task(run, settings);
            let outcome = harness::run_by(self.crew(&task), workload.clone(), settings, interrupt, progress).await;
            syncs = workload.stamps().take();
            outcome
        };
        let all = sampling.stop();
        let seen = outcome.measured.as_ref().zip(outcome.measured.as_ref().and_then(|measured| measured.sets.as_ref()));
        let seen = seen.map(|(measured, sets)| {
            let sampled = all.during(measured.from, measured.elapsed, Some(sets));
            let of_sets = sampled.of_sets(sets, measured.from);
            let shares = bottleneck::shares(&of_sets);
            let threads = settings.time.threads();
            let known = KnownSyncs {
                settings: &of_cell,
                threads,
                is_embedded: target.is_blocking(),
                measured,
                sets,
                sampled: &of_sets,
            };
            let processors = bottleneck::processors_in_use(&sampled, target.is_blocking(), true);
            // By their middle: an agent's clock is known to a part of a millisecond.
            let middle = |sync: &Stamped| sync.began + sync.ended.saturating_duration_since(sync.began) / 2;
            let is_measured =
                |sync: &Stamped| sets.spans.iter().any(|(first, last)| (*first..=*last).contains(&middle(sync)));
            syncs.retain(is_measured);
            let syncs = std::mem::take(&mut syncs);
            Seen { verdict: bottleneck::verdict_of_syncs(&known), processors, sampled, syncs, shares, behind: None }
        });
        Ok((outcome, seen))
    }

    /// A run of requests.
    async fn requests(
        &self,
        run: Run,
        settings: &Settings,
        interrupt: &watch::Receiver<bool>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(Outcome, Option<Seen>), Error> {
        let cell = &self.experiment.cells[run.cell];
        let of_cell = HttpSettings::of(&cell.parameters).map_err(|(_, why)| Error::Usage(why))?;
        let target = self.server_of(cell)?.clone();
        let (link, is_own) = (of_cell.link, target.is_own());
        let workload = HttpWorkload::new(target, of_cell, (settings.seed, cell.load.timeout));
        let workload = Arc::new(workload.map_err(Error::Target)?.served_by(self.program.clone()));
        let sampling = self.sampler(None, None, interrupt).await?;
        let task = self.task(run, settings);
        let outcome = harness::run_by(self.crew(&task), workload, settings, interrupt, progress).await;
        let all = sampling.stop();
        let seen = outcome.measured.as_ref().map(|measured| {
            let sampled = all.during(measured.from, measured.elapsed, None);
            let threads = settings.time.threads();
            let known = Known { load: &cell.load, threads, is_embedded: false, measured, sampled: &sampled };
            let verdict = bottleneck::verdict_of_requests(&known, link, is_own);
            Seen { verdict, processors: None, sampled, syncs: Vec::new(), shares: [None; 2], behind: None }
        });
        Ok((outcome, seen))
    }

    /// What agents are told of a run, but which clients they have.
    fn task(&self, run: Run, settings: &Settings) -> Task {
        let cell = &self.experiment.cells[run.cell];
        let address = self.target.or(cell.target.url.as_deref()).unwrap_or_default();
        Task {
            text: self.experiment.text.clone(),
            files: self.experiment.files.clone(),
            cell: run.cell,
            seed: settings.seed,
            clients: 0..0,
            target: address::shown(address),
            handover: serde_json::Value::Null,
        }
    }

    /// Who drives the clients, where that is not this process.
    fn crew<'t>(&'t self, task: &'t Task) -> Option<Crew<'t>> {
        self.agents.as_ref().map(|agents| Crew { agents, task })
    }

    fn settings(&self, run: Run) -> Result<Settings, Error> {
        let cell = &self.experiment.cells[run.cell];
        // The same in each cell of a round: cells are compared by the same draws.
        let seed = Random::derived(self.plan.seed, &[stream::RUN, run.repetition as u64]).bits();
        Ok(Settings { load: cell.load.clone(), stop: cell.stop, seed, time: self.time(cell)? })
    }

    /// `server`: what serves syncs, whose sessions are looked at then.
    async fn sampler(
        &self,
        target: Option<&Target>,
        server: Option<Arc<Serving>>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Sampler, Error> {
        let processes = self.processes(target, interrupt).await;
        let whose = if server.is_some() { Whose::Servers } else { Whose::Labs };
        let sessions = target.filter(|_| self.experiment.sample.has_waits).map(|target| (target.clone(), whose));
        Sampler::start(Watched { processes, sessions, server }, interrupt.clone())
    }

    /// The processes to sample, as they are now.
    async fn processes(&self, target: Option<&Target>, interrupt: &watch::Receiver<bool>) -> Vec<(String, Vec<i32>)> {
        let named = &self.experiment.sample.processes;
        let of = |(name, find): &(String, Find)| (name.clone(), find.roots(&self.folder).unwrap_or_default());
        let mut all: Vec<_> = named.iter().map(of).collect();
        if let Some(target) = target
            && !named.iter().any(|(name, _)| name == DATABASE)
        {
            let found = tokio::time::timeout(LOOK, async {
                let mut session = target.connect(LOOK, interrupt).await.ok()?;
                sampling::database(target, &mut session).await.ok()?
            });
            all.extend(found.await.ok().flatten().map(|root| (DATABASE.to_owned(), vec![root])));
        }
        all
    }

    /// Looks at each target, and keeps what it and the machine are.
    async fn look(&self, results: &Writer, interrupt: &watch::Receiver<bool>) -> Result<(), Error> {
        let mut facts = host::describe(Path::new(&self.experiment.file).parent().unwrap_or(Path::new("")));
        for (place, (address, target)) in self.targets.iter().enumerate() {
            let looked = tokio::time::timeout(LOOK, async {
                let mut session = target.connect(LOOK, interrupt).await?;
                let is_sql = |cell: &&Cell| self.drives(cell) != Drives::Requests;
                for cell in self.experiment.cells.iter().filter(is_sql) {
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
        for (place, server) in self.servers.values().enumerate() {
            look_at(server).await.map_err(Error::Target)?;
            let described = server.describe().into_iter();
            let number = self.targets.len() + place + 1;
            facts.extend(described.map(|(key, value)| (format!("target {number} {key}"), value)));
        }
        for (name, find) in &self.experiment.sample.processes {
            find.roots(&self.folder).map_err(|why| Error::Usage(format!("sample.process.{name}: {why}")))?;
        }
        if let Some(agents) = &self.agents {
            facts.extend(agents.describe().await);
        }
        results.environment(&facts)?;
        Ok(())
    }

    fn drives(&self, cell: &Cell) -> Drives {
        self.experiment.scenarios[cell.scenario].drives
    }

    fn server_of(&self, cell: &Cell) -> Result<&HttpTarget, Error> {
        let address = self.target.or(cell.target.url.as_deref()).unwrap_or_default();
        let server = self.servers.get(&(address.to_owned(), cell.target.proxy.clone()));
        server.ok_or_else(|| Error::Usage("the experiment has another target than before".to_owned()))
    }

    fn target_of(&self, cell: &Cell) -> &Target {
        let address = self.target.or(cell.target.url.as_deref()).unwrap_or_default();
        &self.targets[address]
    }

    fn time(&self, cell: &Cell) -> Result<Time, Error> {
        let clients = cell.load.clients;
        if self.drives(cell) == Drives::Transactions && self.target_of(cell).is_blocking() {
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

/// Whether somebody listens there.
async fn look_at(server: &HttpTarget) -> Result<(), Failure> {
    let Some(place) = server.place() else { return Ok(()) };
    let refused = |why: String| Failure::new(harness::Class::Refused, format!("{place}: {why}"));
    match tokio::time::timeout(LOOK, TcpStream::connect(&place)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(refused(error.to_string())),
        Err(_) => Err(refused(format!("no connection within {LOOK:?}"))),
    }
}
