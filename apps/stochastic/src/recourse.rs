//! The second stage: the cost of a first-stage decision in scenarios, and the cuts that follow from
//! it.
//!
//! Every scenario is solved from one root, a basis that all workers share, so its result depends on
//! no earlier scenario and on no machine. If only right-hand sides and the technology matrix are
//! random, the root keeps its factors and stays dual feasible. Random costs change its reduced
//! costs; a random recourse matrix is factored for each scenario.
//!
//! This module must not know tasks, workers or the method of the first stage.
//!
//! Source: Van Slyke and Wets, L-shaped linear programs with applications to optimal control and
//! stochastic programming (SIAM Journal on Applied Mathematics 1969).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lp::simplex::Pricing;
use crate::lp::{LinearProgram, RestartBasis, Simplex, Status};
use crate::model::{RandomElement, TwoStage};
use crate::sample::{Sampler, Scenario};

/// An optimality cut: a linear function that bounds the expected cost of some scenarios from below,
/// and equals it at the decision where it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The cost of the scenarios at that decision, weighted by probability.
    pub value: f64,
    /// A subgradient at that decision, by first-stage column.
    pub gradient: Vec<f64>,
}

impl Cut {
    /// The cut of no scenarios, for a number of columns.
    pub fn none(columns: usize) -> Self {
        Self { value: 0.0, gradient: vec![0.0; columns] }
    }

    /// Adds the cut of other scenarios. The same order of calls gives the same bits.
    ///
    /// # Panics
    /// If the other cut has another number of columns.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.gradient.len(), other.gradient.len());
        self.value += other.value;
        for (own, other) in self.gradient.iter_mut().zip(&other.gradient) {
            *own += other;
        }
    }
}

/// A feasibility cut `row x <= upper`: every first-stage decision with recourse in the scenario
/// meets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeasibilityCut {
    /// Coefficients by first-stage column.
    pub row: Vec<f64>,
    /// Upper bound of the product.
    pub upper: f64,
    /// The number of the scenario that lacks recourse at the decision.
    pub scenario: u64,
    /// The second-stage rows that exclude each other at the decision.
    pub rows: Vec<u32>,
}

/// A direction along which the cost of a second stage falls without end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondStageRay {
    /// The number of the scenario.
    pub scenario: u64,
    /// The direction, by second-stage column.
    pub direction: Vec<f64>,
}

/// The result of evaluating scenarios at a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Evaluation {
    /// All scenarios have a finite cost.
    Cut(Cut),
    /// A scenario has no recourse.
    Infeasible(FeasibilityCut),
    /// All scenarios have recourse, but the cost of one has no lower bound.
    Unbounded(SecondStageRay),
}

/// The cost of a scenario at a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScenarioCost {
    /// Its least cost.
    Finite(f64),
    /// It has no recourse.
    Infeasible,
    /// Its cost has no lower bound.
    Unbounded,
}

impl ScenarioCost {
    /// The cost, if it is finite.
    pub fn finite(self) -> Option<f64> {
        match self {
            Self::Finite(cost) => Some(cost),
            Self::Infeasible | Self::Unbounded => None,
        }
    }
}

/// A second stage that cannot be solved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the second stage could not be solved ({0}): look at the scaling of its numbers")]
pub struct RecourseError(&'static str);

impl RecourseError {
    fn of(status: Status) -> Self {
        match status {
            Status::Limit => Self("too many pivots"),
            _ => Self("no basis gives a confirmed answer"),
        }
    }
}

/// The last basis of each scenario, by the number of the scenario, of a worker.
#[derive(Clone, Debug, Default)]
pub struct BasisCache(BTreeMap<u64, Vec<u8>>);

/// The most bytes of a [`BasisCache`].
const CACHE_BYTES_MAX: usize = 256 << 20;

/// A sum of a ray's terms below this part of its largest term is rounding.
const RAY_TINY: f64 = 1e-9;

/// The choice of the basis that scenarios are solved from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootChoice {
    /// The basis of the logical variables.
    Slack,
    /// The optimal basis with all random elements at their means.
    Mean,
    /// The optimal basis of the first scenario; until there is one, as [`RootChoice::Slack`].
    First,
}

