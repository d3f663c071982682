//! Users with roles, and the audit log of their commands.

use std::path::Path;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{CommandOutput, finish, program, run, until};

/// The exit code of a command that a certificate does not allow.
const AUTH: Option<i32> = Some(5);

/// Issues a certificate of the grid for a user, as the holder of the authority's key does.
fn issue(up: &Up, name: &str, cluster: &str, role: &str) {
    let (ca, out) = (up.dir.join("ca"), up.temp.path().join(name));
    let (ca, out) = (ca.to_str().unwrap(), out.to_str().unwrap());
    let line =
        ["ca", "issue", name, "--cluster", cluster, "--role", role, "--dir", ca, "--out", out];
    let ended = run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

/// Executes a command as a user.
fn execute_as(up: &Up, user: &str, line: &[&str]) -> CommandOutput {
    let mut command = program(line);
    command.arg("--config").arg(&up.file);
    command.env("SPRINGTIDE_TLS__IDENTITY", up.temp.path().join(user));
    finish(command)
}

fn submit(up: &Up, user: &str, size: &str) -> String {
    let line = ["job", "submit", "queens", "--size", size, "--min", "1", "-q"];
    let ended = execute_as(up, user, &line);
    assert_eq!(ended.code, Some(0), "{user}: {}", ended.err);
    ended.out.trim().trim_start_matches("job-").to_owned()
}

/// The commands in the audit log: name of the sender, command, result.
fn audit(file: &Path) -> Vec<[String; 3]> {
    let ended = run(&["audit", "--json", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let found: Value = serde_json::from_str(&ended.out).unwrap();
    let row = |entry: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        [text(&entry["who"]["name"]), text(&entry["command"]), text(&entry["result"])]
    };
    found["commands"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_role_allows_what_it_names_and_the_audit_log_has_each_command() {
    let up = Up::of(&[("ams", 2)]);
    for (name, cluster, role) in [
        ("alice", "users", "client"),
        ("bob", "users", "client"),
        ("vera", "users", "viewer"),
        ("adam", "head", "client"),
    ] {
        issue(&up, name, cluster, role);
    }
    // A submitter changes its own jobs alone.
    let alices = submit(&up, "alice", "18");
    let bobs = submit(&up, "bob", "18");
    let refused = execute_as(&up, "bob", &["job", "cancel", &alices]);
    assert_eq!(refused.code, AUTH, "{}", refused.err);
    assert!(refused.err.contains("submitted by another user"), "{}", refused.err);
    let list = execute_as(&up, "bob", &["job", "list"]).out;
    assert!(list.contains(&format!("job-{bobs}")), "{list}");
    // All users see which jobs take processors, and not what others compute.
    let of_alice = list.lines().find(|line| line.starts_with(&format!("job-{alices} ")));
    assert!(of_alice.is_some_and(|line| !line.contains("--size")), "{list}");
    let drained = execute_as(&up, "alice", &["node", "drain", "ams-1"]);
    assert_eq!(drained.code, AUTH, "{}", drained.err);
    // A viewer sees all jobs and changes none.
    let list = execute_as(&up, "vera", &["job", "list"]).out;
    assert!([&alices, &bobs].iter().all(|job| list.contains(&format!("job-{job}"))), "{list}");
    let status = execute_as(&up, "vera", &["job", "status", &alices]);
    assert!(status.code == Some(0) && status.out.contains("client alice"), "{}", status.out);
    for line in [
        &["job", "submit", "fib", "--n", "20"][..],
        &["job", "cancel", &alices],
        &["job", "shrink", &alices, "1"],
        &["job", "purge", &alices],
        &["node", "undrain", "ams-1"],
    ] {
        let refused = execute_as(&up, "vera", line);
        assert_eq!(refused.code, AUTH, "{line:?}: {}", refused.err);
        assert!(refused.err.contains("the role in the sender's certificate"), "{}", refused.err);
    }
    // An operator changes the jobs of all users; an owner its own.
    let ended = execute_as(&up, "adam", &["job", "cancel", &bobs]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let ended = execute_as(&up, "alice", &["job", "cancel", &alices]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let expected = [
        ("alice", "desk-submit-all", "done"),
        ("bob", "desk-submit-all", "done"),
        ("bob", "cancel-job", "refused"),
        ("alice", "drain", "refused"),
        ("vera", "desk-submit-all", "refused"),
        ("vera", "cancel-job", "refused"),
        ("adam", "cancel-job", "done"),
        ("alice", "cancel-job", "done"),
    ];
    let found = audit(&up.file);
    let mut left = found.iter();
    for (who, command, result) in expected {
        let is_next = |entry: &&[String; 3]| entry[..] == [who, command, result];
        assert!(left.any(|entry| is_next(&entry)), "{who} {command} {result}: {found:?}");
    }
}

#[test]
fn only_operators_remove_files_and_change_the_directory_of_the_grid() {
    let up = Up::written(|dir| {
        let files = dir.join("files").display().to_string();
        format!("[[cluster]]\nname = \"ams\"\nnodes = 1\nfiles = \"{files}\"\n")
    });
    issue(&up, "alice", "users", "client");
    issue(&up, "adam", "head", "client");
    let notes = up.temp.path().join("notes.txt");
    std::fs::write(&notes, "of alice").unwrap();
    let put = ["files", "put", notes.to_str().unwrap(), "--cluster", "ams"];
    let ended = execute_as(&up, "alice", &put);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let remove = ["files", "remove", "notes.txt"];
    let refused = execute_as(&up, "alice", &remove);
    assert_eq!(refused.code, AUTH, "{}", refused.err);
    let stored = up.temp.path().join("files/notes.txt");
    assert!(stored.exists());
    let ended = execute_as(&up, "adam", &remove);
    assert!(ended.code == Some(0) && !stored.exists(), "{}", ended.err);
    let state = up.temp.path().join("grid.backup");
    let backup = ["backup", state.to_str().unwrap()];
    for line in [&backup[..], &["token", "list"], &["ca", "rotate"]] {
        let refused = execute_as(&up, "alice", line);
        assert_eq!(refused.code, AUTH, "{line:?}: {}", refused.err);
        assert!(refused.err.contains("that of an operator"), "{}", refused.err);
    }
    let ended = execute_as(&up, "adam", &backup);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let found = audit(&up.file);
    let is_backup = |entry: &[String; 3]| entry[..] == ["adam", "backup", "done"];
    assert!(found.iter().any(is_backup), "{found:?}");
}

#[test]
fn a_reservation_belongs_to_its_owner() {
    let up = Up::of(&[("ams", 2)]);
    for (name, cluster) in [("alice", "users"), ("bob", "users"), ("adam", "head")] {
        issue(&up, name, cluster, "client");
    }
    issue(&up, "vera", "users", "viewer");
    let reserve = ["reserve", "--on", "ams", "--processors", "1", "--for", "300s"];
    let refused = execute_as(&up, "vera", &reserve);
    assert_eq!(refused.code, AUTH, "{}", refused.err);
    let made = execute_as(&up, "alice", &reserve);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let fib = ["job", "submit", "fib", "--n", "20", "--kind", "rigid", "--min", "1", "--wait"];
    let job = [&fib[..], &["--reservation", "1"]].concat();
    let refused = execute_as(&up, "bob", &job);
    assert_ne!(refused.code, Some(0), "{}", refused.out);
    assert!(refused.err.contains("belongs to client alice"), "{}", refused.err);
    let refused = execute_as(&up, "bob", &["release", "1"]);
    assert_eq!(refused.code, AUTH, "{}", refused.err);
    let ended = execute_as(&up, "alice", &job);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let released = execute_as(&up, "alice", &["release", "1"]);
    assert_eq!(released.code, Some(0), "{}", released.err);
    // An operator ends the reservations of all users.
    let made = execute_as(&up, "bob", &reserve);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let released = execute_as(&up, "adam", &["release", "2"]);
    assert_eq!(released.code, Some(0), "{}", released.err);
    // A purge that removes nothing is not a success.
    let purged = execute_as(&up, "bob", &["job", "purge", "1"]);
    assert_ne!(purged.code, Some(0), "{}", purged.out);
    let found = audit(&up.file);
    let of_bob: Vec<_> = found.iter().filter(|entry| entry[0] == "bob").collect();
    assert!(of_bob.iter().all(|entry| entry[1] != "desk-purge" || entry[2] != "done"), "{found:?}");
}

#[test]
fn an_audit_log_survives_heads_and_shows_damaged_lines() {
    let mut up = Up::of(&[("ams", 1)]);
    let file = up.file.clone();
    let drain = |up: &Up| {
        let ended = up.node(&["drain", "ams-1", "--reason", "new disk"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    };
    drain(&up);
    up.kill_head();
    let path = up.dir.join("audit.jsonl");
    let mut text = std::fs::read(&path).unwrap();
    text.extend(b"{\"who\n");
    std::fs::write(&path, text).unwrap();
    up.start_head();
    until("the node is there", || up.node(&["list"]).out.contains("drained"));
    drain(&up);
    let ended = run(&["audit", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("audit.jsonl:2:"), "{}", ended.err);
    assert_eq!(ended.out.matches("node drain").count(), 2, "{}", ended.out);
    let ended = run(&["audit", "--last", "1", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.out.matches("node drain").count(), 1, "{}", ended.out);
}

#[test]
fn an_identity_of_a_node_or_of_another_grid_is_refused_before_any_message() {
    let up = Up::of(&[("ams", 1)]);
    issue(&up, "ams-7", "ams", "node");
    let refused = execute_as(&up, "ams-7", &["job", "list"]);
    assert_eq!(refused.code, AUTH);
    assert!(refused.err.contains("tls.identity"), "{}", refused.err);
    let missing = execute_as(&up, "nothing", &["job", "list"]);
    assert_eq!(missing.code, AUTH, "{}", missing.err);
    assert!(missing.err.contains("nothing/node.pem"), "{}", missing.err);
}
