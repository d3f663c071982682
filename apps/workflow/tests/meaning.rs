//! The meaning of fields: arguments, redirects, resources, profiles, containers and notes.

mod samples;

use std::collections::BTreeMap;
use std::path::Path;

use samples::RICH;
use springtide_workflow::{
    Command, Container, ContainerEngine, FileSource, Format, Overrides, Resources, Task, Workflow,
};

fn parse(name: &str, text: &str) -> Result<Workflow, String> {
    let format = Format::guess(Path::new(name), text.as_bytes()).unwrap();
    let overrides = Overrides { runtime_s: Some(1.0), ..Overrides::default() };
    let read = Workflow::parse(Path::new(name), text.as_bytes(), format, &overrides);
    let workflow = read.map_err(|error| error.to_string())?;
    // What is written in the own format is read as it was.
    let written = workflow.to_toml();
    let again = Workflow::parse(Path::new("w.toml"), written.as_bytes(), Format::Own, &overrides);
    let again = again.unwrap_or_else(|error| panic!("{error}\n{written}"));
    for (before, after) in workflow.tasks.iter().zip(&again.tasks) {
        let bare = |task: &Task| Task { at: None, ..task.clone() };
        assert_eq!(bare(before), bare(after), "{written}");
    }
    Ok(workflow)
}

fn read(name: &str, text: &str) -> Workflow {
    parse(name, text).unwrap_or_else(|error| panic!("{error}"))
}

fn warnings(workflow: &Workflow) -> Vec<String> {
    workflow.warnings.keys().map(ToString::to_string).collect()
}

