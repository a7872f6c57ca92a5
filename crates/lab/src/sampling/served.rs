//! How full a server of syncs is, as it says itself on `/ready`.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;

use crate::harness::{Class, Failure};
use crate::link::Link;
use crate::peer::Peer;

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(2);

/// A server that is started while samples are taken already.
#[derive(Debug, Default)]
pub(crate) struct Serving(Mutex<Option<(Option<i32>, Peer)>>);

impl Serving {
    /// It runs: its process, if that is on this machine and known, and where it listens.
    pub(crate) fn begin(&self, process: Option<i32>, peer: Peer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((process, peer));
    }

    /// It does not any more.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn running(&self) -> Option<(Option<i32>, Peer)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn process(&self) -> Option<i32> {
        self.running().and_then(|(process, _)| process)
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
    fn read(body: &Value) -> Option<ServerLoad> {
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

/// How many workers a server says that it has.
pub(crate) async fn workers(peer: &Peer) -> Result<u64, Failure> {
    let asked = tokio::time::timeout(LOOK, Asker::default().ask(peer)).await;
    let said = asked.map_err(|_| Failure::new(Class::TimeOut, format!("{} does not answer", peer.place())))??;
    let workers = said.get("load").and_then(|load| load.get("workers")?.as_u64());
    workers.ok_or_else(|| Failure::usage(format!("{}: what answers on /ready is no Headwater server", peer.place())))
}

impl Asker {
    /// One look; none: there is no server, or it does not say.
    pub(super) async fn look(&mut self, serving: &Serving) -> Option<ServerLoad> {
        let (_, peer) = serving.running()?;
        let said = tokio::time::timeout(LOOK, self.ask(&peer)).await.ok().and_then(Result::ok);
        if said.is_none() {
            self.connection = None;
        }
        ServerLoad::read(&said?)
    }

    /// What it says in JSON; null: something else.
    async fn ask(&mut self, peer: &Peer) -> Result<Value, Failure> {
        let failed = |error: &dyn Display| Failure::new(Class::Lost, format!("{}: {error}", peer.place()));
        if self.connection.as_ref().is_none_or(|(of, sender)| of != peer.place() || sender.is_closed()) {
            let stream = peer.connect(Link::default()).await?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
            // Ends with the sender; what goes wrong is told to whoever asks.
            tokio::spawn(connection);
            self.connection = Some((peer.place().to_owned(), sender));
        }
        let Some((_, sender)) = &mut self.connection else { return Ok(Value::Null) };
        sender.ready().await.map_err(|error| failed(&error))?;
        let request = Request::get("/ready").header(header::HOST, peer.place()).body(Empty::new());
        let answer = sender.send_request(request.map_err(|error| failed(&error))?).await;
        let body = answer.map_err(|error| failed(&error))?.into_body();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| failed(&error))?;
        Ok(serde_json::from_slice(&body.to_bytes()).unwrap_or_default())
    }
}
