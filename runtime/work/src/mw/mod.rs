//! Master-worker programs: a master on one node submits tasks, and workers on the other nodes
//! execute them.
//!
//! The number of workers may change at any time. The design follows Condor's MW (Goux, Kulkarni,
//! Linderoth, Yoder: An enabling framework for master-worker applications on the computational
//! grid, HPDC 2000). Its users find here:
//!
//! | MW | here |
//! | --- | --- |
//! | `MWDriver` | [`Driver`], and its operations in [`Master`] |
//! | `MWDriver::setup_initial_tasks` | [`Driver::start`] |
//! | `MWDriver::act_on_completed_task` | [`Driver::task_completed`] |
//! | `MWDriver::addTask`, `addTasks` | [`Master::submit`], of a whole [`Batch`] |
//! | `MWDriver::write_master_state`, `read_master_state` | [`Driver::state`], [`Program::driver`] |
//! | `MWTask` | [`TaskSpec`] with a [`Program::Work`]; its result a [`Program::Output`] |
//! | `MWWorker` | [`Program::Worker`] |
//! | `MWWorker::unpack_init_data` | [`Program::worker`] |
//! | `MWWorker::execute_task` | [`Program::execute`] |
//! | `pack_worker_init_data`, for each new worker | the [`Program`] and [`Batch::common`] |
//! | worker classes, `set_task_key_function` | none: each task goes where it completes first |
//! | the first task for the first idle worker | [`DispatchRule::Queue`], for comparison |
//! | `register_benchmark_task` | a worker's first task: [`AssignmentSettings::bench_units`] |
//!
//! A worker is a process of [`spmd`](crate::spmd) and occupies a compute thread. It takes part in
//! no configuration, but executes orders and sends answers. The loss of a worker costs only its own
//! unfinished work.
//!
//! Tasks of a batch are assigned one at a time to the worker with the earliest expected completion,
//! from the current workers and their speeds. A task may consist of blocks, whose results are
//! combined in order, so it can be split over workers without a change of its result.
//!
//! Modules: `program` is the interface for developers. `schedule` (pure functions) plans, and
//! `assignment` (a state machine without I/O) records which worker has which block. `order_queue`
//! is a worker's queue, `process` its thread, and `root` the master. This module depends neither on
//! roles nor on the negotiation of nodes.

mod assignment;
#[cfg(test)]
mod assignment_states;
#[cfg(test)]
mod assignment_tests;
mod message;
mod order_queue;
mod process;
mod program;
mod root;
mod schedule;
#[cfg(test)]
mod tests;

pub use program::{
    AssignmentSettings, Batch, BatchId, DispatchRule, Driver, Program, TaskSpec, WorkerView,
};
pub use root::{Master, resume, run};
pub use schedule::Forecast;

use crate::work::Registry;

/// Registers the program's workers, in a job's [`register`](crate::work::Job::register).
///
/// # Panics
/// Another task has the program's name.
pub fn register<P: Program>(registry: &mut Registry) {
    registry.task::<process::MasterWorkerProcess<P>>();
}
