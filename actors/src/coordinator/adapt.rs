//! Execution of adaptation: each period, the policy gets a snapshot of the job, and its decision is
//! executed and logged.
//!
//! This module does not know the policy's rules.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::cluster::{ClusterPeriod, ClusterPeriodReply, StoreMemory};
use springtide_protocol::job::NoteKind;
use springtide_protocol::names::{SCHEDULER, cluster_coordinator_name};
use springtide_protocol::receivers::{ClusterCoordinator, Scheduler};
use springtide_protocol::scheduler::{
    BetterFree, GetOffers, GetSample, Offers, RequestNodes, SpeedsMeasured, Subscribe,
    WithdrawNodes,
};
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::membership::View;
use springtide_runtime::meter::{BenchmarkSpec, LinkReport, Scale, SpecId};
use springtide_runtime::processors::Processors;
use tokio::time::Instant;

use super::{Coordinator, CoordinatorPhase};
use crate::policy::{
    self, AdaptationAction, AdaptationSettings, ClusterAggregate, Crash, Decision, Inputs,
    LinkEstimate, LoggedDecision, Memory, Mode, NodeOffer, OfferedNode, RatedWorker,
    RecentObservations, RootNode, SchedulerRequest, Snapshot,
};
use crate::probe;

/// Periods for which a cluster's last aggregate counts.
const AGGREGATE_AGE: u32 = 3;
/// Periods after which a cluster's report is overdue, independent of the phases of clocks.
const LATE: f64 = 1.5;
/// Above this number of links, the snapshot contains only those that the policy uses to judge
/// clusters. The number of links is quadratic in the number of clusters.
const LINKS_MAX: usize = 256;
/// Period by which declared work units have given a speed, if tasks declare any. Nodes do not count
/// in their first two periods.
const UNITS_BY: u64 = 4;
/// Timeout of offers from the scheduler; on a timeout the last offers count.
const OFFERS_WITHIN: Duration = Duration::from_secs(1);

/// Text of a note to the client.
fn better_text(better: &BetterFree) -> String {
    let free = |(cluster, offer): (_, &NodeOffer)| format!("{} of {cluster}", offer.free);
    let free = better.offers.iter().map(free);
    format!("better nodes are free: {}", free.collect::<Vec<_>>().join(", "))
}

/// The coordinator's knowledge for the policy.
pub(super) struct Adaptation {
    settings: AdaptationSettings,
    memory: Memory,
    period: u64,
    clusters: BTreeMap<ClusterId, ClusterState>,
    offers: Offers,
    /// Time of the last decision, or of the start.
    decided: Instant,
    /// The job's benchmark, once known.
    benchmark: Option<BenchmarkSpec>,
    scale: Scale,
    /// A node that runs the benchmark although work units give its speed. Its two speeds give the
    /// ratio of the units, and so the value of nodes that have never worked for this job.
    benchmark_node: Option<NodeId>,
    /// The last note to the client about better free nodes.
    better_note: String,
}

struct ClusterState {
    seq: u64,
    received: Instant,
    aggregate: ClusterAggregate,
    scale: Scale,
    links: LinkReport,
}

