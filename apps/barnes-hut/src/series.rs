//! The field of far sources on a whole group: a Taylor series about the group's middle, to the
//! fourth order.
//!
//! With f(r) = 1 / sqrt(r^2 + eps^2) and T_n its n-th derivatives, consider a mass m with second
//! moments S at q from the middle. Its field has the derivatives L_n = m T_n(q) + 1/2 S :
//! T_{n+2}(q) there; terms beyond the fourth derivative of f are omitted. Derivatives are
//! symmetric, and each is stored once.
//!
//! Sources are processed [`LANES`] at a time; each lane is summed by itself, and the lanes are
//! added in order. So the same sources in the same order give the same bits with any instruction
//! set. Lengths are in a unit of about the group's size, which keeps the derivatives within single
//! precision.
//!
//! This module depends on neither trees nor the choice of far sources. Source: W. Dehnen, J.
//! Comput. Phys. 179, 27 (2002), there for cells on both sides. The softened derivatives follow by
//! the chain rule.

use crate::kernel::{LANES, Lanes, Quad, ROOT_LEAD, SinkForces, Wide, add, inverse_root};

/// Indices of the first derivatives of order 0, 1, 2, 3 and 4.
const AT: [usize; 5] = [0, 1, 4, 10, 20];
/// The number of derivatives of all orders.
pub(crate) const TERMS: usize = 35;

/// For each derivative of one order, in the order xx.., xx..y, xx..z, xx..yy and so on: the number
/// of its axes other than x.
///
/// One more derivative along x has the same index within the next order. Along y or z, add this
/// number plus 1 or 2.
const NOT_X: [usize; 15] = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4];

/// Sources side by side: x, y, z, the mass, and half of S: xx, xy, xz, yy, yz, zz, those of two
/// axes doubled.
pub(crate) type Far = [[f32; LANES]; 10];

/// Arranges cells side by side, in order; lanes beyond the last are zero.
pub(crate) fn quads_side_by_side(quads: &[Quad], all: &mut Vec<Far>) {
    all.clear();
    for chunk in quads.chunks(LANES) {
        let mut far = [[0.0; LANES]; 10];
        for (lane, quad) in chunk.iter().enumerate() {
            let ([x, y, z], mass, [xx, yy, zz, xy, xz, yz]) = quad.plain();
            let values = [x, y, z, mass, 0.5 * xx, xy, xz, 0.5 * yy, yz, 0.5 * zz];
            for (column, value) in far.iter_mut().zip(values) {
                column[lane] = value;
            }
        }
        all.push(far);
    }
}

/// The group that a series belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeriesGroup {
    /// The middle of the group.
    pub middle: [f32; 3],
    /// The factor of all lengths, a power of two.
    pub unit: f32,
    /// The square of the softening length, in the unit.
    pub softening_squared: f32,
    /// The square of the largest distance of its bodies from the middle, in the unit.
    pub most: f32,
    /// The smallest square of a source's distance, in the unit.
    pub nearest: f32,
    /// The limit of the first omitted terms, 5 m r^4 / d^6 and 30 tr S r^2 / d^6, in the unit.
    pub allowed: f32,
}

/// Sums of each derivative over the sources of a lane.
pub(crate) type Derivatives = [[f32; LANES]; TERMS];

