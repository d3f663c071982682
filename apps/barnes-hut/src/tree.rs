//! The octree over Morton-sorted bodies, and the groups of bodies that share one list of interactions.
//!
//! Lengths are in sides of the box, masses in mass units (see [`crate::shared`]). Building is a pure function of the
//! shared objects, so every node has the same cells, groups and bits. Knows nothing of how forces are computed.

use std::ops::Range;

use crate::options::Order;
use crate::shared::{Positions, Setup};

/// Bits of a Morton key per axis, and so the deepest level of the tree.
const LEVELS: u32 = 21;

/// A cube of the octree with at least one body. Cells lie in depth-first order; one with a single child cell is left out in
/// favour of that child, so a cell is the smallest cube of the grid around its bodies.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Centre of mass.
    pub com: [f64; 3],
    /// The cell is a far one where the square of the distance is above this: the square of size / theta.
    pub open_below: f64,
    /// Sum of masses.
    pub mass: f64,
    /// Its bodies.
    pub first: u32,
    /// One after the last of its bodies.
    pub end: u32,
    /// The next cell that lies outside this one; the one after this for a leaf.
    pub next: u32,
    /// Whether it is not split further.
    pub leaf: bool,
}

/// Second moments of the mass about the centre of mass: xx, yy, zz, xy, xz, yz.
pub(crate) type Moments = [f64; 6];

/// The tree of one version of the positions.
#[derive(Clone, Debug)]
pub struct Tree {
    /// For each body in the tree's order, its index in the original order.
    order: Vec<u32>,
    /// Position and mass of each body in the tree's order.
    pub(crate) points: Vec<[f32; 4]>,
    pub(crate) cells: Vec<Cell>,
    /// Second moments of each cell; empty where only monopoles are asked for.
    pub(crate) moments: Vec<Moments>,
    /// First body of each group, and the number of bodies at the end.
    groups: Vec<u32>,
    /// Square of the softening length.
    pub(crate) softening_squared: f32,
}

impl Tree {
    /// Builds the tree. Bodies beyond the shorter of the two objects are left out; [`Positions::tree`] refuses that.
    pub(crate) fn build(positions: &Positions, setup: &Setup) -> Self {
        Self::build_in_stages(positions, setup, &mut |_| {})
    }

    /// The same; calls `lap` with the name of each stage when it is over.
    pub(crate) fn build_in_stages(
        positions: &Positions,
        setup: &Setup,
        lap: &mut dyn FnMut(&'static str),
    ) -> Self {
        let inside = positions.inside();
        let masses = setup.masses();
        let sorted = sort(inside.iter().zip(&masses).map(|(p, _)| morton(*p)).collect());
        let mut points = Vec::with_capacity(sorted.len());
        let mut order = Vec::with_capacity(sorted.len());
        for &(_, i) in &sorted {
            let [x, y, z] = inside[i as usize];
            points.push([x, y, z, masses[i as usize]]);
            order.push(i);
        }
        lap("sort");
        let softening = setup.softening / positions.side();
        let mut builder = Builder {
            keys: &sorted,
            theta: setup.theta,
            leaf: setup.leaf.max(1) as usize,
            group: setup.group.max(1) as usize,
            quad: setup.order == Order::Quad,
            tree: Tree {
                order,
                points,
                cells: Vec::new(),
                moments: Vec::new(),
                groups: Vec::new(),
                softening_squared: (softening * softening) as f32,
            },
        };
        if !sorted.is_empty() {
            builder.cell(0..sorted.len(), false);
        }
        let mut tree = builder.tree;
        tree.groups.push(sorted.len() as u32);
        lap("tree");
        tree
    }

    /// Number of groups; tasks are ranges of them.
    pub fn groups(&self) -> usize {
        self.groups.len() - 1
    }

    /// The bodies of these groups, in the tree's order.
    ///
    /// # Panics
    /// If the range does not lie within the tree's groups.
    pub fn bodies(&self, groups: Range<usize>) -> Range<usize> {
        self.groups[groups.start] as usize..self.groups[groups.end] as usize
    }

    /// Where to split a range of at least two groups so that both sides have about half of the bodies: neither is empty.
    pub fn middle(&self, groups: Range<usize>) -> usize {
        let bodies = self.bodies(groups.clone());
        let half = (bodies.start + bodies.len() / 2) as u32;
        let cut = groups.start + self.groups[groups.clone()].partition_point(|&first| first < half);
        cut.clamp(groups.start + 1, groups.end - 1)
    }

    /// For each body in the tree's order, its index in the original order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }
}

struct Builder<'a> {
    keys: &'a [(u64, u32)],
    theta: f64,
    leaf: usize,
    group: usize,
    quad: bool,
    tree: Tree,
}

