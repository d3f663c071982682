//! Search for sets of slots: the paper's multi-objective genetic search, a pruned search, and
//! exhaustive enumeration of small instances.
//!
//! Source: the paper, section 3; ranks and sharing within a rank follow Fonseca and Fleming 1993,
//! stochastic universal sampling follows Baker 1987. This module does not know the placement of
//! tasks.
//!
//! *The paper's search*: initial sets contain each slot with probability one half. Each generation
//! is ranked by the number of sets that dominate a set. Fitness decreases linearly with the rank
//! and is shared among sets near one another. Parents are drawn by fitness, with two-point
//! crossover and mutation of each bit with probability `1/n`. A chosen slot is paid, used or not.
//! Every plan that is not dominated is kept.
//!
//! *The pruned search* evaluates only the used part of a set, which has the same schedule at a
//! lower cost. It starts with heuristic sets: all slots; repeatedly without the worst-used slot;
//! each site alone; and only the divisible slots. Then it searches around the kept sets: slots out,
//! in or exchanged, the union or a mixture of two kept sets, and sparse sets between. Where rates
//! differ, each set has a cost weight, which the search varies too. Nothing is evaluated twice.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use springtide_base::random::SplitMix;

use super::front::{Objectives, ParetoFront};
use super::list::{ListScheduler, ScheduleResult};
use super::seconds;
use super::slot::{Slot, SlotSet};

/// Limits of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Number of sets in a generation.
    pub population: usize,
    /// Generations after the first one.
    pub iterations: usize,
}

impl Budget {
    /// Maximum number of evaluated sets.
    pub fn evaluations(&self) -> usize {
        self.population.saturating_mul(self.iterations + 1)
    }
}

/// Method of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Search {
    /// The genetic search of the paper.
    Paper {
        /// Number of cuts of parents.
        crossover: usize,
        /// Probability of flipping a bit, times the number of slots.
        mutation: f64,
    },
    /// The pruned search.
    Pruned,
}

impl Search {
    /// The paper's search with its recommended parameters: two cuts, one mutated bit per set on
    /// average.
    pub const PAPER: Self = Self::Paper { crossover: 2, mutation: 1.0 };
}

/// Result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchResult {
    /// The Pareto front of the plans.
    pub front: ParetoFront,
    /// Number of evaluated sets.
    pub evaluations: usize,
    /// Number of feasible sets among them.
    pub feasible: usize,
    /// Objectives of all evaluated plans, if requested.
    pub all: Vec<Objectives>,
}

/// Runs a search. The same seed gives the same result.
pub fn search(
    lister: &mut ListScheduler<'_>,
    how: Search,
    budget: Budget,
    seed: u64,
    keep_all: bool,
) -> SearchResult {
    let mut trial = Trial { lister, found: SearchResult::default(), keep_all };
    trial.lister.set_cost_weight(0.0);
    let mut random = SplitMix(seed);
    if !trial.lister.slots().is_empty() && budget.population > 0 {
        match how {
            Search::Paper { crossover, mutation } => {
                Paper { crossover, mutation, budget }.run(&mut trial, &mut random);
            }
            Search::Pruned => pruned(&mut trial, budget.evaluations(), &mut random),
        }
    }
    trial.found
}

/// Evaluates every set of at most 24 slots: the exact front.
///
/// # Panics
/// Panics with more than 24 slots.
pub fn enumerate(lister: &mut ListScheduler<'_>) -> SearchResult {
    let count = lister.slots().len();
    assert!(count <= 24, "2^{count} sets are too many to try");
    let mut trial = Trial { lister, found: SearchResult::default(), keep_all: false };
    for set in 1..1u64 << count {
        let genome = SlotSet::of_word(set, count);
        // An unused slot affects only the cost, and the set without it is evaluated too.
        trial.chosen(&genome);
    }
    trial.found
}

/// State of one search.
struct Trial<'l, 'a> {
    lister: &'l mut ListScheduler<'a>,
    found: SearchResult,
    keep_all: bool,
}

impl Trial<'_, '_> {
    fn ask(&mut self, set: &SlotSet) -> Option<ScheduleResult> {
        self.found.evaluations += 1;
        let outcome = self.lister.outcome(set)?;
        self.found.feasible += 1;
        Some(outcome)
    }

    fn keep(&mut self, is: Objectives, plan: &SlotSet, cost_weight: f64) {
        if self.keep_all {
            self.found.all.push(is);
        }
        self.found.front.insert_weighted(is, plan, cost_weight);
    }

