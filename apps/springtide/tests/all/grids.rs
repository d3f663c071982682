//! Grids of real processes: results, ends by signals and deaths, and no leftovers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{
    RunningCommand, assert_sound, finish, kill, nodes, program, run, text, until,
};

/// A job that takes far longer than any test.
const ENDLESS: [&str; 4] = ["run", "queens", "--size", "18"];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Starts an endless job on a grid of its own and waits until its nodes work.
fn endless(dir: &Path, clusters: &str) -> (RunningCommand, Vec<(String, u32)>) {
    let out = dir.join("out");
    let mut command = program(&ENDLESS);
    command.args(["-v", "--clusters", clusters, "--out"]).arg(&out);
    let running = RunningCommand::start(command, dir);
    until("the job runs", || text(&dir.join("stderr.log")).contains("the root runs on"));
    let started = nodes(&out);
    assert!(!started.is_empty());
    (running, started)
}

#[test]
fn a_grid_gives_the_result_of_one_thread() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let job = ["run", "queens", "--size", "11", "--json"];
    let mut command = program(&job);
    command.args(["--clusters", "2x2", "--out"]).arg(&out);
    let ended = finish(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let grid = json(&ended.out);
    let alone = json(&run(&["run", "queens", "--size", "11", "--json", "--sequential"]).out);
    assert_eq!(grid["checksum"], alone["checksum"]);
    assert_eq!(grid["result"], alone["result"]);
    let clusters =
        serde_json::json!([{ "name": "ams", "workers": 2 }, { "name": "del", "workers": 2 }]);
    assert_eq!((&grid["clusters"], &grid["ok"]), (&clusters, &true.into()));
    assert_eq!(json(&text(&out.join("result.json"))), grid);
    let log = text(&out.join("events.jsonl"));
    for kind in ["run_started", "node_registered", "job_started", "job_ended", "run_ended"] {
        assert!(log.contains(&format!("\"{kind}\"")), "{kind} is not in {log}");
    }
    assert_eq!(nodes(&out), []);
    assert!(!out.join("node").exists(), "keys are left");
    assert!(!out.join("scheduler.lease").exists());
    assert!(out.join("nodes/del-2.log").exists());
}

#[test]
fn the_keys_of_a_killed_run_are_removed_by_the_next() {
    let temp = tempfile::tempdir().unwrap();
    let mut command = program(&ENDLESS);
    command.args(["-v", "--clusters", "1x1"]).env("TMPDIR", temp.path());
    let mut running = RunningCommand::start(command, temp.path());
    until("the job runs", || text(&temp.path().join("stderr.log")).contains("the root runs on"));
    let left = || {
        let all = std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        all.filter(|path| name(path).starts_with("springtide-run-")).collect::<Vec<_>>()
    };
    let next = || {
        let mut command = program(&["run", "fib", "--n", "12", "--clusters", "1x1"]);
        command.env("TMPDIR", temp.path());
        let ended = finish(command);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    };
    let ours = left();
    assert!(ours.len() == 1 && ours[0].join("node/ams-1/node.key").exists(), "{ours:?}");
    // Directories of running processes stay.
    next();
    assert_eq!(left(), ours);
    running.signal("KILL");
    running.wait();
    assert_eq!(left(), ours);
    until("its nodes have ended", || nodes(&ours[0]).is_empty());
    next();
    assert!(left().is_empty(), "{:?}", left());
}

/// Leaves of the recursion that `fib` distributes, and their calls.
fn leaves_of_fib(n: u64, grain: u64) -> (u64, f64) {
    match n {
        _ if n <= grain => (1, calls_of_fib(n)),
        _ => {
            let (a, b) = (leaves_of_fib(n - 1, grain), leaves_of_fib(n - 2, grain));
            (a.0 + b.0, a.1 + b.1)
        }
    }
}

fn calls_of_fib(n: u64) -> f64 {
    if n < 2 { 1.0 } else { 1.0 + calls_of_fib(n - 1) + calls_of_fib(n - 2) }
}

