//! Adaptation carried out: each period a snapshot of the job goes to the policy, and what it decides is done and written down.
//!
//! Must not know how anything is decided.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::membership::View;
use springtide_runtime::meter::{BenchmarkSpec, LinkReport, Scale, SpecId};
use tokio::time::Instant;

use super::{Coordinator, Phase};
use crate::cluster::{ClusterPeriod, ClusterTold};
use crate::job::{NoteKind, SCHEDULER};
use crate::policy::{
    self, Action, ClusterAggregate, Crash, Decision, Inputs, LinkEstimate, Logged, Memory, Mode,
    Offer, Request, Root, Settings, Snapshot,
};
use crate::probe;
use crate::scheduler::{
    BetterFree, GetOffers, GetSample, Offers, RequestNodes, Scheduler, SpeedsMeasured, Subscribe,
    WithdrawNodes,
};

/// A cluster's last aggregate counts for so many periods.
const AGGREGATE_AGE: u32 = 3;
/// In periods: by then a cluster's next word is there, whatever the two clocks' phases.
const LATE: f64 = 1.5;
/// Of more links the policy is shown those alone by which it judges clusters: their number grows with the square of theirs.
const LINKS_MAX: usize = 256;
/// By this period work units have told a speed, if the job's tasks declare any: nodes do not count in their first two.
const UNITS_BY: u64 = 4;
/// The scheduler has so long to say what is free; else what it last said counts.
const OFFERS_WITHIN: Duration = Duration::from_secs(1);

/// For whoever watches the job.
fn better_text(better: &BetterFree) -> String {
    let free = better.offers.iter().map(|(cluster, offer)| format!("{} of {cluster}", offer.free));
    format!("better nodes are free: {}", free.collect::<Vec<_>>().join(", "))
}

/// What the coordinator knows for the policy.
pub(super) struct Adaptation {
    settings: Settings,
    memory: Memory,
    period: u64,
    clusters: BTreeMap<ClusterId, Heard>,
    offers: Offers,
    crashes: Vec<Crash>,
    /// What the way to a cluster was measured to carry, by a free node of it, and when.
    measured: BTreeMap<ClusterId, (f64, Instant)>,
    /// The job's benchmark, once there is one.
    benchmark: Option<BenchmarkSpec>,
    scale: Scale,
    /// The node that runs the benchmark although work units tell its speed: what one is in the other is known by that, and
    /// with it what nodes are worth that have never worked for this job.
    sounder: Option<NodeId>,
    /// As last measured, and over how many nodes.
    efficiency: Option<(f64, u32)>,
    /// The scheduler changes the job's nodes by itself: since the last period.
    ordered: bool,
    /// Nodes that were taken when the scheduler offered them, and have not come.
    taken: u32,
}

struct Heard {
    seq: u64,
    at: Instant,
    aggregate: ClusterAggregate,
    scale: Scale,
    links: LinkReport,
}

/// Of the links between many clusters those that tell of a cluster by itself: that to the root's, and the best.
fn telling(links: Vec<LinkEstimate>, home: Option<&ClusterId>) -> Vec<LinkEstimate> {
    if links.len() <= LINKS_MAX {
        return links;
    }
    let mut best: BTreeMap<ClusterId, f64> = BTreeMap::new();
    for link in &links {
        for cluster in [&link.a, &link.b] {
            let known = best.entry(cluster.clone()).or_insert(0.0);
            *known = known.max(link.bandwidth.unwrap_or(0.0));
        }
    }
    let tells = |link: &LinkEstimate| {
        let is_best = |cluster| link.bandwidth.is_some_and(|rate| rate >= best[cluster]);
        [&link.a, &link.b].into_iter().any(|cluster| Some(cluster) == home || is_best(cluster))
    };
    links.into_iter().filter(tells).collect()
}

