//! In which clusters a job's processors lie at its start.
//!
//! Must not know how they are claimed, or what becomes of the job when there is no room.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
pub use springtide_runtime::config::Placing as Placement;
use springtide_runtime::id::ClusterId;

/// A job's input file, by the name that the catalogue of replicas knows it under.
pub type FileName = String;

/// A part of a job that is to lie in one cluster (in several only under [`Placement::FlexibleClusterMinimisation`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Fewest processors that it starts with, at least 1.
    pub min: u32,
    /// Most that it starts with, at least `min`.
    pub start: u32,
    /// It may lie nowhere else than in one of these; empty: anywhere.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterId>,
    /// What it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileName>,
}

/// A cluster as placement sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Processors that work.
    pub size: u32,
    /// Those that it would have if all worked, at least as many.
    pub whole: u32,
    /// Those that nobody uses.
    pub idle: u32,
    /// Why nothing may be placed there at the moment.
    pub closed: Option<String>,
}

impl Room {
    /// Processors that it may have one day. Of one that cannot be used now nobody knows what it will be.
    pub fn could_have(&self) -> u64 {
        let whole = if self.closed.is_some() { u32::MAX } else { self.whole.max(self.size) };
        whole.into()
    }
}

/// A file and where copies of it are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Its length.
    pub bytes: u64,
    /// Who has it; nobody, if it is known to be needed and nowhere found.
    pub clusters: BTreeSet<ClusterId>,
    /// What differs between files of this name, if any do: then nobody knows which is meant, and none is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// Bytes per second from the first cluster to the second, as far as they were measured.
pub type Links = BTreeMap<(ClusterId, ClusterId), f64>;

/// What a job is placed on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ground {
    /// The clusters.
    pub rooms: BTreeMap<ClusterId, Room>,
    /// The files.
    pub files: BTreeMap<FileName, Replica>,
    /// The links.
    pub links: Links,
    /// Clusters to which no file can be brought.
    pub without_files: BTreeSet<ClusterId>,
}

/// Processors of a cluster for a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Index of the component.
    pub component: usize,
    /// Where.
    pub cluster: ClusterId,
    /// How many, at least 1.
    pub count: u32,
}

/// A file that has to be brought to where it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Which.
    pub file: FileName,
    /// From here.
    pub from: ClusterId,
    /// To there.
    pub to: ClusterId,
    /// Its length.
    pub bytes: u64,
    /// How long that takes; infinite if the link was never measured.
    pub seconds: f64,
}

/// A place for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// In order of components, and of choice within one.
    pub parts: Vec<Part>,
    /// What has to be moved before it starts.
    pub transfers: Vec<Transfer>,
    /// How it was chosen, in a sentence.
    pub why: String,
}

/// Why a cluster cannot take a component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Excluded {
    /// The job does not want it.
    NotNamed,
    /// It is out of use.
    Closed {
        /// Why.
        reason: String,
    },
    /// It never has so many.
    TooSmall {
        /// What it has.
        size: u32,
        /// What is needed.
        needed: u32,
    },
    /// Not so many of its processors work now.
    TooFewWork {
        /// Those that do.
        size: u32,
        /// What it would have if all did.
        whole: u32,
        /// What is needed.
        needed: u32,
    },
    /// It has not so many now.
    TooFewIdle {
        /// What nobody uses, or other components of this job have left.
        idle: u32,
        /// What is needed.
        needed: u32,
    },
    /// A file that is needed cannot be there.
    NoFile {
        /// Which, and why not.
        reason: String,
    },
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNamed => f.write_str("the job does not name it"),
            Self::Closed { reason } => write!(f, "closed: {reason}"),
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

