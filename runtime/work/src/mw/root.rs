//! The master: it manages worker processes, sends them orders, and passes results to the driver.
//!
//! It sees the members of the job and names those that it does not need. It does not know the
//! negotiation of nodes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::assignment::{AssignmentAction, AssignmentEvent, AssignmentTable, WorkerOrder};
use super::message::{BlockOrder, BlockResult, BlockRun};
use super::order_queue::OrderQueue;
use super::process::{Executor, MasterWorkerProcess};
use super::program::{
    AssignmentSettings, Batch, BatchId, DispatchRule, Driver, Program, WorkerView,
};
use super::schedule::Forecast;
use crate::id::{NodeId, Peer};
use crate::spmd::group::{OutgoingMessage, ProcessGroup, ProcessState, ReceivedAnswer};
use crate::spmd::process_pool::{DisbandOnDrop, ProcessPool, group_ended};
use crate::spmd::{MESSAGE_MAX, ProcessHandle};
use crate::wire;
use crate::work::{Checkpoint, Context, Outcome, Stop};

/// The longest wait for workers before the program starts, or before the master works itself.
const START_WAIT: Duration = Duration::from_secs(5);
/// The interval at which the master checks the set of workers without a notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same interval before the program starts.
const START_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The contents of a checkpoint.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct MasterCheckpoint<P: Program> {
    state: P::State,
}

/// Runs a program to its end, in a master-worker job's [`run`](crate::work::Job::run).
///
/// # Errors
/// The program's own failure, including a worker's; or a halt.
pub fn run<P: Program>(program: P, cx: &Context) -> Result<Outcome, Stop> {
    start(&program, None, cx)
}

/// Runs a program to its end from the state of an earlier master, in a job's
/// [`resume`](crate::work::Job::resume).
///
/// # Errors
/// As for [`run`], or the state belongs to another program.
pub fn resume<P: Program>(program: P, saved: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
    let MasterCheckpoint { state } = saved.get::<MasterCheckpoint<P>>()?;
    start(&program, Some(state), cx)
}

fn start<P: Program>(program: &P, saved: Option<P::State>, cx: &Context) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("this pool runs no workers: run the job on a grid, or alone"));
    };
    let group = post.create_group(cx.waker());
    let _disband = DisbandOnDrop(post.clone(), group.clone());
    let now = Instant::now();
    let settings = program.settings();
    let mut master = Master {
        program,
        at: ProcessHandle { cx, post, group, process: 0 },
        pool: ProcessPool::new(),
        table: AssignmentTable::new(settings, now),
        settings,
        workers: BTreeMap::new(),
        next_worker: 1,
        batches: BTreeMap::new(),
        next_batch: 1,
        completed: VecDeque::new(),
        own: None,
        queue: OrderQueue::default(),
        executor: Executor::new(program),
        alone_since: now,
        checked_at: None,
        views: 0,
        checkpoint_requested: false,
    };
    let mut driver = program.driver(saved, cx)?;
    let outcome = master.run_driver(&mut driver);
    if outcome.is_ok() {
        master.collect_workers();
    }
    master.at.relay_reports();
    let counts = master.table.counts();
    tracing::debug!(?counts, "the master has ended");
    outcome
}

/// A current or former worker process.
struct WorkerProcess {
    peer: Peer,
    session: u64,
    /// The number of the worker in the assignment table. Each session of the process has its own.
    worker: u32,
    /// Whether the worker is to end, or may not compute.
    leaving: bool,
}

/// The encoded parts of a batch.
struct EncodedBatch {
    common: Bytes,
    works: Vec<Bytes>,
}

/// The operations of the master, for the program's [`Driver`].
///
/// Not `Send`: it belongs to the job's root on its thread.
pub struct Master<'c, P: Program> {
    program: &'c P,
    at: ProcessHandle<'c>,
    pool: ProcessPool<'c, MasterWorkerProcess<P>>,
    table: AssignmentTable,
    settings: AssignmentSettings,
    /// The worker processes, by process number.
    workers: BTreeMap<u32, WorkerProcess>,
    next_worker: u32,
    batches: BTreeMap<u64, EncodedBatch>,
    next_batch: u64,
    /// Completed tasks that the driver has not received.
    completed: VecDeque<(u64, u32, Vec<Bytes>)>,
    /// The number of the master's own thread as a worker, while there is no other.
    own: Option<u32>,
    queue: OrderQueue,
    executor: Executor<'c, P>,
    /// The time since when there is no worker.
    alone_since: Instant,
    /// The time of the last check of the workers, and the number of views by then.
    checked_at: Option<Instant>,
    views: u64,
    /// Whether the driver has requested a checkpoint.
    checkpoint_requested: bool,
}

