//! What shall happen to one connection.
//!
//! | fault | effect |
//! |---|---|
//! | cut | after n bytes of one direction, or behind something that passes there, both ends lose the connection, by reset (RST) or in an orderly way (FIN) |
//! | black hole | after n bytes of one direction nothing more passes either way, and neither end is told |
//! | hold | after n bytes of one direction nothing more passes this way until [`FaultProxy::go_clean`](crate::FaultProxy::go_clean), then it goes on |
//! | flip | the byte at this offset arrives with all its bits inverted |
//! | delay | each read of one direction is passed on so much later |
//! | throttle | one direction passes so many bytes a second |

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Random;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the target.
    Up,
    /// From the target to the client.
    Down,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both ends see a reset.
    Reset,
    /// Both ends see an orderly end; what they still send is swallowed.
    Fin,
}

/// A fault that happened, or kinds of them to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection was cut.
    Cut(Cut),
    /// The connection fell into a black hole.
    BlackHole,
    /// A byte was inverted.
    Flip,
    /// A direction is delayed.
    Delay,
    /// A direction is slowed down.
    Throttle,
}

/// The faults of one connection; none by default.
///
/// ```
/// use headwater_testkit::{Plan, proxy::{Cut, Direction}};
/// let plan = Plan::clean().flip(Direction::Up, 10).cut(Direction::Down, 1000, Cut::Fin);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) up: Lane,
    pub(super) down: Lane,
}

/// The faults of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) cut: Option<(u64, Cut)>,
    pub(super) cut_behind: Option<(Place, Cut)>,
    pub(super) black_hole: Option<u64>,
    pub(super) hold: Option<u64>,
    pub(super) flip: Option<u64>,
    pub(super) delay: Duration,
    pub(super) bytes_per_second: Option<u32>,
}

/// Looks for a place in all the bytes of a direction so far.
#[derive(Clone)]
pub(super) struct Place(Arc<Find>);

type Find = dyn Fn(&[u8]) -> Option<u64> + Send + Sync;

