//! SPMD programs: groups of processes that run as tasks of a job and exchange messages.
//!
//! A *process* is a long task that occupies one compute thread. The job's root spawns one task for
//! each thread of the job, and idle threads of other nodes steal them. A new process reports its
//! node to the root and waits. The root recruits waiting processes into a *configuration*, where
//! each has a rank and a [`Comm`]. The root's own thread is rank 0 of every configuration.
//!
//! Actions of all processes at one point of progress, such as redistributing or saving, take two
//! steps. The root proposes the action, and each process names the next point that it can reach.
//! All execute the action at the greatest of these points. A configuration ends as a whole when it
//! loses a member, or when a broken link may have lost one of its messages.
//!
//! Processes outside of configurations may take numbered *orders* from the root and send *answers*.
//! Both are repeated when a broken link may have lost them, so no failure of a link ends them.
//! [`mw`](crate::mw) is built on orders.
//!
//! Modules: `process_pool` spawns and dismisses processes for a root. `group` (the root's state),
//! `local_process` (a process's state) and `mailbox` are state machines without I/O. `post` holds
//! them for a node, under one lock. `comm` is the interface of programs, and `collective` its
//! collective operations.
//!
//! This module must depend neither on the programs nor on the reasons for which configurations
//! change; those belong to [`malleable`](crate::malleable) and [`mw`](crate::mw).

mod collective;
mod comm;
pub(crate) mod group;
pub(crate) mod local_process;
mod mailbox;
pub(crate) mod message;
pub(crate) mod post;
pub(crate) mod process_pool;
#[cfg(test)]
mod tests;
mod timer;

pub use comm::{Comm, INLINE_MESSAGE_MAX, MESSAGE_MAX};
pub(crate) use comm::{ProcessHandle, SAVE};
pub use message::StepRate;
