//! `springtide solve` from outside: its result, its files, and what it says of bad input.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Ended, finish, program, run, text};

fn plants() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../stochastic/tests/data/plants")
}

fn solve(model: &Path, options: &[&str]) -> Ended {
    let mut command = program(&["solve"]);
    command.arg(model).args(options);
    finish(command)
}

fn result(ended: &Ended) -> Value {
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
    assert!(iterates.starts_with("leg,iterate,scenarios,workers,used,predicted_s,"), "{iterates}");

    // What was found, estimated again; and a run from there.
    let table = grid.join("x.csv");
    let table = table.to_str().unwrap();
    let shown = solve(
        &plants(),
        &["--evaluate", table, "--scenarios", "2500", "--sequential", "--json", "-q"],
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

/// All 27 scenarios: the optimum of the one program that they are.
#[test]
fn all_scenarios_give_the_exact_optimum() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let options =
        ["--all-scenarios", "--epsilon", "1e-9", "--sequential", "--out", out.to_str().unwrap()];
    let ended = solve(&plants(), &options);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("scenarios = 27"), "{}", ended.out);
    assert!(ended.err.contains("x.csv"), "{}", ended.err);
}

/// What that decision costs in all of them is the optimum, exactly and to the same bits on every grid.
#[test]
fn all_scenarios_tell_exactly_what_a_decision_costs() {
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
        (&estimate["scenarios"], &estimate["without_second_stage"]),
        (&27.into(), &0.into())
    );
    assert_eq!(evaluate(&["--clusters", "2x2"])["estimate"], *estimate);
}

#[test]
fn bad_input_is_told_with_file_and_line() {
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
    // More than the budget pays for.
    let model = broken("TOTAL             14.0", "TOTAL           1400.0", "plants.cor");
    refused(&model, &[], &["plants.cor:", "no first-stage decision meets all rows", "TOTAL"]);
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
    assert!(ended.err.contains("<MODEL>"), "{}", ended.err);
}
