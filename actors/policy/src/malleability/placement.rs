//! Placement of a job's components on clusters at its start.
//!
//! This module knows neither the queue nor how processors are claimed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use springtide_base::id::ClusterId;
pub use springtide_config::PlacementPolicy;

use super::hosts::NodeNeeds;
use super::packing::{Packing, PackingProblem, PackingResult};

/// Limit of the steps of a search for a placement: some milliseconds.
const PACKING_STEPS: u64 = 300_000;

/// Name of an input file in the catalogue of replicas.
pub type FileName = String;

/// A part of a job that is placed in one cluster (in several only under
/// [`PlacementPolicy::FlexibleClusterMinimisation`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Minimum processors at the start, at least 1.
    pub min: u32,
    /// Maximum processors at the start, at least `min`.
    #[serde(rename = "start")]
    pub max_at_start: u32,
    /// Clusters to which the component is limited; empty: no limit.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterId>,
    /// Names of its input files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileName>,
}

/// Capacity of a cluster for placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterCapacity {
    /// Number of working processors.
    pub size: u32,
    /// Number of processors if all worked, at least `size`.
    pub nominal_size: u32,
    /// Number of idle processors.
    pub idle: u32,
    /// Why the cluster is closed for placement, if it is.
    pub closed: Option<String>,
}

impl ClusterCapacity {
    /// Maximum processors that the cluster may ever have. A closed cluster has no known maximum.
    pub fn size_max(&self) -> u64 {
        let whole = if self.closed.is_some() { u32::MAX } else { self.nominal_size.max(self.size) };
        whole.into()
    }
}

/// A file and the clusters with a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReplicas {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Clusters with a copy; none if the file is needed and missing.
    pub clusters: BTreeSet<ClusterId>,
    /// Difference between files of this name, if any. Then the name is ambiguous, and no copy is
    /// used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// Measured bytes per second from the first cluster to the second.
pub type ClusterBandwidths = BTreeMap<(ClusterId, ClusterId), f64>;

/// State of the grid that placement depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacitySnapshot {
    /// Capacities of the clusters.
    pub clusters: BTreeMap<ClusterId, ClusterCapacity>,
    /// Replicas of the files.
    pub files: BTreeMap<FileName, FileReplicas>,
    /// Bandwidths of the links.
    pub links: ClusterBandwidths,
    /// Clusters that cannot store files.
    pub without_files: BTreeSet<ClusterId>,
}

/// Processors of a cluster for a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedPart {
    /// Index of the component.
    pub component: usize,
    /// Cluster of the processors.
    pub cluster: ClusterId,
    /// Number of processors, at least 1.
    pub count: u32,
}

/// A transfer of a file to the cluster that reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementTransfer {
    /// Name of the file.
    pub file: FileName,
    /// Cluster with a copy.
    pub from: ClusterId,
    /// Cluster that reads it.
    pub to: ClusterId,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Duration in seconds; infinite over an unmeasured link.
    pub seconds: f64,
}

/// A placement of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementPlan {
    /// Parts in order of components, then of selection.
    pub parts: Vec<PlacedPart>,
    /// Transfers before the start.
    pub transfers: Vec<PlacementTransfer>,
    /// Explanation of the choice, in a sentence.
    pub why: String,
}

impl PlacementPlan {
    /// Number of processors by cluster, of all components together.
    pub fn processors_by_cluster(&self) -> BTreeMap<ClusterId, u32> {
        let mut all = BTreeMap::new();
        for part in &self.parts {
            *all.entry(part.cluster.clone()).or_default() += part.count;
        }
        all
    }
}

/// Why a cluster is unsuitable for a component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum ExclusionReason {
    /// The job does not allow it.
    NotNamed,
    /// It is out of service.
    Closed {
        /// Why it is closed.
        reason: String,
    },
    /// It never has enough processors.
    TooSmall {
        /// Its number of processors.
        size: u32,
        /// Number of processors needed.
        needed: u32,
    },
    /// Its hosts never have enough processors for nodes with the job's needs.
    NoNode {
        /// Number of processors for such nodes.
        size: u32,
        /// Number of processors needed.
        needed: u32,
        /// Description of the needs.
        needs: String,
    },
    /// Too few of its processors work now.
    TooFewWork {
        /// Number of working processors.
        size: u32,
        /// Number if all worked.
        whole: u32,
        /// Number of processors needed.
        needed: u32,
    },
    /// Too few of its processors are idle now.
    TooFewIdle {
        /// Idle processors that other components of the job left.
        idle: u32,
        /// Number of processors needed.
        needed: u32,
    },
    /// A required file cannot be provided there.
    NoFile {
        /// Name of the file, and the reason.
        reason: String,
    },
}

