//! The use of this node's processors by other programs, from the kernel's counters.
//!
//! [`Probe`] reads a [`Sample`] of the counters. Two samples make a [`Load`].
//! [`Load::changed_from`] decides whether a speed measured under one load is valid under another.
//! Only the probe reads files, below a given root. Values that the system does not report are
//! absent, never an error; systems other than Linux report none.
//!
//! It does not know how loads are used.

mod kernel;
mod probe;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use kernel::{CpuTicks, Quota, Throttled};
pub use probe::LoadReader;

/// The kernel's counters at one time. They only grow; two samples make a [`Load`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadSample {
    /// The time of the sample.
    pub at: Instant,
    /// The number of processors that this process may use, and their times.
    pub cpus: Option<(u32, CpuTicks)>,
    /// Processor time of this process in clock ticks.
    pub own_ticks: Option<u64>,
    /// Clock ticks per second.
    pub ticks_per_second: u64,
    /// The total time in which threads waited for these processors, in nanoseconds.
    pub waited_ns: Option<u64>,
    /// Running and ready threads at this time, on the whole machine.
    pub runnable: Option<u32>,
    /// The time in which some thread waited for a processor, in microseconds.
    pub pressure_us: Option<u64>,
    /// The effects of the quotas of this process's control groups, summed over the groups.
    pub throttled: Option<Throttled>,
    /// The tightest of these quotas.
    pub quota: Option<Quota>,
}

impl LoadSample {
    /// A sample without any values.
    pub fn unknown(at: Instant) -> Self {
        Self {
            at,
            cpus: None,
            own_ticks: None,
            ticks_per_second: 100,
            waited_ns: None,
            runnable: None,
            pressure_us: None,
            throttled: None,
            quota: None,
        }
    }
}

/// The use of a node's processors over a stretch of time.
///
/// Shares are parts of all processors that the process may use, from 0 to 1. Values that the system
/// does not report are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Processor time used by other processes on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_cpu_share: Option<f64>,
    /// Processor time used by this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_cpu_share: Option<f64>,
    /// Processor time that the hypervisor gave to other virtual machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_share: Option<f64>,
    /// The part of the wanted processor time that the quota denied: denied / (denied + own).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_share: Option<f64>,
    /// The quota in processors, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_cpus: Option<f64>,
    /// Running and waiting threads per processor, including those of this process. May exceed 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runnable_per_cpu: Option<f64>,
    /// The share of time in which some thread waited for a processor, including those of this
    /// process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<f64>,
}

impl Load {
    /// The load between two samples of one machine. Decreasing counters, as of some hypervisors,
    /// count as unchanged.
    pub fn between(earlier: &LoadSample, later: &LoadSample) -> Self {
        let elapsed = later.at.saturating_duration_since(earlier.at);
        if elapsed.is_zero() {
            return Self::default();
        }
        let mut load =
            Self { quota_cpus: later.quota.map(|quota| quota.cpus()), ..Self::default() };
        let own = both(earlier.own_ticks, later.own_ticks, u64::saturating_sub);
        let own_seconds = own.map(|ticks| ticks as f64 / later.ticks_per_second.max(1) as f64);
        let mut running = None;
        let cpus = later.cpus.map(|(cpus, _)| f64::from(cpus.max(1)));
        if let (Some((before, a)), Some((after, b))) = (earlier.cpus, later.cpus)
            && before == after
        {
            let busy = b.busy.saturating_sub(a.busy) as f64;
            let steal = b.steal.saturating_sub(a.steal) as f64;
            let total = busy + steal + b.idle.saturating_sub(a.idle) as f64;
            if total > 0.0 {
                running = Some(busy / total);
                load.steal_share = share(steal / total);
                load.own_cpu_share = own.and_then(|own| share(own as f64 / total));
                load.foreign_cpu_share = own.and_then(|own| share((busy - own as f64) / total));
            }
        } else if let (Some(own), Some(cpus)) = (own_seconds, cpus) {
            load.own_cpu_share = share(own / (elapsed.as_secs_f64() * cpus));
        }
        let waited = both(earlier.waited_ns, later.waited_ns, u64::saturating_sub);
        load.runnable_per_cpu = match (running, waited, cpus) {
            // The mean number of running and waiting threads over the time.
            (Some(running), Some(waited), Some(cpus)) => {
                Some(running + waited as f64 / (elapsed.as_nanos() as f64 * cpus))
            }
            // Two samples of the whole machine, where there is nothing better.
            (_, None, Some(cpus)) => both(earlier.runnable, later.runnable, |later, earlier| {
                (f64::from(later) + f64::from(earlier)) / 2.0 / cpus
            }),
            _ => None,
        };
        let pressure = both(earlier.pressure_us, later.pressure_us, u64::saturating_sub);
        load.pressure = pressure.and_then(|us| share(us as f64 / elapsed.as_micros() as f64));
        if let (Some(a), Some(b), Some(own)) = (earlier.throttled, later.throttled, own_seconds) {
            let denied = b.microseconds.saturating_sub(a.microseconds) as f64 / 1e6;
            let wanted = denied + own;
            load.throttled_share = if wanted > 0.0 { share(denied / wanted) } else { Some(0.0) };
        }
        load
    }

