//! A workflow: tasks, the files between them, and their dependencies.
//!
//! This module depends on neither formats nor the place of execution.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use crate::error::{Cause, shown};
use crate::format::Format;

/// A workflow: a directed acyclic graph of tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Workflow {
    /// The name in the file, otherwise the name of the file; may be empty.
    pub name: String,
    /// The tasks in the order of the file, which need not be an order of execution.
    pub tasks: Vec<Task>,
    /// The files that tasks read and write.
    pub files: Vec<File>,
    /// Warnings about the file.
    pub warnings: BTreeMap<WorkflowWarning, Occurrences>,
    order: Vec<usize>,
}

/// A task of a workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The id, which no other task of the workflow has.
    pub id: String,
    /// The name of its program or kind, which other tasks may have too.
    pub name: String,
    /// The command to run, if the file has one.
    pub command: Option<Command>,
    /// The runtime in seconds, more than 0. Known after reading, unless the caller allows unknown
    /// runtimes.
    pub runtime_s: Option<f64>,
    /// The number of processors, at least 1; none if the file has none, which usually means one.
    pub processors: Option<u32>,
    /// The requested resources besides processors.
    pub resources: Resources,
    /// The image in which the command runs, if the file has one.
    pub container: Option<Container>,
    /// Variables of the command's environment, by name.
    pub environment: BTreeMap<String, String>,
    /// The files that replace the standard streams of the command.
    pub redirects: Redirects,
    /// The number of times that a failed task runs again; none if the file has none.
    pub retries: Option<u32>,
    /// The files that it reads: indices of the workflow's files, ascending, each once.
    pub inputs: Vec<usize>,
    /// The files that it writes: indices of the workflow's files, ascending, each once.
    pub outputs: Vec<usize>,
    /// The tasks that it waits for: indices of the workflow's tasks, ascending, each once. These
    /// are the parents of the file and the writers of its inputs.
    pub parents: Vec<usize>,
    /// The position in the file, if the format has it.
    pub at: Option<Position>,
}

impl Task {
    /// A task with this id and name, and no other properties.
    pub fn new(id: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            name: id.clone(),
            id,
            command: None,
            runtime_s: None,
            processors: None,
            resources: Resources::default(),
            container: None,
            environment: BTreeMap::new(),
            redirects: Redirects::default(),
            retries: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            parents: Vec::new(),
            at: None,
        }
    }
}

/// The resources of a task besides its processors; each is none if the file has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resources {
    /// The memory of the whole task in bytes, more than 0.
    pub memory_bytes: Option<u64>,
    /// The number of GPUs of the whole task; 0 if the file says that it needs none.
    pub gpus: Option<u32>,
    /// The limit of the runtime in seconds, more than 0. A task that exceeds it may be ended.
    pub walltime_s: Option<f64>,
}

/// A container image, and the program that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The reference of the image as the file has it: a path, a URL or a name in a registry.
    pub image: String,
    /// The program that runs it, if the file has one.
    pub engine: Option<ContainerEngine>,
}

/// A program that runs container images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerEngine {
    /// Docker, and programs with its commands.
    Docker,
    /// Singularity and Apptainer.
    Singularity,
    /// Shifter.
    Shifter,
}

impl ContainerEngine {
    /// All programs that files can name.
    pub const ALL: [Self; 3] = [Self::Docker, Self::Singularity, Self::Shifter];

    /// The word for the program in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Singularity => "singularity",
            Self::Shifter => "shifter",
        }
    }
}

/// Files in the place of standard streams: indices of the workflow's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redirects {
    /// The file that the command reads as its standard input; one of the task's inputs.
    pub stdin: Option<usize>,
    /// The file that receives the standard output; one of the task's outputs.
    pub stdout: Option<usize>,
    /// The file that receives the standard error; one of the task's outputs, and possibly the same
    /// as `stdout`.
    pub stderr: Option<usize>,
}

