//! Pilots: jobs that hold a node for tasks that their client sends while they run.
//!
//! A client submits a pilot, and the scheduler places it like any job of one node. Then the client
//! sends the pilot [orders](PilotOrder), and the pilot sends [reports](PilotReport). So a task
//! needs no placement of its own, and starts within milliseconds. The pilot ends when its client
//! orders that, or when it gets no order for [`PilotSpec::idle_limit`].
//!
//! - A task runs in a directory of its own. Its inputs are links to files of the cluster's
//!   directory, and its outputs move there when it has ended well.
//! - Tasks wait in the order of their arrival until the node has enough free processors.
//! - A pilot whose node leaves interrupts its tasks and ends. The client decides where they run
//!   next. So nothing of a pilot is checkpointed.
//! - The processes of a node end with the node's process, however that ends.
//!
//! Modules: `message` is data. `directory` has the files of a task, and `packed` makes files of
//! directories. `process` is one running task, `tasks` are all tasks of a node, and `root` is the
//! job's root. This module depends neither on roles nor on what a task is a part of.

mod directory;
mod message;
mod packed;
mod process;
mod root;
mod tasks;
#[cfg(test)]
mod tests;

pub use message::{
    PilotOrder, PilotReport, PilotTask, TaskEnd, TaskFile, TaskProgram, TaskRecord, TaskUsage,
    decode_reports, encode_orders,
};
pub use packed::{pack, unpack};
pub use root::{PilotSpec, run};
