//! Random histories of the whole scheduler, compared with a simple model of the nodes' jobs.

use std::time::Duration;

use proptest::prelude::*;
use springtide_metrics::{SpecId, SpeedMeasurement};

use super::*;
use crate::policy::SchedulerRequest;
use crate::scheduler::{
    Drain, MemberSilent, NodeFreed, ReleaseReason, RequestNodes, SpeedsMeasured, Subscribe,
    WithdrawNodes,
};

const NODES: [&str; 4] = ["ams-1", "ams-2", "del-1", "del-2"];

#[derive(Clone, Debug)]
enum HistoryStep {
    Register(usize, u64, bool),
    Lose(usize, bool),
    Silent(usize),
    Submit([Option<u32>; 2], u32, Option<u32>, bool, bool),
    Answer(usize, bool),
    Over(usize),
    Cancel(usize),
    ClientLost,
    Request(usize, u32, bool, u32),
    Withdraw(usize, u32),
    Free(usize, bool, bool),
    HandOver(usize, usize, u32),
    Subscribe(usize, Option<f64>),
    Speed(usize, f64),
    Drain(u8, bool),
    Undrain(u8),
    Tick(u64),
}

fn steps() -> impl Strategy<Value = Vec<HistoryStep>> {
    let mostly = prop::bool::weighted(0.85);
    let step = prop_oneof![
        6 => (0usize..4, 0u64..2, mostly)
            .prop_map(|(n, i, ours)| HistoryStep::Register(n, i, ours)),
        1 => (0usize..4, mostly).prop_map(|(n, r)| HistoryStep::Lose(n, r)),
        1 => (0usize..4).prop_map(HistoryStep::Silent),
        4 => ([prop::option::weighted(0.8, 0u32..3), prop::option::weighted(0.8, 0u32..2)], 0u32..3,
            prop::option::of(2u32..4), mostly, any::<bool>())
            .prop_map(|(c, least, most, ours, program)| {
                HistoryStep::Submit(c, least, most, ours, program)
            }),
        16 => (any::<usize>(), mostly).prop_map(|(n, ok)| HistoryStep::Answer(n, ok)),
        2 => (0usize..8).prop_map(HistoryStep::Over),
        1 => (0usize..8).prop_map(HistoryStep::Cancel),
        1 => Just(HistoryStep::ClientLost),
        6 => (0usize..3, 0u32..4, any::<bool>(), 0u32..3)
            .prop_map(|(j, count, bench, stale)| HistoryStep::Request(j, count, bench, stale)),
        1 => (0usize..3, 0u32..3).prop_map(|(j, count)| HistoryStep::Withdraw(j, count)),
        4 => (0usize..4, any::<bool>(), mostly)
            .prop_map(|(n, left, now)| HistoryStep::Free(n, left, now)),
        1 => (0usize..3, 0usize..4, 0u32..4).prop_map(|(j, to, s)| HistoryStep::HandOver(j, to, s)),
        1 => (0usize..3, prop::option::of(any::<f64>()))
            .prop_map(|(j, s)| HistoryStep::Subscribe(j, s)),
        1 => (0usize..4, any::<f64>()).prop_map(|(n, s)| HistoryStep::Speed(n, s)),
        3 => (0u8..16, any::<bool>()).prop_map(|(nodes, itself)| HistoryStep::Drain(nodes, itself)),
        3 => (0u8..16).prop_map(HistoryStep::Undrain),
        2 => (0u64..7000).prop_map(HistoryStep::Tick),
    ];
    prop::collection::vec(step, 0..90)
}

/// An order or question that awaits its answer, with the incarnation that got it.
#[derive(Clone, Debug, PartialEq)]
enum PendingReply {
    Assign(JobId, Epoch, NodeId),
    Release(JobId, NodeId, u64),
    Grant(JobId, u64),
    Measure(NodeId, u64),
    Leave(JobId, Vec<NodeId>),
    Epoch(JobId),
    TakeOver(JobId, NodeId),
}

