//! Pseudorandom numbers that follow from a seed, without a clock or the system: one seed gives one
//! sequence.

/// The generator SplitMix, for choices and tests, not for secrets.
///
/// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Creates a sequence from a number and a text; other texts give others.
    pub fn with_text(seed: u64, text: &str) -> Self {
        Self(text.bytes().fold(seed, |seed, byte| Self(seed ^ u64::from(byte)).next()))
    }

    /// The next number of the sequence. It is not an iterator, since it has no end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to below `n`, nearly uniform for an `n` far below 2^64.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number that is uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
