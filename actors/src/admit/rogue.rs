//! Test of a rogue node with a valid certificate of the role `node`.
//!
//! While a job of another user runs, it sends every message about a job to every actor that accepts
//! it. All messages are refused, counted and logged. The job's result is correct, and the grid
//! executes the next job. A client of another user does the same with clients' messages.
//!
//! It uses real QUIC links on loopback and real workers in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::meter::{NodeReport, SpecId, Statistics};
use springtide_runtime::net::tls::{Ca, NODE_VALIDITY};
use springtide_runtime::net::{Contact, NetConfig};
use springtide_runtime::remote::{Refusal, Remote, RemoteError};
use springtide_runtime::wire::Kind;
use springtide_runtime::work::{
    Context as Cx, Job, Outcome, Registry, SavedRoot, Stop, Task, encode_job,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{HasRule, RULES};
use crate::client::{Client, JobUpdate, ReceivedNews};
use crate::cluster::{
    ClusterCoordinator, ClusterHeartbeat, ClusterPeriod, ClusterReady, FinishCluster,
    FinishWithout, GetMemory, NodeSilence, StoreMemory, WorkerJoinNotice, WorkerPeriod,
};
use crate::coordinator::Coordinator;
use crate::endpoint::Endpoint;
use crate::hardware::Hardware;
use crate::head::{HEAD, HEAD_CLUSTER, Head};
use crate::job::{
    Assign, CHECKPOINTS, CLIENT, Cancel, ClientMessage, JobEndNotice, JobEndReport, JobNote,
    JobParams, JobReport, JobSpec, LostMember, NoteKind, ReleaseWorker, RootProgress, SCHEDULER,
    TasksHeldAtDeath, WORKER, cluster_coordinator_name, coordinator_name, site_name,
};
use crate::links::LinkChanges;
use crate::look::{InspectCluster, InspectJob, QueryWorker};
use crate::node::{NodeOptions, RunningNode};
use crate::policy::{Memory, SchedulerRequest};
use crate::provider::{JoinProvider, NodeRequest};
use crate::scheduler::manager::ManagerSettings;
use crate::scheduler::{
    AskLeave, AskShrink, AuditJob, BetterFree, CancelJob, GetJob, GetOffers, GetSample,
    GrowthRefused, HandOver, JobEfficiency, JobGrant, JobState, MemberSilent, NeedNodes, NodeFreed,
    NodeGrant, NodeState, OfferGrowth, ReleaseReason, RequestNodes, Resize, ResizeJob,
    RootAdvanced, Scheduler, SpeedsMeasured, Submit, Subscribe, TakeOver, WithdrawNodes,
};
use crate::store::Store;
use crate::worker::{
    ChangeView, FindCheckpoint, Finish, GetCheckpoint, HandoverState, Leave, NewView,
    PrepareSuccessor, ProbeMember, RootCheckpoint, StoreCheckpoint, Worker, WorkerConfig,
};
use springtide_protocol::names::{PROBER, REGISTRAR};
use springtide_protocol::receivers;

const LONG: Duration = Duration::from_secs(60);
const LAB: &str = "lab";
const NODES: u32 = 3;

/// Whether the job may end.
static RELEASED: AtomicBool = AtomicBool::new(false);

#[derive(Serialize, Deserialize)]
struct Add(u64, u64);

impl Task for Add {
    type Output = u64;
    const NAME: &'static str = "rogue-add";

    fn run(self, _cx: &Cx) -> Result<u64, Stop> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(self.0 + self.1)
    }
}

/// A job that counts until it may end.
#[derive(Clone, Serialize, Deserialize)]
struct CountingJob;

impl Job for CountingJob {
    const NAME: &'static str = "rogue-held";
    const ABOUT: &'static str = "for tests";

    fn register(registry: &mut Registry) {
        registry.task::<Add>();
    }

    fn run(self, cx: &Cx) -> Result<Outcome, Stop> {
        let mut sum = cx.call(Add(0, 0))?;
        while !RELEASED.load(Ordering::Acquire) {
            sum = cx.call(Add(sum, 2))?;
        }
        let result = serde_json::json!({ "even": sum % 2 == 0 });
        Ok(Outcome { checksum: 4711, result })
    }
}

