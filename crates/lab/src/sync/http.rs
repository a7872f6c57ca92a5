//! A request to a Headwater server, and its answer as it comes. As a remote does it, each has a connection of its own, over the
//! client's link.

use std::fmt::Write as _;

use bytes::Bytes;
use headwater_protocol::client::status_error;
use headwater_protocol::message::ServerError;
use headwater_protocol::{Decoder, Kind};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;

use crate::link::Link;
use crate::peer::Peer;

/// The media type of frames.
const FRAMES: &str = "application/vnd.headwater.sync";

/// The most bytes of a refusal.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Why there is no answer of frames.
pub(super) enum Refused {
    /// The connection failed.
    Network(String),
    /// An HTTP status says so.
    Status(ServerError),
}

/// The frames of an answer, as they come.
pub(super) struct Answer(Incoming);

/// Sends frames to a server, as this user's remote.
pub(super) async fn sync(
    (server, link): (&Peer, Link),
    token: &str,
    user: &str,
    remote_id: [u8; 16],
    (frames, sync_id): (Bytes, &str),
) -> Result<Answer, Refused> {
    let request = Request::post("/v1/sync")
        .header(header::HOST, server.place())
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header("headwater-user", hex(user.as_bytes()))
        .header("headwater-remote-id", hex(&remote_id))
        .header(header::CONTENT_TYPE, FRAMES)
        .header("headwater-sync-id", sync_id)
        .body(Full::new(frames))
        .map_err(|error| Refused::Network(error.to_string()))?;
    let answer = send(server, link, request).await.map_err(Refused::Network)?;
    let is_frames = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == FRAMES);
    if is_frames && answer.status() != StatusCode::SERVICE_UNAVAILABLE {
        return Ok(Answer(answer.into_body()));
    }
    let retry_after = answer.headers().get(header::RETRY_AFTER);
    let retry_after_s = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    let of_the_head = status_error(answer.status().as_u16(), retry_after_s);
    let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX).collect().await.ok();
    let told = body.filter(|_| is_frames).and_then(|body| server_error(&body.to_bytes()));
    Err(Refused::Status(told.unwrap_or(of_the_head)))
}

/// The ERROR frame that a refusal is.
fn server_error(body: &[u8]) -> Option<ServerError> {
    let mut decoder = Decoder::new(REFUSAL_BYTES_MAX);
    decoder.push(body);
    let frame = decoder.next_frame().ok()?.filter(|frame| frame.kind == Kind::Error)?;
    ServerError::from_payload(&frame.payload(REFUSAL_BYTES_MAX).ok()?).ok()
}

async fn send(server: &Peer, link: Link, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
    let stream = server.connect(link).await.map_err(|failure| failure.to_string())?;
    let connected = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(|error| error.to_string())?;
    // Ends when the answer has been read, or is not wanted any more; what goes wrong is told to whoever reads.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|error| error.to_string())
}

impl Answer {
    /// The next bytes; none: the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, String> {
        while let Some(frame) = self.0.frame().await {
            match frame.map_err(|error| error.to_string())?.into_data() {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Ok(Some(bytes)),
                Err(_trailers) => {}
            }
        }
        Ok(None)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// A server that answers one request, with three bytes of frames, once it is whole; and the place where it listens.
    fn server(request_bytes: usize) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
            while !heard.ends_with(&vec![b'!'; request_bytes]) {
                let read = stream.read(&mut buffer).expect("a request");
                heard.extend_from_slice(&buffer[..read]);
            }
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {FRAMES}\r\ncontent-length: 3\r\n\r\nabc");
            stream.write_all(answer.as_bytes()).expect("a client that listens");
            // Until the client leaves.
            let _ = stream.read(&mut buffer);
        });
        place
    }

    /// The clock stands still while the server works, and goes on with the link's timers alone.
    #[tokio::test(start_paused = true)]
    async fn a_request_is_as_long_under_way_as_the_link_is() {
        let delay = Duration::from_millis(300);
        for (link, expected) in [
            (Link::default(), Duration::ZERO),
            // There and back for the connection, there with the request, back with the answer.
            (Link { delay, ..Link::default() }, 4 * delay),
            // A second for the body, and some more for the heads.
            (Link { bits_per_s: 80_000, delay, loss_permille: 0 }, 4 * delay + Duration::from_secs(1)),
        ] {
            let place = Peer::at(server(10_000));
            let begin = Instant::now();
            let body = Bytes::from(vec![b'!'; 10_000]);
            let answer = sync((&place, link), "token", "anna", [1; 16], (body, "1-1")).await;
            let Ok(mut answer) = answer else { panic!("no answer over {link:?}") };
            assert_eq!(answer.next().await, Ok(Some(Bytes::from("abc"))), "{link:?}");
            let heads = if link.bits_per_s == 0 { Duration::ZERO } else { Duration::from_millis(100) };
            let took = begin.elapsed();
            assert!(expected <= took && took <= expected + heads, "{link:?}: {took:?}, expected {expected:?}");
        }
    }
}
