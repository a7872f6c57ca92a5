//! What sessions, scans and spools may count on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, mpsc};

use headwater_bufferpool::{
    Class, Config, Error, Floors, Handle, Holders, Key, Named, Object, Policy, Pool, Pools, SKIPS_MAX, Session,
};

const BLOCK: usize = 1024;
const LRU: Policy = Policy::Lru { skips: 0 };

fn config(policy: Policy, blocks: u64) -> Config {
    Config {
        block_bytes: BLOCK,
        budget_bytes: blocks * BLOCK as u64,
        floors: Floors::default(),
        policy,
        ..Config::default()
    }
}

fn pool(policy: Policy, blocks: u64) -> Pool {
    made(&config(policy, blocks))
}

/// A pool of which the first object is taken: that of [`key`].
fn made(config: &Config) -> Pool {
    let pool = Pool::new(config).expect("a pool");
    assert_eq!(pool.object(), key(0).object);
    pool
}

fn key(number: u64) -> Key {
    static FIRST: LazyLock<Object> = LazyLock::new(|| Pool::new(&Config::default()).expect("a pool").object());
    Key { object: *FIRST, number }
}

fn content(number: u64) -> Vec<u8> {
    vec![number as u8; BLOCK]
}

fn load(session: &Session, number: u64) -> Handle {
    session.load(key(number), || Ok::<_, Error>(content(number))).expect("loaded")
}

/// Which of these are in memory. Asking is an access.
fn there(session: &Session, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().filter(|number| session.find(key(*number)).expect("a pin").is_some()).collect()
}

#[test]
fn a_block_is_loaded_once_and_then_found() {
    let pool = pool(LRU, 4);
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    assert!(session.find(key(1)).expect("a pin").is_none());
    assert_eq!(*load(&session, 1), *content(1));
    let again = session.load(key(1), || Err(Error::Config("not loaded again".into()))).expect("it is there");
    assert_eq!((&*again, again.key()), (&*content(1), key(1)));
    drop(again);
    let counters = pool.counters();
    let answers = counters.of(Class::Answer);
    assert_eq!((answers.hits, answers.misses, answers.evictions), (1, 2, 0));
    assert_eq!((answers.loaded_bytes, counters.read_bytes()), (BLOCK as u64, BLOCK as u64));
    assert_eq!((pool.used_bytes(), pool.used_bytes_of(Class::Answer), pool.blocks()), (1024, 1024, 1));
    assert!(pool.remove(key(1)) && !pool.remove(key(1)));
    assert_eq!(pool.used_bytes(), 0);
}

#[test]
fn who_finds_no_room_is_told_who_holds_it() {
    let pool = pool(LRU, 4);
    let slow = pool.session("a slow client", Class::Answer, 3).expect("room");
    let error = pool.session("another", Class::Chunk, 2).expect_err("no room");
    let text = "no room in the buffer pool for 2048 bytes of another: its budget is 4096 bytes, held by a slow client (3072 bytes); \
                raise budget_bytes";
    assert_eq!((error.to_string().as_str(), error.code(), error.retry_helps()), (text, "no_room", true));
    let handle = load(&slow, 1);
    drop(slow);
    assert!(pool.session("another", Class::Chunk, 2).is_err(), "its handle has it still");
    drop(handle);
    assert!(pool.session("another", Class::Chunk, 2).is_ok());
    assert_eq!(pool.holders(), Holders::default());
    let many: Vec<Session> =
        (0..4).map(|number| pool.session(&format!("client {number}"), Class::Chunk, 1).expect("room")).collect();
    assert_eq!(pool.holders().to_string(), [0, 1, 2, 3].map(|n| format!("client {n} (1024 bytes)")).join(", "));
    drop(many);
    assert_eq!(pool.holders().to_string(), "nobody");
}

#[test]
fn a_session_pins_no_more_than_it_has_claimed() {
    let pool = pool(LRU, 4);
    let session = pool.session("a reader", Class::Answer, 2).expect("room");
    let (_first, second) = (load(&session, 1), load(&session, 2));
    let error = session.load(key(3), || Ok::<_, Error>(content(3))).expect_err("two are pinned");
    assert!(matches!(&error, Error::PinsTaken { name, pins: 2 } if name == "a reader"), "{error}");
    assert!(session.find(key(1)).is_err(), "a pin more of a block that it has is one more too");
    drop(second);
    assert_eq!(*load(&session, 3), *content(3));
}

