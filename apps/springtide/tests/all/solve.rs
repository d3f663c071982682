//! `springtide solve`: its result, its files, and its errors for bad input.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::drains::Up;
use crate::jobs::{job, object};
use crate::support::{CommandOutput, finish, program, run, text, until};

fn plants() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../stochastic/tests/data/plants")
}

fn solve(model: &Path, options: &[&str]) -> CommandOutput {
    let mut command = program(&["solve"]);
    command.arg(model).args(options);
    finish_elsewhere(command)
}

/// Runs a command to its end in an empty directory, where it leaves the files of its run.
fn finish_elsewhere(mut command: Command) -> CommandOutput {
    let dir = tempfile::tempdir().expect("a directory");
    command.current_dir(dir.path());
    finish(command)
}

fn result(ended: &CommandOutput) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

#[test]
fn a_program_is_solved_alone_and_on_a_grid_to_the_same_bits() {
    let temp = tempfile::tempdir().unwrap();
    let out = |name: &str| temp.path().join(name);
    let (alone, grid) = (out("alone"), out("grid"));
    let options =
        ["--scenarios", "2500", "--tasks", "20", "--replications", "2", "--json", "--explain"];
    let of = |dir: &Path, more: &[&str]| {
        let dir = dir.to_str().unwrap().to_owned();
        result(&solve(&plants(), &[&options[..], more, &["--out", &dir]].concat()))
    };
    let one = of(&alone, &["--sequential"]);
    let other = of(&grid, &["--clusters", "2x2"]);
    assert_eq!(one["run"]["checksum"], other["run"]["checksum"]);
    for key in [
        "objective",
        "bound",
        "gap",
        "iterations",
        "x",
        "columns",
        "estimate",
        "replications",
        "warm_start",
        "tasks",
    ] {
        assert!(!one[key].is_null(), "{key}: {one}");
        assert_eq!(one[key], other[key], "{key}");
    }
    assert!(one["gap"].as_f64().unwrap() <= 1e-5);
    let table = text(&grid.join("x.csv"));
    assert!(table.starts_with("column,value\nGAS,"), "{table}");
    let iterates = text(&grid.join("iterates.csv"));
    assert!(
        iterates.starts_with("phase,iterate,scenarios,workers,used,predicted_s,"),
        "{iterates}"
    );

    // Evaluates the solution again; and starts a run from it.
    let table = grid.join("x.csv");
    let table = table.to_str().unwrap();
    let shown = solve(
        &plants(),
        &[
            "--evaluate",
            table,
            "--scenarios",
            "2500",
            "--tasks",
            "20",
            "--sequential",
            "--json",
            "-q",
        ],
    );
    assert_eq!(result(&shown)["estimate"], one["estimate"]);
    let again = [
        "--start",
        table,
        "--scenarios",
        "2500",
        "--tasks",
        "20",
        "--no-warm-start",
        "--estimate",
        "0",
    ];
    let again = solve(
        &plants(),
        &[&again[..], &["--sequential", "--json", "--out", out("again").to_str().unwrap()]]
            .concat(),
    );
    assert!(result(&again)["iterations"].as_u64() <= one["iterations"].as_u64());
}

/// All 27 scenarios: the optimum of their deterministic equivalent.
#[test]
fn all_scenarios_give_the_exact_optimum() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let options =
        ["--all-scenarios", "--epsilon", "1e-9", "--sequential", "--out", out.to_str().unwrap()];
    let ended = solve(&plants(), &options);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines: Vec<&str> = ended.out.lines().collect();
    let result = lines.iter().position(|line| line.starts_with("result")).unwrap();
    // The most important values come first.
    for (at, word) in ["status", "objective", "lower bound", "gap", "iterations", "scenarios"]
        .into_iter()
        .enumerate()
    {
        assert!(lines[result + at].contains(word), "{word}: {}", ended.out);
    }
    assert!(ended.out.contains("scenarios         27, all"), "{}", ended.out);
    assert!(ended.err.contains("x.csv"), "{}", ended.err);
}

