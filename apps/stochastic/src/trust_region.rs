//! The trust-region method for the first stage, synchronous and asynchronous: which decisions to
//! evaluate, and which one is best.
//!
//! A state machine without I/O. It takes the evaluations of tasks in any order, also twice, and returns
//! the decisions to evaluate next. With a basket of one its iterates depend on the model, the tasks and
//! the start alone.
//!
//! A task's cost enters the model with its first cut; before that the model bounds nothing, so no
//! decision is called optimal. The method ends at a decision that the model confirms, or when the rows
//! and feasibility cuts exclude every decision, or when an evaluation or a recession test shows that
//! costs have no lower bound, or at its limit of iterates.
//!
//! Source: Linderoth and Wright, Decomposition algorithms for stochastic programming on a computational
//! grid (Computational Optimization and Applications 2003).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lp::simplex::Pricing;
use crate::lp::{Problem, Simplex, Status};
use crate::model::Stage;
use crate::recourse::{Evaluation, FeasibilityCut, SecondStageRay};

/// The part of the promised decrease that a step must achieve to be accepted.
const SUFFICIENT: f64 = 1e-4;
/// The part that, at the edge of the region, enlarges it.
const GOOD: f64 = 0.5;
/// Slightly worse steps in a row before the region shrinks.
const PATIENCE: u32 = 3;
/// Solves without a multiplier after which a resting cut may be dropped.
const OLD: u32 = 100;
/// Resting cuts a column before any is dropped.
const RESTING_FOR_EACH: usize = 20;
/// The largest radius far from the origin, relative to the distance.
const FAR_RADIUS: f64 = 0.5;
/// The largest radius that the method searches.
const FARTHEST: f64 = 1e12;
/// A cut is added if it lies above the model by this part of its value.
const VIOLATED: f64 = 1e-10;

/// Parameters of the method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The method stops when the model promises at most this part of the best cost.
    pub epsilon: f64,
    /// The most decisions that are evaluated at once.
    pub basket: usize,
    /// The part of an iterate's tasks that has to be back before the next iterate; 1: all of them.
    pub sigma: f64,
    /// The largest radius that accepted steps lead to.
    pub radius_max: f64,
    /// The most iterates.
    pub iterations_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epsilon: 1e-5, basket: 1, sigma: 1.0, radius_max: 1000.0, iterations_max: 20_000 }
    }
}

/// A decision that is being evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Iterate {
    x: Vec<f64>,
    /// The cost of the incumbent when the iterate was made; none for the first.
    parent: Option<f64>,
    /// The decision of that incumbent.
    center: Vec<f64>,
    radius: f64,
    /// The model's cost; minus infinity while some task has no cut.
    promised: f64,
    /// The model's cost of each task.
    thetas: Vec<f64>,
    values: Vec<Option<f64>>,
    /// Feasibility cuts by task.
    infeasible: BTreeMap<u32, FeasibilityCut>,
    /// Tasks whose cost has no lower bound.
    unbounded: BTreeMap<u32, SecondStageRay>,
    back: usize,
    triggered: bool,
}

/// The best decision so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incumbent {
    /// The decision, by first-stage column.
    pub x: Vec<f64>,
    /// Its cost: first stage and expected second stage.
    pub cost: f64,
    /// The number of the iterate.
    pub iterate: u32,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Evaluate all tasks at a decision.
    Evaluate {
        /// The number of the iterate.
        iterate: u32,
        /// The decision.
        x: Vec<f64>,
    },
    /// Test whether costs fall without end in some direction. If they do not, the method continues with
    /// [`TrustRegion::set_bounded`].
    TestRecession,
    /// The method has ended: see [`TrustRegion::end`].
    Done,
}

/// Why the method ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// The model confirms the incumbent.
    Optimal,
    /// No decision meets all rows and leaves every scenario recourse.
    Infeasible(Conflict),
    /// Every scenario has recourse at a decision, and the cost of one has no lower bound.
    Unbounded(SecondStageRay),
    /// The limit of iterates was reached; the incumbent, if there is one, need not be optimal.
    IterationLimit,
}

