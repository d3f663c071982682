//! The trust-region method for the first stage, synchronous and asynchronous: it chooses decisions
//! to evaluate, judges them, and proves one optimal.
//!
//! A state machine without I/O. It takes the evaluations of tasks in any order, also twice, and
//! returns the decisions to evaluate next. With a basket of one its iterates depend on the model,
//! the tasks and the start alone.
//!
//! The method ends at a decision that the cutting-plane model confirms, or at its limit of
//! iterates. It also ends when the rows and feasibility cuts exclude every decision. The third end
//! is an evaluation or a recession test that shows that costs have no lower bound.
//!
//! A task's cost enters the model with its first cut; before that the model bounds nothing, so no
//! decision is called optimal.
//!
//! This module must not know the linear program of the model, see `cutting_plane`, or scenarios and
//! workers.
//!
//! Source: Linderoth and Wright, Decomposition algorithms for stochastic programming on a
//! computational grid (Computational Optimization and Applications 2003).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::cutting_plane::{Conflict, Relaxation};
use crate::cutting_plane::{CuttingPlaneModel, ModelSnapshot, ModelSolution};
use crate::lp::Status;
use crate::model::Stage;
use crate::recourse::{Evaluation, FeasibilityCut, SecondStageRay};

/// The part of the promised decrease that a step must achieve to be accepted.
const SUFFICIENT_DECREASE: f64 = 1e-4;
/// The part of the promised decrease that, at the edge of the region, enlarges it.
const GOOD_DECREASE: f64 = 0.5;
/// Slightly worse steps in a row before the region shrinks.
const PATIENCE: u32 = 3;
/// The largest radius far from the origin, relative to the distance.
const FAR_RADIUS: f64 = 0.5;
/// The largest radius that the method searches.
const RADIUS_LIMIT: f64 = 1e12;
/// A promised decrease below this, relative to 1 and the cost, may be rounding.
const PROMISE_ROUNDING: f64 = 1e-6;

/// Parameters of the method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrustRegionSettings {
    /// The method stops when the model promises at most this part of the best cost.
    pub epsilon: f64,
    /// The most decisions that are evaluated at once.
    pub basket: usize,
    /// The part of an iterate's tasks that has to be back before the next iterate; 1: all of them.
    pub sigma: f64,
    /// The largest radius that accepted steps lead to.
    pub radius_max: f64,
    /// Maximum number of iterates.
    pub iterations_max: u32,
}

impl Default for TrustRegionSettings {
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
    /// The evaluated cost of each task.
    values: Vec<Option<f64>>,
    /// Feasibility cuts by task.
    infeasible: BTreeMap<u32, FeasibilityCut>,
    /// Tasks whose cost has no lower bound.
    unbounded: BTreeMap<u32, SecondStageRay>,
    /// The number of evaluated tasks.
    back: usize,
    /// Whether the next iterate was made before this one ended.
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
pub enum MethodStep {
    /// Evaluate all tasks at a decision.
    Evaluate {
        /// The number of the iterate.
        iterate: u32,
        /// The decision.
        x: Vec<f64>,
    },
    /// Test whether costs fall without end in some direction. If they do not, the method continues
    /// with [`TrustRegion::set_bounded`].
    TestRecession,
    /// The method has ended: see [`TrustRegion::end`].
    Done,
}

/// Why the method ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MethodEnd {
    /// The model confirms the incumbent.
    Optimal,
    /// No decision meets all rows and leaves every scenario recourse.
    Infeasible(Conflict),
    /// Every scenario has recourse at a decision, and the cost of one has no lower bound.
    Unbounded(SecondStageRay),
    /// The limit of iterates was reached; the incumbent, if there is one, need not be optimal.
    IterationLimit,
}

/// Why the method cannot continue.
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

/// The state of a method, to resume from: see [`TrustRegion::snapshot`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrustRegionSnapshot {
    state: MethodState,
    model: ModelSnapshot,
}

/// The outcome of an iterate, for reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IterateRecord {
    /// Number of the iterate.
    pub iterate: u32,
    /// Its cost; none if a scenario has no recourse.
    pub cost: Option<f64>,
    /// Cost that the model promised.
    pub promised: f64,
    /// Whether it became the incumbent.
    pub accepted: bool,
    /// The radius after it.
    pub radius: f64,
}

/// The state of the method without its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MethodState {
    settings: TrustRegionSettings,
    incumbent: Option<Incumbent>,
    start: Vec<f64>,
    radius: f64,
    /// Slightly worse steps in a row.
    worse: u32,
    /// The number of the next iterate.
    next: u32,
    /// Iterates under evaluation, by number.
    basket: BTreeMap<u32, Iterate>,
    /// The last decision of the model, and the number of the model's cuts then.
    last: Option<(Vec<f64>, u64)>,
    /// The last decision without recourse.
    infeasible: Option<Vec<f64>>,
    /// Whether a recession test has shown that costs have a lower bound.
    bounded: bool,
    /// The model's least cost inside the last region.
    bound: f64,
    records: Vec<IterateRecord>,
    end: Option<MethodEnd>,
}

