//! The cube that contains all keys: its centre is the middle of the bodies, so that its first
//! planes divide them about equally.
//!
//! A centre between the extremes would depend on the outermost bodies alone; with it, domains have
//! a quarter more surface towards their main neighbour. The middle is the mean of some bodies,
//! summed exactly, so its bits do not depend on the partition. For few bodies it is the middle of
//! the extremes: an eighth of them is hardly more than a block. Large blocks from the middle to the
//! outermost bodies would need one error for forces at both ends. This module is pure.

use serde::{Deserialize, Serialize};
use springtide_runtime::work::ParallelLoops;

use crate::exact::ExactSum;
use crate::loops::BODIES_PER_PIECE;

/// The approximate number of bodies in the mean.
const SAMPLE_SIZE: usize = 8192;
/// For fewer bodies than this the extremes are used.
const SAMPLE_BODIES_MIN: usize = 4 * SAMPLE_SIZE;

/// The inputs of the cube; those of parts can be merged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CubeBounds {
    /// The smallest and largest coordinates.
    low: [f64; 3],
    high: [f64; 3],
    /// The sums over the bodies of the mean.
    sums: [ExactSum; 3],
    count: u64,
}

impl CubeBounds {
    /// The bounds of all bodies, in their own order.
    ///
    /// # Errors
    /// The loops must stop.
    pub(crate) fn of_all<L: ParallelLoops>(
        loops: &L,
        position: &[[f64; 3]],
    ) -> Result<Self, L::Stop> {
        let stride = stride(position.len());
        let pieces = loops.parallel_map(0..position.len(), BODIES_PER_PIECE, |piece| {
            let first = stride.map(|stride| piece.start.next_multiple_of(stride));
            let rest = first.and_then(|first| position.get(first..piece.end)).unwrap_or_default();
            Self::of(&position[piece], rest.iter().step_by(stride.unwrap_or(1)))
        })?;
        let none = Self::of(&[], std::iter::empty());
        Ok(pieces.iter().fold(none, |mut all, piece| {
            all.merge(piece);
            all
        }))
    }

    /// The bounds of some bodies, each with its number among all.
    pub(crate) fn of_some(
        position: &[[f64; 3]],
        numbers: impl Iterator<Item = u32> + Clone,
        all: u64,
    ) -> Self {
        let stride = stride(all as usize);
        let is_sampled =
            |number: u32| stride.is_some_and(|of| (number as usize).is_multiple_of(of));
        let sampled = position.iter().zip(numbers).filter(|(_, number)| is_sampled(*number));
        Self::of(position, sampled.map(|(place, _)| place))
    }

    fn of<'p>(position: &[[f64; 3]], sampled: impl Iterator<Item = &'p [f64; 3]> + Clone) -> Self {
        let mut bounds = Self {
            low: [f64::INFINITY; 3],
            high: [f64::NEG_INFINITY; 3],
            sums: Default::default(),
            count: sampled.clone().count() as u64,
        };
        for place in position {
            bounds.low.iter_mut().zip(place).for_each(|(low, x)| *low = low.min(*x));
            bounds.high.iter_mut().zip(place).for_each(|(high, x)| *high = high.max(*x));
        }
        for (axis, sum) in bounds.sums.iter_mut().enumerate() {
            sum.extend(sampled.clone().map(|place| place[axis]));
        }
        bounds
    }

    /// Merges the bounds of other bodies.
    pub(crate) fn merge(&mut self, other: &Self) {
        for axis in 0..3 {
            self.low[axis] = self.low[axis].min(other.low[axis]);
            self.high[axis] = self.high[axis].max(other.high[axis]);
            self.sums[axis].merge(&other.sums[axis]);
        }
        self.count += other.count;
    }

    /// The centre and side of the cube.
    ///
    /// The side is a power of two, and at least a millionth of the softening length; smaller
    /// distances do not change forces.
    pub(crate) fn cube(&self, softening: f64) -> ([f64; 3], f64) {
        let mut centre = [0.0; 3];
        let mut extent = softening * 1e-6;
        let axes = self.low.into_iter().zip(self.high).zip(&self.sums);
        for (centre, ((low, high), sum)) in centre.iter_mut().zip(axes) {
            if low > high {
                continue;
            }
            let mean = sum.value() / self.count as f64;
            // There may be no sample, and the sum of huge coordinates may overflow.
            let middle = if mean.is_finite() { mean } else { 0.5 * low + 0.5 * high };
            *centre = middle.clamp(low, high);
            extent = extent.max(2.0 * (high - *centre).max(*centre - low));
        }
        (centre, if extent > 0.0 { power_of_two_at_least(extent) } else { 1.0 })
    }
}