/// The cost of that decision in all scenarios is the optimum, exactly and with equal bits on every
/// grid.
#[test]
fn all_scenarios_give_the_exact_cost_of_a_decision() {
    let temp = tempfile::tempdir().unwrap();
    let out = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let of = |options: &[&str]| {
        result(&solve(&plants(), &[options, &["--all-scenarios", "--json", "-q"]].concat()))
    };
    let solved = of(&["--epsilon", "1e-9", "--sequential", "--out", &out("solved")]);
    let table = out("solved") + "/x.csv";
    let evaluate = |options: &[&str]| {
        of(&[&["--evaluate", &table, "--out", &out(options[0])], options].concat())
    };
    let one = evaluate(&["--sequential"]);
    let estimate = &one["estimate"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{one}"));
    let (mean, right) = (number(&estimate["mean"]), number(&solved["objective"]));
    assert!((mean - right).abs() < 1e-12 * right.abs(), "{mean} {right}");
    assert_eq!((&estimate["low"], &estimate["high"]), (&estimate["mean"], &estimate["mean"]));
    assert_eq!(estimate["confidence"], 1.0);
    assert_eq!(
        (&estimate["scenarios"], &estimate["infeasible_scenarios"]),
        (&27.into(), &0.into())
    );
    assert_eq!(evaluate(&["--clusters", "2x2"])["estimate"], *estimate);
}

#[test]
fn bad_input_is_reported_with_file_and_line() {
    let refused = |model: &Path, options: &[&str], words: &[&str]| {
        let ended = solve(model, &[options, &["--sequential"]].concat());
        assert_eq!(ended.code, Some(2), "{options:?}: {}", ended.err);
        for word in words {
            assert!(ended.err.contains(word), "{options:?}, {word}: {}", ended.err);
        }
    };
    let plants = plants();
    refused(
        &plants,
        &["--tasks", "100", "--scenarios", "30"],
        &["--tasks 100 with 30 scenarios", "--tasks 30 or fewer"],
    );
    refused(&plants, &["--radius", "0"], &["--radius 0", "positive"]);
    refused(&plants, &["--radius=-1"], &["--radius -1", "positive"]);
    refused(&plants, &["--epsilon", "nan"], &["--epsilon NaN"]);
    refused(&plants, &["--objective", "balanced:3"], &["balanced:W with W from 0"]);
    refused(&plants, &["--replications", "1"], &["two at least"]);
    refused(&plants, &["--sigma", "1.5"], &["--sigma 1.5"]);
    refused(&plants, &["--rules-of-thumb", "--basket", "2"], &["cannot be used with"]);
    refused(&plants.join("nowhere"), &[], &["nowhere"]);
    let temp = tempfile::tempdir().unwrap();
    let broken = |from: &str, to: &str, file: &str| {
        for name in ["plants.cor", "plants.tim", "plants.sto"] {
            let before = text(&plants.join(name));
            let after = if name == file { before.replacen(from, to, 1) } else { before.clone() };
            assert!(name != file || after != before, "{from}");
            std::fs::write(temp.path().join(name), after).unwrap();
        }
        temp.path().to_owned()
    };
    let model = broken("BUDGET           190.0", "BUDGE            190.0", "plants.cor");
    refused(&model, &[], &["plants.cor:40", "BUDGE"]);
    let model = broken("DISCRETE", "GAMMA", "plants.sto");
    refused(&model, &[], &["plants.sto:", "GAMMA"]);
    let table = temp.path().join("x.csv");
    std::fs::write(&table, "GAS,1\nCOAL,two\n").unwrap();
    let table = table.to_str().unwrap();
    refused(&plants, &["--evaluate", table], &["x.csv:2", "no number"]);
    let exactly = ["--evaluate", table, "--all-scenarios", "--estimate", "5"];
    refused(&plants, &exactly, &["--estimate 5 draws scenarios", "leave one of"]);
    let ended = run(&["solve"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("<MODEL"), "{}", ended.err);
    std::fs::write(temp.path().join("state"), "no state").unwrap();
    let state = temp.path().join("state");
    refused(&plants, &["--checkpoint", state.to_str().unwrap()], &["no state of a solve run"]);
}

fn verdicts(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../stochastic/tests/data/verdicts").join(name)
}

/// Infeasible and unbounded programs have a status with its proof, which is a result and no
/// failure.
#[test]
fn programs_without_an_optimum_have_a_status() {
    let of = |name: &str, options: &[&str]| {
        let options = [&["--all-scenarios", "--sequential"], options].concat();
        solve(&verdicts(name), &options)
    };
    let infeasible = result(&of("infeasible-with-ray", &["--json", "-q"]));
    assert_eq!(infeasible["status"], "infeasible");
    assert_eq!(infeasible["proof"]["scenarios"][0]["rows"], serde_json::json!(["B0"]));
    assert!(infeasible["x"].is_null() && infeasible["objective"].is_null(), "{infeasible}");
    let unbounded = result(&of("unbounded-first-stage", &["--json", "-q"]));
    assert_eq!(unbounded["status"], "unbounded");
    assert!(unbounded["proof"]["direction"]["X1"].as_f64().unwrap() > 0.0, "{unbounded}");
    let shown = of("unbounded-first-stage", &[]);
    assert!(shown.out.contains("unbounded") && shown.out.contains("X1"), "{}", shown.out);
}

#[test]
fn costs_are_in_the_sense_of_the_file() {
    let options = ["--all-scenarios", "--sequential", "--json", "-q"];
    let maximised = result(&solve(&verdicts("maxi"), &options));
    assert_eq!(
        (&maximised["sense"], &maximised["status"]),
        (&"maximise".into(), &"optimal".into())
    );
    let (objective, bound) = (&maximised["objective"], &maximised["bound"]);
    assert!((objective.as_f64().unwrap() + 17.0).abs() < 1e-3, "{maximised}");
    assert!(bound.as_f64() >= objective.as_f64(), "{maximised}");
    assert!(maximised["notes"].as_array().is_some_and(|notes| !notes.is_empty()), "{maximised}");
}

#[test]
fn a_decision_is_checked_before_it_is_evaluated() {
    let temp = tempfile::tempdir().unwrap();
    let table = temp.path().join("x.csv");
    let of = |model: &str, x1: f64, x2: f64, options: &[&str]| {
        std::fs::write(&table, format!("column,value\nX1,{x1}\nX2,{x2}\n")).unwrap();
        let evaluate = ["--evaluate", table.to_str().unwrap(), "--sequential"];
        solve(&verdicts(model), &[&evaluate, options].concat())
    };
    let refused = of("base", 60.0, 60.0, &["--all-scenarios"]);
    assert_eq!(refused.code, Some(2), "{}", refused.out);
    assert!(refused.err.contains("row BUD is 120, beyond its bound 100"), "{}", refused.err);
    let infinite = result(&of("no-recourse", 10.0, 10.0, &["--scenarios", "1000", "--json", "-q"]));
    let estimate = &infinite["estimate"];
    assert_eq!((&infinite["status"], &estimate["infinite"]), (&"evaluated".into(), &true.into()));
    assert!(estimate["mean"].is_null(), "{estimate}");
    assert!(estimate["infeasible_scenarios"].as_u64().unwrap() > 500, "{estimate}");
    let shown = of("no-recourse", 0.0, 0.0, &["--all-scenarios"]);
    assert!(shown.out.contains("infinite: of 4 scenarios 4 without recourse"), "{}", shown.out);
}

/// A cancelled job of `job submit` keeps its incumbent.
#[test]
fn a_cancelled_job_keeps_its_result() {
    let up = Up::of(&[("ams", 2)]);
    let model = plants();
    let submitted = [
        &["submit", "solve", model.to_str().unwrap(), "--scenarios", "100000"][..],
        &["--epsilon", "1e-9", "--replications", "100"],
    ];
    let submitted = job(&up, &submitted.concat());
    assert_eq!(submitted.out, "job-1\n", "{}", submitted.err);
    // A result follows its decision, so that the second decision follows a result.
    let decisions = || job(&up, &["logs", "1"]).out.matches("wrote x.csv").count();
    until("it has a result", || decisions() >= 2);
    let cancelled = job(&up, &["cancel", "1"]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    let ended = job(&up, &["result", "1", "--wait", "--timeout", "1m", "--json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let whole = object(&ended);
    for (key, value) in [("ok", false), ("cancelled", true), ("unfinished", true)] {
        assert_eq!(whole[key], value, "{whole}");
    }
    assert_eq!(whole["result"]["status"], "unfinished", "{whole}");
    let x = whole["result"]["x"].as_array().unwrap();
    let table = text(&up.dir.join("jobs/job-1/x.csv"));
    assert_eq!(table.lines().count(), 1 + x.len(), "{table}");
    let shown = job(&up, &["result", "1"]);
    assert!(shown.out.contains("unfinished"), "{}", shown.out);
    up.end();
}

/// A run that its time limit ends keeps its incumbent, and a later one resumes from its state.
#[test]
fn a_stopped_run_keeps_its_result_and_resumes() {
    let temp = tempfile::tempdir().unwrap();
    let state = temp.path().join("state");
    let options = |limit: &'static str| {
        // Small tolerances and many replications, so that it takes seconds.
        let mut all = vec!["--scenarios", "3000", "--tasks", "50", "--epsilon", "1e-9"];
        all.extend(["--replications", "12", "--sequential", "--json", "-q", "--checkpoint"]);
        all.push(state.to_str().unwrap());
        all.extend(["--timeout", limit]);
        all
    };
    let mut stops = 0;
    let whole = loop {
        let ended = solve(&plants(), &options("3s"));
        let shown: Value = serde_json::from_str(&ended.out).unwrap_or(Value::Null);
        if ended.code == Some(0) {
            break shown;
        }
        assert_eq!(ended.code, Some(4), "{}", ended.err);
        assert_eq!(shown["status"], "unfinished", "{}", ended.out);
        assert!(shown["objective"].is_f64() && shown["x"].is_array(), "{shown}");
        assert!(shown["run"]["error"].as_str().unwrap().contains("--timeout"), "{shown}");
        stops += 1;
        assert!(stops < 100, "it does not get on");
    };
    let alone = result(&solve(&plants(), &{
        let mut all = options("10m");
        all.drain(all.iter().position(|word| *word == "--checkpoint").unwrap()..);
        all
    }));
    for key in ["objective", "bound", "x", "replications", "estimate"] {
        assert_eq!(whole[key], alone[key], "{key} after {stops} stops");
    }
    // The state of an ended run has its result; a state with other options is refused.
    let again = solve(&plants(), &options("10m"));
    assert_eq!(result(&again)["objective"], whole["objective"]);
    let other = [&options("10m")[..], &["--seed", "2"]].concat();
    let refused = solve(&plants(), &other);
    assert!(refused.code == Some(2) && refused.err.contains("other options"), "{}", refused.err);
}

#[test]
fn files_are_named_by_themselves_and_samples_are_written() {
    let temp = tempfile::tempdir().unwrap();
    for (from, to) in [("plants.cor", "a.lp"), ("plants.tim", "b"), ("plants.sto", "c.txt")] {
        std::fs::copy(plants().join(from), temp.path().join(to)).unwrap();
    }
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let (mps, smps) = (path("whole.mps"), path("sample"));
    let mut command = program(&["solve", "--core", &path("a.lp"), "--time", &path("b")]);
    command.args(["--stoch", &path("c.txt"), "--scenarios", "40", "--epsilon", "1e-9"]);
    command.args(["--sequential", "--json", "-q", "--estimate", "0"]);
    command.args(["--write-mps", &mps, "--write-smps", &smps]);
    let one = result(&finish_elsewhere(command));
    assert!(text(Path::new(&mps)).contains("COLUMNS"));
    let options = ["--all-scenarios", "--epsilon", "1e-9", "--sequential", "--json", "-q"];
    let other = result(&solve(Path::new(&smps), &options));
    let near = |key: &str| {
        let (one, other) = (one[key].as_f64().unwrap(), other[key].as_f64().unwrap());
        assert!((one - other).abs() < 1e-6 * one.abs(), "{key}: {one} {other}");
    };
    near("objective");
    near("bound");
}

#[test]
fn samples_grow_until_the_gap_is_as_small_as_wanted() {
    let options = ["--scenarios", "20", "--gap", "0.1%", "--confidence", "90%", "--sequential"];
    let found = result(&solve(&plants(), &[&options[..], &["--json", "-q"]].concat()));
    let common = &found["replications"]["common_random_numbers"];
    let (upper, objective) =
        (common["upper"].as_f64().unwrap(), found["objective"].as_f64().unwrap());
    assert!(upper <= 0.001 * objective, "{upper} of {objective}");
    assert_eq!(common["confidence"], 0.9);
    assert!(found["scenarios"].as_u64().unwrap() > 20, "{found}");
}

#[test]
fn a_risk_averse_decision_costs_more_on_average() {
    let options = ["--all-scenarios", "--sequential", "--json", "-q"];
    let neutral = result(&solve(&plants(), &options));
    let averse =
        result(&solve(&plants(), &[&options[..], &["--cvar", "90%", "--weight", "0.5"]].concat()));
    assert_eq!(averse["columns"].as_array().unwrap().last().unwrap(), "value-at-risk");
    assert!(averse["objective"].as_f64() > neutral["objective"].as_f64());
}

/// The example that solves a Pyomo model, if Python has Pyomo; `SPRINGTIDE_PYTHON` names another
/// Python.
#[test]
fn a_pyomo_model_is_solved() {
    let python = std::env::var("SPRINGTIDE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import pyomo.environ"]).output();
    if !has.is_ok_and(|has| has.status.success()) {
        println!("skipped: {python} has no Pyomo");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = root.join("../stochastic/examples/pyomo_smps.py");
    let mut command = Command::new(python);
    command.arg(example).args(["--springtide", env!("CARGO_BIN_EXE_springtide")]);
    let ended = finish(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    // The result of enumerating all orders.
    assert!(ended.out.starts_with("optimal: expected profit 247.5000\n"), "{}", ended.out);
    assert!(ended.out.contains("order(flour) = 75"), "{}", ended.out);
}
