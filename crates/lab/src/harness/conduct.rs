//! A run whose clients are at agents: what one of them records here, and what it is told.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use super::Workload;
use super::client::{Event, Phase, Shared, unless_over};
use super::failure::{Class, Failure};
use super::observe::AgentsUse;
use super::record::Recorder;
use super::schedule::{Schedule, Waits};
use crate::agents::wire::{FromAgent, Recorded, Task, ToAgent, Used};
use crate::agents::{Agent, Agents, SILENCE, lead};
use crate::experiment::Arrival;

/// The agents of a run, and what each is told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crew<'c> {
    pub(crate) agents: &'c Agents,
    /// All but which clients it has.
    pub(crate) task: &'c Task,
}

impl Crew<'_> {
    /// Has each take part; one recorder for each.
    pub(super) fn start<W: Workload>(
        &self,
        shared: &Shared<W>,
        local: &LocalSet,
        alive: &mpsc::Sender<()>,
    ) -> Vec<Arc<Mutex<Recorder>>> {
        let (clients, agents) = (shared.settings.load.clients, self.agents.all.len());
        let mut recorders = Vec::new();
        for (place, agent) in self.agents.all.iter().enumerate() {
            let recorder = Arc::new(Mutex::new(Recorder::default()));
            recorders.push(recorder.clone());
            let numbers = clients * place / agents..clients * (place + 1) / agents;
            let handover = shared.workload.handover();
            let task = Task { clients: numbers.clone(), handover, ..self.task.clone() };
            let (shared, agent, alive) = (shared.clone(), agent.clone(), alive.clone());
            local.spawn_local(async move {
                let mut agent = agent.lock_owned().await;
                let mut seat = Seat { shared, agent: &mut agent, clients: numbers, recorder, place };
                if let Err(why) = seat.run(task).await {
                    seat.lose(why);
                }
                drop(alive);
            });
        }
        recorders
    }
}

/// One agent in one run.
struct Seat<'s, W> {
    shared: Shared<W>,
    agent: &'s mut Agent,
    clients: Range<usize>,
    recorder: Arc<Mutex<Recorder>>,
    /// Which it is, from 0.
    place: usize,
}

/// Why an agent is of no more use.
#[derive(Clone, Copy)]
enum Gone {
    Silent,
    Lost,
    /// It says something that has no place there.
    Confused(&'static str),
}

impl<W: Workload> Seat<'_, W> {
    async fn run(&mut self, task: Task) -> Result<(), Gone> {
        self.agent.send(ToAgent::Task(Box::new(task)));
        let mut phase = self.shared.phase.clone();
        if self.is_connected(&mut phase).await? {
            let opened = phase.wait_for(|phase| !matches!(phase, Phase::Connecting)).await.map(|phase| phase.clone());
            if let Ok(Phase::Running(schedule)) = opened {
                let begin = schedule.begin() + self.offset();
                self.agent.send(ToAgent::Begin { at: self.agent.clock.theirs(begin) });
                loop {
                    match unless_over(&mut phase, self.listen(&schedule)).await {
                        Some(Ok(true)) => {}
                        Some(Ok(false)) => return Ok(()),
                        Some(Err(gone)) => return Err(gone),
                        None => break,
                    }
                }
            }
        }
        // Whatever else it says: it has heard that the run is over when it says so itself.
        loop {
            let last = if matches!(*phase.borrow(), Phase::Finishing) { ToAgent::Finish } else { ToAgent::Abort };
            self.agent.send(last);
            let is_aborted = phase.wait_for(|phase| matches!(phase, Phase::Aborting));
            tokio::select! {
                ended = Self::until_over(self.agent, &self.recorder, &*self.shared.workload) => return ended,
                _ = is_aborted, if matches!(*self.shared.phase.borrow(), Phase::Finishing) => {}
            }
        }
    }

    /// Arrivals at equal distances shall not come from all agents at once.
    fn offset(&self) -> Duration {
        match self.shared.settings.load.arrival {
            Arrival::Open { rate, is_poisson: false, .. } => Duration::from_secs_f64(self.place as f64 / rate),
            _ => Duration::ZERO,
        }
    }

    /// Until all its clients are connected; false: they can't be, or are not wanted any more.
    async fn is_connected(&mut self, phase: &mut watch::Receiver<Phase>) -> Result<bool, Gone> {
        loop {
            let message = tokio::select! {
                message = next(self.agent) => message?,
                _ = phase.wait_for(|phase| matches!(phase, Phase::Aborting)) => return Ok(false),
            };
            match message {
                FromAgent::Connected => {
                    for _ in self.clients.clone() {
                        let _ = self.shared.events.send(Event::Connected);
                    }
                    return Ok(true);
                }
                FromAgent::Failed(told) => {
                    let place = format!("agent {} ({})", self.agent.number, self.agent.name);
                    let detail = format!("{place}: {}", told.detail);
                    let is_usage = told.is_usage;
                    let failure = Failure { is_usage, ..Failure::new(Class::of(&told.class), detail) };
                    let _ = self.shared.events.send(Event::Failed(failure));
                    return Ok(false);
                }
                FromAgent::Recorded(recorded) => record(&self.recorder, self.agent, recorded),
                _ => return Err(Gone::Confused("before its clients are connected")),
            }
        }
    }

