//! The task of a runner: each compute thread has one runner, and converses with it about the task.
//!
//! If the runner dies, the task begins again in another one. Its children are not created again:
//! the task is a pure function, so it spawns the same ones.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::frame::{CallOutcome, FunctionCall, TaskFailure};
use super::message::RunnerReport;
use super::process::{RunnerFault, RunnerPlace, RunnerProcess};
use super::report::{ReportSink, RunnerSetup};
use super::session::RunnerRequest;
use crate::id::NodeId;
use crate::share::{Merged, ObjectNeed, Version, Versioned};
use crate::wire;
use crate::work::{Context, Spawned, Stop, Task};

/// The most deaths of runners that a task may cause.
const DEATHS_MAX: u32 = 3;
/// The part of the shared objects that holds the job's [`RunnerSetup`].
pub(super) const SETUP_PART: u32 = 0;

/// A shared object of the job: bytes that runners decode.
#[derive(Serialize, Deserialize)]
pub(super) struct RunnerObject(pub(super) Bytes);

impl Versioned for RunnerObject {
    const NAME: &'static str = "runner.object";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        Self(self.0.clone())
    }
}

/// The tasks that the client has cancelled and that may still run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CancelledTasks {
    /// All tasks with a lower number have ended.
    pub(super) first: u64,
    pub(super) tasks: BTreeSet<u64>,
}

impl Merged for CancelledTasks {
    const NAME: &'static str = "runner.cancelled";

    fn merge(&mut self, other: &Self) {
        self.first = self.first.max(other.first);
        self.tasks.extend(&other.tasks);
        self.tasks = self.tasks.split_off(&self.first);
    }
}

/// The failure of a task that the client has cancelled.
pub(super) fn cancelled() -> CallOutcome {
    let text = "the client cancelled the task";
    CallOutcome::Failure(TaskFailure::of_runtime("Cancelled", text))
}

/// Sees whether a running task is still of use.
pub(super) struct TaskWatch<'c, 'w> {
    cx: &'c Context<'w>,
    /// The task of the client to which it belongs.
    origin: u64,
}

impl TaskWatch<'_, '_> {
    /// Returns an error for a task that is of no use.
    ///
    /// # Errors
    /// The task is halted or cancelled.
    pub(super) fn check(&self) -> Result<(), RunnerFault> {
        self.cx.check().map_err(RunnerFault::Halted)?;
        let cancelled = self.cx.merged::<CancelledTasks>();
        if cancelled.is_some_and(|cancelled| cancelled.tasks.contains(&self.origin)) {
            return Err(RunnerFault::Cancelled);
        }
        Ok(())
    }
}

/// A call of a function by a runner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunnerTask {
    /// The task of the client to which it belongs.
    pub(super) origin: u64,
    pub(super) call: FunctionCall,
    /// The versions of the shared objects that the task and its children may read, in order of
    /// their parts. The first one is the job's setup.
    pub(super) objects: Vec<(u32, Version)>,
}

impl RunnerTask {
    fn version_of(&self, object: u32) -> Option<Version> {
        let found = self.objects.iter().find(|(part, _)| *part == object);
        found.filter(|(part, _)| *part != SETUP_PART).map(|(_, version)| *version)
    }

    /// The child with this call. It may read the objects of this task.
    fn child(&self, call: FunctionCall) -> Result<Self, TaskFailure> {
        let mut named = call.objects.iter().chain(&call.function.object);
        if let Some(object) = named.find(|object| self.version_of(**object).is_none()) {
            let text = format!("shared object {object} is not among those of the parent");
            return Err(TaskFailure::of_runtime("UnknownObject", text));
        }
        Ok(Self { origin: self.origin, call, objects: self.objects.clone() })
    }
}

/// The runner of a compute thread.
struct ThreadRunner {
    /// Distinguishes successive processes.
    generation: u64,
    /// The version of the setup that it was started with.
    setup: Version,
    sink: ReportSink,
    process: RunnerProcess,
}

thread_local! {
    // A compute thread belongs to one job and ends with it.
    static RUNNER: RefCell<Option<ThreadRunner>> = const { RefCell::new(None) };
    static GENERATIONS: RefCell<u64> = const { RefCell::new(0) };
}

/// Why a conversation about a task ended without an outcome.
struct Interruption {
    fault: RunnerFault,
    /// Whether the runner failed while it ran this task, and no other one on top.
    is_own: bool,
}

impl From<RunnerFault> for Interruption {
    fn from(fault: RunnerFault) -> Self {
        Self { fault, is_own: true }
    }
}

/// A child of a task.
struct Child<'c> {
    call: FunctionCall,
    state: ChildState<'c>,
}

