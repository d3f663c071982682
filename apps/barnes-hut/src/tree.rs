//! The octree over Morton-sorted bodies, and the groups of bodies that share one list of interactions.
//!
//! Lengths are in sides of the box, masses in mass units (see [`crate::shared`]). Building is a pure function of the
//! shared objects, so every node has the same cells, groups and bits. Knows nothing of how forces are computed.

use std::ops::Range;

use crate::kernel::{Balls, LANES, Quad};
use crate::options::Order;
use crate::shared::{Positions, Setup};

/// Bits of a Morton key per axis, and so the deepest level of the tree.
pub(crate) const LEVELS: u32 = 21;

/// The cubes of the octree with at least one body, level by level, so that the children of one lie side by side in the
/// order of their bodies; the root comes first. A cube with a single child is left out in favour of that child, so a cell
/// is the smallest cube of the grid around its bodies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    /// Centre of mass and mass.
    pub points: Vec<[f32; 4]>,
    /// The same with second moments; empty where only monopoles are asked for.
    pub quads: Vec<Quad>,
    /// How they hang together.
    pub links: Vec<Link>,
    /// The centres of mass again, a column for each axis, and beyond the last cell so many that a look at the last finds
    /// [`LANES`].
    com: [Vec<f32>; 3],
    /// The cell is a far one where the square of the distance is above this: the square of size / theta. Where an error is
    /// asked for, it is this times a scale, which depends on the acceleration there.
    open_below: Vec<f32>,
    /// And where it is above this too, which only matters where an error is asked for.
    never_below: Vec<f32>,
}

/// What lists are made of, of one cell: of its sums, and where it is far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    /// Centre of mass and mass.
    pub point: [f32; 4],
    /// The same with second moments, where these are.
    pub quad: Option<Quad>,
    /// The squares of the distances from which it is far: one to be multiplied by a scale, and the least.
    pub far: [f32; 2],
}

/// How a cell hangs together with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Its bodies.
    pub first: u32,
    /// One after the last of its bodies.
    pub end: u32,
    /// Its first child.
    pub child: u32,
    /// How many children it has; none where it is not split further.
    pub children: u32,
}

impl Link {
    pub(crate) fn bodies(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }

    pub(crate) fn children(&self) -> Range<usize> {
        self.child as usize..self.child as usize + self.children as usize
    }
}

impl Cells {
    /// The balls around centres of mass outside of which a cell is far.
    pub(crate) fn balls(&self, scale: f32) -> Balls<'_> {
        let [x, y, z] = &self.com;
        let (radius_squared, least_squared) = (&self.open_below, &self.never_below);
        Balls { middle: [x, y, z], radius_squared, least_squared, scale }
    }

    /// See [`Value`].
    pub(crate) fn value(&self, cell: usize) -> Value {
        let far = [self.open_below[cell], self.never_below[cell]];
        Value { point: self.points[cell], quad: self.quads.get(cell).copied(), far }
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.points.reserve(more);
        self.quads.reserve(more);
        self.links.reserve(more);
        self.columns().for_each(|column| column.reserve(more));
    }

    /// Makes it of no cells, and keeps the room of those that there were.
    fn clear(&mut self) {
        self.points.clear();
        self.quads.clear();
        self.links.clear();
        self.columns().for_each(Vec::clear);
    }

    /// What looks read, in columns that go beyond the last cell.
    fn columns(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.com.iter_mut().chain([&mut self.open_below, &mut self.never_below])
    }

    /// Makes of this cell the first of some others, whose bodies count from its first, and puts the rest of these behind all.
    pub(crate) fn hang(&mut self, at: usize, others: &Cells, first: u32) {
        let count = self.links.len();
        self.set_value(at, &others.value(0));
        let moved = |link: &Link| {
            // There the first is no child.
            let child = if link.children == 0 { 0 } else { count as u32 + link.child - 1 };
            Link { first: first + link.first, end: first + link.end, child, ..*link }
        };
        let mut all = others.links.iter().map(moved);
        if let Some(root) = all.next() {
            self.links[at] = root;
        }
        self.links.extend(all);
        self.points.extend_from_slice(&others.points[1..]);
        self.quads.extend_from_slice(others.quads.get(1..).unwrap_or_default());
        let end = others.links.len();
        let of_others = others.com.iter().chain([&others.open_below, &others.never_below]);
        for (column, others) in self.columns().zip(of_others) {
            column.truncate(count);
            column.extend_from_slice(&others[1..end]);
            column.resize(count + end - 1 + LANES - 1, 0.0);
        }
    }

    /// Makes a cell's value this.
    pub(crate) fn set_value(&mut self, cell: usize, value: &Value) {
        self.points[cell] = value.point;
        for (column, &c) in self.com.iter_mut().zip(&value.point) {
            column[cell] = c;
        }
        if let (Some(of), Some(quad)) = (self.quads.get_mut(cell), value.quad) {
            *of = quad;
        }
        [self.open_below[cell], self.never_below[cell]] = value.far;
    }

    /// Balls for a rough idea: sizes of cells alone matter.
    pub(crate) fn rough_balls(&self) -> Balls<'_> {
        self.balls(0.0)
    }
}

