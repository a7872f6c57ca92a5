//! Who may pin how much: the budget's ledger.
//!
//! Room is claimed before anything is pinned, so that a session that has begun never waits for another's pins, and pins never exceed
//! the budget. For each class counts what is claimed or its floor, whichever is more:
//!
//! ```text
//! budget >= max(claimed uploads, floor) + max(claimed downloads, floor) + max(claimed answers, floor) + max(claimed chunks, floor)
//! ```
//!
//! From this follows that whoever has claimed a place finds a block that may go: were all places taken, each class having either no more than
//! its floor or nothing but claimed bytes, the sum above would exceed the budget. [`Used`] is what the memory really has.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Class, Config};
use crate::error::{Error, Holders};
use crate::sync::{AtomicU64, Lock, Ordering};

const CLASSES: usize = Class::ALL.len();
/// Holders that an error names.
const NAMED_MAX: usize = 5;
/// The part of the budget that private buffers may take.
const SCANS_PART: u64 = 4;

/// The ledger.
#[derive(Debug)]
pub(crate) struct Room {
    ledger: Lock<Ledger>,
}

#[derive(Debug)]
struct Ledger {
    budget: u64,
    floors: [u64; CLASSES],
    claimed: [u64; CLASSES],
    /// Of it, what is for private buffers.
    scans: u64,
    owners: BTreeMap<u64, Claim>,
    next: u64,
}

#[derive(Debug)]
struct Claim {
    name: Arc<str>,
    class: Class,
    bytes: u64,
    scan_bytes: u64,
}

/// Who has claimed room; given back when it and all that it holds are gone.
#[derive(Debug)]
pub(crate) struct Owner {
    room: Arc<Room>,
    id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) class: Class,
    /// Blocks that it may pin at a time.
    pub(crate) pins: u32,
}

impl Room {
    pub(crate) fn new(config: &Config) -> Arc<Room> {
        let ledger = Ledger {
            budget: config.budget_bytes,
            floors: config.floors.all(),
            claimed: [0; CLASSES],
            scans: 0,
            owners: BTreeMap::new(),
            next: 0,
        };
        Arc::new(Room { ledger: Lock::new(ledger) })
    }

    /// An owner who has claimed so many bytes, and of them so many for private buffers.
    pub(crate) fn owner(
        self: &Arc<Room>,
        name: &str,
        class: Class,
        pins: u32,
        (bytes, scan_bytes): (u64, u64),
    ) -> Result<Arc<Owner>, Error> {
        let mut ledger = self.ledger.lock();
        ledger.check_scans(name, scan_bytes)?;
        ledger.claim(name, class, bytes)?;
        ledger.scans += scan_bytes;
        let (id, name) = (ledger.next, Arc::<str>::from(name));
        ledger.next += 1;
        ledger.owners.insert(id, Claim { name: Arc::clone(&name), class, bytes, scan_bytes });
        drop(ledger);
        Ok(Arc::new(Owner { room: Arc::clone(self), id, name, class, pins }))
    }

    /// Changes the budget; what depends on it is done while the ledger is held.
    pub(crate) fn set_budget(&self, bytes: u64, then: impl FnOnce()) -> Result<(), Error> {
        let mut ledger = self.ledger.lock();
        let claimed_bytes = ledger.sum();
        if claimed_bytes > bytes {
            return Err(Error::BudgetHeld { bytes, claimed_bytes, holders: ledger.holders() });
        }
        if ledger.scans > bytes / SCANS_PART {
            let bytes_max = bytes / SCANS_PART;
            return Err(Error::ScansFull { name: "open scans".into(), bytes: ledger.scans, bytes_max });
        }
        ledger.budget = bytes;
        then();
        Ok(())
    }

    /// Changes the floors; what depends on them is done while the ledger is held.
    pub(crate) fn set_floors(&self, floors: [u64; CLASSES], then: impl FnOnce()) -> Result<(), Error> {
        let mut ledger = self.ledger.lock();
        let before = std::mem::replace(&mut ledger.floors, floors);
        let wanted_bytes = ledger.sum();
        if wanted_bytes > ledger.budget {
            ledger.floors = before;
            return Err(Error::FloorsHeld { wanted_bytes, budget_bytes: ledger.budget, holders: ledger.holders() });
        }
        then();
        Ok(())
    }

