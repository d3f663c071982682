//! The cells of a root whose bodies are all present.

use std::cmp::Reverse;
use std::iter::Peekable;

use springtide_runtime::work::Sequential;

use super::blocks::most_bodies;
use crate::setup::Setup;
use crate::tree::{Builder, CellContents, CellSums, Cells};

/// The cells of a root; indices of bodies and cells start at its first.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(super) cells: Cells,
    pub(super) levels: Vec<u8>,
    /// The first body of each group.
    pub(super) groups: Vec<u32>,
    /// The first body of each block.
    pub(super) blocks: Vec<u32>,
    /// The cell of each block, in order; blocks at one point share a cell.
    pub(super) tops: Vec<u32>,
    pub(super) sums: CellSums,
    /// Position and mass of each body, in sides of the box.
    pub(super) points: Vec<[f32; 4]>,
}

impl Branch {
    /// The cells of a root with these sorted keys. All sums are zero until
    /// [`sum_up`](Self::sum_up).
    pub(crate) fn new(keys: &[(u64, u32)], setup: &Setup) -> Self {
        let Ok(built) = Builder::build(&Sequential, keys, setup);
        let Builder { cells, levels, groups, blocks, .. } = built;
        let sums = CellSums::new(levels.len(), setup, true);
        let most = most_bodies(setup.group);
        let is_block = |link: &CellContents| link.children == 0 || link.bodies().len() <= most;
        let below = |link: &CellContents| if is_block(link) { 0..0 } else { link.children() };
        let mut tops: Vec<u32> =
            cells.links.iter().flat_map(below).map(|cell| cell as u32).collect();
        tops.extend(cells.links.first().map(|_| 0));
        tops.retain(|&cell| is_block(&cells.links[cell as usize]));
        tops.sort_unstable_by_key(|&cell| cells.links[cell as usize].first);
        Self { cells, levels, groups, blocks, tops, sums, points: vec![[0.0; 4]; keys.len()] }
    }

    /// Sums up all cells for bodies at these places.
    ///
    /// If sums of blocks were sent ahead, cells at least as large as blocks follow from those; this
    /// root's start at `first`.
    pub(crate) fn sum_up(
        &mut self,
        points: &[[f32; 4]],
        ahead: Option<(&CellSums, usize)>,
        setup: &Setup,
    ) {
        self.points.copy_from_slice(points);
        let links = &self.cells.links;
        let mut tops = self.by_cell();
        for at in (0..links.len()).rev() {
            let block = tops.next_if(|&(cell, _)| cell as usize == at).map(|(_, block)| block);
            match block.zip(ahead) {
                Some((block, (blocks, first))) => self.sums.copy(at, blocks, first + block),
                None => self.sums.sum(at, links[at].children(), &points[links[at].bodies()]),
            }
        }
        let Ok(()) = self.cells.follow(&Sequential, &self.sums, &self.levels, setup);
    }

    /// The cells of blocks with the numbers of the blocks, deepest first.
    fn by_cell(&self) -> Peekable<impl Iterator<Item = (u32, usize)> + use<>> {
        let mut tops: Vec<(u32, usize)> = self.tops.iter().copied().zip(0..).collect();
        tops.sort_unstable_by_key(|&(cell, _)| Reverse(cell));
        tops.into_iter().peekable()
    }

    /// The sums of the whole root, as [`CellSums::row`] has them, from sums of blocks that start at
    /// `first`.
    pub(crate) fn sums_of(
        &self,
        (blocks, first): (&CellSums, usize),
        setup: &Setup,
        to: &mut Vec<f32>,
    ) {
        let mut tops = self.by_cell();
        let deepest = tops.peek().map_or(0, |&(cell, _)| cell as usize);
        let mut sums = CellSums::new(deepest + 1, setup, true);
        for at in (0..=deepest).rev() {
            if let Some((_, block)) = tops.next_if(|&(cell, _)| cell as usize == at) {
                sums.copy(at, blocks, first + block);
            } else if !self.is_within_block(at) {
                sums.sum(at, self.cells.links[at].children(), &[]);
            }
        }
        sums.row(0, to);
    }

    /// Whether a cell is smaller than its block.
    pub(super) fn is_within_block(&self, cell: usize) -> bool {
        let CellContents { first, end, .. } = self.cells.links[cell];
        let link = |top: &u32| self.cells.links[*top as usize];
        let after = self.tops.partition_point(|top| link(top).first <= first);
        let top = self.tops[..after].last().map(link);
        top.is_some_and(|top| end - first < top.end - top.first)
    }

    /// Whether the bodies are at these places.
    pub(crate) fn is_at(&self, points: &[[f32; 4]]) -> bool {
        self.points == points
    }

    /// The masses of the bodies.
    pub(crate) fn masses(&self) -> impl Iterator<Item = f32> {
        self.points.iter().map(|&[.., mass]| mass)
    }

    /// The places and masses of the bodies.
    pub(crate) fn points(&self) -> &[[f32; 4]] {
        &self.points
    }

    /// The number of bodies.
    pub(crate) fn bodies(&self) -> usize {
        self.points.len()
    }

    /// Appends the sums of the whole root, as [`CellSums::row`] has them.
    pub(crate) fn sums(&self, to: &mut Vec<f32>) {
        self.sums.row(0, to);
    }
}