impl Builder<'_> {
    /// Adds the cell of these bodies (at least one) and all below it; returns its index. Its depth is at most [`LEVELS`], for
    /// each call fixes at least one more level.
    fn cell(&mut self, bodies: Range<usize>, grouped: bool) -> usize {
        let differing = self.keys[bodies.start].0 ^ self.keys[bodies.end - 1].0;
        // Levels on which all keys agree, from the top; keys fill the low 63 bits.
        let level = ((differing.leading_zeros() - 1) / 3).min(LEVELS);
        let leaf = bodies.len() <= self.leaf || level == LEVELS;

        let mut below_group = grouped;
        if !grouped && (leaf || bodies.len() <= self.group) {
            // A leaf may hold more than a group's bodies: any number may share one point.
            self.tree.groups.extend(bodies.clone().step_by(self.group).map(|first| first as u32));
            below_group = true;
        }

        let index = self.tree.cells.len();
        let size = f64::from_bits(u64::from(1023 - level) << 52);
        let open_below =
            if self.theta > 0.0 { size / self.theta * (size / self.theta) } else { f64::INFINITY };
        self.tree.cells.push(Cell {
            com: [0.0; 3],
            open_below,
            mass: 0.0,
            first: bodies.start as u32,
            end: bodies.end as u32,
            next: 0,
            leaf,
        });
        if self.quad {
            self.tree.moments.push([0.0; 6]);
        }

        if leaf {
            let wide = |p: &[f32; 4]| (p.map(f64::from), [0.0; 6]);
            let parts: Vec<_> = self.tree.points[bodies].iter().map(wide).collect();
            self.sum_up(index, &parts);
        } else {
            let shift = 3 * (LEVELS - 1 - level);
            let mut parts = [([0.0; 4], [0.0; 6]); 8];
            let mut count = 0;
            let mut start = bodies.start;
            while start < bodies.end {
                let octant = self.keys[start].0 >> shift;
                let rest = &self.keys[start..bodies.end];
                let end = start + rest.partition_point(|key| key.0 >> shift <= octant);
                let child = self.cell(start..end, below_group);
                let cell = &self.tree.cells[child];
                let [x, y, z] = cell.com;
                let moments = if self.quad { self.tree.moments[child] } else { [0.0; 6] };
                parts[count] = ([x, y, z, cell.mass], moments);
                count += 1;
                start = end;
            }
            self.sum_up(index, &parts[..count]);
        }
        self.tree.cells[index].next = self.tree.cells.len() as u32;
        index
    }

    /// Sets a cell's mass, centre and moments from those of its parts, each a point with moments about it.
    fn sum_up(&mut self, index: usize, parts: &[([f64; 4], Moments)]) {
        let mut mass = 0.0;
        let mut com = [0.0; 3];
        for ([x, y, z, m], _) in parts {
            mass += m;
            com = [com[0] + m * x, com[1] + m * y, com[2] + m * z];
        }
        if mass > 0.0 {
            com = com.map(|c| c / mass);
        }
        self.tree.cells[index].mass = mass;
        self.tree.cells[index].com = com;
        if self.quad {
            let mut sum = [0.0; 6];
            for ([px, py, pz, m], moments) in parts {
                let [x, y, z] = [px - com[0], py - com[1], pz - com[2]];
                let products = [x * x, y * y, z * z, x * y, x * z, y * z];
                for k in 0..6 {
                    sum[k] += moments[k] + m * products[k];
                }
            }
            self.tree.moments[index] = sum;
        }
    }
}

/// The Morton key of a position within half a side of the middle: bits of x, y and z in turn, x highest.
fn morton(position: [f32; 3]) -> u64 {
    let mut key = 0;
    for (axis, c) in position.into_iter().enumerate() {
        // The cast saturates, so that no input leaves the grid.
        let cell = ((f64::from(c) + 0.5) * f64::from(1u32 << LEVELS)) as u32;
        key |= spread(cell.min((1 << LEVELS) - 1)) << (2 - axis);
    }
    key
}

/// Moves bit i of a 21-bit number to bit 3 i.
fn spread(bits: u32) -> u64 {
    let mut x = u64::from(bits);
    x = (x | x << 32) & 0x001f_0000_0000_ffff;
    x = (x | x << 16) & 0x001f_0000_ff00_00ff;
    x = (x | x << 8) & 0x100f_00f0_0f00_f00f;
    x = (x | x << 4) & 0x10c3_0c30_c30c_30c3;
    (x | x << 2) & 0x1249_2492_4924_9249
}

