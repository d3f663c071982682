//! Files that cannot be read: each error has the place, the mistake and a remedy.

mod samples;

use std::path::Path;

use samples::SAMPLES;
use springtide_workflow::{Cause, Format, Override, Overrides, ReadError, TEXT_MAX, Workflow};

fn fails(name: &str, text: impl AsRef<[u8]>) -> ReadError {
    let text = text.as_ref();
    let format = Format::guess(Path::new(name), text).unwrap();
    match Workflow::parse(Path::new(name), text, format, &Overrides::default()) {
        Err(error) => error,
        Ok(workflow) => panic!("{name} was read: {workflow:?}"),
    }
}

#[track_caller]
fn fails_with(name: &str, text: impl AsRef<[u8]>, says: &str) {
    let error = fails(name, text).to_string();
    assert!(error.contains(says), "{error}\nlacks\n{says}");
}

/// WfFormat up to 1.4 with these tasks.
fn json(tasks: &str) -> String {
    format!("{{\"workflow\": {{\"tasks\": [\n{tasks}\n]}}}}")
}

fn dax(jobs: &str) -> String {
    format!("<adag>\n{jobs}\n</adag>")
}

fn yaml(jobs: &str) -> String {
    format!("pegasus: '5.0'\njobs:\n{jobs}")
}

fn dot(statements: &str) -> String {
    format!("digraph {{ node [runtime=1]\n{statements}\n}}")
}

/// A complete job of DAX and of Pegasus.
const JOB: &str = "<job id='a' name='x' runtime='1'/>";
const YAML_JOB: &str = "- {id: a, name: x, arguments: [], uses: [], metadata: {runtime: 1}}\n";
const TASK: &str = "[[task]]\nid = 'a'\nruntime = 1\n";

#[test]
fn files_that_cannot_be_opened() {
    let read = |file: &Path| Workflow::read(file, &Overrides::default()).unwrap_err().to_string();
    let dir = tempfile::tempdir().unwrap();
    assert!(read(&dir.path().join("none.json")).contains("none.json: cannot be read: "));
    assert!(read(dir.path()).ends_with("is a directory: name the workflow file in it"));
    let large = dir.path().join("large.json");
    std::fs::File::create(&large).unwrap().set_len(TEXT_MAX + 1).unwrap();
    assert!(read(&large).ends_with("large.json: is larger than 512 MiB, the most that is read"));
    for (name, text, says) in [
        ("empty", "", "is empty: a workflow has at least one task"),
        ("empty.json", " \n", "is empty"),
        (
            "main.nf",
            "process x {}",
            "main.nf: is a Nextflow script, which is not read: run it once with `nextflow run",
        ),
        ("w.yml", "cwlVersion: v1.2\nclass: Workflow", "w.yml: is CWL, which is not read: export"),
        ("w.ga", "{\"a_galaxy_workflow\": \"true\"}", "w.ga: is a Galaxy workflow, which is not"),
        ("Makefile", "all:\n\ttrue\n", "Makefile: is a Makefile, which is not read: export its"),
        (
            "what.txt",
            "to be done",
            "is in no format that is read: WfFormat (.json), DAX (.dax, .xml)",
        ),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        assert!(read(&file).contains(says), "{}", read(&file));
    }
}

