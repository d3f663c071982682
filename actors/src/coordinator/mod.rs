//! The coordinator of a job, on the node of the job's root. It starts the root when all clusters
//! have joined, forwards the root's reports, collects each period's aggregates, and ends the job in
//! order.
//!
//! Its input and work are O(clusters). `adapt` executes adaptation, `members` handles joins and
//! leaves, and `report` sends notes to the client. `handover` ends a coordinator, `succeed` starts
//! the next.

mod adapt;
mod handover;
mod look;
mod members;
mod negotiate;
mod report;
mod silence;
mod succeed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::{Event, Record, Recorder};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::membership::{Detector, Finding, Member, SilenceLimits, View, ViewChange};
use springtide_runtime::meter::{Deltas, ReportTally, Statistics};
use springtide_runtime::net::Contact;
use springtide_runtime::processors::Processors;
use springtide_runtime::remote::{Hub, MessageOrigin, Publication, Remote};
use springtide_runtime::work::{
    Engine, NodeLosses, Outcome, PhaseTimes, ProgressReport, Registry, RootEnd,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::report::OutgoingReport;
use crate::admit::{
    AdmitsMessages, AuthorityQuery, MessageSubject, Places, SenderStanding, outside,
};
use crate::policy::JobProgress;
use crate::worker_calls::{probe_indirectly, send_view, small_change, workers_by_cluster};
use springtide_protocol::cluster::{
    ClusterFinalReport, ClusterHeartbeat, ClusterPeriod, ClusterPeriodReply, ClusterReady,
    FinishCluster, FinishWithout, NodeSilence,
};
use springtide_protocol::job::{
    Cancel, ClientMessage, ClientMessageError, ClusterReport, JobEndNotice, JobEndReport, JobError,
    JobNote, JobReport, JobSpec, LostMember, NoteKind, RootProgress, TasksHeldAtDeath,
};
use springtide_protocol::look::{InspectJob, JobPicture};
use springtide_protocol::names::{CLIENT, SCHEDULER, cluster_coordinator_name, coordinator_name};
use springtide_protocol::receivers::{Client, ClusterCoordinator, Scheduler};
use springtide_protocol::scheduler::{
    AskLeave, AskShrink, BetterFree, GrowthRefused, JobAuthority, MemberSilent, NodeGrant,
    OfferGrowth, ReleaseReason, RootAdvanced,
};
use springtide_protocol::worker::{HandoverState, RootCheckpoint};
use springtide_scheduler::poison::{DeadNode, PoisonDetector, PoisonVerdict};

/// Maximum time for which a cluster that only other members reach counts as alive. Where the
/// network relays links, a relayed link exists by then.
const INDIRECT_MAX: Duration = Duration::from_secs(120);
/// Maximum time for all workers to join.
const JOIN_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum time for a cluster to end a job.
const FINISH_DEADLINE: Duration = Duration::from_secs(45);
/// Minimum interval between progress reports to the scheduler.
const PROGRESS_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Parts of a new coordinator.
pub struct CoordinatorConfig {
    /// Specification of the job.
    pub spec: JobSpec,
    /// The initial view of members.
    pub view: View,
    /// Address of the job's client.
    pub client: Contact,
    /// Address of the scheduler, which learns of the job's end.
    pub scheduler: Contact,
    /// Jobs and tasks of this program.
    pub registry: Arc<Registry>,
    /// This node's engine; it executes the root.
    pub engine: Engine,
    /// Recorder of this node's events.
    pub recorder: Recorder,
    /// Channel of the root's reports; the sender reports the root's end.
    pub reports: (mpsc::UnboundedSender<RootReport>, mpsc::UnboundedReceiver<RootReport>),
    /// The succession, if it succeeds another coordinator.
    pub succeeds: Option<Succession>,
    /// Time for which the job has run.
    pub elapsed: Duration,
}

/// The predecessor of a coordinator, and the state that it left.
#[derive(Clone, Debug)]
pub struct Succession {
    /// Node of the predecessor.
    pub lost: NodeId,
    /// How it was lost, or why it hands over.
    pub reason: String,
    /// Whether it hands over, and stays a member.
    pub handed: bool,
    /// Handover state for this node, if any.
    pub bequest: Option<HandoverState>,
    /// Members of the last view that were lost since, the predecessor among them.
    pub gone: BTreeMap<NodeId, Member>,
    /// Nodes granted to the job but never assigned, and unknown to this node.
    pub strangers: BTreeMap<NodeId, Incarnation>,
}

/// Ends this coordinator silently, since another coordinates the job. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct StopReplaced;

impl Handler<StopReplaced> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: StopReplaced, ctx: &mut Self::Context) {
        self.phase = CoordinatorPhase::Ending;
        ctx.stop();
    }
}

