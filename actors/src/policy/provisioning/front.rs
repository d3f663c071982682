//! Plans of which none is dominated: what is kept of them, what they are worth, and which of them is taken.
//!
//! Source: the paper, section 3 (domination, equations 7 and 8). Must not know how plans are found.

use serde::{Deserialize, Serialize};

use super::search::Genome;
use super::{Time, seconds};

/// What a plan costs, and how long the workflow takes on it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objectives {
    /// Allocation cost.
    pub cost: f64,
    /// Scheduling cost: the makespan.
    pub makespan: Time,
}

impl Objectives {
    /// Whether it is worse in nothing and better in something.
    pub fn dominates(&self, other: &Self) -> bool {
        self.cost <= other.cost
            && self.makespan <= other.makespan
            && (self.cost < other.cost || self.makespan < other.makespan)
    }
}

/// A plan: which slots, and what came of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What it is worth.
    pub is: Objectives,
    /// Which slots.
    pub plan: Genome,
}

/// What a choice must hold to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// Latest makespan.
    pub deadline: Option<Time>,
    /// Highest cost.
    pub budget: Option<f64>,
}

impl Constraint {
    /// Whether a plan holds to it.
    pub fn allows(&self, is: &Objectives) -> bool {
        self.deadline.is_none_or(|most| is.makespan <= most)
            && self.budget.is_none_or(|most| is.cost <= most)
    }

    /// By how much a plan misses it, as a part of what it asks: the larger of both.
    fn misses(&self, is: &Objectives) -> f64 {
        let over = |has: f64, most: f64| {
            if has <= most { 0.0 } else { (has - most) / most.max(f64::MIN_POSITIVE) }
        };
        let late = self.deadline.map_or(0.0, |most| over(seconds(is.makespan), seconds(most)));
        late.max(self.budget.map_or(0.0, |most| over(is.cost, most)))
    }
}

/// Plans of which none dominates another, nor equals it: the cheapest and longest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Front {
    points: Vec<Point>,
}

impl Front {
    /// Its plans, the cheapest first; each costs more and is shorter than the one before.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Puts a plan in, unless one that is there is as good; those that it dominates go. Returns whether it is in.
    pub fn insert(&mut self, is: Objectives, plan: &Genome) -> bool {
        if !is.cost.is_finite() {
            return false;
        }
        // Those that cost no more come before this; the last of them is the shortest.
        let at = self.points.partition_point(|point| point.is.cost <= is.cost);
        if at > 0 && self.points[at - 1].is.makespan <= is.makespan {
            return false;
        }
        let costs_as_much =
            self.points[..at].iter().rev().take_while(|p| p.is.cost == is.cost).count();
        let from = at - costs_as_much;
        let longer = self.points[at..].iter().take_while(|p| p.is.makespan >= is.makespan).count();
        let point = Point { is, plan: plan.clone() };
        self.points.splice(from..at + longer, [point]);
        true
    }

    /// The plan that a trade-off takes among those that hold to a constraint: the least `alpha` times normalised cost plus the rest times
    /// normalised makespan (equations 7 and 8; 0 is the shortest, 1 the cheapest). Both are normalised over the whole front; where
    /// all are equal they are 0. Of equals the shorter one.
    ///
    /// # Errors
    /// None holds to the constraint: the one that misses it least, if there is any plan.
    pub fn choose(&self, alpha: f64, constraint: &Constraint) -> Result<&Point, Option<&Point>> {
        let (Some(cheapest), Some(shortest)) = (self.points.first(), self.points.last()) else {
            return Err(None);
        };
        let part = |value: f64, least: f64, most: f64| {
            if most > least { (value - least) / (most - least) } else { 0.0 }
        };
        let value = |point: &&Point| {
            let cost = part(point.is.cost, cheapest.is.cost, shortest.is.cost);
            let length = part(
                seconds(point.is.makespan),
                seconds(shortest.is.makespan),
                seconds(cheapest.is.makespan),
            );
            alpha * cost + (1.0 - alpha) * length
        };
        let allowed = self.points.iter().rev().filter(|point| constraint.allows(&point.is));
        // The first of equals is kept: the shorter.
        if let Some(best) = allowed.min_by(|a, b| value(a).total_cmp(&value(b))) {
            return Ok(best);
        }
        let misses = |point: &&Point| constraint.misses(&point.is);
        Err(self.points.iter().rev().min_by(|a, b| misses(a).total_cmp(&misses(b))))
    }

    /// How many of these plans are in a front merged of several ones (the paper's third figure counts them by scheduler).
    pub fn survivors<'a>(&self, all: impl IntoIterator<Item = &'a Front>) -> usize {
        let others: Vec<&Front> = all.into_iter().collect();
        let beaten = |point: &Point| {
            others
                .iter()
                .any(|front| front.points.iter().any(|other| other.is.dominates(&point.is)))
        };
        self.points.iter().filter(|point| !beaten(point)).count()
    }
}

/// The area between a front and a reference point that all its points are better than, as a part of all that is better than the
/// reference: 0 of an empty front, 1 of a plan that costs nothing and takes no time.
pub fn hypervolume(front: &Front, reference: Objectives) -> f64 {
    let (cost, length) = (reference.cost, seconds(reference.makespan));
    let mut area = 0.0;
    let mut above = length;
    for point in front.points() {
        let makespan = seconds(point.is.makespan);
        if point.is.cost < cost && makespan < above {
            area += (cost - point.is.cost) * (above - makespan);
            above = makespan;
        }
    }
    area / (cost * length)
}
