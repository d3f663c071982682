//! SPMD programs over real processes that come, go, die and are given back: the answer is that of a run alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{Running, finish, kill, nodes, program, run, text, until};

fn result(of: &str) -> Value {
    serde_json::from_str(of).unwrap_or_else(|error| panic!("{error}: {of}"))
}

/// The checksum of a run alone.
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
    for told in ["from step 0 on 2 processes compute on 2 nodes", "the program has no use for"] {
        assert!(ended.err.contains(told), "{told}: {}", ended.err);
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
    let mut running = Running::start(command, temp.path());
    let told = || text(&temp.path().join("stderr.log"));
    until("iterations are done", || told().contains("iteration 20 took"));
    let root = told()
        .lines()
        .rev()
        .find_map(|line| line.split("the root runs on ").nth(1).map(|node| node.trim().to_owned()));
    let root = root.expect("the root runs");
    let (_, pid) = nodes(&out).into_iter().find(|(node, _)| *node != root).unwrap();
    kill(pid, "KILL");
    assert_eq!(running.wait().code(), Some(0), "{}", told());
    let told = told();
    assert!(told.contains("the processes begin anew from step"), "{told}");
    let checksum = result(&text(&temp.path().join("stdout.log")))["checksum"].clone();
    assert_eq!(checksum, alone(&job), "{told}");
    assert_eq!(nodes(&out), []);
}

/// An example's program, which `cargo test` builds unless it is told to build this test alone.
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
    // Nobody gives it more than it was started with.
    let wants = heat(&["--clusters", "1x2", "--nodes", "9"]);
    assert_eq!(wants["checksum"], alone["checksum"]);
}

/// Users' code that the runtime's actors call may panic: that is told, and ends no node.
#[test]
fn a_job_that_panics_when_it_is_asked_runs_all_the_same() {
    let mut command = Command::new(example("deadly"));
    command.args(["run", "careless", "--clusters", "1x2", "--json"]);
    let ended = finish(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(result(&ended.out)["result"], 7, "{}", ended.err);
}

/// Among other jobs: it grows to the power of two that there is, gives up more than is asked for, and has it back.
#[test]
fn a_transform_is_resized_among_other_jobs() {
    // How well such small steps use two nodes is a matter of what else the machine does: that is not measured.
    let config =
        "[adaptation]\nmode = \"static\"\n[scheduling]\npoll = \"300ms\"\nscan_every = \"300ms\"";
    let up = Up::with(&[("ams", 5)], config);
    let job = |line: &[&str]| {
        let config = ["--config", up.file.to_str().unwrap()];
        run(&[&["job"], line, &config].concat())
    };
    let size = |number: &str| {
        let told = job(&["status", number, "--json"]);
        let sizes = result(&told.out)["sizes"].clone();
        sizes.as_object().map_or(0, |all| all.values().filter_map(Value::as_u64).sum())
    };
    // Without a pause it would end before it is looked at; it is cancelled in the end.
    let submitted = job(&["submit", "ft", "--size", "16", "--iterations", "1000000", "--min", "2"]);
    assert_eq!(submitted.out, "job-1\n", "{}", submitted.err);
    until("it has grown", || size("1") == 4);
    let rigid = job(&["submit", "queens", "--size", "11", "--kind", "rigid", "--min", "2"]);
    assert_eq!(rigid.out, "job-2\n", "{}", rigid.err);
    // It may have grown again before anybody looks at its size.
    let logs = || job(&["logs", "1"]).out;
    until("it has shrunk", || logs().contains("2 processes compute on 2 nodes"));
    let done = job(&["result", "2", "--wait", "--timeout", "2m"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    until("it has grown again", || size("1") == 4);
    until("all compute", || logs().matches("4 processes compute on 4 nodes").count() >= 2);
    assert!(!logs().contains("begin anew"), "{}", logs());
    assert_eq!(job(&["cancel", "1"]).code, Some(0));
    up.end();
}
