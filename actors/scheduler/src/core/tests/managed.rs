//! Jobs of the malleability manager.

use std::time::Duration;

use proptest::prelude::*;

use super::super::node::PoolNodeState;
use super::*;
use crate::files::{FetchResult, FileEntry, FilesReport};
use crate::manager::{Approach, JobRequirements, Kind};
use crate::scheduler::{
    JobEfficiency, NodeFreed, ReleaseReason, Resize, ResizeAck, ResizeError, ResizeJob,
};

pub(super) fn needs(kind: Kind, min: u32, max: u32) -> Submit {
    Submit { need: Some(JobRequirements::one(kind, min, min, max)), ..submit(None, OURS, None) }
}

impl CoreTestGrid {
    fn managed(nodes: usize, settings: ManagerSettings) -> Self {
        let mut grid = Self::of(nodes, OURS);
        grid.core.managing = ManagerState::new(settings, grid.now);
        grid
    }

    pub(super) fn answer(&mut self, job: u64, change: u64, count: u32) -> Vec<String> {
        self.put(SchedulerEvent::Answered { job: JobId(job), change, count: Some(count) })
    }

    pub(super) fn acknowledge(&mut self, job: u64, grant: u64, ok: bool) -> Vec<String> {
        self.put(SchedulerEvent::GrantAcknowledged { job: JobId(job), grant, ok })
    }

    pub(super) fn left(&mut self, job: u64, node: &str) -> Vec<String> {
        let node = NodeId::from(node);
        let incarnation = self.incarnation_of(&node);
        let (job, epoch, why) = (JobId(job), Epoch(1), ReleaseReason::Left);
        self.put(SchedulerEvent::Freed(NodeFreed { job, epoch, node, incarnation, why }))
    }
}

#[test]
fn managed_job_grows_and_shrinks_for_a_waiting_one() {
    let mut grid = CoreTestGrid::of(4, OURS);
    let out = grid.submit(needs(Kind::Malleable, 2, 8));
    assert_eq!(out, ["assign job-1 ams-1", "assign job-1 ams-2"]);
    assert_eq!(grid.accept(1, &["ams-1", "ams-2"]), ["grant job-1 ams-1"]);
    // Free nodes of its cluster are offered with the next poll.
    let out = grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, ["offer 1 to job-1: 2 of ams"]);
    assert_eq!(grid.answer(1, 1, 2), ["grant 1 of job-1 at ams-1: ams-3 ams-4 and 0"]);
    assert_eq!(grid.acknowledge(1, 1, true), [""; 0]);
    assert_eq!(grid.state("ams-4"), NodeState::Busy);
    // Two rigid jobs: the first goes to the other cluster, and the job shrinks for the second.
    let out = grid.submit(needs(Kind::Rigid, 4, 4));
    assert_eq!(out.len(), 4, "{out:?}");
    grid.accept(2, &["del-1", "del-2", "del-3", "del-4"]);
    let out = grid.submit(needs(Kind::Rigid, 2, 2));
    assert_eq!(out, ["job-1 must release 2 of ams (2)"]);
    assert_eq!(grid.answer(1, 2, 2), [""; 0]);
    assert_eq!(grid.left(1, "ams-4"), [""; 0]);
    assert_eq!(grid.left(1, "ams-3"), ["assign job-3 ams-3", "assign job-3 ams-4"]);
    grid.accept(3, &["ams-3", "ams-4"]);
    // Nodes of an ended job are released, and offered to the first job again.
    grid.over(3);
    let out = grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, ["offer 3 to job-1: 2 of ams"]);
    grid.over(1);
    grid.over(2);
    assert!(grid.core.status().jobs.is_empty());
    assert_eq!(grid.core.status().count(NodeState::Idle), 8);
    assert_eq!(grid.core.work_due(), None);
}

