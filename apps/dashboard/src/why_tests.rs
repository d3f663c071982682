//! A constructed run, whose decisions the policy takes from constructed snapshots: shown as a
//! whole, at a time and for a node, and repeated.

use std::fs;
use std::path::PathBuf;

use springtide_actors::policy::{
    AdaptationSettings, ClusterAggregate, Inputs, LoggedDecision, Memory, NodeOffer, RootNode,
    SharedParameters, Snapshot, WorkerStats, decide,
};
use springtide_cli::outdir::manifest;
use springtide_runtime::event::{Event, Record, RunDir};
use springtide_runtime::id::{Incarnation, JobId};

use super::*;

/// The start of all recorders, in microseconds since the Unix epoch.
const START_US: u64 = 1_795_262_400_000_000;

/// A run under construction.
struct RunBuilder {
    temp: tempfile::TempDir,
    records: Vec<Record>,
    memory: Memory,
    settings: AdaptationSettings,
    period: u64,
    /// Start of the job in microseconds after the recorders' start.
    start_us: u64,
}

/// Workers of a cluster: names, speed, overhead, inter-cluster overhead.
type ClusterWorkers<'a> = (&'a str, &'a [&'a str], f64, f64, f64);

impl RunBuilder {
    fn new() -> Self {
        let settings = AdaptationSettings::default();
        let memory = Memory::new(&settings);
        let temp = tempfile::tempdir().unwrap();
        Self { temp, records: Vec::new(), memory, settings, period: 0, start_us: 700_000 }
    }

    /// Records an event of `node` at `at_s` of the job. Its recorder started `late_us` after the
    /// others.
    fn record(&mut self, node: &str, late_us: u64, at_s: f64, event: Event) -> &mut Self {
        let seq = self.records.iter().filter(|record| record.node.as_str() == node).count() + 1;
        let t_us = self.start_us as i64 + (at_s * 1e6) as i64 - late_us as i64;
        let (incarnation, t_us) = (Incarnation(START_US + late_us), u64::try_from(t_us).unwrap());
        let (node, seq) = (node.into(), seq as u64);
        let began_unix_us = None;
        self.records.push(Record { node, incarnation, seq, t_us, began_unix_us, event });
        self
    }

    fn joined(&mut self, node: &str, cluster: &str, late_us: u64, at_s: f64) -> &mut Self {
        let (job, cluster) = (JobId(1), cluster.into());
        self.record(node, late_us, at_s, Event::NodeJoined { job, node: node.into(), cluster })
    }

    /// Records a period of ten seconds: the policy decides, and the coordinator on `ams-1` logs the
    /// decision.
    fn period(&mut self, groups: &[ClusterWorkers<'_>], free: u32) -> &mut Self {
        self.period += 1;
        let agreed = SharedParameters::of(&self.memory, &self.settings);
        let workers = |&(_, names, speed, overhead, overhead_inter): &ClusterWorkers<'_>| {
            let worker = |name: &&str| WorkerStats {
                node: (*name).into(),
                speed: Some(speed),
                overhead,
                overhead_inter,
                joined: 50,
                ..WorkerStats::default()
            };
            names.iter().map(worker).collect::<Vec<_>>()
        };
        let clusters = groups
            .iter()
            .map(|group| (group.0.into(), ClusterAggregate::of(&workers(group), &agreed)))
            .collect();
        let snapshot = Snapshot {
            epoch: Epoch(1),
            period: self.period,
            period_s: 10.0,
            elapsed_s: 10.0 * self.period as f64,
            clusters,
            root: Some(RootNode { node: "ams-1".into(), cluster: "ams".into() }),
            offers: [("bud".into(), NodeOffer { free: free.into(), ..NodeOffer::default() })]
                .into(),
            ..Snapshot::default()
        };
        let (decision, memory) = decide(&snapshot, &self.memory, &self.settings);
        let at_s = snapshot.elapsed_s;
        let inputs =
            Inputs { snapshot, memory: self.memory.clone(), settings: self.settings.clone() };
        self.memory = memory;
        let why = "efficiency".to_owned();
        let inputs = serde_json::to_value(LoggedDecision { inputs, decision }).unwrap();
        let decision = springtide_actors::policy::ADAPT.to_owned();
        self.record("ams-1", 0, at_s, Event::Decision { decision, why, inputs })
    }