/// Rows that exclude each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conflict {
    /// First-stage rows.
    pub first: Vec<u32>,
    /// Scenarios, each with the second-stage rows whose feasibility cut takes part.
    pub scenarios: Vec<(u64, Vec<u32>)>,
}

/// The method cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The model cannot be solved.
    #[error("the first stage could not be solved: look at the scaling of its numbers")]
    Unsolved,
    /// A decision that meets a feasibility cut still lacks recourse.
    #[error(
        "a scenario lacks recourse by no more than rounding: look at the scaling of its numbers"
    )]
    Rounding,
}

/// A row of the model that is not one of the first stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    origin: Origin,
    /// Solves since it last had a multiplier.
    idle: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Origin {
    /// An optimality cut of this iterate.
    Iterate(u32),
    /// A feasibility cut of this scenario and second-stage rows; it is never dropped.
    Scenario(u64, Vec<u32>),
}

impl Row {
    fn iterate(&self) -> Option<u32> {
        match self.origin {
            Origin::Iterate(iterate) => Some(iterate),
            Origin::Scenario(..) => None,
        }
    }
}

/// The state of a method, to resume from: see [`TrustRegion::saved`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    state: State,
    /// Rows of the model that are not of the first stage.
    rows: Vec<SavedRow>,
    /// The last basis of the model.
    basis: Vec<u8>,
}

/// A row with its entries and bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedRow {
    row: Row,
    entries: Vec<(u32, f64)>,
    lower: f64,
    upper: f64,
}

impl SavedRow {
    fn of(lp: &Simplex, at: usize, row: &Row) -> Self {
        let entries = lp.row(at).map(|(column, value)| (column as u32, value));
        let (lower, upper) = lp.row_bounds(at);
        Self { row: row.clone(), entries: entries.collect(), lower, upper }
    }

    fn add_to(&self, lp: &mut Simplex) {
        let entries = self.entries.iter().map(|(column, value)| (*column as usize, *value));
        lp.add_row(entries, self.lower, self.upper);
    }
}

/// The outcome of an iterate, for reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IterateRecord {
    /// Its number.
    pub iterate: u32,
    /// Its cost; none if a scenario has no recourse.
    pub cost: Option<f64>,
    /// The model's cost.
    pub promised: f64,
    /// Whether it became the incumbent.
    pub accepted: bool,
    /// The radius after it.
    pub radius: f64,
}

/// All of the method but the linear program of its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    settings: Settings,
    /// Whether each task has a cut.
    known: Vec<bool>,
    /// Valid cuts that did not bind in the last solve.
    resting: Vec<SavedRow>,
    incumbent: Option<Incumbent>,
    start: Vec<f64>,
    radius: f64,
    worse: u32,
    next: u32,
    basket: BTreeMap<u32, Iterate>,
    /// Cuts that the model lacks yet, by iterate and task: gradient, and value at the origin.
    cuts: BTreeMap<(u32, u32), (Vec<f64>, f64)>,
    /// The number of cuts so far.
    cuts_made: u64,
    /// The last decision of the model, and the number of cuts then.
    repeated: Option<(Vec<f64>, u64)>,
    /// The last decision without recourse.
    infeasible: Option<Vec<f64>>,
    /// Whether a recession test has shown that costs have a lower bound.
    bounded: bool,
    /// The model's least cost inside the last region.
    bound: f64,
    records: Vec<IterateRecord>,
    end: Option<End>,
}

/// The trust-region method.
#[derive(Clone, Debug)]
pub struct TrustRegion {
    first: Stage,
    offset: f64,
    lp: Simplex,
    rows: Vec<Row>,
    state: State,
}