impl Adaptation {
    /// Of a job that begins. `benchmark`: its own, if it brings one along.
    pub(super) fn new(settings: Settings, benchmark: Option<BenchmarkSpec>) -> Self {
        Self {
            memory: Memory::new(&settings),
            settings,
            period: 0,
            clusters: BTreeMap::new(),
            offers: Offers::default(),
            crashes: Vec::new(),
            measured: BTreeMap::new(),
            benchmark,
            scale: Scale::default(),
            sounder: None,
            efficiency: None,
            ordered: false,
            taken: 0,
        }
    }

    /// The scheduler has offered nodes, and so many were taken; or it has asked for some back.
    pub(super) fn ordered(&mut self, taken: u32) {
        self.ordered = true;
        self.taken = taken;
    }

    /// Nodes have come: those that the scheduler offered, if it did.
    pub(super) fn came(&mut self, nodes: usize) {
        if self.taken > 0 {
            self.ordered = true;
            self.taken = self.taken.saturating_sub(u32::try_from(nodes).unwrap_or(u32::MAX));
        }
    }

    /// The weighted average efficiency as last measured, and over how many nodes.
    pub(super) fn efficiency(&self) -> Option<(f64, u32)> {
        self.efficiency
    }

    /// Whether it takes no nodes of a cluster, for what it has learned of it.
    pub(super) fn keeps_out(&self, cluster: &ClusterId) -> bool {
        let measured = self.measured.get(cluster).map(|(bandwidth, _)| *bandwidth);
        self.memory.keeps_out(cluster, measured, &self.settings)
    }

    /// Nodes that a cluster last named as its worst, worst first.
    pub(super) fn worst_of(&self, cluster: &ClusterId) -> Vec<NodeId> {
        let heard = self.clusters.get(cluster);
        heard.map_or_else(Vec::new, |heard| {
            heard.aggregate.worst.iter().map(|named| named.node.clone()).collect()
        })
    }

    /// What was learned.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What a predecessor had learned.
    pub(super) fn inherit(&mut self, memory: Memory) {
        self.memory = Memory::newest(self.memory.clone(), memory);
    }

    /// The benchmark that a joiner is to run.
    pub(super) fn benchmark(&self) -> Option<BenchmarkSpec> {
        self.wanted().filter(|_| self.sounder.is_none())
    }

    /// A member died that had not been told to leave.
    pub(super) fn crashed(&mut self, node: &NodeId, cluster: &ClusterId) {
        self.crashes.push(Crash { node: node.clone(), cluster: cluster.clone() });
    }

    /// What is known of links, each pair of clusters once: the slower direction counts.
    fn links(&self) -> Vec<LinkEstimate> {
        let all = LinkReport::sum(self.clusters.values().map(|heard| &heard.links));
        let mut pairs: BTreeMap<(ClusterId, ClusterId), LinkEstimate> = BTreeMap::new();
        for link in all.estimates() {
            let (a, b) =
                if link.from <= link.to { (link.from, link.to) } else { (link.to, link.from) };
            if a == b {
                continue;
            }
            let pair = pairs.entry((a.clone(), b.clone())).or_insert_with(|| LinkEstimate {
                a,
                b,
                bandwidth: None,
                rtt_s: None,
                age_s: 0.0,
            });
            let slower = |known: Option<f64>, new: f64| Some(known.map_or(new, |old| old.min(new)));
            if let Some(bandwidth) = link.bandwidth {
                pair.bandwidth = slower(pair.bandwidth, bandwidth);
            }
            if let Some(us) = link.round_trip_us {
                pair.rtt_s = slower(pair.rtt_s, us * 1e-6);
            }
        }
        pairs.into_values().collect()
    }

    /// What one unit of the benchmark's speed is in the job's.
    fn unit(&self) -> Option<f64> {
        let spec = self.benchmark.as_ref()?.id();
        if spec == self.scale.spec {
            return Some(1.0);
        }
        self.scale.factors.get(&spec).copied().filter(|factor| factor.is_finite() && *factor > 0.0)
    }

    /// Whether some node was measured by the work units that the job's tasks declare.
    fn tells_units(&self) -> bool {
        let mut clusters = self.clusters.values();
        clusters.any(|c| c.scale.spec == SpecId::DECLARED && c.aggregate.max_speed > 0.0)
    }

