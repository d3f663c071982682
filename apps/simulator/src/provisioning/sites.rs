//! The search itself, on slots of four sites: its front, the schedulers' shares, what population, crossover and mutation do.
//!
//! Source: the paper, section 3 (figures 1 to 3 and the text after them). Fronts are held against one another as there: merged, without
//! what is dominated, each search counts its own that are left; besides by the area that they dominate.

use serde::Serialize;
use springtide_actors::policy::provisioning::{
    Budget, Constraint, Dag, Found, Front, Links, Lister, Method, Objectives, SECOND, Search, Slot,
    hypervolume, search, seconds,
};

use super::compare::SERVICE_UNIT;
use super::made;

/// Slots, workflow and links of one draw.
#[derive(Debug)]
pub struct Instance {
    /// The slots.
    pub slots: Vec<Slot>,
    /// The workflow.
    pub dag: Dag,
    /// How long data takes between sites.
    pub links: Links,
}

impl Instance {
    /// Draws one: 124 slots, 100 tasks of one processor and 100 s in ten levels, transfers as long.
    pub fn drawn(seed: u64) -> Self {
        let workflow = made::Layered {
            tasks: 100,
            levels: 10,
            runtime_s: 100.0,
            transfer_s: 100.0,
            processors: 1,
            most: 10,
        };
        Self {
            slots: made::four_sites(seed),
            dag: made::layered(&workflow, seed),
            links: made::links(),
        }
    }

    /// Searches it.
    pub fn search(
        &self,
        method: Method,
        how: Search,
        budget: Budget,
        seed: u64,
        keep_all: bool,
    ) -> Found {
        let mut lister = Lister::new(&self.dag, &self.links, &self.slots, method);
        search(&mut lister, how, budget, seed, keep_all)
    }
}

/// Every front is looked at below this: a million processor-seconds and 10,000 s.
pub const REFERENCE: Objectives = Objectives { cost: 1e6, makespan: 10_000 * SECOND };

/// A point, in the paper's units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Service units.
    pub cost_su: f64,
    /// Seconds.
    pub makespan_s: f64,
}

impl From<Objectives> for Plan {
    fn from(is: Objectives) -> Self {
        Self { cost_su: is.cost / SERVICE_UNIT, makespan_s: seconds(is.makespan) }
    }
}

/// One search among several of one question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rival {
    /// What it is called.
    pub name: String,
    /// Sets tried.
    pub evaluations: usize,
    /// Plans among them.
    pub feasible: usize,
    /// Of which none is dominated by its own.
    pub front: usize,
    /// Nor by any other's.
    pub survivors: usize,
    /// The area it dominates, as a part of all.
    pub hypervolume: f64,
    /// Its plans.
    pub plans: Vec<Plan>,
}

/// Holds searches against one another.
pub fn rivals(found: Vec<(String, Found)>) -> Vec<Rival> {
    let fronts: Vec<&Front> = found.iter().map(|(_, found)| &found.front).collect();
    let rival = |(name, of): &(String, Found)| Rival {
        name: name.clone(),
        evaluations: of.evaluations,
        feasible: of.feasible,
        front: of.front.points().len(),
        survivors: of.front.survivors(fronts.iter().copied()),
        hypervolume: hypervolume(&of.front, REFERENCE),
        plans: of.front.points().iter().map(|point| point.is.into()).collect(),
    };
    found.iter().map(rival).collect()
}

/// What each trade-off takes of a front.
pub fn sweep(front: &Front, alphas: &[f64]) -> Vec<(f64, Plan)> {
    let take = |&alpha: &f64| {
        let point = front.choose(alpha, &Constraint::default()).ok()?;
        Some((alpha, point.is.into()))
    };
    alphas.iter().filter_map(take).collect()
}
