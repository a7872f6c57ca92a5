//! A blocking hold on one connection of the asynchronous driver.
//!
//! Each connection has a runtime of its own that lives on the calling thread: a call polls both its request and the driver's
//! connection until the request is done. So no other thread is woken for a round trip, and any thread may call, a blocking thread of
//! another runtime's too (but not a task: blocking there is a fault of the caller's, and panics).
//!
//! A request that waits for a synchronous standby is left after a while ([`Patience`]).
//!
//! *Caveats.* Between calls nothing is read: that the server has closed the connection is noticed by the next call, or when [`Link::is_gone`]
//! looks.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::standby::{Next, Patience};
use super::target::Target;
use crate::Error;
use crate::results::Canceller;

/// How long cancelling may take.
const CANCEL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

type Driver = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// A connection and what drives it.
pub(super) struct Link {
    client: Client,
    /// Reads and writes the socket; `None` after its end.
    driver: Option<Driver>,
    /// By which another connection is made to cancel what this one runs.
    tls: MakeRustlsConnect,
    /// Why it ended.
    ending: Option<String>,
    /// The database has no encoding: its texts are bytes.
    is_sql_ascii: bool,
    /// Always there until the drop.
    runtime: Option<Runtime>,
    /// Looks what a request waits for.
    patience: Option<Patience>,
}

impl Link {
    /// Connects, within `time_out` from the name's look-up to the end of authentication.
    pub(super) fn connect(
        target: &Target,
        tls: MakeRustlsConnect,
        time_out: std::time::Duration,
    ) -> Result<Link, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime =
            runtime.map_err(|error| Error::Retry { detail: format!("starting a runtime: {error}"), broken: true })?;
        let address = target.address();
        let connected =
            runtime.block_on(async { tokio::time::timeout(time_out, target.config.connect(tls.clone())).await });
        match connected {
            Ok(Ok((client, connection))) => {
                let is_sql_ascii = connection.parameter("server_encoding") == Some("SQL_ASCII");
                let driver: Driver = Box::pin(connection);
                let (driver, runtime) = (Some(driver), Some(runtime));
                Ok(Link { client, driver, tls, ending: None, is_sql_ascii, runtime, patience: None })
            }
            Ok(Err(error)) => Err(super::error::connecting(&address, &error)),
            Err(_) => {
                let detail = format!("connecting to {address}: no answer within {time_out:?}");
                Err(Error::Retry { detail, broken: true })
            }
        }
    }

    /// From now on it is looked what a request waits for that takes long.
    pub(super) fn be_patient(&mut self, patience: Patience) {
        self.patience = Some(patience);
    }

    /// Runs requests to their end; to that of the connection, where they wait for a standby for too long.
    pub(super) fn run<'a, T>(&'a mut self, work: impl AsyncFnOnce(&'a Client) -> T) -> T {
        let Link { client, driver, ending, runtime, patience, .. } = self;
        let runtime = runtime.as_ref().expect("the runtime lives as long as the link");
        let mut work = pin!(work(client));
        let mut pause = patience.as_ref().map(Patience::pause);
        loop {
            let running = poll_fn(|context| {
                if let Some(running) = driver
                    && let Poll::Ready(end) = running.as_mut().poll(context)
                {
                    *ending = end.err().map(|error| error.to_string());
                    *driver = None;
                }
                work.as_mut().poll(context)
            });
            let done = match pause {
                Some(pause) => runtime.block_on(async { timeout(pause, running).await.ok() }),
                None => Some(runtime.block_on(running)),
            };
            if let Some(done) = done {
                return done;
            }
            match patience.as_ref().map(Patience::look) {
                Some(Next::Wait(next)) => pause = Some(next),
                Some(Next::Leave(why)) => {
                    *ending = Some(why);
                    // Its socket is closed, and the request ends in an error.
                    *driver = None;
                    pause = None;
                }
                None => pause = None,
            }
        }
    }

    /// Sends a request and does not wait for what comes of it: the next call reads that.
    pub(super) fn send<'a>(&'a mut self, work: impl AsyncFnOnce(&'a Client)) {
        let Link { client, driver, ending, runtime, .. } = self;
        let runtime = runtime.as_ref().expect("the runtime lives as long as the link");
        let mut work = pin!(work(client));
        runtime.block_on(poll_fn(|context| {
            // The request is handed to the driver first, which then writes it.
            let _ = work.as_mut().poll(context);
            if let Some(running) = driver
                && let Poll::Ready(end) = running.as_mut().poll(context)
            {
                *ending = end.err().map(|error| error.to_string());
                *driver = None;
            }
            Poll::Ready(())
        }));
    }

    /// The process of the server that this session is, as the server said when it greeted.
    pub(super) fn backend(&self) -> Option<i32> {
        super::pooler::process_of(&self.client.cancel_token())
    }

    /// Ends what the connection runs, by a connection of its own (PostgreSQL's documentation, 55.2.8): for a thread that may block.
    pub(super) fn canceller(&self) -> Canceller {
        let (token, tls) = (self.client.cancel_token(), self.tls.clone());
        Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            let cancel = async || tokio::time::timeout(CANCEL_PATIENCE, token.cancel_query(tls.clone())).await;
            let done = runtime.map(|runtime| runtime.block_on(cancel()));
            tracing::debug!(?done, "a query was cancelled");
        })
    }

    /// Whether the server has closed it since the last call: what has come is read, and nothing waited for.
    pub(super) fn is_gone(&mut self) -> bool {
        // The second look is after the runtime has asked the system what is there to read.
        self.run(async |_| tokio::task::yield_now().await);
        self.driver.is_none()
    }

    /// Whether the database has the encoding `SQL_ASCII`, which is none.
    pub(super) fn is_sql_ascii(&self) -> bool {
        self.is_sql_ascii
    }

    /// Whether the connection has ended, and why.
    pub(super) fn ending(&self) -> Option<&str> {
        if self.driver.is_some() { None } else { Some(self.ending.as_deref().unwrap_or("closed")) }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver = None; // its socket belongs to the runtime
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // an ordinary drop may not happen inside a task of another runtime
        }
    }
}
