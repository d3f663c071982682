//! Malleable SPMD programs: the number of processes changes while they run.
//!
//! The runtime repeats four steps: observe, decide, plan and execute. The design follows DYNACO and
//! its part for SPMD programs, AFPAC (see the paper on malleable scheduling). The developer writes
//! a [`Program`]: the computation of a process between two adaptation points, the redistribution of
//! its state, and the decision procedure.
//!
//! The runtime observes which nodes join or leave, how fast each process is, and how much of a node
//! other programs use. It asks the decision procedure for a [`Strategy`] and plans which processes
//! take part. It executes the plan in all processes at one agreed point of progress.
//!
//! - Growth: the program computes until all new processes wait to be recruited. Then it stops at a
//!   point, redistributes its state, and continues.
//! - Shrinking: the program redistributes and continues first, and the removed processes end then.
//! - Release: nodes that the decision procedure does not want leave the job.
//! - Loss of a node: the processes restart from the last saved state. It is kept in the memory of
//!   the root's node and, by [`Context::checkpoint`](crate::work::Context::checkpoint), elsewhere.
//!
//! [`Malleable`] makes a job of a program. A job that does other things too uses [`register`],
//! [`run`] and [`resume`].
//!
//! Modules: `observe`, `plan` and `program` are data and pure functions. `part` is a process in a
//! configuration, `process` the task of a process, and `root` that of the root. This module depends
//! neither on roles nor on the negotiation of nodes.

mod job;
mod observe;
mod part;
mod plan;
mod process;
mod program;
mod root;
#[cfg(test)]
mod tests;

pub use job::Malleable;
pub use observe::{MemberProcess, Need, Observation, ProcessInfo, RequestRefusal};
pub use part::SAVED_MAX;
pub use program::{Placement, Program, Strategy};
pub use root::{resume, run};

use crate::work::Registry;

/// Registers the program's processes, in a job's [`register`](crate::work::Job::register).
///
/// # Panics
/// Another task has the program's name.
pub fn register<P: Program>(registry: &mut Registry) {
    registry.task::<process::MalleableProcess<P>>();
}
