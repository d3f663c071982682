#![doc = include_str!("../README.md")]

mod core;
mod loops;
mod pool;
mod seam;

pub use crate::core::pool::Counts;
pub use crate::core::scatter::{collect, distribute};
pub use loops::{ParallelLoops, Sequential};
pub use pool::{Context, Pool};
pub use seam::{RealSeam, Seam};

/// What a layer above the scheduler is built from: see `src/core/layer.rs`. For the crates of this
/// workspace; it may change at any time.
#[doc(hidden)]
pub mod layer {
    pub use crate::core::cpu_clock::{ThreadClock, process_cpu, thread_cpu};
    #[cfg(feature = "fibers")]
    pub use crate::core::fiber::{Fiber, Suspension, suspend};
    pub use crate::core::frame::{Place, TaskFrame};
    pub use crate::core::layer::{Activity, ComputeThread, Fork, TaskContext};
    pub use crate::core::leases::{LeaseCounts, LeaseKey, LeaseTable};
    pub use crate::core::pool::{
        Counter, Counts, Injected, Offer, PoolCore, PoolLimits, ThreadState,
    };
    pub use crate::core::scope::Scope;
    pub use crate::core::sleep::WANTED;
    pub use crate::core::slot::{HeldSlot, SlotHeader};
    pub use crate::core::thread::{Awaited, SLEEP_MAX, ThreadCore, run_thread, run_top};
    pub use crate::loops::halves;
}