#[track_caller]
fn arguments(task: &Task) -> Vec<&str> {
    match &task.command {
        Some(Command::Program { arguments, .. }) => arguments.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

fn program(task: &Task) -> &str {
    match &task.command {
        Some(Command::Program { program, .. }) => program,
        other => panic!("{other:?}"),
    }
}

/// The names of the files of the standard streams.
fn streams<'w>(workflow: &'w Workflow, task: &Task) -> [Option<&'w str>; 3] {
    let redirects = task.redirects;
    [redirects.stdin, redirects.stdout, redirects.stderr]
        .map(|file| file.map(|file| workflow.files[file].name.as_str()))
}

fn dax_job(content: &str) -> String {
    format!("<adag version='3.6'><job id='a' name='x' runtime='1'>{content}</job></adag>")
}

fn yaml_job(keys: &str) -> String {
    format!("pegasus: '5.0'\nname: w\njobs:\n- {{type: job, id: a, name: x, {keys}}}\n")
}

const Q2: &str = "<argument>-t \"two words\" -x 'a  b' -f pre<file name=\"f.in\"/>.post -e \
                  \"\"</argument>";

const SPELT: [&str; 11] = [
    "1.10",
    "007",
    "1e3",
    "0x10",
    "1_000",
    "on",
    "12345678901234567890123",
    "1.0",
    "2024-01-02",
    "0o17",
    ".5",
];

#[test]
fn arguments_of_dax_are_split_and_quoted_as_pegasus_does() {
    let workflow = read("w.dax", &dax_job(Q2));
    assert_eq!(
        arguments(&workflow.tasks[0]),
        ["-t", "two words", "-x", "a  b", "-f", "pref.in.post", "-e", ""]
    );
    for (argument, expected) in [
        ("", &[][..]),
        (
            "\n  -i <file name='a'/><file name='b'/>\n -o<file name='c'/>\n",
            &["-i", "a", "b", "-oc"],
        ),
        ("<filename file='old'/> x", &["old", "x"]),
        ("a\\ b \\\\ &lt;&quot;q&quot;&gt; <!-- no text -->z", &["a b", "\\", "<q>", "z"]),
        ("<![CDATA[<raw> 'it is']]>", &["<raw>", "it is"]),
    ] {
        let workflow = read("w.dax", &dax_job(&format!("<argument>{argument}</argument>")));
        assert_eq!(arguments(&workflow.tasks[0]), expected, "{argument}");
        assert_eq!(warnings(&workflow), [""; 0], "{argument}");
    }
    let error = parse("w.dax", &dax_job("\n<argument>it's</argument>")).unwrap_err();
    assert_eq!(error, "w.dax:2:1: the arguments have a ' without another: quote or escape it");
    let variable = read("w.dax", &dax_job("<argument>-d $HOME/x</argument>"));
    assert_eq!(arguments(&variable.tasks[0]), ["-d", "$HOME/x"]);
    assert_eq!(warnings(&variable), ["an argument with a variable (passed as it is written)"]);
}

#[test]
fn arguments_of_yaml_keep_their_spelling() {
    let list = SPELT.join(", ");
    let workflow = read("w.yml", &yaml_job(&format!("arguments: [{list}], uses: []")));
    assert_eq!(arguments(&workflow.tasks[0]), SPELT);
    // Pegasus makes one line of the list, and splits that.
    let spaces = yaml_job("arguments: ['--cpu 0.6', '\"two words\"', '''a  b''', '\"\"']");
    assert_eq!(
        arguments(&read("w.yml", &spaces).tasks[0]),
        ["--cpu", "0.6", "two words", "a  b", ""]
    );
    let error = parse("w.yml", &yaml_job("arguments: [-x, 'it''s']")).unwrap_err();
    assert!(error.starts_with("w.yml:4:43: the arguments have a '"), "{error}");
    // A mapping may be merged from another one, and has each key once.
    let merged = "x-all: &all {name: x, arguments: [010]}\njobs:\n- {id: a, <<: *all}\n\
                  - {<<: *all, id: b, name: y}\n";
    let workflow = read("w.yml", merged);
    let described = |task| (program(task), arguments(task));
    let tasks: Vec<_> = workflow.tasks.iter().map(described).collect();
    assert_eq!(tasks, [("x", vec!["010"]), ("y", vec!["010"])]);
    let error = parse("w.yml", &yaml_job("id: b")).unwrap_err();
    assert!(error.starts_with("w.yml:4:"), "{error}");
    // Names and ids keep it too.
    let text = "pegasus: '5.0'\nname: 010\njobs:\n- {id: 007, name: on, uses: [{lfn: 1e3, type: \
                output, size: 1}]}\njobDependencies: [{id: 007}]\n";
    let workflow = read("w.yml", text);
    let task = &workflow.tasks[0];
    assert_eq!((workflow.name.as_str(), task.id.as_str(), program(task)), ("010", "007", "on"));
    assert_eq!(workflow.files[0].name, "1e3");
}

#[test]
fn arguments_of_wfformat_are_exact() {
    let text = r#"{"workflow": {"tasks": [{"name": "a", "runtime": 1, "command": {"program": "p",
        "arguments": ["--cpu 0.6", "\"q\"", ""]}}]}}"#;
    let workflow = read("w.json", text);
    assert_eq!(arguments(&workflow.tasks[0]), ["--cpu 0.6", "\"q\"", ""]);
    assert_eq!(warnings(&workflow), ["an argument with a space (passed as one argument)"]);
}

#[test]
fn standard_streams_are_files() {
    let workflow = read(
        "w.dax",
        "<adag version='3.6'>\
         <job id='A' name='/bin/echo' runtime='1'><argument>hello</argument>\
         <stdout name='hello.txt' link='output'/><uses name='hello.txt' link='output' size='6'/>\
         </job>\
         <job id='B' name='/usr/bin/wc' runtime='1'><argument>-c</argument>\
         <stdin name='hello.txt' link='input'/><stdout name='count.txt'/>\
         <stderr name='count.txt'/></job></adag>",
    );
    let [a, b] = workflow.tasks.as_slice() else { panic!() };
    assert_eq!(streams(&workflow, a), [None, Some("hello.txt"), None]);
    assert_eq!(streams(&workflow, b), [Some("hello.txt"), Some("count.txt"), Some("count.txt")]);
    // Streams are inputs and outputs, so they define edges.
    assert_eq!(b.parents, [0]);
    let workflow = read("w.yml", &yaml_job("stdin: i, stdout: o, stderr: 010"));
    assert_eq!(streams(&workflow, &workflow.tasks[0]), [Some("i"), Some("o"), Some("010")]);
    assert_eq!((workflow.tasks[0].inputs.len(), workflow.tasks[0].outputs.len()), (1, 2));
    let toml = "[[file]]\nname = 'f'\nsize = 1\n[[task]]\nid = 'a'\nruntime = 1\nstderr = 'f'\n";
    let workflow = read("w.toml", toml);
    assert_eq!(streams(&workflow, &workflow.tasks[0]), [None, None, Some("f")]);
    let error = parse("w.toml", &format!("{toml}stdin = 'g'\n")).unwrap_err();
    assert_eq!(error, "w.toml:8:9: there is no [[file]] \"g\"; did you mean \"f\"?");
}

