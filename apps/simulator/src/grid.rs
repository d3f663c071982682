//! A grid in virtual time: its head, its sites and their machines on one network, and the jobs
//! submitted to it.
//!
//! This module only assembles the grid. Callers change it while a job runs through
//! [`SimulatedGrid::machines`] and [`SimulatedGrid::network`].

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head, node_names};
use springtide_actors::job::JobParams;
use springtide_actors::scheduler::{JobGrant, Scheduler, SubmitError, manager};
use springtide_actors::store::Store;
use springtide_runtime::event::{EventHash, Record};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{MemoryConfig, MemoryNet};
use springtide_runtime::remote::{Remote, RemoteError};
use springtide_runtime::work::{Job, Registry};

use crate::machines::{Machine, Machines};
use crate::submitter::{CompletedRun, SubmittedJob, Submitter};

/// A cluster of a simulated grid.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedCluster {
    /// The name of the cluster.
    pub name: ClusterId,
    /// The number of nodes, which are named `NAME-1` and so on.
    pub nodes: u32,
    /// The machine of each node.
    pub machine: Machine,
}

/// The configuration of a grid.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The clusters of the grid.
    pub clusters: Vec<SimulatedCluster>,
    /// The links between clusters, unless a link is set later.
    pub network: MemoryConfig,
    /// The seed of the network's losses and jitter.
    pub seed: u64,
    /// Time limit for an ordered exit of a node from its job.
    pub leave_within: Duration,
    /// Whether processes can be [stopped](Machines::stop); if so, each has its own executor.
    pub stoppable: bool,
}

/// Failure to run a job on a grid.
#[derive(Debug, thiserror::Error)]
pub enum GridError {
    /// The job cannot be serialised.
    #[error("the job cannot be sent: {0}")]
    Job(String),
    /// The scheduler could not be reached.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The scheduler refused the job.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The job did not end in time.
    #[error(
        "the job had not ended after {0:?}.{waits} Its last messages:\n{1}",
        waits = format_waits(.2)
    )]
    Endless(Duration, RecentEvents, String),
    /// The job cannot end: no node is left for it.
    #[error(
        "no node is left: {}, and no later event frees or starts one, so the job never ends. Let \
         an event end (`duration`), or let another free nodes. The last events:\n{last}",
        .claimed.as_ref().map_or("all are off".to_owned(), |claimed| {
            format!("{claimed} are wanted for something else, the others are off")
        })
    )]
    NoNode {
        /// The nodes that run and are claimed, as text.
        claimed: Option<String>,
        /// The last events of the grid.
        last: RecentEvents,
    },
    /// The job cannot end: all nodes that knew it are gone.
    #[error(
        "the job is lost: the machines of its coordinator and of all nodes that could report its \
         loss went off at once, and no later event changes that. Let the event spare one of its \
         nodes. The last events:\n{last}"
    )]
    NoCoordinator {
        /// The last events of the grid.
        last: RecentEvents,
    },
}

/// Formats the waits between nodes for an error message; empty if they are unknown.
fn format_waits(waits: &str) -> String {
    match waits {
        "" => String::new(),
        waits => format!(" Waits between its nodes:\n{waits}\n"),
    }
}

/// Events of the grid, by seconds of the job. The text shows the last ten.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecentEvents(pub Vec<(Duration, String)>);

impl std::fmt::Display for RecentEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hidden = self.0.len().saturating_sub(10);
        for (i, (at, what)) in self.0[hidden..].iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{:9.3} s  {what}", at.as_secs_f64())?;
        }
        Ok(())
    }
}

/// A simulated grid that runs.
pub struct SimulatedGrid {
    network: MemoryNet,
    machines: Machines,
    head: Head,
    submitter: Submitter,
}

/// Runs a future in virtual time to its end.
///
/// The clock stands while any task computes, and jumps when all tasks wait.
///
/// # Panics
/// Panics on a thread that is inside another such runtime.
pub fn simulate<F: Future>(world: impl FnOnce() -> F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing of the system")
    };
    let system = actix::System::with_tokio_rt(runtime);
    system.block_on(async move { world().await })
}

