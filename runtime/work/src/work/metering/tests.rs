//! Tests of nodes that are measured while they work: exact in virtual time, and by orders of
//! magnitude on real threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::super::{
    Context, Engine, EngineConfig, Failure, Job, Outcome, PoolConfig, ProgressReport, RealSeam,
    Registry, RootEnd, Seam, Stop, Task, VirtualSeam, encode_job, steal,
};
use super::*;
use crate::event::Recorder;
use crate::id::{Epoch, Incarnation, JobId, NodeId};
use crate::membership::{Member, View};
use crate::meter::{LinkReport, Overheads, SpecId, SpeedReport, SpeedSource};
use crate::net::{Address, LinkProfile, MemoryConfig, MemoryNet, Router};
use crate::share::{ObjectNeed, ShareConfig, Version, Versioned};
use crate::wire::Kind;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
struct Blob(#[serde(with = "serde_bytes")] Vec<u8>);

impl Versioned for Blob {
    const NAME: &'static str = "blob";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        Blob(self.0.clone())
    }
}

/// Leaves that take modelled time, or this many turns, and declare their cost.
#[derive(Clone, Default, Serialize, Deserialize)]
struct MeteredLeaves {
    count: u64,
    model_ms: u64,
    turns: u32,
    cost: Option<f64>,
    blob: Option<Version>,
}

impl MeteredLeaves {
    fn some(&self, count: u64) -> Self {
        Self { count, ..self.clone() }
    }
}

fn spin(turns: u32) {
    let mut x = 1u64;
    for turn in 0..turns {
        x = std::hint::black_box(x.wrapping_mul(3) ^ u64::from(turn));
    }
}

impl Task for MeteredLeaves {
    type Output = u64;
    const NAME: &'static str = "leaves";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        if self.count <= 1 {
            if self.model_ms > 0 {
                cx.spend_modelled_time(Duration::from_millis(self.model_ms))?;
            }
            spin(self.turns);
            return Ok(self.count);
        }
        let half = self.count / 2;
        let (a, b) = cx.join(self.some(half), self.some(self.count - half))?;
        Ok(a + b)
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        self.blob.iter().map(|version| ObjectNeed::of::<Blob>(0, *version)).collect()
    }

    fn cost(&self) -> Option<f64> {
        self.cost.filter(|_| self.count == 1)
    }
}

/// Holds a thread until it is released, without a call into the runtime.
#[derive(Serialize, Deserialize)]
struct Hold;

static HELD: AtomicBool = AtomicBool::new(false);

impl Task for Hold {
    type Output = u64;
    const NAME: &'static str = "hold";

    fn run(self, _cx: &Context) -> Result<u64, Stop> {
        while HELD.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(0)
    }
}

/// Rounds of leaves, created in each of the ways in which a root creates children.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Rounds {
    rounds: u64,
    leaves: MeteredLeaves,
    /// Modelled time of the root's own work in each round.
    own_ms: u64,
    /// The bytes that are published in each round.
    blob: usize,
    holds: bool,
}

impl Job for Rounds {
    const NAME: &'static str = "rounds";
    const ABOUT: &'static str = "for tests";

    fn register(registry: &mut Registry) {
        registry.task::<MeteredLeaves>().task::<Hold>().versioned::<Blob>();
    }

    fn run(mut self, cx: &Context) -> Result<Outcome, Stop> {
        let mut checksum = 0;
        if self.holds {
            checksum += cx.call(Hold)?;
        }
        for round in 0..self.rounds {
            if self.own_ms > 0 {
                cx.spend_modelled_time(Duration::from_millis(self.own_ms))?;
            }
            if self.blob > 0 {
                self.leaves.blob = Some(cx.put(0, Blob(vec![7; self.blob]))?);
            }
            let half = self.leaves.count / 2;
            let (first, rest) =
                (self.leaves.some(half), self.leaves.some(self.leaves.count - half));
            checksum += match round % 4 {
                0 => cx.call(self.leaves.clone())?,
                1 => {
                    let (a, b) = cx.join(first, rest)?;
                    a + b
                }
                2 => cx.join_all([first, rest])?.into_iter().sum(),
                _ => {
                    let children = [cx.spawn(first), cx.spawn(rest)];
                    cx.sync()?;
                    let mut sum = 0;
                    for child in children {
                        sum += child.take()?;
                    }
                    sum
                }
            };
            cx.iteration_done();
        }
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }

