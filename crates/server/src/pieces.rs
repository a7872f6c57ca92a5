//! `POST /v1/upload` and `PUT /v1/upload/TICKET?offset=N`: an upload in pieces.
//!
//! A place to receive in is held while a piece arrives, as for a sync; the backlog is not asked, since no worker is. Bytes count as they
//! come: a piece that breaks leaves what has come of it. Two pieces of one ticket never mix: a place in the upload is taken once, and
//! whoever comes with another is told where the server stands.

use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use headwater_protocol::message::ErrorCode;
use serde::Deserialize;
use serde_json::json;

use crate::failure::Failure;
use crate::receive::{drain, next_piece};
use crate::resume::{hex16, remote_id};
use crate::spool::UploadSpool;
use crate::state::Shared;
use crate::tickets::Upload;

/// Gives a ticket.
pub(crate) async fn post_upload(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    match ticket(&shared, &headers).await {
        Ok(response) => response,
        Err(failure) => refused(&failure),
    }
}

async fn ticket(shared: &Shared, headers: &HeaderMap) -> Result<Response, Failure> {
    let user = authenticated(shared, headers).await?;
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let malformed = |name: &str, expected: &str| {
        let message = format!("header {name} is {:?}, expected {expected}", value(name));
        Failure::new(ErrorCode::Malformed, message)
    };
    let remote_id = remote_id(headers)?;
    let bytes = "Headwater-Bytes";
    let announced: u64 = value(bytes).parse().map_err(|_| malformed(bytes, "how many bytes the upload has at most"))?;
    let digest = "Headwater-Digest";
    let digest = hex32(value(digest)).ok_or_else(|| malformed(digest, "the upload's digest as 64 hex digits"))?;
    let limit = shared.config.now().upload_bytes_max;
    if announced > limit {
        let message = format!("the upload has {announced} bytes, above the limit of {limit} (upload_bytes_max)");
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    let (ticket, offset) = shared.tickets.ask(&Upload { user, remote_id, digest }, announced)?;
    let body = json!({
        "ticket": format!("{:032x}", u128::from_be_bytes(ticket)),
        "offset": offset,
        "piece_bytes": shared.config.now().piece_bytes,
        "expires_in_s": shared.tickets.held_for().as_secs(),
    });
    Ok(([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], axum::Json(body)).into_response())
}

#[derive(Deserialize)]
pub(crate) struct Place {
    offset: Option<String>,
}

/// Takes a piece.
pub(crate) async fn put_upload(
    State(shared): State<Arc<Shared>>,
    Path(ticket): Path<String>,
    Query(place): Query<Place>,
    request: Request,
) -> Response {
    let (head, mut body) = request.into_parts();
    match piece(&shared, &ticket, &place, &head.headers, &mut body).await {
        Ok(Taken::All) => StatusCode::NO_CONTENT.into_response(),
        Ok(Taken::Elsewhere(offset)) => {
            if !body.is_end_stream() {
                drain(body);
            }
            (StatusCode::CONFLICT, [("headwater-offset", offset.to_string())]).into_response()
        }
        Err(failure) => {
            if !body.is_end_stream() {
                drain(body);
            }
            refused(&shared.admission.paced(None, failure))
        }
    }
}

/// What became of a piece.
enum Taken {
    All,
    /// It begins elsewhere than where the server stands, which is here.
    Elsewhere(u64),
}

async fn piece(
    shared: &Arc<Shared>,
    ticket: &str,
    place: &Place,
    headers: &HeaderMap,
    body: &mut Body,
) -> Result<Taken, Failure> {
    let user = authenticated(shared, headers).await?;
    let malformed = |what: &str, actual: &str, expected: &str| {
        Failure::new(ErrorCode::Malformed, format!("{what} {actual:?}, expected {expected}"))
    };
    let offset = place.offset.as_deref().unwrap_or_default();
    let offset: u64 = offset.parse().map_err(|_| malformed("offset", offset, "a number of bytes"))?;
    let ticket = hex16(ticket).ok_or_else(|| malformed("ticket", ticket, "32 hex digits"))?;
    let limit = shared.config.now().piece_bytes;
    let too_large = || {
        let message = format!("the piece has more than {limit} bytes (piece_bytes)");
        Failure::new(ErrorCode::TooLarge, message)
    };
    if body.size_hint().exact().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let _place = shared.admission.receive()?;
    let mut came = 0;
    let mut bytes = Some(Bytes::new());
    // The client is not waited for while the ticket is held.
    loop {
        let length = bytes.as_ref().map_or(0, Bytes::len) as u64;
        let mut spool = shared.tickets.add(&ticket, &user, length)?;
        if spool.bytes() != offset.saturating_add(came) {
            return Ok(Taken::Elsewhere(spool.bytes()));
        }
        let Some(some) = bytes else { return Ok(Taken::All) };
        came += length;
        if came > limit {
            return Err(too_large());
        }
        spool.append(&some);
        shared.tickets.added(&ticket, spool.bytes());
        if spool.wants_flush() {
            flushed(spool).await.inspect_err(|_| shared.tickets.forget(&ticket))?;
        } else {
            drop(spool);
        }
        bytes = next_piece(body, shared.config.now().idle_limit()).await?;
    }
}

/// Has what waits for the disk spooled, on a thread that may wait for it.
async fn flushed(mut spool: impl std::ops::DerefMut<Target = UploadSpool> + Send + 'static) -> Result<(), Failure> {
    tokio::task::spawn_blocking(move || spool.flush())
        .await
        .map_err(|error| Failure::internal(error.to_string()))?
        .map_err(|error| Failure::spool(&error))
}

async fn authenticated(shared: &Shared, headers: &HeaderMap) -> Result<String, Failure> {
    if shared.is_stopping() {
        return Err(Failure::shutting_down());
    }
    Ok(shared.authenticate(headers).await?.name().to_owned())
}

fn refused(failure: &Failure) -> Response {
    let detail = failure.detail.as_deref().unwrap_or(&failure.message);
    tracing::info!(target: "headwater::sync", outcome = failure.code.name(), detail, "piece refused");
    failure.to_json_response()
}

/// 32 bytes from 64 hex digits.
fn hex32(text: &str) -> Option<[u8; 32]> {
    let (high, low) = text.split_at_checked(32)?;
    [hex16(high)?, hex16(low)?].concat().try_into().ok()
}
