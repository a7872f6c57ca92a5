//! Threads that read records from a buffer pool in which all is.
//!
//! Each user is a thread: it draws a record, finds the record's block in the pool, reads the record, and lets the block go; nothing else. So what is
//! measured is the pool: its hash table, its chain, and how its locks are waited for. Policies take turns. In a last run `skips` is changed in the middle, on
//! the running pool.
//!
//! *Caveats.* A lock that is taken is waited for in the system (futex); the pool makes no other call. How often a thread gave its processor away is
//! told beside.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater_bufferpool::{Class, Config, Error, Floors, Key, Object, Policy, Pool, Waits};
use headwater_lab::report::{Curve, Plot};

use super::calls::{Calls, Counting};
use super::{RECORD, ReadprobeArguments, SLIDES_USERS, TABLES, median, seconds, spent};

const BLOCK: usize = 4_096;
const RECORDS: u64 = (BLOCK / RECORD) as u64;
/// Blocks of the small table, and of the big one.
const BLOCKS: [u64; 2] = [64, 20_000];
const POLICIES: [(&str, Policy); 5] = [
    ("skips 0", Policy::Lru { skips: 0 }),
    ("skips 10", Policy::Lru { skips: 10 }),
    ("skips 100", Policy::Lru { skips: 100 }),
    ("skips 1000", Policy::Lru { skips: 1_000 }),
    ("s3fifo", Policy::S3Fifo),
];
/// How often the run in which `skips` changes is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What the slides print of waits for the chain's latch at these skips (openedge-latch-waits-*.csv), in the same unit for both tables.
const PUBLISHED: [(&str, [(f64, f64); 4]); 2] = [
    ("small", [(0.0, 1_655.0), (10.0, 148.0), (100.0, 7.0), (1_000.0, 0.0)]),
    ("big", [(0.0, 1_949.0), (10.0, 1_035.0), (100.0, 19.0), (1_000.0, 0.0)]),
];

/// What they print of reads gained over no skips: per cent. The charts don't say which label is which; so these are the likely ones, and the small database's
/// one label stands at the same skips as the big one's best.
const PUBLISHED_GAINS: [(&str, &[(f64, f64)]); 2] =
    [("small", &[(0.0, 0.0), (2.0, 39.0)]), ("big", &[(0.0, 0.0), (1.0, 15.0), (2.0, 52.0), (3.0, 44.0)])];

/// A table in a pool.
struct Table {
    pool: Pool,
    object: Object,
    blocks: u64,
}

/// What one turn came to.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    reads: f64,
    seconds: f64,
    chain: f64,
    table: f64,
    /// Processor time in the system and outside of it, in seconds.
    system: f64,
    own: f64,
    /// Times that a thread gave its processor away.
    switches: f64,
}

/// The turns of a table, a policy and a number of users.
struct Cell {
    table: usize,
    policy: usize,
    users: usize,
    turns: Vec<Turn>,
    /// System calls, and the reads that they were counted with.
    calls: Option<(Calls, f64)>,
}

/// Measures and tells; the plots by name.
pub(super) fn measure(arguments: &ReadprobeArguments, are_calls_counted: bool) -> Result<Vec<(String, Plot)>> {
    let mut cells = Vec::new();
    for (table, name) in arguments.tables() {
        let tables = POLICIES.map(|(_, policy)| Table::new(policy, BLOCKS[table], arguments.most()));
        for (number, users) in arguments.users.iter().enumerate() {
            eprintln!(
                "readprobe: in process, {name} table, {users} users ({} of {})",
                number + 1,
                arguments.users.len()
            );
            let mut turns = POLICIES.map(|_| Vec::new());
            for _ in 0..arguments.repetitions {
                for (policy, table) in tables.iter().enumerate() {
                    turns[policy].push(table.turn(*users, seconds(arguments.seconds))?);
                }
            }
            for (policy, turns) in turns.into_iter().enumerate() {
                let is_counted = are_calls_counted && arguments.is_counted(*users);
                let counted = is_counted.then(|| tables[policy].counted(*users, seconds(arguments.seconds)));
                let cell = Cell { table, policy, users: *users, turns, calls: counted.transpose()? };
                cell.tell();
                cells.push(cell);
            }
        }
    }
    let mut plots =
        vec![("waits".to_owned(), waits(&cells, arguments)), ("gains".to_owned(), gains(&cells, arguments))];
    plots.extend(arguments.tables().map(|(table, name)| (format!("{name}-rate"), rates(&cells, table))));
    Ok(plots)
}

