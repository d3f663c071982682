//! The periodic reports of workers, and their sums for a cluster and a job.
//!
//! Counters and times are totals since the node joined the job, so lost, late or duplicate reports
//! do no harm. Histograms travel as deltas at longer intervals, over an ordered stream.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::account::Times;
use super::counters::Counters;
use super::histogram::{DeltaError, Histogram, LatencySummary, SparseDelta};
use super::is_default;
use crate::id::{ClusterId, Incarnation, NodeId};

macro_rules! histograms {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// All measured latencies, of a node or summed. A new one takes one line here.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Histograms {
            $($(#[$doc])* pub $field: Histogram,)*
        }

        /// The values recorded in each histogram since the previous delta.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Deltas {
            $($(#[$doc])* pub $field: SparseDelta,)*
        }

        impl Histograms {
            /// Takes the values recorded since the last call.
            pub fn take_deltas(&mut self) -> Deltas {
                Deltas { $($field: self.$field.take_delta(),)* }
            }

            /// Adds deltas to the histograms.
            ///
            /// # Errors
            /// As for [`Histogram::apply_delta`]. Deltas of the histograms before the failing one
            /// have been added.
            pub fn apply(&mut self, deltas: &Deltas) -> Result<(), DeltaError> {
                $(self.$field.apply_delta(&deltas.$field)?;)*
                Ok(())
            }

            /// The summaries of all histograms that are not empty.
            pub fn summaries(&self) -> BTreeMap<String, LatencySummary> {
                self.iter().filter_map(|(name, h)| Some((name.to_string(), h.summary()?))).collect()
            }

            /// The name and histogram of each latency, in the order of reports.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
                [$((stringify!($field), &self.$field),)*].into_iter()
            }
        }

        impl Deltas {
            /// Whether no values were recorded in any.
            pub fn is_empty(&self) -> bool {
                $(self.$field.is_empty())&&*
            }

            /// The summaries of all deltas that are not empty.
            ///
            /// # Errors
            /// As for [`Histograms::apply`].
            pub fn summaries(&self) -> Result<BTreeMap<String, LatencySummary>, DeltaError> {
                // Histograms are large, and most periods have no deltas.
                if self.is_empty() {
                    return Ok(BTreeMap::new());
                }
                let mut histograms = Histograms::default();
                histograms.apply(self)?;
                Ok(histograms.summaries())
            }

            /// Checks that each delta is well-formed.
            ///
            /// # Errors
            /// The first error found.
            pub fn check(&self) -> Result<(), DeltaError> {
                $(self.$field.check()?;)*
                Ok(())
            }

            /// Adds other deltas to these.
            ///
            /// # Errors
            /// As for [`SparseDelta::merge`]; nothing is added.
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
    /// From a steal request within the cluster to its answer.
    steal_local,
    /// From a steal request to another cluster to its answer.
    steal_wide,
    /// Running time of stolen tasks.
    task,
    /// Message round trips between nodes.
    round_trip,
    /// From a result's arrival to its use: the delay of buried joins.
    join_delay,
    /// From the arrival of work to its start on a parked thread.
    wake,
}

/// The statistics of a node, a cluster or a job. They add up exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    /// The number of compute threads.
    pub threads: u32,
    /// Counters since the start.
    pub counters: Counters,
    /// Thread time since the start.
    pub times: Times,
    /// Latencies recorded since the previous report; empty in most, for they are sent less often.
    #[serde(skip_serializing_if = "is_default")]
    pub latencies: Deltas,
}

impl Statistics {
    /// Adds the statistics of another part.
    ///
    /// # Errors
    /// Its latencies are malformed or would overflow. Nothing is added.
    pub fn merge(&mut self, other: &Statistics) -> Result<(), DeltaError> {
        self.latencies.merge(&other.latencies)?;
        self.threads = self.threads.saturating_add(other.threads);
        self.counters.merge(&other.counters);
        self.times += other.times;
        Ok(())
    }
}

/// The report of a worker to its cluster's coordinator in each period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node that reports.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The cluster of the node.
    pub cluster: ClusterId,
    /// The number of the report within this incarnation, from 1.
    pub seq: u64,
    /// The statistics of the node.
    pub statistics: Statistics,
}

/// Sums the latest reports of many sources: a cluster's nodes, or a job's clusters.
///
/// The newest report of each source counts. A source with a new generation (a node's incarnation, a
/// cluster coordinator's epoch) restarts from zero. Its earlier counts remain in the sum.
#[derive(Clone, Debug)]
pub struct ReportTally<K> {
    sources: BTreeMap<K, Source>,
    /// Counters and times of earlier generations and removed sources.
    ended: Statistics,
    /// Latencies received since the last [`Tally::take_latencies`].
    latencies: Deltas,
}

#[derive(Clone, Debug)]
struct Source {
    generation: u64,
    seq: u64,
    /// Its latencies are in the tally's.
    latest: Statistics,
}

