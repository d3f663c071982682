//! A grid in virtual time: its head, its sites and their machines on one network, and jobs that are submitted to it.
//!
//! Assembly only: what happens to it while a job runs is its user's to say, by [`Grid::machines`] and [`Grid::network`].

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head, node_names};
use springtide_actors::job::JobParams;
use springtide_actors::scheduler::{Granted, Scheduler, SubmitError, manager};
use springtide_actors::store::Store;
use springtide_runtime::event::{EventHash, Record};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{MemoryConfig, MemoryNet};
use springtide_runtime::remote::{Remote, RemoteError};
use springtide_runtime::work::{Job, Registry};

use crate::machines::{Machine, Machines};
use crate::submitter::{Ended, Submitted, Submitter};

/// A cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its name.
    pub name: ClusterId,
    /// How many nodes it has, named `NAME-1` and so on.
    pub nodes: u32,
    /// Each one's machine.
    pub machine: Machine,
}

/// What a grid is made of.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its clusters.
    pub clusters: Vec<Place>,
    /// Its links, where nothing else is set later.
    pub network: MemoryConfig,
    /// Of the network's losses and jitter.
    pub seed: u64,
    /// How long a node that is told to end may take to leave its job.
    pub leave_within: Duration,
    /// Whether processes can be [stopped](Machines::stop): each then has an executor of its own.
    pub stoppable: bool,
}

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub enum GridError {
    /// The job does not serialise.
    #[error("the job cannot be sent: {0}")]
    Job(String),
    /// The scheduler could not be asked.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// It did not take the job.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// It did not end in time.
    #[error("the job had not ended after {0:?}.{waits} Its last words:\n{1}", waits = told_waits(.2))]
    Endless(Duration, Told, String),
    /// It cannot end: no node is left that it could have.
    #[error(
        "no node is left: {}, and nothing that is still to happen brings one back; the job waits for nodes for ever. Let an \
         event end (`lasts`), or another free nodes. What happened last:\n{last}",
        .held.as_ref().map_or("all are off".to_owned(), |held| format!("{held} are wanted for something else, the others off"))
    )]
    NoNode {
        /// Nodes that run and are claimed, in a few words.
        held: Option<String>,
        /// What happened to the grid.
        last: Told,
    },
    /// It cannot end: all that knew of it is gone.
    #[error(
        "the job is lost: the machines of its coordinator and of all who could have said so went off at once, and nothing \
         that is still to happen changes that. Let one of its nodes be spared. What happened last:\n{last}"
    )]
    NoCoordinator {
        /// What happened to the grid.
        last: Told,
    },
}

/// Who waits for whom, where that is known.
fn told_waits(waits: &str) -> String {
    match waits {
        "" => String::new(),
        waits => format!(" Who waits for whom on its nodes:\n{waits}\n"),
    }
}

/// What happened, by the job's seconds. Shown are the last ten.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told(pub Vec<(Duration, String)>);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hidden = self.0.len().saturating_sub(10);
        for (i, (at, what)) in self.0[hidden..].iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{:9.3} s  {what}", at.as_secs_f64())?;
        }
        Ok(())
    }
}

/// A grid.
pub struct Grid {
    network: MemoryNet,
    machines: Machines,
    head: Head,
    submitter: Submitter,
}

/// Runs this in virtual time, to its end: the clock stands while anything computes, and jumps when all wait.
///
/// # Panics
/// On a thread that is inside another such runtime.
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

impl Grid {
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
        let mut head = Head::start(endpoint, Store::in_memory(), manager::Settings::default());
        let of_cluster =
            |place: &Place| -> Vec<NodeId> { node_names(&place.name, place.nodes).collect() };
        let machines = layout.clusters.iter().flat_map(|place| {
            let machine = (place.name.clone(), place.machine.clone());
            of_cluster(place).into_iter().map(move |node| (node, machine.clone()))
        });
        let machines = Machines::new(
            network.clone(),
            registry.clone(),
            head.contact(),
            machines.collect(),
            (layout.leave_within, layout.stoppable),
        );
        for place in &layout.clusters {
            let request = |node| Machines::request(node, place.machine.threads);
            let requests = of_cluster(place).into_iter().map(request).collect();
            head.start_site(place.name.clone(), requests, Rc::new(machines.clone()));
        }
        head.settled(|_, _| {}).await;
        Rc::new(Self { network, machines, head, submitter })
    }

    /// Its network.
    pub fn network(&self) -> &MemoryNet {
        &self.network
    }

    /// Who submits its jobs.
    pub fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// Its scheduler, as its head reaches it.
    pub fn scheduler(&self) -> Remote<Scheduler> {
        self.submitter.scheduler().clone()
    }

    /// Its machines.
    pub fn machines(&self) -> &Machines {
        &self.machines
    }

    /// Its head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Submits a job of the grid's program, on so many nodes of each cluster, or on all.
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit<J: Job>(
        &self,
        job: J,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
    ) -> Result<Run<'_>, GridError> {
        Ok(Run { grid: self, run: self.submitter.submit(job, params, clusters).await? })
    }

    /// How often a job was told to have ended that its [`Run`] has heard of already.
    pub async fn ended_again(&self, job: JobId) -> u64 {
        self.submitter.ended_again(job).await
    }

    /// A digest of every arrival on the network so far and of what was recorded since the last call: equal for equal
    /// histories.
    pub fn digest(&self, records: &[Record]) -> u64 {
        let mut hash = EventHash::new();
        records.iter().for_each(|record| hash.add(record));
        self.machines.drain().iter().for_each(|record| hash.add(record));
        hash.value() ^ self.network.digest().rotate_left(17)
    }
}

impl Drop for Grid {
    /// As a machine's process: the head's network and its actors would hold each other.
    fn drop(&mut self) {
        self.head.endpoint.router.clear();
    }
}

/// A job of a grid on its way.
pub struct Run<'a> {
    grid: &'a Grid,
    run: Submitted<'a>,
}

impl Run<'_> {
    /// Which job it is.
    pub fn granted(&self) -> &Granted {
        self.run.granted()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`GridError::Endless`] when that takes longer than `limit` from now.
    pub async fn ended(self, limit: Duration) -> Result<Ended, GridError> {
        let (grid, job) = (self.grid, self.granted().job);
        self.run.ended(limit).await.map_err(|error| match error {
            GridError::Endless(limit, told, _) => {
                GridError::Endless(limit, told, waits(&grid.machines, job))
            }
            error => error,
        })
    }
}

/// Who waits for whom on a job's nodes that run: a line each.
fn waits(machines: &Machines, job: JobId) -> String {
    let waits = machines.engines_of(job).into_iter().filter_map(|engine| {
        let node = &engine.me().node;
        Some(format!("  {node} {}", engine.waits()?))
    });
    waits.collect::<Vec<_>>().join("\n")
}
