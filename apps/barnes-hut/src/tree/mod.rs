//! The octree over Morton-sorted bodies, and the groups of bodies that share one list of
//! interactions.
//!
//! Lengths are in sides of the box, masses in mass units (see [`crate::shared`]). The tree is a
//! pure function of the shared objects, so every node has the same cells, groups and bits. This
//! module does not depend on the computation of forces.

mod build;
mod cells;
mod keys;
mod sums;
#[cfg(test)]
mod tests;
mod value;

use std::ops::Range;

use springtide_runtime::work::{ParallelLoops, Sequential, collect};

pub(crate) use self::build::{Builder, GROUPS_A_BLOCK};
pub(crate) use self::cells::{CellContents, Cells, Graft, first_of};
pub(crate) use self::keys::{
    LEVELS, SortScratch, Sorted, agreeing, corner, morton, sort, sorted_pairs,
};
pub(crate) use self::sums::CellSums;
pub(crate) use self::value::{CellNumbers, reach_scale};
use crate::loops::BODIES_PER_PIECE;
use crate::setup::{CellExpansion, Setup};
use crate::shared::Positions;

/// The tree of one version of the positions.
#[derive(Clone, Debug)]
pub struct BodyTree {
    /// The original index of each body in the tree's order.
    order: Vec<u32>,
    /// Position and mass of each body in the tree's order.
    pub(crate) points: Vec<[f32; 4]>,
    pub(crate) cells: Cells,
    /// The first body of each group, and the number of bodies at the end.
    groups: Vec<u32>,
    /// The first body of each block, which is a sequence of neighbouring groups, and the number of
    /// bodies at the end.
    blocks: Vec<u32>,
    /// The square of the softening length.
    pub(crate) softening_squared: f32,
    /// The opening angle, without a wanted error.
    pub(crate) theta: f64,
    /// The wanted error of a far cell, as a part of the acceleration, if it replaces the opening
    /// angle.
    pub(crate) error: Option<f64>,
    pub(crate) order_of_cells: CellExpansion,
    /// The present part, if this is a part of a tree.
    pub(crate) part: Option<TreePart>,
}

/// Memory that one tree after the other is built with.
#[derive(Debug, Default)]
pub struct TreeScratch {
    keys: Vec<u64>,
    sort: SortScratch,
    sums: CellSums,
}

/// The present part of a tree whose bodies lie on several nodes (see [`crate::partial`]).
///
/// Bodies have the numbers of the whole tree; `points` contains some of them.
#[derive(Clone, Debug)]
pub(crate) struct TreePart {
    /// The first body of `groups` and `blocks`; `points` starts with these bodies.
    pub first: usize,
    /// The index in `points` of each cell's first body; [`ABSENT`] if its bodies are absent.
    pub stored: Vec<u32>,
}

/// Marks a cell whose bodies are absent: see [`TreePart`].
pub(crate) const ABSENT: u32 = u32::MAX;

impl BodyTree {
    /// Builds the tree on this thread. If one object has more bodies, these are ignored;
    /// [`Positions::tree`] refuses such objects.
    pub(crate) fn build(positions: &Positions, setup: &Setup) -> Self {
        let mut scratch = TreeScratch::default();
        let Ok(tree) =
            Self::build_in_stages(&Sequential, positions, setup, &mut scratch, &mut |_| {});
        tree
    }

    /// As [`build`](Self::build), with these loops; calls `lap` with the name of each stage at its
    /// end.
    ///
    /// # Errors
    /// The loops must stop.
    pub(crate) fn build_in_stages<L: ParallelLoops>(
        loops: &L,
        positions: &Positions,
        setup: &Setup,
        TreeScratch { keys, sort: sort_scratch, sums }: &mut TreeScratch,
        lap: &mut dyn FnMut(&'static str),
    ) -> Result<Self, L::Stop> {
        let count = positions.len().min(setup.len());
        let body = |at: usize| {
            let [x, y, z] = positions.place(at);
            [x, y, z, setup.mass(at)]
        };
        keys.resize(count, 0);
        loops.parallel_chunks(keys, BODIES_PER_PIECE, |first, keys| {
            let places = first..first + keys.len();
            keys.iter_mut().zip(places).for_each(|(key, at)| *key = morton(positions.place(at)));
        })?;
        let Sorted { order, prefixes } = sort(loops, keys, sort_scratch)?;
        lap("sort");
        let points = collect(loops, count, BODIES_PER_PIECE, |at| body(order[at] as usize))?;
        let Builder { mut cells, levels, generations, mut groups, mut blocks } =
            Builder::build(loops, prefixes, setup)?;
        groups.push(order.len() as u32);
        blocks.push(order.len() as u32);
        lap("build");
        sums.resize(levels.len(), setup, false);
        cells.sum_up(loops, sums, &points, (&levels, &generations), setup)?;
        lap("moments");
        let made = (cells, points, None);
        Ok(Self { order, ..Self::of(setup, positions.side(), made, (groups, blocks)) })
    }

    /// Makes a tree of these cells and points, the whole or a part; the bodies of groups and blocks
    /// come first in `points`.
    ///
    /// The order of the bodies is not set.
    pub(crate) fn of(
        setup: &Setup,
        side: f64,
        (cells, points, part): (Cells, Vec<[f32; 4]>, Option<TreePart>),
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

    /// The cells, points and indices, whose memory serves another tree.
    pub(crate) fn into_room(self) -> (Cells, Vec<[f32; 4]>, Vec<u32>) {
        let Self { cells, points, part, .. } = self;
        (cells, points, part.map(|part| part.stored).unwrap_or_default())
    }

    /// Position and mass of bodies in the tree's groups.
    pub(crate) fn own(&self, bodies: Range<usize>) -> &[[f32; 4]] {
        let first = self.part.as_ref().map_or(0, |part| part.first);
        &self.points[bodies.start - first..bodies.end - first]
    }

    /// Position and mass of a cell's bodies, if they are present.
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

    /// Whether a cell cannot be opened, for its contents are absent.
    pub(crate) fn is_absent(&self, cell: usize) -> bool {
        let stored = self.part.as_ref().map(|part| part.stored[cell]);
        stored == Some(ABSENT) && self.cells.links[cell].children == 0
    }

    /// The number of groups; tasks are ranges of them.
    pub fn groups(&self) -> usize {
        self.groups.len() - 1
    }

    /// The bodies of these groups, in the tree's order.
    ///
    /// # Panics
    /// Panics if the range does not lie within the tree's groups.
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

    /// Splits a range of at least two groups so that both sides have about half of the bodies;
    /// neither is empty.
    pub fn middle(&self, groups: Range<usize>) -> usize {
        let bodies = self.bodies(groups.clone());
        let half = (bodies.start + bodies.len() / 2) as u32;
        let cut = groups.start + self.groups[groups.clone()].partition_point(|&first| first < half);
        cut.clamp(groups.start + 1, groups.end - 1)
    }

    /// The original index of each body in the tree's order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }
}
