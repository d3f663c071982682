//! The scheduler dies, and another starts with the store's contents.

use std::time::Duration;

use super::super::recover::{GATHER, RETURN_TIMEOUT};
use super::managed::needs;
use super::*;
use crate::manager::{JobRequirements, Kind};
use crate::policy::malleability::{PlacedPart, PlacementPlan};
use crate::scheduler::{
    NodeFreed, NodeWork, ReleaseReason, Resize, ResizeJob, SiteReport, StubLoss, StubLossKind,
};

/// A restarted scheduler with the same sites and recovered jobs. Cluster vu has four nodes on
/// demand.
struct RestartedGrid {
    grid: CoreTestGrid,
    /// Size limit of the recovered jobs.
    limit: Option<u32>,
}

pub(super) fn begun(cluster: &str, count: u32) -> Option<StartRecord> {
    let part = PlacedPart { component: 0, cluster: cluster.into(), count };
    let placed =
        PlacementPlan { parts: vec![part], transfers: Vec::new(), why: "it fits".to_owned() };
    Some(StartRecord { placed, at: None })
}

fn view(epoch: u32, members: &[&str], coordinator: &str) -> View {
    let mut view = View { epoch: Epoch(epoch), version: 4, ..View::default() };
    for &name in members {
        let (cluster, _) = name.split_once('-').unwrap();
        let registration = NodeRegistration { cluster: cluster.into(), ..registration(name, None) };
        view.members.insert(name.into(), super::super::node::member(&registration));
    }
    view.coordinator = Some(coordinator.into());
    view
}

fn registration(node: &str, work: Option<NodeWork>) -> NodeRegistration {
    NodeRegistration { work, ..super::registration(node, 3) }
}

impl RestartedGrid {
    fn new() -> Self {
        let grid = CoreTestGrid {
            core: SchedulerCore::new(contact("head"), ManagerSettings::default(), Instant::now()),
            jobs: 9,
            now: Instant::now(),
            noted: Vec::new(),
        };
        let mut restarted = Self { grid, limit: None };
        restarted.grid.put(SchedulerEvent::Expect { clusters: vec!["vu".into()] });
        restarted
    }

    fn recovered(
        &mut self,
        job: u64,
        epoch: u32,
        need: JobRequirements,
        begun: Option<StartRecord>,
    ) -> Vec<String> {
        let submit = Box::new(Submit { need: Some(need), ..submit(None, OURS, None) });
        let (job, epoch) = (JobId(job), Epoch(epoch));
        let limit = self.limit;
        let found = RecoveredJob { job, epoch, submit, begun, limit };
        self.grid.put(SchedulerEvent::Recovered(Box::new(found)))
    }

    fn site(&mut self, stubs: &[&str]) -> Vec<String> {
        let nodes: Vec<NodeId> = (1..=4).map(|n| format!("vu-{n}").into()).collect();
        let stubs = stubs.iter().map(|&node| node.into()).collect();
        let (cluster, keep_ms) = ("vu".into(), Some(5000));
        let (starts_programs, files) = (true, false);
        let at = None;
        let site = SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster,
            nodes,
            starts_programs,
            keep_ms,
            stubs,
            files,
            at,
            receives_programs: false,
        };
        let mut out = self.grid.put(SchedulerEvent::SiteUp(site));
        let found = Ok((4, 0));
        out.extend(
            self.grid.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found })),
        );
        out
    }

    fn comes(&mut self, node: &str, job: u64, view: Option<View>) -> Vec<String> {
        let work = Some(NodeWork { job: JobId(job), view });
        self.grid.put(SchedulerEvent::Registered(registration(node, work)))
    }
}

fn need() -> JobRequirements {
    needs(Kind::Malleable, 1, 4).need.unwrap()
}

#[test]
fn job_with_live_nodes_continues() {
    let mut restarted = RestartedGrid::new();
    assert_eq!(restarted.recovered(1, 1, need(), begun("vu", 1)), [""; 0]);
    restarted.site(&["vu-1", "vu-2"]);
    assert_eq!(restarted.grid.core.status().jobs[0].state, JobState::Queued);
    // Its coordinator may send any request meanwhile.
    assert_eq!(restarted.grid.core.check(JobId(1), Epoch(1)), Ok(()));
    let offers = restarted.grid.core.offers(JobId(1), Epoch(1), restarted.grid.now).unwrap();
    assert!(offers.offers.is_empty());
    assert_eq!(restarted.grid.core.sample(JobId(1), Epoch(1), &"vu".into()), Ok(None));
    assert_eq!(restarted.comes("vu-2", 1, None), [""; 0]);
    assert_eq!(restarted.comes("vu-1", 1, Some(view(1, &["vu-1", "vu-2"], "vu-1"))), [""; 0]);
    let status = restarted.grid.core.status();
    assert_eq!((status.jobs[0].state, status.jobs[0].processors()), (JobState::Running, 2));
    assert_eq!(restarted.grid.core.managing.booked(&"vu".into()), 2);
    // The manager has the job as before: free processors are offered to it.
    let out = restarted.grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, ["offer 1 to job-1: 2 of vu"]);
    let detail = restarted.grid.core.detail(JobId(1), restarted.grid.now).unwrap();
    assert!(detail.history[0].1.contains("continues on 2 of vu"), "{detail:?}");
    restarted.grid.put(SchedulerEvent::JobOver {
        job: JobId(1),
        epoch: Epoch(1),
        ended: None,
        ok: true,
    });
    assert_eq!(restarted.grid.noted, ["forget job-1"]);
    assert!(restarted.grid.core.status().jobs.is_empty());
}

