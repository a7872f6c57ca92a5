//! When those who find no room are to come back.
//!
//! The server can't call anybody, so each is told a time of its own. Who is sent away for the first time draws a ticket; its time is when
//! those before it will have been served, at the pace at which the database serves syncs like the last ones when it is at its best. Those
//! before are who waits here, less three quarters of the backlog (a quarter is to be there still when the first come back), and who has an
//! earlier ticket and is not back. So they come one after the other, as places become free, and not together.
//!
//! The pace is the best one, not the present one: while thousands knock, receiving and refusing them is what the server does, and a time
//! by that pace would leave it without work later. To come too early costs a client a further request, and not its place: it keeps its
//! ticket, is told what is left of its time, and finds room before those with later ones. By then the crowd has arrived, so this time is told by
//! the pace of late, and nobody is told to come later than whoever is last.
//!
//! A pace that is not known well yet ([`crate::limit::Pace`]) may be many times too slow, since what a fresh server sees first is the
//! crowd's arrival. Nobody can be called back from a time that was too long, so it is short until then ([`UNSURE`]).
//!
//! A fresh server knows no pace. It has all come back within seconds, when it does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::limit::Pace;

/// The shortest time, which is twice as long with each time in vain (three times at most), and the longest.
pub(crate) const LEAST: Duration = Duration::from_millis(20);
/// The same where all connections are taken: who has them may be as slow as they like, and no pace tells when one ends. Those of clients that
/// send nothing any more are closed in half a minute, so eight attempts are to last longer.
pub(crate) const LEAST_OF_CONNECTIONS: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_mins(2);
/// Without a known pace: between half of that and one and a half times.
const UNKNOWN: Duration = Duration::from_secs(2);
/// With one that is not sure, at most: between half of that and one and a half times.
const UNSURE: Duration = Duration::from_secs(6);
/// Tickets there are at once; beyond, who comes for the first time is behind all of them each time.
const TICKETS_MAX: usize = 100_000;
/// After its time, for how long somebody's ticket is kept.
const GRACE: Duration = Duration::from_secs(30);
/// The pace of late is taken for no slower than so many times the best.
const SLOWER_MAX: f64 = 4.0;
/// Of the backlog, what is to be there still when the first come back, and what each who has an earlier ticket keeps of it from the others,
/// up to half of it.
const LEFT: f64 = 0.25;
const KEPT: f64 = 0.25;

/// Who was told to come back.
#[derive(Debug, Default)]
pub(crate) struct Comebacks {
    /// By remote ID.
    tickets: HashMap<[u8; 16], Ticket>,
    /// How many tickets were drawn, and how many of them are back or were given up.
    drawn: u64,
    back: u64,
    forgotten: Option<Instant>,
}

/// A place among those who were sent away.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    number: u64,
    /// How often its holder was sent away by a pace that was sure, or because no connection was free.
    times: u32,
    /// When it is to come.
    due: Instant,
}

/// How full the server is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Syncs that wait or are being received.
    pub(crate) here: usize,
    /// Syncs that may wait.
    pub(crate) backlog: usize,
    /// How far apart they end; none: it is not known yet.
    pub(crate) pace: Option<Pace>,
    /// The shortest time that somebody is sent away for.
    pub(crate) least: Duration,
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
        let known = remote_id.and_then(|remote_id| self.tickets.get(&remote_id)).copied();
        let ticket = known.unwrap_or(Ticket { number: self.drawn, times: 0, due: now });
        let (wait, is_sure) = match standing.pace {
            None => (UNKNOWN.mul_f64(0.5 + random), false),
            Some(pace @ Pace { is_sure, .. }) => {
                let before = self.before(&ticket, standing, random);
                let wait = Duration::try_from_secs_f64(ticket.interval(pace, standing.here) * before).unwrap_or(MOST);
                let unsure = UNSURE.mul_f64(0.5 + random);
                if is_sure || wait <= unsure { (wait, true) } else { (unsure, false) }
            }
        };
        let least = standing.least * 2_u32.pow(ticket.times.min(3));
        let wait = wait.clamp(least, MOST).mul_f64(0.95 + 0.1 * random);
        if let Some(remote_id) = remote_id
            && (known.is_some() || self.tickets.len() < TICKETS_MAX)
        {
            self.drawn += u64::from(known.is_none());
            let is_counted = is_sure || standing.least > LEAST;
            let ticket = Ticket { times: ticket.times + u32::from(is_counted), due: now + wait, ..ticket };
            self.tickets.insert(remote_id, ticket);
        }
        wait
    }

    /// How many syncs end before this one has room.
    fn before(&self, ticket: &Ticket, standing: Standing, random: f64) -> f64 {
        let backlog = standing.backlog as f64;
        let before = |ticket| (standing.here + 1) as f64 - (1.0 - LEFT) * backlog + self.ahead(ticket) as f64;
        // Who has waited its time in vain waits for a part of those who are here, for twice as many each further time, but not for longer than who
        // is last.
        let part = match ticket.times {
            0 => 0.0,
            times => 0.1 * backlog * 2_f64.powi(times.min(5) as i32) * (0.5 + random),
        };
        before(ticket.number).max(part.min(before(self.drawn))).max(0.0)
    }

    /// Those with an earlier ticket who are not back.
    fn ahead(&self, number: u64) -> u64 {
        number.saturating_sub(self.back)
    }

    /// How many may wait before this remote is sent away: less than the backlog while others with an earlier ticket are to come back.
    pub(crate) fn backlog_for(&self, remote_id: Option<[u8; 16]>, backlog: usize) -> usize {
        let ticket = remote_id.and_then(|remote_id| self.tickets.get(&remote_id));
        let ahead = self.ahead(ticket.map_or(self.drawn, |ticket| ticket.number));
        let kept = (ahead as f64 * KEPT) as usize;
        backlog - kept.min(backlog / 2)
    }

    /// A remote has found room.
    pub(crate) fn let_in(&mut self, remote_id: Option<[u8; 16]>) {
        if let Some(remote_id) = remote_id
            && self.tickets.remove(&remote_id).is_some()
        {
            self.back += 1;
        }
    }

    /// Who does not come back keeps nobody waiting for ever.
    fn forget(&mut self, now: Instant) {
        if self.forgotten.is_none_or(|last| now.saturating_duration_since(last) > GRACE) {
            self.forgotten = Some(now);
            let before = self.tickets.len();
            self.tickets.retain(|_, ticket| ticket.due + GRACE > now);
            self.back += (before - self.tickets.len()) as u64;
        }
    }
}

impl Ticket {
    /// How far apart syncs end, in seconds: at the best for who comes first, of late for who came too early by that. Where nobody waits, that of
    /// late may be for want of work.
    fn interval(&self, pace: Pace, here: usize) -> f64 {
        let best = pace.interval;
        let lately = pace.lately.filter(|_| self.times > 0 && here > 0).unwrap_or(best);
        lately.clamp(best, best.mul_f64(SLOWER_MAX)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests;
