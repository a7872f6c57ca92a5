//! Ready files: SQLite files with which new remotes begin in the place of a first download.
//!
//! ```text
//! POST /v1/file   ask (memberships, in a snapshot) ──> a file is kept for them:  greet, seal ──> WELCOME READY_FILE WATERMARKS END
//!                                                 ├──> one is being made:       wait for it, then as above
//!                                                 ├──> another remote asked before: have it made, and wait
//!                                                 └──> else:                    END; the ordinary download does
//! GET /v1/file/ID ask again ──> its bytes from an offset on
//! ```
//!
//! A file is made by the very code by which remotes apply a download ([`BuildReady`], which the program hands to [`crate::Server::start_with`]),
//! from the download of an exact set of partitions that is nobody's ([`headwater_consolidated::download::ready`]), into an empty file.
//! So it has what a remote with these partitions would have, and nothing that belongs to a user or a remote; who takes it writes that
//! himself, with watermarks that are sealed for him alone.
//!
//! Most users' partitions are theirs alone, and a file costs as much as a download. So one is made when a second remote asks for the same
//! within [`Config::ready_ms_max`], and only one at a time; whoever wants another meanwhile takes the ordinary way.
//!
//! A file is kept as long as all that has changed since can be told and the database is still the one that it was read from: a note that
//! was taken after its snapshot is there. It goes when it is older than `ready_ms_max` too, or when others need its room.
//!
//! *Caveats.* Rows that left a partition after its file was made are in it until it goes: who becomes a member in between gets them, and at
//! once their deletions. Files lie in `spool_folder`, without names once they are made; a server that is killed while it makes one leaves a
//! folder `headwater-ready-...` there.

mod make;
mod packed;
mod routes;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_knobs::Live;
use headwater_model::Model;
use headwater_protocol::Frame;
use headwater_protocol::message::Watermarks;
use tokio::sync::watch;
use tokio::time::Instant;

use self::packed::Packed;
pub(crate) use self::routes::{get_file, post_file};
use crate::Config;

/// Makes the file of a remote of this model that has applied these frames and has no identity, at this path, with at most so many bytes.
pub type BuildReady = Arc<
    dyn Fn(
            &Path,
            &Model,
            u64,
            &mut dyn FnMut() -> io::Result<Option<Frame>>,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync,
>;

/// How the names of folders begin in which ready files are made. One that a killed server left may be deleted.
pub const READY_FOLDER: &str = "headwater-ready-";

/// Partition sets that are remembered because somebody has asked for them.
const ASKED_MAX: usize = 10_000;
/// Files that are promised and not taken yet; beyond, the oldest promise is broken.
const OFFERS_MAX: usize = 10_000;

/// What names an exact set of partitions ([`headwater_consolidated::download::ready::Asked::key`]).
pub(crate) type Key = [u8; 32];

/// All of a server's.
pub(crate) struct ReadyFiles {
    build: Option<BuildReady>,
    config: Live<Config>,
    folder: Option<PathBuf>,
    state: Mutex<State>,
}

impl std::fmt::Debug for ReadyFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyFiles").field("bytes_max", &self.bytes_max()).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    offers: HashMap<[u8; 16], Offer>,
}

#[derive(Debug)]
struct Entry {
    /// When it became what it is.
    since: Instant,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A remote has asked.
    Asked([u8; 16]),
    /// It is not worth a file, or none could be made.
    NotWorth,
    /// One is being made; the sender goes when it has ended.
    InTheMaking(watch::Receiver<()>),
    /// Here it is, and when it was last given.
    Made(Arc<Ready>, Instant),
}

/// A file that is made.
#[derive(Debug)]
pub(crate) struct Ready {
    key: Key,
    /// Of the model.
    fingerprint: u64,
    file: Packed,
    /// Of the file as remotes have it.
    digest: [u8; 32],
    rows: u64,
    /// What has been seen with it, not sealed.
    seen: Watermarks,
    /// A note that the database took after its snapshot.
    note: [u8; 16],
}

/// A file that is promised to a remote.
#[derive(Debug)]
struct Offer {
    user: String,
    remote_id: [u8; 16],
    ready: Arc<Ready>,
    asked_at: Instant,
}

/// The database could not do it just then.
#[derive(Debug)]
struct BadLuck;

/// What is to be done for a remote that asks.
#[derive(Debug)]
enum Next {
    /// It takes the ordinary way.
    Nothing,
    /// A file is being made for these partitions: wait.
    Wait(watch::Receiver<()>),
    /// Have one made, and tell the others when that has ended.
    Make(watch::Sender<()>, watch::Receiver<()>),
    /// Here it is.
    Take(Arc<Ready>),
}

impl ReadyFiles {
    pub(crate) fn new(config: Live<Config>, build: Option<BuildReady>) -> ReadyFiles {
        ReadyFiles { build, folder: config.now().spool_folder.clone(), config, state: Mutex::default() }
    }

    /// Downloads of fewer bytes are not worth a file.
    fn bytes_min(&self) -> u64 {
        self.config.now().ready_bytes_min
    }

    /// Bytes of all files.
    fn bytes_max(&self) -> u64 {
        self.config.now().ready_bytes_max
    }

    /// How long a file is given to new remotes.
    fn age_max(&self) -> Duration {
        Duration::from_millis(self.config.now().ready_ms_max)
    }

    /// How long a promised file can be asked for.
    fn kept_for(&self) -> Duration {
        Duration::from_millis(self.config.now().kept_ms)
    }

    /// How it makes files, if it may.
    fn builder(&self) -> Option<&BuildReady> {
        self.build.as_ref().filter(|_| self.bytes_max() > 0)
    }

