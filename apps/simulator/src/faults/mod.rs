//! Fault histories: small grids under whatever can go wrong, drawn from a seed or written by hand, whose jobs must end once and with
//! the right answer soon after the last fault has healed, and leave nothing behind.
//!
//! One seed, one history: what a failing one prints replays it. `draw` makes them, `play` lets them happen, `judge` says what is
//! wrong.

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
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::{LinkProfile, MemoryConfig};

pub use self::brief::{Brief, Momentary, Submission};
pub use self::marked::Marked;
pub use self::summed::Summed;
use crate::apps::Model;
use crate::grid::{GridError, Layout, Place, simulate};
use crate::machines::Machine;

/// A job must have ended so long after the last fault has healed, in virtual time.
const SOON: Duration = Duration::from_secs(300);

/// Who somebody is at the moment.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// The node of the job's root and coordinator.
    Root,
    /// The node of this cluster's coordinator.
    Cluster(ClusterId),
    /// The node that has most tasks of others.
    Thief,
}

impl Role {
    fn kind(&self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Cluster(_) => "cluster's coordinator",
            Self::Thief => "thief",
        }
    }
}

/// One of several cuts: times since the first of them was to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Between this cluster,
    pub a: ClusterId,
    /// and this one.
    pub b: ClusterId,
    /// When.
    pub from: Duration,
    /// When it heals.
    pub until: Duration,
}

/// What happens to a grid, at a time after its job was submitted.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed; its site starts it anew.
    Kill(NodeId),
    /// Whoever has a role then is killed.
    KillRole(Role),
    /// A process is killed, and the next one of its node so long after it was started.
    KillAgain(NodeId, Duration),
    /// Machines are off for so long.
    Off(Vec<NodeId>, Duration),
    /// Two clusters (one may be the head's) do not reach each other for so long.
    Cut(ClusterId, ClusterId, Duration),
    /// Lines are cut one by one, and heal one by one in another order.
    Swizzle(Vec<Cut>),
    /// What the first sends the second is lost for so long; not the other way round.
    OneWay(ClusterId, ClusterId, Duration),
    /// The line between two clusters is like this for so long.
    Line(ClusterId, ClusterId, LinkProfile, Duration),
    /// The line between two clusters is like this for so long, and streams overtake each other on it.
    Reorder(ClusterId, ClusterId, LinkProfile, Duration),
    /// Of what senders between two clusters may say again, such a share is heard twice, up to so long after the first time; for
    /// so long.
    Repeat(ClusterId, ClusterId, f64, Duration, Duration),
    /// A machine computes at so much of its speed for so long.
    Slow(NodeId, f64, Duration),
    /// Processes stand still for so long, as after `SIGSTOP`.
    Stop(Vec<NodeId>, Duration),
    /// Whoever has a role then stands still for so long.
    StopRole(Role, Duration),
    /// Nodes are drained, and put back after so long.
    Drain(Vec<NodeId>, Duration),
    /// Nodes are drained, put back, drained again and so on, with these pauses.
    Flap(Vec<NodeId>, Vec<Duration>),
}

impl Fault {
    /// Every kind that there is.
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

    /// Its kind, in a word.
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

    /// How long it lasts.
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

    /// Lets it last longer, where that may go on for ever without making an end of the job: not where the head is cut off, for
    /// without a word from it nodes end.
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

/// What is computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A job like real ones.
    Model(Model),
    /// One whose tasks differ from root to root.
    Marked(Marked),
    /// A master and workers.
    Summed(Summed),
    /// Many brief jobs.
    Brief(Brief),
}

