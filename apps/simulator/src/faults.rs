//! Fault histories: small grids under crashes, cuts, stalls and leaves drawn from a seed, whose jobs must end with the right
//! answer soon after the last fault has healed, and leave nobody behind who still works for them.
//!
//! One seed, one history: what a failing one prints replays it.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::{JobParams, SCHEDULER};
use springtide_actors::scheduler::{Drain, NodeState, Scheduler, Undrain};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::{LinkProfile, MemoryConfig};
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::Registry;
use tokio::time::{Instant, sleep, sleep_until};

use crate::apps::{Model, Shape};
use crate::grid::{Ended, Grid, GridError, Layout, Place, simulate};
use crate::machines::Machine;

/// A job must have ended so long after the last fault has healed, in virtual time.
const SOON: Duration = Duration::from_secs(300);
/// Nodes must be free so long after their job.
const FREE_WITHIN: Duration = Duration::from_secs(60);

/// What happens to a grid, at a time after its job was submitted.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed; its site starts it anew.
    Kill(NodeId),
    /// Machines are off for so long.
    Off(Vec<NodeId>, Duration),
    /// Two clusters (one may be the head's) do not reach each other for so long.
    Cut(ClusterId, ClusterId, Duration),
    /// What the first sends the second is lost for so long; not the other way round.
    OneWay(ClusterId, ClusterId, Duration),
    /// The line between two clusters is like this for so long.
    Line(ClusterId, ClusterId, LinkProfile, Duration),
    /// A machine computes at so much of its speed for so long.
    Slow(NodeId, f64, Duration),
    /// Nodes are drained, and put back after so long.
    Drain(Vec<NodeId>, Duration),
}

impl Fault {
    /// Its kind, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Off(..) => "off",
            Self::Cut(..) => "cut",
            Self::OneWay(..) => "one-way",
            Self::Line(..) => "line",
            Self::Slow(..) => "slow",
            Self::Drain(..) => "drain",
        }
    }

    /// How long it lasts.
    fn lasts(&self) -> Duration {
        match self {
            Self::Kill(_) => Duration::ZERO,
            Self::Off(_, lasts)
            | Self::Cut(_, _, lasts)
            | Self::OneWay(_, _, lasts)
            | Self::Line(_, _, _, lasts)
            | Self::Slow(_, _, lasts)
            | Self::Drain(_, lasts) => *lasts,
        }
    }
}

/// A grid, its job, and what happens to it.
#[derive(Clone, Debug)]
pub struct History {
    /// The seed it was drawn from.
    pub seed: u64,
    /// The grid.
    pub layout: Layout,
    /// The job.
    pub job: Model,
    /// How it is run.
    pub params: JobParams,
    /// Times after the submission, in order.
    pub faults: Vec<(Duration, Fault)>,
}

struct Draw(SplitMix);

impl Draw {
    /// From `low` to `high`, both among them.
    fn from(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next() % (high - low + 1)
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.0.below(all.len())]
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.from(low, high))
    }
}

impl History {
    /// Draws one.
    pub fn of(seed: u64) -> Self {
        let mut draw = Draw(SplitMix(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)));
        let clusters: Vec<Place> = (0..draw.from(2, 4))
            .map(|at| Place {
                name: format!("c{at}").into(),
                nodes: draw.from(2, 4) as u32,
                machine: Machine {
                    threads: if draw.from(0, 3) == 0 { 2 } else { 1 },
                    speed: draw.from(5, 20) as f64 / 10.0,
                },
            })
            .collect();
        let between = LinkProfile::default()
            .delay(draw.millis(1, 60))
            .jitter(draw.millis(0, 5))
            .loss(if draw.from(0, 2) == 0 { 0.005 } else { 0.0 });
        let layout = Layout {
            clusters,
            network: MemoryConfig { between, ..MemoryConfig::default() },
            seed,
            leave_within: Duration::from_secs(30),
        };
        let leaves = draw.from(32, 160);
        let job = Model {
            shape: *draw.of(&[Shape::Even, Shape::Uneven]),
            rounds: draw.from(2, 6) as u32,
            leaves: leaves as u32,
            work_us: leaves * draw.from(20_000, 150_000),
            spread: 500,
            serial_us: *draw.of(&[0, 200_000]),
            each_us: 10_000,
            state_bytes: *draw.of(&[0, 0, 1000, 200_000]),
            result_bytes: *draw.of(&[1000, 100_000, 5_000_000]),
            checkpoint_bytes: *draw.of(&[0, 100_000]),
            ..Model::default()
        };
        let period_ms = draw.from(1000, 5000);
        let mut params = JobParams { seed, period_ms, poison: 0, ..JobParams::default() };
        params.settings.period_s = period_ms as f64 * 1e-3;
        params.results_bytes = *draw.of(&[0, 1 << 20, 64 << 20]);
        let power: f64 = layout
            .clusters
            .iter()
            .map(|c| f64::from(c.nodes * c.machine.threads) * c.machine.speed)
            .sum();
        let expected = job.work().as_secs_f64() / power;
        let span = (expected * 1300.0) as u64 + 500;
        // A job whose nodes are all lost at once is lost with them, as it says: so one of the first cluster's stays.
        let first = &layout.clusters[0];
        let keeper = NodeId::from(format!("{}-{}", first.name, draw.from(1, first.nodes.into())));
        let mut faults: Vec<(Duration, Fault)> = (0..draw.from(1, 6))
            .map(|_| (draw.millis(0, span), fault(&mut draw, &layout, &keeper)))
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        Self { seed, layout, job, params, faults }
    }

    /// When all has healed.
    fn healed(&self) -> Duration {
        self.faults.iter().map(|(at, fault)| *at + fault.lasts()).max().unwrap_or_default()
    }
}

