//! Springtide's runtime: the parts that every node uses. It knows no roles; see `ARCHITECTURE.md`.
//!
//! The crate is a facade. With the feature `fork-join` alone it is the thread pool [`forkjoin`],
//! without network, actors and certificates. The feature `grid`, a default, adds tasks that run on
//! the nodes of a grid.
//!
//! A task is data with a `run`, and a job creates tasks. This example runs one on two threads of
//! this process. On a grid the same code has the same outcome:
//!
//! ```
//! use std::sync::Arc;
//!
//! use serde::{Deserialize, Serialize};
//! use springtide_runtime::prelude::*;
//! use springtide_runtime::work::{PoolConfig, encode_job, solo};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Fib(u32);
//!
//! impl Task for Fib {
//!     type Output = u64;
//!     const NAME: &'static str = "fib.task";
//!     fn run(self, cx: &Context) -> Result<u64, Stop> {
//!         if self.0 < 2 {
//!             return Ok(self.0.into());
//!         }
//!         let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2))?;
//!         Ok(a + b)
//!     }
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Number {
//!     n: u32,
//! }
//!
//! impl Job for Number {
//!     const NAME: &'static str = "number";
//!     const ABOUT: &'static str = "A Fibonacci number";
//!     fn register(registry: &mut Registry) {
//!         registry.task::<Fib>();
//!     }
//!     fn run(self, cx: &Context) -> Result<Outcome, Stop> {
//!         let fib = cx.call(Fib(self.n))?;
//!         Ok(Outcome { checksum: fib, result: fib.into() })
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut registry = Registry::new();
//! registry.job::<Number>();
//! let body = encode_job(Number { n: 20 })?;
//! let config = PoolConfig { threads: 2, ..PoolConfig::default() };
//! let ended = solo::run(Arc::new(registry), "number", body, &config, |_| {})?;
//! assert_eq!(ended.outcome?.result, 6765);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "fork-join")]
pub use springtide_forkjoin as forkjoin;

#[cfg(feature = "grid")]
pub use grid::*;

/// The items that a program of tasks needs.
#[cfg(feature = "grid")]
pub mod prelude {
    pub use springtide_work::share::{Merged, ObjectNeed, Version, Versioned};
    pub use springtide_work::work::{
        Checkpoint, Context, Failure, InputError, Job, Outcome, ParallelLoops, Registry, Spawned,
        Stop, Task,
    };
}

#[cfg(feature = "grid")]
mod grid {
    pub use springtide_base::{checksum, id, processors};
    pub use springtide_config as config;
    pub use springtide_metrics as meter;
    pub use springtide_work::{
        command, event, malleable, mw, pilot, runner, share, spmd, topology, work,
    };

    // What the crates of this workspace share among themselves. It may change at any time.
    #[doc(hidden)]
    pub use springtide_base::{
        event_kinds, files, fuzz, guard, memory, private, random, records, state_table,
    };
    #[doc(hidden)]
    pub use springtide_net::{membership, net, wire};
    #[doc(hidden)]
    pub use springtide_remote::{self as remote, remote_message};
}
