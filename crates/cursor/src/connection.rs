//! Several cursors over one socket, and no thread: whoever waits for rows reads the socket, for all who wait.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use headwater_protocol::ROW_BYTES_MAX;
use headwater_protocol::cursor::{Batch, Client, Column, Event, Question, Welcome};
use rustls::ClientConnection;

use crate::cursor::Cursor;
use crate::line::{Line, decrypt, send};
use crate::{Error, Server};

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// The most bytes of a message: those of a row and of a full message before it.
const FRAME_BYTES_MAX: usize = ROW_BYTES_MAX + (2 << 20);

/// What a cursor may take here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of rows that come before they are asked for; and one message.
    pub window_bytes: u64,
    /// Bytes of rows that are kept for going back, beside the message that is being read.
    pub kept_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { window_bytes: 1 << 20, kept_bytes: 0 }
    }
}

/// A connection on which cursors are opened. Clones are the same one; it ends with the last of them and of its cursors.
#[derive(Clone)]
pub struct Connection(Arc<Shared>);

pub(crate) struct Shared {
    server: String,
    socket: Arc<TcpStream>,
    state: Mutex<State>,
    told: Condvar,
}

struct State {
    client: Client,
    tls: Option<Box<ClientConnection>>,
    welcome: Option<Welcome>,
    queues: BTreeMap<u64, Queue>,
    /// Somebody reads the socket.
    is_reading: bool,
    buffer: Vec<u8>,
    /// Why nothing comes any more.
    over: Option<Error>,
}

/// What has come of a cursor and was not taken yet: bounded by its credit.
#[derive(Default)]
struct Queue {
    columns: Option<Arc<[Column]>>,
    batches: VecDeque<Batch>,
    ended: Option<Result<(), Error>>,
}

/// What comes next of a cursor.
pub(crate) enum Next {
    Columns(Arc<[Column]>),
    Batch(Batch),
    End,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.0.server).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to a server. Whoever is not let in is told so here.
    pub fn open(server: &Server) -> Result<Connection, Error> {
        let Line { socket, tls, rest } = Line::open(server)?;
        let mut state = State {
            client: Client::new(FRAME_BYTES_MAX),
            tls,
            welcome: None,
            queues: BTreeMap::new(),
            is_reading: false,
            buffer: vec![0; READ_BYTES],
            over: None,
        };
        state.client.push(&rest);
        state.dispatch();
        let shared = Shared { server: server.url.clone(), socket, state: Mutex::new(state), told: Condvar::new() };
        Ok(Connection(Arc::new(shared)))
    }

    /// How many cursors may be open on it at a time.
    pub fn cursors_max(&self) -> Result<u64, Error> {
        self.0.wait(|state| state.welcome).map(|welcome| welcome.cursors_max)
    }

    /// Opens a cursor of a named query, with its arguments.
    pub fn query(&self, name: &str, arguments: &[(&str, &str)]) -> Result<Cursor, Error> {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.open_cursor(Question::Named(name.to_owned(), arguments.collect()), Options::default())
    }

    /// Opens a cursor of SQL, where the server runs the client's; `values` stand for each `?`.
    pub fn sql(&self, sql: &str, values: &[&str]) -> Result<Cursor, Error> {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        self.open_cursor(Question::Sql(sql.to_owned(), values), Options::default())
    }

    /// Opens a cursor. The server is not waited for: what is wrong with the question is told by the cursor.
    pub fn open_cursor(&self, question: Question, options: Options) -> Result<Cursor, Error> {
        let mut state = self.0.lock();
        if let Some(over) = &state.over {
            return Err(over.clone());
        }
        let cursor = state.client.open(question, options.window_bytes).map_err(Error::Question)?;
        state.queues.insert(cursor, Queue::default());
        self.0.send(&mut state)?;
        drop(state);
        Ok(Cursor::new(Arc::clone(&self.0), cursor, options))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn network(&self, error: io::Error) -> Error {
        Error::Network { server: self.server.clone(), source: Arc::new(error) }
    }

    /// Sends what there is to be said.
    fn send(&self, state: &mut State) -> Result<(), Error> {
        let out = state.client.take_out();
        if out.is_empty() {
            return Ok(());
        }
        send(state.tls.as_deref_mut(), &self.socket, &out).map_err(|error| self.network(error))
    }

    /// Waits until this gives something.
    fn wait<T>(&self, mut take: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        let mut state = self.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                return Ok(taken);
            }
            if let Some(over) = &state.over {
                return Err(over.clone());
            }
            if state.is_reading {
                state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_reading = true;
            let mut buffer = std::mem::take(&mut state.buffer);
            drop(state);
            let read = read(&self.socket, &mut buffer);
            state = self.lock();
            state.is_reading = false;
            state.came(&self.socket, read.map(|count| &buffer[..count])).unwrap_or_else(|error| {
                let error = self.network(error);
                state.over.get_or_insert(error);
            });
            state.buffer = buffer;
            self.told.notify_all();
        }
    }

    /// What comes next of a cursor.
    pub(crate) fn next(&self, cursor: u64) -> Result<Next, Error> {
        self.wait(|state| {
            let queue = state.queues.get_mut(&cursor)?;
            if let Some(columns) = queue.columns.take() {
                return Some(Ok(Next::Columns(columns)));
            }
            if let Some(batch) = queue.batches.pop_front() {
                return Some(Ok(Next::Batch(batch)));
            }
            queue.ended.clone().map(|ended| ended.map(|()| Next::End))
        })?
    }

    /// Rows of so many bytes are consumed. Where that can't be said any more, what has come is read all the same, and tells why.
    pub(crate) fn consumed(&self, cursor: u64, bytes: usize) {
        let mut state = self.lock();
        state.client.consumed(cursor, bytes);
        let _ = self.send(&mut state);
    }

    /// No more of a cursor is wanted. Where that can't be said any more, nobody sends any more.
    pub(crate) fn close(&self, cursor: u64) {
        let mut state = self.lock();
        state.queues.remove(&cursor);
        state.client.cancel(cursor);
        let _ = self.send(&mut state);
    }
}

fn read(mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has ended the connection")),
            read => return read,
        }
    }
}

impl State {
    /// Takes what the socket gave.
    fn came(&mut self, socket: &TcpStream, read: io::Result<&[u8]>) -> io::Result<()> {
        let bytes = read?;
        match &mut self.tls {
            Some(tls) => {
                let client = &mut self.client;
                decrypt(tls, bytes, socket, |plain| client.push(plain))?;
            }
            None => self.client.push(bytes),
        }
        self.dispatch();
        Ok(())
    }

    /// Hands on all that has come.
    fn dispatch(&mut self) {
        loop {
            let event = match self.client.poll() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(misled) => {
                    self.over.get_or_insert(misled.into());
                    return;
                }
            };
            let ended = |result| move |queue: &mut Queue| queue.ended = Some(result);
            match event {
                Event::Welcome(welcome) => self.welcome = Some(welcome),
                Event::Columns(cursor, columns) => self.of(cursor, |queue| queue.columns = Some(columns)),
                Event::Rows(cursor, batch) => self.of(cursor, |queue| queue.batches.push_back(batch)),
                Event::End(cursor, _) => self.of(cursor, ended(Ok(()))),
                Event::Failed(failed) => self.of(failed.cursor, ended(Err(failed.into()))),
                Event::Over(failed) => {
                    self.over.get_or_insert(failed.into());
                }
            }
        }
    }

    /// Nobody waits for what comes of a cursor that was closed.
    fn of(&mut self, cursor: u64, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self.queues.get_mut(&cursor) {
            change(queue);
        }
    }
}
