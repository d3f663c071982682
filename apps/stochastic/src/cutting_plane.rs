//! The cutting-plane model of the master problem, a linear program with one cost variable for each
//! task:
//!
//! minimise c'x + the sum of theta(t) over the tasks t.
//!
//! Its rows are the first-stage rows, optimality cuts theta(t) >= g'x + a, feasibility cuts, and a
//! box around x.
//!
//! Optimality cuts without a multiplier leave the program for a pool; they return when a solution
//! violates them. A model that was saved and resumed gives the same bits.
//!
//! This module must not know how decisions are chosen, judged or evaluated: see
//! [`crate::trust_region`].
//!
//! Source: Birge and Louveaux, A multicut algorithm for two-stage stochastic linear programs
//! (European Journal of Operational Research 1988).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lp::simplex::Pricing;
use crate::lp::{LinearProgram, Simplex, Status};
use crate::model::Stage;
use crate::recourse::{Cut, FeasibilityCut};

/// Solves without a multiplier after which a cut of the pool may be dropped.
const AGE_MAX: u32 = 100;
/// The size of the pool, relative to the number of columns, above which old cuts are dropped.
const POOL_PER_COLUMN: usize = 20;
/// The least violation of a cut that counts, relative to its value.
const VIOLATION_MIN: f64 = 1e-10;
/// A multiplier below this is zero.
const MULTIPLIER_MIN: f64 = 1e-12;
/// How far the model's cost may exceed that of a known decision, relative to 1 and that cost.
const MODEL_EXCESS_MAX: f64 = 1e-6;

/// Rows that exclude each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conflict {
    /// First-stage rows that take part.
    pub first: Vec<u32>,
    /// Scenarios, each with the second-stage rows whose feasibility cut takes part.
    pub scenarios: Vec<(u64, Vec<u32>)>,
}

/// The solution of the model without a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relaxation {
    /// A lower bound of every decision's cost.
    pub bound: f64,
    /// The dual values of the first-stage rows.
    pub duals: Vec<f64>,
    /// The reduced costs of the first-stage columns.
    pub reduced_costs: Vec<f64>,
}

/// A solution of the model inside its box.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelSolution {
    /// The decision, within the bounds of the first stage.
    pub x: Vec<f64>,
    /// Its cost; minus infinity while some task has no cut.
    pub cost: f64,
    /// The cost of each task; minus infinity where the task has no cut.
    pub thetas: Vec<f64>,
}

/// The origin of a cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum CutOrigin {
    /// An optimality cut made at the decision of this iterate.
    Optimality(u32),
    /// A feasibility cut of this scenario and second-stage rows; it is never dropped.
    Feasibility(u64, Vec<u32>),
}

/// A cut that is a row of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CutRow {
    origin: CutOrigin,
    /// Solves since the cut last had a multiplier.
    age: u32,
}

impl CutRow {
    fn new(origin: CutOrigin) -> Self {
        Self { origin, age: 0 }
    }

    /// The iterate of an optimality cut.
    fn iterate(&self) -> Option<u32> {
        match self.origin {
            CutOrigin::Optimality(iterate) => Some(iterate),
            CutOrigin::Feasibility(..) => None,
        }
    }

    /// Whether the cut moves to the pool.
    fn is_inactive(&self) -> bool {
        self.iterate().is_some() && self.age > 0
    }
}

/// A cut with its entries and bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredCut {
    row: CutRow,
    entries: Vec<(u32, f64)>,
    lower: f64,
    upper: f64,
}

impl StoredCut {
    fn of(lp: &Simplex, number: usize, row: &CutRow) -> Self {
        let entries = lp.row(number).map(|(column, value)| (column as u32, value));
        let (lower, upper) = lp.row_bounds(number);
        Self { row: row.clone(), entries: entries.collect(), lower, upper }
    }

    fn add_to(&self, lp: &mut Simplex) {
        let entries = self.entries.iter().map(|(column, value)| (*column as usize, *value));
        lp.add_row(entries, self.lower, self.upper);
    }

    /// The cost variable of an optimality cut, and how far a point violates the cut.
    fn violation(&self, point: &[f64]) -> Option<(u32, f64)> {
        let terms = self.entries.iter().map(|(column, value)| point[*column as usize] * value);
        let activity: f64 = terms.sum();
        let &(theta, _) = self.entries.last()?;
        Some((theta, self.lower - activity))
    }
}