    /// Evaluates a set at the cost of all its slots.
    fn chosen(&mut self, set: &SlotSet) -> Option<Objectives> {
        let ScheduleResult { cost, makespan, .. } = self.ask(set)?;
        let is = Objectives { cost, makespan };
        self.keep(is, set, 0.0);
        Some(is)
    }

    /// Evaluates a set at the cost of its used slots, and keeps these as the plan. Without a fixed
    /// order of tasks, repeats this until all slots are used. Returns the plan.
    fn used(&mut self, set: &SlotSet, cost_weight: f64) -> Option<SlotSet> {
        self.lister.set_cost_weight(cost_weight);
        let mut outcome = self.ask(set)?;
        let mut asked = set.clone();
        while !self.lister.has_fixed_order() && outcome.used != asked {
            asked = outcome.used;
            outcome = self.ask(&asked)?;
        }
        let ScheduleResult { cost_used, makespan, used, .. } = outcome;
        let is = Objectives { cost: cost_used, makespan };
        self.keep(is, &used, cost_weight);
        Some(used)
    }
}

/// A random set with this probability of each slot.
fn random_set(count: usize, share: f64, random: &mut SplitMix) -> SlotSet {
    let mut set = SlotSet::none(count);
    (0..count).for_each(|slot| set.set(slot, random.unit() < share));
    set
}

struct Paper {
    crossover: usize,
    mutation: f64,
    budget: Budget,
}

impl Paper {
    fn run(&self, trial: &mut Trial<'_, '_>, random: &mut SplitMix) {
        let count = trial.lister.slots().len();
        let size = self.budget.population;
        let mut sets: Vec<SlotSet> = (0..size).map(|_| random_set(count, 0.5, random)).collect();
        let mut worth: Vec<Option<Objectives>> = sets.iter().map(|set| trial.chosen(set)).collect();
        for _ in 0..self.budget.iterations {
            let fitness = fitness(&worth);
            let parents = sample(&fitness, size, random);
            let mut next = Vec::with_capacity(size);
            for pair in parents.chunks(2) {
                let (mut a, mut b) = (sets[pair[0]].clone(), sets[pair[pair.len() - 1]].clone());
                self.cross(&mut a, &mut b, random);
                next.extend([a, b]);
            }
            next.truncate(size);
            let turned = self.mutation / count as f64;
            for set in &mut next {
                for slot in 0..count {
                    if random.unit() < turned {
                        set.set(slot, !set.has(slot));
                    }
                }
            }
            worth = next.iter().map(|set| trial.chosen(set)).collect();
            sets = next;
        }
    }

    /// Exchanges every other segment between cuts.
    fn cross(&self, a: &mut SlotSet, b: &mut SlotSet, random: &mut SplitMix) {
        let count = a.len();
        let mut cuts: Vec<usize> = (0..self.crossover).map(|_| 1 + random.below(count)).collect();
        cuts.sort_unstable();
        let mut cuts = cuts.into_iter().peekable();
        let mut other = false;
        for slot in 0..count {
            while cuts.next_if_eq(&slot).is_some() {
                other = !other;
            }
            if other {
                let (x, y) = (a.has(slot), b.has(slot));
                a.set(slot, y);
                b.set(slot, x);
            }
        }
    }
}