/// There is no place for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoPlace {
    /// Which component has none: the first that was tried in vain.
    pub component: usize,
    /// What each cluster lacks for it.
    pub excluded: BTreeMap<ClusterId, Excluded>,
    /// No cluster could take it even if all were idle and open.
    pub never: bool,
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ever = if self.never { "no cluster can ever take" } else { "no cluster can take" };
        write!(f, "{ever} component {}", self.component + 1)?;
        for (at, (cluster, why)) in self.excluded.iter().enumerate() {
            write!(f, "{} {cluster} {why}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

/// Places a job's components by a policy. At least one component, else there is nothing to place and the plan is empty.
///
/// # Errors
/// [`NoPlace`].
pub fn place(
    policy: Placement,
    components: &[Component],
    ground: &Ground,
) -> Result<Placed, NoPlace> {
    let all: u64 = components.iter().map(|one| u64::from(one.min)).sum();
    let vain = all > ground.rooms.values().map(Room::could_have).sum();
    let idle = ground.rooms.iter().map(|(c, r)| (c, r.idle)).collect();
    let mut desk = Desk { ground, idle, vain };
    let mut chosen: Vec<Option<&ClusterId>> = vec![None; components.len()];
    match policy {
        Placement::FlexibleClusterMinimisation => return desk.flexible(components),
        Placement::WorstFit | Placement::CloseToFiles => {
            for at in by_size(components) {
                let one = &components[at];
                let candidates = desk.fitting(one);
                let best = match policy {
                    Placement::CloseToFiles => candidates.min_by(|(a, idle_a), (b, idle_b)| {
                        let seconds = |cluster| ground.seconds(&one.files, cluster);
                        seconds(a).total_cmp(&seconds(b)).then(idle_b.cmp(idle_a)).then(a.cmp(b))
                    }),
                    _ => candidates
                        .max_by(|(a, idle_a), (b, idle_b)| idle_a.cmp(idle_b).then(b.cmp(a))),
                };
                let Some((cluster, _)) = best else { return Err(desk.excluded(at, one)) };
                desk.take(cluster, one.min);
                chosen[at] = Some(cluster);
            }
        }
        Placement::ClusterMinimisation => {
            let mut left = by_size(components);
            while !left.is_empty() {
                // The cluster that takes most processors of what is left.
                let taken = ground.rooms.keys().map(|c| (c, desk.takes(c, &left, components)));
                let best = taken.max_by(|(a, (_, sum_a)), (b, (_, sum_b))| {
                    let (idle_a, idle_b) = (desk.idle[*a], desk.idle[*b]);
                    sum_a.cmp(sum_b).then(idle_a.cmp(&idle_b)).then(b.cmp(a))
                });
                let Some((cluster, (took, _))) = best.filter(|(_, (took, _))| !took.is_empty())
                else {
                    // To fill each as far as it goes can leave too little for the last: then as many clusters as it takes.
                    return place(Placement::WorstFit, components, ground);
                };
                for &at in &took {
                    desk.take(cluster, components[at].min);
                    chosen[at] = Some(cluster);
                }
                left.retain(|at| !took.contains(at));
            }
        }
    }
    let mut parts = Vec::new();
    for (component, (cluster, one)) in chosen.into_iter().zip(components).enumerate() {
        let Some(cluster) = cluster else { continue };
        let more = desk.take_up_to(cluster, one.start.saturating_sub(one.min));
        parts.push(Part { component, cluster: cluster.clone(), count: one.min + more });
    }
    Ok(desk.placed(policy, parts, components))
}

/// Components, largest first, so that small ones fill what is left.
fn by_size(components: &[Component]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..components.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(components[at].min), at));
    order
}

/// The clusters while a job is placed on them.
struct Desk<'a> {
    ground: &'a Ground,
    idle: BTreeMap<&'a ClusterId, u32>,
    /// All components together need more than all clusters could ever have.
    vain: bool,
}

