//! `wan report`: a table of live runs, with the paper's results and simulated times. It compares
//! only runs of equal settings, and compares with the paper only runs with the scenario file's own
//! monitoring period.
//!
//! This module does not know the execution of runs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::format::{SCHEMA, median};
use springtide_cli::outdir::Artefacts;
use springtide_runtime::config::{ScenarioConfig, Sources, load};
use springtide_runtime::event::RunDir;
use springtide_simulator::figure::{self, RunKind, Series};
use springtide_simulator::paper;

/// The modes in the order of the table's columns.
const MODES: [(&str, RunKind); 3] =
    [("static", RunKind::Fixed), ("monitor", RunKind::Monitored), ("adaptive", RunKind::Adaptive)];

/// The name of the file with a run's [`LiveReport`].
pub const REPORT: &str = "wan.json";

/// The report of a live run: the content of its `wan.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveReport {
    /// The version of the content.
    pub schema: u32,
    /// The name of the scenario.
    pub scenario: String,
    /// The description of the scenario.
    pub about: String,
    /// The mode: static, monitor or adaptive.
    pub mode: String,
    /// The random seed of the run.
    pub seed: u64,
    /// The factor by which work, traffic and event times were divided.
    pub time_scale: f64,
    /// The fraction of a core of a node of speed 1.
    pub share: f64,
    /// The mechanism that limited the processors.
    pub quota: String,
    /// The emulation of the network: `router`, `kernel` or `sockets`.
    pub network: String,
    /// The monitoring period in seconds.
    pub period_s: f64,
    /// Time from the job's submission to its end, in seconds.
    pub wall_s: f64,
    /// Length of each iteration in seconds.
    pub iterations: Vec<f64>,
    /// The number of nodes over time: seconds, nodes.
    pub nodes_over_time: Vec<(f64, u32)>,
    /// Events of the grid: seconds, description.
    pub events: Vec<(f64, String)>,
    /// Decisions of the policy: seconds, actions.
    pub decisions: Vec<(f64, String)>,
    /// The checksum of the result.
    pub checksum: String,
    /// The fraction of the host's processor time that was used during the run, by all processes.
    pub busy: f64,
    /// The fraction of processor time that the hypervisor took, if the host is virtual and reports
    /// it.
    #[serde(default)]
    pub stolen: f64,
    /// Whether processors were kept awake during the run.
    #[serde(default)]
    pub awake: bool,
    /// Lateness of packets in the router in microseconds: median, 99th percentile and maximum.
    pub late_us: Option<[f64; 3]>,
    /// The fraction by which the paper's run was shorter than a static one.
    pub paper_reduction: Option<f64>,
    /// The simulated time of the job in seconds.
    pub predicted_s: Option<f64>,
}

/// Reads the runs in these directories and below, prints the table, and draws a figure of each
/// scenario into `figures`.
///
/// # Errors
/// No run is found, or a file cannot be read or written.
pub fn report(dirs: &[PathBuf], figures: Option<&Path>, json: bool) -> Result<(), Failed> {
    let mut runs = Vec::new();
    for dir in dirs {
        find(dir, 0, &mut runs)?;
    }
    if runs.is_empty() {
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        return Err(Failed::usage(format!("{} holds no run of `wan run --out`", dirs.join(", "))));
    }
    let groups = group_by_setting(runs);
    let mut artefacts = Artefacts::of(figures);
    if artefacts.are_wanted() {
        let mut drawn_of = BTreeMap::new();
        for (setting, name, runs) in all(&groups) {
            let number = drawn_of.entry(name).or_insert(0);
            *number += 1;
            let file = match *number {
                1 => format!("live-{name}.svg"),
                number => format!("live-{name}-{number}.svg"),
            };
            let text = draw(runs, (groups.len() > 1).then_some(setting))?;
            artefacts.keep(&file, text);
        }
    }
    let rows: Vec<LiveRow> =
        all(&groups).map(|(setting, _, runs)| LiveRow::of(setting, runs)).collect();
    let object = serde_json::json!({ "schema": SCHEMA, "scenarios": rows });
    artefacts.print(json, object, || tables(&rows))
}