enum ChildState<'c> {
    Running(Spawned<'c, RunnerTask>),
    /// It has ended, or could not be created. A task that begins again may join it again.
    Collected(CallOutcome),
}

impl Task for RunnerTask {
    type Output = CallOutcome;
    const NAME: &'static str = "runner.task";

    fn needs(&self) -> Vec<ObjectNeed> {
        let need =
            |(part, version): &(u32, Version)| ObjectNeed::of::<RunnerObject>(*part, *version);
        self.objects.iter().map(need).collect()
    }

    fn run(self, cx: &Context) -> Result<CallOutcome, Stop> {
        let mut children = Vec::new();
        let mut deaths = 0;
        loop {
            let (fault, is_own) = match converse(&self, &mut children, cx) {
                Ok(outcome) => return finish(outcome, children, cx),
                Err(Interruption { fault, is_own }) => (fault, is_own),
            };
            match fault {
                RunnerFault::Halted(stop) => {
                    cancel_or_end();
                    return Err(stop);
                }
                RunnerFault::Cancelled => {
                    cancel_or_end();
                    return finish(cancelled(), children, cx);
                }
                RunnerFault::Died(reason) => {
                    end_runner();
                    deaths += u32::from(is_own);
                    if deaths >= DEATHS_MAX {
                        let text = format!(
                            "the runner of {} {reason} ({DEATHS_MAX} runners ended so)",
                            self.call.function.name
                        );
                        let failure = TaskFailure::of_runtime("RunnerDied", text);
                        return finish(CallOutcome::Failure(failure), children, cx);
                    }
                    tracing::warn!(task = self.call.function.name, reason, "a runner ended");
                }
            }
        }
    }
}

/// Collects the children that the task did not join. The failure of one of them fails the task.
fn finish(
    mut outcome: CallOutcome,
    children: Vec<Child<'_>>,
    cx: &Context,
) -> Result<CallOutcome, Stop> {
    for child in children {
        if let ChildState::Running(spawned) = child.state {
            let ended = spawned.take()?;
            if let (CallOutcome::Result { .. }, CallOutcome::Failure(_)) = (&outcome, &ended) {
                outcome = ended;
            }
        }
    }
    cx.check()?;
    Ok(outcome)
}

/// Ends the runner of this thread.
fn end_runner() {
    drop(RUNNER.take());
}

/// Ends the task, which is of no use, in the runner of this thread, or else the runner.
fn cancel_or_end() {
    let is_cancelled = RUNNER
        .with_borrow_mut(|runner| runner.as_mut().is_some_and(|runner| runner.process.cancel()));
    if !is_cancelled {
        end_runner();
    }
}

/// Uses the runner of this generation, if it is still the thread's.
fn with_runner<R>(
    generation: u64,
    action: impl FnOnce(&mut RunnerProcess) -> Result<R, RunnerFault>,
) -> Result<R, Interruption> {
    RUNNER.with_borrow_mut(|runner| match runner {
        Some(runner) if runner.generation == generation => Ok(action(&mut runner.process)?),
        _ => {
            let fault = RunnerFault::Died("was ended by a task on top".to_owned());
            Err(Interruption { fault, is_own: false })
        }
    })
}

/// Provides a runner for this thread. Returns its generation.
fn provide_runner(
    task: &RunnerTask,
    watch: &TaskWatch<'_, '_>,
    cx: &Context,
) -> Result<u64, RunnerFault> {
    let died = |reason: String| RunnerFault::Died(reason);
    let first = task.objects.first().filter(|(part, _)| *part == SETUP_PART);
    let Some((_, setup)) = first else { return Err(died("has no setup".to_owned())) };
    let known = RUNNER.with_borrow(|runner| {
        let known = runner.as_ref().filter(|runner| runner.setup == *setup);
        known.map(|runner| (runner.generation, runner.process.session.accepts_task()))
    });
    match known {
        Some((generation, true)) => return Ok(generation),
        // It is in the middle of another task, whose frames were lost.
        Some((_, false)) => end_runner(),
        None => {}
    }
    let object = cx.get::<RunnerObject>(SETUP_PART, *setup).map_err(RunnerFault::Halted)?;
    let RunnerSetup { spec, group } =
        wire::decode_payload(&object.0).map_err(|error| died(error.to_string()))?;
    let Some(post) = cx.post() else {
        return Err(died("runs on nodes of a grid alone".to_owned()));
    };
    end_runner();
    let me = post.me().clone();
    let place = RunnerPlace { node: me.node.as_str(), cluster: me.cluster.as_str() };
    let sink = ReportSink::new(post, group);
    let process = RunnerProcess::start(&spec, place, Some(sink.clone()), Some(watch))?;
    let generation = GENERATIONS.with_borrow_mut(|count| {
        *count += 1;
        *count
    });
    RUNNER.set(Some(ThreadRunner { generation, setup: *setup, sink, process }));
    Ok(generation)
}

