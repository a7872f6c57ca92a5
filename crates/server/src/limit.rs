//! How many syncs are at work at once where nobody has fixed the number: as many as the database takes without a queue of its own.
//!
//! The method is TCP Vegas's (Brakmo, O'Malley, Peterson, SIGCOMM 1994), used for requests in the place of packets as by Netflix's
//! *concurrency-limits* (2018). What a sync takes when few are at work is known (`fastest`); what it takes now is seen. Of `n` at work
//!
//! ```text
//! queued = n * (1 - fastest / now)
//! ```
//!
//! wait within the database: for processors, locks or the disk. Fewer than [`QUEUED_MIN`], and all places taken: one more place. More than
//! [`QUEUED_MAX`]: one fewer. A database that slows down is given less at once, one that takes many commits with one write is given more.
//!
//! Syncs differ, so each is held against its like: the same kind, and as many rows to a factor of two. What was fastest is forgotten
//! after a minute or two, and once a minute half of the places are left empty for a moment, so that it is seen anew: a database
//! that has become slower, or a first measurement under load, does not mislead for ever.
//!
//! *Caveats.* Time is passed in; nothing here waits or reads a clock. A limit moves only while its places are all taken.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Below this, one more may work.
const QUEUED_MIN: f64 = 2.0;
/// Above this, one fewer.
const QUEUED_MAX: f64 = 4.0;
/// So many of a class are measured together: one alone says little.
const GROUP: u32 = 16;
/// The fewest that are judged together; and at least as many for each place.
const WINDOW: u32 = 32;
const WINDOW_PER_PLACE: u32 = 2;
/// After how long what was fastest begins to be forgotten.
const GENERATION: Duration = Duration::from_mins(1);
/// Where a limit begins.
const BEGIN: usize = 4;
/// What the latest sync counts for in the pace.
const LATEST: f64 = 0.05;
/// A pace is sure while so much of it is: the first ones of a crowd after other syncs, two of them, make it unsure.
const SURE_PART: f64 = 0.95;
/// Over one to two of these it is counted how many syncs end; a longer pause ends the counting.
const SPAN: Duration = Duration::from_secs(2);
/// What a class's syncs take is sure when some were seen for so long.
const SURE_AFTER: Duration = Duration::from_secs(5);

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// An upload was applied.
    Upload,
    /// A download was read.
    Download,
    /// Both.
    Both,
}

/// Syncs that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    kind: Kind,
    /// The rows' binary logarithm.
    size: u32,
}

impl Class {
    /// Of so many rows.
    pub(crate) fn of(kind: Kind, rows: u64) -> Class {
        Class { kind, size: u64::BITS - rows.leading_zeros() }
    }
}

/// One sync's time at work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) class: Class,
    pub(crate) took: Duration,
    /// How many were at work when it ended, itself among them.
    pub(crate) busy: usize,
}

/// How far apart syncs like the last ones end when the database does its best.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    /// How far apart they ended of late, whatever else was done and waited for meanwhile; none: too few did.
    pub(crate) lately: Option<Duration>,
    /// Whether such syncs were seen for long enough: the first of a crowd take many times as long as the next ones, while all the others are
    /// being received.
    pub(crate) is_sure: bool,
}

/// The number.
#[derive(Debug)]
pub(crate) struct Limit {
    current: usize,
    most: usize,
    is_fixed: bool,
    classes: HashMap<Class, Seen>,
    window: Window,
    generation: Option<Instant>,
    /// While half of the places are left empty: the number before.
    probing: Option<usize>,
    /// What a sync of the present mix takes of the whole database's time at its best, in seconds.
    interval_s: Option<f64>,
    lately: Lately,
    /// Of the same syncs, the part whose times are sure.
    sure_part: f64,
}

/// Syncs that ended of late.
#[derive(Debug, Default)]
struct Lately {
    last: Option<Instant>,
    /// Since when how many did: this span, and the one before.
    spans: [Option<(Instant, u32)>; 2],
}

/// What syncs of a class took.
#[derive(Debug, Default)]
struct Seen {
    begun: Option<Instant>,
    group: Sums,
    /// The least of a group's means: in this generation, in the one before.
    fastest: [Option<f64>; 2],
    /// The same of the time divided by how many were at work.
    share: [Option<f64>; 2],
}

#[derive(Debug, Default)]
struct Sums {
    count: u32,
    took: f64,
    share: f64,
}

#[derive(Debug, Default)]
struct Window {
    count: u32,
    fastest: f64,
    took: f64,
    busy: f64,
    busy_max: usize,
}

impl Limit {
    /// Of one place at least, and so many at most.
    pub(crate) fn new(most: usize) -> Limit {
        Limit {
            current: BEGIN.min(most).max(1),
            most: most.max(1),
            is_fixed: false,
            classes: HashMap::new(),
            window: Window::default(),
            generation: None,
            probing: None,
            interval_s: None,
            lately: Lately::default(),
            sure_part: 0.0,
        }
    }

    /// Always so many.
    pub(crate) fn fixed(number: usize) -> Limit {
        Limit { current: number, is_fixed: true, ..Limit::new(number) }
    }

