//! Random histories of a batch system, its users, jobs and a scheduler that may die: no stub is
//! lost or counted twice.

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
