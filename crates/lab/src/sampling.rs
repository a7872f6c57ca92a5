//! What the machine, the processes and the database were doing while a run was measured.
//!
//! ```text
//! sampler (a thread of its own) -- each tenth of a second --> sessions: what the database's sessions do or wait for
//!                               -- each tenth of a second --> served: how full the server of syncs is
//!                               -- each half second --------> counters: /proc of the machine and of each process
//!      |
//!   samples --during(what was measured)--> sampled --> bottleneck, results
//! ```
//!
//! Samples are taken from before the clients connect until they have ended; only those of the time that was measured count.
//!
//! *Caveats.* The sampler is part of the lab, so its own processor time is in the lab's. A process is counted with what it has started;
//! of those that end meanwhile only the processor time is kept. `/proc` knows this machine alone: of a database on another only what its
//! sessions wait for is known.

mod counters;
mod find;
mod served;
mod sessions;
#[cfg_attr(target_os = "linux", path = "sampling/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "sampling/elsewhere.rs")]
mod system;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::error::Error;
use crate::harness::SetTimes;
use crate::target::{Session, Target};

pub(crate) use counters::Spent;
pub use counters::{MachineUse, ProcessUse};
pub use find::Find;
pub(crate) use find::database;
pub use served::ServerLoad;
pub(crate) use served::{Serving, workers};
pub(crate) use sessions::Whose;
pub use sessions::{Blocked, Wait, Waits};
pub(crate) use system::spent;
#[cfg(target_os = "linux")]
pub(crate) use system::tree;

/// How often the sessions are looked at.
const SESSIONS_EVERY: Duration = Duration::from_millis(100);
/// Each so many looks the counters are read.
const COUNTERS_EVERY: u32 = 5;
/// The same of syncs, whose sets may be short.
const COUNTERS_OF_SETS_EVERY: u32 = 2;
/// How long a look at the sessions may take.
const LOOK: Duration = Duration::from_secs(2);
/// The lab itself, among the processes.
pub(crate) const LAB: &str = "lab";
/// The target's database, among the processes.
pub(crate) const DATABASE: &str = "database";
/// What serves syncs, among the processes.
pub(crate) const SERVER: &str = "server";

/// What is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Whether the database is asked what its sessions do.
    pub has_waits: bool,
    /// Processes by the names that results have.
    pub processes: Vec<(String, Find)>,
}

impl Default for Sample {
    fn default() -> Self {
        Sample { has_waits: true, processes: Vec::new() }
    }
}

/// What is looked at.
pub(crate) struct Watched {
    /// Processes by name, each with its roots; the lab is counted without being named.
    pub(crate) processes: Vec<(String, Vec<i32>)>,
    /// Whose sessions; none: nobody's.
    pub(crate) sessions: Option<(Target, Whose)>,
    /// What serves syncs, where something does.
    pub(crate) server: Option<Arc<Serving>>,
}

/// Takes samples until it is stopped.
pub(crate) struct Sampler {
    stop: watch::Sender<bool>,
    thread: JoinHandle<Samples>,
}

/// Readings of a process.
type Series = Vec<(Instant, counters::Process)>;

/// All that was seen, from before the clients connected until they ended.
pub(crate) struct Samples {
    machine: Vec<(Instant, counters::Machine)>,
    own: Series,
    processes: Vec<(String, Series)>,
    sessions: Result<Vec<(Instant, sessions::Seen)>, String>,
    served: Vec<(Instant, ServerLoad)>,
}

/// What was seen while a run was measured.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The machine, sample by sample.
    pub machine: Vec<MachineUse>,
    /// Each process, by name, sample by sample.
    pub processes: Vec<(String, Vec<ProcessUse>)>,
    /// What the lab's sessions did, or those of the server of syncs; or why that is not known.
    pub waits: Result<Waits, String>,
    /// How full the server of syncs was on average, where there is one.
    pub server: Option<ServerLoad>,
}

