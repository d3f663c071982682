//! The Pareto front of plans, and the choice of one of them.
//!
//! Source: the paper, section 3 (domination, equations 7 and 8). This module does not know the
//! search.

use serde::{Deserialize, Serialize};

use super::slot::SlotSet;
use super::{Time, seconds};

/// Cost and makespan of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objectives {
    /// Allocation cost of its slots.
    pub cost: f64,
    /// Scheduling cost: the makespan.
    pub makespan: Time,
}

impl Objectives {
    /// Whether it is no worse in both objectives and better in one.
    pub fn dominates(&self, other: &Self) -> bool {
        self.cost <= other.cost
            && self.makespan <= other.makespan
            && (self.cost < other.cost || self.makespan < other.makespan)
    }
}

/// A plan with its objectives.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanPoint {
    /// Objectives of the plan.
    pub objectives: Objectives,
    /// Set of chosen slots.
    pub slots: SlotSet,
    /// The [cost weight](super::ListScheduler::set_cost_weight) of its schedule.
    pub cost_weight: f64,
}

/// Constraint of a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// Maximum makespan, if limited.
    pub deadline: Option<Time>,
    /// Maximum cost, if limited.
    pub budget: Option<f64>,
}

impl Constraint {
    /// Whether a plan satisfies the constraint.
    pub fn allows(&self, objectives: &Objectives) -> bool {
        self.deadline.is_none_or(|most| objectives.makespan <= most)
            && self.budget.is_none_or(|most| objectives.cost <= most)
    }

    /// Relative violation of the constraint: the larger of both.
    fn violation(&self, objectives: &Objectives) -> f64 {
        let over = |has: f64, most: f64| {
            if has <= most { 0.0 } else { (has - most) / most.max(f64::MIN_POSITIVE) }
        };
        let late =
            self.deadline.map_or(0.0, |most| over(seconds(objectives.makespan), seconds(most)));
        late.max(self.budget.map_or(0.0, |most| over(objectives.cost, most)))
    }
}

/// A Pareto front: plans that neither dominate nor equal one another, in ascending order of cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParetoFront {
    points: Vec<PlanPoint>,
}

impl ParetoFront {
    /// The plans in ascending order of cost and descending order of makespan.
    pub fn points(&self) -> &[PlanPoint] {
        &self.points
    }

    /// The same plans with other sets of slots, such as those of whole offers.
    pub fn map_slots(mut self, slots: impl Fn(&SlotSet) -> SlotSet) -> Self {
        self.points.iter_mut().for_each(|point| point.slots = slots(&point.slots));
        self
    }

    /// Inserts a plan unless a present one is at least as good, and removes those that it
    /// dominates. Returns whether it was inserted.
    pub fn insert(&mut self, objectives: Objectives, plan: &SlotSet) -> bool {
        self.insert_weighted(objectives, plan, 0.0)
    }

    /// Like [`ParetoFront::insert`], for a schedule with this cost weight.
    pub fn insert_weighted(
        &mut self,
        objectives: Objectives,
        plan: &SlotSet,
        cost_weight: f64,
    ) -> bool {
        if !objectives.cost.is_finite() {
            return false;
        }
        // The last of the plans with at most this cost is the shortest of them.
        let at = self.points.partition_point(|point| point.objectives.cost <= objectives.cost);
        if at > 0 && self.points[at - 1].objectives.makespan <= objectives.makespan {
            return false;
        }
        let costs_as_much = self.points[..at]
            .iter()
            .rev()
            .take_while(|p| p.objectives.cost == objectives.cost)
            .count();
        let from = at - costs_as_much;
        let longer = self.points[at..]
            .iter()
            .take_while(|p| p.objectives.makespan >= objectives.makespan)
            .count();
        let point = PlanPoint { objectives, slots: plan.clone(), cost_weight };
        self.points.splice(from..at + longer, [point]);
        true
    }

    /// Chooses a plan that satisfies a constraint by a trade-off.
    ///
    /// It minimises `alpha` times normalised cost plus `1 - alpha` times normalised makespan
    /// (equations 7 and 8; 0 selects the shortest, 1 the cheapest). Both are normalised over the
    /// whole front, and 0 where all are equal. Of equally good plans, it takes the shorter.
    ///
    /// # Errors
    /// No plan satisfies the constraint: returns the one with the least violation, if there is any
    /// plan.
    pub fn choose(
        &self,
        alpha: f64,
        constraint: &Constraint,
    ) -> Result<&PlanPoint, Option<&PlanPoint>> {
        let (Some(cheapest), Some(shortest)) = (self.points.first(), self.points.last()) else {
            return Err(None);
        };
        let part = |value: f64, least: f64, most: f64| {
            if most > least { (value - least) / (most - least) } else { 0.0 }
        };
        let value = |point: &&PlanPoint| {
            let cost =
                part(point.objectives.cost, cheapest.objectives.cost, shortest.objectives.cost);
            let length = part(
                seconds(point.objectives.makespan),
                seconds(shortest.objectives.makespan),
                seconds(cheapest.objectives.makespan),
            );
            alpha * cost + (1.0 - alpha) * length
        };
        let allowed = self.points.iter().rev().filter(|point| constraint.allows(&point.objectives));
        // `min_by` keeps the first of equals: the shorter.
        if let Some(best) = allowed.min_by(|a, b| value(a).total_cmp(&value(b))) {
            return Ok(best);
        }
        let violation = |point: &&PlanPoint| constraint.violation(&point.objectives);
        Err(self.points.iter().rev().min_by(|a, b| violation(a).total_cmp(&violation(b))))
    }

    /// Number of these plans in the merged front of several fronts (the paper's third figure counts
    /// them by scheduler).
    pub fn survivors<'a>(&self, all: impl IntoIterator<Item = &'a ParetoFront>) -> usize {
        let others: Vec<&ParetoFront> = all.into_iter().collect();
        let beaten = |point: &PlanPoint| {
            others.iter().any(|front| {
                front.points.iter().any(|other| other.objectives.dominates(&point.objectives))
            })
        };
        self.points.iter().filter(|point| !beaten(point)).count()
    }
}

/// Hypervolume of a front: the area that it dominates up to a reference point, as a fraction of the
/// reference's area. It is 0 for an empty front, and 1 for a plan without cost and time.
pub fn hypervolume(front: &ParetoFront, reference: Objectives) -> f64 {
    let (cost, length) = (reference.cost, seconds(reference.makespan));
    let mut area = 0.0;
    let mut above = length;
    for point in front.points() {
        let makespan = seconds(point.objectives.makespan);
        if point.objectives.cost < cost && makespan < above {
            area += (cost - point.objectives.cost) * (above - makespan);
            above = makespan;
        }
    }
    area / (cost * length)
}
