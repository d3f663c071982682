//! Tests of second stages, and of whole programs by decomposition compared with the extensive form.

use super::*;
use crate::extensive::{extensive_form, scenarios};
use crate::fixtures;
use crate::instances::{instance, published};
use crate::sample::Sampling;
use crate::trust_region::{MethodStep, TrustRegion, TrustRegionSettings};

#[cfg(feature = "highs")]
#[path = "oracle_tests.rs"]
mod oracle;

/// The extensive form of a sampler's scenarios.
fn extensive(model: &TwoStage, sampler: &Sampler) -> LinearProgram {
    extensive_form(model, scenarios(model, sampler))
}

/// The least cost of the extensive form.
fn whole(model: &TwoStage, sampler: &Sampler) -> f64 {
    let mut simplex = Simplex::new(extensive(model, sampler), Pricing::Steepest);
    assert_eq!(simplex.solve(), Status::Optimal);
    simplex.objective() + model.offset
}

/// The roots that tests compare.
const ROOTS: [&str; 3] = ["slack", "mean", "first"];

/// The second stage with one of these roots; that of the first scenario is its optimal basis at
/// `x`.
fn rooted(model: &TwoStage, root: &str, x: &[f64], sampler: &Sampler) -> Recourse {
    let choice = if root == "slack" { RootChoice::Slack } else { RootChoice::Mean };
    let mut recourse = Recourse::new(model.clone(), choice).unwrap();
    if root == "first" {
        let mut scenario = Scenario::default();
        sampler.scenario(0, &mut scenario);
        recourse.root_at(x, &scenario).unwrap();
    }
    recourse
}

/// The least cost by decomposition into a number of tasks, and the number of iterates. `at` sets
/// the decision of each iterate.
fn decomposed(
    mut recourse: Recourse,
    sampler: &Sampler,
    tasks: u64,
    epsilon: f64,
    mut at: impl FnMut(&mut Recourse, &[f64]),
) -> (f64, u32) {
    let model = recourse.model().clone();
    let start = vec![0.0; model.first.cost.len()];
    let settings = TrustRegionSettings { epsilon, ..TrustRegionSettings::default() };
    let mut region =
        TrustRegion::new(model.first.clone(), model.offset, tasks as usize, &start, settings);
    let mut step = region.begin().unwrap();
    while let MethodStep::Evaluate { iterate, x } = step {
        at(&mut recourse, &x);
        let mut next = Vec::new();
        for task in 0..tasks {
            let share = |task: u64| task * sampler.count() / tasks;
            let found = recourse.evaluate(sampler, share(task)..share(task + 1)).unwrap();
            next = region.take(iterate, task as u32, found).unwrap();
            if !next.is_empty() {
                break;
            }
        }
        while next == [MethodStep::TestRecession] {
            next = region.set_bounded().unwrap();
        }
        step = next.pop().unwrap();
    }
    (region.incumbent().unwrap().cost, region.iterates())
}

#[test]
fn decomposition_finds_the_optimum_of_the_extensive_form() {
    for model in [fixtures::plants(), fixtures::farm(), fixtures::reservoir()] {
        let all = Sampler::new(&model, Sampling::All, 0, 0).unwrap();
        let drawn = Sampler::new(&model, Sampling::MonteCarlo, 3, 40).unwrap();
        for sampler in [all, drawn] {
            let expected = whole(&model, &sampler);
            for choice in [RootChoice::Slack, RootChoice::Mean] {
                for tasks in [1, 4] {
                    let recourse = Recourse::new(model.clone(), choice).unwrap();
                    let (cost, _) = decomposed(recourse, &sampler, tasks, 1e-10, Recourse::at);
                    let close = (cost - expected).abs() <= 1e-7 * (1.0 + expected.abs());
                    assert!(close, "{}: {cost} and {expected}", model.name);
                }
            }
        }
    }
}

/// A cut is a lower bound of the cost and equals it at its own decision. All roots give the same
/// costs.
#[test]
fn cuts_support_the_cost_from_below() {
    let model = fixtures::plants();
    let sampler = Sampler::new(&model, Sampling::All, 0, 0).unwrap();
    let columns = model.first.cost.len();
    let mut slack = Recourse::new(model.clone(), RootChoice::Slack).unwrap();
    let mut mean = Recourse::new(model, RootChoice::Mean).unwrap();
    let mut dice = springtide_runtime::random::SplitMix(5);
    let mut points = Vec::new();
    for _ in 0..20 {
        let x: Vec<f64> = (0..columns).map(|_| 12.0 * dice.unit()).collect();
        slack.at(&x);
        mean.at(&x);
        let found =
            [&mut slack, &mut mean].map(|recourse| recourse.evaluate(&sampler, 0..sampler.count()));
        let [Ok(Evaluation::Cut(one)), Ok(Evaluation::Cut(other))] = found else { continue };
        assert!((one.value - other.value).abs() < 1e-9 * (1.0 + one.value.abs()));
        points.push((x, one));
    }
    assert!(points.len() > 1);
    for (at, cut) in &points {
        for (x, other) in &points {
            let moved = cut.gradient.iter().zip(x.iter().zip(at));
            let below = cut.value + moved.map(|(slope, (x, at))| slope * (x - at)).sum::<f64>();
            assert!(below <= other.value + 1e-9 * (1.0 + other.value.abs()));
        }
    }
}

