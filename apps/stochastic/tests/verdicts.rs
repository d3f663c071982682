//! Programs that are easily answered wrong, with what is right, by HiGHS on the extensive form or
//! by hand.

use std::path::{Path, PathBuf};

use springtide_stochastic::model::TwoStage;
use springtide_stochastic::sample::Sampling;
use springtide_stochastic::smps::{Files, read};
use springtide_stochastic::solve::local;
use springtide_stochastic::solve::solver::{
    Estimate, FallingDirection, Purpose, SampleSolution, ScenarioSample, SolvePlan, Solver, Verdict,
};
use springtide_stochastic::trust_region::TrustRegionSettings;

fn model(name: &str) -> TwoStage {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/verdicts").join(name);
    let files = Files::find(&directory).unwrap_or_else(|error| panic!("{error}"));
    read(&files).unwrap_or_else(|error| panic!("{error}")).0
}

fn plan(model: &TwoStage, epsilon: f64) -> SolvePlan {
    let scenarios = model.scenarios().unwrap();
    let sample = ScenarioSample { sampling: Sampling::All, seed: 1, scenarios };
    SolvePlan {
        settings: TrustRegionSettings { epsilon, ..TrustRegionSettings::default() },
        ..SolvePlan::new(sample)
    }
}

fn solve(name: &str, epsilon: f64) -> Solver {
    let model = model(name);
    let plan = plan(&model, epsilon);
    local::solve(model, plan).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn main_sample(solver: &Solver) -> &SampleSolution {
    solver.main().unwrap_or_else(|| panic!("{:?}", solver.verdict()))
}

#[test]
fn optima() {
    for (name, right) in [
        ("cut-below-zero-1", -67.0),
        ("cut-below-zero-2", 2.3),
        ("optimal-aborts", 25.0 / 6.0),
        ("scale-rhs-1e9", 4.75),
        ("scale-sum-1e9", 1_003_250.25),
    ] {
        for epsilon in [1e-5, 1e-9] {
            let solver = solve(name, epsilon);
            assert_eq!(solver.verdict(), Some(&Verdict::Optimal), "{name}");
            let main = main_sample(&solver);
            let near = |value: f64| (value - right).abs() <= 2.0 * epsilon * (1.0 + right.abs());
            assert!(near(main.objective), "{name}: {} in place of {right}", main.objective);
            assert!(near(main.bound().unwrap()), "{name}: bound {:?}", main.bound());
        }
    }
}

#[test]
fn costs_without_a_lower_bound() {
    for (name, column) in [("unbounded-first-stage", "X1"), ("unbounded-both-free", "X1")] {
        let solver = solve(name, 1e-5);
        let Some(Verdict::Unbounded(FallingDirection::FirstStage(by))) = solver.verdict() else {
            panic!("{name}: {:?}", solver.verdict())
        };
        let model = model(name);
        let at = model.first.columns.iter().position(|name| name == column).unwrap();
        assert!(by[at] != 0.0, "{name}: {by:?}");
    }
}

#[test]
fn programs_without_a_decision_name_the_rows_in_conflict() {
    for name in ["infeasible-with-ray", "infeasible-and-ray"] {
        let solver = solve(name, 1e-5);
        let Some(Verdict::Infeasible(conflict)) = solver.verdict() else {
            panic!("{name}: {:?}", solver.verdict())
        };
        assert!(!conflict.scenarios.is_empty(), "{name}: {conflict:?}");
    }
}

#[test]
fn a_decision_without_recourse_has_an_infinite_cost() {
    let model = model("no-recourse");
    for (start, infeasible) in [(0.0, 4), (10.0, 3), (20.0, 0)] {
        let sample = ScenarioSample { sampling: Sampling::All, seed: 1, scenarios: 4 };
        let plan = SolvePlan {
            sample,
            start: Some(vec![start; 2]),
            estimate: 4,
            only_estimate: true,
            ..plan(&model, 1e-5)
        };
        let solver = local::solve(model.clone(), plan).unwrap();
        assert_eq!(solver.verdict(), Some(&Verdict::Evaluated));
        let estimate = solver.estimate().unwrap();
        let Estimate { interval, scenarios, unbounded, .. } = estimate;
        assert_eq!((estimate.infeasible, scenarios, unbounded), (infeasible, 4, 0), "{start}");
        assert_eq!(interval.is_some(), infeasible == 0, "{start}");
    }
}

/// A run that is stopped keeps its incumbent, its bound and its gap.
#[test]
fn a_stopped_run_is_unfinished() {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/data/plants"].iter().collect();
    let (model, _) = read(&Files::find(&directory).unwrap()).unwrap();
    let plan = SolvePlan { tasks: Some(1), ..plan(&model, 1e-9) };
    let mut solver = Solver::new(model.clone().into(), plan, 1).unwrap();
    let mut worker = springtide_stochastic::solve::worker::Worker::new(model.into()).unwrap();
    let mut requests = solver.begin().unwrap();
    for _ in 0..3 {
        let request = requests.pop().unwrap();
        for (task, result) in worker.evaluate_all(&request).unwrap() {
            requests = solver.take(request.phase, request.iterate, task, result).unwrap();
        }
    }
    solver.stop().unwrap();
    assert_eq!(solver.verdict(), Some(&Verdict::Unfinished));
    assert_eq!(solver.purpose(), None);
    let main = main_sample(&solver);
    assert!(!main.optimal && main.purpose == Purpose::Main);
    assert!(main.bound().is_none_or(|bound| bound <= main.objective));
}

/// A demand of probability 0.02 that a decision of small samples cannot meet: its cost is infinite,
/// and so is its gap, however many replications miss the demand.
#[test]
fn a_decision_without_recourse_has_an_infinite_gap() {
    let model = model("rare-demand");
    let sample = |seed| ScenarioSample { sampling: Sampling::MonteCarlo, seed, scenarios: 20 };
    let mut infinite = 0;
    for seed in 1..=8 {
        let plan = SolvePlan { replications: 20, ..SolvePlan::new(sample(seed)) };
        let solver = local::solve(model.clone(), plan).unwrap();
        let short = main_sample(&solver).x[0] < 59.0;
        let gap = solver.gap().unwrap();
        // A replication misses the demand with probability 0.67, all twenty with 0.0003.
        assert_eq!(gap.high.is_infinite(), short, "seed {seed}: {gap:?}");
        infinite += u32::from(short);
        // Samples grow until the gap is reached: by then they have the demand.
        let plan = SolvePlan {
            replications: 20,
            gap: Some(0.01),
            estimate: 20,
            ..SolvePlan::new(sample(seed))
        };
        let solver = local::solve(model.clone(), plan).unwrap();
        let main = main_sample(&solver);
        assert!((main.x[0] - 60.0).abs() < 1e-3, "seed {seed}: {:?}", main.x);
        let estimate = solver.estimate().unwrap();
        assert_eq!(estimate.scenarios, main.sample.scenarios, "seed {seed}");
    }
    assert!(infinite > 0, "no sample misses the demand");
}
