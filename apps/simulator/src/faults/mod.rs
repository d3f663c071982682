//! Fault histories: small grids under all kinds of faults, drawn from a seed or written by hand.
//!
//! Each job must end once, with the right answer, soon after the last fault has healed, and leave
//! nothing behind. One seed gives one history: the output of a failing one replays it. `draw` draws
//! histories, `play` runs them, `judge` checks them.

mod brief;
mod draw;
mod judge;
mod marked;
mod play;
mod summed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use springtide_actors::job::JobParams;
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::{LinkProfile, MemoryConfig};

pub use self::brief::{BriefJob, BriefJobs, Momentary};
pub use self::marked::Marked;
pub use self::summed::Summed;
use crate::apps::ModelledJob;
use crate::grid::{GridError, Layout, SimulatedCluster, simulate};
use crate::machines::Machine;

/// A job must end within this virtual time after the last fault has healed.
const SOON: Duration = Duration::from_secs(300);

/// A role that a node has at the moment.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultRole {
    /// The node of the job's root and coordinator.
    Root,
    /// The node of this cluster's sub-coordinator.
    Cluster(ClusterId),
    /// The node that holds most stolen tasks.
    Thief,
}

impl FaultRole {
    fn kind(&self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Cluster(_) => "cluster's coordinator",
            Self::Thief => "thief",
        }
    }
}

/// One of several cuts; times count from the start of the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The first of the two clusters.
    pub a: ClusterId,
    /// The second of the two clusters.
    pub b: ClusterId,
    /// The start of the cut.
    pub from: Duration,
    /// The end of the cut.
    pub until: Duration,
}

/// A fault of a grid.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed; its site starts another.
    Kill(NodeId),
    /// The node that has a role at that time is killed.
    KillRole(FaultRole),
    /// A process is killed, and its successor is killed this long after its start.
    KillAgain(NodeId, Duration),
    /// Machines are off for a time.
    Off(Vec<NodeId>, Duration),
    /// Two clusters (one may be the head's) do not reach each other for a time.
    Cut(ClusterId, ClusterId, Duration),
    /// Links are cut one by one, and restored one by one in another order.
    Swizzle(Vec<Cut>),
    /// Messages from the first cluster to the second are lost for a time; the other direction
    /// works.
    OneWay(ClusterId, ClusterId, Duration),
    /// The link between two clusters has this profile for a time.
    Line(ClusterId, ClusterId, LinkProfile, Duration),
    /// The link between two clusters has this profile for a time, and its streams overtake each
    /// other.
    Reorder(ClusterId, ClusterId, LinkProfile, Duration),
    /// Repeatable messages between two clusters arrive twice.
    ///
    /// The fields are the share of such messages, the longest delay of the second copy, and the
    /// duration.
    Repeat(ClusterId, ClusterId, f64, Duration, Duration),
    /// A machine computes at this share of its speed for a time.
    Slow(NodeId, f64, Duration),
    /// Processes are stopped for a time, as by `SIGSTOP`.
    Stop(Vec<NodeId>, Duration),
    /// The node that has a role at that time is stopped for a time.
    StopRole(FaultRole, Duration),
    /// Nodes are drained, and undrained after a time.
    Drain(Vec<NodeId>, Duration),
    /// Nodes are drained and undrained alternately, with these pauses.
    Flap(Vec<NodeId>, Vec<Duration>),
}

impl Fault {
    /// Every kind of fault, by name.
    pub const KINDS: &[&str] = &[
        "kill",
        "kill: root",
        "kill: cluster's coordinator",
        "kill: thief",
        "kill, and again",
        "off",
        "cut",
        "swizzle",
        "one-way",
        "line",
        "reorder",
        "repeat",
        "slow",
        "stop",
        "stop: root",
        "stop: cluster's coordinator",
        "stop: thief",
        "drain",
        "flap",
    ];

