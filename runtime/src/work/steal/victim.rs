//! The victim's side: who asked in vain and is to be told when there is work.

use std::collections::VecDeque;

use super::Scope;
use crate::id::NodeId;

/// Most thieves remembered; the oldest is forgotten for a new one, and finds work by asking again.
const WAITING_MAX: usize = 1024;

/// Thieves that wait for a hint, those of this cluster first.
#[derive(Debug, Default)]
pub struct Victim {
    local: VecDeque<NodeId>,
    wide: VecDeque<NodeId>,
}

impl Victim {
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

    /// A thief got work, here or elsewhere: it waits no more.
    pub fn served(&mut self, thief: &NodeId) {
        self.local.retain(|other| other != thief);
        self.wide.retain(|other| other != thief);
    }

    /// There is work: whom to tell, the longest waiting of this cluster first. It is forgotten: a hint is sent once.
    pub fn next_to_hint(&mut self) -> Option<NodeId> {
        self.local.pop_front().or_else(|| self.wide.pop_front())
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
        let hinted: Vec<NodeId> = std::iter::from_fn(|| victim.next_to_hint()).collect();
        assert_eq!(hinted, [b.clone(), a.clone(), c.clone()]);
        assert!(!victim.has_waiting());
        victim.refused(&a, Scope::Local);
        victim.served(&a);
        assert_eq!(victim.next_to_hint(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut victim = Victim::default();
        for thief in 0..3 * WAITING_MAX {
            victim.refused(&NodeId::from(format!("n{thief}")), Scope::Wide);
        }
        assert_eq!(std::iter::from_fn(|| victim.next_to_hint()).count(), WAITING_MAX);
    }
}
