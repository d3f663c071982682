//! The master's book: which blocks of which tasks are to be done, who has them, how fast each worker is, and what came of them.
//!
//! A state machine without I/O and without a clock: events and the time in, actions out. Each block counts once, whoever answers it
//! and however often; what nobody has is in the pool, and is given out by the schedule. Must not know threads, messages or programs.

mod plan;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tokio::time::Instant;

use self::worker::{Cost, FADES, Item, Rate, Worker, seconds};
use super::program::{Dealing, Settings};
use super::schedule::{self, Forecast, Hand, Job};
use crate::id::NodeId;

/// A block: of which batch, its task's place in that, and its own number.
pub(super) type Place = (u64, u32, u32);

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A worker is there, or stays after all. Each has a number of its own.
    Here { worker: u32, node: NodeId },
    /// It does what it has begun, and no more.
    Leaving { worker: u32 },
    /// It is no more; `died`: with its node.
    Gone { worker: u32, died: bool },
    /// What came of a block, how long that took, and when it came here. No worker: one that is not known any more.
    Answer { worker: Option<u32>, place: Place, seconds: f64, output: Bytes, came_at: Instant },
    /// Tasks are to be done: their numbers, the units of each block, and how many blocks each has.
    Submit { batch: u64, tasks: Vec<(u32, f64, u32)> },
    /// Nothing of a batch is wanted any more.
    Withdraw { batch: u64 },
    /// Time has passed: see [`Book::wake_at`].
    Tick,
}

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// A worker is told this, in this order.
    Tell { worker: u32, what: Vec<Told> },
    /// A task of this number is done: what came of its blocks, in their order.
    Whole { batch: u64, task: u32, outputs: Vec<Bytes> },
    /// All tasks of a batch are done, or it was withdrawn.
    Over { batch: u64 },
    /// A task is the likely cause of the death of so many nodes.
    Deadly { task: u32, deaths: u32 },
}

/// What a worker is told. The tasks are named by their places in the batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    Common { batch: u64 },
    Run { batch: u64, task: u32, id: u32, from: u32, to: u32, units: f64 },
    Revoke { batch: u64, task: u32, from: u32, to: u32 },
    Forget { batch: u64 },
}

/// A worker as the book has it.
pub(super) struct Seen<'a> {
    pub(super) worker: u32,
    pub(super) node: &'a NodeId,
    pub(super) leaving: bool,
    /// Seconds a unit, where that was measured.
    pub(super) cold_s: Option<f64>,
    pub(super) warm_s: Option<f64>,
    /// Units that it has and has not answered.
    pub(super) waiting: f64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Blocks that counted.
    pub(super) blocks: u64,
    /// Answers to blocks that had one, or that nobody wants any more.
    pub(super) duplicates: u64,
    /// Blocks that were given out once more because somebody was late with them.
    pub(super) copies: u64,
    /// Blocks that were taken back from one who had not begun them.
    pub(super) moved: u64,
    /// Blocks that a worker had which was lost or left.
    pub(super) lost: u64,
}

#[derive(Debug)]
struct Batch {
    tasks: Vec<Task>,
    /// How many are not done.
    open: usize,
}

#[derive(Debug)]
struct Task {
    id: u32,
    units: f64,
    blocks: Vec<Block>,
    /// How many are not done.
    open: usize,
    deaths: u32,
}

#[derive(Debug, Default)]
struct Block {
    output: Option<Bytes>,
    /// Who has it.
    by: Vec<u32>,
}

/// The book.
#[derive(Debug)]
pub(super) struct Book {
    settings: Settings,
    workers: BTreeMap<u32, Worker>,
    batches: BTreeMap<u64, Batch>,
    /// Blocks that nobody has.
    pool: BTreeSet<Place>,
    /// By task's number and block: who did it last.
    held: BTreeMap<(u32, u32), u32>,
    counts: Counts,
    planned: Forecast,
    /// It is to be seen whether another plan is better.
    replans: bool,
    /// Who has nothing to do is thought of again then.
    idle_at: Instant,
    told: BTreeMap<u32, Vec<Told>>,
    actions: Vec<Action>,
}

