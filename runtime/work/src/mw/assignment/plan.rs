//! Assignment of blocks: measuring workers, planning, revoking and copying.
//!
//! It does not know the results, nor how the schedule chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::worker::{AssignedWorker, Cost, QueuedBlock, seconds};
use super::{AssignmentTable, BlockId, WorkerOrder};
use crate::mw::program::DispatchRule;
use crate::mw::schedule::{self, BlockShare, Forecast, ScheduledJob, WorkerLoad};

/// The most workers with the same block.
const COPIES_MAX: usize = 2;
/// A new plan replaces the current one if its makespan is below this part of the current one's.
const REPLAN_RATIO: f64 = 0.9;
/// A copy must complete sooner than the original by this factor.
const COPY_SPEEDUP: f64 = 1.5;
/// The age of a measurement from which an idle worker is measured again.
const MEASUREMENT_AGE: Duration = Duration::from_secs(60);

impl AssignmentTable {
    /// Assigns the blocks of the pool, and improves the assignment of blocks not started.
    pub(super) fn plan(&mut self, now: Instant) {
        if self.batches.is_empty() {
            self.replans = false;
            return;
        }
        if self.settings.dealing != DispatchRule::Earliest {
            self.replans = false;
            return self.deal(now);
        }
        for worker in self.workers.values_mut() {
            self.replans |= worker.was_late(now);
        }
        let idle = |worker: &AssignedWorker| worker.is_idle() && worker.known;
        if now >= self.idle_at && self.workers.values().any(idle)
            || !self.pool.is_empty() && self.workers.values().any(AssignedWorker::is_idle)
        {
            self.replans = true;
        }
        if !std::mem::take(&mut self.replans) {
            return;
        }
        let costs = self.costs();
        self.give_benchmarks(&costs, now);
        self.rearrange(&costs, now);
        if self.settings.copies && self.pool.is_empty() {
            self.give_copies(&costs, now);
            self.measure_again(&costs, now);
        }
        let left = self.workers.iter().map(|(id, worker)| worker.remaining(&costs[id], now));
        let left = left.fold(0.0, f64::max);
        self.idle_at = now + seconds(left / 20.0).max(Duration::from_millis(5));
    }

    /// Assigns enough work to each unmeasured worker to measure it, but no more than its share.
    ///
    /// Where no worker has blocks left, there is nothing to measure with.
    fn give_benchmarks(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let stay = self.workers.values().filter(|worker| !worker.leaving).count().max(1);
        let open: f64 = self.pool.iter().map(|block_id| self.units_of(*block_id)).sum();
        let enough = if self.pool.is_empty() {
            self.settings.bench_units
        } else {
            self.settings.bench_units.min(open / stay as f64)
        };
        // A worker that still executes a block is being measured already.
        let is_free = |(id, worker): &(&u32, &AssignedWorker)| {
            !worker.leaving && !worker.executes_unwanted(&costs[id], now)
        };
        let any_free = self.workers.iter().any(|worker| is_free(&worker));
        let new = self.workers.iter().filter(|(_, worker)| !worker.known && worker.is_idle());
        let new = new.filter(|worker| !any_free || is_free(worker));
        for id in new.map(|(id, _)| *id).collect::<Vec<_>>() {
            let (mut units, mut block_ids) = (0.0, Vec::new());
            // From the pool, or else from the worker that would finish last.
            for block_id in self.pool.iter().copied() {
                if units >= enough && !block_ids.is_empty() {
                    break;
                }
                units += self.units_of(block_id);
                block_ids.push(block_id);
            }
            if block_ids.is_empty() {
                let last = self.workers.iter().filter(|(_, worker)| worker.known);
                let last = last.map(|(id, worker)| (worker.remaining(&costs[id], now), *id));
                let Some((_, last)) = last.max_by(|a, b| a.0.total_cmp(&b.0)) else { return };
                let from = &self.workers[&last];
                let kept = from.started(&costs[&last], now);
                let mine = from.queue.iter().skip(kept).rev();
                for item in mine {
                    if units >= enough && !block_ids.is_empty() {
                        break;
                    }
                    units += item.units;
                    block_ids.push(item.block_id);
                }
                block_ids.reverse();
                self.take_back(last, &block_ids.iter().copied().collect());
            }
            self.assign(id, block_ids, now);
        }
    }

