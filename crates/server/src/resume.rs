//! `GET /v1/download/ID?offset=N`: the rest of a download that broke.
//!
//! No worker is needed, and nothing of the database: the bytes are those of the spool, kept by [`crate::downloads`]. The client is watched
//! as a sync's is. The ID is good for the user and the remote that the download was read for; to anybody else it is as gone as any.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use headwater_protocol::message::ErrorCode;
use serde::Deserialize;

use crate::failure::Failure;
use crate::spool::download::{Left, Reader, Writer};
use crate::state::Shared;
use crate::sync::{body_of, stream_headers};

#[derive(Deserialize)]
pub(crate) struct Rest {
    /// Bytes of the download that the client has, from DOWNLOAD's first on.
    offset: Option<String>,
}

impl Rest {
    pub(crate) fn offset(&self) -> Result<u64, Failure> {
        let offset = self.offset.as_deref().unwrap_or("0");
        offset.parse().map_err(|_| malformed("offset", offset, "a number of bytes"))
    }
}

fn malformed(what: &str, actual: &str, expected: &str) -> Failure {
    Failure::new(ErrorCode::Malformed, format!("{what} {actual:?}, expected {expected}"))
}

/// Answers with the download's bytes from the offset on.
pub(crate) async fn get_download(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Query(rest): Query<Rest>,
    headers: HeaderMap,
) -> Response {
    match find(&shared, &id, &rest, &headers).await {
        Ok((writer, reader, remote_id)) => {
            tokio::spawn(watch(shared, writer, remote_id));
            (stream_headers(), body_of(reader)).into_response()
        }
        Err(failure) => {
            let detail = failure.detail.as_deref().unwrap_or(&failure.message);
            tracing::info!(target: "headwater::sync", outcome = failure.code.name(), detail, "download not resumed");
            failure.to_frame_response()
        }
    }
}

async fn find(
    shared: &Shared,
    id: &str,
    rest: &Rest,
    headers: &HeaderMap,
) -> Result<(Writer, Reader, [u8; 16]), Failure> {
    if shared.is_stopping() {
        return Err(Failure::shutting_down());
    }
    let user = shared.authenticate(headers).await?;
    let offset = rest.offset()?;
    let id = hex16(id).ok_or_else(|| malformed("download ID", id, "32 hex digits"))?;
    let remote_id = remote_id(headers)?;
    let (writer, reader) = shared.downloads.resume(&id, user.name(), &remote_id, offset).ok_or_else(|| {
        Failure::new(ErrorCode::Gone, "the download is not kept here, or not any more: sync again, it comes anew")
    })?;
    // Who resumes a download has had the receipt before it.
    shared.tickets.keep_only(&remote_id, None);
    Ok((writer, reader, remote_id))
}

/// The header that says which remote asks.
pub(crate) fn remote_id(headers: &HeaderMap) -> Result<[u8; 16], Failure> {
    let value = headers.get("headwater-remote-id").and_then(|value| value.to_str().ok()).unwrap_or_default();
    hex16(value).ok_or_else(|| {
        let message = format!("header Headwater-Remote-Id is {value:?}, expected the remote's ID as 32 hex digits");
        Failure::new(ErrorCode::Malformed, message)
    })
}

/// 16 bytes from 32 hex digits.
pub(crate) fn hex16(text: &str) -> Option<[u8; 16]> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes))?
}

/// Watches the client take it, then one line in the log.
async fn watch(shared: Arc<Shared>, writer: Writer, remote_id: [u8; 16]) {
    let (_task, _sending) = (shared.syncs.enter(), shared.admission.sending.enter());
    let (offset, sending) = (writer.taken(), Instant::now());
    let left = writer.watch(shared.config.now().idle_limit()).await;
    shared.downloads.left(&remote_id);
    let outcome = match left {
        Left::Whole => "ok",
        Left::Gone => "client_gone",
        Left::Cut => "client_cut",
    };
    let remote = uuid::Uuid::from_bytes(remote_id);
    let (bytes_out, send_ms) = (writer.taken().saturating_sub(offset), sending.elapsed().as_millis() as u64);
    tracing::info!(target: "headwater::sync", outcome, %remote, bytes_out, send_ms, "download resumed");
}
