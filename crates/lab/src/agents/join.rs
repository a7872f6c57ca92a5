//! An agent: joins who conducts, and drives clients as it is told.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::gather::wall;
use super::wire::{self, FromAgent, PROTOCOL, Task, ToAgent, Told as Failed};
use crate::error::Error;
use crate::experiment::{Cell, Experiment};
use crate::harness::{self, Class, Failure, Settings, Time, Workload, interrupted, take_part};
use crate::host::{self, Usage};
use crate::http::{HttpSettings, HttpTarget, HttpWorkload};
use crate::scenario::Drives;
use crate::sync::{Place, SyncSettings, SyncWorkload};
use crate::target::Target;
use crate::workload::SqlWorkload;

/// How often it is tried to reach who conducts.
const TRY_EVERY: Duration = Duration::from_millis(250);

/// Whom to join, and as whom.
#[derive(Clone, Debug)]
pub struct Join {
    /// Host and port of who conducts.
    pub place: String,
    /// What both know.
    pub key: String,
    /// How this agent is called there.
    pub name: String,
    /// The target's address as it is from here; none: as the experiment has it, without a password.
    pub target: Option<String>,
    /// How long to wait for somebody who conducts.
    pub patience: Duration,
}

/// What becomes of it, as it becomes known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It takes part; as which, from 1.
    Joined(usize),
    /// A part of a run begins: so many clients of a cell with these values.
    Begun {
        /// Of this agent.
        clients: usize,
        /// What varies, with this cell's value.
        varied: Vec<(String, String)>,
    },
    /// It is over.
    Ended,
}

/// Where an agent sits: what it hears, and what it says.
pub(crate) struct Seat {
    outgoing: mpsc::UnboundedSender<FromAgent>,
    incoming: mpsc::UnboundedReceiver<ToAgent>,
    /// Its clock begins here.
    epoch: Instant,
    usage: Usage,
}

impl Seat {
    pub(crate) fn say(&self, message: FromAgent) {
        // That nobody listens any more is seen where it is listened to.
        let _ = self.outgoing.send(message);
    }

    /// What it hears next; none: nobody conducts any more.
    pub(crate) async fn hear(&mut self) -> Option<ToAgent> {
        self.incoming.recv().await
    }

