//! The master's assignment table: open blocks, the workers that have them, the workers' speeds, and
//! the results.
//!
//! A state machine without I/O and without a clock: it takes events and the time, and returns
//! actions. Each block counts once, however often it is answered. Unassigned blocks are in the
//! pool, from which the schedule assigns them. This module does not know threads, messages or
//! programs.

mod plan;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tokio::time::Instant;

use self::worker::{AssignedWorker, Cost, FADE, QueuedBlock, WorkerRate, seconds};
use super::program::{AssignmentSettings, DispatchRule};
use super::schedule::{self, Forecast, ScheduledJob, WorkerLoad};
use crate::id::NodeId;

/// A block: its batch, the index of its task in the batch, and its own number.
pub(super) type BlockId = (u64, u32, u32);

/// An input of the table.
#[derive(Clone, Debug)]
pub(super) enum AssignmentEvent {
    /// A worker joined, or stays after all. Each has its own number.
    Joined { worker: u32, node: NodeId },
    /// The worker completes its current block and gets no more.
    Leaving { worker: u32 },
    /// The worker is gone; `died`: its node died.
    Left { worker: u32, died: bool },
    /// The result of a block, and the time of its arrival. Without a worker if that is gone.
    Answer {
        worker: Option<u32>,
        block_id: BlockId,
        /// The time that the block took.
        seconds: f64,
        output: Bytes,
        came_at: Instant,
    },
    /// New tasks: the number of each, the units of each of its blocks, and the number of blocks.
    Submit { batch: u64, tasks: Vec<(u32, f64, u32)> },
    /// The batch is withdrawn.
    Withdraw { batch: u64 },
    /// Time has passed; see [`AssignmentTable::wake_at`].
    Tick,
}

/// An output of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AssignmentAction {
    /// Send these orders to a worker, in this order.
    SendOrders { worker: u32, orders: Vec<WorkerOrder> },
    /// The task with this number is complete; `outputs` are in order of its blocks.
    TaskDone { batch: u64, task: u32, outputs: Vec<Bytes> },
    /// All tasks of the batch are complete, or it was withdrawn.
    BatchDone { batch: u64 },
    /// The task is the likely cause of the successive deaths of `deaths` nodes.
    PoisonTask { task: u32, deaths: u32 },
}

/// An order to a worker. `task` is the index of a task in its batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WorkerOrder {
    Common { batch: u64 },
    Run { batch: u64, task: u32, id: u32, from: u32, to: u32, units: f64 },
    Revoke { batch: u64, task: u32, from: u32, to: u32 },
    Forget { batch: u64 },
}

/// The table's view of a worker.
pub(super) struct WorkerStatus<'a> {
    pub(super) worker: u32,
    pub(super) node: &'a NodeId,
    pub(super) leaving: bool,
    /// Seconds per unit, where measured.
    pub(super) cold_s: Option<f64>,
    pub(super) warm_s: Option<f64>,
    /// Units of work that it has not answered.
    pub(super) waiting: f64,
}

/// Counters of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskCounts {
    /// Blocks with a result.
    pub(super) blocks: u64,
    /// Answers to blocks that already had a result, or whose batch has ended.
    pub(super) duplicates: u64,
    /// Blocks assigned a second time: their worker was late, or another was measured again.
    pub(super) copies: u64,
    /// Blocks taken back from a worker before it started them.
    pub(super) moved: u64,
    /// Blocks of workers that left or died.
    pub(super) lost: u64,
}

#[derive(Debug)]
struct TaskBatch {
    tasks: Vec<AssignedTask>,
    /// The number of incomplete tasks.
    open: usize,
}

#[derive(Debug)]
struct AssignedTask {
    id: u32,
    units: f64,
    blocks: Vec<BlockState>,
    /// The number of incomplete blocks.
    open: usize,
    deaths: u32,
}

#[derive(Debug, Default)]
struct BlockState {
    output: Option<Bytes>,
    /// The workers that have it.
    by: Vec<u32>,
}