// --- operations for drivers ---

impl<'c, P: Program> Master<'c, P> {
    /// The job's context, for reports, files and computations.
    ///
    /// The driver's computations are time of the root. It must collect all tasks that it spawns
    /// before it returns.
    pub fn cx(&self) -> &'c Context<'c> {
        self.at.cx
    }

    /// The node of the master.
    pub fn own_node(&self) -> &NodeId {
        &self.at.post.me().node
    }

    /// Submits a batch of tasks, and assigns them to the current workers.
    ///
    /// They complete in any order; see [`Driver::task_completed`].
    ///
    /// # Errors
    /// There are no tasks, or two have the same number; a task has no blocks or an invalid number
    /// of units; an input is too long for a message or does not serialise; or a halt.
    pub fn submit(&mut self, batch: Batch<P::Common, P::Work>) -> Result<BatchId, Stop> {
        let Batch { common, tasks } = batch;
        let number = self.next_batch;
        if tasks.is_empty() {
            return Err(Stop::fail("a batch without tasks was submitted: it would never be done"));
        }
        let mut ids = BTreeSet::new();
        for task in &tasks {
            let id = task.id;
            if !ids.insert(id) {
                return Err(Stop::fail(format_args!(
                    "two tasks of a batch have the number {id}: give each its own"
                )));
            }
            if task.blocks == 0 || !task.units.is_finite() || task.units < 0.0 {
                return Err(Stop::fail(format_args!(
                    "task {id} has {} blocks and {} units: give it at least one block, and a \
                     number of units that is not negative",
                    task.blocks, task.units
                )));
            }
        }
        let encode = |body: Result<Bytes, wire::WireError>, name: &str| {
            let body = body?;
            if body.len() > MESSAGE_MAX / 2 {
                return Err(Stop::fail(format_args!(
                    "{name} has {} bytes, more than the limit of {}",
                    body.len(),
                    MESSAGE_MAX / 2
                )));
            }
            Ok(body)
        };
        let common = encode(wire::encode_payload(&common), "the common part of a batch")?;
        let mut works = Vec::with_capacity(tasks.len());
        for task in &tasks {
            works.push(encode(wire::encode_payload(&task.work), "the input of a task")?);
        }
        self.next_batch += 1;
        self.batches.insert(number, EncodedBatch { common, works });
        let tasks =
            tasks.iter().map(|task| (task.id, task.units / f64::from(task.blocks), task.blocks));
        let tasks = tasks.collect();
        self.handle_event(AssignmentEvent::Submit { batch: number, tasks })?;
        Ok(BatchId(number))
    }

    /// Withdraws a batch: its unstarted tasks are dropped, and the driver receives none of its
    /// results.
    ///
    /// # Errors
    /// A halt.
    pub fn withdraw(&mut self, batch: BatchId) -> Result<(), Stop> {
        self.completed.retain(|(of, ..)| *of != batch.0);
        self.handle_event(AssignmentEvent::Withdraw { batch: batch.0 })
    }

    /// Requests a checkpoint, which is taken when the driver returns.
    ///
    /// It saves [`Driver::state`] if the last checkpoint is old enough for its size, or the master
    /// is to move. So it may be called after each iteration. A lost master is replaced by one that
    /// continues from the last checkpoint.
    pub fn checkpoint(&mut self) {
        self.checkpoint_requested = true;
    }

    /// The present workers of the job.
    pub fn workers(&self) -> Vec<WorkerView> {
        let by_number: BTreeMap<u32, &WorkerProcess> =
            self.workers.values().map(|known| (known.worker, known)).collect();
        let views = self.table.workers().map(|status| {
            let known = by_number.get(&status.worker);
            // The master's own thread is not a worker process.
            let cluster = known.map_or(&self.at.post.me().cluster, |known| &known.peer.cluster);
            WorkerView {
                id: status.worker,
                node: status.node.clone(),
                cluster: cluster.clone(),
                cold_s: status.cold_s,
                warm_s: status.warm_s,
                waiting: status.waiting,
                leaving: status.leaving,
            }
        });
        views.collect()
    }

    /// Predicts the schedule of a batch without submitting it. None while there is no worker.
    ///
    /// Its tasks have these units, cannot be split, are assigned by this rule, and run after the
    /// workers' current work.
    pub fn forecast(&self, units: &[f64], dealing: DispatchRule) -> Option<Forecast> {
        self.table.forecast(units, dealing, Instant::now())
    }

