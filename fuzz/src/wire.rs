//! What is in frames: messages, rows, changes.

use headwater_protocol::fuzzing::again;
use headwater_protocol::message::{Change, RowsReader};
use headwater_protocol::row::{put_row, read_row};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Kind, Type};

/// The most bytes in a value and in a payload.
pub(crate) const LIMIT: usize = 1 << 20;

/// A message of the kind that the first byte names: read and written again, it is the same.
pub fn message(data: &[u8]) {
    let Some((kind, payload)) = data.split_first() else { return };
    let Some(Ok(Some(frame))) = Kind::from_wire(*kind).map(|kind| again(kind, payload)) else { return };
    assert_eq!(*frame.payload(LIMIT).expect("our own payload"), *payload, "a message has one encoding");
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