impl SimulatedGrid {
    /// Starts a grid, and waits until its nodes have registered.
    pub async fn start(layout: &Layout, registry: Registry) -> Rc<Self> {
        let registry = Arc::new(registry);
        let network = MemoryNet::with(layout.seed, layout.network.clone());
        let me =
            Peer { node: HEAD.into(), incarnation: Incarnation(1), cluster: HEAD_CLUSTER.into() };
        let net = network
            .join_as(me, "head")
            .unwrap_or_else(|error| unreachable!("the first node: {error}"));
        let endpoint = Endpoint::over(net);
        let submitter = Submitter::new(&endpoint, registry.fingerprint(), None);
        let mut head =
            Head::start(endpoint, Store::in_memory(), manager::ManagerSettings::default());
        let of_cluster = |place: &SimulatedCluster| -> Vec<NodeId> {
            node_names(&place.name, place.nodes).collect()
        };
        let machines = layout.clusters.iter().flat_map(|place| {
            let machine = (place.name.clone(), place.machine.clone());
            of_cluster(place).into_iter().map(move |node| (node, machine.clone()))
        });
        let machines = Machines::new(
            network.clone(),
            registry.clone(),
            head.contact(),
            machines.collect(),
            layout.leave_within,
            layout.stoppable,
        );
        for place in &layout.clusters {
            let request = |node| Machines::request(node, place.machine.threads);
            let requests = of_cluster(place).into_iter().map(request).collect();
            head.start_site(place.name.clone(), requests, Rc::new(machines.clone()));
        }
        head.wait_for_nodes(|_, _| {}).await;
        Rc::new(Self { network, machines, head, submitter })
    }

    /// The network of the grid.
    pub fn network(&self) -> &MemoryNet {
        &self.network
    }

    /// The submitter of the grid's jobs.
    pub fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// The scheduler, as the head reaches it.
    pub fn scheduler(&self) -> Remote<Scheduler> {
        self.submitter.scheduler().clone()
    }

    /// The machines of the grid.
    pub fn machines(&self) -> &Machines {
        &self.machines
    }

    /// The head of the grid.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Submits a job of the grid's program on the given number of nodes of each cluster, or on all
    /// nodes.
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit<J: Job>(
        &self,
        job: J,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
    ) -> Result<SimulatedRun<'_>, GridError> {
        Ok(SimulatedRun { grid: self, run: self.submitter.submit(job, params, clusters).await? })
    }

    /// The number of end notifications of a job since its [`SimulatedRun`] was consumed.
    pub async fn ended_again(&self, job: JobId) -> u64 {
        self.submitter.ended_again(job).await
    }

    /// Takes the events that the head and all nodes recorded and did not send, of all incarnations.
    pub fn drain_records(&self) -> Vec<Record> {
        let mut records = self.head.endpoint.recorder.drain();
        records.extend(self.machines.drain());
        records
    }

    /// A digest of all arrivals on the network so far and of the events recorded since the last
    /// call.
    ///
    /// Equal histories have equal digests.
    pub fn digest(&self, records: &[Record]) -> u64 {
        let mut hash = EventHash::new();
        records.iter().for_each(|record| hash.add(record));
        self.machines.drain().iter().for_each(|record| hash.add(record));
        hash.value() ^ self.network.digest().rotate_left(17)
    }
}

impl Drop for SimulatedGrid {
    /// Breaks the cycle between the head's network and its actors.
    fn drop(&mut self) {
        self.head.endpoint.router.clear();
    }
}

/// A job that runs on a grid.
pub struct SimulatedRun<'a> {
    grid: &'a SimulatedGrid,
    run: SubmittedJob<'a>,
}

impl SimulatedRun<'_> {
    /// The scheduler's grant of the job.
    pub fn granted(&self) -> &JobGrant {
        self.run.granted()
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// [`GridError::Endless`] after `limit` from now.
    pub async fn ended(self, limit: Duration) -> Result<CompletedRun, GridError> {
        let (grid, job) = (self.grid, self.granted().job);
        self.run.ended(limit).await.map_err(|error| match error {
            GridError::Endless(limit, events, _) => {
                GridError::Endless(limit, events, list_waits(&grid.machines, job))
            }
            error => error,
        })
    }
}

/// Lists the nodes of a job that run, with the nodes that each waits for: a line each.
fn list_waits(machines: &Machines, job: JobId) -> String {
    let waits = machines.engines_of(job).into_iter().filter_map(|engine| {
        let node = &engine.me().node;
        Some(format!("  {node} {}", engine.waits()?))
    });
    waits.collect::<Vec<_>>().join("\n")
}
