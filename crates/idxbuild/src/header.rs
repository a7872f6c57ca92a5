//! The first hundred bytes of a database (<https://sqlite.org/fileformat2.html#the_database_header>), as far as a rebuild needs them.

use crate::error::{Error, corrupt};

/// The page that SQLite locks by, in every file above a gibibyte: it holds nothing.
const PENDING_BYTE: u64 = 0x4000_0000;

/// The sizes of a database.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Bytes of a page.
    pub(crate) page_size: usize,
    /// Bytes of a page in use, without those reserved at its end.
    pub(crate) usable: usize,
    /// How many pages there are.
    pub(crate) pages: u32,
}

impl Layout {
    /// The page that is never used.
    pub(crate) fn lock_page(&self) -> u32 {
        (PENDING_BYTE / self.page_size as u64) as u32 + 1
    }

    /// The largest number of bytes of an index's record that lie within its cell, and the least.
    pub(crate) fn index_limits(&self) -> (usize, usize) {
        ((self.usable - 12) * 64 / 255 - 23, self.least())
    }

    /// The same of a table's.
    pub(crate) fn table_limits(&self) -> (usize, usize) {
        (self.usable - 35, self.least())
    }

    fn least(&self) -> usize {
        (self.usable - 12) * 32 / 255 - 23
    }

    /// How many bytes of a record of this length lie within its cell.
    pub(crate) fn local(&self, length: usize, (most, least): (usize, usize)) -> usize {
        if length <= most {
            return length;
        }
        let rest = least + (length - least) % (self.usable - 4);
        if rest <= most { rest } else { least }
    }
}

/// How texts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// The usual one.
    Utf8,
    /// UTF-16, the low byte first.
    Utf16Le,
    /// UTF-16, the high byte first.
    Utf16Be,
}

impl Encoding {
    /// What `PRAGMA encoding` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Encoding::Utf8 => "UTF-8",
            Encoding::Utf16Le => "UTF-16le",
            Encoding::Utf16Be => "UTF-16be",
        }
    }
}

/// What the header says.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// The sizes.
    pub(crate) layout: Layout,
    /// How texts are stored.
    pub(crate) encoding: Encoding,
    /// Which features the schema may use: 4 since 2006.
    pub(crate) schema_format: u32,
    /// The first trunk page of the free list, or 0.
    pub(crate) free_first: u32,
    /// How many pages are free.
    pub(crate) free_pages: u32,
    /// Whether pages may move (auto-vacuum).
    pub(crate) moves_pages: bool,
}

impl Header {
    /// Reads the header of page 1. `pages` is the number of pages as the pager knows it.
    pub(crate) fn read(page: &[u8], pages: u32) -> Result<Header, Error> {
        let word = |at: usize| page.get(at..at + 4).map_or(0, be32);
        if page.len() < 480 || !page.starts_with(b"SQLite format 3\0") {
            return Err(corrupt(1, "no header of a database"));
        }
        let reserved = usize::from(page[20]);
        if reserved > page.len() - 480 {
            return Err(corrupt(1, format!("{reserved} bytes reserved of each page")));
        }
        let encoding = match word(56) {
            0 | 1 => Encoding::Utf8,
            2 => Encoding::Utf16Le,
            3 => Encoding::Utf16Be,
            other => return Err(corrupt(1, format!("text encoding {other}"))),
        };
        Ok(Header {
            layout: Layout { page_size: page.len(), usable: page.len() - reserved, pages },
            encoding,
            schema_format: word(44),
            free_first: word(32),
            free_pages: word(36),
            moves_pages: word(52) != 0,
        })
    }

    /// Writes the size of the database and its free list into page 1.
    pub(crate) fn write_space(page: &mut [u8], pages: u32, free_first: u32, free_pages: u32) {
        page[28..32].copy_from_slice(&pages.to_be_bytes());
        page[32..36].copy_from_slice(&free_first.to_be_bytes());
        page[36..40].copy_from_slice(&free_pages.to_be_bytes());
    }
}

/// Four bytes, the high one first; 0 of fewer.
#[inline]
pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |four| u32::from_be_bytes(*four))
}

/// Two bytes, the high one first; 0 of fewer.
#[inline]
pub(crate) fn be16(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |two| u16::from_be_bytes(*two))
}
