//! Every format gives the same workflow, and real workflows have their known counts.

mod samples;

use std::collections::BTreeMap;
use std::path::Path;

use samples::SAMPLES;
use springtide_workflow::{
    Command, Format, Override, Overrides, Position, Workflow, WorkflowWarning,
};

fn parse(name: &str, text: &str, overrides: &Overrides) -> Workflow {
    let format = Format::guess(Path::new(name), text.as_bytes()).unwrap();
    Workflow::parse(Path::new(name), text.as_bytes(), format, overrides)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn read(name: &str, text: &str) -> Workflow {
    parse(name, text, &Overrides::default())
}

fn index(workflow: &Workflow, id: &str) -> usize {
    workflow.tasks.iter().position(|task| task.id == id).unwrap()
}

/// The edges by ids, sorted.
fn edges(workflow: &Workflow) -> Vec<(&str, &str, u64)> {
    let id = |task: usize| workflow.tasks[task].id.as_str();
    let mut edges: Vec<_> =
        workflow.edges().map(|(parent, child, bytes)| (id(parent), id(child), bytes)).collect();
    edges.sort_unstable();
    edges
}

#[test]
fn all_formats_give_the_same_workflow() {
    for (name, format, text) in SAMPLES {
        assert_eq!(Format::guess(Path::new(name), text.as_bytes()), Some(format));
        let workflow = read(name, text);
        assert_eq!(workflow.name, "diamond", "{name}");
        let diamond = [("a", "b", 1000), ("a", "c", 2000), ("b", "d", 3000), ("c", "d", 4000)];
        assert_eq!(edges(&workflow), diamond, "{name}");
        let task = |id| {
            let task = &workflow.tasks[index(&workflow, id)];
            (task.name.as_str(), task.runtime_s.unwrap(), task.processors)
        };
        assert_eq!(task("a"), ("split", 10.0, Some(1)), "{name}");
        assert_eq!(task("b"), ("work", 20.5, Some(4)), "{name}");
        assert_eq!(task("c"), ("work", 20.5, Some(4)), "{name}");
        assert_eq!(task("d"), ("join", 5.0, (format == Format::Dot).then_some(1)), "{name}");
        let order: Vec<_> =
            workflow.order().iter().map(|task| workflow.tasks[*task].id.as_str()).collect();
        assert_eq!(order, ["a", "b", "c", "d"], "{name}");
        let warnings: Vec<_> = workflow.warnings.keys().map(ToString::to_string).collect();
        let expected: &[&str] = match name {
            "diamond-1.6.json" => &["a fraction of a processor (rounded up)"],
            _ => &[],
        };
        assert_eq!(warnings, expected, "{name}");
        if format != Format::Dot {
            assert_eq!(workflow.files.len(), 6, "{name}");
            let (a, d) = (index(&workflow, "a"), index(&workflow, "d"));
            assert_eq!(
                (workflow.tasks[a].inputs.len(), workflow.tasks[d].outputs.len()),
                (1, 1),
                "{name}"
            );
        }
        assert!(workflow.tasks.iter().all(|task| task.at.is_some()), "{name}");
    }
}

#[test]
fn a_file_on_disk_is_read_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    for (name, _, text) in SAMPLES {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        assert_eq!(Workflow::read(&file, &Overrides::default()).unwrap(), read(name, text));
    }
}

#[test]
fn commands_are_those_of_the_files() {
    let command = |sample: usize, id| {
        let (name, _, text) = SAMPLES[sample];
        let workflow = read(name, text);
        workflow.tasks[index(&workflow, id)].command.clone()
    };
    let program = |program: &str, arguments: &[&str]| {
        let arguments = arguments.iter().map(|argument| argument.to_string()).collect();
        Some(Command::Program { program: program.to_owned(), arguments })
    };
    for wfformat in 0..3 {
        assert_eq!(command(wfformat, "a"), program("split", &["-n", "2"]));
        assert_eq!(command(wfformat, "b"), None);
    }
    assert_eq!(command(3, "a"), program("split", &["-n", "2", "in"]));
    assert_eq!(command(3, "b"), program("work", &[]));
    assert_eq!(command(4, "b"), program("work", &["-t", "4"]));
    assert_eq!(command(5, "a"), None);
    assert_eq!(command(6, "b"), program("work", &["-t", "4"]));
    let job = Command::Job { job: "work".to_owned(), arguments: vec!["12".to_owned()] };
    assert_eq!(command(6, "c"), Some(job));
}

#[test]
fn own_format_written_and_read_again_is_the_same() {
    for (name, _, text) in SAMPLES {
        let mut before = read(name, text);
        let mut after = read("again.toml", &before.to_toml());
        for workflow in [&mut before, &mut after] {
            workflow.warnings.clear();
            workflow.tasks.iter_mut().for_each(|task| task.at = None);
        }
        assert_eq!(before, after, "{name}");
    }
    let odd = "[[task]]\nid = \"\"\"\na\\\"\\u00e9\\n\"\"\"\nruntime = 0.1\noutputs = [\"'\"]\n\
        [[file]]\nname = \"'\"\nsize = \"18446744073709551615 B\"\n";
    let before = read("odd.toml", odd);
    assert_eq!((before.tasks[0].id.as_str(), before.files[0].bytes), ("a\"é\n", u64::MAX));
    let after = read("odd.toml", &before.to_toml());
    assert_eq!((&before.tasks[0].id, &before.files), (&after.tasks[0].id, &after.files));
}

