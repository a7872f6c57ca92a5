//! The paths, and the small answers: token, model, health, readiness.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};
use headwater_access::Credentials;
use headwater_consolidated::Plan;
use headwater_model::Model;
use headwater_protocol::message::ErrorCode;
use serde::Deserialize;
use serde_json::json;

use crate::chunk::get_chunk;
use crate::failure::Failure;
use crate::pieces::{post_upload, put_upload};
use crate::ready::{get_file, post_file};
use crate::receive::drain;
use crate::resume::{get_download, remote_id};
use crate::state::Shared;
use crate::sync::{post_sync, stream_headers};

/// How long readiness waits for the database before it says that it can't be reached.
pub(crate) const DATABASE_PATIENCE: Duration = Duration::from_secs(3);
/// The pieces of `/health/stream`, and the pause between two of them.
const STREAM_PIECES: u32 = 4;
const STREAM_PAUSE: Duration = Duration::from_millis(250);

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/sync", post(post_sync))
        .route("/v1/upload", post(post_upload))
        .route("/v1/upload/{ticket}", put(put_upload))
        .route("/v1/download/{id}", get(get_download))
        .route("/v1/chunk/{id}", get(get_chunk))
        .route("/v1/file", post(post_file))
        .route("/v1/file/{id}", get(get_file))
        .route("/v1/token", post(post_token))
        .route("/v1/model", get(get_model))
        .route("/health", get(async || "alive\n"))
        .route("/health/stream", get(get_stream))
        .route("/ready", get(get_ready))
        .with_state(shared)
}

/// What is answered on a connection for which there is no place: 503, and when to come back.
pub(crate) fn turning_away(shared: Arc<Shared>) -> Router {
    let json = |State(shared): State<Arc<Shared>>| async move {
        for_the_last_time(no_place(&shared, None).to_json_response())
    };
    Router::new()
        .route("/v1/token", any(json))
        .route("/v1/model", any(json))
        .route("/health", any(json))
        .route("/ready", any(json))
        .fallback(async |State(shared): State<Arc<Shared>>, request: Request| {
            let (head, body) = request.into_parts();
            if !body.is_end_stream() {
                drain(body);
            }
            let failure = no_place(&shared, remote_id(&head.headers).ok());
            log_refused("connection", &failure);
            for_the_last_time(failure.to_frame_response())
        })
        .with_state(shared)
}

fn no_place(shared: &Shared, remote_id: Option<[u8; 16]>) -> Failure {
    shared
        .admission
        .no_connection(remote_id, format!("{} connections are open already", shared.front.connections_max()))
}

/// Tells the client that nothing more is answered on this connection.
pub(crate) fn for_the_last_time(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A token for a user who proves it by the password.
async fn post_token(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    match token(&shared, &headers).await {
        Ok(response) => response,
        Err(failure) => {
            log_refused("token", &failure);
            failure.to_json_response()
        }
    }
}

async fn token(shared: &Shared, headers: &HeaderMap) -> Result<Response, Failure> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let credentials = Credentials::from_header(value.ok_or(headwater_access::Error::Unauthenticated)?)?;
    if let Credentials::Token(_) = credentials {
        // A token would make itself last for ever.
        return Err(Failure::new(
            ErrorCode::Unauthenticated,
            "a token is given for user and password, not for a token",
        ));
    }
    let user = shared.access.authenticate(credentials).await?;
    let token = shared.access.issue(&user, Duration::from_millis(shared.config.now().token_ms)).await?;
    let body = json!({ "token": token.expose(), "expires_in_s": shared.config.now().token_ms / 1000 });
    Ok(([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], axum::Json(body)).into_response())
}

#[derive(Deserialize)]
struct ModelQuery {
    name: Option<String>,
    version: Option<u32>,
}

/// A model's public form. Without a version the newest; without a name the only one.
async fn get_model(State(shared): State<Arc<Shared>>, headers: HeaderMap, Query(query): Query<ModelQuery>) -> Response {
    if let Err(failure) = shared.authenticate(&headers).await {
        log_refused("model", &failure);
        return failure.to_json_response();
    }
    match find_model(&shared.plans, &query) {
        Ok(plan) => {
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let mut answer = ([kind], plan.model.to_json()).into_response();
            answer.headers_mut().extend(unenforced(&plan.model));
            answer
        }
        Err(failure) => failure.to_json_response(),
    }
}

