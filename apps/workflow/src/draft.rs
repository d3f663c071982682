//! A workflow while it is read: what formats tell piece by piece, and what follows from all of it together.
//!
//! Must not know the formats. Here are ids resolved, parents found in the files, sizes settled, overrides applied.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::error::{Cause, Problem};
use crate::model::{self, Command, File, Met, Oddity, Position, Task, Workflow};
use crate::overrides::{Override, Overrides};
use crate::text::nearest;
use crate::values::{RUNTIME_MAX_S, RUNTIME_MIN_S};

/// Most edges of a workflow.
pub const EDGES_MAX: usize = 10_000_000;

/// Most steps in which parents are looked for among tasks that write the same files: a small file can ask for very many.
const STEPS_MAX: usize = 500_000_000;

/// Who says how large a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    /// One that reads it.
    Reader,
    /// One that writes it.
    Writer,
    /// The list of files.
    List,
}

/// An end of an edge that a file tells.
#[derive(Debug)]
pub enum End {
    Task(usize),
    Id(String),
}

struct Edge {
    parent: End,
    child: End,
    at: Option<Position>,
}

struct Drafted {
    name: String,
    size: Option<(Says, u64)>,
    at: Option<Position>,
}

/// A name by which tasks are referred to beside their ids.
enum Alias {
    Of(usize),
    OfSeveral,
}

/// A workflow while it is read.
#[derive(Default)]
pub struct Draft {
    pub name: String,
    tasks: Vec<Task>,
    ids: HashMap<String, usize>,
    aliases: HashMap<String, Alias>,
    files: Vec<Drafted>,
    names: HashMap<String, usize>,
    edges: Vec<Edge>,
    /// What tasks compute, in floating-point operations, where only that is told.
    flop: HashMap<usize, f64>,
    odd: BTreeMap<Oddity, Met>,
}

impl Draft {
    pub fn odd(&mut self, what: Oddity, first: &str, at: Option<Position>) {
        let met = || Met { times: 0, first: first.to_owned(), at };
        self.odd.entry(what).or_insert_with(met).times += 1;
    }