    /// The file that is kept for these partitions.
    fn find(&self, key: &Key) -> Option<Arc<Ready>> {
        match self.lock().entries.get(key) {
            Some(Entry { what: What::Made(ready, _), .. }) => Some(Arc::clone(ready)),
            _ => None,
        }
    }

    /// A remote wants these partitions. `may_make`: whether one may be made for it.
    fn next(&self, key: Key, remote_id: [u8; 16], may_make: bool) -> Next {
        let (now, age_max) = (Instant::now(), self.age_max());
        let mut state = self.lock();
        state.entries.retain(|_, entry| !entry.is_old(now, age_max));
        let makes = state.entries.values().any(|entry| matches!(entry.what, What::InTheMaking(_)));
        match state.entries.get_mut(&key).map(|entry| &mut entry.what) {
            Some(What::Made(ready, given_at)) => {
                *given_at = now;
                Next::Take(Arc::clone(ready))
            }
            Some(What::InTheMaking(ended)) => Next::Wait(ended.clone()),
            Some(What::NotWorth) => Next::Nothing,
            Some(What::Asked(by)) if *by == remote_id || makes || !may_make => Next::Nothing,
            Some(What::Asked(_)) => {
                let (tell, told) = watch::channel(());
                state.entries.insert(key, Entry { since: now, what: What::InTheMaking(told.clone()) });
                Next::Make(tell, told)
            }
            None => {
                state.make_room_to_ask();
                state.entries.insert(key, Entry { since: now, what: What::Asked(remote_id) });
                Next::Nothing
            }
        }
    }

    /// The making of a file has ended; `None`: there is none, and none is to be tried for a while. An error: the next that asks may have better luck.
    fn made(&self, key: Key, ready: Result<Option<Ready>, BadLuck>) {
        let now = Instant::now();
        let mut state = self.lock();
        let Ok(ready) = ready else {
            state.entries.remove(&key);
            return;
        };
        let ready = ready.filter(|ready| ready.file.kept() <= self.bytes_max());
        let what = ready.map_or(What::NotWorth, |ready| What::Made(Arc::new(ready), now));
        state.entries.insert(key, Entry { since: now, what });
        state.keep_within(self.bytes_max());
    }

    /// The file of these partitions is of no more use.
    fn forget(&self, key: &Key) {
        let mut state = self.lock();
        if matches!(state.entries.get(key), Some(Entry { what: What::Made(..), .. })) {
            state.entries.remove(key);
        }
        state.offers.retain(|_, offer| offer.ready.key != *key);
    }

    /// Promises a file; gives the ID.
    fn promise(&self, user: &str, remote_id: [u8; 16], ready: &Arc<Ready>) -> [u8; 16] {
        let id = uuid::Uuid::new_v4().into_bytes();
        let mut state = self.lock();
        if state.offers.len() >= OFFERS_MAX
            && let Some(oldest) = state.offers.iter().min_by_key(|(_, offer)| offer.asked_at).map(|(id, _)| *id)
        {
            state.offers.remove(&oldest);
        }
        let offer = Offer { user: user.to_owned(), remote_id, ready: Arc::clone(ready), asked_at: Instant::now() };
        state.offers.insert(id, offer);
        id
    }

    /// The file that was promised under this ID to this user and remote.
    fn promised(&self, id: &[u8; 16], user: &str, remote_id: &[u8; 16]) -> Option<Arc<Ready>> {
        let mut state = self.lock();
        let offer = state.offers.get_mut(id).filter(|offer| offer.user == user && offer.remote_id == *remote_id)?;
        offer.asked_at = Instant::now();
        Some(Arc::clone(&offer.ready))
    }

    /// Lets go what is old: files, who asked, promises.
    pub(crate) fn expire(&self) {
        let (now, age_max, kept_for) = (Instant::now(), self.age_max(), self.kept_for());
        let mut state = self.lock();
        state.entries.retain(|_, entry| !entry.is_old(now, age_max));
        state.offers.retain(|_, offer| now.duration_since(offer.asked_at) < kept_for);
    }

    /// Files that are kept, and their bytes.
    pub(crate) fn held(&self) -> (usize, u64) {
        let state = self.lock();
        let files = state.entries.values().filter_map(Entry::file);
        files.fold((0, 0), |(count, bytes), (ready, _)| (count + 1, bytes + ready.file.kept()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// One that is being made ends by itself.
    fn is_old(&self, now: Instant, age_max: Duration) -> bool {
        !matches!(self.what, What::InTheMaking(_)) && now.duration_since(self.since) >= age_max
    }

    fn file(&self) -> Option<(&Arc<Ready>, Instant)> {
        match &self.what {
            What::Made(ready, given_at) => Some((ready, *given_at)),
            _ => None,
        }
    }
}

impl State {
    /// Forgets who asked first, where they are too many.
    fn make_room_to_ask(&mut self) {
        let asked = |entry: &Entry| matches!(entry.what, What::Asked(_) | What::NotWorth);
        if self.entries.values().filter(|entry| asked(entry)).count() < ASKED_MAX {
            return;
        }
        let others = self.entries.iter().filter(|(_, entry)| asked(entry));
        if let Some(oldest) = others.min_by_key(|(_, entry)| entry.since).map(|(key, _)| *key) {
            self.entries.remove(&oldest);
        }
    }

    /// Lets the files go that were given longest ago, until the others have room.
    fn keep_within(&mut self, bytes_max: u64) {
        loop {
            let files = || self.entries.iter().filter_map(|(key, entry)| Some((*key, entry.file()?)));
            if files().map(|(_, (ready, _))| ready.file.kept()).sum::<u64>() <= bytes_max {
                return;
            }
            let Some(first) = files().min_by_key(|(_, (_, given_at))| *given_at).map(|(key, _)| key) else { return };
            self.entries.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests;