#[test]
fn a_recorded_run_has_its_work_and_is_predicted() {
    let temp = tempfile::tempdir().unwrap();
    let (out, grid) = (temp.path().join("out"), temp.path().join("grid.toml"));
    let (out, grid) = (out.to_str().unwrap(), grid.to_str().unwrap());
    let line = ["run", "fib", "--n", "32", "--grain", "20", "--clusters", "2x2", "--out", out];
    let ended = run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let text = "[[cluster]]\nname = \"ams\"\nnodes = 2\n[[cluster]]\nname = \"bud\"\nnodes = 4\n";
    std::fs::write(grid, text).unwrap();
    let line = ["sim", "run", "--recorded", out, "--config", grid, "--without", "bud", "--json"];
    let ended = run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let log = json(&ended.out);
    let parts = log["recorded"]["clusters"].as_object().unwrap().values();
    let sum = |key: &str| parts.clone().map(|part| part[key].as_f64().unwrap()).sum::<f64>();
    let (leaves, calls) = leaves_of_fib(32, 20);
    assert_eq!((sum("costed"), sum("units"), sum("workers")), (leaves as f64, calls, 4.0));
    let model = &log["learned"]["model"];
    assert_eq!((&model["rounds"], &model["leaves"]), (&1.into(), &leaves.into()));
    let work_s = model["work_us"].as_f64().unwrap() * 1e-6;
    assert!((work_s - (sum("working_s") - sum("root_s"))).abs() < 1e-5, "{log}");
    let predicted = log["predictions"].as_array().unwrap();
    assert_eq!(predicted.len(), 2);
    for (one, most) in predicted.iter().zip([6.0, 2.0]) {
        let runtime_s = one["runtime_s"].as_f64().unwrap();
        // Not faster than all of its nodes, and not much slower than one.
        assert!((work_s / most / 4.0..work_s * 4.0 + 5.0).contains(&runtime_s), "{one}");
    }
    let bad = run(&["sim", "run", "--recorded", grid, "--config", grid]);
    assert_eq!(bad.code, Some(2), "{}", bad.err);
    assert!(bad.err.contains("holds no run"), "{}", bad.err);
}

#[test]
fn signals_end_everything_in_order() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let temp = tempfile::tempdir().unwrap();
        let (mut running, _) = endless(temp.path(), "1x2");
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(code), "{}", text(&temp.path().join("stderr.log")));
        let out = temp.path().join("out");
        assert_eq!(nodes(&out), []);
        let result = json(&text(&out.join("result.json")));
        assert_eq!(result["ok"], false);
    }
}

#[test]
fn a_signal_while_nodes_start_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let mut command = program(&ENDLESS);
    command.args(["--clusters", "2x2", "--out"]).arg(&out);
    let mut running = RunningCommand::start(command, temp.path());
    until("a node is started", || !nodes(&out).is_empty());
    running.signal("TERM");
    assert_eq!(running.wait().code(), Some(143));
    assert_eq!(nodes(&out), []);
}

#[test]
fn a_killed_launcher_ends_its_nodes() {
    let temp = tempfile::tempdir().unwrap();
    let (mut running, started) = endless(temp.path(), "1x2");
    assert_eq!(started.len(), 2);
    running.signal("KILL");
    running.wait();
    until("the nodes end", || nodes(&temp.path().join("out")).is_empty());
}

