//! What a worker pushes each period, and how reports add up to a cluster's and a job's.
//!
//! Counters and times travel as totals since the node joined the job: a report that is lost, late or doubled does no harm.
//! Histograms travel as deltas on a slower cadence, over an ordered stream.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::account::Times;
use super::counters::Counters;
use super::histogram::{DeltaError, Histogram, LatencySummary, SparseDelta};
use super::is_default;
use crate::id::{ClusterId, Incarnation, NodeId};

macro_rules! histograms {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Every latency that is measured, on a node or added up. A new one is one line here.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Histograms {
            $($(#[$doc])* pub $field: Histogram,)*
        }

        /// What was recorded in each since the last time.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Deltas {
            $($(#[$doc])* pub $field: SparseDelta,)*
        }

        impl Histograms {
            /// What was recorded since the last call.
            pub fn take_deltas(&mut self) -> Deltas {
                Deltas { $($field: self.$field.take_delta(),)* }
            }

            /// Adds deltas.
            ///
            /// # Errors
            /// As [`Histogram::apply_delta`]. Deltas of the histograms before the failing one have been added.
            pub fn apply(&mut self, deltas: &Deltas) -> Result<(), DeltaError> {
                $(self.$field.apply_delta(&deltas.$field)?;)*
                Ok(())
            }

            /// Those that are not empty, in a few numbers each.
            pub fn summaries(&self) -> BTreeMap<String, LatencySummary> {
                self.iter().filter_map(|(name, h)| Some((name.to_string(), h.summary()?))).collect()
            }

            /// Name and histogram of each, in the order of reports.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
                [$((stringify!($field), &self.$field),)*].into_iter()
            }
        }

        impl Deltas {
            /// Whether nothing was recorded in any.
            pub fn is_empty(&self) -> bool {
                $(self.$field.is_empty())&&*
            }

            /// Those that are not empty, in a few numbers each.
            ///
            /// # Errors
            /// As of [`Histograms::apply`].
            pub fn summaries(&self) -> Result<BTreeMap<String, LatencySummary>, DeltaError> {
                // Histograms are large, and in most periods nothing is told.
                if self.is_empty() {
                    return Ok(BTreeMap::new());
                }
                let mut histograms = Histograms::default();
                histograms.apply(self)?;
                Ok(histograms.summaries())
            }

            /// Whether every one is well-formed.
            ///
            /// # Errors
            /// The first thing wrong.
            pub fn check(&self) -> Result<(), DeltaError> {
                $(self.$field.check()?;)*
                Ok(())
            }

            /// Adds other deltas.
            ///
            /// # Errors
            /// As [`SparseDelta::merge`]; nothing is added.
            pub fn merge(&mut self, other: &Deltas) -> Result<(), DeltaError> {
                let mut sum = self.clone();
                $(sum.$field.merge(&other.$field)?;)*
                *self = sum;
                Ok(())
            }
        }
    };
}

histograms! {
    /// From a steal request inside the cluster to its answer.
    steal_local,
    /// From a steal request to another cluster to its answer.
    steal_wide,
    /// Running time of tasks taken from elsewhere.
    task,
    /// Message round trips.
    round_trip,
    /// From a result's arrival to its use: the delay by buried joins.
    join_delay,
    /// From work being there to a parked thread running it.
    wake,
}

/// A part of the grid in numbers: a node, a cluster or a job. Adds up exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    /// Compute threads behind these numbers.
    pub threads: u32,
    /// Counted since the start.
    pub counters: Counters,
    /// Thread time since the start.
    pub times: Times,
    /// Latencies recorded since the report before; empty in most reports, for they are sent more rarely.
    #[serde(skip_serializing_if = "is_default")]
    pub latencies: Deltas,
}

impl Statistics {
    /// Adds another part's.
    ///
    /// # Errors
    /// Its latencies are malformed or would overflow: nothing was added.
    pub fn merge(&mut self, other: &Statistics) -> Result<(), DeltaError> {
        self.latencies.merge(&other.latencies)?;
        self.threads = self.threads.saturating_add(other.threads);
        self.counters.merge(&other.counters);
        self.times += other.times;
        Ok(())
    }
}

/// What a worker pushes to its cluster's coordinator each period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Which node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Counts the reports of this life, from 1.
    pub seq: u64,
    /// The numbers.
    pub statistics: Statistics,
}

/// Adds up the latest reports of many sources (a cluster's nodes, a job's clusters).
///
/// Of each source the newest report counts. A source that came back as a new generation (a node's incarnation, a cluster
/// coordinator's epoch) starts from zero again: what its earlier lives did is kept and stays in the sum.
#[derive(Clone, Debug)]
pub struct Tally<K> {
    sources: BTreeMap<K, Source>,
    /// Counters and times of lives that ended.
    ended: Statistics,
    /// Latencies that came since the last [`Tally::take_latencies`].
    latencies: Deltas,
}

#[derive(Clone, Debug)]
struct Source {
    generation: u64,
    seq: u64,
    /// Its latencies have been moved to the tally's.
    latest: Statistics,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self {
            sources: BTreeMap::new(),
            ended: Statistics::default(),
            latencies: Deltas::default(),
        }
    }
}

impl<K: Ord> Tally<K> {
    /// An empty tally.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a report in. Returns false for one that is not newer than what is known of its source; nothing of it counts.
    ///
    /// # Errors
    /// Its latencies are malformed: nothing of it counts, and a later report can still come.
    pub fn put(
        &mut self,
        key: K,
        generation: u64,
        seq: u64,
        mut report: Statistics,
    ) -> Result<bool, DeltaError> {
        let known = self.sources.get(&key);
        if known.is_some_and(|known| (known.generation, known.seq) >= (generation, seq)) {
            return Ok(false);
        }
        self.latencies.merge(&report.latencies)?;
        report.latencies = Deltas::default();
        let old = self.sources.insert(key, Source { generation, seq, latest: report });
        if let Some(old) = old.filter(|old| old.generation < generation) {
            self.end(&old.latest);
        }
        Ok(true)
    }