/// Second moments of the mass about the centre of mass: xx, yy, zz, xy, xz, yz.
type Moments = [f32; 6];

/// The tree of one version of the positions.
#[derive(Clone, Debug)]
pub struct Tree {
    /// For each body in the tree's order, its index in the original order.
    order: Vec<u32>,
    /// Position and mass of each body in the tree's order.
    pub(crate) points: Vec<[f32; 4]>,
    pub(crate) cells: Cells,
    /// First body of each group, and the number of bodies at the end.
    groups: Vec<u32>,
    /// First body of each block, which is a number of groups that lie together, and the number of bodies at the end.
    blocks: Vec<u32>,
    /// Square of the softening length.
    pub(crate) softening_squared: f32,
    /// Opening angle, where no error is asked for.
    pub(crate) theta: f64,
    /// The part of the acceleration that one far cell may be wrong by, where that decides what is far.
    pub(crate) error: Option<f64>,
    pub(crate) order_of_cells: Order,
    /// Where this is a part of a tree: what is there of it.
    pub(crate) part: Option<Part>,
}

/// What is there of a tree whose bodies lie on several nodes (see [`crate::partial`]). Bodies are numbered as in the whole
/// tree; `points` has some of them.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The first of the bodies that `groups` and `blocks` tell of; `points` begins with these.
    pub first: usize,
    /// Of each cell that has bodies in `points`, where they begin there; of others [`ABSENT`].
    pub stored: Vec<u32>,
}