    fn units_of(&self, (batch, task, _): BlockId) -> f64 {
        self.task(batch, task).map_or(0.0, |task| task.units)
    }

    /// Plans the pool and the blocks that measured workers have not started, if that is worth it.
    fn rearrange(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let stays = self.workers.iter().filter(|(_, worker)| worker.known && !worker.leaving);
        let ids: Vec<u32> = stays.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let mut loads = Vec::new();
        let mut before = 0.0f64;
        let mut open = self.pool.clone();
        for id in &ids {
            let (worker, cost) = (&self.workers[id], costs[id]);
            let begun = worker.started(&cost, now);
            let rest: f64 = worker.queue.iter().skip(begun).map(|item| cost.of(item)).sum();
            let left = worker.remaining(&cost, now);
            if !worker.is_idle() {
                before = before.max(left);
            }
            open.extend(worker.queue.iter().skip(begun).map(|item| item.block_id));
            let free = (left - rest).max(0.0) + if worker.is_idle() { worker.lag } else { 0.0 };
            loads.push(WorkerLoad { free, warm: cost.warm, cold: cost.cold });
        }
        if open.is_empty() {
            return;
        }
        let forced = !self.pool.is_empty();
        let indices: BTreeMap<u32, usize> = ids.iter().copied().zip(0..).collect();
        // Earlier batches come first.
        let mut given: Vec<Vec<BlockId>> = vec![Vec::new(); ids.len()];
        let (mut summary, mut after) = (Forecast::default(), 0.0f64);
        let mut open = open.into_iter().peekable();
        while let Some((batch, ..)) = open.peek().copied() {
            let of_batch = std::iter::from_fn(|| open.next_if(|(of, ..)| *of == batch));
            let (tasks, jobs) = self.jobs(of_batch, |id, block| {
                self.held.get(&(id, block)).and_then(|by| indices.get(by).copied())
            });
            let plan = schedule::earliest(&jobs, &loads);
            for (to, shares) in given.iter_mut().zip(plan.shares) {
                to.extend(blocks(&tasks, shares));
            }
            for (load, end) in loads.iter_mut().zip(&plan.ends) {
                load.free = *end;
            }
            after = after.max(plan.summary.makespan_s);
            summary = plan.summary;
        }
        if !forced && after >= REPLAN_RATIO * before {
            return;
        }
        self.planned = summary;
        tracing::debug!(%summary, before, "work is given out");
        // All revocations come first, so that no block is in two places.
        let mut new = Vec::new();
        for (id, block_ids) in ids.iter().zip(given) {
            let begun = self.workers[id].started(&costs[id], now);
            let has: BTreeSet<BlockId> =
                self.workers[id].queue.iter().skip(begun).map(|item| item.block_id).collect();
            let gets: BTreeSet<BlockId> = block_ids.iter().copied().collect();
            self.take_back(*id, &has.difference(&gets).copied().collect());
            new.push((*id, block_ids.into_iter().filter(|at| !has.contains(at)).collect()));
        }
        for (id, block_ids) in new {
            self.assign(id, block_ids, now);
        }
    }

