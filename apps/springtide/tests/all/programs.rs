//! Programs that a grid was not built with: a grid that is up receives and runs them.
//!
//! The strangers are copies of the example `door`, which remove their own file before they connect.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::drains::Up;
use crate::embed::example;
use crate::sites::site;
use crate::support::{CommandOutput, RunningCommand, finish, run, text, until};

/// A copy of a program that has its own digest: `mark` is appended to it.
fn stranger(dir: &Path, name: &str, mark: &str) -> PathBuf {
    let path = dir.join(name);
    let mut bytes = fs::read(example(name_of_example(name))).unwrap();
    bytes.extend(mark.bytes());
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Copies are called after their example, with a number.
fn name_of_example(name: &str) -> &str {
    name.trim_end_matches(|digit: char| digit.is_ascii_digit())
}

/// Runs a program without variables of the caller's environment that concern it.
fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("SPRINGTIDE_")) {
        command.env_remove(key);
    }
    command.args(args).stdin(Stdio::null()).env_remove("RUST_LOG").env("NO_COLOR", "1");
    command
}

/// Runs a copy of `door` that removes itself and brings itself to a grid.
fn bring(up: &Up, name: &str, mark: &str) -> CommandOutput {
    let program = stranger(up.temp.path(), name, mark);
    let ended = finish(command(&program, &["bring", up.file.to_str().unwrap()]));
    assert!(!program.exists(), "{}", ended.err);
    ended
}

/// The programs in a store, with their permissions.
fn stored(dir: &Path) -> Vec<(String, u32)> {
    let Ok(all) = fs::read_dir(dir.join("programs")) else { return Vec::new() };
    let whole = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        (!name.starts_with('.')).then_some((name, mode))
    };
    let mut found: Vec<_> = all.filter_map(Result::ok).filter_map(whole).collect();
    found.sort();
    found
}

/// A cluster in the head's process, and one with a site process in another directory.
fn two_sites(_: &Path) -> String {
    // The jobs are to have both clusters, however long a transfer takes.
    let mut config = "[scheduling]\npoll = \"300ms\"\nstart_wait = \"120s\"\n".to_owned();
    for (name, site) in [("ams", "head"), ("del", "own")] {
        config += &format!("[[cluster]]\nname = \"{name}\"\nnodes = 1\nsite = \"{site}\"\n");
    }
    config
}

fn nodes_are_there(up: &Up, count: usize) {
    until("all nodes are there", || up.node(&["list"]).out.matches(" idle").count() == count);
}

#[test]
fn hosts_run_a_program_that_none_of_them_has() {
    let up = Up::written(two_sites);
    let _site = site(&up, "site");
    nodes_are_there(&up, 2);
    let ended = bring(&up, "door", "");
    assert!(ended.out.contains("outcome: 7"), "{}{}\n{}", ended.out, ended.err, up.output());
    assert!(ended.out.contains("started on 2 nodes"), "{}", ended.out);
    assert!(ended.out.contains("waiting: "), "{}", ended.out);
    // The head has it once, for its own cluster and as the source of the other one.
    let there = stored(&up.dir);
    assert!(there.len() == 1 && there[0].1 == 0o700, "{there:?}");
    assert_eq!(stored(&up.dir.join("site/del")), there);
    // Another user of the same program: nothing is started or sent.
    let ended = bring(&up, "door2", "");
    assert!(ended.out.contains("outcome: 7"), "{}{}", ended.out, ended.err);
    assert_eq!((stored(&up.dir), stored(&up.dir.join("site/del"))), (there.clone(), there));
    // The grid's own jobs run as before.
    let line = ["run", "fib", "--n", "20", "--config", up.file.to_str().unwrap()];
    let ended = run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    up.end();
}

