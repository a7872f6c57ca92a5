//! The server's side of a request: takes the frames out of a body that comes in arbitrary pieces, and holds order and limits.
//!
//! ```text
//! HELLO [ KEY_RANGES ] [ ( (TABLE CHANGES*)* | TICKET ) UPLOAD_END ] END
//! ```
//!
//! Of an upload that came in pieces before, the request has the TICKET alone; a [`PiecesReader`] reads what came under it.
//!
//! ```
//! use headwater_protocol::server::{RequestEvent, RequestReader};
//! use headwater_protocol::{Frame, Kind, Limits};
//! let mut reader = RequestReader::new(Limits::REQUEST);
//! reader.push(&Frame::new(Kind::End, Vec::new()).to_bytes());
//! let error = reader.poll().expect_err("HELLO comes first");
//! assert_eq!(error.to_string(), "frame End where HELLO was expected");
//! ```
//!
//! A body is whole when END has come and [`RequestReader::finish`] finds nothing after it; whatever came before that is worth nothing.
//!
//! Caveats: rows are not decoded here. CHANGES are decompressed once, for the digest; what their rows say is found out when they are
//! applied. The number of changes in UPLOAD_END is the engine's to compare.

use thiserror::Error;

use crate::frame::{Decoder, Frame, Kind};
use crate::limits::{Limits, Meter};
use crate::message::{ErrorCode, Hello, KeyRanges, ServerError, TableHeader, Ticket, UploadEnd, VERSION};
use crate::upload::Digest;
use crate::wire::{DecodeError, nothing};

/// Reads one request.
#[derive(Debug)]
pub struct RequestReader {
    decoder: Decoder,
    meter: Meter,
    state: State,
    digest: Digest,
    acknowledged: u64,
    /// Whether KEY_RANGES may still come: straight after HELLO.
    may_have_ranges: bool,
}

/// What came.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// The first frame.
    Hello(Box<Hello>),
    /// What the remote has left of its key ranges; at most once.
    KeyRanges(KeyRanges),
    /// A frame of the upload (TABLE or CHANGES), as it travelled: to be spooled.
    Frame(Frame),
    /// The upload's frames came in pieces, under this ticket.
    Ticket(Ticket),
    /// The upload is whole, its digest is that of the frames; of one that came in pieces it is still to be compared.
    UploadEnd(UploadEnd),
    /// The request is whole.
    End,
}

/// Why a request is refused. The reader is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Bytes that are not what the format says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A protocol version that this code doesn't speak.
    #[error("protocol version {actual}, expected {VERSION}: update the remote's program or the server")]
    Version {
        /// The version asked for.
        actual: u64,
    },
    /// A frame in the wrong place.
    #[error("frame {actual:?} where {expected} was expected")]
    Order {
        /// What came.
        actual: Kind,
        /// What may come.
        expected: &'static str,
    },
    /// The upload's digest is not that of its frames.
    #[error("the upload's digest is not that of the frames that came")]
    Digest,
    /// The upload's number does not follow what the remote has acknowledged.
    #[error("upload number {actual}, expected {expected} or more: it follows the one acknowledged in HELLO")]
    Sequence {
        /// The number in UPLOAD_END.
        actual: u64,
        /// The least that HELLO calls for.
        expected: u64,
    },
    /// The body ended before END.
    #[error("the request ends before its END frame")]
    Truncated,
}

impl RequestError {
    /// What to answer.
    pub fn code(&self) -> ErrorCode {
        match self {
            RequestError::Decode(DecodeError::TooLarge { .. }) => ErrorCode::TooLarge,
            RequestError::Decode(DecodeError::Checksum { .. }) | RequestError::Truncated => ErrorCode::Damaged,
            RequestError::Version { .. } => ErrorCode::UnsupportedVersion,
            RequestError::Decode(_)
            | RequestError::Order { .. }
            | RequestError::Digest
            | RequestError::Sequence { .. } => ErrorCode::Malformed,
        }
    }

    /// The ERROR frame's content.
    pub fn to_server_error(&self) -> ServerError {
        ServerError { code: self.code(), retry_after_ms: 0, message: self.to_string() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Hello,
    /// The upload, before a TABLE.
    Upload,
    /// The upload, after a TABLE.
    Changes,
    /// The upload, after a TICKET.
    Pieces,
    End,
    Over,
}

impl State {
    fn expected(self) -> &'static str {
        match self {
            State::Hello => "HELLO",
            State::Upload => "TABLE, TICKET or UPLOAD_END",
            State::Pieces => "UPLOAD_END",
            State::Changes => "CHANGES, TABLE or UPLOAD_END",
            State::End => "END",
            State::Over => "nothing more",
        }
    }
}

impl RequestReader {
    /// A reader of one request under these limits.
    pub fn new(limits: Limits) -> RequestReader {
        RequestReader {
            decoder: Decoder::new(limits.frame_bytes_max),
            meter: Meter::new(limits),
            state: State::Hello,
            digest: Digest::new(),
            acknowledged: 0,
            may_have_ranges: false,
        }
    }

