//! Forces on groups of bodies: one list of interactions per group, in single precision relative to
//! the group's middle.
//!
//! A cell is far from a group if its size is less than theta times a distance. This is the distance
//! from its centre of mass to the nearest point of the box around the group's bodies. So the
//! textbook criterion holds for each body. A cell that contains bodies of the group is never far,
//! for any theta.
//!
//! Neighbouring groups form a block. Cells that are far from the block's box, or near to every
//! point of it, are found once for all of its groups. The lists have the same cells, in another
//! order. The forces on a group depend on the tree alone: blocks and lists follow from it. Sums
//! within a chunk of the list are in single precision, and across chunks in double.
//!
//! With a wanted error instead of theta, a cell is far if the first omitted moment pulls by less
//! than that part of the acceleration. The acceleration in the block is estimated first (after V.
//! Springel, MNRAS 364, 1105, 2005, who takes that of the step before).
//!
//! With [`CellExpansion::Series`], sources that are far also in proportion to the size of the group
//! act on the whole group. They act by a Taylor series about its middle (see `series.rs`), the
//! others by the lists. The choice depends on the group and its lists alone.
//!
//! This module does not depend on tasks. Source of the scheme: J. E. Barnes, J. Comput. Phys. 87,
//! 161 (1990). Source of the quadrupole of a softened point: the second term of the Taylor series
//! of 1 / sqrt(d^2 + eps^2), trace included.

use std::ops::Range;

use crate::kernel::{
    Balls, CHUNK, Cuboid, Kernel, LANES, Lanes, Look, Quad, Rule, SelfPotential, SinkForces,
};
use crate::series::{self, Derivatives, Far, SeriesGroup, TERMS, quads_side_by_side};
use crate::setup::{CellExpansion, Setup};
use crate::tree::{BodyTree, Cells, reach_scale};

/// Bytes per body in the output of [`compute`]: acceleration x, y, z and potential as little-endian
/// `f32`, in units of the box.
///
/// Single precision suffices: it is three orders finer than the error of theta, and sums over
/// bodies are in double.
pub const BYTES_A_BODY: usize = 16;

/// Computes the forces on the bodies of these groups, [`BYTES_A_BODY`] each, in the tree's order.
///
/// # Panics
/// Panics if the range does not lie within the tree's groups.
pub fn compute(tree: &BodyTree, groups: Range<usize>) -> Vec<u8> {
    compute_with(tree, groups, Kernel::best(), true)
}

/// Computes forces with potentials of zero, which is cheaper.
///
/// # Panics
/// Panics if the range does not lie within the tree's groups.
pub fn accelerations(tree: &BodyTree, groups: Range<usize>) -> Vec<u8> {
    compute_with(tree, groups, Kernel::best(), false)
}

/// Decodes acceleration and potential of a body from its [`BYTES_A_BODY`].
///
/// # Panics
/// Panics if there are fewer bytes.
pub(crate) fn row(bytes: &[u8]) -> [f64; 4] {
    [0, 4, 8, 12].map(|at| {
        let bytes = bytes[at..at + 4].try_into().expect("four bytes were cut");
        f64::from(f32::from_le_bytes(bytes))
    })
}

/// Computes the forces on all bodies on this thread.
pub fn all(tree: &BodyTree) -> Vec<u8> {
    compute(tree, 0..tree.groups())
}

pub(crate) fn compute_with(
    tree: &BodyTree,
    groups: Range<usize>,
    kernel: Kernel,
    potential: bool,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tree.bodies(groups.clone()).len() * BYTES_A_BODY);
    let mut lists = Lists::new(tree, kernel, potential);
    for group in groups {
        lists.one_group(tree.bodies(group..group + 1), &mut bytes);
    }
    bytes
}

/// Computes the forces on one group; returns also the sizes of its lists of points and of
/// quadrupoles, and of its series.
pub(crate) fn one(tree: &BodyTree, group: usize) -> (Vec<u8>, [usize; 3]) {
    let mut bytes = Vec::new();
    let mut lists = Lists::new(tree, Kernel::best(), false);
    lists.one_group(tree.bodies(group..group + 1), &mut bytes);
    (bytes, [lists.sources.points.len(), lists.sources.quads.len(), lists.remote.count])
}

