//! A sync in the midst of which something happens, at a moment that is held open for it rather than hit by luck.
//!
//! ```text
//! Open      DDL is open; the sync begins and comes to wait for its locks; the DDL commits
//! Held      the download has its snapshot and waits in its membership query; the DDL runs; the download goes on
//! Writers   the application writes at the remote as long as the sync runs
//! Restored  the download waits as above; the database is put back from a copy; the sync goes on, or its connection is gone
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_remote::{Error, Remote, SyncOptions, SyncReport, http::Credentials};
use headwater_tests::Central;

use crate::deeds::Deed;
use crate::restore::Copies;
use headwater_tests::session::Session;

/// What happens in the midst.
pub(crate) enum Window<'a> {
    Nothing,
    Open(Deed),
    Held(Deed),
    Writers(Vec<String>),
    Restored(&'a mut Copies),
}

/// How to sync.
pub(crate) struct How {
    pub(crate) token: String,
    pub(crate) attempts_max: u32,
    pub(crate) idle_max: Duration,
}

impl How {
    fn sync(&self, remote: &mut Remote) -> Result<SyncReport, Error> {
        let mut options = SyncOptions::new(Credentials::Token(self.token.clone()));
        options.config.attempts_max = self.attempts_max;
        options.config.backoff_min = Duration::from_millis(5);
        options.config.backoff_max = Duration::from_millis(200);
        options.config.idle_max = self.idle_max;
        remote.sync(&mut options)
    }
}

/// What became of it, and what is to be told.
pub(crate) struct Outcome {
    pub(crate) synced: Result<SyncReport, Error>,
    pub(crate) told: String,
}

/// Syncs with this in its midst.
pub(crate) fn sync(central: &Central, remote: &mut Remote, how: &How, window: Window<'_>) -> Result<Outcome> {
    let path = remote.path().to_owned();
    match (window, central) {
        (Window::Nothing, _) => Ok(Outcome { synced: how.sync(remote), told: String::new() }),
        (Window::Open(deed), Central::Postgres(url)) => open(url, remote, how, &deed),
        (Window::Open(deed), Central::Sqlite(_)) => beside(central, remote, how, &deed),
        (Window::Held(deed), Central::Postgres(url)) => held(url, remote, how, |_| once_locks_allow(url, &deed)),
        (Window::Held(_), Central::Sqlite(_)) => anyhow::bail!("no download from SQLite can be held"),
        (Window::Restored(copies), Central::Postgres(url)) => held(url, remote, how, |_| copies.put_back(central)),
        (Window::Restored(copies), Central::Sqlite(_)) => {
            let ((), outcome) = during(remote, how, |_| copies.put_back(central).map(drop))?;
            Ok(outcome)
        }
        (Window::Writers(writes), _) => {
            let write = |sql: &String, is_over: &AtomicBool| -> Result<u64> {
                if is_over.load(Ordering::Acquire) {
                    return Ok(0);
                }
                let connection = rusqlite::Connection::open(&path)?;
                connection.busy_timeout(Duration::from_secs(5))?;
                let done =
                    connection.execute_batch(&format!("PRAGMA foreign_keys = ON; BEGIN IMMEDIATE; {sql}; COMMIT"));
                let text = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
                ensure!(!text.contains("locked"), "a writer at the remote met {text:?}");
                Ok(u64::from(done.is_ok()))
            };
            let (written, mut outcome) =
                during(remote, how, |is_over| writes.iter().map(|sql| write(sql, is_over)).sum::<Result<u64>>())?;
            outcome.told = format!("{written} writes at the remote meanwhile");
            Ok(outcome)
        }
    }
}

/// Runs this while the remote syncs; it is given a flag that says when the sync is over.
fn during<T>(remote: &mut Remote, how: &How, work: impl FnOnce(&AtomicBool) -> Result<T>) -> Result<(T, Outcome)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            let synced = how.sync(remote);
            is_over.store(true, Ordering::Release);
            synced
        });
        let worked = work(&is_over);
        let synced = syncing.join().map_err(|_| anyhow::anyhow!("the sync panicked"))?;
        Ok((worked?, Outcome { synced, told: String::new() }))
    })
}

fn open(url: &str, remote: &mut Remote, how: &How, deed: &Deed) -> Result<Outcome> {
    let (session, watcher) = (Session::open(url)?, Session::open(url)?);
    session.run("SET lock_timeout = '10s'; BEGIN")?;
    if let Err(error) = session.run(&deed.sql) {
        session.run("ROLLBACK")?;
        return Ok(Outcome { synced: how.sync(remote), told: format!("not done: {error:#}") });
    }
    let (waited, mut outcome) = during(remote, how, |is_over| {
        let waited = watcher.wait_for_a_waiter(|| is_over.load(Ordering::Acquire));
        let ended = session.run("COMMIT").map(|_| ());
        waited.and_then(|waited| ended.map(|()| waited))
    })?;
    let when = if waited { "while the sync waited" } else { "after the sync" };
    outcome.told = format!("committed {when}");
    Ok(outcome)
}

/// SQLite: what is open lets nobody write, and everybody read.
fn beside(central: &Central, remote: &mut Remote, how: &How, deed: &Deed) -> Result<Outcome> {
    let (done, mut outcome) = during(remote, how, |_| Ok(central.execute(&deed.sql)))?;
    outcome.told = done.err().map_or_else(|| "done beside it".to_owned(), |error| format!("not done: {error:#}"));
    Ok(outcome)
}

/// Lets a download wait after its snapshot while this is done.
fn held(url: &str, remote: &mut Remote, how: &How, work: impl FnOnce(&Session) -> Result<String>) -> Result<Outcome> {
    let (session, watcher) = (Session::open(url)?, Session::open(url)?);
    session.run("SELECT pg_advisory_lock(4711)")?;
    let (told, mut outcome) = during(remote, how, |is_over| {
        let waits = watcher.wait_for_a_waiter(|| is_over.load(Ordering::Acquire));
        let told = work(&session);
        // It may be gone with its database.
        drop(session);
        Ok(format!("{}{}", if waits? { "" } else { "(the sync did not wait) " }, told?))
    })?;
    outcome.told = told;
    Ok(outcome)
}

/// A download that keeps its tables locked lets nobody in before it is through: then it is done right afterwards.
fn once_locks_allow(url: &str, deed: &Deed) -> Result<String> {
    let session = Session::open(url)?;
    session.run("SET lock_timeout = '150ms'")?;
    let begun = if deed.is_transactional { format!("BEGIN; {}; COMMIT", deed.sql) } else { deed.sql.clone() };
    let run = || {
        if deed.is_transactional {
            session.run(&begun)
        } else {
            deed.sql.split("; ").try_fold(Vec::new(), |_, sql| session.run(sql))
        }
    };
    let done = run().map(drop);
    if deed.is_transactional && done.is_err() {
        session.run("ROLLBACK").context("after a deed that was not done")?;
    }
    Ok(done.err().map_or_else(|| "done while the download waited".to_owned(), |error| format!("not done: {error:#}")))
}
