//! Clusters with processors on demand: a batch system with local users.

use std::time::Duration;

use super::managed::needs;
use super::*;
use crate::manager::Kind;
use crate::scheduler::{Drain, JobState, SiteReport, StubLoss, StubLossKind};

const KEEP: Duration = Duration::from_secs(5);

impl CoreTestGrid {
    /// A cluster vu with at most `nodes` nodes.
    pub(super) fn on_demand(nodes: u32, settings: ManagerSettings) -> Self {
        let mut grid = Self {
            core: SchedulerCore::new(contact("head"), settings, Instant::now()),
            jobs: 0,
            now: Instant::now(),
            noted: Vec::new(),
        };
        let names: Vec<NodeId> = (1..=nodes).map(|n| format!("vu-{n}").into()).collect();
        grid.site("vu", &names, Some(KEEP.as_millis() as u64));
        grid
    }

    pub(super) fn polled(&mut self, size: u32, others: u32) -> Vec<String> {
        let found = Ok((size, others));
        let mut out =
            self.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found }));
        // Freed processors are gathered for a moment.
        out.extend(self.after(Duration::from_millis(500)));
        out
    }

    pub(super) fn gone(&mut self, node: &str) -> Vec<String> {
        self.put(SchedulerEvent::StubGone(StubLoss {
            node: node.into(),
            reason: "it was cancelled".into(),
            kind: StubLossKind::Ended,
        }))
    }
}

#[test]
fn processors_are_held_recruited_kept_and_released() {
    let mut grid = CoreTestGrid::on_demand(4, ManagerSettings::default());
    assert_eq!(grid.submit(needs(Kind::Malleable, 2, 4)), [""; 0]);
    let why = grid.core.plan(&needs(Kind::Rigid, 1, 1).need.unwrap()).unwrap_err();
    assert!(why.to_string().contains("its site has not reported its processors yet"), "{why}");
    // Local users have two of six processors.
    assert_eq!(grid.polled(6, 2), ["hold vu [vu-1, vu-2]"]);
    assert_eq!(grid.register("vu-1", 1, OURS), [""; 0]);
    assert_eq!(grid.state("vu-1"), NodeState::Held);
    assert_eq!(grid.register("vu-2", 1, OURS), ["assign job-1 vu-1", "assign job-1 vu-2"]);
    grid.accept(1, &["vu-1", "vu-2"]);
    assert_eq!(grid.after(ManagerSettings::default().poll_interval), ["offer 1 to job-1: 2 of vu"]);
    // The job computes while its growth is held, and gets all nodes at once.
    assert_eq!(grid.answer(1, 1, 2), ["hold vu [vu-3, vu-4]"]);
    assert_eq!(grid.register("vu-4", 1, OURS), [""; 0]);
    let out = grid.register("vu-3", 1, OURS);
    assert_eq!(out, ["grant 1 of job-1 at vu-1: vu-3 vu-4 and 0"]);
    grid.acknowledge(1, 1, true);
    // The first job shrinks for the next one, which gets the released node without another stub.
    assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)), ["job-1 must release 1 of vu (2)"]);
    grid.answer(1, 2, 1);
    assert_eq!(grid.left(1, "vu-4"), ["assign job-2 vu-4"]);
    grid.accept(2, &["vu-4"]);
    // An unused stub is kept for a while.
    assert_eq!(grid.over(2), [""; 0]);
    assert_eq!(grid.state("vu-4"), NodeState::Idle);
    assert_eq!(grid.over(1), ["release job-1 vu-3"]);
    grid.released(1, "vu-3", true);
    assert_eq!(grid.after(KEEP), ["close vu [vu-1, vu-2, vu-3, vu-4]"]);
    assert_eq!(grid.state("vu-4"), NodeState::Closing);
    for node in ["vu-1", "vu-2", "vu-3", "vu-4"] {
        grid.gone(node);
    }
    assert_eq!(grid.core.status().count(NodeState::Off), 4);
    assert_eq!(grid.core.work_due(), None);
}

