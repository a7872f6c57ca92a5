//! The spool of an answer: a worker fills it, the client drains it, neither waits for the other.
//!
//! ```text
//! worker -> Writer::push -> [the pool's memory, its overflow file] -> Reader::next -> client
//! ```
//!
//! - The reader goes (the client has gone, or is cut for not taking anything): everything is freed, the writer's next push fails.
//! - Unless the spool is *kept* ([`Writer::keep`]): then what was taken stays, the writer goes on, and another
//!   reader may begin where the client has got to ([`Writer::resume`]), until it is given up ([`Writer::give_up`]). That ends the reader
//!   before it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use headwater_bufferpool::Spool;
use headwater_protocol::{Frame, Kind};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Spools, of_disk};

/// Bytes read at a time.
const READ_BYTES: u64 = 64 * 1024;
/// Freeing more takes its time.
const FREED_AT_ONCE: u64 = 4 << 20;

/// An empty spool: its two ends.
pub(crate) fn spool(spools: &Spools, heartbeat: Duration) -> (Writer, Reader) {
    let seat = Seat::new(0);
    let state = Mutex::new(State { reader: Some(Arc::clone(&seat)), ..State::default() });
    let shared = Shared { spools: spools.clone(), heartbeat, state, filled: Notify::new(), left: Notify::new() };
    let shared = Arc::new(shared);
    (Writer { shared: Arc::clone(&shared), seat: Arc::clone(&seat) }, Reader { shared, seat })
}

/// Where a worker puts frames, and who watches a reader. Clones fill the same spool, one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// The reader that is watched.
    seat: Arc<Seat>,
}

/// Where an answer's body takes bytes.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    seat: Arc<Seat>,
}

#[derive(Debug)]
struct Shared {
    spools: Spools,
    heartbeat: Duration,
    state: Mutex<State>,
    /// Told when there is more to read, or never will be.
    filled: Notify,
    /// Told when a reader has gone or read everything.
    left: Notify,
}

/// One reader, as both ends see it.
#[derive(Debug)]
struct Seat {
    /// Bytes that it has taken.
    taken: AtomicU64,
    left: OnceLock<Left>,
    /// When it last took something; `None` while it waits for the server.
    progress_at: Mutex<Option<Instant>>,
}

impl Seat {
    fn new(taken: u64) -> Arc<Seat> {
        let progress_at = Mutex::new(Some(Instant::now()));
        Arc::new(Seat { taken: AtomicU64::new(taken), left: OnceLock::new(), progress_at })
    }

    fn set_progress(&self, at: Option<Instant>) {
        *self.progress_at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// Positions are counted from the answer's first byte, heartbeats aside.
#[derive(Debug, Default)]
struct State {
    /// Made with the first frame: a client that waits for a worker costs none.
    spool: Option<Arc<Spool>>,
    /// Nobody wants what is or would be there.
    is_freed: bool,
    /// Where the next frame goes, and how far the reader is.
    pushed: u64,
    taken: u64,
    /// What comes after everything else, once it is known that nothing follows.
    last: Option<Bytes>,
    /// Who reads; `None`: nobody, and nobody will unless the spool is kept.
    reader: Option<Arc<Seat>>,
    /// Where what is kept begins, if it is, and the most bytes that it may have.
    kept: Option<(u64, u64)>,
}

/// How a reader left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It has read everything.
    Whole,
    /// It went before the end: the connection broke.
    Gone,
    /// It was cut: it took nothing for too long, another came in its place, or the server stops.
    Cut,
}

/// Why a frame could not be spooled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    /// The reader has gone: nobody wants the frame.
    #[error("the client has gone")]
    Left,
    /// The file could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Writer {
    /// Adds a frame. Blocks where something goes to the file for it.
    pub(crate) fn push(&self, frame: &Frame) -> Result<(), PushError> {
        self.push_quietly(frame)?;
        self.shared.filled.notify_one();
        Ok(())
    }

    /// Adds a frame that need not go before the next one: the reader is not woken for it.
    pub(crate) fn push_quietly(&self, frame: &Frame) -> Result<(), PushError> {
        let spool = self.shared.spool().ok_or(PushError::Left)?;
        let bytes = frame.to_bytes();
        // Outside the lock: there is one writer, and the reader stays below `pushed`.
        let start = spool.end();
        let spare = self.shared.spools.spare();
        if let Err(error) = spare.append(&spool, &bytes) {
            let state = self.shared.lock();
            if state.kept.is_none() {
                return Err(of_disk(&error).into());
            }
            // There is no room for what was taken already: that goes first.
            unkeep(state);
            spare.append(&spool, &bytes[(spool.end() - start) as usize..]).map_err(|error| of_disk(&error))?;
        }
        let mut state = self.shared.lock();
        if state.is_freed {
            return Err(PushError::Left);
        }
        state.pushed += bytes.len() as u64;
        if state.kept.is_some_and(|(start, bytes_max)| state.pushed - start > bytes_max) {
            unkeep(state);
        }
        Ok(())
    }