#[test]
fn files_without_text_or_tasks() {
    for (name, format, text) in SAMPLES {
        let (start, end) = text.as_bytes().split_at(text.find('\n').unwrap() + 3);
        let broken = [start, b"\xff", end].concat();
        let error =
            Workflow::parse(Path::new(name), &broken, format, &Overrides::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{name}:2:3: is not UTF-8 here: save it as UTF-8 text")
        );
        let error =
            Workflow::parse(Path::new(name), b"\xef\xbb\xbf \n", format, &Overrides::default())
                .unwrap_err();
        assert!(matches!(*error.cause, Cause::Empty), "{error}");
    }
    for (name, text) in [
        ("w.json", r#"{"workflow": {"tasks": []}}"#),
        ("w.json", r#"{"workflow": {"specification": {"tasks": []}}}"#),
        ("w.dax", "<adag/>"),
        ("w.yml", "jobs: []"),
        ("w.dot", "digraph {}"),
        ("w.toml", "name = 'x'"),
    ] {
        fails_with(name, text, ": has no tasks: a workflow has at least one");
    }
}

#[test]
fn truncated_files() {
    for (name, _, text) in SAMPLES {
        // A text of independent lines may end after any of them.
        if name.ends_with(".toml") || name.ends_with(".yml") {
            continue;
        }
        for part in [10, 2] {
            let cut = &text[..text.trim_end().len() - text.len() / part];
            let error = fails(name, cut).to_string();
            assert!(error.contains("was the file cut off?"), "{error}");
        }
    }
    fails_with("w.yml", yaml("- {id: a, name: x, args"), "w.yml:3:");
    fails_with("w.toml", "[[task]]\nid = 'a'\nruntime = ", "w.toml:3:");
    fails_with("w.toml", "[[task]]\nid = 'a", "w.toml:2:");
}

#[test]
fn files_with_syntax_errors() {
    fails_with(
        "w.json",
        "[]",
        "w.json:1:1: not WfFormat JSON: there must be an object { } here, found \"[]\"",
    );
    fails_with("w.json", "{}", "w.json: not WfFormat JSON: there is no key \"workflow\"");
    fails_with(
        "w.json",
        "{\"workflow\": {}}",
        "has neither \"specification\" (since 1.5) nor \"tasks\" (up to 1.4)",
    );
    fails_with(
        "w.json",
        json("{\"name\": \"a\",\n \"id\": 7}"),
        "w.json:3:8: not WfFormat JSON: invalid type: integer `7`",
    );
    fails_with(
        "w.json",
        json("{\"name\": \"a\"},\n{\"id\": \"b\", \"id\": \"c\"}"),
        "w.json:3:16: not WfFormat JSON: duplicate field",
    );
    fails_with(
        "w.dax",
        "<dag/>",
        "w.dax:1:1: not DAX XML: the outermost element must be <adag>, found <dag>",
    );
    fails_with("w.dax", "<adag>\n <job></jab>\n</adag>", "w.dax:2:");
    fails_with("w.dax", "<adag>\n &amp &x; </adag>", "w.dax:2:");
    fails_with("w.yml", "a: b", "w.yml: not Pegasus 5 YAML: there is no key jobs");
    fails_with("w.yml", "jobs:\n- id: a\n   b: c", "w.yml:3:");
    fails_with("w.yml", "jobs: 7", "w.yml:1:7: not Pegasus 5 YAML");
    fails_with("w.dot", "graph { a -- b }", "w.dot:1:1: not DOT: the graph is undirected");
    fails_with("w.dot", dot("a -- b"), "w.dot:2:3: not DOT: an edge must be \"->\"");
    fails_with(
        "w.dot",
        dot("a -> { b c }"),
        "w.dot:2:6: not DOT: edges from or to a group { } are not read",
    );
    fails_with(
        "w.dot",
        dot("{ a b } -> c"),
        "w.dot:2:7: not DOT: edges from or to a group { } are not read",
    );
    fails_with(
        "w.dot",
        dot("a [runtime=]"),
        "w.dot:2:12: not DOT: there must be a value here, found \"]\"",
    );
    fails_with("w.dot", dot("a ! b"), "w.dot:2:3: not DOT: \"!\" is out of place here");
    fails_with("w.dot", dot("a } b"), "w.dot:2:5: not DOT: the graph has ended before \"b\"");
    fails_with("w.dot", "digraph {\n /* never", "w.dot:2:2: not DOT: this comment has no end");
    fails_with("w.toml", "[[task]]\nid = ", "w.toml:2:");
    fails_with(
        "w.toml",
        "task = 7",
        "w.toml:1:8: [[task]] must be tables with that heading, found integer",
    );
}

#[test]
fn missing_values() {
    fails_with("w.json", json("{}"), "w.json:2:1: a task has neither \"id\" nor \"name\"");
    fails_with(
        "w.json",
        json("{\"name\": \"a\", \"files\": [{}]}"),
        "w.json:2:25: a file of a task has no \"name\"",
    );
    fails_with(
        "w.json",
        json("{\"name\": \"a\", \"files\": [{\"name\": \"f\"}]}"),
        "\"link\" must be \"input\" or \"output\"",
    );
    fails_with("w.dax", dax("<job name='x'/>"), "w.dax:2:1: <job> has no attribute id");
    fails_with(
        "w.dax",
        dax("<job id='a' name='x'>\n<uses link='input'/></job>"),
        "w.dax:3:1: <uses> has no attribute name",
    );
    fails_with(
        "w.dax",
        dax("<job id='a' name='x'>\n<uses name='f' link='in'/></job>"),
        "w.dax:3:1: a link must be input",
    );
    fails_with(
        "w.dax",
        dax(&format!("{JOB}<child ref='a'>\n<parent/></child>")),
        "w.dax:3:1: <parent> has no attribute ref",
    );
    fails_with("w.yml", yaml("- {name: x}"), "w.yml:3:3: a job has no id");
    fails_with("w.yml", yaml("- {id: a}"), "w.yml:3:3: job \"a\" has no name");
    fails_with(
        "w.yml",
        yaml("- {id: a, name: x, uses: [{lfn: f, type: in}]}"),
        "a use's type must be input, output",
    );
    fails_with("w.toml", "[[task]]\nname = 'x'", "w.toml:1:1: a [[task]] needs an id");
    fails_with("w.toml", "[[task]]\nid = ''", "w.toml:1:1: a task's id is empty");
    fails_with(
        "w.toml",
        "[[file]]\nname = 'x'",
        "w.toml:1:1: a [[file]] needs a name, and a size or a source",
    );
}

#[test]
fn own_format_knows_its_keys() {
    fails_with(
        "w.toml",
        format!("{TASK}runtme = 2"),
        "w.toml:4:1: there is no key \"runtme\" here; did you mean \"runtime\"?",
    );
    fails_with(
        "w.toml",
        format!("{TASK}[[files]]\nname = 'f'"),
        "w.toml:4:3: there is no key \"files\" here; did you mean \"file\"?",
    );
    fails_with("w.toml", format!("{TASK}disk = 2"), "w.toml:4:1: there is no key \"disk\" here");
    fails_with(
        "w.toml",
        "[[file]]\nname = 'f'\nbytes = 2",
        "w.toml:3:1: there is no key \"bytes\" here",
    );
    let file = "[[file]]\nname = 'input.dat'\nsize = 2\n";
    fails_with(
        "w.toml",
        format!("{TASK}inputs = [\n 'imput.dat']\n{file}"),
        "w.toml:5:2: there is no [[file]] \"imput.dat\"; did you mean \"input.dat\"?",
    );
    fails_with(
        "w.toml",
        format!("{file}{file}"),
        "w.toml:5:8: there is another [[file]] \"input.dat\"",
    );
    fails_with(
        "w.toml",
        format!("{TASK}command = []"),
        "w.toml:4:11: command must begin with a program",
    );
    fails_with(
        "w.toml",
        format!("{TASK}command = 'ls'"),
        "w.toml:4:11: command must be an array of texts in quotes, found string",
    );
    fails_with(
        "w.toml",
        format!("{TASK}command = ['ls', 1]"),
        "w.toml:4:18: command must be an array of texts",
    );
    fails_with(
        "w.toml",
        format!("{TASK}job = 'j'\ncommand = ['ls']"),
        "w.toml:4:7: a task has a command or a job, not both",
    );
    fails_with("w.toml", format!("{TASK}arguments = ['x']"), "w.toml:1:1: arguments need a job");
    fails_with(
        "w.toml",
        format!("{TASK}command = ['x']\narguments = ['x']"),
        "w.toml:5:13: arguments are a job's",
    );
    fails_with(
        "w.toml",
        "[[task]]\nid = 1",
        "w.toml:2:6: id must be a text in quotes, found integer",
    );
    fails_with(
        "w.toml",
        "[[task]]\nid = 'a'\nruntime = '30'",
        "w.toml:3:11: a runtime must be more than 0, in seconds or with a unit",
    );
    fails_with(
        "w.toml",
        "[[task]]\nid = 'a'\nruntime = true",
        "w.toml:3:11: runtime must be seconds or a text as \"30 s\"",
    );
    fails_with(
        "w.toml",
        "[[task]]\nid = 'a'\nprocessors = 1.5",
        "w.toml:3:14: processors must be a whole number, found float",
    );
    fails_with(
        "w.toml",
        "[[file]]\nname = 'f'\nsize = '3 mb'",
        "w.toml:3:8: a size must be in bytes or with a unit as \"10 MB\"",
    );
}

#[test]
fn duplicate_ids() {
    let says = |line| {
        format!("there is another task \"a\" (in line {line}): every task needs an id of its own")
    };
    fails_with(
        "w.json",
        json("{\"name\": \"a\"},\n{\"name\": \"a\"}"),
        &format!("w.json:3:1: {}", says(2)),
    );
    fails_with("w.dax", dax(&format!("{JOB}\n{JOB}")), &format!("w.dax:3:1: {}", says(2)));
    fails_with("w.yml", yaml(&format!("{YAML_JOB}{YAML_JOB}")), &format!("w.yml:4:3: {}", says(3)));
    fails_with("w.toml", format!("{TASK}{TASK}"), &format!("w.toml:4:1: {}", says(1)));
    let apart = r#"{"workflow": {"specification": {"tasks": [{"id": "a"}]}, "execution": {"tasks": [
        {"id": "a", "runtimeInSeconds": 1},
        {"id": "a", "runtimeInSeconds": 2}]}}}"#;
    fails_with("w.json", apart, &format!("w.json:3:9: {}", says(2)));
    let named = json(
        "{\"id\": \"1\", \"name\": \"a\"}, {\"id\": \"2\", \"name\": \"a\"},\n\
         {\"id\": \"3\", \"parents\": [\"a\"]}",
    );
    fails_with(
        "w.json",
        named,
        "w.json:3:25: several tasks have the name \"a\": refer to the one that is meant by its id",
    );
}