/// A head, joined nodes, a client, and two strangers with valid certificates.
struct RogueGrid {
    head: Head,
    nodes: Vec<Endpoint>,
    client: Endpoint,
    news: mpsc::Receiver<ReceivedNews>,
    fingerprint: u64,
    _links: Arc<LinkChanges>,
    _ends: Vec<mpsc::UnboundedSender<crate::node::EndOrder>>,
    rogue: Endpoint,
    /// A client of another user.
    other: Endpoint,
    _dir: tempfile::TempDir,
}

impl RogueGrid {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::ephemeral("home").unwrap();
        let endpoint = |node: &str, cluster: &str, role: &str| {
            let identity = ca.issue(&node.into(), &cluster.into(), role, NODE_VALIDITY).unwrap();
            Endpoint::quic(NetConfig::default(), &identity, Incarnation(1)).unwrap()
        };
        let store = Store::open(dir.path()).unwrap();
        let head = endpoint(HEAD, HEAD_CLUSTER, "head");
        let mut head = Head::start(head, store, ManagerSettings::default());
        let request = |n: u32| NodeRequest {
            node: format!("{LAB}-{n}").into(),
            program: Default::default(),
            config: Default::default(),
            log: Default::default(),
            env: Vec::new(),
            threads: 1,
            host: None,
            shipped: None,
        };
        head.start_site(LAB.into(), (1..=NODES).map(request).collect(), Rc::new(JoinProvider));
        let mut registry = Registry::new();
        registry.job::<CountingJob>();
        let registry = Arc::new(registry);
        let (mut nodes, mut ends) = (Vec::new(), Vec::new());
        for n in 1..=NODES {
            let own = endpoint(&format!("{LAB}-{n}"), LAB, "node");
            let options = NodeOptions {
                head: head.contact(),
                site: site_name(&LAB.into()),
                site_at: None,
                worker: WorkerConfig::real(1),
                hardware: Hardware::default(),
                pid: 1,
                leave_timeout: Duration::ZERO,
                actors: None,
                registered: None,
                renewal: None,
                waits_for_head: false,
            };
            let node = RunningNode::start(own.clone(), options, registry.clone());
            let (end, orders) = mpsc::unbounded_channel();
            actix_rt::spawn(async move { drop(node.serve(orders).await) });
            nodes.push(own);
            ends.push(end);
        }
        let client = endpoint("client-1", HEAD_CLUSTER, "client");
        let (links, news) = Client::publish(&client);
        let rogue = endpoint(&format!("{LAB}-99"), LAB, "node");
        let other = endpoint("client-2", LAB, "client");
        for stranger in [&client, &rogue, &other] {
            stranger.start();
            stranger.net.learn(head.contact());
            nodes.iter().for_each(|node| stranger.net.learn(node.net.contact()));
        }
        rogue.net.learn(client.net.contact());
        let grid = Self {
            head,
            nodes,
            client,
            news,
            fingerprint: registry.fingerprint(),
            _links: links,
            _ends: ends,
            rogue,
            other,
            _dir: dir,
        };
        for _ in 0..2000 {
            if grid.head.status().await.count(NodeState::Idle) == NODES as usize {
                return grid;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("the nodes are not there: {:?}", grid.head.status().await);
    }

    async fn submit(&self) -> JobGrant {
        let scheduler: Remote<Scheduler> = self.client.hub.remote(&HEAD.into(), SCHEDULER);
        let submit = Submit {
            name: CountingJob::NAME.to_owned(),
            body: encode_job(CountingJob).unwrap(),
            fingerprint: self.fingerprint,
            params: JobParams::default(),
            clusters: None,
            client: self.client.net.contact(),
            program: None,
            need: None,
            principal: None,
            image: None,
        };
        scheduler.send(submit).deadline(LONG).await.unwrap().unwrap()
    }

    /// Waits for the outcome of the client's job.
    async fn outcome(&mut self, job: JobId) -> Outcome {
        let ended = async {
            loop {
                let (of, news, _) = self.news.recv().await.unwrap();
                assert_eq!(of, job, "the client hears of its own job alone: {news:?}");
                if let JobUpdate::Ended(ended) = news {
                    return ended.outcome.unwrap();
                }
            }
        };
        timeout(LONG, ended).await.expect("the job ends")
    }

    /// Compares what the published actors accept with what senders may send them.
    fn check_receivers(&self, granted: &JobGrant) {
        let (lab, job) = (ClusterId::from(LAB), granted.job);
        let coordinator = granted.view.coordinator.as_ref().unwrap();
        let host = &granted.view.cluster_coordinators[&lab];
        let on = |node: &NodeId| {
            let found = self.nodes.iter().find(|endpoint| endpoint.net.me().node == *node);
            &found.expect("a node of the grid").hub
        };
        let (head, node, client) = (&self.head.endpoint.hub, on(coordinator), &self.client.hub);
        let all = [
            (head, SCHEDULER.to_owned(), receivers::Scheduler::MESSAGES),
            (head, site_name(&lab), receivers::Site::MESSAGES),
            (head, PROBER.to_owned(), receivers::Prober::MESSAGES),
            (node, WORKER.to_owned(), receivers::Worker::MESSAGES),
            (node, CHECKPOINTS.to_owned(), receivers::CheckpointKeeper::MESSAGES),
            (node, REGISTRAR.to_owned(), receivers::Registrar::MESSAGES),
            (node, coordinator_name(job), receivers::Coordinator::MESSAGES),
            (on(host), cluster_coordinator_name(job), receivers::ClusterCoordinator::MESSAGES),
            (client, CLIENT.to_owned(), receivers::Client::MESSAGES),
        ];
        for (hub, name, messages) in all {
            let accepted: BTreeSet<&str> = hub.accepted(&name).into_iter().collect();
            assert_eq!(accepted, messages.iter().copied().collect(), "{name}");
        }
    }

    fn hubs(&self) -> impl Iterator<Item = &Endpoint> {
        self.nodes.iter().chain([&self.head.endpoint, &self.client])
    }
}

/// Messages that a stranger sent, and their results.
struct Attempts {
    stranger: Endpoint,
    names: BTreeSet<&'static str>,
    refused: BTreeMap<Refusal, u64>,
    admitted: Vec<String>,
}

impl Attempts {
    fn by(stranger: &Endpoint) -> Self {
        let (names, refused, admitted) = Default::default();
        Self { stranger: stranger.clone(), names, refused, admitted }
    }