impl TrustRegion {
    /// The method for a first stage with a constant cost and this many tasks, from a decision that need
    /// not meet the rows.
    ///
    /// # Panics
    /// If `start` has another number of columns, or there is no task.
    pub fn new(first: Stage, offset: f64, tasks: usize, start: &[f64], settings: Settings) -> Self {
        let n = first.cost.len();
        assert!(start.len() == n && tasks > 0);
        let with = |all: &[f64], theta: f64| {
            let thetas = std::iter::repeat_n(theta, tasks);
            all.iter().copied().chain(thetas).collect::<Vec<f64>>()
        };
        // The cost of a task is fixed at zero, and says nothing, until the task has a cut.
        let (cost, lower) = (with(&first.cost, 1.0), with(&first.lower, 0.0));
        let upper = with(&first.upper, 0.0);
        let mut problem = Problem::new(&cost, &lower, &upper);
        problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
        let start: Vec<f64> =
            (0..n).map(|at| start[at].clamp(first.lower[at], first.upper[at])).collect();
        let largest = start.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        let radius = (0.2 * largest).max(1.0).min(settings.radius_max);
        let state = State {
            settings,
            known: vec![false; tasks],
            resting: Vec::new(),
            incumbent: None,
            start,
            radius,
            worse: 0,
            next: 0,
            basket: BTreeMap::new(),
            cuts: BTreeMap::new(),
            cuts_made: 0,
            repeated: None,
            infeasible: None,
            bounded: false,
            bound: f64::NEG_INFINITY,
            records: Vec::new(),
            end: None,
        };
        let lp = Simplex::new(problem, Pricing::Steepest);
        Self { first, offset, lp, rows: Vec::new(), state }
    }

    /// Sets the first radius.
    ///
    /// # Panics
    /// If it is not positive.
    pub fn with_radius(mut self, radius: f64) -> Self {
        assert!(radius > 0.0);
        self.state.radius = radius.min(self.state.settings.radius_max);
        self
    }

    /// The state to resume from elsewhere.
    pub fn saved(&self) -> Saved {
        let first = self.first.rhs.len();
        let rows = self.rows.iter().enumerate();
        Saved {
            state: self.state.clone(),
            rows: rows.map(|(at, row)| SavedRow::of(&self.lp, first + at, row)).collect(),
            basis: self.lp.basis(),
        }
    }

    /// Resumes a method of the same first stage. Evaluations under way begin again:
    /// [`TrustRegion::open`] names them. With a basket of one the iterates have the same bits as
    /// without the interruption.
    pub fn resume(first: Stage, offset: f64, saved: Saved) -> Self {
        let Saved { mut state, rows, basis } = saved;
        let tasks = state.known.len();
        let mut region = Self::new(first, offset, tasks, &state.start, state.settings);
        let n = region.first.cost.len();
        for (task, _) in state.known.iter().enumerate().filter(|(_, known)| **known) {
            region.lp.set_bounds(n + task, f64::NEG_INFINITY, f64::INFINITY);
        }
        for row in rows {
            row.add_to(&mut region.lp);
            region.rows.push(row.row);
        }
        region.lp.set_basis(&basis);
        for open in state.basket.values_mut() {
            open.values.fill(None);
            open.infeasible.clear();
            open.unbounded.clear();
            (open.back, open.triggered) = (0, false);
        }
        Self { state, ..region }
    }

    /// The decisions under evaluation, with the numbers of their iterates.
    pub fn open(&self) -> impl Iterator<Item = (u32, &[f64])> {
        self.state.basket.iter().map(|(iterate, open)| (*iterate, &open.x[..]))
    }

    /// The first decision to evaluate: the start if it meets the first stage's rows, else a cheap one
    /// near it.
    ///
    /// # Errors
    /// The model cannot be solved.
    pub fn begin(&mut self) -> Result<Step, RegionError> {
        if self.first.violation(&self.state.start, 1e-9).is_none() {
            let x = self.state.start.clone();
            let thetas = vec![f64::NEG_INFINITY; self.state.known.len()];
            return Ok(self.evaluate(x, f64::NEG_INFINITY, thetas));
        }
        self.advance().map(|step| step.unwrap_or(Step::Done))
    }

    // --- what is known ---

    /// The best decision so far.
    pub fn incumbent(&self) -> Option<&Incumbent> {
        self.state.incumbent.as_ref()
    }

    /// The present radius.
    pub fn radius(&self) -> f64 {
        self.state.radius
    }

    /// The model's least cost inside the last region.
    pub fn promised(&self) -> f64 {
        self.state.bound
    }

    /// The number of iterates.
    pub fn iterates(&self) -> u32 {
        self.state.next
    }

    /// The outcomes of iterates, in the order in which they ended.
    pub fn records(&self) -> &[IterateRecord] {
        &self.state.records
    }

