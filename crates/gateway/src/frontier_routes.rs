//! The Frontier protocol over HTTP: `GET /NAME/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=...`
//!
//! SQL comes from the client, so it is taken from those addresses alone that the administrator allows. It runs as named queries do: in a
//! read-only transaction, within limits, once for all who ask at once, and its payload is kept.
//!
//! ```text
//! within 5 s   headers with Content-Length, Last-Modified, Cache-Control; the whole answer
//! later        headers without; <keepalive /> every 5 s, then the data as it is
//! ```
//!
//! *Caveats.* Signatures and `cert_request` are not there yet: a global error says so.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use futures_util::{StreamExt as _, stream};
use headwater_model::sql::with_parameters;
use headwater_protocol::Value;
use tokio::sync::mpsc;

use crate::cache::{Kept, Key, last_modified};
use crate::fault::{Fault, set};
use crate::frontier::{Answer as Frame, Asked as Payload, Field, Fields, Kind, Quality, Rows, Ttl};
use crate::frontier::{Request as Parsed, Statement};
use crate::query::{Freshness, QueryLimits};
use crate::run::{Form, Job};
use crate::service::{Answer, Asked, Service};

/// How often a client that waits is told that the query still runs.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// `Cache-Control: max-age` of errors, at most.
const ERROR_MAX_AGE_S: u32 = 300;
/// Which a client sends always.
const CLIENT_ID: &str = "x-frontier-id";
/// And where an error is not to be kept by a cache.
const OPTIONS: &str = "x-frontier-opts";

/// Who is served, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontierSettings {
    /// The first part of the path: `/NAME/Frontier/...` and `/NAME/...`.
    pub name: String,
    /// Whose SQL is run: addresses, each with the number of its leading bits that count.
    pub allowed: Vec<(IpAddr, u8)>,
    /// Where files lie; `None`: there are none.
    pub files: Option<PathBuf>,
    /// What an answer may take.
    pub limits: QueryLimits,
    /// For how long the gateway itself keeps a payload without asking.
    pub kept_s: u32,
}

/// Whether an address is among these.
fn is_allowed(allowed: &[(IpAddr, u8)], address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address.to_canonical() {
        IpAddr::V4(address) => (32, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (128, address.to_bits()),
    };
    let (width, is) = bits(address);
    allowed.iter().any(|(network, length)| {
        let (of, network) = bits(*network);
        let mask = if *length == 0 { 0 } else { u128::MAX << (128 - u32::from((*length).min(of))) };
        of == width && (is ^ network) & mask == 0
    })
}

/// An answer, whole.
struct Framed {
    body: String,
    /// When the newest of its payloads has changed.
    modified: Option<SystemTime>,
    /// Whether a payload has an error.
    is_error: bool,
}

struct Frontier {
    service: Arc<Service>,
    settings: FrontierSettings,
}

/// The routes of the protocol.
pub(crate) fn router(service: Arc<Service>, settings: FrontierSettings) -> Router {
    let name = format!("/{}", settings.name);
    let frontier = Arc::new(Frontier { service, settings });
    Router::new().route(&name, any(answer)).route(&format!("{name}/{{*rest}}"), any(answer)).with_state(frontier)
}

async fn answer(State(frontier): State<Arc<Frontier>>, request: Request) -> Response {
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    match frontier.understand(&method, &uri, &headers, peer) {
        Ok(asked) => respond(frontier, asked, &headers).await,
        Err(message) => {
            tracing::debug!(message, "a Frontier request is refused");
            let head = Head { ttl: Ttl::Long, max_stale_s: None, is_error: true, modified: None };
            finished(&head, Frame::global_error(&message), breaks_off(&headers))
        }
    }
}

/// Whether an error is not to come whole, so that no cache keeps it.
fn breaks_off(headers: &HeaderMap) -> bool {
    headers.get(OPTIONS).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains("DontCacheErrors"))
}

