//! The model: threads whose every step at a lock or an atomic number shuttle orders, by chance and by few, well placed preemptions
//! (PCT). No block is lost, none is used after it has gone, the budget holds after each step, and nobody waits for good: shuttle
//! finds deadlocks, and ends what goes round and round.
//!
//! shuttle rather than loom, which tries every order: tests of this size have too many, and what must hold here is kept below locks; numbers
//! outside of them are counts and hints. Nor need the dependencies be built anew for it.
//!
//! *Caveats.* Orders of memory are not in the model: an atomic number is as if all threads saw it at once. References (`Arc`) are counted
//! between steps.
//!
//! `HEADWATER_MODEL_RUNS` sets how many orders of each test are tried, by each of both ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler};
use shuttle::{Runner, thread};

use crate::block::{Block, Object};
use crate::kept::Kept;
use crate::overflow::Overflow;
use crate::room::Used;
use crate::{Class, Config, Error, Floors, Key, Policy, Pool, Spool};

const BLOCK: usize = 512;
const POLICIES: [Policy; 3] = [Policy::Lru { skips: 0 }, Policy::Lru { skips: 2 }, Policy::S3Fifo];

fn settings() -> shuttle::Config {
    let mut settings = shuttle::Config::new();
    settings.stack_size = 1 << 18;
    settings.silence_warnings = true;
    settings
}

fn explore(test: impl Fn(Policy) + Send + Sync + 'static) {
    let runs = std::env::var("HEADWATER_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(400);
    let test = Arc::new(test);
    for policy in POLICIES {
        let (by_chance, by_few) = (Arc::clone(&test), Arc::clone(&test));
        Runner::new(RandomScheduler::new(runs), settings()).run(move || by_chance(policy));
        Runner::new(PctScheduler::new(3, runs), settings()).run(move || by_few(policy));
    }
}

fn pool(policy: Policy, blocks: u64) -> Pool {
    let config = Config {
        block_bytes: BLOCK,
        budget_bytes: blocks * BLOCK as u64,
        floors: Floors::default(),
        policy,
        ..Config::default()
    };
    Pool::new(&config).expect("a pool")
}

fn content(key: Key) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u64 ^ key.number ^ (key.object.0 << 4)) as u8).collect()
}

/// Bytes of a spool, each by its position and the spool's seed.
fn bytes(seed: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at % 251) as u8 ^ seed as u8).collect()
}

fn load(pool: &Pool, numbers: impl IntoIterator<Item = u64>, budget: u64) {
    load_of(pool, numbers, budget, false);
}

/// Loads blocks, one after the other, each held for a while.
fn load_of(pool: &Pool, numbers: impl IntoIterator<Item = u64>, budget: u64, is_removed: bool) {
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    for number in numbers {
        let key = Key { object: Object(1_000), number };
        let handle = session.load(key, || Ok::<_, Error>(content(key))).expect("loaded");
        assert!(pool.used_bytes() <= budget * BLOCK as u64, "more than the budget");
        assert_eq!(*handle, *content(key), "a block that is pinned keeps its bytes");
        let is_there = pool.inner.table.shard(&key).blocks.contains_key(&key);
        assert!(is_there || is_removed, "a block that is pinned stays in the table");
    }
}

fn read(spool: &Spool, range: std::ops::Range<u64>) -> Result<Vec<u8>, Error> {
    let mut read = vec![0; (range.end - range.start) as usize];
    let length = spool.read(range.start, &mut read)?;
    read.truncate(length);
    Ok(read)
}

/// What is left when all have gone is what the table has, and nothing lies in the file.
fn at_rest(pool: &Pool) {
    assert_eq!(pool.used_bytes(), (pool.blocks() * BLOCK) as u64, "memory that nobody has");
    let spooled = [Class::Upload, Class::Download].map(|class| pool.used_bytes_of(class));
    assert_eq!((spooled, pool.overflow_bytes()), ([0, 0], 0), "blocks of spools that are gone");
    assert_eq!(pool.holders(), crate::Holders::default(), "claims that nobody has");
}

