//! Jobs without a waiting client: submitted, inspected, resized, ended, and known to the next head.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::drains::Up;
use crate::support::{CommandOutput, RunningCommand, nodes, program, run, text, until};

/// Short intervals, so that free processors are detected soon.
const QUICK: &str = "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"";

pub fn job(up: &Up, line: &[&str]) -> CommandOutput {
    let config = ["--config", up.file.to_str().unwrap()];
    run(&[&["job"], line, &config].concat())
}

pub fn object(output: &CommandOutput) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {}", output.out))
}

pub fn status(up: &Up, number: &str) -> Value {
    let output = job(up, &["status", number, "--json"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    object(&output)
}

/// The number of a job's processors.
pub fn size(up: &Up, number: &str) -> u64 {
    let sizes = status(up, number)["sizes"].clone();
    sizes.as_object().map_or(0, |all| all.values().filter_map(Value::as_u64).sum())
}

#[test]
fn jobs_are_submitted_resized_and_ended() {
    let up = Up::with(&[("ams", 3)], QUICK);
    assert_eq!(job(&up, &["list"]).out, "no jobs\n");
    // A plan names the place of a job, and submits nothing.
    let plan = job(&up, &["plan", "queens", "--min", "2"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    assert!(plan.out.contains("would start now") && plan.out.contains("2 of ams"), "{}", plan.out);
    let plan = job(&up, &["plan", "queens", "--kind", "rigid", "--min", "4"]);
    assert_eq!(plan.code, Some(3), "{}", plan.err);
    assert!(plan.out.contains("ams: has 3 processors, 4 are needed"), "{}", plan.out);
    assert!(plan.out.contains("can never start"), "{}", plan.out);
    // All commands agree about an unknown job.
    for line in [&["grow", "7", "1"][..], &["shrink", "7", "1"], &["result", "7", "--json"]] {
        let refused = job(&up, line);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains("the grid has no job-7"), "{}", refused.err);
        let expected = if line.contains(&"--json") { Value::Bool(false) } else { Value::Null };
        let output = serde_json::from_str(&refused.out).unwrap_or(Value::Null);
        assert_eq!(output["ok"], expected, "{}", refused.out);
    }
    // A job without an end grows into all free processors.
    let long = job(&up, &["submit", "queens", "--size", "18"]);
    assert_eq!((long.code, long.out.as_str()), (Some(0), "job-1\n"), "{}", long.err);
    until("it has grown", || size(&up, "1") == 3);
    // A waiting job has no size.
    let waits = job(&up, &["submit", "fib", "--n", "10", "--kind", "rigid", "--min", "3"]);
    assert_eq!(waits.out, "job-2\n", "{}", waits.err);
    let refused = job(&up, &["grow", "2", "1"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("job-2 is waiting"), "{}", refused.err);
    assert_eq!(job(&up, &["cancel", "2"]).code, Some(0));
    // A job that never finds a place ends with the exit code of `run`.
    let never = job(&up, &["submit", "fib", "--kind", "rigid", "--min", "4"]);
    assert_eq!(never.out, "job-3\n", "{}", never.err);
    let failed = job(&up, &["result", "3", "--wait", "--timeout", "1m", "--json"]);
    assert_eq!(failed.code, Some(3), "{}", failed.err);
    assert_eq!(object(&failed)["ok"], false, "{}", failed.out);
    // Its owner takes a processor away, which limits it.
    let shrunk = job(&up, &["shrink", "1", "1"]);
    assert_eq!(shrunk.out, "job-1 has 3 processors and will have 2\n", "{}", shrunk.err);
    until("it has shrunk", || size(&up, "1") == 2);
    assert_eq!(status(&up, "job-1")["most"], 2);
    let refused = job(&up, &["shrink", "1", "2"]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    let output = "would have 0 processors, and may have 1 to 3";
    assert!(refused.err.contains(output), "{}", refused.err);
    // A rigid job that needs two makes it shrink further.
    let short = job(&up, &["submit", "queens", "--size", "9", "--kind", "rigid", "--min", "2"]);
    assert_eq!(short.out, "job-4\n", "{}", short.err);
    let done = job(&up, &["result", "4", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(object(&done)["result"]["solutions"], 352);
    assert_eq!(status(&up, "4")["state"], "done");
    let why = job(&up, &["why", "1"]).out;
    assert!(why.contains("makes room for job-4"), "{why}");
    until("it is as large as it may be", || size(&up, "1") == 2);
    // It grows beyond the limit if its owner requests it.
    assert_eq!(job(&up, &["grow", "1", "1"]).code, Some(0));
    until("it has grown again", || size(&up, "1") == 3);
    assert_eq!(job(&up, &["grow", "1", "1"]).code, Some(3));
    let early = job(&up, &["result", "1"]);
    assert_eq!(early.code, Some(1), "{}", early.err);
    assert!(early.err.contains("--wait"), "{}", early.err);
    let late = job(&up, &["result", "1", "--wait", "--timeout", "1s"]);
    assert_eq!(late.code, Some(4), "{}", late.err);
    assert_eq!(job(&up, &["cancel", "1"]).code, Some(0));
    assert_eq!(status(&up, "1")["state"], "cancelled");
    assert_eq!(job(&up, &["cancel", "1"]).code, Some(1));
    let logs = job(&up, &["logs", "1"]).out;
    assert!(logs.contains("the root runs on ams-"), "{logs}");
    let list = object(&job(&up, &["list", "--json"]));
    let jobs = list["jobs"].as_array().unwrap();
    let states: Vec<&str> = jobs.iter().filter_map(|job| job["state"].as_str()).collect();
    assert_eq!(states, ["cancelled", "cancelled", "failed", "done"]);
    // A job of `run` is cancelled in the same way. It is then over, not unknown.
    let dir = up.temp.path().join("client");
    std::fs::create_dir_all(&dir).unwrap();
    let mut command = program(&["run", "queens", "--size", "18", "-v", "--config"]);
    command.arg(&up.file);
    let mut client = RunningCommand::start(command, &dir);
    until("it runs", || text(&dir.join("stderr.log")).contains("the root runs on"));
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| job(&up, &["result", "5", "--wait", "--timeout", "1m"]));
        // The client must know the job before it is cancelled.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let ended = job(&up, &["cancel", "5"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.err.contains("job-5 is over"), "{}", ended.err);
        waits.join().unwrap()
    });
    assert_ne!(client.wait().code(), Some(0));
    assert!(waits.err.contains("only the client that ran it has its result"), "{}", waits.err);
    up.end();
}

#[test]
fn a_file_of_jobs_and_what_is_wrong_with_it() {
    let up = Up::with(&[("ams", 2), ("del", 1)], QUICK);
    let file = up.temp.path().join("jobs.toml");
    let path = file.to_str().unwrap();
    let submit = |text: &str| {
        std::fs::write(&file, text).unwrap();
        job(&up, &["submit", "--file", path])
    };
    let text = "[[job]]\nprogram = \"queens\"\nargs = [\"--size\", \"8\"]\ncount = 2\nmax = 2\n\
    [[job]]\nprogram = \"fib\"\nargs = [\"--n\", \"15\"]\nclusters = [\"del\"]\n";
    for (wrong, expected) in [
        (text.replace("fib", "fbi"), "jobs.toml:7:1: no job is named fbi: did you mean fib?"),
        (text.replace("--n", "--m"), "jobs.toml:8:1: fib: unexpected argument '--m' found"),
        (text.replace("\"del\"", "\"dle\""), "jobs.toml:9:1: the grid has no cluster dle"),
        (text.replace("max = 2", "max = 2\nmin = 3"), "jobs.toml:5:1: min 3 is more than max 2"),
        (
            text.replace("max", "mx"),
            "jobs.toml:5:1: unknown key `mx` in [job]; did you mean `max`?",
        ),
    ] {
        let refused = submit(&wrong);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains(expected), "{expected}: {}", refused.err);
    }
    assert_eq!(job(&up, &["list"]).out, "no jobs\n");
    let all = submit(text);
    let expected = (Some(0), "job-1\njob-2\njob-3\n");
    assert_eq!((all.code, all.out.as_str()), expected, "{}", all.err);
    // The jobs before a failure are reported, and run.
    let last = "[[job]]\nprogram = \"fib\"\nfiles = [\"none.txt\"]\n";
    let parts = "[[job]]\nprogram = \"queens\"\nargs = [\"--size\", \"8\"]\nkind = \"rigid\"\n\
    [[job.component]]\nclusters = [\"del\"]\n[[job.component]]\nmin = 2\nclusters = [\"ams\"]\n";
    let partly = submit(&format!("{parts}{last}"));
    assert_eq!((partly.code, partly.out.as_str()), (Some(3), "job-4\n"), "{}", partly.err);
    assert!(partly.err.contains("1 of 2 jobs were submitted; then fib: "), "{}", partly.err);
    let done = job(&up, &["result", "4", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let expected =
        serde_json::json!([{ "name": "ams", "workers": 2 }, { "name": "del", "workers": 1 }]);
    assert_eq!(object(&done)["clusters"], expected);
    for number in ["1", "2", "3"] {
        let done = job(&up, &["result", number, "--wait", "--timeout", "2m"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(done.out.contains("checksum"), "{}", done.out);
    }
    for command in ["status", "why", "cancel", "result", "logs"] {
        let refused = job(&up, &[command, "7"]);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains("the grid has no job-7"), "{}", refused.err);
    }
    // The next head knows the jobs, and restarts one that was running, whose nodes ended with their
    // head.
    let long = job(&up, &["submit", "queens", "--size", "18"]);
    assert_eq!(long.out, "job-5\n", "{}", long.err);
    until("it runs", || status(&up, "5")["state"] == "running");
    let up = up.again();
    until("it runs again", || status(&up, "5")["state"] == "running");
    let logs = job(&up, &["logs", "5"]).out;
    assert!(logs.contains("a new head continues the grid"), "{logs}");
    // A damaged submission is lost, and nothing else.
    let next = job(&up, &["submit", "queens", "--size", "18", "--min", "2"]);
    assert_eq!(next.out, "job-6\n", "{}", next.err);
    let mut up = up;
    up.kill_head();
    flip(&submission(&up.dir, 5));
    // The file of a dead head remains, and its process id may be another process's.
    let head = up.dir.join("head.json");
    let mut left: Value = serde_json::from_slice(&std::fs::read(&head).unwrap()).unwrap();
    left["pid"] = std::process::id().into();
    std::fs::write(&head, left.to_string()).unwrap();
    up.start_head();
    assert_eq!(status(&up, "5")["state"], "failed");
    let lost = job(&up, &["result", "5"]);
    let output = lost.err.contains("its checksum does not match") && lost.err.contains("job-5.");
    assert!(lost.code == Some(1) && output, "{}", lost.err);
    until("it runs", || status(&up, "6")["state"] == "running");
    assert_eq!(job(&up, &["cancel", "6"]).code, Some(0));
    assert_eq!(status(&up, "6")["state"], "cancelled");
    // If the store is moved away for a fresh start, numbers continue above those of existing jobs.
    up.kill_head();
    std::fs::remove_dir_all(up.dir.join("scheduler.records")).unwrap();
    up.start_head();
    let new = job(&up, &["submit", "fib", "--n", "12"]);
    assert_eq!(new.out, "job-7\n", "{}", new.err);
    assert_eq!(status(&up, "3")["state"], "done");
    let done = job(&up, &["result", "3", "--json"]);
    assert_eq!(object(&done)["job"], "fib", "{}", done.out);
    // CommandOutput jobs are removed by number, age and count, for the next head as well.
    let refused = job(&up, &["purge", "7", "99"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let refused = job(&up, &["purge"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(!up.dir.join("jobs/job-7").exists(), "one that is known is removed all the same");
    let purged = job(&up, &["purge", "--keep", "2", "--json"]);
    assert_eq!((purged.code, object(&purged)["removed"].as_array().unwrap().len()), (Some(0), 4));
    let list = || {
        let list = object(&job(&up, &["list", "--json"]));
        let jobs = list["jobs"].as_array().unwrap().clone();
        jobs.iter().filter_map(|job| job["job"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(list(), [5, 6]);
    assert_eq!(job(&up, &["list", "--last", "1", "--json"]).out.matches("\"state\"").count(), 1);
    // One flipped bit of a result is refused, with the file's name.
    let blobs = up.dir.join("jobs.records/blobs");
    let mut results = std::fs::read_dir(blobs).unwrap().map(|file| file.unwrap().path());
    flip(&results.find(|path| path.to_string_lossy().contains("job-6-result")).unwrap());
    let refused = job(&up, &["result", "6", "--json"]);
    assert_eq!((refused.code, &object(&refused)["ok"]), (Some(1), &Value::Bool(false)));
    assert!(refused.err.contains("job-6-result"), "{}", refused.err);
    until("nodes of heads that were killed have ended", || nodes(&up.dir).len() == 3);
    up.end();
}

/// The file of a job's submission.
fn submission(dir: &Path, job: u64) -> PathBuf {
    let blobs = dir.join("scheduler.records/blobs");
    let mut all = std::fs::read_dir(blobs).unwrap().map(|file| file.unwrap().path());
    let prefix = format!("job-{job}.");
    let ours = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&prefix);
    all.find(ours).unwrap()
}

/// Flips one bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 2;
    std::fs::write(path, bytes).unwrap();
}