impl Work {
    /// The checksum that a run must have.
    pub fn answer(&self) -> u64 {
        match self {
            Self::Model(job) => job.answer(),
            Self::Marked(job) => job.answer(),
            Self::Summed(job) => job.answer(),
            // Each of its jobs has one of its own.
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

/// A grid, its job, and what happens to it.
#[derive(Clone, Debug)]
pub struct History {
    /// The seed it was drawn from, and of whatever is random in it.
    pub seed: u64,
    /// The grid.
    pub layout: Layout,
    /// The job.
    pub job: Work,
    /// How it is run.
    pub params: JobParams,
    /// Faults of the running job, by the time since it had its nodes, in order.
    pub faults: Vec<(Duration, Fault)>,
    /// Faults of its start, by the time since its submission, in order.
    pub at_start: Vec<(Duration, Fault)>,
}

impl History {
    /// One in which nothing happens yet: clusters `c0`, `c1` and so on of so many nodes with one thread each, 10 ms apart.
    pub fn quiet(seed: u64, clusters: &[u32], job: Work) -> Self {
        let place = |(at, nodes): (usize, &u32)| Place {
            name: format!("c{at}").into(),
            nodes: *nodes,
            machine: Machine { threads: 1, speed: 1.0 },
        };
        let layout = Layout {
            clusters: clusters.iter().enumerate().map(place).collect(),
            network: MemoryConfig::default(),
            seed,
            leave_within: Duration::from_secs(30),
            stoppable: true,
        };
        let mut params = JobParams { seed, poison: 0, ..JobParams::default() };
        params.set_period(Duration::from_secs(2));
        let (faults, at_start) = Default::default();
        Self { seed, layout, job, params, faults, at_start }
    }

    /// With this, so many milliseconds after the submission.
    pub fn at(mut self, millis: u64, fault: Fault) -> Self {
        self.faults.push((Duration::from_millis(millis), fault));
        self.faults.sort_by_key(|(at, _)| *at);
        self
    }

    /// With this fault of the start, so many milliseconds after the submission.
    pub fn at_start(mut self, millis: u64, fault: Fault) -> Self {
        self.at_start.push((Duration::from_millis(millis), fault));
        self.at_start.sort_by_key(|(at, _)| *at);
        self
    }

    /// When all has healed.
    fn healed(&self) -> Duration {
        let all = self.faults.iter().chain(&self.at_start);
        all.map(|(at, fault)| *at + fault.lasts()).max().unwrap_or_default()
    }
}

/// What was met in a history, by name.
pub type Met = BTreeMap<String, u64>;

/// What is wrong with a history.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// The job could not be run, or did not end.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// It failed.
    #[error("the job failed: {0}")]
    Failed(String),
    /// It ended with another answer.
    #[error("the answer is {found:016x}, not {expected:016x}")]
    Answer {
        /// What it said.
        found: u64,
        /// What is right.
        expected: u64,
    },
    /// Its end was told more than once.
    #[error("the job's end was told {0} times more")]
    Again(u64),
    /// Somebody still works for it.
    #[error("{0:?} after the job its nodes are not free: {1}")]
    NotFree(Duration, String),
    /// A lease was lost, or ended twice, or a task came twice under one.
    #[error("the leases of {0} do not balance: {1}")]
    Leases(String, String),
    /// Something is left of the job, or outgrew its bound.
    #[error("{0} holds what it should not: {1}")]
    Held(String, String),
    /// A message of a dead incarnation was heard.
    #[error("{0} frames of a former life of a node were delivered after some of a later one")]
    Dead(u64),
    /// A bug of the history itself.
    #[error("what was to happen did not: {0}")]
    Script(String),
}

/// A history in which something is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{wrong}")]
pub struct Failed {
    /// What.
    #[source]
    pub wrong: Box<Wrong>,
    /// What the job had said, where it ended.
    pub said: Vec<(Duration, String)>,
}

impl<T: Into<Wrong>> From<T> for Failed {
    fn from(wrong: T) -> Self {
        Self { wrong: Box::new(wrong.into()), said: Vec::new() }
    }
}

/// How a history went.
#[derive(Debug)]
pub struct Told {
    /// What was met.
    pub met: Met,
    /// Digest of all that happened.
    pub digest: u64,
    /// What the job said, for who looks.
    pub said: Vec<(Duration, String)>,
    /// How long it took.
    pub wall: Duration,
    /// How long it took after all had healed.
    pub after: Duration,
}

impl Told {
    /// Of two histories of one seed.
    fn and(mut self, other: Self) -> Self {
        for (what, times) in other.met {
            *self.met.entry(what).or_default() += times;
        }
        self.digest ^= other.digest.rotate_left(1);
        self.after = self.after.max(other.after);
        self
    }
}

/// Runs a history.
///
/// # Errors
/// [`Failed`].
pub fn run(history: &History) -> Result<Told, Failed> {
    simulate(|| play::play(history))
}

/// What came of many histories.
#[derive(Debug, Default)]
pub struct Tally {
    /// What was met in all of them: how often, and in how many.
    pub met: BTreeMap<String, (u64, u64)>,
    /// Seeds of those in which something was wrong.
    pub wrong: Vec<u64>,
    /// Digests of all that happened in the others, by seed.
    pub digests: BTreeMap<u64, u64>,
    /// How many there were.
    pub histories: u64,
    /// The longest time from the last fault's end to that of the job, and in which.
    pub slowest: (Duration, u64),
}

/// Runs the histories of each seed, several at a time; `tell` hears of each as it ends.
pub fn run_all(
    seeds: impl IntoIterator<Item = u64>,
    tell: impl Fn(&History, &Result<Told, Failed>) + Sync,
) -> Tally {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let told = crate::on_all_cores(&seeds, |seed| {
        let mut all: Option<Told> = None;
        for history in [History::of(*seed), History::of_brief(*seed)] {
            let result = run(&history);
            tell(&history, &result);
            let told = result.ok()?;
            all = Some(match all {
                None => told,
                Some(before) => before.and(told),
            });
        }
        all.map(|told| (told.met, told.digest, told.after))
    });
    let mut tally = Tally { histories: seeds.len() as u64, ..Tally::default() };
    for name in Fault::KINDS.iter().map(|kind| format!("fault: {kind}")) {
        tally.met.entry(name).or_default();
    }
    for name in judge::paths().chain(brief::paths()) {
        tally.met.entry(name.to_owned()).or_default();
    }
    for (seed, told) in seeds.into_iter().zip(told) {
        let Some((met, digest, after)) = told else {
            tally.wrong.push(seed);
            continue;
        };
        tally.digests.insert(seed, digest);
        tally.slowest = tally.slowest.max((after, seed));
        for (what, times) in met {
            let (sum, histories) = tally.met.entry(what).or_default();
            *sum += times;
            *histories += u64::from(times > 0);
        }
    }
    tally
}

impl Tally {
    /// What was met, a line each, with how often and in how many histories.
    pub fn lines(&self) -> String {
        let line = |(what, (times, histories)): (&String, &(u64, u64))| {
            format!("{times:9} in {histories:6}  {what}\n")
        };
        self.met.iter().map(line).collect()
    }

    /// What was met in fewer histories than this.
    pub fn rarer_than(&self, histories: u64) -> Vec<&str> {
        let rare = self.met.iter().filter(|(_, (_, of))| *of < histories);
        rare.map(|(what, _)| what.as_str()).collect()
    }
}

impl fmt::Display for History {
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
