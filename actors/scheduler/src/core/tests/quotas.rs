//! Batch systems that list more processors than a user can have at once, and end each batch job
//! after its walltime: what cannot be had is learned, although nodes leave all the time.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::managed::needs;
use super::*;
use crate::manager::Kind;
use crate::scheduler::{Drain, JobState, SiteReport, StubDelay, StubLoss, StubLossKind};

const SECOND: Duration = Duration::from_secs(1);
const QUOTA: &str = "QOSMaxCpuPerUserLimit";

/// A cluster and the rules of its batch system.
#[derive(Clone, Copy, Debug)]
struct QuotaRules {
    /// Number of nodes of one processor that the batch system lists.
    listed: u32,
    /// Number of these that the user can have at once.
    obtainable: usize,
    /// Time after which a node is killed, in seconds.
    walltime: u64,
    /// Time before its end at which a node announces that it leaves, in seconds.
    notice: u64,
    /// Time from the start of a batch job to the registration of its node, in seconds.
    delay: u64,
    /// Time by which the walltime of one batch job is longer than that of the one before it, in
    /// seconds. The last of all that the user can have at once has the walltime above. So the nodes
    /// leave one after the other.
    spread: u64,
}

/// A batch job that runs, with its age and walltime in seconds.
#[derive(Debug)]
struct QuotaStub {
    node: NodeId,
    age: u64,
    walltime: u64,
}

struct QuotaBatch {
    rules: QuotaRules,
    grid: CoreTestGrid,
    waiting: VecDeque<NodeId>,
    running: Vec<QuotaStub>,
    incarnations: BTreeMap<NodeId, u64>,
    /// Number of batch jobs that have started.
    started: u64,
}

impl QuotaBatch {
    fn new(rules: QuotaRules) -> Self {
        let grid = CoreTestGrid::on_demand(rules.listed, ManagerSettings::default());
        let (waiting, running) = (VecDeque::new(), Vec::new());
        let incarnations = BTreeMap::new();
        let mut batch = Self { rules, grid, waiting, running, incarnations, started: 0 };
        batch.poll();
        batch
    }

    fn poll(&mut self) {
        let found = Ok((self.rules.listed, 0));
        self.put(SchedulerEvent::SitePolled(SiteReport { cluster: "vu".into(), found }));
    }

    fn submit(&mut self, processors: u32) -> JobId {
        self.grid.jobs += 1;
        let job = JobId(self.grid.jobs);
        let submit = Box::new(needs(Kind::Rigid, processors, processors));
        self.put(SchedulerEvent::Submit { job, epoch: Epoch(1), submit });
        job
    }

    fn put(&mut self, event: SchedulerEvent) {
        let mut events = Vec::new();
        for action in self.grid.core.handle(event, self.grid.now) {
            match action {
                SchedulerAction::HoldStubs { nodes, .. } => self.waiting.extend(nodes),
                SchedulerAction::CloseStubs { nodes, .. } => {
                    for node in nodes {
                        self.waiting.retain(|other| *other != node);
                        self.running.retain(|stub| stub.node != node);
                        events.push(gone(node));
                    }
                }
                SchedulerAction::Assign { node, assign } => {
                    let (job, epoch) = (assign.spec.id, assign.spec.epoch);
                    events.push(SchedulerEvent::Assigned { job, epoch, node, answer: Ok(()) });
                }
                _ => {}
            }
        }
        events.into_iter().for_each(|event| self.put(event));
    }

