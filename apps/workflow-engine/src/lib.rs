//! `workflow`: readers, plans and runs of workflows.
//!
//! - [`check`], [`formats`], [`plan`] and [`run`]: the commands.
//! - `planning`: computes a plan from a workflow, offers and a request; `processors` numbers
//!   the processors of its tasks.
//! - `artefacts`: tables of a plan; `front`, `gantt` and
//!   [`canvas`](springtide_figures::canvas): its figures.
//! - [`offers`](springtide_operations::offers): the file of the sites' offers.
//!
//! Files and plans do not depend on the transport to sites.

// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod artefacts;
pub mod check;
pub mod formats;
mod front;
mod gantt;
pub mod plan;
mod planning;
mod processors;
pub mod run;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde::Serialize;
use springtide_actors::policy::provisioning::{Dag, DagError, seconds};
use springtide_cli::exit::Failed;
use springtide_simulator::workload::figures::quoted;
use springtide_workflow::{
    Cause, Format, Overrides, Position, ReadError, TEXT_MAX, TextPosition, Workflow,
};

use self::planning::Needs;

/// Options for reading a workflow's file, and values that override the file's.
#[derive(Args, Clone, Debug, Default)]
pub struct ReadArgs {
    /// Format of the file: wfformat, dax, pegasus, dot or toml [default: detected from its name and
    /// content]
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Format>)]
    pub format: Option<Format>,
    /// Runtimes and resources by a task's id, its name or its program: a table (CSV) with the
    /// columns name,runtime_s,processors,memory_mb,gpus,walltime_s, of which any may be empty but
    /// the first; or the trace of a run of Nextflow
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub overrides: Option<PathBuf>,
}

impl ReadArgs {
    /// Reads the table of overrides, if one is given. An unknown runtime is not an error here:
    /// [`Read::has_runtimes`] reports it.
    ///
    /// # Errors
    /// The table cannot be read, or has a wrong line; with the line.
    pub fn overrides(&self) -> Result<Overrides, ReadError> {
        let mut overrides = Overrides { unknown_runtimes: true, ..Overrides::default() };
        if let Some(file) = &self.overrides {
            overrides.read_table(file)?;
        }
        Ok(overrides)
    }
}

/// A workflow from a file.
#[derive(Clone, Debug)]
pub struct Read {
    /// Path of the file, as given by the user.
    pub file: PathBuf,
    /// Format of the file, if it was recognised.
    pub format: Option<Format>,
    /// Contents of the file.
    pub workflow: Workflow,
    /// Kind of each task: the name of its program, without a trailing number where nearly every
    /// task has its own name.
    pub kinds: Vec<String>,
}

/// Bytes at the start of a file from which its format is detected.
const START: u64 = 64 << 10;

/// Maximum number of tasks without a runtime that a message names.
const NAMED: usize = 3;

/// Reads a workflow, whose runtimes may be unknown. Without a format, the file's name and content
/// determine it.
///
/// # Errors
/// The file cannot be read, or is not a workflow; with the position.
pub fn read(file: &Path, format: Option<Format>, overrides: &Overrides) -> Result<Read, ReadError> {
    let begin = |most: u64| {
        let mut start = Vec::new();
        std::fs::File::open(file).and_then(|f| f.take(most).read_to_end(&mut start)).map(|_| start)
    };
    let (workflow, format) = match format {
        Some(format) => {
            let unreadable = |error| ReadError {
                place: TextPosition { file: file.to_owned(), at: None },
                cause: Box::new(Cause::Unreadable(error)),
            };
            let text = begin(TEXT_MAX + 1).map_err(unreadable)?;
            (Workflow::parse(file, &text, format, overrides)?, Some(format))
        }
        None => {
            let workflow = Workflow::read(file, overrides)?;
            (workflow, begin(START).ok().and_then(|start| Format::guess(file, &start)))
        }
    };
    Ok(Read::of(file, format, workflow))
}

/// Fewer tasks than this may each be of a different kind.
const FEW: usize = 8;

