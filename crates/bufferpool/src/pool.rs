//! A pool, and the sessions that load what can be loaded again.

use std::sync::Arc;

use crate::block::{Handle, Key, Object};
use crate::config::{Class, Config, Floors, Policy, check_floors, check_skips};
use crate::counters::Counters;
use crate::error::{Error, Holders};
use crate::inner::{Inner, Look, NO_SKIPS, skips_of};
use crate::room::Owner;
use crate::scan::Scan;
use crate::spool::Spool;
use crate::sync::Ordering;

/// What a block that is loaded counts for at least: its links and its key are no less.
const BYTES_LEAST: usize = 256;

/// Blocks in memory, within a budget. Clones are of the same pool.
///
/// ```
/// use headwater_bufferpool::{Class, Config, Error, Key, Pool};
///
/// # fn main() -> Result<(), Error> {
/// let pool = Pool::new(&Config::default())?;
/// let session = pool.session("query flights", Class::Answer, 1)?;
/// let key = Key { object: pool.object(), number: 0 };
/// let answer = session.load(key, || Ok::<_, Error>(b"an answer".to_vec()))?;
/// assert_eq!(&*answer, b"an answer");
/// drop(answer);
/// assert!(session.find(key)?.is_some(), "it is there still");
/// assert_eq!(pool.counters().of(Class::Answer).hits, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

/// Somebody who reads blocks, and has claimed room to pin so many of them at a time. The room is given back when the session and its
/// handles are gone.
#[derive(Debug)]
pub struct Session {
    inner: Arc<Inner>,
    owner: Arc<Owner>,
}

impl Pool {
    /// An empty one. Memory is taken as blocks come.
    pub fn new(config: &Config) -> Result<Pool, Error> {
        config.validate()?;
        Ok(Pool { inner: Arc::new(Inner::new(config)) })
    }

    /// Something new of which blocks are to be kept here.
    pub fn object(&self) -> Object {
        Object(self.inner.objects.fetch_add(1, Ordering::Relaxed))
    }

    /// Begins to read blocks of a class that is evicted, up to `pins` of them held at a time. The name is for others' errors.
    pub fn session(&self, name: &str, class: Class, pins: u32) -> Result<Session, Error> {
        check_loaded(class)?;
        if pins == 0 {
            return Err(Error::Config(format!("{name} is to pin no block at all")));
        }
        let bytes = u64::from(pins) * self.block_bytes() as u64;
        let owner = self.inner.room.owner(name, class, pins, (bytes, 0))?;
        Ok(Session { inner: Arc::clone(&self.inner), owner })
    }

    /// Begins to read many blocks once, through so many private buffers: what is not in the pool goes through those alone, so nothing is
    /// washed out. All scans' buffers are a quarter of the budget at most. Claims as much again, for blocks of the pool that it pins.
    pub fn scan(&self, name: &str, class: Class, buffers: u32) -> Result<Scan, Error> {
        check_loaded(class)?;
        if buffers == 0 {
            return Err(Error::Config(format!("{name} is to have no buffer at all")));
        }
        let bytes = u64::from(buffers) * self.block_bytes() as u64;
        let owner = self.inner.room.owner(name, class, buffers, (bytes.saturating_mul(2), bytes))?;
        Ok(Scan::new(Arc::clone(&self.inner), owner))
    }

    /// Begins an upload or a download, of which up to `memory_bytes_max` bytes in whole blocks stay in memory; what is more goes to the
    /// overflow file at once, if it finds room there. It claims what its last block takes as it grows; where others have claimed everything,
    /// that block lies in the file.
    pub fn spool(&self, name: &str, class: Class, memory_bytes_max: u64) -> Result<Spool, Error> {
        if !class.is_kept() {
            return Err(Error::Config(format!("blocks of class {} are loaded, not spooled", class.name())));
        }
        let owner = self.inner.room.owner(name, class, 0, (0, 0))?;
        let blocks_max = memory_bytes_max / self.block_bytes() as u64;
        Ok(Spool::new(Arc::clone(&self.inner), owner, self.object(), blocks_max))
    }

    /// Takes a block out; whether it was there. Handles of it stay good.
    pub fn remove(&self, key: Key) -> bool {
        self.inner.remove(key)
    }