    /// The same leaves, but few.
    fn benchmark(&self) -> Option<Self> {
        let leaves =
            MeteredLeaves { count: 8, turns: 20_000, cost: Some(1e9), ..MeteredLeaves::default() };
        Some(Self { rounds: 4, leaves, ..Self::default() })
    }
}

/// Virtual threads that take longer by a factor.
struct SlowThreads(Arc<VirtualSeam>, u32);

impl Seam for SlowThreads {
    fn start(
        &self,
        thread: usize,
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        self.0.start(thread, name, stack_bytes, body)
    }

    fn park(&self, thread: usize, timeout: Option<Duration>) {
        self.0.park(thread, timeout);
    }

    fn unpark(&self, thread: usize) {
        self.0.unpark(thread);
    }

    fn pass(&self, thread: usize, time: Duration) {
        self.0.pass(thread, time * self.1);
    }

    fn join(&self) {
        self.0.join();
    }
}

/// The nodes of one job on a network in memory.
struct MeteredGrid {
    registry: Arc<Registry>,
    engines: BTreeMap<&'static str, Engine>,
    period: Duration,
}

impl MeteredGrid {
    /// Nodes by name, cluster and slowdown; 0 means real threads.
    fn new(nodes: &[(&'static str, &str, u32)], threads: u32, period: Duration) -> Self {
        let mut registry = Registry::new();
        registry.job::<Rounds>();
        let registry = Arc::new(registry);
        let between = LinkProfile::default().delay(Duration::from_millis(5)).rate(4_000_000);
        let network = MemoryNet::with(1, MemoryConfig { between, ..MemoryConfig::default() });
        let member = |cluster: &str| Member {
            incarnation: Incarnation(1),
            cluster: cluster.into(),
            address: Address::Memory,
            threads,
            leaving: false,
        };
        let mut view = View { epoch: Epoch(1), version: 1, ..View::default() };
        for (name, cluster, _) in nodes {
            view.members.insert((*name).into(), member(cluster));
            let coordinators = &mut view.cluster_coordinators;
            coordinators.entry((*cluster).into()).or_insert_with(|| (*name).into());
        }
        let engines = nodes.iter().map(|&(name, cluster, slow)| {
            let node = NodeId::from(name);
            let incarnation = Incarnation(1);
            let peer = Peer { node: node.clone(), incarnation, cluster: cluster.into() };
            let net = network.join(peer).unwrap();
            let seam: Arc<dyn Seam> = match slow {
                0 => RealSeam::new(),
                slow => Arc::new(SlowThreads(VirtualSeam::new(), slow)),
            };
            let config = EngineConfig {
                job: JobId(1),
                pool: PoolConfig { threads: threads as usize, ..PoolConfig::default() },
                policy: steal::StealPolicy::default(),
                share: ShareConfig::default(),
                metering: Some(MeteringSettings::new(period, 3)),
                results_bytes: 0,
                memory: None,
            };
            let recorder = Recorder::new(node, incarnation, Instant::now(), 1 << 10);
            let notes = Box::new(|_: ProgressReport| {});
            let engine =
                Engine::start(&config, registry.clone(), net.clone(), seam, recorder, notes);
            let engine = engine.unwrap();
            let router = Arc::new(Router::default());
            router.route(Kind::STEAL_REQUEST..=Kind::PROCESS, engine.inbox());
            router.route(Kind::OBJECT_UPDATE..=Kind::OBJECT_MERGE, engine.inbox());
            net.start(router);
            engine.set_view(&view);
            tokio::task::spawn_local(engine.clone().drive());
            (name, engine)
        });
        let engines = engines.collect();
        Self { registry, engines, period }
    }

    fn run(&self, node: &str, job: Rounds) -> oneshot::Receiver<Result<Outcome, Failure>> {
        let (sender, running) = oneshot::channel();
        let entry = self.registry.find_job("rounds").unwrap();
        self.engines[node].run_job(entry, encode_job(job).unwrap(), None, move |end| {
            let RootEnd::Ended(outcome) = end else { panic!("the test does not stop the root") };
            let _ = sender.send(outcome);
        });
        running
    }

    fn end_period(&self) -> BTreeMap<&'static str, PeriodMeasure> {
        let now = Instant::now();
        self.engines.iter().map(|(name, engine)| (*name, engine.end_period(now))).collect()
    }

    /// Measures the speeds after this number of periods.
    async fn measure(&self, periods: u32) -> BTreeMap<&'static str, PeriodMeasure> {
        for _ in 1..periods {
            tokio::time::sleep(self.period).await;
            self.end_period();
        }
        tokio::time::sleep(self.period).await;
        self.end_period()
    }