/// Runs of one setting, by scenario.
type SettingRuns = (Setting, BTreeMap<String, Vec<LiveReport>>);

/// Settings that compare with the paper come first.
fn group_by_setting(runs: Vec<(Setting, LiveReport)>) -> Vec<SettingRuns> {
    let mut groups: Vec<SettingRuns> = Vec::new();
    for (setting, run) in runs {
        let at = groups.iter().position(|(other, _)| *other == setting).unwrap_or(groups.len());
        if at == groups.len() {
            groups.push((setting, BTreeMap::new()));
        }
        groups[at].1.entry(run.scenario.clone()).or_default().push(run);
    }
    groups.sort_by_key(|(setting, _)| setting.period != PeriodOrigin::ScenarioFile);
    groups
}

fn all(groups: &[SettingRuns]) -> impl Iterator<Item = (&Setting, &str, &[LiveReport])> {
    groups.iter().flat_map(|(setting, scenarios)| {
        scenarios.iter().map(move |(name, runs)| (setting, name.as_str(), runs.as_slice()))
    })
}

/// The origin of a run's monitoring period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum PeriodOrigin {
    /// The scenario's file sets it: the run is the experiment that the file describes.
    ScenarioFile,
    /// The run sets another period.
    Ours,
    /// The run's directory has no readable scenario file.
    Unknown,
}

/// Settings that runs must share to be compared.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Setting {
    time_scale: f64,
    period_s: f64,
    period: PeriodOrigin,
    share: f64,
    quota: String,
    network: String,
    /// The calibration of the scenario's file, as `sim paper` prints it.
    calibration: Option<String>,
}

impl Setting {
    fn of(run: &LiveReport, file: Option<&ScenarioConfig>) -> Self {
        let period = file.map_or(PeriodOrigin::Unknown, |file| {
            let own = file.paper.period.unwrap_or(file.job.period).get().as_secs_f64();
            // The executed period is the scaled and rounded one.
            let is_own = (run.period_s * run.time_scale - own).abs() <= 1e-4 * own;
            if is_own { PeriodOrigin::ScenarioFile } else { PeriodOrigin::Ours }
        });
        Self {
            time_scale: run.time_scale,
            period_s: run.period_s,
            period,
            share: run.share,
            quota: run.quota.clone(),
            network: run.network.clone(),
            calibration: file.map(|file| format!("{:016x}", paper::calibration(file))),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time_scale, period_s, period, share, quota, network, calibration } = self;
        let whose = match period {
            PeriodOrigin::ScenarioFile => "the file's own",
            PeriodOrigin::Ours => "ours, not the file's: not compared with the paper",
            PeriodOrigin::Unknown => {
                "unknown whether it is the file's, because the run's config.toml is missing or \
                wrong: not compared with the paper"
            }
        };
        write!(
            f,
            "shortened by {time_scale}, period {period_s} s ({whose}), {:.1} % of a core by \
            {quota}, network by {network}, calibration {}",
            100.0 * share,
            calibration.as_deref().unwrap_or("unknown"),
        )
    }
}

