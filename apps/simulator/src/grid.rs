//! A grid in virtual time: its head, its sites and their machines on one network, and jobs that are submitted to it.
//!
//! Assembly only: what happens to it while a job runs is its user's to say, by [`Grid::machines`] and [`Grid::network`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::client::{Client, News};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head, node_names};
use springtide_actors::job::{JobEnded, JobParams, NoteKind, SCHEDULER};
use springtide_actors::links::Links;
use springtide_actors::provider::NodeRequest;
use springtide_actors::scheduler::{Granted, Scheduler, Submit, SubmitError};
use springtide_actors::store::Store;
use springtide_runtime::event::{EventHash, Record};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{MemoryConfig, MemoryNet};
use springtide_runtime::remote::{Remote, RemoteError};
use springtide_runtime::work::{Job, Registry, encode_job};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::machines::{Machine, Machines};

/// A submission is answered within this time: it waits for nodes that join.
const SUBMIT_WITHIN: Duration = Duration::from_secs(120);

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
    #[error(
        "the job had not ended after {0:?} of virtual time. Who waits for whom on its nodes:\n{2}\nIts last words:\n{1}"
    )]
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

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    /// As its client hears it.
    pub ended: Box<JobEnded>,
    /// From its submission to its end.
    pub wall: Duration,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// What it said, with the time since its submission.
    pub said: Vec<(Duration, String)>,
    /// What happened, in the order in which the client heard it.
    pub records: Vec<Record>,
}

/// A grid.
pub struct Grid {
    network: MemoryNet,
    machines: Machines,
    head: Head,
    registry: Arc<Registry>,
    news: Mutex<mpsc::Receiver<(JobId, News)>>,
    _links: Arc<Links>,
}

/// A job on its way.
pub struct Run<'a> {
    grid: &'a Grid,
    began: Instant,
    granted: Granted,
    iterations: Vec<f64>,
    said: Vec<(Duration, String)>,
    records: Vec<Record>,
    done: Option<watch::Sender<u64>>,
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
        let (links, news) = Client::publish(&endpoint);
        let mut head = Head::start(endpoint, Store::in_memory());
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
            let request = |node| NodeRequest {
                node,
                program: PathBuf::new(),
                config: PathBuf::new(),
                log: PathBuf::new(),
                env: Vec::new(),
            };
            let requests = of_cluster(place).into_iter().map(request).collect();
            head.start_site(place.name.clone(), requests, Rc::new(machines.clone()));
        }
        head.settled(|_, _| {}).await;
        let news = Mutex::new(news);
        Rc::new(Self { network, machines, head, registry, news, _links: links })
    }

    /// Its network.
    pub fn network(&self) -> &MemoryNet {
        &self.network
    }

    /// Its scheduler, as its head reaches it.
    pub fn scheduler(&self) -> Remote<Scheduler> {
        let head = &self.head.endpoint;
        head.hub.remote(&head.net.me().node, SCHEDULER)
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
        let body = encode_job(job).map_err(|error| GridError::Job(error.to_string()))?;
        let submit = Submit {
            name: J::NAME.to_owned(),
            body,
            fingerprint: self.registry.fingerprint(),
            params,
            clusters,
            client: self.head.contact(),
            program: None,
        };
        let began = Instant::now();
        let granted = self.scheduler().send(submit).deadline(SUBMIT_WITHIN).await??;
        Ok(Run {
            grid: self,
            began,
            granted,
            iterations: Vec::new(),
            said: Vec::new(),
            records: Vec::new(),
            done: None,
        })
    }

    /// How often a job was told to have ended that its [`Run`] has heard of already.
    pub async fn ended_again(&self, job: JobId) -> u64 {
        let mut news = self.news.lock().await;
        let mut times = 0;
        while let Ok((of, news)) = news.try_recv() {
            times += u64::from(of == job && matches!(news, News::Ended(_)));
        }
        times
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

impl Run<'_> {
    /// Which job it is.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Tells how many iterations are done.
    pub fn watched(mut self, done: watch::Sender<u64>) -> Self {
        self.done = Some(done);
        self
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`GridError::Endless`] when that takes longer than `limit` from now.
    pub async fn ended(mut self, limit: Duration) -> Result<Ended, GridError> {
        let hear = async {
            let mut news = self.grid.news.lock().await;
            while let Some((job, news)) = news.recv().await {
                if job != self.granted.job {
                    continue;
                }
                match news {
                    News::Ended(ended) => return Some(ended),
                    News::Note(note) => {
                        note_down(
                            *note,
                            self.began.elapsed(),
                            &mut self.iterations,
                            &mut self.said,
                            &mut self.records,
                        );
                        if let Some(done) = &self.done {
                            done.send_replace(self.iterations.len() as u64);
                        }
                    }
                }
            }
            None
        };
        match timeout(limit, hear).await {
            Ok(Some(ended)) => Ok(Ended {
                ended,
                wall: self.began.elapsed(),
                iterations: self.iterations,
                said: self.said,
                records: self.records,
            }),
            _ => {
                let waits = waits(&self.grid.machines, self.granted.job);
                Err(GridError::Endless(limit, Told(self.said), waits))
            }
        }
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

fn note_down(
    note: NoteKind,
    at: Duration,
    iterations: &mut Vec<f64>,
    said: &mut Vec<(Duration, String)>,
    records: &mut Vec<Record>,
) {
    match note {
        NoteKind::Iteration { seconds, .. } => iterations.push(seconds),
        NoteKind::Say { text } => said.push((at, text)),
        NoteKind::Started { root, workers } => {
            let nodes: u32 = workers.values().sum();
            said.push((at, format!("the root runs on {root}, with {nodes} workers")));
        }
        NoteKind::Events { records: more } => records.extend(more),
        NoteKind::Progress { .. }
        | NoteKind::Artifact { .. }
        | NoteKind::Outcome { .. }
        | NoteKind::Period { .. } => {}
    }
}
