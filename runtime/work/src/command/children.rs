//! The processes of a command on this node, for one attempt after the other.
//!
//! It starts and ends processes and collects their reports. It does not know the root.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::child::{ChildEvent, ChildProcess, EventQueue};
use super::environment::{NodeProcesses, ProcessLayout, variables, withhold_variables};
use super::message::{AgentReport, ProcessEnd};
use super::spec::CommandSpec;
use crate::id::NodeId;
use crate::work::Context;

/// The name of the hostfile in the directory of a node's processes.
const HOSTFILE: &str = ".springtide-hostfile";
/// The most attempts to find a free name for a directory.
const NAMES_MAX: u32 = 10_000;
/// The time in which the output of an ended process must end. Its group is killed by then.
const OUTPUT_WAIT: Duration = Duration::from_secs(2);
/// The time in which a killed process must end.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// The processes of a command on this node.
pub(super) struct ChildSet<'s> {
    spec: &'s CommandSpec,
    attempt: u32,
    running: BTreeMap<u32, ChildProcess>,
    events: Arc<EventQueue>,
    /// Reports that need no thread, such as failures to start.
    reports: VecDeque<AgentReport>,
    /// The directory of the processes, until the last one has ended.
    room: Option<Room>,
    /// When the processes that are to end get SIGKILL.
    kill_at: Option<Instant>,
    /// When the streams of ended processes are given up.
    output_until: Option<Instant>,
}

impl<'s> ChildSet<'s> {
    pub(super) fn new(spec: &'s CommandSpec, cx: &Context<'_>) -> Self {
        Self {
            spec,
            attempt: 0,
            running: BTreeMap::new(),
            events: Arc::new(EventQueue::new(cx.waker())),
            reports: VecDeque::new(),
            room: None,
            kill_at: None,
            output_until: None,
        }
    }

    /// Starts this node's processes of an attempt. Does nothing if it is no later one.
    pub(super) fn start(
        &mut self,
        attempt: u32,
        layout: &ProcessLayout,
        node: &NodeId,
        cx: &Context<'_>,
    ) {
        if attempt <= self.attempt {
            return;
        }
        self.end_now();
        self.attempt = attempt;
        let Some(own) = layout.of(node).filter(|own| own.processes > 0) else { return };
        let ranks = own.first_rank..own.first_rank + own.processes;
        let room = match Room::prepare(self.spec, layout, own, attempt, cx) {
            Ok(room) => room,
            Err(reason) => {
                self.reports.extend(ranks.map(|rank| AgentReport::Ended {
                    attempt,
                    rank,
                    end: ProcessEnd::NotStarted { missing: false, reason: reason.clone() },
                }));
                return;
            }
        };
        for rank in ranks {
            let command = command(self.spec, layout, (own, rank, attempt), &room, cx);
            let stdin = self.spec.stdin.clone();
            match ChildProcess::start(command, rank, stdin, &room.path, &self.events) {
                Ok(child) => drop(self.running.insert(rank, child)),
                Err(end) => {
                    let end = name_program(end, &self.spec.program);
                    self.reports.push_back(AgentReport::Ended { attempt, rank, end });
                }
            }
        }
        self.room = Some(room);
        self.remove_room();
    }

    /// Whether a call of [`ChildSet::take_reports`] or [`ChildSet::tick`] has something to do.
    pub(super) fn has_news(&self) -> bool {
        !self.reports.is_empty() || !self.events.is_empty()
    }

