//! The book of tasks that nodes held when they died: a task that several nodes died of is taken for the cause.
//!
//! A state machine without I/O and without a clock. The job's coordinator keeps one of the tasks that owners tell of,
//! the scheduler one of each job's root. Must not know who tells, nor how a job is ended.
//!
//! What does not count: deaths of nodes that were told to leave, and the loss of a whole cluster, which is that all its
//! nodes (at least two) die within [`CLUSTER_WITHIN`]. But a task is given to the next node only after the word about
//! the one before; so where all nodes of such a cluster died one after the other with the very same task, it was the
//! task.
//!
//! Source: decision 7 of this project; the papers do not speak of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_runtime::id::{ClusterId, Incarnation, NodeId, TaskPath};
use springtide_runtime::membership::Member;
use springtide_runtime::work::HeldTask;
use tokio::time::Instant;

use crate::job::{DeadHolder, JobError};

/// Nodes of one cluster that die within this time may be the loss of the whole cluster.
pub(crate) const CLUSTER_WITHIN: Duration = Duration::from_secs(3);
/// Deaths and tasks beyond these are forgotten, those of the oldest deaths first.
const DEATHS_MAX: usize = 1000;
const TASKS_MAX: usize = 20_000;

type Life = (NodeId, Incarnation);

/// A node that is dead by the membership's word.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) cluster: ClusterId,
    /// How it died, with its last lines where there are any.
    pub(crate) reason: String,
    /// It had been told to leave.
    pub(crate) leaving: bool,
}

impl Dead {
    /// A member that is dead.
    pub(crate) fn of(node: &NodeId, member: &Member, reason: &str) -> Self {
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
    at: Instant,
    /// It was part of this loss of a whole cluster.
    cluster_loss: Option<u32>,
}

#[derive(Debug)]
struct Held {
    name: String,
    by: BTreeSet<Life>,
}

/// What is to be done about the tasks in the book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Clean,
    /// Look again then: by then it is known whether a whole cluster was lost.
    Wait(Instant),
    /// So many nodes died holding this task that the job is to end.
    Poisoned(Poisoned),
}

/// Which task, and why it is blamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Poisoned {
    pub(crate) task: HeldTask,
    /// The deaths that count, in order of the nodes' names.
    pub(crate) holders: Vec<DeadHolder>,
}

