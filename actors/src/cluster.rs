//! The cluster coordinator: one a job and cluster, on a worker's node. It collects its workers' statistics and sends one
//! aggregate a period to the coordinator, so that the coordinator's input is O(clusters).

mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::event::{Record, WorkerRow};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::membership::{Detector, Finding, Patience, View};
use springtide_runtime::meter::{
    BenchmarkSpec, LinkReport, NodeReport, Overheads, PeriodMeasure, Scale, SpecId, SpeedReport,
    Statistics, Tally,
};
use springtide_runtime::remote::{Hub, Origin, RemoteError, RemoteMessage};
use springtide_runtime::remote_message;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::admit::{About, Asking, Judges, Standing, ask_scheduler, outside};
use crate::coordinator::Coordinator;
use crate::job::{JobSpec, SCHEDULER, WORKER, cluster_coordinator_name, coordinator_name};
use crate::look::LookAtCluster;
use crate::policy::{Agreed, ClusterAggregate, History, Memory, Mode, Uplink, WorkerStats};
use crate::pulse::{Behind, Pulse};
use crate::scheduler::{JobAuthority, MemberSilent, Scheduler};
use crate::worker::{Finish, Worker, newest, probe_indirectly, tell_view};

/// How long a worker may take to stop its threads at the end of a job.
const FINISH_DEADLINE: Duration = Duration::from_secs(30);

/// How long the job's coordinator is told of a silent member.
const TELL_WITHIN: Duration = Duration::from_secs(5);
/// How long it is told that the workers have joined: it waits as long for that.
const JOIN_WITHIN: Duration = Duration::from_secs(30);

/// The cluster coordinator actor. Published under [`cluster_coordinator_name`].
pub struct ClusterCoordinator {
    spec: JobSpec,
    view: View,
    cluster: ClusterId,
    hub: Arc<Hub>,
    /// The scheduler's node.
    scheduler: NodeId,
    /// Watches the job's coordinator.
    upward: Detector,
    /// Number of rounds of indirect probes.
    probes: usize,
    joined: BTreeSet<NodeId>,
    /// Under which number of workers the coordinator was told that all have joined.
    told_joined: Option<u32>,
    tally: Tally<NodeId>,
    periods: u64,
    /// Hears the workers.
    pulse: Arc<Pulse>,
    measured: BTreeMap<NodeId, Measured>,
    /// A benchmark that a worker proposes.
    candidate: Option<BenchmarkSpec>,
    /// What the coordinator last told.
    told: ClusterTold,
    /// Bytes to other clusters when the last period ended.
    wide_bytes: u64,
    /// For who looks.
    looked: look::Looked,
    /// The job ends.
    finishes: bool,
    /// Members whose last word is awaited; removed when one is lost.
    finishing: BTreeMap<NodeId, oneshot::Sender<()>>,
    /// Members that were lost while the job ends.
    lost: BTreeSet<NodeId>,
}

/// A worker's numbers over its reports.
#[derive(Default)]
struct Measured {
    history: History,
    speed: Option<SpeedReport>,
    links: LinkReport,
}