    async fn send<A, M>(&mut self, node: &NodeId, actor: &str, message: M)
    where
        A: Actor + Handler<M>,
        A::Context: ToEnvelope<A, M>,
        M: HasRule,
    {
        let remote: Remote<A> = self.stranger.hub.remote(node, actor);
        self.names.insert(M::NAME);
        match remote.send(message).deadline(LONG).await {
            Err(RemoteError::Refused { reason: why, .. }) => {
                *self.refused.entry(why).or_default() += 1
            }
            Err(error) => panic!("{} to {actor} on {node}: {error}", M::NAME),
            Ok(_) => self.admitted.push(format!("{} to {actor} on {node}", M::NAME)),
        }
    }
}

/// A forged job: with this number and epoch, and the stranger as its coordinator.
struct Forged {
    job: JobId,
    epoch: Epoch,
    me: Contact,
    view: View,
}

impl Forged {
    fn of(rogue: &Endpoint, granted: &JobGrant, job: JobId, epoch: Epoch) -> Self {
        let me = rogue.net.contact();
        let own = Member {
            incarnation: rogue.net.me().incarnation,
            cluster: LAB.into(),
            address: me.address.clone(),
            threads: 1,
            leaving: false,
        };
        let mut view = granted.view.with([(me.node.clone(), own)]);
        (view.epoch, view.version) = (epoch, 1000);
        view.coordinator = Some(me.node.clone());
        view.cluster_coordinators.insert(LAB.into(), me.node.clone());
        Self { job, epoch, me, view }
    }

    fn kept(&self) -> RootCheckpoint {
        let saved = SavedRoot { next_child: 7, seq: 9, state: vec![1, 2].into() };
        RootCheckpoint { epoch: self.epoch, saved, iterations: 3 }
    }

