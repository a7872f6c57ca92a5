//! How fast a client takes bytes, by what its socket takes.
//!
//! ```text
//! full ........ room, filled again ........ full      what was taken in between has left for the peer meanwhile
//! t0            t1                           t2       bytes / (t2 - t0), where most of that time was spent waiting for room
//! ```
//!
//! *Caveats.* Answers that the system's buffers take at once say nothing, and as those grow with the connection the first measures are too high.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A client's connection: who it is, and how fast it takes bytes. Each request has it, in an [`Arc`](std::sync::Arc), as an extension.
#[derive(Debug)]
pub struct Line {
    peer: SocketAddr,
    /// 0: nothing is known.
    bytes_per_s: AtomicU64,
}

impl Line {
    pub(crate) fn new(peer: SocketAddr) -> Line {
        Line { peer, bytes_per_s: AtomicU64::new(0) }
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes a second that it takes; `None`: its answers were never too much for it.
    pub fn bytes_per_s(&self) -> Option<f64> {
        Some(self.bytes_per_s.load(Ordering::Relaxed)).filter(|rate| *rate > 0).map(|rate| rate as f64)
    }

    pub(crate) fn note(&self, bytes_per_s: f64) {
        self.bytes_per_s.store((bytes_per_s as u64).max(1), Ordering::Relaxed);
    }
}

/// Measures a connection.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// When there was no room the last time.
    full: Option<Instant>,
    /// When there was some again, and the bytes that were taken since.
    room: Option<(Instant, usize)>,
    /// Moving sums.
    bytes: f64,
    seconds: f64,
}

impl Meter {
    /// So many bytes were taken.
    pub(crate) fn wrote(&mut self, bytes: usize, now: Instant) {
        if self.full.is_some() {
            self.room.get_or_insert((now, 0)).1 += bytes;
        }
    }

    /// There is no room. Gives what is known by now, in bytes a second.
    pub(crate) fn is_full(&mut self, now: Instant) -> Option<f64> {
        let Some(since) = self.full else {
            self.full = Some(now);
            return None;
        };
        let (room, bytes) = self.room.take()?;
        self.full = Some(now);
        // Otherwise it was ours to have more.
        if now - room <= room - since {
            self.bytes = self.bytes / 2.0 + bytes as f64;
            self.seconds = self.seconds / 2.0 + (now - since).as_secs_f64();
        }
        (self.seconds > 0.0).then(|| self.bytes / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_taken_from_full_to_full_tells_the_rate() {
        let (mut meter, mut now) = (Meter::default(), Instant::now());
        meter.wrote(1 << 20, now);
        assert_eq!(meter.is_full(now), None, "what the system takes at first says nothing");
        assert_eq!(meter.is_full(now + Duration::from_millis(1)), None, "asked again, nothing has been taken");
        for _ in 0..10 {
            now += Duration::from_millis(100);
            meter.wrote(100_000, now);
            meter.wrote(25_000, now);
            let rate = meter.is_full(now).expect("measured");
            assert!((rate - 1_250_000.0).abs() < 1.0, "{rate}");
        }
        // Another link: within a few measures.
        let rates: Vec<f64> = (0..6)
            .filter_map(|_| {
                now += Duration::from_millis(100);
                meter.wrote(12_500, now);
                meter.is_full(now)
            })
            .collect();
        assert!(rates.last().is_some_and(|rate| (rate / 125_000.0) < 1.5), "{rates:?}");
    }

    #[test]
    fn a_time_in_which_there_was_nothing_to_send_is_not_the_clients() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        assert_eq!(meter.is_full(start), None);
        let soon = start + Duration::from_millis(10);
        meter.wrote(10_000, soon);
        let late = start + Duration::from_mins(1);
        meter.wrote(1_000, late);
        assert_eq!(meter.is_full(late), None);
        meter.wrote(20_000, late + Duration::from_millis(10));
        let rate = meter.is_full(late + Duration::from_millis(10)).expect("measured");
        assert!((rate - 2_000_000.0).abs() < 1.0, "{rate}");
    }
}
