//! One cursor: a thread reads rows and packs them, the connection's task takes messages.
//!
//! ```text
//! row -> [the message that fills] -> [messages that wait: 4, and 256 KiB] -> connection
//! ```
//!
//! The packer says when a message goes. One that has begun and gets no further row goes after its `idle_wait`: the task sees to that, since the
//! thread waits for the database then. Where messages wait in vain the thread waits too, and the database with it; no more is in memory,
//! however slow the client is.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headwater_consolidated::results::{ResultColumn, ResultSink};
use headwater_consolidated::{Error, Pooled, QueryConnection};
use headwater_protocol::cursor::{COLUMNS_MAX, Column, NAME_BYTES_MAX};
use headwater_protocol::packer::{Knobs, Packer};
use headwater_protocol::row::RowWriter;
use headwater_protocol::{ROW_BYTES_MAX, Type, ValueRef};
use tokio::sync::Notify;

use super::question::Statement;
use crate::fault::Fault;
use crate::pace::{Pace, Taken};
use crate::run::{Cancel, read};

/// How many messages of a cursor wait to be taken.
const MESSAGES_MAX: usize = 4;
/// And how many bytes of them; one that has more waits alone.
const BYTES_MAX: usize = 256 << 10;
/// How long the thread waits for room before it looks again whether to wait any longer.
const LOOK: Duration = Duration::from_millis(250);

/// Rows that go together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) rows: u64,
    pub(super) bytes: Vec<u8>,
}

/// What comes next of a cursor.
#[derive(Debug)]
pub(super) enum Next {
    Columns(Vec<Column>),
    Message(Message),
    /// Nothing comes after it.
    End(u64),
    Failed(Fault),
    /// Nothing yet; what has begun goes by itself at this time.
    Nothing(Option<Instant>),
}

/// A cursor as its thread and its connection's task see it.
pub(super) struct Reading {
    state: Mutex<State>,
    has_room: Condvar,
    /// Told when there is something to take: one for all cursors of a connection.
    told: Arc<Notify>,
    /// What the client has taken.
    pub(super) taken: Taken,
}

struct State {
    columns: Option<Vec<Column>>,
    messages: VecDeque<Message>,
    bytes: usize,
    filling: Message,
    /// When the message that fills had its first row.
    since: Option<Instant>,
    packer: Packer,
    /// The task looks at the message that fills at this time at the latest, though it may not have begun yet: it need not be told of its first row.
    watch: Option<Instant>,
    is_watched: bool,
    ended: Option<Result<u64, Fault>>,
    is_gone: bool,
    cancel: Option<Arc<Cancel>>,
}

impl State {
    fn has_room(&self) -> bool {
        self.messages.is_empty() || (self.messages.len() < MESSAGES_MAX && self.bytes < BYTES_MAX)
    }

    /// Has what fills wait to be taken.
    fn put(&mut self) {
        let room = self.packer.room();
        let message = std::mem::take(&mut self.filling);
        self.filling.bytes.reserve_exact(room.min(2 * message.bytes.len()));
        self.bytes += message.bytes.len();
        self.since = None;
        self.messages.push_back(message);
    }
}

