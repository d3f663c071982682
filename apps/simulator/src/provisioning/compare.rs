//! One workflow, submitted at many moments of a load: provisioned by a plan of slots, and best effort.

use std::collections::BinaryHeap;

use serde::Serialize;
use springtide_actors::policy::provisioning::{
    Budget, Constraint, Dag, Links, Lister, Method, Price, Search, Slot, Table, Time, search,
    seconds,
};

use super::load::Load;
use super::{Range, Spread};
use crate::on_all_cores;

/// One service unit is a processor for an hour.
pub const SERVICE_UNIT: f64 = 3600.0;

/// How plans are made.
#[derive(Clone, Copy, Debug)]
pub struct Planning {
    /// How sets of slots are searched.
    pub search: Search,
    /// How long.
    pub budget: Budget,
    /// How tasks are placed.
    pub method: Method,
    /// What a slot costs less for each day between now and its start, as a part of its price, and the most: the paper's future work,
    /// a discount for those who plan ahead.
    pub discount: Option<(f64, f64)>,
    /// Of whatever is random.
    pub seed: u64,
}

impl Planning {
    fn price(&self, now: Time, start: Time) -> Price {
        let days = seconds(start.saturating_sub(now)) / (24.0 * 3600.0);
        let less = self.discount.map_or(0.0, |(a_day, most)| (a_day * days).min(most));
        Price { rate: 1.0 - less, ..Price::default() }
    }
}

/// Which plan of a front is taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The trade-off: 0 the shortest, 1 the cheapest.
    pub alpha: f64,
    /// Only among those that cost at most so many times the floor. Where there is none, the one that is nearest.
    pub most: Option<f64>,
}

impl Choice {
    /// By the trade-off alone.
    pub fn of(alpha: f64) -> Self {
        Self { alpha, most: None }
    }

    /// The shortest that costs at most so many times the floor.
    pub fn within(most: f64) -> Self {
        Self { alpha: 0.0, most: Some(most) }
    }
}

/// What a choice made of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// Seconds from the submission to the last task's end.
    pub makespan_s: f64,
    /// What the plan's slots cost, in processor-seconds at the price of 1.
    pub cost: f64,
}

/// One submission.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Submission {
    /// When, seconds from the load's beginning.
    pub at_s: f64,
    /// How many slots were advertised.
    pub slots: usize,
    /// After how many seconds half of the site is free for good: slots from then on are paid as they are used, those before it whole.
    pub half_free_s: f64,
    /// How many plans of which none is dominated were found.
    pub front: usize,
    /// By choice; nothing where no plan was found.
    pub planned: Vec<Option<Planned>>,
    /// Best effort, seconds.
    pub best_effort_s: f64,
}

/// A workflow under a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What other users keep busy of the site.
    pub load: f64,
    /// How plans were taken.
    pub choices: Vec<Choice>,
    /// What no plan costs less than (equation 9): what best effort costs.
    pub floor: f64,
    /// One by one.
    pub submissions: Vec<Submission>,
}

/// A choice's results over the submissions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The choice.
    #[serde(flatten)]
    pub choice: Choice,
    /// Provisioned makespan, seconds.
    pub makespan_s: Spread,
    /// Provisioned cost.
    pub cost: Spread,
    /// Best effort, seconds.
    pub best_effort_s: Spread,
    /// Provisioned less best effort, submission by submission, seconds.
    pub difference_s: Spread,
    /// In how many submissions no plan was found.
    pub without: usize,
}

impl Comparison {
    /// A number of each submission.
    fn range(&self, of: impl Fn(&Submission) -> f64) -> Range {
        Range::of(self.submissions.iter().map(of))
    }

    /// How many slots were advertised.
    pub fn slots(&self) -> Range {
        self.range(|one| one.slots as f64)
    }

    /// After how many seconds half of the site was free for good.
    pub fn half_free_s(&self) -> Range {
        self.range(|one| one.half_free_s)
    }

    /// Results by choice.
    pub fn summaries(&self) -> Vec<Summary> {
        let of = |(index, &choice): (usize, &Choice)| {
            let with =
                || self.submissions.iter().filter_map(move |one| Some((one, one.planned[index]?)));
            let spread = |of: &dyn Fn(&Submission, Planned) -> f64| {
                Spread::of(&with().map(|(one, planned)| of(one, planned)).collect::<Vec<f64>>())
            };
            Summary {
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

/// Submits a workflow at moments (in order) of a load, at each as if at no other.
pub fn compare(
    dag: &Dag,
    load: &Load,
    moments: &[Time],
    choices: &[Choice],
    planning: &Planning,
) -> Comparison {
    let mut table = Table::new(load.processors);
    let mut next = 0;
    let mut states = Vec::with_capacity(moments.len());
    for &moment in moments {
        while let Some(job) = load.jobs.get(next).filter(|job| job.submit <= moment) {
            table.forget(job.submit);
            // Jobs are no wider than the site, and it has room after the last of them.
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
        Submission {
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

/// After how many seconds half of a site is free for good.
fn half_free(slots: &[Slot], now: Time, processors: u32) -> f64 {
    let mut free = 0;
    let mut last = slots.iter().filter(|slot| slot.divisible);
    let half = last.find(|slot| {
        free += slot.processors;
        2 * free >= processors
    });
    half.map_or(f64::INFINITY, |slot| seconds(slot.start - now))
}

/// Plans on what a site advertises at a moment: how many plans, and what each choice takes.
fn provisioned(
    dag: &Dag,
    mut slots: Vec<Slot>,
    now: Time,
    choices: &[Choice],
    planning: &Planning,
) -> (usize, Vec<Option<Planned>>) {
    // The planner's time begins with the submission.
    for slot in &mut slots {
        slot.start -= now;
        slot.end -= now;
    }
    let links = Links::default();
    let mut lister = Lister::new(dag, &links, &slots, planning.method);
    let front = search(&mut lister, planning.search, planning.budget, planning.seed, false).front;
    let floor = dag.work(1);
    let choose = |choice: &Choice| {
        let budget = choice.most.map(|most| most * floor);
        let constraint = Constraint { budget, ..Constraint::default() };
        let point =
            front.choose(choice.alpha, &constraint).or_else(|nearest| nearest.ok_or(())).ok()?;
        Some(Planned { makespan_s: seconds(point.is.makespan), cost: point.is.cost })
    };
    (front.points().len(), choices.iter().map(choose).collect())
}

/// Submits each task when its parents have ended; what others submit meanwhile comes in between. Returns the makespan.
pub fn best_effort(dag: &Dag, mut table: Table, others: &[super::load::Job], now: Time) -> Time {
    let mut others = others.iter().peekable();
    let mut waits: Vec<usize> = (0..dag.len()).map(|task| dag.parents(task).len()).collect();
    let mut ready_at: Vec<Time> = vec![now; dag.len()];
    // The earliest first; of those at once the first of the workflow.
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