/// Actual state outside of the scheduler.
struct CoreWorld {
    grid: CoreTestGrid,
    incarnations: BTreeMap<NodeId, u64>,
    dead: BTreeSet<NodeId>,
    holds: BTreeMap<NodeId, JobId>,
    granted: BTreeSet<NodeId>,
    measuring: BTreeSet<NodeId>,
    pending: Vec<PendingReply>,
    /// Answers that each submission got.
    answers: BTreeMap<JobId, u32>,
    roots: BTreeMap<JobId, NodeId>,
    /// Epochs in the store.
    epochs: BTreeMap<JobId, u32>,
    most: BTreeMap<JobId, u32>,
    marks: BTreeMap<NodeId, Option<u64>>,
    drains: BTreeMap<u64, BTreeMap<NodeId, u64>>,
    last_drain: u64,
}

impl CoreWorld {
    fn new() -> Self {
        Self {
            grid: CoreTestGrid::of(2, OURS),
            incarnations: NODES.map(|node| (NodeId::from(node), 1)).into(),
            dead: BTreeSet::new(),
            holds: BTreeMap::new(),
            granted: BTreeSet::new(),
            measuring: BTreeSet::new(),
            pending: Vec::new(),
            answers: BTreeMap::new(),
            roots: BTreeMap::new(),
            epochs: BTreeMap::new(),
            most: BTreeMap::new(),
            marks: BTreeMap::new(),
            drains: BTreeMap::new(),
            last_drain: 0,
        }
    }

    fn running(&self) -> Vec<JobId> {
        let jobs = self.grid.core.status().jobs;
        jobs.iter().filter(|job| job.state == JobState::Running).map(|job| job.job).collect()
    }

    fn is_releasing(&self, node: &NodeId) -> bool {
        let incarnation = self.incarnations[node];
        self.pending.iter().any(|reply| match reply {
            PendingReply::Release(_, n, i) => n == node && *i == incarnation,
            _ => false,
        })
    }

    fn kill(&mut self, node: &NodeId) {
        self.dead.insert(node.clone());
        self.holds.remove(node);
        self.granted.remove(node);
        self.measuring.remove(node);
    }

    fn epoch(&self, job: JobId) -> Epoch {
        Epoch(self.epochs.get(&job).copied().unwrap_or(1))
    }

    /// A running job, and one of its nodes that does not run its root.
    fn member(&self, n: usize) -> Option<(JobId, NodeId)> {
        let node = NodeId::from(NODES[n]);
        let job = *self.holds.get(&node)?;
        let runs = self.running().contains(&job);
        (runs && self.roots[&job] != node && !self.is_releasing(&node)).then_some((job, node))
    }