/// Its nodes were about to join it when the scheduler died: it grows onto the same stubs.
#[test]
fn unused_stubs_are_kept_until_a_returning_job_can_grow() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 1, need(), begun("vu", 1));
    restarted.site(&["vu-1", "vu-2"]);
    restarted.grid.put(SchedulerEvent::Registered(registration("vu-2", None)));
    let keep = Duration::from_secs(5);
    assert_eq!(restarted.grid.after(keep + keep), [""; 0]);
    assert_eq!(restarted.grid.state("vu-2"), NodeState::Idle);
    restarted.comes("vu-1", 1, Some(view(1, &["vu-1"], "vu-1")));
    let out = restarted.grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, ["offer 1 to job-1: 3 of vu"]);
    // It declines.
    restarted.grid.answer(1, 1, 0);
    assert_eq!(restarted.grid.after(keep), ["close vu [vu-2]"]);
}

#[test]
fn waiting_job_waits_again_and_lost_job_restarts() {
    let mut restarted = RestartedGrid::new();
    assert_eq!(restarted.recovered(1, 1, need(), None), [""; 0]);
    assert_eq!(restarted.recovered(2, 3, need(), begun("vu", 1)), [""; 0]);
    // The site has no stub: no node is waited for.
    let out = restarted.site(&[]);
    assert_eq!(
        out,
        [
            "odd: job-2 restarts: none of its nodes has registered again",
            "epoch after 3 for job-2",
            "hold vu [vu-1]"
        ]
    );
    let out = restarted.grid.put(SchedulerEvent::EpochIssued { job: JobId(2), epoch: Epoch(4) });
    assert_eq!(out, ["hold vu [vu-2]"]);
    restarted.grid.register("vu-1", 1, OURS);
    restarted.grid.register("vu-2", 1, OURS);
    assert_eq!(restarted.grid.noted, ["begin job-1", "begin job-2"]);
    let assigned = restarted.grid.core.jobs.get(&JobId(2)).unwrap();
    assert_eq!(assigned.epoch, Epoch(4));
}

#[test]
fn late_nodes_are_lost_to_their_job() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 1, need(), begun("vu", 3));
    // The stub of vu-3 has ended; the site reports that of vu-2.
    restarted.site(&["vu-1", "vu-2"]);
    let members = ["vu-1", "vu-2", "vu-3"];
    assert_eq!(restarted.comes("vu-1", 1, Some(view(1, &members, "vu-1"))), [""; 0]);
    assert_eq!(restarted.grid.after(GATHER), ["lost job-1 vu-1 vu-3"]);
    assert_eq!(restarted.grid.core.managing.booked(&"vu".into()), 2);
    let out = restarted.grid.after(RETURN_TIMEOUT);
    assert!(out.contains(&"lost job-1 vu-1 vu-2".to_owned()), "{out:?}");
    assert!(out.contains(&"replace vu [vu-2] same".to_owned()), "{out:?}");
    // The end of a stub has no further effect.
    restarted.grid.put(SchedulerEvent::StubGone(StubLoss {
        node: "vu-2".into(),
        reason: "it is gone".into(),
        kind: StubLossKind::Ended,
    }));
}

#[test]
fn job_without_its_coordinator_gets_another() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 1, need(), begun("vu", 2));
    restarted.site(&["vu-2"]);
    // The coordinator's node ended while no scheduler ran.
    restarted.comes("vu-2", 1, Some(view(1, &["vu-1", "vu-2"], "vu-1")));
    assert_eq!(restarted.grid.after(GATHER), ["epoch after 1 for job-1"]);
    let out = restarted.grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) });
    assert_eq!(out, ["vu-2 takes job-1 over under 2"]);
}