impl fmt::Display for ExclusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNamed => f.write_str("the job does not name it"),
            Self::Closed { reason } => write!(f, "closed: {reason}"),
            Self::NoNode { size, needed, needs } => {
                write!(f, "has {size} processors for nodes with {needs}, {needed} are needed")
            }
            Self::TooSmall { size, needed } => {
                write!(f, "has {size} processors, {needed} are needed")
            }
            Self::TooFewWork { size, whole, needed } => {
                write!(f, "{size} of its {whole} processors work, {needed} are needed")
            }
            Self::TooFewIdle { idle, needed } => write!(f, "{idle} idle, {needed} needed"),
            Self::NoFile { reason } => f.write_str(reason),
        }
    }
}

/// Failure to place a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementError {
    /// Index of the first component that does not fit.
    pub component: usize,
    /// Reason of each cluster.
    pub excluded: BTreeMap<ClusterId, ExclusionReason>,
    /// Whether no cluster could take it even if all were idle and open.
    #[serde(rename = "never")]
    pub can_never_fit: bool,
}

impl PlacementError {
    /// Names the needs of nodes where they are why a cluster is too small.
    pub fn explain_by_node_needs(mut self, needs: &NodeNeeds) -> Self {
        if needs.is_met_by_all() {
            return self;
        }
        for reason in self.excluded.values_mut() {
            if let ExclusionReason::TooSmall { size, needed } = *reason {
                *reason = ExclusionReason::NoNode { size, needed, needs: needs.to_string() };
            }
        }
        self
    }
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ever =
            if self.can_never_fit { "no cluster can ever take" } else { "no cluster can take" };
        write!(f, "{ever} component {}", self.component + 1)?;
        for (at, (cluster, why)) in self.excluded.iter().enumerate() {
            write!(f, "{} {cluster} {why}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

/// Places a job's components by a policy. Without components, the placement is empty.
///
/// # Errors
/// [`PlacementError`] if a component fits nowhere.
pub fn place(
    policy: PlacementPolicy,
    components: &[Component],
    snapshot: &CapacitySnapshot,
) -> Result<PlacementPlan, PlacementError> {
    let all: u64 = components.iter().map(|one| u64::from(one.min)).sum();
    let exceeds_grid = all > snapshot.clusters.values().map(ClusterCapacity::size_max).sum();
    let idle = snapshot.clusters.iter().map(|(c, r)| (c, r.idle)).collect();
    let mut state = PlacementState { snapshot, idle, exceeds_grid };
    let mut chosen: Vec<Option<&ClusterId>> = vec![None; components.len()];
    let mut may_be_fewer = false;
    match policy {
        PlacementPolicy::FlexibleClusterMinimisation => return state.flexible(components),
        PlacementPolicy::ClusterMinimisation => match state.minimise(components) {
            Some(packing) => {
                let clusters: Vec<&ClusterId> = snapshot.clusters.keys().collect();
                for ((chosen, &bin), one) in chosen.iter_mut().zip(&packing.bins).zip(components) {
                    *chosen = Some(clusters[bin]);
                    state.take(clusters[bin], one.min);
                }
                may_be_fewer = !packing.is_minimal;
            }
            // If components fit nowhere, its error names the first.
            None => return place(PlacementPolicy::WorstFit, components, snapshot),
        },
        PlacementPolicy::WorstFit | PlacementPolicy::CloseToFiles => {
            for at in by_size(components) {
                let one = &components[at];
                let candidates = state.fitting(one);
                let best = match policy {
                    PlacementPolicy::CloseToFiles => {
                        candidates.min_by(|(a, idle_a), (b, idle_b)| {
                            let seconds = |cluster| snapshot.seconds(&one.files, cluster);
                            seconds(a)
                                .total_cmp(&seconds(b))
                                .then(idle_b.cmp(idle_a))
                                .then(a.cmp(b))
                        })
                    }
                    _ => candidates
                        .max_by(|(a, idle_a), (b, idle_b)| idle_a.cmp(idle_b).then(b.cmp(a))),
                };
                let Some((cluster, _)) = best else { return Err(state.excluded(at, one)) };
                state.take(cluster, one.min);
                chosen[at] = Some(cluster);
            }
        }
    }
    let mut parts = Vec::new();
    for (component, (cluster, one)) in chosen.into_iter().zip(components).enumerate() {
        let Some(cluster) = cluster else { continue };
        let more = state.take_up_to(cluster, one.max_at_start.saturating_sub(one.min));
        parts.push(PlacedPart { component, cluster: cluster.clone(), count: one.min + more });
    }
    let mut placed = state.placed(policy, parts, components);
    if may_be_fewer {
        placed.why += "; a placement in fewer clusters may exist";
    }
    Ok(placed)
}

/// Sorts components by size, largest first, so that small ones fill the gaps.
fn by_size(components: &[Component]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..components.len()).collect();
    order.sort_by_key(|&at| (Reverse(components[at].min), at));
    order
}

/// State of the clusters during a placement.
struct PlacementState<'a> {
    snapshot: &'a CapacitySnapshot,
    idle: BTreeMap<&'a ClusterId, u32>,
    /// Whether all components together exceed the maximum of all clusters.
    exceeds_grid: bool,
}

impl<'a> PlacementState<'a> {
    fn take(&mut self, cluster: &ClusterId, count: u32) {
        if let Some(idle) = self.idle.get_mut(cluster) {
            *idle = idle.saturating_sub(count);
        }
    }

