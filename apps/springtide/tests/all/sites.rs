//! Site processes: their nodes execute jobs, files move between them, and a killed site returns.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{CommandOutput, RunningCommand, nodes, program, run, text, until};

/// Cluster ams in the head's process, and del with a site process.
fn config(dir: &Path) -> String {
    let mut config =
        "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"\n[files]\npoll = \"200ms\"\n"
            .to_owned();
    for (name, site) in [("ams", "head"), ("del", "own")] {
        let files = dir.join("files").join(name);
        config += &format!(
            "[[cluster]]\nname = \"{name}\"\nnodes = 2\nsite = \"{site}\"\nfiles = \"{}\"\n\
            env = {{ TOKEN = \"of {name}\" }}\n",
            files.display()
        );
    }
    config
}

fn execute(up: &Up, line: &[&str]) -> CommandOutput {
    run(&[line, &["--config", up.file.to_str().unwrap()]].concat())
}

fn object(ended: &CommandOutput) -> Value {
    serde_json::from_str(&ended.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

/// Starts the site of del.
pub fn site(up: &Up, log_name: &str) -> RunningCommand {
    let logs = up.temp.path().join(log_name);
    fs::create_dir_all(&logs).unwrap();
    let file = up.dir.join("site/del/site.toml");
    let running = RunningCommand::start(
        program(&["site", "run", "-v", "--config", file.to_str().unwrap()]),
        &logs,
    );
    until("the site has begun", || {
        text(&logs.join("stderr.log")).contains("the site of cluster del")
    });
    running
}

/// Whether a job with two processors could start in del.
fn del_is_free(up: &Up) -> bool {
    let need = ["job", "plan", "queens", "--kind", "rigid", "--min", "2", "--on", "del"];
    execute(up, &need).code == Some(0)
}

/// The processors of a job in a cluster.
fn size(up: &Up, job: &str, cluster: &str) -> u64 {
    let status = object(&execute(up, &["job", "status", job, "--json"]));
    status["sizes"][cluster].as_u64().unwrap_or(0)
}

#[test]
fn a_file_goes_from_one_site_to_the_other() {
    let up = Up::written(config);
    let own = text(&up.temp.path().join("stderr.log"));
    assert!(
        own.contains("cluster del has a site of its own") && own.contains("site run --config"),
        "{own}"
    );
    assert!(!del_is_free(&up));
    let copied = text(&up.dir.join("site/del/grid.toml"));
    assert!(copied.contains("of del") && !copied.contains("of ams"), "{copied}");
    let mut site = site(&up, "first");
    until("its nodes have registered", || del_is_free(&up));
    let fib = object(&execute(&up, &["run", "fib", "--n", "24", "--json"]));
    let both =
        serde_json::json!([{ "name": "ams", "workers": 2 }, { "name": "del", "workers": 2 }]);
    assert_eq!((&fib["clusters"], &fib["result"]["fib"]), (&both, &46_368.into()), "{fib}");
    // Copied there through its own process, and fetched from there by the head's.
    let here = up.temp.path().join("long.txt");
    let content: String = (0..100_000).map(|n| format!("{n} little words\n")).collect();
    fs::write(&here, &content).unwrap();
    let put = execute(&up, &["files", "put", here.to_str().unwrap(), "--cluster", "del"]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let words =
        ["job", "submit", "words", "--text", "long.txt", "--file", "long.txt", "--kind", "rigid"];
    for (job, cluster) in [("2", "del"), ("3", "ams")] {
        let submit = execute(&up, &[&words[..], &["--min", "2", "--on", cluster]].concat());
        assert_eq!(submit.out, format!("job-{job}\n"), "{}", submit.err);
        let done = execute(&up, &["job", "result", job, "--wait", "--timeout", "2m", "--json"]);
        let why = execute(&up, &["job", "why", job]).out;
        assert_eq!(done.code, Some(0), "{}{why}", done.err);
        assert_eq!(object(&done)["result"]["words"], 300_000);
        assert_eq!(why.contains("long.txt was transferred from del to ams"), job == "3", "{why}");
    }
    let moved = up.temp.path().join("files/ams/long.txt");
    assert_eq!(fs::read_to_string(moved).unwrap(), content);
    site.signal("TERM");
    assert_eq!(site.wait().code(), Some(0));
    assert_eq!(nodes(&up.dir.join("site/del")), []);
    until("they are known to be gone", || !del_is_free(&up));
    up.end();
}

#[test]
fn a_killed_site_returns_and_the_job_continues() {
    let up = Up::written(config);
    let first = site(&up, "first");
    until("its nodes have registered", || del_is_free(&up));
    let submit =
        ["job", "submit", "queens", "--size", "18", "--spread", "--min", "1", "--on", "ams"];
    assert_eq!(execute(&up, &submit).out, "job-1\n");
    until("it has all", || size(&up, "1", "ams") == 2 && size(&up, "1", "del") == 2);
    first.signal("KILL");
    drop(first);
    until("its nodes end with it", || nodes(&up.dir.join("site/del")).is_empty());
    until("the job has lost them", || size(&up, "1", "del") == 0);
    assert_eq!(size(&up, "1", "ams"), 2, "{}", execute(&up, &["job", "why", "1"]).out);
    let mut second = site(&up, "second");
    until("it has them again", || size(&up, "1", "del") == 2);
    // On a signal, its nodes leave the job first.
    second.signal("TERM");
    assert_eq!(second.wait().code(), Some(0));
    until("they have left", || size(&up, "1", "del") == 0);
    let log = text(&up.dir.join("site/del/nodes/del-1.log"));
    assert!(log.contains("ends"), "{log}");
    assert_eq!(execute(&up, &["job", "cancel", "1"]).code, Some(0));
    up.end();
}

#[test]
fn a_restarted_head_recovers_the_state_of_sites() {
    let up = Up::written(config);
    let mut site = site(&up, "only");
    until("its nodes have registered", || del_is_free(&up));
    let before = nodes(&up.dir.join("site/del"));
    // A second process would adopt the first one's nodes.
    let file = up.dir.join("site/del/site.toml");
    let second = run(&["site", "run", "--config", file.to_str().unwrap()]);
    assert_eq!(second.code, Some(1), "{}", second.err);
    assert!(second.err.contains("the site of cluster del runs already"), "{}", second.err);
    fs::write(up.temp.path().join("files/del/a.txt"), "a b c").unwrap();
    // The head has another address then, which `up` writes for the site.
    let up = up.again();
    until("they have registered again", || del_is_free(&up));
    assert_eq!(nodes(&up.dir.join("site/del")), before, "nodes were restarted");
    let has_file = || execute(&up, &["files", "list"]).out.contains("a.txt");
    until("it knows of the file", has_file);
    let submit = ["job", "submit", "words", "--text", "a.txt", "--file", "a.txt", "--on", "del"];
    assert_eq!(execute(&up, &submit).out, "job-1\n");
    let done = execute(&up, &["job", "result", "1", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(object(&done)["result"]["words"], 3, "{}", execute(&up, &["job", "why", "1"]).out);
    site.signal("TERM");
    assert_eq!(site.wait().code(), Some(0));
    assert_eq!(nodes(&up.dir.join("site/del")), []);
    up.end();
}