/// The state of all batches and workers.
#[derive(Debug)]
pub(super) struct AssignmentTable {
    settings: AssignmentSettings,
    workers: BTreeMap<u32, AssignedWorker>,
    batches: BTreeMap<u64, TaskBatch>,
    /// Blocks that no worker has.
    pool: BTreeSet<BlockId>,
    /// The worker that last executed a block, by number of the task and of the block.
    held: BTreeMap<(u32, u32), u32>,
    counts: TaskCounts,
    planned: Forecast,
    /// Whether the next call considers a new plan.
    replans: bool,
    /// The time of the next plan for idle workers.
    idle_at: Instant,
    orders: BTreeMap<u32, Vec<WorkerOrder>>,
    actions: Vec<AssignmentAction>,
}

impl AssignmentTable {
    pub(super) fn new(settings: AssignmentSettings, now: Instant) -> Self {
        Self {
            settings,
            workers: BTreeMap::new(),
            batches: BTreeMap::new(),
            pool: BTreeSet::new(),
            held: BTreeMap::new(),
            counts: TaskCounts::default(),
            planned: Forecast::default(),
            replans: false,
            idle_at: now,
            orders: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the resulting actions.
    pub(super) fn handle(&mut self, event: AssignmentEvent, now: Instant) -> Vec<AssignmentAction> {
        match event {
            AssignmentEvent::Joined { worker, node } => self.join(worker, node, now),
            AssignmentEvent::Leaving { worker } => self.set_leaving(worker),
            AssignmentEvent::Left { worker, died } => self.leave(worker, died),
            AssignmentEvent::Answer { worker, block_id, seconds, output, came_at } => {
                self.answer(worker, block_id, (seconds, came_at), output, now);
            }
            AssignmentEvent::Submit { batch, tasks } => self.submit(batch, tasks),
            AssignmentEvent::Withdraw { batch } => self.end_batch(batch, now),
            AssignmentEvent::Tick => {}
        }
        self.plan(now);
        let orders = std::mem::take(&mut self.orders).into_iter();
        let mut actions: Vec<AssignmentAction> = orders
            .map(|(worker, orders)| AssignmentAction::SendOrders { worker, orders })
            .collect();
        actions.append(&mut self.actions);
        actions
    }

    /// The latest time of the next [`Event::Tick`].
    pub(super) fn wake_at(&self) -> Option<Instant> {
        if self.batches.is_empty() || self.settings.dealing != DispatchRule::Earliest {
            return None;
        }
        let late = self.workers.values().filter_map(|worker| worker.late_at).min();
        let idle = self.workers.values().any(|worker| worker.is_idle() && worker.known);
        let waits = self.workers.values().any(|worker| worker.queue.len() > 1);
        let idle = (idle && waits).then_some(self.idle_at);
        [late, idle].into_iter().flatten().min()
    }

    // --- queries ---

    pub(super) fn counts(&self) -> TaskCounts {
        self.counts
    }

    /// The last plan in short.
    pub(super) fn planned(&self) -> Forecast {
        self.planned
    }

    /// Whether any work is incomplete.
    pub(super) fn is_busy(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Whether a worker has unanswered work.
    pub(super) fn is_working(&self, worker: u32) -> bool {
        self.workers.get(&worker).is_some_and(|worker| !worker.queue.is_empty())
    }

    /// Whether a worker has not answered a block that is no longer needed, for any time.
    pub(super) fn owes_unwanted(&self, worker: u32) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.unwanted.is_some())
    }

    /// The workers, by number.
    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerStatus<'_>> {
        self.workers.iter().map(|(id, worker)| WorkerStatus {
            worker: *id,
            node: &worker.node,
            leaving: worker.leaving,
            cold_s: worker.cold.get(),
            warm_s: worker.warm.get(),
            waiting: worker.queue.iter().map(|item| item.units).sum(),
        })
    }

