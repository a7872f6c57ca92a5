//! Who conducts: waits for agents, and speaks with each.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::clock::Clock;
use super::wire::{self, FromAgent, PROTOCOL, ToAgent};
use crate::error::Error;
use crate::harness::interrupted;

/// How long one who connects may take to show that it knows the key.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many may do so at once; further ones are not let in.
const STRANGERS_MAX: usize = 64;
/// How long an agent may be silent where it has something to say.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// How often it is asked for the time when it joins, and before each set.
const QUESTIONS: [usize; 2] = [20, 5];

/// A place where agents can join.
#[derive(Debug)]
pub struct Gathering {
    listener: TcpListener,
    place: SocketAddr,
    key: String,
}

/// An agent that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// From 1.
    pub number: usize,
    /// As it calls itself.
    pub name: String,
    /// From where.
    pub place: SocketAddr,
    /// How long a question and its answer take; half of it is how well its clock is known.
    pub round_trip: Duration,
    /// By how much its wall clock is off the one here, to either side. Nothing depends on it.
    pub wall_off: Duration,
}

/// All that have joined.
#[derive(Debug)]
pub struct Agents {
    pub(crate) all: Vec<Arc<Mutex<Agent>>>,
    /// Where they have reached this machine.
    pub(crate) host: IpAddr,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) clock: Clock,
    outgoing: mpsc::UnboundedSender<ToAgent>,
    incoming: mpsc::UnboundedReceiver<(Instant, u64, FromAgent)>,
    /// What came while the time was asked for.
    waiting: VecDeque<FromAgent>,
}

impl Gathering {
    /// Listens; who joins must know the key.
    pub async fn listen(at: SocketAddr, key: &str) -> Result<Gathering, Error> {
        let refused = |error: std::io::Error| Error::Usage(format!("agents can't be listened for at {at}: {error}"));
        let listener = TcpListener::bind(at).await.map_err(refused)?;
        let place = listener.local_addr().map_err(refused)?;
        Ok(Gathering { listener, place, key: key.to_owned() })
    }

    /// Where.
    pub fn place(&self) -> SocketAddr {
        self.place
    }

    /// Waits until so many have joined, and says of each that it has; who doesn't know the key, or is of another version, is told so and sent
    /// away. An error: somebody interrupts.
    pub async fn gather(
        self,
        count: usize,
        interrupt: &watch::Receiver<bool>,
        tell: &mut dyn FnMut(&Joined),
    ) -> Result<Agents, Error> {
        let (mut all, mut host) = (Vec::new(), self.place.ip());
        let mut strangers = JoinSet::new();
        while all.len() < count {
            tokio::select! {
                () = interrupted(interrupt) => return Err(Error::Interrupted("all agents had joined")),
                accepted = self.listener.accept(), if strangers.len() < STRANGERS_MAX => {
                    // One that is gone again is not missed.
                    let Ok((stream, _)) = accepted else { continue };
                    let key = self.key.clone();
                    strangers.spawn(async move { tokio::time::timeout(HANDSHAKE, shake(stream, &key)).await.ok().flatten() });
                }
                Some(shaken) = strangers.join_next() => {
                    let Ok(Some((stream, name))) = shaken else { continue };
                    let (Ok(place), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { continue };
                    let Some(agent) = Agent::welcome(all.len() + 1, name, stream).await else { continue };
                    let Clock { wall_off, .. } = agent.clock;
                    let (number, name, round_trip) = (agent.number, agent.name.clone(), agent.clock.round_trip());
                    tell(&Joined { number, name, place, round_trip, wall_off });
                    host = here.ip();
                    all.push(Arc::new(Mutex::new(agent)));
                }
            }
        }
        Ok(Agents { all, host })
    }
}

/// Has one who connects show that it knows the key; gives its name.
async fn shake(mut stream: TcpStream, key: &str) -> Option<(TcpStream, String)> {
    stream.set_nodelay(true).ok()?;
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).ok()?;
    wire::write(&mut stream, &ToAgent::Challenge { nonce, protocol: PROTOCOL }).await.ok()?;
    let FromAgent::Hello { protocol, version, name, proof } =
        wire::read(&mut stream, wire::STRANGER_BYTES_MAX).await.ok()?
    else {
        return None;
    };
    let own = env!("CARGO_PKG_VERSION");
    let why = if !wire::is_proof(key, &nonce, &proof) {
        "the key is another one".to_owned()
    } else if (protocol, version.as_str()) != (PROTOCOL, own) {
        format!("the agent is headwater {version}, and who conducts is {own}; they must be the same")
    } else {
        let name = name.chars().filter(|letter| !letter.is_control()).take(64).collect();
        return Some((stream, name));
    };
    let _ = wire::write(&mut stream, &ToAgent::Refused { why }).await;
    None
}