    /// The benchmark that nodes are to run: where work units tell their speeds at no cost one node alone, and none before that
    /// is known. (A run takes half a second of each node.)
    fn wanted(&self) -> Option<BenchmarkSpec> {
        let known = self.period >= UNITS_BY && (!self.tells_units() || self.sounder.is_some());
        self.benchmark.clone().filter(|_| known)
    }

    /// Chooses the node that runs the benchmark where work units tell the speeds: a fast one, for what is slow has a reason that
    /// may pass; and not the root's, for what is called there in vain delays all.
    fn choose_sounder(&mut self, view: &View) {
        if !self.tells_units() {
            self.sounder = None;
            return;
        }
        let fits = |node: &NodeId| view.coordinator.as_ref() != Some(node) && view.stays(node);
        if self.sounder.as_ref().is_some_and(fits) || self.unit().is_some() {
            return;
        }
        let best = self.clusters.values().flat_map(|heard| &heard.aggregate.best);
        let best = best.filter(|named| fits(&named.node));
        let best = best.max_by(|a, b| a.speed.total_cmp(&b.speed).then(b.node.cmp(&a.node)));
        self.sounder = best.map(|named| named.node.clone());
    }

    /// The clusters' scales put together: declared work units if any cluster has them, else that of the benchmark.
    fn agree_on_scale(&mut self) {
        let scales = || self.clusters.values().map(|heard| &heard.scale);
        let mut scale = Scale::default();
        if !self.tells_units() {
            scale.spec = self.benchmark.as_ref().map_or(SpecId::DECLARED, BenchmarkSpec::id);
        }
        for of_cluster in scales().filter(|of_cluster| of_cluster.spec == scale.spec) {
            for (spec, factor) in &of_cluster.factors {
                scale.factors.entry(*spec).or_insert(*factor);
            }
        }
        self.scale = scale;
    }
}

impl Coordinator {
    pub(super) fn adapts(&self) -> bool {
        self.spec.params.mode != Mode::Static
    }

    /// Links between the job's clusters, as they are believed to be.
    pub(super) fn links(&self) -> Vec<LinkEstimate> {
        self.adaptation.links()
    }

    /// A cluster's period. Returns what all clusters are to know.
    pub(super) fn heard_cluster(&mut self, message: &ClusterPeriod) -> ClusterTold {
        let adapt = &mut self.adaptation;
        let known = adapt.clusters.get(&message.cluster).map(|heard| heard.seq);
        // A former coordinator of the cluster may not know yet that it is none.
        let newer = known.is_none_or(|known| message.seq > known);
        if let Some(aggregate) = message.aggregate.as_ref().filter(|_| newer) {
            let heard = Heard {
                seq: message.seq,
                at: Instant::now(),
                aggregate: aggregate.clone(),
                scale: message.scale.clone(),
                links: message.links.clone(),
            };
            adapt.clusters.insert(message.cluster.clone(), heard);
            adapt.agree_on_scale();
            adapt.choose_sounder(&self.view);
        }
        if adapt.benchmark.is_none()
            && let Some(candidate) = &message.candidate
        {
            tracing::info!(spec = %candidate.id(), "the job's benchmark is a sample of its tasks");
            adapt.benchmark = Some(candidate.clone());
        }
        let wanted = adapt.wanted();
        let known = wanted.as_ref().map(BenchmarkSpec::id);
        ClusterTold {
            memory: Some(adapt.memory.clone()),
            scale: adapt.scale.clone(),
            proposed: adapt.benchmark.is_some(),
            benchmark: wanted.filter(|_| known != message.benchmark),
            only: adapt.sounder.clone(),
        }
    }