/// State machine of the trust-region method.
#[derive(Clone, Debug)]
pub struct TrustRegion {
    model: CuttingPlaneModel,
    state: MethodState,
}

impl TrustRegion {
    /// The method for a first stage with a constant cost and this many tasks, from a decision that
    /// need not meet the rows.
    ///
    /// # Panics
    /// If `start` has another number of columns, or there is no task.
    pub fn new(
        first: Stage,
        offset: f64,
        tasks: usize,
        start: &[f64],
        settings: TrustRegionSettings,
    ) -> Self {
        let n = first.cost.len();
        assert!(start.len() == n && tasks > 0);
        let start: Vec<f64> =
            (0..n).map(|at| start[at].clamp(first.lower[at], first.upper[at])).collect();
        let largest = start.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        let radius = (0.2 * largest).max(1.0).min(settings.radius_max);
        let state = MethodState {
            settings,
            incumbent: None,
            start,
            radius,
            worse: 0,
            next: 0,
            basket: BTreeMap::new(),
            last: None,
            infeasible: None,
            bounded: false,
            bound: f64::NEG_INFINITY,
            records: Vec::new(),
            end: None,
        };
        Self { model: CuttingPlaneModel::new(first, offset, tasks), state }
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
    pub fn snapshot(&self) -> TrustRegionSnapshot {
        TrustRegionSnapshot { state: self.state.clone(), model: self.model.snapshot() }
    }

    /// Resumes a method of the same first stage. Evaluations under way begin again:
    /// [`TrustRegion::open`] names them. With a basket of one the iterates have the same bits as
    /// without the interruption.
    pub fn resume(first: Stage, offset: f64, snapshot: TrustRegionSnapshot) -> Self {
        let TrustRegionSnapshot { mut state, model } = snapshot;
        for open in state.basket.values_mut() {
            open.values.fill(None);
            open.infeasible.clear();
            open.unbounded.clear();
            (open.back, open.triggered) = (0, false);
        }
        Self { model: CuttingPlaneModel::resume(first, offset, model), state }
    }

    /// The decisions under evaluation, with the numbers of their iterates.
    pub fn open(&self) -> impl Iterator<Item = (u32, &[f64])> {
        self.state.basket.iter().map(|(iterate, open)| (*iterate, &open.x[..]))
    }

    /// The first decision to evaluate: the start if it meets the first stage's rows, else a cheap
    /// one near it.
    ///
    /// # Errors
    /// The model cannot be solved.
    pub fn begin(&mut self) -> Result<MethodStep, RegionError> {
        if self.model.first().violation(&self.state.start, 1e-9).is_none() {
            let x = self.state.start.clone();
            let thetas = vec![f64::NEG_INFINITY; self.model.tasks()];
            return Ok(self.evaluate(x, f64::NEG_INFINITY, thetas));
        }
        self.advance().map(|step| step.unwrap_or(MethodStep::Done))
    }

    // --- queries ---

    /// The best decision so far.
    pub fn incumbent(&self) -> Option<&Incumbent> {
        self.state.incumbent.as_ref()
    }

    /// The present radius of the trust region.
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

    /// Pivots of the model's linear programs so far.
    pub fn pivots(&self) -> u64 {
        self.model.pivots()
    }

    /// Rows of the model, cuts of its pool, and pivots so far.
    pub fn size(&self) -> (usize, usize, u64) {
        self.model.size()
    }

    /// Why the method ended; none while it runs.
    pub fn end(&self) -> Option<&MethodEnd> {
        self.state.end.as_ref()
    }

    /// The largest gap that the method accepts at a cost: [`Settings::epsilon`] of 1 and the cost.
    fn gap_max(&self, cost: f64) -> f64 {
        self.state.settings.epsilon * (1.0 + cost.abs())
    }

    /// The model without a region, solved: its least cost is a lower bound of every decision's.
    /// None while a task has no cut, or where the model has no lower bound.
    pub fn relaxation(&self) -> Option<Relaxation> {
        self.model.relaxation()
    }

    // --- events ---

    /// Takes the evaluation of a task of an iterate. One that is known already, or belongs to an
    /// iterate that is over, changes nothing.
    ///
    /// # Errors
    /// The method cannot continue.
    pub fn take(
        &mut self,
        iterate: u32,
        task: u32,
        evaluation: Evaluation,
    ) -> Result<Vec<MethodStep>, RegionError> {
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
                self.model.add_cut(iterate, task, cut, &open.x, theta);
            }
            Evaluation::Infeasible(cut) => drop(open.infeasible.insert(task, cut)),
            Evaluation::Unbounded(ray) => drop(open.unbounded.insert(task, ray)),
        }
        let tasks = self.model.tasks();
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
    /// The method cannot continue.
    pub fn set_bounded(&mut self) -> Result<Vec<MethodStep>, RegionError> {
        self.state.bounded = true;
        self.next_step()
    }