/// See [`Part`].
pub(crate) const ABSENT: u32 = u32::MAX;

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
        let Builder { mut cells, levels, mut groups, mut blocks, .. } =
            Builder::build(&sorted, setup);
        groups.push(sorted.len() as u32);
        blocks.push(sorted.len() as u32);
        lap("tree");
        drop(sorted);
        cells.sum_up(&points, &levels, setup);
        lap("moments");
        let made = (cells, points, None);
        Self { order, ..Self::of(setup, positions.side(), made, (groups, blocks)) }
    }

    /// A tree of these cells and points, the whole or a part; the bodies that groups and blocks tell of lie first in `points`. Whom
    /// they are in another order it does not know.
    pub(crate) fn of(
        setup: &Setup,
        side: f64,
        (cells, points, part): (Cells, Vec<[f32; 4]>, Option<Part>),
        (groups, blocks): (Vec<u32>, Vec<u32>),
    ) -> Self {
        let softening = setup.softening / side;
        let softening_squared = (softening * softening) as f32;
        let (theta, error, order_of_cells) = (setup.theta, setup.error, setup.order);
        let order = Vec::new();
        Self {
            order,
            points,
            cells,
            groups,
            blocks,
            softening_squared,
            theta,
            error,
            order_of_cells,
            part,
        }
    }

    /// What is left of it is room for the cells and points of another, and where these are stored.
    pub(crate) fn into_room(self) -> (Cells, Vec<[f32; 4]>, Vec<u32>) {
        let Self { mut cells, mut points, part, .. } = self;
        let mut stored = part.map(|part| part.stored).unwrap_or_default();
        cells.clear();
        points.clear();
        stored.clear();
        (cells, points, stored)
    }

    /// Position and mass of bodies in the tree's groups.
    pub(crate) fn own(&self, bodies: Range<usize>) -> &[[f32; 4]] {
        let first = self.part.as_ref().map_or(0, |part| part.first);
        &self.points[bodies.start - first..bodies.end - first]
    }

    /// Position and mass of a cell's bodies, if they are there.
    pub(crate) fn stored(&self, cell: usize) -> Option<&[[f32; 4]]> {
        let bodies = self.cells.links[cell].bodies();
        match &self.part {
            None => Some(&self.points[bodies]),
            Some(part) if part.stored[cell] == ABSENT => None,
            Some(part) => {
                let first = part.stored[cell] as usize;
                Some(&self.points[first..first + bodies.len()])
            }
        }
    }

    /// Whether a cell cannot be opened, for it is one of a part that has not what is in it.
    pub(crate) fn is_absent(&self, cell: usize) -> bool {
        let stored = self.part.as_ref().map(|part| part.stored[cell]);
        stored == Some(ABSENT) && self.cells.links[cell].children == 0
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

    /// The groups that lie within these bodies.
    pub(crate) fn groups_of(&self, bodies: Range<usize>) -> Range<usize> {
        let firsts = &self.groups[..self.groups()];
        let at = |body: usize| firsts.partition_point(|&first| (first as usize) < body);
        at(bodies.start)..at(bodies.end)
    }

    /// The bodies of the block that this body's group belongs to.
    pub(crate) fn block(&self, body: usize) -> Range<usize> {
        let after = self.blocks.partition_point(|&first| first as usize <= body);
        self.blocks[after - 1] as usize..self.blocks[after] as usize
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

/// Groups of a block have up to this many times the bodies that one group may have.
pub(crate) const GROUPS_A_BLOCK: usize = 16;

/// On how many levels, from the top, two keys agree that differ in these bits; keys fill the low 63.
pub(crate) fn agreeing(differing: u64) -> u32 {
    ((differing.leading_zeros() - 1) / 3).min(LEVELS)
}

/// Makes cells, groups and blocks of sorted keys.
pub(crate) struct Builder<'a> {
    keys: &'a [(u64, u32)],
    leaf: usize,
    group: usize,
    pub cells: Cells,
    /// Of each cell.
    pub levels: Vec<u8>,
    /// First body of each.
    pub groups: Vec<u32>,
    /// First body of each.
    pub blocks: Vec<u32>,
}

impl<'a> Builder<'a> {
    /// Splits the cell that holds these keys, sorted, with their bodies.
    pub(crate) fn build(keys: &'a [(u64, u32)], setup: &Setup) -> Self {
        let mut builder = Self {
            keys,
            leaf: setup.leaf.max(1) as usize,
            group: setup.group.max(1) as usize,
            cells: Cells::default(),
            levels: Vec::new(),
            groups: Vec::new(),
            blocks: Vec::new(),
        };
        builder.split();
        builder.groups.sort_unstable();
        builder.blocks.sort_unstable();
        builder
    }

    /// Makes all cells, groups and blocks. No cell is deeper than [`LEVELS`], for each split fixes at least one more level.
    fn split(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        self.add(0..self.keys.len(), usize::MAX);
        let mut at = 0;
        while at < self.levels.len() {
            let bodies = self.cells.links[at].bodies();
            let level = u32::from(self.levels[at]);
            let child = self.levels.len();
            if bodies.len() > self.leaf && level < LEVELS {
                let shift = 3 * (LEVELS - 1 - level);
                let mut start = bodies.start;
                while start < bodies.end {
                    let octant = self.keys[start].0 >> shift;
                    let rest = &self.keys[start..bodies.end];
                    let end = start + rest.partition_point(|key| key.0 >> shift <= octant);
                    self.add(start..end, bodies.len());
                    start = end;
                }
            }
            let link = &mut self.cells.links[at];
            link.child = child as u32;
            link.children = (self.levels.len() - child) as u32;
            at += 1;
        }
    }

    /// Adds the cell of these bodies (at least one), whose parent has `above`.
    fn add(&mut self, bodies: Range<usize>, above: usize) {
        let differing = self.keys[bodies.start].0 ^ self.keys[bodies.end - 1].0;
        let level = agreeing(differing);
        let whole = bodies.len() <= self.leaf || level == LEVELS;
        let cut = |most: usize, firsts: &mut Vec<u32>| {
            // The first on the way down that is small enough, or is not split further. A leaf may hold more than a group's
            // bodies: any number may share one point.
            if above > most && (whole || bodies.len() <= most) {
                firsts.extend(bodies.clone().step_by(most).map(|first| first as u32));
            }
        };
        cut(self.group, &mut self.groups);
        cut(self.group * GROUPS_A_BLOCK, &mut self.blocks);
        self.levels.push(level as u8);
        let (first, end) = (bodies.start as u32, bodies.end as u32);
        self.cells.links.push(Link { first, end, child: 0, children: 0 });
    }
}

/// Sums over the bodies of each of some cells, from which all else about a cell follows. Summed up in double precision, and
/// rounded in each cell: so little has to be told of a cell from which those above it follow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    /// Centre of mass and mass.
    points: Vec<[f32; 4]>,
    /// Sums of mass times the square of the distance from the centre of mass, where an error is asked for.
    spreads: Vec<f32>,
    /// Where quadrupoles are.
    moments: Vec<Moments>,
    /// Least and greatest coordinates of the bodies, where these may have left their cubes.
    extents: Vec<[[f32; 3]; 2]>,
}