#[test]
fn job_that_does_not_release_in_time_loses_nodes() {
    let mut grid = CoreTestGrid::of(4, OURS);
    grid.submit(needs(Kind::Malleable, 1, 8));
    grid.accept(1, &["ams-1"]);
    grid.after(ManagerSettings::default().poll_interval);
    grid.answer(1, 1, 3);
    grid.acknowledge(1, 1, true);
    grid.submit(needs(Kind::Rigid, 4, 4));
    grid.accept(2, &["del-1", "del-2", "del-3", "del-4"]);
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["job-1 must release 2 of ams (2)"]);
    // Its coordinator does not answer, and releases nothing.
    grid.answer(1, 2, 0);
    let out = grid.after(ManagerSettings::default().release_timeout);
    let output: Vec<_> = out.iter().filter(|line| !line.starts_with("odd")).collect();
    assert_eq!(
        output,
        ["lost job-1 ams-1 ams-4", "lost job-1 ams-1 ams-3", "replace ams [ams-4, ams-3] same"]
    );
    grid.register("ams-3", 2, OURS);
    let mut out = grid.register("ams-4", 2, OURS);
    out.extend(grid.after(Duration::from_secs(1)));
    assert_eq!(out, ["assign job-3 ams-3", "assign job-3 ams-4"]);
}

