//! RECEIPT: what became of each change of an upload.

use super::{TEXT_BYTES_MAX, whole};
use crate::frame::{Frame, Kind};
use crate::wire::{DecodeError, Write};

/// The outcome of an upload. Changes are known by their ordinal (the first of the upload is 0); those not listed were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The upload's number.
    pub sequence: u64,
    /// How many changes the upload had.
    pub changes: u64,
    /// What was not simply applied, by ascending ordinal.
    pub outcomes: Vec<(u64, Outcome)>,
}

/// What became of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The old image was not the consolidated row; the row as it is now comes with the download.
    Conflict(ConflictEnd),
    /// The row itself was refused: it is to be set aside.
    Refused(Refusal),
}

/// How a conflict ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConflictEnd {
    /// The consolidated row stayed.
    Consolidated = 1,
    /// The remote's change was made.
    Remote = 2,
    /// Columns of both.
    Merged = 3,
}

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: RefusalCode,
    /// For people: names the rule (a constraint, a column), never a stored value.
    pub message: String,
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a row was refused. The numbers are the wire's and never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum RefusalCode { $($(#[$doc])* $name = $number,)* }

        impl RefusalCode {
            /// Every code.
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name,)*];

            /// The stable name, for logs, `--json` and docs.
            pub fn name(self) -> &'static str {
                match self { $(RefusalCode::$name => $text,)* }
            }

            /// The code with this number.
            pub fn from_wire(number: u16) -> Option<RefusalCode> {
                RefusalCode::ALL.iter().copied().find(|code| *code as u16 == number)
            }
        }
    };
}

refusal_codes! {
    /// A unique constraint.
    Unique = 1, "unique";
    /// A foreign key.
    ForeignKey = 2, "foreign_key";
    /// A column that may not be NULL.
    NotNull = 3, "not_null";
    /// A check constraint.
    Check = 4, "check";
    /// Another constraint.
    Constraint = 5, "constraint";
    /// A value that the column can't hold.
    Data = 6, "data";
    /// The database's own trigger raised an error.
    Trigger = 7, "trigger";
    /// The row lies, or would lie, outside the user's partitions.
    Partition = 8, "partition";
    /// The table's changes don't travel this way.
    Direction = 9, "direction";
    /// The user may not make this change.
    Policy = 10, "policy";
    /// The row is larger than the server takes.
    RowTooLarge = 11, "row_too_large";
    /// It refers to a change that is set aside; set by the remote.
    Dependent = 12, "dependent";
    /// A script refused it (reserved).
    Script = 13, "script";
    /// A key range or key that isn't the remote's (reserved).
    Key = 14, "key";
    /// The consolidated database has lost the upload that carried it. Found by a remote, never in a receipt.
    Lost = 15, "lost";
    /// It was made at the remote while change tracking was off. Found by a remote, never in a receipt.
    Untracked = 16, "untracked";
    /// Its upload was applied, but its receipt can't be had any more. Found by a remote, never in a receipt.
    Unanswered = 17, "unanswered";
    /// Its row went with the remote's table, which the application dropped or made anew. Found by a remote, never in a receipt.
    Gone = 18, "gone";
}

const CONFLICT: u8 = 1;
const REFUSED: u8 = 2;

impl Receipt {
    /// The payload; what the consolidated database keeps, so that a repeated upload gets the same receipt again.
    pub fn to_payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.changes.to_le_bytes());
        out.put_varint(self.outcomes.len() as u64);
        let mut next = 0;
        for (ordinal, outcome) in &self.outcomes {
            out.put_varint(ordinal - next);
            next = ordinal + 1;
            match outcome {
                Outcome::Conflict(end) => out.extend_from_slice(&[CONFLICT, *end as u8]),
                Outcome::Refused(refusal) => {
                    out.push(REFUSED);
                    out.extend_from_slice(&(refusal.code as u16).to_le_bytes());
                    let cut = refusal.message.floor_char_boundary(TEXT_BYTES_MAX.min(refusal.message.len()));
                    out.put_bytes(&refusal.message.as_bytes()[..cut]);
                }
            }
        }
        out
    }

    /// The frame.
    pub fn to_frame(&self) -> Frame {
        Frame::packed(Kind::Receipt, self.to_payload())
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Receipt, DecodeError> {
        whole(payload, "receipt", |reader| {
            let sequence = reader.u64("upload sequence")?;
            let changes = reader.u64("changes")?;
            // An outcome takes at least three bytes, so the count is bounded by the payload.
            let count = reader.count(payload.len() / 3, "outcomes")?;
            let mut outcomes = Vec::new();
            let mut next = 0u64;
            for _ in 0..count {
                let skipped = reader.varint("ordinal")?;
                let ordinal = next.checked_add(skipped).filter(|ordinal| *ordinal < changes);
                let ordinal = ordinal.ok_or(DecodeError::Undefined { field: "ordinal", actual: skipped })?;
                next = ordinal + 1;
                let outcome = match reader.u8("outcome")? {
                    CONFLICT => Outcome::Conflict(conflict_end(reader.u8("conflict end")?)?),
                    REFUSED => {
                        let number = reader.u16("refusal code")?;
                        let code = RefusalCode::from_wire(number)
                            .ok_or(DecodeError::Undefined { field: "refusal code", actual: u64::from(number) })?;
                        let message = reader.text(TEXT_BYTES_MAX, "refusal message")?.to_owned();
                        Outcome::Refused(Refusal { code, message })
                    }
                    other => return Err(DecodeError::Undefined { field: "outcome", actual: u64::from(other) }),
                };
                outcomes.push((ordinal, outcome));
            }
            Ok(Receipt { sequence, changes, outcomes })
        })
    }
}

fn conflict_end(number: u8) -> Result<ConflictEnd, DecodeError> {
    Ok(match number {
        1 => ConflictEnd::Consolidated,
        2 => ConflictEnd::Remote,
        3 => ConflictEnd::Merged,
        other => return Err(DecodeError::Undefined { field: "conflict end", actual: u64::from(other) }),
    })
}
