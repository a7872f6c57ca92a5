//! TABLE, CHANGES and ROWS.
//!
//! A CHANGES payload is changes up to its end, a ROWS payload rows up to its end; both belong to the last TABLE frame before them.

use super::{COLUMNS_MAX, NAME_BYTES_MAX, whole};
use crate::frame::{Frame, Kind};
use crate::row::{put_new_image, put_row, read_row};
use crate::value::{Row, Type, Value};
use crate::wire::{DecodeError, Reader, Write};

/// The table that the rows after it belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableHeader {
    /// The table's number: its place in the model.
    pub table: u32,
    /// Its name, so that a mistake is noticed.
    pub name: String,
    /// Name and type of each column.
    pub columns: Vec<(String, Type)>,
    /// Places of the key's columns.
    pub key: Vec<usize>,
}

impl TableHeader {
    /// The columns' types.
    pub fn types(&self) -> Vec<Type> {
        self.columns.iter().map(|(_, kind)| *kind).collect()
    }

    /// The types of the key's columns.
    pub fn key_types(&self) -> Vec<Type> {
        self.key.iter().map(|&place| self.columns[place].1).collect()
    }

    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(u64::from(self.table));
        out.put_bytes(self.name.as_bytes());
        out.put_varint(self.columns.len() as u64);
        for (name, kind) in &self.columns {
            out.put_bytes(name.as_bytes());
            out.push(*kind as u8);
        }
        out.put_varint(self.key.len() as u64);
        for place in &self.key {
            out.put_varint(*place as u64);
        }
        Frame::new(Kind::Table, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<TableHeader, DecodeError> {
        whole(payload, "table", |reader| {
            let table = reader.count(u32::MAX as usize, "table")? as u32;
            let name = reader.text(NAME_BYTES_MAX, "table name")?.to_owned();
            let mut columns = Vec::new();
            for _ in 0..reader.count(COLUMNS_MAX, "columns")? {
                let column = reader.text(NAME_BYTES_MAX, "column name")?.to_owned();
                let number = reader.u8("column type")?;
                let kind = Type::from_wire(number)
                    .ok_or(DecodeError::Undefined { field: "column type", actual: u64::from(number) })?;
                columns.push((column, kind));
            }
            let mut key = Vec::new();
            for _ in 0..reader.count(columns.len(), "key columns")? {
                let place = reader.varint("key column")?;
                if place >= columns.len() as u64 {
                    return Err(DecodeError::Undefined { field: "key column", actual: place });
                }
                key.push(place as usize);
            }
            Ok(TableHeader { table, name, columns, key })
        })
    }
}

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChangeOp {
    /// Inserts a row.
    Insert = 1,
    /// Updates a row; the key stays.
    Update = 2,
    /// Deletes a row.
    Delete = 3,
}

/// One net change of a remote.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The row as it was at the last sync; `None` for an insert.
    pub old: Option<Row>,
    /// The row as it is to be; `None` for a delete.
    pub new: Option<Row>,
}

impl Change {
    /// What it does.
    pub fn op(&self) -> ChangeOp {
        match (&self.old, &self.new) {
            (None, _) => ChangeOp::Insert,
            (Some(_), Some(_)) => ChangeOp::Update,
            (Some(_), None) => ChangeOp::Delete,
        }
    }

    /// The image that has the key: the new one, or the old one of a delete.
    pub fn image(&self) -> &[Value] {
        self.new.as_deref().or(self.old.as_deref()).unwrap_or_default()
    }

    /// Appends the change: op, old image (update, delete), new image (insert, update).
    pub fn write(&self, out: &mut Vec<u8>, types: &[Type]) {
        out.push(self.op() as u8);
        if let Some(old) = &self.old {
            put_row(out, types, old);
        }
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => put_new_image(out, types, old, new),
            (None, Some(new)) => put_row(out, types, new),
            (_, None) => {}
        }
    }

    /// Reads a change.
    pub fn read(reader: &mut Reader<'_>, types: &[Type], value_bytes_max: usize) -> Result<Change, DecodeError> {
        let op = match reader.u8("change")? {
            1 => ChangeOp::Insert,
            2 => ChangeOp::Update,
            3 => ChangeOp::Delete,
            other => return Err(DecodeError::Undefined { field: "change", actual: u64::from(other) }),
        };
        let old = match op {
            ChangeOp::Insert => None,
            ChangeOp::Update | ChangeOp::Delete => Some(read_row(reader, types, value_bytes_max, None)?),
        };
        let new = match op {
            ChangeOp::Delete => None,
            ChangeOp::Insert | ChangeOp::Update => Some(read_row(reader, types, value_bytes_max, old.as_deref())?),
        };
        Ok(Change { old, new })
    }
}

/// What a downloaded row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RowOp {
    /// Inserts the row, or makes the stored one like it. A whole row follows.
    Upsert = 1,
    /// Deletes the row. Its key follows, encoded as a row of the key's columns.
    Delete = 2,
    /// The row leaves the remote, and lives on in a partition that the remote does not hold. Its key follows likewise. For remotes that say
    /// that they know it ([`super::Hello::knows_leaving`]); for others it is [`RowOp::Delete`].
    Leave = 3,
}

/// Takes the rows out of a ROWS payload.
#[derive(Debug)]
pub struct RowsReader<'a> {
    reader: Reader<'a>,
}

impl<'a> RowsReader<'a> {
    /// Reads a ROWS payload.
    pub fn new(payload: &'a [u8]) -> Self {
        RowsReader { reader: Reader::new(payload) }
    }

    /// What the next row does; `None` at the end. The caller then reads the row with [`crate::row::RowReader`] from
    /// [`RowsReader::row`].
    pub fn next_op(&mut self) -> Result<Option<RowOp>, DecodeError> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        match self.reader.u8("row")? {
            1 => Ok(Some(RowOp::Upsert)),
            2 => Ok(Some(RowOp::Delete)),
            3 => Ok(Some(RowOp::Leave)),
            other => Err(DecodeError::Undefined { field: "row", actual: u64::from(other) }),
        }
    }

    /// Where the row stands.
    pub fn row(&mut self) -> &mut Reader<'a> {
        &mut self.reader
    }
}
