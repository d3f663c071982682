//! The conversation of a node with one runner, as a state machine without I/O.
//!
//! It knows the tasks that the runner has begun, the last one on top. It does not know what runs
//! them otherwise, nor how frames travel.

use super::frame::{CallOutcome, FunctionName};
use super::frame::{FunctionCall, NodeFrame, PROTOCOL_VERSION, RunnerFrame, TaskFailure};

/// A frame that the protocol does not permit at this point. The runner is ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolViolation {
    #[error("it speaks version {0} of the protocol, and this node version {PROTOCOL_VERSION}")]
    Version(u32),
    #[error("it did not begin with a hello")]
    NoHello,
    #[error("it sent a second hello")]
    SecondHello,
    #[error("it sent a frame about task {0}, which is not the last one that began")]
    OtherTask(u64),
    #[error("it sent a frame about task {0}, which waits for an answer")]
    Waits(u64),
    #[error("task {task} spawned child {child}, and its next child has number {next}")]
    ChildNumber { task: u64, child: u32, next: u32 },
    #[error("task {task} joined child {child}, which it did not spawn, or joined before")]
    UnknownChild { task: u64, child: u32 },
}

/// What a frame of the runner asks of the node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RunnerRequest {
    /// Welcome the runner, which is ready for tasks.
    Welcome,
    /// Create a child of the last task that began.
    Spawn { child: u32, call: FunctionCall },
    /// Wait for a child of the last task that began, and answer with [`Session::answer_join`].
    Join { child: u32 },
    /// Answer with [`Session::answer_get`].
    Get { object: u32 },
    /// The last task that began has ended.
    End { outcome: CallOutcome },
    /// Write a line to the log.
    Log { level: String, text: String },
    /// Report progress.
    Progress { done: u64, total: u64, what: String },
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedAnswer {
    Child(u32),
    Object(u32),
}

#[derive(Debug)]
struct StackedTask {
    number: u64,
    /// For each child, whether it was joined.
    joined: Vec<bool>,
    awaited: Option<AwaitedAnswer>,
}

/// The state of a runner.
#[derive(Debug, Default)]
pub(super) struct Session {
    is_ready: bool,
    /// The names of the runner's functions, if it lists them.
    names: Option<Vec<String>>,
    /// The tasks that have begun. All but the last wait for a child.
    tasks: Vec<StackedTask>,
    next_number: u64,
}

impl Session {
    /// Whether the runner may get a task: it is idle, or its last task waits for a child.
    pub(super) fn accepts_task(&self) -> bool {
        let waits = |task: &StackedTask| matches!(task.awaited, Some(AwaitedAnswer::Child(_)));
        self.is_ready && self.tasks.last().is_none_or(waits)
    }

    /// The number of tasks that have begun and not ended.
    pub(super) fn depth(&self) -> usize {
        self.tasks.len()
    }

    /// The failure of a task whose function the runner does not have, if it lists its functions.
    pub(super) fn refusal(&self, function: &FunctionName) -> Option<TaskFailure> {
        let names = self.names.as_ref().filter(|_| function.object.is_none())?;
        let name = &function.name;
        let text = || format!("the runner has no function {name}: it has {}", names.join(", "));
        (!names.contains(name)).then(|| TaskFailure::of_runtime("UnknownFunction", text()))
    }

    /// Begins a task. Returns the frame to send, or `None` if the runner accepts none now.
    pub(super) fn begin(&mut self, call: FunctionCall) -> Option<NodeFrame> {
        if !self.accepts_task() {
            return None;
        }
        self.next_number += 1;
        let number = self.next_number;
        self.tasks.push(StackedTask { number, joined: Vec::new(), awaited: None });
        Some(NodeFrame::Task { task: number, call })
    }

    /// The frame that asks the runner to end its last task early.
    pub(super) fn cancel(&self) -> Option<NodeFrame> {
        self.tasks.last().map(|task| NodeFrame::Cancel { task: task.number })
    }

