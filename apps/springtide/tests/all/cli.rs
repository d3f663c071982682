//! Output, exit codes and files of commands that need no grid.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::{finish, program, run, text};

#[test]
fn help_and_version_are_on_standard_output() {
    for line in [&["--help"][..], &["run", "--help"], &["run", "fib", "--help"], &["--version"]] {
        let ended = run(line);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line:?}");
        assert!(!ended.out.is_empty());
    }
    let help = run(&["--help"]).out;
    for code in ["130", "not", "timeout", "certificate"] {
        assert!(help.contains(code), "{code}: {help}");
    }
    let jobs = run(&["run", "--help"]).out;
    for job in ["barnes-hut", "fib", "ft", "integrate", "nbody", "queens", "raytracer", "tsp"] {
        assert!(jobs.contains(job), "{jobs}");
    }
    let submit = run(&["job", "submit", "--help"]).out;
    assert!(submit.contains("`springtide job submit JOB --help` lists the options"), "{submit}");
    let version: Value = serde_json::from_str(&run(&["version", "--json"]).out).unwrap();
    assert_eq!((&version["schema"], &version["name"]), (&1.into(), &"springtide".into()));
    assert!(run(&["completions", "bash"]).out.contains("complete"));
}

#[test]
fn typing_errors_are_reported_with_suggestions() {
    let cases: [(&[&str], &str); 17] = [
        (&[], "Usage:"),
        (&["runn"], "'run'"),
        (&["run", "fibb"], "no job fibb; did you mean fib?"),
        (&["run", "fbi"], "springtide: no job fbi; did you mean fib?\n"),
        (&["pu", "grid.toml"], "'up'"),
        (&["job", "submit", "fbi", "--config", "a"], "no job fbi; did you mean fib?"),
        // Options before the job are those of a file of jobs.
        (&["job", "plan", "--config", "a", "queenz"], "no job queenz; did you mean queens?"),
        (
            &["job", "submit", "--config", "a", "queens"],
            "options come after the job: springtide job submit queens --config a",
        ),
        (&["run", "fib", "--cluster", "3x2"], "'--clusters'"),
        (&["run", "fib", "--clusters", "3"], "clusters x nodes such as 3x2"),
        (&["run", "fib", "--timeout", "10"], "10"),
        (&["run", "fib", "--config", "a", "--clusters", "1x1"], "cannot be used with"),
        (
            &["run", "fib", "--set", "e_mni=0.4"],
            "--set: unknown key `e_mni` in [adaptation]; did you mean `e_min`?",
        ),
        (&["run", "fib", "--set", "e_min=0.6"], "e_min (0.6) must be below e_max (0.5)"),
        (&["run", "fib", "--clusters", "1x1", "--start", "1x2"], "more than cluster ams has, 1"),
        (&["node", "drain", "--config", "a"], "<NODE>"),
        (&["run", "fib", "--n", "94"], "--n 94: give a value from 0 to 93"),
    ];
    for (line, expected) in cases {
        let ended = run(line);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{line:?}");
        assert!(ended.err.contains(expected), "{line:?}: {}", ended.err);
    }
}

#[test]
fn a_failure_before_the_run_is_one_object_too() {
    let ended = run(&["run", "fib", "--n", "94", "--json"]);
    assert_eq!(ended.code, Some(2));
    let object: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&object["ok"], &object["job"]), (&false.into(), &"fib".into()));
    assert!(object["error"].as_str().unwrap().contains("--n 94"));
}

#[test]
fn without_a_grid_the_summary_is_on_standard_output() {
    let ended = run(&["run", "fib", "--n", "20", "--sequential"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.starts_with("job         fib\n"), "{}", ended.out);
    assert!(ended.out.contains("fib = 6765") && ended.out.contains("checksum    0000000000001a6d"));
    let quiet = run(&["run", "fib", "--n", "20", "--sequential", "--json", "-q"]);
    assert_eq!(quiet.err, "");
    assert_eq!(quiet.out.lines().count(), 1);
    let object: Value = serde_json::from_str(&quiet.out).unwrap();
    assert_eq!(object["checksum"], "0000000000001a6d");
    assert_eq!(object["clusters"], Value::Array(Vec::new()));
}

#[test]
fn a_run_leaves_its_directory_and_takes_no_other() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("out");
    let out = dir.to_str().unwrap();
    let line =
        ["run", "raytracer", "--sequential", "--width", "16", "--height", "16", "--out", out];
    let ended = run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(std::fs::read(dir.join("raytracer.png")).unwrap().starts_with(b"\x89PNG"));
    for file in ["manifest.json", "result.json"] {
        serde_json::from_slice::<Value>(&std::fs::read(dir.join(file)).unwrap()).unwrap();
    }
    let again = run(&line);
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("holds another run"), "{}", again.err);
}