    fn benchmark(&self) -> BenchmarkSpec {
        let job = encode_job(Rounds::default()).unwrap();
        self.registry.find_job("rounds").unwrap().benchmark(&job).unwrap().unwrap()
    }

    async fn close(self) {
        for engine in self.engines.values() {
            engine.close();
            // Both waiters must be notified, or this hangs: a node may be ordered to leave twice.
            tokio::join!(engine.closed(), engine.closed());
        }
    }
}

fn on_tokio<F: Future<Output = ()>>(paused: bool, test: impl FnOnce() -> F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(paused).build().unwrap();
    LocalSet::new().block_on(&runtime, async { test().await });
}

fn speed(measure: &PeriodMeasure) -> SpeedReport {
    measure.speed.expect("a speed was measured")
}

#[test]
fn in_virtual_time_speeds_are_proportional_to_those_of_the_threads() {
    on_tokio(true, || async {
        for threads in [1, 2] {
            let nodes = [("a", "x", 1), ("b", "x", 2), ("c", "y", 4)];
            let grid = MeteredGrid::new(&nodes, threads, SECOND * 10);
            let leaves = MeteredLeaves {
                count: 400,
                model_ms: 20,
                cost: Some(3.0),
                ..MeteredLeaves::default()
            };
            // The root runs its own code for a third of its time; this must not make its node look
            // slower.
            let running =
                grid.run("a", Rounds { rounds: 40, leaves, own_ms: 1000, ..Rounds::default() });
            let measures = grid.measure(3).await;
            for (name, slow) in [("a", 1.0), ("b", 2.0), ("c", 4.0)] {
                let report = speed(&measures[name]);
                let expected = 3.0 / 0.02 * f64::from(threads) / slow;
                // The clock's resolution is a millisecond.
                let off = report.speed / expected;
                assert!((0.9..1.1).contains(&off), "{name}: {report:?}, expected {expected}");
                assert_eq!((report.source, report.spec), (SpeedSource::Units, SpecId::DECLARED));
                let measure = &measures[name];
                assert_eq!(measure.times.total_ns(), u64::from(threads) * 10_000_000_000);
                assert_eq!((measure.times.bench_ns, measure.load), (0, Load::default()));
                let overheads = Overheads::of(&measure.times);
                assert!(overheads.total > 0.0 && overheads.total < 0.9, "{name}: {overheads:?}");
            }
            // Encoded with field names, it decodes to the same value.
            let bytes = rmp_serde::to_vec_named(&measures["c"]).unwrap();
            assert_eq!(rmp_serde::from_slice::<PeriodMeasure>(&bytes).unwrap(), measures["c"]);
            assert_eq!(running.await.unwrap().unwrap().checksum, 40 * 400);
            grid.close().await;
        }
    });
}

