//! Takes the frames out of an answer that comes in arbitrary pieces, and holds order and limits.
//!
//! ```text
//! HEARTBEAT* WELCOME [RECEIPT] [DOWNLOAD (PARTITION | TABLE | ROWS | SNAPSHOT | KEY_RANGES)* WATERMARKS] END
//! ```
//!
//! RECEIPT comes exactly when an upload was sent, the download exactly when one was asked for. A HEARTBEAT may stand between any two
//! frames; an ERROR may too, and ends the answer. ROWS come after the TABLE that they belong to. SNAPSHOT comes only to who takes chunks, and
//! after it a TABLE before more ROWS.
//!
//! The rest of a download that is resumed may begin with any frame of one after DOWNLOAD; what came before it is staged.
//!
//! Caveats: rows are neither unpacked nor decoded here, they are staged as they travelled; how large they say that they get is held against
//! the limits.

use thiserror::Error;

use crate::frame::{Decoder, Frame, Kind};
use crate::limits::{Limits, Meter};
use crate::message::{
    Download, KeyRanges, PartitionMark, Receipt, ServerError, Snapshot, TableHeader, Watermarks, Welcome,
};
use crate::wire::{DecodeError, nothing};

/// Reads one answer.
#[derive(Debug)]
pub struct AnswerReader {
    decoder: Decoder,
    meter: Meter,
    expected: Expected,
    state: State,
}

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// It had an upload, so a receipt comes.
    pub receipt: bool,
    /// It wanted a download.
    pub download: bool,
    /// It said that it takes chunks.
    pub chunks: bool,
}

/// What came.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerEvent {
    /// The server still works on it.
    Heartbeat,
    /// The first frame of a sync that goes on.
    Welcome(Welcome),
    /// What became of the upload.
    Receipt(Receipt),
    /// A frame of the download (DOWNLOAD, PARTITION, TABLE, ROWS, SNAPSHOT, KEY_RANGES, WATERMARKS), as it travelled: to be staged.
    Frame(Frame),
    /// Why there is no more. Nothing follows.
    ServerError(ServerError),
    /// Nothing is missing. Nothing follows.
    End,
}

/// Why an answer is worth nothing. The reader is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// Bytes that are not what the format says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A frame in the wrong place.
    #[error("frame {actual:?} where {expected} was expected")]
    Order {
        /// What came.
        actual: Kind,
        /// What may come.
        expected: &'static str,
    },
    /// A receipt for another upload.
    #[error("receipt of upload {actual}, expected that of upload {expected}")]
    Receipt {
        /// The number in the receipt.
        actual: u64,
        /// The number sent; 0 if none.
        expected: u64,
    },
    /// The stream ended before END.
    #[error("the answer ends before its END frame")]
    Truncated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Welcome,
    Receipt,
    Download,
    /// The download, before a TABLE.
    Tables,
    /// The download, after a TABLE.
    Rows,
    /// The rest of a download, before its first frame.
    Rest,
    End,
    Over,
}

impl State {
    fn expected(self) -> &'static str {
        match self {
            State::Welcome => "WELCOME",
            State::Receipt => "RECEIPT",
            State::Download => "DOWNLOAD",
            State::Tables => "TABLE, PARTITION, SNAPSHOT or WATERMARKS",
            State::Rows => "ROWS, TABLE, PARTITION, SNAPSHOT or WATERMARKS",
            State::Rest => "ROWS, TABLE, PARTITION, SNAPSHOT, WATERMARKS or END",
            State::End => "END",
            State::Over => "nothing more",
        }
    }
}

impl AnswerReader {
    /// A reader of the answer to a request that asked for `expected`.
    pub fn new(limits: Limits, expected: Expected) -> AnswerReader {
        let decoder = Decoder::new(limits.frame_bytes_max);
        AnswerReader { decoder, meter: Meter::new(limits), expected, state: State::Welcome }
    }

