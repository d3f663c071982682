//! Draws a history from a seed: a grid, a job and its faults. This module does not run it.

use std::time::Duration;

use springtide_actors::head::{HEAD_CLUSTER, node_names};
use springtide_actors::job::JobParams;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::{LinkProfile, MemoryConfig};
use springtide_runtime::random::SplitMix;

use super::{BriefJob, BriefJobs, Cut, Fault, FaultHistory, FaultRole, HistoryJob, Momentary};
use crate::apps::{ModelledJob, WorkDivision};
use crate::faults::marked::Marked;
use crate::faults::summed::Summed;
use crate::grid::{Layout, SimulatedCluster};
use crate::machines::Machine;

/// The maximum number of nodes of a grid.
const NODES_MAX: u64 = 16;

struct Draw(SplitMix);

impl Draw {
    /// A number from `low` to `high`, both included.
    fn from(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next() % (high - low + 1)
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.0.below(all.len())]
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.from(low, high))
    }

    /// Some of these items, from one to `most`, in any order.
    fn some<T: Clone>(&mut self, all: &[T], most: usize) -> Vec<T> {
        let mut left = all.to_vec();
        let count = self.from(1, most.clamp(1, all.len()) as u64);
        (0..count).map(|_| left.swap_remove(self.0.below(left.len()))).collect()
    }
}

/// The clusters and nodes that faults are drawn from.
struct Names {
    clusters: Vec<ClusterId>,
    nodes: Vec<NodeId>,
    of_cluster: Vec<Vec<NodeId>>,
}

impl FaultHistory {
    /// Draws a history of a divide-and-conquer job.
    pub fn of(seed: u64) -> Self {
        Self::draw(seed, None)
    }

    /// Draws a history of a master with workers, from a random stream of its own.
    pub fn of_master(seed: u64) -> Self {
        let mut draw = Draw(SplitMix::with_text(seed, "a master and workers"));
        Self::draw(seed, Some(summed(&mut draw)))
    }

    /// Draws a history of brief jobs, cancels and faults of links and processes.
    pub fn of_brief(seed: u64) -> Self {
        let mut draw = Draw(SplitMix::with_text(seed, "brief jobs"));
        let count = draw.from(1, 3);
        let clusters = (0..count).map(|at| SimulatedCluster {
            name: format!("c{at}").into(),
            nodes: draw.from(1, 3) as u32,
            machine: Machine { threads: 1, speed: 1.0 },
            unequal_threads: None,
        });
        let clusters: Vec<SimulatedCluster> = clusters.collect();
        let delay = draw.millis(1, 60);
        let between = LinkProfile::default().delay(delay).jitter(draw.millis(0, 5));
        let between = match draw.from(0, 2) {
            0 => between.jitter(delay).reorder(true),
            _ => between,
        };
        let idle_timeout = Duration::from_millis(*draw.of(&[400, 800, 3000, 15_000]));
        let network = MemoryConfig { between, idle_timeout, ..MemoryConfig::default() };
        let names = Names::of(&clusters);
        let span = draw.from(500, 8000);
        let jobs = (0..draw.from(2, 12)).map(|tag| BriefJob {
            at: draw.millis(0, span),
            job: Momentary {
                work_us: *draw.of(&[0, 0, 0, 1000, 20_000, 200_000, 2_000_000]),
                fails: draw.from(0, 3) == 0,
                tag: tag as u32,
            },
            clusters: (draw.from(0, 2) > 0).then(|| {
                let some = draw.some(&clusters, clusters.len());
                some.iter().map(|c| (c.name.clone(), draw.from(1, c.nodes.into()) as u32)).collect()
            }),
        });
        let jobs = jobs.collect();
        let cancels =
            (0..draw.from(0, 6)).map(|_| (draw.millis(0, span + 1000), draw.from(0, 11) as usize));
        let cancels = cancels.collect();
        let faults =
            (0..draw.from(0, 4)).map(|_| (draw.millis(0, span), brief_fault(&mut draw, &names)));
        let mut faults: Vec<(Duration, Fault)> = faults.collect();
        faults.sort_by_key(|(at, _)| *at);
        let leave_within = Duration::from_secs(30);
        let layout = Layout { clusters, network, seed, leave_within, stoppable: true };
        let params = JobParams { seed, poison_limit: 0, ..JobParams::default() };
        let (job, at_start) = (HistoryJob::Brief(BriefJobs { jobs, cancels }), Vec::new());
        Self { seed, layout, job, params, faults, at_start }
    }