#[test]
fn links_between_clusters_are_measured_by_their_normal_traffic() {
    on_tokio(true, || async {
        let grid = MeteredGrid::new(&[("a", "x", 1), ("b", "x", 1), ("c", "y", 1)], 1, SECOND * 10);
        let leaves = MeteredLeaves { count: 200, model_ms: 20, ..MeteredLeaves::default() };
        let job = Rounds { rounds: 20, leaves, blob: 2_000_000, ..Rounds::default() };
        let running = grid.run("a", job);
        let measures = grid.measure(2).await;
        assert_eq!(running.await.unwrap().unwrap().checksum, 20 * 200);
        // The receiver measures transfers from another cluster; within a cluster no node does. The
        // node that opened the link knows the round trip.
        let came = |links: &LinkReport| {
            let link = links.estimates();
            link.into_iter().find(|l| (l.from.as_str(), l.to.as_str()) == ("x", "y")).unwrap()
        };
        let links = &measures["c"].links;
        let bandwidth = came(links).bandwidth.unwrap();
        assert!((2e6..6e6).contains(&bandwidth), "{links:?}");
        let links = LinkReport::sum(measures.values().map(|measure| &measure.links));
        let round_trip = came(&links).round_trip_us.unwrap();
        assert!((8e3..13e3).contains(&round_trip), "{links:?}");
        assert!(measures["b"].links.estimates().iter().all(|link| link.bandwidth.is_none()));
        grid.close().await;
    });
}

#[test]
fn a_sample_is_drawn_from_stolen_tasks_until_there_is_a_benchmark() {
    on_tokio(true, || async {
        let grid = MeteredGrid::new(&[("a", "x", 1), ("b", "x", 1), ("c", "y", 1)], 1, SECOND);
        assert_eq!(grid.engines["b"].benchmark_candidate(), None);
        let leaves = MeteredLeaves { count: 50, model_ms: 2, ..MeteredLeaves::default() };
        let running = grid.run("a", Rounds { rounds: 100, leaves, ..Rounds::default() });
        let drawn = loop {
            tokio::time::sleep(SECOND / 10).await;
            if let Some(spec) = grid.engines["b"].benchmark_candidate() {
                break spec;
            }
        };
        let crate::meter::BenchmarkWork::Tasks(tasks) = &drawn.work else { panic!("{drawn:?}") };
        assert!(tasks.len() >= 4 && tasks.iter().all(|task| task.name.starts_with("leaves")));
        // The sample can run where none of its tasks ran.
        let goal = BenchmarkGoal {
            min_length: Duration::ZERO,
            max_length: Duration::ZERO,
            window: Duration::ZERO,
        };
        let seam: Arc<dyn super::super::Seam> = super::super::RealSeam::new();
        let run = super::super::bench::run(&grid.registry, &drawn, 1, goal, &seam, || false);
        let run = run.unwrap();
        assert_eq!(run.repeats(), 1);
        grid.engines["b"].set_benchmark(drawn);
        assert_eq!(grid.engines["b"].benchmark_candidate(), None);
        assert_eq!(running.await.unwrap().unwrap().checksum, 100 * 50);
        // It ran between tasks, in modelled time: half a second, and the repeat in progress.
        let took = grid.end_period()["b"].times.bench_ns;
        assert!((500_000_000..1_000_000_000).contains(&took), "{took} ns");
        grid.close().await;
    });
}

