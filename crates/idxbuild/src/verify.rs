//! Our own pass over the finished indexes, through SQLite's pager and before the transaction ends: every key in order, as many as the
//! table has rows, and their sum the table's.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::error::{Error, corrupt};
use crate::file::ReadPages;
use crate::job::IndexJob;
use crate::key::KeyColumn;
use crate::options::{Progress, Step};
use crate::page::{Kind, Page, Record};
use crate::record::{Fields, Value};
use crate::sum::{KeyHash, Sum};
use crate::threads::on_each;
use crate::usage::{Phase, Recorder};
use crate::walk::Claims;

#[cfg(test)]
mod tests;

/// Leaves that a thread takes at a time.
const LEAVES: usize = 64;

/// An index and what must be in it.
pub(crate) struct Expected<'j> {
    /// The index.
    pub(crate) job: &'j IndexJob,
    /// The sum of its keys, from the table.
    pub(crate) sum: Sum,
}

/// A tree in the order of its keys.
struct InOrder {
    leaves: Vec<u32>,
    /// The key after each leaf but the last.
    between: Vec<Vec<u8>>,
}

/// What a piece of an index holds.
#[derive(Default)]
struct Seen {
    first: Vec<u8>,
    last: Vec<u8>,
    sum: Sum,
}

/// Reads all these indexes with several threads. Each page may belong to one of them only.
pub(crate) fn verify(
    pages: &dyn ReadPages,
    expected: &[Expected<'_>],
    claims: &mut Claims,
    threads: usize,
    usage: &Recorder,
    progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
) -> Result<(), Error> {
    let mut trees = Vec::new();
    for index in expected {
        trees.push(in_order(pages, index.job.root, claims)?);
    }
    let pieces: Vec<(usize, usize)> = trees
        .iter()
        .enumerate()
        .flat_map(|(index, tree)| (0..tree.leaves.len().div_ceil(LEAVES)).map(move |piece| (index, piece)))
        .collect();
    let next = AtomicUsize::new(0);
    let work = |thread: usize| -> Result<Vec<(usize, Seen)>, Error> {
        let mut span = usage.span(thread, None, Phase::Verify);
        let mut seen = Vec::new();
        loop {
            let place = next.fetch_add(1, Relaxed);
            let Some(&(index, piece)) = pieces.get(place) else { return Ok(seen) };
            let (job, tree) = (expected[index].job, &trees[index]);
            seen.push((place, Checker::new(pages, job).piece(tree, piece)?));
            span.read((LEAVES.min(tree.leaves.len()) * pages.layout().page_size) as u64);
            if let Some(progress) = progress {
                progress(Progress { step: Step::Verify, done: place as u64, of: pieces.len() as u64 });
            }
        }
    };
    let seen = on_each(threads, work).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut seen: Vec<_> = seen.into_iter().flatten().collect();
    seen.sort_unstable_by_key(|(place, _)| *place);
    for (index, expected) in expected.iter().enumerate() {
        let of_index = seen.iter().filter(|(place, _)| pieces[*place].0 == index).map(|(_, seen)| seen);
        join(of_index, expected)?;
    }
    Ok(())
}

/// The pieces of one index together.
fn join<'s>(pieces: impl Iterator<Item = &'s Seen>, expected: &Expected<'_>) -> Result<(), Error> {
    let mut sum = Sum::default();
    let mut last: Option<&[u8]> = None;
    let job = expected.job;
    let mut order = Order::new(job);
    for piece in pieces.filter(|piece| piece.sum.keys > 0) {
        if let Some(last) = last
            && !order.is_before(last, &piece.first)
        {
            return Err(order.failed());
        }
        last = Some(&piece.last);
        sum.join(piece.sum);
    }
    if sum == expected.sum {
        return Ok(());
    }
    let what = match (sum.keys, expected.sum.keys) {
        (same, other) if same == other => "its keys are not those of the rows".to_owned(),
        (keys, rows) => format!("{keys} keys for {rows} rows"),
    };
    Err(Error::Unverified { index: job.name.clone(), what })
}

/// Walks an index: its leaves, and the keys between them.
fn in_order(pages: &dyn ReadPages, root: u32, claims: &mut Claims) -> Result<InOrder, Error> {
    enum Next {
        Page(u32),
        Key(Vec<u8>),
    }
    let mut tree = InOrder { leaves: Vec::new(), between: Vec::new() };
    let tree_walk = crate::walk::walk(pages, root, true, claims)?;
    let interior: std::collections::HashSet<u32> = tree_walk.interior.into_iter().collect();
    let mut open = vec![Next::Page(root)];
    let (mut buffer, mut spare) = (vec![0; pages.layout().page_size], Vec::new());
    while let Some(next) = open.pop() {
        match next {
            Next::Key(key) => tree.between.push(key),
            Next::Page(number) if !interior.contains(&number) => tree.leaves.push(number),
            Next::Page(number) => {
                pages.read(number, &mut buffer)?;
                let page = Page::new(number, &buffer, pages.layout())?;
                if page.cells() == 0 {
                    return Err(corrupt(number, "an index page without a key"));
                }
                open.push(Next::Page(page.child(page.cells())?));
                for cell in (0..page.cells()).rev() {
                    let key = page.key(cell, pages.layout())?;
                    open.push(Next::Key(whole(&key, pages, &mut spare)?.to_vec()));
                    open.push(Next::Page(page.child(cell)?));
                }
            }
        }
    }
    Ok(tree)
}

fn whole<'b>(record: &Record<'b>, pages: &dyn ReadPages, spare: &'b mut Vec<u8>) -> Result<&'b [u8], Error> {
    record.beginning(record.length, pages, spare)
}

