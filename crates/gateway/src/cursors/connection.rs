//! One connection: frames in, frames out.
//!
//! A message is one write: the packer has decided how full it is, and nothing here puts two together. Cursors take turns, message by message.
//!
//! *Caveats.* A client that takes nothing of a message that is on its way can be told nothing either: after the time for what is idle the
//! connection is cut, and only the log says why.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::OptionFuture;
use headwater_protocol::cursor::{Asked, Columns, End, Failed, Open, Question, Rows, Server, Welcome};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, watch};

use super::question::Asker;
use super::reading::{Next, Reading};
use super::{Cursors, WAITING_MAX};
use crate::client_sql::ClientSql;
use crate::fault::Fault;
use crate::pace::{self, Least, Pace};

/// Bytes that are read of the client's at a time.
const READ_BYTES: usize = 16 << 10;

/// For how long a client may go on after it was told that the connection is over.
const LINGER: Duration = Duration::from_secs(2);

/// How long before the server stops for good the cursors that are open then are told; where it stops sooner, the last quarter of that.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A connection of cursors.
pub(super) struct Connection {
    cursors: Arc<Cursors>,
    asker: Asker,
    stopping: Option<watch::Receiver<Option<Instant>>>,
    /// Once the server stops.
    stops: Option<Stops>,
    session: Server,
    open: BTreeMap<u64, Opened>,
    /// Told when one of them has something.
    told: Arc<Notify>,
    /// The cursor whose turn it was.
    last: u64,
    /// What is being written, and how much of it has been.
    out: Vec<u8>,
    written: usize,
    /// When the client last took some of it, or said something: what it gives credit for it has taken.
    moved_at: Instant,
    /// Since when no cursor is open.
    quiet_since: Instant,
    /// Nothing is written any more after what is.
    is_over: bool,
}

/// A server that stops.
#[derive(Clone, Copy)]
struct Stops {
    /// When what is open is told.
    told_at: Instant,
    /// When it is cut.
    at: Instant,
}

/// A cursor that is open. Dropped, its query is ended in the database.
struct Opened {
    /// What the log calls it.
    name: String,
    reading: Arc<Reading>,
    /// Since when its rows wait for credit.
    stalled_since: Option<Instant>,
}

impl Stops {
    fn new(at: Instant) -> Stops {
        let left = at.saturating_duration_since(Instant::now());
        let before = LAST_WORDS.min(left / 4);
        Stops { told_at: at.checked_sub(before).unwrap_or(at), at }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.reading.give_up();
    }
}

impl Connection {
    pub(super) fn new(
        cursors: Arc<Cursors>,
        asker: Asker,
        stopping: Option<watch::Receiver<Option<Instant>>>,
    ) -> Connection {
        let session = Server::new(cursors.settings.connection_cursors_max);
        let mut connection = Connection {
            cursors,
            asker,
            stopping,
            stops: None,
            session,
            open: BTreeMap::new(),
            told: Arc::default(),
            last: 0,
            out: Vec::new(),
            written: 0,
            moved_at: Instant::now(),
            quiet_since: Instant::now(),
            is_over: false,
        };
        let settings = &connection.cursors.settings;
        let idle_ms = settings.idle.as_millis().try_into().unwrap_or(u64::MAX);
        let welcome = Welcome { cursors_max: settings.connection_cursors_max as u64, idle_ms };
        welcome.to_frame().write(&mut connection.out);
        connection
    }

