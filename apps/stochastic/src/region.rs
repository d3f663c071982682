//! The trust-region method for the first stage, synchronous and asynchronous: which decisions are to be evaluated, and which is the best.
//!
//! A state machine without I/O: it is told what was found of each task of each iterate, in any order and more than once, and says
//! which decisions to evaluate next. With a basket of one its iterates follow from the model, the tasks and the start alone. Must not know who
//! evaluates, when, nor how scenarios are drawn.
//!
//! Sources: Linderoth and Wright, Decomposition algorithms for stochastic programming on a computational grid (Computational
//! Optimization and Applications 2003); its rules as the spec of the project gives them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lp::simplex::Pricing;
use crate::lp::{Problem, Simplex, Status};
use crate::model::Stage;
use crate::recourse::{Condition, Found};

/// A step is accepted that gets this part of what the model promised.
const SUFFICIENT: f64 = 1e-4;
/// One that gets this part, at the edge of the region, makes it larger.
const GOOD: f64 = 0.5;
/// So many steps that are a little worse than promised make the region smaller.
const PATIENCE: u32 = 3;
/// A cut that has had no multiplier in so many solves is dropped, once there are so many that rest for each column.
const OLD: u32 = 100;
const RESTING_FOR_EACH: usize = 20;
/// Nothing is looked for farther away.
const FARTHEST: f64 = 1e12;
/// A cut is added that is above the model by this part of its value.
const VIOLATED: f64 = 1e-10;

/// What governs the method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// It stops when the model promises no more than this part of the best cost.
    pub epsilon: f64,
    /// Iterates that are evaluated at once at most.
    pub basket: usize,
    /// The part of an iterate's tasks that has to be back before the next is made; 1: all.
    pub sigma: f64,
    /// The greatest radius.
    pub radius_most: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epsilon: 1e-5, basket: 1, sigma: 1.0, radius_most: 1000.0 }
    }
}

/// A decision that is being evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Iterate {
    x: Vec<f64>,
    /// The cost of the incumbent that it came from; none for the first.
    parent: Option<f64>,
    /// That incumbent.
    center: Vec<f64>,
    radius: f64,
    /// What the model promised, and of each task.
    promised: f64,
    thetas: Vec<f64>,
    values: Vec<Option<f64>>,
    /// What tasks ask of decisions, so that all their scenarios have a second stage.
    conditions: BTreeMap<u32, Condition>,
    back: usize,
    triggered: bool,
}

/// The best decision so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incumbent {
    /// By first-stage column.
    pub x: Vec<f64>,
    /// Its cost, first stage and expected second stage.
    pub cost: f64,
    /// The iterate that it was.
    pub iterate: u32,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// All tasks are to be evaluated at this decision.
    Evaluate {
        /// The iterate's number.
        iterate: u32,
        /// The decision.
        x: Vec<f64>,
    },
    /// It is done.
    Done,
}

/// The method cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// No first-stage decision meets all conditions.
    #[error("no first-stage decision meets all rows{}: {told}", if *.conditions > 0 { " and leaves each scenario a second stage" } else { "" })]
    Infeasible {
        /// How many conditions scenarios had made.
        conditions: usize,
        /// A row that takes part.
        told: String,
    },
    /// The model cannot be solved.
    #[error("the first stage could not be solved: see how its numbers are scaled")]
    Failed,
}

/// A row of the model, beside those of the first stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    /// The iterate that it was made at; none: a condition, which stays.
    iterate: Option<u32>,
    idle: u32,
}

/// What a method that was broken off goes on from: see [`Region::saved`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    state: State,
    /// Rows of the model beside those of the first stage.
    rows: Vec<Whole>,
    /// The model's last basis.
    basis: Vec<u8>,
}

/// A row with its entries and bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Whole {
    of: Row,
    entries: Vec<(u32, f64)>,
    lower: f64,
    upper: f64,
}

impl Whole {
    /// Row `at` of a program.
    fn of(problem: &Simplex, at: usize, of: &Row) -> Self {
        let entries = problem.row(at).map(|(column, value)| (column as u32, value));
        let (lower, upper) = problem.row_bounds(at);
        Self { of: of.clone(), entries: entries.collect(), lower, upper }
    }

    fn put_into(&self, lp: &mut Simplex) {
        let entries = self.entries.iter().map(|(column, value)| (*column as usize, *value));
        lp.add_row(entries, self.lower, self.upper);
    }
}

