//! State tables of the core: each event in each state of a job, and in each state of a node.
//!
//! The kinds of events come from an exhaustive match over [`Event`]. The states come from
//! exhaustive matches over [`JobState`], [`Stage`] and [`State`]. A new variant does not compile
//! without an entry. Each entry is executed: the core is put into the state, gets the event, and
//! the outcome is compared.

use super::super::managed::JobStage;
use super::super::node::PoolNodeState;
use super::managed::needs;
use super::recover::begun;
use super::*;
use crate::files::{FetchResult, FileEntry, FilesReport};
use crate::manager::Kind as JobKind;
use crate::policy::SchedulerRequest;
use crate::program::{ProgramDigest, ProgramReport, ProgramState};
use crate::scheduler::{
    Drain, JobAudit, JobEfficiency, MemberSilent, NodeFreed, ReleaseReason, RequestNodes, Resize,
    ResizeJob, RootAdvanced, SiteReport, SpeedsMeasured, StubDelay, StubLoss, StubLossKind,
    Subscribe, WithdrawNodes,
};
use springtide_base::event_kinds;
use springtide_base::state_table::{EventEffect, check};
use springtide_metrics::{SpecId, SpeedMeasurement};

event_kinds!(Kind of SchedulerEvent {
    Expect {..}, SiteUp(..), SitePolled(..), StubWaits(..), StubGone(..), Recovered(..),
    Reserved(..), Registered(..), LinkDown {..}, NodeLost {..}, MemberSilent(..), Submit {..},
    SubmitAll(..), Learned(..), FormerHistory(..),
    Assigned {..}, Released {..}, JobOver {..}, Cancel {..}, CancelOf {..}, CancelFailed {..},
    Link {..}, Request(..), Withdraw(..), GrantAcknowledged {..}, Freed(..),
    HandOver(..), Subscribe(..),
    SpeedsMeasured(..), Measured {..}, Drain {..}, Marked {..}, Undrain {..}, AskLeaveFailed {..},
    EpochIssued {..}, TakeOverAnswered {..}, RootAdvanced(..), Answered {..}, CloseFailed {..},
    EfficiencyMeasured(..), Resize(..), Need {..}, FilesReported(..), ProgramReported(..),
    FileFetched {..}, Audited {..}, Poll {..},
    Tick {..},
});

/// A state of a job, if events distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JobIs {
    /// The job does not exist.
    Unknown,
    /// It waits for the nodes of its submission.
    Queued,
    /// The manager seeks a place for it.
    Waiting,
    /// The same, after a loss of all its nodes.
    WaitingAgain,
    /// The manager has placed it, and its nodes are arriving.
    Gathering,
    /// It is being assigned to its workers.
    Assigning,
    /// It runs.
    Running,
    /// It runs, and has no coordinator.
    CoordinatorSearch,
    /// Its nodes are being released.
    Ending,
    /// Its nodes are being released, and it restarts.
    Failing,
    /// An earlier scheduler had it, and its nodes may be alive.
    ReturningJob,
}

impl JobIs {
    const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Queued,
        Self::Waiting,
        Self::WaitingAgain,
        Self::Gathering,
        Self::Assigning,
        Self::Running,
        Self::CoordinatorSearch,
        Self::Ending,
        Self::Failing,
        Self::ReturningJob,
    ];

    /// The state of a job in a core.
    fn of(core: &SchedulerCore, id: JobId) -> Self {
        if core.returning.contains_key(&id) {
            return Self::ReturningJob;
        }
        let managed = core.managing.jobs.get(&id);
        if let Some(job) = core.jobs.get(&id) {
            return match job.state {
                JobState::Queued => panic!("a job with nodes is queued"),
                JobState::Assigning => Self::Assigning,
                JobState::Running if job.search.is_some() => Self::CoordinatorSearch,
                JobState::Running => Self::Running,
                JobState::Ending if core.managing.starts_again(id) => Self::Failing,
                JobState::Ending => Self::Ending,
            };
        }
        match managed.map(|managed| (&managed.stage, managed.begun)) {
            Some((JobStage::Waiting, false)) => Self::Waiting,
            Some((JobStage::Waiting, true)) => Self::WaitingAgain,
            Some((JobStage::Gathering { .. }, _)) => Self::Gathering,
            Some((
                JobStage::Claiming | JobStage::Failing(_) | JobStage::Running | JobStage::Over,
                _,
            )) => {
                panic!("{managed:?} has nodes")
            }
            None if core.queue.iter().any(|waiting| waiting.job == id) => Self::Queued,
            None => Self::Unknown,
        }
    }
}

