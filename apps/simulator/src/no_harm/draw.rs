//! Draws a grid, a job and its faults from a seed, as the text of a scenario file. This module does
//! not run it.
//!
//! Sizes are bounded so that a run takes a fraction of a second: [`THREADS_MAX`], [`NODES_MAX`],
//! [`LEAVES_MAX`], [`NODE_SECONDS_MAX`] and [`PAYLOAD_MAX`].

use std::fmt::Write;
use std::time::Duration;

use springtide_runtime::random::SplitMix;

/// The maximum number of threads of a grid.
const THREADS_MAX: f64 = 160.0;
/// The maximum number of threads of a host.
const HOST_MAX: f64 = 128.0;
/// The maximum number of nodes of a grid.
const NODES_MAX: u32 = 24;
/// The maximum number of leaves that a run executes.
const LEAVES_MAX: f64 = 10_000.0;
/// The maximum product of nodes and expected seconds of the run on the initial nodes.
const NODE_SECONDS_MAX: f64 = 12_000.0;
/// The maximum number of bytes that all nodes get for data in a run.
const PAYLOAD_MAX: f64 = 5e8;
/// The least expected time of a run, in seconds, unless the job is to be shorter than any reaction.
const SPAN_MIN: f64 = 120.0;
/// The extremes of bandwidths, in bytes a second: 100 kB/s and 10 Gb/s.
const BANDWIDTHS: (f64, f64) = (1e5, 1.25e9);
/// The time limit of a run, as a multiple of its expected time, and the least one.
const LIMIT: (f64, f64) = (12.0, 600.0);

/// A scenario that was drawn from a seed.
#[derive(Clone, Debug)]
pub struct NoHarmDraw {
    /// The seed that it was drawn from; it also seeds all random numbers of its runs.
    pub seed: u64,
    /// The text of the scenario file.
    pub text: String,
}

struct Draw(SplitMix);

impl Draw {
    /// A number from `low` to `high`, both included.
    fn from(&mut self, low: u32, high: u32) -> u32 {
        low + self.0.below((high.max(low) - low) as usize + 1) as u32
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.below(all.len())]
    }

    /// Whether an event of this probability occurs.
    fn chance(&mut self, probability: f64) -> bool {
        self.0.unit() < probability
    }

    /// A number between two positive ones, whose logarithm is uniform.
    fn log(&mut self, low: f64, high: f64) -> f64 {
        low * (high.max(low) / low).powf(self.0.unit())
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.unit()
    }

    /// A bandwidth in bytes a second: mostly that of a network in use, sometimes any.
    fn bandwidth(&mut self) -> f64 {
        match self.from(0, 3) {
            0 => self.log(BANDWIDTHS.0, BANDWIDTHS.1),
            _ => self.log(5e6, BANDWIDTHS.1),
        }
    }
}

fn rate(bytes_per_second: f64) -> String {
    format!("\"{:.0}kB/s\"", bytes_per_second / 1e3)
}

fn time(seconds: f64) -> String {
    match Duration::from_secs_f64(seconds).as_micros() {
        micros if micros >= 10_000_000 => format!("\"{}ms\"", micros / 1000),
        micros => format!("\"{micros}us\""),
    }
}

/// A drawn cluster.
struct Cluster {
    nodes: u32,
    /// Threads of the nodes in turn.
    threads: Vec<u32>,
    speed: f64,
    start: u32,
    later: u32,
    uplink: Option<f64>,
}

impl Cluster {
    fn threads_of(&self, nodes: u32) -> u32 {
        (0..nodes as usize).map(|node| self.threads[node % self.threads.len()]).sum()
    }

    /// The initial nodes' work in a second.
    fn power(&self) -> f64 {
        f64::from(self.threads_of(self.start)) * self.speed
    }
}