impl Table {
    /// All of it in memory, with room for so many pins beside.
    fn new(policy: Policy, blocks: u64, pins: usize) -> Table {
        let budget_bytes = (blocks + pins as u64) * BLOCK as u64;
        let config =
            Config { block_bytes: BLOCK, budget_bytes, floors: Floors::default(), policy, ..Config::default() };
        let pool = Pool::new(&config).expect("options that are sound");
        let table = Table { object: pool.object(), pool, blocks };
        let session = table.pool.session("filler", Class::Answer, 1).expect("there is room");
        for number in 0..blocks {
            let content = || Ok::<_, Error>((0..BLOCK).map(|at| (number as usize + at / RECORD) as u8).collect());
            session.load(table.key(number), content).expect("loaded");
        }
        drop(session);
        table
    }

    fn key(&self, number: u64) -> Key {
        Key { object: self.object, number }
    }

    /// So many users read for so long.
    fn turn(&self, users: usize, time: Duration) -> Result<Turn> {
        let (is_over, start) = (AtomicBool::new(false), Barrier::new(users + 1));
        let reads = AtomicU64::new(0);
        let switches = AtomicU64::new(0);
        let before = (self.pool.counters().waits, spent(std::process::id())?);
        let mut began = Instant::now();
        // All are there before the time begins, and it begins before the first of them reads.
        std::thread::scope(|scope| {
            for user in 0..users {
                let (is_over, start, reads, switches) = (&is_over, &start, &reads, &switches);
                scope.spawn(move || {
                    start.wait();
                    start.wait();
                    reads.fetch_add(self.read(user as u64, is_over, None), Ordering::Relaxed);
                    switches.fetch_add(own_switches(), Ordering::Relaxed);
                });
            }
            start.wait();
            began = Instant::now();
            start.wait();
            std::thread::sleep(time);
            is_over.store(true, Ordering::Relaxed);
        });
        let seconds = began.elapsed().as_secs_f64();
        let (waits, after) = (since(before.0, self.pool.counters().waits), spent(std::process::id())?);
        Ok(Turn {
            reads: reads.into_inner() as f64,
            seconds,
            chain: waits.chain as f64,
            table: waits.table as f64,
            own: after.0 - before.1.0,
            system: after.1 - before.1.1,
            switches: switches.into_inner() as f64,
        })
    }

    /// The system calls of a turn, with those by which its threads began and ended, and its reads.
    fn counted(&self, users: usize, time: Duration) -> Result<(Calls, f64)> {
        let counting = Counting::start(std::process::id())?;
        let turn = self.turn(users, time)?;
        Ok((counting.stop()?, turn.reads))
    }

    /// Reads records until it is over; how many. `told`: where they are counted meanwhile.
    fn read(&self, seed: u64, is_over: &AtomicBool, told: Option<&AtomicU64>) -> u64 {
        let session = self.pool.session("a user", Class::Answer, 1).expect("there is room");
        let (mut state, mut reads) = (seed, 0);
        while !is_over.load(Ordering::Relaxed) {
            for _ in 0..64 {
                let record = below(&mut state, self.blocks * RECORDS);
                let (number, place) = (record / RECORDS, (record % RECORDS) as usize);
                let block = session.find(self.key(number)).expect("one pin").expect("all is in memory");
                let bytes = &block[place * RECORD..(place + 1) * RECORD];
                assert_eq!(bytes[0], (number as usize + place) as u8, "it is another record");
                black_box(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
            }
            reads += 64;
            if let Some(told) = told {
                told.fetch_add(64, Ordering::Relaxed);
            }
        }
        reads
    }
}

impl Cell {
    fn median(&self, of: impl Fn(&Turn) -> f64) -> f64 {
        median(self.turns.iter().map(of).collect())
    }

