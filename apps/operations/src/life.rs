//! The life of a grid as other commands see it: its start in the background, its state, its end.
//!
//! Independent of the head's own work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use springtide_actors::lease::{Lease, LeaseError};
use springtide_actors::scheduler::{GetStatus, GridStatus, JobState, NodeState};
use springtide_actors::store::lease_path;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::seconds;
use springtide_cli::outdir::create_file;
use springtide_cli::talk::Talk;
use springtide_dashboard::UrlFile;
use springtide_runtime::config::{GridConfig, SitePlace};
use springtide_runtime::id::ClusterId;
use tokio::time::{Instant, interval};

use super::attach::{attach, grid_config};
use super::grid::MissingNodes;
use super::grid_files::{self, HeadFile, dir_of, make_private_dir, this_program};
use super::signals::{Signals, word};
use super::standby;
use super::up;
use crate::options::GlobalArgs;

/// Interval between looks at a grid that starts or ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of the head's answer about its state.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a head needs at most to end its nodes after the second signal.
const FORCED_END: Duration = Duration::from_secs(10);
/// The maximum number of last lines of a failed head's log in an error.
const LOG_LINES_MAX: usize = 5;

/// The process of a grid's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadProcess {
    /// No process of this host is the head.
    Absent,
    /// A process of this host is the head, which may still be starting.
    Here(u32),
    /// The last head ran on another host, and this host cannot know whether it lives.
    Elsewhere {
        /// The process id of the head.
        pid: u32,
        /// The host of the head.
        host: String,
    },
}

impl HeadProcess {
    /// The head of the grid in this directory, by the lease that it holds.
    ///
    /// # Errors
    /// The lease cannot be read.
    pub fn of(dir: &Path) -> Result<Self, Failed> {
        match Self::holder_of(&lease_path(dir))? {
            // A head that waits holds only the lock of its member.
            Self::Absent => Self::holder_of(&standby::lease_path(dir)),
            found => Ok(found),
        }
    }

    /// The process that holds a lease.
    fn holder_of(lease: &Path) -> Result<Self, Failed> {
        let holder = Lease::last_holder(lease).map_err(|error: LeaseError| {
            Failed::failure(format!("the head of this grid is unknown: {error}"))
        })?;
        Ok(match holder {
            None => Self::Absent,
            Some(holder) if !holder.is_here() => {
                Self::Elsewhere { pid: holder.pid, host: holder.host }
            }
            Some(holder) if has_open(holder.pid, lease) => Self::Here(holder.pid),
            Some(_) => Self::Absent,
        })
    }
}

/// Whether a process has a file open. A process id may belong to another program by now. An ended
/// process has no open files, even before its parent collects its exit code.
fn has_open(pid: u32, file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|open| open == file))
}

/// The state of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridState {
    /// All nodes that the grid starts itself have registered.
    Up,
    /// The head runs, and nodes are still starting.
    Starting,
    /// The head runs, and nodes could not be started.
    Partial,
    /// A head of two waits here, and no head acts.
    Waiting,
    /// The head's process runs, and does not answer.
    Silent,
    /// No head runs.
    Down,
}

impl GridState {
    /// The state in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Starting => "starting",
            Self::Partial => "partial",
            Self::Waiting => "waiting",
            Self::Silent => "silent",
            Self::Down => "down",
        }
    }

    /// The exit code of `status`.
    pub fn exit(self) -> Exit {
        match self {
            Self::Up => Exit::Ok,
            Self::Partial => Exit::NotPlaced,
            Self::Starting | Self::Waiting | Self::Silent | Self::Down => Exit::Failure,
        }
    }
}

/// What is known of a grid.
pub struct GridLife {
    /// The name of the grid.
    pub grid: String,
    /// The state of the grid.
    pub state: GridState,
    /// Why the head does not answer or no head runs, if so.
    pub reason: Option<String>,
    /// The file of the head, with its process and address.
    pub head: Option<HeadFile>,
    /// The URL of the dashboard, if it runs.
    pub dashboard: Option<String>,
    /// The scheduler's view, if it answers.
    pub status: Option<GridStatus>,
}

impl GridLife {
    /// Numbers of waiting and of other jobs.
    pub fn jobs(&self) -> (usize, usize) {
        let jobs = self.status.iter().flat_map(|status| &status.jobs);
        let (waiting, others): (Vec<_>, Vec<_>) =
            jobs.partition(|job| job.state == JobState::Queued);
        (waiting.len(), others.len())
    }

    /// Lines about the clusters.
    pub fn clusters(&self) -> Vec<String> {
        self.status.as_ref().map(up::overview).unwrap_or_default()
    }

