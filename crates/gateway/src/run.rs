//! One execution of a query: a thread reads rows, and hands their bytes on in pieces.
//!
//! The packer says how full a piece gets. Few of them wait to be taken, or a row that is larger: no more is in memory, whoever is slow. Who takes them and goes
//! away ends the query in the database; so does the end of its time, the time that pieces wait included.

mod cancel;
mod told;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_consolidated::results::{ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, Pooled, QueryConnection, QueryPool};
use headwater_protocol::packer::{Knobs, Packer};
use headwater_protocol::{Type, Value, ValueRef};
use tokio::sync::OwnedSemaphorePermit;

use crate::client_sql::ClientSql;
use crate::fault::{Fault, Whose};
use crate::format::{Column, Encoder, Format, Unfit};
use crate::frontier::results::FrontierRows;
use crate::handover::{Giver, NotTaken, Taker, handover};
use crate::pace::{Least, Pace, Taken};
use crate::query::{Keys, QueryLimits};
use crate::watches::{Looking, Watches};
pub(crate) use cancel::Cancel;
use told::{told, told_of_clients};

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
    /// Its rows come in pages.
    pub(crate) page: Option<NextPage>,
    /// What tells, for less, whether an answer may have changed.
    pub(crate) freshness: Told,
    /// What that said when the answer was made that is kept.
    pub(crate) known: Option<String>,
    /// Where it is run, if the SQL is a client's.
    pub(crate) client_sql: Option<ClientSql>,
}

impl Job {
    fn whose(&self) -> Whose {
        Whose::of(self.client_sql.as_ref(), &self.parameters)
    }

    /// Whether nothing is run: change tracking alone is asked.
    pub(crate) fn is_look(&self) -> bool {
        self.form == Form::Mark && matches!(self.freshness, Told::Tables(..))
    }
}

/// What tells whether an answer may have changed.
#[derive(Clone)]
pub(crate) enum Told {
    /// A query of the user's, and its parameters.
    Query(String, Vec<Value>),
    /// Change tracking, where it knows all that the query reads.
    Tables(Arc<Watches>, Looking),
}

/// A page, and where the next one is.
#[derive(Clone)]
pub(crate) struct NextPage {
    pub(crate) keys: Keys,
    /// Its URL, by the key of this one's last row.
    pub(crate) url: Arc<dyn Fn(Vec<Value>) -> String + Send + Sync>,
}

/// In which form its rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For everybody.
    Rows(Format),
    /// A payload of the Frontier protocol.
    Frontier,
    /// Not at all: only whether they may have changed since what is known.
    Mark,
}

/// What comes of an execution.
enum Piece {
    /// What tells whether the answer may have changed: before all others, if at all.
    Mark(String),
    /// That is what it said before.
    Unchanged,
    Bytes(Bytes),
    /// All has come; where the next page is, if there is one.
    End(Option<String>),
    Fault(Fault),
}

/// An execution that is under way. Dropped, it ends.
pub(crate) struct Running {
    pieces: Taker<Piece>,
    /// What its client has taken: whoever hands it on says so.
    pub(crate) taken: Taken,
    /// Pieces that were taken and put back: they come first.
    begun: VecDeque<Bytes>,
    cancel: Arc<Cancel>,
    is_through: bool,
    /// What tells whether the answer may have changed, before the query was run.
    pub(crate) mark: Option<String>,
    /// It has said the same as it did when the answer was made that is kept: nothing was run but that.
    pub(crate) is_unchanged: bool,
    /// Where the next page is, once all has come.
    pub(crate) next: Option<String>,
}

impl Running {
    fn new(pieces: Taker<Piece>, cancel: Arc<Cancel>, taken: Taken) -> Running {
        Running {
            pieces,
            taken,
            begun: VecDeque::new(),
            cancel,
            is_through: false,
            mark: None,
            is_unchanged: false,
            next: None,
        }
    }

    /// Has all pieces so far come again.
    pub(crate) fn put_back(&mut self, pieces: Vec<Bytes>) {
        self.begun = pieces.into();
    }