/// Reduces many links to those that characterise a cluster: its link to the root's cluster, and its
/// best one.
fn characteristic_links(links: Vec<LinkEstimate>, home: Option<&ClusterId>) -> Vec<LinkEstimate> {
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
    /// Creates the state of a new job. `benchmark` is the job's own, if any.
    pub(super) fn new(settings: AdaptationSettings, benchmark: Option<BenchmarkSpec>) -> Self {
        Self {
            memory: Memory::new(&settings),
            settings,
            period: 0,
            clusters: BTreeMap::new(),
            offers: Offers::default(),
            decided: Instant::now(),
            benchmark,
            scale: Scale::default(),
            benchmark_node: None,
            better_note: String::new(),
        }
    }

    /// Observations since the last decision.
    pub(super) fn recent(&mut self) -> &mut RecentObservations {
        &mut self.memory.recent
    }

    /// Last measured weighted average efficiency, and its number of processors.
    pub(super) fn efficiency(&self) -> Option<(f64, Processors)> {
        self.memory.measured.map(|measured| (measured.efficiency, measured.processors))
    }

    /// Whether the memory excludes a cluster.
    pub(super) fn keeps_out(&self, cluster: &ClusterId) -> bool {
        let measured = self.memory.links.probes.get(cluster).and_then(|probe| probe.bandwidth);
        self.memory.keeps_out(cluster, measured, &self.settings)
    }

    /// Nodes that a cluster last reported as its worst, worst first.
    pub(super) fn worst_of(&self, cluster: &ClusterId) -> Vec<NodeId> {
        let state = self.clusters.get(cluster);
        state.map_or_else(Vec::new, |state| {
            state.aggregate.worst.iter().map(|named| named.node.clone()).collect()
        })
    }

    /// The policy's memory.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Takes over the memory of a predecessor, and what was observed here since.
    pub(super) fn inherit(&mut self, memory: Memory) {
        let here = std::mem::replace(&mut self.memory, memory);
        for Crash { node, cluster } in here.recent.crashes {
            if self.memory.recent.crashes.iter().all(|known| known.node != node) {
                self.memory.recent.crashed(&node, &cluster);
            }
        }
        if here.recent.ordered {
            self.memory.recent.ordered(here.recent.accepted);
        }
    }

    /// Benchmark for a joining node.
    pub(super) fn benchmark(&self) -> Option<BenchmarkSpec> {
        self.wanted().filter(|_| self.benchmark_node.is_none())
    }

    /// Estimates of links, one for each pair of clusters, by the slower direction.
    fn links(&self) -> Vec<LinkEstimate> {
        let all = LinkReport::sum(self.clusters.values().map(|state| &state.links));
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

    /// Value of one unit of the benchmark's speed in the job's unit.
    fn unit(&self) -> Option<f64> {
        let spec = self.benchmark.as_ref()?.id();
        if spec == self.scale.spec {
            return Some(1.0);
        }
        self.scale.factors.get(&spec).copied().filter(|factor| factor.is_finite() && *factor > 0.0)
    }

    /// The clusters' aggregates in the job's unit.
    fn aggregates(&self) -> impl Iterator<Item = (&ClusterId, ClusterAggregate)> {
        self.clusters.iter().map(|(cluster, state)| {
            let spec = state.scale.spec;
            let aggregate = if spec == self.scale.spec {
                state.aggregate.clone()
            } else {
                state.aggregate.in_unit(self.scale.factors.get(&spec).copied())
            };
            (cluster, aggregate)
        })
    }

    /// Whether work units that tasks declare have given the speed of a node.
    fn has_declared_units(&self) -> bool {
        self.clusters.values().any(ClusterState::has_declared_units)
    }

    /// Benchmark for the nodes. Where work units give speeds at no cost, only one node runs it, and
    /// none before this is known. (A run takes half a second of each node.)
    fn wanted(&self) -> Option<BenchmarkSpec> {
        let known = self.memory.tick >= UNITS_BY
            && (!self.has_declared_units() || self.benchmark_node.is_some());
        self.benchmark.clone().filter(|_| known)
    }

    /// Chooses the node that runs the benchmark where work units give the speeds. It is a fast one,
    /// since slowness may be temporary, and not the root's, which would delay all.
    fn choose_benchmark_node(&mut self, view: &View) {
        if !self.has_declared_units() {
            self.benchmark_node = None;
            return;
        }
        let fits = |node: &NodeId| view.coordinator.as_ref() != Some(node) && view.stays(node);
        if self.benchmark_node.as_ref().is_some_and(fits) || self.unit().is_some() {
            return;
        }
        let declared = self.clusters.values().filter(|state| state.has_declared_units());
        let best = declared.flat_map(|state| &state.aggregate.best);
        let best = best.filter(|named| fits(&named.node));
        let speed = RatedWorker::processor_speed;
        let best = best.max_by(|a, b| speed(a).total_cmp(&speed(b)).then(b.node.cmp(&a.node)));
        self.benchmark_node = best.map(|named| named.node.clone());
    }

    /// Merges the clusters' scales. Declared work units take precedence over the benchmark.
    fn merge_scales(&mut self) {
        let scales = || self.clusters.values().map(|state| &state.scale);
        let mut scale = Scale::default();
        if !self.has_declared_units() {
            scale.spec = self.benchmark.as_ref().map_or(SpecId::DECLARED, BenchmarkSpec::id);
        }
        for of_cluster in scales().filter(|of_cluster| of_cluster.spec == scale.spec) {
            for (spec, factor) in &of_cluster.factors {
                scale.factors.entry(*spec).or_insert(*factor);
            }
        }
        if scale.spec != self.scale.spec {
            self.memory.change_unit(scale.factors.get(&self.scale.spec).copied());
        }
        self.scale = scale;
    }
}

impl ClusterState {
    fn has_declared_units(&self) -> bool {
        self.scale.spec == SpecId::DECLARED && self.aggregate.max_speed > 0.0
    }
}

impl Coordinator {
    pub(super) fn adapts(&self) -> bool {
        self.spec.params.mode != Mode::Static
    }

    /// Estimates of the links between the job's clusters.
    pub(super) fn links(&self) -> Vec<LinkEstimate> {
        self.adaptation.links()
    }

    /// Records a cluster's period. Returns the reply for its coordinator.
    pub(super) fn record_cluster_period(&mut self, message: &ClusterPeriod) -> ClusterPeriodReply {
        let adapt = &mut self.adaptation;
        let known = adapt.clusters.get(&message.cluster).map(|state| state.seq);
        // A replaced coordinator of the cluster may still send.
        let newer = known.is_none_or(|known| message.seq > known);
        if let Some(aggregate) = message.aggregate.as_ref().filter(|_| newer) {
            let state = ClusterState {
                seq: message.seq,
                received: Instant::now(),
                aggregate: aggregate.clone(),
                scale: message.scale.clone(),
                links: message.links.clone(),
            };
            adapt.clusters.insert(message.cluster.clone(), state);
            adapt.merge_scales();
            adapt.choose_benchmark_node(&self.view);
        }
        if adapt.benchmark.is_none()
            && let Some(candidate) = &message.candidate
        {
            tracing::info!(spec = %candidate.id(), "the job's benchmark is a sample of its tasks");
            adapt.benchmark = Some(candidate.clone());
        }
        let wanted = adapt.wanted();
        let known = wanted.as_ref().map(BenchmarkSpec::id);
        ClusterPeriodReply {
            memory: Some(adapt.memory.clone()),
            scale: adapt.scale.clone(),
            proposed: adapt.benchmark.is_some(),
            benchmark: wanted.filter(|_| known != message.benchmark),
            benchmark_node: adapt.benchmark_node.clone(),
        }
    }

    /// Ends the period: queries free nodes, then decides.
    pub(super) fn end_period(&mut self, ctx: &mut Context<Self>) {
        if self.phase != CoordinatorPhase::Running {
            return;
        }
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let get = GetOffers { job: self.spec.id, epoch: self.spec.epoch };
        let call = remote.send(get).deadline(OFFERS_WITHIN).start();
        ctx.spawn(call.into_actor(self).map(|answer, coordinator, ctx| {
            match answer {
                Ok(Ok(offers)) => coordinator.adaptation.offers = offers,
                Ok(Err(stale)) => {
                    // Another node coordinates the job; its view arrives here if this node is still
                    // a member.
                    tracing::warn!("{stale}");
                    coordinator.engine.cancel_root();
                    return ctx.stop();
                }
                Err(error) => tracing::info!(%error, "the scheduler did not send its offers"),
            }
            coordinator.adapt(ctx);
        }));
    }

    fn snapshot(&mut self) -> Snapshot {
        let period_s = self.spec.params.period().as_secs_f64();
        let oldest = Duration::from_secs_f64(period_s) * AGGREGATE_AGE;
        let now = Instant::now();
        let (min, max) = self.bounds();
        let view = &self.view;
        let adapt = &mut self.adaptation;
        adapt.clusters.retain(|cluster, state| {
            view.cluster_coordinators.contains_key(cluster)
                && now.saturating_duration_since(state.received) <= oldest
        });
        adapt.period += 1;
        let due = Duration::from_secs_f64(period_s * LATE);
        let is_late = |state: &ClusterState| now.saturating_duration_since(state.received) > due;
        let late = adapt.clusters.iter().filter(|(_, state)| is_late(state));
        let late = late.map(|(cluster, _)| cluster.clone()).collect();
        let mut members: BTreeMap<ClusterId, Processors> = BTreeMap::new();
        for (_, member) in view.members.iter() {
            let of_cluster = members.entry(member.cluster.clone()).or_default();
            *of_cluster = of_cluster.saturating_add(member.processors());
        }
        let root = view.coordinator.as_ref().and_then(|node| {
            Some(RootNode { node: node.clone(), cluster: view.cluster_of(node)?.clone() })
        });
        let home = root.as_ref().map(|root: &RootNode| root.cluster.clone());
        let unit = adapt.unit();
        let offers = adapt.offers.offers.iter().map(|(cluster, offer)| {
            // A speed in an unknown unit is unknown.
            let in_unit = |(node, own): (&NodeId, &OfferedNode)| {
                Some((node.clone(), OfferedNode { speed: own.speed * unit?, ..*own }))
            };
            let nodes = offer.nodes.iter().filter_map(in_unit);
            let speed = unit.zip(offer.speed).map(|(unit, speed)| unit * speed);
            (cluster.clone(), NodeOffer { nodes: nodes.collect(), speed, ..offer.clone() })
        });
        let (crashes, ordered) = adapt.memory.recent.take();
        let (progress, synchronous) = {
            let root = self.root_progress.lock().unwrap_or_else(PoisonError::into_inner);
            (root.progress, root.is_synchronous)
        };
        Snapshot {
            epoch: self.spec.epoch,
            period: adapt.period,
            period_s,
            elapsed_s: self.started.elapsed().as_secs_f64(),
            mode: self.spec.params.mode,
            clusters: adapt
                .aggregates()
                .map(|(cluster, aggregate)| (cluster.clone(), aggregate))
                .collect(),
            members,
            late,
            root,
            min_processors: min,
            max_processors: max,
            requested: adapt.offers.open.saturating_add(self.changes.coming()),
            leaving: view
                .members
                .iter()
                .filter(|(_, member)| member.leaving)
                .map(|(node, member)| (node.clone(), member.processors()))
                .collect(),
            crashes,
            links: characteristic_links(adapt.links(), home.as_ref()),
            offers: offers.collect(),
            ordered,
            progress,
            synchronous,
            has_checkpoints: self.checkpoints.last().is_some(),
        }
    }

    fn adapt(&mut self, ctx: &mut Context<Self>) {
        if self.phase != CoordinatorPhase::Running {
            return;
        }
        let snapshot = self.snapshot();
        let memory = self.adaptation.memory.clone();
        let settings = self.adaptation.settings.clone();
        let (decision, next) = policy::decide(&snapshot, &memory, &settings);
        let inputs = Inputs { snapshot, memory, settings };
        let logged = LoggedDecision { inputs, decision: decision.clone() };
        self.decision_history.take_in(&logged);
        self.log_decision(&logged);
        (self.adaptation.memory, self.adaptation.decided) = (next, Instant::now());
        self.store_memory(ctx);
        if let Some(efficiency) = decision.efficiency {
            self.report_efficiency(efficiency, decision.processors);
        }
        for action in &decision.actions {
            let mut text = policy::describe_action(action);
            if let Some(reason) = decision.reasons.first() {
                text = format!("{text}: {reason}");
            }
            if action.is_change() {
                self.notify_client(NoteKind::Text { text });
            }
            self.execute(action, ctx);
        }
        self.report_speeds(ctx);
        self.subscribe(ctx);
        // Keeps the run log up to date, and the recorder empty.
        self.notify_client(NoteKind::Events { records: self.recorder.drain() });
    }

    /// Sends the memory to the coordinators of the clusters, so that it survives this node's death
    /// before the period ends.
    pub(super) fn store_memory(&self, ctx: &mut Context<Self>) {
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let period = self.spec.params.period();
        for node in self.view.cluster_coordinators.values() {
            let remote =
                self.hub.remote::<ClusterCoordinator>(node, &cluster_coordinator_name(job));
            let memory = self.adaptation.memory.clone();
            let call = remote.send(StoreMemory { job, epoch, memory }).deadline(period).start();
            // The reply to the cluster's next period has the memory too.
            ctx.spawn(async move { drop(call.await) }.into_actor(self));
        }
    }

    fn log_decision(&self, logged: &LoggedDecision) {
        let Decision { reasons: why, .. } = &logged.decision;
        let sentences: Vec<String> = why.iter().map(ToString::to_string).collect();
        match serde_json::to_value(logged) {
            Ok(inputs) => self.recorder.record(Event::Decision {
                decision: policy::ADAPT.to_owned(),
                why: sentences.join("; "),
                inputs,
            }),
            Err(error) => tracing::error!(%error, "a decision cannot be logged"),
        }
    }

    fn execute(&mut self, action: &AdaptationAction, ctx: &mut Context<Self>) {
        match action {
            AdaptationAction::Request(request) => self.request(request, ctx),
            AdaptationAction::Withdraw { count } => {
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
            AdaptationAction::Remove { nodes, cause } => {
                self.remove(nodes, &cause.to_string(), None, ctx);
            }
            AdaptationAction::RemoveCluster { cluster, cause } => {
                let nodes: Vec<NodeId> = self.view.in_cluster(cluster).cloned().collect();
                self.remove(&nodes, &cause.to_string(), None, ctx);
            }
            AdaptationAction::MoveRoot { to, .. } => {
                if !self.move_root(to, "the policy moves it", None, ctx) {
                    tracing::warn!(%to, "the root cannot move to this node");
                }
            }
            AdaptationAction::Measure { cluster } => self.measure_bandwidth(cluster.clone(), ctx),
        }
    }

    /// Measures the bandwidth to a cluster with free nodes.
    fn measure_bandwidth(&mut self, cluster: ClusterId, ctx: &mut Context<Self>) {
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let ask = remote.send(GetSample { job, epoch, cluster: cluster.clone() }).start();
        let hub = Arc::clone(&self.hub);
        let measure = async move {
            let Ok(Ok(Some(contact))) = ask.await else { return None };
            match probe::bandwidth(&hub, contact).await {
                Ok(bandwidth) => Some(bandwidth),
                Err(error) => {
                    tracing::info!(%error, "the bandwidth to a free node was not measured");
                    None
                }
            }
        };
        ctx.spawn(measure.into_actor(self).map(move |bandwidth, coordinator, ctx| {
            if let Some(bandwidth) = bandwidth {
                tracing::info!(%cluster, bandwidth, "the bandwidth to a cluster was measured");
                let adapt = &mut coordinator.adaptation;
                let since_s = adapt.decided.elapsed().as_secs_f64();
                adapt.memory.record_probe(&cluster, bandwidth, since_s);
                coordinator.store_memory(ctx);
            }
        }));
    }

    fn request(&mut self, request: &SchedulerRequest, ctx: &mut Context<Self>) {
        // Nodes that the program would return are not requested.
        let count = self.program_takes(request.count);
        if count.is_zero() {
            return;
        }
        // Nor is a greater node, unless the program takes all that was decided.
        let most = if count < request.count { count } else { request.most };
        let adapt = &self.adaptation;
        let unit = adapt.unit();
        // The scheduler knows speeds in the benchmark's unit only.
        let min_speed = request.min_speed.zip(unit).map(|(speed, unit)| speed / unit);
        let home = self.view.coordinator.as_ref().and_then(|node| self.view.cluster_of(node));
        // The decision has recorded this period's estimates in the memory.
        let rtt_s = home.map_or_else(BTreeMap::new, |home| adapt.memory.round_trips_from(home));
        let members = self.view.members.clusters().map(|(cluster, _)| cluster.clone()).collect();
        let bandwidth = adapt.memory.bandwidths(&members);
        let message = RequestNodes {
            job: self.spec.id,
            epoch: self.spec.epoch,
            request: SchedulerRequest { count, most, min_speed, ..request.clone() },
            benchmark: adapt.benchmark.clone(),
            rtt_s,
            bandwidth,
        };
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = remote.send(message).start();
        ctx.spawn(call.into_actor(self).map(|answer, coordinator, _| match answer {
            Ok(Ok(requested)) => coordinator.adaptation.offers.open = requested.open,
            Ok(Err(stale)) => tracing::warn!("{stale}"),
            Err(error) => tracing::warn!(%error, "nodes could not be requested"),
        }));
    }

    /// Reports the speeds of named nodes to the scheduler, for later requests. While the
    /// benchmark's unit is unknown, speeds are in the job's unit and still comparable.
    fn report_speeds(&self, ctx: &mut Context<Self>) {
        let adapt = &self.adaptation;
        let benchmark = adapt.benchmark.as_ref().map(BenchmarkSpec::id);
        let (spec, unit) = benchmark.zip(adapt.unit()).unwrap_or((adapt.scale.spec, 1.0));
        let named = adapt.aggregates().flat_map(|(_, all)| all.worst.into_iter().chain(all.best));
        let named = named.filter(|named| named.speed > 0.0);
        let speeds: BTreeMap<NodeId, f64> =
            named.map(|named| (named.node, named.speed / unit)).collect();
        if speeds.is_empty() {
            return;
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = remote.send(SpeedsMeasured { job, epoch, spec, speeds }).start();
        // The next period reports again.
        ctx.spawn(async move { drop(call.await) }.into_actor(self));
    }

    /// Subscribes to better free nodes if the job migrates, so that the next decision knows them
    /// even without fresh offers.
    fn subscribe(&self, ctx: &mut Context<Self>) {
        let adapt = &self.adaptation;
        let moves = self.spec.params.mode == Mode::Adaptive && adapt.settings.migrate;
        let Some(unit) = adapt.unit().filter(|_| moves) else { return };
        let worst = adapt.aggregates().flat_map(|(_, aggregate)| aggregate.worst);
        let speeds = worst.map(|worst| worst.processor_speed()).filter(|speed| *speed > 0.0);
        let slowest = speeds.fold(f64::INFINITY, f64::min);
        let faster_than = adapt.settings.migrate_factor * slowest / unit;
        if !faster_than.is_finite() {
            return;
        }
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let call = remote.send(Subscribe { job, epoch, faster_than: Some(faster_than) }).start();
        // The next period repeats it for a restarted scheduler.
        ctx.spawn(async move { drop(call.await) }.into_actor(self));
    }

    /// Handles a notification of better free nodes: it updates the offers.
    pub(super) fn better_free(&mut self, better: BetterFree) {
        tracing::info!(clusters = ?better.offers.keys(), "better nodes are free");
        // Notifications repeat each period while the nodes are free.
        let text = better_text(&better);
        if self.adaptation.better_note != text {
            self.notify_client(NoteKind::Text { text: text.clone() });
            self.adaptation.better_note = text;
        }
        self.adaptation.offers.offers = better.offers;
    }
}