impl Reading {
    /// Of a client that takes so many bytes ahead.
    pub(super) fn new(knobs: &Knobs, window: u64, told: Arc<Notify>) -> Arc<Reading> {
        let state = State {
            columns: None,
            messages: VecDeque::new(),
            bytes: 0,
            filling: Message::default(),
            since: None,
            packer: Packer::new(knobs).for_window(window),
            watch: None,
            is_watched: false,
            ended: None,
            is_gone: false,
            cancel: None,
        };
        Arc::new(Reading { state: Mutex::new(state), has_room: Condvar::new(), told, taken: Taken::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how it has ended: what was packed before is taken first.
    pub(super) fn end(&self, how: Result<u64, Fault>) {
        let mut state = self.lock();
        if state.filling.rows > 0 {
            state.put();
        }
        state.ended.get_or_insert(how);
        drop(state);
        self.told.notify_one();
    }

    /// What comes next. `may_send`: a message may go.
    pub(super) fn next(&self, may_send: bool, now: Instant) -> Next {
        let mut state = self.lock();
        if let Some(columns) = state.columns.take() {
            return Next::Columns(columns);
        }
        if may_send && state.messages.is_empty() && state.goes_by_itself().is_some_and(|at| at <= now) {
            state.packer.sent();
            state.put();
        }
        if let Some(message) = state.messages.pop_front_if(|_| may_send) {
            state.bytes -= message.bytes.len();
            state.watch = Some(now + state.packer.idle_wait());
            self.has_room.notify_one();
            return Next::Message(message);
        }
        match &state.ended {
            // What has failed is told at once; rows that wait for credit would keep it from the client.
            Some(Err(fault)) if !may_send || state.messages.is_empty() => Next::Failed(fault.clone()),
            Some(Ok(rows)) if state.messages.is_empty() => Next::End(*rows),
            _ if !may_send => Next::Nothing(None),
            _ => {
                let at = state.goes_by_itself().or(state.watch.filter(|at| *at > now));
                state.is_watched = at.is_some();
                Next::Nothing(at)
            }
        }
    }

    /// Whether rows wait to be taken.
    pub(super) fn has_rows(&self) -> bool {
        let state = self.lock();
        !state.messages.is_empty() || state.filling.rows > 0
    }

    /// Nobody takes any more: the query is ended in the database.
    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        state.is_gone = true;
        (state.messages, state.bytes) = (VecDeque::new(), 0);
        let cancel = state.cancel.take();
        drop(state);
        self.has_room.notify_one();
        if let Some(cancel) = cancel {
            // It blocks until the query has ended.
            tokio::task::spawn_blocking(move || cancel.cancel());
        }
    }

    /// Runs the statement, on the thread that calls.
    pub(super) fn run(
        self: &Arc<Self>,
        connection: &mut Pooled<dyn QueryConnection>,
        statement: &Statement,
        pace: Pace,
    ) {
        let cancel = Arc::new(Cancel::new(connection.canceller()));
        {
            let mut state = self.lock();
            if state.is_gone {
                return;
            }
            state.cancel = Some(Arc::clone(&cancel));
        }
        let deadline = Instant::now() + statement.options.time_out;
        let mut packed =
            Packed { reading: self, statement, deadline, types: Vec::new(), rows: 0, bytes: 0, pace, fault: None };
        let done = read(connection, &statement.sql, &statement.parameters, &statement.options, &mut packed);
        let (rows, fault) = (packed.rows, packed.fault.take());
        let is_gone = self.lock().is_gone;
        // The database may hear of it later still, and would end what comes next; or it has not been told at all, and goes on sending rows.
        if cancel.end() || is_gone || fault.is_some() {
            connection.mark_broken();
        }
        let ended = match (done, fault) {
            (Ok(()), _) => Ok(rows),
            // Nobody is told.
            (Err(_), _) if is_gone => Err(Fault::cancelled()),
            (Err(_), Some(fault)) => Err(fault),
            (Err(_), None) if Instant::now() >= deadline => Err(Fault::timed_out(statement.options.time_out)),
            (Err(error), None) => Err(Fault::database(&statement.name, &error, statement.whose())),
        };
        if let Err(fault) = ended.as_ref()
            && !is_gone
        {
            let (query, message) = (&statement.name, &fault.message);
            tracing::info!(query, fault = fault.code, message, "a cursor did not come to its end");
        }
        self.end(ended);
    }
}

impl State {
    /// When the message that fills goes as it is; `None`: it has not begun.
    fn goes_by_itself(&self) -> Option<Instant> {
        self.since.map(|since| since + self.packer.idle_wait())
    }
}

/// Packs rows as they come.
struct Packed<'a> {
    reading: &'a Reading,
    statement: &'a Statement,
    deadline: Instant,
    types: Vec<Type>,
    rows: u64,
    bytes: u64,
    pace: Pace,
    fault: Option<Fault>,
}

/// Ends a reading; why, is known here.
fn stopped() -> Error {
    Error::Database { context: "running a query".to_owned(), detail: "it was stopped".to_owned() }
}

impl Packed<'_> {
    fn stop<T>(&mut self, fault: Fault) -> Result<T, Error> {
        self.fault = Some(fault);
        Err(stopped())
    }

