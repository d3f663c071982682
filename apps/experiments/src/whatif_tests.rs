//! Predictions of runs that were recorded in virtual time.

use springtide_cli::exit::Exit;
use springtide_runtime::config::ScenarioConfig;
use springtide_simulator::scenario::{SimulationParams, simulate_over};

use super::*;

/// Two clusters of speed 1 and a third of speed 0.5, all at work from the start. Data is sent, and
/// the root works alone for a while.
const SCENARIO: &str = r#"
    name = "recorded"
    [app]
    iterations = 8
    work = "120s"
    serial = "500ms"
    leaves = 512
    bodies = 20000
    [job]
    period = "2s"
    [wide]
    rtt = "20ms"
    bandwidth = "10MB/s"
    [[cluster]]
    name = "ams"
    nodes = 4
    start = 4
    [[cluster]]
    name = "del"
    nodes = 4
    start = 4
    [[cluster]]
    name = "bud"
    nodes = 4
    start = 4
    speed = 0.5
    [adaptation]
    mode = "monitor"
"#;

const GRID: &str = r#"
    [stats]
    period = "2s"
    [adaptation]
    mode = "monitor"
    [[cluster]]
    name = "ams"
    nodes = 4
    [[cluster]]
    name = "del"
    nodes = 4
    [[cluster]]
    name = "bud"
    nodes = 4
"#;

const LINKS: &str = "[wide]\nrtt = \"20ms\"\nbandwidth = \"10MB/s\"\n";

struct RecordedRun(tempfile::TempDir);

