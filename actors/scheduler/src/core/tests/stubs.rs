//! Clusters with processors on demand: a batch system with local users.

use std::time::Duration;

use proptest::prelude::*;

use super::super::node::PoolNodeState;
use super::managed::needs;
use super::*;
use crate::manager::{Approach, Kind};
use crate::policy::malleability::{HostCapacity, HostShare};
use crate::scheduler::{
    Drain, JobState, NodeFreed, NodeWork, ReleaseReason, SiteReport, StubLoss, StubLossKind,
};

const KEEP: Duration = Duration::from_secs(5);

impl CoreTestGrid {
    /// A cluster vu with at most `nodes` nodes.
    fn on_demand(nodes: u32, settings: ManagerSettings) -> Self {
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

    fn polled(&mut self, size: u32, others: u32) -> Vec<String> {
        let found = Ok((size, others));
        let mut out =
            self.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found }));
        // Freed processors are gathered for a moment.
        out.extend(self.after(Duration::from_millis(500)));
        out
    }

    fn gone(&mut self, node: &str) -> Vec<String> {
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

/// A batch system, with the states of its stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stub {
    Pending,
    Runs,
}

#[derive(Clone, Debug)]
enum StubStep {
    Submit(Kind, u32, u32),
    /// The n-th pending event happens.
    Next(usize, bool, u32),
    Users(u32),
    Poll(bool),
    Lose(usize),
    Free(usize),
    Over(usize),
    Cancel(usize),
    Drain(usize),
    /// The processor of a node will be taken away after these milliseconds.
    Revoke(usize, u64),
    Undrain(usize),
    Wait(u64),
    SiteAnew,
    /// The scheduler dies, and another starts with the store's contents.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<StubStep>> {
    let kind = prop::sample::select(Kind::ALL);
    let ok = prop::bool::weighted(0.85);
    prop::collection::vec(
        prop_oneof![
            4 => (kind, 1u32..4, 0u32..6)
                .prop_map(|(kind, min, more)| StubStep::Submit(kind, min, more)),
            16 => (any::<usize>(), ok, 0u32..6)
                .prop_map(|(n, ok, count)| StubStep::Next(n, ok, count)),
            3 => (0u32..7).prop_map(StubStep::Users),
            4 => prop::bool::weighted(0.8).prop_map(StubStep::Poll),
            2 => (0usize..6).prop_map(StubStep::Lose),
            4 => (0usize..6).prop_map(StubStep::Free),
            2 => (1usize..8).prop_map(StubStep::Over),
            1 => (1usize..8).prop_map(StubStep::Cancel),
            1 => (0usize..6).prop_map(StubStep::Drain),
            3 => (0usize..6, 1u64..60_000).prop_map(|(n, ms)| StubStep::Revoke(n, ms)),
            1 => (0usize..6).prop_map(StubStep::Undrain),
            6 => (1u64..40_000).prop_map(StubStep::Wait),
            1 => Just(StubStep::SiteAnew),
            2 => Just(StubStep::Crash),
        ],
        1..90,
    )
}

/// Pending events of all parties.
#[derive(Clone, Debug, PartialEq)]
enum PendingEvent {
    Assigned(JobId, Epoch, NodeId),
    Released(JobId, NodeId, Incarnation),
    Count(JobId, u64, u32),
    Grant(JobId, u64),
    /// The batch system starts it, if a processor is free.
    Starts(NodeId),
    /// It has been stopped.
    Ends(NodeId),
    /// A node registers with a new scheduler.
    Comes(NodeId, Option<NodeWork>),
}

/// How many processors nodes have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NodeSizes {
    /// Each has this number.
    Fixed(u32),
    /// Each has a share of one of two hosts.
    Shares,
}