/// All scenarios of the two small instances of the literature, in release builds:
/// `cargo test --release -p springtide-stochastic exact -- --ignored --nocapture`
#[test]
#[ignore = "minutes in a test build; its command is in its comment"]
fn exact_optima() {
    for (name, expected) in [("lands", 225.629_400_1), ("gbd", 1_655.627_847_4)] {
        let Some(model) = instance(name) else { return };
        let began = std::time::Instant::now();
        let all = Sampler::new(&model, Sampling::All, 0, 0).unwrap();
        let recourse = Recourse::new(model, RootChoice::Mean).unwrap();
        let (cost, iterates) = decomposed(recourse, &all, 50, 1e-9, Recourse::at);
        println!("{name}: {cost:.7} in {iterates} iterates, {:.1?}", began.elapsed());
        assert!((cost - expected).abs() <= 1e-7 * expected, "{name}: {cost}");
    }
}

/// Measures second stages from each root at the published decisions, and whole programs of 100
/// scenarios by decomposition and as one linear program.
#[test]
#[ignore = "a measurement: cargo test --release -p springtide-stochastic measured -- --ignored \
            --nocapture"]
fn measured() {
    for name in ["20term", "ssn", "storm"] {
        let Some(model) = instance(name) else { return };
        let x = published(name).unwrap();
        let sampler = Sampler::new(&model, Sampling::MonteCarlo, 1, 2000).unwrap();
        for which in ROOTS {
            let mut recourse = rooted(&model, which, &x, &sampler);
            recourse.at(&x);
            let (pivots, began) = (recourse.pivots(), std::time::Instant::now());
            let found = recourse.evaluate(&sampler, 0..2000).unwrap();
            let Evaluation::Cut(cut) = found else { panic!("{found:?}") };
            let took = began.elapsed().as_secs_f64() / 2000.0 * 1e6;
            let pivots = (recourse.pivots() - pivots) as f64 / 2000.0;
            println!(
                "{name} from {which}: {took:.1} us, {pivots:.1} pivots, second stage {:.4}",
                cut.value
            );
        }
        let few = Sampler::new(&model, Sampling::MonteCarlo, 1, 100).unwrap();
        let began = std::time::Instant::now();
        let recourse = Recourse::new(model.clone(), RootChoice::Mean).unwrap();
        let (cost, iterates) = decomposed(recourse, &few, 25, 1e-7, Recourse::at);
        println!(
            "{name}, 100 scenarios: {cost:.6} in {iterates} iterates, {:.1?}",
            began.elapsed()
        );
        let began = std::time::Instant::now();
        println!("{name}, as one program: {:.6}, {:.1?}", whole(&model, &few), began.elapsed());
    }
}

/// Measures the time of master and worker in each iterate, on one thread:
/// `SPRINGTIDE_MEASURE=ssn,10000,400,kept cargo test --release -p springtide-stochastic iterates_of
/// -- --ignored --nocapture`. The values are program, scenarios, tasks, and `kept` to keep bases.
#[test]
#[ignore = "a measurement; its command is in its comment"]
fn iterates_of_one_thread() {
    let values = std::env::var("SPRINGTIDE_MEASURE").unwrap_or_else(|_| "ssn,1000,100".to_owned());
    let values: Vec<&str> = values.split(',').collect();
    let Some(model) = instance(values[0]) else { return };
    let (scenarios, tasks): (u64, u64) = (values[1].parse().unwrap(), values[2].parse().unwrap());
    let keeps = values.get(3) == Some(&"kept");
    let sampler = Sampler::new(&model, Sampling::MonteCarlo, 1, scenarios).unwrap();
    let mut recourse = Recourse::new(model.clone(), RootChoice::Slack).unwrap();
    let start = vec![0.0; model.first.cost.len()];
    let settings = TrustRegionSettings::default();
    let mut region =
        TrustRegion::new(model.first.clone(), model.offset, tasks as usize, &start, settings);
    let mut step = region.begin().unwrap();
    let (mut master, mut workers) = (0.0, 0.0);
    let (mut cache, mut choice) = (BasisCache::default(), RootChoice::Slack);
    while let MethodStep::Evaluate { iterate, x } = step {
        if iterate.is_power_of_two() || iterate == 0 {
            let began = std::time::Instant::now();
            choice = recourse.choose_root(&x, &sampler, 0..25).unwrap().0;
            println!("root: {choice:?}, {:.1?}", began.elapsed());
        }
        recourse.take_root(choice, &x, &sampler, 0).unwrap();
        recourse.at(&x);
        let began = std::time::Instant::now();
        let before = (recourse.pivots(), recourse.effort());
        let share = |task: u64| task * sampler.count() / tasks;
        let mut all = Vec::new();
        for task in 0..tasks {
            let range = share(task)..share(task + 1);
            all.push(if keeps {
                recourse.evaluate_with(&sampler, range, &mut cache).unwrap()
            } else {
                recourse.evaluate(&sampler, range).unwrap()
            });
        }
        let took = began.elapsed().as_secs_f64();
        workers += took;
        let began = std::time::Instant::now();
        let mut next = Vec::new();
        for (task, found) in (0..).zip(all) {
            next = region.take(iterate, task, found).unwrap();
            if !next.is_empty() {
                break;
            }
        }
        master += began.elapsed().as_secs_f64();
        let pivots = (recourse.pivots() - before.0) as f64 / scenarios as f64;
        let effort = (recourse.effort() - before.1) as f64 / scenarios as f64;
        println!(
            "{iterate}: {took:.2} s, {pivots:.1} pivots, effort {effort:.0}, \
             {:.1} us each; model {:?} {:.3} s",
            took * 1e6 / scenarios as f64,
            region.size(),
            began.elapsed().as_secs_f64(),
        );
        step = next.pop().unwrap();
    }
    let cost = region.incumbent().unwrap().cost;
    println!(
        "{cost:.6} in {} iterates, master {master:.2} s, workers {workers:.2} s",
        region.iterates()
    );
}
