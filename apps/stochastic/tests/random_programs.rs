//! Random two-stage programs against an exact solution of their extensive forms.
//!
//! Programs have costs of any sign, all senses of rows, ranges, free and bounded columns, and rows
//! and columns in other units. Starts may break rows, scenarios may lack recourse, stages may be
//! unbounded, and costs and matrices may be random. The oracle (`exact`) proves each of its
//! verdicts. 2,000 programs in a normal run; more with
//!
//! ```text
//! SPRINGTIDE_PROGRAMS=100000 cargo test --release -p springtide-stochastic \
//!     --test random_programs -- --nocapture
//! ```
//!
//! and one alone, as a failure prints it, with `SPRINGTIDE_SEED=n SPRINGTIDE_PROGRAMS=1`.

mod exact;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use springtide_runtime::random::SplitMix;
use springtide_runtime::wire::fuzz::number;
use springtide_stochastic::extensive::{extensive_form, scenarios};
use springtide_stochastic::model::{
    Columns, MatrixBlock, RandomElement, Realisation, Stage, TwoStage,
};
use springtide_stochastic::sample::{Sampler, Sampling};
use springtide_stochastic::solve::local;
use springtide_stochastic::solve::solver::{ScenarioSample, SolvePlan, Solver, Verdict};
use springtide_stochastic::trust_region::TrustRegionSettings;

use exact::Truth;

/// A program that takes longer than this does not end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// The largest error of an optimum, relative to the terms of its cost.
const ERROR_MAX: f64 = 1e-6;

struct TestRandom(SplitMix);

impl TestRandom {
    fn one_in(&mut self, count: usize) -> bool {
        self.0.below(count) == 0
    }

    /// A whole number from -most to most.
    fn whole(&mut self, most: usize) -> f64 {
        self.0.below(2 * most + 1) as f64 - most as f64
    }

    /// A whole number from 0 to most.
    fn natural(&mut self, most: usize) -> f64 {
        self.0.below(most + 1) as f64
    }

    fn bounds(&mut self) -> (f64, f64) {
        match self.0.below(10) {
            0 => (f64::NEG_INFINITY, f64::INFINITY),
            1 => (f64::NEG_INFINITY, self.whole(5)),
            2 => (self.whole(4), f64::INFINITY),
            3 => {
                let low = self.whole(4);
                (low, low + self.natural(6))
            }
            4..6 => (0.0, 1.0 + self.natural(9)),
            _ => (0.0, f64::INFINITY),
        }
    }

    fn row_slack(&mut self) -> (f64, f64) {
        match self.0.below(8) {
            0 => (0.0, 0.0),
            1 => (1.0 + self.natural(4), self.natural(3)),
            2..5 => (f64::INFINITY, 0.0),
            _ => (0.0, f64::INFINITY),
        }
    }

    fn stage(&mut self, prefix: &str, columns: usize, rows: usize, negative: usize) -> Stage {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        for _ in 0..columns {
            let (low, high) = self.bounds();
            lower.push(low);
            upper.push(high);
        }
        let (mut below, mut above) = (Vec::new(), Vec::new());
        for _ in 0..rows {
            let (low, high) = self.row_slack();
            below.push(low);
            above.push(high);
        }
        let mut cost = |_| if self.one_in(negative) { -self.natural(4) } else { self.natural(6) };
        let cost = (0..columns).map(&mut cost).collect();
        let rhs = (0..rows).map(|_| self.whole(8)).collect();
        Stage {
            columns: (0..columns).map(|at| format!("{prefix}{at}")).collect(),
            cost,
            lower,
            upper,
            rows: (0..rows).map(|at| format!("{prefix}r{at}")).collect(),
            rhs,
            below,
            above,
            matrix: self.matrix(rows, columns),
        }
    }

    fn matrix(&mut self, rows: usize, columns: usize) -> Columns {
        let mut entries = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                if !self.one_in(3) {
                    entries.push((row, column, self.whole(3)));
                }
            }
        }
        Columns::of(rows, columns, entries)
    }

    fn random_blocks(&mut self, second: &Stage, columns: usize) -> Vec<MatrixBlock> {
        let (rows, own) = (second.rows.len(), second.columns.len());
        let mut taken = Vec::new();
        let mut blocks = Vec::new();
        for _ in 0..1 + self.0.below(3) {
            let mut places = Vec::new();
            for _ in 0..1 + self.0.below(2) {
                let row = self.0.below(rows);
                let place = match self.0.below(8) {
                    0 => RandomElement::Cost(self.0.below(own)),
                    1 => RandomElement::Recourse(row, self.0.below(own)),
                    2 | 3 => RandomElement::Technology(row, self.0.below(columns)),
                    _ => RandomElement::Rhs(row),
                };
                if !taken.contains(&place) {
                    taken.push(place);
                    places.push(place);
                }
            }
            if places.is_empty() {
                continue;
            }
            let probabilities: &[f64] = match self.0.below(3) {
                0 => &[0.5, 0.5],
                1 => &[0.25, 0.75],
                _ => &[0.125, 0.5, 0.375],
            };
            let mut outcome = |&probability| Realisation {
                probability,
                values: places
                    .iter()
                    .map(|place| match place {
                        RandomElement::Rhs(_) => self.whole(9),
                        RandomElement::Cost(_) => self.whole(4),
                        RandomElement::Technology(..) | RandomElement::Recourse(..) => {
                            self.whole(3)
                        }
                    })
                    .collect(),
            };
            let outcomes = probabilities.iter().map(&mut outcome).collect();
            blocks.push(MatrixBlock { places, outcomes });
        }
        blocks
    }
}