#[test]
fn what_is_pinned_stays() {
    for policy in [LRU, Policy::S3Fifo] {
        let pool = pool(policy, 4);
        let holder = pool.session("a holder", Class::Answer, 2).expect("room");
        let held = load(&holder, 1);
        let session = pool.session("a reader", Class::Answer, 1).expect("room");
        for number in 10..50 {
            load(&session, number);
        }
        assert_eq!(pool.used_bytes(), 4096);
        assert_eq!((there(&session, [1]), &*held), (vec![1], &*content(1)));
        assert_eq!(pool.counters().of(Class::Answer).evictions, 37);
    }
}

#[test]
fn lru_moves_a_block_on_every_nth_access() {
    let pool = pool(Policy::Lru { skips: 2 }, 3);
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    for number in [1, 2, 3, 1] {
        load(&session, number);
    }
    load(&session, 4);
    assert_eq!(there(&session, [1]), [] as [u64; 0], "one access has not moved it");
    // 2, 3 and 4 are there.
    for number in [2, 2] {
        load(&session, number);
    }
    load(&session, 5);
    assert_eq!(there(&session, [3]), [] as [u64; 0], "the second access has moved 2");
    pool.set_skips(0).expect("LRU has skips");
    load(&session, 4);
    load(&session, 6);
    assert_eq!(there(&session, [2, 4, 5, 6]), [4, 5, 6], "each access moves now");
    let error = pool.set_skips(SKIPS_MAX + 1).expect_err("too many");
    assert_eq!(error.to_string(), "buffer pool: skips is 2147483648, expected at most 2147483647");
}

#[test]
fn what_is_read_once_washes_out_an_lru_chain_and_not_s3_fifo() {
    let hot = 0..50;
    for (policy, left) in [(LRU, 0), (Policy::S3Fifo, 50)] {
        let pool = pool(policy, 100);
        let session = pool.session("a reader", Class::Answer, 1).expect("room");
        for number in hot.clone().chain(hot.clone()).chain(1_000..2_000) {
            load(&session, number);
        }
        assert_eq!(there(&session, hot.clone()).len(), left, "{policy:?}");
    }
    let error = pool(Policy::S3Fifo, 4).set_skips(1).expect_err("it has none");
    assert_eq!(error.code(), "config");
}

#[test]
fn what_left_and_comes_again_is_kept_by_s3_fifo() {
    let pool = pool(Policy::S3Fifo, 20);
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    for number in 0..25 {
        load(&session, number);
    }
    assert_eq!(there(&session, [0]), [] as [u64; 0], "it has gone");
    load(&session, 0);
    for number in 100..140 {
        load(&session, number);
    }
    assert_eq!(there(&session, [0, 24]), [0], "what was remembered went to the main queue");
}

#[test]
fn a_class_keeps_its_floor() {
    for policy in [LRU, Policy::S3Fifo] {
        let floors = Floors { chunk: 4 * BLOCK as u64, ..Floors::default() };
        let pool = made(&Config { floors, ..config(policy, 10) });
        let chunks = pool.session("chunks", Class::Chunk, 1).expect("room");
        let answers = pool.session("answers", Class::Answer, 1).expect("room");
        for number in 0..6 {
            load(&chunks, number);
        }
        for number in 100..150 {
            load(&answers, number);
        }
        let used = [Class::Chunk, Class::Answer].map(|class| pool.used_bytes_of(class) / BLOCK as u64);
        assert_eq!(used, [4, 6], "{policy:?}: chunks gave what was beyond their floor");
        assert_eq!(there(&chunks, 0..6).len(), 4);
        drop((chunks, answers));
        let error = pool.session("too much", Class::Answer, 7).expect_err("four are the chunks'");
        assert!(error.to_string().contains("held by the floors of classes (4096 bytes)"), "{error}");
        assert!(pool.session("the chunks' own", Class::Chunk, 10).is_ok());
    }
}

