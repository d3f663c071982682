//! Who has been silent too long: suspicion, and the word that a node is dead.
//!
//! One node watches others by their heartbeats. A state machine without I/O and without a clock of its own. A watcher that was
//! itself stopped (a busy machine, SIGSTOP, a suspended virtual machine) has not listened meanwhile, so its own gap counts
//! for nobody's silence. Whoever watches decides nothing more: the word goes to the job's coordinator, and all act on its view.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::id::{Incarnation, NodeId};

/// How long silence is borne.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Between two heartbeats, and between two looks.
    pub every: Duration,
    /// A node silent for so long is suspected.
    pub suspect: Duration,
    /// And for so long, dead.
    pub dead: Duration,
}

impl Patience {
    /// Inside a cluster: a death is found within 3 s, and a process stopped for 2 s is not taken for dead.
    pub const CLUSTER: Self = Self {
        every: Duration::from_millis(700),
        suspect: Duration::from_millis(1600),
        dead: Duration::from_millis(2900),
    };

    /// Between clusters: a loss is found within 10 s.
    pub const WIDE: Self = Self {
        every: Duration::from_secs(1),
        suspect: Duration::from_secs(4),
        dead: Duration::from_secs(9),
    };
}

/// What a look finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Silent for a while; it may come back.
    Suspect(NodeId),
    /// A suspected node was heard.
    Back(NodeId),
    /// Dead: silent for so long. It is watched no more.
    Dead(NodeId, Duration),
}

#[derive(Debug)]
struct Watched {
    incarnation: Incarnation,
    heard: Instant,
    suspected: bool,
}

/// Watches some nodes.
#[derive(Debug)]
pub struct Detector {
    patience: Patience,
    watched: BTreeMap<NodeId, Watched>,
    looked: Instant,
}

impl Detector {
    /// A detector that watches nobody yet.
    pub fn new(patience: Patience, now: Instant) -> Self {
        Self { patience, watched: BTreeMap::new(), looked: now }
    }

    /// Watches these nodes from now on and no others. Whoever is new counts as heard now.
    pub fn watch(&mut self, nodes: impl IntoIterator<Item = (NodeId, Incarnation)>, now: Instant) {
        let mut before = std::mem::take(&mut self.watched);
        for (node, incarnation) in nodes {
            let known = before.remove(&node).filter(|known| known.incarnation == incarnation);
            let new = || Watched { incarnation, heard: now, suspected: false };
            self.watched.insert(node, known.unwrap_or_else(new));
        }
    }

    /// A heartbeat, or anything else, came from this life of a node. Says so if it was suspected.
    pub fn heard(
        &mut self,
        node: &NodeId,
        incarnation: Incarnation,
        now: Instant,
    ) -> Option<Finding> {
        let watched = self.watched.get_mut(node)?;
        if watched.incarnation != incarnation {
            return None;
        }
        watched.heard = watched.heard.max(now);
        std::mem::take(&mut watched.suspected).then(|| Finding::Back(node.clone()))
    }

    /// Whether this life of a node is watched.
    pub fn watches(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        self.watched.get(node).is_some_and(|watched| watched.incarnation == incarnation)
    }

    /// How long a node has been silent, if it is watched.
    pub fn silence(&self, node: &NodeId, now: Instant) -> Option<Duration> {
        self.watched.get(node).map(|watched| now.saturating_duration_since(watched.heard))
    }

