//! A batch system in virtual time: whoever wants a processor of its cluster asks for it, waits for it, and gives it back.
//!
//! Its jobs are of size 1, wait in the order in which they came, and live on when whoever asked for them has died, as those of
//! a real one do. Each runs a node's process on the machine of that name. Must not know sites, nor what a node is for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::provider::{
    Capacity, Ended, Listed, LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubId,
    StubNews,
};
use springtide_runtime::id::NodeId;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::sleep;

use crate::machines::{Life, Machines, ended};

/// What a command takes until it is carried out, and its answer takes as long.
const COMMAND: Duration = Duration::from_millis(10);
/// A command without an answer is given up after this time.
const HUNG: Duration = Duration::from_secs(5);

/// What is wrong with a batch system's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They fail.
    Fails,
    /// They do not answer.
    Hangs,
}

/// A batch system. Clones are the same one.
#[derive(Clone)]
pub struct Batch(Rc<Inner>);

struct Inner {
    machines: Machines,
    processors: u32,
    others: Cell<u32>,
    delay: Cell<Duration>,
    fault: Cell<Option<Fault>>,
    jobs: RefCell<BTreeMap<u64, Rc<Job>>>,
    last: Cell<u64>,
    /// Whoever asked before has died, so many times.
    callers: Cell<u64>,
    changed: Notify,
    /// What goes on whatever becomes of the caller's process.
    outside: mpsc::UnboundedSender<LocalFuture<'static, ()>>,
    most: Cell<u32>,
    odd: RefCell<Vec<String>>,
}

/// What was asked for.
struct Job {
    number: u64,
    node: NodeId,
    /// Its time to wait is over.
    ready: Cell<bool>,
    state: watch::Sender<State>,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Runs,
    Ended(String),
}

enum Order {
    /// Run this in place of what runs.
    Run(Box<NodeRequest>, Duration, oneshot::Sender<()>),
    /// End it in order, or after this time all at once.
    End(Duration),
    Kill,
}

impl Batch {
    /// With so many processors, each of which is a node's of these machines; a job waits for so long at least, as if the system looked
    /// at its queue from time to time. Belongs to the executor that it is made on.
    pub fn new(machines: Machines, processors: u32, delay: Duration) -> Self {
        let (outside, mut work) = mpsc::unbounded_channel();
        actix_rt::spawn(async move {
            while let Some(work) = work.recv().await {
                actix_rt::spawn(work);
            }
        });
        Self(Rc::new(Inner {
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
            most: Cell::new(0),
            odd: RefCell::default(),
        }))
    }

    /// So many processors are in local users' hands from now on, or as soon as they are free.
    pub fn set_others(&self, others: u32) {
        self.0.others.set(others);
        self.0.changed.notify_waiters();
    }

    /// How long a job waits at least, from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.0.delay.set(delay);
    }

    /// What is wrong with its commands from now on.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.0.fault.set(fault);
    }

    /// The process that asked has died: what it had in hand does not end with it.
    pub fn caller_died(&self) {
        self.0.callers.set(self.0.callers.get() + 1);
    }

    /// Nodes whose jobs run, and those whose jobs wait.
    pub fn jobs(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let jobs = self.0.jobs.borrow();
        let (run, wait): (Vec<_>, Vec<_>) =
            jobs.values().partition(|job| *job.state.borrow() == State::Runs);
        let nodes = |jobs: Vec<&Rc<Job>>| jobs.into_iter().map(|job| job.node.clone()).collect();
        (nodes(run), nodes(wait))
    }

    /// Most jobs that ran at once so far.
    pub fn most(&self) -> u32 {
        self.0.most.get()
    }

    /// What was asked of it that cannot be: two jobs for one node.
    pub fn odd(&self) -> Vec<String> {
        self.0.odd.borrow().clone()
    }

    fn running(&self) -> u32 {
        let jobs = self.0.jobs.borrow();
        let running = jobs.values().filter(|job| *job.state.borrow() == State::Runs).count();
        u32::try_from(running).unwrap_or(u32::MAX)
    }

    /// Whether this job is the first that waits, and a processor is free.
    fn may_start(&self, number: u64) -> bool {
        let jobs = self.0.jobs.borrow();
        let waits = |job: &&Rc<Job>| job.ready.get() && *job.state.borrow() == State::Waits;
        let first = jobs.values().find(waits).is_some_and(|job| job.number == number);
        first && self.running() + self.0.others.get() < self.0.processors
    }

    /// Completes when the system has taken a command in.
    async fn command(&self, what: &str) -> Result<(), ProviderError> {
        match self.0.fault.get() {
            None => {
                sleep(COMMAND).await;
                Ok(())
            }
            Some(Fault::Fails) => {
                sleep(COMMAND).await;
                let (command, how) = (what.to_owned(), "exit status: 1".to_owned());
                Err(ProviderError::Failed { command, how, said: "no controller".to_owned() })
            }
            Some(Fault::Hangs) => {
                sleep(HUNG).await;
                Err(ProviderError::Hung { command: what.to_owned(), after: HUNG })
            }
        }
    }

    /// Takes a job in.
    fn submit(&self, request: NodeRequest) -> Rc<Job> {
        let number = self.0.last.get() + 1;
        self.0.last.set(number);
        let (orders, ordered) = mpsc::unbounded_channel();
        let node = request.node.clone();
        let mut jobs = self.0.jobs.borrow_mut();
        if let Some(other) = jobs.values().find(|job| job.node == node) {
            let what = format!("job {number} is for {node}, and job {} is too", other.number);
            self.0.odd.borrow_mut().push(what);
        }
        let state = watch::channel(State::Waits).0;
        let job = Rc::new(Job { number, node, ready: Cell::new(false), state, orders });
        jobs.insert(number, job.clone());
        let (batch, served) = (self.clone(), job.clone());
        self.outside(async move {
            let how = batch.serve(&served, request, ordered).await;
            batch.0.jobs.borrow_mut().remove(&number);
            served.state.send_replace(State::Ended(how));
            batch.0.changed.notify_waiters();
        });
        job
    }

    fn outside(&self, work: impl Future<Output = ()> + 'static) {
        // Its reader lives as long as this executor.
        let _ = self.0.outside.send(Box::pin(work));
    }

    /// From its submission to its end. Returns how that came.
    async fn serve(
        &self,
        job: &Job,
        mut request: NodeRequest,
        mut orders: mpsc::UnboundedReceiver<Order>,
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
                    Some(Order::Run(next, _, done)) => {
                        request = *next;
                        let _ = done.send(());
                    }
                    _ => return "cancelled before it began".to_owned(),
                },
                () = &mut started => break,
            }
        }
        job.state.send_replace(State::Runs);
        self.0.most.set(self.0.most.get().max(self.running()));
        self.0.changed.notify_waiters();
        let mut done = None;
        loop {
            let life = match self.0.machines.live(&request).await {
                Ok(life) => life,
                Err(error) => return error.to_string(),
            };
            if let Some(done) = done.take() {
                // Whoever ordered it may have died.
                let _: Result<(), ()> = oneshot::Sender::send(done, ());
            }
            match self.run(job, &life, &mut orders).await {
                Ok((next, recruited)) => (request, done) = (*next, Some(recruited)),
                Err(how) => return how,
            }
        }
    }

    /// Until a process ends; another is to be run in its place, or its end is the job's.
    async fn run(
        &self,
        job: &Job,
        life: &Rc<Life>,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Result<(Box<NodeRequest>, oneshot::Sender<()>), String> {
        let machines = &self.0.machines;
        loop {
            let order = tokio::select! {
                biased;
                how = life.ended() => return Err(how),
                order = orders.recv() => order,
            };
            match order {
                Some(Order::Run(next, grace, done)) => {
                    machines.end_in(&job.node, life, grace).await;
                    return Ok((next, done));
                }
                Some(Order::End(grace)) => {
                    return Err(machines.end_in(&job.node, life, grace).await);
                }
                Some(Order::Kill) => machines.kill_life(&job.node, life),
                // This job holds a sender itself.
                None => return Err(life.ended().await),
            }
        }
    }

    fn held(&self, job: Rc<Job>) -> Box<dyn Stub> {
        let (batch, caller) = (self.clone(), self.0.callers.get());
        Box::new(Held { batch, job, caller, told: false, left: false })
    }
}

