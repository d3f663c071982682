//! Fixtures for table tests of single decisions: a job in an artificial state, decided period by
//! period.

use std::collections::BTreeMap;

use springtide_base::id::{ClusterId, Epoch, NodeId};

use super::model::check;
use super::*;

/// `n` workers of a cluster: speed, overhead, inter-cluster overhead.
#[derive(Clone, Copy)]
pub(super) struct WorkerGroup(
    pub(super) &'static str,
    pub(super) u32,
    pub(super) f64,
    pub(super) f64,
    pub(super) f64,
);

/// A job in an artificial state, decided period by period.
#[derive(Clone)]
pub(super) struct PolicyTestJob {
    pub(super) snapshot: Snapshot,
    pub(super) workers: BTreeMap<ClusterId, Vec<WorkerStats>>,
    pub(super) memory: Memory,
    pub(super) settings: AdaptationSettings,
}

impl PolicyTestJob {
    pub(super) fn of(groups: &[WorkerGroup]) -> Self {
        let settings = AdaptationSettings::default();
        let mut case = Self {
            snapshot: Snapshot {
                epoch: Epoch(1),
                period: 100,
                period_s: 10.0,
                elapsed_s: 1000.0,
                ..Snapshot::default()
            },
            workers: BTreeMap::new(),
            memory: Memory::new(&settings),
            settings,
        };
        for &WorkerGroup(cluster, n, speed, overhead, inter) in groups {
            let list = case.workers.entry(cluster.into()).or_default();
            for i in 0..n {
                list.push(WorkerStats {
                    node: format!("{cluster}{}", list.len()).as_str().into(),
                    speed: Some(speed),
                    overhead,
                    overhead_inter: inter,
                    joined: 50 + i,
                    ..WorkerStats::default()
                });
            }
        }
        case.root(&format!("{}0", groups[0].0));
        case
    }

    /// Equal nodes in two clusters (the first with the root), all at this efficiency.
    pub(super) fn even(n: u32, efficiency: f64) -> Self {
        let waits = 1.0 - efficiency;
        let half = n / 2;
        Self::of(
            &[
                WorkerGroup("a", n - half, 1.0, waits, 0.01),
                WorkerGroup("b", half, 1.0, waits, 0.01),
            ][..if half == 0 { 1 } else { 2 }],
        )
    }

    /// A job of cluster a that has removed cluster b for its link.
    pub(super) fn without_b() -> Self {
        let groups = [WorkerGroup("a", 10, 1.0, 0.55, 0.01), WorkerGroup("b", 4, 1.0, 0.95, 0.9)];
        let mut case = Self::of(&groups);
        case.uplink("b", 1e5);
        case.each(|w| w.overhead = w.overhead.max(0.8));
        let decision = case.decide();
        assert_eq!(cluster_removed(&decision), Some("b"), "{}", text(&decision));
        case.obey(&decision, 1.0);
        case.snapshot.links.clear();
        case.each(|w| (w.overhead, w.overhead_inter) = (0.3, 0.01));
        case
    }

    pub(super) fn root(&mut self, node: &str) -> &mut Self {
        let of = |list: &Vec<WorkerStats>| list.iter().any(|w| w.node.as_str() == node);
        let cluster = self.workers.iter().find(|(_, list)| of(list)).map(|(id, _)| id.clone());
        self.snapshot.root = cluster.map(|cluster| RootNode { node: node.into(), cluster });
        self
    }

    pub(super) fn each(&mut self, change: impl Fn(&mut WorkerStats)) -> &mut Self {
        self.workers.values_mut().flatten().for_each(change);
        self
    }

    pub(super) fn worker(&mut self, node: &str) -> &mut WorkerStats {
        let mut all = self.workers.values_mut().flatten();
        all.find(|w| w.node.as_str() == node).expect("it is there")
    }

    pub(super) fn uplink(&mut self, cluster: &str, bandwidth: f64) -> &mut Self {
        self.snapshot.links.push(LinkEstimate {
            a: cluster.into(),
            b: "elsewhere".into(),
            bandwidth: Some(bandwidth),
            rtt_s: None,
            age_s: 1.0,
        });
        self
    }

