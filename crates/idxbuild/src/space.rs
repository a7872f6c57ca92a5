//! Which pages the new trees get: those of the old ones, then free ones, then new ones at the end of the file.

use crate::error::Error;
use crate::header::{Header, Layout};
use crate::pager::Pager;
use crate::walk::Free;

/// The largest page number that SQLite uses.
const PAGE_MAX: u32 = 4_294_967_294;

/// The pages that nobody has, and how long the file is.
#[derive(Debug)]
pub(crate) struct Space {
    /// The one to be given next is the last.
    free: Vec<u32>,
    trunks: Vec<u32>,
    layout: Layout,
}

impl Space {
    /// These pages are free.
    pub(crate) fn new(free: Free, layout: &Layout) -> Space {
        let Free { mut pages, trunks } = free;
        pages.sort_unstable_by(|a, b| b.cmp(a));
        Space { free: pages, trunks, layout: layout.clone() }
    }

    /// Pages of old trees are free now.
    pub(crate) fn give(&mut self, pages: &[u32]) {
        self.free.extend_from_slice(pages);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// A page, of the lowest number that is free.
    pub(crate) fn take(&mut self) -> Result<u32, Error> {
        if let Some(page) = self.free.pop() {
            return Ok(page);
        }
        let mut page = self.layout.pages + 1;
        if page == self.layout.lock_page() {
            page += 1;
        }
        if page > PAGE_MAX {
            return Err(Error::DiskFull { doing: "adding pages: the file has as many as there can be" });
        }
        self.layout.pages = page;
        Ok(page)
    }

    /// Writes what is free as the free list, and it and the size of the file into page 1.
    pub(crate) fn write(&self, pager: &Pager<'_>) -> Result<(), Error> {
        let layout = &self.layout;
        // What names others is needed again where the transaction is rolled back, and SQLite holds what is free for of no worth: it must be in the
        // journal before it is given to SQLite as a free page.
        for &trunk in &self.trunks {
            pager.touch(trunk, layout.page_size)?;
        }
        // SQLite leaves the last six entries of such a page unused, for readers older than 3.6.0.
        let most = layout.usable / 4 - 8;
        let mut pages: Vec<u32> = self.free.clone();
        pages.reverse();
        let mut first = 0_u32;
        // From the last trunk page to the first.
        for group in pages.chunks(most + 1).rev() {
            let mut page = vec![0; layout.page_size];
            page[..4].copy_from_slice(&first.to_be_bytes());
            page[4..8].copy_from_slice(&(group.len() as u32 - 1).to_be_bytes());
            for (place, leaf) in group[1..].iter().enumerate() {
                page[8 + 4 * place..12 + 4 * place].copy_from_slice(&leaf.to_be_bytes());
            }
            pager.write(&group[..1], &page, page.len())?;
            first = group[0];
        }
        let mut one = vec![0; layout.page_size];
        pager.read(1, &mut one, layout.page_size)?;
        Header::write_space(&mut one, layout.pages, first, self.free.len() as u32);
        pager.write(&[1], &one, layout.page_size)
    }
}