    fn event(&mut self, step: HistoryStep) -> Option<SchedulerEvent> {
        let epoch = Epoch(1);
        let chosen = |mask: u8| -> Vec<NodeId> {
            (0..4).filter(|n| mask & (1 << n) != 0).map(|n| NODES[n].into()).collect()
        };
        Some(match step {
            HistoryStep::Register(n, later, ours) => {
                let node = NodeId::from(NODES[n]);
                // A dead process never returns, but its node does.
                let incarnation =
                    self.incarnations[&node] + later.max(u64::from(self.dead.contains(&node)));
                if incarnation > self.incarnations[&node] {
                    self.kill(&node);
                    self.dead.remove(&node);
                    self.incarnations.insert(node.clone(), incarnation);
                    if self
                        .marks
                        .get(&node)
                        .is_some_and(|mark| mark.is_some_and(|m| m != incarnation))
                    {
                        self.marks.remove(&node);
                    }
                }
                SchedulerEvent::Registered(NodeRegistration {
                    cluster: NODES[n][..3].into(),
                    node,
                    incarnation: Incarnation(incarnation),
                    address: Address::Memory,
                    threads: 1,
                    fingerprint: if ours { OURS } else { 99 },
                    pid: 1,
                    hardware: Hardware {
                        model: NODES[n][..3].into(),
                        threads: 1,
                        mhz: 1,
                        ..Hardware::default()
                    },
                    work: None,
                    program: None,
                })
            }
            HistoryStep::Lose(n, returns) => {
                let node = NodeId::from(NODES[n]);
                self.kill(&node);
                SchedulerEvent::NodeLost { node, reason: "test".into(), returns }
            }
            HistoryStep::Silent(n) => {
                let (job, node) = self.member(n)?;
                let epoch = self.epoch(job);
                let incarnation = Incarnation(self.incarnations[&node]);
                self.kill(&node);
                SchedulerEvent::MemberSilent(MemberSilent {
                    job,
                    epoch,
                    node,
                    incarnation,
                    reason: "test".into(),
                    reporting_cluster: None,
                    reporter: None,
                })
            }
            HistoryStep::Submit([ams, del], least, most, ours, program) => {
                self.grid.jobs += 1;
                let job = JobId(self.grid.jobs);
                self.answers.insert(job, 0);
                let counts = [("ams", ams), ("del", del)];
                let list: Vec<_> = counts.into_iter().filter_map(|(c, n)| Some((c, n?))).collect();
                let fingerprint = if ours { OURS } else { 5 };
                let list = (!list.is_empty()).then_some(&list[..]);
                let mut submit = submit(list, fingerprint, program.then_some("/bin/x"));
                (submit.params.min_processors, submit.params.max_processors) =
                    (least.into(), most.map(Into::into));
                self.most.insert(job, most.unwrap_or(4));
                SchedulerEvent::Submit { job, epoch, submit: Box::new(submit) }
            }
            HistoryStep::Answer(n, ok) => {
                if self.pending.is_empty() {
                    return None;
                }
                let pending = self.pending.remove(n % self.pending.len());
                self.answer(pending, ok)?
            }
            HistoryStep::Over(n) => {
                let job = *self.running().get(n)?;
                let epoch = self.epoch(job);
                let freed =
                    |node: &NodeId| !self.granted.contains(node) && !self.is_releasing(node);
                let free: Vec<NodeId> = self
                    .holds
                    .iter()
                    .filter(|(node, j)| **j == job && freed(node))
                    .map(|(n, _)| n.clone())
                    .collect();
                self.holds.retain(|node, _| !free.contains(node));
                SchedulerEvent::JobOver { job, epoch, ended: None, ok: true }
            }
            HistoryStep::Cancel(n) => {
                SchedulerEvent::Cancel { job: JobId(n as u64), reason: "test".into() }
            }
            HistoryStep::ClientLost => SchedulerEvent::Link { node: "client-1".into(), up: false },
            HistoryStep::Request(n, count, bench, stale) => {
                let job = *self.running().get(n)?;
                let request =
                    SchedulerRequest { count: count.into(), ..SchedulerRequest::default() };
                let benchmark = bench.then(|| BenchmarkSpec::of_job("fib", bytes::Bytes::new()));
                let (rtt_s, bandwidth) = (BTreeMap::new(), BTreeMap::new());
                let epoch = Epoch(stale.min(1) * self.epoch(job).0);
                SchedulerEvent::Request(Box::new(RequestNodes {
                    job,
                    epoch,
                    request,
                    benchmark,
                    rtt_s,
                    bandwidth,
                }))
            }
            HistoryStep::Withdraw(n, count) => {
                let job = *self.running().get(n)?;
                SchedulerEvent::Withdraw(WithdrawNodes {
                    job,
                    epoch: self.epoch(job),
                    count: count.into(),
                })
            }
            HistoryStep::Free(n, left, now) => {
                let (job, node) = self.member(n)?;
                let epoch = self.epoch(job);
                let incarnation = Incarnation(self.incarnations[&node] - u64::from(!now));
                if now {
                    // A coordinator only refers to nodes that have reached it.
                    if left {
                        self.holds.remove(&node);
                        self.granted.remove(&node);
                    }
                }
                let why = if left {
                    ReleaseReason::Left
                } else {
                    ReleaseReason::Refused { reason: "test".into(), busy: None }
                };
                SchedulerEvent::Freed(NodeFreed { job, epoch, node, incarnation, why })
            }
            HistoryStep::HandOver(n, to, stale) => {
                let job = *self.running().get(n)?;
                let to = self.incarnations.keys().nth(to)?.clone();
                let epoch = Epoch(stale.min(1) * self.epoch(job).0);
                SchedulerEvent::HandOver(HandOver { job, epoch, to, reason: "test".into() })
            }
            HistoryStep::Subscribe(n, faster_than) => {
                let job = *self.running().get(n)?;
                SchedulerEvent::Subscribe(Subscribe { job, epoch: self.epoch(job), faster_than })
            }
            HistoryStep::Speed(n, speed) => {
                let (job, node) = self.member(n)?;
                let epoch = self.epoch(job);
                let (spec, speeds) = (SpecId(7), BTreeMap::from([(node, speed)]));
                SchedulerEvent::SpeedsMeasured(SpeedsMeasured { job, epoch, spec, speeds })
            }
            HistoryStep::Drain(mask, itself) => {
                let mut nodes = chosen(mask);
                let incarnation = nodes
                    .first()
                    .filter(|_| itself)
                    .map(|node| Incarnation(self.incarnations[node]));
                nodes.truncate(if itself { 1 } else { 4 });
                self.last_drain += 1;
                // A node that drains itself stops at a time that it announces.
                let deadline_ms = incarnation.is_some().then_some(10_000 + u64::from(mask) * 1000);
                let order = Drain { nodes, reason: "test".into(), deadline_ms, incarnation };
                SchedulerEvent::Drain { drain: self.last_drain, order }
            }
            HistoryStep::Undrain(mask) => {
                let nodes = chosen(mask);
                self.marks.retain(|node, _| !nodes.contains(node));
                SchedulerEvent::Undrain { nodes }
            }
            HistoryStep::Tick(millis) => {
                self.grid.now += Duration::from_millis(millis);
                SchedulerEvent::Tick
            }
        })
    }

