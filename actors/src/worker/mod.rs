//! The worker: a node's part in a job as an actor. It serves one job at a time.
//!
//! It starts the engine (compute threads, steal protocol, shared objects), joins its cluster's
//! coordinator, and sends its statistics each period. It hosts the cluster coordinator and the
//! coordinator when the view gives this node these roles. This module does not know the scheduling
//! of nodes.

mod look;
mod members;
mod speed;
mod succession;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Recorder;
use springtide_runtime::id::{Epoch, JobId, NodeId};
use springtide_runtime::membership::{Member, SilenceLimits, View};
use springtide_runtime::memory::MemoryBudget;
use springtide_runtime::meter::{
    BenchmarkGoal, BenchmarkSettings, BenchmarkSpec, LoadReader, NodeReport, SpecId,
    SpeedMeasurement, USUAL_QUOTA_PERIOD,
};
use springtide_runtime::net::{Contact, Net, NetworkHandler, Router};
use springtide_runtime::random::SplitMix;
use springtide_runtime::remote::{Hub, MessageOrigin, Refusal, RemoteError};
use springtide_runtime::share::ShareConfig;
use springtide_runtime::wire::Kind;
use springtide_runtime::work::steal::StealPolicy;
use springtide_runtime::work::{
    AbsentNodeInbox, Engine, EngineConfig, EngineWatch, LOSSES_MAX, MeteringSettings, NodeLosses,
    PoolConfig, RealSeam, Registry, ReportHandler, Seam, Throttle, ThrottledSeam, bench,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::admit::{
    AdmitsMessages, AuthorityQuery, MessageSubject, SenderStanding, ask_scheduler, outside,
};
use crate::cluster::{ClusterCoordinator, Retire, ViewChanged};
use crate::coordinator::{
    Coordinator, CoordinatorConfig, RootReport, StopReplaced, StopUnlessEnding, Succession,
};
use crate::heartbeats::{Heartbeats, NotAMember, Silence};
use crate::policy::Mode;
use crate::worker_calls::{SendingView, ViewSender, send_view, small_change};

use springtide_protocol::cluster::{
    NodeSilence, WorkerJoinNotice, WorkerPeriod, WorkerPeriodReply,
};
use springtide_protocol::job::{
    Assign, AssignError, JobSpec, ReleaseWorker, Shutdown, StealMode, TasksHeldAtDeath,
};
use springtide_protocol::look::QueryWorker;
use springtide_protocol::names::{
    CHECKPOINTS, SCHEDULER, WORKER, cluster_coordinator_name, coordinator_name,
};
use springtide_protocol::receivers::Scheduler;
use springtide_protocol::scheduler::{
    AuditJob, ConfirmMembership, JobAudit, JobAuthority, MeasureSpeed, MemberSilent, NodeWork,
    TakeOver,
};
pub use springtide_protocol::worker::*;

/// Timeout of a report of losses to the job's coordinator.
const TELL_DEADLINE: Duration = Duration::from_secs(5);

/// Interval at which a node at work asks whether it still belongs to its job.
const CONFIRM_EVERY: Duration = Duration::from_secs(60);

/// Maximum time for joining the cluster's coordinator.
const JOIN_DEADLINE: Duration = Duration::from_secs(20);

/// Time after which no repetition of a benchmark starts.
const MEASURE_AT_MOST: Duration = Duration::from_secs(2);

/// Number of released jobs to remember. It covers the assignments that may still be under way.
const RELEASED_MAX: usize = 64;

/// Creates the seam where a job's compute threads block.
pub type SeamFactory = Arc<dyn Fn() -> Arc<dyn Seam> + Send + Sync>;

/// Configuration of a worker.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Number of compute threads of a job.
    pub threads: u32,
    /// The seam of the threads: real parking, or the simulator's virtual time.
    pub seam: SeamFactory,
    /// Modelled time of each fork, in virtual time.
    pub fork_time: Option<Duration>,
    /// Directory with the cluster's input files.
    pub files: Option<PathBuf>,
    /// The memory of the process, if it is limited.
    pub memory: Option<Arc<MemoryBudget>>,
    /// Receives the reason when the node is ordered to end.
    pub on_shutdown: Option<mpsc::UnboundedSender<String>>,
    /// Receives each job's engine at its start, for audits.
    pub on_engine: Option<mpsc::UnboundedSender<EngineWatch>>,
}

impl WorkerConfig {
    /// Configuration with real threads.
    pub fn real(threads: u32) -> Self {
        Self {
            threads,
            seam: Arc::new(|| -> Arc<dyn Seam> { RealSeam::new() }),
            fork_time: None,
            files: None,
            memory: None,
            on_shutdown: None,
            on_engine: None,
        }
    }