#[test]
fn floors_change_while_the_pool_is_used() {
    let pool = made(&config(LRU, 10));
    let chunks = pool.session("chunks", Class::Chunk, 1).expect("room");
    let answers = pool.session("answers", Class::Answer, 1).expect("room");
    for number in 0..4 {
        load(&chunks, number);
    }
    let floors = Floors::default().with(Class::Chunk, 4 * BLOCK as u64);
    pool.set_floors(floors).expect("there is room");
    assert_eq!((pool.floors(), pool.room_bytes(Class::Answer)), (floors, 6 * BLOCK as u64));
    for number in 100..120 {
        load(&answers, number);
    }
    assert_eq!(there(&chunks, 0..4), [0, 1, 2, 3]);
    let others = pool.session("others", Class::Answer, 5).expect("six in all");
    let error = pool.set_floors(floors.with(Class::Upload, BLOCK as u64)).expect_err("all is claimed, or kept");
    assert!(error.to_string().contains("come to 11264 bytes, and the budget is 10240"), "{error}");
    assert_eq!((error.code(), error.retry_helps(), pool.floors()), ("floors_held", true, floors));
    drop(others);
    pool.set_floors(Floors::default()).expect("none");
    for number in 120..140 {
        load(&answers, number);
    }
    assert_eq!(there(&chunks, 0..4), [0_u64; 0], "nothing is theirs any more");
}