#[test]
fn unknown_parents() {
    fails_with(
        "w.json",
        json("{\"name\": \"merge\"},\n{\"name\": \"b\", \"parents\": [\"merg\"]}"),
        "w.json:3:27: there is no task \"merg\"; did you mean \"merge\"?",
    );
    fails_with(
        "w.json",
        json("{\"name\": \"b\", \"children\": [\"missing\"]}"),
        "w.json:2:28: there is no task \"missing\"",
    );
    fails_with(
        "w.dax",
        dax(&format!("{JOB}<child ref='a'>\n<parent ref='z9'/></child>")),
        "w.dax:3:1: there is no task \"z9\"",
    );
    fails_with(
        "w.dax",
        dax(&format!("{JOB}<child ref='z9'>\n<parent ref='a'/></child>")),
        "w.dax:3:1: there is no task \"z9\"",
    );
    fails_with(
        "w.yml",
        yaml(&format!("{YAML_JOB}jobDependencies:\n- id: a\n  children: [z9]")),
        "w.yml:6:14: there is no task \"z9\"",
    );
    fails_with("w.toml", format!("{TASK}after = ['z9']"), "w.toml:4:10: there is no task \"z9\"");
}

#[test]
fn tasks_that_are_their_own_parents() {
    let says = "task \"a\" is its own parent: take that edge out";
    fails_with(
        "w.json",
        json("{\"name\": \"a\", \"parents\": [\"a\"]}"),
        &format!("w.json:2:27: {says}"),
    );
    fails_with(
        "w.dax",
        dax(&format!("{JOB}<child ref='a'>\n<parent ref='a'/></child>")),
        &format!("w.dax:3:1: {says}"),
    );
    fails_with(
        "w.yml",
        yaml(&format!("{YAML_JOB}jobDependencies:\n- {{id: a, children: [a]}}")),
        &format!("w.yml:5:22: {says}"),
    );
    fails_with("w.dot", dot("a -> a"), &format!("w.dot:2:1: {says}"));
    fails_with("w.toml", format!("{TASK}after = ['a']"), &format!("w.toml:4:10: {says}"));
}

