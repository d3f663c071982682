//! SPMD programs over real processes that join, leave, fail and are released. The result is that of
//! a run without a grid.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{
    RunningCommand, assert_sound, finish, kill, nodes, program, run, text, until,
};

fn result(of: &str) -> Value {
    serde_json::from_str(of).unwrap_or_else(|error| panic!("{error}: {of}"))
}

/// The checksum of a run without a grid.
fn alone(job: &[&str]) -> Value {
    let ended = finish(program(&[&["run"], job, &["--sequential", "--json"]].concat()));
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    result(&ended.out)["checksum"].clone()
}

#[test]
fn a_transform_uses_a_power_of_two_and_gives_the_rest_back() {
    let job = ["ft", "--size", "16", "--iterations", "300"];
    let ended = run(&[&["run"], &job[..], &["--clusters", "1x3", "-v", "--json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(result(&ended.out)["checksum"], alone(&job), "{}", ended.err);
    for part in ["from step 0 on 2 processes compute on 2 nodes", "the program has no use for"] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    let refused = run(&["run", "ft", "--size", "48", "--sequential"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("give a power of two, such as 32 or 64"), "{}", refused.err);
}

#[test]
fn bodies_move_on_when_a_node_is_killed() {
    let job = ["nbody", "--bodies", "600", "--steps", "400"];
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let mut command = program(&[&["run"], &job[..], &["--json"]].concat());
    command.args(["-v", "--clusters", "2x2", "--out"]).arg(&out);
    let mut running = RunningCommand::start(command, temp.path());
    let output = || text(&temp.path().join("stderr.log"));
    until("iterations are done", || output().contains("iteration 20 took"));
    let root = output()
        .lines()
        .rev()
        .find_map(|line| line.split("the root runs on ").nth(1).map(|node| node.trim().to_owned()));
    let root = root.expect("the root runs");
    let (_, pid) = nodes(&out).into_iter().find(|(node, _)| *node != root).unwrap();
    kill(pid, "KILL");
    assert_eq!(running.wait().code(), Some(0), "{}", output());
    let output = output();
    assert!(output.contains("the processes restart from step"), "{output}");
    let checksum = result(&text(&temp.path().join("stdout.log")))["checksum"].clone();
    assert_eq!(checksum, alone(&job), "{output}");
    assert_eq!(nodes(&out), []);
    assert_sound(&out);
}

/// The program of an example, which `cargo test` builds unless it builds only this test.
fn example(name: &str) -> PathBuf {
    let examples = Path::new(env!("CARGO_BIN_EXE_springtide")).with_file_name("examples");
    let program = examples.join(name);
    if !program.exists() {
        let line = ["build", "--quiet", "-p", "springtide", "--example", name];
        assert!(Command::new(env!("CARGO")).args(line).status().unwrap().success());
    }
    program
}

#[test]
fn an_example_of_ones_own_gives_the_same_bits_on_any_number_of_processes() {
    let heat = |line: &[&str]| {
        let mut command = Command::new(example("heat"));
        command.args(["run", "heat", "--cells", "5000", "--steps", "300", "--json"]).args(line);
        let ended = finish(command);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        result(&ended.out)
    };
    let alone = heat(&["--sequential"]);
    assert_eq!(alone["result"]["processes"], 1);
    let many = heat(&["--clusters", "1x3"]);
    assert_eq!(many["result"]["processes"], 3);
    assert_eq!(many["checksum"], alone["checksum"]);
    // It gets no more than its number at the start.
    let wants = heat(&["--clusters", "1x2", "--nodes", "9"]);
    assert_eq!(wants["checksum"], alone["checksum"]);
}

/// Users' code that the runtime's actors call may panic: the panic is logged, and ends no node.
#[test]
fn a_job_that_panics_when_it_is_asked_runs_all_the_same() {
    let mut command = Command::new(example("deadly"));
    command.args(["run", "careless", "--clusters", "1x2", "--json"]);
    let ended = finish(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(result(&ended.out)["result"], 7, "{}", ended.err);
}

/// Among other jobs, it grows to the available power of two, releases more than requested, and gets
/// it back.
#[test]
fn a_transform_is_resized_among_other_jobs() {
    // The efficiency of such small steps depends on the load of this host, so that it is not
    // measured.
    let config = "[adaptation]\nmode = \"static\"\n\
        [scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"";
    let up = Up::with(&[("ams", 5)], config);
    let job = |line: &[&str]| {
        let config = ["--config", up.file.to_str().unwrap()];
        run(&[&["job"], line, &config].concat())
    };
    let size = |number: &str| {
        let output = job(&["status", number, "--json"]);
        let sizes = result(&output.out)["sizes"].clone();
        sizes.as_object().map_or(0, |all| all.values().filter_map(Value::as_u64).sum())
    };
    // A long job, so that it can be inspected; it is cancelled at the end.
    let submitted = job(&["submit", "ft", "--size", "16", "--iterations", "1000000", "--min", "2"]);
    assert_eq!(submitted.out, "job-1\n", "{}", submitted.err);
    until("it has grown", || size("1") == 4);
    let rigid = job(&["submit", "queens", "--size", "11", "--kind", "rigid", "--min", "2"]);
    assert_eq!(rigid.out, "job-2\n", "{}", rigid.err);
    // It may have grown again before its size is read.
    let logs = || job(&["logs", "1"]).out;
    until("it has shrunk", || logs().contains("2 processes compute on 2 nodes"));
    let done = job(&["result", "2", "--wait", "--timeout", "2m"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    until("it has grown again", || size("1") == 4);
    until("all compute", || logs().matches("4 processes compute on 4 nodes").count() >= 2);
    assert!(!logs().contains("restart from step"), "{}", logs());
    assert_eq!(job(&["cancel", "1"]).code, Some(0));
    up.end();
}