    /// Rows of the model, resting cuts, and pivots so far.
    pub fn size(&self) -> (usize, usize, u64) {
        (self.lp.rows(), self.state.resting.len(), self.lp.pivots())
    }

    /// Why the method ended; none while it runs.
    pub fn end(&self) -> Option<&End> {
        self.state.end.as_ref()
    }

    /// The largest gap that the method accepts at a cost: [`Settings::epsilon`] of 1 and the cost.
    fn gap_max(&self, cost: f64) -> f64 {
        self.state.settings.epsilon * (1.0 + cost.abs())
    }

    /// The model without a region, solved: its least cost is a lower bound of every decision's. None
    /// while a task has no cut, or where the model has no lower bound.
    pub fn relaxation(&self) -> Option<Relaxation> {
        let mut free = self.clone();
        free.flush();
        if !free.state.known.iter().all(|known| *known) {
            return None;
        }
        free.release();
        if free.solve_whole() != Status::Optimal {
            return None;
        }
        let duals = (0..self.first.rhs.len()).map(|row| free.lp.dual(row)).collect();
        let reduced = (0..self.first.cost.len()).map(|column| free.lp.reduced_cost(column));
        let bound = free.lp.objective() + self.offset;
        Some(Relaxation { bound, duals, reduced_costs: reduced.collect() })
    }

    // --- what happens ---

    /// Takes the evaluation of a task of an iterate. One that is known already, or belongs to an iterate
    /// that is over, changes nothing.
    ///
    /// # Errors
    /// The method cannot go on.
    pub fn take(
        &mut self,
        iterate: u32,
        task: u32,
        evaluation: Evaluation,
    ) -> Result<Vec<Step>, RegionError> {
        if self.state.end.is_some() {
            return Ok(Vec::new());
        }
        let Some(open) = self.state.basket.get_mut(&iterate) else { return Ok(Vec::new()) };
        let new = open.values.get_mut(task as usize).filter(|value| value.is_none());
        let without = open.infeasible.contains_key(&task) || open.unbounded.contains_key(&task);
        let Some(value) = new.filter(|_| !without) else { return Ok(Vec::new()) };
        open.back += 1;
        match evaluation {
            Evaluation::Cut(cut) => {
                *value = Some(cut.value);
                let theta = open.thetas[task as usize];
                if cut.value > theta + VIOLATED * (1.0_f64.min(theta.abs()) + cut.value.abs()) {
                    let slopes = cut.gradient.iter().zip(&open.x);
                    let at_x: f64 = slopes.map(|(slope, x)| slope * x).sum();
                    self.state.cuts.insert((iterate, task), (cut.gradient, cut.value - at_x));
                }
            }
            Evaluation::Infeasible(cut) => drop(open.infeasible.insert(task, cut)),
            Evaluation::Unbounded(ray) => drop(open.unbounded.insert(task, ray)),
        }
        let tasks = self.state.known.len();
        if open.back == tasks {
            return self.complete(iterate);
        }
        let whole = open.infeasible.is_empty() && open.unbounded.is_empty();
        let enough = open.back as f64 >= self.state.settings.sigma * tasks as f64;
        let first = open.parent.is_none();
        if whole
            && enough
            && !open.triggered
            && !first
            && self.state.basket.len() < self.state.settings.basket
        {
            if let Some(open) = self.state.basket.get_mut(&iterate) {
                open.triggered = true;
            }
            return self.next_step();
        }
        Ok(Vec::new())
    }

    /// Continues after a recession test that found no direction of falling costs.
    ///
    /// # Errors
    /// The method cannot go on.
    pub fn set_bounded(&mut self) -> Result<Vec<Step>, RegionError> {
        self.state.bounded = true;
        self.next_step()
    }

    /// Says from the start that costs have a lower bound, so that no recession test is needed.
    pub fn known_bounded(mut self) -> Self {
        self.state.bounded = true;
        self
    }

    fn next_step(&mut self) -> Result<Vec<Step>, RegionError> {
        Ok(self.advance()?.into_iter().collect())
    }

