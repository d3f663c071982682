//! The second stage: what a first-stage decision costs in scenarios, and cuts made of that.
//!
//! Each scenario is solved from one *root*, a basis that is the same for all, with the right-hand sides of the scenario; as only these
//! change, the root stays dual feasible. So what a scenario gives depends on nothing that was solved before, and on no machine. Must
//! not know how scenarios are drawn, nor what is done with cuts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lp::simplex::Pricing;
use crate::lp::{Problem, Root, Simplex, Status};
use crate::model::{Place, TwoStage};
use crate::sample::{Sampler, Scenario};

/// A linear function that is nowhere above the expected cost of some scenarios, and equal to it where it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// Their cost, weighted by probability, at the point where it was made.
    pub value: f64,
    /// A subgradient there, by first-stage column.
    pub gradient: Vec<f64>,
}

impl Cut {
    /// Of no scenario, for so many columns.
    pub fn none(columns: usize) -> Self {
        Self { value: 0.0, gradient: vec![0.0; columns] }
    }

    /// Adds another: sums are of a fixed order where this is called in one.
    ///
    /// # Panics
    /// If it is of another number of columns.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.gradient.len(), other.gradient.len());
        self.value += other.value;
        for (own, other) in self.gradient.iter_mut().zip(&other.gradient) {
            *own += other;
        }
    }
}

/// A condition that first-stage decisions have to meet so that some scenario has a second stage: `row x <= most`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// By first-stage column.
    pub row: Vec<f64>,
    /// Its greatest value.
    pub most: f64,
}

/// What scenarios gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Found {
    /// All have a second stage.
    Cut(Cut),
    /// One has none.
    Condition(Condition),
}

/// A second stage that cannot be solved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecourseError {
    /// Costs have no bound.
    #[error(
        "the second stage costs as little as one likes: some of its columns need bounds, or costs that are not negative"
    )]
    Unbounded,
    /// Costs or the recourse matrix are random.
    #[error(
        "random costs and a random recourse matrix cannot be solved yet: only random right-hand sides and technology can"
    )]
    RandomRecourse,
    /// The method did not get through.
    #[error("a second stage could not be solved ({0}): see how its numbers are scaled")]
    Failed(&'static str),
}

/// Bases of scenarios, kept where they were solved: by the scenario's number.
#[derive(Clone, Debug, Default)]
pub struct Kept(BTreeMap<u64, Vec<u8>>);

/// So many bytes of bases are kept.
const KEPT_MAX: usize = 256 << 20;

/// From which basis scenarios are solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootChoice {
    /// That of the logical variables.
    Slack,
    /// The best one where all random elements are as is expected of them.
    Mean,
    /// The best one of the first scenario; until there is one, as [`RootChoice::Slack`].
    First,
}

/// The second stage of a model, ready to be solved.
#[derive(Clone, Debug)]
pub struct Recourse {
    model: Arc<TwoStage>,
    simplex: Simplex,
    root: Root,
    /// The decision that costs are asked for.
    x: Vec<f64>,
    /// What each row's right-hand side is there, as far as nothing is random.
    base: Vec<f64>,
    /// Rows in which something is random.
    random: Vec<u32>,
    /// What random elements are expected to be.
    mean: Vec<(Place, f64)>,
    rhs: Vec<f64>,
    /// The sum of dual values, weighted by probability.
    duals: Vec<f64>,
    solved: u64,
}

impl Recourse {
    /// Of a model, solved from this root.
    ///
    /// # Errors
    /// The root cannot be found.
    pub fn new(model: impl Into<Arc<TwoStage>>, choice: RootChoice) -> Result<Self, RecourseError> {
        let model = model.into();
        let second = &model.second;
        let mut problem = Problem::new(&second.cost, &second.lower, &second.upper);
        problem.add_rows(&second.matrix, &second.rhs, &second.below, &second.above);
        let random = model.random.iter().flat_map(|block| &block.places);
        let mut random = random
            .map(|place| match *place {
                Place::Rhs(row) | Place::Technology(row, _) => Ok(row as u32),
                Place::Cost(_) | Place::Recourse(..) => Err(RecourseError::RandomRecourse),
            })
            .collect::<Result<Vec<u32>, _>>()?;
        random.sort_unstable();
        random.dedup();
        let mut simplex = Simplex::new(problem, Pricing::Largest);
        let root = simplex.root().map_err(failed)?;
        let (n, m) = (model.first.columns.len(), model.second.rows.len());
        let mut recourse = Self {
            simplex,
            root,
            x: vec![0.0; n],
            base: model.second.rhs.clone(),
            random,
            mean: model.mean().collect(),
            rhs: vec![0.0; m],
            duals: vec![0.0; m],
            solved: 0,
            model,
        };
        if choice == RootChoice::Mean {
            recourse.root_at_mean(&vec![0.0; n])?;
        }
        Ok(recourse)
    }

