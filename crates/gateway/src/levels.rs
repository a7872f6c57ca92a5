//! How hard to compress: at the level that brings an answer to its client soonest.
//!
//! ```text
//! as it is            bytes / link
//! held whole          bytes / rate + packed / link      first the one, then the other
//! sent as it comes    the longer of the two             both at a time
//! ```
//!
//! How fast a level is here, and how small it makes what is asked for here, is measured while answers are compressed. Now and then the beginning of
//! one is compressed at every level, so that those are known too that nobody was given.
//!
//! *Caveats.* The time of one client counts, the first that wants this form. What the processor could have done for others meanwhile shows in the
//! rates alone: where it is busy, compressing takes longer.

use std::time::Duration;

use crate::coding::Coding;

/// The levels that are chosen from.
pub(crate) const LEVELS: [u32; 3] = [1, 5, 9];
/// The level while nothing is known: on no machine it is far from the best.
const FIRST_LEVEL: u32 = LEVELS[0];
/// What a link is taken to carry before any was measured: 100 Mbit/s.
const USUAL_LINK: f64 = 100e6 / 8.0;
/// Of so many bytes what was measured before counts for half.
const MEMORY_BYTES: f64 = 4e6;
/// After so many bytes all levels are measured again.
const AGAIN_BYTES: u64 = 32 << 20;
/// Compressing again what is compressed already must save so much of the time.
const WORTH_AGAIN: f64 = 0.9;

/// How an answer goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Compressed whole, then sent.
    Whole,
    /// Compressed while it is sent.
    AsItComes,
}

/// What is done with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It goes as it is.
    Plain,
    /// The form goes that is there.
    There,
    /// It is compressed at this level.
    Level(u32),
}

/// A form of an answer that is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct There {
    pub(crate) level: u32,
    /// Its bytes by those of the answer.
    pub(crate) share: f64,
}

/// What one level has done: a moving average, by bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    bytes: f64,
    packed: f64,
    seconds: f64,
}

impl Measured {
    fn note(&mut self, bytes: usize, packed: usize, took: Duration) {
        if self.bytes > MEMORY_BYTES {
            *self = Measured { bytes: self.bytes / 2.0, packed: self.packed / 2.0, seconds: self.seconds / 2.0 };
        }
        self.bytes += bytes as f64;
        self.packed += packed as f64;
        self.seconds += took.as_secs_f64();
    }

    /// Seconds until a byte has come over a link of so many bytes a second; `None`: nothing is known.
    fn seconds(&self, link: f64, sending: Sending) -> Option<f64> {
        if self.bytes <= 0.0 {
            return None;
        }
        let (packing, carrying) = (self.seconds / self.bytes, self.packed / self.bytes / link);
        Some(match sending {
            Sending::Whole => packing + carrying,
            Sending::AsItComes => packing.max(carrying),
        })
    }
}

/// What is known of the levels of one coding.
#[derive(Clone, Copy, Debug, Default)]
struct OfCoding {
    measured: [Measured; LEVELS.len()],
    /// Bytes of answers since all levels were measured; `None`: they never were.
    since: Option<u64>,
}

/// What is known of every level, and of the links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    codings: [OfCoding; Coding::PACKED.len()],
    link: f64,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { codings: Default::default(), link: USUAL_LINK }
    }
}

impl Levels {
    /// So many bytes took so long at this level, and became so many.
    pub(crate) fn note(&mut self, coding: Coding, level: u32, (bytes, packed): (usize, usize), took: Duration) {
        let Some(of_coding) = self.of(coding) else { return };
        if let Some(place) = LEVELS.iter().position(|known| *known == level) {
            of_coding.measured[place].note(bytes, packed, took);
        }
    }

    /// Bytes a second of a client's link; where it was not measured, what links had of late.
    pub(crate) fn link(&mut self, measured: Option<f64>) -> f64 {
        if let Some(measured) = measured {
            self.link += (measured - self.link) / 8.0;
        }
        measured.unwrap_or(self.link)
    }