    /// A task, by its index.
    pub fn task(&mut self, task: Task) -> Result<usize, Problem> {
        let index = self.tasks.len();
        if task.id.is_empty() {
            return Err(Problem::value("a task's id is empty", task.at));
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

    /// Edges may call the task so too, if no other task is called so.
    pub fn alias(&mut self, task: usize, name: String) {
        let several = |alias: &mut Alias| *alias = Alias::OfSeveral;
        self.aliases.entry(name).and_modify(several).or_insert(Alias::Of(task));
    }

    pub fn has(&self, id: &str) -> Option<usize> {
        self.ids.get(id).copied()
    }

    pub fn has_file(&self, name: &str) -> Option<usize> {
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

    /// Says how long a task runs, in seconds.
    pub fn runtime(&mut self, task: usize, seconds: f64, at: Option<Position>) {
        let taken = if seconds > 0.0 {
            seconds
        } else {
            let id = self.tasks[task].id.clone();
            self.odd(Oddity::NoTime, &id, at);
            RUNTIME_MIN_S
        };
        self.tasks[task].runtime_s = Some(taken);
    }

    /// Says what a task computes, in floating-point operations.
    pub fn flop(&mut self, task: usize, flop: f64) {
        self.flop.insert(task, flop);
    }

    /// Says how many processors a task needs, and whether that was rounded up.
    pub fn processors(
        &mut self,
        task: usize,
        (processors, rounded): (u32, bool),
        at: Option<Position>,
    ) {
        if rounded {
            let id = self.tasks[task].id.clone();
            self.odd(Oddity::FractionOfProcessor, &id, at);
        }
        self.tasks[task].processors = Some(processors);
    }

    /// A file, by its index: the same one for the same name.
    pub fn file(&mut self, name: &str, at: Option<Position>) -> usize {
        if let Some(index) = self.names.get(name) {
            return *index;
        }
        let index = self.files.len();
        self.files.push(Drafted { name: name.to_owned(), size: None, at });
        self.names.insert(name.to_owned(), index);
        index
    }

    /// Says how large a file is. A list knows better than a writer, and that better than a reader; of several, the largest counts.
    pub fn size(&mut self, file: usize, says: Says, bytes: u64, at: Option<Position>) {
        let known = self.files[file].size;
        if known.is_some_and(|(_, known)| known != bytes) {
            let name = self.files[file].name.clone();
            self.odd(Oddity::SizesDiffer, &name, at);
        }
        self.files[file].size = known.max(Some((says, bytes)));
    }

    pub fn reads(&mut self, task: usize, file: usize) {
        self.tasks[task].inputs.push(file);
    }

    pub fn writes(&mut self, task: usize, file: usize) {
        self.tasks[task].outputs.push(file);
    }

    pub fn edge(&mut self, parent: End, child: End, at: Option<Position>) {
        self.edges.push(Edge { parent, child, at });
    }

    /// The workflow.
    pub fn finish(mut self, overrides: &Overrides) -> Result<Workflow, Problem> {
        overrides.check()?;
        if self.tasks.is_empty() {
            return Err(Cause::NoTasks.at(None));
        }
        for task in &mut self.tasks {
            for files in [&mut task.inputs, &mut task.outputs] {
                files.sort_unstable();
                files.dedup();
            }
        }
        self.resolve()?;
        self.follow_files()?;
        self.overridden(overrides)?;
        let mut files = Vec::with_capacity(self.files.len());
        for file in std::mem::take(&mut self.files) {
            if file.size.is_none() {
                self.odd(Oddity::NoSize, &file.name, file.at);
            }
            files.push(File { name: file.name, bytes: file.size.map_or(0, |(_, bytes)| bytes) });
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
        workflow.odd = self.odd;
        Ok(workflow)
    }

    /// Makes edges that were told parents.
    fn resolve(&mut self) -> Result<(), Problem> {
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
        self.tidy();
        Ok(())
    }

    fn end(&self, end: End, at: Option<Position>) -> Result<usize, Problem> {
        let id = match end {
            End::Task(task) => return Ok(task),
            End::Id(id) => id,
        };
        if let Some(task) = self.ids.get(&id) {
            return Ok(*task);
        }
        match self.aliases.get(&id) {
            Some(Alias::Of(task)) => Ok(*task),
            Some(Alias::OfSeveral) => {
                let id = crate::error::shown(&id);
                let reason = format!(
                    "several tasks have the name {id}: refer to the one that is meant by its id"
                );
                Err(Problem::value(reason, at))
            }
            None => {
                let meant = nearest(&id, self.tasks.iter().map(|task| task.id.as_str()));
                Err(Cause::UnknownTask { id, meant }.at(at))
            }
        }
    }

    fn tidy(&mut self) {
        for task in &mut self.tasks {
            task.parents.sort_unstable();
            task.parents.dedup();
        }
    }

    /// Makes those parents that write what a task reads.
    ///
    /// Where several write one file, edges that were told decide: if one of them is a parent already, the others are not meant.
    /// If none is, all are, but for those that wait for the reader themselves, as where tasks change a file in turn.
    fn follow_files(&mut self) -> Result<(), Problem> {
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
                        if !any_in_both(writers, &task.parents) {
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
        self.tidy();
        if unsure.is_empty() {
            return Ok(());
        }
        self.keep_possible(&mut unsure, steps)?;
        for (reader, writers) in unsure {
            self.tasks[reader].parents.extend(writers);
        }
        self.tidy();
        Ok(())
    }

    /// Takes out of those that might be parents of a reader those that wait for it.
    fn keep_possible(
        &self,
        unsure: &mut [(usize, Vec<usize>)],
        mut steps: usize,
    ) -> Result<(), Problem> {
        let mut all = self.tasks.clone();
        for (reader, writers) in unsure.iter() {
            all[*reader].parents.extend(writers);
            all[*reader].parents.sort_unstable();
            all[*reader].parents.dedup();
        }
        // Only where all of them together make a circle need it be looked who waits for whom.
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

    fn overridden(&mut self, overrides: &Overrides) -> Result<(), Problem> {
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
                return Err(Problem::value(format!("{reason}, and no task has that"), task.at));
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
            self.odd(Oddity::OverrideUnused, key, None);
        }
        Ok(())
    }
}

fn too_many(what: &'static str, limit: usize) -> Problem {
    Cause::TooMany { what, limit }.at(None)
}

/// Whether two ascending lists have something in common.
fn any_in_both(a: &[usize], b: &[usize]) -> bool {
    let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
    few.iter().any(|task| many.binary_search(task).is_ok())
}

/// What a table has for a task, and under which key.
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