/// Ends this coordinator silently, unless it is ending the job: its node left the job. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct StopUnlessEnding;

impl Handler<StopUnlessEnding> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: StopUnlessEnding, ctx: &mut Self::Context) {
        if self.phase != CoordinatorPhase::Ending {
            self.retract();
            ctx.stop();
        }
    }
}

/// A report of the root, in order, with the time of its event.
#[derive(Debug)]
pub enum RootReport {
    /// The root starts, after this number of iterations reported earlier.
    Started(Instant, u64),
    /// A note of the root.
    Note(Instant, ProgressReport),
    /// The end of the root.
    Ended(RootEnd),
}

/// Latest reported progress of the root.
#[derive(Debug, Default)]
struct RootReportState {
    /// The last progress report.
    progress: Option<JobProgress>,
    /// Whether all processors take the job's steps together.
    is_synchronous: bool,
    /// Progress by iterations, units and checkpoints.
    reached: RootProgress,
    /// Unit of the progress.
    unit: String,
    /// Duration of the last iteration, in seconds.
    iteration_s: f64,
    /// Times of the phases of all iterations.
    phases: PhaseTimes,
    /// The latest picture.
    picture: Option<JobPicture>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoordinatorPhase {
    Joining,
    Running,
    /// The root has stopped, to continue on another node.
    HandingOver,
    Ending,
}

/// The coordinator actor. Published under [`coordinator_name`].
pub struct Coordinator {
    /// Set until the predecessor's state is gathered.
    succeeds: Option<Succession>,
    spec: JobSpec,
    view: View,
    client: Contact,
    scheduler: Contact,
    registry: Arc<Registry>,
    engine: Engine,
    recorder: Recorder,
    report: mpsc::UnboundedSender<RootReport>,
    reports: Option<mpsc::UnboundedReceiver<RootReport>>,
    iterations: Vec<f64>,
    phases: PhaseTimes,
    hub: Arc<Hub>,
    phase: CoordinatorPhase,
    joined: BTreeMap<ClusterId, u32>,
    tally: ReportTally<ClusterId>,
    latencies: Deltas,
    /// Failure detector of the clusters' coordinators.
    detector: Detector,
    /// Number of rounds of indirect probes.
    probes: usize,
    /// Time since which only other members reach a cluster's coordinator.
    indirect_since: BTreeMap<NodeId, Instant>,
    started: Instant,
    /// Changes of the membership under way.
    changes: members::MembershipChanges,
    adaptation: adapt::Adaptation,
    checkpoints: succeed::Checkpoints,
    moving: Option<handover::PendingMove>,
    /// Clusters' coordinators with an outstanding final report; an entry is dropped on loss.
    finishing: BTreeMap<NodeId, oneshot::Sender<()>>,
    /// The nodes that the program returned last.
    returned: Option<negotiate::ReturnedNodes>,
    /// Number of the root's requests for nodes.
    wants: u64,
    /// Tasks that nodes executed when they died.
    poison: PoisonDetector,
    root_progress: Arc<Mutex<RootReportState>>,
    /// Decisions kept for inspection.
    decision_history: look::DecisionHistory,
    /// Clusters whose sums the predecessor knew: their first sums here are no period's.
    inherited: BTreeSet<ClusterId>,
    /// Progress as last reported to the scheduler.
    reported_reached: RootProgress,
    /// Whether the job was cancelled; then notes to the client are not retried.
    cancelled: Arc<AtomicBool>,
    /// Number of the client's last message to the root.
    client_messages: u64,
    out: mpsc::UnboundedSender<OutgoingReport>,
    outgoing: Option<mpsc::UnboundedReceiver<OutgoingReport>>,
    /// Its registration in the hub, set at publication.
    publication: Arc<OnceLock<Publication>>,
}

impl Coordinator {
    /// Creates a coordinator that waits for the clusters to join.
    pub fn new(config: CoordinatorConfig, hub: Arc<Hub>) -> Self {
        let (out, outgoing) = mpsc::unbounded_channel();
        let CoordinatorConfig { spec, registry, .. } = &config;
        let benchmark = registry.find_job(&spec.name).map(|job| job.benchmark(&spec.body));
        let benchmark = benchmark.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "the job's benchmark is invalid and not used");
            None
        });
        let settings = spec.params.settings.clone();
        let poison = PoisonDetector::new(spec.params.poison_limit);
        let adaptation = adapt::Adaptation::new(settings, benchmark.flatten());
        let CoordinatorConfig { spec, view, client, scheduler, .. } = config;
        let CoordinatorConfig { registry, engine, recorder, reports: (report, reports), .. } =
            config;
        let now = Instant::now();
        let started = now.checked_sub(config.elapsed).unwrap_or(now);
        let succeeds = config.succeeds;
        let inherited = match &succeeds {
            Some(_) => view.cluster_coordinators.keys().cloned().collect(),
            None => BTreeSet::new(),
        };
        Self {
            inherited,
            succeeds,
            spec,
            view,
            client,
            scheduler,
            registry,
            engine,
            recorder,
            report,
            reports: Some(reports),
            iterations: Vec::new(),
            phases: PhaseTimes::default(),
            hub,
            phase: CoordinatorPhase::Joining,
            joined: BTreeMap::new(),
            tally: ReportTally::new(),
            latencies: Deltas::default(),
            detector: Detector::new(SilenceLimits::WIDE, Instant::now()),
            probes: 0,
            indirect_since: BTreeMap::new(),
            started,
            changes: members::MembershipChanges::default(),
            adaptation,
            checkpoints: succeed::Checkpoints::default(),
            moving: None,
            finishing: BTreeMap::new(),
            returned: None,
            wants: 0,
            poison,
            root_progress: Arc::default(),
            decision_history: look::DecisionHistory::default(),
            cancelled: Arc::default(),
            client_messages: 0,
            reported_reached: RootProgress::default(),
            out,
            outgoing: Some(outgoing),
            publication: Arc::default(),
        }
    }

    /// Starts the actor on this arbiter, and publishes it until it stops. It still answers while it
    /// reports the job's end.
    pub fn publish(self) -> Addr<Self> {
        let (hub, name) = (self.hub.clone(), coordinator_name(self.spec.id));
        let publication = self.publication.clone();
        let addr = self.start();
        let published = hub.publish(&name, addr.clone());
        // The cell is set only here.
        let _ = publication.set(published.publication());
        published
            .accepts_judged::<ClusterReady>()
            .accepts_judged::<ClusterPeriod>()
            .accepts_judged::<InspectJob>()
            .accepts_judged::<LostMember>()
            .accepts_judged::<TasksHeldAtDeath>()
            .accepts_judged::<NodeGrant>()
            .accepts_judged::<AskLeave>()
            .accepts_judged::<OfferGrowth>()
            .accepts_judged::<AskShrink>()
            .accepts_judged::<BetterFree>()
            .accepts_judged::<GrowthRefused>()
            .accepts_judged::<ClusterHeartbeat>()
            .accepts_judged::<NodeSilence>()
            .accepts_judged::<Cancel>()
            .accepts_judged::<ClientMessage>();
        addr
    }

    /// Removes its name from the hub, unless a successor has it.
    fn retract(&self) {
        if let Some(publication) = self.publication.get() {
            self.hub.retract(publication);
        }
    }

    fn notify_client(&self, note: NoteKind) {
        // The forwarding task lives as long as this actor.
        let _ = self.out.send(OutgoingReport::Note(note));
    }

    fn record_lost(&self, node: &NodeId, member: &Member, reason: &str, silence: Duration) {
        self.recorder.record(Event::NodeLost {
            node: node.clone(),
            cluster: member.cluster.clone(),
            incarnation: member.incarnation,
            why: reason.to_owned(),
            silent_us: u64::try_from(silence.as_micros()).unwrap_or(u64::MAX),
            // The reason contains them where the site observed the end.
            last_lines: Vec::new(),
        });
    }

    /// Records the members added since the former view.
    fn record_joined(&self, former: Option<&View>) {
        let is_new = |node: &NodeId| former.is_none_or(|view| !view.members.contains_key(node));
        for (node, member) in self.view.members.iter().filter(|(node, _)| is_new(node)) {
            let (job, node, cluster) = (self.spec.id, node.clone(), member.cluster.clone());
            self.recorder.record(Event::NodeJoined { job, node, cluster });
        }
    }

    /// Sends recorded events to the client, so that they survive this node.
    fn ship_records(&self) {
        let records = self.recorder.drain();
        if !records.is_empty() {
            self.notify_client(NoteKind::Events { records });
        }
    }

    /// Removes dead members from the view and continues the job.
    fn continue_without(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        silence: Duration,
        ctx: &mut Context<Self>,
    ) {
        let mut gone = Vec::new();
        for node in nodes {
            let Some(member) = self.view.members.get(node) else { continue };
            if self.view.coordinator.as_ref() == Some(node) {
                continue; // this node; the report is false
            }
            self.record_lost(node, member, reason, silence);
            if !member.leaving {
                self.adaptation.recent().crashed(node, &member.cluster);
            }
            gone.push(node);
        }
        if self.phase == CoordinatorPhase::Ending {
            return self.finish_without(nodes, ctx);
        }
        if gone.is_empty() {
            return;
        }
        let view = self.view.without(gone.iter().copied());
        let members = gone.iter().filter_map(|node| Some((*node, self.view.members.get(*node)?)));
        let dead = members.map(|(node, member)| DeadNode::of(node, member, reason));
        let lives_on = |cluster: &ClusterId| view.in_cluster(cluster).next().is_some();
        self.poison.record_deaths(dead, lives_on, Instant::now());
        let names: Vec<&str> = gone.iter().map(|node| node.as_str()).collect();
        let (names, left) = (names.join(", "), view.members.len());
        let lost = if gone.len() == 1 { "node" } else { "nodes" };
        let were = if gone.len() == 1 { "was" } else { "were" };
        let rest = if left == 1 { "node" } else { "nodes" };
        let text = format!("{lost} {names} {were} lost ({reason}): continuing with {left} {rest}");
        self.notify_client(NoteKind::Text { text });
        self.change(view, ctx);
        if self.adapts() {
            self.store_memory(ctx);
        }
        if self.phase == CoordinatorPhase::Joining {
            self.joined.retain(|cluster, _| self.view.cluster_coordinators.contains_key(cluster));
            self.start_if_all_joined(ctx);
        }
    }

    /// Stops waiting for the final reports of members lost during the job's end.
    fn finish_without(&mut self, nodes: &[NodeId], ctx: &mut Context<Self>) {
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        for node in nodes {
            if self.finishing.remove(node).is_some() {
                continue; // dropping the sender ends the wait
            }
            let Some(cluster) = self.view.cluster_of(node) else { continue };
            let Some(host) = self.view.cluster_coordinators.get(cluster) else { continue };
            let name = cluster_coordinator_name(job);
            let remote = self.hub.remote::<ClusterCoordinator>(host, &name);
            let request = remote.send(FinishWithout { job, epoch, node: node.clone() }).start();
            // A cluster that has finished has stopped already.
            ctx.spawn(async move { drop(request.await) }.into_actor(self));
        }
    }

    /// Ends the job if a task repeatedly caused the death of nodes.
    fn check_poison(&mut self, ctx: &mut Context<Self>) {
        if self.phase == CoordinatorPhase::Ending {
            return;
        }
        match self.poison.verdict(Instant::now()) {
            PoisonVerdict::Clean => {}
            PoisonVerdict::Wait(at) => {
                let after = at.saturating_duration_since(Instant::now());
                ctx.run_later(after, |coordinator, ctx| coordinator.check_poison(ctx));
            }
            PoisonVerdict::Poisoned(poisoned) => self.end(Err(poisoned.into()), ctx),
        }
    }

    /// Reports the root's progress to the scheduler, so that earlier deaths are not blamed on it.
    /// Here, it absolves processes of an SPMD program, each of which is one task for the whole job.
    fn report_progress(&mut self, ctx: &mut Context<Self>) {
        let reached = self.root_progress.lock().unwrap_or_else(PoisonError::into_inner).reached;
        // Nothing can be blamed, or no progress was made.
        if self.spec.params.poison_limit == 0 || !self.reported_reached.merge_max(reached) {
            return;
        }
        self.poison.clear_lasting(|name| self.registry.is_process(name));
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let advanced = RootAdvanced { job: self.spec.id, epoch: self.spec.epoch, reached };
        let request = remote.send(advanced).start();
        // The next report includes the contents of a lost one.
        ctx.spawn(async move { drop(request.await) }.into_actor(self));
    }

    /// Declares silent members dead. The job continues without them, and their sites restart them.
    fn declare_dead(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        silence: Duration,
        ctx: &mut Context<Self>,
    ) {
        let known = nodes.iter().filter(|node| self.view.members.contains_key(*node));
        let nodes: Vec<NodeId> = known.cloned().collect();
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        for node in &nodes {
            let Some(member) = self.view.members.get(node) else { continue };
            let dead = MemberSilent {
                job: self.spec.id,
                epoch: self.spec.epoch,
                node: node.clone(),
                incarnation: member.incarnation,
                reason: reason.to_owned(),
                reporting_cluster: None,
                reporter: None,
            };
            let request = remote.send(dead).start();
            let sending = async move {
                if let Err(error) = request.await {
                    tracing::warn!(%error, "a silent node was not reported to the scheduler");
                }
            };
            ctx.spawn(sending.into_actor(self));
        }
        self.continue_without(&nodes, reason, silence, ctx);
    }

    /// Installs a new view; the clusters' coordinators forward it to their workers.
    fn change(&mut self, view: View, ctx: &mut Context<Self>) {
        let former = std::mem::replace(&mut self.view, view);
        self.watch_clusters();
        self.announce_view(Some(&former), ctx);
    }

    /// Records the view and sends it to all clusters, as a change of the former view where
    /// possible.
    fn announce_view(&self, former: Option<&View>, ctx: &mut Context<Self>) {
        if former.is_some() {
            self.record_joined(former);
        }
        self.recorder.record(Event::ViewChanged {
            job: self.spec.id,
            epoch: self.view.epoch,
            version: self.view.version,
            members: u32::try_from(self.view.members.len()).unwrap_or(u32::MAX),
            coordinator: self.view.coordinator.clone(),
        });
        self.ship_records();
        let change = former.and_then(|former| small_change(former, &self.view));
        for (cluster, host) in self.view.cluster_coordinators.iter() {
            self.send_view(cluster, change.as_ref(), ctx);
            let before = former.and_then(|former| former.cluster_coordinators.get(cluster));
            if before.is_some_and(|before| !self.view.members.contains_key(before)) {
                self.introduce_host(cluster, host, change.as_ref(), ctx);
            }
        }
    }

    /// Sends a cluster the view. A lost one is repeated when the cluster reports under an older
    /// view.
    fn send_view(&self, cluster: &ClusterId, change: Option<&ViewChange>, ctx: &mut Context<Self>) {
        let Some(node) = self.view.cluster_coordinators.get(cluster) else { return };
        let sending = send_view(&self.hub, node, self.spec.id, &self.view, change);
        let cluster = cluster.clone();
        let sending = async move {
            if let Err(error) = sending.await {
                tracing::info!(%cluster, %error, "a cluster has not accepted the new view yet");
            }
        };
        ctx.spawn(sending.into_actor(self));
    }

    fn start_if_all_joined(&mut self, ctx: &mut Context<Self>) {
        // More workers than now: some were lost after their cluster joined.
        let there =
            |(cluster, workers): (&ClusterId, &u32)| self.joined.get(cluster) >= Some(workers);
        let all = workers_by_cluster(&self.view).iter().all(there);
        if self.phase == CoordinatorPhase::Joining && self.succeeds.is_none() && all {
            self.started = Instant::now();
            self.record_joined(None);
            self.start_root(None, ctx);
            self.process_postponed_leaves(ctx);
        }
    }

    /// Starts the job without the clusters that missed the deadline, if its minimum allows that.
    fn start_without_missing(&mut self, ctx: &mut Context<Self>) {
        let missing = |cluster: &ClusterId| !self.joined.contains_key(cluster);
        let members = self.view.members.iter();
        let (late, there): (Vec<_>, Vec<_>) = members.partition(|(_, m)| missing(&m.cluster));
        let here = self.view.coordinator.as_ref();
        let root = there.iter().any(|(node, _)| Some(*node) == here);
        let suffice: Processors = there.iter().map(|(_, member)| member.processors()).sum();
        if root && suffice >= self.spec.params.min_or_one() {
            let late = late.into_iter().map(|(n, member)| (n.clone(), member.clone()));
            let late: Vec<(NodeId, Member)> = late.collect();
            return self.start_without(&late, ctx);
        }
        let clusters: BTreeSet<&str> = late.iter().map(|(_, m)| m.cluster.as_str()).collect();
        let reason = format!(
            "the workers of {} did not join within {} s: look at their logs in the run's directory",
            clusters.into_iter().collect::<Vec<_>>().join(", "),
            JOIN_DEADLINE.as_secs()
        );
        self.end(Err(JobError::Start { reason }), ctx);
    }

    /// Starts without members that may be alive and work for other jobs: the scheduler releases
    /// them.
    fn start_without(&mut self, late: &[(NodeId, Member)], ctx: &mut Context<Self>) {
        let reason = format!("it did not join within {} s", JOIN_DEADLINE.as_secs());
        for (node, member) in late {
            self.free(
                node,
                member,
                ReleaseReason::Refused { reason: reason.clone(), busy: None },
                ctx,
            );
        }
        let names: Vec<&str> = late.iter().map(|(node, _)| node.as_str()).collect();
        let text = format!("node {} does not take part: {reason}", names.join(", "));
        self.notify_client(NoteKind::Text { text });
        self.change(self.view.without(late.iter().map(|(node, _)| node)), ctx);
        self.start_if_all_joined(ctx);
    }

    /// Starts the job's root, or resumes it from a checkpoint.
    fn start_root(&mut self, resume: Option<RootCheckpoint>, ctx: &mut Context<Self>) {
        self.phase = CoordinatorPhase::Running;
        let reported = resume.as_ref().map_or(0, |kept| kept.iterations);
        self.recorder.record(Event::JobStarted {
            job: self.spec.id,
            name: self.spec.name.clone(),
            epoch: self.spec.epoch,
        });
        self.ship_records();
        let root = self.view.coordinator.clone().unwrap_or_else(|| "".into());
        self.notify_client(NoteKind::Started { root, workers: self.joined.clone() });
        let Some(job) = self.registry.find_job(&self.spec.name) else {
            let reason = format!("this node's program knows no job {}", self.spec.name);
            return self.end(Err(JobError::Start { reason }), ctx);
        };
        let report = self.report.clone();
        // The receiver lives as long as this actor.
        let _ = report.send(RootReport::Started(Instant::now(), reported));
        self.checkpoints.resume_from(resume.clone());
        let saved = resume.map(|kept| kept.saved);
        self.engine.run_job(job, self.spec.body.clone(), saved, move |end| {
            let _ = report.send(RootReport::Ended(end));
        });
    }

    /// Ends the job with this outcome: the client receives it, workers stop, and client and
    /// scheduler learn of the end.
    fn end(&mut self, outcome: Result<Outcome, JobError>, ctx: &mut Context<Self>) {
        if self.phase == CoordinatorPhase::Ending {
            return;
        }
        self.phase = CoordinatorPhase::Ending;
        let wall = self.started.elapsed();
        let job = self.spec.id;
        let epoch = self.spec.epoch;
        let remotes: Vec<_> = self
            .view
            .cluster_coordinators
            .iter()
            .map(|(cluster, node)| {
                let name = cluster_coordinator_name(job);
                let (awaited, lost) = oneshot::channel();
                self.finishing.insert(node.clone(), awaited);
                (cluster.clone(), self.hub.remote::<ClusterCoordinator>(node, &name), lost)
            })
            .collect();
        // The job can continue without this node until the client has the outcome.
        let delivered = outcome.as_ref().ok().map(|outcome| {
            let (tell, delivered) = oneshot::channel();
            let _ = self.out.send(OutgoingReport::Outcome(Box::new(outcome.clone()), tell));
            delivered
        });
        let finals = async move {
            if let Some(delivered) = delivered {
                let _ = delivered.await;
            }
            let request = |(cluster, remote, lost): (_, Remote<ClusterCoordinator>, _)| {
                let request = remote.send(FinishCluster { job, epoch }).deadline(FINISH_DEADLINE);
                (cluster, request.start(), lost)
            };
            let requests: Vec<_> = remotes.into_iter().map(request).collect();
            let mut finals = Vec::new();
            for (cluster, request, lost) in requests {
                let lost: oneshot::Receiver<()> = lost;
                let answer = tokio::select! {
                    biased;
                    answer = request => answer.map_err(|error| error.to_string()),
                    _ = lost => Err("its coordinator's node is lost".to_owned()),
                };
                finals.push((cluster, answer));
            }
            finals
        };
        ctx.spawn(finals.into_actor(self).map(move |finals, coordinator, _| {
            let mut last = Vec::new();
            for (cluster, answer) in finals {
                match answer {
                    Ok(answer) => last.push(answer),
                    Err(error) => {
                        tracing::warn!(%cluster, %error, "a cluster did not end the job in order");
                    }
                }
            }
            coordinator.conclude(outcome, wall, last);
        }));
    }

    fn conclude(
        &mut self,
        outcome: Result<Outcome, JobError>,
        wall: Duration,
        finals: Vec<ClusterFinalReport>,
    ) {
        let job = self.spec.id;
        let mut records: Vec<Record> = Vec::new();
        let mut clusters = BTreeMap::new();
        let mut total = Statistics::default();
        let mut ended = BTreeSet::new();
        for last in finals {
            // The log includes the statistics since the last period.
            for event in self.period_of(&last.cluster, &last.statistics, Vec::new()) {
                self.recorder.record(event);
            }
            let there = self.view.in_cluster(&last.cluster);
            ended.extend(there.filter(|node| !last.without_answer.contains_key(*node)).cloned());
            for (node, why) in &last.without_answer {
                tracing::warn!(%node, why, "a worker did not end the job in order");
            }
            records.extend(last.records);
            if let Err(error) = total.merge(&last.statistics) {
                let cluster = &last.cluster;
                tracing::warn!(%cluster, %error, "a cluster's last report is malformed");
            }
            let report = ClusterReport { workers: last.workers, statistics: last.statistics };
            clusters.insert(last.cluster, report);
        }
        // Adds the last reports of lost clusters.
        for (cluster, statistics) in self.tally.iter() {
            if !clusters.contains_key(cluster) {
                if let Err(error) = total.merge(statistics) {
                    tracing::warn!(%cluster, %error, "a lost cluster's last report is malformed");
                }
                let report = ClusterReport { workers: 0, statistics: statistics.clone() };
                clusters.insert(cluster.clone(), report);
            }
        }
        for (cluster, left) in self.changes.departed() {
            let report: &mut ClusterReport = clusters.entry(cluster.clone()).or_default();
            let merged = report.statistics.merge(left).and_then(|()| total.merge(left));
            if let Err(error) = merged {
                tracing::warn!(%cluster, %error, "a departed node's sums are malformed");
            }
        }
        if let Err(error) = total.latencies.merge(&self.latencies) {
            tracing::warn!(%error, "the periods' latencies are malformed");
        }
        self.recorder.record(Event::JobEnded {
            job,
            ok: outcome.is_ok(),
            wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
            checksum: outcome.as_ref().ok().map(|outcome| format!("{:016x}", outcome.checksum)),
            error: outcome.as_ref().err().map(ToString::to_string),
        });
        records.extend(self.recorder.drain());
        self.notify_client(NoteKind::Events { records });
        let iterations = std::mem::take(&mut self.iterations);
        let (wall_s, phases) = (wall.as_secs_f64(), std::mem::take(&mut self.phases));
        let report = JobReport { wall_s, iterations, phases, clusters, total };
        let over =
            JobEndNotice { job, epoch: self.spec.epoch, ok: outcome.is_ok(), ended: Some(ended) };
        let epoch = Some(self.spec.epoch);
        let ended = Box::new(JobEndReport { job, epoch, outcome, report });
        let _ = self.out.send(OutgoingReport::End(ended, over));
    }
}

