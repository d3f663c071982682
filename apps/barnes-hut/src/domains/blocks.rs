//! The forces on the blocks of a domain, on all threads of the node.
//!
//! This module depends on neither messages nor the order of blocks.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use springtide_runtime::work::ParallelLoops;

use super::costs::{BODY_COST, Costs};
use crate::calibrate;
use crate::forces::Lists;
use crate::kernel::Kernel;
use crate::tree::BodyTree;

/// Blocks of one piece of a loop that only looks for absent cells.
const LOOKS_PER_PIECE: usize = 8;

/// The results of the blocks of a domain in one step.
pub(super) struct BlockForces {
    /// The forces on the bodies of each block, in the format of [`crate::forces::compute`]; empty
    /// until they are computed.
    pub rows: Vec<Vec<u8>>,
    /// The cost of the forces on each block.
    pub costs: Vec<f32>,
    /// The scale of cell sizes as seen from each block.
    pub scales: Vec<f32>,
}

impl BlockForces {
    pub(super) fn new(blocks: usize) -> Self {
        Self { rows: vec![Vec::new(); blocks], costs: vec![0.0; blocks], scales: vec![0.0; blocks] }
    }

    pub(super) fn is_computed(&self, block: usize) -> bool {
        !self.rows[block].is_empty()
    }
}

/// The present and the absent data of a block's lists.
pub(super) struct BlockLook {
    /// The cells that are absent.
    pub absent: Vec<u32>,
    /// The scale of cell sizes as seen from the block.
    pub scale: f32,
    /// The number of entries that were made for this.
    pub entries: usize,
}

/// The forces on one block, and what they took.
pub(super) struct BlockWork {
    pub rows: Vec<u8>,
    /// Pairs of a body with a point, and with a cell with second moments.
    pairs: [f64; 2],
    entries: usize,
    bodies: usize,
    cost: f64,
    /// Whether data was absent; the forces are wrong then.
    pub is_short: bool,
}

impl BlockWork {
    /// The modelled time without that of the bodies, in nanoseconds.
    pub(super) fn time(&self, costs: &Costs) -> f64 {
        let [points, quads] = self.pairs;
        costs.point * points + costs.quad * quads + costs.entry * self.entries as f64
    }

    /// The cost: the modelled time if there are modelled costs, else in the unit of
    /// [`calibrate::cost`].
    pub(super) fn cost(&self, costs: Option<&Costs>) -> f32 {
        let modelled = |costs: &Costs| self.time(costs) + costs.body * self.bodies as f64;
        costs.map_or(self.cost, modelled) as f32
    }
}

/// Makes lists for the blocks of a tree, and keeps their memory for others.
pub(super) struct ListMaker<'t> {
    tree: &'t BodyTree,
    free: Mutex<Vec<Lists<'t>>>,
}

impl<'t> ListMaker<'t> {
    pub(super) fn new(tree: &'t BodyTree) -> Self {
        Self { tree, free: Mutex::default() }
    }

    fn with_lists<R>(&self, with: impl FnOnce(&mut Lists<'t>) -> R) -> R {
        // A panic under the lock leaves valid lists behind.
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let lists = free().pop();
        let mut lists = lists.unwrap_or_else(|| Lists::new(self.tree, Kernel::best(), true));
        let result = with(&mut lists);
        free().push(lists);
        result
    }

    /// What is absent for each of these blocks, given by their bodies.
    ///
    /// # Errors
    /// The loops must stop.
    pub(super) fn look<L: ParallelLoops>(
        &self,
        loops: &L,
        blocks: &[Range<usize>],
    ) -> Result<Vec<BlockLook>, L::Stop> {
        let look = |lists: &mut Lists<'_>, bodies: &Range<usize>| {
            let mut absent = Vec::new();
            lists.absent(bodies.clone(), &mut absent);
            let scale = lists.scale_of(bodies.clone());
            BlockLook { absent, scale, entries: lists.looked_at() }
        };
        let looks = loops.parallel_map(0..blocks.len(), LOOKS_PER_PIECE, |piece| {
            let blocks = &blocks[piece];
            self.with_lists(|lists| blocks.iter().map(|bodies| look(lists, bodies)).collect())
        })?;
        let looks: Vec<Vec<BlockLook>> = looks;
        Ok(looks.into_iter().flatten().collect())
    }

    /// The forces on each of these blocks, given by their bodies.
    ///
    /// # Errors
    /// The loops must stop.
    pub(super) fn compute<L: ParallelLoops>(
        &self,
        loops: &L,
        blocks: &[Range<usize>],
    ) -> Result<Vec<BlockWork>, L::Stop> {
        let works = loops.parallel_map(0..blocks.len(), 1, |piece| {
            let bodies = &blocks[piece.start];
            self.with_lists(|lists| self.compute_block(lists, bodies.clone()))
        })?;
        Ok(works)
    }

    fn compute_block(&self, lists: &mut Lists<'_>, bodies: Range<usize>) -> BlockWork {
        let mut work = BlockWork {
            rows: Vec::new(),
            pairs: [0.0; 2],
            entries: 0,
            bodies: bodies.len(),
            cost: 0.0,
            is_short: false,
        };
        for group in self.tree.groups_of(bodies) {
            let bodies = self.tree.bodies(group..group + 1);
            let count = bodies.len();
            let counts = lists.one_group(bodies, &mut work.rows);
            work.is_short |= lists.is_short();
            let [points, quads, _] = counts;
            work.pairs[0] += (count * points) as f64;
            work.pairs[1] += (count * quads) as f64;
            work.entries += counts.iter().sum::<usize>();
            work.cost += calibrate::cost(counts, count) + BODY_COST * count as f64;
        }
        work
    }
}
