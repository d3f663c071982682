//! A tree whose bodies lie on several nodes: each holds blocks of its own, knows the sums of all others, and has bodies of
//! those that are near.
//!
//! A *block* is the first cell on the way down that has no more bodies than the groups of a block may have together, so
//! blocks are those of the whole tree, in the order of their keys, and wherever they lie. Of keys alone follow the cells above them
//! ([`Info`] says enough of each block for that) and those within ([`Branch`]). What a node makes of these and of
//! [`Sums`] is a [`Tree`] with the cells of the whole one, in their order and with their bits, less what is in blocks
//! that are not there: forces on its own groups come out as they would on one node, or it is said which blocks are missing.
//!
//! Knows nothing of who holds which blocks, nor of messages.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::kernel::Quad;
use crate::options::Order;
use crate::shared::Setup;
use crate::tree::{
    ABSENT, Builder, Cells, GROUPS_A_BLOCK, LEVELS, Link, Part, Sums, Tree, Value, agreeing,
};

/// What all nodes know of a block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Info {
    /// Key of its first body.
    pub first: u64,
    /// Key of its last body.
    pub last: u64,
    /// Bodies; at least one.
    pub bodies: u32,
    /// What its forces cost, in any unit.
    pub cost: f32,
}

impl Info {
    /// The level of the smallest cube around its bodies.
    fn level(&self) -> u32 {
        agreeing(self.first ^ self.last)
    }
}

/// Bodies of these blocks together.
pub(crate) fn bodies_of(infos: &[Info]) -> usize {
    infos.iter().map(|info| info.bodies as usize).sum()
}

/// Most bodies of a block, unless they lie at one point.
pub(crate) fn most_bodies(setup: &Setup) -> usize {
    setup.group.max(1) as usize * GROUPS_A_BLOCK
}

/// The blocks of sorted keys that are all there are, with this cost for each body.
pub(crate) fn blocks(keys: &[(u64, u32)], setup: &Setup, cost: f32) -> Vec<Info> {
    pieces(keys, 0..1 << (3 * LEVELS), setup, |bodies| cost * bodies.len() as f32)
}

/// Cubes that lie within a range of keys and have no more bodies than a block, as large as may be, for sorted keys
/// within that range. Where others have the keys around it, several of these, together with theirs, may make one block.
pub(crate) fn pieces(
    keys: &[(u64, u32)],
    within: Range<u64>,
    setup: &Setup,
    mut cost: impl FnMut(Range<usize>) -> f32,
) -> Vec<Info> {
    let most = most_bodies(setup);
    let mut pieces = Vec::new();
    // The last is next, so that pieces come out in order.
    let all = 0..keys.len();
    let mut open = vec![all];
    while let Some(bodies) = open.pop() {
        let Some((first, last)) = bodies.clone().next().zip(bodies.clone().next_back()) else {
            continue;
        };
        let (first, last) = (keys[first].0, keys[last].0);
        let level = agreeing(first ^ last);
        let shift = 3 * (LEVELS - level);
        let start = first >> shift << shift;
        let inside = start >= within.start && start + ((1 << shift) - 1) < within.end;
        // The finest cubes are not cut: whoever has a part of one says so, and the others' parts are put to it.
        if level == LEVELS || inside && bodies.len() <= most {
            pieces.push(Info { first, last, bodies: bodies.len() as u32, cost: cost(bodies) });
            continue;
        }
        let children = octants(bodies, level, |i| keys[i].0);
        open.extend(children.into_iter().rev());
    }
    pieces
}

/// Consecutive things with sorted keys, cut by the octants of a cube of this level.
fn octants(things: Range<usize>, level: u32, key: impl Fn(usize) -> u64) -> Vec<Range<usize>> {
    let shift = 3 * (LEVELS - 1 - level);
    let mut parts: Vec<Range<usize>> = Vec::new();
    for i in things {
        match parts.last_mut() {
            Some(part) if key(part.start) >> shift == key(i) >> shift => part.end = i + 1,
            _ => parts.push(i..i + 1),
        }
    }
    parts
}

