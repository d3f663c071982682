//! The schedule: it assigns one task at a time to the worker with the earliest expected completion.
//!
//! Pure functions of tasks and workers. Ties go to the lower number, so plans are deterministic.
//! This module knows neither the measurement of speeds nor the transport of orders.

use std::collections::BTreeSet;
use std::fmt;

/// A worker's availability and speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WorkerLoad {
    /// Seconds from now until it completes its current work.
    pub(super) free: f64,
    /// Seconds per unit, for a block that it executed before.
    pub(super) warm: f64,
    /// Seconds per unit, for any other block.
    pub(super) cold: f64,
}

/// A task, or its open blocks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScheduledJob {
    /// Units of each block.
    pub(super) units: f64,
    /// The open blocks, each with the index of the worker that executed it before, if here.
    pub(super) blocks: Vec<(u32, Option<usize>)>,
}

impl ScheduledJob {
    fn size(&self) -> f64 {
        self.units * self.blocks.len() as f64
    }
}

/// Blocks of one task for one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockShare {
    pub(super) job: usize,
    pub(super) blocks: Vec<u32>,
}

/// An assignment of blocks to workers, in order of execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AssignmentPlan {
    /// The shares of each worker.
    pub(super) shares: Vec<Vec<BlockShare>>,
    /// The completion time of each worker, in seconds from now.
    pub(super) ends: Vec<f64>,
    pub(super) summary: Forecast,
}

/// A summary of a plan. Its display is a line of text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// The number of assigned tasks.
    pub tasks: usize,
    /// The number of tasks that are split over several workers.
    pub split: usize,
    /// The number of workers that get work.
    pub used: usize,
    /// The number of available workers.
    pub workers: usize,
    /// Seconds until the last task completes.
    pub makespan_s: f64,
    /// Seconds until completion if work could be divided at will: a lower bound.
    pub fluid_s: f64,
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, split, used, workers, makespan_s, fluid_s } = self;
        write!(
            f,
            "{tasks} tasks, {split} of them split, for {used} of {workers} workers: \
             {makespan_s:.3} s, and no less than {fluid_s:.3} s"
        )
    }
}

/// The completion time in seconds if work could be divided at will: each worker works from when it
/// is free. `cost` gives a worker's seconds per unit. Infinite without workers.
pub(super) fn fluid(workers: &[WorkerLoad], units: f64, cost: impl Fn(&WorkerLoad) -> f64) -> f64 {
    let mut order: Vec<(f64, f64)> = workers
        .iter()
        .map(|worker| (worker.free, 1.0 / cost(worker).max(f64::MIN_POSITIVE)))
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    // The workers that are free first take all work until the next is free.
    let (mut speed, mut done) = (0.0, 0.0);
    for (at, (free, more)) in order.iter().enumerate() {
        speed += more;
        done += free * more;
        let end = (units + done) / speed;
        if order.get(at + 1).is_none_or(|(next, _)| end <= *next) {
            return end;
        }
    }
    f64::INFINITY
}

/// A totally ordered number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OrderedF64(f64);

impl Eq for OrderedF64 {}

impl PartialOrd for OrderedF64 {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedF64 {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Workers in order of their completion of a new block of one size. Rebuilt only for another size,
/// for most tasks of a batch have the same.
struct CompletionOrder {
    size: f64,
    order: BTreeSet<(OrderedF64, usize)>,
}

struct PlanBuilder<'a> {
    workers: &'a [WorkerLoad],
    ends: Vec<f64>,
    first: CompletionOrder,
    shares: Vec<Vec<BlockShare>>,
    /// The completion time up to which a worker with affinity is preferred.
    enough: f64,
}

impl<'a> PlanBuilder<'a> {
    fn new(workers: &'a [WorkerLoad], enough: f64) -> Self {
        Self {
            workers,
            ends: workers.iter().map(|worker| worker.free).collect(),
            first: CompletionOrder { size: f64::NAN, order: BTreeSet::new() },
            shares: vec![Vec::new(); workers.len()],
            enough,
        }
    }

    /// For rules without speeds: it only computes the bound.
    fn without_speeds(jobs: &[ScheduledJob], workers: &'a [WorkerLoad]) -> Self {
        let units = jobs.iter().map(ScheduledJob::size).sum();
        Self::new(workers, fluid(workers, units, |worker| worker.cold))
    }

    /// The worker with the earliest completion of a new block of this size, and that time.
    fn first(&mut self, size: f64) -> Option<(f64, usize)> {
        if self.first.size.to_bits() != size.to_bits() {
            let ends = self.ends.iter().zip(self.workers).enumerate();
            let order = ends.map(|(at, (end, worker))| (OrderedF64(end + size * worker.cold), at));
            self.first = CompletionOrder { size, order: order.collect() };
        }
        self.first.order.first().map(|(end, worker)| (end.0, *worker))
    }

