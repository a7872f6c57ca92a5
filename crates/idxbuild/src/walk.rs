//! Which pages a B-tree has, in the order of its keys; and that no page has two owners.

use crate::error::{Error, corrupt};
use crate::file::ReadPages;
use crate::header::{Header, be32};
use crate::page::{Kind, Page};

/// No tree is deeper: twenty levels of two hold more pages than there can be (SQLite's own limit too).
const DEPTH_MAX: usize = 20;

/// Who owns each page: a page that two trees name is damage, and writing it would make it worse.
pub(crate) struct Claims {
    taken: Vec<u64>,
    pages: u32,
    lock_page: u32,
}

impl Claims {
    /// Nothing is owned yet, save the first page.
    pub(crate) fn new(header: &Header) -> Claims {
        let pages = header.layout.pages;
        let mut taken = vec![0; pages as usize / 64 + 1];
        taken[0] = 0b11;
        Claims { taken, pages, lock_page: header.layout.lock_page() }
    }

    /// Takes a page for one owner.
    pub(crate) fn claim(&mut self, page: u32) -> Result<(), Error> {
        if page > self.pages || page == self.lock_page {
            return Err(corrupt(page, "there is no such page"));
        }
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        if self.taken[word] & bit != 0 {
            return Err(corrupt(page, "two things are said to be on this page"));
        }
        self.taken[word] |= bit;
        Ok(())
    }
}

/// The pages of a tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Those with pages below.
    pub(crate) interior: Vec<u32>,
    /// The leaves, in the order of their keys. They have not been read.
    pub(crate) leaves: Vec<u32>,
}

/// Walks a tree down to its leaves, and claims them all.
pub(crate) fn walk(pages: &dyn ReadPages, root: u32, is_index: bool, claims: &mut Claims) -> Result<Tree, Error> {
    let kind = if is_index { Kind::IndexInterior } else { Kind::TableInterior };
    let depth = depth(pages, root, is_index)?;
    let mut tree = Tree::default();
    // Pages still to be looked at with their level, the next one last.
    let mut open = vec![(root, depth)];
    let mut buffer = vec![0; pages.layout().page_size];
    while let Some((number, level)) = open.pop() {
        if (number, root) != (1, 1) || level != depth {
            claims.claim(number)?;
        }
        if level == 0 {
            tree.leaves.push(number);
            continue;
        }
        pages.read(number, &mut buffer)?;
        let page = Page::new(number, &buffer, pages.layout())?;
        page.expect(kind)?;
        tree.interior.push(number);
        for index in (0..=page.cells()).rev() {
            open.push((page.child(index)?, level - 1));
        }
    }
    Ok(tree)
}

/// How many levels are above the leaves, seen along the left side.
fn depth(pages: &dyn ReadPages, root: u32, is_index: bool) -> Result<usize, Error> {
    let mut buffer = vec![0; pages.layout().page_size];
    let mut number = root;
    for depth in 0..DEPTH_MAX {
        if number == 0 || number > pages.layout().pages || number == pages.layout().lock_page() {
            return Err(corrupt(number, "there is no such page"));
        }
        pages.read(number, &mut buffer)?;
        let page = Page::new(number, &buffer, pages.layout())?;
        if !page.kind().is_interior() {
            page.expect(if is_index { Kind::IndexLeaf } else { Kind::TableLeaf })?;
            return Ok(depth);
        }
        number = page.child(0)?;
    }
    Err(corrupt(root, format!("a tree of more than {DEPTH_MAX} levels")))
}

/// The pages of the free list.
#[derive(Debug, Default)]
pub(crate) struct Free {
    /// All.
    pub(crate) pages: Vec<u32>,
    /// Those among them that name others.
    pub(crate) trunks: Vec<u32>,
}

/// The free list, its pages claimed.
pub(crate) fn free_pages(pages: &dyn ReadPages, header: &Header, claims: &mut Claims) -> Result<Free, Error> {
    let (mut free, mut trunks) = (Vec::new(), Vec::new());
    let mut trunk = header.free_first;
    let mut buffer = vec![0; header.layout.page_size];
    while trunk != 0 {
        claims.claim(trunk)?;
        pages.read(trunk, &mut buffer)?;
        free.push(trunk);
        trunks.push(trunk);
        let leaves = be32(&buffer[4..]) as usize;
        if leaves > header.layout.usable / 4 - 2 {
            return Err(corrupt(trunk, format!("a page of the free list with {leaves} others")));
        }
        for leaf in 0..leaves {
            let page = be32(&buffer[8 + 4 * leaf..]);
            claims.claim(page)?;
            free.push(page);
        }
        trunk = be32(&buffer);
    }
    if free.len() != header.free_pages as usize {
        let said = header.free_pages;
        return Err(corrupt(1, format!("the free list has {} pages, its count says {said}", free.len())));
    }
    Ok(Free { pages: free, trunks })
}