    /// Serves it to its end. Whatever is open then is ended in the database.
    pub(super) async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        match self.run(stream).await {
            Ok(()) => tracing::debug!("a connection of cursors has ended"),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => self.is_cut(&error),
            Err(error) => tracing::debug!(%error, "a connection of cursors broke"),
        }
    }

    async fn run(&mut self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let (mut reads, mut writes) = tokio::io::split(stream);
        let mut buffer = vec![0; READ_BYTES];
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let told = Arc::clone(&self.told);
        let mut quiet_until = Instant::now();
        loop {
            if self.out.is_empty() {
                if self.is_over {
                    writes.shutdown().await?;
                    return linger(&mut reads, &mut buffer, self.linger_time()).await;
                }
                quiet_until = self.pump();
                self.moved_at = Instant::now();
            }
            let is_writing = !self.out.is_empty();
            let look_at = if is_writing { self.patience_ends() } else { quiet_until };
            let look_at = tokio::time::Instant::from_std(look_at);
            // Woken too early it is asked again.
            if timer.is_elapsed() || timer.deadline() > look_at {
                timer.as_mut().reset(look_at);
            }
            let (out, written) = (&mut self.out, &mut self.written);
            let stopping = self.stopping.as_mut().filter(|_| self.stops.is_none());
            let stopped = OptionFuture::from(stopping.map(|stopping| async {
                // Where nobody can say it any more, it is.
                stopping.wait_for(Option::is_some).await.map_or(None, |stopping| *stopping)
            }));
            tokio::select! {
                done = write_some(&mut writes, out, written), if is_writing => {
                    done?;
                    self.moved_at = Instant::now();
                }
                came = reads.read(&mut buffer), if !self.is_over => match came? {
                    0 => return Ok(()),
                    count => {
                        self.moved_at = Instant::now();
                        self.take(&buffer[..count]);
                    }
                },
                () = told.notified(), if !is_writing => {}
                () = timer.as_mut() => if is_writing && Instant::now() >= self.patience_ends() {
                    let why = if self.has_stopped() { "the server stops" } else { "its client took nothing for too long" };
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                },
                Some(at) = stopped => self.stops = Some(Stops::new(at.unwrap_or_else(Instant::now))),
            }
        }
    }

    /// For how long its client may go on after it was told that the connection is over: not up to the end of a server that stops.
    fn linger_time(&self) -> Duration {
        let left = self.stops.map(|stops| stops.at.saturating_duration_since(Instant::now()));
        left.map_or(LINGER, |left| LINGER.min(left / 2))
    }

    /// When a client that takes nothing of what is being written is given up.
    fn patience_ends(&self) -> Instant {
        let idle = self.moved_at + self.cursors.settings.idle;
        self.stops.map_or(idle, |stops| idle.min(stops.at))
    }

    /// Whether the server waits for nothing any more.
    fn has_stopped(&self) -> bool {
        self.stops.is_some_and(|stops| Instant::now() >= stops.at)
    }

    /// Notes why what is open ends: its client can't be told.
    fn is_cut(&self, error: &io::Error) {
        let for_so_long = Duration::from_millis(self.moved_at.elapsed().as_millis() as u64);
        let Fault { code, message, .. } = if self.has_stopped() { Fault::stopping() } else { Fault::idle(for_so_long) };
        tracing::info!(fault = code, message, cursors = self.open.len(), %error, "a connection of cursors is cut");
        for Opened { name, .. } in self.open.values() {
            tracing::info!(query = name, fault = code, message, "a cursor did not come to its end");
        }
    }

    /// What the client asks.
    fn take(&mut self, bytes: &[u8]) {
        self.session.push(bytes);
        while !self.is_over {
            match self.session.poll() {
                Ok(None) => return,
                Ok(Some(Asked::Open(open))) => self.open(open),
                Ok(Some(Asked::TooMany(cursor))) => {
                    let fault = Fault::too_many_cursors(self.cursors.settings.connection_cursors_max);
                    self.tell(cursor, &fault);
                }
                // It is looked at anyway.
                Ok(Some(Asked::MaySend(_))) => {}
                Ok(Some(Asked::Cancel(cursor))) => self.fail(cursor, &Fault::cancelled()),
                Err(error) => {
                    tracing::info!(%error, "a client of cursors sent what is none of their messages");
                    self.end_with(&Fault::malformed(error.to_string()));
                }
            }
        }
    }

    fn open(&mut self, Open { cursor, question, credit }: Open) {
        if self.stops.is_some() {
            self.session.ended(cursor);
            return self.tell(cursor, &Fault::stopping());
        }
        let reading = Reading::new(self.cursors.packing(), credit, Arc::clone(&self.told));
        let name = match &question {
            Question::Named(name, _) => name.clone(),
            Question::Sql(..) => "cursor".to_owned(),
        };
        self.open.insert(cursor, Opened { name, reading: Arc::clone(&reading), stalled_since: None });
        let (cursors, asker) = (Arc::clone(&self.cursors), self.asker.clone());
        tokio::spawn(async move {
            if let Err(fault) = cursors.read(&asker, &question, &reading).await {
                tracing::debug!(fault = fault.code, message = fault.message, "a cursor is refused");
                reading.end(Err(fault));
            }
        });
    }

    /// Tells of a cursor that it has failed.
    fn tell(&mut self, cursor: u64, fault: &Fault) {
        let retry_after_ms = fault.retry_after.map_or(0, |after| after.as_millis().try_into().unwrap_or(u64::MAX));
        let failed = Failed { cursor, code: fault.code.to_owned(), message: fault.message.clone(), retry_after_ms };
        failed.to_frame().write(&mut self.out);
    }

    /// Ends a cursor that is open.
    fn fail(&mut self, cursor: u64, fault: &Fault) {
        self.close(cursor);
        self.tell(cursor, fault);
    }

    fn close(&mut self, cursor: u64) {
        self.session.ended(cursor);
        self.open.remove(&cursor);
        if self.open.is_empty() {
            self.quiet_since = Instant::now();
        }
    }

    /// Ends the connection.
    fn end_with(&mut self, fault: &Fault) {
        self.tell(0, fault);
        self.is_over = true;
    }

    /// Writes what goes next: a message, or what else there is to be said. When to look again.
    fn pump(&mut self) -> Instant {
        let now = Instant::now();
        let mut look_at = now + self.cursors.settings.idle;
        if let Some(Stops { told_at, .. }) = self.stops {
            if now >= told_at {
                self.tell_of_stop();
            }
            look_at = look_at.min(told_at);
        }
        let behind = self.open.range((Excluded(self.last), Unbounded)).map(|(cursor, _)| *cursor);
        let before = self.open.range((Included(0), Included(self.last))).map(|(cursor, _)| *cursor);
        for cursor in behind.chain(before).collect::<Vec<_>>() {
            if self.pump_one(cursor, now, &mut look_at) {
                self.last = cursor;
                return look_at;
            }
        }
        if self.open.is_empty() && self.out.is_empty() {
            let limit = self.cursors.settings.idle;
            if self.stops.is_some() {
                self.end_with(&Fault::stopping());
            } else if now >= self.quiet_since + limit {
                self.end_with(&Fault::idle(limit));
            } else {
                look_at = self.quiet_since + limit;
            }
        }
        look_at
    }

    /// Ends what is open before the server stops for good.
    fn tell_of_stop(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let cursors = self.open.len();
        tracing::warn!(
            cursors,
            "cursors had not ended shortly before shutdown_ms_max and are told that the server stops"
        );
        let fault = Fault::stopping();
        for cursor in self.open.keys().copied().collect::<Vec<_>>() {
            self.fail(cursor, &fault);
        }
    }

    /// The same of one cursor; whether it was a message.
    fn pump_one(&mut self, cursor: u64, now: Instant, look_at: &mut Instant) -> bool {
        loop {
            let may_send = self.session.may_send(cursor);
            let Some(opened) = self.open.get_mut(&cursor) else { return false };
            match opened.reading.next(may_send, now) {
                Next::Columns(columns) => Columns { cursor, columns }.to_frame().write(&mut self.out),
                Next::Message(message) => {
                    opened.reading.taken.add(message.bytes.len());
                    self.session.sent(cursor, message.bytes.len());
                    Rows { cursor, rows: message.rows }.to_frame(&message.bytes).write(&mut self.out);
                    return true;
                }
                Next::End(rows) => {
                    End { cursor, rows }.to_frame().write(&mut self.out);
                    self.close(cursor);
                    return false;
                }
                Next::Failed(fault) => {
                    self.fail(cursor, &fault);
                    return false;
                }
                Next::Nothing(at) => {
                    *look_at = (*look_at).min(at.unwrap_or(*look_at));
                    self.look_after(cursor, may_send, now, look_at);
                    return false;
                }
            }
        }
    }

    /// Ends a cursor whose rows have waited for credit for too long.
    fn look_after(&mut self, cursor: u64, may_send: bool, now: Instant, look_at: &mut Instant) {
        let limit = self.cursors.settings.idle;
        let Some(opened) = self.open.get_mut(&cursor) else { return };
        if may_send || !opened.reading.has_rows() {
            opened.stalled_since = None;
            return;
        }
        let since = *opened.stalled_since.get_or_insert(now);
        if now >= since + limit {
            let fault = Fault::idle(limit);
            let (query, message) = (&opened.name, &fault.message);
            tracing::info!(query, fault = fault.code, message, "a cursor did not come to its end");
            self.fail(cursor, &fault);
        } else {
            *look_at = (*look_at).min(since + limit);
        }
    }
}