    /// What has changed. To be called every [`Patience::every`].
    pub fn look(&mut self, now: Instant) -> Vec<Finding> {
        // What this process did not live through it did not hear either.
        let asleep = now.saturating_duration_since(self.looked).saturating_sub(self.patience.every);
        self.looked = now;
        let mut findings = Vec::new();
        for (node, watched) in &mut self.watched {
            watched.heard = (watched.heard + asleep).min(now);
            let silent = now.saturating_duration_since(watched.heard);
            if silent >= self.patience.dead {
                findings.push(Finding::Dead(node.clone(), silent));
            } else if silent >= self.patience.suspect && !watched.suspected {
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
    use crate::state_table::{Outcome, check};

    const LIFE: Incarnation = Incarnation(1);

    fn watching(now: Instant) -> Detector {
        let mut detector = Detector::new(Patience::CLUSTER, now);
        detector.watch([("a".into(), LIFE), ("b".into(), LIFE)], now);
        detector
    }

    #[test]
    fn silence_is_suspected_then_a_death_and_told_once() {
        let start = Instant::now();
        let mut detector = watching(start);
        let mut told = Vec::new();
        for step in 1..=10 {
            let now = start + Patience::CLUSTER.every * step;
            told.extend(detector.heard(&"a".into(), LIFE, now));
            told.extend(detector.look(now));
        }
        let silent = Patience::CLUSTER.every * 5;
        assert_eq!(told, [Finding::Suspect("b".into()), Finding::Dead("b".into(), silent)]);
    }

    #[test]
    fn two_seconds_of_silence_are_forgiven_and_another_life_is_no_sign_of_this_one() {
        let start = Instant::now();
        let every = Patience::CLUSTER.every;
        let mut detector = watching(start);
        let mut told = Vec::new();
        for step in 1..=3 {
            assert_eq!(detector.heard(&"a".into(), Incarnation(2), start + every * step), None);
            told.extend(detector.look(start + every * step));
        }
        assert_eq!(told, [Finding::Suspect("a".into()), Finding::Suspect("b".into())]);
        let back = detector.heard(&"a".into(), LIFE, start + Duration::from_millis(2700));
        assert_eq!(back, Some(Finding::Back("a".into())));
        // A new view starts the watch of a new life, and keeps what is known of the others.
        let now = start + every * 4;
        detector.watch([("a".into(), Incarnation(2)), ("b".into(), LIFE)], now);
        assert_eq!(detector.silence(&"a".into(), now), Some(Duration::ZERO));
        assert_eq!(detector.silence(&"b".into(), now), Some(every * 4));
    }

    event_kinds!(FindingKind of Finding { Suspect(..), Back(..), Dead(..) });

    /// A state of a watched node, and what is asked of its watcher.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Is {
        Unwatched,
        Heard,
        Suspected,
        /// It was found dead.
        Dead,
    }

    #[derive(Clone, Copy, Debug)]
    enum Asks {
        /// A heartbeat of the life that is watched.
        Heartbeat,
        /// One of another life.
        OtherLife,
        /// A look before anything is due.
        LookAtOnce,
        /// One after so long a silence that a node is suspected, or dead.
        LookLater,
        /// A view with the same life of it.
        SameView,
        /// A view with another life of it.
        NewView,
        /// A view without it.
        ViewWithout,
    }

    const STATES: [Is; 4] = [Is::Unwatched, Is::Heard, Is::Suspected, Is::Dead];

    fn detector(is: Is) -> (Detector, Instant) {
        let (patience, mut now) = (Patience::CLUSTER, Instant::now());
        let mut detector = Detector::new(patience, now);
        let steps = match is {
            Is::Unwatched => return (detector, now),
            Is::Heard => 0,
            Is::Suspected => 3,
            Is::Dead => 5,
        };
        detector.watch([("a".into(), LIFE)], now);
        let mut found = Vec::new();
        for _ in 0..steps {
            now += patience.every;
            found.extend(detector.look(now));
        }
        let last = found.last().map(FindingKind::of);
        let expected = match is {
            Is::Unwatched | Is::Heard => None,
            Is::Suspected => Some(FindingKind::Suspect),
            Is::Dead => Some(FindingKind::Dead),
        };
        assert_eq!(last, expected);
        assert!(FindingKind::ALL.contains(&FindingKind::Back));
        (detector, now)
    }

    #[test]
    fn each_event_in_each_state_is_handled_or_ignored_for_a_reason() {
        use Outcome::{Handled as H, Ignored as I};
        const STRANGER: &str =
            "it is watched when a view names it; a heartbeat is answered with that";
        const OTHER: &str = "another life is no sign of this one";
        const QUIET: &str = "nothing is due";
        const SAME: &str = "what is known of it stays";
        let row = |asks| match asks {
            Asks::Heartbeat => [I(STRANGER), H, H, I(STRANGER)],
            Asks::OtherLife => [I(STRANGER), I(OTHER), I(OTHER), I(STRANGER)],
            Asks::LookAtOnce => [I(QUIET); 4],
            Asks::LookLater => [I(QUIET), H, H, I(QUIET)],
            // One that was found dead and is named again lives, for whoever names it.
            Asks::SameView => [H, I(SAME), I(SAME), H],
            Asks::NewView => [H, H, H, H],
            Asks::ViewWithout => [I(SAME), H, H, I(SAME)],
        };
        let all = [
            Asks::Heartbeat,
            Asks::OtherLife,
            Asks::LookAtOnce,
            Asks::LookLater,
            Asks::SameView,
            Asks::NewView,
            Asks::ViewWithout,
        ];
        check(all, STATES, row, |asks, is| {
            let (mut detector, now) = detector(is);
            let node = NodeId::from("a");
            let later = now + Patience::CLUSTER.every;
            let watched = |detector: &Detector| format!("{:?}", detector.watched);
            let before = watched(&detector);
            let found = match asks {
                Asks::Heartbeat => detector.heard(&node, LIFE, later).into_iter().collect(),
                Asks::OtherLife => {
                    detector.heard(&node, Incarnation(2), later).into_iter().collect()
                }
                Asks::LookAtOnce => detector.look(now),
                Asks::LookLater => {
                    let every = Patience::CLUSTER.every;
                    (1..=5).flat_map(|step| detector.look(now + every * step)).collect()
                }
                Asks::SameView => {
                    detector.watch([(node, LIFE)], now);
                    Vec::new()
                }
                Asks::NewView => {
                    detector.watch([(node, Incarnation(2))], now);
                    Vec::new()
                }
                Asks::ViewWithout => {
                    detector.watch([], now);
                    Vec::new()
                }
            };
            Outcome::seen(!found.is_empty() || watched(&detector) != before)
        });
    }

    proptest! {
        /// Whoever sends its heartbeats is never declared dead, however long the watcher itself is stopped in between; and
        /// whoever is silent is, within its patience and one look, of the watcher's own time.
        #[test]
        fn only_the_silent_die(gaps in prop::collection::vec(0..20_000u64, 1..60), silent_from in 0..60usize) {
            let start = Instant::now();
            let mut detector = watching(start);
            let every = Patience::CLUSTER.every;
            let (mut now, mut awake) = (start, Duration::ZERO);
            let mut silent_since = None;
            for (step, gap) in gaps.iter().enumerate() {
                let gap = every + Duration::from_millis(if gap % 4 == 0 { *gap } else { 0 });
                now += gap;
                awake += every;
                // It was sent while the watcher slept, and is read first when it wakes.
                detector.heard(&"a".into(), LIFE, now);
                if step < silent_from {
                    detector.heard(&"b".into(), LIFE, now);
                    silent_since = Some(awake);
                }
                let since = awake - silent_since.unwrap_or_default();
                for finding in detector.look(now) {
                    match finding {
                        Finding::Dead(node, _) => {
                            prop_assert_eq!(node, NodeId::from("b"));
                            prop_assert!(since >= Patience::CLUSTER.dead);
                        }
                        Finding::Suspect(node) | Finding::Back(node) => {
                            prop_assert_eq!(node, NodeId::from("b"));
                        }
                    }
                }
                if since >= Patience::CLUSTER.dead {
                    prop_assert_eq!(detector.silence(&"b".into(), now), None);
                }
            }
        }
    }
}