impl ClusterCoordinator {
    /// The coordinator of `cluster` for a job.
    pub fn new(
        spec: JobSpec,
        view: View,
        cluster: ClusterId,
        hub: Arc<Hub>,
        scheduler: NodeId,
        pulse: Arc<Pulse>,
    ) -> Self {
        Self {
            spec,
            view,
            cluster,
            hub,
            scheduler,
            upward: Detector::new(Patience::WIDE, Instant::now()),
            probes: 0,
            joined: BTreeSet::new(),
            told_joined: None,
            tally: Tally::new(),
            periods: 0,
            pulse,
            measured: BTreeMap::new(),
            candidate: None,
            told: ClusterTold::default(),
            wide_bytes: 0,
            looked: look::Looked::default(),
            finishes: false,
            finishing: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Watches the members from now on, save this node itself.
    fn watch_members(&self, ctx: &Context<Self>) {
        self.pulse.host(self.spec.id, &self.cluster, &self.view, &ctx.address().recipient());
    }

    fn look_after_members(&mut self, ctx: &mut Context<Self>) {
        if self.finishes {
            return; // members that have ended say nothing any more
        }
        for finding in self.pulse.look(&ctx.address().recipient()) {
            match finding {
                Finding::Suspect(node) => tracing::info!(%node, "silent: suspected"),
                Finding::Back(node) => tracing::info!(%node, "heard again"),
                Finding::Dead(node, silent) => {
                    tracing::warn!(%node, ?silent, "silent: taken for dead");
                    let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
                    let job = self.spec.id;
                    let silent = Silent { job, node, silent_ms };
                    self.tell_coordinator(silent, TELL_WITHIN, ctx);
                }
            }
        }
    }

    /// The coordinator that takes over from one that was lost: the members have joined before, and their next reports hold all
    /// that they told it.
    #[must_use]
    pub fn succeeding(mut self) -> Self {
        self.joined = self.members();
        // Its aggregates come after all of those before it: views make newer ones, and no coordinator sends 2^32 aggregates.
        // Views count from 1 again under each epoch.
        self.periods = (u64::from(self.view.epoch.0) << 48) | ((self.view.version & 0xffff) << 32);
        self
    }

    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(self) -> Addr<Self> {
        let (hub, name) = (self.hub.clone(), cluster_coordinator_name(self.spec.id));
        let addr = self.start();
        hub.publish(&name, addr.clone())
            .accepts_judged::<Joined>()
            .accepts_judged::<Period>()
            .accepts_judged::<GetMemory>()
            .accepts_judged::<LookAtCluster>()
            .accepts_judged::<FinishCluster>()
            .accepts_judged::<FinishWithout>();
        addr
    }

    fn members(&self) -> BTreeSet<NodeId> {
        self.view.in_cluster(&self.cluster).cloned().collect()
    }

    /// Tells the job's coordinator, for so long while it is not reached.
    fn tell_coordinator<M>(&self, message: M, within: Duration, ctx: &mut Context<Self>)
    where
        M: RemoteMessage<Result = ()> + Clone,
        Coordinator: Handler<M>,
    {
        let Some(node) = &self.view.coordinator else { return };
        let remote = self.hub.remote::<Coordinator>(node, &coordinator_name(self.spec.id));
        let told = async move {
            let mut pause = Duration::from_millis(20);
            let until = Instant::now() + within;
            // The coordinator's node may still be starting it, or has begun a new life since the last job and the link was
            // that of the old one. A message that arrives twice does no harm.
            while Instant::now() < until {
                match remote.send(message.clone()).await {
                    Ok(()) => return,
                    Err(RemoteError::NoActor { .. } | RemoteError::Gone { .. }) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the job's coordinator did not take a message");
                        return;
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            tracing::warn!(?remote, "the job's coordinator is not there");
        };
        ctx.spawn(told.into_actor(self));
    }

    fn tell_if_all_joined(&mut self, ctx: &mut Context<Self>) {
        let members = self.members();
        let workers = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if members.is_subset(&self.joined) && self.told_joined != Some(workers) {
            self.told_joined = Some(workers);
            let (job, cluster) = (self.spec.id, self.cluster.clone());
            let joined = ClusterJoined { job, cluster, workers };
            self.tell_coordinator(joined, JOIN_WITHIN, ctx);
        }
    }

    /// Sends the view to a worker that has an older one.
    fn send_view(&self, node: &NodeId, ctx: &mut Context<Self>) {
        let told = tell_view(&self.hub, node, self.spec.id, &self.view, None);
        // What does not arrive is sent again when the worker is heard under an older one.
        ctx.spawn(async move { drop(told.await) }.into_actor(self));
    }

    fn tell_alive(&mut self, ctx: &mut Context<Self>) {
        let me = self.hub.net().me().clone();
        let coordinator = self.view.coordinator.clone();
        let Some(node) = coordinator.filter(|node| *node != me.node) else {
            return;
        };
        let Some(life) = self.view.members.get(&node).map(|member| member.incarnation) else {
            return;
        };
        let now = Instant::now();
        self.upward.watch([(node.clone(), life)], now);
        for finding in self.upward.look(now) {
            // Said again when it has been silent for as long again: others may come to the same only later.
            let Finding::Dead(_, silent) = finding else { continue };
            let told = MemberSilent {
                job: self.spec.id,
                epoch: self.view.epoch,
                node: node.clone(),
                incarnation: life,
                reason: format!("silent for {:.1} s", silent.as_secs_f64()),
                by: Some(self.cluster.clone()),
                voice: Some((me.node.clone(), me.incarnation)),
            };
            let remote = self.hub.remote::<Scheduler>(&self.scheduler, SCHEDULER);
            let call = remote.send(told).start();
            ctx.spawn(async move { drop(call.await) }.into_actor(self));
        }
        self.probe_coordinator(&node, life, ctx);
        let remote = self.hub.remote::<Coordinator>(&node, &coordinator_name(self.spec.id));
        let alive =
            ClusterAlive { job: self.spec.id, node: me.node.clone(), incarnation: me.incarnation };
        let request = remote.send(alive).deadline(Patience::WIDE.suspect).start();
        // Silence is what the other side acts on; and an answer of any kind a sign of life.
        ctx.spawn(request.into_actor(self).map(move |answer, cluster, _| {
            let lives = |error: &RemoteError| {
                matches!(error, RemoteError::NoActor { .. } | RemoteError::Refused { .. })
            };
            if answer.as_ref().err().is_none_or(lives) {
                cluster.upward.heard(&node, life, Instant::now());
            }
        }));
    }

    /// Asks other members after the job's coordinator when it is suspected: if one of them reaches it, it is heard.
    fn probe_coordinator(&mut self, node: &NodeId, life: Incarnation, ctx: &mut Context<Self>) {
        let silence = self.upward.silence(node, Instant::now());
        if silence.is_none_or(|silence| silence < Patience::WIDE.suspect) {
            return;
        }
        self.probes = self.probes.wrapping_add(1);
        let probe =
            probe_indirectly(&self.hub, self.spec.id, &self.view, (node, life), self.probes);
        let node = node.clone();
        ctx.spawn(probe.into_actor(self).map(move |reached, cluster, _| {
            if reached && cluster.upward.heard(&node, life, Instant::now()).is_some() {
                tracing::info!(%node, "the job's coordinator is not heard here, but others reach it");
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
            candidate: self.candidate.clone().filter(|_| !self.told.proposed),
            benchmark: self.told.benchmark.as_ref().map(BenchmarkSpec::id),
        };
        let Some(node) = &self.view.coordinator else { return };
        let remote = self.hub.remote::<Coordinator>(node, &coordinator_name(self.spec.id));
        let period = self.spec.params.period();
        let call = remote.send(message).deadline(period.max(Duration::from_secs(1))).start();
        ctx.spawn(call.into_actor(self).map(|answer, cluster, _| match answer {
            Ok(told) => cluster.take_told(told),
            Err(error) => {
                tracing::info!(%error, "an aggregate did not arrive; the next holds the same sums");
            }
        }));
    }

    fn take_told(&mut self, mut told: ClusterTold) {
        // It is sent when it is another; for whom, each time.
        told.benchmark = told.benchmark.or_else(|| self.told.benchmark.take());
        self.told = told;
    }

    /// What the workers' speeds are compared in: as the coordinator says, or else as suits them.
    fn scale(&self) -> Scale {
        let own = Scale::from_reports(self.measured.values().filter_map(|m| m.speed.as_ref()));
        if self.told.memory.is_none() {
            return own;
        }
        let mut factors = own.factors;
        for (spec, factor) in &self.told.scale.factors {
            factors.insert(*spec, *factor);
        }
        // The first to know work units tells the others by its report.
        let spec = if own.spec == SpecId::DECLARED { own.spec } else { self.told.scale.spec };
        Scale { spec, factors }
    }

    /// The period's aggregate; the period of every worker is closed by it.
    fn aggregate(&mut self, scale: &Scale) -> ClusterAggregate {
        let settings = &self.spec.params.settings;
        let agreed = match &self.told.memory {
            Some(memory) => Agreed::of(memory, settings),
            None => Agreed::of(&Memory::new(settings), settings),
        };
        let view = &self.view;
        let of_cluster = |node: &NodeId| view.cluster_of(node) == Some(&self.cluster);
        self.measured.retain(|node, _| of_cluster(node));
        let mut workers = Vec::new();
        for node in view.in_cluster(&self.cluster) {
            let Some(member) = view.members.get(node) else { continue };
            // One that has never reported is joining.
            let mut worker = self
                .measured
                .get_mut(node)
                .and_then(|measured| measured.history.close_period(agreed.span))
                .unwrap_or_else(|| WorkerStats {
                    node: node.clone(),
                    incarnation: member.incarnation,
                    threads: member.threads,
                    ..WorkerStats::default()
                });
            worker.leaving = member.leaving;
            if let Some(measured) = self.measured.get(node)
                && worker.speed.is_some()
                && let Some(known) = measured.speed.as_ref().and_then(|told| scale.compare(told))
            {
                (worker.speed, worker.speed_error) =
                    (Some(known.speed), known.relative_error.min(1.0));
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

    /// A worker's measures of a period.
    fn measure(&mut self, report: &NodeReport, measure: PeriodMeasure) {
        let scale = self.scale();
        let measured = self.measured.entry(report.node.clone()).or_default();
        measured.links = measure.links;
        measured.speed = measure.speed.or(measured.speed);
        let known = measured.speed.as_ref().and_then(|speed| scale.compare(speed));
        let Overheads { total, intra, inter } = Overheads::of(&measure.times);
        let worker = WorkerStats {
            node: report.node.clone(),
            incarnation: report.incarnation,
            threads: measure.threads,
            speed: known.map(|known| known.speed),
            speed_error: known.map_or(0.0, |known| known.relative_error.min(1.0)),
            overhead: total,
            overhead_intra: intra,
            overhead_inter: inter,
            age: 0,
            joined: u32::try_from(report.seq.saturating_sub(1)).unwrap_or(u32::MAX),
            leaving: false,
        };
        if let Some(oddity) = measured.history.report(worker, &self.spec.params.settings) {
            tracing::warn!("{oddity}");
        }
    }
}

/// To the cluster's coordinator, by a worker: it takes part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// Which job.
    pub job: JobId,
    /// Who.
    pub node: NodeId,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its compute threads.
    pub threads: u32,
    /// It has not been told all members yet.
    #[serde(default)]
    pub partial: bool,
}

/// To the cluster's coordinator, by a worker: its period's statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Period {
    /// Which job.
    pub job: JobId,
    /// The sender's view, by epoch and version.
    #[serde(default)]
    pub view: (Epoch, u64),
    /// The sums since the job's start.
    pub report: NodeReport,
    /// What was measured in the period; absent where nothing is.
    #[serde(default)]
    pub measure: Option<PeriodMeasure>,
    /// A benchmark that this worker proposes, while the job has none.
    #[serde(default)]
    pub candidate: Option<BenchmarkSpec>,
    /// The benchmark that it has been told of.
    #[serde(default)]
    pub benchmark: Option<SpecId>,
}

/// What a worker is told in answer to its period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTold {
    /// A benchmark was proposed: no other need be.
    pub proposed: bool,
    /// The job's benchmark, if the worker has another or none.
    pub benchmark: Option<BenchmarkSpec>,
}

/// To the coordinator: a node has been silent for too long. By its cluster's coordinator; of a cluster's coordinator, by one of
/// its workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Silent {
    /// Which job.
    pub job: JobId,
    /// Who.
    pub node: NodeId,
    /// For so long, in milliseconds.
    pub silent_ms: u64,
}

/// To the coordinator, by a cluster's coordinator: it lives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterAlive {
    /// Which job.
    pub job: JobId,
    /// Who.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// To the coordinator: all workers of a cluster have joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterJoined {
    /// Which job.
    pub job: JobId,
    /// Which cluster.
    pub cluster: ClusterId,
    /// Its workers.
    pub workers: u32,
}

/// To the coordinator: a cluster's aggregate of a period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterPeriod {
    /// Which job.
    pub job: JobId,
    /// Which cluster.
    pub cluster: ClusterId,
    /// The sender's view, by epoch and version: under an older one than the coordinator's, it is told the new one.
    #[serde(default)]
    pub view: (Epoch, u64),
    /// Grows with each aggregate, also from one coordinator of the cluster to the next.
    pub seq: u64,
    /// Workers that take part.
    pub workers: u32,
    /// Sum over the workers since the job's start; latencies since the aggregate before.
    pub statistics: Statistics,
    /// The period as the policy sees it; absent where nothing is adapted.
    #[serde(default)]
    pub aggregate: Option<ClusterAggregate>,
    /// What the aggregate's speeds are in.
    #[serde(default)]
    pub scale: Scale,
    /// What the cluster's nodes have seen of links.
    #[serde(default)]
    pub links: LinkReport,
    /// The workers' shares of time, for the run's log, when they are due.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<WorkerRow>,
    /// A benchmark that a worker proposes, while the job has none.
    #[serde(default)]
    pub candidate: Option<BenchmarkSpec>,
    /// The benchmark that this cluster has been told of.
    #[serde(default)]
    pub benchmark: Option<SpecId>,
}

/// What a cluster's coordinator is told in answer to its aggregate: all that the clusters must agree on, and what a
/// successor of the job's coordinator needs to know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterTold {
    /// What was learned so far; by it the worst workers are chosen.
    pub memory: Option<Memory>,
    /// What speeds are compared in.
    pub scale: Scale,
    /// A benchmark was proposed: no other need be.
    pub proposed: bool,
    /// The job's benchmark, if the cluster has another or none.
    pub benchmark: Option<BenchmarkSpec>,
    /// Only this node is to run it, if one is named.
    pub only: Option<NodeId>,
}

/// To the cluster's coordinator, by a new coordinator of the job: what was learned so far?
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetMemory {
    /// Which job.
    pub job: JobId,
}

impl ClusterFinal {
    fn nothing(cluster: ClusterId) -> Self {
        let (statistics, records, silent) = Default::default();
        Self { cluster, workers: 0, statistics, records, silent }
    }
}

/// To the cluster's coordinator: the job has ended; stop the workers and send their last words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishCluster {
    /// Which job.
    pub job: JobId,
    /// Of the coordinator that ends it: a former one is not heard.
    #[serde(default = "newest")]
    pub epoch: Epoch,
}

/// To a cluster's coordinator, by the job's coordinator that ends the job: this member is lost, so its
/// last word is not awaited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishWithout {
    /// The job.
    pub job: JobId,
    /// Epoch of the job's coordinator.
    pub epoch: Epoch,
    /// The member.
    pub node: NodeId,
}

/// A cluster's last word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterFinal {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Workers that took part.
    pub workers: u32,
    /// Their sums, with what latencies were not sent before.
    pub statistics: Statistics,
    /// What happened on them.
    pub records: Vec<Record>,
    /// Workers that did not answer, and why.
    pub silent: BTreeMap<NodeId, String>,
}

