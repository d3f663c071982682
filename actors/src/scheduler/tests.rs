//! The scheduler actor with real workers and a real coordinator, over the network in memory.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{Epoch, Incarnation, Peer};
use springtide_runtime::meter::{BenchmarkSpec, SpeedMeasurement};
use springtide_runtime::net::{Address, MemoryNet};
use springtide_runtime::processors::Processors;
use springtide_runtime::work::{Context as Cx, Job, Outcome, Registry, Stop, Task, encode_job};

use super::manager::{JobRequirements, Kind};
use super::*;
use crate::client::{Client, JobUpdate};
use crate::endpoint::Endpoint;
use crate::hardware::Hardware;
use crate::job::{JobParams, SCHEDULER, WORKER};
use crate::links::LinkListener;
use crate::policy::SchedulerRequest;
use crate::worker::{Worker, WorkerConfig};

/// A job that runs until it is halted, or ends at once.
#[derive(Clone, Serialize, Deserialize)]
struct Wait {
    forever: bool,
}

#[derive(Serialize, Deserialize)]
struct Nap;

impl Task for Nap {
    type Output = ();
    const NAME: &'static str = "nap";

    fn run(self, _cx: &Cx) -> Result<(), Stop> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

impl Job for Wait {
    const NAME: &'static str = "wait";
    const ABOUT: &'static str = "for tests";

    fn register(registry: &mut Registry) {
        registry.task::<Nap>();
    }