/// Takes what the client says still: a socket that is closed over it takes back what was sent.
async fn linger(from: &mut (impl AsyncRead + Unpin), buffer: &mut [u8], at_most: Duration) -> io::Result<()> {
    let said = async { while matches!(from.read(buffer).await, Ok(1..)) {} };
    let _ = tokio::time::timeout(at_most, said).await;
    Ok(())
}

/// Writes as much of it as is taken at once; all of it is nothing any more. Given up in between it goes on where it was.
async fn write_some(into: &mut (impl AsyncWrite + Unpin), out: &mut Vec<u8>, written: &mut usize) -> io::Result<()> {
    if *written < out.len() {
        match into.write(&out[*written..]).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => *written += count,
        }
    }
    if *written < out.len() {
        return Ok(());
    }
    into.flush().await?;
    out.clear();
    *written = 0;
    Ok(())
}

impl Cursors {
    /// Has a cursor's rows read: by a thread of its own, once there is a place.
    async fn read(
        &self,
        asker: &Asker,
        question: &headwater_protocol::cursor::Question,
        reading: &Arc<Reading>,
    ) -> Result<(), Fault> {
        let statement = self.statement(asker, question).await?;
        let patience = self.service.patience();
        let permit = self.places.place(WAITING_MAX, patience).await?;
        let least = Least {
            bytes_per_s: self.service.reader_bytes_per_s_min(),
            others: self.places.waiting(),
            window: pace::window(patience),
        };
        let pace = Pace::new(least, reading.taken.clone());
        let of = statement.client_sql.as_ref().map_or(&self.pool, ClientSql::pool).clone();
        let reads = Arc::clone(reading);
        let running = tokio::task::spawn_blocking(move || {
            let checkout = of.checkout(patience).and_then(|mut connection| {
                if let Some(sql) = &statement.client_sql {
                    let checked = sql.check(&mut *connection);
                    connection.note(checked)?;
                }
                Ok(connection)
            });
            match checkout {
                Ok(mut connection) => reads.run(&mut connection, &statement, pace),
                Err(error) => reads.end(Err(Fault::database(&statement.name, &error, statement.whose()))),
            }
            drop(permit);
        });
        running.await.map_err(|error| Fault::internal(&error.to_string()))
    }
}
