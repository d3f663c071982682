//! Estimates of bandwidth and latency between clusters, from transfers of running jobs.
//!
//! A node records the transfers that it receives from other clusters, and the round trips measured
//! by its transport. Its reports are small and add up exactly. The sum over nodes, in any order and
//! over any tree, is the report of one estimator that sees all transfers. The estimate is a median
//! of recent values, so single outliers change little.
//!
//! - Small transfers measure latency, not bandwidth. Those below a floor are not counted.
//! - A transfer of few round trips is limited by latency. It gives a lower bound of the bandwidth.
//! - Overlapping transfers on one link share it and count as one. So the estimate is the bandwidth
//!   that the link gives a node.
//!
//! Source: Self-adaptive applications on the grid (PPoPP 2007), section 3.3 (bandwidth between
//! clusters by measuring data transfer times). This module does not know how data is transferred,
//! and has no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::id::ClusterId;

/// Parameters of the estimation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Bytes below which a transfer, or an overlapping group of transfers, is not counted. Default:
    /// 64 KiB.
    pub floor_bytes: u64,
    /// Round trips below which a transfer gives only a bound. Default: 4, so latency is at most an
    /// eighth of the time.
    pub round_trips: u32,
    /// The time after which a value has half its weight. Default: 30 s.
    pub half_life: Duration,
    /// The number of newest values kept per link. Default: 64.
    pub values_per_link: usize,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            floor_bytes: 64 << 10,
            round_trips: 4,
            half_life: Duration::from_secs(30),
            values_per_link: 64,
        }
    }
}

/// The weight of a new value. Weights are integers, so sums are exact.
const FRESH_WEIGHT: f64 = 1024.0;
/// The number of half-lives after which a weight rounds to zero.
const FADED_HALF_LIVES: u32 = 12;
/// Buckets per octave. Values within 9 % share a bucket.
const BUCKETS_PER_OCTAVE: f64 = 8.0;
/// The bucket of the largest possible value, 2^63.
const LAST_BUCKET: u16 = 63 * 8;
/// A burst is complete when no transfer has ended for this time.
const BURST_GAP: Duration = Duration::from_secs(1);
/// A longer burst with enough bytes is a value of its own. Otherwise a link that is never idle
/// would give none.
const LONG_BURST: Duration = Duration::from_secs(5);

fn bucket(value: f64) -> u16 {
    // Clamped first, so the cast is exact. NaN becomes the least value.
    let steps = (value.max(1.0).log2() * BUCKETS_PER_OCTAVE).round();
    steps.min(f64::from(LAST_BUCKET)) as u16
}

fn value(bucket: u16) -> f64 {
    (f64::from(bucket) / BUCKETS_PER_OCTAVE).exp2()
}

/// Weights of values, by ascending buckets of an eighth of an octave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weights(Vec<(u16, u32)>);

impl Weights {
    fn from_values(values: &VecDeque<(Instant, u16)>, now: Instant, half_life: Duration) -> Self {
        let mut sums: BTreeMap<u16, u32> = BTreeMap::new();
        for &(at, bucket) in values {
            let age = now.saturating_duration_since(at).as_secs_f64();
            let weight =
                (FRESH_WEIGHT * (-age / half_life.as_secs_f64().max(1e-3)).exp2()).round() as u32;
            if weight > 0 {
                let sum = sums.entry(bucket).or_default();
                *sum = sum.saturating_add(weight);
            }
        }
        Self(sums.into_iter().collect())
    }

    fn merge(&mut self, other: &Weights) {
        let mut sums: BTreeMap<u16, u32> = BTreeMap::new();
        self.add_to(&mut sums);
        other.add_to(&mut sums);
        self.0 = sums.into_iter().collect();
    }

    fn add_to(&self, sums: &mut BTreeMap<u16, u32>) {
        // Data from the network may be unordered or out of range.
        for &(bucket, weight) in
            self.0.iter().filter(|(bucket, w)| *bucket <= LAST_BUCKET && *w > 0)
        {
            let sum = sums.entry(bucket).or_default();
            *sum = sum.saturating_add(weight);
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|&(_, weight)| u64::from(weight)).sum()
    }

    /// The value below which this share of the weight lies.
    fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = self.total() as f64 * share;
        let mut sum = 0.0;
        let mut reached = self.0.iter().filter(|(_, weight)| {
            sum += f64::from(*weight);
            sum >= wanted
        });
        reached.next().map(|&(bucket, _)| value(bucket))
    }
}

