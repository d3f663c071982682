//! A small run, as its journal has it: golden numbers, and its page and provenance.

use std::path::Path;

use serde_json::Value;
use springtide_workflow::{Format, Overrides, Workflow};

use super::super::directory::RunManifest;
use super::super::journal::{JournalEntry, WorkflowSource};
use super::analysis::{Percentiles, critical_path, ready_s, usage, wait_s, waiting};
use super::attempts::{AttemptEnd, RunHistory, TaskOutcome};
use super::{page, ro_crate, timestamp, wfformat};
use crate::Read;

/// A diamond whose task `<b>&"` fails and is tried again, and a task after one that fails.
const WORKFLOW: &str = r#"
name = "small <&> run"
[[task]]
id = "first"
runtime = 1
processors = 2
memory = "2 MB"
command = ["sh", "-c", "true"]
outputs = ["a file"]
[[task]]
id = "<b>&\""
runtime = 1
command = ["true"]
inputs = ["a file"]
[[task]]
id = "short"
runtime = 1
command = ["true"]
after = ["first"]
[[task]]
id = "last"
runtime = 1
command = ["true"]
after = ["<b>&\"", "short"]
[[task]]
id = "broken"
runtime = 1
command = ["false"]
[[task]]
id = "blocked"
runtime = 1
command = ["true"]
after = ["broken"]
[[file]]
name = "a file"
size = "1 kB"
"#;

fn begun(at_s: f64) -> JournalEntry {
    let source = WorkflowSource { time_limit_s: Some(60.0), ..WorkflowSource::default() };
    JournalEntry::Begun { at_s, tasks: 6, restored: 0, best_effort: true, source: Some(source) }
}

fn started(at_s: f64, task: &str, attempt: u32, node: &str) -> JournalEntry {
    let cluster = Some(node.split('-').next().unwrap().into());
    let (task, node) = (task.to_owned(), Some(node.into()));
    JournalEntry::Started { at_s, task, attempt, cluster, node }
}

fn completed(at_s: f64, task: &str, attempt: u32, node: &str, used: (f64, f64)) -> JournalEntry {
    JournalEntry::Completed {
        at_s,
        task: task.to_owned(),
        key: String::new(),
        attempt,
        start_s: at_s - used.0,
        cluster: Some(node.split('-').next().unwrap().into()),
        node: Some(node.into()),
        wall_s: used.0,
        cpu_s: used.1,
        memory_bytes: 1_500_000,
    }
}

fn failed(at_s: f64, task: &str, attempt: u32, again: bool) -> JournalEntry {
    JournalEntry::Failed {
        at_s,
        task: task.to_owned(),
        attempt,
        start_s: None,
        cluster: None,
        reason: "exited with <code> 3".to_owned(),
        again,
    }
}

fn entries() -> Vec<JournalEntry> {
    let bold = "<b>&\"";
    vec![
        begun(100.0),
        started(101.0, "first", 1, "ams-1"),
        started(101.0, "broken", 1, "del-1"),
        failed(101.5, "broken", 1, false),
        completed(104.0, "first", 1, "ams-1", (3.0, 4.5)),
        started(104.5, "short", 1, "ams-1"),
        JournalEntry::Staged {
            at_s: 104.75,
            task: bold.to_owned(),
            file: "a file".to_owned(),
            from: "ams".into(),
            cluster: "del".into(),
            bytes: 999,
            seconds: 0.25,
        },
        started(105.0, bold, 1, "del-1"),
        completed(105.5, "short", 1, "ams-1", (1.0, 0.5)),
        failed(106.0, bold, 1, true),
        started(106.5, bold, 2, "del-1"),
        // The process is killed, and another one continues the run 10 s later.
        begun(116.5),
        started(117.0, bold, 3, "del-2"),
        completed(119.0, bold, 3, "del-2", (2.0, 1.0)),
        started(119.25, "last", 1, "ams-1"),
        completed(120.25, "last", 1, "ams-1", (1.0, 1.0)),
        JournalEntry::Ended {
            at_s: 121.0,
            error: Some("task broken exited".to_owned()),
            interrupted: false,
        },
    ]
}

