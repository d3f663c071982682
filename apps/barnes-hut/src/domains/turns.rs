//! In which order a process computes its blocks, and when others are told of what it computed first.
//!
//! Pure; knows neither messages nor trees.

use std::collections::BTreeSet;
use std::ops::Range;

/// Others are told when so much of all work was done that they were not told of.
const AT_A_TIME: f64 = 0.2;

/// A root of which others are told ahead of the next step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct First {
    pub root: u32,
    /// Its blocks.
    pub blocks: Range<usize>,
    /// What part of all work it is.
    pub part: f64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Blocks: those of the first roots, then the others.
    order: Vec<usize>,
    /// Of which nobody was told yet, in order; each with how many blocks are computed when it is.
    first: Vec<(First, usize)>,
}

impl Turns {
    /// Of the blocks that can be computed, in order, and the roots that come first, all of whose blocks can be or have been.
    pub(crate) fn new(ready: &[usize], first: Vec<First>) -> Self {
        let can_be = |block: &usize| ready.binary_search(block).is_ok();
        let of_root = |first: &First| first.blocks.clone().filter(can_be);
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

    /// The next block, when so many are computed.
    pub(crate) fn block(&self, done: usize) -> Option<usize> {
        self.order.get(done).copied()
    }

    /// How many of the first roots are computed and worth a message, when so many blocks are.
    fn count(&self, done: usize) -> usize {
        let count = self.first.iter().take_while(|(_, end)| *end <= done).count();
        let parts: f64 = self.first[..count].iter().map(|(first, _)| first.part).sum();
        if parts >= AT_A_TIME || count == self.first.len() { count } else { 0 }
    }

    /// The roots that others are told of when so many blocks are computed, if it is time for that; they are told of each once.
    pub(crate) fn take(&mut self, done: usize) -> Vec<u32> {
        let count = self.count(done);
        self.first.drain(..count).map(|(first, _)| first.root).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn others_are_told_of_some_work_at_a_time() {
        let first = |root, blocks, part| First { root, blocks, part };
        let some = vec![first(3, 4..6, 0.125), first(0, 0..1, 0.125), first(2, 3..4, 0.03125)];
        let mut turns = Turns::new(&[0, 1, 2, 3, 4, 5], some);
        assert_eq!(
            (0..7).map_while(|done| turns.block(done)).collect::<Vec<_>>(),
            [4, 5, 0, 3, 1, 2]
        );
        let none: Vec<u32> = Vec::new();
        assert_eq!((turns.take(0), turns.take(2)), (none.clone(), none.clone()));
        assert_eq!((turns.take(3), turns.take(3)), (vec![3, 0], none.clone()));
        // What is left is little, and all there is.
        assert_eq!((turns.take(4), turns.take(6)), (vec![2], none.clone()));
    }

    #[test]
    fn what_was_computed_before_has_no_turn() {
        let first = |root, blocks, part| First { root, blocks, part };
        let some = vec![first(0, 0..2, 0.5), first(1, 2..3, 0.5), first(2, 3..5, 0.5)];
        let mut turns = Turns::new(&[1, 3, 4, 6], some);
        assert_eq!((0..5).map_while(|done| turns.block(done)).collect::<Vec<_>>(), [1, 3, 4, 6]);
        assert_eq!((turns.take(0), turns.take(1), turns.take(3)), (vec![], vec![0, 1], vec![2]));
    }

    proptest! {
        #[test]
        fn each_block_has_its_turn_and_each_root_is_told_of_once_it_is_computed(
            lengths in prop::collection::vec(1usize..4, 0..9),
            picks in any::<u16>(),
            asks in prop::collection::vec(any::<bool>(), 40),
        ) {
            let mut begin = 0;
            let mut first = Vec::new();
            for (root, length) in (0u32..).zip(&lengths) {
                if picks >> root & 1 == 1 {
                    first.push(First { root, blocks: begin..begin + length, part: f64::from(root) / 20.0 });
                }
                begin += length;
            }
            let ready: Vec<usize> = (0..begin).collect();
            let mut turns = Turns::new(&ready, first.clone());
            let (mut computed, mut told) = (BTreeSet::new(), Vec::new());
            for (done, asks) in asks.into_iter().enumerate().take(begin + 1) {
                if asks || done == begin {
                    for root in turns.take(done) {
                        prop_assert!(first.iter().find(|first| first.root == root).unwrap().blocks.clone().all(|block| computed.contains(&block)));
                        told.push(root);
                    }
                }
                computed.extend(turns.block(done));
            }
            prop_assert_eq!(computed.into_iter().collect::<Vec<_>>(), ready);
            prop_assert_eq!(told, first.iter().map(|first| first.root).collect::<Vec<_>>());
        }
    }
}
