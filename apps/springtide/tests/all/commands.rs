//! Any programs as jobs: their environment, output and exit codes, MPI, arrays and dependencies.

use std::process::Command;

use crate::drains::Up;
use crate::jobs::{job, status};
use crate::support::{CommandOutput, run, text, until};

/// Short intervals, so that free processors are detected soon.
const QUICK: &str = "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"";

/// Submits a program with options of `job submit`.
fn submit(up: &Up, options: &[&str], program: &[&str]) -> CommandOutput {
    let config = ["--config", up.file.to_str().unwrap(), "--"];
    let submitted = run(&[&["job", "submit"], options, &config, program].concat());
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    submitted
}

fn result(up: &Up, number: &str) -> CommandOutput {
    job(up, &["result", number, "--wait", "--timeout", "2m"])
}

fn rank(up: &Up, number: &str, rank: &str) -> String {
    job(up, &["logs", number, "--rank", rank]).out
}

#[test]
fn a_program_runs_on_all_nodes_and_its_exit_code_is_that_of_the_job() {
    let up = Up::with(&[("ams", 3)], QUICK);
    let script = "echo $SPRINGTIDE_JOB_ID $SPRINGTIDE_RANK $SPRINGTIDE_PROCESSES $0; cat";
    let stdin = up.temp.path().join("input");
    std::fs::write(&stdin, "from a file").unwrap();
    let options = ["--processors", "3", "--stdin", stdin.to_str().unwrap()];
    submit(&up, &options, &["sh", "-c", script, "word"]);
    let done = result(&up, "1");
    assert_eq!(done.code, Some(0), "{}", done.err);
    for number in 0..3 {
        let expected = format!("1 {number} 3 word\nfrom a file");
        assert_eq!(rank(&up, "1", &number.to_string()), expected);
    }
    let followed = job(&up, &["logs", "1", "--follow", "--lines", "2"]).out;
    assert_eq!(followed.lines().count(), 2, "{followed}");
    // The first failure ends the others, and its code is that of the job.
    let script = "test $SPRINGTIDE_RANK = 1 && exit 7; trap 'echo asked; exit 1' TERM; \
                  while true; do sleep 0.1; done";
    submit(&up, &["--processors", "2"], &["sh", "-c", script]);
    let failed = result(&up, "2");
    assert_eq!(failed.code, Some(7), "{}", failed.err);
    assert!(failed.err.contains("rank 1 on node ams-") && failed.err.contains("code 7"));
    assert_eq!(rank(&up, "2", "0"), "asked\n");
    assert_eq!(status(&up, "2")["exit"], 7);
    // A cancelled program is asked to end.
    let script = "trap 'echo asked; exit 0' TERM; echo began; while true; do sleep 0.1; done";
    submit(&up, &[], &["sh", "-c", script]);
    until("it has begun", || rank(&up, "3", "0") == "began\n");
    assert_eq!(job(&up, &["cancel", "3"]).code, Some(0));
    assert_eq!(rank(&up, "3", "0"), "began\nasked\n");
    submit(&up, &[], &["no-such-program"]);
    assert_eq!(result(&up, "4").code, Some(127));
    // It cannot grow or shrink.
    let config = ["--config", up.file.to_str().unwrap(), "--", "true"];
    let refused = run(&[&["job", "submit", "--kind", "malleable"], &config[..]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("rigid or moldable"), "{}", refused.err);
    let report = job(&up, &["report"]).out;
    let rows: Vec<&str> = report.lines().collect();
    assert!(rows[0].starts_with("job,user,state,exit,submitted_unix_s"), "{report}");
    assert_eq!(rows.len(), 5, "{report}");
    assert!(rows[2].starts_with("2,") && rows[2].contains(",failed,7,"), "{report}");
    let usage = status(&up, "1")["usage"].clone();
    assert_eq!((&usage["processors"], &usage["starts"]), (&3.into(), &1.into()));
    assert!(usage["processor_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{usage}");
    up.end();
}

#[test]
fn a_program_starts_again_after_the_loss_of_a_node() {
    let up = Up::with(&[("ams", 2)], QUICK);
    let script = "echo $SPRINGTIDE_TRY; test $SPRINGTIDE_TRY = 2 && exit 0; \
                  test $SPRINGTIDE_RANK = 0 && sleep 1000; kill -9 $PPID; sleep 1000";
    submit(&up, &["--processors", "2"], &["sh", "-c", script]);
    let done = result(&up, "1");
    assert_eq!(done.code, Some(0), "{}\n{}", done.err, job(&up, &["logs", "1"]).out);
    assert_eq!(rank(&up, "1", "1"), "2\n");
    assert_eq!(job(&up, &["logs", "1", "--rank", "0", "--try", "1"]).out, "1\n");
    submit(&up, &["--processors", "2", "--restarts", "0"], &["sh", "-c", script]);
    let failed = result(&up, "2");
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    up.end();
}

#[test]
fn arrays_and_dependencies() {
    let up = Up::with(&[("ams", 3)], QUICK);
    let script = "echo $SPRINGTIDE_ARRAY_INDEX of $SPRINGTIDE_ARRAY_COUNT; \
                  test $SPRINGTIDE_ARRAY_INDEX != 30";
    let array = submit(&up, &["--array", "10-40:10%1"], &["sh", "-c", script]);
    assert_eq!(array.out, "job-1\njob-2\njob-3\njob-4\n");
    let sleeps = submit(&up, &["--after", "1,2"], &["sleep", "1000"]);
    assert_eq!(sleeps.out, "job-5\n");
    submit(&up, &["--after", "job-5"], &["true"]);
    let why = job(&up, &["why", "6"]).out;
    assert!(why.contains("it waits for the success of job-5"), "{why}");
    submit(&up, &["--after-any", "5"], &["true"]);
    for (number, code, index) in [("1", 0, 10), ("2", 0, 20), ("3", 1, 30), ("4", 0, 40)] {
        assert_eq!(result(&up, number).code, Some(code), "{number}");
        assert_eq!(rank(&up, number, "0"), format!("{index} of 4\n"));
    }
    until("it runs", || status(&up, "5")["state"] == "running");
    assert_eq!(job(&up, &["cancel", "5"]).code, Some(0));
    let failed = result(&up, "6");
    assert_eq!(failed.code, Some(3), "{}", failed.err);
    assert!(failed.err.contains("job-5 must succeed first"), "{}", failed.err);
    assert_eq!(result(&up, "7").code, Some(0));
    // The ends of earlier jobs are known.
    submit(&up, &["--after", "1", "--after-any", "3"], &["true"]);
    assert_eq!(result(&up, "8").code, Some(0));
    let config = ["--config", up.file.to_str().unwrap(), "--", "true"];
    for (job, expected) in [
        ("3", "it waits for the success of job-3, which is failed"),
        ("99", "you have submitted no such job"),
    ] {
        let refused = run(&[&["job", "submit", "--after", job], &config[..]].concat());
        assert_eq!(refused.code, Some(3), "{}", refused.err);
        assert!(refused.err.contains(expected), "{}", refused.err);
    }
    up.end();
}

#[test]
fn many_jobs_of_one_file_are_submitted_together() {
    let up = Up::with(&[("ams", 1)], QUICK);
    let file = up.temp.path().join("jobs.toml");
    let text = "[[job]]\nprogram = \"fib\"\nargs = [\"--n\", \"5\"]\nkind = \"rigid\"\n\
                count = 2500\n\
                [[job]]\nprogram = \"command\"\nargs = [\"--\", \"true\"]\n";
    std::fs::write(&file, text).unwrap();
    let submitted = job(&up, &["submit", "--file", file.to_str().unwrap()]);
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    let numbers: Vec<String> = (1..=2501).map(|number| format!("job-{number}")).collect();
    assert_eq!(submitted.out.lines().collect::<Vec<_>>(), numbers);
    assert_eq!(result(&up, "1").code, Some(0));
    up.end();
}

/// A program for `mpicc`: each rank prints its number and a sum over all.
const MPI_PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: sum %d\n", rank, size, sum);
    MPI_Finalize();
    return 0;
}
"#;

#[test]
fn an_mpi_program_runs_on_what_was_granted() {
    let temp = tempfile::tempdir().unwrap();
    let (source, program) = (temp.path().join("mpi.c"), temp.path().join("mpi"));
    std::fs::write(&source, MPI_PROGRAM).unwrap();
    let compiled = Command::new("mpicc").arg(&source).arg("-o").arg(&program).output();
    match compiled {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            return eprintln!("skipped: mpicc does not compile: {error}");
        }
        Err(error) => return eprintln!("skipped: no mpicc here: {error}"),
    }
    let up = Up::with(&[("ams", 3)], QUICK);
    let line = format!("mpirun --hostfile \"$SPRINGTIDE_HOSTFILE\" {}", program.display());
    let options = [
        "--processors",
        "3",
        "--per",
        "job",
        "--env",
        "OMPI_ALLOW_RUN_AS_ROOT=1",
        "--env",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ];
    submit(&up, &options, &["sh", "-c", &line]);
    let done = result(&up, "1");
    assert_eq!(done.code, Some(0), "{}\n{}", done.err, text(&up.temp.path().join("stderr.log")));
    let out = rank(&up, "1", "0");
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 3: sum 3", "rank 1 of 3: sum 3", "rank 2 of 3: sum 3"]);
    up.end();
}