#[test]
fn the_policy_changes_while_blocks_are_there() {
    let pool = made(&config(Policy::Lru { skips: 1_000 }, 10));
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    for number in 0..10 {
        load(&session, number);
    }
    for _ in 0..500 {
        session.find(key(0)).expect("a pin");
    }
    pool.set_policy(Policy::S3Fifo).expect("sound");
    assert_eq!(pool.policy(), Policy::S3Fifo);
    load(&session, 10);
    assert_eq!(
        there(&session, 0..11),
        [0, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        "the first was used, the second came before all others"
    );
    for number in 20..60 {
        load(&session, number);
    }
    assert_eq!(pool.blocks(), 10, "five hundred uses are no more than a few");
    assert!(pool.set_skips(3).is_err());
    pool.set_policy(LRU).expect("sound");
    pool.set_skips(3).expect("it has them again");
    assert_eq!(pool.policy(), Policy::Lru { skips: 3 });
    assert!(pool.set_policy(Policy::Lru { skips: SKIPS_MAX + 1 }).is_err());
    for number in 70..90 {
        load(&session, number);
    }
    assert_eq!(there(&session, 70..90), (80..90).collect::<Vec<_>>());
}

#[test]
fn who_is_below_its_floor_takes_from_others() {
    let floors = Floors { chunk: 4 * BLOCK as u64, ..Floors::default() };
    let pool = made(&Config { floors, ..config(LRU, 10) });
    let answers = pool.session("answers", Class::Answer, 1).expect("room");
    let chunks = pool.session("chunks", Class::Chunk, 1).expect("room");
    load(&chunks, 0);
    for number in 100..120 {
        load(&answers, number);
    }
    for number in 1..4 {
        load(&chunks, number);
        for hot in 111..120 {
            answers.find(key(hot)).expect("a pin");
        }
    }
    assert_eq!(there(&chunks, 0..4), [0, 1, 2, 3], "though all of them were older");
    assert_eq!(pool.used_bytes(), 10 * BLOCK as u64);
}

#[test]
fn a_scan_washes_nothing_out() {
    for policy in [LRU, Policy::S3Fifo] {
        let pool = pool(policy, 24);
        let session = pool.session("a reader", Class::Chunk, 1).expect("room");
        for number in 0..20 {
            load(&session, number);
        }
        let mut scan = pool.scan("a build", Class::Chunk, 4).expect("room");
        let mut loaded = 0;
        let (mut held, mut read) = (Vec::new(), 0_u64);
        for number in 0..200 {
            let load = || {
                loaded += 1;
                Ok::<_, Error>(content(number))
            };
            let handle = scan.load(key(number), load).expect("loaded");
            assert_eq!(*handle, *content(number));
            // The first three that are not in the pool stay.
            if number >= 20 && held.len() < 3 {
                held.push(handle);
            }
            read += 1;
        }
        assert_eq!((read, loaded), (200, 180), "what is in the pool was not read again");
        assert_eq!(there(&session, 0..200), (0..20).collect::<Vec<_>>());
        assert_eq!(pool.counters().scanned_bytes, 180 * BLOCK as u64);
        assert!(pool.used_bytes() <= 24 * BLOCK as u64);
        drop((held, scan));
        assert_eq!(pool.used_bytes(), 20 * BLOCK as u64);
    }
}

#[test]
fn a_scan_leaves_the_order_of_the_chain_as_it_was() {
    let pool = pool(LRU, 8);
    let session = pool.session("a reader", Class::Chunk, 1).expect("room");
    for number in 0..6 {
        load(&session, number);
    }
    let mut scan = pool.scan("a build", Class::Chunk, 2).expect("room");
    for number in 0..3 {
        scan.load(key(number), || Ok::<_, Error>(content(number))).expect("loaded");
    }
    drop(scan);
    for number in 10..15 {
        load(&session, number);
    }
    assert_eq!(there(&session, 0..6), [3, 4, 5], "the first three were the oldest still");
}

#[test]
fn scans_have_a_quarter_of_the_budget_at_most() {
    let pool = pool(LRU, 20);
    let first = pool.scan("first", Class::Chunk, 4).expect("room");
    let error = pool.scan("second", Class::Chunk, 2).expect_err("six buffers are too many");
    assert!(matches!(error, Error::ScansFull { bytes: 2048, bytes_max: 5120, .. }), "{error}");
    assert!(pool.set_budget(15 * BLOCK as u64).is_err(), "a quarter of it would be less than what there is");
    drop(first);
    pool.scan("second", Class::Chunk, 5).expect("room");
    pool.set_budget(15 * BLOCK as u64).expect("nobody scans");
}

#[test]
fn the_budget_can_be_changed_but_not_below_what_is_held() {
    let pool = pool(LRU, 10);
    let session = pool.session("a reader", Class::Answer, 3).expect("room");
    let held = load(&session, 0);
    for number in 1..10 {
        load(&session, number);
    }
    let error = pool.set_budget(2 * BLOCK as u64).expect_err("three blocks are claimed");
    let text = "the buffer pool's budget can't be 2048 bytes now: 3072 are claimed, held by a reader (3072 bytes)";
    assert_eq!(error.to_string(), text);
    assert_eq!(pool.used_bytes(), 10 * BLOCK as u64, "it is as it was");
    pool.set_budget(3 * BLOCK as u64).expect("it suffices");
    assert_eq!(there(&session, 0..10), [0, 8, 9], "the pinned one, and the latest");
    assert_eq!(*held, *content(0));
    pool.set_budget(5 * BLOCK as u64).expect("more");
    for number in 20..30 {
        load(&session, number);
    }
    assert_eq!(pool.used_bytes(), 5 * BLOCK as u64);
}

#[test]
fn a_load_that_fails_leaves_nothing() {
    let pool = pool(LRU, 4);
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    let error = session.load(key(1), || Err::<Vec<u8>, _>(Error::Config("no".into()))).expect_err("it failed");
    assert_eq!(error.to_string(), "buffer pool: no");
    let panicked = catch_unwind(AssertUnwindSafe(|| session.load::<Error>(key(1), || panic!("inside"))));
    assert!(panicked.is_err());
    let long = session.load(key(1), || Ok::<_, Error>(vec![0; BLOCK + 1])).expect_err("more than a block");
    assert_eq!(long.to_string(), "block 1 of object 0 has 1025 bytes, expected at most 1024");
    assert_eq!((pool.used_bytes(), pool.blocks()), (0, 0));
    assert_eq!(*load(&session, 1), *content(1), "the pin is free, and nobody waits for good");
}

#[test]
fn who_comes_while_another_loads_waits_for_it() {
    let pool = pool(LRU, 4);
    let (go, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let session = pool.session("first", Class::Answer, 1).expect("room");
        let first = scope.spawn(move || {
            let load = || {
                wait.recv().expect("told");
                Ok::<_, Error>(content(1))
            };
            session.load(key(1), load).expect("loaded")
        });
        while pool.blocks() == 0 {
            std::thread::yield_now();
        }
        let session = pool.session("second", Class::Answer, 1).expect("room");
        let second = scope.spawn(move || session.load(key(1), || Err(Error::Config("loaded twice".into()))));
        while pool.counters().waits.block == 0 {
            std::thread::yield_now();
        }
        go.send(()).expect("it waits");
        assert_eq!(*first.join().expect("no panic"), *content(1));
        assert_eq!(*second.join().expect("no panic").expect("loaded by the other"), *content(1));
    });
}

