//! The failure detector: reports nodes whose silence makes them suspect or dead. The job's
//! coordinator decides.
//!
//! One node watches others by their heartbeats. The detector is a state machine without I/O and
//! without a clock. A watcher may stop by itself (a busy machine, SIGSTOP, a suspended virtual
//! machine). It receives nothing meanwhile, so this time does not count as silence of the others.
//!
//! The watcher decides nothing else: it reports to the job's coordinator, and all nodes act on the
//! coordinator's view.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::id::{Incarnation, NodeId};

/// The limits on the silence of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilenceLimits {
    /// The interval of heartbeats, and of checks.
    pub check_interval: Duration,
    /// The silence after which a node is suspected.
    pub suspect: Duration,
    /// The silence after which a node is dead.
    pub dead: Duration,
}

impl SilenceLimits {
    /// The limits inside a cluster: a death is detected within 3 s, and a process that stopped for
    /// 2 s does not count as dead.
    pub const CLUSTER: Self = Self {
        check_interval: Duration::from_millis(700),
        suspect: Duration::from_millis(1600),
        dead: Duration::from_millis(2900),
    };

    /// The limits between clusters: a loss is detected within 10 s.
    pub const WIDE: Self = Self {
        check_interval: Duration::from_secs(1),
        suspect: Duration::from_secs(4),
        dead: Duration::from_secs(9),
    };
}

/// A change that the detector reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The node is silent for a while; it may recover.
    Suspect(NodeId),
    /// A suspected node has sent something.
    Recovered(NodeId),
    /// The node is dead after this silence, and no longer watched.
    Dead(NodeId, Duration),
}

#[derive(Debug)]
struct WatchedNode {
    incarnation: Incarnation,
    last_message: Instant,
    suspected: bool,
}

/// A failure detector for a set of nodes.
#[derive(Debug)]
pub struct Detector {
    limits: SilenceLimits,
    watched: BTreeMap<NodeId, WatchedNode>,
    last_check: Instant,
}

impl Detector {
    /// Creates a detector without nodes.
    pub fn new(limits: SilenceLimits, now: Instant) -> Self {
        Self { limits, watched: BTreeMap::new(), last_check: now }
    }

    /// Replaces the watched nodes. The silence of new ones starts now.
    pub fn watch(&mut self, nodes: impl IntoIterator<Item = (NodeId, Incarnation)>, now: Instant) {
        let mut before = std::mem::take(&mut self.watched);
        for (node, incarnation) in nodes {
            let known = before.remove(&node).filter(|known| known.incarnation == incarnation);
            let new = || WatchedNode { incarnation, last_message: now, suspected: false };
            self.watched.insert(node, known.unwrap_or_else(new));
        }
    }

    /// Records a message from this incarnation of a node. Returns a finding if the node was
    /// suspected.
    pub fn record_message(
        &mut self,
        node: &NodeId,
        incarnation: Incarnation,
        now: Instant,
    ) -> Option<Finding> {
        let watched = self.watched.get_mut(node)?;
        if watched.incarnation != incarnation {
            return None;
        }
        watched.last_message = watched.last_message.max(now);
        std::mem::take(&mut watched.suspected).then(|| Finding::Recovered(node.clone()))
    }

    /// Whether this incarnation of a node is watched.
    pub fn watches(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        self.watched.get(node).is_some_and(|watched| watched.incarnation == incarnation)
    }

    /// The silence of a node, if it is watched.
    pub fn silence(&self, node: &NodeId, now: Instant) -> Option<Duration> {
        self.watched.get(node).map(|watched| now.saturating_duration_since(watched.last_message))
    }

