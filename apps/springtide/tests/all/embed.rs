//! Grids inside programs: the examples, and a program that exercises the door.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::{CommandOutput, RunningCommand, finish, kill, text, until};

/// The program of an example, which `cargo test` builds unless it builds only this test.
pub fn example(name: &str) -> PathBuf {
    let examples = Path::new(env!("CARGO_BIN_EXE_springtide")).with_file_name("examples");
    let program = examples.join(name);
    if !program.exists() {
        let line = ["build", "--quiet", "-p", "springtide", "--example", name];
        assert!(Command::new(env!("CARGO")).args(line).status().unwrap().success());
    }
    program
}

/// Runs an example without variables of the caller's environment that concern it.
fn command(name: &str, args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(example(name));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("SPRINGTIDE_")) {
        command.env_remove(key);
    }
    command.args(args).stdin(Stdio::null()).env("TMPDIR", dir).env_remove("RUST_LOG");
    command
}

fn run(name: &str, args: &[&str], dir: &Path) -> CommandOutput {
    finish(command(name, args, dir))
}

/// Whether nothing is left of grids in a directory for temporary files: neither files nor nodes.
fn assert_nothing_left(dir: &Path) {
    let left: Vec<_> =
        std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect();
    let grids = left.iter().filter(|path| path.to_string_lossy().contains("springtide-run"));
    assert_eq!(grids.count(), 0, "{left:?}");
    assert!(!has_nodes(dir), "nodes are left");
}

/// Whether a node runs whose files are below a directory.
fn has_nodes(dir: &Path) -> bool {
    let start = dir.display().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).split('\0').any(|word| word.starts_with(&start))
    })
}

#[test]
fn the_first_programs_compute_on_nodes_of_their_own() {
    let temp = tempfile::tempdir().unwrap();
    for (name, expected) in [
        ("divide_and_conquer", "230631 has the longest sequence, of 443 numbers\n"),
        ("master_worker", "17984 primes in 100 ranges\n"),
        ("processes", "the middle of the rod has 0."),
        (
            "from_others",
            "5000050000 is the sum\n9801 is the last of 100 squares\n841 is the sum of two jobs\n\
             75025 is fib(25)\n",
        ),
    ] {
        let ended = run(name, &[], temp.path());
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.err);
        assert!(ended.out.starts_with(expected), "{name}: {}", ended.out);
        assert_nothing_left(temp.path());
    }
    let ended = run("actors", &[], temp.path());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let process_of = |node: &str| {
        let line = ended.out.lines().find(|line| line.starts_with(node)).expect("it answers");
        let (greeting, process) = line.split_once(" in process ").expect("it says which process");
        assert_eq!(greeting, format!("{node}: hello world, number 1"));
        process.to_owned()
    };
    assert_ne!(process_of("ams-1"), process_of("del-1"));
    assert_nothing_left(temp.path());
}

/// The actor panics at the third message. Its successor gets the sum with the fourth one.
#[test]
fn a_singleton_that_panics_is_created_again_with_a_new_state() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run("singleton", &[], temp.path());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines: Vec<&str> = ended.out.lines().collect();
    let [first, second, panicked, unchanged, restored] = lines[..] else { panic!("{lines:?}") };
    assert!(panicked.starts_with("actor `singleton:counter:"), "{panicked}");
    let sums = [first, second, unchanged, restored];
    assert_eq!(sums, ["the sum is 1", "the sum is 3", "the sum is 3", "the sum is 6"]);
    assert_nothing_left(temp.path());
}

/// Each line of the program's output is the result of one check: see the example `door`.
#[test]
fn a_program_follows_cancels_and_loses_jobs_with_typed_errors() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run("door", &["check"], temp.path());
    let shown = format!("{}\n{}", ended.out, ended.err);
    assert_eq!(ended.code, Some(0), "{shown}");
    for expected in [
        "not yet: NoNodeProgram",
        "many at once: 0, 1, 4, 9, 16, 25",
        "a longer output: 3000000 bytes",
        "sized: 49",
        "events: started, progress 1 of 2, text half",
        "outcome: 7",
        "failed: task door.fail at /0 failed: on purpose",
        "panicked: task door.fail at / panicked: no reason (apps/springtide/examples/door.rs:",
        "not registered: door.unknown",
        "forgotten: task door.forgets at /0 failed: task door.unknown is not registered",
        "cancelled: the job was cancelled: job-",
        "dropped, and the grid is free: 4",
        "deadline: door.sleep did not end within its deadline of 200ms",
        "too large: NotPlaced",
        "blocking: 36",
        "ended: Ended",
    ] {
        assert!(ended.out.lines().any(|line| line.starts_with(expected)), "{expected}: {shown}");
    }
    assert_nothing_left(temp.path());
}

#[test]
fn nothing_is_left_after_a_signal_a_panic_and_a_kill() {
    let temp = tempfile::tempdir().unwrap();
    let sleep = |expected: &str| {
        let running = RunningCommand::start(command("door", &["sleep"], temp.path()), temp.path());
        until("the grid is up", || text(&temp.path().join("stdout.log")).contains(expected));
        assert!(has_nodes(temp.path()));
        running
    };
    let mut interrupted = sleep("up");
    interrupted.signal("INT");
    assert_eq!(interrupted.wait().code(), Some(130));
    assert_nothing_left(temp.path());
    let ended = run("door", &["panic"], temp.path());
    assert_eq!(ended.code, Some(101), "{}", ended.err);
    assert_nothing_left(temp.path());
    // Its nodes end with it, and the next grid removes its files.
    let mut killed = sleep("up");
    kill(killed.0.id(), "KILL");
    killed.wait();
    until("its nodes end", || !has_nodes(temp.path()));
    run("actors", &[], temp.path());
    assert_nothing_left(temp.path());
}

#[test]
fn a_program_connects_to_a_grid_that_another_program_started() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    let shown = file.display().to_string();
    std::fs::write(&file, "grid = \"door\"\n[[cluster]]\nname = \"ams\"\nnodes = 2\n").unwrap();
    let none = run("door", &["connect", &shown], temp.path());
    assert!(none.out.starts_with("Unreachable"), "{}\n{}", none.out, none.err);
    let up = crate::support::program(&["up", &shown]);
    let mut up = RunningCommand::start(up, temp.path());
    let log = temp.path().join("stderr.log");
    until("the grid is up", || text(&log).contains("run jobs with"));
    // Its site restarts the nodes with the program that submits.
    let began = Instant::now();
    let ended = run("door", &["connect", &shown], temp.path());
    assert_eq!(ended.out, "81 on ams-1, ams-2\n", "{} after {:?}", ended.err, began.elapsed());
    up.signal("INT");
    assert!(up.wait().success());
}