    fn answer(&mut self, pending: PendingReply, ok: bool) -> Option<SchedulerEvent> {
        Some(match pending {
            PendingReply::Assign(job, epoch, node) => {
                let failed = AssignError::failed(&node, "test");
                SchedulerEvent::Assigned {
                    job,
                    epoch,
                    node,
                    answer: if ok { Ok(()) } else { Err(failed) },
                }
            }
            PendingReply::Release(job, node, incarnation) => {
                if self.incarnations[&node] == incarnation && self.holds.get(&node) == Some(&job) {
                    self.holds.remove(&node);
                }
                SchedulerEvent::Released { job, node, incarnation: Incarnation(incarnation), ok }
            }
            PendingReply::Grant(job, grant) => SchedulerEvent::GrantAcknowledged { job, grant, ok },
            PendingReply::Measure(node, incarnation) => {
                if self.incarnations[&node] == incarnation {
                    self.measuring.remove(&node);
                }
                let measured = SpeedMeasurement { speed: 1.0, relative_error: None };
                let answer = if ok { Ok(measured) } else { Err("test".to_owned()) };
                SchedulerEvent::Measured { node, incarnation: Incarnation(incarnation), answer }
            }
            PendingReply::Leave(job, nodes) => {
                if ok {
                    return None;
                }
                SchedulerEvent::AskLeaveFailed { job, nodes }
            }
            PendingReply::Epoch(job) => {
                let epoch = self.epoch(job).0 + 1;
                self.epochs.insert(job, epoch);
                SchedulerEvent::EpochIssued { job, epoch: Epoch(epoch) }
            }
            PendingReply::TakeOver(job, node) => {
                let ok = ok && self.holds.get(&node) == Some(&job);
                if ok {
                    self.roots.insert(job, node.clone());
                }
                let answer = if ok { Ok(()) } else { refused("test") };
                SchedulerEvent::TakeOverAnswered { job, node, answer }
            }
        })
    }

    /// Checks that a granted node is free, in service and alive.
    fn handed_out(&mut self, node: &NodeId) -> Result<(), TestCaseError> {
        prop_assert!(!self.marks.contains_key(node), "{} is drained", node);
        prop_assert!(!self.dead.contains(node), "{} is dead", node);
        prop_assert!(!self.measuring.contains(node), "{} is being measured", node);
        prop_assert!(!self.holds.contains_key(node), "{} is held", node);
        Ok(())
    }