impl Frontier {
    /// The request; a message if it is an error of the whole.
    fn understand(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Parsed, String> {
        if method != Method::GET {
            return Err(format!("{method} is not served, expected GET"));
        }
        if !headers.contains_key(CLIENT_ID) {
            return Err("the header X-Frontier-Id is missing".to_owned());
        }
        if !peer.is_some_and(|peer| is_allowed(&self.settings.allowed, peer)) {
            let peer = peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string());
            return Err(format!("requests from {peer} are not allowed here"));
        }
        let target = uri.path_and_query().map_or("", |target| target.as_str());
        let parsed = Parsed::parse(target).map_err(|error| error.to_string())?;
        let own = format!("/{}", self.settings.name);
        if parsed.servlet != own && parsed.servlet != format!("{own}/Frontier") {
            return Err(format!("{} is not served, expected {own}/Frontier", parsed.servlet));
        }
        if parsed.is_signed || parsed.payloads.iter().any(|payload| payload.kind == Kind::Certificate) {
            return Err("answers are not signed here, and there is no certificate".to_owned());
        }
        Ok(parsed)
    }

    /// The bytes of a payload.
    async fn payload(&self, payload: &Payload, ttl: Ttl) -> Result<Arc<Kept>, String> {
        match payload.kind {
            Kind::Query => self.query(payload, ttl).await,
            Kind::File => self.file(payload).await,
            Kind::Certificate | Kind::Meta => Err("meta is not served".to_owned()),
        }
    }

    async fn query(&self, payload: &Payload, ttl: Ttl) -> Result<Arc<Kept>, String> {
        let Statement { sql, values } = payload.statement().map_err(|error| error.to_string())?;
        let mut number = 0;
        let sql = with_parameters(&sql, |name| {
            if name != "?" {
                return name.to_owned();
            }
            number += 1;
            format!("?{number}")
        });
        let job = Job {
            name: "frontier_request".to_owned(),
            parameters: values.iter().map(Value::text).collect(),
            types: std::collections::BTreeMap::new(),
            limits: self.settings.limits,
            form: Form::Frontier,
            page: None,
            freshness: None,
            known: None,
            sql,
        };
        let key = Key::from(format!("\n{}\n{}", job.sql, values.join("\n")));
        let freshness = Freshness { max_age_s: self.settings.kept_s, ..Freshness::default() };
        let kept = match self.service.answer(&Asked { key, job, freshness }).await {
            Ok(Answer::Kept(kept, _)) => kept,
            Ok(Answer::Streamed(first, mut running)) => {
                let mut body = first.to_vec();
                while let Some(piece) = running.next().await {
                    body.extend(piece.map_err(|fault| fault.message)?);
                }
                Arc::new(Kept::unkept(body.into()))
            }
            Err(Fault { message, .. }) => return Err(message),
        };
        if ttl == Ttl::Forever && records(&kept.body) == 0 {
            return Err("an empty result can't be kept for ever".to_owned());
        }
        Ok(kept)
    }

    async fn file(&self, payload: &Payload) -> Result<Arc<Kept>, String> {
        let path = payload.path().map_err(|error| error.to_string())?;
        let folder = self.settings.files.as_ref().ok_or("files are not served here")?;
        let (place, limit) = (folder.join(&path), self.settings.limits.bytes_max);
        let missing = || format!("there is no file {path:?}");
        let real = tokio::fs::canonicalize(&place).await.map_err(|_| missing())?;
        let root = tokio::fs::canonicalize(folder).await.map_err(|_| missing())?;
        let about = tokio::fs::metadata(&real).await.map_err(|_| missing())?;
        // A link may lead out.
        if !real.starts_with(&root) || !about.is_file() {
            return Err(missing());
        }
        if about.len() > limit {
            return Err(format!("the file {path:?} has {} bytes, at most {limit} are served", about.len()));
        }
        let content = tokio::fs::read(&real).await.map_err(|_| missing())?;
        let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Arc::new(Kept { modified, ..Kept::unkept(Rows::of_bytes(&content).take().into()) }))
    }

    /// The whole answer.
    async fn frame(&self, parsed: &Parsed) -> Framed {
        let mut frame = Frame::begin(parsed.payloads.len());
        let (mut modified, mut is_error) = (None, false);
        for asked in &parsed.payloads {
            let payload = self.payload(asked, parsed.ttl).await;
            frame.begin_payload(&asked.name, asked.encoding);
            match payload {
                Ok(kept) => {
                    frame.data(&kept.body);
                    let full_size = kept.body.len() as u64;
                    let is_file = asked.kind == Kind::File;
                    let records = if is_file { 1 } else { records(&kept.body) };
                    frame.end_payload(Quality::Good { records, full_size });
                    modified = modified.max(Some(kept.modified));
                }
                Err(message) => {
                    is_error = true;
                    frame.end_payload(Quality::Error(&message));
                }
            }
        }
        frame.end(None);
        Framed { body: frame.take(), modified, is_error }
    }
}