struct StubBatch {
    sizes: NodeSizes,
    /// Nodes whose end was ordered by a scheduler that has died, or through a site that has.
    outliving: BTreeSet<NodeId>,
    /// Shares of the nodes that were started last.
    shares: BTreeMap<NodeId, HostShare>,
    grid: CoreTestGrid,
    pending_events: Vec<PendingEvent>,
    size: u32,
    users: u32,
    stubs: BTreeMap<NodeId, Stub>,
    incarnations: BTreeMap<NodeId, u64>,
    settings: ManagerSettings,
    /// Contents of the disk.
    store: BTreeMap<JobId, (Epoch, Box<Submit>, Option<StartRecord>)>,
}

impl StubBatch {
    fn new(sizes: NodeSizes, settings: ManagerSettings) -> Self {
        let grid = CoreTestGrid::on_demand(6, settings.clone());
        let (pending_events, stubs, incarnations) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let store = BTreeMap::new();
        let size = match sizes {
            NodeSizes::Fixed(each) => 7 * each,
            NodeSizes::Shares => 6,
        };
        let (users, shares, outliving) = (0, BTreeMap::new(), BTreeSet::new());
        let mut batch = Self {
            outliving,
            sizes,
            shares,
            grid,
            pending_events,
            size,
            users,
            stubs,
            incarnations,
            settings,
            store,
        };
        let up = batch.site();
        batch.put(up);
        batch
    }

    /// Processors of a node.
    fn threads(&self, node: &NodeId) -> u32 {
        match self.sizes {
            NodeSizes::Fixed(each) => each,
            NodeSizes::Shares => self.shares[node].processors.len() as u32,
        }
    }

    /// Checks that nodes share no processor, but for those that are being ended.
    fn check_shares(&self) {
        let ends = |node: &NodeId| self.pending_events.contains(&PendingEvent::Ends(node.clone()));
        let mut taken = BTreeSet::new();
        for node in self.stubs.keys().filter(|node| !ends(node) && !self.outliving.contains(*node))
        {
            let Some(share) = self.shares.get(node) else { continue };
            for processor in &share.processors {
                let first = taken.insert((&share.host, processor));
                assert!(first, "{processor} of {} is given twice", share.host);
            }
        }
    }

    fn site(&self) -> SchedulerEvent {
        SchedulerEvent::SiteUp(SiteRegistration {
            joins: false,
            cluster: "vu".into(),
            nodes: (0..6).map(Self::node).collect(),
            starts_programs: true,
            keep_ms: Some(5000),
            stubs: self.stubs.keys().cloned().collect(),
            files: false,
            at: None,
            threads: match self.sizes {
                NodeSizes::Fixed(each) => each,
                NodeSizes::Shares => 0,
            },
            hosts: match self.sizes {
                NodeSizes::Fixed(_) => Vec::new(),
                NodeSizes::Shares => [("n1", 4), ("n2", 2)]
                    .map(|(host, processors)| HostCapacity {
                        host: host.to_owned(),
                        processors,
                        ..HostCapacity::default()
                    })
                    .into(),
            },
            shares: self
                .shares
                .iter()
                .filter(|(node, _)| self.stubs.contains_key(*node))
                .map(|(node, share)| (node.clone(), share.clone()))
                .collect(),
            receives_programs: false,
        })
    }

    fn comes(&mut self, node: NodeId, work: Option<NodeWork>) {
        let registration = registration(node.as_str(), self.incarnations[&node]);
        let threads = self.threads(&node);
        self.put(SchedulerEvent::Registered(NodeRegistration { threads, work, ..registration }));
    }

    /// Pending orders to end nodes are lost.
    fn lose_ends(&mut self) {
        self.pending_events.retain(|event| match event {
            PendingEvent::Ends(node) => {
                self.outliving.insert(node.clone());
                false
            }
            _ => true,
        });
    }

