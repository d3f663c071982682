//! What a node tells of a statistics period, and what part of it the node did nothing useful in, as the adaptation
//! policy wants it.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.2: overhead is the fraction of time spent
//! idle or communicating; apart from the total, that of communication inside the cluster and between clusters. Pure.

use serde::{Deserialize, Serialize};

use super::{LinkReport, Load, SpeedReport, Times};

/// What was measured on a node in a statistics period. As a named map; fields may be added. All empty where nothing is
/// measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeriodMeasure {
    /// How fast the node is; absent before anything was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedReport>,
    /// Time of this period, summed over the threads.
    pub times: Times,
    /// Compute threads.
    pub threads: u32,
    /// What this node has seen of links between clusters; replaces what it told before.
    pub links: LinkReport,
    /// How others used the node's processors in this period.
    pub load: Load,
}

/// Fractions of thread time without useful work, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overheads {
    /// All time but work: idle, waiting, benchmarks. What is not work is overhead, so that no time can be forgotten.
    pub total: f64,
    /// Waiting for the own cluster.
    pub intra: f64,
    /// Waiting only for another cluster.
    pub inter: f64,
}

impl Overheads {
    /// The fractions of a stretch of time, summed over threads. Absent time has no overhead.
    pub fn of(times: &Times) -> Self {
        let all = times.total_ns();
        if all == 0 {
            return Self::default();
        }
        // The sum saturates where its parts together are past 2^64: no part is above it.
        let share = |ns: u64| (ns as f64 / all as f64).min(1.0);
        Self {
            total: share(all - times.working_ns.min(all)),
            intra: share(times.wait_local_ns),
            inter: share(times.wait_wide_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_state_counts_where_it_should() {
        let all =
            Times { working_ns: 50, idle_ns: 20, wait_local_ns: 15, wait_wide_ns: 10, bench_ns: 5 };
        let told = |total, intra, inter| Overheads { total, intra, inter };
        assert_eq!(Overheads::of(&all), told(0.5, 0.15, 0.1));
        assert_eq!(Overheads::of(&Times::default()), told(0.0, 0.0, 0.0));
        let only = |times| Overheads::of(&times);
        assert_eq!(only(Times { working_ns: 1, ..Times::default() }), told(0.0, 0.0, 0.0));
        assert_eq!(only(Times { idle_ns: 1, ..Times::default() }), told(1.0, 0.0, 0.0));
        assert_eq!(only(Times { bench_ns: 1, ..Times::default() }), told(1.0, 0.0, 0.0));
        assert_eq!(only(Times { wait_wide_ns: 1, ..Times::default() }), told(1.0, 0.0, 1.0));
    }

    proptest! {
        #[test]
        fn shares_are_shares(ns in any::<[u64; 5]>()) {
            let [working_ns, idle_ns, wait_local_ns, wait_wide_ns, bench_ns] = ns;
            let times = Times { working_ns, idle_ns, wait_local_ns, wait_wide_ns, bench_ns };
            let told = Overheads::of(&times);
            for share in [told.total, told.intra, told.inter] {
                prop_assert!((0.0..=1.0).contains(&share), "{:?}", told);
            }
            if ns.iter().all(|&ns| ns < 1 << 60) {
                prop_assert!(told.intra + told.inter <= told.total + 1e-9, "{:?}", told);
            }
        }
    }
}