    fn take_up_to(&mut self, cluster: &ClusterId, most: u32) -> u32 {
        let taken = self.idle.get(cluster).map_or(0, |idle| most.min(*idle));
        self.take(cluster, taken);
        taken
    }

    fn open(&self, one: &Component) -> impl Iterator<Item = (&'a ClusterId, u32)> {
        let named = |cluster: &ClusterId| one.clusters.is_empty() || one.clusters.contains(cluster);
        let clusters =
            self.snapshot.clusters.iter().filter(|(_, capacity)| capacity.closed.is_none());
        let lacks = |cluster: &ClusterId| self.snapshot.lacks(&one.files, cluster).is_some();
        clusters
            .filter(move |(cluster, _)| named(cluster) && !lacks(cluster))
            .map(|(cluster, _)| (cluster, self.idle[cluster]))
    }

    /// Clusters where a component's minimum fits.
    fn fitting(&self, one: &Component) -> impl Iterator<Item = (&'a ClusterId, u32)> {
        let min = one.min;
        self.open(one).filter(move |&(_, idle)| idle >= min)
    }

    /// The minima of all components as items, and the clusters as bins. Components with equal
    /// limits and files are one class.
    fn packing_problem(&self, components: &[Component]) -> PackingProblem {
        let mut classes: BTreeMap<(&BTreeSet<ClusterId>, &[FileName]), usize> = BTreeMap::new();
        let mut open = Vec::new();
        let mut items = Vec::new();
        for one in components {
            let class = *classes.entry((&one.clusters, &one.files)).or_insert_with(|| {
                let allowed: BTreeSet<&ClusterId> = self.open(one).map(|(at, _)| at).collect();
                let clusters = self.snapshot.clusters.keys().enumerate();
                let allowed = clusters.filter(|(_, cluster)| allowed.contains(cluster));
                open.push(allowed.map(|(bin, _)| bin).collect());
                open.len() - 1
            });
            items.push((one.min, class));
        }
        let bins = self.snapshot.clusters.keys().map(|cluster| self.idle[cluster]).collect();
        PackingProblem { items, bins, open }
    }

    /// Packs the minima of all components into as few clusters as possible. None if no packing was
    /// found.
    fn minimise(&self, components: &[Component]) -> Option<Packing> {
        match self.packing_problem(components).solve(PACKING_STEPS) {
            PackingResult::Packed(packing) => Some(packing),
            PackingResult::Impossible | PackingResult::Unknown => None,
        }
    }

