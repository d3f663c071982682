//! What is measured: where each compute thread's time goes, latencies, counts; and how they add up exactly over nodes.
//!
//! Pure data and arithmetic: no network, no actors, no policy, no clock of its own (callers hand `now` in); only [`Probe`]
//! reads files, the kernel's. What crosses the wire here is written with field names and tolerates fields it does not know.

mod account;
mod benchmark;
mod counters;
mod histogram;
mod link_estimate;
mod load;
mod period;
mod report;
mod speed;

use crate as meter;
use springtide_base::{checksum, id};

/// What has its default value need not cross the wire.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub use account::{Account, SharedAccount, ThreadState, Times, hundredths};
pub use benchmark::{
    BenchmarkAction, BenchmarkEvent, BenchmarkGoal, BenchmarkReason, BenchmarkRun,
    BenchmarkSettings, BenchmarkSettingsError, BenchmarkSpec, BenchmarkWork, EncodedTask, Offer,
    Planner, Sampler, SamplerSettings,
};
pub use counters::{
    Amount, Counters, ResultCounts, ScopedBytes, StealCounts, StealScopes, TaskCounts, WorkCounts,
};
pub use histogram::{BUCKETS, DeltaError, HIGHEST_US, Histogram, LatencySummary, SparseDelta};
pub use link_estimate::{
    LinkEstimate, LinkEstimator, LinkReport, LinkSettings, LinkSummary, Weights,
};
pub use load::{
    CpuTicks, Load, LoadChange, LoadPart, LoadThresholds, Probe, Quota, Sample, Throttled,
    USUAL_QUOTA_PERIOD,
};
pub use period::{Overheads, PeriodMeasure};
pub use report::{Deltas, Histograms, NodeReport, Statistics, Tally};
pub use speed::{
    Comparable, Mark, Measurement, Nonsense, Ratio, Scale, SpecId, SpeedMeter, SpeedReport,
    SpeedSettings, SpeedSource, UnitCounter,
};
