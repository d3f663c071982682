//! Rotation of a grid's authority while a job runs.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{finish, kill, nodes, program, run, text, until};

#[test]
fn an_authority_is_replaced_while_a_job_runs() {
    let up = Up::with(&[("ams", 2)], "[join]\nbind = \"127.0.0.1:0\"\n");
    let ca = up.dir.join("ca");
    let config = up.file.to_str().unwrap();
    let fingerprint = || run(&["ca", "fingerprint", "--config", config]).out;
    let (old, before) = (fingerprint(), text(&ca.join("ca.pem")));
    // A user with a certificate of the old authority.
    let (dir, out) = (ca.to_str().unwrap().to_owned(), up.temp.path().join("olga"));
    let line = ["ca", "issue", "olga", "--cluster", "users", "--role", "viewer", "--dir", &dir];
    let mut issue = program(&line);
    assert!(issue.arg("--out").arg(&out).status().unwrap().success());
    // A user who joined with a token, whose certificate is renewed.
    let line = ["token", "create", "--role", "viewer", "--json", "--config", config];
    let token: Value = serde_json::from_str(&run(&line).out).unwrap();
    let vera = up.temp.path().join("vera");
    let (at, token) = (token["door"].as_str().unwrap(), token["token"].as_str().unwrap());
    let joined = run(&["node", "join", at, "--token", token, "--dir", vera.to_str().unwrap()]);
    assert_eq!(joined.code, Some(0), "{}", joined.err);
    let list_as = |identity: &Path| {
        let mut list = program(&["job", "list", "--config", config]);
        list.env("SPRINGTIDE_TLS__IDENTITY", identity);
        finish(list)
    };
    let line = ["job", "submit", "queens", "--size", "18", "--min", "1", "-q", "--config", config];
    assert_eq!(run(&line).code, Some(0));
    let status = || -> Value {
        let ended = run(&["job", "status", "1", "--json", "--config", config]);
        serde_json::from_str(&ended.out).unwrap_or_default()
    };
    until("the job runs", || status()["state"] == "running");
    assert_eq!(list_as(&out).code, Some(0));
    let short = run(&["ca", "rotate", "--period", "5s", "--config", config]);
    assert_eq!(short.code, Some(2), "{}", short.err);
    let begun = run(&["ca", "rotate", "--period", "60s", "--config", config]);
    assert_eq!(begun.code, Some(0), "{}", begun.err);
    let again = run(&["ca", "rotate", "--config", config]);
    assert!(again.code == Some(5) && again.err.contains("replaced already"), "{}", again.err);
    // The old authority issues until all processes trust the other one.
    assert_eq!(fingerprint(), old);
    let started = nodes(&up.dir);
    until("both authorities are trusted", || up.output().contains("is trusted from now on"));
    let trusted_by_vera = || text(&vera.join("ca.pem"));
    assert_eq!(list_as(&vera).code, Some(0));
    assert_eq!(trusted_by_vera().matches("BEGIN").count(), 2);
    until("the other authority issues", || !ca.join("next.key").exists());
    assert_eq!(list_as(&vera).code, Some(0));
    assert!(!trusted_by_vera().starts_with(before.trim()), "the other one comes first");
    until("the other authority is trusted alone", || !ca.join("rotation.json").exists());
    let log = up.output();
    for step in ["is trusted from now on", "issues certificates from now on", "no more"] {
        assert!(log.contains(step), "{step}: {log}");
    }
    assert_ne!(fingerprint(), old);
    let after = text(&ca.join("ca.pem"));
    assert!(!after.contains(before.trim()) && after.matches("BEGIN").count() == 1);
    // No process has ended, and the job continues.
    assert_eq!(nodes(&up.dir), started);
    assert_eq!(status()["state"], "running", "{}", status());
    let refused = list_as(&out);
    assert_ne!(refused.code, Some(0), "the old authority is trusted: {}", refused.out);
    let renewed = list_as(&vera);
    assert_eq!(renewed.code, Some(0), "{}", renewed.err);
    // The nodes' files are of the other authority: a node that starts again is accepted.
    until("the files of the nodes are renewed", || {
        ["ams-1", "ams-2"].iter().all(|node| {
            let file = up.dir.join("node").join(node).join("ca.pem");
            fs::read_to_string(file).is_ok_and(|trusted| trusted == after)
        })
    });
    let (name, pid) = started.first().unwrap();
    kill(*pid, "KILL");
    until("the node is back", || {
        let list = run(&["node", "status", name, "--json", "--config", config]);
        let found: Value = serde_json::from_str(&list.out).unwrap_or_default();
        let state = found["state"].as_str().unwrap_or_default().to_owned();
        found["pid"].as_u64().is_some_and(|found| found != u64::from(*pid))
            && ["idle", "busy"].contains(&&*state)
    });
    let cancelled = run(&["job", "cancel", "1", "--config", config]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    let commands = run(&["audit", "--config", config]).out;
    assert!(commands.contains("ca rotate"), "{commands}");
}