    /// Judges an iterate whose tasks are all back. Without recourse in some scenario it is never
    /// accepted and says nothing about the radius; the feasibility cuts of all its tasks enter the model
    /// at once, whichever was back first.
    fn complete(&mut self, iterate: u32) -> Result<Vec<Step>, RegionError> {
        let Some(mut open) = self.state.basket.remove(&iterate) else { return Ok(Vec::new()) };
        let (promised, radius) = (open.promised, self.state.radius);
        let mut record = IterateRecord { iterate, cost: None, promised, accepted: false, radius };
        if !open.infeasible.is_empty() {
            self.state.records.push(record);
            if self.state.infeasible.replace(open.x.clone()) == Some(open.x) {
                return Err(RegionError::Rounding);
            }
            for cut in open.infeasible.into_values() {
                let entries = cut.row.iter().copied().enumerate();
                self.lp.add_row(entries, f64::NEG_INFINITY, cut.upper);
                self.rows.push(Row { origin: Origin::Scenario(cut.scenario, cut.rows), idle: 0 });
                self.state.cuts_made += 1;
            }
            return self.next_step();
        }
        if let Some((_, ray)) = open.unbounded.pop_first() {
            self.state.records.push(record);
            return Ok(vec![self.finish(End::Unbounded(ray))]);
        }
        // In the order of tasks, so that the sum has the same bits.
        let second: f64 = open.values.iter().flatten().sum();
        let first: f64 = self.first.cost.iter().zip(&open.x).map(|(cost, x)| cost * x).sum();
        let cost = self.offset + first + second;
        record.cost = Some(cost);
        record.accepted = self.judge(&open, cost);
        record.radius = self.state.radius;
        if record.accepted {
            self.state.incumbent = Some(Incumbent { x: open.x, cost, iterate });
        }
        self.state.records.push(record);
        self.next_step()
    }

    fn finish(&mut self, end: End) -> Step {
        self.state.end = Some(end);
        self.state.basket.clear();
        Step::Done
    }

    /// Whether an iterate becomes the incumbent; adapts the radius. The decrease counts against the
    /// incumbent that the iterate came from, which need not be the present one.
    fn judge(&mut self, open: &Iterate, cost: f64) -> bool {
        let Some(parent) = open.parent else { return true };
        let promised = parent - open.promised;
        let now = self.state.incumbent.as_ref().map_or(f64::INFINITY, |incumbent| incumbent.cost);
        let accepted = cost < now && cost <= parent - SUFFICIENT * promised;
        if accepted {
            let moved = open.x.iter().zip(&open.center).map(|(x, center)| (x - center).abs());
            let far = moved.fold(0.0_f64, f64::max) >= open.radius * (1.0 - 1e-6);
            if far && cost <= parent - GOOD * promised {
                let larger = (2.0 * open.radius).min(self.radius_max(&open.x));
                self.state.radius = self.state.radius.max(larger);
            }
            self.state.worse = 0;
        } else if promised > 0.0 {
            let ratio = open.radius.min(1.0) * (cost - parent) / promised;
            if ratio > 0.0 {
                self.state.worse += 1;
            }
            if ratio > 3.0 || self.state.worse >= PATIENCE && ratio > 1.0 {
                self.state.radius = self.state.radius.min(open.radius / ratio.min(4.0));
                self.state.worse = 0;
            }
        }
        accepted
    }

    /// The largest radius that accepted steps lead to: [`Settings::radius_max`], and more far from the
    /// origin, so that the way back takes few steps.
    fn radius_max(&self, x: &[f64]) -> f64 {
        let largest = x.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        self.state.settings.radius_max.max(FAR_RADIUS * largest)
    }

    /// Puts the new cuts into the model, in the order of iterates and tasks.
    fn flush(&mut self) {
        let n = self.first.cost.len();
        for ((iterate, task), (gradient, least)) in std::mem::take(&mut self.state.cuts) {
            let theta = n + task as usize;
            let slopes = gradient.iter().enumerate().map(|(column, slope)| (column, -slope));
            self.lp.add_row(slopes.chain([(theta, 1.0)]), least, f64::INFINITY);
            self.rows.push(Row { origin: Origin::Iterate(iterate), idle: 0 });
            self.state.cuts_made += 1;
            self.lp.set_bounds(theta, f64::NEG_INFINITY, f64::INFINITY);
            self.state.known[task as usize] = true;
        }
    }