/// A factor of another unit, up to a million and down to a millionth. It is a power of two, so that
/// the program is the same: rounded numbers can make a degenerate program infeasible.
fn unit(dice: &mut TestRandom) -> f64 {
    if dice.one_in(2) { 1.0 } else { 2_f64.powi(dice.whole(20) as i32) }
}

/// Writes a program in other units of its rows and columns.
fn in_other_units(model: &mut TwoStage, dice: &mut TestRandom) {
    let first: Vec<f64> = model.first.columns.iter().map(|_| unit(dice)).collect();
    let second: Vec<f64> = model.second.columns.iter().map(|_| unit(dice)).collect();
    let first_rows: Vec<f64> = model.first.rows.iter().map(|_| unit(dice)).collect();
    let second_rows: Vec<f64> = model.second.rows.iter().map(|_| unit(dice)).collect();
    let matrix = |matrix: &Columns, rows: &[f64], columns: &[f64]| {
        let all = (0..columns.len())
            .flat_map(|column| matrix.column(column).map(move |(row, value)| (row, column, value)));
        Columns::of(
            rows.len(),
            columns.len(),
            all.map(|(row, column, value)| (row, column, value * rows[row] * columns[column])),
        )
    };
    model.technology = matrix(&model.technology, &second_rows, &first);
    for (stage, rows, columns) in
        [(&mut model.first, &first_rows, &first), (&mut model.second, &second_rows, &second)]
    {
        stage.matrix = matrix(&stage.matrix, rows, columns);
        for (column, unit) in columns.iter().enumerate() {
            stage.cost[column] *= unit;
            stage.lower[column] /= unit;
            stage.upper[column] /= unit;
        }
        for (row, unit) in rows.iter().enumerate() {
            stage.rhs[row] *= unit;
            stage.below[row] *= unit;
            stage.above[row] *= unit;
        }
    }
    for block in &mut model.random {
        for outcome in &mut block.outcomes {
            for (place, value) in block.places.iter().zip(&mut outcome.values) {
                *value *= match *place {
                    RandomElement::Rhs(row) => second_rows[row],
                    RandomElement::Cost(column) => second[column],
                    RandomElement::Technology(row, column) => second_rows[row] * first[column],
                    RandomElement::Recourse(row, column) => second_rows[row] * second[column],
                };
            }
        }
    }
}

struct RandomProgram {
    model: TwoStage,
    plan: SolvePlan,
}

fn draw(seed: u64) -> RandomProgram {
    let mut dice = TestRandom(SplitMix::with_text(seed, "random program"));
    let (n, m) = (1 + dice.0.below(4), dice.0.below(3));
    let (own, rows) = (1 + dice.0.below(4), 1 + dice.0.below(4));
    let negative = [2, 6, 1000][dice.0.below(3)];
    let first = dice.stage("x", n, m, negative);
    let mut second = dice.stage("y", own, rows, negative);
    let technology = dice.matrix(rows, n);
    // Half of all programs have a surplus and a shortage in each row, and so recourse everywhere.
    if dice.one_in(2) {
        complete(&mut second, &mut dice);
    }
    let random = dice.random_blocks(&second, n);
    let mut model = TwoStage {
        name: format!("random {seed}"),
        offset: dice.whole(2),
        first,
        second,
        technology,
        random,
        ..TwoStage::default()
    };
    if dice.one_in(4) {
        in_other_units(&mut model, &mut dice);
    }
    let count = model.scenarios().unwrap();
    let start = dice.one_in(2).then(|| (0..n).map(|_| dice.whole(9)).collect());
    let radius = dice.one_in(4).then(|| 0.125 * 4_f64.powi(dice.natural(6) as i32));
    let sample = ScenarioSample { sampling: Sampling::All, seed: 1, scenarios: count };
    let plan = SolvePlan {
        tasks: Some(1 + dice.0.below(count as usize) as u32),
        block: Some(1 + dice.0.below(4) as u64),
        start,
        radius,
        settings: TrustRegionSettings { epsilon: 1e-8, ..TrustRegionSettings::default() },
        ..SolvePlan::new(sample)
    };
    RandomProgram { model, plan }
}

/// Adds a surplus and a shortage column to each row.
fn complete(second: &mut Stage, dice: &mut TestRandom) {
    let (rows, columns) = (second.rows.len(), second.columns.len());
    let mut entries: Vec<(usize, usize, f64)> = (0..columns)
        .flat_map(|column| {
            second.matrix.column(column).map(move |(row, value)| (row, column, value))
        })
        .collect();
    for row in 0..rows {
        for sign in [1.0, -1.0] {
            entries.push((row, second.columns.len(), sign));
            second.columns.push(format!("s{}", second.columns.len()));
            second.cost.push(3.0 + dice.natural(9));
            second.lower.push(0.0);
            second.upper.push(f64::INFINITY);
        }
    }
    second.matrix = Columns::of(rows, second.columns.len(), entries);
}

