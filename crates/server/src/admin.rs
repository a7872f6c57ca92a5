//! The administration listener: knobs of the running process, shown and set.
//!
//! ```text
//! GET  /v1/knobs                                       200 {"config": "/etc/headwater.toml", "process": 4711, "version": "...", "knobs": [...]}
//! POST /v1/knobs {"who": "root", "set": [["pool.skips", "100"]]}   200 {"config": ..., "changed": [{"name", "from", "to", "is_option"}]}
//!                                                      422 {"error": "...", "code": "..."}: nothing was changed
//! ```
//!
//! A listener of its own, on this machine alone, with a token of its own: who may sync may not tune, and no proxy in front of the server reaches it.
//!
//! *Caveats.* Who changes something is whoever has the token; the name that the log has is what they say.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use headwater_knobs::{Change, Fault, Knobs, Live};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::Config;
use crate::connection::Service;
use crate::front::Front;
use crate::server::{Handle, accept, listen};

/// What changes and refusals are logged under.
pub const TUNING_LOG: &str = "headwater::tune";
/// Connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may be silent.
const IDLE_MS_MAX: u64 = 10_000;
/// How long the body of a request may take.
const BODY_MAX: std::time::Duration = std::time::Duration::from_millis(IDLE_MS_MAX);
/// Bytes of a request.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Letters of a name that go into the log.
const WHO_MAX: usize = 100;

/// What a token is known by: the token itself is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// What the listener is given.
#[derive(Debug)]
pub struct Admin {
    /// Where: an address of this machine that no other reaches.
    pub listen: SocketAddr,
    /// By which token.
    pub token: TokenDigest,
    /// What can be changed.
    pub knobs: Knobs,
    /// The configuration file that the process was started with, for those who ask.
    pub config: String,
}

/// Why it could not be started.
#[derive(Debug, Error)]
pub enum AdminError {
    /// Others could reach it.
    #[error("[admin] listen is {0}, expected an address of this machine alone: 127.0.0.1:PORT or [::1]:PORT")]
    NotLoopback(SocketAddr),
    /// The address.
    #[error(
        "can't listen on {address} for administration: another server on this machine may have it; choose another by [admin] listen, or \
         --set admin.listen, with an [admin] token_file of its own"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl TokenDigest {
    /// Of this token.
    pub fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token.as_bytes()).into())
    }
}

impl Admin {
    /// Whether an address is one that this machine alone reaches.
    pub fn check(listen: SocketAddr) -> Result<(), AdminError> {
        if listen.ip().is_loopback() { Ok(()) } else { Err(AdminError::NotLoopback(listen)) }
    }

    /// Listens, on the runtime that calls, until the handle is dropped or shut down.
    #[expect(clippy::unused_async, reason = "it has to be called where tasks can be started")]
    pub async fn start(self) -> Result<Handle, AdminError> {
        let Admin { listen: address, .. } = self;
        Admin::check(address)?;
        let unusable = |source| AdminError::Listen { address, source };
        let listener = listen(address).map_err(unusable)?;
        let local_addr = listener.local_addr().map_err(unusable)?;
        let config = Live::new(Config { idle_ms_max: IDLE_MS_MAX, head_ms_max: IDLE_MS_MAX, ..Config::default() });
        let front = Arc::new(Front::new(config.clone(), CONNECTIONS_MAX));
        let (service, turning_away) = (Service::new(router(self), None, &config), Service::new(full(), None, &config));
        tracing::info!(%local_addr, "administration: listening (headwater tune)");
        Ok(accept((listener, local_addr), front, service, turning_away))
    }
}

fn router(admin: Admin) -> Router {
    let admin = Arc::new(admin);
    Router::new()
        .route("/v1/knobs", get(get_knobs).post(post_knobs))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&admin), let_in))
        .with_state(admin)
}

fn full() -> Router {
    let told =
        || async { refused(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "too many administrate at once; come back") };
    Router::new().fallback(told)
}

/// Nothing is answered without the token.
async fn let_in(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|value| value.strip_prefix("Bearer "));
    // Digests are compared, so the time that it takes says nothing of the token.
    if token.is_some_and(|token| TokenDigest::of(token) == admin.token) {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
    tracing::warn!(target: TUNING_LOG, ?peer, "administration was refused: a wrong token, or none");
    let text = "the token is not the one of this server's administration listener";
    refused(StatusCode::UNAUTHORIZED, "unauthenticated", text)
}

async fn get_knobs(State(admin): State<Arc<Admin>>) -> Response {
    let told = json!({
        "config": admin.config,
        "process": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "knobs": admin.knobs.shown(),
    });
    answer(Json(told).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Who says it is.
    #[serde(default)]
    who: String,
    set: Vec<(String, String)>,
}

async fn post_knobs(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    // What is slow here would keep a connection of few.
    let received = tokio::time::timeout(BODY_MAX, Bytes::from_request(request, &())).await;
    let body = match received {
        Ok(Ok(body)) => body,
        Ok(Err(refused)) => return answer(refused.into_response()),
        Err(_) => {
            return refused(StatusCode::REQUEST_TIMEOUT, "timeout", "the request did not come within ten seconds");
        }
    };
    let wanted: Wanted = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => {
            return refused(StatusCode::BAD_REQUEST, "malformed", &format!("the request can't be read: {error}"));
        }
    };
    let who: String = wanted.who.chars().filter(|letter| !letter.is_control()).take(WHO_MAX).collect();
    let config = admin.config.clone();
    // A smaller pool writes blocks to a file.
    let changing = tokio::task::spawn_blocking(move || admin.knobs.change(&wanted.set));
    match changing.await {
        Ok(Ok(changed)) => {
            for change in &changed {
                note(change, &who, peer);
            }
            answer(Json(json!({ "config": config, "changed": changed })).into_response())
        }
        Ok(Err(fault)) => {
            tracing::info!(target: TUNING_LOG, who, %peer, %fault, "a knob was not changed");
            refused(StatusCode::UNPROCESSABLE_ENTITY, code(&fault), &fault.to_string())
        }
        Err(error) => {
            tracing::error!(%error, "changing a knob panicked");
            refused(StatusCode::INTERNAL_SERVER_ERROR, "internal", "it failed; the server's log has more")
        }
    }
}

/// Who changed what, for the log.
fn note(change: &Change, who: &str, peer: SocketAddr) {
    let Change { name, from, to, .. } = change;
    tracing::info!(target: TUNING_LOG, name, %from, %to, who, %peer, "a knob was changed");
}

fn code(fault: &Fault) -> &'static str {
    match fault {
        Fault::Unknown { .. } => "unknown",
        Fault::Twice { .. } => "twice",
        Fault::OutOfRange { .. } => "out_of_range",
        Fault::Refused { .. } => "refused",
        Fault::Apart { .. } => "apart",
        Fault::Left { .. } => "left",
        Fault::TooMany { .. } => "too_many",
    }
}

fn refused(status: StatusCode, code: &'static str, text: &str) -> Response {
    answer((status, Json(json!({ "error": text, "code": code }))).into_response())
}

fn answer(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
