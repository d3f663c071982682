//! `wan report`: live runs side by side, with what the paper shows and what simulated time predicts.
//!
//! Must not know how they were run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use springtide_runtime::event::write_atomic;
use springtide_simulator::figure::{self, Hue, Series};

use crate::exit::Failed;
use crate::grid::cannot;
use crate::live::{REPORT, Report};
use crate::run::print;

/// The modes in the order of the table's columns.
const MODES: [(&str, Hue); 3] =
    [("static", Hue::Fixed), ("monitor", Hue::Monitored), ("adaptive", Hue::Adaptive)];

/// Reads the runs in these directories and below them, prints the table, and draws a figure of each scenario where `figures` is.
///
/// # Errors
/// There is no run, or a file cannot be read or written.
pub fn report(dirs: &[PathBuf], figures: Option<&Path>, json: bool) -> Result<(), Failed> {
    let mut runs = Vec::new();
    for dir in dirs {
        find(dir, 0, &mut runs)?;
    }
    if runs.is_empty() {
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        return Err(Failed::usage(format!("{} holds no run of `wan run --out`", dirs.join(", "))));
    }
    let mut scenarios = BTreeMap::<String, Vec<Report>>::new();
    for run in runs {
        scenarios.entry(run.scenario.clone()).or_default().push(run);
    }
    if let Some(dir) = figures {
        fs::create_dir_all(dir).map_err(|error| cannot("make", dir, &error))?;
        for (name, runs) in &scenarios {
            let file = dir.join(format!("live-{name}.svg"));
            let text = drawn(runs)?;
            write_atomic(&file, text.as_bytes()).map_err(|error| cannot("write", &file, &error))?;
        }
    }
    let rows: Vec<Row> = scenarios.values().map(|runs| Row::of(runs)).collect();
    if json {
        let object = serde_json::json!({ "schema": crate::report::SCHEMA, "scenarios": rows });
        return print(&format!("{object}\n"));
    }
    print(&table(&rows))
}

/// The runs in a directory, and in those below it.
fn find(dir: &Path, depth: u32, runs: &mut Vec<Report>) -> Result<(), Failed> {
    let file = dir.join(REPORT);
    if file.exists() {
        let bytes = fs::read(&file).map_err(|error| cannot("read", &file, &error))?;
        let run = serde_json::from_slice(&bytes)
            .map_err(|error| Failed::usage(format!("{}: {error}", file.display())))?;
        runs.push(run);
        return Ok(());
    }
    if depth > 3 {
        return Ok(());
    }
    let entries = fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))?;
    let mut below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    below.sort();
    below.iter().filter(|path| path.is_dir()).try_for_each(|path| find(path, depth + 1, runs))
}

