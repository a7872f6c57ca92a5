//! Requests, as the harness drives them.
//!
//! A client asks for the one URL of the target, the hot one, or for the same with a parameter that nobody has used before. How often it
//! does which is the hit ratio of any cache between that keeps what it has got: the hot one is asked for once before the run.
//!
//! Where there is more to ask for, a client draws one of it each time by Zipf's law, and asks for it as it is or with such a parameter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::header::{ACCEPT_ENCODING, HOST};
use hyper::{Request, Uri};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::asks::Ask;
use super::fetch::{Connection, Got, Reading, wrong};
use super::gateway::{self, Behind, Gateway, SERVLET};
use super::origin::{self, KEY, Origin};
use super::payload::Rows;
use super::settings::HttpSettings;
use super::target::{HttpTarget, Server, place};
use crate::frontier;
use crate::harness::{Attempts, Class, Failure, Tally, Workload};
use crate::link::Link;
use crate::random::{Random, stream};
use crate::target::Target;
use crate::tls::Tls;

/// Requests.
pub(crate) struct HttpWorkload {
    target: HttpTarget,
    /// Where the server is one of https.
    tls: Option<Tls>,
    settings: HttpSettings,
    seed: u64,
    timeout: Duration,
    /// What serves as a gateway.
    program: Option<PathBuf>,
    served: OnceLock<Served>,
    origin: Mutex<Option<Origin>>,
    gateway: Mutex<Option<Gateway>>,
    /// Where the lab has made its table.
    table: Mutex<Option<Target>>,
    /// Answers that came from a cache, of all that were right.
    hits: AtomicU64,
}

/// Where the server is, once that is known.
struct Served {
    /// The host and port to connect to.
    place: String,
    host: String,
    /// What stands before the path of a request; empty, but for a proxy.
    root: String,
    /// The path of the hot answer.
    path: String,
    /// What makes this run's keys differ from all others': when it began.
    begun: u128,
    /// What the lab's own server answers.
    rows: Option<Arc<Rows>>,
    /// The bytes and the CRC-32 of what a gateway has from the lab's table.
    values: Option<(u64, u32)>,
    /// The requests that it had before the clients came.
    requests_before: u64,
}