/// The blocks that pieces of all keys make, in order: of each, which pieces it is made of.
pub(crate) fn merged(pieces: &[Info], setup: &Setup) -> Vec<Range<usize>> {
    let most = most_bodies(setup);
    let mut blocks = Vec::new();
    let all = 0..pieces.len();
    let mut open = vec![all];
    while let Some(some) = open.pop() {
        let (Some(first), Some(last)) = (pieces.get(some.start), pieces[some.clone()].last())
        else {
            continue;
        };
        let level = agreeing(first.first ^ last.last);
        let bodies: u64 = pieces[some.clone()].iter().map(|piece| u64::from(piece.bodies)).sum();
        if some.len() == 1 || bodies <= most as u64 || level == LEVELS {
            blocks.push(some);
            continue;
        }
        open.extend(octants(some, level, |i| pieces[i].first).into_iter().rev());
    }
    blocks
}

/// One block of several pieces.
pub(crate) fn joined(pieces: &[Info]) -> Info {
    let (first, last) = (pieces[0].first, pieces[pieces.len() - 1].last);
    let bodies = pieces.iter().map(|piece| piece.bodies).sum();
    Info { first, last, bodies, cost: pieces.iter().map(|piece| piece.cost).sum() }
}

/// The cells within one block; bodies and cells count from the block's first.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    cells: Cells,
    levels: Vec<u8>,
    /// First body of each group.
    pub groups: Vec<u32>,
    sums: Sums,
    /// Position and mass of each body, in sides of the box.
    points: Vec<[f32; 4]>,
}

/// A block whose bodies lie elsewhere, as those cells of others see it that have to open some of its cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sink {
    /// Least and greatest coordinates of its bodies.
    pub extent: [[f32; 3]; 2],
    /// What sizes of cells are multiplied by, as seen from it.
    pub scale: f32,
}

impl Sink {
    /// Whether a cell is far from all of its bodies, and with some room.
    fn finds_far(&self, value: &Value) -> bool {
        const ROOM: f32 = 1.001;
        let [low, high] = self.extent;
        let mut square = 0.0;
        for axis in 0..3 {
            let c = value.point[axis];
            let outside = (low[axis] - c).max(c - high[axis]).max(0.0);
            square += outside * outside;
        }
        square > ROOM * (value.far[0] * self.scale).max(value.far[1])
    }
}

/// In what is told of a cell: it has so many children, which follow; or its bodies follow.
const CHILDREN: u8 = 0x0f;
const BODIES: u8 = 0x10;

impl Branch {
    /// The cells of a block with these keys, sorted. All is zero until it is summed up.
    pub(crate) fn new(keys: &[(u64, u32)], setup: &Setup) -> Self {
        let Builder { cells, levels, groups, .. } = Builder::build(keys, setup);
        let sums = Sums::new(levels.len(), setup, true);
        Self { cells, levels, groups, sums, points: vec![[0.0; 4]; keys.len()] }
    }

    /// Sums up all cells anew, the block's bodies being at these places.
    pub(crate) fn sum_up(&mut self, points: &[[f32; 4]], setup: &Setup) {
        self.points.copy_from_slice(points);
        self.sums = Sums::new(self.levels.len(), setup, true);
        let links = &self.cells.links;
        for at in (0..links.len()).rev() {
            self.sums.sum(at, links[at].children(), &points[links[at].bodies()]);
        }
        self.cells.follow(&self.sums, &self.levels, setup);
    }

    /// Least and greatest coordinates of its bodies.
    pub(crate) fn extent(&self) -> [[f32; 3]; 2] {
        self.sums.extent(0).expect("extents are kept of branches")
    }

    /// How many bodies it has.
    pub(crate) fn bodies(&self) -> usize {
        self.points.len()
    }