    pub(crate) fn floors(&self) -> [u64; CLASSES] {
        self.ledger.lock().floors
    }

    /// Who holds it.
    pub(crate) fn holders(&self) -> Holders {
        self.ledger.lock().holders()
    }
}

impl Owner {
    /// Claims more.
    pub(crate) fn claim(&self, bytes: u64) -> Result<(), Error> {
        let mut ledger = self.room.ledger.lock();
        ledger.claim(&self.name, self.class, bytes)?;
        if let Some(claim) = ledger.owners.get_mut(&self.id) {
            claim.bytes += bytes;
        }
        Ok(())
    }

    /// Gives back what it claimed.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut ledger = self.room.ledger.lock();
        ledger.claimed[self.class as usize] -= bytes;
        if let Some(claim) = ledger.owners.get_mut(&self.id) {
            claim.bytes -= bytes;
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut ledger = self.room.ledger.lock();
        if let Some(claim) = ledger.owners.remove(&self.id) {
            ledger.claimed[claim.class as usize] -= claim.bytes;
            ledger.scans -= claim.scan_bytes;
        }
    }
}

impl Ledger {
    /// What is claimed, or kept for those who may claim it.
    fn sum(&self) -> u64 {
        let each = self.claimed.iter().zip(self.floors).map(|(claimed, floor)| floor.max(*claimed));
        each.fold(0, u64::saturating_add)
    }

    fn claim(&mut self, name: &str, class: Class, bytes: u64) -> Result<(), Error> {
        let before = self.claimed[class as usize];
        self.claimed[class as usize] = before.saturating_add(bytes);
        if self.sum() > self.budget {
            self.claimed[class as usize] = before;
            let (name, holders) = (name.to_owned(), self.holders());
            return Err(Error::NoRoom { name, bytes, budget_bytes: self.budget, holders });
        }
        Ok(())
    }

    fn check_scans(&self, name: &str, bytes: u64) -> Result<(), Error> {
        let bytes_max = self.budget / SCANS_PART;
        if self.scans.saturating_add(bytes) > bytes_max {
            return Err(Error::ScansFull { name: name.to_owned(), bytes, bytes_max });
        }
        Ok(())
    }

    fn holders(&self) -> Holders {
        let mut all: Vec<(&str, u64)> =
            self.owners.values().filter(|claim| claim.bytes > 0).map(|claim| (&*claim.name, claim.bytes)).collect();
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let others = all.len().saturating_sub(NAMED_MAX);
        let first = all.into_iter().take(NAMED_MAX).map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        let floors_bytes = self.sum() - self.claimed.iter().sum::<u64>();
        Holders { first, others, floors_bytes }
    }
}

/// Bytes that the memory has, by class. They grow below the chain's lock alone, so that they never pass the budget.
#[derive(Debug, Default)]
pub(crate) struct Used([AtomicU64; CLASSES]);

/// Room in memory that is in use, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    used: Arc<Used>,
    class: Class,
    bytes: u64,
}

impl Used {
    pub(crate) fn all(&self) -> [u64; CLASSES] {
        Class::ALL.map(|class| self.0[class as usize].load(Ordering::Acquire))
    }

    pub(crate) fn take(self: &Arc<Used>, class: Class, bytes: u64) -> Place {
        self.0[class as usize].fetch_add(bytes, Ordering::AcqRel);
        Place { used: Arc::clone(self), class, bytes }
    }
}

impl Place {
    /// Makes one of two of the same class.
    pub(crate) fn join(&mut self, mut other: Place) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back what is more than that.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let more = self.bytes.saturating_sub(bytes);
        self.bytes -= more;
        self.used.0[self.class as usize].fetch_sub(more, Ordering::AcqRel);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.used.0[self.class as usize].fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