    /// Adds bytes that came. Call [`RequestReader::poll`] until it gives `None` before the next piece, so that no more than one frame
    /// and one piece are held.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next event; `None`: more bytes are needed.
    pub fn poll(&mut self) -> Result<Option<RequestEvent>, RequestError> {
        let Some(frame) = self.decoder.next_frame()? else {
            return Ok(None);
        };
        self.step(frame).map(Some)
    }

    /// To be called when the body has ended: whether it was whole.
    pub fn finish(&self) -> Result<(), RequestError> {
        if self.state == State::Over && self.decoder.is_at_boundary() { Ok(()) } else { Err(RequestError::Truncated) }
    }

    fn step(&mut self, frame: Frame) -> Result<RequestEvent, RequestError> {
        let may_have_ranges = std::mem::take(&mut self.may_have_ranges);
        match (self.state, frame.kind) {
            (State::Hello, Kind::Hello) => self.hello(&frame),
            (State::Upload | State::End, Kind::KeyRanges) if may_have_ranges => {
                Ok(RequestEvent::KeyRanges(KeyRanges::from_payload(&self.meter.payload(&frame)?)?))
            }
            (State::Upload | State::Changes, Kind::Table) | (State::Changes, Kind::Changes) => {
                take(&frame, &mut self.meter, &mut self.digest)?;
                self.state = State::Changes;
                Ok(RequestEvent::Frame(frame))
            }
            (State::Upload, Kind::Ticket) => {
                let ticket = Ticket::from_payload(&self.meter.payload(&frame)?)?;
                self.state = State::Pieces;
                Ok(RequestEvent::Ticket(ticket))
            }
            (State::Upload | State::Changes | State::Pieces, Kind::UploadEnd) => self.upload_end(&frame),
            (State::End, Kind::End) => {
                nothing(&self.meter.payload(&frame)?, "end")?;
                self.state = State::Over;
                Ok(RequestEvent::End)
            }
            (state, actual) => Err(RequestError::Order { actual, expected: state.expected() }),
        }
    }

    fn hello(&mut self, frame: &Frame) -> Result<RequestEvent, RequestError> {
        let hello = Hello::from_payload(&self.meter.payload(frame)?).map_err(|error| match error {
            DecodeError::Undefined { field: "protocol version", actual } => RequestError::Version { actual },
            error => error.into(),
        })?;
        self.state = if hello.has_upload { State::Upload } else { State::End };
        self.acknowledged = hello.upload_sequence;
        self.may_have_ranges = true;
        Ok(RequestEvent::Hello(Box::new(hello)))
    }

    fn upload_end(&mut self, frame: &Frame) -> Result<RequestEvent, RequestError> {
        let end = UploadEnd::from_payload(&self.meter.payload(frame)?)?;
        let expected = self.acknowledged.saturating_add(1);
        if end.sequence < expected || i64::try_from(end.sequence).is_err() {
            return Err(RequestError::Sequence { actual: end.sequence, expected });
        }
        if self.state != State::Pieces && std::mem::take(&mut self.digest).finish() != end.digest {
            return Err(RequestError::Digest);
        }
        self.state = State::End;
        Ok(RequestEvent::UploadEnd(end))
    }
}

/// Reads what came under a ticket: the frames of one upload, TABLE and CHANGES, and nothing else.
#[derive(Debug)]
pub struct PiecesReader {
    decoder: Decoder,
    meter: Meter,
    digest: Digest,
    has_table: bool,
}

impl PiecesReader {
    /// A reader of one upload under these limits.
    pub fn new(limits: Limits) -> PiecesReader {
        let decoder = Decoder::new(limits.frame_bytes_max);
        PiecesReader { decoder, meter: Meter::new(limits), digest: Digest::new(), has_table: false }
    }

    /// Adds bytes, as [`RequestReader::push`] does.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next frame; `None`: more bytes are needed.
    pub fn poll(&mut self) -> Result<Option<Frame>, RequestError> {
        let Some(frame) = self.decoder.next_frame()? else {
            return Ok(None);
        };
        match frame.kind {
            Kind::Table => self.has_table = true,
            Kind::Changes if self.has_table => {}
            actual => {
                let expected = if self.has_table { "CHANGES or TABLE" } else { "TABLE" };
                return Err(RequestError::Order { actual, expected });
            }
        }
        take(&frame, &mut self.meter, &mut self.digest)?;
        Ok(Some(frame))
    }

    /// To be called when the bytes are at their end: the digest, if they end with a frame.
    pub fn finish(self) -> Result<[u8; 32], RequestError> {
        if self.decoder.is_at_boundary() { Ok(self.digest.finish()) } else { Err(RequestError::Truncated) }
    }
}

/// Checks a frame of an upload and adds it to the digest.
fn take(frame: &Frame, meter: &mut Meter, digest: &mut Digest) -> Result<(), RequestError> {
    let payload = meter.payload(frame)?;
    if frame.kind == Kind::Table {
        TableHeader::from_payload(&payload)?;
    }
    digest.add(frame.kind, &payload);
    Ok(())
}

#[cfg(test)]
mod tests;