/// Accelerations of some bodies of a group by all bodies, each with its index in the group.
pub(crate) fn exact(tree: &BodyTree, group: usize) -> Vec<(usize, [f64; 3])> {
    let bodies = tree.bodies(group..group + 1);
    let count = bodies.len().min(LANES);
    // Evenly chosen, for errors are larger at the ends of the group.
    let some = spread(count, bodies.len());
    let middle = Extent::of(tree, bodies.clone()).middle();
    let own = tree.own(bodies);
    let sinks = side_by_side(some.clone().map(|i| &own[i]), middle);
    let mut sums = [[[0.0; LANES]; 4]];
    let rule = Rule { softening_squared: tree.softening_squared, potential: false };
    let mut near = Sources::default();
    for chunk in tree.points.chunks(CHUNK) {
        near.clear();
        near.add_points(chunk, middle);
        Kernel::best().points(&near.points, &[sinks], rule, &mut sums);
    }
    some.enumerate().map(|(lane, i)| (i, [0, 1, 2].map(|axis| sums[0][axis][lane]))).collect()
}

/// Evenly chosen indices, none of them at the ends.
pub(crate) fn spread(count: usize, all: usize) -> impl Iterator<Item = usize> + Clone {
    (0..count).map(move |i| all * (2 * i + 1) / (2 * count))
}

/// Up to [`LANES`] points, relative to the middle.
fn side_by_side<'p>(points: impl IntoIterator<Item = &'p [f32; 4]>, middle: [f32; 3]) -> Lanes {
    let mut lanes = [[0.0; LANES]; 3];
    for (lane, p) in points.into_iter().take(LANES).enumerate() {
        for (axis, column) in lanes.iter_mut().enumerate() {
            column[lane] = p[axis] - middle[axis];
        }
    }
    lanes
}

/// Consecutive bodies, and the box around them.
#[derive(Clone, Debug)]
struct Extent {
    cuboid: Cuboid,
    bodies: Range<usize>,
}

impl Extent {
    fn of(tree: &BodyTree, bodies: Range<usize>) -> Self {
        let mut low = [f32::INFINITY; 4];
        let mut high = [f32::NEG_INFINITY; 4];
        for p in tree.own(bodies.clone()) {
            for k in 0..4 {
                low[k] = if p[k] < low[k] { p[k] } else { low[k] };
                high[k] = if p[k] > high[k] { p[k] } else { high[k] };
            }
        }
        let three = |v: [f32; 4]| [v[0], v[1], v[2]];
        Self { cuboid: Cuboid { low: three(low), high: three(high) }, bodies }
    }

    fn middle(&self) -> [f32; 3] {
        [0, 1, 2].map(|axis| 0.5 * (self.cuboid.low[axis] + self.cuboid.high[axis]))
    }

    /// Whether one of the two ranges contains the other; in a tree, they are disjoint otherwise.
    fn meets(&self, others: &Range<usize>) -> bool {
        others.start < self.bodies.end && others.end > self.bodies.start
    }
}

/// Sources of forces, with places in the box's coordinates or relative to a group's middle.
#[derive(Default)]
struct Sources {
    /// Bodies and cells that act as points: position and mass.
    points: Vec<[f32; 4]>,
    /// Far cells with their second moments.
    quads: Vec<Quad>,
}

impl Sources {
    fn clear(&mut self) {
        self.points.clear();
        self.quads.clear();
    }

    fn add_cell(&mut self, cells: &Cells, cell: usize, origin: [f32; 3]) {
        let [x, y, z, mass] = cells.points[cell];
        if mass <= 0.0 {
            return;
        }
        match cells.quads.get(cell) {
            Some(quad) if cells.links[cell].bodies().len() > 1 => {
                self.quads.push(quad.seen_from(origin));
            }
            _ => self.points.push([x - origin[0], y - origin[1], z - origin[2], mass]),
        }
    }

    fn add_points(&mut self, points: &[[f32; 4]], origin: [f32; 3]) {
        let origin = [origin[0], origin[1], origin[2], 0.0];
        let moved =
            |p: &[f32; 4]| [p[0] - origin[0], p[1] - origin[1], p[2] - origin[2], p[3] - origin[3]];
        self.points.extend(points.iter().map(moved));
    }
}

/// The minimum number of bodies of a group with a series.
const SERIES_PAYS: usize = 32;

