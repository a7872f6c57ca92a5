//! A request to a Headwater server, and its answer as it comes. As a remote does it, each has a connection of its own.

use std::fmt::Write as _;

use bytes::Bytes;
use headwater_protocol::client::status_error;
use headwater_protocol::message::ServerError;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The media type of frames.
const FRAMES: &str = "application/vnd.headwater.sync";

/// Why there is no answer of frames.
pub(super) enum Refused {
    /// The connection failed.
    Network(String),
    /// An HTTP status says so.
    Status(ServerError),
}

/// The frames of an answer, as they come.
pub(super) struct Answer(Incoming);

/// Sends frames to the server at `place` (host and port), as this user's remote.
pub(super) async fn sync(
    place: &str,
    token: &str,
    user: &str,
    remote_id: [u8; 16],
    frames: Bytes,
) -> Result<Answer, Refused> {
    let request = Request::post("/v1/sync")
        .header(header::HOST, place)
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header("headwater-user", hex(user.as_bytes()))
        .header("headwater-remote-id", hex(&remote_id))
        .header(header::CONTENT_TYPE, FRAMES)
        .body(Full::new(frames))
        .map_err(|error| Refused::Network(error.to_string()))?;
    let answer = send(place, request).await.map_err(Refused::Network)?;
    let is_frames = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == FRAMES);
    if is_frames {
        return Ok(Answer(answer.into_body()));
    }
    let retry_after = answer.headers().get(header::RETRY_AFTER);
    let retry_after_s = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    Err(Refused::Status(status_error(answer.status().as_u16(), retry_after_s)))
}

async fn send(place: &str, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
    let stream = TcpStream::connect(place).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
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
