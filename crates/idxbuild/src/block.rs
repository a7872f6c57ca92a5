//! Sort blocks: where a scanning thread puts the keys that it makes for one sort group. A full block is sorted into a run.

use crate::error::Halt;
use crate::varint;

/// Keys in the order in which they came.
#[derive(Debug)]
pub(crate) struct SortBlock {
    bytes: Vec<u8>,
    items: Vec<Item>,
    size: usize,
}

/// A key of a block: its first eight bytes, and where it is.
#[derive(Clone, Copy, Debug)]
struct Item {
    prefix: u64,
    at: u32,
    length: u32,
}

/// The first eight bytes of a key as a number of the same order.
#[inline]
pub(crate) fn prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(eight)
        }
    }
}

impl SortBlock {
    /// An empty one, which takes about so many bytes, its table of keys included.
    pub(crate) fn new(size: usize) -> SortBlock {
        SortBlock { bytes: Vec::new(), items: Vec::new(), size }
    }

    /// Appends the key that `write` writes. True where the block is full then.
    #[inline]
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), Halt>) -> Result<bool, Halt> {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(self.size);
        }
        let at = self.bytes.len();
        write(&mut self.bytes)?;
        let key = &self.bytes[at..];
        self.items.push(Item { prefix: prefix(key), at: at as u32, length: key.len() as u32 });
        Ok(self.bytes.len() + self.items.len() * size_of::<Item>() >= self.size)
    }

    /// Whether there is no key in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Sorts the keys into a run, and is empty again.
    pub(crate) fn take_sorted(&mut self) -> Vec<u8> {
        let bytes = &self.bytes;
        let key = |item: &Item| &bytes[item.at as usize..item.at as usize + item.length as usize];
        self.items.sort_unstable_by(|a, b| a.prefix.cmp(&b.prefix).then_with(|| key(a).cmp(key(b))));
        let mut run = Vec::with_capacity(bytes.len() + self.items.len() + self.items.len() / 8);
        for item in &self.items {
            write_entry(&mut run, key(item));
        }
        run.shrink_to_fit();
        self.items.clear();
        self.bytes.clear();
        run
    }
}

/// Appends a key to a run: its length, then itself.
#[inline]
pub(crate) fn write_entry(run: &mut Vec<u8>, key: &[u8]) {
    varint::write(run, key.len() as u64);
    run.extend_from_slice(key);
}
