//! The worker's side: draws the scenarios of its tasks, solves them, and sums the results.
//!
//! It knows neither the master nor the use of the results.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::checksum::checksum;
use springtide_runtime::wire::encode_payload;
use springtide_runtime::work::{Context, Stop};

use super::estimate::Moments;
use super::solver::{EvaluationRequest, ScenarioSample, SolverError, TaskResult, part};
use crate::model::TwoStage;
use crate::recourse::{BasisCache, Recourse, RecourseError, RootChoice, ScenarioCost};
use crate::sample::{Sampler, Sampling, Scenario};
use crate::scaling::Scaled;

/// Tasks of a request that one worker gets together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskGroup {
    /// The numbers of the tasks.
    pub tasks: Range<u32>,
    /// Whether the group is a single task that is executed block by block.
    pub by_blocks: bool,
}

/// The output of a group of tasks, or of one block of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// The results, by task.
    pub parts: Vec<(u32, TaskResult)>,
    /// The number of scenarios solved.
    pub scenarios: u64,
    /// The simplex pivots of these solves.
    pub pivots: u64,
}

/// How a worker solves scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SolveMode {
    /// Whether each scenario starts from its own last basis, where the worker keeps it.
    pub keeps_bases: bool,
    /// The modelled time of a simulation; none: the time that computing takes.
    pub time: Option<TimeModel>,
}

/// Modelled time, for simulations, in which computing itself takes none.
///
/// A cost per pivot makes times vary as the real work does, from block to block and from iterate to
/// iterate. A cost per scenario or decision alone makes them constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeModel {
    /// Seconds of each scenario on a processor of speed 1.
    pub scenario_s: f64,
    /// Seconds of each pivot of a scenario on a processor of speed 1.
    pub pivot_s: f64,
    /// Seconds of each decision of the master.
    pub decision_s: f64,
    /// Seconds of each pivot of the master's linear program.
    pub master_pivot_s: f64,
    /// The number of scenarios by which a worker's speed is first measured.
    pub benchmark: u32,
}

impl TimeModel {
    /// The time of an output on a processor of speed 1.
    pub fn worker_time(&self, output: &Output) -> Duration {
        let scenarios = self.scenario_s * output.scenarios as f64;
        Duration::from_secs_f64(scenarios + self.pivot_s * output.pivots as f64)
    }

    /// The time of a decision of the master that took `pivots` pivots.
    pub fn master_time(&self, pivots: u64) -> Duration {
        Duration::from_secs_f64(self.decision_s + self.master_pivot_s * pivots as f64)
    }
}

