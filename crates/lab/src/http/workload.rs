//! Requests, as the harness drives them.
//!
//! A client asks for the one URL of the target, the hot one, or for the same with a parameter that nobody has used before. How often it
//! does which is the hit ratio of any cache between that keeps what it has got: the hot one is asked for once before the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::header::{ACCEPT_ENCODING, HOST};
use hyper::{Request, Uri};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::fetch::{Connection, Got, wrong};
use super::origin::{self, KEY, Origin};
use super::payload::Rows;
use super::settings::HttpSettings;
use super::target::{HttpTarget, Server, place};
use crate::harness::{Attempts, Class, Failure, Tally, Workload};
use crate::link::Link;
use crate::random::{Random, stream};
use crate::tls::Tls;

/// Requests.
pub(crate) struct HttpWorkload {
    target: HttpTarget,
    /// Where the server is one of https.
    tls: Option<Tls>,
    settings: HttpSettings,
    seed: u64,
    timeout: Duration,
    served: OnceLock<Served>,
    origin: Mutex<Option<Origin>>,
    /// Answers that came from a cache, of all that were right.
    hits: AtomicU64,
}

/// Where the server is, once that is known.
struct Served {
    /// The host and port to connect to.
    place: String,
    host: String,
    /// What a request for the hot answer says.
    url: String,
    /// What makes this run's keys differ from all others': when it began.
    begun: u128,
    /// What the lab's own server answers.
    rows: Option<Arc<Rows>>,
    /// The requests that it had before the clients came.
    requests_before: u64,
}

/// One client.
pub(crate) struct Client {
    number: usize,
    random: Random,
    drawn: u64,
    /// What it asks for next; empty: the hot answer.
    key: String,
    connection: Option<Connection>,
}

impl HttpWorkload {
    /// An error: what the settings say is not for this target.
    pub(crate) fn new(
        target: HttpTarget,
        settings: HttpSettings,
        (seed, timeout): (u64, Duration),
    ) -> Result<HttpWorkload, Failure> {
        if target.is_own() && settings.expected != (None, None) {
            let what =
                "expect_bytes and expect_crc32 are for a server of somebody else's: the lab knows what its own answers";
            return Err(Failure::usage(what));
        }
        let tls = match &target.server {
            Server::Theirs(uri) => Tls::to(uri)?,
            Server::Own(_) => None,
        };
        let (served, origin, hits) = (OnceLock::new(), Mutex::default(), AtomicU64::new(0));
        Ok(HttpWorkload { target, tls, settings, seed, timeout, served, origin, hits })
    }

    fn served(&self) -> Result<&Served, Failure> {
        self.served.get().ok_or_else(|| Failure::new(Class::Other, "nothing is prepared"))
    }

    /// Starts the lab's own server, where that is the target.
    fn serve(&self) -> Result<(Served, Option<Origin>), Failure> {
        let (host, path, origin) = match &self.target.server {
            Server::Theirs(uri) => {
                let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
                (place(uri), path, None)
            }
            Server::Own(at) => {
                let refused = |error| Failure::usage(format!("the lab's own server can't listen at {at}: {error}"));
                let origin = Origin::start(at, &self.settings).map_err(refused)?;
                (origin.place().to_string(), origin::path(&self.settings), Some(origin))
            }
        };
        let url = if self.target.proxy.is_some() { format!("http://{host}{path}") } else { path };
        let served = Served {
            place: self.target.proxy.clone().unwrap_or_else(|| host.clone()),
            host,
            url,
            begun: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos(),
            rows: origin.as_ref().map(Origin::rows),
            requests_before: 0,
        };
        Ok((served, origin))
    }

    fn request(&self, served: &Served, key: &str) -> Result<Request<Empty<Bytes>>, Failure> {
        let mut uri = served.url.clone();
        if !key.is_empty() {
            let before = if uri.contains('?') { '&' } else { '?' };
            uri.extend([before.to_string().as_str(), KEY, "=", key]);
        }
        let encoding = if self.settings.level > 0 { "gzip" } else { "identity" };
        let uri: Uri = uri.parse().map_err(|error| Failure::usage(format!("{}: {error}", served.url)))?;
        let request = Request::get(uri).header(HOST, &served.host).header(ACCEPT_ENCODING, encoding);
        request.body(Empty::new()).map_err(|error| Failure::usage(error.to_string()))
    }

