//! Places to execute in, and those who wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fault::Fault;

/// So many places; whoever finds none waits, unless too many do.
pub(crate) struct Lane {
    places: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
    patience: Duration,
}

impl Lane {
    /// `patience`: how long one waits.
    pub(crate) fn new(places: usize, waiting_max: usize, patience: Duration) -> Lane {
        Lane { places: Arc::new(Semaphore::new(places)), waiting: Arc::default(), waiting_max, patience }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.waiting)
    }

    /// Whether whoever comes has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// A place, if one is free.
    pub(crate) fn free(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// A place, waited for where none is free; 503 where so many wait already, and after having waited for so long.
    pub(crate) async fn place(&self) -> Result<OwnedSemaphorePermit, Fault> {
        if let Some(permit) = self.free() {
            return Ok(permit);
        }
        let waiting = Waiting::enter(&self.waiting);
        if waiting.place > self.waiting_max {
            return Err(Fault::overloaded(format!("{} queries wait already", self.waiting_max)));
        }
        let acquired = tokio::time::timeout(self.patience, Arc::clone(&self.places).acquire_owned()).await;
        match acquired {
            Ok(permit) => permit.map_err(|_| Fault::internal("the semaphore was closed")),
            Err(_) => Err(Fault::overloaded(format!("no query ended for {:?}", self.patience))),
        }
    }

    /// Takes all places.
    #[cfg(test)]
    pub(crate) async fn hold(&self, all: usize) -> OwnedSemaphorePermit {
        let all = u32::try_from(all).expect("few");
        Arc::clone(&self.places).acquire_many_owned(all).await.expect("never closed")
    }
}

/// A place among those that wait.
struct Waiting<'c> {
    count: &'c AtomicUsize,
    place: usize,
}

impl Waiting<'_> {
    fn enter(count: &AtomicUsize) -> Waiting<'_> {
        Waiting { place: count.fetch_add(1, Ordering::Relaxed) + 1, count }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
