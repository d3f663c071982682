//! Knowledge of links that outlives the members, the root's place and the coordinator that
//! measured it.
//!
//! A coordinator measures links while its clusters use them. When a cluster leaves, when the root
//! moves or a successor takes over, the estimates of the period no longer contain the link. This
//! module keeps the last ones in the memory, and completes each snapshot with them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use springtide_base::id::ClusterId;

use super::change::{QuarantineSubject, RemovalCause};
use super::memory::Memory;
use super::number::is_rate;
use super::settings::AdaptationSettings;
use super::snapshot::{LinkEstimate, Snapshot};

/// Maximum remembered pairs of clusters. The oldest are dropped first.
const PAIRS_MAX: usize = 256;
/// Maximum remembered measurements to free nodes. The oldest are dropped first.
const PROBES_MAX: usize = 256;

/// Last estimate of the link between two clusters. `a` precedes `b`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RememberedLink {
    /// The cluster at one end.
    pub a: ClusterId,
    /// The cluster at the other end.
    pub b: ClusterId,
    /// Bytes per second, by the slower direction.
    pub bandwidth: Option<f64>,
    /// Round-trip time, in seconds.
    pub rtt_s: Option<f64>,
    /// Time of the estimate, on the policy's own clock.
    pub at_s: f64,
}

/// Measurement of the bandwidth to a free node of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    /// Bytes per second; absent if no measurement has succeeded.
    pub bandwidth: Option<f64>,
    /// Time of the measurement, on the policy's own clock.
    pub at_s: f64,
    /// Time of the last order to measure, on the policy's own clock.
    pub ordered_at_s: f64,
}

/// What the job knows of the links between clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkMemory {
    /// Last estimates, in order of the clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<RememberedLink>,
    /// Last measurements to free nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub probes: BTreeMap<ClusterId, Probe>,
}

impl LinkMemory {
    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.probes.is_empty()
    }

    /// Records a measurement, unless a later one is known or it is not a positive number.
    pub(super) fn record_probe(&mut self, cluster: &ClusterId, bandwidth: f64, at_s: f64) {
        if !is_rate(bandwidth) {
            return;
        }
        let probe = self.probes.entry(cluster.clone()).or_default();
        if probe.bandwidth.is_none() || at_s >= probe.at_s {
            (probe.bandwidth, probe.at_s) = (Some(bandwidth), at_s);
        }
    }

    /// Records the estimates and measurements of a snapshot, and forgets those older than
    /// `keep_s` seconds. `clock_s` is the policy's own clock.
    fn record(&mut self, snapshot: &Snapshot, clock_s: f64, keep_s: f64) {
        let since = |age_s: f64| clock_s - if age_s > 0.0 { age_s } else { 0.0 };
        for link in &snapshot.links {
            let bandwidth = link.bandwidth.filter(|&rate| is_rate(rate));
            let rtt_s = link.rtt_s.filter(|rtt| rtt.is_finite() && *rtt >= 0.0);
            if link.a == link.b || (bandwidth, rtt_s) == (None, None) {
                continue;
            }
            let (a, b) = if link.a < link.b { (&link.a, &link.b) } else { (&link.b, &link.a) };
            let at_s = since(link.age_s);
            match self.pairs.binary_search_by(|known| (&known.a, &known.b).cmp(&(a, b))) {
                Ok(index) => {
                    let known = &mut self.pairs[index];
                    known.bandwidth = bandwidth.or(known.bandwidth);
                    known.rtt_s = rtt_s.or(known.rtt_s);
                    known.at_s = at_s;
                }
                Err(index) => {
                    let (a, b) = (a.clone(), b.clone());
                    self.pairs.insert(index, RememberedLink { a, b, bandwidth, rtt_s, at_s });
                }
            }
        }
        for (cluster, offer) in &snapshot.offers {
            let measured = offer.bandwidth.zip(offer.measured_s);
            let Some((bandwidth, age_s)) = measured else { continue };
            self.record_probe(cluster, bandwidth, since(age_s));
        }
        self.pairs.retain(|link| clock_s - link.at_s <= keep_s);
        self.probes.retain(|_, probe| clock_s - probe.at_s.max(probe.ordered_at_s) <= keep_s);
        while self.pairs.len() > PAIRS_MAX {
            let oldest = self.pairs.iter().enumerate().min_by(|x, y| x.1.at_s.total_cmp(&y.1.at_s));
            let Some((index, _)) = oldest else { break };
            self.pairs.remove(index);
        }
        while self.probes.len() > PROBES_MAX {
            let oldest = self.probes.iter().min_by(|x, y| x.1.at_s.total_cmp(&y.1.at_s));
            let Some(cluster) = oldest.map(|(cluster, _)| cluster.clone()) else { break };
            self.probes.remove(&cluster);
        }
    }
}

