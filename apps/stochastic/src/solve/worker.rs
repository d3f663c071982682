//! A worker's side: it makes the scenarios of its tasks itself, solves them, and sums what they give.
//!
//! Must not know who asked, nor what is made of it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use springtide_runtime::work::{Context, Stop};

use super::estimate::Moments;
use super::solver::{Request, Sample, SolverError, TaskResult, part};
use crate::model::TwoStage;
use crate::recourse::{Kept, Recourse, RecourseError, RootChoice, ScenarioCost};
use crate::sample::{Sampler, Sampling, Scenario};
use crate::scaling::Scaled;

/// Tasks of an request that are given out together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Which.
    pub tasks: Range<u32>,
    /// It is one task, of which each block is done apart.
    pub by_blocks: bool,
}

/// What came of tasks, or of a block of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// By task.
    pub parts: Vec<(u32, TaskResult)>,
    /// Scenarios that were solved.
    pub scenarios: u64,
    /// How many pivots that took.
    pub pivots: u64,
}

/// How scenarios are solved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ways {
    /// Each begins at its own last basis, where it is kept.
    pub keeps_bases: bool,
    /// Modelled time, in a simulation; none: the time that it takes.
    pub pace: Option<Pace>,
}

/// Modelled time: for simulations, in which nothing that is computed takes any.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Microseconds of a scenario at speed 1.
    pub scenario_us: u64,
    /// Microseconds of the master between two iterates.
    pub master_us: u64,
    /// Scenarios by which a worker is measured: fewer, where a simulation has fewer in all.
    pub bench: u32,
}

