//! One task that runs: a thread of its own prepares it, starts its program, waits for the end and
//! stores the outputs.
//!
//! It does not know other tasks, and not why a task is to end.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use springtide_base::memory::OutOfMemoryWatch;

use super::directory::{INPUTS, NodeDirectory, OUTPUTS, TaskDirectory, create_zeros};
use super::message::{PilotTask, TaskEnd, TaskProgram, TaskUsage};
use crate::command::child::end_of;
use crate::command::environment::withhold_variables;

/// Why a task is ended before its program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCause {
    TimeLimit,
    MemoryLimit { used: u64 },
    Cancelled,
    Interrupted,
}

impl From<EndCause> for TaskEnd {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::TimeLimit => Self::TimeLimit,
            EndCause::MemoryLimit { used } => Self::MemoryLimit { used },
            EndCause::Cancelled => Self::Cancelled,
            EndCause::Interrupted => Self::Interrupted,
        }
    }
}

/// What the thread of a task and the pilot share.
#[derive(Debug, Default)]
struct TaskState {
    /// The process of the program, until the thread has collected it.
    process: Option<Pid>,
    /// The first cause of an early end.
    cause: Option<EndCause>,
    /// The end, once nothing follows.
    ended: Option<(TaskEnd, TaskUsage)>,
}

/// A running task.
#[derive(Debug, Default)]
pub(super) struct RunningTask {
    state: Mutex<TaskState>,
    /// An early end is ordered. A placeholder waits for that.
    changed: Condvar,
}

impl RunningTask {
    /// Starts the thread of a task. `notify` is called after its end.
    ///
    /// # Errors
    /// The operating system provides no thread.
    pub(super) fn start(
        task: PilotTask,
        node: Arc<NodeDirectory>,
        directory: Arc<TaskDirectory>,
        stored: Option<PathBuf>,
        notify: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let running = Arc::new(Self::default());
        let shared = running.clone();
        let body = move || {
            let (end, usage) = shared.run(&task, &node, &directory, stored.as_deref());
            shared.state().ended = Some((end, usage));
            notify();
        };
        std::thread::Builder::new().name("task".to_owned()).spawn(body)?;
        Ok(running)
    }

    fn state(&self) -> MutexGuard<'_, TaskState> {
        // Each step under the lock leaves a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Orders an early end: SIGTERM to the program's group. The first cause counts.
    pub(super) fn end(&self, cause: EndCause) {
        let mut state = self.state();
        if state.cause.is_none() {
            state.cause = Some(cause);
            signal(state.process, Signal::TERM);
            self.changed.notify_all();
        }
    }

    /// Kills the program's group.
    pub(super) fn kill(&self) {
        signal(self.state().process, Signal::KILL);
    }

    /// The directory of the program's process in `/proc`, while it runs.
    pub(super) fn process_directory(&self) -> Option<PathBuf> {
        let process = self.state().process?;
        Some(Path::new("/proc").join(process.as_raw_nonzero().to_string()))
    }

    /// How the task ended, once it has.
    pub(super) fn ended(&self) -> Option<(TaskEnd, TaskUsage)> {
        self.state().ended.clone()
    }

    fn run(
        &self,
        task: &PilotTask,
        node: &NodeDirectory,
        directory: &TaskDirectory,
        stored: Option<&Path>,
    ) -> (TaskEnd, TaskUsage) {
        let begun = Instant::now();
        let run = || -> Result<TaskUsage, (TaskEnd, TaskUsage)> {
            let failed = |reason: String| (TaskEnd::Failed { exit: None, reason }, usage_of(begun));
            directory.provide(task, stored).map_err(failed)?;
            let usage = match &task.program {
                TaskProgram::Command { program, arguments } => {
                    let command = command(task, program, arguments, directory).map_err(failed)?;
                    self.run_program(command, program, node)?
                }
                TaskProgram::Placeholder { seconds } => {
                    let time = Duration::try_from_secs_f64(seconds.max(0.0));
                    self.wait(time.unwrap_or(Duration::MAX));
                    for output in &task.outputs {
                        let path = directory.inside(&output.name).map_err(failed)?;
                        let created = create_zeros(&path, output);
                        created.map_err(|error| failed(format!("{}: {error}", output.name)))?;
                    }
                    usage_of(begun)
                }
            };
            if let Some(cause) = self.state().cause {
                return Err((cause.into(), usage));
            }
            let stored = directory.store(task, stored);
            stored.map_err(|reason| (TaskEnd::Failed { exit: None, reason }, usage))?;
            Ok(usage)
        };
        match run() {
            Ok(usage) => (TaskEnd::Completed, usage),
            Err(ended) => ended,
        }
    }

    /// Waits for this time, or until an early end is ordered.
    fn wait(&self, time: Duration) {
        let state = self.state();
        let waits = |state: &mut TaskState| state.cause.is_none();
        drop(self.changed.wait_timeout_while(state, time, waits));
    }

