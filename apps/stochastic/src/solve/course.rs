//! The course of a run: samples that are solved one after the other, each from where the last one ended, and estimates of what was
//! found. It says what is to be evaluated, and takes what came of that.
//!
//! A state machine without I/O and clock. Must not know who evaluates, nor how fast anybody is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;

use super::controller::{self, Outlook};
use super::estimate::{Interval, Moments};
use crate::lp::simplex::Pricing;
use crate::lp::{Problem, Simplex, Status};
use crate::model::{Place, TwoStage};
use crate::recourse::{Found, Recourse, RecourseError, RootChoice};
use crate::region::{self, Looked, Region, RegionError, Step};
use crate::sample::{SampleError, Sampler, Sampling};

/// Samples that are solved first, so that the next begins near its end: this many scenarios, and so many times as many each time.
const WARM_FIRST: u64 = 1000;
const WARM_TIMES: u64 = 5;
/// Tasks of those.
const WARM_TASKS: u32 = 100;
/// They are solved to so many times the tolerance.
const WARM_EPSILON: f64 = 10.0;
/// So many scenarios tell which root is best.
const ROOT_SCENARIOS: u64 = 25;
/// What a block is in effort at least, where its size is not given: about a millisecond.
const BLOCK_EFFORT: f64 = 400_000.0;
/// But no fewer scenarios than these.
const BLOCK_LEAST: u64 = 10;
/// A sample that goes on from another begins with a radius of this part of its greatest number; at least 1.
const NEXT_RADIUS: f64 = 0.05;

/// Scenarios, by what they follow from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// How they are drawn.
    pub sampling: Sampling,
    /// Their seed.
    pub seed: u64,
    /// How many.
    pub scenarios: u64,
}

impl Sample {
    /// What makes them.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn sampler(&self, model: &TwoStage) -> Result<Sampler, SampleError> {
        Sampler::new(model, self.sampling, self.seed, self.scenarios)
    }

    /// The scenarios of one of so many tasks.
    pub fn range(&self, tasks: u32, task: u32) -> Range<u64> {
        part(0..self.scenarios, tasks, task)
    }
}

/// One of so many nearly equal parts of a range.
pub fn part(range: Range<u64>, parts: u32, at: u32) -> Range<u64> {
    let len = u128::from(range.end - range.start);
    let end = |at: u32| range.start + (len * u128::from(at) / u128::from(parts.max(1))) as u64;
    end(at)..end(at + 1)
}

/// What a run does; data alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The sample that is solved.
    pub sample: Sample,
    /// Its tasks; absent: the controller's choice.
    pub tasks: Option<u32>,
    /// Scenarios of a block at most: sums are made of blocks in their order, whoever does them; absent: by the effort that they are.
    pub block: Option<u64>,
    /// Smaller samples are solved before it.
    pub warm: bool,
    /// Where to begin; absent: at the best decision for what is expected.
    pub start: Option<Vec<f64>>,
    /// The first radius; absent: by the start.
    pub radius: Option<f64>,
    /// How the method is governed.
    pub settings: region::Settings,
    /// More samples of the same size that are solved, for the interval of the optimum.
    pub replications: u32,
    /// Scenarios by which the cost of what was found is estimated; 0: it is not.
    pub estimate: u64,
    /// Nothing is solved: the start is estimated alone, or by the sample itself, if that is all scenarios.
    pub only_estimate: bool,
}

/// What one leg of a course is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// To begin the next where it ended.
    Warm,
    /// For its answer.
    Main,
    /// For the interval of the optimum: the how-manieth.
    Replication(u32),
    /// An estimate of what was found.
    Estimate,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Leg {
    kind: Kind,
    sample: Sample,
    tasks: Option<u32>,
    epsilon: f64,
}