impl Memory {
    /// Clusters in quarantine for their links. Links of other clusters to them say nothing of the
    /// others.
    fn blamed(&self) -> BTreeSet<&ClusterId> {
        let of_link = self.quarantine.iter().filter(|entry| entry.cause == RemovalCause::Link);
        let clusters = of_link.filter_map(|entry| match &entry.subject {
            QuarantineSubject::Cluster(cluster) => Some(cluster),
            QuarantineSubject::Node(_) => None,
        });
        clusters.collect()
    }

    /// Known bandwidths of clusters' uplinks, in bytes per second.
    ///
    /// A cluster's best link counts, since the worst would blame it for its partner. For a cluster
    /// without members (`members` are those with), a later measurement to a free node replaces it.
    pub fn bandwidths(&self, members: &BTreeSet<ClusterId>) -> BTreeMap<ClusterId, f64> {
        let blamed = self.blamed();
        let mut known: BTreeMap<ClusterId, f64> = BTreeMap::new();
        for link in &self.links.pairs {
            let Some(bandwidth) = link.bandwidth else { continue };
            for (one, other) in [(&link.a, &link.b), (&link.b, &link.a)] {
                if blamed.contains(other) && !blamed.contains(one) {
                    continue;
                }
                let best = known.entry(one.clone()).or_insert(bandwidth);
                *best = best.max(bandwidth);
            }
        }
        for (cluster, probe) in &self.links.probes {
            let Some(bandwidth) = probe.bandwidth else { continue };
            if !members.contains(cluster) || !known.contains_key(cluster) {
                known.insert(cluster.clone(), bandwidth);
            }
        }
        known
    }

    /// Known round-trip times from a cluster, in seconds.
    pub fn round_trips_from(&self, home: &ClusterId) -> BTreeMap<ClusterId, f64> {
        let mut known = BTreeMap::from([(home.clone(), 0.0)]);
        for link in &self.links.pairs {
            let other = match (link.a == *home, link.b == *home) {
                (true, _) => &link.b,
                (_, true) => &link.a,
                _ => continue,
            };
            known.extend(link.rtt_s.map(|rtt_s| (other.clone(), rtt_s)));
        }
        known
    }
}