#[test]
fn configs_are_written_checked_and_shown() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    let name = file.to_str().unwrap();
    assert_eq!(run(&["config", "init", name]).code, Some(0));
    let checked = run(&["config", "check", name]);
    assert_eq!(checked.code, Some(0));
    // The consequences of a link's expected values, which no error would show.
    assert!(checked.err.contains("link ams - del: 100ms round trip"), "{}", checked.err);
    assert_eq!(run(&["config", "init", name]).code, Some(1), "it is not overwritten");
    let jobs = temp.path().join("jobs.toml");
    let made = run(&["config", "init", "--jobs", jobs.to_str().unwrap()]);
    assert!(made.err.contains("jobs.toml --config GRID`"), "{}", made.err);
    let shown = run(&["config", "show", name, "--origin"]);
    assert!(shown.out.contains("# default") && shown.out.contains("grid.toml:"), "{}", shown.out);
    std::fs::write(&file, "grdi = \"a\"\n[[cluster]]\nname = \"A b\"\nnodes = 0\n").unwrap();
    let bad = run(&["config", "check", name]);
    assert_eq!(bad.code, Some(2));
    for part in [":1:1:", "did you mean `grid`", ":3:", ":4:"] {
        assert!(bad.err.contains(part), "{part}: {}", bad.err);
    }
    let lost = run(&["up", temp.path().join("no.toml").to_str().unwrap()]);
    assert_eq!(lost.code, Some(2));
    assert!(lost.err.contains("no.toml"), "{}", lost.err);
    assert_eq!(run(&["config", "show"]).code, Some(0));
    let mut overridden = program(&["config", "show"]);
    overridden.env("SPRINGTIDE_CLUSTER__AMS__NODES", "7").env("SPRINGTIDE_WORK__STEAL", "ramdom");
    let ended = finish(overridden);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("SPRINGTIDE_WORK__STEAL"), "{}", ended.err);
}

#[test]
fn earlier_spellings_of_keys_load_with_a_warning() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    let name = file.to_str().unwrap();
    let text = "[[cluster]]\nname = \"ams\"\n[adaptation]\nmost_growth = 3.0\n";
    std::fs::write(&file, text).unwrap();
    let warning = format!("warning: {name}, line 4: key `most_growth` is spelled `growth_max`\n");
    for command in ["check", "show"] {
        let ended = run(&["config", command, name]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert_eq!(ended.err.matches(&warning).count(), 1, "{}", ended.err);
        assert!(!ended.out.contains("most_growth"), "{}", ended.out);
    }
    std::fs::write(&file, format!("{text}growth_max = 3.0\n")).unwrap();
    let both = run(&["config", "check", name]);
    assert_eq!(both.code, Some(2));
    assert!(
        both.err.contains("grid.toml:5:1: `adaptation.growth_max` is given twice"),
        "{}",
        both.err
    );
}

#[test]
fn an_authority_issues_and_its_keys_are_private() {
    let temp = tempfile::tempdir().unwrap();
    let (ca, out) = (temp.path().join("ca"), temp.path().join("ams-1"));
    let (ca_name, out_name) = (ca.to_str().unwrap(), out.to_str().unwrap());
    let lost = run(&["ca", "issue", "ams-1", "--cluster", "ams", "--dir", ca_name]);
    assert_eq!(lost.code, Some(5));
    assert!(lost.err.contains("springtide ca init"), "{}", lost.err);
    assert_eq!(run(&["ca", "init", "--dir", ca_name, "--grid", "g"]).code, Some(0));
    assert_eq!(run(&["ca", "init", "--dir", ca_name]).code, Some(5), "it is not replaced");
    let line = ["ca", "issue", "ams-1", "--cluster", "ams", "--dir", ca_name, "--out", out_name];
    assert_eq!(run(&line).code, Some(0));
    for key in [ca.join("ca.key"), out.join("node.key")] {
        assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "{key:?}");
    }
    let evil = run(&["ca", "issue", "../x", "--cluster", "ams", "--dir", ca_name]);
    assert_eq!(evil.code, Some(5));
}