/// What happened with an iterate, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Looked {
    /// Its number.
    pub iterate: u32,
    /// Its cost; none if some scenario has no second stage there.
    pub cost: Option<f64>,
    /// What the model promised.
    pub promised: f64,
    /// Whether it became the incumbent.
    pub accepted: bool,
    /// The radius after it.
    pub radius: f64,
}

/// What the method knows, but for the model that is made of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    settings: Settings,
    tasks: usize,
    /// Cuts that are true and, where the model was solved last, said nothing.
    resting: Vec<Whole>,
    incumbent: Option<Incumbent>,
    start: Vec<f64>,
    radius: f64,
    worse: u32,
    next: u32,
    basket: BTreeMap<u32, Iterate>,
    /// Cuts that the model does not have yet, by iterate and task: gradients, and values where no decision is taken.
    cuts: BTreeMap<(u32, u32), (Vec<f64>, f64)>,
    /// The least that the model could be inside the last region.
    bound: f64,
    looked: Vec<Looked>,
    done: bool,
}

/// The method.
#[derive(Clone, Debug)]
pub struct Region {
    first: Stage,
    offset: f64,
    lp: Simplex,
    rows: Vec<Row>,
    state: State,
}

impl Region {
    /// For a first stage with a constant cost, and this many tasks, from a decision that need not meet its rows.
    ///
    /// # Panics
    /// If `start` is of another number of columns, or there is no task.
    pub fn new(first: Stage, offset: f64, tasks: usize, start: &[f64], settings: Settings) -> Self {
        let n = first.cost.len();
        assert!(start.len() == n && tasks > 0);
        let with = |all: &[f64], theta: f64| {
            let thetas = std::iter::repeat_n(theta, tasks);
            all.iter().copied().chain(thetas).collect::<Vec<f64>>()
        };
        // A task whose cost nothing is known of counts as nothing.
        let (cost, lower) = (with(&first.cost, 1.0), with(&first.lower, 0.0));
        let upper = with(&first.upper, 0.0);
        let mut problem = Problem::new(&cost, &lower, &upper);
        problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
        let start: Vec<f64> =
            (0..n).map(|at| start[at].clamp(first.lower[at], first.upper[at])).collect();
        let largest = start.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        let radius = (0.2 * largest).max(1.0).min(settings.radius_most);
        let state = State {
            settings,
            tasks,
            resting: Vec::new(),
            incumbent: None,
            start,
            radius,
            worse: 0,
            next: 0,
            basket: BTreeMap::new(),
            cuts: BTreeMap::new(),
            bound: f64::NEG_INFINITY,
            looked: Vec::new(),
            done: false,
        };
        let lp = Simplex::new(problem, Pricing::Steepest);
        Self { first, offset, lp, rows: Vec::new(), state }
    }

    /// Begins with this radius.
    ///
    /// # Panics
    /// If it is not positive.
    pub fn with_radius(mut self, radius: f64) -> Self {
        assert!(radius > 0.0);
        self.state.radius = radius.min(self.state.settings.radius_most);
        self
    }

    /// What there is to go on from elsewhere.
    pub fn saved(&self) -> Saved {
        let (first, problem) = (self.first.rhs.len(), &self.lp);
        let whole = |(at, of): (usize, &Row)| Whole::of(problem, first + at, of);
        Saved {
            state: self.state.clone(),
            rows: self.rows.iter().enumerate().map(whole).collect(),
            basis: self.lp.basis(),
        }
    }

    /// Goes on from what was saved, of the same first stage. What was being evaluated is evaluated anew: [`Region::open`] names it.
    /// With a basket of one the iterates are those that would have come without the break, to the bit.
    pub fn resume(first: Stage, offset: f64, saved: Saved) -> Self {
        let Saved { mut state, rows, basis } = saved;
        let mut region = Self::new(first, offset, state.tasks, &state.start, state.settings);
        let n = region.first.cost.len();
        for row in rows.iter().chain(&state.resting) {
            for &(column, _) in row.entries.iter().filter(|(column, _)| *column as usize >= n) {
                region.lp.set_bounds(column as usize, f64::NEG_INFINITY, f64::INFINITY);
            }
        }
        for row in rows {
            row.put_into(&mut region.lp);
            region.rows.push(row.of);
        }
        region.lp.set_basis(&basis);
        for open in state.basket.values_mut() {
            open.values.fill(None);
            open.conditions.clear();
            (open.back, open.triggered) = (0, false);
        }
        Self { state, ..region }
    }

    /// What is being evaluated: iterates and their decisions.
    pub fn open(&self) -> impl Iterator<Item = (u32, &[f64])> {
        self.state.basket.iter().map(|(iterate, open)| (*iterate, &open.x[..]))
    }