    /// Whether it is what it must be, as far as that is known.
    fn check(&self, served: &Served, key: &str, got: &Got) -> Result<(), Failure> {
        let (bytes, crc) = match &served.rows {
            Some(rows) => (Some(self.settings.payload.bytes as u64), Some(rows.crc(key))),
            None => self.settings.expected,
        };
        let actual = got.traffic.content_bytes;
        if let Some(bytes) = bytes.filter(|bytes| *bytes != actual) {
            return Err(Failure::new(Class::Code("size".to_owned()), format!("{actual} bytes, expected {bytes}")));
        }
        match crc.filter(|crc| *crc != got.crc) {
            Some(crc) => Err(wrong(&format!("the CRC-32 is {:08x}, expected {crc:08x}", got.crc))),
            None => Ok(()),
        }
    }
}

impl Workload for HttpWorkload {
    type Client = Client;

    async fn prepare(&self) -> Result<(), Failure> {
        let (mut served, origin) = self.serve()?;
        // What comes of it is no matter: the clients will see.
        let ask = async {
            let mut connection = Connection::open(&served.place, Link::default(), self.tls.as_ref()).await?;
            connection.get(self.request(&served, "")?).await
        };
        let _ = tokio::time::timeout(self.timeout, ask).await;
        served.requests_before = origin.as_ref().map_or(0, Origin::requests);
        *self.origin.lock().await = origin;
        let _ = self.served.set(served);
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        let random = Random::derived(self.seed, &[stream::DRAWS, number as u64]);
        Client { number, random, drawn: 0, key: String::new(), connection: None }
    }

    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        client.connection = None;
        client.connection = Some(Connection::open(&self.served()?.place, self.settings.link, self.tls.as_ref()).await?);
        Ok(())
    }

    fn generate(&self, client: &mut Client) {
        let is_hot = client.random.fraction() < self.settings.hit_ratio;
        client.drawn += 1;
        let begun = self.served.get().map_or(0, |served| served.begun);
        client.key = if is_hot { String::new() } else { format!("{begun:x}-{:x}-{:x}", client.number, client.drawn) };
    }

    async fn execute(&self, client: &mut Client) -> Result<Attempts, Failure> {
        let served = self.served()?;
        let request = self.request(served, &client.key)?;
        // Given up half way, a connection is of no more use: it is put back when the answer is whole.
        let kept = match client.connection.take() {
            Some(mut connection) => connection.is_kept().await.then_some(connection),
            None => None,
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(&served.place, self.settings.link, self.tls.as_ref()).await?,
        };
        let got = connection.get(request).await;
        let is_whole = got.as_ref().map_or_else(|failure| !failure.is_broken, |_| true);
        if is_whole && !self.settings.is_connection_new {
            client.connection = Some(connection);
        }
        let got = got?;
        self.check(served, &client.key, &got)?;
        self.hits.fetch_add(got.traffic.hits, Ordering::Relaxed);
        Ok(Attempts { traffic: got.traffic, ..Attempts::default() })
    }

    fn handover(&self) -> serde_json::Value {
        let of = |served: &Served| {
            let Served { place, host, url, begun, .. } = served;
            serde_json::json!({ "place": place, "host": host, "url": url, "begun": begun.to_string() })
        };
        self.served.get().map(of).unwrap_or_default()
    }

    fn join(&self, handover: &serde_json::Value) -> Result<(), Failure> {
        let text = |name: &str| handover[name].as_str().map(str::to_owned);
        let served = || {
            let rows = self.target.is_own().then(|| Arc::new(Rows::of(self.settings.payload)));
            let begun = text("begun")?.parse().ok()?;
            let (place, host, url) = (text("place")?, text("host")?, text("url")?);
            Some(Served { place, host, url, begun, rows, requests_before: 0 })
        };
        let _ = self.served.set(served().ok_or_else(|| Failure::new(Class::Other, "nothing is prepared"))?);
        Ok(())
    }

    fn report(&self, _: &dyn Fn(Instant) -> u64) -> serde_json::Value {
        self.hits.load(Ordering::Relaxed).into()
    }

    fn take_report(&self, report: &serde_json::Value, _: &dyn Fn(u64) -> Instant) {
        self.hits.fetch_add(report.as_u64().unwrap_or_default(), Ordering::Relaxed);
    }

    /// What is said to come from a cache must not have come from the server. Of requests that failed nobody knows.
    async fn verify(&self, tally: Tally) -> Result<Vec<String>, Failure> {
        let Some(origin) = &*self.origin.lock().await else { return Ok(Vec::new()) };
        let came = origin.requests() - self.served()?.requests_before;
        let hits = self.hits.load(Ordering::Relaxed);
        let may_come = tally.done.saturating_sub(hits) + tally.failed;
        let what = format!("{came} requests came to the server, of {} with {hits} hits", tally.done + tally.failed);
        let is_true = came <= may_come;
        Ok(if is_true {
            Vec::new()
        } else {
            vec![format!("not so: what caches call hits never came to the server ({what})")]
        })
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        *self.origin.lock().await = None;
        Ok(())
    }
}
