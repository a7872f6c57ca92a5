//! What takes connections, whatever is served on them.

use tokio::sync::watch;

use crate::Config;
use crate::admission::Gauge;

/// How many connections there are, and whether more are taken.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) config: Config,
    pub(crate) connections: Gauge,
    /// Those that are taken at a time: as set, or as many as the process may have open.
    pub(crate) connections_max: usize,
    /// True once the server goes down.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Front {
    pub(crate) fn new(config: Config, connections_max: usize) -> Front {
        Front { config, connections: Gauge::default(), connections_max, stopping: watch::Sender::new(false) }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}