/// Bodies whose number this divides are in the mean; none if there is no mean.
fn stride(all: usize) -> Option<usize> {
    (all >= SAMPLE_BODIES_MIN).then_some(all / SAMPLE_SIZE)
}

/// The smallest power of two that is at least a positive finite number, within the normal range.
pub(crate) fn power_of_two_at_least(value: f64) -> f64 {
    let exponent = (value.to_bits() >> 52) & 0x7ff;
    let below = f64::from_bits(exponent.clamp(1, 2045) << 52);
    if value <= below { below } else { 2.0 * below }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use springtide_runtime::work::Sequential;

    use super::*;

    fn of_all(position: &[[f64; 3]]) -> CubeBounds {
        let Ok(bounds) = CubeBounds::of_all(&Sequential, position);
        bounds
    }

    /// The bounds of this number of parts, merged.
    fn merged(position: &[[f64; 3]], parts: usize) -> CubeBounds {
        let of_part = |part: usize| {
            let numbers = (part..position.len()).step_by(parts);
            let some: Vec<[f64; 3]> = numbers.clone().map(|i| position[i]).collect();
            CubeBounds::of_some(&some, numbers.map(|i| i as u32), position.len() as u64)
        };
        let mut merged = of_part(parts - 1);
        (0..parts - 1).for_each(|part| merged.merge(&of_part(part)));
        merged
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Any partition gives the same cube, which contains all bodies, for few and many bodies.
        #[test]
        fn parts_have_the_cube_of_all(
            some in prop::collection::vec(prop::array::uniform3(-1e3..1e3f64), 1..200),
            parts in 1usize..5,
            exponent in -300..300i32, many in any::<bool>(),
        ) {
            let unit = 10f64.powi(exponent);
            let all = if many { SAMPLE_BODIES_MIN + some.len() } else { some.len() };
            let place = |i: usize| some[i % some.len()].map(|x| (x + (i % 7) as f64) * unit);
            let position: Vec<[f64; 3]> = (0..all).map(place).collect();
            let (centre, side) = of_all(&position).cube(0.0);
            prop_assert_eq!(merged(&position, parts).cube(0.0), (centre, side));
            for place in position {
                prop_assert!((0..3).all(|axis| ((place[axis] - centre[axis]) / side).abs() <= 0.5));
            }
        }
    }

    /// The middle lies where most bodies are, not between the outermost ones.
    #[test]
    fn the_middle_is_where_most_bodies_are() {
        let mut position = vec![[1.0, 2.0, 3.0]; SAMPLE_BODIES_MIN];
        position.push([1e3, 0.0, 3.0]);
        let (centre, side) = of_all(&position).cube(0.0);
        assert!((centre[0] - 1.0).abs() < 0.2 && (centre[1] - 2.0).abs() < 0.2, "{centre:?}");
        assert_eq!((centre[2], side), (3.0, 2048.0));
        // For few bodies it lies between them.
        let few = [position[0], position[SAMPLE_BODIES_MIN]];
        assert_eq!(of_all(&few).cube(0.0), ([500.5, 1.0, 3.0], 1024.0));
    }

    #[test]
    fn every_set_of_bodies_has_a_cube() {
        assert_eq!(of_all(&[]).cube(0.0), ([0.0; 3], 1.0));
        assert_eq!(of_all(&[[5.0; 3]; 4]).cube(0.0), ([5.0; 3], 1.0));
        let huge = vec![[1.7e308; 3]; SAMPLE_BODIES_MIN];
        assert_eq!(of_all(&huge).cube(0.0), ([1.7e308; 3], 1.0));
        let (centre, side) = of_all(&[[1e200; 3], [-1e200, 0.0, 1e-200]]).cube(0.0);
        assert!(centre.iter().all(|x| x.is_finite()) && side >= 2e200 && side.is_finite());
    }

    #[test]
    fn powers_of_two_bound_from_above() {
        for value in [1e-300, 0.3, 0.5, 1.0, 1.0000001, 3.0, 1e10, 1e100] {
            let power = power_of_two_at_least(value);
            assert!(power >= value && power / 2.0 < value, "{value} gave {power}");
            assert_eq!(power.to_bits() << 12, 0, "{power} is a power of two");
        }
    }
}