impl<'a> Desk<'a> {
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
        let rooms = self.ground.rooms.iter().filter(|(_, room)| room.closed.is_none());
        let lacks = |cluster: &ClusterId| self.ground.lacks(&one.files, cluster).is_some();
        rooms
            .filter(move |(cluster, _)| named(cluster) && !lacks(cluster))
            .map(|(cluster, _)| (cluster, self.idle[cluster]))
    }

    /// Where a component's minimum fits.
    fn fitting(&self, one: &Component) -> impl Iterator<Item = (&'a ClusterId, u32)> {
        let min = one.min;
        self.open(one).filter(move |&(_, idle)| idle >= min)
    }

    /// Which of these components together fill a cluster best, and how many processors that makes.
    fn takes(&self, cluster: &ClusterId, left: &[usize], all: &[Component]) -> (Vec<usize>, u32) {
        let allowed = |one: &Component| self.open(one).any(|(open, _)| open == cluster);
        let idle = self.idle.get(cluster).copied().unwrap_or(0);
        // Every sum that can be made, with the components that make it.
        let mut sums: BTreeMap<u32, Vec<usize>> = BTreeMap::from([(0, Vec::new())]);
        for &at in left.iter().filter(|&&at| allowed(&all[at])) {
            for (sum, took) in sums.clone() {
                let sum = sum.saturating_add(all[at].min);
                if sum <= idle {
                    sums.entry(sum).or_insert_with(|| [&took[..], &[at]].concat());
                }
            }
        }
        sums.pop_last().map_or_else(Default::default, |(sum, took)| (took, sum))
    }

    /// All as one: the clusters with most idle processors, as few as there can be.
    fn flexible(&mut self, components: &[Component]) -> Result<Placed, NoPlace> {
        let mut parts = Vec::new();
        for at in by_size(components) {
            let one = &components[at];
            let mut open: Vec<(&ClusterId, u32)> =
                self.open(one).filter(|&(_, idle)| idle > 0).collect();
            open.sort_by(|(a, idle_a), (b, idle_b)| idle_b.cmp(idle_a).then(a.cmp(b)));
            if open.iter().map(|&(_, idle)| u64::from(idle)).sum::<u64>() < u64::from(one.min) {
                return Err(self.excluded_in_sum(at, one));
            }
            let mut taken = 0;
            for (cluster, _) in open {
                // More clusters only for what it cannot do without.
                let most = if taken < one.min { one.start - taken } else { 0 };
                let count = self.take_up_to(cluster, most);
                if count > 0 {
                    parts.push(Part { component: at, cluster: cluster.clone(), count });
                    taken += count;
                }
            }
        }
        parts.sort_by_key(|part| part.component);
        Ok(self.placed(Placement::FlexibleClusterMinimisation, parts, components))
    }

    fn excluded(&self, component: usize, one: &Component) -> NoPlace {
        let why = |cluster: &ClusterId, room: &Room| {
            let (idle, needed) = (self.idle[cluster], one.min);
            if !one.clusters.is_empty() && !one.clusters.contains(cluster) {
                Excluded::NotNamed
            } else if let Some(reason) = room.closed.clone() {
                Excluded::Closed { reason }
            } else if let Some(reason) = self.ground.lacks(&one.files, cluster) {
                Excluded::NoFile { reason }
            } else if room.whole < needed {
                Excluded::TooSmall { size: room.whole, needed }
            } else if room.size < needed {
                Excluded::TooFewWork { size: room.size, whole: room.whole, needed }
            } else {
                Excluded::TooFewIdle { idle, needed }
            }
        };
        let rooms = self.ground.rooms.iter();
        let excluded: BTreeMap<ClusterId, Excluded> =
            rooms.map(|(cluster, room)| (cluster.clone(), why(cluster, room))).collect();
        let hopeless =
            |why: &Excluded| matches!(why, Excluded::NotNamed | Excluded::TooSmall { .. });
        let never = self.vain || excluded.values().all(hopeless);
        NoPlace { component, never, excluded }
    }

    /// As [`Desk::excluded`], of a component that may be cut.
    fn excluded_in_sum(&self, component: usize, one: &Component) -> NoPlace {
        let single = Component { min: 1, ..one.clone() };
        let mut no = self.excluded(component, &single);
        for (cluster, why) in &mut no.excluded {
            if let Excluded::TooFewIdle { needed, .. }
            | Excluded::TooFewWork { needed, .. }
            | Excluded::TooSmall { needed, .. } = why
            {
                *needed = one.min;
            }
            if let (Excluded::TooFewIdle { idle, .. }, Some(now)) = (why, self.idle.get(cluster)) {
                *idle = *now;
            }
        }
        let usable =
            |cluster: &&ClusterId| one.clusters.is_empty() || one.clusters.contains(*cluster);
        let sum: u64 = (self.ground.rooms.iter())
            .filter(|(cluster, _)| usable(cluster))
            .map(|(_, room)| room.could_have())
            .sum();
        no.never = self.vain || sum < u64::from(one.min);
        no
    }

    fn placed(&self, policy: Placement, parts: Vec<Part>, components: &[Component]) -> Placed {
        let mut transfers: Vec<Transfer> = Vec::new();
        for part in &parts {
            for file in &components[part.component].files {
                let there = |t: &&Transfer| t.file == *file && t.to == part.cluster;
                if transfers.iter().any(|t| there(&t)) {
                    continue;
                }
                transfers.extend(self.ground.transfer(file, &part.cluster));
            }
        }
        let say = |part: &Part| format!("{} in {}", part.count, part.cluster);
        let places: Vec<String> = parts.iter().map(say).collect();
        let mut why = format!("{policy}: {}", places.join(", "));
        if !transfers.is_empty() {
            let bytes: u64 = transfers.iter().map(|transfer| transfer.bytes).sum();
            why += &format!("; {} files of {bytes} bytes are moved there first", transfers.len());
        }
        Placed { parts, transfers, why }
    }
}

