//! A workflow as the planner sees it: tasks, what they take on each site, and what passes between them.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Time, seconds};

/// How long a task takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// As long on every site.
    Same(Time),
    /// By site.
    BySite(Vec<Time>),
}

impl Runtime {
    /// On a site.
    pub fn on(&self, site: usize) -> Time {
        match self {
            Self::Same(time) => *time,
            Self::BySite(times) => times[site],
        }
    }
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// How its owner calls it.
    pub name: String,
    /// Processors that it needs, all at once.
    pub processors: u32,
    /// How long it takes on them.
    pub runtime: Runtime,
}

/// A task's data that another one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Who has it.
    pub from: usize,
    /// Who needs it.
    pub to: usize,
    /// Bytes.
    pub bytes: u64,
}

/// How long data takes between sites. Within a site it takes no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Links {
    /// Latency in [`Time`] and bandwidth in bytes per second by (from, to); what is not here is `other`.
    pub pairs: BTreeMap<(usize, usize), (Time, f64)>,
    /// Of all other pairs; absent: no time at all.
    pub other: Option<(Time, f64)>,
}

impl Links {
    /// How long so many bytes take from a site to another.
    pub fn transfer(&self, bytes: u64, from: usize, to: usize) -> Time {
        if from == to {
            return 0;
        }
        let link = self.pairs.get(&(from, to)).or(self.other.as_ref());
        link.map_or(0, |&(latency, bandwidth)| {
            latency.saturating_add(super::from_seconds(bytes as f64 / bandwidth))
        })
    }

    /// Latency in seconds, and seconds a byte, on average over the pairs of different sites.
    fn mean(&self, sites: usize) -> (f64, f64) {
        let pairs =
            (0..sites).flat_map(|a| (0..sites).map(move |b| (a, b))).filter(|(a, b)| a != b);
        let (mut latency, mut per_byte, mut count) = (0.0, 0.0, 0.0f64);
        for pair in pairs {
            count += 1.0;
            if let Some((wait, bandwidth)) = self.pairs.get(&pair).or(self.other.as_ref()) {
                latency += seconds(*wait);
                per_byte += 1.0 / bandwidth;
            }
        }
        let count = count.max(1.0);
        (latency / count, per_byte / count)
    }
}