/// Adds the derivatives of the field of all sources that are far enough, and returns these as a bit
/// per lane.
///
/// QUADS: whether sources have second moments.
#[inline(always)]
pub(crate) fn expand<W: Wide, const QUADS: bool>(
    proof: W::Proof,
    sources: &[Far],
    frame: &SeriesGroup,
    sums: &mut Derivatives,
    taken: &mut Vec<u32>,
) {
    let softening_squared = W::splat(proof, frame.softening_squared);
    let (nearest, allowed) = (W::splat(proof, frame.nearest), W::splat(proof, frame.allowed));
    let unit = W::splat(proof, frame.unit);
    let unit_squared = unit * unit;
    let fourth_power = W::splat(proof, 5.0 * frame.most * frame.most);
    let second_power = W::splat(proof, 60.0 * frame.most);
    let lead = W::splat(proof, ROOT_LEAD as f32);
    let [minus, three, five] = [W::splat(proof, -1.0), W::splat(proof, 3.0), W::splat(proof, 5.0)];
    let (six, seven) = (W::splat(proof, 6.0), W::splat(proof, 7.0));
    let zero = W::splat(proof, 0.0);
    for source in sources {
        let mut lanes = 0;
        for first in (0..LANES).step_by(W::COUNT) {
            let x = (W::splat(proof, frame.middle[0]) - W::load(proof, &source[0], first)) * unit;
            let y = (W::splat(proof, frame.middle[1]) - W::load(proof, &source[1], first)) * unit;
            let z = (W::splat(proof, frame.middle[2]) - W::load(proof, &source[2], first)) * unit;
            let mut mass = W::load(proof, &source[3], first);
            let (xx, yy, zz) = (x * x, y * y, z * z);
            let distance = xx + yy + zz;
            let softened = distance + softening_squared;
            let mut halves = [zero; 6];
            let mut left_out = mass * fourth_power;
            if QUADS {
                for (half, column) in halves.iter_mut().zip(&source[4..]) {
                    *half = W::load(proof, column, first) * unit_squared;
                }
                left_out = second_power.times_plus(halves[0] + halves[3] + halves[5], left_out);
            }
            let bound = softened * softened * softened * allowed;
            let here = bound.above(left_out) & distance.above(nearest);
            lanes |= here << first;
            if here == 0 {
                continue;
            }
            mass = mass.where_above(bound, left_out).where_above(distance, nearest);
            if QUADS {
                for half in &mut halves {
                    *half = half.where_above(bound, left_out).where_above(distance, nearest);
                }
            }
            // Lanes of other sources are multiplied by zero.
            let square = softened.greater(nearest);
            let (xy, xz, yz) = (x * y, x * z, y * z);
            let g0 = inverse_root(proof, square) * lead;
            let inverse = g0 * g0 * minus;
            let g1 = g0 * inverse;
            let g2 = g1 * inverse * three;
            let g3 = g2 * inverse * five;
            let g4 = g3 * inverse * seven;
            let first_order = [g1 * x, g1 * y, g1 * z];
            let second = [
                g2.times_plus(xx, g1),
                g2 * xy,
                g2 * xz,
                g2.times_plus(yy, g1),
                g2 * yz,
                g2.times_plus(zz, g1),
            ];
            let three_g2 = g2 * three;
            let [px, py, pz] =
                [g3.times_plus(xx, g2), g3.times_plus(yy, g2), g3.times_plus(zz, g2)];
            let third = [
                x * g3.times_plus(xx, three_g2),
                y * px,
                z * px,
                x * py,
                g3 * xy * z,
                x * pz,
                y * g3.times_plus(yy, three_g2),
                z * py,
                y * pz,
                z * g3.times_plus(zz, three_g2),
            ];
            let (three_g3, six_g3) = (g3 * three, g3 * six);
            let [qx, qy, qz] = [
                g4.times_plus(xx, three_g3),
                g4.times_plus(yy, three_g3),
                g4.times_plus(zz, three_g3),
            ];
            let [rx, ry, rz] =
                [g4.times_plus(xx, g3), g4.times_plus(yy, g3), g4.times_plus(zz, g3)];
            let fourth = [
                g4.times_plus(xx, six_g3).times_plus(xx, three_g2),
                xy * qx,
                xz * qx,
                xx.times_plus(ry, g3.times_plus(yy, g2)),
                yz * rx,
                xx.times_plus(rz, g3.times_plus(zz, g2)),
                xy * qy,
                xz * ry,
                xy * rz,
                xz * qz,
                g4.times_plus(yy, six_g3).times_plus(yy, three_g2),
                yz * qy,
                yy.times_plus(rz, g3.times_plus(zz, g2)),
                yz * qz,
                g4.times_plus(zz, six_g3).times_plus(zz, three_g2),
            ];
            let mut all = [zero; TERMS];
            all[0] = g0;
            all[AT[1]..AT[2]].copy_from_slice(&first_order);
            all[AT[2]..AT[3]].copy_from_slice(&second);
            all[AT[3]..AT[4]].copy_from_slice(&third);
            all[AT[4]..].copy_from_slice(&fourth);
            for n in 0..TERMS {
                let mut sum = mass.times_plus(all[n], W::load(proof, &sums[n], first));
                if QUADS && n < AT[3] {
                    let order = if n < AT[1] {
                        0
                    } else if n < AT[2] {
                        1
                    } else {
                        2
                    };
                    let place = n - AT[order];
                    let steps = NOT_X[place];
                    let from = AT[order + 2] + place;
                    let places =
                        [0, steps + 1, steps + 2, 2 * steps + 3, 2 * steps + 4, 2 * steps + 5];
                    for (half, place) in halves.iter().zip(places) {
                        sum = half.times_plus(all[from + place], sum);
                    }
                }
                sum.store(&mut sums[n], first);
            }
        }
        taken.push(lanes);
    }
}

