//! Jobs that lose nodes while they start, and clients that are killed, on grids of real processes.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    RunningCommand, assert_sound, finish, kill, nodes, program, run, text, until,
};

/// A running grid with two clusters of two nodes.
struct Up {
    _up: RunningCommand,
    temp: tempfile::TempDir,
}

impl Up {
    fn start() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let two = |name| format!("[[cluster]]\nname = \"{name}\"\nnodes = 2\n");
        std::fs::write(temp.path().join("grid.toml"), two("ams") + &two("del")).unwrap();
        let config = temp.path().join("grid.toml");
        let up = RunningCommand::start(program(&["up", config.to_str().unwrap()]), temp.path());
        let this = Self { _up: up, temp };
        until("it is up", || this.output().contains("Ctrl-C ends the grid"));
        this
    }

    fn output(&self) -> String {
        text(&self.temp.path().join("stderr.log"))
    }

    fn config(&self) -> String {
        self.temp.path().join("grid.toml").to_str().unwrap().to_owned()
    }

    fn state(&self) -> PathBuf {
        self.temp.path().join(".springtide/local")
    }

    /// The nodes that are idle.
    fn idle(&self) -> Vec<String> {
        let listed = run(&["node", "list", "--config", &self.config(), "--json"]);
        let listed: Value = serde_json::from_str(&listed.out).unwrap_or_default();
        let all = listed["nodes"].as_array().cloned().unwrap_or_default();
        let idle = all.iter().filter(|node| node["state"] == "idle");
        idle.filter_map(|node| node["node"].as_str().map(str::to_owned)).collect()
    }
}

#[test]
fn a_job_whose_start_loses_a_node_ends_with_its_result() {
    let grid = Up::start();
    let before = nodes(&grid.state());
    assert_eq!(before.len(), 4);
    for (at, (node, pid)) in before.iter().enumerate() {
        let dir = grid.temp.path().join(format!("run-{at}"));
        std::fs::create_dir(&dir).unwrap();
        let line = ["run", "queens", "--size", "11", "--json", "--config", &grid.config()];
        let mut job = RunningCommand::start(program(&line), &dir);
        // A time between the start of the command and the end of a short job: each node once.
        std::thread::sleep(Duration::from_millis(20 + 60 * at as u64));
        kill(*pid, "KILL");
        let status = job.wait();
        let (out, err) = (text(&dir.join("stdout.log")), text(&dir.join("stderr.log")));
        assert_eq!(status.code(), Some(0), "{node}: {err}\n{out}\n{}", grid.output());
        let object: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(object["result"]["solutions"], 2680, "{out}");
        until("the node is back", || grid.idle().len() == 4);
    }
    assert_sound(&grid.state());
}

#[test]
fn a_killed_client_frees_its_nodes() {
    let grid = Up::start();
    let dir = grid.temp.path().join("client");
    std::fs::create_dir(&dir).unwrap();
    let line = ["run", "queens", "--size", "18", "-v", "--config", &grid.config()];
    let mut client = RunningCommand::start(program(&line), &dir);
    until("the job runs", || text(&dir.join("stderr.log")).contains("the root runs on"));
    let before = nodes(&grid.state());
    client.signal("KILL");
    client.wait();
    // The nodes leave the job by themselves, without a restart.
    until("the nodes are free", || grid.idle().len() == 4);
    assert_eq!(nodes(&grid.state()), before);
    let next = finish(program(&["run", "fib", "--n", "20", "--config", &grid.config()]));
    assert_eq!(next.code, Some(0), "{}", next.err);
}
