//! One connection: two pumps, and what happens when a fault stops them.
//!
//! One task owns both sockets. The pumps borrow their halves; the first that is stopped ends the other, and the sockets are
//! then whole again to be reset, ended or held.

use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::plan::{Cut, Direction, Fault, Lane, Plan};
use super::{Shared, Signals, lock};

/// How much is read at once.
const READ: usize = 16 * 1024;

/// Why the pumps stopped before both directions ended.
enum Stop {
    Fault(Fault),
    /// An end broke the connection itself, or the owner asked for it: the other end sees a reset.
    Broken,
}

/// Carries one connection to its end.
pub(super) async fn carry(
    mut client: TcpStream,
    number: usize,
    plan: Plan,
    shared: Arc<Shared>,
    signals: watch::Receiver<Signals>,
) {
    let born = *signals.borrow();
    let control = Control { born, signals };
    let target = *lock(&shared.target);
    match TcpStream::connect(target).await {
        Ok(mut server) => {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let stop = pump_both(&mut client, &mut server, number, plan, &shared, &control).await;
            if let Err(stop) = stop {
                finish(client, server, stop, control).await;
            }
        }
        Err(_) => reset(&client),
    }
    shared.with_traffic(number, |traffic| traffic.ended = true);
}

async fn pump_both(
    client: &mut TcpStream,
    server: &mut TcpStream,
    number: usize,
    plan: Plan,
    shared: &Shared,
    control: &Control,
) -> Result<(), Stop> {
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    let pump = |direction, lane| Pump { direction, lane, position: 0, seen: Vec::new(), number, shared, control };
    let up = pump(Direction::Up, plan.up).run(client_read, server_write);
    let down = pump(Direction::Down, plan.down).run(server_read, client_write);
    let stopped = tokio::select! {
        ended = async { tokio::try_join!(up, down) } => ended.map(|_| ()),
        () = control.cut() => Err(Stop::Broken),
    };
    if let Err(Stop::Fault(fault)) = &stopped {
        shared.with_traffic(number, |traffic| traffic.faults.push(*fault));
    }
    stopped
}

/// Does to both ends what the fault says.
async fn finish(mut client: TcpStream, mut server: TcpStream, stop: Stop, control: Control) {
    match stop {
        Stop::Broken | Stop::Fault(Fault::Cut(Cut::Reset)) => {}
        Stop::Fault(Fault::Cut(Cut::Fin)) => {
            let _ = (client.shutdown().await, server.shutdown().await);
            tokio::select! {
                // Unread bytes would turn the orderly end into a reset.
                _ = async { tokio::join!(swallow(&mut client), swallow(&mut server)) } => return,
                () = control.cut() => {}
            }
        }
        Stop::Fault(_) => tokio::select! {
            () = control.cut() => {}
            () = control.cleaned() => {}
        },
    }
    reset(&client);
    reset(&server);
}

async fn swallow(socket: &mut TcpStream) {
    let mut bytes = vec![0; READ];
    while matches!(socket.read(&mut bytes).await, Ok(1..)) {}
}

/// Lets the socket's end, when it is dropped, be a reset.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// One direction of one connection.
struct Pump<'a> {
    direction: Direction,
    lane: Lane,
    position: u64,
    /// All bytes so far, where a place is looked for in them.
    seen: Vec<u8>,
    number: usize,
    shared: &'a Shared,
    control: &'a Control,
}

impl Pump<'_> {
    /// Passes bytes on until the sender ends, which is passed on too.
    async fn run(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), Stop> {
        self.note_slowness();
        let mut bytes = vec![0; READ];
        loop {
            if self.lane.is_held_at(self.position) {
                self.control.cleaned().await;
            }
            self.clean_if_told();
            if let Some(fault) = self.lane.end_at(self.position) {
                return Err(Stop::Fault(fault));
            }
            let room = bytes.get_mut(..self.room()).unwrap_or_default();
            let count = from.read(room).await.map_err(|_| Stop::Broken)?;
            if count == 0 {
                return to.shutdown().await.map_err(|_| Stop::Broken);
            }
            self.clean_if_told();
            let chunk = room.get_mut(..count).unwrap_or_default();
            let count = self.look(chunk);
            let chunk = chunk.get_mut(..count).unwrap_or_default();
            self.flip(chunk);
            tokio::time::sleep(self.pause(count)).await;
            to.write_all(chunk).await.map_err(|_| Stop::Broken)?;
            self.count(chunk);
        }
    }

    /// How much may be read at once: never past the next fault, and small pieces where it goes slowly.
    fn room(&self) -> usize {
        let until_end = self.lane.bytes_until_end(self.position).unwrap_or(u64::MAX);
        let slow = self.lane.bytes_per_second.map_or(u64::MAX, |rate| u64::from(rate / 20).max(1));
        (READ as u64).min(until_end).min(slow) as usize
    }

    /// Looks for the place to cut at; gives how many of these bytes pass.
    fn look(&mut self, chunk: &[u8]) -> usize {
        let Some((place, cut)) = &self.lane.cut_behind else { return chunk.len() };
        self.seen.extend_from_slice(chunk);
        let Some(at) = place.within(&self.seen) else { return chunk.len() };
        // What has passed already can't be taken back.
        let at = at.max(self.position);
        self.lane.cut = Some((at, *cut));
        (at - self.position).min(chunk.len() as u64) as usize
    }

    fn pause(&self, count: usize) -> Duration {
        let slow = self.lane.bytes_per_second.map(|rate| Duration::from_secs_f64(count as f64 / f64::from(rate)));
        self.lane.delay + slow.unwrap_or_default()
    }

    fn flip(&self, chunk: &mut [u8]) {
        let offset = self.lane.flip.and_then(|offset| offset.checked_sub(self.position));
        if let Some(byte) = offset.and_then(|offset| chunk.get_mut(offset as usize)) {
            *byte = !*byte;
            self.shared.with_traffic(self.number, |traffic| traffic.faults.push(Fault::Flip));
        }
    }

    fn count(&mut self, chunk: &[u8]) {
        self.position += chunk.len() as u64;
        self.shared.with_traffic(self.number, |traffic| {
            let up = self.direction == Direction::Up;
            *if up { &mut traffic.up } else { &mut traffic.down } += chunk.len() as u64;
            let before = traffic.last.replace(self.direction);
            traffic.turns += u64::from(up && before == Some(Direction::Down));
            if let Some((above, below)) = &mut traffic.recorded {
                if up { above } else { below }.extend_from_slice(chunk);
            }
        });
    }

    fn note_slowness(&self) {
        let slow = self.lane.bytes_per_second.map(|_| Fault::Throttle);
        let late = (!self.lane.delay.is_zero()).then_some(Fault::Delay);
        self.shared.with_traffic(self.number, |traffic| traffic.faults.extend(slow.into_iter().chain(late)));
    }

    fn clean_if_told(&mut self) {
        if self.control.is_cleaned() {
            self.lane = Lane::default();
        }
    }
}

/// The owner's wishes since the connection began.
struct Control {
    born: Signals,
    signals: watch::Receiver<Signals>,
}

impl Control {
    fn is_cleaned(&self) -> bool {
        self.signals.borrow().cleaned != self.born.cleaned
    }

    async fn cleaned(&self) {
        let born = self.born.cleaned;
        let _ = self.signals.clone().wait_for(|now| now.cleaned != born).await;
    }

    async fn cut(&self) {
        let born = self.born.cut;
        let _ = self.signals.clone().wait_for(|now| now.cut != born).await;
    }
}
