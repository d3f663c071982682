//! Comparison of plans of slots with best effort, for one workflow at many times of a load.

use std::collections::BinaryHeap;

use serde::Serialize;
use springtide_actors::policy::provisioning::{
    BookingTable, Budget, Constraint, Dag, ListScheduler, Method, Price, Search, SiteLinks, Slot,
    Time, search, seconds,
};

use super::load::SiteLoad;
use super::{Range, Spread};
use crate::on_all_cores;

/// A service unit in processor-seconds: a processor for an hour.
pub const SERVICE_UNIT: f64 = 3600.0;

/// The parameters of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Planning {
    /// The search over sets of slots.
    pub search: Search,
    /// The limit of the search.
    pub budget: Budget,
    /// The placement of tasks on slots.
    pub method: Method,
    /// A discount for early planning, the paper's future work: the part of a slot's price for each
    /// day until its start, and the maximum.
    pub discount: Option<(f64, f64)>,
    /// The seed of all random numbers.
    pub seed: u64,
}

impl Planning {
    fn price(&self, now: Time, start: Time) -> Price {
        let days = seconds(start.saturating_sub(now)) / (24.0 * 3600.0);
        let less = self.discount.map_or(0.0, |(a_day, most)| (a_day * days).min(most));
        Price { rate: 1.0 - less, ..Price::default() }
    }
}

/// The rule that chooses a plan of a front.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SelectionRule {
    /// The trade-off: 0 for the shortest plan, 1 for the cheapest.
    pub alpha: f64,
    /// The maximum cost as a multiple of the floor. If no plan is within it, the nearest is chosen.
    pub most: Option<f64>,
}

impl SelectionRule {
    /// A choice by the trade-off alone.
    pub fn of(alpha: f64) -> Self {
        Self { alpha, most: None }
    }

    /// The shortest plan whose cost is at most this multiple of the floor.
    pub fn within(most: f64) -> Self {
        Self { alpha: 0.0, most: Some(most) }
    }
}

/// The plan of a choice at one submission.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanResult {
    /// Seconds from the submission to the last task's end.
    pub makespan_s: f64,
    /// The cost of the plan's slots, in processor-seconds at a price of 1.
    pub cost: f64,
}

/// The results of one submission.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedWorkflow {
    /// The time of the submission, seconds from the load's beginning.
    pub at_s: f64,
    /// The number of advertised slots.
    pub slots: usize,
    /// Seconds until half of the site is permanently free. Later slots are paid by use, earlier
    /// ones whole.
    pub half_free_s: f64,
    /// The number of plans in the front that was found.
    pub front: usize,
    /// The plan of each choice; absent if no plan was found.
    pub planned: Vec<Option<PlanResult>>,
    /// The makespan of best effort, seconds.
    pub best_effort_s: f64,
}

/// The results of a workflow under a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The load of other users, as a part of the site.
    pub load: f64,
    /// The rules that chose plans.
    pub choices: Vec<SelectionRule>,
    /// The lower bound of a plan's cost (equation 9), which is the cost of best effort.
    pub floor: f64,
    /// The results of each submission.
    pub submissions: Vec<ComparedWorkflow>,
}

/// The results of a choice over all submissions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComparisonSummary {
    /// The rule of the choice.
    #[serde(flatten)]
    pub choice: SelectionRule,
    /// The makespan of the plan, seconds.
    pub makespan_s: Spread,
    /// The cost of the plan.
    pub cost: Spread,
    /// The makespan of best effort, seconds.
    pub best_effort_s: Spread,
    /// The plan's makespan less that of best effort, by submission, seconds.
    pub difference_s: Spread,
    /// The number of submissions without a plan.
    pub without: usize,
}

impl Comparison {
    /// The range of a number over the submissions.
    fn range(&self, of: impl Fn(&ComparedWorkflow) -> f64) -> Range {
        Range::of(self.submissions.iter().map(of))
    }

    /// The number of advertised slots.
    pub fn slots(&self) -> Range {
        self.range(|one| one.slots as f64)
    }

    /// Seconds until half of the site is permanently free.
    pub fn half_free_s(&self) -> Range {
        self.range(|one| one.half_free_s)
    }

    /// The summary of each choice.
    pub fn summaries(&self) -> Vec<ComparisonSummary> {
        let of = |(index, &choice): (usize, &SelectionRule)| {
            let with =
                || self.submissions.iter().filter_map(move |one| Some((one, one.planned[index]?)));
            let spread = |of: &dyn Fn(&ComparedWorkflow, PlanResult) -> f64| {
                Spread::of(&with().map(|(one, planned)| of(one, planned)).collect::<Vec<f64>>())
            };
            ComparisonSummary {
                choice,
                makespan_s: spread(&|_, planned| planned.makespan_s),
                cost: spread(&|_, planned| planned.cost),
                best_effort_s: spread(&|one, _| one.best_effort_s),
                difference_s: spread(&|one, planned| planned.makespan_s - one.best_effort_s),
                without: self.submissions.iter().filter(|one| one.planned[index].is_none()).count(),
            }
        };
        self.choices.iter().enumerate().map(of).collect()
    }
}

