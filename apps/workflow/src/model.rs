//! A workflow: tasks, the files between them, and who waits for whom.
//!
//! Must not know in which format it was written down, nor where it will run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use crate::error::Cause;

/// A workflow: a directed acyclic graph of tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Workflow {
    /// As its file says, else as its file is called; may be empty.
    pub name: String,
    /// As they stand in the file, which need not be an order in which they can run.
    pub tasks: Vec<Task>,
    /// What tasks read and write.
    pub files: Vec<File>,
    /// What was odd about the file, but could be read.
    pub odd: BTreeMap<Oddity, Met>,
    order: Vec<usize>,
}

/// A task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// No other task of the workflow has it.
    pub id: String,
    /// Of its program, or of its kind: others may have it too.
    pub name: String,
    /// What is run, if the file says so.
    pub command: Option<Command>,
    /// How long it runs, in seconds, more than 0. Always known after reading, unless it was asked that it need not be.
    pub runtime_s: Option<f64>,
    /// How many processors it needs, at least 1. Not known if nobody said so: then one is usual.
    pub processors: Option<u32>,
    /// What it reads: indices of the workflow's files, ascending, each once.
    pub inputs: Vec<usize>,
    /// What it writes: indices of the workflow's files, ascending, each once.
    pub outputs: Vec<usize>,
    /// Whom it waits for: indices of the workflow's tasks, ascending, each once. These are those that the file names and those
    /// that write what it reads.
    pub parents: Vec<usize>,
    /// Where it stands in the file, if the format tells.
    pub at: Option<Position>,
}

impl Task {
    /// A task of which only this is known. Its name is its id.
    pub fn new(id: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            name: id.clone(),
            id,
            command: None,
            runtime_s: None,
            processors: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            parents: Vec::new(),
            at: None,
        }
    }
}

/// What a task runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A program.
    Program {
        /// Its path or name.
        program: String,
        /// What it is given.
        arguments: Vec<String>,
    },
    /// A job that is registered with Springtide.
    Job {
        /// Its name.
        job: String,
        /// What it is given.
        arguments: Vec<String>,
    },
}

/// A file that tasks read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// No other file of the workflow has it.
    pub name: String,
    /// Its size in bytes; 0 if it is not known.
    pub bytes: u64,
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

/// What is odd about a file, but can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// A task ran no time, or less.
    NoTime,
    /// A task needs a fraction of a processor.
    FractionOfProcessor,
    /// A file has one size here and another there.
    SizesDiffer,
    /// A file's size is not known.
    NoSize,
    /// There is a runtime for a task that is not there.
    NoSuchTask,
    /// An override is for a task that is not there.
    OverrideUnused,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTime => "a runtime of 0 s or less (taken: 0.001 s)",
            Self::FractionOfProcessor => "a fraction of a processor (rounded up)",
            Self::SizesDiffer => {
                "a file with different sizes (taken: what a writer says, of several the most)"
            }
            Self::NoSize => "a file without a size (taken: 0 bytes)",
            Self::NoSuchTask => "a runtime for a task that is not there (not used)",
            Self::OverrideUnused => "an override for a task that is not there (not used)",
        })
    }
}

/// How often something odd was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// So often.
    pub times: usize,
    /// First with this: a task's id, a file's name, or what an override is for.
    pub first: String,
    /// Where that is, if it is known.
    pub at: Option<Position>,
}

impl Workflow {
    /// A workflow of tasks that are complete already: their parents are not looked for in the files.
    ///
    /// # Errors
    /// There is no task, two have one id, indices are of nothing or not ascending, or tasks wait for one another.
    pub fn new(name: impl Into<String>, tasks: Vec<Task>, files: Vec<File>) -> Result<Self, Cause> {
        if tasks.is_empty() {
            return Err(Cause::NoTasks);
        }
        let mut ids = std::collections::HashSet::new();
        for (index, task) in tasks.iter().enumerate() {
            if !ids.insert(task.id.as_str()) {
                return Err(Cause::DuplicateId { id: task.id.clone(), first: None });
            }
            if task.parents.contains(&index) {
                return Err(Cause::SelfEdge { id: task.id.clone() });
            }
            for (what, indices, end) in [
                ("parents", &task.parents, tasks.len()),
                ("inputs", &task.inputs, files.len()),
                ("outputs", &task.outputs, files.len()),
            ] {
                let ascending = indices.is_sorted_by(|a, b| a < b);
                if !ascending || indices.last().is_some_and(|last| *last >= end) {
                    let reason =
                        format!("the {what} of task {} must be ascending and below {end}", task.id);
                    return Err(Cause::Value(reason));
                }
            }
        }
        let order = match order(&tasks) {
            Ok(order) => order,
            Err(left) => {
                let named = |task: &usize| tasks[*task].id.clone();
                return Err(Cause::Cycle {
                    tasks: circle(&tasks, &left).iter().map(named).collect(),
                });
            }
        };
        Ok(Self { name: name.into(), tasks, files, odd: BTreeMap::new(), order })
    }

