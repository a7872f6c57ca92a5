//! Shared partitions as this server has built them: sealed chunks in files, and which of them are handed out.
//!
//! ```text
//! find ─> nothing yet: Build ─> chunks into a file ─> publish ─> Kept, for `shared_ms`       another sync meanwhile: Busy, it waits
//!                                └ there from here on, for twice as long: who was told of them last has time to get them
//! ```
//!
//! What is read of them lies in the buffer pool for a while: many remotes get the same.
//!
//! Bounds: all files together take `shared_bytes_max`; where they are full, those that are not handed out any more
//! go first, and then partitions come as ever. A build that fails is the next sync's to begin anew. Nothing of this lasts: what a server does not have
//! it answers with 404, and the remote asks again.
//!
//! *Caveats.* Each server builds its own.

mod build;
mod view;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headwater_bufferpool::{Class, Error, Key, Named, Object, Pool, Pools, Session};
use headwater_consolidated::download::Kept;
use headwater_knobs::Live;

use crate::Config;
use crate::files::{Files, OpenFile};

pub(crate) use view::{Elsewhere, View};

/// The most partitions of which something is noted at a time.
const PLACES_MAX: usize = 100_000;

/// All of a server's.
#[derive(Debug)]
pub(crate) struct Chunks {
    state: Mutex<State>,
    /// Told when a build has ended.
    ended: Condvar,
    files: Arc<Files>,
    pools: Arc<Pools>,
    /// Bytes of all chunks.
    bytes: Arc<Meter>,
    config: Live<Config>,
    builds: AtomicU64,
    requests: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<Place, Entry>,
    chunks: HashMap<[u8; 16], Chunk>,
}

/// A partition of a table of a model, in one life of the database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    fingerprint: u64,
    incarnation: [u8; 16],
    table: u32,
    partition: Vec<u8>,
}

#[derive(Debug)]
enum Entry {
    Building,
    Kept(Arc<Kept>, Instant),
    /// Not worth while, or no room, until then.
    Nothing(Instant),
}

/// A chunk that is there to be got.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    file: Arc<Stored>,
    offset: u64,
    pub(crate) bytes: u32,
    pub(crate) digest: [u8; 32],
    until: Instant,
}

/// The file of one snapshot's chunks. Dropped, it gives its room back.
#[derive(Debug)]
struct Stored {
    file: OpenFile,
    written: AtomicU64,
    /// Where blocks of it are, and as what.
    pool: Pool,
    object: Object,
    bytes: Arc<Meter>,
}

impl Chunks {
    pub(crate) fn new(config: Live<Config>, files: Arc<Files>, pools: Arc<Pools>) -> Arc<Chunks> {
        Arc::new(Chunks {
            state: Mutex::default(),
            ended: Condvar::new(),
            files,
            pools,
            bytes: Arc::new(Meter::new(config.clone())),
            config,
            builds: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        })
    }

    /// For how long what was built is handed out.
    fn handed_out(&self) -> Duration {
        Duration::from_millis(self.config.now().shared_ms)
    }

    /// How long a sync waits for what another builds.
    fn wait_max(&self) -> Duration {
        Duration::from_millis(self.config.now().shared_wait_ms_max)
    }

    /// Where remotes get them.
    fn url(&self) -> String {
        self.config.now().chunk_url.clone().unwrap_or_default()
    }

