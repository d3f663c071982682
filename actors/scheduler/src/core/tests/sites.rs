//! Losses and returns of sites with their own processes.

use std::time::Duration;

use super::*;
use crate::manager::Kind;

/// Longer than the delay before a silent site's nodes are checked.
const LATER: Duration = Duration::from_secs(6);

impl CoreTestGrid {
    /// The site of del registers, and lists its running nodes.
    fn own(&mut self, running: &[&str]) -> Vec<String> {
        let at =
            Contact { node: "del-site".into(), cluster: "del".into(), address: Address::Memory };
        self.put(SchedulerEvent::SiteUp(SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster: "del".into(),
            nodes: vec!["del-1".into(), "del-2".into()],
            starts_programs: true,
            keep_ms: None,
            stubs: running.iter().map(|&node| node.into()).collect(),
            files: false,
            at: Some(at),
            receives_programs: false,
        }))
    }

    fn link(&mut self, node: &str, up: bool) -> Vec<String> {
        self.put(SchedulerEvent::Link { node: node.into(), up })
    }

    fn states(&self) -> [NodeState; 2] {
        ["del-1", "del-2"].map(|node| self.state(node))
    }
}

#[test]
fn nodes_of_a_silent_site_are_not_granted() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.own(&["del-1", "del-2"]);
    assert_eq!(grid.states(), [NodeState::Idle; 2]);
    // A short loss of the link has no effect.
    grid.link("del-site", false);
    grid.after(Duration::from_secs(4));
    grid.link("del-site", true);
    grid.after(LATER);
    assert_eq!(grid.states(), [NodeState::Idle; 2]);
    assert_eq!(grid.core.work_due(), None);
    grid.link("del-site", false);
    grid.after(LATER);
    assert_eq!(grid.states(), [NodeState::Starting; 2]);
    let output = grid.submit(submit(Some(&[("del", 1)]), OURS, None));
    assert_eq!(output, [""; 0]);
    // The site returns with its running nodes.
    grid.own(&["del-1"]);
    assert_eq!(grid.register("del-1", 1, OURS), ["assign job-1 del-1"]);
    grid.register("del-2", 2, OURS);
    assert_eq!(grid.states(), [NodeState::Busy, NodeState::Idle]);
    assert_eq!(grid.core.work_due(), None);
}

#[test]
fn job_keeps_nodes_that_outlive_their_site() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.own(&["del-1", "del-2"]);
    grid.submit(submit(Some(&[("ams", 1), ("del", 2)]), OURS, None));
    grid.accept(1, &["ams-1", "del-1", "del-2"]);
    grid.link("del-site", false);
    grid.link("del-2", false);
    let out = grid.after(LATER);
    assert_eq!(out, ["lost job-1 ams-1 del-2"]);
    assert_eq!(grid.states(), [NodeState::Busy, NodeState::Starting]);
    // The next check finds the other node silent, too.
    grid.link("del-1", false);
    assert_eq!(grid.after(LATER), ["lost job-1 ams-1 del-1"]);
    assert_eq!(grid.states(), [NodeState::Starting; 2]);
    // A node that the site does not list has ended, even after a short absence of the site.
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.own(&["del-1", "del-2"]);
    grid.submit(submit(Some(&[("ams", 1), ("del", 2)]), OURS, None));
    grid.accept(1, &["ams-1", "del-1", "del-2"]);
    assert_eq!(grid.own(&["del-2"]), ["lost job-1 ams-1 del-1"]);
    assert_eq!(grid.own(&["del-2"]), [""; 0]);
    assert_eq!(grid.states(), [NodeState::Starting, NodeState::Busy]);
}

#[test]
fn managed_job_starts_when_its_site_returns() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.own(&["del-1", "del-2"]);
    grid.submit(submit(Some(&[("ams", 2)]), OURS, None));
    grid.accept(1, &["ams-1", "ams-2"]);
    let output = grid.submit(super::managed::needs(Kind::Rigid, 2, 2));
    assert_eq!(output, ["assign job-2 del-1", "assign job-2 del-2"]);
    grid.accept(2, &["del-1", "del-2"]);
    grid.over(2);
    grid.link("del-site", false);
    grid.after(LATER);
    assert_eq!(grid.submit(super::managed::needs(Kind::Rigid, 2, 2)), [""; 0]);
    grid.own(&[]);
    let mut output = grid.register("del-1", 2, OURS);
    output.extend(grid.register("del-2", 2, OURS));
    output.extend(grid.after(Duration::from_secs(1)));
    assert_eq!(output, ["assign job-3 del-1", "assign job-3 del-2"]);
}
