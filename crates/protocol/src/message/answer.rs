//! WELCOME, PARTITION, WATERMARKS and ERROR.

use super::{PARTITION_KEY_BYTES_MAX, TEXT_BYTES_MAX, WATERMARK_BYTES_MAX, WATERMARK_ENTRIES_MAX, whole};
use crate::frame::{Frame, Kind};
use crate::wire::{DecodeError, Reader, Write};

/// What the server says first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The database's incarnation.
    pub incarnation: [u8; 16],
    /// The newest note of it.
    pub note: [u8; 16],
    /// Whether the remote's watermarks say nothing to this incarnation: everything follows whole.
    pub restart: bool,
    /// Whether the model takes what is pending whole or not at all: it is never sent in parts.
    pub whole: bool,
    /// Number of the last upload of this remote that the database has, or that was given up.
    pub upload_sequence: u64,
    /// What the database knows of the upload that HELLO says is frozen. (Only where HELLO says so is it other than `Unknown`.)
    pub frozen: FrozenFate,
}

/// What a database knows of an upload that is frozen at a remote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FrozenFate {
    /// Nothing, or the server does not say: the number alone tells.
    #[default]
    Unknown = 0,
    /// It was applied.
    Applied = 1,
    /// It was given up before it was applied, and never will be.
    GivenUp = 2,
    /// A copy of the file has sent another upload under its number: it was not applied, and never will be under this remote's ID.
    Another = 3,
}

impl Welcome {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::with_capacity(41);
        out.extend_from_slice(&self.incarnation);
        out.extend_from_slice(&self.note);
        out.push(u8::from(self.restart) | u8::from(self.whole) << 1 | (self.frozen as u8) << 2);
        out.extend_from_slice(&self.upload_sequence.to_le_bytes());
        Frame::new(Kind::Welcome, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Welcome, DecodeError> {
        whole(payload, "welcome", |reader| {
            let incarnation = reader.array("incarnation")?;
            let note = reader.array("note")?;
            let flags = reader.u8("welcome flags")?;
            let frozen = match flags >> 2 {
                0 => FrozenFate::Unknown,
                1 => FrozenFate::Applied,
                2 => FrozenFate::GivenUp,
                3 => FrozenFate::Another,
                _ => return Err(DecodeError::Undefined { field: "welcome flags", actual: u64::from(flags) }),
            };
            let upload_sequence = reader.u64("upload sequence")?;
            Ok(Welcome { incarnation, note, restart: flags & 1 > 0, whole: flags & 2 > 0, upload_sequence, frozen })
        })
    }
}

/// What happens to a partition at the remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PartitionAction {
    /// Its rows follow, all of them: what the remote holds of it otherwise is gone.
    Whole = 1,
    /// The remote is no longer a member: its rows go.
    Left = 2,
}

/// A partition that comes whole or is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMark {
    /// The table's number.
    pub table: u32,
    /// What happens.
    pub action: PartitionAction,
    /// The partition's values, encoded as a row of the partition's column types; empty for a table that is not partitioned.
    pub partition: Vec<u8>,
}

impl PartitionMark {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(u64::from(self.table));
        out.push(self.action as u8);
        out.put_bytes(&self.partition);
        Frame::new(Kind::Partition, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<PartitionMark, DecodeError> {
        whole(payload, "partition", |reader| {
            let table = reader.count(u32::MAX as usize, "table")? as u32;
            let action = match reader.u8("partition action")? {
                1 => PartitionAction::Whole,
                2 => PartitionAction::Left,
                other => return Err(DecodeError::Undefined { field: "partition action", actual: u64::from(other) }),
            };
            let partition = reader.bytes(PARTITION_KEY_BYTES_MAX, "partition")?.to_vec();
            Ok(PartitionMark { table, action, partition })
        })
    }
}

/// What a remote has seen: a watermark for each table and partition that it holds. Most share one, so each stands once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// The different watermarks, as the consolidated database gave them out; opaque to a remote.
    pub marks: Vec<Vec<u8>>,
    /// Which applies where.
    pub entries: Vec<WatermarkEntry>,
}

/// The watermark of one partition of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatermarkEntry {
    /// The table's number.
    pub table: u32,
    /// The partition's key, as in [`PartitionMark`].
    pub partition: Vec<u8>,
    /// Place in [`Watermarks::marks`].
    pub mark: u32,
}