/// A scenario in the table. Times are medians over its runs in that mode, in seconds.
#[derive(Clone, Debug, serde::Serialize)]
struct Row {
    scenario: String,
    runs: BTreeMap<String, usize>,
    wall_s: BTreeMap<String, f64>,
    predicted_s: BTreeMap<String, f64>,
    /// 1 - adaptive / static.
    reduction: Option<f64>,
    predicted_reduction: Option<f64>,
    paper_reduction: Option<f64>,
    /// monitor / static - 1.
    monitored: Option<f64>,
    /// Whether all answers are one.
    same_answer: bool,
    busy: f64,
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

impl Row {
    fn of(runs: &[Report]) -> Self {
        let of_mode = |mode: &str, what: fn(&Report) -> Option<f64>| {
            median(runs.iter().filter(|run| run.mode == mode).filter_map(what).collect())
        };
        let by_mode = |what: fn(&Report) -> Option<f64>| -> BTreeMap<String, f64> {
            let all = MODES.iter().map(|(mode, _)| (mode, of_mode(mode, what)));
            all.filter_map(|(mode, number)| Some(((*mode).to_owned(), number?))).collect()
        };
        let wall_s = by_mode(|run| Some(run.wall_s));
        let predicted_s = by_mode(|run| run.predicted_s);
        let share = |of: &BTreeMap<String, f64>, mode: &str| {
            Some(of.get(mode)? / of.get("static").filter(|s| **s > 0.0)?)
        };
        let mut counts = BTreeMap::new();
        runs.iter().for_each(|run| *counts.entry(run.mode.clone()).or_insert(0) += 1);
        let first = runs.first();
        Self {
            scenario: first.map(|run| run.scenario.clone()).unwrap_or_default(),
            runs: counts,
            reduction: share(&wall_s, "adaptive").map(|share| 1.0 - share),
            predicted_reduction: share(&predicted_s, "adaptive").map(|share| 1.0 - share),
            paper_reduction: first.and_then(|run| run.paper_reduction),
            monitored: share(&wall_s, "monitor").map(|share| share - 1.0),
            same_answer: runs.iter().all(|run| Some(&run.checksum) == first.map(|f| &f.checksum)),
            busy: runs.iter().map(|run| run.busy).fold(0.0, f64::max),
            wall_s,
            predicted_s,
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:14} {:>4}  {:>16} {:>16} {:>16}  {:>9} {:>9} {:>6}  {:>8} {:>5}  {}\n",
        "scenario",
        "runs",
        "static (sim.)",
        "monitor (sim.)",
        "adaptive (sim.)",
        "reduction",
        "(sim.)",
        "paper",
        "monitor",
        "busy",
        "answer"
    );
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    for row in rows {
        let time = |mode: &str| match (row.wall_s.get(mode), row.predicted_s.get(mode)) {
            (Some(s), Some(predicted)) => format!("{s:.1} ({predicted:.1}) s"),
            (Some(s), None) => format!("{s:.1} s"),
            _ => "-".to_owned(),
        };
        text += &format!(
            "{:14} {:>4}  {:>16} {:>16} {:>16}  {:>9} {:>9} {:>6}  {:>8} {:>5}  {}\n",
            row.scenario,
            row.runs.values().max().unwrap_or(&0),
            time("static"),
            time("monitor"),
            time("adaptive"),
            percent(row.reduction),
            percent(row.predicted_reduction),
            row.paper_reduction.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            row.monitored.map_or("-".to_owned(), |share| format!("{:+.1} %", 100.0 * share)),
            format!("{:.0} %", 100.0 * row.busy),
            if row.same_answer { "one" } else { "THEY DIFFER" },
        );
    }
    text
}

/// The first run of each mode.
fn drawn(runs: &[Report]) -> Result<String, Failed> {
    let of_mode = |(mode, hue): &(&'static str, Hue)| {
        let run = runs.iter().find(|run| run.mode == *mode)?;
        let nodes: &[(f64, u32)] = if *hue == Hue::Adaptive { &run.nodes_over_time } else { &[] };
        let (iterations, end_s) = (&run.iterations[..], run.wall_s);
        Some((run, Series { label: mode, hue: *hue, iterations, nodes, end_s }))
    };
    let (named, series): (Vec<&Report>, Vec<Series<'_>>) = MODES.iter().filter_map(of_mode).unzip();
    let Some(last) = named.last() else { return Err(Failed::failure("no run to draw")) };
    let events: Vec<f64> = last.events.iter().map(|(at, _)| *at).collect();
    let title = format!("Scenario {}, live: {}", last.scenario, last.about);
    figure::runs(&title, &series, &events).map_err(Failed::failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: &str, wall_s: f64, checksum: &str) -> Report {
        Report {
            schema: 1,
            scenario: "3".to_owned(),
            about: "an uplink".to_owned(),
            mode: mode.to_owned(),
            seed: 1,
            time_scale: 60.0,
            share: 0.04,
            quota: "-".to_owned(),
            network: "sockets".to_owned(),
            period_s: 3.0,
            wall_s,
            iterations: vec![wall_s / 2.0; 2],
            nodes_over_time: vec![(0.0, 4), (wall_s / 2.0, 3)],
            events: vec![(1.0, "it is slow".to_owned())],
            decisions: Vec::new(),
            checksum: checksum.to_owned(),
            busy: 0.5,
            stolen: 0.0,
            awake: false,
            late_us: None,
            paper_reduction: Some(0.6),
            predicted_s: Some(wall_s * 0.9),
        }
    }

    #[test]
    fn medians_are_compared_and_a_wrong_answer_is_seen() {
        let mut runs: Vec<Report> =
            [100.0, 110.0, 90.0].iter().map(|s| run("static", *s, "a")).collect();
        runs.push(run("adaptive", 40.0, "a"));
        let row = Row::of(&runs);
        assert_eq!(row.wall_s["static"], 100.0);
        assert!((row.reduction.unwrap() - 0.6).abs() < 1e-9);
        assert!(row.same_answer && row.monitored.is_none());
        let told = table(&[row]);
        assert!(told.contains("100.0 (90.0) s") && told.contains("60.0 %"), "{told}");
        runs.push(run("monitor", 102.0, "b"));
        let told = table(&[Row::of(&runs)]);
        assert!(told.contains("THEY DIFFER") && told.contains("+2.0 %"), "{told}");
        assert!(drawn(&runs).unwrap().contains("Scenario 3, live: an uplink"));
    }

    #[test]
    fn runs_are_found_below_a_directory_and_none_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        let none = report(&dirs, None, false).unwrap_err();
        assert!(none.message.contains("no run of"), "{none}");
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let text = serde_json::to_string(&run("static", 10.0, "a")).unwrap();
        fs::write(below.join(REPORT), text).unwrap();
        let mut found = Vec::new();
        find(dir.path(), 0, &mut found).unwrap();
        assert_eq!(found.len(), 1);
        report(&dirs, Some(&dir.path().join("figures")), true).unwrap();
        assert!(dir.path().join("figures/live-3.svg").exists());
        fs::write(below.join(REPORT), "{").unwrap();
        assert!(report(&dirs, None, false).unwrap_err().message.contains("wan.json"));
    }
}
