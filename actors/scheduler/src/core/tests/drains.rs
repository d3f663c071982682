//! Histories of drained nodes.

use std::time::Duration;

use super::*;
use crate::scheduler::{Drain, ReleaseReason};

impl CoreTestGrid {
    fn drain(&mut self, drain: u64, nodes: &[&str], incarnation: Option<u64>) -> Vec<String> {
        let order = Drain {
            nodes: nodes.iter().map(|&node| node.into()).collect(),
            reason: "maintenance".into(),
            deadline_ms: incarnation.map(|_| 1500),
            incarnation: incarnation.map(Incarnation),
        };
        self.put(SchedulerEvent::Drain { drain, order })
    }

    fn undrain(&mut self, nodes: &[&str]) -> Vec<String> {
        self.put(SchedulerEvent::Undrain { nodes: nodes.iter().map(|&node| node.into()).collect() })
    }

    /// Job 1 on all nodes.
    fn full(nodes: usize, least: u32) -> Self {
        let mut grid = Self::of(nodes, OURS);
        let mut submit = submit(None, OURS, None);
        submit.params.min_processors = least.into();
        grid.submit(submit);
        let names: Vec<String> = grid.core.nodes.keys().map(ToString::to_string).collect();
        grid.accept(1, &names.iter().map(String::as_str).collect::<Vec<_>>());
        grid
    }
}

#[test]
fn idle_node_is_drained_at_once() {
    let mut grid = CoreTestGrid::of(2, OURS);
    assert_eq!(grid.drain(1, &["ams-1"], None), ["drained 1: [ams-1] empty, [] gone"]);
    assert_eq!(grid.state("ams-1"), NodeState::Drained);
    assert_eq!(grid.submit(submit(Some(&[("ams", 1)]), OURS, None)), ["assign job-1 ams-2"]);
    grid.accept(1, &["ams-2"]);
    grid.over(1);
    // The job gets every working node: not this one.
    assert_eq!(grid.submit(submit(None, OURS, None)).len(), 3);
    grid.accept(2, &["ams-2", "del-1", "del-2"]);
    grid.over(2);
    // Nor does its next incarnation work.
    grid.register("ams-1", 2, OURS);
    assert_eq!(grid.state("ams-1"), NodeState::Drained);
    assert_eq!(grid.undrain(&["ams-1"]), [""; 0]);
    assert_eq!(grid.state("ams-1"), NodeState::Idle);
}

#[test]
fn drain_waits_for_the_job_of_a_busy_node() {
    let mut grid = CoreTestGrid::full(2, 1);
    let output = grid.drain(1, &["ams-2", "del-1"], None);
    assert_eq!(output, ["ask job-1 at ams-1 to leave [ams-2, del-1] in None"]);
    assert_eq!(grid.state("ams-2"), NodeState::Draining);
    assert_eq!(grid.freed(1, "ams-2", ReleaseReason::Left), [""; 0]);
    assert_eq!(grid.state("ams-2"), NodeState::Drained);
    let (node, reason) = ("del-1".into(), "killed".to_owned());
    let output = grid.put(SchedulerEvent::NodeLost { node, reason, returns: true });
    assert_eq!(output, ["lost job-1 ams-1 del-1", "drained 1: [ams-2] empty, [del-1] gone"]);
}

#[test]
fn undelivered_order_to_leave_is_repeated_with_the_remaining_time() {
    let mut grid = CoreTestGrid::full(1, 1);
    let output = grid.drain(1, &["del-1"], Some(1));
    assert_eq!(output, ["ask job-1 at ams-1 to leave [del-1] in Some(1500)"]);
    let (job, nodes) = (JobId(1), vec!["del-1".into()]);
    assert_eq!(grid.put(SchedulerEvent::AskLeaveFailed { job, nodes }), [""; 0]);
    let second = Duration::from_secs(1);
    assert_eq!(grid.core.work_due(), Some(grid.now + second));
    grid.now += second;
    assert_eq!(
        grid.put(SchedulerEvent::Tick),
        ["ask job-1 at ams-1 to leave [del-1] in Some(500)"]
    );
    assert_eq!(grid.core.work_due(), None);
    // It drained itself before it stopped, and its next incarnation serves again.
    let output = grid.register("del-1", 2, OURS);
    assert_eq!(output, ["lost job-1 ams-1 del-1", "drained 1: [] empty, [del-1] gone"]);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
    // A late drain of the earlier incarnation has no effect on this one.
    assert_eq!(grid.drain(2, &["del-1"], Some(1)), ["drained 2: [] empty, [del-1] gone"]);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
}

#[test]
fn starting_job_is_asked_to_release_once_it_runs() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(submit(None, OURS, None));
    assert_eq!(grid.drain(1, &["del-1"], None), [""; 0]);
    let output = grid.accept(1, &["ams-1", "del-1"]);
    assert_eq!(output, ["grant job-1 ams-1", "ask job-1 at ams-1 to leave [del-1] in None"]);
    assert_eq!(grid.over(1), ["drained 1: [del-1] empty, [] gone"]);
}

