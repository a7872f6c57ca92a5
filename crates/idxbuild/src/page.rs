//! Pages of B-trees and their cells (<https://sqlite.org/fileformat2.html#b_tree_pages>). Nothing that a page says is believed before
//! it has been held against the page's end.

use crate::error::{Error, corrupt};
use crate::file::ReadPages;
use crate::header::{Layout, be16, be32};
use crate::varint;

/// What a page of a B-tree holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keys of an index, and pages below.
    IndexInterior = 0x02,
    /// Rowids, and pages below.
    TableInterior = 0x05,
    /// Keys of an index.
    IndexLeaf = 0x0A,
    /// Rows.
    TableLeaf = 0x0D,
}

impl Kind {
    /// Whether there are pages below.
    pub(crate) fn is_interior(self) -> bool {
        matches!(self, Kind::IndexInterior | Kind::TableInterior)
    }
}

/// A page of a B-tree.
pub(crate) struct Page<'a> {
    number: u32,
    bytes: &'a [u8],
    kind: Kind,
    cells: usize,
    pointers: usize,
}

/// A record as its cell has it: whole, or its beginning and the page where it goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The page it stands on.
    pub(crate) page: u32,
    /// How long it is altogether.
    pub(crate) length: usize,
    /// What lies within the cell.
    pub(crate) local: &'a [u8],
    /// Where it goes on, or 0.
    pub(crate) overflow: u32,
}

impl<'a> Page<'a> {
    /// The page of this number, of which these are the bytes.
    pub(crate) fn new(number: u32, bytes: &'a [u8], layout: &Layout) -> Result<Page<'a>, Error> {
        let bytes = &bytes[..layout.usable.min(bytes.len())];
        let head = if number == 1 { 100 } else { 0 };
        let kind = match bytes.get(head) {
            Some(0x02) => Kind::IndexInterior,
            Some(0x05) => Kind::TableInterior,
            Some(0x0A) => Kind::IndexLeaf,
            Some(0x0D) => Kind::TableLeaf,
            other => return Err(corrupt(number, format!("no page of a B-tree (its kind is {other:?})"))),
        };
        let cells = usize::from(be16(&bytes[head + 3..]));
        let pointers = head + if kind.is_interior() { 12 } else { 8 };
        if pointers + 2 * cells > bytes.len() {
            return Err(corrupt(number, format!("{cells} cells on one page")));
        }
        Ok(Page { number, bytes, kind, cells, pointers })
    }

    /// What it holds.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The same, or an error where it is something else.
    pub(crate) fn expect(&self, kind: Kind) -> Result<(), Error> {
        if self.kind == kind {
            return Ok(());
        }
        Err(corrupt(self.number, format!("it is of kind {:?}, where the tree has {kind:?}", self.kind)))
    }

    /// How many cells it has.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    #[inline]
    fn cell(&self, index: usize) -> Result<&'a [u8], Error> {
        let at = usize::from(be16(&self.bytes[self.pointers + 2 * index..]));
        if at < self.pointers + 2 * self.cells {
            return Err(corrupt(self.number, format!("cell {index} begins at byte {at}")));
        }
        self.bytes.get(at..).ok_or_else(|| corrupt(self.number, format!("cell {index} begins at byte {at}")))
    }

    /// The page below a cell of an interior page; below the last one for the number of cells.
    pub(crate) fn child(&self, index: usize) -> Result<u32, Error> {
        if index == self.cells {
            return Ok(be32(&self.bytes[self.pointers - 4..]));
        }
        let cell = self.cell(index)?;
        if cell.len() < 4 {
            return Err(self.cut(index));
        }
        Ok(be32(cell))
    }

    /// The key of a cell of an index.
    #[inline]
    pub(crate) fn key(&self, index: usize, layout: &Layout) -> Result<Record<'a>, Error> {
        let cell = self.cell(index)?;
        let cell = cell.get(if self.kind.is_interior() { 4 } else { 0 }..).ok_or_else(|| self.cut(index))?;
        let (length, head) = varint::read(cell).ok_or_else(|| self.cut(index))?;
        self.record(index, length, &cell[head..], layout, layout.index_limits())
    }

    /// The rowid and the row of a cell of a table's leaf.
    #[inline]
    pub(crate) fn row(&self, index: usize, layout: &Layout) -> Result<(i64, Record<'a>), Error> {
        let cell = self.cell(index)?;
        let (length, head) = varint::read(cell).ok_or_else(|| self.cut(index))?;
        let cell = &cell[head..];
        let (rowid, head) = varint::read(cell).ok_or_else(|| self.cut(index))?;
        Ok((rowid as i64, self.record(index, length, &cell[head..], layout, layout.table_limits())?))
    }

    #[inline]
    fn record(
        &self,
        index: usize,
        length: u64,
        rest: &'a [u8],
        layout: &Layout,
        limits: (usize, usize),
    ) -> Result<Record<'a>, Error> {
        if length > i32::MAX as u64 || length / layout.usable as u64 > u64::from(layout.pages) {
            return Err(corrupt(self.number, format!("cell {index} has a record of {length} bytes")));
        }
        let length = length as usize;
        let within = layout.local(length, limits);
        let local = rest.get(..within).ok_or_else(|| self.cut(index))?;
        let mut overflow = 0;
        if within < length {
            overflow = be32(rest.get(within..within + 4).ok_or_else(|| self.cut(index))?);
        }
        Ok(Record { page: self.number, length, local, overflow })
    }

    fn cut(&self, index: usize) -> Error {
        corrupt(self.number, format!("cell {index} runs beyond the end of the page"))
    }
}

impl<'a> Record<'a> {
    /// Its first bytes, at least so many (all, where it has fewer): from the cell, or read into `spare` from the pages that follow it.
    #[inline]
    pub(crate) fn beginning<'b>(
        &self,
        bytes: usize,
        pages: &dyn ReadPages,
        spare: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Error>
    where
        'a: 'b,
    {
        if self.overflow == 0 || bytes <= self.local.len() {
            return Ok(self.local);
        }
        spare.clear();
        spare.extend_from_slice(self.local);
        self.each_overflow(pages, |_, content| {
            spare.extend_from_slice(content);
            spare.len() < bytes
        })?;
        Ok(spare)
    }

    /// Calls back with each page that the record goes on to and what it holds of it, as long as that gives true.
    pub(crate) fn each_overflow(
        &self,
        pages: &dyn ReadPages,
        mut next: impl FnMut(u32, &[u8]) -> bool,
    ) -> Result<(), Error> {
        let layout = pages.layout();
        let mut page = vec![0; layout.page_size];
        let mut number = self.overflow;
        let mut left = self.length - self.local.len();
        while left > 0 {
            if number < 2 || number > layout.pages || number == layout.lock_page() {
                return Err(corrupt(self.page, format!("a record goes on to page {number}")));
            }
            pages.read(number, &mut page)?;
            let here = left.min(layout.usable - 4);
            left -= here;
            if !next(number, &page[4..4 + here]) {
                break;
            }
            number = be32(&page);
        }
        Ok(())
    }
}
