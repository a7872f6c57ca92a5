//! What one sync sees of the shared partitions: those of its model, in the present incarnation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use headwater_consolidated::download::{Found, Kept, Snapshots};

use super::build::Building;
use super::{Chunks, Entry, PLACES_MAX, Place};

/// The view of one sync.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) chunks: Arc<Chunks>,
    /// Of the model.
    pub(crate) fingerprint: u64,
    pub(crate) incarnation: [u8; 16],
    /// How long it has waited for others, in nanoseconds.
    waited: AtomicU64,
}

impl View {
    pub(crate) fn new(chunks: Arc<Chunks>, fingerprint: u64, incarnation: [u8; 16]) -> View {
        View { chunks, fingerprint, incarnation, waited: AtomicU64::new(0) }
    }

    /// How long the sync has waited for what others built. The database did nothing for it then.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    fn place(&self, table: u32, partition: &[u8]) -> Place {
        let View { fingerprint, incarnation, .. } = *self;
        Place { fingerprint, incarnation, table, partition: partition.to_vec() }
    }
}

impl Snapshots for View {
    fn find(&self, table: u32, partition: &[u8]) -> Found {
        let (place, now) = (self.place(table, partition), Instant::now());
        let mut state = self.chunks.lock();
        match state.places.get(&place) {
            Some(Entry::Building) => return Found::Busy,
            Some(Entry::Kept(kept, until)) if now < *until => return Found::Kept(Arc::clone(kept)),
            Some(Entry::Nothing(until)) if now < *until => return Found::Nothing,
            None if state.places.len() >= PLACES_MAX => return Found::Nothing,
            _ => {}
        }
        state.places.insert(place.clone(), Entry::Building);
        drop(state);
        Found::Build(Box::new(Building::new(&self.chunks, place)))
    }

    fn wait(&self, table: u32, partition: &[u8]) -> bool {
        let place = self.place(table, partition);
        let is_building = |state: &mut super::State| matches!(state.places.get(&place), Some(Entry::Building));
        let begun = Instant::now();
        let waited = self.chunks.ended.wait_timeout_while(self.chunks.lock(), self.chunks.wait_max(), is_building);
        let is_over = !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        self.waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        is_over
    }

    fn give_up(&self, table: u32, partition: &[u8], kept: &Kept) {
        let place = self.place(table, partition);
        let mut state = self.chunks.lock();
        if matches!(state.places.get(&place), Some(Entry::Kept(known, _)) if std::ptr::eq(&raw const **known, kept)) {
            state.places.remove(&place);
        }
    }
}

/// For whoever only estimates a download: what is shared comes in chunks.
#[derive(Debug)]
pub(crate) struct Elsewhere;

impl Snapshots for Elsewhere {
    fn find(&self, _table: u32, _partition: &[u8]) -> Found {
        Found::Nothing
    }

    fn wait(&self, _table: u32, _partition: &[u8]) -> bool {
        false
    }

    fn give_up(&self, _table: u32, _partition: &[u8], _kept: &Kept) {}
}
