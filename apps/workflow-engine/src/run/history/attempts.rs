//! The history of a run: its tasks and attempts, as the journal and the workflow's file have them.
//!
//! It does not know what is made of it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use springtide_cli::exit::Failed;
use springtide_runtime::work::OutputStream;
use springtide_workflow::Overrides;

use super::super::control::{RunEnd, run_state};
use super::super::directory::{
    RunManifest, TaskName, find_log, log_path, read_entries, read_manifest, runner,
};
use super::super::journal::{JournalEntry, WorkflowSource};
use super::super::table as command_table;
use crate::{Read, read, shown};

/// The history of a run. Times are in seconds since the Unix epoch.
#[derive(Debug)]
pub struct RunHistory {
    /// Directory of the run.
    pub dir: PathBuf,
    /// The description of the run.
    pub manifest: RunManifest,
    /// The state of the run, in one word.
    pub state: &'static str,
    /// The reason why tasks are left.
    pub error: Option<String>,
    /// Number of the workflow's tasks.
    pub total: usize,
    /// Whether tasks run without reservations.
    pub best_effort: bool,
    /// The first and the last event of each process of the run.
    pub processes: Vec<(f64, f64)>,
    /// The tasks: those of the workflow in its order, or those that started if it is unknown.
    pub tasks: Vec<TaskHistory>,
    /// All attempts, by their first event.
    pub attempts: Vec<TaskAttempt>,
    /// The prices of reservations.
    pub costs: Vec<f64>,
    /// Transfers of files between clusters.
    pub transfers: Vec<Transfer>,
    /// Results that were copied to their places: the names and paths.
    pub fetched: Vec<(String, PathBuf)>,
    /// The workflow, or the reason why it is unknown.
    pub workflow: Result<Read, String>,
    /// The source of the workflow, if the journal has it.
    pub source: Option<WorkflowSource>,
}

/// A task of a run.
#[derive(Clone, Debug)]
pub struct TaskHistory {
    /// Id of the task.
    pub id: String,
    /// Kind of the task.
    pub kind: String,
    /// Its processors; 1 if the workflow is unknown.
    pub processors: u32,
    /// The tasks that it waits for, if the workflow is known.
    pub parents: Vec<usize>,
    /// Its attempts, as indices of [`RunHistory::attempts`], ascending.
    pub attempts: Vec<usize>,
    /// State of the task.
    pub outcome: TaskOutcome,
}

/// The state of a task in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// It was completed.
    Completed,
    /// Another run that shares the cache completed it.
    Cached,
    /// It failed for good.
    Failed,
    /// A task failed that it depends on.
    Skipped,
    /// It has not ended.
    Unfinished,
}

/// An attempt of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskAttempt {
    /// Index of the task.
    pub task: usize,
    /// Its number, from 1; 0 if none could start.
    pub number: u32,
    /// The start of the program; none if it did not start.
    pub start_s: Option<f64>,
    /// The end, or the last event of its process if it has not ended.
    pub end_s: f64,
    /// The cluster of its node.
    pub cluster: Option<String>,
    /// Node that ran it.
    pub node: Option<String>,
    /// The end of the attempt.
    pub end: AttemptEnd,
    /// Index of the process of the run.
    pub process: usize,
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptEnd {
    /// It has not ended.
    Running,
    /// The process of the run ended before it.
    Lost,
    /// It was completed.
    Completed {
        /// Running time in seconds.
        wall_s: f64,
        /// Processor time in seconds.
        cpu_s: f64,
        /// The most memory in bytes; 0 if unknown.
        memory_bytes: u64,
    },
    /// It failed.
    Failed {
        /// The reason.
        reason: String,
        /// Whether another attempt follows.
        again: bool,
    },
}

impl TaskAttempt {
    /// Its duration in seconds; 0 if it did not start.
    pub fn duration_s(&self) -> f64 {
        self.start_s.map_or(0.0, |start| (self.end_s - start).max(0.0))
    }

    /// Whether it was completed.
    pub fn is_completed(&self) -> bool {
        matches!(self.end, AttemptEnd::Completed { .. })
    }
}

/// A transfer of a file between clusters.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// The end of the transfer.
    pub at_s: f64,
    /// Index of the task that reads the file.
    pub task: usize,
    /// Name of the file.
    pub file: String,
    /// The cluster that sent it.
    pub from: String,
    /// The cluster that received it.
    pub to: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Duration of the transfer in seconds.
    pub seconds: f64,
}

impl RunHistory {
    /// Reads the history of the run in a directory.
    ///
    /// # Errors
    /// The directory has no run, its journal is damaged, or the run has not begun.
    pub fn read(dir: &Path) -> Result<Self, Failed> {
        let (manifest, entries) = (read_manifest(dir)?, read_entries(dir)?);
        if entries.is_empty() {
            return Err(Failed::usage(format!("the run in {} has not begun", dir.display())));
        }
        let source = last_source(&entries);
        let workflow = read_workflow(&manifest, source.as_ref(), &entries);
        let has_process = runner(dir).is_some();
        Ok(Self::new(dir, manifest, &entries, has_process, workflow))
    }