    /// Configuration with real threads that use at most this share of a processor.
    pub fn throttled(threads: u32, throttle: Throttle) -> Self {
        let seam: SeamFactory = Arc::new(move || ThrottledSeam::new(throttle.clone()));
        Self { seam, ..Self::real(threads) }
    }
}

/// The worker actor. Published as [`WORKER`], and as [`CHECKPOINTS`].
pub struct Worker {
    config: WorkerConfig,
    registry: Arc<Registry>,
    net: Net,
    hub: Arc<Hub>,
    /// Views on their way to other workers.
    views: ViewSender,
    router: Arc<Router>,
    heartbeats: Arc<Heartbeats>,
    /// Answers thieves while the node is in no job.
    absent: Arc<dyn NetworkHandler>,
    recorder: Recorder,
    running: Option<RunningJob>,
    /// The job that this node left last. Its answer to the order may be lost with the coordinator.
    departed: Option<DepartedJob>,
    /// Jobs that this node was released from, with the latest epoch: earlier assignments are void.
    released: BTreeMap<JobId, Epoch>,
    /// Whether the node's process is ending; then it accepts no job.
    ending: bool,
    /// Set to stop the running benchmark.
    measuring: Option<Arc<AtomicBool>>,
    /// The grid's head: its scheduler confirms orders of nodes that the worker does not know.
    head: Option<NodeId>,
}

/// To the worker of this process: returns its current job.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<NodeWork>")]
pub struct GetWork;

impl Handler<GetWork> for Worker {
    type Result = Option<NodeWork>;

    fn handle(&mut self, _: GetWork, _: &mut Self::Context) -> Self::Result {
        self.work()
    }
}

/// Sender of the root's reports to the coordinator, if this node has that role.
type Listener = Arc<Mutex<Option<mpsc::UnboundedSender<RootReport>>>>;

struct RunningJob {
    spec: JobSpec,
    view: View,
    client: Contact,
    scheduler: Contact,
    listener: Listener,
    engine: Engine,
    inbox: Arc<dyn NetworkHandler>,
    reports: u64,
    /// The job's benchmark, once known.
    benchmark: Option<SpecId>,
    /// Number of orders to measure the speed again that were carried out.
    measurements: u32,
    /// Whether some worker has proposed a benchmark.
    proposed: bool,
    /// The newest checkpoint of the job's root that this node keeps.
    kept: Option<RootCheckpoint>,
    /// Handover state for this node, the designated successor.
    bequest: Option<HandoverState>,
    /// Tasks that lost nodes held for this one, until reported to the job's coordinator.
    losses: Vec<NodeLosses>,
    /// Whether a report of losses is outstanding.
    reporting: bool,
    /// Timers of this job's periodic work.
    timers: Vec<SpawnHandle>,
    coordinator: Option<Addr<Coordinator>>,
    cluster: Option<Addr<ClusterCoordinator>>,
}

/// A job that the node left by order.
struct DepartedJob {
    job: JobId,
    view: View,
    last: FinalReport,
}

impl Worker {
    /// Creates a worker without a job. Start and publish it with [`Worker::publish`].
    pub fn new(
        config: WorkerConfig,
        registry: Arc<Registry>,
        net: Net,
        hub: Arc<Hub>,
        router: Arc<Router>,
        recorder: Recorder,
    ) -> Self {
        let heartbeats = Heartbeats::new(net.clone());
        router.route(Heartbeats::KINDS, heartbeats.clone());
        let absent: Arc<dyn NetworkHandler> = Arc::new(AbsentNodeInbox::new(net.clone()));
        router.route(AbsentNodeInbox::KIND..=AbsentNodeInbox::KIND, absent.clone());
        Self {
            config,
            registry,
            net,
            hub,
            views: ViewSender::new(),
            router,
            heartbeats,
            absent,
            recorder,
            running: None,
            departed: None,
            released: BTreeMap::new(),
            ending: false,
            measuring: None,
            head: None,
        }
    }

    /// Sets the head of the worker's grid.
    #[must_use]
    pub fn of_head(self, head: NodeId) -> Self {
        Self { head: Some(head), ..self }
    }

    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(self) -> Addr<Self> {
        let hub = self.hub.clone();
        let addr = self.start();
        hub.publish(WORKER, addr.clone())
            .accepts_judged::<Assign>()
            .accepts_judged::<QueryWorker>()
            .accepts_judged::<Leave>()
            .accepts_judged::<FindCheckpoint>()
            .accepts_judged::<ProbeMember>()
            .accepts_judged::<GetCheckpoint>()
            .accepts_judged::<PrepareSuccessor>()
            .accepts_judged::<TakeOver>()
            .accepts_judged::<MeasureSpeed>()
            .accepts_judged::<AuditJob>()
            .accepts_judged::<NewView>()
            .accepts_judged::<ChangeView>()
            .accepts_judged::<Finish>()
            .accepts_judged::<ReleaseWorker>()
            .accepts_judged::<Shutdown>();
        hub.publish(CHECKPOINTS, addr.clone()).accepts_judged::<StoreCheckpoint>();
        addr
    }