/// One client.
pub(crate) struct Client {
    number: usize,
    random: Random,
    drawn: u64,
    /// The rank of what it asks for next, where that is more than one thing.
    rank: usize,
    /// The parameter that makes it another URL; empty: there is none.
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
            Server::Own(_) | Server::Gateway(_) => None,
        };
        refuse_asks(&target.server, &settings)?;
        Ok(HttpWorkload {
            target,
            tls,
            settings,
            seed,
            timeout,
            program: None,
            served: OnceLock::new(),
            origin: Mutex::default(),
            gateway: Mutex::default(),
            table: Mutex::default(),
            hits: AtomicU64::new(0),
        })
    }

    /// With the program `headwater`, which serves where the target is a gateway.
    pub(crate) fn served_by(self, program: Option<PathBuf>) -> HttpWorkload {
        HttpWorkload { program, ..self }
    }

    fn served(&self) -> Result<&Served, Failure> {
        self.served.get().ok_or_else(|| Failure::new(Class::Other, "nothing is prepared"))
    }

    /// Starts what the lab is to start.
    async fn serve(&self) -> Result<Served, Failure> {
        let (host, path, rows) = match &self.target.server {
            Server::Theirs(uri) => {
                let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
                (place(uri), path, None)
            }
            Server::Own(at) => {
                let refused = |error| Failure::usage(format!("the lab's own server can't listen at {at}: {error}"));
                let origin = Origin::start(at, &self.settings).map_err(refused)?;
                let (host, rows) = (origin.place().to_string(), origin.rows());
                *self.origin.lock().await = Some(origin);
                (host, origin::path(&self.settings), Some(rows))
            }
            Server::Gateway(behind) => (self.start(behind).await?, SERVLET.to_owned(), None),
        };
        Ok(Served {
            place: self.target.proxy.clone().unwrap_or_else(|| host.clone()),
            root: if self.target.proxy.is_some() { format!("http://{host}") } else { String::new() },
            host,
            path,
            begun: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos(),
            rows,
            values: self.values(),
            requests_before: 0,
        })
    }

    /// Starts a gateway, with the lab's table where that is asked for; gives its host and port.
    async fn start(&self, behind: &Behind) -> Result<String, Failure> {
        let Some(program) = self.program.clone() else {
            return Err(Failure::usage("a gateway takes the program that serves it"));
        };
        if let (None, Some(database)) = (&self.settings.asks, behind.database()?) {
            gateway::refuse_existing(&database).await?;
            *self.table.lock().await = Some(database.clone());
            gateway::make(&database, self.settings.payload).await?;
        }
        let behind = behind.clone();
        let started = tokio::task::spawn_blocking(move || Gateway::start(&program, &behind)).await;
        let started = started.map_err(|error| Failure::new(Class::Other, error.to_string()))??;
        let place = started.place.clone();
        *self.gateway.lock().await = Some(started);
        Ok(place)
    }

    /// Whether it is the lab's table that a gateway is asked for.
    fn is_for_table(&self) -> bool {
        matches!(self.target.server, Server::Gateway(_)) && self.settings.asks.is_none()
    }

    /// What it has to answer then. Goes through all values.
    fn values(&self) -> Option<(u64, u32)> {
        self.is_for_table().then(|| self.settings.payload.of_values())
    }

    /// What a client asks for.
    fn request(&self, served: &Served, rank: usize, key: &str) -> Result<(Request<Empty<Bytes>>, Reading), Failure> {
        let (path, reading) = match self.settings.asks.as_ref().map(|asks| asks.of_rank(rank)) {
            None if self.is_for_table() => self.frontier(served, &gateway::sql(), key),
            None => (with_key(&served.path, key), Reading::Body),
            Some(Ask::Path(path)) => (with_key(path, key), Reading::Body),
            Some(Ask::Sql(sql)) => self.frontier(served, sql, key),
        };
        let encoding = if self.settings.level > 0 && reading == Reading::Body { "gzip" } else { "identity" };
        let uri: Uri =
            format!("{}{path}", served.root).parse().map_err(|error| Failure::usage(format!("{path}: {error}")))?;
        let request = Request::get(uri).header(HOST, &served.host).header(ACCEPT_ENCODING, encoding);
        let request = match reading {
            Reading::Body => request,
            Reading::Frontier { .. } => request.header(frontier::ID_HEADER, frontier::ID),
        };
        let request = request.body(Empty::new());
        Ok((request.map_err(|error| Failure::usage(error.to_string()))?, reading))
    }

    fn frontier(&self, served: &Served, sql: &str, key: &str) -> (String, Reading) {
        let level = (self.settings.level > 0).then_some(self.settings.level);
        let request = frontier::Request::new(sql).level(level).fresh(key);
        let servlet = served.path.split('?').next().unwrap_or_default().trim_end_matches('/');
        let column = self.is_for_table().then_some(self.settings.payload.column);
        let reading = Reading::Frontier { encoding: request.encoding(), column };
        (format!("{servlet}/Frontier/{}", request.target()), reading)
    }

    /// Whether it is what it must be, as far as that is known.
    fn check(&self, served: &Served, key: &str, got: &Got) -> Result<(), Failure> {
        let (bytes, crc) = match &served.rows {
            _ if served.values.is_some() => (served.values.map(|of| of.0), served.values.map(|of| of.1)),
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
        let mut served = self.serve().await?;
        // What comes of it is no matter: the clients will see.
        let ask = async {
            let mut connection = Connection::open(&served.place, Link::default(), self.tls.as_ref()).await?;
            let (request, reading) = self.request(&served, 0, "")?;
            connection.get(request, &reading).await
        };
        let _ = tokio::time::timeout(self.timeout, ask).await;
        served.requests_before = self.origin.lock().await.as_ref().map_or(0, Origin::requests);
        let _ = self.served.set(served);
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        let random = Random::derived(self.seed, &[stream::DRAWS, number as u64]);
        Client { number, random, drawn: 0, rank: 0, key: String::new(), connection: None }
    }

    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        client.connection = None;
        client.connection = Some(Connection::open(&self.served()?.place, self.settings.link, self.tls.as_ref()).await?);
        Ok(())
    }

    fn generate(&self, client: &mut Client) {
        let is_hot = client.random.fraction() < self.settings.hit_ratio;
        if let Some(asks) = &self.settings.asks {
            client.rank = asks.rank(&mut client.random);
        }
        client.drawn += 1;
        let begun = self.served.get().map_or(0, |served| served.begun);
        client.key = if is_hot { String::new() } else { format!("{begun:x}-{:x}-{:x}", client.number, client.drawn) };
    }

    async fn execute(&self, client: &mut Client) -> Result<Attempts, Failure> {
        let served = self.served()?;
        let (request, reading) = self.request(served, client.rank, &client.key)?;
        // Given up half way, a connection is of no more use: it is put back when the answer is whole.
        let kept = match client.connection.take() {
            Some(mut connection) => connection.is_kept().await.then_some(connection),
            None => None,
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(&served.place, self.settings.link, self.tls.as_ref()).await?,
        };
        let got = connection.get(request, &reading).await;
        let is_whole = got.as_ref().map_or_else(|failure| !failure.is_broken, |_| true);
        if is_whole && !self.settings.is_connection_new {
            client.connection = Some(connection);
        }
        let mut got = got?;
        let is_gateways = matches!(self.target.server, Server::Gateway(_)) && self.target.proxy.is_none();
        if is_gateways && reading == Reading::Body {
            // It tells the age of every answer to a named query that it had kept.
            got.traffic.misses = 1 - got.traffic.hits;
        }
        self.check(served, &client.key, &got)?;
        self.hits.fetch_add(got.traffic.hits, Ordering::Relaxed);
        Ok(Attempts { traffic: got.traffic, ..Attempts::default() })
    }

    fn handover(&self) -> serde_json::Value {
        let of = |served: &Served| {
            let Served { place, host, root, path, begun, .. } = served;
            serde_json::json!({ "place": place, "host": host, "root": root, "path": path, "begun": begun.to_string() })
        };
        self.served.get().map(of).unwrap_or_default()
    }

    fn join(&self, handover: &serde_json::Value) -> Result<(), Failure> {
        let text = |name: &str| handover[name].as_str().map(str::to_owned);
        let served = || {
            let rows = self.target.is_own().then(|| Arc::new(Rows::of(self.settings.payload)));
            let begun = text("begun")?.parse().ok()?;
            let (place, host) = (text("place")?, text("host")?);
            let (root, path, values) = (text("root")?, text("path")?, self.values());
            Some(Served { place, host, root, path, begun, rows, values, requests_before: 0 })
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
        *self.gateway.lock().await = None;
        match self.table.lock().await.take() {
            Some(database) => gateway::unmake(&database).await,
            None => Ok(()),
        }
    }
}

/// A path with a parameter that nobody has used before, if any.
fn with_key(path: &str, key: &str) -> String {
    let before = if path.contains('?') { '&' } else { '?' };
    if key.is_empty() { path.to_owned() } else { format!("{path}{before}{KEY}={key}") }
}

/// What can't be asked for there.
fn refuse_asks(server: &Server, settings: &HttpSettings) -> Result<(), Failure> {
    let why = match (server, &settings.asks) {
        (Server::Own(_), Some(_)) => "the lab's own server has one answer: leave asks out",
        (Server::Gateway(Behind::Config(_)), None) => {
            "asks is missing: what is to be asked of the gateway of this configuration?"
        }
        (Server::Gateway(Behind::Database(_)), Some(asks)) if asks.has_path() => {
            "asks has paths, which are of named queries: give the gateway's configuration, gateway:FILE.toml"
        }
        (Server::Gateway(_), _) if settings.expected != (None, None) => {
            "expect_bytes and expect_crc32 are for one answer of a server of somebody else's"
        }
        _ => return Ok(()),
    };
    Err(Failure::usage(why))
}
