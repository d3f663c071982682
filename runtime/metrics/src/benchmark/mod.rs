//! Benchmarks of a node: what is run, when, for how long, and what speed comes out.
//!
//! [`BenchmarkSpec`] says what is run: the job's own small problem or a sample of its tasks, the same on all nodes;
//! [`Sampler`] draws that sample; [`Planner`] says when; [`BenchmarkRun`] adds up the repeats of one run. All without I/O and
//! without a clock: whoever has compute threads runs the work and tells what happened.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.2, with two things it leaves as future work: a random
//! subset of the task graph as the benchmark, and no benchmark while the load is what it was.

mod planner;
mod run;
mod spec;

pub use planner::{
    BenchmarkAction, BenchmarkEvent, BenchmarkReason, BenchmarkSettings, BenchmarkSettingsError,
    Planner,
};
pub use run::{BenchmarkGoal, BenchmarkRun};
pub use spec::{BenchmarkSpec, BenchmarkWork, EncodedTask, Offer, Sampler, SamplerSettings};