#[test]
fn tasks_in_a_cycle() {
    let error = fails("w.dot", dot("r -> a\na -> b\nb -> c -> a\nc -> tail"));
    let Cause::Cycle { tasks } = &*error.cause else { panic!("{error}") };
    // A circle has no first task.
    let begin = tasks.iter().position(|id| id == "a").unwrap();
    let round: Vec<_> = tasks.iter().cycle().skip(begin).take(tasks.len()).collect();
    assert_eq!(round, ["a", "b", "c"]);
    let says = "tasks wait for one another in a circle: ";
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.place.at.is_some());
    fails_with(
        "w.json",
        json(
            "{\"name\": \"a\", \"parents\": [\"b\"], \"runtime\": 1}, \
             {\"name\": \"b\", \"parents\": [\"a\"], \"runtime\": 1}",
        ),
        says,
    );
    // The circle may also be in the files.
    let file =
        |reads, writes| format!("runtime = 1\ninputs = ['{reads}']\noutputs = ['{writes}']\n");
    let files = "[[file]]\nname = 'f'\nsize = 1\n[[file]]\nname = 'g'\nsize = 1\n";
    let text = format!(
        "[[task]]\nid = 'a'\n{}[[task]]\nid = 'b'\n{}{files}",
        file("f", "g"),
        file("g", "f")
    );
    fails_with("w.toml", text, says);
    // Only some of many tasks are listed.
    let long: String = (0..100).map(|task| format!("t{task} -> ")).collect();
    fails_with("w.dot", dot(&format!("{long} t0")), " -> 88 more -> \"t");
}

