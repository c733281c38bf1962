//! Reproducible random numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
//!
//! Good enough for tests, short enough to read, and the same on every machine.

use std::ops::Range;

/// A random number generator, which always yields the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Returns a generator for a seed. All seeds are equally good.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a second generator, whose numbers are independent of those that this one returns later.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// Returns a random number of the full range of `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0 .. bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        // Take the high half of the product: this needs no division, and its bias is too small for any test.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `range`.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Returns a number of at least 0 and less than 1, with the precision of `f64`.
    pub fn share(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number of the exponential distribution with this mean: the time until the next of independent
    /// events.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    /// Returns true with a chance of `percent` in a hundred.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Returns one of `items` at random; `None` if the list is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        (!items.is_empty()).then(|| &items[self.below(items.len() as u64) as usize])
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        // From the reference implementation, splitmix64.c by Sebastiano Vigna, seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn every_number_below_the_bound_occurs() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 6];
        (0..600).for_each(|_| seen[rng.below(6) as usize] += 1);
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
    }

    #[test]
    fn shares_are_even_from_0_to_below_1_and_times_have_their_mean() {
        let mut rng = Rng::new(3);
        let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
        let shares: Vec<f64> = (0..100_000).map(|_| rng.share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        assert!((mean(&shares) - 0.5).abs() < 0.01);
        let times: Vec<f64> = (0..100_000).map(|_| rng.exponential(7.0)).collect();
        assert!(times.iter().all(|time| *time >= 0.0) && (mean(&times) - 7.0).abs() < 0.1);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