    /// The history of a run with these entries.
    pub fn new(
        dir: &Path,
        manifest: RunManifest,
        entries: &[JournalEntry],
        has_process: bool,
        workflow: Result<Read, String>,
    ) -> Self {
        let source = last_source(entries);
        let mut history = Self {
            dir: dir.to_owned(),
            manifest,
            state: "",
            error: None,
            total: 0,
            best_effort: true,
            processes: Vec::new(),
            tasks: workflow.as_ref().map_or_else(|_| Vec::new(), tasks_of),
            attempts: Vec::new(),
            costs: Vec::new(),
            transfers: Vec::new(),
            fetched: Vec::new(),
            workflow,
            source,
        };
        let mut reader = EntryReader {
            indices: history.tasks.iter().enumerate().map(|(at, t)| (t.id.clone(), at)).collect(),
            open: BTreeMap::new(),
            ended: None,
        };
        entries.iter().for_each(|entry| reader.add(&mut history, entry));
        reader
            .close(&mut history, if has_process { AttemptEnd::Running } else { AttemptEnd::Lost });
        history.state = run_state(has_process, reader.ended.as_ref());
        history.error = reader.ended.and_then(|end| end.error);
        history.set_outcomes();
        history
    }

    /// The first event of the run.
    pub fn begun_s(&self) -> f64 {
        self.processes.first().map_or(0.0, |process| process.0)
    }

    /// The last event of the run.
    pub fn last_s(&self) -> f64 {
        self.processes.last().map_or(0.0, |process| process.1)
    }

    /// The seconds in which a process ran the run.
    pub fn active_s(&self) -> f64 {
        self.processes.iter().fold(0.0, |sum, (first, last)| sum + (last - first))
    }

    /// The attempt that completed a task, if one did.
    pub fn completion(&self, task: usize) -> Option<&TaskAttempt> {
        let attempts = self.tasks[task].attempts.iter().rev();
        attempts.map(|&at| &self.attempts[at]).find(|attempt| attempt.is_completed())
    }

    /// The workflow.
    ///
    /// # Errors
    /// It is unknown: the reason.
    pub fn known_workflow(&self) -> Result<&Read, Failed> {
        self.workflow.as_ref().map_err(|reason| Failed::usage(reason.clone()))
    }

    /// The commands of the table that replaces those of the workflow's file.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn commands(&self) -> Result<BTreeMap<String, String>, Failed> {
        let programs = self.source.as_ref().and_then(|source| source.programs.as_ref());
        programs.map_or_else(|| Ok(BTreeMap::new()), |file| command_table(file))
    }

    /// The sizes of files that are known from transfers and results, by name.
    pub fn file_sizes(&self) -> BTreeMap<&str, u64> {
        let transfers = self.transfers.iter().map(|one| (one.file.as_str(), one.bytes));
        let fetched = self.fetched.iter();
        let fetched = fetched
            .filter_map(|(name, path)| Some((name.as_str(), std::fs::metadata(path).ok()?.len())));
        transfers.chain(fetched).collect()
    }

    /// Number of tasks with this outcome.
    pub fn count(&self, outcome: TaskOutcome) -> usize {
        self.tasks.iter().filter(|task| task.outcome == outcome).count()
    }

    /// Processor-seconds of completed attempts.
    pub fn used_processor_s(&self) -> f64 {
        self.attempts.iter().fold(0.0, |sum, attempt| match attempt.end {
            AttemptEnd::Completed { wall_s, .. } => {
                sum + wall_s * f64::from(self.tasks[attempt.task].processors)
            }
            _ => sum,
        })
    }

    /// The log of an attempt, if it wrote one.
    pub fn log(&self, attempt: &TaskAttempt, stream: OutputStream) -> Option<PathBuf> {
        let id = self.tasks[attempt.task].id.as_str();
        let index = attempt.task;
        match &self.workflow {
            Ok(read) if index < read.workflow.tasks.len() => {
                let path =
                    log_path(&self.dir, TaskName { task: index, id }, attempt.number, stream);
                path.exists().then_some(path)
            }
            _ => find_log(&self.dir, id, attempt.number, stream),
        }
    }

    fn set_outcomes(&mut self) {
        for at in 0..self.tasks.len() {
            let last = self.tasks[at].attempts.last().map(|&last| &self.attempts[last].end);
            self.tasks[at].outcome = match last {
                _ if self.completion(at).is_some() => TaskOutcome::Completed,
                Some(AttemptEnd::Failed { again: false, .. }) => TaskOutcome::Failed,
                _ => TaskOutcome::Unfinished,
            };
        }
        let Ok(read) = &self.workflow else { return };
        let order = read.workflow.order();
        for &task in order {
            let is_blocked = self.tasks[task].parents.iter().any(|&parent| {
                matches!(self.tasks[parent].outcome, TaskOutcome::Failed | TaskOutcome::Skipped)
            });
            if is_blocked && self.tasks[task].attempts.is_empty() {
                self.tasks[task].outcome = TaskOutcome::Skipped;
            }
        }
        // A task without an attempt whose child started, or whose run is completed, was cached.
        let is_completed = self.state == "completed";
        let mut needed = vec![is_completed; self.tasks.len()];
        for &task in order.iter().rev() {
            let entry = &mut self.tasks[task];
            let unstarted = entry.attempts.is_empty() && entry.outcome == TaskOutcome::Unfinished;
            if unstarted && needed[task] {
                entry.outcome = TaskOutcome::Cached;
            }
            let has_started = !entry.attempts.is_empty() || needed[task];
            let parents = self.tasks[task].parents.clone();
            parents.into_iter().for_each(|parent| needed[parent] |= has_started);
        }
    }
}

