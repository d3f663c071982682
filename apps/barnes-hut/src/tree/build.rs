//! Builds cells, groups and blocks from sorted keys.

use std::ops::Range;

use springtide_runtime::work::ParallelLoops;

use super::cells::{CellContents, Cells};
use super::keys::{LEVELS, agreeing};
use crate::setup::Setup;

/// The maximum number of bodies of a block, in groups of maximum size.
pub(crate) const GROUPS_A_BLOCK: usize = 16;

/// An element with a key.
pub(crate) trait Keyed {
    /// The Morton key, or enough of its levels to distinguish it from others.
    fn key(&self) -> u64;
}

impl Keyed for u64 {
    fn key(&self) -> u64 {
        *self
    }
}

impl<T> Keyed for (u64, T) {
    fn key(&self) -> u64 {
        self.0
    }
}

/// Cells, groups and blocks, built from sorted keys.
pub(crate) struct Builder {
    pub cells: Cells,
    /// The level of each cell.
    pub levels: Vec<u8>,
    /// The first cell of each generation, and the number of cells at the end. The children of a
    /// generation's cells are the next one.
    pub generations: Vec<usize>,
    /// The first body of each group.
    pub groups: Vec<u32>,
    /// The first body of each block.
    pub blocks: Vec<u32>,
}

/// The number of cells of a loop's piece.
pub(super) const CELLS_PER_PIECE: usize = 512;

/// The most bodies of leaves, groups and blocks.
#[derive(Clone, Copy)]
struct Limits {
    leaf: usize,
    group: usize,
}

/// New cells of one generation, in order, with the groups and blocks that they are.
#[derive(Default)]
struct NewCells {
    links: Vec<CellContents>,
    levels: Vec<u8>,
    /// The number of children of each cell above.
    children: Vec<u32>,
    groups: Vec<u32>,
    blocks: Vec<u32>,
}

impl Builder {
    /// Builds the cells of all these keys, which are sorted as their bodies. No cell is deeper than
    /// [`LEVELS`], for each split fixes at least one more level.
    ///
    /// # Errors
    /// The loops must stop.
    pub(crate) fn build<K: Keyed + Sync, L: ParallelLoops>(
        loops: &L,
        keys: &[K],
        setup: &Setup,
    ) -> Result<Self, L::Stop> {
        let limits =
            Limits { leaf: setup.leaf.max(1) as usize, group: setup.group.max(1) as usize };
        let mut builder = Self {
            cells: Cells::default(),
            levels: Vec::new(),
            generations: vec![0],
            groups: Vec::new(),
            blocks: Vec::new(),
        };
        if keys.is_empty() {
            return Ok(builder);
        }
        let mut root = NewCells::default();
        root.add(keys, limits, 0..keys.len(), usize::MAX);
        builder.append(root);
        loop {
            let above = builder.generations[builder.generations.len() - 1]..builder.levels.len();
            if above.is_empty() {
                break;
            }
            builder.generations.push(above.end);
            let (links, levels) = (&builder.cells.links, &builder.levels);
            let below = loops.parallel_map(above.clone(), CELLS_PER_PIECE, |cells| {
                NewCells::below(keys, limits, &links[cells.clone()], &levels[cells])
            })?;
            let mut at = above.start;
            for mut new in below {
                let mut child = builder.levels.len() as u32;
                for children in std::mem::take(&mut new.children) {
                    let link = &mut builder.cells.links[at];
                    (link.child, link.children) = (child, children);
                    child += children;
                    at += 1;
                }
                builder.append(new);
            }
        }
        builder.groups.sort_unstable();
        builder.blocks.sort_unstable();
        Ok(builder)
    }

    fn append(&mut self, new: NewCells) {
        self.cells.links.extend_from_slice(&new.links);
        self.levels.extend_from_slice(&new.levels);
        self.groups.extend_from_slice(&new.groups);
        self.blocks.extend_from_slice(&new.blocks);
    }
}

impl NewCells {
    /// The children of these cells.
    fn below<K: Keyed>(keys: &[K], limits: Limits, links: &[CellContents], levels: &[u8]) -> Self {
        let mut new = Self::default();
        for (link, level) in links.iter().zip(levels) {
            let (bodies, level) = (link.bodies(), u32::from(*level));
            let before = new.levels.len();
            if bodies.len() > limits.leaf && level < LEVELS {
                let shift = 3 * (LEVELS - 1 - level);
                let mut start = bodies.start;
                while start < bodies.end {
                    let octant = keys[start].key() >> shift;
                    let rest = &keys[start..bodies.end];
                    let end = start + rest.partition_point(|key| key.key() >> shift <= octant);
                    new.add(keys, limits, start..end, bodies.len());
                    start = end;
                }
            }
            new.children.push((new.levels.len() - before) as u32);
        }
        new
    }

    /// Adds the cell of these bodies (at least one); its parent has `above` bodies.
    fn add<K: Keyed>(&mut self, keys: &[K], limits: Limits, bodies: Range<usize>, above: usize) {
        let differing = keys[bodies.start].key() ^ keys[bodies.end - 1].key();
        let level = agreeing(differing);
        let whole = bodies.len() <= limits.leaf || level == LEVELS;
        let cut = |most: usize, firsts: &mut Vec<u32>| {
            // The first cell on the way down that is small enough, or is not split. A leaf may hold
            // more than a group's bodies, for any number may share one point.
            if above > most && (whole || bodies.len() <= most) {
                firsts.extend(bodies.clone().step_by(most).map(|first| first as u32));
            }
        };
        cut(limits.group, &mut self.groups);
        cut(limits.group * GROUPS_A_BLOCK, &mut self.blocks);
        self.levels.push(level as u8);
        let (first, end) = (bodies.start as u32, bodies.end as u32);
        self.links.push(CellContents { first, end, child: 0, children: 0 });
    }
}