    fn run(self, cx: &Cx) -> Result<Outcome, Stop> {
        cx.call(Nap)?;
        if self.forever {
            loop {
                cx.call(Nap)?;
            }
        }
        Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
    }
}

struct SchedulerTestGrid {
    scheduler: Addr<Scheduler>,
    /// The head, the client, then the nodes.
    endpoints: Vec<Endpoint>,
    registry: Arc<Registry>,
    _dir: tempfile::TempDir,
}

impl SchedulerTestGrid {
    /// Starts a head, a client, and registered nodes with a worker each.
    async fn of(nodes: &[&str]) -> Self {
        let network = MemoryNet::new(1);
        let mut registry = Registry::new();
        registry.job::<Wait>();
        let registry = Arc::new(registry);
        let join = |name: &str| {
            let cluster = name.split('-').next().unwrap().into();
            let peer = Peer { node: name.into(), incarnation: Incarnation(1), cluster };
            Endpoint::over(network.join(peer).unwrap())
        };
        let names = ["head", "client-1"].iter().chain(nodes);
        let endpoints: Vec<Endpoint> = names.map(|name| join(name)).collect();
        for endpoint in &endpoints {
            for other in &endpoints {
                endpoint.net.learn(other.net.contact());
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let Endpoint { net, hub, router, recorder, .. } = endpoints[0].clone();
        let links = LinkChanges::listen(&router, LinkListener::Scheduler);
        let scheduler =
            Scheduler::new(net, hub.clone(), links, store, recorder, ManagerSettings::default())
                .start();
        hub.publish(SCHEDULER, scheduler.clone())
            .accepts_judged::<JobEndNotice>()
            .accepts_judged::<GetAuthority>()
            .accepts_judged::<Drain>();
        let (client, _news) = Client::new();
        endpoints[1]
            .hub
            .publish(CLIENT, client.start())
            .accepts::<crate::job::JobNote>()
            .accepts::<JobEndReport>();
        for endpoint in &endpoints[2..] {
            let Endpoint { net, hub, router, recorder, .. } = endpoint.clone();
            Worker::new(WorkerConfig::real(1), registry.clone(), net, hub, router, recorder)
                .publish();
        }
        endpoints.iter().for_each(Endpoint::start);
        let grid = Self { scheduler, endpoints, registry, _dir: dir };
        for endpoint in &grid.endpoints[2..] {
            let Peer { node, incarnation, cluster } = endpoint.net.me().clone();
            let (nodes, starts_programs) = (vec![node.clone()], false);
            let (keep_ms, stubs) = (None, BTreeSet::new());
            let (of, files, at) = (cluster.clone(), false, None);
            let site = SiteRegistration {
                threads: 1,
                hosts: Vec::new(),
                shares: Default::default(),
                joins: false,
                cluster: of,
                nodes,
                starts_programs,
                keep_ms,
                stubs,
                files,
                at,
                receives_programs: false,
            };
            grid.tell(site).await;
            let hardware =
                Hardware { model: "cpu".into(), threads: 1, mhz: 1000, ..Hardware::default() };
            let fingerprint = grid.registry.fingerprint();
            let (address, threads, pid) = (Address::Memory, 1, 1);
            grid.tell(NodeRegistration {
                cluster,
                node,
                incarnation,
                address,
                threads,
                fingerprint,
                pid,
                hardware,
                work: None,
                program: None,
            })
            .await;
        }
        grid
    }

    async fn tell<M>(&self, message: M) -> M::Result
    where
        M: Message + Send + 'static,
        M::Result: Send,
        Scheduler: Handler<M>,
    {
        self.scheduler.send(message).await.unwrap()
    }

    /// Runs an endless job on the first node's cluster.
    async fn submit(&self) -> JobGrant {
        self.tell(self.submission()).await.unwrap()
    }

    fn submission(&self) -> Submit {
        let cluster = self.endpoints[2].net.me().cluster.clone();
        Submit {
            name: Wait::NAME.into(),
            body: encode_job(Wait { forever: true }).unwrap(),
            fingerprint: self.registry.fingerprint(),
            params: JobParams::default(),
            clusters: Some([(cluster, 1)].into()),
            client: self.endpoints[1].net.contact(),
            program: None,
            need: None,
            principal: None,
            image: None,
        }
    }

    /// The node's state, once it is `wanted`; after a time limit, its last state.
    async fn state(&self, node: &str, wanted: NodeState) -> NodeState {
        let mut state = NodeState::Broken;
        for _ in 0..1000 {
            let status = self.tell(GetStatus {}).await;
            let mut nodes = status.sites.values().flat_map(|site| &site.nodes);
            state = nodes.find(|known| known.node == node.into()).unwrap().state;
            if state == wanted {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        state
    }
}

#[test]
fn job_is_deleted_only_after_its_client_knows_the_end() {
    System::new().block_on(async {
        let grid = SchedulerTestGrid::of(&["ams-1"]).await;
        let (client, mut news) = Client::new();
        let hub = &grid.endpoints[0].hub;
        hub.publish(CLIENT, client.keeping().start()).accepts::<JobEndReport>();
        let busy = grid.submit().await.job;
        let mut submit = grid.submission();
        submit.client = grid.endpoints[0].net.contact();
        let blobs = crate::store::records_dir(grid._dir.path()).join("blobs");
        let kept = |job: JobId| {
            let mut files = std::fs::read_dir(&blobs).into_iter().flatten().flatten();
            let name = format!("{job}.");
            files.any(|file| file.file_name().to_string_lossy().starts_with(&name))
        };
        // One job is cancelled in the queue, and one can never get its processors.
        for count in [1, 2] {
            let need = Some(JobRequirements::one(Kind::Rigid, count, count, count));
            let job = grid.tell(Enqueue(Submit { need, ..submit.clone() })).await.unwrap();
            if count == 1 {
                grid.tell(CancelJob { job, reason: "enough".into() }).await;
            }
            let (of, end, receipt) = news.recv().await.unwrap();
            assert!(of == job && matches!(end, JobUpdate::Ended(_)), "{end:?}");
            // The scheduler has finished all actions of its own.
            grid.tell(GetStatus {}).await;
            assert!(
                kept(job),
                "a restarted head would not know the job, and its client would miss the end"
            );
            drop(receipt);
            for _ in 0..1000 {
                if !kept(job) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(!kept(job));
        }
        grid.tell(CancelJob { job: busy, reason: "enough".into() }).await;
        assert_eq!(grid.state("ams-1", NodeState::Idle).await, NodeState::Idle);
    });
}

fn spec() -> BenchmarkSpec {
    BenchmarkSpec::of_job(Wait::NAME, encode_job(Wait { forever: false }).unwrap())
}

#[test]
fn nodes_are_granted_to_a_running_job_and_released() {
    System::new().block_on(async {
        let grid = SchedulerTestGrid::of(&["ams-1", "del-1"]).await;
        let JobGrant { job, epoch, .. } = grid.submit().await;
        let ask = |epoch, count| RequestNodes {
            job,
            epoch,
            request: SchedulerRequest {
                count,
                min_speed: Some(1e-9),
                ..SchedulerRequest::default()
            },
            benchmark: Some(spec()),
            rtt_s: BTreeMap::new(),
            bandwidth: BTreeMap::new(),
        };
        let stale = AuthorityError::Epoch { job, asked: Epoch(0), known: epoch };
        assert_eq!(grid.tell(ask(Epoch(0), Processors(1))).await, Err(stale));
        // The only other node runs the benchmark, is granted, and joins.
        assert_eq!(grid.tell(ask(epoch, Processors(1))).await, Ok(OpenNodes { open: 1.into() }));
        assert_eq!(grid.state("del-1", NodeState::Measuring).await, NodeState::Measuring);
        assert_eq!(grid.state("del-1", NodeState::Busy).await, NodeState::Busy);
        let mut open = Processors::ONE;
        for _ in 0..1000 {
            open = grid.tell(GetOffers { job, epoch }).await.unwrap().open;
            if open.is_zero() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(open.is_zero(), "the coordinator has the node");
        let (node, incarnation) = (NodeId::from("del-1"), Incarnation(1));
        let why = ReleaseReason::Refused { reason: "not wanted".into(), busy: None };
        grid.tell(NodeFreed { job, epoch, node: node.clone(), incarnation, why }).await;
        assert_eq!(
            grid.state("del-1", NodeState::Idle).await,
            NodeState::Idle,
            "its worker released it"
        );
        let offers = grid.tell(GetOffers { job, epoch }).await.unwrap();
        let offer = &offers.offers[&"del".into()];
        assert!(offer.free == Processors::ONE && offer.nodes[&node].speed > 0.0, "{offer:?}");
        // The node of the job's root is its last one.
        let drain = |node: &str| Drain {
            nodes: vec![node.into()],
            reason: "test".into(),
            deadline_ms: None,
            incarnation: None,
        };
        let below = DrainError::BelowMinimum { job, min: 1.into(), left: 0.into() };
        assert_eq!(grid.tell(drain("ams-1")).await, Err(below));
        // Over the network, as the command does.
        let remote = grid.endpoints[1].hub.remote::<Scheduler>(&"head".into(), SCHEDULER);
        let empty = DrainResult { empty: vec![node.clone()], gone: Vec::new() };
        assert_eq!(remote.send(drain("del-1")).await, Ok(Ok(empty)));
        assert_eq!(
            grid.tell(ask(epoch, Processors(1))).await,
            Ok(OpenNodes { open: 1.into() }),
            "no node is free"
        );
        let withdraw = WithdrawNodes { job, epoch, count: 1.into() };
        assert_eq!(grid.tell(withdraw).await, Ok(OpenNodes { open: 0.into() }));
        assert_eq!(grid.tell(Undrain { nodes: vec![node] }).await, Ok(()));
        grid.tell(CancelJob { job, reason: "enough".into() }).await;
        assert_eq!(grid.state("ams-1", NodeState::Idle).await, NodeState::Idle);
        assert_eq!(grid.tell(ask(epoch, Processors(1))).await, Err(AuthorityError::Over { job }));
    });
}

#[test]
fn only_an_idle_worker_runs_a_benchmark() {
    System::new().block_on(async {
        let grid = SchedulerTestGrid::of(&["ams-1"]).await;
        let worker = grid.endpoints[0].hub.remote::<Worker>(&"ams-1".into(), WORKER);
        let measure = |spec| worker.send(MeasureSpeed { spec });
        let first = measure(spec()).start();
        let second = measure(spec()).await;
        assert_eq!(second, Ok(Err("node ams-1: another benchmark runs".into())));
        let Ok(Ok(SpeedMeasurement { speed, .. })) = first.await else {
            panic!("the node is idle")
        };
        assert!(speed > 0.0 && speed.is_finite());
        let unknown = measure(BenchmarkSpec::of_job("other", Default::default())).await;
        assert!(unknown.unwrap().unwrap_err().contains("job other is not registered"));
        let JobGrant { job, .. } = grid.submit().await;
        assert_eq!(measure(spec()).await, Ok(Err(format!("node ams-1: it works for {job}"))));
        grid.tell(CancelJob { job, reason: "enough".into() }).await;
        assert_eq!(grid.state("ams-1", NodeState::Idle).await, NodeState::Idle);
    });
}