impl NoHarmDraw {
    /// Draws the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut draw = Draw(SplitMix::with_text(seed, "no harm"));
        let mut clusters = clusters(&mut draw);
        add_great_host(seed, &mut clusters);
        choose_start(&mut draw, &mut clusters);
        let mut text = format!("name = \"no-harm-{seed}\"\n");
        let span = job(&mut draw, &clusters, &mut text);
        links(&mut draw, &clusters, &mut text);
        for (index, cluster) in clusters.iter().enumerate() {
            let Cluster { nodes, threads, speed, start, later, uplink } = cluster;
            let _ = write!(
                text,
                "\n[[cluster]]\nname = \"c{index}\"\nnodes = {nodes}\nstart = {start}\n\
                 speed = {speed}\n"
            );
            let _ = match &threads[..] {
                [all] => writeln!(text, "threads = {all}"),
                unequal => writeln!(text, "unequal_threads = {unequal:?}"),
            };
            if *later > 0 {
                let _ = writeln!(text, "later = {later}");
            }
            if let Some(uplink) = uplink {
                let _ = writeln!(text, "uplink = {}", rate(*uplink));
            }
        }
        events(&mut draw, &clusters, span, &mut text);
        Self { seed, text }
    }
}

fn clusters(draw: &mut Draw) -> Vec<Cluster> {
    let count = draw.of(&[1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8, 10, 12]);
    let spread = draw.of(&[1.0, 1.0, 2.0, 4.0, 8.0]);
    let mut threads_left = draw.log(f64::from(4 * count), THREADS_MAX);
    let mut nodes_left = NODES_MAX;
    let mut all = Vec::new();
    for index in 0..count {
        let others = count - index - 1;
        let share = threads_left / f64::from(others + 1) * draw.of(&[0.5, 1.0, 1.0, 2.0]);
        let share = share.clamp(1.0, (threads_left - f64::from(others)).max(1.0));
        let size = draw.log(1.0, share.min(HOST_MAX));
        let nodes = (share / size * draw.log(0.3, 1.0)).round() as u32;
        let nodes = nodes.clamp(1, nodes_left - others);
        let unequal = nodes > 1 && draw.chance(0.4);
        let threads = if unequal {
            let kinds = draw.from(2, nodes.min(4));
            let most = (2.0 * size).min(HOST_MAX);
            (0..kinds).map(|_| draw.log(1.0, most).round() as u32).collect()
        } else {
            vec![size.round() as u32]
        };
        let speed = (draw.log(1.0, spread) * 100.0).round() / 100.0;
        let uplink = draw.chance(0.4).then(|| draw.bandwidth());
        let cluster = Cluster { nodes, threads, speed, start: 0, later: 0, uplink };
        threads_left = (threads_left - f64::from(cluster.threads_of(nodes))).max(1.0);
        nodes_left -= nodes;
        all.push(cluster);
    }
    all
}

/// Makes one host of nearly [`HOST_MAX`] threads of a cluster, in one of fifty draws.
fn add_great_host(seed: u64, clusters: &mut [Cluster]) {
    // Numbers of its own, so that the other draws do not depend on it.
    let mut draw = Draw(SplitMix::with_text(seed, "great host"));
    if draw.chance(0.02) {
        let index = draw.from(0, clusters.len() as u32 - 1) as usize;
        let threads = draw.from(100, HOST_MAX as u32);
        (clusters[index].nodes, clusters[index].threads) = (1, vec![threads]);
    }
}

/// Chooses the nodes on which the job starts, and those that are unavailable at first.
fn choose_start(draw: &mut Draw, clusters: &mut [Cluster]) {
    let count = clusters.len() as u32;
    let first = draw.from(0, count - 1);
    let (used, some) = match draw.from(0, 7) {
        0 => (count, false),
        1 | 2 => (draw.from(1, count), false),
        3..=5 => (draw.from(1, count), true),
        6 => (1, true),
        _ => (0, true),
    };
    for place in 0..count {
        let cluster = &mut clusters[((first + place) % count) as usize];
        cluster.start = if some { draw.from(1, cluster.nodes) } else { cluster.nodes };
        if place >= used {
            // Without a used cluster, the job starts on one node.
            cluster.start = u32::from(used == 0 && place == 0);
        }
        let free = cluster.nodes - cluster.start;
        if free > 0 && draw.chance(0.15) {
            cluster.later = draw.from(1, free);
        }
    }
}

