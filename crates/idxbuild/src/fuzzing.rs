//! What reads pages and records, for the fuzzer: any bytes at all.

use crate::collation::Collation;
use crate::error::{Error, corrupt};
use crate::file::ReadPages;
use crate::header::{Encoding, Header, Layout};
use crate::key::{self, Affinity, KeyColumn, Source};
use crate::page::Page;
use crate::record::{Fields, Writer, head_length};
use crate::walk::{Claims, free_pages, walk};

const PAGE_SIZE: usize = 512;

struct Bytes<'b> {
    bytes: &'b [u8],
    layout: Layout,
}

impl ReadPages for Bytes<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read(&self, first: u32, into: &mut [u8]) -> Result<(), Error> {
        let start = (first as usize).wrapping_sub(1).saturating_mul(PAGE_SIZE);
        let bytes = self.bytes.get(start..start.saturating_add(into.len()));
        into.copy_from_slice(bytes.ok_or_else(|| corrupt(first, "the file ends before this page does"))?);
        Ok(())
    }
}

/// Reads bytes as a database of pages of 512 bytes, with a table whose root is page 2 and an index whose root is page 3. Gives how many
/// records it found, or the error.
pub fn pages(bytes: &[u8]) -> Result<u64, Error> {
    let count = (bytes.len() / PAGE_SIZE) as u32;
    let header = Header::read(bytes.get(..PAGE_SIZE).unwrap_or_default(), count)?;
    let pages = Bytes { bytes, layout: header.layout.clone() };
    let mut claims = Claims::new(&header);
    free_pages(&pages, &header, &mut claims)?;
    let mut found = 0;
    for (root, is_index) in [(2, false), (3, true)] {
        let tree = walk(&pages, root, is_index, &mut claims)?;
        let all = if is_index { [tree.interior, tree.leaves].concat() } else { tree.leaves };
        for number in all {
            found += records(&pages, number, is_index)?;
        }
    }
    Ok(found)
}

fn records(pages: &Bytes<'_>, number: u32, is_index: bool) -> Result<u64, Error> {
    let (mut buffer, mut spare) = (vec![0; PAGE_SIZE], Vec::new());
    pages.read(number, &mut buffer)?;
    let page = Page::new(number, &buffer, &pages.layout)?;
    for cell in 0..page.cells() {
        let record = if is_index { page.key(cell, &pages.layout)? } else { page.row(cell, &pages.layout)?.1 };
        let whole = record.beginning(record.length, pages, &mut spare)?;
        let mut fields = Fields::default();
        if head_length(whole).is_some_and(|length| length <= whole.len()) && fields.read(whole, usize::MAX).is_some() {
            let _ = (0..fields.count()).filter_map(|value| fields.value(value, whole)).count();
        }
    }
    Ok(page.cells() as u64)
}

/// Reads bytes as a record, makes a key of its values, and takes it apart again: the record must come back as SQLite would write it.
/// `descending` has a bit for each column. Gives whether it was a record.
pub fn key(record: &[u8], descending: u32, rowid: i64) -> bool {
    let mut fields = Fields::default();
    if fields.read(record, 32).is_none() || fields.end() > record.len() {
        return false;
    }
    let columns: Vec<KeyColumn> = (0..fields.count())
        .map(|place| KeyColumn {
            name: String::new(),
            source: Source::Stored { place, missing: None },
            affinity: Affinity::Blob,
            collation: Collation::Binary,
            descending: descending >> place & 1 == 1,
        })
        .collect();
    let (mut bytes, mut writer, mut expected) = (Vec::new(), Writer::default(), Vec::new());
    let mut comes_back = true;
    for (place, column) in columns.iter().enumerate() {
        let Some(value) = fields.value(place, record) else { return false };
        writer.value(value);
        comes_back &= key::write_value(&mut bytes, value, column, Encoding::Utf8) == Ok(true);
    }
    writer.integer(rowid);
    writer.finish(&mut expected);
    key::write_rowid(&mut bytes, rowid);
    if !comes_back {
        bytes.extend_from_slice(&expected);
    }
    let orders: Vec<bool> = columns.iter().map(|column| column.descending).collect();
    let mut back = Vec::new();
    key::read(&bytes, &orders, &mut writer, &mut back);
    assert_eq!(back, expected, "a key comes back as the record that it was made of");
    true
}
