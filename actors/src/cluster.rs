//! The cluster coordinator: one per job and cluster, on a worker's node. It collects its workers'
//! statistics and sends one aggregate per period to the coordinator, so that the coordinator's
//! input is O(clusters).

mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::membership::{Detector, Finding, SilenceLimits, View};
use springtide_runtime::meter::{
    BenchmarkSpec, LinkReport, NodeReport, Overheads, PeriodMeasure, ReportTally, Scale, SpecId,
    SpeedReport,
};
use springtide_runtime::remote::{Hub, MessageOrigin, Receives, RemoteError, RemoteMessage};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::admit::{
    AdmitsMessages, AuthorityQuery, MessageSubject, SenderStanding, ask_scheduler, outside,
};
use crate::heartbeats::{Heartbeats, StaleView};
use crate::policy::{
    ClusterAggregate, Memory, Mode, SharedParameters, Uplink, WorkerHistory, WorkerStats,
};
use crate::worker_calls::{ViewSender, probe_indirectly};
pub use springtide_protocol::cluster::*;
use springtide_protocol::job::JobSpec;
use springtide_protocol::look::InspectCluster;
use springtide_protocol::names::{SCHEDULER, WORKER, cluster_coordinator_name, coordinator_name};
use springtide_protocol::receivers::{Coordinator, Scheduler, Worker};
use springtide_protocol::scheduler::{JobAuthority, MemberSilent};
use springtide_protocol::worker::Finish;

/// Timeout for a worker to stop its threads at the end of a job.
const FINISH_DEADLINE: Duration = Duration::from_secs(30);

/// Time for which reports of a silent member to the job's coordinator are repeated.
const SILENT_REPORT_RETRY: Duration = Duration::from_secs(5);
/// Time for which the report of joined workers is repeated: the coordinator waits as long.
const JOIN_REPORT_RETRY: Duration = Duration::from_secs(30);

/// The cluster coordinator actor. Published under [`cluster_coordinator_name`].
pub struct ClusterCoordinator {
    spec: JobSpec,
    view: View,
    cluster: ClusterId,
    hub: Arc<Hub>,
    /// Views on their way to workers.
    views: ViewSender,
    /// The scheduler's node.
    scheduler: NodeId,
    /// Failure detector of the job's coordinator.
    upward: Detector,
    /// Number of rounds of indirect probes.
    probes: usize,
    joined: BTreeSet<NodeId>,
    /// Number of workers at the last report that all have joined.
    reported_joined: Option<u32>,
    tally: ReportTally<NodeId>,
    periods: u64,
    /// Heartbeats of the workers.
    heartbeats: Arc<Heartbeats>,
    measured: BTreeMap<NodeId, Measured>,
    /// A benchmark that a worker proposes.
    candidate: Option<BenchmarkSpec>,
    /// The coordinator's last reply.
    reply: ClusterPeriodReply,
    /// Bytes to other clusters when the last period ended.
    wide_bytes: u64,
    /// State for inspection.
    looked: look::WorkerTable,
    /// Whether the job is ending.
    finishes: bool,
    /// Members with an outstanding final report; an entry is dropped on loss.
    finishing: BTreeMap<NodeId, oneshot::Sender<()>>,
    /// Members lost during the job's end.
    lost: BTreeSet<NodeId>,
}

/// A worker's statistics over its reports.
#[derive(Default)]
struct Measured {
    history: WorkerHistory,
    speed: Option<SpeedReport>,
    /// The quantity of the speeds in `history`.
    unit: SpecId,
    links: LinkReport,
}

