//! The rows of a table's file, those of the selection, as text.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use csv::{ByteRecord, Reader};
use flate2::read::GzDecoder;

use crate::Selection;
use crate::tables::Table;

/// How the files write NULL.
pub(crate) const NULL: &str = "NA";

/// Calls the function with each row of the table that is selected; returns how many there were.
pub(crate) fn for_each(
    table: &Table,
    selection: Selection,
    mut row: impl FnMut(&ByteRecord) -> Result<()>,
) -> Result<u64> {
    let Some(data) = table.data else { return Ok(0) };
    if let Some(month) = selection.month {
        ensure!((1..=12).contains(&month), "month {month} is none: give one from 1 to 12");
    }
    let mut reader = Reader::from_reader(GzDecoder::new(data));
    check_header(table, &mut reader)?;
    let month = selection.month.filter(|_| table.by_month).map(|month| month.to_string());
    let month_column = table.columns.iter().position(|(name, _)| *name == "month");
    let wanted = |record: &ByteRecord| match (&month, month_column) {
        (Some(month), Some(column)) => record.get(column) == Some(month.as_bytes()),
        _ => true,
    };
    let (mut record, mut count) = (ByteRecord::new(), 0);
    while reader.read_byte_record(&mut record).with_context(|| format!("reading the file of {}", table.name))? {
        if wanted(&record) {
            row(&record).with_context(|| format!("row {record:?} of {}", table.name))?;
            count += 1;
        }
    }
    Ok(count)
}

/// The file must have the columns of the table, in its order.
fn check_header(table: &Table, reader: &mut Reader<impl Read>) -> Result<()> {
    let header = reader.headers()?;
    let expected = table.columns.iter().map(|(name, _)| *name);
    ensure!(
        header.iter().eq(expected),
        "the file of {} has the columns {header:?}, expected {}",
        table.name,
        table.column_list()
    );
    Ok(())
}