const JOB: JobId = JobId(1);
const OTHER: JobId = JobId(9);

fn issued(job: JobId, epoch: u32) -> SchedulerEvent {
    SchedulerEvent::EpochIssued { job, epoch: Epoch(epoch) }
}

fn lost(node: &str) -> SchedulerEvent {
    SchedulerEvent::NodeLost { node: node.into(), reason: "killed".into(), returns: true }
}

impl CoreTestGrid {
    /// Clusters ams and del of two nodes each, and vu of two nodes on demand.
    fn of_three() -> Self {
        let mut grid = Self::of(2, OURS);
        grid.site("vu", &["vu-1".into(), "vu-2".into()], Some(5000));
        let found = Ok((2, 0));
        grid.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found }));
        grid
    }

    fn submit_as(&mut self, job: JobId, submit: Submit) {
        self.put(SchedulerEvent::Submit { job, epoch: Epoch(1), submit: Box::new(submit) });
    }

    /// Assigns these nodes to another job.
    fn take(&mut self, clusters: &[(&str, u32)], nodes: &[&str]) {
        self.submit_as(OTHER, submit(Some(clusters), OURS, None));
        self.accept(OTHER.0, nodes);
    }

    /// Creates a grid whose job 1 is in this state.
    fn with(state: JobIs) -> Self {
        let mut grid = Self::of_three();
        let two = || submit(Some(&[("ams", 2)]), OURS, None);
        let standing = |min| {
            let mut submit = needs(JobKind::Rigid, min, min);
            let part = &mut submit.need.as_mut().unwrap().components[0];
            part.clusters = ["ams".into()].into();
            submit
        };
        match state {
            JobIs::Unknown => {}
            JobIs::Queued => {
                grid.take(&[("ams", 2)], &["ams-1", "ams-2"]);
                grid.submit_as(JOB, two());
            }
            JobIs::Waiting => {
                grid.take(&[("ams", 2)], &["ams-1", "ams-2"]);
                grid.submit_as(JOB, standing(1));
            }
            JobIs::WaitingAgain => {
                grid.submit_as(JOB, standing(1));
                grid.accept(JOB.0, &["ams-1"]);
                grid.take(&[("ams", 1)], &["ams-2"]);
                grid.put(lost("ams-1"));
                grid.put(issued(JOB, 2));
            }
            JobIs::Gathering => {
                let mut submit = standing(1);
                let part = &mut submit.need.as_mut().unwrap().components[0];
                part.clusters = ["vu".into()].into();
                grid.submit_as(JOB, submit);
            }
            JobIs::Assigning => grid.submit_as(JOB, two()),
            JobIs::Running => {
                grid.submit_as(JOB, two());
                grid.accept(JOB.0, &["ams-1", "ams-2"]);
            }
            JobIs::CoordinatorSearch => {
                grid.submit_as(JOB, submit(Some(&[("ams", 2), ("del", 1)]), OURS, None));
                grid.accept(JOB.0, &["ams-1", "ams-2", "del-1"]);
                grid.put(lost("ams-1"));
                grid.register("ams-1", 2, OURS);
                grid.put(issued(JOB, 2));
            }
            JobIs::Ending => {
                grid.submit_as(JOB, two());
                grid.accept(JOB.0, &["ams-1", "ams-2"]);
                let (job, epoch, ended) = (JOB, Epoch(1), Some(BTreeSet::new()));
                grid.put(SchedulerEvent::JobOver { job, epoch, ended, ok: true });
            }
            JobIs::Failing => {
                grid.submit_as(JOB, standing(2));
                let node = NodeId::from("ams-2");
                let answer = Err(AssignError::failed(&node, "no threads"));
                grid.put(SchedulerEvent::Assigned { job: JOB, epoch: Epoch(1), node, answer });
            }
            JobIs::ReturningJob => {
                grid.put(lost("ams-1"));
                let (need, begun) = (needs(JobKind::Rigid, 1, 1).need, begun("ams", 1));
                let submit = Box::new(Submit { need, ..submit(None, OURS, None) });
                let (job, epoch, limit) = (JOB, Epoch(1), None);
                let found = RecoveredJob { job, epoch, submit, begun, limit };
                grid.put(SchedulerEvent::Recovered(Box::new(found)));
            }
        }
        grid.put(SchedulerEvent::Tick);
        assert_eq!(JobIs::of(&grid.core, JOB), state);
        grid
    }

    /// Feeds an event, and returns its outcome.
    fn outcome(&mut self, event: SchedulerEvent) -> EventEffect {
        let kept = |core: &SchedulerCore| core.returning.get(&JOB).map_or(0, |job| job.messages());
        let before = (format!("{:?}", self.core), kept(&self.core));
        if refused(&self.core, &event) {
            return EventEffect::Refused;
        }
        let actions = self.core.handle(event, self.now);
        let after = (format!("{:?}", self.core), kept(&self.core));
        match () {
            () if after.1 > before.1 => EventEffect::Kept,
            () if !actions.is_empty() || after.0 != before.0 => EventEffect::Handled,
            () => EventEffect::Ignored("as observed"),
        }
    }
}

