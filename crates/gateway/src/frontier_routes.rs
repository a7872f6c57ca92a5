//! The Frontier protocol over HTTP: `GET /NAME/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=...`
//!
//! SQL comes from the client, so it is taken from those addresses alone that the administrator allows. It runs on connections of its
//! own ([`ClientSql`]), and otherwise as named queries do: in a read-only transaction, within limits, once for all who ask at once, and its payload is kept.
//!
//! ```text
//! held, within 5 s   headers with Content-Length, Last-Modified, Cache-Control; the whole answer
//! larger             headers with Cache-Control; the answer as it comes, broken off where it fails (by HTTP/1.0: no-store)
//! after 5 s          headers with none of them; <keepalive /> every 5 s, then the answer as it comes
//! no room, till then 503 with Retry-After: no cache keeps that, and the client goes to its next server
//! ```

mod contents;
mod writing;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc;

use self::writing::{Abort, Framed, Told, Wishes, write};
use crate::client_sql::ClientSql;
use crate::fault::{Fault, set};
use crate::frontier::{Answer as Frame, Kind, Request as Parsed, Signer, Ttl};
use crate::packing::Link;
use crate::query::QueryLimits;
use crate::routes::{broken_off, not_modified, unkept_by_http_10};
use crate::service::Service;

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
    /// And users, from wherever they come.
    pub users: Vec<String>,
    /// Signs answers where that is asked for.
    pub signer: Option<Arc<Signer>>,
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

/// Whether SQL is taken from whoever asks: by address, or by what it shows to be let in.
pub(crate) async fn is_admitted(
    settings: &FrontierSettings,
    service: &Service,
    authorization: Option<&HeaderValue>,
    peer: Option<IpAddr>,
) -> Result<(), Fault> {
    if peer.is_some_and(|peer| is_allowed(&settings.allowed, peer)) {
        return Ok(());
    }
    let Some(given) = authorization.filter(|_| !settings.users.is_empty()) else {
        let peer = peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string());
        return Err(Fault::arguments(format!("requests from {peer} are not allowed here")));
    };
    let user = service.user(given).await?;
    if settings.users.contains(&user) {
        return Ok(());
    }
    Err(Fault::arguments(format!("requests of user {user:?} are not allowed here")))
}

struct Frontier {
    service: Arc<Service>,
    settings: FrontierSettings,
    sql: ClientSql,
}

/// The routes of the protocol.
pub(crate) fn router(service: Arc<Service>, settings: FrontierSettings, sql: ClientSql) -> Router {
    let name = format!("/{}", settings.name);
    let frontier = Arc::new(Frontier { service, settings, sql });
    Router::new().route(&name, any(answer)).route(&format!("{name}/{{*rest}}"), any(answer)).with_state(frontier)
}

async fn answer(State(frontier): State<Arc<Frontier>>, request: Request) -> Response {
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    let version = request.version();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    let link = request.extensions().get::<Link>().map(|link| link.bytes_per_s);
    let is_private = headers.contains_key(header::AUTHORIZATION);
    let understood = match frontier.admit(&headers, peer).await {
        Ok(()) => frontier.understand(&method, &uri, &headers).map_err(Fault::arguments),
        Err(fault) => Err(fault),
    };
    match understood {
        Ok(asked) => match frontier.certificate(&asked) {
            Some(certificate) => certificate.into_response(),
            None => unkept_by_http_10(version, respond(frontier, asked, (&headers, link), is_private).await),
        },
        Err(fault) if fault.retry_after.is_some() => come_again(fault),
        Err(fault) => {
            tracing::debug!(message = fault.message, "a Frontier request is refused");
            let head = Head { is_error: true, is_private, ..Head::default() };
            finished(&head, Frame::global_error(&fault.message), breaks_off(&headers))
        }
    }
}

/// Whether an error is not to come whole, so that no cache keeps it.
fn breaks_off(headers: &HeaderMap) -> bool {
    headers.get(OPTIONS).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains("DontCacheErrors"))
}

