//! Outputs of finished tasks inside one that still runs, so that they are not computed again when
//! that one is returned.
//!
//! No entry is a descendant of another, since a task's output includes those of its descendants.
//! The memory is bounded: the deepest entries are dropped first, which are the cheapest to compute
//! again, and among equals the oldest. This module does not know why a tree stops.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::KeptOutput;
use crate::id::TaskPath;

/// The overhead of an entry in bytes, besides its output and path.
const ENTRY_BYTES: usize = 200;

/// The kept outputs, by path.
#[derive(Debug, Default)]
pub(crate) struct KeptOutputs {
    by_path: BTreeMap<TaskPath, (u64, KeptOutput)>,
    /// The order of removal: depth, number, path.
    order: BTreeSet<(Reverse<usize>, u64, TaskPath)>,
    next: u64,
    bytes: usize,
}

fn cost(kept: &KeptOutput) -> usize {
    // The path is stored twice more, in both maps.
    ENTRY_BYTES + kept.name.len() + 12 * kept.path.0.len() + kept.output.len()
}

impl KeptOutputs {
    /// Keeps an output and drops those of its descendants, within a bound in bytes. Refuses an
    /// output above the bound, or one below a kept one. Returns whether the output is kept.
    pub(crate) fn keep(&mut self, kept: KeptOutput, bytes_max: usize) -> bool {
        let cost = cost(&kept);
        if cost > bytes_max || self.covers(&kept.path) {
            return false;
        }
        let path = kept.path.clone();
        let from = self.by_path.range(kept.path.clone()..).map(|(path, _)| path);
        let below = from.take_while(|path| path.is_at_or_below(&kept.path));
        let below: Vec<TaskPath> = below.cloned().collect();
        below.iter().for_each(|path| self.remove(path));
        self.next += 1;
        self.bytes += cost;
        self.order.insert((Reverse(kept.path.0.len()), self.next, kept.path.clone()));
        self.by_path.insert(kept.path.clone(), (self.next, kept));
        while self.bytes > bytes_max {
            let Some((_, _, path)) = self.order.first().cloned() else { break };
            self.remove(&path);
        }
        self.by_path.contains_key(&path)
    }

    /// Whether the output of an ancestor is kept. No entry is a descendant of another, so an
    /// ancestor is the last entry up to the path.
    fn covers(&self, path: &TaskPath) -> bool {
        let before = self.by_path.range(..path.clone()).next_back();
        before.is_some_and(|(other, _)| path.is_at_or_below(other))
    }

    fn remove(&mut self, path: &TaskPath) {
        if let Some((number, kept)) = self.by_path.remove(path) {
            self.bytes -= cost(&kept);
            self.order.remove(&(Reverse(path.0.len()), number, kept.path));
        }
    }

    /// All outputs, in order of path.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &KeptOutput> {
        self.by_path.values().map(|(_, kept)| kept)
    }

    /// As [`KeptOutputs::iter`].
    pub(crate) fn into_vec(self) -> Vec<KeptOutput> {
        self.by_path.into_values().map(|(_, kept)| kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(path: &[u32], len: usize) -> KeptOutput {
        KeptOutput {
            path: TaskPath(path.to_vec()),
            name: "t".to_owned(),
            output: vec![7; len].into(),
        }
    }

    fn paths(outputs: KeptOutputs) -> Vec<String> {
        outputs.into_vec().iter().map(|kept| kept.path.to_string()).collect()
    }

    #[test]
    fn an_output_replaces_those_of_descendants_and_the_deepest_are_dropped_first() {
        let mut outputs = KeptOutputs::default();
        for path in [&[0, 1, 5][..], &[0, 1, 7, 1], &[0, 2], &[0, 1], &[0, 1, 9], &[0, 3, 3]] {
            outputs.keep(kept(path, 10), 10_000);
        }
        assert_eq!(paths(outputs), ["/0.1", "/0.2", "/0.3.3"]);
        let room_for_two = 2 * cost(&kept(&[0, 1, 2], 10));
        for (steps, left) in [
            ([&[0, 1][..], &[1, 1, 1], &[2]], ["/0.1", "/2"]),
            ([&[1][..], &[2], &[3]], ["/2", "/3"]),
            // The newest is the deepest.
            ([&[1][..], &[2], &[3, 3, 3]], ["/1", "/2"]),
        ] {
            let mut outputs = KeptOutputs::default();
            for path in steps {
                outputs.keep(kept(path, 10), room_for_two);
            }
            assert_eq!(paths(outputs), left);
        }
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_no_entry_lies_below_another(
            steps in prop::collection::vec(
                (prop::collection::vec(0..3u32, 0..5), 0..900usize),
                1..200,
            ),
        ) {
            let mut outputs = KeptOutputs::default();
            for (path, len) in steps {
                outputs.keep(kept(&path, len), 3000);
                let sum: usize = outputs.by_path.values().map(|(_, kept)| cost(kept)).sum();
                prop_assert_eq!(outputs.bytes, sum);
                prop_assert!(sum <= 3000);
                prop_assert_eq!(outputs.order.len(), outputs.by_path.len());
                for (a, b) in outputs.by_path.keys().zip(outputs.by_path.keys().skip(1)) {
                    prop_assert!(!b.is_at_or_below(a));
                }
            }
        }
    }
}