/// Each refusal has the number of its request.
#[test]
fn refusal_has_the_number_of_its_request() {
    let mut grid = CoreTestGrid::of(4, OURS);
    grid.submit(needs(Kind::Malleable, 1, 6));
    grid.accept(1, &["ams-1"]);
    // Other jobs have all other nodes.
    for (job, cluster, nodes) in [(2, "ams", 2..=4), (3, "del", 1..=4)] {
        grid.submit(needs(Kind::Rigid, nodes.clone().count() as u32, nodes.clone().count() as u32));
        let nodes: Vec<String> = nodes.map(|n| format!("{cluster}-{n}")).collect();
        grid.accept(job, &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let need = |within_ms, number| {
        let by = Resize::Grow { count: 3, timeout_ms: Some(within_ms), cluster: None };
        SchedulerEvent::Need { order: ResizeJob { job: JobId(1), by }, number }
    };
    let refused = |actions: Vec<SchedulerAction>| -> Vec<u64> {
        let numbers = actions.into_iter().filter_map(|action| match action {
            SchedulerAction::RefuseGrowth { number, .. } => Some(number),
            _ => None,
        });
        numbers.collect()
    };
    let now = grid.now;
    assert_eq!(refused(grid.core.handle(need(5000, 7), now)), [0; 0]);
    // The last request counts.
    assert_eq!(refused(grid.core.handle(need(8000, 8), now)), [0; 0]);
    let mut numbers = Vec::new();
    for second in 1..=20 {
        grid.now = now + Duration::from_secs(second);
        numbers.extend(refused(grid.core.handle(SchedulerEvent::Poll, grid.now)));
    }
    assert_eq!(numbers, [8]);
    // A reduction by its owner refuses the request, too.
    let now = grid.now;
    assert_eq!(refused(grid.core.handle(need(60_000, 9), now)), [0; 0]);
    let order = ResizeJob { job: JobId(1), by: Resize::Shrink { count: 0 } };
    assert_eq!(refused(grid.core.handle(SchedulerEvent::Resize(order), now)), [9]);
}

#[test]
fn owner_resizes_a_job() {
    let mut grid = CoreTestGrid::of(4, OURS);
    let resize = |by: Resize| ResizeJob { job: JobId(1), by };
    let shrink = |count| resize(Resize::Shrink { count });
    let grow = |count| resize(Resize::Grow { count, timeout_ms: None, cluster: None });
    assert_eq!(grid.core.check_resize(&grow(1)), Err(ResizeError::NotRunning { job: JobId(1) }));
    grid.submit(needs(Kind::Malleable, 1, 6));
    grid.accept(1, &["ams-1"]);
    grid.after(ManagerSettings::default().poll_interval);
    grid.answer(1, 1, 3);
    grid.acknowledge(1, 1, true);
    // It has 4 processors, and must shrink to 2.
    let bounds = ResizeError::Bounds { job: JobId(1), to: 0, least: 1, most: 6 };
    assert_eq!(grid.core.check_resize(&shrink(4)), Err(bounds));
    let out = grid.put(SchedulerEvent::Resize(shrink(2)));
    assert_eq!(out, ["job-1 must release 2 of ams (2)"]);
    grid.answer(1, 2, 2);
    grid.left(1, "ams-4");
    grid.left(1, "ams-3");
    // No more is offered to it, even if processors are free.
    assert_eq!(grid.after(ManagerSettings::default().poll_interval), [""; 0]);
    assert_eq!(grid.core.check_resize(&grow(1)), Ok(ResizeAck { from: 2, to: 3 }));
    // It requested the processors, so that no offer is needed.
    let out = grid.put(SchedulerEvent::Resize(grow(1)));
    assert_eq!(out, ["grant 2 of job-1 at ams-1: ams-3 and 0"]);
    grid.acknowledge(1, 2, true);
    assert_eq!(grid.after(ManagerSettings::default().poll_interval), [""; 0]);
    let detail = grid.core.detail(JobId(1), grid.now).unwrap();
    let view = detail.view.unwrap();
    assert_eq!((view.least, view.most, view.useful), (1, 3, 6));
    let lines: Vec<&str> = detail.history.iter().map(|(_, line)| line.as_str()).collect();
    assert!(lines.contains(&"its owner lets it have 2 processors at most"), "{lines:?}");
    assert_eq!(lines.last(), Some(&"grown by 1"), "{lines:?}");
    grid.submit(needs(Kind::Rigid, 1, 1));
    grid.accept(2, &["del-1"]);
    let rigid = ResizeJob { job: JobId(2), by: Resize::Shrink { count: 1 } };
    let fixed = ResizeError::Fixed { job: JobId(2), kind: Kind::Rigid };
    assert_eq!(grid.core.check_resize(&rigid), Err(fixed));
}

#[test]
fn invalid_requirements_are_refused() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let mut wrong = needs(Kind::Malleable, 3, 2);
    let out = grid.submit(wrong.clone());
    assert!(out[0].starts_with("refuse job-1"), "{out:?}");
    if let Some(need) = &mut wrong.need {
        need.max.clear();
    }
    assert!(grid.submit(wrong)[0].starts_with("refuse job-2"));
    assert!(grid.core.status().jobs.is_empty());
}

#[test]
fn failed_start_is_repeated_when_all_nodes_are_free() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let out = grid.submit(needs(Kind::Rigid, 2, 2));
    assert_eq!(out, ["assign job-1 ams-1", "assign job-1 ams-2"]);
    let error = AssignError::failed(&"ams-2".into(), "no threads".to_owned());
    let out = grid.answer_assign(1, "ams-2", Err(error));
    let released = ["release job-1 ams-2", "epoch after 1 for job-1", "release job-1 ams-1"];
    assert_eq!(out, released);
    grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) });
    assert_eq!(grid.released(1, "ams-1", true), [""; 0]);
    let mut out = grid.released(1, "ams-2", true);
    out.extend(grid.after(ManagerSettings::default().scan_interval));
    assert_eq!(out, ["assign job-1 ams-1", "assign job-1 ams-2"]);
    assert_eq!(grid.accept(1, &["ams-1", "ams-2"]), ["grant job-1 ams-1"]);
    // Its program is another: a lasting error.
    let out = grid.submit(needs(Kind::Rigid, 2, 2));
    assert_eq!(out, ["assign job-2 del-1", "assign job-2 del-2"], "{:?}", grid.core.status());
    let (node_fingerprint, job_fingerprint) = (1, 2);
    let error = AssignError::Program { node: "del-1".into(), node_fingerprint, job_fingerprint };
    let out = grid.answer_assign(2, "del-1", Err(error));
    assert!(
        out[0].starts_with("refuse job-2: a worker did not take the job: node del-1 runs another"),
        "{out:?}"
    );
    for node in ["del-1", "del-2"] {
        grid.released(2, node, true);
    }
    assert_eq!(grid.state("del-1"), NodeState::Idle);
}

