//! The master's side: distributes the tasks of the solver's requests, adds up the results of
//! blocks, and compares forecasts of time with measurements.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::checksum::checksum;
use springtide_runtime::id::NodeId;
use springtide_runtime::mw::{Batch, BatchId, DispatchRule, Driver, Master, TaskSpec};
use springtide_runtime::wire::{decode_payload, encode_payload};
use springtide_runtime::work::{Outcome, STATE_ARTIFACT, Stop};
use tokio::time::Instant;

use super::Solve;
use super::controller::{self, IterateRow, NodeSpeed, Objective};
use super::report;
use super::solver::{self, EvaluationRequest, Solver, TaskResult, Verdict};
use super::worker::{Output, TaskGroup, blocks};

/// The state of the master in a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverState {
    solver: Option<solver::SolverSnapshot>,
    rows: Vec<IterateRow>,
    basket: usize,
    groups: Option<u32>,
    seconds: f64,
}

/// Begins the file of a state, with its version.
const HEADER: &[u8] = b"springtide solve state 2\n";
/// How often the result so far is published.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// The least time between two publications, as a multiple of the time that one takes.
const SHOW_COST: u32 = 30;

/// What a state belongs to: the program, and the options that decide what is solved.
fn fingerprint(job: &Solve) -> Result<u64, Stop> {
    let plan = encode_payload(&job.plan()?)?;
    let program = encode_payload(&**job.model()?)?;
    Ok(checksum(plan.iter().chain(&program).copied()))
}

