//! Builds cells, groups and blocks from sorted keys.

use std::ops::Range;

use super::cells::{CellContents, Cells};
use super::keys::{LEVELS, agreeing};
use crate::shared::Setup;

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

/// Builds cells, groups and blocks from sorted keys.
pub(crate) struct Builder<'a, K> {
    keys: &'a [K],
    leaf: usize,
    group: usize,
    pub cells: Cells,
    /// The level of each cell.
    pub levels: Vec<u8>,
    /// The first body of each group.
    pub groups: Vec<u32>,
    /// The first body of each block.
    pub blocks: Vec<u32>,
}

impl<'a, K: Keyed> Builder<'a, K> {
    /// Builds the cells of all these keys, which are sorted as their bodies.
    pub(crate) fn build(keys: &'a [K], setup: &Setup) -> Self {
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

    /// Builds all cells, groups and blocks. No cell is deeper than [`LEVELS`], for each split fixes
    /// at least one more level.
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
                    let octant = self.keys[start].key() >> shift;
                    let rest = &self.keys[start..bodies.end];
                    let end = start + rest.partition_point(|key| key.key() >> shift <= octant);
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

    /// Adds the cell of these bodies (at least one); its parent has `above` bodies.
    fn add(&mut self, bodies: Range<usize>, above: usize) {
        let differing = self.keys[bodies.start].key() ^ self.keys[bodies.end - 1].key();
        let level = agreeing(differing);
        let whole = bodies.len() <= self.leaf || level == LEVELS;
        let cut = |most: usize, firsts: &mut Vec<u32>| {
            // The first cell on the way down that is small enough, or is not split. A leaf may hold
            // more than a group's bodies, for any number may share one point.
            if above > most && (whole || bodies.len() <= most) {
                firsts.extend(bodies.clone().step_by(most).map(|first| first as u32));
            }
        };
        cut(self.group, &mut self.groups);
        cut(self.group * GROUPS_A_BLOCK, &mut self.blocks);
        self.levels.push(level as u8);
        let (first, end) = (bodies.start as u32, bodies.end as u32);
        self.cells.links.push(CellContents { first, end, child: 0, children: 0 });
    }
}