remote_message! {
    "joined" => Joined;
    "period" => Period -> WorkerTold;
    "silent" => Silent;
    "cluster-alive" => ClusterAlive;
    "cluster-joined" => ClusterJoined;
    "cluster-period" => ClusterPeriod -> ClusterTold;
    "get-memory" => GetMemory -> Option<Memory>;
    "finish-cluster" => FinishCluster -> ClusterFinal;
    "finish-without" => FinishWithout;
}

impl Judges for ClusterCoordinator {
    fn standing(
        &mut self,
        from: &Origin,
        about: &About,
        confirmed: Option<&JobAuthority>,
    ) -> Standing {
        if about.job != self.spec.id {
            return Standing::default().with(outside(from, Some(&self.scheduler)));
        }
        let standing = Standing::in_view(&self.view, from);
        let standing = standing.with(outside(from, Some(&self.scheduler)));
        match confirmed {
            Some(authority) => standing.confirmed(authority, from),
            None => standing,
        }
    }

    fn ask(&self, from: &Origin, about: &About) -> Option<Asking> {
        let scheduler = self.hub.remote(&self.scheduler, SCHEDULER);
        Some(ask_scheduler(&scheduler, from.peer.node.clone(), about.job))
    }
}

crate::judged!(ClusterCoordinator);