/// Collects the runs in a directory and below.
fn find(dir: &Path, depth: u32, runs: &mut Vec<(Setting, LiveReport)>) -> Result<(), Failed> {
    let file = dir.join(REPORT);
    if file.exists() {
        let bytes = fs::read(&file).map_err(|error| cannot("read", &file, &error))?;
        let run: LiveReport = serde_json::from_slice(&bytes)
            .map_err(|error| Failed::usage(format!("{}: {error}", file.display())))?;
        runs.push((Setting::of(&run, scenario_of(dir).as_ref()), run));
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

/// The scenario file of a run, if its directory has a readable one.
fn scenario_of(dir: &Path) -> Option<ScenarioConfig> {
    let text = fs::read_to_string(RunDir::open(dir).ok()?.config()).ok()?;
    // Without this process's environment, which differs from the run's.
    Some(load::<ScenarioConfig>(&Sources::of_text("config.toml", &text)).ok()?.value)
}

/// A scenario in the table. Times are medians over its runs in a mode, in seconds.
#[derive(Clone, Debug, serde::Serialize)]
struct LiveRow {
    scenario: String,
    setting: Setting,
    runs: BTreeMap<String, usize>,
    wall_s: BTreeMap<String, f64>,
    predicted_s: BTreeMap<String, f64>,
    /// 1 - adaptive / static.
    reduction: Option<f64>,
    predicted_reduction: Option<f64>,
    /// None unless the period is the file's.
    paper_reduction: Option<f64>,
    /// monitor / static - 1.
    monitored: Option<f64>,
    /// Whether all results are equal.
    same_answer: bool,
    busy: f64,
}

/// The median run of a mode; the faster one of two.
fn median_run<'a>(runs: &'a [LiveReport], mode: &str) -> Option<&'a LiveReport> {
    let mut runs: Vec<&LiveReport> = runs.iter().filter(|run| run.mode == mode).collect();
    runs.sort_by(|a, b| a.wall_s.total_cmp(&b.wall_s));
    runs.get(runs.len().saturating_sub(1) / 2).copied()
}

impl LiveRow {
    fn of(setting: &Setting, runs: &[LiveReport]) -> Self {
        let of_mode = |mode: &str, what: fn(&LiveReport) -> Option<f64>| {
            median(runs.iter().filter(|run| run.mode == mode).filter_map(what).collect())
        };
        let by_mode = |what: fn(&LiveReport) -> Option<f64>| -> BTreeMap<String, f64> {
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
            setting: setting.clone(),
            runs: counts,
            reduction: share(&wall_s, "adaptive").map(|share| 1.0 - share),
            predicted_reduction: share(&predicted_s, "adaptive").map(|share| 1.0 - share),
            paper_reduction: first
                .and_then(|run| run.paper_reduction)
                .filter(|_| setting.period == PeriodOrigin::ScenarioFile),
            monitored: share(&wall_s, "monitor").map(|share| share - 1.0),
            same_answer: runs.iter().all(|run| Some(&run.checksum) == first.map(|f| &f.checksum)),
            busy: runs.iter().map(|run| run.busy).fold(0.0, f64::max),
            wall_s,
            predicted_s,
        }
    }
}

/// The tables of all settings.
fn tables(rows: &[LiveRow]) -> String {
    let of_one = rows.chunk_by(|a, b| a.setting == b.setting);
    let tables = of_one.filter_map(|rows| Some(table(&rows.first()?.setting, rows)));
    tables.collect::<Vec<_>>().join("\n")
}

fn table(setting: &Setting, rows: &[LiveRow]) -> String {
    let paper = |cell: &str| match setting.period {
        PeriodOrigin::ScenarioFile => format!(" {cell:>6}"),
        PeriodOrigin::Ours | PeriodOrigin::Unknown => String::new(),
    };
    let mut text = format!(
        "{setting}\n{:14} {:>4}  {:>16} {:>16} {:>16}  {:>9} {:>9}{}  {:>8} {:>5}  {}\n",
        "scenario",
        "runs",
        "static (sim.)",
        "monitor (sim.)",
        "adaptive (sim.)",
        "reduction",
        "(sim.)",
        paper("paper"),
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
            "{:14} {:>4}  {:>16} {:>16} {:>16}  {:>9} {:>9}{}  {:>8} {:>5}  {}\n",
            row.scenario,
            row.runs.values().max().unwrap_or(&0),
            time("static"),
            time("monitor"),
            time("adaptive"),
            percent(row.reduction),
            percent(row.predicted_reduction),
            paper(
                &row.paper_reduction
                    .map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
            ),
            row.monitored.map_or("-".to_owned(), |share| format!("{:+.1} %", 100.0 * share)),
            format!("{:.0} %", 100.0 * row.busy),
            if row.same_answer { "one" } else { "THEY DIFFER" },
        );
    }
    text
}