/// Fault histories leave identical traces, to the last record, in every process.
#[test]
fn ten_histories_are_the_same_in_two_processes() {
    let line = ["sim", "faults", "--seeds", "1..11", "--json"];
    let (one, other) = (run(&line), run(&line));
    assert_eq!((one.code, other.code), (Some(0), Some(0)), "{}\n{}", one.err, other.err);
    let output: serde_json::Value = serde_json::from_str(&one.out).expect("JSON");
    assert_eq!(output["digests"].as_object().map(serde_json::Map::len), Some(10), "{output}");
    assert_eq!(one.out, other.out);
}

/// Real QUIC endpoints draw new keys in each process: the contents of datagrams differ, but not
/// their times and lengths.
#[test]
fn a_scenario_over_quic_is_the_same_in_two_processes() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("small.toml");
    let text = "name = \"small\"\n[app]\niterations = 3\nwork = \"10s\"\nleaves = 64\n\
    bodies = 2000\n\
    [wide]\njitter = \"2ms\"\nloss = 0.005\nbandwidth = \"1MB/s\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 2\nstart = 2\n[[cluster]]\nname = \"b\"\nnodes = 2\n\
    start = 2\n";
    std::fs::write(&file, text).unwrap();
    let line = ["sim", "run", file.to_str().unwrap(), "--quic", "--json", "--seed", "7"];
    let (one, other) = (run(&line), run(&line));
    assert_eq!((one.code, other.code), (Some(0), Some(0)), "{}\n{}", one.err, other.err);
    assert_eq!(one.out, other.out);
    let output: serde_json::Value = serde_json::from_str(&one.out).expect("JSON");
    let frames = run(&["sim", "run", file.to_str().unwrap(), "--json", "--seed", "7"]);
    let faster: serde_json::Value = serde_json::from_str(&frames.out).expect("JSON");
    assert_ne!(output["digest"], faster["digest"]);
    let ratio = output["wall_s"].as_f64().unwrap() / faster["wall_s"].as_f64().unwrap();
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