/// Whether the actor answers with a typed error before the core gets the event.
fn refused(core: &SchedulerCore, event: &SchedulerEvent) -> bool {
    match event {
        SchedulerEvent::Request(request) => core.check(request.job, request.epoch).is_err(),
        SchedulerEvent::Withdraw(withdraw) => core.check(withdraw.job, withdraw.epoch).is_err(),
        SchedulerEvent::HandOver(order) => core.check(order.job, order.epoch).is_err(),
        SchedulerEvent::Resize(order) | SchedulerEvent::Need { order, .. } => {
            core.check_resize(order).is_err()
        }
        SchedulerEvent::Undrain { nodes } => core.check_nodes(nodes).is_err(),
        _ => false,
    }
}

/// A sample event of a kind, about job 1 and a node that it has, had or could have.
fn sample(kind: Kind, grid: &CoreTestGrid) -> SchedulerEvent {
    let core = &grid.core;
    let held = core.jobs.get(&JOB);
    let node: NodeId = held
        .and_then(|job| job.members.first().or(job.releasing.keys().next()).cloned())
        .unwrap_or_else(|| "ams-1".into());
    sample_of(kind, grid, JOB, node)
}

fn sample_of(kind: Kind, grid: &CoreTestGrid, job: JobId, node: NodeId) -> SchedulerEvent {
    let core = &grid.core;
    let held = core.jobs.get(&job);
    let known = &core.nodes[&node];
    let incarnation =
        known.registration.as_ref().map_or(Incarnation(1), |registration| registration.incarnation);
    let epoch = held.map_or(Epoch(1), |job| job.epoch);
    let client: NodeId = "client-1".into();
    let reason = "test".to_owned();
    let cluster = known.cluster.clone();
    match kind {
        Kind::Expect => SchedulerEvent::Expect { clusters: vec!["bud".into()] },
        Kind::SiteUp => SchedulerEvent::SiteUp(SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster: "bud".into(),
            nodes: vec!["bud-1".into()],
            starts_programs: true,
            keep_ms: None,
            stubs: BTreeSet::new(),
            files: false,
            at: None,
            receives_programs: false,
        }),
        Kind::SitePolled => {
            SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found: Ok((2, 1)) })
        }
        Kind::StubWaits => SchedulerEvent::StubWaits(StubDelay { node, reason }),
        Kind::StubGone => {
            SchedulerEvent::StubGone(StubLoss { node, reason, kind: StubLossKind::Ended })
        }
        Kind::Recovered => {
            let (need, begun) = (needs(JobKind::Rigid, 1, 1).need, begun("ams", 1));
            let submit = Box::new(Submit { need, ..submit(None, OURS, None) });
            let (job, epoch, limit) = (JobId(77), Epoch(1), None);
            SchedulerEvent::Recovered(Box::new(RecoveredJob { job, epoch, submit, begun, limit }))
        }
        Kind::Learned => SchedulerEvent::Learned(Box::default()),
        Kind::FormerHistory => SchedulerEvent::FormerHistory(Vec::new()),
        Kind::Reserved => {
            SchedulerEvent::Reserved(Vec::new(), crate::reservation::ReservationId(7))
        }
        Kind::Registered => SchedulerEvent::Registered(NodeRegistration {
            cluster,
            node,
            incarnation: Incarnation(incarnation.0 + 1),
            address: Address::Memory,
            threads: 1,
            fingerprint: OURS,
            pid: 2,
            hardware: Hardware::default(),
            work: None,
            program: None,
        }),
        Kind::LinkDown => SchedulerEvent::LinkDown { node, why: reason },
        Kind::NodeLost => SchedulerEvent::NodeLost { node, reason, returns: true },
        Kind::MemberSilent => {
            // The report about the job's coordinator comes from the other cluster.
            let coordinates = held.is_some_and(|job| job.view.coordinator.as_ref() == Some(&node));
            let node = match held.filter(|_| coordinates) {
                Some(job) => {
                    let last = job.members.last().or(job.releasing.keys().next_back());
                    last.cloned().unwrap_or(node)
                }
                None => node,
            };
            let (by, voice) = (None, None);
            SchedulerEvent::MemberSilent(MemberSilent {
                job,
                epoch,
                node,
                incarnation,
                reason,
                reporting_cluster: by,
                reporter: voice,
            })
        }
        Kind::SubmitAll => {
            let submit = Box::new(submit(Some(&[("del", 1)]), OURS, None));
            let one = NumberedSubmission { job: JobId(77), epoch: Epoch(1), submit };
            SchedulerEvent::SubmitAll(vec![one])
        }
        Kind::Submit => {
            let submit = Box::new(submit(Some(&[("del", 1)]), OURS, None));
            SchedulerEvent::Submit { job: JobId(77), epoch: Epoch(1), submit }
        }
        Kind::Assigned => SchedulerEvent::Assigned { job, epoch, node, answer: Ok(()) },
        Kind::Released => SchedulerEvent::Released { job, node, incarnation, ok: true },
        Kind::JobOver => SchedulerEvent::JobOver { job, epoch, ended: None, ok: true },
        Kind::Cancel => SchedulerEvent::Cancel { job, reason },
        Kind::CancelOf => SchedulerEvent::CancelOf { client, reason },
        Kind::CancelFailed => SchedulerEvent::CancelFailed { job, reason },
        Kind::Link => SchedulerEvent::Link { node, up: false },
        Kind::Request => {
            let request = SchedulerRequest { count: 1.into(), ..SchedulerRequest::default() };
            let (benchmark, rtt_s, bandwidth) = (None, BTreeMap::new(), BTreeMap::new());
            let asked = RequestNodes { job, epoch, request, benchmark, rtt_s, bandwidth };
            SchedulerEvent::Request(Box::new(asked))
        }
        Kind::Withdraw => SchedulerEvent::Withdraw(WithdrawNodes { job, epoch, count: 1.into() }),
        Kind::GrantAcknowledged => SchedulerEvent::GrantAcknowledged { job, grant: 1, ok: true },
        Kind::Freed => {
            let coordinates = held.is_some_and(|job| job.view.coordinator.as_ref() == Some(&node));
            let node = match held.filter(|_| coordinates) {
                Some(job) => {
                    let last = job.members.last().or(job.releasing.keys().next_back());
                    last.cloned().unwrap_or(node)
                }
                None => node,
            };
            SchedulerEvent::Freed(NodeFreed {
                job,
                epoch,
                node,
                incarnation,
                why: ReleaseReason::Left,
            })
        }
        Kind::HandOver => {
            SchedulerEvent::HandOver(HandOver { job, epoch, to: "ams-2".into(), reason })
        }
        Kind::Subscribe => {
            SchedulerEvent::Subscribe(Subscribe { job, epoch, faster_than: Some(1.0) })
        }
        Kind::SpeedsMeasured => {
            let (spec, speeds) = (SpecId(7), BTreeMap::from([(node, 2.0)]));
            SchedulerEvent::SpeedsMeasured(SpeedsMeasured { job, epoch, spec, speeds })
        }
        Kind::Measured => {
            let answer = Ok(SpeedMeasurement { speed: 1.0, relative_error: None });
            SchedulerEvent::Measured { node, incarnation, answer }
        }
        Kind::Drain => {
            let order = Drain { nodes: vec![node], reason, deadline_ms: None, incarnation: None };
            SchedulerEvent::Drain { drain: 1, order }
        }
        Kind::Marked => {
            SchedulerEvent::Marked { nodes: BTreeMap::from([("bud-1".into(), reason)]) }
        }
        Kind::Undrain => SchedulerEvent::Undrain { nodes: vec![node] },
        Kind::AskLeaveFailed => SchedulerEvent::AskLeaveFailed { job, nodes: vec![node] },
        Kind::EpochIssued => issued(job, epoch.0 + 1),
        // A node of another cluster than that of the lost one is asked first.
        Kind::TakeOverAnswered => {
            SchedulerEvent::TakeOverAnswered { job, node: "del-1".into(), answer: Ok(()) }
        }
        Kind::RootAdvanced => {
            let reached = RootProgress { iterations: 3, ..RootProgress::default() };
            SchedulerEvent::RootAdvanced(RootAdvanced { job, epoch, reached })
        }
        Kind::Answered => SchedulerEvent::Answered { job, change: 1, count: Some(1) },
        Kind::CloseFailed => SchedulerEvent::CloseFailed { nodes: vec![node] },
        Kind::EfficiencyMeasured => SchedulerEvent::EfficiencyMeasured(JobEfficiency {
            job,
            epoch,
            efficiency: 0.5,
            processors: 1,
        }),
        Kind::Resize | Kind::Need => {
            let by = Resize::Grow { count: 1, timeout_ms: None, cluster: None };
            let order = ResizeJob { job, by };
            match kind {
                Kind::Need => SchedulerEvent::Need { order, number: 1 },
                _ => SchedulerEvent::Resize(order),
            }
        }
        Kind::ProgramReported => SchedulerEvent::ProgramReported(ProgramReport {
            cluster: "ams".into(),
            digest: ProgramDigest([1; 32]),
            state: ProgramState::Sending { received: 1, bytes: 2 },
        }),
        Kind::FilesReported => SchedulerEvent::FilesReported(FilesReport {
            cluster: "ams".into(),
            files: Ok(Vec::new()),
        }),
        Kind::FileFetched => {
            let file = FileEntry { name: "a".into(), bytes: 1, sum: "0".repeat(64) };
            let brought = FetchResult { from: None, bytes: 1, seconds: 1.0 };
            SchedulerEvent::FileFetched { job, ask: 1, answer: Ok((file, brought)) }
        }
        Kind::Audited => {
            let found = Some(JobAudit { coordinates: false, members: None });
            SchedulerEvent::Audited { job, node, incarnation, found }
        }
        Kind::Poll => SchedulerEvent::Poll,
        Kind::Tick => SchedulerEvent::Tick,
    }
}

