//! Live scenarios: node processes in an emulated network, which leave nothing behind.
//!
//! If this host allows no networks, the tests say so and pass.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{CommandOutput, RunningCommand, finish, nodes, program, text, until};

const FILE: &str = r#"
name = "small"
about = "Two clusters, one of which is cut off, loaded and hit."
[app]
iterations = 4
work = "4s"
serial = "100ms"
leaves = 32
bodies = 2000
[job]
period = "1s"
limit = "100s"
[wide]
rtt = "10ms"
bandwidth = "2MB/s"
[[cluster]]
name = "a"
nodes = 2
start = 2
[[cluster]]
name = "b"
nodes = 2
start = 2
uplink = "1MB/s"
[[event]]
what = "load"
at = "500ms"
cluster = "b"
nodes = 1
share = 0.5
duration = "1s"
[[event]]
what = "uplink"
at = "700ms"
cluster = "b"
bandwidth = "300kB/s"
duration = "1s"
[[event]]
what = "kill"
iteration = 2
cluster = "b"
nodes = 1
"#;

/// `wan run` with these arguments, in a directory of networks of its own.
fn live(dir: &Path, words: &[&str]) -> Command {
    let file = dir.join("small.toml");
    std::fs::write(&file, FILE).unwrap();
    let mut command = program(&["wan", "run"]);
    command.arg(&file).args(["--time-scale", "1", "--share", "0.2"]).args(words);
    command.env("XDG_RUNTIME_DIR", dir).env("TMPDIR", dir);
    command
}

/// Whether this host allows no network.
fn is_refused(ended: &CommandOutput) -> bool {
    let refused = ended.code != Some(0) && ended.err.contains("is not up");
    if refused {
        eprintln!("skipped: {}", ended.err.trim());
    }
    refused
}

fn groups() -> Vec<String> {
    let folders = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"];
    let entries = folders.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("springtide-")).collect()
}

/// Files left by a network or run, except those of the test.
fn left(dir: &Path) -> Vec<String> {
    let here = std::fs::read_dir(dir).unwrap().flatten();
    let below = std::fs::read_dir(dir.join("springtide-wan")).into_iter().flatten().flatten();
    let names = here.chain(below).filter_map(|entry| entry.file_name().into_string().ok());
    let is_left = |name: &String| name.starts_with("springtide-run-") || name.ends_with(".sock");
    names.filter(is_left).collect()
}

fn whole(quota: &str, network: &str) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let how = ["--quota", quota, "--network", network, "--mode", "static", "--json"];
    let mut command = live(dir.path(), &how);
    command.arg("--out").arg(&out);
    let ended = finish(command);
    if network == "router" && is_refused(&ended) {
        return;
    }
    // One line, perhaps after others.
    let mut said = ended.err.lines();
    if let Some(none) = said.find(|line| line.contains("control groups cannot limit processors")) {
        return eprintln!("skipped: {}", none.trim());
    }
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["iterations"].as_array().map(Vec::len), Some(4), "{report}");
    let parts: Vec<&str> =
        report["events"].as_array().unwrap().iter().filter_map(|event| event[1].as_str()).collect();
    for part in ["b-1: 50 % of the speed", "the uplink of b carries 300kB/s", "b-1: killed"] {
        assert!(parts.contains(&part), "{part} is not among {parts:?}");
    }
    assert!(report["predicted_s"].as_f64().is_some_and(|s| s > 1.0), "{report}");
    assert_eq!(left(dir.path()), [""; 0]);
    assert_eq!(nodes(&out), []);
    assert!(!out.join("node").exists(), "keys are left");
    // The file contains the printed object; `wan report` reads the directory.
    assert_eq!(serde_json::from_str::<Value>(&text(&out.join("wan.json"))).unwrap(), report);
    let output = finish(program(&["wan", "report", &out.display().to_string()]));
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.out.contains("small"), "{}", output.out);
    let why = finish(program(&["why", &out.display().to_string()]));
    assert_eq!(why.code, Some(0), "{}", why.err);
}

#[test]
fn a_scenario_runs_with_processes_under_a_quota() {
    whole("groups", "router");
}

/// Needs no rights, so that it is never skipped.
#[test]
fn a_scenario_runs_with_pausing_processes_over_shaped_sockets() {
    whole("duty", "sockets");
}

#[test]
fn nothing_is_left_of_a_run_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let before = groups();
    let out = dir.path().join("out");
    let mut command = live(dir.path(), &["--no-prediction", "--network", "router"]);
    command.arg("--out").arg(&out);
    let mut running = RunningCommand::start(command, dir.path());
    let log = dir.path().join("stderr.log");
    let mut refused = false;
    until("the job begins", || {
        refused = text(&log).contains("is not up");
        refused || text(&log).contains("the job starts")
    });
    if refused {
        return eprintln!("skipped: {}", text(&log).trim());
    }
    assert_eq!(nodes(&out).len(), 4);
    running.signal("KILL");
    running.wait();
    until("its nodes end", || nodes(&out).is_empty());
    until("its network and its files are gone", || left(dir.path()).is_empty());
    until("its groups are removed", || groups().iter().all(|name| before.contains(name)));
}

#[test]
fn unusable_scenarios_are_reported_before_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let error = |words: &[&str]| {
        let mut command = program(&["wan", "run", "0"]);
        command.args(words).env("XDG_RUNTIME_DIR", dir.path());
        let ended = finish(command);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        ended.err
    };
    assert!(error(&["--share", "2"]).contains("above 0 and at most 1"));
    assert!(error(&["--time-scale", "0"]).contains("above 0"));
    // Such times would exceed their range.
    assert!(error(&["--time-scale", "1e-30"]).contains("at least 0.001"));
    let mut command = program(&["wan", "run", "no-such-scenario"]);
    command.env("XDG_RUNTIME_DIR", dir.path());
    assert!(finish(command).err.contains("no-such-scenario"));
    let many = FILE.replacen("nodes = 2", "nodes = 300", 1);
    let file = dir.path().join("many.toml");
    std::fs::write(&file, many).unwrap();
    let mut command = program(&["wan", "run"]);
    command.arg(&file).env("XDG_RUNTIME_DIR", dir.path());
    let ended = finish(command);
    assert!(ended.err.contains("found 300"), "{}", ended.err);
    assert_eq!(left(dir.path()), [""; 0]);
}