    /// What brings an answer to its client soonest. A form that is there costs no time but the link's; it is made anew at a higher level alone.
    pub(crate) fn choose(&self, coding: Coding, link: f64, sending: Sending, there: Option<There>) -> Choice {
        let Some(of_coding) = coding.place().map(|place| &self.codings[place]) else { return Choice::Plain };
        let known = LEVELS.iter().zip(&of_coding.measured);
        let known: Vec<(f64, Choice)> = known
            .filter(|(level, _)| there.is_none_or(|there| **level > there.level))
            .filter_map(|(level, measured)| Some((measured.seconds(link, sending)?, Choice::Level(*level))))
            .collect();
        if known.is_empty() && there.is_none() {
            return Choice::Level(FIRST_LEVEL);
        }
        let first = match there {
            Some(there) => (there.share / link * WORTH_AGAIN, Choice::There),
            None => (1.0 / link, Choice::Plain),
        };
        // Of two that are as fast the one that costs less.
        known.into_iter().fold(first, |best, next| if next.0 < best.0 { next } else { best }).1
    }

    /// Whether it is time to measure all levels, now that so many bytes more were asked for.
    pub(crate) fn is_due(&mut self, coding: Coding, bytes: usize) -> bool {
        let Some(of_coding) = self.of(coding) else { return false };
        let since = of_coding.since.map(|since| since + bytes as u64);
        let is_due = since.is_none_or(|since| since > AGAIN_BYTES);
        of_coding.since = Some(if is_due { 0 } else { since.unwrap_or(0) });
        is_due
    }