fn history(workflow: Result<Read, String>) -> RunHistory {
    let file = Path::new("/no/small.toml");
    let manifest = RunManifest::new("small <&> run".into(), file.into(), "/no/grid".into(), 7);
    let entries = entries();
    RunHistory::new(Path::new("/no/run"), manifest, &entries, false, workflow)
}

fn known() -> RunHistory {
    let file = Path::new("small.toml");
    let overrides = Overrides::default();
    let workflow = Workflow::parse(file, WORKFLOW.as_bytes(), Format::Own, &overrides).unwrap();
    history(Ok(Read::of(file, Some(Format::Own), workflow)))
}

#[test]
fn outcomes_and_attempts_are_those_of_the_journal() {
    let history = known();
    let outcomes: Vec<TaskOutcome> = history.tasks.iter().map(|task| task.outcome).collect();
    let done = TaskOutcome::Completed;
    assert_eq!(outcomes, [done, done, done, done, TaskOutcome::Failed, TaskOutcome::Skipped]);
    assert_eq!((history.state, history.processes.len()), ("failed", 2));
    assert_eq!(history.active_s(), 6.5 + 4.5);
    // 3 s on 2 processors, and 4 s on one.
    assert_eq!(history.used_processor_s(), 10.0);
    let lost = &history.attempts[history.tasks[1].attempts[1]];
    assert_eq!((&lost.end, lost.end_s), (&AttemptEnd::Lost, 106.5));
}