/// The part of a source's error that its Taylor series may have. Errors of cells have no common
/// sign in one direction; those of series have, and add up.
const SERIES_PART: f32 = 0.2;

/// The frame of a group's series; none if all its bodies are at one point.
fn frame(
    tree: &BodyTree,
    bodies: Range<usize>,
    middle: [f32; 3],
    allowed: f64,
) -> Option<SeriesGroup> {
    let mut most = 0f32;
    for p in tree.own(bodies) {
        let [x, y, z] = [0, 1, 2].map(|axis| p[axis] - middle[axis]);
        let square = x * x + y * y + z * z;
        most = if square > most { square } else { most };
    }
    if most < 1e-24 {
        return None;
    }
    // The negative exponent of the root: the product of both lies between one half and one.
    let unit = f32::from_bits((253 - (most.sqrt().to_bits() >> 23)) << 23);
    let square = unit * unit;
    // Without a wanted error, twice the distance that theta demands of a cell as large as the
    // group.
    let by_angle =
        if tree.error.is_some() { 2.0 } else { (4.0 / tree.theta.max(1e-3)).max(2.0) as f32 };
    Some(SeriesGroup {
        middle,
        unit,
        softening_squared: tree.softening_squared * square,
        most: most * square,
        nearest: most * square * by_angle * by_angle,
        allowed: if tree.error.is_some() { SERIES_PART * allowed as f32 / square } else { 1e20 },
    })
}

/// The sources that act on a block from a distance, for the series of its groups.
struct Remote {
    points: Vec<Far>,
    quads: Vec<Far>,
    /// The sources of the present group alone.
    own: Vec<Far>,
    /// The sources that the series of the present group contains, a bit per lane.
    taken: Vec<u32>,
    /// Whether there is a series, the number of its sources, and its derivatives.
    series: bool,
    count: usize,
    derivatives: Derivatives,
    unit: f32,
}

impl Remote {
    fn new() -> Self {
        let derivatives = [[0.0; LANES]; TERMS];
        let (points, quads, own, taken) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { points, quads, own, taken, series: false, count: 0, derivatives, unit: 1.0 }
    }

    fn stand_side_by_side(&mut self, common: &Sources) {
        self.points.clear();
        self.quads.clear();
        for chunk in common.points.chunks(LANES) {
            let mut far = [[0.0; LANES]; 10];
            for (lane, point) in chunk.iter().enumerate() {
                for (column, value) in far.iter_mut().zip(point) {
                    column[lane] = *value;
                }
            }
            self.points.push(far);
        }
        quads_side_by_side(&common.quads, &mut self.quads);
    }

    /// Computes the series, and adds sources that are too near for it to the group's lists.
    fn take(&mut self, kernel: Kernel, common: &Sources, near: &mut Sources, frame: SeriesGroup) {
        self.unit = frame.unit;
        self.derivatives = [[0.0; LANES]; TERMS];
        let count = |sources: &Sources| sources.points.len() + sources.quads.len();
        let all = count(common) + count(near);
        quads_side_by_side(&near.quads, &mut self.own);
        self.taken.clear();
        let here = SeriesGroup { middle: [0.0; 3], ..frame };
        kernel.expand(&self.own, true, &here, &mut self.derivatives, &mut self.taken);
        let mut at = 0;
        near.quads.retain(|_| {
            let taken = self.taken[at / LANES] >> (at % LANES) & 1 == 1;
            at += 1;
            !taken
        });
        self.taken.clear();
        kernel.expand(&self.points, false, &frame, &mut self.derivatives, &mut self.taken);
        for (chunk, taken) in common.points.chunks(LANES).zip(&self.taken) {
            for lane in lanes_without(*taken, chunk.len()) {
                let [x, y, z, mass] = chunk[lane];
                let [a, b, c] = frame.middle;
                near.points.push([x - a, y - b, z - c, mass]);
            }
        }
        self.taken.clear();
        kernel.expand(&self.quads, true, &frame, &mut self.derivatives, &mut self.taken);
        for (chunk, taken) in common.quads.chunks(LANES).zip(&self.taken) {
            for lane in lanes_without(*taken, chunk.len()) {
                near.quads.push(chunk[lane].seen_from(frame.middle));
            }
        }
        self.count = all - count(near);
    }

