//! Tests that prove each answer: an optimum by its dual solution, an infeasible program by its ray,
//! an unbounded one by optima in growing boxes.

use proptest::prelude::*;
use springtide_runtime::random::SplitMix;

use super::*;

const INF: f64 = f64::INFINITY;

/// Solves a program, and proves the answer.
fn prove(simplex: &mut Simplex) -> Status {
    let status = simplex.solve();
    let problem = simplex.program();
    let (n, m) = (problem.columns(), problem.rows());
    match status {
        Status::Optimal => {
            let mut x = vec![0.0; n];
            simplex.values(&mut x);
            let size = x.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
            let mut reduced = problem.cost.clone();
            let mut bound = 0.0;
            for row in 0..m {
                let activity: f64 = problem.row(row).map(|(column, value)| value * x[column]).sum();
                let (lower, upper) = problem.row_bounds(row);
                let largest =
                    problem.row(row).fold(1.0_f64, |most, (_, value)| most.max(value.abs()));
                let slack = 1e-6 * size * largest;
                assert!(lower - slack <= activity && activity <= upper + slack, "row {row}");
                let dual = simplex.dual(row);
                let at = if dual > 0.0 { lower } else { upper };
                assert!(at.is_finite() || dual.abs() < 1e-7, "row {row}: a wrong sign: {dual}");
                bound += if at.is_finite() { dual * at } else { 0.0 };
                problem.row(row).for_each(|(column, value)| reduced[column] -= dual * value);
            }
            for column in 0..n {
                let (lower, upper) = problem.bounds(column);
                assert!(lower - 1e-6 * size <= x[column] && x[column] <= upper + 1e-6 * size);
                let d = reduced[column];
                let at = if d > 0.0 { lower } else { upper };
                assert!(at.is_finite() || d.abs() < 1e-6, "column {column}: a wrong sign: {d}");
                bound += if at.is_finite() { d * at } else { 0.0 };
            }
            let found = simplex.objective();
            assert!((found - bound).abs() < 1e-5 * (1.0 + found.abs()) * size, "{found} {bound}");
        }
        Status::Infeasible => {
            let ray = simplex.ray().to_vec();
            let (mut weights, mut noise) = (vec![0.0; n], vec![1e-8_f64; n]);
            // The largest weighted activity that the rows allow.
            let mut most = 0.0;
            for (row, &ray) in ray.iter().enumerate() {
                for (column, value) in problem.row(row) {
                    weights[column] += ray * value;
                    noise[column] += 1e-11 * (ray * value).abs();
                }
                let (lower, upper) = problem.row_bounds(row);
                if ray.abs() > 1e-9 {
                    most += if ray > 0.0 { ray * upper } else { ray * lower };
                }
            }
            let least: f64 = (0..n)
                .filter(|&column| weights[column].abs() > noise[column])
                .map(|column| {
                    let (lower, upper) = problem.bounds(column);
                    if weights[column] > 0.0 {
                        weights[column] * lower
                    } else {
                        weights[column] * upper
                    }
                })
                .sum();
            let mut bounds = (0..m).map(|row| problem.row_bounds(row));
            let mut columns = (0..n).map(|column| problem.bounds(column));
            let crossed =
                bounds.any(|(low, high)| low > high) || columns.any(|(low, high)| low > high);
            assert!(crossed || least > most, "{least} {most} {ray:?}");
        }
        Status::Unbounded => {
            let inside = |size: f64| {
                let mut boxed = problem.clone();
                for column in 0..n {
                    let (lower, upper) = problem.bounds(column);
                    boxed.set_bounds(column, lower.max(-size), upper.min(size));
                }
                let mut simplex = Simplex::new(boxed, Pricing::Steepest);
                (simplex.solve(), simplex.objective())
            };
            // The boxes contain the point that the direction starts from.
            let mut point = vec![0.0; n];
            simplex.values(&mut point);
            let size = point.iter().fold(1e6, |size: f64, x| size.max(10.0 * x.abs()));
            let (small, large) = (inside(size), inside(10.0 * size));
            assert_eq!((small.0, large.0), (Status::Optimal, Status::Optimal));
            assert!(large.1 < small.1 - 1.0, "{small:?} {large:?}");
        }
        Status::Limit | Status::Trouble => panic!("{status:?}"),
    }
    status
}

fn program(
    cost: &[f64],
    bounds: &[(f64, f64)],
    rows: &[(&[f64], f64, f64)],
    pricing: Pricing,
) -> Simplex {
    let (lower, upper): (Vec<f64>, Vec<f64>) = bounds.iter().copied().unzip();
    let mut problem = LinearProgram::new(cost, &lower, &upper);
    for &(row, lower, upper) in rows {
        problem.add_row(row.iter().copied().enumerate(), lower, upper);
    }
    Simplex::new(problem, pricing)
}