/// A state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeIs {
    Starting,
    Idle,
    /// A member of a job, not its coordinator's node.
    Busy,
    Measuring,
    Broken,
    Off,
    Closing,
}

impl NodeIs {
    const ALL: [Self; 7] = [
        Self::Starting,
        Self::Idle,
        Self::Busy,
        Self::Measuring,
        Self::Broken,
        Self::Off,
        Self::Closing,
    ];

    fn of(state: PoolNodeState) -> Self {
        match state {
            PoolNodeState::Starting => Self::Starting,
            PoolNodeState::Idle => Self::Idle,
            PoolNodeState::Busy(_) => Self::Busy,
            PoolNodeState::Measuring(_) => Self::Measuring,
            PoolNodeState::Broken => Self::Broken,
            PoolNodeState::Off => Self::Off,
            PoolNodeState::Closing => Self::Closing,
        }
    }

    /// A grid with a node in this state, and its name.
    fn grid(self) -> (CoreTestGrid, NodeId) {
        let mut grid = CoreTestGrid::of_three();
        let mut node = NodeId::from("ams-2");
        match self {
            Self::Starting => drop(grid.put(lost("ams-2"))),
            Self::Idle => {}
            Self::Busy => grid = CoreTestGrid::with(JobIs::Running),
            Self::Measuring => {
                let unit = super::super::speeds::Unit::of(SpecId(7), OTHER);
                grid.core.nodes.get_mut(&node).unwrap().state = PoolNodeState::Measuring(unit);
            }
            Self::Broken => {
                let (node, reason) = (node.clone(), "killed".to_owned());
                grid.put(SchedulerEvent::NodeLost { node, reason, returns: false });
            }
            Self::Off => node = "vu-1".into(),
            Self::Closing => {
                node = "vu-1".into();
                grid.core.nodes.get_mut(&node).unwrap().state = PoolNodeState::Closing;
            }
        }
        grid.put(SchedulerEvent::Tick);
        assert_eq!(Self::of(grid.core.nodes[&node].state), self);
        (grid, node)
    }
}