#[test]
fn a_site_that_is_killed_during_the_transfer_receives_the_rest() {
    let up = Up::written(two_sites);
    let first = site(&up, "first");
    nodes_are_there(&up, 2);
    let program = stranger(up.temp.path(), "door", "");
    let logs = up.temp.path().join("program");
    fs::create_dir_all(&logs).unwrap();
    let line = ["bring", up.file.to_str().unwrap()];
    let mut program = RunningCommand::start(command(&program, &line), &logs);
    let dir = up.dir.join("site/del/programs");
    until("a part has come", || {
        let mut all = fs::read_dir(&dir).unwrap().filter_map(Result::ok);
        all.any(|entry| entry.metadata().is_ok_and(|about| about.len() > 0))
    });
    first.signal("KILL");
    drop(first);
    let _second = site(&up, "second");
    assert!(program.wait().success());
    let out = text(&logs.join("stdout.log"));
    assert!(out.contains("outcome: 7"), "{out}{}", up.output());
    until("the site has it", || stored(&up.dir.join("site/del")).len() == 1);
    up.end();
}

#[test]
fn a_program_without_users_makes_room_for_another() {
    let bytes = fs::metadata(example("door")).unwrap().len();
    let lines = format!("[programs]\nsize_max = \"{bytes}B\"\ncache_max = \"{}B\"", bytes + 10_000);
    let mut up = Up::with(&[("ams", 1)], &lines);
    let large = bring(&up, "door", "x");
    assert!(large.out.starts_with("ProgramRefused"), "{}{}", large.out, large.err);
    let limit = format!("has {} bytes, above the limit of {bytes}", bytes + 1);
    assert!(large.out.contains(&limit), "{}", large.out);
    let ended = bring(&up, "door", "");
    assert!(ended.out.contains("outcome: 7"), "{}{}", ended.out, ended.err);
    let first = stored(&up.dir);
    // The same tasks and the same length, and another program.
    let bring_other = |up: &Up| {
        let path = stranger(up.temp.path(), "door3", "");
        let mut other = fs::read(&path).unwrap();
        *other.last_mut().unwrap() ^= 1;
        fs::write(&path, other).unwrap();
        finish(command(&path, &["bring", up.file.to_str().unwrap()]))
    };
    // As long as a node runs the first one, the second one has no place.
    let full = bring_other(&up);
    assert!(full.out.contains("of the cache are in use"), "{}{}", full.out, full.err);
    // The nodes of the next head start with the grid's program.
    up.kill_head();
    up.start_head();
    assert_eq!(stored(&up.dir), first);
    let ended = bring_other(&up);
    assert!(ended.out.contains("outcome: 7"), "{}{}", ended.out, ended.err);
    let second = stored(&up.dir);
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    up.end();
}

#[test]
fn a_program_that_cannot_run_fails_with_its_last_lines() {
    let config = "[[cluster]]\nname = \"ams\"\nnodes = 2\nenv = { DOOR_LACKS_A_LIBRARY = \"1\" }\n";
    let up = Up::by(config);
    let ended = bring(&up, "door", "");
    assert!(ended.out.contains("ProgramRefused"), "{}{}", ended.out, ended.err);
    for expected in ["cannot run as a node of cluster ams", "exit status: 127", "libtide.so.2"] {
        assert!(ended.out.contains(expected), "{expected}: {}", ended.out);
    }
    // The nodes are there again with the grid's program.
    nodes_are_there(&up, 2);
    let line = ["run", "fib", "--n", "20", "--config", up.file.to_str().unwrap()];
    assert_eq!(run(&line).code, Some(0));
    up.end();
}

#[test]
fn a_submitted_job_brings_its_program_and_why_says_how_it_went() {
    let up = Up::by("[[cluster]]\nname = \"ams\"\nnodes = 2\n");
    let config = up.file.to_str().unwrap();
    let program = stranger(up.temp.path(), "own_program", "");
    let submit = |line: &[&str]| {
        let line = [&["job", "submit", "collatz"], line, &["--config", config]].concat();
        finish(command(&program, &line))
    };
    let submitted = submit(&["--below", "1000", "--kind", "rigid", "--min", "2"]);
    assert_eq!(submitted.out, "job-1\n", "{}", submitted.err);
    // The command has ended, and its file is gone before the job may have begun.
    fs::remove_file(&program).unwrap();
    let ended = run(&["job", "result", "1", "--wait", "--config", config]);
    let why = run(&["job", "why", "1", "--config", config]);
    assert_eq!(ended.code, Some(0), "{}{}{}", ended.err, why.out, up.output());
    assert!(why.out.contains("sending program"), "{}", why.out);
    up.end();
}