    /// The last plan and its reasons. A batch submitted before speeds are known is planned in two
    /// parts.
    pub fn last_plan(&self) -> Forecast {
        self.table.planned()
    }

    /// Sets whether workers may compute on the master's node; see [`AssignmentSettings::isolate`].
    pub fn isolate(&mut self, isolate: bool) {
        self.settings.isolate = isolate;
        self.checked_at = None;
    }

    /// Releases nodes that the program does not need. Their workers end after their current block.
    pub fn release(&mut self, nodes: Vec<NodeId>) {
        if !nodes.is_empty() {
            self.pool.release(&self.at, nodes);
            self.checked_at = None;
        }
    }
}

// --- execution ---

impl<'c, P: Program> Master<'c, P> {
    fn run_driver(&mut self, driver: &mut P::Driver) -> Result<Outcome, Stop> {
        self.wait_for_workers()?;
        driver.start(self)?;
        loop {
            if let Some(outcome) = driver.outcome() {
                return Ok(outcome);
            }
            if std::mem::take(&mut self.checkpoint_requested) {
                self.save(driver)?;
            }
            if let Some((batch, task, bodies)) = self.completed.pop_front() {
                let outputs: Result<Vec<P::Output>, _> =
                    bodies.iter().map(|body| wire::decode_payload(body)).collect();
                driver.task_completed(BatchId(batch), task, outputs?, self)?;
                continue;
            }
            if !self.table.is_busy() {
                return Err(Stop::fail(
                    "the driver has neither an outcome nor work in hand: submit a batch in \
                     Driver::begin or Driver::done, or return an outcome",
                ));
            }
            self.step()?;
        }
    }

    /// Processes received answers, or waits for some, or executes a block if there is no other
    /// worker.
    fn step(&mut self) -> Result<(), Stop> {
        self.update_workers()?;
        self.receive_answers()?;
        self.handle_event(AssignmentEvent::Tick)?;
        if !self.completed.is_empty() {
            return Ok(());
        }
        if self.own.is_some()
            && let Some(block) = self.queue.next()
        {
            let cx = self.at.cx;
            let answer = cx.as_work(|| self.executor.execute(&self.queue, block, None, cx))?;
            cx.check()?;
            return self.answer(self.own, answer, Instant::now());
        }
        let now = Instant::now();
        let alone_until = self.is_alone().then_some(self.alone_since + START_WAIT);
        let alone_until = alone_until.filter(|at| *at > now);
        let wakes = [Some(now + CHECK_INTERVAL), self.table.wake_at(), alone_until];
        let until = wakes.into_iter().flatten().min().map(|at| at.max(now));
        self.wait(until)
    }

    /// Waits for a change, or until this time.
    fn wait(&self, until: Option<Instant>) -> Result<(), Stop> {
        let (post, group) = (&self.at.post, &self.at.group);
        let news = || {
            post.views() != self.views
                || post.read_group(group, ProcessGroup::has_news).unwrap_or(true)
        };
        self.at.cx.serve_for(until, &news).map(drop)
    }

    fn group<R>(
        &self,
        action: impl FnOnce(&mut ProcessGroup) -> (R, Vec<OutgoingMessage>),
    ) -> Result<R, Stop> {
        self.at.post.group(&self.at.group, action).ok_or_else(group_ended)
    }

    // --- workers ---

    /// Waits until all spawned workers have registered, or for the longest wait.
    fn wait_for_workers(&mut self) -> Result<(), Stop> {
        let until = Instant::now() + START_WAIT;
        loop {
            self.update_workers()?;
            self.receive_answers()?;
            if self.workers.len() >= self.pool.capacity || Instant::now() >= until {
                return Ok(());
            }
            self.wait(Some(until.min(Instant::now() + START_CHECK_INTERVAL)))?;
            self.checked_at = None;
        }
    }

    /// Updates the pool and the assignment table, if anything has changed.
    fn update_workers(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        let views = self.at.post.views();
        let news = self.group(|group| (group.take_news(), Vec::new()))?;
        let due = self.checked_at.is_none_or(|checked_at| now >= checked_at + CHECK_INTERVAL);
        if !news && !due && views == self.views {
            return Ok(());
        }
        (self.checked_at, self.views) = (Some(now), views);
        let program = self.program;
        let call = |group, number| MasterWorkerProcess { group, number, program: program.clone() };
        self.pool.reconcile(&self.at, call)?;
        self.record_changes()?;
        self.update_own_worker(now)
    }