    /// Predicts the schedule of unsplittable tasks with these units, assigned by this rule.
    ///
    /// They run after the current work of the workers. None if there is no worker.
    pub(super) fn forecast(
        &self,
        units: &[f64],
        dealing: DispatchRule,
        now: Instant,
    ) -> Option<Forecast> {
        let costs = self.costs();
        let stays = self.workers.iter().filter(|(_, worker)| !worker.leaving);
        let any_known = self.workers.values().any(|worker| worker.known && !worker.leaving);
        let loads = stays.filter(|(_, worker)| worker.known || !any_known).map(|(id, worker)| {
            let cost = costs[id];
            let lag = if worker.is_idle() { worker.lag } else { 0.0 };
            WorkerLoad {
                free: worker.remaining(&cost, now) + lag,
                warm: cost.warm,
                cold: cost.cold,
            }
        });
        let loads: Vec<WorkerLoad> = loads.collect();
        let jobs =
            units.iter().map(|units| ScheduledJob { units: *units, blocks: vec![(0, None)] });
        let jobs: Vec<ScheduledJob> = jobs.collect();
        if loads.is_empty() {
            return None;
        }
        let plan = match dealing {
            DispatchRule::Earliest => schedule::earliest(&jobs, &loads),
            DispatchRule::Equal => schedule::equal(&jobs, &loads),
            DispatchRule::Queue => schedule::queue(&jobs, &loads),
        };
        Some(plan.summary)
    }

    // --- events ---