#[test]
fn overrides_complete_the_files() {
    let text = "digraph { a [label=x size=3e9]; b [label=x runtime=5 procs=2]; c; a -> b -> c }";
    let table = |rows: &[(&str, Option<f64>, Option<u32>)]| {
        let row = |(key, runtime_s, processors): &(&str, _, _)| {
            let (runtime_s, processors) = (*runtime_s, *processors);
            (key.to_string(), Override { runtime_s, processors, ..Override::default() })
        };
        rows.iter().map(row).collect::<BTreeMap<_, _>>()
    };
    let given_edges = |overrides: &Overrides| {
        let workflow = parse("g.dot", text, overrides);
        workflow.tasks.iter().map(|task| (task.runtime_s, task.processors)).collect::<Vec<_>>()
    };
    let overrides = Overrides {
        processors: Some(8),
        runtime_s: Some(7.0),
        flop_per_s: Some(1e9),
        ..Overrides::default()
    };
    assert_eq!(
        given_edges(&overrides),
        [(Some(3.0), Some(8)), (Some(5.0), Some(2)), (Some(7.0), Some(8))]
    );
    // An id takes precedence over a name, and a table over the file.
    let rows = table(&[("x", Some(1.0), Some(3)), ("b", None, Some(6)), ("none", None, None)]);
    let overrides = Overrides { table: rows, runtime_scale: Some(2.0), ..overrides };
    assert_eq!(
        given_edges(&overrides),
        [(Some(2.0), Some(3)), (Some(10.0), Some(6)), (Some(14.0), Some(8))]
    );
    let odd = parse("g.dot", text, &overrides).warnings;
    assert_eq!((odd.len(), odd[&WorkflowWarning::OverrideUnused].first.as_str()), (1, "none"));
    let unknown = Overrides { unknown_runtimes: true, ..Overrides::default() };
    assert_eq!(given_edges(&unknown), [(None, None), (Some(5.0), Some(2)), (None, None)]);
    // The name of a program is a key too.
    let json =
        r#"{"workflow": {"tasks": [{"name": "m_1", "command": {"program": "/usr/bin/m"}}]}}"#;
    let overrides = Overrides { table: table(&[("m", Some(2.5), None)]), ..Overrides::default() };
    assert_eq!(parse("w.json", json, &overrides).tasks[0].runtime_s, Some(2.5));
}

#[test]
fn tasks_without_time_get_a_short_one_and_are_counted() {
    let json = r#"{"workflow": {"tasks": [
        {"name": "a", "runtime": 1}, {"name": "b", "runtime": -0.5},
        {"name": "c", "runtimeInSeconds": 0}]}}"#;
    let workflow = read("w.json", json);
    assert_eq!(
        (workflow.tasks[1].runtime_s, workflow.tasks[2].runtime_s),
        (Some(0.001), Some(0.001))
    );
    let met = &workflow.warnings[&WorkflowWarning::NoTime];
    assert_eq!(
        (met.times, met.first.as_str(), met.at),
        (2, "b", Some(Position { line: 2, column: 63 }))
    );
    assert_eq!(workflow.name, "w");
    let dot = read("g.dot", "digraph { root [runtime=0] }");
    assert_eq!(dot.warnings[&WorkflowWarning::NoTime].times, 1);
}

/// A DAX of tasks that use files, each `task reads... > writes...`, and edges `parent>child`.
fn dax(tasks: &[&str], given_edges: &[&str]) -> Workflow {
    let mut text = "<adag>".to_owned();
    for task in tasks {
        let (reads, writes) = task.split_once('>').unwrap();
        let mut reads = reads.split_whitespace();
        let id = reads.next().unwrap();
        text += &format!("<job id='{id}' name='{id}' runtime='1'>");
        for file in reads {
            text += &format!("<uses file='{file}' link='input' size='1'/>");
        }
        for file in writes.split_whitespace() {
            text += &format!("<uses file='{file}' link='output' size='1'/>");
        }
        text += "</job>";
    }
    for edge in given_edges {
        let (parent, child) = edge.split_once('>').unwrap();
        text += &format!("<child ref='{child}'><parent ref='{parent}'/></child>");
    }
    read("w.dax", &(text + "</adag>"))
}

