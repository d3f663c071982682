//! Machines that exist as a name: a site's provider "starts" node processes on them as actors of this thread.
//!
//! A process here ends as a real one does: in order when told to, or all at once, and then its site sees it end, or, where
//! the whole machine went down, sees nothing. A process that is stopped stands still as a whole (`process`). Must not know jobs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_actors::endpoint::Endpoint;
use springtide_actors::hardware::Hardware;
use springtide_actors::job::{Shutdown, site_name};
use springtide_actors::node::{End, Node, NodeOptions};
use springtide_actors::provider::{
    Ended, LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubId, StubNews,
};
use springtide_actors::worker::{Worker, WorkerConfig};
use springtide_runtime::event::Recorder;
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{Contact, MemoryNet, Router};
use springtide_runtime::remote::Hub;
use springtide_runtime::work::{EngineWatch, Pace, Registry, Seam, VirtualSeam};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use crate::process::{Gate, run};

/// From the start of a process to its first word, as on a machine that has the program in memory.
const START: Duration = Duration::from_millis(20);
/// Lives are numbered by the microsecond of their start, as those of real processes; all grids begin at this one.
pub const EPOCH_US: u64 = 1_600_000_000_000_000;
/// How a process ends that is killed.
const KILLED: &str = "signal: 9 (SIGKILL)";

/// One machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Compute threads of its node.
    pub threads: u32,
    /// Seconds of work that each of them does in a second.
    pub speed: f64,
}

/// All machines of a grid, by the names of their nodes.
#[derive(Clone)]
pub struct Machines(Rc<Inner>);

struct Inner {
    network: MemoryNet,
    registry: Arc<Registry>,
    head: Contact,
    machines: BTreeMap<NodeId, (ClusterId, Machine, Pace)>,
    /// Machines that are off, with the processes that ended with them; what is started there waits.
    down: RefCell<BTreeMap<NodeId, Option<Rc<Life>>>>,
    up: Notify,
    running: RefCell<BTreeMap<NodeId, Rc<Life>>>,
    /// Where the sites are that are not at the head.
    sites: RefCell<BTreeMap<ClusterId, Contact>>,
    began: Instant,
    last_life: Cell<u64>,
    recorders: RefCell<Vec<Recorder>>,
    leave_within: Duration,
    stoppable: bool,
    /// Every engine that was started.
    engines: RefCell<(mpsc::UnboundedSender<EngineWatch>, mpsc::UnboundedReceiver<EngineWatch>)>,
    /// What came out of it.
    watches: RefCell<Vec<EngineWatch>>,
}

/// One process.
pub(crate) struct Life {
    incarnation: Incarnation,
    worker: Addr<Worker>,
    hub: Arc<Hub>,
    router: Arc<Router>,
    ends: mpsc::UnboundedSender<End>,
    /// How it ended.
    ended: watch::Sender<Option<String>>,
    /// Its serving task.
    task: RefCell<Option<actix_rt::task::JoinHandle<()>>>,
    /// Lets it stand still, where it can.
    gate: Option<Rc<Gate>>,
    /// Since when it stands.
    stands: Cell<Option<Instant>>,
}

impl Life {
    /// Its site sees it end.
    fn tell(&self, how: &str) {
        self.ended.send_replace(Some(how.to_owned()));
    }

    /// How it ended, when it has.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        // The sender is held by this life.
        let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_default()
    }
}

impl Machines {
    /// Machines of these nodes, whose processes register with the head's sites, have so long to leave a job in order, and can
    /// be [stopped](Self::stop) or not.
    pub fn new(
        network: MemoryNet,
        registry: Arc<Registry>,
        head: Contact,
        machines: BTreeMap<NodeId, (ClusterId, Machine)>,
        (leave_within, stoppable): (Duration, bool),
    ) -> Self {
        let paced = |(cluster, machine): (ClusterId, Machine)| {
            let pace = Pace::new(machine.speed);
            (cluster, machine, pace)
        };
        Self(Rc::new(Inner {
            network,
            registry,
            head,
            machines: machines.into_iter().map(|(node, it)| (node, paced(it))).collect(),
            down: RefCell::default(),
            up: Notify::new(),
            running: RefCell::default(),
            sites: RefCell::default(),
            began: Instant::now(),
            last_life: Cell::new(0),
            recorders: RefCell::default(),
            leave_within,
            stoppable,
            engines: RefCell::new(mpsc::unbounded_channel()),
            watches: RefCell::default(),
        }))
    }

