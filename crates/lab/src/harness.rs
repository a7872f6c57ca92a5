//! One run: a workload is prepared, driven by clients, verified, and cleaned up after.
//!
//! ```text
//!              schedule (when the next operation begins; one for all clients)
//!                 |  ticket: intended start
//! client  --------+--> wait --> execute --> recorder (a second's histograms; one a thread)
//! client                                      |  each second
//! ...                                      observer: totals, series, stop rule, progress
//! ```
//!
//! In an open loop clients *pull*: who is free takes the next arrival from the schedule and waits for it. That is the same as a queue
//! before so many servers, and no arrival is forgotten: one whose intended start has passed when it is taken was late, one that never
//! began is counted as dropped. *Response time* counts from the intended start, *service time* from the actual one. In a closed loop
//! they are the same, and what a target's stall does to those who would have come meanwhile is not seen ("coordinated omission").
//!
//! *Caveats.* Only what succeeded is in the histograms; errors are counted beside them.

mod client;
mod clock;
mod conduct;
mod failure;
mod observe;
mod part;
mod record;
mod schedule;
mod sets;
mod steady;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::experiment::{Load, Stop};

pub use clock::Time;
pub(crate) use conduct::Crew;
pub use failure::{Class, Failure};
pub use observe::{AgentsUse, Ended, Measured, Progress, Second};
pub(crate) use part::take_part;
pub use record::{Counted, Histogram};
pub use sets::SetTimes;

/// What is driven.
pub trait Workload: Send + Sync + 'static {
    /// What one client has: its connection, and where its draws come from. Lives on one thread.
    type Client;

    /// Makes what the run needs at the target.
    fn prepare(&self) -> impl Future<Output = Result<(), Failure>>;

    /// A client that is not connected yet.
    fn client(&self, number: usize) -> Self::Client;

    /// Connects it, for the first time or again.
    fn connect(&self, client: &mut Self::Client) -> impl Future<Output = Result<(), Failure>>;

    /// Draws what the next operation is; no time is taken.
    fn generate(&self, client: &mut Self::Client);

    /// Does it; tells what it took, where it was not done at the first attempt.
    fn execute(&self, client: &mut Self::Client) -> impl Future<Output = Result<Attempts, Failure>>;

    /// Whether clients do their operations in sets: all begin one together, and none goes on before all have done theirs.
    fn is_in_sets(&self) -> bool {
        false
    }

    /// Makes a set possible, while no client does anything. A failure ends the run.
    fn begin_set(&self) -> impl Future<Output = Result<(), Failure>> {
        std::future::ready(Ok(()))
    }

    /// Looks at what a set has done, while no client does anything. A failure ends the run.
    fn end_set(&self) -> impl Future<Output = Result<(), Failure>> {
        std::future::ready(Ok(()))
    }

    /// Has a client ready for another set; no time is taken. A failure ends the run.
    fn restore(&self, _client: &mut Self::Client) -> impl Future<Output = Result<(), Failure>> {
        std::future::ready(Ok(()))
    }

    /// What an agent must know of the preparation, to drive clients of the same run.
    fn handover(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Takes what another's `handover` has given, in the place of the preparation.
    fn join(&self, _handover: &serde_json::Value) -> Result<(), Failure> {
        Ok(())
    }

    /// What who conducts must know of an agent's clients, when they have ended; `own` gives a moment by the agent's clock.
    fn report(&self, _own: &dyn Fn(Instant) -> u64) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Takes what an agent's `report` has given; `moment` gives one of the agent's clock here.
    fn take_report(&self, _report: &serde_json::Value, _moment: &dyn Fn(u64) -> Instant) {}

    /// What is gone without which nothing can go on, in words; asked each second, and while clients connect.
    fn gone(&self) -> Option<String> {
        None
    }

    /// What does not hold after `tally`; empty: all is as it should be.
    fn verify(&self, tally: Tally) -> impl Future<Output = Result<Vec<String>, Failure>>;

    /// Removes what `prepare` made, if it made anything.
    fn clean_up(&self) -> impl Future<Output = Result<(), Failure>>;
}