#[test]
fn faster_local_user_costs_a_job_only_its_growth() {
    let settings =
        ManagerSettings { hold_timeout: Duration::from_secs(20), ..ManagerSettings::default() };
    let mut grid = CoreTestGrid::on_demand(6, settings);
    grid.polled(6, 0);
    assert_eq!(grid.submit(needs(Kind::Malleable, 2, 6)), ["hold vu [vu-1, vu-2]"]);
    grid.register("vu-1", 1, OURS);
    grid.register("vu-2", 1, OURS);
    grid.accept(1, &["vu-1", "vu-2"]);
    grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(grid.answer(1, 1, 4), ["hold vu [vu-3, vu-4, vu-5, vu-6]"]);
    // Two stubs start, and the others stay in the batch system's queue: local users have the
    // processors.
    grid.register("vu-3", 1, OURS);
    grid.register("vu-4", 1, OURS);
    grid.polled(6, 2);
    let out = grid.after(Duration::from_secs(20));
    assert_eq!(
        out,
        ["close vu [vu-5]", "close vu [vu-6]", "grant 1 of job-1 at vu-1: vu-3 vu-4 and 0"]
    );
    grid.acknowledge(1, 1, true);
    // Until the batch system has cancelled them, they stay in the job's account.
    assert_eq!(grid.core.managing.booked(&"vu".into()), 6);
    grid.gone("vu-5");
    grid.gone("vu-6");
    assert_eq!(grid.core.managing.booked(&"vu".into()), 4);
}

#[test]
fn job_whose_nodes_do_not_arrive_waits_again() {
    let settings =
        ManagerSettings { hold_timeout: Duration::from_secs(20), ..ManagerSettings::default() };
    let mut grid = CoreTestGrid::on_demand(4, settings);
    grid.polled(4, 0);
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["hold vu [vu-1, vu-2]"]);
    let status = grid.core.status();
    assert_eq!(status.jobs[0].state, JobState::Queued);
    grid.register("vu-1", 1, OURS);
    // One node never arrives: the other is kept for the next job.
    assert_eq!(grid.after(Duration::from_secs(20)), ["close vu [vu-2]"]);
    assert_eq!(grid.gone("vu-2"), [""; 0]);
    assert_eq!(grid.state("vu-1"), NodeState::Idle);
    let out = grid.after(ManagerSettings::default().scan_interval);
    assert!(out.contains(&"hold vu [vu-2]".to_owned()), "{out:?}");
    // A stub that ends by itself is requested again, too.
    grid.gone("vu-2");
    let view = grid.core.detail(JobId(1), grid.now).unwrap();
    assert!(
        view.history.iter().any(|(_, line)| line.contains("its stub has ended: it was cancelled")),
        "{view:?}"
    );
    // A job that is cancelled while its nodes arrive leaves nothing behind.
    grid.after(ManagerSettings::default().scan_interval);
    let out = grid.put(SchedulerEvent::Cancel { job: JobId(1), reason: "enough".to_owned() });
    assert!(out.contains(&"refuse job-1: the job was cancelled: enough".to_owned()), "{out:?}");
    grid.gone("vu-2");
    grid.after(KEEP);
    grid.gone("vu-1");
    assert_eq!(grid.core.status().count(NodeState::Off), 4, "{:?}", grid.core.status());
    assert!(grid.core.status().jobs.is_empty());
    assert_eq!(grid.core.managing.booked(&"vu".into()), 0);
}

#[test]
fn failing_site_is_skipped_with_a_reason() {
    let mut grid = CoreTestGrid::on_demand(4, ManagerSettings::default());
    grid.polled(4, 0);
    let reason = "`sinfo` did not answer within 10 s".to_owned();
    grid.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found: Err(reason) }));
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), [""; 0]);
    let waits = grid.core.status().jobs[0].waits_for.clone().unwrap();
    assert!(waits.contains("`sinfo` did not answer within 10 s"), "{waits}");
    assert_eq!(grid.polled(4, 0), ["hold vu [vu-1, vu-2]"]);
}

#[test]
fn held_nodes_of_another_program_are_restarted() {
    let mut grid = CoreTestGrid::on_demand(2, ManagerSettings::default());
    grid.polled(2, 0);
    let with = |fingerprint| Submit {
        need: needs(Kind::Rigid, 2, 2).need,
        ..submit(None, fingerprint, Some("/bin/own"))
    };
    grid.submit(with(OURS));
    grid.register("vu-1", 1, OURS);
    grid.register("vu-2", 1, OURS);
    grid.accept(1, &["vu-1", "vu-2"]);
    grid.over(1);
    let out = grid.submit(with(9));
    assert_eq!(out, ["replace vu [vu-1, vu-2] /bin/own"]);
    grid.register("vu-1", 2, 9);
    assert_eq!(grid.register("vu-2", 2, 9), ["assign job-2 vu-1", "assign job-2 vu-2"]);
}

#[test]
fn plain_jobs_are_advised_to_state_requirements() {
    let mut grid = CoreTestGrid::on_demand(2, ManagerSettings::default());
    grid.polled(2, 0);
    for clusters in [None, Some(&[("vu", 1)][..])] {
        let out = grid.submit(submit(clusters, OURS, None));
        assert!(out[0].contains("use `job submit`"), "{out:?}");
    }
}

