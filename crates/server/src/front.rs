//! What takes connections, whatever is served on them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use headwater_knobs::Live;
use tokio::sync::watch;

use crate::Config;
use crate::admission::Gauge;

/// How many connections there are, and whether more are taken.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) config: Live<Config>,
    pub(crate) connections: Gauge,
    /// Those that are taken at a time: as set, or as many as the process may have open.
    connections_max: AtomicUsize,
    /// Once the server goes down: until when what runs may end.
    pub(crate) stopping: watch::Sender<Option<Instant>>,
}

impl Front {
    pub(crate) fn new(config: Live<Config>, connections_max: usize) -> Front {
        let connections_max = AtomicUsize::new(connections_max);
        Front { config, connections: Gauge::default(), connections_max, stopping: watch::Sender::new(None) }
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed)
    }

    /// From now on so many are taken; those that are there stay.
    pub(crate) fn set_connections_max(&self, connections_max: usize) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// The server goes down, now where nothing else was said before.
    pub(crate) fn stop(&self, until: Instant) {
        self.stopping.send_if_modified(|stopping| {
            let is_new = stopping.is_none();
            stopping.get_or_insert(until);
            is_new
        });
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.borrow().is_some()
    }
}
