//! Machines that are only names: a site's provider starts node processes on them as actors of this
//! thread.
//!
//! A process ends as a real one does, in order or at once, and its site sees the end. If the
//! machine goes off, the site sees nothing. A stopped process stops as a whole (see `process`).
//! This module does not depend on jobs.

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
use springtide_actors::node::{EndOrder, NodeOptions, RunningNode};
use springtide_actors::provider::{
    LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubEnd, StubEvent, StubId,
};
use springtide_actors::worker::{Worker, WorkerConfig};
use springtide_runtime::event::Recorder;
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{Contact, MemoryNet, Router};
use springtide_runtime::remote::Hub;
use springtide_runtime::work::{EngineWatch, ProcessorSpeed, Registry, Seam, VirtualSeam};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use crate::process::{Gate, run};

/// Time from the start of a process to its first message, on a machine that has the program in
/// memory.
const START: Duration = Duration::from_millis(20);
/// The clock of all grids starts at this time. Incarnations are the microseconds of a process's
/// start, as those of real processes.
pub const EPOCH_US: u64 = 1_600_000_000_000_000;
/// The exit status of a killed process.
const KILLED: &str = "signal: 9 (SIGKILL)";

/// The hardware of a simulated machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Compute threads of the machine's node.
    pub threads: u32,
    /// Seconds of work that each thread does in a second.
    pub speed: f64,
}

/// All machines of a grid, by the names of their nodes.
#[derive(Clone)]
pub struct Machines(Rc<MachinesState>);

struct MachinesState {
    network: MemoryNet,
    registry: Arc<Registry>,
    head: Contact,
    machines: BTreeMap<NodeId, (ClusterId, Machine, ProcessorSpeed)>,
    /// Machines that are off, with the processes that ended with them. Processes that start there
    /// wait.
    down: RefCell<BTreeMap<NodeId, Option<Rc<SimulatedProcess>>>>,
    up: Notify,
    running: RefCell<BTreeMap<NodeId, Rc<SimulatedProcess>>>,
    /// The sites that do not run at the head.
    sites: RefCell<BTreeMap<ClusterId, Contact>>,
    began: Instant,
    last_incarnation: Cell<u64>,
    recorders: RefCell<Vec<Recorder>>,
    leave_within: Duration,
    stoppable: bool,
    /// A channel that gets every engine that starts.
    engines: RefCell<(mpsc::UnboundedSender<EngineWatch>, mpsc::UnboundedReceiver<EngineWatch>)>,
    /// The engines received from the channel so far.
    watches: RefCell<Vec<EngineWatch>>,
}

/// A running process of a node.
pub(crate) struct SimulatedProcess {
    incarnation: Incarnation,
    worker: Addr<Worker>,
    hub: Arc<Hub>,
    router: Arc<Router>,
    ends: mpsc::UnboundedSender<EndOrder>,
    /// The exit status, when the process has ended.
    ended: watch::Sender<Option<String>>,
    /// The task that serves the process.
    task: RefCell<Option<actix_rt::task::JoinHandle<()>>>,
    /// The gate that stops the process, if it can be stopped.
    gate: Option<Rc<Gate>>,
    /// The time of the stop, if the process is stopped.
    stopped_at: Cell<Option<Instant>>,
}

impl SimulatedProcess {
    /// Reports the end of the process to its site.
    fn report_end(&self, how: &str) {
        self.ended.send_replace(Some(how.to_owned()));
    }

    /// Completes with the exit status when the process has ended.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        // This process holds the sender.
        let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_default()
    }
}