#[test]
fn impossible_drain_is_refused_with_advice() {
    let mut grid = CoreTestGrid::full(2, 3);
    let needs = "drain 1: job-1 needs 3 processors and would have 2: drain fewer of its \
                 nodes, wait \
                 until it ends, or cancel it first";
    assert_eq!(grid.drain(1, &["ams-2", "del-1"], None), [needs]);
    assert_eq!(
        grid.drain(2, &["ams-2", "bud-1"], None),
        ["drain 2: the grid has no node bud-1: see its status for the names"]
    );
    assert_eq!(grid.drain(3, &[], None), ["drain 3: no node is named: name at least one"]);
    assert_eq!(grid.core.status().count(NodeState::Busy), 4);
    assert_eq!(grid.drain(4, &["ams-2"], None).len(), 1);
    // Another drain would exceed the minimum, even before the first node has left. A repetition
    // does not.
    assert_eq!(grid.drain(5, &["del-1"], None), [needs.replace("drain 1", "drain 5")]);
    assert_eq!(grid.drain(6, &["ams-2"], None), ["ask job-1 at ams-1 to leave [ams-2] in None"]);
    let output = grid.freed(1, "ams-2", ReleaseReason::Left);
    assert_eq!(output, ["drained 4: [ams-2] empty, [] gone", "drained 6: [ams-2] empty, [] gone"]);
}

#[test]
fn undrain_ends_open_drains() {
    let mut grid = CoreTestGrid::full(1, 1);
    grid.drain(1, &["del-1"], None);
    let output = grid.undrain(&["del-1"]);
    let why =
        "node del-1 was put back into service before it was empty: drain it again to remove it";
    assert_eq!(output, [format!("drain 1: {why}")]);
    assert_eq!(grid.state("del-1"), NodeState::Busy);
}

#[test]
fn undrained_broken_node_is_restarted() {
    let mut grid = CoreTestGrid::of(1, OURS);
    let reason = "it ended 4 times in a row".to_owned();
    grid.put(SchedulerEvent::NodeLost { node: "ams-1".into(), reason, returns: false });
    assert_eq!(grid.state("ams-1"), NodeState::Broken);
    assert_eq!(grid.undrain(&["ams-1"]), ["replace ams [ams-1] same"]);
    assert_eq!(grid.state("ams-1"), NodeState::Starting);
    // A repetition has no effect.
    assert_eq!(grid.undrain(&["ams-1"]), [""; 0]);
    grid.register("ams-1", 2, OURS);
    assert_eq!(grid.state("ams-1"), NodeState::Idle);
}

#[test]
fn blocked_jobs_give_the_reason_and_let_others_pass() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    grid.submit(submit(Some(&[("ams", 2)]), OURS, None));
    grid.submit(submit(Some(&[("ams", 1), ("del", 2)]), OURS, None));
    assert_eq!(grid.waits(2).unwrap(), "nodes: 1 more of cluster ams");
    assert_eq!(grid.waits(3).unwrap(), "");
    let output = grid.drain(1, &["ams-2"], None);
    assert_eq!(output, ["drained 1: [ams-2] empty, [] gone"]);
    let why =
        "1 more of cluster ams; ams-2 are drained: put them back into service, or cancel the job";
    assert_eq!(grid.waits(2).unwrap(), format!("nodes: {why}"));
    assert_eq!(grid.waits(3).unwrap(), "nodes: 1 more of cluster ams");
    let output = grid.over(1);
    assert_eq!(output, ["assign job-3 ams-1", "assign job-3 del-1", "assign job-3 del-2"]);
    grid.accept(3, &["ams-1", "del-1", "del-2"]);
    grid.over(3);
    assert_eq!(grid.undrain(&["ams-2"]), ["assign job-2 ams-1", "assign job-2 ams-2"]);
}

#[test]
fn node_under_measurement_is_drained_after_its_answer() {
    let mut grid = CoreTestGrid::with_job(1, 1, None);
    let one = crate::policy::SchedulerRequest {
        count: 1.into(),
        min_speed: Some(0.1),
        ..Default::default()
    };
    assert_eq!(grid.request(1, one, true), ["measure del-1"]);
    assert_eq!(grid.drain(1, &["del-1"], None), [""; 0]);
    assert_eq!(grid.state("del-1"), NodeState::Draining);
    let (node, incarnation) = ("del-1".into(), Incarnation(1));
    let output = grid.put(SchedulerEvent::Measured { node, incarnation, answer: Err("no".into()) });
    let odd = "odd: node del-1 could not be measured: no";
    assert_eq!(output, [odd, "drained 1: [del-1] empty, [] gone"]);
}

#[test]
fn contradictory_bounds_are_refused() {
    let mut grid = CoreTestGrid::of(2, OURS);
    type Ask<'a> = Option<&'a [(&'a str, u32)]>;
    let cases: [(Ask<'_>, u32, Option<u32>, &str); 4] = [
        (
            None,
            3,
            Some(2),
            "it may have at most 2 processors and needs at least 3: raise max_processors or lower \
             min_processors",
        ),
        (Some(&[("ams", 2)]), 3, None, "it asks for 2 processors and needs at least 3"),
        (Some(&[("ams", 2)]), 0, Some(1), "it asks for 2 processors and may have at most 1"),
        (None, 5, None, "it needs at least 5 processors, the grid has 4 that work"),
    ];
    for (n, (clusters, least, most, why)) in cases.into_iter().enumerate() {
        let mut submit = submit(clusters, OURS, None);
        (submit.params.min_processors, submit.params.max_processors) =
            (least.into(), most.map(Into::into));
        let output = grid.submit(submit);
        assert_eq!(output, [format!("refuse job-{}: the job cannot be placed: {why}", n + 1)]);
    }
    let mut submit = submit(None, OURS, None);
    submit.params.max_processors = Some(3.into());
    assert_eq!(grid.submit(submit).len(), 3, "all nodes within its bounds");
}
