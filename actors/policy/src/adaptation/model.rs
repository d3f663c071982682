//! A toy grid for closed-loop tests of the policy: nodes with speeds, clusters with uplinks, an
//! iterative application with limited parallelism, and a scheduler with a free pool. The decisions
//! are real, the grid is simulated.
//!
//! One iteration takes `work / capacity + serial * mean(1 / speed) + slowest exchange over an
//! uplink`. By the second term efficiency falls with more nodes (`e(n) = A / (n + A)`, A = work /
//! serial), and a slow node delays the others. The third term is the cost of a thin uplink.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{ClusterId, Epoch, NodeId};
use springtide_base::processors::{Processors, select_nodes};

use super::*;

/// A node of the toy grid.
#[derive(Clone, Debug)]
pub struct ToyNode {
    pub cluster: ClusterId,
    pub processors: Processors,
    /// Speed of one processor.
    pub speed: f64,
    /// External load: divides the speed.
    pub load: f64,
    pub state: ToyNodeState,
    pub free: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToyNodeState {
    Pool,
    /// Requested; present in the next period.
    Coming,
    Member {
        since: u64,
    },
    /// Asked to leave; gone in the next period.
    Leaving,
    Dead,
}

/// The toy grid, its job and the job's coordinator.
#[derive(Clone, Debug)]
pub struct PolicyWorld {
    pub nodes: BTreeMap<NodeId, ToyNode>,
    /// Bytes per second of each cluster's uplink.
    pub uplinks: BTreeMap<ClusterId, f64>,
    pub work: f64,
    pub serial: f64,
    /// Bytes of an iteration if all exchanges were between clusters.
    pub bytes: f64,
    pub iterations: Option<u64>,
    pub done: f64,
    pub settings: AdaptationSettings,
    pub memory: Memory,
    pub mode: Mode,
    pub epoch: Epoch,
    pub period: u64,
    pub root: NodeId,
    pub min_processors: u32,
    pub max_processors: Option<u32>,
    /// Relative error of measurements: half is common to all nodes in a period, half individual.
    pub noise: f64,
    pub seed: u64,
    /// Whether speeds of free nodes are unknown: offers omit them, and grants ignore them.
    pub blind: bool,
    /// Requests yet to be granted.
    pub open: Vec<SchedulerRequest>,
    pub crashes: Vec<Crash>,
    /// Times at which links to free clusters were measured.
    pub measured: BTreeMap<ClusterId, u64>,
    histories: BTreeMap<NodeId, WorkerHistory>,
    pub log: Vec<LoggedDecision>,
    /// Number of processors and iteration time, by period.
    pub series: Vec<(u32, f64)>,
}

impl PolicyWorld {
    /// Clusters with their numbers of nodes and of initial workers. On 36 nodes, an iteration takes
    /// 100 s at efficiency one half. Periods are the paper's 180 s.
    pub fn of(clusters: &[(&str, u32, u32)]) -> Self {
        let mut nodes = BTreeMap::new();
        let mut uplinks = BTreeMap::new();
        for &(cluster, all, members) in clusters {
            uplinks.insert(cluster.into(), 10e6);
            for i in 0..all {
                let state = if i < members {
                    ToyNodeState::Member { since: 0 }
                } else {
                    ToyNodeState::Pool
                };
                let node = ToyNode {
                    cluster: cluster.into(),
                    processors: Processors::ONE,
                    speed: 1.0,
                    load: 1.0,
                    state,
                    free: true,
                };
                nodes.insert(format!("{cluster}-{i:02}").as_str().into(), node);
            }
        }
        let settings = AdaptationSettings {
            period_s: 180.0,
            quarantine_s: 5400.0,
            quarantine_max_s: 64_800.0,
            grace: 1,
            ..AdaptationSettings::default()
        };
        let root = format!("{}-00", clusters[0].0).as_str().into();
        Self {
            nodes,
            uplinks,
            work: 1800.0,
            serial: 50.0,
            bytes: 1.1e8,
            iterations: None,
            done: 0.0,
            memory: Memory::new(&settings),
            settings,
            mode: Mode::Adaptive,
            epoch: Epoch(1),
            period: 0,
            root,
            min_processors: 1,
            max_processors: None,
            noise: 0.0,
            seed: 1,
            blind: false,
            open: Vec::new(),
            crashes: Vec::new(),
            measured: BTreeMap::new(),
            histories: BTreeMap::new(),
            log: Vec::new(),
            series: Vec::new(),
        }
    }

