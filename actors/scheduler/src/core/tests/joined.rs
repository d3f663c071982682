//! Nodes that join by themselves: no site starts them, and only their links report their loss.

use std::time::Duration;

use super::*;

/// Longer than a silent node is waited for.
const LATER: Duration = Duration::from_secs(6);

impl CoreTestGrid {
    /// The site of lab, whose two nodes join by themselves.
    fn lab(&mut self) -> Vec<String> {
        self.put(SchedulerEvent::SiteUp(SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            cluster: "lab".into(),
            nodes: vec!["lab-1".into(), "lab-2".into()],
            starts_programs: false,
            keep_ms: None,
            stubs: BTreeSet::new(),
            files: false,
            at: None,
            joins: true,
            receives_programs: false,
        }))
    }

    fn disconnect(&mut self, node: &str) -> Vec<String> {
        self.put(SchedulerEvent::Link { node: node.into(), up: false });
        self.put(SchedulerEvent::LinkDown { node: node.into(), why: "cut".to_owned() })
    }

    fn reconnect(&mut self, node: &str) {
        self.put(SchedulerEvent::Link { node: node.into(), up: true });
    }

    fn lab_states(&self) -> [NodeState; 2] {
        ["lab-1", "lab-2"].map(|node| self.state(node))
    }

    fn why(&self, node: &str) -> Option<String> {
        let status = self.core.status();
        let mut nodes = status.sites.into_values().flat_map(|site| site.nodes);
        nodes.find(|known| known.node.as_str() == node).and_then(|known| known.reason)
    }
}

#[test]
fn joining_nodes_are_off_until_they_register() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.lab();
    assert_eq!(grid.lab_states(), [NodeState::Off; 2]);
    assert!(grid.core.status().sites[&"lab".into()].joins);
    let output = grid.submit(submit(Some(&[("lab", 1)]), OURS, None));
    assert_eq!(output.len(), 1, "{output:?}");
    assert!(output[0].contains("which has 0 that work"), "{output:?}");
    grid.register("lab-2", 1, OURS);
    assert_eq!(grid.lab_states(), [NodeState::Off, NodeState::Idle]);
    assert_eq!(grid.submit(submit(Some(&[("lab", 1)]), OURS, None)), ["assign job-2 lab-2"]);
    assert_eq!(grid.core.work_due(), None);
}

#[test]
fn silent_node_is_lost_and_returns_in_the_same_incarnation() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.lab();
    grid.register("lab-1", 1, OURS);
    // A short loss of the link has no effect.
    grid.disconnect("lab-1");
    assert_eq!(grid.why("lab-1").as_deref(), Some("its link is down: cut"));
    grid.after(Duration::from_secs(4));
    grid.reconnect("lab-1");
    assert_eq!((grid.state("lab-1"), grid.why("lab-1")), (NodeState::Idle, None));
    grid.after(LATER);
    assert_eq!(grid.state("lab-1"), NodeState::Idle);
    grid.disconnect("lab-1");
    grid.after(LATER);
    assert_eq!(grid.state("lab-1"), NodeState::Off);
    assert_eq!(grid.why("lab-1").as_deref(), Some("its link is down: cut"));
    assert_eq!(grid.core.work_due(), None);
    grid.reconnect("lab-1");
    grid.register("lab-1", 1, OURS);
    assert_eq!((grid.state("lab-1"), grid.why("lab-1")), (NodeState::Idle, None));
}

#[test]
fn job_continues_without_a_lost_node_whose_next_incarnation_is_free() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.lab();
    grid.register("lab-1", 1, OURS);
    grid.submit(submit(Some(&[("ams", 1), ("lab", 1)]), OURS, None));
    grid.accept(1, &["ams-1", "lab-1"]);
    grid.disconnect("lab-1");
    assert_eq!(grid.after(LATER), ["lost job-1 ams-1 lab-1"]);
    assert_eq!(grid.state("lab-1"), NodeState::Off);
    grid.register("lab-1", 2, OURS);
    assert_eq!(grid.state("lab-1"), NodeState::Idle);
    // The same for a node that returns before its loss is noticed.
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.lab();
    grid.register("lab-1", 1, OURS);
    grid.submit(submit(Some(&[("ams", 1), ("lab", 1)]), OURS, None));
    grid.accept(1, &["ams-1", "lab-1"]);
    assert_eq!(grid.register("lab-1", 2, OURS), ["lost job-1 ams-1 lab-1"]);
    assert_eq!(grid.state("lab-1"), NodeState::Idle);
}

#[test]
fn node_that_its_job_removed_is_ordered_to_restart() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.lab();
    grid.register("lab-1", 1, OURS);
    grid.submit(submit(Some(&[("ams", 1), ("lab", 1)]), OURS, None));
    grid.accept(1, &["ams-1", "lab-1"]);
    let (job, epoch, node, incarnation) = (JobId(1), Epoch(1), "lab-1".into(), Incarnation(1));
    let reason = "silent for 3 s".to_owned();
    let (by, voice) = (None, None);
    let silent = MemberSilent {
        job,
        epoch,
        node,
        incarnation,
        reason,
        reporting_cluster: by,
        reporter: voice,
    };
    let output = grid.put(SchedulerEvent::MemberSilent(silent));
    assert_eq!(output.len(), 1, "{output:?}");
    assert!(output[0].contains("lab-1"), "{output:?}");
    assert_eq!(grid.state("lab-1"), NodeState::Off, "no site starts it");
}

#[test]
fn operator_drain_outlasts_an_incarnation() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.lab();
    grid.register("lab-1", 1, OURS);
    let order = Drain {
        nodes: vec!["lab-1".into()],
        reason: "maintenance".to_owned(),
        deadline_ms: None,
        incarnation: None,
    };
    grid.put(SchedulerEvent::Drain { drain: 1, order });
    assert_eq!(grid.state("lab-1"), NodeState::Drained);
    grid.disconnect("lab-1");
    grid.after(LATER);
    assert_eq!(grid.state("lab-1"), NodeState::Off);
    grid.register("lab-1", 2, OURS);
    assert_eq!(grid.state("lab-1"), NodeState::Drained);
    assert_eq!(grid.why("lab-1").as_deref(), Some("maintenance"));
    grid.put(SchedulerEvent::Undrain { nodes: vec!["lab-1".into()] });
    assert_eq!(grid.state("lab-1"), NodeState::Idle);
}
