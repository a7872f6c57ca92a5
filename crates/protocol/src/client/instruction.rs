//! What goes in and out of a [`Session`](super::Session): the state it begins from, how patient it is, what it asks for.

use std::time::Duration;

use super::failure::{Failure, Summary};
use crate::frame::Frame;
use crate::limits::Limits;
use crate::message::{Receipt, ServerError, Ticket};

/// The durable state of the remote when a sync begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Number of the last upload whose receipt was applied.
    pub upload_sequence: u64,
    /// Number of the frozen upload, if there is one: greater than `upload_sequence`.
    pub frozen: Option<u64>,
    /// Whether that is too large to go within a request: it is sent in pieces first.
    pub is_large: bool,
    /// Whether that is a part of what was pending, and nobody has said yet that the server takes parts.
    pub is_part: bool,
    /// What is staged of a download.
    pub staged: Staged,
}

/// What is staged of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// Nothing.
    Nothing,
    /// Frames, but not all, and their rest can't be had.
    Part,
    /// Frames, but not all, of a download that its server keeps for a while: [`Instruction::Resume`] asks for the rest.
    Resumable,
    /// All frames ([`Instruction::StageComplete`] was carried out), but not all the chunks that they name.
    Chunks,
    /// All of it.
    Whole,
}

/// How patient a sync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether a download is wanted after the upload.
    pub wants_download: bool,
    /// Whether partitions that many remotes have may come in chunks, from a cache.
    pub takes_chunks: bool,
    /// The most attempts that may fail in a row; after the last the sync fails. An attempt that brings a download or an upload further is the
    /// first of a new row, and so is what follows once an upload is given up.
    pub attempts_max: u32,
    /// No attempt begins later than this after the start.
    pub elapsed_max: Duration,
    /// An answer of which nothing but heartbeats has come is not waited for beyond this time after the start.
    pub answer_max: Duration,
    /// The longest silence of a server. Heartbeats come every five seconds.
    pub idle_max: Duration,
    /// The longest time in which nothing but heartbeats comes.
    pub patience_max: Duration,
    /// The wait after the first failure; it doubles with each further one.
    pub backoff_min: Duration,
    /// The longest wait between attempts, unless the server asks for a longer one.
    pub backoff_max: Duration,
    /// What an answer may hold.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            wants_download: true,
            takes_chunks: true,
            attempts_max: 8,
            elapsed_max: Duration::from_mins(10),
            answer_max: Duration::MAX,
            idle_max: Duration::from_secs(30),
            patience_max: Duration::from_mins(10),
            backoff_min: Duration::from_millis(500),
            backoff_max: Duration::from_secs(30),
            limits: Limits::ANSWER,
        }
    }
}

