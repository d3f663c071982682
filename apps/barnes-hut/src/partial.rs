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

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::shared::Setup;
use crate::tree::{
    ABSENT, Builder, Cells, GROUPS_A_BLOCK, LEVELS, Link, Part, Sums, Tree, agreeing,
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
    let mut open = vec![0..keys.len()];
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
    let mut open = vec![0..pieces.len()];
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
    links: Vec<Link>,
    levels: Vec<u8>,
    /// First body of each group.
    pub groups: Vec<u32>,
    sums: Sums,
}

impl Branch {
    /// The cells of a block with these keys, sorted. Sums are all zero.
    pub(crate) fn new(keys: &[(u64, u32)], setup: &Setup) -> Self {
        let Builder { cells, levels, groups, .. } = Builder::build(keys, setup);
        let sums = Sums::new(levels.len(), setup, true);
        Self { links: cells.links, levels, groups, sums }
    }

    /// Sums up all cells anew, the block's bodies being at these places.
    pub(crate) fn sum_up(&mut self, points: &[[f32; 4]], setup: &Setup) {
        self.sums = Sums::new(self.levels.len(), setup, true);
        for at in (0..self.links.len()).rev() {
            self.sums.sum(at, self.links[at].children(), &points[self.links[at].bodies()]);
        }
    }

    /// Sums of the whole block, as [`Sums::write`] writes them.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        self.sums.write(0, to);
    }
}

/// A block whose bodies are here.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    pub branch: Branch,
    /// Position and mass of each body, in sides of the box.
    pub points: Vec<[f32; 4]>,
}

/// A part of a tree, and which cell of it is which block.
pub(crate) struct Partial {
    pub tree: Tree,
    /// The cell of each block.
    pub cells: Vec<u32>,
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

/// Puts together what there is: `infos` and `sums` tell of all blocks, `here` has those that are here, the `own` ones among
/// them.
///
/// # Panics
/// If an own block is not here.
pub(crate) fn assemble(
    infos: &[Info],
    sums: &Sums,
    here: &[Option<Here>],
    own: Range<usize>,
    setup: &Setup,
    side: f64,
) -> Partial {
    let mut firsts = vec![0u32];
    for info in infos {
        firsts.push(firsts[firsts.len() - 1] + info.bodies);
    }
    // Own bodies come first.
    let mut points = Vec::new();
    let mut begins = vec![ABSENT; infos.len()];
    let others = (0..own.start).chain(own.end..infos.len());
    for block in own.clone().chain(others) {
        if let Some(here) = &here[block] {
            begins[block] = points.len() as u32;
            points.extend_from_slice(&here.points);
        }
    }

    let mut cells = Cells::default();
    let (mut of, mut levels, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_block = vec![0u32; infos.len()];
    let mut add = |cell: Cell, links: &mut Vec<Link>, of: &mut Vec<Cell>| {
        let (bodies, level, begin) = match &cell {
            Cell::Above(blocks) => {
                let (first, last) = (infos[blocks.start].first, infos[blocks.end - 1].last);
                (firsts[blocks.start]..firsts[blocks.end], agreeing(first ^ last) as u8, ABSENT)
            }
            &Cell::Within(block, at) => {
                if at == 0 {
                    of_block[block] = links.len() as u32;
                }
                let first = firsts[block];
                match &here[block] {
                    Some(here) => {
                        let Link { first: from, end, .. } = here.branch.links[at];
                        let begin = begins[block] + from;
                        (first + from..first + end, here.branch.levels[at], begin)
                    }
                    None => (first..firsts[block + 1], infos[block].level() as u8, ABSENT),
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
                if let Some(here) = &here[block] {
                    for child in here.branch.links[cell].children() {
                        add(Cell::Within(block, child), &mut cells.links, &mut of);
                    }
                }
            }
        }
        let children = (of.len() - child) as u32;
        cells.links[at] = Link { child: child as u32, children, ..cells.links[at] };
        at += 1;
    }

    let mut all = Sums::new(of.len(), setup, true);
    for (at, cell) in of.iter().enumerate().rev() {
        match cell {
            Cell::Above(_) => all.sum(at, cells.links[at].children(), &[]),
            &Cell::Within(block, cell) => match &here[block] {
                Some(here) => all.copy(at, &here.branch.sums, cell),
                None => all.copy(at, sums, block),
            },
        }
    }
    cells.follow(&all, &levels, setup);

    let (mut groups, mut blocks, mut groups_of) = (Vec::new(), Vec::new(), Vec::new());
    for block in own.clone() {
        let branch = &here[block].as_ref().expect("own blocks are here").branch;
        blocks.push(firsts[block]);
        let before = groups.len();
        groups.extend(branch.groups.iter().map(|first| firsts[block] + first));
        groups_of.push(before..groups.len());
    }
    groups.push(firsts[own.end]);
    blocks.push(firsts[own.end]);
    let part = Part { first: firsts[own.start] as usize, stored };
    let tree = Tree::partly(setup, side, (cells, points, part), (groups, blocks));
    Partial { tree, cells: of_block, groups: groups_of }
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
            let firsts: Vec<usize> = whole.iter().scan(0, |sum, info| {
                let first = *sum;
                *sum += info.bodies as usize;
                Some(first)
            }).collect();
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
            quad in any::<bool>(), error in prop::option::of(1e-4f64..0.1), theta in 0.3f64..1.2,
            from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
        ) {
            let bodies = bodies(n, seed, same);
            let order = if quad { Order::Quad } else { Order::Mono };
            let setup = Setup::new(&bodies, Accuracy { order, theta, softening: 0.01, leaf, group }).with_error(error);
            let (positions, keys, inside) = sorted(&bodies);
            let whole = forces::all(positions.tree(&setup).unwrap());
            let masses = setup.masses();

            let infos = blocks(&keys, &setup, 1.0);
            let (a, b) = (from.index(infos.len()), to.index(infos.len()));
            let own = a.min(b)..a.max(b) + 1;
            let mut first = 0;
            let mut sums = Sums::new(infos.len(), &setup, true);
            let mut everywhere = Vec::new();
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
                everywhere.push(Some(Here { branch, points }));
                first += info.bodies as usize;
            }
            let mut here: Vec<Option<Here>> = infos.iter().map(|_| None).collect();
            for block in own.clone() {
                here[block] = everywhere[block].take();
            }
            let side = positions.side();
            let mut fetched = 0;
            let partial = loop {
                let partial = assemble(&infos, &sums, &here, own.clone(), &setup, side);
                let mut absent = Vec::new();
                let mut lists = Lists::new(&partial.tree, Kernel::best(), true);
                for groups in &partial.groups {
                    lists.absent(partial.tree.bodies(groups.clone()), &mut absent);
                }
                if absent.is_empty() {
                    break partial;
                }
                for cell in absent {
                    let block = partial.cells.iter().position(|&c| c == cell).unwrap();
                    fetched += usize::from(here[block].is_none());
                    here[block] = here[block].take().or(everywhere[block].take());
                }
            };
            prop_assert!(fetched <= infos.len() - own.len());
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