/// Draws the job, and returns its expected time on the initial nodes in seconds.
fn job(draw: &mut Draw, clusters: &[Cluster], text: &mut String) -> f64 {
    let nodes: u32 = clusters.iter().map(|cluster| cluster.nodes).sum();
    let power: f64 = clusters.iter().map(Cluster::power).sum();
    let threads: u32 = clusters.iter().map(|cluster| cluster.threads_of(cluster.start)).sum();
    let kind = draw.of(&["barnes-hut", "search", "search", "master-worker", "spmd"]);
    // Leaves a thread: from too few for all threads to many.
    let grain = draw.log(0.5, 24.0);
    let leaves = (f64::from(threads) * grain).clamp(4.0, LEAVES_MAX / 8.0);
    // Each process of "spmd" costs a message to some others in each step.
    let leaf_cost = if kind == "spmd" { f64::from(threads) * 4.0 } else { leaves };
    let iterations_max = LEAVES_MAX / leaf_cost;
    let iteration = draw.log(0.1, 1000.0);
    let iteration = match draw.from(0, 9) {
        0 => iteration,
        _ => iteration.max(SPAN_MIN / iterations_max),
    };
    let span = draw.log(SPAN_MIN, 3000.0).min(NODE_SECONDS_MAX / f64::from(nodes));
    let iterations = (span / iteration).max(3.0).min(iterations_max).round().max(2.0);
    let serial = iteration * draw.of(&[0.0, 0.0, 0.0, 0.02, 0.1, 0.3]);
    let work = (iteration - serial) * power;
    let _ = write!(
        text,
        "\n[app]\nkind = \"{kind}\"\niterations = {iterations}\nwork = {}\nserial = {}\n\
         leaves = {leaves:.0}\n",
        time(work),
        time(serial)
    );
    if matches!(kind, "barnes-hut" | "search") {
        let _ = writeln!(text, "spread = {}", draw.of(&[0.0, 0.3, 0.5, 1.0]));
        if draw.chance(0.3) {
            let _ = writeln!(text, "declared = false");
        }
    }
    if kind != "search" && draw.chance(0.7) {
        let most = PAYLOAD_MAX / 28.0 / iterations / f64::from(nodes);
        let bodies = draw.log(100.0, most.min(300_000.0));
        let _ = writeln!(text, "bodies = {bodies:.0}");
        if kind != "master-worker" && draw.chance(0.3) {
            let _ = writeln!(text, "each = {}", time(iteration * draw.between(0.0, 0.1)));
        }
    }
    if iterations >= 6.0 && draw.chance(0.3) {
        let from = draw.from(2, iterations as u32 / 2 + 1);
        let then = (leaves * draw.of(&[0.02, 0.05, 0.1, 0.3, 3.0])).clamp(1.0, LEAVES_MAX / 8.0);
        let _ = write!(text, "then_from = {from}\nthen_leaves = {then:.0}\n");
        if draw.chance(0.5) {
            let _ = writeln!(text, "then_until = {}", draw.from(from + 1, iterations as u32));
        }
    }
    let span = iterations * iteration;
    let period = if draw.chance(0.7) { 10.0 } else { draw.log(1.0, 60.0).round() };
    let limit = (LIMIT.0 * span).max(LIMIT.1);
    let _ = write!(text, "\n[job]\nperiod = {}\nlimit = {}\n", time(period), time(limit));
    span
}

fn links(draw: &mut Draw, clusters: &[Cluster], text: &mut String) {
    let line = |draw: &mut Draw, text: &mut String| {
        let _ = writeln!(text, "rtt = {}", time(draw.log(1e-3, 0.2)));
        let bandwidth = draw.bandwidth();
        let _ = writeln!(text, "bandwidth = {}", rate(bandwidth));
        if draw.chance(0.3) {
            let _ = writeln!(text, "bandwidth_back = {}", rate(draw.bandwidth()));
        }
        if draw.chance(0.2) {
            let _ = writeln!(text, "loss = {}", draw.of(&[1e-4, 1e-3, 5e-3]));
        }
    };
    text.push_str("\n[wide]\n");
    line(draw, text);
    let mut pairs: Vec<(usize, usize)> =
        (0..clusters.len()).flat_map(|a| (0..a).map(move |b| (b, a))).collect();
    let count = draw.of(&[0, 0, 1, 2, 4]).min(pairs.len());
    for _ in 0..count {
        let (a, b) = pairs.swap_remove(draw.from(0, pairs.len() as u32 - 1) as usize);
        let _ = write!(text, "\n[[link]]\nbetween = [\"c{a}\", \"c{b}\"]\n");
        line(draw, text);
    }
}