/// The command of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A program of the system.
    Program {
        /// The path or name of the program.
        program: String,
        /// The arguments of the program.
        arguments: Vec<String>,
    },
    /// A job that is registered with Springtide.
    Job {
        /// The name of the job.
        job: String,
        /// The arguments of the job.
        arguments: Vec<String>,
    },
}

/// A file that tasks read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The name, which no other file of the workflow has.
    pub name: String,
    /// The size in bytes; 0 if it is unknown.
    pub bytes: u64,
    /// The place of a file that no task writes, if the workflow has it: a path or a URL.
    pub source: Option<FileSource>,
}

impl File {
    /// A file with this name and size, and no other properties.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self { name: name.into(), bytes, source: None }
    }

    /// Whether it is a directory with all that is in it: its name ends with a slash.
    pub fn is_directory(&self) -> bool {
        self.name.ends_with('/')
    }
}

/// The place of a file outside of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// An absolute path on the host that runs the workflow.
    Path(String),
    /// A URL whose scheme is http or https.
    Url(String),
}

impl FileSource {
    /// The source that a text names: an absolute path, or a URL whose scheme is file, http or
    /// https. None if it names another one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme.as_deref() {
            Some("http" | "https") => Some(Self::Url(text.to_owned())),
            _ => local_path(text).map(Self::Path),
        }
    }

    /// The path or URL.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Path(text) | Self::Url(text) => text,
        }
    }
}

/// The path on this system that a path or a URL with the scheme file names.
pub(crate) fn local_path(url: &str) -> Option<String> {
    let path = match url.trim().strip_prefix("file:") {
        // Behind two slashes there is the name of a host, which is empty or this one.
        Some(rest) => match rest.strip_prefix("//") {
            Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
            None => rest,
        },
        None => url.trim(),
    };
    path.starts_with('/').then(|| path.to_owned())
}

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

/// A warning about a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkflowWarning {
    /// A task has a runtime of 0 or less.
    NoTime,
    /// A task needs a fraction of a processor.
    FractionOfProcessor,
    /// A task has less memory than any process needs.
    LittleMemory,
    /// A task has a walltime of 0 or less.
    NoWalltime,
    /// A file has different sizes.
    SizesDiffer,
    /// The size of a file is unknown.
    NoSize,
    /// The size of a file is less than 0.
    NegativeSize,
    /// The size of a file is 0.
    EmptyFile,
    /// A runtime belongs to an unknown task.
    NoSuchTask,
    /// An override belongs to an unknown task.
    OverrideUnused,
    /// An argument refers to a variable of the environment.
    Variable,
    /// An argument has a space.
    SpaceInArgument,
    /// A known field has a meaning that Springtide does not implement.
    FieldWithoutEffect {
        /// The format of the file.
        format: Format,
        /// The place and name of the field.
        field: String,
        /// The meaning of the field, and what to do instead.
        meaning: &'static str,
    },
    /// A field is in no table of fields.
    FieldUnknown {
        /// The format of the file.
        format: Format,
        /// The place and name of the field.
        field: String,
    },
    /// There are more unknown fields than warnings list.
    OtherFieldsUnknown,
}

impl fmt::Display for WorkflowWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTime => "a runtime of 0 s or less (taken: 0.001 s)",
            Self::FractionOfProcessor => "a fraction of a processor (rounded up)",
            Self::LittleMemory => "a memory of less than 1 MiB (not used)",
            Self::NoWalltime => "a walltime of 0 s or less (not used)",
            Self::SizesDiffer => {
                "a file with different sizes (taken: what a writer says, of several the most)"
            }
            Self::NoSize => "a file without a size (taken: 0 bytes)",
            Self::NegativeSize => "a size of less than 0 bytes (taken: 0 bytes)",
            Self::EmptyFile => "a file of 0 bytes",
            Self::NoSuchTask => "a runtime for a task that is not there (not used)",
            Self::OverrideUnused => "an override for a task that is not there (not used)",
            Self::Variable => "an argument with a variable (passed as it is written)",
            Self::SpaceInArgument => "an argument with a space (passed as one argument)",
            Self::FieldWithoutEffect { field, meaning, .. } => {
                return write!(f, "the field {} has no effect: {meaning}", shown(field));
            }
            Self::FieldUnknown { field, .. } => {
                return write!(f, "the field {} is not read", shown(field));
            }
            Self::OtherFieldsUnknown => "other fields that are not read",
        })
    }
}