    /// Numbers of nodes by cluster and by state.
    pub fn nodes(&self) -> BTreeMap<&ClusterId, BTreeMap<NodeState, usize>> {
        let sites = self.status.iter().flat_map(|status| &status.sites);
        sites
            .map(|(cluster, site)| {
                let mut counts = BTreeMap::new();
                for node in &site.nodes {
                    *counts.entry(node.state).or_default() += 1;
                }
                (cluster, counts)
            })
            .collect()
    }
}

/// The state of the grid of a config.
///
/// # Errors
/// The config cannot be read, or the head refuses this client.
pub async fn status(file: &Path) -> Result<GridLife, Failed> {
    let config = grid_config(file)?;
    let dir = dir_of(file, &config);
    let process = HeadProcess::of(&dir)?;
    let mut life = GridLife {
        grid: config.grid.to_string(),
        state: GridState::Down,
        reason: None,
        head: HeadFile::read(&dir)?,
        dashboard: None,
        status: None,
    };
    // A second head may be on another machine.
    if life.head.is_none() && process == HeadProcess::Absent && config.standby.is_none() {
        return Ok(life);
    }
    match status_of(file, &config).await {
        Ok(status) => {
            life.state = state_of(&config, &status);
            life.status = Some(status);
            life.dashboard = UrlFile::read(&dir).ok();
        }
        Err(failed) if failed.exit == Exit::Failure => {
            life.state = match process {
                // The head writes its file when it can be reached.
                // The file of an earlier head may remain from a killed one.
                HeadProcess::Here(pid) if standby::is_member(&dir, pid) => GridState::Waiting,
                HeadProcess::Here(pid) => match &life.head {
                    Some(head) if head.pid == pid => GridState::Silent,
                    _ => GridState::Starting,
                },
                HeadProcess::Absent | HeadProcess::Elsewhere { .. } => GridState::Down,
            };
            life.reason = Some(match life.state {
                GridState::Waiting => "no head acts: the first start needs both heads and the \
                                       witness, a later one two of them"
                    .to_owned(),
                _ => failed.message,
            });
        }
        Err(failed) => return Err(failed),
    }
    Ok(life)
}

/// Asks the head for its state.
async fn status_of(file: &Path, config: &GridConfig) -> Result<GridStatus, Failed> {
    let attached = attach(file, config).await?;
    let status = attached.scheduler().send(GetStatus {}).deadline(STATUS_TIMEOUT).await;
    attached.endpoint.net.close("answered").await;
    Ok(status?)
}

/// The state of a grid whose head answers. Sites in processes of their own do not count.
fn state_of(config: &GridConfig, status: &GridStatus) -> GridState {
    let here = config.cluster.iter().filter(|cluster| cluster.site != SitePlace::Own);
    let sites: Vec<_> =
        here.map(|cluster| status.sites.get(&ClusterId::from(cluster.name.as_str()))).collect();
    // Nodes that start on demand or join are never waited for.
    let fixed = || sites.iter().flatten().filter(|site| !site.on_demand && !site.joins);
    let nodes = || fixed().flat_map(|site| &site.nodes).map(|node| node.state);
    if sites.iter().any(Option::is_none) || nodes().any(|state| state == NodeState::Starting) {
        GridState::Starting
    } else if nodes().any(|state| state == NodeState::Broken)
        || sites.iter().flatten().any(|site| site.failing.is_some())
    {
        GridState::Partial
    } else {
        GridState::Up
    }
}

/// Ends a head that this process has started, by a second signal if it takes long.
async fn end_and_wait(head: &mut Child) -> Result<(), Failed> {
    end(head.id());
    let deadline = Instant::now() + FORCED_END;
    let mut looks = interval(LOOK_INTERVAL);
    while head.try_wait().map_err(Failed::failure)?.is_none() {
        looks.tick().await;
        if Instant::now() > deadline {
            end(head.id());
        }
    }
    Ok(())
}

/// Why a grid is not whole.
fn faults(status: &GridStatus) -> Vec<String> {
    let failing = status.sites.iter().filter_map(|(cluster, site)| {
        let why = site.failing.as_ref()?;
        Some(format!("cluster {cluster} cannot be used: {why}"))
    });
    let nodes = status.sites.values().flat_map(|site| &site.nodes);
    let broken = nodes.filter(|node| node.state == NodeState::Broken).map(|node| {
        let reason = node.reason.as_deref().unwrap_or("no reason is known");
        format!("node {} does not start: {reason}", node.node)
    });
    failing.chain(broken).collect()
}

