//! A small seeded generator (SplitMix64: Steele, Lea, Flood, 2014), so that a failing run can be had again from its seed.
//!
//! # Caveats
//! Not for secrets, and `below` is very slightly biased for huge bounds.

/// A sequence of numbers that its seed fixes.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `bound - 1`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits().checked_rem(bound).unwrap_or(0)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// One of the items, none of an empty slice.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_fixes_the_sequence_and_another_seed_changes_it() {
        let take = |seed| {
            let mut random = Random::seeded(seed);
            [random.bits(), random.bits(), random.bits()]
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        assert_eq!(take(0)[0], 0xE220_A839_7B1D_CDAF, "the published first value of seed 0");
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::seeded(1);
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| !random.chance(0) && random.chance(100)));
        assert_eq!(random.pick::<u8>(&[]), None);
    }
}
