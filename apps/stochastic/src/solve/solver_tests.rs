//! Tests of the solver on one thread: solutions, intervals, and snapshots to resume from.

use springtide_runtime::random::SplitMix;

use super::*;
use crate::fixtures;
use crate::instances::{instance, published};
use crate::sample::Sampling;
use crate::solve::worker::{Output, SolveMode, TaskGroup, Worker};

fn plan(scenarios: u64) -> SolvePlan {
    let sample = ScenarioSample { sampling: Sampling::MonteCarlo, seed: 1, scenarios };
    SolvePlan {
        tasks: Some(8),
        block: Some(4),
        warm: true,
        estimate: scenarios,
        ..SolvePlan::new(sample)
    }
}

/// Runs a plan to its end. An interrupted one is resumed several times from the bytes of a
/// snapshot.
fn run(model: &TwoStage, plan: &SolvePlan, interrupted: bool) -> Solver {
    let model = Arc::new(model.clone());
    let new = || Solver::new(model.clone(), plan.clone(), 3).unwrap();
    let mut worker = Worker::new(model.clone()).unwrap();
    let mode = SolveMode { keeps_bases: false, time: None };
    let mut dice = SplitMix(plan.sample.seed);
    let mut solver = new();
    let mut orders = solver.begin().unwrap();
    while let Some(order) = orders.pop() {
        let mut tasks: Vec<u32> = (0..order.tasks).collect();
        let mut next = Vec::new();
        while !tasks.is_empty() {
            if interrupted && dice.below(15) == 0 {
                let bytes = rmp_serde::to_vec(&solver.snapshot()).unwrap();
                solver = new();
                next = solver.resume(rmp_serde::from_slice(&bytes).unwrap()).unwrap();
                assert_eq!(next, [order]);
                break;
            }
            let task = tasks.swap_remove(dice.below(tasks.len()));
            let count = crate::solve::worker::blocks(&order, task);
            let work = TaskGroup { tasks: task..task + 1, by_blocks: true };
            // The task as a whole, and in blocks that are merged.
            let whole = TaskGroup { by_blocks: false, ..work.clone() };
            let mut sum: Option<TaskResult> = None;
            for block in 0..count {
                let Output { mut parts, .. } = worker.solve(&mode, &order, &work, block).unwrap();
                let (of, part) = parts.pop().unwrap();
                assert_eq!(of, task);
                match &mut sum {
                    Some(sum) => sum.merge(part),
                    none => *none = Some(part),
                }
            }
            let part = sum.unwrap();
            let Output { parts, .. } = worker.solve(&mode, &order, &whole, 0).unwrap();
            assert_eq!(parts, [(task, part.clone())]);
            next = solver.take(order.phase, order.iterate, task, part).unwrap();
            if !next.is_empty() {
                break;
            }
        }
        orders = next;
    }
    assert!(solver.is_done());
    solver
}

#[test]
fn a_resumed_solver_finds_the_same_bits() {
    for model in [fixtures::plants(), fixtures::farm(), fixtures::reservoir()] {
        let plan = SolvePlan { replications: 3, ..plan(60) };
        let (whole, resumed) = (run(&model, &plan, false), run(&model, &plan, true));
        assert_eq!(whole.solutions(), resumed.solutions(), "{}", model.name);
        assert_eq!(whole.estimate(), resumed.estimate());
        assert_eq!(whole.lower_bound(), resumed.lower_bound());
    }
}