    /// Sums of the whole block, as [`Sums::write`] writes them.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        self.sums.write(0, to);
    }

    /// Writes what these sinks need of it, for [`Other::read`]: children of cells that are not far from one of them, and bodies
    /// of such that have none. Returns how many cells that are; none where the whole block is far from all.
    pub(crate) fn tell(&self, sinks: &[Sink], to: &mut Vec<u8>) -> usize {
        let near = |cell: usize, some: &[u16]| -> Vec<u16> {
            let value = self.cells.value(cell);
            some.iter().copied().filter(|&i| !sinks[i as usize].finds_far(&value)).collect()
        };
        let all: Vec<u16> = (0..sinks.len().min(1 << 16)).map(|i| i as u16).collect();
        let root = near(0, &all);
        if root.is_empty() {
            return 0;
        }
        // Level by level, as cells are.
        let mut open = std::collections::VecDeque::from([(0, root)]);
        let mut cells = 0;
        while let Some((cell, near_to)) = open.pop_front() {
            let link = self.cells.links[cell];
            let opened = !near_to.is_empty();
            let kind = match (opened, link.children) {
                (false, _) => 0,
                (true, 0) => BODIES,
                (true, children) => children as u8,
            };
            to.push(kind);
            to.extend((link.end - link.first).to_le_bytes());
            let Value { point, quad, far } = self.cells.value(cell);
            to.extend(point.into_iter().chain(far).flat_map(f32::to_le_bytes));
            if let Some(quad) = quad {
                quad.write(to);
            }
            if kind == BODIES {
                let points = &self.points[link.bodies()];
                to.extend(points.iter().flatten().flat_map(|value| value.to_le_bytes()));
            } else if opened {
                open.extend(link.children().map(|child| (child, near(child, &near_to))));
            }
            cells += 1;
        }
        cells
    }
}

/// What is known here of a block of somebody else.
#[derive(Clone, Debug, Default)]
pub(crate) struct Other {
    links: Vec<Link>,
    values: Vec<Value>,
    /// Where in `points` a cell's bodies begin; [`ABSENT`] if they are not here.
    stored: Vec<u32>,
    points: Vec<[f32; 4]>,
}

impl Other {
    /// Reads what [`Branch::tell`] wrote of a block with so many bodies; and returns the rest of the bytes. Nothing if it is none.
    pub(crate) fn read<'b>(
        bodies: u32,
        mut bytes: &'b [u8],
        setup: &Setup,
    ) -> Option<(Self, &'b [u8])> {
        fn floats<const N: usize>(bytes: &mut &[u8]) -> Option<[f32; N]> {
            let mut values = [0.0; N];
            for value in &mut values {
                let (four, rest) = bytes.split_first_chunk()?;
                (*value, *bytes) = (f32::from_le_bytes(*four), rest);
            }
            Some(values)
        }
        let mut other = Self::default();
        let root = Link { first: 0, end: bodies, child: 0, children: 0 };
        other.links.push(root);
        let mut at = 0;
        while at < other.links.len() {
            let (&kind, rest) = bytes.split_first()?;
            let (count, rest) = rest.split_first_chunk()?;
            bytes = rest;
            let count = u32::from_le_bytes(*count);
            let point: [f32; 4] = floats(&mut bytes)?;
            let far = floats(&mut bytes)?;
            let quad = if setup.order != Order::Mono {
                let (quad, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Some(Quad::read([point[0], point[1], point[2]], quad))
            } else {
                None
            };
            other.values.push(Value { point, quad, far });
            let child = other.links.len() as u32;
            let link = &mut other.links[at];
            if at > 0 {
                link.end = link.first.checked_add(count)?;
            } else if count != bodies {
                return None;
            }
            let Link { first, end, .. } = *link;
            other.stored.push(ABSENT);
            if kind == BODIES {
                other.stored[at] = other.points.len() as u32;
                for _ in first..end {
                    other.points.push(floats(&mut bytes)?);
                }
            } else if kind & !CHILDREN == 0 && kind <= 8 {
                link.child = child;
                link.children = kind.into();
                // Where each begins is known when those before it were read.
                let new = Link { first, end: first, child: 0, children: 0 };
                other.links.extend((0..kind).map(|_| new));
            } else {
                return None;
            }
            at += 1;
        }
        other.settle()?;
        Some((other, bytes))
    }

    /// Children lie one after another, and have all bodies of their cell.
    fn settle(&mut self) -> Option<()> {
        for at in 0..self.links.len() {
            let Link { mut first, end, .. } = self.links[at];
            let children = self.links[at].children();
            if children.is_empty() {
                continue;
            }
            for child in children {
                let link = &mut self.links[child];
                let bodies = link.end - link.first;
                (link.first, link.end) = (first, first.checked_add(bodies)?);
                first = link.end;
            }
            if first != end {
                return None;
            }
        }
        Some(())
    }

    /// How many cells of it are here.
    pub(crate) fn cells(&self) -> usize {
        self.links.len()
    }
}

