//! A federation of batch systems in virtual time: a head with its scheduler and store, and clusters
//! that hold processors on demand.
//!
//! Each cluster has a site in a process of its own. Head and sites can be killed at any time, as by
//! `kill -9`, and started again. Their memory is lost; their files and the jobs of the batch
//! systems remain. This module does not depend on the tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_actors::client::{Client, JobUpdate};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head, node_names};
use springtide_actors::job::{JobParams, NoteKind};
use springtide_actors::scheduler::manager::{JobRequirements, ManagerSettings};
use springtide_actors::scheduler::{
    Enqueue, GetStatus, GridStatus, Scheduler, Submit, SubmitError,
};
use springtide_actors::site::OnDemand;
use springtide_actors::site_host::{SiteHost, SiteParts, site_node};
use springtide_actors::store::{SCHEMA, SETTINGS, Store, StoreRecord, records_dir};
use springtide_judge::{Expectation, Verdict};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{Address, Contact, MemoryConfig, MemoryNet};
use springtide_runtime::records::{Disk, read};
use springtide_runtime::work::{Job, Registry, encode_job};
use springtide_simulator::batch::BatchSystem;
use springtide_simulator::machines::{EPOCH_US, Machine, Machines};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use crate::judged::judge_records;

/// A process of the head or of a site; when it is killed, everything in it ends at once.
struct FederationProcess {
    endpoint: Endpoint,
    tasks: actix_rt::task::JoinHandle<()>,
}

impl FederationProcess {
    /// Starts a process of this name, which runs `main`.
    fn start<T>(
        network: &MemoryNet,
        peer: Peer,
        role: &str,
        main: impl FnOnce(&Endpoint) -> T,
    ) -> (Self, T) {
        let own = LocalSet::new();
        let inside = own.enter();
        let net = network.join_as(peer, role).expect("its former life is dead");
        let endpoint = Endpoint::over(net);
        let made = main(&endpoint);
        drop(inside);
        (Self { endpoint, tasks: actix_rt::spawn(own) }, made)
    }

    async fn kill(self, network: &MemoryNet) {
        network.kill(&self.endpoint.net.me().node);
        self.tasks.abort();
        // When this completes, the process has ended, with all its open files.
        let _ = self.tasks.await;
        // Breaks the cycle between the network and its handlers.
        self.endpoint.router.clear();
    }
}

/// The address of the head, which is the same for all incarnations.
fn head() -> Contact {
    let address = Address::Memory;
    Contact { node: HEAD.into(), cluster: HEAD_CLUSTER.into(), address }
}

/// The client's records of a job, which outlive the head.
#[derive(Clone, Debug)]
pub struct FederationJob {
    /// The time of the submission.
    pub submitted: Instant,
    /// Each notification of the job's end: the time, and the answer or the error.
    pub ended: Vec<(Instant, Result<u64, String>)>,
    /// The seconds of each iteration, in order of arrival.
    pub iterations: Vec<f64>,
    /// Messages of the job, with their times.
    pub said: Vec<(Instant, String)>,
}

/// What the client knows of the jobs that it submitted; it outlives heads.
#[derive(Default)]
struct JobNews {
    jobs: RefCell<BTreeMap<JobId, FederationJob>>,
    /// News of jobs whose numbers have not arrived yet.
    early: RefCell<Vec<(JobId, JobUpdate)>>,
    /// Events that jobs sent.
    records: RefCell<Vec<Record>>,
    ended: Notify,
}

impl JobNews {
    fn take(&self, job: JobId, news: JobUpdate) {
        let mut jobs = self.jobs.borrow_mut();
        let Some(record) = jobs.get_mut(&job) else {
            return self.early.borrow_mut().push((job, news));
        };
        let now = Instant::now();
        match news {
            JobUpdate::Ended(ended) => {
                let outcome = ended.outcome.map(|outcome| outcome.checksum);
                record.ended.push((now, outcome.map_err(|error| error.to_string())));
                self.ended.notify_waiters();
            }
            JobUpdate::Note(note) => match *note {
                NoteKind::Iteration { seconds, .. } => record.iterations.push(seconds),
                NoteKind::Text { text } => record.said.push((now, text)),
                NoteKind::Events { records } => self.records.borrow_mut().extend(records),
                _ => {}
            },
        }
    }

    fn begin(&self, job: JobId, submitted: Instant) {
        let record = FederationJob {
            submitted,
            ended: Vec::new(),
            iterations: Vec::new(),
            said: Vec::new(),
        };
        self.jobs.borrow_mut().insert(job, record);
        for (of, news) in self.early.take() {
            self.take(of, news);
        }
    }

    fn wants(&self, job: JobId) -> bool {
        self.jobs.borrow().get(&job).is_some_and(|record| record.ended.is_empty())
    }
}

struct RunningHead {
    process: FederationProcess,
    head: Head,
    scheduler: Addr<Scheduler>,
}

