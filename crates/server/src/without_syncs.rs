//! A server that syncs nothing: what is joined to it, its health, and a clear word to remotes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use headwater_bufferpool::Pools;
use headwater_consolidated::results::{ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, QueryPool};
use headwater_protocol::ValueRef;
use headwater_protocol::message::ErrorCode;
use serde_json::json;

use crate::failure::Failure;
use crate::front::Front;
use crate::receive::drain;
use crate::routes::{DATABASE_PATIENCE, for_the_last_time, get_stream};
use crate::spool::told_of;

/// When a client for whom there is no place may come back.
const COME_BACK: Duration = Duration::from_secs(1);

/// What its requests share.
pub(crate) struct Alone {
    pub(crate) front: Arc<Front>,
    /// By which it is found out whether the database answers.
    pub(crate) pool: QueryPool,
    /// What lies in memory.
    pub(crate) pools: Option<Arc<Pools>>,
}

pub(crate) fn router(alone: Arc<Alone>) -> Router {
    Router::new()
        .route("/v1/token", any(async || no_models().to_json_response()))
        .route("/v1/model", any(async || no_models().to_json_response()))
        .route("/v1/{*rest}", any(turn_remotes_away))
        .route("/health", get(async || "alive\n"))
        .route("/health/stream", get(get_stream))
        .route("/ready", get(get_ready))
        .with_state(alone)
}

/// What is answered on a connection for which there is no place.
pub(crate) fn turning_away(front: Arc<Front>) -> Router {
    Router::new().fallback(async move || {
        let message = format!("{} connections are open already", front.connections_max());
        for_the_last_time(Failure::new(ErrorCode::Overloaded, message).after(COME_BACK).to_json_response())
    })
}

fn no_models() -> Failure {
    let message =
        "this server has no models and syncs nothing: it serves named queries alone (`headwater token` makes tokens)";
    Failure::new(ErrorCode::ModelUnknown, message)
}

/// A remote reads frames.
async fn turn_remotes_away(request: Request) -> Response {
    let body = request.into_body();
    if !body.is_end_stream() {
        drain(body);
    }
    no_models().to_frame_response()
}

/// Whether a balancer should send requests here: 503 while the database can't be reached or the server goes down.
async fn get_ready(State(alone): State<Arc<Alone>>) -> Response {
    let pool = alone.pool.clone();
    let probe = tokio::time::timeout(DATABASE_PATIENCE, tokio::task::spawn_blocking(move || probe(&pool))).await;
    let database = matches!(probe, Ok(Ok(Ok(()))));
    let stopping = alone.front.is_stopping();
    let ready = database && !stopping;
    let body = json!({
        "ready": ready,
        "database": database,
        "shutting_down": stopping,
        "connections": alone.front.connections.count(),
        "connections_max": alone.front.connections_max(),
        "pool": alone.pools.as_deref().map(told_of),
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], axum::Json(body)).into_response()
}

fn probe(pool: &QueryPool) -> Result<(), Error> {
    let mut connection = pool.checkout(DATABASE_PATIENCE)?;
    let options = ReadOptions { time_out: DATABASE_PATIENCE, ..ReadOptions::default() };
    let read = connection.read("SELECT 1", &[], &options, &mut Nothing);
    connection.note(read)
}

/// Takes what nobody wants.
struct Nothing;

impl ResultSink for Nothing {
    fn begin(&mut self, _: &[ResultColumn]) -> Result<(), Error> {
        Ok(())
    }

    fn row(&mut self, _: &[ValueRef<'_>]) -> Result<(), Error> {
        Ok(())
    }
}