/// Fitness by rank, shared among near sets of a rank. An infeasible set is dominated by every plan.
fn fitness(worth: &[Option<Objectives>]) -> Vec<f64> {
    let count = worth.len();
    let dominates = |a: &Option<Objectives>, b: &Option<Objectives>| match (a, b) {
        (Some(a), Some(b)) => a.dominates(b),
        (Some(_), None) => true,
        (None, _) => false,
    };
    let rank =
        |one: &Option<Objectives>| worth.iter().filter(|other| dominates(other, one)).count();
    let ranks: Vec<usize> = worth.iter().map(rank).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&at| ranks[at]);
    // Distances use objectives scaled from 0 to 1 over this generation.
    let plans = || worth.iter().flatten();
    let range = |of: &dyn Fn(&Objectives) -> f64| {
        let least = plans().map(of).fold(f64::INFINITY, f64::min);
        let most = plans().map(of).fold(f64::NEG_INFINITY, f64::max);
        (least, (most - least).max(f64::MIN_POSITIVE))
    };
    let (cost_of, length_of) = (|is: &Objectives| is.cost, |is: &Objectives| seconds(is.makespan));
    let (costs, lengths) = (range(&cost_of), range(&length_of));
    let place = |at: usize| {
        worth[at].map(|is| {
            ((cost_of(&is) - costs.0) / costs.1, (length_of(&is) - lengths.0) / lengths.1)
        })
    };
    let sigma = 2.0 / (count.max(2) - 1) as f64;
    let near = |a: usize, b: usize| match (place(a), place(b)) {
        (Some(a), Some(b)) => (1.0 - (a.0 - b.0).hypot(a.1 - b.1) / sigma).max(0.0),
        // Infeasible sets count as near one another.
        (a, b) => f64::from(a.is_none() && b.is_none()),
    };
    let mut fitness = vec![0.0; count];
    let mut from = 0;
    while from < count {
        let rank = ranks[order[from]];
        let same = order[from..].iter().take_while(|&&at| ranks[at] == rank).count();
        let of_rank = &order[from..from + same];
        // From `count` for the best down to 1, averaged within the rank.
        let mean = (from..from + same).map(|at| (count - at) as f64).sum::<f64>() / same as f64;
        let shared = of_rank
            .iter()
            .map(|&a| mean / of_rank.iter().map(|&b| near(a, b)).sum::<f64>().max(1.0));
        let shared: Vec<f64> = shared.collect();
        let scale = mean * same as f64 / shared.iter().sum::<f64>();
        for (&at, value) in of_rank.iter().zip(shared) {
            fitness[at] = value * scale;
        }
        from += same;
    }
    fitness
}

/// Draws `count` sets by stochastic universal sampling, in random order.
fn sample(fitness: &[f64], count: usize, random: &mut SplitMix) -> Vec<usize> {
    let step = fitness.iter().sum::<f64>() / count as f64;
    let mut pointer = random.unit() * step;
    let mut sum = 0.0;
    let mut drawn = Vec::with_capacity(count);
    for (at, value) in fitness.iter().enumerate() {
        sum += value;
        while pointer < sum && drawn.len() < count {
            drawn.push(at);
            pointer += step;
        }
    }
    // Rounding may have dropped the last pointer.
    drawn.resize(count, fitness.len() - 1);
    for at in (1..count).rev() {
        drawn.swap(at, random.below(at + 1));
    }
    drawn
}

/// The pruned search with at most `most` evaluations.
fn pruned(trial: &mut Trial<'_, '_>, most: usize, random: &mut SplitMix) {
    let count = trial.lister.slots().len();
    let weights = cost_weights(trial.lister.slots());
    // With the index of the cost weight.
    let mut met: BTreeSet<(SlotSet, usize)> = BTreeSet::new();
    let left = |trial: &Trial<'_, '_>| trial.found.evaluations < most;
    // Heuristic starts: all slots, each site, and repeatedly without the costliest slot.
    let mut starts = vec![SlotSet::all(count)];
    let sites = trial.lister.slots().iter().map(|slot| slot.site + 1).max().unwrap_or(0);
    if sites > 1 {
        for site in 0..sites {
            let mut of_site = SlotSet::none(count);
            for (slot, offer) in trial.lister.slots().iter().enumerate() {
                of_site.set(slot, offer.site == site);
            }
            starts.push(of_site);
        }
    }
    // Divisible slots cost nothing unused. The cheapest plans often cost the same with all of them,
    // and a random search finds that set late.
    let mut divisible = SlotSet::none(count);
    for (slot, offer) in trial.lister.slots().iter().enumerate() {
        divisible.set(slot, offer.divisible);
    }
    if !divisible.is_empty() {
        starts.insert(0, divisible);
    }
    // At most half of the evaluations are for heuristic starts.
    let for_starts = most / 2;
    let mut leaner: Vec<SlotSet> = Vec::new();
    for start in starts {
        // A weight has no effect on a single site.
        let is_wide = start.iter().any(|slot| {
            let sites = trial.lister.slots();
            start.iter().next().is_some_and(|first| sites[first].site != sites[slot].site)
        });
        let weights = if is_wide { &weights[..] } else { &weights[..1] };
        for (index, weight) in weights.iter().enumerate() {
            if trial.found.evaluations < for_starts.max(1) && met.insert((start.clone(), index)) {
                let used = trial.used(&start, *weight);
                leaner.extend(used.filter(|_| index == 0));
            }
        }
    }
    while let Some(set) = leaner.pop() {
        if trial.found.evaluations >= for_starts {
            break;
        }
        let Some(worst) = worst_used(trial, &set) else { continue };
        let mut without = set.clone();
        without.set(worst, false);
        if !without.is_empty() && met.insert((without.clone(), 0)) {
            leaner.extend(trial.used(&without, 0.0));
        }
    }
    let mut idle = 0;
    while left(trial) && idle < 64 * most {
        let (set, index) = offspring(trial, count, &weights, random);
        if set.is_empty() || !met.insert((set.clone(), index)) {
            // A small instance may be explored completely.
            idle += 1;
            let all = ((count as f64).exp2() - 1.0) * weights.len() as f64;
            if idle % 4096 == 4095 && met.len() as f64 >= all {
                break;
            }
            continue;
        }
        if let Some(used) = trial.used(&set, weights[index]) {
            met.insert((used, index));
        }
    }
}