/// A federation of clusters with batch systems.
pub struct Federation {
    network: MemoryNet,
    machines: Machines,
    batches: BTreeMap<ClusterId, BatchSystem>,
    nodes: BTreeMap<ClusterId, u32>,
    registry: Arc<Registry>,
    settings: ManagerSettings,
    on_demand: OnDemand,
    dir: TempDir,
    client: Rc<JobNews>,
    /// Events of former heads.
    records: RefCell<Vec<Record>>,
    head: RefCell<Option<RunningHead>>,
    sites: RefCell<BTreeMap<ClusterId, FederationProcess>>,
    lives: Cell<u64>,
}

impl Federation {
    /// Starts a federation of these clusters; each is a batch system with the given number of
    /// processors.
    ///
    /// Each job of a batch system waits for at least `delay`. Head and sites run when this function
    /// returns.
    pub async fn start(
        clusters: &[(&str, u32)],
        delay: Duration,
        registry: Registry,
        settings: ManagerSettings,
        seed: u64,
    ) -> Rc<Self> {
        let network = MemoryNet::with(seed, MemoryConfig::default());
        let nodes: BTreeMap<ClusterId, u32> =
            clusters.iter().map(|(name, size)| (ClusterId::from(*name), *size)).collect();
        let machine = |cluster: &ClusterId| (cluster.clone(), Machine { threads: 1, speed: 1.0 });
        let all = nodes.iter().flat_map(|(cluster, count)| {
            node_names(cluster, *count).map(move |node| (node, machine(cluster)))
        });
        let registry = Arc::new(registry);
        let machines = Machines::new(
            network.clone(),
            registry.clone(),
            head(),
            all.collect(),
            Duration::from_secs(10),
            false,
        );
        let batches: BTreeMap<ClusterId, BatchSystem> = nodes
            .iter()
            .map(|(cluster, count)| {
                (cluster.clone(), BatchSystem::new(machines.clone(), *count, delay))
            })
            .collect();
        let federation = Rc::new(Self {
            network,
            machines,
            batches,
            nodes: nodes.clone(),
            registry,
            settings,
            on_demand: OnDemand::default(),
            dir: tempfile::tempdir().expect("a folder for its store"),
            client: Rc::default(),
            records: RefCell::default(),
            head: RefCell::default(),
            sites: RefCell::default(),
            lives: Cell::new(0),
        });
        federation.start_head();
        for cluster in nodes.keys() {
            federation.start_site(cluster);
        }
        federation
    }

    fn peer(&self, node: NodeId, cluster: ClusterId) -> Peer {
        self.lives.set(self.lives.get() + 1);
        Peer { node, incarnation: Incarnation(EPOCH_US + self.lives.get()), cluster }
    }

    /// Starts the head, which must be down.
    ///
    /// # Panics
    /// Panics if it runs, or if its store cannot be read.
    pub fn start_head(&self) {
        assert!(self.head.borrow().is_none(), "one head runs");
        let mut store = Store::open(self.dir.path()).expect("the former head's store");
        let client = self.client.clone();
        let recovered = store.recover(|job| client.wants(job)).expect("what was submitted");
        let peer = self.peer(HEAD.into(), HEAD_CLUSTER.into());
        let (process, head) = FederationProcess::start(&self.network, peer, "head", |endpoint| {
            let jobs: Vec<JobId> = recovered.iter().map(|recovered| recovered.job).collect();
            let clusters = self.nodes.keys().cloned().collect();
            Head::start_again(
                endpoint.clone(),
                store,
                self.settings.clone(),
                recovered,
                clusters,
                |endpoint, _| {
                    let (links, mut news) = Client::publish_resuming(endpoint, jobs);
                    actix_rt::spawn(async move {
                        while let Some((job, news, _)) = news.recv().await {
                            client.take(job, news);
                        }
                        drop(links);
                    });
                },
            )
        });
        let scheduler = head.scheduler.clone();
        *self.head.borrow_mut() = Some(RunningHead { process, head, scheduler });
    }

    /// Kills the head. Returns false if it is down.
    pub async fn kill_head(&self) -> bool {
        let Some(RunningHead { process, head, scheduler }) = self.head.take() else { return false };
        drop((head, scheduler));
        self.records.borrow_mut().extend(process.endpoint.recorder.drain());
        process.kill(&self.network).await;
        true
    }

    /// Starts the site of a cluster, which must be down.
    ///
    /// # Panics
    /// Panics if it runs.
    pub fn start_site(&self, cluster: &ClusterId) {
        assert!(!self.sites.borrow().contains_key(cluster), "one site a cluster runs");
        let request = |node| Machines::request(node, 1);
        let part = SiteParts {
            cluster: cluster.clone(),
            nodes: node_names(cluster, self.nodes[cluster]).map(request).collect(),
            provider: Rc::new(self.batches[cluster].clone()),
            on_demand: self.on_demand.clone(),
            keeping: None,
            programs: None,
        };
        let peer = self.peer(site_node(cluster), cluster.clone());
        let (process, ()) = FederationProcess::start(&self.network, peer, "site", |endpoint| {
            self.machines.site_is_at(cluster, endpoint.net.contact());
            let host = SiteHost::start(endpoint.clone(), head(), part);
            actix_rt::spawn(async move { host.watch().await });
        });
        self.sites.borrow_mut().insert(cluster.clone(), process);
    }