#[test]
fn returning_site_reports_its_live_stubs() {
    let mut grid = CoreTestGrid::on_demand(3, ManagerSettings::default());
    grid.polled(3, 0);
    grid.submit(needs(Kind::Malleable, 1, 1));
    grid.register("vu-1", 1, OURS);
    grid.accept(1, &["vu-1"]);
    grid.submit(needs(Kind::Rigid, 2, 2));
    let nodes: Vec<NodeId> = (1..=3).map(|n| format!("vu-{n}").into()).collect();
    let site = |stubs: &[&str]| {
        SchedulerEvent::SiteUp(SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster: "vu".into(),
            nodes: nodes.clone(),
            starts_programs: true,
            keep_ms: Some(5000),
            stubs: stubs.iter().map(|&node| node.into()).collect(),
            files: false,
            at: None,
            receives_programs: false,
        })
    };
    grid.put(site(&["vu-1", "vu-2"]));
    assert_eq!((grid.state("vu-1"), grid.state("vu-2")), (NodeState::Busy, NodeState::Closing));
    // The third node was requested and not held. Without it, its job cannot use the second.
    assert_eq!(grid.state("vu-3"), NodeState::Off);
}

#[test]
fn undelivered_release_order_is_repeated() {
    let mut grid = CoreTestGrid::on_demand(2, ManagerSettings::default());
    grid.polled(2, 0);
    grid.submit(needs(Kind::Rigid, 1, 1));
    grid.register("vu-1", 1, OURS);
    grid.accept(1, &["vu-1"]);
    grid.over(1);
    let out = grid.after(Duration::from_secs(6));
    assert_eq!(out, ["close vu [vu-1]"]);
    // The site was absent, and its stub still exists.
    let site = |stubs: &[&str]| {
        SchedulerEvent::SiteUp(SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster: "vu".into(),
            nodes: vec!["vu-1".into(), "vu-2".into()],
            starts_programs: true,
            keep_ms: Some(5000),
            stubs: stubs.iter().map(|&node| node.into()).collect(),
            files: false,
            at: None,
            receives_programs: false,
        })
    };
    assert_eq!(grid.put(site(&["vu-1"])), ["close vu [vu-1]"]);
    let failed = || SchedulerEvent::CloseFailed { nodes: vec!["vu-1".into(), "vu-2".into()] };
    assert_eq!(grid.put(failed()), ["close vu [vu-1]"]);
    grid.gone("vu-1");
    assert_eq!(
        grid.put(failed()),
        [""; 0],
        "it has ended, and another incarnation is not concerned"
    );
    assert_eq!(grid.state("vu-1"), NodeState::Off);
}

#[test]
fn node_drained_before_the_start_is_not_assigned() {
    let mut grid = CoreTestGrid::on_demand(3, ManagerSettings::default());
    grid.polled(3, 0);
    grid.submit(needs(Kind::Rigid, 2, 2));
    grid.register("vu-1", 1, OURS);
    let drain = Drain {
        nodes: vec!["vu-1".into()],
        reason: "its processor will be taken away".to_owned(),
        deadline_ms: None,
        incarnation: None,
    };
    let out = grid.put(SchedulerEvent::Drain { drain: 1, order: drain });
    assert!(!out.iter().any(|line| line.starts_with("assign")), "{out:?}");
    let out = grid.register("vu-2", 1, OURS);
    assert!(!out.iter().any(|line| line.starts_with("assign job-1 vu-1")), "{out:?}");
}

/// A stub of unknown speed turns out to be slow. It is released, kept for other jobs, and not tried
/// again meanwhile.
#[test]
fn stub_that_does_not_meet_the_criteria_is_released() {
    let mut grid = CoreTestGrid::on_demand(4, ManagerSettings::default());
    grid.polled(4, 0);
    assert_eq!(grid.submit(needs(Kind::Malleable, 1, 4)), ["hold vu [vu-1]"]);
    grid.register("vu-1", 1, OURS);
    grid.accept(1, &["vu-1"]);
    let spec = BenchmarkSpec::of_job("fib", bytes::Bytes::new()).id();
    let unit = Unit::of(spec, JobId(1));
    let fast = crate::policy::SchedulerRequest {
        count: 2.into(),
        min_speed: Some(2.0),
        ..Default::default()
    };
    let out = grid.request(1, fast, true);
    assert_eq!([out, grid.after(Duration::from_secs(15))].concat(), ["hold vu [vu-2, vu-3]"]);
    assert_eq!(grid.machine("vu-2", "old", 1), [""; 0]);
    let registration = grid.core.nodes[&NodeId::from("vu-2")].registration.clone().unwrap();
    grid.core.speeds.benchmarked(unit, &registration, 1.0, grid.now).unwrap();
    // Unknown speeds exclude no node.
    let out = grid.machine("vu-3", "new", 1);
    assert_eq!(out, ["grant 1 of job-1 at vu-1: vu-3 and 1"]);
    grid.acknowledge(1, 1, true);
    assert_eq!(grid.state("vu-2"), NodeState::Idle);
    // While it is kept, it shows the cluster's speed, and belongs to no job. Then the next stub is
    // tried.
    grid.polled(4, 0);
    assert_eq!(grid.after(KEEP), ["close vu [vu-2]"]);
    grid.gone("vu-2");
    let out = grid.after(Duration::from_secs(15));
    assert_eq!(out, ["hold vu [vu-2]"]);
}