impl Book {
    pub(super) fn new(settings: Settings, now: Instant) -> Self {
        Self {
            settings,
            workers: BTreeMap::new(),
            batches: BTreeMap::new(),
            pool: BTreeSet::new(),
            held: BTreeMap::new(),
            counts: Counts::default(),
            planned: Forecast::default(),
            replans: false,
            idle_at: now,
            told: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// Takes an event in; what follows from it.
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Here { worker, node } => self.here(worker, node, now),
            Event::Leaving { worker } => self.leaving(worker),
            Event::Gone { worker, died } => self.gone(worker, died),
            Event::Answer { worker, place, seconds, output, came_at } => {
                self.answer(worker, place, (seconds, came_at), output, now);
            }
            Event::Submit { batch, tasks } => self.submit(batch, tasks),
            Event::Withdraw { batch } => self.over(batch, now),
            Event::Tick => {}
        }
        self.plan(now);
        let told = std::mem::take(&mut self.told).into_iter();
        let mut actions: Vec<Action> =
            told.map(|(worker, what)| Action::Tell { worker, what }).collect();
        actions.append(&mut self.actions);
        actions
    }

    /// When to come by at the latest.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        if self.batches.is_empty() || self.settings.dealing != Dealing::Earliest {
            return None;
        }
        let late = self.workers.values().filter_map(|worker| worker.late_at).min();
        let idle = self.workers.values().any(|worker| worker.is_idle() && worker.known);
        let waits = self.workers.values().any(|worker| worker.queue.len() > 1);
        let idle = (idle && waits).then_some(self.idle_at);
        [late, idle].into_iter().flatten().min()
    }

    // --- what is looked at ---

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The last plan.
    pub(super) fn planned(&self) -> Forecast {
        self.planned
    }

    /// Whether any work is not done.
    pub(super) fn is_busy(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Whether a worker has work that it has not answered.
    pub(super) fn works(&self, worker: u32) -> bool {
        self.workers.get(&worker).is_some_and(|worker| !worker.queue.is_empty())
    }

    /// The workers, by number.
    pub(super) fn workers(&self) -> impl Iterator<Item = Seen<'_>> {
        self.workers.iter().map(|(id, worker)| Seen {
            worker: *id,
            node: &worker.node,
            leaving: worker.leaving,
            cold_s: worker.cold.get(),
            warm_s: worker.warm.get(),
            waiting: worker.queue.iter().map(|item| item.units).sum(),
        })
    }

    /// How long tasks of so many units, which cannot be split, would take those that are there, after what they have, dealt out by this
    /// rule. None, if nobody is there.
    pub(super) fn forecast(
        &self,
        units: &[f64],
        dealing: Dealing,
        now: Instant,
    ) -> Option<Forecast> {
        let costs = self.costs();
        let stays = self.workers.iter().filter(|(_, worker)| !worker.leaving);
        let any_known = self.workers.values().any(|worker| worker.known && !worker.leaving);
        let hands = stays.filter(|(_, worker)| worker.known || !any_known).map(|(id, worker)| {
            let cost = costs[id];
            let lag = if worker.is_idle() { worker.lag } else { 0.0 };
            Hand { free: worker.left(&cost, now) + lag, warm: cost.warm, cold: cost.cold }
        });
        let hands: Vec<Hand> = hands.collect();
        let jobs = units.iter().map(|units| Job { units: *units, blocks: vec![(0, None)] });
        let jobs: Vec<Job> = jobs.collect();
        if hands.is_empty() {
            return None;
        }
        let plan = match dealing {
            Dealing::Earliest => schedule::earliest(&jobs, &hands),
            Dealing::Equal => schedule::equal(&jobs, &hands),
            Dealing::Queue => schedule::queue(&jobs, &hands),
        };
        Some(plan.why)
    }

    // --- events ---

    fn here(&mut self, id: u32, node: NodeId, now: Instant) {
        self.replans = true;
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.leaving = false;
            return;
        }
        // Threads of one node are equally fast.
        let same = self.workers.values().find(|worker| worker.node == node && worker.known);
        let (cold, warm, lag, known) = match same {
            Some(worker) => (worker.cold, Rate::default(), worker.lag, true),
            None => (Rate::default(), Rate::default(), 0.0, false),
        };
        let worker = Worker {
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
            commons: BTreeSet::new(),
        };
        self.workers.insert(id, worker);
    }

    fn leaving(&mut self, id: u32) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.leaving = true;
        let back: Vec<Item> = worker.queue.drain(worker.queue.len().min(1)..).collect();
        self.counts.lost += back.len() as u64;
        for item in back {
            self.release(id, item.place);
            self.tell_revoke(id, item.place);
        }
    }

    fn gone(&mut self, id: u32, died: bool) {
        let Some(worker) = self.workers.remove(&id) else { return };
        self.replans = true;
        self.held.retain(|_, by| *by != id);
        self.counts.lost += worker.queue.len() as u64;
        if let Some(item) = worker.queue.front().filter(|_| died && self.settings.deaths > 0) {
            let (batch, task, _) = item.place;
            let most = self.settings.deaths;
            if let Some(task) = self.task_mut(batch, task) {
                task.deaths += 1;
                if task.deaths >= most {
                    let (task, deaths) = (task.id, task.deaths);
                    self.actions.push(Action::Deadly { task, deaths });
                }
            }
        }
        for item in worker.queue {
            self.release(id, item.place);
        }
    }

    /// A worker has a block no more.
    fn release(&mut self, id: u32, place: Place) {
        let Some(block) = self.block(place) else { return };
        block.by.retain(|by| *by != id);
        if block.by.is_empty() && block.output.is_none() {
            self.pool.insert(place);
            self.replans = true;
        }
    }

    /// A task, by its place in its batch.
    fn task(&self, batch: u64, task: u32) -> Option<&Task> {
        self.batches.get(&batch)?.tasks.get(task as usize)
    }

    fn task_mut(&mut self, batch: u64, task: u32) -> Option<&mut Task> {
        self.batches.get_mut(&batch)?.tasks.get_mut(task as usize)
    }

    fn block(&mut self, (batch, task, block): Place) -> Option<&mut Block> {
        self.task_mut(batch, task)?.blocks.get_mut(block as usize)
    }

    fn submit(&mut self, batch: u64, tasks: Vec<(u32, f64, u32)>) {
        if self.batches.contains_key(&batch) {
            return; // it is under way, and its end is told once
        }
        let tasks: Vec<Task> = tasks
            .into_iter()
            .map(|(id, units, blocks)| {
                let blocks: Vec<Block> = (0..blocks.max(1)).map(|_| Block::default()).collect();
                let units = if units.is_finite() { units.max(0.0) } else { 0.0 };
                Task { id, units, open: blocks.len(), blocks, deaths: 0 }
            })
            .collect();
        for (at, task) in (0..).zip(&tasks) {
            self.pool.extend((0..).zip(&task.blocks).map(|(block, _)| (batch, at, block)));
        }
        let open = tasks.len();
        self.batches.insert(batch, Batch { tasks, open });
        if open == 0 {
            self.batches.remove(&batch);
            self.actions.push(Action::Over { batch });
        }
        self.replans = true;
    }

    fn answer(
        &mut self,
        by: Option<u32>,
        place: Place,
        took: (f64, Instant),
        output: Bytes,
        now: Instant,
    ) {
        let (batch, task, block) = place;
        let of = self.task(batch, task).filter(|task| (block as usize) < task.blocks.len());
        let known = of.map(|task| (task.id, task.units));
        if let Some(worker) = by {
            self.measure(worker, place, took, known, now);
        }
        let new = self.block(place).filter(|block| block.output.is_none());
        let Some(new) = new else {
            self.counts.duplicates += 1;
            return;
        };
        new.output = Some(output);
        let holders = std::mem::take(&mut new.by);
        self.pool.remove(&place);
        self.counts.blocks += 1;
        for holder in holders.into_iter().filter(|holder| Some(*holder) != by) {
            self.tell_revoke(holder, place);
            self.drop_items(holder, now, |item| item.place == place);
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
        // So that what comes again is known to be here.
        task.blocks.iter_mut().for_each(|block| block.output = Some(Bytes::new()));
        self.actions.push(Action::Whole { batch, task: id, outputs });
        open.open -= 1;
        if open.open == 0 {
            self.over(batch, now);
        }
    }

    /// A worker has answered: it is so fast, and at its next block.
    fn measure(
        &mut self,
        id: u32,
        place: Place,
        (seconds, came_at): (f64, Instant),
        known: Option<(u32, f64)>,
        now: Instant,
    ) {
        let least = self.settings.bench_units;
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let at = worker.queue.iter().position(|item| item.place == place);
        let item = at.and_then(|at| worker.queue.remove(at));
        let item = item.or_else(|| worker.unwanted.take_if(|item| item.place == place));
        worker.busy_until = None;
        worker.idle_since = now;
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        if let Some(ordered) = worker.ordered.take() {
            // What waits here for a master that computes or rests is not late: its worker goes on meanwhile.
            let took = came_at.saturating_duration_since(ordered).as_secs_f64();
            let lag = (took - seconds).max(0.0);
            worker.answers_after(lag);
        }
        let units = item.map(|item| item.units).or(known.map(|(_, units)| units));
        if let Some(units) = units.filter(|units| *units > 0.0) {
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
        self.begins(id, now);
    }

    /// A worker is taken to begin the first block that it has now.
    fn begins(&mut self, id: u32, now: Instant) {
        let Some(cost) = self.cost(id) else { return };
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.begins(&cost, now);
        }
    }

    /// A worker does not have these any more; the first, if it is among them, it does to its end all the same.
    fn drop_items(&mut self, id: u32, now: Instant, goes: impl Fn(&Item) -> bool) {
        let Some(cost) = self.cost(id) else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let first = worker.queue.front().copied();
        let left = worker.first_left(&cost, now);
        worker.queue.retain(|item| !goes(item));
        if first.is_some_and(|first| goes(&first)) {
            worker.busy_until = Some(now + seconds(left));
            worker.idle_since = now + seconds(left);
            worker.unwanted = first;
            worker.ordered = None;
            self.begins(id, now + seconds(left));
        }
    }

    fn over(&mut self, batch: u64, now: Instant) {
        if self.batches.remove(&batch).is_none() {
            return;
        }
        let of = (batch, 0, 0)..(batch + 1, 0, 0);
        self.pool =
            std::mem::take(&mut self.pool).into_iter().filter(|at| !of.contains(at)).collect();
        let workers: Vec<u32> = self.workers.keys().copied().collect();
        for id in workers {
            self.drop_items(id, now, |item| item.place.0 == batch);
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            if worker.commons.remove(&batch) {
                self.told.entry(id).or_default().push(Told::Forget { batch });
            } else {
                // Who got nothing, for it was slow to answer, is tried again some time.
                worker.lag *= FADES;
            }
            worker.cold.fade();
            worker.warm.fade();
        }
        self.actions.push(Action::Over { batch });
    }

    // --- speeds ---

    /// What is expected of each worker. Of one that was not measured: as others of its node, else as the mean of all that were.
    fn costs(&self) -> BTreeMap<u32, Cost> {
        let known: Vec<(&Worker, f64)> =
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
        let of = |worker: &Worker| {
            let cold = worker.cold.get().or_else(|| by_node.get(&worker.node).copied());
            // One that has done nothing but what it knew.
            let cold = cold.or_else(|| Some(worker.warm.get()? / ratio.max(1e-3)));
            let cold = cold.unwrap_or(guess);
            let warm = worker.warm.get().unwrap_or(cold * ratio);
            Cost { cold, warm }
        };
        self.workers.iter().map(|(id, worker)| (*id, of(worker))).collect()
    }

    /// Of one worker, without a look at all others where it was measured.
    fn cost(&self, id: u32) -> Option<Cost> {
        let worker = self.workers.get(&id)?;
        match (worker.cold.get(), worker.warm.get()) {
            (Some(cold), Some(warm)) => Some(Cost { cold, warm }),
            (Some(cold), None) => Some(Cost { cold, warm: cold }),
            _ => self.costs().get(&id).copied(),
        }
    }
}
