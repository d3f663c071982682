//! Messages that overtake others, and reconciliation after lost messages.

use std::time::Duration;

use super::super::audit::AUDIT_EVERY;
use super::managed::needs;
use super::*;
use crate::manager::Kind;
use crate::scheduler::{AuthorityError, JobAudit, NodeFreed, ReleaseReason};

const JOB: JobId = JobId(1);

fn two() -> Submit {
    submit(Some(&[("ams", 2)]), OURS, None)
}

fn over(epoch: u32, ended: &[&str]) -> SchedulerEvent {
    let ended = Some(ended.iter().map(|&node| node.into()).collect());
    SchedulerEvent::JobOver { job: JOB, epoch: Epoch(epoch), ended, ok: true }
}

fn freed(node: &str) -> SchedulerEvent {
    let (job, epoch, node, incarnation) = (JOB, Epoch(1), node.into(), Incarnation(1));
    SchedulerEvent::Freed(NodeFreed { job, epoch, node, incarnation, why: ReleaseReason::Left })
}

fn audited(node: &str, coordinates: bool, members: Option<&[&str]>) -> SchedulerEvent {
    let members = members.map(|all| all.iter().map(|&node| node.into()).collect());
    let found = Some(JobAudit { coordinates, members });
    SchedulerEvent::Audited { job: JOB, node: node.into(), incarnation: Incarnation(1), found }
}

impl CoreTestGrid {
    fn is_done(&self) {
        assert!(self.core.status().jobs.is_empty(), "{:?}", self.core.status());
        assert_eq!(self.core.status().count(NodeState::Busy), 0);
    }
}

/// A very short job ends before the last worker's answer to its assignment arrives.
#[test]
fn job_that_ends_during_its_assignment_is_answered() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(two());
    grid.accept(1, &["ams-1"]);
    assert_eq!(grid.put(over(1, &["ams-1", "ams-2"])), ["grant job-1 ams-1"]);
    grid.is_done();
    assert_eq!(grid.accept(1, &["ams-2"]), [""; 0], "the answer is late");
    assert_eq!(grid.state("ams-2"), NodeState::Idle);
    // Its client ends with the job's end: no job is cancelled.
    assert_eq!(grid.put(SchedulerEvent::Link { node: "client-1".into(), up: false }), [""; 0]);
    // A worker that has not ended in order is released first.
    grid.submit(two());
    let (job, epoch) = (JobId(2), Epoch(1));
    let ended = Some(BTreeSet::from(["ams-1".into()]));
    let output = grid.put(SchedulerEvent::JobOver { job, epoch, ended, ok: true });
    assert_eq!(output, ["grant job-2 ams-1", "release job-2 ams-2"]);
    grid.released(2, "ams-2", true);
    grid.is_done();
}

#[test]
fn managed_job_that_ends_during_its_assignment_is_reported() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(needs(Kind::Rigid, 2, 2));
    grid.accept(1, &["ams-2"]);
    assert_eq!(grid.put(over(1, &["ams-1", "ams-2"])), ["grant job-1 ams-1"]);
    grid.is_done();
    assert_eq!(grid.noted.last().map(String::as_str), Some("forget job-1"));
}

/// Reports of a job's root arrive before all answers.
#[test]
fn reports_before_the_last_answer_count() {
    let grid = || {
        let mut grid = CoreTestGrid::of(2, OURS);
        grid.submit(two());
        grid.accept(1, &["ams-1"]);
        grid
    };
    let mut left = grid();
    assert_eq!(left.put(freed("ams-2")), ["grant job-1 ams-1"]);
    assert_eq!(left.state("ams-2"), NodeState::Idle);
    let mut silent = grid();
    let output = silent.put(SchedulerEvent::MemberSilent(MemberSilent {
        job: JOB,
        epoch: Epoch(1),
        node: "ams-2".into(),
        incarnation: Incarnation(1),
        reason: "silent".into(),
        reporting_cluster: None,
        reporter: None,
    }));
    assert_eq!(output, ["replace ams [ams-2] same", "grant job-1 ams-1"]);
    let mut handed = grid();
    let (epoch, reason) = (Epoch(1), "it is drained".to_owned());
    let order = HandOver { job: JOB, epoch, to: "ams-2".into(), reason };
    let output = handed.put(SchedulerEvent::HandOver(order));
    assert_eq!(output, ["grant job-1 ams-1", "epoch after 1 for job-1"]);
    assert_eq!(handed.accept(1, &["ams-2"]), [""; 0]);
}

