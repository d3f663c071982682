//! A batch system in virtual time: it queues jobs for the processors of its cluster.
//!
//! Each job has size 1 and runs a node's process on the machine of that name. Jobs wait in the
//! order of their submission. They survive the process that submitted them, as those of a real
//! batch system do. This module depends on neither sites nor the purpose of a node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::provider::{
    Capacity, ExistingStub, LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubEnd,
    StubEvent, StubId,
};
use springtide_runtime::id::NodeId;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::sleep;

use crate::machines::{Machines, SimulatedProcess, ended};

/// Time from a command to its execution, and from there to its answer.
const COMMAND: Duration = Duration::from_millis(10);
/// A command without an answer fails after this time.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// A fault of a batch system's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFault {
    /// Commands return an error.
    Fails,
    /// Commands do not answer.
    Hangs,
}

/// A batch system; clones refer to the same one.
#[derive(Clone)]
pub struct BatchSystem(Rc<BatchState>);

struct BatchState {
    machines: Machines,
    processors: u32,
    others: Cell<u32>,
    delay: Cell<Duration>,
    fault: Cell<Option<BatchFault>>,
    jobs: RefCell<BTreeMap<u64, Rc<BatchJob>>>,
    last: Cell<u64>,
    /// The number of callers that have died so far.
    callers: Cell<u64>,
    changed: Notify,
    /// Work that continues after the caller's process has ended.
    outside: mpsc::UnboundedSender<LocalFuture<'static, ()>>,
    max_running: Cell<u32>,
    violations: RefCell<Vec<String>>,
}

/// A submitted job.
struct BatchJob {
    number: u64,
    node: NodeId,
    /// Whether its minimum waiting time is over.
    ready: Cell<bool>,
    state: watch::Sender<BatchJobState>,
    orders: mpsc::UnboundedSender<BatchOrder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BatchJobState {
    Waits,
    Runs,
    Ended(String),
}

enum BatchOrder {
    /// Replace the running process by one for this request.
    Run(Box<NodeRequest>, Duration, oneshot::Sender<()>),
    /// Stop the job in order, or kill it after this time.
    End(Duration),
    Kill,
}

impl BatchSystem {
    /// Creates a batch system with `processors` processors, one for each job.
    ///
    /// A job waits for at least `delay`, as if the system polled its queue. The batch system
    /// belongs to the executor that it is created on.
    pub fn new(machines: Machines, processors: u32, delay: Duration) -> Self {
        let (outside, mut work) = mpsc::unbounded_channel();
        actix_rt::spawn(async move {
            while let Some(work) = work.recv().await {
                actix_rt::spawn(work);
            }
        });
        Self(Rc::new(BatchState {
            machines,
            processors,
            others: Cell::new(0),
            delay: Cell::new(delay),
            fault: Cell::new(None),
            jobs: RefCell::default(),
            last: Cell::new(0),
            callers: Cell::new(0),
            changed: Notify::new(),
            outside,
            max_running: Cell::new(0),
            violations: RefCell::default(),
        }))
    }

    /// Sets the number of processors that local users occupy, as soon as they are free.
    pub fn set_others(&self, others: u32) {
        self.0.others.set(others);
        self.0.changed.notify_waiters();
    }

    /// Sets the minimum waiting time of later jobs.
    pub fn set_delay(&self, delay: Duration) {
        self.0.delay.set(delay);
    }

    /// Sets or clears the fault of later commands.
    pub fn set_fault(&self, fault: Option<BatchFault>) {
        self.0.fault.set(fault);
    }

    /// Marks the process that submitted jobs as dead; its commands complete and its jobs stay.
    pub fn mark_caller_dead(&self) {
        self.0.callers.set(self.0.callers.get() + 1);
    }

    /// The nodes whose jobs run, and those whose jobs wait.
    pub fn jobs(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let jobs = self.0.jobs.borrow();
        let (run, wait): (Vec<_>, Vec<_>) =
            jobs.values().partition(|job| *job.state.borrow() == BatchJobState::Runs);
        let nodes =
            |jobs: Vec<&Rc<BatchJob>>| jobs.into_iter().map(|job| job.node.clone()).collect();
        (nodes(run), nodes(wait))
    }

    /// The maximum number of jobs that ran at once.
    pub fn max_running(&self) -> u32 {
        self.0.max_running.get()
    }

    /// Requests that violate the protocol: two jobs for one node.
    pub fn violations(&self) -> Vec<String> {
        self.0.violations.borrow().clone()
    }

    fn running(&self) -> u32 {
        let jobs = self.0.jobs.borrow();
        let running =
            jobs.values().filter(|job| *job.state.borrow() == BatchJobState::Runs).count();
        u32::try_from(running).unwrap_or(u32::MAX)
    }