    /// A chunk by its ID, if it is there.
    pub(crate) fn chunk(&self, id: &[u8; 16]) -> Option<Chunk> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.lock().chunks.get(id).filter(|chunk| Instant::now() < chunk.until).cloned()
    }

    /// Forgets what is out of date.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        state.places.retain(|_, entry| match entry {
            Entry::Building => true,
            Entry::Kept(_, until) | Entry::Nothing(until) => now < *until,
        });
        let gone: Vec<Chunk> = state.chunks.extract_if(|_, chunk| now >= chunk.until).map(|(_, chunk)| chunk).collect();
        drop(state);
        // Freeing a large file's blocks takes its time.
        drop(gone);
    }

    /// For people: bytes of chunks, partitions built, requests for chunks.
    pub(crate) fn stats(&self) -> (u64, u64, u64) {
        (self.bytes.used(), self.builds.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed))
    }

    /// Frees what is not handed out any more; somebody may be getting it, and asks again without.
    fn make_room(&self) {
        let mut state = self.lock();
        let kept = state.places.values().filter_map(|entry| match entry {
            Entry::Kept(kept, _) => Some(&kept.snapshot.chunks),
            _ => None,
        });
        let kept: std::collections::HashSet<[u8; 16]> = kept.flatten().map(|chunk| chunk.id).collect();
        let gone: Vec<Chunk> = state.chunks.extract_if(|id, _| !kept.contains(id)).map(|(_, chunk)| chunk).collect();
        drop(state);
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chunk {
    /// How long it is there still.
    pub(crate) fn rest(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// At most so many of its bytes from `offset` on. Waits for the disk.
    pub(crate) fn read(&self, offset: u32, bytes_max: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes.saturating_sub(offset).min(bytes_max) as usize];
        let position = self.offset + u64::from(offset);
        match self.file.pool.session("a chunk", Class::Chunk, 1) {
            Ok(session) => self.file.read_by_blocks(&session, position, &mut bytes)?,
            // All room is claimed: past the pool, then.
            Err(_) => self.file.file.read_exact_at(&mut bytes, position)?,
        }
        Ok(bytes)
    }
}

impl Stored {
    /// A file for a table of this name.
    fn create(chunks: &Chunks, table: &str) -> io::Result<Stored> {
        let file = chunks.files.create()?;
        let pool = chunks.pools.of(&Named::Snapshot(table.to_owned())).clone();
        let (object, bytes) = (pool.object(), Arc::clone(&chunks.bytes));
        Ok(Stored { file, written: AtomicU64::new(0), pool, object, bytes })
    }

    /// Reads what is written to its end, which no chunk is before.
    fn read_by_blocks(&self, session: &Session, position: u64, into: &mut [u8]) -> io::Result<()> {
        let block_bytes = self.pool.block_bytes() as u64;
        let mut done = 0;
        while done < into.len() {
            let at = position + done as u64;
            let (number, start) = (at / block_bytes, (at % block_bytes) as usize);
            let key = Key { object: self.object, number };
            let block = session.load(key, || self.load(number * block_bytes)).map_err(Unread::into_io)?;
            let rest = block.get(start..).unwrap_or_default();
            let length = rest.len().min(into.len() - done);
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into[done..done + length].copy_from_slice(&rest[..length]);
            done += length;
        }
        Ok(())
    }

    /// A block of the file, from this byte on.
    fn load(&self, position: u64) -> Result<Vec<u8>, Unread> {
        let rest = self.written.load(Ordering::Relaxed).saturating_sub(position);
        let mut bytes = vec![0; rest.min(self.pool.block_bytes() as u64) as usize];
        self.file.read_exact_at(&mut bytes, position)?;
        Ok(bytes)
    }

    /// Adds bytes; where they stand. One at a time does.
    fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let count = bytes.len() as u64;
        if !self.bytes.take(count) {
            let text = format!("chunks have no room for {count} bytes more (shared_bytes_max)");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let offset = self.written.fetch_add(count, Ordering::Relaxed);
        self.file.write_all_at(bytes, offset).map(|()| offset)
    }
}

/// How a block does not come.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Pool(#[from] Error),
}

impl Unread {
    fn into_io(self) -> io::Error {
        match self {
            Unread::Io(error) => error,
            Unread::Pool(error) => io::Error::other(error),
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let written = *self.written.get_mut();
        for number in 0..written.div_ceil(self.pool.block_bytes() as u64) {
            self.pool.remove(Key { object: self.object, number });
        }
        self.bytes.give_back(written);
    }
}

/// A number of bytes with a limit, `shared_bytes_max`.
#[derive(Debug)]
struct Meter {
    used: AtomicU64,
    config: Live<Config>,
}

impl Meter {
    fn new(config: Live<Config>) -> Meter {
        Meter { used: AtomicU64::new(0), config }
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes; whether they were there.
    fn take(&self, bytes: u64) -> bool {
        let limit = self.config.now().shared_bytes_max;
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "chunks gave back {bytes} bytes of {before}");
    }
}

#[cfg(test)]
mod tests;
