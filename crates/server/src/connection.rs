//! Connections of clients: accepted, limited, watched, served, ended in order.
//!
//! hyper bounds the time for an HTTP/1 head and pings HTTP/2 peers. What it leaves open is closed here: a peer that connects and says
//! nothing (before HTTP's version is known no timer runs), and one that takes nothing of what it is sent. The system does the rest:
//! TCP keep-alive finds peers that vanished while nothing was to be sent, `TCP_USER_TIMEOUT` those that vanished while something was.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::middleware::from_fn;
use headwater_knobs::Live;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::Config;
use crate::host::addressed;
use crate::line::{Line, Meter};

/// Bytes after which a connection has said enough for its version to be known: HTTP/2's preface.
const OPENING_BYTES: usize = 24;
/// Unsent bytes that the system keeps of a connection: as small as keeps the line full, so that progress is seen as it happens and
/// slow clients cost the system little.
const UNSENT_BYTES: u32 = 128 * 1024;
/// Bytes that hyper keeps of a connection on their way in or out.
const BUFFER_BYTES: usize = 64 * 1024;
/// Requests at a time on one HTTP/2 connection.
const STREAMS_MAX: u32 = 64;
/// Bytes of an HTTP/2 head.
const HEAD_BYTES_MAX: u32 = 16 * 1024;

/// What a connection of HTTP/2 begins with, and no request of HTTP/1: the first bytes of its preface.
const PREFACE: &[u8; 3] = b"PRI";
/// How long to wait for the rest where only some of these have come.
const PREFACE_PAUSE: Duration = Duration::from_millis(20);

/// Serves to its end, in order where the server stops. (The two kinds of connections have no trait in common.)
macro_rules! until_stopping {
    ($connection:ident, $stopping:ident) => {{
        tokio::pin!($connection);
        let ended = tokio::select! {
            ended = $connection.as_mut() => Some(ended),
            _ = $stopping.wait_for(Option::is_some) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                $connection.as_mut().graceful_shutdown();
                $connection.await
            }
        };
        ended.map_err(io::Error::other)?;
    }};
}

/// How connections are served.
pub(crate) struct Service {
    router: Router,
    http1: http1::Builder,
    http2: auto::Builder<TokioExecutor>,
    tls: Option<TlsAcceptor>,
    head_limit: Duration,
    config: Live<Config>,
    keep_alive: Duration,
}

impl Service {
    pub(crate) fn new(router: Router, tls: Option<Arc<rustls::ServerConfig>>, live: &Live<Config>) -> Service {
        let config = live.now();
        let mut http1 = http1::Builder::new();
        http1.timer(TokioTimer::new()).header_read_timeout(config.head_limit()).max_buf_size(BUFFER_BYTES);
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_millis(config.keep_alive_ms))
            .keep_alive_timeout(config.head_limit())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_BYTES_MAX)
            .max_send_buf_size(BUFFER_BYTES);
        Service {
            router: router.layer(from_fn(addressed)),
            // Told apart here: where hyper-util does it, which it does for each connection that may be upgraded, what it has read so far makes
            // hyper's buffer for reading twice as large.
            http1,
            http2: http.http2_only(),
            tls: tls.map(TlsAcceptor::from),
            head_limit: config.head_limit(),
            config: live.clone(),
            keep_alive: Duration::from_millis(config.keep_alive_ms),
        }
    }

    /// Serves one connection to its end. When `stopping` says so, the requests that run are ended and no more are taken.
    pub(crate) async fn serve(
        &self,
        stream: TcpStream,
        mut stopping: watch::Receiver<Option<Instant>>,
    ) -> io::Result<()> {
        self.prepare(&stream)?;
        // Held several times over by what waits: small.
        let line = Arc::new(Line::new(stream.peer_addr()?));
        let Some(tls) = &self.tls else {
            let is_http2 = tokio::select! {
                is_http2 = tokio::time::timeout(self.head_limit, begins_http2(&stream)) => {
                    is_http2.map_err(|_| timed_out("the peer said nothing for too long"))??
                }
                _ = stopping.wait_for(Option::is_some) => return Ok(()),
            };
            return self.serve_http(is_http2, stream, line, stopping).await;
        };
        // Apart, for its state is large and most connections have none.
        Box::pin(async {
            let handshake = tokio::time::timeout(self.head_limit, tls.accept(stream));
            let stream = handshake.await.map_err(|_| timed_out("the TLS handshake took too long"))??;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            self.serve_http(is_http2, stream, line, stopping).await
        })
        .await
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let keep_alive = TcpKeepalive::new().with_time(self.keep_alive).with_interval(self.keep_alive / 3);
        socket.set_tcp_keepalive(&keep_alive.with_retries(3))?;
        socket.set_tcp_user_timeout(Some(self.config.now().idle_limit()))?;
        socket.set_tcp_notsent_lowat(UNSENT_BYTES)
    }

    async fn serve_http<S>(
        &self,
        is_http2: bool,
        stream: S,
        line: Arc<Line>,
        mut stopping: watch::Receiver<Option<Instant>>,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let idle_limit = self.config.now().idle_limit();
        // Whoever has the stream holds one end: after an upgrade that is not hyper any more.
        let (held, gone) = oneshot::channel();
        let io = TokioIo::new(Watched::new(stream, self.head_limit, idle_limit, Arc::clone(&line), Some(held)));
        let stops = Stopping(stopping.clone());
        let known = self.router.clone().map_request(move |mut request: Request<_>| {
            request.extensions_mut().insert(ConnectInfo(line.peer()));
            request.extensions_mut().insert(Arc::clone(&line));
            request.extensions_mut().insert(stops.clone());
            request
        });
        let service = TowerToHyperService::new(known);
        if is_http2 {
            // Apart, for the others would all have room for its state.
            Box::pin(async {
                let connection = self.http2.serve_connection(io, service);
                until_stopping!(connection, stopping);
                io::Result::Ok(())
            })
            .await?;
        } else {
            let connection = self.http1.serve_connection(io, service).with_upgrades();
            until_stopping!(connection, stopping);
        }
        // Until then it counts as a connection.
        let _ = gone.await;
        Ok(())
    }
}

