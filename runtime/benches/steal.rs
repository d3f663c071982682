//! What stealing between nodes costs on loopback: the round trip of a steal from a victim whose compute thread is busy,
//! beside a bare quinn ping-pong; and how soon a parked worker starts new work of a neighbour.
//!
//! `cargo bench -p springtide-runtime --bench steal [-- ROUNDS]`. Each node has its endpoint's thread and one compute thread,
//! all in this process; programs take turns; read the ratios. The ping-pong is measured on the idle machine and beside a
//! thread that computes, as the victim does: on a machine of few cores that alone slows every exchange. Beside the wake-ups
//! stands what the system needs to wake as many sleeping threads one after another, with no Springtide in it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use springtide_runtime::event::Recorder;
use springtide_runtime::id::{Epoch, Incarnation, JobId};
use springtide_runtime::membership::{Member, Members, View};
use springtide_runtime::meter::{Histogram, Histograms};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};
use springtide_runtime::net::{Net, NetConfig, Router};
use springtide_runtime::share::ShareConfig;
use springtide_runtime::wire::Kind;
use springtide_runtime::work::steal::StealPolicy;
use springtide_runtime::work::{
    Context, Engine, EngineConfig, Job, Note, Outcome, PoolConfig, RESULTS_BYTES, RealSeam,
    Registry, RootEnd, Spawned, Stop, Task, encode_job,
};

use crate::bare::{Bare, Thread, median};

mod bare;

/// Tasks that the thief takes in a round, one steal each.
const STEALS: usize = 5_000;
/// Pieces of new work in a round, one at a time, and the longest time between two: longer than a thief ever rests.
const WAKES: u64 = 100;
const LONGEST_GAP: Duration = Duration::from_millis(300);
/// A leaf of the busy victim, between two calls into the runtime.
const LEAF: Duration = Duration::from_millis(2);

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let ca = Ca::ephemeral("bench").expect("an authority");
    let identity = |name: &str| {
        ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).expect("an identity")
    };
    let (one, two) = (identity("one"), identity("two"));
    let bare = Bare::start(&one, &two);
    let nodes = Nodes::start(&[one, two]);
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    let (mut wakes, mut chains) = (Vec::new(), Vec::new());
    let chain = Chain::start();
    println!(
        "{:>5} {:>12} {:>12} {:>12} {:>12} {:>6} {:>6}",
        "round", "bare p50", "bare, busy", "steal p50", "steal p99", "", "busy"
    );
    for round in 1..=rounds {
        let alone = bare.round_trips().as_secs_f64() * 1e6;
        let beside = beside_a_busy_thread(|| bare.round_trips()).as_secs_f64() * 1e6;
        let steals = nodes.steals();
        let p50 = steals.p50_us().expect("the thief stole") as f64;
        let p99 = steals.p99_us().expect("the thief stole") as f64;
        idle.push(p50 / alone);
        busy.push(p50 / beside);
        println!(
            "{round:>5} {alone:>9.1} us {beside:>9.1} us {p50:>9.1} us {p99:>9.1} us {:>6.2} {:>6.2}",
            p50 / alone,
            p50 / beside
        );
        wakes.extend(nodes.wakes(round));
        chains.extend(chain.wakes(round));
    }
    println!(
        "steal round trip / bare, median of rounds: {:.2}; both beside a busy thread: {:.2} (bar: under 2)",
        median(&mut idle),
        median(&mut busy)
    );
    print_times("new work to its start on a parked node (bar: p99 at most 10 ms)", wakes);
    print_times("plain threads that wake each other, as many in a row", chains);
}

fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{what}, {} times: p50 {:.3} ms, p90 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}

fn beside_a_busy_thread<T>(work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                compute(LEAF);
            }
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// Computes for so long.
fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

// --- the jobs; one process, so that they tell by statics what they see -------------------------------------------------

static RUN: AtomicUsize = AtomicUsize::new(0);

/// Nearly nothing to do, so that the thief is back soon.
#[derive(Serialize, Deserialize)]
struct Small;

impl Task for Small {
    type Output = u64;
    const NAME: &'static str = "small";

    fn run(self, _: &Context) -> Result<u64, Stop> {
        RUN.fetch_add(1, Ordering::Release);
        Ok(1)
    }
}

/// Fills its deque and computes until all of it was stolen.
#[derive(Serialize, Deserialize)]
struct Busy;

impl Job for Busy {
    const NAME: &'static str = "busy";
    const ABOUT: &'static str = "a victim";

