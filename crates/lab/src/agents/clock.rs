//! Another machine's clock, as far as it is known.

use std::time::Duration;

use tokio::time::Instant;

/// How an agent's clock goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// A moment here, and what the agent's clock said then.
    pairs: (Instant, u64),
    /// The round trip of the question: the pair is off by no more than half of it.
    round_trip: Duration,
    /// By how much its wall clock is off ours, to either side.
    pub(crate) wall_off: Duration,
}

impl Clock {
    /// From a question that was sent and answered at these moments here.
    pub(crate) fn of((asked, answered): (Instant, Instant), at: u64, (wall, own_wall): (u64, u64)) -> Clock {
        let round_trip = answered.saturating_duration_since(asked);
        // Asked for at the answer's arrival, half a round trip after the agent looked.
        let wall_then = own_wall.saturating_sub((round_trip / 2).as_nanos() as u64);
        let wall_off = Duration::from_nanos(wall.abs_diff(wall_then));
        Clock { pairs: (asked + round_trip / 2, at), round_trip, wall_off }
    }

    /// The better known of the two.
    pub(crate) fn better(self, other: Clock) -> Clock {
        if other.round_trip < self.round_trip { other } else { self }
    }

    /// How long a question and its answer took.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// A moment here, as the agent's clock says it.
    pub(crate) fn theirs(&self, moment: Instant) -> u64 {
        let (here, there) = self.pairs;
        match moment.checked_duration_since(here) {
            Some(later) => there.saturating_add(later.as_nanos() as u64),
            None => there.saturating_sub(here.saturating_duration_since(moment).as_nanos() as u64),
        }
    }

    /// What the agent's clock says, as a moment here. One that can't be is the moment of the pair.
    pub(crate) fn ours(&self, at: u64) -> Instant {
        let (here, there) = self.pairs;
        let away = Duration::from_nanos(at.abs_diff(there));
        let moment = if at >= there { here.checked_add(away) } else { here.checked_sub(away) };
        moment.unwrap_or(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_there_and_back() {
        let (begin, ms) = (Instant::now() + Duration::from_secs(100), 1_000_000);
        // The agent looked in the middle of 40 ms; its wall clock is 3 s ahead.
        let answered = begin + Duration::from_millis(40);
        let clock = Clock::of((begin, answered), 500 * ms, (13_000 * ms, 10_020 * ms));
        assert_eq!(clock.theirs(begin + Duration::from_millis(20)), 500 * ms);
        assert_eq!(clock.theirs(begin), 480 * ms);
        assert_eq!(clock.ours(530 * ms), begin + Duration::from_millis(50));
        assert_eq!(clock.ours(470 * ms), begin - Duration::from_millis(10));
        assert_eq!(clock.wall_off, Duration::from_secs(3));
        assert_eq!(clock.ours(u64::MAX - 1).max(begin), clock.ours(u64::MAX - 1), "no panic, whatever it says");
    }

    #[test]
    fn the_shortest_round_trip_is_believed() {
        let begin = Instant::now();
        let of = |round_trip| Clock::of((begin, begin + Duration::from_millis(round_trip)), 0, (0, 0));
        assert_eq!(of(40).better(of(3)).round_trip(), Duration::from_millis(3));
        assert_eq!(of(3).better(of(40)).round_trip(), Duration::from_millis(3));
    }
}
