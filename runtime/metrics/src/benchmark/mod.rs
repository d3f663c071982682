//! Benchmarks of a node: their contents, their times and lengths, and the resulting speeds.
//!
//! [`BenchmarkSpec`] defines the work: the job's own small problem or a sample of its tasks, the
//! same on all nodes. [`Sampler`] draws that sample, [`Planner`] decides when to run, and
//! [`BenchmarkRun`] sums the repeats of one run. All are without I/O and without a clock: the owner
//! of the compute threads runs the work and reports events.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.2, with two parts of its
//! future work: a random subset of the task graph as the benchmark, and no benchmark under an
//! unchanged load.

mod planner;
mod run;
mod spec;

pub use planner::{
    BenchmarkAction, BenchmarkEvent, BenchmarkPlanner, BenchmarkReason, BenchmarkSettings,
    BenchmarkSettingsError,
};
pub use run::{BenchmarkGoal, BenchmarkRun};
pub use spec::{
    BenchmarkOffer, BenchmarkSpec, BenchmarkWork, EncodedTask, Sampler, SamplerSettings,
};