impl Plan {
    fn legs(&self) -> Vec<Leg> {
        let Self { sample, tasks, .. } = *self;
        let epsilon = self.settings.epsilon;
        let mut legs = Vec::new();
        if !self.only_estimate {
            let sampling = match sample.sampling {
                Sampling::All => Sampling::MonteCarlo,
                drawn => drawn,
            };
            let mut scenarios = WARM_FIRST;
            while self.warm && scenarios.saturating_mul(2) <= sample.scenarios {
                let few = tasks.unwrap_or(WARM_TASKS).min(WARM_TASKS);
                let epsilon = epsilon * WARM_EPSILON;
                let sample = Sample { sampling, scenarios, ..sample };
                legs.push(Leg { kind: Kind::Warm, sample, tasks: Some(few), epsilon });
                scenarios = scenarios.saturating_mul(WARM_TIMES);
            }
            legs.push(Leg { kind: Kind::Main, sample, tasks, epsilon });
            for at in 0..self.replications {
                let sample = Sample { seed: other_seed(sample.seed, "replication", at), ..sample };
                legs.push(Leg { kind: Kind::Replication(at), sample, tasks, epsilon });
            }
        }
        if self.estimate > 0 {
            let seed = other_seed(sample.seed, "estimate", 0);
            let drawn = Sample { sampling: Sampling::MonteCarlo, seed, scenarios: self.estimate };
            // All that there are tell what a decision costs, and leave nothing to estimate.
            let exactly = self.only_estimate && sample.sampling == Sampling::All;
            let sample = if exactly { sample } else { drawn };
            let tasks = tasks.or(Some(WARM_TASKS));
            legs.push(Leg { kind: Kind::Estimate, sample, tasks, epsilon });
        }
        legs
    }
}

fn other_seed(seed: u64, what: &str, at: u32) -> u64 {
    SplitMix::of(SplitMix(seed ^ u64::from(at)).next(), what).next()
}

/// What is to be evaluated, by all tasks of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The leg that it belongs to.
    pub leg: u32,
    /// The iterate of that.
    pub iterate: u32,
    /// The sample.
    pub sample: Sample,
    /// Into how many tasks it is divided.
    pub tasks: u32,
    /// Scenarios of a block at most.
    pub block: u64,
    /// The decision.
    pub x: Vec<f64>,
    /// The basis from which scenarios are solved.
    pub root: Vec<u8>,
    /// Costs alone are wanted, and no cuts.
    pub costs: bool,
}

/// What came of scenarios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// A cut, or a condition.
    Found(Found),
    /// Costs.
    Costs(Moments),
}

impl Part {
    /// Takes in what came of scenarios after these.
    pub fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Found(Found::Cut(cut)), Self::Found(Found::Cut(other))) => cut.add(&other),
            // Of several conditions the first.
            (Self::Found(Found::Condition(_)), _) => {}
            (own @ Self::Found(_), other) => *own = other,
            (Self::Costs(costs), Self::Costs(other)) => costs.merge(&other),
            (Self::Costs(_), Self::Found(_)) => {}
        }
    }
}

/// A sample that was solved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Solved {
    /// What for.
    pub kind: Kind,
    /// Which.
    pub sample: Sample,
    /// Into how many tasks it was divided.
    pub tasks: u32,
    /// Scenarios of a block.
    pub block: u64,
    /// The best decision.
    pub x: Vec<f64>,
    /// Its cost.
    pub objective: f64,
    /// What no decision costs less than.
    pub bound: Option<f64>,
    /// What came of the iterates.
    pub looked: Vec<Looked>,
}

/// A course cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CourseError {
    /// Of the first stage.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Of the second.
    #[error(transparent)]
    Recourse(#[from] RecourseError),
    /// Of the sample.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// What a course that was broken off goes on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    at: usize,
    tasks: u32,
    region: Option<region::Saved>,
    choice: RootChoice,
    block: u64,
    x: Vec<f64>,
    ended: Vec<Solved>,
    costs: Option<Moments>,
    notes: Vec<String>,
}

/// The course of a run.
pub struct Course {
    model: Arc<TwoStage>,
    plan: Plan,
    legs: Vec<Leg>,
    workers: usize,
    at: usize,
    /// Of the present leg.
    tasks: u32,
    sampler: Option<Sampler>,
    region: Option<Region>,
    probe: Recourse,
    choice: RootChoice,
    block: u64,
    /// Where the next leg begins.
    x: Vec<f64>,
    /// Parts of the present estimate.
    parts: BTreeMap<u32, Moments>,
    ended: Vec<Solved>,
    /// What the second stage costs at the decision that was found.
    costs: Option<Moments>,
    notes: Vec<String>,
}