    fn register(registry: &mut Registry) {
        registry.task::<Small>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        RUN.store(0, Ordering::Release);
        let children: Vec<Spawned<'_, Small>> = (0..STEALS).map(|_| cx.spawn(Small)).collect();
        while RUN.load(Ordering::Acquire) < STEALS {
            compute(LEAF);
            cx.check()?;
        }
        let mut checksum = 0;
        for child in children {
            checksum += child.take()?;
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

static STARTED: Mutex<Option<Instant>> = Mutex::new(None);
static TOOK: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

#[derive(Serialize, Deserialize)]
struct Awaited;

impl Task for Awaited {
    type Output = u64;
    const NAME: &'static str = "awaited";

    fn run(self, _: &Context) -> Result<u64, Stop> {
        *STARTED.lock().expect("sound") = Some(Instant::now());
        Ok(1)
    }
}

/// The times between pieces of new work.
fn gaps(seed: u64) -> impl Iterator<Item = Duration> {
    let mut random = seed | 1;
    (0..WAKES).map(move |_| {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        LONGEST_GAP.mul_f64((random >> 40) as f64 / (1u64 << 24) as f64)
    })
}

fn compute_until_started() -> Instant {
    loop {
        compute(Duration::from_micros(200));
        if let Some(started) = *STARTED.lock().expect("sound") {
            return started;
        }
    }
}

/// Threads that sleep until the one before wakes them: as many as take part when a parked node gets work. These are the
/// endpoint's thread here (hint), there (request), here (reply), there, and the compute thread there.
struct Chain(mpsc::Sender<()>);

impl Chain {
    fn start() -> Self {
        let (first, mut before) = mpsc::channel::<()>();
        for _ in 0..4 {
            let (next, after) = mpsc::channel();
            std::thread::spawn(move || {
                while before.recv().is_ok() {
                    let _ = next.send(());
                }
            });
            before = after;
        }
        std::thread::spawn(move || {
            while before.recv().is_ok() {
                *STARTED.lock().expect("sound") = Some(Instant::now());
            }
        });
        Self(first)
    }

    fn wakes(&self, seed: u64) -> Vec<Duration> {
        let wake = |gap| {
            compute(gap);
            *STARTED.lock().expect("sound") = None;
            let made = Instant::now();
            self.0.send(()).expect("the first thread waits");
            compute_until_started() - made
        };
        gaps(seed).map(wake).collect()
    }
}

/// Makes a piece of work now and then, and computes itself.
#[derive(Serialize, Deserialize)]
struct NowAndThen(u64);

impl Job for NowAndThen {
    const NAME: &'static str = "now-and-then";
    const ABOUT: &'static str = "new work for parked workers";

    fn register(registry: &mut Registry) {
        registry.task::<Awaited>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let mut checksum = 0;
        for gap in gaps(self.0) {
            compute(gap);
            *STARTED.lock().expect("sound") = None;
            let made = Instant::now();
            let child = cx.spawn(Awaited);
            let started = compute_until_started();
            cx.check()?;
            TOOK.lock().expect("sound").push(started - made);
            checksum += child.take()?;
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

// --- the nodes --------------------------------------------------------------------------------------------------------

struct Nodes {
    registry: Arc<Registry>,
    engines: Vec<Engine>,
    /// They keep the nodes' tasks running.
    _threads: Vec<Thread>,
}

impl Nodes {
    fn start(identities: &[NodeIdentity]) -> Self {
        let mut registry = Registry::new();
        registry.job::<Busy>();
        registry.job::<NowAndThen>();
        let registry = Arc::new(registry);
        let threads: Vec<Thread> = identities.iter().map(|_| Thread::start()).collect();
        let started: Vec<(Engine, Net)> = identities
            .iter()
            .zip(&threads)
            .map(|(identity, thread)| {
                let (identity, registry) = (identity.clone(), registry.clone());
                thread.run(async move { node(&identity, registry) })
            })
            .collect();
        let members: Members = started
            .iter()
            .map(|(_, net)| {
                let (me, address) = (net.me(), net.address());
                let (incarnation, cluster) = (me.incarnation, me.cluster.clone());
                (
                    me.node.clone(),
                    Member { incarnation, cluster, address, threads: 1, leaving: false },
                )
            })
            .collect();
        let coordinator = members.keys().next().cloned();
        let view = View { epoch: Epoch(1), version: 1, members, coordinator, ..View::default() };
        started.iter().for_each(|(engine, _)| engine.view(&view));
        let engines = started.into_iter().map(|(engine, _)| engine).collect();
        Self { registry, engines, _threads: threads }
    }

    /// Runs a job on the first node, to its end.
    fn run<J: Job>(&self, job: J) -> u64 {
        let (tx, rx) = mpsc::channel();
        let entry = self.registry.find_job(J::NAME).expect("registered");
        let body = encode_job(job).expect("the job is right");
        self.engines[0].run_job(entry, body, None, move |end| drop(tx.send(end)));
        match rx.recv().expect("the root tells its end") {
            RootEnd::Ended(outcome) => outcome.expect("no failure").checksum,
            RootEnd::Stopped(_) => unreachable!("nobody stops it"),
        }
    }

    /// The round trips of the second node's steals that came back with a task (and the few that did not, at the ends).
    fn steals(&self) -> Histogram {
        let _ = self.engines[1].statistics(true);
        assert_eq!(self.run(Busy), STEALS as u64);
        let statistics = self.engines[1].statistics(true);
        let mut latencies = Histograms::default();
        latencies.apply(&statistics.latencies).expect("well-formed");
        assert!(latencies.steal_local.count() >= STEALS as u64, "each task was stolen by itself");
        latencies.steal_local
    }

    fn wakes(&self, seed: u64) -> Vec<Duration> {
        assert_eq!(self.run(NowAndThen(seed)), WAKES);
        std::mem::take(&mut *TOOK.lock().expect("sound"))
    }
}

fn node(identity: &NodeIdentity, registry: Arc<Registry>) -> (Engine, Net) {
    let net = Net::quic(NetConfig::default(), identity, Incarnation(1)).expect("a network");
    let recorder =
        Recorder::new(net.me().node.clone(), Incarnation(1), tokio::time::Instant::now(), 1);
    let config = EngineConfig {
        job: JobId(1),
        policy: StealPolicy::ClusterAware,
        pool: PoolConfig { threads: 1, ..PoolConfig::default() },
        share: ShareConfig::default(),
        metering: None,
        results_bytes: RESULTS_BYTES,
    };
    let notes = Box::new(|_: Note| {});
    let engine = Engine::start(&config, registry, net.clone(), RealSeam::new(), recorder, notes)
        .expect("threads");
    let router = Arc::new(Router::default());
    router.on(Kind::STEAL_REQUEST..=Kind::AUDIT, engine.inbox());
    router.on(Kind::OBJECT_UPDATE..=Kind::OBJECT_MERGE, engine.inbox());
    net.start(router);
    tokio::spawn(engine.clone().drive());
    (engine, net)
}
