//! `GET /v1/chunk/ID`: a chunk of a shared partition, for whoever asks; any cache may keep it.
//!
//! No worker is needed, no database and no credentials: the ID can't be guessed, and what is sent can't be read without the key that only
//! a member's sync hands out.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::chunks::Chunk;
use crate::resume::hex16;
use crate::state::Shared;

/// Bytes in memory of one request.
const READ_BYTES: u32 = 256 * 1024;

/// Answers with a chunk.
pub(crate) async fn get_chunk(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(chunk) = hex16(&id).and_then(|id| shared.chunks.chunk(&id)) else {
        let headers = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
        return (StatusCode::NOT_FOUND, headers, "no such chunk here, or not any more\n").into_response();
    };
    let tag = format!("\"{}\"", hex::encode(chunk.digest));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let age = format!("public, immutable, max-age={}", chunk.rest().as_secs());
    let told = [(header::CACHE_CONTROL, age), (header::ETAG, tag)];
    if known {
        return (StatusCode::NOT_MODIFIED, told).into_response();
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
    let length = [(header::CONTENT_LENGTH, HeaderValue::from(chunk.bytes))];
    (told, kind, length, body(chunk)).into_response()
}

fn body(chunk: Chunk) -> Body {
    let next = async |(chunk, offset): (Chunk, u32)| {
        if offset >= chunk.bytes {
            return Ok(None);
        }
        let reading = tokio::task::spawn_blocking(move || {
            let read = chunk.read(offset, READ_BYTES);
            (read, chunk)
        });
        let (read, chunk) = reading.await.map_err(std::io::Error::other)?;
        let bytes = Bytes::from(read?);
        let offset = offset + bytes.len() as u32;
        Ok::<_, std::io::Error>(Some((bytes, (chunk, offset))))
    };
    Body::from_stream(futures_util::stream::try_unfold((chunk, 0), next))
}
