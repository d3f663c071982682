//! Second stages and whole programs held against HiGHS: other people's code, of another kind.
//!
//! It takes cmake, libclang and minutes to build, and is off unless it is asked for:
//! `cargo test --release -p springtide-stochastic --features highs`. Must not know how
//! HiGHS is called.

use std::time::Instant;

use proptest::prelude::*;
use springtide_runtime::random::SplitMix;

use super::*;
use crate::highs::{End, Highs};

/// Second stages of a model in HiGHS, each made of the model anew: what [`Recourse`] does with right-hand sides is not asked.
struct Second<'a> {
    model: &'a TwoStage,
    highs: Highs,
    lower: Vec<f64>,
    upper: Vec<f64>,
}

impl<'a> Second<'a> {
    fn new(model: &'a TwoStage, tolerance: f64) -> Self {
        let second = &model.second;
        let mut problem = Problem::new(&second.cost, &second.lower, &second.upper);
        problem.add_rows(&second.matrix, &second.rhs, &second.below, &second.above);
        let highs = Highs::new(&problem).without_presolve().to(tolerance);
        Self { model, highs, lower: second.rhs.clone(), upper: second.rhs.clone() }
    }

    /// What the bounds of rows are at a decision in a scenario.
    fn draw(&mut self, x: &[f64], scenario: &Scenario) {
        let (model, second) = (self.model, &self.model.second);
        let mut activity = vec![0.0; second.rhs.len()];
        model.technology.add_times(x, &mut activity);
        for (row, column, value) in scenario.technology_changes(model) {
            activity[row] += (value - model.technology.get(row, column)) * x[column];
        }
        scenario.rhs(model, &mut self.upper);
        for (row, activity) in activity.into_iter().enumerate() {
            let rhs = self.upper[row] - activity;
            self.lower[row] = rhs - second.below[row];
            self.upper[row] = rhs + second.above[row];
        }
    }

    /// They are so from now on.
    fn bound(&mut self) {
        self.highs.set_row_bounds(&self.lower, &self.upper);
    }

    /// Its cost; none if it has no second stage.
    fn cost(&mut self, x: &[f64], scenario: &Scenario) -> Option<f64> {
        self.draw(x, scenario);
        self.bound();
        match self.highs.run() {
            End::Optimal => Some(self.highs.objective()),
            End::Infeasible => None,
            end => panic!("{}: {end:?}", self.model.name),
        }
    }
}

fn close(one: f64, other: f64, part: f64) -> bool {
    (one - other).abs() <= part * (1.0 + other.abs())
}

/// Costs of a sampler's scenarios at a decision are the same from each root and in HiGHS. Returns how many have a second stage.
fn same_costs(model: &TwoStage, x: &[f64], sampler: &Sampler) -> Result<u64, TestCaseError> {
    let mut second = Second::new(model, 1e-9);
    let mut roots = ["slack", "mean"].map(|root| rooted(model, root, x, sampler));
    roots.iter_mut().for_each(|recourse| recourse.at(x));
    let (mut scenario, mut have) = (Scenario::default(), 0);
    for number in 0..sampler.count() {
        sampler.scenario(number, &mut scenario);
        let expected = second.cost(x, &scenario);
        have += u64::from(expected.is_some());
        for recourse in &mut roots {
            let cost = recourse.cost(&scenario).unwrap();
            let same = match (cost, expected) {
                (Some(cost), Some(expected)) => close(cost, expected, 1e-7),
                (cost, expected) => cost == expected,
            };
            prop_assert!(same, "{}, {}: {:?} and {:?}", model.name, number, cost, expected);
        }
    }
    Ok(have)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// At any decision, also one that some scenarios have no second stage for.
    #[test]
    fn second_stages_cost_what_they_cost_in_highs(seed: u64) {
        let mut dice = SplitMix(seed);
        let fixtures = [(fixtures::plants(), 12.0), (fixtures::farm(), 200.0), (fixtures::reservoir(), 60.0)];
        for (model, most) in fixtures {
            let x: Vec<f64> = model.first.cost.iter().map(|_| most * dice.unit()).collect();
            let sampler = Sampler::new(&model, Sampling::MonteCarlo, seed, 50).unwrap();
            same_costs(&model, &x, &sampler)?;
        }
    }
}

/// At the published decisions and around them.
#[test]
fn second_stages_of_the_literature_cost_what_they_cost_in_highs() {
    let mut dice = SplitMix(7);
    for name in ["lands", "gbd", "20term", "ssn", "storm"] {
        let (Some(model), Some(best)) = (instance(name), published(name)) else { return };
        for (seed, spread) in [0.0, 0.05, 0.5].into_iter().enumerate() {
            let sampler = Sampler::new(&model, Sampling::MonteCarlo, seed as u64, 50).unwrap();
            let around = |x: &f64| x * (1.0 + spread * (2.0 * dice.unit() - 1.0));
            let x: Vec<f64> = best.iter().map(around).collect();
            let have = same_costs(&model, &x, &sampler).unwrap_or_else(|error| panic!("{error}"));
            println!("{name} within {spread} of its best: {have} of 50 have a second stage");
            assert!(have > 0, "{name}");
        }
    }
}

/// The least cost of one program of all scenarios in HiGHS, by the simplex method after presolving; none if it is late.
fn in_highs(model: &TwoStage, sampler: &Sampler, seconds: f64) -> (Option<f64>, f64) {
    let mut highs = Highs::new(&extensive(model, sampler)).within(seconds);
    let began = Instant::now();
    let end = highs.run();
    let took = began.elapsed().as_secs_f64();
    match end {
        End::Optimal => (Some(highs.objective() + model.offset), took),
        End::Late => (None, took),
        end => panic!("{}: {end:?}", model.name),
    }
}

#[test]
fn decomposition_finds_what_highs_finds() {
    for model in [fixtures::plants(), fixtures::farm(), fixtures::reservoir()] {
        let all = Sampler::new(&model, Sampling::All, 0, 0).unwrap();
        let drawn = Sampler::new(&model, Sampling::MonteCarlo, 1, 100).unwrap();
        for sampler in [all, drawn] {
            let (expected, _) = in_highs(&model, &sampler, f64::INFINITY);
            let expected = expected.unwrap();
            let own = whole(&model, &sampler);
            assert!(close(own, expected, 1e-7), "{}: {own} and {expected}", model.name);
            for choice in [RootChoice::Slack, RootChoice::Mean] {
                let recourse = Recourse::new(model.clone(), choice).unwrap();
                let (cost, _) = decomposed(recourse, &sampler, 4, 1e-9);
                assert!(close(cost, expected, 1e-7), "{}: {cost} and {expected}", model.name);
            }
        }
    }
}

#[test]
fn decomposition_of_the_literature_finds_what_highs_finds() {
    for name in ["20term", "ssn", "storm"] {
        let Some(model) = instance(name) else { return };
        let sampler = Sampler::new(&model, Sampling::MonteCarlo, 1, 100).unwrap();
        let (expected, _) = in_highs(&model, &sampler, f64::INFINITY);
        let expected = expected.unwrap();
        let recourse = Recourse::new(model, RootChoice::Mean).unwrap();
        let (cost, iterates) = decomposed(recourse, &sampler, 25, 1e-7);
        println!("{name}: {cost:.7} in {iterates} iterates, {expected:.7} in HiGHS");
        assert!(close(cost, expected, 1e-6), "{name}: {cost} and {expected}");
    }
}
