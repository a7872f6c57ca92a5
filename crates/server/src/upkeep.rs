//! What a server does by itself: notes of time and snapshot, purging what is old, giving up what it kept for clients.
//!
//! Several servers on one database need not know of each other: a note that another has just taken is as good as an own one, and a
//! horizon that another has just moved leaves nothing to purge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headwater_consolidated::system::{self, PurgeRequest, Purged};
use headwater_consolidated::{Error, Pool};

use crate::places::workers_within;
use crate::state::Shared;

const DAY: Duration = Duration::from_hours(24);
/// How often what is kept is looked over.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);
/// Of the time after which changes are purged: what the horizon moves by at least.
const STEPS: u32 = 30;

/// Waits; whether the server still runs then.
async fn pause(shared: &Shared, time: Duration) -> bool {
    let mut stopping = shared.front.stopping.subscribe();
    tokio::select! {
        () = tokio::time::sleep(time) => true,
        _ = stopping.wait_for(Option::is_some) => false,
    }
}

/// Notes time and snapshot in the database now and then: purge turns ages into versions by them, and they tell which state of the
/// database a remote has known.
pub(crate) async fn take_notes(shared: Arc<Shared>) {
    let every = |shared: &Shared| Duration::from_millis(shared.config.now().note_ms);
    while pause(&shared, every(&shared)).await {
        if shared.commit_waits.now().is_some() {
            continue;
        }
        let half = every(&shared) / 2;
        let (pool, patience) = (shared.pool.clone(), Duration::from_millis(shared.config.now().connect_ms_max));
        let noting = tokio::task::spawn_blocking(move || {
            let mut connection = pool.checkout(patience)?;
            let noted = system::is_note_due(&mut *connection, half)
                .and_then(|is_due| if is_due { system::take_note(&mut *connection).map(|_note| ()) } else { Ok(()) });
            connection.note(noted)
        });
        match noting.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the note could not be taken; the next one will do"),
            Err(error) => tracing::error!(%error, "taking a note panicked"),
        }
    }
}

/// Gives up downloads that nobody has resumed in time, uploads whose pieces don't come, and chunks that are out of date.
pub(crate) async fn expire(shared: Arc<Shared>) {
    while pause(&shared, EXPIRE_EVERY).await {
        shared.downloads.expire();
        shared.ready_files.expire();
        shared.tickets.expire();
        shared.chunks.expire();
    }
}

/// How often it is looked whether commits end again.
const COMMITS_EVERY: Duration = Duration::from_secs(1);

/// While commits do not end: finds out when they do.
pub(crate) async fn look_at_commits(shared: Arc<Shared>) {
    while pause(&shared, COMMITS_EVERY).await {
        if shared.commit_waits.now().is_none() {
            continue;
        }
        let (pool, patience) = (shared.pool.clone(), Duration::from_millis(shared.config.now().connect_ms_max));
        let looking = tokio::task::spawn_blocking(move || {
            let mut connection = pool.checkout(patience)?;
            let looked = connection.look_at_commits();
            connection.note(looked)
        });
        match looking.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "whether commits end again was not found out"),
            Err(error) => tracing::error!(%error, "looking at commits panicked"),
        }
    }
}

/// How often it is looked how many servers share the database, and told how many workers there are.
const SHARE_EVERY: Duration = Duration::from_secs(15);

/// Keeps the number of workers, where it is found, below this server's share of the database's connections; and says in the log what it is.
pub(crate) async fn share_connections(shared: Arc<Shared>) {
    let mut told = shared.admission.load().crews();
    loop {
        if shared.config.now().workers != 0 {
            if !pause(&shared, SHARE_EVERY).await {
                return;
            }
            told = shared.admission.load().crews();
            continue;
        }
        let (pool, patience) = (shared.pool.clone(), Duration::from_millis(shared.config.now().connect_ms_max));
        let asking = tokio::task::spawn_blocking(move || {
            let mut connection = pool.checkout(patience)?;
            let share = system::connection_share(&mut *connection);
            connection.note(share)
        });
        match asking.await {
            Ok(Ok(Some(share))) => shared.admission.set_share(workers_within(share)),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "how many servers share the database was not found out"),
            Err(error) => tracing::error!(%error, "asking for the share of connections panicked"),
        }
        if !pause(&shared, SHARE_EVERY).await {
            return;
        }
        let now = shared.admission.load().crews();
        if now != told {
            let ((workers, uploaders), (workers_before, uploaders_before)) = (now, told);
            tracing::info!(
                workers,
                uploaders,
                workers_before,
                uploaders_before,
                "the number of workers follows the database"
            );
            told = now;
        }
    }
}

/// Purges what is older than `purge_days`, after each note that may have made something old enough.
pub(crate) async fn purge_now_and_then(shared: Arc<Shared>) {
    while pause(&shared, Duration::from_millis(shared.config.now().note_ms)).await {
        let older_than = DAY * u32::try_from(shared.config.now().purge_days).unwrap_or(u32::MAX);
        if older_than.is_zero() || shared.commit_waits.now().is_some() {
            continue;
        }
        let request = PurgeRequest { older_than, step: older_than / STEPS };
        // Dropped with this task, so that what is cut at the server's end stops at its next batch.
        let stop = StopOnDrop::default();
        let (pool, stopped) = (shared.pool.clone(), Arc::clone(&stop.0));
        let mut stopping = shared.front.stopping.subscribe();
        let purging = tokio::task::spawn_blocking(move || purge(&pool, &request, &stopped));
        let purged = tokio::select! {
            purged = purging => purged,
            _ = stopping.wait_for(Option::is_some) => return,
        };
        match purged {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "purging stopped; the next time it goes on"),
            Err(error) => tracing::error!(%error, "purging panicked"),
        }
    }
}

/// On a connection of its own: it may take long, and syncs must not wait for it.
fn purge(pool: &Pool, request: &PurgeRequest, stopped: &AtomicBool) -> Result<Purged, Error> {
    let mut connection = pool.connect_beside()?;
    system::purge(&mut *connection, request, &mut || !stopped.load(Ordering::Relaxed))
}

#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