#[test]
fn profiles_are_resources() {
    let profile = |space: &str, key: &str, value: &str| {
        format!("<profile namespace='{space}' key='{key}'>{value}</profile>")
    };
    let profiles = [
        profile("pegasus", "memory", "2048"),
        profile("condor", "request_memory", "1"),
        profile("condor", "request_gpus", " 2 "),
        profile("globus", "maxWallTime", "1.5"),
        profile("dagman", "RETRY", "3"),
        profile("env", "Lang", "C"),
        profile("condor", "request_cpus", "4"),
        profile("condor", "universe", "vanilla"),
    ];
    let workflow = read("w.dax", &dax_job(&profiles.concat()));
    let task = &workflow.tasks[0];
    let resources =
        Resources { memory_bytes: Some(2 << 30), gpus: Some(2), walltime_s: Some(90.0) };
    assert_eq!((task.processors, task.resources, task.retries), (Some(4), resources, Some(3)));
    assert_eq!(task.environment, BTreeMap::from([("Lang".to_owned(), "C".to_owned())]));
    assert_eq!(
        warnings(&workflow),
        ["the field \"profile/condor.universe\" has no effect: nothing here does what it asks of \
          Pegasus, HTCondor or Globus"]
    );
    let keys = "profiles: {pegasus: {memory: 2 GB, gpus: 2, maxwalltime: 1.5, runtime: 7, cores: \
                4}, dagman: {retry: 3}, env: {Lang: C}}";
    let workflow = read("w.yml", &yaml_job(keys));
    let task = &workflow.tasks[0];
    assert_eq!((task.processors, task.resources, task.retries), (Some(4), resources, Some(3)));
    assert_eq!((task.runtime_s, warnings(&workflow)), (Some(7.0), vec![]));
    for (value, says) in [
        ("gpus: -1", "w.yml:4:58: a task's GPUs must be a whole number from 0 to 4294967295"),
        ("memory: much", "w.yml:4:60: a memory must be in MiB, or with a unit as \"2 GB\""),
        ("maxwalltime: long", "w.yml:4:65: a walltime must be a number of minutes"),
    ] {
        let error = parse("w.yml", &yaml_job(&format!("profiles: {{pegasus: {{{value}}}}}")));
        assert!(error.as_ref().unwrap_err().starts_with(says), "{error:?}");
    }
}

#[test]
fn catalogs_have_paths_containers_and_profiles() {
    let text = "
pegasus: '5.0'
name: w
profiles: {pegasus: {memory: 100}, env: {A: all, B: all}}
transformationCatalog:
  transformations:
  - {namespace: ns, name: mAdd, profiles: {env: {B: program}},
     sites: [{name: here, type: installed, pfn: /usr/bin/mAdd, container: c}]}
  - {name: remote, sites: [{name: far, type: stageable, pfn: 'http://x/y'}], requires: [z]}
  containers:
  - {name: c, type: docker, image: 'docker:///montage:6', mounts: [/a:/b:ro],
     profiles: {env: {C: image}}}
jobs:
- {id: a, namespace: ns, name: mAdd, arguments: [], profiles: {env: {A: job, B: job}}}
- {id: b, name: remote, arguments: []}
";
    let workflow = read("w.yml", text);
    let [a, b] = workflow.tasks.as_slice() else { panic!() };
    assert_eq!((program(a), program(b), b.container.as_ref()), ("/usr/bin/mAdd", "remote", None));
    assert_eq!((a.name.as_str(), a.resources.memory_bytes), ("mAdd", Some(100 << 20)));
    let container = Container {
        image: "docker:///montage:6".to_owned(),
        engine: Some(ContainerEngine::Docker),
    };
    assert_eq!(a.container, Some(container));
    // The catalog replaces what a job says, as in Pegasus.
    let environment: Vec<_> =
        a.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(environment, ["A=job", "B=program", "C=image"]);
    assert_eq!(
        warnings(&workflow),
        [
            "the field \"container/mounts\" has no effect: a task sees its own directory",
            "the field \"transformation/requires\" has no effect: files that it needs; list them \
             as inputs"
        ]
    );
    let dax = "<adag version='3.6'><job id='a' namespace='n' name='x' version='1'/>\
        <executable name='x' namespace='n' version='1' os='linux'>\
        <profile namespace='env' key='A'>b</profile><pfn url='file:///opt/x' site='here'/>\
        </executable><executable name='y'/></adag>";
    let workflow = read("w.dax", dax);
    let task = &workflow.tasks[0];
    assert_eq!((program(task), task.environment["A"].as_str()), ("/opt/x", "b"));
    // Up to 2.1 a job without arguments says nothing of what it runs.
    let old = read("w.dax", "<adag version='2.1'><job id='a' name='x'/></adag>");
    assert_eq!(old.tasks[0].command, None);
}

