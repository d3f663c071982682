//! Second stages and whole programs, compared with HiGHS.
//!
//! The build of HiGHS needs cmake, libclang and some minutes, so these tests are behind a feature:
//! `cargo test --release -p springtide-stochastic --features highs`. This module must not know how
//! HiGHS is called.

use std::time::Instant;

use proptest::prelude::*;
use springtide_runtime::random::SplitMix;

use super::*;
use crate::highs::{End, Highs};

/// The second stage of a model in HiGHS. It computes the bounds of rows from the model, not by
/// [`Recourse`].
struct SecondStage<'a> {
    model: &'a TwoStage,
    highs: Highs,
    lower: Vec<f64>,
    upper: Vec<f64>,
}

impl<'a> SecondStage<'a> {
    fn new(model: &'a TwoStage, tolerance: f64) -> Self {
        let second = &model.second;
        let mut problem = Problem::new(&second.cost, &second.lower, &second.upper);
        problem.add_rows(&second.matrix, &second.rhs, &second.below, &second.above);
        let highs = Highs::new(&problem).without_presolve().with_tolerance(tolerance);
        Self { model, highs, lower: second.rhs.clone(), upper: second.rhs.clone() }
    }

    /// Computes the bounds of rows at a decision in a scenario.
    fn compute_bounds(&mut self, x: &[f64], scenario: &Scenario) {
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

    /// Passes the computed bounds of rows to HiGHS.
    fn set_bounds(&mut self) {
        self.highs.set_row_bounds(&self.lower, &self.upper);
    }

    /// The cost of a scenario; none if it has no recourse.
    fn cost(&mut self, x: &[f64], scenario: &Scenario) -> Option<f64> {
        self.compute_bounds(x, scenario);
        self.set_bounds();
        match self.highs.run() {
            End::Optimal => Some(self.highs.objective()),
            End::Infeasible => None,
            end => panic!("{}: {end:?}", self.model.name),
        }
    }
}

/// Whether two costs differ by at most this part of 1 and the second one.
fn close(one: f64, other: f64, part: f64) -> bool {
    (one - other).abs() <= part * (1.0 + other.abs())
}

/// Checks that scenarios have the same costs at a decision from each root and in HiGHS. Returns the
/// number of scenarios with recourse.
fn same_costs(model: &TwoStage, x: &[f64], sampler: &Sampler) -> Result<u64, TestCaseError> {
    let mut second = SecondStage::new(model, 1e-9);
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
                (ScenarioCost::Finite(cost), Some(expected)) => close(cost, expected, 1e-7),
                (cost, expected) => cost == ScenarioCost::Infeasible && expected.is_none(),
            };
            prop_assert!(same, "{}, {}: {:?} and {:?}", model.name, number, cost, expected);
        }
    }
    Ok(have)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// At random decisions, of which some leave scenarios without recourse.
    #[test]
    fn second_stages_have_the_costs_of_highs(seed: u64) {
        let mut dice = SplitMix(seed);
        let fixtures = [
            (fixtures::plants(), 12.0),
            (fixtures::farm(), 200.0),
            (fixtures::reservoir(), 60.0),
        ];
        for (model, most) in fixtures {
            let x: Vec<f64> = model.first.cost.iter().map(|_| most * dice.unit()).collect();
            let sampler = Sampler::new(&model, Sampling::MonteCarlo, seed, 50).unwrap();
            same_costs(&model, &x, &sampler)?;
        }
    }
}

/// At the published decisions and around them.
#[test]
fn second_stages_of_published_programs_have_the_costs_of_highs() {
    let mut dice = SplitMix(7);
    for name in ["lands", "gbd", "20term", "ssn", "storm"] {
        let (Some(model), Some(best)) = (instance(name), published(name)) else { return };
        for (seed, spread) in [0.0, 0.05, 0.5].into_iter().enumerate() {
            let sampler = Sampler::new(&model, Sampling::MonteCarlo, seed as u64, 50).unwrap();
            let around = |x: &f64| x * (1.0 + spread * (2.0 * dice.unit() - 1.0));
            let x: Vec<f64> = best.iter().map(around).collect();
            let have = same_costs(&model, &x, &sampler).unwrap_or_else(|error| panic!("{error}"));
            println!("{name} within {spread} of its best: {have} of 50 have recourse");
            assert!(have > 0, "{name}");
        }
    }
}