impl<K> Default for ReportTally<K> {
    fn default() -> Self {
        Self {
            sources: BTreeMap::new(),
            ended: Statistics::default(),
            latencies: Deltas::default(),
        }
    }
}

impl<K: Ord> ReportTally<K> {
    /// An empty tally without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a report. Returns false, without effect, if it is not newer than the source's latest.
    ///
    /// # Errors
    /// Its latencies are malformed. It has no effect, and later reports are still accepted.
    pub fn add(
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

    /// Removes a source that left or died. Its counts remain in the sum, its threads do not.
    pub fn remove(&mut self, key: &K) {
        if let Some(old) = self.sources.remove(key) {
            self.end(&old.latest);
        }
    }

    /// The present sources with their latest statistics, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Statistics)> {
        self.sources.iter().map(|(key, source)| (key, &source.latest))
    }

    /// The latest statistics of a source.
    pub fn latest(&self, key: &K) -> Option<&Statistics> {
        self.sources.get(key).map(|source| &source.latest)
    }

    /// The sum of all sources, including earlier generations, without latencies.
    pub fn total(&self) -> Statistics {
        let mut sum = self.ended.clone();
        for source in self.sources.values() {
            sum.threads = sum.threads.saturating_add(source.latest.threads);
            sum.counters.merge(&source.latest.counters);
            sum.times += source.latest.times;
        }
        sum
    }

    /// Takes the latencies received since the last call.
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

    /// A report with `work` executed tasks and the latencies `fresh`.
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
        let mut tally = ReportTally::new();
        assert_eq!(tally.add("a", 1, 2, report(20, &[5])), Ok(true));
        assert_eq!(tally.add("a", 1, 1, report(10, &[6])), Ok(false));
        assert_eq!(tally.add("a", 1, 2, report(20, &[5])), Ok(false));
        assert_eq!(tally.add("b", 1, 1, report(7, &[])), Ok(true));
        assert_eq!(tally.total().counters.tasks.executed, 27);
        assert_eq!(tally.total().threads, 4);
        assert_eq!(tally.take_latencies(), report(0, &[5]).latencies);
        assert!(tally.take_latencies().is_empty());
    }

    #[test]
    fn counts_of_earlier_generations_remain_in_the_sum() {
        let mut tally = ReportTally::new();
        tally.add("a", 1, 9, report(20, &[])).unwrap();
        tally.add("a", 2, 1, report(3, &[])).unwrap();
        assert_eq!(tally.add("a", 1, 10, report(21, &[])), Ok(false));
        assert_eq!(tally.total().counters.tasks.executed, 23);
        tally.remove(&"a");
        assert_eq!(tally.total().counters.tasks.executed, 23);
        assert_eq!(tally.total().times.working_ns, 23_000);
        assert_eq!(tally.total().threads, 0);
        assert_eq!(tally.iter().count(), 0);
    }

    #[test]
    fn a_malformed_report_counts_nothing() {
        let mut tally = ReportTally::new();
        let mut bad = report(20, &[5]);
        bad.latencies.wake.counts = vec![(u16::MAX, 1)];
        assert_eq!(tally.add("a", 1, 1, bad), Err(DeltaError::Bucket { bucket: u16::MAX }));
        assert_eq!(tally.total(), Statistics::default());
        assert!(tally.take_latencies().is_empty());
        assert_eq!(tally.add("a", 1, 1, report(20, &[5])), Ok(true));
    }

    proptest! {
        /// In any order of reports, the sum over clusters equals the flat sum over nodes.
        #[test]
        fn sums_up_the_tree_are_exact(
            nodes in prop::collection::vec(
                (0u8..3, 0u64..1000, prop::collection::vec(0u64..5000, 0..5)),
                0..12,
            ),
        ) {
            let mut flat = Statistics::default();
            let mut clusters: BTreeMap<u8, ReportTally<usize>> = BTreeMap::new();
            for (node, (cluster, work, fresh)) in nodes.iter().enumerate().rev() {
                flat.merge(&report(*work, fresh)).unwrap();
                let tally = clusters.entry(*cluster).or_default();
                tally.add(node, 1, 1, report(*work, fresh)).unwrap();
            }
            let mut job = ReportTally::new();
            for (cluster, mut tally) in clusters {
                let mut sum = tally.total();
                sum.latencies = tally.take_latencies();
                job.add(cluster, 1, 1, sum).unwrap();
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
        fn reports_survive_the_wire(
            work in any::<u64>(),
            fresh in prop::collection::vec(any::<u64>(), 0..9),
        ) {
            let report = NodeReport {
                node: "ams-1".into(), incarnation: Incarnation(7), cluster: "ams".into(), seq: 3,
                statistics: Statistics {
                    counters: Counters::default(),
                    ..report(work % 1000, &fresh)
                },
            };
            let bytes = rmp_serde::to_vec_named(&report).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<NodeReport>(&bytes).unwrap(), report);
        }
    }
}
