//! A grid in one process and in virtual time: real engines on the in-memory network, under tokio's paused clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use springtide_runtime::event::{EventHash, Record, Recorder};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::membership::{Member, Members, View};
use springtide_runtime::meter::{Histograms, Statistics};
use springtide_runtime::net::{
    Address, LinkProfile, MemoryConfig, MemoryNet, Net, Protocols, Router, Wire,
};
use springtide_runtime::share::ShareConfig;
use springtide_runtime::wire::Kind;
use springtide_runtime::work::steal::StealPolicy;
use springtide_runtime::work::{
    Engine, EngineConfig, Failure, Job, Loss, Note, Outcome, PoolConfig, RESULTS_BYTES, Registry,
    RootEnd, RootLeft, SavedRoot, StopRoot, VirtualSeam, WORK_FLOOR, encode_job,
};
use springtide_simulator::simulate;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// What a grid is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Nodes of each cluster.
    pub clusters: Vec<u32>,
    /// Compute threads of a node.
    pub threads: usize,
    /// Round trip between clusters.
    pub round_trip: Duration,
    /// Whom thieves ask.
    pub policy: StealPolicy,
    /// Modelled time of each join and spawn.
    pub fork_time: Option<Duration>,
    /// Of every random choice.
    pub seed: u64,
    /// Finished results that each node keeps for the case of a loss, in bytes; 0 for none.
    pub results_bytes: usize,
    /// Results of tasks that run so long are kept until their parents end, for the case of a leave; 0 keeps none.
    pub work_floor: Duration,
    /// What travels between nodes.
    pub wire: Wire,
    /// Nodes that speak other versions of the protocol than the wire's settings say; real endpoints alone have versions.
    pub protocols: BTreeMap<NodeId, Protocols>,
}