/// Records the links of a snapshot in the memory, and returns the snapshot with all that is known
/// of links. So a successor's snapshot says the same as its predecessor's.
pub(super) fn complete(
    snapshot: &Snapshot,
    memory: &mut Memory,
    settings: &AdaptationSettings,
) -> Snapshot {
    let clock_s = memory.clock_s;
    memory.links.record(snapshot, clock_s, settings.quarantine_max_s);
    let mut snapshot = snapshot.clone();
    for known in &memory.links.pairs {
        let is_same = |link: &&mut LinkEstimate| link.is_between(&known.a, &known.b);
        match snapshot.links.iter_mut().find(is_same) {
            Some(link) => {
                let usable = link.bandwidth.filter(|&rate| is_rate(rate));
                link.bandwidth = usable.or(known.bandwidth);
                link.rtt_s =
                    link.rtt_s.filter(|rtt| rtt.is_finite() && *rtt >= 0.0).or(known.rtt_s);
            }
            None => snapshot.links.push(LinkEstimate {
                a: known.a.clone(),
                b: known.b.clone(),
                bandwidth: known.bandwidth,
                rtt_s: known.rtt_s,
                age_s: clock_s - known.at_s,
            }),
        }
    }
    let members = snapshot.members.keys().chain(snapshot.clusters.keys()).cloned().collect();
    let bandwidths = memory.bandwidths(&members);
    let round_trips = snapshot.root.as_ref().map(|root| memory.round_trips_from(&root.cluster));
    for (cluster, offer) in &mut snapshot.offers {
        let offered = offer.bandwidth.filter(|&rate| is_rate(rate));
        offer.bandwidth = bandwidths.get(cluster).copied().or(offered);
        let probe = memory.links.probes.get(cluster).filter(|probe| probe.bandwidth.is_some());
        let used = probe.filter(|probe| probe.bandwidth == offer.bandwidth);
        offer.measured_s = used.map(|probe| clock_s - probe.at_s);
        let round_trip = round_trips.as_ref().and_then(|known| known.get(cluster)).copied();
        offer.rtt_s = round_trip.or(offer.rtt_s);
    }
    snapshot
}

/// Bytes of a typical stolen task, by which latency and bandwidth are comparable.
const TRANSFER_BYTES: f64 = 16_384.0;

/// Order of clusters by their links. An unknown value counts as the median of the known ones, so
/// that it ranks between good and bad ones.
#[derive(Clone, Copy, Debug)]
pub struct LinkRanking {
    median_rtt_s: f64,
    median_bandwidth: f64,
    min_bandwidth: f64,
}

/// Rank of a cluster by its link. Smaller is better.
#[derive(Clone, Copy, Debug)]
pub struct LinkRank {
    /// Whether the bandwidth is known to be below the minimum.
    is_below_minimum: bool,
    /// Estimated time of a transfer, in seconds.
    transfer_s: f64,
    /// Number of unknown values.
    unknown: u8,
}

impl LinkRank {
    /// Whether the bandwidth is known to be below the minimum.
    pub fn is_below_minimum(&self) -> bool {
        self.is_below_minimum
    }
}