#[test]
fn no_block_is_lost_and_none_is_used_after_it_has_gone() {
    static OVERFLOWED: AtomicU64 = AtomicU64::new(0);
    static EVICTED: AtomicU64 = AtomicU64::new(0);
    explore(|policy| {
        let pool = pool(policy, 4);
        let spooling = {
            let pool = pool.clone();
            thread::spawn(move || {
                let spool = pool.spool("a spool", Class::Upload, u64::MAX).expect("room");
                let end = 3 * BLOCK as u64 + 100;
                for start in (0..end).step_by(400) {
                    spool.append(&bytes(7, start..end.min(start + 400))).expect("appended");
                    assert!(pool.used_bytes() <= 4 * BLOCK as u64);
                }
                assert_eq!(read(&spool, 0..end).expect("read"), bytes(7, 0..end));
            })
        };
        let readers = [[0, 1, 2], [2, 0, 3]].map(|numbers| {
            let pool = pool.clone();
            thread::spawn(move || load(&pool, numbers, 4))
        });
        spooling.join().expect("no panic");
        for reader in readers {
            reader.join().expect("no panic");
        }
        at_rest(&pool);
        let counters = pool.counters();
        OVERFLOWED.fetch_add(counters.overflow.written_blocks, Ordering::Relaxed);
        EVICTED.fetch_add(counters.of(Class::Answer).evictions, Ordering::Relaxed);
    });
    assert!(OVERFLOWED.load(Ordering::Relaxed) > 0 && EVICTED.load(Ordering::Relaxed) > 0, "nothing had to go");
}

#[test]
fn who_waits_for_a_load_that_fails_loads_itself() {
    static FAILED: AtomicU64 = AtomicU64::new(0);
    explore(|policy| {
        let pool = pool(policy, 2);
        let key = Key { object: Object(1_000), number: 0 };
        let failing = {
            let pool = pool.clone();
            thread::spawn(move || {
                let session = pool.session("one that fails", Class::Answer, 1).expect("room");
                session.load(key, || Err(Error::Config("no".into()))).map(drop).is_err()
            })
        };
        let session = pool.session("one that does not", Class::Answer, 1).expect("room");
        let handle = session.load(key, || Ok::<_, Error>(content(key))).expect("its own load goes well");
        assert_eq!(*handle, *content(key));
        FAILED.fetch_add(u64::from(failing.join().expect("no panic")), Ordering::Relaxed);
        drop((handle, session));
        at_rest(&pool);
    });
    assert!(FAILED.load(Ordering::Relaxed) > 0, "it never failed");
}

#[test]
fn what_is_appended_is_read_meanwhile() {
    explore(|policy| {
        let pool = pool(policy, 3);
        let spool = Arc::new(pool.spool("a spool", Class::Download, BLOCK as u64).expect("room"));
        let end = 3 * BLOCK as u64 + 10;
        let writer = {
            let spool = Arc::clone(&spool);
            thread::spawn(move || {
                for start in (0..end).step_by(700) {
                    spool.append(&bytes(1, start..end.min(start + 700))).expect("appended");
                }
            })
        };
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || load(&pool, [0, 1], 3))
        };
        let mut taken = 0;
        while taken < end {
            let read = read(&spool, taken..end).expect("read");
            assert_eq!(read, bytes(1, taken..taken + read.len() as u64));
            taken += read.len() as u64;
            spool.forget(taken);
            if read.is_empty() {
                thread::yield_now();
            }
        }
        writer.join().expect("no panic");
        reader.join().expect("no panic");
        drop(spool);
        at_rest(&pool);
    });
}