impl Sums {
    /// Of so many cells, all zero. `moved`: bodies may have left their cubes.
    pub(crate) fn new(count: usize, setup: &Setup, moved: bool) -> Self {
        let quad = setup.order != Order::Mono;
        Self {
            points: vec![[0.0; 4]; count],
            spreads: vec![0.0; if setup.error.is_some() { count } else { 0 }],
            moments: vec![[0.0; 6]; if quad { count } else { 0 }],
            extents: vec![
                [[f32::INFINITY; 3], [f32::NEG_INFINITY; 3]];
                if moved { count } else { 0 }
            ],
        }
    }

    /// Of so many bodies in a row each, which may have left their cubes.
    pub(crate) fn of_bodies(
        counts: impl ExactSizeIterator<Item = usize>,
        points: &[[f32; 4]],
        setup: &Setup,
    ) -> Self {
        let mut sums = Self::new(counts.len(), setup, true);
        let mut rest = points;
        for (at, count) in counts.enumerate() {
            let (bodies, others) = rest.split_at(count);
            sums.sum(at, 0..0, bodies);
            rest = others;
        }
        sums
    }

    /// Sums up a cell from its children, which have been, or if it has none from its bodies.
    pub(crate) fn sum(&mut self, at: usize, children: Range<usize>, bodies: &[[f32; 4]]) {
        let mut mass = 0.0;
        let mut com = [0.0; 3];
        let mut add = |[x, y, z, m]: [f64; 4]| {
            mass += m;
            com = [com[0] + m * x, com[1] + m * y, com[2] + m * z];
        };
        if children.is_empty() {
            bodies.iter().for_each(|p| add(p.map(f64::from)));
        } else {
            self.points[children.clone()].iter().for_each(|p| add(p.map(f64::from)));
        }
        if mass > 0.0 {
            com = com.map(|c| c / mass);
        }
        self.points[at] = [com[0], com[1], com[2], mass].map(|sum| sum as f32);
        // About the place that others are told of.
        com = [0, 1, 2].map(|axis| f64::from(self.points[at][axis]));
        if !self.spreads.is_empty() {
            let away = |p: [f32; 4]| {
                let [x, y, z, m] = p.map(f64::from);
                let [x, y, z] = [x - com[0], y - com[1], z - com[2]];
                m * (x * x + y * y + z * z)
            };
            let sum: f64 = if children.is_empty() {
                bodies.iter().map(|p| away(*p)).sum()
            } else {
                let of = |child| f64::from(self.spreads[child]) + away(self.points[child]);
                children.clone().map(of).sum()
            };
            self.spreads[at] = sum as f32;
        }
        if !self.moments.is_empty() {
            let mut sum = [0.0; 6];
            let mut add = |p: [f32; 4], moments: &Moments| {
                let [px, py, pz, m] = p.map(f64::from);
                let [x, y, z] = [px - com[0], py - com[1], pz - com[2]];
                let products = [x * x, y * y, z * z, x * y, x * z, y * z];
                for k in 0..6 {
                    sum[k] += f64::from(moments[k]) + m * products[k];
                }
            };
            if children.is_empty() {
                bodies.iter().for_each(|p| add(*p, &[0.0; 6]));
            } else {
                let children = children.clone();
                children.for_each(|child| add(self.points[child], &self.moments[child]));
            }
            self.moments[at] = sum.map(|sum| sum as f32);
        }
        if !self.extents.is_empty() {
            let [mut low, mut high] = self.extents[at];
            let mut add = |from: [f32; 3], to: [f32; 3]| {
                low = [0, 1, 2].map(|k| low[k].min(from[k]));
                high = [0, 1, 2].map(|k| high[k].max(to[k]));
            };
            if children.is_empty() {
                bodies.iter().for_each(|&[x, y, z, _]| add([x, y, z], [x, y, z]));
            } else {
                self.extents[children].iter().for_each(|&[from, to]| add(from, to));
            }
            self.extents[at] = [low, high];
        }
    }