#[test]
fn a_user_with_a_token_needs_no_file_of_the_authority() {
    let config = "[head]\nbind = \"127.0.0.1:0\"\n[join]\nbind = \"127.0.0.1:0\"\n\
                  [[cluster]]\nname = \"ams\"\nnodes = 1\n";
    let up = Up::by(config);
    let head = fs::read_to_string(up.dir.join("head.json")).unwrap();
    let head: serde_json::Value = serde_json::from_str(&head).unwrap();
    let address = |key: &str| head[key].as_str().unwrap().to_owned();
    let own = up.temp.path().join("me");
    fs::create_dir(&own).unwrap();
    let file = own.join("grid.toml");
    // What the user knows of the grid: two addresses.
    let text = format!(
        "[head]\nadvertise = \"{}\"\n[join]\nadvertise = \"{}\"\n\
         [[cluster]]\nname = \"ams\"\nnodes = 1\n",
        address("address"),
        address("join")
    );
    fs::write(&file, text).unwrap();
    let bring = |name: &str, token: &[&str]| {
        let program = stranger(up.temp.path(), name, "");
        finish(command(&program, &[&["bring", file.to_str().unwrap()], token].concat()))
    };
    let none = bring("door", &[]);
    assert!(none.out.starts_with("Unreachable"), "{}{}", none.out, none.err);
    let token = |role: &str| {
        let config = up.file.to_str().unwrap();
        let made = run(&["token", "create", "--role", role, "--json", "--config", config]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        let made: serde_json::Value = serde_json::from_str(&made.out).unwrap();
        made["token"].as_str().unwrap().to_owned()
    };
    let wrong = bring("door", &["no-token"]);
    assert!(wrong.out.starts_with("Config"), "{}{}", wrong.out, wrong.err);
    let ended = bring("door", &[&token("submitter")]);
    assert!(ended.out.contains("outcome: 7"), "{}{}\n{}", ended.out, ended.err, up.output());
    let kept = own.join(".springtide/local/identity");
    assert!(kept.join("node.pem").exists() && !own.join(".springtide/local/ca").exists());
    // The certificate is kept, and serves the command as well.
    let again = bring("door", &[]);
    assert!(again.out.contains("outcome: 7"), "{}{}", again.out, again.err);
    let list = run(&["job", "list", "--config", file.to_str().unwrap()]);
    assert_eq!(list.code, Some(0), "{}", list.err);
    // A viewer brings nothing.
    fs::remove_dir_all(&kept).unwrap();
    let viewer = bring("door", &[&token("viewer")]);
    assert!(viewer.out.starts_with("NotAdmitted"), "{}{}", viewer.out, viewer.err);
    let audit = run(&["audit", "--json", "--config", up.file.to_str().unwrap()]);
    let audit: serde_json::Value = serde_json::from_str(&audit.out).unwrap();
    let entries = audit["commands"].as_array().unwrap();
    let offers = entries.iter().filter(|entry| entry["command"] == "offer-program");
    let results: Vec<&str> = offers.map(|entry| entry["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["done", "done", "refused"]);
    up.end();
}

#[test]
fn a_grid_of_its_own_programs_refuses_others() {
    let up = Up::with(&[("ams", 1)], "[programs]\nforeign = false");
    let ended = bring(&up, "door", "");
    assert!(ended.out.contains("ProgramRefused"), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("the grid runs only its own programs"), "{}", ended.out);
    assert_eq!(stored(&up.dir), []);
    let line = ["run", "fib", "--n", "20", "--config", up.file.to_str().unwrap()];
    assert_eq!(run(&line).code, Some(0));
    up.end();
}
