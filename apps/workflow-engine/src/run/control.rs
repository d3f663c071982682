//! Commands for runs: `workflow submit`, `status`, `watch`, `logs`, `cancel` and `remove`.
//!
//! A run is a directory. `submit` starts a process of its own for it, and the other commands read
//! its journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueHint};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use springtide_actors::policy::provisioning::seconds as policy_seconds;
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::format::{SCHEMA, seconds};
use springtide_cli::outdir::{create_file, make_dir};
use springtide_runtime::work::OutputStream;

use super::directory::{find_log, read_entries, read_manifest, runner};
use super::journal::JournalEntry;
use super::staging::Staging;
use super::{RunArgs, default_dir, prepare};
use crate::run::Programs;
use springtide_operations::agree::now;
use springtide_operations::attach::{attach, grid_config};
use springtide_operations::grid_files::state_dir;
use springtide_operations::locate::default_config;
use springtide_operations::process::on_arbiter;

/// The interval at which a run is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait for the start or the end of a process.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// A run, for commands that read it.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// The run: its directory, or its name [default: the run that changed last]
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub run: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `workflow logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// Id of the task in the workflow
    #[arg(value_name = "TASK")]
    pub task: String,
    /// The run: its directory, or its name [default: the run that changed last]
    #[arg(long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub run: Option<PathBuf>,
    /// The attempt, from 1 [default: the last one]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Print standard error instead of standard output
    #[arg(long)]
    pub stderr: bool,
}

/// Options of `workflow submit`.
#[derive(Args, Clone, Debug)]
pub struct SubmitArgs {
    /// Options of the run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// The state of a task in a journal.
#[derive(Clone, Debug, Default)]
struct TaskStatus {
    state: &'static str,
    attempts: u32,
    cluster: Option<String>,
    start_s: Option<f64>,
    end_s: Option<f64>,
    reason: Option<String>,
}

/// The state of a run.
struct RunStatus {
    dir: PathBuf,
    workflow: String,
    process: Option<u32>,
    total: usize,
    tasks: BTreeMap<String, TaskStatus>,
    begun_s: f64,
    last_s: f64,
    ended: Option<RunEnd>,
}

/// How a process ended a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunEnd {
    /// The reason, if tasks are left.
    pub error: Option<String>,
    /// Whether a user ended it.
    pub interrupted: bool,
}

/// The state of a run, in one word: by whether a process runs it, and by its end.
pub fn run_state(has_process: bool, ended: Option<&RunEnd>) -> &'static str {
    match (has_process, ended) {
        (true, None) => "running",
        (_, Some(RunEnd { error: None, .. })) => "completed",
        (_, Some(RunEnd { interrupted: false, .. })) => "failed",
        (false, None) | (_, Some(RunEnd { interrupted: true, .. })) => "interrupted",
    }
}

impl RunStatus {
    fn read(dir: &Path) -> Result<Self, Failed> {
        let (manifest, entries) = (read_manifest(dir)?, read_entries(dir)?);
        let mut status = Self {
            dir: dir.to_owned(),
            workflow: manifest.workflow,
            process: runner(dir),
            total: 0,
            tasks: BTreeMap::new(),
            begun_s: 0.0,
            last_s: 0.0,
            ended: None,
        };
        entries.into_iter().for_each(|entry| status.add(entry));
        if status.process.is_some() && status.ended.is_none() {
            status.last_s = status.last_s.max(policy_seconds(now()));
        } else {
            let lost = status.tasks.values_mut().filter(|task| task.state == "running");
            lost.for_each(|task| task.state = "interrupted");
        }
        Ok(status)
    }

    fn add(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Begun { at_s, tasks, .. } => {
                (self.total, self.last_s, self.ended) = (tasks, at_s, None);
                if self.begun_s == 0.0 {
                    self.begun_s = at_s;
                }
                let open = self.tasks.values_mut().filter(|task| task.state == "running");
                open.for_each(|task| task.state = "interrupted");
            }
            JournalEntry::Started { at_s, task, attempt, cluster, .. } => {
                self.last_s = at_s;
                let task = self.tasks.entry(task).or_default();
                (task.state, task.attempts, task.start_s) = ("running", attempt, Some(at_s));
                (task.cluster, task.end_s) = (cluster.map(|it| it.to_string()), None);
            }
            JournalEntry::Completed { at_s, task, attempt, start_s, cluster, .. } => {
                self.last_s = at_s;
                let task = self.tasks.entry(task).or_default();
                (task.state, task.attempts) = ("completed", attempt);
                (task.start_s, task.end_s) = (Some(start_s), Some(at_s));
                task.cluster = cluster.map(|it| it.to_string());
                task.reason = None;
            }
            JournalEntry::Failed { at_s, task, attempt, reason, again, .. } => {
                self.last_s = at_s;
                let task = self.tasks.entry(task).or_default();
                task.state = if again { "waiting" } else { "failed" };
                (task.attempts, task.end_s, task.reason) = (attempt, Some(at_s), Some(reason));
            }
            JournalEntry::Reserved { at_s, .. }
            | JournalEntry::Staged { at_s, .. }
            | JournalEntry::Fetched { at_s, .. } => {
                self.last_s = at_s;
            }
            JournalEntry::Ended { at_s, error, interrupted } => {
                (self.last_s, self.ended) = (at_s, Some(RunEnd { error, interrupted }));
            }
        }
    }

    fn count(&self, state: &str) -> usize {
        self.tasks.values().filter(|task| task.state == state).count()
    }

    /// The state of the run, in one word.
    fn state(&self) -> &'static str {
        run_state(self.process.is_some(), self.ended.as_ref())
    }

    fn text(&self) -> String {
        let mut lines =
            vec![format!("{} ({}): {}", self.workflow, self.dir.display(), self.state())];
        let counts = ["completed", "running", "waiting", "interrupted", "failed"];
        let counts = counts.into_iter().filter_map(|state| {
            let count = self.count(state);
            (count > 0).then(|| format!("{count} {state}"))
        });
        let counts: Vec<String> = counts.collect();
        lines.push(format!("tasks       {} of {}", counts.join(", "), self.total));
        lines.push(format!("time        {}", seconds(self.last_s - self.begun_s)));
        if let Some(process) = self.process {
            lines.push(format!("process     {process}"));
        }
        for (id, task) in self.tasks.iter().filter(|(_, task)| task.state == "running").take(20) {
            let at = task.cluster.as_deref().unwrap_or("?");
            let since = task.start_s.map_or(0.0, |start| self.last_s - start);
            lines.push(format!("running     {id} in {at} for {}", seconds(since)));
        }
        for (id, task) in self.tasks.iter().filter(|(_, task)| task.state == "failed").take(20) {
            let reason = task.reason.as_deref().unwrap_or_default();
            lines.push(format!("failed      {id} {reason}"));
        }
        if let Some(RunEnd { error: Some(error), .. }) = &self.ended {
            lines.push(format!("error       {error}"));
        }
        lines.join("\n") + "\n"
    }

    fn object(&self) -> Value {
        let tasks = self.tasks.iter().map(|(id, task)| {
            json!({
                "id": id,
                "state": task.state,
                "attempts": task.attempts,
                "cluster": task.cluster,
                "start_unix_s": task.start_s,
                "end_unix_s": task.end_s,
                "reason": task.reason,
            })
        });
        json!({
            "schema": SCHEMA,
            "workflow": self.workflow,
            "dir": self.dir,
            "state": self.state(),
            "process": self.process,
            "total": self.total,
            "completed": self.count("completed"),
            "error": self.ended.as_ref().and_then(|end| end.error.as_ref()),
            "tasks": tasks.collect::<Vec<_>>(),
        })
    }
}

/// The directory of a run.
///
/// # Errors
/// There is no such run, or none at all.
pub fn find(run: Option<&Path>) -> Result<PathBuf, Failed> {
    if let Some(run) = run
        && run.join("run.json").exists()
    {
        return Ok(run.to_owned());
    }
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    // Runs are next to the config of their grid, which may be in a directory above.
    let states = BTreeSet::from([PathBuf::from(".springtide"), state_dir(&default_config())]);
    let grids = states.iter().flat_map(|state| entries(state).collect::<Vec<_>>());
    let grids = grids.map(|grid| grid.path().join("workflows"));
    let mut runs: Vec<(std::time::SystemTime, PathBuf)> = grids
        .flat_map(|dir| entries(&dir).map(|run| run.path()).collect::<Vec<_>>())
        .filter_map(|path| {
            let changed = fs::metadata(path.join("journal.jsonl")).ok()?.modified().ok()?;
            Some((changed, path))
        })
        .collect();
    runs.sort();
    match run {
        Some(run) => {
            let is_named = |path: &PathBuf| path.file_name() == Some(run.as_os_str());
            let found = runs.into_iter().map(|(_, path)| path).rev().find(is_named);
            found.ok_or_else(|| {
                let run = run.display();
                Failed::usage(format!(
                    "{run} is no directory of a run, and {} has no run of this name",
                    state_dir(&default_config()).display()
                ))
            })
        }
        None => runs.pop().map(|(_, path)| path).ok_or_else(|| {
            Failed::usage(format!(
                "no run is in {}: name the directory of one",
                state_dir(&default_config()).display()
            ))
        }),
    }
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), Failed> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failed::failure(format!("the output cannot be written: {error}")))
}

/// Shows the state of a run.
///
/// # Errors
/// There is no such run, or its journal is damaged.
pub fn status(args: &StatusArgs) -> Result<(), Failed> {
    let status = RunStatus::read(&find(args.run.as_deref())?)?;
    print(&if args.json { format!("{}\n", status.object()) } else { status.text() })
}

/// Follows a run until no process runs it.
///
/// # Errors
/// As [`status`], or the run failed.
pub fn watch(args: &StatusArgs) -> Result<(), Failed> {
    let dir = find(args.run.as_deref())?;
    let mut shown = String::new();
    loop {
        let status = RunStatus::read(&dir)?;
        let is_over = status.process.is_none();
        let line = format!(
            "{} of {} tasks completed, {} running, {} failed\n",
            status.count("completed"),
            status.total,
            status.count("running"),
            status.count("failed")
        );
        if line != shown && !args.json {
            print(&line)?;
            shown = line;
        }
        if is_over {
            let text = if args.json { format!("{}\n", status.object()) } else { status.text() };
            print(&text)?;
            return match status.state() {
                "completed" => Ok(()),
                state => Err(Failed::new(Exit::Failure, format!("the run is {state}"))),
            };
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Prints the log of a task.
///
/// # Errors
/// There is no such run, or the task has no log.
pub fn logs(args: &LogsArgs) -> Result<(), Failed> {
    let dir = find(args.run.as_deref())?;
    let status = RunStatus::read(&dir)?;
    let Some(task) = status.tasks.get(&args.task) else {
        let id = &args.task;
        return Err(Failed::usage(format!("task {id} has not started in {}", dir.display())));
    };
    let attempt = args.attempt.unwrap_or(task.attempts.max(1));
    let stream = if args.stderr { OutputStream::Stderr } else { OutputStream::Stdout };
    let path = match find_log(&dir, &args.task, attempt, stream) {
        Some(path) => path,
        // A task that wrote nothing has no file.
        None if attempt <= task.attempts => return Ok(()),
        None => {
            let id = &args.task;
            return Err(Failed::usage(format!("task {id} has no attempt {attempt}")));
        }
    };
    let mut file = File::open(&path).map_err(|error| cannot("read", &path, &error))?;
    let mut out = std::io::stdout().lock();
    std::io::copy(&mut file, &mut out).map_err(|error| cannot("read", &path, &error))?;
    Ok(())
}

/// Ends the process of a run.
///
/// # Errors
/// There is no such run, or its process does not end.
pub fn cancel(args: &StatusArgs) -> Result<(), Failed> {
    let dir = find(args.run.as_deref())?;
    let Some(process) = runner(&dir) else {
        return Err(Failed::usage(format!("no process runs {}", dir.display())));
    };
    let id = i32::try_from(process).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| Failed::failure(format!("{process} is no process")))?;
    kill_process(id, Signal::INT)
        .map_err(|error| Failed::failure(format!("process {process}: {error}")))?;
    let until = std::time::Instant::now() + PROCESS_TIMEOUT;
    while runner(&dir) == Some(process) {
        if std::time::Instant::now() > until {
            return Err(Failed::failure(format!("process {process} has not ended")));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    status(args)
}

/// Removes a run: its files in the clusters, and its directory.
///
/// # Errors
/// There is no such run, a process runs it, or no grid is up.
pub fn remove(args: &StatusArgs) -> Result<(), Failed> {
    let dir = find(args.run.as_deref())?;
    if let Some(process) = runner(&dir) {
        let shown = dir.display();
        return Err(Failed::usage(format!(
            "process {process} runs {shown}: end it with `workflow cancel {shown}`"
        )));
    }
    let manifest = read_manifest(&dir)?;
    let config = grid_config(&manifest.config)?;
    on_arbiter(async {
        let attachment = attach(&manifest.config, &config).await?;
        let staging = Staging::new(&attachment).await?;
        let stored = staging.stored(&format!("{}-", manifest.prefix())).await?;
        let names: Vec<String> = stored.into_keys().collect();
        staging.remove(&names).await;
        attachment.endpoint.net.close("done").await;
        Ok(())
    })?;
    fs::remove_dir_all(&dir).map_err(|error| cannot("remove", &dir, &error))
}

/// Starts a process for a run, and prints the run's directory.
///
/// # Errors
/// The workflow or an option is wrong, or the process ends before the run begins.
pub fn submit(args: &SubmitArgs, programs: &Programs<'_>) -> Result<(), Failed> {
    let prepared = prepare(&args.run, programs)?;
    let dir = args.run.dir.clone().unwrap_or_else(|| default_dir(&args.run, &prepared));
    let before = read_entries(&dir).map_or(0, |entries| entries.len());
    make_dir(&dir)?;
    let log_path = dir.with_extension("log");
    let log = create_file(&log_path)?;
    let program = std::env::current_exe()
        .map_err(|error| Failed::failure(format!("this program is not found: {error}")))?;
    let log_error = log.try_clone().map_err(|error| cannot("write", &log_path, &error))?;
    let mut command = Command::new(program);
    // The same options, but for the command.
    let mut arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    if let Some(word) = arguments.iter_mut().find(|word| *word == "submit") {
        *word = "run".into();
    }
    command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(log_error);
    // Signals to the terminal's group do not reach it.
    command.process_group(0);
    let mut child = command
        .spawn()
        .map_err(|error| Failed::failure(format!("a process for the run: {error}")))?;
    let until = std::time::Instant::now() + PROCESS_TIMEOUT;
    loop {
        let entries = read_entries(&dir).unwrap_or_default();
        let has_begun = matches!(entries.get(before..), Some([JournalEntry::Begun { .. }, ..]))
            || entries.len() < before;
        if has_begun {
            return print(&format!("{}\n", dir.display()));
        }
        if let Ok(Some(ended)) = child.try_wait() {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            let exit = match ended.code() {
                Some(2) => Exit::Usage,
                Some(3) => Exit::NotPlaced,
                _ => Exit::Failure,
            };
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            return Err(Failed::new(exit, format!("the run has not begun: {}", last.join("; "))));
        }
        if std::time::Instant::now() > until {
            let log = log_path.display();
            return Err(Failed::failure(format!("the run has not begun yet: see {log}")));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
