//! A failed write fails every command: exit 1 and an error in `--json`.
//!
//! Permissions of directories do not bind root. Instead, a directory stands in the place of a file,
//! or a file in the place of a directory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{CommandOutput, finish, program};

/// Runs the program in a directory.
fn run_in(dir: &Path, line: &[&str]) -> CommandOutput {
    let mut command = program(line);
    command.current_dir(dir);
    finish(command)
}

fn object(ended: &CommandOutput) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

/// A run of each job that writes files, with the name of one.
const RUNS: [(&[&str], &str); 3] = [
    (&["run", "raytracer", "--width", "16", "--height", "16"], "raytracer.png"),
    (
        &["run", "barnes-hut", "--bodies", "64", "--steps", "2", "--snapshot-every", "1"],
        "snapshot-000001.npy",
    ),
    (&["solve", "SMPS", "--all-scenarios"], "x.csv"),
];

#[test]
fn a_file_of_a_job_that_cannot_be_written_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let smps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stochastic/tests/data/farm");
    let smps = smps.to_str().unwrap();
    for (number, (line, file)) in RUNS.into_iter().enumerate() {
        let line: Vec<&str> =
            line.iter().map(|word| if *word == "SMPS" { smps } else { *word }).collect();
        let out = temp.path().join(format!("run-{number}"));
        // A directory with content has the file's name.
        fs::create_dir_all(out.join(file).join("full")).unwrap();
        let dir = out.to_str().unwrap();
        let line = [&line[..], &["--sequential", "--json", "--quiet", "--out", dir]].concat();
        let ended = run_in(temp.path(), &line);
        assert_eq!(ended.code, Some(1), "{line:?}: {}{}", ended.out, ended.err);
        let object = object(&ended);
        let run = if object.get("run").is_some() { &object["run"] } else { &object };
        assert_eq!(run["ok"], false, "{line:?}");
        let error = run["error"].as_str().unwrap_or_default();
        assert!(error.contains(file), "{line:?}: {error}");
        assert!(ended.err.contains(file), "{line:?}: {}", ended.err);
        // The result is printed all the same.
        assert!(run["checksum"].is_string(), "{line:?}: {object}");
        let kept: Value =
            serde_json::from_slice(&fs::read(out.join("result.json")).unwrap()).unwrap();
        assert_eq!(kept["error"], run["error"], "{line:?}");
    }
}

#[test]
fn a_run_that_cannot_be_described_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("run");
    fs::create_dir_all(out.join("config.toml/full")).unwrap();
    let dir = out.to_str().unwrap();
    let line = ["run", "fib", "--n", "10", "--sequential", "--json", "--out", dir];
    let ended = run_in(temp.path(), &line);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(object(&ended)["error"].as_str().unwrap().contains("config.toml"));
}

/// Commands that write into `--out`, and their output with `--json` if all writes succeed.
const WRITERS: [&[&str]; 3] = [
    &["sim", "run", "SCENARIO", "--json", "--out", "OUT"],
    &["sim", "workload", "wm", "--json", "--out", "OUT"],
    &["workflow", "plan", "WORKFLOW", "--slots", "SLOTS", "--json", "--out", "OUT"],
];

#[test]
fn every_command_with_an_output_directory_fails_where_it_cannot_write() {
    let temp = tempfile::tempdir().unwrap();
    let scenario = temp.path().join("small.toml");
    fs::write(
        &scenario,
        "name = \"small\"\n[app]\niterations = 2\nwork = \"2s\"\nleaves = 16\n\
        [[cluster]]\nname = \"a\"\nnodes = 2\nstart = 2\n",
    )
    .unwrap();
    let workflow = temp.path().join("small.dax");
    fs::write(&workflow, "<adag name=\"small\"><job id=\"a\" name=\"a\" runtime=\"5\"/></adag>")
        .unwrap();
    let slots = temp.path().join("slots.json");
    fs::write(
        &slots,
        "{\"schema\":1,\"origin_unix_s\":1764061200.0,\"sites\":[{\"name\":\"a\",\"processors\":2,\
        \"slots\":[{\"processors\":2,\"start_s\":0.0,\"end_s\":3600.0,\"divisible\":false,\
        \"extensible\":false}]}]}",
    )
    .unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let below = file.join("out");
    for line in WRITERS {
        let word = |word: &&'static str| match *word {
            "SCENARIO" => scenario.to_str().unwrap().to_owned(),
            "WORKFLOW" => workflow.to_str().unwrap().to_owned(),
            "SLOTS" => slots.to_str().unwrap().to_owned(),
            "OUT" => below.to_str().unwrap().to_owned(),
            word => word.to_owned(),
        };
        let line: Vec<String> = line.iter().map(word).collect();
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let ended = run_in(temp.path(), &line);
        assert_eq!(ended.code, Some(1), "{line:?}: {}{}", ended.out, ended.err);
        let error = object(&ended)["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains(below.to_str().unwrap()), "{line:?}: {error}");
    }
    // Reports print no object, only the error.
    let run = temp.path().join("run");
    let (run, below) = (run.to_str().unwrap(), below.to_str().unwrap());
    let line = ["run", "fib", "--n", "10", "--sequential", "--quiet", "--out", run];
    assert_eq!(run_in(temp.path(), &line).code, Some(0));
    for line in [
        vec!["report", run, "--out", below],
        vec!["report", run, run, "--compare", "--out", below],
        vec!["trace", run, "--out", below],
    ] {
        let ended = run_in(temp.path(), &line);
        assert_eq!(ended.code, Some(1), "{line:?}: {}{}", ended.out, ended.err);
        assert!(ended.err.contains(below), "{line:?}: {}", ended.err);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_standard_output_is_an_error() {
    let mut command = program(&["run", "fib", "--n", "10", "--sequential", "--json"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let out = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("cannot write"));
}

#[test]
fn runs_of_one_second_have_directories_of_their_own() {
    let temp = tempfile::tempdir().unwrap();
    let line = ["run", "raytracer", "--width", "16", "--height", "16", "--sequential", "--quiet"];
    let start = || {
        let mut command = program(&line);
        command.current_dir(temp.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let started: Vec<_> = (0..6).map(|_| start()).collect();
    for run in started {
        let out = run.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let left: BTreeSet<_> =
        fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 6, "{left:?}");
    assert!(left.iter().all(|dir| dir.join("raytracer.png").is_file()), "{left:?}");
}

#[test]
fn of_two_runs_in_one_directory_one_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("run");
    let dir = out.to_str().unwrap();
    let line = ["run", "fib", "--n", "20", "--sequential", "--json", "--out", dir];
    let start = || {
        let mut command = program(&line);
        command.current_dir(temp.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let started: Vec<_> = (0..4).map(|_| start()).collect();
    let ended: Vec<_> = started.into_iter().map(|run| run.wait_with_output().unwrap()).collect();
    let (done, refused): (Vec<_>, Vec<_>) = ended.iter().partition(|out| out.status.success());
    assert_eq!((done.len(), refused.len()), (1, 3));
    for out in refused {
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("holds another run"), "{said}");
    }
    let kept: Value = serde_json::from_slice(&fs::read(out.join("result.json")).unwrap()).unwrap();
    assert_eq!(kept["ok"], true);
}
