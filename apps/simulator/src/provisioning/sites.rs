//! The search itself, on slots of four sites: its front, the schedulers' shares, what population, crossover and mutation do.
//!
//! Source: the paper, section 3 (figures 1 to 3 and the text after them). Fronts are held against one another as there: merged, without
//! what is dominated, each search counts its own that are left; besides by the area that they dominate. One draw of slots and workflow says
//! little, for such a front has a handful of plans: searches are held against one another over several.

use serde::Serialize;
use springtide_actors::policy::provisioning::{
    Budget, Constraint, Dag, Found, Front, Links, Lister, Method, Objectives, SECOND, Search, Slot,
    hypervolume, search, seconds,
};

use super::compare::SERVICE_UNIT;
use super::{Range, made};
use crate::on_all_cores;

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

/// A search as one of several ways.
#[derive(Clone, Debug)]
pub struct Way {
    /// What it is called.
    pub name: String,
    /// How tasks are placed.
    pub method: Method,
    /// How sets are searched.
    pub search: Search,
    /// How long.
    pub budget: Budget,
}

/// Holds ways against one another on each of several draws: by draw, then by way.
pub fn hold(ways: &[Way], seeds: &[u64]) -> Vec<Vec<Rival>> {
    on_all_cores(seeds, |&seed| {
        let instance = Instance::drawn(seed);
        let find = |way: &Way| {
            let found = instance.search(way.method, way.search, way.budget, seed, false);
            (way.name.clone(), found)
        };
        rivals(ways.iter().map(find).collect())
    })
}

/// Holds searches of one draw against one another.
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

/// What one way came to over several draws.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// What it is called.
    pub name: String,
    /// Sets tried.
    pub evaluations: Range,
    /// Plans of which none is dominated by its own.
    pub front: Range,
    /// Nor by any other's.
    pub survivors: Range,
    /// These over all draws together.
    pub all_survivors: usize,
    /// In so many draws no other way has more of them.
    pub first_in: usize,
    /// The area it dominates, as a part of all.
    pub hypervolume: Range,
}

/// Standings of ways over draws.
pub fn standings(draws: &[Vec<Rival>]) -> Vec<Standing> {
    let ways = draws.iter().map(Vec::len).min().unwrap_or(0);
    let standing = |way: usize| {
        let over = |of: &dyn Fn(&Rival) -> f64| Range::of(draws.iter().map(|draw| of(&draw[way])));
        let is_first =
            |draw: &&Vec<Rival>| draw.iter().all(|other| other.survivors <= draw[way].survivors);
        Standing {
            name: draws[0][way].name.clone(),
            evaluations: over(&|rival| rival.evaluations as f64),
            front: over(&|rival| rival.front as f64),
            survivors: over(&|rival| rival.survivors as f64),
            all_survivors: draws.iter().map(|draw| draw[way].survivors).sum(),
            first_in: draws.iter().filter(is_first).count(),
            hypervolume: over(&|rival| rival.hypervolume),
        }
    };
    (0..ways).map(standing).collect()
}

/// What each trade-off takes of a front.
pub fn sweep(front: &Front, alphas: &[f64]) -> Vec<(f64, Plan)> {
    let take = |&alpha: &f64| {
        let point = front.choose(alpha, &Constraint::default()).ok()?;
        Some((alpha, point.is.into()))
    };
    alphas.iter().filter_map(take).collect()
}