/// Intervals of samples hold the exact optimum as often as their confidence says.
#[test]
fn intervals_hold_the_exact_optimum() {
    let model = fixtures::plants();
    let all =
        ScenarioSample { sampling: Sampling::All, seed: 0, scenarios: model.scenarios().unwrap() };
    let settings = trust_region::TrustRegionSettings {
        epsilon: 1e-9,
        ..trust_region::TrustRegionSettings::default()
    };
    let exact = SolvePlan { sample: all, estimate: 0, settings, ..plan(1) };
    let exact = run(&model, &exact, false).solutions()[0].objective;
    let mut held = (0, 0);
    for seed in 1..=40 {
        let sample = ScenarioSample { seed, ..plan(100).sample };
        let plan = SolvePlan { sample, replications: 5, estimate: 400, ..plan(100) };
        let solver = run(&model, &plan, false);
        let estimate = solver.estimate().unwrap();
        let upper = estimate.interval.unwrap();
        let lower = solver.lower_bound().unwrap();
        // The estimated decision costs at least the optimum.
        held.0 += usize::from(upper.high >= exact && estimate.infeasible == 0);
        held.1 += usize::from(lower.low <= exact);
        assert!(lower.low <= upper.high, "seed {seed}");
    }
    assert!(held.0 >= 36 && held.1 >= 36, "{held:?} of 40");
}

#[test]
fn a_larger_sample_begins_at_the_decision_of_the_smaller_one() {
    let model = fixtures::plants();
    let plan = SolvePlan { tasks: None, estimate: 500, ..plan(30_000) };
    let phases: Vec<_> =
        plan.phases().iter().map(|phase| (phase.purpose, phase.sample.scenarios)).collect();
    let (warm, rest) = (Purpose::Warm, [(Purpose::Main, 30_000), (Purpose::Estimate, 500)]);
    assert_eq!(phases, [&[(warm, 1000), (warm, 5000)], &rest[..]].concat());
    let solver = run(
        &model,
        &SolvePlan { sample: ScenarioSample { scenarios: 2500, ..plan.sample }, ..plan },
        false,
    );
    let [warm, main] = solver.solutions() else { panic!("{:?}", solver.solutions().len()) };
    assert!(warm.iterates.len() >= main.iterates.len(), "{warm:?} {main:?}");
    assert!(main.bound().unwrap() <= main.objective && warm.bound().unwrap() <= warm.objective);
    assert!(main.tasks > 1);
}

/// The estimate of a given decision is that of the run that found it.
#[test]
fn a_decision_is_estimated_without_a_run() {
    let model = fixtures::farm();
    let whole = run(&model, &plan(50), false);
    let start = Some(whole.x());
    let alone = run(&model, &SolvePlan { start, only_estimate: true, ..plan(50) }, false);
    assert_eq!(alone.estimate(), whole.estimate());
    assert_eq!(alone.solutions(), []);
}

/// The cost of a decision in all scenarios.
fn cost_of_all(model: &TwoStage, x: &[f64]) -> f64 {
    let sampler = Sampler::new(model, Sampling::All, 0, 0).unwrap();
    let mut recourse = Recourse::new(model.clone(), RootChoice::Slack).unwrap();
    recourse.at(x);
    let mut scenario = crate::sample::Scenario::default();
    let second = (0..sampler.count()).map(|number| {
        sampler.scenario(number, &mut scenario);
        scenario.probability * recourse.cost(&scenario).unwrap().finite().unwrap()
    });
    let second: f64 = second.sum();
    model.offset + model.first.cost.iter().zip(x).map(|(cost, x)| cost * x).sum::<f64>() + second
}

/// A plan that computes the cost of a decision in all scenarios.
fn exact_cost_plan(model: &TwoStage, x: &[f64]) -> SolvePlan {
    let scenarios = model.scenarios().unwrap();
    let sample = ScenarioSample { sampling: Sampling::All, seed: 7, scenarios };
    SolvePlan { sample, start: Some(x.to_vec()), only_estimate: true, ..plan(scenarios) }
}