    /// Its current job; coordinators add the members.
    fn work(&self) -> Option<NodeWork> {
        let RunningJob { spec, view, .. } = self.running.as_ref()?;
        let me = self.me();
        let hosts = view.cluster_coordinators.values().any(|host| *host == me);
        let knows = (hosts || view.coordinator.as_ref() == Some(&me)) && !view.partial;
        Some(NodeWork { job: spec.id, view: knows.then(|| view.clone()) })
    }

    fn me(&self) -> NodeId {
        self.net.me().node.clone()
    }

    /// Whether this repeats an assignment whose answer was lost.
    fn is_known(&self, assign: &Assign) -> bool {
        let of = |running: &RunningJob| (running.spec.id, running.spec.epoch);
        self.running.as_ref().is_some_and(|it| of(it) == (assign.spec.id, assign.spec.epoch))
    }

    fn check(&self, assign: &Assign) -> Result<(), AssignError> {
        let node = self.me();
        if let Some(running) = &self.running {
            return Err(AssignError::Busy { node, job: running.spec.id });
        }
        if self.head.as_ref().is_some_and(|head| *head != assign.scheduler.node) {
            let reason = format!("{} is not the scheduler of its grid", assign.scheduler.node);
            return Err(AssignError::failed(&node, reason));
        }
        if self.ending {
            return Err(AssignError::failed(&node, "the node is ending"));
        }
        let released = self.released.get(&assign.spec.id);
        if released.is_some_and(|released| assign.spec.epoch < *released) {
            let reason = format!("it was released from {} meanwhile", assign.spec.id);
            return Err(AssignError::failed(&node, reason));
        }
        let fingerprint = self.registry.fingerprint();
        if fingerprint != assign.spec.fingerprint {
            return Err(AssignError::Program {
                node,
                node_fingerprint: fingerprint,
                job_fingerprint: assign.spec.fingerprint,
            });
        }
        if self.registry.find_job(&assign.spec.name).is_none() {
            return Err(AssignError::UnknownJob { node, name: assign.spec.name.clone() });
        }
        let named = assign.view.members.get(&node).map(|member| member.incarnation);
        if named != Some(self.net.me().incarnation) {
            // An assignment to an earlier incarnation may be repeated to this one.
            let reason = "the job's view does not name this incarnation of the node".to_owned();
            return Err(AssignError::failed(&node, reason));
        }
        Ok(())
    }

    /// Stops a running benchmark after the current repetition, since the node is needed.
    fn stop_measuring(&mut self) {
        if let Some(stop) = self.measuring.take() {
            stop.store(true, Ordering::Relaxed);
        }
    }

    fn take_part(&mut self, assign: Assign, ctx: &mut Context<Self>) -> Result<(), AssignError> {
        self.check(&assign)?;
        self.stop_measuring();
        let Assign { spec, view, client, scheduler, benchmark } = assign;
        self.departed = self.departed.take().filter(|departed| departed.job != spec.id);
        let node = self.me();
        for contact in [&client, &scheduler] {
            if contact.node != node {
                self.net.learn_if_down(contact.clone());
            }
        }
        let is_coordinator = view.coordinator.as_ref() == Some(&node);
        let listener = Listener::default();
        let engine = self
            .start_engine(&spec, listener.clone())
            .map_err(|error| AssignError::failed(&node, error.to_string()))?;
        if let Some(tell) = &self.config.on_engine {
            let _ = tell.send(engine.watch());
        }
        let inbox = engine.inbox();
        self.router.remove(&self.absent);
        self.router.route(Kind::STEAL_REQUEST..=Kind::PROCESS, inbox.clone());
        self.router.route(Kind::OBJECT_UPDATE..=Kind::OBJECT_MERGE, inbox.clone());
        engine.set_view(&view);
        actix_rt::spawn(engine.clone().drive());
        let known = benchmark.as_ref().map(BenchmarkSpec::id);
        if let Some(benchmark) = benchmark {
            engine.set_benchmark(benchmark);
        }
        let cluster = self.net.me().cluster.clone();
        let hosts_cluster = view.cluster_coordinators.get(&cluster) == Some(&node);
        let cluster_coordinator = hosts_cluster.then(|| {
            let hub = self.hub.clone();
            let scheduler = scheduler.node.clone();
            let (spec, view, cluster) = (spec.clone(), view.clone(), cluster.clone());
            let heartbeats = self.heartbeats.clone();
            ClusterCoordinator::new(spec, view, cluster, hub, scheduler, heartbeats).publish()
        });
        let coordinator = is_coordinator.then(|| {
            let config = CoordinatorConfig {
                spec: spec.clone(),
                view: view.clone(),
                client: client.clone(),
                scheduler: scheduler.clone(),
                registry: self.registry.clone(),
                engine: engine.clone(),
                recorder: self.recorder.clone(),
                reports: listen(&listener),
                succeeds: None,
                elapsed: Duration::ZERO,
            };
            Coordinator::new(config, self.hub.clone()).publish()
        });
        let period = spec.params.period();
        let period = ctx.run_interval(period, |worker, ctx| worker.push_report(ctx));
        let alive = ctx.run_interval(SilenceLimits::CLUSTER.check_interval, |worker, ctx| {
            worker.send_heartbeat(ctx)
        });
        let confirm = ctx.run_interval(CONFIRM_EVERY, |worker, ctx| worker.confirm_membership(ctx));
        self.join_cluster(&spec, &view, ctx);
        self.running = Some(RunningJob {
            spec,
            view,
            client,
            scheduler,
            listener,
            engine,
            inbox,
            reports: 0,
            benchmark: known,
            measurements: 0,
            proposed: false,
            kept: None,
            bequest: None,
            losses: Vec::new(),
            reporting: false,
            timers: vec![period, alive, confirm],
            coordinator,
            cluster: cluster_coordinator,
        });
        Ok(())
    }

