//! A worker's side of its orders: what it is to do, in which order, and with what.
//!
//! A state machine without I/O and clock. The master has one for its own thread. Must not know programs.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::message::{Order, Run};

/// What a worker has.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Of the batches of which it has, or had, some.
    commons: BTreeMap<u64, Bytes>,
    queue: VecDeque<Run>,
}

/// One block to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) batch: u64,
    pub(super) task: u32,
    pub(super) id: u32,
    pub(super) block: u32,
    pub(super) units: f64,
    pub(super) work: Bytes,
}

impl Desk {
    pub(super) fn take_in(&mut self, order: Order) {
        match order {
            Order::Common { batch, body } => drop(self.commons.insert(batch, body)),
            Order::Run(run) => self.queue.push_back(run),
            Order::Revoke { batch, task, from, to } => {
                let queue = std::mem::take(&mut self.queue);
                for run in queue {
                    if (run.batch, run.task) != (batch, task) {
                        self.queue.push_back(run);
                        continue;
                    }
                    // What is left of it, before and after what is taken.
                    let (before, after) = (run.from..run.to.min(from), run.from.max(to)..run.to);
                    for rest in [before, after] {
                        if rest.start < rest.end {
                            let run = Run { from: rest.start, to: rest.end, ..run.clone() };
                            self.queue.push_back(run);
                        }
                    }
                }
            }
            Order::Forget { batch } => {
                self.commons.remove(&batch);
                self.queue.retain(|run| run.batch != batch);
            }
        }
    }

    /// The next block, which is begun with that.
    pub(super) fn next(&mut self) -> Option<Block> {
        let run = self.queue.front_mut()?;
        let Run { batch, task, id, from: block, units, .. } = *run;
        let work = run.work.clone();
        run.from += 1;
        if run.from >= run.to {
            self.queue.pop_front();
        }
        Some(Block { batch, task, id, block, units, work })
    }

    /// What all tasks of a batch share.
    pub(super) fn common(&self, batch: u64) -> Option<&Bytes> {
        self.commons.get(&batch)
    }

    /// Whether a batch is still wanted.
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

    fn run(batch: u64, task: u32, from: u32, to: u32) -> Order {
        let work = Bytes::new();
        Order::Run(Run { batch, task, id: task, from, to, units: 1.0, work })
    }

    fn rest(desk: &mut Desk) -> Vec<(u64, u32, u32)> {
        std::iter::from_fn(|| desk.next().map(|one| (one.batch, one.task, one.block))).collect()
    }

    #[test]
    fn blocks_are_done_in_order_but_for_what_is_taken_back() {
        let mut desk = Desk::default();
        desk.take_in(Order::Common { batch: 1, body: Bytes::from_static(b"x") });
        desk.take_in(run(1, 0, 0, 5));
        desk.take_in(run(1, 1, 2, 4));
        desk.take_in(run(2, 0, 0, 2));
        assert_eq!(desk.next().map(|one| one.block), Some(0));
        // The first is begun: what is said of it comes too late.
        desk.take_in(Order::Revoke { batch: 1, task: 0, from: 0, to: 3 });
        desk.take_in(Order::Revoke { batch: 1, task: 1, from: 3, to: 9 });
        assert!(desk.knows(1) && !desk.is_empty());
        desk.take_in(Order::Revoke { batch: 7, task: 1, from: 3, to: 9 });
        assert_eq!(rest(&mut desk), [(1, 0, 3), (1, 0, 4), (1, 1, 2), (2, 0, 0), (2, 0, 1)]);
        desk.take_in(run(1, 0, 0, 3));
        desk.take_in(run(2, 0, 0, 1));
        desk.take_in(Order::Forget { batch: 1 });
        assert!(!desk.knows(1) && desk.common(1).is_none());
        assert_eq!(rest(&mut desk), [(2, 0, 0)]);
    }
}