    async fn to_scheduler(&self, attempts: &mut Attempts) {
        let (job, epoch) = (self.job, self.epoch);
        let (node, head) = (NodeId::from(format!("{LAB}-1")), NodeId::from(HEAD));
        let incarnation = Incarnation(1);
        macro_rules! send {
            ($message:expr) => {
                attempts.send::<Scheduler, _>(&head, SCHEDULER, $message).await
            };
        }
        send!(JobEndNotice { job, epoch, ok: true, ended: None });
        let silent = |by: Option<ClusterId>| MemberSilent {
            job,
            epoch,
            node: node.clone(),
            incarnation,
            reason: "silent".into(),
            reporting_cluster: by,
            reporter: None,
        };
        send!(silent(None));
        send!(silent(Some(LAB.into())));
        send!(RequestNodes {
            job,
            epoch,
            request: SchedulerRequest { count: 1.into(), ..SchedulerRequest::default() },
            benchmark: None,
            rtt_s: BTreeMap::new(),
            bandwidth: BTreeMap::new(),
        });
        send!(WithdrawNodes { job, epoch, count: 1.into() });
        send!(NeedNodes { job, epoch, count: 1, timeout_ms: None, number: 0 });
        let node_freed = |why| NodeFreed { job, epoch, node: node.clone(), incarnation, why };
        send!(node_freed(ReleaseReason::Left));
        send!(node_freed(ReleaseReason::Refused { reason: "test".into(), busy: Some(JobId(777)) }));
        send!(HandOver { job, epoch, to: self.me.node.clone(), reason: "test".into() });
        let reached = RootProgress { checkpoint: 9, iterations: 9, done: 9 };
        send!(RootAdvanced { job, epoch, reached });
        send!(GetOffers { job, epoch });
        send!(GetSample { job, epoch, cluster: LAB.into() });
        send!(Subscribe { job, epoch, faster_than: Some(0.0) });
        send!(JobEfficiency { job, epoch, efficiency: 0.1, processors: 3 });
        let speeds = BTreeMap::from([(node.clone(), 1e9)]);
        send!(SpeedsMeasured { job, epoch, spec: SpecId(9), speeds });
        send!(CancelJob { job, reason: "test".into() });
        send!(ResizeJob { job, by: Resize::Shrink { count: 1 } });
        send!(GetJob { job });
    }

    async fn to_worker(&self, node: &NodeId, attempts: &mut Attempts) {
        let (job, epoch) = (self.job, self.epoch);
        macro_rules! send {
            ($message:expr) => {
                attempts.send::<Worker, _>(node, WORKER, $message).await
            };
        }
        let spec = JobSpec {
            id: job,
            epoch,
            name: CountingJob::NAME.into(),
            body: encode_job(CountingJob).unwrap(),
            fingerprint: 7,
            params: JobParams::default(),
        };
        let (client, scheduler) = (self.me.clone(), self.me.clone());
        send!(Assign { spec, view: self.view.clone(), client, scheduler, benchmark: None });
        send!(ReleaseWorker { job, over: true, epoch });
        send!(AuditJob { job });
        let (members, lost, reason) = Default::default();
        let lost: Option<NodeId> = lost;
        send!(TakeOver {
            job,
            epoch,
            members,
            lost: lost.unwrap_or_else(|| self.me.node.clone()),
            reason,
            handed: false,
            elapsed_ms: 0,
        });
        send!(NewView { job, view: self.view.clone() });
        let change = self.view.without([node]).change_since(&self.view);
        send!(ChangeView { job, change });
        send!(Leave { job, epoch, deadline_ms: Some(1) });
        send!(Finish { job, epoch });
        let bequest = HandoverState {
            epoch,
            memory: Memory::default(),
            root: Some(self.kept()),
            left: Default::default(),
        };
        send!(PrepareSuccessor { job, bequest });
        send!(FindCheckpoint { job });
        let incarnation = Incarnation(1);
        send!(ProbeMember { job, node: node.clone(), incarnation });
        send!(GetCheckpoint { job });
        send!(QueryWorker { job });
        attempts
            .send::<Worker, _>(node, CHECKPOINTS, StoreCheckpoint { job, kept: self.kept() })
            .await;
    }