/// Into how many blocks the scenarios of a task are divided.
pub fn blocks(request: &Request, task: u32) -> u32 {
    let range = request.sample.range(request.tasks, task);
    let count = (range.end - range.start).div_ceil(request.block.max(1));
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// A worker.
pub struct Worker {
    model: Arc<TwoStage>,
    recourse: Recourse,
    sampler: Option<(Sample, Sampler)>,
    root: Vec<u8>,
    x: Vec<f64>,
    kept: (Option<Sample>, Kept),
}

impl Worker {
    /// For a model.
    ///
    /// # Errors
    /// The second stage cannot be begun.
    pub fn new(model: Arc<TwoStage>) -> Result<Self, RecourseError> {
        let model = Scaled::new(model).model;
        let recourse = Recourse::new(model.clone(), RootChoice::Slack)?;
        let kept = (None, Kept::default());
        Ok(Self { model, recourse, sampler: None, root: Vec::new(), x: Vec::new(), kept })
    }

    fn take_up(&mut self, request: &Request) -> Result<(), SolverError> {
        if self.sampler.as_ref().is_none_or(|(sample, _)| *sample != request.sample) {
            self.sampler = Some((request.sample, request.sample.sampler(&self.model)?));
        }
        if self.root != request.root {
            self.recourse.set_root(&request.root)?;
            self.root.clone_from(&request.root);
        }
        let same = self.x.iter().map(|x| x.to_bits()).eq(request.x.iter().map(|x| x.to_bits()));
        if !same {
            self.recourse.at(&request.x);
            self.x.clone_from(&request.x);
        }
        Ok(())
    }

    /// Does tasks, or one block of one.
    ///
    /// # Errors
    /// A scenario cannot be solved; or a halt.
    pub fn execute(
        &mut self,
        ways: &Ways,
        request: &Request,
        work: &Work,
        block: u32,
        cx: &Context,
    ) -> Result<Output, Stop> {
        let Some(pace) = ways.pace else { return Ok(self.solve(ways, request, work, block)?) };
        let key = key(request, work, block);
        let output = match remembered(key) {
            Some(output) => output,
            None => {
                let output = self.solve(ways, request, work, block)?;
                remember(key, output.clone());
                output
            }
        };
        let time = pace.scenario_us * output.scenarios;
        cx.model(std::time::Duration::from_micros(time))?;
        Ok(output)
    }

    /// Evaluates all tasks of a request.
    ///
    /// # Errors
    /// The sample cannot be drawn, or a scenario cannot be solved.
    pub fn evaluate_all(
        &mut self,
        request: &Request,
    ) -> Result<Vec<(u32, TaskResult)>, SolverError> {
        let ways = Ways { keeps_bases: false, pace: None };
        let work = Work { tasks: 0..request.tasks, by_blocks: false };
        Ok(self.solve(&ways, request, &work, 0)?.parts)
    }

    pub(super) fn solve(
        &mut self,
        ways: &Ways,
        request: &Request,
        work: &Work,
        block: u32,
    ) -> Result<Output, SolverError> {
        self.take_up(request)?;
        let (pivots, solved) = (self.recourse.pivots(), self.recourse.solved());
        let mut parts = Vec::new();
        for task in work.tasks.clone() {
            let (all, count) = (request.sample.range(request.tasks, task), blocks(request, task));
            let blocks = if work.by_blocks { block..block + 1 } else { 0..count };
            let mut sum: Option<TaskResult> = None;
            for block in blocks {
                let one = self.block(ways, request, part(all.clone(), count, block))?;
                match &mut sum {
                    Some(sum) => sum.merge(one),
                    none => *none = Some(one),
                }
            }
            parts.extend(sum.map(|sum| (task, sum)));
        }
        let (pivots, scenarios) =
            (self.recourse.pivots() - pivots, self.recourse.solved() - solved);
        Ok(Output { parts, scenarios, pivots })
    }

    fn block(
        &mut self,
        ways: &Ways,
        request: &Request,
        range: Range<u64>,
    ) -> Result<TaskResult, SolverError> {
        let Some((sample, sampler)) = &self.sampler else { return Err(SolverError::NoSample) };
        if request.costs {
            let (mut costs, mut scenario) = (Moments::default(), Scenario::default());
            let weight = |scenario: &Scenario| match sample.sampling {
                Sampling::All => scenario.probability,
                Sampling::MonteCarlo | Sampling::LatinHypercube => 1.0,
            };
            for number in range {
                sampler.scenario(number, &mut scenario);
                match self.recourse.cost(&scenario)? {
                    ScenarioCost::Finite(cost) => costs.add(cost, weight(&scenario)),
                    ScenarioCost::Infeasible => costs.without += 1,
                    ScenarioCost::Unbounded => costs.unbounded += 1,
                }
            }
            return Ok(TaskResult::Costs(costs));
        }
        let evaluation = match ways.keeps_bases {
            true => {
                if self.kept.0 != Some(*sample) {
                    self.kept = (Some(*sample), Kept::default());
                }
                self.recourse.evaluate_with(sampler, range, &mut self.kept.1)?
            }
            false => self.recourse.evaluate(sampler, range)?,
        };
        Ok(TaskResult::Evaluation(evaluation))
    }
}

/// What was found in simulations of this process. It follows from what was asked, so that who asks again, a run over other workers say,
/// is told at once.
static MEMORY: Mutex<Option<HashMap<(u64, u64), Output>>> = Mutex::new(None);

fn remembered(key: (u64, u64)) -> Option<Output> {
    let memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    memory.as_ref()?.get(&key).cloned()
}

fn remember(key: (u64, u64), output: Output) {
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    memory.get_or_insert_default().insert(key, output);
}

fn key(request: &Request, work: &Work, block: u32) -> (u64, u64) {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        let Request { sample, tasks, block: size, x, root, costs, .. } = request;
        (salt, sample.seed, sample.scenarios, sample.sampling as u8, tasks, size).hash(&mut hasher);
        x.iter().for_each(|x| x.to_bits().hash(&mut hasher));
        (root, costs, &work.tasks, work.by_blocks, block).hash(&mut hasher);
        hasher.finish()
    };
    (half(1), half(2))
}