    /// Divides components among clusters, as few as possible. All get their minimum before any gets
    /// more, and more only in clusters where they have processors.
    fn flexible(&mut self, components: &[Component]) -> Result<PlacementPlan, PlacementError> {
        let problem = self.packing_problem(components);
        let Some(mut amounts) = problem.divide(PACKING_STEPS) else {
            return Err(self.flexible_error(components));
        };
        let clusters: Vec<&ClusterId> = self.snapshot.clusters.keys().collect();
        let mut parts = Vec::new();
        for at in by_size(components) {
            let (mut missing, class) = problem.items[at];
            while missing > 0 {
                let amounts = &mut amounts[class];
                let most = (0..amounts.len()).max_by_key(|&bin| (amounts[bin], Reverse(bin)));
                let Some(bin) = most.filter(|&bin| amounts[bin] > 0) else { break };
                let count = missing.min(amounts[bin]);
                missing -= count;
                amounts[bin] -= count;
                self.take(clusters[bin], count);
                parts.push(PlacedPart { component: at, cluster: clusters[bin].clone(), count });
            }
        }
        parts.sort_by_key(|part| part.component);
        let mut more: Vec<u32> =
            components.iter().map(|one| one.max_at_start.saturating_sub(one.min)).collect();
        for part in &mut parts {
            let more = &mut more[part.component];
            let count = self.take_up_to(&part.cluster, *more);
            part.count += count;
            *more -= count;
        }
        Ok(self.placed(PlacementPolicy::FlexibleClusterMinimisation, parts, components))
    }

    /// Why components cannot be divided: the first that finds too few processors after those before
    /// it.
    fn flexible_error(&mut self, components: &[Component]) -> PlacementError {
        let order = by_size(components);
        for &at in &order {
            let one = &components[at];
            let open: Vec<(&ClusterId, u32)> = self.open(one).collect();
            if open.iter().map(|&(_, idle)| u64::from(idle)).sum::<u64>() < u64::from(one.min) {
                return self.excluded_in_sum(at, one);
            }
            let mut missing = one.min;
            for (cluster, _) in open {
                missing -= self.take_up_to(cluster, missing);
            }
        }
        // Only the limits of several components together, or the limit of steps.
        let last = order.last().copied().unwrap_or_default();
        self.excluded_in_sum(last, &components[last])
    }

    fn excluded(&self, component: usize, one: &Component) -> PlacementError {
        let why = |cluster: &ClusterId, capacity: &ClusterCapacity| {
            let (idle, needed) = (self.idle[cluster], one.min);
            if !one.clusters.is_empty() && !one.clusters.contains(cluster) {
                ExclusionReason::NotNamed
            } else if let Some(reason) = capacity.closed.clone() {
                ExclusionReason::Closed { reason }
            } else if let Some(reason) = self.snapshot.lacks(&one.files, cluster) {
                ExclusionReason::NoFile { reason }
            } else if capacity.nominal_size < needed {
                ExclusionReason::TooSmall { size: capacity.nominal_size, needed }
            } else if capacity.size < needed {
                ExclusionReason::TooFewWork {
                    size: capacity.size,
                    whole: capacity.nominal_size,
                    needed,
                }
            } else {
                ExclusionReason::TooFewIdle { idle, needed }
            }
        };
        let clusters = self.snapshot.clusters.iter();
        let excluded: BTreeMap<ClusterId, ExclusionReason> =
            clusters.map(|(cluster, capacity)| (cluster.clone(), why(cluster, capacity))).collect();
        let permanent = |why: &ExclusionReason| {
            matches!(why, ExclusionReason::NotNamed | ExclusionReason::TooSmall { .. })
        };
        let can_never_fit = self.exceeds_grid || excluded.values().all(permanent);
        PlacementError { component, can_never_fit, excluded }
    }