    /// The period is over: what is free is asked for, then it is decided.
    pub(super) fn end_period(&mut self, ctx: &mut Context<Self>) {
        if self.phase != Phase::Running {
            return;
        }
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let get = GetOffers { job: self.spec.id, epoch: self.spec.epoch };
        let call = remote.send(get).deadline(OFFERS_WITHIN).start();
        ctx.spawn(call.into_actor(self).map(|answer, coordinator, ctx| {
            match answer {
                Ok(Ok(offers)) => coordinator.adaptation.offers = offers,
                Ok(Err(stale)) => {
                    // Another has the job; its view comes here if this node is still a member.
                    tracing::warn!("{stale}");
                    coordinator.engine.cancel_root();
                    return ctx.stop();
                }
                Err(error) => tracing::info!(%error, "the scheduler did not say what is free"),
            }
            coordinator.adapt(ctx);
        }));
    }

    fn snapshot(&mut self) -> Snapshot {
        let period_s = self.spec.params.period().as_secs_f64();
        let oldest = Duration::from_secs_f64(period_s) * AGGREGATE_AGE;
        let now = Instant::now();
        let view = &self.view;
        let adapt = &mut self.adaptation;
        adapt.clusters.retain(|cluster, heard| {
            view.cluster_coordinators.contains_key(cluster)
                && now.saturating_duration_since(heard.at) <= oldest
        });
        adapt.period += 1;
        let due = Duration::from_secs_f64(period_s * LATE);
        let is_late = |heard: &Heard| now.saturating_duration_since(heard.at) > due;
        let late = adapt.clusters.iter().filter(|(_, heard)| is_late(heard));
        let late = late.map(|(cluster, _)| cluster.clone()).collect();
        let count = |nodes: &[NodeId]| u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let clusters = view.members.clusters();
        let members = clusters.map(|(cluster, nodes)| (cluster.clone(), count(nodes))).collect();
        let root = view.coordinator.as_ref().and_then(|node| {
            Some(Root { node: node.clone(), cluster: view.cluster_of(node)?.clone() })
        });
        let home = root.as_ref().map(|root: &Root| root.cluster.clone());
        let unit = adapt.unit();
        let offers = adapt.offers.offers.iter().map(|(cluster, offer)| {
            // A speed in an unknown unit is none.
            let in_unit = |(node, speed): (&NodeId, &f64)| Some((node.clone(), speed * unit?));
            let nodes = offer.nodes.iter().filter_map(in_unit);
            let speed = unit.zip(offer.speed).map(|(unit, speed)| unit * speed);
            let mut offer = Offer { nodes: nodes.collect(), speed, ..offer.clone() };
            if let Some((bandwidth, at)) = adapt.measured.get(cluster) {
                offer.bandwidth = Some(*bandwidth);
                offer.measured_s = Some(now.saturating_duration_since(*at).as_secs_f64());
            }
            (cluster.clone(), offer)
        });
        Snapshot {
            epoch: self.spec.epoch,
            period: adapt.period,
            period_s,
            elapsed_s: self.started.elapsed().as_secs_f64(),
            mode: self.spec.params.mode,
            clusters: adapt
                .clusters
                .iter()
                .map(|(cluster, heard)| (cluster.clone(), heard.aggregate.clone()))
                .collect(),
            members,
            late,
            root,
            min_nodes: self.spec.params.min_nodes,
            max_nodes: self.spec.params.max_nodes,
            requested: adapt.offers.open.saturating_add(self.changes.coming()),
            leaving: view
                .members
                .iter()
                .filter(|(_, member)| member.leaving)
                .map(|(node, _)| node.clone())
                .collect(),
            crashes: std::mem::take(&mut adapt.crashes),
            links: telling(adapt.links(), home.as_ref()),
            offers: offers.collect(),
            ordered: std::mem::take(&mut adapt.ordered),
            progress: self.told.lock().unwrap_or_else(PoisonError::into_inner).progress,
        }
    }

