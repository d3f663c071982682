//! Forces on groups of bodies: one list of interactions a group, in single precision relative to the group's middle.
//!
//! A cell is far from a group when its size is less than theta times the distance from its centre of mass to the nearest point
//! of the box around the group's bodies, so that the text-book criterion holds for each of them; a cell that holds bodies
//! of the group is never far, whatever theta. Groups that lie together are a block, and what is far from the block's box, or
//! near to every point of it, is found once for all of them; the lists are the same cells, in another order. What comes out
//! for a group depends on the tree alone: blocks and lists are those of the tree, sums within a chunk of the list are in single
//! precision and across chunks in double.
//!
//! Where an error is asked for in place of theta, a cell is far when the first moment that is left out pulls by less than that
//! part of the acceleration in the block, of which a rough idea is had first (after V. Springel, MNRAS 364, 1105, 2005, who
//! takes the acceleration of the step before).
//!
//! With [`Order::Series`], what is far not only in proportion to its own size but to that of the group acts on the group at
//! once: by a Taylor series about its middle (see `series.rs`), the rest by the lists. Which sources that are depends on
//! the group and its lists alone.
//!
//! Knows nothing of tasks. Source of the scheme: J. E. Barnes, J. Comput. Phys. 87, 161 (1990); of the quadrupole of a
//! softened point: the second term of the Taylor series of 1 / sqrt(d^2 + eps^2), trace included.

use std::ops::Range;

use crate::kernel::{Balls, CHUNK, Cuboid, Kernel, LANES, Lanes, Look, Own, Quad, Rule, Sums};
use crate::options::Order;
use crate::series::{self, Derivatives, Far, Frame, TERMS, quads_side_by_side};
use crate::shared::Setup;
use crate::tree::{Cells, Tree, reach_scale};

/// Bytes a body in the output of [`compute`]: acceleration x, y, z and potential as little-endian `f32`, in units of the
/// box. Single precision suffices: it is three orders finer than what theta leaves, and sums over bodies are in double.
pub const BYTES_A_BODY: usize = 16;

/// Forces on the bodies of these groups, [`BYTES_A_BODY`] each, in the tree's order.
///
/// # Panics
/// If the range does not lie within the tree's groups.
pub fn compute(tree: &Tree, groups: Range<usize>) -> Vec<u8> {
    compute_with(tree, groups, Kernel::best(), true)
}

/// The same with potentials of zero: cheaper, for who needs no energies.
///
/// # Panics
/// If the range does not lie within the tree's groups.
pub fn accelerations(tree: &Tree, groups: Range<usize>) -> Vec<u8> {
    compute_with(tree, groups, Kernel::best(), false)
}

/// Acceleration and potential of a body, from its [`BYTES_A_BODY`].
///
/// # Panics
/// If these are fewer.
pub(crate) fn row(bytes: &[u8]) -> [f64; 4] {
    [0, 4, 8, 12].map(|at| {
        let bytes = bytes[at..at + 4].try_into().expect("four bytes were cut");
        f64::from(f32::from_le_bytes(bytes))
    })
}

/// Forces on all bodies: what one thread does alone.
pub fn all(tree: &Tree) -> Vec<u8> {
    compute(tree, 0..tree.groups())
}