    /// All messages from and to the scheduler are lost. The nodes and the batch system continue.
    fn crash(&mut self) {
        let core = SchedulerCore::new(contact("head"), self.settings.clone(), self.grid.now);
        let old = std::mem::replace(&mut self.grid.core, core);
        self.lose_ends();
        self.pending_events
            .retain(|pending_events| matches!(pending_events, PendingEvent::Starts(_)));
        self.put(SchedulerEvent::Expect { clusters: vec!["vu".into()] });
        for (job, (epoch, submit, begun)) in self.store.clone() {
            let found = RecoveredJob { job, epoch, submit, begun, limit: None };
            self.put(SchedulerEvent::Recovered(Box::new(found)));
        }
        // A node that was cancelled but has not ended counts as running.
        for (node, stub) in &self.stubs {
            if *stub == Stub::Pending
                && !self.pending_events.contains(&PendingEvent::Starts(node.clone()))
            {
                self.pending_events.push(PendingEvent::Starts(node.clone()));
            }
        }
        // Orders of the earlier scheduler to the site have ended with it.
        let up = self.site();
        self.put(up);
        self.poll(true);
        for (node, _) in self.stubs.clone().into_iter().filter(|(_, stub)| *stub == Stub::Runs) {
            if self.pending_events.contains(&PendingEvent::Starts(node.clone())) {
                continue; // it is being restarted
            }
            let works = match old.nodes[&node].state {
                PoolNodeState::Busy(job) => Some(job),
                _ => None,
            };
            let work = works.map(|id| {
                let job = old.jobs.get(&id);
                let mut view = View { epoch: Epoch(1), version: 1, ..View::default() };
                for member in job.into_iter().flat_map(|job| &job.members) {
                    if let Some(registration) = &old.nodes[member].registration {
                        view.members
                            .insert(member.clone(), super::super::node::member(registration));
                    }
                }
                view.epoch = job.map_or(Epoch(1), |job| job.epoch);
                let first = view.members.keys().next().cloned();
                view.coordinator = job.and_then(|job| job.view.coordinator.clone()).or(first);
                let runs = job.is_some_and(|job| job.state == JobState::Running);
                let knows = runs && view.coordinator.as_ref() == Some(&node);
                NodeWork { job: id, view: knows.then_some(view) }
            });
            self.pending_events.push(PendingEvent::Comes(node, work));
        }
    }

    fn node(n: usize) -> NodeId {
        format!("vu-{}", n + 1).into()
    }

    fn put(&mut self, event: SchedulerEvent) {
        let mut epochs = Vec::new();
        for action in self.grid.core.handle(event, self.grid.now) {
            match action {
                SchedulerAction::Assign { node, assign } => {
                    assert_eq!(
                        self.stubs.get(&node),
                        Some(&Stub::Runs),
                        "{node} is assigned to a job"
                    );
                    self.pending_events.push(PendingEvent::Assigned(
                        assign.spec.id,
                        assign.spec.epoch,
                        node,
                    ));
                }
                SchedulerAction::Release { node, incarnation, job, .. } => {
                    self.pending_events.push(PendingEvent::Released(job, node, incarnation));
                }
                SchedulerAction::OfferGrowth(asking)
                | SchedulerAction::AskShrink { asking, .. } => {
                    self.pending_events.push(PendingEvent::Count(
                        asking.job,
                        asking.change,
                        asking.count,
                    ));
                }
                SchedulerAction::GrantNodes { job, grant, nodes, .. } => {
                    for granted in &nodes {
                        let stub = self.stubs.get(&granted.node);
                        assert_eq!(stub, Some(&Stub::Runs), "{} is granted", granted.node);
                    }
                    self.pending_events.push(PendingEvent::Grant(job, grant));
                }
                SchedulerAction::HoldStubs { nodes, shares, .. } => {
                    self.shares.extend(shares);
                    for node in nodes {
                        let before = self.stubs.insert(node.clone(), Stub::Pending);
                        assert_eq!(before, None, "{node} is held twice");
                        self.pending_events.push(PendingEvent::Starts(node));
                    }
                    self.check_shares();
                }
                SchedulerAction::CloseStubs { nodes, .. } => {
                    for node in nodes {
                        assert!(
                            self.stubs.contains_key(&node),
                            "{node} is closed and does not exist"
                        );
                        assert!(
                            !self.pending_events.contains(&PendingEvent::Ends(node.clone())),
                            "{node} is closed twice"
                        );
                        self.pending_events.retain(|pending_events| {
                            *pending_events != PendingEvent::Starts(node.clone())
                        });
                        self.pending_events.push(PendingEvent::Ends(node));
                    }
                }
                // It runs again on its held processor.
                SchedulerAction::Replace { nodes, .. } => {
                    for node in nodes {
                        assert_eq!(self.stubs.get(&node), Some(&Stub::Runs), "{node} is restarted");
                        self.pending_events.push(PendingEvent::Starts(node));
                    }
                }
                SchedulerAction::StoreStart { job, begun } => {
                    self.store.get_mut(&job).unwrap().2 = Some(begun)
                }
                SchedulerAction::Forget { job } => drop(self.store.remove(&job)),
                SchedulerAction::NewEpoch { job, known } => {
                    let epoch = Epoch(known.0 + 1);
                    if let Some((last, ..)) = self.store.get_mut(&job) {
                        assert!(*last < epoch, "{job}: an epoch is issued twice");
                        *last = epoch;
                    }
                    epochs.push(SchedulerEvent::EpochIssued { job, epoch });
                }
                _ => {}
            }
        }
        epochs.into_iter().for_each(|event| self.put(event));
        // Reserved nodes belong to jobs that know of them.
        for (id, node) in &self.grid.core.nodes {
            let there = self.stubs.contains_key(id);
            assert_eq!(node.state != PoolNodeState::Off, there, "{id} is {node:?}");
        }
    }