#[test]
fn tasks_without_a_runtime() {
    let give = "give one for tasks that have none, or a table with lines name,runtime_s,processors";
    for (name, text, says) in [
        (
            "w.json",
            json("{\"name\": \"a\"},\n{\"name\": \"b\"}"),
            "w.json:2:1: task \"a\" has no runtime, nor has 1 other: ",
        ),
        ("w.dax", dax("<job id='a' name='x'/>"), "w.dax:2:1: task \"a\" has no runtime: "),
        ("w.yml", yaml("- {id: a, name: x}"), "w.yml:3:3: task \"a\" has no runtime: "),
        (
            "w.dot",
            "digraph {\na; b; c }".to_owned(),
            "w.dot:2:1: task \"a\" has no runtime, nor have 2 others: ",
        ),
        ("w.toml", "[[task]]\nid = 'a'".to_owned(), "w.toml:1:1: task \"a\" has no runtime: "),
    ] {
        fails_with(name, text, &format!("{says}{give}"));
    }
    fails_with(
        "w.dot",
        "digraph { a [size=5e9] }",
        "; or, as it has a size of 5e9 flop, the speed of a processor in flop/s",
    );
}

#[test]
fn sub_workflows() {
    let says = |kind: &str| {
        format!(
            "task \"a\" is a sub-workflow ({kind}), and those are not read: put its tasks in the \
             place of it"
        )
    };
    for kind in ["dax", "dag"] {
        let job = format!("{JOB}\n<{kind} id='a' file='sub.dax'/>");
        fails_with("w.dax", dax(&job), &format!("w.dax:3:1: {}", says(&format!("<{kind}>"))));
    }
    for kind in ["dag", "dax", "pegasusWorkflow", "condorWorkflow"] {
        fails_with(
            "w.yml",
            yaml(&format!("- {{id: a, type: {kind}, file: sub.yml}}")),
            &format!("w.yml:3:3: {}", says(kind)),
        );
    }
    fails_with(
        "w.yml",
        yaml("- {id: a, type: jib}"),
        "w.yml:3:3: a job's type must be job, found \"jib\"",
    );
    fails_with("w.json", json("{\"name\": \"a\", \"type\": \"workflow\"}"), &says("workflow"));
}