    fn rate(&self) -> f64 {
        self.median(|turn| turn.reads / turn.seconds)
    }

    /// Waits for the chain, of a million reads.
    fn chain(&self) -> f64 {
        self.median(|turn| turn.chain / turn.reads * 1e6)
    }

    fn tell(&self) {
        // Processor time is counted in hundredths of a second: all turns together.
        let sum = |of: fn(&Turn) -> f64| self.turns.iter().map(of).sum::<f64>();
        let of_million = |of: fn(&Turn) -> f64| sum(of) / sum(|turn| turn.reads) * 1e6;
        let calls = self.calls.map(|(calls, reads)| format!(", system calls {}", calls.of_each(reads / 1e6)));
        println!(
            "row {} {} users {}: {:.0} reads/s, of a million reads {:.1} waits for the chain, {:.1} for the hash table, {:.1} ms of system \
             and {:.1} ms of own time, {:.1} switches{}",
            TABLES[self.table],
            POLICIES[self.policy].0,
            self.users,
            self.rate(),
            self.chain(),
            of_million(|turn| turn.table),
            of_million(|turn| turn.system * 1e3),
            of_million(|turn| turn.own * 1e3),
            of_million(|turn| turn.switches),
            calls.unwrap_or_default(),
        );
    }
}

/// Reads a second against users, a curve for each policy.
fn rates(cells: &[Cell], table: usize) -> Plot {
    let curves = POLICIES.iter().enumerate().map(|(policy, (name, _))| {
        let own = cells.iter().filter(|cell| (cell.table, cell.policy) == (table, policy));
        let points = own.map(|cell| (cell.users as f64, cell.rate())).collect();
        Curve { name: (*name).to_owned(), points, is_published: false }
    });
    let title = format!("Records read from the {} table", TABLES[table]);
    Plot { title, x: "users".into(), y: "reads/s".into(), curves: curves.collect() }
}

/// Waits for the chain against skips, as a share of those without skips; the slides' beside.
fn waits(cells: &[Cell], arguments: &ReadprobeArguments) -> Plot {
    let users = arguments.slides_users();
    let share = |points: Vec<(f64, f64)>| {
        let first = points.first().map_or(1.0, |(_, waits)| waits.max(f64::MIN_POSITIVE));
        points.into_iter().enumerate().map(|(place, (_, waits))| (place as f64, waits / first * 100.0)).collect()
    };
    let mut curves = Vec::new();
    for (table, name) in arguments.tables() {
        let own = cells.iter().filter(|cell| cell.table == table && cell.users == users);
        let own = own.filter_map(|cell| match POLICIES[cell.policy].1 {
            Policy::Lru { skips } => Some((f64::from(skips), cell.chain())),
            Policy::S3Fifo => None,
        });
        curves.push(Curve {
            name: format!("{name} table, {users} users"),
            points: share(own.collect()),
            is_published: false,
        });
    }
    for (name, points) in PUBLISHED {
        curves.push(Curve {
            name: format!("{name} database, slides"),
            points: share(points.into()),
            is_published: true,
        });
    }
    let x = "power of ten of the skips (0: none)".to_owned();
    Plot { title: "Waits for the chain's lock".into(), x, y: "of those without skips, per cent".into(), curves }
}

/// Reads a second more than without skips; the slides' beside.
fn gains(cells: &[Cell], arguments: &ReadprobeArguments) -> Plot {
    let users = arguments.slides_users();
    let mut curves = Vec::new();
    for (table, name) in arguments.tables() {
        let own = cells.iter().filter(|cell| cell.table == table && cell.users == users);
        let rates: Vec<f64> = own.filter(|cell| POLICIES[cell.policy].1 != Policy::S3Fifo).map(Cell::rate).collect();
        let gain = |(place, rate): (usize, &f64)| (place as f64, (rate / rates[0] - 1.0) * 100.0);
        let points = rates.iter().enumerate().map(gain).collect();
        curves.push(Curve { name: format!("{name} table, {users} users"), points, is_published: false });
    }
    curves.extend(PUBLISHED_GAINS.map(|(name, points)| Curve {
        name: format!("{name} database, slides"),
        points: points.to_vec(),
        is_published: true,
    }));
    let x = "power of ten of the skips (0: none)".to_owned();
    Plot { title: "Reads more by skips".into(), x, y: "over those without skips, per cent".into(), curves }
}

/// Reads a second while skips go from 0 to 100 in the middle.
pub(super) fn step(arguments: &ReadprobeArguments) -> Result<Plot> {
    let users = arguments.most().min(SLIDES_USERS);
    let time = seconds(arguments.step_seconds);
    let mut curves = Vec::new();
    for (number, name) in arguments.tables() {
        eprintln!("readprobe: skips change in the middle, {name} table");
        let table = Arc::new(Table::new(Policy::Lru { skips: 0 }, BLOCKS[number], users));
        let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let points = std::thread::scope(|scope| {
            for user in 0..users {
                let (table, is_over, reads) = (&table, &is_over, &reads);
                scope.spawn(move || table.read(user as u64, is_over, Some(reads)));
            }
            let points = watch(&table.pool, &reads, time);
            is_over.store(true, Ordering::Relaxed);
            points
        })?;
        let half = points.len() / 2;
        let mean =
            |points: &[(f64, f64)]| points.iter().map(|(_, rate)| rate).sum::<f64>() / points.len().max(1) as f64;
        println!(
            "step {name}: {:.0} reads/s with skips 0, {:.0} with skips 100",
            mean(&points[..half]),
            mean(&points[half..])
        );
        curves.push(Curve { name: format!("{name} table, {users} users"), points, is_published: false });
    }
    let title = format!("skips 0, from second {:.0} on 100", arguments.step_seconds / 2.0);
    Ok(Plot { title, x: "seconds".into(), y: "reads/s".into(), curves })
}

/// Seconds and reads a second; in the middle the skips change.
fn watch(pool: &Pool, reads: &AtomicU64, time: Duration) -> Result<Vec<(f64, f64)>> {
    let began = Instant::now();
    let (mut points, mut is_changed) = (Vec::new(), false);
    let (mut then, mut before) = (began, reads.load(Ordering::Relaxed));
    while began.elapsed() < time {
        std::thread::sleep(LOOK);
        if !is_changed && began.elapsed() >= time / 2 {
            pool.set_skips(100)?;
            is_changed = true;
        }
        let (now, count) = (Instant::now(), reads.load(Ordering::Relaxed));
        points.push((began.elapsed().as_secs_f64(), (count - before) as f64 / (now - then).as_secs_f64()));
        (then, before) = (now, count);
    }
    Ok(points)
}

/// How often this thread has given its processor away.
fn own_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

fn since(before: Waits, after: Waits) -> Waits {
    Waits { chain: after.chain - before.chain, table: after.table - before.table, block: after.block - before.block }
}

/// A number by chance (SplitMix64, Steele et al. 2014).
fn below(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((u128::from(mixed ^ (mixed >> 31)) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_read_what_is_there_and_are_counted() {
        for (_, policy) in POLICIES {
            let table = Table::new(policy, 3, 4);
            let turn = table.turn(4, Duration::from_millis(20)).expect("a turn");
            let counted = table.pool.counters().of(Class::Answer);
            assert_eq!((counted.hits as f64, counted.misses), (turn.reads, 3), "all but the first loads are hits");
            assert!(turn.reads > 0.0 && turn.seconds >= 0.02, "{turn:?}");
        }
    }

    #[test]
    fn skips_change_in_the_middle() {
        let pool = Table::new(Policy::Lru { skips: 0 }, 3, 1).pool;
        let points = watch(&pool, &AtomicU64::new(0), LOOK * 4).expect("looked at");
        assert!(points.len() >= 3, "{points:?}");
        assert_eq!(pool.policy(), Policy::Lru { skips: 100 });
    }
}