    /// Whether this job is the first that waits, and a processor is free.
    fn may_start(&self, number: u64) -> bool {
        let jobs = self.0.jobs.borrow();
        let waits =
            |job: &&Rc<BatchJob>| job.ready.get() && *job.state.borrow() == BatchJobState::Waits;
        let first = jobs.values().find(waits).is_some_and(|job| job.number == number);
        first && self.running() + self.0.others.get() < self.0.processors
    }

    /// Completes when the system has accepted a command.
    async fn command(&self, what: &str) -> Result<(), ProviderError> {
        match self.0.fault.get() {
            None => {
                sleep(COMMAND).await;
                Ok(())
            }
            Some(BatchFault::Fails) => {
                sleep(COMMAND).await;
                let (command, how) = (what.to_owned(), "exit status: 1".to_owned());
                Err(ProviderError::Failed { command, how, said: "no controller".to_owned() })
            }
            Some(BatchFault::Hangs) => {
                sleep(COMMAND_TIMEOUT).await;
                Err(ProviderError::Timeout { command: what.to_owned(), after: COMMAND_TIMEOUT })
            }
        }
    }

    /// Adds a job to the queue.
    fn submit(&self, request: NodeRequest) -> Rc<BatchJob> {
        let number = self.0.last.get() + 1;
        self.0.last.set(number);
        let (orders, ordered) = mpsc::unbounded_channel();
        let node = request.node.clone();
        let mut jobs = self.0.jobs.borrow_mut();
        if let Some(other) = jobs.values().find(|job| job.node == node) {
            let what = format!("job {number} is for {node}, and job {} is too", other.number);
            self.0.violations.borrow_mut().push(what);
        }
        let state = watch::channel(BatchJobState::Waits).0;
        let job = Rc::new(BatchJob { number, node, ready: Cell::new(false), state, orders });
        jobs.insert(number, job.clone());
        let (batch, served) = (self.clone(), job.clone());
        self.outside(async move {
            let how = batch.serve(&served, request, ordered).await;
            batch.0.jobs.borrow_mut().remove(&number);
            served.state.send_replace(BatchJobState::Ended(how));
            batch.0.changed.notify_waiters();
        });
        job
    }

    fn outside(&self, work: impl Future<Output = ()> + 'static) {
        // The receiver lives as long as this executor.
        let _ = self.0.outside.send(Box::pin(work));
    }

    /// Serves a job from its submission to its end, and returns the reason of the end.
    async fn serve(
        &self,
        job: &BatchJob,
        mut request: NodeRequest,
        mut orders: mpsc::UnboundedReceiver<BatchOrder>,
    ) -> String {
        let started = async {
            sleep(self.0.delay.get()).await;
            job.ready.set(true);
            loop {
                let changed = self.0.changed.notified();
                if self.may_start(job.number) {
                    return;
                }
                changed.await;
            }
        };
        let mut started = std::pin::pin!(started);
        loop {
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(BatchOrder::Run(next, _, done)) => {
                        request = *next;
                        let _ = done.send(());
                    }
                    _ => return "cancelled before it began".to_owned(),
                },
                () = &mut started => break,
            }
        }
        job.state.send_replace(BatchJobState::Runs);
        self.0.max_running.set(self.0.max_running.get().max(self.running()));
        self.0.changed.notify_waiters();
        let mut done = None;
        loop {
            let process = match self.0.machines.start_process(&request).await {
                Ok(process) => process,
                Err(error) => return error.to_string(),
            };
            if let Some(done) = done.take() {
                // The process that ordered it may be dead.
                let _: Result<(), ()> = oneshot::Sender::send(done, ());
            }
            match self.run(job, &process, &mut orders).await {
                Ok((next, recruited)) => (request, done) = (*next, Some(recruited)),
                Err(how) => return how,
            }
        }
    }

    /// Runs until the process ends. Returns the next process to run in the job, or the reason of
    /// the job's end.
    async fn run(
        &self,
        job: &BatchJob,
        process: &Rc<SimulatedProcess>,
        orders: &mut mpsc::UnboundedReceiver<BatchOrder>,
    ) -> Result<(Box<NodeRequest>, oneshot::Sender<()>), String> {
        let machines = &self.0.machines;
        loop {
            let order = tokio::select! {
                biased;
                how = process.ended() => return Err(how),
                order = orders.recv() => order,
            };
            match order {
                Some(BatchOrder::Run(next, grace, done)) => {
                    machines.end_process(&job.node, process, grace).await;
                    return Ok((next, done));
                }
                Some(BatchOrder::End(grace)) => {
                    return Err(machines.end_process(&job.node, process, grace).await);
                }
                Some(BatchOrder::Kill) => machines.kill_process(&job.node, process),
                // This job holds a sender itself.
                None => return Err(process.ended().await),
            }
        }
    }

    fn handle(&self, job: Rc<BatchJob>) -> Box<dyn Stub> {
        let (batch, caller) = (self.clone(), self.0.callers.get());
        Box::new(JobHandle { batch, job, caller, reported_active: false, abandoned: false })
    }
}