impl Frontier {
    /// Whether SQL is taken from whoever asks: by address, or by name.
    async fn admit(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<(), Fault> {
        is_admitted(&self.settings, &self.service, headers.get(header::AUTHORIZATION), peer).await
    }

    /// The request; a message if it is an error of the whole.
    fn understand(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Parsed, String> {
        if method != Method::GET {
            return Err(format!("{method} is not served, expected GET"));
        }
        if !headers.contains_key(CLIENT_ID) {
            return Err("the header X-Frontier-Id is missing".to_owned());
        }
        let target = uri.path_and_query().map_or("", |target| target.as_str());
        let parsed = Parsed::parse(target).map_err(|error| error.to_string())?;
        let own = format!("/{}", self.settings.name);
        if parsed.servlet != own && parsed.servlet != format!("{own}/Frontier") {
            return Err(format!("{} is not served, expected {own}/Frontier", parsed.servlet));
        }
        let wants_signer = parsed.is_signed || parsed.payloads.iter().any(|payload| payload.kind == Kind::Certificate);
        if wants_signer && self.settings.signer.is_none() {
            return Err("answers are not signed here, and there is no certificate".to_owned());
        }
        Ok(parsed)
    }

    /// The certificate, if that is what is asked for.
    fn certificate(&self, parsed: &Parsed) -> Option<String> {
        let [payload] = parsed.payloads.as_slice() else { return None };
        let signer = self.settings.signer.as_ref().filter(|_| payload.kind == Kind::Certificate)?;
        Some(signer.certificate().to_owned())
    }
}

/// `is_private`: who asks is let in by name, and no other by what caches keep of it.
async fn respond(
    frontier: Arc<Frontier>,
    parsed: Parsed,
    (headers, link): (&HeaderMap, Option<f64>),
    is_private: bool,
) -> Response {
    let breaks_off = breaks_off(headers);
    let head = Head { ttl: parsed.ttl, max_stale_s: max_stale(headers), is_private, ..Head::default() };
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|since| since.to_str().ok()).map(ToOwned::to_owned);
    let (mut told, task) = write(frontier, parsed, Wishes { since, breaks_off, link });
    match told.recv().await {
        Some(Told::Whole(Framed { body, modified, is_error })) => {
            finished(&Head { is_error, modified, ..head }, body, is_error && breaks_off)
        }
        Some(Told::Refused(fault)) => come_again(fault),
        Some(Told::Unchanged(modified)) => {
            let mut response = not_modified();
            Head { modified: Some(modified), ..head }.write(response.headers_mut());
            response
        }
        Some(Told::Coming(first)) => {
            let mut response = pieces(first, told, task);
            head.write(response.headers_mut());
            response
        }
        Some(Told::Slow(first) | Told::Piece(first)) => pieces(first, told, task),
        Some(Told::Broken | Told::End) | None => Fault::internal("a Frontier answer was not made").into_response(false),
    }
}

/// There is no room now, or no database. A cache that has an answer which is too old may give that; an error in a frame of 200 would take its place.
fn come_again(fault: Fault) -> Response {
    let frame = Frame::global_error(&fault.message);
    let mut response = fault.into_response(false);
    *response.body_mut() = Body::from(frame);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// An answer that comes in pieces. One that is broken off ends in an error, and is not taken for the whole.
fn pieces(first: Bytes, told: mpsc::Receiver<Told>, task: Abort) -> Response {
    let first = stream::iter([Ok(first)]);
    let rest = stream::try_unfold((told, task), async |(mut told, task)| match told.recv().await {
        Some(Told::Piece(piece)) => Ok(Some((piece, (told, task)))),
        Some(Told::End) => Ok(None),
        // The writer is gone without a word: it has not ended.
        _ => Err(broken_off("an answer that was broken off").await),
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
#[derive(Default)]
struct Head {
    ttl: Ttl,
    max_stale_s: Option<u32>,
    is_error: bool,
    is_private: bool,
    modified: Option<String>,
}

impl Head {
    fn write(&self, headers: &mut HeaderMap) {
        let ttl = if self.is_error { Ttl::Short } else { self.ttl };
        let max_age_s = if self.is_error { ERROR_MAX_AGE_S.min(ttl.max_age_s()) } else { ttl.max_age_s() };
        let stale = self.max_stale_s.map_or_else(String::new, |stale| format!(", stale-if-error={stale}"));
        let who = if self.is_private { "private, " } else { "" };
        set(headers, header::CACHE_CONTROL, &format!("{who}max-age={max_age_s}{stale}"));
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
        let end = stream::once(async { Err(broken_off("an error that no cache is to keep").await) });
        Body::from_stream(stream::iter([Ok(cut)]).chain(end)).into_response()
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