    fn used(&self) -> u32 {
        let runs = self.stubs.iter().filter(|(_, stub)| **stub == Stub::Runs);
        runs.map(|(node, _)| self.threads(node)).sum::<u32>() + self.users
    }

    fn ends(&mut self, node: &NodeId) {
        if self.stubs.remove(node).is_some() {
            self.outliving.remove(node);
            self.pending_events.retain(|pending_events| match pending_events {
                PendingEvent::Starts(of) | PendingEvent::Ends(of) | PendingEvent::Comes(of, _) => {
                    of != node
                }
                _ => true,
            });
            let reason = "it was cancelled".to_owned();
            self.put(SchedulerEvent::StubGone(StubLoss {
                node: node.clone(),
                reason,
                kind: StubLossKind::Ended,
            }));
        }
    }

    fn next(&mut self, pending_events: PendingEvent, ok: bool, count: u32) {
        match pending_events {
            PendingEvent::Assigned(job, epoch, node) => {
                let failed = || AssignError::failed(&node, "no".to_owned());
                let answer = if ok { Ok(()) } else { Err(failed()) };
                self.put(SchedulerEvent::Assigned { job, epoch, node, answer });
            }
            PendingEvent::Released(job, node, incarnation) => {
                self.put(SchedulerEvent::Released { job, node, incarnation, ok });
            }
            PendingEvent::Count(job, change, of) => {
                let count = ok.then_some(count.min(of));
                self.put(SchedulerEvent::Answered { job, change, count });
            }
            PendingEvent::Grant(job, grant) => {
                self.put(SchedulerEvent::GrantAcknowledged { job, grant, ok })
            }
            PendingEvent::Starts(node) => {
                let runs = self.stubs[&node] == Stub::Runs;
                let fixed = self.sizes != NodeSizes::Shares;
                if !runs && fixed && self.used() + self.threads(&node) > self.size {
                    // It stays in the queue.
                    return self.pending_events.push(PendingEvent::Starts(node));
                }
                self.stubs.insert(node.clone(), Stub::Runs);
                *self.incarnations.entry(node.clone()).or_default() += 1;
                if ok {
                    self.grid.now += Duration::from_millis(1);
                    self.comes(node, None);
                } else {
                    self.ends(&node);
                }
            }
            PendingEvent::Comes(node, work) => self.comes(node, work),
            PendingEvent::Ends(node) => {
                self.pending_events.push(PendingEvent::Ends(node.clone()));
                self.ends(&node);
            }
        }
    }

