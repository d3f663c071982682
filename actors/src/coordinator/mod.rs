//! The coordinator: one a job, on the node that runs the job's root. It starts the root when all clusters have joined,
//! passes on what the job reports, collects each period's aggregates, and ends the job in order.
//!
//! Its input and work are O(clusters). `adapt` carries adaptation out, `members` joins and leaves, `report` tells the client; `handover` ends a coordinator,
//! `succeed` begins the next.

mod adapt;
mod handover;
mod look;
mod members;
mod negotiate;
mod report;
mod succeed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::{Event, Record, Recorder};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::membership::{Detector, Finding, Member, Patience, View, ViewChange};
use springtide_runtime::meter::{Deltas, Statistics, Tally};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Hub, Origin, Publication, Remote};
use springtide_runtime::work::{Engine, Loss, Note, Outcome, Registry, RootEnd};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::report::Outgoing;
use crate::admit::{About, Asking, Judges, Places, Standing, outside};
use crate::client::Client;
use crate::cluster::{
    ClusterAlive, ClusterCoordinator, ClusterFinal, ClusterJoined, ClusterPeriod, ClusterTold,
    FinishCluster, FinishWithout, Silent,
};
use crate::job::{
    CLIENT, Cancel, ClusterReport, DiedHolding, JobEnded, JobError, JobNote, JobOver, JobReport,
    JobSpec, MemberLost, NoteKind, Reached, SCHEDULER, cluster_coordinator_name, coordinator_name,
};
use crate::look::LookAtJob;
use crate::poison::{Dead, Poison, Verdict};
use crate::policy::Progress;
use crate::scheduler::{
    AskLeave, AskShrink, BetterFree, Freed, GrowthRefused, JobAuthority, MemberSilent,
    NodesGranted, OfferGrowth, RootAdvanced, Scheduler,
};
use crate::worker::{
    Bequest, KeptRoot, probe_indirectly, small_change, tell_view, workers_by_cluster,
};

/// A cluster that only other members reach counts as silent after this time. Where the network
/// relays links, a relayed link exists by then.
const INDIRECT_MAX: Duration = Duration::from_secs(120);
/// How long all workers may take to join.
const JOIN_DEADLINE: Duration = Duration::from_secs(30);
/// How long a cluster may take to end a job.
const FINISH_DEADLINE: Duration = Duration::from_secs(45);
/// How far the root got is told to the scheduler at most this often.
const ADVANCE_EVERY: Duration = Duration::from_secs(1);

/// What a coordinator is made of.
pub struct CoordinatorConfig {
    /// The job.
    pub spec: JobSpec,
    /// Who takes part.
    pub view: View,
    /// Whom to tell.
    pub client: Contact,
    /// Whom to tell when the job is over.
    pub scheduler: Contact,
    /// This program.
    pub registry: Arc<Registry>,
    /// This node's part in the job; the root runs here.
    pub engine: Engine,
    /// This node's events.
    pub recorder: Recorder,
    /// What the root reports, and the other end, for the root's end itself.
    pub reports: (mpsc::UnboundedSender<Reported>, mpsc::UnboundedReceiver<Reported>),
    /// It takes the place of another.
    pub succeeds: Option<Succession>,
    /// How long the job has run.
    pub elapsed: Duration,
}

/// Whose place a coordinator takes.
#[derive(Clone, Debug)]
pub struct Succession {
    /// The node that is lost, or hands over.
    pub lost: NodeId,
    /// How it was lost, or why it hands over.
    pub reason: String,
    /// It hands over, and remains a member.
    pub handed: bool,
    /// What it left for this node, if it did.
    pub bequest: Option<Bequest>,
    /// The members of the last view that are none any more, the lost node among them.
    pub gone: BTreeMap<NodeId, Member>,
    /// The job's nodes of which this node knows nothing: granted, and never told of the job.
    pub strangers: BTreeMap<NodeId, Incarnation>,
}

/// Another coordinates the job: this one ends without a word. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Replaced;

impl Handler<Replaced> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: Replaced, ctx: &mut Self::Context) {
        self.phase = Phase::Ending;
        ctx.stop();
    }
}

/// This coordinator's node takes part in the job no more: what does not end the job already ends here without a word. Local only.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Abandoned;

impl Handler<Abandoned> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: Abandoned, ctx: &mut Self::Context) {
        if self.phase != Phase::Ending {
            self.retract();
            ctx.stop();
        }
    }
}