#[test]
fn small_programs() {
    for pricing in [Pricing::Largest, Pricing::Steepest] {
        let rows: &[(&[f64], f64, f64)] =
            &[(&[1.0, 0.0], -INF, 4.0), (&[0.0, 2.0], -INF, 12.0), (&[3.0, 2.0], -INF, 18.0)];
        let mut simplex = program(&[-3.0, -5.0], &[(0.0, INF); 2], rows, pricing);
        assert_eq!(prove(&mut simplex), Status::Optimal);
        assert!((simplex.objective() + 36.0).abs() < 1e-9);
        assert!((simplex.dual(1) + 1.5).abs() < 1e-9 && (simplex.dual(2) + 1.0).abs() < 1e-9);
        // A variable without an upper bound; costs fall along it in the second program.
        let mut simplex =
            program(&[1.0, -1.0], &[(0.0, INF); 2], &[(&[1.0, -1.0], 1.0, INF)], pricing);
        assert_eq!(prove(&mut simplex), Status::Optimal);
        let mut simplex =
            program(&[-2.0, 1.0], &[(0.0, INF); 2], &[(&[1.0, -1.0], 1.0, INF)], pricing);
        assert_eq!(prove(&mut simplex), Status::Unbounded);
        // Two rows that exclude each other.
        let rows: &[(&[f64], f64, f64)] = &[(&[1.0, 1.0], 3.0, INF), (&[1.0, 1.0], -INF, 2.0)];
        let mut simplex = program(&[1.0, 1.0], &[(-INF, INF), (0.0, INF)], rows, pricing);
        assert_eq!(prove(&mut simplex), Status::Infeasible);
        // Without columns or rows, with a fixed column, and with bounds that exclude each other.
        assert_eq!(prove(&mut program(&[], &[], &[], pricing)), Status::Optimal);
        assert_eq!(prove(&mut program(&[1.0], &[(2.0, 2.0)], &[], pricing)), Status::Optimal);
        assert_eq!(prove(&mut program(&[], &[], &[(&[], 1.0, 2.0)], pricing)), Status::Infeasible);
        assert_eq!(prove(&mut program(&[1.0], &[(3.0, 2.0)], &[], pricing)), Status::Infeasible);
    }
}

/// Beale's program, on which the primal method with the largest-coefficient rule cycles, and a
/// degenerate assignment program.
#[test]
fn programs_that_can_cycle_end() {
    let rows: &[(&[f64], f64, f64)] = &[
        (&[0.25, -60.0, -0.04, 9.0], -INF, 0.0),
        (&[0.5, -90.0, -0.02, 3.0], -INF, 0.0),
        (&[0.0, 0.0, 1.0, 0.0], -INF, 1.0),
    ];
    for pricing in [Pricing::Largest, Pricing::Steepest] {
        let mut simplex = program(&[-0.75, 150.0, -0.02, 6.0], &[(0.0, INF); 4], rows, pricing);
        assert_eq!(prove(&mut simplex), Status::Optimal);
        assert!((simplex.objective() + 0.05).abs() < 1e-9);
        // Assignment of 12 to 12: every basis is degenerate.
        let n = 12;
        let cost: Vec<f64> = (0..n * n).map(|at| ((at * 7919) % 13) as f64).collect();
        let mut problem = LinearProgram::new(&cost, &vec![0.0; n * n], &vec![INF; n * n]);
        for one in 0..n {
            problem.add_row((0..n).map(|other| (one * n + other, 1.0)), 1.0, 1.0);
            problem.add_row((0..n).map(|other| (other * n + one, 1.0)), 1.0, 1.0);
        }
        assert_eq!(prove(&mut Simplex::new(problem, pricing)), Status::Optimal);
    }
}