/// Whether the server stops, and until when what runs may end then: among the extensions of each request, for those that go on for long.
#[derive(Clone, Debug)]
pub struct Stopping(pub watch::Receiver<Option<Instant>>);

/// Whether who connects speaks HTTP/2. Nothing is taken from the stream.
async fn begins_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut start).await?;
        if count == 0 || start[..count] != PREFACE[..count] {
            return Ok(false);
        }
        if count == PREFACE.len() {
            return Ok(true);
        }
        tokio::time::sleep(PREFACE_PAUSE).await;
    }
}

/// A stream that fails when its peer says nothing at first, or takes nothing for too long.
struct Watched<S> {
    inner: S,
    /// While fewer than [`OPENING_BYTES`] have come: until when they must have.
    opening: Option<(usize, Pin<Box<Sleep>>)>,
    /// While a write waits for the peer: until when it must have taken something.
    stalled: Option<Pin<Box<Sleep>>>,
    idle_limit: Duration,
    meter: Meter,
    line: Arc<Line>,
    /// Dropped with the stream, whoever has it then.
    _held: Option<oneshot::Sender<()>>,
}

impl<S> Watched<S> {
    fn new(
        inner: S,
        head_limit: Duration,
        idle_limit: Duration,
        line: Arc<Line>,
        held: Option<oneshot::Sender<()>>,
    ) -> Self {
        let opening = Some((0, Box::pin(tokio::time::sleep(head_limit))));
        Watched { inner, opening, stalled: None, idle_limit, meter: Meter::default(), line, _held: held }
    }

    /// Notes what a write of bytes gave: it tells how fast the peer takes them.
    fn measured(&mut self, result: &Poll<io::Result<usize>>) {
        let now = tokio::time::Instant::now().into_std();
        match result {
            Poll::Ready(Ok(bytes)) => self.meter.wrote(*bytes, now),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                if let Some(rate) = self.meter.is_full(now) {
                    self.line.note(rate);
                }
            }
        }
    }

    /// Passes on what a write gave, and turns waiting for too long into an error.
    fn written<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let limit = self.idle_limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        stalled.as_mut().poll(context).map(|()| Err(timed_out("the peer took nothing for too long")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, into);
        let Some((bytes, until)) = &mut self.opening else { return result };
        *bytes += into.filled().len() - before;
        if *bytes >= OPENING_BYTES {
            self.opening = None;
            return result;
        }
        match result {
            Poll::Pending => {
                until.as_mut().poll(context).map(|()| Err(timed_out("the peer said nothing for too long")))
            }
            ready @ Poll::Ready(_) => ready,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.measured(&result);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.measured(&result);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.written(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(context);
        self.written(context, result)
    }
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn line() -> Arc<Line> {
        Arc::new(Line::new(SocketAddr::from(([127, 0, 0, 1], 1))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_too_little_at_first_is_dropped() {
        for said in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
            let (near, mut far) = tokio::io::duplex(1024);
            let mut watched = Watched::new(near, LIMIT, LIMIT, line(), None);
            far.write_all(said).await.expect("room");
            let mut all = Vec::new();
            let error = watched.read_to_end(&mut all).await.expect_err("too slow");
            assert_eq!((error.kind(), all.as_slice()), (io::ErrorKind::TimedOut, said));
        }
        let (near, mut far) = tokio::io::duplex(1024);
        let mut watched = Watched::new(near, LIMIT, LIMIT, line(), None);
        far.write_all(&[b'x'; OPENING_BYTES]).await.expect("room");
        let mut byte = [0; 100];
        assert_eq!(watched.read(&mut byte).await.expect("readable"), OPENING_BYTES);
        assert!(tokio::time::timeout(LIMIT * 10, watched.read(&mut byte)).await.is_err(), "then hyper's timers count");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_dropped_and_a_slow_one_is_not() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut watched = Watched::new(near, LIMIT, LIMIT, line(), None);
        let slow = async {
            let mut byte = [0; 16];
            for _ in 0..10 {
                tokio::time::sleep(LIMIT / 2).await;
                far.read_exact(&mut byte).await.expect("readable");
            }
            far
        };
        let (written, _far) = tokio::join!(watched.write_all(&[7; 200]), slow);
        written.expect("it took something each time");
        let error = watched.write_all(&[7; 200]).await.expect_err("it takes nothing more");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn how_fast_a_peer_takes_bytes_is_known_once_it_was_too_much_for_it() {
        let (near, mut far) = tokio::io::duplex(64);
        let line = line();
        let mut watched = Watched::new(near, LIMIT, LIMIT, Arc::clone(&line), None);
        watched.write_all(&[7; 64]).await.expect("room");
        assert_eq!(line.bytes_per_s(), None);
        let slow = async {
            let mut bytes = [0; 16];
            for _ in 0..12 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                far.read_exact(&mut bytes).await.expect("readable");
            }
        };
        let (written, ()) = tokio::join!(watched.write_all(&[7; 192]), slow);
        written.expect("it took all");
        let rate = line.bytes_per_s().expect("measured");
        assert!((150.0..=161.0).contains(&rate), "{rate}");
    }
}
