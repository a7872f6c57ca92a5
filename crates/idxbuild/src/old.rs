//! The index scan: the pages of an old index, so that the new one can have them.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::file::ReadPages;
use crate::page::{Kind, Page};
use crate::threads::on_each;
use crate::usage::{Phase, Recorder};
use crate::walk::{Claims, Tree};

/// Leaves that a thread takes at a time.
const LEAVES: usize = 64;

/// All pages of an old index but its root, those that its records go on to too.
pub(crate) fn pages(
    file: &dyn ReadPages,
    tree: &Tree,
    root: u32,
    claims: &mut Claims,
    threads: usize,
    usage: &Recorder,
) -> Result<Vec<u32>, Error> {
    let mut leaves = tree.leaves.clone();
    leaves.sort_unstable();
    let next = AtomicUsize::new(0);
    let work = |thread: usize| -> Result<Vec<u32>, Error> {
        let mut span = usage.span(thread, None, Phase::IndexScan);
        let mut found = Vec::new();
        let mut buffer = vec![0; file.layout().page_size * LEAVES];
        while let Some(leaves) = leaves.chunks(LEAVES).nth(next.fetch_add(1, Ordering::Relaxed)) {
            overflow(file, leaves, Kind::IndexLeaf, &mut buffer, &mut found)?;
            span.read((leaves.len() * file.layout().page_size) as u64);
        }
        Ok(found)
    };
    let mut found = on_each(threads, work).into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    let mut buffer = vec![0; file.layout().page_size];
    for &page in &tree.interior {
        overflow(file, &[page], Kind::IndexInterior, &mut buffer, &mut found)?;
    }
    for &page in &found {
        claims.claim(page)?;
    }
    found.extend(tree.interior.iter().chain(&leaves).filter(|&&page| page != root));
    Ok(found)
}

/// The pages that the records on these pages go on to.
fn overflow(
    file: &dyn ReadPages,
    pages: &[u32],
    kind: Kind,
    buffer: &mut [u8],
    found: &mut Vec<u32>,
) -> Result<(), Error> {
    let layout = file.layout();
    for neighbours in pages.chunk_by(|a, b| a + 1 == *b) {
        let bytes = &mut buffer[..layout.page_size * neighbours.len()];
        file.read(neighbours[0], bytes)?;
        for (&number, bytes) in neighbours.iter().zip(bytes.chunks(layout.page_size)) {
            let page = Page::new(number, bytes, layout)?;
            page.expect(kind)?;
            for cell in 0..page.cells() {
                let record = page.key(cell, layout)?;
                if record.overflow != 0 {
                    record.each_overflow(file, |page, _| {
                        found.push(page);
                        true
                    })?;
                }
            }
        }
    }
    Ok(())
}
