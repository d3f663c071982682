//! The number of steps after which bodies are sorted into cells again.
//!
//! Between two sorts cells keep their bodies and grow as these move, so forces cost more from step
//! to step: a cell that is larger has to be opened from farther away. A sort costs about as much as
//! a tenth of the forces. So cells keep their bodies while these move by a small part of a leaf's
//! size on average.
//!
//! The interval follows from the velocities at a sort alone. Sums are of whole numbers, so that all
//! processes find the same interval, however bodies are distributed. The module is pure.

use springtide_runtime::work::ParallelLoops;

use crate::bodies::length;
use crate::options::BarnesHut;
use crate::partial::BlockInfo;
use crate::setup::Setup;
use crate::tree::agreeing;

/// The mean distance that bodies may move between two sorts, in sizes of their leaves. A Plummer
/// sphere of a million bodies is then sorted in every step of length 1/64. With steps of 1/1024, it
/// is sorted in about every fifth.
const MOVED_MAX: f64 = 0.1;

/// The maximum number of steps between two sorts.
const STEPS_MAX: u64 = 32;

/// Blocks of a piece of the loop over all blocks.
const BLOCKS_PER_PIECE: usize = 64;

/// One leaf's size in units of [`summed_motion`].
const LEAF: f64 = (1 << 20) as f64;

/// The sum of the distances that the bodies of these blocks move in a step, in parts of their
/// leaves' sizes; a body counts as one leaf's size at most. `side` is the side of the box that the
/// blocks' keys divide.
pub(super) fn summed_motion<L: ParallelLoops>(
    loops: &L,
    infos: &[BlockInfo],
    velocity: &[[f64; 3]],
    (side, dt): (f64, f64),
    setup: &Setup,
) -> Result<u64, L::Stop> {
    let mut rest = velocity;
    let blocks = infos.iter().map(|info| {
        let (own, others) = rest.split_at((info.bodies as usize).min(rest.len()));
        rest = others;
        (info, own)
    });
    let blocks: Vec<_> = blocks.collect();
    let of_block = |(info, velocity): &(&BlockInfo, &[[f64; 3]])| {
        let leaves = f64::from(info.bodies) / f64::from(setup.leaf.max(1));
        // Powers of two are exact on every machine, unlike cubic roots.
        let mut size = side * 0.5f64.powi(agreeing(info.first ^ info.last) as i32);
        let mut parts = 1.0;
        while parts < leaves {
            (size, parts) = (0.5 * size, 8.0 * parts);
        }
        let moved = |v: &[f64; 3]| ((length(*v) * dt / size).min(1.0) * LEAF) as u64;
        velocity.iter().map(moved).sum::<u64>()
    };
    let sums = loops.parallel_map(0..blocks.len(), BLOCKS_PER_PIECE, |piece| {
        blocks[piece].iter().map(of_block).sum::<u64>()
    })?;
    Ok(sums.into_iter().sum())
}

/// The number of steps, at least one, that cells keep this number of bodies with this
/// [`summed_motion`].
pub(super) fn steps_until_sort(motion: u64, bodies: u64) -> u64 {
    let mean = motion as f64 / LEAF / (bodies as f64).max(1.0);
    // The cast saturates, also for no motion.
    ((MOVED_MAX / mean) as u64).clamp(1, STEPS_MAX)
}

/// The step in which bodies are sorted next after a sort in this step; `u64::MAX` for never.
pub(super) fn next_sort(job: &BarnesHut, step: u64, motion: u64, bodies: u64) -> u64 {
    match job.rekey_every {
        Some(0) => u64::MAX,
        Some(every) => (step / every + 1).saturating_mul(every),
        None => step + steps_until_sort(motion, bodies),
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::work::Sequential;

    use super::*;
    use crate::generate;
    use crate::partial::blocks;
    use crate::tree::{morton, sorted_pairs};

    /// The interval of a Plummer sphere, whose velocities are of the order of 1.
    fn of_plummer(count: usize, dt: f64) -> u64 {
        let bodies = generate::plummer(count, 5);
        let setup = Setup::new(&bodies, BarnesHut::default().accuracy());
        let side = 32.0;
        let keys: Vec<u64> =
            bodies.position.iter().map(|p| morton(p.map(|x| (x / side) as f32))).collect();
        let keys = sorted_pairs(&keys);
        let infos = blocks(&keys, &setup, 1.0);
        let velocity: Vec<_> = keys.iter().map(|(_, i)| bodies.velocity[*i as usize]).collect();
        let sum = |infos: &[BlockInfo], velocity: &[[f64; 3]]| {
            let Ok(sum) = summed_motion(&Sequential, infos, velocity, (side, dt), &setup);
            sum
        };
        let whole = sum(&infos, &velocity);
        // Processes with parts of the blocks find the same sum.
        let middle = infos.len() / 2;
        let first: usize = infos[..middle].iter().map(|info| info.bodies as usize).sum();
        let parts =
            sum(&infos[..middle], &velocity[..first]) + sum(&infos[middle..], &velocity[first..]);
        assert_eq!(parts, whole);
        steps_until_sort(whole, count as u64)
    }

    #[test]
    fn shorter_steps_and_larger_leaves_have_longer_intervals() {
        let coarse = of_plummer(20_000, 1.0 / 64.0);
        let fine = of_plummer(20_000, 1.0 / 1024.0);
        assert!(coarse < fine, "{coarse} and {fine}");
        assert!(of_plummer(1000, 1.0 / 64.0) >= coarse);
        assert_eq!(of_plummer(1000, 1e3), 1);
        assert_eq!((steps_until_sort(0, 10), steps_until_sort(0, 0)), (STEPS_MAX, STEPS_MAX));
    }
}
