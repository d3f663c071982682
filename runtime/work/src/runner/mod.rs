//! Runners: programs in any language that run the tasks of a job.
//!
//! A node starts one runner for each compute thread, and speaks with it over its standard input
//! and output. A task is a function's name and encoded arguments, and its children are ordinary
//! tasks of the runtime, which other nodes steal. The job's root gets tasks from its client while
//! it runs, and sends their ends back. So a client needs no job for each task.
//!
//! - A runner keeps running for the job's later tasks. It ends with the job, when its task is
//!   halted, and with the node's process, however that ends.
//! - A task whose runner dies runs again in another one. After the third death it fails.
//! - The failure of a task is a value. It fails neither the job nor other tasks.
//! - A root that starts again knows no tasks. Its client sends those that have not ended.
//! - What runners print, log and report travels to the client, without an acknowledgement.
//!
//! Modules: `frame` and `message` are data. `session` converses with a runner without I/O.
//! `process` is one runner, and `task` converses with it. `report` brings output to the client.
//! `root` is the job's root, and `size` its rule to grow and shrink. `conformance` tests runners.
//! This module depends neither on roles nor on a language.

mod conformance;
mod frame;
mod message;
mod process;
mod report;
mod root;
mod session;
mod size;
mod task;
#[cfg(test)]
mod tests;

pub use conformance::{ConformanceCheck, check_runner};
pub use frame::{
    BridgeFrame, CallOutcome, ClientFrame, FRAME_BYTES_MAX, FrameBuffer, FrameFault, FunctionCall,
    FunctionName, NodeFrame, PROTOCOL_VERSION, RunnerFrame, TaskFailure, encode_frame,
};
pub use message::{RunnerOrder, RunnerReport, decode_reports, encode_orders};
pub use root::{ALIVE_INTERVAL, RunnerSpec, run};

use crate::work::Registry;

/// Registers the tasks and objects of runners, in a job's [`register`](crate::work::Job::register).
pub fn register(registry: &mut Registry) {
    registry.task::<task::RunnerTask>().versioned::<task::RunnerObject>();
    registry.merged::<task::CancelledTasks>();
}