/// Submits a workflow at each of the times of a load, independently; times are in order.
pub fn compare(
    dag: &Dag,
    load: &SiteLoad,
    moments: &[Time],
    choices: &[SelectionRule],
    planning: &Planning,
) -> Comparison {
    let mut table = BookingTable::new(load.processors);
    let mut next = 0;
    let mut states = Vec::with_capacity(moments.len());
    for &moment in moments {
        while let Some(job) = load.jobs.get(next).filter(|job| job.submit <= moment) {
            table.forget(job.submit);
            // Jobs are no wider than the site, which has room after the last of them.
            let _ = table.submit(job.processors, job.duration, job.submit);
            next += 1;
        }
        table.forget(moment);
        states.push((moment, table.clone(), next));
    }
    let submissions = on_all_cores(&states, |(moment, table, next)| {
        let slots = table.slots(0, *moment, |start| planning.price(*moment, start));
        let half_free_s = half_free(&slots, *moment, load.processors);
        let count = slots.len();
        let (front, planned) = provisioned(dag, slots, *moment, choices, planning);
        let best_effort_s = seconds(best_effort(dag, table.clone(), &load.jobs[*next..], *moment));
        ComparedWorkflow {
            at_s: seconds(*moment),
            slots: count,
            half_free_s,
            front,
            planned,
            best_effort_s,
        }
    });
    Comparison { load: load.offered, choices: choices.to_vec(), floor: dag.work(1), submissions }
}

/// Seconds until half of a site is permanently free.
fn half_free(slots: &[Slot], now: Time, processors: u32) -> f64 {
    let mut free = 0;
    let mut last = slots.iter().filter(|slot| slot.divisible);
    let half = last.find(|slot| {
        free += slot.processors;
        2 * free >= processors
    });
    half.map_or(f64::INFINITY, |slot| seconds(slot.start - now))
}

/// Plans on the slots that a site advertises at a time. Returns the number of plans, and the plan
/// of each choice.
fn provisioned(
    dag: &Dag,
    mut slots: Vec<Slot>,
    now: Time,
    choices: &[SelectionRule],
    planning: &Planning,
) -> (usize, Vec<Option<PlanResult>>) {
    // The planner's clock starts at the submission.
    for slot in &mut slots {
        slot.start -= now;
        slot.end -= now;
    }
    let links = SiteLinks::default();
    let mut lister = ListScheduler::new(dag, &links, &slots, planning.method);
    let front = search(&mut lister, planning.search, planning.budget, planning.seed, false).front;
    let floor = dag.work(1);
    let choose = |choice: &SelectionRule| {
        let budget = choice.most.map(|most| most * floor);
        let constraint = Constraint { budget, ..Constraint::default() };
        let point =
            front.choose(choice.alpha, &constraint).or_else(|nearest| nearest.ok_or(())).ok()?;
        Some(PlanResult {
            makespan_s: seconds(point.objectives.makespan),
            cost: point.objectives.cost,
        })
    };
    (front.points().len(), choices.iter().map(choose).collect())
}

/// Submits each task when its parents have ended, in order with other users' jobs. Returns the
/// makespan.
pub fn best_effort(
    dag: &Dag,
    mut table: BookingTable,
    others: &[super::load::LoadJob],
    now: Time,
) -> Time {
    let mut others = others.iter().peekable();
    let mut waits: Vec<usize> = (0..dag.len()).map(|task| dag.parents(task).len()).collect();
    let mut ready_at: Vec<Time> = vec![now; dag.len()];
    // The earliest first; of tasks with one time, the first of the workflow.
    let mut ready: BinaryHeap<std::cmp::Reverse<(Time, usize)>> = BinaryHeap::new();
    ready.extend(
        (0..dag.len()).filter(|&task| waits[task] == 0).map(|task| std::cmp::Reverse((now, task))),
    );
    let mut last = now;
    while let Some(std::cmp::Reverse((at, task))) = ready.pop() {
        while let Some(job) = others.next_if(|job| job.submit <= at) {
            let _ = table.submit(job.processors, job.duration, job.submit);
        }
        table.forget(at);
        let of = dag.task(task);
        let duration = of.runtime.on(0).max(1);
        let Ok((_, start)) = table.submit(of.processors, duration, at) else {
            return springtide_actors::policy::provisioning::NEVER;
        };
        let end = start + duration;
        last = last.max(end);
        for &(child, _) in dag.children(task) {
            ready_at[child] = ready_at[child].max(end);
            waits[child] -= 1;
            if waits[child] == 0 {
                ready.push(std::cmp::Reverse((ready_at[child], child)));
            }
        }
    }
    last - now
}