    fn pull(&self, kernel: Kernel, rule: Rule, sinks: &[Lanes], sums: &mut [SinkForces]) {
        if self.series {
            let series = series::series(&self.derivatives);
            kernel.evaluate(&series, self.unit, sinks, rule.potential, sums);
        }
    }
}

/// The lanes among the first `count` without a bit.
fn lanes_without(bits: u32, count: usize) -> impl Iterator<Item = usize> {
    let mut rest = !bits & ((1 << count) - 1);
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros();
        (rest != 0).then(|| {
            rest &= rest - 1;
            lane as usize
        })
    })
}

/// The factor of cell sizes without a wanted error.
const SCALE: f32 = 1.0;
/// Accelerations in a block may change by this part when more of the tree is present.
const DOUBT: f64 = 0.08;
/// The smallest acceleration, as a part of the mean: where forces nearly cancel out, the estimate
/// is poor.
const LEAST: f64 = 0.02;
/// The acceleration of a block is about this part of that of inner bodies; at its ends
/// accelerations differ most.
const ENDS: f64 = 0.85;

/// The typical acceleration in a block, weighted as in relative errors; each is reduced by this
/// part of the mean.
fn typical(accelerations: &[f64; LANES], doubt: f64) -> f64 {
    let squares = accelerations.map(|a| a * a);
    let mean = (squares.iter().sum::<f64>() / LANES as f64).sqrt();
    let least = accelerations.map(|a| (a - doubt * mean).max(LEAST * mean));
    let weights = least.map(|a| 1.0 / (a * a));
    ENDS * (LANES as f64 / weights.iter().sum::<f64>()).sqrt()
}

/// The scale of cell sizes as seen from a block of bodies, by the accelerations just before, in the
/// box's units.
pub(crate) fn scale_by(acceleration: impl Fn(usize) -> f64, bodies: usize, setup: &Setup) -> f32 {
    let Some(error) = setup.error else { return SCALE };
    let mut felt = [0.0; LANES];
    felt.iter_mut().zip(spread(LANES, bodies)).for_each(|(felt, i)| *felt = acceleration(i));
    reach_scale(error * typical(&felt, DOUBT), setup.order)
}

/// The lists of one group; kept for the next one for their memory and for the common part of a
/// block.
pub(crate) struct Lists<'a> {
    tree: &'a BodyTree,
    kernel: Kernel,
    rule: Rule,
    own: SelfPotential,
    /// The block of the last group; empty before the first.
    block: Extent,
    /// The sources of every group of the block, in the box's coordinates.
    common: Sources,
    /// The scale of cell sizes in the block.
    scale: f32,
    /// Estimated accelerations of some of its bodies.
    felt: [f64; LANES],
    /// The allowed error of one far source in the block, an acceleration.
    allowed: f64,
    /// Cells that each group of the block has to test by itself.
    unsure: Vec<u32>,
    /// The sources of the group.
    sources: Sources,
    /// Far sources of the group, which form one series.
    remote: Remote,
    /// The group's bodies, relative to its middle, padded to whole lanes.
    sinks: Vec<Lanes>,
    /// The forces on the sinks.
    sums: Vec<SinkForces>,
    walk: Walk,
}

impl<'a> Lists<'a> {
    pub(crate) fn new(tree: &'a BodyTree, kernel: Kernel, potential: bool) -> Self {
        let softening_squared = tree.softening_squared;
        Self {
            tree,
            kernel,
            rule: Rule { softening_squared, potential },
            own: SelfPotential::new(softening_squared),
            block: Extent { cuboid: Cuboid { low: [0.0; 3], high: [0.0; 3] }, bodies: 0..0 },
            common: Sources::default(),
            scale: SCALE,
            felt: [0.0; LANES],
            allowed: 0.0,
            unsure: Vec::new(),
            sources: Sources::default(),
            remote: Remote::new(),
            sinks: Vec::new(),
            sums: Vec::new(),
            walk: Walk::default(),
        }
    }