/// Subject of an event, which decides on its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestSubject {
    Job,
    Node,
    Both,
    Grid,
}

fn about(kind: Kind) -> TestSubject {
    match kind {
        Kind::JobOver
        | Kind::Cancel
        | Kind::CancelOf
        | Kind::CancelFailed
        | Kind::Request
        | Kind::Withdraw
        | Kind::GrantAcknowledged
        | Kind::HandOver
        | Kind::Subscribe
        | Kind::EpochIssued
        | Kind::TakeOverAnswered
        | Kind::RootAdvanced
        | Kind::Answered
        | Kind::EfficiencyMeasured
        | Kind::Resize
        | Kind::Need
        | Kind::FileFetched => TestSubject::Job,
        Kind::StubWaits
        | Kind::StubGone
        | Kind::Registered
        | Kind::LinkDown
        | Kind::Link
        | Kind::Measured
        | Kind::Drain
        | Kind::Undrain
        | Kind::CloseFailed => TestSubject::Node,
        Kind::MemberSilent
        | Kind::NodeLost
        | Kind::Assigned
        | Kind::Released
        | Kind::Freed
        | Kind::SpeedsMeasured
        | Kind::AskLeaveFailed
        | Kind::Audited => TestSubject::Both,
        Kind::Expect
        | Kind::SiteUp
        | Kind::SitePolled
        | Kind::Recovered
        | Kind::Reserved
        | Kind::Learned
        | Kind::FormerHistory
        | Kind::Submit
        | Kind::SubmitAll
        | Kind::Marked
        | Kind::FilesReported
        | Kind::ProgramReported
        | Kind::Poll
        | Kind::Tick => TestSubject::Grid,
    }
}