impl RecordedRun {
    /// Records the scenario's run in `run`.
    fn recorded() -> (Self, f64) {
        let place = Self(tempfile::tempdir().unwrap());
        let loaded = load::<ScenarioConfig>(&Sources::of_text("recorded.toml", SCENARIO)).unwrap();
        let settings = SimulationParams { mode: Mode::Monitor, period: None, seed: 1 };
        let played = simulate_over(&loaded.value, &settings, LinkUnit::Frames).unwrap();
        let (dir, config) = (place.path("run"), &loaded.value);
        crate::scenario::keep(&dir, config, SCENARIO, &played, &settings, "1").unwrap();
        place.put("grid.toml", GRID);
        place.put("links.toml", LINKS);
        (place, played.ended.report.wall_s)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn args(&self) -> WhatIfArgs {
        WhatIfArgs {
            recorded: Some(self.path("run")),
            config: Some(self.path("grid.toml")),
            links: Some(self.path("links.toml")),
            without: Vec::new(),
            without_link: Vec::new(),
        }
    }

    fn error(&self, args: &WhatIfArgs) -> String {
        let Err(failed) = predict(args, settings()) else { panic!("it is wrong") };
        assert_eq!(failed.exit, Exit::Usage, "{failed}");
        failed.message.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn settings() -> PredictionSettings {
    PredictionSettings { mode: None, seed: 1, wire: LinkUnit::Frames, json: false }
}

/// The relative error of a prediction.
fn error_of(predicted: f64, true_s: f64) -> f64 {
    (predicted / true_s - 1.0).abs()
}

#[test]
fn predictions_are_within_a_twentieth_with_and_without_a_cluster() {
    let (place, wall_s) = RecordedRun::recorded();
    let mut args = place.args();
    args.without = vec!["del".parse().unwrap()];
    let prediction = predict(&args, settings()).unwrap();
    let RunPrediction { run, learned, predicted, .. } = &prediction;
    println!("{}", super::prediction_text(run, learned, predicted));
    // The declared work is learned: seconds at speed 1, which is the mean here.
    let model = &prediction.learned.model;
    assert_eq!((model.rounds, model.leaves), (8, 512));
    let total: f64 = prediction.run.clusters.values().map(|part| part.units).sum();
    let scenario = load::<ScenarioConfig>(&Sources::of_text("recorded.toml", SCENARIO)).unwrap();
    let declared = springtide_simulator::scenario::model(&scenario.value.app);
    let work = declared.work().as_secs_f64() - 8.0 * 0.5;
    assert!((total - work).abs() < 1e-6, "{total} of {work}");
    assert!((model.spread as f64 - 500.0).abs() < 20.0, "{}", model.spread);
    assert!(error_of(f64::from(model.state_bytes), 240_000.0) < 0.01, "{}", model.state_bytes);
    assert!(error_of(f64::from(model.result_bytes), 320_000.0) < 0.5, "{}", model.result_bytes);
    let speeds = &prediction.learned.speeds;
    let ratio = speeds[&"bud".into()] / speeds[&"ams".into()];
    assert!((ratio - 0.5).abs() < 0.01, "{ratio}");
    let runtime = |at: usize| prediction.predicted[at].runtime_s.expect("it ends");
    assert!(error_of(runtime(0), wall_s) < 0.05, "{} of {wall_s}", runtime(0));
    // A simulation of the scenario without the cluster is the true value.
    let mut without = scenario.value.clone();
    without.cluster.retain(|place| place.name.as_str() != "del");
    let settings = SimulationParams { mode: Mode::Monitor, period: None, seed: 1 };
    let true_s = simulate_over(&without, &settings, LinkUnit::Frames).unwrap().ended.report.wall_s;
    assert!(error_of(runtime(1), true_s) < 0.05, "{} of {true_s}", runtime(1));
    assert_eq!(prediction.predicted[1].nodes_over_time[0], (0.0, 8));
    assert!(!prediction.predicted[1].workers.contains_key(&"del".into()));
}

#[test]
fn without_a_link_the_job_ends_or_the_prediction_says_why() {
    let (place, _) = RecordedRun::recorded();
    let mut args = place.args();
    args.without_link = vec![Pair("ams".parse().unwrap(), "del".parse().unwrap())];
    let prediction = predict(&args, settings()).unwrap();
    let RunPrediction { run, learned, predicted, .. } = &prediction;
    println!("{}", super::prediction_text(run, learned, predicted));
    let cut = &prediction.predicted[1];
    assert_eq!(cut.grid, "without ams-del");
    let whole = prediction.predicted[0].runtime_s.unwrap();
    match cut.runtime_s {
        Some(runtime_s) => assert!(runtime_s > whole * 0.99, "{runtime_s}, whole {whole}"),
        None => assert!(cut.error.is_some()),
    }
}

#[test]
fn unusable_files_are_reported_with_file_line_and_reason() {
    let (place, _) = RecordedRun::recorded();
    let mut args = place.args();
    args.without = vec!["dle".parse().unwrap()];
    let error = place.error(&args);
    assert_eq!(error, "--without: the grid has no cluster named \"dle\"; did you mean `del`?");

    place.put("links.toml", "[[cluster]]\nname = \"amz\"\n[[link]]\nbetween = [\"bud\", \"x\"]\n");
    let error = place.error(&place.args());
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(
        lines[0].starts_with("links.toml:2:1: the grid has no cluster named \"amz\""),
        "{error}"
    );
    assert!(lines[1].starts_with("links.toml:4:1: the grid has no cluster named \"x\""), "{error}");
    place.put("links.toml", "[wide]\nrtt = 20\n");
    assert!(place.error(&place.args()).starts_with("links.toml:2:"));
    place.put("links.toml", LINKS);

    let result = fs::read_to_string(place.path("run/result.json")).unwrap();
    let of = |text: &str| {
        place.put("run/result.json", text);
        place.error(&place.args())
    };
    let error = of("{\n  \"job\": 7\n}\n");
    assert!(error.starts_with("run/result.json:2:"), "{error}");
    let error = of(&result.replace("\"work\"", "\"wrok\""));
    assert!(error.contains("record the run with this version"), "{error}");
    let error = of(&result.replace("\"ok\": true", "\"ok\": false"));
    assert!(error.contains("the run failed"), "{error}");
    place.put("run/result.json", &result);
    let log = fs::read_to_string(place.path("run/events.jsonl")).unwrap();
    let second = log.find('\n').unwrap() + 1;
    place.put("run/events.jsonl", &format!("{}nonsense\n{}", &log[..second], &log[second..]));
    let failed = predict(&place.args(), settings()).err().expect("it is wrong");
    assert!(failed.message.contains("line 2"), "{failed}");
    fs::remove_file(place.path("run/result.json")).unwrap();
    assert!(place.error(&place.args()).contains("cannot read run/result.json"));
    assert!(pair("ams").is_err() && pair("ams,").is_err());
}
