//! Commits that do not end: how long one is waited for, and whether there are such now.
//!
//! A commit of PostgreSQL waits for the synchronous standbys, without an end while they are away (`postgres::standby`). A writer of SQLite waits for
//! another program's transaction. What has waited longer than the limit is left, and noted here; from then on the database is looked at now and
//! then, until commits end again ([`Connection::look_at_commits`](crate::Connection::look_at_commits)).
//!
//! *Caveats.* Whoever leaves a commit does not end it: it takes place once what it waits for is there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What all connections of a database know of commits that wait. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CommitWaits(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// 0: none.
    limit_ms: AtomicU64,
    now: Mutex<Option<State>>,
}

#[derive(Clone, Debug)]
struct State {
    commits: usize,
    since: Instant,
    what: String,
}

/// Commits that wait now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many are known of.
    pub commits: usize,
    /// For how long the first of them has waited.
    pub since: Duration,
    /// What they wait for, for the people who run the database.
    pub what: String,
}

impl CommitWaits {
    /// How long a commit is waited for; `None`: until it ends.
    pub fn limit(&self) -> Option<Duration> {
        let limit_ms = self.0.limit_ms.load(Ordering::Relaxed);
        (limit_ms > 0).then(|| Duration::from_millis(limit_ms))
    }

    /// Changes that, from the next wait on.
    pub fn set_limit(&self, limit: Duration) {
        self.0.limit_ms.store(limit.as_millis() as u64, Ordering::Relaxed);
    }

    /// Commits that have waited longer than the limit, if there are any.
    pub fn now(&self) -> Option<Waiting> {
        let state = self.lock().clone()?;
        Some(Waiting { commits: state.commits, since: state.since.elapsed(), what: state.what })
    }

    /// Says what was found: this many wait, the first of them for so long. None: they end again.
    pub(crate) fn found(&self, commits: usize, longest: Duration, what: &str) {
        let mut now = self.lock();
        if commits == 0 {
            if now.take().is_some() {
                tracing::info!("commits at the consolidated database end again; uploads are taken");
            }
            return;
        }
        if now.as_ref().is_none_or(|before| before.what != what) {
            tracing::warn!(
                commits,
                waited_s = longest.as_secs(),
                waits_for = what,
                "commits at the consolidated database do not end; uploads are refused until they do"
            );
        }
        let since = now.as_ref().map_or_else(|| Instant::now().checked_sub(longest), |before| Some(before.since));
        *now = Some(State { commits, since: since.unwrap_or_else(Instant::now), what: what.to_owned() });
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