impl Actor for ClusterCoordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if !self.joined.is_empty() {
            // The one before it may have been lost before it could say so.
            self.tell_if_all_joined(ctx);
        }
        let (period, lag) = (self.spec.params.period(), self.spec.params.lag());
        ctx.run_later(lag, move |_, ctx| {
            ctx.run_interval(period, |coordinator, ctx| coordinator.push_period(ctx));
        });
        self.watch_members(ctx);
        ctx.run_interval(Patience::CLUSTER.every, |coordinator, ctx| {
            coordinator.look_after_members(ctx);
        });
        ctx.run_interval(Patience::WIDE.every, |coordinator, ctx| coordinator.tell_alive(ctx));
    }

    fn stopped(&mut self, ctx: &mut Self::Context) {
        self.pulse.retire(&ctx.address().recipient());
    }
}

impl Handler<Joined> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: Joined, ctx: &mut Self::Context) {
        if message.job != self.spec.id {
            return;
        }
        if message.partial && self.view.members.contains_key(&message.node) {
            self.send_view(&message.node, ctx);
        }
        // The scheduler confirmed one that the view does not name: it was granted while the job runs.
        self.joined.insert(message.node);
        self.tell_if_all_joined(ctx);
    }
}

/// The members have changed; by the worker of the same node, which passes the view on to the others. Local only.
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
            self.tell_if_all_joined(ctx);
        }
    }
}

