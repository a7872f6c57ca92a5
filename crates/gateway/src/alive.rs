//! Bytes of answers that are in memory, kept or on their way to clients.
//!
//! Who takes an answer slowly holds its bytes after the cache has let them go. They are counted until the last holder has let them go too; beyond
//! a bound nothing new is executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Counts bytes for as long as anybody holds them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alive(Arc<AtomicUsize>);

struct Counted {
    bytes: Vec<u8>,
    alive: Alive,
}

impl Alive {
    /// These bytes, counted from now on.
    pub(crate) fn count(&self, bytes: Vec<u8>) -> Bytes {
        self.0.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Counted { bytes, alive: self.clone() })
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.0.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_the_last_who_holds_them_has_let_them_go() {
        let alive = Alive::default();
        let (whole, other) = (alive.count(vec![7; 100]), alive.count(vec![7; 10]));
        let part = whole.slice(..1);
        assert_eq!(alive.bytes(), 110);
        drop((whole, other));
        assert_eq!(alive.bytes(), 100);
        drop(part);
        assert_eq!(alive.bytes(), 0);
    }
}