    fn start_engine(&self, spec: &JobSpec, listener: Listener) -> std::io::Result<Engine> {
        let me = self.net.me();
        let policy = match spec.params.steal {
            StealMode::ClusterAware => StealPolicy::ClusterAware,
            StealMode::Random => StealPolicy::Random,
        };
        // Mixed, since users may ignore the lowest bit of a seed.
        let seed = SplitMix::with_text(spec.params.seed, me.node.as_str()).next();
        let config = EngineConfig {
            job: spec.id,
            policy,
            pool: PoolConfig {
                threads: self.config.threads.max(1) as usize,
                stack_bytes: usize::try_from(spec.params.stack_bytes).unwrap_or(16 << 20),
                nesting_bound: spec.params.nesting_bound,
                seed,
                fork_time: self.config.fork_time,
                checkpoint_rate: spec.params.checkpoint_rate,
                files: self.config.files.clone(),
                array: spec.params.array,
                processors_min: if spec.params.managed {
                    spec.params.min_or_one().get()
                } else {
                    1
                },
                ..PoolConfig::default()
            },
            share: ShareConfig { seed, ..ShareConfig::default() },
            metering: (spec.params.mode != Mode::Static).then(|| {
                let max_age = spec.params.settings.speed_max_age();
                MeteringSettings::new(spec.params.period(), seed).with_max_age(max_age)
            }),
            results_bytes: usize::try_from(spec.params.results_bytes).unwrap_or(usize::MAX),
            memory: self.config.memory.clone(),
        };
        // Notes reach the coordinator's task in order. The root writes them no faster than it
        // computes.
        let notes: ReportHandler = Box::new(move |note| {
            let listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(tell) = &*listener {
                // After the coordinator's end the receiver is gone.
                let _ = tell.send(RootReport::Note(Instant::now(), note));
            }
        });
        Engine::start(
            &config,
            self.registry.clone(),
            self.net.clone(),
            (self.config.seam)(),
            self.recorder.clone(),
            notes,
        )
    }

    fn join_cluster(&self, spec: &JobSpec, view: &View, ctx: &mut Context<Self>) {
        let me = self.net.me().clone();
        let Some(host) = view.cluster_coordinators.get(&me.cluster) else { return };
        let remote =
            self.hub.remote::<ClusterCoordinator>(host, &cluster_coordinator_name(spec.id));
        let message = WorkerJoinNotice {
            job: spec.id,
            node: me.node,
            incarnation: me.incarnation,
            threads: self.config.threads,
            partial: view.partial,
        };
        let joining = async move {
            let until = Instant::now() + JOIN_DEADLINE;
            let mut pause = Duration::from_millis(10);
            loop {
                let error = match remote.send(message.clone()).deadline(JOIN_DEADLINE).await {
                    Ok(()) => return,
                    Err(error) => error,
                };
                // The coordinator's node may not be assigned yet, or could not ask the scheduler.
                let retry = match &error {
                    RemoteError::NoActor { .. } | RemoteError::Gone { .. } => true,
                    RemoteError::Refused { reason: why, .. } => {
                        matches!(why, Refusal::JobRole | Refusal::Unconfirmed)
                    }
                    _ => false,
                };
                if !retry || Instant::now() >= until {
                    tracing::error!(%error, "could not join the cluster's coordinator");
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(500));
            }
        };
        ctx.spawn(joining.into_actor(self));
    }