    /// A source left or died: its work stays in the sum, its threads do not.
    pub fn remove(&mut self, key: &K) {
        if let Some(old) = self.sources.remove(key) {
            self.end(&old.latest);
        }
    }

    /// The sources that are there, with their latest numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Statistics)> {
        self.sources.iter().map(|(key, source)| (key, &source.latest))
    }

    /// A source's latest numbers.
    pub fn latest(&self, key: &K) -> Option<&Statistics> {
        self.sources.get(key).map(|source| &source.latest)
    }

    /// The sum of all, lives that ended included, without latencies.
    pub fn total(&self) -> Statistics {
        let mut sum = self.ended.clone();
        for source in self.sources.values() {
            sum.threads = sum.threads.saturating_add(source.latest.threads);
            sum.counters.merge(&source.latest.counters);
            sum.times += source.latest.times;
        }
        sum
    }

    /// The latencies that came since the last call.
    pub fn take_latencies(&mut self) -> Deltas {
        std::mem::take(&mut self.latencies)
    }

    fn end(&mut self, last: &Statistics) {
        self.ended.counters.merge(&last.counters);
        self.ended.times += last.times;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// What a node that has done `work` things reports; its latencies are those of `fresh`.
    fn report(work: u64, fresh: &[u64]) -> Statistics {
        let mut histograms = Histograms::default();
        fresh.iter().for_each(|&us| histograms.steal_wide.record(Duration::from_micros(us)));
        let mut statistics =
            Statistics { threads: 2, latencies: histograms.take_deltas(), ..Default::default() };
        statistics.counters.tasks.executed = work;
        statistics.times.working_ns = 1000 * work;
        statistics
    }

    #[test]
    fn the_newest_report_of_a_source_counts_once() {
        let mut tally = Tally::new();
        assert_eq!(tally.put("a", 1, 2, report(20, &[5])), Ok(true));
        assert_eq!(tally.put("a", 1, 1, report(10, &[6])), Ok(false));
        assert_eq!(tally.put("a", 1, 2, report(20, &[5])), Ok(false));
        assert_eq!(tally.put("b", 1, 1, report(7, &[])), Ok(true));
        assert_eq!(tally.total().counters.tasks.executed, 27);
        assert_eq!(tally.total().threads, 4);
        assert_eq!(tally.take_latencies(), report(0, &[5]).latencies);
        assert!(tally.take_latencies().is_empty());
    }

    #[test]
    fn what_ended_lives_did_stays_in_the_sum() {
        let mut tally = Tally::new();
        tally.put("a", 1, 9, report(20, &[])).unwrap();
        tally.put("a", 2, 1, report(3, &[])).unwrap();
        assert_eq!(tally.put("a", 1, 10, report(21, &[])), Ok(false));
        assert_eq!(tally.total().counters.tasks.executed, 23);
        tally.remove(&"a");
        assert_eq!(tally.total().counters.tasks.executed, 23);
        assert_eq!(tally.total().times.working_ns, 23_000);
        assert_eq!(tally.total().threads, 0);
        assert_eq!(tally.iter().count(), 0);
    }

    #[test]
    fn a_malformed_report_counts_nothing() {
        let mut tally = Tally::new();
        let mut bad = report(20, &[5]);
        bad.latencies.wake.counts = vec![(u16::MAX, 1)];
        assert_eq!(tally.put("a", 1, 1, bad), Err(DeltaError::Bucket { bucket: u16::MAX }));
        assert_eq!(tally.total(), Statistics::default());
        assert!(tally.take_latencies().is_empty());
        assert_eq!(tally.put("a", 1, 1, report(20, &[5])), Ok(true));
    }

    proptest! {
        /// Nodes in clusters in a job: whatever order reports come in, the sum up the tree is the flat sum.
        #[test]
        fn sums_up_the_tree_are_exact(
            nodes in prop::collection::vec((0u8..3, 0u64..1000, prop::collection::vec(0u64..5000, 0..5)), 0..12),
        ) {
            let mut flat = Statistics::default();
            let mut clusters: BTreeMap<u8, Tally<usize>> = BTreeMap::new();
            for (node, (cluster, work, fresh)) in nodes.iter().enumerate().rev() {
                flat.merge(&report(*work, fresh)).unwrap();
                clusters.entry(*cluster).or_default().put(node, 1, 1, report(*work, fresh)).unwrap();
            }
            let mut job = Tally::new();
            for (cluster, mut tally) in clusters {
                let mut sum = tally.total();
                sum.latencies = tally.take_latencies();
                job.put(cluster, 1, 1, sum).unwrap();
            }
            let mut total = job.total();
            total.latencies = job.take_latencies();
            prop_assert_eq!(&total, &flat);
            let mut histograms = Histograms::default();
            histograms.apply(&total.latencies).unwrap();
            let values: u64 = nodes.iter().map(|node| node.2.len() as u64).sum();
            prop_assert_eq!(histograms.steal_wide.count(), values);
        }

        #[test]
        fn reports_survive_the_wire(work in any::<u64>(), fresh in prop::collection::vec(any::<u64>(), 0..9)) {
            let report = NodeReport {
                node: "ams-1".into(), incarnation: Incarnation(7), cluster: "ams".into(), seq: 3,
                statistics: Statistics { counters: Counters::default(), ..report(work % 1000, &fresh) },
            };
            let bytes = rmp_serde::to_vec_named(&report).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<NodeReport>(&bytes).unwrap(), report);
        }
    }
}