    /// The name of the fault's kind.
    pub fn kind(&self) -> String {
        let word = match self {
            Self::Kill(_) => "kill",
            Self::KillRole(role) => return format!("kill: {}", role.kind()),
            Self::KillAgain(..) => "kill, and again",
            Self::Off(..) => "off",
            Self::Cut(..) => "cut",
            Self::Swizzle(_) => "swizzle",
            Self::OneWay(..) => "one-way",
            Self::Line(..) => "line",
            Self::Reorder(..) => "reorder",
            Self::Repeat(..) => "repeat",
            Self::Slow(..) => "slow",
            Self::Stop(..) => "stop",
            Self::StopRole(role, _) => return format!("stop: {}", role.kind()),
            Self::Drain(..) => "drain",
            Self::Flap(..) => "flap",
        };
        word.to_owned()
    }

    /// The duration of the fault.
    fn lasts(&self) -> Duration {
        match self {
            Self::Kill(_) | Self::KillRole(_) => Duration::ZERO,
            Self::KillAgain(_, lasts)
            | Self::Off(_, lasts)
            | Self::Cut(_, _, lasts)
            | Self::OneWay(_, _, lasts)
            | Self::Line(_, _, _, lasts)
            | Self::Reorder(_, _, _, lasts)
            | Self::Repeat(_, _, _, _, lasts)
            | Self::Slow(_, _, lasts)
            | Self::Stop(_, lasts)
            | Self::StopRole(_, lasts)
            | Self::Drain(_, lasts) => *lasts,
            Self::Swizzle(cuts) => cuts.iter().map(|cut| cut.until).max().unwrap_or_default(),
            Self::Flap(_, pauses) => pauses.iter().sum(),
        }
    }

    /// Lengthens a fault that cannot end the job, however long it lasts.
    ///
    /// A cut from the head is not lengthened, for nodes without contact to the head end.
    fn lengthen(&mut self, by: Duration) {
        let is_head =
            |cluster: &ClusterId| *cluster == springtide_actors::head::HEAD_CLUSTER.into();
        match self {
            Self::Cut(a, b, lasts)
            | Self::OneWay(a, b, lasts)
            | Self::Line(a, b, _, lasts)
            | Self::Reorder(a, b, _, lasts)
            | Self::Repeat(a, b, _, _, lasts)
                if !is_head(a) && !is_head(b) =>
            {
                *lasts += by;
            }
            Self::Off(_, lasts) | Self::Drain(_, lasts) => *lasts += by,
            Self::Slow(_, share, lasts) if *share > 0.0 => *lasts += by,
            _ => {}
        }
    }
}

/// The computation of a history.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryJob {
    /// A divide-and-conquer job like real ones.
    Model(ModelledJob),
    /// A job whose tasks differ from root to root.
    Marked(Marked),
    /// A master with workers.
    Summed(Summed),
    /// Many brief jobs.
    Brief(BriefJobs),
}

impl HistoryJob {
    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        match self {
            Self::Model(job) => job.answer(),
            Self::Marked(job) => job.answer(),
            Self::Summed(job) => job.answer(),
            // Each of its jobs has its own answer.
            Self::Brief(_) => 0,
        }
    }

    /// The work of the whole job.
    pub fn work(&self) -> Duration {
        match self {
            Self::Model(job) => job.work(),
            Self::Marked(job) => job.work(),
            Self::Summed(job) => job.work(),
            Self::Brief(brief) => brief.work(),
        }
    }
}

/// A grid, its job and its faults.
#[derive(Clone, Debug)]
pub struct FaultHistory {
    /// The seed that the history was drawn from; it also seeds all random numbers of the run.
    pub seed: u64,
    /// The grid to simulate.
    pub layout: Layout,
    /// The job that the grid runs.
    pub job: HistoryJob,
    /// The parameters of the job.
    pub params: JobParams,
    /// Faults of the running job, in order of the time since the job got its nodes.
    pub faults: Vec<(Duration, Fault)>,
    /// Faults during the job's start, in order of the time since its submission.
    pub at_start: Vec<(Duration, Fault)>,
}

