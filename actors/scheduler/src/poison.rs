//! Detection of poison tasks: a task that several nodes were executing when they died counts as the
//! cause.
//!
//! A state machine without I/O and clock. The job's coordinator has one for the tasks that owners
//! report, the scheduler one for each job's root. This module knows neither the reports' origin nor
//! the job's end.
//!
//! Two kinds of deaths do not count: deaths of nodes that were ordered to leave, and the loss of a
//! whole cluster. A cluster is lost if all its nodes (at least two) die within `CLUSTER_WITHIN`.
//! But a task is given to another node only after the report of the previous death. So if all nodes
//! of such a cluster died one after the other with the same task, the task is the cause.
//!
//! Source: decision 7 of this project; the papers do not cover this.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, Incarnation, NodeId, TaskPath};
use springtide_net::membership::Member;
use springtide_work::work::LeasedTask;
use tokio::time::Instant;

use crate::job::{DeadHolder, JobError};

/// Maximum time between the deaths of a cluster's nodes that may be the loss of the cluster.
pub(crate) const CLUSTER_WITHIN: Duration = Duration::from_secs(3);
/// Maximum numbers of deaths and tasks; entries of the oldest deaths are deleted first.
const DEATHS_MAX: usize = 1000;
const TASKS_MAX: usize = 20_000;

type NodeIncarnation = (NodeId, Incarnation);

/// A node that is dead according to the membership.
#[derive(Clone, Debug)]
pub struct DeadNode {
    /// Name of the node.
    pub node: NodeId,
    /// Its incarnation that died.
    pub incarnation: Incarnation,
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// How it died, with its last lines if any.
    pub reason: String,
    /// Whether it was ordered to leave.
    pub leaving: bool,
}

impl DeadNode {
    /// Creates the entry of a dead member.
    pub fn of(node: &NodeId, member: &Member, reason: &str) -> Self {
        let Member { incarnation, ref cluster, leaving, .. } = *member;
        let (node, cluster, reason) = (node.clone(), cluster.clone(), reason.to_owned());
        Self { node, incarnation, cluster, reason, leaving }
    }
}

#[derive(Debug)]
struct Death {
    cluster: ClusterId,
    reason: String,
    leaving: bool,
    time: Instant,
    /// Number of the loss of a whole cluster that it was part of.
    cluster_loss: Option<u32>,
}

#[derive(Debug)]
struct TaskHolders {
    name: String,
    holders: BTreeSet<NodeIncarnation>,
}

/// Result of the detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoisonVerdict {
    /// No task is to blame.
    Clean,
    /// Check again at this time, when the loss of a whole cluster can be excluded.
    Wait(Instant),
    /// The job must end, since enough nodes died holding this task.
    Poisoned(Poisoned),
}

/// A poison task, and the deaths that it is blamed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// The task that its holders were executing.
    pub task: LeasedTask,
    /// The deaths that count, in order of the nodes' names.
    pub holders: Vec<DeadHolder>,
}

impl From<Poisoned> for JobError {
    fn from(Poisoned { task, holders }: Poisoned) -> Self {
        JobError::Poison { task: task.name, path: task.path, holders }
    }
}

/// Record of deaths and of the tasks held at them.
#[derive(Debug)]
pub struct PoisonDetector {
    limit: u32,
    patient: bool,
    deaths: BTreeMap<NodeIncarnation, Death>,
    held: BTreeMap<TaskPath, TaskHolders>,
    cluster_losses: u32,
    /// Incarnations whose deaths count for no task, before these deaths are recorded.
    excused: BTreeSet<NodeIncarnation>,
}

impl PoisonDetector {
    /// Blames a task for the deaths of `limit` distinct nodes; 0: never.
    pub fn new(limit: u32) -> Self {
        let (deaths, held) = (BTreeMap::new(), BTreeMap::new());
        let excused = BTreeSet::new();
        Self { limit, patient: false, deaths, held, cluster_losses: 0, excused }
    }

    /// Like `new`, but no death counts before the loss of its whole cluster is excluded. For
    /// observers that will not execute the task next.
    pub fn patient(limit: u32) -> Self {
        Self { patient: true, ..Self::new(limit) }
    }