#[test]
fn unfinished_takeover_is_fenced() {
    let mut restarted = RestartedGrid::new();
    // Epoch 2 was issued, and its node may not know of it.
    restarted.recovered(1, 2, need(), begun("vu", 2));
    restarted.site(&["vu-1", "vu-2"]);
    restarted.comes("vu-1", 1, Some(view(1, &["vu-1", "vu-2"], "vu-1")));
    assert_eq!(restarted.comes("vu-2", 1, None), ["epoch after 2 for job-1"]);
}

#[test]
fn nodes_of_unknown_jobs_are_freed() {
    let mut restarted = RestartedGrid::new();
    restarted.site(&["vu-1"]);
    assert_eq!(restarted.comes("vu-1", 7, None), ["release job-7 vu-1"]);
    assert_eq!(restarted.grid.state("vu-1"), NodeState::Busy);
    restarted.grid.released(7, "vu-1", true);
    assert_eq!(restarted.grid.state("vu-1"), NodeState::Idle);
    // The same for nodes that register after the restart of their job.
    let out = restarted.recovered(1, 1, need(), begun("vu", 1));
    assert!(out.contains(&"epoch after 1 for job-1".to_owned()), "{out:?}");
    restarted.grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) });
    let out = restarted.comes("vu-3", 1, Some(view(1, &["vu-3"], "vu-3")));
    assert_eq!(out, ["release job-1 vu-3"]);
}

#[test]
fn returning_job_can_end_or_be_cancelled() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 1, need(), begun("vu", 1));
    restarted.recovered(2, 1, need(), begun("vu", 1));
    restarted.site(&["vu-1", "vu-2"]);
    restarted.comes("vu-1", 1, None);
    let out = restarted.grid.put(SchedulerEvent::JobOver {
        job: JobId(1),
        epoch: Epoch(1),
        ended: None,
        ok: true,
    });
    assert_eq!(out, ["release job-1 vu-1"]);
    let out =
        restarted.grid.put(SchedulerEvent::Cancel { job: JobId(2), reason: "enough".to_owned() });
    assert_eq!(out, ["ended job-2: the job was cancelled: enough"]);
    assert_eq!(restarted.grid.noted, ["forget job-1", "forget job-2"]);
    assert!(restarted.grid.core.status().jobs.is_empty());
}

#[test]
fn first_poll_after_a_crash_counts_each_node_once() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 1, need(), begun("vu", 2));
    restarted.recovered(2, 1, needs(Kind::Rigid, 2, 2).need.unwrap(), None);
    restarted.site(&["vu-1", "vu-2"]);
    // Two of four processors may belong to the first job: the second gets the others.
    restarted.grid.after(Duration::from_secs(1));
    assert_eq!(restarted.grid.core.managing.booked(&"vu".into()), 2);
    restarted.comes("vu-1", 1, Some(view(1, &["vu-1", "vu-2"], "vu-1")));
    restarted.comes("vu-2", 1, None);
    assert_eq!(restarted.grid.core.managing.booked(&"vu".into()), 4);
    restarted.grid.after(Duration::from_secs(1));
}

#[test]
fn messages_of_a_returning_jobs_coordinator_are_replayed() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 1, need(), begun("vu", 1));
    restarted.site(&["vu-1", "vu-2", "vu-3"]);
    restarted.comes("vu-2", 1, None);
    // The root is moving, and a node has left.
    let (job, epoch) = (JobId(1), Epoch(1));
    let order = HandOver { job, epoch, to: "vu-2".into(), reason: "it is better".to_owned() };
    assert_eq!(restarted.grid.put(SchedulerEvent::HandOver(order)), [""; 0]);
    let (node, incarnation) = ("vu-3".into(), Incarnation(3));
    let left = NodeFreed { job, epoch, node, incarnation, why: ReleaseReason::Left };
    assert_eq!(restarted.grid.put(SchedulerEvent::Freed(left)), [""; 0]);
    restarted.comes("vu-3", 1, None);
    let all = ["vu-1", "vu-2", "vu-3"];
    let out = restarted.comes("vu-1", 1, Some(view(1, &all, "vu-1")));
    assert_eq!(out, ["epoch after 1 for job-1"]);
    assert_eq!(restarted.grid.state("vu-3"), NodeState::Idle);
    let out = restarted.grid.put(SchedulerEvent::EpochIssued { job, epoch: Epoch(2) });
    assert_eq!(out, ["vu-2 takes job-1 over under 2 from vu-1"]);
}

