//! The order in which a process computes its blocks, and when it sends early results.
//!
//! This module is pure, and depends on neither messages nor trees.

use std::collections::BTreeSet;
use std::ops::Range;

/// Results are sent once this part of all work has been done since the last message.
const PART_PER_MESSAGE: f64 = 0.2;

/// A root whose next places others receive ahead of the next step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FirstRoot {
    pub root: u32,
    /// Indices of its blocks.
    pub blocks: Range<usize>,
    /// Its part of all work.
    pub part: f64,
}

/// The order in which a process computes its blocks, and when it sends early results.
#[derive(Debug)]
pub(crate) struct BlockOrder {
    /// Blocks: those of the first roots, then the others.
    order: Vec<usize>,
    /// The first roots that are not sent yet, in order; each with the number of blocks that are
    /// computed when it is complete.
    first: Vec<(FirstRoot, usize)>,
}

impl BlockOrder {
    /// The order of the blocks that can be computed. The roots that come first are those all of
    /// whose blocks can be computed or have been.
    pub(crate) fn new(ready: &[usize], first: Vec<FirstRoot>) -> Self {
        let can_be = |block: &usize| ready.binary_search(block).is_ok();
        let of_root = |first: &FirstRoot| first.blocks.clone().filter(can_be);
        let mut order: Vec<usize> = first.iter().flat_map(of_root).collect();
        let ends = first.iter().scan(0, |end, first| {
            *end += of_root(first).count();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let known: BTreeSet<usize> = order.iter().copied().collect();
        order.extend(ready.iter().filter(|block| !known.contains(block)));
        let ends = first.into_iter().zip(ends);
        Self { first: ends.collect(), order }
    }

    /// The next blocks, at most `most`, after this number of blocks. They end where results have
    /// to be sent.
    pub(crate) fn blocks(&self, done: usize, most: usize) -> &[usize] {
        let mut end = done.saturating_add(most).min(self.order.len());
        let mut part = 0.0;
        for (at, (first, complete)) in self.first.iter().enumerate() {
            part += first.part;
            if part >= PART_PER_MESSAGE || at + 1 == self.first.len() {
                if *complete > done {
                    end = end.min(*complete);
                }
                break;
            }
        }
        &self.order[done..end]
    }

    /// The number of first roots that are complete and worth a message after this number of blocks.
    fn count(&self, done: usize) -> usize {
        let count = self.first.iter().take_while(|(_, end)| *end <= done).count();
        let parts: f64 = self.first[..count].iter().map(|(first, _)| first.part).sum();
        if parts >= PART_PER_MESSAGE || count == self.first.len() { count } else { 0 }
    }

    /// Takes the roots whose results are sent after this number of blocks; each is taken once.
    pub(crate) fn take(&mut self, done: usize) -> Vec<u32> {
        let count = self.count(done);
        self.first.drain(..count).map(|(first, _)| first.root).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(root: u32, blocks: Range<usize>, part: f64) -> FirstRoot {
        FirstRoot { root, blocks, part }
    }

    #[test]
    fn results_are_sent_after_some_work() {
        let some = vec![first(3, 4..6, 0.125), first(0, 0..1, 0.125), first(2, 3..4, 0.03125)];
        let mut block_order = BlockOrder::new(&[0, 1, 2, 3, 4, 5], some);
        assert_eq!(block_order.order, [4, 5, 0, 3, 1, 2]);
        assert_eq!(
            (block_order.blocks(0, 9), block_order.blocks(0, 2)),
            (&[4, 5, 0][..], &[4, 5][..])
        );
        let none: Vec<u32> = Vec::new();
        assert_eq!((block_order.take(0), block_order.take(2)), (none.clone(), none.clone()));
        assert_eq!((block_order.take(3), block_order.take(3)), (vec![3, 0], none.clone()));
        // The rest is little, and all there is.
        assert_eq!(block_order.blocks(3, 9), [3]);
        assert_eq!((block_order.take(4), block_order.take(6)), (vec![2], none.clone()));
        assert_eq!((block_order.blocks(4, 9), block_order.blocks(6, 9)), (&[1, 2][..], &[][..]));
    }

    #[test]
    fn computed_blocks_have_no_turn() {
        let some = vec![first(0, 0..2, 0.5), first(1, 2..3, 0.5), first(2, 3..5, 0.5)];
        let mut block_order = BlockOrder::new(&[1, 3, 4, 6], some);
        assert_eq!(block_order.order, [1, 3, 4, 6]);
        assert_eq!(
            (block_order.take(0), block_order.take(1), block_order.take(3)),
            (vec![], vec![0, 1], vec![2])
        );
    }

    proptest! {
        #[test]
        fn each_block_has_a_turn_and_each_first_root_is_taken_once_complete(
            lengths in prop::collection::vec(1usize..4, 0..9),
            picks in any::<u16>(),
            mosts in prop::collection::vec(1usize..5, 40),
        ) {
            let mut begin = 0;
            let mut firsts = Vec::new();
            for (root, length) in (0u32..).zip(&lengths) {
                if picks >> root & 1 == 1 {
                    firsts.push(first(root, begin..begin + length, f64::from(root) / 20.0));
                }
                begin += length;
            }
            let ready: Vec<usize> = (0..begin).collect();
            let mut block_order = BlockOrder::new(&ready, firsts.clone());
            let (mut computed, mut taken, mut done) = (BTreeSet::new(), Vec::new(), 0);
            for most in mosts {
                for root in block_order.take(done) {
                    let of_root = firsts.iter().find(|first| first.root == root).unwrap();
                    prop_assert!(of_root.blocks.clone().all(|block| computed.contains(&block)));
                    taken.push(root);
                }
                let blocks = block_order.blocks(done, most);
                // No message waits for more than one call.
                prop_assert!((1..blocks.len()).all(|more| block_order.count(done + more) == 0));
                computed.extend(blocks.iter().copied());
                done += blocks.len();
            }
            prop_assert_eq!(computed.into_iter().collect::<Vec<_>>(), ready);
            prop_assert_eq!(taken, firsts.iter().map(|first| first.root).collect::<Vec<_>>());
        }
    }
}
