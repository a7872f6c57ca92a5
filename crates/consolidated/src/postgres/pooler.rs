//! A session of one's own, or a pooler between that hands one session to several clients.
//!
//! The driver names prepared statements s0, s1 and so on, from a counter of its process. Behind a pooler in transaction mode two servers
//! would bind and run each other's statements, and what a session is set to would be set for anybody. So that can't be:
//!
//! | | |
//! |---|---|
//! | the process that the server named when it greeted (`BackendKeyData`) is the one that runs our statements | nothing is between that could share it |
//! | another one: a pooler | the session gets a setting with a name of 128 random bits (the marker), outside of any transaction. Each transaction begins with `SHOW` of it, and each statement is prepared and run in such a transaction |
//!
//! A session that has not the marker answers `SHOW` with an error, and in a transaction that has failed the server neither prepares nor runs
//! anything. A statement of ours is prepared only where the marker is, and it is run only there: under its name there is no other. The first
//! connection looks by a second one as well whether sessions are shared, so that `check` and `serve` end at once.
//!
//! *Caveats.* A pooler in session mode costs two short statements for each transaction, and two messages for a query outside of one.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{join, join3};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{CancelToken, Client};

use super::Postgres;
use super::connection::PostgresConnection;
use super::link::Link;
use crate::{Connection as _, Error};

/// How the names of markers begin; SQLSTATE 42704 about one of them is [`shared`].
pub(super) const MARKER: &str = "headwater.session_";
/// How long the second connection may take: a pooler in session mode may have no session for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The error that sessions are not one's own.
pub(super) fn shared(detail: &str) -> Error {
    Error::Setup {
        what: format!("there is a pooler in transaction mode before the database (or one in statement mode): {detail}"),
        mend: "set it to session mode (PgBouncer: pool_mode = session), or give the database's own address in the URL"
            .to_owned(),
    }
}

impl PostgresConnection {
    /// Finds out whether the session is its own, and sees to it that it stays so.
    ///
    /// `settings`: what the session is set to, with the marker, so that both are in the same one.
    /// Gives the process that runs its statements.
    pub(super) fn begin_session(&mut self, settings: &str) -> Result<String, Error> {
        let told = self.link.backend();
        let rows = self.link.run(async |client| client.simple_query("SELECT pg_catalog.pg_backend_pid()").await);
        let rows = rows.map_err(|failure| self.failure("asking which session this is", &failure))?;
        let actual = rows.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).and_then(|pid| pid.parse::<i32>().ok()),
            _ => None,
        });
        let process = actual.unwrap_or_default().to_string();
        if told.is_some() && told == actual {
            return self.batch(settings).map(|()| process);
        }
        let marker = format!("{MARKER}{}", uuid::Uuid::new_v4().simple());
        self.batch(&format!("{settings}; SET {marker} = 'own'"))?;
        self.guard = Some(format!("SHOW {marker}"));
        let pid = |connection: &mut PostgresConnection| {
            let rows = connection.query("SELECT pg_backend_pid()::bigint", &[]);
            rows.map_err(|error| shared(&error.to_string()))
        };
        if pid(self)? == pid(self)? { Ok(process) } else { Err(shared("two transactions ran in two sessions")) }
    }

    /// Whether a session of another connection is this one's too; the other one is open meanwhile.
    pub(super) fn prove_apart(&mut self, backend: &Postgres) -> Result<(), Error> {
        let Some(guard) = self.guard.clone() else { return Ok(()) };
        // Where there is no room for a second one, the transactions find it out.
        let Ok(mut other) = Link::connect(&backend.target, backend.tls.clone(), PATIENCE) else { return Ok(()) };
        for _ in 0..2 {
            let seen = other.run(async |client| tokio::time::timeout(PATIENCE, client.batch_execute(&guard)).await);
            match seen {
                Ok(Ok(())) => return Err(shared("a second connection was given the session of the first")),
                Ok(Err(_)) => {}
                Err(_) => return Ok(()),
            }
            self.query("SELECT 1", &[])?;
        }
        Ok(())
    }

    /// Runs a request outside of a transaction: behind a pooler, in one of its own that proves the session.
    pub(super) fn run_alone<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, tokio_postgres::Error> {
        let Some(guard) = self.guard.as_ref().filter(|_| self.state.mode.is_none()) else { return self.run(work) };
        let proof = format!("BEGIN; {guard}");
        self.run(async |client| {
            let (proved, done, ended) =
                join3(client.batch_execute(&proof), work(client), client.batch_execute("COMMIT")).await;
            proved.and(done).and_then(|done| ended.map(|()| done))
        })
    }

    /// The same for a request of several steps.
    pub(super) fn run_steps_alone<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, tokio_postgres::Error> {
        let Some(guard) = self.guard.as_ref().filter(|_| self.state.mode.is_none()) else { return self.run(work) };
        let proof = format!("BEGIN; {guard}");
        self.run(async |client| {
            let (proved, done) = join(client.batch_execute(&proof), work(client)).await;
            let ended = client.batch_execute("COMMIT").await;
            proved.and(done).and_then(|done| ended.map(|()| done))
        })
    }

    /// A transaction's beginning, which fails where the session is another.
    pub(super) fn guarded(&self, begin: &str) -> String {
        match &self.guard {
            Some(guard) => format!("{begin}; {guard}"),
            None => begin.to_owned(),
        }
    }
}

/// The process that runs this session, as the server named it when it greeted. The driver tells it to nobody; but it is in what would cancel a
/// request.
pub(super) fn process_of(token: &CancelToken) -> Option<i32> {
    let written = Written::default();
    let sent = token.cancel_query_raw(written.clone(), Plain);
    futures_util::FutureExt::now_or_never(sent)?.ok()?;
    let bytes = written.0.lock().unwrap_or_else(PoisonError::into_inner);
    // Its length, the code of the request, the process, the key.
    let request = bytes.last_chunk::<16>()?;
    Some(i32::from_be_bytes(*request[8..].first_chunk::<4>()?))
}

/// Keeps what is written, and says yes to TLS.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl AsyncRead for Written {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if out.remaining() > 0 {
            out.put_slice(b"S");
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Written {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// TLS that is none: nothing of it leaves the process.
struct Plain;

impl TlsConnect<Written> for Plain {
    type Stream = Written;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Written>>;

    fn connect(self, stream: Written) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}