    /// One second passes.
    fn pass(&mut self) {
        self.grid.now += SECOND;
        while self.running.len() < self.rules.obtainable
            && let Some(node) = self.waiting.pop_front()
        {
            let obtainable = self.rules.obtainable as u64;
            let shorter = self.rules.spread * (obtainable - 1 - self.started % obtainable);
            self.running.push(QuotaStub { node, age: 0, walltime: self.rules.walltime - shorter });
            self.started += 1;
        }
        let reason = QUOTA.to_owned();
        for node in self.waiting.clone() {
            self.put(SchedulerEvent::StubWaits(StubDelay { node, reason: reason.clone() }));
        }
        let mut changes = Vec::new();
        for stub in &mut self.running {
            stub.age += 1;
            let incarnation = self.incarnations.entry(stub.node.clone()).or_default();
            if stub.age == self.rules.delay {
                *incarnation += 1;
                let known = registration(stub.node.as_str(), *incarnation);
                changes.push((stub.node.clone(), SchedulerEvent::Registered(known)));
            } else if stub.age == stub.walltime - self.rules.notice {
                let order = Drain {
                    nodes: vec![stub.node.clone()],
                    reason: "its time limit is near".into(),
                    deadline_ms: Some(self.rules.notice * 1000),
                    incarnation: Some(Incarnation(*incarnation)),
                };
                changes.push((stub.node.clone(), SchedulerEvent::Drain { drain: 1, order }));
            } else if stub.age == stub.walltime {
                changes.push((stub.node.clone(), gone(stub.node.clone())));
            }
        }
        self.running.retain(|stub| stub.age < stub.walltime);
        for (node, event) in changes {
            // An earlier change may have ended it.
            let runs = self.running.iter().any(|stub| stub.node == node);
            if runs || matches!(event, SchedulerEvent::StubGone(_)) {
                self.put(event);
            }
        }
        self.poll();
        self.put(SchedulerEvent::Tick);
    }

    /// Waits for a condition. Returns the seconds that passed, unless they exceed `most`.
    fn wait(&mut self, most: u64, holds: impl Fn(&Self) -> bool) -> Option<u64> {
        (0..most).find(|_| {
            self.pass();
            holds(self)
        })
    }

    fn reason(&self, job: JobId) -> String {
        self.grid.core.managing.view(job).map_or_else(String::new, |view| view.reason)
    }
}

fn gone(node: NodeId) -> SchedulerEvent {
    let (reason, kind) = ("it was cancelled".to_owned(), StubLossKind::Ended);
    SchedulerEvent::StubGone(StubLoss { node, reason, kind })
}

fn rules() -> impl Strategy<Value = (QuotaRules, u32)> {
    (2usize..7, 1u32..6, 150u64..700, 25u64..60, 1u64..6, 0u64..=100).prop_flat_map(
        |(obtainable, more, walltime, notice, delay, percent)| {
            let listed = obtainable as u32 + more;
            // All that can be had are there together for at least a half of their time.
            let spread = (walltime - notice) * percent / (200 * obtainable as u64);
            let rules = QuotaRules { listed, obtainable, walltime, notice, delay, spread };
            (Just(rules), obtainable as u32 + 1..=listed)
        },
    )
}

/// Longest time until a capacity is learned: three waits, and the pauses between them.
const LEARNED_WITHIN: u64 = 600;

proptest! {
    // A history passes twenty minutes, second by second.
    #![proptest_config(ProptestConfig::with_cases(super::stub_histories::histories().cases / 6))]

    /// A rigid job that can never have its processors shows why it waits, and a smaller one starts
    /// meanwhile.
    #[test]
    fn a_quota_is_learned_although_nodes_reach_their_walltime((rules, size) in rules()) {
        let mut batch = QuotaBatch::new(rules);
        let large = batch.submit(size);
        let limit = format!("vu grants {} processors and refused more", rules.obtainable);
        let learned = batch.wait(LEARNED_WITHIN, |batch| batch.reason(large).contains(&limit));
        prop_assert!(learned.is_some(), "after {LEARNED_WITHIN} s: {:?}", batch.reason(large));
        prop_assert!(batch.reason(large).contains(QUOTA), "{:?}", batch.reason(large));
        let small = batch.submit(rules.obtainable as u32);
        let runs = |batch: &QuotaBatch| {
            batch.grid.core.jobs.get(&small).is_some_and(|job| job.state == JobState::Running)
        };
        let began = batch.wait(LEARNED_WITHIN, runs);
        prop_assert!(began.is_some(), "after {LEARNED_WITHIN} s: {:?}", batch.reason(small));
    }
}