    /// Records deaths reported by the membership. `lives_on` returns whether a cluster has members
    /// left.
    pub fn record_deaths(
        &mut self,
        dead: impl IntoIterator<Item = DeadNode>,
        lives_on: impl Fn(&ClusterId) -> bool,
        now: Instant,
    ) {
        if self.limit == 0 {
            return;
        }
        let mut clusters = BTreeSet::new();
        for DeadNode { node, incarnation, cluster, reason, leaving } in dead {
            clusters.insert(cluster.clone());
            let leaving = self.excused.remove(&(node.clone(), incarnation)) || leaving;
            let death = Death { cluster, reason, leaving, time: now, cluster_loss: None };
            self.deaths.entry((node, incarnation)).or_insert(death);
        }
        for cluster in clusters.iter().filter(|cluster| !lives_on(cluster)) {
            let cluster_deaths: Vec<NodeIncarnation> = self
                .deaths
                .iter()
                .filter(|(_, death)| death.cluster == *cluster && death.may_be_the_clusters(now))
                .map(|(incarnation, _)| incarnation.clone())
                .collect();
            if cluster_deaths.len() < 2 {
                continue;
            }
            self.cluster_losses += 1;
            for incarnation in cluster_deaths {
                if let Some(death) = self.deaths.get_mut(&incarnation) {
                    death.cluster_loss = Some(self.cluster_losses);
                }
            }
        }
        while self.deaths.len() > DEATHS_MAX && self.forget_oldest(None) {}
    }

    /// Excuses the tasks that a node held at its death: at that of an incarnation that is recorded
    /// after this, or at the last one that is recorded.
    pub fn excuse(&mut self, node: &NodeId, incarnation: Option<Incarnation>) {
        if self.limit == 0 {
            return;
        }
        match incarnation {
            Some(incarnation) => {
                self.excused.insert((node.clone(), incarnation));
            }
            None => {
                let mut theirs = self.deaths.iter_mut().filter(|((dead, _), _)| dead == node);
                if let Some((_, death)) = theirs.next_back() {
                    death.leaving = true;
                }
            }
        }
    }

    /// Records tasks of an owner that a node held at its death. Without a recorded death, the node
    /// left in order or died before this record started.
    pub fn record_held(&mut self, node: &NodeId, incarnation: Incarnation, tasks: Vec<LeasedTask>) {
        let incarnation = (node.clone(), incarnation);
        if !self.deaths.contains_key(&incarnation) {
            return;
        }
        for LeasedTask { path, name } in tasks {
            if !self.held.contains_key(&path) {
                while self.held.len() >= TASKS_MAX && self.forget_oldest(Some(&incarnation)) {}
                if self.held.len() >= TASKS_MAX {
                    return;
                }
            }
            let held = self
                .held
                .entry(path)
                .or_insert_with(|| TaskHolders { name, holders: BTreeSet::new() });
            held.holders.insert(incarnation.clone());
        }
    }

    /// Clears a task that has made new progress: earlier deaths have another cause.
    pub fn clear(&mut self, path: &TaskPath) {
        self.held.remove(path);
    }

    /// Clears all tasks that last as long as the job, after new progress of the job.
    pub fn clear_lasting(&mut self, lasts: impl Fn(&str) -> bool) {
        self.held.retain(|_, held| !lasts(&held.name));
    }