    /// Makes lists and series for the group of these bodies. Returns the numbers of points, of
    /// quadrupoles and of sources in the series.
    pub(crate) fn fill(&mut self, bodies: Range<usize>) -> [usize; 3] {
        let tree = self.tree;
        self.enter(bodies.start);
        let extent = Extent::of(tree, bodies.clone());
        let middle = extent.middle();
        self.sources.clear();
        let balls = tree.cells.balls(self.scale);
        let Self { walk, unsure, sources, common, remote, kernel, .. } = self;
        let pays = tree.order_of_cells == CellExpansion::Series && bodies.len() >= SERIES_PAYS;
        let frame = frame(tree, bodies.clone(), middle, self.allowed).filter(|_| pays);
        (remote.series, remote.count) = (frame.is_some(), 0);
        if let Some(frame) = frame {
            walk.for_group(tree, *kernel, balls, &extent, unsure, sources);
            remote.take(*kernel, common, sources, frame);
        } else {
            sources.add_points(&common.points, middle);
            sources.quads.extend(common.quads.iter().map(|quad| quad.seen_from(middle)));
            walk.for_group(tree, *kernel, balls, &extent, unsure, sources);
        }

        self.sinks.clear();
        let chunks = tree.own(bodies).chunks(LANES);
        self.sinks.extend(chunks.map(|chunk| side_by_side(chunk, middle)));
        [self.sources.points.len(), self.sources.quads.len(), self.remote.count]
    }

    /// Finds the common part of this body's block, unless it is the block of the last group.
    fn enter(&mut self, body: usize) {
        if self.block.bodies.contains(&body) {
            return;
        }
        let tree = self.tree;
        self.block = Extent::of(tree, tree.block(body));
        self.common.clear();
        self.unsure.clear();
        self.walk.absent.clear();
        if let Some(error) = tree.error {
            self.felt = self.accelerations();
            self.allowed = error * typical(&self.felt, 0.0);
            self.scale = reach_scale(self.allowed, tree.order_of_cells);
        }
        let Self { walk, block, common, unsure, .. } = self;
        let balls = tree.cells.balls(self.scale);
        walk.for_block(tree, self.kernel, balls, block, common, unsure);
        if tree.order_of_cells == CellExpansion::Series {
            self.remote.stand_side_by_side(common);
        }
    }

    /// Estimates the accelerations of some of the block's bodies; cells that are not large count as
    /// points at any distance.
    fn accelerations(&mut self) -> [f64; LANES] {
        let Self { tree, kernel, ref block, ref mut sources, ref mut walk, .. } = *self;
        let middle = block.middle();
        sources.clear();
        walk.roughly(tree, kernel, block, sources);
        // Not at its ends: in one block the end is the middle of all bodies, where hardly any force
        // acts.
        let own = tree.own(block.bodies.clone());
        let some = spread(LANES, block.bodies.len()).map(|i| &own[i]);
        let sinks = side_by_side(some, middle);
        let mut sums = [[[0.0; LANES]; 4]];
        let rule = Rule { potential: false, ..self.rule };
        for chunk in sources.points.chunks(CHUNK) {
            kernel.points(chunk, &[sinks], rule, &mut sums);
        }
        let [x, y, z, _] = sums[0];
        std::array::from_fn(|i| (x[i] * x[i] + y[i] * y[i] + z[i] * z[i]).sqrt())
    }

    /// Appends the cells without present bodies or children that the lists of a block and its
    /// groups may need.
    pub(crate) fn absent(&mut self, block: Range<usize>, absent: &mut Vec<u32>) {
        self.enter(block.start);
        absent.extend(&self.walk.absent);
        let Self { walk, block, unsure, tree, kernel, .. } = self;
        let balls = tree.cells.balls(self.scale);
        walk.absent_below(tree, *kernel, balls, block, unsure, absent);
    }

    /// The scale of cell sizes as seen from this block. With more data present it may change, for
    /// accelerations are then better known.
    pub(crate) fn scale_of(&mut self, block: Range<usize>) -> f32 {
        self.enter(block.start);
        let Some(error) = self.tree.error else { return self.scale };
        reach_scale(error * typical(&self.felt, DOUBT), self.tree.order_of_cells)
    }

    /// The number of cells and bodies of the block's lists so far.
    pub(crate) fn looked_at(&self) -> usize {
        self.common.points.len() + self.common.quads.len() + self.unsure.len()
    }

    /// Whether data for the lists of the last group was absent.
    pub(crate) fn is_short(&self) -> bool {
        !self.walk.absent.is_empty()
    }