    /// Says from the start that costs have a lower bound, so that no recession test is needed.
    pub fn known_bounded(mut self) -> Self {
        self.state.bounded = true;
        self
    }

    fn next_step(&mut self) -> Result<Vec<MethodStep>, RegionError> {
        Ok(self.advance()?.into_iter().collect())
    }

    /// Judges an iterate whose tasks are all back. Without recourse in some scenario it is never
    /// accepted and says nothing about the radius; the feasibility cuts of all its tasks enter the
    /// model at once, in any order of their return.
    fn complete(&mut self, iterate: u32) -> Result<Vec<MethodStep>, RegionError> {
        let Some(mut open) = self.state.basket.remove(&iterate) else { return Ok(Vec::new()) };
        let (promised, radius) = (open.promised, self.state.radius);
        let mut record = IterateRecord { iterate, cost: None, promised, accepted: false, radius };
        if !open.infeasible.is_empty() {
            self.state.records.push(record);
            if self.state.infeasible.replace(open.x.clone()) == Some(open.x) {
                return Err(RegionError::Rounding);
            }
            for cut in open.infeasible.into_values() {
                self.model.add_feasibility_cut(cut);
            }
            return self.next_step();
        }
        if let Some((_, ray)) = open.unbounded.pop_first() {
            self.state.records.push(record);
            return Ok(vec![self.finish(MethodEnd::Unbounded(ray))]);
        }
        // In the order of tasks, so that the sum has the same bits.
        let cost = self.model.cost(&open.x, open.values.iter().flatten().copied());
        record.cost = Some(cost);
        record.accepted = self.judge(&open, cost);
        record.radius = self.state.radius;
        if record.accepted {
            self.state.incumbent = Some(Incumbent { x: open.x, cost, iterate });
        }
        self.state.records.push(record);
        self.next_step()
    }

    fn finish(&mut self, end: MethodEnd) -> MethodStep {
        self.state.end = Some(end);
        self.state.basket.clear();
        MethodStep::Done
    }