    /// Bounds the columns by the first stage alone.
    fn release(&mut self) {
        for column in 0..self.first.cost.len() {
            self.lp.set_bounds(column, self.first.lower[column], self.first.upper[column]);
        }
    }

    /// Bounds the columns by the first stage and the region.
    fn confine(&mut self) {
        let center = self.state.incumbent.as_ref().map_or(&self.state.start, |best| &best.x);
        for column in 0..self.first.cost.len() {
            let (lower, upper) = (self.first.lower[column], self.first.upper[column]);
            let (center, radius) = (center[column], self.state.radius);
            self.lp.set_bounds(column, lower.max(center - radius), upper.min(center + radius));
        }
    }

    /// Solves the model inside the region; the next iterate, or another step. None if that decision is
    /// being evaluated already.
    fn advance(&mut self) -> Result<Option<Step>, RegionError> {
        if self.state.next >= self.state.settings.iterations_max {
            let over = self.state.basket.is_empty();
            return Ok(over.then(|| self.finish(End::IterationLimit)));
        }
        self.flush();
        // From the last basis and nothing else that was computed: a resumed method does the same.
        let basis = self.lp.basis();
        self.lp.set_basis(&basis);
        let step = match self.state.incumbent {
            None => self.solve_near_start()?,
            Some(_) => self.solve_near_incumbent()?,
        };
        if step.is_some() {
            return Ok(step);
        }
        self.age();
        let n = self.first.cost.len();
        let mut x = vec![0.0; n + self.state.known.len()];
        self.lp.values(&mut x);
        let mut thetas = x.split_off(n);
        // A decision that is beyond a bound by rounding alone can leave a scenario without recourse.
        for (column, x) in x.iter_mut().enumerate() {
            *x = x.clamp(self.first.lower[column], self.first.upper[column]);
        }
        let mut promised = self.lp.objective() + self.offset;
        for (theta, known) in thetas.iter_mut().zip(&self.state.known) {
            if !known {
                (*theta, promised) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
            }
        }
        match self.state.incumbent {
            Some(_) => self.state.bound = promised,
            None => self.state.radius = self.state.radius.min(self.state.settings.radius_max),
        }
        if self.is_close() {
            return Ok(Some(self.finish(End::Optimal)));
        }
        // A few tasks of an open iterate may say nothing new.
        let same = |open: &Iterate| open.x.iter().zip(&x).all(|(one, other)| one == other);
        if self.state.basket.values().any(same) {
            return Ok(None);
        }
        // The same decision again, and no cut since: what the model still promises is rounding.
        let repeated = self.state.repeated.as_ref();
        if repeated.is_some_and(|(known, cuts)| *known == x && *cuts == self.state.cuts_made) {
            return match (self.state.basket.is_empty(), self.is_near()) {
                (false, _) => Ok(None),
                (true, true) => Ok(Some(self.finish(End::Optimal))),
                (true, false) => Err(RegionError::Unsolved),
            };
        }
        self.state.repeated = Some((x.clone(), self.state.cuts_made));
        Ok(Some(self.evaluate(x, promised, thetas)))
    }

    /// Without an incumbent: the region grows until it holds a decision that meets all rows, but never
    /// beyond the one that the model without a region finds.
    fn solve_near_start(&mut self) -> Result<Option<Step>, RegionError> {
        let mut reach: Option<f64> = None;
        loop {
            self.confine();
            match self.solve()? {
                Status::Optimal => return Ok(None),
                Status::Infeasible => {}
                _ => return Err(RegionError::Unsolved),
            }
            let reach = match reach {
                Some(reach) if self.state.radius >= reach => return Err(RegionError::Unsolved),
                Some(reach) => reach,
                None => {
                    self.release();
                    match self.lp.solve() {
                        Status::Infeasible => {
                            let conflict = self.conflict();
                            return Ok(Some(self.finish(End::Infeasible(conflict))));
                        }
                        Status::Optimal | Status::Unbounded => {}
                        Status::Limit | Status::Trouble => return Err(RegionError::Unsolved),
                    }
                    let mut x = vec![0.0; self.lp.columns()];
                    self.lp.values(&mut x);
                    let away = x.iter().zip(&self.state.start).map(|(x, start)| (x - start).abs());
                    let away = away.fold(0.0_f64, f64::max) * (1.0 + 1e-6);
                    *reach.insert(away.max(self.state.radius))
                }
            };
            self.state.radius = (4.0 * self.state.radius).min(reach.max(1e-6));
        }
    }