#[test]
fn invalid_numbers() {
    let run = |value: &str| json(&format!("{{\"name\": \"a\",\n\"runtime\": {value}}}"));
    fails_with("w.json", run("1e300"), "w.json:3:12: no task has a runtime of 1e300 s");
    fails_with("w.json", run("1e999"), "w.json:3:");
    fails_with("w.json", run("NaN"), "w.json:3:");
    fails_with(
        "w.json",
        run("\"soon\""),
        "w.json:3:12: a runtime must be a number of seconds, found \"soon\"",
    );
    fails_with("w.json", run("[1]"), "w.json:3:");
    let cores =
        |value: &str| json(&format!("{{\"name\": \"a\", \"runtime\": 1,\n\"cores\": {value}}}"));
    for value in ["0", "-1", "1e300", "\"nan\"", "4294967296"] {
        fails_with(
            "w.json",
            cores(value),
            "w.json:3:10: a task's processors must be a number from 1 to 4294967295, found ",
        );
    }
    let size = |value: &str| {
        json(&format!(
            "{{\"name\": \"a\", \"files\": [{{\"name\": \"f\", \"link\": \"input\",\n\
             \"size\": {value}}}]}}"
        ))
    };
    for value in ["18446744073709551616", "1e300", "\"1 MB\""] {
        fails_with(
            "w.json",
            size(value),
            "w.json:3:9: a size must be a number of bytes, from 0 to 18446744073709551615, found ",
        );
    }
    let job = |attributes: &str| dax(&format!("<job id='a' name='x'\n{attributes}</job>"));
    fails_with("w.dax", job("runtime='NaN'>"), "w.dax:2:1: a runtime must be a number");
    fails_with(
        "w.dax",
        job("runtime='1'><uses name='f' link='input' size='1e30'/>"),
        "w.dax:3:13: a size must be",
    );
    fails_with(
        "w.dax",
        job("><profile namespace='pegasus' key='cores'>0</profile>"),
        "w.dax:3:2: a task's processors must be",
    );
    let nodes = "><profile namespace='pegasus' key='nodes'>4000000000</profile>\
                 <profile namespace='pegasus' key='ppn'>2</profile>";
    fails_with("w.dax", job(nodes), "w.dax:3:2: no machine has this number of processors");
    let profile = |profile: &str| {
        yaml(&format!("- {{id: a, name: x, profiles: {{pegasus: {{{profile}}}}}}}"))
    };
    fails_with("w.yml", profile("runtime: .inf"), "w.yml:3:50: ");
    fails_with("w.yml", profile("cores: none"), "w.yml:3:48: a task's processors must be");
    fails_with(
        "w.yml",
        profile("nodes: 4000000000, ppn: 4"),
        "w.yml:3:48: no machine has this number of processors",
    );
    fails_with("w.dot", dot("a [procs=0]"), "w.dot:2:10: a task's processors must be");
    fails_with("w.dot", dot("a [size=nan]"), "w.dot:2:9: a size in flop must be");
    let toml = |key: &str| format!("[[task]]\nid = 'a'\n{key}");
    for value in ["0", "-1.5", "1e300", "nan", "inf", "9223372036854775807"] {
        fails_with("w.toml", toml(&format!("runtime = {value}")), "w.toml:3:11: ");
    }
    fails_with("w.toml", toml("processors = -0x1"), "w.toml:3:");
    fails_with("w.toml", toml("processors = 0"), "w.toml:3:14: a task's processors must be");
    fails_with(
        "w.toml",
        "[[file]]\nname = 'f'\nsize = 1e30",
        "w.toml:3:8: a size must be a number of bytes",
    );
}

#[test]
fn invalid_overrides() {
    let fails = |overrides: &Overrides| {
        let read = Workflow::parse(Path::new("w.toml"), TASK.as_bytes(), Format::Own, overrides);
        read.unwrap_err().to_string()
    };
    let none = Overrides::default();
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let says = format!("w.toml: the scale of runtimes given for its tasks cannot be {scale}");
        assert_eq!(fails(&Overrides { runtime_scale: Some(scale), ..none.clone() }), says);
        assert!(
            fails(&Overrides { runtime_s: Some(scale), ..none.clone() })
                .contains("a runtime given")
        );
        assert!(
            fails(&Overrides { flop_per_s: Some(scale), ..none.clone() })
                .contains("the speed in flop/s given")
        );
    }
    assert!(
        fails(&Overrides { processors: Some(0), ..none.clone() }).contains("must be at least 1")
    );
    let row = Override { runtime_s: Some(-1.0), ..Override::default() };
    assert!(
        fails(&Overrides { table: [("a".to_owned(), row)].into(), ..none.clone() })
            .contains("a runtime given")
    );
    let error = fails(&Overrides { runtime_scale: Some(1e300), ..none });
    assert_eq!(
        error,
        "w.toml:1:1: the runtime of task \"a\" comes to 1e300 s, and no task has that"
    );
}