    /// Converts blocks to jobs of the schedule, in order, and returns the task of each job. `by`
    /// names the last worker of a block.
    fn jobs(
        &self,
        block_ids: impl Iterator<Item = BlockId>,
        by: impl Fn(u32, u32) -> Option<usize>,
    ) -> (Vec<(u64, u32)>, Vec<ScheduledJob>) {
        let (mut tasks, mut jobs): (Vec<(u64, u32)>, Vec<ScheduledJob>) = Default::default();
        for (batch, task, block) in block_ids {
            let Some(known) = self.task(batch, task) else { continue };
            if tasks.last() != Some(&(batch, task)) {
                tasks.push((batch, task));
                jobs.push(ScheduledJob { units: known.units, blocks: Vec::new() });
            }
            if let Some(job) = jobs.last_mut() {
                job.blocks.push((block, by(known.id, block)));
            }
        }
        (tasks, jobs)
    }

    /// Takes blocks that have not started back from a worker.
    fn take_back(&mut self, id: u32, block_ids: &BTreeSet<BlockId>) {
        if block_ids.is_empty() {
            return;
        }
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.queue.retain(|item| !block_ids.contains(&item.block_id));
        self.counts.moved += block_ids.len() as u64;
        for block_id in block_ids {
            if let Some(block) = self.block(*block_id) {
                block.by.retain(|by| *by != id);
            }
            // In the pool until assigned to another worker, at once.
            self.pool.insert(*block_id);
            self.order_revoke(id, *block_id);
        }
    }

    /// Appends blocks to a worker's queue.
    fn assign(&mut self, id: u32, block_ids: Vec<BlockId>, now: Instant) {
        if block_ids.is_empty() || !self.workers.contains_key(&id) {
            return;
        }
        for block_id in block_ids {
            self.pool.remove(&block_id);
            let (batch, task, block) = block_id;
            let known = self.task(batch, task).map(|task| (task.id, task.units));
            let Some((number, units)) = known else { continue };
            let warm = self.held.get(&(number, block)) == Some(&id);
            if let Some(block) = self.block(block_id) {
                block.by.push(id);
            }
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            let orders = self.orders.entry(id).or_default();
            if worker.commons.insert(batch) {
                orders.push(WorkerOrder::Common { batch });
            }
            match orders.last_mut() {
                Some(WorkerOrder::Run { batch: of, task: at, to, .. })
                    if (*of, *at, *to) == (batch, task, block) =>
                {
                    *to += 1;
                }
                _ => {
                    let (from, to) = (block, block + 1);
                    orders.push(WorkerOrder::Run { batch, task, id: number, from, to, units });
                }
            }
            let was_idle = worker.queue.is_empty();
            worker.queue.push_back(QueuedBlock { block_id, units, warm });
            if was_idle {
                worker.ordered = worker.busy_until.is_none().then_some(now);
                let begins = worker.busy_until.filter(|at| *at > now).unwrap_or(now);
                self.start_first(id, begins);
            }
        }
    }

    /// Assigns copies of late blocks to idle workers that would complete them sooner.
    fn give_copies(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let idle = self.workers.iter().filter(|(_, worker)| worker.known && worker.is_idle());
        let mut idle: Vec<(f64, u32)> = idle.map(|(id, _)| (costs[id].cold, *id)).collect();
        idle.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut late: Vec<(f64, u32)> = self
            .workers
            .iter()
            .filter(|(_, worker)| !worker.queue.is_empty())
            .map(|(id, worker)| (worker.first_remaining(&costs[id], now), *id))
            .collect();
        late.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut late = late.into_iter().peekable();
        for (cold, id) in idle {
            for (left, of) in late.by_ref() {
                let Some(item) = self.workers[&of].queue.front().copied() else { continue };
                let takes = self.workers[&id].lag + item.units * cold;
                if self.may_copy(item.block_id) && left > COPY_SPEEDUP * takes {
                    self.counts.copies += 1;
                    self.assign(id, vec![item.block_id], now);
                    break;
                }
            }
            if late.peek().is_none() {
                break;
            }
        }
    }

