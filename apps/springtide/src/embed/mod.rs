//! A grid inside a program: its nodes, its jobs with typed outputs, and its actors.
//!
//! - `grid`: [`Grid`], the handle that programs use. `blocking` is the same for threads.
//! - `program`: what the nodes execute, and how this program's own binary becomes a node.
//! - `job`: a submission, and the handle of a job.
//! - `service`: the thread with the actors of the grid, to which the handles send orders.
//! - `logs`: the lines that nodes write.
//! - `local`: tasks and closures that stay in this process.
//!
//! Independent of the command line.

pub mod blocking;
mod error;
mod grid;
mod job;
mod local;
mod logs;
mod program;
mod service;

pub use error::Error;
pub use grid::{Config, Grid, GridBuilder, GridSource};
pub use job::{JobEvent, JobEvents, JobHandle, JobSnapshot, Progress, Runnable, Submission};
pub use local::{join, run};
pub use program::{NodeProgram, node};