/// The state while the entries of a journal are read.
struct EntryReader {
    /// Index of each task by its id.
    indices: BTreeMap<String, usize>,
    /// The attempt of each task that has not ended.
    open: BTreeMap<usize, usize>,
    /// The end of the last process, with its error.
    ended: Option<RunEnd>,
}

impl EntryReader {
    fn add(&mut self, history: &mut RunHistory, entry: &JournalEntry) {
        if let JournalEntry::Begun { at_s, tasks, best_effort, .. } = entry {
            self.close(history, AttemptEnd::Lost);
            history.processes.push((*at_s, *at_s));
            (history.total, history.best_effort) = (*tasks, *best_effort);
            self.ended = None;
        }
        if history.processes.is_empty() {
            history.processes.push((entry.at_s(), entry.at_s()));
        }
        let process = history.processes.len() - 1;
        history.processes[process].1 = history.processes[process].1.max(entry.at_s());
        match entry {
            JournalEntry::Begun { .. } => {}
            JournalEntry::Started { at_s, task, attempt, cluster, node } => {
                let task = self.task(history, task);
                self.open.insert(task, history.attempts.len());
                history.tasks[task].attempts.push(history.attempts.len());
                history.attempts.push(TaskAttempt {
                    task,
                    number: *attempt,
                    start_s: Some(*at_s),
                    end_s: *at_s,
                    cluster: cluster.as_ref().map(ToString::to_string),
                    node: node.as_ref().map(ToString::to_string),
                    end: AttemptEnd::Running,
                    process,
                });
            }
            JournalEntry::Completed {
                at_s,
                task,
                attempt,
                start_s,
                cluster,
                node,
                wall_s,
                cpu_s,
                memory_bytes,
                ..
            } => {
                let ended = self.ended_attempt(history, task, *attempt, *at_s);
                // Reports arrive in groups, so that the recorded start may be too late.
                let start = start_s.min(at_s - wall_s);
                ended.start_s = Some(start);
                ended.cluster = cluster.as_ref().map(ToString::to_string).or(ended.cluster.take());
                ended.node = node.as_ref().map(ToString::to_string).or(ended.node.take());
                ended.end = AttemptEnd::Completed {
                    wall_s: *wall_s,
                    cpu_s: *cpu_s,
                    memory_bytes: *memory_bytes,
                };
            }
            JournalEntry::Failed { at_s, task, attempt, start_s, cluster, reason, again } => {
                let ended = self.ended_attempt(history, task, *attempt, *at_s);
                ended.start_s = match (ended.start_s, *start_s) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                ended.cluster = ended.cluster.take().or(cluster.as_ref().map(ToString::to_string));
                ended.end = AttemptEnd::Failed { reason: reason.clone(), again: *again };
            }
            JournalEntry::Reserved { cost, .. } => history.costs.push(*cost),
            JournalEntry::Staged { at_s, task, file, from, cluster, bytes, seconds } => {
                let task = self.task(history, task);
                history.transfers.push(Transfer {
                    at_s: *at_s,
                    task,
                    file: file.clone(),
                    from: from.to_string(),
                    to: cluster.to_string(),
                    bytes: *bytes,
                    seconds: *seconds,
                });
            }
            JournalEntry::Fetched { file, path, .. } => {
                history.fetched.push((file.clone(), path.clone()));
            }
            JournalEntry::Ended { error, interrupted, .. } => {
                self.ended = Some(RunEnd { error: error.clone(), interrupted: *interrupted });
            }
        }
    }

