//! Tasks that end the process of every node that runs them: the job ends and names them, and the
//! grid continues.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{CommandOutput, finish};

/// The example program, which `cargo test` builds unless it builds only this test.
fn deadly(line: &[&str]) -> CommandOutput {
    let program: PathBuf =
        Path::new(env!("CARGO_BIN_EXE_springtide")).with_file_name("examples/deadly");
    if !program.exists() {
        let line = ["build", "--quiet", "-p", "springtide", "--example", "deadly"];
        assert!(Command::new(env!("CARGO")).args(line).status().unwrap().success());
    }
    let mut command = Command::new(program);
    command.args(["run", "deadly"]).args(line).stdin(Stdio::null());
    finish(command)
}

const LAST_LINE: &str = "this is the deadly task";

#[test]
fn a_task_that_three_nodes_died_of_ends_the_job_with_their_last_lines() {
    let ended = deadly(&["--clusters", "1x6", "--json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let result: Value = serde_json::from_str(&ended.out).unwrap();
    let error = result["error"].as_str().unwrap();
    assert!(error.starts_with("3 nodes died holding task deadly.abort (/1)"), "{error}");
    assert_eq!(error.matches(LAST_LINE).count(), 3, "{error}");
    assert!(!error.contains("ams-1: "), "it runs the root: {error}");
    assert!(error.contains("--sequential") && error.contains("--poison"), "{error}");
}

#[test]
fn how_many_may_die_is_what_was_asked() {
    let ended = deadly(&["--clusters", "1x3", "--poison", "1"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("1 node died holding task deadly.abort (/1)"), "{}", ended.err);
}

/// The root's node may run the task itself.
#[test]
fn a_root_that_nodes_die_of_one_after_the_other_is_blamed() {
    let ended = deadly(&["--clusters", "3x3", "--seconds", "0"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let root = "3 nodes died holding the root of deadly (/)";
    let task = "3 nodes died holding task deadly.abort (/1)";
    assert!(ended.err.contains(root) || ended.err.contains(task), "{}", ended.err);
    assert!(ended.err.matches(LAST_LINE).count() >= 3, "{}", ended.err);
}