/// The node has asked all victims and rests, which counts as idle. A benchmark would then delay the
/// end of an iteration.
#[test]
fn no_benchmark_runs_on_a_thread_that_waits_for_a_result() {
    on_tokio(true, || async {
        let grid = MeteredGrid::new(&[("a", "x", 1), ("b", "x", 4)], 1, SECOND);
        let leaves =
            MeteredLeaves { count: 50, model_ms: 7, cost: Some(1.0), ..MeteredLeaves::default() };
        let benchmark = Rounds { rounds: 1, leaves: leaves.some(8), ..Rounds::default() };
        let benchmark = BenchmarkSpec::of_job(Rounds::NAME, encode_job(benchmark).unwrap());
        let running = grid.run("a", Rounds { rounds: 100, leaves, ..Rounds::default() });
        assert_eq!(running.await.unwrap().unwrap().checksum, 100 * 50);
        // The work units give the node's speed, so the benchmark can wait.
        grid.end_period();
        let leaves = MeteredLeaves {
            count: 2,
            model_ms: 10_000,
            cost: Some(1.0),
            ..MeteredLeaves::default()
        };
        let mut running = grid.run("a", Rounds { rounds: 1, leaves, ..Rounds::default() });
        tokio::time::sleep(SECOND * 15).await;
        grid.engines["a"].set_benchmark(benchmark);
        tokio::time::sleep(SECOND * 10).await;
        assert_eq!(grid.end_period()["a"].times.bench_ns, 0);
        running.try_recv().unwrap_err();
        // It runs when no thread waits for a result.
        assert_eq!(running.await.unwrap().unwrap().checksum, 2);
        tokio::time::sleep(SECOND * 2).await;
        assert!(grid.end_period()["a"].times.bench_ns > 0);
        grid.close().await;
    });
}

#[test]
fn a_node_whose_tasks_take_twice_as_long_has_half_the_speed() {
    on_tokio(false, || async {
        // Both sleep most of the time and run at once, so other load on the machine affects both
        // equally and little.
        let grid = |model_ms| {
            let leaves =
                MeteredLeaves { count: 64, model_ms, cost: Some(1.0), ..MeteredLeaves::default() };
            let grid = MeteredGrid::new(&[("a", "x", 0)], 2, SECOND / 2);
            let running = grid.run("a", Rounds { rounds: u64::MAX, leaves, ..Rounds::default() });
            (grid, running)
        };
        let (fast, slow) = (grid(10), grid(20));
        let measures = tokio::join!(fast.0.measure(4), slow.0.measure(4));
        let (fast_speed, slow_speed) = (speed(&measures.0["a"]), speed(&measures.1["a"]));
        let ratio = fast_speed.speed / slow_speed.speed;
        assert!((1.2..3.3).contains(&ratio), "{fast_speed:?} and {slow_speed:?}");
        for (grid, running) in [fast, slow] {
            grid.close().await;
            running.await.unwrap().unwrap_err();
        }
    });
}

#[test]
fn a_benchmark_on_a_busy_pool_ends_without_side_effects() {
    on_tokio(false, || async {
        let grid = MeteredGrid::new(&[("a", "x", 0)], 2, SECOND / 4);
        let leaves = MeteredLeaves { count: 500, turns: 2_000, ..MeteredLeaves::default() };
        let job = Rounds { rounds: 20, leaves, ..Rounds::default() };
        let spec = grid.benchmark();
        let mut running = grid.run("a", job.clone());
        grid.engines["a"].set_benchmark(spec.clone());
        let (mut times, mut runs) = (Times::default(), 1);
        let report = loop {
            tokio::select! {
                biased;
                outcome = &mut running => {
                    assert_eq!(outcome.unwrap().unwrap().checksum, 20 * 500);
                    running = grid.run("a", job.clone());
                    runs += 1;
                }
                () = tokio::time::sleep(grid.period) => {}
            }
            let measure = grid.end_period().remove("a").unwrap();
            times += measure.times;
            if let Some(report) = measure.speed {
                break report;
            }
        };
        assert_eq!((report.source, report.spec), (SpeedSource::Benchmark, spec.id()));
        assert!(report.speed > 0.0 && times.bench_ns > 0 && times.working_ns > 0, "{times:?}");
        assert_eq!(running.await.unwrap().unwrap().checksum, 20 * 500);
        // No task of the benchmark counts among the job's.
        let tasks = grid.engines["a"].statistics(false).counters.tasks;
        // Each four rounds have one child of a call and one of a join in the tree, and none more of
        // a batch of two.
        let of_round = [2 * 500 - 1, 2 * 500 - 2, 2 * 500 - 2, 2 * 500 - 2];
        assert_eq!(tasks.spawned, runs * 5 * of_round.iter().sum::<u64>());
        assert_eq!(tasks.executed, tasks.spawned + runs);
        grid.close().await;
    });
}

