//! A worker's queue of orders.
//!
//! A state machine without I/O or clock. The master has one for its own thread. This module does
//! not know programs.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::message::{BlockOrder, BlockRun};

/// The orders that a worker has received.
#[derive(Debug, Default)]
pub(super) struct OrderQueue {
    /// The common parts of batches that have not been forgotten.
    commons: BTreeMap<u64, Bytes>,
    queue: VecDeque<BlockRun>,
}

/// A block to execute.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockToRun {
    pub(super) batch: u64,
    pub(super) task: u32,
    pub(super) id: u32,
    pub(super) block: u32,
    pub(super) units: f64,
    pub(super) work: Bytes,
}

impl OrderQueue {
    pub(super) fn apply(&mut self, order: BlockOrder) {
        match order {
            BlockOrder::Common { batch, body } => drop(self.commons.insert(batch, body)),
            BlockOrder::Run(run) => self.queue.push_back(run),
            BlockOrder::Revoke { batch, task, from, to } => {
                let queue = std::mem::take(&mut self.queue);
                for run in queue {
                    if (run.batch, run.task) != (batch, task) {
                        self.queue.push_back(run);
                        continue;
                    }
                    // The blocks before and after the revoked ones remain.
                    let (before, after) = (run.from..run.to.min(from), run.from.max(to)..run.to);
                    for remaining in [before, after] {
                        if remaining.start < remaining.end {
                            let run = BlockRun {
                                from: remaining.start,
                                to: remaining.end,
                                ..run.clone()
                            };
                            self.queue.push_back(run);
                        }
                    }
                }
            }
            BlockOrder::Forget { batch } => {
                self.commons.remove(&batch);
                self.queue.retain(|run| run.batch != batch);
            }
        }
    }

    /// Removes and returns the next block, which then counts as started.
    pub(super) fn next(&mut self) -> Option<BlockToRun> {
        let run = self.queue.front_mut()?;
        let BlockRun { batch, task, id, from: block, units, .. } = *run;
        let work = run.work.clone();
        run.from += 1;
        if run.from >= run.to {
            self.queue.pop_front();
        }
        Some(BlockToRun { batch, task, id, block, units, work })
    }

    /// The common part of a batch.
    pub(super) fn common(&self, batch: u64) -> Option<&Bytes> {
        self.commons.get(&batch)
    }

    /// Whether a batch has not been forgotten.
    pub(super) fn knows(&self, batch: u64) -> bool {
        self.commons.contains_key(&batch)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(batch: u64, task: u32, from: u32, to: u32) -> BlockOrder {
        let work = Bytes::new();
        BlockOrder::Run(BlockRun { batch, task, id: task, from, to, units: 1.0, work })
    }

    fn remaining(orders: &mut OrderQueue) -> Vec<(u64, u32, u32)> {
        std::iter::from_fn(|| orders.next().map(|one| (one.batch, one.task, one.block))).collect()
    }

    #[test]
    fn blocks_are_returned_in_order_except_revoked_ones() {
        let mut orders = OrderQueue::default();
        orders.apply(BlockOrder::Common { batch: 1, body: Bytes::from_static(b"x") });
        orders.apply(run(1, 0, 0, 5));
        orders.apply(run(1, 1, 2, 4));
        orders.apply(run(2, 0, 0, 2));
        assert_eq!(orders.next().map(|one| one.block), Some(0));
        // The first block has started, so its revocation comes too late.
        orders.apply(BlockOrder::Revoke { batch: 1, task: 0, from: 0, to: 3 });
        orders.apply(BlockOrder::Revoke { batch: 1, task: 1, from: 3, to: 9 });
        assert!(orders.knows(1) && !orders.is_empty());
        orders.apply(BlockOrder::Revoke { batch: 7, task: 1, from: 3, to: 9 });
        assert_eq!(remaining(&mut orders), [(1, 0, 3), (1, 0, 4), (1, 1, 2), (2, 0, 0), (2, 0, 1)]);
        orders.apply(run(1, 0, 0, 3));
        orders.apply(run(2, 0, 0, 1));
        orders.apply(BlockOrder::Forget { batch: 1 });
        assert!(!orders.knows(1) && orders.common(1).is_none());
        assert_eq!(remaining(&mut orders), [(2, 0, 0)]);
    }
}
