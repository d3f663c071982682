//! The cost of six idle node processes: processor time and resident memory, without a job and with
//! one that leaves them idle.
//!
//! `cargo bench -p springtide-tests --bench idle [-- SECONDS]`. Linux only: it reads `/proc`. This
//! program is a `springtide` command with one job of its own (decision 23). It starts `dev` with
//! itself as program, and the nodes are processes of it.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop};

const NODES: usize = 6;
/// Delay of the first sample, for the work of the start to end.
const SETTLE: Duration = Duration::from_secs(10);
const CPU_BAR: f64 = 0.01;
const MEMORY_BAR_KIB: u64 = 40 << 10;

/// A root that sleeps: the job's other nodes have nothing to steal.
#[derive(Args, Serialize, Deserialize)]
struct Rest {
    /// How long, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

impl Job for Rest {
    const NAME: &'static str = "rest";
    const ABOUT: &'static str = "a root that sleeps";

    fn register(_: &mut Registry) {}

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        for _ in 0..self.seconds {
            cx.spend_modelled_time(Duration::from_secs(1))?;
        }
        Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| ["dev", "node", "run", "up"].contains(&arg.as_str())) {
        return springtide::App::new("springtide-idle", env!("CARGO_PKG_VERSION"))
            .job::<Rest>()
            .main();
    }
    let seconds = args.iter().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(30);
    measure(Duration::from_secs(seconds))
}

fn measure(span: Duration) -> ExitCode {
    let dir = tempfile::tempdir().expect("a directory");
    let grid = dir.path().join("grid");
    let mut head = IdleGrid::start(&grid);
    let nodes = children_of(head.0.id());
    assert_eq!(nodes.len(), NODES, "node processes");
    std::thread::sleep(SETTLE);
    let mut met = report("free", head.0.id(), &nodes, span);
    let mut job = command()
        .args(["run", "rest", "--seconds"])
        .arg((span + 2 * SETTLE).as_secs().to_string())
        .arg("--config")
        .arg(grid.join("grid.toml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the job is submitted");
    std::thread::sleep(SETTLE);
    met &= report("idle in a running job", head.0.id(), &nodes, span);
    assert!(job.wait().expect("the job ends").success(), "the job failed");
    assert_eq!(children_of(head.0.id()), nodes, "no node was restarted meanwhile");
    head.end();
    println!("{}", if met { "bars met" } else { "A BAR WAS MISSED" });
    ExitCode::SUCCESS
}

fn command() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

/// A grid of the default shape; ended when dropped.
struct IdleGrid(Child);

impl IdleGrid {
    fn start(dir: &Path) -> Self {
        let mut child = command()
            .args(["dev", "--clusters", "3x2", "--dir"])
            .arg(dir)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the grid starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("grid: {line}");
                if line.contains("run jobs with") {
                    let _ = tx.send(());
                }
            }
        });
        let grid = Self(child);
        rx.recv_timeout(Duration::from_secs(60)).expect("the grid is up within a minute");
        grid
    }

    fn end(&mut self) {
        let pid = self.0.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

impl Drop for IdleGrid {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// The child processes of a process.
fn children_of(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in read_dir("/proc").expect("/proc is there").filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The name, in parentheses, may contain anything; the parent is the second field after it.
        let Ok(stat) = read_to_string(entry.path().join("stat")) else { continue };
        let of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if of.and_then(|of| of.parse().ok()) == Some(parent) {
            children.push(pid);
        }
    }
    children.sort_unstable();
    children
}

/// The resources that a process has used so far.
#[derive(Clone, Copy, Default)]
struct Used {
    cpu: Duration,
    /// The number of times that its threads went to sleep.
    sleeps: u64,
    resident_kib: u64,
    /// The part of the resident memory without a file.
    anonymous_kib: u64,
}

fn used(pid: u32) -> Used {
    let mut used = Used::default();
    let process = Path::new("/proc").join(pid.to_string());
    for task in read_dir(process.join("task")).expect("the process lives").filter_map(Result::ok) {
        let text = read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
        used.cpu += Duration::from_nanos(nanos.unwrap_or(0));
        used.sleeps += field(&task.path().join("status"), "voluntary_ctxt_switches:");
    }
    used.resident_kib = field(&process.join("status"), "VmRSS:");
    used.anonymous_kib = field(&process.join("status"), "RssAnon:");
    used
}

fn field(path: &Path, name: &str) -> u64 {
    let text = read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Prints the resources that the processes use over `span`. Returns whether the bars are met.
fn report(what: &str, head: u32, nodes: &[u32], span: Duration) -> bool {
    let sample = |pid: u32| (pid, used(pid));
    let pids = || nodes.iter().copied().chain([head]);
    let before: BTreeMap<u32, Used> = pids().map(sample).collect();
    let start = Instant::now();
    std::thread::sleep(span);
    let after: BTreeMap<u32, Used> = pids().map(sample).collect();
    let time = start.elapsed().as_secs_f64();
    let cpu = |pid: u32| (after[&pid].cpu - before[&pid].cpu).as_secs_f64() / time;
    let sleeps = |pid: u32| (after[&pid].sleeps - before[&pid].sleeps) as f64 / time;
    let cores: f64 = nodes.iter().map(|pid| cpu(*pid)).sum();
    let resident = nodes.iter().map(|pid| after[pid].resident_kib).max().unwrap_or(0);
    let anonymous = nodes.iter().map(|pid| after[pid].anonymous_kib).max().unwrap_or(0);
    let wakes: f64 = nodes.iter().map(|pid| sleeps(*pid)).sum();
    println!(
        "{what}, {time:.0} s: six nodes {:.3} % of a core together (bar: under {} %), {:.1} \
         wake-ups a second each",
        cores * 100.0,
        CPU_BAR * 100.0,
        wakes / nodes.len() as f64,
    );
    println!(
        "  resident at most {:.1} MiB a node, {:.1} of it anonymous (bar: under {} MiB)",
        resident as f64 / 1024.0,
        anonymous as f64 / 1024.0,
        MEMORY_BAR_KIB >> 10,
    );
    println!(
        "  the head in addition: {:.3} % of a core, {:.1} wake-ups a second, {:.1} MiB",
        cpu(head) * 100.0,
        sleeps(head),
        after[&head].resident_kib as f64 / 1024.0
    );
    cores < CPU_BAR && resident < MEMORY_BAR_KIB
}