    /// A moment by its own clock.
    pub(crate) fn own(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// The moment that its own clock calls so.
    pub(crate) fn moment(&self, at: u64) -> Instant {
        self.epoch.checked_add(Duration::from_nanos(at)).unwrap_or(self.epoch)
    }

    /// Processor time in nanoseconds since the part began.
    pub(crate) fn cpu(&self) -> Option<u64> {
        self.usage.client_cpu_ns()
    }
}

/// Joins, and takes part in runs until there are no more. An error: it is not let in, or who conducts is gone.
pub async fn join(join: &Join, interrupt: &watch::Receiver<bool>, tell: &mut dyn FnMut(&Told)) -> Result<(), Error> {
    host::raise_open_files();
    let entered = tokio::select! {
        entered = enter(join) => entered?,
        () = interrupted(interrupt) => return Ok(()),
    };
    let (mut seat, number) = entered;
    tell(&Told::Joined(number));
    loop {
        let message = tokio::select! {
            message = seat.hear() => message,
            () = interrupted(interrupt) => return Ok(()),
        };
        match message {
            Some(ToAgent::Task(task)) => {
                seat.usage = Usage::now();
                let is_there = match work(&task, join, &mut seat, interrupt, tell).await {
                    Ok(is_there) => is_there,
                    Err(failure) => refuse(&mut seat, failure).await,
                };
                tell(&Told::Ended);
                if !is_there && !*interrupt.borrow() {
                    return Err(gone(join));
                }
            }
            Some(ToAgent::Farewell) => return Ok(()),
            Some(_) => {}
            None => return Err(gone(join)),
        }
    }
}

fn gone(join: &Join) -> Error {
    Error::Lost(format!("who conducts at {} is gone", join.place))
}

/// Connects, and shows that it knows the key.
async fn enter(join: &Join) -> Result<(Seat, usize), Error> {
    let until = Instant::now() + join.patience;
    let mut stream = loop {
        match TcpStream::connect(&join.place).await {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < until => tokio::time::sleep(TRY_EVERY).await,
            Err(error) => {
                let what =
                    format!("nobody conducts at {}: {error}; start headwater lab run --agents there", join.place);
                return Err(Error::Target(Failure::new(Class::Refused, what)));
            }
        }
    };
    let other = |error: std::io::Error| {
        let what = format!("at {} nobody speaks as headwater lab run --agents does: {error}", join.place);
        Error::Target(Failure::new(Class::Other, what))
    };
    stream.set_nodelay(true).map_err(other)?;
    let ToAgent::Challenge { nonce, protocol } =
        wire::read(&mut stream, wire::STRANGER_BYTES_MAX).await.map_err(other)?
    else {
        return Err(other(std::io::Error::other("no challenge")));
    };
    if protocol != PROTOCOL {
        return Err(Error::Usage("who conducts is of another version of headwater".to_owned()));
    }
    let (version, proof) = (env!("CARGO_PKG_VERSION").to_owned(), wire::proof(&join.key, &nonce));
    let hello = FromAgent::Hello { protocol: PROTOCOL, version, name: join.name.clone(), proof };
    wire::write(&mut stream, &hello).await.map_err(other)?;
    match wire::read(&mut stream, wire::STRANGER_BYTES_MAX).await.map_err(other)? {
        ToAgent::Welcome { number } => Ok((sit(stream), number)),
        ToAgent::Refused { why } => Err(Error::Usage(format!("not let in: {why}"))),
        _ => Err(other(std::io::Error::other("no welcome"))),
    }
}

fn sit(stream: TcpStream) -> Seat {
    let epoch = Instant::now();
    let (mut reader, writer) = stream.into_split();
    let outgoing: mpsc::UnboundedSender<FromAgent> = wire::sender(writer);
    let (heard, incoming) = mpsc::unbounded_channel();
    let answers = outgoing.downgrade();
    tokio::spawn(async move {
        while let Ok(message) = wire::read(&mut reader, wire::FRIEND_BYTES_MAX).await {
            if matches!(message, ToAgent::Ping) {
                // At once, and by nobody who could be busy.
                let at = Instant::now().saturating_duration_since(epoch).as_nanos() as u64;
                let answer = FromAgent::Pong { at, wall: wall() };
                let _ = answers.upgrade().map(|answers| answers.send(answer));
            } else if heard.send(message).is_err() {
                return;
            }
        }
    });
    Seat { outgoing, incoming, epoch, usage: Usage::now() }
}

/// It can't take part in the run: says why, and waits until that is over. Whether somebody conducts still.
async fn refuse(seat: &mut Seat, failure: Failure) -> bool {
    let Failure { class, detail, is_usage, .. } = failure;
    seat.say(FromAgent::Failed(Failed { class: class.to_string(), detail, is_usage }));
    loop {
        match seat.hear().await {
            None => return false,
            Some(ToAgent::Abort | ToAgent::Finish) => {
                seat.say(FromAgent::Over { waits: [0; 3], report: serde_json::Value::Null, used: None });
                return true;
            }
            Some(_) => {}
        }
    }
}

/// Does its part of a run; whether somebody conducts still.
async fn work(
    task: &Task,
    join: &Join,
    seat: &mut Seat,
    interrupt: &watch::Receiver<bool>,
    tell: &mut dyn FnMut(&Told),
) -> Result<bool, Failure> {
    let files = |name: &str| task.files.get(name).cloned().ok_or_else(|| "it was not sent along".to_owned());
    let experiment = Experiment::parse("experiment.toml", &task.text, &files);
    let experiment = experiment.map_err(|errors| usage(Error::Spec(errors)))?;
    let cell = experiment.cells.get(task.cell).ok_or_else(|| Failure::usage("the experiment has no such cell"))?;
    let scenario = &experiment.scenarios[cell.scenario];
    tell(&Told::Begun { clients: task.clients.len(), varied: cell.varied.clone() });
    let settings = settings(task, cell);
    let address = join.target.as_deref().unwrap_or(&task.target);
    let never = interrupt.clone();
    let of_scenario = |why: (&str, String)| Failure::usage(format!("scenario.{}: can't {}", why.0, why.1));
    match scenario.drives {
        Drives::Transactions => {
            let target = Target::parse(address, Path::new("")).map_err(usage)?;
            let workload = SqlWorkload::new(target, scenario, cell, task.seed, never)?;
            drive(workload, task, &settings, seat, interrupt).await
        }
        Drives::Syncs => {
            // Clients speak with the server alone.
            let of_cell = SyncSettings::of(&cell.parameters).map_err(of_scenario)?;
            let workload =
                SyncWorkload::new(Place::elsewhere(), scenario, of_cell, (cell.load.clients, task.seed), never);
            drive(workload, task, &settings, seat, interrupt).await
        }
        Drives::Requests => {
            let target = HttpTarget::parse(address, cell.target.proxy.as_deref()).map_err(usage)?;
            let of_cell = HttpSettings::of(&cell.parameters).map_err(of_scenario)?;
            let workload = HttpWorkload::new(target, of_cell, (task.seed, cell.load.timeout))?;
            drive(workload, task, &settings, seat, interrupt).await
        }
        Drives::Own => Err(Failure::usage("a system of one's own is tried by one process alone")),
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string())
}

async fn drive<W: Workload>(
    workload: W,
    task: &Task,
    settings: &Settings,
    seat: &mut Seat,
    interrupt: &watch::Receiver<bool>,
) -> Result<bool, Failure> {
    workload.join(&task.handover)?;
    Ok(take_part(Arc::new(workload), settings, task.clients.clone(), seat, interrupt).await)
}

fn settings(task: &Task, cell: &Cell) -> Settings {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cell.load.threads.unwrap_or(processors).min(task.clients.len());
    harness::Settings { load: cell.load.clone(), stop: cell.stop, seed: task.seed, time: Time::Real { threads } }
}