/// The number of blocks that the scenarios of a task are divided into.
pub fn blocks(request: &EvaluationRequest, task: u32) -> u32 {
    let range = request.sample.range(request.tasks, task);
    let count = (range.end - range.start).div_ceil(request.block.max(1));
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// A worker: the program in scaled units, and the state that its last request left.
pub struct Worker {
    model: Arc<TwoStage>,
    recourse: Recourse,
    /// The sample of the last request, with its sampler.
    sampler: Option<(ScenarioSample, Sampler)>,
    /// The root basis of the last request.
    root: Vec<u8>,
    /// The decision of the last request.
    x: Vec<f64>,
    /// The last basis of each scenario of a sample.
    kept: (Option<ScenarioSample>, BasisCache),
    /// The checksum of the program, for the cache of simulations; none of a program beyond the
    /// limit of a payload, whose blocks are not cached.
    program: Option<u64>,
}

impl Worker {
    /// The worker of a program.
    ///
    /// # Errors
    /// The second stage cannot be factored.
    pub fn new(model: Arc<TwoStage>) -> Result<Self, RecourseError> {
        let model = Scaled::new(model).model;
        let recourse = Recourse::new(model.clone(), RootChoice::Slack)?;
        let kept = (None, BasisCache::default());
        let bytes = encode_payload(&*model).ok();
        let program = bytes.map(|bytes| checksum(bytes.iter().copied()));
        let (root, x) = (Vec::new(), Vec::new());
        Ok(Self { model, recourse, sampler: None, root, x, kept, program })
    }

    fn prepare(&mut self, request: &EvaluationRequest) -> Result<(), SolverError> {
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

    /// Executes a group of tasks, or one block of a task.
    ///
    /// # Errors
    /// A scenario cannot be solved; or a halt.
    pub fn execute(
        &mut self,
        mode: &SolveMode,
        request: &EvaluationRequest,
        group: &TaskGroup,
        block: u32,
        cx: &Context,
    ) -> Result<Output, Stop> {
        let output = self.solve(mode, request, group, block)?;
        if let Some(time) = mode.time {
            cx.spend_modelled_time(time.worker_time(&output))?;
        }
        Ok(output)
    }

    /// Evaluates all tasks of a request.
    ///
    /// # Errors
    /// The sample cannot be drawn, or a scenario cannot be solved.
    pub fn evaluate_all(
        &mut self,
        request: &EvaluationRequest,
    ) -> Result<Vec<(u32, TaskResult)>, SolverError> {
        let all = TaskGroup { tasks: 0..request.tasks, by_blocks: false };
        Ok(self.evaluate(request, &all)?.parts)
    }

    /// Evaluates a group of tasks of a request.
    ///
    /// # Errors
    /// The sample cannot be drawn, or a scenario cannot be solved.
    pub fn evaluate(
        &mut self,
        request: &EvaluationRequest,
        group: &TaskGroup,
    ) -> Result<Output, SolverError> {
        self.solve(&SolveMode { keeps_bases: false, time: None }, request, group, 0)
    }

    pub(super) fn solve(
        &mut self,
        mode: &SolveMode,
        request: &EvaluationRequest,
        group: &TaskGroup,
        block: u32,
    ) -> Result<Output, SolverError> {
        self.prepare(request)?;
        let mut all = Output { parts: Vec::new(), scenarios: 0, pivots: 0 };
        for task in group.tasks.clone() {
            let (range, count) = (request.sample.range(request.tasks, task), blocks(request, task));
            let blocks = if group.by_blocks { block..block + 1 } else { 0..count };
            let mut sum: Option<TaskResult> = None;
            for block in blocks {
                let one = self.block(mode, request, part(range.clone(), count, block))?;
                (all.scenarios, all.pivots) =
                    (all.scenarios + one.scenarios, all.pivots + one.pivots);
                match &mut sum {
                    Some(sum) => sum.merge(one.result),
                    none => *none = Some(one.result),
                }
            }
            all.parts.extend(sum.map(|sum| (task, sum)));
        }
        Ok(all)
    }

    /// Solves a block of scenarios; in a simulation, takes it from the cache where it is known.
    fn block(
        &mut self,
        mode: &SolveMode,
        request: &EvaluationRequest,
        range: Range<u64>,
    ) -> Result<Block, SolverError> {
        let key = mode.time.and(self.program).map(|program| cache_key(program, request, &range));
        if let Some(block) = key.and_then(cached) {
            return Ok(block);
        }
        let (pivots, solved) = (self.recourse.pivots(), self.recourse.solved());
        let result = self.solve_block(mode, request, range)?;
        let (pivots, scenarios) =
            (self.recourse.pivots() - pivots, self.recourse.solved() - solved);
        let block = Block { result, scenarios, pivots };
        if let Some(key) = key {
            cache(key, block.clone());
        }
        Ok(block)
    }

    fn solve_block(
        &mut self,
        mode: &SolveMode,
        request: &EvaluationRequest,
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
        let evaluation = if mode.keeps_bases {
            if self.kept.0 != Some(*sample) {
                self.kept = (Some(*sample), BasisCache::default());
            }
            self.recourse.evaluate_with(sampler, range, &mut self.kept.1)?
        } else {
            self.recourse.evaluate(sampler, range)?
        };
        Ok(TaskResult::Evaluation(evaluation))
    }
}

/// A solved block of scenarios.
#[derive(Clone)]
struct Block {
    result: TaskResult,
    scenarios: u64,
    pivots: u64,
}

/// Blocks of the simulations of this process. A block follows from its key alone, so a second run
/// of the same sample over other workers solves no scenario again.
static CACHE: Mutex<Option<HashMap<(u64, u64), Block>>> = Mutex::new(None);

fn cached(key: (u64, u64)) -> Option<Block> {
    let cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    cache.as_ref()?.get(&key).cloned()
}

fn cache(key: (u64, u64), block: Block) {
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    cache.get_or_insert_default().insert(key, block);
}

/// Identifies a block: by the program, the sample, the decision, the root and the scenarios.
fn cache_key(program: u64, request: &EvaluationRequest, range: &Range<u64>) -> (u64, u64) {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        let EvaluationRequest { sample, x, root, costs, .. } = request;
        let ScenarioSample { sampling, seed, scenarios } = *sample;
        (salt, program, seed, scenarios, sampling as u8).hash(&mut hasher);
        x.iter().for_each(|x| x.to_bits().hash(&mut hasher));
        (root, costs, range).hash(&mut hasher);
        hasher.finish()
    };
    (half(1), half(2))
}