    /// The index of a task. A task of an unknown workflow is added.
    fn task(&mut self, history: &mut RunHistory, id: &str) -> usize {
        if let Some(&at) = self.indices.get(id) {
            return at;
        }
        let at = history.tasks.len();
        history.tasks.push(TaskHistory {
            id: id.to_owned(),
            kind: kind_of(id),
            processors: 1,
            parents: Vec::new(),
            attempts: Vec::new(),
            outcome: TaskOutcome::Unfinished,
        });
        self.indices.insert(id.to_owned(), at);
        at
    }

    /// The attempt that ends. One that did not start is added.
    fn ended_attempt<'a>(
        &mut self,
        history: &'a mut RunHistory,
        id: &str,
        number: u32,
        at_s: f64,
    ) -> &'a mut TaskAttempt {
        let task = self.task(history, id);
        let at = self.open.remove(&task).filter(|&at| history.attempts[at].number == number);
        let at = at.unwrap_or_else(|| {
            let at = history.attempts.len();
            history.tasks[task].attempts.push(at);
            history.attempts.push(TaskAttempt {
                task,
                number,
                start_s: None,
                end_s: at_s,
                cluster: None,
                node: None,
                end: AttemptEnd::Lost,
                process: history.processes.len().saturating_sub(1),
            });
            at
        });
        history.attempts[at].end_s = at_s;
        &mut history.attempts[at]
    }

    /// Ends the attempts that have not ended in their process.
    fn close(&mut self, history: &mut RunHistory, end: AttemptEnd) {
        let last_s = history.last_s();
        for at in std::mem::take(&mut self.open).into_values() {
            history.attempts[at].end_s = last_s;
            history.attempts[at].end = end.clone();
        }
    }
}

/// The source of the workflow that the last process ran, if the journal has it.
fn last_source(entries: &[JournalEntry]) -> Option<WorkflowSource> {
    let last = entries.iter().rev().find_map(|entry| match entry {
        JournalEntry::Begun { source, .. } => Some(source.clone()),
        _ => None,
    });
    last.flatten()
}

/// The tasks of a workflow, none of which has started.
fn tasks_of(read: &Read) -> Vec<TaskHistory> {
    let task = |(task, kind): (&springtide_workflow::Task, &String)| TaskHistory {
        id: task.id.clone(),
        kind: kind.clone(),
        processors: task.processors.unwrap_or(1).max(1),
        parents: task.parents.clone(),
        attempts: Vec::new(),
        outcome: TaskOutcome::Unfinished,
    };
    read.workflow.tasks.iter().zip(&read.kinds).map(task).collect()
}

/// The kind of a task of an unknown workflow: its id without a number.
fn kind_of(id: &str) -> String {
    let bare = id.trim_end_matches(|c: char| c.is_ascii_digit());
    let bare = bare.trim_end_matches(['_', '-', '.', ' ']);
    if bare.is_empty() { id.to_owned() } else { bare.to_owned() }
}

/// Reads the workflow of a run as the run did.
fn read_workflow(
    manifest: &RunManifest,
    source: Option<&WorkflowSource>,
    entries: &[JournalEntry],
) -> Result<Read, String> {
    let file = &manifest.file;
    let name = file.display();
    let text = std::fs::read(file)
        .map_err(|error| format!("the workflow's file {name} cannot be read: {error}"))?;
    if source.is_some_and(|source| source.digest != WorkflowSource::digest_of(&text)) {
        return Err(format!("the workflow's file {name} has changed since the run"));
    }
    let mut overrides = Overrides { unknown_runtimes: true, ..Overrides::default() };
    if let Some(table) = source.and_then(|source| source.overrides.as_ref()) {
        overrides.read_table(table).map_err(|error| error.to_string())?;
    }
    let format = source.and_then(|source| source.format.as_ref());
    let format = format.and_then(|word| word.parse().ok());
    let read = read(file, format, &overrides).map_err(|error| error.to_string())?;
    if source.is_none() {
        check_tasks(&read, entries).map_err(|reason| {
            format!("the workflow's file {name} has changed since the run: {reason}")
        })?;
    }
    Ok(read)
}

/// Checks that a workflow has the tasks of the last process of a journal.
fn check_tasks(read: &Read, entries: &[JournalEntry]) -> Result<(), String> {
    let ids: HashSet<&str> = read.workflow.tasks.iter().map(|task| task.id.as_str()).collect();
    let mut checked = Ok(());
    for entry in entries {
        match entry {
            JournalEntry::Begun { tasks, .. } if *tasks == ids.len() => checked = Ok(()),
            JournalEntry::Begun { tasks, .. } => {
                checked = Err(format!("it has {} tasks, and the run has {tasks}", ids.len()));
            }
            JournalEntry::Started { task, .. } if !ids.contains(task.as_str()) => {
                checked = Err(format!("it has no task {}", shown(task)));
            }
            _ => {}
        }
    }
    checked
}
