//! What holds of every message, for property tests and the fuzzer: read and written again, it is the same.

use crate::cursor;
use crate::frame::{Frame, Kind};
use crate::message::{
    Download, Hello, KeyRanges, PartitionMark, ReadyFile, Receipt, ServerError, Snapshot, TableHeader, Ticket,
    UploadEnd, Watermarks, Welcome,
};
use crate::wire::DecodeError;

/// Reads a payload of this kind, and writes it again; `None` for kinds whose content is read by the table before them, or that have none.
pub fn again(kind: Kind, payload: &[u8]) -> Result<Option<Frame>, DecodeError> {
    Ok(Some(match kind {
        Kind::Hello => Hello::from_payload(payload)?.to_frame(),
        Kind::Table => TableHeader::from_payload(payload)?.to_frame(),
        Kind::UploadEnd => UploadEnd::from_payload(payload)?.to_frame(),
        Kind::Ticket => Ticket::from_payload(payload)?.to_frame(),
        Kind::Welcome => Welcome::from_payload(payload)?.to_frame(),
        Kind::Receipt => Receipt::from_payload(payload)?.to_frame(),
        Kind::Download => Download::from_payload(payload)?.to_frame(),
        Kind::Partition => PartitionMark::from_payload(payload)?.to_frame(),
        Kind::Watermarks => Watermarks::from_payload(payload)?.to_frame(),
        Kind::KeyRanges => KeyRanges::from_payload(payload)?.to_frame(),
        Kind::Error => ServerError::from_payload(payload)?.to_frame(),
        Kind::Snapshot => Snapshot::from_payload(payload)?.to_frame(),
        Kind::ReadyFile => ReadyFile::from_payload(payload)?.to_frame(),
        Kind::CursorWelcome => cursor::Welcome::from_payload(payload)?.to_frame(),
        Kind::CursorOpen => cursor::Open::from_payload(payload)?.to_frame(),
        Kind::CursorCredit => cursor::Credit::from_payload(payload)?.to_frame(),
        Kind::CursorCancel => cursor::Cancel::from_payload(payload)?.to_frame(),
        Kind::CursorColumns => cursor::Columns::from_payload(payload)?.to_frame(),
        Kind::CursorRows => {
            let (rows, start) = cursor::Rows::from_payload(payload)?;
            rows.to_frame(&payload[start..])
        }
        Kind::CursorEnd => cursor::End::from_payload(payload)?.to_frame(),
        Kind::CursorFailed => cursor::Failed::from_payload(payload)?.to_frame(),
        Kind::Changes | Kind::Rows | Kind::Heartbeat | Kind::End => return Ok(None),
    }))
}
