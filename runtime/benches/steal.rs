//! The cost of stealing between nodes on loopback.
//!
//! It measures the round trip of a steal from a victim whose compute thread is busy, relative to a
//! bare quinn ping-pong. It also measures the time until a parked worker starts new work of a
//! neighbour.
//!
//! `cargo bench -p springtide-runtime --bench steal [-- ROUNDS]`. Each node has its endpoint's
//! thread and one compute thread, all in this process. The programs alternate: only the ratios are
//! meaningful. The ping-pong runs on the idle machine and next to a computing thread, as the victim
//! has one: with few cores this slows every exchange. For comparison with the wake-ups, it also
//! measures a chain of plain threads that wake each other.

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
    Context, Engine, EngineConfig, Job, Outcome, PoolConfig, ProgressReport, RESULTS_BYTES,
    RealSeam, Registry, RootEnd, Spawned, Stop, Task, encode_job,
};

use crate::bare::{QuinnProgram, Thread, median};

mod bare;

/// Number of tasks that the thief steals in a round, one per steal.
const STEALS: usize = 5_000;
/// Number of pieces of new work in a round, one at a time.
const WAKES: u64 = 100;
/// Longest time between two of them: longer than a thief ever rests.
const LONGEST_GAP: Duration = Duration::from_millis(300);
/// Time that the busy victim computes between two calls into the runtime.
const LEAF: Duration = Duration::from_millis(2);

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let ca = Ca::ephemeral("bench").expect("an authority");
    let identity = |name: &str| {
        ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).expect("an identity")
    };
    let (one, two) = (identity("one"), identity("two"));
    let bare = QuinnProgram::start(&one, &two);
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
        let with_load = with_busy_thread(|| bare.round_trips()).as_secs_f64() * 1e6;
        let steals = nodes.steals();
        let p50 = steals.p50_us().expect("the thief stole") as f64;
        let p99 = steals.p99_us().expect("the thief stole") as f64;
        idle.push(p50 / alone);
        busy.push(p50 / with_load);
        println!(
            "{round:>5} {alone:>9.1} us {with_load:>9.1} us {p50:>9.1} us {p99:>9.1} us \
             {:>6.2} {:>6.2}",
            p50 / alone,
            p50 / with_load
        );
        wakes.extend(nodes.wakes(round));
        chains.extend(chain.wakes(round));
    }
    println!(
        "steal round trip / bare, median of rounds: {:.2}; both next to a busy thread: {:.2} \
         (limit: under 2)",
        median(&mut idle),
        median(&mut busy)
    );
    print_times("time until a parked node starts new work (limit: p99 at most 10 ms)", wakes);
    print_times("chain of as many plain threads that wake each other", chains);
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

fn with_busy_thread<T>(work: impl FnOnce() -> T) -> T {
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

/// Computes for this time.
fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

// --- the jobs, which report through statics, because all nodes are in one process

static RUN: AtomicUsize = AtomicUsize::new(0);

/// A minimal task, so that the thief returns soon.
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

/// Fills its deque and computes until all tasks are stolen.
#[derive(Serialize, Deserialize)]
struct BusyTask;

impl Job for BusyTask {
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

/// Threads in a chain, each of which sleeps until the former one wakes it. They are as many as take
/// part when a parked node gets work.
///
/// These are the endpoint's thread here (hint), there (request), here (reply) and there, and the
/// compute thread there.
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

/// Spawns a piece of work at random times, and computes in between.
#[derive(Serialize, Deserialize)]
struct RandomArrivals(u64);

impl Job for RandomArrivals {
    const NAME: &'static str = "random-arrivals";
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

// --- the nodes

struct Nodes {
    registry: Arc<Registry>,
    engines: Vec<Engine>,
    /// The threads that run the nodes' tasks.
    _threads: Vec<Thread>,
}

impl Nodes {
    fn start(identities: &[NodeIdentity]) -> Self {
        let mut registry = Registry::new();
        registry.job::<BusyTask>();
        registry.job::<RandomArrivals>();
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
        started.iter().for_each(|(engine, _)| engine.set_view(&view));
        let engines = started.into_iter().map(|(engine, _)| engine).collect();
        Self { registry, engines, _threads: threads }
    }

    /// Runs a job on the first node until it ends.
    fn run<J: Job>(&self, job: J) -> u64 {
        let (tx, rx) = mpsc::channel();
        let entry = self.registry.find_job(J::NAME).expect("registered");
        let body = encode_job(job).expect("the job is right");
        self.engines[0].run_job(entry, body, None, move |end| drop(tx.send(end)));
        match rx.recv().expect("the root reports its end") {
            RootEnd::Ended(outcome) => outcome.expect("no failure").checksum,
            RootEnd::Stopped(_) => unreachable!("the job is not stopped"),
        }
    }

    /// The round trips of the second node's steals with a task, and of the few without at the start
    /// and the end.
    fn steals(&self) -> Histogram {
        let _ = self.engines[1].statistics(true);
        assert_eq!(self.run(BusyTask), STEALS as u64);
        let statistics = self.engines[1].statistics(true);
        let mut latencies = Histograms::default();
        latencies.apply(&statistics.latencies).expect("well-formed");
        assert!(latencies.steal_local.count() >= STEALS as u64, "each task was stolen by itself");
        latencies.steal_local
    }

    fn wakes(&self, seed: u64) -> Vec<Duration> {
        assert_eq!(self.run(RandomArrivals(seed)), WAKES);
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
        memory: None,
    };
    let notes = Box::new(|_: ProgressReport| {});
    let engine = Engine::start(&config, registry, net.clone(), RealSeam::new(), recorder, notes)
        .expect("threads");
    let router = Arc::new(Router::default());
    router.route(Kind::STEAL_REQUEST..=Kind::AUDIT, engine.inbox());
    router.route(Kind::OBJECT_UPDATE..=Kind::OBJECT_MERGE, engine.inbox());
    net.start(router);
    tokio::spawn(engine.clone().drive());
    (engine, net)
}