    /// To the roles on nodes of the real job, about the forged one.
    async fn to_roles(&self, granted: &JobGrant, attempts: &mut Attempts) {
        let (job, epoch) = (self.job, self.epoch);
        let me = attempts.stranger.net.me().clone();
        let (root, name) = (granted.coordinator.node.clone(), coordinator_name(granted.job));
        macro_rules! send {
            ($message:expr) => {
                attempts.send::<Coordinator, _>(&root, &name, $message).await
            };
        }
        let (cluster, view) = (ClusterId::from(LAB), (epoch, 9));
        send!(ClusterReady { job, cluster: cluster.clone(), workers: 9 });
        send!(ClusterPeriod {
            job,
            cluster: cluster.clone(),
            view,
            seq: u64::MAX,
            workers: 9,
            statistics: Statistics::default(),
            aggregate: None,
            scale: Default::default(),
            links: Default::default(),
            rows: Vec::new(),
            candidate: None,
            benchmark: None,
        });
        let (node, incarnation) = (me.node.clone(), me.incarnation);
        send!(ClusterHeartbeat { job, node: node.clone(), incarnation });
        send!(TasksHeldAtDeath { job, losses: Vec::new() });
        for silent in granted.view.members.keys() {
            send!(NodeSilence { job, node: silent.clone(), silent_ms: 1 << 40 });
        }
        let (victim, reason) = (NodeId::from(format!("{LAB}-2")), "test".to_owned());
        let (lost, why) = (victim.clone(), reason.clone());
        send!(LostMember { job, node: lost, reason: why, excused: true });
        send!(NodeGrant { job, nodes: Vec::new(), open: 0.into() });
        let nodes = vec![victim.clone()];
        send!(AskLeave { job, nodes, reason: reason.clone(), deadline_ms: Some(1) });
        let why = reason.clone();
        send!(OfferGrowth { job, cluster: cluster.clone(), count: 1, why: why.clone() });
        let (mandatory, timeout_ms) = (true, 1);
        send!(AskShrink { job, cluster: cluster.clone(), count: 1, mandatory, timeout_ms, why });
        send!(BetterFree { job, offers: BTreeMap::new() });
        send!(GrowthRefused { job, reason: reason.clone(), number: 0 });
        send!(InspectJob { job, picture: Some(0) });
        send!(Cancel { job, reason });
        send!(ClientMessage { job, number: 1, body: vec![0x90].into() });
        let (host, name) = (
            granted.view.cluster_coordinators[&cluster].clone(),
            cluster_coordinator_name(granted.job),
        );
        macro_rules! send {
            ($message:expr) => {
                attempts.send::<ClusterCoordinator, _>(&host, &name, $message).await
            };
        }
        send!(WorkerJoinNotice { job, node: node.clone(), incarnation, threads: 1, partial: true });
        let report = NodeReport {
            node,
            incarnation,
            cluster,
            seq: u64::MAX,
            statistics: Statistics::default(),
        };
        let (measure, candidate, benchmark) = (None, None, None);
        send!(WorkerPeriod { job, view, report, measure, candidate, benchmark });
        send!(GetMemory { job });
        let memory = Memory { epoch, period: u64::MAX, ..Memory::default() };
        send!(StoreMemory { job, epoch, memory });
        send!(InspectCluster { job });
        send!(FinishCluster { job, epoch });
        send!(FinishWithout { job, epoch, node: victim });
    }