/// The kind of each task.
fn kinds(workflow: &Workflow) -> Vec<String> {
    let names = || workflow.tasks.iter().map(|task| task.name.as_str());
    let count = names().collect::<std::collections::BTreeSet<_>>().len();
    // Some producers number names: mProject_ID0000042.
    let numbered = workflow.tasks.len() >= FEW && count * 2 > workflow.tasks.len();
    let kind = |name: &str| {
        let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let bare = if bare.len() < name.len() {
            bare.strip_suffix("ID").unwrap_or(bare).trim_end_matches(['_', '-', '.', ' '])
        } else {
            name
        };
        if numbered && !bare.is_empty() { bare.to_owned() } else { name.to_owned() }
    };
    names().map(kind).collect()
}

impl Read {
    /// Creates the record of a workflow that was read from a file.
    pub fn of(file: &Path, format: Option<Format>, workflow: Workflow) -> Self {
        let kinds = kinds(&workflow);
        Self { file: file.to_owned(), format, workflow, kinds }
    }

    /// The name of the workflow, or that of its file if it has none.
    pub fn name(&self) -> String {
        if self.workflow.name.is_empty() {
            self.file.display().to_string()
        } else {
            self.workflow.name.clone()
        }
    }

    /// The planner's graph of the workflow for sites with these speeds. A task whose number of
    /// processors is unknown needs one. An unknown runtime counts as zero.
    ///
    /// # Errors
    /// The tasks are not a workflow. Readers accept none of that kind.
    pub fn dag(&self, speeds: &[f64]) -> Result<Dag, DagError> {
        let needs = |task: &springtide_workflow::Task| Needs {
            name: task.id.clone(),
            runtime_s: task.runtime_s.unwrap_or(0.0),
            processors: task.processors.unwrap_or(1),
        };
        planning::dag(self.workflow.tasks.iter().map(needs), self.workflow.edges(), speeds)
    }

    /// A message about unknown runtimes with a remedy, or `None` if all are known.
    pub fn lacks_runtimes(&self) -> Option<String> {
        let lacks = || self.workflow.tasks.iter().filter(|task| task.runtime_s.is_none());
        let first = lacks().next()?;
        let count = lacks().count();
        let mut names: Vec<String> = lacks().take(NAMED).map(|task| shown(&task.id)).collect();
        if count > NAMED {
            names.push(format!("{} others", count - NAMED));
        }
        let last = names.pop().unwrap_or_default();
        let names =
            if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) };
        let mut table = Vec::new();
        for task in lacks() {
            let quoted = quoted(&task.name);
            if !table.contains(&quoted) && table.len() < NAMED {
                table.push(quoted);
            }
        }
        let at = first.at.map_or_else(String::new, |at| format!(":{}:{}", at.line, at.column));
        let (have, s) = if count == 1 { ("has", "") } else { ("have", "s") };
        let rows: String = table.iter().map(|name| format!("\n  {name},60,1")).collect();
        Some(format!(
            "{}{at}: {count} task{s} {have} no runtime: {names}; give seconds and processors, by a \
             task's id or its program, with --overrides FILE, a table such as\n  \
             name,runtime_s,processors{rows}",
            self.file.display()
        ))
    }

    /// Checks that the runtimes of all tasks are known.
    ///
    /// # Errors
    /// Some are unknown; with the tasks and a remedy.
    pub fn has_runtimes(&self) -> Result<(), Failed> {
        self.lacks_runtimes().map_or(Ok(()), |lacks| Err(Failed::usage(lacks)))
    }

    /// Warnings about the file.
    pub fn notes(&self) -> Vec<Note> {
        let note = |(warning, met): (
            &springtide_workflow::WorkflowWarning,
            &springtide_workflow::Occurrences,
        )| Note {
            what: warning.to_string(),
            times: met.times,
            first: met.first.clone(),
            line: met.at.map(|at| at.line),
            column: met.at.map(|at| at.column),
        };
        self.workflow.warnings.iter().map(note).collect()
    }
}

/// A warning about a file that could be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Text of the note.
    pub what: String,
    /// Number of times that it occurs.
    pub times: usize,
    /// Name of the first task or file with this note.
    pub first: String,
    /// Line of the first occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column of the first occurrence, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

impl Note {
    /// The note as a line of text that begins with the file's name.
    pub fn line(&self, file: &Path) -> String {
        let at = self.line.zip(self.column);
        let at = at.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"));
        let first = shown(&self.first);
        let times = match self.times {
            1 => first,
            times => format!("{first}, and {} more", times - 1),
        };
        format!("{}{at}: {}: {times}", file.display(), self.what)
    }
}

