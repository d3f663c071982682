//! Runs the embedding example: its job on its own processes, and its actor on each.

use std::process::Command;

#[test]
fn the_embedding_example_runs_its_job_and_actor_on_two_processes() {
    // `cargo test` builds a package's examples together with its tests.
    let test = std::env::current_exe().expect("this binary has a path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps");
    let example = target.join("examples").join(format!("embed{}", std::env::consts::EXE_SUFFIX));
    let output = Command::new(&example).output().unwrap_or_else(|error| {
        panic!("{}: {error} (cargo build --example embed makes it)", example.display())
    });
    let out = String::from_utf8_lossy(&output.stdout);
    let output_text =
        format!("stdout:\n{out}\nstderr:\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{output_text}");
    assert!(out.contains("148933 primes below two million"), "{output_text}");
    let process_of = |node: &str| {
        let line = out.lines().find(|line| line.starts_with(node)).expect("each node answers");
        assert!(line.contains("hello world, you are number 1 here"), "{output_text}");
        line.split("process ").nth(1).expect("it says which process").to_owned()
    };
    assert_ne!(process_of("ams-1"), process_of("del-1"), "{output_text}");
}
