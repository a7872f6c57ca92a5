//! The rows of one message.

use std::sync::Arc;

use super::Column;
use crate::ROW_BYTES_MAX;
use crate::row::{Cell, RowReader};
use crate::value::{Type, ValueRef};
use crate::wire::{DecodeError, Reader};

/// The rows of one message, as they came; clones share nothing but their columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    columns: Arc<[Column]>,
    types: Arc<[Type]>,
    payload: Vec<u8>,
    start: usize,
    rows: u64,
}

/// Columns, and what rows of them are encoded by.
pub(super) type Shape = (Arc<[Column]>, Arc<[Type]>);

/// What rows of these columns are encoded by: a value of another type than that is tagged.
pub(super) fn types_of(columns: &[Column]) -> Arc<[Type]> {
    columns.iter().map(|column| column.kind.unwrap_or(Type::Text)).collect()
}

impl Batch {
    /// Rows from this place of a payload on.
    pub(super) fn new((columns, types): Shape, (payload, start): (Vec<u8>, usize), rows: u64) -> Batch {
        Batch { columns, types, payload, start, rows }
    }

    /// Their columns.
    pub fn columns(&self) -> &Arc<[Column]> {
        &self.columns
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of the rows: what they took of the credit.
    pub fn bytes(&self) -> usize {
        self.payload.len() - self.start
    }

    /// The rows, from the first on.
    pub fn rows(&self) -> BatchRows<'_> {
        BatchRows { types: &self.types, reader: Reader::new(&self.payload[self.start..]), left: self.rows }
    }
}

/// Reads rows, one after the other; their values borrow from the message.
#[derive(Clone, Debug)]
pub struct BatchRows<'b> {
    types: &'b [Type],
    reader: Reader<'b>,
    left: u64,
}

impl<'b> BatchRows<'b> {
    /// The next row, in the place of what `values` held; whether there is one. After an error there is nothing to be read on.
    pub fn next_row(&mut self, values: &mut Vec<ValueRef<'b>>) -> Result<bool, DecodeError> {
        values.clear();
        if self.left == 0 {
            return match self.reader.rest().len() {
                0 => Ok(false),
                count => Err(DecodeError::LeftOver { field: "the rows of a message", count }),
            };
        }
        self.left -= 1;
        let mut cells = RowReader::new(&mut self.reader, self.types, ROW_BYTES_MAX)?;
        while let Some(cell) = cells.next_cell()? {
            match cell {
                Cell::Value(value) => values.push(value),
                Cell::Same => return Err(DecodeError::Undefined { field: "row state", actual: 3 }),
            }
        }
        Ok(true)
    }

    /// Where the reading stands: bytes from the first row's beginning on, and rows.
    pub fn place(&self, batch: &Batch) -> (usize, u64) {
        (batch.bytes() - self.reader.rest().len(), batch.rows - self.left)
    }

    /// The rows of a message from a place on.
    pub fn at(batch: &'b Batch, (bytes, rows): (usize, u64)) -> BatchRows<'b> {
        let rest = batch.payload.get(batch.start + bytes..).unwrap_or_default();
        BatchRows { types: &batch.types, reader: Reader::new(rest), left: batch.rows.saturating_sub(rows) }
    }
}
