//! Starts of jobs that lose nodes.

use super::*;

fn lost(node: &str) -> SchedulerEvent {
    let reason = "killed by signal 9".to_owned();
    SchedulerEvent::NodeLost { node: node.into(), reason, returns: true }
}

fn issued(job: u64, epoch: u32) -> SchedulerEvent {
    SchedulerEvent::EpochIssued { job: JobId(job), epoch: Epoch(epoch) }
}

impl CoreTestGrid {
    /// A job that is being assigned to all nodes of two clusters of two nodes.
    fn assigning(least: u32) -> Self {
        let mut grid = Self::of(2, OURS);
        let mut submit = submit(None, OURS, None);
        submit.params.min_processors = least.into();
        assert_eq!(grid.submit(submit).len(), 4);
        grid
    }

    fn failed(&mut self, node: &str) -> Vec<String> {
        let error = AssignError::failed(&node.into(), "its link is down");
        self.answer_assign(1, node, Err(error))
    }

    fn job_state(&self) -> JobState {
        self.core.status().jobs[0].state
    }
}

#[test]
fn start_continues_without_a_lost_member() {
    // The loss comes before, between or after the answers of the others.
    for answered in [&["ams-1", "ams-2", "del-2"][..], &["ams-1"], &[]] {
        let mut grid = CoreTestGrid::assigning(3);
        assert_eq!(grid.accept(1, answered), [""; 0]);
        let mut output = grid.put(lost("del-1"));
        for node in ["ams-1", "ams-2", "del-2"].iter().filter(|node| !answered.contains(node)) {
            output.extend(grid.accept(1, &[node]));
        }
        assert_eq!(output, ["grant job-1 ams-1", "lost job-1 ams-1 del-1"]);
        assert_eq!(grid.job_state(), JobState::Running);
        // The job wants every node: the next incarnation is granted to it.
        let output = grid.register("del-1", 2, OURS);
        assert_eq!(output, ["grant 1 of job-1 at ams-1: del-1 and 0"]);
    }
}

/// A cluster is partitioned before the job is submitted, or its nodes never start.
#[test]
fn job_for_every_node_starts_with_present_nodes_and_grows() {
    let wait = ManagerSettings::default().start_wait;
    let mut grid = CoreTestGrid::of(2, OURS);
    // Two links go down. Two nodes are being started, and one of them registers in time.
    for node in ["ams-2", "del-1"] {
        grid.put(SchedulerEvent::Link { node: node.into(), up: false });
    }
    grid.put(lost("del-2"));
    assert_eq!(grid.submit(submit(None, OURS, None)), [""; 0]);
    let waits = grid.core.status().jobs[0].waits_for.clone().unwrap();
    assert_eq!(
        waits,
        "nodes: 1 more of cluster ams (ams-2 is not reached), 2 more of cluster del (del-1 is \
         not reached, del-2 is starting: killed by signal 9); at most 5s, if the others suffice"
    );
    grid.now += wait / 2;
    assert_eq!(grid.register("del-2", 2, OURS), [""; 0]);
    assert_eq!(grid.core.work_due(), Some(grid.now + wait / 2));
    grid.now += wait / 2;
    assert_eq!(grid.put(SchedulerEvent::Tick), ["assign job-1 ams-1", "assign job-1 del-2"]);
    assert_eq!(grid.accept(1, &["ams-1", "del-2"]), ["grant job-1 ams-1"]);
    assert_eq!(grid.core.work_due(), None);
    let waits = grid.core.status().jobs[0].waits_for.clone().unwrap();
    assert!(waits.starts_with("2 more processors: "), "{waits}");
    let output = grid.put(SchedulerEvent::Link { node: "ams-2".into(), up: true });
    assert_eq!(output, ["grant 1 of job-1 at ams-1: ams-2 and 1"]);
    let output = grid.put(SchedulerEvent::Link { node: "del-1".into(), up: true });
    assert_eq!(output, ["grant 2 of job-1 at ams-1: del-1 and 0"]);
}