impl LinkRanking {
    /// Creates the order for known round-trip times in seconds and bandwidths in bytes per second.
    /// A bandwidth below `min_bandwidth` ranks last.
    pub fn new<'a>(
        rtts_s: impl Iterator<Item = &'a f64>,
        bandwidths: impl Iterator<Item = &'a f64>,
        min_bandwidth: Option<f64>,
    ) -> Self {
        // The root's own cluster has a round-trip time of 0, which says nothing of other clusters.
        let rtts_s = rtts_s.copied().filter(|&rtt_s| is_rate(rtt_s));
        let bandwidths = bandwidths.copied().filter(|&rate| is_rate(rate));
        Self {
            median_rtt_s: median(rtts_s).unwrap_or(0.0),
            median_bandwidth: median(bandwidths).unwrap_or(f64::INFINITY),
            min_bandwidth: min_bandwidth.filter(|&least| is_rate(least)).unwrap_or(0.0),
        }
    }

    /// Rank of a cluster with these values. Invalid ones count as unknown.
    pub fn rank(&self, rtt_s: Option<f64>, bandwidth: Option<f64>) -> LinkRank {
        let rtt_s = rtt_s.filter(|rtt_s| rtt_s.is_finite() && *rtt_s >= 0.0);
        let bandwidth = bandwidth.filter(|&rate| is_rate(rate));
        let rate = bandwidth.unwrap_or(self.median_bandwidth.max(self.min_bandwidth));
        LinkRank {
            is_below_minimum: rate < self.min_bandwidth,
            transfer_s: rtt_s.unwrap_or(self.median_rtt_s) + TRANSFER_BYTES / rate,
            unknown: u8::from(rtt_s.is_none()) + u8::from(bandwidth.is_none()),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Ord for LinkRank {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_class = self.is_below_minimum.cmp(&other.is_below_minimum);
        let by_time = by_class.then(self.transfer_s.total_cmp(&other.transfer_s));
        by_time.then(self.unknown.cmp(&other.unknown))
    }
}

impl PartialOrd for LinkRank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for LinkRank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for LinkRank {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use springtide_base::id::NodeId;

    use super::super::case::{PolicyTestJob, text};
    use super::super::decision::AdaptationAction;
    use super::super::snapshot::NodeOffer;
    use super::super::{Decision, QuarantineEntry, RootNode};
    use super::*;

    /// The memory as a successor receives it.
    fn received(memory: &Memory) -> Memory {
        let json = serde_json::to_vec(memory).unwrap();
        let again: Memory = serde_json::from_slice(&json).unwrap();
        let named = rmp_serde::to_vec_named(memory).unwrap();
        assert_eq!(rmp_serde::from_slice::<Memory>(&named).unwrap(), again);
        again
    }

    fn cluster() -> impl Strategy<Value = ClusterId> {
        "[a-e]".prop_map(ClusterId::from)
    }

    fn snapshot() -> impl Strategy<Value = Snapshot> {
        let number =
            || prop_oneof![Just(None), (1e-3..1e9).prop_map(Some), any::<f64>().prop_map(Some)];
        let link = (cluster(), cluster(), number(), number(), 0.0..100.0).prop_map(
            |(a, b, bandwidth, rtt_s, age_s)| LinkEstimate { a, b, bandwidth, rtt_s, age_s },
        );
        let offer = (1u32..9, number(), prop::option::of(0.0..50.0)).prop_map(
            |(free, bandwidth, measured_s)| NodeOffer {
                free: free.into(),
                bandwidth: measured_s.and(bandwidth),
                measured_s,
                ..NodeOffer::default()
            },
        );
        let offers = prop::collection::btree_map(cluster(), offer, 0..5);
        (prop::collection::vec(link, 0..8), offers, cluster()).prop_map(
            |(links, offers, cluster)| {
                let root = Some(RootNode { node: NodeId::from("n"), cluster });
                Snapshot { links, offers, root, period_s: 10.0, ..Snapshot::default() }
            },
        )
    }

    proptest! {
        /// A coordinator that has measured nothing itself knows the links as its predecessor did.
        #[test]
        fn a_successor_knows_the_links(history in prop::collection::vec(snapshot(), 1..6)) {
            let settings = AdaptationSettings::default();
            let mut memory = Memory::new(&settings);
            for snapshot in &history {
                memory.clock_s += snapshot.period_s;
                complete(snapshot, &mut memory, &settings);
            }
            let last = history.last().unwrap();
            let mut blank = last.clone();
            blank.links.clear();
            for offer in blank.offers.values_mut() {
                (offer.bandwidth, offer.measured_s, offer.rtt_s) = (None, None, None);
            }
            let mut predecessor = memory.clone();
            let mut successor = received(&memory);
            let before = complete(last, &mut predecessor, &settings);
            let after = complete(&blank, &mut successor, &settings);
            let none = BTreeSet::new();
            prop_assert_eq!(predecessor.bandwidths(&none), successor.bandwidths(&none));
            for from in ["a", "b", "c", "d", "e"].map(ClusterId::from) {
                let round_trips = |memory: &Memory| memory.round_trips_from(&from);
                prop_assert_eq!(round_trips(&predecessor), round_trips(&successor));
                for to in ["a", "b", "c", "d", "e"].map(ClusterId::from) {
                    // Of several estimates of one link, the last counts.
                    let several = last.links.iter().filter(|l| {
                        (l.a == from && l.b == to) || (l.a == to && l.b == from)
                    });
                    if several.count() < 2 {
                        prop_assert_eq!(before.rtt(&from, &to), after.rtt(&from, &to));
                    }
                }
            }
            let offered = |snapshot: &Snapshot| -> Vec<_> {
                let offers = snapshot.offers.iter();
                let known = offers.map(|(id, offer)| (id.clone(), offer.bandwidth, offer.rtt_s));
                known.collect()
            };
            prop_assert_eq!(offered(&before), offered(&after));
        }

        #[test]
        fn the_order_of_links_is_total_and_unknown_ranks_between(
            rtts in prop::collection::vec(1e-4..1.0, 1..6),
            rates in prop::collection::vec(1e3..1e9, 1..6),
        ) {
            let order = LinkRanking::new(rtts.iter(), rates.iter(), None);
            let (best, worst) = (1e-5, 2.0);
            let unknown = order.rank(None, None);
            prop_assert!(order.rank(Some(best), Some(1e10)) < unknown);
            prop_assert!(order.rank(Some(worst), Some(1e2)) > unknown);
        }
    }

    fn measures(decision: &Decision, cluster: &str) -> bool {
        decision.actions.contains(&AdaptationAction::Measure { cluster: cluster.into() })
    }

    /// Found in the paper's scenario 4 with its own period: the root moved between the measurement
    /// and the end of the term, and the cluster was taken again.
    #[test]
    fn a_term_is_renewed_although_a_successor_has_not_measured() {
        for succession in [false, true] {
            let mut case = PolicyTestJob::without_b();
            let b = ClusterId::from("b");
            case.snapshot
                .offers
                .insert(b.clone(), NodeOffer { free: 4.into(), ..NodeOffer::default() });
            let mut explanation = String::new();
            for _ in 1..=40 {
                let decision = case.decide();
                explanation += &text(&decision);
                let offer = case.snapshot.offers.get_mut(&b).unwrap();
                if measures(&decision, "b") {
                    (offer.bandwidth, offer.measured_s) = (Some(1.1e5), Some(5.0));
                } else if succession {
                    (offer.bandwidth, offer.measured_s) = (None, None);
                    case.memory = received(&case.memory);
                }
            }
            let entry: Option<&QuarantineEntry> = case.memory.quarantine.first();
            assert_eq!(entry.map(|entry| entry.count), Some(2), "{succession}: {explanation}");
        }
    }

    #[test]
    fn a_cluster_is_measured_before_it_is_tried_again() {
        let mut case = PolicyTestJob::without_b();
        let b = ClusterId::from("b");
        // No node of b is free until its term ends.
        let end = case.memory.quarantine[0].until_s;
        while case.memory.clock_s + case.snapshot.period_s < end {
            case.decide();
        }
        case.snapshot
            .offers
            .insert(b.clone(), NodeOffer { free: 4.into(), ..NodeOffer::default() });
        let decision = case.decide();
        assert!(measures(&decision, "b"), "{}", text(&decision));
        assert!(case.memory.keeps_out(&b, None, &case.settings));
        // Measurements that fail do not exclude it for ever.
        for _ in 0..4 {
            case.decide();
        }
        assert!(!case.memory.keeps_out(&b, None, &case.settings));
    }

    #[test]
    fn unknown_links_are_measured_once_a_minimum_is_known() {
        let mut case = PolicyTestJob::without_b();
        let c = ClusterId::from("c");
        let offer = NodeOffer { free: 4.into(), ..NodeOffer::default() };
        case.snapshot.offers.insert(c.clone(), offer);
        let decision = case.decide();
        assert!(measures(&decision, "c"), "{}", text(&decision));
        let ordered = (0..4).filter(|_| measures(&case.decide(), "c")).count();
        assert_eq!(ordered, 0, "it is measured at intervals");
        case.snapshot.offers.get_mut(&c).unwrap().bandwidth = Some(1e6);
        case.snapshot.offers.get_mut(&c).unwrap().measured_s = Some(1.0);
        let ordered = (0..20).filter(|_| measures(&case.decide(), "c")).count();
        assert_eq!(ordered, 0, "it is known");
    }
}