#[test]
fn files_have_the_first_place_that_can_be_read() {
    let yaml = "
pegasus: '5.0'
name: w
replicaCatalog:
  replicas:
  - {lfn: f, pfns: [{site: far, pfn: 'gsiftp://x/f'}, {site: web, pfn: 'https://x/f?a=b'}]}
  - {lfn: g, pfns: [{site: local, pfn: /data/g}]}
  - {lfn: unused, pfns: [{site: local, pfn: /data/unused}]}
jobs:
- {id: a, name: x, uses: [{lfn: f, type: input}, {lfn: g, type: input}, {lfn: h, type: input}]}
";
    let dax = "<adag version='3.6'>\
        <file name='f'><pfn url='gsiftp://x/f' site='y'/><pfn url='https://x/f?a=b'/></file>\
        <job id='a' name='x'><uses name='f' link='input'/>\
        <uses name='g' link='input'><pfn url='file:///data/g'/></uses>\
        <uses name='h' link='input'/></job></adag>";
    let own = "[[task]]\nid = \"a\"\ninputs = [\"f\", \"g\", \"h\"]\n\
        [[file]]\nname = \"f\"\nsource = \"https://x/f?a=b\"\n\
        [[file]]\nname = \"g\"\nsource = \"file:///data/g\"\nsize = 1\n\
        [[file]]\nname = \"h\"\nsize = 1\n";
    for (file, text) in [("w.yml", yaml), ("w.dax", dax), ("w.toml", own)] {
        let workflow = read(file, text);
        let sources: Vec<_> = workflow.files.iter().map(|file| file.source.clone()).collect();
        let url = FileSource::Url("https://x/f?a=b".to_owned());
        assert_eq!(
            sources,
            [Some(url), Some(FileSource::Path("/data/g".to_owned())), None],
            "{file}"
        );
        let written = read("w.toml", &workflow.to_toml());
        assert_eq!(written.files, workflow.files, "{file}");
    }
    let wrong = own.replace("https://x/f?a=b", "s3://x/f");
    let error = parse("w.toml", &wrong).unwrap_err();
    assert!(error.contains("source must be an absolute path, or a URL"), "{error}");
}

#[test]
fn rich_samples_have_their_commands() {
    let described = |(name, _, text): (&str, Format, &str)| {
        let workflow = read(name, text);
        let task = &workflow.tasks[0];
        let container = task.container.as_ref().map_or("-", |container| &container.image);
        format!(
            "{} {:?} {:?} {:?} {:?} {container} {:?}",
            program(task),
            arguments(task),
            task.processors,
            task.resources,
            streams(&workflow, task),
            task.retries
        )
    };
    assert_eq!(
        described(RICH[0]),
        "/usr/bin/mAdd [\"-o\", \"out\", \"two words\", \"a  b\", \
         \"\\\"x\\\"\", \"$HOME\"] Some(4) \
         Resources { memory_bytes: Some(2147483648), gpus: Some(1), walltime_s: Some(600.0) } \
         [Some(\"in\"), Some(\"log\"), Some(\"log\")] - Some(2)"
    );
    assert_eq!(
        described(RICH[1]),
        "/usr/bin/mAdd [\"-o\", \"out\", \"two words\", \"1e3\", \"on\"] Some(2) \
         Resources { memory_bytes: Some(536870912), gpus: Some(1), walltime_s: Some(600.0) } \
         [Some(\"in\"), Some(\"log\"), None] docker://montage:6 Some(2)"
    );
    assert_eq!(
        described(RICH[2]),
        "train [\"--data\", \"in\"] Some(8) Resources { memory_bytes: Some(17179869184), gpus: \
         Some(1), walltime_s: Some(3600.0) } [Some(\"in\"), Some(\"log\"), Some(\"log\")] \
         docker://train Some(2)"
    );
}

