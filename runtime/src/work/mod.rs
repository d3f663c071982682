//! Tasks and the threads that run them: divide-and-conquer with work stealing inside the node and between nodes.
//!
//! `core` is the unsafe heart; `pool` a node's threads for one job; `steal` the protocol between nodes, without I/O. Must
//! not know roles or the network's make.

mod batch;
mod context;
pub(crate) mod core;
mod engine;
mod pool;
mod registry;
pub mod solo;
pub mod steal;
mod task;
mod virtual_time;

pub use context::{Context, Spawned};
pub use core::LeaseId;
pub use engine::{Engine, EngineConfig, Notes};
pub use pool::{Host, Note, Pool, PoolConfig, PoolCounts, RealSeam, Seam};
pub use registry::{JobEntry, Registry, encode_job};
pub use task::{Failure, Halt, InputError, Job, Outcome, Stop, Task};
pub use virtual_time::VirtualSeam;