impl CoreTestGrid {
    /// Announces that a node's processor will be taken away.
    fn revoke(&mut self, node: &str, within: Duration) -> Vec<String> {
        let order = Drain {
            nodes: vec![node.into()],
            reason: "its time limit is near".into(),
            deadline_ms: Some(within.as_millis() as u64),
            incarnation: Some(Incarnation(1)),
        };
        self.put(SchedulerEvent::Drain { drain: 1, order })
    }

    /// A rigid job on both nodes vu-1 and vu-2 of at most four.
    fn rigid_pair(nodes: u32) -> Self {
        let mut grid = Self::on_demand(nodes, ManagerSettings::default());
        grid.polled(nodes, 0);
        assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["hold vu [vu-1, vu-2]"]);
        grid.register("vu-1", 1, OURS);
        grid.register("vu-2", 1, OURS);
        grid.accept(1, &["vu-1", "vu-2"]);
        grid
    }
}

const NOTICE: Duration = Duration::from_secs(60);

/// At the end of their time, the nodes of a rigid job leave after their replacements have joined.
#[test]
fn a_rigid_job_releases_revoked_nodes_once_others_have_joined() {
    let mut grid = CoreTestGrid::rigid_pair(4);
    assert_eq!(grid.revoke("vu-2", NOTICE), ["hold vu [vu-3]"]);
    assert_eq!(grid.revoke("vu-1", NOTICE), [""; 0], "a change is under way");
    let out = grid.register("vu-3", 1, OURS);
    assert_eq!(out, ["grant 1 of job-1 at vu-1: vu-3 and 0"]);
    let out = grid.acknowledge(1, 1, true);
    assert_eq!(out, ["ask job-1 at vu-1 to leave [vu-2] in Some(60000)"], "the root comes last");
    let out = grid.left(1, "vu-2");
    assert_eq!(out, ["hold vu [vu-4]", "drained 1: [vu-2] empty, [] gone", "close vu [vu-2]"]);
    grid.register("vu-4", 1, OURS);
    let out = grid.acknowledge(1, 2, true);
    assert_eq!(out, ["ask job-1 at vu-1 to leave [vu-1] in Some(60000)"]);
    assert_eq!(grid.core.managing.booked(&"vu".into()), 3, "the root's node stays till it moves");
    assert_eq!(grid.after(ManagerSettings::default().poll_interval), [""; 0]);
}

/// Without a free processor, the job is asked at half of the time.
#[test]
fn without_a_replacement_the_job_is_asked_at_half_of_the_time() {
    let mut grid = CoreTestGrid::rigid_pair(2);
    assert_eq!(grid.revoke("vu-2", NOTICE), [""; 0]);
    assert_eq!(grid.after(NOTICE / 2 - Duration::from_secs(1)), [""; 0]);
    let out = grid.after(Duration::from_secs(1));
    assert_eq!(out, ["ask job-1 at vu-1 to leave [vu-2] in Some(30000)"]);
    // Its place is free once the stub has ended, and the job gets another.
    grid.left(1, "vu-2");
    grid.gone("vu-2");
    let out = grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, ["hold vu [vu-2]"]);
}

/// A job that outlives the time of all its nodes has done nothing wrong, however often.
#[test]
fn a_planned_loss_of_all_nodes_does_not_count() {
    let mut grid = CoreTestGrid::rigid_pair(2);
    for life in 1..=5_u32 {
        for node in ["vu-1", "vu-2"] {
            let order = Drain {
                nodes: vec![node.into()],
                reason: "its time limit is near".into(),
                deadline_ms: Some(1000),
                incarnation: Some(Incarnation(life.into())),
            };
            grid.put(SchedulerEvent::Drain { drain: life.into(), order });
        }
        grid.gone("vu-2");
        let mut out = grid.gone("vu-1");
        // A replacement of vu-2 was on its way.
        out.extend(grid.gone("vu-1"));
        assert!(out.iter().any(|line| line.contains("epoch after")), "life {life}: {out:?}");
        grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(life + 1) });
        grid.polled(2, 0);
        for node in ["vu-1", "vu-2"] {
            grid.register(node, u64::from(life) + 1, OURS);
        }
        grid.accept(1, &["vu-1", "vu-2"]);
    }
    assert_eq!(grid.core.status().jobs[0].state, JobState::Running);
}

