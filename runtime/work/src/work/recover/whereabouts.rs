//! Locations of results that a recomputed task can use instead of computing again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::TaskIdentity;
use crate::id::{NodeId, Peer, TaskPath};

/// The maximum number of pointers; the oldest are dropped first.
const POINTERS_MAX: usize = 1 << 16;

/// The time after which an unused pointer is dropped. By then the parent was computed in another
/// way.
const STALE: Duration = Duration::from_secs(600);

/// The location of a task's result, finished or being computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultLocation {
    /// The identity of the task.
    pub identity: TaskIdentity,
    /// The node that has it.
    pub holder: Peer,
}

/// Pointers to results, by path. A later one for a path replaces an earlier one.
#[derive(Debug, Default)]
pub(crate) struct ResultLocations {
    by_path: BTreeMap<TaskPath, (u64, Instant, ResultLocation)>,
    order: VecDeque<(u64, TaskPath)>,
    next: u64,
}

impl ResultLocations {
    /// Adds the location of a result, finished or being computed.
    pub(crate) fn learn(&mut self, place: ResultLocation, now: Instant) {
        let path = place.identity.path.clone();
        self.next += 1;
        self.order.push_back((self.next, path.clone()));
        self.by_path.insert(path, (self.next, now, place));
        while self.by_path.len() > POINTERS_MAX || self.is_stale(now) {
            let Some((seq, path)) = self.order.pop_front() else { break };
            if self.by_path.get(&path).is_some_and(|(at, ..)| *at == seq) {
                self.by_path.remove(&path);
            }
        }
    }

    fn is_stale(&self, now: Instant) -> bool {
        let Some((seq, path)) = self.order.front() else { return false };
        match self.by_path.get(path) {
            Some((at, since, _)) if at == seq => now.saturating_duration_since(*since) > STALE,
            _ => true,
        }
    }

    /// The pointer of this path.
    pub(crate) fn at(&self, path: &TaskPath) -> Option<&ResultLocation> {
        self.by_path.get(path).map(|(_, _, place)| place)
    }

    /// Removes and returns the pointer of this path, for immediate use. A caller that finds another
    /// identity has no later use for it either.
    pub(crate) fn take(&mut self, path: &TaskPath) -> Option<ResultLocation> {
        self.by_path.remove(path).map(|(_, _, place)| place)
    }

    /// The pointers at or below this path, outermost first.
    pub(crate) fn below<'a>(
        &'a self,
        path: &'a TaskPath,
    ) -> impl Iterator<Item = &'a ResultLocation> {
        let from = self.by_path.range(path.clone()..);
        from.take_while(move |(other, _)| other.is_at_or_below(path))
            .map(|(_, (_, _, place))| place)
    }

    /// Drops pointers known by their paths alone, because their tree has ended here.
    pub(crate) fn drop_trusted(&mut self, path: &TaskPath) {
        let trusted = self.below(path).filter(|place| place.identity.is_trusted());
        let old: Vec<TaskPath> = trusted.map(|place| place.identity.path.clone()).collect();
        old.iter().for_each(|path| drop(self.by_path.remove(path)));
    }

    /// Drops the pointers of a finished task's descendants.
    pub(crate) fn drop_descendants(&mut self, path: &TaskPath) {
        let inside = self.below(path).map(|place| &place.identity.path).filter(|p| *p != path);
        let old: Vec<TaskPath> = inside.cloned().collect();
        old.iter().for_each(|path| drop(self.by_path.remove(path)));
    }

    /// Drops the pointers to a lost node.
    pub(crate) fn lost(&mut self, holder: &NodeId) {
        self.by_path.retain(|_, (_, _, place)| place.holder.node != *holder);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }

    /// The length of the longest path with a pointer: deeper tasks need no lookup.
    pub(crate) fn depth(&self) -> usize {
        self.by_path.keys().map(|path| path.0.len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::RootStart;
    use super::*;
    use crate::id::Incarnation;

    fn place(path: &[u32], holder: &str) -> ResultLocation {
        let identity =
            TaskIdentity::of(TaskPath(path.to_vec()), "t", b"x", &[], RootStart::default());
        let holder = Peer { node: holder.into(), incarnation: Incarnation(1), cluster: "c".into() };
        ResultLocation { identity, holder }
    }

    #[tokio::test(start_paused = true)]
    async fn pointers_are_used_once_and_dropped_with_their_holder_their_ancestor_or_by_age() {
        let mut known = ResultLocations::default();
        for (path, holder) in [(&[0, 1][..], "a"), (&[0, 1, 3], "b"), (&[2], "a"), (&[4, 4], "b")] {
            known.learn(place(path, holder), Instant::now());
        }
        assert!(
            known.at(&TaskPath(vec![0, 1])).is_some() && known.at(&TaskPath(vec![0])).is_none()
        );
        assert_eq!(known.depth(), 3);
        assert_eq!(known.take(&TaskPath(vec![2])), Some(place(&[2], "a")));
        assert_eq!(known.take(&TaskPath(vec![2])), None);
        known.lost(&"a".into());
        assert_eq!(known.below(&TaskPath::root()).count(), 2);
        known.drop_descendants(&TaskPath(vec![0]));
        assert_eq!(known.below(&TaskPath::root()).count(), 1);
        tokio::time::advance(STALE + Duration::from_secs(1)).await;
        known.learn(place(&[9], "c"), Instant::now());
        assert_eq!(known.below(&TaskPath::root()).count(), 1);
        known.drop_descendants(&TaskPath::root());
        assert!(known.is_empty() && known.depth() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pointers_are_bounded_and_the_newest_stay() {
        let mut known = ResultLocations::default();
        for index in 0..POINTERS_MAX as u32 + 10 {
            known.learn(place(&[index], "a"), Instant::now());
            known.learn(place(&[index], "b"), Instant::now());
        }
        assert_eq!(known.by_path.len(), POINTERS_MAX);
        assert!(known.order.len() <= POINTERS_MAX + 2 * POINTERS_MAX);
        assert!(known.take(&TaskPath(vec![POINTERS_MAX as u32 + 9])).is_some());
        assert!(known.take(&TaskPath(vec![0])).is_none());
    }
}