impl Sampler {
    /// Begins.
    pub(crate) fn start(watched: Watched, interrupt: watch::Receiver<bool>) -> Result<Sampler, Error> {
        let (stop, stopped) = watch::channel(false);
        let sample = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(sample(&watched, &interrupt, stopped)),
            Err(error) => Samples::none(format!("the sampler could not be started: {error}")),
        };
        let thread = std::thread::Builder::new().name("lab-sampler".to_owned()).spawn(sample);
        let thread = thread.map_err(|error| Error::Usage(format!("the sampler could not be started: {error}")))?;
        Ok(Sampler { stop, thread })
    }

    /// Ends, and gives what was seen.
    pub(crate) fn stop(self) -> Samples {
        self.stop.send_replace(true);
        let died = |_| Samples::none("the sampler ended before its time; this is a defect".to_owned());
        self.thread.join().unwrap_or_else(died)
    }
}

async fn sample(watched: &Watched, interrupt: &watch::Receiver<bool>, mut stopped: watch::Receiver<bool>) -> Samples {
    let names = watched.processes.iter().map(|(name, _)| name.clone());
    let names = names.chain(watched.server.iter().map(|_| SERVER.to_owned()));
    let mut samples = Samples {
        processes: names.map(|name| (name, Vec::new())).collect(),
        sessions: Ok(Vec::new()),
        ..Samples::none(String::new())
    };
    let mut asker = served::Asker::default();
    let whose = watched.sessions.as_ref().map_or(Whose::Labs, |(_, whose)| *whose);
    let mut session = connect(watched.sessions.as_ref().map(|(target, _)| target), interrupt).await;
    let mut ticks = tokio::time::interval(SESSIONS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let counters_every = if watched.server.is_some() { COUNTERS_OF_SETS_EVERY } else { COUNTERS_EVERY };
    for tick in 0u32.. {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
            _ = ticks.tick() => {}
        }
        if tick.is_multiple_of(counters_every) {
            samples.count(watched);
        }
        if let Some(serving) = &watched.server {
            samples.served.extend(asker.look(serving).await.map(|load| (Instant::now(), load)));
        }
        if let Ok(open) = &mut session {
            let with_blockers = tick.is_multiple_of(sessions::BLOCKERS_EVERY);
            let looked = tokio::time::timeout(LOOK, sessions::look(open, whose, with_blockers)).await;
            match looked {
                Ok(Ok(seen)) => samples.sessions.iter_mut().for_each(|all| all.push((Instant::now(), seen.clone()))),
                Ok(Err(failure)) => session = Err(failure.to_string()),
                Err(_) => session = Err(format!("the database did not tell its sessions within {LOOK:?}")),
            }
        }
    }
    samples.count(watched);
    if let Err(why) = session {
        samples.sessions = Err(why);
    }
    samples
}

async fn connect(target: Option<&Target>, interrupt: &watch::Receiver<bool>) -> Result<Session, String> {
    let Some(target) = target else { return Err("sample.waits is false".to_owned()) };
    if target.is_blocking() {
        return Err("SQLite does not tell what it waits for".to_owned());
    }
    let connected = tokio::time::timeout(LOOK, target.connect(LOOK, interrupt)).await;
    connected.map_err(|_| format!("no connection within {LOOK:?}"))?.map_err(|failure| failure.to_string())
}

impl Samples {
    fn none(why: String) -> Samples {
        let (machine, own, processes, served) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Samples { machine, own, processes, sessions: Err(why), served }
    }

    fn count(&mut self, watched: &Watched) {
        let now = Instant::now();
        self.machine.extend(system::machine().map(|machine| (now, machine)));
        let all = system::processes();
        self.own.extend(system::own(&all).map(|process| (now, process)));
        let server = watched.server.iter().map(|serving| serving.process().into_iter().collect());
        let roots = watched.processes.iter().map(|(_, roots)| roots.clone()).chain(server);
        for (roots, (_, series)) in roots.zip(&mut self.processes) {
            series.extend(system::of_tree(&all, &roots).map(|process| (now, process)));
        }
    }

    /// What was seen in the time after `from`; of sessions and the server's load, only what was seen in its sets, where operations were
    /// done in sets.
    pub(crate) fn during(self, from: Instant, time: Duration, sets: Option<&SetTimes>) -> Sampled {
        let span = (from, from + time);
        let processes = [(LAB.to_owned(), self.own)].into_iter().chain(self.processes);
        let spans = sets.map_or_else(|| vec![span], |sets| sets.spans.clone());
        let within = |at: &Instant| spans.iter().any(|(begin, end)| begin <= at && at <= end);
        let seen = |all: Vec<(Instant, sessions::Seen)>| {
            sessions::add_up(all.into_iter().filter(|(at, _)| within(at)).map(|(_, seen)| seen))
        };
        Sampled {
            machine: between(self.machine, span, counters::Machine::since),
            processes: processes.map(|(name, all)| (name, between(all, span, counters::Process::since))).collect(),
            waits: self.sessions.and_then(seen),
            server: ServerLoad::average(self.served.into_iter().filter(|(at, _)| within(at)).map(|(_, load)| load)),
        }
    }
}

