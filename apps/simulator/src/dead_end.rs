//! Detection of scenarios that cannot end: no node is left, or none that knows the job, and no
//! later event changes that.
//!
//! This module does not depend on the job: a job without nodes makes no progress.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use springtide_runtime::id::NodeId;
use tokio::time::sleep;

/// Interval between two checks, in simulated time.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A job without nodes for this long stays without. Until then the scheduler may find by itself
/// that the job is lost.
const NO_NODE_TIME: Duration = Duration::from_secs(60);

/// A job without a coordinator gets a new one within seconds, or never.
const NO_COORDINATOR_TIME: Duration = Duration::from_secs(600);

/// The state of a grid, as far as a job needs it.
pub struct GridState {
    /// The nodes whose processes run.
    pub running: Vec<NodeId>,
    /// Whether one of them hosts the job's coordinator.
    pub is_led: bool,
}

/// The reason why a job does not end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DeadEnd {
    /// The job can have no node. The listed nodes run and are claimed.
    NoNode(Vec<NodeId>),
    /// The job has no coordinator.
    NoCoordinator,
}

/// The trigger of an event's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// The clock: the event happens, or ends, at a time.
    Clock,
    /// The job: the event waits for an iteration.
    Iteration,
    /// The event has no further step.
    Never,
}

/// The claimed nodes of a scenario and the triggers of its events.
#[derive(Debug)]
pub(crate) struct DeadEndDetector {
    events: Vec<Cell<Trigger>>,
    /// Nodes that the job cannot have, for events have claimed them.
    claimed: RefCell<BTreeSet<NodeId>>,
}

impl DeadEndDetector {
    /// Creates a detector for a number of events, all of which are pending.
    pub(crate) fn new(events: usize) -> Self {
        let events = (0..events).map(|_| Cell::new(Trigger::Clock)).collect();
        Self { events, claimed: RefCell::default() }
    }

    /// Sets the trigger of an event's next step.
    pub(crate) fn set(&self, event: usize, trigger: Trigger) {
        if let Some(known) = self.events.get(event) {
            known.set(trigger);
        }
    }

    /// Takes nodes away from the job.
    pub(crate) fn claim(&self, nodes: &[NodeId]) {
        self.claimed.borrow_mut().extend(nodes.iter().cloned());
    }

    /// Gives nodes back to the job.
    pub(crate) fn free(&self, nodes: &[NodeId]) {
        let mut claimed = self.claimed.borrow_mut();
        claimed.retain(|node| !nodes.contains(node));
    }

    /// Whether the clock alone may still change something.
    fn has_timed_event(&self) -> bool {
        self.events.iter().any(|event| event.get() == Trigger::Clock)
    }

    /// Whether the job can have none of the running nodes.
    fn lacks_nodes(&self, running: &[NodeId]) -> bool {
        let claimed = self.claimed.borrow();
        running.iter().all(|node| claimed.contains(node))
    }

    /// Completes when the job certainly cannot end.
    pub(crate) async fn dead_end(&self, now: impl Fn() -> GridState) -> DeadEnd {
        let (mut without_node, mut without_coordinator) = (Duration::ZERO, Duration::ZERO);
        loop {
            sleep(CHECK_INTERVAL).await;
            let GridState { running, is_led } = now();
            let extended = |holds: bool, duration| {
                if holds { duration + CHECK_INTERVAL } else { Duration::ZERO }
            };
            without_node =
                extended(!self.has_timed_event() && self.lacks_nodes(&running), without_node);
            without_coordinator = extended(!self.has_timed_event() && !is_led, without_coordinator);
            if without_node >= NO_NODE_TIME {
                return DeadEnd::NoNode(running);
            }
            if without_coordinator >= NO_COORDINATOR_TIME {
                return DeadEnd::NoCoordinator;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_may_end_while_a_node_runs_or_an_event_is_timed() {
        let detector = DeadEndDetector::new(2);
        let (a, b) = (NodeId::from("a-1"), NodeId::from("b-1"));
        detector.set(0, Trigger::Never);
        assert!(detector.has_timed_event(), "an event is to come");
        detector.set(1, Trigger::Iteration);
        assert!(!detector.has_timed_event() && detector.lacks_nodes(&[]));
        let both = [a.clone(), b.clone()];
        assert!(!detector.lacks_nodes(&both));
        detector.claim(&both);
        assert!(detector.lacks_nodes(&both[..1]));
        detector.free(&both[..1]);
        assert!(!detector.lacks_nodes(&[a]) && detector.lacks_nodes(&[b]));
    }

    /// Two clusters of two nodes, and a job of ten minutes.
    fn play_scenario(events: &str) -> Result<crate::scenario::SimulationResult, crate::GridError> {
        let text = format!(
            "name = \"dead-end\"\n[app]\niterations = 10\nwork = \"240s\"\nleaves = 64\n\
             [job]\nperiod = \"2s\"\n\
             [[cluster]]\nname = \"a\"\nnodes = 2\nstart = 2\n\
             [[cluster]]\nname = \"b\"\nnodes = 2\nstart = 2\n{events}"
        );
        use springtide_runtime::config::{ScenarioConfig, Sources, load};
        let config: ScenarioConfig =
            load(&Sources::of_text("test.toml", &text)).expect("it is right").value;
        let mode = config.adaptation.mode.into();
        crate::scenario::simulate(
            &config,
            &crate::scenario::SimulationParams { mode, period: None, seed: 1 },
        )
    }

    const A_GOES: &str = "[[event]]\nwhat = \"crash\"\nat = \"20s\"\ncluster = \"a\"\n";
    const B_GOES: &str = "[[event]]\nwhat = \"crash\"\nat = \"21s\"\ncluster = \"b\"\n";

    #[test]
    fn a_scenario_without_nodes_says_so() {
        let error = play_scenario(&format!("{A_GOES}{B_GOES}")).expect_err("it cannot end");
        let message = error.to_string();
        for part in ["no node is left: all are off", "`duration`", "20.000 s  a-1 to a-2: off"] {
            assert!(message.contains(part), "{part} is not in\n{message}");
        }
        let claimed = "[[event]]\nwhat = \"claim\"\nat = \"5s\"\ncluster = \"b\"\n";
        let error = play_scenario(&format!("{claimed}{A_GOES}")).expect_err("it cannot end");
        let message = error.to_string();
        assert!(message.contains("b-1 to b-2 are wanted for something else"), "{message}");
    }

    /// All processes that could report the coordinator's death died with it: its site does not see
    /// it, and no member is left.
    #[test]
    fn a_scenario_whose_nodes_return_too_late_says_so() {
        let error = play_scenario(&format!("{A_GOES}{B_GOES}duration = \"10m\"\n"))
            .expect_err("it cannot end");
        assert!(error.to_string().contains("the job is lost"), "{error}");
    }

    #[test]
    fn a_scenario_whose_nodes_return_ends() {
        let back = "duration = \"10m\"\n";
        let played = play_scenario(&format!("{A_GOES}{back}{B_GOES}{back}")).expect("it ends");
        assert!(played.wall > Duration::from_secs(600), "{:?}", played.wall);
    }
}
