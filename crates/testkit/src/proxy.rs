//! A network that breaks on demand: a TCP proxy whose every connection follows a plan of faults.
//!
//! ```text
//! client ──up──> proxy ──up──> target
//!        <─down─       <─down─
//! ```
//!
//! Bytes are counted from the connection's first, by direction. Faults and their names are in [`plan`]. A test that wants to
//! break at every place runs once clean with [`FaultProxy::record`] on, looks at the bytes, and sweeps.
//!
//! # Caveats
//! - A black hole looks to the ends like a lost network for data alone: the proxy's own system still answers TCP keep-alive.
//! - A reset may overtake bytes that the receiver's full window kept back, so at most (not exactly) the bytes before a cut
//!   arrive.

mod connection;
pub mod plan;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use plan::{Chaos, Cut, Direction, Fault, Plan};

use crate::Random;

/// A running proxy on a loopback port. Dropped, it closes all its connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    signals: watch::Sender<Signals>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What one connection has carried so far.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Bytes forwarded from the client to the target.
    pub up: u64,
    /// Bytes forwarded from the target to the client.
    pub down: u64,
    /// How often bytes went up after some had come down. Where what comes down is delayed, that is how often the client waited for it.
    pub turns: u64,
    last: Option<Direction>,
    /// The faults that happened, in order.
    pub faults: Vec<Fault>,
    /// True once the proxy is done with it.
    pub ended: bool,
    /// The bytes of `up` and `down` as they were forwarded, where recording was on.
    pub recorded: Option<(Vec<u8>, Vec<u8>)>,
}

/// Sums over all connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Bytes forwarded from clients to the target.
    pub up: u64,
    /// Bytes forwarded from the target to clients.
    pub down: u64,
    /// Faults that happened.
    pub faults: u64,
}

type Script = Box<dyn FnMut(u64) -> Plan + Send>;

/// What the proxy's thread and its owner both use.
struct Shared {
    target: Mutex<SocketAddr>,
    script: Mutex<Script>,
    record: Mutex<bool>,
    connections: Mutex<Vec<Traffic>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Counted up by the owner; a connection compares them with what they were when it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signals {
    cleaned: u64,
    cut: u64,
    stop: bool,
}

impl FaultProxy {
    /// Starts a proxy to this address. It forwards everything faithfully until it is given a script.
    pub fn start(target: impl ToSocketAddrs) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), target)
    }

    /// The same, at this address of the machine's.
    pub fn start_at(at: IpAddr, target: impl ToSocketAddrs) -> Result<Self> {
        let target = target.to_socket_addrs()?.next().context("the target's name has no address")?;
        let listener = std::net::TcpListener::bind((at, 0)).context("opening the proxy's port")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            script: Mutex::new(Box::new(|_| Plan::clean())),
            record: Mutex::new(false),
            connections: Mutex::new(Vec::new()),
        });
        let (signals, receiver) = watch::channel(Signals::default());
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let accepting = accept(listener, Arc::clone(&shared), receiver);
        let thread =
            std::thread::Builder::new().name("fault-proxy".to_owned()).spawn(move || runtime.block_on(accepting))?;
        Ok(Self { address, shared, signals, thread: Some(thread) })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Gives each connection from now on the plan that the function returns for its number (from 0, since the start).
    pub fn script(&self, script: impl FnMut(u64) -> Plan + Send + 'static) {
        *lock(&self.shared.script) = Box::new(script);
    }

    /// Gives the next connections these plans, in order; those after them are clean.
    pub fn next(&self, plans: impl IntoIterator<Item = Plan>) {
        let mut plans = plans.into_iter().collect::<Vec<_>>().into_iter();
        self.script(move |_| plans.next().unwrap_or_default());
    }

    /// Gives each connection from now on a plan by chance, the same ones for the same seed and order of connections.
    pub fn random(&self, seed: u64, chaos: Chaos) {
        let mut random = Random::seeded(seed);
        self.script(move |_| chaos.plan(&mut random));
    }

    /// From now on everything is forwarded faithfully, on open connections too; those in a black hole are reset.
    pub fn go_clean(&self) {
        self.script(|_| Plan::clean());
        self.signals.send_modify(|signals| signals.cleaned += 1);
    }

    /// Resets all connections that are open now.
    pub fn cut_all(&self) {
        self.signals.send_modify(|signals| signals.cut += 1);
    }

    /// Sends connections from now on to another address.
    pub fn set_target(&self, target: impl ToSocketAddrs) -> Result<()> {
        *lock(&self.shared.target) = target.to_socket_addrs()?.next().context("the target's name has no address")?;
        Ok(())
    }

    /// Keeps the bytes of connections from now on, in memory (see [`Traffic::recorded`]), or no longer.
    pub fn record(&self, on: bool) {
        *lock(&self.shared.record) = on;
    }

    /// What each connection has carried, in the order they came.
    pub fn connections(&self) -> Vec<Traffic> {
        lock(&self.shared.connections).clone()
    }

    /// Sums over all connections so far.
    pub fn counters(&self) -> Counters {
        let connections = lock(&self.shared.connections);
        let mut sums = Counters { connections: connections.len() as u64, ..Counters::default() };
        for traffic in connections.iter() {
            sums.up += traffic.up;
            sums.down += traffic.down;
            sums.faults += traffic.faults.len() as u64;
        }
        sums
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.signals.send_modify(|signals| signals.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join().map_err(|_| anyhow!("the proxy's thread panicked"));
        }
    }
}

impl Shared {
    /// Enters a new connection in the books: its number and plan.
    fn admit(&self) -> (usize, Plan) {
        let mut connections = lock(&self.connections);
        let number = connections.len();
        let recorded = lock(&self.record).then(Default::default);
        connections.push(Traffic { recorded, ..Traffic::default() });
        drop(connections);
        (number, lock(&self.script)(number as u64))
    }

    fn with_traffic(&self, number: usize, change: impl FnOnce(&mut Traffic)) {
        if let Some(traffic) = lock(&self.connections).get_mut(number) {
            change(traffic);
        }
    }
}

/// Accepts until told to stop; then the runtime ends and closes what is open.
async fn accept(listener: TcpListener, shared: Arc<Shared>, mut signals: watch::Receiver<Signals>) {
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted,
            stop = signals.wait_for(|signals| signals.stop) => {
                drop(stop);
                return;
            }
        };
        let Ok((client, _)) = client else { continue };
        let (number, plan) = shared.admit();
        tokio::spawn(connection::carry(client, number, plan, Arc::clone(&shared), signals.clone()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