    /// Computes the forces on one group; returns the numbers of [`Lists::fill`].
    pub(crate) fn one_group(&mut self, bodies: Range<usize>, out: &mut Vec<u8>) -> [usize; 3] {
        let [points, quads, series] = self.fill(bodies.clone());
        self.sums.clear();
        self.sums.resize(self.sinks.len(), [[0.0; LANES]; 4]);
        for chunk in self.sources.points.chunks(CHUNK) {
            self.kernel.points(chunk, &self.sinks, self.rule, &mut self.sums);
        }
        for chunk in self.sources.quads.chunks(CHUNK / 4) {
            self.kernel.quads(chunk, &self.sinks, self.rule, &mut self.sums);
        }
        self.remote.pull(self.kernel, self.rule, &self.sinks, &mut self.sums);

        for (i, p) in self.tree.own(bodies).iter().enumerate() {
            let sum = &self.sums[i / LANES];
            let lane = i % LANES;
            let [x, y, z] = [0, 1, 2].map(|axis| sum[axis][lane] as f32);
            // A body is in its own list: it does not pull itself, but its own potential, as the
            // kernel rounds it, is subtracted.
            let own = if self.rule.potential { self.own.potential(p[3]) } else { 0.0 };
            let potential = (sum[3][lane] - own) as f32;
            for value in [x, y, z, potential] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        [points, quads, series]
    }
}

/// Walks over the tree, from the opened cells of one level to those of the next.
#[derive(Default)]
struct Walk {
    /// Cells whose children are tested, and the first child of each.
    open: Vec<u32>,
    starts: Vec<u32>,
    /// The results of the tests of each cell's children.
    looks: Vec<Look>,
    /// Cells to be opened next.
    next: Vec<u32>,
    /// Leaves to be opened.
    leaves: Vec<u32>,
    /// Cells without present bodies that the block or its groups need.
    absent: Vec<u32>,
}

impl Walk {
    /// Finds the common sources of the groups of the block, and the cells that are far from a part
    /// of the block only. The cells are in the order of the walk.
    fn for_block(
        &mut self,
        tree: &BodyTree,
        kernel: Kernel,
        balls: Balls,
        block: &Extent,
        common: &mut Sources,
        unsure: &mut Vec<u32>,
    ) {
        let cells = &tree.cells;
        let none = [0.0; 3];
        self.next.clear();
        self.leaves.clear();
        if !cells.links.is_empty() {
            // The root contains the block.
            self.open_next(cells, 0);
        }
        while self.look_at_next(cells, kernel, balls, block) {
            for (&parent, look) in self.open.iter().zip(&self.looks) {
                for (bit, child) in cells.links[parent as usize].children().enumerate() {
                    let bodies = cells.links[child].bodies();
                    let far = look.far >> bit & 1 == 1;
                    let near = look.near >> bit & 1 == 1;
                    let around =
                        bodies.start <= block.bodies.start && bodies.end >= block.bodies.end;
                    let meets = block.meets(&bodies);
                    if far && !meets {
                        common.add_cell(cells, child, none);
                    } else if around || near && !meets {
                        let leaf = cells.links[child].children == 0;
                        let to = if leaf { &mut self.leaves } else { &mut self.next };
                        to.push(child as u32);
                    } else {
                        unsure.push(child as u32);
                    }
                }
            }
        }
        self.add_leaves(tree, common, none);
    }

    /// Finds the other sources of a group.
    fn for_group(
        &mut self,
        tree: &BodyTree,
        kernel: Kernel,
        balls: Balls,
        group: &Extent,
        unsure: &[u32],
        sources: &mut Sources,
    ) {
        let cells = &tree.cells;
        let middle = group.middle();
        self.next.clear();
        self.leaves.clear();
        kernel.look(group.cuboid, balls, unsure, &mut self.looks);
        for (i, &cell) in unsure.iter().enumerate() {
            let cell = cell as usize;
            if self.looks[i].far & 1 == 1 && !group.meets(&cells.links[cell].bodies()) {
                sources.add_cell(cells, cell, middle);
            } else {
                self.open_next(cells, cell);
            }
        }
        while self.look_at_next(cells, kernel, balls, group) {
            for (&parent, look) in self.open.iter().zip(&self.looks) {
                let link = cells.links[parent as usize];
                let mut far = look.far & ((1 << link.children) - 1);
                if group.meets(&link.bodies()) {
                    for (bit, child) in link.children().enumerate() {
                        far &= !(u32::from(group.meets(&cells.links[child].bodies())) << bit);
                    }
                }
                let mut rest = !far & ((1 << link.children) - 1);
                while far != 0 {
                    let child = (link.child + far.trailing_zeros()) as usize;
                    sources.add_cell(cells, child, middle);
                    far &= far - 1;
                }
                while rest != 0 {
                    let child = link.child + rest.trailing_zeros();
                    let leaf = cells.links[child as usize].children == 0;
                    let to = if leaf { &mut self.leaves } else { &mut self.next };
                    to.push(child);
                    rest &= rest - 1;
                }
            }
        }
        self.add_leaves(tree, sources, middle);
    }

