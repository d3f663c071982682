//! The victim's side: who asked in vain and is to be told when there is work.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Scope, StealPolicy};
use crate::id::NodeId;

/// Most thieves remembered; the oldest is forgotten for a new one, and finds work by asking again.
const WAITING_MAX: usize = 1024;

/// A thief that was told of a task has so long to come for it: then somebody else is told. It may have found another one meanwhile.
const COMES_WITHIN: Duration = Duration::from_millis(5);
/// While there are more thieves than tasks it is looked so often whether there are more tasks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Thieves that wait for a hint, those of this cluster first.
///
/// No more of them are told than there are tasks. (All were once: eleven asked for one task at the same time, and each answer took 5 ms
/// on a machine with forty nodes.)
#[derive(Debug, Default)]
pub struct Victim {
    /// All are told of any task: the baseline is not to gain by what is done for cluster-aware stealing.
    tells_all: bool,
    local: VecDeque<NodeId>,
    wide: VecDeque<NodeId>,
    /// Until when those may come who were told.
    told: VecDeque<Instant>,
}

impl Victim {
    /// Nobody waits yet.
    pub fn new(policy: StealPolicy) -> Self {
        Self { tells_all: policy == StealPolicy::Random, ..Self::default() }
    }

    /// A thief got nothing.
    pub fn refused(&mut self, thief: &NodeId, scope: Scope) {
        let waiting = match scope {
            Scope::Local => &mut self.local,
            Scope::Wide => &mut self.wide,
        };
        if !waiting.contains(thief) {
            if waiting.len() == WAITING_MAX {
                waiting.pop_front();
            }
            waiting.push_back(thief.clone());
        }
    }

    /// A thief got work here: it waits no more.
    pub fn served(&mut self, thief: &NodeId) {
        self.told.pop_front();
        self.local.retain(|other| other != thief);
        self.wide.retain(|other| other != thief);
    }

    /// There are so many tasks: whom to tell, the longest waiting of this cluster first. They are forgotten: a hint is sent once.
    pub fn to_hint(&mut self, tasks: usize, now: Instant) -> Vec<NodeId> {
        while self.told.front().is_some_and(|until| *until <= now) {
            self.told.pop_front();
        }
        let mut thieves = Vec::new();
        while (self.tells_all || self.told.len() < tasks)
            && let Some(thief) = self.local.pop_front().or_else(|| self.wide.pop_front())
        {
            self.told.push_back(now + COMES_WITHIN);
            thieves.push(thief);
        }
        thieves
    }

    /// When to look again whether somebody is to be told, after a look at `now` that found tasks.
    pub fn look_again(&self, now: Instant) -> Option<Instant> {
        self.has_waiting().then_some(now + LOOK_AGAIN)
    }

    /// Whether anybody waits.
    pub fn has_waiting(&self) -> bool {
        !self.local.is_empty() || !self.wide.is_empty()
    }

    /// Forgets everybody who is not in the job any more.
    pub fn keep(&mut self, in_job: impl Fn(&NodeId) -> bool) {
        self.local.retain(&in_job);
        self.wide.retain(&in_job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hint_each_own_cluster_first_in_order_of_asking() {
        let mut victim = Victim::default();
        let [a, b, c] = ["a", "b", "c"].map(NodeId::from);
        victim.refused(&c, Scope::Wide);
        victim.refused(&b, Scope::Local);
        victim.refused(&a, Scope::Local);
        victim.refused(&b, Scope::Local);
        assert!(victim.has_waiting());
        let now = Instant::now();
        assert_eq!(victim.to_hint(9, now), [b.clone(), a.clone(), c.clone()]);
        assert!(!victim.has_waiting() && victim.look_again(now).is_none());
        victim.refused(&a, Scope::Local);
        victim.served(&a);
        assert_eq!(victim.to_hint(9, now), []);
    }

    #[test]
    fn under_random_stealing_all_are_told() {
        let mut victim = Victim::new(StealPolicy::Random);
        let all = ["a", "b", "c"].map(NodeId::from);
        all.iter().for_each(|thief| victim.refused(thief, Scope::Local));
        assert_eq!(victim.to_hint(1, Instant::now()), all);
    }

    #[test]
    fn no_more_are_told_than_there_are_tasks() {
        let mut victim = Victim::default();
        let all = ["a", "b", "c", "d"].map(NodeId::from);
        all.iter().for_each(|thief| victim.refused(thief, Scope::Local));
        let [a, b, c, d] = all;
        let now = Instant::now();
        assert_eq!(victim.to_hint(1, now), std::slice::from_ref(&a));
        assert_eq!(victim.to_hint(1, now), [], "it is on its way");
        assert_eq!(victim.look_again(now), Some(now + LOOK_AGAIN));
        assert_eq!(victim.to_hint(2, now), [b]);
        // One has come; the other found something else, and is waited for in vain.
        victim.served(&a);
        assert_eq!(victim.to_hint(1, now), []);
        assert_eq!(victim.to_hint(1, now + COMES_WITHIN), [c]);
        assert_eq!(victim.to_hint(2, now + COMES_WITHIN), [d]);
        assert_eq!(victim.look_again(now), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut victim = Victim::default();
        for thief in 0..3 * WAITING_MAX {
            victim.refused(&NodeId::from(format!("n{thief}")), Scope::Wide);
        }
        assert_eq!(victim.to_hint(usize::MAX, Instant::now()).len(), WAITING_MAX);
    }
}
