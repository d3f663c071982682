//! Many jobs on real Slurm clusters: nodes are batch jobs, held while jobs need them, and a killed
//! head recovers.
//!
//! The clusters are those of `springtide_tests::slurm`; without Slurm these tests say so and pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use springtide_actors::store::{SCHEMA, SETTINGS, records_dir};
use springtide_runtime::records::{Disk, read};
use springtide_tests::slurm::SlurmLab;

use crate::drains::Up;
use crate::jobs::{job, object, size, status};
use crate::support::{LONG, RunningCommand, finish, program, text, until};

/// Clusters of the laboratory and their processors.
const CLUSTERS: [(&str, u32); 2] = [("vu", 5), ("uva", 3)];

/// The records of the scheduler.
fn entries(dir: &Path) -> Vec<Value> {
    let contents = read(&Disk, &records_dir(dir), SETTINGS).unwrap().unwrap_or_default();
    contents.iter().map(|record| record.decode(SCHEMA).unwrap()).collect()
}

struct SlurmGrid {
    lab: SlurmLab,
    up: Up,
}

impl SlurmGrid {
    fn start() -> Option<Self> {
        let lab = match SlurmLab::start(&CLUSTERS) {
            Ok(lab) => lab,
            Err(skipped) => {
                println!("{skipped}");
                return None;
            }
        };
        // The efficiency depends on the load of this host, so that it is not measured.
        let mut config =
            "[scheduling]\npolicy = \"egs\"\npoll = \"500ms\"\nscan_interval = \"500ms\"\n\
            [adaptation]\nmode = \"static\"\n"
                .to_owned();
        for (name, nodes) in CLUSTERS {
            let conf = lab.conf(name);
            config += &format!(
                "[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\nprovider = \"slurm\"\n\
                [cluster.slurm]\nconf = \"{}\"\npoll = \"500ms\"\nkeep = \"1s\"\n",
                conf.display()
            );
        }
        let up = Up::by(&config);
        Some(Self { lab, up })
    }

    fn submit(&self, line: &[&str]) -> String {
        let submitted = job(&self.up, &[&["submit"], line].concat());
        assert_eq!(submitted.code, Some(0), "{}", submitted.err);
        submitted.out.trim().trim_start_matches("job-").to_owned()
    }

    /// The batch jobs of a cluster, by name, state and number.
    fn queue(&self, cluster: &str) -> Vec<[String; 3]> {
        queue(&self.lab, cluster, &[])
    }

    /// Checks with the batch system that no node is held twice and none has failed. The scheduler
    /// must give jobs no more processors of a cluster than run there.
    fn check(&self) {
        let running = || -> BTreeMap<&str, BTreeSet<String>> {
            let of = |cluster| {
                let rows = self.queue(cluster).into_iter();
                rows.filter(|[name, state, _]| is_ours(name) && state == "R").map(|[name, ..]| name)
            };
            CLUSTERS.iter().map(|(cluster, _)| (*cluster, of(cluster).collect())).collect()
        };
        let before = running();
        // All jobs in one answer: between two answers, processors may move from one to another.
        let list = job(&self.up, &["list", "--json"]);
        // The head may be down.
        let list: Value = serde_json::from_str(&list.out).unwrap_or_default();
        let after = running();
        for (cluster, _) in CLUSTERS {
            let jobs = list["jobs"].as_array().into_iter().flatten();
            let used: u64 = jobs.filter_map(|job| job["sizes"][cluster].as_u64()).sum();
            // Jobs that started or ended meanwhile are in one of both lists.
            let there = before[cluster].union(&after[cluster]).count() as u64;
            assert!(used <= there, "{used} of {cluster} are given away: {before:?} {after:?}");
        }
        for (cluster, _) in CLUSTERS {
            let all = queue(&self.lab, cluster, &["--states=all"]);
            let failed = all.iter().find(|[name, state, _]| is_ours(name) && state == "F");
            assert_eq!(failed, None, "{all:?}");
            let queue = self.queue(cluster);
            let mut names = BTreeSet::new();
            let twice = queue.iter().find(|[name, ..]| is_ours(name) && !names.insert(name));
            assert_eq!(twice, None, "held twice: {queue:?}");
        }
    }

