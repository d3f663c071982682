//! Many jobs on real Slurm clusters: nodes are batch jobs, held while jobs need them; and a head that is killed amid everything.
//!
//! The clusters are a laboratory of their own (`springtide_tests::slurm`); without Slurm these tests say so and pass.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use springtide_tests::slurm::SlurmLab;

use crate::drains::Up;
use crate::jobs::{job, object, size, status};
use crate::support::{finish, program, until};

/// Clusters of the laboratory and their processors.
const CLUSTERS: [(&str, u32); 2] = [("vu", 5), ("uva", 3)];

struct Grid {
    lab: SlurmLab,
    up: Up,
}

impl Grid {
    fn start() -> Option<Self> {
        let lab = match SlurmLab::start(&CLUSTERS) {
            Ok(lab) => lab,
            Err(skipped) => {
                println!("{skipped}");
                return None;
            }
        };
        let mut config =
            "[scheduling]\npolicy = \"egs\"\npoll = \"500ms\"\nscan_every = \"500ms\"\n\
                          [adaptation]\nmode = \"monitor\"\n[stats]\nperiod = \"1s\"\n"
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
        let told = job(&self.up, &[&["submit"], line].concat());
        assert_eq!(told.code, Some(0), "{}", told.err);
        told.out.trim().trim_start_matches("job-").to_owned()
    }

    /// Batch jobs of a cluster by name and state.
    fn queue(&self, cluster: &str) -> Vec<(String, String)> {
        let out = self.lab.user(cluster, "squeue", &["-h", "-o", "%t %j"]);
        let line = |line: &str| {
            let (state, name) = line.split_once(' ').unwrap();
            (name.to_owned(), state.to_owned())
        };
        out.lines().map(line).collect()
    }

    /// No node is held twice, and nobody has more than there is: by the batch system's own word.
    fn check(&self) {
        for (cluster, processors) in CLUSTERS {
            let queue = self.queue(cluster);
            let mut names: BTreeMap<&str, u32> = BTreeMap::new();
            for (name, state) in
                queue.iter().filter(|(name, _)| name.contains("vu-") || name.contains("uva-"))
            {
                assert!(state != "F", "{queue:?}");
                *names.entry(name).or_default() += 1;
            }
            assert!(names.values().all(|count| *count == 1), "held twice: {queue:?}");
            assert!(names.len() as u32 <= processors, "{queue:?}");
        }
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

    fn empty(&self) {
        for (cluster, _) in CLUSTERS {
            until("every stub is gone", || self.queue(cluster).is_empty());
        }
    }

    fn why(&self, number: &str) -> String {
        job(&self.up, &["why", number]).out
    }
}

fn nbody(seed: &'static str) -> [&'static str; 7] {
    ["barnes-hut", "--bodies", "8000", "--steps", "400", "--seed", seed]
}

fn alone(seed: &'static str) -> Value {
    let told = finish(program(&[&["run"], &nbody(seed)[..], &["--sequential", "--json"]].concat()));
    object(&told)["checksum"].clone()
}

#[test]
fn jobs_grow_into_what_is_free_and_shrink_for_others_and_local_users_are_seen() {
    let Some(grid) = Grid::start() else { return };
    let malleable = ["--kind", "malleable", "--min", "1", "--max", "5"];
    let first = grid.submit(&[&nbody("3")[..], &malleable].concat());
    until("it has grown", || size(&grid.up, &first) == 5);
    grid.check();
    // A local user takes a processor by a plain batch job: it is not offered to anybody.
    grid.lab.user("uva", "sbatch", &["-n1", "-o", "/dev/null", "--wrap", "exec sleep 600"]);
    until("the local user is seen", || {
        let plan =
            job(&grid.up, &["plan", "queens", "--kind", "rigid", "--min", "3", "--on", "uva"]);
        plan.out.contains("uva: has 2 idle")
            || plan.out.contains("2 are idle")
            || plan.out.contains("2 idle")
    });
    // A rigid job has room only where the first one is.
    let rigid = grid.submit(&["queens", "--size", "11", "--kind", "rigid", "--min", "3"]);
    assert_eq!(grid.done(&rigid)["result"]["solutions"], 2680);
    let why = grid.why(&first);
    assert!(why.contains(&format!("makes room for job-{rigid}")), "{why}");
    assert_eq!(grid.done(&first)["checksum"], alone("3"));
    grid.lab.user("uva", "scancel", &["-u", "root"]);
    grid.empty();
    grid.up.end();
}

/// A batch system that does not answer, or says nonsense, is told of and passed over: jobs run elsewhere.
#[test]
fn a_cluster_whose_commands_fail_is_passed_over_and_says_why() {
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
        "[scheduling]\npoll = \"300ms\"\nscan_every = \"300ms\"\n\
         [[cluster]]\nname = \"ams\"\nnodes = 2\n\
         [[cluster]]\nname = \"vu\"\nnodes = 9\nprovider = \"slurm\"\n\
         [cluster.slurm]\ncommands = \"{}\"\npoll = \"300ms\"\nanswer_within = \"1s\"\n",
        commands.path().display()
    ));
    let plan = || job(&up, &["plan", "queens", "--kind", "rigid", "--min", "3"]).out;
    let told = "Unable to contact slurm controller";
    until("it is told what fails", || plan().contains(told));
    fake("echo what is this; echo '| | |'");
    until("nonsense is told", || plan().contains("not understood"));
    fake("exec sleep 60");
    until("what hangs is told", || plan().contains("did not answer within 1 s"));
    // Others go on.
    let line = ["submit", "queens", "--size", "9", "--min", "1", "--max", "2"];
    assert_eq!(job(&up, &line).out, "job-1\n");
    let done = job(&up, &["result", "1", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(object(&done)["result"]["solutions"], 352, "{}", done.err);
    up.end();
}

/// When the head is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So long after the submission.
    After(u64),
    /// The job computes on so many processors.
    Size(u64),
    /// Another job makes it shrink.
    Shrinks,
    /// It has been cancelled.
    Cancelled,
}