/// Sorts keys, equal ones by index: a radix sort from the lowest digit, which keeps the order of equals.
fn sort(keys: Vec<u64>) -> Vec<(u64, u32)> {
    const BITS: u32 = 11;
    const BUCKETS: usize = 1 << BITS;
    let mut from: Vec<(u64, u32)> = keys.into_iter().zip(0..).collect();
    if from.len() < BUCKETS {
        from.sort_unstable();
        return from;
    }
    let mut to = from.clone();
    for shift in (0..3 * LEVELS).step_by(BITS as usize) {
        let bucket = |key: u64| (key >> shift) as usize & (BUCKETS - 1);
        let mut starts = [0u32; BUCKETS];
        for &(key, _) in &from {
            starts[bucket(key)] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += std::mem::replace(start, sum);
        }
        for &(key, index) in &from {
            let start = &mut starts[bucket(key)];
            to[*start as usize] = (key, index);
            *start += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bodies::Bodies;
    use crate::generate;
    use crate::shared::Accuracy;

    fn tree(bodies: &Bodies, leaf: u32, group: u32) -> Tree {
        let accuracy = Accuracy { order: Order::Quad, theta: 0.7, softening: 0.01, leaf, group };
        Tree::build(&Positions::new(&bodies.position, 0.01), &Setup::new(bodies, accuracy))
    }

    #[test]
    fn spreading_puts_each_bit_at_three_times_its_place() {
        for bit in 0..LEVELS {
            assert_eq!(spread(1 << bit), 1 << (3 * bit));
        }
        assert_eq!(morton([-0.5, -0.5, -0.5]), 0);
        assert_eq!(morton([0.5, 0.5, 0.5]), (1 << 63) - 1);
        assert_eq!(morton([0.0, -0.5, -0.5]), 1 << 62);
        assert_eq!(
            morton([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
            spread((1 << 21) - 1) << 1
        );
    }

    /// What must hold for every tree.
    fn check(tree: &Tree, bodies: usize, leaf: u32, group: u32) {
        let mut seen = tree.order().to_vec();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..bodies as u32), "each body once");
        assert_eq!(tree.bodies(0..tree.groups()), 0..bodies);
        for g in 0..tree.groups() {
            let count = tree.bodies(g..g + 1).len();
            assert!(count >= 1 && count <= group as usize, "group {g} has {count} bodies");
        }
        for (i, cell) in tree.cells.iter().enumerate() {
            let points = &tree.points[cell.first as usize..cell.end as usize];
            let mass: f64 = points.iter().map(|p| f64::from(p[3])).sum();
            assert!((mass - cell.mass).abs() <= 1e-12 * mass, "cell {i}");
            assert!(cell.next as usize > i && cell.next as usize <= tree.cells.len());
            let size = cell.open_below.sqrt() * 0.7;
            for axis in 0..3 {
                let low = points.iter().map(|p| p[axis]).fold(f32::INFINITY, f32::min);
                let high = points.iter().map(|p| p[axis]).fold(f32::NEG_INFINITY, f32::max);
                assert!(f64::from(high - low) <= size * 1.000001, "cell {i} is {size}");
            }
            if cell.leaf {
                assert_eq!(cell.next as usize, i + 1);
                assert!(points.len() <= leaf as usize || size <= 1e-6, "cell {i}");
            } else {
                let mut end = cell.first;
                let mut child = i as u32 + 1;
                while child < cell.next {
                    assert_eq!(tree.cells[child as usize].first, end);
                    end = tree.cells[child as usize].end;
                    child = tree.cells[child as usize].next;
                }
                assert_eq!(end, cell.end, "children of cell {i} hold its bodies");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_tree_holds_together(
            n in 1usize..6000, seed in any::<u64>(), leaf in 1u32..40, group in 1u32..300, same in 0usize..50,
        ) {
            let mut bodies = generate::plummer(n, seed);
            for i in 0..same.min(n) {
                bodies.position[i] = bodies.position[n - 1];
            }
            check(&tree(&bodies, leaf, group), n, leaf, group);
        }

        #[test]
        fn splitting_leaves_no_side_empty(seed in any::<u64>(), a in 0usize..1000, b in 0usize..1000) {
            let tree = tree(&generate::plummer(3000, seed), 8, 64);
            let (a, b) = (a % tree.groups(), b % tree.groups());
            let (first, last) = (a.min(b), a.max(b) + 1);
            if last - first >= 2 {
                let middle = tree.middle(first..last);
                prop_assert!(first < middle && middle < last);
            }
        }
    }

    #[test]
    fn moments_are_those_of_the_bodies() {
        let tree = tree(&generate::plummer(500, 3), 4, 32);
        for (cell, moments) in tree.cells.iter().zip(&tree.moments) {
            let mut direct = [0.0; 6];
            for p in &tree.points[cell.first as usize..cell.end as usize] {
                let d = [0, 1, 2].map(|k| f64::from(p[k]) - cell.com[k]);
                let m = f64::from(p[3]);
                let pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)];
                for (k, (i, j)) in pairs.into_iter().enumerate() {
                    direct[k] += m * d[i] * d[j];
                }
            }
            for k in 0..6 {
                assert!((direct[k] - moments[k]).abs() < 1e-14, "{direct:?} {moments:?}");
            }
        }
    }

    #[test]
    fn one_point_and_no_body() {
        let mut bodies = Bodies::default();
        check(&tree(&bodies, 16, 64), 0, 16, 64);
        for _ in 0..200 {
            bodies.push([3.0, 4.0, 5.0], [0.0; 3], 1.0);
        }
        check(&tree(&bodies, 16, 64), 200, 16, 64);
    }
}