    /// Finds the absent cells below these that may be near to some point of the block.
    fn absent_below(
        &mut self,
        tree: &BodyTree,
        kernel: Kernel,
        balls: Balls,
        block: &Extent,
        cells: &[u32],
        absent: &mut Vec<u32>,
    ) {
        self.next.clear();
        let mut look_into = |cell: u32, next: &mut Vec<u32>| {
            if tree.is_absent(cell as usize) {
                absent.push(cell);
            } else if tree.stored(cell as usize).is_none() {
                next.push(cell);
            }
        };
        cells.iter().for_each(|&cell| look_into(cell, &mut self.next));
        while self.look_at_next(&tree.cells, kernel, balls, block) {
            for (&parent, look) in self.open.iter().zip(&self.looks) {
                for (bit, child) in tree.cells.links[parent as usize].children().enumerate() {
                    let meets = block.meets(&tree.cells.links[child].bodies());
                    if meets || look.far >> bit & 1 == 0 {
                        look_into(child as u32, &mut self.next);
                    }
                }
            }
        }
    }

    /// Finds a few points that represent all bodies.
    fn roughly(&mut self, tree: &BodyTree, kernel: Kernel, block: &Extent, sources: &mut Sources) {
        let cells = &tree.cells;
        let middle = block.middle();
        // A cell is small up to this number of bodies.
        let small = block.bodies.len() / 64;
        self.next.clear();
        self.leaves.clear();
        if !cells.links.is_empty() {
            self.open_next(cells, 0);
        }
        while self.look_at_next(cells, kernel, cells.rough_balls(), block) {
            for (&parent, look) in self.open.iter().zip(&self.looks) {
                for (bit, child) in cells.links[parent as usize].children().enumerate() {
                    let bodies = cells.links[child].bodies();
                    let far = look.far >> bit & 1 == 1 && !block.meets(&bodies);
                    let absent = tree.is_absent(child);
                    if far || bodies.len() <= small || absent {
                        let [x, y, z, mass] = cells.points[child];
                        sources.points.push([x - middle[0], y - middle[1], z - middle[2], mass]);
                        // Good enough for this estimate, but not for the result with the whole
                        // tree.
                        if absent && !far && bodies.len() > small {
                            self.absent.push(child as u32);
                        }
                    } else if cells.links[child].children == 0 {
                        self.leaves.push(child as u32);
                    } else {
                        self.next.push(child as u32);
                    }
                }
            }
        }
        self.add_leaves(tree, sources, middle);
    }

    fn add_leaves(&mut self, tree: &BodyTree, sources: &mut Sources, origin: [f32; 3]) {
        for &leaf in &self.leaves {
            match tree.stored(leaf as usize) {
                Some(bodies) => sources.add_points(bodies, origin),
                None => self.absent.push(leaf),
            }
        }
    }

    fn open_next(&mut self, cells: &Cells, cell: usize) {
        let leaf = cells.links[cell].children == 0;
        let to = if leaf { &mut self.leaves } else { &mut self.next };
        to.push(cell as u32);
    }

    /// Opens the next cells and tests their children; returns whether there are any.
    fn look_at_next(&mut self, cells: &Cells, kernel: Kernel, balls: Balls, from: &Extent) -> bool {
        std::mem::swap(&mut self.open, &mut self.next);
        self.next.clear();
        self.starts.clear();
        self.starts.extend(self.open.iter().map(|&cell| cells.links[cell as usize].child));
        kernel.look(from.cuboid, balls, &self.starts, &mut self.looks);
        !self.open.is_empty()
    }
}

#[cfg(test)]
mod tests;
