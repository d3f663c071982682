//! Jobs whose nodes join, leave and fail, among them the root's, with real processes. The result is
//! that of a run without a grid, and the log contains the changes.

use serde_json::Value;

use crate::drains::Up;
use crate::support::{
    RunningCommand, assert_sound, finish, kill, nodes, program, run, text, until,
};

fn checksum(of: &str) -> Value {
    let result: Value = serde_json::from_str(of).unwrap();
    result["checksum"].clone()
}

/// The node of the root, from the run's output.
fn root(log: &str) -> String {
    let line = log.lines().rev().find_map(|line| line.split("the root runs on ").nth(1));
    line.expect("the root runs").trim().to_owned()
}

#[test]
fn a_job_survives_the_death_of_its_roots_node_and_continues_from_a_checkpoint() {
    let job = ["run", "barnes-hut", "--bodies", "3000", "--steps", "60", "--json"];
    let alone = finish(program(&[&job[..], &["--sequential"]].concat()));
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let mut command = program(&job);
    command.args(["-v", "--log-level", "debug", "--clusters", "3x2", "--out"]).arg(&out);
    let mut running = RunningCommand::start(command, temp.path());
    let log = || text(&temp.path().join("stderr.log"));
    // A node keeps no checkpoint of its own root.
    until("another node keeps a checkpoint", || {
        let logs = std::fs::read_dir(out.join("nodes")).into_iter().flatten().flatten();
        logs.map(|log| text(&log.path())).any(|log| log.contains("keeps a checkpoint of the root"))
    });
    let first = root(&log());
    let (_, pid) = nodes(&out).into_iter().find(|(node, _)| *node == first).unwrap();
    kill(pid, "KILL");
    assert_eq!(running.wait().code(), Some(0), "{}", log());
    let log = log();
    assert!(log.contains("succeeds it") && root(&log) != first, "{log}");
    assert!(log.contains("the root continues from its checkpoint"), "{log}");
    assert_eq!(checksum(&text(&temp.path().join("stdout.log"))), checksum(&alone.out));
    assert_eq!(nodes(&out), []);
}

/// The root's node is drained, and then the next one's. Each hands over the root at a checkpoint,
/// and is empty long before the job ends.
#[test]
fn the_root_moves_off_nodes_that_are_drained() {
    let job = ["barnes-hut", "--bodies", "5000", "--steps", "250", "--json"];
    let alone = finish(program(&[&["run"], &job[..], &["--sequential"]].concat()));
    let up = Up::of(&[("ams", 2), ("bud", 2)]);
    let dir = up.temp.path().join("client");
    std::fs::create_dir_all(&dir).unwrap();
    let mut command = program(&[&["run"], &job[..], &["-v", "--config"]].concat());
    command.arg(&up.file);
    let mut client = RunningCommand::start(command, &dir);
    let log = || text(&dir.join("stderr.log"));
    let mut roots = Vec::new();
    for iterations in [4, 20] {
        until("iterations are done", || log().contains(&format!("iteration {iterations} took")));
        let root = root(&log());
        let ended = up.node(&["drain", &root, "--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let drained: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(drained["empty"], serde_json::json!([root]), "{}", log());
        assert!(log().contains(&format!("the job's root moves from node {root}")), "{}", log());
        roots.push(root);
    }
    assert!(roots[0][..3] != roots[1][..3], "to another cluster: {roots:?}");
    assert!(!log().contains("iteration 250 took"), "the drains were over long before the job");
    assert_eq!(client.wait().code(), Some(0), "{}", log());
    let result: Value = serde_json::from_str(&text(&dir.join("stdout.log"))).unwrap();
    assert_eq!(result["checksum"], checksum(&alone.out));
    // Each iteration is computed and reported once: a checkpoint loses nothing.
    assert_eq!(result["iterations"].as_array().map(Vec::len), Some(250));
    for iteration in 1..=250 {
        let line = format!("iteration {iteration} took");
        assert_eq!(log().matches(&line).count(), 1, "{line}: {}", log());
    }
    up.end();
}

/// A node is drained, a sub-coordinator killed, a whole cluster killed, and new nodes join. The job
/// ends with the result of a run without a grid, and its log contains all changes.
#[test]
fn nodes_drain_die_and_join_while_a_job_runs_and_why_explains_them() {
    let job = ["barnes-hut", "--bodies", "3000", "--steps", "300", "--json"];
    let alone = finish(program(&[&["run"], &job[..], &["--sequential"]].concat()));
    let up = Up::of(&[("ams", 4), ("bud", 4), ("del", 4)]);
    let dir = up.temp.path().join("client");
    std::fs::create_dir_all(&dir).unwrap();
    let out = dir.join("out");
    let mut command = program(&[&["run"], &job[..]].concat());
    // The minimum number of nodes makes the job request others when it loses some.
    command.args(["-v", "--period", "500ms", "--min-nodes", "8", "--max-nodes", "9", "--config"]);
    command.arg(&up.file).arg("--out").arg(&out);
    let mut client = RunningCommand::start(command, &dir);
    let log = || text(&dir.join("stderr.log"));
    until("iterations are done", || log().contains("iteration 2 took"));
    let root = root(&log());
    let busy = |node: &&str| *node != root;
    let drained = ["ams-2", "ams-3"].into_iter().find(busy).unwrap();
    let ended = up.node(&["drain", drained]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    // A sub-coordinator and one more node: too few remain.
    for node in ["bud-1", "bud-2"].into_iter().filter(busy) {
        if let Some(pid) = up.pid(node) {
            kill(pid, "KILL");
        }
    }
    until("others join", || log().contains("joins the job"));
    let cluster = if root.starts_with("bud") { "ams" } else { "bud" };
    for (node, pid) in nodes(&up.dir) {
        if node.starts_with(cluster) {
            kill(pid, "KILL");
        }
    }
    assert_eq!(client.wait().code(), Some(0), "{}", log());
    assert_eq!(checksum(&text(&dir.join("stdout.log"))), checksum(&alone.out), "{}", log());
    assert_sound(&out);
    let out = out.to_str().unwrap();
    let why = run(&["why", out]);
    assert_eq!(why.code, Some(0), "{}", why.err);
    for part in [&*format!("{drained} left in order"), "was lost", "joined", "ends well"] {
        assert!(why.out.contains(part), "{part} is not in\n{}\n{}", why.out, log());
    }
    let replay = run(&["replay", out]);
    assert_eq!(replay.code, Some(0), "{}{}", replay.out, replay.err);
    up.end();
}
