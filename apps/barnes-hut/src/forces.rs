//! Forces on groups of bodies: one list of interactions a group, in single precision relative to the group's middle.
//!
//! A cell is far from a group when its size is less than theta times the distance from its centre of mass to the nearest point
//! of the box around the group's bodies, so that the text-book criterion holds for each of them; a cell that holds bodies
//! of the group is never far, whatever theta. What comes out for a group depends on the tree alone: its list has the tree's
//! order, sums within a chunk of the list are in single precision and across chunks in double.
//!
//! Knows nothing of tasks. Source of the scheme: J. E. Barnes, J. Comput. Phys. 87, 161 (1990); of the quadrupole of a
//! softened point: the second term of the Taylor series of 1 / sqrt(d^2 + eps^2), trace included.

use std::ops::Range;

use crate::kernel::{CHUNK, Kernel, LANES, Lanes, POINT_BLIND, Quad, Sums};
use crate::tree::Tree;

/// Bytes a body in the output of [`compute`]: acceleration x, y, z and potential as little-endian `f32`, in units of the
/// box. Single precision suffices: it is three orders finer than what theta leaves, and sums over bodies are in double.
pub const BYTES_A_BODY: usize = 16;

/// Forces on the bodies of these groups, [`BYTES_A_BODY`] each, in the tree's order.
///
/// # Panics
/// If the range does not lie within the tree's groups.
pub fn compute(tree: &Tree, groups: Range<usize>) -> Vec<u8> {
    compute_with(tree, groups, Kernel::best())
}

/// Forces on all bodies: what one thread does alone.
pub fn all(tree: &Tree) -> Vec<u8> {
    compute(tree, 0..tree.groups())
}

pub(crate) fn compute_with(tree: &Tree, groups: Range<usize>, kernel: Kernel) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tree.bodies(groups.clone()).len() * BYTES_A_BODY);
    let mut lists = Lists::default();
    for group in groups {
        lists.one_group(tree, tree.bodies(group..group + 1), kernel, &mut bytes);
    }
    bytes
}

/// Lists of one group; kept from group to group for their memory.
#[derive(Default)]
struct Lists {
    /// Bodies and cells that act as points: position relative to the group's middle, and mass.
    points: Vec<[f32; 4]>,
    /// Far cells with their second moments.
    quads: Vec<Quad>,
    /// The group's bodies, relative to its middle, padded to whole lanes.
    sinks: Vec<Lanes>,
    /// What they feel.
    sums: Vec<Sums>,
}

impl Lists {
    fn one_group(&mut self, tree: &Tree, bodies: Range<usize>, kernel: Kernel, out: &mut Vec<u8>) {
        let members = &tree.points[bodies.clone()];
        let mut low = [f32::INFINITY; 3];
        let mut high = [f32::NEG_INFINITY; 3];
        for p in members {
            for axis in 0..3 {
                low[axis] = low[axis].min(p[axis]);
                high[axis] = high[axis].max(p[axis]);
            }
        }
        let middle = [0, 1, 2].map(|axis| 0.5 * (low[axis] + high[axis]));

        self.sinks.clear();
        for chunk in members.chunks(LANES) {
            let mut lanes = [[0.0; LANES]; 3];
            for (i, p) in chunk.iter().enumerate() {
                for axis in 0..3 {
                    lanes[axis][i] = p[axis] - middle[axis];
                }
            }
            self.sinks.push(lanes);
        }
        self.walk(tree, &bodies, low.map(f64::from), high.map(f64::from), middle);

        self.sums.clear();
        self.sums.resize(self.sinks.len(), [[0.0; LANES]; 4]);
        let eps = tree.softening_squared;
        for chunk in self.points.chunks(CHUNK) {
            kernel.points(chunk, &self.sinks, eps, &mut self.sums);
        }
        for chunk in self.quads.chunks(CHUNK / 4) {
            kernel.quads(chunk, &self.sinks, eps, &mut self.sums);
        }

        // A body is in its own list: it does not pull itself, but its own potential has to go again.
        let own = if eps * eps.sqrt() > POINT_BLIND { 1.0 / f64::from(eps).sqrt() } else { 0.0 };
        for (i, p) in members.iter().enumerate() {
            let sum = &self.sums[i / LANES];
            let lane = i % LANES;
            for component in &sum[..3] {
                out.extend_from_slice(&(component[lane] as f32).to_le_bytes());
            }
            let potential = sum[3][lane] + f64::from(p[3]) * own;
            out.extend_from_slice(&(potential as f32).to_le_bytes());
        }
    }

    /// Fills the lists, walking the tree once in its order.
    fn walk(
        &mut self,
        tree: &Tree,
        bodies: &Range<usize>,
        low: [f64; 3],
        high: [f64; 3],
        middle: [f32; 3],
    ) {
        self.points.clear();
        self.quads.clear();
        let origin = middle.map(f64::from);
        let mut at = 0;
        while let Some(cell) = tree.cells.get(at) {
            if cell.mass <= 0.0 {
                at = cell.next as usize;
                continue;
            }
            let outside = cell.end as usize <= bodies.start || cell.first as usize >= bodies.end;
            let mut distance = 0.0;
            for axis in 0..3 {
                let c = cell.com[axis];
                let d = (low[axis] - c).max(c - high[axis]).max(0.0);
                distance += d * d;
            }
            if outside && distance > cell.open_below {
                let [x, y, z] = [0, 1, 2].map(|axis| (cell.com[axis] - origin[axis]) as f32);
                let mass = cell.mass as f32;
                match tree.moments.get(at) {
                    Some(moments) if cell.end - cell.first > 1 => {
                        self.quads.push(Quad::new([x, y, z], mass, moments));
                    }
                    _ => self.points.push([x, y, z, mass]),
                }
                at = cell.next as usize;
            } else if cell.leaf {
                for p in &tree.points[cell.first as usize..cell.end as usize] {
                    self.points.push([p[0] - middle[0], p[1] - middle[1], p[2] - middle[2], p[3]]);
                }
                at = cell.next as usize;
            } else {
                at += 1;
            }
        }
    }
}