impl ClusterCoordinator {
    /// Creates the coordinator of `cluster` for a job.
    pub fn new(
        spec: JobSpec,
        view: View,
        cluster: ClusterId,
        hub: Arc<Hub>,
        scheduler: NodeId,
        heartbeats: Arc<Heartbeats>,
    ) -> Self {
        Self {
            spec,
            view,
            cluster,
            hub,
            views: ViewSender::new(),
            scheduler,
            upward: Detector::new(SilenceLimits::WIDE, Instant::now()),
            probes: 0,
            joined: BTreeSet::new(),
            reported_joined: None,
            tally: ReportTally::new(),
            periods: 0,
            heartbeats,
            measured: BTreeMap::new(),
            candidate: None,
            reply: ClusterPeriodReply::default(),
            wide_bytes: 0,
            looked: look::WorkerTable::default(),
            finishes: false,
            finishing: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Starts to watch the members, except this node itself.
    fn watch_members(&self, ctx: &Context<Self>) {
        self.heartbeats.host(self.spec.id, &self.cluster, &self.view, &ctx.address().recipient());
    }

    fn check_members(&mut self, ctx: &mut Context<Self>) {
        if self.finishes {
            return; // ended members are silent
        }
        for finding in self.heartbeats.check_members(&ctx.address().recipient()) {
            match finding {
                Finding::Suspect(node) => tracing::info!(%node, "silent: suspected"),
                Finding::Recovered(node) => tracing::info!(%node, "alive again"),
                Finding::Dead(node, silence) => {
                    let what = "silent: reported to the job's coordinator as dead";
                    tracing::warn!(%node, silent = ?silence, "{what}");
                    let silent_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
                    let job = self.spec.id;
                    let report = NodeSilence { job, node, silent_ms };
                    self.send_to_coordinator(report, SILENT_REPORT_RETRY, ctx);
                }
            }
        }
    }

    /// Marks it as the successor of a lost one: the members have joined already, and their next
    /// reports contain all previous ones.
    #[must_use]
    pub fn succeeding(mut self) -> Self {
        self.joined = self.members();
        // Its aggregates must be numbered above all previous ones. Views increase the number, since
        // no coordinator sends 2^32 aggregates. Views count from 1 again under each epoch.
        self.periods = (u64::from(self.view.epoch.0) << 48) | ((self.view.version & 0xffff) << 32);
        self
    }

    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(self) -> Addr<Self> {
        let (hub, name) = (self.hub.clone(), cluster_coordinator_name(self.spec.id));
        let addr = self.start();
        hub.publish(&name, addr.clone())
            .accepts_judged::<WorkerJoinNotice>()
            .accepts_judged::<WorkerPeriod>()
            .accepts_judged::<GetMemory>()
            .accepts_judged::<StoreMemory>()
            .accepts_judged::<InspectCluster>()
            .accepts_judged::<FinishCluster>()
            .accepts_judged::<FinishWithout>();
        addr
    }

    fn members(&self) -> BTreeSet<NodeId> {
        self.view.in_cluster(&self.cluster).cloned().collect()
    }

    /// Sends a message to the job's coordinator, repeated for this time while it is unreachable.
    fn send_to_coordinator<M>(&self, message: M, within: Duration, ctx: &mut Context<Self>)
    where
        M: RemoteMessage<Result = ()> + Clone,
        Coordinator: Receives<M>,
    {
        let Some(node) = &self.view.coordinator else { return };
        let remote = self.hub.remote::<Coordinator>(node, &coordinator_name(self.spec.id));
        let sending = async move {
            let mut pause = Duration::from_millis(20);
            let until = Instant::now() + within;
            // The coordinator's node may still be starting it, or may have restarted since the last
            // job, with a new link. A duplicate message is harmless.
            while Instant::now() < until {
                match remote.send(message.clone()).await {
                    Ok(()) => return,
                    Err(RemoteError::NoActor { .. } | RemoteError::Gone { .. }) => {}
                    Err(error) => {
                        tracing::warn!(%error, "a message to the job's coordinator failed");
                        return;
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            tracing::warn!(?remote, "the job's coordinator is unreachable");
        };
        ctx.spawn(sending.into_actor(self));
    }

    fn report_if_all_joined(&mut self, ctx: &mut Context<Self>) {
        let members = self.members();
        let workers = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if members.is_subset(&self.joined) && self.reported_joined != Some(workers) {
            self.reported_joined = Some(workers);
            let (job, cluster) = (self.spec.id, self.cluster.clone());
            let joined = ClusterReady { job, cluster, workers };
            self.send_to_coordinator(joined, JOIN_REPORT_RETRY, ctx);
        }
    }

    /// Sends the view to a worker that has an older one.
    fn send_view(&self, node: &NodeId, ctx: &mut Context<Self>) {
        // A lost view is repeated when the worker reports under an older one.
        if let Some(sending) = self.views.send(&self.hub, node, self.spec.id, &self.view) {
            ctx.spawn(async move { drop(sending.await) }.into_actor(self));
        }
    }

    fn send_heartbeat(&mut self, ctx: &mut Context<Self>) {
        let me = self.hub.net().me().clone();
        let coordinator = self.view.coordinator.clone();
        let Some(node) = coordinator.filter(|node| *node != me.node) else {
            return;
        };
        let Some(incarnation) = self.view.members.get(&node).map(|member| member.incarnation)
        else {
            return;
        };
        let now = Instant::now();
        self.upward.watch([(node.clone(), incarnation)], now);
        for finding in self.upward.check(now) {
            // Reported again after the same silence: other observers may agree only later.
            let Finding::Dead(_, silence) = finding else { continue };
            let report = MemberSilent {
                job: self.spec.id,
                epoch: self.view.epoch,
                node: node.clone(),
                incarnation,
                reason: format!("silent for {:.1} s", silence.as_secs_f64()),
                reporting_cluster: Some(self.cluster.clone()),
                reporter: Some((me.node.clone(), me.incarnation)),
            };
            let remote = self.hub.remote::<Scheduler>(&self.scheduler, SCHEDULER);
            let call = remote.send(report).start();
            ctx.spawn(async move { drop(call.await) }.into_actor(self));
        }
        self.probe_coordinator(&node, incarnation, ctx);
        let remote = self.hub.remote::<Coordinator>(&node, &coordinator_name(self.spec.id));
        let alive = ClusterHeartbeat {
            job: self.spec.id,
            node: me.node.clone(),
            incarnation: me.incarnation,
        };
        let request = remote.send(alive).deadline(SilenceLimits::WIDE.suspect).start();
        // The other side reacts to silence, and any answer is a sign of life.
        ctx.spawn(request.into_actor(self).map(move |answer, cluster, _| {
            let is_alive = |error: &RemoteError| {
                matches!(error, RemoteError::NoActor { .. } | RemoteError::Refused { .. })
            };
            if answer.as_ref().err().is_none_or(is_alive) {
                cluster.upward.record_message(&node, incarnation, Instant::now());
            }
        }));
    }

    /// Probes a suspected coordinator of the job through other members: if one reaches it, it
    /// counts as alive.
    fn probe_coordinator(
        &mut self,
        node: &NodeId,
        incarnation: Incarnation,
        ctx: &mut Context<Self>,
    ) {
        let silence = self.upward.silence(node, Instant::now());
        if silence.is_none_or(|silence| silence < SilenceLimits::WIDE.suspect) {
            return;
        }
        self.probes = self.probes.wrapping_add(1);
        let probe =
            probe_indirectly(&self.hub, self.spec.id, &self.view, (node, incarnation), self.probes);
        let node = node.clone();
        ctx.spawn(probe.into_actor(self).map(move |reached, cluster, _| {
            if reached
                && cluster.upward.record_message(&node, incarnation, Instant::now()).is_some()
            {
                tracing::info!(%node, "the job's coordinator is silent here, but others reach it");
            }
        }));
    }

    fn push_period(&mut self, ctx: &mut Context<Self>) {
        self.periods += 1;
        let mut statistics = self.tally.total();
        statistics.latencies = self.tally.take_latencies();
        let adapts = self.spec.params.mode != Mode::Static;
        let scale = self.scale();
        let aggregate = adapts.then(|| self.aggregate(&scale));
        let links = LinkReport::sum(self.measured.values().map(|measured| &measured.links));
        let message = ClusterPeriod {
            job: self.spec.id,
            cluster: self.cluster.clone(),
            view: (self.view.epoch, self.view.version),
            seq: self.periods,
            workers: self.joined.len() as u32,
            statistics,
            aggregate,
            scale,
            links,
            rows: self.rows(self.spec.params.period().as_secs_f64()),
            // A new coordinator gets the benchmark that the job has: speeds stay comparable.
            candidate: self
                .reply
                .benchmark
                .clone()
                .or_else(|| self.candidate.clone())
                .filter(|_| !self.reply.proposed),
            benchmark: self.reply.benchmark.as_ref().map(BenchmarkSpec::id),
        };
        let Some(node) = &self.view.coordinator else { return };
        let remote = self.hub.remote::<Coordinator>(node, &coordinator_name(self.spec.id));
        let period = self.spec.params.period();
        let call = remote.send(message).deadline(period.max(Duration::from_secs(1))).start();
        ctx.spawn(call.into_actor(self).map(|answer, cluster, _| match answer {
            Ok(reply) => cluster.accept_reply(reply),
            Err(error) => {
                tracing::info!(%error, "an aggregate was lost; the next contains the same sums");
            }
        }));
    }

    fn accept_reply(&mut self, mut reply: ClusterPeriodReply) {
        // The reply contains the benchmark only if it changed.
        reply.benchmark = reply.benchmark.or_else(|| self.reply.benchmark.take());
        let stored = self.reply.memory.take();
        self.reply = reply;
        // A reply may be overtaken by the memory of a later decision.
        if let Some(memory) = stored {
            self.store_memory(memory);
        }
    }

    /// Stores the newer of this memory and the stored one.
    fn store_memory(&mut self, memory: Memory) {
        self.reply.memory = Some(match self.reply.memory.take() {
            Some(stored) => Memory::newest(stored, memory),
            None => memory,
        });
    }

    /// Unit of the workers' speeds: from the coordinator, or the most suitable one.
    fn scale(&self) -> Scale {
        let own = Scale::from_reports(self.measured.values().filter_map(|m| m.speed.as_ref()));
        if self.reply.memory.is_none() {
            return own;
        }
        let mut factors = own.factors;
        for (spec, factor) in &self.reply.scale.factors {
            factors.insert(*spec, *factor);
        }
        // The first cluster with work units informs the others by its aggregate.
        let spec = if own.spec == SpecId::DECLARED { own.spec } else { self.reply.scale.spec };
        Scale { spec, factors }
    }

    /// Computes the period's aggregate, and closes each worker's period.
    fn aggregate(&mut self, scale: &Scale) -> ClusterAggregate {
        let settings = &self.spec.params.settings;
        let agreed = match &self.reply.memory {
            Some(memory) => SharedParameters::of(memory, settings),
            None => SharedParameters::of(&Memory::new(settings), settings),
        };
        let view = &self.view;
        let of_cluster = |node: &NodeId| view.cluster_of(node) == Some(&self.cluster);
        self.measured.retain(|node, _| of_cluster(node));
        let mut workers = Vec::new();
        for node in view.in_cluster(&self.cluster) {
            let Some(member) = view.members.get(node) else { continue };
            // A member without a report is joining.
            let mut worker = self
                .measured
                .get_mut(node)
                .and_then(|measured| measured.history.close_period(agreed.span))
                .unwrap_or_else(|| WorkerStats {
                    node: node.clone(),
                    incarnation: member.incarnation,
                    threads: member.threads,
                    age: 1,
                    ..WorkerStats::default()
                });
            worker.leaving = member.leaving;
            if let Some(measured) = self.measured.get(node)
                && worker.speed.is_some()
            {
                // A speed in another unit is unknown.
                let known = measured.speed.as_ref().and_then(|speed| scale.compare(speed));
                worker.speed = known.map(|known| known.speed);
                worker.speed_error = known.map_or(0.0, |known| known.relative_error.min(1.0));
            }
            workers.push(worker);
        }
        let mut aggregate = ClusterAggregate::of(&workers, &agreed);
        let wide_bytes = self.tally.total().counters.bytes.wide;
        let sent = wide_bytes.saturating_sub(self.wide_bytes);
        self.wide_bytes = wide_bytes;
        let period_s = self.spec.params.period().as_secs_f64();
        aggregate.uplink = Uplink { bandwidth: None, used: Some(sent as f64 / period_s) };
        aggregate
    }

    /// Adds a worker's measurements of a period.
    fn measure(&mut self, report: &NodeReport, measure: PeriodMeasure) {
        let scale = self.scale();
        let measured = self.measured.entry(report.node.clone()).or_default();
        measured.links = measure.links;
        measured.speed = measure.speed.or(measured.speed);
        if std::mem::replace(&mut measured.unit, scale.spec) != scale.spec {
            measured.history.forget_speeds();
        }
        let known = measured.speed.as_ref().and_then(|speed| scale.compare(speed));
        let Overheads { total, intra, inter } = Overheads::of(&measure.times);
        let worker = WorkerStats {
            node: report.node.clone(),
            incarnation: report.incarnation,
            threads: measure.threads,
            speed: known.map(|known| known.speed),
            speed_error: known.map_or(0.0, |known| known.relative_error.min(1.0)),
            overhead: total,
            overhead_error: 0.0,
            overhead_intra: intra,
            overhead_inter: inter,
            serving: measure.times.serving_ns as f64 / measure.times.total_ns().max(1) as f64,
            has_worked: false,
            age: 0,
            joined: u32::try_from(report.seq.saturating_sub(1)).unwrap_or(u32::MAX),
            leaving: false,
        };
        if let Some(oddity) = measured.history.report(worker, &self.spec.params.settings) {
            tracing::warn!("{oddity}");
        }
    }
}

impl AdmitsMessages for ClusterCoordinator {
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        confirmed: Option<&JobAuthority>,
    ) -> SenderStanding {
        if about.job != self.spec.id {
            return SenderStanding::default().with(outside(from, Some(&self.scheduler)));
        }
        let standing = SenderStanding::in_view(&self.view, from);
        let standing = standing.with(outside(from, Some(&self.scheduler)));
        match confirmed {
            Some(authority) => standing.confirmed(authority, from),
            None => standing,
        }
    }

    fn ask(&self, from: &MessageOrigin, about: &MessageSubject) -> Option<AuthorityQuery> {
        let scheduler = self.hub.remote(&self.scheduler, SCHEDULER);
        Some(ask_scheduler(&scheduler, from.peer.node.clone(), about.job))
    }
}

crate::judged!(ClusterCoordinator);

impl Actor for ClusterCoordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if !self.joined.is_empty() {
            // The predecessor may have been lost before it reported this.
            self.report_if_all_joined(ctx);
        }
        let (period, lag) = (self.spec.params.period(), self.spec.params.lag());
        ctx.run_later(lag, move |_, ctx| {
            ctx.run_interval(period, |coordinator, ctx| coordinator.push_period(ctx));
        });
        self.watch_members(ctx);
        ctx.run_interval(SilenceLimits::CLUSTER.check_interval, |coordinator, ctx| {
            coordinator.check_members(ctx);
        });
        ctx.run_interval(SilenceLimits::WIDE.check_interval, |coordinator, ctx| {
            coordinator.send_heartbeat(ctx)
        });
    }

    fn stopped(&mut self, ctx: &mut Self::Context) {
        self.heartbeats.retire(&ctx.address().recipient());
    }
}

impl Handler<WorkerJoinNotice> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: WorkerJoinNotice, ctx: &mut Self::Context) {
        if message.job != self.spec.id {
            return;
        }
        if message.partial && self.view.members.contains_key(&message.node) {
            self.send_view(&message.node, ctx);
        }
        // The scheduler confirmed a member that the view lacks: it was granted while the job runs.
        self.joined.insert(message.node);
        self.report_if_all_joined(ctx);
    }
}