    /// Changes the budget, while all goes on. Where it gets smaller, blocks go first, some of them to the overflow file: it blocks.
    /// After an error it is as it was.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let before = self.inner.chain.lock().budget;
        self.change_budget(bytes)?;
        match self.inner.place_for_spool(Class::Upload, 0) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.change_budget(before)?;
                Err(Error::overflow("a smaller budget", error))
            }
        }
    }

    fn change_budget(&self, bytes: u64) -> Result<(), Error> {
        self.inner.room.set_budget(bytes, || self.inner.chain.lock().budget = bytes)
    }

    /// Changes on which access a block is moved in the chain, while all goes on; only where the policy is LRU.
    pub fn set_skips(&self, skips: u32) -> Result<(), Error> {
        check_skips(skips)?;
        // Below the chain's lock, so that the policy does not change meanwhile.
        let _chain = self.inner.chain.lock();
        if self.inner.skips.load(Ordering::Relaxed) == NO_SKIPS {
            return Err(Error::Config("the policy S3-FIFO has no skips".into()));
        }
        self.inner.skips.store(skips, Ordering::Relaxed);
        Ok(())
    }

    /// Changes which block goes, while all goes on. Blocks in memory stay, in the order in which they came or were used last; who waits for the
    /// chain's lock does so while they are put into the new order.
    pub fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        if let Policy::Lru { skips } = policy {
            check_skips(skips)?;
        }
        let mut chain = self.inner.chain.lock();
        let is_other = (self.inner.skips.load(Ordering::Relaxed) == NO_SKIPS) != (policy == Policy::S3Fifo);
        self.inner.skips.store(skips_of(policy), Ordering::Relaxed);
        if is_other {
            chain.set_policy(policy);
        }
        Ok(())
    }

    /// Which block goes, as it is set now.
    pub fn policy(&self) -> Policy {
        match self.inner.skips.load(Ordering::Relaxed) {
            NO_SKIPS => Policy::S3Fifo,
            skips => Policy::Lru { skips },
        }
    }

    /// Changes what each class has for sure, while all goes on. Blocks of a class that is below its new floor come back as they are asked for.
    /// After an error the floors are as they were.
    pub fn set_floors(&self, floors: Floors) -> Result<(), Error> {
        check_floors(self.budget_bytes(), floors)?;
        self.inner.room.set_floors(floors.all(), || self.inner.chain.lock().floors = floors.all())
    }

    /// What each class has for sure, as it is set now.
    pub fn floors(&self) -> Floors {
        let [upload, download, answer, chunk] = self.inner.room.floors();
        Floors { upload, download, answer, chunk }
    }

    /// Changes how many bytes the overflow file may have. What lies in it stays, though it be more: then nothing is added.
    pub fn set_overflow_bytes_max(&self, bytes: u64) {
        self.inner.overflow.set_bytes_max(bytes);
    }

    /// Bytes that the overflow file may have, as it is set now.
    pub fn overflow_bytes_max(&self) -> u64 {
        self.inner.overflow.bytes_max()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.inner.block_bytes
    }

    /// Bytes that all blocks in memory may have, as it is set now.
    pub fn budget_bytes(&self) -> u64 {
        self.inner.chain.lock().budget
    }

    /// Bytes that blocks of a class may have, where all others have what their floors leave to them.
    pub fn room_bytes(&self, class: Class) -> u64 {
        let floors = self.floors();
        let others = Class::ALL.into_iter().filter(|other| *other != class).map(|other| floors.of(other));
        self.budget_bytes().saturating_sub(others.fold(0, u64::saturating_add))
    }

    /// Bytes in memory, all classes together: never more than the budget.
    pub fn used_bytes(&self) -> u64 {
        self.inner.used().iter().sum()
    }

    /// Bytes in memory of a class.
    pub fn used_bytes_of(&self, class: Class) -> u64 {
        self.inner.used()[class as usize]
    }

    /// Blocks in the hash table.
    pub fn blocks(&self) -> usize {
        self.inner.table.blocks()
    }

    /// Bytes of the overflow file that are in use.
    pub fn overflow_bytes(&self) -> u64 {
        self.inner.overflow.held_bytes()
    }

    /// Who has claimed room.
    pub fn holders(&self) -> Holders {
        self.inner.room.holders()
    }

    /// What has happened since the pool was made.
    pub fn counters(&self) -> Counters {
        Counters::of_pool(&self.inner)
    }
}

impl Session {
    /// A block: as it is in memory, or as `load` gives it (a block's bytes at most). Who comes for the same one meanwhile waits, and
    /// loads it itself where that failed. No lock is held while `load` works, but it must not ask for this very block: it would wait for itself.
    pub fn load<E: From<Error>>(&self, key: Key, load: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Handle, E> {
        let owner = pin(&self.owner)?;
        loop {
            match self.inner.find_or_new(key, owner.class) {
                Look::There(block) => {
                    if self.inner.is_filled(&block) {
                        self.inner.touch(&block);
                        return Ok(Handle::new(block, owner));
                    }
                }
                Look::New(filling) => {
                    let mut place = self.inner.place(owner.class, self.inner.block_bytes as u64);
                    let bytes = load()?;
                    check_length(key, bytes.len(), self.inner.block_bytes)?;
                    place.shrink(bytes.len().max(BYTES_LEAST) as u64);
                    return Ok(Handle::new(filling.fill(bytes, place), owner));
                }
            }
        }
    }

    /// A block, if it is in memory; waits where somebody is loading it.
    pub fn find(&self, key: Key) -> Result<Option<Handle>, Error> {
        let owner = pin(&self.owner)?;
        let found = self.inner.find(key, owner.class).filter(|block| self.inner.is_filled(block));
        Ok(found.map(|block| {
            self.inner.touch(&block);
            Handle::new(block, owner)
        }))
    }
}

/// A pin more of an owner, if it has claimed so many: each is a reference to it beside the session's own.
#[inline]
pub(crate) fn pin(owner: &Arc<Owner>) -> Result<Arc<Owner>, Error> {
    let pinned = Arc::clone(owner);
    if Arc::strong_count(&pinned) - 1 > pinned.pins as usize { Err(taken(&pinned)) } else { Ok(pinned) }
}

#[cold]
fn taken(owner: &Owner) -> Error {
    Error::PinsTaken { name: owner.name.to_string(), pins: owner.pins }
}

pub(crate) fn check_length(key: Key, bytes: usize, bytes_max: usize) -> Result<(), Error> {
    if bytes > bytes_max {
        return Err(Error::TooLong { object: key.object.0, number: key.number, bytes, bytes_max });
    }
    Ok(())
}

fn check_loaded(class: Class) -> Result<(), Error> {
    if class.is_kept() {
        return Err(Error::Config(format!("blocks of class {} are spooled, not loaded", class.name())));
    }
    Ok(())
}