fn write_state(state: &DriverState, job: &Solve) -> Result<Vec<u8>, Stop> {
    let body = encode_payload(state)?;
    let mut bytes = HEADER.to_vec();
    for number in [fingerprint(job)?, checksum(body.iter().copied())] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Reads a state that an earlier run of the same job wrote.
///
/// # Errors
/// The bytes are not a state, are damaged, or belong to another program or other options.
pub(super) fn read_state(bytes: &[u8], job: &Solve) -> Result<DriverState, String> {
    let rest = bytes.strip_prefix(HEADER).ok_or("this file holds no state of a solve run")?;
    let (numbers, body) = rest.split_at_checked(16).ok_or("this state is cut off")?;
    let (of_job, of_body) = numbers.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    if number(of_body) != checksum(body.iter().copied()) {
        return Err("this state is damaged".to_owned());
    }
    if fingerprint(job).ok() != Some(number(of_job)) {
        return Err("this state belongs to another program or to other options: name another \
                    file, or remove it"
            .to_owned());
    }
    decode_payload(body).map_err(|error| format!("this state cannot be read: {error}"))
}

/// The mean of a measurement and the smoothed ones before it.
fn smoothed(before: Option<f64>, measured: f64) -> f64 {
    before.map_or(measured, |before| (before + measured) / 2.0)
}

/// A request under way.
struct OpenRequest {
    batch: BatchId,
    /// The number of task specifications.
    specs: usize,
    phase: u32,
    iterate: u32,
    submitted: Instant,
    /// Its row of the report.
    row: IterateRow,
    back: usize,
    pivots: u64,
}

/// A step of the master: its work between two iterates.
struct MasterStep {
    began: Instant,
    seconds: f64,
    /// Pivots of the master's linear program.
    pivots: u64,
}

/// The master's side of a [`Solve`].
pub struct SolveDriver {
    job: Solve,
    solver: Option<Solver>,
    saved: Option<DriverState>,
    /// By batch.
    out: BTreeMap<u64, OpenRequest>,
    rows: Vec<IterateRow>,
    groups: Option<u32>,
    basket: usize,
    /// Seconds of the master between two iterates, smoothed.
    master_s: Option<f64>,
    /// Seconds of the workers for an iterate over the planned ones, smoothed. Above 1 where speeds
    /// vary: the last worker ends the iterate, and the plan has only means.
    excess: Option<f64>,
    began: Instant,
    /// Seconds of earlier masters of this run.
    before: f64,
    /// When the result so far was last published, and how long that took.
    shown: (Instant, Duration),
    outcome: Option<Outcome>,
}

impl SolveDriver {
    pub(super) fn new(job: Solve, saved: Option<DriverState>) -> Self {
        let before = saved.as_ref().map_or(0.0, |saved| saved.seconds);
        Self {
            basket: job.basket,
            groups: job.groups,
            job,
            solver: None,
            saved,
            out: BTreeMap::new(),
            rows: Vec::new(),
            master_s: None,
            excess: None,
            began: Instant::now(),
            shown: (Instant::now(), Duration::ZERO),
            before,
            outcome: None,
        }
    }

    fn solver(&mut self) -> Result<&mut Solver, Stop> {
        self.solver.as_mut().ok_or_else(|| Stop::fail("the run has not begun"))
    }

    fn seconds(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }

    // --- distribution ---

    fn submit(
        &mut self,
        request: EvaluationRequest,
        master: &mut Master<'_, Solve>,
    ) -> Result<(), Stop> {
        let tasks = self.specs(&request);
        let count = tasks.len();
        let scenarios = request.sample.scenarios;
        let units = |parts: u32| -> Vec<f64> {
            let range = |at| solver::part(0..scenarios, parts, at);
            (0..parts).map(|at| (range(at).end - range(at).start) as f64).collect()
        };
        let master_s = self.master_s.unwrap_or(0.0);
        let workers = master.workers();
        let known = workers.iter().all(|worker| worker.cold_s.is_some() || worker.leaving);
        let equal = master.forecast(&units(request.tasks), DispatchRule::Equal);
        let thumb = controller::rules_of_thumb(workers.len());
        let by_thumb =
            master.forecast(&units(thumb.groups.min(request.tasks)), DispatchRule::Queue);
        let (phase, iterate) = (request.phase, request.iterate);
        let batch = master.submit(Batch { common: request, tasks })?;
        let planned = master.last_plan();
        let is_predicted = known && planned.tasks == count && self.out.is_empty();
        // A basket keeps workers busy during an iterate's last groups, and needs more iterates for
        // it.
        let thumb_s = by_thumb.map(|by| {
            let busy = by.fluid_s.max(by.makespan_s / thumb.basket as f64);
            controller::basket_factor(thumb.basket) * (busy + master_s)
        });
        let row = IterateRow {
            phase,
            iterate,
            scenarios,
            workers: workers.len(),
            used: planned.used,
            predicted_s: is_predicted
                .then_some(planned.makespan_s * self.excess.unwrap_or(1.0) + master_s),
            workers_s: is_predicted.then_some(planned.makespan_s),
            fluid_s: is_predicted.then_some(planned.fluid_s),
            equal_s: equal.filter(|_| known).map(|equal| equal.makespan_s + master_s),
            thumb_s: thumb_s.filter(|_| known),
            ..IterateRow::default()
        };
        let submitted = Instant::now();
        let out =
            OpenRequest { batch, specs: count, phase, iterate, submitted, row, back: 0, pivots: 0 };
        self.out.insert(batch.number(), out);
        Ok(())
    }

    /// The specifications of tasks: each by itself, split where that helps, or in the wanted number
    /// of groups, each whole.
    fn specs(&self, request: &EvaluationRequest) -> Vec<TaskSpec<TaskGroup>> {
        let units = |task: u32| {
            let range = request.sample.range(request.tasks, task);
            (range.end - range.start) as f64
        };
        let groups = self.groups.filter(|groups| *groups < request.tasks);
        let Some(groups) = groups else {
            let spec = |task| TaskSpec {
                id: task,
                units: units(task),
                blocks: blocks(request, task),
                work: TaskGroup { tasks: task..task + 1, by_blocks: true },
            };
            return (0..request.tasks).map(spec).collect();
        };
        let spec = |group: u32| {
            let tasks = solver::part(0..u64::from(request.tasks), groups, group);
            let tasks = tasks.start as u32..tasks.end as u32;
            TaskSpec {
                id: group,
                units: tasks.clone().map(units).sum(),
                blocks: 1,
                work: TaskGroup { tasks, by_blocks: false },
            }
        };
        (0..groups).map(spec).collect()
    }

    // --- results ---

    /// Passes results to the solver. Returns the next requests, and the decision if the solver made
    /// one.
    fn ingest(
        &mut self,
        (phase, iterate): (u32, u32),
        parts: Vec<(u32, TaskResult)>,
    ) -> Result<(Vec<EvaluationRequest>, Option<MasterStep>), Stop> {
        let began = Instant::now();
        let (mut requests, mut decided) = (Vec::new(), false);
        let solver = self.solver()?;
        let before = solver.pivots();
        for (task, part) in parts {
            requests.extend(solver.take(phase, iterate, task, part)?);
            decided |= !solver.wants(phase, iterate) || !requests.is_empty();
        }
        let pivots = solver.pivots() - before;
        Ok((requests, decided.then_some(MasterStep { began, seconds: 0.0, pivots })))
    }

    /// Closes requests that the solver has no more use for after a decision.
    fn close(&mut self, decision: &MasterStep, master: &mut Master<'_, Solve>) -> Result<(), Stop> {
        let master_s = decision.seconds;
        let Some(solver) = &self.solver else { return Ok(()) };
        let over = |out: &OpenRequest| !solver.wants(out.phase, out.iterate);
        let numbers: Vec<u64> =
            self.out.iter().filter(|(_, out)| over(out)).map(|(batch, _)| *batch).collect();
        for number in numbers {
            let Some(out) = self.out.remove(&number) else { continue };
            if out.back < out.specs {
                master.withdraw(out.batch)?;
            }
            let workers_s = decision.began.saturating_duration_since(out.submitted).as_secs_f64();
            let row = IterateRow {
                measured_s: workers_s + master_s,
                ended_s: self.seconds(),
                master_s,
                master_pivots: decision.pivots,
                pivots: out.pivots as f64 / out.row.scenarios.max(1) as f64,
                ..out.row
            };
            if let Some(planned_s) = row.workers_s.filter(|planned_s| *planned_s > 0.0) {
                self.excess = Some(smoothed(self.excess, workers_s / planned_s));
            }
            self.explain(&row, master);
            self.rows.push(row);
            master.cx().iteration_done();
            master.checkpoint();
        }
        self.master_s = Some(smoothed(self.master_s, master_s));
        self.progress(master);
        self.release_nodes(master);
        self.show(master)
    }

    /// Publishes the result so far and the state to resume from: at most once a second, and so that
    /// it takes no more than a small part of the master's time.
    fn show(&mut self, master: &Master<'_, Solve>) -> Result<(), Stop> {
        let (last, cost) = self.shown;
        if last.elapsed() >= SHOW_EVERY.max(SHOW_COST * cost) {
            let began = Instant::now();
            let outcome = self.publish(master)?;
            master.cx().report_preliminary(outcome);
            self.shown = (Instant::now(), began.elapsed());
        }
        Ok(())
    }

    /// The outcome as it stands. Sends its decision as a table, and the state to the file that the
    /// user named, if any.
    fn publish(&self, master: &Master<'_, Solve>) -> Result<Outcome, Stop> {
        let Some(solver) = &self.solver else { return Err(Stop::fail("the run has not begun")) };
        if self.job.checkpoint.is_some() {
            let bytes = write_state(&self.state(), &self.job)?;
            master.cx().artifact(STATE_ARTIFACT, bytes);
        }
        let answer = solver.answer();
        let (basket, groups, seconds) = (self.basket, self.groups, self.seconds());
        let result = report::result(
            &self.job,
            solver,
            answer.as_ref(),
            &self.rows,
            basket,
            groups,
            seconds,
        )?;
        let evaluated = || (solver.verdict() == Some(&Verdict::Evaluated)).then(|| solver.x());
        let x = answer.map(|answer| answer.x).or_else(evaluated);
        if let Some(x) = &x {
            let table = report::decision(self.job.model()?, x);
            master.cx().artifact("x.csv", table.into_bytes());
        }
        let bits = x.into_iter().flatten().flat_map(|x| x.to_bits().to_le_bytes());
        Ok(Outcome { checksum: checksum(bits), result })
    }

    fn explain(&mut self, row: &IterateRow, master: &Master<'_, Solve>) {
        let Some(solver) = &mut self.solver else { return };
        let notes = solver.take_notes();
        if self.job.explain {
            notes.into_iter().for_each(|note| master.cx().report_text(note));
            let how = report::iterate(solver, row);
            master.cx().report_text(format!("{how}: {row}"));
        }
    }

    fn progress(&self, master: &Master<'_, Solve>) {
        if let Some(solver) = &self.solver {
            master.cx().progress(self.rows.len() as u64, 0, &report::progress(solver));
        }
    }

    /// Releases nodes that do not pay, where time and processor-hours are balanced.
    fn release_nodes(&self, master: &mut Master<'_, Solve>) {
        let Objective::Balanced(weight) = self.job.objective else { return };
        let scenarios = self.rows.last().map_or(0, |row| row.scenarios);
        let mut nodes: BTreeMap<NodeId, NodeSpeed<NodeId>> = BTreeMap::new();
        for worker in master.workers() {
            if worker.leaving || worker.node == *master.own_node() {
                continue;
            }
            let seconds = if self.job.keep_bases { worker.warm_s } else { None };
            // Before all nodes are measured none is judged.
            let Some(seconds) = seconds.or(worker.cold_s) else { return };
            let new = || NodeSpeed { node: worker.node.clone(), speed: 0.0, workers: 0 };
            let node = nodes.entry(worker.node.clone()).or_insert_with(new);
            (node.speed, node.workers) = (node.speed + 1.0 / seconds, node.workers + 1);
        }
        let nodes: Vec<NodeSpeed<NodeId>> = nodes.into_values().collect();
        let master_s = self.master_s.unwrap_or(0.0);
        if let Some(release) = controller::release(weight, scenarios, master_s, &nodes) {
            master.cx().report_text(release.reason);
            master.release(release.nodes);
        }
    }

    fn finish(&mut self, master: &mut Master<'_, Solve>) -> Result<(), Stop> {
        let outcome = self.publish(master)?;
        if self.job.explain {
            master.cx().artifact("iterates.csv", report::iterates(&self.rows).into_bytes());
        }
        self.outcome = Some(outcome);
        Ok(())
    }

    fn proceed(
        &mut self,
        requests: Vec<EvaluationRequest>,
        master: &mut Master<'_, Solve>,
    ) -> Result<(), Stop> {
        for request in requests {
            self.submit(request, master)?;
        }
        if self.solver()?.is_done() {
            self.finish(master)?;
        }
        Ok(())
    }
}

impl Driver<Solve> for SolveDriver {
    fn start(&mut self, master: &mut Master<'_, Solve>) -> Result<(), Stop> {
        let workers = master.workers().len();
        let mut plan = self.job.plan()?;
        if self.job.rules_of_thumb {
            let thumb = controller::rules_of_thumb(workers);
            plan.tasks = Some(thumb.tasks);
            // The rules give ranges: a library caller may set the basket and the groups itself.
            if self.job.basket == 1 {
                self.basket = thumb.basket;
            }
            self.groups = self.groups.or(Some(thumb.groups));
        }
        let saved = match (self.saved.take(), &self.job.saved) {
            (None, Some(bytes)) => Some(read_state(bytes, &self.job).map_err(Stop::fail)?),
            (saved, _) => saved,
        };
        if saved.is_none() {
            self.job.notes.iter().for_each(|note| master.cx().report_text(format!("note: {note}")));
        }
        if let Some(saved) = &saved {
            (self.basket, self.groups) = (saved.basket, saved.groups);
            self.before = saved.seconds;
            self.rows.clone_from(&saved.rows);
        }
        plan.settings.basket = self.basket;
        let mut solver = Solver::new(self.job.model()?.clone(), plan, workers)?;
        let requests = match saved {
            Some(DriverState { solver: Some(saved), .. }) => solver.resume(saved)?,
            _ => solver.begin()?,
        };
        self.solver = Some(solver);
        self.proceed(requests, master)
    }

    fn task_completed(
        &mut self,
        batch: BatchId,
        task: u32,
        outputs: Vec<Output>,
        master: &mut Master<'_, Solve>,
    ) -> Result<(), Stop> {
        let Some(out) = self.out.get_mut(&batch.number()) else { return Ok(()) };
        out.back += 1;
        out.pivots += outputs.iter().map(|output| output.pivots).sum::<u64>();
        let of = (out.phase, out.iterate);
        if self.job.log_tasks {
            let seconds = out.submitted.elapsed().as_secs_f64();
            let (phase, iterate) = of;
            master.cx().report_text(format!(
                "phase {phase}, iterate {iterate}, task {task} is back after {seconds:.6} s: {:?}",
                outputs.iter().map(|output| output.pivots).collect::<Vec<_>>()
            ));
        }
        // Adds the blocks of a task in their order. The worker has summed the tasks of a group.
        let mut parts: Vec<(u32, TaskResult)> = Vec::new();
        for (task, part) in outputs.into_iter().flat_map(|output| output.parts) {
            match parts.last_mut() {
                Some((last, sum)) if *last == task => sum.merge(part),
                _ => parts.push((task, part)),
            }
        }
        let (requests, decision) = self.ingest(of, parts)?;
        if let Some(decision) = decision {
            if let Some(time) = self.job.time_model {
                master.cx().spend_modelled_time(time.master_time(decision.pivots))?;
            }
            let seconds = decision.began.elapsed().as_secs_f64();
            self.close(&MasterStep { seconds, ..decision }, master)?;
        }
        self.proceed(requests, master)
    }

    fn outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    fn state(&self) -> DriverState {
        DriverState {
            solver: self.solver.as_ref().map(Solver::snapshot),
            rows: self.rows.clone(),
            basket: self.basket,
            groups: self.groups,
            seconds: self.seconds(),
        }
    }
}