impl Machines {
    /// Creates the machines of the given nodes; their processes register with the head's sites.
    ///
    /// `leave_within` limits an ordered exit from a job. `stoppable` makes processes
    /// [stoppable](Self::stop).
    pub fn new(
        network: MemoryNet,
        registry: Arc<Registry>,
        head: Contact,
        machines: BTreeMap<NodeId, (ClusterId, Machine)>,
        leave_within: Duration,
        stoppable: bool,
    ) -> Self {
        let paced = |(cluster, machine): (ClusterId, Machine)| {
            let pace = ProcessorSpeed::new(machine.speed);
            (cluster, machine, pace)
        };
        Self(Rc::new(MachinesState {
            network,
            registry,
            head,
            machines: machines.into_iter().map(|(node, it)| (node, paced(it))).collect(),
            down: RefCell::default(),
            up: Notify::new(),
            running: RefCell::default(),
            sites: RefCell::default(),
            began: Instant::now(),
            last_incarnation: Cell::new(0),
            recorders: RefCell::default(),
            leave_within,
            stoppable,
            engines: RefCell::new(mpsc::unbounded_channel()),
            watches: RefCell::default(),
        }))
    }

    /// Sets the site that nodes of this cluster register with from now on: one in a process of its
    /// own.
    pub fn site_is_at(&self, cluster: &ClusterId, site: Contact) {
        self.0.sites.borrow_mut().insert(cluster.clone(), site);
    }

    /// A request to start a node here. There are no files.
    pub fn request(node: NodeId, threads: u32) -> NodeRequest {
        NodeRequest {
            node,
            program: PathBuf::new(),
            config: PathBuf::new(),
            log: PathBuf::new(),
            env: Vec::new(),
            threads,
            host: None,
            shipped: None,
        }
    }

    /// Sets the speed of a machine. Returns false if there is no such machine.
    pub fn set_speed(&self, node: &NodeId, speed: f64) -> bool {
        let machine = self.0.machines.get(node);
        machine.map(|(.., pace)| pace.set(speed)).is_some()
    }

    /// Kills a node's process; its site sees the end. Returns false if there is no process.
    pub fn kill(&self, node: &NodeId) -> bool {
        let ended = self.remove_process(node);
        ended.map(|process| process.report_end(KILLED)).is_some()
    }

    /// Stops a node's process as by `SIGSTOP`, until it [resumes](Self::resume).
    ///
    /// It neither computes nor reads nor writes, and its timers stop. Returns false if there is
    /// none, if it is stopped already, or if it cannot be stopped.
    pub fn stop(&self, node: &NodeId) -> bool {
        let running = self.0.running.borrow();
        let Some(process) = running.get(node) else { return false };
        let Some(gate) = &process.gate else { return false };
        if process.stopped_at.get().is_some() || !self.0.network.stop(node) {
            return false;
        }
        process.stopped_at.set(Some(Instant::now()));
        gate.shut();
        true
    }

    /// Resumes a process, which then receives all that arrived meanwhile. Returns false if it is
    /// not stopped.
    pub fn resume(&self, node: &NodeId) -> bool {
        let running = self.0.running.borrow();
        running.get(node).is_some_and(|process| self.resume_process(node, process))
    }

    fn resume_process(&self, node: &NodeId, process: &SimulatedProcess) -> bool {
        let Some(since) = process.stopped_at.take() else { return false };
        if let Some((.., pace)) = self.0.machines.get(node) {
            pace.add_standstill(since.elapsed());
        }
        self.0.network.resume(node);
        if let Some(gate) = &process.gate {
            gate.open();
        }
        true
    }

    /// Whether a node's process runs and is not stopped.
    pub fn is_responsive(&self, node: &NodeId) -> bool {
        self.0.running.borrow().get(node).is_some_and(|process| process.stopped_at.get().is_none())
    }

    /// Whether this incarnation of a node runs.
    pub fn is_current(&self, peer: &Peer) -> bool {
        let running = self.0.running.borrow();
        running.get(&peer.node).is_some_and(|process| process.incarnation == peer.incarnation)
    }

    /// Every engine that was started so far, of all incarnations of all nodes.
    pub fn engines(&self) -> Vec<EngineWatch> {
        let mut watches = self.0.watches.borrow_mut();
        while let Ok(watch) = self.0.engines.borrow_mut().1.try_recv() {
            watches.push(watch);
        }
        watches.clone()
    }