    /// Assigns copies of waiting blocks to idle workers whose measurements are old. A worker that
    /// was slow would get no other work, and would count as slow for ever.
    ///
    /// The blocks stay with their workers as well, and the first result counts. So a worker that is
    /// still slow delays nothing.
    fn measure_again(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let is_old = |(id, worker): &(&u32, &AssignedWorker)| {
            worker.known
                && worker.is_idle()
                && !worker.executes_unwanted(&costs[id], now)
                && now.saturating_duration_since(worker.measured_at) >= MEASUREMENT_AGE
        };
        let old: Vec<u32> = self.workers.iter().filter(is_old).map(|(id, _)| *id).collect();
        if old.is_empty() {
            return;
        }
        let waiting = self.workers.iter().flat_map(|(of, worker)| {
            let left = worker.remaining(&costs[of], now);
            let items = worker.queue.iter().skip(worker.started(&costs[of], now));
            items.map(move |item| (left, item.block_id))
        });
        let mut waiting: Vec<(f64, BlockId)> =
            waiting.filter(|(_, block_id)| self.may_copy(*block_id)).collect();
        waiting.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The last block of the worker that would finish last comes first.
        for (id, (_, last)) in old.into_iter().zip(waiting.into_iter().rev()) {
            self.counts.copies += 1;
            self.assign(id, vec![last], now);
        }
    }

    /// Whether another worker may get the block as well.
    fn may_copy(&self, (batch, task, block): BlockId) -> bool {
        let task = self.task(batch, task);
        let block = task.and_then(|task| task.blocks.get(block as usize));
        block.is_some_and(|block| block.by.len() < COPIES_MAX)
    }

    /// Assigns the pool by a rule without speeds: all tasks at once, or one task to each idle
    /// worker.
    fn deal(&mut self, now: Instant) {
        let stays = self.workers.iter().filter(|(_, worker)| !worker.leaving);
        let mut ids: Vec<u32> = stays.map(|(id, _)| *id).collect();
        if ids.is_empty() || self.pool.is_empty() {
            return;
        }
        let queues = self.settings.dealing == DispatchRule::Queue;
        if queues {
            // The worker that has been idle longest comes first, so that numbers do not matter.
            ids.sort_by_key(|id| (self.workers[id].idle_since, *id));
        }
        let costs = self.costs();
        let loads = ids.iter().map(|id| {
            let (worker, cost) = (&self.workers[id], costs[id]);
            WorkerLoad { free: worker.remaining(&cost, now), warm: cost.cold, cold: cost.cold }
        });
        let loads: Vec<WorkerLoad> = loads.collect();
        let (tasks, jobs) = self.jobs(self.pool.iter().copied(), |_, _| None);
        if !queues {
            let plan = schedule::equal(&jobs, &loads);
            self.planned = plan.summary;
            for (id, shares) in ids.into_iter().zip(plan.shares) {
                self.assign(id, blocks(&tasks, shares).collect(), now);
            }
            return;
        }
        self.planned = schedule::queue(&jobs, &loads).summary;
        ids.retain(|id| self.workers[id].is_idle());
        for (id, ((batch, task), job)) in ids.into_iter().zip(tasks.into_iter().zip(jobs)) {
            let block_ids = job.blocks.into_iter().map(|(block, _)| (batch, task, block));
            self.assign(id, block_ids.collect(), now);
        }
    }

    pub(super) fn order_revoke(&mut self, id: u32, (batch, task, block): BlockId) {
        let orders = self.orders.entry(id).or_default();
        match orders.last_mut() {
            Some(WorkerOrder::Revoke { batch: of, task: at, to, .. })
                if (*of, *at, *to) == (batch, task, block) =>
            {
                *to += 1;
            }
            _ => orders.push(WorkerOrder::Revoke { batch, task, from: block, to: block + 1 }),
        }
    }
}

/// The blocks of shares. `tasks` maps jobs to tasks.
fn blocks(tasks: &[(u64, u32)], shares: Vec<BlockShare>) -> impl Iterator<Item = BlockId> {
    shares.into_iter().flat_map(|share| {
        let (batch, task) = tasks[share.job];
        share.blocks.into_iter().map(move |block| (batch, task, block))
    })
}
