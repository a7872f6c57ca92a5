//! The lab's own HTTP server: it answers with a payload that lies ready, and does nothing else. What is measured against it is the
//! lab, the way between, and a cache if there is one.
//!
//! *Caveats.* It runs on threads of the lab's own process, so its processor time is in the lab's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::payload::Rows;
use super::settings::{Compressed, HttpSettings};
use crate::null::serve_each;

/// The parameter by which a request asks for an answer of its own.
pub const KEY: &str = "lab";
/// For how long caches may keep an answer, in seconds.
const MAX_AGE_S: u32 = 86_400;

/// A server that runs; dropped, it is gone, and its connections with it.
#[derive(Debug)]
pub struct Origin {
    place: SocketAddr,
    requests: Arc<AtomicU64>,
    rows: Arc<Rows>,
    runtime: Option<Runtime>,
}

/// What all answers are made of.
struct Answers {
    path: String,
    rows: Arc<Rows>,
    /// The rows as they are sent, where that is the same for all.
    ready: Option<Bytes>,
    level: u32,
    requests: Arc<AtomicU64>,
}

impl Origin {
    /// Starts one at this place (host and port; port 0 is any that is free), on as many threads as there are processors.
    pub fn start(place: &str, settings: &HttpSettings) -> std::io::Result<Origin> {
        let listener = std::net::TcpListener::bind(place)?;
        listener.set_nonblocking(true)?;
        let place = listener.local_addr()?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().thread_name("lab-origin").build()?;
        let (rows, requests) = (Arc::new(Rows::of(settings.payload)), Arc::new(AtomicU64::new(0)));
        let ready = match (settings.level, settings.compressed) {
            (0, _) => Some(rows.bytes().clone()),
            (level, Compressed::Once) => Some(compressed(level, &[rows.bytes()])),
            (_, Compressed::Each) => None,
        };
        let level = settings.level;
        let (path, requests_of) = (path(settings), requests.clone());
        let answers = Arc::new(Answers { path, rows: rows.clone(), ready, level, requests: requests_of });
        runtime.spawn(async move {
            let serve = |stream| {
                let answers = answers.clone();
                let answer = service_fn(move |request| answers.clone().answer(request));
                async move {
                    // Whoever goes has no more to say.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                }
            };
            match TcpListener::from_std(listener) {
                Ok(listener) => serve_each(listener, serve).await,
                Err(error) => Err(error),
            }
        });
        Ok(Origin { place, requests, rows, runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn place(&self) -> SocketAddr {
        self.place
    }

    /// How many requests have come so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// What it answers with.
    pub(super) fn rows(&self) -> Arc<Rows> {
        self.rows.clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // Also where waiting is not allowed.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Where the payload is: another path for each, so that no cache takes one for another.
pub fn path(settings: &HttpSettings) -> String {
    format!("/{}/{}/{}", settings.payload.column, settings.payload.bytes, settings.level)
}

/// These, one after the other, as one member of gzip.
fn compressed(level: u32, parts: &[&[u8]]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    for part in parts {
        // Into memory: there is nothing to fail.
        let _ = encoder.write_all(part);
    }
    encoder.finish().unwrap_or_default().into()
}

impl Answers {
    async fn answer<B>(self: Arc<Self>, request: Request<B>) -> Result<Response<Parts>, Infallible> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let refused = match (request.method(), request.uri().path()) {
            (&Method::GET, path) if path == self.path => None,
            (&Method::GET, _) => Some(StatusCode::NOT_FOUND),
            _ => Some(StatusCode::METHOD_NOT_ALLOWED),
        };
        if let Some(status) = refused {
            let mut response = Response::new(Parts::default());
            *response.status_mut() = status;
            return Ok(response);
        }
        let query = request.uri().query().unwrap_or_default();
        let key = query.split('&').find_map(|pair| pair.strip_prefix(KEY)?.strip_prefix('='));
        let head = Rows::head(key.unwrap_or_default());
        let level = self.level;
        let parts = match &self.ready {
            Some(ready) if level == 0 => vec![Bytes::copy_from_slice(&head), ready.clone()],
            // Members of gzip may follow one another.
            Some(ready) => vec![compressed(level, &[&head]), ready.clone()],
            None => {
                let answers = self.clone();
                let compress = move || compressed(level, &[&head, answers.rows.bytes()]);
                tokio::task::spawn_blocking(compress).await.into_iter().collect()
            }
        };
        let mut response = Response::new(Parts(parts.into()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/octet-stream"));
        if let Ok(caching) = format!("public, max-age={MAX_AGE_S}").parse() {
            headers.insert(header::CACHE_CONTROL, caching);
        }
        if level > 0 {
            headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
        }
        Ok(response)
    }
}

/// A body of some pieces.
#[derive(Default)]
struct Parts(VecDeque<Bytes>);

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