impl Watermarks {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        self.write(&mut out);
        Frame::packed(Kind::Watermarks, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Watermarks, DecodeError> {
        whole(payload, "watermarks", |reader| Watermarks::read(reader, WATERMARK_ENTRIES_MAX, WATERMARK_BYTES_MAX))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_varint(self.marks.len() as u64);
        for mark in &self.marks {
            out.put_bytes(mark);
        }
        out.put_varint(self.entries.len() as u64);
        for entry in &self.entries {
            out.put_varint(u64::from(entry.table));
            out.put_bytes(&entry.partition);
            out.put_varint(u64::from(entry.mark));
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, entries_max: usize, bytes_max: usize) -> Result<Self, DecodeError> {
        let mut watermarks = Watermarks::default();
        for _ in 0..reader.count(entries_max, "watermark count")? {
            watermarks.marks.push(reader.bytes(bytes_max, "watermark")?.to_vec());
        }
        for _ in 0..reader.count(entries_max, "watermark entries")? {
            let table = reader.count(u32::MAX as usize, "table")? as u32;
            let partition = reader.bytes(PARTITION_KEY_BYTES_MAX, "partition")?.to_vec();
            let mark = reader.varint("watermark place")?;
            if mark >= watermarks.marks.len() as u64 {
                return Err(DecodeError::Undefined { field: "watermark place", actual: mark });
            }
            watermarks.entries.push(WatermarkEntry { table, partition, mark: mark as u32 });
        }
        Ok(watermarks)
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The remote's, its user's or its program's.
    Remote,
    /// The server's, its database's or its administrator's.
    Server,
    /// Nobody's: the network, or too much at once.
    Circumstance,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $fault:ident, $retry:literal;)*) => {
        /// Why a sync did not go on. The numbers are the wire's and never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[$doc])* $name = $number,)* }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The stable name, for logs, `--json` and docs.
            pub fn name(self) -> &'static str {
                match self { $(ErrorCode::$name => $text,)* }
            }

            /// Whose fault it is.
            pub fn fault(self) -> Fault {
                match self { $(ErrorCode::$name => Fault::$fault,)* }
            }

            /// Whether the same request may succeed later.
            pub fn is_retryable(self) -> bool {
                match self { $(ErrorCode::$name => $retry,)* }
            }
        }
    };
}

error_codes! {
    /// Bytes that are not what docs/protocol.md says.
    Malformed = 1, "malformed", Remote, false;
    /// A protocol version that this server doesn't speak.
    UnsupportedVersion = 2, "unsupported_version", Remote, false;
    /// Something is above a limit; the message names both.
    TooLarge = 3, "too_large", Remote, false;
    /// No or wrong credentials.
    Unauthenticated = 4, "unauthenticated", Remote, false;
    /// The user may not sync.
    Forbidden = 5, "forbidden", Remote, false;
    /// The server has no such model or version.
    ModelUnknown = 6, "model_unknown", Remote, false;
    /// The remote's schema was made from another model of that name and version.
    ModelChanged = 7, "model_changed", Remote, false;
    /// A sync of this remote is running.
    RemoteBusy = 8, "remote_busy", Circumstance, true;
    /// The secret is not that of the remote ID.
    WrongSecret = 9, "wrong_secret", Remote, false;
    /// The upload's number is taken by another upload: this file or the database is a copy or an old backup. The file needs a new remote ID.
    Copy = 10, "copy", Remote, false;
    /// The database lacks uploads that the remote had acknowledged: a new incarnation has begun.
    Behind = 11, "behind", Server, true;
    /// Too many syncs at once; come back later.
    Overloaded = 12, "overloaded", Circumstance, true;
    /// The consolidated database can't be reached, or failed in a way that may pass.
    DatabaseUnavailable = 13, "database_unavailable", Server, true;
    /// A defect; the server's log has more.
    Internal = 14, "internal", Server, true;
    /// The server is going down.
    ShuttingDown = 15, "shutting_down", Circumstance, true;
    /// A limit of time passed.
    Timeout = 16, "timeout", Circumstance, true;
    /// The download to resume is not kept here.
    Gone = 17, "gone", Circumstance, true;
    /// The upload's ticket is unknown here, or lacks bytes: ask for one, and send what it lacks.
    TicketUnknown = 18, "ticket_unknown", Circumstance, true;
    /// The upload was refused whole, and used no number (reserved).
    UploadRefused = 19, "upload_refused", Remote, false;
    /// The request came cut or damaged on its way.
    Damaged = 20, "damaged", Circumstance, true;
}

impl ErrorCode {
    /// The code with this number.
    pub fn from_wire(number: u16) -> Option<ErrorCode> {
        ErrorCode::ALL.iter().copied().find(|code| *code as u16 == number)
    }
}

/// Why there is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The code.
    pub code: ErrorCode,
    /// When to come back, in milliseconds; 0: the remote's own choice.
    pub retry_after_ms: u32,
    /// For people. Says nothing of rows that the user may not see.
    pub message: String,
}

impl ServerError {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.extend_from_slice(&(self.code as u16).to_le_bytes());
        out.extend_from_slice(&self.retry_after_ms.to_le_bytes());
        let cut = self.message.floor_char_boundary(TEXT_BYTES_MAX.min(self.message.len()));
        out.put_bytes(&self.message.as_bytes()[..cut]);
        Frame::new(Kind::Error, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<ServerError, DecodeError> {
        whole(payload, "error", |reader| {
            let number = reader.u16("error code")?;
            let code = ErrorCode::from_wire(number)
                .ok_or(DecodeError::Undefined { field: "error code", actual: u64::from(number) })?;
            let retry_after_ms = reader.u32("retry after")?;
            let message = reader.text(TEXT_BYTES_MAX, "error message")?.to_owned();
            Ok(ServerError { code, retry_after_ms, message })
        })
    }
}