    fn report(&mut self, last: bool) -> Option<NodeReport> {
        let me = self.net.me().clone();
        let running = self.running.as_mut()?;
        running.reports += 1;
        let every = u64::from(running.spec.params.histogram_periods.max(1));
        let latencies = last || running.reports % every == 0;
        Some(NodeReport {
            node: me.node,
            incarnation: me.incarnation,
            cluster: me.cluster,
            seq: running.reports,
            statistics: running.engine.statistics(latencies),
        })
    }

    fn push_report(&mut self, ctx: &mut Context<Self>) {
        self.report_losses(ctx);
        let Some(report) = self.report(false) else { return };
        let Some(running) = &self.running else { return };
        let Some(host) = running.view.cluster_coordinators.get(&report.cluster) else { return };
        let job = running.spec.id;
        let remote = self.hub.remote::<ClusterCoordinator>(host, &cluster_coordinator_name(job));
        let period = running.spec.params.period();
        let view = (running.view.epoch, running.view.version);
        let engine = running.engine.clone();
        let measures = running.spec.params.mode != Mode::Static;
        let measure = measures.then(|| engine.end_period(Instant::now()));
        let benchmark = running.benchmark;
        let proposed = running.proposed || benchmark.is_some();
        let candidate = if proposed { None } else { engine.benchmark_candidate() };
        let message = WorkerPeriod { job, view, report, measure, candidate, benchmark };
        let sent = async move {
            let start = Instant::now();
            match remote.send(message).deadline(period).await {
                Ok(reply) => {
                    engine.round_trip(start.elapsed());
                    return reply;
                }
                Err(error) => {
                    tracing::debug!(%error, "a report was lost; the next contains the same sums");
                }
            }
            WorkerPeriodReply::default()
        };
        ctx.spawn(sent.into_actor(self).map(move |reply, worker, _| {
            let Some(running) = worker.running.as_mut().filter(|r| r.spec.id == job) else {
                return;
            };
            running.proposed |= reply.proposed;
            // A lost reply, or a cluster coordinator without the memory, orders nothing.
            if reply.measurements > running.measurements {
                running.measurements = reply.measurements;
                running.engine.measure_speed_again();
            }
            if let Some(benchmark) = reply.benchmark {
                running.benchmark = Some(benchmark.id());
                running.engine.set_benchmark(benchmark);
            }
        }));
    }

    /// Reports the tasks that lost nodes held to the job's coordinator. The next report repeats a
    /// lost one.
    fn report_losses(&mut self, ctx: &mut Context<Self>) {
        let Some(running) = &mut self.running else { return };
        for loss in running.engine.take_node_losses() {
            let known: usize = running.losses.iter().map(|known| known.tasks.len()).sum();
            if known + loss.tasks.len() <= LOSSES_MAX {
                running.losses.push(loss);
            }
        }
        if running.reporting || running.losses.is_empty() {
            return;
        }
        let Some(coordinator) = &running.view.coordinator else { return };
        let (job, losses) = (running.spec.id, running.losses.clone());
        let reported = losses.len();
        let remote = self.hub.remote::<Coordinator>(coordinator, &coordinator_name(job));
        let request = remote.send(TasksHeldAtDeath { job, losses }).deadline(TELL_DEADLINE).start();
        running.reporting = true;
        ctx.spawn(request.into_actor(self).map(move |answer, worker, ctx| {
            let Some(running) = worker.running.as_mut().filter(|r| r.spec.id == job) else {
                return;
            };
            running.reporting = false;
            match answer {
                Ok(()) => {
                    running.losses.drain(..reported);
                    // Further losses may have occurred meanwhile.
                    worker.report_losses(ctx);
                }
                Err(error) => tracing::debug!(%error, "losses are reported again later"),
            }
        }));
    }