    /// Takes the best basis where random elements are as is expected of them for the root. Where that has no point the root stays.
    ///
    /// # Errors
    /// It cannot be solved. The root is what it was.
    pub fn root_at_mean(&mut self, x: &[f64]) -> Result<(), RecourseError> {
        self.at(x);
        self.simplex.restart(&self.root);
        let mean = std::mem::take(&mut self.mean);
        self.take(mean.iter().copied());
        self.mean = mean;
        match self.simplex.solve() {
            Status::Optimal => self.root = self.simplex.root().map_err(failed)?,
            Status::Infeasible => {}
            status => return Err(failed(status)),
        }
        Ok(())
    }

    /// Takes the best basis of a scenario at a decision for the root: the same, whoever does so.
    ///
    /// # Errors
    /// It cannot be solved. The root is what it was.
    pub fn root_at(&mut self, x: &[f64], scenario: &Scenario) -> Result<(), RecourseError> {
        self.at(x);
        self.simplex.restart(&self.root);
        self.draw(scenario);
        match self.simplex.solve() {
            Status::Optimal => {
                self.root = self.simplex.root().map_err(failed)?;
                Ok(())
            }
            status => Err(failed(status)),
        }
    }

    /// Takes a root that another's [`Recourse::take_root`] told. All who take it find the same in the same scenarios, to the bit.
    ///
    /// # Errors
    /// It cannot be factored.
    pub fn set_root(&mut self, bits: &[u8]) -> Result<(), RecourseError> {
        self.simplex.set_basis(bits);
        self.root = self.simplex.root().map_err(failed)?;
        Ok(())
    }

    /// From which root these scenarios are solved with the least effort at a decision, and how much that is for each. It depends on no
    /// clock, so it is the same everywhere. The root stays what it was.
    ///
    /// # Errors
    /// Scenarios cannot be solved from any.
    ///
    /// # Panics
    /// If the sampler has no scenario of such a number, or is of another model.
    pub fn choose_root(
        &self,
        x: &[f64],
        sampler: &Sampler,
        numbers: Range<u64>,
    ) -> Result<(RootChoice, f64), RecourseError> {
        let mut best: Option<(u64, RootChoice)> = None;
        let mut failure = RecourseError::Failed("there is no basis to begin from");
        for choice in [RootChoice::Mean, RootChoice::First, RootChoice::Slack] {
            let mut other = Self::new(self.model.clone(), RootChoice::Slack)?;
            let found = other.take_root(choice, x, sampler, numbers.start).and_then(|_| {
                other.at(x);
                let (before, mut scenario) = (other.effort(), Scenario::default());
                for number in numbers.clone() {
                    sampler.scenario(number, &mut scenario);
                    other.cost(&scenario)?;
                    // Worse already.
                    if best.is_some_and(|(least, _)| other.effort() - before > least) {
                        break;
                    }
                }
                Ok(other.effort() - before)
            });
            match found {
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

    /// Takes the root of this choice at a decision, `first` being the number of the first scenario, from the slack basis: nothing that
    /// was solved before plays a part. Returns it as bits, for others to take.
    ///
    /// # Errors
    /// It cannot be solved.
    ///
    /// # Panics
    /// As of [`Recourse::cut`].
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
        // As all others have it.
        self.set_root(&bits)?;
        Ok(bits)
    }

    /// The model.
    pub fn model(&self) -> &TwoStage {
        &self.model
    }

    /// How many pivots were made.
    pub fn pivots(&self) -> u64 {
        self.simplex.pivots()
    }

    /// How much effort pivots were: see [`Simplex::effort`].
    pub fn effort(&self) -> u64 {
        self.simplex.effort()
    }

    /// How many scenarios were solved.
    pub fn solved(&self) -> u64 {
        self.solved
    }

    /// Costs are asked for this decision from now on.
    ///
    /// # Panics
    /// If it is of another number of columns.
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
            self.bound(row);
        }
    }

    #[inline]
    fn bound(&mut self, row: usize) {
        let (rhs, second) = (self.rhs[row], &self.model.second);
        self.simplex.set_row_bounds(row, rhs - second.below[row], rhs + second.above[row]);
    }

    /// Takes random elements for the right-hand sides.
    #[inline]
    fn take(&mut self, values: impl Iterator<Item = (Place, f64)>) {
        for &row in &self.random {
            self.rhs[row as usize] = self.base[row as usize];
        }
        let (model, rhs, x) = (&self.model, &mut self.rhs, &self.x);
        for (place, value) in values {
            match place {
                Place::Rhs(row) => rhs[row] += value - model.second.rhs[row],
                Place::Technology(row, column) => {
                    rhs[row] -= (value - model.technology.get(row, column)) * x[column];
                }
                Place::Cost(_) | Place::Recourse(..) => {}
            }
        }
        for at in 0..self.random.len() {
            self.bound(self.random[at] as usize);
        }
    }

    #[inline]
    fn draw(&mut self, scenario: &Scenario) {
        let model = self.model.clone();
        self.take(scenario.values(&model));
    }

    /// The cost of a scenario at the decision; none if it has no second stage. Dual values are the simplex's then.
    ///
    /// # Errors
    /// It cannot be solved.
    pub fn cost(&mut self, scenario: &Scenario) -> Result<Option<f64>, RecourseError> {
        self.simplex.restart(&self.root);
        self.solve(scenario)
    }