/// Starts the grid of a config in the background. Returns when every node that the head starts
/// itself has registered or is given up; in a grid with a second head, when the started head waits
/// until it may act. `is_second` says that it is the second one.
///
/// # Errors
/// The head does not start, with its own exit code. [`Exit::NotPlaced`] if nodes could not be
/// started; the grid is up without them. [`Exit::Timeout`] if nodes are still starting after
/// `limit`; the grid stays.
pub async fn detach(
    file: &Path,
    is_second: bool,
    limit: Duration,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let mut signals = Signals::take()?;
    let config = up::checked(file).await?.value;
    if is_second {
        standby::check_second(file, &config)?;
    }
    let dir = dir_of(file, &config);
    if let HeadProcess::Here(pid) = HeadProcess::of(&dir)? {
        let message = format!(
            "this grid is up already (process {pid} on this host): use it, or \
            end it first with `{} down`",
            grid_files::program_name()
        );
        return Err(Failed::failure(message));
    }
    make_private_dir(&dir)?;
    let log = log_path(&dir);
    let mut head = spawn(file, is_second, &log, global)?;
    let mut talk = Talk::new(global.quiet);
    talk.wait_for("starting nodes");
    let deadline = Instant::now() + limit;
    let mut missing = MissingNodes::of(&dir);
    let mut last = GridStatus::default();
    let mut said = BTreeSet::new();
    let mut looks = interval(LOOK_INTERVAL);
    loop {
        tokio::select! {
            biased;
            exit = signals.next() => {
                end_and_wait(&mut head).await?;
                talk.done();
                return Err(Failed::new(exit, format!("{}: the grid has ended", word(exit))));
            }
            () = missing.wait() => {
                missing.lines(&last).iter().for_each(|line| talk.say(line));
                // A head that this host does not reach at its address has said why in its log.
                if last == GridStatus::default() {
                    let lines = last_lines(&log);
                    lines.filter(|line| said.insert(line.clone())).for_each(|line| talk.say(&line));
                }
                continue;
            }
            _ = looks.tick() => {}
        }
        talk.tick();
        if let Some(ended) = head.try_wait().map_err(Failed::failure)? {
            talk.done();
            return Err(of_ended(ended, &log));
        }
        if config.standby.is_some() {
            if !standby::is_member(&dir, head.id()) {
                continue;
            }
            talk.done();
            report_member(&talk, file, &config, &dir, is_second);
            return Ok(());
        }
        // The file of an earlier head may remain from a killed one.
        let is_ours = HeadFile::read(&dir)?.is_some_and(|file| file.pid == head.id());
        let status = if is_ours { status_of(file, &config).await.ok() } else { None };
        let state = status.as_ref().map_or(GridState::Starting, |status| state_of(&config, status));
        if state == GridState::Starting {
            if Instant::now() > deadline {
                talk.done();
                return Err(Failed::new(
                    Exit::Timeout,
                    format!(
                        "nodes are still starting after {}: `{} status` shows the grid, its log is \
                        {}",
                        seconds(limit.as_secs_f64()),
                        grid_files::program_name(),
                        log.display()
                    ),
                ));
            }
            last = status.unwrap_or(last);
            continue;
        }
        talk.done();
        let Some(status) = status else { continue };
        report(&talk, file, &config, &dir, &status);
        let faults = faults(&status);
        if state == GridState::Partial {
            let all = faults.join("\n");
            let text = format!("the grid is up without a part of its nodes:\n{all}");
            return Err(Failed::new(Exit::NotPlaced, text));
        }
        return Ok(());
    }
}

/// The log of a head in the background.
fn log_path(dir: &Path) -> PathBuf {
    dir.join("head.log")
}

fn spawn(file: &Path, is_second: bool, log: &Path, global: &GlobalArgs) -> Result<Child, Failed> {
    let program = this_program()?;
    let output = create_file(log)?;
    let mut command = Command::new(&program);
    command.args(["up", "--new-session"]).args(is_second.then_some("--standby")).arg(file);
    if let Some(level) = global.log_level {
        command.args(["--log-level", &level.to_string()]);
    }
    command.args((0..global.verbose).map(|_| "-v"));
    let error = output.try_clone().map_err(Failed::failure)?;
    command.stdin(Stdio::null()).stdout(output).stderr(error);
    command
        .spawn()
        .map_err(|error| Failed::failure(format!("cannot start {}: {error}", program.display())))
}

/// Leaves the session of the terminal, whose end would end this process too.
///
/// # Errors
/// The system refuses it.
pub fn leave_session() -> Result<(), Failed> {
    let left = match rustix::process::setsid() {
        // A process that has replaced itself has left it before.
        Err(rustix::io::Errno::PERM) => return Ok(()),
        left => left,
    };
    left.map(drop).map_err(|error| Failed::failure(format!("cannot begin a session: {error}")))
}