/// One fault. Machines of the first cluster are never off, so that there is a grid, and nothing ends the keeper's part in the job.
fn fault(draw: &mut Draw, layout: &Layout, keeper: &NodeId) -> Fault {
    let nodes_of = |place: &Place| -> Vec<NodeId> {
        (1..=place.nodes).map(|n| NodeId::from(format!("{}-{n}", place.name))).collect()
    };
    let all: Vec<NodeId> = layout.clusters.iter().flat_map(nodes_of).collect();
    let mortal: Vec<NodeId> = all.iter().filter(|node| *node != keeper).cloned().collect();
    let names: Vec<ClusterId> = layout.clusters.iter().map(|place| place.name.clone()).collect();
    let pair = |draw: &mut Draw, head: bool| {
        let first = draw.from(0, names.len() as u64 - 1) as usize;
        let other = draw.from(1, names.len() as u64 - 1 + u64::from(head)) as usize;
        let second = match names.len() - other {
            0 => ClusterId::from(HEAD_CLUSTER),
            _ => names[(first + other) % names.len()].clone(),
        };
        (names[first].clone(), second)
    };
    match draw.from(0, 9) {
        0..=2 => Fault::Kill(draw.of(&mortal).clone()),
        3 => {
            let place = draw.of(&layout.clusters[1..]);
            let nodes = nodes_of(place);
            let nodes = match draw.from(0, 1) {
                0 => nodes,
                _ => vec![draw.of(&nodes).clone()],
            };
            Fault::Off(nodes, draw.millis(500, 40_000))
        }
        4 => {
            let (a, b) = pair(draw, true);
            Fault::Cut(a, b, draw.millis(100, 40_000))
        }
        5 => {
            let (a, b) = pair(draw, true);
            Fault::OneWay(a, b, draw.millis(100, 30_000))
        }
        6 => {
            let (a, b) = pair(draw, false);
            let line = LinkProfile::default()
                .delay(draw.millis(10, 400))
                .loss(*draw.of(&[0.0, 0.02, 0.2]))
                .rate(*draw.of(&[20_000, 200_000, 10_000_000]));
            Fault::Line(a, b, line, draw.millis(1000, 30_000))
        }
        7 => {
            let share = *draw.of(&[0.0, 0.05, 0.3]);
            Fault::Slow(draw.of(&all).clone(), share, draw.millis(500, 15_000))
        }
        _ => {
            let mut some = mortal;
            let count = draw.from(1, (all.len() as u64 / 2).max(1));
            let drained = (0..count).map(|_| some.swap_remove(draw.0.below(some.len()))).collect();
            Fault::Drain(drained, draw.millis(1000, 20_000))
        }
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
    /// Somebody still works for it.
    #[error("{0:?} after the job its nodes are not free: {1}")]
    NotFree(Duration, String),
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
}

/// Runs a history.
///
/// # Errors
/// [`Wrong`].
pub fn run(history: &History) -> Result<Told, Wrong> {
    simulate(|| play(history))
}

/// What came of many histories.
#[derive(Debug, Default)]
pub struct Tally {
    /// What was met in all of them.
    pub met: Met,
    /// Seeds of those in which something was wrong.
    pub wrong: Vec<u64>,
    /// Digests of all that happened in the others, by seed.
    pub digests: BTreeMap<u64, u64>,
    /// How many there were.
    pub histories: u64,
}

/// Runs histories, several at a time; `tell` hears of each as it ends.
pub fn run_all(
    seeds: impl IntoIterator<Item = u64>,
    tell: impl Fn(&History, &Result<Told, Wrong>) + Sync,
) -> Tally {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let told = crate::on_all_cores(&seeds, |seed| {
        let history = History::of(*seed);
        let result = run(&history);
        tell(&history, &result);
        result.ok().map(|told| (told.met, told.digest))
    });
    let mut tally = Tally { histories: seeds.len() as u64, ..Tally::default() };
    for (seed, told) in seeds.into_iter().zip(told) {
        let Some((met, digest)) = told else {
            tally.wrong.push(seed);
            continue;
        };
        tally.digests.insert(seed, digest);
        for (what, times) in met {
            *tally.met.entry(what).or_default() += times;
        }
    }
    tally
}

async fn play(history: &History) -> Result<Told, Wrong> {
    let mut registry = Registry::new();
    registry.job::<Model>();
    let grid = Grid::start(&history.layout, registry).await;
    let job = grid.submit(history.job.clone(), history.params.clone(), None).await?;
    let began = Instant::now();
    let scripts: Vec<_> = history
        .faults
        .iter()
        .map(|(at, fault)| {
            let (grid, fault, at) = (Rc::clone(&grid), fault.clone(), began + *at);
            let layout = history.layout.clone();
            actix_rt::spawn(async move {
                sleep_until(at).await;
                happen(&grid, &layout, &fault).await
            })
        })
        .collect();
    let ended = job.ended(history.healed() + SOON).await?;
    let mut met = Met::new();
    for (script, (_, fault)) in scripts.into_iter().zip(&history.faults) {
        // Those that the job did not live to see are waited for too, so that the grid is whole again.
        if script.await.unwrap_or(false) {
            *met.entry(format!("fault: {}", fault.kind())).or_default() += 1;
        }
    }
    judge(history, &ended, &mut met)?;
    all_are_free(&grid).await?;
    let digest = grid.digest(&ended.records);
    Ok(Told { met, digest, said: ended.said, wall: ended.wall })
}

/// Lets it happen and heal. Whether it could.
async fn happen(grid: &Grid, layout: &Layout, fault: &Fault) -> bool {
    let (machines, network) = (grid.machines(), grid.network());
    match fault {
        Fault::Kill(node) => machines.kill(node),
        Fault::Off(nodes, lasts) => {
            let off: Vec<_> = nodes.iter().filter(|node| machines.switch_off(node)).collect();
            sleep(*lasts).await;
            for node in &off {
                machines.switch_on(node);
            }
            !off.is_empty()
        }
        Fault::Cut(a, b, lasts) => {
            network.partition(a, b, true);
            sleep(*lasts).await;
            network.partition(a, b, false);
            true
        }
        Fault::OneWay(from, to, lasts) => {
            let line = &layout.network.between;
            network.set_link(from, to, line.clone().up(false));
            sleep(*lasts).await;
            network.set_link(from, to, line.clone());
            true
        }
        Fault::Line(a, b, line, lasts) => {
            network.set_links(a, b, line);
            sleep(*lasts).await;
            network.set_links(a, b, &layout.network.between);
            true
        }
        Fault::Slow(node, share, lasts) => {
            let place = layout.clusters.iter().find(|place| {
                node.as_str().strip_prefix(place.name.as_str()).is_some_and(|n| n.starts_with('-'))
            });
            let Some(speed) = place.map(|place| place.machine.speed) else { return false };
            machines.set_speed(node, speed * share);
            sleep(*lasts).await;
            machines.set_speed(node, speed)
        }
        Fault::Drain(nodes, lasts) => {
            let head = &grid.head().endpoint;
            let scheduler = head.hub.remote::<Scheduler>(&head.net.me().node, SCHEDULER);
            let drain = Drain {
                nodes: nodes.clone(),
                reason: "a fault history".to_owned(),
                deadline_ms: None,
                life: None,
            };
            let call = scheduler.send(drain).start();
            sleep(*lasts).await;
            let undrain = Undrain { nodes: nodes.clone() };
            let undone = scheduler.send(undrain).await;
            drop(call);
            undone.is_ok()
        }
    }
}

fn judge(history: &History, ended: &Ended, met: &mut Met) -> Result<(), Wrong> {
    let outcome = ended.ended.outcome.as_ref();
    let outcome = outcome.map_err(|error| Wrong::Failed(error.to_string()))?;
    let (found, expected) = (outcome.checksum, history.job.answer());
    if found != expected {
        return Err(Wrong::Answer { found, expected });
    }
    let paths = [
        ("root: another took its place", "takes its place"),
        ("root: from a checkpoint", "the root goes on from its checkpoint"),
        ("root: anew", "the root begins anew"),
        ("root: moved", "the job's root moves from"),
        ("member: lost by its site's word", "its process ended"),
        ("member: lost by silence", "silent for"),
        ("member: joined", "joins the job"),
        ("member: left", "leaves the job"),
    ];
    for (path, part) in paths {
        let times = ended.said.iter().filter(|(_, text)| text.contains(part)).count();
        *met.entry(path.to_owned()).or_default() += times as u64;
    }
    let tasks = &ended.ended.report.total.counters.tasks;
    for (path, times) in [
        ("tasks: taken back from the lost", tasks.reclaimed),
        ("tasks: given back", tasks.returned),
        ("tasks: results kept", tasks.kept),
    ] {
        *met.entry(path.to_owned()).or_default() += times;
    }
    Ok(())
}

async fn all_are_free(grid: &Grid) -> Result<(), Wrong> {
    let until = Instant::now() + FREE_WITHIN;
    loop {
        let status = grid.head().status().await;
        if status.jobs.is_empty() && status.count(NodeState::Busy) == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Wrong::NotFree(FREE_WITHIN, format!("{status:?}")));
        }
        sleep(Duration::from_secs(1)).await;
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
        for (at, fault) in &self.faults {
            writeln!(f, "  {:9.3} s  {fault:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
