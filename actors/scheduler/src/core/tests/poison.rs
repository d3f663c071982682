//! Roots that kill their nodes, one after the other.

use std::time::Duration;

use super::*;
use crate::job::RootProgress;
use crate::poison::CLUSTER_WITHIN;
use crate::scheduler::{Drain, RootAdvanced};

const JOB: JobId = JobId(1);

/// A job on three nodes of each of two clusters.
fn running(poison: u32) -> CoreTestGrid {
    let mut grid = CoreTestGrid::of(3, OURS);
    let params = JobParams { poison_limit: poison, ..JobParams::default() };
    grid.submit(Submit { params, ..submit(None, OURS, None) });
    grid.accept(1, &["ams-1", "ams-2", "ams-3", "del-1", "del-2", "del-3"]);
    grid
}

impl CoreTestGrid {
    fn root(&self) -> NodeId {
        self.core.jobs[&JOB].view.coordinator.clone().unwrap()
    }

    fn dies(&mut self, node: &NodeId) -> Vec<String> {
        let reason = "its process ended (signal 6); its last lines:\n    overflow".to_owned();
        self.put(SchedulerEvent::NodeLost { node: node.clone(), reason, returns: true })
    }

    /// The root's node dies, and another takes over.
    fn root_dies(&mut self) -> NodeId {
        let root = self.root();
        let output = self.dies(&root);
        if self.core.jobs[&JOB].blame_at.is_none() {
            assert!(output[0].starts_with("epoch after"), "{output:?}");
            self.succeed();
        } else {
            // No coordinator is selected while the root is being judged.
            assert_eq!(output, [""; 0]);
        }
        root
    }

    fn succeed(&mut self) {
        let epoch = Epoch(self.core.jobs[&JOB].epoch.0 + 1);
        let output = self.core.handle(SchedulerEvent::EpochIssued { job: JOB, epoch }, self.now);
        let [SchedulerAction::TakeOver { node, .. }] = &output[..] else { panic!("{output:?}") };
        self.put(SchedulerEvent::TakeOverAnswered { job: JOB, node: node.clone(), answer: Ok(()) });
    }

    fn advance(&mut self, reached: RootProgress) {
        let epoch = self.core.jobs[&JOB].epoch;
        self.put(SchedulerEvent::RootAdvanced(RootAdvanced { job: JOB, epoch, reached }));
    }

    /// Advances the time until it is known whether a cluster was lost.
    fn later(&mut self) -> Vec<String> {
        while let Some(at) = self.core.work_due() {
            self.now = self.now.max(at);
            let output = self.put(SchedulerEvent::Tick);
            if !output.is_empty() {
                return output;
            }
        }
        Vec::new()
    }
}

#[test]
fn root_that_killed_three_nodes_ends_the_job() {
    let mut grid = running(3);
    let mut died = Vec::new();
    for _ in 0..3 {
        assert_eq!(grid.later(), [""; 0]);
        grid.now += Duration::from_secs(1);
        died.push(grid.root_dies());
    }
    let output = grid.later();
    let ended = "ended job-1: 3 nodes died holding the root of fib (/), so it is blamed:";
    assert!(output[0].starts_with(ended), "{output:?}");
    for node in died {
        let words = format!("{node}: its process ended (signal 6); its last lines:\n    overflow");
        assert!(output[0].contains(&words), "{output:?}");
    }
    assert!(output[1..].iter().all(|output| output.starts_with("release job-1")), "{output:?}");
}

#[test]
fn deaths_that_are_not_the_roots_fault() {
    let done = |done| RootProgress { done, ..RootProgress::default() };
    /// An action before the n-th death.
    type Before = fn(&mut CoreTestGrid, u64);
    let cases: [(&str, u32, Before); 5] = [
        ("switched off", 0, |_, _| {}),
        ("allowed", 4, |_, _| {}),
        ("each root gets further", 3, |grid, n| {
            grid.advance(RootProgress { checkpoint: n, ..RootProgress::default() });
        }),
        ("its node was ordered to leave", 3, |grid, _| {
            let (nodes, reason) = (vec![grid.root()], "maintenance".to_owned());
            let order = Drain { nodes, reason, deadline_ms: None, incarnation: None };
            grid.put(SchedulerEvent::Drain { drain: 1, order });
        }),
        ("one root got further", 3, |grid, n| {
            if n == 1 {
                grid.advance(RootProgress { iterations: 1, ..RootProgress::default() });
            }
        }),
    ];
    for (what, limit, before) in cases {
        let mut grid = running(limit);
        for n in 0..3 {
            before(&mut grid, n);
            grid.root_dies();
            grid.now += Duration::from_secs(1);
        }
        assert!(grid.later().iter().all(|output| !output.starts_with("ended")), "{what}");
    }
    // The same progress as before does not absolve.
    let mut grid = running(3);
    for _ in 0..3 {
        grid.advance(done(5));
        grid.root_dies();
    }
    assert!(grid.later()[0].starts_with("ended job-1: 3 nodes died"));
}

#[test]
fn loss_of_a_whole_cluster_is_not_blamed_on_the_root() {
    let mut grid = running(2);
    let first = grid.root_dies();
    grid.now += CLUSTER_WITHIN;
    assert_eq!(grid.later(), [""; 0]);
    let (root, others) = (grid.root(), ["del-1", "del-2", "del-3"]);
    assert!(first.as_str().starts_with("ams") && root.as_str().starts_with("del"));
    grid.root_dies();
    for node in others.map(NodeId::from).iter().filter(|node| **node != root) {
        grid.now += Duration::from_secs(1);
        grid.dies(node);
    }
    assert_eq!(grid.later(), ["epoch after 2 for job-1"]);
    grid.succeed();
    assert!(grid.root().as_str().starts_with("ams"));
}
