//! `GET /q/NAME.json?...`: the URL, the answer's headers, and whether the client has it already.
//!
//! One URL for each answer: arguments in another spelling or order, and those that have their default, are led there by 308. `NAME` without an
//! ending goes by `Accept`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri, Version, header};
use axum::middleware::map_request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use futures_util::stream;
use headwater_access::{Access, Error as AccessError};
use headwater_bufferpool::Pools;
use headwater_consolidated::QueryPool;
use headwater_knobs::{Knob, Live};
use headwater_protocol::packer::Knobs;
use percent_encoding::percent_decode_str;

use crate::cache::Kept;
use crate::client_sql::ClientSql;
use crate::coding::Coding;
use crate::cursors::{self, CursorSettings, Cursors, Stopping};
use crate::fault::{Fault, set};
use crate::format::Format;
use crate::frontier_routes::{self, FrontierSettings};
use crate::held;
use crate::knobs::{self, PIECE_BYTES_MAX};
use crate::packing::{Form, Link, Packer};
use crate::page;
use crate::query::{Query, Who};
use crate::run::Running;
use crate::service::{Answer, Asked, Service, Settings};
use crate::tag::{self, Question};

mod beside;

/// The longest query string that is looked at.
const QUERY_STRING_BYTES_MAX: usize = 8 << 10;

/// What has more than twice as many bytes, for a row that is large, goes in parts of so many.
const PART_BYTES: usize = PIECE_BYTES_MAX;

/// The gateway: named queries over HTTP.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) service: Arc<Service>,
    frontier: Option<(FrontierSettings, ClientSql)>,
    links: Option<Rate>,
    cursors: Option<Arc<Cursors>>,
}

/// Bytes a second that a request's client takes, by the request's extensions; `None`: nobody has measured it.
pub type Rate = fn(&Extensions) -> Option<f64>;

impl Gateway {
    /// Serves these queries from connections of this pool, to whom `access` knows. What it keeps lies in the buffer pools.
    pub fn new(queries: Vec<Query>, pool: QueryPool, access: Access, settings: Settings, pools: Arc<Pools>) -> Gateway {
        let service = Arc::new(Service::new(queries, pool, access, settings, pools));
        Gateway { service, frontier: None, links: None, cursors: None }
    }

    /// The same, and the Frontier protocol, whose SQL is run there.
    #[must_use]
    pub fn with_frontier(self, settings: FrontierSettings, sql: ClientSql) -> Gateway {
        Gateway { frontier: Some((settings, sql)), ..self }
    }

    /// The same, told how fast clients take bytes: compression goes by it. Without, all links are taken for 100 Mbit/s.
    #[must_use]
    pub fn with_links(self, bytes_per_s: Rate) -> Gateway {
        Gateway { links: Some(bytes_per_s), ..self }
    }

    /// What can be changed while it runs.
    pub fn knobs(&self) -> Vec<Knob> {
        let settings = knobs::of(&self.service, self.frontier.as_ref().map(|(_, sql)| sql));
        let packing = knobs::of_packing(&self.packing(), self.cursor_packing().as_ref());
        settings.into_iter().chain(packing).collect()
    }

    /// What it may take now.
    pub fn settings(&self) -> Live<Settings> {
        self.service.settings().clone()
    }

    /// The same, and cursors, on connections of this pool and those of the Frontier protocol's SQL, if that is served. `stopping`: whether the
    /// server is.
    #[must_use]
    pub fn with_cursors(self, settings: CursorSettings, pool: QueryPool, stopping: Option<Stopping>) -> Gateway {
        let cursors = Cursors::new(Arc::clone(&self.service), settings, pool, self.frontier.clone(), stopping);
        Gateway { cursors: Some(Arc::new(cursors)), ..self }
    }

    /// Its routes, to be served beside others. Who asks is known by a [`ConnectInfo`](axum::extract::ConnectInfo) of the peer's address among a
    /// request's extensions.
    pub fn router(&self) -> Router {
        let named = Router::new()
            .route("/q/{name}", get(get_query))
            .route("/q.json", get(beside::document))
            .route("/q", get(page::get))
            .route("/q/", any(beside::nothing))
            .route("/q/{name}/{*rest}", any(beside::nothing))
            .method_not_allowed_fallback(beside::other_method)
            .with_state(Arc::clone(&self.service));
        let routes = match &self.frontier {
            Some((settings, sql)) => {
                named.merge(frontier_routes::router(Arc::clone(&self.service), settings.clone(), sql.clone()))
            }
            None => named,
        };
        let routes = match &self.cursors {
            Some(cursors) => routes.merge(cursors::router(Arc::clone(cursors))),
            None => routes,
        };
        let Some(rate) = self.links else { return routes };
        routes.layer(map_request(move |mut request: Request| {
            if let Some(bytes_per_s) = rate(request.extensions()) {
                request.extensions_mut().insert(Link { bytes_per_s });
            }
            std::future::ready(request)
        }))
    }