impl FaultHistory {
    /// A history without faults: clusters `c0`, `c1` and so on of the given numbers of nodes.
    ///
    /// Each node has one thread; links take 10 ms.
    pub fn quiet(seed: u64, clusters: &[u32], job: HistoryJob) -> Self {
        let place = |(at, nodes): (usize, &u32)| SimulatedCluster {
            name: format!("c{at}").into(),
            nodes: *nodes,
            machine: Machine { threads: 1, speed: 1.0 },
            unequal_threads: None,
        };
        let layout = Layout {
            clusters: clusters.iter().enumerate().map(place).collect(),
            network: MemoryConfig::default(),
            seed,
            leave_within: Duration::from_secs(30),
            stoppable: true,
        };
        let mut params = JobParams { seed, poison_limit: 0, ..JobParams::default() };
        params.set_period(Duration::from_secs(2));
        let (faults, at_start) = Default::default();
        Self { seed, layout, job, params, faults, at_start }
    }

    /// Adds a fault, this number of milliseconds after the job got its nodes.
    pub fn at(mut self, millis: u64, fault: Fault) -> Self {
        self.faults.push((Duration::from_millis(millis), fault));
        self.faults.sort_by_key(|(at, _)| *at);
        self
    }

    /// Adds a fault of the start, this number of milliseconds after the submission.
    pub fn at_start(mut self, millis: u64, fault: Fault) -> Self {
        self.at_start.push((Duration::from_millis(millis), fault));
        self.at_start.sort_by_key(|(at, _)| *at);
        self
    }

    /// The time at which all faults have healed.
    fn healed(&self) -> Duration {
        let all = self.faults.iter().chain(&self.at_start);
        all.map(|(at, fault)| *at + fault.lasts()).max().unwrap_or_default()
    }
}

/// The number of occurrences of each path in a history, by name.
pub type PathCounts = BTreeMap<String, u64>;

/// A violation of what must hold in every history.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// The job could not be run, or did not end.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The job failed.
    #[error("the job failed: {0}")]
    Failed(String),
    /// The job ended with another answer.
    #[error("the answer is {found:016x}, not {expected:016x}")]
    Answer {
        /// The answer of the job.
        found: u64,
        /// The right answer.
        expected: u64,
    },
    /// The client was notified of the job's end more than once.
    #[error("the client got {0} more notifications of the job's end")]
    Again(u64),
    /// Nodes still work for the ended job.
    #[error("{0:?} after the job's end its nodes are not free: {1}")]
    NotFree(Duration, String),
    /// A lease was lost, or ended twice, or a task came twice under one lease.
    #[error("the leases of {0} do not balance: {1}")]
    Leases(String, String),
    /// State of the job is left, or exceeds its bound.
    #[error("{0} holds state that it should not have: {1}")]
    Held(String, String),
    /// A message of a dead incarnation was delivered.
    #[error("{0} frames of an earlier incarnation of a node arrived after some of a later one")]
    Dead(u64),
    /// A fault of the history could not be executed.
    #[error("a fault of the history could not be executed: {0}")]
    Script(String),
}

/// A history with a violation.
#[derive(Debug, thiserror::Error)]
#[error("{violation}")]
pub struct HistoryFailure {
    /// The violation of the history.
    #[source]
    pub violation: Box<Violation>,
    /// Messages of the job, if it ended.
    pub said: Vec<(Duration, String)>,
}

impl<T: Into<Violation>> From<T> for HistoryFailure {
    fn from(wrong: T) -> Self {
        Self { violation: Box::new(wrong.into()), said: Vec::new() }
    }
}

/// The result of a history without violation.
#[derive(Debug)]
pub struct HistoryReport {
    /// The paths that the history took, with their numbers.
    pub paths: PathCounts,
    /// Digest of all events.
    pub digest: u64,
    /// All events of the head and the nodes.
    pub records: Vec<Record>,
    /// Messages of the job.
    pub said: Vec<(Duration, String)>,
    /// Time from the job's submission to its end.
    pub wall: Duration,
    /// Time from the end of the last fault to the end of the job.
    pub after: Duration,
}

