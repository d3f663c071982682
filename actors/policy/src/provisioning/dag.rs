//! A workflow for planning: tasks, their runtimes on each site, and the data between them.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Time, seconds};

/// Runtime of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The same on every site.
    Same(Time),
    /// One runtime for each site.
    BySite(Vec<Time>),
}

impl Runtime {
    /// Returns the runtime on a site.
    pub fn on(&self, site: usize) -> Time {
        match self {
            Self::Same(time) => *time,
            Self::BySite(times) => times[site],
        }
    }
}

/// A task of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DagTask {
    /// Name given by the owner.
    pub name: String,
    /// Processors that it needs simultaneously.
    pub processors: u32,
    /// Runtime on these processors.
    pub runtime: Runtime,
}

/// Data that one task produces and another needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of the producing task.
    pub from: usize,
    /// Index of the consuming task.
    pub to: usize,
    /// Length of the data in bytes.
    pub bytes: u64,
}

/// Links between sites. Transfers within a site take no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteLinks {
    /// Latency ([`Time`]) and bandwidth (bytes per second) by pair of sites (from, to). Other pairs
    /// use `other`.
    pub pairs: BTreeMap<(usize, usize), (Time, f64)>,
    /// Latency and bandwidth of all other pairs; absent: no delay.
    pub other: Option<(Time, f64)>,
}

impl SiteLinks {
    /// Duration of a transfer between two sites.
    pub fn transfer(&self, bytes: u64, from: usize, to: usize) -> Time {
        if from == to {
            return 0;
        }
        let link = self.pairs.get(&(from, to)).or(self.other.as_ref());
        link.map_or(0, |&(latency, bandwidth)| {
            latency.saturating_add(super::from_seconds(bytes as f64 / bandwidth))
        })
    }

    /// Mean latency in seconds and mean seconds per byte, over the pairs of different sites.
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

/// Why tasks and edges form no workflow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DagError {
    /// A task depends on itself.
    #[error("task {task} waits for itself: {}", path.join(" -> "))]
    Cycle {
        /// Name of a task in the cycle.
        task: String,
        /// The tasks of the cycle.
        path: Vec<String>,
    },
    /// A task needs no processors, or lacks a runtime for some site.
    #[error("task {task}: {what}")]
    Task {
        /// Name of the task.
        task: String,
        /// Description of the error.
        what: String,
    },
    /// An edge refers to a missing task.
    #[error("an edge names task {index} of {count}")]
    Edge {
        /// Index of the task.
        index: usize,
        /// Number of tasks.
        count: usize,
    },
}

/// An acyclic workflow, with the lists that schedulers read repeatedly.
#[derive(Clone, Debug)]
pub struct Dag {
    tasks: Vec<DagTask>,
    /// Parents of each task with bytes, and children, each as (first, last) into one list.
    parents: Lists,
    children: Lists,
    /// Tasks in topological order, else in order of the list.
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
    /// Builds a workflow from tasks and edges. Duplicate edges are merged, and their bytes summed.
    ///
    /// # Errors
    /// [`DagError`] if the tasks and edges form no workflow.
    pub fn new(tasks: Vec<DagTask>, edges: &[Edge], sites: usize) -> Result<Self, DagError> {
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

    /// The number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns a task by its index.
    pub fn task(&self, task: usize) -> &DagTask {
        &self.tasks[task]
    }

    /// All tasks in their order.
    pub fn tasks(&self) -> &[DagTask] {
        &self.tasks
    }

    /// Parents of a task, with the bytes from each.
    pub fn parents(&self, task: usize) -> &[(usize, u64)] {
        self.parents.of(task)
    }

    /// Children of a task, with the bytes to each.
    pub fn children(&self, task: usize) -> &[(usize, u64)] {
        self.children.of(task)
    }

    /// The number of edges.
    pub fn edges(&self) -> usize {
        self.parents.all.len()
    }

    /// Tasks in topological order, parents before children.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Level of each task: the length of the longest path from a task without parents.
    pub fn levels(&self) -> Vec<usize> {
        let mut levels = vec![0; self.len()];
        for &task in &self.order {
            let above = self.parents(task).iter().map(|&(parent, _)| levels[parent] + 1);
            levels[task] = above.max().unwrap_or(0);
        }
        levels
    }

    /// Upward ranks (Topcuoglu et al. 2002, with mean runtimes and mean transfers over the sites).
    /// A rank is the mean time in seconds from a task's start to the workflow's end.
    pub fn ranks(&self, links: &SiteLinks, sites: usize) -> Vec<f64> {
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

    /// Processor-seconds of all tasks, each on its fastest site: a lower bound of a plan's cost at
    /// rate 1 (the paper's equation 9). Sums integers, as the cost of plans does, so that a plan
    /// can equal the bound.
    pub fn work(&self, sites: usize) -> f64 {
        let one = |task: &DagTask| {
            let least = (0..sites.max(1)).map(|site| task.runtime.on(site)).min().unwrap_or(0);
            u128::from(task.processors) * u128::from(least)
        };
        super::slot::cost_of(self.tasks.iter().map(one).sum(), 1.0)
    }
}

/// Finds a cycle among tasks that were never ready.
fn cycle(tasks: &[DagTask], parents: &Lists, waits: &[usize]) -> DagError {
    // Each of them waits for another of them, so the first one visited twice is in a cycle.
    let stuck = |task: usize| waits[task] > 0;
    let mut task = (0..tasks.len()).find(|&task| stuck(task)).unwrap_or(0);
    let mut seen = vec![usize::MAX; tasks.len()];
    let mut visited = Vec::new();
    while seen[task] == usize::MAX {
        seen[task] = visited.len();
        visited.push(task);
        let waits_for = parents.of(task).iter().map(|&(parent, _)| parent).find(|&p| stuck(p));
        task = waits_for.unwrap_or(task);
    }
    let mut path: Vec<String> =
        visited[seen[task]..].iter().rev().map(|&task| tasks[task].name.clone()).collect();
    path.insert(0, tasks[task].name.clone());
    path.truncate(12);
    DagError::Cycle { task: tasks[task].name.clone(), path }
}