/// The cuts outside the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CutStore {
    /// Whether each task has a cut.
    has_cut: Vec<bool>,
    /// Cuts since the last solve, by iterate and task: gradient, and value at the origin. They
    /// enter the program in this order, not in that of their arrival.
    new: BTreeMap<(u32, u32), (Vec<f64>, f64)>,
    /// Valid cuts that did not bind in the last solve.
    pool: Vec<StoredCut>,
    /// The number of cuts that entered the program.
    entered: u64,
}

/// The state of a model, to resume from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelSnapshot {
    store: CutStore,
    /// The cuts of the program.
    rows: Vec<StoredCut>,
    /// The last basis of the program.
    basis: Vec<u8>,
}

/// The cutting-plane model of a first stage and its tasks.
#[derive(Clone, Debug)]
pub(crate) struct CuttingPlaneModel {
    first: Stage,
    /// The constant cost.
    offset: f64,
    lp: Simplex,
    /// The cuts of the program, which follow the rows of the first stage.
    rows: Vec<CutRow>,
    store: CutStore,
    /// Pivots of linear programs that a start from the slack basis replaced.
    earlier_pivots: u64,
}

impl CuttingPlaneModel {
    /// The model without cuts.
    pub fn new(first: Stage, offset: f64, tasks: usize) -> Self {
        let with = |all: &[f64], theta: f64| {
            let thetas = std::iter::repeat_n(theta, tasks);
            all.iter().copied().chain(thetas).collect::<Vec<f64>>()
        };
        // The cost of a task is fixed at zero, and bounds nothing, until the task has a cut.
        let (cost, lower) = (with(&first.cost, 1.0), with(&first.lower, 0.0));
        let upper = with(&first.upper, 0.0);
        let mut problem = LinearProgram::new(&cost, &lower, &upper);
        problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
        let store = CutStore {
            has_cut: vec![false; tasks],
            new: BTreeMap::new(),
            pool: Vec::new(),
            entered: 0,
        };
        let lp = Simplex::new(problem, Pricing::Steepest);
        Self { first, offset, lp, rows: Vec::new(), store, earlier_pivots: 0 }
    }

    /// The state to resume from.
    pub fn snapshot(&self) -> ModelSnapshot {
        let first = self.first.rhs.len();
        let rows = self.rows.iter().enumerate();
        ModelSnapshot {
            store: self.store.clone(),
            rows: rows.map(|(at, row)| StoredCut::of(&self.lp, first + at, row)).collect(),
            basis: self.lp.basis(),
        }
    }

    /// Resumes a model of the same first stage. It gives the same bits as the model that was saved.
    pub fn resume(first: Stage, offset: f64, snapshot: ModelSnapshot) -> Self {
        let ModelSnapshot { store, rows, basis } = snapshot;
        let mut model = Self::new(first, offset, store.has_cut.len());
        let n = model.first.cost.len();
        for (task, _) in store.has_cut.iter().enumerate().filter(|(_, has_cut)| **has_cut) {
            model.lp.set_bounds(n + task, f64::NEG_INFINITY, f64::INFINITY);
        }
        for row in rows {
            row.add_to(&mut model.lp);
            model.rows.push(row.row);
        }
        model.lp.set_basis(&basis);
        Self { store, ..model }
    }

    // --- queries ---

    /// The first stage of the program.
    pub fn first(&self) -> &Stage {
        &self.first
    }

    /// The number of tasks.
    pub fn tasks(&self) -> usize {
        self.store.has_cut.len()
    }

    /// The number of cuts that entered the program so far.
    pub fn cuts(&self) -> u64 {
        self.store.entered
    }

    /// Rows of the program, cuts of the pool, and pivots so far.
    pub fn size(&self) -> (usize, usize, u64) {
        (self.lp.rows(), self.store.pool.len(), self.pivots())
    }

    /// Pivots of the linear program so far, also of those before a start from the slack basis.
    pub fn pivots(&self) -> u64 {
        self.earlier_pivots + self.lp.pivots()
    }

    /// The cost of a decision, given the costs of the tasks in their order.
    pub fn cost(&self, x: &[f64], tasks: impl Iterator<Item = f64>) -> f64 {
        let second: f64 = tasks.sum();
        let first: f64 = self.first.cost.iter().zip(x).map(|(cost, x)| cost * x).sum();
        self.offset + first + second
    }

    /// The least cost of the last solve. Tasks without a cut count as zero.
    pub fn objective(&self) -> f64 {
        self.lp.objective() + self.offset
    }

