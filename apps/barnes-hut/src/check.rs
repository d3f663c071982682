//! Checks forces: for a sample of bodies they are compared with sums over all bodies in double
//! precision.
//!
//! The sums use the shared positions and masses, which are rounded to single precision within the
//! box, and the run's softening. So the error is that of opening, moments and kernel. Each body's
//! sum is in the bodies' order, so its bits depend on nothing else. This module depends on neither
//! trees nor tasks.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::setup::Setup;
use crate::shared::Positions;

/// Bytes per body in the output of [`exact`]: x, y, z as little-endian `f64`.
pub const BYTES_A_BODY: usize = 24;

/// Relative errors of the accelerations of a sample: |a - exact| / |exact|.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForceError {
    /// The root of the mean square.
    pub rms: f64,
    /// The median of the errors.
    pub median: f64,
    /// The 99th percentile of the errors.
    pub p99: f64,
}

/// Up to `count` different bodies out of `bodies`, in ascending order; one seed gives one sample.
pub fn sample(bodies: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    // A stream of its own, apart from that of the bodies.
    key[8..16].copy_from_slice(b"a sample");
    let mut dice = ChaCha8Rng::from_seed(key);
    let count = count.min(bodies);
    // R. W. Floyd's algorithm: each of the first `end` + 1 bodies has the same probability (J.
    // Bentley, Commun. ACM 30, 754, 1987).
    let mut chosen = std::collections::BTreeSet::new();
    for end in bodies - count..bodies {
        let draw = (u128::from(dice.next_u64()) * (end as u128 + 1)) >> 64;
        if !chosen.insert(draw as u32) {
            chosen.insert(end as u32);
        }
    }
    chosen.into_iter().collect()
}

/// The number of sinks that are summed side by side.
const LANES: usize = 8;

/// Accelerations of these bodies from all bodies, [`BYTES_A_BODY`] each, in units of the box.
///
/// None if an index is out of range, or the two objects are for different numbers of bodies.
pub fn exact(positions: &Positions, setup: &Setup, sample: &[u32]) -> Option<Vec<u8>> {
    let inside = positions.inside();
    let masses: Vec<f32> = setup.masses().collect();
    if inside.len() != masses.len() {
        return None;
    }
    let wide = |p: &[f32; 3]| p.map(f64::from);
    let softening = setup.softening / positions.side();
    let mut bytes = Vec::with_capacity(sample.len() * BYTES_A_BODY);
    for sinks in sample.chunks(LANES) {
        let mut at = [[0.0; LANES]; 3];
        for (lane, &body) in sinks.iter().enumerate() {
            let p = wide(inside.get(body as usize)?);
            for axis in 0..3 {
                at[axis][lane] = p[axis];
            }
        }
        let mut sums = [[0.0; LANES]; 3];
        for (p, &mass) in inside.iter().zip(&masses) {
            let (p, mass) = (wide(p), f64::from(mass));
            for lane in 0..LANES {
                let d = [0, 1, 2].map(|axis| p[axis] - at[axis][lane]);
                let square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + softening * softening;
                // Neither the body itself nor one at the same place without softening pulls.
                let weight = if square > 0.0 { mass / (square * square.sqrt()) } else { 0.0 };
                for axis in 0..3 {
                    sums[axis][lane] += weight * d[axis];
                }
            }
        }
        for lane in 0..sinks.len() {
            for column in &sums {
                bytes.extend_from_slice(&column[lane].to_le_bytes());
            }
        }
    }
    Some(bytes)
}

/// Pairs that are summed in about the time of one body's forces by the tree, at its usual settings.
pub const PAIRS_A_BODY: f64 = 300.0;