    /// Says that nothing follows this frame. It is small (END or ERROR), needs no room and does not block, so that an error can be told
    /// when the disk is full.
    pub(crate) fn end_with(&self, frame: &Frame) {
        let mut state = self.shared.lock();
        state.last.get_or_insert_with(|| frame.to_bytes().into());
        self.shared.filled.notify_one();
    }

    /// From here on everything is kept for readers to come, unless it gets more than this many bytes.
    pub(crate) fn keep(&self, bytes_max: u64) {
        let mut state = self.shared.lock();
        if state.reader.is_some() {
            state.kept = Some((state.pushed, bytes_max));
        }
    }

    /// Nobody is going to resume it. What no reader waits for is freed.
    pub(crate) fn give_up(&self) {
        unkeep(self.shared.lock());
    }

    /// Another reader, from this offset in what is kept, in the place of the one before. `None`: that is not kept, or not yet there.
    pub(crate) fn resume(&self, offset: u64) -> Option<(Writer, Reader)> {
        let mut state = self.shared.lock();
        let position = state.kept?.0.checked_add(offset)?;
        if position > state.pushed {
            return None;
        }
        let seat = Seat::new(position);
        if let Some(before) = state.reader.replace(Arc::clone(&seat)) {
            let _ = before.left.set(Left::Cut);
        }
        state.taken = position;
        drop(state);
        self.shared.left.notify_waiters();
        self.shared.filled.notify_one();
        let (shared, again) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        Some((Writer { shared, seat: Arc::clone(&seat) }, Reader { shared: again, seat }))
    }

    /// Whether it is the same spool that another writer fills.
    pub(crate) fn is_same(&self, other: &Writer) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether nobody reads, nor will.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.lock().is_abandoned()
    }

    /// Whether nobody reads now.
    pub(crate) fn has_no_reader(&self) -> bool {
        self.shared.lock().reader.is_none()
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> u64 {
        self.shared.lock().spool.as_ref().map_or(0, |spool| spool.end() - spool.start())
    }

    /// How the reader left, if it has.
    pub(crate) fn left(&self) -> Option<Left> {
        self.seat.left.get().copied()
    }

    /// How far the reader has got.
    pub(crate) fn taken(&self) -> u64 {
        self.seat.taken.load(Ordering::Relaxed)
    }

    /// Waits until the reader has left.
    pub(crate) async fn reader_left(&self) -> Left {
        loop {
            let told = self.shared.left.notified();
            if let Some(left) = self.left() {
                return left;
            }
            told.await;
        }
    }

    /// Waits until the reader has left, and makes it when it takes nothing for as long as `idle` although there is something.
    pub(crate) async fn watch(&self, idle: Duration) -> Left {
        loop {
            let since = *self.seat.progress_at.lock().unwrap_or_else(PoisonError::into_inner);
            let rest = since.map_or(idle, |since| idle.saturating_sub(since.elapsed()));
            if rest.is_zero() {
                self.cut();
            }
            match tokio::time::timeout(rest, self.reader_left()).await {
                Ok(left) => return left,
                Err(_elapsed) => {}
            }
        }
    }

    /// Makes the reader fail; frees everything unless it is kept.
    pub(crate) fn cut(&self) {
        self.shared.leave(&self.seat, Left::Cut);
    }
}