impl HistoryReport {
    /// Merges the results of two histories of one seed.
    fn merge(mut self, other: Self) -> Self {
        for (what, times) in other.paths {
            *self.paths.entry(what).or_default() += times;
        }
        self.digest ^= other.digest.rotate_left(1);
        self.after = self.after.max(other.after);
        self
    }
}

/// Runs a history and checks it.
///
/// # Errors
/// [`HistoryFailure`] with the violation.
pub fn run(history: &FaultHistory) -> Result<HistoryReport, HistoryFailure> {
    simulate(|| play::play(history))
}

/// The results of many histories.
#[derive(Debug, Default)]
pub struct HistoryTally {
    /// For each path: the number of occurrences, and of histories with one.
    pub paths: BTreeMap<String, (u64, u64)>,
    /// Seeds of histories with a violation.
    pub violations: Vec<u64>,
    /// Digests of all events of the others, by seed.
    pub digests: BTreeMap<u64, u64>,
    /// The number of histories.
    pub histories: u64,
    /// The longest time from the last fault's end to that of the job, and its seed.
    pub slowest: (Duration, u64),
}

/// Runs the histories of each seed, several at a time; `tell` gets each result as it is complete.
pub fn run_all(
    seeds: impl IntoIterator<Item = u64>,
    tell: impl Fn(&FaultHistory, &Result<HistoryReport, HistoryFailure>) + Sync,
) -> HistoryTally {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let reports = crate::on_all_cores(&seeds, |seed| {
        let mut all: Option<HistoryReport> = None;
        for history in [FaultHistory::of(*seed), FaultHistory::of_brief(*seed)] {
            let result = run(&history);
            tell(&history, &result);
            let reports = result.ok()?;
            all = Some(match all {
                None => reports,
                Some(before) => before.merge(reports),
            });
        }
        all.map(|reports| (reports.paths, reports.digest, reports.after))
    });
    let mut tally = HistoryTally { histories: seeds.len() as u64, ..HistoryTally::default() };
    for name in Fault::KINDS.iter().map(|kind| format!("fault: {kind}")) {
        tally.paths.entry(name).or_default();
    }
    for name in judge::paths().chain(brief::paths()) {
        tally.paths.entry(name.to_owned()).or_default();
    }
    for (seed, reports) in seeds.into_iter().zip(reports) {
        let Some((met, digest, after)) = reports else {
            tally.violations.push(seed);
            continue;
        };
        tally.digests.insert(seed, digest);
        tally.slowest = tally.slowest.max((after, seed));
        for (what, times) in met {
            let (sum, histories) = tally.paths.entry(what).or_default();
            *sum += times;
            *histories += u64::from(times > 0);
        }
    }
    tally
}

impl HistoryTally {
    /// Lists the paths, a line each, with both numbers.
    pub fn lines(&self) -> String {
        let line = |(what, (times, histories)): (&String, &(u64, u64))| {
            format!("{times:9} in {histories:6}  {what}\n")
        };
        self.paths.iter().map(line).collect()
    }

    /// The paths that fewer histories than this took.
    pub fn rarer_than(&self, histories: u64) -> Vec<&str> {
        let rare = self.paths.iter().filter(|(_, (_, of))| *of < histories);
        rare.map(|(what, _)| what.as_str()).collect()
    }
}

impl fmt::Display for FaultHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.job)?;
        for place in &self.layout.clusters {
            let Machine { threads, speed } = place.machine;
            writeln!(
                f,
                "  {}: {} nodes, {threads} threads, speed {speed}",
                place.name, place.nodes
            )?;
        }
        let MemoryConfig { between, idle_timeout, .. } = &self.layout.network;
        writeln!(f, "  between: {between:?}, down after {idle_timeout:?} of silence")?;
        for (at, fault) in &self.at_start {
            writeln!(f, "  {:9.3} s of the start  {fault:?}", at.as_secs_f64())?;
        }
        for (at, fault) in &self.faults {
            writeln!(f, "  {:9.3} s  {fault:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