/// Nodes of all roles except the root's are killed one after another, among them a whole cluster.
/// The result is that of a run without a grid.
#[test]
fn a_job_survives_the_death_of_nodes_and_of_a_cluster() {
    let temp = tempfile::tempdir().unwrap();
    let job = ["run", "queens", "--size", "16"];
    let out = temp.path().join("out");
    let mut command = program(&job);
    command.args(["-v", "--clusters", "3x2", "--json", "--out"]).arg(&out);
    let mut running = RunningCommand::start(command, temp.path());
    let log = || text(&temp.path().join("stderr.log"));
    until("the job runs", || log().contains("the root runs on"));
    let started = nodes(&out);
    // The first node has the root; then a sub-coordinator, and all nodes of another cluster.
    for (_, pid) in [&started[2], &started[4], &started[5]] {
        kill(*pid, "KILL");
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    assert_eq!(running.wait().code(), Some(0), "{}", log());
    assert_eq!(log().matches("continuing with").count(), 3, "{}", log());
    let ours = json(&text(&temp.path().join("stdout.log")));
    assert_eq!(ours["result"]["solutions"], 14_772_512);
    assert_eq!(nodes(&out), []);
}

/// Runs of Barnes-Hut in which one to five nodes, possibly the root's, are killed at random times.
/// Each result is that of a run without a grid.
/// `SPRINGTIDE_DEATHS=100 cargo test -p springtide --test all deaths_at_random -- --ignored
/// --nocapture`, also with `SPRINGTIDE_DEATHS_SEED`.
#[test]
#[ignore = "long: see its doc comment"]
fn deaths_at_random() {
    let number = |name, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let (runs, seed) = (number("SPRINGTIDE_DEATHS", 10), number("SPRINGTIDE_DEATHS_SEED", 1));
    let mut state = seed | 1;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let job = ["run", "barnes-hut", "--bodies", "20000", "--steps", "25", "--json"];
    let alone = finish(program(&[&job[..], &["--sequential"]].concat()));
    let answer = json(&alone.out)["checksum"].clone();
    let mut lost = 0;
    for run in 0..runs {
        let temp = tempfile::tempdir().unwrap();
        let out = temp.path().join("out");
        let mut command = program(&job);
        // Random deaths do not make a task poison, even if they hit it often.
        command.args(["-v", "--clusters", "3x3", "--poison", "0", "--out"]).arg(&out);
        let mut running = RunningCommand::start(command, temp.path());
        let log = || text(&temp.path().join("stderr.log"));
        until("the job runs", || log().contains("the root runs on"));
        let mut victims = nodes(&out);
        for _ in 0..1 + draw(5) {
            std::thread::sleep(std::time::Duration::from_millis(draw(600)));
            let (_, pid) = victims.swap_remove(draw(victims.len() as u64) as usize);
            if running.0.try_wait().unwrap().is_none() {
                kill(pid, "KILL");
            }
        }
        assert_eq!(running.wait().code(), Some(0), "run {run}, seed {seed}: {}", log());
        let ours = json(&text(&temp.path().join("stdout.log")));
        assert_eq!(ours["checksum"], answer, "run {run}, seed {seed}: {}", log());
        assert_sound(&out);
        lost += log().matches("continuing with").count() + log().matches("succeeds it").count();
    }
    println!("{runs} of {runs} right; {lost} nodes lost while their jobs ran; seed {seed}");
}

/// The root's node is silent: the other clusters, more than half, declare it lost.
#[test]
fn a_stopped_root_is_replaced_by_a_vote_of_the_others() {
    let temp = tempfile::tempdir().unwrap();
    let (mut running, started) = endless(temp.path(), "3x1");
    let log = || text(&temp.path().join("stderr.log"));
    let root =
        log().lines().find_map(|line| Some(line.split("the root runs on ").nth(1)?.to_owned()));
    let root = root.expect("the job runs");
    let (_, pid) = started.iter().find(|(node, _)| *node == root).unwrap();
    kill(*pid, "STOP");
    until("it is taken over", || log().contains("succeeds it"));
    assert!(log().contains(&format!("node {root} was lost (silent for")), "{}", log());
    until("the root runs elsewhere", || log().matches("the root runs on").count() == 2);
    running.signal("TERM");
    assert_eq!(running.wait().code(), Some(143), "{}", log());
    assert_eq!(nodes(&temp.path().join("out")), []);
}

/// A node is silent: the job continues without it, and its site restarts it.
#[test]
fn a_stopped_node_is_declared_lost_and_restarted() {
    let temp = tempfile::tempdir().unwrap();
    let (mut running, started) = endless(temp.path(), "2x2");
    let (name, pid) = &started[3];
    kill(*pid, "STOP");
    let log = || text(&temp.path().join("stderr.log"));
    until("the job continues", || log().contains(&format!("node {name} was lost (silent for")));
    let out = temp.path().join("out");
    until("it is restarted", || nodes(&out).iter().any(|(node, now)| node == name && now != pid));
    running.signal("TERM");
    assert_eq!(running.wait().code(), Some(143), "{}", log());
    assert_eq!(nodes(&out), []);
}

#[test]
fn the_death_of_the_last_node_ends_the_job_and_names_it() {
    let temp = tempfile::tempdir().unwrap();
    let (mut running, started) = endless(temp.path(), "1x1");
    let (name, pid) = started.first().unwrap();
    kill(*pid, "KILL");
    assert_eq!(running.wait().code(), Some(1));
    let log = text(&temp.path().join("stderr.log"));
    assert!(log.contains(&format!("node {name} was lost")) && log.contains("SIGKILL"), "{log}");
    assert_eq!(nodes(&temp.path().join("out")), []);
}

#[test]
fn a_time_limit_ends_the_run_and_is_reported() {
    let mut command = program(&ENDLESS);
    command.args(["--clusters", "1x1", "--timeout", "1s", "--json"]);
    let ended = finish(command);
    assert_eq!(ended.code, Some(4), "{}", ended.err);
    assert!(json(&ended.out)["error"].as_str().unwrap().contains("--timeout"));
    let ended = finish({
        let mut command = program(&ENDLESS);
        command.args(["--sequential", "--timeout", "200ms"]);
        command
    });
    assert_eq!(ended.code, Some(4));
}

#[test]
fn nodes_that_do_not_start_are_reported_with_their_last_lines() {
    let temp = tempfile::tempdir().unwrap();
    let script = temp.path().join("broken.sh");
    std::fs::write(&script, "#!/bin/sh\necho out of order >&2\nexit 7\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = program(&["run", "fib", "--clusters", "1x1"]);
    command.env("SPRINGTIDE_CLUSTER__AMS__PROGRAM", &script);
    let ended = finish(command);
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    for part in ["ams-1", "exit status: 7", "out of order", "4 times in a row"] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
}

#[test]
fn a_grid_that_is_up_serves_run_after_run() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    let config = file.to_str().unwrap();
    std::fs::write(
        &file,
        "[[cluster]]\nname = \"ams\"\nnodes = 1\n[[cluster]]\nname = \"del\"\nnodes = 1\n\
        [[link]]\nbetween = [\"ams\", \"del\"]\nrtt = \"7ms\"\n",
    )
    .unwrap();
    let on_it = |more: &[&str]| {
        let mut command = program(&["run", "fib", "--n", "25", "--config", config]);
        command.args(more);
        finish(command)
    };
    let early = on_it(&[]);
    assert_eq!(early.code, Some(1));
    // Before the first start not even an authority exists.
    assert!(early.err.contains("springtide up"), "{}", early.err);
    let mut up = RunningCommand::start(program(&["up", config]), temp.path());
    until("it is up", || text(&temp.path().join("stderr.log")).contains("Ctrl-C ends the grid"));
    let state = temp.path().join(".springtide/local");
    let before = nodes(&state);
    assert_eq!(before.len(), 2);
    let of_node = text(&state.join("node/del-1/node.toml"));
    assert!(of_node.contains("[[link]]") && of_node.contains("rtt = \"7ms\""), "{of_node}");
    for _ in 0..3 {
        let ended = on_it(&["--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert_eq!(json(&ended.out)["result"]["fib"], 75_025);
    }
    assert_eq!(nodes(&state), before, "nodes stay warm");
    let twice = run(&["up", config]);
    assert_eq!(twice.code, Some(1));
    assert!(twice.err.contains("is up already"), "{}", twice.err);
    // Without its authority's certificate, a grid gets no new authority, and clients do not take it
    // for down.
    let (certificate, aside) = (state.join("ca/ca.pem"), state.join("ca/aside"));
    std::fs::rename(&certificate, &aside).unwrap();
    for refused in [run(&["up", config]), on_it(&[])] {
        assert_eq!(refused.code, Some(5), "{}", refused.err);
        assert!(refused.err.contains("ca.pem is missing"), "{}", refused.err);
    }
    std::fs::rename(&aside, &certificate).unwrap();
    // A directory or a key that others can use is refused.
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&state, 0o750);
    for refused in [run(&["up", config]), run(&["token", "list", "--config", config])] {
        assert_eq!(refused.code, Some(5), "{}", refused.err);
        assert!(refused.err.contains("chmod 700"), "{}", refused.err);
    }
    mode(&state, 0o700);
    let key = state.join("ca/ca.key");
    mode(&key, 0o640);
    for refused in [run(&["up", config]), on_it(&[])] {
        assert_eq!(refused.code, Some(5), "{}", refused.err);
        assert!(refused.err.contains("chmod 600"), "{}", refused.err);
    }
    mode(&key, 0o600);
    let checked = run(&["net", "check", "--config", config, "--json"]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let found = json(&checked.out);
    assert_eq!((&found["schema"], &found["pairs"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(found["nodes"].as_array().unwrap().len(), 3);
    for node in found["nodes"].as_array().unwrap() {
        assert!(node["mtu_bytes"].as_u64().unwrap() >= 1200 && node["ok"] == true, "{node}");
    }
    assert!(found["buffers"]["receive"].as_u64().unwrap() > 0);
    // The authority's certificate, and those of the two nodes.
    assert_eq!(found["certificates"].as_array().unwrap().len(), 3);
    assert_eq!(found["firewall"]["protocol"], "udp");
    let pairs = run(&["net", "check", "--config", config, "--all-pairs", "--json"]);
    assert_eq!(pairs.code, Some(0), "{}", pairs.err);
    for from in json(&pairs.out)["pairs"].as_array().unwrap() {
        let reached = from["nodes"].as_array().unwrap();
        assert!(reached.len() == 2 && reached.iter().all(|node| node["ok"] == true), "{from}");
    }
    let table = run(&["net", "check", "--config", config, "--all-pairs"]).out;
    for part in ["here", "ams-1", "packets of", "certificate of authority", "firewall: allow UDP"] {
        assert!(table.contains(part), "{part}: {table}");
    }

    // A client of another authority is refused.
    let foreign = temp.path().join("foreign");
    let made = run(&["ca", "init", "--dir", foreign.to_str().unwrap(), "--grid", "local"]);
    assert_eq!(made.code, Some(0));
    let mut command = program(&["run", "fib", "--config", config]);
    command.env("SPRINGTIDE_TLS__CA", &foreign);
    let ended = finish(command);
    assert_eq!(ended.code, Some(5), "{}", ended.err);

    // A client's certificate has the right authority, but registers no node.
    let (ca, id) = (state.join("ca"), temp.path().join("ams-1"));
    let (ca, id) = (ca.to_str().unwrap(), id.to_str().unwrap());
    let issue = ["ca", "issue", "client-9", "--role", "client", "--cluster", "ams", "--dir", ca];
    assert_eq!(run(&[&issue[..], &["--out", id]].concat()).code, Some(0));
    let head = json(&text(&state.join("head.json")))["address"].clone();
    let node = temp.path().join("client-9.toml");
    let written = format!(
        "node = \"client-9\"\ncluster = \"ams\"\n[head]\naddress = {head}\n[identity]\n\
        certificate = \"{id}/node.pem\"\nkey = \"{id}/node.key\"\nca = \"{id}/ca.pem\"\n"
    );
    std::fs::write(&node, written).unwrap();
    let ended = run(&["node", "run", "--config", node.to_str().unwrap()]);
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    assert!(ended.err.contains("role"), "{}", ended.err);

    // A node that dies between jobs is back for the next one.
    kill(before[0].1, "KILL");
    until("it is back", || {
        let now = nodes(&state);
        now.len() == 2 && now != before
    });
    let ended = on_it(&[]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);

    up.signal("TERM");
    assert_eq!(up.wait().code(), Some(0));
    assert_eq!(nodes(&state), []);
    assert!(!state.join("head.json").exists());
}

#[test]
fn a_client_that_is_interrupted_frees_the_grid() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("dev");
    let dir_name = dir.to_str().unwrap();
    let mut up = RunningCommand::start(
        program(&["dev", "--clusters", "1x1", "--dir", dir_name]),
        temp.path(),
    );
    until("it is up", || text(&temp.path().join("stderr.log")).contains("Ctrl-C ends the grid"));
    let file = dir.join("grid.toml");
    let client_dir = temp.path().join("client");
    std::fs::create_dir(&client_dir).unwrap();
    let mut command = program(&ENDLESS);
    command.arg("-v").arg("--config").arg(&file);
    let mut client = RunningCommand::start(command, &client_dir);
    until("the job runs", || text(&client_dir.join("stderr.log")).contains("the root runs on"));
    // A second grid there is refused, and keeps the config of the first.
    let before = text(&file);
    let second = run(&["dev", "--clusters", "2x3", "--dir", dir_name]);
    assert_eq!(second.code, Some(1), "{}", second.err);
    assert!(second.err.contains("this grid is up already"), "{}", second.err);
    assert_eq!(text(&file), before);
    client.signal("INT");
    assert_eq!(client.wait().code(), Some(130));
    let mut command = program(&["run", "fib", "--n", "20", "--config"]);
    command.arg(&file);
    assert_eq!(finish(command).code, Some(0));
    up.signal("INT");
    assert_eq!(up.wait().code(), Some(0));
    assert_eq!(nodes(&dir.join(".springtide/local")), []);
    // A config of another author is not replaced either.
    std::fs::write(&file, "[[cluster]]\nname = \"mine\"\nnodes = 1\n").unwrap();
    let refused = run(&["dev", "--clusters", "1x1", "--dir", dir_name]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("was not written by `dev`"), "{}", refused.err);
    assert!(text(&file).contains("mine"));
}

/// The example program, which `cargo test` builds unless it builds only this test.
fn own_program() -> PathBuf {
    let program =
        Path::new(env!("CARGO_BIN_EXE_springtide")).with_file_name("examples/own_program");
    if !program.exists() {
        let line = ["build", "--quiet", "-p", "springtide", "--example", "own_program"];
        assert!(Command::new(env!("CARGO")).args(line).status().unwrap().success());
    }
    program
}

#[test]
fn two_programs_share_a_grid() {
    let own = |line: &[&str]| {
        let mut command = Command::new(own_program());
        command.args(line).stdin(std::process::Stdio::null());
        finish(command)
    };
    // It is a complete program of its own.
    let ended = own(&["run", "collatz", "--below", "30000", "--clusters", "1x2", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(json(&ended.out)["result"], serde_json::json!({ "start": 26623, "length": 308 }));

    // On a grid that another program started, the site starts its nodes.
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("dev");
    let line = ["dev", "--clusters", "1x2", "--dir", dir.to_str().unwrap()];
    let mut up = RunningCommand::start(program(&line), temp.path());
    until("it is up", || text(&temp.path().join("stderr.log")).contains("Ctrl-C ends the grid"));
    let file = dir.join("grid.toml");
    let config = file.to_str().unwrap();
    for _ in 0..2 {
        let ended = own(&["run", "collatz", "--below", "30000", "--config", config, "--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert_eq!(json(&ended.out)["result"]["start"], 26623);
        let ended = run(&["run", "fib", "--n", "22", "--config", config, "--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert_eq!(json(&ended.out)["result"]["fib"], 17_711);
    }
    up.signal("TERM");
    assert_eq!(up.wait().code(), Some(0));
    assert_eq!(nodes(&dir.join(".springtide/local")), []);
}
