//! A blocking hold on one connection of the asynchronous driver.
//!
//! As PostgreSQL's, it has a runtime of its own that lives on the calling thread: no other thread is woken for a round trip.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts};
use tokio::runtime::{Builder, Runtime};

use super::error;
use crate::Error;
use crate::results::Canceller;

/// How long cancelling may take.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// How long saying goodbye may take.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(1);

/// A connection, and what drives it.
pub(super) struct Link {
    /// Both are there until the drop.
    held: Option<(Conn, Runtime)>,
    opts: Opts,
    id: u32,
}

impl Link {
    /// Connects, within `time_out` from the name's look-up to the end of authentication.
    pub(super) fn connect(opts: &Opts, address: &str, time_out: Duration) -> Result<Link, Error> {
        let runtime =
            runtime().map_err(|error| Error::Retry { detail: format!("starting a runtime: {error}"), broken: true })?;
        let connected = runtime.block_on(async { tokio::time::timeout(time_out, Conn::new(opts.clone())).await });
        match connected {
            Ok(Ok(conn)) => Ok(Link { id: conn.id(), held: Some((conn, runtime)), opts: opts.clone() }),
            Ok(Err(failure)) => Err(error::connecting(address, &failure)),
            Err(_) => {
                let detail = format!("connecting to {address}: no answer within {time_out:?}");
                Err(Error::Retry { detail, broken: true })
            }
        }
    }

    /// Runs requests to their end.
    pub(super) fn run<'a, T>(&'a mut self, work: impl AsyncFnOnce(&'a mut Conn) -> T) -> T {
        let (conn, runtime) = self.held.as_mut().expect("it is there until the drop");
        runtime.block_on(work(conn))
    }

    /// What ends the statement that the connection runs.
    pub(super) fn killer(&self) -> Killer {
        Killer { opts: self.opts.clone(), id: self.id }
    }

    /// The same for a thread that may block.
    pub(super) fn canceller(&self) -> Canceller {
        let killer = self.killer();
        Box::new(move || {
            let done = runtime().map(|runtime| runtime.block_on(killer.kill()));
            tracing::debug!(?done, "a query was cancelled");
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some((conn, runtime)) = self.held.take() else { return };
        // On a thread of its own: this one may be another runtime's. Without a goodbye the server's log would tell of a connection that broke.
        std::thread::spawn(move || {
            let _ = runtime.block_on(async { tokio::time::timeout(GOODBYE_PATIENCE, conn.disconnect()).await });
        });
    }
}

/// Ends the statement that a connection runs, by another connection.
pub(super) struct Killer {
    opts: Opts,
    id: u32,
}

impl Killer {
    /// Gives up after [`CANCEL_PATIENCE`]; harmless where nothing runs.
    pub(super) async fn kill(&self) -> Result<(), String> {
        let kill = async {
            let mut other = Conn::new(self.opts.clone()).await?;
            other.query_drop(format!("KILL QUERY {}", self.id)).await?;
            other.disconnect().await
        };
        match tokio::time::timeout(CANCEL_PATIENCE, kill).await {
            Ok(done) => done.map_err(|failure| failure.to_string()),
            Err(_) => Err(format!("no answer within {CANCEL_PATIENCE:?}")),
        }
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}