    /// Waits until there is room for another message.
    fn wait<'r>(&mut self, mut state: MutexGuard<'r, State>, reading: &'r Reading) -> Result<(), Error> {
        while !state.has_room() && !state.is_gone {
            let began = Instant::now();
            let left = self.deadline.saturating_duration_since(began);
            if left.is_zero() {
                drop(state);
                return self.stop(Fault::timed_out(self.statement.options.time_out));
            }
            state = reading.has_room.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
            // Room that came was waited for as well: of small messages it comes before each look.
            if self.pace.is_hopeless(began.elapsed()) {
                drop(state);
                return self.stop(Fault::slow_reader(self.pace.least_bytes_per_s()));
            }
        }
        if state.is_gone { Err(stopped()) } else { Ok(()) }
    }

    /// Whether a row, and all so far with it, is more than there may be.
    fn check(&mut self, row_bytes: usize) -> Result<(), Error> {
        let limits = self.statement.limits;
        let too_large = |what: String| Fault::too_large(format!("{what}: ask for less"));
        if self.rows == limits.rows_max {
            return self.stop(too_large(format!("there are more than {} rows (rows_max)", limits.rows_max)));
        }
        let row_bytes_max = limits.row_bytes_max.min(ROW_BYTES_MAX as u64);
        if row_bytes as u64 > row_bytes_max {
            let row = self.rows + 1;
            return self.stop(too_large(format!("row {row} has {row_bytes} bytes, more than {row_bytes_max}")));
        }
        self.bytes += row_bytes as u64;
        if self.bytes > limits.bytes_max {
            return self.stop(too_large(format!("there are more than {} bytes (bytes_max)", limits.bytes_max)));
        }
        Ok(())
    }
}

impl ResultSink for Packed<'_> {
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error> {
        if let Some(why) = unfit(columns) {
            return self.stop(Fault::unfit_columns(why));
        }
        self.types = columns.iter().map(|column| column.kind.unwrap_or(Type::Text)).collect();
        let told = columns.iter().map(|ResultColumn { name, kind, declared }| Column {
            name: name.clone(),
            kind: *kind,
            declared: declared[..declared.floor_char_boundary(NAME_BYTES_MAX)].to_owned(),
        });
        self.reading.lock().columns = Some(told.collect());
        self.reading.told.notify_one();
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        let reading = self.reading;
        let mut state = reading.lock();
        let before = state.filling.bytes.len();
        let mut writer = RowWriter::new(&mut state.filling.bytes, &self.types);
        for value in values {
            writer.push(*value);
        }
        writer.finish();
        let bytes = state.filling.bytes.len();
        if let Err(error) = self.check(bytes - before) {
            state.filling.bytes.truncate(before);
            return Err(error);
        }
        self.rows += 1;
        state.filling.rows += 1;
        if state.packer.add(bytes) {
            state.put();
            reading.told.notify_one();
            return if state.has_room() && !state.is_gone { Ok(()) } else { self.wait(state, reading) };
        }
        if state.since.is_none() {
            state.since = Some(Instant::now());
            if !std::mem::replace(&mut state.is_watched, true) {
                reading.told.notify_one();
            }
        }
        if !state.packer.looks() {
            return Ok(());
        }
        if state.is_gone {
            return Err(stopped());
        }
        drop(state);
        if Instant::now() >= self.deadline {
            return self.stop(Fault::timed_out(self.statement.options.time_out));
        }
        Ok(())
    }
}

/// Why a client would not take these columns. An expression without a name may be its own, in SQLite.
fn unfit(columns: &[ResultColumn]) -> Option<String> {
    if columns.is_empty() {
        return Some("the query gives no columns: a cursor has nothing to count its rows by".to_owned());
    }
    if columns.len() > COLUMNS_MAX {
        return Some(format!("the query gives {} columns, expected at most {COLUMNS_MAX}", columns.len()));
    }
    let place = columns.iter().position(|column| column.name.len() > NAME_BYTES_MAX)?;
    let bytes = columns[place].name.len();
    Some(format!(
        "the name of column {} has {bytes} bytes, expected at most {NAME_BYTES_MAX}: name it by AS",
        place + 1
    ))
}

#[cfg(test)]
mod tests;
