//! How a session's upload travels: within the request, or before it, in pieces.
//!
//! ```text
//! Ticket --> Piece --> Piece --> ... --> Request with the ticket
//!    ^         |                            |
//!    +---------+---- whatever breaks -------+
//! ```
//!
//! The server tells with the ticket how much it has, so there is one way on from anything that breaks: ask again. A proxy that refuses a
//! piece gets smaller ones. Where tickets are of no use (nobody knows them, or each request meets another server) the upload goes within
//! the request after all.

use super::instruction::Instruction;
use crate::message::Ticket;

/// The most bytes of a piece, whatever the server would take.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// No piece is made smaller than this because it was refused.
const PIECE_BYTES_MIN: u64 = 16 << 10;
/// How often a ticket may be unknown to the server that gave it.
const UNKNOWN_MAX: u32 = 3;

/// The way that the frozen upload goes.
#[derive(Debug)]
pub(super) enum Way {
    /// Within the request.
    Within,
    /// In pieces before it.
    Pieces(Pieces),
    /// Within the request, as pieces are of no use here.
    WithinOnly,
}

#[derive(Debug)]
pub(super) struct Pieces {
    step: Step,
    bytes_max: u64,
    unknown: u32,
}

#[derive(Debug)]
enum Step {
    Ask,
    Send { ticket: [u8; 16], offset: u64 },
    Sent(Ticket),
}

impl Way {
    pub(super) fn of(is_large: bool) -> Way {
        if is_large { Way::pieces() } else { Way::Within }
    }

    pub(super) fn pieces() -> Way {
        Way::Pieces(Pieces { step: Step::Ask, bytes_max: PIECE_BYTES_MAX, unknown: 0 })
    }

    /// Another upload was frozen.
    pub(super) fn begin(&mut self, is_large: bool) {
        match self {
            Way::Within => *self = Way::of(is_large),
            Way::Pieces(_) => self.ask(),
            Way::WithinOnly => {}
        }
    }

    /// Something broke, or nothing is known any more: what the server has is asked first.
    pub(super) fn ask(&mut self) {
        if let Way::Pieces(pieces) = self {
            pieces.step = Step::Ask;
        }
    }

    /// What is to be sent next of an upload that is to go with this request.
    pub(super) fn next(&self, wants_download: bool, takes_chunks: bool) -> Instruction {
        let ticket = match self {
            Way::Within | Way::WithinOnly => None,
            Way::Pieces(Pieces { step: Step::Ask, .. }) => return Instruction::Ticket,
            Way::Pieces(Pieces { step: Step::Send { ticket, offset }, bytes_max, .. }) => {
                return Instruction::Piece { ticket: *ticket, offset: *offset, bytes_max: *bytes_max };
            }
            Way::Pieces(Pieces { step: Step::Sent(ticket), .. }) => Some(*ticket),
        };
        Instruction::Request { has_upload: true, ticket, wants_download, takes_chunks, gives_up: false }
    }

    /// A ticket was given.
    pub(super) fn on_ticket(&mut self, ticket: [u8; 16], offset: u64, piece_bytes: u64) {
        if let Way::Pieces(pieces) = self {
            pieces.bytes_max = pieces.bytes_max.min(piece_bytes.max(1));
            pieces.step = Step::Send { ticket, offset };
        }
    }

    /// A piece was taken: the server has so many bytes now.
    pub(super) fn on_piece(&mut self, ticket: [u8; 16], offset: u64, is_all: bool) {
        if let Way::Pieces(pieces) = self {
            let sent = Ticket { ticket, bytes: offset };
            pieces.step = if is_all { Step::Sent(sent) } else { Step::Send { ticket, offset } };
        }
    }

    /// The server does not know the ticket.
    pub(super) fn on_unknown(&mut self) {
        if let Way::Pieces(pieces) = self {
            pieces.unknown += 1;
            pieces.step = Step::Ask;
            if pieces.unknown >= UNKNOWN_MAX {
                *self = Way::WithinOnly;
            }
        }
    }

    /// The upload is too large for somebody. Whether that is a piece, and a smaller one is worth trying.
    pub(super) fn on_too_large(&mut self) -> bool {
        match self {
            Way::Pieces(pieces)
                if matches!(pieces.step, Step::Send { .. }) && pieces.bytes_max / 2 >= PIECE_BYTES_MIN =>
            {
                pieces.bytes_max /= 2;
                true
            }
            _ => false,
        }
    }
}