/// A batch system whose limits are not in its answers, such as a limit of jobs of a user: after
/// three refusals, no job is promised what cannot be had.
#[test]
fn refused_processors_are_not_promised_again_for_a_time() {
    let mut grid = CoreTestGrid::on_demand(4, ManagerSettings::default());
    grid.polled(4, 0);
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["hold vu [vu-1, vu-2]"]);
    for _ in 0..3 {
        let out = grid.register("vu-1", 1, OURS);
        assert_eq!(out, [""; 0]);
        let reason = "QOSMaxSubmitJobPerUserLimit".to_owned();
        grid.put(SchedulerEvent::StubGone(StubLoss {
            node: "vu-2".into(),
            reason,
            kind: StubLossKind::Refused,
        }));
        grid.after(ManagerSettings::default().scan_interval);
    }
    let view = grid.core.managing.view(JobId(1)).expect("it waits");
    let limit = "vu grants 1 processors and refused more three times \
                 (QOSMaxSubmitJobPerUserLimit); it is asked for more again after";
    assert!(view.reason.contains(limit), "{}", view.reason);
    assert_eq!(grid.after(ManagerSettings::default().scan_interval), [""; 0], "it waits");
    // A job that fits starts.
    assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)), ["hold vu [vu-2]"]);
    assert_eq!(grid.register("vu-2", 1, OURS), ["assign job-2 vu-2"]);
    grid.accept(2, &["vu-2"]);
    grid.over(2);
    // After its time, the cluster is asked for more.
    let out = grid.after(Duration::from_secs(700));
    assert!(out.iter().any(|line| line.starts_with("hold vu")), "{out:?}");
}

/// A user may have six batch jobs, and nine are requested: three are refused before any node has
/// come. The six can be had all the same.
#[test]
fn processors_that_were_accepted_and_have_not_come_count_as_granted() {
    let mut grid = CoreTestGrid::on_demand(10, ManagerSettings::default());
    grid.polled(10, 0);
    let mut held = grid.submit(needs(Kind::Rigid, 9, 9));
    for _ in 0..3 {
        assert_eq!(held.len(), 1, "{held:?}");
        let nodes: Vec<NodeId> = (1..=10).map(|n| format!("vu-{n}").into()).collect();
        let starting = |id: &&NodeId| grid.state(id.as_str()) == NodeState::Starting;
        let nodes: Vec<NodeId> = nodes.iter().filter(starting).cloned().collect();
        assert_eq!(nodes.len(), 9);
        for (i, node) in nodes.iter().rev().enumerate() {
            // The others end by order, because the start has failed.
            let kind = if i < 3 { StubLossKind::Refused } else { StubLossKind::Ended };
            let (node, reason) = (node.clone(), "QOSMaxSubmitJobPerUserLimit".to_owned());
            grid.put(SchedulerEvent::StubGone(StubLoss { node, reason, kind }));
        }
        held = grid.after(ManagerSettings::default().scan_interval);
    }
    let view = grid.core.managing.view(JobId(1)).expect("it waits");
    assert!(view.reason.contains("vu grants 6 processors and refused more"), "{}", view.reason);
    let held = grid.submit(needs(Kind::Rigid, 6, 6));
    assert!(held.iter().any(|line| line.starts_with("hold vu")), "{held:?}");
}

/// A batch system that does not answer teaches nothing about its capacity.
#[test]
fn an_unreachable_batch_system_sets_no_limit() {
    let mut grid = CoreTestGrid::on_demand(4, ManagerSettings::default());
    grid.polled(4, 0);
    grid.submit(needs(Kind::Rigid, 2, 2));
    for _ in 0..4 {
        for node in ["vu-1", "vu-2"] {
            let (node, reason) = (node.into(), "unable to contact the controller".to_owned());
            let kind = StubLossKind::Unreachable;
            grid.put(SchedulerEvent::StubGone(StubLoss { node, reason, kind }));
        }
        grid.after(ManagerSettings::default().scan_interval);
    }
    let view = grid.core.managing.view(JobId(1)).expect("it waits");
    assert!(!view.reason.contains("grants"), "{}", view.reason);
}