/// What the model (`src/model.rs`) does step by step, on real locks and as fast as it goes.
#[test]
fn many_threads_at_once_lose_nothing() {
    for policy in [LRU, Policy::Lru { skips: 3 }, Policy::S3Fifo] {
        let pool = pool(policy, 16);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let session = pool.session("a reader", Class::Answer, 1).expect("room");
                scope.spawn(move || {
                    for step in 0..5_000 {
                        let number = (step * (thread + 7)) % 41;
                        assert!(*load(&session, number) == *content(number), "another block's bytes");
                    }
                });
            }
            for seed in 0..2_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    let bytes: Vec<u8> = (0..12 * BLOCK).map(|at| (at % 247) as u8 ^ seed).collect();
                    for _ in 0..40 {
                        let spool = pool.spool("a spool", Class::Download, u64::MAX).expect("room");
                        bytes.chunks(700).for_each(|bytes| spool.append(bytes).expect("appended"));
                        let mut read = vec![0; bytes.len()];
                        assert_eq!(spool.read(0, &mut read).expect("read"), read.len());
                        assert!(read == bytes, "what was spooled has changed");
                    }
                });
            }
            for blocks in (0..100).map(|step| 10 + step % 7) {
                pool.set_budget(blocks * BLOCK as u64).expect("eight are claimed");
                assert!(pool.used_bytes() <= blocks * BLOCK as u64, "more than the budget");
            }
        });
        assert_eq!((pool.overflow_bytes(), pool.holders()), (0, Holders::default()));
        assert_eq!(pool.used_bytes(), (pool.blocks() * BLOCK) as u64);
    }
}

#[test]
fn what_is_assigned_to_the_alternate_pool_is_not_washed_out() {
    let pools = Pools::new(&config(LRU, 4), Some(&config(LRU, 2))).expect("pools");
    let (airports, flights) = (Named::Query("airports".into()), Named::Query("flights".into()));
    assert!(pools.assign(airports.clone()).expect("there is one"));
    assert!(!pools.assign(airports.clone()).expect("there is one"), "it was already");
    assert!(pools.assign(Named::Table("airports".into())).expect("there is one"), "another kind of thing");
    let small = pools.of(&airports).session("airports", Class::Answer, 1).expect("room");
    load(&small, 1);
    let large = pools.of(&flights).session("flights", Class::Answer, 1).expect("room");
    for number in 10..30 {
        load(&large, number);
    }
    assert_eq!(there(&small, [1]), [1]);
    assert_eq!((pools.main().used_bytes(), pools.of(&airports).used_bytes()), (4096, 1024));
    assert!(pools.unassign(&airports) && !pools.unassign(&airports));
    assert!(!pools.is_alternate(&airports));
    let alone = Pools::new(&config(LRU, 4), None).expect("a pool");
    assert!(alone.assign(airports.clone()).is_err() && alone.alternate().is_none());
}

#[test]
fn options_that_make_no_pool_are_refused() {
    let text = |config: Config| Pool::new(&config).expect_err("no pool").to_string();
    let all = Config::default();
    assert!(all.validate().is_ok());
    let small = Config { block_bytes: 100, ..all.clone() };
    assert_eq!(text(small), "buffer pool: block_bytes is 100, expected 512 to 1048576");
    let floors = Config { budget_bytes: 1 << 20, ..all.clone() };
    assert_eq!(
        text(floors),
        "buffer pool: the floors come to 33554432 bytes, more than budget_bytes, which is 1048576"
    );
    assert!(text(Config { policy: Policy::Lru { skips: SKIPS_MAX + 1 }, ..all }).contains("skips"));
    let pool = pool(LRU, 4);
    let codes = [
        pool.session("one", Class::Upload, 1).map(drop),
        pool.session("one", Class::Answer, 0).map(drop),
        pool.scan("one", Class::Download, 1).map(drop),
        pool.scan("one", Class::Chunk, 0).map(drop),
        pool.spool("one", Class::Answer, 0).map(drop),
    ]
    .map(|made| made.expect_err("refused").code());
    assert_eq!(codes, ["config"; 5]);
}
