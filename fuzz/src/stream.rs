//! Streams of frames, and the sessions that read them.
//!
//! Random bytes hardly ever have the right checksum. So the input of `request`, `answer` and `session` describes frames, which are then
//! written as they should be: kind (1 byte), length (2, little-endian), payload. A kind that is none stands for bytes that are sent
//! just as they are.

use std::time::Duration;

use headwater_protocol::client::{
    AnswerEvent, AnswerReader, Config, Expected, Instruction, ReadyReader, Reply, Session, Staged, Start, status_error,
};
use headwater_protocol::message::{Download, ErrorCode, ServerError};
use headwater_protocol::server::{RequestEvent, RequestReader};
use headwater_protocol::{Decoder, Frame, Kind, Limits};

use crate::wire::LIMIT;

const LIMITS: Limits = Limits { frame_bytes_max: LIMIT, total_bytes_max: 1 << 22, frames_max: 1000 };

/// The bytes that the input describes.
pub(crate) fn described(mut data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((&[kind, low, high], rest)) = data.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (payload, rest) = rest.split_at(length);
        match Kind::from_wire(kind) {
            Some(kind) => Frame::new(kind, payload.to_vec()).write(&mut out),
            None => out.extend_from_slice(payload),
        }
        data = rest;
    }
    out
}

/// In pieces of this many bytes.
pub(crate) fn pieces(bytes: &[u8], length: u8) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(usize::from(length).max(1))
}

/// What came of some bytes.
#[derive(Debug, PartialEq)]
struct Outcome<T> {
    events: Vec<T>,
    error: Option<String>,
    whole: bool,
}

/// Has a reader read bytes that come in pieces.
fn read<'a, R, T, E: std::fmt::Debug>(
    mut reader: R,
    pieces: impl Iterator<Item = &'a [u8]>,
    push: impl Fn(&mut R, &[u8]),
    poll: impl Fn(&mut R) -> Result<Option<T>, E>,
    is_whole: impl Fn(&R) -> bool,
) -> Outcome<T> {
    let mut events = Vec::new();
    for piece in pieces {
        push(&mut reader, piece);
        loop {
            match poll(&mut reader) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return Outcome { events, error: Some(format!("{error:?}")), whole: false },
            }
        }
    }
    Outcome { events, error: None, whole: is_whole(&reader) }
}

/// Bytes as frames: read and written again they are the same, however they are cut.
pub fn frame(data: &[u8]) {
    let Some((length, bytes)) = data.split_first() else { return };
    let frames = |length| {
        read(Decoder::new(LIMIT), pieces(bytes, length), Decoder::push, Decoder::next_frame, Decoder::is_at_boundary)
    };
    let found = frames(*length);
    assert_eq!(found, frames(u8::MAX), "pieces change nothing");
    let written: Vec<u8> = found.events.iter().flat_map(Frame::to_bytes).collect();
    assert!(bytes.starts_with(&written), "a frame has one encoding");
    assert!(!found.whole || written.len() == bytes.len(), "nothing is left over");
    for frame in found.events {
        let _ = frame.payload(LIMIT);
    }
}

/// A request: how its bytes are cut changes nothing, and it is whole only with its END.
pub fn request(data: &[u8]) {
    let Some((length, description)) = data.split_first() else { return };
    let bytes = described(description);
    let events = |length| {
        let reader = RequestReader::new(LIMITS);
        let is_whole = |reader: &RequestReader| reader.finish().is_ok();
        read(reader, pieces(&bytes, length), RequestReader::push, RequestReader::poll, is_whole)
    };
    let found = events(*length);
    assert_eq!(found, events(u8::MAX), "pieces change nothing");
    assert!(!found.whole || found.events.last() == Some(&RequestEvent::End), "it ends with END");
}

/// An answer, likewise; the second byte says what was asked for.
pub fn answer(data: &[u8]) {
    let [length, expected, description @ ..] = data else { return };
    let bytes = described(description);
    let expected = Expected { receipt: expected & 1 > 0, download: expected & 2 > 0, chunks: expected & 4 > 0 };
    let events = |length| {
        let reader = AnswerReader::new(LIMITS, expected);
        let is_whole = |reader: &AnswerReader| reader.finish().is_ok();
        read(reader, pieces(&bytes, length), AnswerReader::push, AnswerReader::poll, is_whole)
    };
    let found = events(*length);
    assert_eq!(found, events(u8::MAX), "pieces change nothing");
    let ended = matches!(found.events.last(), Some(AnswerEvent::End | AnswerEvent::ServerError(_)));
    assert!(!found.whole || ended, "it ends with END, or with an error");
}