/// What the shell is to do next. All but `Read`, `WaitUntil`, `Done` and `Failed` are acknowledged by [`super::Session::done`] when they are
/// durable, before the next is asked for. A shell that can't carry one out drops the session: the next sync begins where it stopped.
///
/// Whatever is neither `Read` nor what an answer calls for (`ApplyReceipt`, `Restart`, `Rewind`, `CutSmaller`, `TakeForApplied`, `Stage`,
/// `StageComplete`) also means that the answer, if one is open, is not read on: close it.
#[derive(Clone, Debug, PartialEq)]
pub enum Instruction {
    /// Apply the staged download with its watermarks, in one transaction, which also empties the staging. If it can't be decoded,
    /// answer [`Reply::Unreadable`].
    ApplyStaged,
    /// Empty the staging.
    DropStaged,
    /// Freeze the pending changes as the next upload, in one transaction: encode them, cut the log. Answer [`Reply::Cut`] with its
    /// number (one more than the last acknowledged), or with `None` if nothing is pending.
    Cut,
    /// Ask for a ticket for the frozen upload, by its digest; the same one as before, where the server has that. Answer
    /// [`Reply::Ticket`], or as for `Request`.
    Ticket,
    /// Send the frozen upload's bytes from `offset` on, under the ticket. Answer [`Reply::Piece`] with what the server has then (without
    /// asking it, if there are none from there on), or as for `Request`.
    Piece {
        /// The ticket.
        ticket: [u8; 16],
        /// Where to go on.
        offset: u64,
        /// The most bytes to send.
        bytes_max: u64,
    },
    /// Send HELLO, the frozen upload's frames and UPLOAD_END if `has_upload`, and END. Acknowledge when the answer begins; if it
    /// doesn't, [`super::Session::io_error`] or [`super::Session::refused`].
    Request {
        /// Whether the frozen upload goes with it.
        has_upload: bool,
        /// What stands in the place of its frames, if they were sent in pieces.
        ticket: Option<Ticket>,
        /// Whether a download is asked for.
        wants_download: bool,
        /// Whether HELLO may say that chunks are taken.
        takes_chunks: bool,
        /// Whether HELLO gives the frozen upload up.
        gives_up: bool,
    },
    /// Ask for the rest of the staged download, by the ID in its DOWNLOAD frame and the offset that the staging has reached. Acknowledge
    /// as for `Request`.
    Resume,
    /// Read what comes of the answer: [`super::Session::bytes`], [`super::Session::closed`] or [`super::Session::io_error`]; if nothing has come by then,
    /// poll again.
    Read {
        /// When the silence gets too long, as time since the start.
        until: Duration,
    },
    /// Apply the receipt of the frozen upload in one transaction: set refused changes aside, forget the frozen frames, acknowledge
    /// the number.
    ApplyReceipt(Receipt),
    /// The watermarks say nothing to this incarnation: forget them and the incarnation. Rows and pending changes stay; everything
    /// is about to come whole.
    Restart,
    /// The database has this remote's uploads only up to `to`. In one transaction: thaw the frozen upload, acknowledge `to` and no
    /// more, forget watermarks and incarnation; and set aside what is still known of the uploads after it. Their numbers are never used
    /// again.
    Rewind {
        /// The last upload that the database has.
        to: u64,
    },
    /// Return the frozen upload's changes to the log, with their first old images. The next upload is cut as large as any. No upload gets the
    /// number again.
    Thaw {
        /// Why it is refused whole, if it is: to be kept for people.
        refused: Option<String>,
        /// Whether the database has used its number up: it is acknowledged in the same transaction.
        is_given_up: bool,
    },
    /// The upload is not taken as it is, for this reason. In one transaction: thaw it, and cut at most half as much from now on; if
    /// it has one change alone, set that aside and answer [`Reply::SetAside`]. No upload gets the number again.
    CutSmaller {
        /// The reason.
        error: ServerError,
        /// As in `Thaw`.
        is_given_up: bool,
    },
    /// The frozen upload was applied, and its receipt can't be had. In one transaction: acknowledge its number, and set its changes aside until
    /// a download shows what became of them.
    TakeForApplied,
    /// Make a new remote ID and secret; nothing is acknowledged under it. Watermarks stay, they belong to the rows.
    NewRemoteId,
    /// Append a frame to the staging. The first is WELCOME, which has what is stored with the watermarks. It need not last a crash
    /// before `StageComplete` does.
    Stage(Frame),
    /// Note that the frames of the staged download are whole. Answer [`Reply::Lacking`] where it names chunks that are not staged.
    StageComplete,
    /// Get the next chunk that the staged download lacks, see that it is the one that was named, and stage it. Answer [`Reply::Chunk`], or
    /// [`Reply::Damaged`] if it is not; or as for `Request`.
    Chunk,
    /// Wait until this time since the start, then poll again.
    WaitUntil(Duration),
    /// The sync came to its end.
    Done(Summary),
    /// The sync did not.
    Failed(Failure),
}

/// What came of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done, and durable.
    Done,
    /// To [`Instruction::Cut`]: the number of the upload that is now frozen, if anything was pending.
    Cut(Option<u64>),
    /// The same, where the upload is too large to go within a request.
    CutLarge(u64),
    /// The same, where more is pending than goes in one upload, and nobody has said yet that the server takes parts.
    CutPart {
        /// The upload's number.
        number: u64,
        /// Whether it is too large to go within a request.
        is_large: bool,
    },
    /// To [`Instruction::Ticket`].
    Ticket {
        /// The ticket.
        ticket: [u8; 16],
        /// How many bytes the server has under it.
        offset: u64,
        /// The most bytes it takes at a time.
        piece_bytes: u64,
    },
    /// To [`Instruction::Piece`].
    Piece {
        /// How many bytes the server has.
        offset: u64,
        /// Whether those are all.
        is_all: bool,
    },
    /// To [`Instruction::StageComplete`]: chunks are still to be got.
    Lacking,
    /// To [`Instruction::Chunk`]: it is staged.
    Chunk {
        /// How many bytes came.
        bytes: u64,
        /// Whether it was the last that was lacking.
        is_all: bool,
    },
    /// To [`Instruction::Chunk`]: what came is not that chunk.
    Damaged,
    /// To [`Instruction::CutSmaller`]: the upload's only change is set aside.
    SetAside,
    /// To [`Instruction::ApplyStaged`]: the frames can't be decoded; nothing was changed.
    Unreadable,
}