/// The cost weights that a search tries. With equal rates, the earliest finish costs least where
/// sites are equal, and a weight has no effect.
fn cost_weights(slots: &[Slot]) -> Vec<f64> {
    let rates = || slots.iter().map(|slot| slot.price.rate).filter(|rate| *rate > 0.0);
    let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    if least >= most {
        return vec![0.0];
    }
    // At 1, a task waits as long as the cost of the dearest slot would pay for its own runtime.
    let factors = (-16..16).map(|quarter| (f64::from(quarter) / 4.0).exp2());
    std::iter::once(0.0).chain(factors.map(|factor| factor / most)).collect()
}

/// The costliest slot of a set: the largest that is not divisible, else the one with the highest
/// price. None if removing a slot saves nothing.
fn worst_used(trial: &Trial<'_, '_>, set: &SlotSet) -> Option<usize> {
    let slots = trial.lister.slots();
    let least = set.iter().map(|slot| slots[slot].price.rate).fold(f64::INFINITY, f64::min);
    let saves = |slot: &usize| {
        let Slot { divisible, price, .. } = &slots[*slot];
        !divisible || price.rate > least || price.fixed > 0.0
    };
    let costs = |slot: &usize| {
        let offer = &slots[*slot];
        (!offer.divisible, offer.whole(offer.end))
    };
    set.iter().filter(saves).max_by(|a, b| {
        let (a, b) = (costs(a), costs(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    })
}

/// A set near the kept ones, or a sparse one, and the index of its cost weight.
fn offspring(
    trial: &Trial<'_, '_>,
    count: usize,
    weights: &[f64],
    random: &mut SplitMix,
) -> (SlotSet, usize) {
    let points = trial.found.front.points();
    let sparse = |random: &mut SplitMix| {
        let share = random.unit();
        random_set(count, share * share * 0.6 + 0.02, random)
    };
    if points.is_empty() || random.unit() < 0.1 {
        // One weight needs no number, so that a search without prices draws as few as possible.
        let index = if weights.len() > 1 { random.below(weights.len()) } else { 0 };
        return (sparse(random), index);
    }
    let parent = &points[random.below(points.len())];
    let one = &parent.slots;
    let other = &points[random.below(points.len())].slots;
    let mut set = one.clone();
    let mut index = weights.iter().position(|weight| *weight == parent.cost_weight).unwrap_or(0);
    if weights.len() > 1 && random.unit() < 0.5 {
        index = (index + random.below(9)).saturating_sub(4).min(weights.len() - 1);
        if random.unit() < 0.5 {
            return (set, index);
        }
    }
    let ones: Vec<usize> = one.iter().collect();
    let drop_one =
        |set: &mut SlotSet, random: &mut SplitMix| set.set(ones[random.below(ones.len())], false);
    let add_one = |set: &mut SlotSet, random: &mut SplitMix| set.set(random.below(count), true);
    match random.below(8) {
        0 => drop_one(&mut set, random),
        1 => {
            drop_one(&mut set, random);
            drop_one(&mut set, random);
        }
        2 => add_one(&mut set, random),
        3 | 4 => {
            drop_one(&mut set, random);
            add_one(&mut set, random);
        }
        5 => {
            for _ in 0..1 + random.below(4) {
                add_one(&mut set, random);
            }
        }
        6 => {
            // Each slot from one of both parents, with equal probability.
            for slot in other.iter().chain(ones.iter().copied()) {
                let from = if random.unit() < 0.5 { one } else { other };
                set.set(slot, from.has(slot));
            }
        }
        _ => {
            other.iter().for_each(|slot| set.set(slot, true));
            drop_one(&mut set, random);
        }
    }
    (set, index)
}