    fn solve(&mut self, scenario: &Scenario) -> Result<Option<f64>, RecourseError> {
        self.draw(scenario);
        self.solved += 1;
        match self.simplex.solve() {
            Status::Optimal => Ok(Some(self.simplex.objective())),
            Status::Infeasible => Ok(None),
            status => Err(failed(status)),
        }
    }

    /// A cut of the scenarios of these numbers, or the condition of the first that has no second stage.
    ///
    /// # Errors
    /// One cannot be solved.
    ///
    /// # Panics
    /// If the sampler has no scenario of such a number, or is of another model.
    pub fn cut(&mut self, sampler: &Sampler, numbers: Range<u64>) -> Result<Found, RecourseError> {
        self.cut_from(sampler, numbers, None)
    }

    /// The same, each scenario from the basis that it had the last time, where that is kept: fewer pivots, as long as decisions move
    /// little; but where a scenario has several best dual values, which come out depends on what was solved before.
    ///
    /// # Errors
    /// As of [`Recourse::cut`].
    ///
    /// # Panics
    /// As of [`Recourse::cut`].
    pub fn cut_with(
        &mut self,
        sampler: &Sampler,
        numbers: Range<u64>,
        kept: &mut Kept,
    ) -> Result<Found, RecourseError> {
        self.cut_from(sampler, numbers, Some(kept))
    }

    fn cut_from(
        &mut self,
        sampler: &Sampler,
        numbers: Range<u64>,
        mut kept: Option<&mut Kept>,
    ) -> Result<Found, RecourseError> {
        let mut cut = Cut::none(self.x.len());
        self.duals.fill(0.0);
        let mut scenario = Scenario::default();
        for number in numbers {
            sampler.scenario(number, &mut scenario);
            let (scenario, probability) = (&scenario, scenario.probability);
            let own = kept.as_ref().and_then(|kept| kept.0.get(&number));
            let cost = match own {
                Some(bits) => {
                    self.simplex.set_basis(bits);
                    self.solve(scenario)?
                }
                None => self.cost(scenario)?,
            };
            if let Some(Kept(kept)) = &mut kept {
                let bits = self.simplex.basis();
                if kept.contains_key(&number) || (kept.len() + 1) * bits.len() <= KEPT_MAX {
                    kept.insert(number, bits);
                }
            }
            let Some(cost) = cost else {
                return Ok(Found::Condition(self.condition(scenario)));
            };
            cut.value += probability * cost;
            for (row, sum) in self.duals.iter_mut().enumerate() {
                *sum += probability * self.simplex.dual(row);
            }
            let (model, simplex, gradient) = (&self.model, &self.simplex, &mut cut.gradient);
            for (row, column, value) in scenario.technology_changes(model) {
                let change = value - model.technology.get(row, column);
                gradient[column] -= probability * simplex.dual(row) * change;
            }
        }
        for (column, slope) in cut.gradient.iter_mut().enumerate() {
            for (row, value) in self.model.technology.column(column) {
                *slope -= value * self.duals[row];
            }
        }
        Ok(Found::Cut(cut))
    }

    /// What the ray that proves a scenario infeasible asks of decisions.
    fn condition(&self, scenario: &Scenario) -> Condition {
        let (model, ray) = (&self.model, self.simplex.ray());
        let second = &model.second;
        // The least that the weighted rows can be, for whatever second-stage decision.
        let mut least = 0.0;
        for column in 0..second.cost.len() {
            let weight: f64 =
                second.matrix.column(column).map(|(row, value)| ray[row] * value).sum();
            let bound = if weight > 0.0 { second.lower[column] } else { second.upper[column] };
            // What is left of a sum that should be zero would be infinitely much here.
            if weight != 0.0 && bound.is_finite() {
                least += weight * bound;
            }
        }
        let mut condition = Condition { row: vec![0.0; self.x.len()], most: -least };
        for (row, &ray) in ray.iter().enumerate() {
            if ray > 0.0 {
                condition.most += ray * (second.rhs[row] + second.above[row]);
            } else if ray < 0.0 {
                condition.most += ray * (second.rhs[row] - second.below[row]);
            }
        }
        for (column, slope) in condition.row.iter_mut().enumerate() {
            *slope = model.technology.column(column).map(|(row, value)| ray[row] * value).sum();
        }
        for (place, value) in scenario.values(model) {
            match place {
                Place::Rhs(row) => condition.most += ray[row] * (value - second.rhs[row]),
                Place::Technology(row, column) => {
                    condition.row[column] += ray[row] * (value - model.technology.get(row, column));
                }
                Place::Cost(_) | Place::Recourse(..) => {}
            }
        }
        condition
    }
}

fn failed(status: Status) -> RecourseError {
    match status {
        Status::Unbounded => RecourseError::Unbounded,
        Status::Limit => RecourseError::Failed("too many pivots"),
        _ => RecourseError::Failed("its bases cannot be factored"),
    }
}

#[cfg(test)]
#[path = "recourse_tests.rs"]
mod tests;