    /// Sends a heartbeat to the cluster's coordinator, and checks the coordinator's own.
    fn send_heartbeat(&mut self, ctx: &mut Context<Self>) {
        let Some(running) = &self.running else { return };
        let job = running.spec.id;
        let found = self.heartbeats.send_heartbeat(job, &running.view, &ctx.address().recipient());
        let Some(Silence { host: node, incarnation, duration: silence }) = found else { return };
        let what = "the cluster's coordinator is silent; reporting it";
        tracing::warn!(%node, silent = ?silence, "{what}");
        let Some(coordinator) = &running.view.coordinator else { return };
        if *coordinator == node {
            // The node hosts both coordinators, so the scheduler is informed.
            let me = self.net.me();
            let report = MemberSilent {
                job,
                epoch: running.view.epoch,
                node,
                incarnation,
                reason: format!("silent for {:.1} s", silence.as_secs_f64()),
                reporting_cluster: Some(me.cluster.clone()),
                reporter: Some((me.node.clone(), me.incarnation)),
            };
            let remote = self.hub.remote::<Scheduler>(&running.scheduler.node, SCHEDULER);
            let request = remote.send(report).start();
            ctx.spawn(async move { drop(request.await) }.into_actor(self));
            return;
        }
        let silent_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        let remote = self.hub.remote::<Coordinator>(coordinator, &coordinator_name(job));
        let request = remote.send(NodeSilence { job, node, silent_ms }).start();
        ctx.spawn(async move { drop(request.await) }.into_actor(self));
    }

    /// Asks the scheduler whether this node still belongs to its job, and leaves the job if not. A
    /// lost question is repeated after [`CONFIRM_EVERY`].
    fn confirm_membership(&mut self, ctx: &mut Context<Self>) {
        let Some(running) = &self.running else { return };
        let job = running.spec.id;
        let me = self.net.me();
        let ask = ConfirmMembership { job, node: me.node.clone(), incarnation: me.incarnation };
        let remote = self.hub.remote::<Scheduler>(&running.scheduler.node, SCHEDULER);
        let request = remote.send(ask).start();
        ctx.spawn(request.into_actor(self).map(move |answer, worker, ctx| {
            if let Ok(Err(stale)) = answer
                && worker.running.as_ref().is_some_and(|running| running.spec.id == job)
            {
                tracing::warn!("{stale}");
                worker.retire();
                let left = worker.leave(ctx);
                ctx.spawn(left.into_actor(worker));
            }
        }));
    }

    /// Leaves the job that declared this node dead: its tasks are executed elsewhere. The process
    /// ends, and its site starts a new incarnation.
    fn declared_dead(&mut self, ctx: &mut Context<Self>) {
        let Some(running) = &self.running else { return };
        let reason =
            format!("{} continues without this node, which was silent too long", running.spec.id);
        tracing::error!("{reason}");
        self.ending = true;
        self.retire();
        let left = self.leave(ctx);
        let tell = self.config.on_shutdown.clone();
        let ends = async move {
            left.await;
            if let Some(tell) = tell {
                // The receiving process may be ending already.
                let _ = tell.send(reason);
            }
        };
        ctx.spawn(ends.into_actor(self));
    }

    /// Ends the role of cluster coordinator. Otherwise it would declare all silent members dead,
    /// since they no longer report to it.
    fn retire(&mut self) {
        let Some(running) = &mut self.running else { return };
        if let Some(former) = running.cluster.take() {
            self.hub.unpublish(&cluster_coordinator_name(running.spec.id));
            former.do_send(Retire);
        }
    }

    /// The final report on a job that this node left by order. A coordinator's successor repeats
    /// the order, since the first answer may have reached no coordinator.
    fn last_report(&self, job: JobId) -> Option<FinalReport> {
        let departed = self.departed.as_ref().filter(|departed| departed.job == job);
        departed.map(|departed| departed.last.clone())
    }

    /// Ends this node's part in the job, and the roles that it hosts. Completes when the threads
    /// have ended.
    fn leave(&mut self, ctx: &mut Context<Self>) -> impl Future<Output = ()> + 'static + use<> {
        let running = self.running.take();
        if let Some(running) = &running {
            for timer in &running.timers {
                ctx.cancel_future(*timer);
            }
            self.heartbeats.stop();
            running.engine.close();
            self.router.remove(&running.inbox);
            self.router.route(AbsentNodeInbox::KIND..=AbsentNodeInbox::KIND, self.absent.clone());
            let job = running.spec.id;
            if running.cluster.is_some() {
                self.hub.unpublish(&cluster_coordinator_name(job));
            }
            if let Some(coordinator) = &running.coordinator {
                // It still answers while it ends the job. Another received its order to take over
                // too late.
                coordinator.do_send(StopUnlessEnding);
            }
        }
        async move {
            if let Some(running) = running {
                running.engine.closed().await;
            }
        }
    }
}

/// Both ends of a channel for the root's reports, with the sender in the listener.
fn listen(
    listener: &Listener,
) -> (mpsc::UnboundedSender<RootReport>, mpsc::UnboundedReceiver<RootReport>) {
    let (tell, reports) = mpsc::unbounded_channel();
    *listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell.clone());
    (tell, reports)
}

