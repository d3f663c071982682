//! Tests of the trust-region method on convex functions with known minima.

use super::*;
use crate::lp::simplex::Pricing;
use crate::lp::{LinearProgram, Simplex};
use crate::model::Columns;
use crate::recourse::Cut;

/// The sum over tasks of max over pieces of slope * x + constant, which each task's pieces give.
struct Function {
    tasks: Vec<Vec<(Vec<f64>, f64)>>,
}

impl Function {
    fn random(columns: usize, tasks: usize, seed: u64) -> Self {
        let mut dice = springtide_runtime::random::SplitMix(seed);
        let mut number = |most: f64| (dice.unit() * 2.0 - 1.0) * most;
        let piece = |number: &mut dyn FnMut(f64) -> f64| {
            ((0..columns).map(|_| number(3.0)).collect(), number(9.0))
        };
        let tasks = (0..tasks).map(|_| (0..6).map(|_| piece(&mut number)).collect()).collect();
        Self { tasks }
    }

    fn cut(&self, task: u32, x: &[f64]) -> Evaluation {
        let at = |(slope, constant): &(Vec<f64>, f64)| {
            constant + slope.iter().zip(x).map(|(slope, x)| slope * x).sum::<f64>()
        };
        let pieces = &self.tasks[task as usize];
        let best = pieces.iter().max_by(|one, other| at(one).total_cmp(&at(other))).unwrap();
        Evaluation::Cut(Cut { value: at(best), gradient: best.0.clone() })
    }

    /// The least cost inside a box, by one linear program.
    fn least(&self, first: &Stage) -> f64 {
        let (n, t) = (first.cost.len(), self.tasks.len());
        let cost: Vec<f64> = first.cost.iter().copied().chain(vec![1.0; t]).collect();
        let lower: Vec<f64> =
            first.lower.iter().copied().chain(vec![f64::NEG_INFINITY; t]).collect();
        let upper: Vec<f64> = first.upper.iter().copied().chain(vec![f64::INFINITY; t]).collect();
        let mut problem = LinearProgram::new(&cost, &lower, &upper);
        problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
        for (task, pieces) in self.tasks.iter().enumerate() {
            for (slope, constant) in pieces {
                let row = slope.iter().enumerate().map(|(column, slope)| (column, -slope));
                problem.add_row(row.chain([(n + task, 1.0)]), *constant, f64::INFINITY);
            }
        }
        let mut lp = Simplex::new(problem, Pricing::Steepest);
        assert_eq!(lp.solve(), Status::Optimal);
        lp.objective()
    }
}

/// A box, and a row that bounds the sum of all columns.
fn first(columns: usize) -> Stage {
    Stage {
        columns: (0..columns).map(|at| format!("x{at}")).collect(),
        cost: (0..columns).map(|at| 0.5 - 0.3 * at as f64).collect(),
        lower: vec![-20.0; columns],
        upper: vec![30.0; columns],
        rows: vec!["sum".to_owned()],
        rhs: vec![25.0],
        below: vec![f64::INFINITY],
        above: vec![0.0],
        matrix: Columns::of(1, columns, (0..columns).map(|at| (0, at, 1.0))),
    }
}

/// Runs the method to its end. `order` chooses the open task that is evaluated next. Returns the
/// cost and the number of iterates.
fn run_to_end(
    region: &mut TrustRegion,
    function: &Function,
    mut order: impl FnMut(usize) -> usize,
) -> (f64, u32) {
    let mut open: Vec<(u32, u32, Vec<f64>)> = Vec::new();
    let tasks = function.tasks.len() as u32;
    let put = |open: &mut Vec<_>, step: MethodStep| match step {
        MethodStep::Evaluate { iterate, x } => {
            open.extend((0..tasks).map(|task| (iterate, task, x.clone())));
        }
        MethodStep::Done => {}
        MethodStep::TestRecession => panic!("the columns are in a box"),
    };
    put(&mut open, region.begin().unwrap());
    while region.end().is_none() {
        let (iterate, task, x) = open.swap_remove(order(open.len()));
        let found = function.cut(task, &x);
        for step in region.take(iterate, task, found.clone()).unwrap() {
            put(&mut open, step);
        }
        // A repeated evaluation changes nothing.
        assert_eq!(region.take(iterate, task, found).unwrap(), []);
    }
    (region.incumbent().unwrap().cost, region.iterates())
}