pub(crate) fn compute_with(
    tree: &Tree,
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

/// Forces on one group, and how many entries its lists of points and of quadrupoles have, and its series.
pub(crate) fn one(tree: &Tree, group: usize) -> (Vec<u8>, [usize; 3]) {
    let mut bytes = Vec::new();
    let mut lists = Lists::new(tree, Kernel::best(), false);
    lists.one_group(tree.bodies(group..group + 1), &mut bytes);
    (bytes, [lists.sources.points.len(), lists.sources.quads.len(), lists.remote.count])
}

/// Accelerations of some bodies of a group, from all bodies; each with its place in the group.
pub(crate) fn exact(tree: &Tree, group: usize) -> Vec<(usize, [f64; 3])> {
    let bodies = tree.bodies(group..group + 1);
    let count = bodies.len().min(LANES);
    // All over it: errors are larger at its ends.
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

/// So many of some things in a row, all over it and none at its ends.
pub(crate) fn spread(count: usize, all: usize) -> impl Iterator<Item = usize> + Clone {
    (0..count).map(move |i| all * (2 * i + 1) / (2 * count))
}

/// Up to as many points as there are lanes, relative to the middle.
fn side_by_side<'p>(points: impl IntoIterator<Item = &'p [f32; 4]>, middle: [f32; 3]) -> Lanes {
    let mut lanes = [[0.0; LANES]; 3];
    for (lane, p) in points.into_iter().take(LANES).enumerate() {
        for (axis, column) in lanes.iter_mut().enumerate() {
            column[lane] = p[axis] - middle[axis];
        }
    }
    lanes
}

/// Bodies in a row, and the box around them.
#[derive(Clone, Debug)]
struct Extent {
    cuboid: Cuboid,
    bodies: Range<usize>,
}

impl Extent {
    fn of(tree: &Tree, bodies: Range<usize>) -> Self {
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

    /// Whether these bodies are among those or the other way round; in a tree there is nothing between that and apart.
    fn meets(&self, others: &Range<usize>) -> bool {
        others.start < self.bodies.end && others.end > self.bodies.start
    }
}

/// What acts, with places in the box's coordinates or relative to a group's middle.
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

/// Bodies that a group has at least where a series is made for it.
const SERIES_PAYS: usize = 32;

/// Of what one source may be wrong by, the part that its Taylor series may be. Errors of cells have no common sign in one
/// direction, those of series do and add up.
const SERIES_PART: f32 = 0.2;

/// How a group's series is made; not at all where all its bodies are at one point.
fn frame(tree: &Tree, bodies: Range<usize>, middle: [f32; 3], allowed: f64) -> Option<Frame> {
    let mut most = 0f32;
    for p in tree.own(bodies) {
        let [x, y, z] = [0, 1, 2].map(|axis| p[axis] - middle[axis]);
        let square = x * x + y * y + z * z;
        most = if square > most { square } else { most };
    }
    if most < 1e-24 {
        return None;
    }
    // The root's exponent with its sign turned: the product of both is from one half to one.
    let unit = f32::from_bits((253 - (most.sqrt().to_bits() >> 23)) << 23);
    let square = unit * unit;
    // Without an error that is asked for, as far as twice what theta asks of a cell as large as the group.
    let by_angle =
        if tree.error.is_some() { 2.0 } else { (4.0 / tree.theta.max(1e-3)).max(2.0) as f32 };
    Some(Frame {
        middle,
        unit,
        softening_squared: tree.softening_squared * square,
        most: most * square,
        nearest: most * square * by_angle * by_angle,
        allowed: if tree.error.is_some() { SERIES_PART * allowed as f32 / square } else { 1e20 },
    })
}

/// What acts on a block from afar, for the series of its groups.
struct Remote {
    points: Vec<Far>,
    quads: Vec<Far>,
    /// What acts on the group at hand alone.
    own: Vec<Far>,
    /// Which of them the series of the group at hand has taken.
    taken: Vec<u32>,
    /// Whether there is one, how many it has taken, and its derivatives.
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

    /// Makes the series, and puts what is too near for it among the group's sources.
    fn take(&mut self, kernel: Kernel, common: &Sources, near: &mut Sources, frame: Frame) {
        self.unit = frame.unit;
        self.derivatives = [[0.0; LANES]; TERMS];
        let count = |sources: &Sources| sources.points.len() + sources.quads.len();
        let all = count(common) + count(near);
        quads_side_by_side(&near.quads, &mut self.own);
        self.taken.clear();
        let here = Frame { middle: [0.0; 3], ..frame };
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

    fn pull(&self, kernel: Kernel, rule: Rule, sinks: &[Lanes], sums: &mut [Sums]) {
        if self.series {
            let series = series::series(&self.derivatives);
            kernel.evaluate(&series, self.unit, sinks, rule.potential, sums);
        }
    }
}

/// The lanes of the first so many that have no bit.
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

/// What the sizes of cells are multiplied by where no error is asked for.
const SCALE: f32 = 1.0;
/// Accelerations in a block may be different by this part of what they are there, when more of the tree is.
const DOUBT: f64 = 0.08;
/// None counts as less than this part: where what acts nearly cancels out, little is known of what is left.
const LEAST: f64 = 0.02;
/// That of a block is about this part of those of bodies that do not lie at its ends, where accelerations are most unlike.
const ENDS: f64 = 0.85;

/// The acceleration in a block, by some of its bodies', weighted as relative errors weigh them; each less this part of what they are
/// on the average.
fn typical(accelerations: &[f64; LANES], doubt: f64) -> f64 {
    let squares = accelerations.map(|a| a * a);
    let mean = (squares.iter().sum::<f64>() / LANES as f64).sqrt();
    let least = accelerations.map(|a| (a - doubt * mean).max(LEAST * mean));
    let weights = least.map(|a| 1.0 / (a * a));
    ENDS * (LANES as f64 / weights.iter().sum::<f64>()).sqrt()
}

/// What the sizes of cells are about multiplied by, as seen from a block of so many bodies, or may be: by what the acceleration of each was
/// just before, in the box's units.
pub(crate) fn scale_by(acceleration: impl Fn(usize) -> f64, bodies: usize, setup: &Setup) -> f32 {
    let Some(error) = setup.error else { return SCALE };
    let mut felt = [0.0; LANES];
    felt.iter_mut().zip(spread(LANES, bodies)).for_each(|(felt, i)| *felt = acceleration(i));
    reach_scale(error * typical(&felt, DOUBT), setup.order)
}

/// Lists of one group; kept from group to group for their memory and for what a block's groups have in common.
pub(crate) struct Lists<'a> {
    tree: &'a Tree,
    kernel: Kernel,
    rule: Rule,
    own: Own,
    /// The block of the group before; of no bodies ahead of the first.
    block: Extent,
    /// What acts on every group of the block, in the box's coordinates.
    common: Sources,
    /// What the sizes of cells are multiplied by in the block.
    scale: f32,
    /// Accelerations of some of its bodies, about.
    felt: [f64; LANES],
    /// By how much one far source may be wrong in the block, an acceleration.
    allowed: f64,
    /// Cells of which the block's groups have to see for themselves whether they are far.
    unsure: Vec<u32>,
    /// What acts on the group.
    sources: Sources,
    /// What acts on it from so far that it makes one series.
    remote: Remote,
    /// The group's bodies, relative to its middle, padded to whole lanes.
    sinks: Vec<Lanes>,
    /// What they feel.
    sums: Vec<Sums>,
    walk: Walk,
}

impl<'a> Lists<'a> {
    pub(crate) fn new(tree: &'a Tree, kernel: Kernel, potential: bool) -> Self {
        let softening_squared = tree.softening_squared;
        Self {
            tree,
            kernel,
            rule: Rule { softening_squared, potential },
            own: Own::new(softening_squared),
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

    /// Makes lists and series for the group of these bodies; returns how many points and quadrupoles are in the lists, and
    /// how many sources in the series.
    pub(crate) fn fill(&mut self, bodies: Range<usize>) -> [usize; 3] {
        let tree = self.tree;
        self.enter(bodies.start);
        let extent = Extent::of(tree, bodies.clone());
        let middle = extent.middle();
        self.sources.clear();
        let balls = tree.cells.balls(self.scale);
        let Self { walk, unsure, sources, common, remote, kernel, .. } = self;
        let pays = tree.order_of_cells == Order::Series && bodies.len() >= SERIES_PAYS;
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

    /// Finds what the groups of this body's block have in common, if it was not the last one's.
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
        if tree.order_of_cells == Order::Series {
            self.remote.stand_side_by_side(common);
        }
    }

    /// A rough idea of the accelerations in the block, of some of its bodies, where cells that are not large count as points however near.
    fn accelerations(&mut self) -> [f64; LANES] {
        let Self { tree, kernel, ref block, ref mut sources, ref mut walk, .. } = *self;
        let middle = block.middle();
        sources.clear();
        walk.roughly(tree, kernel, block, sources);
        // Not at its ends: of one block that is where the middle of all bodies is, and hardly anything acts.
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

    /// Which cells the lists of a block and its groups are made of, or may be, whose bodies or children are not there.
    pub(crate) fn absent(&mut self, block: Range<usize>, absent: &mut Vec<u32>) {
        self.enter(block.start);
        absent.extend(&self.walk.absent);
        let Self { walk, block, unsure, tree, kernel, .. } = self;
        let balls = tree.cells.balls(self.scale);
        walk.absent_below(tree, *kernel, balls, block, unsure, absent);
    }

    /// What the sizes of cells are multiplied by, as seen from this block, or may be when more is there: accelerations are then less
    /// rough.
    pub(crate) fn scale_of(&mut self, block: Range<usize>) -> f32 {
        self.enter(block.start);
        let Some(error) = self.tree.error else { return self.scale };
        reach_scale(error * typical(&self.felt, DOUBT), self.tree.order_of_cells)
    }

    /// How many cells and bodies the block's lists are made of so far.
    pub(crate) fn looked_at(&self) -> usize {
        self.common.points.len() + self.common.quads.len() + self.unsure.len()
    }

    /// Whether something was absent that the lists of the last group are made of.
    pub(crate) fn is_short(&self) -> bool {
        !self.walk.absent.is_empty()
    }

    /// Forces on one group; returns what [`Lists::fill`] does.
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
            // A body is in its own list: it does not pull itself, but its own potential, as the kernel rounds it, has to go.
            let own = if self.rule.potential { self.own.potential(p[3]) } else { 0.0 };
            let potential = (sum[3][lane] - own) as f32;
            for value in [x, y, z, potential] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        [points, quads, series]
    }
}

/// Walks over the tree, from the cells of one level that have to be opened to those of the next.
#[derive(Default)]
struct Walk {
    /// Cells whose children are to be looked at, and the first child of each.
    open: Vec<u32>,
    starts: Vec<u32>,
    /// What a look at the children of each found.
    looks: Vec<Look>,
    /// Cells to be opened after these.
    next: Vec<u32>,
    /// Cells to be opened that are not split further.
    leaves: Vec<u32>,
    /// Cells whose bodies would have been needed and are not there; of the block and its groups.
    absent: Vec<u32>,
}

impl Walk {
    /// What the groups of the block have in common, and cells (in the order of the walk) that are far from some point of the
    /// block only.
    fn for_block(
        &mut self,
        tree: &Tree,
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
            // It holds the block.
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

    /// The rest of what acts on a group.
    fn for_group(
        &mut self,
        tree: &Tree,
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

    /// Of these cells and all below those that are not there and may be near to some point of the block.
    fn absent_below(
        &mut self,
        tree: &Tree,
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

    /// Few points in place of all bodies.
    fn roughly(&mut self, tree: &Tree, kernel: Kernel, block: &Extent, sources: &mut Sources) {
        let cells = &tree.cells;
        let middle = block.middle();
        // A cell of the block is small where it has so many of its bodies.
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
                        // Good enough for what is asked for next, but not for what the whole tree gives.
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

    fn add_leaves(&mut self, tree: &Tree, sources: &mut Sources, origin: [f32; 3]) {
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

    /// Opens the next cells and looks at their children; whether there are any.
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