impl AdmitsMessages for Worker {
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        confirmed: Option<&JobAuthority>,
    ) -> SenderStanding {
        let running = self.running.as_ref();
        let scheduler = self.head.as_ref().or(running.map(|running| &running.scheduler.node));
        let known = running.filter(|running| running.spec.id == about.job);
        let departed = self.departed.as_ref().filter(|departed| departed.job == about.job);
        let departed = departed.filter(|_| !about.is_assignment).map(|departed| &departed.view);
        let standing = match known.map(|running| &running.view).or(departed) {
            Some(view) => SenderStanding::in_view(view, from),
            None => {
                SenderStanding { is_uncertain: about.is_assignment, ..SenderStanding::default() }
            }
        };
        let standing = standing.with(outside(from, scheduler));
        match confirmed {
            // A node that the job was not given must not join it.
            Some(authority) if about.is_assignment && !authority.member => {
                SenderStanding { is_uncertain: authority.coordinator.is_none(), ..standing }
            }
            Some(authority) => standing.confirmed(authority, from),
            None => standing,
        }
    }

    fn ask(&self, from: &MessageOrigin, about: &MessageSubject) -> Option<AuthorityQuery> {
        let running = self.running.as_ref();
        let scheduler = self.head.as_ref().or(running.map(|running| &running.scheduler.node))?;
        // For an assignment, asks whether this node belongs to the job; for an order, whether its
        // sender does.
        let node = if about.is_assignment { self.me() } else { from.peer.node.clone() };
        Some(ask_scheduler(&self.hub.remote(scheduler, SCHEDULER), node, about.job))
    }
}

crate::judged!(Worker);

impl Actor for Worker {
    type Context = Context<Self>;
}

impl Handler<Assign> for Worker {
    type Result = Result<(), AssignError>;

    fn handle(&mut self, assign: Assign, ctx: &mut Context<Self>) -> Self::Result {
        let job = assign.spec.id;
        if self.is_known(&assign) {
            let view = assign.view;
            self.handle(NewView { job, view }, ctx);
            return Ok(());
        }
        self.take_part(assign, ctx)
    }
}

impl Handler<NewView> for Worker {
    type Result = ();

    fn handle(&mut self, message: NewView, ctx: &mut Context<Self>) {
        let me = self.net.me().clone();
        let Some(running) = self.running.as_mut().filter(|r| r.spec.id == message.job) else {
            return;
        };
        let former = running.view.clone();
        if !running.view.advance(message.view) {
            return;
        }
        let view = running.view.clone();
        running.engine.set_view(&view);
        if view.coordinator.as_ref() != Some(&me.node)
            && let Some(former) = running.coordinator.take()
        {
            // It has handed over, or was declared lost.
            running.engine.cancel_root();
            self.hub.unpublish(&coordinator_name(message.job));
            former.do_send(StopReplaced);
        }
        self.report_losses(ctx);
        let Some(running) = &mut self.running else { return };
        if view.cluster_coordinators.get(&me.cluster) != Some(&me.node) {
            if let Some(former) = running.cluster.take() {
                // Another node has the role, since this one leaves.
                self.hub.unpublish(&cluster_coordinator_name(message.job));
                former.do_send(Retire);
            }
            return;
        }
        match &running.cluster {
            Some(coordinator) => coordinator.do_send(ViewChanged(view.clone())),
            None => {
                let (spec, hub) = (running.spec.clone(), self.hub.clone());
                let cluster = me.cluster.clone();
                let scheduler = running.scheduler.node.clone();
                let heartbeats = self.heartbeats.clone();
                let next = ClusterCoordinator::new(
                    spec,
                    view.clone(),
                    cluster,
                    hub,
                    scheduler,
                    heartbeats,
                )
                .succeeding();
                tracing::info!("this node is now its cluster's coordinator");
                running.cluster = Some(next.publish());
            }
        }
        let change = small_change(&former, &view);
        let others = view.in_cluster(&me.cluster).filter(|node| **node != me.node);
        for node in others {
            let sending: Option<SendingView> = match &change {
                Some(_) => {
                    let sending = send_view(&self.hub, node, message.job, &view, change.as_ref());
                    Some(Box::pin(sending))
                }
                None => self.views.send(&self.hub, node, message.job, &view),
            };
            let Some(sending) = sending else { continue };
            let node = node.clone();
            let sending = async move {
                if let Err(error) = sending.await {
                    // Its next report shows the old view, and is answered with the new one.
                    tracing::info!(%node, %error, "a worker has not accepted the new view yet");
                }
            };
            ctx.spawn(sending.into_actor(self));
        }
    }
}

impl Handler<NotAMember> for Worker {
    type Result = ();