    /// The number of epochs given out for a job: a job that continued has one.
    fn epochs(&self, number: &str) -> usize {
        let of = |entry: &&Value| {
            entry["kind"] == "epoch" && entry["job"].as_u64() == number.parse().ok()
        };
        entries(&self.up.dir).iter().filter(of).count()
    }

    fn done(&self, number: &str) -> Value {
        let start = Instant::now();
        while status(&self.up, number)["state"] != "done" {
            self.check();
            assert!(
                start.elapsed() < Duration::from_secs(240),
                "{}",
                job(&self.up, &["why", number]).out
            );
            std::thread::sleep(Duration::from_millis(300));
        }
        object(&job(&self.up, &["result", number, "--json"]))
    }

    /// Waits until a job has at least this many processors.
    fn grows(&self, number: &str, to: u64) {
        let start = Instant::now();
        while size(&self.up, number) < to {
            let output = || {
                self.why(number) + &CLUSTERS.map(|(c, _)| format!("{:?}", self.queue(c))).join(" ")
            };
            let ended = status(&self.up, number)["state"] == "done";
            assert!(
                !ended && start.elapsed() < LONG,
                "it has not grown to {to}: {}\n{}",
                output(),
                self.up.output()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn empty(&self) {
        for (cluster, _) in CLUSTERS {
            until("every stub is gone", || self.queue(cluster).is_empty());
        }
    }

    fn why(&self, number: &str) -> String {
        job(&self.up, &["why", number]).out
    }
}

/// The batch jobs of a cluster, by name, state and number.
fn queue(lab: &SlurmLab, cluster: &str, more: &[&str]) -> Vec<[String; 3]> {
    let out = lab.user(cluster, "squeue", &[&["-h", "-o", "%t %i %j"], more].concat());
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let [state, number, name] = [(); 3].map(|()| words.next().unwrap_or_default());
        [name, state, number]
    };
    out.lines().map(line).collect()
}

/// Whether a batch job is a node, and not a local user's.
fn is_ours(name: &str) -> bool {
    name.starts_with("springtide.")
}

/// Long enough that batch jobs start meanwhile on a busy host: about 10 s of one processor.
fn nbody(seed: &'static str) -> [&'static str; 7] {
    ["barnes-hut", "--bodies", "8000", "--steps", "1000", "--seed", seed]
}

/// In the larger cluster, independent of the order of reports.
const MALLEABLE: [&str; 8] = ["--kind", "malleable", "--min", "1", "--max", "5", "--on", "vu"];

fn alone(seed: &'static str) -> Value {
    let output =
        finish(program(&[&["run"], &nbody(seed)[..], &["--sequential", "--json"]].concat()));
    object(&output)["checksum"].clone()
}

#[test]
fn jobs_grow_shrink_and_respect_local_users() {
    let Some(grid) = SlurmGrid::start() else { return };
    let first = grid.submit(&[&nbody("3")[..], &MALLEABLE].concat());
    grid.grows(&first, 5);
    grid.check();
    // A local user takes a processor by a plain batch job: the grid does not offer it.
    grid.lab.user("uva", "sbatch", &["-n1", "-o", "/dev/null", "--wrap", "exec sleep 600"]);
    until("the local user is seen", || {
        let plan =
            job(&grid.up, &["plan", "queens", "--kind", "rigid", "--min", "3", "--on", "uva"]);
        plan.out.contains("uva: has 2 idle")
            || plan.out.contains("2 are idle")
            || plan.out.contains("2 idle")
    });
    // A rigid job has room only where the first one runs.
    let rigid = grid.submit(&["queens", "--size", "11", "--kind", "rigid", "--min", "3"]);
    assert_eq!(grid.done(&rigid)["result"]["solutions"], 2680);
    let why = grid.why(&first);
    assert!(why.contains(&format!("makes room for job-{rigid}")), "{why}");
    assert_eq!(grid.done(&first)["checksum"], alone("3"));
    grid.lab.user("uva", "scancel", &["-u", "root"]);
    grid.empty();
    grid.up.end();
}

/// A batch system that does not answer, or answers nonsense, is reported and avoided: jobs run
/// elsewhere.
#[test]
fn a_cluster_whose_commands_fail_is_avoided_and_reports_why() {
    use std::os::unix::fs::PermissionsExt;
    let commands = tempfile::tempdir().unwrap();
    let fake = |script: &str| {
        for name in ["sinfo", "squeue", "sbatch", "scancel", "scontrol"] {
            let path = commands.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    };
    fake("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
    let up = Up::by(&format!(
        "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"\n\
        [[cluster]]\nname = \"ams\"\nnodes = 2\n\
        [[cluster]]\nname = \"vu\"\nnodes = 9\nprovider = \"slurm\"\n\
        [cluster.slurm]\ncommands = \"{}\"\npoll = \"300ms\"\nanswer_timeout = \"1s\"\n",
        commands.path().display()
    ));
    let plan = || job(&up, &["plan", "queens", "--kind", "rigid", "--min", "3"]).out;
    let output = "Unable to contact slurm controller";
    until("the failure is reported", || plan().contains(output));
    fake("echo what is this; echo '| | |'");
    until("nonsense is reported", || plan().contains("unintelligible output"));
    fake("exec sleep 60");
    until("the hang is reported", || plan().contains("did not answer within 1 s"));
    // Other clusters continue.
    let line = ["submit", "queens", "--size", "9", "--min", "1", "--max", "2"];
    assert_eq!(job(&up, &line).out, "job-1\n");
    let done = job(&up, &["result", "1", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(object(&done)["result"]["solutions"], 352, "{}", done.err);
    up.end();
}

/// The time at which the head is killed.
#[derive(Clone, Copy, Debug)]
enum KillTime {
    /// This time after the submission.
    After(u64),
    /// When the job computes on this many processors.
    Size(u64),
    /// When another job makes it shrink.
    Shrinks,
    /// After it has been cancelled.
    Cancelled,
}

/// Kills the head at a time and starts another: the job ends with the right result, and nothing
/// remains.
fn kill_head_at(moment: KillTime) {
    let Some(mut grid) = SlurmGrid::start() else { return };
    let first = grid.submit(&[&nbody("5")[..], &MALLEABLE].concat());
    let mut second = None;
    match moment {
        KillTime::After(ms) => std::thread::sleep(Duration::from_millis(ms)),
        KillTime::Size(count) => grid.grows(&first, count),
        KillTime::Shrinks => {
            grid.grows(&first, 5);
            second =
                Some(grid.submit(&["queens", "--size", "11", "--kind", "rigid", "--min", "4"]));
            until("it shrinks", || grid.why(&first).contains("makes room for"));
        }
        KillTime::Cancelled => {
            grid.grows(&first, 2);
            assert_eq!(job(&grid.up, &["cancel", &first]).code, Some(0));
        }
    }
    grid.up.kill_head();
    grid.check();
    grid.up.start_head();
    if matches!(moment, KillTime::Cancelled) {
        // The cancellation may have been lost with the head; then the job continues and is
        // cancelled again.
        until("it ends", || {
            let state = status(&grid.up, &first)["state"].clone();
            state == "cancelled"
                || state == "done"
                || job(&grid.up, &["cancel", &first]).code == Some(0)
        });
    } else {
        assert_eq!(grid.done(&first)["checksum"], alone("5"), "{moment:?}");
        // A job that computed when the head was killed has continued: the result alone does not
        // exclude a restart.
        if matches!(moment, KillTime::Size(_) | KillTime::Shrinks) {
            assert_eq!(grid.epochs(&first), 1, "{moment:?}: it restarted: {}", grid.up.output());
        }
    }
    if let Some(second) = second {
        assert_eq!(grid.done(&second)["result"]["solutions"], 2680);
    }
    let list = object(&job(&grid.up, &["list", "--json"]));
    let jobs = list["jobs"].as_array().unwrap().len();
    assert_eq!(jobs, if matches!(moment, KillTime::Shrinks) { 2 } else { 1 }, "{list}");
    grid.empty();
    grid.up.end();
}

#[test]
fn a_running_job_outlives_its_head() {
    kill_head_at(KillTime::Size(2));
}

/// A killed site process: its nodes are batch jobs and continue, and the next process takes them
/// over.
#[test]
fn a_killed_site_recovers_its_batch_jobs() {
    let lab = match SlurmLab::start(&[("vu", 3)]) {
        Ok(lab) => lab,
        Err(skipped) => return println!("{skipped}"),
    };
    let up = Up::by(&format!(
        "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"\n\
        [[cluster]]\nname = \"vu\"\nnodes = 3\nsite = \"own\"\nprovider = \"slurm\"\n\
        [cluster.slurm]\nconf = \"{}\"\npoll = \"300ms\"\nkeep = \"1s\"\n",
        lab.conf("vu").display()
    ));
    let site = |life: &str| {
        let logs = up.temp.path().join(life);
        fs::create_dir_all(&logs).unwrap();
        let file = up.dir.join("site/vu/site.toml");
        let line = ["site", "run", "-v", "--config", file.to_str().unwrap()];
        (RunningCommand::start(program(&line), &logs), logs.join("stderr.log"))
    };
    let (first, _) = site("first");
    let endless =
        ["submit", "queens", "--size", "18", "--kind", "malleable", "--min", "1", "--max", "3"];
    let submitted = job(&up, &endless);
    assert_eq!(submitted.out, "job-1\n", "{}", submitted.err);
    until("it has grown", || size(&up, "1") == 3);
    let before = queue(&lab, "vu", &[]);
    assert_eq!(before.len(), 3, "{before:?}");
    first.signal("KILL");
    drop(first);
    let (mut second, output) = site("second");
    until("they are taken over", || text(&output).matches("is taken over").count() == 3);
    // Longer than the time after which a late node is killed.
    std::thread::sleep(Duration::from_secs(32));
    assert_eq!((size(&up, "1"), queue(&lab, "vu", &[])), (3, before), "{}", text(&output));
    let log = entries(&up.dir);
    let epochs = log.iter().filter(|entry| entry["kind"] == "epoch").count();
    assert_eq!(epochs, 1, "{log:?}");
    // The site can still release them.
    assert_eq!(job(&up, &["cancel", "1"]).code, Some(0));
    until("every stub is gone", || queue(&lab, "vu", &[]).is_empty());
    second.signal("TERM");
    assert_eq!(second.wait().code(), Some(0));
    up.end();
}

/// Kills the head in the middle of each kind of operation, a dozen times: four minutes.
/// `cargo test -p springtide --test all slurm::a_head_that_is_killed -- --ignored --nocapture`
#[test]
#[ignore = "five minutes; its command is in its comment"]
fn a_head_that_is_killed_amid_anything_loses_nothing() {
    let after = [50, 300, 600, 900, 1300, 1800, 2500].map(KillTime::After);
    let sizes = [1, 5].map(KillTime::Size);
    for moment in after.into_iter().chain(sizes).chain([
        KillTime::Shrinks,
        KillTime::Shrinks,
        KillTime::Cancelled,
    ]) {
        println!("the head is killed: {moment:?}");
        kill_head_at(moment);
    }
}