/// A part of a tree.
pub(crate) struct Partial {
    pub tree: Tree,
    /// Of each own block, in order: its groups.
    pub groups: Vec<Range<usize>>,
}

#[derive(Clone, Debug)]
enum Cell {
    /// Above blocks: of these.
    Above(Range<usize>),
    /// This cell of this block.
    Within(usize, usize),
}

/// Puts together what there is: `infos` and `sums` tell of all blocks, `own` are the cells of the consecutive ones from `first` on,
/// and `others` those of others that are here.
pub(crate) fn assemble(
    infos: &[Info],
    sums: &Sums,
    (first, own): (usize, &[Branch]),
    others: &BTreeMap<usize, Other>,
    setup: &Setup,
    side: f64,
) -> Partial {
    let mut firsts = vec![0u32];
    for info in infos {
        firsts.push(firsts[firsts.len() - 1] + info.bodies);
    }
    let own_blocks = first..first + own.len();
    let branch = |block: usize| own_blocks.contains(&block).then(|| &own[block - first]);
    // Own bodies come first.
    let mut points: Vec<[f32; 4]> = own.iter().flat_map(|branch| &branch.points).copied().collect();
    let mut begins = BTreeMap::new();
    for (&block, other) in others {
        begins.insert(block, points.len() as u32);
        points.extend_from_slice(&other.points);
    }

    let mut cells = Cells::default();
    let (mut of, mut levels, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |cell: Cell, links: &mut Vec<Link>, of: &mut Vec<Cell>| {
        let (bodies, level, begin) = match &cell {
            Cell::Above(blocks) => {
                let (first, last) = (infos[blocks.start].first, infos[blocks.end - 1].last);
                (firsts[blocks.start]..firsts[blocks.end], agreeing(first ^ last) as u8, ABSENT)
            }
            &Cell::Within(block, at) => {
                let start = firsts[block];
                if let Some(branch) = branch(block) {
                    let Link { first: from, end, .. } = branch.cells.links[at];
                    let begin = start - firsts[first] + from;
                    (start + from..start + end, branch.levels[at], begin)
                } else if let Some(other) = others.get(&block) {
                    let Link { first: from, end, .. } = other.links[at];
                    let begin = match other.stored[at] {
                        ABSENT => ABSENT,
                        begin => begins[&block] + begin,
                    };
                    (start + from..start + end, 0, begin)
                } else {
                    (start..firsts[block + 1], infos[block].level() as u8, ABSENT)
                }
            }
        };
        links.push(Link { first: bodies.start, end: bodies.end, child: 0, children: 0 });
        of.push(cell);
        levels.push(level);
        stored.push(begin);
    };
    let above = |blocks: Range<usize>| match blocks.len() {
        1 => Cell::Within(blocks.start, 0),
        _ => Cell::Above(blocks),
    };
    if !infos.is_empty() {
        add(above(0..infos.len()), &mut cells.links, &mut of);
    }
    let mut at = 0;
    while at < of.len() {
        let child = of.len();
        match of[at].clone() {
            Cell::Above(blocks) => {
                let level = agreeing(infos[blocks.start].first ^ infos[blocks.end - 1].last);
                for part in octants(blocks, level, |i| infos[i].first) {
                    add(above(part), &mut cells.links, &mut of);
                }
            }
            Cell::Within(block, cell) => {
                let links = branch(block).map(|branch| &branch.cells.links);
                let links = links.or(others.get(&block).map(|other| &other.links));
                for child in links.map_or(0..0, |links| links[cell].children()) {
                    add(Cell::Within(block, child), &mut cells.links, &mut of);
                }
            }
        }
        let children = (of.len() - child) as u32;
        cells.links[at] = Link { child: child as u32, children, ..cells.links[at] };
        at += 1;
    }

    // Sums are only needed above blocks, of which those within tell all that is asked for.
    let mut all = Sums::new(of.len(), setup, true);
    for (at, cell) in of.iter().enumerate().rev() {
        match cell {
            Cell::Above(_) => all.sum(at, cells.links[at].children(), &[]),
            &Cell::Within(block, 0) => match branch(block) {
                Some(branch) => all.copy(at, &branch.sums, 0),
                None => all.copy(at, sums, block),
            },
            Cell::Within(..) => (),
        }
    }
    cells.follow(&all, &levels, setup);
    for (at, cell) in of.iter().enumerate() {
        let &Cell::Within(block, cell) = cell else { continue };
        if let Some(branch) = branch(block) {
            cells.set_value(at, &branch.cells.value(cell));
        } else if let Some(other) = others.get(&block) {
            cells.set_value(at, &other.values[cell]);
        }
    }

    let (mut groups, mut blocks, mut groups_of) = (Vec::new(), Vec::new(), Vec::new());
    for (block, branch) in own_blocks.clone().zip(own) {
        blocks.push(firsts[block]);
        let before = groups.len();
        groups.extend(branch.groups.iter().map(|first| firsts[block] + first));
        groups_of.push(before..groups.len());
    }
    groups.push(firsts[own_blocks.end]);
    blocks.push(firsts[own_blocks.end]);
    let part = Some(Part { first: firsts[first] as usize, stored });
    let tree = Tree::of(setup, side, (cells, points, part), (groups, blocks));
    Partial { tree, groups: groups_of }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bodies::Bodies;
    use crate::forces::{self, Lists};
    use crate::generate;
    use crate::kernel::Kernel;
    use crate::options::Order;
    use crate::shared::{Accuracy, Positions};
    use crate::tree::{morton, sort};

    fn sorted(bodies: &Bodies) -> (Positions, Vec<(u64, u32)>, Vec<[f32; 3]>) {
        let positions = Positions::new(&bodies.position, 0.01);
        let inside = positions.inside();
        let keys = sort(inside.iter().map(|p| morton(*p)).collect());
        (positions, keys, inside)
    }

    fn bodies(n: usize, seed: u64, same: usize) -> Bodies {
        let mut bodies = generate::galaxies(n, seed);
        for i in 0..same.min(n) {
            bodies.position[i] = bodies.position[n - 1];
        }
        bodies
    }

    fn firsts(infos: &[Info]) -> Vec<usize> {
        let first = |sum: &mut usize, info: &Info| {
            let first = *sum;
            *sum += info.bodies as usize;
            Some(first)
        };
        infos.iter().scan(0, first).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// However keys are cut into ranges, the pieces of all make the blocks of the whole tree.
        #[test]
        fn pieces_make_the_blocks_of_the_whole(
            n in 1usize..4000, seed in any::<u64>(), group in 1u32..12, same in 0usize..300,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0u32..60), 0..8),
        ) {
            let bodies = bodies(n, seed, same);
            let (positions, keys, _) = sorted(&bodies);
            let accuracy = Accuracy { order: Order::Mono, theta: 0.7, softening: 0.01, leaf: 4, group };
            let setup = Setup::new(&bodies, accuracy);
            let tree = positions.tree(&setup).unwrap();
            let whole = blocks(&keys, &setup, 1.0);
            let firsts = firsts(&whole);
            for &first in &firsts {
                // One point may be many blocks of the tree: those are one here.
                prop_assert_eq!(tree.block(first).start, first);
            }
            prop_assert_eq!(firsts.len(), (0..n).filter(|&i| {
                tree.block(i).start == i && (i == 0 || keys[i].0 != keys[i - 1].0)
            }).count());
            // Cuts at some bodies' keys, rounded.
            let mut cuts: Vec<u64> = cuts.iter().map(|(i, bits)| keys[i.index(n)].0 >> bits << bits).collect();
            cuts.extend([0, 1 << 63]);
            cuts.sort_unstable();
            let mut all = Vec::new();
            for range in cuts.windows(2) {
                let [from, to] = [range[0], range[1]].map(|cut| keys.partition_point(|key| key.0 < cut));
                all.extend(pieces(&keys[from..to], range[0]..range[1], &setup, |bodies| bodies.len() as f32));
            }
            let merged: Vec<Info> = merged(&all, &setup).into_iter().map(|some| joined(&all[some])).collect();
            prop_assert_eq!(merged, whole);
        }

        /// Forces on own bodies have the bits of those in the whole tree once all that is missing has come.
        #[test]
        fn a_part_gives_the_bits_of_the_whole(
            n in 1usize..6000, seed in any::<u64>(), group in 2u32..20, leaf in 1u32..16, same in 0usize..100,
            order in prop_oneof![Just(Order::Mono), Just(Order::Quad), Just(Order::Series)],
            error in prop::option::of(1e-4f64..0.1), theta in 0.3f64..1.2,
            from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
        ) {
            let bodies = bodies(n, seed, same);
            let setup = Setup::new(&bodies, Accuracy { order, theta, softening: 0.01, leaf, group }).with_error(error);
            let (positions, keys, inside) = sorted(&bodies);
            let whole = forces::all(positions.tree(&setup).unwrap());
            let masses = setup.masses();

            let infos = blocks(&keys, &setup, 1.0);
            let (a, b) = (from.index(infos.len()), to.index(infos.len()));
            let own = a.min(b)..a.max(b) + 1;
            let mut first = 0;
            let mut sums = Sums::new(infos.len(), &setup, true);
            let mut branches = Vec::new();
            for (block, info) in infos.iter().enumerate() {
                let keys = &keys[first..first + info.bodies as usize];
                let mut branch = Branch::new(keys, &setup);
                let point = |&(_, i): &(u64, u32)| {
                    let [x, y, z] = inside[i as usize];
                    [x, y, z, masses[i as usize]]
                };
                let points: Vec<_> = keys.iter().map(point).collect();
                branch.sum_up(&points, &setup);
                let mut bytes = Vec::new();
                branch.write(&mut bytes);
                prop_assert_eq!(sums.read(block, &bytes), Some(&[][..]));
                branches.push(branch);
                first += info.bodies as usize;
            }
            let mut others = BTreeMap::new();
            let side = positions.side();
            let mut rounds = 0;
            let partial = loop {
                let mine = (own.start, &branches[own.clone()]);
                let partial = assemble(&infos, &sums, mine, &others, &setup, side);
                let (mut absent, mut sinks) = (Vec::new(), Vec::new());
                let mut lists = Lists::new(&partial.tree, Kernel::best(), true);
                for (block, groups) in own.clone().zip(&partial.groups) {
                    let bodies = partial.tree.bodies(groups.clone());
                    lists.absent(bodies.clone(), &mut absent);
                    let extent = branches[block].sums.extent(0).unwrap();
                    sinks.push(Sink { extent, scale: lists.scale_of(bodies) });
                }
                if absent.is_empty() {
                    break partial;
                }
                // What is far when nothing is missing may be near when something is, and its scale wrong: twice is enough.
                rounds += 1;
                prop_assert!(rounds <= 4, "{} cells are still missing", absent.len());
                for cell in absent {
                    let first = partial.tree.cells.links[cell as usize].first as usize;
                    let block = firsts(&infos).partition_point(|&other| other <= first) - 1;
                    let mut bytes = Vec::new();
                    let cells = branches[block].tell(&sinks, &mut bytes);
                    prop_assert!(cells > 0);
                    let (other, rest) = Other::read(infos[block].bodies, &bytes, &setup).unwrap();
                    prop_assert_eq!((other.cells(), rest), (cells, &[][..]));
                    others.insert(block, other);
                }
            };
            let mut lists = Lists::new(&partial.tree, Kernel::best(), true);
            let mut got = Vec::new();
            for group in 0..partial.tree.groups() {
                lists.one_group(partial.tree.bodies(group..group + 1), &mut got);
                prop_assert!(!lists.is_short());
            }
            let all = partial.tree.bodies(0..partial.tree.groups());
            let row = forces::BYTES_A_BODY;
            prop_assert!(got == whole[all.start * row..all.end * row], "the bits differ");
        }
    }
}