#[test]
fn a_reader_waits_for_all_writers_unless_edges_decide() {
    let ends = |workflow: &Workflow| {
        let edges =
            edges(workflow).into_iter().map(|(parent, child, _)| format!("{parent}>{child}"));
        edges.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ends(&dax(&["a > f", "b > f", "c f >"], &[])), "a>c b>c");
    assert_eq!(ends(&dax(&["a > f", "b > f", "c f >"], &["b>c"])), "b>c");
    // One writer is a parent although the file has other edges.
    assert_eq!(ends(&dax(&["a > f", "b >", "c f >"], &["b>c"])), "a>c b>c");
    // Tasks change a file in turn: a later one is not a parent of an earlier one.
    assert_eq!(ends(&dax(&["a > f", "b f > f", "c f > f"], &["a>b", "b>c"])), "a>b b>c");
    assert_eq!(
        ends(&dax(&["s >", "a > f", "b f > g", "c > f"], &["a>s", "s>b", "b>c"])),
        "a>b a>s b>c s>b"
    );
    // A task does not wait for a file that it writes itself.
    assert_eq!(ends(&dax(&["a f > f"], &[])), "");
}

#[test]
fn sizes_that_differ_are_those_of_the_writer() {
    let workflow = read(
        "w.dax",
        "<adag><job id='r' name='r' runtime='1'><uses file='f' link='input' size='9'/></job>\
         <job id='w' name='w' runtime='1'><uses file='f' link='output' size='5'/>\
         <uses file='g' link='output'/></job></adag>",
    );
    assert_eq!(edges(&workflow), [("w", "r", 5)]);
    assert_eq!(
        (
            workflow.warnings[&WorkflowWarning::SizesDiffer].times,
            &*workflow.warnings[&WorkflowWarning::NoSize].first
        ),
        (1, "g")
    );
}

#[test]
fn daggen_and_bare_graphs_are_read() {
    let daggen = "// DAG automatically generated by daggen at Thu Jan  1 00:00:00 1970\n\
        // ./daggen --dot -n 3 \n\
        digraph G {\n  1 [size=\"68719476736\", alpha=\"0.10\"]\n  1 -> 2 [size =\"134217728\"]\n\
        1->3 [size =\"1e3\"]\n  2 [size=\"0\", alpha=\"0.2\"]\n  3 [size=\"1e10\"]\n}\n";
    let speed = Overrides { flop_per_s: Some(1e10), ..Overrides::default() };
    let workflow = parse("g.dot", daggen, &speed);
    assert_eq!(edges(&workflow), [("1", "2", 134_217_728), ("1", "3", 1000)]);
    let runtime = |id| workflow.tasks[index(&workflow, id)].runtime_s.unwrap();
    assert_eq!((runtime("1"), runtime("2"), runtime("3")), (6.8719476736, 0.001, 1.0));
    // Edges with one label from one task are one file, from two tasks two.
    let labels =
        "digraph { node [runtime=1] a -> b -> c [label=f size=7]; a -> c [label=f size=7] }";
    let workflow = read("g.dot", labels);
    assert_eq!(edges(&workflow), [("a", "b", 7), ("a", "c", 7), ("b", "c", 7)]);
    let names: Vec<_> = workflow.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["f", "b -> c"]);
}

#[test]
fn workflows_from_the_wild_have_their_known_counts() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/workflows");
    if !dir.exists() {
        eprintln!("skipped: there are no workflows at {}", dir.display());
        return;
    }
    use WorkflowWarning::{LittleMemory, SizesDiffer, SpaceInArgument};
    for (name, tasks, edges, files, seconds, odd) in [
        ("dax2.1_CyberShake_30.xml", 30, 52, None, 760.53, &[SizesDiffer][..]),
        ("dax2.1_CyberShake_100.xml", 100, 180, None, 3215.75, &[SizesDiffer]),
        ("dax2.1_Montage_25.xml", 25, 45, None, 227.75, &[SizesDiffer]),
        ("dax2.1_HEFT_paper.xml", 10, 15, None, 127.0, &[]),
        ("wf1.5_montage-chameleon-2mass-005d-001.json", 58, 114, Some(111), 221.7, &[]),
        ("wf1.5_1000genome-chameleon-2ch-100k-001.json", 52, 76, Some(64), 2771.3, &[]),
        (
            "wf1.5_helloworld-forkjoin-10-chameleon.json",
            10,
            16,
            Some(11),
            1028.7,
            // Its memory is in another unit than its schema says.
            &[LittleMemory, SpaceInArgument],
        ),
    ] {
        let workflow = Workflow::read(&dir.join(name), &Overrides::default()).unwrap();
        assert_eq!((workflow.tasks.len(), workflow.edges().count()), (tasks, edges), "{name}");
        assert!(
            files.is_none_or(|files| files == workflow.files.len()),
            "{name}: {}",
            workflow.files.len()
        );
        let sum: f64 = workflow.tasks.iter().filter_map(|task| task.runtime_s).sum();
        assert!((sum - seconds).abs() < 0.06, "{name}: {sum}");
        assert!(workflow.warnings.keys().eq(odd), "{name}: {:?}", workflow.warnings);
        let bare = workflow.edges().filter(|(_, _, bytes)| *bytes == 0).count();
        let known = if name.contains("CyberShake") { edges / 2 } else { 0 };
        assert_eq!(bare, known, "{name}");
        // The own format represents all properties.
        let again = read("again.toml", &workflow.to_toml());
        assert!(workflow.edges().eq(again.edges()), "{name}");
    }
}
