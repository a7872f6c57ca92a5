//! The spool of an answer: a worker fills it, the client drains it, neither waits for the other.
//!
//! ```text
//! worker -> Writer::push -> [memory] -> [file] -> Reader::next -> client
//! ```
//!
//! Frames go to memory while nothing lies in the file and there is room, else to the file; the reader takes the memory first. So
//! the order holds, and when the client has caught up with the file, the file is dropped and memory is used again.
//!
//! - The reader goes (the client has gone, or is cut for not taking anything): everything is freed, the writer's next push fails.
//! - Unless the spool is *kept* ([`Writer::keep`]): then what was taken stays, the writer goes on, and another reader may begin where
//!   the client has got to ([`Writer::resume`]), until it is given up ([`Writer::give_up`]). That ends the reader before it.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::{Frame, Kind};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Budget, SpoolFile};

/// Bytes read from the file at a time.
const READ_BYTES: u64 = 64 * 1024;

/// An empty spool: its two ends.
pub(crate) fn spool(budget: Arc<Budget>, heartbeat: Duration) -> (Writer, Reader) {
    let seat = Seat::new(0);
    let shared = Shared {
        budget,
        heartbeat,
        state: Mutex::new(State { reader: Some(Arc::clone(&seat)), ..State::default() }),
        filled: Notify::new(),
        left: Notify::new(),
    };
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
    budget: Arc<Budget>,
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
    /// Pieces that are held in memory, and where each begins; the file follows the last.
    memory: VecDeque<(u64, Bytes)>,
    memory_bytes: u64,
    file: Option<Arc<SpoolFile>>,
    /// Where the file's first byte belongs, and how many bytes it has.
    file_start: u64,
    file_written: u64,
    /// A frame is on its way to the file: it may not be dropped.
    writing: bool,
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
    /// Adds a frame. Blocks where it goes to the file.
    pub(crate) fn push(&self, frame: &Frame) -> Result<(), PushError> {
        self.push_quietly(frame)?;
        self.shared.filled.notify_one();
        Ok(())
    }

    /// Adds a frame that need not go before the next one: the reader is not woken for it.
    pub(crate) fn push_quietly(&self, frame: &Frame) -> Result<(), PushError> {
        let bytes = frame.to_bytes();
        let length = bytes.len() as u64;
        let (file, offset) = {
            let mut state = self.shared.lock();
            if state.is_abandoned() {
                return Err(PushError::Left);
            }
            if state.file.is_none() && self.shared.take_memory(&state, length) {
                let start = state.pushed;
                state.memory.push_back((start, bytes.into()));
                state.memory_bytes += length;
                self.shared.pushed(state, length);
                return Ok(());
            }
            state.writing = true;
            (state.file.clone(), state.file_written)
        };
        // Written outside the lock: there is one writer, and the reader stays below `pushed`.
        let written = self.write_file(file, offset, &bytes);
        let mut state = self.shared.lock();
        state.writing = false;
        if written.is_err() && state.kept.is_some() {
            // There is no room for what was taken already: that goes first.
            self.shared.unkeep(state);
            return self.push_quietly(frame);
        }
        let file = written?;
        if state.is_abandoned() {
            self.shared.budget.files.give_back(length);
            return Err(PushError::Left);
        }
        if state.file.is_none() {
            state.file_start = state.pushed;
        }
        state.file = Some(file);
        state.file_written += length;
        self.shared.pushed(state, length);
        Ok(())
    }

    fn write_file(&self, file: Option<Arc<SpoolFile>>, offset: u64, bytes: &[u8]) -> io::Result<Arc<SpoolFile>> {
        let budget = &self.shared.budget;
        budget.take_file_room(bytes.len() as u64)?;
        let written = file.map_or_else(|| budget.create_file().map(Arc::new), Ok).and_then(|file| {
            file.write_all_at(bytes, offset)?;
            Ok(file)
        });
        written.inspect_err(|_| budget.files.give_back(bytes.len() as u64))
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
        self.shared.unkeep(self.shared.lock());
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

    /// Bytes held, in memory and in the file.
    pub(crate) fn held(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.memory_bytes, state.file_written)
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
                Front::File(file, offset, length) => return self.read_file(file, offset, length).await.map(Some),
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

    async fn read_file(&self, file: Arc<SpoolFile>, offset: u64, length: u64) -> io::Result<Bytes> {
        let reading = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
        });
        let bytes = match reading.await.map_err(io::Error::other).flatten() {
            Ok(bytes) => bytes,
            Err(error) => {
                // Nobody can resume it: whoever asks begins again.
                self.shared.unkeep(self.shared.lock());
                return Err(error);
            }
        };
        let mut state = self.shared.lock();
        if self.seat.left.get().is_some() {
            return Err(cut());
        }
        state.take(&self.seat, length);
        self.shared.drop_taken(state);
        Ok(bytes)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.leave(&self.seat, Left::Gone);
    }
}