/// The series of all lanes together, with the factors of Taylor's formula that [`evaluate`] needs.
pub(crate) fn series(sums: &Derivatives) -> [f32; TERMS] {
    let mut series = [0.0; TERMS];
    for (n, lanes) in sums.iter().enumerate() {
        let sum: f64 = lanes.iter().map(|&lane| f64::from(lane)).sum();
        series[n] = (sum
            * if n < AT[3] {
                1.0
            } else if n < AT[4] {
                0.5
            } else {
                1.0 / 6.0
            }) as f32;
    }
    series
}

/// Adds the series' field to the sinks; lengths are `unit` times those of the sinks.
#[inline(always)]
pub(crate) fn evaluate<W: Wide, const POTENTIAL: bool>(
    proof: W::Proof,
    series: &[f32; TERMS],
    unit: f32,
    sinks: &[Lanes],
    sums: &mut [SinkForces],
) {
    let (third, quarter, half) =
        (W::splat(proof, 1.0 / 3.0), W::splat(proof, 0.25), W::splat(proof, 0.5));
    let (factor, depth_factor) = (f64::from(unit) * f64::from(unit), -f64::from(unit));
    for (sink, sum) in sinks.iter().zip(sums) {
        for first in (0..LANES).step_by(W::COUNT) {
            let unit = W::splat(proof, unit);
            let u = [
                W::load(proof, &sink[0], first) * unit,
                W::load(proof, &sink[1], first) * unit,
                W::load(proof, &sink[2], first) * unit,
            ];
            let zero = W::splat(proof, 0.0);
            let (mut third_order, mut rest, mut both) = ([zero; 10], [zero; 10], [zero; 10]);
            for n in 0..10 {
                let at = AT[4] + n;
                let next = [
                    W::splat(proof, series[at]),
                    W::splat(proof, series[at + NOT_X[n] + 1]),
                    W::splat(proof, series[at + NOT_X[n] + 2]),
                ];
                third_order[n] = W::splat(proof, series[AT[3] + n]);
                rest[n] = u[2].times_plus(next[2], u[1].times_plus(next[1], u[0] * next[0]));
                both[n] = third_order[n] + rest[n];
            }
            let mut second = [zero; 6];
            for (n, sum) in second.iter_mut().enumerate() {
                *sum = plus(W::splat(proof, series[AT[2] + n]), u, &both, n);
            }
            for n in 0..3 {
                let felt = plus(W::splat(proof, series[AT[1] + n]), u, &second, n);
                add(&mut sum[n], first, felt, factor);
            }
            if POTENTIAL {
                for n in 0..10 {
                    both[n] = rest[n].times_plus(quarter, third_order[n] * third);
                }
                for (n, sum) in second.iter_mut().enumerate() {
                    *sum = plus(W::splat(proof, series[AT[2] + n]) * half, u, &both, n);
                }
                let mut depth = W::splat(proof, series[0]);
                for (n, along) in u.into_iter().enumerate() {
                    depth = along
                        .times_plus(plus(W::splat(proof, series[AT[1] + n]), u, &second, n), depth);
                }
                add(&mut sum[3], first, depth, depth_factor);
            }
        }
    }
}