#[test]
fn job_below_its_minimum_waits_with_a_reason() {
    let wait = ManagerSettings::default().start_wait;
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.put(lost("del-1"));
    let mut needs_both = submit(None, OURS, None);
    needs_both.params.min_processors = 2.into();
    grid.submit(needs_both);
    grid.now += 2 * wait;
    assert_eq!(grid.put(SchedulerEvent::Tick), [""; 0]);
    assert_eq!(grid.core.work_due(), None);
    assert_eq!(grid.job_state(), JobState::Queued);
    assert_eq!(grid.register("del-1", 2, OURS), ["assign job-1 ams-1", "assign job-1 del-1"]);
}

/// A job that states numbers of nodes gets exactly these, on which its figures depend.
#[test]
fn job_with_stated_numbers_waits_for_them() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.put(lost("del-1"));
    assert_eq!(grid.submit(submit(Some(&[("ams", 1), ("del", 1)]), OURS, None)), [""; 0]);
    grid.now += 2 * ManagerSettings::default().start_wait;
    assert_eq!(grid.put(SchedulerEvent::Tick), [""; 0]);
    assert_eq!(grid.register("del-1", 2, OURS), ["assign job-1 ams-1", "assign job-1 del-1"]);
}

#[test]
fn start_continues_without_a_refusing_member() {
    let mut grid = CoreTestGrid::assigning(1);
    assert_eq!(grid.failed("del-2"), ["release job-1 del-2"]);
    let output = grid.accept(1, &["del-1", "ams-2", "ams-1"]);
    assert_eq!(output, ["grant job-1 ams-1", "lost job-1 ams-1 del-2"]);
    assert_eq!(grid.state("del-2"), NodeState::Busy, "it may have accepted the job");
    // It is granted again: the job wants every node.
    assert_eq!(grid.released(1, "del-2", true), ["grant 1 of job-1 at ams-1: del-2 and 0"]);
}

/// The coordinator reports the silence of a member before the scheduler has that member's answer.
#[test]
fn start_continues_without_a_silent_member() {
    let mut grid = CoreTestGrid::assigning(1);
    grid.accept(1, &["ams-1", "ams-2", "del-1"]);
    let silent = SchedulerEvent::MemberSilent(MemberSilent {
        job: JobId(1),
        epoch: Epoch(1),
        node: "del-2".into(),
        incarnation: Incarnation(1),
        reason: "silent".into(),
        reporting_cluster: None,
        reporter: None,
    });
    assert_eq!(grid.put(silent), ["replace del [del-2] same", "grant job-1 ams-1"]);
    assert_eq!(grid.job_state(), JobState::Running);
}

/// The root starts once all workers have joined, even before their answers arrive. A short job may
/// end before.
#[test]
fn job_that_ends_before_all_answers_has_run() {
    let mut grid = CoreTestGrid::assigning(1);
    grid.accept(1, &["ams-1", "del-1"]);
    assert_eq!(grid.over(1), ["grant job-1 ams-1"]);
    assert_eq!(grid.accept(1, &["ams-2", "del-2"]), [""; 0]);
    assert_eq!(grid.core.status().count(NodeState::Idle), 4);
    assert!(grid.core.status().jobs.is_empty());
}

#[test]
fn job_is_assigned_again_after_the_loss_of_its_coordinator() {
    let mut grid = CoreTestGrid::assigning(1);
    grid.accept(1, &["ams-2", "del-1"]);
    let output = grid.put(lost("ams-1"));
    let what =
        "odd: job-1 is assigned again: node ams-1 could not start the job: killed by signal 9";
    let releases = ["ams-2", "del-1", "del-2"].map(|node| format!("release job-1 {node}"));
    assert_eq!(output[0], what);
    assert_eq!(output[1..4], releases);
    assert_eq!(output[4..], ["epoch after 1 for job-1"]);
    assert_eq!(grid.job_state(), JobState::Queued);
    // Answers to the earlier attempt do not count, and its members are released first.
    for node in ["ams-2", "del-1", "del-2"] {
        assert_eq!(grid.released(1, node, true), [""; 0]);
    }
    assert_eq!(grid.register("ams-1", 2, OURS), [""; 0], "the epoch is not on disk");
    let output = grid.put(issued(1, 2));
    let order = ["ams-2", "ams-1", "del-1", "del-2"].map(|node| format!("assign job-1 {node}"));
    assert_eq!(output, order, "another node coordinates this attempt");
    let late = SchedulerEvent::Assigned {
        job: JobId(1),
        epoch: Epoch(1),
        node: "del-2".into(),
        answer: Err(AssignError::failed(&"del-2".into(), "too late")),
    };
    assert_eq!(grid.put(late), [""; 0]);
    let output = grid.accept(1, &["ams-1", "ams-2", "del-1", "del-2"]);
    assert_eq!(output, ["grant job-1 ams-2"]);
    // An end reported by the former coordinator has an earlier epoch.
    assert_eq!(grid.over(1), [""; 0]);
    assert_eq!(grid.job_state(), JobState::Running);
}