#[test]
fn waiting_job_is_explained_and_can_be_cancelled() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(needs(Kind::Rigid, 2, 2));
    grid.accept(1, &["ams-1", "ams-2"]);
    grid.submit(needs(Kind::Rigid, 2, 2));
    grid.accept(2, &["del-1", "del-2"]);
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), [""; 0]);
    let status = grid.core.status();
    let waits = status.jobs.iter().find(|job| job.job == JobId(3)).unwrap();
    assert_eq!(waits.state, JobState::Queued);
    let why = waits.waits_for.clone().unwrap();
    assert!(why.contains("ams") && why.contains("del"), "{why}");
    let out = grid.put(SchedulerEvent::Cancel { job: JobId(3), reason: "enough".to_owned() });
    assert_eq!(out, ["refuse job-3: the job was cancelled: enough"]);
    // A job that never fits is refused at once.
    let out = grid.submit(needs(Kind::Rigid, 3, 3));
    assert!(out[0].starts_with("refuse job-4: the job cannot be placed: "), "{out:?}");
    // The client of all jobs is lost: running jobs are cancelled, and their nodes released at once.
    let out = grid.put(SchedulerEvent::Link { node: "client-1".into(), up: false });
    let of = |job: u32, cluster: &str| {
        let release = |n| format!("release job-{job} {cluster}-{n}");
        [format!("cancel job-{job} {cluster}-1"), release(1), release(2)]
    };
    assert_eq!(out, [of(1, "ams"), of(2, "del")].concat());
}