    /// How full the pieces of answers get that are sent as they come. Whoever turns these knobs turns them for all from their next piece on.
    pub fn packing(&self) -> Knobs {
        self.service.packing().clone()
    }

    /// How full messages of cursors get, if there are any.
    pub fn cursor_packing(&self) -> Option<Knobs> {
        self.cursors.as_ref().map(|cursors| cursors.packing().clone())
    }

    /// Executions since the start, answers that are kept, and their bytes.
    pub fn counts(&self) -> (usize, usize, usize) {
        let (executions, (answers, bytes)) = self.service.counts();
        (executions, answers, bytes)
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("queries", &self.service.queries.len()).finish_non_exhaustive()
    }
}

async fn get_query(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    RawQuery(given): RawQuery,
    uri: Uri,
    version: Version,
    link: Option<Extension<Link>>,
    headers: HeaderMap,
) -> Response {
    let is_anonymous = !headers.contains_key(header::AUTHORIZATION);
    let is_plain = uri.path().strip_prefix("/q/") == Some(name.as_str()) && given.as_deref() != Some("");
    let client = Client { headers: &headers, link: link.map(|Extension(link)| link.bytes_per_s) };
    match respond(&service, &name, given.as_deref().unwrap_or_default(), is_plain, &client).await {
        Ok(response) => unkept_by_http_10(version, response),
        Err(fault) => {
            tracing::debug!(query = name, fault = fault.code, message = fault.message, "refused");
            let mut response = fault.into_response(is_anonymous);
            // A cache that keeps it keeps it for those alone who would be told the same.
            let found = find(&service.queries, &name).ok();
            let by = found.map_or(VARY_ALL, |(query, ending)| vary(&query, ending.is_some()));
            set(response.headers_mut(), header::VARY, by);
            response
        }
    }
}

/// Nothing tells a client of HTTP/1.0 that an answer of unknown length is cut off: then no cache is to have it.
pub(crate) fn unkept_by_http_10(version: Version, mut response: Response) -> Response {
    let has_end = response.status() == StatusCode::NOT_MODIFIED
        || response.headers().contains_key(header::CONTENT_LENGTH)
        || response.body().size_hint().exact().is_some();
    if version == Version::HTTP_10 && !has_end {
        set(response.headers_mut(), header::CACHE_CONTROL, "no-store");
    }
    response
}

/// Who asks.
struct Client<'a> {
    headers: &'a HeaderMap,
    /// Bytes a second that it takes, where that was measured.
    link: Option<f64>,
}

/// `is_plain`: the URL has its name as it is, and no question mark without arguments.
async fn respond(
    service: &Arc<Service>,
    name: &str,
    given: &str,
    is_plain: bool,
    client: &Client<'_>,
) -> Result<Response, Fault> {
    let headers = client.headers;
    let (query, ending) = find(&service.queries, name)?;
    let format = match ending {
        Some(format) => format,
        None => accepted(headers)?,
    };
    let user = user_of(service, &query, headers).await?;
    let arguments = arguments(&query, given)?;
    let canonical = match arguments.canonical() {
        "" => format!("/q/{name}"),
        arguments => format!("/q/{name}?{arguments}"),
    };
    let head = Head { query: &query, canonical: &canonical, format, has_ending: ending.is_some() };
    if canonical.len() > QUERY_STRING_BYTES_MAX {
        return Err(Fault::arguments(format!("the arguments are longer than {QUERY_STRING_BYTES_MAX} bytes")));
    }
    if given != arguments.canonical() || !is_plain {
        return Ok(head.redirect());
    }
    let user = if query.is_personal() { user.as_str() } else { "" };
    let asked = Asked::named(&query, &arguments, format, user, (service.placeholder(), &service.watches));
    let key = service.key().await;
    let question = || asked.question(key);
    let client_has = || tag::had(headers, question, Coding::wanted(headers), SystemTime::now());
    Ok(match service.answer(&asked, client_has).await? {
        Answer::Kept(kept, age) => head.kept(&service.packer, &kept, age, client, question).await,
        Answer::Unchanged(tag) => head.unchanged(&tag),
        Answer::Streamed(first, running) => {
            let tag = running.mark.as_ref().and_then(|mark| tag::weak(&question(), mark, SystemTime::now()));
            head.streamed(&service.packer, (first, running), tag.as_deref(), client)?
        }
    })
}