impl Provider for BatchSystem {
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        Box::pin(async move {
            self.command("batch-poll").await?;
            let capacity = Capacity { size: self.0.processors, others: self.0.others.get() };
            sleep(COMMAND).await;
            Ok(Some(capacity))
        })
    }

    fn list(&self) -> LocalFuture<'_, Result<Vec<ExistingStub>, ProviderError>> {
        Box::pin(async move {
            self.command("batch-list").await?;
            let jobs: Vec<Rc<BatchJob>> = self.0.jobs.borrow().values().cloned().collect();
            sleep(COMMAND).await;
            let listed = |job: &Rc<BatchJob>| ExistingStub {
                node: job.node.clone(),
                id: StubId(job.number.to_string()),
            };
            Ok(jobs.iter().map(listed).collect())
        })
    }

    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move {
            let (batch, request) = (self.clone(), request.clone());
            let (answer, answered) = oneshot::channel();
            // A caller that dies while the command runs does not stop it.
            self.outside(async move {
                let taken = batch.command("batch-submit").await.map(|()| batch.submit(request));
                sleep(COMMAND).await;
                let _ = answer.send(taken);
            });
            let gone = || ProviderError::Failed {
                command: "batch-submit".to_owned(),
                how: "killed".to_owned(),
                said: String::new(),
            };
            let job = answered.await.unwrap_or_else(|_| Err(gone()))?;
            Ok(self.handle(job))
        })
    }

    fn adopt<'a>(
        &'a self,
        listed: &'a ExistingStub,
        _: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move {
            self.command("batch-show").await?;
            let number = listed.id.0.parse().unwrap_or(0);
            let job = self.0.jobs.borrow().get(&number).cloned();
            let job = job.ok_or_else(|| ProviderError::Failed {
                command: format!("batch-show {number}"),
                how: "exit status: 1".to_owned(),
                said: "no such job".to_owned(),
            })?;
            Ok(self.handle(job))
        })
    }

    fn starts_programs(&self) -> bool {
        false
    }

    fn on_demand(&self) -> bool {
        true
    }
}

/// A caller's handle of a job.
struct JobHandle {
    batch: BatchSystem,
    job: Rc<BatchJob>,
    /// The number of the caller, to recognise handles of dead callers.
    caller: u64,
    reported_active: bool,
    abandoned: bool,
}

impl JobHandle {
    async fn end(&self) -> StubEnd {
        let mut state = self.job.state.subscribe();
        let end = state.wait_for(|state| matches!(state, BatchJobState::Ended(_))).await;
        match end.as_deref() {
            Ok(BatchJobState::Ended(how)) => ended(how.clone()),
            // The sender belongs to this job.
            _ => ended(String::new()),
        }
    }

    fn order(&self, order: BatchOrder) {
        // A job that has ended accepts no orders.
        let _ = self.job.orders.send(order);
    }
}

impl Stub for JobHandle {
    fn id(&self) -> Option<StubId> {
        let is_there = self.batch.0.jobs.borrow().contains_key(&self.job.number);
        is_there.then(|| StubId(self.job.number.to_string()))
    }

    fn last_lines(&self) -> Vec<String> {
        Vec::new()
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        Box::pin(async move {
            let mut state = self.job.state.subscribe();
            // The sender belongs to this job. The borrow ends before the next await.
            let state = state.wait_for(|state| *state != BatchJobState::Waits).await;
            let runs = state.is_ok_and(|state| *state == BatchJobState::Runs);
            if runs && !std::mem::replace(&mut self.reported_active, true) {
                return StubEvent::Active;
            }
            StubEvent::Ended(self.end().await)
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let (done, recruited) = oneshot::channel();
            self.order(BatchOrder::Run(Box::new(request.clone()), grace, done));
            recruited.await.map_err(|_| ProviderError::Failed {
                command: "batch-run".to_owned(),
                how: "exit status: 1".to_owned(),
                said: "the job has ended".to_owned(),
            })
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd> {
        self.order(BatchOrder::End(grace));
        Box::pin(self.end())
    }

    fn kill(&mut self) {
        self.order(BatchOrder::Kill);
    }

    fn leave(mut self: Box<Self>) {
        self.abandoned = true;
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        // A dead process releases nothing.
        if !self.abandoned && self.caller == self.batch.0.callers.get() {
            self.order(BatchOrder::End(Duration::ZERO));
        }
    }
}