#[test]
fn sizes_of_0_and_less_are_notes() {
    let expected = |workflow: &Workflow| {
        let sizes: Vec<_> = workflow.files.iter().map(|file| file.bytes).collect();
        assert_eq!(sizes, [0, 0]);
        assert_eq!(
            warnings(workflow),
            ["a size of less than 0 bytes (taken: 0 bytes)", "a file of 0 bytes"]
        );
    };
    expected(&read(
        "w.dax",
        &dax_job("<uses name='f' link='output' size='-5'/><uses name='g' link='input' size='0'/>"),
    ));
    expected(&read(
        "w.yml",
        &yaml_job("uses: [{lfn: f, type: output, size: -5}, {lfn: g, type: input, size: 0}]"),
    ));
    expected(&read(
        "w.json",
        r#"{"workflow": {"specification": {"tasks": [{"id": "a"}], "files": [
            {"id": "f", "sizeInBytes": -5}, {"id": "g", "sizeInBytes": 0}]}}}"#,
    ));
    expected(&read("w.dot", "digraph { a -> b [size=\"-5\"]; b -> c [size=0] }"));
    let runtimes = read("w.dax", "<adag><job id='a' name='x' runtime='-1'/></adag>");
    assert_eq!(warnings(&runtimes), ["a runtime of 0 s or less (taken: 0.001 s)"]);
    let memory = read("w.dax", &dax_job("<profile namespace='pegasus' key='memory'>0</profile>"));
    assert_eq!(warnings(&memory), ["a memory of less than 1 MiB (not used)"]);
    let key = "<profile namespace='pegasus' key='maxwalltime'>-1</profile>";
    assert_eq!(warnings(&read("w.dax", &dax_job(key))), ["a walltime of 0 s or less (not used)"]);
}

#[test]
fn own_tasks_have_resources() {
    let text = "[[task]]\nid = 'a'\nruntime = 1\nmemory = '2 GiB'\ngpus = 2\nwalltime = '1.5 min'\n\
                retries = 3\ncontainer = { image = 'ubuntu', engine = 'singularity' }\n\
                environment = { A = 'b', 'C D' = '' }\n";
    let workflow = read("w.toml", text);
    let task = &workflow.tasks[0];
    let resources =
        Resources { memory_bytes: Some(2 << 30), gpus: Some(2), walltime_s: Some(90.0) };
    assert_eq!((task.resources, task.retries), (resources, Some(3)));
    let engine = Some(ContainerEngine::Singularity);
    assert_eq!(task.container, Some(Container { image: "ubuntu".to_owned(), engine }));
    assert_eq!((task.environment.len(), task.environment["A"].as_str()), (2, "b"));
    let image = "[[task]]\nid = 'a'\nruntime = 1\ncontainer = 'x.sif'\n";
    assert_eq!(read("w.toml", image).tasks[0].container.as_ref().unwrap().engine, None);
    for (key, says) in [
        ("memory = '2 gb'", "w.toml:4:10: a size must be in bytes or with a unit"),
        ("gpus = 1.5", "w.toml:4:8: gpus must be a whole number, found float"),
        ("gpus = -1", "w.toml:4:8: gpus must be a whole number from 0"),
        ("walltime = 0", "w.toml:4:12: a walltime must be more than 0 s"),
        ("retries = 'x'", "w.toml:4:11: retries must be a whole number, found string"),
        ("container = ''", "w.toml:4:13: a container needs an image"),
        ("container = {engine = 'docker'}", "w.toml:4:13: a container needs an image"),
        ("container = {image = 'x', engine = 'k8s'}", "w.toml:4:36: engine must be docker,"),
        ("container = {img = 'x'}", "w.toml:4:14: there is no key \"img\" here"),
        ("environment = 'A=b'", "w.toml:4:15: environment must be a table of texts in quotes"),
        ("environment = {A = 1}", "w.toml:4:20: A must be a text in quotes, found integer"),
    ] {
        let text = format!("[[task]]\nid = 'a'\nruntime = 1\n{key}\n");
        let error = parse("w.toml", &text).unwrap_err();
        assert!(error.starts_with(says), "{error}");
    }
}