    /// Nodes of this cluster that are started from now on register with a site in a process of its own, which is there.
    pub fn site_is_at(&self, cluster: &ClusterId, site: Contact) {
        self.0.sites.borrow_mut().insert(cluster.clone(), site);
    }

    /// What starts a node here: there are no files.
    pub fn request(node: NodeId, threads: u32) -> NodeRequest {
        NodeRequest {
            node,
            program: PathBuf::new(),
            config: PathBuf::new(),
            log: PathBuf::new(),
            env: Vec::new(),
            threads,
        }
    }

    /// How fast a machine computes from now on. False: there is no such machine.
    pub fn set_speed(&self, node: &NodeId, speed: f64) -> bool {
        let machine = self.0.machines.get(node);
        machine.map(|(.., pace)| pace.set(speed)).is_some()
    }

    /// As after `kill -9` of a node's process: its site sees that. False: there is none.
    pub fn kill(&self, node: &NodeId) -> bool {
        let ended = self.end(node);
        ended.map(|life| life.tell(KILLED)).is_some()
    }

    /// As `SIGSTOP`: a node's process neither computes nor reads nor writes, and its timers stand, until it
    /// [goes on](Self::go_on). False: there is none, it stands already, or it cannot be stopped.
    pub fn stop(&self, node: &NodeId) -> bool {
        let running = self.0.running.borrow();
        let Some(life) = running.get(node) else { return false };
        let Some(gate) = &life.gate else { return false };
        if life.stands.get().is_some() || !self.0.network.stop(node) {
            return false;
        }
        life.stands.set(Some(Instant::now()));
        gate.shut();
        true
    }

    /// It goes on, with all that came meanwhile. False: it does not stand.
    pub fn go_on(&self, node: &NodeId) -> bool {
        let running = self.0.running.borrow();
        running.get(node).is_some_and(|life| self.set_going(node, life))
    }

    fn set_going(&self, node: &NodeId, life: &Life) -> bool {
        let Some(since) = life.stands.take() else { return false };
        if let Some((.., pace)) = self.0.machines.get(node) {
            pace.stood(since.elapsed());
        }
        self.0.network.go_on(node);
        if let Some(gate) = &life.gate {
            gate.open();
        }
        true
    }

    /// Whether a node's process runs, and does not stand still.
    pub fn is_going(&self, node: &NodeId) -> bool {
        self.0.running.borrow().get(node).is_some_and(|life| life.stands.get().is_none())
    }

    /// Whether this life of a node runs.
    pub fn lives(&self, peer: &Peer) -> bool {
        let running = self.0.running.borrow();
        running.get(&peer.node).is_some_and(|life| life.incarnation == peer.incarnation)
    }

    /// Every engine that was started so far, of all lives of all nodes.
    pub fn engines(&self) -> Vec<EngineWatch> {
        let mut watches = self.0.watches.borrow_mut();
        while let Ok(watch) = self.0.engines.borrow_mut().1.try_recv() {
            watches.push(watch);
        }
        watches.clone()
    }

    /// Those of a job whose processes run.
    pub fn engines_of(&self, job: JobId) -> Vec<EngineWatch> {
        let mut engines = self.engines();
        engines.retain(|engine| engine.job() == job && self.lives(engine.me()));
        engines
    }

    /// The machine goes off: its site sees nothing until it is [on](Self::switch_on) again, and what is started there waits
    /// until then. False: it is off, or there is none.
    pub fn switch_off(&self, node: &NodeId) -> bool {
        let is_off = self.0.down.borrow().contains_key(node);
        if is_off || !self.0.machines.contains_key(node) {
            return false;
        }
        let ended = self.end(node);
        self.0.down.borrow_mut().insert(node.clone(), ended);
        true
    }

