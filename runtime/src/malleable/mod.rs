//! SPMD programs whose number of processes changes while they run: observe, decide, plan, execute.
//!
//! After DYNACO and its part for SPMD programs, AFPAC (see the paper on malleable scheduling): the developer writes a
//! [`Program`], that is what each process computes between two adaptation points, how its state is dealt out anew, and the
//! decision procedure. The runtime observes (nodes that joined or are to leave, how fast each process goes, what others use of
//! its node), asks the decision procedure for a [`Strategy`], plans which processes take part, and executes the plan in all
//! processes at one point of progress on which they agree.
//!
//! To grow, the program computes on until all new processes are there, as empty stubs; only then it stops at a point,
//! redistributes and goes on. To shrink, it redistributes and goes on first; those that are free end after that. Nodes that
//! the decision procedure does not want are given back. When a node is lost, the processes begin anew from the last state that
//! was saved, in the memory of the root's node and, by [`Context::checkpoint`](crate::work::Context::checkpoint), beyond it.
//!
//! A job is made of a program by [`Malleable`]; one that does more besides, by [`register`], [`run`] and [`resume`]. `observe`, `plan` and `program` are data and pure
//! functions; `part` is one process between two points, `process` a process's life, `root` the root's. Must not know roles, nor who
//! offers nodes or takes them.

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
pub use observe::{Hand, Need, Observation, Place, Refusal};
pub use part::SAVED_MAX;
pub use program::{Program, Strategy};
pub use root::{resume, run};

use crate::work::Registry;

/// Names the program's processes in a job's [`register`](crate::work::Job::register).
///
/// # Panics
/// If another task has the program's name.
pub fn register<P: Program>(registry: &mut Registry) {
    registry.task::<process::Process<P>>();
}
