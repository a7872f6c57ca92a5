//! One execution of a query: a thread reads rows, and hands their bytes on in pieces.
//!
//! The pieces go through a channel of [`PIECES`] of [`PIECE_BYTES`]: no more is in memory, whoever is slow. Who takes them and goes away ends
//! the query in the database.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_consolidated::results::{Canceller, ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, Pool, Pooled};
use headwater_protocol::{Type, Value, ValueRef};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::fault::Fault;
use crate::format::{Column, Encoder, Format};
use crate::frontier::results::FrontierRows;
use crate::query::QueryLimits;

/// How large a piece gets.
const PIECE_BYTES: usize = 64 << 10;
/// How many wait to be taken.
const PIECES: usize = 4;

/// What is to be run.
#[derive(Clone)]
pub(crate) struct Job {
    /// For the log.
    pub(crate) name: String,
    pub(crate) sql: String,
    pub(crate) parameters: Vec<Value>,
    pub(crate) types: BTreeMap<String, Type>,
    pub(crate) limits: QueryLimits,
    pub(crate) form: Form,
}

/// In which form its rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For everybody.
    Rows(Format),
    /// A payload of the Frontier protocol.
    Frontier,
}

/// An execution that is under way. Dropped, it ends.
pub(crate) struct Running {
    pieces: mpsc::Receiver<Result<Bytes, Fault>>,
    canceller: Option<Canceller>,
    is_through: bool,
}

impl Running {
    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Fault>> {
        let next = self.pieces.recv().await;
        self.is_through = !matches!(next, Some(Ok(_)));
        next
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(cancel) = self.canceller.take().filter(|_| !self.is_through) {
            // The thread that runs it ends it otherwise only where it hands the next piece on.
            tokio::task::spawn_blocking(cancel);
        }
    }
}

/// Runs a query on a connection of the pool.
pub(crate) async fn start(
    pool: &Pool,
    job: Job,
    permit: OwnedSemaphorePermit,
    patience: Duration,
) -> Result<Running, Fault> {
    let (give, pieces) = mpsc::channel(PIECES);
    let (pool, name) = (pool.clone(), job.name.clone());
    let checkout = tokio::task::spawn_blocking(move || pool.checkout(patience));
    let connection = checkout.await.map_err(|error| Fault::internal(&error.to_string()))?;
    let mut connection = connection.map_err(|error| Fault::database(&name, &error))?;
    let canceller = connection.canceller();
    tokio::task::spawn_blocking(move || {
        execute(&mut connection, job, give);
        drop(permit);
    });
    Ok(Running { pieces, canceller, is_through: false })
}

/// Reads all rows; whatever ends it is told to whoever takes the pieces.
fn execute(connection: &mut Pooled, job: Job, give: mpsc::Sender<Result<Bytes, Fault>>) {
    let Job { name, sql, parameters, types, limits, form } = job;
    let options = ReadOptions { time_out: limits.time_out, types };
    let mut pieces = Pieces { form, writer: None, limits, bytes: 0, rows: 0, give, fault: None };
    let began = Instant::now();
    let read = connection.read(&sql, &parameters, &options, &mut pieces);
    let read = connection.note(read);
    let rolled_back = connection.rollback();
    if connection.note(rolled_back).is_err() {
        connection.mark_broken();
    }
    let ended = read.and_then(|()| {
        if let Some(writer) = &mut pieces.writer {
            writer.end();
        }
        pieces.hand_on()
    });
    if let Err(error) = ended {
        let is_late = !limits.time_out.is_zero() && began.elapsed() >= limits.time_out;
        let fault = match pieces.fault.take() {
            Some(fault) => fault,
            None if pieces.give.is_closed() => return,
            None if is_late => Fault::timed_out(limits.time_out),
            None => Fault::database(&name, &error),
        };
        let _ = pieces.give.blocking_send(Err(fault));
    }
}

/// Rows as bytes, in one form or the other.
enum Writer {
    Rows(Encoder),
    Frontier(FrontierRows),
}

impl Writer {
    fn row(&mut self, values: &[ValueRef<'_>]) {
        match self {
            Writer::Rows(encoder) => encoder.row(values),
            Writer::Frontier(rows) => rows.row(values),
        }
    }

    fn end(&mut self) {
        if let Writer::Rows(encoder) = self {
            encoder.end();
        }
    }

    fn take(&mut self) -> Vec<u8> {
        match self {
            Writer::Rows(encoder) => encoder.take(),
            Writer::Frontier(rows) => rows.take(),
        }
    }

    fn waiting(&self) -> usize {
        match self {
            Writer::Rows(encoder) => encoder.waiting(),
            Writer::Frontier(rows) => rows.waiting(),
        }
    }
}

/// Makes bytes of rows.
struct Pieces {
    form: Form,
    writer: Option<Writer>,
    limits: QueryLimits,
    bytes: u64,
    rows: u64,
    give: mpsc::Sender<Result<Bytes, Fault>>,
    fault: Option<Fault>,
}

impl Pieces {
    fn hand_on(&mut self) -> Result<(), Error> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let piece = writer.take();
        self.bytes += piece.len() as u64;
        if self.bytes > self.limits.bytes_max {
            return self.stop(Fault::too_large(format!(
                "the answer has more than {} bytes (bytes_max of the query): ask for less",
                self.limits.bytes_max
            )));
        }
        // Nobody takes it any more: there is nobody to be told.
        self.give.blocking_send(Ok(Bytes::from(piece))).map_err(|_| stopped())
    }

    fn stop(&mut self, fault: Fault) -> Result<(), Error> {
        self.fault = Some(fault);
        Err(stopped())
    }
}

/// Ends a reading; why, is known here.
fn stopped() -> Error {
    Error::Database { context: "running a query".to_owned(), detail: "it was stopped".to_owned() }
}

impl ResultSink for Pieces {
    fn begin(&mut self, columns_given: &[ResultColumn]) -> Result<(), Error> {
        let columns = columns_given.iter().map(|column| Column { name: column.name.clone(), kind: column.kind });
        self.writer = Some(match self.form {
            Form::Rows(format) => Writer::Rows(Encoder::begin(format, columns.collect())),
            Form::Frontier => Writer::Frontier(FrontierRows::begin(columns_given)),
        });
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        let Some(writer) = &mut self.writer else { return Err(stopped()) };
        if self.rows == self.limits.rows_max {
            return self.stop(Fault::too_large(format!(
                "the answer has more than {} rows (rows_max of the query): ask for less",
                self.limits.rows_max
            )));
        }
        writer.row(values);
        self.rows += 1;
        if writer.waiting() >= PIECE_BYTES { self.hand_on() } else { Ok(()) }
    }
}
