//! A small seeded generator (SplitMix64: Steele, Lea, Flood, 2014), so that a run's draws can be had again from its seed.
//!
//! *Caveats.* Not for secrets. `below` is biased by at most one part in 2^64 / bound.

/// What a sequence is for: the first number of those that it is derived by, so that no two are the same.
pub(crate) mod stream {
    /// The order of a round's runs.
    pub(crate) const ORDER: u64 = 0;
    /// The seed of a round's runs.
    pub(crate) const RUN: u64 = 1;
    /// A run's arrivals.
    pub(crate) const ARRIVALS: u64 = 2;
    /// A client's think times.
    pub(crate) const THINK: u64 = 3;
    /// A run's constants.
    pub(crate) const CONSTANTS: u64 = 4;
    /// What a client draws.
    pub(crate) const DRAWS: u64 = 5;
    /// What a link loses.
    pub(crate) const LOSSES: u64 = 6;
}

/// A sequence of numbers that its seed fixes.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// A sequence of its own for each of these numbers, fixed by the seed: for the clients of a run, the runs of a campaign.
    pub fn derived(seed: u64, numbers: &[u64]) -> Random {
        let next =
            |seed, number: &u64| Random(seed ^ number.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93)).bits();
        Random(numbers.iter().fold(seed, next))
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
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 up to, not with, 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Time from one to the next of events that come by chance, `rate` of them in a second: exponential, in seconds.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.fraction()).ln() / rate
    }

    /// Puts the items into an order by chance (Fisher, Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_fixes_the_sequence() {
        assert_eq!(Random::seeded(0).bits(), 0xE220_A839_7B1D_CDAF, "the published first value of seed 0");
        let first = |seed, numbers: &[u64]| Random::derived(seed, numbers).bits();
        assert_eq!(first(7, &[1, 2]), first(7, &[1, 2]));
        assert_ne!(first(7, &[1, 2]), first(7, &[2, 1]));
        assert_ne!(first(7, &[0]), first(8, &[0]));
    }

    #[test]
    fn arrivals_by_chance_are_of_the_right_number_whatever_the_seed() {
        let count = |seed: u64| {
            let mut random = Random::derived(seed, &[super::stream::ARRIVALS]);
            let (mut time, mut count) = (random.exponential(200.0), 0.0);
            while time < 2.0 {
                (time, count) = (time + random.exponential(200.0), count + 1.0);
            }
            count
        };
        let counts: Vec<f64> =
            (0..1000).map(|seed: u64| count(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11)).collect();
        let mean = counts.iter().sum::<f64>() / 1000.0;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 999.0;
        assert!(
            (mean - 400.0).abs() < 3.0 && (variance - 400.0).abs() < 60.0,
            "{mean}, {variance}: both 400 for Poisson"
        );
    }

    #[test]
    fn draws_are_within_their_bounds_and_of_the_right_mean() {
        let mut random = Random::seeded(1);
        assert!((0..1000).all(|_| random.below(3) < 3 && random.fraction() < 1.0));
        assert_eq!(random.below(0), 0);
        let mean = (0..100_000).map(|_| random.exponential(50.0)).sum::<f64>() / 100_000.0;
        assert!((mean - 0.02).abs() < 0.000_5, "{mean}");
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
