//! Measures the times of a domain's work on this machine, for simulations.

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_runtime::work::{Sequential, thread_cpu};

use super::costs::Costs;
use crate::bodies::Bodies;
use crate::calibrate::QUAD_COST;
use crate::forces::Lists;
use crate::kernel::Kernel;
use crate::options::BarnesHut;
use crate::partial::{BlockInfo, Branch, assemble, blocks};
use crate::setup::Setup;
use crate::shared::Positions;
use crate::smooth::{ColumnCoding, Track};
use crate::tree::{BodyTree, CellSums, morton, sorted_pairs};

/// The number of repetitions, of which the least time counts.
const TIMES: u32 = 3;

/// Measures the processor time of each kind of work on these bodies, with the job's options.
pub fn measure(job: &BarnesHut, bodies: &Bodies) -> Costs {
    let setup = Setup::new(bodies, job.accuracy()).with_error(job.cell_error);
    let positions = Positions::new(&bodies.position, setup.softening);
    let inside = positions.inside();
    let masses: Vec<f32> = setup.masses().collect();
    let count = bodies.len().max(1) as f64;
    let keys = || {
        let keys: Vec<u64> = inside.iter().map(|place| morton(*place)).collect();
        sorted_pairs(&keys)
    };
    // Twice, for bodies that travel are sorted again.
    let key = 2.0 * least(keys) / count;
    let keys = keys();
    let infos = blocks(&keys, &setup, 1.0);
    let branches = || {
        let mut rest = &keys[..];
        let branch = |info: &BlockInfo| {
            let (own, others) = rest.split_at(info.bodies as usize);
            rest = others;
            Branch::new(own, &setup)
        };
        infos.iter().map(branch).collect::<Vec<_>>()
    };
    let building = least(branches) / count;
    let mut branches = branches();
    let point = |&(_, i): &(u64, u32)| {
        let [x, y, z] = inside[i as usize];
        [x, y, z, masses[i as usize]]
    };
    let points: Vec<_> = keys.iter().map(point).collect();
    let mut sum = || {
        let mut rest = &points[..];
        for branch in &mut branches {
            let (own, others) = rest.split_at(branch.bodies());
            branch.sum_up(own, None, &setup);
            rest = others;
        }
    };
    let body = least(&mut sum) / count;
    let mut first = 0;
    let blocks = infos.iter().map(|info| {
        first += info.bodies as usize;
        &points[first - info.bodies as usize..first]
    });
    let blocks: Vec<_> = blocks.collect();
    let sums_of_blocks =
        || CellSums::of_leaves(&Sequential, blocks.len(), |block| blocks[block], &setup);
    let ahead = least(sums_of_blocks) / count;
    let sums = CellSums::new(infos.len(), &setup, true);
    let none = BTreeMap::new();
    let tree = |before: Option<BodyTree>| {
        let roots = (&infos[..], &sums);
        let room = (&setup, positions.side());
        let Ok(tree) = assemble(&Sequential, before, roots, (0, &branches), &none, room);
        tree
    };
    let mut before = None;
    let assembled = least(|| before = Some(tree(before.take())));
    let tree = tree(before);
    let cell = assembled / tree.cells.links.len().max(1) as f64;

    let all = |computes| lists(&tree, computes);
    let [entries, pairs, quads] = all(false);
    let making = least(|| all(false));
    let forces = (least(|| all(true)) - making).max(0.0);
    // A pair with a cell costs a little more than twice as much.
    let point = forces / (pairs + QUAD_COST * quads).max(1.0);
    Costs {
        point,
        quad: QUAD_COST * point,
        entry: making / entries.max(1.0),
        body: body + ahead,
        cell,
        number: of_a_number(&points),
        key: key + building,
    }
}

/// The time of coding one of these coordinates in a steady motion, in nanoseconds.
fn of_a_number(points: &[[f32; 4]]) -> f64 {
    const VIEW: usize = 1000;
    let frame = |points: &[[f32; 4]], step: u32| -> Vec<f32> {
        let moved = |c: f32| c * (1.0 + 1e-5 * step as f32);
        points.iter().flat_map(|[x, y, z, _]| [x, y, z].map(|c| moved(*c))).collect()
    };
    let mut tracks = vec![
        [(); 2].map(|()| Track::new(&[ColumnCoding::InOrder; 3]));
        points.len().div_ceil(VIEW)
    ];
    let mut all = |step: u32| {
        let frames: Vec<_> = points.chunks(VIEW).map(|points| frame(points, step)).collect();
        let start = thread_cpu();
        for ([sender, receiver], frame) in tracks.iter_mut().zip(frames) {
            let (count, mut bytes) = (frame.len(), Vec::new());
            sender.encode(frame, &mut bytes);
            let decoded = receiver.decode(count, &mut &bytes[..]).map(<[f32]>::len);
            std::hint::black_box(decoded.ok());
        }
        thread_cpu().saturating_sub(start)
    };
    let last = (0..8).fold(Duration::ZERO, |_, step| all(step));
    last.as_nanos() as f64 / (2 * 3 * points.len().max(1)) as f64
}

/// The entries of all groups' lists, and the pairs of a body with a point and with a cell with
/// second moments.
fn lists(tree: &BodyTree, computes: bool) -> [f64; 3] {
    let mut lists = Lists::new(tree, Kernel::best(), true);
    let (mut out, mut sum) = (Vec::new(), [0.0; 3]);
    for group in 0..tree.groups() {
        let bodies = tree.bodies(group..group + 1);
        let count = bodies.len() as f64;
        out.clear();
        let [points, quads, series] =
            if computes { lists.one_group(bodies, &mut out) } else { lists.fill(bodies) };
        let [points, quads, series] = [points, quads, series].map(|entries| entries as f64);
        sum = [sum[0] + points + quads + series, sum[1] + count * points, sum[2] + count * quads];
    }
    sum
}

impl Costs {
    /// The time of the forces on all these bodies in one process, in seconds.
    pub fn of_forces(&self, job: &BarnesHut, bodies: &Bodies) -> f64 {
        let setup = Setup::new(bodies, job.accuracy()).with_error(job.cell_error);
        let tree = BodyTree::build(&Positions::new(&bodies.position, setup.softening), &setup);
        let [entries, points, quads] = lists(&tree, false);
        1e-9 * (self.entry * entries + self.point * points + self.quad * quads)
    }
}

/// The least processor time in nanoseconds.
fn least<T>(mut what: impl FnMut() -> T) -> f64 {
    let time = |_| {
        let start = thread_cpu();
        std::hint::black_box(what());
        thread_cpu().saturating_sub(start)
    };
    (0..TIMES).map(time).min().unwrap_or(Duration::ZERO).as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    #[test]
    fn all_costs_something() {
        let job = BarnesHut { group: 32, ..BarnesHut::default() };
        let costs = measure(&job, &generate::plummer(3000, 1));
        let Costs { point, quad, entry, body, cell, number, key } = costs;
        assert!(
            [point, quad, entry, body, cell, number, key].iter().all(|cost| *cost > 0.0),
            "{costs:?}"
        );
    }
}