    fn give(&mut self, worker: usize, job: usize, blocks: Vec<u32>, end: f64) {
        let cold = self.first.size * self.workers[worker].cold;
        self.first.order.remove(&(OrderedF64(self.ends[worker] + cold), worker));
        self.ends[worker] = end;
        self.first.order.insert((OrderedF64(end + cold), worker));
        match self.shares[worker].last_mut() {
            Some(last) if last.job == job => last.blocks.extend(blocks),
            _ => self.shares[worker].push(BlockShare { job, blocks }),
        }
    }

    /// The completion time of this worker with these blocks added.
    fn end(&self, worker: usize, job: &ScheduledJob, blocks: &[(u32, Option<usize>)]) -> f64 {
        let WorkerLoad { warm, cold, .. } = self.workers[worker];
        let held = blocks.iter().filter(|(_, by)| *by == Some(worker)).count() as f64;
        self.ends[worker] + job.units * (held * warm + (blocks.len() as f64 - held) * cold)
    }

    /// Chooses a worker for these blocks: in general the one with the earliest completion.
    ///
    /// A worker that executed them before, or has the preceding blocks, is preferred up to
    /// `enough`. Beyond it, others would execute them instead of blocks with an affinity to
    /// themselves.
    fn choose(
        &mut self,
        job: &ScheduledJob,
        blocks: &[(u32, Option<usize>)],
        last: Option<usize>,
    ) -> Option<(f64, usize)> {
        let mut best = self.first(job.units * blocks.len() as f64)?;
        let mut holders: Vec<usize> = blocks.iter().filter_map(|(_, by)| *by).collect();
        holders.sort_unstable();
        holders.dedup();
        let holders = holders.into_iter().map(|worker| (self.end(worker, job, blocks), worker));
        let holder = holders.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if let Some(holder) = holder {
            if holder.0 <= self.enough {
                return Some(holder);
            }
            if holder.0 < best.0 {
                best = holder;
            }
        }
        let last = last.map(|worker| (self.end(worker, job, blocks), worker));
        Some(last.filter(|last| last.0 <= self.enough.max(best.0)).unwrap_or(best))
    }
}

/// Assigns one task at a time to the worker with the earliest expected completion.
///
/// Slow workers may get none. A task that would complete after the bound (see [`fluid`]) is split,
/// if it has blocks, and its blocks are assigned in the same way.
pub(super) fn earliest(jobs: &[ScheduledJob], workers: &[WorkerLoad]) -> AssignmentPlan {
    let units: f64 = jobs.iter().map(ScheduledJob::size).sum();
    let held = |job: &ScheduledJob| {
        job.units * job.blocks.iter().filter(|(_, by)| by.is_some()).count() as f64
    };
    let share = jobs.iter().map(held).sum::<f64>() / units.max(f64::MIN_POSITIVE);
    let enough = fluid(workers, units, |worker| share * worker.warm + (1.0 - share) * worker.cold);
    let mut planner = PlanBuilder::new(workers, enough);
    // The longest tasks come first, and short ones fill the gaps.
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|a, b| jobs[*b].size().total_cmp(&jobs[*a].size()).then(a.cmp(b)));
    let mut split = Vec::new();
    for at in order {
        let job = &jobs[at];
        let Some((end, worker)) = planner.choose(job, &job.blocks, None) else { break };
        if job.blocks.len() > 1 && end > enough {
            split.push(at);
        } else {
            let blocks = job.blocks.iter().map(|(block, _)| *block).collect();
            planner.give(worker, at, blocks, end);
        }
    }
    for at in &split {
        let job = &jobs[*at];
        let mut last = None;
        for block in &job.blocks {
            let one = std::slice::from_ref(block);
            let Some((end, worker)) = planner.choose(job, one, last) else { break };
            last = Some(worker);
            planner.give(worker, *at, vec![block.0], end);
        }
    }
    planner.plan(jobs.len(), split.len())
}

/// Assigns the same number of tasks to each worker, in order: the baseline without a schedule.
/// Splits nothing.
pub(super) fn equal(jobs: &[ScheduledJob], workers: &[WorkerLoad]) -> AssignmentPlan {
    let mut planner = PlanBuilder::without_speeds(jobs, workers);
    for (at, job) in jobs.iter().enumerate() {
        let worker = at * workers.len() / jobs.len().max(1);
        if worker < workers.len() {
            let end = planner.end(worker, job, &job.blocks);
            planner.give(worker, at, job.blocks.iter().map(|(block, _)| *block).collect(), end);
        }
    }
    planner.plan(jobs.len(), 0)
}