/// The members have changed. Sent by the worker of this node, which forwards the view to the
/// others. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct ViewChanged(pub View);

impl Handler<ViewChanged> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: ViewChanged, ctx: &mut Self::Context) {
        let before = self.view.clone();
        if self.view.advance(message.0) {
            let members = self.members();
            let of_cluster =
                |v: &View| v.in_cluster(&self.cluster).cloned().collect::<BTreeSet<_>>();
            for node in of_cluster(&before).difference(&members) {
                self.joined.remove(node);
                self.tally.remove(node);
                self.looked.forget(node);
            }
            self.watch_members(ctx);
            self.report_if_all_joined(ctx);
        }
    }
}

/// Another node takes this role. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Retire;

impl Handler<Retire> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, _: Retire, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<StaleView> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, StaleView { node }: StaleView, ctx: &mut Self::Context) {
        self.send_view(&node, ctx);
    }
}

impl Handler<WorkerPeriod> for ClusterCoordinator {
    type Result = MessageResult<WorkerPeriod>;

    fn handle(&mut self, message: WorkerPeriod, ctx: &mut Self::Context) -> Self::Result {
        if message.view < (self.view.epoch, self.view.version) {
            self.send_view(&message.report.node, ctx);
        }
        if let Some(measure) = message.measure {
            self.measure(&message.report, measure);
        }
        if !self.reply.proposed {
            self.candidate = self.candidate.take().or(message.candidate);
        }
        let NodeReport { node, incarnation, seq, statistics, .. } = message.report;
        self.looked.record_report(&node, incarnation, &statistics);
        if let Err(error) = self.tally.add(node.clone(), incarnation.0, seq, statistics) {
            tracing::warn!(%node, %error, "a worker's report is malformed; its last one counts");
        }
        let benchmark = self.reply.benchmark.clone();
        let is_for_it = self.reply.benchmark_node.as_ref().is_none_or(|only| *only == node);
        let benchmark = benchmark.filter(|spec| is_for_it && message.benchmark != Some(spec.id()));
        let proposed = self.reply.proposed || self.candidate.is_some();
        let measurements = self.reply.memory.as_ref().map_or(0, |memory| memory.measurements);
        MessageResult(WorkerPeriodReply { proposed, benchmark, measurements })
    }
}