    fn handle(&mut self, NotAMember { job, host }: NotAMember, ctx: &mut Context<Self>) {
        let Some(running) = self.running.as_ref().filter(|r| r.spec.id == job) else { return };
        if running.view.cluster_coordinators.get(&self.net.me().cluster) == Some(&host) {
            self.declared_dead(ctx);
        }
    }
}

impl Handler<Leave> for Worker {
    type Result = ResponseActFuture<Self, Option<FinalReport>>;

    fn handle(&mut self, message: Leave, _ctx: &mut Context<Self>) -> Self::Result {
        let job = message.job;
        let is_current = |r: &&RunningJob| r.spec.id == job && message.epoch >= r.view.epoch;
        let Some(running) = self.running.as_ref().filter(is_current) else {
            return Box::pin(actix::fut::ready(self.last_report(job)));
        };
        let engine = running.engine.clone();
        let me = self.me();
        tracing::debug!(%me, "is ordered to leave the job");
        let leaving = async move {
            match message.deadline_ms.map(Duration::from_millis) {
                // Tasks left at the deadline are lost with it.
                Some(within) => drop(tokio::time::timeout(within, engine.leave()).await),
                None => engine.leave().await,
            }
            // It stays a live member until its threads have ended. On a slow processor,
            // uninterruptible work may exceed the maximum silence of a member.
            engine.close();
            engine.closed().await;
        };
        let on_done = move |(), worker: &mut Self, ctx: &mut Context<Self>| {
            tracing::debug!(%me, "has handed everything back");
            let here = worker.running.as_ref().is_some_and(|running| running.spec.id == job);
            if here && let Some(former) = worker.running.as_mut().and_then(|r| r.cluster.take()) {
                // The view that moves the role did not arrive in time.
                worker.hub.unpublish(&cluster_coordinator_name(job));
                former.do_send(Retire);
            }
            let report = if here { worker.report(true) } else { None };
            let view = worker.running.as_ref().filter(|_| here).map(|running| running.view.clone());
            let left = if here { Some(worker.leave(ctx)) } else { None };
            let ended = async move {
                if let Some(left) = left {
                    left.await;
                }
                report.zip(view)
            };
            ended.into_actor(worker).map(move |ended, worker, _| {
                if let Some((report, view)) = ended {
                    let last = FinalReport { report, records: worker.recorder.drain() };
                    worker.departed = Some(DepartedJob { job, view, last });
                }
                worker.last_report(job)
            })
        };
        Box::pin(leaving.into_actor(self).then(on_done))
    }
}

impl Handler<Finish> for Worker {
    type Result = ResponseActFuture<Self, Option<FinalReport>>;

    fn handle(&mut self, message: Finish, ctx: &mut Context<Self>) -> Self::Result {
        let is_current = |r: &RunningJob| r.spec.id == message.job && message.epoch >= r.view.epoch;
        if !self.running.as_ref().is_some_and(is_current) {
            return Box::pin(actix::fut::ready(None));
        }
        let report = self.report(true);
        let left = self.leave(ctx).into_actor(self);
        Box::pin(left.map(move |(), worker, _| {
            let records = worker.recorder.drain();
            report.map(|report| FinalReport { report, records })
        }))
    }
}

impl Handler<ReleaseWorker> for Worker {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, message: ReleaseWorker, ctx: &mut Context<Self>) -> Self::Result {
        let mut left = None;
        let epoch = if message.over { unknown_epoch() } else { message.epoch };
        let released = self.released.entry(message.job).or_default();
        *released = epoch.max(*released);
        if self.released.len() > RELEASED_MAX {
            self.released.pop_first();
        }
        if self.running.as_ref().is_some_and(|running| running.spec.id == message.job) {
            self.retire();
            left = Some(self.leave(ctx));
        }
        Box::pin(async move {
            if let Some(left) = left {
                left.await;
            }
        })
    }
}

impl Handler<AuditJob> for Worker {
    type Result = MessageResult<AuditJob>;

    fn handle(&mut self, AuditJob { job }: AuditJob, _: &mut Context<Self>) -> Self::Result {
        let running = self.running.as_ref().filter(|running| running.spec.id == job);
        MessageResult(JobAudit {
            coordinates: self.hub.publishes(&coordinator_name(job)),
            members: running.map(|running| running.view.members.keys().cloned().collect()),
        })
    }
}

impl Handler<Shutdown> for Worker {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, message: Shutdown, ctx: &mut Context<Self>) -> Self::Result {
        self.ending = true;
        self.stop_measuring();
        self.retire();
        let left = self.leave(ctx);
        let tell = self.config.on_shutdown.clone();
        Box::pin(async move {
            left.await;
            if let Some(tell) = tell {
                // The receiving process may be ending already.
                let _ = tell.send(message.reason);
            }
        })
    }
}