/// Another node has this role from now on. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Retire;

impl Handler<Retire> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, _: Retire, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<Behind> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, Behind { node }: Behind, ctx: &mut Self::Context) {
        self.send_view(&node, ctx);
    }
}

impl Handler<Period> for ClusterCoordinator {
    type Result = MessageResult<Period>;

    fn handle(&mut self, message: Period, ctx: &mut Self::Context) -> Self::Result {
        if message.view < (self.view.epoch, self.view.version) {
            self.send_view(&message.report.node, ctx);
        }
        if let Some(measure) = message.measure {
            self.measure(&message.report, measure);
        }
        if !self.told.proposed {
            self.candidate = self.candidate.take().or(message.candidate);
        }
        let NodeReport { node, incarnation, seq, statistics, .. } = message.report;
        self.looked.heard(&node, incarnation, &statistics);
        if let Err(error) = self.tally.put(node.clone(), incarnation.0, seq, statistics) {
            tracing::warn!(%node, %error, "a worker's report is malformed; its last one counts");
        }
        let benchmark = self.told.benchmark.clone();
        let is_for_it = self.told.only.as_ref().is_none_or(|only| *only == node);
        let benchmark = benchmark.filter(|spec| is_for_it && message.benchmark != Some(spec.id()));
        let proposed = self.told.proposed || self.candidate.is_some();
        MessageResult(WorkerTold { proposed, benchmark })
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
        MessageResult(self.told.memory.clone())
    }
}