/// A random program. Some are infeasible, unbounded or badly scaled, and many are degenerate.
fn random(seed: u64, pricing: Pricing) -> Simplex {
    let mut dice = SplitMix(seed);
    let (n, m) = (1 + dice.below(14), dice.below(12));
    let scale = if dice.below(4) == 0 { 1e5 } else { 1.0 };
    let whole = dice.below(2) == 0;
    let number = |dice: &mut SplitMix, most: f64| {
        let x = (dice.unit() * 2.0 - 1.0) * most;
        if whole { x.round() } else { x }
    };
    let cost: Vec<f64> = (0..n).map(|_| number(&mut dice, 5.0)).collect();
    let bounds: Vec<(f64, f64)> = (0..n)
        .map(|_| match dice.below(6) {
            0 => (-INF, INF),
            1 => (-INF, number(&mut dice, 5.0)),
            2 => (0.0, 5.0 * dice.unit()),
            3 => (2.0, 2.0),
            _ => (0.0, INF),
        })
        .collect();
    let (lower, upper): (Vec<f64>, Vec<f64>) = bounds.into_iter().unzip();
    let mut problem = LinearProgram::new(&cost, &lower, &upper);
    for _ in 0..m {
        let times = if dice.below(3) == 0 { scale } else { 1.0 };
        let mut row = Vec::new();
        for column in 0..n {
            if dice.below(3) > 0 {
                row.push((column, number(&mut dice, 4.0) * times));
            }
        }
        let b = if dice.below(3) == 0 { 0.0 } else { number(&mut dice, 9.0) * times };
        let (lower, upper) = match dice.below(4) {
            0 => (b, b),
            1 => (-INF, b),
            2 => (b, INF),
            _ => (b, b + 3.0 * times),
        };
        problem.add_row(row, lower, upper);
    }
    Simplex::new(problem, pricing)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        max_global_rejects: 100_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_answer_is_proved(seed: u64) {
        let [mut one, mut other] =
            [Pricing::Largest, Pricing::Steepest].map(|pricing| random(seed, pricing));
        let (status, again) = (prove(&mut one), prove(&mut other));
        // A program may be both primal and dual infeasible: either verdict is right.
        prop_assert_eq!(status == Status::Optimal, again == Status::Optimal);
        if status == Status::Optimal {
            let (one, other) = (one.objective(), other.objective());
            prop_assert!((one - other).abs() < 1e-6 * (1.0 + one.abs()), "{} {}", one, other);
        }
    }

    /// After added rows, dropped rows, changed bounds and bases taken over, a warm start finds the
    /// optimum of a cold start.
    #[test]
    fn a_warm_start_finds_what_a_cold_one_finds(seed: u64) {
        let mut simplex = random(seed, Pricing::Steepest);
        let mut dice = SplitMix(seed ^ 1);
        let n = simplex.columns();
        for _ in 0..6 {
            simplex.solve();
            match dice.below(4) {
                0 => {
                    let row: Vec<_> =
                        (0..n).map(|column| (column, dice.unit() * 4.0 - 2.0)).collect();
                    simplex.add_row(row, -5.0 * dice.unit(), INF);
                }
                1 => {
                    let column = dice.below(n);
                    let lower = dice.unit() * 4.0 - 2.0;
                    simplex.set_bounds(column, lower, lower + 2.0 * dice.unit());
                }
                2 => {
                    let bits = simplex.basis();
                    simplex = Simplex::new(simplex.program(), Pricing::Steepest);
                    simplex.set_basis(&bits);
                }
                _ => {
                    let slack: Vec<bool> =
                        (0..simplex.rows()).map(|row| simplex.is_slack(row)).collect();
                    let point = |simplex: &Simplex| {
                        let mut x = vec![0.0; n];
                        simplex.values(&mut x);
                        (x, simplex.objective().to_bits())
                    };
                    let before = point(&simplex);
                    let gone = simplex.drop_rows(|row| row % 2 == 0);
                    // The solution stays the same before the next solve.
                    prop_assert_eq!(point(&simplex), before);
                    let expected: Vec<bool> = slack
                        .iter()
                        .enumerate()
                        .map(|(row, slack)| *slack && row % 2 == 1)
                        .collect();
                    prop_assert_eq!(gone, expected);
                }
            }
            let status = prove(&mut simplex);
            let mut cold = Simplex::new(simplex.program(), Pricing::Steepest);
            prop_assert_eq!(status == Status::Optimal, prove(&mut cold) == Status::Optimal);
            if status == Status::Optimal {
                let (one, other) = (simplex.objective(), cold.objective());
                prop_assert!((one - other).abs() < 1e-6 * (1.0 + one.abs()), "{} {}", one, other);
            }
        }
    }

    /// The same right-hand sides give the same bits after a restart, after any other solve.
    #[test]
    fn a_restart_gives_the_same_bits(seed: u64) {
        let mut simplex = random(seed, Pricing::Largest);
        prop_assume!(simplex.solve() == Status::Optimal);
        let root = simplex.root().unwrap();
        let rows = simplex.rows();
        let shift = |simplex: &mut Simplex, seed: u64| {
            let mut dice = SplitMix(seed);
            for row in 0..rows {
                let (lower, upper) = simplex.row_bounds(row);
                let by = (dice.unit() - 0.5).round();
                simplex.set_row_bounds(row, lower + by, upper + by);
            }
        };
        let mut twin = simplex.clone();
        shift(&mut twin, 3);
        twin.restart(&root);
        let first = (twin.solve(), twin.objective().to_bits());
        let mut other = simplex.clone();
        shift(&mut other, 4);
        other.restart(&root);
        other.solve();
        for row in 0..rows {
            let (lower, upper) = twin.row_bounds(row);
            other.set_row_bounds(row, lower, upper);
        }
        other.restart(&root);
        prop_assert_eq!(first, (other.solve(), other.objective().to_bits()));
    }
}
