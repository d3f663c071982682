//! Random numbers that are the same in every version: ChaCha with 8 rounds, keyed by the seed, one
//! stream for each purpose.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A source of random numbers.
pub(crate) struct RandomSource(ChaCha8Rng);

impl RandomSource {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Self(random)
    }

    /// A uniform number from 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (0.5f64).powi(53)
    }

    /// An exponential number with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
