//! Input files of jobs: copied into a cluster, moved to where a job starts, read by its tasks, and
//! listed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{CommandOutput, RunningCommand, program, run, until};

/// A text of several chunks.
fn text() -> String {
    let lines = (0..40_000).map(|n| format!("line {n} of {} lines, more or less\n", n % 7));
    lines.collect()
}

fn config(dir: &Path) -> String {
    let mut config = "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"\n\
    [files]\npoll = \"200ms\"\n[[link]]\nbetween = [\"ams\", \"del\"]\nbandwidth = \"8Mbit/s\"\n"
        .to_owned();
    for (name, nodes) in [("ams", 2), ("del", 1)] {
        let files = dir.join("files").join(name);
        config += &format!(
            "[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\nfiles = \"{}\"\n",
            files.display()
        );
    }
    config + "[[cluster]]\nname = \"bud\"\nnodes = 2\n"
}

fn execute(up: &Up, line: &[&str]) -> CommandOutput {
    run(&[line, &["--config", up.file.to_str().unwrap()]].concat())
}

fn object(ended: &CommandOutput) -> Value {
    serde_json::from_str(&ended.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

fn place(up: &Up, cluster: &str, name: &str) -> PathBuf {
    up.temp.path().join("files").join(cluster).join(name)
}

/// The clusters that have a file, as the grid lists them.
fn clusters(up: &Up, name: &str) -> Vec<String> {
    let list = object(&execute(up, &["files", "list", "--json"]));
    let files = list["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["name"] == name);
    let clusters = file.map(|file| file["clusters"].as_object().unwrap());
    clusters.map_or_else(Vec::new, |all| all.keys().cloned().collect())
}

#[test]
fn a_jobs_file_is_moved_to_where_it_starts() {
    let up = Up::written(config);
    let here = up.temp.path().join("text.txt");
    fs::write(&here, text()).unwrap();
    assert_eq!(execute(&up, &["files", "list"]).out, "no files\n");
    let file = here.to_str().unwrap();
    let put = execute(&up, &["files", "put", file, "--cluster", "del"]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    assert_eq!(fs::read_to_string(place(&up, "del", "text.txt")).unwrap(), text());
    let list = execute(&up, &["files", "list"]).out;
    assert!(list.contains("text.txt  1.43 MB  del"), "{list}");
    // The job starts where its file is, and in no cluster without files.
    let words = ["words", "--text", "text.txt", "--grain", "100000", "--file", "text.txt"];
    let near = ["--placement", "close-to-files", "--kind", "rigid"];
    let plan = execute(&up, &[&["job", "plan"], &words[..], &near].concat());
    assert!(plan.out.contains("1 of del") && !plan.out.contains("brought"), "{}", plan.out);
    let plan = execute(&up, &[&["job", "plan"], &words[..], &near, &["--min", "2"]].concat());
    assert_eq!(plan.code, Some(0), "{}", plan.out);
    let brought = "text.txt (1.43 MB) is transferred from del to ams in about 1.4";
    assert!(plan.out.contains(brought) && plan.out.contains("2 of ams"), "{}", plan.out);
    let only = execute(&up, &[&["job", "plan"], &words[..], &["--on", "bud"]].concat());
    assert_eq!(only.code, Some(3), "{}", only.err);
    assert!(only.out.contains("has no directory for files, and needs text.txt"), "{}", only.out);
    // The job starts where its file must be moved to.
    let submit = execute(&up, &[&["job", "submit"], &words[..], &near, &["--min", "2"]].concat());
    assert_eq!(submit.out, "job-1\n", "{}", submit.err);
    let done = execute(&up, &["job", "result", "1", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(done.code, Some(0), "{}{}", done.err, execute(&up, &["job", "why", "1"]).out);
    let grid = object(&done);
    assert_eq!(grid["clusters"], serde_json::json!([{ "name": "ams", "workers": 2 }]));
    assert_eq!(fs::read_to_string(place(&up, "ams", "text.txt")).unwrap(), text());
    let why = execute(&up, &["job", "why", "1"]).out;
    assert!(why.contains("text.txt was transferred from del to ams"), "{why}");
    until("the grid knows", || clusters(&up, "text.txt") == ["ams", "del"]);
    // The same result as without a grid, with the file from a given directory.
    let dir = up.temp.path().to_str().unwrap();
    let alone = ["run", "words", "--text", "text.txt", "--sequential", "--json", "--files", dir];
    let alone = object(&run(&alone));
    assert_eq!(alone["checksum"], grid["checksum"]);
    assert_eq!(alone["result"]["words"], 8 * 40_000);
    // Removed files are no longer listed.
    fs::remove_file(place(&up, "del", "text.txt")).unwrap();
    until("it is forgotten", || clusters(&up, "text.txt") == ["ams"]);
    let copy = up.temp.path().join("copy");
    let fetch = ["files", "fetch", "text.txt", "--out", copy.to_str().unwrap()];
    // An interrupted transfer continues, unless the beginning belongs to another file.
    let part = up.temp.path().join("copy.part");
    for before in [&text()[..70_000], "of another file"] {
        fs::write(&part, before).unwrap();
        let fetched = execute(&up, &fetch);
        assert_eq!(fetched.code, Some(0), "{}", fetched.err);
        assert_eq!(fs::read_to_string(&copy).unwrap(), text());
        assert!(!part.exists());
        // Existing files are not overwritten.
        let again = execute(&up, &fetch);
        assert_eq!(again.code, Some(1), "{}", again.err);
        assert!(again.err.contains("copy exists: remove it"), "{}", again.err);
        fs::remove_file(&copy).unwrap();
    }
    up.end();
}

#[test]
fn errors_of_files_are_reported() {
    let up = Up::written(config);
    for (cluster, text) in [("ams", "one"), ("del", "two")] {
        fs::create_dir_all(place(&up, cluster, "")).unwrap();
        fs::write(place(&up, cluster, "odd.txt"), text).unwrap();
    }
    fs::write(place(&up, "ams", "good.txt"), "good").unwrap();
    until("the grid knows", || clusters(&up, "odd.txt").len() == 2);
    until("the grid knows", || clusters(&up, "good.txt").len() == 1);
    let words = ["words", "--text", "odd.txt", "--file"];
    let unknown = execute(&up, &[&["job", "submit"], &words[..], &["god.txt"]].concat());
    assert_eq!(unknown.code, Some(3), "{}", unknown.err);
    let known = "no cluster has a file god.txt: there are good.txt, odd.txt";
    assert!(unknown.err.contains(known), "{}", unknown.err);
    let differs = execute(&up, &[&["job", "plan"], &words[..], &["odd.txt"]].concat());
    assert_eq!(differs.code, Some(3), "{}", differs.err);
    let reason = "files named odd.txt differ: ams has 3 bytes";
    assert!(differs.out.contains(reason), "{}", differs.out);
    let waits = execute(&up, &[&["job", "submit"], &words[..], &["odd.txt"]].concat());
    assert_eq!(waits.out, "job-1\n", "{}", waits.err);
    let why = execute(&up, &["job", "why", "1"]).out;
    assert!(why.contains(reason), "{why}");
    // No file is overwritten, and no name leads out of the directory.
    let here = up.temp.path().join("odd.txt");
    fs::write(&here, "three").unwrap();
    let file = here.to_str().unwrap();
    for (line, code, reason) in [
        (&["put", file, "--cluster", "ams"][..], 1, "cluster ams has another file named odd.txt"),
        (
            &["put", file, "--cluster", "bud"],
            2,
            "cluster bud keeps no files: those with files are ams, del",
        ),
        (
            &["put", file, "--cluster", "ams", "--as", "../odd.txt"],
            2,
            "not a valid name of an input file",
        ),
        (&["fetch", "odd.txt"], 2, "select one with --cluster"),
        (&["fetch", "good.tx"], 2, "did you mean good.txt?"),
    ] {
        let refused = execute(&up, &[&["files"], line].concat());
        assert_eq!(refused.code, Some(code), "{}", refused.err);
        assert!(refused.err.contains(reason), "{}", refused.err);
    }
    // A signal ends the reading of a file, here one without an end.
    let pipe = up.temp.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let dir = up.temp.path().join("client");
    fs::create_dir_all(&dir).unwrap();
    let mut command = program(&["files", "put", "--cluster", "del", "--config"]);
    command.arg(&up.file).arg(&pipe);
    let mut reader = RunningCommand::start(command, &dir);
    let threads = format!("/proc/{}/task", reader.0.id());
    until("it reads", || {
        let all = fs::read_dir(&threads).unwrap().flatten();
        all.into_iter().any(|thread| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "checksum\n")
        })
    });
    reader.signal("INT");
    assert_eq!(reader.wait().code(), Some(130));
    // After the wrong file is removed, the job continues; without its file it would fail with the
    // reason.
    fs::remove_file(place(&up, "del", "odd.txt")).unwrap();
    let done = execute(&up, &["job", "result", "1", "--wait", "--timeout", "2m", "--json"]);
    assert_eq!(object(&done)["result"]["words"], 1, "{}", done.out);
    let bare = execute(&up, &["run", "words", "--text", "none.txt", "--min-nodes", "1"]);
    assert_ne!(bare.code, Some(0));
    assert!(bare.err.contains("the input file none.txt"), "{}", bare.err);
    up.end();
}
