//! The search over slots of four sites: its front, schedulers, populations, crossover and mutation.
//!
//! Source: the paper, section 3 (figures 1 to 3 and the text after them). Fronts are compared as in
//! the paper: all are merged, dominated plans are removed, and each search counts its remaining
//! plans. The dominated area is a second measure. A front of one draw has few plans, so searches
//! are compared over several draws.

use serde::Serialize;
use springtide_actors::policy::provisioning::{
    Budget, Constraint, Dag, ListScheduler, Method, Objectives, ParetoFront, SECOND, Search,
    SearchResult, SiteLinks, Slot, hypervolume, search, seconds,
};

use super::compare::SERVICE_UNIT;
use super::{Range, made};
use crate::on_all_cores;

/// Slots, workflow and links of one draw.
#[derive(Debug)]
pub struct Instance {
    /// The slots of all sites.
    pub slots: Vec<Slot>,
    /// The workflow to plan.
    pub dag: Dag,
    /// The transfer times between sites.
    pub links: SiteLinks,
}

impl Instance {
    /// Draws an instance: 124 slots, and 100 tasks of one processor and 100 s in ten levels, with
    /// transfers of 100 s.
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

    /// Searches the plans of the instance.
    pub fn search(
        &self,
        method: Method,
        how: Search,
        budget: Budget,
        seed: u64,
        keep_all: bool,
    ) -> SearchResult {
        let mut lister = ListScheduler::new(&self.dag, &self.links, &self.slots, method);
        search(&mut lister, how, budget, seed, keep_all)
    }
}

/// The reference point of hypervolumes: a million processor-seconds and 10,000 s.
pub const REFERENCE: Objectives = Objectives { cost: 1e6, makespan: 10_000 * SECOND };

/// A plan's cost and makespan, in the paper's units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanValue {
    /// The cost in service units.
    pub cost_su: f64,
    /// The makespan in seconds.
    pub makespan_s: f64,
}

impl From<Objectives> for PlanValue {
    fn from(is: Objectives) -> Self {
        Self { cost_su: is.cost / SERVICE_UNIT, makespan_s: seconds(is.makespan) }
    }
}

/// The result of one of several searches on a draw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchOutcome {
    /// The name of the search.
    pub name: String,
    /// The number of sets tried.
    pub evaluations: usize,
    /// The number of sets that gave a plan.
    pub feasible: usize,
    /// The number of plans in its own front.
    pub front: usize,
    /// The number of these plans that no other search dominates.
    pub survivors: usize,
    /// The dominated area, as a part of all.
    pub hypervolume: f64,
    /// The plans of its front.
    pub plans: Vec<PlanValue>,
}

/// A named configuration of the search.
#[derive(Clone, Debug)]
pub struct SearchConfig {
    /// The name of the search.
    pub name: String,
    /// The placement of tasks on slots.
    pub method: Method,
    /// The search over sets of slots.
    pub search: Search,
    /// The limit of the search.
    pub budget: Budget,
}

/// Compares searches on each of several draws: results by draw, then by search.
pub fn compare_searches(ways: &[SearchConfig], seeds: &[u64]) -> Vec<Vec<SearchOutcome>> {
    on_all_cores(seeds, |&seed| {
        let instance = Instance::drawn(seed);
        let find = |way: &SearchConfig| {
            let found = instance.search(way.method, way.search, way.budget, seed, false);
            (way.name.clone(), found)
        };
        rivals(ways.iter().map(find).collect())
    })
}

/// Compares the searches of one draw.
pub fn rivals(found: Vec<(String, SearchResult)>) -> Vec<SearchOutcome> {
    let fronts: Vec<&ParetoFront> = found.iter().map(|(_, found)| &found.front).collect();
    let rival = |(name, of): &(String, SearchResult)| SearchOutcome {
        name: name.clone(),
        evaluations: of.evaluations,
        feasible: of.feasible,
        front: of.front.points().len(),
        survivors: of.front.survivors(fronts.iter().copied()),
        hypervolume: hypervolume(&of.front, REFERENCE),
        plans: of.front.points().iter().map(|point| point.objectives.into()).collect(),
    };
    found.iter().map(rival).collect()
}

/// The results of one search over several draws.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchRanking {
    /// The name of the search.
    pub name: String,
    /// The number of sets tried.
    pub evaluations: Range,
    /// The number of plans in its own front.
    pub front: Range,
    /// The number of these plans that no other search dominates.
    pub survivors: Range,
    /// The sum of these plans over all draws.
    pub all_survivors: usize,
    /// The number of draws in which no other search has more of them.
    pub first_in: usize,
    /// The dominated area, as a part of all.
    pub hypervolume: Range,
}

/// The results of each search over all draws.
pub fn standings(draws: &[Vec<SearchOutcome>]) -> Vec<SearchRanking> {
    let ways = draws.iter().map(Vec::len).min().unwrap_or(0);
    let standing = |way: usize| {
        let over =
            |of: &dyn Fn(&SearchOutcome) -> f64| Range::of(draws.iter().map(|draw| of(&draw[way])));
        let is_first = |draw: &&Vec<SearchOutcome>| {
            draw.iter().all(|other| other.survivors <= draw[way].survivors)
        };
        SearchRanking {
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

/// The plan that each trade-off chooses of a front.
pub fn sweep(front: &ParetoFront, alphas: &[f64]) -> Vec<(f64, PlanValue)> {
    let take = |&alpha: &f64| {
        let point = front.choose(alpha, &Constraint::default()).ok()?;
        Some((alpha, point.objectives.into()))
    };
    alphas.iter().filter_map(take).collect()
}
