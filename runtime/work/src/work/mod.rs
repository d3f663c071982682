//! Tasks and the threads that run them: divide-and-conquer with work stealing inside the node and
//! between nodes.
//!
//! - `core` is the layer of tasks above the scheduler (`springtide-forkjoin`).
//! - `pool` holds a node's threads for one job.
//! - `steal` is the protocol between nodes, without I/O.
//! - `engine` is one node's part in a job.
//! - `solo` and `bench` run jobs and benchmarks in this process alone.
//!
//! The module knows neither roles nor the implementation of the network.
//!
//! # What the compiler rejects
//!
//! A context stays on its thread:
//! ```compile_fail,E0277
//! # use springtide_work::work::Context;
//! fn leak(cx: &Context) {
//!     std::thread::scope(|scope| { scope.spawn(|| cx.check().is_ok()); });
//! }
//! ```
//! A spawned child's handle does not outlive its parent's context:
//! ```compile_fail,E0521
//! # use springtide_work::work::{Context, Spawned, Task};
//! fn keep<T: Task>(cx: &Context, task: T, kept: &mut Vec<Spawned<'static, T>>) {
//!     kept.push(cx.spawn(task));
//! }
//! ```
//! A child's output is taken once:
//! ```compile_fail,E0382
//! # use springtide_work::work::{Context, Stop, Task};
//! fn twice<T: Task>(cx: &Context, task: T) -> Result<(), Stop> {
//!     let child = cx.spawn(task);
//!     child.take()?;
//!     child.take()?;
//!     Ok(())
//! }
//! ```
//! A task owns its data, since it may run on another node:
//! ```compile_fail
//! # use springtide_work::work::{Context, Stop, Task};
//! # use serde::{Deserialize, Serialize};
//! #[derive(Serialize, Deserialize)]
//! struct Borrows<'a>(&'a str);
//! impl<'a> Task for Borrows<'a> {
//!     type Output = ();
//!     const NAME: &'static str = "borrows";
//!     fn run(self, _cx: &Context) -> Result<(), Stop> { Ok(()) }
//! }
//! ```
//! Users can neither create nor inspect a halt:
//! ```compile_fail,E0423
//! # use springtide_work::work::Stop;
//! let Stop(cause) = Stop::fail("no");
//! ```

pub mod bench;
mod checkpoint;
mod context;
pub(crate) mod core;
mod engine;
mod here;
mod loops;
mod metering;
mod observer;
mod once;
pub(crate) mod outcome;
mod phase_times;
mod phases;
pub(crate) mod pool;
mod pool_config;
mod recover;
mod registry;
pub(crate) mod report;
pub mod solo;
#[doc(hidden)]
pub mod steal;
mod task;
mod task_job;
mod throttle;
#[cfg(any(test, feature = "virtual-time"))]
mod virtual_time;
pub(crate) mod waker;

pub use crate::checksum::{checksum, checksum_from};
pub use checkpoint::Checkpoint;
pub use context::{Context, STATE_ARTIFACT, Spawned};
pub use metering::MeteringSettings;
pub use once::BuiltOnce;
pub use outcome::{Failure, Halt, InputError, Outcome, Stop};
pub use phase_times::{PhaseTime, PhaseTimes};
pub use phases::PhaseClock;
pub use pool::{Pool, PoolCounts, RealSeam, Seam};
pub use pool_config::{ArrayTask, CHECKPOINT_RATE, PoolConfig, WORK_FLOOR};
pub use registry::{JobEntry, Registry, encode_job};
pub use report::{OutputStream, ProgressReport, SavedRoot};
pub use springtide_forkjoin::layer::thread_cpu;
pub use springtide_forkjoin::{ParallelLoops, Sequential, collect, distribute};
pub use task::{Job, Task};
pub use task_job::{OUTPUT_MAX, OutputAssembler, OutputError, TaskJob};
pub use throttle::{Throttle, ThrottledSeam};
#[cfg(any(test, feature = "virtual-time"))]
pub use virtual_time::{ProcessorSpeed, VirtualSeam};

// A node's part in a job, for the roles.
#[doc(hidden)]
pub use core::LeaseId;
#[doc(hidden)]
pub use core::remote_task::Encoded;
#[doc(hidden)]
pub use engine::{
    AbsentNodeInbox, Engine, EngineConfig, EngineReport, EngineWatch, FinishedTask, LOSSES_MAX,
    LeasedTask, NodeLosses, RESULTS_BYTES, ReportHandler, RootEnd, RootResults, StopRoot,
    TableSizes, WaitGraph,
};
#[doc(hidden)]
pub use observer::{CachedResult, PoolObserver, WakeRoot};
#[doc(hidden)]
pub use recover::{ResultLocation, RootStart, TaskIdentity};
#[doc(hidden)]
pub use springtide_forkjoin::layer::LeaseCounts;