impl Shape {
    /// Clusters of so many nodes, each of so many threads, 20 ms from each other, as a grid is by default.
    pub fn of(clusters: &[u32], threads: usize, seed: u64) -> Self {
        Self {
            clusters: clusters.to_vec(),
            threads,
            round_trip: Duration::from_millis(20),
            policy: StealPolicy::ClusterAware,
            fork_time: None,
            seed,
            results_bytes: RESULTS_BYTES,
            work_floor: WORK_FLOOR,
            wire: Wire::Frames,
            protocols: BTreeMap::new(),
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// The outcome.
    pub outcome: Result<Outcome, Failure>,
    /// From the root's start to its end, in virtual time.
    pub wall: Duration,
    /// Sum over the nodes.
    pub total: Statistics,
    /// Sum over the nodes.
    pub latencies: Histograms,
    /// Everything recorded, in order.
    pub records: Vec<Record>,
    /// Hash of the records and of every arrival on the network.
    pub hash: u64,
    /// What the root said.
    pub said: Vec<String>,
    /// The files that it wrote: their names, and how long they are.
    pub files: Vec<(String, usize)>,
}

/// Runs `job` on a grid of this shape, in virtual time, to its end.
pub fn run<J: Job>(shape: &Shape, job: J) -> Run {
    run_with(shape, job, |_| {})
}

/// As [`run`]; `meddle` is called once all is set up, with the network.
pub fn run_with<J: Job>(shape: &Shape, job: J, meddle: impl FnOnce(MemoryNet) + 'static) -> Run {
    run_scripted(shape, job, |hands| async move { meddle(hands.network.clone()) })
}

/// What a script may do to a running grid.
pub struct Hands {
    /// The network.
    pub network: MemoryNet,
    /// All that were members at the start.
    members: Members,
    engines: BTreeMap<NodeId, Engine>,
    nets: BTreeMap<NodeId, Net>,
    view: RefCell<View>,
    registry: Arc<Registry>,
    /// The job, encoded, and its name.
    job: (&'static str, Bytes),
    ends: mpsc::UnboundedSender<(RootEnd, Instant)>,
    /// The root's newest checkpoint.
    saved: Arc<Mutex<Option<SavedRoot>>>,
    /// Who waits for the root to stop.
    stopped: RefCell<Option<oneshot::Sender<RootLeft>>>,
}

impl Hands {
    /// A node's process ends at once, as after `kill -9`; nobody is told.
    pub fn crash(&self, node: &str) {
        let node = NodeId::from(node);
        self.network.kill(&node);
        self.engines[&node].close();
    }

    /// The membership's word: these nodes are members no more.
    pub fn declare_lost(&self, nodes: &[&str]) {
        let gone: Vec<NodeId> = nodes.iter().map(|node| NodeId::from(*node)).collect();
        self.change(|view| view.without(&gone));
    }

    /// The membership takes that back: they had only been taken for dead.
    pub fn readmit(&self, nodes: &[&str]) {
        let all = self.members.clone();
        let back = nodes.iter().map(|node| NodeId::from(*node));
        let back: Vec<_> = back.filter_map(|node| all.get_key_value(&node)).collect();
        self.change(|view| view.with(back.iter().map(|(n, m)| ((*n).clone(), (*m).clone()))));
    }

    /// Tells nodes to leave, as the job's coordinator does, and waits until nothing is left on them; then they are members no
    /// more. Returns how long each took.
    pub async fn leave(&self, nodes: &[&str]) -> Vec<Duration> {
        let leaving: Vec<NodeId> = nodes.iter().map(|node| NodeId::from(*node)).collect();
        self.change(|view| view.leaving(&leaving));
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

    /// Moves the job's root to another node, as its coordinator does: at its next checkpoint, or as it is.
    pub async fn move_root(&self, to: &str, at_checkpoint: bool) {
        let to = NodeId::from(to);
        let from = self.view.borrow().coordinator.clone().expect("there is a root");
        let when = match at_checkpoint {
            true => StopRoot::AtCheckpoint,
            false => StopRoot::Now { heir: to.clone() },
        };
        let (tell, stopped) = oneshot::channel();
        *self.stopped.borrow_mut() = Some(tell);
        self.engines[&from].stop_root(&when);
        let mut left = stopped.await.expect("the job is longer than that");
        let saved = self.saved.lock().expect("no panic").clone();
        if let Some(saved) = &saved {
            left.forget_before(saved.next_child);
        }
        self.change(|view| view.succeeded(Epoch(view.epoch.0 + 1), &to, |_, _| true));
        self.engines[&to].inherit_root(left);
        self.start_root(&to, saved);
    }

    fn start_root(&self, on: &NodeId, saved: Option<SavedRoot>) {
        let (name, body) = self.job.clone();
        let entry = self.registry.find_job(name).expect("registered");
        let tell = self.ends.clone();
        self.engines[on].run_job(entry, body, saved, move |end| {
            // Nobody hears it only when the test has failed.
            let _ = tell.send((end, Instant::now()));
        });
    }

    /// What a node counted so far.
    pub fn statistics(&self, node: &NodeId) -> Statistics {
        self.engines[node].statistics(false)
    }

    /// A node's network.
    pub fn net(&self, node: &NodeId) -> &Net {
        &self.nets[node]
    }

    /// What lost nodes had of a node, as its worker tells the job's coordinator.
    pub fn take_losses(&self, node: &NodeId) -> Vec<Loss> {
        self.engines[node].take_losses()
    }

    fn change(&self, next: impl FnOnce(&View) -> View) {
        let mut view = self.view.borrow_mut();
        *view = next(&view);
        for (node, engine) in &self.engines {
            if view.members.contains_key(node) {
                engine.view(&view);
            }
        }
    }

    /// All nodes of the start, in order of name.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.engines.keys().cloned().collect()
    }
}

/// As [`run`], beside a script that is polled from shortly before the root's start to its own end or the job's.
pub fn run_scripted<J: Job, F: Future<Output = ()> + 'static>(
    shape: &Shape,
    job: J,
    script: impl FnOnce(Rc<Hands>) -> F + 'static,
) -> Run {
    simulate(|| run_here(shape, job, script))
}

fn view_of(shape: &Shape) -> View {
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
    View { epoch: Epoch(1), version: 1, members, coordinator, cluster_coordinators, partial: false }
}

async fn run_here<J: Job, F: Future<Output = ()> + 'static>(
    shape: &Shape,
    job: J,
    script: impl FnOnce(Rc<Hands>) -> F,
) -> Run {
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
        };
        let (keep, hear, write) = (saved.clone(), said.clone(), files.clone());
        let notes = Box::new(move |note: Note| match note {
            Note::Checkpoint(saved) => *keep.lock().expect("no panic") = Some(saved),
            Note::Say { text } => hear.lock().expect("no panic").push(text),
            Note::Artifact { name, bytes } => {
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
        router.on(Kind::STEAL_REQUEST..=Kind::PROCESS, engine.inbox());
        router.on(Kind::OBJECT_UPDATE..=Kind::OBJECT_MERGE, engine.inbox());
        net.start(router);
        engine.view(&view);
        actix_rt::spawn(engine.clone().drive());
        nodes.push((engine, recorder, net));
    }
    let (ends, mut told) = mpsc::unbounded_channel();
    let hands = Rc::new(Hands {
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
    let script = actix_rt::spawn(script(hands.clone()));
    // The others are idle before the root starts, as on a grid that was granted in time.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    hands.start_root(&nodes[0].2.me().node, None);
    let until = started + Duration::from_secs(3600);
    let (outcome, ended) = loop {
        let told = tokio::time::timeout_at(until, told.recv()).await;
        let (end, at) = told.expect("the job ends within an hour").expect("the root tells its end");
        match end {
            RootEnd::Ended(outcome) => break (outcome, at),
            RootEnd::Stopped(left) => {
                let waits = hands.stopped.take().expect("nobody else stops the root");
                waits.send(left).expect("the script waits");
            }
        }
    };
    if script.is_finished() {
        // What it claims must hold.
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
    Run { outcome, wall: ended - started, total, latencies, records, hash, said, files }
}