    /// Answers the join of the last task. Returns `None` if it does not wait for a child.
    pub(super) fn answer_join(&mut self, outcome: CallOutcome) -> Option<NodeFrame> {
        let last = self.tasks.last_mut()?;
        let Some(AwaitedAnswer::Child(child)) = last.awaited else { return None };
        last.awaited = None;
        Some(NodeFrame::Joined { task: last.number, child, outcome })
    }

    /// Answers the get of the last task. Returns `None` if it does not wait for an object.
    pub(super) fn answer_get(&mut self, data: Option<bytes::Bytes>) -> Option<NodeFrame> {
        let last = self.tasks.last_mut()?;
        let Some(AwaitedAnswer::Object(object)) = last.awaited else { return None };
        last.awaited = None;
        Some(NodeFrame::Object { task: last.number, object, data })
    }

    /// Processes a frame of the runner.
    ///
    /// # Errors
    /// The protocol does not permit it.
    pub(super) fn receive(
        &mut self,
        frame: RunnerFrame,
    ) -> Result<RunnerRequest, ProtocolViolation> {
        if !self.is_ready && !matches!(frame, RunnerFrame::Hello { .. }) {
            return Err(ProtocolViolation::NoHello);
        }
        Ok(match frame {
            RunnerFrame::Hello { .. } if self.is_ready => {
                return Err(ProtocolViolation::SecondHello);
            }
            RunnerFrame::Hello { version, .. } if version != PROTOCOL_VERSION => {
                return Err(ProtocolViolation::Version(version));
            }
            RunnerFrame::Hello { tasks, .. } => {
                (self.is_ready, self.names) = (true, tasks);
                RunnerRequest::Welcome
            }
            RunnerFrame::Result { task, value, buffers } => {
                self.end(task)?;
                RunnerRequest::End { outcome: CallOutcome::Result { value, buffers } }
            }
            RunnerFrame::Failure { task, failure } => {
                self.end(task)?;
                RunnerRequest::End { outcome: CallOutcome::Failure(failure) }
            }
            RunnerFrame::Spawn { task, child, call } => {
                let last = self.last(task)?;
                let next = u32::try_from(last.joined.len()).unwrap_or(u32::MAX);
                if child != next {
                    return Err(ProtocolViolation::ChildNumber { task, child, next });
                }
                last.joined.push(false);
                RunnerRequest::Spawn { child, call }
            }
            RunnerFrame::Join { task, child } => {
                let last = self.last(task)?;
                let index = usize::try_from(child).unwrap_or(usize::MAX);
                match last.joined.get_mut(index) {
                    Some(joined) if !*joined => *joined = true,
                    _ => return Err(ProtocolViolation::UnknownChild { task, child }),
                }
                last.awaited = Some(AwaitedAnswer::Child(child));
                RunnerRequest::Join { child }
            }
            RunnerFrame::Get { task, object } => {
                self.last(task)?.awaited = Some(AwaitedAnswer::Object(object));
                RunnerRequest::Get { object }
            }
            RunnerFrame::Log { level, text } => RunnerRequest::Log { level, text },
            RunnerFrame::Progress { done, total, what } => {
                RunnerRequest::Progress { done, total, what }
            }
        })
    }

    /// The last task, which must have this number and wait for nothing.
    fn last(&mut self, number: u64) -> Result<&mut StackedTask, ProtocolViolation> {
        let last = self.tasks.last_mut().filter(|task| task.number == number);
        let last = last.ok_or(ProtocolViolation::OtherTask(number))?;
        if last.awaited.is_some() {
            return Err(ProtocolViolation::Waits(number));
        }
        Ok(last)
    }

    fn end(&mut self, number: u64) -> Result<(), ProtocolViolation> {
        self.last(number)?;
        self.tasks.pop();
        Ok(())
    }
}