    fn act(&mut self, event: SchedulerEvent) -> Result<(), TestCaseError> {
        let order = match &event {
            SchedulerEvent::Drain { drain, order } => Some((*drain, order.clone())),
            _ => None,
        };
        let (actions, now) = (self.grid.core.handle(event, self.grid.now), self.grid.now);
        if let Some((drain, order)) = order {
            let refused = actions.iter().any(|action| {
                matches!(
                    action,
                    SchedulerAction::Drained { drain: d, answer: Err(_) } if *d == drain
                )
            });
            if !refused {
                let incarnation = order.incarnation.map(|incarnation| incarnation.0);
                for node in &order.nodes {
                    let lasts = self.marks.get(node) == Some(&None);
                    self.marks.insert(node.clone(), incarnation.filter(|_| !lasts));
                }
                let incarnations =
                    order.nodes.iter().map(|node| (node.clone(), self.incarnations[node]));
                self.drains.insert(drain, incarnations.collect());
            }
        }
        for action in actions {
            match action {
                SchedulerAction::Assign { node, assign } => {
                    self.handed_out(&node)?;
                    self.holds.insert(node.clone(), assign.spec.id);
                    self.pending.push(PendingReply::Assign(
                        assign.spec.id,
                        assign.spec.epoch,
                        node,
                    ));
                }
                SchedulerAction::Grant(granted) => {
                    *self.answers.get_mut(&granted.job).unwrap() += 1;
                    let members = granted.view.members.keys();
                    prop_assert!(members.clone().count() as u32 <= self.most[&granted.job]);
                    for node in members {
                        prop_assert_eq!(self.holds.get(node), Some(&granted.job));
                    }
                    self.roots.insert(granted.job, granted.coordinator.node);
                }
                SchedulerAction::GrantNodes { job, grant, nodes, .. } => {
                    for granted in &nodes {
                        self.handed_out(&granted.node)?;
                        self.holds.insert(granted.node.clone(), job);
                        self.granted.insert(granted.node.clone());
                    }
                    let of = self.holds.iter().filter(|(n, j)| **j == job && !self.is_releasing(n));
                    prop_assert!(of.count() as u32 <= self.most[&job]);
                    self.pending.push(PendingReply::Grant(job, grant));
                }
                SchedulerAction::Refuse { job, .. } => *self.answers.get_mut(&job).unwrap() += 1,
                SchedulerAction::Release { node, incarnation, job, .. } => {
                    prop_assert_eq!(self.holds.get(&node), Some(&job));
                    prop_assert_eq!(self.incarnations[&node], incarnation.0);
                    self.granted.remove(&node);
                    self.pending.push(PendingReply::Release(job, node, incarnation.0));
                }
                SchedulerAction::Measure { node, incarnation, .. } => {
                    self.handed_out(&node)?;
                    self.measuring.insert(node.clone());
                    self.pending.push(PendingReply::Measure(node, incarnation.0));
                }
                SchedulerAction::Replace { nodes, .. } => {
                    for node in nodes {
                        prop_assert!(
                            !self.holds.contains_key(&node) && !self.measuring.contains(&node)
                        );
                        self.dead.insert(node);
                    }
                }
                // A later incarnation of its node may belong to another job. Or the node is being
                // released, because it did not accept the job.
                SchedulerAction::MemberLost { job, node, .. } => {
                    let holds = self.holds.get(&node) == Some(&job);
                    prop_assert!(!holds || self.is_releasing(&node), "{} is a member", node);
                }
                SchedulerAction::AskLeave { job, nodes, .. } => {
                    for node in &nodes {
                        prop_assert!(self.marks.contains_key(node));
                        prop_assert_eq!(self.holds.get(node), Some(&job));
                    }
                    self.pending.push(PendingReply::Leave(job, nodes));
                }
                SchedulerAction::Drained { drain, answer } => {
                    let nodes = self.drains.remove(&drain);
                    if answer.is_ok() {
                        let nodes = nodes.unwrap();
                        let full = nodes.iter().find(|(n, incarnation)| {
                            self.incarnations[*n] == **incarnation && self.is_full(n)
                        });
                        prop_assert_eq!(full, None);
                    }
                }
                SchedulerAction::NewEpoch { job, known } => {
                    prop_assert_eq!(known, self.epoch(job));
                    self.pending.push(PendingReply::Epoch(job));
                }
                SchedulerAction::TakeOver { node, order } => {
                    prop_assert_eq!(self.holds.get(&node), Some(&order.job));
                    prop_assert_eq!(order.epoch, self.epoch(order.job));
                    prop_assert!(order.members.contains_key(&node));
                    // A node that hands over remains a member; a lost one does not.
                    prop_assert_eq!(order.handed, order.members.contains_key(&order.lost));
                    self.pending.push(PendingReply::TakeOver(order.job, node));
                }
                SchedulerAction::Cancel { .. }
                | SchedulerAction::Ended { .. }
                | SchedulerAction::BetterFree { .. }
                | SchedulerAction::OfferGrowth { .. }
                | SchedulerAction::AskShrink { .. }
                | SchedulerAction::StoreStart { .. }
                | SchedulerAction::RefuseGrowth { .. }
                | SchedulerAction::Forget { .. }
                | SchedulerAction::Restart { .. }
                | SchedulerAction::Limit { .. }
                | SchedulerAction::StoreDrain { .. }
                | SchedulerAction::Audit { .. }
                | SchedulerAction::BringFile { .. }
                | SchedulerAction::DropFiles { .. }
                | SchedulerAction::Unreserved(_)
                | SchedulerAction::ProtocolViolation { .. } => {}
                SchedulerAction::HoldStubs { .. } | SchedulerAction::CloseStubs { .. } => {
                    prop_assert!(false, "these clusters have all their nodes");
                }
            }
        }
        prop_assert!(
            self.grid.core.due().is_none_or(|due| due > now),
            "the scheduler would never sleep"
        );
        self.check()
    }