/// With all scenarios the estimate is the exact cost, also from a resumed solver.
#[test]
fn all_scenarios_give_the_exact_cost_of_a_decision() {
    for model in [fixtures::plants(), fixtures::farm(), fixtures::reservoir()] {
        let x = run(&model, &plan(50), false).x();
        let plan = exact_cost_plan(&model, &x);
        let estimate = run(&model, &plan, false).estimate().unwrap();
        let cost = estimate.interval.unwrap();
        let right = cost_of_all(&model, &x);
        assert!(
            (cost.mean - right).abs() < 1e-12 * right.abs(),
            "{}: {cost:?} {right}",
            model.name
        );
        assert_eq!((cost.low, cost.high, cost.confidence), (cost.mean, cost.mean, 1.0));
        assert_eq!((cost.count, estimate.infeasible), (model.scenarios().unwrap(), 0));
        assert_eq!(run(&model, &plan, true).estimate(), Some(estimate));
        // The estimate depends on no seed.
        let other = SolvePlan { sample: ScenarioSample { seed: 8, ..plan.sample }, ..plan };
        assert_eq!(run(&model, &other, false).estimate(), Some(estimate));
    }
}

/// The published optimum of a million scenarios.
#[test]
fn the_published_decision_of_lands_costs_its_optimum() {
    let (Some(model), Some(x)) = (instance("lands"), published("lands")) else { return };
    let plan = SolvePlan { tasks: Some(100), block: None, ..exact_cost_plan(&model, &x) };
    let estimate = run(&model, &plan, false).estimate().unwrap();
    let cost = estimate.interval.unwrap();
    assert!((cost.mean - 225.6294001).abs() < 1e-7, "{cost:?}");
    assert_eq!((cost.count, estimate.infeasible), (1_000_000, 0));
}

/// The start is optimal for a program whose only scenario is the mean.
#[test]
fn the_start_is_optimal_for_the_mean() {
    let mut model = fixtures::farm();
    for block in &mut model.random {
        let mean =
            |at: usize| block.outcomes.iter().map(|one| one.probability * one.values[at]).sum();
        let values: Vec<f64> = (0..block.places.len()).map(mean).collect();
        block.outcomes = vec![crate::model::Realisation { probability: 1.0, values }];
    }
    let all = ScenarioSample { sampling: Sampling::All, seed: 0, scenarios: 1 };
    let one = SolvePlan { sample: all, tasks: Some(1), estimate: 0, ..plan(1) };
    let solver = run(&model, &one, false);
    let solved = &solver.solutions()[0];
    let accepted: Vec<bool> = solved.iterates.iter().map(|record| record.accepted).collect();
    assert!(accepted[0] && !accepted[1..].contains(&true), "{solved:?}");
}

/// The preliminary answer is that of the warm-up sample until the main sample has a smaller gap.
#[test]
fn a_preliminary_answer_is_that_of_the_better_sample() {
    let model = Arc::new(fixtures::plants());
    let plan = SolvePlan { estimate: 0, ..plan(4000) };
    let mut solver = Solver::new(model.clone(), plan, 1).unwrap();
    let mut worker = Worker::new(model).unwrap();
    let mut requests = solver.begin().unwrap();
    let mut sizes = Vec::new();
    while let Some(request) = requests.pop() {
        for (task, result) in worker.evaluate_all(&request).unwrap() {
            requests.extend(solver.take(request.phase, request.iterate, task, result).unwrap());
        }
        let answer = solver.answer().unwrap();
        sizes.push(answer.sample.scenarios);
        if let Some(main) = solver.present().filter(|one| one.purpose == Purpose::Main) {
            let replaces = main.replaces(&solver.solutions()[0]);
            assert_eq!(answer, if replaces { main } else { solver.solutions()[0].clone() });
        }
    }
    assert_eq!(solver.answer().as_ref(), solver.main());
    assert!(sizes.is_sorted() && sizes.contains(&1000) && sizes.contains(&4000), "{sizes:?}");
}

/// Neighbouring seeds have replications of their own.
#[test]
fn seeds_of_replications_are_distinct() {
    let mut seeds = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let sample = ScenarioSample { sampling: Sampling::MonteCarlo, seed, scenarios: 10 };
        let plan = SolvePlan { replications: 16, estimate: 10, ..SolvePlan::new(sample) };
        for phase in plan.phases() {
            assert!(seeds.insert(phase.sample.seed), "seed {seed}: {phase:?}");
        }
    }
}