/// What operations that succeeded met before, and what they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// How often they were told to come back: the server had too much to do.
    pub refusals: u64,
    /// How often they were tried again, after a refusal or for any other reason.
    pub retries: u64,
    /// What went over the network, where that is counted.
    pub traffic: Traffic,
    /// What their statements did, where they are SQL.
    pub work: Work,
}

/// What statements did. Each is of the kind that its first word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Those that are no insert, update or delete and read: `SELECT`, `VALUES`, `WITH`.
    pub queries: u64,
    /// Rows that statements gave.
    pub rows_read: u64,
    /// `UPDATE`.
    pub updates: u64,
    /// `DELETE`.
    pub deletes: u64,
    /// `INSERT`; one for each row where a step sends several rows at once.
    pub inserts: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.queries += other.queries;
        self.rows_read += other.rows_read;
        self.updates += other.updates;
        self.deletes += other.deletes;
        self.inserts += other.inserts;
    }
}

/// What requests moved over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that clients sent.
    pub sent_bytes: u64,
    /// Bytes that they received: heads, and bodies as they are sent.
    pub received_bytes: u64,
    /// Of them, the bodies'.
    pub body_bytes: u64,
    /// The bodies once they are decoded.
    pub content_bytes: u64,
    /// Answers that came from a cache, as they say themselves.
    pub hits: u64,
    /// Answers that passed a cache and did not come from it.
    pub misses: u64,
}

impl std::ops::AddAssign for Attempts {
    fn add_assign(&mut self, other: Attempts) {
        self.refusals += other.refusals;
        self.retries += other.retries;
        self.traffic += other.traffic;
        self.work += other.work;
    }
}

impl std::ops::Add for Traffic {
    type Output = Traffic;

    fn add(mut self, other: Traffic) -> Traffic {
        self += other;
        self
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.body_bytes += other.body_bytes;
        self.content_bytes += other.content_bytes;
        self.hits += other.hits;
        self.misses += other.misses;
    }
}

/// All operations of a run, those of the warm-up too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// That succeeded.
    pub done: u64,
    /// That failed or were given up: perhaps they were made all the same.
    pub failed: u64,
}

/// How a run is driven.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who comes, and when.
    pub load: Load,
    /// When it ends.
    pub stop: Stop,
    /// The seed of arrivals and think times.
    pub seed: u64,
    /// Whose time it is.
    pub time: Time,
}

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was measured, if it came to that.
    pub measured: Option<Measured>,
    /// Why it is no valid result, or not a whole one.
    pub failure: Option<RunFailure>,
    /// What could not be cleaned up, and why.
    pub left_behind: Option<String>,
}

impl Outcome {
    /// Processor time of the agents, in nanoseconds; none: there were none.
    pub(crate) fn agents_cpu_ns(&self) -> Option<u64> {
        self.measured.as_ref()?.agents.map(|agents| agents.cpu.as_nanos() as u64)
    }
}

/// Why a run is no valid result, or not a whole one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFailure {
    /// Somebody stopped it.
    Interrupted,
    /// The target could not be prepared, connected to or verified.
    Target(Failure),
    /// The target was there, and is not any more.
    Lost(String),
    /// What verify found.
    Verify(Vec<String>),
    /// Not one operation succeeded; what most said.
    NothingDone(String),
}

impl std::fmt::Display for RunFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunFailure::Interrupted => f.write_str("it was interrupted"),
            RunFailure::Target(failure) => failure.fmt(f),
            RunFailure::Lost(detail) => write!(f, "the target was lost: {detail}"),
            RunFailure::Verify(faults) => write!(f, "verify: {}", faults.join("; ")),
            RunFailure::NothingDone(detail) => write!(f, "not one operation succeeded: {detail}"),
        }
    }
}

/// Runs a workload from its preparation to the cleaning up. `interrupt` ends it as soon as it becomes true; what has been measured by
/// then is in the outcome.
pub async fn run<W: Workload>(
    workload: Arc<W>,
    settings: &Settings,
    interrupt: &watch::Receiver<bool>,
    progress: &mut dyn FnMut(&Progress),
) -> Outcome {
    run_by(None, workload, settings, interrupt, progress).await
}

