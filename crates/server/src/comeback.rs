//! When those who find no room are to come back.
//!
//! The server can't call anybody, so each is told a time of its own: when those before it will have been served, at the pace at which the
//! database serves syncs like the last ones when it is at its best. Those before are who waits here, less a quarter of the backlog (which is
//! to be full still when the first come back), and all who were told a time that is not over yet. So they come one after the
//! other, as places become free, and not together.
//!
//! The pace is the best one, not the present one: while thousands knock, receiving and refusing them is what the server does, and a time
//! by that pace would leave it without work later. To come too early costs a client a further request; it finds a place before those that
//! were never here, since it waits for a part of the backlog at most.
//!
//! A fresh server knows no pace. It has all come back within seconds, when it does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// The shortest time, and the longest.
const LEAST: Duration = Duration::from_millis(200);
const MOST: Duration = Duration::from_mins(2);
/// Without a known pace: between half of that and one and a half times.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Times that are told at once; beyond, who comes for the first time is taken for a further one of the last.
const KNOWN_MAX: usize = 100_000;
/// After its time, for how long somebody is known as one who comes back.
const GRACE: Duration = Duration::from_secs(30);

/// Who was told to come back.
#[derive(Debug, Default)]
pub(crate) struct Comebacks {
    /// Times that were told.
    told: BinaryHeap<Reverse<Instant>>,
    /// By remote ID: how often it was sent away, and when it is to come.
    known: HashMap<[u8; 16], (u32, Instant)>,
    forgotten: Option<Instant>,
}

/// How full the server is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Syncs that wait or are being received.
    pub(crate) here: usize,
    /// Syncs that may wait.
    pub(crate) backlog: usize,
    /// How far apart they end; none: it is not known yet.
    pub(crate) interval: Option<Duration>,
}

impl Comebacks {
    /// Sends a remote away; gives for how long. `random`: 0 to 1.
    pub(crate) fn send_away(
        &mut self,
        now: Instant,
        remote_id: Option<[u8; 16]>,
        standing: Standing,
        random: f64,
    ) -> Duration {
        self.forget(now);
        let times = remote_id.and_then(|remote_id| self.known.get(&remote_id)).map_or(0, |(times, _)| *times);
        let Standing { here, backlog, interval } = standing;
        let wait = match interval {
            None => UNKNOWN.mul_f64(0.5 + random),
            Some(interval) => {
                let before = (here + 1) as f64 - 0.75 * backlog as f64;
                let all = before + self.told.len() as f64;
                let before = if times == 0 {
                    all
                } else {
                    // It has waited its time: a part of those who are here has to go, twice as many each further time.
                    let part = backlog as f64 * 0.25 * 2_f64.powi(times.min(4) as i32 - 1) * (0.5 + random);
                    before.max(part.min(all))
                };
                Duration::try_from_secs_f64(interval.as_secs_f64() * before.max(0.0)).unwrap_or(MOST)
            }
        };
        let wait = wait.clamp(LEAST, MOST).mul_f64(0.95 + 0.1 * random);
        if self.told.len() < KNOWN_MAX {
            self.told.push(Reverse(now + wait));
        }
        if let Some(remote_id) = remote_id.filter(|_| self.known.len() < KNOWN_MAX) {
            self.known.insert(remote_id, (times + 1, now + wait));
        }
        wait
    }

    /// How many may wait before this remote is sent away. Those that have come back once keep a tenth of the backlog to themselves: who has been
    /// sent away twice is not a third time, in the place of one who comes for the first.
    pub(crate) fn backlog_for(&self, remote_id: Option<[u8; 16]>, backlog: usize) -> usize {
        let times = remote_id.and_then(|remote_id| self.known.get(&remote_id)).map_or(0, |(times, _)| *times);
        if times < 2 { backlog - backlog / 10 } else { backlog }
    }

    /// A remote has found room.
    pub(crate) fn let_in(&mut self, remote_id: Option<[u8; 16]>) {
        if let Some(remote_id) = remote_id.filter(|_| !self.known.is_empty()) {
            self.known.remove(&remote_id);
        }
    }

    /// Times that are over are no more before anybody; who does not come back is not known for ever.
    fn forget(&mut self, now: Instant) {
        while self.told.peek().is_some_and(|Reverse(time)| *time <= now) {
            self.told.pop();
        }
        if self.forgotten.is_none_or(|last| now.saturating_duration_since(last) > GRACE) {
            self.forgotten = Some(now);
            self.known.retain(|_, (_, time)| *time + GRACE > now);
        }
    }
}

#[cfg(test)]
mod tests;
