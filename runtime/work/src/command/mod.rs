//! Commands: programs of the user that a job starts as processes of the operating system.
//!
//! Any program runs: a script, an MPI program by its launcher, a container by its client. The job
//! has a fixed set of nodes, and neither grows nor shrinks. One process of
//! [`spmd`](crate::spmd) on each node is the *agent* of that node. The root sends each agent the
//! ranks to start, with the environment that the module `environment` describes. Agents send pieces
//! of output and the ends of their processes, numbered, so that a broken link loses none.
//!
//! - The first process that fails ends the others. Its exit code is that of the job.
//! - A process that is to end gets SIGTERM, and after [`CommandSpec::grace`] its whole group gets
//!   SIGKILL. The same happens when the job is cancelled.
//! - A lost node voids the attempt, since nothing is known of the program's state. The root ends
//!   the other processes, waits for the job's full number of nodes, and starts all of them again,
//!   at most [`CommandSpec::restarts`] times.
//! - The processes of a node end with the node's process, however that ends.
//!
//! Modules: `launch` is the root's state machine without I/O, `environment` what a process gets,
//! `child` and `children` the processes of a node, `agent` the task of a node, and `root` the job's
//! root. This module depends neither on roles nor on how jobs are submitted.

pub(crate) mod agent;
pub(crate) mod child;
pub(crate) mod children;
pub(crate) mod environment;
mod launch;
#[cfg(test)]
mod launch_tests;
mod message;
mod root;
mod spec;
#[cfg(test)]
mod tests;

pub use root::{resume, run};
pub use spec::{CommandInput, CommandSpec, EnvironmentVariable, GRACE_MAX, ProcessUnit, STDIN_MAX};

use crate::work::Registry;

/// Registers the agents, in a job's [`register`](crate::work::Job::register).
///
/// # Panics
/// The registry has the agents already.
pub fn register(registry: &mut Registry) {
    registry.task::<agent::CommandAgent>();
}