fn events(draw: &mut Draw, clusters: &[Cluster], span: f64, text: &mut String) {
    let head = |text: &mut String, what: &str, at: f64| {
        let _ = write!(text, "\n[[event]]\nwhat = \"{what}\"\nat = {}\n", time(at));
    };
    for (index, _) in clusters.iter().enumerate().filter(|(_, cluster)| cluster.later > 0) {
        head(text, "free", draw.between(0.0, 0.7 * span));
        let _ = writeln!(text, "cluster = \"c{index}\"");
    }
    // The last cluster in use loses no node, so that a job can always end.
    let spared = clusters.iter().rposition(|cluster| cluster.start > 0).unwrap_or_default();
    for _ in 0..draw.of(&[0, 0, 0, 1, 1, 2, 3]) {
        let at = draw.between(0.0, 0.8 * span);
        let index = draw.from(0, clusters.len() as u32 - 1) as usize;
        let other = (index + 1 + draw.from(0, clusters.len() as u32) as usize) % clusters.len();
        let nodes = draw.from(1, clusters[index].nodes);
        let lasts = draw.between(0.05 * span, 0.5 * span);
        let is_alone = other == index;
        let kind = match draw.from(0, 11) {
            0 | 1 => "quota",
            2 | 3 => "load",
            4 => "flap",
            5 => "uplink",
            6 if !is_alone => "link",
            7 if !is_alone => "cut",
            8 | 9 if index != spared => "crash",
            10 if index != spared => "claim",
            11 => "kill",
            _ => "load",
        };
        let on = |text: &mut String| {
            let _ = write!(text, "cluster = \"c{index}\"\nnodes = {nodes}\n");
        };
        let ends = |text: &mut String| {
            let _ = writeln!(text, "duration = {}", time(lasts));
        };
        match kind {
            "quota" => {
                head(text, "load", 0.0);
                on(text);
                let _ = writeln!(text, "share = {}", draw.of(&[0.1, 0.25, 0.5, 0.8]));
            }
            "load" => {
                head(text, "load", at);
                on(text);
                let _ = writeln!(text, "share = {}", draw.of(&[0.05, 0.2, 0.5, 0.7]));
                if draw.chance(0.5) {
                    ends(text);
                }
            }
            "flap" => {
                head(text, "load", at);
                on(text);
                let pause = time(draw.log(5.0, 100.0));
                let _ = write!(text, "share = 0.3\nduration = {pause}\ninterval = {pause}\n");
            }
            "uplink" => {
                head(text, "uplink", at);
                let bandwidth = rate(draw.log(BANDWIDTHS.0, 1e7));
                let _ = write!(text, "cluster = \"c{index}\"\nbandwidth = {bandwidth}\n");
                if draw.chance(0.5) {
                    ends(text);
                }
            }
            "link" | "cut" => {
                head(text, kind, at);
                let _ = writeln!(text, "between = [\"c{index}\", \"c{other}\"]");
                if kind == "link" {
                    let _ = writeln!(text, "bandwidth = {}", rate(draw.log(BANDWIDTHS.0, 1e7)));
                    let _ = writeln!(text, "rtt = {}", time(draw.log(0.01, 0.5)));
                    ends(text);
                } else {
                    let _ = writeln!(text, "duration = {}", time(draw.log(1.0, 90.0)));
                }
            }
            "crash" | "claim" => {
                head(text, kind, at);
                on(text);
                if kind == "claim" {
                    let _ = writeln!(text, "deadline = \"20s\"");
                }
                if draw.chance(0.5) {
                    ends(text);
                }
            }
            _ => {
                head(text, "kill", at);
                on(text);
            }
        }
    }
}