/// Rows of a payload, without the header.
fn records(payload: &[u8]) -> u64 {
    let ends = Fields::new(payload).filter(|field| matches!(field, Ok(Field::EndOfRecord))).count();
    (ends as u64).saturating_sub(1)
}

async fn respond(frontier: Arc<Frontier>, parsed: Parsed, headers: &HeaderMap) -> Response {
    let (ttl, max_stale_s) = (parsed.ttl, max_stale(headers));
    let beginning = beginning(&parsed);
    let (tell, mut told) = mpsc::channel::<Framed>(1);
    let framing = async move {
        let _ = tell.send(frontier.frame(&parsed).await).await;
    };
    let framing = Abort(tokio::spawn(framing));
    let Ok(framed) = tokio::time::timeout(KEEP_ALIVE, told.recv()).await else {
        return slow(beginning, told, framing);
    };
    let Some(Framed { body, modified, is_error }) = framed else {
        return Fault::internal("a Frontier answer was not made").into_response(false);
    };
    let modified = modified.filter(|_| !is_error).and_then(last_modified);
    let head = Head { ttl, max_stale_s, is_error, modified };
    if let Some(modified) = &head.modified
        && headers.get(header::IF_MODIFIED_SINCE).is_some_and(|since| since == modified)
    {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        head.write(response.headers_mut());
        return response;
    }
    finished(&head, body, is_error && breaks_off(headers))
}

/// Ends a task with whoever waits for it.
struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The beginning of an answer, which is the same whatever comes.
fn beginning(parsed: &Parsed) -> String {
    let mut frame = Frame::begin(parsed.payloads.len());
    if let Some(first) = parsed.payloads.first() {
        frame.begin_payload(&first.name, first.encoding);
    }
    frame.take()
}

/// An answer whose head is gone before its data has come.
fn slow(beginning: String, told: mpsc::Receiver<Framed>, framing: Abort) -> Response {
    const STILL_THERE: &str = "\n   <keepalive />";
    let sent = beginning.len();
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from(beginning + STILL_THERE))]);
    let rest = stream::try_unfold((told, framing, sent), async |(mut told, framing, sent)| {
        Ok(match tokio::time::timeout(KEEP_ALIVE, told.recv()).await {
            Ok(Some(Framed { body, .. })) => Some((Bytes::from(body).slice(sent..), (told, framing, sent))),
            Ok(None) => None,
            Err(_) => Some((Bytes::from_static(STILL_THERE.as_bytes()), (told, framing, sent))),
        })
    });
    let mut response = Body::from_stream(first.chain(rest)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/xml;charset=US-ASCII");

/// `Cache-Control: max-stale=N` of a request.
fn max_stale(headers: &HeaderMap) -> Option<u32> {
    let mut directives = headers.get(header::CACHE_CONTROL)?.to_str().ok()?.split(',').map(str::trim);
    directives.find_map(|directive| directive.strip_prefix("max-stale=")?.parse().ok())
}

/// What an answer's head says.
struct Head {
    ttl: Ttl,
    max_stale_s: Option<u32>,
    is_error: bool,
    modified: Option<String>,
}

impl Head {
    fn write(&self, headers: &mut HeaderMap) {
        let ttl = if self.is_error { Ttl::Short } else { self.ttl };
        let max_age_s = if self.is_error { ERROR_MAX_AGE_S.min(ttl.max_age_s()) } else { ttl.max_age_s() };
        let stale = self.max_stale_s.map_or_else(String::new, |stale| format!(", stale-if-error={stale}"));
        set(headers, header::CACHE_CONTROL, &format!("max-age={max_age_s}{stale}"));
        if let Some(modified) = &self.modified {
            set(headers, header::LAST_MODIFIED, modified);
        }
    }
}

/// A whole answer. `breaks_off`: the connection ends before it.
fn finished(head: &Head, body: String, breaks_off: bool) -> Response {
    let length = body.len();
    let mut response = if breaks_off {
        let cut = Bytes::from(body.into_bytes()).slice(..length / 2);
        let broken = stream::iter([Ok(cut), Err(std::io::Error::other("an error that no cache is to keep"))]);
        Body::from_stream(broken).into_response()
    } else {
        Body::from(body).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    set(headers, header::CONTENT_LENGTH, &length.to_string());
    head.write(headers);
    response
}

#[cfg(test)]
mod tests;