/// The references that a new remote is not to enforce, by their places.
fn unenforced(model: &Model) -> Option<(HeaderName, HeaderValue)> {
    let places: Vec<String> = model.unenforced.iter().map(|(table, place)| format!("{table}.{place}")).collect();
    let value = HeaderValue::from_str(&places.join(",")).ok().filter(|_| !places.is_empty())?;
    Some((HeaderName::from_static("headwater-unenforced"), value))
}

fn find_model<'a>(plans: &'a [Arc<Plan>], query: &ModelQuery) -> Result<&'a Plan, Failure> {
    let names: std::collections::BTreeSet<&str> = plans.iter().map(|plan| plan.model.name.as_str()).collect();
    let name = match (&query.name, names.first()) {
        (Some(name), _) => name.as_str(),
        (None, Some(only)) if names.len() == 1 => only,
        _ => {
            let names: Vec<&str> = names.into_iter().collect();
            let message = format!("this server has the models {}: expected a name (--name, ?name=)", names.join(", "));
            return Err(Failure::new(ErrorCode::ModelUnknown, message));
        }
    };
    let versions = plans.iter().filter(|plan| plan.model.name == name);
    let asked = versions.filter(|plan| query.version.is_none_or(|version| plan.model.version == version));
    asked.max_by_key(|plan| plan.model.version).map(|plan| &**plan).ok_or_else(|| {
        let version = query.version.map_or_else(String::new, |version| format!(" version {version}"));
        Failure::new(ErrorCode::ModelUnknown, format!("this server has no model {name:?}{version}"))
    })
}

/// An answer like a sync's, in pieces with pauses between them: `headwater doctor` sees whether somebody on the way keeps them back.
pub(crate) async fn get_stream() -> Response {
    let next = async |sent: u32| {
        if sent == STREAM_PIECES {
            return Ok(None);
        }
        if sent > 0 {
            tokio::time::sleep(STREAM_PAUSE).await;
        }
        Ok::<_, std::io::Error>(Some((Bytes::from(format!("piece {sent}\n")), sent + 1)))
    };
    let body = Body::from_stream(futures_util::stream::try_unfold(0, next));
    (stream_headers(), body).into_response()
}

/// Whether a balancer should send syncs here, with the load: 503 while the database can't be reached or the server goes down. While commits
/// don't end it says so with 200: who has nothing to send is still served.
async fn get_ready(State(shared): State<Arc<Shared>>) -> Response {
    let probe = tokio::time::timeout(DATABASE_PATIENCE, shared.access.probe()).await;
    let database = matches!(probe, Ok(Ok(())));
    let stopping = shared.is_stopping();
    let ready = database && !stopping;
    let (memory, files) = shared.spools.used();
    let (ready_files, ready_bytes) = shared.ready_files.held();
    let pool = shared.pool.stats();
    let commits_wait = shared
        .commit_waits
        .now()
        .map(|waiting| json!({ "commits": waiting.commits, "seconds": waiting.since.as_secs(), "what": waiting.what }));
    let (in_pieces, applied) = shared.tickets.count();
    let (chunk_bytes, builds, chunk_requests) = shared.chunks.stats();
    let body = json!({
        "ready": ready,
        "database": database,
        "commits_wait": commits_wait,
        "shutting_down": stopping,
        "load": shared.admission.load(),
        "syncs": shared.syncs.count(),
        "uploads_in_pieces": in_pieces,
        "uploads_kept": applied,
        "downloads_kept": shared.downloads.count(),
        "shared_bytes": chunk_bytes,
        "shared_builds": builds,
        "chunk_requests": chunk_requests,
        "ready_files": ready_files,
        "ready_files_bytes": ready_bytes,
        "connections": shared.front.connections.count(),
        "connections_max": shared.front.connections_max(),
        "files_open": shared.files.open(),
        "spool_memory_bytes": memory,
        "spool_file_bytes": files,
        "pool": crate::spool::told_of(&shared.pools),
        "database_connections": pool.open,
        "database_reconnections": pool.reconnections,
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], axum::Json(body)).into_response()
}

fn log_refused(what: &str, failure: &Failure) {
    let detail = failure.detail.as_deref().unwrap_or(&failure.message);
    tracing::info!(target: "headwater::access", what, outcome = failure.code.name(), detail, "refused");
}
