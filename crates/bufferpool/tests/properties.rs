//! The pool against simple models of it.

use std::collections::VecDeque;

use headwater_bufferpool::{Class, Config, Error, Floors, Handle, Holders, Key, Object, Policy, Pool, Session, Spool};
use proptest::prelude::*;

const BLOCK: usize = 512;

fn pool(policy: Policy, blocks: usize) -> Pool {
    let config = Config {
        block_bytes: BLOCK,
        budget_bytes: (blocks * BLOCK) as u64,
        floors: Floors::default(),
        policy,
        ..Config::default()
    };
    Pool::new(&config).expect("a pool")
}

/// Whether each of these accesses was a hit.
fn hits(pool: &Pool, numbers: &[u64]) -> Vec<bool> {
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    let object = pool.object();
    let hit = |number: &u64| {
        let mut is_hit = true;
        let load = || {
            is_hit = false;
            let mut bytes = number.to_le_bytes().to_vec();
            bytes.resize(BLOCK, 0);
            Ok::<_, Error>(bytes)
        };
        let handle = session.load(Key { object, number: *number }, load).expect("loaded");
        assert_eq!(handle[..8], number.to_le_bytes());
        is_hit
    };
    numbers.iter().map(hit).collect()
}

/// LRU with skips, in a list from old to recent: each block with the accesses that have not moved it.
fn lru_hits(blocks: usize, skips: u32, numbers: &[u64]) -> Vec<bool> {
    let mut list: Vec<(u64, u32)> = Vec::new();
    let mut hit = |number: u64| {
        let Some(at) = list.iter().position(|(there, _)| *there == number) else {
            if list.len() == blocks {
                list.remove(0);
            }
            list.push((number, 0));
            return false;
        };
        list[at].1 += 1;
        if list[at].1 >= skips {
            list.remove(at);
            list.push((number, 0));
        }
        true
    };
    numbers.iter().map(|number| hit(*number)).collect()
}

/// S3-FIFO in three lists.
#[derive(Default)]
struct Fifos {
    small: VecDeque<(u64, u32)>,
    main: VecDeque<(u64, u32)>,
    ghosts: VecDeque<u64>,
}

impl Fifos {
    fn hit(&mut self, blocks: usize, number: u64) -> bool {
        if let Some((_, uses)) = self.small.iter_mut().chain(&mut self.main).find(|(there, _)| *there == number) {
            *uses = 3.min(*uses + 1);
            return true;
        }
        while self.small.len() + self.main.len() >= blocks {
            self.evict();
        }
        if let Some(at) = self.ghosts.iter().position(|ghost| *ghost == number) {
            // Its place in the queue is taken until it would have been forgotten.
            self.ghosts[at] = u64::MAX;
            self.main.push_back((number, 0));
        } else {
            self.small.push_back((number, 0));
        }
        false
    }

    fn evict(&mut self) {
        let all = self.small.len() + self.main.len();
        if self.main.is_empty() || (!self.small.is_empty() && self.small.len() * 10 >= all) {
            let (number, uses) = self.small.pop_front().expect("not empty");
            if uses > 0 {
                self.main.push_back((number, 0));
                return;
            }
            self.ghosts.push_back(number);
            while self.ghosts.len() > (all - 1).max(1) {
                self.ghosts.pop_front();
            }
            return;
        }
        let (number, uses) = self.main.pop_front().expect("not empty");
        if uses > 0 {
            self.main.push_back((number, uses - 1));
        }
    }
}