impl Course {
    /// Of a plan, with so many workers at its beginning.
    ///
    /// # Errors
    /// The second stage cannot be solved where nothing is decided.
    pub fn new(model: Arc<TwoStage>, plan: Plan, workers: usize) -> Result<Self, CourseError> {
        let probe = Recourse::new(model.clone(), RootChoice::Slack)?;
        let x = match &plan.start {
            Some(start) => start.clone(),
            None => expected(&model),
        };
        Ok(Self {
            legs: plan.legs(),
            model,
            plan,
            workers,
            at: 0,
            tasks: 0,
            sampler: None,
            region: None,
            probe,
            choice: RootChoice::Slack,
            block: BLOCK_LEAST,
            x,
            parts: BTreeMap::new(),
            ended: Vec::new(),
            costs: None,
            notes: Vec::new(),
        })
    }

    /// What there is to go on from elsewhere. Parts of an estimate are not among it.
    pub fn saved(&self) -> Saved {
        Saved {
            at: self.at,
            tasks: self.tasks,
            region: self.region.as_ref().map(Region::saved),
            choice: self.choice,
            block: self.block,
            x: self.x.clone(),
            ended: self.ended.clone(),
            costs: self.costs,
            notes: self.notes.clone(),
        }
    }

    /// Takes up what was saved of a course of the same model and plan; what is to be evaluated.
    ///
    /// # Errors
    /// As of [`Course::begin`].
    pub fn resume(&mut self, saved: Saved) -> Result<Vec<Order>, CourseError> {
        let Saved { at, tasks, region, choice, block, x, ended, costs, notes } = saved;
        (self.at, self.tasks, self.choice, self.block, self.x) = (at, tasks, choice, block, x);
        (self.ended, self.costs, self.notes) = (ended, costs, notes);
        let Some(region) = region else { return self.leg() };
        self.sampler = Some(self.legs[self.at].sample.sampler(&self.model)?);
        let region = Region::resume(self.model.first.clone(), self.model.offset, region);
        let open: Vec<(u32, Vec<f64>)> =
            region.open().map(|(iterate, x)| (iterate, x.to_vec())).collect();
        self.region = Some(region);
        open.into_iter().map(|(iterate, x)| self.order(iterate, x)).collect()
    }

    /// The first that is to be evaluated.
    ///
    /// # Errors
    /// The sample cannot be drawn, or a stage not be solved.
    pub fn begin(&mut self) -> Result<Vec<Order>, CourseError> {
        self.leg()
    }

    /// The present leg begins, or there is none.
    fn leg(&mut self) -> Result<Vec<Order>, CourseError> {
        let Some(&leg) = self.legs.get(self.at) else { return Ok(Vec::new()) };
        let sampler = leg.sample.sampler(&self.model)?;
        self.tasks = match leg.tasks {
            Some(tasks) => tasks,
            None => self.choose_tasks(leg, &sampler)?,
        };
        let most = u32::try_from(leg.sample.scenarios).unwrap_or(u32::MAX);
        self.tasks = self.tasks.min(most);
        self.sampler = Some(sampler);
        self.parts.clear();
        if leg.kind == Kind::Estimate {
            return Ok(vec![self.order(0, self.x.clone())?]);
        }
        let (first, offset) = (self.model.first.clone(), self.model.offset);
        let settings = region::Settings { epsilon: leg.epsilon, ..self.plan.settings };
        let mut region = Region::new(first, offset, self.tasks as usize, &self.x, settings);
        // The answer of another sample is near.
        let near = self.x.iter().fold(0.0_f64, |most, x| most.max(x.abs())) * NEXT_RADIUS;
        let next = (!self.ended.is_empty()).then_some(near.max(1.0));
        if let Some(radius) = self.plan.radius.or(next) {
            region = region.with_radius(radius);
        }
        let step = region.begin()?;
        self.region = Some(region);
        self.orders(vec![step])
    }

