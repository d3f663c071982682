//! A workflow under construction: readers add its parts, and [`Draft::finish`] completes it.
//!
//! The completion resolves ids, finds parents by files, decides on sizes and applies overrides.
//! This module does not depend on formats.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::error::{Cause, WorkflowProblem};
use crate::fields::{self, FieldUsage, FormatField};
use crate::format::Format;
use crate::model::{
    self, Command, File, FileSource, Occurrences, Position, Task, Workflow, WorkflowWarning,
};
use crate::overrides::{Override, Overrides};
use crate::text::nearest;
use crate::values::{MEBIBYTE, ProcessorCount, RUNTIME_MAX_S, RUNTIME_MIN_S};

/// The maximum number of edges of a workflow.
pub const EDGES_MAX: usize = 10_000_000;

/// The maximum number of steps of the search for parents among writers of one file: a small file
/// can require very many.
const STEPS_MAX: usize = 500_000_000;

/// The maximum number of unknown fields that warnings list.
const UNKNOWN_FIELDS_MAX: usize = 100;

/// The least memory of a task, in bytes. Less is a mistake in the unit, for no process needs so
/// little.
const MEMORY_MIN: u64 = MEBIBYTE;

/// A standard stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdin,
    Stdout,
    Stderr,
}

/// The source of a file's size, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeSource {
    /// A task that reads the file.
    Reader,
    /// A task that writes the file.
    Writer,
    /// The list of files.
    List,
}

/// An end of an edge of the file.
#[derive(Debug)]
pub enum EdgeEnd {
    Task(usize),
    Id(String),
}

struct Edge {
    parent: EdgeEnd,
    child: EdgeEnd,
    at: Option<Position>,
}

struct FileDraft {
    name: String,
    source: Option<FileSource>,
    size: Option<(SizeSource, u64)>,
    /// Whether the file gives a size of less than 0.
    is_negative: bool,
    at: Option<Position>,
}

/// A name by which edges refer to tasks, in addition to ids.
enum Alias {
    Unique(usize),
    Ambiguous,
}

/// A workflow under construction.
#[derive(Default)]
pub struct Draft {
    pub name: String,
    tasks: Vec<Task>,
    ids: HashMap<String, usize>,
    aliases: HashMap<String, Alias>,
    files: Vec<FileDraft>,
    names: HashMap<String, usize>,
    edges: Vec<Edge>,
    /// The work of tasks in floating-point operations, if the file has no runtime.
    flop: HashMap<usize, f64>,
    warnings: BTreeMap<WorkflowWarning, Occurrences>,
    /// The number of different unknown fields among the warnings.
    unknown_fields: usize,
}

impl Draft {
    pub fn warn(&mut self, what: WorkflowWarning, first: &str, at: Option<Position>) {
        let met = || Occurrences { times: 0, first: first.to_owned(), at };
        self.warnings.entry(what).or_insert_with(met).times += 1;
    }

    /// Adds a task and returns its index.
    pub fn task(&mut self, task: Task) -> Result<usize, WorkflowProblem> {
        let index = self.tasks.len();
        if task.id.is_empty() {
            return Err(WorkflowProblem::value("a task's id is empty", task.at));
        }
        match self.ids.entry(task.id.clone()) {
            Entry::Occupied(other) => {
                let first = self.tasks[*other.get()].at;
                return Err(Cause::DuplicateId { id: task.id, first }.at(task.at));
            }
            Entry::Vacant(id) => id.insert(index),
        };
        self.tasks.push(task);
        Ok(index)
    }

    /// Adds a name by which edges may refer to the task, unless another task has it too.
    pub fn alias(&mut self, task: usize, name: String) {
        let make_ambiguous = |alias: &mut Alias| *alias = Alias::Ambiguous;
        self.aliases.entry(name).and_modify(make_ambiguous).or_insert(Alias::Unique(task));
    }

    pub fn find_task(&self, id: &str) -> Option<usize> {
        self.ids.get(id).copied()
    }