/// The least cost of the extensive form in HiGHS, by the simplex method after presolving, and the
/// seconds of the run. The cost is none if the time limit is reached.
fn in_highs(model: &TwoStage, sampler: &Sampler, seconds: f64) -> (Option<f64>, f64) {
    let mut highs = Highs::new(&extensive(model, sampler)).with_time_limit(seconds);
    let began = Instant::now();
    let end = highs.run();
    let took = began.elapsed().as_secs_f64();
    match end {
        End::Optimal => (Some(highs.objective() + model.offset), took),
        End::TimeLimit => (None, took),
        end => panic!("{}: {end:?}", model.name),
    }
}

#[test]
fn decomposition_finds_the_optimum_of_highs() {
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
                let (cost, _) = decomposed(recourse, &sampler, 4, 1e-9, Recourse::at);
                assert!(close(cost, expected, 1e-7), "{}: {cost} and {expected}", model.name);
            }
        }
    }
}

#[test]
fn decomposition_of_published_programs_finds_the_optimum_of_highs() {
    for name in ["20term", "ssn", "storm"] {
        let Some(model) = instance(name) else { return };
        let sampler = Sampler::new(&model, Sampling::MonteCarlo, 1, 100).unwrap();
        let (expected, _) = in_highs(&model, &sampler, f64::INFINITY);
        let expected = expected.unwrap();
        let recourse = Recourse::new(model, RootChoice::Mean).unwrap();
        let (cost, iterates) = decomposed(recourse, &sampler, 25, 1e-7, Recourse::at);
        println!("{name}: {cost:.7} in {iterates} iterates, {expected:.7} in HiGHS");
        assert!(close(cost, expected, 1e-6), "{name}: {cost} and {expected}");
    }
}

/// The first basis of each scenario in HiGHS.
#[derive(Clone, Copy, Debug)]
enum FirstBasis {
    /// The last basis of the scenario before.
    Last,
    /// The optimal basis of the first scenario, set for each scenario.
    Set,
    /// The basis of the logical variables.
    Slack,
}

/// Scenarios of a second-stage measurement.
const SCENARIOS: u64 = 2000;

/// The mean microseconds, pivots and cost of a scenario.
#[derive(Clone, Copy)]
struct Measurement {
    time: f64,
    pivots: f64,
    cost: f64,
}

/// Measures this crate: it draws and solves the scenarios, and makes the cut.
fn measure_own(recourse: &mut Recourse, sampler: &Sampler) -> Measurement {
    let (pivots, began) = (recourse.pivots(), Instant::now());
    let found = recourse.evaluate(sampler, 0..SCENARIOS).unwrap();
    let time = began.elapsed().as_secs_f64() * 1e6 / SCENARIOS as f64;
    let Evaluation::Cut(cut) = found else { panic!("{found:?}") };
    let pivots = (recourse.pivots() - pivots) as f64 / SCENARIOS as f64;
    Measurement { time, pivots, cost: cut.value }
}

/// Measures HiGHS: it changes the bounds of rows, sets a basis and solves. The time to compute the
/// bounds does not count.
fn measure_highs(
    second: &mut SecondStage,
    x: &[f64],
    sampler: &Sampler,
    from: FirstBasis,
) -> Measurement {
    let mut scenario = Scenario::default();
    sampler.scenario(0, &mut scenario);
    second.cost(x, &scenario).unwrap();
    let first = second.highs.basis();
    let (mut time, mut pivots, mut cost) = (0.0, 0, 0.0);
    for number in 0..SCENARIOS {
        sampler.scenario(number, &mut scenario);
        second.compute_bounds(x, &scenario);
        let began = Instant::now();
        second.set_bounds();
        match from {
            FirstBasis::Last => {}
            FirstBasis::Set => second.highs.set_basis(&first),
            FirstBasis::Slack => second.highs.set_slack_basis(),
        }
        let end = second.highs.run();
        time += began.elapsed().as_secs_f64();
        assert_eq!(end, End::Optimal);
        pivots += second.highs.iterations();
        cost += scenario.probability * second.highs.objective();
    }
    let all = SCENARIOS as f64;
    Measurement { time: time * 1e6 / all, pivots: pivots as f64 / all, cost }
}

/// A measurement as `time (count)`.
fn format_time(time: f64, digits: usize, count: impl std::fmt::Display) -> String {
    format!("{time:.digits$} ({count})")
}