/// The errors of accelerations against exact ones; none if no body is left.
///
/// Bodies without acceleration are omitted, for they have no relative error.
pub fn compare(pairs: impl Iterator<Item = ([f64; 3], [f64; 3])>) -> Option<ForceError> {
    let square = |v: [f64; 3]| v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
    let mut errors: Vec<f64> = pairs
        .filter_map(|(got, exact)| {
            // Scaled into range for any units of the user.
            let scale = exact.iter().fold(0.0, |most: f64, c| most.max(c.abs()));
            let off = [0, 1, 2].map(|k| (got[k] - exact[k]) / scale);
            (scale > 0.0).then(|| (square(off) / square(exact.map(|c| c / scale))).sqrt())
        })
        .collect();
    if errors.is_empty() {
        return None;
    }
    errors.sort_unstable_by(f64::total_cmp);
    let n = errors.len();
    let rms = (errors.iter().map(|e| e * e).sum::<f64>() / n as f64).sqrt();
    Some(ForceError { rms, median: errors[(n - 1) / 2], p99: errors[(n * 99).div_ceil(100) - 1] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::setup::{Accuracy, CellExpansion};

    #[test]
    fn samples_are_of_different_bodies_in_order_and_reach_all_of_them() {
        for (bodies, count) in [(0, 5), (1, 5), (5, 5), (5, 3), (1000, 200)] {
            let chosen = sample(bodies, count, 7);
            assert_eq!(chosen.len(), count.min(bodies));
            assert!(chosen.is_sorted_by(|a, b| a < b));
            assert!(chosen.iter().all(|body| (*body as usize) < bodies));
        }
        let mut times = [0; 10];
        for seed in 0..1000 {
            for body in sample(10, 3, seed) {
                times[body as usize] += 1;
            }
        }
        assert!(times.iter().all(|t| (220..380).contains(t)), "{times:?}");
        assert_eq!(sample(1000, 4, 42), sample(1000, 4, 42));
        assert_ne!(sample(1000, 4, 42), sample(1000, 4, 43));
    }

    #[test]
    fn errors_are_relative_and_independent_of_units() {
        let pairs = (0..200).map(|i| ([1.0 + 0.01 * f64::from(i), 0.0, 0.0], [1.0, 0.0, 0.0]));
        let nothing = ([0.0; 3], [0.0; 3]);
        let found = compare(pairs.chain([nothing])).unwrap();
        assert!((found.median - 0.99).abs() < 1e-12 && (found.p99 - 1.97).abs() < 1e-12);
        assert!((found.rms - 1.150_370).abs() < 1e-5, "{found:?}");
        assert_eq!(compare([nothing].into_iter()), None);
        // Units in which the square of an acceleration is out of range.
        for unit in [1e-250, 1e250] {
            let found = compare([([1.5 * unit, 0.0, 0.0], [unit, 0.0, 0.0])].into_iter()).unwrap();
            assert!((found.rms - 0.5).abs() < 1e-12);
        }
    }

    #[test]
    fn sums_are_those_over_the_bodies_as_given_to_rounding() {
        let bodies = generate::plummer(500, 3);
        let softening = 0.01;
        let accuracy =
            Accuracy { order: CellExpansion::Mono, theta: 0.5, softening, leaf: 16, group: 64 };
        let setup = Setup::new(&bodies, accuracy);
        let positions = Positions::new(&bodies.position, softening);
        let all: Vec<u32> = (0..500).collect();
        let bytes = exact(&positions, &setup, &all).unwrap();
        assert_eq!(bytes.len(), 500 * BYTES_A_BODY);
        let unit = setup.mass_unit / positions.side() / positions.side();
        let mut pairs = Vec::new();
        for (i, row) in bytes.chunks_exact(BYTES_A_BODY).enumerate() {
            let got = [0, 8, 16].map(|k| f64::from_le_bytes(row[k..k + 8].try_into().unwrap()));
            let mut sum = [0.0; 3];
            for j in 0..500 {
                let d = [0, 1, 2].map(|k| bodies.position[j][k] - bodies.position[i][k]);
                let square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + softening * softening;
                for k in 0..3 {
                    sum[k] += bodies.mass[j] * d[k] / (square * square.sqrt());
                }
            }
            pairs.push((got.map(|a| a * unit), sum));
        }
        let found = compare(pairs.into_iter()).unwrap();
        assert!(found.p99 < 3e-5, "{found:?}");
        // Any partition gives the same bits.
        let parts = all.chunks(7).map(|part| exact(&positions, &setup, part).unwrap());
        assert_eq!(parts.collect::<Vec<_>>().concat(), bytes);
        assert_eq!(exact(&positions, &setup, &[500]), None);
    }
}