#[test]
fn unknown_fields_are_notes() {
    let unknown = |name: &str, text: &str| warnings(&read(name, text));
    let note = |field: &str| [format!("the field \"{field}\" is not read")];
    assert_eq!(
        unknown("w.json", r#"{"workflow": {"tasks": [{"name": "a", "colour": 1}]}}"#),
        note("task/colour")
    );
    let command = r#"{"workflow": {"tasks": [{"name": "a", "command": {"shell": "x"}}]}}"#;
    assert_eq!(unknown("w.json", command), note("command/shell"));
    assert_eq!(unknown("w.dax", &dax_job("<colour/>")), note("job/colour"));
    assert_eq!(
        unknown("w.dax", &dax_job("<uses name='f' link='none' colour='x'/>")),
        note("uses/colour")
    );
    assert_eq!(unknown("w.yml", &yaml_job("colour: {a: [b]}")), note("job/colour"));
    assert_eq!(unknown("w.yml", &format!("{}colour: 1\n", yaml_job(""))), note("colour"));
    assert_eq!(unknown("w.dot", "digraph { a [colour=red] }"), note("node/colour"));
    assert_eq!(unknown("w.dot", "digraph { a -> b [colour=red] }"), note("edge/colour"));
    // A hostile file has no more notes than people can read.
    let keys: String = (0..1000).map(|key| format!("\"k{key}\": 1,")).collect();
    let many = format!("{{\"workflow\": {{\"tasks\": [{{{keys} \"name\": \"a\"}}]}}}}");
    let notes = unknown("w.json", &many);
    assert_eq!((notes.len(), notes[100].as_str()), (101, "other fields that are not read"));
    // What every task must write cannot be optional.
    let optional = dax_job("<uses name='f' link='none' optional='true'/>");
    assert_eq!(
        unknown("w.dax", &optional),
        ["the field \"uses/optional\" has no effect: a task must write each of its outputs"]
    );
    assert!(unknown("w.dax", &optional.replace("true", "false")).is_empty());
}

/// The edges by names, sorted.
fn edges(workflow: &Workflow) -> Vec<String> {
    let name = |task: usize| workflow.tasks[task].name.as_str();
    let edge = |(from, to, _)| format!("{} > {}", name(from), name(to));
    let mut edges: Vec<_> = workflow.edges().map(edge).collect();
    edges.sort_unstable();
    edges
}

#[test]
fn operators_of_nextflow_are_contracted() {
    let workflow = read("flow.dot", RICH[3].2);
    let names: Vec<_> = workflow.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["RNASEQ:FASTQC", "RNASEQ:INDEX", "RNASEQ:QUANT", "RNASEQ:MULTIQC"]);
    assert_eq!(
        edges(&workflow),
        [
            "RNASEQ:FASTQC > RNASEQ:MULTIQC",
            "RNASEQ:INDEX > RNASEQ:QUANT",
            "RNASEQ:QUANT > RNASEQ:MULTIQC",
        ]
    );
    assert_eq!(warnings(&workflow), [""; 0]);
    // People may draw tasks as points.
    let points = read("w.dot", "digraph { node [shape=point] p1 -> p2 -> p3 }");
    assert_eq!(points.tasks.len(), 3);
    let named = read("w.dot", "digraph { a [shape=circle label=x] p1 [shape=circle] a -> p1 }");
    assert_eq!(named.tasks.len(), 2);
    let error = parse(
        "w.dot",
        "digraph { a [label=x]; p1 [shape=circle label=\"\" xlabel=map]; a -> p1 -> a }",
    );
    assert!(error.unwrap_err().contains("task \"a\" is its own parent"));
}