#[test]
fn what_was_truncated_does_not_come_back() {
    explore(|policy| {
        let pool = pool(policy, 4);
        let spool = pool.spool("a spool", Class::Upload, u64::MAX).expect("room");
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || load(&pool, [0, 1, 2], 4))
        };
        spool.append(&bytes(1, 0..2 * BLOCK as u64 + 1)).expect("appended");
        spool.truncate(100).expect("truncated");
        assert_eq!(spool.end(), 100);
        spool.append(&bytes(2, 100..2 * BLOCK as u64 + 1)).expect("appended");
        // What is in memory goes now.
        load(&pool, [10, 11, 12, 13], 4);
        let expected = [bytes(1, 0..100), bytes(2, 100..2 * BLOCK as u64 + 1)].concat();
        assert_eq!(read(&spool, 0..2 * BLOCK as u64 + 1).expect("read"), expected);
        reader.join().expect("no panic");
        drop(spool);
        at_rest(&pool);
    });
}

#[test]
fn the_budget_holds_while_it_changes() {
    explore(|policy| {
        let pool = pool(policy, 6);
        let readers = [[0, 1, 2, 3], [4, 1, 5, 0]].map(|numbers| {
            let pool = pool.clone();
            thread::spawn(move || load(&pool, numbers, 6))
        });
        let spool = pool.spool("a spool", Class::Upload, u64::MAX).expect("room");
        spool.append(&bytes(3, 0..2 * BLOCK as u64)).expect("appended");
        // The spool has claimed its tail, and the others a block each.
        pool.set_budget(4 * BLOCK as u64).expect("not more is claimed");
        assert!(pool.used_bytes() <= 4 * BLOCK as u64, "more than the budget");
        assert_eq!(read(&spool, 0..2 * BLOCK as u64).expect("read"), bytes(3, 0..2 * BLOCK as u64));
        pool.set_budget(6 * BLOCK as u64).expect("more is always possible");
        for reader in readers {
            reader.join().expect("no panic");
        }
        drop(spool);
        at_rest(&pool);
    });
}

#[test]
fn the_policy_and_the_floors_change_while_all_goes_on() {
    explore(|policy| {
        let pool = pool(policy, 4);
        let readers = [[0, 1, 0, 2], [3, 1, 0, 1]].map(|numbers| {
            let pool = pool.clone();
            thread::spawn(move || load(&pool, numbers, 4))
        });
        let spool = pool.spool("a spool", Class::Upload, u64::MAX).expect("room");
        spool.append(&bytes(3, 0..BLOCK as u64)).expect("appended");
        for next in POLICIES {
            pool.set_policy(next).expect("sound");
            assert_eq!(pool.policy(), next);
        }
        // Two answers may be pinned, and the spool has claimed its tail.
        pool.set_floors(Floors::default().with(Class::Chunk, BLOCK as u64)).expect("not more is claimed");
        assert_eq!(read(&spool, 0..BLOCK as u64).expect("read"), bytes(3, 0..BLOCK as u64));
        pool.set_policy(policy).expect("sound");
        for reader in readers {
            reader.join().expect("no panic");
        }
        drop(spool);
        pool.set_floors(Floors::default()).expect("none");
        load(&pool, 10..16, 4);
        at_rest(&pool);
    });
}

#[test]
fn a_block_that_is_removed_stays_with_who_has_it() {
    explore(|policy| {
        let pool = pool(policy, 3);
        let key = Key { object: Object(1_000), number: 0 };
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || load_of(&pool, [0, 1, 0], 3, true))
        };
        let remover = {
            let pool = pool.clone();
            thread::spawn(move || pool.remove(key) | pool.remove(key))
        };
        load_of(&pool, [0, 2, 0], 3, true);
        remover.join().expect("no panic");
        reader.join().expect("no panic");
        at_rest(&pool);
    });
}