/// Ends a body that is not taken for the whole. What is there goes out first, the head at least: whoever gets nothing at all may take the server
/// for dead, and ask it again.
pub(crate) async fn broken_off(why: impl Into<String>) -> std::io::Error {
    tokio::task::yield_now().await;
    std::io::Error::other(why.into())
}

/// A fault on the way breaks the connection off: what came is not taken for the whole.
fn streamed(first: Bytes, running: Running) -> impl stream::Stream<Item = Result<Bytes, std::io::Error>> {
    let next = async |(mut rest, mut running): (Bytes, Running)| {
        if rest.is_empty() {
            match running.next().await {
                Some(Ok(piece)) => rest = piece,
                Some(Err(fault)) => return Err(broken_off(fault.message).await),
                None => return Ok(None),
            }
        }
        // Part by part: how fast it is taken is seen of a row of many megabytes too.
        // A full piece and the record that made it full stay together.
        let part = if rest.len() > 2 * PART_BYTES { rest.split_to(PART_BYTES) } else { std::mem::take(&mut rest) };
        running.taken.add(part.len());
        Ok(Some((part, (rest, running))))
    };
    stream::try_unfold((first, running), next)
}

/// The query and the form that a name asks for: `flights.csv`.
fn find(queries: &BTreeMap<String, Arc<Query>>, name: &str) -> Result<(Arc<Query>, Option<Format>), Fault> {
    let (name, ending) = name.split_once('.').map_or((name, None), |(name, ending)| (name, Some(ending)));
    let query = queries.get(name).ok_or_else(|| Fault::unknown("there is no such query"))?;
    let format = match ending {
        None => None,
        Some(ending) => {
            let found = Format::ALL.into_iter().find(|(known, _)| *known == ending).map(|(_, format)| format);
            let known = Format::ALL.map(|(known, _)| known).join(", .");
            Some(
                found
                    .ok_or_else(|| Fault::unknown(format!("rows don't come as .{ending}, expected one of .{known}")))?,
            )
        }
    };
    Ok((Arc::clone(query), format))
}

fn accepted(headers: &HeaderMap) -> Result<Format, Fault> {
    let accept = headers.get(header::ACCEPT).map_or(Ok("*/*"), HeaderValue::to_str);
    accept.ok().and_then(Format::accepted).ok_or_else(Fault::not_acceptable)
}

/// Who asks; empty where anybody may.
async fn user_of(service: &Service, query: &Query, headers: &HeaderMap) -> Result<String, Fault> {
    if query.who == Who::Public {
        return Ok(String::new());
    }
    let user = authenticated(service, headers).await?;
    match &query.who {
        Who::Users(users) if !users.contains(&user) => Err(Fault::forbidden()),
        _ => Ok(user),
    }
}

async fn authenticated(service: &Service, headers: &HeaderMap) -> Result<String, Fault> {
    service.user(headers.get(header::AUTHORIZATION).ok_or(AccessError::Unauthenticated)?).await
}

fn arguments(query: &Query, given: &str) -> Result<crate::query::Arguments, Fault> {
    if given.len() > QUERY_STRING_BYTES_MAX {
        return Err(Fault::arguments(format!("the arguments are longer than {QUERY_STRING_BYTES_MAX} bytes")));
    }
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned).ok()
    };
    let mut pairs = Vec::new();
    for pair in given.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (decoded(name), decoded(value)) else {
            return Err(Fault::arguments("an argument is not UTF-8"));
        };
        pairs.push((name, value));
    }
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    query.arguments(pairs).map_err(|error| Fault::arguments(error.to_string()))
}

/// What an answer's head says whatever it holds.
struct Head<'a> {
    query: &'a Query,
    canonical: &'a str,
    format: Format,
    has_ending: bool,
}