    /// Records workers that joined, are leaving, or left.
    fn record_changes(&mut self) -> Result<(), Stop> {
        let me = self.at.post.me().node.clone();
        let others =
            |member: &crate::spmd::post::JobMember| member.peer.node != me && !member.leaving;
        let isolated = self.settings.isolate && self.at.post.members().iter().any(others);
        let (present, states) = self.group(|group| {
            let present: BTreeMap<u32, (Peer, u64)> =
                group.takers().map(|(at, peer, session)| (at, (peer.clone(), session))).collect();
            let states =
                group.process_states().map(|(at, peer, state)| (at, (peer.cloned(), state)));
            ((present, states.collect::<BTreeMap<_, _>>()), Vec::new())
        })?;
        let mut events = Vec::new();
        self.workers.retain(|process, known| {
            let worker = known.worker;
            let is_same =
                |(peer, session): &(Peer, u64)| (peer, *session) == (&known.peer, known.session);
            if present.get(process).is_some_and(is_same) {
                let barred = isolated && known.peer.node == me;
                if barred != known.leaving {
                    known.leaving = barred;
                    events.push(if barred {
                        AssignmentEvent::Leaving { worker }
                    } else {
                        AssignmentEvent::Joined { worker, node: known.peer.node.clone() }
                    });
                }
                return true;
            }
            match states.get(process) {
                // It completes the block that it has started.
                Some((Some(peer), ProcessState::Dismissed)) if *peer == known.peer => {
                    if !std::mem::replace(&mut known.leaving, true) {
                        events.push(AssignmentEvent::Leaving { worker });
                    }
                    true
                }
                state => {
                    let over = matches!(
                        state,
                        None | Some((_, ProcessState::Ended | ProcessState::Dismissed))
                    );
                    events.push(AssignmentEvent::Left { worker, died: !over && !known.leaving });
                    false
                }
            }
        });
        for (process, (peer, session)) in present {
            if self.workers.contains_key(&process) {
                continue;
            }
            let worker = self.number();
            let leaving = isolated && peer.node == me;
            events.push(AssignmentEvent::Joined { worker, node: peer.node.clone() });
            if leaving {
                events.push(AssignmentEvent::Leaving { worker });
            }
            self.workers.insert(process, WorkerProcess { peer, session, worker, leaving });
        }
        events.into_iter().try_for_each(|event| self.handle_event(event))
    }

    fn number(&mut self) -> u32 {
        self.next_worker += 1;
        self.next_worker - 1
    }

    fn is_alone(&self) -> bool {
        !self.workers.values().any(|known| !known.leaving)
    }

    /// Starts or stops the master's own work.
    ///
    /// The master executes blocks itself, one at a time, if there is no worker and none has come
    /// within the longest wait. It stops as soon as there is one, for its blocks delay the handling
    /// of answers.
    fn update_own_worker(&mut self, now: Instant) -> Result<(), Stop> {
        if !self.is_alone() {
            self.alone_since = now;
            if let Some(worker) = self.own.take() {
                self.queue = OrderQueue::default();
                self.handle_event(AssignmentEvent::Left { worker, died: false })?;
            }
            return Ok(());
        }
        let waits = self.pool.capacity > 0 && now < self.alone_since + START_WAIT;
        if self.own.is_none() && !waits {
            let worker = self.number();
            self.own = Some(worker);
            let node = self.at.post.me().node.clone();
            self.handle_event(AssignmentEvent::Joined { worker, node })?;
        }
        Ok(())
    }

    // --- orders and answers ---

    /// Processes the answers of workers.
    fn receive_answers(&mut self) -> Result<(), Stop> {
        let received = self.group(|group| (group.take_answers(), Vec::new()))?;
        for ReceivedAnswer { process, peer, body, at } in received {
            let known = self.workers.get(&process).filter(|known| known.peer == peer);
            let worker = known.map(|known| known.worker);
            let answers: Vec<BlockResult> = match wire::decode_payload(&body) {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::warn!(%peer, %error, "a worker's answer does not decode");
                    continue;
                }
            };
            for answer in answers {
                self.answer(worker, answer, at)?;
            }
            let is_working = worker.is_some_and(|worker| self.table.is_working(worker));
            self.group(|group| (group.set_working(process, is_working), Vec::new()))?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        worker: Option<u32>,
        answer: BlockResult,
        came_at: Instant,
    ) -> Result<(), Stop> {
        let BlockResult { batch, task, block, seconds, output } = answer;
        self.handle_event(AssignmentEvent::Answer {
            worker,
            block_id: (batch, task, block),
            seconds,
            output,
            came_at,
        })
    }