/// A job's start fails because one worker did not answer, although the job has ended for its
/// client.
#[test]
fn ended_job_does_not_restart() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(needs(Kind::Rigid, 2, 2));
    let node = NodeId::from("ams-2");
    let answer = Err(AssignError::failed(&node, "no answer"));
    let output = grid.put(SchedulerEvent::Assigned { job: JOB, epoch: Epoch(1), node, answer });
    let released = ["release job-1 ams-2", "epoch after 1 for job-1", "release job-1 ams-1"];
    assert_eq!(output, released);
    assert_eq!(grid.put(over(1, &["ams-1", "ams-2"])), ["grant job-1 ams-1"]);
    grid.released(1, "ams-1", true);
    assert_eq!(grid.released(1, "ams-2", true), [""; 0], "the job is not started again");
    grid.is_done();
    // The same for a job that already waits.
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(needs(Kind::Rigid, 1, 1));
    grid.accept(1, &["ams-1"]);
    let lost =
        SchedulerEvent::NodeLost { node: "ams-1".into(), reason: "killed".into(), returns: true };
    let output = grid.put(lost);
    assert!(output.contains(&"epoch after 1 for job-1".to_owned()), "{output:?}");
    let output = grid.put(over(1, &[]));
    assert_eq!(output.len(), 1, "{output:?}");
    assert!(
        output[0].starts_with("refuse job-1: the job was cancelled: its coordinator has ended")
    );
    grid.is_done();
}

/// The coordinator of a running job is lost without a report.
#[test]
fn audit_finds_a_job_without_coordinator() {
    let within = AUDIT_EVERY + Duration::from_secs(30);
    assert!(within <= RECONCILED_WITHIN, "an audit, and a release that is not answered");
    let start = || {
        let mut grid = CoreTestGrid::of(2, OURS);
        grid.submit(two());
        grid.accept(1, &["ams-1", "ams-2"]);
        assert_eq!(grid.core.due(), Some(grid.now + AUDIT_EVERY));
        grid.now += AUDIT_EVERY;
        let asked = grid.core.handle(SchedulerEvent::Tick, grid.now);
        assert_eq!(asked.iter().map(text).collect::<Vec<_>>(), ["audit job-1 at ams-1"]);
        grid
    };
    // It has ended, and its report was lost: its nodes are released.
    let mut grid = start();
    let output = grid.put(audited("ams-1", false, None));
    assert_eq!(output[1..], ["release job-1 ams-1", "release job-1 ams-2"], "{output:?}");
    assert!(output[0].starts_with("ended job-1: node ams-1 was lost: it ended the job"));
    grid.released(1, "ams-1", true);
    grid.released(1, "ams-2", true);
    grid.is_done();
    // Its node is still at work: another node takes the job over.
    let mut grid = start();
    let output = grid.put(audited("ams-1", false, Some(&["ams-1", "ams-2"])));
    assert_eq!(output, ["epoch after 1 for job-1"]);
    // It is reporting the end, or all is well.
    for members in [None, Some(&["ams-1", "ams-2"][..])] {
        let mut grid = start();
        assert_eq!(grid.put(audited("ams-1", true, members)), [""; 0]);
        assert_eq!(grid.core.status().jobs[0].state, JobState::Running);
    }
    // A missing answer is not a reason to end a job.
    let mut grid = start();
    let (node, incarnation) = ("ams-1".into(), Incarnation(1));
    assert_eq!(
        grid.put(SchedulerEvent::Audited { job: JOB, node, incarnation, found: None }),
        [""; 0]
    );
}

#[test]
fn member_missing_in_two_audits_is_released() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(two());
    grid.accept(1, &["ams-1", "ams-2"]);
    assert_eq!(
        grid.put(audited("ams-1", true, Some(&["ams-1"]))),
        [""; 0],
        "the member may have left"
    );
    let output = grid.put(audited("ams-1", true, Some(&["ams-1"])));
    assert_eq!(output[1..], ["release job-1 ams-2"], "{output:?}");
    grid.released(1, "ams-2", true);
    assert_eq!(grid.state("ams-2"), NodeState::Idle);
}

#[test]
fn node_at_work_learns_whether_it_is_a_member() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(two());
    let ask = |grid: &CoreTestGrid, node: &str, incarnation| {
        grid.core.confirm_member(JOB, &node.into(), Incarnation(incarnation))
    };
    let no_member = |node: &str| Err(AuthorityError::NoMember { job: JOB, node: node.into() });
    assert_eq!(ask(&grid, "ams-1", 1), Ok(()));
    grid.accept(1, &["ams-1", "ams-2"]);
    assert_eq!(ask(&grid, "ams-1", 1), Ok(()));
    assert_eq!(ask(&grid, "ams-1", 2), no_member("ams-1"), "another incarnation");
    assert_eq!(ask(&grid, "del-1", 1), no_member("del-1"));
    grid.put(over(1, &["ams-1"]));
    assert_eq!(ask(&grid, "ams-2", 1), Ok(()), "it is being released");
    grid.released(1, "ams-2", true);
    assert_eq!(ask(&grid, "ams-2", 1), no_member("ams-2"));
}

/// A node that works for a job of which it is not a member refuses the next one. It must end the
/// former job first.
#[test]
fn node_that_refuses_for_an_unknown_job_is_released_from_it() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(two());
    let node = NodeId::from("ams-2");
    let answer = Err(AssignError::Busy { node: node.clone(), job: JobId(77) });
    let output = grid.put(SchedulerEvent::Assigned { job: JOB, epoch: Epoch(1), node, answer });
    assert_eq!(
        output,
        ["release job-77 ams-2", "release job-1 ams-2"],
        "the job starts without it"
    );
}