/// The root has ended. Local only.
struct RootEndReport {
    end: RootEnd,
    iterations: Vec<f64>,
    phases: PhaseTimes,
}

impl Message for RootEndReport {
    type Result = ();
}

impl AdmitsMessages for Coordinator {
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        _: Option<&JobAuthority>,
    ) -> SenderStanding {
        let mut places = outside(from, Some(&self.scheduler.node));
        if about.job != self.spec.id {
            return SenderStanding::default().with(places);
        }
        places = places.or(Places::OWNER.when(self.client.node == from.peer.node));
        let coming = self.changes.is_coming(&from.peer);
        let in_view = SenderStanding::in_view(&self.view, from).with(Places::MEMBER.when(coming));
        let in_job = match &about.subject {
            Some(subject) => {
                let watches = in_view.places != Places::NONE && self.watches(from, subject);
                Places::HOST.when(watches)
            }
            None => in_view.places,
        };
        let places = places.or(in_job);
        SenderStanding { known: true, places, epoch: Some(self.spec.epoch), is_uncertain: false }
    }

    fn ask(&self, _: &MessageOrigin, _: &MessageSubject) -> Option<AuthorityQuery> {
        None
    }
}

crate::judged!(Coordinator);

impl Actor for Coordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let job = self.spec.id;
        if let (Some(reports), Some(outgoing)) = (self.reports.take(), self.outgoing.take()) {
            let (out, recorder) = (self.out.clone(), self.recorder.clone());
            let root_progress = self.root_progress.clone();
            let reading =
                report::read_reports(reports, out, ctx.address(), recorder, job, root_progress);
            ctx.spawn(reading.into_actor(self));
            let client = self.hub.remote::<Client>(&self.client.node, CLIENT);
            let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
            let of = (job, self.spec.epoch);
            let cancelled = self.cancelled.clone();
            let forwarding =
                report::forward(outgoing, client, scheduler, ctx.address(), cancelled, of);
            ctx.spawn(forwarding.into_actor(self).map(|(), _, ctx| ctx.stop()));
        }
        self.watch_clusters();
        if self.succeeds.is_some() {
            self.inherit(ctx);
        }
        ctx.run_interval(SilenceLimits::WIDE.check_interval, |coordinator, ctx| {
            coordinator.check_clusters(ctx);
        });
        ctx.run_interval(PROGRESS_REPORT_INTERVAL, |coordinator, ctx| {
            coordinator.report_progress(ctx)
        });
        if self.adapts() {
            let (period, lag) = (self.spec.params.period(), 2 * self.spec.params.lag());
            ctx.run_later(lag, move |_, ctx| {
                ctx.run_interval(period, |coordinator, ctx| coordinator.end_period(ctx));
            });
        }
        ctx.run_later(JOIN_DEADLINE, |coordinator, ctx| {
            // A successor's members have joined already, and the root's checkpoint may take long.
            if coordinator.phase == CoordinatorPhase::Joining && coordinator.succeeds.is_none() {
                coordinator.start_without_missing(ctx);
            }
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.dismiss_joining();
        self.retract();
    }
}