    /// Returns the task to blame: the one with the most deaths, and of several the innermost.
    pub fn verdict(&self, now: Instant) -> PoisonVerdict {
        if self.limit == 0 {
            return PoisonVerdict::Clean;
        }
        let mut worst: Option<((usize, usize), Poisoned)> = None;
        let mut wait: Option<Instant> = None;
        for (path, held) in self.held.iter().filter(|(_, held)| held.holders.len() >= self.limit())
        {
            let (counted, pending) = self.count(held, now);
            let nodes = |incarnations: &BTreeSet<&NodeIncarnation>| {
                incarnations.iter().map(|(node, _)| node).collect::<BTreeSet<_>>().len()
            };
            let sure = nodes(&counted);
            if sure >= self.limit() {
                let rank = (sure, path.0.len());
                if worst.as_ref().is_none_or(|(known, _)| rank > *known) {
                    let task = LeasedTask { path: path.clone(), name: held.name.clone() };
                    let holders =
                        counted.iter().filter_map(|incarnation| self.holder(incarnation)).collect();
                    worst = Some((rank, Poisoned { task, holders }));
                }
                continue;
            }
            let possible = counted.iter().chain(pending.keys()).copied().collect();
            if nodes(&possible) >= self.limit() {
                wait = pending.values().copied().chain(wait).min();
            }
        }
        match (worst, wait) {
            (Some((_, poisoned)), _) => PoisonVerdict::Poisoned(poisoned),
            (None, Some(at)) => PoisonVerdict::Wait(at),
            (None, None) => PoisonVerdict::Clean,
        }
    }

    fn limit(&self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX)
    }

    fn holder(&self, incarnation: &NodeIncarnation) -> Option<DeadHolder> {
        let reason = self.deaths.get(incarnation)?.reason.clone();
        Some(DeadHolder { node: incarnation.0.clone(), incarnation: incarnation.1, reason })
    }

    /// The deaths of a task's holders that count, and those that may count from a given time.
    fn count<'a>(
        &'a self,
        held: &'a TaskHolders,
        now: Instant,
    ) -> (BTreeSet<&'a NodeIncarnation>, BTreeMap<&'a NodeIncarnation, Instant>) {
        let (mut counted, mut pending) = (BTreeSet::new(), BTreeMap::new());
        for incarnation in &held.holders {
            let Some(death) = self.deaths.get(incarnation).filter(|death| !death.leaving) else {
                continue;
            };
            let mut others = self.deaths.iter().filter(|(other, _)| !held.holders.contains(*other));
            if let Some(loss) = death.cluster_loss {
                // All nodes died one after the other with this task.
                if others.all(|(_, other)| other.cluster_loss != Some(loss)) {
                    counted.insert(incarnation);
                }
                continue;
            }
            let died_together = |(_, other): (_, &Death)| {
                let apart = other.time.max(death.time) - other.time.min(death.time);
                other.cluster == death.cluster && !other.leaving && apart < CLUSTER_WITHIN
            };
            if death.may_be_the_clusters(now) && (self.patient || others.any(died_together)) {
                pending.insert(incarnation, death.time + CLUSTER_WITHIN);
            } else {
                counted.insert(incarnation);
            }
        }
        (counted, pending)
    }

    /// Deletes the oldest death, except `keep`. Returns false if there is none.
    fn forget_oldest(&mut self, keep: Option<&NodeIncarnation>) -> bool {
        let others = self.deaths.iter().filter(|(incarnation, _)| Some(*incarnation) != keep);
        let oldest = others.min_by_key(|(incarnation, death)| (death.time, (*incarnation).clone()));
        let Some(incarnation) = oldest.map(|(incarnation, _)| incarnation.clone()) else {
            return false;
        };
        self.deaths.remove(&incarnation);
        self.held.retain(|_, held| {
            held.holders.remove(&incarnation);
            !held.holders.is_empty()
        });
        true
    }
}