/// The second stage of a model, ready to be solved.
#[derive(Clone, Debug)]
pub struct Recourse {
    model: Arc<TwoStage>,
    simplex: Simplex,
    root: RestartBasis,
    /// The root as bits, for scenarios with their own matrix.
    root_bits: Vec<u8>,
    /// The decision.
    x: Vec<f64>,
    /// The right-hand side of each row at the decision, with the random elements of the core file.
    base: Vec<f64>,
    /// The rows with a random right-hand side or technology, ascending.
    random_rows: Vec<u32>,
    /// Whether the recourse matrix is random.
    random_matrix: bool,
    /// The random elements at their means.
    mean: Vec<(RandomElement, f64)>,
    /// The right-hand side of each row in the present scenario.
    rhs: Vec<f64>,
    /// The sum of dual values, weighted by probability.
    duals: Vec<f64>,
    solved: u64,
    /// Pivots and effort of the programs of earlier scenarios with their own matrix.
    earlier_work: (u64, u64),
}

impl Recourse {
    /// The second stage of a model, with a choice of its root.
    ///
    /// # Errors
    /// The root cannot be found.
    pub fn new(model: impl Into<Arc<TwoStage>>, choice: RootChoice) -> Result<Self, RecourseError> {
        let model = model.into();
        let mut random_rows: Vec<u32> = model
            .places()
            .filter_map(|place| match place {
                RandomElement::Rhs(row) | RandomElement::Technology(row, _) => Some(row as u32),
                RandomElement::Cost(_) | RandomElement::Recourse(..) => None,
            })
            .collect();
        random_rows.sort_unstable();
        random_rows.dedup();
        let random_matrix =
            model.places().any(|place| matches!(place, RandomElement::Recourse(..)));
        let second = &model.second;
        let mut simplex = Simplex::new(program(&model, &BTreeMap::new()), Pricing::Largest);
        let root = simplex.root().map_err(RecourseError::of)?;
        let (n, m) = (model.first.columns.len(), second.rows.len());
        let mut recourse = Self {
            root_bits: simplex.basis(),
            simplex,
            root,
            x: vec![0.0; n],
            base: second.rhs.clone(),
            random_rows,
            random_matrix,
            mean: model.mean().collect(),
            rhs: vec![0.0; m],
            duals: vec![0.0; m],
            solved: 0,
            earlier_work: (0, 0),
            model,
        };
        if choice == RootChoice::Mean {
            recourse.root_at_mean(&vec![0.0; n])?;
        }
        Ok(recourse)
    }

    /// Makes the root the optimal basis at a decision with all random elements at their means. The
    /// root stays if that program has no optimum.
    ///
    /// # Errors
    /// The program cannot be solved; the root stays.
    pub fn root_at_mean(&mut self, x: &[f64]) -> Result<(), RecourseError> {
        let mean = std::mem::take(&mut self.mean);
        let result = self.root_with(x, mean.iter().copied());
        self.mean = mean;
        result
    }

    /// Makes the root the optimal basis of a scenario at a decision. The root stays if that program
    /// has no optimum.
    ///
    /// # Errors
    /// The program cannot be solved; the root stays.
    pub fn root_at(&mut self, x: &[f64], scenario: &Scenario) -> Result<(), RecourseError> {
        let model = self.model.clone();
        self.root_with(x, scenario.values(&model))
    }

    fn root_with(
        &mut self,
        x: &[f64],
        values: impl Iterator<Item = (RandomElement, f64)>,
    ) -> Result<(), RecourseError> {
        self.at(x);
        self.simplex.restart(&self.root);
        self.set_elements(values);
        match self.simplex.solve() {
            Status::Optimal => self.keep_root(),
            Status::Infeasible | Status::Unbounded => {
                self.simplex.restart(&self.root);
                Ok(())
            }
            status => Err(RecourseError::of(status)),
        }
    }

    fn keep_root(&mut self) -> Result<(), RecourseError> {
        self.root = self.simplex.root().map_err(RecourseError::of)?;
        self.root_bits = self.simplex.basis();
        Ok(())
    }

    /// Sets a root that [`Recourse::take_root`] returned elsewhere. Equal roots give the same bits
    /// for the same scenarios.
    ///
    /// # Errors
    /// The root cannot be factored.
    pub fn set_root(&mut self, bits: &[u8]) -> Result<(), RecourseError> {
        self.simplex.set_basis(bits);
        self.keep_root()
    }

