//! A grid in one process and in virtual time: real engines on the in-memory network, under tokio's
//! paused clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use springtide_runtime::event::{EventHash, Record, Recorder};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::membership::{Member, Members, View};
use springtide_runtime::memory::MemoryBudget;
use springtide_runtime::meter::{Histograms, Statistics};
use springtide_runtime::net::{
    Address, LinkProfile, LinkUnit, MemoryConfig, MemoryNet, Net, Protocols, Router,
};
use springtide_runtime::share::ShareConfig;
use springtide_runtime::wire::Kind;
use springtide_runtime::work::steal::StealPolicy;
use springtide_runtime::work::{
    Engine, EngineConfig, Failure, Job, NodeLosses, Outcome, PoolConfig, ProgressReport,
    RESULTS_BYTES, Registry, RootEnd, RootResults, SavedRoot, StopRoot, VirtualSeam, WORK_FLOOR,
    encode_job,
};
use springtide_simulator::simulate;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The configuration of a grid.
#[derive(Clone, Debug)]
pub struct VirtualGridConfig {
    /// The number of nodes of each cluster.
    pub clusters: Vec<u32>,
    /// Compute threads of a node.
    pub threads: usize,
    /// The round-trip time between clusters.
    pub round_trip: Duration,
    /// The policy that chooses victims.
    pub policy: StealPolicy,
    /// Modelled time of each join and spawn.
    pub fork_time: Option<Duration>,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Finished results that each node keeps for the case of a loss, in bytes; 0: none.
    pub results_bytes: usize,
    /// The memory of each node, if it is limited.
    pub memory: Option<Arc<MemoryBudget>>,
    /// Results of tasks that run at least this long are kept until their parents end, for the case
    /// of a leave; 0: none.
    pub work_floor: Duration,
    /// The kind of wire between nodes.
    pub wire: LinkUnit,
    /// Nodes with other protocol versions than those of the wire's settings; only real endpoints
    /// have versions.
    pub protocols: BTreeMap<NodeId, Protocols>,
}