    /// Found from now on, up to so many, beginning with as many as there are; or always `fixed`, if that is more than 0.
    pub(crate) fn follow(&mut self, fixed: usize, most: usize) {
        let was_fixed = std::mem::replace(&mut self.is_fixed, fixed > 0);
        if self.is_fixed {
            (self.current, self.most, self.probing) = (fixed, fixed, None);
            return;
        }
        if was_fixed {
            self.window = Window::default();
        }
        self.set_most(most);
    }

    /// How many may work now.
    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// How many may at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// As many as that at most, from now on; one that is fixed stays.
    pub(crate) fn set_most(&mut self, most: usize) {
        if !self.is_fixed {
            self.most = most.max(1);
            self.current = self.current.min(self.most);
        }
    }

    /// How far apart syncs end, once it is known.
    pub(crate) fn pace(&self) -> Option<Pace> {
        let interval = Duration::from_secs_f64(self.interval_s?);
        Some(Pace { interval, lately: self.lately.interval(), is_sure: self.sure_part >= SURE_PART })
    }

    /// A sync has ended.
    pub(crate) fn done(&mut self, now: Instant, done: Done) {
        self.begin_generation(now);
        self.lately.add(now);
        let (took, busy) = (done.took.as_secs_f64(), done.busy.max(1));
        let seen = self.classes.entry(done.class).or_default();
        let is_sure = seen.add(now, took, took / busy as f64);
        let (Some(fastest), Some(share)) = (least(seen.fastest), least(seen.share)) else { return };
        self.sure_part += (f64::from(u8::from(is_sure)) - self.sure_part) * LATEST;
        let interval = self.interval_s.get_or_insert(share);
        *interval += (share - *interval) * LATEST;
        if self.is_fixed {
            return;
        }
        self.window.add(fastest, took, busy);
        if self.window.count >= WINDOW.max(WINDOW_PER_PLACE * self.current as u32) {
            self.judge();
        }
    }

    fn judge(&mut self) {
        let window = std::mem::take(&mut self.window);
        if let Some(before) = self.probing.take() {
            self.current = before.min(self.most);
            return;
        }
        let queued = window.busy / f64::from(window.count) * (1.0 - window.fastest / window.took).max(0.0);
        let was_full = window.busy_max >= self.current;
        if queued > QUEUED_MAX {
            self.current = (self.current - 1).max(1);
        } else if queued < QUEUED_MIN && was_full {
            self.current = (self.current + 1).min(self.most);
        }
    }

    fn begin_generation(&mut self, now: Instant) {
        let begun = *self.generation.get_or_insert(now);
        if now.saturating_duration_since(begun) < GENERATION {
            return;
        }
        self.generation = Some(now);
        self.classes.retain(|_, seen| seen.grow_old());
        if self.is_fixed {
            return;
        }
        self.window = Window::default();
        let before = self.probing.take().unwrap_or(self.current);
        self.probing = Some(before);
        self.current = before.div_ceil(2);
    }
}

impl Lately {
    fn add(&mut self, now: Instant) {
        let since = |then: Instant| now.saturating_duration_since(then);
        if self.last.is_some_and(|last| since(last) > SPAN) {
            self.spans = [None, None];
        }
        self.last = Some(now);
        let Some((begun, count)) = &mut self.spans[0] else {
            self.spans[0] = Some((now, 0));
            return;
        };
        *count += 1;
        if since(*begun) >= SPAN {
            self.spans = [Some((now, 0)), self.spans[0]];
        }
    }

    fn interval(&self) -> Option<Duration> {
        let [Some((_, now)), Some((begun, before))] = self.spans else { return None };
        Some(self.last?.saturating_duration_since(begun) / (before + now).max(1))
    }
}

impl Seen {
    /// Adds a sync; gives whether they were seen for long enough.
    fn add(&mut self, now: Instant, took: f64, share: f64) -> bool {
        let begun = *self.begun.get_or_insert(now);
        self.add_to_group(took, share);
        now.saturating_duration_since(begun) >= SURE_AFTER
    }

    fn add_to_group(&mut self, took: f64, share: f64) {
        let Sums { count, took: sum_took, share: sum_share } = &mut self.group;
        (*count, *sum_took, *sum_share) = (*count + 1, *sum_took + took, *sum_share + share);
        if *count < GROUP {
            return;
        }
        let group = std::mem::take(&mut self.group);
        let mean = |sum: f64| sum / f64::from(group.count);
        let lower = |known: &mut Option<f64>, seen: f64| *known = Some(known.map_or(seen, |known| known.min(seen)));
        lower(&mut self.fastest[0], mean(group.took));
        lower(&mut self.share[0], mean(group.share));
    }

    /// Whether anything is known still.
    fn grow_old(&mut self) -> bool {
        self.fastest = [None, self.fastest[0]];
        self.share = [None, self.share[0]];
        self.fastest[1].is_some()
    }
}

impl Window {
    fn add(&mut self, fastest: f64, took: f64, busy: usize) {
        self.count += 1;
        self.fastest += fastest.min(took);
        self.took += took;
        self.busy += busy as f64;
        self.busy_max = self.busy_max.max(busy);
    }
}

fn least(generations: [Option<f64>; 2]) -> Option<f64> {
    generations.into_iter().flatten().min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests;
