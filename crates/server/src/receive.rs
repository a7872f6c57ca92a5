//! Receiving a request: its body goes through the protocol's reader into a spool, and holds no worker meanwhile.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use headwater_consolidated::Plan;
use headwater_protocol::message::{ErrorCode, Hello, KeyRanges, Ticket, UploadEnd};
use headwater_protocol::server::{RequestEvent, RequestReader};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::spool::UploadSpool;
use crate::state::Shared;

/// Bytes of a refused request that are still taken, so that its sender gets to read the answer.
const DRAIN_BYTES_MAX: u64 = 1 << 20;
/// A request that has been coming for twice as long as it may be silent must have come at so many bytes a second: a tenth of what the
/// slowest lines carry. Else a byte now and then would keep a place for ever (Apache's mod_reqtimeout has the same, `MinRate`).
const BYTES_PER_S_MIN: f64 = 50.0;
/// How long they are taken.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// A request that is whole.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) hello: Hello,
    pub(crate) plan: Arc<Plan>,
    pub(crate) upload: Option<(UploadEnd, Upload)>,
    pub(crate) key_ranges: Option<KeyRanges>,
    pub(crate) bytes: u64,
}

/// Where an upload's frames are.
#[derive(Debug)]
pub(crate) enum Upload {
    /// They came with the request.
    Here(UploadSpool),
    /// They came before, in pieces.
    Pieces(Ticket),
}

/// Reads a request's body to its end. After an error the rest of the body is still there to be drained.
pub(crate) async fn receive(shared: &Arc<Shared>, body: &mut Body) -> Result<Received, Failure> {
    let mut receiving = Receiving {
        shared,
        reader: RequestReader::new(shared.config.now().request_limits()),
        hello: None,
        spool: UploadSpool::new(&shared.spools),
        ticket: None,
        end: None,
        key_ranges: None,
        bytes: 0,
    };
    let idle = shared.config.now().idle_limit();
    let began = Instant::now();
    while let Some(piece) = next_piece(body, idle).await? {
        receiving.bytes += piece.len() as u64;
        comes_on(receiving.bytes, began.elapsed(), idle)?;
        receiving.take(&piece).await?;
    }
    receiving.whole()
}

struct Receiving<'a> {
    shared: &'a Shared,
    reader: RequestReader,
    hello: Option<(Hello, Arc<Plan>)>,
    spool: UploadSpool,
    ticket: Option<Ticket>,
    end: Option<UploadEnd>,
    key_ranges: Option<KeyRanges>,
    bytes: u64,
}

impl Receiving<'_> {
    async fn take(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.reader.push(piece);
        while let Some(event) = self.reader.poll().map_err(|error| Failure::from(&error))? {
            match event {
                RequestEvent::Hello(hello) => {
                    let plan = self.shared.plan_for(&hello)?;
                    self.hello = Some((*hello, plan));
                }
                RequestEvent::KeyRanges(ranges) => self.key_ranges = Some(ranges),
                RequestEvent::Frame(frame) => {
                    self.spool.push(&frame);
                    if self.spool.wants_flush() {
                        self.flush().await?;
                    }
                }
                RequestEvent::Ticket(ticket) => self.ticket = Some(ticket),
                RequestEvent::UploadEnd(end) => self.end = Some(end),
                RequestEvent::End => {}
            }
        }
        Ok(())
    }

    /// Writes to the disk on a thread that may wait for it.
    async fn flush(&mut self) -> Result<(), Failure> {
        let empty = UploadSpool::new(&self.shared.spools);
        let mut spool = std::mem::replace(&mut self.spool, empty);
        let flushed = tokio::task::spawn_blocking(move || spool.flush().map(|()| spool));
        self.spool = flushed
            .await
            .map_err(|error| Failure::internal(error.to_string()))?
            .map_err(|error| Failure::spool(&error))?;
        Ok(())
    }

    fn whole(self) -> Result<Received, Failure> {
        self.reader.finish().map_err(|error| Failure::from(&error))?;
        let (hello, plan) = self.hello.ok_or_else(|| Failure::internal("a whole request without HELLO"))?;
        let upload = self.ticket.map_or(Upload::Here(self.spool), Upload::Pieces);
        let upload = self.end.map(|end| (end, upload));
        Ok(Received { hello, plan, upload, key_ranges: self.key_ranges, bytes: self.bytes })
    }
}

/// An error where a request has brought too little in this time.
fn comes_on(bytes: u64, took: Duration, idle: Duration) -> Result<(), Failure> {
    if took <= 2 * idle || bytes as f64 >= BYTES_PER_S_MIN * took.as_secs_f64() {
        return Ok(());
    }
    let message =
        format!("{bytes} bytes of the request came in {} s, expected {BYTES_PER_S_MIN} a second", took.as_secs());
    Err(Failure::new(ErrorCode::Timeout, message))
}

/// The next bytes of a body; `None` at its end.
pub(crate) async fn next_piece(body: &mut Body, idle: Duration) -> Result<Option<Bytes>, Failure> {
    loop {
        let frame = tokio::time::timeout(idle, body.frame()).await.map_err(|_| {
            Failure::new(ErrorCode::Timeout, format!("nothing of the request came for {} ms", idle.as_millis()))
        })?;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(_trailers) => {}
            },
            Some(Err(error)) => {
                let failure = Failure::new(ErrorCode::Damaged, "the request broke off");
                return Err(failure.with_detail(error.to_string()));
            }
        }
    }
}

/// Takes some of the rest of a refused request, apart from its answer: a sender that is cut off in the midst of its body never reads
/// why.
pub(crate) fn drain(mut body: Body) {
    let draining = async move {
        let mut bytes = 0;
        while let Ok(Some(piece)) = next_piece(&mut body, DRAIN_TIME).await {
            bytes += piece.len() as u64;
            if bytes > DRAIN_BYTES_MAX {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(DRAIN_TIME, draining));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_is_no_request_and_a_slow_line_is() {
        let idle = Duration::from_secs(30);
        let comes =
            |bytes, seconds| comes_on(bytes, Duration::from_secs(seconds), idle).map_err(|failure| failure.code);
        assert_eq!(comes(60, 60), Ok(()), "it may still come");
        assert_eq!(comes(61, 61), Err(ErrorCode::Timeout));
        assert_eq!((comes(480 * 61, 61), comes(480 * 3600, 3600)), (Ok(()), Ok(())), "4,800 bit/s");
        assert_eq!((comes(50 * 100, 100), comes(50 * 100 - 1, 100)), (Ok(()), Err(ErrorCode::Timeout)));
    }
}