/// The kind of a verdict, or what is wrong with it.
fn judge(case: &RandomProgram) -> Result<&'static str, String> {
    let RandomProgram { model, plan } = case;
    let sampler = Sampler::new(model, Sampling::All, 0, 0).unwrap();
    let truth = exact::solve(&extensive_form(model, scenarios(model, &sampler)));
    let solver = local::solve(model.clone(), plan.clone())
        .map_err(|error| format!("error \"{error}\", in truth {truth:?}"))?;
    match (solver.verdict(), truth) {
        (Some(Verdict::Optimal), Truth::Optimal(least)) => optimal(model, &solver, least),
        (Some(Verdict::Infeasible(_)), Truth::Infeasible) => Ok("infeasible"),
        (Some(Verdict::Unbounded(_)), Truth::Unbounded) => Ok("unbounded"),
        (verdict, truth) => {
            let found = solver.main().map(|main| (&main.x, main.objective));
            Err(format!("{verdict:?} {found:?}, in truth {truth:?}"))
        }
    }
}

fn optimal(model: &TwoStage, solver: &Solver, least: f64) -> Result<&'static str, String> {
    let Some(main) = solver.main() else { return Err("an optimum without a solution".to_owned()) };
    let least = least + model.offset;
    let first = model.first.cost.iter().zip(&main.x).map(|(cost, x)| (cost * x).abs());
    let size = solver.unit() + least.abs() + first.sum::<f64>();
    let (cost, bound) = (main.objective, main.bound());
    if (cost - least).abs() > ERROR_MAX * size {
        return Err(format!("cost {cost} at {:?}, in truth {least}", main.x));
    }
    if bound.is_none_or(|bound| bound > least + ERROR_MAX * size) {
        return Err(format!("bound {bound:?}, in truth {least}"));
    }
    if let Some(violation) = model.first.violation(&main.x, 1e-6) {
        return Err(violation.describe(&model.first));
    }
    Ok("optimal")
}

/// Prints a program, for the search of a fault.
fn print_case(case: &RandomProgram) {
    let RandomProgram { model, plan } = case;
    for stage in [&model.first, &model.second] {
        println!("cost {:?}, bounds {:?} to {:?}", stage.cost, stage.lower, stage.upper);
        println!("rows {:?} less {:?} or plus {:?}", stage.rhs, stage.below, stage.above);
        for column in 0..stage.cost.len() {
            println!("  column {column}: {:?}", stage.matrix.column(column).collect::<Vec<_>>());
        }
    }
    for column in 0..model.first.cost.len() {
        let entries: Vec<_> = model.technology.column(column).collect();
        println!("technology, column {column}: {entries:?}");
    }
    println!("{:?}\n{plan:?}", model.random);
}

#[test]
fn every_verdict_is_the_truth() {
    let (first, count) = (number("SPRINGTIDE_SEED", 1), number("SPRINGTIDE_PROGRAMS", 2000));
    if count == 1 {
        print_case(&draw(first));
    }
    let next = AtomicU64::new(first);
    let (send, receive) = mpsc::channel();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let (mut tally, mut wrong) = (BTreeMap::new(), Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, send) = (&next, send.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let _ = send.send((seed, None));
                    let verdict = std::panic::catch_unwind(|| judge(&draw(seed)));
                    let verdict = verdict.unwrap_or_else(|_| Err("a panic".to_owned()));
                    let _ = send.send((seed, Some(verdict)));
                }
            });
        }
        drop(send);
        let mut open: BTreeMap<u64, ()> = BTreeMap::new();
        loop {
            match receive.recv_timeout(ENDS_WITHIN) {
                Ok((seed, None)) => drop(open.insert(seed, ())),
                Ok((seed, Some(verdict))) => {
                    open.remove(&seed);
                    match verdict {
                        Ok(kind) => *tally.entry(kind).or_insert(0_u64) += 1,
                        Err(why) => wrong.push((seed, why)),
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    // The threads cannot be ended: the process ends with what is known.
                    eprintln!(
                        "no end within {ENDS_WITHIN:?}: seeds {:?}; wrong: {wrong:?}",
                        open.keys()
                    );
                    std::process::exit(1);
                }
            }
        }
    });
    println!("{count} programs from seed {first}: {tally:?}, {} wrong", wrong.len());
    let shown: Vec<String> = wrong
        .iter()
        .take(20)
        .map(|(seed, why)| {
            format!(
                "SPRINGTIDE_SEED={seed} SPRINGTIDE_PROGRAMS=1 cargo test -p \
                     springtide-stochastic --test random_programs: {why}"
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {count} wrong:\n{}", wrong.len(), shown.join("\n"));
    if count >= 1000 {
        assert!(tally.len() == 3 && tally.values().all(|kind| kind * 20 > count), "{tally:?}");
    }
}