/// Converses with a runner about a task until the task's end.
fn converse<'c>(
    task: &RunnerTask,
    children: &mut Vec<Child<'c>>,
    cx: &'c Context<'_>,
) -> Result<CallOutcome, Interruption> {
    let watch = &TaskWatch { cx, origin: task.origin };
    watch.check()?;
    let generation = provide_runner(task, watch, cx)?;
    let begun = with_runner(generation, |runner| {
        if let Some(refusal) = runner.session.refusal(&task.call.function) {
            return Ok(Some(refusal));
        }
        match runner.session.begin(task.call.clone()) {
            Some(frame) => runner.send(&frame, Some(watch)).map(|()| None),
            None => Err(RunnerFault::Died("accepts no task".to_owned())),
        }
    })?;
    if let Some(refusal) = begun {
        return Ok(CallOutcome::Failure(refusal));
    }
    loop {
        let request = with_runner(generation, |runner| runner.receive(None, Some(watch)))?;
        // Without a time there is always a request.
        let Some(request) = request else { continue };
        match request {
            RunnerRequest::End { outcome } => return Ok(outcome),
            RunnerRequest::Spawn { child, call } => spawn(task, children, child, call, cx),
            RunnerRequest::Join { child } => {
                let outcome = join(children, child).map_err(RunnerFault::Halted)?;
                with_runner(generation, |runner| match runner.session.answer_join(outcome) {
                    Some(frame) => runner.send(&frame, Some(watch)),
                    None => Ok(()),
                })?;
            }
            RunnerRequest::Get { object } => {
                let version = task.version_of(object);
                let value = version.map(|version| cx.get::<RunnerObject>(object, version));
                let value = value.transpose().map_err(RunnerFault::Halted)?;
                with_runner(generation, |runner| {
                    match runner.session.answer_get(value.map(|value| value.0.clone())) {
                        Some(frame) => runner.send(&frame, Some(watch)),
                        None => Ok(()),
                    }
                })?;
            }
            RunnerRequest::Log { level, text } => {
                log(&level, &text);
                report(|node| RunnerReport::Log { node, level, text });
            }
            RunnerRequest::Progress { done, total, what } => {
                tracing::info!(task = task.call.function.name, "{done} of {total} {what}");
                let task = task.origin;
                report(|node| RunnerReport::Progress { node, task, done, total, what });
            }
            RunnerRequest::Welcome => {}
        }
    }
}

/// Creates a child, unless the task created it before it began again.
fn spawn<'c>(
    task: &RunnerTask,
    children: &mut Vec<Child<'c>>,
    number: u32,
    call: FunctionCall,
    cx: &'c Context<'_>,
) {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    if children.get(index).is_some_and(|known| known.call == call) {
        return;
    }
    let state = match task.child(call.clone()) {
        Ok(child) => ChildState::Running(cx.spawn(child)),
        Err(failure) => ChildState::Collected(CallOutcome::Failure(failure)),
    };
    let child = Child { call, state };
    match children.get_mut(index) {
        // The task is not a pure function: what it created before is of no use.
        Some(known) => *known = child,
        None => children.push(child),
    }
}

/// Waits for a child. The session has checked its number.
fn join(children: &mut [Child<'_>], number: u32) -> Result<CallOutcome, Stop> {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    let Some(child) = children.get_mut(index) else {
        let failure =
            TaskFailure::of_runtime("UnknownChild", format!("there is no child {number}"));
        return Ok(CallOutcome::Failure(failure));
    };
    let unknown = CallOutcome::Failure(TaskFailure::default());
    let state = std::mem::replace(&mut child.state, ChildState::Collected(unknown));
    let outcome = match state {
        ChildState::Running(spawned) => spawned.take()?,
        ChildState::Collected(outcome) => outcome,
    };
    child.state = ChildState::Collected(outcome.clone());
    Ok(outcome)
}

/// Sends a report to the client.
fn report(of_node: impl FnOnce(NodeId) -> RunnerReport) {
    let sink = RUNNER.with_borrow(|runner| runner.as_ref().map(|runner| runner.sink.clone()));
    if let Some(sink) = sink {
        sink.send(&of_node(sink.node()));
    }
}

fn log(level: &str, text: &str) {
    match level {
        "error" => tracing::error!("{text}"),
        "warn" => tracing::warn!("{text}"),
        "info" => tracing::info!("{text}"),
        _ => tracing::debug!("{text}"),
    }
}
