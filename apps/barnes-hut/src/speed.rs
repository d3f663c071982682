//! Access to internal stages for speed measurements: a tree's stages, lists without kernels, and
//! kernels without lists.
//!
//! Forces come from [`crate::forces`]; this module adds nothing to them and uses no clock.

use springtide_runtime::work::Sequential;

use crate::forces::Lists;
use crate::kernel::{Kernel, LANES, Quad, Rule};
use crate::setup::{CellExpansion, Setup};
use crate::shared::Positions;
use crate::tree::{BodyTree, TreeScratch};

/// Interactions of all bodies: the number of pairs of a body and a list's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interactions {
    /// Interactions with bodies, and with cells that act as points.
    pub points: u64,
    /// Interactions with cells that have second moments.
    pub quads: u64,
    /// Sources in the series of the groups, each for a whole group at once.
    pub series: u64,
}

/// Builds a tree and drops it; calls `lap` with each stage's name at its end.
pub fn tree(positions: &Positions, setup: &Setup, lap: &mut dyn FnMut(&'static str)) -> BodyTree {
    let mut scratch = TreeScratch::default();
    let Ok(tree) = BodyTree::build_in_stages(&Sequential, positions, setup, &mut scratch, lap);
    tree
}

/// Makes the lists of all groups without computing forces.
pub fn lists(tree: &BodyTree) -> Interactions {
    let mut lists = Lists::new(tree, Kernel::best(), false);
    let mut all = Interactions::default();
    for group in 0..tree.groups() {
        let bodies = tree.bodies(group..group + 1);
        let count = bodies.len() as u64;
        let [points, quads, series] = lists.fill(bodies).map(|entries| entries as u64);
        all.points += count * points;
        all.quads += count * quads;
        all.series += series;
    }
    all
}

/// Runs the kernel alone, on data in the innermost cache: these sinks feel these sources, `rounds`
/// times.
///
/// `code` is an index of [`instructions`]. Returns the number of interactions.
///
/// # Panics
/// Panics if there is no such code.
/// If there is no such code.
pub fn kernel(
    code: usize,
    order: CellExpansion,
    sinks: usize,
    sources: usize,
    rounds: usize,
) -> u64 {
    let kernel = Kernel::all()[code];
    let vectors = sinks.div_ceil(LANES);
    let at = |i: usize| (i as f32 * 0.618_034).fract() - 0.5;
    let lanes = |v: usize| [0, 1, 2].map(|axis| std::array::from_fn(|l| at(v * LANES + l + axis)));
    let sinks: Vec<_> = (0..vectors).map(lanes).collect();
    let mut sums = vec![[[0.0; LANES]; 4]; vectors];
    let points: Vec<_> = (0..sources).map(|i| [at(i) + 2.0, at(i + 7), at(i + 9), 1e-6]).collect();
    let moments = [1e-8, 2e-8, 3e-8, 1e-9, -1e-9, 2e-9];
    let quads: Vec<_> =
        points.iter().map(|p| Quad::new([p[0], p[1], p[2]], p[3], &moments)).collect();
    let rule = Rule { softening_squared: 1e-8, potential: false };
    for _ in 0..rounds {
        match order {
            CellExpansion::Mono => kernel.points(&points, &sinks, rule, &mut sums),
            CellExpansion::Quad | CellExpansion::Series => {
                kernel.quads(&quads, &sinks, rule, &mut sums)
            }
        }
        std::hint::black_box(&mut sums);
    }
    (vectors * LANES * sources * rounds) as u64
}

/// The instruction sets that this processor has, for a report; the last is the fastest, which
/// forces use.
pub fn instructions() -> Vec<&'static str> {
    Kernel::all().into_iter().map(Kernel::name).collect()
}