/// The same with the clients at these agents, if there are some.
pub(crate) async fn run_by<W: Workload>(
    crew: Option<Crew<'_>>,
    workload: Arc<W>,
    settings: &Settings,
    interrupt: &watch::Receiver<bool>,
    progress: &mut dyn FnMut(&Progress),
) -> Outcome {
    let mut outcome = Outcome { measured: None, failure: None, left_behind: None };
    let prepared = tokio::select! {
        prepared = workload.prepare() => prepared.map_err(RunFailure::Target),
        () = interrupted(interrupt) => Err(RunFailure::Interrupted),
    };
    match prepared {
        // SQLite's own clients say so as a failure.
        Err(_) if *interrupt.borrow() => outcome.failure = Some(RunFailure::Interrupted),
        Err(failure) => outcome.failure = Some(failure),
        Ok(()) => {
            (outcome.measured, outcome.failure) =
                measure_and_verify(&workload, settings, interrupt, progress, crew).await;
        }
    }
    if let Err(failure) = clean_up(&*workload, settings.load.timeout).await {
        outcome.left_behind = Some(failure.to_string());
    }
    outcome
}

async fn measure_and_verify<W: Workload>(
    workload: &Arc<W>,
    settings: &Settings,
    interrupt: &watch::Receiver<bool>,
    progress: &mut dyn FnMut(&Progress),
    crew: Option<Crew<'_>>,
) -> (Option<Measured>, Option<RunFailure>) {
    let measured = match observe::measure(workload.clone(), settings, interrupt, progress, crew).await {
        Ok(measured) => measured,
        Err(_) if *interrupt.borrow() => return (None, Some(RunFailure::Interrupted)),
        Err(failure) => return (None, Some(failure)),
    };
    // Of sets whatever fails first makes the rest fail: it comes first.
    let first = measured.sets.as_ref().and_then(|_| measured.most_said());
    let failure = match &measured.ended {
        Ended::Interrupted => Some(RunFailure::Interrupted),
        Ended::Lost(detail) => Some(RunFailure::Lost(after(first, detail))),
        _ => {
            let verified = tokio::select! {
                verified = workload.verify(measured.tally) => verified,
                () = interrupted(interrupt) => Ok(Vec::new()),
            };
            let nothing = || measured.most_said().unwrap_or_else(|| "no operation began".to_owned());
            match verified {
                _ if *interrupt.borrow() => Some(RunFailure::Interrupted),
                Err(failure) => Some(RunFailure::Target(failure)),
                Ok(mut faults) if !faults.is_empty() => {
                    if let Some((fault, first)) = faults.first_mut().zip(first) {
                        *fault = after(Some(first), fault);
                    }
                    Some(RunFailure::Verify(faults))
                }
                Ok(_) => (measured.operations == 0).then(|| RunFailure::NothingDone(nothing())),
            }
        }
    };
    (Some(measured), failure)
}

/// What was said, after what operations were told before, if that is something else.
fn after(first: Option<String>, said: &str) -> String {
    match first.filter(|first| !first.contains(said)) {
        Some(first) => format!("{first}; then {said}"),
        None => said.to_owned(),
    }
}

/// A target that does not answer keeps nobody waiting for good.
async fn clean_up<W: Workload>(workload: &W, timeout: Duration) -> Result<(), Failure> {
    let within = timeout.max(Duration::from_secs(10));
    tokio::time::timeout(within, workload.clean_up()).await.unwrap_or_else(|_| Err(Failure::time_out(within)))
}

/// Returns once the receiver has become true; never, if it can't any more.
pub(crate) async fn interrupted(interrupt: &watch::Receiver<bool>) {
    let mut interrupt = interrupt.clone();
    if interrupt.wait_for(|is_interrupted| *is_interrupted).await.is_err() {
        std::future::pending::<()>().await;
    }
}