    /// Whether an iterate becomes the incumbent; adapts the radius. The decrease counts against the
    /// incumbent that the iterate came from, which need not be the present one.
    fn judge(&mut self, open: &Iterate, cost: f64) -> bool {
        let Some(parent) = open.parent else { return true };
        let promised = parent - open.promised;
        let now = self.state.incumbent.as_ref().map_or(f64::INFINITY, |incumbent| incumbent.cost);
        let accepted = cost < now && cost <= parent - SUFFICIENT_DECREASE * promised;
        if accepted {
            let moved = open.x.iter().zip(&open.center).map(|(x, center)| (x - center).abs());
            let far = moved.fold(0.0_f64, f64::max) >= open.radius * (1.0 - 1e-6);
            if far && cost <= parent - GOOD_DECREASE * promised {
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

    /// The largest radius that accepted steps lead to: [`Settings::radius_max`], and more far from
    /// the origin, so that the way back takes few steps.
    fn radius_max(&self, x: &[f64]) -> f64 {
        let largest = x.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        self.state.settings.radius_max.max(FAR_RADIUS * largest)
    }

    /// Bounds the model's decision by the region.
    fn confine(&mut self) {
        let center = self.state.incumbent.as_ref().map_or(&self.state.start, |best| &best.x);
        self.model.confine(center, self.state.radius);
    }

    /// Solves the model inside the region; the next iterate, or another step. None if that decision
    /// is being evaluated already.
    fn advance(&mut self) -> Result<Option<MethodStep>, RegionError> {
        if self.state.next >= self.state.settings.iterations_max {
            let over = self.state.basket.is_empty();
            return Ok(over.then(|| self.finish(MethodEnd::IterationLimit)));
        }
        self.model.prepare();
        let step = match self.state.incumbent {
            None => self.solve_near_start()?,
            Some(_) => self.solve_near_incumbent()?,
        };
        if step.is_some() {
            return Ok(step);
        }
        let (incumbent, basket) = (&self.state.incumbent, &self.state.basket);
        self.model.age_cuts(|iterate| {
            incumbent.as_ref().is_some_and(|best| best.iterate == iterate)
                || basket.contains_key(&iterate)
        });
        let ModelSolution { x, cost: promised, thetas } = self.model.solution();
        match self.state.incumbent {
            Some(_) => self.state.bound = promised,
            None => self.state.radius = self.state.radius.min(self.state.settings.radius_max),
        }
        if self.is_close() {
            return Ok(Some(self.finish(MethodEnd::Optimal)));
        }
        // A few tasks of an open iterate may say nothing new.
        let same = |open: &Iterate| open.x.iter().zip(&x).all(|(one, other)| one == other);
        if self.state.basket.values().any(same) {
            return Ok(None);
        }
        // The same decision again, and no cut since: what the model still promises is rounding.
        let cuts = self.model.cuts();
        if self.state.last.as_ref().is_some_and(|last| last.0 == x && last.1 == cuts) {
            return match (self.state.basket.is_empty(), self.is_near()) {
                (false, _) => Ok(None),
                (true, true) => Ok(Some(self.finish(MethodEnd::Optimal))),
                (true, false) => Err(RegionError::Unsolved),
            };
        }
        self.state.last = Some((x.clone(), cuts));
        Ok(Some(self.evaluate(x, promised, thetas)))
    }

    /// Without an incumbent: the region grows until it holds a decision that meets all rows, but
    /// never beyond the one that the model without a region finds.
    fn solve_near_start(&mut self) -> Result<Option<MethodStep>, RegionError> {
        let mut reach: Option<f64> = None;
        loop {
            self.confine();
            match self.model.solve(None) {
                Status::Optimal => return Ok(None),
                Status::Infeasible => {}
                _ => return Err(RegionError::Unsolved),
            }
            let reach = match reach {
                Some(reach) if self.state.radius >= reach => return Err(RegionError::Unsolved),
                Some(reach) => reach,
                None => {
                    self.model.release();
                    match self.model.solve_program() {
                        Status::Infeasible => {
                            let conflict = self.model.conflict();
                            return Ok(Some(self.finish(MethodEnd::Infeasible(conflict))));
                        }
                        Status::Optimal | Status::Unbounded => {}
                        Status::Limit | Status::Trouble => return Err(RegionError::Unsolved),
                    }
                    let point = self.model.point();
                    let away =
                        point.iter().zip(&self.state.start).map(|(x, start)| (x - start).abs());
                    let away = away.fold(0.0_f64, f64::max) * (1.0 + 1e-6);
                    *reach.insert(away.max(self.state.radius))
                }
            };
            self.state.radius = (4.0 * self.state.radius).min(reach.max(1e-6));
        }
    }

    /// Around the incumbent. Where the model promises next to nothing but the region binds, more
    /// may be gained beyond it: the region grows, unless the model without a region promises no
    /// more. Before it grows far, a recession test must show that costs have a lower bound.
    fn solve_near_incumbent(&mut self) -> Result<Option<MethodStep>, RegionError> {
        let mut relaxed = false;
        loop {
            if self.state.radius >= self.state.settings.radius_max && !self.state.bounded {
                return Ok(Some(MethodStep::TestRecession));
            }
            self.confine();
            let known_cost = self.state.incumbent.as_ref().map(|best| best.cost);
            if self.model.solve(known_cost) != Status::Optimal {
                return Err(RegionError::Unsolved);
            }
            if !self.is_close() || !self.binds() || self.state.radius >= RADIUS_LIMIT {
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

    /// Whether the model, as solved last, promises at most the accepted gap.
    fn is_close(&self) -> bool {
        let Some(incumbent) = &self.state.incumbent else { return false };
        let promised = self.model.objective();
        incumbent.cost - promised <= self.gap_max(incumbent.cost)
    }

    /// Whether what the model still promises may be rounding.
    fn is_near(&self) -> bool {
        let promised = self.model.objective();
        let best = self.state.incumbent.as_ref();
        best.is_some_and(|best| best.cost - promised <= PROMISE_ROUNDING * (1.0 + best.cost.abs()))
    }

    /// Whether the model's decision is at the edge of the region, where that is not a bound of its
    /// own.
    fn binds(&self) -> bool {
        let Some(incumbent) = &self.state.incumbent else { return false };
        let (first, point) = (self.model.first(), self.model.point());
        incumbent.x.iter().enumerate().any(|(column, center)| {
            let (lower, upper) = (first.lower[column], first.upper[column]);
            let (x, edge) = (point[column], self.state.radius * (1.0 - 1e-9));
            (x - center >= edge && x < upper) || (center - x >= edge && x > lower)
        })
    }

    fn evaluate(&mut self, x: Vec<f64>, promised: f64, thetas: Vec<f64>) -> MethodStep {
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
        MethodStep::Evaluate { iterate, x }
    }
}

#[cfg(test)]
#[path = "trust_region_tests.rs"]
mod tests;