/// The number of occurrences of a warning, and the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrences {
    /// The number of occurrences.
    pub times: usize,
    /// The subject of the first one: a task's id, a file's name, or the key of an override.
    pub first: String,
    /// The position of the first one, if it is known.
    pub at: Option<Position>,
}

impl Workflow {
    /// Makes a workflow of complete tasks: their parents are not derived from files.
    ///
    /// # Errors
    /// There is no task, an id occurs twice, or tasks form a cycle. An index is out of range or not
    /// ascending, or a redirect names a file that the task does not use.
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
            let Redirects { stdin, stdout, stderr } = task.redirects;
            for (stream, file, files) in [
                ("stdin", stdin, &task.inputs),
                ("stdout", stdout, &task.outputs),
                ("stderr", stderr, &task.outputs),
            ] {
                if file.is_some_and(|file| files.binary_search(&file).is_err()) {
                    let id = &task.id;
                    let reason =
                        format!("{stream} of task {id} is a file that the task does not use");
                    return Err(Cause::Value(reason));
                }
            }
        }
        let order = match order(&tasks) {
            Ok(order) => order,
            Err(left) => {
                let named = |task: &usize| tasks[*task].id.clone();
                return Err(Cause::Cycle {
                    tasks: find_cycle(&tasks, &left).iter().map(named).collect(),
                });
            }
        };
        Ok(Self { name: name.into(), tasks, files, warnings: BTreeMap::new(), order })
    }

    /// The bytes from a parent to a child: the sizes of the files that one writes and the other
    /// reads.
    ///
    /// 0 if there are none, or no such tasks.
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

    /// All tasks in an order of execution; of possible next tasks, the first of the file.
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

/// The children of each task.
pub(crate) fn children(tasks: &[Task]) -> Vec<Vec<usize>> {
    let mut children = vec![Vec::new(); tasks.len()];
    for (child, task) in tasks.iter().enumerate() {
        for parent in &task.parents {
            children[*parent].push(child);
        }
    }
    children
}

/// All tasks in an order of execution; if there is a cycle, the tasks of cycles and their
/// descendants.
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

/// A cycle among the tasks of cycles and their descendants: each is a parent of the next, and the
/// last of the first.
pub(crate) fn find_cycle(tasks: &[Task], left: &[bool]) -> Vec<usize> {
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
        let file = |name: &str, bytes| File::new(name, bytes);
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
    fn invalid_workflows_are_refused() {
        let refused = |tasks| Workflow::new("w", tasks, vec![]).unwrap_err();
        assert!(matches!(refused(vec![]), Cause::NoTasks));
        assert!(matches!(refused(vec![task("a", &[]), task("a", &[])]), Cause::DuplicateId { .. }));
        assert!(matches!(refused(vec![task("a", &[0])]), Cause::SelfEdge { .. }));
        assert!(matches!(refused(vec![task("a", &[1])]), Cause::Value(_)));
        assert!(matches!(
            refused(vec![Task { inputs: vec![0], ..Task::new("a") }]),
            Cause::Value(_)
        ));
        let redirects = Redirects { stdout: Some(0), ..Redirects::default() };
        let stray = refused(vec![Task { redirects, ..Task::new("a") }]);
        assert_eq!(stray.to_string(), "stdout of task a is a file that the task does not use");
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