    fn join(&mut self, id: u32, node: NodeId, now: Instant) {
        self.replans = true;
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.leaving = false;
            return;
        }
        // All threads of one node have the same speed.
        let same = self.workers.values().find(|worker| worker.node == node && worker.known);
        let (cold, warm, lag, known) = match same {
            Some(worker) => (worker.cold, WorkerRate::default(), worker.lag, true),
            None => (WorkerRate::default(), WorkerRate::default(), 0.0, false),
        };
        let worker = AssignedWorker {
            node,
            leaving: false,
            queue: VecDeque::new(),
            idle_since: now,
            since: now,
            late_at: None,
            ordered: None,
            busy_until: None,
            unwanted: None,
            cold,
            warm,
            lag,
            known,
            measured_at: now,
            commons: BTreeSet::new(),
        };
        self.workers.insert(id, worker);
    }

    fn set_leaving(&mut self, id: u32) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.leaving = true;
        let back: Vec<QueuedBlock> = worker.queue.drain(worker.queue.len().min(1)..).collect();
        self.counts.lost += back.len() as u64;
        for item in back {
            self.release(id, item.block_id);
            self.order_revoke(id, item.block_id);
        }
    }

    fn leave(&mut self, id: u32, died: bool) {
        let Some(worker) = self.workers.remove(&id) else { return };
        self.replans = true;
        self.held.retain(|_, by| *by != id);
        self.counts.lost += worker.queue.len() as u64;
        if let Some(item) = worker.queue.front().filter(|_| died && self.settings.deaths > 0) {
            let (batch, task, _) = item.block_id;
            let most = self.settings.deaths;
            if let Some(task) = self.task_mut(batch, task) {
                task.deaths += 1;
                if task.deaths >= most {
                    let (task, deaths) = (task.id, task.deaths);
                    self.actions.push(AssignmentAction::PoisonTask { task, deaths });
                }
            }
        }
        for item in worker.queue {
            self.release(id, item.block_id);
        }
    }

    /// Removes a block from a worker.
    fn release(&mut self, id: u32, block_id: BlockId) {
        let Some(block) = self.block(block_id) else { return };
        block.by.retain(|by| *by != id);
        if block.by.is_empty() && block.output.is_none() {
            self.pool.insert(block_id);
            self.replans = true;
        }
    }

    /// A task, by its index in its batch.
    fn task(&self, batch: u64, task: u32) -> Option<&AssignedTask> {
        self.batches.get(&batch)?.tasks.get(task as usize)
    }

    fn task_mut(&mut self, batch: u64, task: u32) -> Option<&mut AssignedTask> {
        self.batches.get_mut(&batch)?.tasks.get_mut(task as usize)
    }

    fn block(&mut self, (batch, task, block): BlockId) -> Option<&mut BlockState> {
        self.task_mut(batch, task)?.blocks.get_mut(block as usize)
    }

    fn submit(&mut self, batch: u64, tasks: Vec<(u32, f64, u32)>) {
        if self.batches.contains_key(&batch) {
            return; // The batch is under way, and its end is reported once.
        }
        let tasks: Vec<AssignedTask> = tasks
            .into_iter()
            .map(|(id, units, blocks)| {
                let blocks: Vec<BlockState> =
                    (0..blocks.max(1)).map(|_| BlockState::default()).collect();
                let units = if units.is_finite() { units.max(0.0) } else { 0.0 };
                AssignedTask { id, units, open: blocks.len(), blocks, deaths: 0 }
            })
            .collect();
        for (at, task) in (0..).zip(&tasks) {
            self.pool.extend((0..).zip(&task.blocks).map(|(block, _)| (batch, at, block)));
        }
        let open = tasks.len();
        self.batches.insert(batch, TaskBatch { tasks, open });
        if open == 0 {
            self.batches.remove(&batch);
            self.actions.push(AssignmentAction::BatchDone { batch });
        }
        self.replans = true;
    }

    fn answer(
        &mut self,
        by: Option<u32>,
        block_id: BlockId,
        took: (f64, Instant),
        output: Bytes,
        now: Instant,
    ) {
        let (batch, task, block) = block_id;
        let of = self.task(batch, task).filter(|task| (block as usize) < task.blocks.len());
        let known = of.map(|task| (task.id, task.units));
        if let Some(worker) = by {
            self.measure(worker, block_id, took, known, now);
        }
        let new = self.block(block_id).filter(|block| block.output.is_none());
        let Some(new) = new else {
            self.counts.duplicates += 1;
            return;
        };
        new.output = Some(output);
        let holders = std::mem::take(&mut new.by);
        self.pool.remove(&block_id);
        self.counts.blocks += 1;
        for holder in holders.into_iter().filter(|holder| Some(*holder) != by) {
            self.order_revoke(holder, block_id);
            self.drop_items(holder, now, |item| item.block_id == block_id);
        }
        let Some((id, _)) = known else { return };
        if self.settings.affinity
            && let Some(worker) = by
        {
            self.held.insert((id, block), worker);
        }
        let Some(open) = self.batches.get_mut(&batch) else { return };
        let Some(task) = open.tasks.get_mut(task as usize) else { return };
        task.open -= 1;
        if task.open > 0 {
            return;
        }
        let outputs = task.blocks.iter_mut().filter_map(|block| block.output.take());
        let outputs: Vec<Bytes> = outputs.collect();
        // The outputs remain present, so that repeated answers count as duplicates.
        task.blocks.iter_mut().for_each(|block| block.output = Some(Bytes::new()));
        self.actions.push(AssignmentAction::TaskDone { batch, task: id, outputs });
        open.open -= 1;
        if open.open == 0 {
            self.end_batch(batch, now);
        }
    }

    /// Updates the speed and lag of a worker from its answer.
    fn measure(
        &mut self,
        id: u32,
        block_id: BlockId,
        (seconds, came_at): (f64, Instant),
        known: Option<(u32, f64)>,
        now: Instant,
    ) {
        let least = self.settings.bench_units;
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let at = worker.queue.iter().position(|item| item.block_id == block_id);
        let item = at.and_then(|at| worker.queue.remove(at));
        let item = item.or_else(|| worker.unwanted.take_if(|item| item.block_id == block_id));
        worker.busy_until = None;
        worker.idle_since = now;
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        if let Some(ordered) = worker.ordered.take() {
            // An answer that waits for a busy master is not late, for its worker continues
            // meanwhile.
            let took = came_at.saturating_duration_since(ordered).as_secs_f64();
            let lag = (took - seconds).max(0.0);
            worker.record_lag(lag);
        }
        let units = item.map(|item| item.units).or(known.map(|(_, units)| units));
        if let Some(units) = units.filter(|units| *units > 0.0) {
            worker.measured_at = now;
            match item {
                Some(item) if item.warm => worker.warm.add(seconds, units),
                _ => worker.cold.add(seconds, units),
            }
        }
        let measured = worker.cold.units + worker.warm.units;
        if !worker.known && measured > 0.0 && (measured >= least || worker.queue.is_empty()) {
            worker.known = true;
            self.replans = true;
        }
        self.start_first(id, now);
    }

    /// Records that a worker starts its first block.
    fn start_first(&mut self, id: u32, now: Instant) {
        let Some(cost) = self.cost(id) else { return };
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.start_first(&cost, now);
        }
    }

    /// Removes blocks from a worker. It completes the first all the same, if that is among them.
    fn drop_items(&mut self, id: u32, now: Instant, goes: impl Fn(&QueuedBlock) -> bool) {
        let Some(cost) = self.cost(id) else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let first = worker.queue.front().copied();
        let left = worker.first_remaining(&cost, now);
        worker.queue.retain(|item| !goes(item));
        if first.is_some_and(|first| goes(&first)) {
            worker.busy_until = Some(now + seconds(left));
            worker.idle_since = now + seconds(left);
            worker.unwanted = first;
            worker.ordered = None;
            self.start_first(id, now + seconds(left));
        }
    }

    fn end_batch(&mut self, batch: u64, now: Instant) {
        if self.batches.remove(&batch).is_none() {
            return;
        }
        let of = (batch, 0, 0)..(batch + 1, 0, 0);
        self.pool =
            std::mem::take(&mut self.pool).into_iter().filter(|at| !of.contains(at)).collect();
        let workers: Vec<u32> = self.workers.keys().copied().collect();
        for id in workers {
            self.drop_items(id, now, |item| item.block_id.0 == batch);
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            if worker.commons.remove(&batch) {
                self.orders.entry(id).or_default().push(WorkerOrder::Forget { batch });
            } else {
                // A slow responder that got nothing is tried again eventually.
                worker.lag *= FADE;
            }
            worker.cold.fade();
            worker.warm.fade();
        }
        self.actions.push(AssignmentAction::BatchDone { batch });
    }

    // --- speeds ---

    /// The expected cost of each worker. Unmeasured workers get the speed of their node, else the
    /// mean.
    fn costs(&self) -> BTreeMap<u32, Cost> {
        let known: Vec<(&AssignedWorker, f64)> =
            self.workers.values().filter_map(|worker| Some((worker, worker.cold.get()?))).collect();
        let mean = |values: &[f64]| {
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let colds: Vec<f64> = known.iter().map(|(_, cold)| *cold).collect();
        let warms = self.workers.values().filter_map(|worker| worker.warm.get());
        let mean_warm = mean(&warms.collect::<Vec<_>>());
        let guess = mean(&colds).or(mean_warm).unwrap_or(1.0);
        let ratios = known.iter().filter_map(|(worker, cold)| Some(worker.warm.get()? / cold));
        let ratio = mean(&ratios.collect::<Vec<_>>()).unwrap_or(1.0).min(1.0);
        let mut by_node: BTreeMap<&NodeId, f64> = BTreeMap::new();
        for (worker, cold) in &known {
            by_node.entry(&worker.node).or_insert(*cold);
        }
        let of = |worker: &AssignedWorker| {
            let cold = worker.cold.get().or_else(|| by_node.get(&worker.node).copied());
            // The worker has executed only tasks that it knew.
            let cold = cold.or_else(|| Some(worker.warm.get()? / ratio.max(1e-3)));
            let cold = cold.unwrap_or(guess);
            let warm = worker.warm.get().unwrap_or(cold * ratio);
            Cost { cold, warm }
        };
        self.workers.iter().map(|(id, worker)| (*id, of(worker))).collect()
    }

    /// The expected cost of one worker, without the others' where it is measured.
    fn cost(&self, id: u32) -> Option<Cost> {
        let worker = self.workers.get(&id)?;
        match (worker.cold.get(), worker.warm.get()) {
            (Some(cold), Some(warm)) => Some(Cost { cold, warm }),
            (Some(cold), None) => Some(Cost { cold, warm: cold }),
            _ => self.costs().get(&id).copied(),
        }
    }
}