    /// Checks all nodes and returns the changes. Call it every [`SilenceLimits::check_interval`].
    pub fn check(&mut self, now: Instant) -> Vec<Finding> {
        // While this process did not run, it could not receive anything.
        let asleep = now
            .saturating_duration_since(self.last_check)
            .saturating_sub(self.limits.check_interval);
        self.last_check = now;
        let mut findings = Vec::new();
        for (node, watched) in &mut self.watched {
            watched.last_message = (watched.last_message + asleep).min(now);
            let silent = now.saturating_duration_since(watched.last_message);
            if silent >= self.limits.dead {
                findings.push(Finding::Dead(node.clone(), silent));
            } else if silent >= self.limits.suspect && !watched.suspected {
                watched.suspected = true;
                findings.push(Finding::Suspect(node.clone()));
            }
        }
        for finding in &findings {
            if let Finding::Dead(node, _) = finding {
                self.watched.remove(node);
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event_kinds;
    use crate::state_table::{EventEffect, check};

    const INCARNATION: Incarnation = Incarnation(1);

    fn watching(now: Instant) -> Detector {
        let mut detector = Detector::new(SilenceLimits::CLUSTER, now);
        detector.watch([("a".into(), INCARNATION), ("b".into(), INCARNATION)], now);
        detector
    }

    #[test]
    fn silence_leads_to_one_suspicion_and_one_death() {
        let start = Instant::now();
        let mut detector = watching(start);
        let mut findings = Vec::new();
        for step in 1..=10 {
            let now = start + SilenceLimits::CLUSTER.check_interval * step;
            findings.extend(detector.record_message(&"a".into(), INCARNATION, now));
            findings.extend(detector.check(now));
        }
        let silent = SilenceLimits::CLUSTER.check_interval * 5;
        assert_eq!(findings, [Finding::Suspect("b".into()), Finding::Dead("b".into(), silent)]);
    }

    #[test]
    fn two_seconds_of_silence_are_tolerated_and_other_incarnations_do_not_count() {
        let start = Instant::now();
        let every = SilenceLimits::CLUSTER.check_interval;
        let mut detector = watching(start);
        let mut findings = Vec::new();
        for step in 1..=3 {
            assert_eq!(
                detector.record_message(&"a".into(), Incarnation(2), start + every * step),
                None
            );
            findings.extend(detector.check(start + every * step));
        }
        assert_eq!(findings, [Finding::Suspect("a".into()), Finding::Suspect("b".into())]);
        let back =
            detector.record_message(&"a".into(), INCARNATION, start + Duration::from_millis(2700));
        assert_eq!(back, Some(Finding::Recovered("a".into())));
        // A new view starts the watch of a new incarnation, and keeps the state of the others.
        let now = start + every * 4;
        detector.watch([("a".into(), Incarnation(2)), ("b".into(), INCARNATION)], now);
        assert_eq!(detector.silence(&"a".into(), now), Some(Duration::ZERO));
        assert_eq!(detector.silence(&"b".into(), now), Some(every * 4));
    }

    event_kinds!(FindingKind of Finding { Suspect(..), Recovered(..), Dead(..) });

    /// The state of a watched node.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum NodeState {
        Unwatched,
        Alive,
        Suspected,
        /// The node was reported dead.
        Dead,
    }

    #[derive(Clone, Copy, Debug)]
    enum Input {
        /// A heartbeat of the watched incarnation.
        Heartbeat,
        /// A heartbeat of another incarnation.
        OtherIncarnation,
        /// A check before anything is due.
        CheckAtOnce,
        /// A check after a silence by which a node is suspected, or dead.
        CheckLater,
        /// A view with the same incarnation of the node.
        SameView,
        /// A view with another incarnation of the node.
        NewView,
        /// A view without the node.
        ViewWithout,
    }

    const STATES: [NodeState; 4] =
        [NodeState::Unwatched, NodeState::Alive, NodeState::Suspected, NodeState::Dead];

    fn detector(is: NodeState) -> (Detector, Instant) {
        let (limits, mut now) = (SilenceLimits::CLUSTER, Instant::now());
        let mut detector = Detector::new(limits, now);
        let steps = match is {
            NodeState::Unwatched => return (detector, now),
            NodeState::Alive => 0,
            NodeState::Suspected => 3,
            NodeState::Dead => 5,
        };
        detector.watch([("a".into(), INCARNATION)], now);
        let mut found = Vec::new();
        for _ in 0..steps {
            now += limits.check_interval;
            found.extend(detector.check(now));
        }
        let last = found.last().map(FindingKind::of);
        let expected = match is {
            NodeState::Unwatched | NodeState::Alive => None,
            NodeState::Suspected => Some(FindingKind::Suspect),
            NodeState::Dead => Some(FindingKind::Dead),
        };
        assert_eq!(last, expected);
        assert!(FindingKind::ALL.contains(&FindingKind::Recovered));
        (detector, now)
    }

    #[test]
    fn each_event_in_each_state_is_handled_or_ignored_for_a_reason() {
        use EventEffect::{Handled as H, Ignored as I};
        const STRANGER: &str =
            "it is watched when a view names it; a heartbeat is answered with that";
        const OTHER: &str = "another incarnation does not count";
        const QUIET: &str = "nothing is due";
        const SAME: &str = "what is known of it stays";
        let row = |input| match input {
            Input::Heartbeat => [I(STRANGER), H, H, I(STRANGER)],
            Input::OtherIncarnation => [I(STRANGER), I(OTHER), I(OTHER), I(STRANGER)],
            Input::CheckAtOnce => [I(QUIET); 4],
            Input::CheckLater => [I(QUIET), H, H, I(QUIET)],
            // A node that was reported dead and is in a view again is alive.
            Input::SameView => [H, I(SAME), I(SAME), H],
            Input::NewView => [H, H, H, H],
            Input::ViewWithout => [I(SAME), H, H, I(SAME)],
        };
        let all = [
            Input::Heartbeat,
            Input::OtherIncarnation,
            Input::CheckAtOnce,
            Input::CheckLater,
            Input::SameView,
            Input::NewView,
            Input::ViewWithout,
        ];
        check(all, STATES, row, |input, is| {
            let (mut detector, now) = detector(is);
            let node = NodeId::from("a");
            let later = now + SilenceLimits::CLUSTER.check_interval;
            let watched = |detector: &Detector| format!("{:?}", detector.watched);
            let before = watched(&detector);
            let found = match input {
                Input::Heartbeat => {
                    detector.record_message(&node, INCARNATION, later).into_iter().collect()
                }
                Input::OtherIncarnation => {
                    detector.record_message(&node, Incarnation(2), later).into_iter().collect()
                }
                Input::CheckAtOnce => detector.check(now),
                Input::CheckLater => {
                    let every = SilenceLimits::CLUSTER.check_interval;
                    (1..=5).flat_map(|step| detector.check(now + every * step)).collect()
                }
                Input::SameView => {
                    detector.watch([(node, INCARNATION)], now);
                    Vec::new()
                }
                Input::NewView => {
                    detector.watch([(node, Incarnation(2))], now);
                    Vec::new()
                }
                Input::ViewWithout => {
                    detector.watch([], now);
                    Vec::new()
                }
            };
            EventEffect::seen(!found.is_empty() || watched(&detector) != before)
        });
    }

    proptest! {
        /// A node that sends its heartbeats is never reported dead, however long the watcher stops
        /// in between. A silent one is reported dead within the limit and one check, in the
        /// watcher's own time.
        #[test]
        fn only_silent_nodes_are_declared_dead(
            gaps in prop::collection::vec(0..20_000u64, 1..60),
            silent_from in 0..60usize,
        ) {
            let start = Instant::now();
            let mut detector = watching(start);
            let every = SilenceLimits::CLUSTER.check_interval;
            let (mut now, mut awake) = (start, Duration::ZERO);
            let mut silent_since = None;
            for (step, gap) in gaps.iter().enumerate() {
                let gap = every + Duration::from_millis(if gap % 4 == 0 { *gap } else { 0 });
                now += gap;
                awake += every;
                // Sent while the watcher did not run, and read first when it continues.
                detector.record_message(&"a".into(), INCARNATION, now);
                if step < silent_from {
                    detector.record_message(&"b".into(), INCARNATION, now);
                    silent_since = Some(awake);
                }
                let since = awake - silent_since.unwrap_or_default();
                for finding in detector.check(now) {
                    match finding {
                        Finding::Dead(node, _) => {
                            prop_assert_eq!(node, NodeId::from("b"));
                            prop_assert!(since >= SilenceLimits::CLUSTER.dead);
                        }
                        Finding::Suspect(node) | Finding::Recovered(node) => {
                            prop_assert_eq!(node, NodeId::from("b"));
                        }
                    }
                }
                if since >= SilenceLimits::CLUSTER.dead {
                    prop_assert_eq!(detector.silence(&"b".into(), now), None);
                }
            }
        }
    }
}