/// Measurements of the link from one cluster to another, in a form that adds up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSummary {
    /// The cluster that sends the bytes.
    pub from: ClusterId,
    /// The cluster that receives the bytes.
    pub to: ClusterId,
    /// Weights of bandwidths in bytes per second.
    #[serde(default)]
    pub bandwidth: Weights,
    /// Weights of round trips in microseconds.
    #[serde(default)]
    pub round_trip: Weights,
    /// A recent lower bound in bytes per second, from transfers limited by latency; 0 if none.
    #[serde(default)]
    pub at_least: u64,
}

/// Measurements of all links, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkReport(pub Vec<LinkSummary>);

/// The estimated properties of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkEstimate {
    /// The cluster that sends the bytes.
    pub from: ClusterId,
    /// The cluster that receives the bytes.
    pub to: ClusterId,
    /// Bytes per second for one node: the median of recent transfers, within 5 %.
    pub bandwidth: Option<f64>,
    /// The upper quartile divided by the lower: 1 where all transfers agree.
    pub spread: Option<f64>,
    /// A lower bound in bytes per second; absent without measurements.
    pub at_least: Option<f64>,
    /// The median round trip in microseconds, within 5 %.
    pub round_trip_us: Option<f64>,
    /// The total weight in fresh transfers. The bandwidth is reliable from about 5 on.
    pub transfers: f64,
}

impl LinkReport {
    /// The sum of several reports.
    pub fn sum<'a>(reports: impl IntoIterator<Item = &'a LinkReport>) -> LinkReport {
        #[derive(Default)]
        struct Sum {
            bandwidth: BTreeMap<u16, u32>,
            round_trip: BTreeMap<u16, u32>,
            at_least: u64,
        }
        let mut links: BTreeMap<(&ClusterId, &ClusterId), Sum> = BTreeMap::new();
        for link in reports.into_iter().flat_map(|report| &report.0) {
            let sum = links.entry((&link.from, &link.to)).or_default();
            link.bandwidth.add_to(&mut sum.bandwidth);
            link.round_trip.add_to(&mut sum.round_trip);
            sum.at_least = sum.at_least.max(link.at_least);
        }
        let weights = |sums: BTreeMap<u16, u32>| Weights(sums.into_iter().collect());
        let summary = |((from, to), sum): ((&ClusterId, &ClusterId), Sum)| LinkSummary {
            from: from.clone(),
            to: to.clone(),
            bandwidth: weights(sum.bandwidth),
            round_trip: weights(sum.round_trip),
            at_least: sum.at_least,
        };
        LinkReport(links.into_iter().map(summary).collect())
    }

    /// The estimates of all measured links. The round trip is that of both directions together.
    pub fn estimates(&self) -> Vec<LinkEstimate> {
        let sum = Self::sum([self]);
        let links: BTreeMap<_, _> =
            sum.0.iter().map(|link| ((&link.from, &link.to), link)).collect();
        let estimate = |link: &&LinkSummary| {
            let mut round_trip = link.round_trip.clone();
            if let Some(back) = links.get(&(&link.to, &link.from)).filter(|_| link.from != link.to)
            {
                round_trip.merge(&back.round_trip);
            }
            let bandwidth = link.bandwidth.quantile(0.5);
            let quartiles = link.bandwidth.quantile(0.25).zip(link.bandwidth.quantile(0.75));
            let at_least = (link.at_least > 0).then_some(link.at_least as f64);
            LinkEstimate {
                from: link.from.clone(),
                to: link.to.clone(),
                bandwidth,
                spread: quartiles.map(|(lower, upper)| upper / lower),
                at_least: at_least.into_iter().chain(bandwidth).reduce(f64::max),
                round_trip_us: round_trip.quantile(0.5),
                transfers: link.bandwidth.total() as f64 / FRESH_WEIGHT,
            }
        };
        links.values().map(estimate).collect()
    }
}

/// Transfers that overlap in time.
#[derive(Clone, Copy, Debug)]
struct Burst {
    began: Instant,
    ended: Instant,
    bytes: u64,
}

impl Burst {
    fn lasted(&self, settings: &LinkSettings) -> bool {
        let time = self.ended.saturating_duration_since(self.began);
        time >= LONG_BURST && self.bytes >= settings.floor_bytes
    }
}

#[derive(Clone, Debug, Default)]
struct LinkSamples {
    open: Option<Burst>,
    /// Buckets of bytes per second.
    bandwidth: VecDeque<(Instant, u16)>,
    /// Buckets of microseconds.
    round_trip: VecDeque<(Instant, u16)>,
    /// Lower bounds in bytes per second.
    at_least: VecDeque<(Instant, u64)>,
}