    async fn to_client(&self, client: &NodeId, attempts: &mut Attempts) {
        let (job, epoch) = (self.job, self.epoch);
        let outcome = Outcome { checksum: 666, result: serde_json::Value::Null };
        let ended = |epoch| JobEndReport {
            job,
            epoch,
            outcome: Ok(outcome.clone()),
            report: JobReport::default(),
        };
        attempts.send::<Client, _>(client, CLIENT, ended(Some(epoch))).await;
        attempts.send::<Client, _>(client, CLIENT, ended(None)).await;
        let what = NoteKind::Outcome { outcome: Box::new(outcome.clone()) };
        attempts
            .send::<Client, _>(client, CLIENT, JobNote { job, epoch, seq: 0, kind: what })
            .await;
        let what = NoteKind::Artifact { name: "result.json".into(), bytes: vec![1].into() };
        attempts
            .send::<Client, _>(client, CLIENT, JobNote { job, epoch, seq: 1, kind: what })
            .await;
    }
}

#[test]
fn a_rogue_node_cannot_affect_a_job_of_others() {
    System::new().block_on(async {
        RELEASED.store(false, Ordering::Release);
        let mut grid = RogueGrid::start().await;
        let granted = grid.submit().await;
        let (job, workers) = (granted.job, granted.view.members.len());
        assert_eq!(workers, NODES as usize);
        // The first note shows that the coordinator has started.
        let (of, ..) = timeout(LONG, grid.news.recv()).await.unwrap().unwrap();
        assert_eq!(of, job);
        grid.check_receivers(&granted);
        let mut attempts = Attempts::by(&grid.rogue);
        for (job, epoch) in [(job, granted.epoch.0), (job, 99), (job, 0), (JobId(777), 1)] {
            let forged = Forged::of(&grid.rogue, &granted, job, Epoch(epoch));
            forged.to_scheduler(&mut attempts).await;
            for node in granted.view.members.keys() {
                forged.to_worker(node, &mut attempts).await;
            }
            forged.to_roles(&granted, &mut attempts).await;
            forged.to_client(&"client-1".into(), &mut attempts).await;
        }
        // A task that was not stolen, and other frames of a job: held back, since no view names
        // their sender.
        for kind in [Kind::TASK_RESULT, Kind::TASK_RETURN, Kind::PROCESS, Kind::OBJECT_UPDATE] {
            for node in granted.view.members.keys() {
                grid.rogue
                    .net
                    .send(node, springtide_runtime::net::Class::Steal, kind, vec![0x90])
                    .unwrap();
            }
        }
        let all: BTreeSet<&str> =
            RULES.iter().filter(|(_, rule)| rule.places.is_some()).map(|(name, _)| *name).collect();
        let left: Vec<_> = all.difference(&attempts.names).collect();
        assert!(left.is_empty(), "messages about jobs that the rogue does not send: {left:?}");
        assert_eq!(attempts.admitted, Vec::<String>::new());
        let refused: u64 = attempts.refused.values().sum();
        println!("the rogue's {refused} messages: {:?}", attempts.refused);
        let stats = grid.hubs().map(|endpoint| endpoint.hub.stats());
        let counted: u64 = stats.map(|stats| stats.denied_in + stats.outdated_in).sum();
        assert_eq!(counted, refused, "each refusal is counted where it happened");
        let logged = grid.hubs().flat_map(|endpoint| endpoint.recorder.drain());
        let logged: Vec<String> = logged
            .filter_map(|record| match record.event {
                Event::Fault { part, what } if part == "admission" => Some(what),
                _ => None,
            })
            .collect();
        logged.iter().for_each(|line| println!("{line}"));
        assert!(!logged.is_empty() && logged.len() < 50, "{logged:?}");

        // A client of another user has the rights of neither the owner nor the operator.
        let mut attempts = Attempts::by(&grid.other);
        let forged = Forged::of(&grid.other, &granted, job, granted.epoch);
        forged.to_scheduler(&mut attempts).await;
        forged.to_roles(&granted, &mut attempts).await;
        assert_eq!(attempts.admitted, Vec::<String>::new());
        assert!(attempts.refused[&Refusal::Owner] >= 4, "{:?}", attempts.refused);

        let status = grid.head.status().await;
        let now = status.jobs.iter().find(|it| it.job == job).expect("the job runs");
        assert_eq!((now.state, now.processors()), (JobState::Running, NODES));
        let principal = now.principal.clone().expect("it was submitted over a link");
        assert_eq!(
            (principal.name.as_str(), principal.role.as_deref()),
            ("client-1", Some("client"))
        );
        RELEASED.store(true, Ordering::Release);
        assert_eq!(grid.outcome(job).await.checksum, 4711);
        let next = grid.submit().await;
        assert_eq!(next.view.members.len(), NODES as usize, "no node is lost to the rogue");
        assert_eq!(grid.outcome(next.job).await.checksum, 4711);
        grid.head.stop(Duration::from_secs(1), "the test has ended").await;
    });
}