/// A name for a message: on one line, of at most 60 characters.
pub fn shown(name: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let start: String = name.chars().take(60).map(plain).collect();
    let is_cut = name.chars().nth(60).is_some();
    if is_cut { start + "..." } else { start }
}

/// Line and column of an error, if it has them.
fn place(at: Option<Position>) -> (Option<u32>, Option<u32>) {
    (at.map(|at| at.line), at.map(|at| at.column))
}

/// A workflow in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of the workflow's tasks.
    pub tasks: usize,
    /// Number of dependencies between tasks.
    pub edges: usize,
    /// Number of tasks in the longest chain.
    pub levels: usize,
    /// Maximum number of tasks in one level. A level has the tasks whose longest chains to a first
    /// task have equal lengths.
    pub width: usize,
    /// Maximum number of processors of a task.
    pub most_processors: u32,
    /// Maximum memory of a task, in bytes, if a task has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_memory_bytes: Option<u64>,
    /// Maximum number of GPUs of a task, if a task has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_gpus: Option<u32>,
    /// Processor-hours of all tasks, or `None` if a runtime is unknown.
    pub processor_hours: Option<f64>,
    /// Seconds of the longest chain at a speed of 1, without transfers; `None` if a runtime is
    /// unknown.
    pub critical_path_s: Option<f64>,
    /// Bytes that tasks transfer to each other.
    pub bytes: u64,
    /// Number of different files.
    pub files: usize,
    /// Tasks by program, in decreasing order of processor-hours.
    pub kinds: Vec<Kind>,
}

/// Tasks of one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// Name of the program.
    pub name: String,
    /// Number of its tasks.
    pub tasks: usize,
    /// Processor-hours of its tasks with known runtimes.
    pub processor_hours: f64,
}

impl Summary {
    /// Computes the summary of a workflow.
    ///
    /// # Errors
    /// Those of [`Read::dag`].
    pub fn of(read: &Read) -> Result<Self, DagError> {
        let workflow = &read.workflow;
        let dag = read.dag(&[1.0])?;
        let levels = dag.levels();
        let depth = levels.iter().max().map_or(0, |most| most + 1);
        let mut widths = vec![0usize; depth];
        levels.iter().for_each(|&level| widths[level] += 1);
        let mut ends: Vec<u64> = vec![0; dag.len()];
        for &task in dag.order() {
            let before = dag.parents(task).iter().map(|&(parent, _)| ends[parent]).max();
            ends[task] = before.unwrap_or(0).saturating_add(dag.task(task).runtime.on(0));
        }
        let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
        for (task, kind) in workflow.tasks.iter().zip(&read.kinds) {
            let kind = kinds.entry(kind).or_insert_with(|| Kind {
                name: kind.clone(),
                tasks: 0,
                processor_hours: 0.0,
            });
            kind.tasks += 1;
            kind.processor_hours +=
                task.runtime_s.unwrap_or(0.0) * f64::from(task.processors.unwrap_or(1)) / 3600.0;
        }
        let mut kinds: Vec<Kind> = kinds.into_values().collect();
        kinds.sort_by(|a, b| {
            b.processor_hours.total_cmp(&a.processor_hours).then_with(|| a.name.cmp(&b.name))
        });
        let known = workflow.tasks.iter().all(|task| task.runtime_s.is_some());
        Ok(Self {
            tasks: dag.len(),
            edges: dag.edges(),
            levels: depth,
            width: widths.into_iter().max().unwrap_or(0),
            most_processors: dag.tasks().iter().map(|task| task.processors).max().unwrap_or(0),
            most_memory_bytes: workflow
                .tasks
                .iter()
                .filter_map(|task| task.resources.memory_bytes)
                .max(),
            most_gpus: workflow
                .tasks
                .iter()
                .filter_map(|task| task.resources.gpus)
                .max()
                .filter(|gpus| *gpus > 0),
            processor_hours: known.then(|| kinds.iter().map(|kind| kind.processor_hours).sum()),
            critical_path_s: known.then(|| seconds(ends.into_iter().max().unwrap_or(0))),
            bytes: workflow.edges().fold(0u64, |sum, (.., bytes)| sum.saturating_add(bytes)),
            files: workflow.files.len(),
            kinds,
        })
    }
}
