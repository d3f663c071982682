//! Runs a history: executes each fault at its time, heals it, and counts the paths that the job
//! took.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::job::{cluster_coordinator_name, coordinator_name};
use springtide_actors::scheduler::{Drain, Undrain};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::net::memory::RepeatRule;
use springtide_runtime::wire::Kind;
use springtide_runtime::work::Registry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::judge::{self, CompletedHistory};
use super::{
    Fault, FaultHistory, FaultRole, HistoryFailure, HistoryJob, HistoryReport, PathCounts, SOON,
    Violation,
};
use crate::apps::ModelledJob;
use crate::faults::brief::{self, Momentary};
use crate::faults::marked::Marked;
use crate::faults::summed::Summed;
use crate::grid::{Layout, SimulatedGrid};
use crate::scenario_driver::cluster_of;

/// Messages that senders repeat while they do not know whether they arrived: answers to audits, and
/// requests and notices with a timer.
///
/// A request for work and its answer are sent once.
const REPEATABLE_KINDS: &[Kind] = &[
    Kind::WORK_HINT,
    Kind::TASK_RESULT,
    Kind::TASK_RETURN,
    Kind::TASK_ABANDON,
    Kind::ORPHANS,
    Kind::ADOPT,
    Kind::AUDIT,
    Kind::HANDOVER,
    Kind::OBJECT_FETCH,
    Kind::OBJECT_MISS,
];

/// A killed process is back within this time, unless its machine is off.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// The registry of all jobs that histories run.
pub(super) fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.job::<ModelledJob>().job::<Marked>().job::<Summed>().job::<Momentary>();
    registry
}

pub(super) async fn play(history: &FaultHistory) -> Result<HistoryReport, HistoryFailure> {
    let grid = SimulatedGrid::start(&history.layout, registry()).await;
    // The first job of a grid has number 1.
    let at_start = match &history.job {
        HistoryJob::Brief(_) => &[],
        _ => &history.at_start[..],
    };
    let of_start = execute_all(&grid, history, JobId(1), at_start, Instant::now());
    let job = match &history.job {
        HistoryJob::Model(job) => grid.submit(job.clone(), history.params.clone(), None).await?,
        HistoryJob::Marked(job) => grid.submit(job.clone(), history.params.clone(), None).await?,
        HistoryJob::Summed(job) => grid.submit(job.clone(), history.params.clone(), None).await?,
        HistoryJob::Brief(brief) => return brief::play(history, brief).await,
    };
    let id = job.granted().job;
    let scripts = execute_all(&grid, history, id, &history.faults, Instant::now());
    let ended = job.ended(history.healed() + SOON).await?;
    let survivors = survivors(&grid, id, &[]);
    let mut met = PathCounts::new();
    for (script, (at, fault)) in scripts.into_iter().zip(&history.faults) {
        // Faults that outlast the job are awaited too, so that the grid is whole again.
        let happened = script.await.map_err(|error| Violation::Script(error.to_string()))?;
        if happened {
            *met.entry(format!("fault: {}", fault.kind())).or_default() += 1;
            if *at <= ended.wall && *at + fault.lasts() > ended.wall {
                *met.entry("fault: lasts longer than the job".to_owned()).or_default() += 1;
            }
        }
    }
    for script in of_start {
        let happened = script.await.map_err(|error| Violation::Script(error.to_string()))?;
        *met.entry("fault: while the job starts".to_owned()).or_default() += u64::from(happened);
    }
    let completed = CompletedHistory { history, grid: &grid, job: id, survivors };
    if let Err(wrong) = judge::check_all(&completed, &ended, &mut met).await {
        return Err(HistoryFailure { violation: Box::new(wrong), said: ended.said });
    }
    let after = ended.wall.saturating_sub(history.healed());
    let mut records = ended.records;
    records.extend(grid.drain_records());
    let digest = grid.digest(&records);
    Ok(HistoryReport { paths: met, digest, records, said: ended.said, wall: ended.wall, after })
}