    /// Runs a program to the end of its group.
    fn run_program(
        &self,
        mut command: Command,
        program: &str,
        node: &NodeDirectory,
    ) -> Result<TaskUsage, (TaskEnd, TaskUsage)> {
        let begun = Instant::now();
        let memory = OutOfMemoryWatch::begin();
        let child = {
            let mut state = self.state();
            if let Some(cause) = state.cause {
                return Err((cause.into(), usage_of(begun)));
            }
            let child = command.spawn().map_err(|error| {
                let missing = error.kind() == io::ErrorKind::NotFound;
                let exit = Some(if missing { 127 } else { 126 });
                let reason = format!("could not start {program}: {error}");
                (TaskEnd::Failed { exit, reason }, usage_of(begun))
            })?;
            state.process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            child
        };
        let group_file = node.group_file(child.id());
        // Without the file, a death of this node's process would leave the program running.
        let named = File::create(&group_file);
        let (status, cpu_s) = self.collect(child);
        if named.is_ok() {
            let _ = fs::remove_file(&group_file);
        }
        let usage = TaskUsage { cpu_s, ..usage_of(begun) };
        if let Some(cause) = self.state().cause {
            return Err((cause.into(), usage));
        }
        let failed = |exit, reason| Err((TaskEnd::Failed { exit, reason }, usage));
        match status {
            Ok(status) if status.success() => Ok(usage),
            Ok(status) if memory.is_cause(status.code(), status.signal()) => {
                Err((TaskEnd::MemoryLimit { used: 0 }, usage))
            }
            Ok(status) => {
                let end = end_of(status);
                failed(Some(end.code()), end.describe())
            }
            Err(error) => failed(None, format!("could not be waited for: {error}")),
        }
    }

    /// Waits for the end of a program, ends what is left of its group, and collects it.
    fn collect(&self, mut child: Child) -> (io::Result<ExitStatus>, f64) {
        let process = self.state().process;
        let mut cpu_s = 0.0;
        if let Some(process) = process {
            // The process is not collected yet, so that its number still names its group.
            while let Err(rustix::io::Errno::INTR) =
                waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            {
            }
            cpu_s = processor_seconds(child.id());
            let mut state = self.state();
            signal(state.process.take(), Signal::KILL);
        }
        (child.wait(), cpu_s)
    }
}

fn usage_of(begun: Instant) -> TaskUsage {
    TaskUsage { wall_s: begun.elapsed().as_secs_f64(), ..TaskUsage::default() }
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // The group may have ended.
        let _ = kill_process_group(group, signal);
    }
}

/// Clock ticks in a second of the times in `/proc`, on Linux.
const TICKS: f64 = 100.0;

/// Processor time of an ended process that is not collected yet, with its collected children.
fn processor_seconds(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program is in parentheses, and may contain some.
    let Some((_, fields)) = text.rsplit_once(')') else { return 0.0 };
    let ticks = fields.split_whitespace().skip(11).take(4).filter_map(|it| it.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / TICKS
}

fn command(
    task: &PilotTask,
    program: &str,
    arguments: &[String],
    directory: &TaskDirectory,
) -> Result<Command, String> {
    let mut command = match program.strip_prefix("./") {
        Some(input) => Command::new(directory.inside(input)?),
        None => Command::new(program),
    };
    command.args(arguments).current_dir(directory.path()).process_group(0);
    withhold_variables(&mut command);
    command.env("SPRINGTIDE_INPUTS", directory.own(INPUTS));
    command.env("SPRINGTIDE_OUTPUTS", directory.own(OUTPUTS));
    command.envs(task.environment.iter().map(|variable| (&variable.name, &variable.value)));
    let open = |name: &str, opened: io::Result<File>| {
        opened.map(Stdio::from).map_err(|error| format!("{name}: {error}"))
    };
    command.stdin(match &task.stdin {
        Some(name) => open(name, File::open(directory.inside(name)?))?,
        None => Stdio::null(),
    });
    let (stdout, stderr) = (out_path(&task.stdout, STDOUT, directory)?, &task.stderr);
    command.stdout(open(STDOUT, File::create(&stdout))?);
    let same = stderr.is_some() && task.stderr == task.stdout;
    command.stderr(if same {
        open(STDERR, File::options().append(true).open(&stdout))?
    } else {
        open(STDERR, File::create(out_path(stderr, STDERR, directory)?))?
    });
    Ok(command)
}

/// The names of the logs in the pilot's own part of a task's directory.
pub(super) const STDOUT: &str = "stdout";
pub(super) const STDERR: &str = "stderr";

fn out_path(
    redirect: &Option<String>,
    log: &str,
    directory: &TaskDirectory,
) -> Result<PathBuf, String> {
    match redirect {
        Some(name) => directory.inside(name),
        None => Ok(directory.own(log)),
    }
}