/// What comes from the root, in order, with the time it happened.
#[derive(Debug)]
pub enum Reported {
    /// The root begins, after so many iterations that were told already.
    Started(Instant, u64),
    /// It reports.
    Note(Instant, Note),
    /// It has ended.
    Ended(RootEnd),
}

/// What the root told of its advance.
#[derive(Debug, Default)]
struct RootTold {
    /// The last word.
    progress: Option<Progress>,
    /// How far it got.
    reached: Reached,
    /// What its progress is counted in.
    what: String,
    /// How long its last iteration took, in seconds.
    iteration_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Joining,
    Running,
    /// The root has stopped, and another node is to go on with it.
    HandingOver,
    Ending,
}

/// The coordinator actor. Published under [`coordinator_name`].
pub struct Coordinator {
    /// Until it has what its predecessor left.
    succeeds: Option<Succession>,
    spec: JobSpec,
    view: View,
    client: Contact,
    scheduler: Contact,
    registry: Arc<Registry>,
    engine: Engine,
    recorder: Recorder,
    report: mpsc::UnboundedSender<Reported>,
    reports: Option<mpsc::UnboundedReceiver<Reported>>,
    iterations: Vec<f64>,
    hub: Arc<Hub>,
    phase: Phase,
    joined: BTreeMap<ClusterId, u32>,
    tally: Tally<ClusterId>,
    latencies: Deltas,
    /// Watches the clusters' coordinators.
    detector: Detector,
    /// Number of rounds of indirect probes.
    probes: usize,
    /// Time since which only other members reach a cluster's coordinator.
    indirect_since: BTreeMap<NodeId, Instant>,
    started: Instant,
    /// Nodes that come and go.
    changes: members::Changes,
    adaptation: adapt::Adaptation,
    checkpoints: succeed::Checkpoints,
    moving: Option<handover::Moving>,
    /// Clusters' coordinators whose last word is awaited; removed when one is lost.
    finishing: BTreeMap<NodeId, oneshot::Sender<()>>,
    /// What the program gave back last.
    given_back: Option<negotiate::GivenBack>,
    /// How often the job's root asked for nodes.
    wants: u64,
    /// Of tasks that nodes died holding.
    poison: Poison,
    told: Arc<Mutex<RootTold>>,
    /// For who looks.
    thoughts: look::Thoughts,
    /// Clusters whose sums this coordinator's predecessor knew: their first ones here are no period's.
    inherited: BTreeSet<ClusterId>,
    /// How far the root got, as the scheduler was told.
    reached_told: Reached,
    /// The client is not to be waited for: the job was cancelled.
    cancelled: Arc<AtomicBool>,
    out: mpsc::UnboundedSender<Outgoing>,
    outgoing: Option<mpsc::UnboundedReceiver<Outgoing>>,
    /// Its name in the hub, set once it is published.
    publication: Arc<OnceLock<Publication>>,
}

