//! The pool's figures: what a hit costs, what skips are worth, how many misses a policy has.
//!
//! ```text
//! cargo bench -p headwater-bufferpool                all of them, about three minutes
//! cargo bench -p headwater-bufferpool -- hit skips    those that are named: hit, skips, misses
//! ```
//!
//! What is compared takes turns; a line `figure NAME VALUE LOW HIGH` is the median of the turns, the least and the most. `skips` is
//! the `readprobe` of the published figures (docs/measurements.md): data all in memory, each thread reads for a fixed time.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use headwater_bufferpool::{Class, Config, Error, Floors, Key, Object, Policy, Pool, Session};

const TURNS: usize = 5;
const THREADS: usize = 8;
const BLOCK: usize = 512;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let parts: [(&str, fn()); 3] = [("hit", hit), ("skips", skips), ("misses", misses)];
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            part();
        }
    }
}

/// Numbers by chance, from a seed (SplitMix64, Steele et al. 2014).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn pool(policy: Policy, blocks: u64) -> Pool {
    let budget_bytes = blocks * BLOCK as u64;
    let config = Config { block_bytes: BLOCK, budget_bytes, floors: Floors::default(), policy, ..Config::default() };
    Pool::new(&config).expect("a pool")
}

/// The blocks of a pool, which has nothing else.
fn key(number: u64) -> Key {
    static FIRST: LazyLock<Object> = LazyLock::new(|| pool(Policy::S3Fifo, 1).object());
    Key { object: *FIRST, number }
}

fn load(session: &Session, number: u64) -> bool {
    let mut is_hit = true;
    let load = || {
        is_hit = false;
        Ok::<_, Error>(vec![number as u8; BLOCK])
    };
    black_box(session.load(key(number), load).expect("loaded")[0]);
    is_hit
}

/// A pool that has so many blocks in memory, and room for the pins beside.
fn filled(policy: Policy, blocks: u64) -> Pool {
    let pool = pool(policy, blocks + THREADS as u64);
    let session = pool.session("filler", Class::Answer, 1).expect("room");
    for number in 0..blocks {
        load(&session, number);
    }
    drop(session);
    pool
}

fn figure(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    println!("figure pool.{name} {:.4} {:.4} {:.4}", values[values.len() / 2], values[0], values[values.len() - 1]);
}

/// One thread, all in memory: from asking for a block to having let it go. Beside it `bare`, in the same turns: one lock, the standard library's
/// table, a reference taken and let go, and no order of who goes.
fn hit() {
    const KEYS: usize = 1 << 16;
    let policies =
        [("lru_0", Policy::Lru { skips: 0 }), ("lru_100", Policy::Lru { skips: 100 }), ("s3_fifo", Policy::S3Fifo)];
    for blocks in [100, 1_000, 100_000] {
        let mut pools = policies.map(|(name, policy)| (name, filled(policy, blocks), Vec::new()));
        let bare: Mutex<HashMap<Key, Arc<Vec<u8>>>> =
            Mutex::new((0..blocks).map(|number| (key(number), Arc::new(vec![number as u8]))).collect());
        let mut bare_values = Vec::new();
        for turn in 0..TURNS {
            let mut chance = Chance(turn as u64);
            let keys: Vec<Key> = (0..KEYS).map(|_| key(chance.below(blocks))).collect();
            for (_, pool, values) in &mut pools {
                let session = pool.session("reader", Class::Answer, 1).expect("room");
                values.push(each_ns(&keys, |key| session.find(key).expect("a pin").is_some()));
            }
            bare_values.push(each_ns(&keys, |key| bare.lock().expect("no panic").get(&key).cloned().is_some()));
        }
        figure(&format!("hit_ns_bare_of_{blocks}"), &mut bare_values);
        for (name, _, mut values) in pools {
            figure(&format!("hit_ns_{name}_of_{blocks}"), &mut values);
        }
    }
}

/// What one takes of many.
fn each_ns(keys: &[Key], is_hit: impl Fn(Key) -> bool) -> f64 {
    const ROUNDS: usize = 64;
    let began = Instant::now();
    for _ in 0..ROUNDS {
        for key in keys {
            assert!(black_box(is_hit(*key)));
        }
    }
    began.elapsed().as_nanos() as f64 / (keys.len() * ROUNDS) as f64
}

/// Reads a second of all threads, and waits a second for the chain, the table's shards, blocks.
fn readprobe(pool: &Pool, blocks: u64, seed: u64) -> [f64; 4] {
    let seconds = Duration::from_secs(1);
    let (stop, before) = (AtomicBool::new(false), pool.counters());
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let session = pool.session("reader", Class::Answer, 1).expect("room");
            let stop = &stop;
            scope.spawn(move || {
                let mut chance = Chance(seed * 100 + thread);
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..64 {
                        let key = key(chance.below(blocks));
                        black_box(session.find(key).expect("a pin").is_some());
                    }
                }
            });
        }
        std::thread::sleep(seconds);
        stop.store(true, Ordering::Relaxed);
    });
    let after = pool.counters();
    let reads = after.of(Class::Answer).hits - before.of(Class::Answer).hits;
    let waits = [
        after.waits.chain - before.waits.chain,
        after.waits.table - before.waits.table,
        after.waits.block - before.waits.block,
    ];
    [reads, waits[0], waits[1], waits[2]].map(|count| count as f64 / seconds.as_secs_f64())
}