/// Executes faults at their times since `began`. Each task returns whether its fault could happen.
fn execute_all(
    grid: &Rc<SimulatedGrid>,
    history: &FaultHistory,
    job: JobId,
    faults: &[(Duration, Fault)],
    began: Instant,
) -> Vec<JoinHandle<bool>> {
    let script = |(at, fault): &(Duration, Fault)| {
        let (fault, at) = (fault.clone(), began + *at);
        let (grid, layout) = (Rc::clone(grid), history.layout.clone());
        let world =
            HistoryWorld { grid, layout, job: Rc::new(Cell::new(job)), spares_one_node: true };
        actix_rt::spawn(async move {
            sleep_until(at).await;
            world.execute(&fault).await
        })
    };
    faults.iter().map(script).collect()
}

/// Nodes of the job that run and do not leave, except the given ones.
fn survivors(grid: &SimulatedGrid, job: JobId, without: &[NodeId]) -> Vec<NodeId> {
    let machines = grid.machines();
    let here = machines.engines_of(job).into_iter();
    let stays = here.filter(|engine| !engine.is_over() && !engine.report().leaving);
    let alive = stays.map(|engine| engine.me().node.clone());
    alive.filter(|node| !without.contains(node) && machines.is_responsive(node)).collect()
}

pub(super) struct HistoryWorld {
    pub(super) grid: Rc<SimulatedGrid>,
    pub(super) layout: Layout,
    /// The job whose roles are meant.
    pub(super) job: Rc<Cell<JobId>>,
    /// Whether one node of the job is always spared.
    pub(super) spares_one_node: bool,
}

impl HistoryWorld {
    /// The node that has a role now, if any.
    fn holder(&self, role: &FaultRole) -> Option<NodeId> {
        let (machines, job) = (self.grid.machines(), self.job.get());
        match role {
            FaultRole::Root => machines.hosting(&coordinator_name(job)).into_iter().next(),
            FaultRole::Cluster(cluster) => {
                let hosts = machines.hosting(&cluster_coordinator_name(job));
                hosts.into_iter().find(|node| cluster_of(node) == cluster.as_str())
            }
            FaultRole::Thief => {
                let here = machines.engines_of(job).into_iter();
                let holds = here.map(|engine| (engine.report().tables.stolen, engine));
                let most = holds.filter(|(held, _)| *held > 0).max_by_key(|(held, _)| *held);
                most.map(|(_, engine)| engine.me().node.clone())
            }
        }
    }

    /// Whether the job survives the loss of these nodes.
    ///
    /// A job that loses all nodes at once is lost, so one node is always spared. A job that has not
    /// begun on any node is started on others.
    fn may_lose(&self, nodes: &[NodeId]) -> bool {
        let machines = self.grid.machines();
        let job = self.job.get();
        let begun = machines.engines().iter().any(|engine| engine.job() == job);
        let left = |node: &NodeId| !nodes.contains(node) && machines.is_responsive(node);
        if !self.spares_one_node {
            return true;
        }
        if begun {
            !survivors(&self.grid, job, nodes).is_empty()
        } else {
            machines.running().iter().any(left)
        }
    }

    fn kill(&self, node: &NodeId) -> bool {
        self.may_lose(std::slice::from_ref(node)) && self.grid.machines().kill(node)
    }

    /// Stops processes for a time.
    async fn stop(&self, nodes: &[NodeId], lasts: Duration) -> bool {
        let machines = self.grid.machines();
        if !self.may_lose(nodes) {
            return false;
        }
        let stopped: Vec<_> = nodes.iter().filter(|node| machines.stop(node)).collect();
        sleep(lasts).await;
        // A process that was killed meanwhile cannot be resumed.
        for node in &stopped {
            machines.resume(node);
        }
        !stopped.is_empty()
    }

    async fn drain(&self, nodes: &[NodeId]) {
        let drain = Drain {
            nodes: nodes.to_vec(),
            reason: "a fault history".to_owned(),
            deadline_ms: None,
            incarnation: None,
        };
        // The scheduler answers when the nodes are empty; the history does not wait for that.
        let call = self.grid.scheduler().send(drain).start();
        actix_rt::spawn(async move { drop(call.await) });
    }