#[test]
fn it_finds_the_least_cost_in_any_order_of_evaluations() {
    for seed in 0..30 {
        let (columns, tasks) = (2 + seed as usize % 5, 1 + seed as usize % 7);
        let function = Function::random(columns, tasks, seed);
        let first = first(columns);
        let least = function.least(&first);
        let start = vec![1.0; columns];
        for (basket, sigma) in [(1, 1.0), (3, 0.5), (6, 0.3)] {
            let settings = TrustRegionSettings {
                basket,
                sigma,
                epsilon: 1e-9,
                ..TrustRegionSettings::default()
            };
            let mut dice = springtide_runtime::random::SplitMix(seed);
            let mut region = TrustRegion::new(first.clone(), 0.0, tasks, &start, settings);
            let (cost, _) = run_to_end(&mut region, &function, |open| dice.below(open));
            let close = |one: f64| (one - least).abs() <= 1e-7 * (1.0 + least.abs());
            assert!(close(cost), "seed {seed}, basket {basket}: {cost} and {least}");
            let bound = region.relaxation().unwrap().bound;
            assert!(close(bound), "seed {seed}, basket {basket}: bound {bound} of {least}");
        }
    }
}

#[test]
fn with_a_basket_of_one_iterates_do_not_depend_on_the_order_of_evaluations() {
    for seed in 0..10 {
        let function = Function::random(4, 6, seed);
        let run = |order: &mut dyn FnMut(usize) -> usize| {
            let mut region =
                TrustRegion::new(first(4), 0.0, 6, &[1.0; 4], TrustRegionSettings::default());
            let (cost, count) = run_to_end(&mut region, &function, order);
            (cost.to_bits(), count, region.records().to_vec())
        };
        let mut dice = springtide_runtime::random::SplitMix(seed);
        let once = run(&mut |_| 0);
        assert_eq!(once, run(&mut |open| open - 1));
        assert_eq!(once, run(&mut |open| dice.below(open)));
    }
}

fn infeasible(row: [f64; 2], upper: f64) -> Evaluation {
    let cut = FeasibilityCut { row: row.to_vec(), upper, scenario: 7, rows: vec![2, 3] };
    Evaluation::Infeasible(cut)
}

#[test]
fn feasibility_cuts_keep_iterates_where_every_scenario_has_recourse() {
    // Recourse needs x0 + x1 >= 3, which only feasibility cuts state; costs are least at zero.
    let function = Function { tasks: vec![vec![(vec![1.0, 2.0], 0.0), (vec![-1.0, -2.0], 0.0)]] };
    let mut stage = first(2);
    stage.cost = vec![0.0; 2];
    stage.lower = vec![0.0; 2];
    for start in [[0.0, 0.0], [5.0, 5.0]] {
        let mut region =
            TrustRegion::new(stage.clone(), 7.0, 1, &start, TrustRegionSettings::default());
        let mut step = region.begin().unwrap();
        while let MethodStep::Evaluate { iterate, x } = step {
            let evaluation = if x[0] + x[1] >= 3.0 - 1e-7 {
                function.cut(0, &x)
            } else {
                infeasible([-1.0, -1.0], -3.0)
            };
            step = region.take(iterate, 0, evaluation).unwrap().pop().unwrap();
        }
        let incumbent = region.incumbent().unwrap();
        assert!((incumbent.cost - 10.0).abs() < 1e-4, "{incumbent:?}");
    }
}

#[test]
fn rows_and_feasibility_cuts_in_conflict_are_named() {
    let mut stage = first(2);
    stage.lower = vec![0.0; 2];
    let mut region =
        TrustRegion::new(stage.clone(), 0.0, 1, &[0.0; 2], TrustRegionSettings::default());
    region.begin().unwrap();
    assert_eq!(region.take(0, 0, infeasible([1.0, 1.0], -1.0)).unwrap(), [MethodStep::Done]);
    let conflict = Conflict { first: vec![], scenarios: vec![(7, vec![2, 3])] };
    assert_eq!(region.end(), Some(&MethodEnd::Infeasible(conflict)));
    stage.rhs = vec![-100.0];
    let mut region = TrustRegion::new(stage, 0.0, 1, &[0.0; 2], TrustRegionSettings::default());
    assert_eq!(region.begin().unwrap(), MethodStep::Done);
    let conflict = Conflict { first: vec![0], scenarios: vec![] };
    assert_eq!(region.end(), Some(&MethodEnd::Infeasible(conflict)));
}