/// The last lines of a head's log that are not empty.
fn last_lines(log: &Path) -> impl Iterator<Item = String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned);
    let lines: Vec<String> = lines.collect();
    let start = lines.len().saturating_sub(LOG_LINES_MAX);
    lines.into_iter().skip(start)
}

/// The failure of a head that ended at its start: the last lines of its log.
fn of_ended(ended: ExitStatus, log: &Path) -> Failed {
    let last = last_lines(log).collect::<Vec<_>>().join("\n");
    // The head has said its name already.
    let said = last.strip_prefix(&format!("{}: ", grid_files::program_name())).unwrap_or(&last);
    let said = if said.is_empty() { format!("the head ended ({ended})") } else { said.to_owned() };
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    let exit = code.filter(|code| *code != 0).map_or(Exit::Failure, Exit::of);
    Failed::new(exit, said)
}

/// Prints what `up` prints once a grid is up.
fn report(talk: &Talk, file: &Path, config: &GridConfig, dir: &Path, status: &GridStatus) {
    up::overview(status).iter().for_each(|line| talk.say(line));
    up::own_sites(config, dir).iter().for_each(|line| talk.say(line));
    if let Ok(url) = UrlFile::read(dir) {
        talk.say(&format!("the dashboard is at {url}"));
    }
    talk.say(&format!("the log is {}", log_path(dir).display()));
    let name = grid_files::program_name();
    let shown = file.display();
    talk.say(&format!("run jobs with: {name} run JOB --config {shown}"));
    talk.say(&format!("end the grid with: {name} down --config {shown}"));
}

/// Prints how to continue once a head of two waits.
fn report_member(talk: &Talk, file: &Path, config: &GridConfig, dir: &Path, is_second: bool) {
    let (name, shown) = (grid_files::program_name(), file.display());
    talk.say(&format!(
        "the head waits until it may act: {name} status --config {shown} shows the members"
    ));
    if !is_second {
        talk.say(&standby::other_head_line(dir));
        up::own_sites(config, dir).iter().for_each(|line| talk.say(line));
    }
    talk.say(&format!("the log is {}", log_path(dir).display()));
    talk.say(&format!("end this head with: {name} down --config {shown}"));
}

/// Orders a head to end.
fn end(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // A process that has ended needs no signal.
    let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
}

/// Ends the grid of a config, and waits until its head and the nodes that it started have ended.
/// Returns whether a grid was up. With `force`, jobs and nodes are not given time to end in order.
///
/// # Errors
/// The head runs on another host, or has not ended after `limit`.
pub async fn down(
    file: &Path,
    limit: Duration,
    force: bool,
    global: &GlobalArgs,
) -> Result<bool, Failed> {
    let mut signals = Signals::take()?;
    let config = grid_config(file)?;
    let dir = dir_of(file, &config);
    let name = grid_files::program_name();
    let pid = match HeadProcess::of(&dir)? {
        HeadProcess::Here(pid) => pid,
        HeadProcess::Absent => return Ok(false),
        HeadProcess::Elsewhere { pid, host } => {
            let file = file.display();
            return Err(Failed::failure(format!(
                "the last head of {file} is process {pid} on {host}: run `{name} down` there"
            )));
        }
    };
    let mut talk = Talk::new(global.quiet);
    talk.wait_for("ending the nodes");
    end(pid);
    let limit = if force { FORCED_END } else { limit };
    let deadline = Instant::now() + limit;
    let mut looks = interval(LOOK_INTERVAL);
    loop {
        tokio::select! {
            biased;
            exit = signals.next() => {
                let message = format!("{}: the grid is still ending", word(exit));
                return Err(Failed::new(exit, message));
            }
            _ = looks.tick() => {}
        }
        talk.tick();
        if HeadProcess::of(&dir)? != HeadProcess::Here(pid) {
            talk.done();
            return Ok(true);
        }
        if force {
            // A second signal ends the head's wait for its nodes, which are killed.
            end(pid);
        }
        if Instant::now() > deadline {
            talk.done();
            let after = seconds(limit.as_secs_f64());
            return Err(Failed::new(
                Exit::Timeout,
                format!(
                    "process {pid} has not ended after {after}: `{name} down --force` ends its \
                    nodes at once"
                ),
            ));
        }
    }
}

/// A line about ended nodes.
pub fn ended_line(file: &Path, was_up: bool) -> String {
    let file = file.display();
    if was_up {
        format!("the grid of {file} has ended")
    } else {
        format!("no grid runs for {file}")
    }
}