impl Place {
    pub(super) fn within(&self, bytes: &[u8]) -> Option<u64> {
        (self.0)(bytes)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

impl Plan {
    /// No fault.
    pub fn clean() -> Self {
        Self::default()
    }

    /// Cuts the connection as soon as so many bytes have passed this way (0: before any does).
    #[must_use]
    pub fn cut(mut self, direction: Direction, after_bytes: u64, cut: Cut) -> Self {
        self.lane(direction).cut = Some((after_bytes, cut));
        self
    }

    /// Cuts the connection at a place that is found in what passes this way: `place` gets all bytes so far, and says where, once it can.
    #[must_use]
    pub fn cut_behind(
        mut self,
        direction: Direction,
        place: impl Fn(&[u8]) -> Option<u64> + Send + Sync + 'static,
        cut: Cut,
    ) -> Self {
        self.lane(direction).cut_behind = Some((Place(Arc::new(place)), cut));
        self
    }

    /// Lets nothing more pass, either way, once so many bytes have passed this way.
    #[must_use]
    pub fn black_hole(mut self, direction: Direction, after_bytes: u64) -> Self {
        self.lane(direction).black_hole = Some(after_bytes);
        self
    }

    /// Holds what comes after so many bytes of this direction, until the proxy goes clean.
    #[must_use]
    pub fn hold(mut self, direction: Direction, after_bytes: u64) -> Self {
        self.lane(direction).hold = Some(after_bytes);
        self
    }

    /// Inverts the byte at this offset (from 0).
    #[must_use]
    pub fn flip(mut self, direction: Direction, offset: u64) -> Self {
        self.lane(direction).flip = Some(offset);
        self
    }

    /// Passes on what is read so much later.
    #[must_use]
    pub fn delay(mut self, direction: Direction, delay: Duration) -> Self {
        self.lane(direction).delay = delay;
        self
    }

    /// Passes on at most so many bytes a second (at least 1).
    #[must_use]
    pub fn throttle(mut self, direction: Direction, bytes_per_second: u32) -> Self {
        self.lane(direction).bytes_per_second = Some(bytes_per_second.max(1));
        self
    }

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}

impl Lane {
    /// How many bytes may pass from this position on until something happens; none without a limit.
    pub(super) fn bytes_until_end(&self, position: u64) -> Option<u64> {
        let ends = [self.cut.map(|(after, _)| after), self.black_hole, self.hold];
        ends.into_iter().flatten().min().map(|end| end.saturating_sub(position))
    }

    /// Whether nothing passes at this position before the proxy goes clean.
    pub(super) fn is_held_at(&self, position: u64) -> bool {
        self.hold.is_some_and(|after| after <= position)
    }

    /// The fault that stops the lane at this position.
    pub(super) fn end_at(&self, position: u64) -> Option<Fault> {
        match (self.cut, self.black_hole) {
            (Some((after, cut)), _) if after <= position => Some(Fault::Cut(cut)),
            (_, Some(after)) if after <= position => Some(Fault::BlackHole),
            _ => None,
        }
    }
}

/// How plans are made by chance.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// How many of a hundred connections get a fault.
    pub faulty_percent: u32,
    /// Faults fall at an offset below this, evenly spread, in a direction by chance.
    pub offset_max: u64,
    /// The kinds to choose from, evenly; name one twice to have it more often.
    pub kinds: Vec<Fault>,
}

impl Default for Chaos {
    /// Half of the connections, within the first 64 KiB, by cuts and flips: what a client without time-outs survives.
    fn default() -> Self {
        let kinds = vec![Fault::Cut(Cut::Reset), Fault::Cut(Cut::Fin), Fault::Flip];
        Self { faulty_percent: 50, offset_max: 64 * 1024, kinds }
    }
}

impl Chaos {
    pub(super) fn plan(&self, random: &mut Random) -> Plan {
        // All draws are made in each case, so that a plan doesn't depend on those before it.
        let faulty = random.chance(self.faulty_percent);
        let direction = if random.chance(50) { Direction::Up } else { Direction::Down };
        let (offset, amount) = (random.below(self.offset_max), random.below(100));
        let plan = Plan::clean();
        match random.pick(&self.kinds) {
            Some(kind) if faulty => match kind {
                Fault::Cut(cut) => plan.cut(direction, offset, *cut),
                Fault::BlackHole => plan.black_hole(direction, offset),
                Fault::Flip => plan.flip(direction, offset),
                Fault::Delay => plan.delay(direction, Duration::from_millis(1 + amount)),
                Fault::Throttle => plan.throttle(direction, 1 + amount as u32 * 1024),
            },
            _ => plan,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chaos, Cut, Direction, Fault, Plan};
    use crate::Random;

    #[test]
    fn a_lane_ends_at_its_first_fault() {
        let lane = Plan::clean().cut(Direction::Up, 10, Cut::Fin).black_hole(Direction::Up, 4).up;
        assert_eq!(lane.bytes_until_end(1), Some(3));
        assert_eq!((lane.end_at(3), lane.end_at(4)), (None, Some(Fault::BlackHole)));
        assert_eq!(lane.end_at(10), Some(Fault::Cut(Cut::Fin)));
        assert_eq!(Plan::clean().up.bytes_until_end(u64::MAX), None);
    }

    #[test]
    fn chaos_follows_its_seed_and_its_share() {
        let plans = |seed, faulty_percent| {
            let mut random = Random::seeded(seed);
            let chaos = Chaos { faulty_percent, ..Chaos::default() };
            (0..100).map(|_| format!("{:?}", chaos.plan(&mut random))).collect::<Vec<_>>()
        };
        assert_eq!(plans(1, 50), plans(1, 50));
        assert_ne!(plans(1, 50), plans(2, 50));
        let clean = format!("{:?}", Plan::clean());
        assert!(plans(1, 0).iter().all(|plan| *plan == clean));
        assert!(plans(1, 100).iter().all(|plan| *plan != clean));
    }
}