    /// Takes over one of another's cells, which has the same kinds of sums.
    pub(crate) fn copy(&mut self, at: usize, from: &Self, other: usize) {
        self.points[at] = from.points[other];
        if !self.spreads.is_empty() {
            self.spreads[at] = from.spreads[other];
        }
        if !self.moments.is_empty() {
            self.moments[at] = from.moments[other];
        }
        if !self.extents.is_empty() {
            self.extents[at] = from.extents[other];
        }
    }

    /// Numbers of a cell, for each whether any of its lowest bits are always zero: none are.
    pub(crate) fn columns(&self) -> &'static [u32] {
        const MOST: usize = 4 + 1 + 6 + 6;
        let some = [!self.spreads.is_empty(), !self.moments.is_empty(), !self.extents.is_empty()];
        let more: usize =
            some.into_iter().zip([1, 6, 6]).map(|(is, of)| usize::from(is) * of).sum();
        &[0; MOST][..4 + more]
    }

    /// A cell's numbers: always as many for sums of the same kinds.
    pub(crate) fn row(&self, at: usize, to: &mut Vec<f32>) {
        to.extend(self.points[at]);
        to.extend(self.spreads.get(at));
        to.extend(self.moments.get(at).into_iter().flatten());
        to.extend(self.extents.get(at).into_iter().flatten().flatten());
    }

    /// The numbers of all cells: see [`Sums::row`].
    pub(crate) fn rows(&self) -> Vec<f32> {
        let mut rows = Vec::new();
        (0..self.points.len()).for_each(|at| self.row(at, &mut rows));
        rows
    }

    /// So many cells whose bodies may have left their cubes, from [`Sums::rows`]; nothing if these are others' numbers.
    pub(crate) fn of_rows(count: usize, rows: &[f32], setup: &Setup) -> Option<Self> {
        let mut sums = Self::new(count, setup, true);
        let columns = sums.columns().len();
        for (at, row) in rows.chunks(columns).enumerate().take(count) {
            sums.set_row(at, row);
        }
        (rows.len() == count * columns).then_some(sums)
    }

    /// Takes over the numbers of a cell from [`Sums::row`].
    pub(crate) fn set_row(&mut self, at: usize, row: &[f32]) {
        let all = self.points[at].iter_mut().chain(self.spreads.get_mut(at));
        let all = all.chain(self.moments.get_mut(at).into_iter().flatten());
        let all = all.chain(self.extents.get_mut(at).into_iter().flatten().flatten());
        all.zip(row).for_each(|(of, number)| *of = *number);
    }

    /// The side of the cube that a cell counts as having: of its level or, where its bodies may have moved, what holds them.
    fn size(&self, at: usize, level: u8) -> f64 {
        let side = f64::from_bits((1023 - u64::from(level)) << 52);
        let Some([low, high]) = self.extents.get(at) else { return side };
        let extent = |axis: usize| f64::from(high[axis]) - f64::from(low[axis]);
        (0..3).map(extent).fold(side, f64::max)
    }
}