    fn adapt(&mut self, ctx: &mut Context<Self>) {
        if self.phase != Phase::Running {
            return;
        }
        let snapshot = self.snapshot();
        let memory = self.adaptation.memory.clone();
        let settings = self.adaptation.settings.clone();
        let (decision, next) = policy::decide(&snapshot, &memory, &settings);
        let inputs = Inputs { snapshot, memory, settings };
        let logged = Logged { inputs, decision: decision.clone() };
        self.thoughts.take_in(&logged);
        self.write_down(&logged);
        self.adaptation.memory = next;
        if let Some(efficiency) = decision.efficiency {
            self.adaptation.efficiency = Some((efficiency, decision.nodes));
            self.tell_efficiency(efficiency, decision.nodes);
        }
        for action in &decision.actions {
            let mut text = policy::action(action);
            if let Some(reason) = decision.why.first() {
                text = format!("{text}: {reason}");
            }
            if !matches!(action, Action::Measure { .. }) {
                self.tell(NoteKind::Say { text });
            }
            self.carry_out(action, ctx);
        }
        self.tell_speeds(ctx);
        self.subscribe(ctx);
        // The run log follows the run, and nothing piles up here.
        self.tell(NoteKind::Events { records: self.recorder.drain() });
    }

    fn write_down(&self, logged: &Logged) {
        let Decision { why, .. } = &logged.decision;
        let sentences: Vec<String> = why.iter().map(ToString::to_string).collect();
        match serde_json::to_value(logged) {
            Ok(inputs) => self.recorder.record(Event::Decision {
                decision: policy::ADAPT.to_owned(),
                why: sentences.join("; "),
                inputs,
            }),
            Err(error) => tracing::error!(%error, "a decision cannot be written down"),
        }
    }

    fn carry_out(&mut self, action: &Action, ctx: &mut Context<Self>) {
        match action {
            Action::Request(request) => self.request(request, ctx),
            Action::Withdraw { count } => {
                let (job, epoch) = (self.spec.id, self.spec.epoch);
                let withdraw = WithdrawNodes { job, epoch, count: *count };
                let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
                let call = remote.send(withdraw).start();
                ctx.spawn(call.into_actor(self).map(|answer, coordinator, _| match answer {
                    Ok(Ok(requested)) => coordinator.adaptation.offers.open = requested.open,
                    Ok(Err(stale)) => tracing::warn!("{stale}"),
                    Err(error) => tracing::warn!(%error, "a request was not withdrawn"),
                }));
            }
            Action::Remove { nodes, cause } => {
                self.remove(nodes, &cause.to_string(), None, ctx);
            }
            Action::RemoveCluster { cluster, cause } => {
                let nodes: Vec<NodeId> = self.view.in_cluster(cluster).cloned().collect();
                self.remove(&nodes, &cause.to_string(), None, ctx);
            }
            Action::MoveRoot { to, .. } => {
                if !self.move_root(to, "the policy moves it", None, ctx) {
                    tracing::warn!(%to, "the root cannot move there");
                }
            }
            Action::Measure { cluster } => self.measure_way(cluster.clone(), ctx),
        }
    }

    /// Measures what the way to a cluster carries whose nodes are free.
    fn measure_way(&mut self, cluster: ClusterId, ctx: &mut Context<Self>) {
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let ask = remote.send(GetSample { job, epoch, cluster: cluster.clone() }).start();
        let hub = Arc::clone(&self.hub);
        let measure = async move {
            let Ok(Ok(Some(contact))) = ask.await else { return None };
            match probe::bandwidth(&hub, contact).await {
                Ok(bandwidth) => Some(bandwidth),
                Err(error) => {
                    tracing::info!(%error, "the way to a free node could not be measured");
                    None
                }
            }
        };
        ctx.spawn(measure.into_actor(self).map(|bandwidth, coordinator, _| {
            if let Some(bandwidth) = bandwidth {
                tracing::info!(%cluster, bandwidth, "the way to a cluster was measured");
                let measured = (bandwidth, Instant::now());
                coordinator.adaptation.measured.insert(cluster, measured);
            }
        }));
    }