    pub fn cluster(&mut self, cluster: &str) -> impl Iterator<Item = (&NodeId, &mut ToyNode)> {
        let cluster: ClusterId = cluster.into();
        self.nodes.iter_mut().filter(move |(_, node)| node.cluster == cluster)
    }

    pub fn load(&mut self, cluster: &str, load: f64) {
        self.cluster(cluster).for_each(|(_, node)| node.load = load);
    }

    pub fn crash(&mut self, cluster: &str) {
        let mut crashes = Vec::new();
        for (id, node) in self.cluster(cluster) {
            if matches!(node.state, ToyNodeState::Member { .. } | ToyNodeState::Leaving) {
                crashes.push(Crash { node: id.clone(), cluster: node.cluster.clone() });
            }
            node.state = ToyNodeState::Dead;
        }
        self.crashes.extend(crashes);
    }

    /// Processors of the members.
    pub fn members(&self) -> u32 {
        let members =
            self.nodes.values().filter(|n| matches!(n.state, ToyNodeState::Member { .. }));
        members.map(|n| n.processors).sum::<Processors>().get()
    }

    pub fn members_of(&self, cluster: &str) -> u32 {
        let cluster: ClusterId = cluster.into();
        let member =
            |n: &&ToyNode| matches!(n.state, ToyNodeState::Member { .. }) && n.cluster == cluster;
        self.nodes.values().filter(member).map(|n| n.processors).sum::<Processors>().get()
    }

    fn working(&self) -> impl Iterator<Item = (&NodeId, &ToyNode)> {
        let works =
            |n: &ToyNode| matches!(n.state, ToyNodeState::Member { .. } | ToyNodeState::Leaving);
        self.nodes.iter().filter(move |(_, node)| works(node))
    }

    /// Seconds of an iteration, and each cluster's fraction of it spent in exchanges over its
    /// uplink.
    fn iteration(&self) -> (f64, f64, BTreeMap<ClusterId, f64>) {
        let mut capacity: BTreeMap<ClusterId, f64> = BTreeMap::new();
        let (mut slowness, mut n) = (0.0, 0.0);
        for (_, node) in self.working() {
            let processors = f64::from(node.processors);
            let speed = node.speed / node.load * processors;
            *capacity.entry(node.cluster.clone()).or_default() += speed;
            slowness += node.load / node.speed * processors;
            n += processors;
        }
        let all: f64 = capacity.values().sum();
        let exchange: BTreeMap<ClusterId, f64> = capacity
            .iter()
            .map(|(id, own)| {
                let share = own / all;
                (id.clone(), self.bytes * share * (1.0 - share) / self.uplinks[id])
            })
            .collect();
        let slowest = exchange.values().copied().fold(0.0, f64::max);
        let time = self.work / all + self.serial * slowness / n + slowest;
        let waits = exchange.into_iter().map(|(id, own)| (id, own.max(0.3 * slowest) / time));
        (time, self.work / all / time, waits.collect())
    }