/// Assigns the tasks in order to the worker that is free first: the baseline of a central queue.
///
/// Ties go to the lower number. Splits nothing.
pub(super) fn queue(jobs: &[ScheduledJob], workers: &[WorkerLoad]) -> AssignmentPlan {
    let mut planner = PlanBuilder::without_speeds(jobs, workers);
    let mut free: BTreeSet<(OrderedF64, usize)> =
        workers.iter().enumerate().map(|(at, worker)| (OrderedF64(worker.free), at)).collect();
    for (at, job) in jobs.iter().enumerate() {
        let Some((_, worker)) = free.pop_first() else { break };
        let end = planner.end(worker, job, &job.blocks);
        planner.give(worker, at, job.blocks.iter().map(|(block, _)| *block).collect(), end);
        free.insert((OrderedF64(end), worker));
    }
    planner.plan(jobs.len(), 0)
}

impl PlanBuilder<'_> {
    fn plan(self, tasks: usize, split: usize) -> AssignmentPlan {
        let used = || self.shares.iter().zip(&self.ends).filter(|(shares, _)| !shares.is_empty());
        let makespan = used().map(|(_, end)| *end).fold(0.0, f64::max);
        let (used, workers) = (used().count(), self.workers.len());
        let (makespan_s, fluid_s) = (makespan, self.enough);
        let summary = Forecast { tasks, split, used, workers, makespan_s, fluid_s };
        AssignmentPlan { shares: self.shares, ends: self.ends, summary }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(units: f64, blocks: u32) -> ScheduledJob {
        let blocks = (0..blocks).map(|block| (block, None)).collect();
        ScheduledJob { units, blocks }
    }

    fn worker(cold: f64) -> WorkerLoad {
        WorkerLoad { free: 0.0, warm: cold, cold }
    }

    fn makespan(plan: &AssignmentPlan) -> f64 {
        plan.summary.makespan_s
    }

    /// The paper's algorithm: one task at a time, and slow workers may get none.
    #[test]
    fn slow_workers_may_get_none_and_the_summary_says_so() {
        let workers = [worker(1.0), worker(1.0), worker(9.0)];
        let plan = earliest(&vec![job(1.0, 1); 8], &workers);
        assert_eq!(plan.ends, [4.0, 4.0, 0.0]);
        assert!(plan.shares[2].is_empty());
        let text =
            "8 tasks, 0 of them split, for 2 of 3 workers: 4.000 s, and no less than 3.789 s";
        assert_eq!(plan.summary.to_string(), text);
        assert_eq!(makespan(&equal(&vec![job(1.0, 1); 8], &workers)), 18.0);
        // A queue gives the slow worker one task, and no second.
        let plan = queue(&vec![job(1.0, 1); 8], &workers);
        assert_eq!(plan.ends, [4.0, 3.0, 9.0]);
        assert!((plan.summary.fluid_s - 72.0 / 19.0).abs() < 1e-12, "{}", plan.summary);
    }

    #[test]
    fn tasks_go_to_workers_that_executed_them_before() {
        let warm = |units, by| ScheduledJob { units, blocks: vec![(0, Some(by))] };
        let workers = vec![WorkerLoad { free: 0.0, warm: 0.1, cold: 1.0 }; 3];
        let jobs: Vec<ScheduledJob> = (0..9).map(|at| warm(1.0, (at * 7 + 1) % 3)).collect();
        let plan = earliest(&jobs, &workers);
        assert!((makespan(&plan) - 0.3).abs() < 1e-9, "{plan:?}");
        // Not if it has too many: a cold start elsewhere is sooner.
        let jobs = vec![warm(1.0, 0); 40];
        let plan = earliest(&jobs, &workers);
        assert!(plan.shares.iter().all(|shares| !shares.is_empty()));
        assert!(makespan(&plan) < 4.0);
    }

    #[test]
    fn more_workers_than_tasks_are_of_use_where_tasks_have_blocks() {
        let workers: Vec<WorkerLoad> = (0..40).map(|at| worker(1.0 + f64::from(at % 7))).collect();
        let plan = earliest(&vec![job(1.0, 50); 10], &workers);
        assert!(plan.summary.used > 30, "{}", plan.summary);
        assert!(makespan(&plan) < 1.15 * plan.summary.fluid_s, "{}", plan.summary);
        let whole = earliest(&vec![job(50.0, 1); 10], &workers);
        assert!(makespan(&whole) > 2.0 * makespan(&plan));
    }

    /// 200 tasks of the paper on 50 workers with evenly spread speeds of ratio seven: close to the
    /// bound, while equal shares take 2.3 times that.
    #[test]
    fn a_speed_ratio_of_seven_costs_only_the_granularity() {
        let workers: Vec<WorkerLoad> =
            (0..50).map(|at| worker(1.0 + 6.0 * f64::from(at * 17 % 50) / 49.0)).collect();
        for (tasks, blocks, limit) in [(200, 1, 1.25), (800, 1, 1.1), (200, 10, 1.05)] {
            let jobs = vec![job(50.0 / f64::from(blocks), blocks); tasks];
            let plan = earliest(&jobs, &workers);
            assert!(makespan(&plan) <= limit * plan.summary.fluid_s, "{}", plan.summary);
            assert!(makespan(&equal(&jobs, &workers)) > 2.2 / limit * makespan(&plan));
        }
    }

    #[test]
    fn no_workers_and_no_tasks() {
        assert_eq!(earliest(&[job(1.0, 3)], &[]).shares, Vec::<Vec<BlockShare>>::new());
        assert_eq!(equal(&[job(1.0, 3)], &[]).shares, Vec::<Vec<BlockShare>>::new());
        assert_eq!(makespan(&earliest(&[], &[worker(1.0)])), 0.0);
        assert_eq!(fluid(&[], 1.0, |worker| worker.cold), f64::INFINITY);
        let later = WorkerLoad { free: 3.0, ..worker(1.0) };
        assert_eq!(fluid(&[worker(1.0), later], 2.0, |worker| worker.cold), 2.0);
        assert_eq!(fluid(&[worker(1.0), later], 5.0, |worker| worker.cold), 4.0);
    }

    type Instance = (Vec<ScheduledJob>, Vec<WorkerLoad>);

    fn instances() -> impl Strategy<Value = Instance> {
        let worker = (0.0..3.0f64, 0.05..2.0f64, 0.01..1.0f64)
            .prop_map(|(free, cold, share)| WorkerLoad { free, warm: cold * share, cold });
        let workers = prop::collection::vec(worker, 1..12);
        let job = (0.1..4.0f64, prop::collection::vec(prop::option::of(0..12usize), 1..9));
        (prop::collection::vec(job, 0..40), workers).prop_map(|(jobs, workers)| {
            let jobs = jobs.into_iter().map(|(units, blocks)| {
                let by = |by: Option<usize>| by.filter(|by| *by < workers.len());
                let blocks = (0..).zip(blocks).map(|(block, held)| (block, by(held))).collect();
                ScheduledJob { units, blocks }
            });
            (jobs.collect(), workers)
        })
    }

    proptest! {
        /// Each block is assigned once, and completion times are those of the shares.
        #[test]
        fn each_block_is_assigned_once((jobs, workers) in instances(), rule in 0..3usize) {
            let rule = [earliest, equal, queue][rule];
            let plan = rule(&jobs, &workers);
            let mut given = BTreeSet::new();
            for (worker, (shares, end)) in plan.shares.iter().zip(&plan.ends).enumerate() {
                let mut sum = workers[worker].free;
                for BlockShare { job, blocks } in shares {
                    for block in blocks {
                        prop_assert!(given.insert((*job, *block)));
                        let (_, by) = jobs[*job].blocks[*block as usize];
                        let warm = by == Some(worker);
                        let cost = if warm { workers[worker].warm } else { workers[worker].cold };
                        sum += jobs[*job].units * cost;
                    }
                }
                prop_assert!((sum - end).abs() < 1e-6 * (1.0 + sum), "{sum} {end}");
            }
            let all: usize = jobs.iter().map(|job| job.blocks.len()).sum();
            prop_assert_eq!(given.len(), all);
            prop_assert_eq!(plan, rule(&jobs, &workers));
        }

        /// The makespan exceeds the bound of divided work by at most one block or indivisible task.
        /// So it exceeds equal shares by no more than that.
        #[test]
        fn the_makespan_exceeds_divided_work_by_at_most_one_task(
            (mut jobs, workers) in instances(), blocks in 1..6u32,
        ) {
            let cold = |worker: &WorkerLoad| WorkerLoad { warm: worker.cold, ..*worker };
            let cold: Vec<WorkerLoad> = workers.iter().map(cold).collect();
            for job in &mut jobs {
                job.blocks = (0..blocks).map(|block| (block, None)).collect();
            }
            let plan = earliest(&jobs, &cold);
            let grain = jobs.iter().map(|job| job.units).fold(0.0, f64::max);
            let slowest = cold.iter().map(|worker| worker.cold).fold(0.0, f64::max);
            let limit = plan.summary.fluid_s.max(0.0) + grain * slowest;
            prop_assert!(makespan(&plan) <= limit * (1.0 + 1e-9) + 1e-9, "{}", plan.summary);
            let even = makespan(&equal(&jobs, &cold));
            let limit = even + grain * slowest + 1e-9;
            prop_assert!(makespan(&plan) <= limit, "{} {even}", plan.summary);
        }
    }
}