impl Cells {
    /// Sets masses, centres and moments, from the last cell, which is deepest, to the first; and where cells are far.
    fn sum_up(&mut self, points: &[[f32; 4]], levels: &[u8], setup: &Setup) {
        let mut sums = Sums::new(levels.len(), setup, false);
        for at in (0..levels.len()).rev() {
            sums.sum(at, self.links[at].children(), &points[self.links[at].bodies()]);
        }
        self.follow(&sums, levels, setup);
    }

    /// Sets what follows from sums and levels.
    pub(crate) fn follow(&mut self, sums: &Sums, levels: &[u8], setup: &Setup) {
        let (theta, quad) = (setup.theta, setup.order != Order::Mono);
        let count = levels.len();
        let padded = count + LANES - 1;
        for (axis, column) in self.com.iter_mut().enumerate() {
            column.clear();
            column.extend(sums.points.iter().map(|sum| sum[axis]));
            column.resize(padded, 0.0);
        }
        self.points.clone_from(&sums.points);
        let quad_of = |(&[x, y, z, m], moments): (&[f32; 4], &Moments)| {
            Quad::new([x, y, z], m, &moments.map(f64::from))
        };
        self.quads.clear();
        self.quads.extend(self.points.iter().zip(&sums.moments).map(quad_of));
        let sizes = levels.iter().enumerate().map(|(at, &level)| sums.size(at, level));
        let far = |theta: f64| {
            let ratio = move |size: f64| if theta > 0.0 { size / theta } else { f64::INFINITY };
            move |size| not_below((ratio(size) * ratio(size)) as f32)
        };
        self.open_below.clear();
        self.never_below.clear();
        if setup.error.is_some() {
            let reach = |(sum, &spread): (&[f32; 4], &f32)| {
                not_below(reach(sum[3].into(), spread.into(), quad) as f32)
            };
            self.open_below.extend(sums.points.iter().zip(&sums.spreads).map(reach));
            self.never_below.extend(sizes.map(far(WIDEST)));
        } else {
            self.open_below.extend(sizes.map(far(theta)));
        }
        self.open_below.resize(padded, 0.0);
        self.never_below.resize(padded, 0.0);
    }
}

/// So many of the lowest bits are zero where it is said how far a cell has to be.
pub(crate) const FAR_ZEROS: u32 = 12;

/// This or a bit more; what is no such distance stays as it is.
fn not_below(square: f32) -> f32 {
    let bits = square.to_bits();
    let up = if square.is_finite() && square >= 0.0 { (1 << FAR_ZEROS) - 1 } else { 0 };
    f32::from_bits((bits + up) >> FAR_ZEROS << FAR_ZEROS)
}

/// Where an error is asked for, no cell is far that would not be with this theta.
const WIDEST: f64 = 1.4;

/// What the square of the distance from which a cell is far is in proportion to: the first moment that is left out makes
/// an error of 3/2 S / d^4 or, after quadrupoles, about 5/2 T / d^5, where T, the sum of mass times the third power of
/// distance, is about (S^3 / M)^(1/2).
fn reach(mass: f64, spread: f64, quad: bool) -> f64 {
    if !quad {
        (1.5 * spread).sqrt()
    } else if mass > 0.0 {
        let root = fifth_root(2.5 * spread * (spread / mass).sqrt());
        root * root
    } else {
        0.0
    }
}

/// What [`reach`] is multiplied by where one cell may be wrong by `error`, an acceleration.
pub(crate) fn reach_scale(error: f64, order: Order) -> f32 {
    let root = match order {
        Order::Mono => error.sqrt(),
        Order::Quad | Order::Series => {
            let root = fifth_root(error);
            root * root
        }
    };
    // No error at all is allowed where nothing acts; finite, so that no product with zero is no number.
    if root > 1e-30 { (1.0 / root) as f32 } else { 1e30 }
}

