//! The measurements of a node in a statistics period, and its overheads for the adaptation policy.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.2. Overhead is the
//! fraction of time spent idle or communicating. Communication within the cluster and between
//! clusters is also counted separately. Pure.

use serde::{Deserialize, Serialize};

use super::{LinkReport, Load, SpeedReport, Times};

/// The measurements of a node in a statistics period. Encoded as a named map, to which fields may
/// be added. Empty where nothing is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeriodMeasure {
    /// The speed of the node; absent before a measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedReport>,
    /// The time of this period, summed over the threads.
    pub times: Times,
    /// The number of compute threads.
    pub threads: u32,
    /// The node's measurements of links between clusters. They replace those of earlier reports.
    pub links: LinkReport,
    /// The use of the node's processors in this period.
    pub load: Load,
}

/// Fractions of thread time without useful work, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overheads {
    /// All time except work: idle, waiting and benchmarks. So no time is missed.
    pub total: f64,
    /// Time spent waiting for the own cluster.
    pub intra: f64,
    /// Time spent waiting only for another cluster.
    pub inter: f64,
}

impl Overheads {
    /// The overheads of a stretch of time, summed over threads. Zero if there is no time.
    ///
    /// The time in which a master waits for its workers does not count: it computes nothing.
    pub fn of(times: &Times) -> Self {
        let Times { working_ns, idle_ns, wait_local_ns, wait_wide_ns, bench_ns, .. } = *times;
        let others = [idle_ns, wait_local_ns, wait_wide_ns, bench_ns];
        let all = others.into_iter().fold(working_ns, u64::saturating_add);
        if all == 0 {
            return Self::default();
        }
        // The sum saturates at 2^64, but no part exceeds it.
        let share = |ns: u64| (ns as f64 / all as f64).min(1.0);
        Self {
            total: share(all - working_ns),
            intra: share(wait_local_ns),
            inter: share(wait_wide_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_state_counts_where_it_should() {
        let all = Times {
            working_ns: 50,
            idle_ns: 20,
            wait_local_ns: 15,
            wait_wide_ns: 10,
            bench_ns: 5,
            serving_ns: 1000,
        };
        let overheads = |total, intra, inter| Overheads { total, intra, inter };
        assert_eq!(Overheads::of(&all), overheads(0.5, 0.15, 0.1));
        assert_eq!(Overheads::of(&Times::default()), overheads(0.0, 0.0, 0.0));
        let only = |times| Overheads::of(&times);
        assert_eq!(only(Times { working_ns: 1, ..Times::default() }), overheads(0.0, 0.0, 0.0));
        assert_eq!(only(Times { idle_ns: 1, ..Times::default() }), overheads(1.0, 0.0, 0.0));
        assert_eq!(only(Times { bench_ns: 1, ..Times::default() }), overheads(1.0, 0.0, 0.0));
        assert_eq!(only(Times { wait_wide_ns: 1, ..Times::default() }), overheads(1.0, 0.0, 1.0));
    }

    proptest! {
        #[test]
        fn shares_are_shares(ns in any::<[u64; 6]>()) {
            let [working_ns, idle_ns, wait_local_ns, wait_wide_ns, bench_ns, serving_ns] = ns;
            let times =
                Times { working_ns, idle_ns, wait_local_ns, wait_wide_ns, bench_ns, serving_ns };
            let overheads = Overheads::of(&times);
            for share in [overheads.total, overheads.intra, overheads.inter] {
                prop_assert!((0.0..=1.0).contains(&share), "{:?}", overheads);
            }
            if ns.iter().all(|&ns| ns < 1 << 60) {
                let parts = overheads.intra + overheads.inter;
                prop_assert!(parts <= overheads.total + 1e-9, "{:?}", overheads);
            }
        }
    }
}