impl Reader {
    /// The next bytes; a HEARTBEAT frame where none come in time; `None` after the last.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        self.seat.set_progress(None);
        let next = self.take().await;
        self.seat.set_progress(Some(Instant::now()));
        if let Ok(None) = next {
            self.shared.leave(&self.seat, Left::Whole);
        }
        next
    }

    async fn take(&self) -> io::Result<Option<Bytes>> {
        loop {
            let filled = self.shared.filled.notified();
            match self.shared.front(&self.seat)? {
                Front::Bytes(bytes) => return Ok(Some(bytes)),
                Front::File(spool, position, length) => return self.read_file(spool, position, length).await.map(Some),
                Front::End => return Ok(None),
                // Everything pushed so far was whole frames and has been taken, so a frame may stand here.
                Front::Nothing => {
                    if tokio::time::timeout(self.shared.heartbeat, filled).await.is_err() {
                        return Ok(Some(Frame::new(Kind::Heartbeat, Vec::new()).to_bytes().into()));
                    }
                }
            }
        }
    }

    async fn read_file(&self, spool: Arc<Spool>, position: u64, length: u64) -> io::Result<Bytes> {
        let (shared, seat) = (Arc::clone(&self.shared), Arc::clone(&self.seat));
        let reading = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; length as usize];
            let read = spool.read(position, &mut bytes).map_err(|error| of_disk(&error));
            let mut state = shared.lock();
            match read {
                Ok(read) if seat.left.get().is_none() => {
                    bytes.truncate(read);
                    state.take(&seat, read as u64);
                    state.free_taken();
                    Ok(Bytes::from(bytes))
                }
                Ok(_) => Err(cut()),
                Err(error) => {
                    // Nobody can resume it: whoever asks begins again.
                    unkeep(state);
                    Err(error)
                }
            }
        });
        reading.await.map_err(io::Error::other).flatten()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.leave(&self.seat, Left::Gone);
    }
}

enum Front {
    Bytes(Bytes),
    File(Arc<Spool>, u64, u64),
    Nothing,
    End,
}

impl State {
    fn is_abandoned(&self) -> bool {
        self.is_freed
    }

    fn take(&mut self, seat: &Seat, bytes: u64) {
        self.taken += bytes;
        seat.taken.store(self.taken, Ordering::Relaxed);
    }

    /// Frees what the reader has taken, unless it is kept.
    fn free_taken(&self) {
        let Some(spool) = &self.spool else { return };
        spool.forget(self.kept.map_or(self.taken, |(start, _)| start.min(self.taken)));
    }

    /// Bytes at the reader's place that are in memory; `None`: they lie in the file.
    fn in_memory(&self, spool: &Spool, length: u64) -> io::Result<Option<Bytes>> {
        let mut bytes = vec![0; length as usize];
        let read = spool.try_read(self.taken, &mut bytes).map_err(|error| of_disk(&error))?;
        Ok(read.map(|read| {
            bytes.truncate(read);
            Bytes::from(bytes)
        }))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where frames go; `None`: nobody wants them.
    fn spool(&self) -> Option<Arc<Spool>> {
        let mut state = self.lock();
        let made = || Arc::new(self.spools.download());
        (!state.is_freed).then(|| Arc::clone(state.spool.get_or_insert_with(made)))
    }

    fn front(&self, seat: &Seat) -> io::Result<Front> {
        let mut state = self.lock();
        if seat.left.get() == Some(&Left::Cut) {
            return Err(cut());
        }
        let length = state.pushed.saturating_sub(state.taken).min(READ_BYTES);
        if let Some(spool) = state.spool.clone().filter(|_| length > 0) {
            return match state.in_memory(&spool, length) {
                Ok(Some(bytes)) => {
                    state.take(seat, bytes.len() as u64);
                    state.free_taken();
                    Ok(Front::Bytes(bytes))
                }
                Ok(None) => Ok(Front::File(spool, state.taken, length)),
                Err(error) => {
                    unkeep(state);
                    Err(error)
                }
            };
        }
        Ok(match state.last.clone() {
            Some(last) if state.taken == state.pushed => {
                state.take(seat, last.len() as u64);
                Front::Bytes(last)
            }
            Some(_) => Front::End,
            None => Front::Nothing,
        })
    }

    /// The first way of leaving counts. Whatever it was, nothing is held afterwards, unless it is kept.
    fn leave(&self, seat: &Arc<Seat>, how: Left) {
        let mut state = self.lock();
        if seat.left.set(how).is_err() {
            return;
        }
        if state.reader.as_ref().is_some_and(|reader| Arc::ptr_eq(reader, seat)) {
            state.reader = None;
        }
        if state.reader.is_none() && state.kept.is_none() {
            free(state);
        }
        self.left.notify_waiters();
        self.filled.notify_one();
    }
}

/// What was taken is of no more use.
fn unkeep(mut state: MutexGuard<'_, State>) {
    state.kept = None;
    if state.reader.is_none() {
        free(state);
    } else {
        state.free_taken();
    }
}

/// Frees everything; a large spool elsewhere.
fn free(mut state: MutexGuard<'_, State>) {
    state.is_freed = true;
    let Some(spool) = state.spool.take() else { return };
    drop(state);
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if spool.end() - spool.start() > FREED_AT_ONCE => drop(runtime.spawn_blocking(move || drop(spool))),
        _ => drop(spool),
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer was cut")
}

#[cfg(test)]
mod tests;