impl Ground {
    /// How a file gets to a cluster, if it is not there: from where it comes soonest. A file that the catalogue does not
    /// know is the job's own business.
    pub fn transfer(&self, file: &FileName, to: &ClusterId) -> Option<Transfer> {
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
        Some(Transfer { file, from, to, bytes: replica.bytes, seconds })
    }

    /// Why files cannot be read in a cluster, neither now nor after they were brought there.
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

    /// How long it takes to bring what is not there, one file after the other.
    pub fn seconds(&self, files: &[FileName], to: &ClusterId) -> f64 {
        let needed = files.iter().filter_map(|file| self.transfer(file, to));
        needed.map(|transfer| transfer.seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ground(rooms: &[(&str, u32, u32)]) -> Ground {
        let room = |&(name, size, idle): &(&str, u32, u32)| {
            (ClusterId::from(name), Room { size, whole: size, idle, closed: None })
        };
        Ground { rooms: rooms.iter().map(room).collect(), ..Ground::default() }
    }

    fn needs(sizes: &[u32]) -> Vec<Component> {
        let one = |&min| Component { min, start: min, clusters: BTreeSet::new(), files: vec![] };
        sizes.iter().map(one).collect()
    }

    fn id(name: &str) -> ClusterId {
        ClusterId::from(name)
    }

    fn parts(placed: &Placed) -> Vec<(usize, &str, u32)> {
        placed.parts.iter().map(|p| (p.component, p.cluster.as_str(), p.count)).collect()
    }

    #[test]
    fn worst_fit_evens_out_what_is_left() {
        let ground = ground(&[("a", 10, 5), ("b", 10, 9), ("c", 10, 8)]);
        let placed = place(Placement::WorstFit, &needs(&[2, 4, 3]), &ground).unwrap();
        // 4 to b (leaves 5), 3 to c (leaves 5), 2 to a: of equals the first by name.
        assert_eq!(parts(&placed), [(0, "a", 2), (1, "b", 4), (2, "c", 3)]);
    }

    #[test]
    fn a_start_above_the_minimum_is_filled_up_after_everybody_has_the_minimum() {
        let ground = ground(&[("a", 10, 6)]);
        let mut components = needs(&[2, 2]);
        components[0].start = 10;
        let placed = place(Placement::WorstFit, &components, &ground).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 4), (1, "a", 2)]);
    }

    #[test]
    fn cluster_minimisation_takes_the_fewest_and_flexible_cuts_the_job() {
        let ground = ground(&[("a", 8, 6), ("b", 8, 4), ("c", 8, 3)]);
        let placed = place(Placement::ClusterMinimisation, &needs(&[3, 3, 4]), &ground).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 3), (1, "a", 3), (2, "b", 4)]);
        assert!(place(Placement::ClusterMinimisation, &needs(&[9]), &ground).unwrap_err().never);
        let placed = place(Placement::FlexibleClusterMinimisation, &needs(&[9]), &ground).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 6), (0, "b", 3)]);
        let no = place(Placement::FlexibleClusterMinimisation, &needs(&[14]), &ground).unwrap_err();
        assert!(!no.never, "{no}");
        assert!(
            place(Placement::FlexibleClusterMinimisation, &needs(&[25]), &ground)
                .unwrap_err()
                .never
        );
    }

    #[test]
    fn what_does_not_work_now_may_work_again_and_what_is_too_much_together_never_fits() {
        let mut ground = ground(&[("a", 2, 2), ("b", 2, 2)]);
        assert!(place(Placement::WorstFit, &needs(&[3]), &ground).unwrap_err().never);
        assert!(place(Placement::WorstFit, &needs(&[1, 1, 1, 1, 1]), &ground).unwrap_err().never);
        assert!(place(Placement::WorstFit, &needs(&[1, 1, 2, 0]), &ground).is_ok());
        ground.rooms.get_mut(&id("a")).unwrap().whole = 4;
        let no = place(Placement::WorstFit, &needs(&[3]), &ground).unwrap_err();
        let told = "a 2 of its 4 processors work, 3 are needed; b has 2 processors, 3 are needed";
        assert!(no.to_string().ends_with(told) && !no.never, "{no}");
        let no = place(Placement::FlexibleClusterMinimisation, &needs(&[6]), &ground).unwrap_err();
        assert!(!no.never, "{no}");
    }

    #[test]
    fn close_to_files_prefers_holders_then_the_soonest() {
        let mut ground = ground(&[("a", 8, 8), ("b", 8, 2), ("c", 8, 5)]);
        let clusters = BTreeSet::from([id("b")]);
        ground.files.insert("bodies".to_owned(), Replica { bytes: 1000, clusters, differs: None });
        ground.links.insert((id("b"), id("a")), 10.0);
        ground.links.insert((id("b"), id("c")), 100.0);
        let mut one = needs(&[2]);
        one[0].files = vec!["bodies".to_owned()];
        let placed = place(Placement::CloseToFiles, &one, &ground).unwrap();
        assert_eq!((parts(&placed), placed.transfers.len()), (vec![(0, "b", 2)], 0));
        (one[0].min, one[0].start) = (3, 3);
        let placed = place(Placement::CloseToFiles, &one, &ground).unwrap();
        assert_eq!(parts(&placed), [(0, "c", 3)]);
        assert_eq!((placed.transfers[0].from.as_str(), placed.transfers[0].seconds), ("b", 10.0));
        ground.links.clear();
        // Nothing was measured: where most is idle.
        let placed = place(Placement::CloseToFiles, &one, &ground).unwrap();
        assert_eq!(parts(&placed), [(0, "a", 3)]);
        assert_eq!(placed.transfers[0].seconds, f64::INFINITY);
    }

    #[test]
    fn a_file_that_cannot_be_there_excludes_a_cluster() {
        let mut ground = ground(&[("a", 8, 8), ("b", 8, 4), ("c", 8, 2)]);
        let replica = |at: &[&str]| Replica {
            bytes: 1000,
            clusters: at.iter().map(|name| id(name)).collect(),
            differs: None,
        };
        ground.files.insert("bodies".to_owned(), replica(&["c"]));
        ground.without_files.insert(id("a"));
        let mut one = needs(&[2]);
        one[0].files = vec!["bodies".to_owned()];
        for policy in Placement::ALL {
            let placed = place(*policy, &one, &ground).unwrap();
            assert_ne!(placed.parts[0].cluster, id("a"), "{policy}");
        }
        one[0].min = 5;
        let no = place(Placement::WorstFit, &one, &ground).unwrap_err();
        let told = "a has no directory for files, and needs bodies; b 4 idle, 5 needed; c 2 idle, 5 needed";
        assert!(no.to_string().ends_with(told) && !no.never, "{no}");
        // Gone everywhere, or not one file: nowhere, until that changes.
        one[0].min = 1;
        ground.files.insert("bodies".to_owned(), replica(&[]));
        let no = place(Placement::CloseToFiles, &one, &ground).unwrap_err();
        assert!(no.to_string().contains("c no cluster has the file bodies") && !no.never, "{no}");
        let differs = Some("b has 5 bytes, c 6".to_owned());
        ground.files.insert("bodies".to_owned(), Replica { differs, ..replica(&["b", "c"]) });
        let no = place(Placement::FlexibleClusterMinimisation, &one, &ground).unwrap_err();
        let told = "c files named bodies differ: b has 5 bytes, c 6";
        assert!(no.to_string().contains(told) && !no.never, "{no}");
    }

    #[test]
    fn what_each_cluster_lacks_is_told() {
        let mut ground = ground(&[("a", 8, 1), ("b", 1, 1), ("c", 8, 8), ("d", 8, 8)]);
        ground.rooms.get_mut(&id("c")).unwrap().closed = Some("sinfo does not answer".to_owned());
        let mut one = needs(&[2]);
        one[0].clusters = [id("a"), id("b"), id("c")].into();
        let no = place(Placement::WorstFit, &one, &ground).unwrap_err();
        let text = "no cluster can take component 1: a 1 idle, 2 needed; b has 1 processors, 2 are needed; \
                    c closed: sinfo does not answer; d the job does not name it";
        assert_eq!((no.to_string(), no.never), (text.to_owned(), false));
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for &policy in Placement::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("best-fit".parse::<Placement>().is_err());
    }

    proptest! {
        /// Nothing is given twice, everybody has a minimum, and one cluster where one is asked for.
        #[test]
        fn what_is_placed_is_there(
            idle in prop::collection::vec(0u32..20, 1..6),
            asked in prop::collection::vec((1u32..8, 0u32..8), 0..5),
            policy in prop::sample::select(Placement::ALL),
        ) {
            let names = ["a", "b", "c", "d", "e"];
            let rooms: Vec<_> = names.iter().zip(&idle).map(|(&name, &idle)| (name, 20, idle)).collect();
            let ground = ground(&rooms);
            let mut components = needs(&asked.iter().map(|a| a.0).collect::<Vec<_>>());
            for (one, (_, more)) in components.iter_mut().zip(&asked) {
                one.start += more;
            }
            match place(policy, &components, &ground) {
                Ok(placed) => {
                    let mut left: BTreeMap<_, _> = ground.rooms.iter().map(|(c, r)| (c.clone(), r.idle)).collect();
                    let mut got = vec![(0, 0); components.len()];
                    for part in &placed.parts {
                        let left = left.get_mut(&part.cluster).unwrap();
                        prop_assert!(part.count >= 1 && part.count <= *left, "{placed:?}");
                        *left -= part.count;
                        got[part.component].0 += part.count;
                        got[part.component].1 += 1;
                    }
                    for (one, (count, pieces)) in components.iter().zip(got) {
                        prop_assert!(count >= one.min && count <= one.start, "{placed:?}");
                        prop_assert!(pieces == 1 || policy == Placement::FlexibleClusterMinimisation);
                    }
                }
                Err(no) => {
                    prop_assert_eq!(no.excluded.len(), ground.rooms.len());
                    // One component alone finds a place wherever there is one.
                    if let [one] = &components[..] {
                        prop_assert!(idle.iter().all(|&idle| idle < one.min));
                    }
                }
            }
        }
    }
}