impl Death {
    /// Whether it may still turn out to be part of its cluster's loss.
    fn may_be_the_clusters(&self, now: Instant) -> bool {
        let lately = now.saturating_duration_since(self.time) < CLUSTER_WITHIN;
        lately && !self.leaving && self.cluster_loss.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task(path: &[u32]) -> LeasedTask {
        LeasedTask { path: TaskPath(path.to_vec()), name: "leaf".into() }
    }

    /// Nodes are named `cluster-number`.
    fn dead(node: &str, incarnation: u64, leaving: bool) -> DeadNode {
        let cluster = node.split('-').next().unwrap_or(node).into();
        let reason = format!("{node} aborted");
        DeadNode {
            node: node.into(),
            incarnation: Incarnation(incarnation),
            cluster,
            reason,
            leaving,
        }
    }

    #[derive(Clone, Debug)]
    enum PoisonStep {
        /// These nodes die in one report with these incarnations, and these clusters have no
        /// members left.
        Die(&'static [(&'static str, u64)], &'static [&'static str]),
        Leaves(&'static str),
        /// An owner reports that this incarnation held this path.
        Tell(&'static str, u64, &'static [u32]),
        Pass(u64),
        Absolve(&'static [u32]),
        /// The job made progress, and tasks of this name last as long as it.
        Further(&'static str),
    }
    use PoisonStep::*;

    /// The verdict after these steps: the blamed path with the nodes, the time to wait, or nothing.
    fn verdict_after(mut book: PoisonDetector, steps: &[PoisonStep]) -> String {
        let mut now = Instant::now();
        for step in steps {
            match step {
                Die(nodes, gone) => {
                    let nodes =
                        nodes.iter().map(|(node, incarnation)| dead(node, *incarnation, false));
                    book.record_deaths(nodes, |cluster| !gone.contains(&cluster.as_str()), now);
                }
                Leaves(node) => book.record_deaths([dead(node, 1, true)], |_| true, now),
                Tell(node, incarnation, path) => {
                    book.record_held(&(*node).into(), Incarnation(*incarnation), vec![task(path)]);
                }
                Pass(ms) => now += Duration::from_millis(*ms),
                Absolve(path) => book.clear(&TaskPath(path.to_vec())),
                Further(lasting) => book.clear_lasting(|name| name == *lasting),
            }
        }
        match book.verdict(now) {
            PoisonVerdict::Clean => "clean".into(),
            PoisonVerdict::Wait(at) => format!("wait {} ms", (at - now).as_millis()),
            PoisonVerdict::Poisoned(Poisoned { task, holders }) => {
                let names: Vec<_> = holders.iter().map(|holder| holder.node.as_str()).collect();
                format!("{} {}", task.path, names.join(" "))
            }
        }
    }

    const P: &[u32] = &[0, 1];

    /// These nodes die one after the other holding `P`.
    fn in_turn(nodes: &[&'static str]) -> Vec<PoisonStep> {
        let mut steps = Vec::new();
        for node in nodes {
            let one: &'static [(&'static str, u64)] = Box::leak(Box::new([(*node, 1)]));
            steps.extend([Die(one, &[]), Tell(node, 1, P), Pass(100)]);
        }
        steps
    }

    fn with(mut steps: Vec<PoisonStep>, more: &[PoisonStep]) -> Vec<PoisonStep> {
        steps.extend(more.iter().cloned());
        steps
    }

    #[test]
    fn only_some_deaths_count() {
        let two = || in_turn(&["a-1", "b-1"]);
        let cases: Vec<(&str, Vec<PoisonStep>, &str)> = vec![
            ("three nodes", in_turn(&["a-1", "b-1", "a-2"]), "/0.1 a-1 a-2 b-1"),
            ("two nodes", two(), "clean"),
            (
                "three lives of two nodes",
                with(two(), &[Die(&[("a-1", 2)], &[]), Tell("a-1", 2, P)]),
                "clean",
            ),
            (
                "three nodes and a second life",
                with(
                    in_turn(&["a-1", "b-1", "a-2"]),
                    &[Die(&[("a-1", 2)], &[]), Tell("a-1", 2, P)],
                ),
                "/0.1 a-1 a-1 a-2 b-1",
            ),
            ("reported twice", with(two(), &[Tell("a-1", 1, P), Tell("b-1", 1, P)]), "clean"),
            ("died twice", with(two(), &[Die(&[("b-1", 1)], &[]), Tell("b-1", 1, P)]), "clean"),
            (
                "another task",
                with(two(), &[Die(&[("a-2", 1)], &[]), Tell("a-2", 1, &[0, 1, 0])]),
                "clean",
            ),
            ("reported for one that left", with(two(), &[Tell("a-2", 1, P)]), "clean"),
            ("one that was leaving", with(two(), &[Leaves("a-2"), Tell("a-2", 1, P)]), "clean"),
            (
                "the last node of a cluster",
                with(two(), &[Die(&[("c-1", 1)], &["c"]), Tell("c-1", 1, P)]),
                "/0.1 a-1 b-1 c-1",
            ),
            (
                "a cluster in one word",
                with(two(), &[Die(&[("c-1", 1), ("c-2", 1)], &["c"]), Tell("c-1", 1, P)]),
                "clean",
            ),
            (
                "a cluster within seconds",
                with(
                    two(),
                    &[
                        Die(&[("c-1", 1)], &[]),
                        Tell("c-1", 1, P),
                        Pass(2900),
                        Die(&[("c-2", 1)], &["c"]),
                    ],
                ),
                "clean",
            ),
            (
                "a cluster within minutes",
                with(
                    two(),
                    &[
                        Die(&[("c-1", 1)], &[]),
                        Tell("c-1", 1, P),
                        Pass(60_000),
                        Die(&[("c-2", 1)], &["c"]),
                    ],
                ),
                "/0.1 a-1 b-1 c-1",
            ),
            (
                "perhaps a cluster",
                with(
                    two(),
                    &[
                        Die(&[("c-2", 1)], &[]),
                        Pass(1000),
                        Die(&[("c-1", 1)], &[]),
                        Tell("c-1", 1, P),
                    ],
                ),
                "wait 3000 ms",
            ),
            (
                "a cluster that lives on",
                with(two(), &[Die(&[("c-2", 1), ("c-1", 1)], &[]), Tell("c-1", 1, P), Pass(3000)]),
                "/0.1 a-1 b-1 c-1",
            ),
            (
                "a cluster of which all died in turn with the task",
                with(in_turn(&["a-1", "c-1"]), &[Die(&[("c-2", 1)], &["c"]), Tell("c-2", 1, P)]),
                "/0.1 a-1 c-1 c-2",
            ),
            (
                "further, and it lasts",
                with(two(), &[Further("leaf"), Die(&[("a-2", 1)], &[]), Tell("a-2", 1, P)]),
                "clean",
            ),
            (
                "further, and it does not",
                with(two(), &[Further("other"), Die(&[("a-2", 1)], &[]), Tell("a-2", 1, P)]),
                "/0.1 a-1 a-2 b-1",
            ),
            ("absolved", with(in_turn(&["a-1", "b-1", "a-2"]), &[Absolve(P)]), "clean"),
        ];
        for (what, steps, expected) in cases {
            assert_eq!(verdict_after(PoisonDetector::new(3), &steps), expected, "{what}");
        }
    }

    #[test]
    fn excused_deaths_do_not_count_in_either_order() {
        let now = Instant::now();
        let mut detector = PoisonDetector::new(3);
        for (index, node) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
            let id = NodeId::from(node);
            let is_known = index % 2 == 0;
            if index < 3 && is_known {
                detector.excuse(&id, Some(Incarnation(1)));
            }
            let at = now + CLUSTER_WITHIN * 2 * index as u32;
            detector.record_deaths([dead(node, 1, false)], |_| true, at);
            if index < 3 && !is_known {
                detector.excuse(&id, None);
            }
            detector.record_held(&id, Incarnation(1), vec![task(&[1])]);
            assert_eq!(detector.verdict(at + CLUSTER_WITHIN * 2), PoisonVerdict::Clean, "{node}");
        }
        detector.record_deaths([dead("f", 1, false)], |_| true, now + CLUSTER_WITHIN * 10);
        detector.record_held(&"f".into(), Incarnation(1), vec![task(&[1])]);
        let verdict = detector.verdict(now + CLUSTER_WITHIN * 12);
        let PoisonVerdict::Poisoned(poisoned) = verdict else { panic!("{verdict:?}") };
        assert_eq!(poisoned.holders.len(), 3, "d, e and f: {poisoned:?}");
    }

    #[test]
    fn the_limit_is_respected_and_0_means_never() {
        let three = in_turn(&["a-1", "b-1", "a-2"]);
        assert_eq!(verdict_after(PoisonDetector::new(0), &three), "clean");
        assert_eq!(verdict_after(PoisonDetector::new(4), &three), "clean");
        assert_eq!(verdict_after(PoisonDetector::new(1), &three[..2]), "/0.1 a-1");
        assert_eq!(verdict_after(PoisonDetector::patient(1), &three[..3]), "wait 2900 ms");
        assert_eq!(
            verdict_after(PoisonDetector::patient(1), &with(three, &[Pass(2900)])),
            "/0.1 a-1 a-2 b-1"
        );
    }

    #[test]
    fn the_innermost_task_with_the_most_deaths_is_blamed() {
        let mut book = PoisonDetector::new(2);
        let now = Instant::now();
        for node in ["a-1", "b-1"] {
            book.record_deaths([dead(node, 1, false)], |_| true, now);
            book.record_held(
                &node.into(),
                Incarnation(1),
                vec![task(&[0]), task(&[3, 1]), task(&[4])],
            );
        }
        let PoisonVerdict::Poisoned(Poisoned { task, .. }) = book.verdict(now) else { panic!() };
        assert_eq!(task.path, TaskPath(vec![3, 1]));
    }

    #[test]
    fn the_record_is_bounded_and_old_entries_are_deleted_first() {
        let mut book = PoisonDetector::new(2);
        let mut now = Instant::now();
        for incarnation in 0..DEATHS_MAX as u64 + 200 {
            now += CLUSTER_WITHIN;
            book.record_deaths([dead("a-1", incarnation, false)], |_| true, now);
            let of = |n: u32| task(&[incarnation as u32, n]);
            book.record_held(&"a-1".into(), Incarnation(incarnation), (0..100).map(of).collect());
            assert!(book.deaths.len() <= DEATHS_MAX && book.held.len() <= TASKS_MAX);
        }
        let newest = DEATHS_MAX as u32 + 199;
        assert!(book.held.contains_key(&TaskPath(vec![newest, 99])));
        assert!(!book.held.contains_key(&TaskPath(vec![0, 0])));
    }

    /// (node, incarnation, path, leaving) of deaths so far apart that no cluster is lost.
    fn deaths() -> impl Strategy<Value = Vec<(u8, u64, u32, bool)>> {
        proptest::collection::vec((0..5u8, 0..3u64, 0..3u32, proptest::bool::weighted(0.2)), 0..20)
    }

    proptest! {
        /// Independent of repetition and order of reports, the verdict equals a plain count of
        /// distinct nodes.
        #[test]
        fn each_death_counts_once_for_any_reports(
            deaths in deaths(),
            again in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40),
            limit in 1..5u32,
        ) {
            let mut book = PoisonDetector::new(limit);
            let mut now = Instant::now();
            let mut plain: BTreeMap<u32, BTreeSet<u8>> = BTreeMap::new();
            let mut known: BTreeMap<(u8, u64), bool> = BTreeMap::new();
            for (node, incarnation, path, leaving) in &deaths {
                now += CLUSTER_WITHIN;
                // Further reports of the same death are ignored.
                let leaving = *known.entry((*node, *incarnation)).or_insert(*leaving);
                let death = dead(&format!("a-{node}"), *incarnation, leaving);
                book.record_deaths([death], |_| true, now);
                if !leaving {
                    plain.entry(*path).or_default().insert(*node);
                }
            }
            let tell = |book: &mut PoisonDetector, start: &(u8, u64, u32, bool)| {
                let (node, incarnation, path, _) = start;
                let node = format!("a-{node}").into();
                book.record_held(&node, Incarnation(*incarnation), vec![task(&[*path])]);
            };
            if !deaths.is_empty() {
                again.iter().for_each(|index| tell(&mut book, index.get(&deaths)));
            }
            deaths.iter().for_each(|death| tell(&mut book, death));
            let most = plain.values().map(BTreeSet::len).max().unwrap_or(0);
            match book.verdict(now) {
                PoisonVerdict::Poisoned(Poisoned { task, holders }) => {
                    let nodes: BTreeSet<_> = holders.iter().map(|holder| &holder.node).collect();
                    prop_assert_eq!(nodes.len(), plain[&task.path.0[0]].len());
                    prop_assert!(nodes.len() == most && most >= limit as usize);
                }
                PoisonVerdict::Clean => prop_assert!(most < limit as usize),
                PoisonVerdict::Wait(_) => prop_assert!(false, "nothing to wait for"),
            }
        }
    }
}