impl Coordinator {
    /// A coordinator that waits for the clusters to join.
    pub fn new(config: CoordinatorConfig, hub: Arc<Hub>) -> Self {
        let (out, outgoing) = mpsc::unbounded_channel();
        let CoordinatorConfig { spec, registry, .. } = &config;
        let benchmark = registry.find_job(&spec.name).map(|job| job.benchmark(&spec.body));
        let benchmark = benchmark.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "the job's benchmark is not used");
            None
        });
        let settings = spec.params.settings.clone();
        let poison = Poison::new(spec.params.poison);
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
            hub,
            phase: Phase::Joining,
            joined: BTreeMap::new(),
            tally: Tally::new(),
            latencies: Deltas::default(),
            detector: Detector::new(Patience::WIDE, Instant::now()),
            probes: 0,
            indirect_since: BTreeMap::new(),
            started,
            changes: members::Changes::default(),
            adaptation,
            checkpoints: succeed::Checkpoints::default(),
            moving: None,
            finishing: BTreeMap::new(),
            given_back: None,
            wants: 0,
            poison,
            told: Arc::default(),
            thoughts: look::Thoughts::default(),
            cancelled: Arc::default(),
            reached_told: Reached::default(),
            out,
            outgoing: Some(outgoing),
            publication: Arc::default(),
        }
    }

    /// Starts the actor on this arbiter and publishes it until it stops: while it tells the job's
    /// end, it still answers.
    pub fn publish(self) -> Addr<Self> {
        let (hub, name) = (self.hub.clone(), coordinator_name(self.spec.id));
        let publication = self.publication.clone();
        let addr = self.start();
        let published = hub.publish(&name, addr.clone());
        // Set once, here.
        let _ = publication.set(published.publication());
        published
            .accepts_judged::<ClusterJoined>()
            .accepts_judged::<ClusterPeriod>()
            .accepts_judged::<LookAtJob>()
            .accepts_judged::<MemberLost>()
            .accepts_judged::<DiedHolding>()
            .accepts_judged::<NodesGranted>()
            .accepts_judged::<AskLeave>()
            .accepts_judged::<OfferGrowth>()
            .accepts_judged::<AskShrink>()
            .accepts_judged::<BetterFree>()
            .accepts_judged::<GrowthRefused>()
            .accepts_judged::<ClusterAlive>()
            .accepts_judged::<Silent>()
            .accepts_judged::<Cancel>();
        addr
    }

    /// Takes its name back, unless a successor has it.
    fn retract(&self) {
        if let Some(publication) = self.publication.get() {
            self.hub.retract(publication);
        }
    }

    fn tell(&self, note: NoteKind) {
        // The forwarding task lives as long as this actor.
        let _ = self.out.send(Outgoing::Note(note));
    }

    fn record_lost(&self, node: &NodeId, member: &Member, reason: &str, silent: Duration) {
        self.recorder.record(Event::NodeLost {
            node: node.clone(),
            cluster: member.cluster.clone(),
            incarnation: member.incarnation,
            why: reason.to_owned(),
            silent_us: u64::try_from(silent.as_micros()).unwrap_or(u64::MAX),
            // Where its site saw it end, the reason holds them.
            last_lines: Vec::new(),
        });
    }

    /// Records which members the job has beside those that it had.
    fn record_joined(&self, former: Option<&View>) {
        let is_new = |node: &NodeId| former.is_none_or(|view| !view.members.contains_key(node));
        for (node, member) in self.view.members.iter().filter(|(node, _)| is_new(node)) {
            let (job, node, cluster) = (self.spec.id, node.clone(), member.cluster.clone());
            self.recorder.record(Event::NodeJoined { job, node, cluster });
        }
    }

    /// Sends the client what was recorded, so that it outlives this node.
    fn ship_records(&self) {
        let records = self.recorder.drain();
        if !records.is_empty() {
            self.tell(NoteKind::Events { records });
        }
    }

    /// Members are dead. The job goes on without them.
    fn go_on_without(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        silent: Duration,
        ctx: &mut Context<Self>,
    ) {
        let mut gone = Vec::new();
        for node in nodes {
            let Some(member) = self.view.members.get(node) else { continue };
            if self.view.coordinator.as_ref() == Some(node) {
                continue; // this very node: whoever says so does not hear it
            }
            self.record_lost(node, member, reason, silent);
            if !member.leaving {
                self.adaptation.crashed(node, &member.cluster);
            }
            gone.push(node);
        }
        if self.phase == Phase::Ending {
            return self.finish_without(nodes, ctx);
        }
        if gone.is_empty() {
            return;
        }
        let view = self.view.without(gone.iter().copied());
        let members = gone.iter().filter_map(|node| Some((*node, self.view.members.get(*node)?)));
        let dead = members.map(|(node, member)| Dead::of(node, member, reason));
        let lives_on = |cluster: &ClusterId| view.in_cluster(cluster).next().is_some();
        self.poison.died(dead, lives_on, Instant::now());
        let names: Vec<&str> = gone.iter().map(|node| node.as_str()).collect();
        let (names, left) = (names.join(", "), view.members.len());
        let text = format!("node {names} was lost ({reason}): going on with {left} nodes");
        self.tell(NoteKind::Say { text });
        self.change(view, ctx);
        if self.phase == Phase::Joining {
            self.joined.retain(|cluster, _| self.view.cluster_coordinators.contains_key(cluster));
            self.start_if_all_joined(ctx);
        }
    }

    /// Members are lost while the job ends: nobody waits for their last words.
    fn finish_without(&mut self, nodes: &[NodeId], ctx: &mut Context<Self>) {
        let (job, epoch) = (self.spec.id, self.spec.epoch);
        for node in nodes {
            if self.finishing.remove(node).is_some() {
                continue; // whoever waits for it sees that this is dropped
            }
            let Some(cluster) = self.view.cluster_of(node) else { continue };
            let Some(host) = self.view.cluster_coordinators.get(cluster) else { continue };
            let name = cluster_coordinator_name(job);
            let remote = self.hub.remote::<ClusterCoordinator>(host, &name);
            let request = remote.send(FinishWithout { job, epoch, node: node.clone() }).start();
            // One that is through already has ended.
            ctx.spawn(async move { drop(request.await) }.into_actor(self));
        }
    }

    /// Ends the job if a task is to be blamed for deaths.
    fn look_for_poison(&mut self, ctx: &mut Context<Self>) {
        if self.phase == Phase::Ending {
            return;
        }
        match self.poison.verdict(Instant::now()) {
            Verdict::Clean => {}
            Verdict::Wait(at) => {
                let after = at.saturating_duration_since(Instant::now());
                ctx.run_later(after, |coordinator, ctx| coordinator.look_for_poison(ctx));
            }
            Verdict::Poisoned(poisoned) => self.end(Err(poisoned.into()), ctx),
        }
    }

    /// Tells the scheduler how far the root got, so that what nodes died of before is not laid to it; nor here to processes of an
    /// SPMD program, each of which is one task as long as the job runs.
    fn tell_advance(&mut self, ctx: &mut Context<Self>) {
        let reached = self.told.lock().unwrap_or_else(PoisonError::into_inner).reached;
        // Nothing to lay to it, or nothing new.
        if self.spec.params.poison == 0 || !self.reached_told.take_further(reached) {
            return;
        }
        self.poison.absolve_lasting(|name| self.registry.is_process(name));
        let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
        let advanced = RootAdvanced { job: self.spec.id, epoch: self.spec.epoch, reached };
        let request = remote.send(advanced).start();
        // What does not arrive is contained in what is told next.
        ctx.spawn(async move { drop(request.await) }.into_actor(self));
    }

    /// Members were silent too long: the job goes on without them, and their sites start them anew.
    fn silent(
        &mut self,
        nodes: &[NodeId],
        reason: &str,
        silent: Duration,
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
                by: None,
                voice: None,
            };
            let request = remote.send(dead).start();
            let told = async move {
                if let Err(error) = request.await {
                    tracing::warn!(%error, "the scheduler was not told of a silent node");
                }
            };
            ctx.spawn(told.into_actor(self));
        }
        self.go_on_without(&nodes, reason, silent, ctx);
    }

    /// Watches the clusters' coordinators, save that of this node's own.
    fn watch_clusters(&mut self) {
        let view = &self.view;
        let hosts = view.cluster_coordinators.values().filter_map(|node| {
            let member = view.members.get(node)?;
            (view.coordinator.as_ref() != Some(node)).then(|| (node.clone(), member.incarnation))
        });
        self.detector.watch(hosts.collect::<Vec<_>>(), Instant::now());
        let is_host = |node: &NodeId| view.cluster_coordinators.values().any(|host| host == node);
        self.indirect_since.retain(|node, _| is_host(node));
    }

    /// A cluster whose coordinator is silent for so long, and of which no worker speaks either, is cut off or gone.
    fn look_after_clusters(&mut self, ctx: &mut Context<Self>) {
        if self.phase == Phase::Ending {
            return; // clusters that are through say nothing any more
        }
        for finding in self.detector.look(Instant::now()) {
            let Finding::Dead(node, silent) = finding else { continue };
            let Some(cluster) = self.view.cluster_of(&node).cloned() else { continue };
            let members: Vec<NodeId> = self.view.in_cluster(&cluster).cloned().collect();
            let reason = format!("cluster {cluster} silent for {:.1} s", silent.as_secs_f64());
            self.silent(&members, &reason, silent, ctx);
        }
        self.probe_silent_clusters(ctx);
    }

    /// Probes suspected coordinators of clusters through other members. A cluster that others reach
    /// counts as alive for [`INDIRECT_MAX`]. It may report to a former coordinator of the job, so each
    /// successful probe sends it the view.
    fn probe_silent_clusters(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        self.probes = self.probes.wrapping_add(1);
        for (cluster, node) in &self.view.cluster_coordinators {
            let silence = self.detector.silence(node, now);
            let Some(member) = self.view.members.get(node) else { continue };
            if silence.is_none_or(|silence| silence < Patience::WIDE.suspect) {
                continue;
            }
            let (cluster, node) = (cluster.clone(), node.clone());
            let incarnation = member.incarnation;
            let target = (&node, incarnation);
            let probe = probe_indirectly(&self.hub, self.spec.id, &self.view, target, self.probes);
            ctx.spawn(probe.into_actor(self).map(move |reached, coordinator, ctx| {
                if !reached || coordinator.view.cluster_coordinators.get(&cluster) != Some(&node) {
                    return;
                }
                let now = Instant::now();
                let since = *coordinator.indirect_since.entry(node.clone()).or_insert(now);
                if now < since + INDIRECT_MAX
                    && coordinator.detector.heard(&node, incarnation, now).is_some()
                {
                    tracing::info!(%node, "not heard here, but others reach it");
                }
                coordinator.send_view(&cluster, None, ctx);
            }));
        }
    }

    /// A new view: the clusters' coordinators pass it on to their workers.
    fn change(&mut self, view: View, ctx: &mut Context<Self>) {
        let former = std::mem::replace(&mut self.view, view);
        self.watch_clusters();
        self.announce_view(Some(&former), ctx);
    }

    /// Writes the view down and tells it to all clusters, as a change of the former one if they have that.
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
        for cluster in self.view.cluster_coordinators.keys() {
            self.send_view(cluster, change.as_ref(), ctx);
        }
    }

    /// Tells a cluster the view. One that does not arrive is sent again when the cluster reports under an older one.
    fn send_view(&self, cluster: &ClusterId, change: Option<&ViewChange>, ctx: &mut Context<Self>) {
        let Some(node) = self.view.cluster_coordinators.get(cluster) else { return };
        let told = tell_view(&self.hub, node, self.spec.id, &self.view, change);
        let cluster = cluster.clone();
        let told = async move {
            if let Err(error) = told.await {
                tracing::info!(%cluster, %error, "a cluster did not take the new view yet");
            }
        };
        ctx.spawn(told.into_actor(self));
    }

    fn start_if_all_joined(&mut self, ctx: &mut Context<Self>) {
        // More than there are now: some were lost after their cluster had joined.
        let there =
            |(cluster, workers): (&ClusterId, &u32)| self.joined.get(cluster) >= Some(workers);
        let all = workers_by_cluster(&self.view).iter().all(there);
        if self.phase == Phase::Joining && self.succeeds.is_none() && all {
            self.started = Instant::now();
            self.record_joined(None);
            self.start_root(None, ctx);
            self.leave_at_last(ctx);
        }
    }

    /// Clusters have not joined in time: the job begins without them, if it may be so small.
    fn start_without_the_missing(&mut self, ctx: &mut Context<Self>) {
        let missing = |cluster: &ClusterId| !self.joined.contains_key(cluster);
        let members = self.view.members.iter();
        let (late, there): (Vec<_>, Vec<_>) = members.partition(|(_, m)| missing(&m.cluster));
        let here = self.view.coordinator.as_ref();
        let root = there.iter().any(|(node, _)| Some(*node) == here);
        if root && there.len() >= self.spec.params.least_nodes() as usize {
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

    /// Begins without members that may live and work for others: the scheduler releases them.
    fn start_without(&mut self, late: &[(NodeId, Member)], ctx: &mut Context<Self>) {
        let reason = format!("it did not join within {} s", JOIN_DEADLINE.as_secs());
        for (node, member) in late {
            self.free(node, member, Freed::Refused { reason: reason.clone(), busy: None }, ctx);
        }
        let names: Vec<&str> = late.iter().map(|(node, _)| node.as_str()).collect();
        let text = format!("node {} does not take part: {reason}", names.join(", "));
        self.tell(NoteKind::Say { text });
        self.change(self.view.without(late.iter().map(|(node, _)| node)), ctx);
        self.start_if_all_joined(ctx);
    }

    /// Starts the job's root, or goes on with it from a checkpoint.
    fn start_root(&mut self, resume: Option<KeptRoot>, ctx: &mut Context<Self>) {
        self.phase = Phase::Running;
        let told = resume.as_ref().map_or(0, |kept| kept.iterations);
        self.recorder.record(Event::JobStarted {
            job: self.spec.id,
            name: self.spec.name.clone(),
            epoch: self.spec.epoch,
        });
        self.ship_records();
        let root = self.view.coordinator.clone().unwrap_or_else(|| "".into());
        self.tell(NoteKind::Started { root, workers: self.joined.clone() });
        let Some(job) = self.registry.find_job(&self.spec.name) else {
            let reason = format!("this node's program knows no job {}", self.spec.name);
            return self.end(Err(JobError::Start { reason }), ctx);
        };
        let report = self.report.clone();
        // The receiver lives as long as this actor; after it nobody wants the answer.
        let _ = report.send(Reported::Started(Instant::now(), told));
        self.checkpoints.go_on_from(resume.clone());
        let saved = resume.map(|kept| kept.saved);
        self.engine.run_job(job, self.spec.body.clone(), saved, move |end| {
            let _ = report.send(Reported::Ended(end));
        });
    }

    /// Ends the job with this outcome: the client gets it, workers stop, then client and scheduler are told the end.
    fn end(&mut self, outcome: Result<Outcome, JobError>, ctx: &mut Context<Self>) {
        if self.phase == Phase::Ending {
            return;
        }
        self.phase = Phase::Ending;
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
        // Until the client has it, the job must be able to go on without this node.
        let told = outcome.as_ref().ok().map(|outcome| {
            let (tell, told) = oneshot::channel();
            let _ = self.out.send(Outgoing::Outcome(Box::new(outcome.clone()), tell));
            told
        });
        let finals = async move {
            if let Some(told) = told {
                let _ = told.await;
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
        finals: Vec<ClusterFinal>,
    ) {
        let job = self.spec.id;
        let mut records: Vec<Record> = Vec::new();
        let mut clusters = BTreeMap::new();
        let mut total = Statistics::default();
        let mut ended = BTreeSet::new();
        for last in finals {
            // The log has what was done since the last period, too.
            for event in self.period_of(&last.cluster, &last.statistics, Vec::new()) {
                self.recorder.record(event);
            }
            let there = self.view.in_cluster(&last.cluster);
            ended.extend(there.filter(|node| !last.silent.contains_key(*node)).cloned());
            for (node, why) in &last.silent {
                tracing::warn!(%node, why, "a worker did not end the job in order");
            }
            records.extend(last.records);
            if let Err(error) = total.merge(&last.statistics) {
                tracing::warn!(cluster = %last.cluster, %error, "a cluster's last report is malformed");
            }
            let report = ClusterReport { workers: last.workers, statistics: last.statistics };
            clusters.insert(last.cluster, report);
        }
        // Of clusters that are gone, what they last said.
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
        self.tell(NoteKind::Events { records });
        let iterations = std::mem::take(&mut self.iterations);
        let report = JobReport { wall_s: wall.as_secs_f64(), iterations, clusters, total };
        let over = JobOver { job, epoch: self.spec.epoch, ok: outcome.is_ok(), ended: Some(ended) };
        let epoch = Some(self.spec.epoch);
        let ended = Box::new(JobEnded { job, epoch, outcome, report });
        let _ = self.out.send(Outgoing::End(ended, over));
    }
}

/// The root has ended. Local only.
struct RootEnded {
    end: RootEnd,
    iterations: Vec<f64>,
}

impl Message for RootEnded {
    type Result = ();
}

impl Coordinator {
    /// Whether a sender may say of another node that it is silent: the host of the node's cluster, or a member of the cluster
    /// whose host the node is.
    fn watches(&self, from: &Origin, subject: &NodeId) -> bool {
        let Peer { node, cluster, .. } = &from.peer;
        let host = self.view.cluster_coordinators.get(cluster);
        let same = self.view.cluster_of(subject) == Some(cluster);
        same && node != subject && (host == Some(node) || host == Some(subject))
    }
}

impl Judges for Coordinator {
    fn standing(&mut self, from: &Origin, about: &About, _: Option<&JobAuthority>) -> Standing {
        let mut places = outside(from, Some(&self.scheduler.node));
        if about.job != self.spec.id {
            return Standing::default().with(places);
        }
        places = places.or(Places::OWNER.when(self.client.node == from.peer.node));
        let coming = self.changes.is_coming(&from.peer);
        let in_view = Standing::in_view(&self.view, from).with(Places::MEMBER.when(coming));
        let in_job = match &about.subject {
            Some(subject) => {
                let watches = in_view.places != Places::NONE && self.watches(from, subject);
                Places::HOST.when(watches)
            }
            None => in_view.places,
        };
        let places = places.or(in_job);
        Standing { known: true, places, epoch: Some(self.spec.epoch), unsure: false }
    }

    fn ask(&self, _: &Origin, _: &About) -> Option<Asking> {
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
            let told = self.told.clone();
            let reading = report::read_reports(reports, out, ctx.address(), recorder, job, told);
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
        ctx.run_interval(Patience::WIDE.every, |coordinator, ctx| {
            coordinator.look_after_clusters(ctx);
        });
        ctx.run_interval(ADVANCE_EVERY, |coordinator, ctx| coordinator.tell_advance(ctx));
        if self.adapts() {
            let (period, lag) = (self.spec.params.period(), 2 * self.spec.params.lag());
            ctx.run_later(lag, move |_, ctx| {
                ctx.run_interval(period, |coordinator, ctx| coordinator.end_period(ctx));
            });
        }
        ctx.run_later(JOIN_DEADLINE, |coordinator, ctx| {
            // A successor's members have joined before; it may be long in getting the root's checkpoint.
            if coordinator.phase == Phase::Joining && coordinator.succeeds.is_none() {
                coordinator.start_without_the_missing(ctx);
            }
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.dismiss_joining();
        self.retract();
    }
}

impl Handler<ClusterJoined> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: ClusterJoined, ctx: &mut Self::Context) {
        self.joined.insert(message.cluster, message.workers);
        self.start_if_all_joined(ctx);
    }
}

impl Handler<ClusterPeriod> for Coordinator {
    type Result = MessageResult<ClusterPeriod>;

    fn handle(&mut self, message: ClusterPeriod, ctx: &mut Self::Context) -> Self::Result {
        let told =
            if self.adapts() { self.heard_cluster(&message) } else { ClusterTold::default() };
        if message.view < (self.view.epoch, self.view.version) {
            self.send_view(&message.cluster, None, ctx);
        }
        let epoch = u64::from(self.spec.epoch.0);
        let period = self.period_of(&message.cluster, &message.statistics, message.rows);
        match self.tally.put(message.cluster.clone(), epoch, message.seq, message.statistics) {
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
                self.tell(NoteKind::Period { total: Box::new(total) });
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(cluster = %message.cluster, %error, "an aggregate is malformed");
            }
        }
        MessageResult(told)
    }
}

impl Handler<MemberLost> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: MemberLost, ctx: &mut Self::Context) {
        let MemberLost { node, reason, .. } = message;
        self.go_on_without(&[node], &reason, Duration::ZERO, ctx);
    }
}