    /// A reader of the rest of a download.
    pub fn of_rest(limits: Limits, chunks: bool) -> AnswerReader {
        let expected = Expected { receipt: false, download: true, chunks };
        AnswerReader { state: State::Rest, ..AnswerReader::new(limits, expected) }
    }

    /// Adds bytes that came. Call [`AnswerReader::poll`] until it gives `None` before the next piece.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next event; `None`: more bytes are needed.
    pub fn poll(&mut self) -> Result<Option<AnswerEvent>, AnswerError> {
        let Some(frame) = self.decoder.next_frame()? else {
            return Ok(None);
        };
        self.step(frame).map(Some)
    }

    /// To be called when the stream has ended: whether it was whole, by END or by an ERROR.
    pub fn finish(&self) -> Result<(), AnswerError> {
        if self.state == State::Over && self.decoder.is_at_boundary() { Ok(()) } else { Err(AnswerError::Truncated) }
    }

    fn step(&mut self, frame: Frame) -> Result<AnswerEvent, AnswerError> {
        if frame.kind == Kind::Rows && matches!(self.state, State::Rows | State::Rest) {
            // Most of what comes is rows. They are unpacked once, when they are applied.
            self.meter.note(&frame)?;
            self.state = State::Rows;
            return Ok(AnswerEvent::Frame(frame));
        }
        let payload = self.meter.payload(&frame)?;
        let (event, next) = match (self.state, frame.kind) {
            (state, actual) if state == State::Over => {
                return Err(AnswerError::Order { actual, expected: state.expected() });
            }
            (state, Kind::Heartbeat) => {
                nothing(&payload, "heartbeat")?;
                (AnswerEvent::Heartbeat, state)
            }
            (_, Kind::Error) => (AnswerEvent::ServerError(ServerError::from_payload(&payload)?), State::Over),
            (State::Welcome, Kind::Welcome) => {
                let next = if self.expected.receipt { State::Receipt } else { self.after_receipt() };
                (AnswerEvent::Welcome(Welcome::from_payload(&payload)?), next)
            }
            (State::Receipt, Kind::Receipt) => {
                (AnswerEvent::Receipt(Receipt::from_payload(&payload)?), self.after_receipt())
            }
            (State::End | State::Rest, Kind::End) => {
                nothing(&payload, "end")?;
                (AnswerEvent::End, State::Over)
            }
            (state, kind) => {
                if kind == Kind::Snapshot && !self.expected.chunks {
                    return Err(AnswerError::Order { actual: kind, expected: state.expected() });
                }
                let next = staged(state, kind, &payload)?;
                drop(payload);
                (AnswerEvent::Frame(frame), next)
            }
        };
        self.state = next;
        Ok(event)
    }

    fn after_receipt(&self) -> State {
        if self.expected.download { State::Download } else { State::End }
    }
}

/// Checks a frame of the download, and says where the answer stands after it.
fn staged(state: State, kind: Kind, payload: &[u8]) -> Result<State, AnswerError> {
    use State::{Rest, Rows, Tables};
    // Whether a TABLE came before what is resumed is known when it is applied.
    let begun = if state == Rest { Rows } else { state };
    Ok(match (state, kind) {
        (State::Download, Kind::Download) => Download::from_payload(payload).map(|_| Tables)?,
        (Tables | Rows | Rest, Kind::Table) => TableHeader::from_payload(payload).map(|_| Rows)?,
        (Tables | Rows | Rest, Kind::Partition) => PartitionMark::from_payload(payload).map(|_| begun)?,
        // Rows of its own table come in its chunks.
        (Tables | Rows | Rest, Kind::Snapshot) => Snapshot::from_payload(payload).map(|_| Tables)?,
        (Tables | Rows | Rest, Kind::KeyRanges) => KeyRanges::from_payload(payload).map(|_| begun)?,
        (Tables | Rows | Rest, Kind::Watermarks) => Watermarks::from_payload(payload).map(|_| State::End)?,
        (state, actual) => return Err(AnswerError::Order { actual, expected: state.expected() }),
    })
}