/// The fifth root of a number that is not negative, by Newton's method from a fixed start: the same bits everywhere. That
/// of zero and of tiny numbers is zero.
fn fifth_root(x: f64) -> f64 {
    if x < 1e-200 {
        return 0.0;
    }
    // A fifth of the exponent, taken from the bits: within some 5 % of the root.
    let mut y = f64::from_bits(x.to_bits() / 5 + 0x3325_f000_0000_0000);
    for _ in 0..4 {
        let fourth = y * y * y * y;
        y -= (y * fourth - x) / (5.0 * fourth);
    }
    y
}

/// The Morton key of a position within half a side of the middle: bits of x, y and z in turn, x highest.
pub(crate) fn morton(position: [f32; 3]) -> u64 {
    let mut key = 0;
    for (axis, c) in position.into_iter().enumerate() {
        // The cast saturates, so that no input leaves the grid.
        let cell = ((f64::from(c) + 0.5) * f64::from(1u32 << LEVELS)) as u32;
        key |= spread(cell.min((1 << LEVELS) - 1)) << (2 - axis);
    }
    key
}

/// The least corner of the cube with this key, in sides from the middle.
pub(crate) fn corner(key: u64) -> [f64; 3] {
    [2, 1, 0].map(|first| {
        let cell: u64 = (0..LEVELS).map(|bit| (key >> (3 * bit + first) & 1) << bit).sum();
        cell as f64 / f64::from(1u32 << LEVELS) - 0.5
    })
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

/// Sorts keys, equal ones by index: a radix sort from the highest digit, so that all but its first pass stay within a cache.
pub(crate) fn sort(keys: Vec<u64>) -> Vec<(u64, u32)> {
    let mut pairs: Vec<(u64, u32)> = keys.into_iter().zip(0..).collect();
    let mut space = vec![(0, 0); pairs.len()];
    sort_part(&mut pairs, &mut space, false);
    pairs
}

/// Sorts these, of which equal keys are in order, with as much space beside; to be found there if `aside`.
fn sort_part(pairs: &mut [(u64, u32)], space: &mut [(u64, u32)], aside: bool) {
    /// So many are sorted by comparing them.
    const FEW: usize = 256;
    /// Buckets of the first pass and of later ones.
    const MOST: usize = 1 << 11;
    const SOME: usize = 1 << 8;
    let Some(&(first, _)) = pairs.first() else { return };
    let differing = pairs.iter().fold(0, |bits, (key, _)| bits | (key ^ first));
    if differing == 0 || pairs.len() <= FEW {
        if differing != 0 {
            pairs.sort_unstable();
        }
        if aside {
            space.copy_from_slice(pairs);
        }
        return;
    }
    let buckets = if pairs.len() > MOST * 32 { MOST } else { SOME };
    let shift = (u64::BITS - differing.leading_zeros()).saturating_sub(buckets.ilog2());
    let bucket = |key: u64| (key >> shift) as usize & (buckets - 1);
    let mut ends = [0u32; MOST];
    let ends = &mut ends[..buckets];
    for &(key, _) in pairs.iter() {
        ends[bucket(key)] += 1;
    }
    let mut sum = 0;
    for start in ends.iter_mut() {
        sum += std::mem::replace(start, sum);
    }
    for &pair in pairs.iter() {
        let end = &mut ends[bucket(pair.0)];
        space[*end as usize] = pair;
        *end += 1;
    }
    let mut start = 0;
    for &end in ends.iter() {
        let part = start..end as usize;
        if !part.is_empty() {
            sort_part(&mut space[part.clone()], &mut pairs[part], !aside);
        }
        start = end as usize;
    }
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

    proptest! {
        #[test]
        fn keys_are_sorted_and_equal_ones_keep_their_order(
            lengths in prop::collection::vec((0u32..64, 0usize..700), 0..12),
            seed in any::<u64>(),
        ) {
            // Runs of keys that differ in their lowest bits only, or in many.
            let mut next = seed;
            let mut keys = Vec::new();
            for (bits, length) in lengths {
                let run = next;
                for _ in 0..length {
                    next = next.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    keys.push((run ^ (next >> 1 >> (63 - bits))) >> 1);
                }
            }
            let mut wanted: Vec<(u64, u32)> = keys.iter().copied().zip(0..).collect();
            wanted.sort_unstable();
            prop_assert_eq!(sort(keys), wanted);
        }
    }

    #[test]
    fn fifth_roots_are_exact_to_rounding() {
        let mut x: f64 = 1e30;
        while x > 1e-190 {
            let y = fifth_root(x);
            assert!(
                (y * y * y * y * y / x - 1.0).abs() < 1e-14,
                "fifth root of {x} came out as {y}"
            );
            x *= 0.83;
        }
        assert_eq!(fifth_root(0.0), 0.0);
    }

    #[test]
    fn spreading_puts_each_bit_at_three_times_its_place() {
        for bit in 0..LEVELS {
            assert_eq!(spread(1 << bit), 1 << (3 * bit));
        }
        assert_eq!(morton([-0.5, -0.5, -0.5]), 0);
        assert_eq!(morton([0.5, 0.5, 0.5]), (1 << 63) - 1);
        assert_eq!(morton([0.0, -0.5, -0.5]), 1 << 62);
        for key in [0, 1, 1 << 62, 0x0123_4567_89ab_cdef] {
            assert_eq!(morton(corner(key).map(|c| c as f32)), key);
        }
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
        let cells = &tree.cells;
        let mut children = 0;
        for i in 0..cells.links.len() {
            let own = cells.links[i].bodies();
            let points = &tree.points[own.clone()];
            let mass: f64 = points.iter().map(|p| f64::from(p[3])).sum();
            // Rounded in each cell on the way up.
            let bound = f64::from(f32::EPSILON) * f64::from(LEVELS) * mass;
            assert!((mass - f64::from(cells.points[i][3])).abs() <= bound, "cell {i}");
            let size = cells.open_below[i].sqrt() * 0.7;
            for axis in 0..3 {
                let low = points.iter().map(|p| p[axis]).fold(f32::INFINITY, f32::min);
                let high = points.iter().map(|p| p[axis]).fold(f32::NEG_INFINITY, f32::max);
                assert!(high - low <= size * 1.000001, "cell {i} is {size}");
                let com = cells.points[i][axis];
                assert_eq!(cells.com[axis][i], com);
                assert!(mass == 0.0 || (low <= com && com <= high), "cell {i}");
            }
            children += cells.links[i].children().len();
            if cells.links[i].children().is_empty() {
                assert!(points.len() <= leaf as usize || size <= 1e-6, "cell {i}");
            } else {
                let mut end = own.start;
                for child in cells.links[i].children() {
                    assert!(child > i && child < cells.links.len());
                    assert_eq!(cells.links[child].first as usize, end);
                    end = cells.links[child].end as usize;
                }
                assert_eq!(end, own.end, "children of cell {i} hold its bodies");
            }
        }
        assert_eq!(children + 1, cells.links.len().max(1), "each cell but the root is one's child");
        // Blocks are groups put together.
        let mut end = 0;
        for g in 0..tree.groups() {
            let (group, block) = (tree.bodies(g..g + 1), tree.block(tree.bodies(g..g + 1).start));
            assert!(block.start <= group.start && group.end <= block.end, "group {g}");
            assert!(block.start == end || group.start > block.start);
            end = if group.end == block.end { block.end } else { end };
        }
        assert_eq!(end, bodies, "blocks hold all bodies");
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
        for (i, quad) in tree.cells.quads.iter().enumerate() {
            let mut direct = [0.0; 6];
            for p in &tree.points[tree.cells.links[i].bodies()] {
                let d = [0, 1, 2].map(|k| f64::from(p[k]) - f64::from(tree.cells.points[i][k]));
                let m = f64::from(p[3]);
                let pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)];
                for (k, (i, j)) in pairs.into_iter().enumerate() {
                    direct[k] += m * d[i] * d[j];
                }
            }
            let moments = quad.moments();
            let trace = direct[0] + direct[1] + direct[2];
            for k in 0..6 {
                // To 14 bits.
                let bound = 2f64.powi(-14) * trace + 1e-13;
                assert!((direct[k] - moments[k]).abs() < bound, "{direct:?} {moments:?}");
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