    /// Around the incumbent. Where the model promises next to nothing but the region binds, more may be
    /// gained beyond it: the region grows, unless the model without a region promises no more. Before it
    /// grows far, a recession test must show that costs have a lower bound.
    fn solve_near_incumbent(&mut self) -> Result<Option<Step>, RegionError> {
        let mut relaxed = false;
        loop {
            if self.state.radius >= self.state.settings.radius_max && !self.state.bounded {
                return Ok(Some(Step::TestRecession));
            }
            self.confine();
            if self.solve()? != Status::Optimal {
                return Err(RegionError::Unsolved);
            }
            if !self.is_close() || !self.binds() || self.state.radius >= FARTHEST {
                return Ok(None);
            }
            if !std::mem::replace(&mut relaxed, true)
                && let (Some(relaxation), Some(best)) = (self.relaxation(), &self.state.incumbent)
                && best.cost - relaxation.bound <= self.gap_max(best.cost)
            {
                return Ok(None);
            }
            self.state.radius *= 4.0;
        }
    }

    /// Whether the model, which holds the incumbent at its own cost, claims a larger least cost.
    fn is_wrong(&self) -> bool {
        let promised = self.lp.objective() + self.offset;
        self.state.incumbent.as_ref().is_some_and(|incumbent| {
            promised > incumbent.cost + 1e-6 * (1.0 + incumbent.cost.abs())
        })
    }

    /// Whether the model, as solved last, promises at most the accepted gap.
    fn is_close(&self) -> bool {
        let Some(incumbent) = &self.state.incumbent else { return false };
        let promised = self.lp.objective() + self.offset;
        incumbent.cost - promised <= self.gap_max(incumbent.cost)
    }

    /// Whether what the model still promises may be rounding.
    fn is_near(&self) -> bool {
        let promised = self.lp.objective() + self.offset;
        let best = self.state.incumbent.as_ref();
        best.is_some_and(|best| best.cost - promised <= 1e-6 * (1.0 + best.cost.abs()))
    }

    /// Whether the model's decision is at the edge of the region, where that is no bound of its own.
    fn binds(&self) -> bool {
        let Some(incumbent) = &self.state.incumbent else { return false };
        let mut all = vec![0.0; self.lp.columns()];
        self.lp.values(&mut all);
        incumbent.x.iter().enumerate().any(|(column, center)| {
            let (lower, upper) = (self.first.lower[column], self.first.upper[column]);
            let (x, edge) = (all[column], self.state.radius * (1.0 - 1e-9));
            (x - center >= edge && x < upper) || (center - x >= edge && x > lower)
        })
    }

    /// Solves the model from the last basis, and from the beginning where that fails.
    fn solve(&mut self) -> Result<Status, RegionError> {
        for cold in [false, true] {
            if cold {
                self.lp = Simplex::new(self.lp.program(), Pricing::Steepest);
            }
            match self.solve_whole() {
                Status::Optimal if self.is_wrong() => {}
                status @ (Status::Optimal | Status::Infeasible) => return Ok(status),
                _ => {}
            }
        }
        Err(RegionError::Unsolved)
    }