impl VirtualGridConfig {
    /// Clusters of these numbers of nodes, with `threads` threads each and 20 ms between clusters,
    /// the default of a grid.
    pub fn of(clusters: &[u32], threads: usize, seed: u64) -> Self {
        Self {
            clusters: clusters.to_vec(),
            threads,
            round_trip: Duration::from_millis(20),
            policy: StealPolicy::ClusterAware,
            fork_time: None,
            seed,
            results_bytes: RESULTS_BYTES,
            memory: None,
            work_floor: WORK_FLOOR,
            wire: LinkUnit::Frames,
            protocols: BTreeMap::new(),
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct RunOutcome {
    /// The outcome of the job, or its failure.
    pub outcome: Result<Outcome, Failure>,
    /// Virtual time from the root's start to its end.
    pub wall: Duration,
    /// The sum of the nodes' statistics.
    pub total: Statistics,
    /// The sum of the nodes' histograms.
    pub latencies: Histograms,
    /// All recorded events, in order.
    pub records: Vec<Record>,
    /// Hash of the records and of every arrival on the network.
    pub hash: u64,
    /// Messages of the root.
    pub said: Vec<String>,
    /// The names and lengths of the root's artefacts.
    pub files: Vec<(String, usize)>,
}

/// Runs `job` on a grid of this shape, in virtual time, to its end.
pub fn run<J: Job>(shape: &VirtualGridConfig, job: J) -> RunOutcome {
    run_with(shape, job, |_| {})
}

/// Runs `job`; calls `meddle` with the network after the set-up.
pub fn run_with<J: Job>(
    shape: &VirtualGridConfig,
    job: J,
    meddle: impl FnOnce(MemoryNet) + 'static,
) -> RunOutcome {
    run_scripted(shape, job, |controls| async move { meddle(controls.network.clone()) })
}

/// The controls of a running grid, for a script.
pub struct Controls {
    /// The network of the grid.
    pub network: MemoryNet,
    /// All initial members.
    members: Members,
    engines: BTreeMap<NodeId, Engine>,
    nets: BTreeMap<NodeId, Net>,
    view: RefCell<View>,
    registry: Arc<Registry>,
    /// The name and the encoded body of the job.
    job: (&'static str, Bytes),
    ends: mpsc::UnboundedSender<(RootEnd, Instant)>,
    /// The root's newest checkpoint.
    saved: Arc<Mutex<Option<SavedRoot>>>,
    /// Notifies the caller that stops the root.
    stopped: RefCell<Option<oneshot::Sender<RootResults>>>,
}

impl Controls {
    /// Ends a node's process at once, as after `kill -9`, without notice.
    pub fn crash(&self, node: &str) {
        let node = NodeId::from(node);
        self.network.kill(&node);
        self.engines[&node].close();
    }

    /// The most tasks of other nodes that one node has now.
    pub fn most_stolen(&self) -> usize {
        let stolen = self.engines.values().map(|engine| engine.watch().report().tables.stolen);
        stolen.max().unwrap_or(0)
    }

    /// Removes nodes from the members of the job.
    pub fn declare_lost(&self, nodes: &[&str]) {
        let gone: Vec<NodeId> = nodes.iter().map(|node| NodeId::from(*node)).collect();
        self.change(|view| view.without(&gone));
    }

    /// Makes nodes members again that were taken for dead.
    pub fn readmit(&self, nodes: &[&str]) {
        let all = self.members.clone();
        let back = nodes.iter().map(|node| NodeId::from(*node));
        let back: Vec<_> = back.filter_map(|node| all.get_key_value(&node)).collect();
        self.change(|view| view.with(back.iter().map(|(n, m)| ((*n).clone(), (*m).clone()))));
    }

    /// Orders nodes to leave, as the job's coordinator does, and waits until they hold nothing;
    /// then they are not members.
    ///
    /// Returns the duration of each leave.
    pub async fn leave(&self, nodes: &[&str]) -> Vec<Duration> {
        let leaving: Vec<NodeId> = nodes.iter().map(|node| NodeId::from(*node)).collect();
        self.change(|view| view.with_leaving(&leaving));
        let all: Vec<_> = leaving
            .iter()
            .map(|node| {
                let engine = self.engines[node].clone();
                actix_rt::spawn(async move {
                    let start = Instant::now();
                    engine.leave().await;
                    start.elapsed()
                })
            })
            .collect();
        let mut took = Vec::new();
        for one in all {
            took.push(one.await.expect("no panic"));
        }
        self.change(|view| view.without(&leaving));
        took
    }

    /// Moves the job's root to another node, as its coordinator does: at its next checkpoint, or at
    /// once.
    pub async fn move_root(&self, to: &str, at_checkpoint: bool) {
        let to = NodeId::from(to);
        let from = self.view.borrow().coordinator.clone().expect("there is a root");
        let when = if at_checkpoint {
            StopRoot::AtCheckpoint
        } else {
            StopRoot::Now { successor: to.clone() }
        };
        let (tell, stopped) = oneshot::channel();
        *self.stopped.borrow_mut() = Some(tell);
        self.engines[&from].stop_root(&when);
        let mut left = stopped.await.expect("the job is longer than that");
        let saved = self.saved.lock().expect("no panic").clone();
        if let Some(saved) = &saved {
            left.forget_before(saved.next_child);
        }
        self.change(|view| view.with_coordinator(Epoch(view.epoch.0 + 1), &to, |_, _| true));
        self.engines[&to].inherit_root(left);
        self.start_root(&to, saved);
    }

    fn start_root(&self, on: &NodeId, saved: Option<SavedRoot>) {
        let (name, body) = self.job.clone();
        let entry = self.registry.find_job(name).expect("registered");
        let tell = self.ends.clone();
        self.engines[on].run_job(entry, body, saved, move |end| {
            // The receiver is gone only if the test has failed.
            let _ = tell.send((end, Instant::now()));
        });
    }

    /// The statistics of a node so far.
    pub fn statistics(&self, node: &NodeId) -> Statistics {
        self.engines[node].statistics(false)
    }

    /// The network of a node.
    pub fn net(&self, node: &NodeId) -> &Net {
        &self.nets[node]
    }

    /// The losses that a node noticed, as its worker reports them to the job's coordinator.
    pub fn take_losses(&self, node: &NodeId) -> Vec<NodeLosses> {
        self.engines[node].take_node_losses()
    }

    fn change(&self, next: impl FnOnce(&View) -> View) {
        let mut view = self.view.borrow_mut();
        *view = next(&view);
        for (node, engine) in &self.engines {
            if view.members.contains_key(node) {
                engine.set_view(&view);
            }
        }
    }

    /// All initial nodes, in order of name.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.engines.keys().cloned().collect()
    }
}

/// Runs `job` and a script, which is polled from shortly before the root's start until one of them
/// ends.
pub fn run_scripted<J: Job, F: Future<Output = ()> + 'static>(
    shape: &VirtualGridConfig,
    job: J,
    script: impl FnOnce(Rc<Controls>) -> F + 'static,
) -> RunOutcome {
    simulate(|| run_here(shape, job, script))
}

fn view_of(shape: &VirtualGridConfig) -> View {
    let mut members = Members::default();
    let mut cluster_coordinators = BTreeMap::new();
    for (at, nodes) in shape.clusters.iter().enumerate() {
        let cluster = ClusterId::from(format!("c{at}"));
        for n in 0..*nodes {
            let node = NodeId::from(format!("c{at}-n{n:02}"));
            cluster_coordinators.entry(cluster.clone()).or_insert_with(|| node.clone());
            let member = Member {
                incarnation: Incarnation(1),
                cluster: cluster.clone(),
                address: Address::Memory,
                threads: shape.threads as u32,
                leaving: false,
            };
            members.insert(node, member);
        }
    }
    let coordinator = members.keys().next().cloned();
    let cluster_coordinators = cluster_coordinators.into();
    View { epoch: Epoch(1), version: 1, members, coordinator, cluster_coordinators, partial: false }
}

async fn run_here<J: Job, F: Future<Output = ()> + 'static>(
    shape: &VirtualGridConfig,
    job: J,
    script: impl FnOnce(Rc<Controls>) -> F,
) -> RunOutcome {
    let mut registry = Registry::new();
    registry.job::<J>();
    let registry = Arc::new(registry);
    let wide = LinkProfile::default().delay(shape.round_trip / 2);
    let (wire, protocols) = (shape.wire.clone(), shape.protocols.clone());
    let config = MemoryConfig { between: wide, wire, protocols, ..MemoryConfig::default() };
    let network = MemoryNet::with(shape.seed, config);
    let start = Instant::now();
    let mut view = view_of(shape);
    let mut nets = BTreeMap::new();
    for (node, member) in view.members.clone().iter() {
        let (incarnation, cluster) = (member.incarnation, member.cluster.clone());
        let peer = Peer { node: node.clone(), incarnation, cluster };
        let net = network.join(peer).expect("names are unique");
        let address = net.address();
        view.members.insert(node.clone(), Member { address, ..member.clone() });
        nets.insert(node.clone(), net);
    }
    let mut nodes = Vec::new();
    let saved = Arc::<Mutex<Option<SavedRoot>>>::default();
    let said = Arc::<Mutex<Vec<String>>>::default();
    let files = Arc::<Mutex<Vec<(String, usize)>>>::default();
    for (at, (node, member)) in view.members.iter().enumerate() {
        let peer = Peer {
            node: node.clone(),
            incarnation: member.incarnation,
            cluster: member.cluster.clone(),
        };
        let net = nets[node].clone();
        let router = Arc::new(Router::default());
        let recorder = Recorder::new(node.clone(), peer.incarnation, start, 1 << 20);
        let config = EngineConfig {
            job: JobId(1),
            policy: shape.policy,
            pool: PoolConfig {
                threads: shape.threads,
                stack_bytes: 1 << 20,
                fork_time: shape.fork_time,
                work_floor: shape.work_floor,
                seed: shape.seed.wrapping_mul(1000) + at as u64,
                ..PoolConfig::default()
            },
            share: ShareConfig { seed: shape.seed + at as u64, ..ShareConfig::default() },
            metering: None,
            results_bytes: shape.results_bytes,
            memory: shape.memory.clone(),
        };
        let (keep, hear, write) = (saved.clone(), said.clone(), files.clone());
        let notes = Box::new(move |note: ProgressReport| match note {
            ProgressReport::Checkpoint(saved) => *keep.lock().expect("no panic") = Some(saved),
            ProgressReport::Say { text } => hear.lock().expect("no panic").push(text),
            ProgressReport::Artifact { name, bytes } => {
                write.lock().expect("no panic").push((name, bytes.len()));
            }
            _ => {}
        });
        let engine = Engine::start(
            &config,
            registry.clone(),
            net.clone(),
            VirtualSeam::new(),
            recorder.clone(),
            notes,
        )
        .expect("threads");
        router.route(Kind::STEAL_REQUEST..=Kind::PROCESS, engine.inbox());
        router.route(Kind::OBJECT_UPDATE..=Kind::OBJECT_MERGE, engine.inbox());
        net.start(router);
        engine.set_view(&view);
        actix_rt::spawn(engine.clone().drive());
        nodes.push((engine, recorder, net));
    }
    let (ends, mut end_receiver) = mpsc::unbounded_channel();
    let controls = Rc::new(Controls {
        network: network.clone(),
        members: view.members.clone(),
        nets,
        engines: view.members.keys().cloned().zip(nodes.iter().map(|n| n.0.clone())).collect(),
        view: RefCell::new(view),
        registry: registry.clone(),
        job: (J::NAME, encode_job(job).expect("the job is right")),
        ends,
        saved,
        stopped: RefCell::default(),
    });
    let script = actix_rt::spawn(script(controls.clone()));
    // The other nodes are idle before the root starts, as on a grid with a timely grant.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    controls.start_root(&nodes[0].2.me().node, None);
    let until = started + Duration::from_secs(3600);
    let (outcome, ended) = loop {
        let end = tokio::time::timeout_at(until, end_receiver.recv()).await;
        let (end, at) = end.expect("the job ends within an hour").expect("the root tells its end");
        match end {
            RootEnd::Ended(outcome) => break (outcome, at),
            RootEnd::Stopped(left) => {
                let waits = controls.stopped.take().expect("the script alone stops the root");
                waits.send(left).expect("the script waits");
            }
        }
    };
    if script.is_finished() {
        // Assertions of the script must hold.
        script.await.expect("the script did not panic");
    } else {
        script.abort();
    }
    let mut total = Statistics::default();
    let mut latencies = Histograms::default();
    for (engine, ..) in &nodes {
        let statistics = engine.statistics(true);
        latencies.apply(&statistics.latencies).expect("well-formed");
        total.merge(&statistics).expect("well-formed");
    }
    let mut records = Vec::new();
    for (engine, recorder, _) in &nodes {
        engine.close();
        engine.closed().await;
        records.extend(recorder.drain());
    }
    let mut hash = EventHash::new();
    records.iter().for_each(|record| hash.add(record));
    let hash = hash.value() ^ network.digest().rotate_left(17);
    let said = said.lock().expect("no panic").clone();
    let files = files.lock().expect("no panic").clone();
    RunOutcome { outcome, wall: ended - started, total, latencies, records, hash, said, files }
}