/// What `since` makes of neighbouring readings in a span: of the second, the first, when the second was taken, and how long after it.
fn between<R, U>(
    readings: Vec<(Instant, R)>,
    (from, to): (Instant, Instant),
    since: impl Fn(&R, &R, Duration, Duration) -> U,
) -> Vec<U> {
    let within: Vec<_> = readings.into_iter().filter(|(at, _)| from <= *at && *at <= to).collect();
    let pair = |pair: &[(Instant, R)]| since(&pair[1].1, &pair[0].1, pair[1].0 - from, pair[1].0 - pair[0].0);
    within.windows(2).map(pair).collect()
}

impl Sampled {
    /// The samples of a process.
    pub(crate) fn process(&self, name: &str) -> &[ProcessUse] {
        self.processes.iter().find(|(known, _)| known == name).map_or(&[], |(_, series)| series)
    }

    /// Of the machine and processes only the samples of which half or more lie in these sets, which were measured after `from`.
    pub(crate) fn of_sets(&self, sets: &SetTimes, from: Instant) -> Sampled {
        let in_sets = |at: Duration, span: Duration| {
            let (begin, end) = (from + at.saturating_sub(span), from + at);
            let common =
                |(first, last): &(Instant, Instant)| end.min(*last).saturating_duration_since(begin.max(*first));
            2 * sets.spans.iter().map(common).sum::<Duration>() >= span
        };
        let of = |series: &Vec<ProcessUse>| {
            series.iter().filter(|one| in_sets(one.at, one.span)).copied().collect::<Vec<_>>()
        };
        Sampled {
            machine: self.machine.iter().filter(|one| in_sets(one.at, one.span)).copied().collect(),
            processes: self.processes.iter().map(|(name, series)| (name.clone(), of(series))).collect(),
            waits: self.waits.clone(),
            server: self.server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readings_of_the_span_count() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let readings: Vec<(Instant, u64)> = (0..6).map(|n: u32| (start + n * second, u64::from(n * n))).collect();
        let since = |now: &u64, before: &u64, at: Duration, span: Duration| (now - before, at, span);
        let used = between(readings, (start + second, start + 3 * second), since);
        assert_eq!(used, [(3, second, second), (5, 2 * second, second)]);
        assert_eq!(between(vec![(start, 1)], (start, start + second), since), [], "one reading tells nothing");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processes_are_found_with_what_they_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "sleep 100 & echo $! > child; echo $$ > parent; : > ready; wait";
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.current_dir(folder.path()).args(["-c", script]).spawn().expect("sh starts");
        let file = folder.path().join("ready");
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let roots = Find::PidFile("parent".to_owned()).roots(folder.path());
        let all = system::processes();
        let tree = system::of_tree(&all, &[shell.id() as i32]);
        let child = std::fs::read_to_string(folder.path().join("child")).expect("the child's ID");
        let child: i32 = child.trim().parse().expect("a number");
        let alone = system::of_tree(&all, &[child]);
        let _ = std::process::Command::new("kill").arg(child.to_string()).status();
        let _ = shell.wait();
        assert_eq!(roots, Ok(vec![shell.id() as i32]));
        let threads = |process: Option<counters::Process>| process.map(|process| process.threads);
        assert_eq!((threads(tree), threads(alone)), (Some(2), Some(1)), "the shell and its child");
        assert_eq!(system::of_tree(&all, &[i32::MAX]), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let own = std::process::id() as i32;
        assert_eq!(Find::Port(port).roots(std::path::Path::new("")), Ok(vec![own]));
        drop(listener);
        let gone = Find::Port(port).roots(std::path::Path::new(""));
        assert_eq!(gone, Err(format!("there is not a process that listens on port {port}")));
        assert!(Find::Command("no-such-command".to_owned()).roots(std::path::Path::new("")).is_err());
        assert!(Find::PidFile("no-such-file".to_owned()).roots(std::path::Path::new("")).is_err());
    }
}