/// A sum, plus the derivatives of the next order along each axis times the distances.
#[inline(always)]
fn plus<W: Wide>(sum: W, [x, y, z]: [W; 3], next: &[W], n: usize) -> W {
    let sum = x.times_plus(next[n], sum);
    let sum = y.times_plus(next[n + NOT_X[n] + 1], sum);
    z.times_plus(next[n + NOT_X[n] + 2], sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{Kernel, Rule};

    /// A cell of this size at this place.
    fn cell(at: [f32; 3], size: f32) -> Quad {
        let square = f64::from(size * size);
        Quad::new(at, 0.3, &[0.03, 0.02, 0.05, 0.01, -0.02, 0.015].map(|s| s * square))
    }

    fn far(cells: &[Quad]) -> Vec<Far> {
        let mut all = Vec::new();
        quads_side_by_side(cells, &mut all);
        all
    }

    /// Bodies within about 1/8 of the middle, away from each axis.
    fn sinks() -> [Lanes; 1] {
        let at = |i: usize| ((i as f32 * 0.618_034).fract() - 0.5) * 0.14;
        [[0, 1, 2].map(|axis| std::array::from_fn(|lane| at(lane + 5 * axis)))]
    }

    const FRAME: SeriesGroup = SeriesGroup {
        middle: [0.0; 3],
        unit: 8.0,
        softening_squared: 0.01 * 64.0,
        most: 1.0,
        nearest: 4.0,
        allowed: 1e30,
    };

    fn by_series(kernel: Kernel, sources: &[Far], frame: &SeriesGroup) -> (SinkForces, Vec<u32>) {
        let mut derivatives = [[0.0; LANES]; TERMS];
        let mut taken = Vec::new();
        kernel.expand(sources, true, frame, &mut derivatives, &mut taken);
        let mut sums = [[[0.0; LANES]; 4]];
        kernel.evaluate(&series(&derivatives), frame.unit, &sinks(), true, &mut sums);
        (sums[0], taken)
    }

    #[test]
    fn a_series_is_the_field_of_its_sources_to_fourth_order() {
        let mut last: Option<[f64; 2]> = None;
        for distance in [1.0f32, 2.0, 4.0] {
            let d = distance / 14f32.sqrt();
            let cells = [cell([d, -2.0 * d, 3.0 * d], 0.3), cell([-3.0 * d, d, 2.0 * d], 0.3)];
            let (got, taken) = by_series(Kernel::best(), &far(&cells), &FRAME);
            assert_eq!(taken[0] & 3, 3);
            let mut exact = [[[0.0; LANES]; 4]];
            let rule = Rule { softening_squared: 0.01, potential: true };
            Kernel::best().quads(&cells, &sinks(), rule, &mut exact);
            let worst = |columns: std::ops::Range<usize>| {
                let off = |k: usize, lane: usize| (got[k][lane] - exact[0][k][lane]).abs();
                let all = columns.flat_map(|k| (0..LANES).map(move |lane| (k, lane)));
                all.map(|(k, lane)| off(k, lane)).fold(0.0, f64::max)
            };
            // Relative to the pull of a mass of 0.6, and to its potential.
            let pull = 0.6 / f64::from(distance);
            let errors = [worst(0..3) / pull * f64::from(distance), worst(3..4) / pull];
            assert!(errors[0] < 2e-2 && errors[1] < 2e-3, "{errors:?} at {distance}");
            if let Some(last) = last {
                // At twice the distance: a sixteenth and a thirty-second.
                assert!(errors[0] < last[0] / 11.0 + 2e-6, "{errors:?} after {last:?}");
                assert!(errors[1] < last[1] / 20.0 + 2e-6, "{errors:?} after {last:?}");
            }
            last = Some(errors);
        }
    }

    proptest! {
        #[test]
        fn every_path_makes_the_same_series(
            places in prop::collection::vec(prop::array::uniform3(-2f32..2.0), 1..60),
            allowed in 1e-4f32..1.0,
            softening_squared in prop_oneof![Just(0f32), Just(0.3)],
        ) {
            // Some at the middle itself, as near sources may be.
            let zero = [[0.0; 3]];
            let cells: Vec<Quad> = places.iter().chain(&zero).map(|p| cell(*p, 0.1)).collect();
            let frame = SeriesGroup { allowed, softening_squared, ..FRAME };
            let sources = far(&cells);
            let (plain, taken) = by_series(Kernel::Portable, &sources, &frame);
            prop_assert!(plain.as_flattened().iter().all(|value| value.is_finite()));
            for (i, p) in places.iter().enumerate() {
                let square = 64.0 * (p[0] * p[0] + p[1] * p[1] + p[2] * p[2]);
                let is_taken = taken[i / LANES] >> (i % LANES) & 1 == 1;
                prop_assert!(!is_taken || square > 3.999);
                prop_assert!(is_taken || allowed < 1.0, "none is too near where all is allowed");
            }
            for kernel in Kernel::all() {
                let (sums, also) = by_series(kernel, &sources, &frame);
                prop_assert_eq!(&taken, &also, "{}", kernel.name());
                let bits = |sums: &SinkForces| -> Vec<_> {
                    sums.as_flattened().iter().map(|v| v.to_bits()).collect()
                };
                prop_assert_eq!(bits(&plain), bits(&sums), "{}", kernel.name());
            }
        }
    }
}