#[test]
fn the_critical_path_accounts_for_all_its_time() {
    let history = known();
    let path = critical_path(&history);
    let ids: Vec<&str> = path.iter().map(|step| history.tasks[step.task].id.as_str()).collect();
    assert_eq!(ids, ["first", "<b>&\"", "last"]);
    let parts = |at: usize| {
        let step = &path[at];
        [step.run_s, step.failed_s, step.staging_s, step.stopped_s, step.node_wait_s]
    };
    assert_eq!(parts(0), [3.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(parts(1), [2.0, 1.0, 0.25, 10.0, 1.75]);
    assert_eq!(parts(2), [1.0, 0.0, 0.0, 0.0, 0.25]);
    // `short` ended at 105.5, and the other parent at 119.
    assert_eq!(path[2].parent_wait_s, 13.5);
    let all: f64 = (0..3).flat_map(parts).sum();
    assert_eq!(all, 120.25 - 100.0);
}

#[test]
fn waits_and_resources_are_by_kind() {
    let history = known();
    let [first, last] = [1, 3].map(|task: usize| {
        let task = &history.tasks[task];
        *task.attempts.last().unwrap()
    });
    assert_eq!((ready_s(&history, first), wait_s(&history, first)), (116.5, Some(0.5)));
    assert_eq!((ready_s(&history, last), wait_s(&history, last)), (119.0, Some(0.25)));
    // `last` waits since its last parent's end, and `<b>&"` since that of `first`.
    let waiting = waiting(&history);
    assert_eq!(waiting.len(), 7);
    assert_eq!((waiting[6], waiting[5]), ((119.0, 119.25), (106.5, 117.0)));
    let usage = usage(&history);
    let kinds: Vec<&str> = usage.iter().map(|kind| kind.kind.as_str()).collect();
    assert_eq!(kinds, ["sh", "true", "false"]);
    assert_eq!(usage[0].efficiency(), Some(0.75));
    assert_eq!((usage[0].processors, usage[0].memory_limit_bytes), ((2, 2), Some(2_000_000)));
    assert_eq!((usage[1].efficiency(), usage[1].failed), (Some(2.5 / 4.0), 1));
    assert_eq!((usage[1].time_limit_s, usage[1].memory_limit_bytes), (Some(60.0), None));
    let waits = Percentiles::of(usage[1].waits_s.clone()).unwrap();
    assert_eq!((waits.count, waits.p50, waits.max), (5, 0.5, 1.0));
}

#[test]
fn the_page_has_no_unescaped_names() {
    for history in [known(), history(Err("the file <is> gone".to_owned()))] {
        let page = page::page(&history, Path::new("/no/run"));
        for raw in ["<b>", "<&>", "<code>", "<is>", "<script", "http-equiv", "src="] {
            assert!(!page.contains(raw), "{raw} in {page}");
        }
        assert!(page.contains("&lt;b&gt;&amp;&quot;") && page.contains("exited with &lt;code&gt;"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.contains("Critical path"), history.workflow.is_ok());
    }
}

#[test]
fn a_page_of_many_tasks_stays_small() {
    let mut entries = vec![begun(0.0)];
    for task in 0..10_000 {
        let (node, at_s) = (format!("ams-{}", task % 8), f64::from(task) / 500.0);
        entries.push(started(at_s, &format!("t{task}"), 1, &node));
        entries.push(completed(at_s + 0.01, &format!("t{task}"), 1, &node, (0.01, 0.01)));
    }
    let manifest = RunManifest::new("many".into(), "w".into(), "g".into(), 7);
    let unknown = Err("gone".to_owned());
    let history = RunHistory::new(Path::new("/no/run"), manifest, &entries, true, unknown);
    assert_eq!(history.state, "running");
    let page = page::page(&history, Path::new("/no/run"));
    assert!(page.len() < 100_000, "{} bytes", page.len());
    assert!(page.contains("Mean number of running tasks"));
}

#[test]
fn the_wfformat_instance_is_read_back() {
    let history = known();
    let text = wfformat::instance(&history).unwrap().to_string();
    let overrides = Overrides { unknown_runtimes: true, ..Overrides::default() };
    let file = Path::new("wfformat.json");
    let back = Workflow::parse(file, text.as_bytes(), Format::WfFormat, &overrides).unwrap();
    let own = &history.workflow.as_ref().unwrap().workflow;
    let shape = |workflow: &Workflow| -> Vec<(String, Vec<usize>, Option<u32>)> {
        let tasks = workflow.tasks.iter();
        tasks.map(|task| (task.name.clone(), task.parents.clone(), task.processors)).collect()
    };
    assert_eq!(shape(&back)[0], ("sh".to_owned(), vec![], Some(2)));
    let parents = |workflow: &Workflow| -> Vec<Vec<usize>> {
        workflow.tasks.iter().map(|task| task.parents.clone()).collect()
    };
    assert_eq!(parents(&back), parents(own));
    let ids: Vec<&str> = back.tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(ids, ["first", "_b___", "short", "last", "broken", "blocked"]);
    let runtimes: Vec<Option<f64>> = back.tasks.iter().map(|task| task.runtime_s).collect();
    assert_eq!(runtimes, [Some(3.0), Some(2.0), Some(1.0), Some(1.0), None, None]);
    assert_eq!((back.files[0].name.as_str(), back.files[0].bytes), ("a_file", 999));
    assert_eq!(back.tasks[0].resources.memory_bytes, Some(1_500_000));
    let unknown = wfformat::instance(&self::history(Err("it is gone".to_owned()))).unwrap_err();
    assert_eq!(unknown.message, "it is gone");
}

#[test]
fn the_crate_has_an_action_for_each_attempt() {
    let history = known();
    let metadata = ro_crate::metadata(&history).unwrap();
    let graph = metadata["@graph"].as_array().unwrap();
    let ids: std::collections::BTreeSet<&str> =
        graph.iter().map(|entity| entity["@id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), graph.len(), "an id occurs twice");
    let actions: Vec<&Value> =
        graph.iter().filter(|entity| entity["@type"] == "CreateAction").collect();
    assert_eq!(actions.len(), 1 + history.attempts.len());
    assert_eq!(actions[0]["instrument"]["@id"], "workflow.toml");
    assert_eq!(actions[0]["startTime"], "1970-01-01T00:01:40.000+00:00");
    let status = |name: &str| {
        let status = format!("http://schema.org/{name}ActionStatus");
        actions.iter().filter(|action| action["actionStatus"] == status).count()
    };
    assert_eq!((status("Completed"), status("Failed")), (4, 4));
    let mentioned = graph[1]["mentions"].as_array().unwrap();
    assert_eq!(mentioned.len(), actions.len());
    // Each reference leads to an entity.
    for action in &actions {
        let lists = ["object", "result"].map(|name| action[name].as_array().cloned());
        let references = lists.into_iter().flatten().flatten();
        for reference in references.chain([action["instrument"].clone()]) {
            let id = reference["@id"].as_str().unwrap();
            assert!(ids.contains(id), "{id}");
        }
    }
}

#[test]
fn timestamps_have_milliseconds() {
    assert_eq!(timestamp(1.0009), "1970-01-01T00:00:01.001+00:00");
}
