//! Finds the cheapest settings for forces of a wanted error, on a sample of the run's bodies.
//!
//! Forces on some groups of the tree are compared with sums over all bodies. For each order the
//! error of cells shrinks until the forces are good enough; the cheapest order is chosen. The
//! result is a pure function of the bodies. This module depends on neither tasks nor options.

use crate::bodies::Bodies;
use crate::forces::{self, BYTES_A_BODY};
use crate::setup::{Accuracy, CellExpansion, Setup};
use crate::shared::Positions;

/// The settings that were found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibratedParameters {
    /// The highest moment of a far cell.
    pub order: CellExpansion,
    /// The error of a cell: see [`Setup::error`].
    pub cell_error: f64,
    /// The relative error of the sample, as root of the mean square.
    pub found: f64,
    /// Whether this is within the wanted error; if not, no finer setting exists.
    pub reached: bool,
}

/// The number of groups whose forces are compared, and bodies of each.
const GROUPS: usize = 24;
/// The cost of an interaction with a quadrupole, in interactions with points.
pub(crate) const QUAD_COST: f64 = 2.25;
/// The cost of an entry on a group's lists.
const LIST_COST: f64 = 40.0;
/// The cost of an entry in a group's series.
const SERIES_COST: f64 = 120.0;
/// The part of the wanted error that the sample may have, for it is small.
const MARGIN: f64 = 0.9;
/// The tried errors of cells: the first, the factor, and the last.
const FIRST: f64 = 0.1;
const STEP: f64 = 0.9;
const LAST: f64 = 1e-7;

/// The cost of forces on a group of bodies, in interactions with points, by the counts of
/// [`forces::Lists::fill`].
pub(crate) fn cost(counts: [usize; 3], bodies: usize) -> f64 {
    let [points, quads, series] = counts.map(|count| count as f64);
    (points + QUAD_COST * quads) * bodies as f64
        + LIST_COST * (points + quads)
        + SERIES_COST * series
}

/// Chooses the settings for a relative error of `wanted` (root of the mean square over bodies).
///
/// Order and theta of `accuracy` are ignored.
pub fn choose(bodies: &Bodies, accuracy: Accuracy, wanted: f64) -> CalibratedParameters {
    let tries = [CellExpansion::Mono, CellExpansion::Quad, CellExpansion::Series];
    let tries = tries.map(|order| try_order(bodies, order, accuracy, wanted));
    let better = |(one, cost): (CalibratedParameters, f64),
                  (other, other_cost): (CalibratedParameters, f64)| {
        let is_better = match (one.reached, other.reached) {
            (true, true) => cost <= other_cost,
            (false, false) => one.found <= other.found,
            (reached, _) => reached,
        };
        if is_better { (one, cost) } else { (other, other_cost) }
    };
    let [mono, quad, series] = tries;
    better(better(mono, quad), series).0
}

/// The largest sufficient error of cells with this order, and its cost.
fn try_order(
    bodies: &Bodies,
    order: CellExpansion,
    accuracy: Accuracy,
    wanted: f64,
) -> (CalibratedParameters, f64) {
    let setup = |error| Setup::new(bodies, Accuracy { order, ..accuracy }).with_error(Some(error));
    let positions = Positions::new(&bodies.position, accuracy.softening);
    let mut tree = crate::tree::BodyTree::build(&positions, &setup(FIRST));
    let count = tree.groups().min(GROUPS);
    let groups: Vec<usize> = forces::spread(count, tree.groups()).collect();
    let exact: Vec<_> = groups.iter().map(|&group| forces::exact(&tree, group)).collect();
    let mut cell_error = FIRST;
    loop {
        // The cells do not depend on the error, which only decides which of them are far.
        tree.error = Some(cell_error);
        let (mut squares, mut sinks, mut total) = (0.0, 0usize, 0.0);
        for (&group, exact) in groups.iter().zip(&exact) {
            let (bytes, counts) = forces::one(&tree, group);
            total += cost(counts, bytes.len() / BYTES_A_BODY);
            for (i, exact) in exact {
                let got = forces::row(&bytes[i * BYTES_A_BODY..]);
                let square = |v: [f64; 3]| v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
                let off = square([0, 1, 2].map(|k| got[k] - exact[k]));
                if off > 0.0 {
                    squares += off / square(*exact).max(f64::MIN_POSITIVE);
                }
                sinks += 1;
            }
        }
        let found = (squares / sinks.max(1) as f64).sqrt();
        let reached = found <= MARGIN * wanted;
        if reached || cell_error * STEP < LAST {
            return (CalibratedParameters { order, cell_error, found, reached }, total);
        }
        cell_error *= STEP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    #[test]
    fn the_cheapest_settings_reach_the_wanted_error() {
        let bodies = generate::plummer(6000, 4);
        let accuracy = Accuracy {
            order: CellExpansion::Mono,
            theta: 0.0,
            softening: 0.01,
            leaf: 16,
            group: 128,
        };
        let choices = [1e-2, 1e-3, 5e-5].map(|wanted| {
            let choice = choose(&bodies, accuracy, wanted);
            assert_eq!(choice, choose(&bodies, accuracy, wanted));
            assert!(choice.reached && choice.found > wanted / 4.0, "{wanted}: {choice:?}");
            choice
        });
        // Quadrupoles and series are cheaper for small errors.
        assert_eq!(choices[0].order, CellExpansion::Mono);
        assert_ne!(choices[2].order, CellExpansion::Mono);
        // Single precision limits the error.
        assert!(!choose(&bodies, accuracy, 1e-12).reached);
    }

    #[test]
    fn unusual_bodies_have_a_choice() {
        for n in [0, 1, 2] {
            let mut bodies = Bodies::default();
            for _ in 0..n {
                bodies.push([1.0; 3], [0.0; 3], 1.0);
            }
            let accuracy = Accuracy {
                order: CellExpansion::Mono,
                theta: 0.0,
                softening: 0.0,
                leaf: 16,
                group: 64,
            };
            let choice = choose(&bodies, accuracy, 1e-3);
            assert!(choice.reached && choice.cell_error == FIRST, "{n}: {choice:?}");
        }
    }
}