/// What somebody does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load { class: bool, number: u64, hold: bool },
    LetGo,
    Remove(u64),
    Budget(usize),
    Skips(u32),
    Scan { first: u64, count: u64 },
    Open,
    Append { spool: usize, length: usize },
    Read { spool: usize, start: usize, length: usize },
    Forget { spool: usize, position: usize },
    Truncate { spool: usize, end: usize },
    Close(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<bool>(), 0..20_u64, any::<bool>())
            .prop_map(|(class, number, hold)| Step::Load { class, number, hold }),
        2 => Just(Step::LetGo),
        1 => (0..20_u64).prop_map(Step::Remove),
        1 => (4..24_usize).prop_map(Step::Budget),
        1 => (0..5_u32).prop_map(Step::Skips),
        1 => (0..20_u64, 1..20_u64).prop_map(|(first, count)| Step::Scan { first, count }),
        1 => Just(Step::Open),
        6 => (any::<usize>(), 0..4 * BLOCK).prop_map(|(spool, length)| Step::Append { spool, length }),
        4 => (any::<usize>(), any::<usize>(), 0..6 * BLOCK)
            .prop_map(|(spool, start, length)| Step::Read { spool, start, length }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(spool, position)| Step::Forget { spool, position }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(spool, end)| Step::Truncate { spool, end }),
        1 => any::<usize>().prop_map(Step::Close),
    ];
    prop::collection::vec(step, 1..120)
}

/// A pool and what it must have.
struct World {
    pool: Pool,
    budget: usize,
    has_skips: bool,
    sessions: [Session; 2],
    /// What they read.
    objects: [Object; 2],
    held: VecDeque<Handle>,
    spools: Vec<(Spool, Vec<u8>, usize)>,
    seed: u8,
}

fn content(class: Class, number: u64) -> Vec<u8> {
    vec![number as u8 ^ ((class as u8) << 6); BLOCK]
}

impl World {
    fn new(policy: Policy) -> World {
        let pool = pool(policy, 16);
        let session = |class| pool.session("a reader", class, 2).expect("room");
        let sessions = [session(Class::Answer), session(Class::Chunk)];
        let has_skips = matches!(policy, Policy::Lru { .. });
        let objects = [pool.object(), pool.object()];
        World { pool, budget: 16, has_skips, sessions, objects, held: VecDeque::new(), spools: Vec::new(), seed: 0 }
    }

    fn load(&mut self, is_chunk: bool, number: u64, hold: bool) {
        let class = if is_chunk { Class::Chunk } else { Class::Answer };
        let key = Key { object: self.objects[usize::from(is_chunk)], number };
        match self.sessions[usize::from(is_chunk)].load(key, || Ok::<_, Error>(content(class, number))) {
            Ok(handle) if hold => self.held.push_back(handle),
            Ok(handle) => assert_eq!(*handle, *content(class, number)),
            Err(error) => assert_eq!(error.code(), "pins_taken", "{error}"),
        }
    }

    fn scan(&mut self, first: u64, count: u64) {
        let mut scan = match self.pool.scan("a scan", Class::Chunk, 1) {
            Ok(scan) => scan,
            Err(error) => return assert!(["no_room", "scans_full"].contains(&error.code()), "{error}"),
        };
        for number in first..first + count {
            let load = || Ok::<_, Error>(content(Class::Chunk, number));
            let handle = scan.load(Key { object: self.objects[1], number }, load).expect("loaded");
            assert_eq!(*handle, *content(Class::Chunk, number));
        }
    }

    fn append(&mut self, at: usize, length: usize) {
        self.seed = self.seed.wrapping_add(1);
        let seed = self.seed;
        let Some((spool, bytes, _)) = pick(&mut self.spools, at) else { return };
        let more: Vec<u8> = (0..length).map(|at| (at % 241) as u8 ^ seed).collect();
        let at_once = spool.try_append(&more).expect("appended");
        spool.append(&more[at_once..]).expect("there is room on disk");
        bytes.extend(more);
    }