/// Eight threads that read: skips against none.
fn skips() {
    const SKIPS: [u32; 4] = [0, 10, 100, 1000];
    for (size, blocks) in [("small", 100), ("big", 50_000)] {
        let pool = filled(Policy::Lru { skips: 0 }, blocks);
        let mut turns = Vec::new();
        for turn in 0..TURNS as u64 {
            let turn = SKIPS.map(|skips| {
                pool.set_skips(skips).expect("LRU");
                readprobe(&pool, blocks, turn)
            });
            turns.push(turn);
        }
        for (at, skips) in SKIPS.into_iter().enumerate() {
            for (what, name) in ["reads_s", "chain_waits_s", "table_waits_s"].into_iter().enumerate() {
                let mut values: Vec<f64> = turns.iter().map(|turn| turn[at][what]).collect();
                figure(&format!("{name}_{size}_skips_{skips}"), &mut values);
            }
            let mut gains: Vec<f64> = turns.iter().map(|turn| turn[at][0] / turn[0][0]).collect();
            figure(&format!("reads_gain_{size}_skips_{skips}"), &mut gains);
            let mut less: Vec<f64> = turns.iter().map(|turn| 1.0 - turn[at][1] / turn[0][1].max(1.0)).collect();
            figure(&format!("chain_waits_less_{size}_skips_{skips}"), &mut less);
        }
    }
}

/// What is asked for, one after the other: by Zipf's law, with scans of numbers that come once in between.
fn trace(exponent: f64, scanned: f64, seed: u64) -> Vec<u64> {
    const NUMBERS: usize = 100_000;
    const LENGTH: usize = 2_000_000;
    const SCAN: usize = 5_000;
    let mut sums = Vec::with_capacity(NUMBERS);
    let mut sum = 0.0;
    for rank in 1..=NUMBERS {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut chance = Chance(seed);
    let (mut all, mut once) = (Vec::with_capacity(LENGTH), NUMBERS as u64);
    while all.len() < LENGTH {
        if chance.fraction() < scanned / SCAN as f64 / (1.0 - scanned).max(1e-9) {
            all.extend(once..once + SCAN as u64);
            once += SCAN as u64;
        }
        let place = chance.fraction() * sum;
        all.push(sums.partition_point(|sum| *sum < place) as u64);
    }
    all
}

/// The part of a trace that misses, by our policies and by others' caches of as many entries.
fn misses() {
    let mut worst = Vec::new();
    for (exponent, scanned) in [(0.7, 0.2), (0.9, 0.0), (0.9, 0.2), (0.9, 0.5), (1.1, 0.2)] {
        for capacity in [2_000_u64, 10_000] {
            let mut ratios: [Vec<f64>; 5] = Default::default();
            for seed in 0..3 {
                let trace = trace(exponent, scanned, seed);
                let ours = |policy| {
                    let pool = pool(policy, capacity);
                    let session = pool.session("reader", Class::Answer, 1).expect("room");
                    part(&trace, |number| load(&session, number))
                };
                let turn = [
                    ours(Policy::S3Fifo),
                    ours(Policy::Lru { skips: 0 }),
                    ours(Policy::Lru { skips: 100 }),
                    of_moka(&trace, capacity),
                    of_quick_cache(&trace, capacity),
                ];
                for (ratios, ratio) in ratios.iter_mut().zip(turn) {
                    ratios.push(ratio);
                }
            }
            let name = format!("zipf_{exponent}_scanned_{scanned}_of_{capacity}");
            let mut against: Vec<f64> = (0..3).map(|at| ratios[0][at] / ratios[3][at].min(ratios[4][at])).collect();
            for (who, ratios) in ["s3_fifo", "lru_0", "lru_100", "moka", "quick_cache"].into_iter().zip(&mut ratios) {
                figure(&format!("misses_{who}_{name}"), ratios);
            }
            worst.extend(against.iter().copied().filter(|_| scanned > 0.0).reduce(f64::max));
            figure(&format!("misses_s3_fifo_against_better_{name}"), &mut against);
        }
    }
    figure("misses_against_better", &mut [worst.into_iter().fold(0.0, f64::max)]);
}

fn part(trace: &[u64], mut is_hit: impl FnMut(u64) -> bool) -> f64 {
    trace.iter().filter(|number| !is_hit(**number)).count() as f64 / trace.len() as f64
}

fn of_moka(trace: &[u64], capacity: u64) -> f64 {
    let cache = moka::sync::Cache::new(capacity);
    let mut asked = 0_u64;
    part(trace, |number| {
        asked += 1;
        if asked.is_multiple_of(64) {
            cache.run_pending_tasks();
        }
        let is_hit = cache.get(&number).is_some();
        if !is_hit {
            cache.insert(number, ());
        }
        is_hit
    })
}

fn of_quick_cache(trace: &[u64], capacity: u64) -> f64 {
    let cache = quick_cache::sync::Cache::new(capacity as usize);
    part(trace, |number| {
        let is_hit = cache.get(&number).is_some();
        if !is_hit {
            cache.insert(number, ());
        }
        is_hit
    })
}