    /// The point of the last solve: the decision, not clamped to its bounds, then the tasks' costs.
    pub fn point(&self) -> Vec<f64> {
        let mut point = vec![0.0; self.lp.columns()];
        self.lp.values(&mut point);
        point
    }

    /// The solution of the last solve.
    pub fn solution(&self) -> ModelSolution {
        let mut x = self.point();
        let mut thetas = x.split_off(self.first.cost.len());
        // A decision that is beyond a bound by rounding alone can leave a scenario without
        // recourse.
        for (column, x) in x.iter_mut().enumerate() {
            *x = x.clamp(self.first.lower[column], self.first.upper[column]);
        }
        let mut cost = self.objective();
        for (theta, has_cut) in thetas.iter_mut().zip(&self.store.has_cut) {
            if !has_cut {
                (*theta, cost) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
            }
        }
        ModelSolution { x, cost, thetas }
    }

    /// The rows that exclude each other, after a solve that found no point.
    pub fn conflict(&self) -> Conflict {
        let (ray, first) = (self.lp.ray(), self.first.rhs.len());
        let takes_part = |row: &usize| ray[*row] != 0.0;
        let named = (0..first).filter(takes_part).map(|row| row as u32).collect();
        let mut conflict = Conflict { first: named, scenarios: Vec::new() };
        for row in (first..ray.len()).filter(takes_part) {
            if let CutOrigin::Feasibility(scenario, rows) = &self.rows[row - first].origin {
                conflict.scenarios.push((*scenario, rows.clone()));
            }
        }
        conflict
    }

    /// Solves a copy of the model without a box; its least cost is a lower bound of every
    /// decision's. None while a task has no cut, or where the model has no lower bound.
    pub fn relaxation(&self) -> Option<Relaxation> {
        let mut free = self.clone();
        free.enter_new_cuts();
        if !free.store.has_cut.iter().all(|has_cut| *has_cut) {
            return None;
        }
        free.release();
        if free.solve_with_pool() != Status::Optimal {
            return None;
        }
        let duals = (0..self.first.rhs.len()).map(|row| free.lp.dual(row)).collect();
        let reduced = (0..self.first.cost.len()).map(|column| free.lp.reduced_cost(column));
        let bound = free.objective();
        Some(Relaxation { bound, duals, reduced_costs: reduced.collect() })
    }

    // --- cuts ---

    /// Adds an optimality cut made at the decision `x` of an iterate, if it exceeds `theta`, the
    /// model's cost of the task there. It enters the program before the next solve.
    pub fn add_cut(&mut self, iterate: u32, task: u32, cut: Cut, x: &[f64], theta: f64) {
        if cut.value > theta + VIOLATION_MIN * (1.0_f64.min(theta.abs()) + cut.value.abs()) {
            let slopes = cut.gradient.iter().zip(x);
            let at_x: f64 = slopes.map(|(slope, x)| slope * x).sum();
            self.store.new.insert((iterate, task), (cut.gradient, cut.value - at_x));
        }
    }

    /// Adds a feasibility cut.
    pub fn add_feasibility_cut(&mut self, cut: FeasibilityCut) {
        let entries = cut.row.iter().copied().enumerate();
        self.lp.add_row(entries, f64::NEG_INFINITY, cut.upper);
        self.rows.push(CutRow::new(CutOrigin::Feasibility(cut.scenario, cut.rows)));
        self.store.entered += 1;
    }

    /// Puts the new cuts into the program, in the order of iterates and tasks.
    fn enter_new_cuts(&mut self) {
        let n = self.first.cost.len();
        for ((iterate, task), (gradient, constant)) in std::mem::take(&mut self.store.new) {
            let theta = n + task as usize;
            let slopes = gradient.iter().enumerate().map(|(column, slope)| (column, -slope));
            self.lp.add_row(slopes.chain([(theta, 1.0)]), constant, f64::INFINITY);
            self.rows.push(CutRow::new(CutOrigin::Optimality(iterate)));
            self.store.entered += 1;
            self.lp.set_bounds(theta, f64::NEG_INFINITY, f64::INFINITY);
            self.store.has_cut[task as usize] = true;
        }
    }