/// The measurements of one node of the links that it receives over. Memory is bounded by the number
/// of clusters.
#[derive(Clone, Debug)]
pub struct LinkEstimator {
    settings: LinkSettings,
    links: BTreeMap<(ClusterId, ClusterId), LinkSamples>,
}

impl LinkEstimator {
    /// Creates an estimator without measurements.
    pub fn new(settings: LinkSettings) -> Self {
        Self { settings, links: BTreeMap::new() }
    }

    /// Records a completed transfer. Call it in the order in which transfers end.
    pub fn transfer(
        &mut self,
        from: &ClusterId,
        to: &ClusterId,
        bytes: u64,
        began: Instant,
        ended: Instant,
    ) {
        let settings = self.settings;
        let link = self.links.entry((from.clone(), to.clone())).or_default();
        match &mut link.open {
            Some(burst) if began <= burst.ended && burst.lasted(&settings) => {
                // Later transfers shared the link with it, and count from its end on.
                let next = Burst { began: burst.ended, ended: burst.ended.max(ended), bytes };
                let over = std::mem::replace(burst, next);
                link.take(over, &settings);
            }
            Some(burst) if began <= burst.ended => {
                burst.began = burst.began.min(began);
                burst.ended = burst.ended.max(ended);
                burst.bytes = burst.bytes.saturating_add(bytes);
            }
            open => {
                let over = open.replace(Burst { began, ended: ended.max(began), bytes });
                if let Some(burst) = over {
                    link.take(burst, &settings);
                }
            }
        }
    }

    /// Records a round trip, measured by the transport, to a node of cluster `to`.
    pub fn round_trip(&mut self, from: &ClusterId, to: &ClusterId, time: Duration, now: Instant) {
        let keep = self.settings.values_per_link;
        let link = self.links.entry((from.clone(), to.clone())).or_default();
        push(&mut link.round_trip, keep, (now, bucket(time.as_secs_f64() * 1e6)));
        // It holds for the opposite direction too.
        let link = self.links.entry((to.clone(), from.clone())).or_default();
        if from != to {
            push(&mut link.round_trip, keep, (now, bucket(time.as_secs_f64() * 1e6)));
        }
    }

    /// The measurements at `now`. A report replaces earlier reports of this node.
    pub fn report(&mut self, now: Instant) -> LinkReport {
        let LinkSettings { half_life, .. } = self.settings;
        let mut report = Vec::new();
        for ((from, to), link) in &mut self.links {
            let over = |burst: &Burst| now.saturating_duration_since(burst.ended) >= BURST_GAP;
            if let Some(burst) = link.open.take_if(|burst| over(burst)) {
                link.take(burst, &self.settings);
            }
            for values in [&mut link.bandwidth, &mut link.round_trip] {
                let faded = |(at, _): &(Instant, u16)| {
                    now.saturating_duration_since(*at) > half_life.saturating_mul(FADED_HALF_LIVES)
                };
                while values.front().is_some_and(faded) {
                    values.pop_front();
                }
            }
            // A bound is valid while values of its age have some weight.
            let recent = |(at, _): &&(Instant, u64)| {
                now.saturating_duration_since(*at) < half_life.saturating_mul(4)
            };
            let summary = LinkSummary {
                from: from.clone(),
                to: to.clone(),
                bandwidth: Weights::from_values(&link.bandwidth, now, half_life),
                round_trip: Weights::from_values(&link.round_trip, now, half_life),
                at_least: link
                    .at_least
                    .iter()
                    .filter(recent)
                    .map(|(_, least)| *least)
                    .max()
                    .unwrap_or(0),
            };
            if summary.bandwidth.total() + summary.round_trip.total() + summary.at_least > 0 {
                report.push(summary);
            }
        }
        LinkReport(report)
    }
}

impl LinkSamples {
    fn take(&mut self, burst: Burst, settings: &LinkSettings) {
        let time = burst.ended.saturating_duration_since(burst.began);
        if burst.bytes < settings.floor_bytes || time.is_zero() {
            return;
        }
        let rate = burst.bytes as f64 / time.as_secs_f64();
        let half_life = settings.half_life;
        let round_trip =
            Weights::from_values(&self.round_trip, burst.ended, half_life).quantile(0.5);
        let shortest = round_trip.unwrap_or(0.0) / 1e6 * f64::from(settings.round_trips);
        let median = Weights::from_values(&self.bandwidth, burst.ended, half_life).quantile(0.5);
        // A transfer limited by latency gives a bound. One above the median is a measurement too.
        if time.as_secs_f64() < shortest {
            push(&mut self.at_least, settings.values_per_link, (burst.ended, rate as u64));
            if median.is_none_or(|median| rate <= median) {
                return;
            }
        }
        push(&mut self.bandwidth, settings.values_per_link, (burst.ended, bucket(rate)));
    }
}