    /// Solves the model with all its cuts: of the resting ones, the most violated of each task returns
    /// until none is violated.
    fn solve_whole(&mut self) -> Status {
        let mut all = vec![0.0; self.lp.columns()];
        loop {
            let status = self.lp.solve();
            if status != Status::Optimal || self.state.resting.is_empty() {
                return status;
            }
            self.lp.values(&mut all);
            let mut worst: BTreeMap<u32, (f64, usize)> = BTreeMap::new();
            for (at, row) in self.state.resting.iter().enumerate() {
                let activity: f64 =
                    row.entries.iter().map(|(column, value)| all[*column as usize] * value).sum();
                let Some(&(theta, _)) = row.entries.last() else { continue };
                let short = row.lower - activity;
                if short > VIOLATED * (1.0 + all[theta as usize].abs()) {
                    let most = worst.entry(theta).or_insert((short, at));
                    if short > most.0 {
                        *most = (short, at);
                    }
                }
            }
            if worst.is_empty() {
                return status;
            }
            let mut back: Vec<usize> = worst.values().map(|(_, at)| *at).collect();
            back.sort_unstable();
            for &at in &back {
                let row = &mut self.state.resting[at];
                row.add_to(&mut self.lp);
                row.row.idle = 0;
                self.rows.push(row.row.clone());
            }
            let mut at = 0;
            self.state.resting.retain(|_| {
                at += 1;
                back.binary_search(&(at - 1)).is_err()
            });
        }
    }

    /// The rows of the ray that proves the model infeasible.
    fn conflict(&self) -> Conflict {
        let (ray, first) = (self.lp.ray(), self.first.rhs.len());
        let takes_part = |row: &usize| ray[*row] != 0.0;
        let named = (0..first).filter(takes_part).map(|row| row as u32).collect();
        let mut conflict = Conflict { first: named, scenarios: Vec::new() };
        for row in (first..ray.len()).filter(takes_part) {
            if let Origin::Scenario(scenario, rows) = &self.rows[row - first].origin {
                conflict.scenarios.push((*scenario, rows.clone()));
            }
        }
        conflict
    }

    fn evaluate(&mut self, x: Vec<f64>, promised: f64, thetas: Vec<f64>) -> Step {
        let iterate = self.state.next;
        self.state.next += 1;
        let parent = self.state.incumbent.as_ref();
        let open = Iterate {
            x: x.clone(),
            parent: parent.map(|incumbent| incumbent.cost),
            center: parent
                .map_or_else(|| self.state.start.clone(), |incumbent| incumbent.x.clone()),
            radius: self.state.radius,
            promised,
            values: vec![None; thetas.len()],
            thetas,
            infeasible: BTreeMap::new(),
            unbounded: BTreeMap::new(),
            back: 0,
            triggered: false,
        };
        self.state.basket.insert(iterate, open);
        Step::Evaluate { iterate, x }
    }

    /// Takes cuts without a multiplier out of the model; they rest until they are violated. Old ones are
    /// dropped, but for those of the incumbent and of open iterates.
    fn age(&mut self) {
        let first = self.first.rhs.len();
        for (at, row) in self.rows.iter_mut().enumerate() {
            row.idle = if self.lp.dual(first + at).abs() > 1e-12 { 0 } else { row.idle + 1 };
        }
        for row in &mut self.state.resting {
            row.row.idle += 1;
        }
        let rows = &self.rows;
        let rests = |row: &Row| row.iterate().is_some() && row.idle > 0;
        if rows.iter().any(rests) {
            let saved = |(at, row)| rests(row).then(|| SavedRow::of(&self.lp, first + at, row));
            let before: Vec<Option<SavedRow>> = rows.iter().enumerate().map(saved).collect();
            let gone =
                self.lp.drop_rows(|row| row.checked_sub(first).is_none_or(|at| !rests(&rows[at])));
            let mut at = first;
            self.rows.retain(|_| {
                at += 1;
                !gone[at - 1]
            });
            let gone = before.into_iter().zip(&gone[first..]).filter(|(_, gone)| **gone);
            self.state.resting.extend(gone.filter_map(|(row, _)| row));
        }
        if self.state.resting.len() > RESTING_FOR_EACH * self.lp.columns() {
            let incumbent = self.state.incumbent.as_ref().map(|incumbent| incumbent.iterate);
            let basket = &self.state.basket;
            self.state.resting.retain(|row| {
                let needed =
                    |iterate: u32| Some(iterate) == incumbent || basket.contains_key(&iterate);
                row.row.idle <= OLD || row.row.iterate().is_some_and(needed)
            });
        }
    }
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

#[cfg(test)]
#[path = "trust_region_tests.rs"]
mod tests;