/// Measures second stages at the published decisions, from each root and in HiGHS from each basis:
/// the least time of three rounds. Then measures whole programs by decomposition, and as one
/// program in HiGHS, of which only the run is timed. Roots are those of the zero decision; `chosen`
/// chooses a root at each iterate, as a run does. The command: `cargo test --release -p
/// springtide-stochastic --features highs against_highs -- --ignored --nocapture`
#[test]
#[ignore = "a measurement of ten minutes; its command is in its comment"]
fn against_highs() {
    println!("second stages: microseconds each (pivots), {SCENARIOS} scenarios");
    print!("{:8}{:>16}{:>16}{:>16}", "", "own: slack", "mean", "first");
    println!(" |{:>16}{:>16}{:>16} | ratio", "HiGHS: last", "set", "slack");
    for (name, bar) in [("20term", 6.0), ("ssn", 7.0), ("storm", 3.0)] {
        let (Some(model), Some(x)) = (instance(name), published(name)) else { return };
        second_stages(name, &model, &x, bar);
    }
    println!("whole programs: seconds (iterates), 25 tasks, to 1e-7");
    print!("{:8}{:>9}{:>14}{:>14}{:>14}", "", "scenarios", "own: slack", "mean", "first");
    println!("{:>14} |{:>15} | ratio, cost", "chosen", "HiGHS");
    for (name, count) in [("20term", 100), ("ssn", 100), ("storm", 100), ("ssn", 1000)] {
        let Some(model) = instance(name) else { return };
        whole_program(name, &model, count);
    }
}

fn second_stages(name: &str, model: &TwoStage, x: &[f64], bar: f64) {
    let sampler = Sampler::new(model, Sampling::MonteCarlo, 1, SCENARIOS).unwrap();
    let mut roots = ROOTS.map(|root| rooted(model, root, x, &sampler));
    roots.iter_mut().for_each(|recourse| recourse.at(x));
    let mut second = SecondStage::new(model, 1e-7);
    let mut least = [Measurement { time: f64::INFINITY, pivots: 0.0, cost: 0.0 }; 6];
    for _ in 0..3 {
        let own = roots.each_mut().map(|recourse| measure_own(recourse, &sampler));
        let theirs = [FirstBasis::Last, FirstBasis::Set, FirstBasis::Slack]
            .map(|from| measure_highs(&mut second, x, &sampler, from));
        for (least, took) in least.iter_mut().zip(own.into_iter().chain(theirs)) {
            assert!(close(took.cost, own[0].cost, 1e-7), "{name}: {}", took.cost);
            if took.time < least.time {
                *least = took;
            }
        }
    }
    let best = |all: &[Measurement]| all.iter().map(|took| took.time).fold(f64::INFINITY, f64::min);
    let (own, theirs) = least.split_at(3);
    let ratio = best(theirs) / best(own);
    let row = |all: &[Measurement]| -> String {
        let all = all.iter().map(|took| format_time(took.time, 1, format!("{:.1}", took.pivots)));
        all.map(|text| format!("{text:>16}")).collect()
    };
    let verdict = if ratio >= bar { "met" } else { "missed" };
    println!("{name:8}{} |{} | 1/{ratio:.1}, bar 1/{bar}: {verdict}", row(own), row(theirs));
}

fn whole_program(name: &str, model: &TwoStage, count: u64) {
    let sampler = Sampler::new(model, Sampling::MonteCarlo, 1, count).unwrap();
    let start = vec![0.0; model.first.cost.len()];
    print!("{name:8}{count:>9}");
    let (mut costs, mut best) = (Vec::new(), f64::INFINITY);
    for root in ROOTS.into_iter().chain(["chosen"]) {
        let began = Instant::now();
        let recourse = rooted(model, root, &start, &sampler);
        let (cost, iterates) = decomposed(recourse, &sampler, 25, 1e-7, |recourse, x| {
            if root == "chosen" {
                // A run chooses the root less often.
                let (choice, _) = recourse.choose_root(x, &sampler, 0..25).unwrap();
                recourse.take_root(choice, x, &sampler, 0).unwrap();
            }
            recourse.at(x);
        });
        let took = began.elapsed().as_secs_f64();
        print!("{:>14}", format_time(took, 2, iterates));
        costs.push(cost);
        best = best.min(took);
    }
    let (expected, took) = in_highs(model, &sampler, 200.0);
    for cost in &costs {
        assert!(close(*cost, expected.unwrap_or(costs[0]), 1e-6), "{name}: {costs:?}");
    }
    let (end, least) = if expected.is_some() { ("", "") } else { ("unsolved", "less than ") };
    println!(" |{:>15} | {least}1/{:.2}, {:.7}", format!("{took:.2} {end}"), took / best, costs[0]);
}