    fn poll(&mut self, ok: bool) {
        let found = if ok { Ok((self.size, self.users)) } else { Err("it hangs".to_owned()) };
        self.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found }));
    }

    fn step(&mut self, step: StubStep) {
        let id = |job: usize| JobId(job as u64);
        match step {
            StubStep::Submit(kind, min, more) => {
                self.grid.jobs += 1;
                let mut submit = Box::new(needs(kind, min, min + more));
                if let Some(need) = submit.need.as_mut().filter(|_| min == 2) {
                    need.node.processors = more % 3;
                }
                let (job, epoch) = (JobId(self.grid.jobs), Epoch(1));
                self.store.insert(job, (epoch, submit.clone(), None));
                self.put(SchedulerEvent::Submit { job, epoch, submit });
            }
            StubStep::Crash => self.crash(),
            StubStep::Next(n, ok, count) if !self.pending_events.is_empty() => {
                let pending_events = self.pending_events.remove(n % self.pending_events.len());
                self.next(pending_events, ok, count);
            }
            StubStep::Next(..) => {}
            StubStep::Users(count) => {
                let ours = self.used() - self.users;
                if self.sizes != NodeSizes::Shares {
                    self.users = count.min(self.size - ours);
                }
            }
            StubStep::Poll(ok) => self.poll(ok),
            StubStep::Lose(n) => self.ends(&Self::node(n)),
            StubStep::Free(n) => {
                let node = Self::node(n);
                let PoolNodeState::Busy(job) = self.grid.core.nodes[&node].state else { return };
                let incarnation = self.grid.incarnation_of(&node);
                let epoch = self.grid.core.jobs.get(&job).map_or(Epoch(1), |job| job.epoch);
                let why = ReleaseReason::Left;
                self.put(SchedulerEvent::Freed(NodeFreed { job, epoch, node, incarnation, why }));
            }
            StubStep::Over(job) => {
                let epoch = self.grid.core.jobs.get(&id(job)).map_or(Epoch(1), |job| job.epoch);
                self.put(SchedulerEvent::JobOver { job: id(job), epoch, ended: None, ok: true });
            }
            StubStep::Cancel(job) => {
                self.put(SchedulerEvent::Cancel { job: id(job), reason: "no".to_owned() })
            }
            StubStep::Drain(n) => {
                let nodes = vec![Self::node(n)];
                let order =
                    Drain { nodes, reason: "no".to_owned(), deadline_ms: None, incarnation: None };
                self.put(SchedulerEvent::Drain { drain: 1, order });
            }
            StubStep::Revoke(n, ms) => {
                let node = Self::node(n);
                let registered = |node: &super::super::PoolNode| node.registration.is_some();
                if !self.grid.core.nodes.get(&node).is_some_and(registered) {
                    return;
                }
                let incarnation = Some(self.grid.incarnation_of(&node));
                let (nodes, reason) = (vec![node], "its time limit is near".to_owned());
                let order = Drain { nodes, reason, deadline_ms: Some(ms), incarnation };
                self.put(SchedulerEvent::Drain { drain: 2, order });
            }
            StubStep::Undrain(n) => {
                self.put(SchedulerEvent::Undrain { nodes: vec![Self::node(n)] })
            }
            StubStep::Wait(ms) => {
                self.grid.now += Duration::from_millis(ms);
                self.put(SchedulerEvent::Tick);
            }
            StubStep::SiteAnew => {
                // Unfinished orders are lost with it.
                let pending = |(_, stub): &(&NodeId, &Stub)| **stub == Stub::Pending;
                let lost: Vec<NodeId> =
                    self.stubs.iter().filter(pending).map(|(node, _)| node.clone()).collect();
                for node in &lost {
                    self.stubs.remove(node);
                    self.pending_events.retain(|pending_events| {
                        *pending_events != PendingEvent::Starts(node.clone())
                            && *pending_events != PendingEvent::Ends(node.clone())
                    });
                }
                // Its order to release was lost, or is unfinished.
                self.lose_ends();
                let up = self.site();
                self.put(up);
            }
        }
    }

    /// All pending events happen and all jobs end: then no stub is held, and no processor booked.
    fn end(&mut self) {
        self.users = 0;
        self.put(SchedulerEvent::Undrain { nodes: (0..6).map(Self::node).collect() });
        for _ in 0..400 {
            self.poll(true);
            while let Some(pending_events) = self.pending_events.pop() {
                self.next(pending_events, true, 0);
            }
            for job in self.grid.core.status().jobs {
                match job.state {
                    JobState::Queued => {
                        self.put(SchedulerEvent::Cancel { job: job.job, reason: "end".to_owned() });
                    }
                    _ => {
                        let job = job.job;
                        let epoch = self.grid.core.jobs.get(&job).map_or(Epoch(1), |job| job.epoch);
                        self.put(SchedulerEvent::JobOver { job, epoch, ended: None, ok: true });
                        self.put(SchedulerEvent::Cancel { job, reason: "end".to_owned() });
                    }
                }
            }
            self.grid.now += Duration::from_secs(1);
            self.put(SchedulerEvent::Tick);
        }
        assert_eq!(self.grid.core.status().jobs, []);
        assert!(self.store.is_empty(), "{:?} are kept forever", self.store.keys());
        assert!(self.stubs.is_empty(), "{:?} {:?}", self.stubs, self.grid.core.status());
        assert_eq!(self.grid.core.managing.booked(&"vu".into()), 0);
        assert_eq!(self.grid.core.work_due(), None);
    }
}