#[test]
fn start_below_the_minimum_waits_for_nodes() {
    let mut grid = CoreTestGrid::assigning(4);
    grid.accept(1, &["ams-1", "ams-2", "del-1"]);
    let output = grid.put(lost("del-2"));
    assert_eq!(output.last().map(String::as_str), Some("epoch after 1 for job-1"));
    assert_eq!(grid.put(issued(1, 2)), [""; 0]);
    for node in ["ams-1", "ams-2", "del-1"] {
        assert_eq!(grid.released(1, node, true), [""; 0]);
    }
    assert_eq!(grid.job_state(), JobState::Queued);
    let reason = "it died of itself".to_owned();
    let output =
        grid.put(SchedulerEvent::NodeLost { node: "del-2".into(), reason, returns: false });
    let why = "it needs at least 4 processors, the grid has 3 that work: it died of itself";
    assert_eq!(output, [format!("refuse job-1: the job cannot be placed: {why}")]);
}

#[test]
fn repeated_start_can_be_cancelled() {
    let cancel = SchedulerEvent::Cancel { job: JobId(1), reason: "test".into() };
    for end in [cancel, SchedulerEvent::Link { node: "client-1".into(), up: false }] {
        let mut grid = CoreTestGrid::assigning(1);
        grid.put(lost("ams-1"));
        let output = grid.put(end);
        assert!(output[0].starts_with("refuse job-1: the job was cancelled"), "{output:?}");
        assert_eq!(grid.put(issued(1, 2)), [""; 0]);
        for node in ["ams-2", "del-1", "del-2"] {
            grid.released(1, node, true);
        }
        assert_eq!(grid.core.status().count(NodeState::Idle), 3);
        assert!(grid.core.status().jobs.is_empty());
    }
}

/// A start that kills its coordinators ends with a reason: by the dead nodes, or by the number of
/// attempts.
#[test]
fn start_that_always_fails_is_refused_with_its_reason() {
    for (poison, attempts, why) in
        [(3, 4, "killed by signal 9"), (0, 8, "its start failed 8 times")]
    {
        let mut grid = CoreTestGrid::of(2, OURS);
        let mut submit = submit(None, OURS, None);
        submit.params.poison_limit = poison;
        grid.submit(submit);
        let mut incarnation = 1;
        let refused = (1..=attempts).find_map(|attempt| {
            let coordinator = grid.core.jobs[&JobId(1)].view.coordinator.clone().unwrap();
            let output = grid.put(lost(coordinator.as_str()));
            let refused = output.iter().find(|output| output.starts_with("refuse job-1")).cloned();
            for node in ["ams-1", "ams-2", "del-1", "del-2"] {
                if grid.state(node) == NodeState::Busy {
                    grid.released(1, node, true);
                }
            }
            // By then, it is known whether a whole cluster is lost.
            grid.now += std::time::Duration::from_secs(60);
            incarnation += 1;
            grid.register(coordinator.as_str(), incarnation, OURS);
            if refused.is_none() {
                grid.put(issued(1, attempt + 1));
            }
            refused.map(|refused| (attempt, refused))
        });
        let (attempt, refused) = refused.unwrap();
        assert!(refused.contains(why) && attempt == attempts, "{attempt}: {refused}");
        assert_eq!(grid.core.status().count(NodeState::Idle), 4);
    }
}