    /// The machine is on again, and the process that it had is seen to have ended. False: it was not off.
    pub fn switch_on(&self, node: &NodeId) -> bool {
        let Some(ended) = self.0.down.borrow_mut().remove(node) else { return false };
        if let Some(life) = ended {
            life.tell(KILLED);
        }
        self.0.up.notify_waiters();
        true
    }

    /// Nodes whose processes run.
    pub fn running(&self) -> Vec<NodeId> {
        self.0.running.borrow().keys().cloned().collect()
    }

    /// Seconds from the grid's start to then.
    pub fn seconds_until(&self, then: Instant) -> f64 {
        then.saturating_duration_since(self.0.began).as_secs_f64()
    }

    /// Nodes on which an actor is published under this name.
    pub fn hosting(&self, name: &str) -> Vec<NodeId> {
        let running = self.0.running.borrow();
        let hosts = running.iter().filter(|(_, life)| life.hub.publishes(name));
        hosts.map(|(node, _)| node.clone()).collect()
    }

    /// What was recorded since the last call, by all processes so far.
    pub fn drain(&self) -> Vec<springtide_runtime::event::Record> {
        self.0.recorders.borrow().iter().flat_map(Recorder::drain).collect()
    }

    /// The process is no more; its site has not seen it yet.
    fn end(&self, node: &NodeId) -> Option<Rc<Life>> {
        let life = self.0.running.borrow_mut().remove(node)?;
        self.0.network.kill(node);
        // What is left of it has to end.
        self.set_going(node, &life);
        if let Some(task) = life.task.borrow_mut().take() {
            task.abort();
        }
        // Nobody hears it any more, but what would compute on must end.
        life.worker.do_send(Shutdown { reason: "its process was killed".to_owned() });
        Some(life)
    }

    async fn start(&self, node: &NodeId) -> Option<Rc<Life>> {
        let (cluster, machine, pace) = self.0.machines.get(node)?;
        loop {
            let up = self.0.up.notified();
            if !self.0.down.borrow().contains_key(node) {
                break;
            }
            up.await;
        }
        tokio::time::sleep(START).await;
        let now_us = u64::try_from(self.0.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.last_life.set((EPOCH_US + now_us).max(self.0.last_life.get() + 1));
        let incarnation = Incarnation(self.0.last_life.get());
        let peer = Peer { node: node.clone(), incarnation, cluster: cluster.clone() };
        let endpoint = Endpoint::over(self.0.network.join(peer).ok()?);
        self.0.recorders.borrow_mut().push(endpoint.recorder.clone());
        let (hub, router) = (endpoint.hub.clone(), endpoint.router.clone());
        let pace = pace.clone();
        let seam = move || -> Arc<dyn Seam> { VirtualSeam::paced(pace.clone()) };
        let options = NodeOptions {
            head: self.0.head.clone(),
            site: site_name(cluster),
            site_at: self.0.sites.borrow().get(cluster).cloned(),
            worker: WorkerConfig {
                threads: machine.threads,
                seam: Arc::new(seam),
                fork_time: None,
                files: None,
                on_shutdown: None,
                on_engine: Some(self.0.engines.borrow().0.clone()),
            },
            hardware: Hardware {
                model: format!("simulated at {}", machine.speed),
                threads: machine.threads,
                mhz: (1000.0 * machine.speed) as u32,
                ..Hardware::default()
            },
            // Not the simulator's own: that is another in the next run, and not always as long.
            pid: 1,
            leave_within: self.0.leave_within,
            actors: None,
            registered: None,
            renewal: None,
            patient: false,
        };
        let own = self.0.stoppable.then(LocalSet::new);
        // All that the process spawns from here on is its own.
        let inside = own.as_ref().map(LocalSet::enter);
        let served = Node::start(endpoint, options, self.0.registry.clone());
        let (end, ends) = mpsc::unbounded_channel();
        let life = Rc::new(Life {
            incarnation,
            worker: served.worker(),
            hub,
            router,
            ends: end,
            ended: watch::channel(None).0,
            task: RefCell::default(),
            gate: own.is_some().then(Rc::default),
            stands: Cell::default(),
        });
        let (machines, name, of) = (self.clone(), node.clone(), Rc::downgrade(&life));
        let serving = async move {
            let how = match served.serve(ends).await {
                Ok(_) => "exit status: 0".to_owned(),
                Err(error) => format!("exit status: 1; {error}"),
            };
            let Some(life) = of.upgrade() else { return };
            let mut running = machines.0.running.borrow_mut();
            if running.get(&name).is_some_and(|now| Rc::ptr_eq(now, &life)) {
                running.remove(&name);
            }
            life.tell(&how);
        };
        *life.task.borrow_mut() = Some(actix_rt::spawn(serving));
        drop(inside);
        if let (Some(own), Some(gate)) = (own, &life.gate) {
            actix_rt::spawn(run(own, gate.clone()));
        }
        self.0.running.borrow_mut().insert(node.clone(), life.clone());
        Some(life)
    }
}

impl Drop for Life {
    /// Else its network and those who hear it would hold each other.
    fn drop(&mut self) {
        self.router.clear();
    }
}

impl Provider for Machines {
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move {
            let life = self.live(request).await?;
            let (machines, node) = (self.clone(), request.node.clone());
            Ok(Box::new(Simulated { machines, node, life, told: false }) as Box<dyn Stub>)
        })
    }

    fn starts_programs(&self) -> bool {
        false
    }
}