impl From<Poisoned> for JobError {
    fn from(Poisoned { task, holders }: Poisoned) -> Self {
        JobError::Poison { task: task.name, path: task.path, holders }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Poison {
    limit: u32,
    patient: bool,
    deaths: BTreeMap<Life, Death>,
    held: BTreeMap<TaskPath, Held>,
    cluster_losses: u32,
}

impl Poison {
    /// A book that blames a task for the deaths of `limit` distinct nodes; 0: never.
    pub(crate) fn new(limit: u32) -> Self {
        let (deaths, held) = (BTreeMap::new(), BTreeMap::new());
        Self { limit, patient: false, deaths, held, cluster_losses: 0 }
    }

    /// One that lets no death count before it is known whether its whole cluster was lost. For whoever will not be the
    /// next to die of the task.
    pub(crate) fn patient(limit: u32) -> Self {
        Self { patient: true, ..Self::new(limit) }
    }

    /// The membership's word of deaths. `lives_on` says of which clusters members are left.
    pub(crate) fn died(
        &mut self,
        dead: impl IntoIterator<Item = Dead>,
        lives_on: impl Fn(&ClusterId) -> bool,
        now: Instant,
    ) {
        if self.limit == 0 {
            return;
        }
        let mut clusters = BTreeSet::new();
        for Dead { node, incarnation, cluster, reason, leaving } in dead {
            clusters.insert(cluster.clone());
            let death = Death { cluster, reason, leaving, at: now, cluster_loss: None };
            self.deaths.entry((node, incarnation)).or_insert(death);
        }
        for cluster in clusters.iter().filter(|cluster| !lives_on(cluster)) {
            let together: Vec<Life> = self
                .deaths
                .iter()
                .filter(|(_, death)| death.cluster == *cluster && death.may_be_the_clusters(now))
                .map(|(life, _)| life.clone())
                .collect();
            if together.len() < 2 {
                continue;
            }
            self.cluster_losses += 1;
            for life in together {
                if let Some(death) = self.deaths.get_mut(&life) {
                    death.cluster_loss = Some(self.cluster_losses);
                }
            }
        }
        while self.deaths.len() > DEATHS_MAX && self.forget_oldest(None) {}
    }

    /// An owner's word: this life had these tasks of it when it died. A life of whose death nothing is known left in
    /// order, or died before this book was begun.
    pub(crate) fn held(&mut self, node: &NodeId, incarnation: Incarnation, tasks: Vec<HeldTask>) {
        let life = (node.clone(), incarnation);
        if !self.deaths.contains_key(&life) {
            return;
        }
        for HeldTask { path, name } in tasks {
            if !self.held.contains_key(&path) {
                while self.held.len() >= TASKS_MAX && self.forget_oldest(Some(&life)) {}
                if self.held.len() >= TASKS_MAX {
                    return;
                }
            }
            let held = self.held.entry(path).or_insert_with(|| Held { name, by: BTreeSet::new() });
            held.by.insert(life.clone());
        }
    }

    /// The task has got further than ever: what nodes died of before was not this.
    pub(crate) fn absolve(&mut self, path: &TaskPath) {
        self.held.remove(path);
    }

    /// The job has got further than ever: so has each of its tasks that last as long as it does.
    pub(crate) fn absolve_lasting(&mut self, lasts: impl Fn(&str) -> bool) {
        self.held.retain(|_, held| !lasts(&held.name));
    }

    /// Whether a task is to be blamed: that which most nodes died of, and of several the innermost.
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        if self.limit == 0 {
            return Verdict::Clean;
        }
        let mut worst: Option<((usize, usize), Poisoned)> = None;
        let mut wait: Option<Instant> = None;
        for (path, held) in self.held.iter().filter(|(_, held)| held.by.len() >= self.limit()) {
            let (counted, pending) = self.count(held, now);
            let nodes = |lives: &BTreeSet<&Life>| {
                lives.iter().map(|(node, _)| node).collect::<BTreeSet<_>>().len()
            };
            let sure = nodes(&counted);
            if sure >= self.limit() {
                let rank = (sure, path.0.len());
                if worst.as_ref().is_none_or(|(known, _)| rank > *known) {
                    let task = HeldTask { path: path.clone(), name: held.name.clone() };
                    let holders = counted.iter().filter_map(|life| self.holder(life)).collect();
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
            (Some((_, poisoned)), _) => Verdict::Poisoned(poisoned),
            (None, Some(at)) => Verdict::Wait(at),
            (None, None) => Verdict::Clean,
        }
    }

    fn limit(&self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX)
    }

    fn holder(&self, life: &Life) -> Option<DeadHolder> {
        let reason = self.deaths.get(life)?.reason.clone();
        Some(DeadHolder { node: life.0.clone(), incarnation: life.1, reason })
    }

    /// The deaths of a task's holders that count, and those of which it is not known before the given moment.
    fn count<'a>(
        &'a self,
        held: &'a Held,
        now: Instant,
    ) -> (BTreeSet<&'a Life>, BTreeMap<&'a Life, Instant>) {
        let (mut counted, mut pending) = (BTreeSet::new(), BTreeMap::new());
        for life in &held.by {
            let Some(death) = self.deaths.get(life).filter(|death| !death.leaving) else {
                continue;
            };
            let mut others = self.deaths.iter().filter(|(other, _)| !held.by.contains(*other));
            if let Some(loss) = death.cluster_loss {
                // One after the other, all with this task.
                if others.all(|(_, other)| other.cluster_loss != Some(loss)) {
                    counted.insert(life);
                }
                continue;
            }
            let beside = |(_, other): (_, &Death)| {
                let apart = other.at.max(death.at) - other.at.min(death.at);
                other.cluster == death.cluster && !other.leaving && apart < CLUSTER_WITHIN
            };
            if death.may_be_the_clusters(now) && (self.patient || others.any(beside)) {
                pending.insert(life, death.at + CLUSTER_WITHIN);
            } else {
                counted.insert(life);
            }
        }
        (counted, pending)
    }

    /// False if there is none but the one to be kept.
    fn forget_oldest(&mut self, keep: Option<&Life>) -> bool {
        let others = self.deaths.iter().filter(|(life, _)| Some(*life) != keep);
        let oldest = others.min_by_key(|(life, death)| (death.at, (*life).clone()));
        let Some(life) = oldest.map(|(life, _)| life.clone()) else { return false };
        self.deaths.remove(&life);
        self.held.retain(|_, held| {
            held.by.remove(&life);
            !held.by.is_empty()
        });
        true
    }
}

impl Death {
    /// Whether it was so lately that it may turn out to be part of the loss of its cluster.
    fn may_be_the_clusters(&self, now: Instant) -> bool {
        let lately = now.saturating_duration_since(self.at) < CLUSTER_WITHIN;
        lately && !self.leaving && self.cluster_loss.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task(path: &[u32]) -> HeldTask {
        HeldTask { path: TaskPath(path.to_vec()), name: "leaf".into() }
    }

    /// Nodes are named `cluster-number`.
    fn dead(node: &str, life: u64, leaving: bool) -> Dead {
        let cluster = node.split('-').next().unwrap_or(node).into();
        let reason = format!("{node} aborted");
        Dead { node: node.into(), incarnation: Incarnation(life), cluster, reason, leaving }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// These nodes die in one word, as such lives; clusters that have no members left afterwards.
        Die(&'static [(&'static str, u64)], &'static [&'static str]),
        Leaves(&'static str),
        /// An owner tells that this life held this path.
        Tell(&'static str, u64, &'static [u32]),
        Pass(u64),
        Absolve(&'static [u32]),
        /// The job got further, and tasks of this name last as long as it.
        Further(&'static str),
    }
    use Step::*;

    /// What the book says after these steps: the blamed path with the nodes, the seconds to wait, or nothing.
    fn told(mut book: Poison, steps: &[Step]) -> String {
        let mut now = Instant::now();
        for step in steps {
            match step {
                Die(nodes, gone) => {
                    let nodes = nodes.iter().map(|(node, life)| dead(node, *life, false));
                    book.died(nodes, |cluster| !gone.contains(&cluster.as_str()), now);
                }
                Leaves(node) => book.died([dead(node, 1, true)], |_| true, now),
                Tell(node, life, path) => {
                    book.held(&(*node).into(), Incarnation(*life), vec![task(path)]);
                }
                Pass(ms) => now += Duration::from_millis(*ms),
                Absolve(path) => book.absolve(&TaskPath(path.to_vec())),
                Further(lasting) => book.absolve_lasting(|name| name == *lasting),
            }
        }
        match book.verdict(now) {
            Verdict::Clean => "clean".into(),
            Verdict::Wait(at) => format!("wait {} ms", (at - now).as_millis()),
            Verdict::Poisoned(Poisoned { task, holders }) => {
                let names: Vec<_> = holders.iter().map(|holder| holder.node.as_str()).collect();
                format!("{} {}", task.path, names.join(" "))
            }
        }
    }

    const P: &[u32] = &[0, 1];

    /// One after the other dies holding `P`.
    fn in_turn(nodes: &[&'static str]) -> Vec<Step> {
        let mut steps = Vec::new();
        for node in nodes {
            let one: &'static [(&'static str, u64)] = Box::leak(Box::new([(*node, 1)]));
            steps.extend([Die(one, &[]), Tell(node, 1, P), Pass(100)]);
        }
        steps
    }

    fn with(mut steps: Vec<Step>, more: &[Step]) -> Vec<Step> {
        steps.extend(more.iter().cloned());
        steps
    }

    #[test]
    fn which_deaths_count() {
        let two = || in_turn(&["a-1", "b-1"]);
        let cases: Vec<(&str, Vec<Step>, &str)> = vec![
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
            ("told twice", with(two(), &[Tell("a-1", 1, P), Tell("b-1", 1, P)]), "clean"),
            ("died twice", with(two(), &[Die(&[("b-1", 1)], &[]), Tell("b-1", 1, P)]), "clean"),
            (
                "another task",
                with(two(), &[Die(&[("a-2", 1)], &[]), Tell("a-2", 1, &[0, 1, 0])]),
                "clean",
            ),
            ("told of one that left", with(two(), &[Tell("a-2", 1, P)]), "clean"),
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
            assert_eq!(told(Poison::new(3), &steps), expected, "{what}");
        }
    }

    #[test]
    fn the_limit_is_what_was_asked_and_0_is_never() {
        let three = in_turn(&["a-1", "b-1", "a-2"]);
        assert_eq!(told(Poison::new(0), &three), "clean");
        assert_eq!(told(Poison::new(4), &three), "clean");
        assert_eq!(told(Poison::new(1), &three[..2]), "/0.1 a-1");
        assert_eq!(told(Poison::patient(1), &three[..3]), "wait 2900 ms");
        assert_eq!(told(Poison::patient(1), &with(three, &[Pass(2900)])), "/0.1 a-1 a-2 b-1");
    }

    #[test]
    fn the_innermost_of_those_that_most_died_of_is_blamed() {
        let mut book = Poison::new(2);
        let now = Instant::now();
        for node in ["a-1", "b-1"] {
            book.died([dead(node, 1, false)], |_| true, now);
            book.held(&node.into(), Incarnation(1), vec![task(&[0]), task(&[3, 1]), task(&[4])]);
        }
        let Verdict::Poisoned(Poisoned { task, .. }) = book.verdict(now) else { panic!() };
        assert_eq!(task.path, TaskPath(vec![3, 1]));
    }

    #[test]
    fn the_book_is_bounded_and_what_is_old_is_forgotten_first() {
        let mut book = Poison::new(2);
        let mut now = Instant::now();
        for life in 0..DEATHS_MAX as u64 + 200 {
            now += CLUSTER_WITHIN;
            book.died([dead("a-1", life, false)], |_| true, now);
            let of = |n: u32| task(&[life as u32, n]);
            book.held(&"a-1".into(), Incarnation(life), (0..100).map(of).collect());
            assert!(book.deaths.len() <= DEATHS_MAX && book.held.len() <= TASKS_MAX);
        }
        let newest = DEATHS_MAX as u32 + 199;
        assert!(book.held.contains_key(&TaskPath(vec![newest, 99])));
        assert!(!book.held.contains_key(&TaskPath(vec![0, 0])));
    }

    /// (node, life, path, leaving) of deaths so far apart that no cluster is lost.
    fn deaths() -> impl Strategy<Value = Vec<(u8, u64, u32, bool)>> {
        proptest::collection::vec((0..5u8, 0..3u64, 0..3u32, proptest::bool::weighted(0.2)), 0..20)
    }

    proptest! {
        /// However often and in whatever order owners tell, the verdict is what a plain count of distinct nodes says.
        #[test]
        fn each_death_counts_once_whoever_tells_it(
            deaths in deaths(),
            again in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40),
            limit in 1..5u32,
        ) {
            let mut book = Poison::new(limit);
            let mut now = Instant::now();
            let mut plain: BTreeMap<u32, BTreeSet<u8>> = BTreeMap::new();
            let mut known: BTreeMap<(u8, u64), bool> = BTreeMap::new();
            for (node, life, path, leaving) in &deaths {
                now += CLUSTER_WITHIN;
                // Of a life that is dead already nothing new is said.
                let leaving = *known.entry((*node, *life)).or_insert(*leaving);
                book.died([dead(&format!("a-{node}"), *life, leaving)], |_| true, now);
                if !leaving {
                    plain.entry(*path).or_default().insert(*node);
                }
            }
            let tell = |book: &mut Poison, (node, life, path, _): &(u8, u64, u32, bool)| {
                book.held(&format!("a-{node}").into(), Incarnation(*life), vec![task(&[*path])]);
            };
            if !deaths.is_empty() {
                again.iter().for_each(|index| tell(&mut book, index.get(&deaths)));
            }
            deaths.iter().for_each(|death| tell(&mut book, death));
            let most = plain.values().map(BTreeSet::len).max().unwrap_or(0);
            match book.verdict(now) {
                Verdict::Poisoned(Poisoned { task, holders }) => {
                    let nodes: BTreeSet<_> = holders.iter().map(|holder| &holder.node).collect();
                    prop_assert_eq!(nodes.len(), plain[&task.path.0[0]].len());
                    prop_assert!(nodes.len() == most && most >= limit as usize);
                }
                Verdict::Clean => prop_assert!(most < limit as usize),
                Verdict::Wait(_) => prop_assert!(false, "nothing to wait for"),
            }
        }
    }
}
