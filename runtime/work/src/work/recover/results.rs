//! Results that this node has finished, or got from a leaving node, kept for executions of their
//! parents on other nodes.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{RootStart, TaskIdentity};
use crate::id::{NodeId, TaskPath};

/// The overhead of an entry in bytes, besides its result.
const ENTRY_BYTES: usize = 200;

/// The result of a finished task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredResult {
    pub(crate) identity: TaskIdentity,
    /// The node it was computed for. When that node is lost, this node announces the result.
    pub(crate) owner: NodeId,
    /// The encoded output.
    pub(crate) output: Bytes,
    /// Whether the node that needs the result has it already.
    pub(crate) claimed: bool,
}

/// A bounded cache of results; the oldest are dropped first.
#[derive(Debug)]
pub(crate) struct Results {
    by_path: BTreeMap<TaskPath, (u64, StoredResult)>,
    order: VecDeque<(u64, TaskPath)>,
    next: u64,
    bytes: usize,
    bytes_max: usize,
}

fn cost(finished: &StoredResult) -> usize {
    ENTRY_BYTES + 4 * finished.identity.path.0.len() + finished.output.len()
}

impl Results {
    /// Creates a cache with this bound in bytes; with 0 it keeps nothing.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { by_path: BTreeMap::new(), order: VecDeque::new(), next: 0, bytes: 0, bytes_max }
    }

    /// Keeps a result and drops those of its descendants. Refuses a result above the bound.
    pub(crate) fn keep(&mut self, finished: StoredResult) {
        let cost = cost(&finished);
        if cost > self.bytes_max {
            return;
        }
        self.drop_at_or_below(&finished.identity.path);
        while self.bytes + cost > self.bytes_max {
            let Some((seq, path)) = self.order.pop_front() else { break };
            if self.by_path.get(&path).is_some_and(|(at, _)| *at == seq) {
                self.remove(&path);
            }
        }
        let path = finished.identity.path.clone();
        self.next += 1;
        self.bytes += cost;
        self.order.push_back((self.next, path.clone()));
        self.by_path.insert(path, (self.next, finished));
        // Drop the places of removed entries before they outnumber the entries.
        if self.order.len() > 2 * self.by_path.len() + 64 {
            self.order
                .retain(|(seq, path)| self.by_path.get(path).is_some_and(|(at, _)| at == seq));
        }
    }

    fn remove(&mut self, path: &TaskPath) {
        if let Some((_, finished)) = self.by_path.remove(path) {
            self.bytes -= cost(&finished);
        }
    }

    fn below<'a>(&'a self, path: &'a TaskPath) -> impl Iterator<Item = &'a TaskPath> {
        let from = self.by_path.range(path.clone()..).map(|(path, _)| path);
        from.take_while(move |other| other.is_at_or_below(path))
    }

    /// Drops the results of this task and its descendants, since an ancestor is finished.
    pub(crate) fn drop_at_or_below(&mut self, path: &TaskPath) {
        let old: Vec<TaskPath> = self.below(path).cloned().collect();
        old.iter().for_each(|path| self.remove(path));
    }

    /// The result of this task, if it is kept.
    pub(crate) fn find(&self, identity: &TaskIdentity) -> Option<&Bytes> {
        let (_, finished) = self.by_path.get(&identity.path)?;
        finished.identity.is(identity).then_some(&finished.output)
    }

    /// The result at this path, for any arguments of its task.
    pub(crate) fn at(&self, path: &TaskPath) -> Option<&StoredResult> {
        self.by_path.get(path).map(|(_, finished)| finished)
    }

    /// Removes and returns the results at or below this path that were computed for `owner` in this
    /// start.
    pub(crate) fn take_for(
        &mut self,
        path: &TaskPath,
        start: RootStart,
        owner: &NodeId,
    ) -> Vec<StoredResult> {
        let of = |path: &&TaskPath| {
            let (_, finished) = &self.by_path[*path];
            finished.owner == *owner && finished.identity.start == start
        };
        let old: Vec<TaskPath> = self.below(path).filter(of).cloned().collect();
        let taken = old.iter().filter_map(|path| {
            let found = self.by_path.get(path).map(|(_, finished)| finished.clone());
            self.remove(path);
            found
        });
        taken.collect()
    }

    /// The results of descendants of this task.
    pub(crate) fn inside<'a>(
        &'a self,
        path: &'a TaskPath,
    ) -> impl Iterator<Item = &'a StoredResult> {
        self.below(path).filter(move |other| *other != path).map(|other| &self.by_path[other].1)
    }

    /// Drops results that are known by their paths alone, because their tree has ended here.
    pub(crate) fn drop_trusted(&mut self, path: &TaskPath) {
        let trusted = |path: &&TaskPath| self.by_path[*path].1.identity.is_trusted();
        let old: Vec<TaskPath> = self.below(path).filter(trusted).cloned().collect();
        old.iter().for_each(|path| self.remove(path));
    }

    /// Drops the results that another node has already. They only save their computation.
    pub(crate) fn drop_claimed(&mut self) {
        let claimed = |(path, (_, finished)): (&TaskPath, &(u64, StoredResult))| {
            finished.claimed.then(|| path.clone())
        };
        let old: Vec<TaskPath> = self.by_path.iter().filter_map(claimed).collect();
        old.iter().for_each(|path| self.remove(path));
    }

    /// Whether the cache never keeps anything.
    pub(crate) fn is_off(&self) -> bool {
        self.bytes_max == 0
    }

    /// The tasks that were computed for a node, outermost first.
    pub(crate) fn for_owner<'a>(
        &'a self,
        owner: &'a NodeId,
    ) -> impl Iterator<Item = &'a TaskIdentity> {
        self.all().filter(move |finished| finished.owner == *owner).map(|f| &f.identity)
    }

    /// The results that only this node has.
    pub(crate) fn unclaimed(&self) -> Vec<StoredResult> {
        self.all().filter(|finished| !finished.claimed).cloned().collect()
    }

    /// All results, in order of path: parents before children.
    pub(crate) fn all(&self) -> impl Iterator<Item = &StoredResult> {
        self.by_path.values().map(|(_, finished)| finished)
    }

    /// The bytes of all entries, with overhead, and the bound.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.bytes, self.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finished(path: &[u32], len: usize) -> StoredResult {
        let path = TaskPath(path.to_vec());
        let identity = TaskIdentity::of(path, "t", &[len as u8], &[], RootStart::default());
        StoredResult { identity, owner: "o".into(), output: vec![7; len].into(), claimed: true }
    }

    #[test]
    fn a_result_replaces_those_of_descendants_and_another_task_at_the_path_is_a_miss() {
        let mut results = Results::new(10_000);
        results.keep(finished(&[0, 1, 5], 10));
        results.keep(finished(&[0, 1], 11));
        results.keep(finished(&[0, 2], 12));
        let paths: Vec<String> = results.all().map(|f| f.identity.path.to_string()).collect();
        assert_eq!(paths, ["/0.1", "/0.2"]);
        let mut other = finished(&[0, 1], 11).identity;
        assert_eq!(results.find(&other).map(Bytes::len), Some(11));
        other.hash ^= 1;
        assert_eq!(results.find(&other), None);
        assert_eq!(results.for_owner(&"o".into()).count(), 2);
        assert_eq!(results.for_owner(&"p".into()).count(), 0);
    }

    proptest! {
        /// The bound holds, the newest result stays, and the counted bytes are those of the
        /// entries.
        #[test]
        fn it_is_bounded(
            steps in prop::collection::vec(
                (prop::collection::vec(0..3u32, 0..5), 0..900usize),
                1..200,
            ),
        ) {
            let mut results = Results::new(3000);
            for (path, len) in steps {
                let new = finished(&path, len);
                results.keep(new.clone());
                prop_assert_eq!(results.find(&new.identity), Some(&new.output));
                let sum: usize = results.all().map(cost).sum();
                prop_assert_eq!(results.size().0, sum);
                prop_assert!(sum <= 3000);
                prop_assert!(results.order.len() <= 2 * results.by_path.len() + 65);
                for outer in results.all() {
                    let inside = results.below(&outer.identity.path).count();
                    // Only a younger result may be a descendant of an older one.
                    let number = results.by_path[&outer.identity.path].0;
                    prop_assert!(inside == 1 || number < results.next);
                }
            }
        }
    }
}
