//! Predictions of runs that were recorded in virtual time.

use springtide_runtime::config::ScenarioConfig;
use springtide_simulator::scenario::{Play, play_over};

use super::*;
use crate::exit::Exit;

/// Two clusters of one speed and a third of half of it, all at work from the first; data is sent, and the root works alone
/// for a while.
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

struct Place(tempfile::TempDir);

impl Place {
    /// The scenario's run is recorded in `run`.
    fn recorded() -> (Self, f64) {
        let place = Self(tempfile::tempdir().unwrap());
        let loaded = load::<ScenarioConfig>(&Sources::of_text("recorded.toml", SCENARIO)).unwrap();
        let how = Play { mode: Mode::Monitor, period: None, seed: 1 };
        let played = play_over(&loaded.value, &how, Wire::Frames).unwrap();
        crate::sim::keep(&place.path("run"), &loaded.value, SCENARIO, &played, &how, "1").unwrap();
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
        let Err(failed) = predict(args, how()) else { panic!("it is wrong") };
        assert_eq!(failed.exit, Exit::Usage, "{failed}");
        failed.message.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn how() -> How {
    How { mode: None, seed: 1, wire: Wire::Frames, json: false }
}

/// How far off, as a share.
fn off(predicted: f64, true_s: f64) -> f64 {
    (predicted / true_s - 1.0).abs()
}

#[test]
fn a_simulated_run_is_predicted_within_a_twentieth_and_so_is_the_grid_without_a_cluster() {
    let (place, wall_s) = Place::recorded();
    let mut args = place.args();
    args.without = vec!["del".parse().unwrap()];
    let told = predict(&args, how()).unwrap();
    println!("{}", super::told(&told.run, &told.learned, &told.predicted));
    // What was declared comes back: work in seconds of speed 1, which is the mean here.
    let model = &told.learned.model;
    assert_eq!((model.rounds, model.leaves), (8, 512));
    let total: f64 = told.run.clusters.values().map(|part| part.units).sum();
    let scenario = load::<ScenarioConfig>(&Sources::of_text("recorded.toml", SCENARIO)).unwrap();
    let declared = springtide_simulator::scenario::model(&scenario.value.app);
    let work = declared.work().as_secs_f64() - 8.0 * 0.5;
    assert!((total - work).abs() < 1e-6, "{total} of {work}");
    assert!((model.spread as f64 - 500.0).abs() < 20.0, "{}", model.spread);
    assert!(off(f64::from(model.state_bytes), 240_000.0) < 0.01, "{}", model.state_bytes);
    assert!(off(f64::from(model.result_bytes), 320_000.0) < 0.5, "{}", model.result_bytes);
    let speeds = &told.learned.speeds;
    let ratio = speeds[&"bud".into()] / speeds[&"ams".into()];
    assert!((ratio - 0.5).abs() < 0.01, "{ratio}");
    let runtime = |at: usize| told.predicted[at].runtime_s.expect("it ends");
    assert!(off(runtime(0), wall_s) < 0.05, "{} of {wall_s}", runtime(0));
    // The same scenario without it is what comes true.
    let mut without = scenario.value.clone();
    without.cluster.retain(|place| place.name.as_str() != "del");
    let how = Play { mode: Mode::Monitor, period: None, seed: 1 };
    let true_s = play_over(&without, &how, Wire::Frames).unwrap().ended.report.wall_s;
    assert!(off(runtime(1), true_s) < 0.05, "{} of {true_s}", runtime(1));
    assert_eq!(told.predicted[1].nodes_over_time[0], (0.0, 8));
    assert!(!told.predicted[1].workers.contains_key(&"del".into()));
}

#[test]
fn without_a_link_the_job_still_ends_or_it_is_said_why_not() {
    let (place, _) = Place::recorded();
    let mut args = place.args();
    args.without_link = vec![Pair("ams".parse().unwrap(), "del".parse().unwrap())];
    let told = predict(&args, how()).unwrap();
    println!("{}", super::told(&told.run, &told.learned, &told.predicted));
    let cut = &told.predicted[1];
    assert_eq!(cut.grid, "without ams-del");
    let whole = told.predicted[0].runtime_s.unwrap();
    match cut.runtime_s {
        Some(runtime_s) => assert!(runtime_s > whole * 0.99, "{runtime_s}, whole {whole}"),
        None => assert!(cut.error.is_some()),
    }
}

#[test]
fn what_cannot_be_used_is_told_with_file_line_and_reason() {
    let (place, _) = Place::recorded();
    let mut args = place.args();
    args.without = vec!["dle".parse().unwrap()];
    let told = place.error(&args);
    assert_eq!(told, "--without: the grid has no cluster named \"dle\"; did you mean `del`?");

    place.put("links.toml", "[[cluster]]\nname = \"amz\"\n[[link]]\nbetween = [\"bud\", \"x\"]\n");
    let told = place.error(&place.args());
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(
        lines[0].starts_with("links.toml:2:1: the grid has no cluster named \"amz\""),
        "{told}"
    );
    assert!(lines[1].starts_with("links.toml:4:1: the grid has no cluster named \"x\""), "{told}");
    place.put("links.toml", "[wide]\nrtt = 20\n");
    assert!(place.error(&place.args()).starts_with("links.toml:2:"));
    place.put("links.toml", LINKS);

    let result = fs::read_to_string(place.path("run/result.json")).unwrap();
    let of = |text: &str| {
        place.put("run/result.json", text);
        place.error(&place.args())
    };
    let told = of("{\n  \"job\": 7\n}\n");
    assert!(told.starts_with("run/result.json:2:"), "{told}");
    let told = of(&result.replace("\"work\"", "\"wrok\""));
    assert!(told.contains("record the run with this version"), "{told}");
    let told = of(&result.replace("\"ok\": true", "\"ok\": false"));
    assert!(told.contains("the run failed"), "{told}");
    place.put("run/result.json", &result);
    let log = fs::read_to_string(place.path("run/events.jsonl")).unwrap();
    let second = log.find('\n').unwrap() + 1;
    place.put("run/events.jsonl", &format!("{}nonsense\n{}", &log[..second], &log[second..]));
    let failed = predict(&place.args(), how()).err().expect("it is wrong");
    assert!(failed.message.contains("line 2"), "{failed}");
    fs::remove_file(place.path("run/result.json")).unwrap();
    assert!(place.error(&place.args()).contains("cannot read run/result.json"));
    assert!(pair("ams").is_err() && pair("ams,").is_err());
}
