//! Word of where results are that a recomputed task can use instead of computing again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Identity;
use crate::id::{NodeId, Peer, TaskPath};

/// Pointers held at most; the oldest go first.
const POINTERS_MAX: usize = 1 << 16;

/// A pointer that nobody has used for so long will not be: whoever was to compute its parent again has done so otherwise.
const STALE: Duration = Duration::from_secs(600);

/// Where a task's result is, or is being computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Which task.
    pub identity: Identity,
    /// Who has it.
    pub holder: Peer,
}

/// Pointers by path. A later word for a path replaces an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    by_path: BTreeMap<TaskPath, (u64, Instant, Place)>,
    order: VecDeque<(u64, TaskPath)>,
    next: u64,
}

impl Whereabouts {
    /// A node says that it has this, finished or running.
    pub(crate) fn learn(&mut self, place: Place, now: Instant) {
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

    /// What is known of this path.
    pub(crate) fn at(&self, path: &TaskPath) -> Option<&Place> {
        self.by_path.get(path).map(|(_, _, place)| place)
    }

    /// Takes out what is known of this path, for use now. (Whoever asks and finds another identity has no use for it
    /// later either.)
    pub(crate) fn take(&mut self, path: &TaskPath) -> Option<Place> {
        self.by_path.remove(path).map(|(_, _, place)| place)
    }

    /// What is known at or below this path, outermost first.
    pub(crate) fn below<'a>(&'a self, path: &'a TaskPath) -> impl Iterator<Item = &'a Place> {
        let from = self.by_path.range(path.clone()..);
        from.take_while(move |(other, _)| other.is_at_or_below(path))
            .map(|(_, (_, _, place))| place)
    }

    /// A tree has ended here: what its own owner told of places in it is of no use any more.
    pub(crate) fn forget_trusted(&mut self, path: &TaskPath) {
        let trusted = self.below(path).filter(|place| place.identity.is_trusted());
        let old: Vec<TaskPath> = trusted.map(|place| place.identity.path.clone()).collect();
        old.iter().for_each(|path| drop(self.by_path.remove(path)));
    }

    /// A task is finished: what lies below it is wanted no more.
    pub(crate) fn forget_inside(&mut self, path: &TaskPath) {
        let inside = self.below(path).map(|place| &place.identity.path).filter(|p| *p != path);
        let old: Vec<TaskPath> = inside.cloned().collect();
        old.iter().for_each(|path| drop(self.by_path.remove(path)));
    }

    /// A node is gone, and with it what it had.
    pub(crate) fn lost(&mut self, holder: &NodeId) {
        self.by_path.retain(|_, (_, _, place)| place.holder.node != *holder);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }

    /// The longest path of which something is known: below it nobody need look.
    pub(crate) fn depth(&self) -> usize {
        self.by_path.keys().map(|path| path.0.len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Start;
    use super::*;
    use crate::id::Incarnation;

    fn place(path: &[u32], holder: &str) -> Place {
        let identity = Identity::of(TaskPath(path.to_vec()), "t", b"x", &[], Start::default());
        let holder = Peer { node: holder.into(), incarnation: Incarnation(1), cluster: "c".into() };
        Place { identity, holder }
    }

    #[tokio::test(start_paused = true)]
    async fn pointers_are_used_once_and_go_with_their_holder_their_ancestor_or_with_time() {
        let mut known = Whereabouts::default();
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
        known.forget_inside(&TaskPath(vec![0]));
        assert_eq!(known.below(&TaskPath::root()).count(), 1);
        tokio::time::advance(STALE + Duration::from_secs(1)).await;
        known.learn(place(&[9], "c"), Instant::now());
        assert_eq!(known.below(&TaskPath::root()).count(), 1);
        known.forget_inside(&TaskPath::root());
        assert!(known.is_empty() && known.depth() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn they_are_bounded_and_the_newest_stay() {
        let mut known = Whereabouts::default();
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