    async fn undrain(&self, nodes: &[NodeId]) -> bool {
        self.grid.scheduler().send(Undrain { nodes: nodes.to_vec() }).await.is_ok()
    }

    async fn line(&self, a: &ClusterId, b: &ClusterId, line: &LinkProfile, lasts: Duration) {
        let network = self.grid.network();
        network.set_links(a, b, line);
        sleep(lasts).await;
        network.set_links(a, b, &self.layout.network.between);
    }

    /// Executes a fault and heals it. Returns whether it could happen.
    pub(super) async fn execute(&self, fault: &Fault) -> bool {
        let (machines, network) = (self.grid.machines(), self.grid.network());
        match fault {
            Fault::Kill(node) => self.kill(node),
            Fault::KillRole(role) => self.holder(role).is_some_and(|node| self.kill(&node)),
            Fault::KillAgain(node, after) => {
                if !self.kill(node) {
                    return false;
                }
                let until = Instant::now() + BACK_WITHIN;
                while !machines.is_responsive(node) && Instant::now() < until {
                    sleep(Duration::from_millis(1)).await;
                }
                sleep(*after).await;
                self.kill(node)
            }
            Fault::Off(nodes, lasts) => {
                if !self.may_lose(nodes) {
                    return false;
                }
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
            Fault::Swizzle(cuts) => {
                let began = Instant::now();
                let mut steps: Vec<_> = cuts
                    .iter()
                    .flat_map(|cut| [(cut.from, cut, true), (cut.until, cut, false)])
                    .collect();
                steps.sort_by_key(|(at, ..)| *at);
                for (at, cut, is_cut) in steps {
                    sleep_until(began + at).await;
                    network.partition(&cut.a, &cut.b, is_cut);
                }
                true
            }
            Fault::OneWay(from, to, lasts) => {
                let line = &self.layout.network.between;
                network.set_link(from, to, line.clone().up(false));
                sleep(*lasts).await;
                network.set_link(from, to, line.clone());
                true
            }
            Fault::Line(a, b, line, lasts) => {
                self.line(a, b, line, *lasts).await;
                true
            }
            Fault::Reorder(a, b, line, lasts) => {
                let before = network.fault_counts().overtaking;
                self.line(a, b, line, *lasts).await;
                network.fault_counts().overtaking > before
            }
            Fault::Repeat(a, b, share, late, lasts) => {
                let before = network.fault_counts().repeated;
                let kinds = REPEATABLE_KINDS.to_vec();
                let repeat = RepeatRule { fraction: *share, max_delay: *late, kinds };
                for (from, to) in [(a, b), (b, a)] {
                    network.repeat(from, to, Some(repeat.clone()));
                }
                sleep(*lasts).await;
                for (from, to) in [(a, b), (b, a)] {
                    network.repeat(from, to, None);
                }
                network.fault_counts().repeated > before
            }
            Fault::Slow(node, share, lasts) => {
                let mut places = self.layout.clusters.iter();
                let place = places.find(|place| cluster_of(node) == place.name.as_str());
                let Some(speed) = place.map(|place| place.machine.speed) else { return false };
                machines.set_speed(node, speed * share);
                sleep(*lasts).await;
                machines.set_speed(node, speed)
            }
            Fault::Stop(nodes, lasts) => self.stop(nodes, *lasts).await,
            Fault::StopRole(role, lasts) => match self.holder(role) {
                Some(node) => self.stop(&[node], *lasts).await,
                None => false,
            },
            Fault::Drain(nodes, lasts) => {
                self.drain(nodes).await;
                sleep(*lasts).await;
                self.undrain(nodes).await
            }
            Fault::Flap(nodes, pauses) => {
                let mut done = true;
                for (at, pause) in pauses.iter().enumerate() {
                    match at % 2 {
                        0 => self.drain(nodes).await,
                        _ => done &= self.undrain(nodes).await,
                    }
                    sleep(*pause).await;
                }
                self.undrain(nodes).await && done
            }
        }
    }
}