    /// Whether it shows the use by others. Without that, changes of load are not detected.
    pub fn is_known(&self) -> bool {
        self.foreign_cpu_share.is_some()
            || self.pressure.is_some()
            || self.runnable_per_cpu.is_some()
    }

    /// Clamps values to their ranges, and drops NaN: for loads from the network.
    pub fn checked(&self) -> Self {
        let positive =
            |value: Option<f64>| value.filter(|value| value.is_finite() && *value >= 0.0);
        Self {
            foreign_cpu_share: self.foreign_cpu_share.and_then(share),
            own_cpu_share: self.own_cpu_share.and_then(share),
            steal_share: self.steal_share.and_then(share),
            throttled_share: self.throttled_share.and_then(share),
            quota_cpus: positive(self.quota_cpus),
            runnable_per_cpu: positive(self.runnable_per_cpu),
            pressure: self.pressure.and_then(share),
        }
    }

    /// The part of the processors that others leave to this process, at least [`LEFT_MIN`].
    fn left(&self) -> f64 {
        let taken = self.foreign_cpu_share.unwrap_or(0.0) + self.steal_share.unwrap_or(0.0);
        (1.0 - taken).max(LEFT_MIN)
    }

    /// The first difference from `other` that may invalidate a speed measured under it.
    ///
    /// Foreign time and steal are compared with the larger share that is left to this process. A
    /// foreign load that goes from 0.90 to 0.95 halves that share. Denied time and the quota are
    /// compared in the same way.
    ///
    /// Values that only one of the two has are not a difference. Foreign time, steal, throttling
    /// and the quota are always compared. Run queue and pressure include this process's own
    /// waiting. So they count only while its own use is about equal. The noisier run queue counts
    /// only without pressure.
    pub fn changed_from(&self, other: &Load, thresholds: &LoadThresholds) -> Option<LoadChange> {
        let change = |part, before: Option<f64>, after: Option<f64>, threshold: f64| {
            let (before, after) = (before?, after?);
            // Written so that a NaN is not a difference.
            ((after - before).abs() > threshold).then_some(LoadChange { part, before, after })
        };
        let t = thresholds;
        let left = self.left().max(other.left());
        let foreign = change(
            LoadComponent::Foreign,
            other.foreign_cpu_share,
            self.foreign_cpu_share,
            t.share * left,
        );
        let steal =
            || change(LoadComponent::Steal, other.steal_share, self.steal_share, t.steal * left);
        let throttled = || {
            let granted = |load: &Load| 1.0 - load.throttled_share.unwrap_or(0.0);
            let granted = granted(self).max(granted(other)).max(LEFT_MIN);
            change(
                LoadComponent::Throttled,
                other.throttled_share,
                self.throttled_share,
                t.throttled * granted,
            )
        };
        let quota = || {
            let largest = other.quota_cpus.unwrap_or(0.0).max(self.quota_cpus.unwrap_or(0.0));
            change(LoadComponent::Quota, other.quota_cpus, self.quota_cpus, largest * t.quota)
        };
        let own = change(LoadComponent::Foreign, other.own_cpu_share, self.own_cpu_share, t.share);
        let waiting = || match (own, self.pressure.and(other.pressure)) {
            (Some(_), _) => None,
            (None, Some(_)) => {
                change(LoadComponent::Pressure, other.pressure, self.pressure, t.pressure)
            }
            (None, None) => {
                let runnable = [other.runnable_per_cpu, self.runnable_per_cpu];
                let fewest = runnable.into_iter().flatten().fold(f64::INFINITY, f64::min);
                change(
                    LoadComponent::Runnable,
                    other.runnable_per_cpu,
                    self.runnable_per_cpu,
                    t.runnable * fewest.max(1.0),
                )
            }
        };
        foreign.or_else(steal).or_else(throttled).or_else(quota).or_else(waiting)
    }
}