    /// Writes the run's directory.
    fn write(self) -> RunDirectory {
        let path = self.temp.path().join("run");
        let dir = RunDir::create(&path).unwrap();
        let manifest = manifest("queens", "0.1.0", Some(1));
        let mut log = dir.begin_log(&manifest, u64::MAX).unwrap();
        log.append(&self.records).unwrap();
        log.finish().unwrap();
        RunDirectory { _temp: self.temp, path }
    }
}

/// The directory of a constructed run.
struct RunDirectory {
    _temp: tempfile::TempDir,
    path: PathBuf,
}

impl std::ops::Deref for RunDirectory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

fn job_started(epoch: u32) -> Event {
    Event::JobStarted { job: JobId(1), name: "queens".into(), epoch: Epoch(epoch) }
}

/// Four nodes are too few, so that four more join. The link of their cluster is too slow. One node
/// is lost and one drained.
fn run_log() -> RunBuilder {
    let mut made = RunBuilder::new();
    let job = JobId(1);
    let (ams, del) = (["ams-1", "ams-2"], ["del-1", "del-2"]);
    let bud = ["bud-1", "bud-2", "bud-3", "bud-4"];
    let clusters = [("ams".into(), 2), ("bud".into(), 4), ("del".into(), 2)].into();
    let started =
        Event::RunStarted { run: "r".into(), version: "0.1.0".into(), seed: Some(1), clusters };
    made.record("head", 0, -0.7, started);
    for (node, cluster) in [("ams-1", "ams"), ("ams-2", "ams"), ("del-1", "del"), ("del-2", "del")]
    {
        made.joined(node, cluster, 0, -0.1);
    }
    made.record("ams-1", 0, 0.0, job_started(1));
    let rich = |inter| [("ams", &ams[..], 1.0, 0.2, inter), ("del", &del[..], 1.0, 0.2, inter)];
    made.period(&rich(0.01), 4);
    let granted = Event::Decision {
        decision: "grant bud-1, bud-2, bud-3, bud-4 to job-1".into(),
        why: "the fastest free ones".into(),
        inputs: serde_json::json!({}),
    };
    made.record("head", 0, 10.1, granted);
    for node in bud {
        // Their recorders start later, with clocks of their own.
        made.joined(node, "bud", 200_000, 10.4);
    }
    let calm = [
        ("ams", &ams[..], 1.0, 0.51, 0.05),
        ("bud", &bud[..], 1.0, 0.51, 0.05),
        ("del", &del[..], 1.0, 0.51, 0.05),
    ];
    made.period(&calm, 0).period(&calm, 0).period(&calm, 0);
    let lost = Event::NodeLost {
        node: "del-2".into(),
        cluster: "del".into(),
        incarnation: Incarnation(START_US),
        why: "killed by SIGKILL; its last lines:\nout of \x1b[31mmemory".into(),
        silent_us: 0,
        last_lines: Vec::new(),
    };
    made.record("ams-1", 0, 43.0, lost);
    let (node, cluster) = ("del-1".into(), "del".into());
    made.record("ams-1", 0, 44.0, Event::NodeLeft { job, node, cluster, why: "drained".into() });
    let view = |epoch, members| Event::ViewChanged {
        job,
        epoch: Epoch(epoch),
        version: 2,
        members,
        coordinator: Some("ams-2".into()),
    };
    made.record("ams-1", 0, 44.1, view(1, 6));
    let slow = [("ams", &ams[..], 2.0, 0.72, 0.1), ("bud", &bud[..], 1.0, 0.85, 0.75)];
    made.period(&slow, 0).period(&slow, 0).period(&slow, 0);
    made.record("ams-2", 0, 75.0, view(2, 2));
    let (ok, wall_us) = (true, 80_000_000);
    let (checksum, error) = (Some("00000000000000ab".into()), None);
    made.record("ams-1", 0, 80.0, Event::JobEnded { job, ok, wall_us, checksum, error });
    made
}

fn explain(dir: &Path, width: usize) -> String {
    text(&all_entries(&RunLog::read(dir).unwrap()), Some(width))
}