impl Agents {
    /// How far ahead a moment must be, so that all have heard of it.
    pub(crate) async fn lead(&self) -> Duration {
        let mut longest = Duration::ZERO;
        for agent in &self.all {
            longest = longest.max(agent.lock().await.clock.round_trip());
        }
        lead(longest)
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// What the environment says of them.
    pub(crate) async fn describe(&self) -> Vec<(String, String)> {
        let mut facts = Vec::new();
        for agent in &self.all {
            let agent = agent.lock().await;
            let Clock { wall_off, .. } = agent.clock;
            let known = agent.clock.round_trip() / 2;
            facts.push((format!("agent {} name", agent.number), agent.name.clone()));
            facts.push((format!("agent {} clock", agent.number), format!("{wall_off:?} off, known to {known:?}")));
        }
        facts
    }

    /// Nothing follows: they may go.
    pub async fn dismiss(&self) {
        for agent in &self.all {
            agent.lock().await.send(ToAgent::Farewell);
        }
        // The writers are tasks of this runtime, which may end with the caller.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How far ahead a moment must be that is told over a connection with such a round trip.
pub(crate) fn lead(round_trip: Duration) -> Duration {
    2 * round_trip + Duration::from_millis(50)
}

impl Agent {
    async fn welcome(number: usize, name: String, stream: TcpStream) -> Option<Agent> {
        let (mut reader, writer) = stream.into_split();
        let outgoing = wire::sender(writer);
        let (heard, incoming) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(message) = wire::read(&mut reader, wire::FRIEND_BYTES_MAX).await {
                if heard.send((Instant::now(), wall(), message)).is_err() {
                    return;
                }
            }
        });
        let now = Instant::now();
        let clock = Clock::of((now, now + SILENCE), 0, (0, 0));
        let mut agent = Agent { number, name, clock, outgoing, incoming, waiting: VecDeque::new() };
        agent.send(ToAgent::Welcome { number });
        agent.clock = tokio::time::timeout(SILENCE, agent.ask(QUESTIONS[0])).await.ok()??;
        Some(agent)
    }

    /// Tells it something. That it is gone is seen where it is listened to.
    pub(crate) fn send(&self, message: ToAgent) {
        let _ = self.outgoing.send(message);
    }

    /// What it says next; none: it is gone. Nothing is lost where this is dropped.
    pub(crate) async fn receive(&mut self) -> Option<FromAgent> {
        if let Some(message) = self.waiting.pop_front() {
            return Some(message);
        }
        self.incoming.recv().await.map(|(.., message)| message)
    }

    /// Its clock, asked for anew; none: it is gone.
    pub(crate) async fn look_at_clock(&mut self) -> Option<Clock> {
        self.clock = self.ask(QUESTIONS[1]).await?;
        Some(self.clock)
    }

    async fn ask(&mut self, times: usize) -> Option<Clock> {
        let mut best: Option<Clock> = None;
        for _ in 0..times {
            let asked = Instant::now();
            self.send(ToAgent::Ping);
            let clock = loop {
                match self.incoming.recv().await? {
                    (answered, own_wall, FromAgent::Pong { at, wall }) => {
                        break Clock::of((asked, answered), at, (wall, own_wall));
                    }
                    (.., other) => self.waiting.push_back(other),
                }
            };
            best = Some(best.map_or(clock, |best| best.better(clock)));
        }
        best
    }
}

/// The wall clock, in nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
