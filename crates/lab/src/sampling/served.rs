//! How full a server of syncs is, as it says itself on `/ready`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(2);

/// A server that is started while samples are taken already.
#[derive(Debug, Default)]
pub(crate) struct Serving(Mutex<Option<(i32, String)>>);

impl Serving {
    /// It runs: its process, and the host and port where it listens.
    pub(crate) fn begin(&self, process: i32, place: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((process, place.to_owned()));
    }

    /// It does not any more.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn running(&self) -> Option<(i32, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn process(&self) -> Option<i32> {
        self.running().map(|(process, _)| process)
    }
}

/// How full the server was: one look, or the average of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerLoad {
    /// Syncs whose requests came in.
    pub receiving: f64,
    /// Syncs that waited for a worker.
    pub waiting: f64,
    /// Workers that had a sync.
    pub workers_busy: f64,
    /// Of them, those with an upload.
    pub uploaders_busy: f64,
    /// Syncs whose answers went out.
    pub sending: f64,
}

impl ServerLoad {
    /// Of several looks; none: there was none.
    pub(super) fn average(looks: impl Iterator<Item = ServerLoad>) -> Option<ServerLoad> {
        let (mut sum, mut count) = ([0.0; 5], 0.0);
        for look in looks {
            let ServerLoad { receiving, waiting, workers_busy, uploaders_busy, sending } = look;
            let all = [receiving, waiting, workers_busy, uploaders_busy, sending];
            sum.iter_mut().zip(all).for_each(|(sum, value)| *sum += value);
            count += 1.0;
        }
        let [receiving, waiting, workers_busy, uploaders_busy, sending] = sum.map(|sum| sum / count);
        (count > 0.0).then_some(ServerLoad { receiving, waiting, workers_busy, uploaders_busy, sending })
    }

    /// What `/ready` says.
    fn read(body: &[u8]) -> Option<ServerLoad> {
        let body: serde_json::Value = serde_json::from_slice(body).ok()?;
        let number = |name: &str| body.get("load")?.get(name)?.as_f64();
        Some(ServerLoad {
            receiving: number("receiving")?,
            waiting: number("waiting")?,
            workers_busy: number("workers_busy")?,
            uploaders_busy: number("uploaders_busy")?,
            sending: number("sending")?,
        })
    }
}

/// Asks a server, over one connection as long as that holds.
#[derive(Default)]
pub(super) struct Asker {
    connection: Option<(String, SendRequest<Empty<Bytes>>)>,
}

impl Asker {
    /// One look; none: there is no server, or it does not say.
    pub(super) async fn look(&mut self, serving: &Serving) -> Option<ServerLoad> {
        let (_, place) = serving.running()?;
        let looked = tokio::time::timeout(LOOK, self.ask(place)).await.ok().flatten();
        if looked.is_none() {
            self.connection = None;
        }
        looked
    }

    async fn ask(&mut self, place: String) -> Option<ServerLoad> {
        if self.connection.as_ref().is_none_or(|(of, sender)| *of != place || sender.is_closed()) {
            let stream = TcpStream::connect(&place).await.ok()?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
            // Ends with the sender; what goes wrong is told to whoever asks.
            tokio::spawn(connection);
            self.connection = Some((place.clone(), sender));
        }
        let (_, sender) = self.connection.as_mut()?;
        sender.ready().await.ok()?;
        let request = Request::get("/ready").header(header::HOST, place).body(Empty::new()).ok()?;
        let answer = sender.send_request(request).await.ok()?;
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.ok()?;
        ServerLoad::read(&body.to_bytes())
    }
}