    /// The time of the next [`ChildSet::tick`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.kill_at.into_iter().chain(self.output_until).min()
    }

    /// Takes reports of at most about this many bytes of output.
    pub(super) fn take_reports(&mut self, bytes_max: usize) -> Vec<AgentReport> {
        let mut taken: Vec<AgentReport> = self.reports.drain(..).collect();
        let mut bytes_taken = 0;
        while bytes_taken < bytes_max {
            let Some(event) = self.events.take() else { break };
            match event {
                ChildEvent::Output { rank, stream, bytes } => {
                    bytes_taken += bytes.len();
                    let attempt = self.attempt;
                    // Output of an earlier attempt's process, which was killed.
                    if self.running.contains_key(&rank) {
                        taken.push(AgentReport::Output { attempt, rank, stream, bytes });
                    }
                }
                ChildEvent::Closed { rank } => {
                    if let Some(child) = self.running.get_mut(&rank) {
                        child.open_streams = child.open_streams.saturating_sub(1);
                    }
                    taken.extend(self.complete(rank, false));
                }
                ChildEvent::Ended { rank, end } => {
                    if let Some(child) = self.running.get_mut(&rank) {
                        child.end = Some(end);
                        // The rest of its group would keep its streams open.
                        child.signal("KILL");
                        self.output_until.get_or_insert(Instant::now() + OUTPUT_WAIT);
                    }
                    taken.extend(self.complete(rank, false));
                }
            }
        }
        taken
    }

    /// Reports the end of a process whose output has ended too, or is `given_up`.
    fn complete(&mut self, rank: u32, given_up: bool) -> Option<AgentReport> {
        let child = self.running.get(&rank)?;
        if child.end.is_none() || child.open_streams > 0 && !given_up {
            return None;
        }
        let mut child = self.running.remove(&rank)?;
        let end = child.end.take()?;
        child.release();
        self.remove_room();
        if self.running.values().all(|child| child.end.is_none()) {
            self.output_until = None;
        }
        Some(AgentReport::Ended { attempt: self.attempt, rank, end })
    }

    fn remove_room(&mut self) {
        if self.running.is_empty() {
            self.room = None;
            self.kill_at = None;
        }
    }

    /// Asks the processes of an attempt to end, and kills them after the grace.
    pub(super) fn end(&mut self, attempt: u32, now: Instant) {
        if attempt == self.attempt && self.kill_at.is_none() && !self.running.is_empty() {
            self.running.values_mut().for_each(|child| child.signal("TERM"));
            self.kill_at = Some(now + self.spec.grace);
        }
    }

    /// Kills processes whose grace is over, and gives up streams that do not end.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.kill_at.is_some_and(|due| now >= due) {
            self.running.values_mut().for_each(|child| child.signal("KILL"));
            self.kill_at = None;
        }
        if self.output_until.is_some_and(|due| now >= due) {
            self.output_until = None;
            let ended = self.running.iter().filter(|(_, child)| child.end.is_some());
            let ended: Vec<u32> = ended.map(|(rank, _)| *rank).collect();
            for rank in ended {
                let report = self.complete(rank, true);
                self.reports.extend(report);
            }
        }
    }

    /// Ends all processes on this thread, with the grace: the job or its root has ended, or this
    /// node leaves. Returns the reports until then.
    pub(super) fn end_blocking(&mut self) -> Vec<AgentReport> {
        let mut reports = Vec::new();
        self.end(self.attempt, Instant::now());
        let until = Instant::now() + self.spec.grace + KILL_WAIT;
        while !self.running.is_empty() && Instant::now() < until {
            reports.extend(self.take_reports(usize::MAX));
            self.tick(Instant::now());
            if !self.has_news() && !self.running.is_empty() {
                let due = self.due().unwrap_or(until).min(until);
                let left = due.saturating_duration_since(Instant::now());
                self.events.wait(left.max(Duration::from_millis(1)));
            }
        }
        reports
    }

    /// Kills all processes at once, and forgets their output.
    fn end_now(&mut self) {
        for (_, mut child) in std::mem::take(&mut self.running) {
            child.signal("KILL");
            child.release();
        }
        self.output_until = None;
        self.remove_room();
    }
}

impl Drop for ChildSet<'_> {
    fn drop(&mut self) {
        self.end_now();
        self.events.close();
    }
}

/// Names the program in the error of a process that did not start.
fn name_program(end: ProcessEnd, program: &str) -> ProcessEnd {
    match end {
        ProcessEnd::NotStarted { missing, reason } => {
            ProcessEnd::NotStarted { missing, reason: format!("{program}: {reason}") }
        }
        end => end,
    }
}

fn command(
    spec: &CommandSpec,
    layout: &ProcessLayout,
    (own, rank, attempt): (&NodeProcesses, u32, u32),
    room: &Room,
    cx: &Context<'_>,
) -> Command {
    let mut command = match spec.program.strip_prefix("./") {
        Some(input) => Command::new(room.path.join(input)),
        None => Command::new(&spec.program),
    };
    command.args(&spec.arguments);
    command.current_dir(spec.directory.as_deref().unwrap_or(&room.path));
    withhold_variables(&mut command);
    command.env("SPRINGTIDE_HOSTFILE", room.path.join(HOSTFILE));
    command.env("SPRINGTIDE_INPUT_DIR", &room.path);
    command.envs(variables(spec, layout, cx.array_task().as_ref(), own, rank, attempt));
    command
}

/// Makes a stored file available under another path: as a link, or a program as an executable copy.
///
/// # Errors
/// The operating system's.
pub(crate) fn provide_input(stored: &Path, to: &Path, is_program: bool) -> io::Result<()> {
    if !is_program {
        return std::os::unix::fs::symlink(stored, to);
    }
    // Transfers keep no permissions, and a link would have those of the stored file.
    fs::copy(stored, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o700))
}

/// Creates a directory that no one else may read. Other grids may use the same name.
///
/// # Errors
/// The operating system's.
pub(crate) fn create_private(parent: &Path, name: &str) -> io::Result<PathBuf> {
    for number in 0..NAMES_MAX {
        let name = if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
        let path = parent.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The directory of a node's processes, with the hostfile and the inputs.
struct Room {
    path: PathBuf,
}

impl Room {
    fn prepare(
        spec: &CommandSpec,
        layout: &ProcessLayout,
        own: &NodeProcesses,
        attempt: u32,
        cx: &Context<'_>,
    ) -> Result<Self, String> {
        let name = format!("springtide-{}-{}-{attempt}", layout.job, own.node);
        let cannot = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let parent = std::env::temp_dir();
        let path = create_private(&parent, &name).map_err(|error| cannot(&parent, error))?;
        let room = Self { path };
        let hostfile = room.path.join(HOSTFILE);
        fs::write(&hostfile, layout.hostfile()).map_err(|error| cannot(&hostfile, error))?;
        for input in &spec.inputs {
            let from = cx.input_file(&input.stored).map_err(|stop| stop.text())?;
            let to = room.path.join(&input.name);
            let is_program = spec.program.strip_prefix("./") == Some(input.name.as_str());
            provide_input(&from, &to, is_program).map_err(|error| cannot(&to, error))?;
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What cannot be removed remains in the system's directory of temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}