enum Front {
    Bytes(Bytes),
    File(Arc<SpoolFile>, u64, u64),
    Nothing,
    End,
}

impl State {
    fn is_abandoned(&self) -> bool {
        self.reader.is_none() && self.kept.is_none()
    }

    fn take(&mut self, seat: &Seat, bytes: u64) {
        self.taken += bytes;
        seat.taken.store(self.taken, Ordering::Relaxed);
    }

    /// What the memory has at the reader's place.
    fn in_memory(&self) -> Option<Bytes> {
        let after = self.memory.partition_point(|(start, _)| *start <= self.taken);
        let (start, bytes) = self.memory.get(after.checked_sub(1)?)?;
        let skipped = (self.taken - start) as usize;
        (skipped < bytes.len()).then(|| bytes.slice(skipped..))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_memory(&self, state: &State, length: u64) -> bool {
        state.memory_bytes + length <= self.budget.spool_memory_bytes && self.budget.memory.take(length)
    }

    fn pushed(&self, mut state: MutexGuard<'_, State>, length: u64) {
        state.pushed += length;
        if state.kept.is_some_and(|(start, bytes_max)| state.pushed - start > bytes_max) {
            self.unkeep(state);
        }
    }

    fn unkeep(&self, mut state: MutexGuard<'_, State>) {
        state.kept = None;
        if state.reader.is_none() {
            self.free(state);
        } else {
            self.drop_taken(state);
        }
    }

    fn front(&self, seat: &Seat) -> io::Result<Front> {
        let mut state = self.lock();
        if seat.left.get() == Some(&Left::Cut) {
            return Err(cut());
        }
        if let Some(bytes) = state.in_memory() {
            state.take(seat, bytes.len() as u64);
            self.drop_taken(state);
            return Ok(Front::Bytes(bytes));
        }
        let length = state.pushed.saturating_sub(state.taken).min(READ_BYTES);
        Ok(match &state.file {
            Some(file) if length > 0 => Front::File(Arc::clone(file), state.taken - state.file_start, length),
            _ => match state.last.clone() {
                Some(last) if state.taken == state.pushed => {
                    state.take(seat, last.len() as u64);
                    Front::Bytes(last)
                }
                Some(_) => Front::End,
                None => Front::Nothing,
            },
        })
    }

    /// Frees what the reader has taken, unless it is kept.
    fn drop_taken(&self, mut state: MutexGuard<'_, State>) {
        let until = state.kept.map_or(state.taken, |(start, _)| start.min(state.taken));
        while let Some((start, bytes)) = state.memory.front()
            && start + bytes.len() as u64 <= until
        {
            let length = bytes.len() as u64;
            state.memory.pop_front();
            state.memory_bytes -= length;
            self.budget.memory.give_back(length);
        }
        if state.file.is_some() && until >= state.pushed && !state.writing {
            let whole = std::mem::take(&mut state.file_written);
            let file = state.file.take();
            drop(state);
            self.budget.files.give_back(whole);
            // Freeing a large file's blocks takes its time.
            tokio::task::spawn_blocking(move || drop(file));
        }
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
        if state.is_abandoned() {
            self.free(state);
        }
        self.left.notify_waiters();
        self.filled.notify_one();
    }

    fn free(&self, mut state: MutexGuard<'_, State>) {
        let memory = std::mem::take(&mut state.memory);
        let file = state.file.take();
        self.budget.memory.give_back(std::mem::take(&mut state.memory_bytes));
        self.budget.files.give_back(std::mem::take(&mut state.file_written));
        drop(state);
        drop((memory, file));
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer was cut")
}

#[cfg(test)]
mod tests;