/// Kills the head at a moment and starts another: the job ends with the right answer, nothing is left.
fn survives(moment: Moment) {
    let Some(mut grid) = Grid::start() else { return };
    let malleable = ["--kind", "malleable", "--min", "1", "--max", "5"];
    let first = grid.submit(&[&nbody("5")[..], &malleable].concat());
    let mut second = None;
    match moment {
        Moment::After(ms) => std::thread::sleep(Duration::from_millis(ms)),
        Moment::Size(count) => until("it has its size", || size(&grid.up, &first) >= count),
        Moment::Shrinks => {
            until("it has grown", || size(&grid.up, &first) == 5);
            second =
                Some(grid.submit(&["queens", "--size", "11", "--kind", "rigid", "--min", "4"]));
            until("it shrinks", || grid.why(&first).contains("makes room for"));
        }
        Moment::Cancelled => {
            until("it has grown", || size(&grid.up, &first) >= 2);
            assert_eq!(job(&grid.up, &["cancel", &first]).code, Some(0));
        }
    }
    grid.up.kill_head();
    grid.check();
    grid.up.start_head();
    if matches!(moment, Moment::Cancelled) {
        // The word may have been on its way still: then it goes on, and is told again.
        until("it ends", || {
            let state = status(&grid.up, &first)["state"].clone();
            state == "cancelled"
                || state == "done"
                || job(&grid.up, &["cancel", &first]).code == Some(0)
        });
    } else {
        assert_eq!(grid.done(&first)["checksum"], alone("5"), "{moment:?}");
    }
    if let Some(second) = second {
        assert_eq!(grid.done(&second)["result"]["solutions"], 2680);
    }
    let list = object(&job(&grid.up, &["list", "--json"]));
    let jobs = list["jobs"].as_array().unwrap().len();
    assert_eq!(jobs, if matches!(moment, Moment::Shrinks) { 2 } else { 1 }, "{list}");
    grid.empty();
    grid.up.end();
}

#[test]
fn a_running_job_outlives_its_head() {
    survives(Moment::Size(2));
}

/// The head is killed in the middle of each kind of operation, a dozen times: four minutes.
/// `cargo test -p springtide --test all slurm::a_head_that_is_killed -- --ignored --nocapture`
#[test]
#[ignore = "four minutes; its command is in its comment"]
fn a_head_that_is_killed_amid_anything_loses_nothing() {
    let after = [50, 300, 600, 900, 1300, 1800, 2500].map(Moment::After);
    let sizes = [1, 5].map(Moment::Size);
    for moment in
        after.into_iter().chain(sizes).chain([Moment::Shrinks, Moment::Shrinks, Moment::Cancelled])
    {
        println!("the head is killed: {moment:?}");
        survives(moment);
    }
}