/// Why tasks and edges are no workflow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DagError {
    /// A task needs what comes of itself.
    #[error("task {task} waits for itself: {}", path.join(" -> "))]
    Cycle {
        /// One of them.
        task: String,
        /// The way from it to itself.
        path: Vec<String>,
    },
    /// A task needs no processors, or is told a time for fewer sites than there are.
    #[error("task {task}: {what}")]
    Task {
        /// Which.
        task: String,
        /// What is wrong.
        what: String,
    },
    /// An edge names a task that is not there.
    #[error("an edge names task {index} of {count}")]
    Edge {
        /// The number.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

/// Tasks without cycles, with all that list schedulers ask again and again.
#[derive(Clone, Debug)]
pub struct Dag {
    tasks: Vec<Task>,
    /// Parents of each task with bytes, and children, both as (first, last) into one list.
    parents: Lists,
    children: Lists,
    /// Tasks in an order in which parents come first; else by their place in the list.
    order: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct Lists {
    first: Vec<usize>,
    all: Vec<(usize, u64)>,
}

impl Lists {
    fn new(count: usize, edges: &[Edge], key: impl Fn(&Edge) -> (usize, usize)) -> Self {
        let mut first = vec![0; count + 1];
        for edge in edges {
            first[key(edge).0 + 1] += 1;
        }
        for task in 0..count {
            first[task + 1] += first[task];
        }
        let mut next = first.clone();
        let mut all = vec![(0, 0); edges.len()];
        for edge in edges {
            let (of, other) = key(edge);
            all[next[of]] = (other, edge.bytes);
            next[of] += 1;
        }
        Self { first, all }
    }

    fn of(&self, task: usize) -> &[(usize, u64)] {
        &self.all[self.first[task]..self.first[task + 1]]
    }
}

impl Dag {
    /// Of tasks and what passes between them. An edge that is told twice counts once, with all its bytes.
    ///
    /// # Errors
    /// [`DagError`].
    pub fn new(tasks: Vec<Task>, edges: &[Edge], sites: usize) -> Result<Self, DagError> {
        let count = tasks.len();
        for task in &tasks {
            let wrong =
                |what: &str| DagError::Task { task: task.name.clone(), what: what.to_owned() };
            if task.processors == 0 {
                return Err(wrong("it needs no processors"));
            }
            if matches!(&task.runtime, Runtime::BySite(times) if times.len() < sites) {
                return Err(wrong("its runtime is not known for every site"));
            }
        }
        let mut one: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for edge in edges {
            if let Some(&index) = [edge.from, edge.to].iter().find(|&&index| index >= count) {
                return Err(DagError::Edge { index, count });
            }
            let bytes = one.entry((edge.from, edge.to)).or_default();
            *bytes = bytes.saturating_add(edge.bytes);
        }
        let edges: Vec<Edge> =
            one.into_iter().map(|((from, to), bytes)| Edge { from, to, bytes }).collect();
        let parents = Lists::new(count, &edges, |edge| (edge.to, edge.from));
        let children = Lists::new(count, &edges, |edge| (edge.from, edge.to));
        let mut waits: Vec<usize> = (0..count).map(|task| parents.of(task).len()).collect();
        let mut ready: std::collections::BTreeSet<usize> =
            (0..count).filter(|&task| waits[task] == 0).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(task) = ready.pop_first() {
            order.push(task);
            for &(child, _) in children.of(task) {
                waits[child] -= 1;
                if waits[child] == 0 {
                    ready.insert(child);
                }
            }
        }
        if order.len() < count {
            return Err(cycle(&tasks, &parents, &waits));
        }
        Ok(Self { tasks, parents, children, order })
    }

    /// How many tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// A task.
    pub fn task(&self, task: usize) -> &Task {
        &self.tasks[task]
    }

    /// All of them.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Whom a task waits for, and how many bytes it gets of each.
    pub fn parents(&self, task: usize) -> &[(usize, u64)] {
        self.parents.of(task)
    }

    /// Who waits for a task, and how many bytes of it each gets.
    pub fn children(&self, task: usize) -> &[(usize, u64)] {
        self.children.of(task)
    }

    /// How many edges.
    pub fn edges(&self) -> usize {
        self.parents.all.len()
    }

    /// Tasks, parents before children.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// By how many tasks each is behind the first ones: the longest way from a task without parents.
    pub fn levels(&self) -> Vec<usize> {
        let mut levels = vec![0; self.len()];
        for &task in &self.order {
            let above = self.parents(task).iter().map(|&(parent, _)| levels[parent] + 1);
            levels[task] = above.max().unwrap_or(0);
        }
        levels
    }

    /// Upward ranks (Topcuoglu et al. 2002, with mean runtimes and mean transfers over the sites): seconds from a task's start to the
    /// workflow's end, on average.
    pub fn ranks(&self, links: &Links, sites: usize) -> Vec<f64> {
        let (latency, per_byte) = links.mean(sites);
        let runtime = |task: usize| match &self.tasks[task].runtime {
            Runtime::Same(time) => seconds(*time),
            Runtime::BySite(times) => {
                let times = &times[..sites.max(1).min(times.len())];
                times.iter().map(|&time| seconds(time)).sum::<f64>() / times.len().max(1) as f64
            }
        };
        let mut ranks = vec![0.0f64; self.len()];
        for &task in self.order.iter().rev() {
            let below = self
                .children(task)
                .iter()
                .map(|&(child, bytes)| latency + per_byte * bytes as f64 + ranks[child]);
            ranks[task] = runtime(task) + below.fold(0.0, f64::max);
        }
        ranks
    }

    /// Processor-seconds of all tasks, each on the site where it takes least: what no plan costs less than, at one a
    /// processor-second (the paper's equation 9). Added up as whole numbers, as what plans cost is: a plan may cost just this.
    pub fn work(&self, sites: usize) -> f64 {
        let one = |task: &Task| {
            let least = (0..sites.max(1)).map(|site| task.runtime.on(site)).min().unwrap_or(0);
            u128::from(task.processors) * u128::from(least)
        };
        super::slot::worth(self.tasks.iter().map(one).sum(), 1.0)
    }
}

/// One cycle among tasks that were never ready.
fn cycle(tasks: &[Task], parents: &Lists, waits: &[usize]) -> DagError {
    // Each of them waits for another of them: whoever is met twice is in a cycle.
    let stuck = |task: usize| waits[task] > 0;
    let mut task = (0..tasks.len()).find(|&task| stuck(task)).unwrap_or(0);
    let mut seen = vec![usize::MAX; tasks.len()];
    let mut way = Vec::new();
    while seen[task] == usize::MAX {
        seen[task] = way.len();
        way.push(task);
        let waits_for = parents.of(task).iter().map(|&(parent, _)| parent).find(|&p| stuck(p));
        task = waits_for.unwrap_or(task);
    }
    let mut path: Vec<String> =
        way[seen[task]..].iter().rev().map(|&task| tasks[task].name.clone()).collect();
    path.insert(0, tasks[task].name.clone());
    path.truncate(12);
    DagError::Cycle { task: tasks[task].name.clone(), path }
}