    /// Random number from -1 to 1 (splitmix64).
    fn chance(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn snapshot(&mut self) -> Snapshot {
        let (time, busy, waits) = self.iteration();
        self.done += self.settings.period_s / time;
        let mut reports: BTreeMap<ClusterId, Vec<WorkerStats>> = BTreeMap::new();
        let agreed = SharedParameters::of(&self.memory, &self.settings);
        let common = 1.0 + 0.5 * self.noise * self.chance();
        for (id, node) in self.nodes.clone() {
            let own = common + 0.5 * self.noise * self.chance();
            let busy = (busy * own).clamp(0.0, 1.0);
            let since = match node.state {
                ToyNodeState::Member { since } => since,
                ToyNodeState::Leaving => 0,
                _ => {
                    self.histories.remove(&id);
                    continue;
                }
            };
            let inter = waits[&node.cluster].min(1.0 - busy);
            let report = WorkerStats {
                node: id.clone(),
                threads: node.processors.get(),
                speed: Some(node.speed / node.load * f64::from(node.processors)),
                speed_error: 0.05,
                overhead: 1.0 - busy,
                overhead_inter: inter,
                overhead_intra: 0.0,
                joined: (self.period - since) as u32,
                leaving: node.state == ToyNodeState::Leaving,
                ..WorkerStats::default()
            };
            let history = self.histories.entry(id.clone()).or_default();
            assert_eq!(history.report(report, &self.settings), None);
            reports
                .entry(node.cluster.clone())
                .or_default()
                .push(history.close_period(agreed.span).expect("just reported"));
        }
        let mut clusters = BTreeMap::new();
        for (id, workers) in reports {
            let mut aggregate = ClusterAggregate::of(&workers, &agreed);
            aggregate.uplink.bandwidth = Some(self.uplinks[&id]);
            clusters.insert(id, aggregate);
        }
        let mut offers: BTreeMap<ClusterId, NodeOffer> = BTreeMap::new();
        for (id, node) in &self.nodes {
            if node.state == ToyNodeState::Pool && node.free {
                let offer = offers.entry(node.cluster.clone()).or_default();
                offer.smallest = match offer.smallest {
                    Processors::ZERO => node.processors,
                    smallest => smallest.min(node.processors),
                };
                offer.free = offer.free.saturating_add(node.processors);
                offer.bandwidth = Some(self.uplinks[&node.cluster]);
                let measured = self.measured.get(&node.cluster);
                let age = measured.map(|at| (self.period - at) as f64 * self.settings.period_s);
                offer.measured_s = age;
                if !self.blind {
                    let (processors, speed) = (node.processors, node.speed / node.load);
                    offer.nodes.insert(id.clone(), OfferedNode { processors, speed });
                }
            }
        }
        let coming = self.nodes.values().filter(|n| n.state == ToyNodeState::Coming);
        let coming: Processors = coming.map(|n| n.processors).sum();
        let open: Processors = self.open.iter().map(|request| request.count).sum();
        let leaving = self.nodes.iter().filter(|(_, n)| n.state == ToyNodeState::Leaving);
        Snapshot {
            epoch: self.epoch,
            period: self.period,
            period_s: self.settings.period_s,
            elapsed_s: self.period as f64 * self.settings.period_s,
            mode: self.mode,
            clusters,
            members: BTreeMap::new(),
            late: BTreeSet::new(),
            root: Some(RootNode {
                node: self.root.clone(),
                cluster: self.nodes[&self.root].cluster.clone(),
            }),
            min_processors: self.min_processors.into(),
            max_processors: self.max_processors.map(Processors),
            requested: coming.saturating_add(open),
            leaving: leaving.map(|(id, node)| (id.clone(), node.processors)).collect(),
            crashes: std::mem::take(&mut self.crashes),
            links: Vec::new(),
            offers,
            progress: Some(JobProgress { done: self.done as u64, total: self.iterations }),
            synchronous: false,
            has_checkpoints: true,
            ordered: false,
        }
    }

    /// Grants requests from the pool.
    fn grant(&mut self) {
        for request in &mut self.open {
            // The fastest nodes first, where speeds are known; among about equals, preferred ones.
            let class = |n: &ToyNode| {
                let speed = if self.blind { 1.0 } else { n.speed / n.load };
                (-4.0 * speed.log2()).round() as i64
            };
            let mut free: Vec<(i64, usize, &NodeId)> = self
                .nodes
                .iter()
                .filter(|(id, n)| {
                    let wide = request.waive.contains(&n.cluster)
                        || request.min_bandwidth.is_none_or(|b| self.uplinks[&n.cluster] >= b);
                    n.state == ToyNodeState::Pool
                        && n.free
                        && wide
                        && !request.avoid_nodes.contains(*id)
                        && !request.avoid_clusters.contains(&n.cluster)
                        && (self.blind
                            || request.min_speed.is_none_or(|speed| n.speed / n.load >= speed))
                })
                .map(|(id, n)| {
                    let rank = request.prefer.iter().position(|c| *c == n.cluster);
                    (class(n), rank.unwrap_or(usize::MAX), id)
                })
                .collect();
            free.sort();
            let sizes = free.iter().map(|(_, _, id)| self.nodes[*id].processors);
            let selected = select_nodes(sizes, request.count, request.most.max(request.count));
            let granted: Vec<NodeId> = selected.into_iter().map(|at| free[at].2.clone()).collect();
            for id in granted {
                let node = self.nodes.get_mut(&id).expect("it is of the pool");
                node.state = ToyNodeState::Coming;
                request.count = request.count.saturating_sub(node.processors);
                request.most = request.most.saturating_sub(node.processors);
            }
        }
        self.open.retain(|request| !request.count.is_zero());
    }

    fn apply(&mut self, action: &AdaptationAction) {
        let leave = |node: &mut ToyNode| {
            if matches!(node.state, ToyNodeState::Member { .. }) {
                node.state = ToyNodeState::Leaving;
            }
        };
        match action {
            AdaptationAction::Request(request) => self.open.push(request.clone()),
            AdaptationAction::Withdraw { .. } => {
                self.open.clear();
                for node in self.nodes.values_mut().filter(|n| n.state == ToyNodeState::Coming) {
                    node.state = ToyNodeState::Pool;
                }
            }
            AdaptationAction::Remove { nodes, .. } => {
                nodes.iter().for_each(|id| leave(self.nodes.get_mut(id).expect("a node")));
            }
            AdaptationAction::RemoveCluster { cluster, .. } => {
                self.nodes.values_mut().filter(|n| n.cluster == *cluster).for_each(leave);
            }
            AdaptationAction::MoveRoot { from, to, .. } => {
                assert_eq!(*from, self.root);
                self.root = to.clone();
            }
            AdaptationAction::Measure { cluster } => {
                self.measured.insert(cluster.clone(), self.period);
            }
        }
    }

    /// Simulates one period: requested nodes arrive, leaving nodes go, and the policy decides and
    /// acts.
    pub fn step(&mut self) -> &Decision {
        self.period += 1;
        for node in self.nodes.values_mut() {
            node.state = match node.state {
                ToyNodeState::Coming => ToyNodeState::Member { since: self.period },
                ToyNodeState::Leaving => ToyNodeState::Pool,
                other => other,
            };
        }
        if !self.working().any(|(id, _)| *id == self.root) {
            // The root's node died; another node runs the root.
            let successor = self.working().next().expect("a working node").0.clone();
            self.root = successor;
        }
        let snapshot = self.snapshot();
        let inputs =
            Inputs { snapshot, memory: self.memory.clone(), settings: self.settings.clone() };
        let (decision, memory) = decide(&inputs.snapshot, &inputs.memory, &inputs.settings);
        check(&inputs, &decision);
        self.memory = memory;
        decision.actions.iter().for_each(|action| self.apply(action));
        self.grant();
        self.series.push((self.members(), self.iteration().0));
        self.log.push(LoggedDecision { inputs, decision });
        &self.log.last().expect("just pushed").decision
    }

    pub fn run(&mut self, periods: u32) -> &mut Self {
        (0..periods).for_each(|_| {
            self.step();
        });
        self
    }

    /// Seconds of an iteration.
    pub fn time(&self) -> f64 {
        self.iteration().0
    }

    /// Number of changes between growing and shrinking.
    pub fn turns(&self) -> usize {
        let sizes: Vec<i64> = self.series.iter().map(|s| i64::from(s.0)).collect();
        let changes: Vec<i64> =
            sizes.windows(2).map(|w| (w[1] - w[0]).signum()).filter(|s| *s != 0).collect();
        changes.windows(2).filter(|w| w[0] != w[1]).count()
    }

    /// Periods since the number of nodes last changed.
    pub fn quiet(&self) -> usize {
        let last = self.series.last().map(|s| s.0);
        self.series.iter().rev().take_while(|s| Some(s.0) == last).count()
    }

    /// Explanation of the run, for a failing test.
    pub fn explanation(&self) -> String {
        let mut lines = explain(&self.log, None);
        lines.push(format!("{:?}", self.series));
        lines.join("\n")
    }

    pub fn said(&self, what: impl Fn(&Reason) -> bool) -> bool {
        self.log.iter().flat_map(|l| &l.decision.reasons).any(what)
    }
}

/// Checks the invariants of a decision.
pub fn check(inputs: &Inputs, decision: &Decision) {
    let Inputs { snapshot, .. } = inputs;
    let all = || decision.decided().iter();
    let up = all().any(|a| matches!(a, AdaptationAction::Request(_)));
    let down = all().any(|a| {
        matches!(a, AdaptationAction::Remove { .. } | AdaptationAction::RemoveCluster { .. })
    });
    assert!(!(up && down), "up and down at once: {decision:?}");
    let root = snapshot.root.as_ref();
    let sound = |c: &&ClusterAggregate| c.is_sound();
    let members = |(id, c): (&ClusterId, &ClusterAggregate)| {
        let members = snapshot.members.get(id).copied().unwrap_or(Processors::MAX);
        c.staying().min(members)
    };
    let present: Processors = snapshot.clusters.iter().map(members).sum();
    let known: BTreeMap<&NodeId, Processors> = snapshot
        .clusters
        .values()
        .filter(sound)
        .flat_map(|c| {
            let measured =
                c.worst.iter().chain(&c.best).map(|named| (&named.node, named.processors));
            measured.chain(c.unmeasured.named.iter().map(|idle| (&idle.node, idle.processors)))
        })
        .collect();
    let mut gone = Processors::ZERO;
    let mut seen = BTreeSet::new();
    for action in all() {
        match action {
            AdaptationAction::Request(request) => {
                assert!(!request.count.is_zero() && request.most >= request.count);
                let asked = present.saturating_add(snapshot.requested).saturating_add(request.most);
                let flagged = snapshot.clusters.values().map(|c| c.leaving).sum();
                let unflagged = snapshot.leaving.values().copied().sum::<Processors>();
                let unflagged = unflagged.saturating_sub(flagged);
                let most = snapshot.max_processors.unwrap_or(Processors::MAX).max(Processors::ONE);
                assert!(asked.saturating_sub(unflagged) <= most, "above the maximum: {decision:?}");
                for rate in [request.min_speed, request.min_bandwidth].into_iter().flatten() {
                    assert!(rate.is_finite() && rate >= 0.0);
                }
                assert!(snapshot.leaving.keys().all(|node| request.avoid_nodes.contains(node)));
            }
            AdaptationAction::Withdraw { count } => assert_eq!(*count, snapshot.requested),
            AdaptationAction::Remove { nodes, .. } => {
                assert!(!nodes.is_empty());
                for node in nodes {
                    assert!(seen.insert(node.clone()), "{node} goes twice");
                    assert!(known.contains_key(node), "{node} is not known");
                    assert!(!snapshot.leaving.contains_key(node), "{node} leaves already");
                    assert!(root.is_none_or(|root| root.node != *node), "the root's node goes");
                }
                let processors = nodes.iter().map(|node| known[node]).sum();
                gone = gone.saturating_add(processors);
            }
            AdaptationAction::RemoveCluster { cluster, .. } => {
                assert!(
                    root.is_none_or(|root| root.cluster != *cluster),
                    "the root's cluster goes"
                );
                let others =
                    snapshot.clusters.iter().filter(|(id, c)| *id != cluster && c.is_sound());
                // Workers that have reported but never worked count as waiting.
                let some = others
                    .map(|(_, c)| c.counted.max(c.unmeasured.processors))
                    .any(|n| !n.is_zero());
                assert!(some, "the last cluster goes");
                gone = snapshot.clusters[cluster].staying().saturating_add(gone);
            }
            AdaptationAction::MoveRoot { from, to, cluster } => {
                let leaves = decision.actions.iter().any(|other| match other {
                    AdaptationAction::Remove { nodes, .. } => nodes.contains(to),
                    AdaptationAction::RemoveCluster { cluster: gone, .. } => gone == cluster,
                    _ => false,
                });
                assert!(!leaves, "the root moves to {to}, which is removed");
                assert_eq!(Some(from), root.map(|root| &root.node));
                assert_ne!(from, to);
                assert!(!snapshot.leaving.contains_key(to));
                let of = &snapshot.clusters[cluster];
                assert!(of.best.iter().any(|named| named.node == *to), "{to} is not of {cluster}");
            }
            AdaptationAction::Measure { cluster } => {
                assert!(!snapshot.offers[cluster].free.is_zero());
            }
        }
    }
    if !gone.is_zero() {
        let least = snapshot.min_processors.max(Processors::ONE);
        assert!(present.saturating_sub(gone) >= least, "below the minimum: {decision:?}");
    }
    if let Some(expected) = decision.prediction {
        assert!(expected.efficiency.is_finite() && (0.0..=1.0).contains(&expected.efficiency));
        assert!(expected.useful.is_finite() && expected.useful >= 0.0);
    }
    for reason in &decision.reasons {
        let text = reason.to_string();
        assert!(!text.is_empty());
        let odd = matches!(reason, Reason::Implausible { .. });
        assert!(odd || !(text.contains("NaN") || text.contains("inf")), "{text}");
    }
    let text = serde_json::to_string(decision).expect("it is plain data");
    let back: Decision = serde_json::from_str(&text).expect("it is plain data");
    assert_eq!(serde_json::to_string(&back).expect("it is plain data"), text);
}