#[test]
fn a_full_overflow_file_fails_those_whose_blocks_it_does_not_take() {
    static FAILED: AtomicU64 = AtomicU64::new(0);
    static WHOLE: AtomicU64 = AtomicU64::new(0);
    explore(|policy| {
        let config = Config {
            block_bytes: BLOCK,
            budget_bytes: 5 * BLOCK as u64,
            floors: Floors::default(),
            policy,
            overflow_bytes_max: BLOCK as u64,
            overflow_folder: None,
        };
        let pool = Pool::new(&config).expect("a pool");
        let end = 2 * BLOCK as u64 + 1;
        let spools = [1, 2].map(|seed| {
            let pool = pool.clone();
            thread::spawn(move || {
                let spool = pool.spool(&format!("spool {seed}"), Class::Upload, u64::MAX).expect("room");
                let done = spool.append(&bytes(seed, 0..end)).and_then(|()| read(&spool, 0..end));
                match done {
                    Ok(read) => assert_eq!(read, bytes(seed, 0..end), "it is whole"),
                    Err(error) => assert_eq!((error.code(), error.retry_helps()), ("disk_full", true), "{error}"),
                }
                spool.end() == end && read(&spool, 0..end).is_ok()
            })
        });
        load(&pool, [0, 1, 2], 5);
        let whole = spools.map(|spool| spool.join().expect("no panic")).into_iter().filter(|whole| *whole).count();
        WHOLE.fetch_add(whole as u64, Ordering::Relaxed);
        FAILED.fetch_add(2 - whole as u64, Ordering::Relaxed);
        at_rest(&pool);
    });
    assert!(FAILED.load(Ordering::Relaxed) > 0 && WHOLE.load(Ordering::Relaxed) > 0, "always the same");
}

#[test]
fn a_block_that_was_removed_while_it_was_to_go_leaves_nothing() {
    explore(|policy| {
        let pool = pool(policy, 2);
        let key = Key { object: Object(1_000), number: 0 };
        load(&pool, [0], 2);
        let evictor = {
            let pool = pool.clone();
            thread::spawn(move || pool.inner.evict_early(key))
        };
        let finder = {
            let pool = pool.clone();
            thread::spawn(move || {
                let session = pool.session("a reader", Class::Answer, 1).expect("room");
                session.find(key).expect("a pin").is_none_or(|handle| *handle == *content(key))
            })
        };
        pool.remove(key);
        evictor.join().expect("no panic");
        assert!(finder.join().expect("no panic"));
        assert_eq!((pool.used_bytes(), pool.blocks()), (0, 0), "it is in the chain still");
    });
}

#[test]
fn what_was_written_of_a_block_that_was_taken_off_is_not_taken_for_the_one_in_its_place() {
    explore(|_| {
        let overflow = Overflow::new(&Config::default());
        let kept = Kept::new("a spool".into());
        let place = Arc::new(Used::default()).take(Class::Upload, 1);
        let old =
            Block::filled(Key { object: Object(1_000), number: 0 }, Class::Upload, vec![1], place, Some(kept.push()));
        let writer = {
            let overflow = Arc::clone(&overflow);
            thread::spawn(move || old.kept.as_ref().map(|keeping| keeping.write_out(&old, &overflow)))
        };
        kept.forget(0);
        kept.truncate(0);
        let _new = kept.push();
        writer.join().expect("no panic");
        assert!(kept.slot(0).is_none(), "the new one is in memory alone");
        assert_eq!(overflow.held_bytes(), 0);
    });
}

/// Every order, of as little as there can be.
#[test]
fn two_who_load_one_block_get_the_same() {
    let test = || {
        let pool = pool(Policy::S3Fifo, 2);
        let key = Key { object: Object(1_000), number: 0 };
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                let session = pool.session("one", Class::Chunk, 1).expect("room");
                session.load(key, || Ok::<_, Error>(vec![1])).expect("loaded")[0]
            })
        };
        let session = pool.session("other", Class::Chunk, 1).expect("room");
        let handle = session.load(key, || Ok::<_, Error>(vec![2])).expect("loaded");
        assert_eq!(other.join().expect("no panic"), handle[0]);
    };
    Runner::new(DfsScheduler::new(Some(5_000), false), settings()).run(test);
}