use EventEffect::{Handled as H, Ignored as I, Kept as K, Refused as R};

const NO_JOB: &str =
    "there is no such job: its coordinator ends, and its nodes ask whether they belong to it";
const WAITS: &str = "no process has authority over a job that has not started";
const COUNTED: &str = "the answer is outdated: the job runs, or its nodes are released";
const RELEASED: &str = "all nodes of the job are being released, and are free when they answer";
const ENDING: &str = "the job ends, and with it all that its coordinator wanted";
const NOT_RELEASED: &str = "the node was not ordered to end a job, or another incarnation was";
const SETTLED: &str = "the event that ended the grant has released its nodes";
const NOT_OPEN: &str = "the answer shows that no request is open";
const SOUGHT: &str = "another coordinator is being sought already";
const AGAIN: &str = "it is measured and reported again each period";
const NOT_ASKED: &str = "no node was ordered to leave";
const FENCED: &str = "the epoch fences earlier coordinators, and the job needs none";
const REPLACED: &str = "the view of a later epoch replaces this coordinator";
const PLAIN: &str = "the manager does not have the job";
const NO_CHANGE: &str = "no such transfer is under way, or it was cancelled";
const NOT_AUDITED: &str = "the audit was of another state, and the next one follows";
const NOT_MEASURED: &str = "the measurement ended with its incarnation";
const NO_STUB: &str = "only a stub that never registered waits for its processor";
const SITE_TELLS: &str = "the node's site observes the end of its process";
const OPENED: &str = "the node is no longer being stopped";
const NO_TIME: &str = "nothing has changed, and no time has passed";