impl Machines {
    /// Begins a life of a node.
    pub(crate) async fn live(&self, request: &NodeRequest) -> Result<Rc<Life>, ProviderError> {
        let life = Machines::start(self, &request.node).await;
        life.ok_or_else(|| ProviderError::Start {
            program: request.program.clone(),
            source: std::io::Error::other(format!("there is no machine {}", request.node)),
        })
    }

    /// Ends a life of a node in order, or all at once after `grace`. Returns how it ended.
    pub(crate) async fn end_in(&self, node: &NodeId, life: &Rc<Life>, grace: Duration) -> String {
        let _ = life.ends.send(End::Now("its site ends it".to_owned()));
        match timeout(grace, life.ended()).await {
            Ok(how) => how,
            Err(_) => {
                self.kill_life(node, life);
                life.ended.borrow().clone().unwrap_or_default()
            }
        }
    }

    /// As [`Machines::kill`], if it is this life that runs.
    pub(crate) fn kill_life(&self, node: &NodeId, life: &Rc<Life>) {
        let runs = self.0.running.borrow().get(node).is_some_and(|now| Rc::ptr_eq(now, life));
        if runs {
            self.kill(node);
        }
    }
}

/// What a process leaves that writes nothing.
pub(crate) fn ended(how: String) -> Ended {
    Ended { how, last_lines: Vec::new() }
}

struct Simulated {
    machines: Machines,
    node: NodeId,
    life: Rc<Life>,
    /// That it is active was said.
    told: bool,
}

impl Stub for Simulated {
    fn id(&self) -> Option<StubId> {
        None
    }

    fn last_lines(&self) -> Vec<String> {
        Vec::new()
    }

    fn news(&mut self) -> LocalFuture<'_, StubNews> {
        let first = !std::mem::replace(&mut self.told, true);
        Box::pin(async move {
            match first {
                true => StubNews::Active,
                false => StubNews::Ended(ended(self.life.ended().await)),
            }
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            self.machines.end_in(&self.node, &self.life, grace).await;
            self.life = self.machines.live(request).await?;
            Ok(())
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, Ended> {
        Box::pin(async move { ended(self.machines.end_in(&self.node, &self.life, grace).await) })
    }

    fn kill(&mut self) {
        self.machines.kill_life(&self.node, &self.life);
    }

    fn leave(self: Box<Self>) {}
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.kill();
    }
}