/// Reads one piece of an index.
struct Checker<'c> {
    pages: &'c dyn ReadPages,
    job: &'c IndexJob,
    order: Order<'c>,
    seen: Seen,
}

impl<'c> Checker<'c> {
    fn new(pages: &'c dyn ReadPages, job: &'c IndexJob) -> Checker<'c> {
        Checker { pages, job, order: Order::new(job), seen: Seen::default() }
    }

    fn piece(mut self, tree: &InOrder, piece: usize) -> Result<Seen, Error> {
        let layout = self.pages.layout();
        let from = piece * LEAVES;
        let leaves = &tree.leaves[from..(from + LEAVES).min(tree.leaves.len())];
        let (mut buffer, mut spare) = (vec![0; layout.page_size * leaves.len()], Vec::new());
        // Those that lie next to one another are read at once: other threads wait for the pager meanwhile.
        let mut bytes = buffer.as_mut_slice();
        for neighbours in leaves.chunk_by(|a, b| a + 1 == *b) {
            let (these, rest) = bytes.split_at_mut(layout.page_size * neighbours.len());
            self.pages.read(neighbours[0], these)?;
            bytes = rest;
        }
        for (place, (&number, bytes)) in (from..).zip(leaves.iter().zip(buffer.chunks(layout.page_size))) {
            let page = Page::new(number, bytes, layout)?;
            page.expect(Kind::IndexLeaf)?;
            if page.cells() == 0 && tree.leaves.len() > 1 {
                return Err(corrupt(number, "an index page without a key"));
            }
            for cell in 0..page.cells() {
                let key = page.key(cell, layout)?;
                self.key(number, whole(&key, self.pages, &mut spare)?)?;
            }
            if let Some(key) = tree.between.get(place) {
                self.key(number, key)?;
            }
        }
        Ok(self.seen)
    }

    fn key(&mut self, page: u32, record: &[u8]) -> Result<(), Error> {
        let values = self.job.columns.len() + 1;
        let fields = &mut self.order.after;
        fields
            .read(record, usize::MAX)
            .filter(|()| fields.count() == values && fields.end() == record.len())
            .ok_or_else(|| corrupt(page, "a key that is no record of this index"))?;
        let mut hash = KeyHash::new();
        for value in 0..values {
            hash.value(self.order.after.value(value, record).unwrap_or(Value::Null));
        }
        if self.seen.sum.keys == 0 {
            self.seen.first.extend_from_slice(record);
        } else if !self.order.is_read_before(&self.seen.last, record) {
            return Err(self.order.failed());
        }
        std::mem::swap(&mut self.order.before, &mut self.order.after);
        self.seen.last.clear();
        self.seen.last.extend_from_slice(record);
        self.seen.sum.add(hash);
        Ok(())
    }
}

/// The order of an index's records, value by value as SQLite compares them.
struct Order<'j> {
    job: &'j IndexJob,
    before: Fields,
    after: Fields,
}

impl<'j> Order<'j> {
    fn new(job: &'j IndexJob) -> Order<'j> {
        Order { job, before: Fields::default(), after: Fields::default() }
    }

    fn failed(&self) -> Error {
        let what = if self.job.is_unique { "keys out of order, or the same twice" } else { "keys out of order" };
        Error::Unverified { index: self.job.name.clone(), what: what.to_owned() }
    }

    fn is_before(&mut self, before: &[u8], after: &[u8]) -> bool {
        let _ = self.before.read(before, usize::MAX);
        let _ = self.after.read(after, usize::MAX);
        self.is_read_before(before, after)
    }

    /// The same of records whose heads have been read.
    fn is_read_before(&self, before: &[u8], after: &[u8]) -> bool {
        let value = |fields: &Fields, record, index| fields.value(index, record).unwrap_or(Value::Null);
        let mut has_null = false;
        for (index, column) in self.job.columns.iter().enumerate() {
            let (a, b) = (value(&self.before, before, index), value(&self.after, after, index));
            has_null |= a == Value::Null;
            match compare(a, b, column, self.job) {
                Ordering::Equal => {}
                order => return order.is_lt() != column.descending,
            }
        }
        let rowid = self.job.columns.len();
        let is_before = match (value(&self.before, before, rowid), value(&self.after, after, rowid)) {
            (Value::Integer(a), Value::Integer(b)) => a < b,
            _ => false,
        };
        is_before && (!self.job.is_unique || has_null)
    }
}

fn compare(a: Value<'_>, b: Value<'_>, column: &KeyColumn, job: &IndexJob) -> Ordering {
    let rank = |value| match value {
        Value::Null => 0,
        Value::Integer(_) | Value::Real(_) => 1,
        Value::Text(_) => 2,
        Value::Blob(_) => 3,
    };
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(&b),
        (Value::Real(a), Value::Real(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        (Value::Integer(a), Value::Real(b)) => compare_mixed(a, b),
        (Value::Real(a), Value::Integer(b)) => compare_mixed(b, a).reverse(),
        (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => {
            // What can't be folded was left to SQLite long before.
            let fold = |text| column.collation.fold(text, job.encoding).unwrap_or_default();
            fold(a).cmp(&fold(b))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// An integer against a double, exactly.
fn compare_mixed(a: i64, b: f64) -> Ordering {
    if b.abs() >= 1e19 {
        return 0.0_f64.partial_cmp(&b).unwrap_or(Ordering::Equal);
    }
    let whole = b.floor();
    let rest = if b > whole { Ordering::Less } else { Ordering::Equal };
    i128::from(a).cmp(&(whole as i128)).then(rest)
}