#[derive(Clone, Debug)]
enum ManagedStep {
    Submit(Kind, u32, u32),
    /// With a file, which del has.
    WithFile(u32),
    Plain(u32),
    /// The n-th outstanding answer arrives.
    Answer(usize, bool, u32),
    Free(usize),
    Lose(usize, bool),
    Register(usize),
    Over(usize),
    Cancel(usize),
    Efficiency(usize, f64),
    Request(usize, u32),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<ManagedStep>> {
    let kind = prop::sample::select(Kind::ALL);
    let ok = prop::bool::weighted(0.85);
    prop::collection::vec(
        prop_oneof![
            4 => (kind, 1u32..4, 0u32..6)
                .prop_map(|(kind, min, more)| ManagedStep::Submit(kind, min, more)),
            2 => (1u32..4).prop_map(ManagedStep::WithFile),
            1 => (1u32..4).prop_map(ManagedStep::Plain),
            14 => (any::<usize>(), ok, 0u32..6)
                .prop_map(|(n, ok, count)| ManagedStep::Answer(n, ok, count)),
            5 => any::<usize>().prop_map(ManagedStep::Free),
            2 => (0usize..8, any::<bool>()).prop_map(|(n, returns)| ManagedStep::Lose(n, returns)),
            3 => (0usize..8).prop_map(ManagedStep::Register),
            2 => (1usize..8).prop_map(ManagedStep::Over),
            1 => (1usize..8).prop_map(ManagedStep::Cancel),
            2 => (1usize..8, 0.05f64..1.0).prop_map(|(job, e)| ManagedStep::Efficiency(job, e)),
            2 => (1usize..8, 1u32..4).prop_map(|(job, count)| ManagedStep::Request(job, count)),
            6 => (1u64..40_000).prop_map(ManagedStep::Wait),
        ],
        1..90,
    )
}

/// Outstanding answers.
#[derive(Clone, Debug)]
enum OutstandingReply {
    Assigned(JobId, Epoch, NodeId),
    Released(JobId, NodeId, Incarnation),
    Count(JobId, u64, u32),
    Grant(JobId, u64),
    Brought(JobId, u64, FileEntry),
}

struct ManagedWorld {
    grid: CoreTestGrid,
    pending: Vec<OutstandingReply>,
    incarnations: [u64; 8],
}

const NODES: [&str; 8] = ["ams-1", "ams-2", "ams-3", "ams-4", "del-1", "del-2", "del-3", "del-4"];

impl ManagedWorld {
    fn put(&mut self, event: SchedulerEvent) {
        for action in self.grid.core.handle(event, self.grid.now) {
            match action {
                SchedulerAction::Assign { node, assign } => self
                    .pending
                    .push(OutstandingReply::Assigned(assign.spec.id, assign.spec.epoch, node)),
                SchedulerAction::Release { node, incarnation, job, .. } => {
                    self.pending.push(OutstandingReply::Released(job, node, incarnation));
                }
                SchedulerAction::OfferGrowth(asking)
                | SchedulerAction::AskShrink { asking, .. } => {
                    self.pending.push(OutstandingReply::Count(
                        asking.job,
                        asking.change,
                        asking.count,
                    ));
                }
                SchedulerAction::BringFile { job, ask, file, .. } => {
                    self.pending.push(OutstandingReply::Brought(job, ask, file));
                }
                SchedulerAction::GrantNodes { job, grant, .. } => {
                    self.pending.push(OutstandingReply::Grant(job, grant))
                }
                SchedulerAction::NewEpoch { job, known } => {
                    let epoch = Epoch(known.0 + 1);
                    self.put(SchedulerEvent::EpochIssued { job, epoch });
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self, pending: OutstandingReply, ok: bool, count: u32) {
        match pending {
            OutstandingReply::Assigned(job, epoch, node) => {
                let failed = || AssignError::failed(&node, "no".to_owned());
                let answer = if ok { Ok(()) } else { Err(failed()) };
                self.put(SchedulerEvent::Assigned { job, epoch, node, answer });
            }
            OutstandingReply::Released(job, node, incarnation) => {
                self.put(SchedulerEvent::Released { job, node, incarnation, ok });
            }
            OutstandingReply::Count(job, change, of) => {
                let count = ok.then_some(count.min(of));
                self.put(SchedulerEvent::Answered { job, change, count });
            }
            OutstandingReply::Brought(job, ask, file) => {
                let brought =
                    FetchResult { from: Some("del".into()), bytes: file.bytes, seconds: 0.5 };
                let answer = if ok { Ok((file, brought)) } else { Err("no".to_owned()) };
                self.put(SchedulerEvent::FileFetched { job, ask, answer });
            }
            OutstandingReply::Grant(job, grant) => {
                self.put(SchedulerEvent::GrantAcknowledged { job, grant, ok })
            }
        }
    }

    fn step(&mut self, step: ManagedStep) {
        let id = |job: usize| JobId(job as u64);
        match step {
            ManagedStep::Submit(kind, min, more) => {
                self.grid.jobs += 1;
                let submit = Box::new(needs(kind, min, min + more));
                let (job, epoch) = (JobId(self.grid.jobs), Epoch(1));
                self.put(SchedulerEvent::Submit { job, epoch, submit });
            }
            ManagedStep::WithFile(min) => {
                self.grid.jobs += 1;
                let submit = Box::new(files::reads(min, &["bodies"]));
                let (job, epoch) = (JobId(self.grid.jobs), Epoch(1));
                // Half of them find the file moved away again.
                let there = if min % 2 == 0 { &["del"][..] } else { &["del", "bud"] };
                for cluster in ["ams", "del", "bud"] {
                    let has = there.contains(&cluster);
                    let held = if has { vec![files::entry("bodies", 1 << 20)] } else { Vec::new() };
                    let (cluster, files) = (cluster.into(), Ok(held));
                    self.put(SchedulerEvent::FilesReported(FilesReport { cluster, files }));
                }
                self.put(SchedulerEvent::Submit { job, epoch, submit });
            }
            ManagedStep::Plain(count) => {
                self.grid.jobs += 1;
                let submit = Box::new(submit(Some(&[("ams", count)]), OURS, None));
                let (job, epoch) = (JobId(self.grid.jobs), Epoch(1));
                self.put(SchedulerEvent::Submit { job, epoch, submit });
            }
            ManagedStep::Answer(n, ok, count) if !self.pending.is_empty() => {
                let pending = self.pending.remove(n % self.pending.len());
                self.answer(pending, ok, count);
            }
            ManagedStep::Free(n) => {
                let node = NodeId::from(NODES[n % 8]);
                let PoolNodeState::Busy(job) = self.grid.core.nodes[&node].state else { return };
                let incarnation = self.grid.incarnation_of(&node);
                let epoch = self.grid.core.jobs.get(&job).map_or(Epoch(1), |job| job.epoch);
                self.put(SchedulerEvent::Freed(NodeFreed {
                    job,
                    epoch,
                    node,
                    incarnation,
                    why: ReleaseReason::Left,
                }));
            }
            ManagedStep::Lose(n, returns) => {
                let (node, reason) = (NodeId::from(NODES[n]), "it crashed".to_owned());
                self.put(SchedulerEvent::NodeLost { node, reason, returns });
            }
            ManagedStep::Register(n) => self.register(n),
            ManagedStep::Over(job) => {
                let epoch = self.grid.core.jobs.get(&id(job)).map_or(Epoch(1), |job| job.epoch);
                self.put(SchedulerEvent::JobOver { job: id(job), epoch, ended: None, ok: true });
            }
            ManagedStep::Cancel(job) => {
                self.put(SchedulerEvent::Cancel { job: id(job), reason: "no".to_owned() })
            }
            ManagedStep::Efficiency(job, efficiency) => {
                let output =
                    JobEfficiency { job: id(job), epoch: Epoch(9), efficiency, processors: 4 };
                self.put(SchedulerEvent::EfficiencyMeasured(output));
            }
            ManagedStep::Request(job, count) => {
                let request =
                    crate::policy::SchedulerRequest { count: count.into(), ..Default::default() };
                let (job, epoch) = (id(job), Epoch(9));
                let (rtt_s, bandwidth) = Default::default();
                let request = crate::scheduler::RequestNodes {
                    job,
                    epoch,
                    request,
                    benchmark: None,
                    rtt_s,
                    bandwidth,
                };
                self.put(SchedulerEvent::Request(Box::new(request)));
            }
            ManagedStep::Wait(ms) => {
                self.grid.now += Duration::from_millis(ms);
                self.put(SchedulerEvent::Tick);
            }
            ManagedStep::Answer(..) => {}
        }
    }

    fn register(&mut self, n: usize) {
        let name = NODES[n];
        let state = self.grid.core.nodes[&NodeId::from(name)].state;
        self.incarnations[n] +=
            u64::from(matches!(state, PoolNodeState::Starting | PoolNodeState::Broken));
        self.put(SchedulerEvent::Registered(registration(name, self.incarnations[n])));
    }

    /// All answers arrive, all running jobs end and all nodes return: then every node is free.
    fn end(&mut self) {
        for _ in 0..400 {
            for n in 0..8 {
                self.register(n);
            }
            while let Some(pending) = self.pending.pop() {
                self.answer(pending, true, 0);
            }
            let jobs = self.grid.core.status().jobs;
            if jobs.is_empty() {
                break;
            }
            for job in jobs {
                match job.state {
                    JobState::Queued => {
                        self.put(SchedulerEvent::Cancel { job: job.job, reason: "end".to_owned() })
                    }
                    _ => {
                        let epoch =
                            self.grid.core.jobs.get(&job.job).map_or(Epoch(1), |job| job.epoch);
                        self.put(SchedulerEvent::JobOver {
                            job: job.job,
                            epoch,
                            ended: None,
                            ok: true,
                        });
                        if let Some(true) = self
                            .grid
                            .core
                            .jobs
                            .get(&job.job)
                            .map(|job| job.view.coordinator.is_none())
                        {
                            self.put(SchedulerEvent::Cancel {
                                job: job.job,
                                reason: "end".to_owned(),
                            });
                        }
                    }
                }
            }
            self.grid.now += Duration::from_secs(1);
            self.put(SchedulerEvent::Tick);
        }
        assert_eq!(self.grid.core.status().jobs, []);
        assert_eq!(self.grid.core.files.due(), None, "a transfer is under way for no job");
        assert_eq!(
            self.grid.core.status().count(NodeState::Idle),
            8,
            "{:?}",
            self.grid.core.status()
        );
        for cluster in ["ams", "del"] {
            assert_eq!(self.grid.core.managing.booked(&cluster.into()), 0, "{cluster}");
        }
    }
}

proptest! {
    #![proptest_config(super::stub_histories::histories())]

    /// The accounts and the nodes agree after every event, and all nodes are free in the end.
    #[test]
    fn no_processor_is_lost_or_counted_twice(
        first in any::<bool>(),
        steps in steps(),
    ) {
        let approach = if first { Approach::Running } else { Approach::Waiting };
        let settings = ManagerSettings { approach, ..ManagerSettings::default() };
        let grid = CoreTestGrid::managed(4, settings);
        let mut world = ManagedWorld { grid, pending: Vec::new(), incarnations: [1; 8] };
        for step in steps {
            world.step(step);
        }
        world.end();
    }
}

#[test]
fn managed_jobs_do_not_overtake_a_queued_job() {
    let mut grid = CoreTestGrid::managed(4, ManagerSettings::default());
    grid.submit(needs(Kind::Malleable, 2, 4));
    let own = grid.core.jobs[&JobId(1)].members.clone();
    grid.accept(1, &own.iter().map(NodeId::as_str).collect::<Vec<_>>());
    // All nodes of both clusters.
    assert_eq!(grid.submit(submit(None, OURS, None)), [""; 0]);
    let out = grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, [""; 0], "nodes that it waits for are not offered");
}

/// The criteria of a job's request apply to grants of the manager. If no free node meets them, the
/// job gets none, and no other job shrinks for it.
#[test]
fn job_gets_only_nodes_that_meet_its_criteria() {
    let mut grid = CoreTestGrid::of(3, OURS);
    let mut submit = needs(Kind::Malleable, 1, 8);
    submit.need.as_mut().unwrap().spreads = true;
    assert_eq!(grid.submit(submit), ["assign job-1 ams-1"]);
    grid.accept(1, &["ams-1"]);
    // All free nodes of del are too slow, and one of ams is fast enough.
    let spec = BenchmarkSpec::of_job("fib", bytes::Bytes::new()).id();
    let unit = Unit::of(spec, JobId(1));
    for (node, speed) in
        [("ams-2", 1.0), ("ams-3", 3.0), ("del-1", 1.0), ("del-2", 1.0), ("del-3", 1.0)]
    {
        let registration = grid.core.nodes[&NodeId::from(node)].registration.clone().unwrap();
        grid.core.speeds.benchmarked(unit, &registration, speed, grid.now).unwrap();
    }
    let fast = crate::policy::SchedulerRequest {
        count: 4.into(),
        min_speed: Some(2.0),
        ..Default::default()
    };
    let out = grid.request(1, fast, true);
    let out = [out, grid.after(ManagerSettings::default().poll_interval)].concat();
    assert_eq!(out, ["grant 1 of job-1 at ams-1: ams-3 and 3"]);
    grid.acknowledge(1, 1, true);
    let but = |grid: &CoreTestGrid| grid.core.unfit_for(&grid.core.jobs[&JobId(1)], grid.now);
    assert_eq!(but(&grid), ["ams".into(), "del".into()].into());
    // One node is measured again, and is fast now.
    let registration = grid.core.nodes[&NodeId::from("del-2")].registration.clone().unwrap();
    grid.core.speeds.benchmarked(unit, &registration, 2.5, grid.now).unwrap();
    assert_eq!(but(&grid), ["ams".into()].into());
    let out = grid.after(ManagerSettings::default().poll_interval);
    // Processors beyond its request are offered.
    assert_eq!(out, ["offer 2 to job-1: 1 of ams"]);
    grid.answer(1, 2, 0);
    let out = grid.after(ManagerSettings::default().poll_interval);
    assert_eq!(out, ["grant 2 of job-1 at ams-1: del-2 and 2"]);
    grid.acknowledge(1, 2, true);
}
