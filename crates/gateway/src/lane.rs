//! Places to execute in, and those who wait for one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fault::Fault;

/// So many places; whoever finds none waits, unless too many do.
pub(crate) struct Lane {
    places: Arc<Semaphore>,
    /// How many there are, once those that are to go have come back.
    size: Mutex<usize>,
    waiting: Arc<AtomicUsize>,
}

impl Lane {
    pub(crate) fn new(places: usize) -> Lane {
        Lane { places: Arc::new(Semaphore::new(places)), size: Mutex::new(places), waiting: Arc::default() }
    }

    /// From now on there are so many. Where there are fewer, those that are taken go as they come back, before whoever comes later has one.
    /// On a runtime.
    pub(crate) fn set_size(&self, size: usize) {
        let mut now = self.size.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, size);
        self.places.add_permits(size.saturating_sub(before));
        let gone = before.saturating_sub(size);
        let rest = gone - self.places.forget_permits(gone);
        if let Ok(rest) = u32::try_from(rest)
            && rest > 0
        {
            let places = Arc::clone(&self.places);
            tokio::spawn(async move {
                // It is never closed.
                if let Ok(permits) = places.acquire_many_owned(rest).await {
                    permits.forget();
                }
            });
        }
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
    pub(crate) async fn place(&self, waiting_max: usize, patience: Duration) -> Result<OwnedSemaphorePermit, Fault> {
        if let Some(permit) = self.free() {
            return Ok(permit);
        }
        let waiting = Waiting::enter(&self.waiting);
        if waiting.place > waiting_max {
            return Err(Fault::overloaded(format!("{waiting_max} queries wait already")));
        }
        let acquired = tokio::time::timeout(patience, Arc::clone(&self.places).acquire_owned()).await;
        match acquired {
            Ok(permit) => permit.map_err(|_| Fault::internal("the semaphore was closed")),
            Err(_) => Err(Fault::overloaded(format!("no query ended for {patience:?}"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_are_as_many_places_as_were_said_last() {
        let lane = Lane::new(2);
        let none = async || lane.place(9, Duration::from_millis(1)).await.is_err();
        let (first, second) = (lane.free().expect("one"), lane.free().expect("two"));
        assert!(lane.is_full() && none().await);
        lane.set_size(3);
        let third = lane.free().expect("one more");
        lane.set_size(1);
        tokio::task::yield_now().await;
        drop((first, second));
        tokio::task::yield_now().await;
        assert!(lane.is_full() && none().await, "two went as they came back");
        drop(third);
        let only = lane.free().expect("one is left");
        assert!(lane.free().is_none());
        drop(only);
        lane.set_size(4);
        lane.set_size(2);
        let places = [lane.free(), lane.free(), lane.free()];
        assert_eq!(places.map(|place| place.is_some()), [true, true, false]);
    }
}