    /// All but the first sample that the controller chose tasks for have as many.
    fn choose_tasks(&mut self, leg: Leg, sampler: &Sampler) -> Result<u32, CourseError> {
        if let Some(main) = self.ended.iter().find(|one| one.kind == Kind::Main) {
            return Ok(main.tasks);
        }
        let few = 0..ROOT_SCENARIOS.min(sampler.count());
        let (_, effort) = self.probe.choose_root(&self.x, sampler, few)?;
        let solved = self.ended.last().map(|one| (one.tasks, one.looked.len() as u32));
        let outlook = Outlook {
            scenarios: leg.sample.scenarios,
            columns: self.model.first.columns.len(),
            effort,
            workers: self.workers,
            solved,
        };
        let tasks = controller::choose_tasks(&outlook);
        self.notes.push(tasks.to_string());
        Ok(tasks.tasks)
    }

    fn orders(&mut self, steps: Vec<Step>) -> Result<Vec<Order>, CourseError> {
        let mut orders = Vec::new();
        for step in steps {
            match step {
                Step::Evaluate { iterate, x } => orders.push(self.order(iterate, x)?),
                Step::Done => orders.extend(self.leg_is_over()?),
            }
        }
        Ok(orders)
    }

    /// The root is the best basis at the decision itself of what it was found to be best of, which is looked at again after 1, 2, 4 and
    /// so on iterates.
    fn order(&mut self, iterate: u32, x: Vec<f64>) -> Result<Order, CourseError> {
        let leg = self.legs[self.at];
        let mut root = Vec::new();
        if let Some(sampler) = &self.sampler {
            if iterate == 0 || iterate.is_power_of_two() {
                let few = 0..ROOT_SCENARIOS.min(sampler.count());
                let (choice, effort) = self.probe.choose_root(&x, sampler, few)?;
                self.choice = choice;
                if iterate == 0 {
                    let by_effort = (BLOCK_EFFORT / effort.max(1.0)) as u64;
                    self.block = self.plan.block.unwrap_or(by_effort.max(BLOCK_LEAST));
                }
            }
            root = self
                .probe
                .take_root(self.choice, &x, sampler, 0)
                .or_else(|_| self.probe.take_root(RootChoice::Slack, &x, sampler, 0))?;
        }
        let costs = leg.kind == Kind::Estimate;
        let (sample, tasks) = (leg.sample, self.tasks);
        let (leg, block) = (self.at as u32, self.block);
        Ok(Order { leg, iterate, sample, tasks, block, x, root, costs })
    }

    fn leg_is_over(&mut self) -> Result<Vec<Order>, CourseError> {
        let leg = self.legs[self.at];
        if let Some(region) = self.region.take()
            && let Some(incumbent) = region.incumbent()
        {
            if matches!(leg.kind, Kind::Warm | Kind::Main) {
                self.x = incumbent.x.clone();
            }
            self.ended.push(Solved {
                kind: leg.kind,
                sample: leg.sample,
                tasks: self.tasks,
                block: self.block,
                x: incumbent.x.clone(),
                objective: incumbent.cost,
                // What is above the cost is so by rounding.
                bound: (leg.kind != Kind::Warm)
                    .then(|| region.lower_bound())
                    .flatten()
                    .map(|bound| bound.min(incumbent.cost)),
                looked: region.looked().to_vec(),
            });
        }
        self.at += 1;
        self.leg()
    }

    /// What came of a task. What is known already, or of what is over, changes nothing.
    ///
    /// # Errors
    /// As of [`Course::begin`].
    pub fn found(
        &mut self,
        leg: u32,
        iterate: u32,
        task: u32,
        part: Part,
    ) -> Result<Vec<Order>, CourseError> {
        if leg as usize != self.at {
            return Ok(Vec::new());
        }
        match (part, &mut self.region) {
            (Part::Found(found), Some(region)) => {
                let steps = region.found(iterate, task, found)?;
                self.orders(steps)
            }
            (Part::Costs(costs), None) => {
                self.parts.insert(task, costs);
                if self.parts.len() < self.tasks as usize {
                    return Ok(Vec::new());
                }
                let mut all = Moments::default();
                self.parts.values().for_each(|part| all.merge(part));
                self.costs = Some(all);
                self.leg_is_over()
            }
            _ => Ok(Vec::new()),
        }
    }

