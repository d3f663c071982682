//! Master and workers: a program on one node hands out tasks, workers on all others do them, at any time as many as there are.
//!
//! After Condor's MW (Goux, Kulkarni, Linderoth, Yoder: An enabling framework for master-worker applications on the computational
//! grid, HPDC 2000), whose users find here:
//!
//! | MW | here |
//! | --- | --- |
//! | `MWDriver` | [`Driver`], and what it can do is [`Master`] |
//! | `MWDriver::setup_initial_tasks` | [`Driver::begin`] |
//! | `MWDriver::act_on_completed_task` | [`Driver::done`] |
//! | `MWDriver::addTask`, `addTasks` | [`Master::submit`], of a whole [`Batch`] |
//! | `MWDriver::write_master_state`, `read_master_state` | [`Driver::state`], [`Program::driver`] |
//! | `MWTask` | [`TaskSpec`] with a [`Program::Work`]; its result a [`Program::Output`] |
//! | `MWWorker` | [`Program::Worker`] |
//! | `MWWorker::unpack_init_data` | [`Program::worker`] |
//! | `MWWorker::execute_task` | [`Program::execute`] |
//! | `MWDriver::pack_worker_init_data`, for each new worker | the [`Program`] itself; what changes is [`Batch::common`] |
//! | worker classes, task keys, `set_task_key_function` | none: each task goes where it is expected to be done first |
//! | the first task for the first idle worker | [`Dealing::Queue`], to compare with |
//! | benchmark tasks (`register_benchmark_task`) | a worker's first task: [`Settings::bench_units`] |
//!
//! A worker is a process of [`spmd`](crate::spmd), which holds a compute thread, but takes part in no configuration: it is given
//! orders and answers them, so that one that is lost costs what it had, and nothing else. Tasks of a batch are given out one at a time
//! to the worker with the earliest expected completion, anew for each batch, from the speeds of the workers that are there. A task may
//! have blocks, whose results are added up in their order: then it can be split over workers without a change of its result.
//!
//! `program` is what developers write. `schedule` decides who does what, `book` keeps who has what: pure functions and a state machine
//! without I/O. `desk` is a worker's side, `process` its thread, `root` the master's. Must not know roles, nor who offers nodes or
//! takes them.

mod book;
#[cfg(test)]
mod book_table;
#[cfg(test)]
mod book_tests;
mod desk;
mod message;
mod process;
mod program;
mod root;
mod schedule;
#[cfg(test)]
mod tests;

pub use program::{Batch, BatchId, Dealing, Driver, Program, Settings, TaskSpec, WorkerView};
pub use root::{Master, resume, run};
pub use schedule::Forecast;

use crate::work::Registry;

/// Names the program's workers in a job's [`register`](crate::work::Job::register).
///
/// # Panics
/// If another task has the program's name.
pub fn register<P: Program>(registry: &mut Registry) {
    registry.task::<process::Process<P>>();
}