    /// Like `excluded`, for a component that may be divided.
    fn excluded_in_sum(&self, component: usize, one: &Component) -> PlacementError {
        let single = Component { min: 1, ..one.clone() };
        let mut no = self.excluded(component, &single);
        for (cluster, why) in &mut no.excluded {
            if let ExclusionReason::TooFewIdle { needed, .. }
            | ExclusionReason::TooFewWork { needed, .. }
            | ExclusionReason::TooSmall { needed, .. } = why
            {
                *needed = one.min;
            }
            if let (ExclusionReason::TooFewIdle { idle, .. }, Some(now)) =
                (why, self.idle.get(cluster))
            {
                *idle = *now;
            }
        }
        let usable =
            |cluster: &&ClusterId| one.clusters.is_empty() || one.clusters.contains(*cluster);
        let sum: u64 = (self.snapshot.clusters.iter())
            .filter(|(cluster, _)| usable(cluster))
            .map(|(_, capacity)| capacity.size_max())
            .sum();
        no.can_never_fit = self.exceeds_grid || sum < u64::from(one.min);
        no
    }

    fn placed(
        &self,
        policy: PlacementPolicy,
        parts: Vec<PlacedPart>,
        components: &[Component],
    ) -> PlacementPlan {
        let mut transfers: Vec<PlacementTransfer> = Vec::new();
        let mut seen = BTreeSet::new();
        for part in &parts {
            for file in &components[part.component].files {
                if seen.insert((file, &part.cluster)) {
                    transfers.extend(self.snapshot.transfer(file, &part.cluster));
                }
            }
        }
        let say = |part: &PlacedPart| format!("{} in {}", part.count, part.cluster);
        let places: Vec<String> = parts.iter().map(say).collect();
        let mut why = format!("{policy}: {}", places.join(", "));
        if !transfers.is_empty() {
            let bytes: u64 = transfers.iter().map(|transfer| transfer.bytes).sum();
            why += &format!("; {} files of {bytes} bytes are moved there first", transfers.len());
        }
        PlacementPlan { parts, transfers, why }
    }
}

impl CapacitySnapshot {
    /// The fastest transfer of a file to a cluster without a copy. A file unknown to the catalogue
    /// is the job's responsibility.
    pub fn transfer(&self, file: &FileName, to: &ClusterId) -> Option<PlacementTransfer> {
        let replica = self.files.get(file).filter(|replica| !replica.clusters.contains(to))?;
        let rate = |from: &ClusterId| {
            let rate = self.links.get(&(from.clone(), to.clone())).copied();
            rate.filter(|rate| rate.is_finite() && *rate > 0.0).unwrap_or(0.0)
        };
        let best =
            replica.clusters.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)).then(b.cmp(a)))?;
        let seconds = replica.bytes as f64 / rate(best);
        let (file, from, to) = (file.clone(), best.clone(), to.clone());
        let seconds = if seconds.is_nan() { f64::INFINITY } else { seconds };
        Some(PlacementTransfer { file, from, to, bytes: replica.bytes, seconds })
    }

    /// Why files are not readable in a cluster, even after transfers.
    pub fn lacks(&self, files: &[FileName], cluster: &ClusterId) -> Option<String> {
        let lacks = |file: &FileName| {
            let replica = self.files.get(file)?;
            if let Some(differs) = &replica.differs {
                return Some(format!("files named {file} differ: {differs}"));
            }
            if replica.clusters.is_empty() {
                return Some(format!("no cluster has the file {file}"));
            }
            let there = replica.clusters.contains(cluster);
            (!there && self.without_files.contains(cluster))
                .then(|| format!("has no directory for files, and needs {file}"))
        };
        files.iter().find_map(lacks)
    }

    /// Seconds of all transfers of missing files, one after the other.
    pub fn seconds(&self, files: &[FileName], to: &ClusterId) -> f64 {
        let needed = files.iter().filter_map(|file| self.transfer(file, to));
        needed.map(|transfer| transfer.seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(clusters: &[(&str, u32, u32)]) -> CapacitySnapshot {
        let capacity = |&(name, size, idle): &(&str, u32, u32)| {
            (
                ClusterId::from(name),
                ClusterCapacity { size, nominal_size: size, idle, closed: None },
            )
        };
        CapacitySnapshot {
            clusters: clusters.iter().map(capacity).collect(),
            ..CapacitySnapshot::default()
        }
    }

    fn needs(sizes: &[u32]) -> Vec<Component> {
        let one =
            |&min| Component { min, max_at_start: min, clusters: BTreeSet::new(), files: vec![] };
        sizes.iter().map(one).collect()
    }

    fn id(name: &str) -> ClusterId {
        ClusterId::from(name)
    }

    fn parts(placed: &PlacementPlan) -> Vec<(usize, &str, u32)> {
        placed.parts.iter().map(|p| (p.component, p.cluster.as_str(), p.count)).collect()
    }

    #[test]
    fn worst_fit_balances_the_rest() {
        let snapshot = snapshot(&[("a", 10, 5), ("b", 10, 9), ("c", 10, 8)]);
        let placed = place(PlacementPolicy::WorstFit, &needs(&[2, 4, 3]), &snapshot).unwrap();
        // 4 to b (leaves 5), 3 to c (leaves 5), 2 to a: of equals, the first by name.
        assert_eq!(parts(&placed), [(0, "a", 2), (1, "b", 4), (2, "c", 3)]);
    }

    #[test]
    fn all_components_get_their_minimum_before_any_gets_more() {
        let snapshot = snapshot(&[("a", 10, 6)]);
        let mut components = needs(&[2, 2]);
        components[0].max_at_start = 10;
        let placed = place(PlacementPolicy::WorstFit, &components, &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 4), (1, "a", 2)]);
    }

    #[test]
    fn cluster_minimisation_takes_the_fewest_and_flexible_cuts_the_job() {
        let snapshot = snapshot(&[("a", 8, 6), ("b", 8, 4), ("c", 8, 3)]);
        let placed =
            place(PlacementPolicy::ClusterMinimisation, &needs(&[3, 3, 4]), &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 3), (1, "a", 3), (2, "b", 4)]);
        assert!(
            place(PlacementPolicy::ClusterMinimisation, &needs(&[9]), &snapshot)
                .unwrap_err()
                .can_never_fit
        );
        let placed =
            place(PlacementPolicy::FlexibleClusterMinimisation, &needs(&[9]), &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 6), (0, "b", 3)]);
        let no = place(PlacementPolicy::FlexibleClusterMinimisation, &needs(&[14]), &snapshot)
            .unwrap_err();
        assert!(!no.can_never_fit, "{no}");
        assert!(
            place(PlacementPolicy::FlexibleClusterMinimisation, &needs(&[25]), &snapshot)
                .unwrap_err()
                .can_never_fit
        );
    }

    #[test]
    fn processors_may_work_again_and_too_large_jobs_never_fit() {
        let mut snapshot = snapshot(&[("a", 2, 2), ("b", 2, 2)]);
        assert!(
            place(PlacementPolicy::WorstFit, &needs(&[3]), &snapshot).unwrap_err().can_never_fit
        );
        assert!(
            place(PlacementPolicy::WorstFit, &needs(&[1, 1, 1, 1, 1]), &snapshot)
                .unwrap_err()
                .can_never_fit
        );
        assert!(place(PlacementPolicy::WorstFit, &needs(&[1, 1, 2, 0]), &snapshot).is_ok());
        snapshot.clusters.get_mut(&id("a")).unwrap().nominal_size = 4;
        let no = place(PlacementPolicy::WorstFit, &needs(&[3]), &snapshot).unwrap_err();
        let text = "a 2 of its 4 processors work, 3 are needed; b has 2 processors, 3 are needed";
        assert!(no.to_string().ends_with(text) && !no.can_never_fit, "{no}");
        let no = place(PlacementPolicy::FlexibleClusterMinimisation, &needs(&[6]), &snapshot)
            .unwrap_err();
        assert!(!no.can_never_fit, "{no}");
    }

    #[test]
    fn close_to_files_prefers_holders_then_the_soonest() {
        let mut snapshot = snapshot(&[("a", 8, 8), ("b", 8, 2), ("c", 8, 5)]);
        let clusters = BTreeSet::from([id("b")]);
        snapshot
            .files
            .insert("bodies".to_owned(), FileReplicas { bytes: 1000, clusters, differs: None });
        snapshot.links.insert((id("b"), id("a")), 10.0);
        snapshot.links.insert((id("b"), id("c")), 100.0);
        let mut one = needs(&[2]);
        one[0].files = vec!["bodies".to_owned()];
        let placed = place(PlacementPolicy::CloseToFiles, &one, &snapshot).unwrap();
        assert_eq!((parts(&placed), placed.transfers.len()), (vec![(0, "b", 2)], 0));
        (one[0].min, one[0].max_at_start) = (3, 3);
        let placed = place(PlacementPolicy::CloseToFiles, &one, &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "c", 3)]);
        assert_eq!((placed.transfers[0].from.as_str(), placed.transfers[0].seconds), ("b", 10.0));
        snapshot.links.clear();
        // Without measurements: the cluster with most idle processors.
        let placed = place(PlacementPolicy::CloseToFiles, &one, &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 3)]);
        assert_eq!(placed.transfers[0].seconds, f64::INFINITY);
    }

    #[test]
    fn a_file_that_cannot_be_provided_excludes_a_cluster() {
        let mut snapshot = snapshot(&[("a", 8, 8), ("b", 8, 4), ("c", 8, 2)]);
        let replica = |at: &[&str]| FileReplicas {
            bytes: 1000,
            clusters: at.iter().map(|name| id(name)).collect(),
            differs: None,
        };
        snapshot.files.insert("bodies".to_owned(), replica(&["c"]));
        snapshot.without_files.insert(id("a"));
        let mut one = needs(&[2]);
        one[0].files = vec!["bodies".to_owned()];
        for policy in PlacementPolicy::ALL {
            let placed = place(*policy, &one, &snapshot).unwrap();
            assert_ne!(placed.parts[0].cluster, id("a"), "{policy}");
        }
        one[0].min = 5;
        let no = place(PlacementPolicy::WorstFit, &one, &snapshot).unwrap_err();
        let text = "a has no directory for files, and needs bodies; b 4 idle, 5 needed; \
                    c 2 idle, 5 needed";
        assert!(no.to_string().ends_with(text) && !no.can_never_fit, "{no}");
        // A missing or ambiguous file excludes all clusters until that changes.
        one[0].min = 1;
        snapshot.files.insert("bodies".to_owned(), replica(&[]));
        let no = place(PlacementPolicy::CloseToFiles, &one, &snapshot).unwrap_err();
        assert!(
            no.to_string().contains("c no cluster has the file bodies") && !no.can_never_fit,
            "{no}"
        );
        let differs = Some("b has 5 bytes, c 6".to_owned());
        snapshot
            .files
            .insert("bodies".to_owned(), FileReplicas { differs, ..replica(&["b", "c"]) });
        let no = place(PlacementPolicy::FlexibleClusterMinimisation, &one, &snapshot).unwrap_err();
        let text = "c files named bodies differ: b has 5 bytes, c 6";
        assert!(no.to_string().contains(text) && !no.can_never_fit, "{no}");
    }

    #[test]
    fn the_error_lists_the_reason_of_each_cluster() {
        let mut snapshot = snapshot(&[("a", 8, 1), ("b", 1, 1), ("c", 8, 8), ("d", 8, 8)]);
        snapshot.clusters.get_mut(&id("c")).unwrap().closed =
            Some("sinfo does not answer".to_owned());
        let mut one = needs(&[2]);
        one[0].clusters = [id("a"), id("b"), id("c")].into();
        let no = place(PlacementPolicy::WorstFit, &one, &snapshot).unwrap_err();
        let text = "no cluster can take component 1: a 1 idle, 2 needed; b has 1 processors, \
                    2 are needed; c closed: sinfo does not answer; d the job does not name it";
        assert_eq!((no.to_string(), no.can_never_fit), (text.to_owned(), false));
    }

    #[test]
    fn names_of_policies_round_trip() {
        for &policy in PlacementPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("best-fit".parse::<PlacementPolicy>().is_err());
    }

    /// A job of many components is placed, or refused, within the limit of steps.
    #[test]
    fn jobs_of_many_components_are_placed() {
        let names: Vec<String> = (0..100).map(|at| format!("c{at:02}")).collect();
        let clusters: Vec<_> = names.iter().map(|name| (name.as_str(), 64, 64)).collect();
        let snapshot = snapshot(&clusters);
        for policy in PlacementPolicy::ALL {
            let sizes: Vec<u32> = (0..5000).map(|at| 1 + at % 2).collect();
            if *policy == PlacementPolicy::FlexibleClusterMinimisation {
                // 7,500 processors of 6,400.
                assert!(place(*policy, &needs(&sizes), &snapshot).unwrap_err().can_never_fit);
            }
            let sizes = &sizes[..4000];
            let placed = place(*policy, &needs(sizes), &snapshot).unwrap();
            let clusters: BTreeSet<_> = placed.parts.iter().map(|part| &part.cluster).collect();
            let minimises =
                !matches!(policy, PlacementPolicy::WorstFit | PlacementPolicy::CloseToFiles);
            assert!(!minimises || clusters.len() == 6000usize.div_ceil(64), "{policy}");
        }
    }

    /// Policies that divide or minimise refuse a job only if no placement exists. The others are
    /// the paper's heuristics.
    #[test]
    fn limits_to_clusters_are_met_where_they_can_be() {
        let snapshot = snapshot(&[("a", 4, 4), ("b", 3, 3)]);
        let mut components = needs(&[3, 3]);
        components[1].clusters = [id("a")].into();
        assert!(place(PlacementPolicy::WorstFit, &components, &snapshot).is_err());
        let placed = place(PlacementPolicy::ClusterMinimisation, &components, &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "b", 3), (1, "a", 3)]);
        components[0].min = 4;
        components[0].max_at_start = 9;
        let placed =
            place(PlacementPolicy::FlexibleClusterMinimisation, &components, &snapshot).unwrap();
        assert_eq!(parts(&placed), [(0, "b", 3), (0, "a", 1), (1, "a", 3)]);
        components[1].min = 5;
        let no = place(PlacementPolicy::FlexibleClusterMinimisation, &components, &snapshot)
            .unwrap_err();
        assert_eq!((no.component, no.can_never_fit), (1, true), "{no}");
    }

    proptest! {
        /// No processor is given twice, each component gets its minimum, and one cluster where
        /// required.
        #[test]
        fn placements_fit(
            idle in prop::collection::vec(0u32..20, 1..6),
            asked in prop::collection::vec((1u32..8, 0u32..8), 0..5),
            policy in prop::sample::select(PlacementPolicy::ALL),
        ) {
            let names = ["a", "b", "c", "d", "e"];
            let clusters: Vec<_> =
                names.iter().zip(&idle).map(|(&name, &idle)| (name, 20, idle)).collect();
            let snapshot = snapshot(&clusters);
            let mut components = needs(&asked.iter().map(|a| a.0).collect::<Vec<_>>());
            for (one, (_, more)) in components.iter_mut().zip(&asked) {
                one.max_at_start += more;
            }
            match place(policy, &components, &snapshot) {
                Ok(placed) => {
                    let mut left: BTreeMap<_, _> =
                        snapshot.clusters.iter().map(|(c, r)| (c.clone(), r.idle)).collect();
                    let mut got = vec![(0, 0); components.len()];
                    for part in &placed.parts {
                        let left = left.get_mut(&part.cluster).unwrap();
                        prop_assert!(part.count >= 1 && part.count <= *left, "{placed:?}");
                        *left -= part.count;
                        got[part.component].0 += part.count;
                        got[part.component].1 += 1;
                    }
                    for (one, (count, pieces)) in components.iter().zip(got) {
                        prop_assert!(count >= one.min && count <= one.max_at_start, "{placed:?}");
                        let flexible = policy == PlacementPolicy::FlexibleClusterMinimisation;
                        prop_assert!(pieces == 1 || flexible);
                    }
                }
                Err(no) => {
                    prop_assert_eq!(no.excluded.len(), snapshot.clusters.len());
                    // A single component fits wherever any cluster has room.
                    if let [one] = &components[..] {
                        prop_assert!(idle.iter().all(|&idle| idle < one.min));
                    }
                    let needed: u32 = components.iter().map(|one| one.min).sum();
                    let divides = policy == PlacementPolicy::FlexibleClusterMinimisation;
                    prop_assert!(!divides || needed > idle.iter().sum());
                }
            }
        }
    }
}