/// An answer to the question for a ready file, likewise.
pub fn ready(data: &[u8]) {
    let Some((length, description)) = data.split_first() else { return };
    let bytes = described(description);
    let answer = |length| {
        let mut reader = ReadyReader::new(LIMITS);
        pieces(&bytes, length).try_for_each(|piece| reader.push(piece))?;
        reader.finish()
    };
    assert_eq!(answer(*length), answer(u8::MAX), "pieces change nothing");
}

fn is_kept(frame: &Frame) -> bool {
    let payload = frame.payload(LIMITS.frame_bytes_max).expect("it was read before");
    Download::from_payload(&payload).expect("it was read before").resumable_s > 0
}

/// What a remote has on its disk, and what may never be done to it.
struct Disk {
    start: Start,
    pending: bool,
    /// Chunks are named that are not here.
    lacking: bool,
}

impl Disk {
    fn may_send(&self, request: &Instruction) {
        let Start { frozen, staged, .. } = self.start;
        match request {
            Instruction::Resume => {
                assert!(staged == Staged::Resumable && frozen.is_none(), "what is resumed is staged, beside no upload");
            }
            Instruction::Chunk => {
                assert!(
                    staged == Staged::Chunks && frozen.is_none(),
                    "chunks are those of what is staged, beside no upload"
                );
            }
            Instruction::Ticket | Instruction::Piece { .. } => assert!(frozen.is_some(), "what is sent is frozen"),
            Instruction::Request { has_upload, ticket, .. } => {
                assert!(!has_upload || frozen.is_some(), "what is sent is frozen");
                assert!(*has_upload || ticket.is_none(), "a ticket stands for an upload");
                assert_eq!(staged, Staged::Nothing, "what is staged is applied or dropped first");
            }
            _ => {}
        }
    }

    /// Carries out what is no request and no answer's; `choice` decides what is left open.
    fn carry_out(&mut self, instruction: Instruction, choice: u8) -> Reply {
        let Start { upload_sequence, frozen, staged, is_large, is_part } = &mut self.start;
        match instruction {
            Instruction::ApplyStaged => {
                assert!(*staged == Staged::Whole && frozen.is_none(), "a download is applied whole, beside no upload");
                if choice.is_multiple_of(8) {
                    return Reply::Unreadable;
                }
                *staged = Staged::Nothing;
            }
            Instruction::DropStaged => (*staged, self.lacking) = (Staged::Nothing, false),
            Instruction::Cut => {
                assert!(
                    frozen.is_none() && *staged == Staged::Nothing,
                    "nothing is cut beside an upload or a download"
                );
                *frozen = std::mem::take(&mut self.pending).then_some(*upload_sequence + 1);
                return match *frozen {
                    Some(number) if *is_part => Reply::CutPart { number, is_large: *is_large },
                    frozen => Reply::Cut(frozen),
                };
            }
            Instruction::ApplyReceipt(receipt) => {
                assert_eq!(*frozen, Some(receipt.sequence), "a receipt is of the upload that was sent");
                (*upload_sequence, *frozen) = (receipt.sequence, None);
            }
            Instruction::Rewind { to } => {
                assert!(to < *upload_sequence, "what is lost was acknowledged");
                (*upload_sequence, *frozen, self.pending) = (to, None, true);
            }
            Instruction::Thaw { is_given_up, .. } => {
                *upload_sequence = frozen.take().filter(|_| is_given_up).unwrap_or(*upload_sequence);
                self.pending = true;
            }
            Instruction::CutSmaller { is_given_up, .. } => {
                let number = frozen.take().expect("there is something to cut");
                *upload_sequence = if is_given_up { number } else { *upload_sequence };
                self.pending = choice.is_multiple_of(2);
                return if self.pending { Reply::Done } else { Reply::SetAside };
            }
            Instruction::TakeForApplied => {
                *upload_sequence = frozen.take().expect("what was applied was sent");
            }
            Instruction::NewRemoteId => {
                assert!(frozen.is_none(), "an upload is thawed under the ID it was cut under");
                *upload_sequence = 0;
            }
            Instruction::Stage(frame) => match frame.kind {
                Kind::Welcome => *staged = Staged::Part,
                Kind::Download if is_kept(&frame) => *staged = Staged::Resumable,
                _ => {
                    assert!(matches!(staged, Staged::Part | Staged::Resumable), "WELCOME is staged first");
                    self.lacking |= frame.kind == Kind::Snapshot;
                }
            },
            Instruction::StageComplete if std::mem::take(&mut self.lacking) => {
                *staged = Staged::Chunks;
                return Reply::Lacking;
            }
            Instruction::StageComplete => *staged = Staged::Whole,
            Instruction::Restart => {}
            other => panic!("{other:?} is for the caller"),
        }
        Reply::Done
    }
}