    /// The choice of root with the least effort for some scenarios at a decision, and the mean
    /// effort of a scenario. Effort depends on no clock, so the choice is the same on every
    /// machine. The root stays.
    ///
    /// # Errors
    /// Scenarios cannot be solved from any root.
    ///
    /// # Panics
    /// If the sampler has no scenario of such a number, or belongs to another model.
    pub fn choose_root(
        &self,
        x: &[f64],
        sampler: &Sampler,
        numbers: Range<u64>,
    ) -> Result<(RootChoice, f64), RecourseError> {
        let mut best: Option<(u64, RootChoice)> = None;
        let mut failure = RecourseError("no scenario was given");
        for choice in [RootChoice::Mean, RootChoice::First, RootChoice::Slack] {
            let mut other = Self::new(self.model.clone(), RootChoice::Slack)?;
            let taken = other.take_root(choice, x, sampler, numbers.start).and_then(|_| {
                other.at(x);
                let (before, mut scenario) = (other.effort(), Scenario::default());
                for number in numbers.clone() {
                    sampler.scenario(number, &mut scenario);
                    other.cost(&scenario)?;
                    if best.is_some_and(|(least, _)| other.effort() - before > least) {
                        break;
                    }
                }
                Ok(other.effort() - before)
            });
            match taken {
                Ok(effort) if best.is_none_or(|(least, _)| effort < least) => {
                    best = Some((effort, choice));
                }
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        let each = |effort: u64| effort as f64 / (numbers.end - numbers.start) as f64;
        best.map(|(effort, choice)| (choice, each(effort))).ok_or(failure)
    }

    /// Makes the root that of a choice at a decision, and returns it as bits. Starts from the slack
    /// basis, so earlier solves have no influence. `first` is the number of the first scenario.
    ///
    /// # Errors
    /// The root cannot be found.
    ///
    /// # Panics
    /// As [`Recourse::evaluate`].
    pub fn take_root(
        &mut self,
        choice: RootChoice,
        x: &[f64],
        sampler: &Sampler,
        first: u64,
    ) -> Result<Vec<u8>, RecourseError> {
        self.set_root(&[])?;
        match choice {
            RootChoice::Slack => {}
            RootChoice::Mean => self.root_at_mean(x)?,
            RootChoice::First => {
                let mut scenario = Scenario::default();
                sampler.scenario(first, &mut scenario);
                self.root_at(x, &scenario)?;
            }
        }
        self.simplex.restart(&self.root);
        let bits = self.simplex.basis();
        // Factored from the bits, as by every worker.
        self.set_root(&bits)?;
        Ok(bits)
    }

    /// The two-stage program itself.
    pub fn model(&self) -> &TwoStage {
        &self.model
    }

    /// The number of pivots.
    pub fn pivots(&self) -> u64 {
        self.earlier_work.0 + self.simplex.pivots()
    }

    /// The effort of all pivots: see [`Simplex::effort`].
    pub fn effort(&self) -> u64 {
        self.earlier_work.1 + self.simplex.effort()
    }

    /// The number of scenarios that were solved.
    pub fn solved(&self) -> u64 {
        self.solved
    }

    /// Sets the decision of the following evaluations.
    ///
    /// # Panics
    /// If it has another number of columns.
    pub fn at(&mut self, x: &[f64]) {
        self.x.clear();
        self.x.extend_from_slice(x);
        self.base.fill(0.0);
        self.model.technology.add_times(x, &mut self.base);
        for (base, rhs) in self.base.iter_mut().zip(&self.model.second.rhs) {
            *base = rhs - *base;
        }
        self.rhs.copy_from_slice(&self.base);
        for row in 0..self.rhs.len() {
            self.update_row_bounds(row);
        }
    }

    #[inline]
    fn update_row_bounds(&mut self, row: usize) {
        let (rhs, second) = (self.rhs[row], &self.model.second);
        self.simplex.set_row_bounds(row, rhs - second.below[row], rhs + second.above[row]);
    }

    /// Sets the random elements. A random recourse matrix makes a new program with the basis of the
    /// root.
    #[inline]
    fn set_elements(&mut self, values: impl Iterator<Item = (RandomElement, f64)>) {
        for &row in &self.random_rows {
            self.rhs[row as usize] = self.base[row as usize];
        }
        let model = self.model.clone();
        let mut entries: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        let mut costs: Vec<(usize, f64)> = Vec::new();
        for (place, value) in values {
            match place {
                RandomElement::Rhs(row) => self.rhs[row] += value - model.second.rhs[row],
                RandomElement::Technology(row, column) => {
                    let change = value - model.technology.get(row, column);
                    self.rhs[row] -= change * self.x[column];
                }
                RandomElement::Cost(column) => costs.push((column, value)),
                RandomElement::Recourse(row, column) => drop(entries.insert((row, column), value)),
            }
        }
        if self.random_matrix {
            self.earlier_work.0 += self.simplex.pivots();
            self.earlier_work.1 += self.simplex.effort();
            self.simplex = Simplex::new(program(&model, &entries), Pricing::Largest);
            (0..self.rhs.len()).for_each(|row| self.update_row_bounds(row));
        } else {
            for at in 0..self.random_rows.len() {
                self.update_row_bounds(self.random_rows[at] as usize);
            }
        }
        for (column, cost) in costs {
            self.simplex.set_cost(column, cost);
        }
        if self.random_matrix {
            self.simplex.set_basis(&self.root_bits);
        }
    }

    /// The cost of a scenario at the decision.
    ///
    /// # Errors
    /// The scenario cannot be solved.
    pub fn cost(&mut self, scenario: &Scenario) -> Result<ScenarioCost, RecourseError> {
        if !self.random_matrix {
            self.simplex.restart(&self.root);
        }
        self.solve(scenario, None)
    }

    /// Solves a scenario, from a basis if one is given.
    fn solve(
        &mut self,
        scenario: &Scenario,
        basis: Option<&[u8]>,
    ) -> Result<ScenarioCost, RecourseError> {
        let model = self.model.clone();
        self.set_elements(scenario.values(&model));
        if let Some(basis) = basis {
            self.simplex.set_basis(basis);
        }
        self.solved += 1;
        match self.simplex.solve() {
            Status::Optimal => Ok(ScenarioCost::Finite(self.simplex.objective())),
            Status::Infeasible => Ok(ScenarioCost::Infeasible),
            Status::Unbounded => Ok(ScenarioCost::Unbounded),
            status => Err(RecourseError::of(status)),
        }
    }

    /// Evaluates the scenarios of these numbers at the decision.
    ///
    /// # Errors
    /// A scenario cannot be solved.
    ///
    /// # Panics
    /// If the sampler has no scenario of such a number, or belongs to another model.
    pub fn evaluate(
        &mut self,
        sampler: &Sampler,
        numbers: Range<u64>,
    ) -> Result<Evaluation, RecourseError> {
        self.evaluate_from(sampler, numbers, None)
    }

    /// Evaluates scenarios, each from its last basis if the cache has one. This saves pivots while
    /// decisions change little. If a scenario has several optimal dual solutions, earlier solves
    /// decide which one is found.
    ///
    /// # Errors
    /// As [`Recourse::evaluate`].
    ///
    /// # Panics
    /// As [`Recourse::evaluate`].
    pub fn evaluate_with(
        &mut self,
        sampler: &Sampler,
        numbers: Range<u64>,
        cache: &mut BasisCache,
    ) -> Result<Evaluation, RecourseError> {
        self.evaluate_from(sampler, numbers, Some(cache))
    }

    fn evaluate_from(
        &mut self,
        sampler: &Sampler,
        numbers: Range<u64>,
        mut cache: Option<&mut BasisCache>,
    ) -> Result<Evaluation, RecourseError> {
        let mut cut = Cut::none(self.x.len());
        self.duals.fill(0.0);
        let mut unbounded = None;
        let mut scenario = Scenario::default();
        for number in numbers {
            sampler.scenario(number, &mut scenario);
            let last = cache.as_ref().and_then(|cache| cache.0.get(&number));
            let cost = match last {
                Some(bits) => self.solve(&scenario, Some(bits))?,
                None => self.cost(&scenario)?,
            };
            if let Some(BasisCache(bases)) = &mut cache {
                let bits = self.simplex.basis();
                if bases.contains_key(&number) || (bases.len() + 1) * bits.len() <= CACHE_BYTES_MAX
                {
                    bases.insert(number, bits);
                }
            }
            match cost {
                ScenarioCost::Finite(cost) => self.add_to(&mut cut, &scenario, cost),
                ScenarioCost::Infeasible => {
                    return Ok(Evaluation::Infeasible(self.feasibility_cut(number, &scenario)));
                }
                // A later scenario without recourse outweighs it.
                ScenarioCost::Unbounded => {
                    let direction = || self.simplex.direction().to_vec();
                    unbounded = unbounded.or_else(|| {
                        Some(SecondStageRay { scenario: number, direction: direction() })
                    });
                }
            }
        }
        if let Some(ray) = unbounded {
            return Ok(Evaluation::Unbounded(ray));
        }
        for (column, slope) in cut.gradient.iter_mut().enumerate() {
            for (row, value) in self.model.technology.column(column) {
                *slope -= value * self.duals[row];
            }
        }
        Ok(Evaluation::Cut(cut))
    }

    /// Adds the cost and the dual values of the scenario solved last to a cut.
    fn add_to(&mut self, cut: &mut Cut, scenario: &Scenario, cost: f64) {
        let probability = scenario.probability;
        cut.value += probability * cost;
        for (row, sum) in self.duals.iter_mut().enumerate() {
            *sum += probability * self.simplex.dual(row);
        }
        for (row, column, value) in scenario.technology_changes(&self.model) {
            let change = value - self.model.technology.get(row, column);
            cut.gradient[column] -= probability * self.simplex.dual(row) * change;
        }
    }

    /// The feasibility cut of the ray that proves a scenario infeasible.
    fn feasibility_cut(&self, number: u64, scenario: &Scenario) -> FeasibilityCut {
        let (model, second) = (&self.model, &self.model.second);
        let ray = self.simplex.ray();
        let recourse: BTreeMap<(usize, usize), f64> = scenario
            .recourse_changes(model)
            .map(|(row, column, value)| ((row, column), value))
            .collect();
        let mut weights = vec![0.0; second.cost.len()];
        let mut sizes = vec![0.0_f64; second.cost.len()];
        for column in 0..second.cost.len() {
            let mut add = |row: usize, value: f64| {
                weights[column] += ray[row] * value;
                sizes[column] = sizes[column].max((ray[row] * value).abs());
            };
            for (row, value) in second.matrix.column(column) {
                if !recourse.contains_key(&(row, column)) {
                    add(row, value);
                }
            }
        }
        for (&(row, column), value) in &recourse {
            weights[column] += ray[row] * value;
            sizes[column] = sizes[column].max((ray[row] * value).abs());
        }
        // The least weighted sum of the rows over all second-stage decisions.
        let mut least = 0.0;
        for (column, weight) in weights.into_iter().enumerate() {
            let bound = if weight > 0.0 { second.lower[column] } else { second.upper[column] };
            // A weight at an infinite bound is a sum that is zero up to rounding.
            if weight.abs() > RAY_TINY * sizes[column] && bound.is_finite() {
                least += weight * bound;
            }
        }
        let mut upper = -least;
        let mut row = vec![0.0; self.x.len()];
        for (at, &ray) in ray.iter().enumerate() {
            if ray > 0.0 {
                upper += ray * (second.rhs[at] + second.above[at]);
            } else if ray < 0.0 {
                upper += ray * (second.rhs[at] - second.below[at]);
            }
        }
        let mut sizes = vec![0.0_f64; row.len()];
        let mut add = |column: usize, by: f64, size: f64| {
            row[column] += by;
            sizes[column] = sizes[column].max(size.abs());
        };
        for column in 0..self.x.len() {
            for (at, value) in model.technology.column(column) {
                add(column, ray[at] * value, ray[at] * value);
            }
        }
        for (place, value) in scenario.values(model) {
            match place {
                RandomElement::Rhs(at) => upper += ray[at] * (value - second.rhs[at]),
                RandomElement::Technology(at, column) => {
                    let before = model.technology.get(at, column);
                    add(column, ray[at] * (value - before), ray[at] * value);
                }
                RandomElement::Cost(_) | RandomElement::Recourse(..) => {}
            }
        }
        for (slope, size) in row.iter_mut().zip(sizes) {
            // A sum that is zero up to rounding would move decisions far away.
            if slope.abs() <= RAY_TINY * size {
                *slope = 0.0;
            }
        }
        let rows = (0..).zip(ray).filter(|(_, ray)| **ray != 0.0).map(|(row, _)| row);
        FeasibilityCut { row, upper, scenario: number, rows: rows.collect() }
    }
}

/// The second stage as a linear program, with these entries of its matrix replaced.
fn program(model: &TwoStage, entries: &BTreeMap<(usize, usize), f64>) -> LinearProgram {
    let second = &model.second;
    let mut problem = LinearProgram::new(&second.cost, &second.lower, &second.upper);
    if entries.is_empty() {
        problem.add_rows(&second.matrix, &second.rhs, &second.below, &second.above);
        return problem;
    }
    let by_rows = second.matrix.transposed();
    for row in 0..second.rows.len() {
        let own = by_rows.column(row).filter(|(column, _)| !entries.contains_key(&(row, *column)));
        let changed = entries.range((row, 0)..(row + 1, 0));
        let mut all: Vec<(usize, f64)> =
            own.chain(changed.map(|(&(_, column), &value)| (column, value))).collect();
        all.sort_unstable_by_key(|(column, _)| *column);
        let (low, high) =
            (second.rhs[row] - second.below[row], second.rhs[row] + second.above[row]);
        problem.add_row(all, low, high);
    }
    problem
}

#[cfg(test)]
#[path = "recourse_tests.rs"]
mod tests;