    fn of(&mut self, coding: Coding) -> Option<&mut OfCoding> {
        coding.place().map(|place| &mut self.codings[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 1e6 / 8.0;

    /// Bytes a second, and the share that is left, by level: what deflate does with rows on a processor of today.
    const FAST: [(f64, f64); 3] = [(120e6, 0.30), (60e6, 0.25), (20e6, 0.22)];
    /// The same where there is a tenth of it.
    const SLOW: [(f64, f64); 3] = [(12e6, 0.30), (6e6, 0.25), (2e6, 0.22)];

    /// Seconds of an answer by level, as it really is; level 0 is as it is.
    fn seconds(machine: &[(f64, f64); 3], level: u32, bytes: usize, link: f64, sending: Sending) -> f64 {
        let Some(place) = LEVELS.iter().position(|known| *known == level) else { return bytes as f64 / link };
        let (rate, share) = machine[place];
        let (packing, carrying) = (bytes as f64 / rate, bytes as f64 * share / link);
        if sending == Sending::Whole { packing + carrying } else { packing.max(carrying) }
    }

    fn note(levels: &mut Levels, machine: &[(f64, f64); 3], level: u32, bytes: usize) {
        if let Some(place) = LEVELS.iter().position(|known| *known == level) {
            let (rate, share) = machine[place];
            let took = Duration::from_secs_f64(bytes as f64 / rate);
            levels.note(Coding::Gzip, level, (bytes, (bytes as f64 * share) as usize), took);
        }
    }

    fn note_all(levels: &mut Levels, machine: &[(f64, f64); 3], bytes: usize) {
        for level in LEVELS {
            note(levels, machine, level, bytes);
        }
    }

    /// Answers one after the other; the time of all of them.
    fn run(levels: &mut Levels, machine: &[(f64, f64); 3], answers: usize, link: f64, sending: Sending) -> f64 {
        const BYTES: usize = 1_000_000;
        let mut all = 0.0;
        for _ in 0..answers {
            let level = match levels.choose(Coding::Gzip, link, sending, None) {
                Choice::Level(level) => level,
                Choice::Plain => 0,
                Choice::There => panic!("nothing is there"),
            };
            all += seconds(machine, level, BYTES, link, sending);
            note(levels, machine, level, BYTES);
            if levels.is_due(Coding::Gzip, BYTES) {
                note_all(levels, machine, 100_000);
            }
        }
        all
    }

    /// Learning included: nothing is known at first.
    #[test]
    fn every_link_is_served_as_fast_as_by_the_best_fixed_level() {
        const ANSWERS: usize = 200;
        for (machine, name) in [(&FAST, "fast"), (&SLOW, "slow")] {
            for megabits in [10.0, 100.0, 1_000.0] {
                for sending in [Sending::Whole, Sending::AsItComes] {
                    let link = megabits * MBIT;
                    let all = run(&mut Levels::default(), machine, ANSWERS, link, sending);
                    let fixed = [0, 1, 5, 9].map(|level| seconds(machine, level, 1_000_000, link, sending));
                    let best = fixed.into_iter().fold(f64::INFINITY, f64::min) * ANSWERS as f64;
                    assert!(best / all >= 0.95, "{name}, {megabits} Mbit/s, {sending:?}: {}", best / all);
                }
            }
        }
    }

    #[test]
    fn the_link_and_the_processor_decide() {
        let choose = |machine: &[(f64, f64); 3], megabits: f64| {
            let mut levels = Levels::default();
            note_all(&mut levels, machine, 1_000_000);
            levels.choose(Coding::Gzip, megabits * MBIT, Sending::Whole, None)
        };
        assert_eq!(choose(&FAST, 1_000.0), Choice::Plain);
        assert_eq!(choose(&FAST, 100.0), Choice::Level(1));
        assert_eq!(choose(&FAST, 10.0), Choice::Level(5));
        assert_eq!(choose(&FAST, 1.0), Choice::Level(9));
        assert_eq!(choose(&SLOW, 100.0), Choice::Plain);
        assert_eq!(choose(&SLOW, 10.0), Choice::Level(1));
    }

    /// The processor has become busy: what was measured is forgotten within some answers.
    #[test]
    fn what_has_changed_is_found_out() {
        let (mut levels, link) = (Levels::default(), 100.0 * MBIT);
        run(&mut levels, &FAST, 50, link, Sending::Whole);
        assert_eq!(levels.choose(Coding::Gzip, link, Sending::Whole, None), Choice::Level(1));
        run(&mut levels, &SLOW, 50, link, Sending::Whole);
        assert_eq!(levels.choose(Coding::Gzip, link, Sending::Whole, None), Choice::Plain);
        run(&mut levels, &FAST, 400, link, Sending::Whole);
        assert_eq!(levels.choose(Coding::Gzip, link, Sending::Whole, None), Choice::Level(1), "by measuring all");
    }

    #[test]
    fn a_form_that_is_there_is_made_anew_only_where_that_pays() {
        let mut levels = Levels::default();
        let gzip = |levels: &Levels, megabits: f64, there| {
            levels.choose(Coding::Gzip, megabits * MBIT, Sending::Whole, Some(there))
        };
        let weak = There { level: 1, share: 0.30 };
        assert_eq!(gzip(&levels, 1.0, weak), Choice::There, "nothing is known of others");
        note_all(&mut levels, &FAST, 1_000_000);
        assert_eq!(gzip(&levels, 1.0, weak), Choice::Level(9));
        assert_eq!(gzip(&levels, 100.0, weak), Choice::There);
        assert_eq!(gzip(&levels, 1_000.0, weak), Choice::There, "it costs nothing any more");
        for megabits in [1.0, 10.0, 1_000.0] {
            assert_eq!(gzip(&levels, megabits, There { level: 9, share: 0.9 }), Choice::There, "there is no more");
        }
        assert_eq!(levels.choose(Coding::Identity, MBIT, Sending::Whole, None), Choice::Plain);
    }

    #[test]
    fn a_link_that_was_not_measured_is_as_others_were() {
        let mut levels = Levels::default();
        assert!((levels.link(None) - USUAL_LINK).abs() < 1.0);
        assert!((levels.link(Some(MBIT)) - MBIT).abs() < 1.0, "its own goes before");
        for _ in 0..100 {
            levels.link(Some(MBIT));
        }
        assert!((levels.link(None) / MBIT - 1.0).abs() < 0.01);
    }
}