    /// Moves optimality cuts without a multiplier in the last solve to the pool. Drops old cuts
    /// from a large pool, except those of iterates that are `needed`.
    pub fn age_cuts(&mut self, needed: impl Fn(u32) -> bool) {
        let first = self.first.rhs.len();
        for (at, row) in self.rows.iter_mut().enumerate() {
            let binds = self.lp.dual(first + at).abs() > MULTIPLIER_MIN;
            row.age = if binds { 0 } else { row.age + 1 };
        }
        for cut in &mut self.store.pool {
            cut.row.age += 1;
        }
        let rows = &self.rows;
        if rows.iter().any(CutRow::is_inactive) {
            let stored = |(at, row): (usize, &CutRow)| {
                row.is_inactive().then(|| StoredCut::of(&self.lp, first + at, row))
            };
            let before: Vec<Option<StoredCut>> = rows.iter().enumerate().map(stored).collect();
            let gone = self
                .lp
                .drop_rows(|row| row.checked_sub(first).is_none_or(|at| !rows[at].is_inactive()));
            let mut at = first;
            self.rows.retain(|_| {
                at += 1;
                !gone[at - 1]
            });
            let gone = before.into_iter().zip(&gone[first..]).filter(|(_, gone)| **gone);
            self.store.pool.extend(gone.filter_map(|(cut, _)| cut));
        }
        if self.store.pool.len() > POOL_PER_COLUMN * self.lp.columns() {
            self.store
                .pool
                .retain(|cut| cut.row.age <= AGE_MAX || cut.row.iterate().is_some_and(&needed));
        }
    }

    // --- bounds and solves ---

    /// Bounds the decision by the first stage alone.
    pub fn release(&mut self) {
        for column in 0..self.first.cost.len() {
            self.lp.set_bounds(column, self.first.lower[column], self.first.upper[column]);
        }
    }

    /// Bounds the decision by the first stage and a box.
    pub fn confine(&mut self, center: &[f64], radius: f64) {
        for (column, center) in center.iter().enumerate() {
            let (lower, upper) = (self.first.lower[column], self.first.upper[column]);
            self.lp.set_bounds(column, lower.max(center - radius), upper.min(center + radius));
        }
    }

    /// Enters the new cuts, and restarts from the last basis alone, so that a resumed model takes
    /// the same pivots.
    pub fn prepare(&mut self) {
        self.enter_new_cuts();
        let basis = self.lp.basis();
        self.lp.set_basis(&basis);
    }

    /// Solves the model with all its cuts, from the last basis, and from the slack basis where that
    /// fails. `known_cost` is the cost of a decision inside the box, which the model must not
    /// exceed. Returns [`Status::Trouble`] where no answer is confirmed, the cost of an answer is
    /// too large or the model is unbounded.
    pub fn solve(&mut self, known_cost: Option<f64>) -> Status {
        for cold in [false, true] {
            if cold {
                self.earlier_pivots += self.lp.pivots();
                self.lp = Simplex::new(self.lp.program(), Pricing::Steepest);
            }
            match self.solve_with_pool() {
                Status::Optimal if known_cost.is_some_and(|cost| self.exceeds(cost)) => {}
                status @ (Status::Optimal | Status::Infeasible) => return status,
                _ => {}
            }
        }
        Status::Trouble
    }

    fn exceeds(&self, cost: f64) -> bool {
        self.objective() > cost + MODEL_EXCESS_MAX * (1.0 + cost.abs())
    }

    /// Solves the program without the pool, which may leave it unbounded.
    pub fn solve_program(&mut self) -> Status {
        self.lp.solve()
    }

    /// Solves the program again and again: of the pool's cuts, the most violated one of each task
    /// enters, until none is violated.
    fn solve_with_pool(&mut self) -> Status {
        loop {
            let status = self.lp.solve();
            if status != Status::Optimal || self.store.pool.is_empty() {
                return status;
            }
            let point = self.point();
            let mut worst: BTreeMap<u32, (f64, usize)> = BTreeMap::new();
            for (at, cut) in self.store.pool.iter().enumerate() {
                let Some((theta, violation)) = cut.violation(&point) else { continue };
                if violation > VIOLATION_MIN * (1.0 + point[theta as usize].abs()) {
                    let most = worst.entry(theta).or_insert((violation, at));
                    if violation > most.0 {
                        *most = (violation, at);
                    }
                }
            }
            if worst.is_empty() {
                return status;
            }
            let mut back: Vec<usize> = worst.values().map(|(_, at)| *at).collect();
            back.sort_unstable();
            for &at in &back {
                let cut = &mut self.store.pool[at];
                cut.add_to(&mut self.lp);
                cut.row.age = 0;
                self.rows.push(cut.row.clone());
            }
            let mut at = 0;
            self.store.pool.retain(|_| {
                at += 1;
                back.binary_search(&(at - 1)).is_err()
            });
        }
    }
}