/// The figure of a scenario, with the median run of each mode. `setting` is given if several exist.
fn draw(runs: &[LiveReport], setting: Option<&Setting>) -> Result<String, Failed> {
    let of_mode = |(mode, hue): &(&'static str, RunKind)| {
        let run = median_run(runs, mode)?;
        let nodes: &[(f64, u32)] =
            if *hue == RunKind::Adaptive { &run.nodes_over_time } else { &[] };
        let (iterations, end_s) = (&run.iterations[..], run.wall_s);
        Some((run, Series { label: mode, hue: *hue, iterations, nodes, end_s }))
    };
    let (named, series): (Vec<&LiveReport>, Vec<Series<'_>>) =
        MODES.iter().filter_map(of_mode).unzip();
    let Some(last) = named.last() else { return Err(Failed::failure("no run to draw")) };
    let events: Vec<f64> = last.events.iter().map(|(at, _)| *at).collect();
    let setting = setting.map_or(String::new(), |setting| {
        format!(" (shortened by {}, period {} s)", setting.time_scale, setting.period_s)
    });
    let title = format!("Scenario {}, live{setting}: {}", last.scenario, last.about);
    figure::runs(&title, &series, &events).map_err(Failed::failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: &str, wall_s: f64, checksum: &str) -> LiveReport {
        LiveReport {
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

    /// The setting of the paper's file, with a period of 180 s.
    fn of_paper(run: &LiveReport) -> Setting {
        let shipped = springtide_simulator::shipped::find("3").unwrap();
        let file = load::<ScenarioConfig>(&Sources::of_text("3", shipped.text)).unwrap().value;
        Setting::of(run, Some(&file))
    }

    #[test]
    fn medians_are_compared_and_differing_results_are_reported() {
        let mut runs: Vec<LiveReport> =
            [100.0, 110.0, 90.0].iter().map(|s| run("static", *s, "a")).collect();
        runs.push(run("adaptive", 40.0, "a"));
        let setting = of_paper(&runs[0]);
        let row = LiveRow::of(&setting, &runs);
        assert_eq!(row.wall_s["static"], 100.0);
        // The median is drawn; the faster one of two.
        assert_eq!(median_run(&runs, "static").map(|run| run.wall_s), Some(100.0));
        assert_eq!(median_run(&runs[..2], "static").map(|run| run.wall_s), Some(100.0));
        assert_eq!(median_run(&runs[1..3], "static").map(|run| run.wall_s), Some(90.0));
        assert!(median_run(&runs, "monitor").is_none());
        assert!((row.reduction.unwrap() - 0.6).abs() < 1e-9);
        assert!(row.same_answer && row.monitored.is_none());
        let text = tables(&[row]);
        assert!(text.contains("100.0 (90.0) s") && text.contains("60.0 %"), "{text}");
        runs.push(run("monitor", 102.0, "b"));
        let text = tables(&[LiveRow::of(&setting, &runs)]);
        assert!(text.contains("THEY DIFFER") && text.contains("+2.0 %"), "{text}");
        assert!(draw(&runs, None).unwrap().contains("Scenario 3, live: an uplink"));
        let title = "Scenario 3, live (shortened by 60, period 3 s): an uplink";
        assert!(draw(&runs, Some(&setting)).unwrap().contains(title));
    }

    #[test]
    fn runs_of_different_settings_have_tables_of_their_own() {
        let paper = run("static", 100.0, "a");
        let ours = LiveReport { period_s: 1.5, ..run("static", 70.0, "a") };
        // Its own period, but another time scale.
        let scaled = LiveReport { time_scale: 30.0, period_s: 6.0, ..run("static", 200.0, "b") };
        let shared = LiveReport { share: 0.02, ..run("static", 400.0, "a") };
        let quota = LiveReport { quota: "groups".to_owned(), ..run("static", 300.0, "a") };
        let carried = LiveReport { network: "router".to_owned(), ..run("static", 500.0, "a") };
        let unknown = run("static", 600.0, "a");
        let adaptive = run("adaptive", 40.0, "a");
        let all_of = [&ours, &paper, &scaled, &shared, &quota, &carried, &adaptive];
        let mut runs: Vec<(Setting, LiveReport)> =
            all_of.iter().map(|run| (of_paper(run), (*run).clone())).collect();
        runs.push((Setting::of(&unknown, None), unknown));
        let groups = group_by_setting(runs);
        let rows: Vec<LiveRow> =
            all(&groups).map(|(setting, _, runs)| LiveRow::of(setting, runs)).collect();
        let walls: Vec<f64> = rows.iter().map(|row| row.wall_s["static"]).collect();
        assert_eq!(walls, [100.0, 200.0, 400.0, 300.0, 500.0, 70.0, 600.0]);
        assert!((rows[0].reduction.unwrap() - 0.6).abs() < 1e-9);
        let other_dir: Vec<bool> = rows.iter().map(|row| row.paper_reduction.is_some()).collect();
        assert_eq!(other_dir, [true, true, true, true, true, false, false]);
        // Results of another time scale are not compared.
        assert!(rows.iter().all(|row| row.same_answer));
        let text = tables(&rows);
        let text: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(text.len(), 7);
        let digest = rows[0].setting.calibration.clone().unwrap();
        assert!(text[0].starts_with("shortened by 60, period 3 s (the file's own), 4.0 %"));
        assert!(text[0].contains(&format!("calibration {digest}\n")), "{}", text[0]);
        assert!(text[0].contains(" paper ") && text[0].contains(" 60 % "), "{}", text[0]);
        assert!(text[5].contains("period 1.5 s (ours, not the file's"), "{}", text[5]);
        assert!(!text[5].contains(" paper ") && !text[5].contains(" 60 % "), "{}", text[5]);
        assert!(text[6].contains("calibration unknown"), "{}", text[6]);
        let object = serde_json::to_value(&rows[5]).unwrap();
        assert_eq!(object["setting"]["period"], "ours");
        assert_eq!(object["paper_reduction"], serde_json::Value::Null);
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
        let found = || {
            let mut found = Vec::new();
            find(dir.path(), 0, &mut found).unwrap();
            assert_eq!(found.len(), 1);
            found.remove(0).0
        };
        assert_eq!(found().period, PeriodOrigin::Unknown);
        // `wan run --out` writes the config next to the report.
        let scenario = springtide_simulator::shipped::find("3").unwrap();
        fs::write(below.join("config.toml"), scenario.text).unwrap();
        fs::write(below.join("events.jsonl"), "").unwrap();
        let setting = found();
        assert_eq!(setting, of_paper(&run("static", 10.0, "a")));
        assert_eq!(
            (setting.period, setting.calibration.map(|c| c.len())),
            (PeriodOrigin::ScenarioFile, Some(16))
        );
        report(&dirs, Some(&dir.path().join("figures")), true).unwrap();
        assert!(dir.path().join("figures/live-3.svg").exists());
        // Another setting has a figure of its own.
        let other = LiveReport { time_scale: 30.0, ..run("static", 20.0, "b") };
        let other_dir = dir.path().join("c");
        fs::create_dir_all(&other_dir).unwrap();
        fs::write(other_dir.join(REPORT), serde_json::to_string(&other).unwrap()).unwrap();
        report(&dirs, Some(&dir.path().join("figures")), false).unwrap();
        assert!(dir.path().join("figures/live-3-2.svg").exists());
        fs::write(below.join(REPORT), "{").unwrap();
        assert!(report(&dirs, None, false).unwrap_err().message.contains("wan.json"));
    }
}