    /// Does what its next message asks for; false: it was the last one.
    async fn listen(&mut self, schedule: &Schedule) -> Result<bool, Gone> {
        match next(self.agent).await? {
            FromAgent::Recorded(recorded) => record(&self.recorder, self.agent, recorded),
            FromAgent::Arrived => self.gather(schedule).await?,
            FromAgent::SetDone { starts, ended } => self.end_set(&starts, ended).await?,
            FromAgent::Over { waits, report, used } => {
                over(&self.recorder, self.agent, &*self.shared.workload, waits, &report, used);
                return Ok(false);
            }
            _ => return Err(Gone::Confused("during a run")),
        }
        Ok(true)
    }

    /// All its clients wait: for the next set, then for its begin.
    async fn gather(&mut self, schedule: &Schedule) -> Result<(), Gone> {
        let Shared { workload, sets, settings, .. } = &self.shared;
        if sets.gate().await {
            let next = schedule.begin_set(Instant::now(), settings.load.clients);
            if next.is_some() {
                unless_failed(&self.recorder, workload.begin_set().await).await;
            }
            sets.set_next(next);
        }
        sets.gate().await;
        let is_measured = sets.next();
        self.agent.send(ToAgent::Set { is_measured });
        if is_measured.is_none() {
            return Ok(());
        }
        let clock = self.agent.look_at_clock().await.ok_or(Gone::Lost)?;
        sets.look(clock.round_trip(), clock.wall_off);
        loop {
            match next(self.agent).await? {
                FromAgent::Recorded(recorded) => record(&self.recorder, self.agent, recorded),
                FromAgent::Arrived => break,
                _ => return Err(Gone::Confused("before a set")),
            }
        }
        if sets.gate().await {
            sets.set_go(|round_trip| Instant::now() + lead(round_trip));
        }
        sets.gate().await;
        if let Some(go) = sets.go() {
            self.agent.send(ToAgent::Go { at: self.agent.clock.theirs(go) });
        }
        Ok(())
    }

    async fn end_set(&mut self, starts: &[u64], ended: u64) -> Result<(), Gone> {
        let Shared { workload, sets, .. } = &self.shared;
        let clock = self.agent.clock;
        sets.add(starts.iter().map(|start| clock.ours(*start)), clock.ours(ended));
        if sets.gate().await {
            sets.count();
            unless_failed(&self.recorder, workload.end_set().await).await;
        }
        sets.gate().await;
        self.agent.send(ToAgent::Restore);
        Ok(())
    }

    /// Until it has ended what it does.
    async fn until_over(agent: &mut Agent, recorder: &Mutex<Recorder>, workload: &W) -> Result<(), Gone> {
        loop {
            match next(agent).await? {
                FromAgent::Recorded(what) => record(recorder, agent, what),
                FromAgent::Over { waits, report, used } => {
                    over(recorder, agent, workload, waits, &report, used);
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// It is gone, and the run with it.
    fn lose(&self, why: Gone) {
        let Agent { number, name, .. } = &*self.agent;
        let why = match why {
            Gone::Silent => format!("has said nothing for {SILENCE:?}"),
            Gone::Lost => "is gone".to_owned(),
            Gone::Confused(when) => format!("says something {when} that has no place there"),
        };
        let detail = format!("agent {number} ({name}) {why}");
        lock(&self.recorder).defect = Some(detail.clone());
        let _ = self.shared.events.send(Event::Failed(Failure::new(Class::Lost, detail)));
    }
}

async fn next(agent: &mut Agent) -> Result<FromAgent, Gone> {
    timeout(SILENCE, agent.receive()).await.map_err(|_| Gone::Silent)?.ok_or(Gone::Lost)
}

fn record(recorder: &Mutex<Recorder>, agent: &Agent, what: Recorded) {
    lock(recorder).take_in(what, |at| agent.clock.ours(at));
}

fn over<W: Workload>(
    recorder: &Mutex<Recorder>,
    agent: &Agent,
    workload: &W,
    [late, dropped, longest_queue]: [u64; 3],
    report: &serde_json::Value,
    used: Option<Used>,
) {
    let mut recorder = lock(recorder);
    recorder.waits = Waits { late, dropped, longest_queue };
    recorder.used = used.map(|used| AgentsUse {
        cpu: Duration::from_nanos(used.cpu_ns),
        span: Duration::from_nanos(used.span_ns),
        threads: used.threads,
    });
    workload.take_report(report, &|at| agent.clock.ours(at));
}

/// Between sets there is nothing to go on from: the run is ended from outside, with the reason.
async fn unless_failed(recorder: &Mutex<Recorder>, result: Result<(), Failure>) {
    if let Err(failure) = result {
        lock(recorder).defect = Some(failure.detail);
        std::future::pending::<()>().await;
    }
}

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}
