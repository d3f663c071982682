//! Sites that are processes of their own: their nodes take part, files go between them, and one that is killed comes back.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{Ended, Running, nodes, program, run, text, until};

/// Cluster ams in the head's process, and del with a site of its own.
fn config(dir: &Path) -> String {
    let mut config =
        "[scheduling]\npoll = \"300ms\"\nscan_every = \"300ms\"\n[files]\npoll = \"200ms\"\n"
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

fn told(up: &Up, line: &[&str]) -> Ended {
    run(&[line, &["--config", up.file.to_str().unwrap()]].concat())
}

fn object(told: &Ended) -> Value {
    serde_json::from_str(&told.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", told.out, told.err))
}

/// Starts del's site.
fn site(up: &Up, life: &str) -> Running {
    let logs = up.temp.path().join(life);
    fs::create_dir_all(&logs).unwrap();
    let file = up.dir.join("site/del/site.toml");
    let running =
        Running::start(program(&["site", "run", "-v", "--config", file.to_str().unwrap()]), &logs);
    until("the site has begun", || {
        text(&logs.join("stderr.log")).contains("the site of cluster del")
    });
    running
}

/// Whether a job of two could begin in del.
fn del_is_free(up: &Up) -> bool {
    let need = ["job", "plan", "queens", "--kind", "rigid", "--min", "2", "--on", "del"];
    told(up, &need).code == Some(0)
}

/// Processors of a job in a cluster.
fn size(up: &Up, job: &str, cluster: &str) -> u64 {
    let status = object(&told(up, &["job", "status", job, "--json"]));
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
    let fib = object(&told(&up, &["run", "fib", "--n", "24", "--json"]));
    let both =
        serde_json::json!([{ "name": "ams", "workers": 2 }, { "name": "del", "workers": 2 }]);
    assert_eq!((&fib["clusters"], &fib["result"]["fib"]), (&both, &46_368.into()), "{fib}");
    // Put there through its own process, and fetched from there by the head's.
    let here = up.temp.path().join("long.txt");
    let content: String = (0..100_000).map(|n| format!("{n} little words\n")).collect();
    fs::write(&here, &content).unwrap();
    let put = told(&up, &["files", "put", here.to_str().unwrap(), "--cluster", "del"]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let words =
        ["job", "submit", "words", "--text", "long.txt", "--file", "long.txt", "--kind", "rigid"];
    for (job, cluster) in [("2", "del"), ("3", "ams")] {
        let submit = told(&up, &[&words[..], &["--min", "2", "--on", cluster]].concat());
        assert_eq!(submit.out, format!("job-{job}\n"), "{}", submit.err);
        let done = told(&up, &["job", "result", job, "--wait", "--timeout", "2m", "--json"]);
        let why = told(&up, &["job", "why", job]).out;
        assert_eq!(done.code, Some(0), "{}{why}", done.err);
        assert_eq!(object(&done)["result"]["words"], 300_000);
        assert_eq!(why.contains("long.txt was brought from del to ams"), job == "3", "{why}");
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
fn a_site_that_is_killed_comes_back_and_the_job_goes_on() {
    let up = Up::written(config);
    let first = site(&up, "first");
    until("its nodes have registered", || del_is_free(&up));
    let submit =
        ["job", "submit", "queens", "--size", "18", "--spread", "--min", "1", "--on", "ams"];
    assert_eq!(told(&up, &submit).out, "job-1\n");
    until("it has all", || size(&up, "1", "ams") == 2 && size(&up, "1", "del") == 2);
    first.signal("KILL");
    drop(first);
    until("its nodes end with it", || nodes(&up.dir.join("site/del")).is_empty());
    until("the job has lost them", || size(&up, "1", "del") == 0);
    assert_eq!(size(&up, "1", "ams"), 2, "{}", told(&up, &["job", "why", "1"]).out);
    let mut second = site(&up, "second");
    until("it has them again", || size(&up, "1", "del") == 2);
    // Told to end it has its nodes leave the job first.
    second.signal("TERM");
    assert_eq!(second.wait().code(), Some(0));
    until("they have left", || size(&up, "1", "del") == 0);
    let log = text(&up.dir.join("site/del/nodes/del-1.log"));
    assert!(log.contains("ends"), "{log}");
    assert_eq!(told(&up, &["job", "cancel", "1"]).code, Some(0));
    up.end();
}

#[test]
fn a_head_that_is_started_anew_is_told_of_everything_again() {
    let up = Up::written(config);
    let mut site = site(&up, "only");
    until("its nodes have registered", || del_is_free(&up));
    let before = nodes(&up.dir.join("site/del"));
    // A second one would take its nodes for its own.
    let file = up.dir.join("site/del/site.toml");
    let second = run(&["site", "run", "--config", file.to_str().unwrap()]);
    assert_eq!(second.code, Some(1), "{}", second.err);
    assert!(second.err.contains("the site of cluster del runs already"), "{}", second.err);
    fs::write(up.temp.path().join("files/del/a.txt"), "a b c").unwrap();
    // It listens elsewhere then, which `up` writes down for the site.
    let up = up.again();
    until("they have registered again", || del_is_free(&up));
    assert_eq!(nodes(&up.dir.join("site/del")), before, "nodes were started anew");
    let has_file = || told(&up, &["files", "list"]).out.contains("a.txt");
    until("it knows of the file", has_file);
    let submit = ["job", "submit", "words", "--text", "a.txt", "--file", "a.txt", "--on", "del"];
    assert_eq!(told(&up, &submit).out, "job-1\n");
    let done = told(&up, &["job", "result", "1", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(object(&done)["result"]["words"], 3, "{}", told(&up, &["job", "why", "1"]).out);
    site.signal("TERM");
    assert_eq!(site.wait().code(), Some(0));
    assert_eq!(nodes(&up.dir.join("site/del")), []);
    up.end();
}
