//! What is in frames: messages, rows, changes.

use headwater_protocol::cursor;
use headwater_protocol::message::{
    Change, Download, Hello, KeyRanges, PartitionMark, ReadyFile, Receipt, RowsReader, ServerError, Snapshot,
    TableHeader, Ticket, UploadEnd, Watermarks, Welcome,
};
use headwater_protocol::row::{put_row, read_row};
use headwater_protocol::wire::Reader;
use headwater_protocol::{DecodeError, Frame, Kind, Type};

/// The most bytes in a value and in a payload.
pub(crate) const LIMIT: usize = 1 << 20;

/// A message of the kind that the first byte names: read and written again, it is the same.
pub fn message(data: &[u8]) {
    let Some((kind, payload)) = data.split_first() else { return };
    let Some(Ok(frame)) = Kind::from_wire(*kind).map(|kind| again(kind, payload)) else { return };
    assert_eq!(*frame.payload(LIMIT).expect("our own payload"), *payload, "a message has one encoding");
}

fn again(kind: Kind, payload: &[u8]) -> Result<Frame, DecodeError> {
    Ok(match kind {
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
        // What these hold is read by the table before them; the others hold nothing.
        Kind::Changes | Kind::Rows | Kind::Heartbeat | Kind::End => Frame::new(kind, payload.to_vec()),
    })
}

/// Columns, and what follows them: the first byte is their number, each of the next a type.
fn with_types(data: &[u8]) -> Option<(Vec<Type>, &[u8])> {
    let (count, rest) = data.split_first()?;
    let (types, rest) = rest.split_at_checked(usize::from(count % 16))?;
    Some((types.iter().map(|number| Type::ALL[usize::from(*number) % Type::ALL.len()]).collect(), rest))
}

/// A row: one encoding for each.
pub fn row(data: &[u8]) {
    let Some((types, bytes)) = with_types(data) else { return };
    let mut reader = Reader::new(bytes);
    let Ok(row) = read_row(&mut reader, &types, LIMIT, None) else { return };
    let read = bytes.len() - reader.rest().len();
    let mut written = Vec::new();
    put_row(&mut written, &types, &row);
    assert_eq!(written, bytes[..read], "a row has one encoding");
}

/// Changes, one after the other, as CHANGES has them: what is read is written so that it is read alike.
pub fn change(data: &[u8]) {
    let Some((types, bytes)) = with_types(data) else { return };
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let Ok(change) = Change::read(&mut reader, &types, LIMIT) else { return };
        let mut written = Vec::new();
        change.write(&mut written, &types);
        let mut second = Reader::new(&written);
        let again = Change::read(&mut second, &types, LIMIT).expect("our own change");
        assert!(second.is_empty(), "a change is read to its end");
        let mut twice = Vec::new();
        again.write(&mut twice, &types);
        assert_eq!(twice, written, "a change that was read is written alike");
    }
}

/// Rows, as ROWS has them.
pub fn rows(data: &[u8]) {
    let Some((types, bytes)) = with_types(data) else { return };
    let mut rows = RowsReader::new(bytes);
    while let Ok(Some(_)) = rows.next_op() {
        if read_row(rows.row(), &types, LIMIT, None).is_err() {
            return;
        }
    }
}