#[test]
fn many_operators_take_little_time() {
    // Each layer of operators has an edge to each of the next.
    let (layers, width) = (30, 100);
    let mut text = "digraph { node [shape=point]; s [shape=box]; t [shape=box];".to_owned();
    for layer in 0..layers {
        for from in 0..width {
            for to in 0..width {
                let id = |layer: usize, node: usize| format!("p{}", layer * width + node);
                text += &format!("{} -> {};", id(layer, from), id(layer + 1, to));
            }
        }
    }
    text += &format!("s -> p0; p{} -> t }}", layers * width);
    assert_eq!(edges(&read("w.dot", &text)), ["s > t"]);
}

#[test]
fn rules_of_snakemake_are_names() {
    let dag = RICH[4].2;
    let workflow = read("dag.dot", dag);
    let names: Vec<_> = workflow.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["all", "merge", "sort", "sort"]);
    assert_eq!(edges(&workflow), ["merge > all", "sort > merge", "sort > merge"]);
    assert_eq!((workflow.name.as_str(), warnings(&workflow)), ("snakemake_dag", vec![]));
    // `--filegraph` writes HTML.
    let html = read(
        "files.dot",
        "digraph { 0 [ shape=none, margin=0, label=<<table border=\"0\"><tr><td><b><font \
         point-size=\"18\">sort</font></b></td></tr><tr><td>input &gt; x</td></tr></table>> ] }",
    );
    assert_eq!(html.tasks[0].name, "sort");
}

#[test]
fn nodes_have_resources_and_explicit_attributes_replace_defaults() {
    let workflow = read(
        "w.dot",
        "digraph { node [runtime=5 procs=2 memory=\"1 GiB\" gpus=1 walltime=\"1 h\"]\n\
         a [weight=7 cores=3 memory=2097152 walltime=60] b }",
    );
    let resources = |memory, walltime| Resources {
        memory_bytes: Some(memory),
        gpus: Some(1),
        walltime_s: Some(walltime),
    };
    let [a, b] = workflow.tasks.as_slice() else { panic!() };
    assert_eq!((a.runtime_s, a.processors), (Some(7.0), Some(3)));
    assert_eq!((b.runtime_s, b.processors), (Some(5.0), Some(2)));
    assert_eq!((a.resources, b.resources), (resources(2 << 20, 60.0), resources(1 << 30, 3600.0)));
}

#[test]
fn cases_have_the_arguments_that_they_had_in_pegasus() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/cases/workflow");
    if !dir.exists() {
        eprintln!("skipped: there are no cases at {}", dir.display());
        return;
    }
    let read = |name: &str| Workflow::read(&dir.join(name), &Overrides::default()).unwrap();
    assert_eq!(arguments(&read("n.yml").tasks[0]), SPELT);
    assert_eq!(
        arguments(&read("q2.dax").tasks[0]),
        ["-t", "two words", "-x", "a  b", "-f", "pref.in.post", "-e", ""]
    );
    let so = read("so.dax");
    assert_eq!(streams(&so, &so.tasks[0]), [None, Some("hello.txt"), None]);
    assert_eq!(streams(&so, &so.tasks[1]), [Some("hello.txt"), Some("count.txt"), None]);
    assert_eq!(read("many20.toml").tasks.len(), 21);
}

#[test]
fn a_program_without_a_name_is_no_command() {
    let dax = "<adag><job id=\"a\" name=\"\"><argument>-x</argument></job></adag>";
    assert_eq!(read("w.dax", dax).tasks[0].command, None);
    let pegasus =
        "pegasus: '5.0'\nname: w\njobs:\n- {type: job, id: a, name: '', arguments: [x]}\n";
    if let Ok(workflow) = parse("workflow.yml", pegasus) {
        assert_eq!(workflow.tasks[0].command, None);
    }
}

#[test]
fn a_walltime_of_centuries_is_read_again() {
    let dax = "<adag><job id=\"a\" name=\"p\"><profile namespace=\"globus\" \
               key=\"maxwalltime\">4294967295</profile></job></adag>";
    let walltime = read("w.dax", dax).tasks[0].resources.walltime_s;
    assert!(walltime.is_some_and(|seconds| seconds > 1e9), "{walltime:?}");
}
