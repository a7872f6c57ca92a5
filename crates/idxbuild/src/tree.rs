//! Index pages, written packed and in order: each page once, when it is full.
//!
//! In an index's B-tree a key stands once: on a leaf, or between two pages on a page above them. So when a leaf is full, the next key goes
//! up, with the leaf as the page before it. No page may stay empty: a full page is kept until the one after it has its first key, and
//! lends it one where the keys end too soon.

use std::mem::take;

use crate::error::Halt;
use crate::header::Layout;
use crate::page::Kind;
use crate::varint;

/// Gives page numbers and takes finished pages.
pub(crate) trait Sink {
    /// A page to write to: none that any other tree has.
    fn allocate(&mut self) -> Result<u32, Halt>;
    /// Takes a finished page.
    fn write(&mut self, page: u32, bytes: &[u8]) -> Result<(), Halt>;
}

/// A key as it lies in a cell: its length, what is local, and where it goes on.
type Cell = Vec<u8>;

/// A tree that grows at its right side.
pub(crate) struct TreeWriter<'s, S> {
    layout: Layout,
    levels: Vec<Level>,
    sink: &'s mut S,
    cell: Cell,
    page: Vec<u8>,
}

/// One level: the page that is being filled, and the one before it while it may still be needed.
#[derive(Default)]
struct Level {
    current: Open,
    before: Option<(Open, Cell)>,
}

/// A page that is being filled. `right` is the page after its last key, on a page that has pages below.
#[derive(Default)]
struct Open {
    cells: Vec<u8>,
    ends: Vec<usize>,
    right: u32,
}

impl Open {
    fn cell(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.cells[start..self.ends[index]]
    }

    fn push(&mut self, child: Option<u32>, cell: &[u8]) {
        if let Some(child) = child {
            self.cells.extend_from_slice(&child.to_be_bytes());
        }
        self.cells.extend_from_slice(cell);
        // SQLite counts no cell as less than four bytes, so that it can become a free block.
        let length = self.cells.len() - self.ends.last().copied().unwrap_or(0);
        self.cells.resize(self.cells.len() + 4_usize.saturating_sub(length), 0);
        self.ends.push(self.cells.len());
    }

    fn pop(&mut self) -> Vec<u8> {
        self.ends.pop();
        self.cells.split_off(self.ends.last().copied().unwrap_or(0))
    }

    fn has_room(&self, cell: usize, layout: &Layout, head: usize) -> bool {
        head + self.cells.len() + 2 * (self.ends.len() + 1) + cell.max(4) <= layout.usable
    }
}

impl<'s, S: Sink> TreeWriter<'s, S> {
    /// An empty tree.
    pub(crate) fn new(layout: &Layout, sink: &'s mut S) -> TreeWriter<'s, S> {
        let page = vec![0; layout.page_size];
        TreeWriter { layout: layout.clone(), levels: vec![Level::default()], sink, cell: Vec::new(), page }
    }

    /// Appends a key: the record of the index. It is after all before it.
    #[inline]
    pub(crate) fn push(&mut self, record: &[u8]) -> Result<(), Halt> {
        let mut cell = take(&mut self.cell);
        cell.clear();
        varint::write(&mut cell, record.len() as u64);
        let local = self.layout.local(record.len(), self.layout.index_limits());
        cell.extend_from_slice(&record[..local]);
        if local < record.len() {
            let first = self.overflow(&record[local..])?;
            cell.extend_from_slice(&first.to_be_bytes());
        }
        let level = &mut self.levels[0];
        if level.current.has_room(cell.len(), &self.layout, 8) {
            level.current.push(None, &cell);
            let done = if level.before.is_some() { self.settle(0) } else { Ok(()) };
            self.cell = cell;
            return done;
        }
        let full = take(&mut level.current);
        level.before = Some((full, cell));
        Ok(())
    }

    /// Writes the page before the current one of a level, and puts the key between them on the level above.
    fn settle(&mut self, level: usize) -> Result<(), Halt> {
        let Some((full, between)) = self.levels[level].before.take() else { return Ok(()) };
        let page = self.sink.allocate()?;
        self.write(level, page, &full)?;
        self.push_above(level + 1, page, between)
    }

    /// Appends a key to a level that has pages below, `child` before it.
    fn push_above(&mut self, level: usize, child: u32, cell: Cell) -> Result<(), Halt> {
        if self.levels.len() == level {
            self.levels.push(Level::default());
        }
        let above = &mut self.levels[level];
        if above.current.has_room(cell.len() + 4, &self.layout, 12) {
            above.current.push(Some(child), &cell);
            return if above.before.is_some() { self.settle(level) } else { Ok(()) };
        }
        let mut full = take(&mut above.current);
        full.right = child;
        above.before = Some((full, cell));
        Ok(())
    }

    /// Writes what is left, the topmost page to `root`.
    pub(crate) fn finish(mut self, root: u32) -> Result<(), Halt> {
        let mut level = 0;
        let mut below = 0;
        loop {
            self.levels[level].current.right = below;
            if self.levels[level].before.is_some() {
                // The keys ended right after a full page: it gives its last one up, and the one that was between comes down.
                self.lend(level);
                self.settle(level)?;
            }
            let last = take(&mut self.levels[level].current);
            let is_root = level + 1 == self.levels.len();
            let page = if is_root { root } else { self.sink.allocate()? };
            self.write(level, page, &last)?;
            if is_root {
                return Ok(());
            }
            below = page;
            level += 1;
        }
    }

    fn lend(&mut self, level: usize) {
        let Level { current, before } = &mut self.levels[level];
        let Some((full, between)) = before else { return };
        let last = full.pop();
        if level == 0 {
            current.push(None, between);
            *between = last;
        } else {
            let child = full.right;
            full.right = u32::from_be_bytes([last[0], last[1], last[2], last[3]]);
            current.push(Some(child), between);
            *between = last[4..].to_vec();
        }
    }

    /// Writes the bytes of a record beyond its cell; gives the first of their pages.
    #[cold]
    fn overflow(&mut self, rest: &[u8]) -> Result<u32, Halt> {
        let first = self.sink.allocate()?;
        let mut page = first;
        let mut pieces = rest.chunks(self.layout.usable - 4).peekable();
        while let Some(piece) = pieces.next() {
            let next = if pieces.peek().is_some() { self.sink.allocate()? } else { 0 };
            self.page.fill(0);
            self.page[..4].copy_from_slice(&next.to_be_bytes());
            self.page[4..4 + piece.len()].copy_from_slice(piece);
            self.sink.write(page, &self.page)?;
            page = next;
        }
        Ok(first)
    }

    fn write(&mut self, level: usize, number: u32, open: &Open) -> Result<(), Halt> {
        let is_leaf = level == 0;
        let page = &mut self.page;
        page.fill(0);
        page[0] = if is_leaf { Kind::IndexLeaf } else { Kind::IndexInterior } as u8;
        page[3..5].copy_from_slice(&(open.ends.len() as u16).to_be_bytes());
        if !is_leaf {
            page[8..12].copy_from_slice(&open.right.to_be_bytes());
        }
        let head = if is_leaf { 8 } else { 12 };
        let mut at = self.layout.usable;
        for index in 0..open.ends.len() {
            let cell = open.cell(index);
            at -= cell.len();
            page[at..at + cell.len()].copy_from_slice(cell);
            page[head + 2 * index..head + 2 * index + 2].copy_from_slice(&(at as u16).to_be_bytes());
        }
        // 65536 is written as 0.
        page[5..7].copy_from_slice(&(at as u16).to_be_bytes());
        self.sink.write(number, page)
    }
}