impl Handler<FinishWithout> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: FinishWithout, _: &mut Self::Context) {
        self.finishing.remove(&message.node);
        self.lost.insert(message.node);
    }
}

impl Handler<GetMemory> for ClusterCoordinator {
    type Result = MessageResult<GetMemory>;

    fn handle(&mut self, _: GetMemory, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.reply.memory.clone())
    }
}

impl Handler<StoreMemory> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: StoreMemory, _: &mut Self::Context) {
        self.store_memory(message.memory);
    }
}

impl Handler<FinishCluster> for ClusterCoordinator {
    type Result = ResponseActFuture<Self, ClusterFinalReport>;

    fn handle(&mut self, message: FinishCluster, _ctx: &mut Self::Context) -> Self::Result {
        let job = message.job;
        if message.epoch < self.view.epoch {
            // A replaced coordinator must not end its successor's job.
            let cluster = self.cluster.clone();
            return Box::pin(actix::fut::ready(ClusterFinalReport::nothing(cluster)));
        }
        self.finishes = true;
        let requests: Vec<_> = self
            .members()
            .into_iter()
            .map(|node| {
                let remote = self.hub.remote::<Worker>(&node, WORKER);
                let finish = Finish { job, epoch: message.epoch };
                let (awaited, lost) = oneshot::channel();
                if !self.lost.contains(&node) {
                    self.finishing.insert(node.clone(), awaited);
                }
                (node, remote.send(finish).deadline(FINISH_DEADLINE).start(), lost)
            })
            .collect();
        let answers = async move {
            let mut answers = Vec::new();
            for (node, request, lost) in requests {
                let lost: oneshot::Receiver<()> = lost;
                let answer = tokio::select! {
                    biased;
                    answer = request => answer.map_err(|error| error.to_string()),
                    _ = lost => Err("it is lost".to_owned()),
                };
                answers.push((node, answer));
            }
            answers
        };
        Box::pin(answers.into_actor(self).map(|answers, coordinator, ctx| {
            let mut records = Vec::new();
            let mut without_answer = BTreeMap::new();
            for (node, answer) in answers {
                match answer {
                    Ok(Some(last)) => {
                        let NodeReport { node, incarnation, seq, statistics, .. } = last.report;
                        if let Err(error) =
                            coordinator.tally.add(node.clone(), incarnation.0, seq, statistics)
                        {
                            tracing::warn!(%node, %error, "a worker's last report is malformed");
                        }
                        records.extend(last.records);
                    }
                    Ok(None) => {
                        without_answer.insert(node, "it does not know the job".to_owned());
                    }
                    Err(error) => {
                        without_answer.insert(node, error);
                    }
                }
            }
            let mut statistics = coordinator.tally.total();
            statistics.latencies = coordinator.tally.take_latencies();
            ctx.stop();
            ClusterFinalReport {
                cluster: coordinator.cluster.clone(),
                workers: coordinator.joined.len() as u32,
                statistics,
                records,
                without_answer,
            }
        }))
    }
}