/// A cut that the decision meets cannot exclude it: an error, and no endless loop.
#[test]
fn a_feasibility_cut_without_effect_is_an_error() {
    let mut region = TrustRegion::new(first(2), 0.0, 1, &[0.0; 2], TrustRegionSettings::default());
    let mut step = Ok(vec![region.begin().unwrap()]);
    while let Ok([MethodStep::Evaluate { iterate, .. }]) = step.as_deref() {
        step = region.take(*iterate, 0, infeasible([1.0, 1.0], 100.0));
    }
    assert_eq!(step.unwrap_err(), RegionError::Rounding);
}

/// A negative cost enters the model even if the first decision violates a row.
#[test]
fn tasks_without_a_cut_bound_nothing() {
    let function = Function { tasks: vec![vec![(vec![-1.0, 1.0], -9.0)]] };
    let first = first(2);
    let least = function.least(&first);
    let start = [30.0, 30.0];
    let mut region =
        TrustRegion::new(first, 0.0, 1, &start, TrustRegionSettings::default()).known_bounded();
    let (cost, _) = run_to_end(&mut region, &function, |_| 0);
    assert!((cost - least).abs() < 1e-4 * (1.0 + least.abs()), "{cost} {least}");
}

#[test]
fn the_limit_of_iterates_ends_the_method() {
    let function = Function::random(4, 6, 3);
    let settings = TrustRegionSettings { iterations_max: 3, ..TrustRegionSettings::default() };
    let mut region = TrustRegion::new(first(4), 0.0, 6, &[1.0; 4], settings);
    let (_, iterates) = run_to_end(&mut region, &function, |_| 0);
    assert_eq!((iterates, region.end()), (3, Some(&MethodEnd::IterationLimit)));
}

/// Inside a very small region the model promises less than the tolerance.
#[test]
fn a_small_region_does_not_end_the_method() {
    let function = Function::random(4, 6, 3);
    let first = first(4);
    let least = function.least(&first);
    let region = TrustRegion::new(first, 0.0, 6, &[1.0; 4], TrustRegionSettings::default());
    let mut region = region.with_radius(1e-7);
    let (cost, _) = run_to_end(&mut region, &function, |_| 0);
    assert!((cost - least).abs() <= 1e-4 * (1.0 + least.abs()), "{cost} and {least}");
}

/// A method resumed from a snapshot makes the same iterates, to the bit. With a basket of several
/// it ends at the same cost.
#[test]
fn a_resumed_method_makes_the_same_iterates() {
    for seed in 0..12 {
        let tasks = 6;
        let function = Function::random(5, tasks, seed);
        let basket = if seed < 8 { 1 } else { 3 };
        let settings = TrustRegionSettings {
            basket,
            sigma: 0.5,
            epsilon: 1e-9,
            ..TrustRegionSettings::default()
        };
        let run = |interrupted: bool| {
            let mut dice = springtide_runtime::random::SplitMix(seed);
            let mut region = TrustRegion::new(first(5), 1.0, tasks, &[1.0; 5], settings);
            region.begin().unwrap();
            let all = |region: &TrustRegion| -> Vec<(u32, u32, Vec<f64>)> {
                let each = |task| move |(iterate, x): (u32, &[f64])| (iterate, task, x.to_vec());
                (0..tasks as u32).flat_map(|task| region.open().map(each(task))).collect()
            };
            let mut open = all(&region);
            while region.end().is_none() {
                if interrupted && dice.below(20) == 0 {
                    let bytes = rmp_serde::to_vec(&region.snapshot()).unwrap();
                    let saved = rmp_serde::from_slice(&bytes).unwrap();
                    region = TrustRegion::resume(first(5), 1.0, saved);
                    open = all(&region);
                }
                let (iterate, task, x) = open.swap_remove(dice.below(open.len()));
                for step in region.take(iterate, task, function.cut(task, &x)).unwrap() {
                    let MethodStep::Evaluate { iterate, x } = step else { continue };
                    open.extend((0..tasks as u32).map(|task| (iterate, task, x.clone())));
                }
            }
            let cost = region.incumbent().unwrap().cost;
            (cost, region.records().to_vec())
        };
        let (whole, resumed) = (run(false), run(true));
        match basket {
            1 => assert_eq!(whole, resumed, "seed {seed}"),
            _ => assert!((whole.0 - resumed.0).abs() < 1e-7 * (1.0 + whole.0.abs()), "seed {seed}"),
        }
    }
}
