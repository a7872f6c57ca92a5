//! Locks that count who had to wait, over the standard library's; in this crate's own unit tests over shuttle's, which runs threads in
//! an order of its choosing (`model`). So the unit tests of whatever locks are those of the model, and all others are in `tests/`,
//! where the locks are real.

#[cfg(test)]
pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(test)]
use shuttle::sync::{Condvar as Told, Mutex, MutexGuard};
#[cfg(test)]
pub(crate) use shuttle::thread::yield_now;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(test))]
use std::sync::{Condvar as Told, Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use std::thread::yield_now;

use std::sync::{PoisonError, TryLockError};

/// A lock, and how often somebody found it taken.
#[derive(Debug, Default)]
pub(crate) struct Lock<T> {
    inner: Mutex<T>,
    waits: AtomicU64,
}

/// What a lock guards, while it is held.
pub(crate) type Held<'l, T> = MutexGuard<'l, T>;

/// Told when what a lock guards has changed.
#[derive(Debug, Default)]
pub(crate) struct Changed(Told);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock { inner: Mutex::new(value), waits: AtomicU64::new(0) }
    }

    /// Takes it. Nothing is left half done below a lock, so a panic elsewhere does not matter.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        match self.inner.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waits.fetch_add(1, Ordering::Relaxed);
                self.inner.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// How often somebody had to wait for it.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Changed {
    /// Lets go of the lock until somebody tells.
    pub(crate) fn wait<'l, T>(&self, held: Held<'l, T>) -> Held<'l, T> {
        self.0.wait(held).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell_all(&self) {
        self.0.notify_all();
    }
}