    fn read(&mut self, at: usize, start: usize, length: usize) {
        let Some((spool, bytes, forgotten)) = pick(&mut self.spools, at) else { return };
        let start = *forgotten + start % (bytes.len() - *forgotten + 1);
        let mut read = vec![0; length];
        let got = spool.read(start as u64, &mut read).expect("read");
        assert_eq!(read[..got], bytes[start..bytes.len().min(start + length)]);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Load { class, number, hold } => self.load(class, number, hold),
            Step::LetGo => drop(self.held.pop_front()),
            Step::Remove(number) => {
                self.pool.remove(Key { object: self.objects[0], number });
            }
            Step::Budget(blocks) => match self.pool.set_budget((blocks * BLOCK) as u64) {
                Ok(()) => self.budget = blocks,
                Err(error) => assert_eq!(error.code(), "budget_held", "{error}"),
            },
            Step::Skips(skips) => assert_eq!(self.pool.set_skips(skips).is_ok(), self.has_skips),
            Step::Scan { first, count } => self.scan(first, count),
            Step::Open => {
                let memory = self.spools.len() * 2 * BLOCK;
                let spool = self.pool.spool("a spool", Class::Upload, memory as u64).expect("it claims nothing yet");
                self.spools.push((spool, Vec::new(), 0));
            }
            Step::Append { spool, length } => self.append(spool, length),
            Step::Read { spool, start, length } => self.read(spool, start, length),
            Step::Forget { spool, position } => {
                let Some((spool, bytes, forgotten)) = pick(&mut self.spools, spool) else { return };
                let position = position % (bytes.len() + 1);
                spool.forget(position as u64);
                *forgotten = position.max(*forgotten);
            }
            Step::Truncate { spool, end } => {
                let Some((spool, bytes, forgotten)) = pick(&mut self.spools, spool) else { return };
                let end = *forgotten + end % (bytes.len() - *forgotten + 1);
                spool.truncate(end as u64).expect("truncated");
                bytes.truncate(end);
            }
            Step::Close(at) => {
                if !self.spools.is_empty() {
                    let at = at % self.spools.len();
                    self.spools.remove(at);
                }
            }
        }
    }

    fn check(&self) {
        assert!(self.pool.used_bytes() <= (self.budget * BLOCK) as u64, "more than the budget");
        for handle in &self.held {
            let class = if handle.key().object == self.objects[0] { Class::Answer } else { Class::Chunk };
            assert_eq!(**handle, *content(class, handle.key().number), "a pinned block has changed");
        }
        for (spool, bytes, forgotten) in &self.spools {
            assert_eq!((spool.start(), spool.end()), (*forgotten as u64, bytes.len() as u64));
        }
    }
}

fn pick<T>(all: &mut [T], at: usize) -> Option<&mut T> {
    let length = all.len();
    all.get_mut(at.checked_rem(length)?)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![(0..4_u32).prop_map(|skips| Policy::Lru { skips }), Just(Policy::S3Fifo)]
}

proptest! {
    #[test]
    fn lru_with_skips_is_a_list(
        blocks in 1..12_usize,
        skips in 0..5_u32,
        numbers in prop::collection::vec(0..20_u64, 1..300),
    ) {
        prop_assert_eq!(hits(&pool(Policy::Lru { skips }, blocks), &numbers), lru_hits(blocks, skips, &numbers));
    }

    #[test]
    fn s3_fifo_is_three_lists(blocks in 2..40_usize, numbers in prop::collection::vec(0..60_u64, 1..600)) {
        let mut fifos = Fifos::default();
        let expected: Vec<bool> = numbers.iter().map(|number| fifos.hit(blocks, *number)).collect();
        prop_assert_eq!(hits(&pool(Policy::S3Fifo, blocks), &numbers), expected);
    }

    /// Whatever is done, in whatever order: what is spooled is there, what is pinned stays, the budget holds, and all is given back.
    #[test]
    fn nothing_is_lost_and_the_budget_holds(policy in policies(), steps in steps()) {
        let mut world = World::new(policy);
        for step in steps {
            world.take(step);
            world.check();
        }
        let World { pool, sessions, held, spools, .. } = world;
        for (spool, bytes, forgotten) in &spools {
            let mut read = vec![0; bytes.len() - forgotten];
            prop_assert_eq!(spool.read(*forgotten as u64, &mut read).expect("read"), read.len());
            prop_assert_eq!(&read[..], &bytes[*forgotten..]);
        }
        drop((sessions, held, spools));
        prop_assert_eq!(pool.used_bytes_of(Class::Upload), 0);
        prop_assert_eq!(pool.used_bytes(), (pool.blocks() * BLOCK) as u64);
        prop_assert_eq!((pool.overflow_bytes(), pool.holders()), (0, Holders::default()));
    }
}