/// Expected outcomes, by the states in [`JobIs::ALL`].
fn job_row(kind: Kind) -> [EventEffect; JobIs::ALL.len()] {
    // Outcomes of messages of a job's coordinator, which only a started job has.
    let of_coordinator = |assigning, running, search, returning| {
        let [w, e] = [I(WAITS), I(ENDING)];
        [I(NO_JOB), w, w, w, w, assigning, running, search, e, e, returning]
    };
    match kind {
        Kind::MemberSilent => {
            let w = I(WAITS);
            [I(NO_JOB), w, w, w, w, H, H, H, H, H, K]
        }
        Kind::NodeLost => [H; 11],
        Kind::Assigned => {
            let c = I(COUNTED);
            [I(NO_JOB), I(WAITS), I(WAITS), I(WAITS), I(WAITS), H, c, c, c, c, c]
        }
        Kind::Released => {
            let n = I(NOT_RELEASED);
            [n, n, n, n, n, n, n, n, H, H, n]
        }
        // A job that waits again has ended for its client before its start failed.
        Kind::JobOver => [I(NO_JOB), I(WAITS), I(WAITS), H, I(WAITS), H, H, H, I(RELEASED), H, H],
        Kind::Cancel | Kind::CancelOf | Kind::CancelFailed => {
            [I(NO_JOB), H, H, H, H, H, H, H, I(RELEASED), H, H]
        }
        Kind::Request => [R, R, R, R, R, H, H, H, R, R, K],
        Kind::Withdraw => {
            let n = I(NOT_OPEN);
            [R, R, R, R, R, n, n, n, R, R, K]
        }
        Kind::GrantAcknowledged => [I(SETTLED); 11],
        Kind::Freed => {
            let r = I(RELEASED);
            [I(NO_JOB), I(WAITS), I(WAITS), I(WAITS), I(WAITS), H, H, H, r, r, K]
        }
        Kind::HandOver => [R, R, R, R, R, H, H, I(SOUGHT), R, R, K],
        Kind::Subscribe | Kind::RootAdvanced => of_coordinator(H, H, H, K),
        Kind::SpeedsMeasured => of_coordinator(H, H, H, I(AGAIN)),
        Kind::AskLeaveFailed => [I(NOT_ASKED); 11],
        Kind::EpochIssued => {
            let f = I(FENCED);
            [f, f, f, f, f, f, f, H, f, H, f]
        }
        Kind::TakeOverAnswered => {
            let r = I(REPLACED);
            [r, r, r, r, r, r, r, H, r, r, r]
        }
        // For jobs of the manager, it is recorded in the history.
        Kind::Answered => {
            let p = I(PLAIN);
            [p, p, H, H, H, p, p, p, p, H, p]
        }
        Kind::EfficiencyMeasured => {
            let p = I(PLAIN);
            let w = I(WAITS);
            [p, p, w, w, w, p, p, p, p, I(ENDING), I(AGAIN)]
        }
        Kind::Resize | Kind::Need => [R; 11],
        Kind::FileFetched => [I(NO_CHANGE); 11],
        Kind::Audited => {
            let n = I(NOT_AUDITED);
            [n, n, n, n, n, n, H, n, n, n, n]
        }
        Kind::StubWaits
        | Kind::StubGone
        | Kind::Registered
        | Kind::LinkDown
        | Kind::Link
        | Kind::Measured
        | Kind::Drain
        | Kind::Undrain
        | Kind::CloseFailed
        | Kind::Expect
        | Kind::SiteUp
        | Kind::SitePolled
        | Kind::Recovered
        | Kind::Reserved
        | Kind::Learned
        | Kind::FormerHistory
        | Kind::Submit
        | Kind::SubmitAll
        | Kind::Marked
        | Kind::FilesReported
        | Kind::ProgramReported
        | Kind::Poll
        | Kind::Tick => panic!("{kind:?} is about no job"),
    }
}