    /// Passes an event to the assignment table, and executes the resulting actions.
    fn handle_event(&mut self, event: AssignmentEvent) -> Result<(), Stop> {
        for action in self.table.handle(event, Instant::now()) {
            match action {
                AssignmentAction::SendOrders { worker, orders } => {
                    self.send_orders(worker, orders)?
                }
                AssignmentAction::TaskDone { batch, task, outputs } => {
                    self.completed.push_back((batch, task, outputs));
                }
                AssignmentAction::BatchDone { batch } => drop(self.batches.remove(&batch)),
                AssignmentAction::PoisonTask { task, deaths } => {
                    return Err(Stop::fail(format_args!(
                        "{deaths} nodes died successively while executing task {task}, the likely \
                         cause: check the task, or change Settings::deaths"
                    )));
                }
            }
        }
        Ok(())
    }

    fn send_orders(&mut self, worker: u32, orders: Vec<WorkerOrder>) -> Result<(), Stop> {
        let orders: Vec<BlockOrder> =
            orders.into_iter().filter_map(|order| self.order(order)).collect();
        if self.own == Some(worker) {
            orders.into_iter().for_each(|order| self.queue.apply(order));
            return Ok(());
        }
        let known = self.workers.iter().find(|(_, known)| known.worker == worker);
        // The worker has left.
        let Some(process) = known.map(|(process, _)| *process) else { return Ok(()) };
        let is_working = self.table.is_working(worker);
        for body in pack_orders(orders)? {
            self.at.wait_for_room()?;
            self.group(|group| ((), group.order(process, body)))?;
        }
        self.group(|group| (group.set_working(process, is_working), Vec::new()))
    }

    fn order(&self, order: WorkerOrder) -> Option<BlockOrder> {
        Some(match order {
            WorkerOrder::Common { batch } => {
                BlockOrder::Common { batch, body: self.batches.get(&batch)?.common.clone() }
            }
            WorkerOrder::Run { batch, task, id, from, to, units } => {
                let work = self.batches.get(&batch)?.works.get(task as usize)?.clone();
                BlockOrder::Run(BlockRun { batch, task, id, from, to, units, work })
            }
            WorkerOrder::Revoke { batch, task, from, to } => {
                BlockOrder::Revoke { batch, task, from, to }
            }
            WorkerOrder::Forget { batch } => BlockOrder::Forget { batch },
        })
    }

    /// Ends all workers, and waits for those that do not execute a block in vain.
    fn collect_workers(&mut self) {
        let Self { pool, at, workers, table, .. } = self;
        let of = |process| workers.get(&process).map(|known| known.worker);
        pool.collect_all_except(at, |process| {
            of(process).is_some_and(|worker| table.owes_unwanted(worker))
        });
    }

    // --- checkpoints ---

    /// Saves the driver's state, if a checkpoint is due. If the master is to move, its workers end
    /// first.
    fn save(&mut self, driver: &P::Driver) -> Result<(), Stop> {
        let cx = self.at.cx;
        if cx.checkpoint_wanted() {
            self.collect_workers();
            self.checked_at = None;
        } else if !cx.checkpoint_due() {
            return Ok(());
        }
        cx.checkpoint_beside_processes(&MasterCheckpoint::<P> { state: driver.state() })
    }
}

/// Packs orders into as few messages as hold them.
fn pack_orders(orders: Vec<BlockOrder>) -> Result<Vec<Bytes>, Stop> {
    let size = |order: &BlockOrder| match order {
        BlockOrder::Common { body, .. } => body.len() + 64,
        BlockOrder::Run(run) => run.work.len() + 128,
        BlockOrder::Revoke { .. } | BlockOrder::Forget { .. } => 64,
    };
    let (mut packs, mut pack, mut bytes) = (Vec::new(), Vec::new(), 0);
    for order in orders {
        let more = size(&order);
        if !pack.is_empty() && bytes + more > MESSAGE_MAX / 2 {
            packs.push(wire::encode_payload(&std::mem::take(&mut pack))?);
            bytes = 0;
        }
        bytes += more;
        pack.push(order);
    }
    if !pack.is_empty() {
        packs.push(wire::encode_payload(&pack)?);
    }
    Ok(packs)
}