    fn is_full(&self, node: &NodeId) -> bool {
        self.holds.contains_key(node) || self.measuring.contains(node)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let status = self.grid.core.status();
        prop_assert_eq!(status.nodes(), NODES.len());
        for node in status.sites.values().flat_map(|site| &site.nodes) {
            prop_assert_eq!(self.holds.get(&node.node), node.job.as_ref(), "{}", node.node);
            let drained = matches!(node.state, NodeState::Drained | NodeState::Draining);
            let there = !matches!(node.state, NodeState::Starting | NodeState::Broken);
            prop_assert_eq!(drained, there && self.marks.contains_key(&node.node), "{:?}", node);
        }
        for (job, answers) in &self.answers {
            let open = status.jobs.iter().any(|known| {
                known.job == *job && matches!(known.state, JobState::Queued | JobState::Assigning)
            });
            prop_assert_eq!(*answers, u32::from(!open), "{}", job);
        }
        for (drain, nodes) in &self.drains {
            prop_assert!(
                nodes.keys().any(|node| self.is_full(node)),
                "drain {} is not answered",
                drain
            );
        }
        Ok(())
    }

    /// All answers arrive, all jobs end and all nodes return: then all nodes are free, and every
    /// drain is answered.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        self.act(SchedulerEvent::Link { node: "client-1".into(), up: false })?;
        while !self.pending.is_empty() || !self.grid.core.status().jobs.is_empty() {
            let step = if self.pending.is_empty() {
                HistoryStep::Over(0)
            } else {
                HistoryStep::Answer(0, true)
            };
            if let Some(event) = self.event(step) {
                self.act(event)?;
            }
        }
        prop_assert!(self.drains.is_empty() && self.holds.is_empty());
        for n in 0..NODES.len() {
            let event = self.event(HistoryStep::Register(n, 1, true)).unwrap();
            self.act(event)?;
        }
        let event = self.event(HistoryStep::Undrain(15)).unwrap();
        self.act(event)?;
        prop_assert_eq!(self.grid.core.status().count(NodeState::Idle), NODES.len());
        prop_assert_eq!(self.grid.core.due(), None);
        Ok(())
    }
}

proptest! {
    /// In every history: no node is held by two jobs or lost from the pool, and drained nodes are
    /// never granted. Each submission gets one answer, each drain one after its nodes are empty,
    /// and no job exceeds its greatest size.
    #[test]
    fn random_histories_keep_all_invariants(steps in steps()) {
        let mut world = CoreWorld::new();
        for step in steps {
            if let Some(event) = world.event(step) {
                world.act(event)?;
            }
        }
        world.settle()?;
    }
}