#[test]
fn live_coordinator_is_asked_first_after_an_unfinished_takeover() {
    let mut restarted = RestartedGrid::new();
    restarted.recovered(1, 2, need(), begun("vu", 1));
    restarted.site(&["vu-1"]);
    let out = restarted.comes("vu-1", 1, Some(view(1, &["vu-1"], "vu-1")));
    assert_eq!(out, ["epoch after 2 for job-1"]);
    let out = restarted
        .grid
        .core
        .handle(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(3) }, restarted.grid.now);
    let [SchedulerAction::TakeOver { node, order }] = &out[..] else { panic!("{out:?}") };
    assert_eq!((node.as_str(), order.handed), ("vu-1", true), "it does not count as dead");
}

#[test]
fn job_that_loses_all_nodes_restarts_twice_and_then_fails() {
    for cancelled in [false, true] {
        let mut restarted = RestartedGrid::new();
        restarted.recovered(1, 1, need(), begun("vu", 1));
        restarted.site(&["vu-1"]);
        restarted.comes("vu-1", 1, Some(view(1, &["vu-1"], "vu-1")));
        let mut epoch = 1;
        for round in 1..=3 {
            if round > 1 {
                let register = SchedulerEvent::Registered(NodeRegistration {
                    incarnation: Incarnation(3 + round),
                    ..registration("vu-1", None)
                });
                let out = restarted.grid.put(register);
                assert_eq!(out, ["assign job-1 vu-1"]);
                restarted.grid.accept(1, &["vu-1"]);
            }
            let (node, reason) = ("vu-1".into(), "the machine burns".to_owned());
            let out = restarted.grid.put(SchedulerEvent::StubGone(StubLoss {
                node,
                reason,
                kind: StubLossKind::Ended,
            }));
            if round == 3 {
                assert!(out[0].starts_with("ended job-1: node vu-1 was lost"), "{out:?}");
                break;
            }
            assert!(out[0].starts_with("odd: job-1 restarts"), "{out:?}");
            assert_eq!(out[1..], [format!("epoch after {epoch} for job-1")]);
            epoch += 1;
            if cancelled {
                let reason = "not wanted".to_owned();
                restarted.grid.put(SchedulerEvent::Cancel { job: JobId(1), reason });
                assert_eq!(restarted.grid.core.status().jobs, []);
                break;
            }
            let out = restarted
                .grid
                .put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(epoch) });
            assert_eq!(out, ["hold vu [vu-1]"]);
        }
        assert_eq!(restarted.grid.noted.iter().filter(|note| *note == "forget job-1").count(), 1);
    }
}

#[test]
fn orders_of_owners_outlast_the_scheduler() {
    let mut restarted = RestartedGrid::new();
    restarted.limit = Some(2);
    restarted
        .grid
        .put(SchedulerEvent::Marked { nodes: [("vu-4".into(), "it smells".to_owned())].into() });
    restarted.recovered(1, 1, need(), begun("vu", 1));
    restarted.recovered(2, 1, need(), None);
    restarted.site(&["vu-1"]);
    restarted.comes("vu-1", 1, Some(view(1, &["vu-1"], "vu-1")));
    let most = |job| restarted.grid.core.managing.view(JobId(job)).unwrap().most;
    assert_eq!((most(1), most(2)), (2, 2));
    assert_eq!(restarted.grid.state("vu-4"), NodeState::Off);
    assert!(!restarted.grid.core.nodes[&NodeId::from("vu-4")].is_off(), "no stub is started there");
    let nodes = vec!["vu-4".into()];
    restarted.grid.put(SchedulerEvent::Undrain { nodes });
    assert!(restarted.grid.core.nodes[&NodeId::from("vu-4")].is_off());
    assert!(
        restarted.grid.noted.contains(&"mark vu-4 None".to_owned()),
        "{:?}",
        restarted.grid.noted
    );
    let order = ResizeJob { job: JobId(1), by: Resize::Shrink { count: 1 } };
    restarted.grid.put(SchedulerEvent::Resize(order));
    assert!(
        !restarted.grid.noted.contains(&"limit job-1 Some(1)".to_owned()),
        "the limit is already stored"
    );
}

/// The time used under the earlier scheduler counts against a job's time limit.
#[test]
fn time_limit_includes_time_before_a_restart() {
    let mut restarted = RestartedGrid::new();
    restarted.grid.after(Duration::from_secs(40));
    let need = JobRequirements { time_ms: Some(60_000), ..need() };
    let began = begun("vu", 1).map(|begun| StartRecord { at: Some(0), ..begun });
    restarted.recovered(1, 1, need, began);
    restarted.site(&["vu-1"]);
    restarted.comes("vu-1", 1, Some(view(1, &["vu-1"], "vu-1")));
    let ended = |out: &[String]| out.iter().any(|line| line.starts_with("cancel job-1"));
    assert!(!ended(&restarted.grid.after(Duration::from_secs(19))));
    assert!(ended(&restarted.grid.after(Duration::from_secs(1))));
}
