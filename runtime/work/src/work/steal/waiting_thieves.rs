//! The victim's decisions, without I/O: thieves that got nothing, and hints to them when there is
//! work. `engine::leased_tasks` answers the requests.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{StealPolicy, StealScope};
use crate::id::NodeId;

/// The most thieves on the list. The oldest is dropped for a new one, and finds work by a later
/// request.
const WAITING_MAX: usize = 1024;

/// The time within which a thief must answer a hint with a request. Then another one gets a hint,
/// since the thief may have found other work.
const HINT_TIMEOUT: Duration = Duration::from_millis(5);
/// The interval between counts of tasks while more thieves wait than there are tasks.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Thieves that wait for a hint, those of this cluster first.
///
/// At most as many get a hint as there are tasks. With a hint to all, eleven thieves asked for one
/// task at once, and each answer took 5 ms on a machine with forty nodes.
#[derive(Debug, Default)]
pub struct WaitingThieves {
    /// Whether each task causes hints to all thieves: the baseline must not profit from an
    /// improvement of cluster-aware stealing.
    hints_all: bool,
    local: VecDeque<NodeId>,
    wide: VecDeque<NodeId>,
    /// The times until which thieves with a hint may ask.
    hinted_until: VecDeque<Instant>,
}

impl WaitingThieves {
    /// Creates an empty list.
    pub fn new(policy: StealPolicy) -> Self {
        Self { hints_all: policy == StealPolicy::Random, ..Self::default() }
    }

    /// Records a thief that got no task.
    pub fn add_waiting(&mut self, thief: &NodeId, scope: StealScope) {
        let waiting = match scope {
            StealScope::Local => &mut self.local,
            StealScope::Wide => &mut self.wide,
        };
        if !waiting.contains(thief) {
            if waiting.len() == WAITING_MAX {
                waiting.pop_front();
            }
            waiting.push_back(thief.clone());
        }
    }

    /// Removes a thief that got a task here.
    pub fn remove_waiting(&mut self, thief: &NodeId) {
        self.hinted_until.pop_front();
        self.local.retain(|other| other != thief);
        self.wide.retain(|other| other != thief);
    }

    /// The thieves to send a hint for this number of tasks: the longest waiting of this cluster
    /// first. They are removed, since a hint is sent once.
    pub fn take_thieves_to_hint(&mut self, tasks: usize, now: Instant) -> Vec<NodeId> {
        while self.hinted_until.front().is_some_and(|until| *until <= now) {
            self.hinted_until.pop_front();
        }
        let mut thieves = Vec::new();
        while (self.hints_all || self.hinted_until.len() < tasks)
            && let Some(thief) = self.local.pop_front().or_else(|| self.wide.pop_front())
        {
            self.hinted_until.push_back(now + HINT_TIMEOUT);
            thieves.push(thief);
        }
        thieves
    }

    /// The time to check for further hints, after a check at `now` that found tasks.
    pub fn next_check(&self, now: Instant) -> Option<Instant> {
        self.has_waiting().then_some(now + RECHECK_INTERVAL)
    }

    /// Whether any thief waits.
    pub fn has_waiting(&self) -> bool {
        !self.local.is_empty() || !self.wide.is_empty()
    }

    /// Removes all thieves that have left the job.
    pub fn retain(&mut self, in_job: impl Fn(&NodeId) -> bool) {
        self.local.retain(&in_job);
        self.wide.retain(&in_job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thief_gets_one_hint_its_own_cluster_first_in_order_of_requests() {
        let mut thieves = WaitingThieves::default();
        let [a, b, c] = ["a", "b", "c"].map(NodeId::from);
        thieves.add_waiting(&c, StealScope::Wide);
        thieves.add_waiting(&b, StealScope::Local);
        thieves.add_waiting(&a, StealScope::Local);
        thieves.add_waiting(&b, StealScope::Local);
        assert!(thieves.has_waiting());
        let now = Instant::now();
        assert_eq!(thieves.take_thieves_to_hint(9, now), [b.clone(), a.clone(), c.clone()]);
        assert!(!thieves.has_waiting() && thieves.next_check(now).is_none());
        thieves.add_waiting(&a, StealScope::Local);
        thieves.remove_waiting(&a);
        assert_eq!(thieves.take_thieves_to_hint(9, now), []);
    }

    #[test]
    fn under_random_stealing_all_thieves_get_hints() {
        let mut thieves = WaitingThieves::new(StealPolicy::Random);
        let all = ["a", "b", "c"].map(NodeId::from);
        all.iter().for_each(|thief| thieves.add_waiting(thief, StealScope::Local));
        assert_eq!(thieves.take_thieves_to_hint(1, Instant::now()), all);
    }

    #[test]
    fn there_are_no_more_hints_than_tasks() {
        let mut thieves = WaitingThieves::default();
        let all = ["a", "b", "c", "d"].map(NodeId::from);
        all.iter().for_each(|thief| thieves.add_waiting(thief, StealScope::Local));
        let [a, b, c, d] = all;
        let now = Instant::now();
        assert_eq!(thieves.take_thieves_to_hint(1, now), std::slice::from_ref(&a));
        assert_eq!(thieves.take_thieves_to_hint(1, now), [], "it is on its way");
        assert_eq!(thieves.next_check(now), Some(now + RECHECK_INTERVAL));
        assert_eq!(thieves.take_thieves_to_hint(2, now), [b]);
        // One thief has asked; the other found other work, and its time runs out.
        thieves.remove_waiting(&a);
        assert_eq!(thieves.take_thieves_to_hint(1, now), []);
        assert_eq!(thieves.take_thieves_to_hint(1, now + HINT_TIMEOUT), [c]);
        assert_eq!(thieves.take_thieves_to_hint(2, now + HINT_TIMEOUT), [d]);
        assert_eq!(thieves.next_check(now), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut thieves = WaitingThieves::default();
        for thief in 0..3 * WAITING_MAX {
            thieves.add_waiting(&NodeId::from(format!("n{thief}")), StealScope::Wide);
        }
        assert_eq!(thieves.take_thieves_to_hint(usize::MAX, Instant::now()).len(), WAITING_MAX);
    }
}