impl Handler<ClusterReady> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: ClusterReady, ctx: &mut Self::Context) {
        self.joined.insert(message.cluster, message.workers);
        self.start_if_all_joined(ctx);
    }
}

impl Handler<ClusterPeriod> for Coordinator {
    type Result = MessageResult<ClusterPeriod>;

    fn handle(&mut self, message: ClusterPeriod, ctx: &mut Self::Context) -> Self::Result {
        let reply = if self.adapts() {
            self.record_cluster_period(&message)
        } else {
            ClusterPeriodReply::default()
        };
        if message.view < (self.view.epoch, self.view.version) {
            self.send_view(&message.cluster, None, ctx);
        }
        let epoch = u64::from(self.spec.epoch.0);
        let period = self.period_of(&message.cluster, &message.statistics, message.rows);
        match self.tally.add(message.cluster.clone(), epoch, message.seq, message.statistics) {
            Ok(true) => {
                self.record_period(period);
                if let Err(error) = self.latencies.merge(&self.tally.take_latencies()) {
                    tracing::warn!(%error, "latencies do not add up");
                }
                let mut total = self.tally.total();
                for (cluster, left) in self.changes.departed() {
                    if let Err(error) = total.merge(left) {
                        tracing::warn!(%cluster, %error, "a departed node's sums are malformed");
                    }
                }
                let nodes = u32::try_from(self.view.members.iter().count()).unwrap_or(u32::MAX);
                let efficiency = self.adaptation.efficiency().map(|(efficiency, _)| efficiency);
                self.notify_client(NoteKind::Period { total: Box::new(total), nodes, efficiency });
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(cluster = %message.cluster, %error, "an aggregate is malformed");
            }
        }
        MessageResult(reply)
    }
}