/// The least share of the processors that others leave to this process. Clocks in ticks do not show
/// smaller ones.
const LEFT_MIN: f64 = 0.01;

/// The thresholds of differences between loads. The defaults change a speed by about the error of a
/// benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadThresholds {
    /// Difference of the foreign shares, as a part of the share that is left. Default: 0.1.
    pub share: f64,
    /// Difference of the stolen shares, as a part of the share that is left. Default: 0.05.
    pub steal: f64,
    /// Difference of the throttled shares, as a part of the share that is granted. Default: 0.05.
    pub throttled: f64,
    /// Difference of the quotas, as a part of the larger one. Default: 0.1.
    pub quota: f64,
    /// Difference of the pressures. Default: 0.25. Pressure rises fast with one thread more than
    /// processors.
    pub pressure: f64,
    /// Difference of the threads per processor, as a part of the smaller number, at least 1.
    /// Default: 0.5.
    pub runnable: f64,
}

impl Default for LoadThresholds {
    fn default() -> Self {
        Self { share: 0.1, steal: 0.05, throttled: 0.05, quota: 0.1, pressure: 0.25, runnable: 0.5 }
    }
}

/// The part of a load that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadComponent {
    /// Processor time of other processes.
    Foreign,
    /// Processor time of other virtual machines.
    Steal,
    /// Processor time denied by the quota.
    Throttled,
    /// The quota itself, in processors.
    Quota,
    /// Share of time with a waiting thread.
    Pressure,
    /// Number of threads per processor.
    Runnable,
}

/// A significant change of load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadChange {
    /// The part that changed.
    pub part: LoadComponent,
    /// The value before the change.
    pub before: f64,
    /// The value after the change.
    pub after: f64,
}

impl fmt::Display for LoadChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.before, self.after);
        let (name, share) = match self.part {
            LoadComponent::Foreign => ("the share of processor time that others use", true),
            LoadComponent::Steal => ("the share of processor time stolen by the hypervisor", true),
            LoadComponent::Throttled => ("the share of processor time denied by the quota", true),
            LoadComponent::Quota => ("the quota in processors", false),
            LoadComponent::Pressure => ("the share of time with a thread waiting", true),
            LoadComponent::Runnable => ("the number of threads a processor", false),
        };
        if share {
            write!(f, "{name} went from {:.0} % to {:.0} %", before * 100.0, after * 100.0)
        } else {
            write!(f, "{name} went from {before:.2} to {after:.2}")
        }
    }
}

fn both<T, U>(earlier: Option<T>, later: Option<T>, op: impl Fn(T, T) -> U) -> Option<U> {
    Some(op(later?, earlier?))
}

/// Clamps a share to 0 to 1; none if it is NaN.
fn share(value: f64) -> Option<f64> {
    (!value.is_nan()).then(|| value.clamp(0.0, 1.0))
}

/// The usual period of the kernel's quotas, where no other is known.
pub const USUAL_QUOTA_PERIOD: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
