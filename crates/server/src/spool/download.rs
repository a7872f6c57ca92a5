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

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::{Frame, Kind};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Budget;

/// Bytes read from the file at a time.
const READ_BYTES: u64 = 64 * 1024;

/// An empty spool: its two ends.
pub(crate) fn spool(budget: Arc<Budget>, heartbeat: Duration) -> (Writer, Reader) {
    let state = State { progress_at: Some(Instant::now()), ..State::default() };
    let shared = Shared { budget, state: Mutex::new(state), filled: Notify::new(), left: Notify::new() };
    let shared = Arc::new(shared);
    (Writer { shared: Arc::clone(&shared) }, Reader { shared, heartbeat })
}

/// Where a worker puts frames. Clones fill the same spool, one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
}

/// Where the answer's body takes bytes.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    heartbeat: Duration,
}

#[derive(Debug)]
struct Shared {
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Told when there is more to read, or never will be.
    filled: Notify,
    /// Told when the reader has gone or read everything.
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    memory: VecDeque<Bytes>,
    memory_bytes: u64,
    file: Option<Arc<File>>,
    /// Bytes of the file that were read and that were written.
    file_read: u64,
    file_written: u64,
    /// A frame is on its way to the file: it may not be dropped.
    writing: bool,
    /// Bytes pushed and bytes taken, heartbeats aside.
    pushed: u64,
    taken: u64,
    /// What comes after everything else, once it is known that nothing follows.
    last: Option<Bytes>,
    ended: bool,
    left: Option<Left>,
    /// When the client last took something; `None` while the client waits for the server.
    progress_at: Option<Instant>,
}

/// How the reader left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It has read everything.
    Whole,
    /// It went before the end: the connection broke.
    Gone,
    /// It was cut: it took nothing for too long, or the server stops.
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
        let bytes = frame.to_bytes();
        let length = bytes.len() as u64;
        let (file, offset) = {
            let mut state = self.shared.lock();
            if state.left.is_some() {
                return Err(PushError::Left);
            }
            if state.file.is_none() && self.shared.take_memory(&state, length) {
                state.memory.push_back(bytes.into());
                state.memory_bytes += length;
                state.pushed += length;
                self.shared.filled.notify_one();
                return Ok(());
            }
            state.writing = true;
            (state.file.clone(), state.file_written)
        };
        // Written outside the lock: there is one writer, and the reader stays below `file_written`.
        let written = self.write_file(file, offset, &bytes);
        let mut state = self.shared.lock();
        state.writing = false;
        let file = written?;
        if state.left.is_some() {
            self.shared.budget.files.give_back(length);
            return Err(PushError::Left);
        }
        state.file = Some(file);
        state.file_written += length;
        state.pushed += length;
        self.shared.filled.notify_one();
        Ok(())
    }

    fn write_file(&self, file: Option<Arc<File>>, offset: u64, bytes: &[u8]) -> io::Result<Arc<File>> {
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
        if !state.ended {
            state.ended = true;
            state.last = Some(frame.to_bytes().into());
        }
        self.shared.filled.notify_one();
    }

    /// How the reader left, if it has.
    pub(crate) fn left(&self) -> Option<Left> {
        self.shared.lock().left
    }

    /// Bytes that the client has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.shared.lock().taken
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
            let since = self.shared.lock().progress_at;
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

    /// Frees everything and makes the reader fail.
    pub(crate) fn cut(&self) {
        self.shared.leave(Left::Cut);
    }
}

impl Reader {
    /// The next bytes; a HEARTBEAT frame where none come in time; `None` after the last.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        self.shared.lock().progress_at = None;
        let next = self.take().await;
        let mut state = self.shared.lock();
        state.progress_at = Some(Instant::now());
        drop(state);
        if let Ok(None) = next {
            self.shared.leave(Left::Whole);
        }
        next
    }

    async fn take(&self) -> io::Result<Option<Bytes>> {
        loop {
            let filled = self.shared.filled.notified();
            match self.shared.front()? {
                Front::Bytes(bytes) => return Ok(Some(bytes)),
                Front::File(file, offset, length) => return self.read_file(file, offset, length).await.map(Some),
                Front::End => return Ok(None),
                // Everything pushed so far was whole frames and has been taken, so a frame may stand here.
                Front::Nothing => {
                    if tokio::time::timeout(self.heartbeat, filled).await.is_err() {
                        return Ok(Some(Frame::new(Kind::Heartbeat, Vec::new()).to_bytes().into()));
                    }
                }
            }
        }
    }

    async fn read_file(&self, file: Arc<File>, offset: u64, length: u64) -> io::Result<Bytes> {
        let reading = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
        });
        let bytes = reading.await.map_err(io::Error::other)??;
        let mut state = self.shared.lock();
        if state.left.is_some() {
            return Err(cut());
        }
        state.file_read += length;
        state.taken += length;
        if state.file_read == state.file_written && !state.writing {
            let whole = std::mem::take(&mut state.file_written);
            state.file_read = 0;
            let file = state.file.take();
            drop(state);
            self.shared.budget.files.give_back(whole);
            // Freeing a large file's blocks takes its time.
            tokio::task::spawn_blocking(move || drop(file));
        }
        Ok(bytes)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.leave(Left::Gone);
    }
}

enum Front {
    Bytes(Bytes),
    File(Arc<File>, u64, u64),
    Nothing,
    End,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_memory(&self, state: &State, length: u64) -> bool {
        state.memory_bytes + length <= self.budget.spool_memory_bytes && self.budget.memory.take(length)
    }

    fn front(&self) -> io::Result<Front> {
        let mut state = self.lock();
        if state.left == Some(Left::Cut) {
            return Err(cut());
        }
        if let Some(bytes) = state.memory.pop_front() {
            let length = bytes.len() as u64;
            state.memory_bytes -= length;
            state.taken += length;
            self.budget.memory.give_back(length);
            return Ok(Front::Bytes(bytes));
        }
        let length = (state.file_written - state.file_read).min(READ_BYTES);
        Ok(match &state.file {
            Some(file) if length > 0 => Front::File(Arc::clone(file), state.file_read, length),
            _ if state.ended => match state.last.take() {
                Some(bytes) => {
                    state.taken += bytes.len() as u64;
                    Front::Bytes(bytes)
                }
                None => Front::End,
            },
            _ => Front::Nothing,
        })
    }

    /// The first way of leaving counts; whatever it was, nothing is held afterwards.
    fn leave(&self, how: Left) {
        let mut state = self.lock();
        if state.left.is_some() {
            return;
        }
        state.left = Some(how);
        let memory = std::mem::take(&mut state.memory);
        let file = state.file.take();
        self.budget.memory.give_back(std::mem::take(&mut state.memory_bytes));
        self.budget.files.give_back(std::mem::take(&mut state.file_written));
        state.file_read = 0;
        drop(state);
        drop((memory, file));
        self.left.notify_waiters();
        self.filled.notify_one();
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer was cut")
}

#[cfg(test)]
mod tests;