impl Provider for Batch {
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        Box::pin(async move {
            self.command("batch-poll").await?;
            let capacity = Capacity { size: self.0.processors, others: self.0.others.get() };
            sleep(COMMAND).await;
            Ok(Some(capacity))
        })
    }

    fn list(&self) -> LocalFuture<'_, Result<Vec<Listed>, ProviderError>> {
        Box::pin(async move {
            self.command("batch-list").await?;
            let jobs: Vec<Rc<Job>> = self.0.jobs.borrow().values().cloned().collect();
            sleep(COMMAND).await;
            let listed = |job: &Rc<Job>| Listed {
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
            // Who dies while the command runs has it done all the same.
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
            Ok(self.held(job))
        })
    }

    fn adopt<'a>(
        &'a self,
        listed: &'a Listed,
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
            Ok(self.held(job))
        })
    }

    fn starts_programs(&self) -> bool {
        false
    }

    fn on_demand(&self) -> bool {
        true
    }
}

/// A job in the hands of whoever asked for it.
struct Held {
    batch: Batch,
    job: Rc<Job>,
    /// Which of those who asked, one after the other.
    caller: u64,
    told: bool,
    left: bool,
}

impl Held {
    async fn end(&self) -> Ended {
        let mut state = self.job.state.subscribe();
        let end = state.wait_for(|state| matches!(state, State::Ended(_))).await;
        match end.as_deref() {
            Ok(State::Ended(how)) => ended(how.clone()),
            // The sender is this job's.
            _ => ended(String::new()),
        }
    }

    fn order(&self, order: Order) {
        // One that has ended takes no orders.
        let _ = self.job.orders.send(order);
    }
}

impl Stub for Held {
    fn id(&self) -> Option<StubId> {
        let is_there = self.batch.0.jobs.borrow().contains_key(&self.job.number);
        is_there.then(|| StubId(self.job.number.to_string()))
    }

    fn last_lines(&self) -> Vec<String> {
        Vec::new()
    }

    fn news(&mut self) -> LocalFuture<'_, StubNews> {
        Box::pin(async move {
            let mut state = self.job.state.subscribe();
            // The sender is this job's. What it lends is given back before anything else is waited for.
            let state = state.wait_for(|state| *state != State::Waits).await;
            let runs = state.is_ok_and(|state| *state == State::Runs);
            if runs && !std::mem::replace(&mut self.told, true) {
                return StubNews::Active;
            }
            StubNews::Ended(self.end().await)
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let (done, recruited) = oneshot::channel();
            self.order(Order::Run(Box::new(request.clone()), grace, done));
            recruited.await.map_err(|_| ProviderError::Failed {
                command: "batch-run".to_owned(),
                how: "exit status: 1".to_owned(),
                said: "the job has ended".to_owned(),
            })
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, Ended> {
        self.order(Order::End(grace));
        Box::pin(self.end())
    }

    fn kill(&mut self) {
        self.order(Order::Kill);
    }

    fn leave(mut self: Box<Self>) {
        self.left = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Who has died does nothing any more.
        if !self.left && self.caller == self.batch.0.callers.get() {
            self.order(Order::End(Duration::ZERO));
        }
    }
}