/// Workloads from a file and from a trace: identical in two processes, with figures, and errors
/// with their lines.
#[test]
fn workloads_are_played_drawn_and_refused() {
    let temp = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = temp.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (one, other) = (temp.path().join("one"), temp.path().join("other"));
    let play = |out: &std::path::Path| {
        let line = [
            "sim",
            "workload",
            "wm-dense",
            "--policy",
            "fpsma,egs,efficiency-aware",
            "--cap",
            "100",
        ];
        run(&[line.as_slice(), &["--json", "--out", out.to_str().unwrap()]].concat())
    };
    let output = play(&one);
    assert_eq!((output.code, &output.out), (Some(0), &play(&other).out), "{}", output.err);
    let output: serde_json::Value = serde_json::from_str(&output.out).expect("JSON");
    let rows = output["rows"].as_array().unwrap();
    let policies: Vec<_> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["fpsma", "egs", "efficiency-aware"]);
    assert!(rows.iter().all(|row| row["result"]["ended"] == 300), "{output}");
    for name in [
        "mean-processors",
        "most-processors",
        "execution-time",
        "response-time",
        "utilisation",
        "operations",
    ] {
        for ending in ["svg", "csv"] {
            let [one, other] = [&one, &other]
                .map(|dir| std::fs::read(dir.join(format!("{name}.{ending}"))).unwrap());
            assert!(one == other && one.len() > 1000, "{name}.{ending}");
        }
    }
    let jobs = std::fs::read_to_string(one.join("jobs.csv")).unwrap();
    assert_eq!(jobs.lines().count(), 901);

    let line = |number: u32, come: u32, size: i32| {
        format!(
            "{number}\t{come}\t-1\t60\t-1\t-1\t-1\t{size}\t-1\t-1\t\
            -1\t-1\t-1\t-1\t-1\t-1\t-1\t-1\t0\n"
        )
    };
    let text = [line(1, 50, 4), line(2, 40, 2), line(3, 60, -1), line(4, 70, 9)].concat();
    let trace = file("small.swf", &text);
    let output =
        run(&["sim", "workload", &trace, "--malleable", "0", "--cluster", "a=8", "--json"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for warning in [
        "small.swf: line 2: submitted before the job above (sorted)",
        "small.swf: 4 lines, the first is 1: more than 18 fields",
        "small.swf: line 3: no processors (left out)",
        "small.swf: jobs that need more than any cluster has, and fail: 1",
    ] {
        assert!(output.err.contains(warning), "{warning} is not in\n{}", output.err);
    }
    let output: serde_json::Value = serde_json::from_str(&output.out).expect("JSON");
    let result = &output["rows"][0]["result"];
    assert_eq!((&result["ended"], &result["failed"]), (&2.into(), &1.into()), "{output}");
    assert_eq!(output["warnings"].as_array().map(Vec::len), Some(5), "{output}");

    let broken = file("broken.swf", "; a trace\n1 2 3\n");
    let wrong = file("wrong.toml", "name = \"w\"\n[[job]]\nmin = 5\nmax = 4\n");
    for (line, part) in [
        (vec![broken.as_str()], "broken.swf:2: a job has 18 fields, this line has 3"),
        (vec![wrong.as_str()], "wrong.toml:1:1: there is no program that it could run"),
        (vec!["wm", "--cluster", "a=b"], "must be a name and a number of processors"),
        (vec!["wm", "--malleable", "2"], "must lie within 0 and 1"),
        (vec!["wm", "--policy", "equal"], "possible values"),
        (vec![trace.as_str(), "--skip", "3"], "it has 3 jobs, and `skip` leaves 3 of them out"),
    ] {
        let refused = run(&[vec!["sim", "workload"], line].concat());
        assert_eq!(refused.code, Some(2), "{part}: {}", refused.err);
        assert!(refused.err.contains(part), "{part} is not in\n{}", refused.err);
    }
}

/// The provisioning experiments, small, on a constructed trace: identical in two processes, with
/// figures and errors.
#[test]
fn provisioning_is_compared_with_best_effort() {
    let temp = tempfile::tempdir().unwrap();
    let trace = temp.path().join("small.swf");
    // Twenty days of a machine of 16: every two hours a job of three or four hours on 1 to 8
    // processors.
    let job = |number: u32| {
        let (come, long) = (number * 7200, 10_800 + number % 5 * 900);
        let size = 1 + number * 7 % 8;
        format!("{number} {come} 0 {long} {size} -1 -1 {size} {long} -1 1 1 1 -1 1 -1 -1 -1\n")
    };
    let jobs: String = (1..=240).map(job).collect();
    std::fs::write(&trace, format!("; MaxProcs: 16\n{jobs}")).unwrap();
    let trace = trace.to_str().unwrap();
    let play = |experiment: &str, out: &str, more: &[&str]| {
        let out = temp.path().join(out);
        let line = ["sim", "provisioning", experiment, "--trace", trace, "--days", "6"];
        let end = ["--json", "--out", out.to_str().unwrap()];
        run(&[&line[..], more, &end].concat())
    };
    let results = |experiment: &str, more: &[&str]| -> Value {
        let output = play(experiment, experiment, more);
        assert_eq!(output.code, Some(0), "{experiment}: {}", output.err);
        let output: Value = serde_json::from_str(&output.out).expect("JSON");
        assert_eq!((&output["schema"], &output["seed"]), (&1.into(), &1.into()));
        output["results"].clone()
    };
    let small = ["--submissions", "4", "--population", "4", "--iterations", "3"];
    let small = |more: &[&'static str]| [&small[..], more].concat();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let is_figure = |experiment: &str, name: &str| {
        for ending in ["svg", "csv"] {
            let file = temp.path().join(experiment).join(format!("{name}.{ending}"));
            assert!(text(&file).len() > 60, "{name}.{ending}");
        }
    };

    let sites = results("sites", &small(&["--draws", "3"]));
    for (name, ways) in [
        ("schedulers", 4),
        ("schedulers-ours", 4),
        ("growth", 3),
        ("population", 6),
        ("crossover", 3),
        ("mutation", 4),
        ("searches", 2),
    ] {
        assert_eq!(sites[name]["over_draws"].as_array().map(Vec::len), Some(ways), "{name}");
        assert_eq!(sites[name]["draws"].as_array().map(Vec::len), Some(3), "{name}");
    }
    is_figure("sites", "tradeoff-sites-cost");

    let output = results("tradeoff", &small(&["--loads", "0.5"]));
    let rows = output["tradeoff"]["trade_offs"].as_array().unwrap();
    assert_eq!(rows.len(), 11);
    assert!((number(&output["tradeoff"]["load"]) - 0.5).abs() < 0.1, "{output}");
    let floor = number(&output["tradeoff"]["floor_su"]) * 3600.0;
    for pair in rows.windows(2) {
        // Towards lower cost, plans are cheaper and longer, and none is cheaper than the work
        // itself.
        let of = |row: &Value, what: &str| number(&row[what]["mean"]);
        assert!(of(&pair[0], "cost") >= of(&pair[1], "cost") && of(&pair[1], "cost") > floor - 1.0);
        assert!(of(&pair[0], "makespan_s") <= of(&pair[1], "makespan_s"));
        assert_eq!(pair[0]["without"], 0);
    }
    // As short as possible within a cost bound, which a plan at the minimum cost always meets.
    let within = &output["tradeoff"]["within"];
    assert_eq!((number(&within["alpha"]), number(&within["most"])), (0.0, 1.15));
    assert!(number(&within["cost"]["mean"]) <= 1.15 * floor + 1.0, "{within}");
    assert!(number(&within["makespan_s"]["mean"]) <= number(&rows[10]["makespan_s"]["mean"]));
    is_figure("tradeoff", "tradeoff-makespan");
    let again = |out: &str| play("tradeoff", out, &small(&["--loads", "0.5"])).out;
    assert_eq!(again("one"), again("other"));

    let output = results("discount", &small(&["--loads", "0.5"]));
    assert!(number(&output["discount"]["trade_offs"][10]["cost"]["mean"]) < floor);

    let output = results("sizes", &small(&["--loads", "0.5,0.9"]));
    assert_eq!(output["sizes"].as_array().map(Vec::len), Some(8));
    is_figure("sizes", "load-makespan");
    is_figure("sizes", "size-cost");

    // 8,039 tasks: the smallest possible search.
    let least = ["--submissions", "2", "--population", "1", "--iterations", "0"];
    for experiment in ["cybershake", "estimates"] {
        let output = results(experiment, &[&least[..], &["--loads", "0.5"]].concat());
        let rows = output[experiment].as_array().unwrap();
        assert_eq!(rows.len(), if experiment == "cybershake" { 1 } else { 3 });
        assert!(rows.iter().all(|row| row["result"]["without"] == 0), "{output}");
    }

    for (line, part) in [
        (&["tradeoff"][..], "give a trace in the Standard Workload Format"),
        (&["tradeoff", "--trace", trace, "--from-day", "300"], "no jobs in the 60 days"),
        (&["tradeoff", "--trace", "nowhere.swf"], "nowhere.swf"),
        (&["sites", "--draws", "0"], "--draws"),
        (&["tradeoff", "--loads", "3"], "must be a fraction of the machine"),
    ] {
        let refused = run(&[&["sim", "provisioning"], line].concat());
        assert_eq!(refused.code, Some(2), "{line:?}: {}", refused.err);
        assert!(refused.err.contains(part), "{part} is not in\n{}", refused.err);
    }
}

/// Workflows are checked, planned and drawn; errors and impossible requests say what to do.
#[test]
fn workflows_are_planned_drawn_and_refused() {
    let temp = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = temp.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let fork = file(
        "fork.dot",
        "digraph fork { node [runtime=20 procs=2]; a [runtime=10 procs=1]; a -> b [size=5]; a -> c \
        [size=5] }",
    );
    let bare = file(
        "bare.yml",
        "pegasus: '5.0'\nname: bare\njobs:\n- {type: job, id: x, name: prepare}\n\
        - {type: job, id: y, name: 'do, all'}\n",
    );
    let bad = file("bad.dot", "digraph bad {\n a -> b -> a\n}");
    let slot = |processors: u32, end: u32| {
        format!(
            "{{\"processors\":{processors},\"start_s\":0,\"end_s\":{end},\
            \"divisible\":false,\"extensible\":false}}"
        )
    };
    let offers =
        |sites: &str| format!(r#"{{"schema":1,"origin_unix_s":1764061200.0,"sites":[{sites}]}}"#);
    let vu = format!(
        r#"{{"name":"vu","processors":8,"epoch":7,"slots":[{},{}]}}"#,
        slot(2, 60),
        slot(2, 30)
    );
    let slots = file("offers.json", &offers(&vu));

    // All files are checked, in spite of errors in one.
    let output = run(&["workflow", "check", &bad, &fork, &bare]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(output.err.contains("bad.dot:") && output.err.contains("circle"), "{}", output.err);
    for part in [
        "fork.dot (DOT): fork\n  tasks          3, of 3 kinds\n  edges          2\n  \
        levels         2, at most 2 tasks wide\n",
        "work           90.00 processor-seconds, tasks of up to 2 processors",
        "critical path  30.00 s",
        "data           10 B between tasks, 2 files",
        "bare.yml (Pegasus 5 YAML): bare",
        "work           not known",
        "bare.yml:4:3: 2 tasks have no runtime: x and y",
    ] {
        assert!(output.out.contains(part), "{part} is not in\n{}", output.out);
    }
    let renamed =
        file("fork.txt", &std::fs::read_to_string(&fork).unwrap().replace("digraph", "  digraph"));
    let given = run(&["workflow", "check", &renamed, "--format", "dot"]);
    assert_eq!(given.code, Some(0), "{}", given.err);
    assert!(given.out.contains("fork.txt (DOT): fork"), "{}", given.out);
    let given = run(&["workflow", "check", &renamed, "--format", "dax"]);
    assert!(given.code == Some(2) && given.err.contains("not DAX XML"), "{}", given.err);
    let output = run(&["workflow", "check", &bad, &fork, "--json"]);
    assert_eq!(output.code, Some(2));
    let object: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&object["schema"], &object["ok"]), (&1.into(), &false.into()));
    assert_eq!(object["files"][0]["ok"], false);
    assert!(object["files"][0]["line"].is_u64(), "{object}");
    let summary = &object["files"][1]["summary"];
    assert_eq!((&summary["tasks"], &summary["width"]), (&3.into(), &2.into()));

    // A plan, identical in two processes.
    let (one, other) = (temp.path().join("one"), temp.path().join("other"));
    let plan = |out: &std::path::Path| {
        let out = out.to_str().unwrap();
        run(&["workflow", "plan", &fork, "--slots", &slots, "--alpha", "0", "--json", "--out", out])
    };
    let output = plan(&one);
    assert_eq!((output.code, &output.out), (Some(0), &plan(&other).out), "{}", output.err);
    let object: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&object["makespan_s"], &object["cost"]), (&30.0.into(), &180.0.into()));
    assert_eq!((&object["floor"], &object["waste"]), (&90.0.into(), &90.0.into()));
    assert_eq!(object["slots"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&object["slots"][0]["site"], &object["slots"][0]["epoch"]),
        (&"vu".into(), &7.into())
    );
    for name in ["plan.json", "schedule.csv", "front.csv", "front.svg", "gantt.svg", "tasks.svg"] {
        let [one, other] = [&one, &other].map(|dir| std::fs::read(dir.join(name)).unwrap());
        assert!(one == other && one.len() > 70, "{name}");
    }
    let front = std::fs::read_to_string(one.join("front.csv")).unwrap();
    assert_eq!(
        front,
        "cost,makespan_s,slots,trade_offs,taken\n120,50,1,0.6-1,false\n180,30,2,0-0.5,true\n"
    );
    let output = run(&["workflow", "plan", &fork, "--slots", &slots, "--budget", "150"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.out.contains("taken       number 1 by trade-off 0.5"), "{}", output.out);
    assert!(output.out.contains(", among those (1) that cost at most 150.0"), "{}", output.out);

    // Impossible requests with the nearest plan, and wrong ones.
    let table = file("runtimes.csv", "name,runtime_s,processors\nprepare,5,1\n\"do, all\",6,2\n");
    let given = run(&["workflow", "plan", &bare, "--slots", &slots, "--overrides", &table]);
    assert_eq!(given.code, Some(0), "{}", given.err);
    let wide = file("wide.dot", "digraph wide { node [runtime=20]; w [procs=16]; v [procs=2] }");
    let long = file("long.dot", "digraph long { l [runtime=90 procs=1] }");
    let none = file("none.json", &offers(r#"{"name":"vu","processors":8}"#));
    let twice = file("twice.json", &offers(&format!("{vu},{vu}")));
    for (line, code, parts) in [
        (
            vec![&*fork, "--slots", &slots, "--deadline", "20s"],
            3,
            &[
                "no plan ends within 20.00 s: the fastest takes 30.00 s and costs 180.0 \
                processor-seconds (--deadline 30s)",
                "its longest chain of tasks alone takes 30.00 s",
            ][..],
        ),
        (
            vec![&fork, "--slots", &slots, "--budget", "100"],
            3,
            &["no plan that was found costs at most 100.0 processor-seconds: the cheapest costs \
            120.0 processor-seconds and takes 50.00 s (--budget 120)"],
        ),
        (
            vec![&fork, "--slots", &slots, "--budget", "150", "--deadline", "40s"],
            3,
            &[
                "no plan that was found ends within 40.00 s and costs at most 150.0",
                "a longer search may find one: --population, --iterations",
                "(--budget 180)",
                "(--deadline 50s)",
            ],
        ),
        (
            vec![&wide, "--slots", &slots],
            3,
            &[
                "no plan: task w needs 16 processors for 20.00 s and has no place in 2 slots: at \
                most 4 of one site are free for so long at once",
                "4 processors of vu, from 0 s on",
                "no site is that large: the largest, vu, has 8 processors",
                "name,runtime_s,processors\n    w,,4\n",
            ],
        ),
        (
            vec![&long, "--slots", &slots],
            3,
            &[
                "task l needs 1 processor for 90.00 s and has no place in 2 slots: no site has any \
                free for so long",
                "the longest time for which 1 processor is offered: 60.00 s, at vu from 0 s to \
                60.00 s",
                "plan again with later offers (these end at 60.00 s, 2025-11-25T09:01:00Z)",
            ],
        ),
        (vec![&fork, "--slots", &none], 3, &["no site offers a slot"]),
        (
            vec![&bare, "--slots", &slots],
            2,
            &[
                "bare.yml:4:3: 2 tasks have no runtime: x and y; give seconds and processors",
                "with --overrides FILE, a table such as\n  name,runtime_s,processors\n  \
                prepare,60,1\n  \"do, all\",60,1",
            ],
        ),
        (
            vec![&fork, "--slots", &slots, "--deadline", "2025-11-25T08:00Z"],
            2,
            &["this is in the past"],
        ),
        (vec![&fork, "--slots", &fork], 2, &["fork.dot:1:", "as `slots list --json` prints it"]),
        (vec![&fork, "--slots", &twice], 2, &["twice.json: site vu: sites 1 and 2 have this name"]),
        (vec![&bad, "--slots", &slots], 2, &["bad.dot:"]),
        (vec![&fork], 2, &["--slots <FILE>"]),
        (vec![&fork, "--slots", &slots, "--alpha", "2"], 2, &["0 (fastest) to 1 (cheapest)"]),
    ] {
        let ended = run(&[&["workflow", "plan"], &line[..]].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{line:?}: {}", ended.err);
        for part in parts {
            assert!(ended.err.contains(part), "{line:?}: {part} is not in\n{}", ended.err);
        }
    }
    let output = run(&["workflow", "plan", &wide, "--slots", &slots, "--json"]);
    assert_eq!(output.code, Some(3));
    let object: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&object["ok"], &object["reason"]), (&false.into(), &"task".into()));
    assert_eq!(object["nearest"]["overrides"][0]["processors"], 4);
}

/// Workflows of other projects are planned, and no processor has two tasks at a time in their
/// schedules.
#[test]
fn workflows_of_other_projects_are_planned() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/workflows");
    if !dir.exists() {
        eprintln!("skipped: there are no workflows at {}", dir.display());
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let slots = temp.path().join("offers.json");
    let slot = |processors: u32, start: u32, end: u32, in_part: bool| {
        format!(
            "{{\"processors\":{processors},\"start_s\":{start},\"end_s\":{end},\
            \"divisible\":{in_part},\"extensible\":{in_part}}}"
        )
    };
    let vu = [slot(2, 0, 600, false), slot(4, 0, 300, false), slot(16, 200, 86400, true)];
    let uva = [slot(4, 60, 500, false), slot(6, 300, 86400, true)];
    let offers = format!(
        "{{\"schema\":1,\"origin_unix_s\":0,\"sites\":[\
        {{\"name\":\"vu\",\"processors\":64,\"slots\":[{}]}},\
        {{\"name\":\"uva\",\"processors\":32,\"speed\":1.5,\"slots\":[{}]}}]}}",
        vu.join(","),
        uva.join(",")
    );
    std::fs::write(&slots, offers).unwrap();
    let wild = [
        ("dax2.1_CyberShake_30.xml", 30),
        ("dax2.1_CyberShake_100.xml", 100),
        ("dax2.1_Montage_25.xml", 25),
        ("dax2.1_HEFT_paper.xml", 10),
        ("wf1.5_montage-chameleon-2mass-005d-001.json", 58),
        ("wf1.5_1000genome-chameleon-2ch-100k-001.json", 52),
        ("wf1.5_helloworld-forkjoin-10-chameleon.json", 10),
    ];
    let files = wild.map(|(name, _)| dir.join(name).to_str().unwrap().to_owned());
    let line: Vec<&str> = ["workflow", "check", "--json"]
        .into_iter()
        .chain(files.iter().map(String::as_str))
        .collect();
    let output = run(&line);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    let object: Value = serde_json::from_str(&output.out).unwrap();
    for (at, (name, tasks)) in wild.into_iter().enumerate() {
        assert_eq!(object["files"][at]["summary"]["tasks"], tasks, "{name}");
        assert_eq!(object["files"][at]["without_runtime"], 0, "{name}");
    }
    for (name, tasks) in wild {
        let (file, out) = (dir.join(name), temp.path().join(name));
        let words = ["workflow", "plan"].map(str::to_owned).into_iter();
        let more = ["--slots", slots.to_str().unwrap(), "--alpha", "0.2", "-q", "--out"];
        let line: Vec<String> = words
            .chain([file.to_str().unwrap().to_owned()])
            .chain(more.map(str::to_owned))
            .chain([out.to_str().unwrap().to_owned()])
            .collect();
        let output = run(&line.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{name}");
        let schedule = std::fs::read_to_string(out.join("schedule.csv")).unwrap();
        // The busy intervals of each processor.
        let mut busy: std::collections::BTreeMap<u32, Vec<(f64, f64)>> = Default::default();
        let rows: Vec<Vec<&str>> =
            schedule.lines().skip(1).map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len(), tasks, "{name}");
        for row in rows {
            let (start, end) = (row[6].parse().unwrap(), row[8].parse().unwrap());
            for part in row[12].split(' ') {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                for processor in first.parse::<u32>().unwrap()..=last.parse().unwrap() {
                    busy.entry(processor).or_default().push((start, end));
                }
            }
        }
        for (processor, mut times) in busy {
            times.sort_by(|a, b| a.0.total_cmp(&b.0));
            let apart = times.windows(2).all(|two| two[0].1 <= two[1].0);
            assert!(apart, "{name}: processor {processor}: {times:?}");
        }
    }
}
