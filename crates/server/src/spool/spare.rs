//! Spools that are held though nothing needs them unless something breaks: they go where others find no room.
//!
//! They are uploads that came in pieces and were applied: a remote that has not got its receipt comes with the same ticket again, and nothing is
//! sent twice then. Without them it sends its upload once more, and gets the same receipt.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headwater_bufferpool::{Error, Spool};

use super::UploadSpool;

type Shared = tokio::sync::Mutex<UploadSpool>;

/// Spools that are spare, the oldest first. There are no more than those who hold them do: others are forgotten with each that is added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare(Arc<Mutex<VecDeque<Weak<Shared>>>>);

impl Spare {
    /// One more, which may be emptied while nobody uses it.
    pub(crate) fn add(&self, spool: &Arc<Shared>) {
        let mut all = self.lock();
        let other = Arc::downgrade(spool);
        all.retain(|one| one.strong_count() > 0 && !one.ptr_eq(&other));
        all.push_back(other);
    }

    /// It is needed.
    pub(crate) fn remove(&self, spool: &Arc<Shared>) {
        let needed = Arc::downgrade(spool);
        self.lock().retain(|one| !one.ptr_eq(&needed));
    }

    /// Adds bytes to a spool; where they find no room, what is spare goes for them, one after the other. Blocks.
    pub(super) fn append(&self, spool: &Spool, bytes: &[u8]) -> Result<(), Error> {
        let start = spool.end();
        loop {
            // Of what has failed there may be a part.
            let done = (spool.end() - start) as usize;
            match spool.append(&bytes[done..]) {
                Err(Error::DiskFull { .. } | Error::NoRoom { .. }) if self.empty_one() => {}
                other => return other,
            }
        }
    }

    /// Empties the oldest that nobody uses; whether there was one.
    fn empty_one(&self) -> bool {
        loop {
            let Some(oldest) = self.lock().pop_front() else { return false };
            let Some(oldest) = oldest.upgrade() else { continue };
            // Whoever uses it has it spare again when that has ended.
            let Ok(mut spool) = oldest.try_lock() else { continue };
            if spool.bytes() > 0 {
                spool.empty();
                return true;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