/// Number of random histories: 300, or the value of `SPRINGTIDE_HISTORIES`.
pub(super) fn histories() -> ProptestConfig {
    let count = springtide_net::wire::fuzz::number("SPRINGTIDE_HISTORIES", 300);
    ProptestConfig::with_cases(count as u32)
}

proptest! {
    #![proptest_config(histories())]

    /// Under any behaviour of the batch system and its users: no stub is held twice or forgotten,
    /// and none is granted before it runs. The accounts agree with the stubs, and nothing is left
    /// in the end.
    #[test]
    fn no_stub_is_lost_or_counted_twice(
        first in any::<bool>(),
        sizes in prop::sample::select(&[
            NodeSizes::Fixed(1), NodeSizes::Fixed(2), NodeSizes::Fixed(3), NodeSizes::Shares,
        ][..]),
        steps in steps(),
    ) {
        let approach = if first { Approach::Running } else { Approach::Waiting };
        let settings = ManagerSettings { approach, ..ManagerSettings::default() };
        let mut batch = StubBatch::new(sizes, settings);
        batch.poll(true);
        for step in steps {
            batch.step(step);
        }
        batch.end();
    }
}

/// A node is lost and starts again for another job within one event: the first job's account must
/// lose it all the same.
#[test]
fn node_that_starts_anew_at_once_leaves_its_old_account() {
    let settings = ManagerSettings { approach: Approach::Waiting, ..ManagerSettings::default() };
    let mut batch = StubBatch::new(NodeSizes::Shares, settings);
    batch.poll(true);
    for step in [
        StubStep::Submit(Kind::Malleable, 2, 3),
        StubStep::Next(0, true, 0),
        StubStep::Next(0, true, 0),
        StubStep::Submit(Kind::Rigid, 2, 0),
        StubStep::Crash,
        StubStep::Next(0, true, 0),
        StubStep::Next(1, true, 0),
        StubStep::Revoke(1, 1),
        StubStep::Next(1, true, 0),
        StubStep::Submit(Kind::Rigid, 1, 0),
        StubStep::Lose(2),
        StubStep::Lose(1),
    ] {
        batch.step(step);
    }
    batch.end();
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