/// What a server says to a request for a ticket, or to a piece.
fn answer_piece(session: &mut Session, now: Duration, request: &Instruction, how: u8) {
    let refusals = [413, 429, 503, 404, 401, 409, 200];
    match (request, how) {
        (_, 0) => session.io_error(now, "no route"),
        (_, 1..8) => session.refused(now, status_error(refusals[usize::from(how - 1)], None)),
        (_, 8..12) => {
            let message = "not known here".to_owned();
            session.refused(now, ServerError { code: ErrorCode::TicketUnknown, retry_after_ms: 0, message });
        }
        (Instruction::Piece { offset, bytes_max, .. }, _) => {
            assert!(*bytes_max > 0, "a piece has room for something");
            let offset = if how.is_multiple_of(4) { *offset } else { offset.saturating_add(*bytes_max) };
            session.done(now, Reply::Piece { offset, is_all: how.is_multiple_of(3) });
        }
        _ => session.done(now, Reply::Ticket { ticket: [how; 16], offset: 0, piece_bytes: u64::from(how - 12) }),
    }
}

/// More instructions than any sync of as many answers as an input describes has.
const INSTRUCTIONS_MAX: usize = 1 << 20;

/// A whole sync with a server that answers whatever the input says: it comes to an end, and does nothing to the disk that loses
/// anything. The first byte is the remote's state; then for each request a byte (below 8: it fails), and the length and the
/// description of the answer.
pub fn session(data: &[u8]) {
    let Some((state, mut data)) = data.split_first() else { return };
    let staged = [Staged::Nothing, Staged::Part, Staged::Whole, Staged::Resumable][usize::from(state % 4)];
    let staged = if state & 64 > 0 { Staged::Chunks } else { staged };
    let frozen = (state & 4 > 0).then_some(8);
    let mut disk = Disk {
        start: Start { upload_sequence: 7, frozen, is_large: state & 16 > 0, is_part: state & 32 > 0, staged },
        pending: state & 8 > 0,
        lacking: false,
    };
    let mut session = Session::new(disk.start, Config { limits: LIMITS, ..Config::default() }, 1);
    let mut now = Duration::ZERO;
    let mut answer = Vec::new();
    for step in 0..INSTRUCTIONS_MAX {
        match session.poll(now) {
            request @ (Instruction::Ticket | Instruction::Piece { .. }) => {
                disk.may_send(&request);
                let [how, rest @ ..] = data else {
                    session.io_error(now, "the input is over");
                    continue;
                };
                data = rest;
                answer_piece(&mut session, now, &request, *how);
            }
            request @ Instruction::Chunk => {
                disk.may_send(&request);
                let [how, rest @ ..] = data else {
                    session.io_error(now, "the input is over");
                    continue;
                };
                data = rest;
                match how {
                    0 => session.io_error(now, "no route"),
                    1..8 => session
                        .refused(now, status_error([403, 429, 503, 410, 401, 404, 200][usize::from(*how - 1)], None)),
                    8..12 => session.done(now, Reply::Damaged),
                    _ => {
                        let is_all = how.is_multiple_of(2);
                        disk.start.staged = if is_all { Staged::Whole } else { Staged::Chunks };
                        session.done(now, Reply::Chunk { bytes: u64::from(*how), is_all });
                    }
                }
            }
            request @ (Instruction::Request { .. } | Instruction::Resume) => {
                disk.may_send(&request);
                let [how, low, high, rest @ ..] = data else {
                    session.io_error(now, "the input is over");
                    continue;
                };
                let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
                answer = described(&rest[..length]);
                data = &rest[length..];
                match how {
                    0 => session.io_error(now, "no route"),
                    1..8 => session
                        .refused(now, status_error([413, 429, 503, 502, 401, 404, 200][usize::from(*how - 1)], None)),
                    _ => session.done(now, Reply::Done),
                }
            }
            Instruction::Read { .. } if answer.is_empty() => session.closed(now),
            Instruction::Read { .. } => session.bytes(now, &std::mem::take(&mut answer)),
            Instruction::WaitUntil(until) => {
                assert!(until > now, "a wait is for later");
                now = until;
            }
            Instruction::Done(_) | Instruction::Failed(_) => return,
            instruction => {
                let reply = disk.carry_out(instruction, step as u8);
                session.done(now, reply);
            }
        }
    }
    panic!("the sync comes to no end");
}