fn push<T>(values: &mut VecDeque<T>, keep: usize, value: T) {
    while values.len() >= keep.max(1) {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pair() -> (ClusterId, ClusterId) {
        ("ams".into(), "del".into())
    }

    /// Transfers over one link in sequence, as bytes and milliseconds. Returns the estimate a
    /// second later.
    fn estimate(rtt: Option<Duration>, transfers: &[(u64, u32)]) -> Option<LinkEstimate> {
        let (from, to) = pair();
        let mut estimator = LinkEstimator::new(LinkSettings::default());
        let mut now = Instant::now();
        if let Some(rtt) = rtt {
            estimator.round_trip(&to, &from, rtt, now);
        }
        for &(bytes, millis) in transfers {
            estimator.transfer(&from, &to, bytes, now, now + millis * MS);
            now += (millis + 1) * MS;
        }
        let estimates = estimator.report(now + BURST_GAP).estimates();
        estimates.into_iter().find(|link| (&link.from, &link.to) == (&from, &to))
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value / expected).ln().abs() <= 0.06)
    }

    #[test]
    fn bandwidth_is_a_median_of_large_transfers() {
        let link = estimate(None, &[(1_000_000, 100); 5]).unwrap();
        assert!(close(link.bandwidth, 1e7) && close(link.at_least, 1e7), "{link:?}");
        assert!(link.spread == Some(1.0) && link.transfers > 4.8, "{link:?}");
        assert_eq!(link.round_trip_us, None);
        // A stalled transfer and a lucky one change nothing.
        let odd = [&[(1_000_000, 100); 5][..], &[(1_000_000, 60_000), (1_000_000, 1)]].concat();
        assert!(close(estimate(None, &odd).unwrap().bandwidth, 1e7));
        // Small transfers do not count, nor does one that took no time.
        assert_eq!(estimate(None, &[(65_535, 10); 20]), None);
        assert_eq!(estimate(None, &[(1_000_000, 0)]), None);
        assert_eq!(estimate(None, &[]), None);
    }

    #[test]
    fn a_transfer_of_few_round_trips_is_a_bound() {
        let rtt = Some(50 * MS);
        let link = estimate(rtt, &[(1_000_000, 100); 5]).unwrap();
        assert!(link.bandwidth.is_none() && close(link.at_least, 1e7), "{link:?}");
        assert!(close(link.round_trip_us, 50_000.0), "{link:?}");
        // Long transfers count, and a short one faster than the median counts too.
        let link = estimate(rtt, &[(1_000_000, 1000), (1_000_000, 100), (1_000_000, 100)]).unwrap();
        assert!(close(link.bandwidth, 1e7), "{link:?}");
        let link = estimate(rtt, &[(10_000_000, 1000), (500_000, 100)]).unwrap();
        assert!(close(link.bandwidth, 1e7), "{link:?}");
    }

    #[test]
    fn transfers_that_overlap_share_the_link() {
        let (from, to) = pair();
        let mut estimator = LinkEstimator::new(LinkSettings::default());
        let start = Instant::now();
        // Ten small simultaneous transfers end in turn: a megabyte in a second.
        for i in 1..=10 {
            estimator.transfer(&from, &to, 100_000, start, start + 100 * i * MS);
        }
        assert_eq!(estimator.report(start + 1000 * MS), LinkReport::default(), "more may come");
        // A transfer that started earlier and ends later.
        estimator.transfer(&from, &to, 500_000, start - 500 * MS, start + 1500 * MS);
        let link = &estimator.report(start + 3000 * MS).estimates()[0];
        assert!(close(link.bandwidth, 750_000.0), "{link:?}");
        assert!(link.transfers < 1.0, "{link:?}");
    }

    #[test]
    fn a_link_that_is_never_idle_has_an_estimate() {
        let (from, to) = pair();
        let mut estimator = LinkEstimator::new(LinkSettings::default());
        let start = Instant::now();
        // Each starts before its predecessor ends.
        for i in 0..30 {
            let (began, ended) = (start + 1000 * i * MS, start + 1000 * (i + 2) * MS);
            estimator.transfer(&from, &to, 100_000, began, ended);
        }
        let link = &estimator.report(start + 30_000 * MS).estimates()[0];
        assert!(close(link.bandwidth, 100_000.0) && link.transfers > 2.0, "{link:?}");
    }

    #[test]
    fn old_values_lose_weight() {
        let (from, to) = pair();
        let mut estimator = LinkEstimator::new(LinkSettings::default());
        let mut now = Instant::now();
        let mut feed = |estimator: &mut LinkEstimator, seconds: u32, bytes: u64| {
            for _ in 0..seconds {
                estimator.transfer(&from, &to, bytes, now, now + 500 * MS);
                now += 1000 * MS;
            }
            now
        };
        let now = feed(&mut estimator, 600, 5_000_000);
        assert!(close(estimator.report(now).estimates()[0].bandwidth, 1e7));
        // The link slows down to a hundredth. Within a half-life the estimate follows.
        let now = feed(&mut estimator, 31, 70_000);
        let link = &estimator.report(now).estimates()[0];
        assert!(close(link.bandwidth, 1.4e5), "{link:?}");
        // After a long silence there is no estimate.
        assert_eq!(estimator.report(now + 600_000 * MS), LinkReport::default());
    }

    #[test]
    fn round_trips_are_those_of_both_directions() {
        let (a, b) = pair();
        let mut estimator = LinkEstimator::new(LinkSettings::default());
        let now = Instant::now();
        for millis in [20, 21, 900] {
            estimator.round_trip(&a, &b, millis * MS, now);
        }
        estimator.round_trip(&a, &a, MS, now);
        let estimates = estimator.report(now).estimates();
        assert_eq!(estimates.len(), 3);
        assert!(close(estimates[0].round_trip_us, 1000.0), "{estimates:?}");
        assert!(close(estimates[1].round_trip_us, 21_000.0), "{estimates:?}");
        assert!(close(estimates[2].round_trip_us, 21_000.0), "{estimates:?}");
    }

    #[test]
    fn invalid_values_from_the_network_are_ignored() {
        let (from, to) = pair();
        let bad = LinkSummary {
            from,
            to,
            bandwidth: Weights(vec![
                (u16::MAX, 5),
                (80, 0),
                (80, u32::MAX),
                (8, 1),
                (80, u32::MAX),
            ]),
            round_trip: Weights::default(),
            at_least: u64::MAX,
        };
        let report = LinkReport::sum([&LinkReport(vec![bad.clone(), bad])]);
        assert_eq!(report.0.len(), 1);
        assert_eq!(report.0[0].bandwidth, Weights(vec![(8, 2), (80, u32::MAX)]));
        assert!(report.estimates()[0].bandwidth.is_some_and(f64::is_finite));
    }

    proptest! {
        /// In any order of summation the sum is the same, and equals the report of one estimator
        /// that saw all.
        #[test]
        fn sums_are_exact(
            seen in prop::collection::vec(
                (0usize..4, 0u8..3, 0u8..3, 0u64..3_000_000, 1u64..900),
                0..80,
            ),
            cut in 0usize..4,
        ) {
            let names = |n: u8| ClusterId::from(["ams", "del", "utr"][n as usize]);
            let start = Instant::now();
            let mut nodes = vec![LinkEstimator::new(LinkSettings::default()); 4];
            // Links of each node to itself, so that no transfers of two nodes overlap in one
            // estimator.
            let settings = LinkSettings { values_per_link: 1000, ..LinkSettings::default() };
            let mut all = LinkEstimator::new(settings);
            let mut now = start;
            for (node, from, to, bytes, millis) in seen {
                let (from, to) = (names(from), names(to));
                let ended = now + Duration::from_millis(millis);
                for estimator in [&mut nodes[node], &mut all] {
                    estimator.transfer(&from, &to, bytes, now, ended);
                }
                now = ended + MS;
            }
            now += BURST_GAP;
            let reports: Vec<LinkReport> = nodes.iter_mut().map(|node| node.report(now)).collect();
            let sum = |reports: &[LinkReport]| LinkReport::sum(reports);
            let flat = sum(&reports);
            let tree = sum(&[sum(&reports[cut..]), sum(&reports[..cut])]);
            prop_assert_eq!(&flat, &tree);
            prop_assert_eq!(&flat, &all.report(now));
            let bytes = rmp_serde::to_vec_named(&flat).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<LinkReport>(&bytes).unwrap(), flat);
        }
    }
}