    /// The first decision to evaluate: the start, if it meets the first stage's rows, else a cheap one near it.
    ///
    /// # Errors
    /// There is none.
    pub fn begin(&mut self) -> Result<Step, RegionError> {
        if self.meets_rows(&self.state.start) {
            let x = self.state.start.clone();
            return Ok(self.evaluate(
                x,
                f64::NEG_INFINITY,
                vec![f64::NEG_INFINITY; self.state.tasks],
            ));
        }
        self.advance().map(|step| step.unwrap_or(Step::Done))
    }

    fn meets_rows(&self, x: &[f64]) -> bool {
        let mut activity = vec![0.0; self.first.rhs.len()];
        self.first.matrix.add_times(x, &mut activity);
        activity.iter().enumerate().all(|(row, activity)| {
            let rhs = self.first.rhs[row];
            let slack = 1e-9 * (1.0 + rhs.abs());
            rhs - self.first.below[row] - slack <= *activity
                && *activity <= rhs + self.first.above[row] + slack
        })
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

    /// What the model promised inside the last region.
    pub fn promised(&self) -> f64 {
        self.state.bound
    }

    /// Iterates that were made.
    pub fn iterates(&self) -> u32 {
        self.state.next
    }

    /// What came of iterates, in order of their ends.
    pub fn looked(&self) -> &[Looked] {
        &self.state.looked
    }

    /// Rows of the model, cuts that rest, and pivots that it took.
    pub fn size(&self) -> (usize, usize, u64) {
        (self.lp.rows(), self.state.resting.len(), self.lp.pivots())
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.state.done
    }

    /// The least cost that any decision can have, by the model without a region; none if that has no bound.
    pub fn lower_bound(&self) -> Option<f64> {
        let mut free = self.clone();
        free.flush();
        for column in 0..self.first.cost.len() {
            free.lp.set_bounds(column, self.first.lower[column], self.first.upper[column]);
        }
        let solved = free.solve_whole();
        (solved == Status::Optimal).then(|| free.lp.objective() + self.offset)
    }

    // --- what happens ---

    /// What was found of a task of an iterate. What is known already, or of an iterate that is over, changes nothing.
    ///
    /// # Errors
    /// It cannot go on.
    pub fn found(
        &mut self,
        iterate: u32,
        task: u32,
        found: Found,
    ) -> Result<Vec<Step>, RegionError> {
        let Some(looked) = self.state.basket.get_mut(&iterate).filter(|_| !self.state.done) else {
            return Ok(Vec::new());
        };
        let new = looked.values.get_mut(task as usize).filter(|value| value.is_none());
        let Some(value) = new.filter(|_| !looked.conditions.contains_key(&task)) else {
            return Ok(Vec::new());
        };
        looked.back += 1;
        let (back, first) = (looked.back, looked.parent.is_none());
        let cut = match found {
            Found::Cut(cut) => cut,
            Found::Condition(condition) => {
                looked.conditions.insert(task, condition);
                return if back == self.state.tasks { self.whole(iterate) } else { Ok(Vec::new()) };
            }
        };
        *value = Some(cut.value);
        if cut.value > looked.thetas[task as usize] + VIOLATED * (1.0 + cut.value.abs()) {
            let at_x: f64 = cut.gradient.iter().zip(&looked.x).map(|(slope, x)| slope * x).sum();
            self.state.cuts.insert((iterate, task), (cut.gradient, cut.value - at_x));
        }
        if back == self.state.tasks {
            return self.whole(iterate);
        }
        let enough = back as f64 >= self.state.settings.sigma * self.state.tasks as f64;
        if enough
            && !looked.triggered
            && !first
            && self.state.basket.len() < self.state.settings.basket
        {
            if let Some(looked) = self.state.basket.get_mut(&iterate) {
                looked.triggered = true;
            }
            return self.next_step();
        }
        Ok(Vec::new())
    }

    fn next_step(&mut self) -> Result<Vec<Step>, RegionError> {
        Ok(self.advance()?.into_iter().collect())
    }

    /// All tasks of an iterate are back. Where some scenario has no second stage it is never accepted, and says nothing about the radius;
    /// what all tasks ask is put into the model at once, so that it does not matter who was back first.
    fn whole(&mut self, iterate: u32) -> Result<Vec<Step>, RegionError> {
        let Some(looked) = self.state.basket.remove(&iterate) else { return Ok(Vec::new()) };
        if !looked.conditions.is_empty() {
            let (promised, radius) = (looked.promised, self.state.radius);
            self.state.looked.push(Looked {
                iterate,
                cost: None,
                promised,
                accepted: false,
                radius,
            });
            for condition in looked.conditions.values() {
                let entries = condition.row.iter().copied().enumerate();
                self.lp.add_row(entries, f64::NEG_INFINITY, condition.most);
                self.rows.push(Row { iterate: None, idle: 0 });
            }
            return self.next_step();
        }
        // In the order of tasks, whoever was back first.
        let second: f64 = looked.values.iter().flatten().sum();
        let first: f64 = self.first.cost.iter().zip(&looked.x).map(|(cost, x)| cost * x).sum();
        let cost = self.offset + first + second;
        let accepted = self.judge(&looked, cost);
        if accepted {
            self.state.incumbent = Some(Incumbent { x: looked.x, cost, iterate });
        }
        let (promised, radius) = (looked.promised, self.state.radius);
        self.state.looked.push(Looked { iterate, cost: Some(cost), promised, accepted, radius });
        self.next_step()
    }

    /// Whether an iterate becomes the incumbent; and what it says about the radius. What it was to do better than is the incumbent
    /// that it came from, which need not be the present one.
    fn judge(&mut self, looked: &Iterate, cost: f64) -> bool {
        let Some(parent) = looked.parent else { return true };
        let promised = parent - looked.promised;
        let now = self.state.incumbent.as_ref().map_or(f64::INFINITY, |incumbent| incumbent.cost);
        let accepted = cost < now && cost <= parent - SUFFICIENT * promised;
        if accepted {
            let moved = looked.x.iter().zip(&looked.center).map(|(x, center)| (x - center).abs());
            let far = moved.fold(0.0_f64, f64::max) >= looked.radius * (1.0 - 1e-6);
            if far && cost <= parent - GOOD * promised {
                let larger = (2.0 * looked.radius).min(self.state.settings.radius_most);
                self.state.radius = self.state.radius.max(larger);
            }
            self.state.worse = 0;
        } else if promised > 0.0 {
            let ratio = looked.radius.min(1.0) * (cost - parent) / promised;
            if ratio > 0.0 {
                self.state.worse += 1;
            }
            if ratio > 3.0 || self.state.worse >= PATIENCE && ratio > 1.0 {
                self.state.radius = self.state.radius.min(looked.radius / ratio.min(4.0));
                self.state.worse = 0;
            }
        }
        accepted
    }

    /// Puts what was found into the model, in the order of iterates and tasks.
    fn flush(&mut self) {
        let n = self.first.cost.len();
        for ((iterate, task), (gradient, least)) in std::mem::take(&mut self.state.cuts) {
            let theta = n + task as usize;
            let slopes = gradient.iter().enumerate().map(|(column, slope)| (column, -slope));
            self.lp.add_row(slopes.chain([(theta, 1.0)]), least, f64::INFINITY);
            self.rows.push(Row { iterate: Some(iterate), idle: 0 });
            self.lp.set_bounds(theta, f64::NEG_INFINITY, f64::INFINITY);
        }
    }

    /// Solves the model inside the region: a new iterate, or the end. None if what comes out is being evaluated already.
    fn advance(&mut self) -> Result<Option<Step>, RegionError> {
        self.flush();
        // From the last basis and nothing else that was computed before: a method that goes on elsewhere goes the same way.
        let basis = self.lp.basis();
        self.lp.set_basis(&basis);
        let n = self.first.cost.len();
        loop {
            let center =
                self.state.incumbent.as_ref().map_or(&self.state.start, |incumbent| &incumbent.x);
            for column in 0..n {
                let (lower, upper) = (self.first.lower[column], self.first.upper[column]);
                let (center, radius) = (center[column], self.state.radius);
                self.lp.set_bounds(column, lower.max(center - radius), upper.min(center + radius));
            }
            match self.solve()? {
                // A narrow region promises little though much may be gained beyond it: the end is believed of one that binds nothing.
                Status::Optimal
                    if self.is_close() && self.binds() && self.state.radius < FARTHEST =>
                {
                    self.state.radius *= 4.0;
                }
                Status::Optimal => break,
                // Before there is an incumbent nothing says that there is a decision nearby.
                _ if self.state.incumbent.is_none() && self.state.radius < FARTHEST => {
                    self.state.radius *= 4.0
                }
                _ => return Err(self.nothing()),
            }
        }
        self.age();
        let mut all = vec![0.0; n + self.state.tasks];
        self.lp.values(&mut all);
        let thetas = all.split_off(n);
        // A decision that is beyond a bound by rounding alone can leave a scenario without a second stage.
        let mut x = all;
        for (column, x) in x.iter_mut().enumerate() {
            *x = x.clamp(self.first.lower[column], self.first.upper[column]);
        }
        let promised = self.lp.objective() + self.offset;
        match self.state.incumbent {
            Some(_) => self.state.bound = promised,
            None => self.state.radius = self.state.radius.min(self.state.settings.radius_most),
        }
        if self.is_close() {
            self.state.done = true;
            self.state.basket.clear();
            return Ok(Some(Step::Done));
        }
        // What is known of tasks on the way may be too little to say anything new.
        let same = |open: &Iterate| open.x.iter().zip(&x).all(|(one, other)| one == other);
        if self.state.basket.values().any(same) {
            return Ok(None);
        }
        Ok(Some(self.evaluate(x, promised, thetas)))
    }

    /// The incumbent is a decision of the model, at its own cost: what is said to be the least may not be more.
    fn is_wrong(&self) -> bool {
        let promised = self.lp.objective() + self.offset;
        self.state.incumbent.as_ref().is_some_and(|incumbent| {
            promised > incumbent.cost + 1e-6 * (1.0 + incumbent.cost.abs())
        })
    }

    /// Whether the model, as it was solved, promises next to nothing.
    fn is_close(&self) -> bool {
        let Some(incumbent) = &self.state.incumbent else { return false };
        let promised = self.lp.objective() + self.offset;
        incumbent.cost - promised <= self.state.settings.epsilon * (1.0 + incumbent.cost.abs())
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

    /// A model that cannot be solved from the last basis is solved from its beginning.
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
        Err(RegionError::Failed)
    }

    /// Solves the model with all its cuts: of those that rest the most violated of each task come back, until none is.
    fn solve_whole(&mut self) -> Status {
        let n = self.first.cost.len();
        let mut all = vec![0.0; n + self.state.tasks];
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
                row.put_into(&mut self.lp);
                row.of.idle = 0;
                self.rows.push(row.of.clone());
            }
            let mut at = 0;
            self.state.resting.retain(|_| {
                at += 1;
                back.binary_search(&(at - 1)).is_err()
            });
        }
    }

    fn nothing(&self) -> RegionError {
        let ray = self.lp.ray();
        let rows = ray.iter().zip(&self.first.rows).filter(|(ray, _)| ray.abs() > 1e-9);
        let named: Vec<&str> = rows.map(|(_, name)| name.as_str()).take(5).collect();
        let told = match named.is_empty() {
            true => "the conditions exclude each other".to_owned(),
            false => format!("rows {} exclude each other", named.join(", ")),
        };
        let conditions = self.rows.iter().filter(|row| row.iterate.is_none()).count();
        RegionError::Infeasible { conditions, told }
    }

    fn evaluate(&mut self, x: Vec<f64>, promised: f64, thetas: Vec<f64>) -> Step {
        let iterate = self.state.next;
        self.state.next += 1;
        let parent = self.state.incumbent.as_ref();
        let looked = Iterate {
            x: x.clone(),
            parent: parent.map(|incumbent| incumbent.cost),
            center: parent
                .map_or_else(|| self.state.start.clone(), |incumbent| incumbent.x.clone()),
            radius: self.state.radius,
            promised,
            thetas,
            values: vec![None; self.state.tasks],
            conditions: BTreeMap::new(),
            back: 0,
            triggered: false,
        };
        self.state.basket.insert(iterate, looked);
        Step::Evaluate { iterate, x }
    }

    /// Cuts that had no multiplier rest: they are no rows of the model before they are violated. After long they are dropped, but for those
    /// of the incumbent and of what is being evaluated.
    fn age(&mut self) {
        let first = self.first.rhs.len();
        for (at, row) in self.rows.iter_mut().enumerate() {
            row.idle = if self.lp.dual(first + at).abs() > 1e-12 { 0 } else { row.idle + 1 };
        }
        for row in &mut self.state.resting {
            row.of.idle += 1;
        }
        let rows = &self.rows;
        let tired = |row: &Row| row.iterate.is_some() && row.idle > 0;
        if rows.iter().any(tired) {
            let whole =
                |(at, row)| tired(row).then(|| Whole::of(&self.lp, first + at, row));
            let before: Vec<Option<Whole>> = rows.iter().enumerate().map(whole).collect();
            let gone =
                self.lp.drop_rows(|row| row.checked_sub(first).is_none_or(|at| !tired(&rows[at])));
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
                row.of.idle <= OLD || row.of.iterate.is_some_and(needed)
            });
        }
    }
}

#[cfg(test)]
#[path = "region_tests.rs"]
mod tests;