    fn request(&mut self, request: &Request, ctx: &mut Context<Self>) {
        // Nodes that the program would give back are not asked for.
        let count = self.program_takes(request.count, None);
        if count == 0 {
            return;
        }
        let adapt = &self.adaptation;
        let unit = adapt.unit();
        // The scheduler knows speeds by the benchmark only.
        let min_speed = request.min_speed.zip(unit).map(|(speed, unit)| speed / unit);
        let home = self.view.coordinator.as_ref().and_then(|node| self.view.cluster_of(node));
        let mut rtt_s = BTreeMap::new();
        let mut bandwidth: BTreeMap<ClusterId, f64> = BTreeMap::new();
        for link in adapt.links() {
            for (one, other) in [(&link.a, &link.b), (&link.b, &link.a)] {
                if Some(one) == home
                    && let Some(rtt) = link.rtt_s
                {
                    rtt_s.insert(other.clone(), rtt);
                }
                if let Some(rate) = link.bandwidth {
                    let best = bandwidth.entry(other.clone()).or_insert(rate);
                    *best = best.max(rate);
                }
            }
        }
        for (cluster, (rate, _)) in &adapt.measured {
            bandwidth.entry(cluster.clone()).or_insert(*rate);
        }
        let message = RequestNodes {
            job: self.spec.id,
            epoch: self.spec.epoch,
            request: Request { count, min_speed, ..request.clone() },
            benchmark: adapt.benchmark.clone(),
            rtt_s,
            bandwidth,
        };
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = remote.send(message).start();
        ctx.spawn(call.into_actor(self).map(|answer, coordinator, _| match answer {
            Ok(Ok(requested)) => coordinator.adaptation.offers.open = requested.open,
            Ok(Err(stale)) => tracing::warn!("{stale}"),
            Err(error) => tracing::warn!(%error, "nodes could not be asked for"),
        }));
    }

    /// Tells the scheduler how fast nodes are that clusters name: it knows the nodes, and will be asked for such. Before it is known
    /// what the benchmark's unit is, as they are compared here: then it knows at least which are slower than others.
    fn tell_speeds(&self, ctx: &mut Context<Self>) {
        let adapt = &self.adaptation;
        let benchmark = adapt.benchmark.as_ref().map(BenchmarkSpec::id);
        let (spec, unit) = benchmark.zip(adapt.unit()).unwrap_or((adapt.scale.spec, 1.0));
        let named = adapt
            .clusters
            .values()
            .flat_map(|heard| heard.aggregate.worst.iter().chain(&heard.aggregate.best));
        let named = named.filter(|named| named.speed > 0.0);
        let speeds: BTreeMap<NodeId, f64> =
            named.map(|named| (named.node.clone(), named.speed / unit)).collect();
        if speeds.is_empty() {
            return;
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = remote.send(SpeedsMeasured { job, epoch, spec, speeds }).start();
        // The next period tells again.
        ctx.spawn(async move { drop(call.await) }.into_actor(self));
    }

    /// Where the job would move to better nodes, the scheduler says when there are any: then the next decision knows of them, though the
    /// scheduler should not be heard just then.
    fn subscribe(&self, ctx: &mut Context<Self>) {
        let adapt = &self.adaptation;
        let moves = self.spec.params.mode == Mode::Adaptive && adapt.settings.migrate;
        let Some(unit) = adapt.unit().filter(|_| moves) else { return };
        let worst = adapt.clusters.values().flat_map(|heard| &heard.aggregate.worst);
        let speeds = worst.map(|named| named.speed).filter(|speed| *speed > 0.0);
        let slowest = speeds.fold(f64::INFINITY, f64::min);
        let faster_than = adapt.settings.migrate_factor * slowest / unit;
        if !faster_than.is_finite() {
            return;
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = remote.send(Subscribe { job, epoch, faster_than: Some(faster_than) }).start();
        // The next period says it again: a scheduler that comes back does not know of it.
        ctx.spawn(async move { drop(call.await) }.into_actor(self));
    }

    /// Better nodes than the job has are free: what is known of the pool is as of now.
    pub(super) fn better_free(&mut self, better: BetterFree) {
        tracing::info!(clusters = ?better.offers.keys(), "better nodes are free");
        self.tell(NoteKind::Say { text: better_text(&better) });
        self.adaptation.offers.offers = better.offers;
    }
}