    pub fn find_file(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    pub fn id(&self, task: usize) -> &str {
        &self.tasks[task].id
    }

    pub fn task_mut(&mut self, task: usize) -> &mut Task {
        &mut self.tasks[task]
    }

    /// Warns of a field of the file that has no effect, or is in no table.
    pub fn field(
        &mut self,
        format: Format,
        place: &'static str,
        name: &str,
        subject: &str,
        at: Option<Position>,
    ) {
        let full = || fields::path(place, name);
        let warning = match fields::find(format, place, name) {
            Some(FormatField { usage: FieldUsage::Noted, meaning, .. }) => {
                WorkflowWarning::FieldWithoutEffect { format, field: full(), meaning }
            }
            Some(_) => return,
            None => {
                let unknown = WorkflowWarning::FieldUnknown { format, field: full() };
                if self.unknown_fields >= UNKNOWN_FIELDS_MAX
                    && !self.warnings.contains_key(&unknown)
                {
                    WorkflowWarning::OtherFieldsUnknown
                } else {
                    let is_new = !self.warnings.contains_key(&unknown);
                    self.unknown_fields += usize::from(is_new);
                    unknown
                }
            }
        };
        let subject = if subject.is_empty() { name } else { subject };
        self.warn(warning, subject, at);
    }

    /// Sets the runtime of a task, in seconds.
    pub fn runtime(&mut self, task: usize, seconds: f64, at: Option<Position>) {
        let taken = if seconds > 0.0 {
            seconds
        } else {
            let id = self.tasks[task].id.clone();
            self.warn(WorkflowWarning::NoTime, &id, at);
            RUNTIME_MIN_S
        };
        self.tasks[task].runtime_s = Some(taken);
    }

    /// Sets the work of a task, in floating-point operations.
    pub fn flop(&mut self, task: usize, flop: f64) {
        self.flop.insert(task, flop);
    }

    /// Sets the number of processors of a task.
    pub fn processors(&mut self, task: usize, count: ProcessorCount, at: Option<Position>) {
        if count.is_rounded {
            let id = self.tasks[task].id.clone();
            self.warn(WorkflowWarning::FractionOfProcessor, &id, at);
        }
        self.tasks[task].processors = Some(count.processors);
    }

    /// Sets the memory of a task, in bytes; none if the file gives less than 0.
    pub fn memory(&mut self, task: usize, bytes: Option<u64>, at: Option<Position>) {
        match bytes.filter(|bytes| *bytes >= MEMORY_MIN) {
            Some(bytes) => self.tasks[task].resources.memory_bytes = Some(bytes),
            None => {
                let id = self.tasks[task].id.clone();
                self.warn(WorkflowWarning::LittleMemory, &id, at);
            }
        }
    }

    /// Sets the walltime of a task, in seconds. A longer one than any runtime limits nothing.
    pub fn walltime(&mut self, task: usize, seconds: f64, at: Option<Position>) {
        if seconds > 0.0 {
            self.tasks[task].resources.walltime_s = Some(seconds.min(RUNTIME_MAX_S));
        } else {
            let id = self.tasks[task].id.clone();
            self.warn(WorkflowWarning::NoWalltime, &id, at);
        }
    }

    /// Redirects a standard stream of a task to a file, which becomes an input or an output.
    pub fn redirect(&mut self, task: usize, stream: Stream, file: usize) {
        let redirects = &mut self.tasks[task].redirects;
        let place = match stream {
            Stream::Stdin => &mut redirects.stdin,
            Stream::Stdout => &mut redirects.stdout,
            Stream::Stderr => &mut redirects.stderr,
        };
        *place = Some(file);
        match stream {
            Stream::Stdin => self.reads(task, file),
            Stream::Stdout | Stream::Stderr => self.writes(task, file),
        }
    }

    /// Returns the index of a file, which is added if its name is new.
    pub fn file(&mut self, name: &str, at: Option<Position>) -> usize {
        if let Some(index) = self.names.get(name) {
            return *index;
        }
        let index = self.files.len();
        self.files.push(FileDraft {
            name: name.to_owned(),
            source: None,
            size: None,
            is_negative: false,
            at,
        });
        self.names.insert(name.to_owned(), index);
        index
    }

    /// Sets the place of a file, unless it has one.
    pub fn source(&mut self, file: usize, source: FileSource) {
        self.files[file].source.get_or_insert(source);
    }

    /// Sets the size of a file, in bytes; none if the file gives less than 0.
    ///
    /// A list takes precedence over a writer, and a writer over a reader; of several sizes, the
    /// largest counts.
    pub fn size(
        &mut self,
        file: usize,
        source: SizeSource,
        bytes: Option<u64>,
        at: Option<Position>,
    ) {
        let Some(bytes) = bytes else {
            let name = self.files[file].name.clone();
            self.files[file].is_negative = true;
            self.warn(WorkflowWarning::NegativeSize, &name, at);
            return;
        };
        let known = self.files[file].size;
        if known.is_some_and(|(_, known)| known != bytes) {
            let name = self.files[file].name.clone();
            self.warn(WorkflowWarning::SizesDiffer, &name, at);
        }
        self.files[file].size = known.max(Some((source, bytes)));
    }

    pub fn reads(&mut self, task: usize, file: usize) {
        self.tasks[task].inputs.push(file);
    }

    pub fn writes(&mut self, task: usize, file: usize) {
        self.tasks[task].outputs.push(file);
    }

    pub fn edge(&mut self, parent: EdgeEnd, child: EdgeEnd, at: Option<Position>) {
        self.edges.push(Edge { parent, child, at });
    }

    /// Completes the workflow: see the module.
    pub fn finish(mut self, overrides: &Overrides) -> Result<Workflow, WorkflowProblem> {
        overrides.check()?;
        if self.tasks.is_empty() {
            return Err(Cause::NoTasks.at(None));
        }
        for task in &mut self.tasks {
            for files in [&mut task.inputs, &mut task.outputs] {
                files.sort_unstable();
                files.dedup();
            }
            // A program without a name cannot run.
            task.command.take_if(|command| match command {
                Command::Program { program, .. } => program.is_empty(),
                Command::Job { .. } => false,
            });
        }
        self.resolve()?;
        self.add_parents_by_files()?;
        self.apply_overrides(overrides)?;
        let mut files = Vec::with_capacity(self.files.len());
        for file in std::mem::take(&mut self.files) {
            match file.size {
                Some((_, 0)) => self.warn(WorkflowWarning::EmptyFile, &file.name, file.at),
                None if !file.is_negative => {
                    self.warn(WorkflowWarning::NoSize, &file.name, file.at);
                }
                _ => {}
            }
            let bytes = file.size.map_or(0, |(_, bytes)| bytes);
            files.push(File { name: file.name, bytes, source: file.source });
        }
        let at: HashMap<_, _> = self.tasks.iter().map(|task| (task.id.clone(), task.at)).collect();
        let made = Workflow::new(self.name, self.tasks, files);
        let mut workflow = made.map_err(|cause| {
            let first = match &cause {
                Cause::Cycle { tasks } => {
                    tasks.first().and_then(|id| at.get(id).copied().flatten())
                }
                _ => None,
            };
            cause.at(first)
        })?;
        workflow.warnings = self.warnings;
        Ok(workflow)
    }

    /// Resolves the edges of the file to parents.
    fn resolve(&mut self) -> Result<(), WorkflowProblem> {
        if self.edges.len() > EDGES_MAX {
            return Err(too_many("edges", EDGES_MAX));
        }
        for Edge { parent, child, at } in std::mem::take(&mut self.edges) {
            let (parent, child) = (self.end(parent, at)?, self.end(child, at)?);
            if parent == child {
                return Err(Cause::SelfEdge { id: self.tasks[child].id.clone() }.at(at));
            }
            self.tasks[child].parents.push(parent);
        }
        self.sort_and_deduplicate();
        Ok(())
    }

    fn end(&self, end: EdgeEnd, at: Option<Position>) -> Result<usize, WorkflowProblem> {
        let id = match end {
            EdgeEnd::Task(task) => return Ok(task),
            EdgeEnd::Id(id) => id,
        };
        if let Some(task) = self.ids.get(&id) {
            return Ok(*task);
        }
        match self.aliases.get(&id) {
            Some(Alias::Unique(task)) => Ok(*task),
            Some(Alias::Ambiguous) => {
                let id = crate::error::shown(&id);
                let reason = format!(
                    "several tasks have the name {id}: refer to the one that is meant by its id"
                );
                Err(WorkflowProblem::value(reason, at))
            }
            None => {
                let meant = nearest(&id, self.tasks.iter().map(|task| task.id.as_str()));
                Err(Cause::UnknownTask { id, meant }.at(at))
            }
        }
    }

    fn sort_and_deduplicate(&mut self) {
        for task in &mut self.tasks {
            task.parents.sort_unstable();
            task.parents.dedup();
        }
    }

    /// Adds as parents the tasks that write the inputs of a task.
    ///
    /// If several tasks write one file, the edges of the file decide: if one writer is a parent
    /// already, the others are not. If none is, all become parents, except those that depend on the
    /// reader, as when tasks change a file in turn.
    fn add_parents_by_files(&mut self) -> Result<(), WorkflowProblem> {
        let mut writers = vec![Vec::new(); self.files.len()];
        for (task, at) in self.tasks.iter().zip(0..) {
            for file in &task.outputs {
                writers[*file].push(at);
            }
        }
        let (mut steps, mut found) =
            (0, self.tasks.iter().map(|task| task.parents.len()).sum::<usize>());
        let mut unsure: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut sure: Vec<(usize, usize)> = Vec::new();
        for (reader, task) in self.tasks.iter().enumerate() {
            let mut maybe = Vec::new();
            for file in &task.inputs {
                match writers[*file].as_slice() {
                    [] => {}
                    [writer] if *writer == reader => {}
                    [writer] => sure.push((*writer, reader)),
                    writers => {
                        steps += writers.len().min(task.parents.len());
                        if steps > STEPS_MAX {
                            return Err(too_many(
                                "pairs of tasks that write and read one file",
                                STEPS_MAX,
                            ));
                        }
                        if !have_common_element(writers, &task.parents) {
                            maybe
                                .extend(writers.iter().copied().filter(|writer| *writer != reader));
                        }
                    }
                }
                if found + sure.len() + maybe.len() > EDGES_MAX {
                    return Err(too_many("edges", EDGES_MAX));
                }
            }
            if !maybe.is_empty() {
                maybe.sort_unstable();
                maybe.dedup();
                found += maybe.len();
                unsure.push((reader, maybe));
            }
        }
        for (writer, reader) in sure {
            self.tasks[reader].parents.push(writer);
        }
        self.sort_and_deduplicate();
        if unsure.is_empty() {
            return Ok(());
        }
        self.remove_dependents(&mut unsure, steps)?;
        for (reader, writers) in unsure {
            self.tasks[reader].parents.extend(writers);
        }
        self.sort_and_deduplicate();
        Ok(())
    }

    /// Removes possible parents of a reader that depend on it.
    fn remove_dependents(
        &self,
        unsure: &mut [(usize, Vec<usize>)],
        mut steps: usize,
    ) -> Result<(), WorkflowProblem> {
        let mut all = self.tasks.clone();
        for (reader, writers) in unsure.iter() {
            all[*reader].parents.extend(writers);
            all[*reader].parents.sort_unstable();
            all[*reader].parents.dedup();
        }
        // Dependencies have to be searched only if all parents together form a cycle.
        let Err(left) = model::order(&all) else { return Ok(()) };
        let children = model::children(&self.tasks);
        let mut seen = vec![usize::MAX; self.tasks.len()];
        for (reader, writers) in unsure.iter_mut().filter(|(reader, _)| left[*reader]) {
            let mut next = VecDeque::from([*reader]);
            while let Some(task) = next.pop_front() {
                for child in children[task].iter().copied().filter(|child| left[*child]) {
                    steps += 1;
                    if std::mem::replace(&mut seen[child], *reader) != *reader {
                        next.push_back(child);
                    }
                }
                if steps > STEPS_MAX {
                    return Err(too_many("ways between tasks that write one file", STEPS_MAX));
                }
            }
            writers.retain(|writer| seen[*writer] != *reader);
        }
        Ok(())
    }

    fn apply_overrides(&mut self, overrides: &Overrides) -> Result<(), WorkflowProblem> {
        let mut used = BTreeSet::new();
        let mut unknown: Option<(usize, usize)> = None;
        let scale = overrides.runtime_scale.unwrap_or(1.0);
        for (index, task) in self.tasks.iter_mut().enumerate() {
            let row = row(task, &overrides.table).map(|(key, row)| {
                used.insert(key);
                *row
            });
            let row = row.unwrap_or_default();
            task.processors = row.processors.or(task.processors).or(overrides.processors);
            let resources = &mut task.resources;
            resources.memory_bytes = row.memory_bytes.or(resources.memory_bytes);
            resources.gpus = row.gpus.or(resources.gpus);
            resources.walltime_s = row.walltime_s.or(resources.walltime_s);
            let computed =
                || Some((self.flop.get(&index)? / overrides.flop_per_s?).max(RUNTIME_MIN_S));
            let runtime =
                row.runtime_s.or(task.runtime_s).or_else(computed).or(overrides.runtime_s);
            let Some(runtime) = runtime.map(|runtime| runtime * scale) else {
                task.runtime_s = None;
                let (_, more) = unknown.get_or_insert((index, 0));
                *more += 1;
                continue;
            };
            if !(runtime > 0.0 && runtime <= RUNTIME_MAX_S) {
                let reason = format!(
                    "the runtime of task {} comes to {runtime:e} s",
                    crate::error::shown(&task.id)
                );
                return Err(WorkflowProblem::value(
                    format!("{reason}, and no task has that"),
                    task.at,
                ));
            }
            task.runtime_s = Some(runtime);
        }
        if let Some((index, without)) = unknown.filter(|_| !overrides.unknown_runtimes) {
            let (task, flop) = (&self.tasks[index], self.flop.get(&index).copied());
            return Err(
                Cause::NoRuntime { task: task.id.clone(), more: without - 1, flop }.at(task.at)
            );
        }
        for key in overrides.table.keys().filter(|key| !used.contains(key.as_str())) {
            self.warn(WorkflowWarning::OverrideUnused, key, None);
        }
        Ok(())
    }
}

fn too_many(what: &'static str, limit: usize) -> WorkflowProblem {
    Cause::TooMany { what, limit }.at(None)
}

/// Whether two ascending lists have a common element.
fn have_common_element(a: &[usize], b: &[usize]) -> bool {
    let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
    few.iter().any(|task| many.binary_search(task).is_ok())
}

/// The row of a table for a task, with its key.
fn row<'a>(task: &Task, table: &'a BTreeMap<String, Override>) -> Option<(&'a str, &'a Override)> {
    if table.is_empty() {
        return None;
    }
    let program = match &task.command {
        Some(Command::Program { program, .. }) => program.rsplit('/').next(),
        Some(Command::Job { job, .. }) => Some(job.as_str()),
        None => None,
    };
    let keys = [Some(task.id.as_str()), Some(task.name.as_str()), program];
    let (key, row) = keys.into_iter().flatten().find_map(|key| table.get_key_value(key))?;
    Some((key.as_str(), row))
}