    fn draw(seed: u64, replacement: Option<HistoryJob>) -> Self {
        let mut draw = Draw(SplitMix(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)));
        let layout = layout(&mut draw, seed);
        let job = job(&mut draw, layout.network.between.reorder);
        let job = replacement.unwrap_or(job);
        let period_ms = draw.from(1000, 5000);
        let mut params = JobParams { seed, period_ms, poison_limit: 0, ..JobParams::default() };
        params.settings.period_s = period_ms as f64 * 1e-3;
        params.results_bytes = *draw.of(&[0, 1 << 20, 64 << 20, 64 << 20]);
        let power: f64 = layout
            .clusters
            .iter()
            .map(|c| f64::from(c.nodes * c.machine.threads) * c.machine.speed)
            .sum();
        let expected = job.work().as_secs_f64() / power;
        let span = (expected * 1300.0) as u64 + 500;
        let names = Names::of(&layout.clusters);
        let mut faults: Vec<(Duration, Fault)> = (0..draw.from(1, 6))
            .map(|_| (draw.millis(0, span), fault(&mut draw, &names)))
            .collect();
        // One history in four has a fault that outlasts the job's expected end.
        if draw.from(0, 3) == 0 {
            let more = Duration::from_millis(span) + draw.millis(0, 20_000);
            if let Some((_, fault)) = faults.first_mut() {
                fault.lengthen(more);
            }
        }
        // From a random stream of its own, so that the other draws of a seed do not depend on it.
        let mut apart = Draw(SplitMix::with_text(seed, "taken for dead, and chosen"));
        if apart.from(0, TAKEN_FOR_DEAD - 1) == 0 {
            faults.extend(taken_for_dead(&mut apart, &names, span));
        }
        faults.sort_by_key(|(at, _)| *at);
        let mut apart = Draw(SplitMix::with_text(seed, "while the job starts"));
        let at_start = match apart.from(0, STARTS - 1) {
            0 => faults_of_start(&mut apart, &names),
            _ => Vec::new(),
        };
        Self { seed, layout, job, params, faults, at_start }
    }
}

impl Names {
    fn of(clusters: &[SimulatedCluster]) -> Self {
        let of_cluster: Vec<Vec<NodeId>> =
            clusters.iter().map(|c| node_names(&c.name, c.nodes).collect()).collect();
        Self {
            clusters: clusters.iter().map(|place| place.name.clone()).collect(),
            nodes: of_cluster.concat(),
            of_cluster,
        }
    }
}

/// A short fault for brief jobs: it affects the messages of a start and an end.
fn brief_fault(draw: &mut Draw, names: &Names) -> Fault {
    // A grid of one cluster has only the link to its head.
    let (a, b) = match names.clusters.len() {
        1 => (names.clusters[0].clone(), HEAD_CLUSTER.into()),
        _ => pair(draw, names, true),
    };
    match draw.from(0, 9) {
        0 => Fault::Kill(draw.of(&names.nodes).clone()),
        1 => Fault::KillRole(FaultRole::Root),
        2 | 3 => Fault::Cut(a, b, draw.millis(20, 6000)),
        4 | 5 => Fault::OneWay(a, b, draw.millis(20, 6000)),
        6 => {
            let line = LinkProfile::default().delay(draw.millis(10, 800));
            Fault::Line(a, b, line.rate(*draw.of(&[20_000, 10_000_000])), draw.millis(500, 5000))
        }
        7 | 8 => {
            let delay = draw.millis(20, 800);
            let line = LinkProfile::default().delay(delay).jitter(delay).reorder(true);
            Fault::Reorder(a, b, line, draw.millis(500, 5000))
        }
        _ => Fault::Stop(draw.some(&names.nodes, 2), draw.millis(10, 6000)),
    }
}

/// One history in this many contains the rare sequence of [`taken_for_dead`].
const TAKEN_FOR_DEAD: u64 = 5;

/// One history in this many has faults while its job starts.
const STARTS: u64 = 3;