    /// The engines of a job whose processes run.
    pub fn engines_of(&self, job: JobId) -> Vec<EngineWatch> {
        let mut engines = self.engines();
        engines.retain(|engine| engine.job() == job && self.is_current(engine.me()));
        engines
    }

    /// Switches a machine off; its site sees nothing until the machine is [on](Self::switch_on)
    /// again.
    ///
    /// Processes that start there wait until then. Returns false if the machine is off or unknown.
    pub fn switch_off(&self, node: &NodeId) -> bool {
        let is_off = self.0.down.borrow().contains_key(node);
        if is_off || !self.0.machines.contains_key(node) {
            return false;
        }
        let ended = self.remove_process(node);
        self.0.down.borrow_mut().insert(node.clone(), ended);
        true
    }

    /// Switches a machine on; its site then sees the end of the former process. Returns false if it
    /// was not off.
    pub fn switch_on(&self, node: &NodeId) -> bool {
        let Some(ended) = self.0.down.borrow_mut().remove(node) else { return false };
        if let Some(process) = ended {
            process.report_end(KILLED);
        }
        self.0.up.notify_waiters();
        true
    }

    /// The nodes whose processes run.
    pub fn running(&self) -> Vec<NodeId> {
        self.0.running.borrow().keys().cloned().collect()
    }

    /// Seconds from the grid's start to an instant.
    pub fn seconds_until(&self, then: Instant) -> f64 {
        then.saturating_duration_since(self.0.began).as_secs_f64()
    }

    /// The nodes on which an actor is published under this name.
    pub fn hosting(&self, name: &str) -> Vec<NodeId> {
        let running = self.0.running.borrow();
        let hosts = running.iter().filter(|(_, process)| process.hub.publishes(name));
        hosts.map(|(node, _)| node.clone()).collect()
    }

    /// Takes the events that all processes recorded since the last call.
    pub fn drain(&self) -> Vec<springtide_runtime::event::Record> {
        self.0.recorders.borrow().iter().flat_map(Recorder::drain).collect()
    }

    /// Removes a process. Its site has not seen the end yet.
    fn remove_process(&self, node: &NodeId) -> Option<Rc<SimulatedProcess>> {
        let process = self.0.running.borrow_mut().remove(node)?;
        self.0.network.kill(node);
        // Its tasks must run to end.
        self.resume_process(node, &process);
        if let Some(task) = process.task.borrow_mut().take() {
            task.abort();
        }
        // The process sends no more, but its compute threads must end.
        process.worker.do_send(Shutdown { reason: "its process was killed".to_owned() });
        Some(process)
    }

    async fn start(&self, node: &NodeId) -> Option<Rc<SimulatedProcess>> {
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
        self.0.last_incarnation.set((EPOCH_US + now_us).max(self.0.last_incarnation.get() + 1));
        let incarnation = Incarnation(self.0.last_incarnation.get());
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
                memory: None,
                on_shutdown: None,
                on_engine: Some(self.0.engines.borrow().0.clone()),
            },
            hardware: Hardware {
                model: format!("simulated at {}", machine.speed),
                threads: machine.threads,
                mhz: (1000.0 * machine.speed) as u32,
                ..Hardware::default()
            },
            // Not the simulator's own: it differs from run to run, also in length.
            pid: 1,
            leave_timeout: self.0.leave_within,
            actors: None,
            registered: None,
            renewal: None,
            waits_for_head: false,
        };
        let own = self.0.stoppable.then(LocalSet::new);
        // All tasks that the process spawns from here on are its own.
        let inside = own.as_ref().map(LocalSet::enter);
        let served = RunningNode::start(endpoint, options, self.0.registry.clone());
        let (end, ends) = mpsc::unbounded_channel();
        let process = Rc::new(SimulatedProcess {
            incarnation,
            worker: served.worker(),
            hub,
            router,
            ends: end,
            ended: watch::channel(None).0,
            task: RefCell::default(),
            gate: own.is_some().then(Rc::default),
            stopped_at: Cell::default(),
        });
        let (machines, name, of) = (self.clone(), node.clone(), Rc::downgrade(&process));
        let serving = async move {
            let how = match served.serve(ends).await {
                Ok(_) => "exit status: 0".to_owned(),
                Err(error) => format!("exit status: 1; {error}"),
            };
            let Some(process) = of.upgrade() else { return };
            let mut running = machines.0.running.borrow_mut();
            if running.get(&name).is_some_and(|now| Rc::ptr_eq(now, &process)) {
                running.remove(&name);
            }
            process.report_end(&how);
        };
        *process.task.borrow_mut() = Some(actix_rt::spawn(serving));
        drop(inside);
        if let (Some(own), Some(gate)) = (own, &process.gate) {
            actix_rt::spawn(run(own, gate.clone()));
        }
        self.0.running.borrow_mut().insert(node.clone(), process.clone());
        Some(process)
    }
}