impl Head<'_> {
    fn write(&self, headers: &mut HeaderMap) {
        set(headers, header::CONTENT_TYPE, self.format.content_type());
        set(headers, header::CACHE_CONTROL, &self.cache_control());
        set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(headers, header::VARY, vary(self.query, self.has_ending));
    }

    /// An answer that is kept: all of it, or that the client has it.
    async fn kept(
        &self,
        packer: &Arc<Packer>,
        kept: &Kept,
        age: Duration,
        client: &Client<'_>,
        question: impl Fn() -> Question,
    ) -> Response {
        let modified = kept.last_modified();
        let wanted = Coding::wanted(client.headers);
        let (mut response, tag) = match tag::known(client.headers, &kept.tag, wanted, || Some(question())) {
            Some(tag) => (not_modified(), tag),
            None => {
                let (body, form) = packer.of(&kept.coded, &kept.body, wanted, client.link).await;
                let response = if is_unchanged_since(client.headers, modified.as_deref()) {
                    not_modified()
                } else {
                    whole(&body, form)
                };
                (response, form.tag(&kept.tag))
            }
        };
        let headers = response.headers_mut();
        self.write(headers);
        set(headers, header::ETAG, &tag);
        if let Some(next) = &kept.next {
            set(headers, header::LINK, &format!("<{next}>; rel=\"next\""));
        }
        if let Some(modified) = modified {
            set(headers, header::LAST_MODIFIED, &modified);
        }
        if !age.is_zero() {
            set(headers, header::AGE, &age.as_secs().to_string());
        }
        response
    }

    /// The client has the answer of this tag, of which nothing has changed; it is kept here no more.
    fn unchanged(&self, tag: &str) -> Response {
        let mut response = not_modified();
        self.write(response.headers_mut());
        set(response.headers_mut(), header::ETAG, tag);
        response
    }

    /// An answer as it comes.
    fn streamed(
        &self,
        packer: &Arc<Packer>,
        (first, running): (Bytes, Running),
        tag: Option<&str>,
        client: &Client<'_>,
    ) -> Result<Response, Fault> {
        let form = packer.form_of(&first, Coding::wanted(client.headers), client.link);
        let pieces = packer.stream(streamed(first, running), form);
        let pieces = pieces.map_err(|error| Fault::internal(&error.to_string()))?;
        let mut response = coded(Body::from_stream(pieces), form);
        self.write(response.headers_mut());
        if let Some(tag) = tag {
            set(response.headers_mut(), header::ETAG, tag);
        }
        Ok(response)
    }

    fn cache_control(&self) -> String {
        let freshness = &self.query.freshness;
        let who = if self.query.who == Who::Public { "public" } else { "private" };
        let mut text = format!("{who}, max-age={}", freshness.max_age_s);
        for (name, seconds) in [
            ("stale-while-revalidate", freshness.stale_while_revalidate_s),
            ("stale-if-error", freshness.stale_if_error_s),
        ] {
            if seconds > 0 {
                let _ = write!(text, ", {name}={seconds}");
            }
        }
        // Without this, some caches give what is too old where the server is gone.
        if freshness.stale_while_revalidate_s == 0 && freshness.stale_if_error_s == 0 {
            text += ", must-revalidate";
        }
        text
    }

    /// To the one URL of these arguments.
    fn redirect(&self) -> Response {
        let mut response = StatusCode::PERMANENT_REDIRECT.into_response();
        let headers = response.headers_mut();
        set(headers, header::LOCATION, self.canonical);
        set(headers, header::CACHE_CONTROL, &self.cache_control());
        set(headers, header::VARY, vary(self.query, self.has_ending));
        response
    }
}

/// An answer with its length.
pub(crate) fn whole(body: &held::Body, form: Form) -> Response {
    let Some(bytes) = body.in_one() else {
        let pieces = stream::iter(body.pieces().map(Ok::<_, std::convert::Infallible>));
        let mut response = coded(Body::from_stream(pieces), form);
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        return response;
    };
    coded(Body::from(bytes), form)
}

/// All headers by which answers are told apart.
const VARY_ALL: &str = "Accept, Accept-Encoding, Authorization";

/// Those by which the answers of a URL are.
fn vary(query: &Query, has_ending: bool) -> &'static str {
    match (has_ending, query.who == Who::Public) {
        (true, true) => "Accept-Encoding",
        (true, false) => "Accept-Encoding, Authorization",
        (false, true) => "Accept, Accept-Encoding",
        (false, false) => VARY_ALL,
    }
}

fn coded(body: Body, form: Form) -> Response {
    let mut response = body.into_response();
    if let Some(name) = form.coding.name() {
        set(response.headers_mut(), header::CONTENT_ENCODING, name);
    }
    response
}

/// Whether the client has it by the time that it names; tags go before times (RFC 9110, 13.2.2).
fn is_unchanged_since(headers: &HeaderMap, modified: Option<&str>) -> bool {
    if headers.contains_key(header::IF_NONE_MATCH) {
        return false;
    }
    let time = |text: &str| httpdate::parse_http_date(text).ok();
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok()).and_then(time);
    since.zip(modified.and_then(time)).is_some_and(|(since, modified)| modified <= since)
}

/// The client has it. Nothing is said of a length: that of the answer itself would have to be it (RFC 9110, 8.6), and no body's is 0.
pub(crate) fn not_modified() -> Response {
    let unmeasured = Body::from_stream(stream::empty::<Result<Bytes, std::io::Error>>());
    (StatusCode::NOT_MODIFIED, unmeasured).into_response()
}

#[cfg(test)]
mod tests;