impl Handler<DiedHolding> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: DiedHolding, ctx: &mut Self::Context) {
        for Loss { node, incarnation, tasks } in message.losses {
            self.poison.held(&node, incarnation, tasks);
        }
        self.look_for_poison(ctx);
    }
}

impl Handler<NodesGranted> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: NodesGranted, ctx: &mut Self::Context) {
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

impl Handler<ClusterAlive> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: ClusterAlive, _ctx: &mut Self::Context) {
        self.indirect_since.remove(&message.node);
        self.detector.heard(&message.node, message.incarnation, Instant::now());
    }
}

impl Handler<Silent> for Coordinator {
    type Result = ();

    /// Its cluster's coordinator is believed. Of a cluster's coordinator its workers speak, and they are believed if it has
    /// not been heard here either since they last heard it.
    fn handle(&mut self, message: Silent, ctx: &mut Self::Context) {
        if self.phase == Phase::Ending {
            return; // whoever has ended is silent; the scheduler releases those that have not
        }
        let Silent { node, silent_ms, .. } = message;
        let silent = Duration::from_millis(silent_ms);
        let now = Instant::now();
        let here = self.detector.silence(&node, now);
        if here.is_some_and(|here| here + Patience::WIDE.every < silent) {
            tracing::info!(%node, ?here, "its workers do not hear it, but it is heard here");
            return;
        }
        let reason = format!("silent for {:.1} s", silent.as_secs_f64());
        self.silent(&[node], &reason, silent, ctx);
    }
}

impl Handler<Cancel> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: Cancel, ctx: &mut Self::Context) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.end(Err(JobError::Cancelled { reason: message.reason }), ctx);
    }
}

impl Handler<RootEnded> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: RootEnded, ctx: &mut Self::Context) {
        self.iterations = message.iterations;
        match message.end {
            RootEnd::Ended(outcome) => self.end(outcome.map_err(JobError::Task), ctx),
            RootEnd::Stopped(left) => self.root_stopped(left, ctx),
        }
    }
}