    /// Bytes that go from a parent to a child: the sizes of the files that it writes and the child reads. 0 if there are none, or
    /// no such tasks.
    pub fn edge_bytes(&self, parent: usize, child: usize) -> u64 {
        let (Some(parent), Some(child)) = (self.tasks.get(parent), self.tasks.get(child)) else {
            return 0;
        };
        let (few, many) = match (&parent.outputs, &child.inputs) {
            (outputs, inputs) if outputs.len() < inputs.len() => (outputs, inputs),
            (outputs, inputs) => (inputs, outputs),
        };
        let common = few.iter().filter(|file| many.binary_search(file).is_ok());
        common.fold(0, |sum: u64, file| sum.saturating_add(self.files[*file].bytes))
    }

    /// The edges, by child: parent, child, and the bytes between them.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        self.tasks.iter().enumerate().flat_map(move |(child, task)| {
            let edge = move |parent: &usize| (*parent, child, self.edge_bytes(*parent, child));
            task.parents.iter().map(edge)
        })
    }

    /// All tasks, each behind its parents; of those that could come next, the first of the file.
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

/// Who waits for each task.
pub(crate) fn children(tasks: &[Task]) -> Vec<Vec<usize>> {
    let mut children = vec![Vec::new(); tasks.len()];
    for (child, task) in tasks.iter().enumerate() {
        for parent in &task.parents {
            children[*parent].push(child);
        }
    }
    children
}

/// All tasks, each behind its parents; or, where that cannot be, those tasks that are in a circle or behind one.
pub(crate) fn order(tasks: &[Task]) -> Result<Vec<usize>, Vec<bool>> {
    let children = children(tasks);
    let mut waits: Vec<usize> = tasks.iter().map(|task| task.parents.len()).collect();
    let free = |(task, waits): (usize, &usize)| (*waits == 0).then_some(Reverse(task));
    let mut next: BinaryHeap<_> = waits.iter().enumerate().filter_map(free).collect();
    let mut order = Vec::with_capacity(tasks.len());
    while let Some(Reverse(task)) = next.pop() {
        order.push(task);
        for child in &children[task] {
            waits[*child] -= 1;
            if waits[*child] == 0 {
                next.push(Reverse(*child));
            }
        }
    }
    if order.len() == tasks.len() {
        return Ok(order);
    }
    Err(waits.iter().map(|waits| *waits > 0).collect())
}

/// A circle among tasks that are in one or behind one: each is a parent of the next, and the last of the first.
pub(crate) fn circle(tasks: &[Task], left: &[bool]) -> Vec<usize> {
    let mut path = Vec::new();
    let mut seen = vec![None; tasks.len()];
    let mut at = left.iter().position(|left| *left);
    while let Some(task) = at {
        if let Some(first) = seen[task] {
            path.drain(..first);
            break;
        }
        seen[task] = Some(path.len());
        path.push(task);
        at = tasks[task].parents.iter().copied().find(|parent| left[*parent]);
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str, parents: &[usize]) -> Task {
        Task { parents: parents.to_vec(), ..Task::new(id) }
    }

    #[test]
    fn an_order_puts_parents_first_and_keeps_that_of_the_file() {
        let tasks = vec![
            task("sink", &[1, 2]),
            task("a", &[3]),
            task("b", &[3]),
            task("root", &[]),
            task("c", &[]),
        ];
        let workflow = Workflow::new("w", tasks, vec![]).unwrap();
        assert_eq!(workflow.order(), [3, 1, 2, 0, 4]);
        let edges: Vec<_> = workflow.edges().collect();
        assert_eq!(edges, [(1, 0, 0), (2, 0, 0), (3, 1, 0), (3, 2, 0)]);
    }

    #[test]
    fn bytes_of_an_edge_are_those_of_the_files_in_common() {
        let file = |name: &str, bytes| File { name: name.to_owned(), bytes };
        let writer = Task { outputs: vec![0, 1, 2], ..task("w", &[]) };
        let reader = Task { inputs: vec![1, 2, 3], ..task("r", &[0]) };
        let files = vec![file("a", 1), file("b", 10), file("c", 100), file("d", 1000)];
        let workflow = Workflow::new("w", vec![writer.clone(), reader.clone()], files).unwrap();
        assert_eq!(
            (workflow.edge_bytes(0, 1), workflow.edge_bytes(1, 0), workflow.edge_bytes(7, 1)),
            (110, 0, 0)
        );
        let huge = ["a", "b", "c", "d"].map(|name| file(name, u64::MAX)).to_vec();
        let workflow = Workflow::new("w", vec![writer, reader], huge).unwrap();
        assert_eq!(workflow.edge_bytes(0, 1), u64::MAX);
    }

    #[test]
    fn what_is_no_workflow_is_refused() {
        let refused = |tasks| Workflow::new("w", tasks, vec![]).unwrap_err();
        assert!(matches!(refused(vec![]), Cause::NoTasks));
        assert!(matches!(refused(vec![task("a", &[]), task("a", &[])]), Cause::DuplicateId { .. }));
        assert!(matches!(refused(vec![task("a", &[0])]), Cause::SelfEdge { .. }));
        assert!(matches!(refused(vec![task("a", &[1])]), Cause::Value(_)));
        assert!(matches!(
            refused(vec![Task { inputs: vec![0], ..Task::new("a") }]),
            Cause::Value(_)
        ));
        let round = refused(vec![
            task("root", &[]),
            task("a", &[0, 2]),
            task("b", &[1]),
            task("tail", &[2]),
        ]);
        let Cause::Cycle { tasks } = round else { panic!("{round}") };
        assert!(tasks == ["a", "b"] || tasks == ["b", "a"], "{tasks:?}");
    }
}
