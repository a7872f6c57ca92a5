//! One connection to a server or a proxy: a request, and its answer to the last byte.

use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::decode::{Decoder, Sum};
use super::payload::Column;
use super::told;
use crate::frontier::{Answer, AnswerError, Field, PayloadError, Records};
use crate::harness::{Class, Failure, Traffic};
use crate::link::{Link, Stream};
use crate::tls::Tls;

/// The most bytes of an answer of the Frontier protocol, which is read whole before it is looked at.
const FRAME_MAX: usize = 1 << 30;

/// A connection.
pub(super) struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    wire: Arc<Wire>,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) traffic: Traffic,
    /// Of the decoded body.
    pub(super) crc: u32,
}

/// How an answer is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// As it is, after its content encoding.
    Body,
    /// By the Frontier protocol; what counts is the payload, or where rows of one column are asked for, their values.
    Frontier {
        /// What was asked for.
        encoding: String,
        /// The column that the second field of each row is of.
        column: Option<Column>,
    },
}

impl Connection {
    /// Makes one to a place (host and port). What is counted is what goes over the network, whether that is TLS or not.
    pub(super) async fn open(place: &str, link: Link, tls: Option<&Tls>) -> Result<Connection, Failure> {
        let refused = |error: std::io::Error| Failure::new(Class::Refused, format!("{place}: {error}"));
        let wire = Arc::new(Wire::default());
        let stream = Counted { stream: link.connect(place).await.map_err(refused)?, wire: wire.clone() };
        let stream = match tls {
            Some(tls) => tls.over(stream).await?,
            None => Box::new(stream),
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
        // Ends with its sender; what goes wrong is told to whoever reads.
        tokio::spawn(connection);
        Ok(Connection { sender, wire })
    }

    /// Whether the other end has kept it. Waits until it can be asked again.
    pub(super) async fn is_kept(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Asks, and reads the answer to its end. Unless the failure is one of a connection that broke, another request may follow.
    pub(super) async fn get(&mut self, request: Request<Empty<Bytes>>, reading: &Reading) -> Result<Got, Failure> {
        let before = self.wire.so_far();
        let answer = self.sender.send_request(request).await.map_err(|error| lost(&error))?;
        let status = answer.status();
        if !status.is_success() {
            let body = read(answer.into_body(), |_| Ok(())).await;
            let what = Failure::new(Class::Code(format!("HTTP {}", status.as_u16())), format!("status {status}"));
            return Err(Failure { is_broken: body.is_err(), ..what });
        }
        let (head, body_bytes, sum) = match reading {
            Reading::Body => whole(answer).await?,
            Reading::Frontier { encoding, column } => frame(answer, encoding, *column).await?,
        };
        let (sent, received) = self.wire.so_far();
        let is_hit = told::is_hit(&head);
        let traffic = Traffic {
            sent_bytes: sent - before.0,
            received_bytes: received - before.1,
            body_bytes,
            content_bytes: sum.bytes,
            hits: u64::from(is_hit == Some(true)),
            misses: u64::from(is_hit == Some(false)),
        };
        Ok(Got { traffic, crc: sum.crc() })
    }
}

/// The head, the bytes of the body as it came, and what it was decoded to.
async fn whole(answer: Response<Incoming>) -> Result<(HeaderMap, u64, Sum), Failure> {
    let (head, body) = answer.into_parts();
    let decoder = Decoder::of(&head.headers);
    let unknown = |encoding| Failure::new(Class::Other, format!("the encoding {encoding:?} was not asked for"));
    let mut decoder = decoder.map_err(|encoding| broken(unknown(encoding)))?;
    let mut bytes = 0;
    read(body, |part| {
        bytes += part.len() as u64;
        decoder.push(part).map_err(|error| broken(wrong(&error.to_string())))
    })
    .await?;
    // Where nothing but the end of the connection says that this is all, it need not be.
    let has_end =
        [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].iter().any(|name| head.headers.contains_key(name));
    let of_the_end = if has_end { wrong } else { truncated };
    let sum = decoder.end().map_err(|error| of_the_end(&error.to_string()))?;
    Ok((head.headers, bytes, sum))
}

/// The same of an answer of the Frontier protocol, which is held against all that it says of itself.
async fn frame(
    answer: Response<Incoming>,
    encoding: &str,
    column: Option<Column>,
) -> Result<(HeaderMap, u64, Sum), Failure> {
    let (head, body) = answer.into_parts();
    let mut xml = Vec::new();
    read(body, |part| {
        if xml.len() + part.len() > FRAME_MAX {
            return Err(broken(wrong(&format!("the answer has more than {FRAME_MAX} bytes"))));
        }
        xml.extend_from_slice(part);
        Ok(())
    })
    .await?;
    let answer = Answer::parse(&xml, encoding).map_err(|error| match error {
        AnswerError::Global(_) | AnswerError::Payload(_) => {
            Failure::new(Class::Code("frontier".to_owned()), error.to_string())
        }
        AnswerError::Frame(_) => truncated(&error.to_string()),
        _ => wrong(&error.to_string()),
    })?;
    let sum = match column {
        None => summed(&answer.payload),
        Some(column) => values(&answer.payload, column)?,
    };
    Ok((head.headers, xml.len() as u64, sum))
}

fn summed(bytes: &[u8]) -> Sum {
    let mut sum = Sum::default();
    // It only counts.
    let _ = sum.write_all(bytes);
    sum
}

/// The values of the second column.
fn values(payload: &[u8], column: Column) -> Result<Sum, Failure> {
    let unread = |error: PayloadError| wrong(&error.to_string());
    let (mut records, mut bytes) = (Records::of(payload).map_err(unread)?, Vec::new());
    while let Some(record) = records.next_record().map_err(unread)? {
        let read = match record.get(1) {
            Some(Field::Bytes(text)) => column.read(text, &mut bytes),
            _ => None,
        };
        read.ok_or_else(|| wrong(&format!("{record:?} has no value of the column {column}")))?;
    }
    Ok(summed(&bytes))
}

/// Reads a body to its end, as its head says where that is.
async fn read(mut body: Incoming, mut part: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| truncated(&error.to_string()))?;
        if let Some(bytes) = frame.data_ref() {
            part(bytes)?;
        }
    }
    Ok(())
}

/// The body ends before its end.
fn truncated(what: &str) -> Failure {
    broken(Failure::new(Class::Code("truncated".to_owned()), format!("the answer ends too early: {what}")))
}

/// The body is not what it should be.
pub(super) fn wrong(what: &str) -> Failure {
    Failure::new(Class::Code("checksum".to_owned()), what)
}

/// There is no answer.
fn lost(error: &hyper::Error) -> Failure {
    let class = if error.is_parse() { Class::Other } else { Class::Lost };
    broken(Failure::new(class, error.to_string()))
}

fn broken(failure: Failure) -> Failure {
    Failure { is_broken: true, ..failure }
}

/// What went over a connection.
#[derive(Debug, Default)]
struct Wire {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Wire {
    fn so_far(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}

/// A stream of which the bytes are counted.
struct Counted {
    stream: Box<dyn Stream>,
    wire: Arc<Wire>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.wire.received.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.wire.sent.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
