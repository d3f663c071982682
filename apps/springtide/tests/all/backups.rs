//! Backups of a head's state: made under load, restored elsewhere, and refused with a reason.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::drains::Up;
use crate::support::{CommandOutput, RunningCommand, finish, program, run, until};

/// A backup of the first version's form. Never to be written again: later versions must read it.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/state-1.backup");

fn on(file: &Path, line: &[&str]) -> CommandOutput {
    let mut command = program(line);
    command.arg("--config").arg(file);
    finish(command)
}

fn done(file: &Path, line: &[&str]) -> String {
    let ended = on(file, line);
    assert_eq!(ended.code, Some(0), "{line:?}: {}", ended.err);
    ended.out
}

fn json(file: &Path, line: &[&str]) -> Value {
    serde_json::from_str(&done(file, &[line, &["--json"]].concat())).unwrap()
}

/// Another directory with a copy of a config.
fn elsewhere(up: &Up, name: &str) -> PathBuf {
    let dir = up.temp.path().join(name);
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("grid.toml");
    fs::copy(&up.file, &file).unwrap();
    file
}

/// States of the jobs, by number.
fn states(file: &Path) -> Vec<(u64, String)> {
    let list = json(file, &["job", "list", "--all"]);
    let state = |job: &Value| {
        let number = job["job"].as_u64().unwrap();
        (number, job["state"].as_str().unwrap().to_owned())
    };
    let mut all: Vec<_> = list["jobs"].as_array().unwrap().iter().map(state).collect();
    all.sort();
    all
}

#[test]
fn a_backup_under_load_has_each_job_that_was_submitted_before() {
    let mut up = Up::of(&[("ams", 2)]);
    let submit = |n: &str| done(&up.file, &["job", "submit", "fib", "--n", n, "--min", "1", "-q"]);
    for _ in 0..3 {
        submit("20");
    }
    done(&up.file, &["job", "result", "3", "--wait", "-q"]);
    done(&up.file, &["job", "submit", "queens", "--size", "18", "-q"]);
    done(&up.file, &["node", "drain", "ams-2", "--reason", "new disk"]);
    // Further jobs start and end meanwhile.
    let load = program(&[
        "job",
        "submit",
        "fib",
        "--n",
        "22",
        "--min",
        "1",
        "--array",
        "0-59",
        "--config",
        up.file.to_str().unwrap(),
    ]);
    let dir = up.temp.path().join("load");
    fs::create_dir_all(&dir).unwrap();
    let mut load = RunningCommand::start(load, &dir);
    let file = up.temp.path().join("state.backup");
    let made = on(&up.file, &["backup", file.to_str().unwrap()]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    load.wait();
    let again = on(&up.file, &["backup", file.to_str().unwrap()]);
    assert!(again.code == Some(2) && again.err.contains("exists"), "{}", again.err);
    let refused = on(&up.file, &["restore", file.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1), "a head runs: {}", refused.err);
    up.kill_head();
    let refused = on(&up.file, &["restore", file.to_str().unwrap()]);
    assert!(refused.code == Some(2) && refused.err.contains("has a state"), "{}", refused.err);
    // The machine is lost: the state begins in another directory.
    let restored = elsewhere(&up, "restored");
    done(&restored, &["restore", file.to_str().unwrap()]);
    let mut head = program(&["up", restored.to_str().unwrap(), "--detach"]);
    assert!(head.output().unwrap().status.success());
    let ended = states(&restored);
    assert!(ended.len() >= 4, "{ended:?}");
    for job in 1..=3 {
        assert_eq!(ended[job - 1], (job as u64, "done".to_owned()), "{ended:?}");
    }
    assert_eq!(ended[3].0, 4);
    assert_ne!(ended[3].1, "lost", "{ended:?}");
    let nodes = done(&restored, &["node", "list"]);
    assert!(nodes.contains("new disk"), "{nodes}");
    done(&restored, &["down"]);
}

#[test]
fn a_wrong_or_newer_backup_is_refused_and_changes_nothing() {
    let mut up = Up::of(&[("ams", 1)]);
    let file = up.temp.path().join("state.backup");
    done(&up.file, &["backup", file.to_str().unwrap()]);
    up.kill_head();
    let whole = fs::read(&file).unwrap();
    let target = elsewhere(&up, "target");
    let state = target.parent().unwrap().join(".springtide/local/scheduler.records");
    let refused = |bytes: &[u8], code: i32, reason: &str| {
        let wrong = up.temp.path().join("wrong.backup");
        fs::write(&wrong, bytes).unwrap();
        let ended = on(&target, &["restore", wrong.to_str().unwrap()]);
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        assert!(ended.err.contains(reason), "{reason}: {}", ended.err);
        assert!(!state.exists(), "{reason}");
    };
    refused(b"no archive", 2, "is not a complete backup");
    refused(&whole[..whole.len() / 2], 2, "is not a complete backup");
    let replace = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|part| part == from).expect("it is there");
        let mut bytes = whole.clone();
        bytes[at..at + from.len()].copy_from_slice(to);
        bytes
    };
    refused(&replace(b"\"format\": 1", b"\"format\": 7"), 6, "format 7");
    refused(&replace(b"\"grid\": \"local\"", b"\"grid\": \"other\""), 2, "grid other");
    refused(&replace(b"PRIVATE KEY", b"private key"), 2, "the checksum of ca/ca.key differs");
    let restored = on(&target, &["restore", file.to_str().unwrap()]);
    assert_eq!(restored.code, Some(0), "{}", restored.err);
    assert!(state.exists());
}

#[test]
fn a_state_of_the_first_version_is_read() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    let ca = temp.path().join("ca");
    let made = run(&["ca", "init", "--dir", ca.to_str().unwrap(), "--grid", "kept"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let config = format!(
        "grid = \"kept\"\n[tls]\nca = \"{}\"\n[[cluster]]\nname = \"ams\"\nnodes = 2\n",
        ca.display()
    );
    fs::write(&file, config).unwrap();
    done(&file, &["restore", KEPT]);
    let head = RunningCommand::start(program(&["up", file.to_str().unwrap()]), temp.path());
    until("the grid is up", || on(&file, &["status"]).code != Some(1));
    // One job had ended. Two submissions are recovered; the program that ran them is not here.
    let found = states(&file);
    assert_eq!((found.len(), &*found[0].1), (3, "done"), "{found:?}");
    for job in ["2", "3"] {
        let status = json(&file, &["job", "status", job]);
        assert!(!status.to_string().contains("cannot be read"), "{status}");
        // It may have ended already.
        on(&file, &["job", "cancel", job]);
    }
    until("they have ended", || {
        states(&file).iter().all(|(_, state)| ["done", "failed", "cancelled"].contains(&&**state))
    });
    let result = done(&file, &["job", "result", "1", "-q"]);
    assert!(result.contains("fib"), "{result}");
    let nodes = done(&file, &["node", "list"]);
    assert!(nodes.contains("kept disk"), "{nodes}");
    // Numbers continue.
    let next = done(&file, &["job", "submit", "fib", "--n", "20", "--min", "1", "-q"]);
    assert_eq!(next.trim(), "job-4");
    let commands = json(&file, &["audit"]);
    assert!(commands["commands"].as_array().unwrap().len() >= 4, "{commands}");
    drop(head);
}
