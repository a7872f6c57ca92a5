//! A sum over the keys of an index, taken from the table's rows and again from the finished pages: the same keys give the same sum in any
//! order.

use crate::record::Value;

/// How many keys, and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// How many keys.
    pub(crate) keys: u64,
    /// The sum of their hashes, without carry.
    pub(crate) hashes: u64,
}

impl Sum {
    /// Counts one key.
    #[inline]
    pub(crate) fn add(&mut self, key: KeyHash) {
        self.keys += 1;
        self.hashes = self.hashes.wrapping_add(mix(key.0, 0x9E37_79B9_7F4A_7C15));
    }

    /// Counts those of another part.
    pub(crate) fn join(&mut self, other: Sum) {
        self.keys += other.keys;
        self.hashes = self.hashes.wrapping_add(other.hashes);
    }
}

/// The hash of one key, value by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    /// Of no value yet.
    pub(crate) fn new() -> KeyHash {
        KeyHash(0x243F_6A88_85A3_08D3)
    }

    /// Takes in the next value.
    #[inline]
    pub(crate) fn value(&mut self, value: Value<'_>) {
        match value {
            // No integer that is likely: NULL is not 1.
            Value::Null => self.word(0xD1B5_4A32_D192_ED03),
            Value::Integer(number) => self.word(number as u64),
            Value::Real(number) => {
                self.word(2);
                self.word(number.to_bits());
            }
            Value::Text(bytes) => self.bytes(3, bytes),
            Value::Blob(bytes) => self.bytes(4, bytes),
        }
    }

    fn bytes(&mut self, kind: u64, bytes: &[u8]) {
        self.word(kind << 32 ^ bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word, 0xA076_1D64_78BD_642F);
    }
}

/// Both halves of a product, folded: every bit of it takes part.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xE703_7ED1_A0B4_28DB) * u128::from(b);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(a)
}