impl Handler<LostMember> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: LostMember, ctx: &mut Self::Context) {
        let LostMember { node, reason, excused, .. } = message;
        if excused {
            let member = self.view.members.get(&node);
            let incarnation = member.map(|member| member.incarnation);
            self.poison.excuse(&node, incarnation);
        }
        self.continue_without(&[node], &reason, Duration::ZERO, ctx);
    }
}

impl Handler<TasksHeldAtDeath> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: TasksHeldAtDeath, ctx: &mut Self::Context) {
        for NodeLosses { node, incarnation, tasks } in message.losses {
            self.poison.record_held(&node, incarnation, tasks);
        }
        self.check_poison(ctx);
    }
}

impl Handler<NodeGrant> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: NodeGrant, ctx: &mut Self::Context) {
        self.nodes_granted(message, ctx);
    }
}

impl Handler<AskLeave> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: AskLeave, ctx: &mut Self::Context) {
        self.asked_to_leave(message, ctx);
    }
}

impl Handler<BetterFree> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: BetterFree, _ctx: &mut Self::Context) {
        self.better_free(message);
    }
}

impl Handler<ClientMessage> for Coordinator {
    type Result = Result<(), ClientMessageError>;

    fn handle(&mut self, message: ClientMessage, _: &mut Self::Context) -> Self::Result {
        if self.phase != CoordinatorPhase::Running {
            return Err(ClientMessageError::NotRunning);
        }
        if message.number > self.client_messages {
            if !self.engine.deliver_client_message(message.body) {
                return Err(ClientMessageError::Full);
            }
            self.client_messages = message.number;
        }
        Ok(())
    }
}

impl Handler<Cancel> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: Cancel, ctx: &mut Self::Context) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.end(Err(JobError::Cancelled { reason: message.reason }), ctx);
    }
}

impl Handler<RootEndReport> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: RootEndReport, ctx: &mut Self::Context) {
        (self.iterations, self.phases) = (message.iterations, message.phases);
        match message.end {
            RootEnd::Ended(outcome) => self.end(outcome.map_err(JobError::Task), ctx),
            RootEnd::Stopped(left) => self.root_stopped(left, ctx),
        }
    }
}