impl Drop for SimulatedProcess {
    /// Breaks the cycle between the network and its handlers.
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
            let process = self.start_process(request).await?;
            let (machines, node) = (self.clone(), request.node.clone());
            Ok(Box::new(MachineStub { machines, node, process, reported_active: false })
                as Box<dyn Stub>)
        })
    }

    fn starts_programs(&self) -> bool {
        false
    }
}

impl Machines {
    /// Starts a process of a node.
    pub(crate) async fn start_process(
        &self,
        request: &NodeRequest,
    ) -> Result<Rc<SimulatedProcess>, ProviderError> {
        let process = Machines::start(self, &request.node).await;
        process.ok_or_else(|| ProviderError::Start {
            program: request.program.clone(),
            source: std::io::Error::other(format!("there is no machine {}", request.node)),
        })
    }

    /// Ends a process in order, or kills it after `grace`. Returns its exit status.
    pub(crate) async fn end_process(
        &self,
        node: &NodeId,
        process: &Rc<SimulatedProcess>,
        grace: Duration,
    ) -> String {
        let _ = process.ends.send(EndOrder::Now("its site ends it".to_owned()));
        match timeout(grace, process.ended()).await {
            Ok(how) => how,
            Err(_) => {
                self.kill_process(node, process);
                process.ended.borrow().clone().unwrap_or_default()
            }
        }
    }

    /// As [`Machines::kill`], if this process is the one that runs.
    pub(crate) fn kill_process(&self, node: &NodeId, process: &Rc<SimulatedProcess>) {
        let runs = self.0.running.borrow().get(node).is_some_and(|now| Rc::ptr_eq(now, process));
        if runs {
            self.kill(node);
        }
    }
}

/// The end of a process that writes no log.
pub(crate) fn ended(how: String) -> StubEnd {
    StubEnd { status: how, out_of_memory: false, last_lines: Vec::new() }
}

struct MachineStub {
    machines: Machines,
    node: NodeId,
    process: Rc<SimulatedProcess>,
    /// Whether `news` has reported the stub as active.
    reported_active: bool,
}

impl Stub for MachineStub {
    fn id(&self) -> Option<StubId> {
        None
    }

    fn last_lines(&self) -> Vec<String> {
        Vec::new()
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        let first = !std::mem::replace(&mut self.reported_active, true);
        Box::pin(async move {
            if first {
                StubEvent::Active
            } else {
                StubEvent::Ended(ended(self.process.ended().await))
            }
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            self.machines.end_process(&self.node, &self.process, grace).await;
            self.process = self.machines.start_process(request).await?;
            Ok(())
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd> {
        Box::pin(
            async move { ended(self.machines.end_process(&self.node, &self.process, grace).await) },
        )
    }

    fn kill(&mut self) {
        self.machines.kill_process(&self.node, &self.process);
    }

    fn leave(self: Box<Self>) {}
}

impl Drop for MachineStub {
    fn drop(&mut self) {
        self.kill();
    }
}