#[test]
fn a_run_is_shown_in_order_of_time_and_fits_the_terminal() {
    let dir = run_log().write();
    let golden = [
        "        a grid of 8 nodes: ams 2, bud 4, del 2",
        "        4 nodes (ams-1, ams-2, del-1, del-2) joined",
        " 0.0 s  job-1 (queens) starts under epoch 1",
        "10.0 s  period 1: asked for 4 more (expected: 8 processors at efficiency 0.63)",
    ]
    .join("\n");
    let shown = explain(&dir, 80);
    assert!(shown.starts_with(&golden), "{shown}");
    let mut rest = shown.as_str();
    for part in [
        "10.0 s  period 1: asked for",
        "10.1 s  grant bud-1, bud-2, bud-3, bud-4 to job-1\n        - the fastest free ones",
        "10.4 s  4 nodes (bud-1, bud-2, bud-3, bud-4) joined",
        "20.0 s  periods 2 to 4: nothing was changed (efficiency 0.49)",
        "43.0 s  node del-2 was lost\n        - killed by SIGKILL; its last lines:\n        \
        - out of [31mmemory\n",
        "44.0 s  node del-1 left in order\n        - drained",
        "removed cluster bud (its link is too slow for the application)",
        "- cluster bud is removed: its inter-cluster overhead is",
        "75.0 s  job-1 is coordinated by ams-2 under epoch 2, with 2 nodes",
        "80.0 s  job-1 ends well after 80.00 s, checksum 00000000000000ab",
    ] {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} is not in\n{shown}"));
        rest = &rest[at..];
    }
    for width in [40, 80, 110] {
        let shown = explain(&dir, width);
        assert!(shown.lines().all(|line| line.chars().count() <= width), "{shown}");
    }
}

#[test]
fn a_moment_has_its_decision_with_all_reasons() {
    let dir = run_log().write();
    let run_log = RunLog::read(&dir).unwrap();
    let at = |at| decision_entry(decision_at(&run_log, at).unwrap());
    let quiet = at(35.0);
    assert_eq!((quiet.at_s, quiet.text.as_str()), (30.0, "period 3: changed nothing"));
    assert!(quiet.why.len() > 1, "{quiet:?}");
    assert_eq!((at(0.0).at_s, at(1e9).at_s), (10.0, 70.0));
    let inputs_entry = inputs_entry(decision_at(&run_log, 10.0).unwrap()).why;
    let expected = [
        "cluster ams: 2 processors, mean speed 1.000, mean overhead 0.200, of which 0.010 between \
        clusters",
        "cluster del: 2 processors, mean speed 1.000, mean overhead 0.200, of which 0.010 between \
        clusters",
        "free processors: bud 4",
        "the root is on node ams-1 of cluster ams",
    ];
    assert_eq!(inputs_entry, expected);
}

#[test]
fn a_node_has_the_reasons_of_its_joins_losses_and_stays() {
    let dir = run_log().write();
    let run_log = RunLog::read(&dir).unwrap();
    let of = |node: &str| text(&node_entries(&run_log, &node.into(), None).unwrap(), None);
    let bud = of("bud-2");
    for part in [
        "10.1 s  grant bud-1, bud-2",
        "10.4 s  node bud-2 joined\n        - nodes were asked for at 10.0 s, period 1:",
        "efficiency is above 0.5",
        "cluster bud is removed: its inter-cluster overhead",
    ] {
        assert!(bud.contains(part), "{part} is not in\n{bud}");
    }
    let first = of("ams-2");
    assert!(first.starts_with("        node ams-2 joined as one of the first\n"), "{first}");
    let kept = "50.0 s  period 5: removed cluster bud (its link is too slow for the application); \
    nothing counted against node ams-2";
    assert!(first.contains(kept), "{first}");
    let lost = of("del-2");
    assert!(lost.contains("43.0 s  node del-2 was lost\n"), "{lost}");
    assert!(lost.contains("no decision mentioned it"), "{lost}");
    let wrong = find_node(&run_log, "bud-22").unwrap_err();
    assert_eq!(wrong.exit, springtide_cli::exit::Exit::Usage);
    assert!(wrong.message.ends_with("knows no node bud-22: did you mean bud-2?"), "{wrong}");
    let then = node_entries(&run_log, &"del-2".into(), Some(20.0)).unwrap();
    assert_eq!(then[0].text, "period 2 did not mention node del-2");
}

#[test]
fn a_repeated_sentence_is_shown_once() {
    let mut made = RunBuilder::new();
    made.joined("ams-1", "ams", 0, -0.1).record("ams-1", 0, 0.0, job_started(1));
    // The root's node is slow and stays.
    let slow =
        [("ams", &["ams-1"][..], 0.1, 0.6, 0.0), ("del", &["del-1", "del-2"][..], 1.0, 0.9, 0.0)];
    for _ in 0..8 {
        made.period(&slow, 0);
    }
    let run_log = RunLog::read(&made.write()).unwrap();
    let shown = text(&node_entries(&run_log, &"ams-1".into(), None).unwrap(), None);
    assert!(shown.lines().count() < 8, "{shown}");
    assert!(shown.contains(" more time"), "{shown}");
}

