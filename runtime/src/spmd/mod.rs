//! Processes that talk to each other: SPMD programs over the tasks of a job.
//!
//! A *process* is a long task that holds one compute thread. The job's root calls for as many as there are threads, idle threads
//! of other nodes steal them, and each says where it is and waits: an empty stub. The root recruits those that it wants into a
//! *configuration*, in which they have ranks and a [`Comm`]; the root's own thread is rank 0 of each. What all are to do at the
//! same point of progress (redistribute, save) is proposed, each says which point it can reach, and it is done at the greatest of
//! these. A configuration that loses a member, or a link over which mail may have been lost, is over as a whole.
//!
//! Processes that take no part in configurations may be given *orders* by the root, numbered, and *answer* it: what a broken link
//! may have lost is said again, so that nothing is over with it. That is what [`mw`](crate::mw) stands on.
//!
//! `crew` is how a root calls for processes and lets them go. `group` (the root's book), `seat` (a process's) and `mailbox` are state machines without I/O; `post` is a node's, under one
//! lock; `comm` is what programs see, `collective` what all of them do at once. Must not know what programs compute, nor why configurations change: that is
//! [`malleable`](crate::malleable)'s and [`mw`](crate::mw)'s.

mod collective;
mod comm;
pub(crate) mod crew;
pub(crate) mod group;
mod mailbox;
pub(crate) mod message;
mod patience;
pub(crate) mod post;
pub(crate) mod seat;
#[cfg(test)]
mod tests;

pub use comm::{Comm, MESSAGE_MAX, SHORT};
pub(crate) use comm::{SAVE, Station};
pub use message::Pace;