    pub(super) fn aggregate(&mut self) {
        let agreed = SharedParameters::of(&self.memory, &self.settings);
        self.snapshot.clusters = self
            .workers
            .iter()
            .filter(|(_, workers)| !workers.is_empty())
            .map(|(id, workers)| (id.clone(), ClusterAggregate::of(workers, &agreed)))
            .collect();
    }

    pub(super) fn decide_as_is(&mut self) -> Decision {
        let (snapshot, memory) = (self.snapshot.clone(), self.memory.clone());
        let inputs = Inputs { snapshot, memory, settings: self.settings.clone() };
        let (decision, memory) = decide(&inputs.snapshot, &inputs.memory, &inputs.settings);
        check(&inputs, &decision);
        self.memory = memory;
        self.snapshot.period += 1;
        self.snapshot.elapsed_s += self.snapshot.period_s;
        self.snapshot.crashes.clear();
        decision
    }

    /// Decides one period.
    pub(super) fn decide(&mut self) -> Decision {
        self.aggregate();
        self.decide_as_is()
    }

    /// Decides as many bad periods as a removal needs.
    pub(super) fn decide_patiently(&mut self) -> Decision {
        for _ in 1..self.settings.bad_periods {
            let first = self.decide();
            assert!(removed(&first).is_empty(), "one bad period removes no node: {first:?}");
        }
        self.decide()
    }

    /// Executes a decision: removed nodes are gone, requested ones are present in the first cluster
    /// at this speed, past their grace.
    pub(super) fn obey(&mut self, decision: &Decision, speed: f64) -> &mut Self {
        for action in &decision.actions {
            match action {
                AdaptationAction::Remove { nodes, .. } => {
                    let goes = |w: &WorkerStats| nodes.contains(&w.node);
                    self.workers.values_mut().for_each(|list| list.retain(|w| !goes(w)));
                }
                AdaptationAction::RemoveCluster { cluster, .. } => {
                    self.workers.remove(cluster);
                }
                AdaptationAction::Request(request) => {
                    let list = self.workers.values_mut().next().expect("a cluster");
                    let like = list[0].clone();
                    let known = list.iter().filter_map(|w| w.node.as_str().strip_prefix("new"));
                    let next = known.filter_map(|number| number.parse().ok()).max();
                    let first = next.map_or(0, |last: u32| last + 1);
                    for i in first..first + request.count.get() {
                        let node: NodeId = format!("new{i}").as_str().into();
                        list.push(WorkerStats { node, speed: Some(speed), ..like.clone() });
                    }
                }
                AdaptationAction::MoveRoot { to, cluster, .. } => {
                    let (node, cluster) = (to.clone(), cluster.clone());
                    self.snapshot.root = Some(RootNode { node, cluster });
                }
                AdaptationAction::Withdraw { .. } => self.snapshot.requested = 0.into(),
                AdaptationAction::Measure { .. } => {}
            }
        }
        self
    }
}

pub(super) fn removed(decision: &Decision) -> Vec<String> {
    let nodes = decision.actions.iter().filter_map(|action| match action {
        AdaptationAction::Remove { nodes, .. } => Some(nodes.iter().map(ToString::to_string)),
        _ => None,
    });
    nodes.flatten().collect()
}

pub(super) fn asked(decision: &Decision) -> u32 {
    let counts = decision.actions.iter().map(|a| match a {
        AdaptationAction::Request(request) => request.count.get(),
        _ => 0,
    });
    counts.sum()
}

pub(super) fn request(decision: &Decision) -> &SchedulerRequest {
    let found = decision.actions.iter().find_map(|a| match a {
        AdaptationAction::Request(request) => Some(request),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nothing is asked for: {:?}", decision.reasons))
}

pub(super) fn cluster_removed(decision: &Decision) -> Option<&str> {
    decision.actions.iter().find_map(|a| match a {
        AdaptationAction::RemoveCluster { cluster, .. } => Some(cluster.as_str()),
        _ => None,
    })
}

pub(super) fn text(decision: &Decision) -> String {
    decision.reasons.iter().map(|reason| format!("{reason}\n")).collect()
}

pub(super) fn says(decision: &Decision, part: &str) -> bool {
    text(decision).contains(part)
}

/// Whether the decision is to move the root to a node, and nothing else.
pub(super) fn moves_root_to(decision: &Decision, node: &str) -> bool {
    let actions = &decision.actions[..];
    matches!(actions, [AdaptationAction::MoveRoot { to, .. }] if to.as_str() == node)
}