impl Handler<FinishCluster> for ClusterCoordinator {
    type Result = ResponseActFuture<Self, ClusterFinal>;

    fn handle(&mut self, message: FinishCluster, _ctx: &mut Self::Context) -> Self::Result {
        let job = message.job;
        if message.epoch < self.view.epoch {
            // A former coordinator ends what is another's by now.
            let cluster = self.cluster.clone();
            return Box::pin(actix::fut::ready(ClusterFinal::nothing(cluster)));
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
            let mut silent = BTreeMap::new();
            for (node, answer) in answers {
                match answer {
                    Ok(Some(last)) => {
                        let NodeReport { node, incarnation, seq, statistics, .. } = last.report;
                        if let Err(error) =
                            coordinator.tally.put(node.clone(), incarnation.0, seq, statistics)
                        {
                            tracing::warn!(%node, %error, "a worker's last report is malformed");
                        }
                        records.extend(last.records);
                    }
                    Ok(None) => {
                        silent.insert(node, "it does not know the job".to_owned());
                    }
                    Err(error) => {
                        silent.insert(node, error);
                    }
                }
            }
            let mut statistics = coordinator.tally.total();
            statistics.latencies = coordinator.tally.take_latencies();
            ctx.stop();
            ClusterFinal {
                cluster: coordinator.cluster.clone(),
                workers: coordinator.joined.len() as u32,
                statistics,
                records,
                silent,
            }
        }))
    }
}