#[test]
fn malicious_documents() {
    let deep =
        |open: &str, close: &str| format!("{}{}", open.repeat(200_000), close.repeat(200_000));
    fails_with(
        "w.json",
        format!("{{\"workflow\": {{\"tasks\": {}}}}}", deep("[", "]")),
        "w.json:1:",
    );
    fails_with(
        "w.json",
        json(&format!("{{\"name\": \"a\", \"runtime\": {}}}", deep("[", "]"))),
        "w.json:2:",
    );
    fails_with(
        "w.json",
        format!("{{\"x\": {}}}", deep("[", "]")),
        "w.json: not WfFormat JSON: there is no key",
    );
    fails_with("w.yml", format!("jobs: {}", deep("[", "]")), "w.yml:1:");
    fails_with("w.yml", format!("x: {}", deep("{a: ", "}")), "w.yml:1:");
    let block: String = (0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    fails_with("w.yml", block, "w.yml:65:65: not Pegasus 5 YAML: it is nested too deep");
    fails_with("w.toml", format!("name = {}", deep("[", "]")), "w.toml:1:88: not workflow TOML: ");
    fails_with(
        "w.toml",
        format!("{} = 1", "a.".repeat(200_000) + "a"),
        "not workflow TOML: recursion limit",
    );
    fails_with(
        "w.dot",
        format!("digraph {}", deep("{", "}")),
        "w.dot:1:73: not DOT: subgraphs are deeper than 64",
    );
    fails_with("w.dax", format!("<adag>{}</adag>", deep("<a>", "</a>")), "has no tasks");
    fails_with(
        "w.dax",
        format!("<adag {}/>", (0..100_000).map(|n| format!("a{n}='' ")).collect::<String>()),
        "w.dax:1:1: not DAX XML: a tag is longer than",
    );

    let says =
        "w.dax:2:1: not DAX XML: it has a DTD, which is not read: take the <!DOCTYPE ...> out";
    fails_with(
        "w.dax",
        "<?xml version='1.0'?>\n\
         <!DOCTYPE adag [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]>\n<adag>&b;</adag>",
        says,
    );
    fails_with(
        "w.dax",
        "<?xml version='1.0'?>\n<!DOCTYPE adag SYSTEM 'file:///etc/passwd'>\n<adag/>",
        says,
    );

    let nested: String = (0..60_000).map(|n| format!("<a xmlns:a{n}='{n}'>")).collect();
    fails_with("w.dax", nested, "w.dax: has more than 64 XML namespaces, the most that is read");

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let below = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [below.as_str(); 10].join(", "));
    }
    fails_with("w.yml", format!("{bomb}jobs: *a9"), "aliases make too much of it");
    let many = format!("x: &x y\njobs: [{}]", "*x, ".repeat(200_000));
    fails_with("w.yml", many, "not Pegasus 5 YAML");
}

/// This number of tasks that write one file, and as many that read it.
fn crowd(tasks: usize) -> String {
    let uses = ["inputs", "outputs"];
    let task = |task| format!("[[task]]\nid = '{task}'\nruntime = 1\n{} = ['f']\n", uses[task % 2]);
    (0..2 * tasks).map(task).collect::<String>() + "[[file]]\nname = 'f'\nsize = 1\n"
}

#[test]
fn small_documents_that_require_much_work() {
    let text = crowd(500);
    let read =
        Workflow::parse(Path::new("w.toml"), text.as_bytes(), Format::Own, &Overrides::default());
    assert_eq!(read.unwrap().edges().count(), 250_000);
    fails_with(
        "w.toml",
        crowd(4000),
        "w.toml: has more than 10000000 edges, the most that is read",
    );
}