    /// Kills the site of a cluster. Returns false if it is down.
    pub async fn kill_site(&self, cluster: &ClusterId) -> bool {
        let Some(site) = self.sites.borrow_mut().remove(cluster) else { return false };
        self.batches[cluster].mark_caller_dead();
        site.kill(&self.network).await;
        true
    }

    /// The batch system of a cluster.
    ///
    /// # Panics
    /// Panics if there is no such cluster.
    pub fn batch(&self, cluster: &str) -> &BatchSystem {
        &self.batches[&ClusterId::from(cluster)]
    }

    /// The batch systems of all clusters.
    pub fn batches(&self) -> impl Iterator<Item = (&ClusterId, &BatchSystem)> {
        self.batches.iter()
    }

    /// The machines of the federation.
    pub fn machines(&self) -> &Machines {
        &self.machines
    }

    /// The scheduler, if the head runs.
    pub fn scheduler(&self) -> Option<Addr<Scheduler>> {
        self.head.borrow().as_ref().map(|head| head.scheduler.clone())
    }

    /// The state of the grid by its scheduler.
    ///
    /// # Panics
    /// Panics if the head is down.
    pub async fn status(&self) -> GridStatus {
        let scheduler = self.scheduler().expect("the head runs");
        let status = scheduler.send(GetStatus {});
        status.await.expect("the head runs")
    }

    /// Submits a job without waiting for its end. None if the head is down, or is killed before it
    /// answers.
    ///
    /// # Errors
    /// The error of the scheduler.
    pub async fn submit<J: Job>(
        &self,
        job: J,
        params: JobParams,
        need: JobRequirements,
    ) -> Option<Result<JobId, SubmitError>> {
        let (scheduler, client) = {
            let head = self.head.borrow();
            let head = head.as_ref()?;
            (head.scheduler.clone(), head.process.endpoint.net.contact())
        };
        let submit = Submit {
            name: J::NAME.to_owned(),
            body: encode_job(job).expect("a job serialises"),
            fingerprint: self.registry.fingerprint(),
            params,
            clusters: None,
            client,
            program: None,
            need: Some(need),
            principal: None,
            image: None,
        };
        let submitted = Instant::now();
        let answer = scheduler.send(Enqueue(submit)).await.ok()?;
        if let Ok(job) = &answer {
            self.client.begin(*job, submitted);
        }
        Some(answer)
    }

    /// The number of epochs of a job that were issued, by the files of the head. A job that
    /// continues after a crash of the head needs no other.
    pub fn epochs(&self, job: JobId) -> usize {
        let dir = records_dir(self.dir.path());
        let contents = read(&Disk, &dir, SETTINGS).expect("the head's records").unwrap_or_default();
        let entries = contents.iter().filter_map(|record| record.decode(SCHEMA).ok());
        entries
            .filter(|entry| matches!(entry, StoreRecord::Epoch { job: of, .. } if *of == job))
            .count()
    }

    /// The client's records of a job.
    pub fn record(&self, job: JobId) -> Option<FederationJob> {
        self.client.jobs.borrow().get(&job).cloned()
    }

    /// Waits until these jobs have ended. Returns those that have not after `limit`.
    ///
    /// # Panics
    /// Panics if the events violate a rule of the judge.
    pub async fn ended(&self, jobs: &[JobId], limit: Duration) -> Vec<JobId> {
        let open = || -> Vec<JobId> {
            jobs.iter().copied().filter(|job| self.client.wants(*job)).collect()
        };
        let all = async {
            loop {
                let news = self.client.ended.notified();
                if open().is_empty() {
                    return;
                }
                news.await;
            }
        };
        let _ = timeout(limit, all).await;
        let verdict = self.judge();
        assert!(verdict.faults.is_empty(), "{verdict}");
        open()
    }

    /// Judges the events of all heads and nodes so far.
    fn judge(&self) -> Verdict {
        let mut records = self.records.borrow_mut();
        if let Some(head) = &*self.head.borrow() {
            records.extend(head.process.endpoint.recorder.drain());
        }
        records.extend(self.client.records.take());
        records.extend(self.machines.drain());
        judge_records(&records, &Expectation::default())
    }
}

impl Drop for Federation {
    /// Stops all processes, as if the machine went off.
    fn drop(&mut self) {
        let head = self.head.take().map(|head| head.process);
        for process in
            head.into_iter().chain(std::mem::take(&mut *self.sites.borrow_mut()).into_values())
        {
            process.tasks.abort();
            process.endpoint.router.clear();
        }
    }
}
