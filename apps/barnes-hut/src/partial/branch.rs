//! The cells of a root whose bodies are all here. Knows not who is told of them.

use std::cmp::Reverse;
use std::iter::Peekable;

use super::blocks::most_bodies;
use crate::shared::Setup;
use crate::tree::{Builder, Cells, Link, Sums};

/// The cells of a root; bodies and cells count from its first.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(super) cells: Cells,
    pub(super) levels: Vec<u8>,
    /// First body of each group.
    pub(super) groups: Vec<u32>,
    /// First body of each block.
    pub(super) blocks: Vec<u32>,
    /// The cell of each block, in order; where blocks share a point they share one.
    pub(super) tops: Vec<u32>,
    pub(super) sums: Sums,
    /// Position and mass of each body, in sides of the box.
    pub(super) points: Vec<[f32; 4]>,
}

impl Branch {
    /// The cells of a root with these keys, sorted. All is zero until it is summed up.
    pub(crate) fn new(keys: &[(u64, u32)], setup: &Setup) -> Self {
        let Builder { cells, levels, groups, blocks, .. } = Builder::build(keys, setup);
        let sums = Sums::new(levels.len(), setup, true);
        let most = most_bodies(setup.group);
        let is_block = |link: &Link| link.children == 0 || link.bodies().len() <= most;
        let below = |link: &Link| if is_block(link) { 0..0 } else { link.children() };
        let mut tops: Vec<u32> =
            cells.links.iter().flat_map(below).map(|cell| cell as u32).collect();
        tops.extend(cells.links.first().map(|_| 0));
        tops.retain(|&cell| is_block(&cells.links[cell as usize]));
        tops.sort_unstable_by_key(|&cell| cells.links[cell as usize].first);
        Self { cells, levels, groups, blocks, tops, sums, points: vec![[0.0; 4]; keys.len()] }
    }

    /// Sums up all cells anew, the bodies being at these places. Where sums of blocks were told ahead, cells that are no smaller
    /// follow from those: of blocks' sums the ones from `first` on are this root's.
    pub(crate) fn sum_up(
        &mut self,
        points: &[[f32; 4]],
        ahead: Option<(&Sums, usize)>,
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
        self.cells.follow(&self.sums, &self.levels, setup);
    }

    /// Cells of blocks, deepest first, and which block it is.
    fn by_cell(&self) -> Peekable<impl Iterator<Item = (u32, usize)> + use<>> {
        let mut tops: Vec<(u32, usize)> = self.tops.iter().copied().zip(0..).collect();
        tops.sort_unstable_by_key(|&(cell, _)| Reverse(cell));
        tops.into_iter().peekable()
    }

    /// Sums of the whole, as [`Sums::row`] has them, that follow from these of blocks, the ones from `first` on.
    pub(crate) fn sums_of(
        &self,
        (blocks, first): (&Sums, usize),
        setup: &Setup,
        to: &mut Vec<f32>,
    ) {
        let mut tops = self.by_cell();
        let deepest = tops.peek().map_or(0, |&(cell, _)| cell as usize);
        let mut sums = Sums::new(deepest + 1, setup, true);
        for at in (0..=deepest).rev() {
            if let Some((_, block)) = tops.next_if(|&(cell, _)| cell as usize == at) {
                sums.copy(at, blocks, first + block);
            } else if !self.is_within_block(at) {
                sums.sum(at, self.cells.links[at].children(), &[]);
            }
        }
        sums.row(0, to);
    }

    /// Whether a cell is smaller than the block that it is of.
    pub(super) fn is_within_block(&self, cell: usize) -> bool {
        let Link { first, end, .. } = self.cells.links[cell];
        let link = |top: &u32| self.cells.links[*top as usize];
        let after = self.tops.partition_point(|top| link(top).first <= first);
        let top = self.tops[..after].last().map(link);
        top.is_some_and(|top| end - first < top.end - top.first)
    }

    /// Whether its bodies are at these places.
    pub(crate) fn is_at(&self, points: &[[f32; 4]]) -> bool {
        self.points == points
    }

    /// Where its bodies are.
    pub(crate) fn points(&self) -> &[[f32; 4]] {
        &self.points
    }

    /// How many bodies it has.
    pub(crate) fn bodies(&self) -> usize {
        self.points.len()
    }

    /// Sums of the whole, as [`Sums::row`] has them.
    pub(crate) fn sums(&self, to: &mut Vec<f32>) {
        self.sums.row(0, to);
    }
}