#[test]
fn a_benchmark_does_not_wait_for_a_thread_that_never_arrives() {
    on_tokio(false, || async {
        HELD.store(true, Ordering::Release);
        let grid = MeteredGrid::new(&[("a", "x", 0)], 2, SECOND / 4);
        let running = grid.run("a", Rounds { holds: true, ..Rounds::default() });
        tokio::time::sleep(SECOND / 10).await;
        grid.engines["a"].set_benchmark(grid.benchmark());
        let report = loop {
            tokio::time::sleep(grid.period).await;
            if let Some(report) = grid.end_period().remove("a").unwrap().speed {
                break report;
            }
        };
        // One thread's measurement stands for two, with an unknown error.
        assert!(report.speed > 0.0 && report.relative_error >= 0.25, "{report:?}");
        HELD.store(false, Ordering::Release);
        assert_eq!(running.await.unwrap().unwrap().checksum, 0);
        grid.close().await;
    });
}

#[test]
fn a_benchmark_that_does_not_end_is_halted_with_the_node() {
    on_tokio(false, || async {
        let grid = MeteredGrid::new(&[("a", "x", 0)], 2, SECOND / 4);
        let endless = Rounds {
            rounds: u64::MAX,
            leaves: MeteredLeaves { count: 9, ..MeteredLeaves::default() },
            ..Rounds::default()
        };
        let body: Bytes = crate::wire::encode_payload(&endless).unwrap();
        grid.engines["a"].set_benchmark(BenchmarkSpec::of_job("rounds", body));
        tokio::time::sleep(SECOND / 2).await;
        let measure = grid.end_period().remove("a").unwrap();
        assert!(measure.speed.is_none() && measure.times.bench_ns > 0, "{measure:?}");
        // If the halt fails, this test does not end.
        grid.close().await;
    });
}

#[test]
#[cfg(target_os = "linux")]
fn processor_time_of_compute_threads_is_known_while_they_run_on_real_threads() {
    use super::super::outcome::Halt;
    use super::super::pool::Pool;
    use super::super::solo::SoloObserver;
    on_tokio(false, || async {
        let mut registry = Registry::new();
        registry.job::<Rounds>();
        let registry = Arc::new(registry);
        let start = |seam: Arc<dyn Seam>| {
            let observer = Arc::new(SoloObserver::new(registry.clone(), |_: ProgressReport| {}));
            let config = PoolConfig { threads: 2, stack_bytes: 1 << 20, ..PoolConfig::default() };
            Pool::start(&config, registry.clone(), seam, observer).unwrap()
        };
        let pool = start(RealSeam::new());
        let pause = || tokio::time::sleep(Duration::from_millis(1));
        let before = loop {
            match pool.thread_cpu() {
                Some(cpu) => break cpu,
                None => pause().await,
            }
        };
        let leaves = MeteredLeaves { count: 64, turns: 10_000, ..MeteredLeaves::default() };
        let endless = Rounds { rounds: u64::MAX, leaves, ..Rounds::default() };
        let job = registry.find_job("rounds").unwrap();
        pool.run_job(job, encode_job(endless).unwrap(), None, |_| {});
        // The job computes for ever, so this ends unless the clocks stand still.
        while pool.thread_cpu().unwrap() < before + Duration::from_millis(20) {
            pause().await;
        }
        pool.halt(Halt::Cancelled);
        pool.close();
        pool.join();
        assert_eq!(pool.thread_cpu(), None);
    });
}
