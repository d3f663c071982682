//! Scenarios that cannot end: no node is left, or none that knows the job, and nothing that is still to happen brings one
//! back.
//!
//! Must not know the job: one that nobody runs gets no further, whatever it is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use springtide_runtime::id::NodeId;
use tokio::time::sleep;

/// How often it is looked at, in simulated time.
const LOOK: Duration = Duration::from_secs(5);
/// What is so for this long stays so: until then the scheduler may find out itself that the job is lost.
const CERTAIN: Duration = Duration::from_secs(60);

/// A job that nobody leads is led again within seconds, or never.
const LOST: Duration = Duration::from_secs(600);

/// How a grid is.
pub struct Now {
    /// Nodes whose processes run.
    pub running: Vec<NodeId>,
    /// Whether one of them hosts the job's coordinator.
    pub is_led: bool,
}

/// Why a job does not end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DeadEnd {
    /// It can have no node; these run, and are claimed.
    NoNode(Vec<NodeId>),
    /// Nobody leads it.
    NoCoordinator,
}

/// What an event is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToCome {
    /// It will happen, or end: the clock brings it.
    ByTime,
    /// It waits for an iteration: nodes bring it.
    ByIteration,
    /// Nothing more.
    Nothing,
}

/// What is known of a scenario's nodes and events.
#[derive(Debug)]
pub(crate) struct Outlook {
    events: Vec<Cell<ToCome>>,
    /// Nodes that the job cannot have, for they are wanted for something else.
    claimed: RefCell<BTreeSet<NodeId>>,
}

impl Outlook {
    /// So many events are to come.
    pub(crate) fn new(events: usize) -> Self {
        let events = (0..events).map(|_| Cell::new(ToCome::ByTime)).collect();
        Self { events, claimed: RefCell::default() }
    }

    /// What this event is about to do.
    pub(crate) fn set(&self, event: usize, to_come: ToCome) {
        if let Some(known) = self.events.get(event) {
            known.set(to_come);
        }
    }

    /// The job cannot have these.
    pub(crate) fn claim(&self, nodes: &[NodeId]) {
        self.claimed.borrow_mut().extend(nodes.iter().cloned());
    }

    /// The job can have these again.
    pub(crate) fn free(&self, nodes: &[NodeId]) {
        let mut claimed = self.claimed.borrow_mut();
        claimed.retain(|node| !nodes.contains(node));
    }

    /// Whether something may still change by itself.
    fn is_open(&self) -> bool {
        self.events.iter().any(|event| event.get() == ToCome::ByTime)
    }

    /// Whether a job can have no node, where these run.
    fn has_none(&self, running: &[NodeId]) -> bool {
        let claimed = self.claimed.borrow();
        running.iter().all(|node| claimed.contains(node))
    }

    /// Completes when the job surely cannot end any more.
    pub(crate) async fn dead_end(&self, now: impl Fn() -> Now) -> DeadEnd {
        let (mut without_node, mut without_lead) = (Duration::ZERO, Duration::ZERO);
        loop {
            sleep(LOOK).await;
            let Now { running, is_led } = now();
            let for_another = |so: bool, so_for| if so { so_for + LOOK } else { Duration::ZERO };
            without_node = for_another(!self.is_open() && self.has_none(&running), without_node);
            without_lead = for_another(!self.is_open() && !is_led, without_lead);
            if without_node >= CERTAIN {
                return DeadEnd::NoNode(running);
            }
            if without_lead >= LOST {
                return DeadEnd::NoCoordinator;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_hope_while_a_node_runs_or_time_brings_one() {
        let outlook = Outlook::new(2);
        let (a, b) = (NodeId::from("a-1"), NodeId::from("b-1"));
        outlook.set(0, ToCome::Nothing);
        assert!(outlook.is_open(), "an event is to come");
        outlook.set(1, ToCome::ByIteration);
        assert!(!outlook.is_open() && outlook.has_none(&[]));
        let both = [a.clone(), b.clone()];
        assert!(!outlook.has_none(&both));
        outlook.claim(&both);
        assert!(outlook.has_none(&both[..1]));
        outlook.free(&both[..1]);
        assert!(!outlook.has_none(&[a]) && outlook.has_none(&[b]));
    }

    /// Two clusters of two nodes, and a job of ten minutes.
    fn played(events: &str) -> Result<crate::scenario::Played, crate::GridError> {
        let text = format!(
            "name = \"dead-end\"\n[app]\niterations = 10\nwork = \"240s\"\nleaves = 64\n[job]\nperiod = \"2s\"\n\
             [[cluster]]\nname = \"a\"\nnodes = 2\nstart = 2\n[[cluster]]\nname = \"b\"\nnodes = 2\nstart = 2\n{events}"
        );
        use springtide_runtime::config::{ScenarioConfig, Sources, load};
        let config: ScenarioConfig =
            load(&Sources::of_text("test.toml", &text)).expect("it is right").value;
        let mode = config.adaptation.mode.into();
        crate::scenario::play(&config, &crate::scenario::Play { mode, period: None, seed: 1 })
    }

    const A_GOES: &str = "[[event]]\nwhat = \"crash\"\nat = \"20s\"\ncluster = \"a\"\n";
    const B_GOES: &str = "[[event]]\nwhat = \"crash\"\nat = \"21s\"\ncluster = \"b\"\n";

    #[test]
    fn a_scenario_whose_nodes_all_go_for_good_says_so() {
        let error = played(&format!("{A_GOES}{B_GOES}")).expect_err("it cannot end");
        let told = error.to_string();
        for part in ["no node is left: all are off", "`lasts`", "20.000 s  a-1 to a-2: off"] {
            assert!(told.contains(part), "{part} is not in\n{told}");
        }
        let claimed = "[[event]]\nwhat = \"claim\"\nat = \"5s\"\ncluster = \"b\"\n";
        let error = played(&format!("{claimed}{A_GOES}")).expect_err("it cannot end");
        let told = error.to_string();
        assert!(told.contains("b-1 to b-2 are wanted for something else"), "{told}");
    }

    /// Whoever could say that the coordinator is dead was dead with it: its site does not see it, and no member is left.
    #[test]
    fn one_whose_nodes_come_back_too_late_says_so() {
        let error =
            played(&format!("{A_GOES}{B_GOES}lasts = \"10m\"\n")).expect_err("it cannot end");
        assert!(error.to_string().contains("the job is lost"), "{error}");
    }

    #[test]
    fn one_whose_nodes_come_back_ends() {
        let back = "lasts = \"10m\"\n";
        let played = played(&format!("{A_GOES}{back}{B_GOES}{back}")).expect("it ends");
        assert!(played.wall > Duration::from_secs(600), "{:?}", played.wall);
    }
}