    // --- what is known ---

    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.at >= self.legs.len()
    }

    /// Whether what an order asked is still wanted.
    pub fn wants(&self, leg: u32, iterate: u32) -> bool {
        let open = |region: &Region| region.open().any(|(open, _)| open == iterate);
        leg as usize == self.at && !self.is_done() && self.region.as_ref().is_none_or(open)
    }

    /// What the present leg is for.
    pub fn kind(&self) -> Option<Kind> {
        self.legs.get(self.at).map(|leg| leg.kind)
    }

    /// The first stage's method, while a sample is being solved.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// The samples that were solved, in order.
    pub fn ended(&self) -> &[Solved] {
        &self.ended
    }

    /// What was decided about the course itself, since this was asked last.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The decision that was found last.
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// What the decision costs, by scenarios that it was not found by, or by all that there are; with how many of them have no second
    /// stage.
    pub fn estimate(&self) -> Option<(Interval, u64)> {
        let costs = self.costs?;
        let estimate = self.legs.iter().find(|leg| leg.kind == Kind::Estimate)?;
        let interval = match estimate.sample.sampling {
            Sampling::All => costs.expectation(),
            Sampling::MonteCarlo | Sampling::LatinHypercube => costs.interval(),
        };
        let first = self.model.first.cost.iter().zip(&self.x).map(|(cost, x)| cost * x);
        let constant = self.model.offset + first.sum::<f64>();
        Some((interval?.plus(constant), costs.without))
    }

    /// What an optimal decision costs at least, by the optima of replications (their expectation is below it).
    ///
    /// Source: Mak, Morton, Wood: Monte Carlo bounding techniques for determining solution quality in stochastic programs (Operations
    /// Research Letters 24, 1999).
    pub fn lower_bound(&self) -> Option<Interval> {
        let mut moments = Moments::default();
        let all = self.ended.iter().filter(|one| matches!(one.kind, Kind::Replication(_)));
        all.filter_map(|one| one.bound).for_each(|bound| moments.add(bound, 1.0));
        moments.interval()
    }
}

/// The best decision if all that is random were as is expected of it: the usual start. Where there is none, the nearest to nothing that
/// bounds allow.
pub fn expected(model: &TwoStage) -> Vec<f64> {
    let (first, second) = (&model.first, &model.second);
    let n = first.cost.len();
    let both = |one: &[f64], other: &[f64]| [one, other].concat();
    let (mut cost, mut rhs) = (both(&first.cost, &second.cost), second.rhs.clone());
    // Random matrix entries by row and column of the program, with their mean.
    let mut changes: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (place, mean) in model.mean() {
        match place {
            Place::Rhs(row) => rhs[row] = mean,
            Place::Technology(row, column) => drop(changes.insert((row, column), mean)),
            Place::Cost(column) => cost[n + column] = mean,
            Place::Recourse(row, column) => drop(changes.insert((row, n + column), mean)),
        }
    }
    let mut problem =
        Problem::new(&cost, &both(&first.lower, &second.lower), &both(&first.upper, &second.upper));
    problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
    let (technology, own) = (model.technology.transposed(), second.matrix.transposed());
    for (row, rhs) in rhs.into_iter().enumerate() {
        let is_changed = |column: usize| changes.contains_key(&(row, column));
        let fixed = technology.column(row).filter(|(column, _)| !is_changed(*column));
        let random = changes.range((row, 0)..(row + 1, 0));
        let random = random.map(|((_, column), mean)| (*column, *mean));
        let own = own.column(row).map(|(column, value)| (n + column, value));
        let own = own.filter(|(column, _)| !is_changed(*column));
        let (low, high) = (rhs - second.below[row], rhs + second.above[row]);
        problem.add_row(fixed.chain(random).chain(own), low, high);
    }
    let mut simplex = Simplex::new(problem, Pricing::Steepest);
    let mut all = vec![0.0; n + second.cost.len()];
    if simplex.solve() == Status::Optimal {
        simplex.values(&mut all);
    }
    all.truncate(n);
    let bounds = first.lower.iter().zip(&first.upper);
    all.iter_mut().zip(bounds).for_each(|(x, (lower, upper))| *x = x.clamp(*lower, *upper));
    all
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