/// One to three faults within the time that a start takes: a few round trips.
fn faults_of_start(draw: &mut Draw, names: &Names) -> Vec<(Duration, Fault)> {
    let mut faults: Vec<(Duration, Fault)> = (0..draw.from(1, 3))
        .map(|_| {
            let at = draw.millis(0, 300);
            let fault = match draw.from(0, 7) {
                0 | 1 => Fault::Kill(draw.of(&names.nodes).clone()),
                2 => Fault::KillRole(FaultRole::Root),
                3 => Fault::KillRole(FaultRole::Cluster(draw.of(&names.clusters).clone())),
                4 => Fault::KillAgain(draw.of(&names.nodes).clone(), draw.millis(0, 500)),
                5 => {
                    let (a, b) = pair(draw, names, true);
                    Fault::Cut(a, b, draw.millis(100, 40_000))
                }
                6 => {
                    let (a, b) = pair(draw, names, true);
                    Fault::OneWay(a, b, draw.millis(100, 30_000))
                }
                _ => Fault::Stop(draw.some(&names.nodes, 3), draw.millis(10, 30_000)),
            };
            (at, fault)
        })
        .collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// A member that was taken for dead is chosen as the next root.
///
/// The sub-coordinator of the second cluster is stopped until the root has taken it for dead and is
/// lost itself. The head is cut off from the root and has not received the report of its death. It
/// chooses this node as the successor of the root. Nodes that know of its death then see it as a
/// member again, in the same incarnation.
fn taken_for_dead(draw: &mut Draw, names: &Names, span: u64) -> Vec<(Duration, Fault)> {
    let [home, second, ..] = &names.clusters[..] else { return Vec::new() };
    let at = draw.millis(100, span / 2 + 100);
    // Its workers miss it after 2.9 s.
    let killed = draw.millis(3100, 4200);
    let stands = killed + draw.millis(100, 1500);
    let cut = Fault::Cut(home.clone(), HEAD_CLUSTER.into(), killed + draw.millis(0, 3000));
    let stands = Fault::StopRole(FaultRole::Cluster(second.clone()), stands);
    vec![(at, cut), (at, stands), (at + killed, Fault::KillRole(FaultRole::Root))]
}

fn layout(draw: &mut Draw, seed: u64) -> Layout {
    let count = draw.from(3, 8);
    let mut left = draw.from(count, NODES_MAX) - count;
    let clusters = (0..count).map(|at| {
        let more = if at + 1 == count { left } else { draw.from(0, left.min(3)) };
        left -= more;
        SimulatedCluster {
            name: format!("c{at}").into(),
            nodes: 1 + more as u32,
            machine: Machine {
                threads: if draw.from(0, 3) == 0 { 2 } else { 1 },
                speed: draw.from(5, 20) as f64 / 10.0,
            },
            unequal_threads: None,
        }
    });
    let clusters = clusters.collect();
    let between = LinkProfile::default()
        .delay(draw.millis(1, 60))
        .jitter(draw.millis(0, 5))
        .loss(if draw.from(0, 2) == 0 { 0.005 } else { 0.0 });
    // On one grid in four, messages often arrive in reverse order. Delays differ so much that a
    // restarted process can speak before the last messages of its former incarnation arrive.
    let between = match draw.from(0, 3) {
        0 => between.clone().jitter(Duration::from_micros(between.delay_us)).reorder(true),
        _ => between,
    };
    // Links expire after members, or before them: then no member is lost, but messages are.
    let idle_timeout = Duration::from_millis(*draw.of(&[800, 1500, 3000, 15_000, 15_000]));
    Layout {
        clusters,
        network: MemoryConfig { between, idle_timeout, ..MemoryConfig::default() },
        seed,
        leave_within: Duration::from_secs(30),
        stoppable: true,
    }
}

/// The maximum bytes of all results where delays vary by as much as they are. More would pass, but
/// take longer than a job may after its last fault.
const JITTERY_BYTES: u64 = 300_000_000;

fn job(draw: &mut Draw, jittery: bool) -> HistoryJob {
    let leaves = draw.from(32, 160);
    let leaf_us = draw.from(20_000, 150_000);
    let rounds = draw.from(2, 6) as u32;
    if draw.from(0, 2) == 0 {
        let saves = draw.from(0, 1) == 0;
        return HistoryJob::Marked(Marked { rounds, leaves: leaves as u32, leaf_us, saves });
    }
    let most = JITTERY_BYTES / (leaves * u64::from(rounds));
    let most = if jittery { u32::try_from(most).unwrap_or(u32::MAX) } else { u32::MAX };
    HistoryJob::Model(ModelledJob {
        shape: *draw.of(&[WorkDivision::Even, WorkDivision::Uneven]),
        rounds,
        leaves: leaves as u32,
        work_us: leaves * leaf_us,
        spread: 500,
        serial_us: *draw.of(&[0, 200_000]),
        each_us: 10_000,
        state_bytes: *draw.of(&[0, 0, 1000, 200_000]),
        result_bytes: most.min(*draw.of(&[1000, 100_000, 5_000_000])),
        checkpoint_bytes: *draw.of(&[0, 100_000]),
        ..ModelledJob::default()
    })
}

/// Short enough that even one slow node that is left completes it in time.
fn summed(draw: &mut Draw) -> HistoryJob {
    HistoryJob::Summed(Summed {
        iterations: draw.from(2, 8) as u32,
        tasks: draw.from(4, 24) as u32,
        blocks: draw.from(1, 5) as u32,
        block_us: draw.from(20_000, 100_000),
        warm: *draw.of(&[100, 50, 10]),
        saves: draw.from(0, 2) as u32,
        serial_us: *draw.of(&[0, 200_000]),
        equal_split: false,
        isolate: draw.from(0, 2) == 0,
        ..Summed::SMALL
    })
}

fn role(draw: &mut Draw, names: &Names) -> FaultRole {
    match draw.from(0, 2) {
        0 => FaultRole::Root,
        1 => FaultRole::Cluster(draw.of(&names.clusters).clone()),
        _ => FaultRole::Thief,
    }
}

/// Two clusters; with `head` the second may be the head's.
fn pair(draw: &mut Draw, names: &Names, head: bool) -> (ClusterId, ClusterId) {
    let all = &names.clusters;
    let first = draw.from(0, all.len() as u64 - 1) as usize;
    let other = draw.from(1, all.len() as u64 - 1 + u64::from(head)) as usize;
    let second = match all.len() - other {
        0 => ClusterId::from(HEAD_CLUSTER),
        _ => all[(first + other) % all.len()].clone(),
    };
    (all[first].clone(), second)
}

fn fault(draw: &mut Draw, names: &Names) -> Fault {
    match draw.from(0, 19) {
        0 | 1 => Fault::Kill(draw.of(&names.nodes).clone()),
        2 | 3 => Fault::KillRole(role(draw, names)),
        4 => Fault::KillAgain(draw.of(&names.nodes).clone(), draw.millis(0, 3000)),
        5 => {
            let nodes = draw.of(&names.of_cluster);
            let nodes = match draw.from(0, 1) {
                0 => nodes.clone(),
                _ => vec![draw.of(nodes).clone()],
            };
            Fault::Off(nodes, draw.millis(500, 40_000))
        }
        6 => {
            let (a, b) = pair(draw, names, true);
            Fault::Cut(a, b, draw.millis(100, 40_000))
        }
        7 => {
            let (a, b) = pair(draw, names, true);
            Fault::OneWay(a, b, draw.millis(100, 30_000))
        }
        8 => {
            let (a, b) = pair(draw, names, false);
            let line = LinkProfile::default()
                .delay(draw.millis(10, 400))
                .loss(*draw.of(&[0.0, 0.02, 0.2]))
                .rate(*draw.of(&[20_000, 200_000, 10_000_000]));
            Fault::Line(a, b, line, draw.millis(1000, 30_000))
        }
        9 => {
            let (a, b) = pair(draw, names, true);
            let delay = draw.millis(20, 300);
            let line = LinkProfile::default().delay(delay).jitter(delay).reorder(true);
            Fault::Reorder(a, b, line, draw.millis(1000, 20_000))
        }
        10 => {
            let (a, b) = pair(draw, names, false);
            let share = *draw.of(&[0.1, 0.5, 1.0]);
            Fault::Repeat(a, b, share, draw.millis(1, 5000), draw.millis(2000, 30_000))
        }
        11 => {
            let share = *draw.of(&[0.0, 0.05, 0.3]);
            Fault::Slow(draw.of(&names.nodes).clone(), share, draw.millis(500, 15_000))
        }
        12..=15 => {
            let lasts = match draw.from(0, 3) {
                // All members take it for dead, or none does.
                0 => draw.millis(10, 1000),
                1 | 2 => draw.millis(1000, 14_000),
                _ => draw.millis(14_000, 40_000),
            };
            match draw.from(0, 1) {
                0 => Fault::StopRole(role(draw, names), lasts),
                _ => Fault::Stop(draw.some(&names.nodes, 3), lasts),
            }
        }
        16 => {
            let mut at = Duration::ZERO;
            let lines: Vec<_> = (0..draw.from(2, 5)).map(|_| pair(draw, names, true)).collect();
            let mut cuts: Vec<Cut> = lines
                .into_iter()
                .map(|(a, b)| {
                    at += draw.millis(10, 2000);
                    Cut { a, b, from: at, until: Duration::ZERO }
                })
                .collect();
            // Restored one by one, in another order.
            let order = draw.some(&(0..cuts.len()).collect::<Vec<_>>(), cuts.len());
            let rest: Vec<_> = (0..cuts.len()).filter(|cut| !order.contains(cut)).collect();
            at += draw.millis(0, 10_000);
            for cut in order.into_iter().chain(rest) {
                at += draw.millis(10, 2000);
                cuts[cut].until = at;
            }
            Fault::Swizzle(cuts)
        }
        17 => {
            let nodes = draw.some(&names.nodes, names.nodes.len() / 3);
            Fault::Flap(nodes, (0..draw.from(2, 6)).map(|_| draw.millis(1, 1500)).collect())
        }
        _ => {
            let nodes = draw.some(&names.nodes, names.nodes.len() / 2);
            Fault::Drain(nodes, draw.millis(1000, 20_000))
        }
    }
}