    /// The next piece; `None` at the end. An execution that died without a word is a fault, and not the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Fault>> {
        if let Some(piece) = self.begun.pop_front() {
            return Some(Ok(piece));
        }
        if self.is_through {
            return None;
        }
        let mut piece = self.pieces.take().await;
        if let Some(Piece::Mark(mark)) = piece {
            self.mark = Some(mark);
            piece = self.pieces.take().await;
        }
        self.is_through = !matches!(piece, Some(Piece::Bytes(_)));
        self.is_unchanged = matches!(piece, Some(Piece::Unchanged));
        match piece {
            Some(Piece::Bytes(bytes)) => Some(Ok(bytes)),
            Some(Piece::End(next)) => {
                self.next = next;
                None
            }
            Some(Piece::Unchanged) => None,
            Some(Piece::Fault(fault)) => Some(Err(fault)),
            Some(Piece::Mark(_)) | None => Some(Err(Fault::internal("an execution ended without a word"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_through {
            // The thread that runs it ends it otherwise only where it hands the next piece on.
            let cancel = Arc::clone(&self.cancel);
            tokio::task::spawn_blocking(move || cancel.cancel());
        }
    }
}

/// Runs a query on a connection of the pool, or SQL of a client's on one of that.
pub(crate) async fn start(
    pool: &QueryPool,
    job: Job,
    permit: OwnedSemaphorePermit,
    (patience, least): (Duration, Least),
    knobs: &Knobs,
) -> Result<Running, Fault> {
    let (give, pieces) = handover();
    let taken = Taken::default();
    let (pace, packer) = (Pace::new(least.clone(), taken.clone()), Packer::new(knobs));
    let (name, whose, client_sql) = (job.name.clone(), job.whose(), job.client_sql.clone());
    let (own, of) = (pool.clone(), client_sql.as_ref().map_or(pool, ClientSql::pool).clone());
    let checkout = tokio::task::spawn_blocking(move || {
        let mut connection = of.checkout(patience)?;
        if let Some(sql) = &client_sql {
            let checked = sql.check(&mut *connection);
            connection.note(checked)?;
        }
        Ok(connection)
    });
    let connection = checkout.await.map_err(|error| Fault::internal(&error.to_string()))?;
    let mut connection = connection.map_err(|error| Fault::database(&name, &error, whose))?;
    let cancel = Arc::new(Cancel::new(connection.canceller()));
    let held = Arc::clone(&cancel);
    tokio::task::spawn_blocking(move || {
        execute(&mut connection, (&own, patience), job, (give, pace, packer));
        if held.end() {
            // The database may hear of it later still, and would end what comes next.
            connection.mark_broken();
        }
        drop(permit);
    });
    Ok(Running::new(pieces, cancel, taken))
}

/// Reads all rows; whatever ends it is told to whoever takes the pieces. `own`: the server's own connections.
fn execute(
    connection: &mut Pooled<dyn QueryConnection>,
    own: (&QueryPool, Duration),
    job: Job,
    (give, pace, packer): (Giver<Piece>, Pace, Packer),
) {
    let whose = job.whose();
    let Job { name, sql, parameters, types, limits, form, page, freshness, known, client_sql } = job;
    let options = ReadOptions { time_out: limits.time_out, types };
    let began = Instant::now();
    let deadline = (!limits.time_out.is_zero()).then(|| began + limits.time_out);
    let mut pieces = Pieces {
        name: name.clone(),
        form,
        writer: None,
        packer,
        limits,
        deadline,
        bytes: 0,
        rows: 0,
        page,
        has_more: false,
        give,
        pace,
        fault: None,
    };
    let told = match client_sql {
        Some(_) => told_of_clients(connection, own, (&sql, &parameters, &freshness), known.as_deref()),
        None => told(connection, &sql, &freshness, known.as_deref(), &options),
    };
    let marked = told.and_then(|told| {
        let Some((mark, is_known)) = told else { return Ok(false) };
        pieces.give.give(Piece::Mark(mark), 0, deadline).map_err(|_| stopped())?;
        Ok(is_known)
    });
    match marked {
        Ok(true) => return pieces.give.give_last(Piece::Unchanged),
        Ok(false) if form == Form::Mark => return pieces.give.give_last(Piece::End(None)),
        // Whoever wanted it went away while it was looked whether it has changed.
        Ok(false) if pieces.give.is_in_vain() => return,
        _ => {}
    }
    let read = marked.and_then(|_| read(connection, &sql, &parameters, &options, &mut pieces));
    let mut next = None;
    let ended = read.and_then(|()| {
        next = pieces.next();
        if let Some(writer) = &mut pieces.writer
            && let Err(unfit) = writer.end(next.as_deref())
        {
            return pieces.stop(Fault::unfit(&unfit));
        }
        pieces.hand_on()
    });
    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let last = match (ended, pieces.fault.take()) {
        (Ok(()), _) => Piece::End(next),
        (Err(_), Some(fault)) => Piece::Fault(fault),
        (Err(_), None) if pieces.give.is_in_vain() => return,
        (Err(_), None) if is_late => Piece::Fault(Fault::timed_out(limits.time_out)),
        (Err(error), None) => Piece::Fault(Fault::database(&name, &error, whose)),
    };
    if let Piece::Fault(fault) = &last {
        tracing::info!(query = name, fault = fault.code, message = fault.message, "a query was not answered whole");
    }
    pieces.give.give_last(last);
}

/// One statement, and the end of its transaction.
pub(crate) fn read(
    connection: &mut Pooled<dyn QueryConnection>,
    sql: &str,
    parameters: &[Value],
    options: &ReadOptions,
    sink: &mut dyn ResultSink,
) -> Result<(), Error> {
    let read = connection.read(sql, parameters, options, sink);
    let read = connection.note(read);
    let rolled_back = connection.rollback();
    if connection.note(rolled_back).is_err() {
        connection.mark_broken();
    }
    read
}

/// Rows as bytes, in one form or the other.
enum Writer {
    Rows(Encoder),
    Frontier(FrontierRows),
}

impl Writer {
    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Unfit> {
        match self {
            Writer::Rows(encoder) => encoder.row(values)?,
            Writer::Frontier(rows) => rows.row(values),
        }
        Ok(())
    }

    fn end(&mut self, next: Option<&str>) -> Result<(), Unfit> {
        match self {
            Writer::Rows(encoder) => encoder.end(next),
            Writer::Frontier(_) => Ok(()),
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
    /// The query's.
    name: String,
    form: Form,
    writer: Option<Writer>,
    packer: Packer,
    limits: QueryLimits,
    deadline: Option<Instant>,
    bytes: u64,
    rows: u64,
    page: Option<NextPage>,
    /// There is a row behind the page.
    has_more: bool,
    give: Giver<Piece>,
    pace: Pace,
    fault: Option<Fault>,
}

impl Pieces {
    fn hand_on(&mut self) -> Result<(), Error> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let piece = Bytes::from(writer.take());
        let bytes = piece.len();
        self.bytes += bytes as u64;
        if self.bytes > self.limits.bytes_max {
            return self.stop(Fault::too_large(format!(
                "the answer has more than {} bytes (bytes_max of the query): ask for less",
                self.limits.bytes_max
            )));
        }
        let pace = &mut self.pace;
        match self.give.give_unless(Piece::Bytes(piece), bytes, self.deadline, |waited| pace.is_hopeless(waited)) {
            Ok(()) => Ok(()),
            // There is nobody to be told.
            Err(NotTaken::Gone) => Err(stopped()),
            Err(NotTaken::TooLate) => self.stop(Fault::timed_out(self.limits.time_out)),
            Err(NotTaken::TooSlow) => self.stop(Fault::slow_reader(self.pace.least_bytes_per_s())),
        }
    }

    /// Where the next page is.
    fn next(&mut self) -> Option<String> {
        let page = self.page.as_ref().filter(|_| self.has_more)?;
        Some((page.url)(page.keys.last().to_vec()))
    }

    fn stop(&mut self, fault: Fault) -> Result<(), Error> {
        self.fault = Some(fault);
        Err(stopped())
    }
}

/// Bytes of what may have many.
fn bytes_of(value: &ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Text(bytes) | ValueRef::Bytes(bytes) | ValueRef::Json(bytes) => bytes.len() as u64,
        _ => 0,
    }
}

/// Ends a reading; why, is known here.
fn stopped() -> Error {
    Error::Database { context: "running a query".to_owned(), detail: "it was stopped".to_owned() }
}

impl ResultSink for Pieces {
    fn begin(&mut self, columns_given: &[ResultColumn]) -> Result<(), Error> {
        if let Some(page) = &mut self.page {
            let begun = page.keys.begin(columns_given);
            begun.map_err(|detail| Error::Sql { detail, line: None, is_statement: true })?;
        }
        self.writer = Some(match self.form {
            Form::Rows(format) => {
                Writer::Rows(Encoder::begin(format, columns_given.iter().map(Column::from).collect()))
            }
            Form::Frontier => Writer::Frontier(FrontierRows::begin(columns_given)),
            Form::Mark => return Err(stopped()),
        });
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        if let Some(page) = &mut self.page {
            match page.keys.row(values) {
                Ok(is_behind) => self.has_more = is_behind,
                Err(lost) => {
                    let fault = Fault::query(&self.name, &format!("{lost} (page_by of {}.sql)", self.name));
                    return self.stop(fault);
                }
            }
            if self.has_more {
                return Ok(());
            }
        }
        let Some(writer) = &mut self.writer else { return Err(stopped()) };
        if self.rows == self.limits.rows_max {
            return self.stop(Fault::too_large(format!(
                "the answer has more than {} rows (rows_max of the query): ask for less",
                self.limits.rows_max
            )));
        }
        let bytes: u64 = values.iter().map(bytes_of).sum();
        if bytes > self.limits.row_bytes_max {
            return self.stop(Fault::too_large(format!(
                "row {} has {bytes} bytes, more than {} (row_bytes_max): ask for less",
                self.rows + 1,
                self.limits.row_bytes_max
            )));
        }
        if let Err(unfit) = writer.row(values) {
            return self.stop(Fault::unfit(&unfit));
        }
        self.rows += 1;
        if self.packer.add(writer.waiting()) { self.hand_on() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_execution_that_died_is_a_fault_and_no_end() {
        let (giver, pieces) = handover();
        giver.give(Piece::Bytes(Bytes::from_static(b"part")), 4, None).expect("there is room");
        drop(giver);
        let mut running = Running::new(pieces, Arc::new(Cancel::new(None)), Taken::default());
        assert_eq!(running.next().await, Some(Ok(Bytes::from_static(b"part"))));
        assert!(matches!(running.next().await, Some(Err(fault)) if fault.is_servers));
        assert_eq!(running.next().await, None);
    }
}