#[test]
fn repeated_decisions_are_equal() {
    let dir = run_log().write();
    assert_eq!(replay(&dir), Ok(()));
}

/// Changes the log of a written run.
fn changed(dir: &Path, change: impl FnOnce(String) -> String) {
    let file = dir.join("events.jsonl");
    fs::write(&file, change(fs::read_to_string(&file).unwrap())).unwrap();
}

#[test]
fn a_decision_that_differs_is_reported_with_its_path() {
    let dir = run_log().write();
    let run_log = RunLog::read(&dir).unwrap();
    let asked = run_log.decisions[0].logged.decision.actions.clone();
    let Some(AdaptationAction::Request(request)) = asked.first() else { panic!("{asked:?}") };
    let count = request.count.get();
    let logged =
        format!(r#""action":"request","avoid_clusters":[],"avoid_nodes":[],"count":{count}"#);
    let other = logged.replace(&format!("\"count\":{count}"), "\"count\":77");
    changed(&dir, |text| {
        assert!(text.contains(&logged), "{text}");
        text.replacen(&logged, &other, 1)
    });
    let failed = replay(&dir).unwrap_err();
    assert_eq!(failed.exit, springtide_cli::exit::Exit::Failure);
    let expected = "period 1 of epoch 1 differs, the first of 7 decisions that do";
    assert!(failed.message.starts_with(expected), "{failed}");
    let place = format!("\n  actions[0].count: logged 77, now {count}");
    assert!(failed.message.ends_with(&place), "{failed}");
}

#[test]
fn truncated_and_empty_logs_are_reported() {
    let dir = run_log().write();
    let whole_of = fs::read_to_string(dir.join("events.jsonl")).unwrap();
    // Cut in the middle of the last decision.
    let at = whole_of.rfind("\"adapt\"").unwrap();
    changed(&dir, |text| text[..at].to_owned());
    let cut = RunLog::read(&dir).unwrap();
    assert!(cut.decisions.len() < 7);
    assert!(cut.gap.as_ref().unwrap().contains("the last line is cut off"), "{:?}", cut.gap);
    assert_eq!(replay(&dir), Ok(()));
    // Cut between two lines.
    let at = whole_of.trim_end().rfind('\n').unwrap() + 1;
    changed(&dir, |_| whole_of[..at].to_owned());
    let gap = RunLog::read(&dir).unwrap().gap.unwrap();
    assert!(gap.contains("the log has no end"), "{gap}");
    // Damaged in the middle.
    changed(&dir, |_| whole_of.replacen("\"seq\":2", "\"seq\":", 1));
    let broken = RunLog::read(&dir).unwrap_err();
    assert!(broken.message.contains("line "), "{broken}");
    // A decision of another format.
    changed(&dir, |_| whole_of.replacen("\"snapshot\":", "\"snapped\":", 1));
    let foreign = RunLog::read(&dir).unwrap_err();
    assert!(foreign.message.contains("cannot be read"), "{foreign}");

    let mut bare = RunBuilder::new();
    bare.record("ams-1", 0, 0.0, job_started(1));
    let dir = bare.write();
    let none = replay(&dir).unwrap_err();
    assert!(none.message.starts_with("no decision is in "), "{none}");
    let run_log = RunLog::read(&dir).unwrap();
    assert!(decision_at(&run_log, 1.0).is_err());
    assert_eq!(all_entries(&run_log).len(), 1);
    let nothing = RunLog::read(&dir.join("elsewhere")).unwrap_err();
    assert_eq!(nothing.exit, springtide_cli::exit::Exit::Usage);
    assert!(nothing.message.contains("holds no run"), "{nothing}");
}

#[test]
fn programs_get_one_object() {
    let dir = run_log().write();
    let run_log = RunLog::read(&dir).unwrap();
    let object = object(&run_log, &all_entries(&run_log));
    assert_eq!((&object["schema"], &object["decisions"]), (&json!(1), &json!(7)));
    let entries = object["entries"].as_array().unwrap();
    let decided = entries.iter().find(|entry| entry["kind"] == "decision").unwrap();
    assert_eq!(decided["at_s"], 10.0);
    assert!(decided["why"].as_array().unwrap().len() > 1);
}
