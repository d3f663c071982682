//! Incarnations of a node: of two processes the later stays, a lost counter is repaired, a node
//! that fails repeatedly is retried, and certificates are renewed while processes run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{RunningCommand, kill, program, run, text, until};

fn status(up: &Up, node: &str) -> Value {
    let ended = up.node(&["status", node, "--json"]);
    serde_json::from_str(&ended.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

fn state(up: &Up, node: &str) -> String {
    status(up, node)["state"].as_str().unwrap().to_owned()
}

/// The last incarnation number issued in a directory.
fn number(dir: &Path) -> u64 {
    text(&dir.join("incarnation")).trim().parse().unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Kills the process of a registered node, and waits until the head knows.
fn kill_node(up: &Up, node: &str) {
    until("it is there", || state(up, node) == "idle");
    let pid = status(up, node)["pid"].clone();
    kill(pid.as_u64().unwrap() as u32, "KILL");
    until("its end is known", || {
        let now = status(up, node);
        now["state"] != "idle" || now["pid"] != pid
    });
}

/// A counter that is too low, as after clocks were set back when numbers were times.
#[test]
fn a_node_that_lost_its_counter_restarts_above_the_number_that_its_site_knows() {
    let up = Up::of(&[("ams", 2)]);
    let dir = up.dir.join("node/ams-1");
    let known = number(&dir);
    // The next process is not the first one, so that it counts.
    kill_node(&up, "ams-1");
    until("it is counted", || number(&dir) > known);
    let known = number(&dir);
    fs::write(dir.join("incarnation"), "7\n").unwrap();
    kill_node(&up, "ams-1");
    until("it is above", || number(&dir) > known);
    until("it is there", || state(&up, "ams-1") == "idle");
    let log = text(&up.dir.join("nodes/ams-1.log"));
    assert!(log.contains("restarts as a new incarnation"), "{log}");
    up.end();
}

#[test]
fn of_two_processes_with_one_name_the_later_stays() {
    let config = "[join]\nbind = \"127.0.0.1:0\"\n[[cluster]]\nname = \"ams\"\nnodes = 1\n\
    [[cluster]]\nname = \"lab\"\nnodes = 1\nprovider = \"join\"\n";
    let up = Up::by(config);
    let grid = ["--config", up.file.to_str().unwrap()];
    let made = run(&[&["token", "create", "--cluster", "lab", "--json"][..], &grid].concat());
    let made: Value = serde_json::from_str(&made.out).unwrap();
    let word = |key: &str| made[key].as_str().unwrap();
    let (first_dir, copied) = (up.temp.path().join("first"), up.temp.path().join("copied"));
    let line = ["node", "join", word("door"), "--token", word("token"), "--no-run", "--dir"];
    let joined = run(&[&line[..], &[first_dir.to_str().unwrap()]].concat());
    assert_eq!(joined.code, Some(0), "{}", joined.err);
    copy(&first_dir, &copied);
    let start = |dir: &Path| {
        // Log files of a node are named with their directory.
        let config = dir.join("node.toml");
        let moved = text(&config).replace(first_dir.to_str().unwrap(), dir.to_str().unwrap());
        fs::write(&config, moved).unwrap();
        let line = ["node", "run", "--config", config.to_str().unwrap()];
        RunningCommand::start(program(&line), dir)
    };
    // The copy does not know the counter of this directory.
    let mut first = start(&first_dir);
    for _ in 0..2 {
        until("it is there", || status(&up, "lab-1")["pid"] == first.0.id());
        first.signal("KILL");
        first.wait();
        first = start(&first_dir);
    }
    until("it is there", || status(&up, "lab-1")["pid"] == first.0.id());
    let counted = number(&first_dir);
    let second = start(&copied);
    assert_eq!(first.wait().code(), Some(1), "{}", text(&first_dir.join("stderr.log")));
    let why = text(&first_dir.join("stderr.log"));
    assert!(why.contains("a later process of this node has taken its place"), "{why}");
    until("the later one is there", || status(&up, "lab-1")["pid"] == second.0.id());
    assert!(number(&copied) > counted, "it begins again above what the head knows");
    // The processes do not alternate: it is still running.
    let stays = number(&copied);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((state(&up, "lab-1"), number(&copied)), ("idle".to_owned(), stays));
    drop(second);
    up.end();
}

#[test]
fn a_failing_node_is_retried_and_at_once_when_it_is_undrained() {
    let up = Up::of(&[("ams", 2)]);
    for _ in 0..4 {
        kill_node(&up, "ams-2");
    }
    until("it is broken", || state(&up, "ams-2") == "broken");
    let known = status(&up, "ams-2");
    let wait = known["next_try_s"].as_f64().unwrap();
    assert!(wait > 0.0 && wait <= 10.0, "{known}");
    let why = known["reason"].as_str().unwrap();
    assert!(why.contains("it ended 4 times in a row"), "{why}");
    let listed = up.node(&["list"]).out;
    assert!(listed.contains("next try in "), "{listed}");
    let undrained = up.node(&["undrain", "ams-2"]);
    assert_eq!(undrained.code, Some(0), "{}", undrained.err);
    // The node itself would wait longer.
    until("it is there", || state(&up, "ams-2") == "idle");
    assert!(status(&up, "ams-2")["next_try_s"].is_null());
    up.end();
}

/// Certificates of a few seconds, for all processes that `up` starts.
#[test]
fn certificates_are_renewed_while_processes_run() {
    let up = Up::by("[tls]\nvalidity = \"12s\"\n[[cluster]]\nname = \"ams\"\nnodes = 2\n");
    let pid = status(&up, "ams-1")["pid"].clone();
    let until_when =
        |node: &str| status(&up, node)["certificate_until"].as_str().unwrap().to_owned();
    let mut ends = ["ams-1", "ams-2"].map(until_when);
    // Twice: the first certificate is invalid then.
    for _ in 0..2 {
        for (end, node) in ends.iter_mut().zip(["ams-1", "ams-2"]) {
            until("its certificate is renewed", || until_when(node) > *end);
            *end = until_when(node);
        }
    }
    let known = status(&up, "ams-1");
    assert_eq!((&known["pid"], &known["state"]), (&pid, &"idle".into()), "in the same process");
    // New links, of a new process and of a client, use the new certificates.
    kill_node(&up, "ams-2");
    until("it is back", || {
        status(&up, "ams-2")["pid"] != Value::Null && state(&up, "ams-2") == "idle"
    });
    let config = up.file.to_str().unwrap();
    let ended = run(&["run", "fib", "--n", "20", "--config", config]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    up.end();
}