/// Expected outcomes, by the states in [`NodeIs::ALL`].
fn node_row(kind: Kind) -> [EventEffect; NodeIs::ALL.len()] {
    let busy_only = |why| {
        let w = I(why);
        [w, w, H, w, w, w, w]
    };
    match kind {
        Kind::StubWaits => [I(NO_STUB); 7],
        Kind::StubGone | Kind::Registered | Kind::Link | Kind::NodeLost => [H; 7],
        Kind::Drain | Kind::Undrain => [H; 7],
        Kind::LinkDown => [I(SITE_TELLS); 7],
        Kind::MemberSilent | Kind::Freed | Kind::SpeedsMeasured => busy_only(NO_JOB),
        Kind::Assigned => [I(COUNTED); 7],
        Kind::Released => [I(NOT_RELEASED); 7],
        Kind::Measured => {
            let n = I(NOT_MEASURED);
            [n, n, n, H, n, n, n]
        }
        Kind::CloseFailed => {
            let o = I(OPENED);
            [o, o, o, o, o, o, H]
        }
        Kind::AskLeaveFailed => [I(NOT_ASKED); 7],
        Kind::Audited => [I(NOT_AUDITED); 7],
        Kind::JobOver
        | Kind::Cancel
        | Kind::CancelOf
        | Kind::CancelFailed
        | Kind::Request
        | Kind::Withdraw
        | Kind::GrantAcknowledged
        | Kind::HandOver
        | Kind::Subscribe
        | Kind::EpochIssued
        | Kind::TakeOverAnswered
        | Kind::RootAdvanced
        | Kind::Answered
        | Kind::EfficiencyMeasured
        | Kind::Resize
        | Kind::Need
        | Kind::FileFetched
        | Kind::Expect
        | Kind::SiteUp
        | Kind::SitePolled
        | Kind::Recovered
        | Kind::Reserved
        | Kind::Learned
        | Kind::FormerHistory
        | Kind::Submit
        | Kind::SubmitAll
        | Kind::Marked
        | Kind::FilesReported
        | Kind::ProgramReported
        | Kind::Poll
        | Kind::Tick => panic!("{kind:?} is about no node"),
    }
}

fn of(which: &'static [TestSubject]) -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().filter(|kind| which.contains(&about(*kind)))
}

#[test]
fn each_event_in_each_job_state_has_its_outcome() {
    check(of(&[TestSubject::Job, TestSubject::Both]), JobIs::ALL, job_row, |kind, state| {
        let mut grid = CoreTestGrid::with(state);
        let event = sample(kind, &grid);
        assert_eq!(Kind::of(&event), kind);
        grid.outcome(event)
    });
}

#[test]
fn each_event_in_each_node_state_has_its_outcome() {
    check(of(&[TestSubject::Node, TestSubject::Both]), NodeIs::ALL, node_row, |kind, state| {
        let (mut grid, node) = state.grid();
        let event = sample_of(kind, &grid, JOB, node);
        assert_eq!(Kind::of(&event), kind);
        grid.outcome(event)
    });
}

#[test]
fn events_of_the_whole_grid_are_handled() {
    let row = |kind| match kind {
        Kind::Poll | Kind::Tick => [I(NO_TIME)],
        _ => [H],
    };
    check(of(&[TestSubject::Grid]), [()], row, |kind, ()| {
        let mut grid = CoreTestGrid::with(JobIs::Unknown);
        let event = sample(kind, &grid);
        assert_eq!(Kind::of(&event), kind);
        grid.outcome(event)
    });
}
