//! Measurements: the time of compute threads, latencies and counters, and their exact sums over
//! nodes.
//!
//! Pure data and arithmetic: no network, no actors, no policy, and no clock (callers pass `now`).
//! Only [`LoadReader`] reads files, those of the kernel. Data for the network is encoded with field
//! names and ignores unknown fields.

mod account;
mod benchmark;
mod counters;
mod histogram;
mod link_estimate;
mod load;
mod period;
mod report;
pub mod share;
mod speed;

use crate as meter;
use springtide_base::{checksum, id};

/// Whether a value is its default, which is then omitted from messages.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub use account::{Account, SharedAccount, ThreadState, Times, hundredths};
pub use benchmark::{
    BenchmarkAction, BenchmarkEvent, BenchmarkGoal, BenchmarkOffer, BenchmarkPlanner,
    BenchmarkReason, BenchmarkRun, BenchmarkSettings, BenchmarkSettingsError, BenchmarkSpec,
    BenchmarkWork, EncodedTask, Sampler, SamplerSettings,
};
pub use counters::{
    Amount, Counters, ResultCounts, ScopedBytes, StealCounts, StealScopes, TaskCounts, WorkCounts,
};
pub use histogram::{BUCKETS, DeltaError, HIGHEST_US, Histogram, LatencySummary, SparseDelta};
pub use link_estimate::{
    LinkEstimate, LinkEstimator, LinkReport, LinkSettings, LinkSummary, Weights,
};
pub use load::{
    CpuTicks, Load, LoadChange, LoadComponent, LoadReader, LoadSample, LoadThresholds, Quota,
    Throttled, USUAL_QUOTA_PERIOD,
};
pub use period::{Overheads, PeriodMeasure};
pub use report::{Deltas, Histograms, NodeReport, ReportTally, Statistics};
pub use speed::{
    InvalidSpeed, Ratio, Scale, ScaledSpeed, SpecId, SpeedMeasurement, SpeedMeter, SpeedPoint,
    SpeedReport, SpeedSettings, SpeedSource, UnitCounter,
};
